//! Chunks of shared memory to read into and to `sendfile` from.
//!
//! sendfile(2) from a file in memory queues references to its pages: later writes to the chunk change bytes that were
//! "sent" already. Neither an empty send queue nor an acknowledgement proves that the pages are free (on loopback they
//! sit in the peer's receive queue). So pages are used once: [`take`] gives fresh ones each time. A chunk that comes
//! back has a hole punched over all of it (fallocate(2)), which leaves the old pages to the sockets that still refer to
//! them; file and mapping are used again.
//!
//! Chunks belong to their thread. Nothing here submits I/O.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::buf::{Buf, CHUNK_BYTES, Mapping};
use crate::op::Fd;

/// Bytes of a chunk that is used again; longer ones are made to measure and given up. The largest buffer of
/// a pool has as many, and so have the chunk sizes of `aio_sendfile`.
pub const RECYCLED_BYTES: usize = CHUNK_BYTES;

/// Chunks that a thread keeps for later. An idle one holds no pages but a descriptor and 1 MiB of addresses; a thread
/// can keep two for each of a few dozen concurrent downloads busy.
pub const KEPT_MAX: usize = 64;

/// A fresh chunk. Dropping the buffer gives the chunk back; the descriptor may outlive it, and the chunk is reused only
/// when the descriptor has no other owner.
#[derive(Debug)]
pub struct Shared {
    /// The file to send from. Its first byte is the first byte of `buf`.
    pub file: Fd,
    /// The same pages as memory, page-aligned; the target of reads of any kind.
    pub buf: Buf,
}

/// Statistics of the chunks of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Chunks handed out.
    pub taken: u64,
    /// Those of them that had to be made.
    pub made: u64,
    /// Times that the pages of a chunk were given up.
    pub punched: u64,
    /// Chunks that wait to be used again, now.
    pub kept: u64,
}

/// A chunk with at least `bytes` of fresh pages that read as zeroes.
///
/// # Errors
/// When the system has no descriptor or no memory to give.
pub fn take(bytes: usize) -> Result<Shared, Errno> {
    let recycled = if bytes <= RECYCLED_BYTES { recycle() } else { None };
    let made = recycled.is_none();
    let chunk = match recycled {
        Some(chunk) => chunk,
        None => Box::new(ShmChunk::new(bytes.max(RECYCLED_BYTES))?),
    };
    assert!(chunk.fresh && chunk.mapping.bytes() >= bytes, "a chunk has fresh pages for all bytes");
    KEPT.with_borrow_mut(|kept| {
        kept.counters.taken += 1;
        kept.counters.made += u64::from(made);
    });
    Ok(Shared { file: chunk.file.clone(), buf: Buf::of_shared(chunk) })
}

/// Gives all chunks that wait to be used again back to the system; returns their number.
pub fn trim() -> usize {
    KEPT.with_borrow_mut(|kept| kept.chunks.drain(..).count())
}

/// The numbers of the calling thread.
pub fn counters() -> ShmCounters {
    KEPT.with_borrow(|kept| ShmCounters { kept: kept.chunks.len() as u64, ..kept.counters })
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

#[derive(Default)]
struct Kept {
    /// Last in, first out. Boxed as buffers hold them, so that a chunk that is used again costs no allocation.
    #[allow(clippy::vec_box, reason = "the boxes come from buffers and go back into them")]
    chunks: Vec<Box<ShmChunk>>,
    counters: ShmCounters,
}

/// A file in memory and its mapping.
pub(crate) struct ShmChunk {
    file: Fd,
    mapping: Mapping,
    /// Whether it has fresh pages only.
    fresh: bool,
}

impl ShmChunk {
    fn new(bytes: usize) -> Result<ShmChunk, Errno> {
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        if u32::try_from(bytes).is_err() {
            return Err(Errno::INVAL);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // A system may insist on files that cannot be executed (`vm.memfd_noexec`); kernels before 6.3 do
        // not know the word.
        let file = match rustix::fs::memfd_create("ringroad-chunk", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("ringroad-chunk", flags)?,
            answer => answer?,
        };
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // The mapping stays valid for as long as the file keeps its length.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_file(file.as_fd(), bytes)?;
        // A huge page that reaches over the end of the chunk is not released by a hole but zeroed, including pages that
        // sockets refer to. EINVAL where the kernel has no huge pages.
        let _ = mapping.keep_pages_small();
        Ok(ShmChunk { file: file.into(), mapping, fresh: true })
    }

    /// The memory, which is all of the file.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Gives up the pages, unless a send may still have to take bytes from them.
    fn punch(&mut self) {
        if self.fresh || !self.file.is_sole() {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fresh = rustix::fs::fallocate(&self.file, hole, 0, self.mapping.bytes() as u64).is_ok();
    }
}

fn recycle() -> Option<Box<ShmChunk>> {
    KEPT.with_borrow_mut(|kept| {
        let place = kept.chunks.iter().rposition(|chunk| chunk.file.is_sole())?;
        let mut chunk = kept.chunks.remove(place);
        assert_eq!(chunk.mapping.bytes(), RECYCLED_BYTES, "chunks of one size are kept");
        if !chunk.fresh {
            kept.counters.punched += 1;
            chunk.punch();
        }
        // One that cannot be emptied is given up as a whole.
        chunk.fresh.then_some(chunk)
    })
}

/// Takes a chunk that its buffer is done with.
pub(crate) fn give_back(mut chunk: Box<ShmChunk>) {
    if chunk.mapping.bytes() != RECYCLED_BYTES {
        return;
    }
    chunk.fresh = false;
    // A buffer may be dropped by the thread's end, after the list.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.chunks.len() < KEPT_MAX {
            chunk.punch();
            kept.counters.punched += u64::from(chunk.fresh);
            kept.chunks.push(chunk);
        }
    });
}

#[cfg(test)]
mod tests;
