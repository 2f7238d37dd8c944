//! Locks of resources (RFC 4918 section 6): exclusive write locks in a shared zone, found by the path of the resource.
//!
//! ```text
//!   a change of /a/b/c needs the token of a lock of /a/b/c, of a deep lock of /a/b, /a or /, and of a lock of /a/b if the
//!   change adds or removes the name c
//! ```
//!
//! A lock ends by UNLOCK, by its timeout, or with its resource. The size of the zone bounds the number of locks: a full
//! zone refuses new ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exchange::shared_zone::{self, Kind};
use http::webdav::body::Owner;

/// A zone of locks.
pub(super) type Zone = shared_zone::Zone<Declared>;

/// The settings of `dav_ext_lock_zone`.
#[derive(Debug)]
pub(super) struct Declared {
    /// The longest time for which a lock is valid without a refresh.
    pub(super) timeout: Duration,
}

impl Kind for Declared {
    type State = Locks;

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
    /// The locks by path without a trailing slash.
    by_path: BTreeMap<Vec<u8>, Lock>,
    /// Bytes in use.
    bytes: u64,
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
    /// The owner, as the client calls itself.
    pub(super) owner: Owner,
    /// The authenticated client that has created it.
    pub(super) creator: Vec<u8>,
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
    /// The zone is full.
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
    fn valid(&self, key: &[u8], now: Instant) -> Option<&Lock> {
        self.by_path.get(key).filter(|lock| lock.expires > now)
    }

    /// Returns the lock that covers a resource.
    fn covering(&self, key: &[u8], now: Instant) -> Option<&Lock> {
        let inherited = || above(key).find_map(|key| self.valid(key, now).filter(|lock| lock.is_deep));
        self.valid(key, now).or_else(inherited)
    }

    /// Returns the locks of resources below a collection.
    fn below<'t>(&'t self, key: &'t [u8], now: Instant) -> impl Iterator<Item = (&'t Vec<u8>, &'t Lock)> {
        let start = [key, b"/"].concat();
        let range = self.by_path.range(start..);
        range
            .take_while(move |(path, _)| path.get(key.len()) == Some(&b'/') && path.starts_with(key))
            .filter(move |(_, lock)| lock.expires > now)
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(lock) = self.by_path.remove(key) {
            self.bytes -= cost(key, &lock);
        }
    }
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a lock.
    pub(super) fn acquire(&self, key: Vec<u8>, lock: Lock, now: Instant) -> Result<(), Refused> {
        let mut table = self.lock();
        let is_taken =
            table.covering(&key, now).is_some() || lock.is_deep && table.below(&key, now).next().is_some();
        if is_taken {
            return Err(Refused::Locked);
        }
        table.remove(&key);
        let cost = cost(&key, &lock);
        if table.bytes + cost > self.bytes_max {
            let Table { by_path, bytes } = &mut *table;
            by_path.retain(|path, lock| {
                let is_valid = lock.expires > now;
                *bytes -= if is_valid { 0 } else { self::cost(path, lock) };
                is_valid
            });
        }
        if table.bytes + cost > self.bytes_max {
            return Err(Refused::Full);
        }
        table.bytes += cost;
        table.by_path.insert(key, lock);
        Ok(())
    }

    /// Returns the lock that covers a resource.
    pub(super) fn covering(&self, key: &[u8], now: Instant) -> Option<Lock> {
        self.lock().covering(key, now).cloned()
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
        let owner = std::iter::once(key).chain(above(key)).find(|path| {
            let lock = table.valid(path, now).filter(|lock| *path == key || lock.is_deep);
            lock.is_some_and(|lock| holder.has(lock))
        })?;
        let lock = table.by_path.get_mut(owner)?;
        lock.expires = now + time;
        Some(lock.clone())
    }

    /// Removes the lock that covers a resource, if the client holds it.
    pub(super) fn release(&self, key: &[u8], holder: Holder<'_>, now: Instant) -> bool {
        let mut table = self.lock();
        let found = std::iter::once(key).chain(above(key)).find(|path| {
            let lock = table.valid(path, now).filter(|lock| *path == key || lock.is_deep);
            lock.is_some_and(|lock| holder.has(lock))
        });
        found.map(|key| table.remove(key)).is_some()
    }

    /// Removes the locks of a removed resource and of everything below it.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut table = self.lock();
        let start = [key, b"/"].concat();
        let below = table.by_path.range(start.clone()..).take_while(|(path, _)| path.starts_with(&start));
        let below: Vec<Vec<u8>> = below.map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|key| table.remove(key));
        table.remove(key);
    }

    /// Whether a client may make a change.
    pub(super) fn permits(&self, key: &[u8], change: Change, holder: Holder<'_>, now: Instant) -> bool {
        let table = self.lock();
        let has = |lock: &Lock| holder.has(lock);
        let parent = above(key).next().filter(|_| change != Change::Content);
        table.covering(key, now).is_none_or(has)
            && parent.and_then(|parent| table.covering(parent, now)).is_none_or(has)
            && (change != Change::Tree || table.below(key, now).all(|(_, lock)| has(lock)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(bytes: u64) -> Locks {
        Declared { timeout: Duration::from_secs(60) }.empty(bytes)
    }

    fn lock(token: &str, is_deep: bool, expires: Instant) -> Lock {
        Lock {
            token: token.into(),
            root: b"/x".to_vec(),
            is_deep,
            owner: Owner::default(),
            creator: b"me".to_vec(),
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
        let (locks, now) = (locks(1000), Instant::now());
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
}
