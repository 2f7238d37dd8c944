//! Reads that are continued when they end early, and the verifying [`Reader`] of a body.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use io::op::DeviceId;
use io::{Buf, DiskVia, Errno};
use rt::{Either, File};

use crate::crc32c;
use crate::error::StoreError;
use crate::format::{ALIGN, CHUNK_BYTES, Damage};
use crate::hit::Located;

/// Why a file could not be read as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Disk(Errno),
    NoMemory,
    Damaged(Damage),
}

/// Bytes that fit into the largest buffer.
const BUF_BYTES_MAX: u64 = 1 << 20;

/// Reads up to `bytes` from the start of a file, as much as one read brings.
pub(crate) async fn read_prefix(
    file: &File,
    bytes: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    read_some(file, 0, bytes, device, via).await
}

/// One read of up to `bytes` at `at`; empty at the end of the file.
pub(crate) async fn read_some(
    file: &File,
    at: u64,
    bytes: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    read_into(buffer(bytes).await?, file, at, bytes, device, via).await
}

/// As [`read_some`], into a buffer that [`buffer`] has given for so many bytes.
pub(crate) async fn read_into(
    buf: Buf,
    file: &File,
    at: u64,
    bytes: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    let bytes = bytes.min(BUF_BYTES_MAX);
    let (result, buf) = file.read_at(at, bytes as u32, buf, device, via).await;
    result.map_err(ReadError::Disk)?;
    buf.ok_or(ReadError::NoMemory)
}

/// Goes on reading behind what is in `buf`, which starts at the start of the file, until `end` or the end of the file.
/// A short read is legal anywhere: that of a cache file's head is what made this server.
pub(crate) async fn extend_to(
    file: &File,
    buf: Buf,
    end: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    let mut buf = buf;
    if end > BUF_BYTES_MAX {
        // A header with so many texts is not written.
        return Err(ReadError::Damaged(Damage::Layout));
    }
    if (buf.capacity() as u64) < end && is_short_of(end) {
        drop(buf);
        buf = read_some(file, 0, end.next_multiple_of(ALIGN), device, via).await?;
    }
    if (buf.capacity() as u64) < end {
        let mut larger = buffer(end).await?;
        larger.append(&buf);
        buf = larger;
    }
    go_on(file, buf, 0, end, device, via).await
}

/// Goes on reading behind what is in `buf`, which starts at `start` and has room for `wanted` bytes, until it has these or
/// the file ends.
async fn go_on(
    file: &File,
    buf: Buf,
    start: u64,
    wanted: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    let mut buf = buf;
    let mut may_start_over = true;
    while (buf.len() as u64) < wanted {
        // Where direct reads may start; what is there already is read again.
        let done = buf.len() as u64 / ALIGN * ALIGN;
        let bytes = (wanted - done).next_multiple_of(ALIGN);
        if std::mem::take(&mut may_start_over) && is_short_of(bytes) {
            drop(buf);
            buf = read_some(file, start, wanted.next_multiple_of(ALIGN), device, via).await?;
            continue;
        }
        let more = read_some(file, start + done, bytes, device, via).await?;
        let known = buf.len() - done as usize;
        if more.len() > known {
            buf.append(&more[known..]);
            continue;
        }
        let rest = read_rest(file, start + buf.len() as u64, start + wanted, device, via).await?;
        if rest.is_empty() {
            break;
        }
        buf.append(&rest);
    }
    Ok(buf)
}

/// What follows at `at`, when a read from the block's start has brought nothing new: the file ends here, or the read
/// was cut at the same byte as the one before it, and from that byte on the next one cannot be.
async fn read_rest(file: &File, at: u64, end: u64, device: DeviceId, via: DiskVia) -> Result<Buf, ReadError> {
    match read_some(file, at, end - at, device, via).await {
        // Open for direct reads, which start at blocks alone: then it is taken for the end.
        Err(ReadError::Disk(Errno::INVAL)) => {
            let mut nothing = rt::pool().get(0).ok_or(ReadError::NoMemory)?;
            nothing.set_len(0);
            Ok(nothing)
        }
        read => read,
    }
}

/// How long a read waits in line for a buffer: as long as bodies of files do that stand in the same line, by default
/// (`send_timeout`).
const BUFFER_WAIT_MAX: Duration = Duration::from_secs(60);

/// The part of the pool that is left to requests that come in, the bodies of which are read next.
const SPARED_PART: u64 = 4;

/// Whether a buffer of so many bytes would have to be waited for. Who holds one must not: others would do the same, and
/// wait for each other.
fn is_short_of(bytes: u64) -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < bytes + pool.bytes_max() / SPARED_PART
}

/// An empty buffer of the thread's pool, for so many bytes or what the largest has room for. A stored answer must not be
/// missed because many are being sent at once.
pub(crate) async fn buffer(bytes: u64) -> Result<Buf, ReadError> {
    let bytes = bytes.min(BUF_BYTES_MAX) as usize;
    let spared = rt::pool().bytes_max() / SPARED_PART;
    match rt::select(rt::buffer(bytes, spared), rt::sleep_until(rt::now() + BUFFER_WAIT_MAX)).await {
        Either::Left(mut buf) => {
            buf.set_len(0);
            Ok(buf)
        }
        Either::Right(()) => Err(ReadError::NoMemory),
    }
}

/// Verified bytes: those from `start` to `end` of `buf`.
#[derive(Debug)]
pub struct Piece {
    /// Their owner.
    pub buf: Buf,
    /// Where they start.
    pub start: usize,
    /// Where they end.
    pub end: usize,
}

impl Piece {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }
}

/// Chunks that one read brings: the disk has half as much to do as for one each, and two reads in flight take no more
/// than half a mebibyte.
const RUN_CHUNKS: u64 = 2;

/// Chunks of one read where buffers are short: then there is one in flight at a time.
const LONE_RUN_CHUNKS: u64 = 4;

/// Reads a range of a body, so many runs of chunks at once. Dropped, it takes back what is in flight.
pub struct Reader {
    located: Located,
    range: Range<u64>,
    /// The next chunk to be asked for.
    next: u64,
    window: usize,
    /// Bytes that the client takes now.
    room: u64,
    flights: VecDeque<Flight>,
}

type Reading = Pin<Box<dyn Future<Output = Result<Piece, StoreError>>>>;

enum Flight {
    Reading(Reading),
    Done(Option<Result<Piece, StoreError>>),
}

impl Reader {
    pub(crate) fn new(located: Located, range: Range<u64>, window: usize) -> Reader {
        let end = range.end.min(located.length);
        let range = range.start.min(end)..end;
        let next = range.start / CHUNK_BYTES;
        if !located.file.fd().is_direct() {
            // The window is the read-ahead. The kernel's own would fill the page cache for every reader once more.
            located.file.fd().expect_random_reads();
        }
        Reader { located, range, next, window: window.max(1), room: u64::MAX, flights: VecDeque::new() }
    }

    /// Says how many bytes the client takes now: where buffers are short no more is read, but for a chunk.
    pub fn set_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// Where the run ends that begins with the next chunk: it has no chunk that is not there, unless that is its first
    /// one, so that what is before a hole is answered.
    fn run_end(&self) -> u64 {
        let lone = (self.room / CHUNK_BYTES).clamp(1, LONE_RUN_CHUNKS);
        let most = if self.is_alone() { lone } else { RUN_CHUNKS };
        let last = self.range.end.div_ceil(CHUNK_BYTES).min(self.next + most);
        let is_there =
            |index| self.located.chunks.as_ref().is_none_or(|chunks| chunks.checksum(index).is_some());
        (self.next + 1..last).find(|&index| !is_there(index)).unwrap_or(last.max(self.next + 1))
    }

    /// Whether one read at a time has to do, so that nobody holds one buffer and waits for another.
    fn is_alone(&self) -> bool {
        rt::pool().spare_bytes() <= rt::pool().bytes_max() / 2 || rt::buffers_are_awaited()
    }

    /// The next bytes in order; `None` at the end of the range. Damage drops the entry; nobody may be given what would
    /// have followed.
    pub async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        while self.flights.len() < self.window && self.next * CHUNK_BYTES < self.range.end {
            if self.is_alone() && !self.flights.is_empty() {
                break;
            }
            let run = self.next..self.run_end();
            self.next = run.end;
            let reading = read_run(self.located.clone(), run, self.range.clone());
            self.flights.push_back(Flight::Reading(Box::pin(reading)));
        }
        if self.flights.is_empty() || self.range.is_empty() {
            return Ok(None);
        }
        let piece = poll_fn(|context| {
            for flight in &mut self.flights {
                if let Flight::Reading(reading) = flight
                    && let Poll::Ready(result) = reading.as_mut().poll(context)
                {
                    *flight = Flight::Done(Some(result));
                }
            }
            match self.flights.front_mut() {
                Some(Flight::Done(result)) => Poll::Ready(result.take()),
                _ => Poll::Pending,
            }
        })
        .await;
        self.flights.pop_front();
        piece.transpose()
    }
}

/// Reads a run of chunks, compares each unless that was done, and answers the part of it that lies in the range.
async fn read_run(located: Located, run: Range<u64>, range: Range<u64>) -> Result<Piece, StoreError> {
    let start = run.start * CHUNK_BYTES;
    let wanted = (run.end * CHUNK_BYTES).min(located.length) - start;
    if let Some(chunks) = &located.chunks
        && let Some(absent) = run.clone().find(|&index| chunks.checksum(index).is_none())
    {
        return Err(StoreError::Missing { at: absent * CHUNK_BYTES });
    }
    let buf =
        match read_whole(&located.file, located.offset + start, wanted, located.device, located.via).await {
            Ok(buf) => buf,
            Err(ReadError::Disk(errno)) => return Err(located.store.read_failed("reading an entry", errno)),
            Err(ReadError::NoMemory) => return Err(StoreError::NoMemory),
            Err(ReadError::Damaged(damage)) => return Err(located.damaged(damage)),
        };
    if (buf.len() as u64) < wanted {
        return Err(located.damaged(Damage::Truncated { index: run.start + buf.len() as u64 / CHUNK_BYTES }));
    }
    for (index, bytes) in run.zip(buf[..wanted as usize].chunks(CHUNK_BYTES as usize)) {
        compare(&located, index, bytes)?;
    }
    let from = range.start.saturating_sub(start).min(wanted);
    let to = (range.end - start).min(wanted);
    Ok(Piece { buf, start: from as usize, end: to as usize })
}

/// Compares a chunk with its checksum, unless that was done.
fn compare(located: &Located, index: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let Some(chunks) = located.chunks.as_ref().filter(|chunks| !chunks.is_verified(index)) else {
        return Ok(());
    };
    located.store.counters.verified_chunks.count();
    if chunks.checksum(index) != Some(crc32c::of(bytes)) {
        return Err(located.damaged(Damage::Chunk { index }));
    }
    if chunks.set_verified(index) {
        located.store.index.set_verified(&located.key.0, located.version, chunks.epoch());
    }
    Ok(())
}

/// Reads `wanted` bytes at `at`, in as many reads as it takes; fewer only at the end of the file.
pub(crate) async fn read_whole(
    file: &File,
    at: u64,
    wanted: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    // Whole blocks, so that a file that is open for direct I/O can be read; what is read too much is cut off.
    let buf = read_some(file, at, wanted.next_multiple_of(ALIGN), device, via).await?;
    if buf.len() as u64 >= wanted {
        return Ok(buf);
    }
    // Boxed, as what is seldom come to.
    Box::pin(go_on(file, buf, at, wanted, device, via)).await
}
