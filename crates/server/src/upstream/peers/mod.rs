//! Whom a request goes to: the servers of an upstream block, and which of them is next.

use std::sync::Arc;

use io::op::PeerAddr;

use crate::request::Request;

/// The servers of an upstream block, or of the implicit one of an address that was written. Threads share it.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Addresses with their names.
    pub(crate) servers: Vec<(PeerAddr, Arc<str>)>,
    /// `keepalive` and its like; `None` keeps no connection.
    pub(crate) keepalive: Option<Keepalive>,
}

/// What of idle connections to a group is kept by each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// Idle connections at most (`keepalive`).
    pub(crate) idle_max: usize,
    /// Whether locations do not share them (the implicit default).
    pub(crate) local: bool,
    /// `keepalive_requests`
    pub(crate) requests: u64,
    /// `keepalive_time`
    pub(crate) time: std::time::Duration,
    /// `keepalive_timeout`
    pub(crate) timeout: std::time::Duration,
}

impl Group {
    /// Begins to choose for one request.
    pub(crate) fn select(self: &Arc<Group>, _request: &Request) -> Selection {
        Selection { group: Arc::clone(self), next: 0 }
    }
}

/// The choices that are made for one request.
pub(crate) struct Selection {
    group: Arc<Group>,
    next: usize,
}

/// A server that was chosen; counts as a connection of it until it is dropped.
pub(crate) struct Pick {
    /// Where it is.
    pub(crate) address: PeerAddr,
    /// As `$upstream_addr` has it.
    pub(crate) name: Arc<str>,
    /// The name of the server as it was written (`$upstream_last_server_name`).
    pub(crate) server: Arc<str>,
}

/// What became of a try, as nginx counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It answered.
    Answered,
    /// It answered with a status that another one is asked for: no fault of it (403 and 404).
    Passed,
    /// It failed.
    Failed,
}

/// No server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPeer;

impl Selection {
    /// The next server.
    pub(crate) fn next(&mut self, _request: &mut Request) -> Result<Pick, NoPeer> {
        let (address, name) = self.group.servers.get(self.next).ok_or(NoPeer)?;
        self.next += 1;
        Ok(Pick { address: address.clone(), name: Arc::clone(name), server: Arc::clone(name) })
    }

    /// Tells what became of a try.
    pub(crate) fn report(&mut self, _pick: Pick, _outcome: Outcome) {}

    /// Tries that are left, the one under way counted.
    pub(crate) fn tries(&self) -> u32 {
        (self.group.servers.len() + 1 - self.next) as u32
    }
}
