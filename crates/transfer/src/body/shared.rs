//! Reads into shared memory, then sends from there with sendfile(2).
//!
//! The kernel queues references to the pages. So a chunk's pages are released after they were sent, and the next chunk
//! gets new pages (`io::shm`). The kernel cannot evict such memory as it does page cache, so the amount that all bodies
//! of a thread use is limited ([`read_quota`]).

use std::ops::Range;

use io::{Disk, DiskVia};
use rt::net::FilePart;

use crate::body::outlet::{Outlet, SendError};
use crate::body::read::{self, Chunk, Chunks};
use crate::body::read_quota::{self, Into, ReadQuota};
use crate::body::{BodyError, FileBody};

/// Sends a range in chunks of `chunk_bytes`; the next chunk is read while one is sent, unless bodies take turns.
pub(super) async fn send(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    chunk_bytes: u32,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    outlet.flush(!range.is_empty() || !last).await?;
    let bytes = outlet.chunk_bytes().unwrap_or(u64::from(chunk_bytes)).min(u64::from(chunk_bytes));
    let mut chunks = Chunks::new(range, bytes, body.direct);
    let in_turns = || read_quota::is_scarce(body.device, Into::Shared);
    let Some(first) = read::next(outlet, &mut chunks, in_turns()).await? else { return Ok(()) };
    let mut shared = read_shared(body, via, first).await?;
    loop {
        if in_turns() {
            // The body must hold no shared memory while it waits.
            shared.send(outlet).await?;
            let Some(next) = read::next(outlet, &mut chunks, true).await? else { return Ok(()) };
            shared = read_shared(body, via, next).await?;
            continue;
        }
        let Some(next) = chunks.next() else { return shared.send(outlet).await };
        let (sent, read) = rt::join(shared.send(outlet), read_shared(body, via, next)).await;
        sent?;
        shared = read?;
    }
}

async fn read_shared(body: &FileBody, via: DiskVia, chunk: Chunk) -> Result<Shared, BodyError> {
    let quota = read_quota::acquire(body.device, Into::Shared, chunk.len);
    let quota = body.in_time(quota).await.ok_or(BodyError::NoMemory)?;
    let shared = io::shm::take(chunk.len as usize).map_err(|_| BodyError::NoMemory)?;
    let file = rt::File::new(shared.file);
    let buf = read::fill(body, via, &chunk, shared.buf).await?;
    Ok(Shared { file, chunk, _mapping: buf, _quota: quota })
}

/// A chunk in shared memory: the file that it is sent from, and the mapping that it was read into.
struct Shared {
    file: rt::File,
    chunk: Chunk,
    _mapping: io::Buf,
    /// Released together with the pages.
    _quota: ReadQuota,
}

impl Shared {
    /// Sends the chunk and releases it.
    async fn send(self, outlet: &mut dyn Outlet) -> Result<(), BodyError> {
        let mut position = self.chunk.skip;
        let end = self.chunk.end - self.chunk.offset;
        while position < end {
            let len = (end - position) as u32;
            let disk = Disk { device: Default::default(), via: DiskVia::Sync };
            match outlet.file(FilePart { file: &self.file, offset: position, len, disk }).await? {
                Ok(0) => return Err(BodyError::Shrunk { at: self.chunk.offset + position }),
                Ok(count) => position += u64::from(count),
                Err(errno) => return Err(SendError::Closed(errno).into()),
            }
        }
        // Now only the mapping owns the descriptor, so that the drop of the mapping releases the pages immediately.
        self.file.leave();
        Ok(())
    }
}
