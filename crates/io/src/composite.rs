//! One engine out of a network backend and the disk backends.
//!
//! [`build`] makes it in the thread that will use it. Each operation goes to the network backend or, by
//! its [`DiskVia`], to a disk backend; all of them are reachable at the same time and all end the same wait.
//! The table of operations, the gates of the devices and the results that wait for the next turn are here.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buf::Pool;
use crate::device::{Gates, share_of};
use crate::disk::job::{Job, Outcome};
use crate::disk::sync;
use crate::disk::threads::{Inbox, Taken, Task, ThreadPool};
use crate::doorbell::Doorbell;
use crate::engine::{Caps, Counters, Drained, Engine, EngineConfig, NetKind, Wait, Waker};
use crate::epoll::Epoll;
use crate::op::{Completion, DeviceId, DiskVia, Op, OpId};
use crate::slot::Slots;

/// How long an engine that is dropped without a drain waits for its operations.
const DROP_DRAIN: Duration = Duration::from_secs(1);

/// Why an engine could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The eventfd that other threads wake the engine with, or its registration.
    Doorbell(Errno),
    /// The epoll instance.
    Epoll(Errno),
}

impl BuildError {
    /// What probably stands in the way.
    pub fn cause(&self) -> &'static str {
        match self {
            BuildError::Doorbell(errno) | BuildError::Epoll(errno) => descriptor_cause(*errno),
        }
    }

    /// What an operator can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            BuildError::Doorbell(errno) | BuildError::Epoll(errno) => descriptor_remedy(*errno),
        }
    }
}

fn descriptor_cause(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => "the process has no descriptor left",
        Errno::NFILE => "the system has no descriptor left",
        Errno::NOMEM => "the kernel has no memory left",
        Errno::NOSYS | Errno::PERM => "a seccomp profile forbids the call",
        _ => "the kernel refused",
    }
}

fn descriptor_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => "raise worker_rlimit_nofile or \"ulimit -n\"",
        Errno::NFILE => "raise fs.file-max",
        Errno::NOMEM => "give the container or the system more memory",
        _ => "allow epoll_create1, epoll_ctl, epoll_pwait and eventfd2",
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, errno) = match self {
            BuildError::Doorbell(errno) => ("eventfd", errno),
            BuildError::Epoll(errno) => ("epoll", errno),
        };
        write!(f, "{call}: {errno}: {}; {}", self.cause(), self.remedy())
    }
}

impl std::error::Error for BuildError {}

/// Makes an engine for the calling thread.
pub fn build(config: EngineConfig) -> Result<Box<dyn Engine>, BuildError> {
    Ok(Box::new(Composite::new(config)?))
}

/// One thread's engine.
struct Composite {
    caps: Caps,
    pool: Pool,
    doorbell: Arc<Doorbell>,
    /// `None` once they had to be leaked.
    backends: Option<Backends>,
    last: Counters,
}

/// What is leaked as a whole when an operation cannot be ended.
struct Backends {
    net: Net,
    pools: Vec<Arc<ThreadPool>>,
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
    device_share: u32,
    try_resident: bool,
    table_full: u64,
    device_queued: u64,
}

/// The network backend.
enum Net {
    Epoll(Epoll),
}

/// Which disk backend an operation goes to, after the missing ones have been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Pool(usize),
    Sync,
}

impl Composite {
    fn new(config: EngineConfig) -> Result<Composite, BuildError> {
        let pool = Pool::new(config.pool_bytes_max);
        let doorbell = Arc::new(Doorbell::new().map_err(BuildError::Doorbell)?);
        let net = Net::Epoll(Epoll::new(&config, &pool, doorbell.as_fd()).map_err(BuildError::Epoll)?);
        let caps = Caps {
            net: NetKind::Epoll,
            disk_ring: false,
            disk_libaio: false,
            pools: config.pools.len().min(u8::MAX as usize) as u8,
            send_zero_copy: false,
        };
        let backends = Backends {
            net,
            inbox: Inbox::new(Arc::clone(&doorbell)),
            outcomes: Vec::new(),
            in_pools: 0,
            gates: Gates::new(config.iowq_workers, config.device_share),
            slots: Slots::new(config.ops_max),
            done: Vec::new(),
            doorbell: Arc::clone(&doorbell),
            device_share: config.device_share,
            try_resident: config.pool_tries_resident,
            table_full: 0,
            device_queued: 0,
            pools: config.pools,
        };
        Ok(Composite { caps, pool, doorbell, backends: Some(backends), last: Counters::default() })
    }
}

impl Engine for Composite {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Op> {
        match &mut self.backends {
            Some(backends) => backends.submit(op),
            None => Err(op),
        }
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(backends) = &mut self.backends {
            backends.cancel(id);
        }
    }

    fn abandon(&mut self, id: OpId) {
        if let Some(backends) = &mut self.backends {
            backends.abandon(id);
        }
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        match &mut self.backends {
            Some(backends) => backends.turn(wait, batch),
            // Nothing can happen any more, and waiting for it would be for ever.
            None => Err(Errno::CANCELED),
        }
    }

    fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.doorbell) as Arc<dyn crate::engine::Wake>)
    }

    fn drain(&mut self, deadline: Instant) -> Drained {
        let Some(backends) = &mut self.backends else { return Drained::Clean };
        let left = backends.drain(deadline);
        self.last = backends.counters();
        if left == 0 {
            return Drained::Clean;
        }
        // The kernel or a pool thread may still write to what the table owns. Pool memory that a leaked
        // buffer belongs to stays mapped, because the buffer keeps its pool alive.
        std::mem::forget(self.backends.take());
        Drained::Leaked(left)
    }

    fn counters(&self) -> Counters {
        self.backends.as_ref().map_or(self.last, Backends::counters)
    }

    fn trim(&mut self) -> usize {
        let Some(backends) = &mut self.backends else { return 0 };
        let Net::Epoll(epoll) = &mut backends.net;
        epoll.trim() + self.pool.trim(|_| true)
    }
}

impl Drop for Composite {
    fn drop(&mut self) {
        if self.backends.as_ref().is_some_and(|backends| backends.slots.live() > 0) {
            self.drain(Instant::now() + DROP_DRAIN);
        }
    }
}

impl Backends {
    fn submit(&mut self, op: Op) -> Result<OpId, Op> {
        let disk = op.disk();
        let id = self.slots.insert(op).inspect_err(|_| self.table_full += 1)?;
        match disk {
            None => self.start_net(id),
            Some((via, device)) => self.start_disk(id, via, device),
        }
        Ok(id)
    }

    fn start_net(&mut self, id: OpId) {
        match &mut self.net {
            Net::Epoll(epoll) => epoll.start(id, &mut self.slots, &mut self.done),
        }
    }

    fn start_disk(&mut self, id: OpId, via: DiskVia, device: DeviceId) {
        match self.backend(via) {
            Disk::Pool(number) => self.start_in_pool(id, number, device),
            Disk::Sync => self.start_inline(id),
        }
    }

    /// The backend for `via`: where it is missing, the first pool, and the blocking call where there is
    /// none of these.
    fn backend(&self, via: DiskVia) -> Disk {
        match via {
            DiskVia::Sync => Disk::Sync,
            DiskVia::Pool(number) if usize::from(number) < self.pools.len() => Disk::Pool(number.into()),
            _ if self.pools.is_empty() => Disk::Sync,
            _ => Disk::Pool(0),
        }
    }

    fn start_inline(&mut self, id: OpId) {
        let socket = match self.slots.get(id).and_then(|slot| slot.op.as_ref()) {
            Some(Op::Sendfile { socket, .. }) => Some(socket.clone()),
            _ => None,
        };
        let full = sync::start(id, &mut self.slots, &mut self.done);
        if let (true, Some(socket), Net::Epoll(epoll)) = (full, socket, &mut self.net) {
            epoll.note_full(&socket);
        }
    }

    fn start_in_pool(&mut self, id: OpId, number: usize, device: DeviceId) {
        let op = self.slots.get(id).and_then(|slot| slot.op.as_mut()).expect("it was just submitted");
        // A direct read would wait for the disk in spite of RWF_NOWAIT.
        let may_be_resident = self.try_resident && matches!(op, Op::Read { file, .. } if !file.is_direct());
        let job = Job::new(op).expect("only operations on files come here");
        if let Some(outcome) = may_be_resident.then(|| job.run_if_resident()).flatten() {
            return outcome.deliver(id, &mut self.slots, &mut self.done);
        }
        let pool = &self.pools[number];
        let limit = share_of(pool.threads(), self.device_share);
        let task = Task { job, id, device, inbox: Arc::clone(&self.inbox) };
        match pool.push(task, limit) {
            Taken::Ready => self.in_pools += 1,
            Taken::DeviceQueued => {
                self.in_pools += 1;
                self.device_queued += 1;
            }
            Taken::Overflow => {
                Outcome::count(Err(Errno::AGAIN)).deliver(id, &mut self.slots, &mut self.done);
            }
        }
    }

    fn cancel(&mut self, id: OpId) {
        let Some(op) = self.slots.get(id).and_then(|slot| slot.op.as_ref()) else { return };
        match op.disk() {
            None => match &mut self.net {
                Net::Epoll(epoll) => epoll.cancel(id, &mut self.slots, &mut self.done),
            },
            Some((via, device)) => self.withdraw(id, via, device),
        }
    }

    /// Ends a file operation that no backend has begun; one that has begun runs to its end.
    fn withdraw(&mut self, id: OpId, via: DiskVia, device: DeviceId) {
        let withdrawn = match self.backend(via) {
            Disk::Pool(number) => self.pools[number].withdraw(&self.inbox, device, id),
            Disk::Sync => false,
        };
        if withdrawn {
            self.in_pools -= 1;
            Outcome::count(Err(Errno::CANCELED)).deliver(id, &mut self.slots, &mut self.done);
        }
    }

    fn abandon(&mut self, id: OpId) {
        // What has come but was not collected yet must not be shown either; dropping it closes or frees.
        self.done.retain(|completion| completion.id != id);
        if self.slots.abandon(id) {
            self.cancel(id);
        }
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        let wait = self.wait_for(wait);
        let waited = match &mut self.net {
            Net::Epoll(epoll) => epoll.turn(wait, &mut self.slots, &mut self.done).map(|_| ()),
        };
        self.doorbell.wake_up();
        self.collect_outcomes();
        batch.append(&mut self.done);
        waited
    }

    /// How long this turn may wait: not at all when something is there already.
    fn wait_for(&self, wait: Wait) -> Wait {
        let ready = match &self.net {
            Net::Epoll(epoll) => epoll.has_work() || !self.done.is_empty(),
        };
        if wait == Wait::No || ready || !self.doorbell.fall_asleep() { Wait::No } else { wait }
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

    /// Ends everything; answers how many operations did not end in time.
    fn drain(&mut self, deadline: Instant) -> usize {
        for id in self.slots.in_flight() {
            self.cancel(id);
        }
        let mut dropped = Vec::new();
        loop {
            dropped.clear();
            self.done.clear();
            if self.slots.live() == 0 {
                return 0;
            }
            let failed = self.turn(Wait::Until(deadline), &mut dropped).is_err();
            if failed || (Instant::now() >= deadline && dropped.is_empty()) {
                return self.slots.live();
            }
        }
    }

    fn counters(&self) -> Counters {
        let Net::Epoll(epoll) = &self.net;
        Counters {
            submitted: self.slots.submitted,
            completed: self.slots.completed,
            kernel_entries: epoll.kernel_entries,
            table_full: self.table_full,
            recv_starved: epoll.recv_starved,
            device_queued: self.gates.queued + self.device_queued,
            stray: self.slots.stray,
        }
    }
}
