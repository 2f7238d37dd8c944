//! What all worker threads of a process share: a few counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::Ledger;
use crate::process::notes::Written;

/// Shared by the threads of one worker process.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    connections: AtomicU64,
    boundaries: AtomicU64,
    /// Memory given back when the system was short of it.
    pub(crate) memory: Ledger,
    /// What engines had to say.
    pub(crate) notes: Written,
}

impl Shared {
    /// The next number for `$connection`.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The next boundary of a multipart answer.
    pub(crate) fn next_boundary(&self) -> u64 {
        self.boundaries.fetch_add(1, Ordering::Relaxed) + 1
    }
}
