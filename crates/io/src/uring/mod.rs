//! The io_uring backend: one io_uring instance ("ring") per thread for sockets and files.
//!
//! [`Uring::start`] stages operations. [`Uring::turn`] makes the single kernel entry of an event-loop turn: it submits
//! the staged entries, waits, and collects completions. `complete.rs` interprets completions and `entry.rs` builds
//! submission entries; `state.rs` has the state and memory of operations in flight. The queues and system calls are in
//! `ring.rs`, set-up and its errors in `setup.rs`, buffers for received bytes in `recv.rs`. `end_check.rs` finds ends
//! of streams that the kernel does not report.
//!
//! Nothing here frees memory that the kernel may still write to. Closing a ring does not wait for its operations. So an
//! owner that could not drain the ring leaks the table of slots, and this type leaks its own memory.

mod complete;
mod end_check;
mod entry;
mod recv;
pub(crate) mod ring;
pub(crate) mod setup;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::end_check::UncheckedEnds;
use self::entry::{OwnedEntry, SLOTS_MAX};
use self::recv::{Group, LARGE_MAX, RecvRing};
use self::ring::{Cqe, Ring};
use self::setup::{LADDER, Mode, POLLED_LADDER};
pub use self::setup::{Refusal, SetupError, Stage, flags};
pub(crate) use self::setup::{
    filtered,
    flags::{DEFER_TASKRUN, NO_SQARRAY, TASKRUN_FLAG},
};
use self::state::{InFlight, Phase};
use crate::buf::{Buf, CHUNK_BYTES, Pool};
use crate::engine::{EngineConfig, Note, Wait};
use crate::fd::Fd;
use crate::op::{Completion, DiskOp, NetOp, Op, OpId, RECV_LARGE_BYTES, RecvInto};
use crate::slot::{Slot, Slots};

/// Completion-queue entries for which `trim` keeps memory: the number of completions of a busy turn.
const BATCH_KEPT: usize = 256;

/// Completion-queue entries for completions without an operation: failed cancellations and the doorbell.
const COMPLETIONS_SPARE: u32 = 256;
/// Smallest size of the completion queue. Multishot operations add completions without being submitted again.
const COMPLETIONS_MIN: u32 = 4096;

/// The purpose of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sockets and files.
    NetAndDisk,
    /// Files only; another backend serves the network.
    DiskOnly,
}

impl Role {
    /// Returns the opcodes that a ring with this role allows.
    fn opcodes(self) -> impl Iterator<Item = &'static u8> {
        let network: &[u8] = if self == Role::NetAndDisk { &entry::NETWORK } else { &[] };
        let zero_copy: &[u8] = if self == Role::NetAndDisk { &entry::ZERO_COPY } else { &[] };
        network.iter().chain(zero_copy).chain(&entry::FILES)
    }
}

/// Limits that tests impose on a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// Setup flags that are treated as unknown to the kernel.
    denied: u32,
    /// Entries of the completion queue.
    completions: Option<u32>,
}

/// State of the registration of buffers with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferRegistration {
    /// Each chunk is registered when a direct read first uses it; `bytes` are registered so far.
    Lazy { bytes: usize },
    /// The kernel has refused a registration, so no further chunks are registered.
    Refused,
}

/// Counters of one ring since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingCounters {
    /// Entries into the kernel.
    pub(crate) kernel_entries: u64,
    /// Receives that failed because no buffer was available.
    pub(crate) recv_starved: u64,
    /// Multishot operations that were restarted after the kernel had ended them.
    pub(crate) rearmed: u64,
    /// Zero-copy sends that were refused and repeated with a copy.
    pub(crate) zero_copy_refused: u64,
    /// Checks whether sockets have reached the end of the stream.
    pub(crate) end_checks: u64,
}

/// One ring of one thread.
pub(crate) struct Uring {
    ring: Ring,
    recv: Option<RecvRing>,
    /// Receive buffers of [`RECV_LARGE_BYTES`].
    recv_large: Option<RecvRing>,
    flights: InFlight,
    pool: Pool,
    /// Entries for which the submission queue had no space, in order.
    backlog: VecDeque<OwnedEntry>,
    /// Receives that wait for buffers, in order.
    starved: VecDeque<OpId>,
    /// Streams with received bytes whose end may not have been reported.
    unchecked_ends: UncheckedEnds,
    /// Operations that the kernel did not find when they were cancelled, although they had not completed; the
    /// cancellation is repeated.
    recancel: Vec<OpId>,
    /// Completions being handled; a field so that its memory is reused.
    batch: Vec<Cqe>,
    registration: BufferRegistration,
    note: Option<Note>,
    doorbell: Option<Fd>,
    doorbell_armed: bool,
    zero_copy: bool,
    /// Whether the kernel supports every opcode that is submitted here, except zero-copy sends.
    supports_opcodes: bool,
    counters: RingCounters,
}

impl Uring {
    /// Creates a ring for the calling thread, which alone may use it.
    ///
    /// # Errors
    /// When the kernel refuses it, with the likely cause. Out-of-memory errors are retried for a second.
    pub(crate) fn new(config: &EngineConfig, pool: &Pool, role: Role) -> Result<Uring, SetupError> {
        setup::patiently(|| Uring::with_limits(config, pool, role, Limits::default()))
    }

    fn with_limits(
        config: &EngineConfig,
        pool: &Pool,
        role: Role,
        limits: Limits,
    ) -> Result<Uring, SetupError> {
        assert!(config.ops_max <= SLOTS_MAX, "slots are numbered with 24 bits");
        // One terminal completion per operation, plus one for each buffer that a multishot receive may fill. Bursts of
        // accepted connections may exceed this; the kernel then keeps completions in its overflow list, and none is
        // lost.
        let completions = config.ops_max + u32::from(config.recv_buffers) + COMPLETIONS_SPARE;
        let completions = limits.completions.unwrap_or(completions.max(COMPLETIONS_MIN)).next_power_of_two();
        let ladder = match role {
            Role::NetAndDisk => &LADDER,
            Role::DiskOnly => &POLLED_LADDER,
        };
        let mut ring = Ring::new(ladder, config.ring_entries, completions, limits.denied)?;
        ring.limit_workers(config.iowq_workers)?;
        let mut provide = |group, entries, bytes| {
            let mut recv = RecvRing::new(group, entries, bytes)?;
            let (memory, entries, group) = recv.memory();
            ring.provide(memory, entries, group as u16)?;
            recv.supply(pool);
            Ok::<_, SetupError>(recv)
        };
        let (recv, recv_large) = match role {
            Role::DiskOnly => (None, None),
            Role::NetAndDisk => (
                Some(provide(Group::Small, config.recv_buffers, config.recv_buffer_bytes)?),
                Some(provide(Group::Large, LARGE_MAX.min(config.recv_buffers), RECV_LARGE_BYTES)?),
            ),
        };
        let (registration, note) = match ring.fixed_table(pool.chunks_max() as u32) {
            Ok(_) => (BufferRegistration::Lazy { bytes: 0 }, None),
            Err(errno) => {
                (BufferRegistration::Refused, Some(Note::BuffersUnregistered { errno, registered_bytes: 0 }))
            }
        };
        let known = ring.supported_opcodes();
        let knows = |opcodes: &[u8]| opcodes.iter().all(|&code| known.is_supported(code));
        ring.lock(role.opcodes())?;
        let zero_copy = role == Role::NetAndDisk && knows(&entry::ZERO_COPY);
        Ok(Uring {
            supports_opcodes: knows(&entry::NETWORK) && knows(&entry::FILES),
            ring,
            recv,
            recv_large,
            flights: InFlight::default(),
            pool: pool.clone(),
            backlog: VecDeque::new(),
            starved: VecDeque::new(),
            unchecked_ends: UncheckedEnds::default(),
            recancel: Vec::new(),
            batch: Vec::new(),
            registration,
            note,
            doorbell: None,
            doorbell_armed: false,
            zero_copy,
            counters: RingCounters::default(),
        })
    }

    /// Whether the kernel supports zero-copy sends.
    pub(crate) fn send_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns the mode in which the ring was set up.
    pub(crate) fn mode(&self) -> Mode {
        self.ring.mode()
    }

    /// Whether the kernel supports every opcode that is submitted here, except zero-copy sends.
    pub(crate) fn supports_opcodes(&self) -> bool {
        self.supports_opcodes
    }

    /// Registers the memory of a buffer, to find out whether registration is possible.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn try_register(&mut self, buf: &Buf) -> Result<(), Errno> {
        match (self.fix(buf), self.note) {
            (Some(_), _) => Ok(()),
            (None, Some(Note::BuffersUnregistered { errno, .. })) => Err(errno),
            (None, None) => Err(Errno::NOMEM),
        }
    }

    /// Stages the operation in the slot. It completes in a later turn; an operation that fails immediately is added to
    /// `done`.
    pub(crate) fn start(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let slot = slots.held(id);
        match &slot.op {
            Op::Net(NetOp::Send { socket, .. }) => socket.note_send(),
            Op::Net(NetOp::Recv { socket, into }) => {
                socket.note_receive();
                if let (RecvInto::Large, Some(large)) = (into, &mut self.recv_large) {
                    large.note_request();
                }
            }
            Op::Net(_) => {}
            Op::Disk { op, .. } => {
                debug_assert!(!op.needs_thread(), "the ring gets only operations that it supports");
            }
        }
        self.flights.begin(&mut slot.ring);
        if let Err(errno) = self.stage_op(id, slot) {
            self.finish(id, Err(errno), slots, done);
        }
    }

    /// Requests an early end of a poll or of an operation on a socket. Operations on files run to their end, because
    /// the kernel cannot stop them once the device has them.
    pub(crate) fn cancel(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let Some(slot) = slots.get(id) else { return };
        let cancellable = match slot.op {
            Op::Net(NetOp::Nop | NetOp::Close { .. }) | Op::Disk { .. } => false,
            Op::Net(_) => true,
        };
        if !cancellable || slot.ring.phase == Phase::Idle || slot.ring.cancelled {
            return;
        }
        slot.ring.cancelled = true;
        match slot.ring.phase {
            Phase::Starved => {
                self.starved.retain(|starved| *starved != id);
                self.finish(id, Err(Errno::CANCELED), slots, done);
            }
            Phase::Kernel => self.push(entry::cancel(id)),
            // Either the bytes were sent or the notification will arrive.
            Phase::Notice | Phase::Copying | Phase::Idle => {}
        }
    }

    /// Requests an early end of everything that [`Uring::cancel`] can end: the first step of a drain. The owner then
    /// calls `turn` until its table is empty or its deadline has passed.
    pub(crate) fn cancel_all(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        for id in slots.in_flight() {
            self.cancel(id, slots, done);
        }
    }

    /// Submits, waits according to `wait` and collects completions. Makes one kernel entry, or none if the kernel has
    /// no work. Does not wait if `done` already has completions.
    ///
    /// # Errors
    /// Only after a defect, such as a use from another thread. An interrupted wait is not an error.
    pub(crate) fn turn(
        &mut self,
        wait: Wait,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        self.prepare(slots, done);
        let idle = done.is_empty() && self.backlog.is_empty();
        let (wait_for, timeout) = match wait {
            Wait::Forever if idle => (1, None),
            Wait::Until(at) if idle => match at.saturating_duration_since(Instant::now()) {
                Duration::ZERO => (0, None),
                left => (1, Some(left)),
            },
            _ => (0, None),
        };
        let entered = self.enter(wait_for, timeout);
        self.collect(slots, done);
        entered
    }

    /// Whether the kernel has not consumed all staged entries yet, because of a memory shortage or a signal. An owner
    /// that waits in epoll must then call [`Uring::turn`] again without waiting.
    pub(crate) fn has_staged(&mut self) -> bool {
        self.ring.staged() > 0 || !self.backlog.is_empty()
    }

    /// Returns the ring's descriptor, which is readable when completions are available.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Watches a descriptor, an eventfd that ends waits.
    pub(crate) fn watch(&mut self, fd: Fd) {
        self.doorbell = Some(fd);
        self.doorbell_armed = false;
    }

    /// Returns a degraded condition to report to the operator; each condition is returned once.
    pub(crate) fn take_note(&mut self) -> Option<Note> {
        self.note.take()
    }

    /// Releases idle memory to the kernel; returns the number of bytes.
    pub(crate) fn trim(&mut self) -> usize {
        self.batch.shrink_to(BATCH_KEPT);
        let (pool, ring) = (&self.pool, &mut self.ring);
        pool.trim(|index| ring.fix_buffer(index, None).is_ok()) + self.flights.trim()
    }

    /// Returns the counters since start.
    pub(crate) fn counters(&self) -> RingCounters {
        RingCounters { kernel_entries: self.ring.entries, ..self.counters }
    }

    /// Builds the submission entry of an operation and enqueues it.
    fn stage(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let Some(slot) = slots.get(id) else { return };
        if let Err(errno) = self.stage_op(id, slot) {
            self.finish(id, Err(errno), slots, done);
        }
    }

    #[inline(always)]
    fn stage_op(&mut self, id: OpId, slot: &mut Slot) -> Result<(), Errno> {
        if self.backlog.is_empty()
            && let Some(entry) = entry::small(id, &mut slot.op)
            && self.ring.push(&entry)
        {
            return Ok(());
        }
        let copying = !self.zero_copy || slot.ring.copying;
        let fixed = self.fixed_index(&slot.op, copying);
        let entry = entry::build(id, slot, &mut self.flights, fixed, copying)?;
        self.push(entry);
        Ok(())
    }

    /// Returns the index of an operation's buffer in the ring's table of fixed buffers. Direct reads and writes and
    /// zero-copy sends use it, to save the kernel the lookup of the pages.
    fn fixed_index(&mut self, op: &Op, copying: bool) -> Option<u16> {
        match op {
            Op::Disk { op: DiskOp::Read { file, buf, .. } | DiskOp::Write { file, buf, .. }, .. }
                if file.is_direct() =>
            {
                self.fix(buf)
            }
            Op::Net(NetOp::Send { data, zero_copy: true, .. }) if !copying => {
                let mut parts = data.parts();
                let buf = parts.next()?.buf()?;
                // Several segments need a message header (sendmsg), which supports no fixed buffer.
                if parts.next().is_none() { self.fix(buf) } else { None }
            }
            _ => None,
        }
    }

    fn fix(&mut self, buf: &Buf) -> Option<u16> {
        let BufferRegistration::Lazy { bytes } = &mut self.registration else { return buf.fixed_index() };
        let (ring, mut refused) = (&mut self.ring, None);
        let index = buf.fixed_index_or(|index, memory| {
            let fixed = ring.fix_buffer(index, Some(memory));
            refused = fixed.err();
            *bytes += if fixed.is_ok() { CHUNK_BYTES } else { 0 };
            fixed.is_ok()
        });
        if let Some(errno) = refused {
            self.note = Some(Note::BuffersUnregistered { errno, registered_bytes: *bytes });
            self.registration = BufferRegistration::Refused;
        }
        index
    }

    /// Adds an entry to the submission queue, or to the backlog if the queue is full or entries already wait.
    fn push(&mut self, entry: OwnedEntry) {
        if !self.backlog.is_empty() || !self.ring.push_or_submit(&entry) {
            self.backlog.push_back(entry);
        }
    }

    /// Stages everything that was deferred to the next turn.
    fn prepare(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        while let Some(entry) = self.backlog.front() {
            if !self.ring.push_or_submit(entry) {
                break;
            }
            self.backlog.pop_front();
        }
        for id in std::mem::take(&mut self.recancel) {
            if slots.get(id).is_some_and(|slot| slot.ring.phase == Phase::Kernel) {
                self.push(entry::cancel(id));
            }
        }
        if let Some(fd) = self.doorbell.as_ref().filter(|_| !self.doorbell_armed) {
            let entry = entry::watch(fd);
            self.doorbell_armed = true;
            self.push(entry);
        }
        self.check_ends(slots);
        self.feed(slots, done);
    }

    /// Replaces receive buffers that received bytes have used, and restarts receives that wait for buffers. Restarts
    /// all of them if there is a buffer for each. Otherwise waits until half of the buffers are available and restarts
    /// as many receives; with fewer buffers they would only fail again.
    fn feed(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        let Some(recv) = self.recv.as_mut() else { return };
        recv.supply(&self.pool);
        if let Some(large) = &mut self.recv_large {
            large.supply(&self.pool);
        }
        let (available, waiting) = (recv.available(), self.starved.len());
        assert!(waiting <= self.flights.live(), "a receive that waits for a buffer is in flight");
        if available < waiting && available < recv.fill() / 2 {
            return;
        }
        for _ in 0..available.min(waiting) {
            let Some(id) = self.starved.pop_front() else { break };
            if let Some(slot) = slots.get(id) {
                slot.ring.phase = Phase::Kernel;
                self.stage(id, slots, done);
            }
        }
    }

    fn enter(&mut self, wait_for: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        let staged = self.ring.staged();
        let ready = self.ring.has_completions();
        if staged == 0 && (ready || wait_for == 0 && !self.ring.needs_entry()) {
            return Ok(());
        }
        match self.ring.enter(staged, wait_for, true, timeout) {
            // Timeout, signal, completions to be collected first, or a memory shortage. The next turn continues where
            // the kernel stopped.
            Ok(_) | Err(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn collect(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        let mut batch = std::mem::take(&mut self.batch);
        self.ring.collect(&mut batch);
        let starved = self.counters.recv_starved;
        for cqe in batch.drain(..) {
            self.complete(cqe, slots, done);
        }
        self.batch = batch;
        if let Some(recv) = self.recv.as_mut().filter(|_| self.counters.recv_starved > starved) {
            recv.widen(&self.pool);
        }
        self.feed(slots, done);
    }

    /// Completes an operation that returns only a result and its own memory.
    #[inline]
    fn finish(
        &mut self,
        id: OpId,
        result: Result<u32, Errno>,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        slots.end(id, done, |slot, done| {
            self.flights.end(&mut slot.ring);
            done.result = result;
            slot.op.return_resources(result, &mut done.payload);
        });
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.flights.live() > 0 {
            // The kernel may still write to these buffers after the ring is closed. The owner leaks its slots.
            std::mem::forget((self.recv.take(), self.recv_large.take()));
        }
    }
}
