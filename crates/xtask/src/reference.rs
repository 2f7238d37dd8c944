//! `cargo xtask reference`: writes docs/directives.md and docs/counters.md, which the server generates from its own
//! tables.
//!
//! `ringroad reference` and `ringroad reference counters` print the pages as Markdown; this module stores them. The test
//! `pages_of_the_reference_are_current` of crate `ringroad` compares them, so that they cannot deviate from the code.

use crate::{Failure, workspace};

/// Paths of the pages, and the arguments that print them.
const PAGES: &[(&str, &[&str])] =
    &[("docs/directives.md", &["reference"]), ("docs/counters.md", &["reference", "counters"])];

/// Writes the pages.
pub(crate) fn write() -> Result<(), Failure> {
    PAGES.iter().try_for_each(|(path, arguments)| workspace::write(path, &generate(arguments)?))
}

/// Builds and runs the server; returns its output.
fn generate(arguments: &[&str]) -> Result<String, Failure> {
    let run = ["run", "--quiet", "--package", "ringroad", "--"];
    workspace::output(&mut workspace::cargo(&[&run[..], arguments].concat()))
}
