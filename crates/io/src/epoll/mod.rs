//! The epoll network backend: turns readiness into completions.
//!
//! Each system call is tried immediately. If it would block, its operation waits at its descriptor ([`table`]) until an
//! event shows that a retry may succeed. Descriptors are registered once, edge-triggered, when the first operation has
//! to wait. Readiness is recorded from events and short reads, to avoid calls that are known to fail. The calls are in
//! [`calls`]. Other backends handle files and paths.
//!
//! ```text
//! start -> call -> done                     event -> readable/writable -> retry in order
//!            \-> EAGAIN -> readers/writers ---^
//!            \-> no buffer -> starved ---- next turn ---> retry
//!            \-> budget used -> again ---- next turn ---> retry
//! ```

mod calls;
mod table;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::buf::Pool;
use crate::engine::{EngineConfig, Wait};
use crate::fd::Fd;
use crate::op::{Completion, Interest, NetOp, OpId};
use crate::slot::Slots;
use table::{Registration, Side, SocketEntry, Table};

/// Maximum number of events per turn, which fill one page; the next turn reports further ones.
const EVENTS_MAX: usize = 256;

/// Number of connections accepted between two renewals of an exclusive registration. The kernel wakes the idle waiter
/// that was registered first, so without renewal one thread would get every connection of a quiet listener. Renewal
/// moves the thread to the end of the wait queue and costs two calls.
const ACCEPTS_PER_TURN_IN_LINE: u32 = 8;

/// Event data of the doorbell; it differs from all descriptor numbers.
const TOKEN_DOORBELL: u64 = u64::MAX;
/// Event data of the disk backend's descriptor.
const TOKEN_DISK: u64 = u64::MAX - 1;

/// One thread's epoll instance.
pub(crate) struct Epoll {
    fd: OwnedFd,
    table: Table,
    events: Vec<epoll::Event>,
    /// Receives that found no buffer, first in, first out.
    starved: VecDeque<OpId>,
    /// Operations that used up their budget of this turn and continue in the next.
    again: Vec<OpId>,
    /// The operations of `again` of the previous turn, while they are run.
    resuming: Vec<OpId>,
    /// Listeners whose registration may no longer have a pending accept. They are held open until that was checked, and
    /// while only polls wait at them. If another process shares the socket, closing it leaves it in the epoll set, and
    /// the kernel would wake this thread for its connections.
    listeners_to_check: Vec<Fd>,
    pool: Pool,
    recv_buffer_bytes: usize,
    /// Number of system calls.
    pub(crate) kernel_entries: u64,
    /// Number of times that no buffer was available for received bytes.
    pub(crate) recv_starved: u64,
}

impl Epoll {
    /// Creates an empty set, which `doorbell` can wake.
    pub(crate) fn new(config: &EngineConfig, pool: &Pool, doorbell: BorrowedFd<'_>) -> Result<Epoll, Errno> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&fd, doorbell, epoll::EventData::new_u64(TOKEN_DOORBELL), edge)?;
        Ok(Epoll {
            fd,
            table: Table::default(),
            events: Vec::with_capacity(EVENTS_MAX),
            starved: VecDeque::new(),
            again: Vec::new(),
            resuming: Vec::new(),
            listeners_to_check: Vec::new(),
            pool: pool.clone(),
            recv_buffer_bytes: config.recv_buffer_bytes as usize,
            kernel_entries: 0,
            recv_starved: 0,
        })
    }

    /// Makes waits end while the descriptor of a disk backend is readable, which [`Epoll::turn`] reports.
    pub(crate) fn watch_disk(&mut self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.fd, fd, epoll::EventData::new_u64(TOKEN_DISK), epoll::EventFlags::IN)
    }

    /// Tries an operation, which completes or waits.
    pub(crate) fn start(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let waits = wait_target(slots.net(id)).and_then(|(side, fd)| {
            let entry = self.table.of(fd);
            let waits = !entry.is_ready(side) || entry.has_line(side);
            waits.then(|| (side, fd.clone()))
        });
        match waits {
            Some((side, fd)) => self.park(id, side, &fd, slots, done),
            None => self.run(id, slots, done),
        }
    }

    /// Cancels a waiting operation, unless it has completed before.
    pub(crate) fn cancel(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        if let Some((side, fd)) = wait_target(slots.net(id)) {
            let entry = self.table.of(fd);
            entry.line(side).retain(|waiting| *waiting != id);
            if entry.registration == Registration::Listener {
                self.listeners_to_check.push(fd.clone());
            }
        }
        self.starved.retain(|&waiting| waiting != id);
        self.again.retain(|&waiting| waiting != id);
        self.end_cancelled(id, slots, done);
    }

    /// Records that an inline `sendfile` found the send buffer full: the next wait for space need not try a call first.
    pub(crate) fn note_full(&mut self, socket: &Fd) {
        let entry = self.table.of(socket);
        if entry.registration == Registration::Edge {
            entry.writable = false;
        }
    }

    /// Retries operations that can continue, waits for events, and runs the operations that these events are for.
    /// Returns whether the descriptor of [`Epoll::watch_disk`] is readable.
    pub(crate) fn turn(
        &mut self,
        wait: Wait,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Errno> {
        self.release_idle_listeners(slots);
        self.feed_starved(slots, done);
        std::mem::swap(&mut self.again, &mut self.resuming);
        while let Some(id) = self.resuming.pop() {
            self.run(id, slots, done);
        }
        let wait = if done.is_empty() && self.again.is_empty() { wait } else { Wait::No };
        self.wait_for_events(wait)?;
        let mut is_disk_ready = false;
        let events = std::mem::take(&mut self.events);
        for event in &events {
            match event.data.u64() {
                TOKEN_DOORBELL => {}
                TOKEN_DISK => is_disk_ready = true,
                token => self.handle_event(token, event.flags, slots, done),
            }
        }
        self.events = events;
        Ok(is_disk_ready)
    }

    /// Whether a turn has work even without an event.
    pub(crate) fn has_work(&self) -> bool {
        !self.again.is_empty()
    }

    /// Frees memory of closed descriptors; returns the number of bytes.
    pub(crate) fn trim(&mut self) -> usize {
        self.table.trim()
    }

    /// Makes one `epoll_wait` call. Its timeout is in ms, rounded up: a timer fires up to 1 ms late rather than a
    /// moment early, which would cost an empty turn.
    fn wait_for_events(&mut self, wait: Wait) -> Result<(), Errno> {
        self.events.clear();
        let timeout = match wait {
            Wait::No => Some(Timespec::default()),
            Wait::Forever => None,
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // A timeout that cannot be represented is treated as none.
                Timespec::try_from(left).ok()
            }
        };
        self.kernel_entries += 1;
        let space = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.fd, space, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn handle_event(
        &mut self,
        token: u64,
        flags: epoll::EventFlags,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        let (number, serial) = (token as u32 as usize, (token >> 32) as u32);
        let Some(entry) = self.table.at(number, serial) else { return };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        let ended = broken || flags.contains(epoll::EventFlags::RDHUP);
        entry.hung_up |= ended;
        entry.readable |= ended || flags.contains(epoll::EventFlags::IN);
        entry.writable |= broken || flags.contains(epoll::EventFlags::OUT);
        // Operations that still have to wait are queued again, in the same order.
        for id in entry.take_ready() {
            self.start_again(id, slots, done);
        }
    }

    /// Retries an operation after an event, unless an earlier operation of the queue has used up the readiness.
    fn start_again(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        match wait_target(slots.net(id)) {
            Some((side, fd)) if side != Side::Accept && !self.table.of(fd).is_ready(side) => {
                let fd = fd.clone();
                self.park(id, side, &fd, slots, done);
            }
            _ => self.run(id, slots, done),
        }
    }

    /// Makes an operation wait for an event on its descriptor.
    fn park(&mut self, id: OpId, side: Side, fd: &Fd, slots: &mut Slots, done: &mut Vec<Completion>) {
        let wanted = match side {
            Side::Accept => Registration::Listener,
            Side::Read | Side::Write | Side::End => Registration::Edge,
        };
        if let Err(error) = self.register(fd, wanted) {
            return slots.end_with(id, Err(error), done);
        }
        let line = self.table.of(fd).line(side);
        debug_assert!(!line.contains(&id), "an operation waits once");
        line.push(id);
    }

    /// Registers a descriptor, once; an accept replaces the registration of a poll. epoll_ctl(2) reports the current
    /// state after adding, so no event is missed between the failed call and the registration.
    fn register(&mut self, fd: &Fd, wanted: Registration) -> Result<(), Errno> {
        let before = self.table.of(fd).registration;
        match before {
            Registration::None => {}
            // A poll was registered before this accept. EPOLL_CTL_MOD cannot set EPOLLEXCLUSIVE (epoll_ctl(2)).
            Registration::Edge if wanted == Registration::Listener => self.unregister(fd),
            Registration::Edge | Registration::Listener => return Ok(()),
        }
        let data = epoll::EventData::new_u64(token(self.table.of(fd), fd));
        let flags = match wanted {
            Registration::Listener => epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE,
            Registration::Edge | Registration::None => {
                epoll::EventFlags::IN
                    | epoll::EventFlags::OUT
                    | epoll::EventFlags::RDHUP
                    | epoll::EventFlags::ET
            }
        };
        self.kernel_entries += 1;
        match epoll::add(&self.fd, fd, data, flags) {
            // The descriptor was moved from its `Fd` to another one.
            Err(Errno::EXIST) => {
                epoll::delete(&self.fd, fd)?;
                epoll::add(&self.fd, fd, data, flags)?;
            }
            added => added?,
        }
        let entry = self.table.of(fd);
        entry.registration = wanted;
        entry.accepted = 0;
        Ok(())
    }

    /// Removes a descriptor from the set.
    fn unregister(&mut self, fd: &Fd) {
        self.table.of(fd).registration = Registration::None;
        self.kernel_entries += 1;
        // Fails only if the socket is no longer in the set.
        let _gone = epoll::delete(&self.fd, fd);
    }

    /// Ends the exclusive registrations of listeners without a pending accept. They are level-triggered, so they would
    /// end every wait, and the kernel would choose this thread for their connections.
    fn release_idle_listeners(&mut self, slots: &mut Slots) {
        if self.listeners_to_check.is_empty() {
            return;
        }
        let mut listeners = std::mem::take(&mut self.listeners_to_check);
        listeners.retain(|listener| self.update_listener(listener, slots));
        self.listeners_to_check = listeners;
    }

    /// Changes the registration of a listener if the waiting operations need another one. Returns whether only polls
    /// wait: their registration is removed when they have ended.
    fn update_listener(&mut self, listener: &Fd, slots: &mut Slots) -> bool {
        let entry = self.table.of(listener);
        let wanted = if entry.readers.is_empty() {
            Registration::None
        } else if entry.readers.iter().any(|&id| matches!(slots.net(id), NetOp::Accept { .. })) {
            Registration::Listener
        } else {
            // A poll accepts nothing, so it must not take a wake-up from another thread.
            Registration::Edge
        };
        let served = wanted == Registration::Listener && entry.accepted >= ACCEPTS_PER_TURN_IN_LINE;
        if entry.registration != wanted || served {
            self.unregister(listener);
            if wanted != Registration::None {
                let renewed = self.register(listener, wanted);
                debug_assert!(renewed.is_ok(), "a listener that was in the set fits in again");
            }
        }
        wanted == Registration::Edge
    }
}

/// Returns the side and the descriptor on which an operation waits; `None` for operations that never wait.
fn wait_target(op: &NetOp) -> Option<(Side, &Fd)> {
    match op {
        NetOp::Accept { listener, .. } => Some((Side::Accept, listener)),
        NetOp::Recv { socket, .. } => Some((Side::Read, socket)),
        NetOp::Send { socket, .. } | NetOp::Connect { socket, .. } => Some((Side::Write, socket)),
        NetOp::Poll { fd, interest: Interest::Readable } => Some((Side::Read, fd)),
        NetOp::Poll { fd, interest: Interest::Writable } => Some((Side::Write, fd)),
        NetOp::Poll { fd, interest: Interest::HangUp } => Some((Side::End, fd)),
        NetOp::Nop | NetOp::Close { .. } => None,
    }
}

/// Returns the event data: the descriptor number and the serial number of its registration.
fn token(entry: &SocketEntry, fd: &Fd) -> u64 {
    u64::from(entry.serial) << 32 | fd.as_raw_fd() as u64
}
