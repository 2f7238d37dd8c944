//! Limits complete entries that wait for the disk, which may be slower than the upstreams: [`Backlog`] admits no more
//! fills than the disk can take.
//!
//! ```text
//!   begin --fewer than MOST wait--> fill --its readers have all--> waits for the disk --> entry
//!     |
//!     +--as many wait--> until one has got there; --PATIENCE is over--> refused, and so is at once who comes then,
//!                                                                       until the disk has taken something
//! ```
//! Readers do not wait for the disk. So without this limit fills could start as fast as the upstream responds, and
//! waiting entries would use up memory or descriptors.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use rt::Either;

use crate::error::Refused;

/// Waiting entries above which no further fill begins: more than a disk processes at the same time, and few enough that
/// they are still in the processor's caches, and within a thread's buffers.
pub(crate) const MOST: usize = 64;

/// How long a fill waits for a disk that takes nothing: longer than a journal takes to be written, and no longer than a
/// client should wait for a response that needs no cache.
const PATIENCE: Duration = Duration::from_secs(1);

/// Those that wait for the disk, of all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backlog(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// Fills that wait to begin. The waker of a fill that was dropped may be among them; the next entry that is done
    /// wakes another.
    waiting: VecDeque<Waker>,
    /// A fill has timed out here, and nothing was written since.
    is_stuck: bool,
}

impl Waiting {
    /// Whether a fill may begin; `None` while that is not known.
    fn room(&self) -> Option<Result<(), Refused>> {
        match self.count < MOST {
            true => Some(Ok(())),
            false => self.is_stuck.then_some(Err(Refused::Behind)),
        }
    }
}

/// One entry that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct BacklogGuard(Backlog);

impl Backlog {
    /// Waits until another fill may begin.
    pub(crate) async fn room(&self) -> Result<(), Refused> {
        if let Some(room) = self.waiting().room() {
            return room;
        }
        let room = poll_fn(|context| {
            // Checked and waited for under one lock: else the end that it waits for may pass between.
            let mut state = self.waiting();
            match state.room() {
                Some(room) => Poll::Ready(room),
                None => {
                    state.waiting.push_back(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        match rt::select(room, rt::sleep_until(rt::now() + PATIENCE)).await {
            Either::Left(room) => room,
            Either::Right(()) => {
                let mut state = self.waiting();
                state.is_stuck = true;
                // Other fills need not wait for the same timeout.
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                Err(Refused::Behind)
            }
        }
    }

    /// Counts an entry that is whole and not on the disk yet.
    pub(crate) fn enter(&self) -> BacklogGuard {
        self.waiting().count += 1;
        BacklogGuard(self.clone())
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().count == 0
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BacklogGuard {
    fn drop(&mut self) {
        let mut state = self.0.waiting();
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
