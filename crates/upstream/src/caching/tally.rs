//! What a cache did, counted by each thread for itself and added up by whoever asks: [`Tally`], [`Totals`].
//!
//! A request that is served from memory takes a few microseconds, so a counter that threads share would be felt. These are
//! written by one thread each, with a load and a store. What the store counts itself (its fills, what it refuses and
//! removes) is not here; `modules/cache_counters.rs` shows both.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::freshness::store::NotStored;
use http::vary::VaryError;

use crate::caching::record::{self, Status, Unstored};
use crate::caching::tasks::Cache;
use exchange::request::Request;

/// All of `$upstream_cache_status`, in the order of their numbers.
pub const STATUSES: [Status; 7] = [
    Status::Miss,
    Status::Bypass,
    Status::Expired,
    Status::Stale,
    Status::Updating,
    Status::Revalidated,
    Status::Hit,
];

/// Why answers are not stored, but for what the store refuses, which counts that itself. What is wrong with `Vary` counts
/// as one.
pub const REASONS: [Unstored; 17] = [
    Unstored::Rules(NotStored::Interim),
    Unstored::Rules(NotStored::NotModified),
    Unstored::Rules(NotStored::Partial),
    Unstored::Rules(NotStored::AccelOff),
    Unstored::Rules(NotStored::NoStore),
    Unstored::Rules(NotStored::Private),
    Unstored::Rules(NotStored::NoCache),
    Unstored::Rules(NotStored::StatusNotUnderstood),
    Unstored::Rules(NotStored::SetCookie),
    Unstored::Rules(NotStored::VaryAny),
    Unstored::Rules(NotStored::Authorization),
    Unstored::Rules(NotStored::NoLifetime),
    Unstored::Rules(NotStored::Expired),
    Unstored::Configured,
    Unstored::TooFewUses,
    Unstored::Vary(VaryError::Any),
    Unstored::Worse,
];

/// What one thread has counted of one cache. Aligned so that counting never takes a cache line away from another thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    statuses: [AtomicU64; STATUSES.len()],
    collapsed: AtomicU64,
    unavailable: AtomicU64,
    unstored: [AtomicU64; REASONS.len()],
}

/// Sums over the threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests in the order of [`STATUSES`].
    pub statuses: [u64; STATUSES.len()],
    /// Of them, those that waited for another one's answer and read along.
    pub collapsed: u64,
    /// Requests that passed because the cache could not be opened.
    pub unavailable: u64,
    /// Answers that were not stored, in the order of [`REASONS`].
    pub unstored: [u64; REASONS.len()],
}

/// The tallies of one cache.
#[derive(Debug)]
pub struct Tallies {
    /// No other cache of this process has or had it, so that threads know their tally by it and need not hold the cache.
    number: u64,
    all: Mutex<Vec<Arc<Tally>>>,
}

/// The tallies that one thread writes to, by the number of their cache. There are as many as there are caches, which is few.
#[derive(Debug, Default)]
pub struct Own(RefCell<Vec<(u64, Arc<Tally>)>>);

impl Tallies {
    /// Those of a cache that begins.
    pub fn start() -> Tallies {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Tallies { number: NEXT.fetch_add(1, Ordering::Relaxed), all: Mutex::default() }
    }

    /// Their sums. Numbers that are read while others change may be a moment apart.
    pub fn totals(&self) -> Totals {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = Totals::default();
        for tally in all.iter() {
            let pairs = totals.statuses.iter_mut().zip(&tally.statuses);
            let more = totals.unstored.iter_mut().zip(&tally.unstored);
            pairs.chain(more).for_each(|(sum, number)| *sum += get(number));
            totals.collapsed += get(&tally.collapsed);
            totals.unavailable += get(&tally.unavailable);
        }
        totals
    }

    fn begin(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }
}

impl Own {
    fn with(&self, tallies: &Tallies, count: impl FnOnce(&Tally)) {
        let mut own = self.0.borrow_mut();
        if let Some((_, tally)) = own.iter().find(|(number, _)| *number == tallies.number) {
            return count(tally);
        }
        // Those of caches that are gone are held by nobody else.
        own.retain(|(_, tally)| Arc::strong_count(tally) > 1);
        let tally = tallies.begin();
        count(&tally);
        own.push((tallies.number, tally));
    }
}

/// Counts a request that has its answer, or is told that there is none.
pub fn count(request: &mut Request, cache: &Cache) {
    let record = record::of(request);
    let (status, collapsed, unstored) = (record.status, record.collapsed, record.unstored);
    request.conn.thread.local::<Own>().with(cache.tallies(), |tally| {
        match status {
            Some(status) => add(&tally.statuses[status as usize]),
            None => add(&tally.unavailable),
        }
        if collapsed {
            add(&tally.collapsed);
        }
        if let Some(place) = unstored.and_then(place_of) {
            add(&tally.unstored[place]);
        }
    });
}

fn place_of(reason: Unstored) -> Option<usize> {
    let reason = match reason {
        Unstored::Vary(_) => Unstored::Vary(VaryError::Any),
        reason => reason,
    };
    REASONS.iter().position(|known| *known == reason)
}

/// Only one thread writes, so that neither a lock nor an atomic addition is needed.
fn add(number: &AtomicU64) {
    number.store(get(number).wrapping_add(1), Ordering::Relaxed);
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbers() {
        for (place, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, place, "{}", status.name());
        }
        for (place, reason) in REASONS.into_iter().enumerate() {
            assert_eq!(place_of(reason), Some(place), "{reason}");
        }
        assert_eq!(place_of(Unstored::Refused(cache::Refused::Busy)), None, "the store counts it");
    }

    #[test]
    fn threads_and_caches_are_told_apart() {
        let (first, second) = (Tallies::start(), Tallies::start());
        let threads = [Own::default(), Own::default()];
        for _ in 0..3 {
            threads[0].with(&first, |tally| add(&tally.collapsed));
        }
        threads[1].with(&first, |tally| add(&tally.statuses[Status::Hit as usize]));
        threads[1].with(&second, |tally| add(&tally.unavailable));
        let totals = first.totals();
        assert_eq!((totals.collapsed, totals.unavailable), (3, 0));
        assert_eq!(totals.statuses, [0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(second.totals(), Totals { unavailable: 1, ..Totals::default() });
        // What is gone is forgotten when the next one comes.
        drop(first);
        threads[0].with(&second, |tally| add(&tally.unavailable));
        assert_eq!(threads[0].0.borrow().len(), 1);
        assert_eq!(second.totals().unavailable, 2);
    }
}
