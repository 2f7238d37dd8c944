//! Reports file operations to an observer, each from its submission to its completion.
//!
//! Without an observer an operation costs one read of a cell. With an observer this table stores the start time of each
//! operation in flight, by the index of its wait. Times are those of event-loop turns, so the duration is the time that
//! the task has waited.

use std::cell::{Cell, OnceCell, RefCell};
use std::time::{Duration, Instant};

use io::facts::DeviceId;
use io::op::DiskKind;

/// Change in the state of a file operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// The operation was submitted, or is queued because the engine is full.
    Started,
    /// The operation has completed; the time since `Started`.
    Ended(Duration),
    /// No task waits for the operation any more.
    Abandoned,
}

/// Function that is called for each change.
type Observer = Box<dyn Fn(DiskKind, DeviceId, DiskEvent)>;

/// Kind, device and start time of an operation.
type Started = Option<(DiskKind, DeviceId, Instant)>;

#[derive(Default)]
pub(crate) struct DiskWatch {
    observer: OnceCell<Observer>,
    /// Operations in flight, by the index of the wait.
    started: RefCell<Vec<Started>>,
    in_flight: Cell<usize>,
}

impl DiskWatch {
    /// Sets the observer, unless one is set already.
    pub(crate) fn observe<F>(&self, observer: impl FnOnce() -> F)
    where
        F: Fn(DiskKind, DeviceId, DiskEvent) + 'static,
    {
        self.observer.get_or_init(|| Box::new(observer()));
    }

    /// Whether an observer is set.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some()
    }

    /// Whether any operation is in flight whose start was observed.
    pub(crate) fn is_any_in_flight(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// Stores and reports the start of an operation.
    pub(crate) fn begin(&self, wait: u32, kind: DiskKind, device: DeviceId, now: Instant) {
        let mut started = self.started.borrow_mut();
        let index = wait as usize;
        if index >= started.len() {
            started.resize(index + 1, None);
        }
        debug_assert!(started[index].is_none(), "a wait has one operation");
        started[index] = Some((kind, device, now));
        self.in_flight.set(self.in_flight.get() + 1);
        self.show(kind, device, DiskEvent::Started);
    }

    /// Reports the completion of a wait's operation, if it is an observed file operation.
    pub(crate) fn end(&self, wait: u32, now: Instant) {
        self.leave(wait, |since| DiskEvent::Ended(now.saturating_duration_since(since)));
    }

    /// Reports that no task waits for the result of an operation any more.
    pub(crate) fn abandon(&self, wait: u32) {
        self.leave(wait, |_| DiskEvent::Abandoned);
    }

    /// Releases unused memory of the table.
    pub(crate) fn trim(&self) {
        let mut started = self.started.borrow_mut();
        let len = started.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        started.truncate(len);
        started.shrink_to_fit();
    }

    fn leave(&self, wait: u32, event: impl FnOnce(Instant) -> DiskEvent) {
        if !self.is_any_in_flight() {
            return;
        }
        let left = self.started.borrow_mut().get_mut(wait as usize).and_then(Option::take);
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
