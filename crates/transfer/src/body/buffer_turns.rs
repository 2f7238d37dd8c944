//! Fair sharing of read buffers: decides which response body may read next while the thread's buffer pool is scarce.
//!
//! While more than half of the pool is free, each body reads large chunks, and reads the next chunk while one is sent.
//! Otherwise bodies take turns. A body waits until its client accepts bytes, then queues for a buffer. It reads as much
//! as the socket has room for, sends it, returns the buffer and queues again. So a buffer is held only during the disk
//! read, and few large reads are in flight instead of many small ones. Clients that do not read hold at most the half
//! that they got while the pool was free.

use io::Buf;

use crate::body::outlet::{Outlet, SendError};
use crate::body::{BodyError, FileBody};

/// Chunk size in bytes while bodies take turns. Larger chunks mean fewer disk operations, but fewer concurrent bodies:
/// about fifty in the 16 MiB of buffers that a limit of 64 MiB leaves.
pub const TURN_BYTES: u64 = 256 << 10;

/// Divisor for the part of the pool that body reads leave to received requests, header sections of cache entries, and
/// logs.
const SPARED_DIVISOR: u64 = 4;

/// Whether bodies take turns now. This includes any time when a body waits in the queue, because the requests of one
/// event-loop turn are not granted yet and may exceed the pool.
pub fn are_on() -> bool {
    let pool = rt::pool();
    pool.spare_bytes() <= pool.bytes_max() / 2 || rt::buffers_are_awaited()
}

/// Waits until the client accepts bytes, and returns the number of bytes to read for it.
pub async fn wait(outlet: &mut dyn Outlet, wanted: u64) -> Result<u64, SendError> {
    let wanted = wanted.min(TURN_BYTES);
    Ok(Box::pin(outlet.wait_for_space(wanted)).await?.min(wanted))
}

/// Returns a buffer for a chunk. If all are in use, waits: one of the other responses ends soon.
pub async fn buffer(body: &FileBody, bytes: u64) -> Result<Buf, BodyError> {
    let spared = rt::pool().bytes_max() / SPARED_DIVISOR;
    body.in_time(rt::buffer(bytes as usize, spared)).await.ok_or(BodyError::NoMemory)
}
