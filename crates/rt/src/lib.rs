//! One single-threaded executor for each worker thread, over one I/O engine.
//!
//! A [`Runtime`] owns an engine and the tasks of its thread. The free functions here act on the runtime of
//! the current thread; [`Socket`], [`Listener`] and [`File`] turn the engine's completions into futures.
//! Threads meet in [`mailbox`] and [`watch`] only. No HTTP, no configuration, no unsafe code.
//!
//! Whatever the kernel may touch belongs to the engine while an operation runs; a future holds the operation's name.
//! Dropping a future abandons its operation; exceptions of receives and accepts are described at the method.

#![forbid(unsafe_code)]

mod buffer_queue;
mod buffers;
mod combine;
mod executor;
pub mod file;
pub mod local;
pub mod mailbox;
pub mod net;
#[cfg(not(loom))]
mod offload;
mod op_table;
mod reactor;
#[doc(hidden)]
pub mod remote;
mod runtime;
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
    BufferRequest, buffer, buffer_at_once, buffers_are_awaited, buffers_are_scarce, buffers_ran_out,
};
pub use combine::{Either, join, select, step_aside, yield_now};
pub use file::File;
pub use net::{ConnectError, ConnectOptions, Listener, Socket};
#[cfg(not(loom))]
pub use offload::{offload, spawn_blocking};
pub use reactor::LoopTurn;
pub use remote::RemoteHandle;
pub use runtime::{Counters, POLLS_PER_TURN, Runtime};
pub use timer::{Elapsed, Sleep, Timer, sleep_until};

/// Starts a task on this thread. A panic in it ends it alone.
///
/// # Panics
/// When the thread has no runtime, as all free functions here.
pub fn spawn<F: Future<Output = ()> + 'static>(future: F) {
    // Boxed before anything else is called, which would move it: some are of several KiB.
    let future = Box::pin(future);
    let reactor = reactor::current();
    if !reactor.closed.get() {
        reactor.executor.spawn(future);
    }
}

/// The time of this turn.
pub fn now() -> Instant {
    reactor::with_current(|reactor| reactor.now.get())
}

/// The time of day of this turn.
pub fn wall() -> SystemTime {
    reactor::with_current(|reactor| reactor.wall())
}

/// The buffers of this thread.
pub fn pool() -> io::Pool {
    reactor::with_current(|reactor| reactor.pool.clone())
}

/// The capabilities of this thread's engine.
pub fn caps() -> Rc<io::engine::Caps> {
    reactor::with_current(|reactor| Rc::clone(&reactor.caps))
}

/// The numbers of this thread's runtime and engine.
pub fn counters() -> Counters {
    reactor::with_current(|reactor| Counters::of(reactor))
}

/// Has a function see each turn of this thread's loop from now on, unless one does already. It runs between all tasks, so it has
/// to be short, and it may not use the engine.
pub fn observe_turns<F: Fn(LoopTurn) + 'static>(observer: impl FnOnce() -> F) {
    reactor::with_current(|reactor| {
        reactor.observer.get_or_init(|| Box::new(observer()));
    });
}

/// Gives this thread's idle memory back to the system; returns the bytes.
pub fn trim() -> usize {
    file::seen::trim();
    let engine = reactor::with_current(|reactor| {
        reactor.trim_tables();
        reactor.engine.borrow_mut().trim()
    });
    engine + thread_alloc::trim()
}

/// Something about this thread's engine that the operator should hear of; each is returned once.
pub fn take_note() -> Option<io::Note> {
    reactor::with_current(|reactor| reactor.engine.borrow_mut().take_note())
}
