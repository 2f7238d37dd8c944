//! ARCHITECTURE.md names files by their paths below `crates/`: each exists.
#![forbid(unsafe_code)]

use std::path::Path;

/// Paths without `src`, as the page writes them, of the files that it names.
fn named_files(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.ends_with(".rs") && text.contains('/') && !text.contains(' '))
}

#[test]
fn every_file_on_the_page_of_the_architecture_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let crates = root.join("crates");
    let mut count = 0;
    for file in named_files(&page) {
        let Some((first, rest)) = file.split_once('/') else { continue };
        // Other paths are relative to a crate that the text around them names.
        if crates.join(first).is_dir() {
            let path = crates.join(first).join("src").join(rest);
            assert!(path.is_file(), "ARCHITECTURE.md names {file}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} files were looked for");
}
