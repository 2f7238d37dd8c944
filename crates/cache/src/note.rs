//! Reports for the operator: [`Note`]. A change of state is reported once.

use std::fmt;
use std::path::PathBuf;

use io::Errno;

/// An event of a cache for the error log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The disk fails. Until it works again, responses are passed through without being stored.
    PassThrough {
        /// The zone.
        name: String,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// The disk works again.
    Recovered {
        /// The zone.
        name: String,
    },
    /// Another process owns the directory and fills it; this process only reads.
    NotOwner {
        /// The zone.
        name: String,
        /// The directory.
        path: PathBuf,
    },
    /// This process has become the owner of the directory.
    Owner {
        /// The zone.
        name: String,
    },
    /// The staging directory fails. For a while, incomplete entries are written inside the cache's directory.
    StagingFailed {
        /// The zone.
        name: String,
        /// The directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// An entry is damaged. The owner of the directory removes it.
    Damaged {
        /// The zone.
        name: String,
        /// Its file.
        path: PathBuf,
        /// The fault.
        damage: crate::format::Damage,
    },
    /// Directories could not be read while entries were loaded; they are retried.
    Unreadable {
        /// The zone.
        name: String,
        /// The path of one of them.
        path: PathBuf,
        /// The system's error for that path.
        errno: Errno,
        /// Number of unreadable directories.
        directories: u64,
    },
    /// Loading has completed: all entries are in the index.
    Loaded {
        /// The zone.
        name: String,
        /// Number of entries.
        entries: u64,
        /// Duration in milliseconds.
        time_ms: u64,
        /// Whether a snapshot made it unnecessary to read every directory.
        from_snapshot: bool,
    },
    /// The sizes of all entries are known.
    Measured {
        /// The zone.
        name: String,
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
                | Note::Unreadable { .. }
                | Note::StagingFailed { .. }
        )
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = |errno: &Errno| std::io::Error::from(*errno);
        match self {
            Note::PassThrough { name, doing, errno } => write!(
                f,
                "cache \"{name}\": {doing} failed: {}; responses pass through and are not stored until the disk works \
                 again",
                os(errno)
            ),
            Note::Recovered { name } => write!(f, "cache \"{name}\": the disk works again"),
            Note::NotOwner { name, path } => write!(
                f,
                "cache \"{name}\": another process fills \"{}\"; this process only reads it and stores nothing",
                path.display()
            ),
            Note::Owner { name } => write!(f, "cache \"{name}\": this process fills the directory now"),
            Note::StagingFailed { name, path, doing, errno } => write!(
                f,
                "cache \"{name}\": {doing} in \"{}\" failed: {}; incomplete entries are written inside the cache's \
                 directory until the directory for temporary files works again",
                path.display(),
                os(errno)
            ),
            Note::Damaged { name, path, damage } => {
                write!(f, "cache \"{name}\": \"{}\" is damaged and not used: {damage}", path.display())
            }
            Note::Unreadable { name, path, errno, directories } => write!(
                f,
                "cache \"{name}\": \"{}\" cannot be read: {} ({directories} such directories); entries there count for \
                 max_size once they are requested or their directory can be read",
                path.display(),
                os(errno)
            ),
            Note::Loaded { name, entries, time_ms, from_snapshot } => {
                let how = if *from_snapshot { "from a snapshot" } else { "by reading all directories" };
                write!(f, "cache \"{name}\": {entries} entries known after {time_ms} ms, {how}")
            }
            Note::Measured { name, bytes, time_ms } => {
                write!(f, "cache \"{name}\": sizes known after {time_ms} ms: {bytes} bytes")
            }
        }
    }
}
