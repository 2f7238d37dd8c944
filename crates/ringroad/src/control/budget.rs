//! Limits the number of messages that another process sends without a request.
//!
//! A budget starts with [`MESSAGES_MAX`] messages and regains [`PER_SECOND`]. A correct process never uses it up: a worker sends
//! addresses at most ten times a second, and the agent waits for the network or for workers between its messages. A process that
//! was taken over could otherwise fill the error log, and keep the master busy.

use std::time::{Duration, Instant};

/// Number of messages without a pause: what the buffers of the channel can hold while the master is blocked for a time.
const MESSAGES_MAX: u32 = 2000;

/// Number of further messages per second.
const PER_SECOND: u32 = 50;

/// The number of messages that a process may still send.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u32,
    /// The time up to which regained messages are included in `left`.
    since: Instant,
}

impl Budget {
    pub(crate) fn new(now: Instant) -> Budget {
        Budget { left: MESSAGES_MAX, since: now }
    }

    /// Counts a message. Returns whether the process may send it.
    #[must_use]
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / PER_SECOND;
        let regained = now.saturating_duration_since(self.since).as_nanos() / each.as_nanos();
        let regained = u32::try_from(regained).unwrap_or(u32::MAX).min(MESSAGES_MAX);
        self.since = match regained == MESSAGES_MAX {
            true => now,
            false => self.since + each * regained,
        };
        self.left = self.left.saturating_add(regained).min(MESSAGES_MAX);
        let is_permitted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &mut Budget, now: Instant) -> u32 {
        (0..).take_while(|_| budget.take(now)).count() as u32
    }

    #[test]
    fn a_budget_is_regained_with_time_up_to_its_maximum() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert_eq!(taken(&mut budget, start), MESSAGES_MAX);
        assert_eq!(taken(&mut budget, start + Duration::from_millis(999)), PER_SECOND - 1);
        assert_eq!(taken(&mut budget, start + Duration::from_secs(1)), 1);
        assert_eq!(taken(&mut budget, start + Duration::from_secs(86_400)), MESSAGES_MAX);
        assert_eq!(taken(&mut budget, start), 0, "the clock of a test may step back");
    }
}
