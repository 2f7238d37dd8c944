//! sendfile(2): without a copy through user space, for bytes that are resident or in a thread that may block.

use std::ops::Range;

use io::{DiskVia, Errno};

use crate::body::read::{self, Chunk};
use crate::body::sink::CHUNK_MAX;
use crate::body::{BodyError, FileBody, SendError, Sink, turns};
use io::op::Source;

/// Bytes of one sendfile on the worker thread: it holds up other connections for as long as it takes.
const INLINE_MAX: u64 = 256 << 10;

/// Sends a range by sendfile(2) on this engine.
pub(super) async fn send(
    sink: &mut Sink<'_>,
    body: &FileBody,
    via: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    // The head waits in the kernel for the first bytes of the body.
    sink.flush(!range.is_empty() || !last).await?;
    let most = if via == DiskVia::Sync { INLINE_MAX } else { CHUNK_MAX };
    let most = sink.sendfile_bytes(most);
    let mut position = range.start;
    while position < range.end {
        position += piece(sink, body, via, position, most.min(range.end - position)).await?;
    }
    Ok(())
}

/// Sends a range by sendfile(2) where it is resident, and what is not by reading it with this engine.
pub(super) async fn send_resident(
    sink: &mut Sink<'_>,
    body: &FileBody,
    otherwise: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    let most = sink.sendfile_bytes(INLINE_MAX);
    let mut position = range.start;
    while position < range.end {
        let len = most.min(range.end - position);
        if io::residency::is_resident(body.file.fd(), position, len) {
            position += resident_piece(sink, body, position, len).await?;
            if position < range.end {
                // Calls that need not wait let nobody else have a turn.
                rt::yield_now().await;
            }
        } else {
            let len = if turns::are_on() { turns::wait(sink, len).await? } else { len };
            let chunk = Chunk { offset: position, len, skip: 0, end: position + len, direct: false };
            let buf = read::read_chunk(body, otherwise, &chunk).await?;
            sink.push(Source::Buf(buf));
            position += len;
            sink.flush(position < range.end || !last).await?;
        }
    }
    Ok(())
}

async fn piece(
    sink: &mut Sink<'_>,
    body: &FileBody,
    via: DiskVia,
    at: u64,
    len: u64,
) -> Result<u64, BodyError> {
    moved(sink.sendfile(&body.file, at, len as u32, body.device, via).await?, at)
}

async fn resident_piece(sink: &mut Sink<'_>, body: &FileBody, at: u64, len: u64) -> Result<u64, BodyError> {
    if !body.calls_directly() {
        sink.flush(true).await?;
        return piece(sink, body, DiskVia::Sync, at, len).await;
    }
    moved(sink.sendfile_now(&body.file, at, len as u32, body.device).await?, at)
}

fn moved(result: Result<u32, Errno>, at: u64) -> Result<u64, BodyError> {
    match result {
        Ok(0) => Err(BodyError::Shrunk { at }),
        Ok(count) => Ok(u64::from(count)),
        Err(errno @ (Errno::IO | Errno::NODATA | Errno::UCLEAN)) => Err(BodyError::Read(errno)),
        Err(errno) => Err(SendError::Gone(errno).into()),
    }
}
