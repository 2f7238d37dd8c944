//! Who may change the file of a key: one at a time, in whatever thread.
//!
//! A commit renames a file into place and an eviction removes one. Without an order between them a removal could hit the
//! file that has just come. Readers need no lease: what they have opened stays.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::key::{Key, KeyMap};

/// Leases in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Mutex<KeyMap<Vec<Waker>>>>);

/// The right to change the file of one key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    key: Key,
}

impl Leases {
    /// The lease if nobody has it.
    pub(crate) fn try_take(&self, key: &Key) -> Option<Lease> {
        match self.map().entry(*key) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Some(Lease { leases: self.clone(), key: *key })
            }
        }
    }

    /// Waits for the lease; whoever has it needs it for a call or two of the file system.
    pub(crate) async fn take(&self, key: &Key) -> Lease {
        poll_fn(|context| match self.map().entry(*key) {
            Entry::Occupied(mut taken) => {
                taken.get_mut().push(context.waker().clone());
                Poll::Pending
            }
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Poll::Ready(Lease { leases: self.clone(), key: *key })
            }
        })
        .await
    }

    /// Whether nobody has one.
    pub(crate) fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    fn map(&self) -> MutexGuard<'_, KeyMap<Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // All are woken and race: there are seldom two.
        let waiting = self.leases.map().remove(&self.key);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn one_has_it_and_the_next_is_woken() {
        let leases = Leases::default();
        let (one, other) = (Key::of(b"1"), Key::of(b"2"));
        let held = leases.try_take(&one).unwrap();
        assert!(leases.try_take(&one).is_none() && leases.try_take(&other).is_some());
        let mut waits = pin!(leases.take(&one));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(waits.as_mut().poll(&mut context).is_ready());
        assert!(leases.try_take(&one).is_some(), "the answer was dropped with its lease");
    }
}
