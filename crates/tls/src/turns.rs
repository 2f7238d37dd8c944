//! Limits the work of handshakes per event-loop turn, so that requests of other connections are served between
//! handshakes, even if many clients connect at the same time.
//!
//! ```text
//!   step of a handshake --> limit of this turn not reached, queue empty? -- yes --> runs
//!                                        | no
//!                                        v
//!                     queue, oldest first --- each further turn wakes as many steps as may run
//! ```
//! Main type: [`Turns`], one for each worker thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Maximum number of handshake steps per event-loop turn. A handshake has two steps; eight handshakes with ECDSA take
/// about half a millisecond.
pub const STEPS_PER_TURN_MAX: usize = 16;

/// Time per event-loop turn after which no further handshake step is started. Requests of other connections wait at
/// most for this time and one step. An RSA signature with 2048 bits needs most of this time.
pub const TIME_PER_TURN_MAX: Duration = Duration::from_millis(1);

/// The handshakes of one worker thread.
#[derive(Clone, Debug, Default)]
pub struct Turns(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    /// The event-loop turn to which the two counters belong.
    turn: Option<Instant>,
    steps: usize,
    spent: Duration,
    /// Queued steps, the oldest first.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// Whether a task is running that wakes queued steps.
    is_driven: bool,
    counts: Counts,
}

/// Numbers of steps that did not run immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of steps that waited for a later turn.
    pub postponed: u64,
    /// Number of steps that ran on another thread.
    pub offloaded: u64,
}

/// A step in the queue, which is removed from the queue when its future is dropped.
struct QueuedStep<'t> {
    turns: &'t Turns,
    ticket: Option<u64>,
}

impl Drop for QueuedStep<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.turns.0.borrow_mut().waiting.remove(&ticket);
        }
    }
}

impl Turns {
    /// Runs a step; waits for a later turn if the limit of this turn is reached.
    pub async fn run<T>(&self, step: impl FnOnce() -> T) -> T {
        let mut queued = QueuedStep { turns: self, ticket: None };
        poll_fn(|context| self.poll_enter(&mut queued, context)).await;
        drop(queued);
        let begun = Instant::now();
        let done = step();
        self.0.borrow_mut().spent += begun.elapsed();
        done
    }

    /// Runs a step on another thread, so that it does not delay this thread. Returns `None` if the step panicked.
    pub async fn run_offloaded<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.0.borrow_mut().counts.offloaded += 1;
        rt::offload(step).await
    }

    /// Whether other handshakes are queued or have run a step in this turn.
    pub fn is_crowded(&self) -> bool {
        let mut state = self.0.borrow_mut();
        state.begin(rt::now());
        state.steps > 0 || !state.waiting.is_empty()
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.0.borrow_mut().counts)
    }

    fn poll_enter(&self, queued: &mut QueuedStep<'_>, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        state.begin(rt::now());
        let has_room = state.steps < STEPS_PER_TURN_MAX && state.spent < TIME_PER_TURN_MAX;
        // A new step must not overtake queued steps.
        if has_room && (queued.ticket.is_some() || state.waiting.is_empty()) {
            state.steps += 1;
            return Poll::Ready(());
        }
        let ticket = *queued.ticket.get_or_insert_with(|| {
            state.next += 1;
            state.counts.postponed += 1;
            state.next
        });
        state.waiting.insert(ticket, context.waker().clone());
        if !std::mem::replace(&mut state.is_driven, true) {
            rt::spawn(self.clone().wake_in_turns());
        }
        Poll::Pending
    }

    /// Wakes the oldest steps at the beginning of each turn while the queue is not empty. Steps that exceed the limit
    /// keep their position.
    async fn wake_in_turns(self) {
        loop {
            rt::yield_now().await;
            let mut state = self.0.borrow_mut();
            let oldest: Vec<Waker> = state.waiting.values().take(STEPS_PER_TURN_MAX).cloned().collect();
            if oldest.is_empty() {
                state.is_driven = false;
                return;
            }
            drop(state);
            oldest.into_iter().for_each(Waker::wake);
        }
    }
}

impl State {
    /// Resets the counters if a new turn has begun.
    fn begin(&mut self, now: Instant) {
        if self.turn != Some(now) {
            self.turn = Some(now);
            (self.steps, self.spent) = (0, Duration::ZERO);
        }
    }
}
