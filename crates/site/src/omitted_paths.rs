//! Paths in the configuration to which the sandbox gives no access, or only to another directory, with lines for the log.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use conf::Span;

use crate::needs::Access;

/// A path in the configuration to which the sandbox gives no access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmittedPath {
    /// The path as written.
    pub path: PathBuf,
    /// The name of the directive.
    pub directive: String,
    /// The position of the directive; `None` for a default.
    pub position: Option<Span>,
    /// The path without symbolic links, as far as it exists.
    pub real: PathBuf,
    /// The kind of access.
    pub access: Access,
    /// The reason.
    pub reason: Omission,
}

/// The reason why the sandbox gives no access to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Omission {
    /// The path has this symbolic link, which is in a directory that workers may write to.
    LinkOfWorkers {
        /// The link.
        link: PathBuf,
        /// The directory.
        writable: PathBuf,
    },
    /// The path does not exist or cannot be reached, and no directory above it is allowed instead.
    Absent(ErrorKind),
    /// A path of `sandbox_path` does not exist, and this directory above it is allowed instead.
    Widened(PathBuf),
}

impl fmt::Display for OmittedPath {
    /// Describes the omission, with its remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OmittedPath { path, directive, position, reason, .. } = self;
        let path = path.display();
        match reason {
            Omission::LinkOfWorkers { link, writable } => {
                let (link, writable) = (link.display(), writable.display());
                write!(
                    f,
                    "the sandbox permits nothing for \"{path}\" of \"{directive}\": the symbolic link \"{link}\" is in \
                     \"{writable}\", where workers may have created it; name its target in the directive, or replace the link by a \
                     directory"
                )?;
            }
            Omission::Absent(ErrorKind::NotFound) => write!(
                f,
                "the sandbox permits nothing for \"{path}\" of \"{directive}\", which does not exist: create it"
            )?,
            Omission::Absent(reason) => write!(
                f,
                "the sandbox permits nothing for \"{path}\" of \"{directive}\", which cannot be reached ({reason}): correct this"
            )?,
            Omission::Widened(instead) => write!(
                f,
                "the sandbox permits \"{}\" instead of \"{path}\" of \"{directive}\", which does not exist: create it, then reload",
                instead.display()
            )?,
        }
        position.as_ref().map_or(Ok(()), |position| write!(f, " in {position}"))
    }
}
