//! The part of a runtime that other threads may touch: a list of tasks to wake, and the waker of its engine.
//!
//! A thread that wakes a task puts it on the list, then wakes the engine. The engine's doorbell is the one handshake
//! about sleep: it writes to its descriptor only while the engine waits, and an engine whose bell rang does not start
//! to wait. The runtime checks the list after each turn. `tests/loom_mailbox.rs` is the model.
//!
//! Public only for that model; other code uses [`RemoteHandle`].

use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Names a task of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    /// Place in the table of tasks.
    pub slot: u32,
    /// Counts the uses of the place.
    pub generation: u32,
}

/// The name of the future that `block_on` runs, which has no slot.
pub(crate) const MAIN: TaskId = TaskId { slot: u32::MAX, generation: 0 };

/// State that other threads share with a runtime.
pub struct Remote {
    /// Whether there is something to look for in `woken`, so that a turn without news takes no lock.
    news: AtomicBool,
    woken: Mutex<Vec<TaskId>>,
    bell: io::engine::Waker,
    rung: AtomicU64,
}

impl Remote {
    /// The shared part of a runtime whose engine is woken by `bell`.
    pub fn new(bell: io::engine::Waker) -> Remote {
        Remote { news: AtomicBool::new(false), woken: Mutex::new(Vec::new()), bell, rung: AtomicU64::new(0) }
    }

    /// Wakes a task from another thread. A task that has ended meanwhile is ignored later on.
    pub fn push(&self, task: TaskId) {
        self.list().push(task);
        self.news.store(true, Ordering::Release);
        self.ring();
    }

    /// Wakes several tasks, as [`Remote::push`] does one: with one lock, and one ring at most.
    pub fn push_all(&self, tasks: &[TaskId]) {
        self.list().extend_from_slice(tasks);
        self.news.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        if self.bell.wake() {
            self.rung.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the tasks to wake to `into`, which is empty; its memory is kept for the next call.
    pub fn take(&self, into: &mut Vec<TaskId>) {
        assert!(into.is_empty(), "what was woken before is in the queue");
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire) {
            std::mem::swap(&mut *self.list(), into);
        }
    }

    /// How often a wait of the engine was ended.
    pub fn rung(&self) -> u64 {
        self.rung.load(Ordering::Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, Vec<TaskId>> {
        // No code can panic while it holds the lock, but for an allocation that fails.
        self.woken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Wakes a runtime from any thread. Cheap to clone.
#[derive(Clone)]
pub struct RemoteHandle(pub(crate) Arc<Remote>);

impl RemoteHandle {
    /// Has the future that `block_on` runs polled again.
    pub fn wake(&self) {
        self.0.push(MAIN);
    }
}
