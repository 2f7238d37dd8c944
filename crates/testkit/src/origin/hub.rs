//! The shared state of the threads of one origin: counters, recorded requests, faults, the sockets to end.
//!
//! [`Stats`] are the counters of a test. A fault is something that must not happen whatever the test is about (a
//! request that breaks the protocol, a handler that panicked); the origin brings it up when it is dropped.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use crate::gate::{Stop, lock, wait_on};
use crate::origin::request::OriginRequest;
use crate::socket::Socket;
use crate::wait::Deadline;

/// How many requests are kept; a load test sends more, and those are only counted.
const RECORDED_MAX: usize = 100_000;

/// How long the end of an origin waits for its threads: 10 seconds, for a handler that the test blocked.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The counters of an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Accepted connections.
    pub connections: u64,
    /// Connections that are open.
    pub connections_open: u64,
    /// The most connections that were open at once.
    pub connections_max: u64,
    /// Requests with a complete header section.
    pub requests: u64,
    /// Requests that are being read or answered.
    pub in_flight: u64,
    /// The most requests that were in flight at once.
    pub in_flight_max: u64,
    /// Replies sent completely.
    pub replies: u64,
    /// Replies that the other side did not take to the end.
    pub aborted: u64,
    /// Connections that ended inside a request.
    pub cut_requests: u64,
    /// Bytes that were handed to the kernel.
    pub bytes_sent: u64,
    /// Requests for each target.
    pub targets: BTreeMap<String, u64>,
}

impl Stats {
    /// How many requests there were for a target.
    pub fn of(&self, target: &str) -> u64 {
        self.targets.get(target).copied().unwrap_or(0)
    }
}

/// What changes under the hub's lock.
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

    /// Counts a request after its header section, gives it its number, and keeps it.
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

    /// Adds the bytes after its header section to the kept request.
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

    /// Ends all connections, at once and without a word to the other side.
    pub(crate) fn end_connections(&self) {
        let sockets: Vec<Arc<Socket>> = lock(&self.state).sockets.iter().filter_map(Weak::upgrade).collect();
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends all threads and waits for them; `false` when one does not end.
    pub(crate) fn end(&self) -> bool {
        self.stop.stop();
        self.end_connections();
        wait_on(&self.state, &self.changed, Deadline::after(END_LIMIT), |state| state.threads == 0)
    }
}
