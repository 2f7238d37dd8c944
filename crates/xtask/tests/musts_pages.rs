//! Checks that each row of `docs/http2-musts.md` and `docs/http3-musts.md` names at least one test, and that all named tests exist. So a
//! test cannot be renamed or removed without a change of its row. Each section of the RFCs with a MUST must have a row.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns section, rule and tests of each row.
fn rows(page: &str) -> Vec<[&str; 3]> {
    let cells = page.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let is_row =
        |cells: &Vec<&str>| cells.len() == 5 && cells[1].starts_with(|char: char| char.is_ascii_digit());
    cells.filter(is_row).map(|cells| [cells[1], cells[2], cells[3]]).collect()
}

/// Appends the text of all Rust sources below a directory.
fn sources(folder: &Path, text: &mut String) {
    let entries = fs::read_dir(folder).expect("the folder is part of the workspace");
    for path in entries.map(|entry| entry.expect("it can be listed").path()) {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("sources are text"));
        }
    }
}

/// Sections of RFC 9113 and RFC 7541 with a MUST.
const RFC9113: [&str; 38] = [
    "3.2", "3.3", "3.4", "4.1", "4.2", "4.3", "4.3.1", "5.1", "5.1.1", "5.1.2", "5.2.1", "5.2.2", "5.4",
    "5.4.1", "5.4.2", "5.5", "6.1", "6.2", "6.3", "6.4", "6.5", "6.5.2", "6.5.3", "6.6", "6.7", "6.8", "6.9",
    "6.9.1", "6.9.2", "6.9.3", "6.10", "7", "8.1", "8.1.1", "8.2", "8.2.1", "8.2.2", "8.2.3",
];
const RFC9113_MORE: [&str; 8] = ["8.3", "8.3.1", "8.3.2", "8.4", "8.4.1", "8.4.2", "8.5", "8.7"];
const RFC7541: [&str; 11] =
    ["2.1", "2.3.2", "2.3.3", "3.2", "4.2", "5.1", "5.2", "6.1", "6.2.3", "6.3", "7.1.3"];

/// Sections of RFC 9114, 9204, 9218 and 9220 with a MUST for the layer above QUIC.
const RFC9114: [&str; 34] = [
    "3.3", "4.1", "4.1.1", "4.1.2", "4.2", "4.2.1", "4.2.2", "4.3", "4.3.1", "4.3.2", "4.4", "4.5", "4.6",
    "5.2", "6.1", "6.2", "6.2.1", "6.2.2", "6.2.3", "7.1", "7.2.1", "7.2.2", "7.2.3", "7.2.4", "7.2.4.1",
    "7.2.5", "7.2.6", "7.2.7", "7.2.8", "8", "8.1", "9", "10.3", "10.5",
];
const RFC9204: [&str; 19] = [
    "2.1.2", "2.2", "2.2.1", "2.2.2.2", "2.2.3", "3.1", "3.2.2", "3.2.3", "4.1.1", "4.1.2", "4.2", "4.3.1",
    "4.3.2", "4.3.3", "4.3.4", "4.4.1", "4.4.2", "4.4.3", "4.5.1",
];
const RFC9218: [&str; 2] = ["4", "7.2"];
const RFC9220: [&str; 1] = ["3"];

/// Checks the sections of each part, and the tests of all rows.
fn check(page: &str, parts: &[(&str, &[&str])]) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join(page)).expect("the page is there");
    for (part, sections) in parts {
        let text = page.split("\n## ").find(|text| text.starts_with(part)).expect("the part is there");
        let rows = rows(text);
        let has = |section: &&&str| rows.iter().any(|row| row[0].split(", ").any(|other| other == **section));
        let missing: Vec<&&str> = sections.iter().filter(|section| !has(section)).collect();
        assert_eq!(missing, Vec::<&&str>::new(), "{part}: sections without a row");
    }
    let mut text = String::new();
    sources(&root.join("crates"), &mut text);
    let known = functions(&text);
    for [section, rule, tests] in rows(&page) {
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{section} {rule}: no test");
        let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
        assert_eq!(missing, Vec::<&&str>::new(), "{section} {rule}: no such tests");
    }
}

/// Returns the names of all tests.
fn functions(text: &str) -> HashSet<&str> {
    let after = text.split("#[test]\n").skip(1);
    after.filter_map(|code| code.trim_start().strip_prefix("fn ")?.split('(').next()).collect()
}

#[test]
fn every_http2_requirement_names_existing_tests() {
    let http2 = [&RFC9113[..], &RFC9113_MORE].concat();
    check("docs/http2-musts.md", &[("RFC 9113", &http2), ("RFC 7541", &RFC7541)]);
}

#[test]
fn every_http3_requirement_names_existing_tests() {
    let parts: [(&str, &[&str]); 4] =
        [("RFC 9114", &RFC9114), ("RFC 9204", &RFC9204), ("RFC 9218", &RFC9218), ("RFC 9220", &RFC9220)];
    check("docs/http3-musts.md", &parts);
}
