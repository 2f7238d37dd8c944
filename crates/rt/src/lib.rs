//! One single-threaded executor for each worker thread, over one I/O engine.
//!
//! A [`Runtime`] owns an engine and the tasks of its thread. The free functions here use the runtime of the current thread;
//! [`Socket`], [`Listener`] and [`File`] turn the engine's completions into futures. Threads communicate only through
//! [`mailbox`] and [`mod@watch`]. This crate contains no HTTP, no configuration, and no unsafe code.
//!
//! The engine owns all memory that the kernel may touch while an operation runs; a future holds only the operation's
//! identifier. Dropping a future abandons its operation; exceptions for receives and accepts are described at their methods.
//!
//! Crates of the workspace that it may use: `io`, `thread-alloc`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`net`] | listeners, sockets with a reader and a writer, datagrams, outgoing connections |
//! | [`mod@file`] | files with operations on paths and a lock that the kernel releases when its holder exits |
//! | [`helper_pool`] | pools of helper threads for long or blocking work, each of which belongs to the component whose work it does |
//! | [`thread`] | worker threads |
//! | [`mailbox`], [`watch`] | communication between threads |
//! | [`timer`], [`buffers`], [`combine`] | futures: sleeps, waits for buffers, `select` |
//! | [`current`] | the runtime of the current thread, as free functions |
//! | [`reactor`] | the event loop, without files and sockets, and the state that all handles share: engine, operations, timers, buffers, the time and number of the turn; `OpFuture` |
//! | [`disk_watch`] | passes file operations and their times to an observer |
//! | [`buffer_queue`] | requests for buffers that wait |
//! | [`pipes`] | the pipes of a thread for splice(2) |
//! | [`timers`] | deadlines |
//! | [`wheel`] | their order |
//! | [`op_table`] | operations in flight and their results, found by their tokens |
//! | [`executor`] | tasks, their wakers, the ready queue |
//! | [`remote`] | state that other threads may access |
//! | [`panics`] | catches panics, with their causes |
//! | [`local`] | events, permits and counts for tasks of one thread |
//! | [`wait_list`] | the ordered list of waiting tasks, which all types that wait use |
//! | [`sync`] | synchronisation types: those of the standard library, or of loom in loom models |

#![forbid(unsafe_code)]

mod buffer_queue;
mod buffers;
mod combine;
mod current;
mod disk_watch;
mod executor;
pub mod file;
#[cfg(not(loom))]
mod helper_pool;
pub mod local;
pub mod mailbox;
pub mod net;
mod op_table;
pub mod panics;
mod pipes;
mod reactor;
#[doc(hidden)]
pub mod remote;
mod sync;
#[cfg(test)]
mod tests;
pub mod thread;
mod timer;
mod timers;
mod wait_list;
pub mod watch;
mod wheel;

pub use buffers::{
    BufferRequest, buffer, buffers_are_awaited, buffers_are_scarce, buffers_ran_out, try_buffer,
};
pub use combine::{
    Either, Join, Select, TryJoin, join, join_all, select, try_join, yield_now, yield_to_ready,
};
pub use current::{
    caps, counters, fix_wall, now, observe_disks, observe_turns, pool, spawn, take_note, wake_all_tasks, wall,
};
pub use disk_watch::DiskEvent;
pub use file::File;
#[cfg(not(loom))]
pub use helper_pool::{HelperPool, offload};
pub use net::{ConnectError, ConnectOptions, Listener, Socket};
pub use reactor::{Counters, LoopTurn, POLLS_PER_TURN, Runtime};
pub use remote::RemoteHandle;
pub use timer::{Elapsed, Limit, Sleep, SpareTimer, Timer, sleep_until};

/// Releases unused memory of this thread to the system; returns the number of bytes.
pub fn trim() -> usize {
    file::turn_cache::trim();
    let engine = reactor::with_current(|reactor| {
        reactor.trim_tables();
        reactor.engine.borrow_mut().trim()
    });
    engine + thread_alloc::trim()
}
