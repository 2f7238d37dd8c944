//! The ring of provided buffers: memory that waits in the kernel for received bytes.
//!
//! There are two rings, one for each size ([`Group`]). Each place of a ring has a number (bid) and holds a [`Buf`] of the thread's pool while the kernel
//! may write to it. A completion takes the buffer out and hands it to the caller; the place gets a fresh
//! one in the same turn, or waits when the pool is at its limit.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::setup::{SetupError, Stage};
use crate::buf::{Buf, Pool};

/// A group of provided buffers; entries with `BUFFER_SELECT` name its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Buffers of the configured size, for request headers.
    Small = 0,
    /// Buffers of [`crate::op::RECV_LARGE_BYTES`].
    Large = 1,
}

/// The bit of the numbers of large buffers, so that a completion shows its group.
const LARGE_BID: u16 = 1 << 15;

/// Large buffers at most, 4 MiB for each thread. With none left a receive takes a small one.
pub(super) const LARGE_MAX: u16 = 256;

/// Large buffers that the kernel has from the first receive on that asks for one.
const LARGE_FIRST: usize = 16;

/// Buffers that the kernel has at first. It takes them in turn, so fewer stay warmer in the processor's cache:
/// with 4 KiB each these are half a megabyte. Each time that they do not suffice there are twice as many, up to
/// the size of the ring.
const FILL_FIRST: usize = 128;

/// `struct io_uring_buf`, shared with the kernel. In the first one `reserved` is the ring's tail
/// (`struct io_uring_buf_ring`).
#[repr(C)]
struct RecvEntry {
    address: AtomicU64,
    len: AtomicU32,
    bid: AtomicU16,
    reserved: AtomicU16,
}

const _: () = assert!(size_of::<RecvEntry>() == 16);

/// The provided buffers of one group of one thread.
pub(super) struct RecvRing {
    group: Group,
    memory: NonNull<u8>,
    entries: u16,
    /// Where the next buffer goes; wraps, the kernel masks it.
    tail: u16,
    /// The tail that was published to the kernel.
    published: u16,
    /// The buffer of each place, while the kernel has it.
    held: Box<[Option<Buf>]>,
    /// Places without a buffer.
    vacant: Vec<u16>,
    /// Buffers that the kernel should have.
    fill: usize,
    buffer_bytes: usize,
}

impl RecvRing {
    /// A ring of `entries` places, a power of two of at most 32768, not yet filled.
    pub(super) fn new(group: Group, entries: u16, buffer_bytes: u32) -> Result<RecvRing, SetupError> {
        let entries = entries.clamp(1, 1 << 15).next_power_of_two();
        let bytes = usize::from(entries) * size_of::<RecvEntry>();
        let failed = |errno: Errno| SetupError::new(Stage::Buffers, errno);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private anonymous mapping aliases nothing.
        let memory =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let memory = memory.map_err(failed)?;
        // A child must not get a copy while the kernel writes here (madvise(2), MADV_DONTFORK).
        // SAFETY: this is the whole mapping that was just made.
        let advised = unsafe { rustix::mm::madvise(memory, bytes, Advice::LinuxDontFork) };
        let fill_first = match group {
            Group::Small => FILL_FIRST,
            // A thread that asks no upstream needs none.
            Group::Large => 0,
        };
        let ring = RecvRing {
            group,
            memory: NonNull::new(memory.cast()).ok_or(Errno::NOMEM).map_err(failed)?,
            entries,
            tail: 0,
            published: 0,
            held: (0..entries).map(|_| None).collect(),
            vacant: (0..entries).rev().collect(),
            fill: fill_first.min(entries.into()),
            buffer_bytes: buffer_bytes as usize,
        };
        advised.map_err(failed)?;
        Ok(ring)
    }

    /// Where the ring is, for its registration.
    pub(super) fn memory(&self) -> (*mut u8, u16, Group) {
        (self.memory.as_ptr(), self.entries, self.group)
    }

    /// The group of the buffer that a completion names.
    pub(super) fn group_of(bid: u16) -> Group {
        if bid & LARGE_BID == 0 { Group::Small } else { Group::Large }
    }

    /// A receive is about to ask for a buffer of this group.
    #[inline]
    pub(super) fn wanted(&mut self) {
        self.fill = self.fill.max(LARGE_FIRST.min(self.entries.into()));
    }

    /// Buffers that the kernel can take.
    pub(super) fn available(&self) -> usize {
        usize::from(self.entries) - self.vacant.len()
    }

    /// Buffers that it should have.
    pub(super) fn fill(&self) -> usize {
        self.fill
    }

    /// Notes that the buffers did not suffice in a turn. At most a quarter of the pool waits in the ring: the rest of a
    /// request's way needs buffers too.
    pub(super) fn widen(&mut self, pool: &Pool) {
        let share = (pool.bytes_max() / 4) as usize / self.buffer_bytes.max(1);
        self.fill = (self.fill * 2).min(share.max(self.fill)).min(self.entries.into());
        assert!(self.fill <= usize::from(self.entries), "the kernel has a place for each buffer");
    }

    /// Takes the buffer that a completion names out of its place.
    pub(super) fn take(&mut self, bid: u16) -> Option<Buf> {
        let place = bid & !LARGE_BID;
        let buf = self.held.get_mut(usize::from(place))?.take();
        if buf.is_some() {
            self.vacant.push(place);
            assert!(self.vacant.len() <= usize::from(self.entries), "a place is vacant once");
        }
        buf
    }

    /// Fills vacant places from the pool, as many as the kernel should have or the pool gives.
    pub(super) fn refill(&mut self, pool: &Pool) {
        while self.available() < self.fill {
            let Some(&place) = self.vacant.last() else { break };
            let Some(mut buf) = pool.get(self.buffer_bytes) else { break };
            self.vacant.pop();
            let len = buf.capacity().min(self.buffer_bytes) as u32;
            let at = usize::from(self.tail & (self.entries - 1));
            let address = buf.as_mut_ptr() as u64;
            // The order does not matter: the kernel looks here only once the tail has passed.
            let entry = &self.shared()[at];
            entry.address.store(address, Relaxed);
            entry.len.store(len, Relaxed);
            let bid = if self.group == Group::Large { place | LARGE_BID } else { place };
            entry.bid.store(bid, Relaxed);
            let before = self.held[usize::from(place)].replace(buf);
            assert!(before.is_none(), "the kernel has one buffer for each place");
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Announces to the kernel all buffers added since the last time.
    pub(super) fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        let fresh = self.tail.wrapping_sub(self.published);
        assert!(fresh <= self.entries, "no buffer takes the place of one that the kernel was not told of");
        self.published = self.tail;
        self.shared()[0].reserved.store(self.tail, Release);
    }

    fn shared(&self) -> &[RecvEntry] {
        let entries = self.memory.cast().as_ptr();
        // SAFETY: the mapping has room for this many entries, is zeroed and page-aligned, and all fields are atomics,
        // so that the kernel may read at the same time.
        unsafe { std::slice::from_raw_parts(entries, usize::from(self.entries)) }
    }
}

impl Drop for RecvRing {
    fn drop(&mut self) {
        let bytes = usize::from(self.entries) * size_of::<RecvEntry>();
        // SAFETY: `new` made this mapping, and the kernel ring that used it is gone or has let go of it.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), bytes) };
        debug_assert_eq!(unmapped, Ok(()), "the ring is mapped until it is dropped");
    }
}
