//! sendfile(2) without a copy through user space, for resident bytes or in a thread that may block.
//!
//! Missing bytes are loaded by the kernel's readahead, and only the task that needs them waits:
//!
//! ```text
//!   resident? --yes--------------------------------------------------------------> sendfile
//!      `-no--> long? --yes--> start a read --> engine reads the last byte --> resident? --yes--^
//!                `-no--> read, send                                              `-no--> read, send
//! ```
//!
//! Quotas limit the pages in flight, so that they stay resident until they are sent ([`read_quota`]). Bytes are read
//! into a buffer if the range is short, if its pages do not stay resident, or if the file system cannot start reads
//! without waiting.

use std::ops::Range;

use io::page_cache::{self, ProbeOptions, Residency};
use io::segments::Source;
use io::{Buf, DiskVia, Errno};
use rt::net::FilePart;

use crate::body::outlet::{Outlet, SendError};
use crate::body::pace::CHUNK_MAX;
use crate::body::read::{self, Chunk};
use crate::body::read_quota::Into;
use crate::body::{BodyError, FileBody, buffer_turns, choose, page_cache_bypass, read_quota};

/// Sends a range with sendfile(2) on this engine.
pub(super) async fn send(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    // The kernel holds the header section back until the first bytes of the body.
    outlet.flush(!range.is_empty() || !last).await?;
    let bytes_max = outlet.file_bytes(CHUNK_MAX);
    let mut position = range.start;
    while position < range.end {
        position += piece(outlet, body, via, position, bytes_max.min(range.end - position)).await?;
    }
    Ok(())
}

/// Sends a range with sendfile(2) if it is resident; otherwise this engine reads it first.
pub(super) async fn send_resident(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    otherwise: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    // A short range is read in one piece, because the copy costs less than readahead and waiting.
    let is_long = range.end - range.start > READ_BYTES;
    let is_very_long = range.end - range.start > page_cache_bypass::LONGEST;
    let is_after_head = range.end - range.start >= choose::LONG_FROM;
    let bytes_max = outlet.file_bytes(if is_very_long { VERY_LONG_MAX } else { CHUNK_MAX });
    let mut position = range.start;
    // The end of the resident bytes, and the time of the probe, which another request may have made.
    let (mut resident, mut since) = body.file.seen_resident(position).unwrap_or((position, rt::now()));
    // Offset up to which readahead was started for a very long file, once any of its bytes were missing.
    let mut begun: Option<u64> = None;
    while position < range.end {
        let len = bytes_max.min(range.end - position);
        if position + len > resident || !page_cache::is_assumed_resident(since, rt::now()) {
            (resident, since) = (position, rt::now());
            if find(body, position, len) == Residency::Resident {
                resident += len;
                body.file.note_resident(position..resident);
            } else {
                // Boxed, so that the future of a resident file needs no memory for this state.
                match Box::pin(page_in(outlet, body, otherwise, position, len, is_long)).await? {
                    PageIn::Resident(len) => {
                        (resident, since) = (position + len, rt::now());
                        begun = is_very_long.then_some(resident);
                    }
                    PageIn::Read(buf) => {
                        position += buf.len() as u64;
                        outlet.push(Source::Buf(buf));
                        outlet.flush(position < range.end || !last).await?;
                        continue;
                    }
                }
            }
        }
        let len = len.min(resident - position);
        let next = position + len..range.end.min(position + len + bytes_max);
        if begun.is_some_and(|begun| begun <= next.start) {
            begun = Some(next.end);
            read_ahead(body, next);
        }
        position += resident_piece(outlet, body, position, len, is_after_head).await?;
        if position < range.end {
            // Calls that never wait would keep other tasks from running.
            rt::yield_now().await;
        }
    }
    Ok(())
}

/// Number of bytes of a very long file that are loaded and sent per step: nginx's default of `sendfile_max_chunk`, which
/// needs half as many residency probes as [`CHUNK_MAX`].
const VERY_LONG_MAX: u64 = 2 * CHUNK_MAX;

/// Starts readahead, so that the disk works while earlier bytes are sent. sendfile(2) itself continues readahead only
/// at a page that is marked for it. This acquires no quota, so it is used only for very long files, which are few.
fn read_ahead(body: &FileBody, next: Range<u64>) {
    if !next.is_empty() && body.calls_directly() && !buffer_turns::are_on() {
        page_cache::begin_reading(body.file.fd(), next.start, next.end - next.start);
    }
}

/// Probes the residency of bytes. If the probe reads a page that is missing, the kernel also starts to read the other
/// bytes, unless bodies take turns.
fn find(body: &FileBody, at: u64, len: u64) -> Residency {
    let is_local = body.calls_directly();
    let ahead = if is_local && !buffer_turns::are_on() { len } else { 1 };
    page_cache::residency(body.file.fd(), at, len, ProbeOptions { is_local, ahead })
}

/// The outcome for bytes that were not resident.
enum PageIn {
    /// This many bytes are resident now.
    Resident(u64),
    /// The bytes were read into this buffer.
    Read(Buf),
}

/// Lets the kernel read bytes into the page cache and waits for them; or reads them into a buffer.
async fn page_in(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    at: u64,
    len: u64,
    is_long: bool,
) -> Result<PageIn, BodyError> {
    // A waiting body holds no buffer, and acquires a quota only once the client accepts bytes: pages that do not fit
    // into the socket buffer would be evicted before they are sent.
    outlet.release_buffers().await?;
    if is_long && body.calls_directly() {
        outlet.wait_for_space(len).await?;
        // If the disk is too slow, the read below reports it, with its own time limit.
        if let Some(_quota) = body.in_time(read_quota::acquire(body.device, Into::PageCache, len)).await
            && let Some(len) = page_in_missing(body, via, at, len).await
        {
            return Ok(PageIn::Resident(len));
        }
    }
    let len = len.min(READ_BYTES);
    let len = if buffer_turns::are_on() { buffer_turns::wait(outlet, len).await? } else { len };
    let chunk = Chunk { offset: at, len, skip: 0, end: at + len, direct: false };
    Ok(PageIn::Read(read::read_chunk(body, via, &chunk).await?))
}

/// Starts reads of the missing pages and waits for them. Returns the number of resident bytes: all bytes, or the bytes
/// before the first hole.
async fn page_in_missing(body: &FileBody, via: DiskVia, at: u64, mut len: u64) -> Option<u64> {
    let file = body.file.fd();
    if page_cache::begin_reading(file, at, len) && find(body, at, len) == Residency::Missing {
        // The start is resident, so the call started no read of the remaining bytes. The next range begins at the hole,
        // from where the kernel reads large pieces; it would fill a hole inside the range page by page.
        match page_cache::cached_start(file, at, len) {
            // The residency is unknown, so another thread fills the holes.
            0 => drop(body.file.advise(at, len as u32, body.disk(via)).await),
            start => len = start,
        }
    }
    let mut index = at + len - 1;
    for _ in 0..WAITS_MAX {
        wait_for(body, via, index).await;
        match find(body, at, len) {
            Residency::Resident => return Some(len),
            Residency::InFlight { at } => index = at,
            Residency::Missing => return None,
        }
    }
    None
}

/// Maximum number of pages of a range that are waited for, one after the other: the last page, and pages that arrive
/// even later.
const WAITS_MAX: u32 = 4;

/// Number of bytes per read of bytes that do not stay in the page cache; shorter ranges are always read into a buffer.
pub(super) const READ_BYTES: u64 = 256 << 10;

/// Waits until this byte is in the page cache, by reading it with the engine. Errors appear when the bytes are read.
async fn wait_for(body: &FileBody, via: DiskVia, at: u64) {
    if let Some(buf) = rt::pool().get(1) {
        let _ = body.file.read_at(at, 1, buf, body.disk(via)).await;
    }
}

async fn piece(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    at: u64,
    len: u64,
) -> Result<u64, BodyError> {
    let part = FilePart { file: &body.file, offset: at, len: len as u32, disk: body.disk(via) };
    moved(outlet.file(part).await?, at)
}

async fn resident_piece(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    at: u64,
    len: u64,
    is_after_head: bool,
) -> Result<u64, BodyError> {
    if !body.calls_directly() {
        outlet.flush(true).await?;
        return piece(outlet, body, DiskVia::Sync, at, len).await;
    }
    // A header section sent alone is an additional packet, and wakes the client, which then receives while the body is
    // sent. On loopback this takes half of the CPU time from 64 KiB on (decision 0053).
    moved(outlet.file_now((&body.file, at, len as u32), !is_after_head).await?, at)
}

fn moved(result: Result<u32, Errno>, at: u64) -> Result<u64, BodyError> {
    match result {
        Ok(0) => Err(BodyError::Shrunk { at }),
        Ok(count) => Ok(u64::from(count)),
        Err(errno @ (Errno::IO | Errno::NODATA | Errno::UCLEAN)) => Err(BodyError::Read(errno)),
        Err(errno) => Err(SendError::Closed(errno).into()),
    }
}
