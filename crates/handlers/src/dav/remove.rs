//! Removal of a directory with its content.
//!
//! ```text
//!   open top --entries--> files and links: unlinkat   directories: added to the list
//!   the list is empty --> unlinkat of the directories, the deepest first
//! ```
//!
//! Every directory is opened below the top without following a link, so nothing outside the top is removed, even if other
//! programs rename directories and create links meanwhile. A walk has a list instead of recursion, and two open
//! descriptors. Failures inside a tree are logged and the walk continues, as in nginx.

use std::ffi::CString;

use io::facts::{DirEntry, EntryAttributes};
use io::{Disk, Errno};
use rustix::fs::{FileType, OFlags};

use super::resource::{Done, OperationError, fault};
use exchange::files;
use exchange::request::Request;

/// Number of bytes of entries per read.
const ENTRIES_BYTES: u32 = 32 << 10;

/// An open directory with everything below it.
pub(super) struct Tree<'r> {
    pub(super) request: &'r Request,
    pub(super) disk: Disk,
    pub(super) top: rt::File,
    /// The path of the top, for messages.
    pub(super) path: &'r [u8],
}

impl Tree<'_> {
    /// Opens a directory below the top; the empty path is the top.
    pub(super) async fn open(&self, path: &[u8], flags: OFlags) -> Done<rt::File> {
        let path = if path.is_empty() { b"." } else { path };
        let opened = files::open_below(&self.top, path, flags, self.disk).await;
        opened.map_err(|errno| self.fault("opendir()", path, errno))
    }

    /// Returns the next entries of a directory; none at its end.
    pub(super) async fn entries(&self, directory: &rt::File, path: &[u8]) -> Done<Vec<DirEntry>> {
        let read = directory.read_dir(ENTRIES_BYTES, EntryAttributes::Kind, self.disk).await;
        read.map_err(|errno| self.fault("readdir()", path, errno))
    }

    /// Returns an error with the complete path.
    pub(super) fn fault(&self, call: &'static str, path: &[u8], errno: Errno) -> OperationError {
        fault(call, &join(self.path, path))(errno)
    }

    /// Logs a failure inside the tree, and returns its status.
    pub(super) fn log<T>(&self, done: Done<T>) -> Option<u16> {
        done.err().map(|trouble| trouble.log(self.request, 500))
    }

    /// Removes everything below the top. An entry that cannot be removed is logged, and its directory remains too.
    pub(super) async fn clear(&self) {
        let mut directories = Vec::new();
        let mut left = vec![Vec::new()];
        while let Some(path) = left.pop() {
            self.log(self.clear_files(&path, &mut left).await);
            directories.push(path);
        }
        // A directory is behind those that contain it.
        for path in directories.iter().rev().filter(|path| !path.is_empty()) {
            self.log(self.remove_directory(path).await);
        }
    }

    /// Removes the files and links of a directory, and appends the paths of its directories to `left`.
    async fn clear_files(&self, path: &[u8], left: &mut Vec<Vec<u8>>) -> Done {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY).await?;
        loop {
            let entries = self.entries(&directory, path).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let path = join(path, &entry.name);
                if FileType::from_raw_mode(entry.kind) == FileType::Directory {
                    left.push(path);
                } else {
                    self.log(self.remove(&directory, &path, &entry.name, false).await);
                }
            }
        }
    }

    async fn remove_directory(&self, path: &[u8]) -> Done {
        let slash = memchr::memrchr(b'/', path);
        let (above, name) = slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
        let directory = self.open(above, OFlags::PATH | OFlags::DIRECTORY).await?;
        self.remove(&directory, path, name, true).await
    }

    async fn remove(&self, directory: &rt::File, path: &[u8], name: &[u8], is_directory: bool) -> Done {
        let call = if is_directory { "rmdir()" } else { "unlink()" };
        let done = match CString::new(name) {
            Ok(name) => directory.unlink_at(name, is_directory, self.disk).await,
            Err(_) => Err(Errno::INVAL),
        };
        done.map_err(|errno| self.fault(call, path, errno))
    }
}

/// Returns a path below another path, or the second path if the first is empty.
pub(super) fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    match above {
        b"" => below.to_vec(),
        _ => [above.strip_suffix(b"/").unwrap_or(above), b"/", below].concat(),
    }
}
