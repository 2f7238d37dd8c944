//! `cargo xtask reproduce`: makes the Debian packages of the last commit twice, in directories of different names, and compares them.
//!
//! ```text
//! git clone --> target/reproduce/first   --cargo xtask package deb--> packages --.
//! git clone --> target/reproduce/another --cargo xtask package deb--> packages ---`--> compared byte by byte
//! ```
//! Each build compiles everything again in a target directory of its own, so the command takes as long as two release builds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{fresh_dir, make_dir};
use crate::{Failure, workspace};

/// The directories of the two builds. Paths of different lengths show most traces of a directory.
const DIRECTORIES: [&str; 2] = ["first", "another/below"];

/// Makes and compares the packages.
pub(crate) fn run() -> Result<(), Failure> {
    let top = workspace::root().join("target/reproduce");
    fresh_dir(&top)?;
    let mut built = Vec::new();
    for directory in DIRECTORIES {
        built.push(build(&top.join(directory))?);
    }
    let found = differences(&built[0], &built[1]);
    if !found.is_empty() {
        return Err(Failure::Problems { task: "reproduce", found });
    }
    for name in built[0].keys() {
        println!("{name}: both builds are equal");
    }
    Ok(())
}

/// Clones the last commit into a directory and makes its packages. Returns them by file name.
fn build(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    make_dir(directory)?;
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet"]).arg(workspace::root()).arg(directory);
    workspace::run(&mut clone)?;
    let mut package = workspace::cargo(&["xtask", "package", "deb"]);
    package.current_dir(directory).env("CARGO_TARGET_DIR", directory.join("target"));
    workspace::run(&mut package)?;
    packages(&directory.join("target/package"))
}

fn packages(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| Failure::File { path, error }
    };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let path: PathBuf = entry.map_err(failed(directory))?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.insert(name, std::fs::read(&path).map_err(failed(&path))?);
        }
    }
    Ok(found)
}

/// Returns a line for each file that differs, with the first different byte.
fn differences(first: &BTreeMap<String, Vec<u8>>, second: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut found = Vec::new();
    for name in first.keys().chain(second.keys().filter(|name| !first.contains_key(*name))) {
        match (first.get(name), second.get(name)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                found.push(format!("{name}: byte {same} differs ({} and {} bytes)", a.len(), b.len()));
            }
            _ => found.push(format!("{name}: only one of the builds made it")),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_different_file_is_reported() {
        let files = |list: &[(&str, &str)]| {
            list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.as_bytes().to_vec())).collect()
        };
        let first = files(&[("a.deb", "same"), ("b.deb", "one"), ("c.deb", "")]);
        let second = files(&[("a.deb", "same"), ("b.deb", "once"), ("d.deb", "")]);
        assert_eq!(
            differences(&first, &second),
            [
                "b.deb: byte 2 differs (3 and 4 bytes)",
                "c.deb: only one of the builds made it",
                "d.deb: only one of the builds made it"
            ]
        );
        assert!(differences(&first, &first).is_empty());
    }
}
