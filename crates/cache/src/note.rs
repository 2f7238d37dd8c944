//! Reports for the operator: [`Note`]. A change of state is reported once.

use std::fmt;
use std::path::PathBuf;

use io::Errno;

/// An event of a cache for the error log; the receiver adds the name of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The disk fails. Until it works again, responses are passed through without being stored.
    PassThrough {
        /// The directory of the cache.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// The disk works again.
    Recovered,
    /// Another process owns the directory and fills it; this process only reads.
    NotOwner {
        /// The directory.
        path: PathBuf,
    },
    /// The lock file cannot be opened: this process only reads the directory.
    Unwritable {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
    /// This process has become the owner of the directory.
    Owner,
    /// The staging directory fails. For a while, incomplete entries are written inside the cache's directory.
    StagingFailed {
        /// The directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// An entry is damaged. The owner of the directory removes it.
    Damaged {
        /// Its file.
        path: PathBuf,
        /// The fault.
        damage: crate::format::Damage,
    },
    /// Directories could not be read while entries were loaded; they are retried.
    Unreadable {
        /// The path of one of them.
        path: PathBuf,
        /// The system's error for that path.
        errno: Errno,
        /// Number of unreadable directories.
        directories: u64,
    },
    /// Loading has completed: all entries are in the index.
    Loaded {
        /// Number of entries.
        entries: u64,
        /// Duration in milliseconds.
        time_ms: u64,
        /// Whether a snapshot made it unnecessary to read every directory.
        from_snapshot: bool,
    },
    /// The sizes of all entries are known.
    Measured {
        /// Disk space of the entries in bytes.
        bytes: u64,
        /// Time since the start in milliseconds.
        time_ms: u64,
    },
}

impl Note {
    /// Whether this is an error; otherwise it is for information.
    pub fn is_error(&self) -> bool {
        matches!(
            self,
            Note::PassThrough { .. }
                | Note::Damaged { .. }
                | Note::Unwritable { .. }
                | Note::Unreadable { .. }
                | Note::StagingFailed { .. }
        )
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = |errno: &Errno| std::io::Error::from(*errno);
        match self {
            Note::PassThrough { path, doing, errno } => write!(
                f,
                "{doing} in \"{}\" failed: {}; responses pass through and are not stored until the disk works again",
                path.display(),
                os(errno)
            ),
            Note::Recovered => f.write_str("the disk works again"),
            Note::NotOwner { path } => write!(
                f,
                "another process fills \"{}\"; this process only reads it and stores nothing",
                path.display()
            ),
            Note::Unwritable { path, errno } => write!(
                f,
                "\"{}\" cannot be opened for writing: {}; this process only reads the directory and stores nothing: the \
                 directory and its files must belong to the user of the workers",
                path.display(),
                os(errno)
            ),
            Note::Owner => f.write_str("this process fills the directory now"),
            Note::StagingFailed { path, doing, errno } => write!(
                f,
                "{doing} in \"{}\" failed: {}; incomplete entries are written inside the cache's directory until the \
                 directory for temporary files works again",
                path.display(),
                os(errno)
            ),
            Note::Damaged { path, damage } => {
                write!(f, "\"{}\" is damaged and not used: {damage}", path.display())
            }
            Note::Unreadable { path, errno, directories } => write!(
                f,
                "\"{}\" cannot be read: {} ({directories} such directories); entries there count for max_size once \
                 they are requested or their directory can be read",
                path.display(),
                os(errno)
            ),
            Note::Loaded { entries, time_ms, from_snapshot } => {
                let how = if *from_snapshot { "from a snapshot" } else { "by reading all directories" };
                write!(f, "{entries} entries known after {time_ms} ms, {how}")
            }
            Note::Measured { bytes, time_ms } => write!(f, "sizes known after {time_ms} ms: {bytes} bytes"),
        }
    }
}
