//! `cargo xtask configurations`: tests real nginx configurations of public projects by `ringroad -t`.
//!
//! [`rows`] parses the list `crates/xtask/configurations.tsv`, with the source and the expected result of each
//! configuration. The files are not copied into this repository. [`repository`] reads them with git, [`template`]
//! inserts the values of templates, and [`prepare`] replaces machine-specific settings. [`page`] writes the tables of
//! docs/configurations.md.
//!
//! Not part of the gate, because it needs the network or a directory of repositories.

mod page;
mod prepare;
mod repository;
mod rows;
mod statements;
mod template;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, workspace};
use prepare::Machine;
use repository::Repository;
use rows::Row;

/// Command line options.
#[derive(Default)]
struct Options {
    /// A directory of git directories, `OWNER+NAME`; without it, clones are made.
    repositories: Option<PathBuf>,
    /// The tested program; by default the `ringroad` of this tree.
    program: Option<PathBuf>,
    /// Write the results to the list and the page.
    bless: bool,
}

/// Tests all configurations.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Failure> {
    let options = options(arguments)?;
    let work = workspace::root().join("target/configurations");
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    // One directory for all rows: a test leaves no files that the next one reads.
    let machine = Machine::new(&work)?;
    let mut rows = rows::read()?;
    let mut differing = Vec::new();
    for row in &mut rows {
        let result = test(row, &options, &machine, &program)?;
        let mark = if row.expected == result { "" } else { "  <- differs" };
        println!("{} {}: {result}{mark}", row.repository, row.path);
        if options.bless {
            row.expected = result;
        } else if !mark.is_empty() {
            differing
                .push(format!("{} {}: expected {}, is {result}", row.repository, row.path, row.expected));
        }
    }
    let loads = rows.iter().filter(|row| row.loads()).count();
    println!(
        "{} configurations of {} repositories, {loads} are expected to load",
        rows.len(),
        page::repositories(&rows)
    );
    if options.bless {
        rows::write(&rows)?;
        return page::write(&rows);
    }
    Failure::unless_empty("configurations", differing)
}

/// Parses the options in any order; an unknown argument is a usage error.
fn options(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--repositories" => options.repositories = Some(words.next().ok_or(Failure::Usage)?.into()),
            "--program" => options.program = Some(words.next().ok_or(Failure::Usage)?.into()),
            "--bless" => options.bless = true,
            _ => return Err(Failure::Usage),
        }
    }
    Ok(options)
}

/// Builds the server and returns its path.
fn build() -> Result<PathBuf, Failure> {
    let mut cargo = workspace::cargo(&["build", "--quiet", "--package", "ringroad", "--message-format=json"]);
    // The path depends on the target directory, which only cargo can resolve.
    let messages = workspace::output(&mut cargo)?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().filter(|path| path.ends_with("/ringroad")).map(PathBuf::from)
    };
    messages.lines().rev().find_map(executable).ok_or(Failure::Format {
        what: "the messages of cargo build",
        detail: "no executable is named".into(),
    })
}

/// Tests one configuration; returns `loads`, or the first error.
fn test(row: &Row, options: &Options, machine: &Machine, program: &Path) -> Result<String, Failure> {
    let repository = Repository::open(&row.repository, &row.commit, options.repositories.as_deref())?;
    let text = prepare::prepare(row, &repository, machine)?;
    let file = machine.root().join("nginx.conf");
    std::fs::write(&file, text).map_err(|error| Failure::File { path: file.clone(), error })?;
    let mut command = Command::new(program);
    command.arg("-t").arg("-p").arg(machine.root()).arg("-c").arg(&file);
    command.arg("-e").arg(machine.root().join("logs/start.log")).current_dir(machine.root());
    let output = command.output().map_err(|error| workspace::not_started(&command, error))?;
    if output.status.success() {
        return Ok(rows::LOADS.into());
    }
    // Warnings precede the error, for example those about unresolvable names.
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(first_error(&errors).replace(&machine.root().display().to_string(), "PREFIX"))
}

/// Returns the text of the first error, without the program's name, the level and the position.
fn first_error(errors: &str) -> String {
    let line =
        errors.lines().find(|line| line.contains("[emerg]")).or(errors.lines().next()).unwrap_or("no output");
    let text = line.split_once("[emerg] ").map_or(line, |(_, text)| text);
    let end = text.find(" in /").unwrap_or(text.len());
    text[..end].replace('\t', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_has_no_position() {
        let errors =
            "ringroad: [warn] w\nringroad: [emerg] unknown directive \"a\" in /x/nginx.conf:3\nfailed\n";
        assert_eq!(first_error(errors), "unknown directive \"a\"");
        assert_eq!(first_error("killed\n"), "killed");
        assert_eq!(first_error(""), "no output");
    }
}
