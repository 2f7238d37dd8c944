//! The order of responses for a key. Fetches of one key overlap, and the first one may end last: its response must not
//! replace a newer one.
//!
//! Main type: [`Ticket`], which a caller takes before it sends the request to the upstream, and passes on with the
//! response ([`crate::New::ticket`]).

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::key::{Key, KeyMap};
use crate::mutex::lock;

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
    /// The number of the newest complete response of each variant, by the digest of the variant.
    complete: KeyMap<u64>,
    /// The number of the newest complete response of any variant.
    newest: u64,
    /// The number of the newest complete response that matches all requests.
    newest_for_all: u64,
    /// Responses with a smaller number are outdated: they were requested before another request changed their resource.
    changed: u64,
}

/// Maximum number of variants in a record, some 32 bytes each. Above it, the newest response counts as one that matches
/// all requests: then some current responses in flight are not stored, but no outdated response is stored.
const VARIANTS_MAX: usize = 4096;

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
        let mut records = lock(&self.records);
        records.entry(key).or_default().held += 1;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        drop(records);
        Ticket { orders: Arc::clone(self), key, number }
    }

    /// Prevents the publication of all responses that were requested up to now, because a request has changed their
    /// resource.
    pub(crate) fn outdate(&self, key: &Key) {
        if let Some(record) = lock(&self.records).get_mut(key) {
            record.changed = self.next.load(Ordering::Relaxed);
        }
    }
}

impl Ticket {
    /// Records that the complete response was received. `variant` is [`crate::Meta::variant`].
    pub fn complete(&self, variant: &[u8]) {
        let mut records = lock(&self.orders.records);
        let Some(record) = records.get_mut(&self.key) else { return };
        record.newest = record.newest.max(self.number);
        if variant.is_empty() {
            record.newest_for_all = record.newest_for_all.max(self.number);
            return;
        }
        let number = record.complete.entry(Key::of(variant)).or_default();
        *number = (*number).max(self.number);
        if record.complete.len() > VARIANTS_MAX {
            record.complete.clear();
            record.newest_for_all = record.newest;
        }
    }

    /// Whether no later response for the same variant is complete, and no request has changed the resource. An empty
    /// variant matches all requests.
    pub fn is_newest(&self, variant: &[u8]) -> bool {
        let records = lock(&self.orders.records);
        let Some(record) = records.get(&self.key) else { return true };
        let complete = match variant.is_empty() {
            true => record.newest,
            false => {
                let same = record.complete.get(&Key::of(variant)).copied();
                record.newest_for_all.max(same.unwrap_or_default())
            }
        };
        self.number >= record.changed && self.number >= complete
    }

    /// Whether this ticket was taken after `other`.
    pub fn is_after(&self, other: &Ticket) -> bool {
        self.number > other.number
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Entry::Occupied(mut record) = lock(&self.orders.records).entry(self.key) {
            assert!(record.get().held > 0, "a ticket is returned once");
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
        assert!(first.is_newest(b"de"), "variants are independent");
        second.complete(b"de");
        assert!(!first.is_newest(b"de") && second.is_newest(b"de"));
        assert!(!first.is_newest(b""), "a response without variants replaces all variants");
        assert!(orders.take(Key::of(b"other")).is_newest(b"de"));
        orders.outdate(&key);
        assert!(!second.is_newest(b"de") && orders.take(key).is_newest(b"de"), "changed meanwhile");
        // The order of a key is dropped with its last ticket.
        drop((first, second));
        orders.outdate(&key);
        assert!(lock(&orders.records).is_empty());
    }

    #[test]
    fn the_recorded_variants_of_a_key_are_bounded() {
        let (orders, key) = (Arc::new(Orders::default()), Key::of(b"key"));
        let first = orders.take(key);
        for number in 0..3 * VARIANTS_MAX {
            let ticket = orders.take(key);
            ticket.complete(number.to_string().as_bytes());
            assert!(ticket.is_newest(number.to_string().as_bytes()) && ticket.is_newest(b""));
        }
        assert!(lock(&orders.records)[&key].complete.len() <= VARIANTS_MAX);
        assert!(!first.is_newest(b"0") && !first.is_newest(b""), "the variants were merged, not dropped");
        assert!(orders.take(key).is_newest(b"0"));
    }
}
