//! ARCHITECTURE.md and the recipes of CONTRIBUTING.md name files: each exists.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// Texts in quotes that are paths of sources.
fn named_files(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.ends_with(".rs") && text.contains('/') && !text.contains([' ', '*']))
}

/// The file of a path as the pages write it: from the root, or below `crates/` and without `src`. Other paths are
/// relative to a crate that the text around them names.
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
fn every_file_on_the_page_of_the_architecture_exists() {
    every_file_exists("ARCHITECTURE.md", 20);
}

#[test]
fn every_file_in_the_recipes_exists() {
    every_file_exists("CONTRIBUTING.md", 30);
}
