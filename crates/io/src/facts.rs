//! What file systems tell about files, folders and their own space.

use rustix::io::Errno;

use crate::op::DeviceId;

/// Space on a file system (statvfs(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block, the unit in which files take space.
    pub block_bytes: u64,
    /// Bytes of all blocks.
    pub total_bytes: u64,
    /// Bytes of the blocks that are free to anybody, without those kept for the superuser.
    pub available_bytes: u64,
    /// Files that can still be made; 0 as well where the file system does not count them.
    pub available_files: u64,
}

impl From<rustix::fs::StatVfs> for Space {
    fn from(found: rustix::fs::StatVfs) -> Space {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Space {
            block_bytes: found.f_frsize,
            total_bytes: bytes(found.f_blocks),
            available_bytes: bytes(found.f_bavail),
            available_files: found.f_favail,
        }
    }
}

/// The facts about a file that serving it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Bytes that it takes on the device: fewer than its size where it has holes.
    pub allocated: u64,
    /// Last modification, seconds since 1970.
    pub modified: i64,
    /// Nanoseconds of the last modification.
    pub modified_nanos: u32,
    /// Last change of content, owner, mode or links (`st_ctime`), in seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Names that it has; 0 once it was removed.
    pub links: u32,
    /// Inode number.
    pub inode: u64,
    /// Device that holds the file.
    pub device: DeviceId,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
}

impl From<rustix::fs::Stat> for Stat {
    fn from(found: rustix::fs::Stat) -> Stat {
        Stat {
            size: found.st_size as u64,
            // In units of 512 whatever the file system's block is (stat(2)).
            allocated: found.st_blocks as u64 * 512,
            modified: found.st_mtime,
            modified_nanos: found.st_mtime_nsec as u32,
            changed: (found.st_ctime, found.st_ctime_nsec as u32),
            links: found.st_nlink as u32,
            inode: found.st_ino,
            device: DeviceId(found.st_dev),
            mode: found.st_mode,
        }
    }
}

/// How the entries of a folder are looked at while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryLook {
    /// Not at all: the names with their kinds.
    Kind,
    /// Each itself, links not followed.
    Itself,
    /// What each leads to, and a link itself where that is nothing.
    Followed,
}

/// One entry of a folder. The folder itself and the one above it are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without a path.
    pub name: Box<[u8]>,
    /// The type bits of a mode (`S_IFMT`) of the entry itself, links not followed; 0 where it vanished before it
    /// could be looked at, on a file system that does not tell with the name.
    pub kind: u32,
    /// Its number on the file system. What is looked at in the order of these is read in the order of the disk.
    pub inode: u64,
    /// What was found by [`EntryLook`]; `None` when nothing was asked for.
    pub stat: Option<Result<Stat, Errno>>,
}
