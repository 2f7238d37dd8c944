//! The deadlines of a runtime: a wheel with ticks of one ms, and the receiver of each entry that expires.
//!
//! A [`Deadline`] moves lazily: a later time is only recorded. Its entry in the wheel then expires too early, and is
//! inserted again for the recorded time. The futures are in [`crate::timer`].

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::executor::Waiter;
use crate::wheel::{Key, Wheel};

/// The timers of a runtime: a wheel of milliseconds since the start of the runtime.
pub(crate) struct Timers {
    base: Instant,
    wheel: Wheel<Due>,
    /// Entries that expired in one turn; a field so that its memory is reused.
    out: Vec<(Key, Due)>,
    woken: Vec<Waiter>,
    /// Deadlines of short waits that ended before.
    spare: Vec<Rc<Deadline>>,
}

/// Maximum number of unused deadlines of a thread, which together occupy about 50 KiB: more than the concurrent short waits of a
/// busy thread.
const SPARE_MAX: usize = 512;

/// The receiver of an entry that expires.
pub(crate) enum Due {
    Sleep(Waiter),
    Timer(Weak<Deadline>),
}

impl Timers {
    pub(crate) fn new(base: Instant) -> Timers {
        Timers { base, wheel: Wheel::new(), out: Vec::new(), woken: Vec::new(), spare: Vec::new() }
    }

    /// Frees the memory of unused entries.
    pub(crate) fn trim(&mut self) {
        self.wheel.trim();
        self.spare = Vec::new();
    }

    /// Returns an unused deadline, which may have an entry in the wheel.
    pub(crate) fn take_spare(&mut self) -> Option<Rc<Deadline>> {
        self.spare.pop()
    }

    /// Keeps a deadline without a time for [`Timers::take_spare`].
    pub(crate) fn add_spare(&mut self, deadline: &Rc<Deadline>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(Rc::clone(deadline));
        }
    }

    /// Returns the number of entries in the wheel.
    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Returns the time at which [`Timers::take_due`] next has work.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.wheel.next().map(|tick| self.base + Duration::from_millis(tick))
    }

    /// Returns the first tick that is not before `deadline`, so that no timer fires early.
    fn tick(&self, deadline: Instant) -> u64 {
        let since = deadline.saturating_duration_since(self.base);
        since.as_secs() * 1000 + u64::from(since.subsec_nanos().div_ceil(1_000_000))
    }

    pub(crate) fn insert(&mut self, deadline: Instant, due: Due) -> Key {
        let tick = self.tick(deadline);
        self.wheel.insert(tick, due)
    }

    /// Returns the waiter of a sleep that has not ended.
    pub(crate) fn sleeper(&mut self, key: Key) -> Option<&mut Waiter> {
        match self.wheel.get_mut(key)? {
            Due::Sleep(waiter) => Some(waiter),
            Due::Timer(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        self.wheel.remove(key);
    }

    /// Removes the entry of a deadline, unless the entry belongs to another one: the deadline may have outlived its
    /// runtime.
    pub(crate) fn remove_of(&mut self, key: Key, deadline: &Deadline) {
        if let Some(Due::Timer(state)) = self.wheel.get_mut(key)
            && std::ptr::eq(state.as_ptr(), deadline)
        {
            self.wheel.remove(key);
        }
    }

    /// Inserts a deadline into the wheel.
    pub(crate) fn put(&mut self, state: &Rc<Deadline>, deadline: Instant) {
        let key = self.insert(deadline, Due::Timer(Rc::downgrade(state)));
        state.entry.set(Some((key, deadline)));
    }

    /// Removes entries due at `now` and returns their wakers, in memory that [`Timers::reuse`] takes back; `None` if no
    /// entry is due, as in nearly every turn.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Vec<Waiter>> {
        let tick = now.saturating_duration_since(self.base).as_millis() as u64;
        self.wheel.advance(tick, |key, due| self.out.push((key, due)));
        if self.out.is_empty() {
            return None;
        }
        let mut out = std::mem::take(&mut self.out);
        let mut woken = std::mem::take(&mut self.woken);
        for (key, due) in out.drain(..) {
            match due {
                Due::Sleep(waiter) => woken.push(waiter),
                Due::Timer(state) => {
                    woken.extend(state.upgrade().and_then(|state| self.expire(&state, key, now)))
                }
            }
        }
        self.out = out;
        Some(woken)
    }

    /// Takes back the memory of a list whose waiters were woken.
    pub(crate) fn reuse(&mut self, woken: Vec<Waiter>) {
        assert!(woken.is_empty(), "every waiter was woken");
        self.woken = woken;
    }

    /// Handles an expired entry of a deadline, which has passed or was moved since.
    fn expire(&mut self, state: &Rc<Deadline>, key: Key, now: Instant) -> Option<Waiter> {
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
    /// The entry in the wheel and the time for which it was inserted, never later than `at`.
    pub(crate) entry: Cell<Option<(Key, Instant)>>,
    pub(crate) expired: Cell<bool>,
    pub(crate) waiter: Cell<Waiter>,
}
