//! Read into shared memory, then sendfile(2) from there.
//!
//! The kernel queues references to the pages, so a chunk's pages are given up once they were passed on and
//! the next chunk gets fresh ones: `io::shm` sees to that.

use std::ops::Range;

use io::DiskVia;

use crate::body::read::{self, Chunk, Chunks};
use crate::body::{BodyError, FileBody, SendError, Sink};

/// Sends a range in chunks of `chunk_bytes`; the next chunk is read while one is sent.
pub(super) async fn send(
    sink: &mut Sink<'_>,
    body: &FileBody,
    via: DiskVia,
    chunk_bytes: u32,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    sink.flush(!range.is_empty() || !last).await?;
    let bytes = sink.chunk_bytes().unwrap_or(u64::from(chunk_bytes)).min(u64::from(chunk_bytes));
    let mut chunks = Chunks::new(range, bytes, body.direct);
    let Some(mut chunk) = chunks.next() else { return Ok(()) };
    let mut shared = read_shared(body, via, &chunk).await?;
    loop {
        let Some(next) = chunks.next() else {
            return send_shared(sink, &shared, &chunk).await;
        };
        let (sent, read) = rt::join(send_shared(sink, &shared, &chunk), read_shared(body, via, &next)).await;
        sent?;
        shared = read?;
        chunk = next;
    }
}

async fn read_shared(body: &FileBody, via: DiskVia, chunk: &Chunk) -> Result<SharedBuf, BodyError> {
    let shared = io::shm::take(chunk.len as usize).map_err(|_| BodyError::NoMemory)?;
    let file = rt::File::new(shared.file);
    let buf = read::fill(body, via, chunk, shared.buf).await?;
    Ok(SharedBuf { file, _mapping: buf })
}

/// A chunk in shared memory: the file that it is sent from, and the mapping that it was read into.
struct SharedBuf {
    file: rt::File,
    _mapping: io::Buf,
}

async fn send_shared(sink: &mut Sink<'_>, shared: &SharedBuf, chunk: &Chunk) -> Result<(), BodyError> {
    let mut position = chunk.skip;
    let end = chunk.end - chunk.offset;
    while position < end {
        let len = (end - position) as u32;
        let result = sink.sendfile(&shared.file, position, len, Default::default(), DiskVia::Sync).await?;
        match result {
            Ok(0) => return Err(BodyError::Shrunk { at: chunk.offset + position }),
            Ok(count) => position += u64::from(count),
            Err(errno) => return Err(SendError::Gone(errno).into()),
        }
    }
    Ok(())
}
