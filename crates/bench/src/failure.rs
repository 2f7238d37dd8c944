//! Why a measurement failed, as one line that tells the user what to do about it.

use std::fmt;
use std::io;
use std::path::Path;

/// Reason why a command of the suite ends with exit status 1 or 2.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A usage error; the text names the argument.
    Usage(String),
    /// A started program that exited or never responded; `said` is the end of its output.
    Program { name: String, problem: String, said: String },
    /// Scenarios without results in a run whose other results are in the report.
    Parts { names: Vec<String>, of: usize },
    /// Interrupted by the user (SIGINT, SIGTERM).
    Interrupted,
    /// Any other failure that one line explains.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => write!(f, "{text} (see ringroad bench --help)"),
            Failure::Program { name, problem, said } if said.is_empty() => write!(f, "{name} {problem}"),
            Failure::Program { name, problem, said } => write!(f, "{name} {problem}: {said}"),
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
    /// Converts an error whose text explains itself.
    pub(crate) fn other(error: impl fmt::Display) -> Failure {
        Failure::Other(error.to_string())
    }

    /// Returns a converter from the I/O error of a file operation to a [`Failure`].
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Failure + Copy {
        move |error| Failure::Other(format!("cannot {doing} {}: {error}", path.display()))
    }

    /// Returns a converter from a kernel error to a [`Failure`].
    pub(crate) fn kernel<E: Into<io::Error>>(doing: impl fmt::Display) -> impl FnOnce(E) -> Failure {
        // The text is only built on an error: the engine's turns are in the hot path of every request.
        move |error| {
            let error: io::Error = error.into();
            Failure::Other(format!("{doing}: {error}"))
        }
    }

    /// Returns the exit status: 1 if some results are missing, 2 if all are.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Parts { .. } => 1,
            _ => 2,
        }
    }
}

impl std::error::Error for Failure {}

impl From<clap::Error> for Failure {
    /// Shortens clap's message of several lines to one.
    fn from(error: clap::Error) -> Failure {
        let text = error.to_string();
        let mut lines = text.lines();
        let line = lines.next().unwrap_or_default().trim_start_matches("error: ");
        let values = lines.next().filter(|line| line.contains("possible values")).unwrap_or_default();
        Failure::Usage(format!("{line} {}", values.trim()).trim_end().to_owned())
    }
}
