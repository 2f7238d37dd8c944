//! Waiting for a condition with a deadline. Tests of this project wait only in this way.
//!
//! [`Deadline`] is a point in time that all waits of a test may share; [`until`] repeats a check until it succeeds.
//! Waiting for bytes is in `client`, which uses socket timeouts.

use std::fmt;
use std::time::{Duration, Instant};

/// The default time limit of a test: three minutes.
///
/// It must exceed the time of any test that does not hang: a test of a few seconds has taken more than half a minute on
/// two cores shared with builds and a busy disk. It is so short that a hanging test fails before the platform's time
/// limit for the run.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(180);

/// First pause between two checks in [`until`]; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// Longest pause between two checks, and so the maximum delay that polling adds to a wait: 10 milliseconds.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The time at which a test gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns a deadline `limit` from now.
    pub fn after(limit: Duration) -> Deadline {
        Deadline(Instant::now() + limit)
    }

    /// Returns the remaining time, or `None` if the deadline has passed.
    pub fn left(self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline::after(DEFAULT_LIMIT)
    }
}

/// Error: the deadline passed before the awaited event.
#[derive(Debug)]
pub struct TimedOut {
    /// Description of the awaited event.
    pub what: String,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gave up waiting for {}", self.what)
    }
}

impl std::error::Error for TimedOut {}

/// Calls `look` until it returns a value; fails with `what` in the error when the deadline passes.
///
/// `look` is called at least once, even with a deadline in the past. The pauses are brief at first and grow, so that a
/// quick event costs microseconds, and a slow one leaves the CPU time to the process under test.
pub fn until<T>(what: &str, deadline: Deadline, mut look: impl FnMut() -> Option<T>) -> Result<T, TimedOut> {
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        let Some(left) = deadline.left() else {
            return Err(TimedOut { what: what.to_owned() });
        };
        self::pause(pause.min(left));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Lets this time pass, as the input of a test: the pause of a slow peer. A test that waits for an event calls [`until`].
pub fn let_pass(time: Duration) {
    let _ = until("the end of a pause", Deadline::after(time), || None::<()>);
}

/// Sleeps for about `time`. The sleep may end earlier if an unpark token of the thread is available.
pub(crate) fn pause(time: Duration) {
    std::thread::park_timeout(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_polls_and_returns_the_value() {
        let mut asked = 0;
        let found = until("the third question", Deadline::default(), || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(found.expect("the closure answers at the third call"), 3);
    }

    #[test]
    fn until_checks_once_and_reports_the_awaited_condition() {
        let mut asked = 0;
        let late = Deadline::after(Duration::ZERO);
        let error = until::<()>("rain", late, || {
            asked += 1;
            None
        })
        .expect_err("nothing is ever found");
        assert_eq!(asked, 1);
        assert_eq!(error.to_string(), "gave up waiting for rain");
    }
}
