//! The state of a runtime that other threads may access: a list of tasks to wake, and the waker of its engine.
//!
//! A thread that wakes a task adds it to the list, then wakes the engine. The engine's doorbell is the only
//! synchronisation for sleep: it writes to its descriptor only while the engine waits, and an engine whose bell was
//! rung does not start to wait. The runtime checks the list after each turn. `tests/loom_mailbox.rs` is the model.
//!
//! Public only for that model; other code uses [`RemoteHandle`].

use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Identifier of a task of one runtime, in its table of tasks.
pub type TaskId = io::slab::Key;

/// Identifier of the future that `block_on` runs, which has no slot.
pub(crate) const MAIN: TaskId = TaskId { slot: u32::MAX, generation: 0 };

/// State that other threads share with a runtime.
pub struct Remote {
    /// Whether `woken` may have entries, so that a turn without any takes no lock.
    has_woken: AtomicBool,
    woken: Mutex<Vec<TaskId>>,
    bell: io::engine::Waker,
    wakeups: AtomicU64,
}

impl Remote {
    /// Creates the shared state of a runtime whose engine is woken by `bell`.
    pub fn new(bell: io::engine::Waker) -> Remote {
        Remote {
            has_woken: AtomicBool::new(false),
            woken: Mutex::new(Vec::new()),
            bell,
            wakeups: AtomicU64::new(0),
        }
    }

    /// Wakes a task from another thread. If the task has ended, the wake-up is ignored later.
    pub fn push(&self, task: TaskId) {
        self.list().push(task);
        self.has_woken.store(true, Ordering::Release);
        self.ring();
    }

    /// Wakes several tasks as [`Remote::push`] does, but with one lock and at most one ring.
    pub fn push_all(&self, tasks: &[TaskId]) {
        self.list().extend_from_slice(tasks);
        self.has_woken.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        if self.bell.wake() {
            self.wakeups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the woken tasks into `into`, which must be empty; the list reuses the memory of `into`.
    pub fn take(&self, into: &mut Vec<TaskId>) {
        assert!(into.is_empty(), "tasks that were woken before are in the ready queue");
        if self.has_woken.load(Ordering::Relaxed) && self.has_woken.swap(false, Ordering::Acquire) {
            std::mem::swap(&mut *self.list(), into);
        }
    }

    /// Returns the number of times that a wait of the engine was ended.
    pub fn wakeups(&self) -> u64 {
        self.wakeups.load(Ordering::Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, Vec<TaskId>> {
        // No code can panic while it holds the lock, except for a failed allocation.
        self.woken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Wakes a runtime from any thread. Cheap to clone.
#[derive(Clone)]
pub struct RemoteHandle(pub(crate) Arc<Remote>);

impl RemoteHandle {
    /// Makes the runtime poll the future of `block_on` again.
    pub fn wake(&self) {
        self.0.push(MAIN);
    }
}
