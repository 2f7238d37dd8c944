//! Fetches in flight, so that one request contacts the upstream and the others wait for its response.
//!
//! ```text
//!            lead                     head of the answer
//!   miss ----------> Asked --------------+----------------> Filling (may be shared: read along) --> over: look it up
//!     \                                  +----------------> Alone   (may not: everybody asks, and the key is marked)
//!      +-- follow -> waits               +----------------> Refreshed (304: look it up again)
//!                                        +----------------> Failed
//! ```
//! Main types: [`SharedFetches`], all of one cache; [`FetchLeader`], the duty to report its end; [`SharedFetch`], which
//! coalesced requests wait for.

use std::cell::OnceCell;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use cache::{Key, KeyMap, Meta, Ticket};
use rt::{Either, select};

use crate::caching::filling::Filling;
use crate::caching::pending::{self, Pending};
use crate::caching::policy::{Failed, now_s};

/// The outcome of a fetch, for all waiting requests. Each of them decides on its response: whether a stale one is
/// allowed, and which variant matches, differs from request to request.
#[derive(Clone)]
pub enum Outcome {
    /// A response that may be shared, while its body comes.
    Filling(Arc<Filling>),
    /// The stored response is fresh again, or there is a new one: repeat the lookup.
    LookAgain,
    /// A response for one request only: others have to ask themselves.
    Alone,
    /// No upstream responded.
    Failed(Failed),
}

/// A fetch in flight.
pub struct SharedFetch {
    started: Instant,
    state: Mutex<FetchTable>,
}

#[derive(Default)]
struct FetchTable {
    outcome: Option<Outcome>,
    waiting: Vec<Waker>,
}

/// A request for a part of a range in flight waits for at most this many bytes before it: a separate fetch of the part
/// takes about as long.
pub const SOON_BYTES: u64 = 1 << 20;

impl SharedFetch {
    fn new(now: Instant) -> Arc<SharedFetch> {
        Arc::new(SharedFetch { started: now, state: Mutex::default() })
    }

    /// Waits for its outcome.
    pub async fn outcome(&self) -> Outcome {
        // Once: a fetch is woken one time, when it has its outcome.
        let mut lined_up = false;
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if let Some(outcome) = &state.outcome {
                return Poll::Ready(outcome.clone());
            }
            if !std::mem::replace(&mut lined_up, true) {
                state.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// The same, or `None` when it has brought nothing for so long.
    pub async fn outcome_within(&self, limit: Duration) -> Option<Outcome> {
        match select(self.outcome(), rt::sleep_until(self.started + limit)).await {
            Either::Left(outcome) => Some(outcome),
            Either::Right(()) => None,
        }
    }

    /// Whether new requests may wait for it, or use its result: not when it has brought nothing for so long, nor when it is
    /// complete and stale.
    fn is_joinable(&self, now: Instant, limit: Duration) -> bool {
        match self.known() {
            None => now < self.started + limit,
            Some(Outcome::Filling(filling)) if filling.is_complete() => filling.meta.fresh_until > now_s(),
            Some(Outcome::Filling(filling)) => filling.stalls_at(limit).is_none_or(|at| now < at),
            Some(_) => true,
        }
    }

    /// Its outcome, if known.
    pub fn known(&self) -> Option<Outcome> {
        lock(&self.state).outcome.clone()
    }

    /// Whether the fetch `coming` includes a range, and reaches it soon.
    fn comes_soon_to(&self, coming: &Range<u64>, range: &Range<u64>) -> bool {
        let at = match self.known() {
            None => coming.start,
            Some(Outcome::Filling(filling)) => filling.arrived(),
            Some(_) => return false,
        };
        coming.start <= range.start && coming.end >= range.end && range.start <= at.saturating_add(SOON_BYTES)
    }

    fn publish(&self, outcome: Outcome) {
        let mut state = lock(&self.state);
        // The first outcome counts, because others act on it.
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The part of a request in a fetch.
pub enum Joined {
    /// It is to ask the upstream.
    Lead(FetchLeader),
    /// Another request does.
    Follow(Arc<SharedFetch>),
    /// The last responses to this key were for one request each: no request waits for another.
    Marked,
}

// A fetch is in the table from the first request that misses to the end of its fill. Requests that come later than its
// head get the filling at once.

/// The duty to fetch. Dropped without a word, by a panic or the end of a thread, it lets the others go.
pub struct FetchLeader {
    shared_fetches: Arc<SharedFetches>,
    /// The primary key.
    primary: Key,
    key: Key,
    /// The key that it fetches a part for, if known.
    part_of: Option<Key>,
    /// The key of its variant, if the response has variants.
    variant: OnceCell<Key>,
    shared_fetch: Arc<SharedFetch>,
    /// How long the fetches of the key may bring nothing before another one starts.
    limit: Duration,
}

impl FetchLeader {
    /// The fetch that others wait for.
    pub fn shared_fetch(&self) -> &Arc<SharedFetch> {
        &self.shared_fetch
    }

    /// Publishes the outcome; with a [`Filling`] more requests may join while it lasts.
    pub fn publish(&self, outcome: Outcome) {
        let stays = matches!(outcome, Outcome::Filling(_));
        if matches!(outcome, Outcome::Alone) {
            self.shared_fetches.mark(&self.key, rt::now());
        }
        if !stays {
            // Before the others are woken: a repeated lookup must start a new fetch.
            self.leave();
        }
        self.shared_fetch.publish(outcome);
    }

    /// Registers the fetch at the key of its response's variant while it is in flight, and lets later requests use the
    /// key of their variant.
    pub fn spread(&self, primary: &Key, meta: &Meta) {
        if meta.vary.is_empty() {
            lock(&self.shared_fetches.varying[shard(primary)]).remove(primary);
            return;
        }
        let key = primary.variant(&meta.variant);
        if key != self.key && self.variant.set(key).is_ok() {
            self.shared_fetches.add_name(&self.primary, key);
            let mut table = self.shared_fetches.table(&key);
            if table.get(&key).is_none_or(|shared_fetch| !shared_fetch.is_joinable(rt::now(), self.limit)) {
                table.insert(key, Arc::clone(&self.shared_fetch));
            }
        }
        let mut varying = lock(&self.shared_fetches.varying[shard(primary)]);
        if varying.len() < MARKS_MAX / SHARDS || varying.contains_key(primary) {
            varying.insert(*primary, meta.vary.as_slice().into());
        }
    }

    /// Prevents further requests from joining.
    pub fn leave(&self) {
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
                // Under the lock: a request that finds the fetch gone finds it counted.
                self.shared_fetches.ended[shard(key)].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for FetchLeader {
    fn drop(&mut self) {
        self.leave();
        self.shared_fetch.publish(Outcome::LookAgain);
    }
}

/// Shards, each with its lock.
const SHARDS: usize = 16;

/// How long a key is marked after a response for one request only: long enough for concurrent requests of a busy key,
/// short enough that a mistake of the origin is soon forgotten.
pub const MARK_LIFETIME: Duration = Duration::from_secs(5);

/// Keys that are marked at once, about 40 bytes each; more are not marked, and their requests wait for one another's
/// heads.
pub const MARKS_MAX: usize = 1 << 16;

/// Fetches of ranges of one object, with their ranges.
type Parts = Vec<(Range<u64>, Arc<SharedFetch>)>;

/// All fetches of one cache.
pub struct SharedFetches {
    tables: [Mutex<KeyMap<Arc<SharedFetch>>>; SHARDS],
    /// The other keys at which fetches of a primary key are in flight: its variants, and its parts.
    names: [Mutex<KeyMap<Vec<Key>>>; SHARDS],
    /// Ranges that are being fetched by themselves, by the primary key.
    parts: [Mutex<KeyMap<Parts>>; SHARDS],
    marks: [Mutex<KeyMap<Instant>>; SHARDS],
    /// Changed or purged keys, with the time: responses to earlier requests are not stored.
    changes: Mutex<Changes>,
    /// The `Vary` of these keys' responses, as far as memory allows: without it, variants are sometimes fetched once
    /// too often.
    varying: [Mutex<KeyMap<Arc<[u8]>>>; SHARDS],
    /// Complete responses before their entries are published.
    pub pending: pending::Table,
    /// Fetches that are over, by shard.
    ended: [AtomicU64; SHARDS],
    /// Requests that did not wait because of a mark.
    passed: AtomicU64,
}

/// Keys that were changed of late.
#[derive(Default)]
struct Changes {
    keys: KeyMap<Instant>,
    /// All keys count as changed at this moment.
    all: Option<Instant>,
    /// Fetches that started before it cannot be joined.
    joined_since: Option<Instant>,
}

/// Keys that are remembered as changed, about 40 bytes each. With more of them all keys count as changed at once, so
/// that the fetches in flight are not stored.
pub const CHANGES_MAX: usize = 1 << 14;

impl SharedFetches {
    /// No fetch is in flight.
    pub fn new() -> Arc<SharedFetches> {
        Arc::new(SharedFetches {
            tables: std::array::from_fn(|_| Mutex::default()),
            names: std::array::from_fn(|_| Mutex::default()),
            parts: std::array::from_fn(|_| Mutex::default()),
            marks: std::array::from_fn(|_| Mutex::default()),
            changes: Mutex::default(),
            varying: std::array::from_fn(|_| Mutex::default()),
            pending: pending::Table::default(),
            ended: std::array::from_fn(|_| AtomicU64::new(0)),
            passed: AtomicU64::new(0),
        })
    }

    /// Joins the fetch of a key, which is the primary one or that of a variant or a part, or starts it. The table's lock alone decides which request leads, so exactly one does.
    /// A fetch without a byte for longer than `limit` is not waited for: another starts.
    pub fn join(self: &Arc<SharedFetches>, primary: &Key, key: Key, now: Instant, limit: Duration) -> Joined {
        if self.is_marked(&key, now) {
            self.passed.fetch_add(1, Ordering::Relaxed);
            return Joined::Marked;
        }
        let joined_since = lock(&self.changes).joined_since;
        let mut table = self.table(&key);
        if let Some(shared_fetch) = table.get(&key) {
            let is_outdated = joined_since.is_some_and(|at| at >= shared_fetch.started);
            if !is_outdated && shared_fetch.is_joinable(now, limit) {
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
            shared_fetch,
            limit,
        })
    }

    /// Joins the fetch of a range that includes this one and reaches it soon, or that of the same name, or starts it.
    pub fn join_part(
        self: &Arc<SharedFetches>,
        primary: &Key,
        name: Key,
        range: Option<Range<u64>>,
        (now, limit): (Instant, Duration),
    ) -> Joined {
        if let Some(shared_fetch) =
            range.as_ref().and_then(|range| self.larger_part(primary, range, (now, limit)))
        {
            return Joined::Follow(shared_fetch);
        }
        let mut joined = self.join(primary, name, now, limit);
        if let (Joined::Lead(lead), Some(range)) = (&mut joined, range) {
            lead.part_of = Some(*primary);
            let mut parts = lock(&self.parts[shard(primary)]);
            parts.entry(*primary).or_default().push((range, Arc::clone(&lead.shared_fetch)));
        }
        joined
    }

    /// The fetch that [`SharedFetches::join_part`] would join.
    pub fn part_under_way(
        &self,
        primary: &Key,
        name: &Key,
        range: Option<Range<u64>>,
        (now, limit): (Instant, Duration),
    ) -> Option<Arc<SharedFetch>> {
        let larger = range.and_then(|range| self.larger_part(primary, &range, (now, limit)));
        larger.or_else(|| self.moving(name, now, limit))
    }

    fn larger_part(
        &self,
        primary: &Key,
        range: &Range<u64>,
        (now, limit): (Instant, Duration),
    ) -> Option<Arc<SharedFetch>> {
        let joined_since = lock(&self.changes).joined_since;
        let parts = lock(&self.parts[shard(primary)]);
        let is_fit = |(coming, shared_fetch): &&(Range<u64>, Arc<SharedFetch>)| {
            joined_since.is_none_or(|at| at < shared_fetch.started)
                && shared_fetch.is_joinable(now, limit)
                && shared_fetch.comes_soon_to(coming, range)
        };
        parts.get(primary)?.iter().find(is_fit).map(|(_, shared_fetch)| Arc::clone(shared_fetch))
    }

    /// The `Vary` of the last response of a key, if known.
    pub fn varying(&self, primary: &Key) -> Option<Arc<[u8]>> {
        lock(&self.varying[shard(primary)]).get(primary).map(Arc::clone)
    }

    /// The same, unless it has brought nothing for so long.
    pub fn moving(&self, key: &Key, now: Instant, limit: Duration) -> Option<Arc<SharedFetch>> {
        self.under_way(key).filter(|shared_fetch| shared_fetch.is_joinable(now, limit))
    }

    /// The fetch of a key, if there is one.
    pub fn under_way(&self, key: &Key) -> Option<Arc<SharedFetch>> {
        self.table(key).get(key).map(Arc::clone)
    }

    /// Lets requests have a response that is complete, until the result is dropped; `None` if a newer one is complete or
    /// its subject has changed since the request.
    pub fn add_pending(
        self: &Arc<SharedFetches>,
        key: Key,
        (filling, ticket): (Arc<Filling>, Arc<Ticket>),
        sequence: u64,
        asked: Instant,
    ) -> Option<Pending> {
        ticket.complete(&filling.meta.variant);
        if !ticket.is_newest(&filling.meta.variant) {
            return None;
        }
        let pending = Pending::new(self, key, (filling, ticket), sequence);
        // A change after this check removes the added response.
        (!self.is_outdated(&key, asked)).then_some(pending)
    }

    /// Later requests do not wait for the fetch in flight of a key, because it started before a purge. The store
    /// decides whether its response is stored, by the purge numbers.
    pub fn part_from(&self, key: &Key) {
        self.table(key).remove(key);
        let names = lock(&self.names[shard(key)]).remove(key);
        for name in names.into_iter().flatten() {
            self.table(&name).remove(&name);
        }
        self.pending.remove(key);
        lock(&self.parts[shard(key)]).remove(key);
    }

    /// The same for all keys.
    pub fn part_from_all(&self, now: Instant) {
        lock(&self.changes).joined_since = Some(now);
    }

    /// The fetch in flight of a key is outdated: no further request waits for it, and its response is not stored.
    pub fn outdate(&self, key: &Key, now: Instant) {
        let mut changes = lock(&self.changes);
        if changes.keys.len() >= CHANGES_MAX && !changes.keys.contains_key(key) {
            changes.keys.clear();
            (changes.all, changes.joined_since) = (Some(now), Some(now));
        }
        changes.keys.insert(*key, now);
        drop(changes);
        self.part_from(key);
    }

    /// Whether a key was changed at this moment or later.
    pub fn is_outdated(&self, key: &Key, asked: Instant) -> bool {
        let changes = lock(&self.changes);
        let at = changes.keys.get(key).copied().max(changes.all);
        at.is_some_and(|at| at >= asked)
    }

    /// A number that changes when a fetch of this key, or of one of a few others, has ended. An earlier lookup should
    /// then be repeated.
    pub fn ended(&self, key: &Key) -> u64 {
        self.ended[shard(key)].load(Ordering::Relaxed)
    }

    /// Marked keys; some marks may have expired.
    pub fn marks(&self) -> u64 {
        self.marks.iter().map(|marks| lock(marks).len() as u64).sum()
    }

    /// Fetches in flight. One of a variant counts for its name too.
    pub fn under_way_now(&self) -> u64 {
        self.tables.iter().map(|table| lock(table).len() as u64).sum()
    }

    /// Requests that did not wait because of a mark.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Responses to this key are for one request each. Requests that pass because of a mark do not renew it, so that
    /// after its lifetime one request checks again.
    fn mark(&self, key: &Key, now: Instant) {
        let mut marks = lock(&self.marks[shard(key)]);
        if marks.len() >= MARKS_MAX / SHARDS {
            marks.retain(|_, until| *until > now);
        }
        if marks.len() < MARKS_MAX / SHARDS {
            marks.insert(*key, now + MARK_LIFETIME);
        }
    }

    /// The upstream has sent a part of this object that is shorter than announced: for some time the whole is
    /// requested.
    pub fn refuse_parts(&self, key: &Key) {
        self.mark(&refusal(key), rt::now());
    }

    /// Whether parts of this object are not requested.
    pub fn refuses_parts(&self, key: &Key) -> bool {
        self.is_marked(&refusal(key), rt::now())
    }

    /// A response to this key was stored: earlier marks end.
    pub fn unmark(&self, key: &Key) {
        lock(&self.marks[shard(key)]).remove(key);
    }

    /// Notes that a fetch of a primary key is about to be found at another key.
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

    /// Whether the last responses to this key were for one request each.
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

/// The marks of objects whose parts are not requested.
fn refusal(key: &Key) -> Key {
    key.variant(b" parts")
}

fn shard(key: &Key) -> usize {
    usize::from(key.0[0]) % SHARDS
}

/// A panic elsewhere leaves nothing half-done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// The leader, or the fetch to wait for.
    fn leads(shared_fetches: &Arc<SharedFetches>, key: Key, now: Instant) -> Option<FetchLeader> {
        match shared_fetches.join(&key, key, now, LIMIT) {
            Joined::Lead(lead) => Some(lead),
            Joined::Follow(_) | Joined::Marked => None,
        }
    }

    #[test]
    fn nobody_joins_what_was_asked_for_before_a_purge() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let later = now + Duration::from_secs(1);
        let (one, two) = (Key::of(b"one"), Key::of(b"two"));
        let first = [leads(&shared_fetches, one, now), leads(&shared_fetches, two, now)];
        assert!(first.iter().all(Option::is_some) && leads(&shared_fetches, one, later).is_none());
        shared_fetches.part_from(&one);
        let second = leads(&shared_fetches, one, later);
        assert!(second.is_some() && leads(&shared_fetches, two, later).is_none());
        // The end of the first one is not the end of the one in its place.
        drop(first);
        assert!(leads(&shared_fetches, one, later).is_none());
        shared_fetches.part_from_all(later);
        assert!(leads(&shared_fetches, one, later + Duration::from_secs(1)).is_some());
    }

    #[test]
    fn a_purge_of_a_key_parts_its_variants_from_their_fetches() {
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
        shared_fetches.part_from(&one);
        let second = [join(&one, b"a"), join(&one, b"b")];
        assert!(second.iter().all(Option::is_some) && join(&other, b"a").is_none());
        // The ends of the first ones are not those of the ones in their places.
        drop(first);
        assert!(join(&one, b"a").is_none() && join(&one, b"b").is_none());
        drop(second);
        assert!(shared_fetches.names.iter().all(|names| lock(names).is_empty()));
    }

    #[test]
    fn marks_are_bounded_in_time_and_number_and_counted() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let key = |number: usize| Key::of(&number.to_be_bytes());
        let is_over = now + MARK_LIFETIME;
        shared_fetches.mark(&key(0), now);
        assert!(matches!(shared_fetches.join(&key(0), key(0), now, LIMIT), Joined::Marked));
        assert!(matches!(shared_fetches.join(&key(1), key(1), now, LIMIT), Joined::Lead(_)));
        // Requests that passed because of it do not renew it.
        assert!(matches!(shared_fetches.join(&key(0), key(0), is_over, LIMIT), Joined::Lead(_)));
        assert_eq!(shared_fetches.passed(), 1);
        (1..MARKS_MAX * 2).for_each(|number| shared_fetches.mark(&key(number), now));
        assert_eq!(shared_fetches.marks(), MARKS_MAX as u64, "shards are full");
        let marked = (0..MARKS_MAX * 2).filter(|&number| shared_fetches.is_marked(&key(number), now)).count();
        assert_eq!(marked, MARKS_MAX);
        // One that is over makes room, and a response that is stored takes its mark away.
        let late = key(MARKS_MAX * 3);
        shared_fetches.mark(&late, is_over);
        assert!(shared_fetches.is_marked(&late, is_over));
        shared_fetches.unmark(&late);
        assert!(!shared_fetches.is_marked(&late, is_over));
    }

    #[test]
    fn changes_are_remembered_and_never_too_many() {
        let (shared_fetches, now) = (SharedFetches::new(), Instant::now());
        let (before, after) = (now - Duration::from_millis(1), now + Duration::from_millis(1));
        let key = |number: usize| Key::of(&number.to_be_bytes());
        shared_fetches.outdate(&key(0), now);
        assert!(shared_fetches.is_outdated(&key(0), before) && shared_fetches.is_outdated(&key(0), now));
        assert!(!shared_fetches.is_outdated(&key(0), after) && !shared_fetches.is_outdated(&key(1), before));
        for number in 1..=CHANGES_MAX {
            shared_fetches.outdate(&key(number), now);
        }
        // A forgotten key counts as changed, like all keys.
        assert!(
            shared_fetches.is_outdated(&key(1), before)
                && shared_fetches.is_outdated(&key(CHANGES_MAX + 9), before)
        );
        assert!(!shared_fetches.is_outdated(&key(1), after));
        assert!(lock(&shared_fetches.changes).keys.len() <= CHANGES_MAX);
    }
}
