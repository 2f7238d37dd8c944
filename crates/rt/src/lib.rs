//! One single-threaded executor for each worker thread, over one I/O engine.
//!
//! A [`Runtime`] owns an engine and the tasks of its thread. The free functions here use the runtime of the current
//! thread; [`Socket`], [`Listener`] and [`File`] turn the engine's completions into futures. Threads communicate only
//! through [`mailbox`] and [`watch`]. This crate contains no HTTP, no configuration, and no unsafe code.
//!
//! The engine owns all memory that the kernel may touch while an operation runs; a future holds only the operation's
//! identifier. Dropping a future abandons its operation; exceptions for receives and accepts are described at their
//! methods.

#![forbid(unsafe_code)]

mod buffer_queue;
mod buffers;
mod combine;
mod current;
mod disk_watch;
mod executor;
pub mod file;
pub mod local;
pub mod mailbox;
pub mod net;
#[cfg(not(loom))]
mod offload;
mod op_table;
pub mod panics;
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
pub use combine::{Either, join, join_all, select, yield_now, yield_to_ready};
pub use current::{
    caps, counters, now, observe_disks, observe_turns, pool, spawn, take_note, wake_all_tasks, wall,
};
pub use disk_watch::DiskEvent;
pub use file::File;
pub use net::{ConnectError, ConnectOptions, Listener, Socket};
#[cfg(not(loom))]
pub use offload::{
    offload, offload_file, offload_file_in, offload_password, offload_settings, spawn_blocking,
};
pub use reactor::{Counters, LoopTurn, POLLS_PER_TURN, Runtime};
pub use remote::RemoteHandle;
pub use timer::{Elapsed, Sleep, Timer, sleep_until};

/// Releases unused memory of this thread to the system; returns the number of bytes.
pub fn trim() -> usize {
    file::turn_cache::trim();
    let engine = reactor::with_current(|reactor| {
        reactor.trim_tables();
        reactor.engine.borrow_mut().trim()
    });
    engine + thread_alloc::trim()
}
