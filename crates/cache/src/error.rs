//! Errors of a cache: [`OpenError`], [`StoreError`], [`Refused`], [`FillError`].

use std::fmt;
use std::path::PathBuf;

use io::Errno;

use crate::format::Damage;

/// The error of opening a cache: its directory, or a file in it that a cache needs, cannot be created or opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    /// The path of the directory or file.
    pub path: PathBuf,
    /// The system's error.
    pub errno: Errno,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, error) = (self.path.display(), std::io::Error::from(self.errno));
        write!(f, "\"{path}\" cannot be used for a cache: {error}")
    }
}

impl std::error::Error for OpenError {}

/// The reason why a lookup, a purge or a read of an entry failed. For a lookup, the effect is that of a miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk failed.
    Disk {
        /// The operation.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// The disk has failed before; it is retried after a while.
    PassThrough,
    /// No buffer was available.
    NoMemory,
    /// The entry is damaged. The owner of the directory has removed it.
    Damaged(Damage),
    /// These bytes of the entry are not stored.
    Missing {
        /// Offset of the first missing byte.
        at: u64,
    },
    /// Another process owns the directory.
    NotOwner,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Disk { doing, errno } => {
                write!(f, "{doing} failed: {}", std::io::Error::from(*errno))
            }
            StoreError::PassThrough => f.write_str("the cache's disk has failed and is not used for a while"),
            StoreError::NoMemory => f.write_str("no buffer was available"),
            StoreError::Damaged(damage) => write!(f, "the entry is damaged: {damage}"),
            StoreError::Missing { at } => write!(f, "the entry lacks the bytes from {at} on"),
            StoreError::NotOwner => f.write_str("another process owns the cache's directory"),
        }
    }
}

impl std::error::Error for StoreError {}

/// The reason why a response is not stored. It is passed to the client nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Another process owns the directory.
    NotOwner,
    /// The disk has failed and is not used for a while.
    PassThrough,
    /// `max_size` leaves no space, and not enough could be evicted immediately.
    NoSpace,
    /// The entry would occupy more than `max_size`.
    TooLarge,
    /// `min_free` leaves no space.
    DiskFull,
    /// The admission filter has not seen the key often enough.
    NotAdmitted,
    /// Another task is changing the entry.
    Busy,
    /// Key text, header section, tags or body exceed their limits, or the total length of a partial entry is unknown.
    Unstorable,
    /// The new header section does not fit into the space of the old one.
    HeadTooLong,
    /// The entry that was to be changed has been removed.
    Removed,
    /// No buffer was available.
    NoMemory,
    /// A disk operation has just failed.
    Disk,
    /// The cache is being stopped.
    Stopping,
    /// More complete entries wait for the disk than allowed.
    BacklogFull,
    /// The response to a later request is already complete.
    Superseded,
}

impl Refused {
    /// Names of all reasons, in the order of the variants.
    pub const NAMES: [&'static str; 15] = [
        "not_owner",
        "pass_through",
        "no_room",
        "too_large",
        "disk_full",
        "not_admitted",
        "busy",
        "unstorable",
        "head_too_long",
        "gone",
        "no_memory",
        "disk",
        "stopping",
        "behind",
        "older",
    ];

    /// Returns the index in [`Refused::NAMES`], for counters.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the name of the reason, for logs and variables.
    pub fn name(self) -> &'static str {
        Refused::NAMES[self.index()]
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a fill did not become an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillError {
    /// The cache refused the entry while it was being written.
    Refused(Refused),
    /// The body is shorter than announced.
    Incomplete {
        /// Number of bytes received.
        got: u64,
        /// Number of bytes announced.
        expected: u64,
    },
    /// The body is longer than announced, or a piece is outside of it.
    TooLong,
    /// No chunk was completed, so there is nothing to store.
    Empty,
    /// A matching purge was added during the fill.
    Purged,
}

impl From<Refused> for FillError {
    fn from(refused: Refused) -> FillError {
        FillError::Refused(refused)
    }
}
