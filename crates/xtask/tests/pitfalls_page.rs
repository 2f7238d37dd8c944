//! Checks that the tests named in `docs/engine-pitfalls.md` exist. Renaming or removing a test requires a change of its row.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the names in the last column of the table with the columns number, pitfall, measure, tests.
fn named_tests(page: &str) -> Vec<&str> {
    let rows = page.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let cells = rows.filter(|cells| cells.len() == 6 && cells[1].trim().parse::<u32>().is_ok());
    let code = cells.flat_map(|cells| cells[4].split('`').skip(1).step_by(2));
    code.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

/// Appends the text of all sources in a directory.
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

#[test]
fn every_test_named_in_the_pitfalls_page_exists() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/engine-pitfalls.md")).expect("the page is there");
    let named = named_tests(&page);
    assert!(named.len() > 50, "the rows were not found: {named:?}");
    let mut text = String::new();
    sources(&root.join("crates"), &mut text);
    // Unit tests are indented by one level.
    let exists =
        |name: &str| ["", "    "].iter().any(|indent| text.contains(&format!("#[test]\n{indent}fn {name}(")));
    let missing: Vec<&str> = named.into_iter().filter(|name| !exists(name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "no such tests");
}
