//! The backends of one engine, the table of operations that they share, and the way of an operation
//! through them.
//!
//! ```text
//! submit -> network backend
//!        -> sync                                   (inline)
//!        -> resident? -> thread pool -> inbox      (rings the doorbell)
//!        -> gate of the device -> ring
//!        -> libaio queue                           (rings the doorbell)
//! each -> done -> the batch of the next turn
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::buf::Pool;
use crate::composite::BuildError;
use crate::device::{Gates, share_of};
use crate::disk::job::{Job, Outcome};
use crate::disk::libaio::Libaio;
use crate::disk::sync;
use crate::disk::threads::{Inbox, Taken, Task, ThreadPool};
use crate::doorbell::Doorbell;
use crate::engine::{Caps, Counters, EngineConfig, NetKind, Note, PUTS_MAX, Wait};
use crate::epoll::Epoll;
use crate::op::{Completion, DeviceId, DiskVia, Fd, Op, OpId};
use crate::slot::Slots;
use crate::uring::{Role, Uring};

/// What is leaked as a whole when an operation cannot be ended.
pub(super) struct Backends {
    net: Net,
    libaio: Option<Libaio>,
    pools: Vec<Arc<ThreadPool>>,
    /// Threads for [`Op::Put`], where it has its own.
    makers: Option<Arc<ThreadPool>>,
    inbox: Arc<Inbox>,
    /// Pool outcomes on their way into `done`; kept for its memory.
    outcomes: Vec<(OpId, Outcome)>,
    /// Operations that pool threads have.
    in_pools: usize,
    gates: Gates,
    slots: Slots,
    /// Completions for the next turn.
    done: Vec<Completion>,
    doorbell: Arc<Doorbell>,
    pool: Pool,
    recv_buffer_bytes: u32,
    device_share: u32,
    try_resident: bool,
    table_full: u64,
    /// Operations that a pool let wait for their device.
    pool_queued: u64,
}

/// The network backend, and the ring where there is one.
enum Net {
    /// A ring for sockets and files.
    Uring(Uring),
    /// epoll for sockets; a ring in its set for files.
    Epoll { epoll: Epoll, ring: Option<Uring> },
}

/// Which disk backend an operation goes to, after the missing ones have been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Ring,
    Libaio,
    Pool(usize),
    Makers,
    Sync,
}

impl Backends {
    pub(super) fn new(
        config: EngineConfig,
        pool: &Pool,
        doorbell: &Arc<Doorbell>,
    ) -> Result<Backends, BuildError> {
        let net = Net::new(&config, pool, doorbell)?;
        let depth = config.libaio_depth;
        let libaio = match config.disk_libaio {
            true => Some(Libaio::new(depth, doorbell).map_err(|errno| BuildError::Libaio { errno, depth })?),
            false => None,
        };
        Ok(Backends {
            net,
            libaio,
            inbox: Inbox::new(Arc::clone(doorbell)),
            outcomes: Vec::new(),
            in_pools: 0,
            gates: Gates::new(config.iowq_workers, config.device_share),
            slots: Slots::new(config.ops_max),
            done: Vec::new(),
            doorbell: Arc::clone(doorbell),
            pool: pool.clone(),
            recv_buffer_bytes: config.recv_buffer_bytes,
            device_share: config.device_share,
            try_resident: config.pool_tries_resident,
            table_full: 0,
            pool_queued: 0,
            pools: config.pools,
            makers: config.makers,
        })
    }

    /// What there is.
    pub(super) fn caps(&self) -> Caps {
        let (net, send_zero_copy) = match &self.net {
            Net::Uring(ring) => (NetKind::Uring, ring.send_zero_copy()),
            Net::Epoll { .. } => (NetKind::Epoll, false),
        };
        Caps {
            net,
            disk_ring: self.net.ring().is_some(),
            disk_libaio: self.libaio.is_some(),
            pools: self.pools.len().min(u8::MAX as usize) as u8,
            send_zero_copy,
            recv_buffer_bytes: self.recv_buffer_bytes,
        }
    }

    /// Operations in flight.
    pub(super) fn live(&self) -> usize {
        self.slots.live()
    }

    pub(super) fn submit(&mut self, op: Op) -> Result<OpId, Op> {
        let disk = op.disk();
        let id = self.slots.insert(op).inspect_err(|_| self.table_full += 1)?;
        match disk {
            Some((via, device)) => self.start_disk(id, via, device),
            None => match &mut self.net {
                Net::Uring(ring) => ring.start(id, &mut self.slots, &mut self.done),
                Net::Epoll { epoll, .. } => epoll.start(id, &mut self.slots, &mut self.done),
            },
        }
        Ok(id)
    }

    fn start_disk(&mut self, id: OpId, via: DiskVia, device: DeviceId) {
        let disk = self.backend(id, via);
        match disk {
            Disk::Ring => self.start_gated(id, device),
            Disk::Libaio => match &mut self.libaio {
                Some(libaio) => libaio.push(id),
                None => self.start_inline(id),
            },
            Disk::Pool(_) | Disk::Makers => self.start_in_pool(id, disk, device),
            Disk::Sync => self.start_inline(id),
        }
    }

    /// The backend that carries the operation out: the one asked for where it is there and can do it, else
    /// the first pool, else the blocking call.
    fn backend(&mut self, id: OpId, via: DiskVia) -> Disk {
        let op = self.slots.get(id).and_then(|slot| slot.op.as_ref());
        let by_ring = self.net.ring().zip(op).is_some_and(|(ring, op)| !ring.lacks(op));
        let reads_directly = matches!(op, Some(Op::Read { file, .. }) if file.is_direct());
        match via {
            _ if self.makers.is_some() && matches!(op, Some(Op::Put { .. })) => Disk::Makers,
            DiskVia::Sync => Disk::Sync,
            DiskVia::Ring if by_ring => Disk::Ring,
            DiskVia::Libaio if self.libaio.is_some() && reads_directly => Disk::Libaio,
            DiskVia::Pool(number) if usize::from(number) < self.pools.len() => Disk::Pool(number.into()),
            _ if self.pools.is_empty() => Disk::Sync,
            _ => Disk::Pool(0),
        }
    }

    /// Starts an operation on the ring when its device has a worker to spare. Direct reads need none: the
    /// kernel does not punt them to a worker.
    fn start_gated(&mut self, id: OpId, device: DeviceId) {
        let slot = self.slots.held(id);
        if !matches!(&slot.op, Some(Op::Read { file, .. }) if file.is_direct()) {
            if !self.gates.enter(device, id) {
                return;
            }
            slot.gated = Some(device);
        }
        self.start_on_ring(id);
    }

    fn start_on_ring(&mut self, id: OpId) {
        match self.net.ring_mut() {
            Some(ring) => ring.start(id, &mut self.slots, &mut self.done),
            None => self.start_inline(id),
        }
    }

    fn start_inline(&mut self, id: OpId) {
        let socket = match self.slots.get(id).and_then(|slot| slot.op.as_ref()) {
            Some(Op::Sendfile { socket, .. }) => Some(socket.clone()),
            _ => None,
        };
        let full = sync::start(id, &mut self.slots, &mut self.done);
        if let (true, Some(socket), Net::Epoll { epoll, .. }) = (full, socket, &mut self.net) {
            epoll.note_full(&socket);
        }
    }

    /// The threads behind a choice.
    fn threads(&self, disk: Disk) -> Option<&Arc<ThreadPool>> {
        match disk {
            Disk::Pool(number) => self.pools.get(number),
            Disk::Makers => self.makers.as_ref(),
            Disk::Ring | Disk::Libaio | Disk::Sync => None,
        }
    }

    fn start_in_pool(&mut self, id: OpId, disk: Disk, device: DeviceId) {
        let Some(pool) = self.threads(disk).cloned() else { return self.start_inline(id) };
        let op = self.slots.op(id);
        let puts = matches!(op, Op::Put { .. });
        // A direct read would wait for the disk in spite of RWF_NOWAIT.
        let may_be_resident = self.try_resident && matches!(op, Op::Read { file, .. } if !file.is_direct());
        let job = Job::new(op);
        if let Some(outcome) = may_be_resident.then(|| job.run_if_resident()).flatten() {
            return outcome.deliver(id, &mut self.slots, &mut self.done);
        }
        let share = share_of(pool.threads(), self.device_share);
        let limit = if puts { PUTS_MAX.min(pool.threads()) } else { share };
        let task = Task { job, id, device, inbox: Arc::clone(&self.inbox) };
        match pool.push(task, limit) {
            Taken::Ready => self.in_pools += 1,
            Taken::DeviceQueued => {
                self.in_pools += 1;
                self.pool_queued += 1;
            }
            Taken::Overflow => {
                Outcome::count(Err(Errno::AGAIN)).deliver(id, &mut self.slots, &mut self.done);
            }
        }
    }

    pub(super) fn cancel(&mut self, id: OpId) {
        let Some(op) = self.slots.get(id).and_then(|slot| slot.op.as_ref()) else { return };
        match (op.disk(), &mut self.net) {
            (Some((via, device)), _) => self.withdraw(id, via, device),
            (None, Net::Uring(ring)) => ring.cancel(id, &mut self.slots),
            (None, Net::Epoll { epoll, .. }) => epoll.cancel(id, &mut self.slots, &mut self.done),
        }
    }

    /// Ends a file operation that no backend has begun; one that has begun runs to its end.
    fn withdraw(&mut self, id: OpId, via: DiskVia, device: DeviceId) {
        let withdrawn = match self.backend(id, via) {
            Disk::Ring => self.gates.forget(device, id),
            Disk::Libaio => self.libaio.as_mut().is_some_and(|libaio| libaio.withdraw(id)),
            disk @ (Disk::Pool(_) | Disk::Makers) => {
                let found = self.threads(disk).is_some_and(|pool| pool.withdraw(&self.inbox, device, id));
                self.in_pools -= usize::from(found);
                found
            }
            Disk::Sync => false,
        };
        if withdrawn {
            Outcome::count(Err(Errno::CANCELED)).deliver(id, &mut self.slots, &mut self.done);
        }
    }

    pub(super) fn abandon(&mut self, id: OpId) {
        // What has come but was not collected yet must not be shown either; dropping it closes or frees.
        self.done.retain(|completion| completion.id != id);
        if self.slots.abandon(id) {
            self.cancel(id);
        }
    }

    pub(super) fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        self.slots.recycle();
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
            // The caller's memory serves for the next turn.
            std::mem::swap(batch, &mut self.done);
        } else {
            batch.append(&mut self.done);
        }
        waited
    }

    fn turn_net(&mut self, wait: Wait) -> Result<(), Errno> {
        let (slots, done) = (&mut self.slots, &mut self.done);
        match &mut self.net {
            Net::Uring(ring) => {
                let wait = settle(wait, !done.is_empty(), &self.doorbell);
                let turned = ring.turn(wait, slots, done);
                // The turn is over either way; everything that can ring is looked at after each.
                ring.take_doorbell();
                turned
            }
            Net::Epoll { epoll, ring } => {
                // What is staged must be submitted before the wait, which is for the ring's descriptor.
                let staged = match ring {
                    Some(ring) => {
                        ring.poll(slots, done)?;
                        ring.has_staged()
                    }
                    None => false,
                };
                let wait = settle(wait, staged || !done.is_empty() || epoll.has_work(), &self.doorbell);
                let heard = epoll.turn(wait, slots, done)?;
                match ring {
                    Some(ring) if heard.disk => ring.poll(slots, done),
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
        self.in_pools -= outcomes.len();
        for (id, outcome) in outcomes.drain(..) {
            outcome.deliver(id, &mut self.slots, &mut self.done);
        }
        self.outcomes = outcomes;
    }

    /// Starts operations that waited for others of their device to end. They are submitted with the next
    /// turn, as if their callers had submitted them now.
    fn let_in(&mut self) {
        while let Some(device) = self.slots.released.pop() {
            if let Some(next) = self.gates.leave(device) {
                self.slots.held(next).gated = Some(device);
                self.start_on_ring(next);
            }
        }
    }

    /// Ends everything; answers how many operations did not end in time.
    pub(super) fn drain(&mut self, deadline: Instant) -> usize {
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
        self.slots.live()
    }

    pub(super) fn counters(&self) -> Counters {
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
            device_queued: self.gates.queued + self.pool_queued,
            stray: self.slots.stray,
        }
    }

    /// What the ring has to say to the operator.
    pub(super) fn take_note(&mut self) -> Option<Note> {
        self.net.ring_mut()?.take_note()
    }

    /// Gives idle memory back; answers the bytes.
    pub(super) fn trim(&mut self) -> usize {
        self.slots.trim();
        match &mut self.net {
            // A ring knows chunks of the pool and lets go of them first.
            Net::Uring(ring) => ring.trim(),
            Net::Epoll { epoll, ring: Some(ring) } => epoll.trim() + ring.trim(),
            Net::Epoll { epoll, ring: None } => epoll.trim() + self.pool.trim(|_| true),
        }
    }
}

impl Net {
    fn new(config: &EngineConfig, pool: &Pool, doorbell: &Arc<Doorbell>) -> Result<Net, BuildError> {
        match config.net {
            NetKind::Uring => {
                let mut ring = Uring::new(config, pool, Role::NetAndDisk).map_err(BuildError::Ring)?;
                // The ring keeps a reference of its own, which may outlive ours in a leak.
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

/// How long a turn may wait: not at all when something is there already or the bell has rung.
fn settle(wait: Wait, ready: bool, doorbell: &Doorbell) -> Wait {
    if wait == Wait::No || ready || !doorbell.fall_asleep() { Wait::No } else { wait }
}

#[cfg(test)]
mod tests;
