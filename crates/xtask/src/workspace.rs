//! The root of the repository, its files, and commands that run in it.
//!
//! [`files`] walks the tree itself instead of calling git: so the checks also work in an unpacked archive, and include
//! new files before they are added.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Names of files and directories that are not sources: build output, history, editor state.
const SKIPPED: [&str; 4] = [".git", ".idea", ".vscode", "node_modules"];

/// Flags to build everything in the workspace, including `ringroad bench`.
pub(crate) const ALL_FEATURES: [&str; 2] = ["--features", "ringroad/bench"];

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path below the root, with `/`.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two levels below the root").to_owned()
}

/// Returns all text files of the repository, ordered by path. Files that are not UTF-8 are omitted.
pub(crate) fn files() -> Result<Vec<SourceFile>, Failure> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let listing = std::fs::read_dir(&folder).map_err(|error| at(&folder, error))?;
        for entry in listing {
            let entry = entry.map_err(|error| at(&folder, error))?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            // In a second working tree `.git` is a file that refers to the first one.
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let kind = entry.file_type().map_err(|error| at(&path, error))?;
            if kind.is_dir() {
                let build = name == "target" || name.starts_with("target-");
                if !build {
                    folders.push(path);
                }
            } else if kind.is_file()
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                let relative = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
                found.push(SourceFile { path: relative, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads a file below the root.
pub(crate) fn read(relative: &str) -> Result<String, Failure> {
    let path = root().join(relative);
    std::fs::read_to_string(&path).map_err(|error| at(&path, error))
}

/// Writes a file below the root.
pub(crate) fn write(relative: &str, text: &str) -> Result<(), Failure> {
    let path = root().join(relative);
    std::fs::write(&path, text).map_err(|error| at(&path, error))
}

/// Returns a command of the cargo that started this program, to be run at the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end with its output on the terminal.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| not_started(command, error))?;
    if status.success() { Ok(()) } else { Err(Failure::Command { command: describe(command), status }) }
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| not_started(command, error))?;
    if !output.status.success() {
        return Err(Failure::Command { command: describe(command), status: output.status });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the failure of a command that did not start.
pub(crate) fn not_started(command: &Command, error: std::io::Error) -> Failure {
    Failure::Start { command: describe(command), error }
}

/// Formats a command as a command line, with the program's name without its directory.
pub(crate) fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}

fn at(path: &Path, error: std::io::Error) -> Failure {
    Failure::File { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_sources_and_skips_build_output() {
        let files = files().expect("the repository is readable");
        assert!(files.iter().any(|file| file.path == "crates/xtask/src/workspace.rs"));
        assert!(files.iter().all(|file| !file.path.starts_with("target")));
    }

    #[test]
    fn a_command_is_described_as_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["test", "--workspace"]);
        assert_eq!(describe(&command), "cargo test --workspace");
    }
}
