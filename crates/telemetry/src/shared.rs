//! State that all worker threads of a process share: some counters, and access to the counters of each thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::disks::{self, ThreadDisks};
use crate::metric::Page;
use crate::tally::{Tally, Totals};
use crate::traffic::Registry;
use crate::turns::{self, LoopNumbers};
use crate::watch::Hub;

/// Number of worker processes that exited unexpectedly before this one, counted by the master.
static RESPAWNED: AtomicU64 = AtomicU64::new(0);

/// Sets the number of worker processes that exited unexpectedly before this one.
pub fn set_respawned(count: u64) {
    RESPAWNED.store(count, Ordering::Relaxed);
}

/// Returns the number of worker processes that exited unexpectedly before this one.
pub fn respawned() -> u64 {
    RESPAWNED.load(Ordering::Relaxed)
}

/// State that the threads of a worker process share.
#[derive(Debug, Default)]
pub struct Shared {
    connections: AtomicU64,
    boundaries: AtomicU64,
    /// Whether the server will exit soon.
    is_leaving: AtomicBool,
    /// Whether an operator has drained the server.
    is_drained: AtomicBool,
    /// The counters of each thread that has ever started.
    tallies: Mutex<Vec<Arc<Tally>>>,
    /// The event-loop counters of each observed thread.
    loops: Mutex<Vec<Arc<LoopNumbers>>>,
    /// Numbers of file operations by device, of all observed threads.
    disks: Arc<disks::Devices>,
    /// Numbers of requests by server and location.
    pub traffic: Registry,
    /// The counts of sessions of `stream` by server.
    pub session_traffic: Registry,
    /// Operators that watch requests.
    pub watch: Hub,
    started: Started,
}

/// Time when the process began to serve.
#[derive(Debug)]
struct Started(SystemTime);

impl Default for Started {
    fn default() -> Started {
        Started(SystemTime::now())
    }
}

impl Shared {
    /// Returns the next number for `$connection`.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes clients move to other servers because this server will exit soon: connections are closed after their next
    /// response, and readiness checks fail. New connections are still accepted.
    pub fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Sets whether clients should move to other servers because an operator has drained this server.
    pub fn set_drained(&self, is_drained: bool) {
        self.is_drained.store(is_drained, Ordering::Relaxed);
    }

    /// Whether an operator has drained the server.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Whether clients should move to other servers, for either reason.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed) || self.is_drained()
    }

    /// Returns the time when the process began to serve.
    pub fn started(&self) -> SystemTime {
        self.started.0
    }

    /// Creates the counters of a new thread.
    pub fn new_tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tally));
        tally
    }

    /// Creates the event-loop counters of a thread.
    pub fn new_loop(&self) -> Arc<LoopNumbers> {
        let numbers = Arc::new(LoopNumbers::default());
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&numbers));
        numbers
    }

    /// Returns new device numbers for a thread.
    pub fn new_disks(&self) -> ThreadDisks {
        ThreadDisks::new(&self.disks)
    }

    /// Appends the metrics of devices for all threads.
    pub fn write_disks(&self, page: &mut Page) {
        self.disks.write(page);
    }

    /// Appends the metrics of event loops for all threads.
    pub fn write_loops(&self, page: &mut Page) {
        turns::write(&self.loops.lock().unwrap_or_else(PoisonError::into_inner), page);
    }

    /// Returns the sums over all threads.
    pub fn totals(&self) -> Totals {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Totals::of(tallies.iter())
    }

    /// Returns the numbers of each thread.
    pub fn totals_of_threads(&self) -> Vec<Totals> {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.iter().map(|tally| Totals::of(std::iter::once(tally))).collect()
    }

    /// Returns the numbers of TLS handshakes with clients: full, resumed, failed.
    pub fn handshakes(&self) -> [u64; 3] {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::handshakes(tallies.iter())
    }

    /// Appends how often clients of HTTP/2 exceeded a limit.
    pub fn write_http2_limits(&self, page: &mut Page) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::write_http2_limits(tallies.iter(), page);
    }

    /// Appends the metrics of connections and requests.
    pub fn write_connections(&self, page: &mut Page) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        Tally::write_all(tallies.iter(), page);
    }

    /// Returns the number for the boundary of the next multipart response.
    pub fn next_boundary(&self) -> u64 {
        self.boundaries.fetch_add(1, Ordering::Relaxed) + 1
    }
}
