//! The file of an entry: [`ReadPlan`] decides how it is opened and read, without a call to the disk. [`EntryFiles`]
//! opens it according to the plan, and reads the header, and either the body (if the file is read in one operation) or
//! the table of chunks. Every section is verified with its checksum.
//!
//! A path in the kernel's lookup cache is opened on the calling thread if that has worked recently; otherwise the
//! engine opens it. Cached pages are read on the calling thread too.

use std::sync::Arc;

use io::facts::Stat;
use io::op::OpenHow;
use io::page_cache::{PageCacheAdmission, TryPredictor};
use io::{Buf, Disk, DiskVia, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::config::Access;
use crate::disk::directory::{DiskFile, READ_FLAGS, ReadError, buffer};
use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::format::{CHUNK_BYTES, Damage, Header, RECORD_BYTES, Unread, checksum, chunks_of, crc32c, decode};
use crate::index::{BLOCK_BYTES, IndexEntry};
use crate::key::Key;
use crate::lookup::open_files::{self, Content, OpenFile, ReadBefore};

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
    /// The same for a file that is already open: its body may be sent by sendfile(2), so that only the header is read.
    pub(crate) first_if_open: FirstRead,
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

/// Maximum number of attempts to read a torn header: a new one may be being written.
const HEADER_TRIES: u32 = 3;

/// The sections of a file that were read.
pub(crate) struct Read {
    pub(crate) buf: Buf,
    pub(crate) header: Arc<Header>,
    /// The chunks of a large entry.
    pub(crate) chunks: Option<Arc<Chunks>>,
    /// Attributes of the file before its header was read.
    pub(crate) seen: Option<Stat>,
}

/// Returns the range of the body in the file of an entry that was read completely.
pub(crate) fn body_of(header: &Header) -> std::ops::Range<usize> {
    let range = header.body_range();
    range.start as usize..range.end as usize
}

/// Opens and reads the files of one cache.
pub(crate) struct EntryFiles {
    entries: Arc<Entries>,
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

impl EntryFiles {
    pub(crate) fn new(entries: &Arc<Entries>) -> EntryFiles {
        EntryFiles {
            entries: Arc::clone(entries),
            names: TryPredictor::default(),
            data: TryPredictor::default(),
            admission: PageCacheAdmission::new(ADMITTED_ONE_IN_MIN),
        }
    }

    /// Returns the plan for opening and reading the file of an entry.
    pub(crate) fn plan(&self, key: &Key, access: Access, known: Option<IndexEntry>) -> ReadPlan {
        let known = known.filter(|known| known.measured);
        let blocks = known.map(|known| known.blocks).filter(|&blocks| blocks <= DIRECT_BLOCKS_MAX);
        // The header of an unknown entry is read through the page cache. The sender of the body decides how to read it.
        let direct = blocks.is_some_and(|blocks| access.is_direct(u64::from(blocks) * BLOCK_BYTES));
        let is_complete = |blocks: u32| {
            blocks <= SMALL_BLOCKS_MAX
                || (blocks <= FULL_READ_BLOCKS_MAX
                    && (direct || !access.sends_files)
                    && access.client_has_space)
        };
        let first = match blocks {
            Some(blocks) if is_complete(blocks) => FirstRead::Complete(u64::from(blocks) * BLOCK_BYTES),
            _ => FirstRead::Prefix,
        };
        // Bytes that were not verified recently are read to be verified, and can then be sent from memory.
        let is_verified = known.is_some_and(|known| known.verified == self.entries.epoch());
        let is_sent = access.sends_large_files && is_verified && self.entries.dir.is_owner();
        let first_if_open = match blocks {
            Some(blocks) if blocks > SMALL_BLOCKS_MAX && is_sent && !direct => FirstRead::Prefix,
            _ => first,
        };
        let reads = if direct { access.direct_via } else { access.via };
        let is_left_to_us = access.direct_from.is_none() && access.calls_directly && reads != DiskVia::Sync;
        let name = name_of(key);
        let bypass_page_cache = is_left_to_us
            && known.is_some_and(|known| known.requested)
            && !self.admission.admit(name, rt::now());
        let (opens, reads_direct, calls_directly) = (access.via, access.direct_via, access.calls_directly);
        ReadPlan {
            name,
            opens,
            reads,
            reads_direct,
            direct,
            bypass_page_cache,
            calls_directly,
            first,
            first_if_open,
        }
    }

    /// Makes the remaining reads of a file bypass the page cache, if this is its only reader.
    pub(crate) fn bypass(&self, file: &File, plan: ReadPlan) {
        if plan.bypass_page_cache && file.is_sole() && !file.fd().is_direct() {
            // A file system without O_DIRECT continues to use the page cache.
            let _ = file.fd().set_direct(OFlags::NONBLOCK);
        }
    }

    /// Returns the open file of an entry if it is retained. If the plan bypasses the page cache, the bytes of the file
    /// must also be resident, or retained.
    pub(crate) fn open_file(&self, key: &Key, known: Option<IndexEntry>, plan: ReadPlan) -> Option<OpenFile> {
        let known = known.filter(|known| plan.calls_directly && known.measured)?;
        let open = open_files::find((self.entries.dir.seed, *key), known.version, plan.direct)?;
        let is_complete =
            matches!(open.read.as_deref(), Some(ReadBefore { content: Content::Complete(_), .. }));
        if !plan.bypass_page_cache || is_complete {
            return Some(open);
        }
        let bytes = u64::from(known.blocks) * BLOCK_BYTES;
        let range = open.read.as_ref().map_or(0..bytes, |read| read.header().body_range());
        let is_resident = open.is_resident(range.start, range.end - range.start);
        self.admission.note(plan.name, is_resident, rt::now());
        is_resident.then_some(open)
    }

    /// Opens the file of a key for reading.
    pub(crate) async fn open(&self, key: &Key, plan: ReadPlan) -> Result<File, Errno> {
        let dir = &self.entries.dir;
        let path = || dir.path_of(key).0;
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
        let disk = Disk { device: dir.device, via: plan.opens };
        match File::open(None, path(), how, disk).await {
            // The file system does not support direct I/O.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                how.flags = (flags - OFlags::DIRECT).bits() as i32;
                Box::pin(File::open(None, path(), how, disk)).await
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

    /// Reads the entry of a key from its file.
    pub(crate) async fn read_entry(
        &self,
        file: &File,
        key: &Key,
        known: Option<IndexEntry>,
        plan: ReadPlan,
    ) -> Result<Read, ReadError> {
        let entries = &self.entries;
        // Before the header is read, so that a concurrent change of the header is detected. An fstat of an open file
        // needs no disk access.
        let seen = match plan.first {
            FirstRead::Prefix => Some(file.stat_inline().map_err(ReadError::Disk)?),
            // It has just been checked; only what is read from a retained file is retained.
            FirstRead::Complete(_) if !file.is_sole() => file.stat_of_turn().ok(),
            FirstRead::Complete(_) => None,
        };
        let (mut buf, header) = self.read_header(file, plan.first.bytes(), plan).await?;
        let layout = header.layout;
        let end = header.body_range().end;
        let is_complete =
            layout.is_small || (matches!(plan.first, FirstRead::Complete(_)) && !layout.is_partial);
        if !is_complete {
            let table_end = layout.table + chunks_of(header.length) * RECORD_BYTES;
            if file.fd().is_direct() && table_end > buf.len() as u64 {
                // Reads with O_DIRECT can start only at block boundaries.
                buf = Box::pin(self.extend(file, buf, table_end, plan)).await?;
            }
            let chunks = match self.table_at_hand(file, &buf, &header, seen)? {
                Some(chunks) => chunks,
                None => Box::pin(self.read_table(file, &header, plan)).await?,
            };
            if plan.bypass_page_cache && !io::page_cache::is_resident(file.fd(), layout.body, header.length) {
                self.bypass(file, plan);
            }
            return Ok(Read { buf, header, chunks: Some(chunks), seen });
        }
        if (buf.len() as u64) < end {
            self.bypass(file, plan);
            buf = Box::pin(self.extend(file, buf, end, plan)).await?;
            if (buf.len() as u64) < end {
                let index = (buf.len() as u64).saturating_sub(layout.body) / CHUNK_BYTES;
                return Err(ReadError::Damaged(Damage::Truncated { index }));
            }
        }
        let known = known.filter(|_| entries.dir.is_owner());
        let epoch = entries.epoch();
        if layout.is_small || known.is_none_or(|known| known.verified != epoch) {
            self.verify(&buf, &header)?;
            if let Some(known) = known.filter(|_| !layout.is_small) {
                entries.index.set_verified(&key.0, known.version, epoch);
            }
        }
        Ok(Read { buf, header, chunks: None, seen })
    }

    /// Verifies all chunks of an entry that was read completely.
    fn verify(&self, buf: &Buf, header: &Header) -> Result<(), ReadError> {
        let body = body_of(header);
        assert!(body.end <= buf.len(), "all of the body was read");
        // A table behind the body may not have been read; entries that are read completely have none there.
        let records = buf.get(header.layout.table as usize..).unwrap_or_default();
        let mut records = records.chunks_exact(RECORD_BYTES as usize);
        for (index, chunk) in (0..).zip(buf[body].chunks(CHUNK_BYTES as usize)) {
            self.entries.counters.verified_chunks.count();
            let record = records.next().unwrap_or_default();
            if checksum(header.nonce, index, record) != Some(crc32c(chunk)) {
                return Err(ReadError::Damaged(Damage::Chunk { index }));
            }
        }
        Ok(())
    }

    /// Reads the header, and as much of the file as the first read returns.
    pub(crate) async fn read_header(
        &self,
        file: &File,
        bytes: u64,
        plan: ReadPlan,
    ) -> Result<(Buf, Arc<Header>), ReadError> {
        // Decided after a buffer is available: pages that are resident now may be evicted while waiting for it.
        let mut buf = match self.read_resident(file, bytes, plan, buffer(bytes).await?) {
            Ok(buf) => buf,
            Err(buf) => {
                self.bypass(file, plan);
                self.disk_file(file, plan).read_into(buf, 0, bytes).await?
            }
        };
        self.entries.dir.counts.read_bytes.add(buf.len() as u64);
        let mut tries = 1;
        loop {
            match decode(&buf) {
                Ok(header) => return Ok((buf, Arc::new(header))),
                Err(Unread::More(wanted)) => {
                    let before = buf.len();
                    buf = Box::pin(self.extend(file, buf, wanted as u64, plan)).await?;
                    if buf.len() < wanted && buf.len() == before {
                        return Err(ReadError::Damaged(Damage::Short));
                    }
                }
                Err(Unread::Damaged(Damage::Header)) if tries < HEADER_TRIES => {
                    tries += 1;
                    rt::yield_now().await;
                    buf = Box::pin(self.disk_file(file, plan).read_some(0, buf.len() as u64)).await?;
                }
                Err(Unread::Damaged(damage)) => return Err(ReadError::Damaged(damage)),
            }
        }
    }

    /// Returns the open file with the backend that the plan chooses for it.
    fn disk_file<'a>(&self, file: &'a File, plan: ReadPlan) -> DiskFile<'a> {
        DiskFile { file, disk: Disk { device: self.entries.dir.device, via: plan.reads_of(file) } }
    }

    /// Reads more of a file, from the end of the content of `buf`.
    async fn extend(&self, file: &File, buf: Buf, end: u64, plan: ReadPlan) -> Result<Buf, ReadError> {
        let before = buf.len();
        let buf = self.disk_file(file, plan).extend_to(buf, end).await?;
        self.entries.dir.counts.read_bytes.add(buf.len().saturating_sub(before) as u64);
        Ok(buf)
    }

    /// Returns the chunk records of a large entry if no further read is necessary: they are cached, or in `prefix`, the
    /// start of the file.
    fn table_at_hand(
        &self,
        file: &File,
        prefix: &Buf,
        header: &Header,
        seen: Option<Stat>,
    ) -> Result<Option<Arc<Chunks>>, ReadError> {
        if !header.layout.is_partial {
            // A file that was truncated since its verification must not be sent, not even the rest of it.
            let size = seen.map_or_else(|| file.stat_inline(), Ok).map_err(ReadError::Disk)?.size;
            if size < header.layout.file_bytes(header.length) {
                let index = size.saturating_sub(header.layout.body) / CHUNK_BYTES;
                return Err(ReadError::Damaged(Damage::Truncated { index }));
            }
        }
        if let Some(chunks) = self.entries.recent.get(header.nonce, header.length) {
            return Ok(Some(chunks));
        }
        let start = header.layout.table;
        let end = start + chunks_of(header.length) * RECORD_BYTES;
        if end > prefix.len() as u64 {
            return Ok(None);
        }
        let chunks = Chunks::new(header.nonce, header.length);
        chunks.take_records(0, &prefix[start as usize..end as usize]);
        self.with_records(header, chunks).map(Some)
    }

    /// Reads the records of a large entry.
    async fn read_table(
        &self,
        file: &File,
        header: &Header,
        plan: ReadPlan,
    ) -> Result<Arc<Chunks>, ReadError> {
        let file = self.disk_file(file, plan);
        let chunks = Chunks::new(header.nonce, header.length);
        let start = header.layout.table;
        let end = start + chunks_of(header.length) * RECORD_BYTES;
        let mut at = start;
        while at < end {
            // The unwritten end of the table of a partial entry reads as zeroes, which are not valid records. A single
            // read may end inside a record, so each range is read completely.
            let wanted = (end - at).min(CHUNK_BYTES);
            let part = file.read_full(at, wanted).await?;
            self.entries.dir.counts.read_bytes.add(part.len() as u64);
            let part = &part[..part.len().min(wanted as usize)];
            chunks.take_records((at - start) / RECORD_BYTES, part);
            if (part.len() as u64) < wanted {
                break;
            }
            at += wanted;
        }
        self.with_records(header, chunks)
    }

    /// Caches the chunks of an entry with known records. An entry that was stored completely must not have missing
    /// records.
    fn with_records(&self, header: &Header, chunks: Chunks) -> Result<Arc<Chunks>, ReadError> {
        match chunks.first_absent().filter(|_| !header.layout.is_partial) {
            Some(index) => Err(ReadError::Damaged(Damage::Truncated { index })),
            None => Ok(self.entries.recent.put(Arc::new(chunks))),
        }
    }
}
