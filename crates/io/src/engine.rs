//! The contract of an engine, its settings and its capabilities.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::DiskVia;
use crate::buf::Pool;
use crate::op::{Completion, Op, OpId};
pub use crate::wake::{Wake, Waker};

/// How long [`Engine::turn`] may wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: there is other work.
    No,
    /// Until this time at the latest.
    Until(Instant),
    /// Until something completes or the waker is used.
    Forever,
}

/// The outcome of an engine's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All have completed.
    Clean,
    /// N have not; memory that the kernel may still write to was leaked, not freed.
    Leaked(usize),
}

/// One worker thread's engine. Not `Send`: a ring belongs to the thread that made it.
pub trait Engine {
    /// Which backends are behind it.
    fn caps(&self) -> &Caps;

    /// The buffers of this thread.
    fn pool(&self) -> &Pool;

    /// Takes an operation without blocking; the result comes from a later [`Engine::turn`], never from
    /// here. `Err` gives the operation back when the table of operations is full.
    ///
    /// A slot is not reused before [`Engine::turn`] has returned the terminal completion of its operation, or the
    /// operation was abandoned. A caller that reads a whole batch before it submits finds at most one of its operations
    /// at each slot.
    ///
    /// A receive into the pool ([`crate::op::RecvInto`]) never ends with `ENOBUFS`: without a buffer the engine parks it
    /// and starts it again once there is one.
    fn submit(&mut self, op: Op) -> Result<OpId, Op>;

    /// Asks for an early end. The terminal completion still comes: `ECANCELED`, or what happened first.
    /// Operations on files run to their end.
    fn cancel(&mut self, id: OpId);

    /// As [`Engine::cancel`], and no completion of it is ever shown: the engine closes, frees or gives back the
    /// results. For a caller that is gone.
    fn abandon(&mut self, id: OpId);

    /// Submits, waits and collects in one kernel entry; appends to `batch`. An interrupted wait is no error. Every
    /// completion of an operation whose name the caller has appears exactly once.
    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno>;

    /// Ends a wait of [`Engine::turn`] from any thread.
    fn waker(&self) -> Waker;

    /// Cancels everything and waits until all operations have completed or `deadline` has come.
    fn drain(&mut self, deadline: Instant) -> Drained;

    /// Numbers since start.
    fn counters(&self) -> Counters;

    /// Gives idle memory back to the system; returns the bytes.
    fn trim(&mut self) -> usize;

    /// Something that the operator should hear of, each only once; to be called from time to time.
    fn take_note(&mut self) -> Option<Note> {
        None
    }
}

/// Something that works less well than it could, for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Buffers for direct reads could not be registered, so the kernel looks their pages up at each read.
    BuffersUnregistered {
        /// The kernel's error; `ENOMEM` is most often the limit on locked memory.
        errno: Errno,
        /// Bytes that are registered all the same.
        registered_bytes: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note::BuffersUnregistered { errno, registered_bytes } = self;
        let (errno, kib) = (std::io::Error::from(*errno), registered_bytes / 1024);
        write!(f, "direct reads go on with {kib} KiB of registered buffers and no more: {errno}; ")?;
        f.write_str("remedy: raise the limit on locked memory (LimitMEMLOCK=, ulimit -l)")
    }
}

/// The network backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetKind {
    /// io_uring.
    Uring,
    /// epoll.
    Epoll,
}

/// The capabilities of an engine, found by the probe; fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The network backend.
    pub net: NetKind,
    /// Whether [`crate::DiskVia::Ring`] works.
    pub disk_ring: bool,
    /// Whether [`crate::DiskVia::Libaio`] works.
    pub disk_libaio: bool,
    /// Number of thread pools.
    pub pools: u8,
    /// Whether zero-copy sends can be had.
    pub send_zero_copy: bool,
    /// Bytes of the buffers of [`crate::op::RecvInto::Pool`].
    pub recv_buffer_bytes: u32,
}

impl Caps {
    /// The best engine for buffered files that the server itself reads and writes, such as logs: libaio would block there.
    pub fn best_disk(&self) -> DiskVia {
        if self.disk_ring { DiskVia::Ring } else { self.best_pool() }
    }

    /// The first thread pool, or blocking calls where there is none.
    pub fn best_pool(&self) -> DiskVia {
        if self.pools > 0 { DiskVia::Pool(0) } else { DiskVia::Sync }
    }
}

/// Files of one device that threads make at once. They wait for each other in the directory and in the journal, so that
/// more threads only take turns.
pub const PUTS_MAX: usize = 4;

/// Settings of one thread's engine. The defaults need no touching.
#[derive(Clone)]
pub struct EngineConfig {
    /// The network backend.
    pub net: NetKind,
    /// Whether to make a ring for the disk when the network does not use one.
    pub disk_ring: bool,
    /// Whether to make a libaio context; its depth is `libaio_depth`.
    pub disk_libaio: bool,
    /// Entries of the submission queue; a power of two. 1024 covers a turn of many connections.
    pub ring_entries: u32,
    /// Operations in flight at once; the completion queue is made to hold them. Follows
    /// `worker_connections`.
    pub ops_max: u32,
    /// Buffers that wait in the ring for received bytes; a power of two up to 32768.
    pub recv_buffers: u16,
    /// Bytes of each of them: the size of a usual request head and some more.
    pub recv_buffer_bytes: u32,
    /// Most bytes that this thread's buffer pool takes from the kernel.
    pub pool_bytes_max: usize,
    /// Kernel workers of the ring for operations on files (`IORING_REGISTER_IOWQ_MAX_WORKERS`, bounded). A device may
    /// hold a quarter of them, which limits its concurrent cold opens: a fast disk has queues for more than a few, and
    /// further operations wait outside of the kernel.
    pub iowq_workers: u32,
    /// Share of the kernel workers, or of a pool's threads, that one device may hold: one in this many.
    pub device_share: u32,
    /// Requests in flight in libaio (`worker_aio_requests`).
    pub libaio_depth: u32,
    /// Thread pools of the process, by the number that [`crate::DiskVia::Pool`] names.
    pub pools: Vec<Arc<crate::disk::threads::ThreadPool>>,
    /// Separate threads for [`crate::Op::Put`]; without them it takes the way of operations that a ring lacks.
    pub put_pool: Option<Arc<crate::disk::threads::ThreadPool>>,
    /// Whether a read for a pool first tries resident pages (`preadv2` with `RWF_NOWAIT`), which saves the hop when it
    /// succeeds and one cheap call when it does not.
    pub pool_tries_resident: bool,
    /// Faults to inject, for tests; nothing precedes the engine without them.
    pub faults: Option<Arc<crate::fault::FaultPlan>>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            net: NetKind::Uring,
            disk_ring: true,
            disk_libaio: false,
            ring_entries: 1024,
            ops_max: 4096,
            recv_buffers: 1024,
            recv_buffer_bytes: 4096,
            pool_bytes_max: 256 << 20,
            iowq_workers: 128,
            device_share: 4,
            libaio_depth: 32,
            pools: Vec::new(),
            put_pool: None,
            pool_tries_resident: true,
            faults: None,
        }
    }
}

/// Numbers of one engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations taken.
    pub submitted: u64,
    /// Terminal completions, those of abandoned operations included.
    pub completed: u64,
    /// Kernel entries made by `turn` and `submit`.
    pub kernel_entries: u64,
    /// Operations refused because the table was full.
    pub table_full: u64,
    /// Times that no buffer was left for received bytes (ENOBUFS).
    pub recv_starved: u64,
    /// Operations that waited because their device already had its share of workers.
    pub device_queued: u64,
    /// Completions that named no operation in flight: a defect or a kernel's.
    pub stray: u64,
}

/// How long a drain waits when nothing else is said: longer than any healthy disk needs.
pub const DRAIN_DEFAULT: Duration = Duration::from_secs(5);
