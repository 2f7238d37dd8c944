//! `cargo xtask reproduce`: makes packages of the last commit twice, in directories of different names, and compares them.
//!
//! ```text
//! git clone --> target/reproduce/first   --cargo xtask package--> packages and their files --.
//! git clone --> target/reproduce/another --cargo xtask package--> packages and their files ---`--> compared byte by byte
//! ```
//! The files from which a package was made are compared too, so that a difference names the file and not only the package.
//! Each build compiles everything again in a target directory of its own, so the command takes as long as two release builds.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{fresh_dir, make_dir, stage};
use crate::{Failure, workspace};

/// The directories of the two builds. Paths of different lengths show most traces of a directory.
const DIRECTORIES: [&str; 2] = ["first", "another/below"];

/// Directories of intermediate files whose names or content are random, and which are no part of a package.
const IGNORED: [&str; 2] = ["work/buildah", "work/rpmbuild"];

/// Makes and compares the packages that the arguments select, as in `cargo xtask package`.
pub(crate) fn run(kinds: &[&str]) -> Result<(), Failure> {
    if kinds.iter().any(|kind| !["deb", "rpm", "image", "all"].contains(kind)) {
        return Err(Failure::Usage);
    }
    let kinds = if kinds.is_empty() { &["deb"] } else { kinds };
    let top = workspace::root().join("target/reproduce");
    fresh_dir(&top)?;
    // Both builds are of this commit, also if another one is made meanwhile.
    let commit = workspace::output(&mut git(&workspace::root(), &["rev-parse", "HEAD"]))?;
    let mut built = Vec::new();
    for directory in DIRECTORIES {
        built.push(files(&build(&top.join(directory), commit.trim(), kinds)?)?);
    }
    Failure::unless_empty("reproduce", differences(&built[0], &built[1]))?;
    for path in built[0].keys().filter(|path| is_package(path)) {
        println!("{}: both builds are equal", path.display());
    }
    Ok(())
}

/// Clones a commit into a directory and makes its packages. Returns their directory.
fn build(directory: &Path, commit: &str, kinds: &[&str]) -> Result<PathBuf, Failure> {
    make_dir(directory)?;
    workspace::run(git(directory, &["clone", "--quiet", "--no-checkout"]).arg(workspace::root()).arg("."))?;
    workspace::run(&mut git(directory, &["checkout", "--quiet", "--detach", commit]))?;
    let compiled = directory.join("target/compiled");
    let mut package = workspace::cargo(&["xtask", "package"]);
    package.args(kinds).current_dir(directory).env("CARGO_TARGET_DIR", &compiled);
    workspace::run(&mut package)?;
    // Some gigabytes, which the second build may need.
    std::fs::remove_dir_all(&compiled).map_err(|error| Failure::File { path: compiled, error })?;
    Ok(directory.join("target/package"))
}

fn git(directory: &Path, args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.args(args).current_dir(directory);
    git
}

/// The content of a file, and its mode.
type Content = (Vec<u8>, u32);

/// Returns the packages and the files from which they were made, by their paths.
fn files(directory: &Path) -> Result<BTreeMap<PathBuf, Content>, Failure> {
    let mut found = BTreeMap::new();
    for name in stage::files_below(directory)? {
        if IGNORED.iter().any(|ignored| name.starts_with(ignored)) {
            continue;
        }
        let path = directory.join(&name);
        let content = path.symlink_metadata().and_then(|stat| {
            let bytes = if stat.is_symlink() {
                std::fs::read_link(&path)?.into_os_string().into_encoded_bytes()
            } else {
                std::fs::read(&path)?
            };
            Ok((bytes, stat.permissions().mode()))
        });
        found.insert(name, content.map_err(|error| Failure::File { path, error })?);
    }
    Ok(found)
}

/// Whether a file is published, and not only a part of a package.
fn is_package(path: &Path) -> bool {
    !path.starts_with("work")
}

/// Returns a line for each file that differs, with the first different byte: packages, and then the files that they contain.
fn differences(first: &BTreeMap<PathBuf, Content>, second: &BTreeMap<PathBuf, Content>) -> Vec<String> {
    let (mut packages, mut parts) = (Vec::new(), Vec::new());
    for path in first.keys().chain(second.keys().filter(|path| !first.contains_key(*path))) {
        let what = match (first.get(path), second.get(path)) {
            (Some(a), Some(b)) if a == b => continue,
            (Some((a, mode)), Some((b, other))) if a == b => format!("modes {mode:o} and {other:o}"),
            (Some((a, _)), Some((b, _))) => {
                let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                format!("byte {same} differs ({} and {} bytes)", a.len(), b.len())
            }
            _ => "only one of the builds made it".to_owned(),
        };
        let found = if is_package(path) { &mut packages } else { &mut parts };
        found.push(format!("{}: {what}", path.display()));
    }
    if parts.is_empty() && !packages.is_empty() {
        parts
            .push("the files in the packages are equal: their order, times or compression differ".to_owned());
    }
    [packages, parts].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<PathBuf, Content> {
        list.iter().map(|(name, bytes)| (name.into(), (bytes.as_bytes().to_vec(), 0o644))).collect()
    }

    #[test]
    fn each_different_file_is_reported() {
        let first =
            files(&[("a.deb", "same"), ("b.deb", "one"), ("c.deb", ""), ("work/deb/usr/sbin/b", "1")]);
        let second =
            files(&[("a.deb", "same"), ("b.deb", "once"), ("d.deb", ""), ("work/deb/usr/sbin/b", "2")]);
        assert_eq!(
            differences(&first, &second),
            [
                "b.deb: byte 2 differs (3 and 4 bytes)",
                "c.deb: only one of the builds made it",
                "d.deb: only one of the builds made it",
                "work/deb/usr/sbin/b: byte 0 differs (1 and 1 bytes)"
            ]
        );
        assert!(differences(&first, &first).is_empty());
    }

    #[test]
    fn modes_and_archives_are_compared_too() {
        let mut first = files(&[("a.deb", "one"), ("work/deb/a", "")]);
        let second = files(&[("a.deb", "two"), ("work/deb/a", "")]);
        let found = differences(&first, &second);
        assert!(found[1].starts_with("the files in the packages are equal"), "{found:?}");
        first.insert("work/deb/a".into(), (Vec::new(), 0o755));
        assert_eq!(differences(&first, &second)[1], "work/deb/a: modes 755 and 644");
    }
}
