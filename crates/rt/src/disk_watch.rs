//! Operations on files in flight, for an observer: each from its submission to its completion.
//!
//! Without an observer an operation costs a look at a cell. With one its start is kept beside the table of operations, by the
//! number of its wait. The times are those of turns, so an operation takes as long as its task waits for it.

use std::cell::{Cell, OnceCell, RefCell};
use std::time::{Duration, Instant};

use io::op::{DeviceId, DiskKind};

/// A change of an operation on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// It was submitted, or queues for room in the engine.
    Begun,
    /// It has ended, so long after that.
    Ended(Duration),
    /// Nothing waits for it any more.
    GivenUp,
}

/// Is called for each change.
type Observer = Box<dyn Fn(DiskKind, DeviceId, DiskEvent)>;

/// What began when.
type Begun = Option<(DiskKind, DeviceId, Instant)>;

#[derive(Default)]
pub(crate) struct DiskWatch {
    observer: OnceCell<Observer>,
    /// By the index of the wait.
    begun: RefCell<Vec<Begun>>,
    in_flight: Cell<usize>,
}

impl DiskWatch {
    /// Sets the observer, unless there is one.
    pub(crate) fn observe<F>(&self, observer: impl FnOnce() -> F)
    where
        F: Fn(DiskKind, DeviceId, DiskEvent) + 'static,
    {
        self.observer.get_or_init(|| Box::new(observer()));
    }

    /// Whether there is an observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some()
    }

    /// Whether an operation is in flight that was observed from its start.
    pub(crate) fn is_any_in_flight(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// An operation begins.
    pub(crate) fn begin(&self, wait: u32, kind: DiskKind, device: DeviceId, now: Instant) {
        let mut begun = self.begun.borrow_mut();
        let place = wait as usize;
        if place >= begun.len() {
            begun.resize(place + 1, None);
        }
        debug_assert!(begun[place].is_none(), "a wait has one operation");
        begun[place] = Some((kind, device, now));
        self.in_flight.set(self.in_flight.get() + 1);
        self.show(kind, device, DiskEvent::Begun);
    }

    /// The operation of a wait has ended, if it is one on files.
    pub(crate) fn end(&self, wait: u32, now: Instant) {
        self.leave(wait, |since| DiskEvent::Ended(now.saturating_duration_since(since)));
    }

    /// The result of an operation is not waited for any more.
    pub(crate) fn give_up(&self, wait: u32) {
        self.leave(wait, |_| DiskEvent::GivenUp);
    }

    /// Gives back the memory of a longer table.
    pub(crate) fn trim(&self) {
        let mut begun = self.begun.borrow_mut();
        let len = begun.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        begun.truncate(len);
        begun.shrink_to_fit();
    }

    fn leave(&self, wait: u32, event: impl FnOnce(Instant) -> DiskEvent) {
        if !self.is_any_in_flight() {
            return;
        }
        let left = self.begun.borrow_mut().get_mut(wait as usize).and_then(Option::take);
        if let Some((kind, device, since)) = left {
            self.in_flight.set(self.in_flight.get() - 1);
            self.show(kind, device, event(since));
        }
    }

    fn show(&self, kind: DiskKind, device: DeviceId, event: DiskEvent) {
        if let Some(observer) = self.observer.get() {
            observer(kind, device, event);
        }
    }
}
