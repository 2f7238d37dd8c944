//! The order of responses for a key. Fetches of one key overlap, and the first one may end last: its response must not
//! replace a newer one.
//!
//! Main type: [`Ticket`], which a caller takes before it sends the request to the upstream, and passes on with the
//! response ([`crate::New::ticket`]).

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::{Key, KeyMap};

/// The fetches in flight, by primary key.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    next: AtomicU64,
    records: Mutex<KeyMap<Record>>,
}

/// State of a key while a fetch of it is in flight.
#[derive(Debug, Default)]
struct Record {
    /// Number of tickets in use.
    held: usize,
    /// The number of the newest complete response of each variant.
    complete: Vec<(Vec<u8>, u64)>,
    /// Responses with a smaller number are outdated: they were requested before another request changed their resource.
    changed: u64,
}

/// The position of one fetch among all fetches of its key. The order is recorded as long as any ticket of the key
/// exists.
#[derive(Debug)]
pub struct Ticket {
    orders: Arc<Orders>,
    key: Key,
    number: u64,
}

impl Orders {
    /// Returns a ticket for a fetch that begins now.
    pub(crate) fn take(self: &Arc<Orders>, key: Key) -> Ticket {
        let mut records = self.records();
        records.entry(key).or_default().held += 1;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        drop(records);
        Ticket { orders: Arc::clone(self), key, number }
    }

    /// Prevents the publication of all responses that were requested up to now, because a request has changed their
    /// resource.
    pub(crate) fn outdate(&self, key: &Key) {
        if let Some(record) = self.records().get_mut(key) {
            record.changed = self.next.load(Ordering::Relaxed);
        }
    }

    fn records(&self) -> MutexGuard<'_, KeyMap<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Records that the complete response was received. `variant` is [`crate::Meta::variant`].
    pub fn complete(&self, variant: &[u8]) {
        let mut records = self.orders.records();
        let Some(record) = records.get_mut(&self.key) else { return };
        match record.complete.iter_mut().find(|(known, _)| known == variant) {
            Some((_, number)) => *number = (*number).max(self.number),
            None => record.complete.push((variant.to_vec(), self.number)),
        }
    }

    /// Whether no later response for the same variant is complete, and no request has changed the resource. An empty
    /// variant matches all requests.
    pub fn is_newest(&self, variant: &[u8]) -> bool {
        let records = self.orders.records();
        let Some(record) = records.get(&self.key) else { return true };
        let is_outdated = self.number < record.changed;
        !is_outdated
            && !record.complete.iter().any(|(known, number)| {
                *number > self.number && (known == variant || known.is_empty() || variant.is_empty())
            })
    }

    /// Whether this ticket was taken after `other`.
    pub fn is_after(&self, other: &Ticket) -> bool {
        self.number > other.number
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Entry::Occupied(mut record) = self.orders.records().entry(self.key) {
            assert!(record.get().held > 0, "a ticket is given back once");
            record.get_mut().held -= 1;
            if record.get().held == 0 {
                record.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_requested_last_is_the_newest() {
        let (orders, key) = (Arc::new(Orders::default()), Key::of(b"key"));
        let (first, second) = (orders.take(key), orders.take(key));
        first.complete(b"de");
        assert!(first.is_newest(b"de") && second.is_newest(b"de"));
        second.complete(b"fr");
        assert!(first.is_newest(b"de"), "variants have places of their own");
        second.complete(b"de");
        assert!(!first.is_newest(b"de") && second.is_newest(b"de"));
        assert!(!first.is_newest(b""), "a response without variants takes the place of all");
        assert!(orders.take(Key::of(b"other")).is_newest(b"de"));
        orders.outdate(&key);
        assert!(!second.is_newest(b"de") && orders.take(key).is_newest(b"de"), "changed meanwhile");
        // The order of a key is dropped with its last ticket.
        drop((first, second));
        orders.outdate(&key);
        assert!(orders.records().is_empty());
    }
}
