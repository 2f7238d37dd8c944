//! Fair sharing of read buffers: decides which response body may read next while the thread's buffer pool is scarce.
//!
//! While more than half of the pool is free, each body reads large chunks, and reads the next chunk while one is sent.
//! Otherwise bodies take turns. A body waits until its client accepts bytes, then queues for a buffer. It reads as many
//! bytes as the socket accepts, sends them, returns the buffer and queues again. So a buffer is held only during the disk
//! read, and few large reads are in flight instead of many small ones. Clients that do not read hold at most half of the
//! pool: the buffers that they got while the pool was free.

use io::Buf;

use crate::body::outlet::{Outlet, SendError};
use crate::body::{BodyError, FileBody};

/// Chunk size in bytes while bodies take turns. Larger chunks mean fewer disk operations, but fewer concurrent bodies:
/// about fifty with 16 MiB of buffers, the pool of a thread with a memory limit of 64 MiB.
pub const TURN_BYTES: u64 = 256 << 10;

/// Divisor for the part of the pool that body reads leave to received requests, header sections of cache entries, and
/// logs.
const SPARED_DIVISOR: u64 = 4;

/// Whether bodies take turns now: if the pool is scarce, or if any task waits for a buffer. All buffers that the tasks of
/// one event-loop turn request may exceed the pool, before any of them is granted.
pub fn are_on() -> bool {
    let pool = rt::pool();
    pool.spare_bytes() <= pool.bytes_max() / 2 || rt::buffers_are_awaited()
}

/// Waits until the client accepts bytes, and returns the number of bytes to read for it.
pub async fn wait(outlet: &mut dyn Outlet, wanted: u64) -> Result<u64, SendError> {
    let wanted = wanted.min(TURN_BYTES);
    Ok(Box::pin(outlet.wait_for_space(wanted)).await?.min(wanted))
}

/// Returns a buffer for a chunk. If all are in use, waits until another body returns a buffer, at most `send_timeout`.
pub async fn buffer(body: &FileBody, bytes: u64) -> Result<Buf, BodyError> {
    let spared = rt::pool().bytes_max() / SPARED_DIVISOR;
    body.in_time(rt::buffer(bytes as usize, spared)).await.ok_or(BodyError::NoMemory)
}
