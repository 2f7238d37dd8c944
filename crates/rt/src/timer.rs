//! Deadlines: a sleep, and the recycled timer of a connection.
//!
//! A [`Timer`] moves lazily: a later deadline is only written down, and its entry in the wheel, which comes
//! out too early then, is put back at the right place. A connection that sets a deadline for every request
//! touches the wheel about once a minute.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::runtime::{self, Inner};
use crate::task::Waiter;
use crate::wheel::{Key, Wheel};

/// The timers of a runtime: a wheel of milliseconds since the runtime began.
pub(crate) struct Timers {
    base: Instant,
    wheel: Wheel<Due>,
    /// What came out of the wheel in one turn; kept for its memory.
    out: Vec<(Key, Due)>,
}

/// What is told when an entry comes out of the wheel.
enum Due {
    Sleep(Waiter),
    Timer(Weak<State>),
}

impl Timers {
    pub(crate) fn new(base: Instant) -> Timers {
        Timers { base, wheel: Wheel::new(), out: Vec::new() }
    }

    /// Gives back the memory of entries that are not in use.
    pub(crate) fn trim(&mut self) {
        self.wheel.trim();
    }

    /// Number of entries in the wheel.
    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.wheel.next().map(|tick| self.base + Duration::from_millis(tick))
    }

    /// The first tick that is not before `deadline`: nothing fires early.
    fn tick(&self, deadline: Instant) -> u64 {
        deadline.saturating_duration_since(self.base).as_nanos().div_ceil(1_000_000) as u64
    }

    fn insert(&mut self, deadline: Instant, due: Due) -> Key {
        let tick = self.tick(deadline);
        self.wheel.insert(tick, due)
    }
}

impl Inner {
    /// Wakes whoever waits for a time that has come.
    pub(crate) fn fire_timers(&self) {
        let mut out = {
            let mut timers = self.timers.borrow_mut();
            let Timers { base, wheel, out } = &mut *timers;
            let now = self.now.get().saturating_duration_since(*base).as_millis() as u64;
            wheel.advance(now, |key, due| out.push((key, due)));
            std::mem::take(out)
        };
        for (key, due) in out.drain(..) {
            match due {
                Due::Sleep(waiter) => self.wake(waiter),
                Due::Timer(state) => {
                    if let Some(state) = state.upgrade() {
                        state.come_out(key);
                    }
                }
            }
        }
        self.timers.borrow_mut().out = out;
    }
}

/// Waits until a time. Made by [`sleep_until`].
pub struct Sleep {
    runtime: Rc<Inner>,
    deadline: Instant,
    entry: Option<Key>,
}

/// Waits until `deadline`, and at most a millisecond longer.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { runtime: runtime::current(), deadline, entry: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.runtime.now.get() >= this.deadline {
            return Poll::Ready(());
        }
        let running = this.runtime.running.get();
        let mut timers = this.runtime.timers.borrow_mut();
        match this.entry.and_then(|key| timers.wheel.get_mut(key)) {
            Some(Due::Sleep(waiter)) => waiter.register(running, context),
            _ => {
                let mut waiter = Waiter::Nobody;
                waiter.register(running, context);
                this.entry = Some(timers.insert(this.deadline, Due::Sleep(waiter)));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.entry {
            self.runtime.timers.borrow_mut().wheel.remove(key);
        }
    }
}

/// A deadline has passed, or the wait was ended by [`Timer::expire_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline has passed")
    }
}

impl std::error::Error for Elapsed {}

/// One deadline that is set again and again. Clones are the same timer, so that a list of connections can
/// hold one.
#[derive(Clone)]
pub struct Timer(Rc<State>);

struct State {
    runtime: Rc<Inner>,
    deadline: Cell<Option<Instant>>,
    /// The entry in the wheel and the deadline it was put there for, never later than `deadline`.
    entry: Cell<Option<(Key, Instant)>>,
    expired: Cell<bool>,
    waiter: RefCell<Waiter>,
}

impl Timer {
    /// A timer of this thread without a deadline.
    pub fn new() -> Timer {
        Timer(Rc::new(State {
            runtime: runtime::current(),
            deadline: Cell::new(None),
            entry: Cell::new(None),
            expired: Cell::new(false),
            waiter: RefCell::default(),
        }))
    }

    /// Sets or moves the deadline; takes back an [`Timer::expire_now`].
    pub fn set(&self, deadline: Instant) {
        let state = &self.0;
        state.expired.set(false);
        state.deadline.set(Some(deadline));
        match state.entry.get() {
            Some((_, at)) if at <= deadline => {}
            Some((key, _)) => {
                state.runtime.timers.borrow_mut().wheel.remove(key);
                state.put_in(deadline);
            }
            None => state.put_in(deadline),
        }
    }

    /// Takes the deadline away, and an [`Timer::expire_now`] with it.
    pub fn clear(&self) {
        self.0.expired.set(false);
        self.0.deadline.set(None);
    }

    /// The deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline.get()
    }

    /// Ends the [`Timer::limit`] that waits on this timer at once, or else the next one, unless the timer
    /// is set or cleared before.
    pub fn expire_now(&self) {
        self.0.expired.set(true);
        self.0.wake();
    }

    /// The output of `future`, or [`Elapsed`] when the deadline passes first; `future` is dropped then. The
    /// deadline may be moved meanwhile, through a clone. One limit at a time for each timer.
    pub async fn limit<F: Future>(&self, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_elapsed(context).map(Err),
        })
        .await
    }

    /// Whether the deadline has passed, for a hand-written future.
    pub fn poll_elapsed(&self, context: &Context<'_>) -> Poll<Elapsed> {
        if self.0.is_over() {
            return Poll::Ready(Elapsed);
        }
        let running = self.0.runtime.running.get();
        self.0.waiter.borrow_mut().register(running, context);
        Poll::Pending
    }
}

impl Default for Timer {
    fn default() -> Timer {
        Timer::new()
    }
}

impl State {
    fn is_over(&self) -> bool {
        let now = self.runtime.now.get();
        self.expired.get() || self.deadline.get().is_some_and(|deadline| deadline <= now)
    }

    fn put_in(self: &Rc<State>, deadline: Instant) {
        let due = Due::Timer(Rc::downgrade(self));
        let key = self.runtime.timers.borrow_mut().insert(deadline, due);
        self.entry.set(Some((key, deadline)));
    }

    /// The entry has come out of the wheel: the deadline has come, or was moved since.
    fn come_out(self: &Rc<State>, key: Key) {
        if self.entry.get().is_none_or(|(known, _)| known != key) {
            return;
        }
        self.entry.set(None);
        match self.deadline.get() {
            Some(deadline) if deadline > self.runtime.now.get() => self.put_in(deadline),
            Some(_) => self.wake(),
            None => {}
        }
    }

    fn wake(&self) {
        let waiter = self.waiter.take();
        self.runtime.wake(waiter);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some((key, _)) = self.entry.get() {
            self.runtime.timers.borrow_mut().wheel.remove(key);
        }
    }
}
