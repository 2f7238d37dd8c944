//! Reads of files in a cache's directory, continued after short reads, into buffers of the thread.

use std::time::Duration;

use io::op::DeviceId;
use io::{Buf, DiskVia, Errno};
use rt::{Either, File};

use crate::format::{ALIGN, Damage};

/// The reason why a file could not be read as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Disk(Errno),
    NoMemory,
    Damaged(Damage),
}

/// Size of the largest buffer in bytes.
const BUF_BYTES_MAX: u64 = 1 << 20;

/// A file, and the backend of its reads.
#[derive(Clone, Copy)]
pub(crate) struct DiskFile<'a> {
    pub(crate) file: &'a File,
    pub(crate) device: DeviceId,
    pub(crate) via: DiskVia,
}

impl DiskFile<'_> {
    /// Reads up to `bytes` at `at` in one read; the buffer is empty at the end of the file.
    pub(crate) async fn read_some(self, at: u64, bytes: u64) -> Result<Buf, ReadError> {
        self.read_into(buffer(bytes).await?, at, bytes).await
    }

    /// As [`DiskFile::read_some`], into a buffer that [`buffer`] has returned for this many bytes.
    pub(crate) async fn read_into(self, buf: Buf, at: u64, bytes: u64) -> Result<Buf, ReadError> {
        let bytes = bytes.min(BUF_BYTES_MAX);
        let (result, buf) = self.file.read_at(at, bytes as u32, buf, self.device, self.via).await;
        let count = result.map_err(ReadError::Disk)?;
        assert!(u64::from(count) <= bytes, "{count} of {bytes} bytes were read");
        debug_assert!(buf.as_ref().is_none_or(|buf| buf.len() == count as usize));
        buf.ok_or(ReadError::NoMemory)
    }

    /// Reads on behind the content of `buf`, which begins at the start of the file, until `end` or the end of the file.
    /// The kernel may return fewer bytes than requested at any offset.
    pub(crate) async fn extend_to(self, buf: Buf, end: u64) -> Result<Buf, ReadError> {
        let mut buf = buf;
        if end > BUF_BYTES_MAX {
            // A header of this size is never written.
            return Err(ReadError::Damaged(Damage::Layout));
        }
        if (buf.capacity() as u64) < end && lacks_buffer(end) {
            drop(buf);
            buf = self.read_some(0, end.next_multiple_of(ALIGN)).await?;
        }
        if (buf.capacity() as u64) < end {
            let mut larger = buffer(end).await?;
            larger.append(&buf);
            buf = larger;
        }
        self.continue_read(buf, 0, end).await
    }

    /// Continues a read that started at `start`, until `buf` has `wanted` bytes or the file ends. `buf` has the bytes
    /// read so far, and room for `wanted` bytes.
    async fn continue_read(self, buf: Buf, start: u64, wanted: u64) -> Result<Buf, ReadError> {
        let mut buf = buf;
        let mut may_start_over = true;
        while (buf.len() as u64) < wanted {
            // A direct read must start at a multiple of the block size, so the bytes of an incomplete block are read
            // again.
            let done = buf.len() as u64 / ALIGN * ALIGN;
            let bytes = (wanted - done).next_multiple_of(ALIGN);
            if std::mem::take(&mut may_start_over) && lacks_buffer(bytes) {
                drop(buf);
                buf = self.read_some(start, wanted.next_multiple_of(ALIGN)).await?;
                continue;
            }
            let more = self.read_some(start + done, bytes).await?;
            let known = buf.len() - done as usize;
            if more.len() > known {
                buf.append(&more[known..]);
                continue;
            }
            let rest = self.read_rest(start + buf.len() as u64, start + wanted).await?;
            if rest.is_empty() {
                break;
            }
            buf.append(&rest);
        }
        Ok(buf)
    }

    /// Reads at `at`, after a read from the start of the block has returned no new bytes. Either the file ends at `at`,
    /// or both earlier reads were short at this byte. A read that starts at `at` distinguishes the two.
    async fn read_rest(self, at: u64, end: u64) -> Result<Buf, ReadError> {
        match self.read_some(at, end - at).await {
            // A direct read cannot start at this offset: then this is treated as the end.
            Err(ReadError::Disk(Errno::INVAL)) => {
                let mut nothing = rt::pool().get(0).ok_or(ReadError::NoMemory)?;
                nothing.set_len(0);
                Ok(nothing)
            }
            read => read,
        }
    }

    /// Reads `wanted` bytes at `at`, in as many reads as necessary; returns fewer only at the end of the file.
    pub(crate) async fn read_full(self, at: u64, wanted: u64) -> Result<Buf, ReadError> {
        // Reads complete blocks, so that a file open for direct I/O can be read; the excess is removed.
        let buf = self.read_some(at, wanted.next_multiple_of(ALIGN)).await?;
        if buf.len() as u64 >= wanted {
            return Ok(buf);
        }
        // Boxed, because this call is rare and its future is large.
        Box::pin(self.continue_read(buf, at, wanted)).await
    }

    /// Reads the bytes between these offsets, up to the end of the file.
    pub(crate) async fn read_all(self, from: u64, to: u64) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while from + (all.len() as u64) < to {
            let at = from + all.len() as u64;
            let part = self.read_some(at, to - at).await?;
            if part.is_empty() {
                break;
            }
            all.extend_from_slice(&part);
        }
        assert!(all.len() as u64 <= to.saturating_sub(from), "no more than requested");
        Ok(all)
    }
}

/// Time limit for waiting for a buffer: the default (`send_timeout`) of file bodies, which wait in the same queue.
const BUFFER_WAIT_MAX: Duration = Duration::from_secs(60);

/// Divisor of the pool's size for the part that is reserved for receiving requests and their bodies.
const SPARED_DIVISOR: u64 = 4;

/// Whether a buffer of this size is not available immediately. A task that has a buffer must not wait for another
/// buffer: two such tasks could wait for each other.
fn lacks_buffer(bytes: u64) -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < bytes + pool.bytes_max() / SPARED_DIVISOR
}

/// Returns an empty buffer of the thread's pool, for this many bytes but at most of the largest class. Waits if
/// necessary: a stored response must not become a miss because many responses are being sent.
pub(crate) async fn buffer(bytes: u64) -> Result<Buf, ReadError> {
    let bytes = bytes.min(BUF_BYTES_MAX) as usize;
    let spared = rt::pool().bytes_max() / SPARED_DIVISOR;
    match rt::select(rt::buffer(bytes, spared), rt::sleep_until(rt::now() + BUFFER_WAIT_MAX)).await {
        Either::Left(mut buf) => {
            buf.set_len(0);
            Ok(buf)
        }
        Either::Right(()) => Err(ReadError::NoMemory),
    }
}
