//! Chunks of shared memory, as a target of reads and a source for `sendfile`.
//!
//! sendfile(2) from a file in memory queues references to its pages: later writes to the chunk would change bytes that
//! were "sent" already. Neither an empty send queue nor an acknowledgement proves that the pages are unused (on
//! loopback they are in the peer's receive queue). So pages are used once: [`take`] returns fresh pages each time. A
//! returned chunk is emptied by punching a hole over all of it (fallocate(2)). The sockets that still refer to the old
//! pages keep them. The file and the mapping are reused.
//!
//! Chunks belong to their thread. Nothing here submits I/O.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::buf::{Buf, CHUNK_BYTES, Mapping};
use crate::fd::Fd;

/// Size in bytes of a chunk that is recycled; larger chunks are allocated as needed and freed. The largest buffer of a
/// pool has this size, and so have the chunk sizes of `aio_sendfile`.
pub const RECYCLED_BYTES: usize = CHUNK_BYTES;

/// Maximum number of chunks that a thread keeps for reuse. An idle chunk occupies no pages, but a descriptor and 1 MiB
/// of address space. A thread can use two chunks for each of a few dozen concurrent downloads.
pub const CACHED_MAX: usize = 64;

/// A chunk with fresh pages. Dropping the buffer returns the chunk. The descriptor may outlive the buffer; the chunk is
/// reused only when the descriptor has no other owner.
#[derive(Debug)]
pub struct Shared {
    /// The file to send from. Its first byte is the first byte of `buf`.
    pub file: Fd,
    /// The same pages as memory, page-aligned; the target of any kind of read.
    pub buf: Buf,
}

/// Returns a chunk with at least `bytes` of fresh pages, which read as zeroes.
///
/// # Errors
/// When the system has no descriptor or no memory.
pub fn take(bytes: usize) -> Result<Shared, Errno> {
    let recycled = if bytes <= RECYCLED_BYTES { recycle() } else { None };
    let chunk = match recycled {
        Some(chunk) => chunk,
        None => Box::new(ShmChunk::new(bytes.max(RECYCLED_BYTES))?),
    };
    assert!(chunk.fresh && chunk.mapping.bytes() >= bytes, "a chunk has fresh pages for all bytes");
    Ok(Shared { file: chunk.file.clone(), buf: Buf::of_shared(chunk) })
}

/// Frees all chunks that wait for reuse; returns their number.
pub fn trim() -> usize {
    CACHED.with_borrow_mut(|cached| cached.drain(..).count())
}

thread_local! {
    /// Chunks that wait for reuse; last in, first out. Boxed as in buffers, so that reusing a chunk needs no allocation.
    #[allow(clippy::vec_box, reason = "the boxes come from buffers and go back into them")]
    static CACHED: RefCell<Vec<Box<ShmChunk>>> = const { RefCell::new(Vec::new()) };
}

/// A file in memory and its mapping.
pub(crate) struct ShmChunk {
    file: Fd,
    mapping: Mapping,
    /// Whether all its pages are fresh.
    fresh: bool,
}

impl ShmChunk {
    fn new(bytes: usize) -> Result<ShmChunk, Errno> {
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        if u32::try_from(bytes).is_err() {
            return Err(Errno::INVAL);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // A system may require files that cannot be executed (`vm.memfd_noexec`); kernels before 6.3 do not support the
        // flag.
        let file = match rustix::fs::memfd_create("ringroad-chunk", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("ringroad-chunk", flags)?,
            answer => answer?,
        };
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // The mapping stays valid as long as the length of the file does not change.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_file(file.as_fd(), bytes)?;
        // A hole does not release a huge page that extends beyond the end of the chunk, but zeroes it, including pages
        // that sockets refer to. EINVAL if the kernel has no huge pages.
        let _ = mapping.keep_pages_small();
        Ok(ShmChunk { file: file.into(), mapping, fresh: true })
    }

    /// Returns the mapping, which covers the complete file.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Releases the pages, unless a send may still have to read bytes from them.
    fn punch(&mut self) {
        if self.fresh || !self.file.is_sole() {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fresh = rustix::fs::fallocate(&self.file, hole, 0, self.mapping.bytes() as u64).is_ok();
    }
}

fn recycle() -> Option<Box<ShmChunk>> {
    CACHED.with_borrow_mut(|cached| {
        let index = cached.iter().rposition(|chunk| chunk.file.is_sole())?;
        let mut chunk = cached.remove(index);
        assert_eq!(chunk.mapping.bytes(), RECYCLED_BYTES, "chunks of one size are kept");
        chunk.punch();
        // A chunk that cannot be emptied is freed.
        chunk.fresh.then_some(chunk)
    })
}

/// Takes back a chunk whose buffer was dropped.
pub(crate) fn put_back(mut chunk: Box<ShmChunk>) {
    if chunk.mapping.bytes() != RECYCLED_BYTES {
        return;
    }
    chunk.fresh = false;
    // A buffer may be dropped when the thread exits, after the list was destroyed.
    let _ = CACHED.try_with(|cached| {
        let mut cached = cached.borrow_mut();
        if cached.len() < CACHED_MAX {
            chunk.punch();
            cached.push(chunk);
        }
    });
}

#[cfg(test)]
mod tests;
