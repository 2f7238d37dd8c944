//! `ringroad lint [FILE]`: traps in a configuration, with fixes. The rules are in crate `lint`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conf::Loader;
use lint::{Facts, Finding, Form, Level, Options, Refusal};

use super::failure::CommandFailure;
use super::fmt::replace;
use super::options::Arguments;
use super::output::{print, print_error};
use super::request::{file_of, request_of};
use crate::adapter::{self, Files};
use crate::listen::error_text;
use crate::loader::DiskLoader;
use crate::paths::Request;

/// Reports on a file and its includes.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match linted(given) {
        Ok(status) => status,
        Err(failure) => failure.report("lint"),
    }
}

fn linted(given: &Arguments) -> Result<ExitCode, CommandFailure> {
    if given.has("list") {
        for rule in lint::all() {
            print(format!("{:<30} {:<8} {}\n", rule.name, rule.level.to_string(), rule.what));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (options, form) = (options(given)?, form(given)?);
    let request = request_of(file_of(given)?, given.value("p"))?;
    let facts = Machine { request: &request };
    let (mut tree, mut findings) = read(&request, &facts, &options)?;
    if given.has("fix") {
        let count = mend(&tree, &findings)?;
        print_error(format_args!("ringroad lint: {count} fixed\n"));
        (tree, findings) = read(&request, &facts, &options)?;
    }
    let base = std::env::current_dir().unwrap_or_else(|_| "/".into());
    print(lint::print(form, &findings, &tree, &base));
    let is_serious = |finding: &Finding| finding.level >= Level::Warning;
    Ok(if findings.iter().any(is_serious) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a configuration; returns it with its findings. One with a fault in its syntax is not complete, so only its faults are findings.
fn read(
    request: &Request,
    facts: &Machine<'_>,
    options: &Options,
) -> Result<(conf::Tree, Vec<Finding>), String> {
    let (source, loader) = (conf::Source::new(&request.main), DiskLoader::new(request));
    let tree = conf::parse(&source, &loader).map_err(|error| error.to_string())?;
    if tree.fault().is_none() {
        let findings = lint::lint(&tree, facts, options);
        return Ok((tree, findings));
    }
    let tree = conf::parse_past_faults(&source, &loader).map_err(|error| error.to_string())?;
    let findings = lint::refused(&tree, facts);
    Ok((tree, findings))
}

/// Writes the fixes to the files; returns their number.
fn mend(tree: &conf::Tree, findings: &[Finding]) -> Result<usize, String> {
    let (files, count) = lint::fix(tree, findings);
    for (path, text) in files {
        replace(&path, &text)
            .map_err(|error| format!("write() \"{}\" failed ({})", path.display(), error_text(&error)))?;
    }
    Ok(count)
}

fn options(given: &Arguments) -> Result<Options, CommandFailure> {
    let level = match given.value("level").map(|level| level.to_string_lossy()).as_deref() {
        None | Some("note") => Level::Note,
        Some("warning") => Level::Warning,
        Some("error") => Level::Error,
        Some(other) => {
            return Err(CommandFailure::misuse(format_args!(
                "unknown level \"{other}\": write note, warning or error"
            )));
        }
    };
    let rules: Vec<String> = given.all("rule").map(|rule| rule.to_string_lossy().into_owned()).collect();
    for rule in &rules {
        if !lint::all().any(|known| known.name == rule) {
            let hint = match conf::similar(rule, lint::all().map(|known| known.name)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "--list shows all rules".to_owned(),
            };
            return Err(CommandFailure::misuse(format_args!("unknown rule \"{rule}\"; {hint}")));
        }
    }
    Ok(Options { level, rules })
}

fn form(given: &Arguments) -> Result<Form, CommandFailure> {
    match given.value("format").map(|form| form.to_string_lossy()).as_deref() {
        None | Some("text") => Ok(Form::Text),
        Some("json") => Ok(Form::Json),
        Some("sarif") => Ok(Form::Sarif),
        Some(other) => {
            Err(CommandFailure::misuse(format_args!("unknown format \"{other}\": write text, json or sarif")))
        }
    }
}

/// Returns an error that has no position. A hint is after a semicolon.
fn without_place(message: &str) -> Refusal {
    let (message, remedy) =
        message.split_once("; ").map_or((message, None), |(cause, hint)| (cause, Some(hint)));
    Refusal { at: None, message: message.to_owned(), remedy: remedy.map(str::to_owned) }
}

/// Whether an error quotes a file that exists and that this user may not read, such as a private key: the server may read it.
fn is_about_closed_file(message: &str) -> bool {
    let is_closed = |path: &str| {
        let denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        path.starts_with('/') && std::fs::File::open(path).err().is_some_and(denied)
    };
    message.split('"').skip(1).step_by(2).any(is_closed)
}

/// The facts of this machine, as far as this user may see them.
#[derive(Debug)]
struct Machine<'a> {
    request: &'a Request,
}

impl Machine<'_> {
    /// Returns a path relative to the prefix.
    fn at(&self, path: &Path) -> PathBuf {
        self.request.places.prefix.join(path)
    }

    /// Returns a path relative to the directory of the configuration, as for certificates and files of passwords.
    fn beside(&self, path: &Path) -> PathBuf {
        self.request.main.parent().unwrap_or(Path::new("")).join(path)
    }
}

impl Facts for Machine<'_> {
    fn exists(&self, path: &Path) -> Option<bool> {
        // An error means that this user may not search the directory.
        let is_there = |path: PathBuf| path.try_exists().ok();
        match (is_there(self.at(path)), is_there(self.beside(path))) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    fn is_certificate_for(&self, path: &Path, host: &str) -> Option<bool> {
        let pem = std::fs::read(self.beside(path)).or_else(|_| std::fs::read(self.at(path))).ok()?;
        let chain = tls::certificates(&pem).ok()?;
        Some(tls::x509::Certificate::from_der(chain.first()?)?.is_for(host))
    }

    fn refusals(&self, tree: &conf::Tree) -> Vec<Refusal> {
        let Err(refused) = adapter::load(self.request, Files::Disk) else { return Vec::new() };
        let problems = adapter::problems(self.request);
        let is_listed = problems.iter().any(|problem| problem.message == refused.message);
        let is_first = !is_listed && (problems.is_empty() || !refused.syntax_is_ok);
        let unlisted = is_first.then(|| without_place(&refused.message));
        let is_closed = is_about_closed_file(&refused.message)
            || problems.iter().any(|problem| is_about_closed_file(&problem.message));
        let refusal = |problem: &adapter::Problem| Refusal {
            at: problem.error.span().cloned(),
            message: problem.error.cause(),
            remedy: conf::remedy_of(&problem.error, &tree.files),
        };
        match is_closed {
            false => problems.iter().map(refusal).chain(unlisted).collect(),
            // Other errors may follow from it. Those of the language do not depend on files.
            true => {
                let of_language = |problem: &&adapter::Problem| {
                    !matches!(problem.error.kind(), conf::ErrorKind::Message(_))
                };
                problems.iter().filter(of_language).map(refusal).collect()
            }
        }
    }

    fn glob_matches(&self, pattern: &str) -> Option<bool> {
        let found = DiskLoader::new(self.request).glob(&self.beside(Path::new(pattern)));
        found.ok().map(|found| !found.is_empty())
    }
}
