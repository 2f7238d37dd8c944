//! Limits the number of complete entries that wait for the disk, which may be slower than the upstreams: [`Backlog`]
//! admits no more fills than the disk can write.
//!
//! ```text
//!   begin --fewer than FILLS_UNWRITTEN_MAX wait--> fill --all bytes passed to readers--> waits for the disk --> entry
//!     |
//!     +--FILLS_UNWRITTEN_MAX wait--> waits until one is written --after STUCK_TIME--> refused, and so are later fills immediately,
//!                                                                      until the disk has written an entry
//! ```
//! Readers do not wait for the disk. Without this limit, fills would begin as fast as the upstream responds, and the
//! waiting entries could exhaust memory or descriptors.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use rt::Either;

use crate::error::Refused;
use crate::mutex::lock;

/// Number of waiting entries from which on no further fill begins. It is above the number of writes that a disk
/// processes concurrently. It is low enough that the entries stay in the CPU caches and fit into a thread's buffers.
pub(crate) const FILLS_UNWRITTEN_MAX: usize = 64;

/// Maximum time for which a fill waits for a disk without progress. A file system may write nothing else for this long
/// while it writes its journal. A client should not wait longer for a response that does not need the cache.
const STUCK_TIME: Duration = Duration::from_secs(1);

/// The entries of all threads that wait for the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backlog(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// Wakers of fills that wait to begin. A waker may belong to a fill that was dropped; the next finished entry wakes
    /// another one.
    waiting: VecDeque<Waker>,
    /// A fill has timed out here, and no entry was written since.
    is_stuck: bool,
}

impl Waiting {
    /// Whether a fill may begin; `None` means that it has to wait.
    fn admission(&self) -> Option<Result<(), Refused>> {
        match self.count < FILLS_UNWRITTEN_MAX {
            true => Some(Ok(())),
            false => self.is_stuck.then_some(Err(Refused::BacklogFull)),
        }
    }
}

/// A waiting entry, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct BacklogGuard(Backlog);

impl Backlog {
    /// Waits until another fill may begin.
    pub(crate) async fn wait_for_turn(&self) -> Result<(), Refused> {
        if let Some(admission) = lock(&self.0).admission() {
            return admission;
        }
        let admission = poll_fn(|context| {
            // Checked and registered under one lock; otherwise the wake-up could be lost in between.
            let mut state = lock(&self.0);
            match state.admission() {
                Some(admission) => Poll::Ready(admission),
                None => {
                    state.waiting.push_back(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        match rt::select(admission, rt::sleep_until(rt::now() + STUCK_TIME)).await {
            Either::Left(admission) => admission,
            Either::Right(()) => {
                let mut state = lock(&self.0);
                state.is_stuck = true;
                // Other fills are refused immediately, instead of each waiting for its own timeout.
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                Err(Refused::BacklogFull)
            }
        }
    }

    /// Counts a complete entry that is not on the disk yet.
    pub(crate) fn enter(&self) -> BacklogGuard {
        lock(&self.0).count += 1;
        BacklogGuard(self.clone())
    }

    /// Whether no entry waits.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).count == 0
    }
}

impl Drop for BacklogGuard {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        assert!(state.count > 0, "an entry leaves the backlog once");
        state.count -= 1;
        state.is_stuck = false;
        let next = state.waiting.pop_front();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}
