//! Reads a directory's entries in order, without blocking a thread.
//!
//! A disk thread reads the names in pieces of about a thousand. Each piece is sorted when it arrives, and the pieces
//! are merged while the listing is written. So no step takes longer for a larger directory.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ffi::CString;
use std::vec;

use io::Errno;
use io::facts::DirEntry;
use rustix::fs::FileType;

use exchange::files::{self, Failure, OpenDirectory};
use exchange::phases::Step;
use exchange::request::Request;
use telemetry::Level;

/// A directory being listed, with its path for messages.
pub(crate) struct Listing {
    directory: OpenDirectory,
    path: Vec<u8>,
}

/// A file or directory in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) kind: EntryKind,
    /// Size in bytes.
    pub(super) size: u64,
    /// Modification time in seconds since 1970.
    pub(super) modified: i64,
}

/// The kind of an entry, with links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryKind {
    Directory,
    File,
    Other,
}

impl Listing {
    /// Opens the directory of the request's URI; returns the response as in nginx if that fails.
    pub(crate) async fn open(request: &Request) -> Result<Listing, Step> {
        if files::is_alias_undefined(request) {
            return Err(Step::Status(500));
        }
        // The path is opened without its trailing slash, which messages omit too.
        let mut path = Vec::new();
        files::path_of(request, &request.uri, &mut path);
        if path.len() > 1 && path.ends_with(b"/") {
            path.pop();
        }
        match files::open_directory(request, path.clone()).await {
            Ok(directory) => Ok(Listing { directory, path }),
            Err(failure) => {
                let status = files::status_of(failure.errno);
                let level = if status == 500 { Level::Crit } else { Level::Error };
                request.log(level, format_args!("{}", failure.at(&path)));
                Err(Step::Status(status))
            }
        }
    }

    /// Returns the names and kinds of the next entries that are not hidden; `None` at the end.
    pub(crate) async fn read_kinds(&self, request: &Request) -> Result<Option<Vec<DirEntry>>, Step> {
        self.shown(request, self.directory.read_kinds().await)
    }

    /// Whether an entry is a regular file or a link to one. Only links need a check, because the kind of others is
    /// returned with the name.
    pub(crate) async fn is_file(&self, entry: &DirEntry) -> bool {
        if entry.kind == FileType::Symlink.as_raw_mode() {
            let path = [&self.path, b"/".as_slice(), &entry.name].concat();
            return match CString::new(path) {
                Ok(path) => self.directory.is_link_to_file(path).await,
                Err(_) => false,
            };
        }
        entry.kind == FileType::RegularFile.as_raw_mode()
    }

    /// Omits hidden entries, and distinguishes the end from a failure.
    fn shown(
        &self,
        request: &Request,
        read: Result<Vec<DirEntry>, Errno>,
    ) -> Result<Option<Vec<DirEntry>>, Step> {
        match read {
            Ok(entries) if entries.is_empty() => Ok(None),
            Ok(mut entries) => {
                entries.retain(|entry| !entry.name.starts_with(b"."));
                Ok(Some(entries))
            }
            // The directory was removed while it was read; the entries read so far are used.
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                let failure = Failure { errno, call: "readdir()" };
                request.log(Level::Crit, format_args!("{}", failure.at(&self.path)));
                Err(Step::Status(500))
            }
        }
    }

    /// Returns all entries in order.
    pub(super) async fn entries(&self, request: &Request) -> Result<Merged, Step> {
        let mut merged = Merged::default();
        while let Some(found) = self.shown(request, self.directory.read().await)? {
            let mut run = Vec::with_capacity(found.len());
            for entry in found {
                run.extend(self.entry(request, entry)?);
            }
            merged.add(run);
            // With `aio off` the worker thread reads the directory itself, so the read does not let other tasks run.
            rt::yield_now().await;
        }
        Ok(merged)
    }

    /// Returns the entry of a listing. As in nginx, an entry whose attributes may not be read is omitted. An entry that
    /// was removed concurrently is omitted too; nginx aborts the listing.
    fn entry(&self, request: &Request, found: DirEntry) -> Result<Option<Entry>, Step> {
        let stat = match found.stat {
            Some(Ok(stat)) => stat,
            None | Some(Err(Errno::NOENT)) => return Ok(None),
            Some(Err(errno)) => {
                let path = [&self.path, b"/".as_slice(), &found.name].concat();
                let failure = Failure { errno, call: "stat()" };
                request.log(Level::Crit, format_args!("{}", failure.at(&path)));
                return if errno == Errno::ACCESS { Ok(None) } else { Err(Step::Status(500)) };
            }
        };
        let kind = match FileType::from_raw_mode(stat.mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            _ => EntryKind::Other,
        };
        Ok(Some(Entry { name: found.name, kind, size: stat.size, modified: stat.modified }))
    }
}

/// Directories precede files; names are compared byte by byte.
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        let is_folder = |entry: &Entry| entry.kind == EntryKind::Directory;
        is_folder(other).cmp(&is_folder(self)).then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Sorted pieces, which are merged while entries are taken.
#[derive(Default)]
pub(super) struct Merged(BinaryHeap<Reverse<Piece>>);

/// The first entry of a sorted piece, and the remaining ones.
struct Piece {
    first: Entry,
    rest: vec::IntoIter<Entry>,
}

impl Merged {
    /// Adds a piece, which may have any order.
    fn add(&mut self, mut entries: Vec<Entry>) {
        entries.sort_unstable();
        let mut rest = entries.into_iter();
        if let Some(first) = rest.next() {
            self.0.push(Reverse(Piece { first, rest }));
        }
    }
}

impl Iterator for Merged {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        // The heap is restored when `piece` is dropped: one sift-down per entry.
        let mut piece = self.0.peek_mut()?;
        match piece.0.rest.next() {
            Some(next) => Some(std::mem::replace(&mut piece.0.first, next)),
            None => Some(PeekMut::pop(piece).0.first),
        }
    }
}

impl Ord for Piece {
    fn cmp(&self, other: &Piece) -> Ordering {
        self.first.cmp(&other.first)
    }
}

impl PartialOrd for Piece {
    fn partial_cmp(&self, other: &Piece) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Piece {
    fn eq(&self, other: &Piece) -> bool {
        self.first == other.first
    }
}

impl Eq for Piece {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_returned_in_order() {
        let entry = |name: &str| {
            let kind = if name.starts_with("dir") { EntryKind::Directory } else { EntryKind::File };
            Entry { name: name.as_bytes().into(), kind, size: 0, modified: 0 }
        };
        let mut merged = Merged::default();
        for piece in [&["b", "dir2", "B"][..], &[], &["a", "dir1", "c", "\u{e9}"], &["dir3"]] {
            merged.add(piece.iter().map(|name| entry(name)).collect());
        }
        let names: Vec<String> =
            merged.map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        assert_eq!(names, ["dir1", "dir2", "dir3", "B", "a", "b", "c", "\u{e9}"]);
    }
}
