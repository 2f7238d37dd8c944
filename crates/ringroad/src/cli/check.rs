//! `ringroad check FILE`: how much of an nginx configuration this server honours.
//!
//! Unlike `-t` it goes on past errors, so that one run shows everything that a move from nginx would meet. Each
//! directive gets a line:
//!
//! ```text
//! /etc/nginx/nginx.conf:7: honoured worker_connections
//! /etc/nginx/sites-enabled/a:12: not supported yet proxy_pass: of module http_proxy
//! ```
//! Then comes which way bodies go in each location, and a sum. The exit status is 1 when the configuration would
//! not load.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use conf::{Args, Error, ErrorKind, Spec, State, Statement, Verdict, Visit, value};

use super::{print, print_error};
use crate::loader::DiskLoader;
use crate::places::{Places, Request};
use crate::site::{self, Files};

/// What becomes of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Does what it does in nginx.
    Honoured,
    /// Does something else; the remark says what.
    Differs,
    /// Is accepted and does nothing; the remark says why that is well.
    NoEffect,
    /// nginx has it, this server does not yet.
    NotSupported,
    /// Nobody has it.
    Unknown,
    /// Stands in the wrong place, or has the wrong arguments.
    Wrong,
}

impl Fate {
    /// The word in the report.
    fn name(self) -> &'static str {
        match self {
            Fate::Honoured => "honoured",
            Fate::Differs => "differs",
            Fate::NoEffect => "no effect",
            Fate::NotSupported => "not supported yet",
            Fate::Unknown => "unknown",
            Fate::Wrong => "wrong",
        }
    }
}

/// Reports on one file and what it includes.
pub(super) fn run(args: Vec<OsString>) -> ExitCode {
    let [file] = args.as_slice() else {
        print_error("ringroad: usage: ringroad check FILE\n");
        return ExitCode::FAILURE;
    };
    // From where one is: this command is used on files that are not installed.
    let main = match std::path::absolute(PathBuf::from(file)) {
        Ok(main) => main,
        Err(error) => {
            print_error(format_args!("ringroad: {}: {error}\n", file.to_string_lossy()));
            return ExitCode::FAILURE;
        }
    };
    let prefix = main.parent().unwrap_or(&main).to_owned();
    let request = Request { main, globals: String::new(), places: Places::below(&prefix), text: None };
    let tree = match conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(&request)) {
        Ok(tree) => tree,
        Err(error) => {
            print_error(format_args!("ringroad: [{}] {error}\n", error.level()));
            return ExitCode::FAILURE;
        }
    };
    let (mut report, sums) = directives(&tree);
    let verdict = site::load(&request, Files::Disk);
    report.push('\n');
    match &verdict {
        Ok(site) => {
            for (level, warning) in &site.warnings {
                let _infallible = writeln!(report, "[{level}] {warning}");
            }
            report.push_str(&site::explain(&site.config));
        }
        Err(refused) => {
            let _infallible = writeln!(report, "[{}] {}", refused.level, refused.message);
        }
    }
    let sums: Vec<String> = sums.iter().map(|(fate, count)| format!("{count} {}", fate.name())).collect();
    let loads = if verdict.is_ok() { "loads" } else { "does not load" };
    let _infallible = writeln!(report, "\nThis configuration {loads}: {}.", sums.join(", "));
    print(report);
    if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One line for each directive, and how many there are of each kind.
fn directives(tree: &conf::Tree) -> (String, BTreeMap<Fate, usize>) {
    let (mut report, mut sums) = (String::new(), BTreeMap::new());
    conf::visit(tree, site::table(), &mut |visit| {
        if let Some((fate, remark)) = judge(&visit) {
            *sums.entry(fate).or_default() += 1;
            let (span, name) = (visit.statement.span(), &visit.statement.name.text);
            let remark = remark.map(|remark| format!(": {remark}")).unwrap_or_default();
            let _infallible = writeln!(report, "{span}: {} {name}{remark}", fate.name());
        }
    });
    (report, sums)
}

/// What is wrong with the word of a flag that has an effect.
fn wrong_flag(spec: &Spec, statement: &Statement) -> Option<String> {
    if spec.args != Args::Flag || matches!(spec.state, State::Accepted(_)) {
        return None;
    }
    let fault = value::flag(statement.arg(0)).err()?;
    Some(Error::value(statement, statement.arg(0), fault).kind().to_string())
}

/// `None` for what is no directive.
fn judge(visit: &Visit<'_>) -> Option<(Fate, Option<String>)> {
    Some(match &visit.verdict {
        Verdict::Row | Verdict::Unjudged => return None,
        // Other values are for the modules, which stop at the first that is wrong; a flag is told by itself.
        Verdict::Known(spec) if wrong_flag(spec, visit.statement).is_some() => {
            (Fate::Wrong, wrong_flag(spec, visit.statement))
        }
        Verdict::Known(spec) => match spec.state {
            State::Honoured => (Fate::Honoured, None),
            State::Differs(how) => (Fate::Differs, Some(how.to_owned())),
            State::Accepted(why) => (Fate::NoEffect, Some(why.to_owned())),
        },
        Verdict::Fault(error) => match error.kind() {
            ErrorKind::NotSupported { module, .. } => {
                (Fate::NotSupported, Some(format!("of module {module}")))
            }
            ErrorKind::Unknown { similar, .. } => {
                (Fate::Unknown, similar.map(|similar| format!("did you mean \"{similar}\"?")))
            }
            other => (Fate::Wrong, Some(other.to_string())),
        },
    })
}
