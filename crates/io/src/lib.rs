//! I/O engines behind one completion contract.
//!
//! Callers submit operations ([`Op`]) and receive completions ([`Completion`]); the trait [`Engine`] is the contract. A network
//! backend (io_uring or epoll) and several disk backends (io_uring, libaio, thread pool, blocking calls) are combined into one
//! engine per worker thread. This crate contains no futures, no HTTP and no configuration text. Its unsafe code is in the
//! modules that `crates/xtask/ratchet.txt` lists.
//!
//! Order of calls: [`Engine::submit`] any number of times, then [`Engine::turn`], then process the batch; at the end
//! [`Engine::drain`].
//!
//! Crates of the workspace that it may use: none.
//!
//! | module | content |
//! |---|---|
//! | [`op`], [`segments`], [`engine`] | operations of the network and on files, and their results; buffers in several pieces, the engine contract with settings and capabilities |
//! | [`slab`] | a table of entries with keys that become invalid, for operations, tasks and timers of a thread |
//! | [`slot`] | the table of operations in flight, with limits that prevent one device from occupying all its slots, or all workers of io_uring or of a pool |
//! | [`buf`], [`shared_bytes`], [`shm`] | the buffer pool of a thread; buffer contents that several threads share; shared memory whose pages are used once |
//! | [`uring`] | the io_uring engine for sockets and files: `setup` (flags, refusals), `ring` (queues, the kernel entry), `entry` and `complete` (operations to entries; results back), `state` (state and memory of an operation in flight), `recv` (provided buffers), `end_check` (ended connections that a multishot receive does not report) |
//! | [`epoll`] | the epoll engine, which emulates completions: `calls`, `table` |
//! | [`disk`] | libaio, the thread pool, blocking calls; `job` is an operation that another thread can execute; `directory` (reads a directory) and `owner` (checks owners of links) are operations of several system calls |
//! | [`composite`] | combines a network backend and the disk backends into one engine, which all callers use |
//! | [`helper_threads`] | threads that execute the jobs of a queue, for the pools of `thread_pool` and of `rt` |
//! | [`doorbell`] | `Wake`: ends a wait from another thread; loom checks its state machine |
//! | [`fault`] | an engine that injects configured faults into another engine |
//! | [`page_cache`] | the page-cache policy for files and caches: `probe` (which bytes are resident), `admission` (which reads go through the page cache), `predictor` (whether a non-blocking attempt is worth its system call) |
//! | [`fd`] | descriptors with their kind |
//! | [`probe`], [`facts`], [`sys`] | capabilities of the machine; attributes of files and file systems; system calls without a safe binding |
//!
//! # The engine contract
//!
//! An operation is submitted, and its result arrives in a later turn. The epoll engine emulates this over readiness: it tries
//! the call; if the call would block, the operation waits at its descriptor until epoll reports readiness. The reverse,
//! emulating readiness on io_uring, would lose the advantage of io_uring. All other code relies on five rules:
//!
//! * **The slot of an operation owns all memory and descriptors that the kernel may access**, from submission to the terminal
//!   completion: buffers, addresses, paths, the descriptor. A thread of a pool owns the operation that it carries out. If a future is dropped, its slot stays occupied. The engine still
//!   processes the late result: it closes an accepted descriptor and returns a buffer to its pool.
//! * **Each operation completes exactly once.** Slot and generation identify an operation; a completion with an old generation
//!   is counted and otherwise ignored.
//! * **The engine runs no user code while it collects.** A completion wakes a task; the task runs afterwards.
//! * **A completion has the token of its operation**, a number that the caller chose. So the caller finds its record of an
//!   operation without a table of identifiers; the token of the runtime is the key of its record.
//! * **A receive into the pool never ends with `ENOBUFS`.** The engine queues the receive until a buffer is available.

pub mod buf;
mod composite;
pub mod disk;
mod doorbell;
pub mod engine;
mod epoll;
pub mod facts;
pub mod fault;
mod fd;
pub mod helper_threads;
pub mod op;
pub mod page_cache;
pub mod probe;
pub mod segments;
mod shared_bytes;
pub mod shm;
pub mod slab;
mod slot;
pub mod sys;
mod uring;

pub use buf::{Buf, Pool};
pub use composite::{BuildError, build};
pub use engine::{Drained, Engine, Note, Wait};
pub use fd::Fd;
pub use op::{Completion, Disk, DiskOp, DiskVia, NetOp, Op, OpId, Payload};
pub use rustix::io::Errno;
pub use segments::Segments;
pub use shared_bytes::SharedBytes;
pub use uring::{Refusal, SetupError, Stage, flags as setup_flags};
