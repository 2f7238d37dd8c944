//! The synchronisation types of shared state: the standard library's, or loom's in its model.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
