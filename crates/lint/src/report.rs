//! Findings as text, JSON and SARIF.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use conf::Tree;
use serde_json::{Value, json};

use crate::rule::{Finding, Level};
use crate::rules;

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people, with the lines of the configuration.
    Text,
    /// One object with a list.
    Json,
    /// SARIF 2.1.0.
    Sarif,
}

/// Returns the report of these findings. In SARIF, files below `base` have relative URIs, as tools for repositories need them.
pub fn print(form: Form, findings: &[Finding], tree: &Tree, base: &Path) -> String {
    match form {
        Form::Text => text(findings, tree),
        Form::Json => format!("{}\n", json_of(findings)),
        Form::Sarif => format!("{:#}\n", sarif(findings, base)),
    }
}

fn text(findings: &[Finding], tree: &Tree) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding { rule, level, at, message, remedy, fix, .. } = finding;
        let fixable = if fix.is_some() { " (--fix)" } else { "" };
        // A finding about the configuration as a whole has no line.
        let position = match (at.line, at.file.path()) {
            (0, Some(path)) => path.display().to_string(),
            _ => at.to_string(),
        };
        let _infallible = writeln!(text, "{position}: {level}: {message} [{rule}]");
        if let Some(line) = line_of(finding, tree) {
            let _infallible = writeln!(text, "{:>5} | {}", at.line, line.trim_end());
        }
        let _infallible = writeln!(text, "      = {remedy}{fixable}");
    }
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let counts = [(Level::Error, "error"), (Level::Warning, "warning"), (Level::Note, "note")];
    let counts: Vec<String> = counts.into_iter().map(|(level, noun)| plural(count(level), noun)).collect();
    let _infallible = writeln!(text, "{}", counts.join(", "));
    text
}

/// Returns the line of the configuration, cut at 100 characters.
fn line_of(finding: &Finding, tree: &Tree) -> Option<String> {
    let path = finding.at.file.path()?;
    let file = tree.files.iter().find(|file| file.path == path)?;
    let text = String::from_utf8_lossy(&file.text);
    let line = text.lines().nth((finding.at.line as usize).checked_sub(1)?)?;
    Some(line.chars().take(100).map(|letter| if letter.is_control() { ' ' } else { letter }).collect())
}

fn json_of(findings: &[Finding]) -> Value {
    let list = findings.iter().map(|finding| {
        json!({
            "rule": finding.rule, "level": finding.level.to_string(), "file": finding.at.file.path(), "line": finding.at.line,
            "directive": finding.directive, "message": finding.message, "remedy": finding.remedy, "fixable": finding.fix.is_some(),
        })
    });
    json!({ "findings": list.collect::<Vec<_>>() })
}

fn sarif(findings: &[Finding], base: &Path) -> Value {
    let level = |level: Level| match level {
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let rules: Vec<Value> = rules::all()
        .map(|rule| {
            json!({
                "id": rule.name, "shortDescription": { "text": rule.what }, "fullDescription": { "text": rule.why },
                "help": { "text": rule.mend }, "defaultConfiguration": { "level": level(rule.level) },
            })
        })
        .collect();
    let results: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let mut location = json!({});
            if let Some(path) = finding.at.file.path() {
                location = json!({ "artifactLocation": { "uri": uri_of(path, base) } });
                // Lines are 1-based; a finding about a file as a whole has none.
                if finding.at.line > 0 {
                    location["region"] = json!({ "startLine": finding.at.line });
                }
            }
            json!({
                "ruleId": finding.rule, "level": level(finding.level),
                "message": { "text": format!("{}: {}", finding.message, finding.remedy) },
                "locations": [{ "physicalLocation": location }],
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{ "tool": { "driver": { "name": "ringroad lint", "rules": rules } }, "results": results }],
    })
}

/// Returns the URI reference of a file (RFC 3986): relative to `base`, else with the scheme `file`.
fn uri_of(path: &Path, base: &Path) -> String {
    let (scheme, path) = match path.strip_prefix(base) {
        Ok(relative) => ("", relative),
        Err(_) => ("file://", path),
    };
    let mut uri = scheme.to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            _ => {
                let _infallible = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_uris() {
        let uri = |path: &str, base: &str| uri_of(Path::new(path), Path::new(base));
        assert_eq!(uri("/site/conf/a b%.conf", "/site"), "conf/a%20b%25.conf");
        assert_eq!(uri("/etc/nginx/ä.conf", "/site"), "file:///etc/nginx/%C3%A4.conf");
        assert_eq!(uri("/sites/a.conf", "/site"), "file:///sites/a.conf");
    }
}
