//! State that all worker threads of a process share: a few counters, and access to those of each thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::metric::Page;
use crate::tally::{Tally, Totals};
use crate::traffic::Registry;
use crate::turns::{self, LoopNumbers};
use crate::watch::Hub;

/// Worker processes that died unexpectedly before this one, counted by its master.
static RESPAWNED: AtomicU64 = AtomicU64::new(0);

/// Sets the number of worker processes that died unasked before this one.
pub fn set_respawned(count: u64) {
    RESPAWNED.store(count, Ordering::Relaxed);
}

/// The number of worker processes that died unasked before this one.
pub fn respawned() -> u64 {
    RESPAWNED.load(Ordering::Relaxed)
}

/// Shared by the threads of one worker process.
#[derive(Debug, Default)]
pub struct Shared {
    connections: AtomicU64,
    boundaries: AtomicU64,
    /// The server is about to end.
    is_leaving: AtomicBool,
    /// An operator has clients sent elsewhere.
    is_drained: AtomicBool,
    /// One for each thread there has been.
    tallies: Mutex<Vec<Arc<Tally>>>,
    /// The loop of each thread that is observed.
    loops: Mutex<Vec<Arc<LoopNumbers>>>,
    /// Requests by server and location.
    pub traffic: Registry,
    /// Operators that watch requests.
    pub watch: Hub,
    started: Started,
}

/// When the process began to serve.
#[derive(Debug)]
struct Started(SystemTime);

impl Default for Started {
    fn default() -> Started {
        Started(SystemTime::now())
    }
}

impl Shared {
    /// The next number for `$connection`.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends clients elsewhere from now on, because the server is about to end: connections end with their next response, and
    /// checks of readiness fail. New connections are accepted.
    pub fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// The same for an operator, until it is taken back.
    pub fn set_drained(&self, is_drained: bool) {
        self.is_drained.store(is_drained, Ordering::Relaxed);
    }

    /// Whether an operator has clients sent elsewhere.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Whether clients are to go elsewhere, for either reason.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed) || self.is_drained()
    }

    /// When the process began to serve.
    pub fn started(&self) -> SystemTime {
        self.started.0
    }

    /// The numbers of a thread that starts.
    pub fn new_tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }

    /// The numbers of the loop of a thread.
    pub fn new_loop(&self) -> Arc<LoopNumbers> {
        let numbers = Arc::new(LoopNumbers::default());
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&numbers));
        numbers
    }

    /// Appends what the loops of all threads do.
    pub fn write_loops(&self, page: &mut Page) {
        turns::write(&self.loops.lock().unwrap_or_else(PoisonError::into_inner), page);
    }

    /// The sums over all threads.
    pub fn totals(&self) -> Totals {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(tallies.iter())
    }

    /// The numbers of each thread.
    pub fn totals_of_threads(&self) -> Vec<Totals> {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.iter().map(|tally| Totals::of(std::iter::once(tally))).collect()
    }

    /// Handshakes of TLS with clients: full, resumed, failed.
    pub fn handshakes(&self) -> [u64; 3] {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::handshakes(tallies.iter())
    }

    /// Appends how often clients of HTTP/2 met a limit.
    pub fn write_http2_limits(&self, page: &mut Page) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::write_http2_limits(tallies.iter(), page);
    }

    /// Appends the numbers of connections and requests.
    pub fn write_connections(&self, page: &mut Page) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::write_all(tallies.iter(), page);
    }

    /// The next boundary of a multipart response.
    pub fn next_boundary(&self) -> u64 {
        self.boundaries.fetch_add(1, Ordering::Relaxed) + 1
    }
}
