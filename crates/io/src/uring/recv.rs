//! The ring of provided buffers: memory that waits in the kernel for received bytes.
//!
//! There are two rings, one per buffer size ([`Group`]). Each slot of a ring has a number (bid) and holds a [`Buf`] of
//! the thread's pool while the kernel may write to it. A completion takes the buffer out for the caller. The slot gets
//! a new buffer in the same turn, or later if the pool is at its limit.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::io::Errno;

use super::setup::{SetupError, Stage};
use crate::buf::{Buf, Mapping, Pool};

/// A group of provided buffers; the value is its number in entries with `BUFFER_SELECT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Buffers of the configured size, for request headers.
    Small = 0,
    /// Buffers of [`crate::op::RECV_LARGE_BYTES`].
    Large = 1,
}

/// Bit in the numbers of large buffers, so that a completion shows its group.
const LARGE_BID: u16 = 1 << 15;

/// Maximum number of large buffers: 4 MiB per thread. If none is free, a receive uses a small one.
pub(super) const LARGE_MAX: u16 = 256;

/// Number of large buffers provided to the kernel from the first receive that requests one.
const LARGE_FIRST: usize = 16;

/// Initial number of buffers provided to the kernel. It uses them in turn, so fewer buffers are more likely to stay in
/// the CPU cache: with 4 KiB each, these are half a megabyte. Each time they do not suffice, the number is doubled, up
/// to the size of the ring.
const FILL_FIRST: usize = 128;

/// Size in bytes of a slot.
pub(super) const ENTRY_BYTES: usize = 16;

/// `struct io_uring_buf`, shared with the kernel. In the first entry, `reserved` is the ring's tail (`struct
/// io_uring_buf_ring`).
#[repr(C)]
struct RecvEntry {
    address: AtomicU64,
    len: AtomicU32,
    bid: AtomicU16,
    reserved: AtomicU16,
}

const _: () = assert!(size_of::<RecvEntry>() == ENTRY_BYTES);

/// The provided buffers of one group of one thread.
pub(super) struct RecvRing {
    group: Group,
    memory: Arc<Mapping>,
    entries: u16,
    /// Position of the next buffer; it wraps, and the kernel masks it.
    tail: u16,
    /// The tail that was published to the kernel.
    published: u16,
    /// The buffer of each slot, while the kernel has it.
    held: Box<[Option<Buf>]>,
    /// Slots without a buffer.
    vacant: Vec<u16>,
    /// Number of buffers that the kernel should have.
    fill: usize,
    buffer_bytes: usize,
}

impl RecvRing {
    /// Creates an empty ring of `entries` slots, rounded up to a power of two of at most 32768.
    pub(super) fn new(group: Group, entries: u16, buffer_bytes: u32) -> Result<RecvRing, SetupError> {
        let entries = entries.clamp(1, 1 << 15).next_power_of_two();
        let bytes = usize::from(entries) * ENTRY_BYTES;
        let failed = |errno: Errno| SetupError::new(Stage::Buffers, errno);
        let memory = Mapping::anonymous(bytes).map_err(failed)?;
        // A child process must not get a copy while the kernel writes here.
        memory.keep_from_children().map_err(failed)?;
        let fill_first = match group {
            Group::Small => FILL_FIRST,
            // A thread without upstream requests needs none.
            Group::Large => 0,
        };
        Ok(RecvRing {
            group,
            memory: Arc::new(memory),
            entries,
            tail: 0,
            published: 0,
            held: (0..entries).map(|_| None).collect(),
            vacant: (0..entries).rev().collect(),
            fill: fill_first.min(entries.into()),
            buffer_bytes: buffer_bytes as usize,
        })
    }

    /// Returns the memory, the number of slots and the group of the ring, for its registration.
    pub(super) fn memory(&self) -> (&Arc<Mapping>, u16, Group) {
        (&self.memory, self.entries, self.group)
    }

    /// Returns the group of the buffer number in a completion.
    pub(super) fn group_of(bid: u16) -> Group {
        if bid & LARGE_BID == 0 { Group::Small } else { Group::Large }
    }

    /// Records that a receive is about to request a buffer of this group.
    #[inline]
    pub(super) fn note_request(&mut self) {
        self.fill = self.fill.max(LARGE_FIRST.min(self.entries.into()));
    }

    /// Returns the number of buffers that the kernel has.
    pub(super) fn available(&self) -> usize {
        usize::from(self.entries) - self.vacant.len()
    }

    /// Returns the number of buffers that the kernel should have.
    pub(super) fn fill(&self) -> usize {
        self.fill
    }

    /// Doubles the number of buffers after a turn in which they did not suffice. At most a quarter of the pool is
    /// provided to the kernel, because the later steps of a request need buffers too.
    pub(super) fn widen(&mut self, pool: &Pool) {
        let share = (pool.bytes_max() / 4) as usize / self.buffer_bytes.max(1);
        self.fill = (self.fill * 2).min(share.max(self.fill)).min(self.entries.into());
        assert!(self.fill <= usize::from(self.entries), "the ring has a slot for each buffer");
    }

    /// Takes the buffer with the buffer ID of a completion out of its slot.
    pub(super) fn take(&mut self, bid: u16) -> Option<Buf> {
        let index = bid & !LARGE_BID;
        let buf = self.held.get_mut(usize::from(index))?.take();
        if buf.is_some() {
            self.vacant.push(index);
            assert!(self.vacant.len() <= usize::from(self.entries), "a slot is vacant once");
        }
        buf
    }

    /// Provides buffers to the kernel, up to the number that it should have, or until the pool is exhausted.
    #[inline]
    pub(super) fn supply(&mut self, pool: &Pool) {
        if self.available() < self.fill {
            self.refill(pool);
            self.publish();
        }
    }

    fn refill(&mut self, pool: &Pool) {
        while self.available() < self.fill {
            let Some(&index) = self.vacant.last() else { break };
            let Some(mut buf) = pool.get(self.buffer_bytes) else { break };
            self.vacant.pop();
            let len = buf.capacity().min(self.buffer_bytes) as u32;
            let at = usize::from(self.tail & (self.entries - 1));
            let address = buf.as_mut_ptr() as u64;
            // Relaxed stores suffice: the kernel reads this entry only after it sees the new tail.
            let entry = &self.shared()[at];
            entry.address.store(address, Relaxed);
            entry.len.store(len, Relaxed);
            let bid = if self.group == Group::Large { index | LARGE_BID } else { index };
            entry.bid.store(bid, Relaxed);
            let before = self.held[usize::from(index)].replace(buf);
            assert!(before.is_none(), "a slot has one buffer");
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Publishes to the kernel all buffers that were added since the last call.
    fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        let fresh = self.tail.wrapping_sub(self.published);
        assert!(fresh <= self.entries, "no buffer replaces an unpublished one");
        self.published = self.tail;
        self.shared()[0].reserved.store(self.tail, Release);
    }

    fn shared(&self) -> &[RecvEntry] {
        let entries = self.memory.start().cast().as_ptr();
        // SAFETY: the mapping has room for this many entries, is zeroed and page-aligned, and all fields are atomics,
        // so that the kernel may read at the same time.
        unsafe { std::slice::from_raw_parts(entries, usize::from(self.entries)) }
    }
}
