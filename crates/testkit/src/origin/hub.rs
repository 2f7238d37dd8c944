//! Shared state of the threads of one origin: counters, recorded requests, faults, and the sockets to close.
//!
//! [`Stats`] are the counters for tests. A fault is an event that is an error in any test (a request that breaks the
//! protocol, a panic of the handler); the origin reports faults when it is dropped.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use crate::gate::{Stop, lock, wait_on};
use crate::origin::request::OriginRequest;
use crate::socket::Socket;
use crate::wait::Deadline;

/// Maximum number of recorded requests; further ones, as in load tests, are only counted.
const RECORDED_MAX: usize = 100_000;

/// Maximum time that the drop of an origin waits for its threads: 10 seconds. A handler that the test has blocked would
/// wait for ever.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The counters of an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of open connections.
    pub connections_open: u64,
    /// Maximum number of concurrently open connections so far.
    pub connections_max: u64,
    /// Number of requests with a complete header section.
    pub requests: u64,
    /// Number of requests being read or responded to.
    pub in_flight: u64,
    /// Maximum number of requests in flight so far.
    pub in_flight_max: u64,
    /// Number of replies sent completely.
    pub replies: u64,
    /// Number of replies that the peer did not read completely.
    pub aborted: u64,
    /// Number of connections that ended within a request.
    pub cut_requests: u64,
    /// Number of bytes passed to the kernel.
    pub bytes_sent: u64,
    /// Number of requests for each target.
    pub targets: BTreeMap<String, u64>,
}

impl Stats {
    /// Returns the number of requests for a target.
    pub fn of(&self, target: &str) -> u64 {
        self.targets.get(target).copied().unwrap_or(0)
    }
}

/// The state under the hub's lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) stats: Stats,
    requests: Vec<OriginRequest>,
    faults: Vec<String>,
    sockets: Vec<Weak<Socket>>,
    threads: u64,
}

/// The shared state of the threads of one origin.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) stop: Stop,
}

impl Hub {
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    pub(crate) fn stats(&self) -> Stats {
        lock(&self.state).stats.clone()
    }

    pub(crate) fn requests(&self) -> Vec<OriginRequest> {
        lock(&self.state).requests.clone()
    }

    pub(crate) fn forget_requests(&self) {
        self.update(|state| {
            state.requests.clear();
            state.stats.targets.clear();
        });
    }

    pub(crate) fn wait_for(&self, deadline: Deadline, mut done: impl FnMut(&Stats) -> bool) -> bool {
        wait_on(&self.state, &self.changed, deadline, |state| done(&state.stats))
    }

    /// Counts a request after its header section, assigns its number, and records it.
    pub(crate) fn record(&self, request: &mut OriginRequest) {
        self.update(|state| {
            let stats = &mut state.stats;
            stats.requests += 1;
            stats.in_flight += 1;
            stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
            *stats.targets.entry(request.target.clone()).or_default() += 1;
            request.sequence = stats.requests;
            if state.requests.len() < RECORDED_MAX {
                state.requests.push(request.clone());
            }
        });
    }

    /// Adds the body and trailers to the recorded request.
    pub(crate) fn record_body(&self, request: &OriginRequest) {
        if request.body.is_empty() && request.trailers.is_empty() {
            return;
        }
        self.update(|state| {
            let kept = state.requests.iter_mut().rev().find(|kept| kept.sequence == request.sequence);
            if let Some(kept) = kept {
                *kept = request.clone();
            }
        });
    }

    pub(crate) fn fault(&self, what: String) {
        self.update(|state| state.faults.push(what));
    }

    pub(crate) fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).faults)
    }

    /// Counts a connection and returns its number.
    pub(crate) fn connected(&self, socket: &Arc<Socket>) -> u64 {
        let mut number = 0;
        self.update(|state| {
            state.threads += 1;
            state.sockets.retain(|known| known.strong_count() > 0);
            state.sockets.push(Arc::downgrade(socket));
            let stats = &mut state.stats;
            stats.connections += 1;
            stats.connections_open += 1;
            stats.connections_max = stats.connections_max.max(stats.connections_open);
            number = stats.connections;
        });
        number
    }

    pub(crate) fn disconnected(&self) {
        self.update(|state| {
            state.threads -= 1;
            state.stats.connections_open -= 1;
        });
    }

    /// Closes all connections immediately, without notice to the peers.
    pub(crate) fn end_connections(&self) {
        let sockets: Vec<Arc<Socket>> = lock(&self.state).sockets.iter().filter_map(Weak::upgrade).collect();
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends all threads and waits for them; returns false if one does not end.
    pub(crate) fn end(&self) -> bool {
        self.stop.stop();
        self.end_connections();
        wait_on(&self.state, &self.changed, Deadline::after(END_LIMIT), |state| state.threads == 0)
    }
}
