//! Why a measurement was not made, as one line that says what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What ends a command of the suite with exit status 2. Whatever was made until then is removed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Not what the usage says; the text names the argument.
    Usage(String),
    /// A file or directory that cannot be read, made or written.
    File { path: PathBuf, doing: &'static str, error: io::Error },
    /// The directory's file system has less room than the run needs.
    Space { path: PathBuf, needed_bytes: u64, free_bytes: u64 },
    /// A program that was started ended, or never responded; `said` is the end of what it wrote.
    Program { name: String, problem: String, said: String },
    /// Something the kernel refused: which call or setting, and its errno.
    Kernel { doing: String, error: io::Error },
    /// What only root may do, and the option that does without.
    Root { doing: &'static str },
    /// Scenarios without results in a run whose other results stand in the report.
    Parts { names: Vec<String>, of: usize },
    /// Stopped by the user (SIGINT, SIGTERM).
    Interrupted,
    /// Anything else that is clear in one line.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => write!(f, "{text} (see ringroad bench --help)"),
            Failure::File { path, doing, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
            Failure::Space { path, needed_bytes, free_bytes } => write!(
                f,
                "{} has {} MiB free and the run needs {} MiB: choose another directory with --work, or --quick",
                path.display(),
                free_bytes >> 20,
                needed_bytes >> 20
            ),
            Failure::Program { name, problem, said } if said.is_empty() => write!(f, "{name} {problem}"),
            Failure::Program { name, problem, said } => write!(f, "{name} {problem}: {said}"),
            Failure::Kernel { doing, error } => write!(f, "{doing}: {error}"),
            Failure::Root { doing } => write!(f, "{doing} needs root"),
            Failure::Parts { names, of } => write!(
                f,
                "{} of {of} scenarios failed ({}); the report has the others, and the reasons",
                names.len(),
                names.join(", ")
            ),
            Failure::Interrupted => {
                f.write_str("interrupted; programs of the run are stopped, its files removed")
            }
            Failure::Other(text) => f.write_str(text),
        }
    }
}

impl Failure {
    /// What the error of something done with a file becomes.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Failure + Copy {
        move |error| Failure::File { path: path.to_owned(), doing, error }
    }

    /// What an error of the kernel becomes.
    pub(crate) fn kernel<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Failure {
        // Made when there is an error: the engine's turns are on the way of every request.
        move |error| Failure::Kernel { doing: doing.into(), error: error.into() }
    }

    /// The exit status: 1 where results were written and some are missing, 2 where there are none.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Parts { .. } => 1,
            _ => 2,
        }
    }
}

impl std::error::Error for Failure {}

/// One line of what clap says in several.
pub(crate) fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let mut lines = text.lines();
    let line = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let values = lines.next().filter(|line| line.contains("possible values")).unwrap_or_default();
    Failure::Usage(format!("{line} {}", values.trim()).trim_end().to_owned())
}
