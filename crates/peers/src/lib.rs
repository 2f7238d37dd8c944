//! The servers of an upstream block, and the selection of the next server.
//!
//! [`Group`] contains the configuration of its servers and their state, which all threads share ([`table`]). A caller begins a
//! [`Selection`] with an [`Ask`] and gets [`Pick`]s from it with nginx's methods ([`balance`], [`ring`]). It reports the
//! outcome of each pick. [`Upstreams`] contains all groups of a configuration. This crate has no requests and no log: the
//! caller computes the values of the [`Ask`] from its request or connection, and writes the log lines. Its only connections are
//! those to name servers.
//!
//! Crate `upstream` has the connections. [`resolve`] resolves names through [`Group::names`] and [`Group::put`]; until the
//! first result, a group that has only names has no server ([`NoPeer::Unresolved`]).
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `telemetry`, `site`.
//!
//! | module | content |
//! |---|---|
//! | [`groups`], [`known`] | the groups of a configuration; addresses for the next process |
//! | [`lines`], [`address`], [`change`] | the directives of the block; addresses of servers; changes of servers at run time |
//! | [`table`], [`counts`], [`metrics`] | the state of the servers; their numbers; the rows of the numbers |
//! | [`health`] | active health checks and their results |
//! | [`queue`] | requests that wait for a server |
//! | [`balance`], [`ring`], [`sticky`] | the next server; consistent hashing; IDs of servers, and the table of sessions |
//! | [`resolve`] | names to addresses: `system` (configured names, on a helper thread) with `ttl` (their lifetime), `unresolved` (why a name has no address), `resolver` (names from variables, and servers with `resolve`) over `query` and `wire`, `refresher` (resolves the names of the groups again) |

#![forbid(unsafe_code)]

pub mod address;
mod balance;
pub mod change;
pub mod counts;
mod groups;
pub mod health;
mod known;
pub mod lines;
pub mod metrics;
pub mod queue;
pub mod resolve;
mod ring;
pub mod sticky;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use conf::Span;
use io::op::PeerAddr;

use self::balance::{Choices, Walk};
use self::counts::{Counts, Tried};
pub use self::groups::Upstreams;
use self::health::{Check, CheckCounts, Health};
pub use self::lines::Keepalive;
use self::lines::{Accepts, Address, Draft, FoundAddress, Line, Method, Named, Source};
use self::queue::{Overflow, QueueLimits, QueueState, Queued};
use self::sticky::{Learned, Sid, Sticky, StickyKind};
use self::table::{GroupState, PeerId, Shape, Times};
use crate::resolve::resolver::Resolver;
use site::address::ClientNetwork;
use site::shared_zone::{self, Zone};
use site::template::Template;
use telemetry::time_zone::since_1970;

/// Kind of the zone that `zone` of an upstream block declares. Groups store their state themselves; the zone only reserves the
/// name.
#[derive(Debug)]
pub struct ServersZone;

impl shared_zone::ZoneKind for ServersZone {
    type Content = ();

    fn empty(&self, _: u64) {}

    fn continues(&self, _: &ServersZone) -> bool {
        true
    }
}

/// The servers of an upstream block, or of the implicit group of a literal address. Shared by threads.
#[derive(Debug)]
pub struct Group {
    /// Name of the block, or the configured host.
    pub name: String,
    /// Port of an implicit group; `None` for a block.
    pub port: Option<u16>,
    /// `keepalive` and related directives; `None` disables keep-alive connections.
    pub keepalive: Option<Keepalive>,
    /// `resolver` of the block; `None` means that of `http`.
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout` of the block.
    pub resolver_timeout: Option<std::time::Duration>,
    lines: Arc<[Line]>,
    /// Whether any line is a name.
    has_names: bool,
    method: Method,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `queue`
    pub queue: Option<QueueLimits>,
    /// `state`: the file that stores changes.
    pub state_file: Option<PathBuf>,
    /// The checks of its servers.
    checks: Mutex<Vec<Check>>,
    zone: Option<Arc<Zone<ServersZone>>>,
    state: OnceLock<Arc<Shared>>,
}

/// The part of a server's address that is known before its name is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// A TCP port.
    Port(u16),
    /// The path of a UNIX-domain socket.
    Socket(&'a Path),
    /// A service, whose SRV records contain the ports.
    Service(&'a str),
}

/// State that threads share and that a configuration passes to its successor.
struct Shared {
    state: Mutex<GroupState>,
    /// Advances after each result of name resolution.
    updates: rt::watch::Publisher,
}

impl Shared {
    fn new(state: GroupState) -> Arc<Shared> {
        let (updates, _) = rt::watch::channel(0);
        Arc::new(Shared { state: Mutex::new(state), updates })
    }

    /// Locks the state. It ignores poisoning, because a panic cannot leave the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes waiting requests.
    fn update(&self, change: impl FnOnce(&mut GroupState)) {
        // The lock also ensures that only one thread publishes at a time.
        let mut state = self.lock();
        change(&mut state);
        state.queue.wake_first();
        self.updates.publish(self.updates.value() + 1);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl Group {
    /// Creates the group of an upstream block.
    pub fn of_block(draft: Draft) -> Group {
        let keepalive = Some(draft.keepalive).filter(|keepalive| keepalive.idle_max > 0);
        Group {
            name: draft.name,
            port: None,
            keepalive,
            resolver: draft.resolver,
            resolver_timeout: draft.resolver_timeout,
            has_names: draft.lines.iter().any(|line| line.named().is_some()),
            lines: draft.lines.into(),
            method: draft.method.unwrap_or_default(),
            sticky: draft.sticky,
            queue: draft.queue,
            state_file: draft.state,
            checks: Mutex::default(),
            zone: draft.zone,
            state: OnceLock::new(),
        }
    }

    /// Creates the implicit group of an address: one server, and no connection is kept alive.
    pub fn of_address(url: &address::Url, position: &Span) -> Group {
        let text = if url.has_port { format!("{}:{}", url.host, url.port) } else { url.host.clone() };
        let line = Line { position: Some(position.clone()), ..Line::new(&text, url) };
        Group {
            name: url.host.clone(),
            port: Some(url.port),
            keepalive: None,
            resolver: None,
            resolver_timeout: None,
            has_names: line.named().is_some(),
            lines: Arc::new([line]),
            method: Method::RoundRobin,
            sticky: None,
            queue: None,
            state_file: None,
            checks: Mutex::default(),
            zone: None,
            state: OnceLock::new(),
        }
    }

    /// Returns the template of [`Ask::key`], if the method needs a key.
    pub fn key(&self) -> Option<&Template> {
        match &self.method {
            Method::Hash(key) | Method::Ring(key) => Some(key),
            _ => None,
        }
    }

    /// Begins the selection for one request or connection.
    pub fn select(self: &Arc<Group>, ask: Ask) -> Selection {
        let Ask { client, key, session } = ask;
        let hint = match (self.sticky.as_ref().map(|sticky| &sticky.kind), &session) {
            (Some(StickyKind::Learn(learn)), Some(session)) => learn.find(session, wall_ms()),
            _ => session.clone(),
        };
        self.selection(Choices::new(self.walk(client, key), hint), session)
    }

    fn selection(self: &Arc<Group>, choices: Choices, session: Option<Vec<u8>>) -> Selection {
        let tries = self.state().lock().tries();
        Selection { group: Arc::clone(self), choices, tries, session }
    }

    fn walk(&self, client: Option<IpAddr>, key: Vec<u8>) -> Walk {
        match &self.method {
            Method::RoundRobin => Walk::Rounds,
            Method::LeastConn => Walk::LeastConn,
            &Method::LeastTime { full_response, inflight } => Walk::LeastTime { full_response, inflight },
            Method::IpHash => Walk::address(client),
            Method::Hash(_) => Walk::key(key),
            Method::Ring(_) => Walk::Ring { key, at: None },
            &Method::Random { two } => Walk::Random { two },
        }
    }

    /// Returns the port or socket of each configured server, with the position of its directive.
    pub fn destinations(&self) -> impl Iterator<Item = (Destination<'_>, Option<&Span>)> {
        self.lines.iter().map(|line| {
            let destination = match &line.source {
                Source::Fixed(Address { address: PeerAddr::Inet(address), .. }) => {
                    Destination::Port(address.port())
                }
                Source::Fixed(Address { address: PeerAddr::Unix(path), .. }) => Destination::Socket(path),
                Source::Named(Named { service: Some(service), .. }) => Destination::Service(service),
                Source::Named(named) => Destination::Port(named.port),
            };
            (destination, line.position.as_ref())
        })
    }

    /// Returns the names to resolve.
    pub fn names(&self) -> impl Iterator<Item = &Named> {
        self.names_with_positions().map(|(named, _)| named)
    }

    /// Returns the names to resolve, with their locations in the configuration.
    pub fn names_with_positions(&self) -> impl Iterator<Item = (&Named, Option<&Span>)> {
        self.lines.iter().filter_map(|line| Some((line.named()?, line.position.as_ref())))
    }

    /// Sets the addresses of a name; an empty list if it is known to have none. Requests in flight continue. `changed` is called
    /// before a request can use the addresses.
    pub fn put(&self, named: &Named, found: Vec<FoundAddress>, changed: impl FnOnce()) {
        self.state().update(|state| {
            state.put(named, found);
            changed();
        });
    }

    /// Records that a name cannot be resolved at present. Its previous addresses remain in use. Requests no longer wait for a name
    /// that never had addresses.
    pub fn put_unresolved(&self, named: &Named) {
        self.state().update(|state| state.put_unresolved(named));
    }

    /// Whether the group has no server only because the first lookups of its names have not ended.
    pub fn awaits_names(&self) -> bool {
        self.has_names && self.state().lock().awaits_names()
    }

    /// Waits until the group has a server, or its lookups have failed.
    pub async fn wait_resolved(&self) {
        let shared = self.state();
        let updates = shared.updates.watch();
        let mut seen = updates.value();
        // A group lives as long as its requests, so the publisher exists while one waits.
        while shared.lock().awaits_names() {
            match updates.above(seen).await {
                Ok(value) => seen = value,
                Err(rt::watch::Closed) => return,
            }
        }
    }

    /// Returns the counter of the results of name resolution, which callers can wait for.
    pub fn updates(&self) -> rt::watch::Watcher {
        self.state().updates.watch()
    }

    /// Returns the addresses of all servers.
    pub fn addresses(&self) -> Vec<String> {
        let state = self.state().lock();
        state.sets.iter().flat_map(|set| &set.peers).map(|peer| peer.name.to_string()).collect()
    }

    /// Returns the group's name in metrics, with the port of an implicit group.
    pub fn label(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns the name of its shared zone.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_ref().map(|zone| zone.name())
    }

    /// Returns the servers and their statistics.
    pub fn peers(&self, now: Instant) -> Vec<PeerState> {
        let mut state = self.state().lock();
        let moment = state.moment(now);
        let sets = [(&state.sets[0], false), (&state.sets[1], true)];
        let all = sets.into_iter().flat_map(|(set, backup)| set.peers.iter().map(move |peer| (peer, backup)));
        all.map(|(peer, backup)| PeerState::of(peer, backup, moment)).collect()
    }

    /// Returns the numbers of the queue; `None` without one.
    pub fn queue_state(&self) -> Option<QueueState> {
        Some(self.state().lock().queue.state(self.queue?))
    }

    /// Whether sessions use a cookie, which a filter adds to responses.
    pub fn sets_cookies(&self) -> bool {
        matches!(self.sticky, Some(Sticky { kind: StickyKind::Cookie(_), .. }))
    }

    /// Starts with the state of the same group in the previous configuration: the complete state if both are in the same zone,
    /// otherwise only the addresses of names.
    fn begin(&self, before: Option<&Group>) {
        let before = before.and_then(|before| Some((before, before.state.get()?)));
        self.state.get_or_init(|| match before {
            Some((group, state)) if self.has_zone_of(group) => {
                state.lock().reshape(self.shape());
                Arc::clone(state)
            }
            Some((_, state)) => {
                let before = state.lock();
                let shared = self.fresh(before.found());
                shared.lock().take_counts(&before);
                shared
            }
            None => self.fresh(&BTreeMap::new()),
        });
    }

    /// Whether both groups are in the same zone.
    fn has_zone_of(&self, before: &Group) -> bool {
        self.zone.as_ref().zip(before.zone.as_ref()).is_some_and(|(zone, before)| zone.is_same(before))
    }

    fn state(&self) -> &Arc<Shared> {
        self.state.get_or_init(|| self.fresh(&BTreeMap::new()))
    }

    fn fresh(&self, found: &BTreeMap<Named, Vec<FoundAddress>>) -> Arc<Shared> {
        Shared::new(GroupState::new(self.shape(), found))
    }

    fn shape(&self) -> Shape {
        Shape {
            lines: Arc::clone(&self.lines),
            with_sids: self.sticky.is_some(),
            with_ring: matches!(self.method, Method::Ring(_)),
            checks: self.checks.lock().unwrap_or_else(PoisonError::into_inner).as_slice().into(),
        }
    }
}

/// Availability of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Accepts all requests.
    Up,
    /// Accepts requests of existing sessions (`drain`).
    Draining,
    /// Accepts no requests, by configuration.
    Down,
    /// Accepts no requests until `fail_timeout` has passed.
    Unavailable,
    /// Accepts no requests until it has passed its first check.
    Checking,
    /// Accepts no requests until it passes checks again.
    Unhealthy,
}

impl Condition {
    /// Whether requests may be sent to the server.
    pub fn is_up(self) -> bool {
        matches!(self, Condition::Up | Condition::Draining)
    }

    /// Returns nginx's name of the state.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Up => "up",
            Condition::Draining => "draining",
            Condition::Down => "down",
            Condition::Unavailable => "unavail",
            Condition::Checking => "checking",
            Condition::Unhealthy => "unhealthy",
        }
    }
}

/// State of a server at one time.
#[derive(Clone, Debug)]
pub struct PeerState {
    /// ID of the server.
    pub id: u32,
    /// Name as shown in `$upstream_addr`.
    pub name: Arc<str>,
    /// Address as configured.
    pub server: Arc<str>,
    /// `backup`
    pub backup: bool,
    /// `weight`
    pub weight: i64,
    /// `max_conns`; 0 means no limit.
    pub max_conns: u64,
    /// `max_fails`
    pub max_fails: u64,
    /// `fail_timeout`, in seconds.
    pub fail_timeout: i64,
    /// `slow_start`, in milliseconds.
    pub slow_start_ms: i64,
    /// Availability of the server.
    pub condition: Condition,
    /// Number of requests in flight.
    pub active: u64,
    /// Statistics.
    pub counts: Box<Counts>,
    /// Numbers of the checks; `None` without a check.
    pub checks: Option<CheckCounts>,
}

impl PeerState {
    fn of(peer: &table::Peer, backup: bool, now: table::Moment) -> PeerState {
        let condition = match peer.accepts {
            Accepts::Nothing => Condition::Down,
            _ if peer.checks.health == Health::Unhealthy => Condition::Unhealthy,
            _ if peer.checks.health == Health::Checking => Condition::Checking,
            _ if peer.has_failed(now) => Condition::Unavailable,
            Accepts::Sessions => Condition::Draining,
            Accepts::All => Condition::Up,
        };
        PeerState {
            id: peer.id,
            name: Arc::clone(&peer.name),
            server: Arc::clone(&peer.server),
            backup,
            weight: peer.weight,
            max_conns: peer.max_conns,
            max_fails: peer.max_fails,
            fail_timeout: peer.fail_timeout,
            slow_start_ms: peer.slow_start_ms,
            condition,
            active: peer.conns,
            counts: peer.counts.clone(),
            checks: peer.checks.are_made().then_some(peer.checks.counts),
        }
    }
}

fn wall_ms() -> i64 {
    let (seconds, ms) = since_1970(rt::wall());
    seconds.saturating_mul(1000).saturating_add(ms.into())
}

/// The values that a server is selected by.
#[derive(Debug, Default)]
pub struct Ask {
    /// Address of the client, for `ip_hash`; `None` for a client without one, such as an active health check.
    pub client: Option<IpAddr>,
    /// Value of [`Group::key`]; empty if the group has none.
    pub key: Vec<u8>,
    /// Session of the client: the first non-empty variable of [`Sticky::lookup`]. A group without `sticky` ignores it.
    pub session: Option<Vec<u8>>,
}

/// The selection of servers for one request or connection.
#[derive(Debug)]
pub struct Selection {
    group: Arc<Group>,
    choices: Choices,
    tries: u32,
    /// The client's session, if the group has sessions.
    session: Option<Vec<u8>>,
}

/// Reason why no server can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// All servers are down, failed, full, or already tried (`no live upstreams`).
    Busy,
    /// The group has no server, because a name is not resolved yet.
    Unresolved,
}

/// Outcome of a try, by nginx's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// The server responded.
    Responded,
    /// The server responded with a status for which another server is tried, but which is not a failure (403 and 404).
    Passed,
    /// The try failed.
    Failed,
}

impl Selection {
    /// Selects the next server. With `sticky cookie`, the caller sets a cookie with its ID ([`Pick::sid`]).
    pub fn next_peer(&mut self) -> Result<Pick, NoPeer> {
        self.choose(rt::now())
    }

    /// Selects the first server of a request. With `queue`, and if no server is free or other requests wait, the request can wait
    /// ([`Selection::wait`]).
    pub fn first_peer(&mut self) -> Result<Pick, NoPeer> {
        if self.group.queue.is_none() {
            return self.next_peer();
        }
        if !self.group.state().lock().queue.is_empty() {
            return Err(NoPeer::Busy);
        }
        // A selection without a result may have begun to look at the backups.
        let before = self.choices.clone();
        self.next_peer().inspect_err(|_| self.choices = before)
    }

    /// Adds the request to the queue of the group; `None` if the group has none.
    pub fn wait(&self, client: ClientNetwork) -> Option<Result<Queued, Overflow>> {
        Queued::new(&self.group, client)
    }

    /// Selects a server for a request of the queue, if it is the first one.
    pub fn peer_in_turn(&mut self, queued: &Queued) -> Result<Pick, NoPeer> {
        let before = self.choices.clone();
        self.choose_for(rt::now(), Some(queued)).inspect_err(|_| self.choices = before)
    }

    fn choose(&mut self, now: Instant) -> Result<Pick, NoPeer> {
        self.choose_for(now, None)
    }

    fn choose_for(&mut self, now: Instant, queued: Option<&Queued>) -> Result<Pick, NoPeer> {
        let shared = Arc::clone(self.group.state());
        let mut state = shared.lock();
        if queued.is_some_and(|queued| !state.queue.is_first(queued.key)) {
            return Err(NoPeer::Busy);
        }
        let moment = state.moment(now);
        let Some(index) = state.choose(&mut self.choices, moment) else {
            return Err(if state.awaits_names() { NoPeer::Unresolved } else { NoPeer::Busy });
        };
        if queued.is_some() {
            state.queue.take_first();
        }
        let peer = &mut state.sets[self.choices.set].peers[index];
        peer.counts.choose(now);
        Ok(Pick {
            address: peer.address.clone(),
            name: Arc::clone(&peer.name),
            server: Arc::clone(&peer.server),
            sid: peer.sid.clone(),
            id: peer.id,
            since: now,
            header_ms: None,
            created: None,
            counts_waiting: matches!(self.group.method, Method::LeastTime { inflight: true, .. }),
            group: Arc::clone(&self.group),
            shared: Some(Arc::clone(&shared)),
        })
    }

    /// Records the arrival of the header section of the response: for `least_time`, and for the sessions of `sticky learn`.
    /// `created` is the session that the response creates: the first non-empty variable of [`create`](sticky::Learn::create). Returns the result if
    /// the session is stored now.
    pub fn header_received(&mut self, pick: &mut Pick, created: Option<Vec<u8>>) -> Option<Learned> {
        let mut learned = None;
        if let Some(Sticky { kind: StickyKind::Learn(learn), .. }) = &self.group.sticky {
            pick.created = created.map(|session| (session, true));
            if let (None, Some(session)) = (&pick.created, &self.session) {
                pick.created = Some((session.clone(), false));
            }
            if learn.at_header
                && let Some((session, is_new)) = pick.created.take()
            {
                learned = Some(learn.learn(&session, is_new, &pick.sid, wall_ms()));
            }
        }
        pick.note_header(rt::now());
        learned
    }

    /// Reports the outcome of a try. Returns whether the server becomes unavailable now, which nginx logs as `upstream server
    /// temporarily disabled`.
    pub fn report(&mut self, pick: Pick, outcome: TryOutcome, tried: &Tried) -> bool {
        if let (TryOutcome::Responded, Some(Sticky { kind: StickyKind::Learn(learn), .. })) =
            (outcome, &self.group.sticky)
            && let Some((session, is_new)) = &pick.created
        {
            learn.learn(session, *is_new, &pick.sid, wall_ms());
        }
        self.record_outcome(pick, outcome, tried, rt::now())
    }

    fn record_outcome(&mut self, mut pick: Pick, outcome: TryOutcome, tried: &Tried, now: Instant) -> bool {
        let Some(shared) = pick.shared.take() else { return false };
        let mut state = shared.lock();
        self.tries = if state.sets[0].is_single { 0 } else { self.tries.saturating_sub(1) };
        pick.release(&mut state, Some(outcome), Some(tried), now)
    }

    /// Returns the number of remaining tries, including the one in flight.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Limits the number of further tries (`proxy_next_upstream_tries`).
    pub fn limit_tries(&mut self, most: u32) {
        self.tries = self.tries.min(most);
    }

    /// Returns the group of the servers.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

/// A chosen server. Until this is dropped, it counts as a request in flight at the server.
#[derive(Debug)]
pub struct Pick {
    /// Address of the server.
    pub address: PeerAddr,
    /// Name as shown in `$upstream_addr`.
    pub name: Arc<str>,
    /// Address of the server as configured (`$upstream_last_server_name`).
    pub server: Arc<str>,
    sid: Sid,
    id: PeerId,
    /// Time of the choice.
    since: Instant,
    /// Time in ms from the choice to the header section of the response; only for `least_time`.
    header_ms: Option<u64>,
    /// Session of the response, and whether it is new.
    created: Option<(Vec<u8>, bool)>,
    /// Whether the try is counted in [`Times::inflight`].
    counts_waiting: bool,
    group: Arc<Group>,
    /// State that counts the try; `None` after the end of the try.
    shared: Option<Arc<Shared>>,
}

impl Pick {
    /// Returns the ID of the server in cookies and routes; empty without `sticky`.
    pub fn sid(&self) -> &Sid {
        &self.sid
    }

    /// Ends the try for a reason that is not the server's fault.
    pub fn abandon(mut self, tried: &Tried) {
        if let Some(shared) = self.shared.take() {
            self.release(&mut shared.lock(), None, Some(tried), rt::now());
        }
    }

    /// Records the arrival of the header section of the response, if the method uses times.
    fn note_header(&mut self, now: Instant) {
        let Method::LeastTime { full_response, inflight } = self.group.method else { return };
        let waited = self.waited_ms(now);
        self.header_ms = Some(waited);
        let Some(shared) = self.shared.as_ref().filter(|_| inflight && !full_response) else { return };
        let mut state = shared.lock();
        let moment = state.moment(now);
        if let Some(peer) = state.peer(self.id) {
            Times::follow(&mut peer.times.header, waited);
            peer.times.end(waited, moment);
            self.counts_waiting = false;
        }
    }

    fn waited_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64
    }

    /// Ends the try in the state of the servers: its count, its times, and failures.
    fn release(
        &mut self,
        state: &mut GroupState,
        outcome: Option<TryOutcome>,
        tried: Option<&Tried>,
        now: Instant,
    ) -> bool {
        let moment = state.moment(now);
        if let Method::LeastTime { full_response, inflight } = self.group.method
            && let Some(peer) = state.peer(self.id)
        {
            let waited = self.waited_ms(now);
            if self.counts_waiting {
                peer.times.end(waited, moment);
            }
            // Only successful tries count, so that a server that fails fast does not appear fast.
            if let (Some(TryOutcome::Responded), Some(header_ms)) = (outcome, self.header_ms) {
                Times::follow(&mut peer.times.response, waited);
                if full_response || !inflight {
                    Times::follow(&mut peer.times.header, header_ms);
                }
            }
        }
        let failed = outcome.map(|outcome| outcome == TryOutcome::Failed);
        state.release(self.id, failed, tried, moment)
    }
}

impl Drop for Pick {
    /// Ends the count of an abandoned try, which is neither a success nor a failure of the server.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            // The system time instead of the turn's time: a pick may be dropped when the runtime no longer exists.
            self.release(&mut shared.lock(), None, None, Instant::now());
        }
    }
}
