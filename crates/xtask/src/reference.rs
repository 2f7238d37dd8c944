//! `cargo xtask reference`: writes the pages of docs/ that the server generates: directives.md, counters.md and lint.md from its own
//! tables, and benchmark-claims.md from the claims of the write-ups and the verdicts of the last stored report.
//!
//! The commands in [`PAGES`] print the pages as Markdown; this module stores them. The tests
//! `pages_of_the_reference_are_current` and `page_of_claims_is_current` of crate `ringroad` compare them, so that they cannot
//! deviate from the code.

use crate::{Failure, workspace};

/// Directory of the stored reports, one directory for each day.
const REPORTS: &str = "bench/results";

/// Paths of the pages, and the arguments that print them.
const PAGES: &[(&str, &[&str])] = &[
    ("docs/directives.md", &["reference"]),
    ("docs/counters.md", &["reference", "counters"]),
    ("docs/lint.md", &["reference", "lint"]),
];

/// Writes the pages.
pub(crate) fn write() -> Result<(), Failure> {
    PAGES.iter().try_for_each(|(path, arguments)| workspace::write(path, &generate(arguments)?))?;
    let report = format!("{}/report.md", last_report()?);
    let claims = ["bench", "claims", &report, "--link", &format!("../{report}")];
    workspace::write("docs/benchmark-claims.md", &generate(&claims)?)
}

/// Returns the directory of the last stored report.
fn last_report() -> Result<String, Failure> {
    let path = workspace::root().join(REPORTS);
    let failed = |error| Failure::File { path: path.clone(), error };
    let entries = std::fs::read_dir(&path).map_err(failed)?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let last = names.max().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    Ok(format!("{REPORTS}/{last}"))
}

/// Builds and runs the server; returns its output.
fn generate(arguments: &[&str]) -> Result<String, Failure> {
    let run = ["run", "--quiet", "--package", "ringroad", "--features", "bench", "--"];
    workspace::output(&mut workspace::cargo(&[&run[..], arguments].concat()))
}
