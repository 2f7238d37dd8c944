//! State of each descriptor in the epoll backend: its registration, its readiness, its waiting operations.
//!
//! Entries are found by descriptor number. The number may have been reused for another file. So an entry has a weak
//! reference to its owner and is reset when the owner differs, and events carry the serial number of their
//! registration.

use std::os::fd::AsRawFd;

use smallvec::SmallVec;

use crate::fd::{Fd, WeakFd};
use crate::op::OpId;

/// Operations that wait at a descriptor, in order; usually at most two per connection.
pub(super) type Line = SmallVec<[OpId; 2]>;

/// The registration of a descriptor with epoll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Registration {
    /// Not registered: no call on it has had to wait yet.
    #[default]
    None,
    /// Registered edge-triggered, for both directions: permanently, but a listening socket only until the next accept.
    Edge,
    /// A listening socket: level-triggered and exclusive, while an accept is pending.
    Listener,
}

/// The event that an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// A connection.
    Accept,
    /// Data to read.
    Read,
    /// Space in the send buffer, or the result of a connect.
    Write,
    /// The end of the peer's data.
    End,
}

/// The sides that have a separate queue.
const SIDES: [Side; 3] = [Side::Read, Side::Write, Side::End];

/// The state of one descriptor. All fields needed for a read event are in one cache line. With many connections, no
/// entry is in the CPU cache when its event is handled, and each line is a cache miss.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct SocketEntry {
    owner: WeakFd,
    /// Number of owners of the descriptor number so far.
    pub(super) serial: u32,
    pub(super) registration: Registration,
    /// Whether a read may succeed: since the last event, no call has returned `EAGAIN` or fewer bytes than it had space
    /// for.
    pub(super) readable: bool,
    /// Whether a write may succeed.
    pub(super) writable: bool,
    /// Whether the peer has closed its side, so that a short read does not mean that no more data follows.
    pub(super) hung_up: bool,
    /// Whether a connect is in flight, whose result arrives with the next event.
    pub(super) connecting: bool,
    /// Connections accepted since the listener was registered.
    pub(super) accepted: u32,
    /// Operations that wait to read, accept or poll, in order.
    pub(super) readers: Line,
    /// Operations that wait for other events; allocated when needed.
    other_waits: Option<Box<OtherWaits>>,
}

const _: () = assert!(size_of::<SocketEntry>() == 64);

/// Operations that wait at a descriptor for other events than data or connections.
#[derive(Debug, Default)]
struct OtherWaits {
    /// Operations that wait to write or for the result of a connect, in order.
    writers: Line,
    /// Operations that wait for the end of the stream. They have a separate queue, because data does not wake them.
    watchers: Line,
}

impl SocketEntry {
    /// Returns the operations that wait on a side.
    pub(super) fn line(&mut self, side: Side) -> &mut Line {
        match side {
            Side::Accept | Side::Read => &mut self.readers,
            Side::Write => &mut self.other_waits.get_or_insert_default().writers,
            Side::End => &mut self.other_waits.get_or_insert_default().watchers,
        }
    }

    /// Removes and returns the operations that can continue after an event; those of each side in order.
    pub(super) fn take_ready(&mut self) -> impl Iterator<Item = OpId> + use<> {
        let readers = if self.readable { std::mem::take(&mut self.readers) } else { Line::new() };
        let (mut writers, mut watchers) = (Line::new(), Line::new());
        if let Some(other_waits) = &mut self.other_waits {
            if self.writable {
                writers = std::mem::take(&mut other_waits.writers);
            }
            if self.hung_up {
                watchers = std::mem::take(&mut other_waits.watchers);
            }
        }
        readers.into_iter().chain(writers).chain(watchers)
    }

    /// Whether an operation waits on a side.
    pub(super) fn has_line(&self, side: Side) -> bool {
        let other_waits = self.other_waits.as_ref();
        match side {
            Side::Accept | Side::Read => !self.readers.is_empty(),
            Side::Write => other_waits.is_some_and(|other_waits| !other_waits.writers.is_empty()),
            Side::End => other_waits.is_some_and(|other_waits| !other_waits.watchers.is_empty()),
        }
    }

    /// Whether a call may succeed. Always `false` for a level-triggered listener: the next wait reports its
    /// connections.
    pub(super) fn is_ready(&self, side: Side) -> bool {
        match side {
            Side::Accept => self.readable && self.registration == Registration::Edge,
            Side::Read => self.readable,
            Side::Write => self.writable,
            // Before the registration, no event reports the end.
            Side::End => self.hung_up || self.registration == Registration::None,
        }
    }

    /// Records that a call would have blocked: only an event changes that.
    pub(super) fn exhaust(&mut self, side: Side) {
        match side {
            Side::Accept | Side::Read => self.readable = false,
            Side::Write => self.writable = false,
            Side::End => {}
        }
    }
}

/// The entries of all descriptors, by number.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<SocketEntry>);

impl Table {
    /// Returns the entry of `fd`, reset if the number had another owner before.
    pub(super) fn of(&mut self, fd: &Fd) -> &mut SocketEntry {
        let number = fd.as_raw_fd() as usize;
        if number >= self.0.len() {
            self.0.resize_with(number + 1, SocketEntry::default);
        }
        let entry = &mut self.0[number];
        if !entry.owner.is(fd) {
            debug_assert!(!SIDES.into_iter().any(|side| entry.has_line(side)), "operations hold their Fd");
            entry.owner = fd.downgrade();
            entry.serial = entry.serial.wrapping_add(1);
            entry.registration = Registration::None;
            entry.readable = true;
            entry.writable = true;
            entry.hung_up = false;
            entry.connecting = false;
            entry.accepted = 0;
        }
        entry
    }

    /// Returns the entry for an event with this serial number, unless its owner has been dropped.
    pub(super) fn at(&mut self, number: usize, serial: u32) -> Option<&mut SocketEntry> {
        self.0.get_mut(number).filter(|entry| entry.serial == serial && !entry.owner.is_gone())
    }

    /// Frees the memory of unused entries at the end; returns the number of bytes.
    pub(super) fn trim(&mut self) -> usize {
        let before = self.0.capacity();
        while self.0.last().is_some_and(|entry| entry.owner.is_gone()) {
            self.0.pop();
        }
        self.0.shrink_to_fit();
        (before - self.0.capacity()) * size_of::<SocketEntry>()
    }
}
