//! Why a task of `cargo xtask` did not succeed.

/// Why a task did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line names no task.
    Usage,
    /// A file or directory could not be read or written.
    File { path: std::path::PathBuf, error: std::io::Error },
    /// A command could not be started.
    Start { command: String, error: std::io::Error },
    /// A command ran and failed.
    Command { command: String, status: std::process::ExitStatus },
    /// A file or the output of a command has an unexpected format.
    Format { what: &'static str, detail: String },
    /// A check found problems.
    Problems { task: &'static str, found: Vec<String> },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage => write!(f, "unknown command line"),
            Failure::File { path, error } => write!(f, "{}: {error}", path.display()),
            Failure::Start { command, error } => write!(f, "cannot start {command}: {error}"),
            Failure::Command { command, status } => write!(f, "{command}: {status}"),
            Failure::Format { what, detail } => write!(f, "cannot read {what}: {detail}"),
            Failure::Problems { task, found } => {
                writeln!(f, "{task} found {} problem(s)", found.len())?;
                found.iter().try_for_each(|problem| writeln!(f, "  {problem}"))
            }
        }
    }
}

impl Failure {
    /// Returns `Ok` if no problem was found.
    pub(crate) fn unless_empty(task: &'static str, found: Vec<String>) -> Result<(), Failure> {
        if found.is_empty() { Ok(()) } else { Err(Failure::Problems { task, found }) }
    }
}
