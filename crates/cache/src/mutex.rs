//! [`lock`], for all mutexes of this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A poisoned lock is not an error: every state that a panicking thread can leave is valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
