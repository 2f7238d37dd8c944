//! sendfile(2): without a copy through user space, for bytes that are resident or in a thread that may block.
//!
//! The kernel's read-ahead loads missing bytes, and only the task that needs them waits:
//!
//! ```text
//!   resident? --yes--------------------------------------------------------------> sendfile
//!      `-no--> a window --> reading begun --> engine reads the last byte --> resident? --yes--^
//!                                                                              `-no--> read, send
//! ```
//!
//! Quotas keep the pages in flight few enough to stay until they are sent ([`read_quota`]). Bytes are read into a buffer
//! only where the pages do not stay, or the file system has no way to begin reading without waiting.

use std::ops::Range;

use io::op::{Advice, Source};
use io::page_cache::{self, ProbeOptions, Residency};
use io::{Buf, DiskVia, Errno};
use rt::net::FilePart;

use crate::body::outlet::{Outlet, SendError};
use crate::body::pace::CHUNK_MAX;
use crate::body::read::{self, Chunk};
use crate::body::read_quota::Into;
use crate::body::{BodyError, FileBody, buffer_turns, page_cache_bypass, read_quota};

/// Sends a range by sendfile(2) on this engine.
pub(super) async fn send(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    // The head waits in the kernel for the first bytes of the body.
    outlet.flush(!range.is_empty() || !last).await?;
    let most = outlet.file_bytes(CHUNK_MAX);
    let mut position = range.start;
    while position < range.end {
        position += piece(outlet, body, via, position, most.min(range.end - position)).await?;
    }
    Ok(())
}

/// Sends a range by sendfile(2) if it is resident, and lets this engine read it first otherwise.
pub(super) async fn send_resident(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    otherwise: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    // A short one is read in one piece: the copy costs less than the read-ahead and its wait.
    let is_long = range.end - range.start > READ_BYTES;
    let is_very_long = range.end - range.start > page_cache_bypass::LONGEST;
    let most = outlet.file_bytes(if is_very_long { VERY_LONG_MAX } else { CHUNK_MAX });
    let mut position = range.start;
    // The end of the resident bytes, and the time of that probe, which may be another request's.
    let (mut resident, mut since) = body.file.seen_resident(position).unwrap_or((position, rt::now()));
    // Up to where reading was begun of a very long file, once something of it was missing.
    let mut begun: Option<u64> = None;
    while position < range.end {
        let len = most.min(range.end - position);
        if position + len > resident || !page_cache::is_believed(since, rt::now()) {
            (resident, since) = (position, rt::now());
            if find(body, position, len) == Residency::Resident {
                resident += len;
                body.file.note_resident(position..resident);
            } else {
                // Boxed: a warm file pays nothing for the state of this.
                match Box::pin(bring(outlet, body, otherwise, position, len, is_long)).await? {
                    Brought::Resident(len) => {
                        (resident, since) = (position + len, rt::now());
                        begun = is_very_long.then_some(resident);
                    }
                    Brought::Read(buf) => {
                        position += buf.len() as u64;
                        outlet.push(Source::Buf(buf));
                        outlet.flush(position < range.end || !last).await?;
                        continue;
                    }
                }
            }
        }
        let len = len.min(resident - position);
        let next = position + len..range.end.min(position + len + most);
        if begun.is_some_and(|begun| begun <= next.start) {
            begun = Some(next.end);
            read_ahead(body, next);
        }
        position += resident_piece(outlet, body, position, len, is_long).await?;
        if position < range.end {
            // Calls that need not wait would keep other tasks from running.
            rt::yield_now().await;
        }
    }
    Ok(())
}

/// Bytes of a very long file that are brought and sent at once: as much as nginx sends (`sendfile_max_chunk`), for half of the
/// questions whether they are there.
const VERY_LONG_MAX: u64 = 2 * CHUNK_MAX;

/// Starts reads ahead, so that the disk works while the bytes before are sent: sendfile(2) itself reads on only where it
/// comes to a page that was marked for that. Of few files at a time: it takes no quota.
fn read_ahead(body: &FileBody, next: Range<u64>) {
    if !next.is_empty() && body.calls_directly() && !buffer_turns::are_on() {
        page_cache::begin_reading(body.file.fd(), next.start, next.end - next.start);
    }
}

/// Where bytes are. If only a probe of pages can tell, reading starts with the first probe, unless bodies take turns.
fn find(body: &FileBody, at: u64, len: u64) -> Residency {
    let is_local = body.calls_directly();
    let ahead = if is_local && !buffer_turns::are_on() { len } else { 1 };
    page_cache::residency(body.file.fd(), at, len, ProbeOptions { is_local, ahead })
}

/// The outcome for bytes that were not resident.
enum Brought {
    /// This many bytes are resident now.
    Resident(u64),
    /// They were read.
    Read(Buf),
}

/// Has the kernel read bytes into the page cache, and waits until they are there; or reads them.
async fn bring(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    at: u64,
    len: u64,
    is_long: bool,
) -> Result<Brought, BodyError> {
    // A waiting body holds no buffer, and acquires a quota once the client accepts bytes: pages that do not fit into
    // the socket would be evicted before they are sent.
    outlet.let_go().await?;
    if is_long && body.calls_directly() {
        outlet.room(len).await?;
        // The read reports a disk this slow, with its own time limit.
        if let Some(_quota) = body.in_time(read_quota::acquire(body.device, Into::PageCache, len)).await
            && let Some(len) = brought(body, via, at, len).await
        {
            return Ok(Brought::Resident(len));
        }
    }
    let len = len.min(READ_BYTES);
    let len = if buffer_turns::are_on() { buffer_turns::wait(outlet, len).await? } else { len };
    let chunk = Chunk { offset: at, len, skip: 0, end: at + len, direct: false };
    Ok(Brought::Read(read::read_chunk(body, via, &chunk).await?))
}

/// Starts to read the missing pages, and waits for them; how much came, and stayed: all, or those before the first
/// hole.
async fn brought(body: &FileBody, via: DiskVia, at: u64, mut len: u64) -> Option<u64> {
    let file = body.file.fd();
    if page_cache::begin_reading(file, at, len) && find(body, at, len) == Residency::Missing {
        // Its start is resident, so the call started no read of the rest. The next part begins at the hole, and the
        // kernel reads large pieces from there; if asked to fill the hole, it would read page by page.
        match page_cache::cached_start(file, at, len) {
            // Residency is unknown, so holes are filled in another thread.
            0 => drop(body.file.advise(at, len as u32, Advice::WillNeed, body.device, via).await),
            start => len = start,
        }
    }
    let mut place = at + len - 1;
    for _ in 0..WAITS_MAX {
        wait_for(body, via, place).await;
        match find(body, at, len) {
            Residency::Resident => return Some(len),
            Residency::InFlight { at } => place = at,
            Residency::Missing => return None,
        }
    }
    None
}

/// Pages of a range that are waited for, one after the other: the last one, and those that come later still.
const WAITS_MAX: u32 = 4;

/// Bytes that are read at once where they do not stay in the page cache; ranges that are no longer are always read.
pub(super) const READ_BYTES: u64 = 256 << 10;

/// Waits until this byte is in the page cache: the engine reads it. An error shows when the bytes are read.
async fn wait_for(body: &FileBody, via: DiskVia, at: u64) {
    if let Some(buf) = rt::pool().get(1) {
        let _ = body.file.read_at(at, 1, buf, body.device, via).await;
    }
}

async fn piece(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    at: u64,
    len: u64,
) -> Result<u64, BodyError> {
    let part = FilePart { file: &body.file, offset: at, len: len as u32, device: body.device, via };
    moved(outlet.file(part).await?, at)
}

async fn resident_piece(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    at: u64,
    len: u64,
    is_long: bool,
) -> Result<u64, BodyError> {
    if !body.calls_directly() {
        outlet.flush(true).await?;
        return piece(outlet, body, DiskVia::Sync, at, len).await;
    }
    // A head that leaves by itself is a packet more, and wakes the client: of a long body more is then sent by its
    // acknowledgements as they come in, and less by this thread.
    moved(outlet.file_now((&body.file, at, len as u32), !is_long).await?, at)
}

fn moved(result: Result<u32, Errno>, at: u64) -> Result<u64, BodyError> {
    match result {
        Ok(0) => Err(BodyError::Shrunk { at }),
        Ok(count) => Ok(u64::from(count)),
        Err(errno @ (Errno::IO | Errno::NODATA | Errno::UCLEAN)) => Err(BodyError::Read(errno)),
        Err(errno) => Err(SendError::Gone(errno).into()),
    }
}
