//! The list of configurations, `crates/xtask/configurations.tsv`: one line per configuration, with tab-separated
//! columns.
//!
//! Columns: repository (`OWNER/NAME` at GitHub), commit, path, kind, template values (`-` if none), expected result.
//! Lines that begin with `#` are comments.

use crate::{Failure, workspace};

/// Path of the list in the repository.
const LIST: &str = "crates/xtask/configurations.tsv";

/// The expected result of a configuration that loads.
pub(super) const LOADS: &str = "loads";

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A complete configuration.
    Whole,
    /// Directives for the block `http`, such as a file of `conf.d`.
    Http,
    /// Directives for the block `server`.
    Server,
}

impl Kind {
    /// All kinds with their names in the list.
    const ALL: [(Kind, &str); 3] = [(Kind::Whole, "whole"), (Kind::Http, "http"), (Kind::Server, "server")];

    /// Returns the name in the list.
    pub(super) fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, _)| *kind == self).expect("all kinds are in the table").1
    }
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// `OWNER/NAME` at GitHub.
    pub(super) repository: String,
    /// Commit id of 40 hexadecimal digits. A branch name would not identify the content, so the result could change.
    pub(super) commit: String,
    /// Path from the root of the repository.
    pub(super) path: String,
    /// The kind, which determines the blocks around the file.
    pub(super) kind: Kind,
    /// Values for names in templates; the first match counts.
    pub(super) values: Vec<(String, String)>,
    /// [`LOADS`] or the first error.
    pub(super) expected: String,
}

impl Row {
    /// Whether the server is expected to load it.
    pub(super) fn loads(&self) -> bool {
        self.expected == LOADS
    }
}

/// Reads all rows of the list.
pub(super) fn read() -> Result<Vec<Row>, Failure> {
    parse(&workspace::read(LIST)?)
}

/// Replaces the list; its comments stay at the top.
pub(super) fn write(rows: &[Row]) -> Result<(), Failure> {
    let stored = workspace::read(LIST)?;
    let comments = stored.lines().filter(|line| line.starts_with('#')).map(String::from);
    let lines: Vec<String> = comments.chain(rows.iter().map(line)).collect();
    workspace::write(LIST, &(lines.join("\n") + "\n"))
}

/// Parses a text line by line. An invalid line is an error, so that no row is lost by a missing tab.
fn parse(text: &str) -> Result<Vec<Row>, Failure> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| row(line).ok_or(Failure::Format { what: LIST, detail: line.into() })).collect()
}

/// Parses a row; returns `None` if a column is missing or invalid.
fn row(line: &str) -> Option<Row> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[repository, commit, path, kind, values, expected] = columns.as_slice() else { return None };
    let whole = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let kind = Kind::ALL.iter().find(|(_, name)| *name == kind)?.0;
    let values = match values {
        "-" => Vec::new(),
        _ => values.split(", ").map(pair).collect::<Option<_>>()?,
    };
    let row = Row {
        repository: repository.into(),
        commit: commit.into(),
        path: path.into(),
        kind,
        values,
        expected: expected.into(),
    };
    (whole && repository.contains('/')).then_some(row)
}

/// Parses a name and its value; the value may contain further equals signs.
fn pair(text: &str) -> Option<(String, String)> {
    text.split_once('=').map(|(name, value)| (name.into(), value.into()))
}

/// Formats a row: the reverse of [`row`].
fn line(row: &Row) -> String {
    let values: Vec<String> = row.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let values = if values.is_empty() { "-".into() } else { values.join(", ") };
    [&row.repository, &row.commit, &row.path, row.kind.name(), &values, &row.expected].join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_and_written() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let text = format!("a/b\t{commit}\tx/y.conf\thttp\tPORT=80, NAME=a b\tloads");
        let row = row(&text).expect("all columns are there");
        assert_eq!((row.kind, row.values[1].1.as_str(), row.loads()), (Kind::Http, "a b", true));
        assert_eq!(line(&row), text);
        assert!(parse("a/b\tshort\tx\thttp\t-\tloads\n").is_err());
        assert!(parse(&format!("a/b\t{commit}\tx\tother\t-\tloads\n")).is_err());
    }

    #[test]
    fn the_list_is_sorted_and_has_no_duplicates() {
        let rows = read().expect("the list is complete");
        let names: Vec<_> =
            rows.iter().map(|row| (row.repository.to_lowercase(), row.path.clone())).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "sort the list by repository and path");
    }
}
