//! The verifying [`Reader`] of a body: reads runs of chunks, several in flight, and verifies each chunk.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use io::Buf;

use crate::disk::directory::{DiskFile, ReadError};
use crate::error::StoreError;
use crate::format::{CHUNK_BYTES, Damage, crc32c};
use crate::lookup::Located;

/// Verified bytes: the range from `start` to `end` of `buf`.
#[derive(Debug)]
pub struct Piece {
    /// The buffer.
    pub buf: Buf,
    /// Offset of the first byte.
    pub start: usize,
    /// Offset behind the last byte.
    pub end: usize,
}

impl Piece {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }
}

/// Number of chunks per read: half as many disk operations as with single chunks, and two reads in flight need at most
/// half a mebibyte.
const RUN_CHUNKS: u64 = 2;

/// Maximum number of chunks per read when buffers are scarce; only one read is in flight then.
const LONE_RUN_CHUNKS: u64 = 4;

/// Reads a range of a body with several reads in flight. Dropping it abandons them.
pub struct Reader {
    located: Located,
    range: Range<u64>,
    /// Index of the next chunk to read.
    next: u64,
    window: usize,
    /// Number of bytes that the client can receive now.
    client_space: u64,
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
            // The reads in flight act as readahead. The kernel's own readahead would fill the page cache again for
            // every reader.
            located.file.fd().expect_random_reads();
        }
        Reader { located, range, next, window: window.max(1), client_space: u64::MAX, reads: VecDeque::new() }
    }

    /// Sets the number of bytes that the client can receive now. When buffers are scarce, this limits each read, except
    /// that at least one chunk is read.
    pub fn set_client_space(&mut self, bytes: u64) {
        self.client_space = bytes;
    }

    /// Returns the end of the run that begins with the next chunk. Only its first chunk may be missing, so that bytes
    /// before a hole are returned.
    fn run_end(&self) -> u64 {
        let lone = (self.client_space / CHUNK_BYTES).clamp(1, LONE_RUN_CHUNKS);
        let chunks_max = if self.is_alone() { lone } else { RUN_CHUNKS };
        let last = self.range.end.div_ceil(CHUNK_BYTES).min(self.next + chunks_max);
        let is_there =
            |index| self.located.chunks.as_ref().is_none_or(|chunks| chunks.checksum(index).is_some());
        (self.next + 1..last).find(|&index| !is_there(index)).unwrap_or(last.max(self.next + 1))
    }

    /// Whether only one read is in flight at a time, so that no reader holds one buffer while it waits for another.
    fn is_alone(&self) -> bool {
        rt::pool().spare_bytes() <= rt::pool().bytes_max() / 2 || rt::buffers_are_awaited()
    }

    /// Returns the next bytes in order; `None` at the end of the range. Damage removes the entry; the bytes after it
    /// are not returned to any reader.
    pub async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        while self.reads.len() < self.window && self.next * CHUNK_BYTES < self.range.end {
            if self.is_alone() && !self.reads.is_empty() {
                break;
            }
            let run = self.next..self.run_end();
            debug_assert!(run.start < run.end, "a run has at least one chunk");
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

/// Reads a run of chunks, verifies those not verified yet, and returns the bytes that are in `range`.
async fn read_run(located: Located, run: Range<u64>, range: Range<u64>) -> Result<Piece, StoreError> {
    let start = run.start * CHUNK_BYTES;
    let wanted = (run.end * CHUNK_BYTES).min(located.length) - start;
    if let Some(chunks) = &located.chunks
        && let Some(absent) = run.clone().find(|&index| chunks.checksum(index).is_none())
    {
        return Err(StoreError::Missing { at: absent * CHUNK_BYTES });
    }
    let file = DiskFile { file: &located.file, disk: located.disk };
    let buf = match file.read_full(located.offset + start, wanted).await {
        Ok(buf) => buf,
        Err(ReadError::Disk(errno)) => {
            return Err(located.entries.dir.read_failed("reading an entry", errno));
        }
        Err(ReadError::NoMemory) => return Err(StoreError::NoMemory),
        Err(ReadError::Damaged(damage)) => return Err(located.damaged(damage)),
    };
    located.entries.dir.counts.read_bytes.add(buf.len() as u64);
    if (buf.len() as u64) < wanted {
        return Err(located.damaged(Damage::Truncated { index: run.start + buf.len() as u64 / CHUNK_BYTES }));
    }
    for (index, bytes) in run.zip(buf[..wanted as usize].chunks(CHUNK_BYTES as usize)) {
        compare(&located, index, bytes)?;
    }
    let from = range.start.saturating_sub(start).min(wanted);
    let to = (range.end - start).min(wanted);
    assert!(from <= to && to <= buf.len() as u64, "a piece is within the bytes that were read");
    Ok(Piece { buf, start: from as usize, end: to as usize })
}

/// Verifies a chunk, unless that was done.
fn compare(located: &Located, index: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let Some(chunks) = located.chunks.as_ref().filter(|chunks| !chunks.is_verified(index)) else {
        return Ok(());
    };
    located.entries.counters.verified_chunks.count();
    if chunks.checksum(index) != Some(crc32c(bytes)) {
        return Err(located.damaged(Damage::Chunk { index }));
    }
    if chunks.set_verified(index) {
        located.entries.index.set_verified(&located.key.0, located.version, chunks.epoch());
    }
    Ok(())
}
