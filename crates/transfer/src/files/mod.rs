//! Open files: their attributes, attributes of a root ([`root`]), and the cache of open files ([`cache`]).
//! `exchange::files` opens files by the rules of a request.

pub mod cache;
pub mod root;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use io::Errno;
use io::facts::{DeviceId, Stat};
use rustix::fs::{FileType, OFlags};

pub use root::{RootFacts, Roots, is_on_local_disk};
use telemetry::Reason;

/// A file that was opened for a request, with its attributes. The open file may be shared: every read specifies an offset.
#[derive(Clone)]
pub struct Opened {
    /// The open file.
    pub file: rt::File,
    /// Its attributes from fstat(2).
    pub stat: Stat,
    /// The disk of the file.
    pub device: DeviceId,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("stat", &self.stat).finish_non_exhaustive()
    }
}

/// The result of opening a path.
#[derive(Clone, Debug)]
pub enum OpenedPath {
    /// A regular file, open for reading.
    File(Opened),
    /// A directory.
    Directory,
    /// A device, pipe or socket.
    Special,
}

/// The kind of file at a path, for callers that do not read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A device, pipe or socket.
    Special,
}

impl FileKind {
    /// Returns the kind from fstat(2).
    pub fn of(stat: &Stat) -> FileKind {
        match FileType::from_raw_mode(stat.mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            _ => FileKind::Special,
        }
    }
}

impl OpenedPath {
    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        match self {
            OpenedPath::File(_) => FileKind::File,
            OpenedPath::Directory => FileKind::Directory,
            OpenedPath::Special => FileKind::Special,
        }
    }
}

/// The reason why opening a path failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub errno: Errno,
    /// The call that failed, as nginx names it in its log.
    pub call: &'static str,
}

impl Failure {
    /// Whether the same path will likely fail in the same way for a while; otherwise the machine lacks resources.
    fn is_about_the_path(self) -> bool {
        matches!(
            self.errno,
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ACCESS | Errno::LOOP | Errno::XDEV
        )
    }

    /// Returns nginx's message: `open() "/a" failed (2: No such file or directory)`.
    pub fn at(self, path: &[u8]) -> FailureAt<'_> {
        FailureAt(self, path)
    }
}

/// A failure with its path, for messages.
pub struct FailureAt<'a>(Failure, &'a [u8]);

impl fmt::Display for FailureAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailureAt(Failure { errno, call }, path) = self;
        write!(f, "{call} \"{}\" failed ({})", display(path), Reason(*errno))
    }
}

/// Switches an open file to O_DIRECT; fails if its file system does not support that.
pub fn set_direct(file: &rt::File) -> Result<(), Errno> {
    file.fd().set_direct(OFlags::NONBLOCK)
}

/// Switches a file that was opened with `O_DIRECT` to the page cache, as for reads of small files.
pub fn set_buffered(file: &rt::File) -> Result<(), Errno> {
    file.fd().set_buffered(OFlags::NONBLOCK)
}

/// Whether the attributes are those of a directory.
pub fn is_dir(stat: &Stat) -> bool {
    FileKind::of(stat) == FileKind::Directory
}

/// Whether the attributes are those of a regular file.
pub fn is_file(stat: &Stat) -> bool {
    FileKind::of(stat) == FileKind::File
}

/// Returns the status for a failure to open or check a file, mapped as in nginx.
pub fn status_of(errno: Errno) -> u16 {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => 404,
        // EXDEV and ELOOP: RESOLVE_BENEATH refuses a symbolic link.
        Errno::ACCESS | Errno::XDEV | Errno::LOOP => 403,
        _ => 500,
    }
}

/// Returns a path as text, for messages.
pub fn display(path: &[u8]) -> std::path::Display<'_> {
    Path::new(std::ffi::OsStr::from_bytes(path)).display()
}
