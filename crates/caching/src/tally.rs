//! Counters of a cache: each thread counts separately, and a reader adds the counts up. The rows are in [`METRICS`].
//!
//! A request served from memory takes a few microseconds, so a counter shared by threads would cost measurable time. Each of these
//! counters is written by one thread, with a load and a store. The counters of the store (fills, refusals, removals) have their
//! rows in `metrics`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::freshness::store::NotStored;

use crate::record::{self, Record, Status, Unstored};
use exchange::request::Request;
use telemetry::histogram::{Distribution, Histogram};
use telemetry::metric::{Cells, Label, Metric, Series};

const ZONE: Label = Label { name: "zone", values: &[] };

/// Requests; the values of `status` have the order of [`Status`].
const REQUESTS: Series = Series::first(
    Metric::counter(
        "cache_requests_total",
        "requests",
        "Requests with a response, by $upstream_cache_status.",
    )
    .labelled(&[
        ZONE,
        Label {
            name: "status",
            values: &[
                ("miss", ""),
                ("bypass", ""),
                ("expired", ""),
                ("stale", ""),
                ("updating", ""),
                ("revalidated", ""),
                ("hit", ""),
            ],
        },
    ]),
);

const COLLAPSED: Series = REQUESTS.after(
    Metric::counter(
        "cache_collapsed_total",
        "requests",
        "Requests that shared the fetch of another request (collapsed forwarding).",
    )
    .labelled(&[ZONE]),
);

const UNAVAILABLE: Series = COLLAPSED.after(
    Metric::counter(
        "cache_unavailable_total",
        "requests",
        "Requests that bypassed the cache because it could not be opened.",
    )
    .labelled(&[ZONE]),
);

/// Responses that were not stored; the values of `reason` have the order of [`index_of`]. The store counts its refusals itself.
const UNSTORED: Series = UNAVAILABLE.after(
    Metric::counter(
        "cache_unstored_total",
        "responses",
        "Responses that were not stored because the rules of caching.md forbid it, by reason.",
    )
    .labelled(&[
        ZONE,
        Label {
            name: "reason",
            values: &[
                ("interim", "1xx"),
                ("not_modified", "304"),
                ("partial", "206, where parts are not stored"),
                ("accel_off", "`X-Accel-Expires: off`"),
                ("no_store", ""),
                ("private", ""),
                ("no_cache", ""),
                ("status_not_understood", "`must-understand`"),
                ("set_cookie", ""),
                ("vary_any", "`Vary: *`"),
                ("authorization", "the request has the field"),
                ("no_lifetime", ""),
                ("expired", "stale on arrival"),
                ("no_cache_configured", "`proxy_no_cache`"),
                ("too_few_uses", "`proxy_cache_min_uses`"),
                ("vary", "too many or too long values for `Vary`"),
                ("stale_preferred", "a stale response is used in its place"),
                ("accel_redirect", "`X-Accel-Redirect`"),
                ("unbuffered", "`proxy_buffering off` or `X-Accel-Buffering: no`"),
            ],
        },
    ]),
);

/// Bytes served; the values of `source` have the order of [`source_of`].
const SERVED: Series = UNSTORED.after(
    Metric::counter(
        "cache_served_bytes_total",
        "bytes",
        "Bytes of responses to clients, with their header sections, by source.",
    )
    .labelled(&[
        ZONE,
        Label {
            name: "source",
            values: &[
                ("cache", "a stored response, also a stale or a revalidated one"),
                ("shared", "the fetch of another request"),
                ("upstream", "the fetch of this request"),
            ],
        },
    ]),
);

/// Ages of hits. Stale responses are not counted: they are older than their lifetime, whatever the size of the cache is.
pub(super) const HIT_AGE: Metric = Metric::histogram(
    "cache_hit_age_seconds",
    "Time from the storage of a response, or its last revalidation, to a hit.",
)
.labelled(&[ZONE]);

/// Rows that threads count, in the order of the page.
pub const METRICS: [&Series; 5] = [&REQUESTS, &COLLAPSED, &UNAVAILABLE, &UNSTORED, &SERVED];

/// Bytes sent from files, not a row of the page: they are added to `cache_device_bytes_total`, with the reads of the store.
pub(super) const SENT_FROM_FILES: Series = SERVED.after(
    Metric::counter("cache_sent_from_files_total", "bytes", "Bytes sent from files.").labelled(&[ZONE]),
);

/// Number of counters of a cache.
const CELLS: usize = SENT_FROM_FILES.end();

/// Counts of one thread for one cache.
#[derive(Debug, Default)]
struct Tally {
    cells: Cells<CELLS>,
    hit_ages: Histogram,
}

/// Counters of a cache, added up over all threads.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Sums of the counters, with the positions that [`METRICS`] define.
    pub cells: [u64; CELLS],
    /// Distribution of the ages of hits.
    pub hit_ages: Distribution,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums { cells: [0; CELLS], hit_ages: Distribution::default() }
    }
}

/// Tallies of one cache.
#[derive(Debug)]
pub struct Tallies {
    /// Unique ID among all caches of the process, past ones included: threads find their tally by it without a reference to the
    /// cache.
    number: u64,
    all: Mutex<Vec<Arc<Tally>>>,
}

/// The tallies that one thread writes to, by the ID of their cache. The list is as short as the number of caches.
#[derive(Debug, Default)]
pub struct ThreadTallies(RefCell<Vec<(u64, Arc<Tally>)>>);

impl Tallies {
    /// Creates the tallies of a new cache.
    pub fn start() -> Tallies {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Tallies { number: NEXT.fetch_add(1, Ordering::Relaxed), all: Mutex::default() }
    }

    /// Returns the sums over all threads.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for tally in &*self.all.lock().unwrap_or_else(PoisonError::into_inner) {
            tally.cells.add_to(&mut sums.cells);
            tally.hit_ages.add_to(&mut sums.hit_ages);
        }
        sums
    }

    fn begin(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }
}

impl ThreadTallies {
    fn with(&self, tallies: &Tallies, count: impl FnOnce(&Tally)) {
        let mut own = self.0.borrow_mut();
        if let Some((_, tally)) = own.iter().find(|(number, _)| *number == tallies.number) {
            return count(tally);
        }
        // Tallies of closed caches have no other owner.
        own.retain(|(_, tally)| Arc::strong_count(tally) > 1);
        let tally = tallies.begin();
        count(&tally);
        own.push((tallies.number, tally));
    }
}

/// Counts a request that has received its response, or an error.
pub fn count(request: &mut Request, tallies: &Tallies) {
    let record = record::record_of(request);
    record.tallies = Some(tallies.number);
    let (status, collapsed, unstored) = (record.status, record.collapsed, record.unstored);
    request.conn.thread.local::<ThreadTallies>().with(tallies, |Tally { cells, .. }| {
        match status {
            Some(status) => cells.add(&REQUESTS, status as usize),
            None => cells.add(&UNAVAILABLE, 0),
        }
        if collapsed {
            cells.add(&COLLAPSED, 0);
        }
        if let Some(index) = unstored.and_then(index_of) {
            cells.add(&UNSTORED, index);
        }
    });
}

/// Counts the bytes of a finished request, and the age of a hit. Requests without a cache are not counted.
pub fn count_served(request: &Request) {
    let Some(record) = request.extensions.get::<Record>() else { return };
    let Some(number) = record.tallies else { return };
    let own = request.conn.thread.local::<ThreadTallies>().0.borrow();
    let Some((_, tally)) = own.iter().find(|(known, _)| *known == number) else { return };
    tally.cells.grow(&SERVED, source_of(record), request.sent);
    if record.is_sent_from_file {
        tally.cells.grow(&SENT_FROM_FILES, 0, request.sent);
    }
    if let (Some(Status::Hit), Some(age)) = (record.status, record.stored_for_s) {
        tally.hit_ages.add_age(age);
    }
}

/// Returns the index of a response's source in the label values of [`SERVED`].
fn source_of(record: &Record) -> usize {
    match record.status {
        _ if record.collapsed => 1,
        Some(Status::Hit | Status::Stale | Status::Updating | Status::Revalidated) => 0,
        Some(Status::Miss | Status::Bypass | Status::Expired) | None => 2,
    }
}

/// Returns the index of a reason in the label values of [`UNSTORED`].
fn index_of(reason: Unstored) -> Option<usize> {
    Some(match reason {
        Unstored::Rules(reason) => match reason {
            NotStored::Interim => 0,
            NotStored::NotModified => 1,
            NotStored::Partial => 2,
            NotStored::AccelOff => 3,
            NotStored::NoStore => 4,
            NotStored::Private => 5,
            NotStored::NoCache => 6,
            NotStored::StatusNotUnderstood => 7,
            NotStored::SetCookie => 8,
            NotStored::VaryAny => 9,
            NotStored::Authorization => 10,
            NotStored::NoLifetime => 11,
            NotStored::Expired => 12,
        },
        Unstored::Configured => 13,
        Unstored::TooFewUses => 14,
        Unstored::Vary(_) => 15,
        Unstored::Worse => 16,
        Unstored::Redirect => 17,
        Unstored::Unbuffered => 18,
        Unstored::Refused(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::vary::VaryError;

    #[test]
    fn label_values_match_the_counted_cells() {
        for status in [Status::Miss, Status::Bypass, Status::Expired, Status::Stale, Status::Updating] {
            let (value, _) = REQUESTS.metric.values()[status as usize];
            assert_eq!(value, status.name().to_ascii_lowercase());
        }
        for (reason, value) in [
            (Unstored::Rules(NotStored::Interim), "interim"),
            (Unstored::Rules(NotStored::NoStore), "no_store"),
            (Unstored::Rules(NotStored::Expired), "expired"),
            (Unstored::Configured, "no_cache_configured"),
            (Unstored::Vary(VaryError::Any), "vary"),
            (Unstored::Worse, "stale_preferred"),
            (Unstored::Unbuffered, "unbuffered"),
        ] {
            let index = index_of(reason).expect("threads count it");
            assert_eq!(UNSTORED.metric.values()[index].0, value, "{reason}");
        }
        assert_eq!(index_of(Unstored::Refused(cache::Refused::Busy)), None, "the store counts it");
    }

    #[test]
    fn threads_and_caches_are_counted_separately() {
        let (first, second) = (Tallies::start(), Tallies::start());
        let threads = [ThreadTallies::default(), ThreadTallies::default()];
        for _ in 0..3 {
            threads[0].with(&first, |tally| tally.cells.add(&COLLAPSED, 0));
        }
        threads[1].with(&first, |tally| tally.cells.add(&REQUESTS, Status::Hit as usize));
        threads[1].with(&second, |tally| tally.cells.add(&UNAVAILABLE, 0));
        let sums = first.sums().cells;
        assert_eq!((COLLAPSED.of(&sums), UNAVAILABLE.of(&sums)), (&[3][..], &[0][..]));
        assert_eq!(REQUESTS.of(&sums), [0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(second.sums().cells.iter().sum::<u64>(), 1);
        // Adding the counters of a cache removes those of closed caches.
        drop(first);
        threads[0].with(&second, |tally| tally.cells.add(&UNAVAILABLE, 0));
        assert_eq!(threads[0].0.borrow().len(), 1);
        assert_eq!(UNAVAILABLE.of(&second.sums().cells), [2]);
    }
}
