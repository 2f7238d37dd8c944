//! Limits the log lines of a cause that may occur thousands of times per second. One line per second is written, with
//! the number of lines suppressed before it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

/// Minimum time between two lines of one cause, so that a flood of events does not fill the disk.
const PAUSE: Duration = Duration::from_secs(1);

/// The lines of one cause on one thread.
#[derive(Debug, Default)]
pub struct Limited {
    written: Cell<Option<Instant>>,
    held_back: Cell<u64>,
}

/// Number of lines suppressed since the last written line; displayed as a suffix of the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBack(u64);

impl Limited {
    /// If a line may be written now, returns the number of lines suppressed before it; otherwise counts a suppressed
    /// line.
    pub fn due(&self, now: Instant) -> Option<HeldBack> {
        if self.written.get().is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.held_back.set(self.held_back.get() + 1);
            return None;
        }
        self.written.set(Some(now));
        Some(HeldBack(self.held_back.take()))
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more since the last message)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_reports_the_suppressed_count() {
        let (limited, start) = (Limited::default(), Instant::now());
        let due = |at_ms| limited.due(start + Duration::from_millis(at_ms));
        assert_eq!(due(0), Some(HeldBack(0)));
        assert_eq!((due(1), due(999)), (None, None));
        assert_eq!(
            due(1000).map(|held_back| held_back.to_string()),
            Some(" (2 more since the last message)".into())
        );
        assert_eq!(due(2000).map(|held_back| held_back.to_string()), Some(String::new()));
    }
}
