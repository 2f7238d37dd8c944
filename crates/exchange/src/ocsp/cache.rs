//! Statuses of clients' certificates that all threads know (`ssl_ocsp_cache`), each until its responder has newer facts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ::tls::ocsp::{Known, Status};

/// Bytes of an entry: its key twice, and the memory of two tables.
const ENTRY_BYTES: usize = 192;

/// How long a status holds whose responder names no time, in seconds, as in nginx.
const UNKNOWN_TIME_S: i64 = 3600;

/// Statuses of one name (`shared:NAME:SIZE`), of all servers that use it. The oldest give way to new ones.
#[derive(Debug)]
pub struct StatusCache {
    entries_max: usize,
    table: Mutex<StatusTable>,
}

#[derive(Debug, Default)]
struct StatusTable {
    /// Each with the time when it ends.
    statuses: HashMap<Vec<u8>, (Status, i64)>,
    /// Keys in the order of their arrival.
    order: VecDeque<Vec<u8>>,
}

/// The cache of this name and size: a reload keeps it.
pub fn named(name: &str, bytes_max: usize) -> Arc<StatusCache> {
    type Named = (String, usize, Weak<StatusCache>);
    static CACHES: Mutex<Vec<Named>> = Mutex::new(Vec::new());
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    caches.retain(|(_, _, cache)| cache.strong_count() > 0);
    let known = caches.iter().find(|(known, bytes, _)| known == name && *bytes == bytes_max);
    if let Some(cache) = known.and_then(|(_, _, cache)| cache.upgrade()) {
        return cache;
    }
    let cache = Arc::new(StatusCache::new(bytes_max));
    caches.push((name.to_owned(), bytes_max, Arc::downgrade(&cache)));
    cache
}

impl StatusCache {
    fn new(bytes_max: usize) -> StatusCache {
        StatusCache { entries_max: (bytes_max / ENTRY_BYTES).max(1), table: Mutex::default() }
    }

    /// The status under this key, if it still holds.
    pub(super) fn get(&self, key: &[u8], now: i64) -> Option<Status> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.statuses.get(key).filter(|(_, until)| *until > now).map(|(status, _)| *status)
    }

    /// Keeps a status.
    pub(super) fn put(&self, key: Vec<u8>, known: Known, now: i64) {
        let until = known.until.unwrap_or(now.saturating_add(UNKNOWN_TIME_S));
        if until <= now {
            return;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.statuses.insert(key.clone(), (known.status, until)).is_some() {
            return;
        }
        table.order.push_back(key);
        if table.order.len() > self.entries_max
            && let Some(oldest) = table.order.pop_front()
        {
            table.statuses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Known = Known { status: Status::Good, until: Some(100) };

    #[test]
    fn a_status_holds_until_its_end() {
        let cache = StatusCache::new(ENTRY_BYTES);
        cache.put(vec![1], GOOD, 10);
        assert_eq!((cache.get(&[1], 99), cache.get(&[1], 100)), (Some(Status::Good), None));
        cache.put(vec![1], Known { status: Status::Revoked, until: None }, 100);
        assert_eq!(cache.get(&[1], 100 + UNKNOWN_TIME_S - 1), Some(Status::Revoked));
        assert_eq!(cache.get(&[1], 100 + UNKNOWN_TIME_S), None);
        cache.put(vec![2], GOOD, 100);
        assert_eq!(cache.get(&[2], 0), None, "it had ended when it came");
    }

    #[test]
    fn the_oldest_gives_way() {
        let cache = StatusCache::new(2 * ENTRY_BYTES);
        for key in [1, 2, 2, 3] {
            cache.put(vec![key], GOOD, 0);
        }
        let left: Vec<bool> = (1..4).map(|key| cache.get(&[key], 0).is_some()).collect();
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn a_name_is_one_cache_while_it_is_used() {
        let cache = named("one", 4096);
        cache.put(vec![1], GOOD, 0);
        assert!(Arc::ptr_eq(&cache, &named("one", 4096)));
        assert!(!Arc::ptr_eq(&cache, &named("other", 4096)));
        drop(cache);
        assert_eq!(named("one", 4096).get(&[1], 0), None);
    }
}
