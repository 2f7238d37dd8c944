//! Reads into a buffer and sends the buffer; the next chunk is read while one is sent, except to an outlet that
//! copies.

use std::ops::Range;

use io::segments::Source;
use io::{Buf, DiskVia, Errno, Segments};

use crate::body::outlet::{Outlet, SendError};
use crate::body::{BodyError, FileBody, buffer_turns};

/// Size in bytes of the first chunk of a large file, so that it is sent early.
const FIRST_CHUNK: u64 = 128 << 10;

/// Default size in bytes of further chunks. Two are in memory for each connection.
const CHUNK: u64 = 512 << 10;

/// Alignment of direct reads in bytes: suits every disk with sectors of 512 or 4096 bytes.
pub const DIRECT_ALIGNMENT: u64 = 4096;

/// Sends a range of the file.
pub async fn send(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    range: Range<u64>,
    last: bool,
) -> Result<(), BodyError> {
    let mut chunks = Chunks::new(range, outlet.chunk_bytes().unwrap_or(CHUNK), body.direct);
    let Some(chunk) = next(outlet, &mut chunks, buffer_turns::are_on()).await? else { return Ok(()) };
    let buf = read_chunk(body, via, &chunk).await?;
    if chunk.end == chunks.end {
        push(outlet, &chunk, buf);
        return if last { outlet.flush(false).await.map_err(BodyError::from) } else { Ok(()) };
    }
    // Boxed, so that only bodies of several chunks need memory for this state, not every connection.
    Box::pin(stream(outlet, body, via, chunks, chunk, buf)).await
}

/// Sends a chunk while the next one is read, up to the end of the range; while bodies take turns, and to an outlet that
/// copies, strictly one after the other.
async fn stream(
    outlet: &mut dyn Outlet,
    body: &FileBody,
    via: DiskVia,
    mut chunks: Chunks,
    mut chunk: Chunk,
    mut buf: Buf,
) -> Result<(), BodyError> {
    loop {
        push(outlet, &chunk, buf);
        if chunks.left() == 0 {
            return Ok(outlet.flush(false).await?);
        }
        if buffer_turns::are_on() {
            // Neither this server nor the kernel may hold bytes back while the body waits for a buffer.
            outlet.flush(false).await?;
            let Some(next) = next(outlet, &mut chunks, true).await? else { return Ok(()) };
            buf = read_chunk(body, via, &next).await?;
            chunk = next;
            continue;
        }
        let Some(next) = chunks.next() else { return Ok(outlet.flush(false).await?) };
        if outlet.copies() {
            outlet.flush(true).await?;
            buf = read_chunk(body, via, &next).await?;
        } else {
            // A slow client holds one chunk being sent and one chunk already read.
            let (sent, read) = rt::join(outlet.flush(true), read_chunk(body, via, &next)).await;
            sent?;
            buf = read?;
        }
        chunk = next;
    }
}

/// Returns the next chunk to read. While bodies take turns, waits for the client and limits the chunk to the bytes that
/// it accepts.
pub async fn next(
    outlet: &mut dyn Outlet,
    chunks: &mut Chunks,
    in_turns: bool,
) -> Result<Option<Chunk>, SendError> {
    if chunks.left() == 0 || !in_turns {
        return Ok(chunks.next());
    }
    // Earlier bytes are sent first, because a body that waits for a buffer must not hold one.
    outlet.release_buffers().await?;
    let left = chunks.left();
    let bytes_max = buffer_turns::wait(outlet, left.min(chunks.chunk)).await?;
    // The unaligned tail of a direct file is read together with its last aligned block.
    let bytes_max = if bytes_max == left { buffer_turns::TURN_BYTES } else { bytes_max };
    chunks.first = false;
    Ok(chunks.next_of(bytes_max))
}

fn push(outlet: &mut dyn Outlet, chunk: &Chunk, buf: Buf) {
    let start = chunk.skip as usize;
    outlet.push_range(Source::Buf(buf), start, start + chunk.requested() as usize);
}

/// One read: the requested bytes of the file, and the surrounding aligned bytes that are read with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the read in the file.
    pub offset: u64,
    /// Maximum number of bytes to read.
    pub len: u64,
    /// Number of bytes at the start that are not requested.
    pub skip: u64,
    /// Offset in the file at which the requested bytes end.
    pub end: u64,
    /// Whether the file is read with O_DIRECT, at aligned offsets only.
    pub direct: bool,
}

impl Chunk {
    /// Returns the number of requested bytes.
    pub fn requested(&self) -> u64 {
        debug_assert!(self.offset + self.skip <= self.end, "a chunk ends behind its start");
        self.end - self.offset - self.skip
    }
}

/// Splits a range into chunks; direct chunks start and end at the alignment. The unaligned tail of a direct file is
/// read with its last aligned block, because the kernel returns a short read at the end of the file.
#[derive(Debug)]
pub struct Chunks {
    position: u64,
    end: u64,
    chunk: u64,
    first: bool,
    direct: bool,
}

impl Chunks {
    /// Returns the chunks of a range of a file.
    pub fn new(range: Range<u64>, chunk: u64, direct: bool) -> Chunks {
        let chunk = if direct { chunk.next_multiple_of(DIRECT_ALIGNMENT) } else { chunk };
        Chunks { position: range.start, end: range.end, chunk, first: true, direct }
    }

    /// Returns the number of bytes that are not in any chunk yet.
    fn left(&self) -> u64 {
        debug_assert!(self.position <= self.end, "the position is in the range");
        self.end - self.position
    }

    /// Returns the next chunk, of at most this many bytes, or of one aligned block.
    fn next_of(&mut self, bytes_max: u64) -> Option<Chunk> {
        if self.position == self.end {
            return None;
        }
        let size = if std::mem::take(&mut self.first) { self.chunk.min(FIRST_CHUNK) } else { self.chunk };
        let size = match size.min(bytes_max) {
            size if self.direct => (size / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT).max(DIRECT_ALIGNMENT),
            size => size,
        };
        let skip = if self.direct { self.position % DIRECT_ALIGNMENT } else { 0 };
        let offset = self.position - skip;
        let end = self.end.min(offset + size);
        let len = if self.direct { (end - offset).next_multiple_of(DIRECT_ALIGNMENT) } else { end - offset };
        debug_assert!(offset <= self.position && self.position <= end, "a chunk is part of the range");
        self.position = end;
        Some(Chunk { offset, len, skip, end, direct: self.direct })
    }
}

impl Iterator for Chunks {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        self.next_of(self.chunk)
    }
}

/// Reads all requested bytes of a chunk. A short read is continued where it stopped. Fails if the file ends earlier or
/// the disk fails.
pub async fn read_chunk(body: &FileBody, via: DiskVia, chunk: &Chunk) -> Result<Buf, BodyError> {
    let buf = buffer_turns::buffer(body, chunk.len).await?;
    fill(body, via, chunk, buf).await
}

/// As [`read_chunk`], but reads into this buffer.
pub async fn fill(body: &FileBody, via: DiskVia, chunk: &Chunk, mut buf: Buf) -> Result<Buf, BodyError> {
    let needed = chunk.end - chunk.offset;
    if resident(body, via, chunk, &mut buf) >= needed {
        buf.set_len(needed as usize);
        return Ok(buf);
    }
    // The resident bytes are read again with the missing ones, because continuing after them would need a second
    // buffer.
    buf.set_len(0);
    from_disk(body, via, chunk, buf).await
}

/// As [`fill`], for bytes that are not resident.
pub async fn from_disk(body: &FileBody, via: DiskVia, chunk: &Chunk, buf: Buf) -> Result<Buf, BodyError> {
    let needed = chunk.end - chunk.offset;
    let (result, returned) = body.file.read_at(chunk.offset, chunk.len as u32, buf, body.disk(via)).await;
    let mut buf = returned.ok_or(BodyError::NoMemory)?;
    match result {
        Ok(count) if u64::from(count) >= needed => {
            buf.set_len(needed as usize);
            Ok(buf)
        }
        // Boxed: short reads are rare.
        Ok(count) => Box::pin(read_on(body, via, chunk, count.into(), buf)).await,
        Err(errno) => Err(BodyError::Read(errno)),
    }
}

/// Reads the remaining bytes of a chunk after its first `have` bytes.
async fn read_on(
    body: &FileBody,
    via: DiskVia,
    chunk: &Chunk,
    have: u64,
    buf: Buf,
) -> Result<Buf, BodyError> {
    let needed = chunk.end - chunk.offset;
    let (mut have, mut buf, mut last) = (have, buf, have);
    while last > 0 {
        if have >= needed {
            buf.set_len(needed as usize);
            return Ok(buf);
        }
        let (result, returned) = read_once(body, via, chunk, have, buf).await;
        buf = returned.ok_or(BodyError::NoMemory)?;
        last = result.map_err(BodyError::Read)?.into();
        have += last;
    }
    Err(BodyError::Shrunk { at: chunk.offset + have })
}

/// Reads the resident part of a buffered chunk with a direct system call. A successful call costs less than half of an
/// operation with its completion. `aio off` skips this attempt, and direct reads use no page cache.
fn resident(body: &FileBody, via: DiskVia, chunk: &Chunk, buf: &mut Buf) -> u64 {
    if body.direct || via == DiskVia::Sync {
        return 0;
    }
    body.read_resident(chunk.offset, chunk.len as u32, buf).into()
}

/// Returns the header section and the content of a small resident file. The header section is moved out of `head` if it
/// is a separate segment; otherwise it is copied.
pub fn try_read(body: &FileBody, head: &mut Vec<u8>, range: Range<u64>) -> Option<Segments> {
    let len = range.end - range.start;
    if len > TRY_READ_MAX {
        return None;
    }
    let is_long = len >= SHARED_FROM;
    let mut data = Segments::new();
    if is_long && let Some(bytes) = body.shared_of_turn(range.start, len as u32) {
        if bytes.len() as u64 != len {
            return None;
        }
        data.push(Source::Vec(std::mem::take(head)));
        data.push(Source::SharedBytes(bytes));
        return Some(data);
    }
    let mut buf = rt::try_buffer(head.len() + len as usize)?;
    buf.append(head);
    let read = match is_long {
        true => body.read_resident(range.start, len as u32, &mut buf),
        false => body.read_of_turn(range.start, len as u32, &mut buf),
    };
    data.push(Source::Buf(buf));
    (u64::from(read) == len).then_some(data)
}

/// Length in bytes from which a body is sent from memory that another request has read. For shorter bodies a copy after
/// the header section costs less than a second segment.
const SHARED_FROM: u64 = 16 << 10;

/// Returns the single read of a short range, with a buffer, if one is free.
pub fn in_one(body: &FileBody, range: Range<u64>, chunk_max: Option<u64>) -> Option<(Chunk, Buf)> {
    let mut chunks = Chunks::new(range, chunk_max.unwrap_or(CHUNK), body.direct);
    let chunk = chunks.next().filter(|chunk| chunk.end == chunks.end)?;
    let buf = rt::try_buffer(chunk.len as usize)?;
    Some((chunk, buf))
}

/// Maximum number of bytes of a file that are read in one call and sent with the header section. The copy takes some
/// microseconds. Both fit into a buffer of 64 KiB, the largest class of which every thread has many buffers.
pub const TRY_READ_MAX: u64 = 60 << 10;

/// Continues after the first `have` bytes. The engine reads to the start of a buffer, so the remaining bytes use a
/// second buffer; short reads are rare enough for the copy.
async fn read_once(
    body: &FileBody,
    via: DiskVia,
    chunk: &Chunk,
    have: u64,
    mut buf: Buf,
) -> (Result<u32, Errno>, Option<Buf>) {
    // A direct read continues at an aligned offset, so the bytes after that offset are read again.
    let start = if chunk.direct { have - have % DIRECT_ALIGNMENT } else { have };
    let Some(rest) = rt::pool().get((chunk.len - start) as usize) else {
        return start_over(body, via, chunk, have, buf).await;
    };
    let len = (chunk.len - start) as u32;
    let (result, rest) = body.file.read_at(chunk.offset + start, len, rest, body.disk(via)).await;
    let (Ok(count), Some(rest)) = (result, rest) else { return (result.and(Err(Errno::NOMEM)), Some(buf)) };
    buf.set_len(start as usize);
    debug_assert!(u64::from(count) <= u64::from(len), "a read returns at most the requested bytes");
    buf.append(&rest[..count as usize]);
    let new = (start + u64::from(count)).saturating_sub(have);
    (Ok(new as u32), Some(buf))
}

/// Reads the complete chunk again if no second buffer is free: a task that holds a buffer must not wait for another.
async fn start_over(
    body: &FileBody,
    via: DiskVia,
    chunk: &Chunk,
    have: u64,
    mut buf: Buf,
) -> (Result<u32, Errno>, Option<Buf>) {
    buf.set_len(0);
    let (result, buf) = body.file.read_at(chunk.offset, chunk.len as u32, buf, body.disk(via)).await;
    let new = result.and_then(|count| match u64::from(count).saturating_sub(have) {
        // If the read always stopped at the same byte, the retries would never end.
        0 => Err(Errno::NOMEM),
        new => Ok(new as u32),
    });
    (new, buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte of a range belongs to exactly one chunk, in order, at every boundary.
    #[test]
    fn chunks_cover_the_range_once() {
        let mega = 1 << 20;
        let points = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, mega, mega + 1, 3 * mega + 7];
        for (&start, &end) in
            points.iter().flat_map(|a| points.iter().map(move |b| (a, b))).filter(|(a, b)| a <= b)
        {
            for (chunk_bytes, direct) in
                [(CHUNK, true), (CHUNK, false), (4096, true), (1000, true), (1000, false)]
            {
                let mut position = start;
                for chunk in Chunks::new(start..end, chunk_bytes, direct) {
                    assert_eq!(chunk.offset + chunk.skip, position);
                    assert!(chunk.requested() > 0 && chunk.len >= chunk.skip + chunk.requested());
                    assert!(!direct || (chunk.offset % 4096 == 0 && chunk.len % 4096 == 0), "{chunk:?}");
                    position = chunk.end;
                }
                assert_eq!(position, end);
            }
        }
    }
}
