//! The session cache of the server (`ssl_session_cache`), for clients that resume a session.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

use crate::in_use::InUse;
use crate::seen::{self, SESSION_ID_BYTES};

/// Number of shards. Each shard has its own lock, so that threads seldom compete for the same lock.
const SHARDS: usize = 16;

/// Memory in bytes that an entry needs in addition to key and value: a second copy of the key, and the tables.
const ENTRY_OVERHEAD: usize = 160;

/// A session cache (`shared:NAME:SIZE`), shared by all servers that name it. Its size in bytes is limited; the oldest
/// sessions are evicted first.
pub struct SessionCache {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    shard_bytes_max: usize,
}

#[derive(Default)]
struct Shard {
    sessions: HashMap<Vec<u8>, CachedSession>,
    /// Keys in order of insertion, with the number that distinguishes repeated insertions of a key.
    order: VecDeque<(Vec<u8>, u64)>,
    bytes: usize,
    number: u64,
}

struct CachedSession {
    value: Vec<u8>,
    created: Instant,
    number: u64,
}

/// Returns the cache with this name and size. A reload in place uses the existing cache, so that sessions remain valid.
pub fn named(name: &str, bytes_max: usize) -> Arc<SessionCache> {
    static CACHES: InUse<(String, usize), SessionCache> = InUse::empty();
    CACHES.get_or_add((name.to_owned(), bytes_max), || SessionCache::new(bytes_max))
}

impl SessionCache {
    /// Creates an empty cache with this size in bytes.
    pub fn new(bytes_max: usize) -> Arc<SessionCache> {
        Arc::new(SessionCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_bytes_max: bytes_max / SHARDS,
        })
    }

    /// Returns the size in bytes of the stored sessions.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).bytes).sum()
    }

    fn with<T>(&self, name: &[u8], run: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        run(&mut self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, name: Vec<u8>, value: Vec<u8>) -> bool {
        let bytes_max = self.shard_bytes_max;
        self.with(&name.clone(), |shard| shard.put(name, value, bytes_max))
    }

    fn get(&self, name: &[u8], timeout: Duration) -> Option<Vec<u8>> {
        self.with(name, |shard| {
            let cached = shard.sessions.get(name)?;
            (cached.created.elapsed() < timeout).then(|| cached.value.clone())
        })
    }

    fn take(&self, name: &[u8], timeout: Duration) -> Option<Vec<u8>> {
        self.with(name, |shard| {
            let cached = shard.remove(name)?;
            (cached.created.elapsed() < timeout).then_some(cached.value)
        })
    }
}

impl std::fmt::Debug for SessionCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCache")
            .field("bytes_max", &(self.shard_bytes_max * SHARDS))
            .finish_non_exhaustive()
    }
}

fn weight(name: &[u8], value: &[u8]) -> usize {
    2 * name.len() + value.len() + ENTRY_OVERHEAD
}

impl Shard {
    fn put(&mut self, name: Vec<u8>, value: Vec<u8>, bytes_max: usize) -> bool {
        let needed = weight(&name, &value);
        if needed > bytes_max {
            return false;
        }
        self.remove(&name);
        while self.bytes + needed > bytes_max || self.order.len() > 2 * self.sessions.len() + SHARDS {
            let Some((oldest, number)) = self.order.pop_front() else { break };
            // The item of a key that was removed, or inserted again, remains in the queue and is ignored here.
            if self.sessions.get(&oldest).is_some_and(|cached| cached.number == number) {
                self.remove(&oldest);
            }
        }
        self.number += 1;
        self.bytes += needed;
        self.order.push_back((name.clone(), self.number));
        self.sessions.insert(name, CachedSession { value, created: Instant::now(), number: self.number });
        assert!(self.bytes <= bytes_max, "sessions stay within their limit");
        true
    }

    fn remove(&mut self, name: &[u8]) -> Option<CachedSession> {
        let cached = self.sessions.remove(name)?;
        self.bytes -= weight(name, &cached.value);
        Some(cached)
    }
}

/// The sessions of one server block in a cache. The keys begin with the name of the block, so sessions of other blocks
/// are not found.
#[derive(Debug)]
pub(crate) struct ServerSessions {
    pub(crate) cache: Arc<SessionCache>,
    pub(crate) scope: Vec<u8>,
    /// `ssl_session_timeout`
    pub(crate) timeout: Duration,
}

impl ServerSessions {
    fn name(&self, id: &[u8]) -> Vec<u8> {
        // The length separates the name of the block from the session's key.
        [&(self.scope.len() as u32).to_be_bytes()[..], &self.scope, id].concat()
    }
}

/// Removes the session ID from the beginning of a stored session, and records it.
fn noted(mut cached: Vec<u8>) -> Option<Vec<u8>> {
    let session_id = *cached.first_chunk()?;
    seen::note(|seen| seen.session_id = Some(session_id));
    cached.drain(..SESSION_ID_BYTES);
    Some(cached)
}

impl StoresServerSessions for ServerSessions {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        // In TLS 1.2 the key of a session is its session ID (RFC 5246 section 7.4.1.2).
        let wished = <[u8; SESSION_ID_BYTES]>::try_from(&id[..]).ok();
        let noted = seen::note(|seen| seen.session_id = seen.session_id.or(wished)).session_id;
        let Some(session_id) = noted.or_else(seen::session_id) else { return false };
        self.cache.put(self.name(&id), [&session_id[..], &value].concat())
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        noted(self.cache.get(&self.name(id), self.timeout)?)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        noted(self.cache.take(&self.name(id), self.timeout)?)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(cache: &Arc<SessionCache>, scope: &str) -> ServerSessions {
        ServerSessions { cache: Arc::clone(cache), scope: scope.into(), timeout: Duration::from_secs(300) }
    }

    #[test]
    fn a_session_is_found_only_by_its_own_server() {
        let cache = SessionCache::new(1 << 20);
        let (own, other) = (sessions(&cache, "a"), sessions(&cache, "ab"));
        assert!(own.put(b"bc".to_vec(), b"session".to_vec()));
        assert_eq!(own.get(b"bc").unwrap(), b"session");
        assert_eq!(other.get(b"c"), None);
        assert_eq!(own.take(b"bc").unwrap(), b"session");
        assert_eq!((own.take(b"bc"), cache.bytes()), (None, 0));
    }

    #[test]
    fn old_sessions_are_evicted_first_and_bytes_are_bounded() {
        let cache = SessionCache::new(64 << 10);
        let own = sessions(&cache, "a");
        for number in 0..10_000_u32 {
            assert!(own.put(number.to_be_bytes().to_vec(), vec![0; 100]));
            assert!(cache.bytes() <= 64 << 10);
        }
        assert!(own.get(&9_999_u32.to_be_bytes()).is_some());
        assert!(own.get(&0_u32.to_be_bytes()).is_none());
        assert!(!own.put(b"large".to_vec(), vec![0; 8 << 10]), "one that does not fit a part of the cache");
    }

    #[test]
    fn removed_sessions_leave_no_names() {
        let cache = SessionCache::new(1 << 20);
        let own = sessions(&cache, "a");
        for number in 0..100_000_u32 {
            own.put(number.to_be_bytes().to_vec(), vec![0; 10]);
            own.take(&number.to_be_bytes());
        }
        let names: usize = cache.shards.iter().map(|shard| shard.lock().unwrap().order.len()).sum();
        assert!(names <= SHARDS * (SHARDS + 2), "{names} names");
    }

    #[test]
    fn a_session_expires_after_the_timeout() {
        let cache = SessionCache::new(1 << 20);
        let own = ServerSessions { timeout: Duration::ZERO, ..sessions(&cache, "a") };
        own.put(b"x".to_vec(), b"session".to_vec());
        assert_eq!(own.get(b"x"), None);
    }
}
