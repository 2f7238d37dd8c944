//! `ringroad check [FILE]`: which directives of an nginx configuration this server supports.
//!
//! Unlike `-t` it continues after errors, missing files and unsupported features, so that one run shows every obstacle
//! of a migration from nginx. Supported directives are only counted, unless `--all` lists each. If the configuration is valid, the
//! steps of `-t` follow, without creating files. The exit status is 0 if a start would succeed, 2 if the configuration needs
//! unsupported features, and 1 otherwise.

mod judge;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::ExitCode;

use serde_json::json;

use self::judge::{Handling, Judged, Remark, Severity};
use self::sandbox::SandboxSection;
use super::options::Arguments;
use super::output::{print, print_error};
use super::request::{file_of, request_of};
use super::trial::{Trial, try_start};
use crate::adapter::{self, Files, Site};
use crate::loader::DiskLoader;
use crate::log::{Level, Log, Messages};
use crate::paths::Request;

/// Exit status if the configuration needs unsupported features.
const MISSING: u8 = 2;

/// Maximum number of positions shown per problem without `--all`.
const POSITIONS_MAX: usize = 5;

/// Reports on a file and its includes.
pub(super) fn run(given: &Arguments) -> ExitCode {
    // Relative to the working directory and not to the prefix: the checked file is often not installed.
    let request = file_of(given).and_then(|file| Ok(request_of(file, given.value("p"))?));
    let request = match request {
        Ok(request) => request,
        Err(failure) => return failure.report("check"),
    };
    let tree = conf::parse_past_faults(&conf::Source::new(&request.main), &DiskLoader::new(&request));
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) => {
            print_error(format_args!("ringroad: [{}] {error}\n", error.level()));
            return ExitCode::FAILURE;
        }
    };
    let verdict = adapter::load(&request, Files::Disk);
    let mut problems = if verdict.is_ok() { Vec::new() } else { adapter::problems(&request) };
    if let Err(refused) = &verdict
        && !problems.iter().any(|problem| problem.message == refused.message)
        && (problems.is_empty() || !refused.syntax_is_ok)
    {
        problems.push(judge::unplaced(refused));
    }
    let mut judged = judge::all(&tree, &problems);
    let mut verdict = verdict;
    if let Ok(site) = &mut verdict {
        // The same steps as for `-t`, so that both have the same result.
        let messages = Messages::default();
        let tried = try_start(&request, site, &Log::collecting(Level::Warn, &messages), Trial::ChecksOnly);
        for (level, message) in messages.take() {
            match level {
                Level::Warn => site.warnings.push((level, message)),
                _ if tried.is_err() => judged.remarks.push(judge::obstacle(message)),
                _ => {}
            }
        }
    }
    match given.has("json") {
        true => print(format!("{}\n", to_json(&request, &judged, verdict.as_ref().ok()))),
        false => print(to_text(&judged, verdict.as_ref().ok(), given.has("all"))),
    }
    match judged.verdict() {
        Severity::Wrong | Severity::Unknown | Severity::Misspelt | Severity::Machine => ExitCode::FAILURE,
        Severity::Missing | Severity::Never | Severity::Commercial | Severity::ThirdParty => {
            ExitCode::from(MISSING)
        }
        Severity::Fine => ExitCode::SUCCESS,
    }
}

/// Formats the report as text.
fn to_text(judged: &Judged, site: Option<&Site>, all: bool) -> String {
    let mut text = String::new();
    if all {
        for row in &judged.rows {
            let remark = row.remark.as_ref().map(|remark| format!(": {remark}")).unwrap_or_default();
            let _infallible = writeln!(text, "{}: {} {}{remark}", row.place, row.handling.name(), row.name);
        }
        text.push('\n');
    }
    for (kind, title) in [
        (Severity::Wrong, "Wrong"),
        (Severity::Misspelt, "Misspelt"),
        (Severity::Unknown, "Unknown"),
        (Severity::Machine, "A start on this machine fails"),
        (Severity::Missing, "Not supported yet"),
        (Severity::ThirdParty, "Of third-party modules of nginx"),
        (Severity::Commercial, "Of the commercial edition of nginx"),
        (Severity::Never, "Will not be supported"),
    ] {
        let remarks: Vec<&Remark> = judged.remarks.iter().filter(|remark| remark.kind == kind).collect();
        if !remarks.is_empty() {
            let _infallible = writeln!(text, "{title} ({}):", remarks.len());
            groups(&mut text, &remarks, all);
            text.push('\n');
        }
    }
    let differing = judged.rows.iter().filter(|row| row.handling == Handling::Differs);
    let mut by_remark: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for row in differing {
        let remark = row.remark.as_deref().unwrap_or_default();
        by_remark.entry((&row.name, remark)).or_default().push(&row.place);
    }
    if !by_remark.is_empty() {
        let _infallible =
            writeln!(text, "Differs from nginx ({}):", by_remark.values().map(Vec::len).sum::<usize>());
        for ((name, remark), places) in by_remark {
            let _infallible = writeln!(text, "  {name}: {remark}");
            list_positions(&mut text, &places, all);
        }
        text.push('\n');
    }
    if let Some(site) = site {
        for (level, warning) in &site.warnings {
            let _infallible = writeln!(text, "[{level}] {warning}");
        }
        if !site.warnings.is_empty() {
            text.push('\n');
        }
        SandboxSection::of(&site.config).write(&mut text, all);
        if all {
            text.push_str(&adapter::explain(&site.config));
            text.push('\n');
        }
    }
    let _infallible = writeln!(text, "{}", summary(judged));
    text
}

/// Returns a line with the verdict and the number of directives in each category.
fn summary(judged: &Judged) -> String {
    let count = |handling: Handling| judged.rows.iter().filter(|row| row.handling == handling).count();
    let fates = [
        Handling::Honoured,
        Handling::Differs,
        Handling::NoEffect,
        Handling::NotSupported,
        Handling::Unknown,
        Handling::Wrong,
    ];
    let counts =
        fates.into_iter().map(|handling| (count(handling), handling.name())).filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, name)| format!("{count} {name}")).collect();
    let verdict = match judged.verdict() {
        Severity::Fine => "loads",
        Severity::Missing | Severity::Never | Severity::Commercial | Severity::ThirdParty => {
            "does not load: it needs features that are not supported"
        }
        Severity::Machine => "is valid, but a start on this machine fails, as \"ringroad -t\" does",
        Severity::Wrong | Severity::Unknown | Severity::Misspelt => "does not load: it has errors",
    };
    let hint = if count(Handling::NoEffect) > 0 { " (--all lists every directive)" } else { "" };
    match counts.is_empty() {
        true => format!("This configuration {verdict}. It has no directives."),
        false => format!("This configuration {verdict}. Directives: {}{hint}.", counts.join(", ")),
    }
}

/// Appends the remarks by group, with their positions.
fn groups(text: &mut String, remarks: &[&Remark], all: bool) {
    let mut seen = BTreeSet::new();
    for remark in remarks {
        let Some(group) = &remark.group else {
            let _infallible = writeln!(text, "  {}", remark.message);
            for line in remark.excerpt.iter().flat_map(|excerpt| excerpt.lines()) {
                let _infallible = writeln!(text, "  {line}");
            }
            continue;
        };
        if !seen.insert(group) {
            continue;
        }
        let of_it: Vec<&&Remark> =
            remarks.iter().filter(|other| other.group.as_ref() == Some(group)).collect();
        let _infallible = writeln!(text, "  {group}: {}", counted(of_it.len(), "directive"));
        let places: Vec<String> =
            of_it.iter().map(|remark| format!("{} {}", remark.place, remark.directive)).collect();
        list_positions(text, &places.iter().map(String::as_str).collect::<Vec<_>>(), all);
    }
}

/// Appends the first positions of a problem, and the number of further ones.
fn list_positions(text: &mut String, places: &[&str], all: bool) {
    let shown = if all { places.len() } else { POSITIONS_MAX };
    for place in places.iter().take(shown) {
        let _infallible = writeln!(text, "    {place}");
    }
    if let Some(left) = places.len().checked_sub(shown).filter(|left| *left > 0) {
        let _infallible = writeln!(text, "    and {left} more");
    }
}

/// Formats a number with its noun.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats the report as JSON.
fn to_json(request: &Request, judged: &Judged, site: Option<&Site>) -> serde_json::Value {
    let mut directives = BTreeMap::new();
    for row in &judged.rows {
        *directives.entry(row.handling.name()).or_insert(0) += 1;
    }
    let problems: Vec<_> = judged
        .remarks
        .iter()
        .map(|remark| {
            json!({
                "kind": remark.kind.name(), "place": remark.place, "directive": remark.directive,
                "message": remark.message, "group": remark.group,
            })
        })
        .collect();
    let differs = judged.rows.iter().filter(|row| row.handling == Handling::Differs);
    let differs: Vec<_> =
        differs.map(|row| json!({ "place": row.place, "directive": row.name, "how": row.remark })).collect();
    let warnings: Vec<&String> = site.iter().flat_map(|site| &site.warnings).map(|(_, text)| text).collect();
    json!({
        "file": request.main, "verdict": judged.verdict().name(),
        "loads": judged.verdict() == Severity::Fine,
        "directives": directives, "problems": problems, "differs": differs, "warnings": warnings,
        "refused_by_sandbox": site.map(|site| SandboxSection::of(&site.config).to_json()),
    })
}
