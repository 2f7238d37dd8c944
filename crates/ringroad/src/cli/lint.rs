//! `ringroad lint FILE`: traps in a configuration, with fixes. The rules are in crate `lint`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conf::Loader;
use lint::{Facts, Finding, Form, Level, Options};

use super::fmt::replace;
use super::options::Arguments;
use super::output::{print, print_error};
use super::request::request_of;
use crate::listen::error_text;
use crate::loader::DiskLoader;
use crate::paths::Request;

/// Exit status if the file cannot be read, or the arguments are wrong.
const UNUSABLE: u8 = 2;

/// Reports on a file and its includes.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match linted(given) {
        Ok(status) => status,
        Err(message) => {
            print_error(format_args!("ringroad lint: {message}\n"));
            ExitCode::from(UNUSABLE)
        }
    }
}

fn linted(given: &Arguments) -> Result<ExitCode, String> {
    if given.has("list") {
        for rule in lint::all() {
            print(format!("{:<30} {:<8} {}\n", rule.name, rule.level.to_string(), rule.what));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let file = given.operands.first().ok_or("the file is missing")?;
    let (options, form) = (options(given)?, form(given)?);
    let request = request_of(Some(file), given.value("p"))?;
    let mut tree = read(&request)?;
    let facts = Machine { request: &request };
    let mut findings = lint::lint(&tree, &facts, &options);
    if given.has("fix") {
        let count = mend(&tree, &findings)?;
        print_error(format_args!("ringroad lint: {count} fixed\n"));
        tree = read(&request)?;
        findings = lint::lint(&tree, &facts, &options);
    }
    let base = std::env::current_dir().unwrap_or_else(|_| "/".into());
    print(lint::print(form, &findings, &tree, &base));
    let is_serious = |finding: &Finding| finding.level >= Level::Warning;
    Ok(if findings.iter().any(is_serious) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a configuration.
fn read(request: &Request) -> Result<conf::Tree, String> {
    let tree = conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(request));
    let tree = tree.map_err(|error| error.to_string())?;
    match tree.fault() {
        None => Ok(tree),
        Some(fault) => Err(format!("{fault}; \"ringroad -t\" shows all errors")),
    }
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

fn options(given: &Arguments) -> Result<Options, String> {
    let level = match given.value("level").map(|level| level.to_string_lossy()).as_deref() {
        None | Some("note") => Level::Note,
        Some("warning") => Level::Warning,
        Some("error") => Level::Error,
        Some(other) => return Err(format!("unknown level \"{other}\": write note, warning or error")),
    };
    let rules: Vec<String> = given.all("rule").map(|rule| rule.to_string_lossy().into_owned()).collect();
    for rule in &rules {
        if !lint::all().any(|known| known.name == rule) {
            let hint = match conf::similar(rule, lint::all().map(|known| known.name)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "--list shows all rules".to_owned(),
            };
            return Err(format!("unknown rule \"{rule}\"; {hint}"));
        }
    }
    Ok(Options { level, rules })
}

fn form(given: &Arguments) -> Result<Form, String> {
    match given.value("format").map(|form| form.to_string_lossy()).as_deref() {
        None | Some("text") => Ok(Form::Text),
        Some("json") => Ok(Form::Json),
        Some("sarif") => Ok(Form::Sarif),
        Some(other) => Err(format!("unknown format \"{other}\": write text, json or sarif")),
    }
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

    fn glob_matches(&self, pattern: &str) -> Option<bool> {
        let found = DiskLoader::new(self.request).glob(&self.beside(Path::new(pattern)));
        found.ok().map(|found| !found.is_empty())
    }
}
