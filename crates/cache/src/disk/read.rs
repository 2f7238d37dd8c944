//! Reads of a file in a cache's directory, continued when they end early, into buffers of the thread.

use std::time::Duration;

use io::op::DeviceId;
use io::{Buf, DiskVia, Errno};
use rt::{Either, File};

use crate::format::{ALIGN, Damage};

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

/// As [`read_some`], into a buffer that [`buffer`] has given for this many bytes.
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
    let count = result.map_err(ReadError::Disk)?;
    assert!(u64::from(count) <= bytes, "{count} of {bytes} bytes were read");
    debug_assert!(buf.as_ref().is_none_or(|buf| buf.len() == count as usize));
    buf.ok_or(ReadError::NoMemory)
}

/// Continues to read behind the content of `buf`, which starts at the start of the file, until `end` or the end of the
/// file. A short read is legal anywhere: that of a cache file's head is what made this server.
pub(crate) async fn extend_to(
    file: &File,
    buf: Buf,
    end: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    let mut buf = buf;
    if end > BUF_BYTES_MAX {
        // No header with this many texts is written.
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

/// Continues a read after the bytes in `buf`, which starts at `start` and has room for `wanted` bytes, until it has these
/// or the file ends.
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
        // Where direct reads may start; the bytes from there on are read again.
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

/// Reads at `at`, after a read from the block's start has brought nothing new: either the file ends here, or the read
/// was cut at the same byte as the one before, which a read from that byte on cannot be.
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

/// How long a read waits in line for a buffer: the default of bodies of files that wait in the same queue
/// (`send_timeout`).
const BUFFER_WAIT_MAX: Duration = Duration::from_secs(60);

/// The part of the pool that is left to requests that come in, the bodies of which are read next.
const SPARED_PART: u64 = 4;

/// Whether a buffer of this many bytes is not available at once. A holder of a buffer must not wait for another: two
/// such holders would wait for each other.
fn is_short_of(bytes: u64) -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < bytes + pool.bytes_max() / SPARED_PART
}

/// An empty buffer of the thread's pool, for this many bytes or for the largest class. A stored response must not be
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

/// Reads `wanted` bytes at `at`, in as many reads as it takes; fewer only at the end of the file.
pub(crate) async fn read_whole(
    file: &File,
    at: u64,
    wanted: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Buf, ReadError> {
    // Whole blocks, so that a file that is open for direct I/O can be read; the excess is cut off.
    let buf = read_some(file, at, wanted.next_multiple_of(ALIGN), device, via).await?;
    if buf.len() as u64 >= wanted {
        return Ok(buf);
    }
    // Boxed, because it is rare.
    Box::pin(go_on(file, buf, at, wanted, device, via)).await
}

/// The bytes of a file between these offsets, as far as it has them.
pub(crate) async fn read_all(
    file: &File,
    from: u64,
    to: u64,
    device: DeviceId,
    via: DiskVia,
) -> Result<Vec<u8>, ReadError> {
    let mut all = Vec::new();
    while from + (all.len() as u64) < to {
        let at = from + all.len() as u64;
        let part = read_some(file, at, to - at, device, via).await?;
        if part.is_empty() {
            break;
        }
        all.extend_from_slice(&part);
    }
    assert!(all.len() as u64 <= to.saturating_sub(from), "no more than was asked for");
    Ok(all)
}
