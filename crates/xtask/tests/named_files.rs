//! Checks that all files exist that ARCHITECTURE.md, the recipes of CONTRIBUTING.md and the documentation of the crates name.
//! ARCHITECTURE.md must name every crate; `tidy` checks that the documentation of a crate names its modules.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sources::{root, sources};

mod sources;

/// Returns the quoted texts that are paths of source files.
fn named_files(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.ends_with(".rs") && text.contains('/') && !text.contains([' ', '*']))
}

/// Returns the file of a path as written in the pages: from the root, or from `crates/` without `src`. Other paths are relative
/// to a crate that the surrounding text names.
fn file_of(root: &Path, path: &str) -> Option<PathBuf> {
    let (first, rest) = path.split_once('/')?;
    let package = root.join("crates").join(first);
    match first {
        "crates" => Some(root.join(path)),
        _ if package.is_dir() => Some(package.join("src").join(rest)),
        _ => None,
    }
}

#[track_caller]
fn every_file_exists(name: &str, at_least: usize) {
    let page = std::fs::read_to_string(root().join(name)).expect("the page");
    let count = existing_files(name, &page);
    assert!(count >= at_least, "{name} names {count} files");
}

/// Checks that the files exist that a text names; returns their number.
#[track_caller]
fn existing_files(name: &str, page: &str) -> usize {
    let root = root();
    let files = named_files(page).filter_map(|path| Some((path, file_of(&root, path)?)));
    files.inspect(|(path, file)| assert!(file.is_file(), "{name} names {path}")).count()
}

#[test]
fn every_file_in_the_architecture_page_exists() {
    every_file_exists("ARCHITECTURE.md", 20);
}

#[test]
fn every_file_in_the_recipes_exists() {
    every_file_exists("CONTRIBUTING.md", 30);
}

#[test]
fn every_file_in_the_documentation_of_the_crates_exists() {
    let mut count = 0;
    for name in names_in(&root().join("crates")) {
        let directory = root().join("crates").join(&name).join("src");
        let text =
            ["lib.rs", "main.rs"].iter().find_map(|file| std::fs::read_to_string(directory.join(file)).ok());
        let text = text.unwrap_or_else(|| panic!("crate {name} has no root"));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("//!")).collect();
        count += existing_files(&name, &lines.join("\n"));
    }
    assert!(count >= 5, "the crates name {count} files");
}

/// Returns the numbers of decisions that a text names: "decision 0046" or a path with "decisions/0046".
fn named_decisions(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("decision").skip(1);
    let numbers =
        after.filter_map(|rest| rest.strip_prefix(' ').or_else(|| rest.strip_prefix("s/"))?.get(..4));
    numbers.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[test]
fn every_decision_that_a_source_names_exists() {
    let names = names_in(&root().join("docs/decisions"));
    let decisions: BTreeSet<&str> = names.iter().filter_map(|name| name.get(..4)).collect();
    let mut count = 0;
    for path in sources(&root().join("crates")) {
        for number in named_decisions(&std::fs::read_to_string(&path).expect("a source")) {
            assert!(decisions.contains(number), "{} names decision {number}", path.display());
            count += 1;
        }
    }
    assert!(count >= 5, "the sources name {count} decisions");
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("the directory").map(|entry| entry.expect("an entry"));
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("a name in UTF-8");
    entries.map(name).map(|name| name.trim_end_matches(".rs").to_owned()).collect()
}

#[test]
fn every_crate_has_one_row() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, table) = page.split_once("| crate | rule | holds |").expect("the table of crates");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let named: Vec<String> = rows.map(|row| row.split('`').nth(1).expect("a name").to_owned()).collect();
    let unique: BTreeSet<String> = named.iter().cloned().collect();
    assert_eq!(unique.len(), named.len(), "a crate has two rows");
    assert_eq!(unique, names_in(&root().join("crates")));
}
