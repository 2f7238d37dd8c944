//! The verifying [`Reader`] of a body: runs of chunks, some in flight, each compared with its checksum.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use io::Buf;

use crate::disk::read::{ReadError, read_whole};
use crate::error::StoreError;
use crate::format::crc32c;
use crate::format::{CHUNK_BYTES, Damage};
use crate::lookup::hit::Located;

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

/// Reads a range of a body with several runs of chunks in flight. Dropped, it abandons them.
pub struct Reader {
    located: Located,
    range: Range<u64>,
    /// The next chunk to read.
    next: u64,
    window: usize,
    /// Bytes that the client takes now.
    room: u64,
    reads: VecDeque<ChunkRead>,
}

type Reading = Pin<Box<dyn Future<Output = Result<Piece, StoreError>>>>;

enum ChunkRead {
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
        Reader { located, range, next, window: window.max(1), room: u64::MAX, reads: VecDeque::new() }
    }

    /// Sets how many bytes the client takes now: where buffers are short no more is read, but for a chunk.
    pub fn set_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// The end of the run that begins with the next chunk. It has no missing chunk, unless that is its first one, so
    /// that bytes before a hole are returned.
    fn run_end(&self) -> u64 {
        let lone = (self.room / CHUNK_BYTES).clamp(1, LONE_RUN_CHUNKS);
        let most = if self.is_alone() { lone } else { RUN_CHUNKS };
        let last = self.range.end.div_ceil(CHUNK_BYTES).min(self.next + most);
        let is_there =
            |index| self.located.chunks.as_ref().is_none_or(|chunks| chunks.checksum(index).is_some());
        (self.next + 1..last).find(|&index| !is_there(index)).unwrap_or(last.max(self.next + 1))
    }

    /// Whether reads are made one at a time, so that no reader holds one buffer and waits for another.
    fn is_alone(&self) -> bool {
        rt::pool().spare_bytes() <= rt::pool().bytes_max() / 2 || rt::buffers_are_awaited()
    }

    /// The next bytes in order; `None` at the end of the range. Damage removes the entry; the bytes after it are not
    /// returned to any reader.
    pub async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        while self.reads.len() < self.window && self.next * CHUNK_BYTES < self.range.end {
            if self.is_alone() && !self.reads.is_empty() {
                break;
            }
            let run = self.next..self.run_end();
            debug_assert!(run.start < run.end, "a run has a chunk");
            self.next = run.end;
            let reading = read_run(self.located.clone(), run, self.range.clone());
            self.reads.push_back(ChunkRead::Reading(Box::pin(reading)));
        }
        if self.reads.is_empty() || self.range.is_empty() {
            return Ok(None);
        }
        let piece = poll_fn(|context| {
            for read in &mut self.reads {
                if let ChunkRead::Reading(reading) = read
                    && let Poll::Ready(result) = reading.as_mut().poll(context)
                {
                    *read = ChunkRead::Done(Some(result));
                }
            }
            match self.reads.front_mut() {
                Some(ChunkRead::Done(result)) => Poll::Ready(result.take()),
                _ => Poll::Pending,
            }
        })
        .await;
        self.reads.pop_front();
        piece.transpose()
    }
}

/// Reads a run of chunks, compares each unless that was done, and returns the part of it that lies in the range.
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
            Err(ReadError::Disk(errno)) => {
                return Err(located.entries.dir.read_failed("reading an entry", errno));
            }
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
    assert!(from <= to && to <= buf.len() as u64, "a piece lies within the bytes that were read");
    Ok(Piece { buf, start: from as usize, end: to as usize })
}

/// Compares a chunk with its checksum, unless that was done.
fn compare(located: &Located, index: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let Some(chunks) = located.chunks.as_ref().filter(|chunks| !chunks.is_verified(index)) else {
        return Ok(());
    };
    located.entries.counters.verified_chunks.count();
    if chunks.checksum(index) != Some(crc32c::of(bytes)) {
        return Err(located.damaged(Damage::Chunk { index }));
    }
    if chunks.set_verified(index) {
        located.entries.index.set_verified(&located.key.0, located.version, chunks.epoch());
    }
    Ok(())
}
