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

use std::future::Future;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

pub use buffers::{
    BufferRequest, buffer, buffers_are_awaited, buffers_are_scarce, buffers_ran_out, try_buffer,
};
pub use combine::{Either, join, join_all, select, yield_now, yield_to_ready};
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

/// Starts a task on this thread. A panic ends only the task.
///
/// # Panics
/// When the thread has no runtime; this holds for all free functions here.
pub fn spawn<F: Future<Output = ()> + 'static>(future: F) {
    // Boxed before any other call, which would move it: some futures have several KiB.
    let future = Box::pin(future);
    let reactor = reactor::current();
    if !reactor.closed.get() {
        reactor.executor.spawn(future);
    }
}

/// Polls all tasks of this thread once more, so that each checks a state that has changed for all of them. Such a check costs a task
/// less than waiting for the change.
pub fn wake_all_tasks() {
    reactor::current().executor.wake_all();
}

/// Returns the time of this turn.
pub fn now() -> Instant {
    reactor::now()
}

/// Returns the time of day of this turn.
pub fn wall() -> SystemTime {
    reactor::with_current(|reactor| reactor.wall())
}

/// Returns the buffer pool of this thread.
pub fn pool() -> io::Pool {
    reactor::with_current(|reactor| reactor.pool.clone())
}

/// Returns the capabilities of this thread's engine.
pub fn caps() -> Rc<io::engine::Caps> {
    reactor::with_current(|reactor| Rc::clone(&reactor.caps))
}

/// Returns the counters of this thread's runtime and engine.
pub fn counters() -> Counters {
    reactor::with_current(|reactor| Counters::of(reactor))
}

/// Sets a function that is called in each turn of this thread's event loop from now on, unless one is set already. The
/// function delays all tasks of the thread, so it has to be short, and it must not use the engine.
pub fn observe_turns<F: Fn(LoopTurn) + 'static>(observer: impl FnOnce() -> F) {
    reactor::with_current(|reactor| {
        reactor.observer.get_or_init(|| Box::new(observer()));
    });
}

/// Sets a function that observes all file operations from now on, unless one is set already. The function must not use
/// the engine.
pub fn observe_disks<F>(observer: impl FnOnce() -> F)
where
    F: Fn(io::op::DiskKind, io::op::DeviceId, DiskEvent) + 'static,
{
    reactor::with_current(|reactor| reactor.disks.observe(observer));
}

/// Releases unused memory of this thread to the system; returns the number of bytes.
pub fn trim() -> usize {
    file::turn_cache::trim();
    let engine = reactor::with_current(|reactor| {
        reactor.trim_tables();
        reactor.engine.borrow_mut().trim()
    });
    engine + thread_alloc::trim()
}

/// Returns a degraded condition of this thread's engine to report to the operator; each condition is returned once.
pub fn take_note() -> Option<io::Note> {
    reactor::with_current(|reactor| reactor.engine.borrow_mut().take_note())
}
