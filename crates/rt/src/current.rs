//! The runtime of the current thread, as free functions: tasks, time, buffers, counters, observers.

use std::future::Future;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use crate::disk_watch::DiskEvent;
use crate::reactor::{self, Counters, LoopTurn};

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

/// Fixes the time of day on this thread, for measurements that must not depend on it.
pub fn fix_wall(at: SystemTime) {
    reactor::with_current(|reactor| reactor.fix_wall(at));
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
    F: Fn(io::op::DiskKind, io::facts::DeviceId, DiskEvent) + 'static,
{
    reactor::with_current(|reactor| reactor.disks.observe(observer));
}

/// Returns a degraded condition of this thread's engine to report to the operator; each condition is returned once.
pub fn take_note() -> Option<io::Note> {
    reactor::with_current(|reactor| reactor.engine.borrow_mut().take_note())
}
