//! Decides when a purge may be forgotten: once no matching object is stored, and none can be stored by a fill whose
//! upstream request was sent before the purge.
//!
//! ```text
//!   purge of a key --entry in the index--> its file is removed --+--> no older request in flight, no variant --> forgotten
//!                  \-------------------------- none -------------+           `--> pending, or left to the sweep
//!   tags, patterns, variants, purges read at a start --many of them--> sweep: every entry is read --> forgotten
//! ```
//! A purge of a key is forgotten as soon as it is last. The other purges are forgotten by a sweep, which starts when
//! there are enough purges to justify its reads.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque, btree_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::bits::Bits;
use crate::key::{Key, KeyMap};
use crate::mutex::lock;

/// A request to an upstream with the sequence number of the last purge when it was sent. The stored response gets this
/// number. Later purges are retained until this value is dropped.
#[derive(Debug)]
pub struct PendingRequest {
    number: u64,
    /// `None` if no entry is stored with the number: then the number delays no purge.
    open: Option<Arc<OpenRequests>>,
}

/// Number of upstream requests in flight for each sequence number.
type OpenRequests = Mutex<BTreeMap<u64, usize>>;

impl PendingRequest {
    /// Returns a value with the number of an existing entry.
    pub(crate) fn before(number: u64) -> Arc<PendingRequest> {
        Arc::new(PendingRequest { number, open: None })
    }

    /// Returns the sequence number of the last purge when the request was sent.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(open) = &self.open else { return };
        if let btree_map::Entry::Occupied(mut count) = lock(open).entry(self.number) {
            debug_assert!(*count.get() > 0, "a request ends once");
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Number of bits of [`Retention::families`]: 128 KiB. With a million keys that have variants, most bits are set, and
/// most purges of keys are left to the sweep.
const FAMILY_BITS: u64 = 1 << 20;

/// Returns the bit of a key in [`Retention::families`].
fn family(key: &Key) -> u64 {
    u64::from_le_bytes(key.0[..8].try_into().expect("eight of sixteen bytes")) % FAMILY_BITS
}

/// Maximum time for which a sweep waits for removals; afterwards, the purges are retained until the next sweep.
const REMOVAL_MAX: Duration = Duration::from_secs(30);

/// Files that are being removed, by key.
#[derive(Debug, Default)]
struct Removing {
    /// Number of removals of a key in flight, and the number of the purge that is forgotten after them (0: none).
    under_way: KeyMap<(u32, u64)>,
    /// Files that could not be removed. They are not in the index now, but the next start would add them again.
    left: KeyMap<()>,
}

/// State that decides which purges may be forgotten.
#[derive(Debug)]
pub(crate) struct Retention {
    /// The upstream requests in flight.
    open: Arc<OpenRequests>,
    /// Keys that have variants in files with other names: one bit per key, which several keys may share (a Bloom filter
    /// with one hash).
    families: Bits,
    removing: Mutex<Removing>,
    /// Purges of keys that were added while an older request was in flight, in the order of their numbers.
    pending: Mutex<VecDeque<(Key, u64)>>,
    /// Whether every entry was checked, so that all variants are recorded in `families`.
    is_surveyed: AtomicBool,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            open: Arc::default(),
            families: Bits::new(FAMILY_BITS as usize),
            removing: Mutex::default(),
            pending: Mutex::default(),
            is_surveyed: AtomicBool::new(false),
        }
    }
}

impl Retention {
    /// Registers an upstream request; `number` returns the last purge at this time.
    pub(crate) fn register(&self, number: impl FnOnce() -> u64) -> Arc<PendingRequest> {
        let mut open = lock(&self.open);
        // The number is read under the lock: a concurrent purge cannot be forgotten before this request is registered.
        let number = number();
        *open.entry(number).or_default() += 1;
        Arc::new(PendingRequest { number, open: Some(Arc::clone(&self.open)) })
    }

    /// Records that an entry is stored under another name than its primary key.
    pub(crate) fn add_variant(&self, primary: &Key) {
        self.families.set(family(primary));
    }

    /// Records that every entry was checked.
    pub(crate) fn surveyed(&self) {
        self.is_surveyed.store(true, Ordering::Release);
    }

    /// Whether entries of this key may be stored under other names.
    pub(crate) fn may_have_variants(&self, key: &Key) -> bool {
        self.families.has(family(key))
    }

    /// Whether this purge of a key could be forgotten, provided that nothing is stored under the key.
    pub(crate) fn may_forget(&self, key: &Key, purge: u64) -> bool {
        let is_surveyed = self.is_surveyed.load(Ordering::Acquire);
        is_surveyed && !self.may_have_variants(key) && self.is_removed(key, purge)
    }

    /// Retains a purge of a key until no older request is in flight.
    pub(crate) fn postpone(&self, key: &Key, purge: u64) {
        lock(&self.pending).push_back((*key, purge));
    }

    /// Returns the highest purge number for which all requests in flight were sent after the purge.
    pub(crate) fn without_older_requests(&self) -> u64 {
        lock(&self.open).keys().next().copied().unwrap_or(u64::MAX)
    }

    /// Records that the file of a key is about to be removed.
    pub(crate) fn begin_removal(&self, key: &Key) {
        lock(&self.removing).under_way.entry(*key).or_default().0 += 1;
    }

    /// Records the result of a removal; returns the purge that may be forgotten now.
    pub(crate) fn end_removal(&self, key: &Key, is_gone: bool) -> Option<u64> {
        let mut removing = lock(&self.removing);
        match is_gone {
            true => removing.left.remove(key),
            false => removing.left.insert(*key, ()),
        };
        let Entry::Occupied(mut entry) = removing.under_way.entry(*key) else { return None };
        assert!(entry.get().0 > 0, "a removal ends once");
        entry.get_mut().0 -= 1;
        let (count, purge) = *entry.get();
        if count > 0 {
            return None;
        }
        entry.remove();
        Some(purge).filter(|purge| is_gone && *purge > 0)
    }

    /// Whether the file of a key is certainly removed. If a removal is in flight, the purge is returned by its
    /// [`Retention::end_removal`].
    pub(crate) fn is_removed(&self, key: &Key, purge: u64) -> bool {
        let mut removing = lock(&self.removing);
        if let Some((_, later)) = removing.under_way.get_mut(key) {
            *later = purge.max(*later);
            return false;
        }
        !removing.left.contains_key(key)
    }

    /// Waits for the removals in flight; returns whether all files were removed.
    pub(crate) async fn all_removed(&self) -> bool {
        let mut keys: Vec<Key> = lock(&self.removing).under_way.keys().copied().collect();
        let deadline = rt::now() + REMOVAL_MAX;
        while !keys.is_empty() && rt::now() < deadline {
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
            let removing = lock(&self.removing);
            keys.retain(|key| removing.under_way.contains_key(key));
        }
        keys.is_empty() && lock(&self.removing).left.is_empty()
    }

    /// Removes and returns the first pending purge, if no older request is in flight.
    pub(crate) fn next_pending(&self) -> Option<(Key, u64)> {
        let last = self.without_older_requests();
        let mut pending = lock(&self.pending);
        pending.front().filter(|(_, purge)| *purge <= last)?;
        pending.pop_front()
    }

    /// Whether a purge waits for the end of an upstream request.
    pub(crate) fn is_pending(&self) -> bool {
        !lock(&self.pending).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pending_request_limits_what_is_settled() {
        let retention = Retention::default();
        assert_eq!(retention.without_older_requests(), u64::MAX);
        let first = retention.register(|| 3);
        let (again, second) = (retention.register(|| 3), retention.register(|| 7));
        drop(first);
        assert_eq!(retention.without_older_requests(), 3);
        drop(again);
        assert_eq!(retention.without_older_requests(), 7);
        drop(PendingRequest::before(1));
        assert_eq!((retention.without_older_requests(), second.number()), (7, 7));
        drop(second);
        assert_eq!(retention.without_older_requests(), u64::MAX);
    }

    #[test]
    fn a_purge_is_settled_after_its_last_successful_removal() {
        let retention = Retention::default();
        let key = Key([1; 16]);
        retention.begin_removal(&key);
        retention.begin_removal(&key);
        assert!(!retention.is_removed(&key, 5));
        assert_eq!(retention.end_removal(&key, true), None);
        assert_eq!(retention.end_removal(&key, true), Some(5));
        assert!(retention.is_removed(&key, 6));
        retention.begin_removal(&key);
        assert!(!retention.is_removed(&key, 7));
        assert_eq!(retention.end_removal(&key, false), None);
        assert!(!retention.is_removed(&key, 8), "its file may be there");
    }
}
