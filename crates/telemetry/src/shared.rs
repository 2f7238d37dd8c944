//! State that all worker threads of a process share: a few counters, and access to those of each thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::tally::{Tally, Totals};

/// Shared by the threads of one worker process.
#[derive(Debug, Default)]
pub struct Shared {
    connections: AtomicU64,
    boundaries: AtomicU64,
    /// One for each thread there has been.
    tallies: Mutex<Vec<Arc<Tally>>>,
}

impl Shared {
    /// The next number for `$connection`.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The numbers of a thread that starts.
    pub fn new_tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }

    /// The sums over all threads.
    pub fn totals(&self) -> Totals {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(tallies.iter())
    }

    /// Appends how often clients of HTTP/2 met a limit, in the text format of Prometheus.
    pub fn write_http2_limits(&self, page: &mut String) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::write_http2_limits(tallies.iter(), page);
    }

    /// The next boundary of a multipart response.
    pub fn next_boundary(&self) -> u64 {
        self.boundaries.fetch_add(1, Ordering::Relaxed) + 1
    }
}
