//! Pacing of background work: [`Paced`].

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::config::Pace;

/// Maximum sleep of the manager between two checks for a stop.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Pauses background work after the number of files or the time of a [`Pace`].
pub(crate) struct Paced {
    pace: Pace,
    files: Cell<u32>,
    started: Cell<Instant>,
}

impl Paced {
    pub(crate) fn new(pace: Pace) -> Paced {
        Paced { pace, files: Cell::new(0), started: Cell::new(rt::now()) }
    }

    /// Counts processed files, and pauses when the pace requires it.
    pub(crate) async fn count(&self, files: u32) {
        self.files.set(self.files.get().saturating_add(files));
        let took = rt::now().saturating_duration_since(self.started.get());
        if self.pace.sleep.is_zero() || (self.files.get() < self.pace.files && took < self.pace.threshold) {
            return;
        }
        self.files.set(0);
        rt::sleep_until(rt::now() + self.pace.sleep).await;
        self.started.set(rt::now());
    }
}
