//! Reads an entry's file: the header, and either the body (if the file is read in one operation) or the table of
//! chunks. Every section is verified with its checksum.

use std::sync::Arc;

use io::Buf;
use io::op::Stat;
use rt::File;

use crate::disk::read::{DiskFile, ReadError, buffer};
use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::format::crc32c;
use crate::format::crc32c::{RECORD_BYTES, checksum};
use crate::format::header::{Header, Unread, decode};
use crate::format::{CHUNK_BYTES, Damage, chunks_of};
use crate::index::IndexEntry;
use crate::key::Key;
use crate::lookup::open::{FirstRead, Opener, ReadPlan};

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

/// Reads the entry of a key from its file.
pub(crate) async fn read_entry(
    entries: &Entries,
    opener: &Opener,
    file: &File,
    key: &Key,
    known: Option<IndexEntry>,
    plan: ReadPlan,
) -> Result<Read, ReadError> {
    let dir = &entries.dir;
    // Before the header is read, so that a concurrent change of the header is detected. An fstat of an open file needs
    // no disk access.
    let seen = match plan.first {
        FirstRead::Prefix => Some(file.stat_inline().map_err(ReadError::Disk)?),
        FirstRead::Complete(_) => None,
    };
    let (mut buf, header) = read_header(entries, opener, file, plan.first.bytes(), plan).await?;
    let layout = header.layout;
    let end = header.body_range().end;
    let is_whole = layout.is_small || (matches!(plan.first, FirstRead::Complete(_)) && !layout.is_partial);
    if !is_whole {
        let table_end = layout.table + chunks_of(header.length) * RECORD_BYTES;
        if file.fd().is_direct() && table_end > buf.len() as u64 {
            // Reads with O_DIRECT can start only at block boundaries.
            buf = Box::pin(extend(entries, file, buf, table_end, plan)).await?;
        }
        let chunks = match table_at_hand(entries, file, &buf, &header, seen)? {
            Some(chunks) => chunks,
            None => Box::pin(read_table(entries, file, &header, plan)).await?,
        };
        if plan.bypass_page_cache && !io::page_cache::is_resident(file.fd(), layout.body, header.length) {
            opener.bypass(file, plan);
        }
        return Ok(Read { buf, header, chunks: Some(chunks), seen });
    }
    if (buf.len() as u64) < end {
        opener.bypass(file, plan);
        buf = Box::pin(extend(entries, file, buf, end, plan)).await?;
        if (buf.len() as u64) < end {
            let index = (buf.len() as u64).saturating_sub(layout.body) / CHUNK_BYTES;
            return Err(ReadError::Damaged(Damage::Truncated { index }));
        }
    }
    let known = known.filter(|_| dir.is_owner());
    let epoch = entries.epoch();
    if layout.is_small || known.is_none_or(|known| known.verified != epoch) {
        verify(entries, &buf, &header)?;
        if let Some(known) = known.filter(|_| !layout.is_small) {
            entries.index.set_verified(&key.0, known.version, epoch);
        }
    }
    Ok(Read { buf, header, chunks: None, seen })
}

/// Verifies all chunks of an entry that was read completely.
fn verify(entries: &Entries, buf: &Buf, header: &Header) -> Result<(), ReadError> {
    let body = body_of(header);
    assert!(body.end <= buf.len(), "all of the body was read");
    // A table behind the body may not have been read; entries that are read completely have none there.
    let records = buf.get(header.layout.table as usize..).unwrap_or_default();
    let mut records = records.chunks_exact(RECORD_BYTES as usize);
    for (index, chunk) in (0..).zip(buf[body].chunks(CHUNK_BYTES as usize)) {
        entries.counters.verified_chunks.count();
        let record = records.next().unwrap_or_default();
        if checksum(header.nonce, index, record) != Some(crc32c::of(chunk)) {
            return Err(ReadError::Damaged(Damage::Chunk { index }));
        }
    }
    Ok(())
}

/// Reads the header, and as much of the file as the first read returns.
pub(crate) async fn read_header(
    entries: &Entries,
    opener: &Opener,
    file: &File,
    bytes: u64,
    plan: ReadPlan,
) -> Result<(Buf, Arc<Header>), ReadError> {
    // Decided after a buffer is available: pages that are resident now may be evicted while waiting for it.
    let mut buf = match opener.read_resident(file, bytes, plan, buffer(bytes).await?) {
        Ok(buf) => buf,
        Err(buf) => {
            opener.bypass(file, plan);
            disk_file(entries, file, plan).read_into(buf, 0, bytes).await?
        }
    };
    entries.dir.moved.read.add(buf.len() as u64);
    let mut tries = 1;
    loop {
        match decode(&buf) {
            Ok(header) => return Ok((buf, Arc::new(header))),
            Err(Unread::More(wanted)) => {
                let before = buf.len();
                buf = Box::pin(extend(entries, file, buf, wanted as u64, plan)).await?;
                if buf.len() < wanted && buf.len() == before {
                    return Err(ReadError::Damaged(Damage::Short));
                }
            }
            Err(Unread::Damaged(Damage::Header)) if tries < HEADER_TRIES => {
                tries += 1;
                rt::yield_now().await;
                buf = Box::pin(disk_file(entries, file, plan).read_some(0, buf.len() as u64)).await?;
            }
            Err(Unread::Damaged(damage)) => return Err(ReadError::Damaged(damage)),
        }
    }
}

/// Returns the open file with the backend that the plan chooses for it.
fn disk_file<'a>(entries: &Entries, file: &'a File, plan: ReadPlan) -> DiskFile<'a> {
    DiskFile { file, device: entries.dir.device, via: plan.reads_of(file) }
}

/// Reads more of a file, from the end of the content of `buf`.
async fn extend(
    entries: &Entries,
    file: &File,
    buf: Buf,
    end: u64,
    plan: ReadPlan,
) -> Result<Buf, ReadError> {
    let before = buf.len();
    let buf = disk_file(entries, file, plan).extend_to(buf, end).await?;
    entries.dir.moved.read.add(buf.len().saturating_sub(before) as u64);
    Ok(buf)
}

/// Returns the chunk records of a large entry if no further read is necessary: they are cached, or in `prefix`, the
/// start of the file.
fn table_at_hand(
    entries: &Entries,
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
    if let Some(chunks) = entries.recent.get(header.nonce, header.length) {
        return Ok(Some(chunks));
    }
    let start = header.layout.table;
    let end = start + chunks_of(header.length) * RECORD_BYTES;
    if end > prefix.len() as u64 {
        return Ok(None);
    }
    let chunks = Chunks::new(header.nonce, header.length);
    chunks.take_records(0, &prefix[start as usize..end as usize]);
    with_records(entries, header, chunks).map(Some)
}

/// Reads the records of a large entry.
async fn read_table(
    entries: &Entries,
    file: &File,
    header: &Header,
    plan: ReadPlan,
) -> Result<Arc<Chunks>, ReadError> {
    let file = disk_file(entries, file, plan);
    let chunks = Chunks::new(header.nonce, header.length);
    let start = header.layout.table;
    let end = start + chunks_of(header.length) * RECORD_BYTES;
    let mut at = start;
    while at < end {
        // The unwritten end of the table of a partial entry reads as zeroes, which are not valid records. A single read
        // may end inside a record, so each range is read completely.
        let wanted = (end - at).min(CHUNK_BYTES);
        let part = file.read_full(at, wanted).await?;
        entries.dir.moved.read.add(part.len() as u64);
        let part = &part[..part.len().min(wanted as usize)];
        chunks.take_records((at - start) / RECORD_BYTES, part);
        if (part.len() as u64) < wanted {
            break;
        }
        at += wanted;
    }
    with_records(entries, header, chunks)
}

/// Caches the chunks of an entry with known records. An entry that was stored completely must not have missing records.
fn with_records(entries: &Entries, header: &Header, chunks: Chunks) -> Result<Arc<Chunks>, ReadError> {
    match chunks.first_absent().filter(|_| !header.layout.is_partial) {
        Some(index) => Err(ReadError::Damaged(Damage::Truncated { index })),
        None => Ok(entries.recent.put(Arc::new(chunks))),
    }
}
