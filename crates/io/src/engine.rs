//! The contract of an engine, its settings and its capabilities.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::DiskVia;
use crate::buf::Pool;
pub use crate::doorbell::Wake;
use crate::op::{Completion, Op, OpId};

/// Wakes an engine's wait from any thread. Cheap to clone.
pub type Waker = Arc<dyn Wake>;

/// How long [`Engine::turn`] may wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait: the caller has other work.
    No,
    /// Until this time at the latest.
    Until(Instant),
    /// Until an operation completes or the waker is used.
    Forever,
}

/// The outcome of [`Engine::drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All operations have completed.
    Clean,
    /// Number of operations that have not completed. The engine leaks the memory that the kernel may still write to,
    /// and accepts no further operation.
    Leaked(usize),
}

/// The engine of one worker thread. Not `Send`: an io_uring instance belongs to the thread that created it.
pub trait Engine {
    /// Returns the capabilities of the engine's backends.
    fn caps(&self) -> &Caps;

    /// Returns the buffer pool of this thread.
    fn pool(&self) -> &Pool;

    /// Accepts an operation without blocking. A later [`Engine::turn`] returns the result, never this call. The
    /// completions have `token`, with which the caller finds its record of the operation. `Err` returns the operation
    /// when the table of operations is full, or has no slot for the operation's device. So a disk that hangs stops
    /// neither sockets nor other disks.
    ///
    /// A receive into the pool ([`crate::op::RecvInto`]) never fails with `ENOBUFS`: without a free buffer the engine
    /// queues it and restarts it when a buffer is available.
    fn submit(&mut self, op: Op, token: u64) -> Result<OpId, Op>;

    /// Requests an early end of the operation. The terminal completion still arrives: `ECANCELED`, or the result if the
    /// operation completed before. Operations on files that have started run to their end.
    fn cancel(&mut self, id: OpId);

    /// As [`Engine::cancel`], but no completion of the operation is returned: the engine closes, frees or recycles its
    /// results. For a caller that no longer exists.
    fn abandon(&mut self, id: OpId);

    /// Submits, waits and collects completions in one kernel entry; appends them to `batch`. An interrupted wait is not
    /// an error. Every completion of an operation that was not abandoned is returned exactly once.
    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno>;

    /// Wakes a wait in [`Engine::turn`] from any thread.
    fn waker(&self) -> Waker;

    /// Cancels all operations and waits until they have completed or `deadline` has passed.
    fn drain(&mut self, deadline: Instant) -> Drained;

    /// Returns the counters since start.
    fn counters(&self) -> Counters;

    /// Releases idle memory to the kernel; returns the number of bytes.
    fn trim(&mut self) -> usize;

    /// Returns a degraded condition to report to the operator; each condition is returned once. Callers call this
    /// function from time to time.
    fn take_note(&mut self) -> Option<Note> {
        None
    }
}

/// A degraded condition, for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Buffers for direct reads could not be registered, so the kernel pins their pages at each read.
    BuffersUnregistered {
        /// The kernel's error; for `ENOMEM` the usual cause is the limit on locked memory.
        errno: Errno,
        /// Bytes that are registered nevertheless.
        registered_bytes: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note::BuffersUnregistered { errno, registered_bytes } = self;
        let (errno, kib) = (std::io::Error::from(*errno), registered_bytes / 1024);
        write!(f, "direct reads continue, but only {kib} KiB of buffers could be registered: {errno}; ")?;
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

/// The capabilities of an engine, determined by the probe; constant for its lifetime.
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
    /// Whether zero-copy sends are available.
    pub send_zero_copy: bool,
    /// Size in bytes of the buffers of [`crate::op::RecvInto::Pool`].
    pub recv_buffer_bytes: u32,
    /// See [`EngineConfig::memory_max`].
    pub memory_max: Option<u64>,
}

impl Caps {
    /// Returns the best engine for buffered files that the server itself reads and writes, such as logs. Never libaio,
    /// which blocks on buffered files.
    pub fn best_disk(&self) -> DiskVia {
        if self.disk_ring { DiskVia::Ring } else { self.best_pool() }
    }

    /// Returns the first thread pool, or blocking calls if no pool exists.
    pub fn best_pool(&self) -> DiskVia {
        if self.pools > 0 { DiskVia::Pool(0) } else { DiskVia::Sync }
    }
}

/// Maximum number of files of one device that threads create concurrently. Such calls contend for locks of the
/// directory and the journal, so more threads only wait.
pub const PUTS_MAX: usize = 4;

/// Maximum of [`EngineConfig::ops_max`]: slots are numbered with 24 bits.
pub const OPS_MAX: u32 = 1 << 24;

/// Settings of one thread's engine. The defaults are suitable for most uses.
#[derive(Clone)]
pub struct EngineConfig {
    /// The network backend.
    pub net: NetKind,
    /// Whether to create an io_uring for the disk when the network backend does not use one.
    pub disk_ring: bool,
    /// Whether to create a libaio context; its depth is `libaio_depth`.
    pub disk_libaio: bool,
    /// Entries of the submission queue; a power of two. 1024 covers an event-loop turn of many connections.
    pub ring_entries: u32,
    /// Maximum number of operations in flight; the completion queue is sized for them. Follows `worker_connections`.
    /// Operations on files use at most half of them, those on one device at most a quarter.
    pub ops_max: u32,
    /// Number of receive buffers provided to io_uring; a power of two up to 32768.
    pub recv_buffers: u16,
    /// Size of each receive buffer in bytes, more than the header section of a usual request.
    pub recv_buffer_bytes: u32,
    /// Maximum number of bytes that this thread's buffer pool allocates from the kernel.
    pub pool_bytes_max: usize,
    /// This thread's share of the memory limit of the process, in bytes; `None` without a limit.
    pub memory_max: Option<u64>,
    /// Maximum number of the io_uring's kernel workers for operations on files (the bounded workers of
    /// `IORING_REGISTER_IOWQ_MAX_WORKERS`). A device may use one in `device_share` of them, which limits its concurrent
    /// opens of uncached paths. Further operations wait in a queue of this program.
    pub iowq_workers: u32,
    /// Divisor that gives the share of kernel workers, or of a pool's threads, that one device may occupy.
    pub device_share: u32,
    /// Maximum number of requests in flight in libaio (`worker_aio_requests`).
    pub libaio_depth: u32,
    /// Thread pools of the process; [`crate::DiskVia::Pool`] is an index into this list.
    pub pools: Vec<Arc<crate::disk::threads::ThreadPool>>,
    /// Separate threads for [`crate::op::DiskOp::Put`]; without them, `Put` is routed like other operations that io_uring does
    /// not support.
    pub put_pool: Option<Arc<crate::disk::threads::ThreadPool>>,
    /// Whether a read for a pool first tries resident pages (`preadv2` with `RWF_NOWAIT`). A hit saves the handover to
    /// a thread; a miss costs one cheap call.
    pub pool_tries_resident: bool,
    /// Faults to inject, for tests; without them, no fault layer is put in front of the engine.
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
            memory_max: None,
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

/// Counters of one engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations accepted.
    pub submitted: u64,
    /// Terminal completions, including those of abandoned operations.
    pub completed: u64,
    /// System calls of the network backend, of io_uring and of libaio. Blocking calls on files are not counted.
    pub kernel_entries: u64,
    /// Operations refused because the table was full, or had no slot for their device.
    pub table_full: u64,
    /// Number of times that no buffer was available for received bytes (`ENOBUFS`).
    pub recv_starved: u64,
    /// Operations that waited because their device already had its share of workers.
    pub device_queued: u64,
    /// Completions that match no operation in flight: a defect of this program or of the kernel.
    pub unmatched: u64,
}

/// Default time limit of a drain: longer than any healthy disk needs.
pub const DRAIN_DEFAULT: Duration = Duration::from_secs(5);
