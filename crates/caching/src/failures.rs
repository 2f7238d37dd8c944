//! Failed requests to upstreams ([`Failed`]), and failures retained by `proxy_cache_valid`: a 502 or 504 because no upstream sent a response. Until the time is over, requests
//! get the same status without a request to the upstream.
//!
//! Failures are stored in memory only. Main type: [`Failures`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cache::{Key, KeyMap};

use exchange::request::Request;
use upstream::Failure;
use upstream::state::Tries;

/// Maximum number of retained failures of one shard, about 70 bytes each. Requests whose failure is not retained contact the upstream
/// again.
const FAILURES_MAX: usize = 1 << 12;

/// Time between two searches for failures whose time is over. Without a pause, a full table would be searched for each new failure.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The cases in which a stale response is used (`proxy_cache_use_stale`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// `error`
    Error,
    /// `timeout`
    Timeout,
    /// `invalid_header`
    InvalidHeader,
    /// `updating`
    Updating,
    /// `http_500`
    Http500,
    /// `http_502`
    Http502,
    /// `http_503`
    Http503,
    /// `http_504`
    Http504,
    /// `http_403`
    Http403,
    /// `http_404`
    Http404,
    /// `http_429`
    Http429,
}

/// A request to the upstream that failed, or whose response is worse than a stale one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The result for the client.
    pub failure: Failure,
    /// The matching parameter of `proxy_cache_use_stale`.
    pub(super) case: Option<Stale>,
    /// Whether it is an error in the sense of `stale-if-error` (RFC 5861 section 4), which includes failures to connect.
    pub(super) is_error: bool,
}

impl Failed {
    /// Returns the outcome of the tries of a request.
    pub fn of(request: &mut Request, failure: Failure) -> Failed {
        let case = match failure {
            Failure::Status(504) => Some(Stale::Timeout),
            Failure::Status(_) if Tries::of(request).had_invalid_header() => Some(Stale::InvalidHeader),
            Failure::Status(_) => Some(Stale::Error),
            Failure::ClientClosed => None,
        };
        Failed { failure, case, is_error: case.is_some() }
    }

    /// Returns the outcome of a response with this status.
    pub fn of_status(status: u16) -> Failed {
        let (case, is_error) = match status {
            500 => (Some(Stale::Http500), true),
            502 => (Some(Stale::Http502), true),
            503 => (Some(Stale::Http503), true),
            504 => (Some(Stale::Http504), true),
            403 => (Some(Stale::Http403), false),
            404 => (Some(Stale::Http404), false),
            429 => (Some(Stale::Http429), false),
            _ => (None, false),
        };
        Failed { failure: Failure::Status(status), case, is_error }
    }
}

/// The retained failures of one shard of a cache's primary keys.
#[derive(Default)]
pub struct Failures {
    /// Whether the table has failures. Requests take no lock otherwise.
    is_used: AtomicBool,
    table: Mutex<FailureTable>,
}

/// Failures by primary key.
#[derive(Default)]
struct FailureTable {
    retained: KeyMap<RetainedFailure>,
    swept: Option<Instant>,
}

/// A failure, which requests get without a request to the upstream.
#[derive(Clone, Copy)]
struct RetainedFailure {
    /// The key of the variant that was requested; the primary key if variants are not known.
    variant: Key,
    failed: Failed,
    until: Instant,
}

impl Failures {
    /// Retains the failure of a key for this time, instead of an earlier one: each key has the failure of one variant.
    pub fn add(&self, key: &Key, (variant, failed): (Key, Failed), lifetime: Duration, now: Instant) {
        // A time that cannot be represented is longer than any process runs; such a failure is not retained.
        let Some(until) = now.checked_add(lifetime) else { return };
        let mut table = self.lock();
        if table.retained.len() >= FAILURES_MAX {
            table.sweep(now);
        }
        if table.retained.len() < FAILURES_MAX || table.retained.contains_key(key) {
            table.retained.insert(*key, RetainedFailure { variant, failed, until });
        }
        assert!(table.retained.len() <= FAILURES_MAX, "the table of failures is bounded");
        self.is_used.store(!table.retained.is_empty(), Ordering::Release);
    }

    /// Returns the retained failure of a key, if it is that of the variant.
    pub fn find(&self, key: &Key, variant: &Key, now: Instant) -> Option<Failed> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.lock();
        table.sweep(now);
        self.is_used.store(!table.retained.is_empty(), Ordering::Release);
        let failure = table.retained.get(key)?;
        (failure.until > now && failure.variant == *variant).then_some(failure.failed)
    }

    /// Drops the failure of a key: an upstream has responded, or the key was purged.
    pub fn drop_one(&self, key: &Key) {
        if self.is_used.load(Ordering::Acquire) {
            let mut table = self.lock();
            table.retained.remove(key);
            self.is_used.store(!table.retained.is_empty(), Ordering::Release);
        }
    }

    /// Drops all failures.
    pub fn drop_all(&self) {
        let mut table = self.lock();
        table.retained.clear();
        self.is_used.store(false, Ordering::Release);
    }

    /// Locks the table. It ignores poisoning, because a panic cannot leave the data inconsistent here.
    fn lock(&self) -> MutexGuard<'_, FailureTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureTable {
    /// Drops the failures whose time is over, if the last search was not just before.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_INTERVAL) {
            self.swept = Some(now);
            self.retained.retain(|_, failure| failure.until > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn add(failures: &Failures, key: &Key, status: u16, lifetime: Duration, now: Instant) {
        failures.add(key, (*key, Failed::of_status(status)), lifetime, now);
    }

    /// Returns the failure of a key without variants.
    fn find(failures: &Failures, key: &Key, now: Instant) -> Option<u16> {
        match failures.find(key, key, now)?.failure {
            Failure::Status(status) => Some(status),
            Failure::ClientClosed => None,
        }
    }

    #[test]
    fn failures_are_retained_until_their_time_is_over() {
        let (failures, now, key) = (Failures::default(), Instant::now(), Key::of(b"one"));
        assert_eq!(find(&failures, &key, now), None);
        add(&failures, &key, 504, MINUTE, now);
        assert_eq!((find(&failures, &key, now), find(&failures, &Key::of(b"two"), now)), (Some(504), None));
        failures.drop_one(&key);
        assert_eq!(find(&failures, &key, now), None);
        add(&failures, &key, 502, MINUTE, now);
        failures.drop_all();
        add(&failures, &key, 502, Duration::MAX, now);
        assert_eq!(find(&failures, &key, now), None);
        add(&failures, &key, 502, MINUTE, now);
        assert_eq!(find(&failures, &key, now + Duration::from_millis(59_999)), Some(502));
        // The table was searched just before, so that the failure is still in it.
        assert_eq!((find(&failures, &key, now + MINUTE), failures.lock().retained.len()), (None, 1));
        assert_eq!(find(&failures, &key, now + MINUTE + SWEEP_INTERVAL), None);
        assert!(!failures.is_used.load(Ordering::Relaxed), "requests take no lock again");
    }

    #[test]
    fn a_failure_is_that_of_one_variant() {
        let (failures, now, key) = (Failures::default(), Instant::now(), Key::of(b"one"));
        let (one, other) = (key.variant(b"a"), key.variant(b"b"));
        let failed = Failed::of_status(502);
        failures.add(&key, (one, failed), MINUTE, now);
        assert_eq!(
            [key, one, other].map(|variant| failures.find(&key, &variant, now)),
            [None, Some(failed), None]
        );
        failures.drop_one(&key);
        assert_eq!(failures.find(&key, &one, now), None);
    }

    #[test]
    fn the_number_of_failures_is_limited() {
        let (failures, now) = (Failures::default(), Instant::now());
        let key = |number: usize| Key::of(&number.to_be_bytes());
        (0..=FAILURES_MAX).for_each(|number| add(&failures, &key(number), 502, MINUTE, now));
        assert_eq!(
            (find(&failures, &key(0), now), find(&failures, &key(FAILURES_MAX), now)),
            (Some(502), None)
        );
        // Failures whose time is over make room.
        add(&failures, &key(FAILURES_MAX), 502, MINUTE, now + MINUTE);
        assert_eq!(find(&failures, &key(FAILURES_MAX), now + MINUTE), Some(502));
    }
}
