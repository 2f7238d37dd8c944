//! The deadlines of a runtime: a wheel of milliseconds, and the receiver of each entry that expires.
//!
//! A [`Deadline`] moves lazily: a later time is only written down, and its entry in the wheel, which comes
//! out too early then, is put back at the right place. The futures are in [`crate::timer`].

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::executor::Waiter;
use crate::wheel::{Key, Wheel};

/// The timers of a runtime: a wheel of milliseconds since the runtime began.
pub(crate) struct Timers {
    base: Instant,
    wheel: Wheel<Due>,
    /// Entries that expired in one turn; kept for its memory.
    out: Vec<(Key, Due)>,
    woken: Vec<Waiter>,
}

/// The receiver of an entry that expires.
pub(crate) enum Due {
    Sleep(Waiter),
    Timer(Weak<Deadline>),
}

impl Timers {
    pub(crate) fn new(base: Instant) -> Timers {
        Timers { base, wheel: Wheel::new(), out: Vec::new(), woken: Vec::new() }
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

    pub(crate) fn insert(&mut self, deadline: Instant, due: Due) -> Key {
        let tick = self.tick(deadline);
        self.wheel.insert(tick, due)
    }

    /// The waiter of a sleep that has not ended.
    pub(crate) fn sleeper(&mut self, key: Key) -> Option<&mut Waiter> {
        match self.wheel.get_mut(key)? {
            Due::Sleep(waiter) => Some(waiter),
            Due::Timer(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        self.wheel.remove(key);
    }

    /// Puts a deadline into the wheel.
    pub(crate) fn put(&mut self, state: &Rc<Deadline>, deadline: Instant) {
        let key = self.insert(deadline, Due::Timer(Rc::downgrade(state)));
        state.entry.set(Some((key, deadline)));
    }

    /// Removes entries due at `now` and returns their wakers, in memory that [`Timers::reuse`] takes back.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Waiter> {
        let tick = now.saturating_duration_since(self.base).as_millis() as u64;
        let mut out = std::mem::take(&mut self.out);
        self.wheel.advance(tick, |key, due| out.push((key, due)));
        let mut woken = std::mem::take(&mut self.woken);
        for (key, due) in out.drain(..) {
            match due {
                Due::Sleep(waiter) => woken.push(waiter),
                Due::Timer(state) => {
                    woken.extend(state.upgrade().and_then(|state| self.come_out(&state, key, now)))
                }
            }
        }
        self.out = out;
        woken
    }

    /// Keeps the memory of a list whose waiters were woken.
    pub(crate) fn reuse(&mut self, woken: Vec<Waiter>) {
        assert!(woken.is_empty(), "every waiter was woken");
        self.woken = woken;
    }

    /// An entry has come out of the wheel: its deadline has come, or was moved since.
    fn come_out(&mut self, state: &Rc<Deadline>, key: Key, now: Instant) -> Option<Waiter> {
        if state.entry.get().is_none_or(|(known, _)| known != key) {
            return None;
        }
        state.entry.set(None);
        match state.at.get() {
            Some(deadline) if deadline > now => {
                self.put(state, deadline);
                None
            }
            Some(_) => Some(state.waiter.take()),
            None => None,
        }
    }
}

/// State that a [`crate::Timer`] shares with the wheel.
#[derive(Default)]
pub(crate) struct Deadline {
    pub(crate) at: Cell<Option<Instant>>,
    /// The entry in the wheel and the time it was put there for, never later than `at`.
    pub(crate) entry: Cell<Option<(Key, Instant)>>,
    pub(crate) expired: Cell<bool>,
    pub(crate) waiter: RefCell<Waiter>,
}
