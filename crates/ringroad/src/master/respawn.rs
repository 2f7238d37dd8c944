//! Decides when to replace a worker that exited before it was ready: immediately, or after a delay if this happens
//! repeatedly.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of equal faults within [`WINDOW`] after which restarts are delayed.
const FAULTS_MAX: usize = 5;

/// Time during which faults are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// Delay of the first delayed restart; it doubles with each further fault.
const DELAY_MIN: Duration = Duration::from_millis(500);

/// Maximum delay: long enough to cause little load, and short enough for an operator who has just fixed the fault.
const DELAY_MAX: Duration = Duration::from_secs(8);

/// Counts workers that exited before they were ready.
#[derive(Debug, Default)]
pub(crate) struct Respawn {
    fault: String,
    deaths: VecDeque<Instant>,
    /// The last delay; zero if restarts are not delayed.
    delay: Duration,
}

impl Respawn {
    /// Counts a worker that exited because of `fault` before it was ready. Returns the delay before the next start.
    pub(crate) fn handle_death(&mut self, fault: &str, now: Instant) -> Duration {
        if self.fault != fault {
            *self = Respawn { fault: fault.to_owned(), ..Respawn::default() };
        }
        // The window is extended by the delays, so that a loop with delays of 8 s is still detected.
        let window = WINDOW.max(self.delay * FAULTS_MAX as u32);
        while self.deaths.front().is_some_and(|first| now.duration_since(*first) > window) {
            self.deaths.pop_front();
        }
        self.deaths.push_back(now);
        self.delay = match self.deaths.len() < FAULTS_MAX {
            true => Duration::ZERO,
            false => (self.delay * 2).clamp(DELAY_MIN, DELAY_MAX),
        };
        self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(respawn: &mut Respawn, fault: &str, times: &[u64], start: Instant) -> Vec<u64> {
        let death = |ms: &u64| respawn.handle_death(fault, start + Duration::from_millis(*ms));
        times.iter().map(death).map(|delay| delay.as_millis() as u64).collect()
    }

    #[test]
    fn the_fifth_equal_failure_in_ten_seconds_is_delayed_with_backoff() {
        let mut respawn = Respawn::default();
        let times = [0, 10, 20, 30, 40, 600, 1700, 3800, 7900, 16_000];
        let expected = [0, 0, 0, 0, 500, 1000, 2000, 4000, 8000, 8000];
        assert_eq!(delays(&mut respawn, "signal 11", &times, Instant::now()), expected);
    }

    #[test]
    fn rare_and_different_failures_cause_no_delay() {
        let (mut respawn, start) = (Respawn::default(), Instant::now());
        assert_eq!(delays(&mut respawn, "signal 9", &[0, 3000, 6000, 9000, 12_000, 15_000], start), [0; 6]);
        assert_eq!(delays(&mut respawn, "code 1", &[15_001, 15_002, 15_003, 15_004], start), [0; 4]);
        assert_eq!(delays(&mut respawn, "signal 9", &[15_005], start), [0]);
        assert_eq!(
            delays(&mut respawn, "signal 9", &[15_006, 15_007, 15_008, 15_009], start),
            [0, 0, 0, 500]
        );
    }

    #[test]
    fn a_quiet_minute_resets_the_restart_delay() {
        let (mut respawn, start) = (Respawn::default(), Instant::now());
        assert_eq!(delays(&mut respawn, "signal 9", &[0, 1, 2, 3, 4], start), [0, 0, 0, 0, 500]);
        assert_eq!(delays(&mut respawn, "signal 9", &[60_000, 60_001], start), [0, 0]);
    }
}
