//! Complete responses whose entries are not published yet because they wait for the disk. A request gets such a response instead of
//! the entry that it replaces.
//!
//! Main types: [`Table`], all pending responses of one cache; [`Pending`], one of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cache::{Key, KeyMap, Meta, Ticket};

use crate::filling::Filling;
use crate::shared_fetch::SharedFetches;

/// The pending responses of one cache, by primary key.
#[derive(Default)]
pub struct Table {
    /// Number of pending responses. Lookups take no lock while it is zero.
    count: AtomicUsize,
    responses: Mutex<KeyMap<Vec<PendingVariant>>>,
}

/// One variant of a response.
struct PendingVariant {
    filling: Arc<Filling>,
    ticket: Arc<Ticket>,
    sequence: u64,
}

impl Table {
    /// Returns the newest pending response that a request may use, and the number of the last purge before it was requested.
    pub fn find(&self, key: &Key, is_wanted: impl Fn(&Meta) -> bool) -> Option<(Arc<Filling>, u64)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let responses = self.responses();
        let wanted = responses.get(key)?.iter().filter(|response| is_wanted(&response.filling.meta));
        let newest =
            wanted.reduce(|one, other| if other.ticket.is_after(&one.ticket) { other } else { one })?;
        Some((Arc::clone(&newest.filling), newest.sequence))
    }

    /// Whether a response to this key is pending, of any variant.
    pub fn has(&self, key: &Key) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.responses().contains_key(key)
    }

    /// Removes the pending responses of a key.
    pub fn remove(&self, key: &Key) {
        let removed = self.responses().remove(key).map_or(0, |responses| responses.len());
        debug_assert!(removed <= self.count.load(Ordering::Acquire), "each pending response is counted");
        self.count.fetch_sub(removed, Ordering::Release);
    }

    fn add(&self, key: Key, response: PendingVariant) {
        let mut responses = self.responses();
        responses.entry(key).or_default().push(response);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn remove_one(&self, key: &Key, filling: &Arc<Filling>) {
        let mut responses = self.responses();
        let Some(of_key) = responses.get_mut(key) else { return };
        let before = of_key.len();
        of_key.retain(|response| !Arc::ptr_eq(&response.filling, filling));
        debug_assert!(
            before - of_key.len() <= self.count.load(Ordering::Acquire),
            "each pending response is counted"
        );
        self.count.fetch_sub(before - of_key.len(), Ordering::Release);
        if of_key.is_empty() {
            responses.remove(key);
        }
    }

    fn responses(&self) -> MutexGuard<'_, KeyMap<Vec<PendingVariant>>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response that requests for its key receive until this is dropped.
pub struct Pending {
    shared_fetches: Arc<SharedFetches>,
    key: Key,
    filling: Arc<Filling>,
}

impl Pending {
    /// Adds a response to the table.
    pub fn new(
        shared_fetches: &Arc<SharedFetches>,
        key: Key,
        (filling, ticket): (Arc<Filling>, Arc<Ticket>),
        sequence: u64,
    ) -> Pending {
        let response = PendingVariant { filling: Arc::clone(&filling), ticket, sequence };
        shared_fetches.pending.add(key, response);
        Pending { shared_fetches: Arc::clone(shared_fetches), key, filling }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared_fetches.pending.remove_one(&self.key, &self.filling);
    }
}
