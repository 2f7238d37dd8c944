//! Locks of resources (RFC 4918 section 6): exclusive and shared write locks in a shared zone, found by the path of the resource.
//!
//! ```text
//!   a change of /a/b/c needs the token of a lock of /a/b/c, of a deep lock of /a/b, /a or /, and of a lock of /a/b if the
//!   change adds or removes the name c
//! ```
//!
//! Of several shared locks the change needs the token of one. A lock ends by UNLOCK, by its timeout, or with its resource. The size
//! of the zone bounds the number of locks, and one client gets at most half of what the others leave: a client without space gets
//! no new lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::webdav::body::Owner;
use site::address::ClientNetwork;
use site::shared_zone::{self, ZoneKind};

/// A zone of locks.
pub(super) type Zone = shared_zone::Zone<Declared>;

/// The settings of `dav_ext_lock_zone`.
#[derive(Debug)]
pub(super) struct Declared {
    /// The longest time for which a lock is valid without a refresh.
    pub(super) timeout: Duration,
}

impl ZoneKind for Declared {
    type Content = Locks;

    fn empty(&self, bytes: u64) -> Locks {
        Locks { bytes_max: bytes, table: Mutex::default() }
    }

    fn used(state: &Locks) -> Option<u64> {
        Some(state.lock().bytes)
    }

    // Clients rely on their locks whatever the timeout of new ones.
    fn continues(&self, _: &Declared) -> bool {
        true
    }
}

/// The locks of a zone.
#[derive(Debug)]
pub(super) struct Locks {
    /// Maximum number of bytes.
    bytes_max: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// The locks by path without a trailing slash; several locks of a path are shared.
    by_path: BTreeMap<Vec<u8>, Vec<Lock>>,
    /// Bytes in use.
    bytes: u64,
    /// Bytes in use by client.
    by_client: HashMap<ClientNetwork, u64>,
}

/// A lock.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    /// Its token, a URI.
    pub(super) token: String,
    /// The URI of the locked resource, escaped.
    pub(super) root: Vec<u8>,
    /// Whether the lock covers everything below a collection (`Depth: infinity`).
    pub(super) is_deep: bool,
    /// Whether there is no other lock beside it.
    pub(super) is_exclusive: bool,
    /// The owner, as the client calls itself.
    pub(super) owner: Owner,
    /// The authenticated client that has created it.
    pub(super) creator: Vec<u8>,
    /// The network of this client.
    pub(super) network: ClientNetwork,
    /// The time until which the lock is valid.
    pub(super) expires: Instant,
}

impl Lock {
    /// Returns the remaining time in seconds.
    pub(super) fn seconds(&self, now: Instant) -> u64 {
        self.expires.saturating_duration_since(now).as_secs().max(1)
    }
}

/// A client with the tokens that it has sent. Tokens are no secrets, PROPFIND returns them (RFC 4918 section 6.4): a client
/// holds only locks that it has created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'t> {
    pub(super) creator: &'t [u8],
    pub(super) tokens: &'t [&'t [u8]],
}

impl Holder<'_> {
    fn has(self, lock: &Lock) -> bool {
        lock.creator == self.creator && self.tokens.contains(&lock.token.as_bytes())
    }
}

/// Maximum number of shared locks that cover a resource when another is created: each PROPFIND of a resource lists all of them.
const COVERING_MAX: usize = 64;

/// Bytes of a lock without its texts: nodes of the map, and memory of the allocator.
const LOCK_OVERHEAD: u64 = 320;

fn cost(path: &[u8], lock: &Lock) -> u64 {
    LOCK_OVERHEAD
        + (path.len() + lock.root.len() + lock.owner.text.len() + lock.creator.len() + lock.token.len())
            as u64
}

/// The reason why a lock is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Another lock covers the resource, or a resource below it.
    Locked,
    /// The zone is full, or the client has its share.
    Full,
}

/// The extent of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The content or the properties of the resource.
    Content,
    /// The resource is created.
    Created,
    /// The resource is removed or replaced, with everything below it.
    Tree,
}

/// Returns a path as the key of a lock: runs of slashes are one slash, and there is none at the end.
pub(super) fn key(path: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.len());
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        key.push(b'/');
        key.extend_from_slice(name);
    }
    key
}

/// Returns the paths above a key, the nearest first.
fn above(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = key;
    std::iter::from_fn(move || {
        rest = &rest[..memchr::memrchr(b'/', rest)?];
        Some(rest)
    })
}

impl Table {
    fn valid(&self, key: &[u8], now: Instant) -> impl Iterator<Item = &Lock> {
        self.by_path.get(key).into_iter().flatten().filter(move |lock| lock.expires > now)
    }

    /// Returns the locks that cover a resource, each with its path.
    fn covering<'t>(&'t self, key: &'t [u8], now: Instant) -> impl Iterator<Item = (&'t [u8], &'t Lock)> {
        let of = move |path: &'t [u8]| self.valid(path, now).map(move |lock| (path, lock));
        of(key).chain(above(key).flat_map(of).filter(|(_, lock)| lock.is_deep))
    }

    /// Returns the locks of each resource below a collection.
    fn below<'t>(
        &'t self,
        key: &'t [u8],
        now: Instant,
    ) -> impl Iterator<Item = impl Iterator<Item = &'t Lock>> {
        let start = [key, b"/"].concat();
        let range = self.by_path.range(start..);
        range
            .take_while(move |(path, _)| path.get(key.len()) == Some(&b'/') && path.starts_with(key))
            .map(move |(_, locks)| locks.iter().filter(move |lock| lock.expires > now))
    }

    /// Removes the locks of a path for which `ends` is true.
    fn remove(&mut self, key: &[u8], ends: impl Fn(&Lock) -> bool) {
        let Some(locks) = self.by_path.get_mut(key) else { return };
        for lock in locks.extract_if(.., |lock| ends(lock)) {
            let cost = cost(key, &lock);
            assert!(cost <= self.bytes, "each lock is counted");
            self.bytes -= cost;
            if let Some(bytes) = self.by_client.get_mut(&lock.network) {
                assert!(cost <= *bytes, "each lock of a client is counted");
                *bytes -= cost;
            }
            if self.by_client.get(&lock.network) == Some(&0) {
                self.by_client.remove(&lock.network);
            }
        }
        if locks.is_empty() {
            self.by_path.remove(key);
        }
    }

    /// Returns the path and the token of a lock that covers a resource and that the client holds.
    fn held(&self, key: &[u8], holder: Holder<'_>, now: Instant) -> Option<(Vec<u8>, String)> {
        let mut covering = self.covering(key, now);
        let (path, lock) = covering.find(|(_, lock)| holder.has(lock))?;
        Some((path.to_vec(), lock.token.clone()))
    }
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client has space for `cost` bytes more: at most half of what the other clients leave.
    fn has_space(&self, table: &Table, network: ClientNetwork, cost: u64) -> bool {
        let own = table.by_client.get(&network).copied().unwrap_or(0);
        debug_assert!(own <= table.bytes, "the locks of a client are among all locks");
        own + cost <= self.bytes_max.saturating_sub(table.bytes - own) / 2
    }

    /// Adds a lock.
    pub(super) fn acquire(&self, key: Vec<u8>, lock: Lock, now: Instant) -> Result<(), Refused> {
        let mut table = self.lock();
        let excludes = |other: &Lock| lock.is_exclusive || other.is_exclusive;
        if table.covering(&key, now).any(|(_, other)| excludes(other))
            || lock.is_deep && table.below(&key, now).any(|mut locks| locks.any(excludes))
        {
            return Err(Refused::Locked);
        }
        if table.covering(&key, now).count() >= COVERING_MAX {
            return Err(Refused::Full);
        }
        table.remove(&key, |lock| lock.expires <= now);
        let cost = cost(&key, &lock);
        if !self.has_space(&table, lock.network, cost) {
            let is_expired = |locks: &Vec<Lock>| locks.iter().any(|lock| lock.expires <= now);
            let expired = table.by_path.iter().filter(|(_, locks)| is_expired(locks));
            let expired: Vec<Vec<u8>> = expired.map(|(path, _)| path.clone()).collect();
            expired.iter().for_each(|path| table.remove(path, |lock| lock.expires <= now));
        }
        if !self.has_space(&table, lock.network, cost) {
            return Err(Refused::Full);
        }
        table.bytes += cost;
        *table.by_client.entry(lock.network).or_default() += cost;
        table.by_path.entry(key).or_default().push(lock);
        Ok(())
    }

    /// Returns the locks that cover a resource.
    pub(super) fn covering(&self, key: &[u8], now: Instant) -> Vec<Lock> {
        self.lock().covering(key, now).map(|(_, lock)| lock.clone()).collect()
    }

    /// Prolongs the lock that covers a resource, if the client holds it.
    pub(super) fn refresh(
        &self,
        key: &[u8],
        holder: Holder<'_>,
        now: Instant,
        time: Duration,
    ) -> Option<Lock> {
        let mut table = self.lock();
        let (path, token) = table.held(key, holder, now)?;
        let lock = table.by_path.get_mut(&path)?.iter_mut().find(|lock| lock.token == token)?;
        lock.expires = now + time;
        Some(lock.clone())
    }

    /// Removes the lock that covers a resource, if the client holds it.
    pub(super) fn release(&self, key: &[u8], holder: Holder<'_>, now: Instant) -> bool {
        let mut table = self.lock();
        let Some((path, token)) = table.held(key, holder, now) else { return false };
        table.remove(&path, |lock| lock.token == token);
        true
    }

    /// Removes the lock with this token of a resource.
    pub(super) fn withdraw(&self, key: &[u8], token: &str) {
        self.lock().remove(key, |lock| lock.token == token);
    }

    /// Removes the locks of a removed resource and of everything below it.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut table = self.lock();
        let start = [key, b"/"].concat();
        let below = table.by_path.range(start.clone()..).take_while(|(path, _)| path.starts_with(&start));
        let below: Vec<Vec<u8>> = below.map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|key| table.remove(key, |_| true));
        table.remove(key, |_| true);
    }

    /// Whether a client may make a change.
    pub(super) fn permits(&self, key: &[u8], change: Change, holder: Holder<'_>, now: Instant) -> bool {
        let table = self.lock();
        let permits = |key| are_met(table.covering(key, now).map(|(_, lock)| lock), holder);
        let parent = above(key).next().filter(|_| change != Change::Content);
        permits(key)
            && parent.is_none_or(permits)
            && (change != Change::Tree || table.below(key, now).all(|locks| are_met(locks, holder)))
    }
}

/// Whether there are no locks, or the client holds one of them.
fn are_met<'t>(mut locks: impl Iterator<Item = &'t Lock>, holder: Holder<'_>) -> bool {
    locks.next().is_none_or(|first| holder.has(first) || locks.any(|lock| holder.has(lock)))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn locks(bytes: u64) -> Locks {
        Declared { timeout: Duration::from_secs(60) }.empty(bytes)
    }

    fn lock(token: &str, is_deep: bool, expires: Instant) -> Lock {
        Lock {
            token: token.into(),
            root: b"/x".to_vec(),
            is_deep,
            is_exclusive: true,
            owner: Owner::default(),
            creator: b"me".to_vec(),
            network: None,
            expires,
        }
    }

    #[test]
    fn locks_cover_their_resource_and_below() {
        let (locks, now) = (locks(1 << 20), Instant::now());
        let later = now + Duration::from_secs(9);
        assert_eq!(locks.acquire(key(b"/a//b/"), lock("t", true, later), now), Ok(()));
        assert_eq!(locks.acquire(key(b"/a/b/c"), lock("u", false, later), now), Err(Refused::Locked));
        assert_eq!(locks.acquire(key(b"/a"), lock("u", true, later), now), Err(Refused::Locked));
        assert_eq!(locks.acquire(key(b"/a"), lock("v", false, later), now), Ok(()));
        let may = |path: &[u8], change, token: &[u8]| {
            locks.permits(&key(path), change, Holder { creator: b"me", tokens: &[token] }, now)
        };
        assert!(!may(b"/a/b/c", Change::Content, b"") && may(b"/a/b/c", Change::Content, b"t"));
        assert!(may(b"/a/bb", Change::Content, b"") && !may(b"/a/bb", Change::Created, b"t"));
        assert!(may(b"/a/bb", Change::Created, b"v") && !may(b"/a", Change::Tree, b"v"));
        assert!(may(b"/other", Change::Tree, b""));
        assert!(locks.permits(
            &key(b"/a/b/c"),
            Change::Content,
            Holder { creator: b"me", tokens: &[] },
            later
        ));
        let released =
            |creator, token| locks.release(&key(b"/a/b/c"), Holder { creator, tokens: &[token] }, now);
        assert!(!released(b"me", b"v") && !released(b"you", b"t") && released(b"me", b"t"));
        locks.forget(&key(b"/a"));
        assert_eq!(locks.lock().bytes, 0);
    }

    #[test]
    fn a_full_zone_refuses_locks_until_others_expire() {
        let (locks, now) = (locks(2000), Instant::now());
        let later = now + Duration::from_secs(9);
        let take = |path: &[u8], now| locks.acquire(key(path), lock("t", false, later), now);
        assert_eq!(
            [take(b"/a", now), take(b"/b", now), take(b"/c", now), take(b"/d", now)].map(|done| done.is_ok()),
            [true, true, true, false]
        );
        assert_eq!(take(b"/e", now), Err(Refused::Full));
        let renewed = locks.acquire(key(b"/e"), lock("t", false, later + Duration::from_secs(9)), later);
        assert_eq!(renewed, Ok(()));
    }

    #[test]
    fn a_client_gets_half_of_what_the_others_leave() {
        let (locks, now) = (locks(1 << 20), Instant::now());
        let later = now + Duration::from_secs(9);
        let used_by = |client: u8| {
            let network = Some(IpAddr::from([192, 0, 2, client]));
            let take = |number: u32| {
                let lock = Lock { network, ..lock("t", false, later) };
                locks.acquire(key(format!("/{client}/{number}").as_bytes()), lock, now)
            };
            (0..10_000).find(|number| take(*number) == Err(Refused::Full)).map(u64::from)
        };
        let used = [1, 2, 3].map(|client| used_by(client).unwrap());
        assert!(used[0] > 1000 && used[1] >= used[0] / 2 - 20 && used[2] >= used[0] / 4 - 20, "{used:?}");
    }

    #[test]
    fn shared_locks_exclude_exclusive_ones_and_permit_their_holders() {
        let (locks, now) = (locks(1 << 20), Instant::now());
        let later = now + Duration::from_secs(9);
        let shared = |token| Lock { is_exclusive: false, ..lock(token, true, later) };
        assert_eq!(locks.acquire(key(b"/a"), shared("s"), now), Ok(()));
        assert_eq!(locks.acquire(key(b"/a"), shared("t"), now), Ok(()));
        assert_eq!(locks.acquire(key(b"/a/b"), shared("u"), now), Ok(()));
        for path in [&b"/a"[..], b"/a/b", b"/a/c", b"/"] {
            let exclusive = lock("x", true, later);
            assert_eq!(locks.acquire(key(path), exclusive, now), Err(Refused::Locked));
        }
        let holds = |token: &'static [u8]| {
            let holder = Holder { creator: b"me", tokens: &[token] };
            locks.permits(&key(b"/a/b"), Change::Content, holder, now)
        };
        assert!([&b"s"[..], b"t", b"u"].into_iter().all(holds) && !holds(b"x"));
        let more = (0..COVERING_MAX).map(|_| locks.acquire(key(b"/b"), shared("v"), now));
        assert!(more.into_iter().all(|acquired| acquired == Ok(())));
        assert_eq!(locks.acquire(key(b"/b/c"), shared("w"), now), Err(Refused::Full));
        locks.forget(&key(b"/b"));
        assert_eq!(locks.covering(&key(b"/a/b"), now).len(), 3);
        let release = |token: &'static [u8]| {
            locks.release(&key(b"/a"), Holder { creator: b"me", tokens: &[token] }, now)
        };
        assert!(release(b"s") && !release(b"s") && !holds(b"s") && holds(b"t"));
        locks.forget(&key(b"/a"));
        let table = locks.lock();
        assert_eq!((table.bytes, table.by_client.len()), (0, 0));
    }
}
