//! Checks that all files exist that ARCHITECTURE.md and the recipes of CONTRIBUTING.md name. ARCHITECTURE.md must name every
//! crate, and every module at the root of the core crates.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join(name)).expect("the page");
    let mut count = 0;
    for path in named_files(&page) {
        if let Some(file) = file_of(&root, path) {
            assert!(file.is_file(), "{name} names {path}");
            count += 1;
        }
    }
    assert!(count >= at_least, "{name} names {count} files");
}

#[test]
fn every_file_in_the_architecture_page_exists() {
    every_file_exists("ARCHITECTURE.md", 20);
}

#[test]
fn every_file_in_the_recipes_exists() {
    every_file_exists("CONTRIBUTING.md", 30);
}

/// Crates for which the page must list each module at their root.
const COMPLETE: [&str; 10] =
    ["cache", "caching", "conf", "exchange", "http", "io", "peers", "rt", "transfer", "upstream"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
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

#[test]
fn every_module_of_the_core_crates_is_described() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let quoted = page.split('`').skip(1).step_by(2);
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let words: BTreeSet<&str> = quoted.flat_map(|text| text.split(|letter| !is_word(letter))).collect();
    for name in COMPLETE {
        let modules = names_in(&root().join("crates").join(name).join("src"));
        let is_missing = |module: &&String| {
            !["lib", "tests"].contains(&module.as_str()) && !words.contains(module.as_str())
        };
        let missing: Vec<&String> = modules.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?} of crate {name}");
    }
}
