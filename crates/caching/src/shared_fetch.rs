//! Fetches in flight: one request contacts the upstream, and the others wait for its response.
//!
//! ```text
//!            lead                     head of the response
//!   miss ----------> no outcome yet -----+----------------> Filling (may be shared: read along) --> body complete: lookup
//!     \                                  +----------------> Alone   (must not be shared: each request fetches, key marked)
//!      +-- follow -> waits               +----------------> Refreshed (304: use the stored response)
//!                                        +----------------> Retry   (repeat the lookup)
//!                                        +----------------> Failed
//! ```
//! Main types: [`SharedFetches`], all fetches of one cache; [`FetchLeader`], the duty to report the end of a fetch;
//! [`SharedFetch`], which coalesced requests wait for.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use cache::{Key, KeyMap, Meta, Ticket};
use rt::{Either, select};

use crate::clock::now_ms;
use crate::failures::{Failed, Failures};
use crate::filling::Filling;
use crate::pending::{self, Pending};
use crate::stall_limits::StallLimits;

/// Outcome of a fetch, for all waiting requests. Each of them determines its own response: whether stale use is allowed and which
/// variant matches differ between requests.
#[derive(Clone)]
pub enum FetchOutcome {
    /// A response that may be shared while its body arrives.
    Filling(Arc<Filling>),
    /// The upstream confirmed the stored response. Waiting requests use it, even if its new lifetime has already ended.
    Refreshed(Refreshed),
    /// The state has changed: repeat the lookup.
    Retry,
    /// A response for one request only: the other requests must fetch themselves.
    Alone,
    /// No upstream sent a response.
    Failed(Failed),
}

/// Identifies a stored response that the upstream confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// Time at which the confirmation arrived, in ms since 1970.
    pub response_time_ms: i64,
    /// The variant of the response ([`Meta::variant`]).
    pub variant: Vec<u8>,
}

impl Refreshed {
    /// Returns the identity of a confirmed response with this metadata.
    pub fn of(meta: &Meta) -> Refreshed {
        Refreshed { response_time_ms: meta.response_time_ms, variant: meta.variant.clone() }
    }

    /// Whether an entry with this metadata is the confirmed response, or a newer one.
    pub fn covers(&self, meta: &Meta) -> bool {
        meta.variant == self.variant && meta.response_time_ms >= self.response_time_ms
    }
}

/// A fetch in flight.
pub struct SharedFetch {
    started: Instant,
    state: Mutex<FetchTable>,
}

#[derive(Default)]
struct FetchTable {
    outcome: Option<FetchOutcome>,
    waiting: Vec<Waker>,
}

/// Maximum number of preceding bytes for which a request for a part waits for a range in flight: a separate fetch of the part takes
/// about as long.
pub const SOON_BYTES: u64 = 1 << 20;

impl SharedFetch {
    fn new(now: Instant) -> Arc<SharedFetch> {
        Arc::new(SharedFetch { started: now, state: Mutex::default() })
    }

    /// Waits for the outcome.
    pub async fn outcome(&self) -> FetchOutcome {
        // Index of this request's waker. Another task may poll later: the task of a connection polls an HTTP/2 stream first.
        let mut index = None;
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if let Some(outcome) = &state.outcome {
                return Poll::Ready(outcome.clone());
            }
            match index {
                // The index is valid until the outcome is known: only then are the wakers removed.
                Some(index) => {
                    let waker: &mut Waker = &mut state.waiting[index];
                    waker.clone_from(context.waker());
                }
                None => {
                    index = Some(state.waiting.len());
                    state.waiting.push(context.waker().clone());
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Works like [`SharedFetch::outcome`]; `None` if there is no outcome until the limit for the head.
    pub async fn outcome_within(&self, limits: StallLimits) -> Option<FetchOutcome> {
        match select(self.outcome(), rt::sleep_until(self.started + limits.head)).await {
            Either::Left(outcome) => Some(outcome),
            Either::Right(()) => None,
        }
    }

    /// Whether new requests may wait for the fetch or use its result: not if it has stalled, nor if it is complete and stale.
    fn is_joinable(&self, now: Instant, limits: StallLimits) -> bool {
        match self.known_outcome() {
            None => now < self.started + limits.head,
            Some(FetchOutcome::Filling(filling)) if filling.is_complete() => {
                filling.meta.fresh_until_ms > now_ms()
            }
            Some(FetchOutcome::Filling(filling)) => filling.stalls_at(limits.body).is_none_or(|at| now < at),
            Some(_) => true,
        }
    }

    /// Returns the outcome, if known.
    pub fn known_outcome(&self) -> Option<FetchOutcome> {
        lock(&self.state).outcome.clone()
    }

    /// Whether the range `coming` of this fetch includes `range`, and the fetch will soon reach the start of `range`.
    fn reaches_soon(&self, coming: &Range<u64>, range: &Range<u64>) -> bool {
        let at = match self.known_outcome() {
            None => coming.start,
            Some(FetchOutcome::Filling(filling)) => filling.arrived(),
            Some(_) => return false,
        };
        coming.start <= range.start && coming.end >= range.end && range.start <= at.saturating_add(SOON_BYTES)
    }

    fn publish(&self, outcome: FetchOutcome) {
        let mut state = lock(&self.state);
        // The first outcome counts, because other requests act on it.
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Role of a request in a fetch.
pub enum Joined {
    /// This request must contact the upstream.
    Lead(FetchLeader),
    /// Another request contacts the upstream.
    Follow(Arc<SharedFetch>),
    /// The last responses for this key were for one request each: requests do not wait for each other.
    Marked,
}

// A fetch is in the table from the first request that misses until the end of its fill. Requests that arrive after its head get the
// filling immediately.

/// The duty to fetch. If it is dropped without an outcome (by a panic or the end of a thread), waiting requests repeat the lookup.
pub struct FetchLeader {
    shared_fetches: Arc<SharedFetches>,
    /// The primary key.
    primary: Key,
    key: Key,
    /// The primary key of the object, if the fetch is registered as one of its ranges.
    part_of: Option<Key>,
    /// The key of its variant, if the response has variants.
    variant: OnceCell<Key>,
    shared_fetch: Arc<SharedFetch>,
    /// Times without progress after which another fetch of the key starts.
    limits: StallLimits,
    /// Whether the fetch was removed from the tables.
    has_left: Cell<bool>,
}

impl FetchLeader {
    /// Returns the fetch that other requests wait for.
    pub fn shared_fetch(&self) -> &Arc<SharedFetch> {
        &self.shared_fetch
    }

    /// Publishes the outcome; with a [`Filling`], further requests may join while it lasts.
    pub fn publish(&self, outcome: FetchOutcome) {
        let stays = matches!(outcome, FetchOutcome::Filling(_));
        if matches!(outcome, FetchOutcome::Alone) {
            self.shared_fetches.mark(&self.key, rt::now());
        }
        if !stays {
            // Before waiting requests are woken: a repeated lookup must start a new fetch.
            self.leave();
        }
        self.shared_fetch.publish(outcome);
    }

    /// Registers the fetch in flight at the key of its response's variant, and makes later requests use the key of their variant.
    pub fn spread(&self, primary: &Key, meta: &Meta) {
        if meta.vary.is_empty() {
            lock(&self.shared_fetches.varying[shard(primary)]).remove(primary);
            return;
        }
        let key = primary.variant(&meta.variant);
        if key != self.key && self.variant.set(key).is_ok() {
            self.shared_fetches.add_name(&self.primary, key);
            let mut table = self.shared_fetches.table(&key);
            if table.get(&key).is_none_or(|shared_fetch| !shared_fetch.is_joinable(rt::now(), self.limits)) {
                table.insert(key, Arc::clone(&self.shared_fetch));
            }
        }
        let mut varying = lock(&self.shared_fetches.varying[shard(primary)]);
        if varying.len() < MARKS_MAX / SHARDS || varying.contains_key(primary) {
            varying.insert(*primary, meta.vary.as_slice().into());
        }
        debug_assert!(varying.len() <= MARKS_MAX / SHARDS, "the number of keys is limited");
    }

    /// Prevents further requests from joining.
    pub fn leave(&self) {
        // A later fetch may use the same key.
        if self.has_left.replace(true) {
            return;
        }
        if let Some(primary) = &self.part_of {
            let mut parts = lock(&self.shared_fetches.parts[shard(primary)]);
            if let Some(shared_fetches) = parts.get_mut(primary) {
                shared_fetches.retain(|(_, shared_fetch)| !Arc::ptr_eq(shared_fetch, &self.shared_fetch));
                if shared_fetches.is_empty() {
                    parts.remove(primary);
                }
            }
        }
        for key in [Some(&self.key), self.variant.get()].into_iter().flatten() {
            self.shared_fetches.remove_name(&self.primary, key);
            let mut table = self.shared_fetches.table(key);
            if table.get(key).is_some_and(|shared_fetch| Arc::ptr_eq(shared_fetch, &self.shared_fetch)) {
                table.remove(key);
                // Under the lock: a request that does not find the fetch finds it counted as ended.
                self.shared_fetches.ended[shard(key)].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for FetchLeader {
    fn drop(&mut self) {
        self.leave();
        self.shared_fetch.publish(FetchOutcome::Retry);
    }
}

/// Number of shards, each with its own lock.
const SHARDS: usize = 16;

/// Time for which a key is marked after a response for one request only. It covers concurrent requests for a busy key, and limits
/// the effect of an origin's mistake.
pub const MARK_LIFETIME: Duration = Duration::from_secs(5);

/// Maximum number of marked keys, about 40 bytes each. Further keys are not marked; their requests wait for each other's heads.
pub const MARKS_MAX: usize = 1 << 16;

/// Fetches of ranges of one object, with the ranges.
type Parts = Vec<(Range<u64>, Arc<SharedFetch>)>;

/// All fetches of one cache.
pub struct SharedFetches {
    tables: [Mutex<KeyMap<Arc<SharedFetch>>>; SHARDS],
    /// Other keys at which fetches of a primary key are in flight: those of its variants and parts.
    names: [Mutex<KeyMap<Vec<Key>>>; SHARDS],
    /// Ranges that are fetched separately, by primary key.
    parts: [Mutex<KeyMap<Parts>>; SHARDS],
    marks: [Mutex<KeyMap<Instant>>; SHARDS],
    /// Changed or purged keys, with the time: responses to earlier requests are not stored.
    changes: Mutex<Changes>,
    /// The `Vary` of the responses for these keys, up to [`MARKS_MAX`] keys; for other keys a variant may be fetched once more than
    /// necessary.
    varying: [Mutex<KeyMap<Arc<[u8]>>>; SHARDS],
    /// Complete responses whose entries are not published yet.
    pub pending: pending::Table,
    /// Failures retained by `proxy_cache_valid`.
    failures: [Failures; SHARDS],
    /// Number of ended fetches, by shard.
    ended: [AtomicU64; SHARDS],
    /// Number of requests that did not wait because of a mark.
    passed: AtomicU64,
}

/// Recently changed keys.
#[derive(Default)]
struct Changes {
    keys: KeyMap<Instant>,
    /// Time at which all keys count as changed.
    all: Option<Instant>,
    /// Fetches that started before this time cannot be joined.
    joined_since: Option<Instant>,
}

/// Maximum number of recorded changed keys, about 40 bytes each. Beyond it all keys count as changed, so that no response in flight
/// is stored.
pub const CHANGES_MAX: usize = 1 << 14;

impl SharedFetches {
    /// Creates an empty table.
    pub fn new() -> Arc<SharedFetches> {
        Arc::new(SharedFetches {
            tables: std::array::from_fn(|_| Mutex::default()),
            names: std::array::from_fn(|_| Mutex::default()),
            parts: std::array::from_fn(|_| Mutex::default()),
            marks: std::array::from_fn(|_| Mutex::default()),
            changes: Mutex::default(),
            varying: std::array::from_fn(|_| Mutex::default()),
            pending: pending::Table::default(),
            failures: std::array::from_fn(|_| Failures::default()),
            ended: std::array::from_fn(|_| AtomicU64::new(0)),
            passed: AtomicU64::new(0),
        })
    }

    /// Joins or starts the fetch of a key: a primary key, or the key of a variant or a part. The lock of the table decides which request
    /// leads, so exactly one does. If a fetch has made no progress within `limits`, another fetch starts.
    pub fn join(
        self: &Arc<SharedFetches>,
        primary: &Key,
        key: Key,
        now: Instant,
        limits: StallLimits,
    ) -> Joined {
        if self.is_marked(&key, now) {
            self.passed.fetch_add(1, Ordering::Relaxed);
            return Joined::Marked;
        }
        let joined_since = lock(&self.changes).joined_since;
        let mut table = self.table(&key);
        if let Some(shared_fetch) = table.get(&key) {
            let is_outdated = joined_since.is_some_and(|at| at >= shared_fetch.started);
            if !is_outdated && shared_fetch.is_joinable(now, limits) {
                return Joined::Follow(Arc::clone(shared_fetch));
            }
        }
        let shared_fetch = SharedFetch::new(now);
        self.add_name(primary, key);
        table.insert(key, Arc::clone(&shared_fetch));
        drop(table);
        Joined::Lead(FetchLeader {
            shared_fetches: Arc::clone(self),
            primary: *primary,
            key,
            part_of: None,
            variant: OnceCell::new(),
            has_left: Cell::new(false),
            shared_fetch,
            limits,
        })
    }

    /// Joins a fetch of a larger range that reaches this range soon, or a fetch with the same key `name`; otherwise starts a fetch.
    pub fn join_part(
        self: &Arc<SharedFetches>,
        primary: &Key,
        name: Key,
        range: Option<Range<u64>>,
        (now, limits): (Instant, StallLimits),
    ) -> Joined {
        if let Some(shared_fetch) =
            range.as_ref().and_then(|range| self.larger_part(primary, range, (now, limits)))
        {
            return Joined::Follow(shared_fetch);
        }
        let mut joined = self.join(primary, name, now, limits);
        if let (Joined::Lead(lead), Some(range)) = (&mut joined, range) {
            lead.part_of = Some(*primary);
            let mut parts = lock(&self.parts[shard(primary)]);
            parts.entry(*primary).or_default().push((range, Arc::clone(&lead.shared_fetch)));
        }
        joined
    }

    /// Returns the fetch that [`SharedFetches::join_part`] would join.
    pub fn find_part(
        &self,
        primary: &Key,
        name: &Key,
        range: Option<Range<u64>>,
        (now, limits): (Instant, StallLimits),
    ) -> Option<Arc<SharedFetch>> {
        let larger = range.and_then(|range| self.larger_part(primary, &range, (now, limits)));
        larger.or_else(|| self.moving(name, now, limits))
    }

    fn larger_part(
        &self,
        primary: &Key,
        range: &Range<u64>,
        (now, limits): (Instant, StallLimits),
    ) -> Option<Arc<SharedFetch>> {
        let joined_since = lock(&self.changes).joined_since;
        let parts = lock(&self.parts[shard(primary)]);
        let is_fit = |(coming, shared_fetch): &&(Range<u64>, Arc<SharedFetch>)| {
            joined_since.is_none_or(|at| at < shared_fetch.started)
                && shared_fetch.is_joinable(now, limits)
                && shared_fetch.reaches_soon(coming, range)
        };
        parts.get(primary)?.iter().find(is_fit).map(|(_, shared_fetch)| Arc::clone(shared_fetch))
    }

    /// Returns the `Vary` of the last response for a key, if known.
    pub fn varying(&self, primary: &Key) -> Option<Arc<[u8]>> {
        lock(&self.varying[shard(primary)]).get(primary).map(Arc::clone)
    }

    /// Returns the fetch of a key, unless it has stalled.
    pub fn moving(&self, key: &Key, now: Instant, limits: StallLimits) -> Option<Arc<SharedFetch>> {
        self.in_flight(key).filter(|shared_fetch| shared_fetch.is_joinable(now, limits))
    }

    /// Returns the fetch of a key, if any.
    pub fn in_flight(&self, key: &Key) -> Option<Arc<SharedFetch>> {
        self.table(key).get(key).map(Arc::clone)
    }

    /// Makes a complete response available to requests until the result is dropped. `None` if a newer response is complete, or if
    /// the resource was changed since the request.
    pub fn add_pending(
        self: &Arc<SharedFetches>,
        key: Key,
        (filling, ticket): (Arc<Filling>, Arc<Ticket>),
        sequence: u64,
        requested_at: Instant,
    ) -> Option<Pending> {
        ticket.complete(&filling.meta.variant);
        if !ticket.is_newest(&filling.meta.variant) {
            return None;
        }
        let pending = Pending::new(self, key, (filling, ticket), sequence);
        // A change after this check removes the added response.
        (!self.is_outdated(&key, requested_at)).then_some(pending)
    }

    /// Detaches the fetch in flight of a key: later requests do not wait for it, because it started before a purge. The store
    /// decides by the purge numbers whether its response is stored.
    pub fn detach(&self, key: &Key) {
        self.table(key).remove(key);
        let names = lock(&self.names[shard(key)]).remove(key);
        for name in names.into_iter().flatten() {
            self.table(&name).remove(&name);
        }
        self.pending.remove(key);
        self.failures(key).drop_one(key);
        lock(&self.parts[shard(key)]).remove(key);
    }

    /// Detaches all fetches in flight.
    pub fn detach_all(&self, now: Instant) {
        self.failures.iter().for_each(Failures::drop_all);
        lock(&self.changes).joined_since = Some(now);
    }

    /// Marks the fetch in flight of a key as outdated: no further request waits for it, and its response is not stored.
    pub fn outdate(&self, key: &Key, now: Instant) {
        let mut changes = lock(&self.changes);
        if changes.keys.len() >= CHANGES_MAX && !changes.keys.contains_key(key) {
            changes.keys.clear();
            (changes.all, changes.joined_since) = (Some(now), Some(now));
        }
        changes.keys.insert(*key, now);
        debug_assert!(changes.keys.len() <= CHANGES_MAX, "the number of keys is limited");
        drop(changes);
        self.detach(key);
    }

    /// Whether a key was changed at or after this time.
    pub fn is_outdated(&self, key: &Key, requested_at: Instant) -> bool {
        let changes = lock(&self.changes);
        let at = changes.keys.get(key).copied().max(changes.all);
        at.is_some_and(|at| at >= requested_at)
    }

    /// Returns a number that changes when a fetch of this key, or of another key in its shard, has ended. An earlier lookup should
    /// then be repeated.
    pub fn ended(&self, key: &Key) -> u64 {
        self.ended[shard(key)].load(Ordering::Relaxed)
    }

    /// Returns the retained failures among which those of this primary key are.
    pub fn failures(&self, key: &Key) -> &Failures {
        &self.failures[shard(key)]
    }

    /// Returns the number of marked keys, possibly including expired marks.
    pub fn marks(&self) -> u64 {
        self.marks.iter().map(|marks| lock(marks).len() as u64).sum()
    }

    /// Returns the number of fetches in flight. A fetch of a variant is counted twice.
    pub fn in_flight_count(&self) -> u64 {
        self.tables.iter().map(|table| lock(table).len() as u64).sum()
    }

    /// Returns the number of requests that did not wait because of a mark.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Marks a key: its responses are for one request each. Requests that pass because of a mark do not renew it, so that one
    /// request checks again after the mark has expired.
    fn mark(&self, key: &Key, now: Instant) {
        let mut marks = lock(&self.marks[shard(key)]);
        if marks.len() >= MARKS_MAX / SHARDS {
            marks.retain(|_, until| *until > now);
        }
        if marks.len() < MARKS_MAX / SHARDS {
            marks.insert(*key, now + MARK_LIFETIME);
        }
        debug_assert!(marks.len() <= MARKS_MAX / SHARDS, "the number of marks is limited");
    }

    /// Disables parts of an object for some time, because the upstream sent a part whose length differs from its `Content-Range`.
    pub fn disable_parts(&self, key: &Key) {
        self.mark(&refusal(key), rt::now());
    }

    /// Whether parts of this object are disabled.
    pub fn are_parts_disabled(&self, key: &Key) -> bool {
        self.is_marked(&refusal(key), rt::now())
    }

    /// Removes the mark of a key, because a response was stored.
    pub fn unmark(&self, key: &Key) {
        lock(&self.marks[shard(key)]).remove(key);
    }

    /// Records that a fetch of a primary key can be found at another key.
    fn add_name(&self, primary: &Key, key: Key) {
        if key != *primary {
            lock(&self.names[shard(primary)]).entry(*primary).or_default().push(key);
        }
    }

    fn remove_name(&self, primary: &Key, key: &Key) {
        if key == primary {
            return;
        }
        let mut names = lock(&self.names[shard(primary)]);
        let Some(of_primary) = names.get_mut(primary) else { return };
        if let Some(at) = of_primary.iter().position(|name| name == key) {
            of_primary.swap_remove(at);
        }
        if of_primary.is_empty() {
            names.remove(primary);
        }
    }

    /// Whether the last responses for this key were for one request each.
    pub fn is_marked(&self, key: &Key, now: Instant) -> bool {
        lock(&self.marks[shard(key)]).get(key).is_some_and(|until| *until > now)
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, KeyMap<Arc<SharedFetch>>> {
        lock(&self.tables[shard(key)])
    }
}

impl std::fmt::Debug for SharedFetches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedFetches").field("passed", &self.passed()).finish_non_exhaustive()
    }
}

/// Returns the key of the mark that disables parts of an object.
fn refusal(key: &Key) -> Key {
    key.variant(b" parts")
}

fn shard(key: &Key) -> usize {
    usize::from(key.0[0]) % SHARDS
}

/// Locks a mutex. It ignores poisoning, because a panic cannot leave the data inconsistent here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    const LIMIT: StallLimits = StallLimits { head: Duration::from_secs(5), body: Duration::from_secs(5) };

    /// Joins the fetch of a key; returns the leader if this request leads.
    fn leads(shared_fetches: &Arc<SharedFetches>, key: Key, now: Instant) -> Option<FetchLeader> {
        match shared_fetches.join(&key, key, now, LIMIT) {
            Joined::Lead(lead) => Some(lead),
            Joined::Follow(_) | Joined::Marked => None,
        }
    }

    /// Counts wake-ups.
    #[derive(Default)]
    struct Counter(std::sync::atomic::AtomicU32);

    impl std::task::Wake for Counter {
        fn wake(self: Arc<Counter>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An HTTP/2 stream is polled by the task of its connection, and then by its own task.
    #[test]
    fn the_last_task_that_polled_is_woken() {
        let (shared_fetches, now, key) = (SharedFetches::new(), Instant::now(), Key::of(b"one"));
        let _lead = leads(&shared_fetches, key, now).expect("it is the first");
        let Joined::Follow(shared_fetch) = shared_fetches.join(&key, key, now, LIMIT) else {
            panic!("it does not follow")
        };
        let mut waiting = [Box::pin(shared_fetch.outcome()), Box::pin(shared_fetch.outcome())];
        let counters = [(); 3].map(|()| Arc::<Counter>::default());
        for (future, counter) in [(0, 0), (1, 0), (0, 1), (1, 2), (0, 1)] {
            let waker = Waker::from(Arc::clone(&counters[counter]));
            assert!(waiting[future].as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        shared_fetch.publish(FetchOutcome::Alone);
        assert_eq!(counters.map(|counter| counter.0.load(Ordering::Relaxed)), [0, 1, 1]);
    }

    #[test]
    fn requests_do_not_join_a_fetch_begun_before_a_purge() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let later = now + Duration::from_secs(1);
        let (one, two) = (Key::of(b"one"), Key::of(b"two"));
        let first = [leads(&shared_fetches, one, now), leads(&shared_fetches, two, now)];
        assert!(first.iter().all(Option::is_some) && leads(&shared_fetches, one, later).is_none());
        shared_fetches.detach(&one);
        let second = leads(&shared_fetches, one, later);
        assert!(second.is_some() && leads(&shared_fetches, two, later).is_none());
        // The end of the first fetch must not remove the fetch that replaced it.
        drop(first);
        assert!(leads(&shared_fetches, one, later).is_none());
        shared_fetches.detach_all(later);
        assert!(leads(&shared_fetches, one, later + Duration::from_secs(1)).is_some());
    }

    #[test]
    fn a_purge_of_a_key_detaches_the_fetches_of_its_variants() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let (one, other) = (Key::of(b"one"), Key::of(b"other"));
        let join = |primary: &Key, variant: &[u8]| match shared_fetches.join(
            primary,
            primary.variant(variant),
            now,
            LIMIT,
        ) {
            Joined::Lead(lead) => Some(lead),
            Joined::Follow(_) | Joined::Marked => None,
        };
        let first = [join(&one, b"a"), join(&one, b"b"), join(&other, b"a")];
        assert!(first.iter().all(Option::is_some));
        assert!(join(&one, b"a").is_none() && join(&other, b"a").is_none());
        shared_fetches.detach(&one);
        let second = [join(&one, b"a"), join(&one, b"b")];
        assert!(second.iter().all(Option::is_some) && join(&other, b"a").is_none());
        // The ends of the first fetches must not remove the fetches that replaced them.
        drop(first);
        assert!(join(&one, b"a").is_none() && join(&one, b"b").is_none());
        drop(second);
        assert!(shared_fetches.names.iter().all(|names| lock(names).is_empty()));
    }

    /// A fetch leaves the tables once, even if its body takes longer.
    #[test]
    fn a_purge_detaches_a_fetch_that_began_after_another_one_had_left() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let primary = Key::of(b"one");
        let join = || match shared_fetches.join(&primary, primary.variant(b"a"), now, LIMIT) {
            Joined::Lead(lead) => Some(lead),
            Joined::Follow(_) | Joined::Marked => None,
        };
        let first = join().expect("nobody leads");
        first.leave();
        let second = join();
        assert!(second.is_some());
        drop(first);
        shared_fetches.detach(&primary);
        assert!(join().is_some());
    }

    #[test]
    fn marks_of_unshareable_keys_are_limited_and_counted() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let key = |number: usize| Key::of(&number.to_be_bytes());
        let is_over = now + MARK_LIFETIME;
        shared_fetches.mark(&key(0), now);
        assert!(matches!(shared_fetches.join(&key(0), key(0), now, LIMIT), Joined::Marked));
        assert!(matches!(shared_fetches.join(&key(1), key(1), now, LIMIT), Joined::Lead(_)));
        // Requests that passed because of a mark do not renew it.
        assert!(matches!(shared_fetches.join(&key(0), key(0), is_over, LIMIT), Joined::Lead(_)));
        assert_eq!(shared_fetches.passed(), 1);
        (1..MARKS_MAX * 2).for_each(|number| shared_fetches.mark(&key(number), now));
        assert_eq!(shared_fetches.marks(), MARKS_MAX as u64, "shards are full");
        let marked = (0..MARKS_MAX * 2).filter(|&number| shared_fetches.is_marked(&key(number), now)).count();
        assert_eq!(marked, MARKS_MAX);
        // An expired mark makes room, and storing a response removes its mark.
        let late = key(MARKS_MAX * 3);
        shared_fetches.mark(&late, is_over);
        assert!(shared_fetches.is_marked(&late, is_over));
        shared_fetches.unmark(&late);
        assert!(!shared_fetches.is_marked(&late, is_over));
    }

    #[test]
    fn changes_are_remembered_up_to_a_limit() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let (before, after) = (now - Duration::from_millis(1), now + Duration::from_millis(1));
        let key = |number: usize| Key::of(&number.to_be_bytes());
        shared_fetches.outdate(&key(0), now);
        assert!(shared_fetches.is_outdated(&key(0), before) && shared_fetches.is_outdated(&key(0), now));
        assert!(!shared_fetches.is_outdated(&key(0), after) && !shared_fetches.is_outdated(&key(1), before));
        for number in 1..=CHANGES_MAX {
            shared_fetches.outdate(&key(number), now);
        }
        // A key that was dropped from the table counts as changed, like all keys.
        assert!(
            shared_fetches.is_outdated(&key(1), before)
                && shared_fetches.is_outdated(&key(CHANGES_MAX + 9), before)
        );
        assert!(!shared_fetches.is_outdated(&key(1), after));
        assert!(lock(&shared_fetches.changes).keys.len() <= CHANGES_MAX);
    }
}
