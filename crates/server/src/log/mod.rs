//! Log lines on their way to files: levels, targets, and the writers that never hold up a request.
//!
//! Which lines are written, and their formats, belong to the modules.

pub(crate) mod access;
pub(crate) mod error;
pub(crate) mod files;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::Layered;

pub use error::Reason;

/// `error_log` of one block.
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    /// Where to, and from which level on. Empty is the built-in default of the process.
    pub targets: Layered<ErrorTarget>,
}

/// One target of an `error_log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTarget {
    /// Where to.
    pub target: Target,
    /// Lines of this level and worse.
    pub level: Level,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Appended to a file.
    File(PathBuf),
    /// The standard error stream.
    Stderr,
}

impl ErrorLog {
    /// Whether a line of this level goes anywhere.
    pub(crate) fn takes(&self, level: Level) -> bool {
        self.targets.items().iter().any(|target| level <= target.level)
    }

    /// The files among the targets.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.targets.items().iter().filter_map(|target| match &target.target {
            Target::File(path) => Some(path.as_path()),
            Target::Stderr => None,
        })
    }
}

/// nginx's levels, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// System is unusable.
    Emerg,
    /// Action must be taken at once.
    Alert,
    /// Critical.
    Crit,
    /// An error.
    Error,
    /// A warning.
    Warn,
    /// Worth knowing.
    Notice,
    /// Ordinary.
    Info,
    /// For developers.
    Debug,
}

impl Level {
    /// Names as the configuration has them.
    pub const NAMES: &'static [(&'static str, Level)] = &[
        ("emerg", Level::Emerg),
        ("alert", Level::Alert),
        ("crit", Level::Crit),
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("notice", Level::Notice),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Level::NAMES[*self as usize].0)
    }
}
