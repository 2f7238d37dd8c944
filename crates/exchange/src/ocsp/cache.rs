//! Cache of the OCSP statuses of client certificates, shared by all threads (`ssl_ocsp_cache`). An entry expires at nextUpdate.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use ::tls::in_use::InUse;
use ::tls::ocsp::{Status, ValidResponse};

/// Estimated memory of an entry in bytes: the key, which is stored twice, and the entry's share of two tables.
const ENTRY_BYTES: usize = 192;

/// Time in seconds for which a status without nextUpdate is cached, as in nginx.
const UNKNOWN_TIME_S: i64 = 3600;

/// Cache with one name (`shared:NAME:SIZE`), shared by all servers that use the name. A full cache evicts the oldest entry.
#[derive(Debug)]
pub struct StatusCache {
    entries_max: usize,
    table: Mutex<StatusTable>,
}

#[derive(Debug, Default)]
struct StatusTable {
    /// Status and expiry time in seconds since 1970, by key.
    statuses: HashMap<Vec<u8>, (Status, i64)>,
    /// Keys in the order of their insertion.
    order: VecDeque<Vec<u8>>,
}

/// Returns the cache with this name and size. A reload retains the cache and its entries.
pub fn named(name: &str, bytes_max: usize) -> Arc<StatusCache> {
    static CACHES: InUse<(String, usize), StatusCache> = InUse::empty();
    CACHES.get_or_add((name.to_owned(), bytes_max), || Arc::new(StatusCache::new(bytes_max)))
}

impl StatusCache {
    fn new(bytes_max: usize) -> StatusCache {
        StatusCache { entries_max: (bytes_max / ENTRY_BYTES).max(1), table: Mutex::default() }
    }

    /// Returns the status with this key, unless it has expired.
    pub(super) fn get(&self, key: &[u8], now: i64) -> Option<Status> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.statuses.get(key).filter(|(_, until)| *until > now).map(|(status, _)| *status)
    }

    /// Adds a status, unless it has expired.
    pub(super) fn put(&self, key: Vec<u8>, known: ValidResponse, now: i64) {
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

    const GOOD: ValidResponse = ValidResponse { status: Status::Good, until: Some(100) };

    #[test]
    fn a_status_is_valid_until_it_expires() {
        let cache = StatusCache::new(ENTRY_BYTES);
        cache.put(vec![1], GOOD, 10);
        assert_eq!((cache.get(&[1], 99), cache.get(&[1], 100)), (Some(Status::Good), None));
        cache.put(vec![1], ValidResponse { status: Status::Revoked, until: None }, 100);
        assert_eq!(cache.get(&[1], 100 + UNKNOWN_TIME_S - 1), Some(Status::Revoked));
        assert_eq!(cache.get(&[1], 100 + UNKNOWN_TIME_S), None);
        cache.put(vec![2], GOOD, 100);
        assert_eq!(cache.get(&[2], 0), None, "an expired status is not stored");
    }

    #[test]
    fn the_oldest_entry_is_evicted() {
        let cache = StatusCache::new(2 * ENTRY_BYTES);
        for key in [1, 2, 2, 3] {
            cache.put(vec![key], GOOD, 0);
        }
        let left: Vec<bool> = (1..4).map(|key| cache.get(&[key], 0).is_some()).collect();
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn a_name_selects_one_cache_while_it_is_used() {
        let cache = named("one", 4096);
        cache.put(vec![1], GOOD, 0);
        assert!(Arc::ptr_eq(&cache, &named("one", 4096)));
        assert!(!Arc::ptr_eq(&cache, &named("other", 4096)));
        drop(cache);
        assert_eq!(named("one", 4096).get(&[1], 0), None);
    }
}
