//! Reads a directory: names by getdents64(2), and on request statx(2) of each entry.
//!
//! The kernel keeps the position with the open directory, so each call continues where the last one ended. A directory
//! of any size is read in pieces that occupy a thread for a bounded time.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::{Errno, retry_on_intr};

use crate::facts::{DirEntry, EntryAttributes, Stat};

/// Returns the entries of the next non-empty buffer; an empty list at the end of the directory.
pub(super) fn read(
    dir: BorrowedFd<'_>,
    bytes_max: usize,
    attributes: EntryAttributes,
) -> Result<Vec<DirEntry>, Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes_max];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    while let Some(found) = raw.next() {
        match found {
            Ok(found) => {
                let name = found.file_name();
                if !matches!(name.to_bytes(), b"." | b"..") {
                    entries.push(entry(dir, name, found.file_type(), found.ino(), attributes));
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        // A buffer with only `.` and `..` is not the end.
        if raw.is_buffer_empty() && !entries.is_empty() {
            break;
        }
    }
    Ok(entries)
}

/// Calls stat on names below a directory.
pub(super) fn stat_names(dir: BorrowedFd<'_>, names: &[CString]) -> Vec<Result<Stat, Errno>> {
    names.iter().map(|name| stat(dir, name, AtFlags::SYMLINK_NOFOLLOW)).collect()
}

fn entry(
    dir: BorrowedFd<'_>,
    name: &CStr,
    kind: FileType,
    inode: u64,
    attributes: EntryAttributes,
) -> DirEntry {
    // Not every file system returns the type with the name (getdents(2), DT_UNKNOWN).
    let kind = match kind {
        FileType::Unknown => stat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| kind_of(&stat)),
        known => known.as_raw_mode(),
    };
    let stat = match attributes {
        EntryAttributes::Kind => None,
        EntryAttributes::Itself => Some(stat(dir, name, AtFlags::SYMLINK_NOFOLLOW)),
        EntryAttributes::Followed => Some(match stat(dir, name, AtFlags::empty()) {
            // A dangling link, or a loop of links: the entry is the link itself.
            Err(Errno::NOENT | Errno::LOOP) => stat(dir, name, AtFlags::SYMLINK_NOFOLLOW),
            found => found,
        }),
    };
    DirEntry { name: name.to_bytes().into(), kind, inode, stat }
}

fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Stat, Errno> {
    retry_on_intr(|| rustix::fs::statat(dir, name, flags)).map(Stat::from)
}

fn kind_of(stat: &Stat) -> u32 {
    FileType::from_raw_mode(stat.mode).as_raw_mode()
}
