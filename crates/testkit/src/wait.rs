//! Waiting with a deadline: the only way in which a test of this project waits.
//!
//! [`Deadline`] is a point in time that a whole script shares; [`until`] asks a question again and again
//! until it is answered. Not here: waiting for bytes, which `client` does with socket timeouts.

use std::fmt;
use std::time::{Duration, Instant};

/// The default time limit of a script: three minutes.
///
/// It distinguishes a hang from a slow machine, and nothing else: a script of a few seconds took longer than half a
/// minute on two cores that builds and a busy disk shared with it. Short enough that a hang is reported by the test and
/// not by the platform's own limit.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(180);

/// First pause between two looks in [`until`]; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// Longest pause between two looks: the delay that polling may add to a test, 10 milliseconds.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The moment at which a script gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline that lies `limit` from now.
    pub fn after(limit: Duration) -> Deadline {
        Deadline(Instant::now() + limit)
    }

    /// The time that is left, or `None` when the deadline has passed.
    pub fn left(self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline::after(DEFAULT_LIMIT)
    }
}

/// The deadline passed before the thing that was waited for happened.
#[derive(Debug)]
pub struct TimedOut {
    /// The subject of the wait, in words.
    pub what: String,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gave up waiting for {}", self.what)
    }
}

impl std::error::Error for TimedOut {}

/// Calls `look` until it returns a value; gives up with `what` in the error when the deadline passes.
///
/// `look` runs at least once, also with a deadline in the past. The pauses start short and grow, so that a quick event
/// costs microseconds and a slow one does not take the processor from the process under test.
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

/// Lets the thread rest for about `time`, or less: a stray unpark token may end it early.
pub(crate) fn pause(time: Duration) {
    std::thread::park_timeout(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_returns_what_it_found_and_asks_again() {
        let mut asked = 0;
        let found = until("the third question", Deadline::default(), || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(found.expect("the closure answers at the third call"), 3);
    }

    #[test]
    fn until_looks_once_and_names_what_it_waited_for() {
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
