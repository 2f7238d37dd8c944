//! Attributes that file systems return about files, directories and free space.

use rustix::io::Errno;

/// The device that a file is on (`st_dev`). Limits per device keep a slow device from occupying every kernel worker and
/// pool thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u64);

/// Free and total space of a file system, and its type (statfs(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Whether the file system is local: see [`is_local`].
    pub is_local: bool,
    /// Size in bytes of a block, the unit of allocation.
    pub block_bytes: u64,
    /// Bytes of all blocks.
    pub total_bytes: u64,
    /// Bytes of the free blocks, without those reserved for the superuser.
    pub available_bytes: u64,
    /// Number of files that can still be created; also 0 if the file system does not count them.
    pub available_files: u64,
}

impl From<rustix::fs::StatFs> for Space {
    fn from(found: rustix::fs::StatFs) -> Space {
        // 0 if the file system does not report a fragment size.
        let block_bytes = if found.f_frsize > 0 { found.f_frsize } else { found.f_bsize } as u64;
        let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
        Space {
            is_local: is_local(found.f_type as u64),
            block_bytes,
            total_bytes: bytes(found.f_blocks),
            available_bytes: bytes(found.f_bavail),
            available_files: found.f_ffree,
        }
    }
}

/// Whether a file system of this type (a magic number of statfs(2)) does not wait for another machine or process.
pub fn is_local(magic: u64) -> bool {
    const NFS: u64 = 0x6969;
    const FUSE: u64 = 0x6573_5546;
    const CIFS: u64 = 0xff53_4d42;
    const SMB2: u64 = 0xfe53_4d42;
    const CEPH: u64 = 0x00c3_6400;
    const V9FS: u64 = 0x0102_1997;
    const AFS: u64 = 0x5346_414f;
    ![NFS, FUSE, CIFS, SMB2, CEPH, V9FS, AFS].contains(&(magic & 0xffff_ffff))
}

/// Attributes of a file that are needed to serve it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub size: u64,
    /// Bytes allocated on the device: fewer than the length if the file has holes.
    pub allocated: u64,
    /// Last modification, seconds since 1970.
    pub modified: i64,
    /// Nanoseconds of the last modification.
    pub modified_nanos: u32,
    /// Last change of content, owner, mode or links (`st_ctime`), in seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Number of links; 0 after the file was removed.
    pub links: u32,
    /// Inode number.
    pub inode: u64,
    /// Device of the file system that holds the file.
    pub device: DeviceId,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
}

impl From<rustix::fs::Stat> for Stat {
    fn from(found: rustix::fs::Stat) -> Stat {
        Stat {
            size: found.st_size as u64,
            // `st_blocks` is in units of 512 bytes, whatever the block size of the file system (stat(2)).
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

/// The attributes to obtain for directory entries while the directory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAttributes {
    /// No attributes: only the names with their types.
    Kind,
    /// Attributes of the entry itself; links are not followed.
    Itself,
    /// Attributes of the target of a link, or of the link itself if it is broken.
    Followed,
}

/// An entry of a directory, except `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without a path.
    pub name: Box<[u8]>,
    /// The type bits of a mode (`S_IFMT`) of the entry itself; links are not followed. 0 if the entry was removed
    /// before stat(2), on a file system that does not return types with names.
    pub kind: u32,
    /// Its inode number. Calls in the order of inode numbers mostly read the disk sequentially.
    pub inode: u64,
    /// Attributes as requested by [`EntryAttributes`]; `None` if none were requested.
    pub stat: Option<Result<Stat, Errno>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic numbers of statfs(2).
    #[test]
    fn attributes_on_network_and_fuse_file_systems_may_block() {
        for (name, magic, local) in [
            ("ext4", 0xef53, true),
            ("xfs", 0x5846_5342, true),
            ("btrfs", 0x9123_683e, true),
            ("tmpfs", 0x0102_1994, true),
            ("overlayfs", 0x794c_7630, true),
            ("nfs", 0x6969, false),
            ("fuse", 0x6573_5546, false),
            ("cifs", 0xff53_4d42, false),
            ("smb2", 0xfe53_4d42, false),
            // Sign-extended, as in a signed word of a 64-bit machine.
            ("smb2, sign extended", 0xffff_ffff_fe53_4d42, false),
            ("ceph", 0x00c3_6400, false),
            ("9p", 0x0102_1997, false),
            ("afs", 0x5346_414f, false),
        ] {
            assert_eq!(is_local(magic), local, "{name}");
        }
    }
}
