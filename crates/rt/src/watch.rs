//! A number that one side advances and any thread can wait for, such as the progress of a cache fill whose body is sent
//! to other requests too.
//!
//! ```text
//!   publisher                         watcher
//!   state = new number                register its waker
//!   fence                             fence
//!   any waiters? wake them           state advanced? do not wait
//! ```
//! Whichever side is later sees the other's write, so no advance is missed and no watcher polls. While no task waits,
//! publishing is a store, a fence and a load; the lock protects the waiting tasks. The tasks of one thread are passed
//! to it together, with at most one ring of its doorbell. The model is `tests/loom_watch.rs`. Main types: [`Publisher`]
//! and [`Watcher`], created by [`channel`].

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::executor;
use crate::remote::{Remote, TaskId};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};
use crate::wait_list::{Ticket, WaitList};

/// Largest number that can be published; the bit above it marks the end.
pub const VALUE_MAX: u64 = u64::MAX >> 1;

const CLOSED: u64 = VALUE_MAX + 1;

/// The only side that advances the number. Dropping it closes the watch.
pub struct Publisher(Arc<WatchState>);

/// A side that reads the number and waits for it. Cheap to clone, and usable on any thread.
#[derive(Clone)]
pub struct Watcher(Arc<WatchState>);

/// The publisher was dropped, so no further number will be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

struct WatchState {
    /// The number, with the bit [`CLOSED`].
    state: AtomicU64,
    /// Number of waiting tasks, so that a publisher without any takes no lock.
    waiting: AtomicUsize,
    waiters: Mutex<WaitList<Sleeper>>,
}

/// A task to be woken.
enum Sleeper {
    /// A task of a runtime.
    Task(Arc<Remote>, TaskId),
    /// A future with another waker, such as a combinator.
    Other(Waker),
}

/// Creates a watch with the initial number `value`, at most [`VALUE_MAX`].
pub fn channel(value: u64) -> (Publisher, Watcher) {
    let shared = Arc::new(WatchState {
        state: AtomicU64::new(value.min(VALUE_MAX)),
        waiting: AtomicUsize::new(0),
        waiters: Mutex::new(WaitList::default()),
    });
    (Publisher(Arc::clone(&shared)), Watcher(shared))
}

impl Publisher {
    /// Advances the number and wakes all waiting tasks; a number not above the last one has no effect.
    pub fn publish(&self, value: u64) {
        let value = value.min(VALUE_MAX);
        // Only this side writes, so a relaxed load returns the current number.
        if value > self.0.state.load(Ordering::Relaxed) {
            self.0.state.store(value, Ordering::Release);
            self.0.wake_all();
        }
    }

    /// Returns the number.
    pub fn value(&self) -> u64 {
        self.0.state.load(Ordering::Relaxed)
    }

    /// Returns a watcher.
    pub fn watch(&self) -> Watcher {
        Watcher(Arc::clone(&self.0))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.0.state.fetch_or(CLOSED, Ordering::Release);
        self.0.wake_all();
    }
}

impl Watcher {
    /// Returns the current number. Writes of the publisher before it published that number are visible.
    pub fn value(&self) -> u64 {
        self.0.state.load(Ordering::Acquire) & VALUE_MAX
    }

    /// Whether the publisher was dropped, so that the number is the last one.
    pub fn is_closed(&self) -> bool {
        self.0.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Waits for a number above `seen` and returns it.
    ///
    /// # Errors
    /// [`Closed`] when no further number will be published. Numbers published before are returned first.
    pub async fn above(&self, seen: u64) -> Result<u64, Closed> {
        let mut waiting = Waiting::new(self);
        poll_fn(|context| waiting.poll_above(seen, context)).await
    }
}

/// A waiting task, for a hand-written future; dropping it removes the task from the list.
pub struct Waiting {
    shared: Arc<WatchState>,
    ticket: Option<Ticket>,
}

impl Waiting {
    /// Creates the state of a task that will wait.
    pub fn new(watcher: &Watcher) -> Waiting {
        Waiting { shared: Arc::clone(&watcher.0), ticket: None }
    }

    /// As [`Watcher::above`]. May be polled again after a result.
    pub fn poll_above(&mut self, seen: u64, context: &mut Context<'_>) -> Poll<Result<u64, Closed>> {
        if let Some(answer) = self.shared.above(seen) {
            return Poll::Ready(answer);
        }
        self.register(context);
        // A number may have been published between the check and the registration, when no task was waiting.
        match self.shared.above(seen) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }

    fn register(&mut self, context: &Context<'_>) {
        let sleeper = Sleeper::new(context.waker());
        let mut waiters = self.shared.waiters();
        let before = match self.ticket.and_then(|ticket| waiters.get_mut(ticket)) {
            Some(known) => Some(std::mem::replace(known, sleeper)),
            None => {
                self.ticket = Some(waiters.push(sleeper));
                self.shared.waiting.fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        drop(waiters);
        drop(before);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut waiters = self.shared.waiters();
        let sleeper = waiters.remove(ticket);
        if sleeper.is_some() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        drop(waiters);
        // Dropped after the lock is released: dropping a waker may run any code.
        drop(sleeper);
    }
}

impl WatchState {
    /// Returns the result for a watcher that has seen `seen`, if there is one.
    fn above(&self, seen: u64) -> Option<Result<u64, Closed>> {
        let state = self.state.load(Ordering::Acquire);
        match state & VALUE_MAX {
            value if value > seen => Some(Ok(value)),
            _ if state & CLOSED != 0 => Some(Err(Closed)),
            _ => None,
        }
    }

    /// Wakes all registered tasks; those that have to wait longer register again.
    fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut waiters = self.waiters();
        let woken: Vec<Sleeper> = std::iter::from_fn(|| waiters.pop()).map(|(_, sleeper)| sleeper).collect();
        let before = self.waiting.fetch_sub(woken.len(), Ordering::Relaxed);
        assert_eq!(before, woken.len(), "each counted task is in the list");
        drop(waiters);
        wake(woken);
    }

    fn waiters(&self) -> MutexGuard<'_, WaitList<Sleeper>> {
        // No code can panic while it holds the lock, except for a failed allocation.
        self.waiters.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Sleeper {
    fn new(waker: &Waker) -> Sleeper {
        match executor::running_task(waker) {
            Some((remote, task)) => Sleeper::Task(remote, task),
            None => Sleeper::Other(waker.clone()),
        }
    }
}

/// Wakes all of `sleepers`, grouped by thread.
fn wake(sleepers: Vec<Sleeper>) {
    // At most one entry per worker thread, so a linear search is cheap.
    let mut threads: Vec<(Arc<Remote>, Vec<TaskId>)> = Vec::new();
    for sleeper in sleepers {
        match sleeper {
            Sleeper::Other(waker) => waker.wake(),
            Sleeper::Task(remote, task) if executor::wake_here(&remote, task) => {}
            Sleeper::Task(remote, task) => {
                match threads.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &remote)) {
                    Some((_, tasks)) => tasks.push(task),
                    None => threads.push((remote, vec![task])),
                }
            }
        }
    }
    threads.iter().for_each(|(remote, tasks)| remote.push_all(tasks));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    /// Counts wake-ups.
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn numbers_are_observed_in_order_and_the_last_one_after_the_end() {
        let (publisher, watcher) = channel(0);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut waiting = Waiting::new(&watcher);
        assert_eq!(waiting.poll_above(0, &mut context), Poll::Pending);
        publisher.publish(5);
        publisher.publish(3);
        publisher.publish(9);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "once for one wait");
        assert_eq!(waiting.poll_above(5, &mut context), Poll::Ready(Ok(9)));
        assert_eq!(waiting.poll_above(9, &mut context), Poll::Pending);
        assert_eq!((publisher.value(), watcher.value(), watcher.is_closed()), (9, 9, false));
        drop(publisher);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(waiting.poll_above(8, &mut context), Poll::Ready(Ok(9)));
        assert_eq!(waiting.poll_above(9, &mut context), Poll::Ready(Err(Closed)));
        assert!(watcher.is_closed());
    }

    #[test]
    fn a_dropped_waiter_leaves_its_slot() {
        let (publisher, watcher) = channel(7);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        for _ in 0..100 {
            let mut waiting = Waiting::new(&watcher);
            assert_eq!(waiting.poll_above(7, &mut context), Poll::Pending);
            assert_eq!(waiting.poll_above(7, &mut context), Poll::Pending, "twice is one place");
            assert_eq!(publisher.0.waiting.load(Ordering::Relaxed), 1);
        }
        assert!(publisher.0.waiters().is_empty());
        assert_eq!(publisher.0.waiting.load(Ordering::Relaxed), 0);
        publisher.publish(8);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }
}
