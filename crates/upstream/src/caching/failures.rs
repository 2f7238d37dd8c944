//! Failures retained by `proxy_cache_valid`: a 502 or 504 because no upstream sent a response. Until the time is over, requests
//! get the same status without a request to the upstream.
//!
//! Failures are stored in memory only. Main type: [`Failures`], those of one cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cache::{Key, KeyMap};

/// Maximum number of retained failures, about 50 bytes each. Requests whose failure is not retained contact the upstream again.
const FAILURES_MAX: usize = 1 << 16;

/// The retained failures of one cache, by primary key.
#[derive(Default)]
pub struct Failures {
    /// Whether a failure was ever retained. Requests take no lock before.
    is_used: AtomicBool,
    retained: Mutex<KeyMap<RetainedFailure>>,
}

/// A status for the client.
#[derive(Clone, Copy)]
struct RetainedFailure {
    status: u16,
    until: Instant,
}

impl Failures {
    /// Retains the failure of a key for this time.
    pub fn add(&self, key: &Key, status: u16, lifetime: Duration, now: Instant) {
        // A time that cannot be represented is longer than any process runs; such a failure is not retained.
        let Some(until) = now.checked_add(lifetime) else { return };
        let mut retained = self.lock();
        if retained.len() >= FAILURES_MAX {
            retained.retain(|_, failure| failure.until > now);
        }
        if retained.len() < FAILURES_MAX || retained.contains_key(key) {
            retained.insert(*key, RetainedFailure { status, until });
            self.is_used.store(true, Ordering::Release);
        }
    }

    /// Returns the status of the retained failure of a key.
    pub fn find(&self, key: &Key, now: Instant) -> Option<u16> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.lock().get(key).filter(|failure| failure.until > now).map(|failure| failure.status)
    }

    /// Drops the failure of a key: an upstream has responded, or the key was purged.
    pub fn drop_one(&self, key: &Key) {
        if self.is_used.load(Ordering::Acquire) {
            self.lock().remove(key);
        }
    }

    /// Drops all failures.
    pub fn drop_all(&self) {
        self.lock().clear();
    }

    /// Locks the table. It ignores poisoning, because a panic cannot leave the data inconsistent here.
    fn lock(&self) -> MutexGuard<'_, KeyMap<RetainedFailure>> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn failures_are_retained_until_their_time_is_over() {
        let (failures, now, key) = (Failures::default(), Instant::now(), Key::of(b"one"));
        assert_eq!(failures.find(&key, now), None);
        failures.add(&key, 504, MINUTE, now);
        assert_eq!(failures.find(&key, now), Some(504));
        assert_eq!((failures.find(&Key::of(b"two"), now), failures.find(&key, now + MINUTE)), (None, None));
        failures.drop_one(&key);
        assert_eq!(failures.find(&key, now), None);
        failures.add(&key, 502, MINUTE, now);
        failures.drop_all();
        failures.add(&key, 502, Duration::MAX, now);
        assert_eq!(failures.find(&key, now), None);
    }

    #[test]
    fn the_number_of_failures_is_limited() {
        let (failures, now) = (Failures::default(), Instant::now());
        let key = |number: usize| Key::of(&number.to_be_bytes());
        (0..=FAILURES_MAX).for_each(|number| failures.add(&key(number), 502, MINUTE, now));
        assert_eq!((failures.find(&key(0), now), failures.find(&key(FAILURES_MAX), now)), (Some(502), None));
        // Failures whose time is over make room.
        failures.add(&key(FAILURES_MAX), 502, MINUTE, now + MINUTE);
        assert_eq!(failures.find(&key(FAILURES_MAX), now + MINUTE), Some(502));
    }
}
