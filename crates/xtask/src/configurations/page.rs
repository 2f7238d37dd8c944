//! The tables of docs/configurations.md, between two comments.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::Row;
use crate::{Failure, workspace};

/// Path of the page in the repository.
const PAGE: &str = "docs/configurations.md";

/// The comments around the generated part.
const MARKS: [&str; 2] =
    ["<!-- results: written by cargo xtask configurations --bless -->", "<!-- end of results -->"];

/// Reasons by a substring of the error. The first match counts.
const REASONS: [(&str, &str); 8] = [
    ("\"js_", "njs: programs are not run inside of the server"),
    ("lua", "lua: programs are not run inside of the server"),
    ("\"mail\"", "`mail` is not supported yet"),
    ("SSLv3", "TLS before 1.2 is not supported"),
    ("set_escape_uri", "third-party module set-misc"),
    ("modsecurity", "third-party module modsecurity"),
    ("upload_progress", "third-party module upload-progress"),
    ("track_uploads", "third-party module upload-progress"),
];

/// Returns the number of distinct repositories.
pub(super) fn repositories(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.repository.as_str()).collect::<BTreeSet<_>>().len()
}

/// Writes the tables into the page.
pub(super) fn write(rows: &[Row]) -> Result<(), Failure> {
    let stored = workspace::read(PAGE)?;
    let missing =
        || Failure::Format { what: PAGE, detail: "the comments around the results are missing".into() };
    let (before, rest) = stored.split_once(MARKS[0]).ok_or_else(missing)?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(missing)?;
    workspace::write(PAGE, &format!("{before}{}\n\n{}\n{}{after}", MARKS[0], tables(rows), MARKS[1]))
}

/// Returns the counts, the reasons in alphabetical order, and each configuration that does not load.
fn tables(rows: &[Row]) -> String {
    let loads = rows.iter().filter(|row| row.loads()).count();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.loads()) {
        *reasons.entry(reason(&row.expected)).or_default() += 1;
    }
    let counts: String = reasons.iter().map(|(reason, count)| format!("| {reason} | {count} |\n")).collect();
    let refused: String = rows.iter().filter(|row| !row.loads()).map(line).collect();
    format!(
        "{} configurations of {} repositories: {loads} load, {} do not.\n\n| reason | configurations |\n|---|---|\n{counts}\n\
         | repository | configuration | first error |\n|---|---|---|\n{refused}",
        rows.len(),
        repositories(rows),
        rows.len() - loads,
    )
}

/// Returns a line of the last table, with the error escaped for a cell.
fn line(row: &Row) -> String {
    let error = row.expected.replace('|', "\\|").replace("PREFIX/", "");
    format!("| {} | `{}` | {error} |\n", row.repository, row.path)
}

/// Returns the reason of a rejection, from the error.
fn reason(error: &str) -> &'static str {
    known(error).map_or("other, see the error", |(_, reason)| reason)
}

/// Returns the row of [`REASONS`] for an error.
fn known(error: &str) -> Option<&'static (&'static str, &'static str)> {
    REASONS.iter().find(|(part, _)| error.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configurations::rows;

    #[test]
    fn the_page_has_the_results_of_the_list() {
        let rows = rows::read().expect("the list is complete");
        let page = workspace::read(PAGE).expect("the page is there");
        assert!(page.contains(&tables(&rows)), "run `cargo xtask configurations --bless`");
    }

    #[test]
    fn each_refused_configuration_has_a_reason_and_each_reason_is_used() {
        let rows = rows::read().expect("the list is complete");
        let refused = rows.iter().filter(|row| !row.loads());
        let used: BTreeSet<_> =
            refused.map(|row| known(&row.expected).unwrap_or_else(|| panic!("{row:?}"))).collect();
        assert_eq!(used, REASONS.iter().collect(), "remove the reasons that no configuration has");
    }
}
