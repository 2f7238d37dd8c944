//! The part of a runtime that other threads may touch: a list of tasks to wake, and the doorbell that
//! ends the engine's wait when, and only when, the thread sleeps.
//!
//! ```text
//!   other thread                      the runtime's thread
//!   push the task                     state = Sleeping
//!   fence                             fence
//!   state Sleeping -> Awake: ring     list empty? wait : do not wait
//! ```
//! Whoever comes second sees what the other wrote: either the bell rings or the thread does not wait. The
//! two fences are what makes that hold; `tests/loom_mailbox.rs` is the model of it. The state is changed
//! by swaps only, never by stores, so that its changes have one order that all threads agree on.
//!
//! Public only for that model; [`RemoteHandle`] is what others use.

use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};

/// Names a task of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    /// Place in the table of tasks.
    pub slot: u32,
    /// Counts the uses of the place.
    pub generation: u32,
}

/// The thread looks at the list before it waits next.
const AWAKE: u8 = 0;
/// The thread waits in its engine, or is about to.
const SLEEPING: u8 = 1;

/// What other threads share with a runtime.
pub struct Remote {
    state: AtomicU8,
    /// Whether there is something to look for in `woken`, so that a turn without news takes no lock.
    news: AtomicBool,
    woken: Mutex<Vec<TaskId>>,
    bell: io::engine::Waker,
    rung: AtomicU64,
}

impl Remote {
    /// The shared part of a runtime whose engine is woken by `bell`.
    pub fn new(bell: io::engine::Waker) -> Remote {
        Remote {
            state: AtomicU8::new(AWAKE),
            news: AtomicBool::new(false),
            woken: Mutex::new(Vec::new()),
            bell,
            rung: AtomicU64::new(0),
        }
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

    /// Ends the wait of the runtime's thread if it sleeps.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == SLEEPING
            && self.state.swap(AWAKE, Ordering::AcqRel) == SLEEPING
        {
            self.rung.fetch_add(1, Ordering::Relaxed);
            self.bell.wake();
        }
    }

    /// Announces that the thread is about to wait; `false` when there is news, and it must not.
    pub fn begin_sleep(&self) -> bool {
        self.state.swap(SLEEPING, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.news.load(Ordering::Relaxed) {
            self.end_sleep();
            return false;
        }
        true
    }

    /// The wait is over.
    pub fn end_sleep(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Moves the tasks to wake to `into`, which is empty and whose memory is kept for the next time.
    pub fn take(&self, into: &mut Vec<TaskId>) {
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire) {
            std::mem::swap(&mut *self.list(), into);
        }
    }

    /// How often the bell was rung.
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
        self.0.push(crate::task::MAIN);
    }
}
