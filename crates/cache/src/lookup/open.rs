//! Opening and reading the file of an entry. [`ReadPlan`] decides how, without a call to the disk. [`Opener`] opens the
//! file according to the plan, and reads cached pages immediately. A path in the kernel's lookup cache is opened on the
//! calling thread if that has worked recently; otherwise the engine opens it.

use std::sync::Arc;

use io::op::OpenHow;
use io::page_cache::{PageCacheAdmission, TryPredictor};
use io::{Buf, DiskVia, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::config::Access;
use crate::disk::directory::{Directory, READ_FLAGS};
use crate::index::{BLOCK_BYTES, IndexEntry};
use crate::key::Key;
use crate::lookup::open_files::{self, OpenFile};

/// The key of the requested entry.
#[derive(Clone, Copy)]
pub(crate) struct LookupKey<'a> {
    /// The key of the file.
    pub(crate) key: &'a Key,
    pub(crate) primary: &'a Key,
    pub(crate) text: &'a [u8],
    pub(crate) access: Access,
}

/// The plan for opening and reading one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPlan {
    /// Identifies the file for [`PageCacheAdmission`].
    pub(crate) name: u64,
    /// The backend of opens.
    pub(crate) opens: DiskVia,
    /// The backend of reads.
    pub(crate) reads: DiskVia,
    /// The backend of reads that bypass the page cache.
    pub(crate) reads_direct: DiskVia,
    /// Whether it should be read bypassing the page cache. The file system may not support that: `is_direct` of the
    /// open file is authoritative.
    pub(crate) direct: bool,
    /// Whether it is read bypassing the page cache if it is not resident. Set for entries that were requested before
    /// and may have been evicted from the page cache.
    pub(crate) bypass_page_cache: bool,
    /// Whether cached paths and pages are opened and read on the calling thread.
    pub(crate) calls_directly: bool,
    /// Extent of the first read.
    pub(crate) first: FirstRead,
}

/// The extent of the first read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstRead {
    /// The complete file, of this many bytes.
    Complete(u64),
    /// Two slots and the first records of the table.
    Prefix,
}

impl FirstRead {
    /// Returns the number of bytes to request.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            FirstRead::Complete(bytes) => bytes,
            FirstRead::Prefix => PREFIX_BYTES,
        }
    }
}

/// Maximum number of blocks of a small file, which is read in one operation: one chunk with a usual header.
const SMALL_BLOCKS_MAX: u32 = 18;

/// Maximum number of blocks of a larger file that is also read in one operation if the response can be sent
/// immediately: one read of 160 KiB is less work for the disk than three.
const FULL_READ_BLOCKS_MAX: u32 = 40;

/// Maximum size in bytes of a file that is read in one operation.
pub const FULL_READ_BYTES_MAX: u64 = FULL_READ_BLOCKS_MAX as u64 * BLOCK_BYTES;

/// Bytes of [`FirstRead::Prefix`]: two slots with header sections of some 2000 bytes each, and the records of 16 MiB.
pub(crate) const PREFIX_BYTES: u64 = 8 << 10;

/// Maximum number of blocks of a file whose table fits into one read with the preceding bytes, whatever the alignment
/// of direct reads.
const DIRECT_BLOCKS_MAX: u32 = 1 << 20;

impl ReadPlan {
    /// Returns the plan for the file of an entry.
    pub(crate) fn new(
        key: &Key,
        access: Access,
        known: Option<IndexEntry>,
        admission: &PageCacheAdmission,
    ) -> ReadPlan {
        let known = known.filter(|known| known.measured);
        let blocks = known.map(|known| known.blocks).filter(|&blocks| blocks <= DIRECT_BLOCKS_MAX);
        // The header of an unknown entry is read through the page cache. The sender of the body decides how to read it.
        let direct = blocks.is_some_and(|blocks| access.is_direct(u64::from(blocks) * BLOCK_BYTES));
        let is_whole = |blocks: u32| {
            blocks <= SMALL_BLOCKS_MAX
                || (blocks <= FULL_READ_BLOCKS_MAX
                    && (direct || !access.sends_files)
                    && access.client_has_space)
        };
        let first = match blocks {
            Some(blocks) if is_whole(blocks) => FirstRead::Complete(u64::from(blocks) * BLOCK_BYTES),
            _ => FirstRead::Prefix,
        };
        let reads = if direct { access.direct_via } else { access.via };
        let is_left_to_us = access.direct_from.is_none() && access.calls_directly && reads != DiskVia::Sync;
        let name = name_of(key);
        let bypass_page_cache =
            is_left_to_us && known.is_some_and(|known| known.requested) && !admission.admit(name, rt::now());
        let (opens, reads_direct, calls_directly) = (access.via, access.direct_via, access.calls_directly);
        ReadPlan { name, opens, reads, reads_direct, direct, bypass_page_cache, calls_directly, first }
    }

    /// Returns the backend for reads of an open file.
    pub(crate) fn reads_of(&self, file: &File) -> DiskVia {
        if file.fd().is_direct() { self.reads_direct } else { self.reads }
    }
}

/// Returns half of the key, which identifies the file with negligible collisions.
fn name_of(key: &Key) -> u64 {
    let (_, half) = key.0.split_at(size_of::<Key>() / 2);
    u64::from_le_bytes(half.try_into().expect("a half of sixteen bytes"))
}

/// Opens the files of one cache.
pub(crate) struct Opener {
    dir: Arc<Directory>,
    /// Whether recent paths of entries were in the kernel's lookup cache.
    names: TryPredictor,
    /// Whether recent entries were in the page cache.
    data: TryPredictor,
    /// Whether entries that were admitted to the page cache are retained there.
    admission: PageCacheAdmission,
}

/// If the page cache retains admitted entries, one in this many non-resident entries is admitted. One read in eight is
/// then a little slower, and soon all entries are resident.
const ADMITTED_ONE_IN_MIN: u32 = 8;

impl Opener {
    pub(crate) fn new(dir: &Arc<Directory>) -> Opener {
        Opener {
            dir: Arc::clone(dir),
            names: TryPredictor::default(),
            data: TryPredictor::default(),
            admission: PageCacheAdmission::new(ADMITTED_ONE_IN_MIN),
        }
    }

    /// Returns the plan for opening and reading the file of an entry.
    pub(crate) fn plan(&self, key: &Key, access: Access, known: Option<IndexEntry>) -> ReadPlan {
        ReadPlan::new(key, access, known, &self.admission)
    }

    /// Makes the remaining reads of a file bypass the page cache, if this is its only reader.
    pub(crate) fn bypass(&self, file: &File, plan: ReadPlan) {
        if plan.bypass_page_cache && file.is_sole() && !file.fd().is_direct() {
            // A file system without O_DIRECT continues to use the page cache.
            let _ = file.fd().set_direct(OFlags::NONBLOCK);
        }
    }

    /// Returns the open file of an entry if it is retained. If the plan bypasses the page cache, the bytes of the file
    /// must also be resident.
    pub(crate) fn open_file(&self, key: &Key, known: Option<IndexEntry>, plan: ReadPlan) -> Option<OpenFile> {
        let known = known.filter(|known| plan.calls_directly && known.measured)?;
        let open = open_files::find((self.dir.seed, *key), known.version, plan.direct)?;
        if !plan.bypass_page_cache {
            return Some(open);
        }
        let bytes = u64::from(known.blocks) * BLOCK_BYTES;
        let range = open.read.as_ref().map_or(0..bytes, |read| read.header.body_range());
        let is_resident = open.is_resident(range.start, range.end - range.start);
        self.admission.note(plan.name, is_resident, rt::now());
        is_resident.then_some(open)
    }

    /// Opens the file of a key for reading.
    pub(crate) async fn open(&self, key: &Key, plan: ReadPlan) -> Result<File, Errno> {
        let (dir, path) = (&self.dir, || self.dir.path_of(key).0);
        let mut flags = READ_FLAGS;
        if plan.direct {
            flags |= OFlags::DIRECT;
        }
        let mut how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
        if plan.calls_directly {
            how.is_cold = true;
            if self.names.should_try() {
                let opened = File::open_cached(None, &path(), how);
                // The path is not cached, or the kernel or file system cannot tell.
                let missed = matches!(opened, Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS));
                self.names.note(!missed);
                if !missed {
                    return opened;
                }
            }
        }
        match File::open(None, path(), how, dir.device, plan.opens).await {
            // The file system does not support direct I/O.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                how.flags = (flags - OFlags::DIRECT).bits() as i32;
                Box::pin(File::open(None, path(), how, dir.device, plan.opens)).await
            }
            opened => opened,
        }
    }

    /// Returns the start of a file if it is resident; returns the empty buffer if it is not, or is predicted not to be.
    pub(crate) fn read_resident(
        &self,
        file: &File,
        bytes: u64,
        plan: ReadPlan,
        mut buf: Buf,
    ) -> Result<Buf, Buf> {
        if file.fd().is_direct() || !plan.calls_directly || !self.data.should_try() {
            return Err(buf);
        }
        debug_assert!(buf.is_empty(), "the start of the file goes to the start of the buffer");
        let read = file.read_resident(0, bytes as u32, &mut buf);
        self.data.note(read.is_ok());
        if plan.bypass_page_cache {
            self.admission.note(plan.name, read.is_ok(), rt::now());
        }
        match read {
            Ok(count) if count > 0 => Ok(buf),
            _ => {
                buf.set_len(0);
                Err(buf)
            }
        }
    }
}
