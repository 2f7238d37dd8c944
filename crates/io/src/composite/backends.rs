//! The engine of a thread: its backends, the table of operations that they share, and the routing of operations.
//! Operations that cannot be ended are leaked with all their memory.
//!
//! ```text
//! submit -> network backend
//!        -> sync                                   (inline)
//!        -> resident? -> thread pool -> inbox      (rings the doorbell)
//!        -> limit of the device -> io_uring
//!        -> libaio queue                           (rings the doorbell)
//! each -> done -> the batch of the next turn
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buf::Pool;
use crate::composite::BuildError;
use crate::disk::job::{self, Job, Outcome};
use crate::disk::libaio::Libaio;
use crate::disk::threads::{Ended, Inbox, Taken, Task, ThreadPool};
use crate::doorbell::Doorbell;
use crate::engine::{Caps, Counters, Drained, Engine, EngineConfig, NetKind, Note, PUTS_MAX, Wait, Waker};
use crate::epoll::Epoll;
use crate::facts::DeviceId;
use crate::fd::Fd;
use crate::op::{Completion, Disk, DiskOp, DiskVia, Op, OpId};
use crate::slot::{DeviceLimit, Route, Slots, share_of};
use crate::uring::{Role, Uring};

/// Time limit for the drain of an engine that is dropped without one.
const DROP_DRAIN: Duration = Duration::from_secs(1);

/// One thread's engine.
pub(super) struct Backends {
    caps: Caps,
    net: Net,
    libaio: Option<Libaio>,
    pools: Vec<Arc<ThreadPool>>,
    /// Threads for [`DiskOp::Put`], if separate.
    put_pool: Option<Arc<ThreadPool>>,
    inbox: Arc<Inbox>,
    /// Outcomes of pool threads before they are added to `done`; a field so that its memory is reused.
    outcomes: Vec<Ended>,
    /// Number of operations that were passed to pool threads.
    in_pools: usize,
    /// The load of each device on io_uring's kernel workers.
    ring_limit: DeviceLimit<OpId>,
    /// Maximum number of operations of one device in io_uring.
    ring_share: usize,
    slots: Slots,
    /// Completions to be returned in the next turn.
    done: Vec<Completion>,
    doorbell: Arc<Doorbell>,
    pool: Pool,
    /// Set by a drain that did not end all operations: no operation is accepted any more.
    is_leaking: bool,
    device_share: u32,
    try_resident: bool,
    table_full: u64,
    /// Number of operations that a pool queued because of their device.
    pool_queued: u64,
}

/// The network backend, and the io_uring for files if one exists.
enum Net {
    /// One io_uring for sockets and files.
    Uring(Uring),
    /// epoll for sockets; for files an io_uring whose descriptor is in the epoll set.
    Epoll { epoll: Epoll, ring: Option<Uring> },
}

impl Backends {
    pub(super) fn new(config: EngineConfig) -> Result<Backends, BuildError> {
        let pool = Pool::new(config.pool_bytes_max);
        let doorbell = Arc::new(Doorbell::new().map_err(BuildError::Doorbell)?);
        let net = Net::new(&config, &pool, &doorbell)?;
        let libaio = match config.disk_libaio {
            true => Some(Libaio::new(config.libaio_depth, &doorbell).map_err(BuildError::Libaio)?),
            false => None,
        };
        let (kind, send_zero_copy) = match &net {
            Net::Uring(ring) => (NetKind::Uring, ring.send_zero_copy()),
            Net::Epoll { .. } => (NetKind::Epoll, false),
        };
        let caps = Caps {
            net: kind,
            disk_ring: net.ring().is_some(),
            disk_libaio: libaio.is_some(),
            pools: config.pools.len().min(u8::MAX as usize) as u8,
            send_zero_copy,
            recv_buffer_bytes: config.recv_buffer_bytes,
            memory_max: config.memory_max,
        };
        Ok(Backends {
            caps,
            net,
            libaio,
            inbox: Inbox::new(Arc::clone(&doorbell)),
            outcomes: Vec::new(),
            in_pools: 0,
            ring_limit: DeviceLimit::default(),
            ring_share: share_of(config.iowq_workers as usize, config.device_share),
            slots: Slots::new(config.ops_max),
            done: Vec::new(),
            doorbell,
            pool,
            is_leaking: false,
            device_share: config.device_share,
            try_resident: config.pool_tries_resident,
            table_full: 0,
            pool_queued: 0,
            pools: config.pools,
            put_pool: config.put_pool,
        })
    }

    fn start_net(&mut self, op: Op, token: u64) -> OpId {
        let id = self.slots.insert(op, token, Route::Net);
        match &mut self.net {
            Net::Uring(ring) => ring.start(id, &mut self.slots, &mut self.done),
            Net::Epoll { epoll, .. } => epoll.start(id, &mut self.slots, &mut self.done),
        }
        id
    }

    /// Starts an operation on a file or path. It stays in its slot while the kernel has it; a thread that carries it out
    /// owns it instead.
    fn start_disk(&mut self, at: Disk, mut op: DiskOp, token: u64) -> OpId {
        let route = self.route(at, &op);
        match (route, &mut op, &mut self.libaio) {
            (Route::Ring(device), ..) => {
                let is_limited = !op.reads_directly();
                let id = self.slots.insert(Op::Disk { at, op }, token, route);
                if is_limited {
                    self.start_limited(id, device)
                } else {
                    self.start_on_ring(id)
                }
                id
            }
            (Route::Libaio(_), DiskOp::Read { file, offset, len, buf }, Some(libaio)) => {
                let request = libaio.request(file, *offset, *len, buf);
                let id = self.slots.insert(Op::Disk { at, op }, token, route);
                libaio.push(id, request);
                id
            }
            (Route::Pool(..) | Route::PutPool(_), ..) => {
                let id = self.slots.insert(Op::NOP, token, route);
                self.start_in_pool(id, op, route, at.device);
                id
            }
            (Route::Net | Route::Libaio(_) | Route::Sync, ..) => {
                let id = self.slots.insert(Op::NOP, token, route);
                self.run_inline(id, op);
                id
            }
        }
    }

    /// Returns the backend that carries out the operation: the requested one if it exists and supports it, otherwise
    /// the first pool, otherwise the blocking call.
    fn route(&self, Disk { device, via }: Disk, op: &DiskOp) -> Route {
        let by_ring = self.net.ring().is_some() && !op.needs_thread();
        match via {
            _ if self.put_pool.is_some() && matches!(op, DiskOp::Put { .. }) => Route::PutPool(device),
            DiskVia::Sync => Route::Sync,
            DiskVia::Ring if by_ring => Route::Ring(device),
            DiskVia::Libaio if self.libaio.is_some() && op.reads_directly() => Route::Libaio(device),
            DiskVia::Pool(number) if usize::from(number) < self.pools.len() => Route::Pool(number, device),
            _ if self.pools.is_empty() => Route::Sync,
            _ => Route::Pool(0, device),
        }
    }

    /// Starts an operation in io_uring if its device has not used up its share of kernel workers. Direct reads are not
    /// limited, because the kernel does not pass them to a worker.
    fn start_limited(&mut self, id: OpId, device: DeviceId) {
        if self.ring_limit.enter(device, self.ring_share, id).is_none() {
            return;
        }
        let before = self.slots.held(id).gated.replace(device);
        assert!(before.is_none(), "an operation holds one share of its device");
        self.start_on_ring(id);
    }

    fn start_on_ring(&mut self, id: OpId) {
        let ring = self.net.ring_mut().expect("an operation has this route only if an io_uring exists");
        ring.start(id, &mut self.slots, &mut self.done);
    }

    /// Makes the blocking system calls of an operation on this thread, which a slow device stalls completely. So this
    /// is used only if the configuration selects it (`aio off`), if no other backend is available, or for bytes that
    /// are in memory.
    fn run_inline(&mut self, id: OpId, mut op: DiskOp) {
        let uncached = job::is_uncached(&op);
        let outcome = job::carry_out(&mut op, uncached);
        if let (DiskOp::Sendfile { socket, .. }, Net::Epoll { epoll, .. }) = (&op, &mut self.net)
            && outcome.is_full_socket()
        {
            epoll.note_full(socket);
        }
        outcome.deliver(op, id, &mut self.slots, &mut self.done);
    }

    /// Returns the thread pool of a route.
    fn threads(&self, route: Route) -> Option<&Arc<ThreadPool>> {
        match route {
            Route::Pool(number, _) => self.pools.get(usize::from(number)),
            Route::PutPool(_) => self.put_pool.as_ref(),
            Route::Net | Route::Ring(_) | Route::Libaio(_) | Route::Sync => None,
        }
    }

    fn start_in_pool(&mut self, id: OpId, mut op: DiskOp, route: Route, device: DeviceId) {
        let Some(pool) = self.threads(route).cloned() else { return self.run_inline(id, op) };
        // A direct read would wait for the disk in spite of RWF_NOWAIT.
        if self.try_resident
            && !op.reads_directly()
            && let Some(outcome) = job::read_if_resident(&mut op)
        {
            return outcome.deliver(op, id, &mut self.slots, &mut self.done);
        }
        let limit = match op {
            DiskOp::Put { .. } => PUTS_MAX.min(pool.threads()),
            _ => share_of(pool.threads(), self.device_share),
        };
        let task = Task { job: Job::new(op), id, device, inbox: Arc::clone(&self.inbox) };
        match pool.push(task, limit) {
            Ok(taken) => {
                self.in_pools += 1;
                assert!(self.in_pools <= self.slots.live(), "an operation in a pool is in flight");
                self.pool_queued += u64::from(taken == Taken::DeviceQueued);
            }
            Err(task) => self.refuse(task.job, id, Errno::AGAIN),
        }
    }

    /// Ends an operation that no thread has carried out.
    fn refuse(&mut self, job: Job, id: OpId, error: Errno) {
        Outcome::count(Err(error)).deliver(job.into_op(), id, &mut self.slots, &mut self.done);
    }

    /// Cancels a job that waits in its pool.
    fn withdraw(&mut self, id: OpId, route: Route, device: DeviceId) {
        let Some(job) = self.threads(route).and_then(|pool| pool.withdraw(&self.inbox, device, id)) else {
            return;
        };
        assert!(self.in_pools > 0, "a withdrawn operation was in a pool");
        self.in_pools -= 1;
        self.refuse(job, id, Errno::CANCELED);
    }

    fn turn_net(&mut self, wait: Wait) -> Result<(), Errno> {
        let (slots, done) = (&mut self.slots, &mut self.done);
        match &mut self.net {
            Net::Uring(ring) => {
                let wait = settle(wait, !done.is_empty(), &self.doorbell);
                ring.turn(wait, slots, done)
            }
            Net::Epoll { epoll, ring } => {
                // Staged entries must be submitted before the wait, which is for the ring's descriptor.
                let staged = match ring {
                    Some(ring) => {
                        ring.turn(Wait::No, slots, done)?;
                        ring.has_staged()
                    }
                    None => false,
                };
                let wait = settle(wait, staged || !done.is_empty() || epoll.has_work(), &self.doorbell);
                match (epoll.turn(wait, slots, done)?, ring) {
                    (true, Some(ring)) => ring.turn(Wait::No, slots, done),
                    _ => Ok(()),
                }
            }
        }
    }

    fn collect_outcomes(&mut self) {
        if self.in_pools == 0 {
            return;
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.inbox.take(&mut outcomes);
        assert!(outcomes.len() <= self.in_pools, "an operation with an outcome was in a pool");
        self.in_pools -= outcomes.len();
        for (id, job, outcome) in outcomes.drain(..) {
            outcome.deliver(job.into_op(), id, &mut self.slots, &mut self.done);
        }
        self.outcomes = outcomes;
    }

    /// Starts operations that waited for other operations of their device. They are submitted in the next turn, like
    /// newly submitted operations.
    fn let_in(&mut self) {
        while let Some(device) = self.slots.released.pop() {
            if let Some(next) = self.ring_limit.leave(device) {
                let before = self.slots.held(next).gated.replace(device);
                assert!(before.is_none(), "an operation that waited for its device used none of its share");
                self.start_on_ring(next);
            }
        }
    }
}

impl Engine for Backends {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn submit(&mut self, op: Op, token: u64) -> Result<OpId, Op> {
        if self.is_leaking {
            return Err(op);
        }
        let has_room = match &op {
            Op::Net(_) => !self.slots.is_full(),
            Op::Disk { at, .. } => !self.slots.is_full() && self.slots.disks.has_room(at.device),
        };
        if !has_room {
            self.table_full += 1;
            return Err(op);
        }
        Ok(match op {
            Op::Net(_) => self.start_net(op, token),
            Op::Disk { at, op } => self.start_disk(at, op, token),
        })
    }

    fn cancel(&mut self, id: OpId) {
        let Some(route) = self.slots.get(id).map(|slot| slot.route) else { return };
        let withdrawn = match route {
            Route::Net => {
                return match &mut self.net {
                    Net::Uring(ring) => ring.cancel(id, &mut self.slots, &mut self.done),
                    Net::Epoll { epoll, .. } => epoll.cancel(id, &mut self.slots, &mut self.done),
                };
            }
            // A file operation is cancelled only if no backend has started it; otherwise it runs to its end.
            Route::Ring(device) => self.ring_limit.withdraw(device, |&waiting| waiting == id).is_some(),
            Route::Libaio(_) => self.libaio.as_mut().is_some_and(|libaio| libaio.withdraw(id)),
            Route::Pool(_, device) | Route::PutPool(device) => return self.withdraw(id, route, device),
            Route::Sync => false,
        };
        if withdrawn {
            self.slots.end_with(id, Err(Errno::CANCELED), &mut self.done);
        }
    }

    fn abandon(&mut self, id: OpId) {
        // Completions that were not collected yet must not be returned either; dropping them closes descriptors and
        // frees buffers.
        self.done.retain(|completion| completion.id != id);
        if self.slots.abandon(id) {
            self.cancel(id);
        }
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        if self.is_leaking {
            return Err(Errno::CANCELED);
        }
        self.slots.check();
        if let Some(libaio) = &mut self.libaio {
            libaio.submit(&mut self.slots, &mut self.done);
        }
        let waited = self.turn_net(wait);
        self.doorbell.wake_up();
        self.collect_outcomes();
        if let Some(libaio) = &mut self.libaio {
            libaio.reap(&mut self.slots, &mut self.done);
        }
        self.let_in();
        if batch.is_empty() {
            // Swapped, so that the caller's memory is reused for the next turn.
            std::mem::swap(batch, &mut self.done);
        } else {
            batch.append(&mut self.done);
        }
        waited
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.doorbell) as Waker
    }

    fn drain(&mut self, deadline: Instant) -> Drained {
        if self.is_leaking {
            return Drained::Clean;
        }
        for id in self.slots.in_flight() {
            self.cancel(id);
        }
        self.done.clear();
        let mut dropped = Vec::new();
        while self.slots.live() > 0 {
            let late = Instant::now() >= deadline;
            let failed = self.turn(Wait::Until(deadline), &mut dropped).is_err();
            dropped.clear();
            if failed || late {
                break;
            }
        }
        assert!(self.slots.live() >= self.in_pools, "an operation in a pool has not ended");
        match self.slots.live() {
            0 => Drained::Clean,
            left => {
                self.is_leaking = true;
                Drained::Leaked(left)
            }
        }
    }

    fn counters(&self) -> Counters {
        let ring = self.net.ring().map(Uring::counters).unwrap_or_default();
        let (entries, starved) = match &self.net {
            Net::Uring(_) => (0, 0),
            Net::Epoll { epoll, .. } => (epoll.kernel_entries, epoll.recv_starved),
        };
        Counters {
            submitted: self.slots.submitted,
            completed: self.slots.completed,
            kernel_entries: entries
                + ring.kernel_entries
                + self.libaio.as_ref().map_or(0, Libaio::kernel_entries),
            table_full: self.table_full,
            recv_starved: starved + ring.recv_starved,
            device_queued: self.ring_limit.queued + self.pool_queued,
            unmatched: self.slots.unmatched,
        }
    }

    fn take_note(&mut self) -> Option<Note> {
        self.net.ring_mut()?.take_note()
    }

    fn trim(&mut self) -> usize {
        self.slots.trim();
        match &mut self.net {
            // A ring first removes the registrations of the pool's chunks.
            Net::Uring(ring) => ring.trim(),
            Net::Epoll { epoll, ring: Some(ring) } => epoll.trim() + ring.trim(),
            Net::Epoll { epoll, ring: None } => epoll.trim() + self.pool.trim(|_| true),
        }
    }
}

impl Drop for Backends {
    fn drop(&mut self) {
        if self.slots.live() > 0 {
            self.drain(Instant::now() + DROP_DRAIN);
        }
        if self.slots.live() > 0 {
            // The kernel or a pool thread may still write to memory of the table. The pool memory of a leaked buffer
            // stays mapped, because the buffer keeps its pool alive. The libaio context would wait for its reads.
            std::mem::forget(std::mem::replace(&mut self.slots, Slots::new(0)));
            std::mem::forget(self.libaio.take());
        }
    }
}

impl Net {
    fn new(config: &EngineConfig, pool: &Pool, doorbell: &Arc<Doorbell>) -> Result<Net, BuildError> {
        match config.net {
            NetKind::Uring => {
                let mut ring = Uring::new(config, pool, Role::NetAndDisk).map_err(BuildError::Ring)?;
                // A duplicate, because the ring owns the descriptor that it watches.
                let watched = rustix::io::fcntl_dupfd_cloexec(doorbell.as_fd(), 0);
                ring.watch(Fd::from(watched.map_err(BuildError::Doorbell)?));
                Ok(Net::Uring(ring))
            }
            NetKind::Epoll => {
                let mut epoll = Epoll::new(config, pool, doorbell.as_fd()).map_err(BuildError::Epoll)?;
                let ring = match config.disk_ring {
                    true => Some(Uring::new(config, pool, Role::DiskOnly).map_err(BuildError::Ring)?),
                    false => None,
                };
                if let Some(ring) = &ring {
                    epoll.watch_disk(ring.as_fd()).map_err(BuildError::Epoll)?;
                }
                Ok(Net::Epoll { epoll, ring })
            }
        }
    }

    fn ring(&self) -> Option<&Uring> {
        match self {
            Net::Uring(ring) => Some(ring),
            Net::Epoll { ring, .. } => ring.as_ref(),
        }
    }

    fn ring_mut(&mut self) -> Option<&mut Uring> {
        match self {
            Net::Uring(ring) => Some(ring),
            Net::Epoll { ring, .. } => ring.as_mut(),
        }
    }
}

/// Returns how long a turn may wait: not at all if completions are ready or the bell was rung.
fn settle(wait: Wait, ready: bool, doorbell: &Doorbell) -> Wait {
    if wait == Wait::No || ready || !doorbell.fall_asleep() { Wait::No } else { wait }
}

#[cfg(test)]
mod tests;
