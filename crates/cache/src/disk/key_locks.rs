//! Locks for changes of the file of a key: one holder at a time, across all threads.
//!
//! A commit renames a file to its final name, and an eviction removes it. Without serialisation, a removal could delete
//! the new file. Readers need no lock: their open files remain valid.

use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use crate::key::{Key, KeyMap};
use crate::mutex::lock;

/// The locks in use, with the wakers of waiting tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyLocks(Arc<Mutex<KeyMap<Vec<Waker>>>>);

/// The right to change the file of one key, until it is dropped.
#[derive(Debug)]
pub(crate) struct KeyLock {
    locks: KeyLocks,
    key: Key,
}

impl KeyLocks {
    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self, key: &Key) -> Option<KeyLock> {
        match lock(&self.0).entry(*key) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Some(KeyLock { locks: self.clone(), key: *key })
            }
        }
    }

    /// Waits for the lock; the holder releases it after a few file system calls.
    pub(crate) async fn lock(&self, key: &Key) -> KeyLock {
        poll_fn(|context| match lock(&self.0).entry(*key) {
            Entry::Occupied(mut taken) => {
                taken.get_mut().push(context.waker().clone());
                Poll::Pending
            }
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Poll::Ready(KeyLock { locks: self.clone(), key: *key })
            }
        })
        .await
    }

    /// Whether no lock is held.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // All waiting tasks are woken and compete for the lock. More than one is rare.
        let waiting = lock(&self.locks.0).remove(&self.key);
        debug_assert!(waiting.is_some(), "a lock is released once");
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn one_task_holds_the_lock_and_the_next_is_woken() {
        let locks = KeyLocks::default();
        let (one, other) = (Key::of(b"1"), Key::of(b"2"));
        let held = locks.try_lock(&one).unwrap();
        assert!(locks.try_lock(&one).is_none() && locks.try_lock(&other).is_some());
        let mut waits = pin!(locks.lock(&one));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(waits.as_mut().poll(&mut context).is_ready());
        assert!(locks.try_lock(&one).is_some(), "dropping the output of the future released the lock");
    }
}
