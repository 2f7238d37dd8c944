//! Fair sharing of read buffers: which response body may read next while the thread's buffer pool is short.
//!
//! While more than half of the pool is free, each body reads large chunks, and the next one while one is sent. Beyond
//! that bodies take turns. One waits until its client accepts bytes, then for a buffer, in order; it reads as much as
//! the socket has room for, sends it, returns the buffer and queues again. So a buffer is held only while the disk
//! reads, and few large reads are in flight instead of many small ones. Clients that do not read hold at most the half
//! that was lent to them while the pool was free.

use io::Buf;

use crate::body::outlet::{Outlet, SendError};
use crate::body::{BodyError, FileBody};

/// Bytes of a chunk in turns. Larger ones are fewer operations of the disk, and fewer bodies at once: of the 16 MiB that
/// a limit of 64 MiB leaves for buffers, half a hundred.
pub const TURN_BYTES: u64 = 256 << 10;

/// The part of the pool that reads of bodies leave to others: to received requests, header sections of cache entries
/// and the logs.
const SPARED_PART: u64 = 4;

/// Whether bodies take turns now. Also while a body waits in the queue: the requests of one event-loop turn are not
/// granted yet and may exceed the pool.
pub fn are_on() -> bool {
    let pool = rt::pool();
    pool.spare_bytes() <= pool.bytes_max() / 2 || rt::buffers_are_awaited()
}

/// Waits until the client takes bytes, and returns how many to read for it.
pub async fn wait(outlet: &mut dyn Outlet, wanted: u64) -> Result<u64, SendError> {
    let wanted = wanted.min(TURN_BYTES);
    Ok(Box::pin(outlet.room(wanted)).await?.min(wanted))
}

/// A buffer for a chunk. Where all are in use, others answer at this moment: one of them ends before long.
pub async fn buffer(body: &FileBody, bytes: u64) -> Result<Buf, BodyError> {
    let spared = rt::pool().bytes_max() / SPARED_PART;
    body.in_time(rt::buffer(bytes as usize, spared)).await.ok_or(BodyError::NoMemory)
}
