//! [`ReadPlan`]: the [`Access`] of one entry's file. Pure: no call to the disk.

use io::DiskVia;
use io::page_cache::PageCacheAdmission;
use rt::File;

use crate::config::Access;
use crate::index::{BLOCK_BYTES, Known};
use crate::key::Key;

/// The requested entry.
#[derive(Clone, Copy)]
pub(crate) struct LookupKey<'a> {
    /// The key of the file.
    pub(crate) key: &'a Key,
    pub(crate) primary: &'a Key,
    pub(crate) text: &'a [u8],
    pub(crate) access: Access,
}

/// How one file is opened and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPlan {
    /// Distinguishes the file from others: see [`PageCacheAdmission`].
    pub(crate) name: u64,
    /// The backend of the open.
    pub(crate) opens: DiskVia,
    /// The backend of reads.
    pub(crate) reads: DiskVia,
    /// The backend of reads that bypass the page cache.
    pub(crate) reads_direct: DiskVia,
    /// Whether it is to be read bypassing the page cache. The file system may not be able to: the open file knows.
    pub(crate) direct: bool,
    /// Whether it bypasses the page cache unless it is resident: it was requested before, and may have been evicted
    /// from the page cache.
    pub(crate) bypass_page_cache: bool,
    /// Whether cached names and pages are opened and read on the calling thread.
    pub(crate) calls_directly: bool,
    /// Bytes of the first read.
    pub(crate) first: FirstRead,
}

/// Extent of the first read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstRead {
    /// All of a file of this many bytes.
    Whole(u64),
    /// Two slots and the first records of the table.
    Prefix,
}

impl FirstRead {
    /// Bytes to ask for.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            FirstRead::Whole(bytes) => bytes,
            FirstRead::Prefix => PREFIX_BYTES,
        }
    }
}

/// A file that is known to be small is read at once; this is one chunk with a usual header.
const SMALL_BLOCKS_MAX: u32 = 18;

/// Larger files up to this one are read at once too where the response can leave at once: one read of 160 KiB is less work
/// for the disk than three.
const WHOLE_BLOCKS_MAX: u32 = 40;

/// Bytes of the largest file that is read at once.
pub const WHOLE_BYTES_MAX: u64 = WHOLE_BLOCKS_MAX as u64 * BLOCK_BYTES;

/// See [`FirstRead::Prefix`]: two slots for heads of some 2000 bytes each, and the records of 16 MiB.
pub(crate) const PREFIX_BYTES: u64 = 8 << 10;

/// A table of this many blocks fits into one read with the bytes before it, wherever direct reads may start.
const DIRECT_BLOCKS_MAX: u32 = 1 << 20;

impl ReadPlan {
    /// The plan for the file of an entry.
    pub(crate) fn new(
        key: &Key,
        access: Access,
        known: Option<Known>,
        admission: &PageCacheAdmission,
    ) -> ReadPlan {
        let known = known.filter(|known| known.measured);
        let blocks = known.map(|known| known.blocks).filter(|&blocks| blocks <= DIRECT_BLOCKS_MAX);
        // The header of an entry that is not known yet is read as any file; its sender decides how its body is.
        let direct = blocks.is_some_and(|blocks| access.is_direct(u64::from(blocks) * BLOCK_BYTES));
        let is_whole = |blocks: u32| {
            blocks <= SMALL_BLOCKS_MAX
                || (blocks <= WHOLE_BLOCKS_MAX && (direct || !access.sends_files) && access.has_room)
        };
        let first = match blocks {
            Some(blocks) if is_whole(blocks) => FirstRead::Whole(u64::from(blocks) * BLOCK_BYTES),
            _ => FirstRead::Prefix,
        };
        let reads = if direct { access.direct_via } else { access.via };
        let is_left_to_us = access.direct_from.is_none() && access.calls_directly && reads != DiskVia::Sync;
        let name = name_of(key);
        let bypass_page_cache =
            is_left_to_us && known.is_some_and(|known| known.asked) && !admission.admit(name, rt::now());
        let (opens, reads_direct, calls_directly) = (access.via, access.direct_via, access.calls_directly);
        ReadPlan { name, opens, reads, reads_direct, direct, bypass_page_cache, calls_directly, first }
    }

    /// The backend of reads of an open file.
    pub(crate) fn reads_of(&self, file: &File) -> DiskVia {
        if file.fd().is_direct() { self.reads_direct } else { self.reads }
    }
}

/// Half of a key identifies its file, nearly always.
fn name_of(key: &Key) -> u64 {
    let (_, half) = key.0.split_at(size_of::<Key>() / 2);
    u64::from_le_bytes(half.try_into().expect("a half of sixteen bytes"))
}
