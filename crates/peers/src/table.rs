//! State of the servers of a group: requests in flight and failures.
//!
//! Each group has one [`GroupState`], which all threads share under one lock with short critical sections. No function here waits, logs
//! or uses a request; the time is an argument. [`super::balance`] selects the next server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use io::op::PeerAddr;

use super::counts::{Counts, Tried};
use super::health::{Check, PeerChecks};
use super::lines::{Accepts, Address, FoundAddress, Line, Named, Source};
use super::queue::WaitQueue;
use super::ring::Ring;
use super::sticky::Sid;

/// Unique ID of a server in its group, also among removed servers.
pub(super) type PeerId = u32;

/// A time since the first request of the group: in seconds for the rules of failures, as in nginx, and in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) seconds: i64,
    pub(super) ms: i64,
}

/// A time before all other times.
const NEVER: i64 = i64::MIN / 4;

/// One address of a server.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) address: PeerAddr,
    pub(super) name: Arc<str>,
    /// Address as configured; for an SRV record its target.
    pub(super) server: Arc<str>,
    /// Address in the `server` directive.
    pub(super) line: Arc<str>,
    /// ID in cookies and routes; empty if unused.
    pub(super) sid: Sid,
    pub(super) weight: i64,
    /// Current weight of smooth weighted round robin.
    pub(super) current: i64,
    /// Effective weight: reduced by failures, then restored in steps of one.
    pub(super) effective: i64,
    /// Number of requests in flight.
    pub(super) conns: u64,
    pub(super) max_conns: u64,
    pub(super) fails: u64,
    pub(super) max_fails: u64,
    pub(super) fail_timeout: i64,
    /// Time of the last failure.
    accessed: i64,
    /// Time of the last check, advanced in steps of at least `fail_timeout`.
    checked: i64,
    pub(super) accepts: Accepts,
    pub(super) slow_start_ms: i64,
    /// Time in ms at which the server recovered from failures, the start of `slow_start`.
    slow_since_ms: i64,
    pub(super) times: Times,
    pub(super) counts: Box<Counts>,
    /// Results of active checks.
    pub(super) checks: PeerChecks,
}

/// Response times of a server in ms, for `least_time`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) header: u64,
    pub(super) response: u64,
    /// Average waiting time of the requests in flight.
    pub(super) inflight: u64,
    /// Sum of the waiting times of the requests in flight at `inflight_changed`.
    pub(super) inflight_sum: i64,
    pub(super) inflight_changed: i64,
    pub(super) inflight_count: i64,
}

impl Times {
    /// Moves `average` towards a new value by one twentieth, rounded.
    pub(super) fn follow(average: &mut u64, value: u64) {
        *average = if *average == 0 { value } else { (value.saturating_mul(5) + *average * 95 + 50) / 100 };
    }
}

impl Peer {
    /// Whether any request may be sent to the server.
    pub(super) fn is_open(&self, now: Moment) -> bool {
        self.accepts == Accepts::All && self.is_healthy() && !self.has_failed(now) && !self.is_full()
    }

    /// Whether a request of an existing session may be sent to the server.
    pub(super) fn is_open_for_session(&self, now: Moment) -> bool {
        self.accepts != Accepts::Nothing && self.is_healthy() && !self.has_failed(now) && !self.is_full()
    }

    /// Whether the server has reached `max_fails` and `fail_timeout` has not passed. After it a single request is permitted,
    /// because [`Peer::mark_checked`] restarts the time.
    pub(super) fn has_failed(&self, now: Moment) -> bool {
        self.max_fails > 0 && self.fails >= self.max_fails && now.seconds - self.checked <= self.fail_timeout
    }

    /// Whether the server has reached `max_conns`.
    pub(super) fn is_full(&self) -> bool {
        self.max_conns > 0 && self.conns >= self.max_conns
    }

    /// Records that the server was chosen, which restarts `fail_timeout` once it has passed.
    pub(super) fn mark_checked(&mut self, now: Moment) {
        if now.seconds - self.checked > self.fail_timeout {
            self.checked = now.seconds;
        }
    }

    /// Returns the number of periods of `fail_timeout + 1` seconds since the last check; 0 until `fail_timeout` has passed.
    pub(super) fn idle_steps(&self, now: Moment) -> i64 {
        let idle = now.seconds - self.checked;
        if idle > self.fail_timeout { idle / (self.fail_timeout + 1) } else { 0 }
    }

    /// Returns the weight added per round, multiplied by `scale`; reduced during a slow start.
    pub(super) fn gain(&self, now: Moment, scale: i64) -> i64 {
        self.slowed(self.effective, now, scale)
    }

    /// Returns the weight multiplied by `scale`, reduced during a slow start; at least 1.
    pub(super) fn load_weight(&self, now: Moment, scale: i64) -> u128 {
        self.slowed(self.weight, now, scale).max(1).unsigned_abs().into()
    }

    fn slowed(&self, weight: i64, now: Moment, scale: i64) -> i64 {
        let full = weight.saturating_mul(scale);
        let since = now.ms.saturating_sub(self.slow_since_ms).max(0);
        if since >= self.slow_start_ms {
            return full;
        }
        let slowed = (i128::from(full) * i128::from(since) / i128::from(self.slow_start_ms)) as i64;
        debug_assert!((0..=full).contains(&slowed), "a slow start only reduces the weight");
        slowed
    }

    /// Counts a failed try. Returns whether the server becomes unavailable.
    fn count_failure(&mut self, now: Moment) -> bool {
        self.fails += 1;
        self.accessed = now.seconds;
        self.checked = now.seconds;
        if self.max_fails == 0 {
            return false;
        }
        let penalty = self.weight / i64::try_from(self.max_fails).unwrap_or(i64::MAX);
        self.effective = (self.effective - penalty).max(0);
        debug_assert!(self.effective <= self.weight, "failures do not increase the weight");
        self.fails >= self.max_fails
    }

    /// Counts a successful try, which resets the failures if it began after the last failure.
    fn count_success(&mut self, now: Moment) {
        if self.accessed < self.checked {
            if self.max_fails > 0 && self.fails >= self.max_fails {
                self.begin_slow_start(now);
            }
            self.fails = 0;
        }
    }

    /// Begins the slow start of a server that accepts requests again.
    pub(super) fn begin_slow_start(&mut self, now: Moment) {
        self.slow_since_ms = now.ms;
    }
}

/// The primary servers or the backups.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) peers: Vec<Peer>,
    pub(super) total_weight: i64,
    /// Number of servers that accept all requests: neither `down` nor `drain`.
    pub(super) tries: u32,
    /// Whether the group has only one server, and no backup: the server is used in spite of failures.
    pub(super) is_single: bool,
    /// Factor of the weights in round robin: above 1 if a server has `slow_start`, because fractions of a weight then matter.
    pub(super) scale: i64,
    /// The ring, if consistent hashing is the method.
    pub(super) ring: Option<Ring>,
}

/// [`Set::scale`] with slow starts.
const SLOW_SCALE: i64 = 1000;

impl Set {
    /// Returns the index of the server that a session names, if it is available and untried.
    pub(super) fn of_session(&self, hint: Option<&[u8]>, tried: &[PeerId], now: Moment) -> Option<usize> {
        let hint = hint?;
        let index = self.peers.iter().position(|peer| peer.sid.as_slice() == hint)?;
        let peer = &self.peers[index];
        (!tried.contains(&peer.id) && peer.is_open_for_session(now)).then_some(index)
    }

    /// Returns the index of the server whose range of the cumulative weights contains `weight`.
    pub(super) fn at_weight(&self, mut weight: i64) -> usize {
        for (index, peer) in self.peers.iter().enumerate() {
            if weight < peer.weight {
                return index;
            }
            debug_assert!(peer.weight >= 0, "weights are positive");
            weight -= peer.weight;
        }
        0
    }

    fn update_totals(&mut self, with_ring: bool) {
        let peers = &self.peers;
        self.total_weight = peers.iter().fold(0, |sum, peer| peer.weight.saturating_add(sum));
        self.tries = peers.iter().filter(|peer| peer.accepts == Accepts::All).count() as u32;
        let is_slow = peers.iter().any(|peer| peer.slow_start_ms > 0);
        self.scale = if is_slow { SLOW_SCALE } else { 1 };
        self.ring = with_ring.then(|| {
            let first_of = |server: &Arc<str>| peers.iter().position(|peer| peer.server == *server);
            Ring::new(peers.iter().map(|peer| {
                let first = first_of(&peer.server).expect("it is one of them");
                (&peer.server, first as u32, peer.weight)
            }))
        });
    }
}

/// Inputs of a state: the servers of a configuration, and the requirements of the method.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) lines: Arc<[Line]>,
    /// Whether sessions refer to servers.
    pub(super) with_sids: bool,
    /// Whether consistent hashing is the method.
    pub(super) with_ring: bool,
    /// The active checks.
    pub(super) checks: Arc<[Check]>,
}

/// State of all servers of a group.
#[derive(Debug)]
pub(super) struct GroupState {
    shape: Shape,
    /// Addresses of names, as far as resolved.
    found: BTreeMap<Named, Vec<FoundAddress>>,
    /// Primary servers and backups.
    pub(super) sets: [Set; 2],
    /// Number of changes of the sets.
    pub(super) generation: u32,
    next_id: PeerId,
    /// Time of the first request, from which each [`Moment`] counts.
    epoch: Option<Instant>,
    /// Random numbers for `random`.
    pub(super) random: Random,
    /// Requests that wait for a server.
    pub(super) queue: WaitQueue,
}

impl GroupState {
    /// Creates the servers of a configuration. Names start with the addresses `found` by the previous configuration.
    pub(super) fn new(shape: Shape, found: &BTreeMap<Named, Vec<FoundAddress>>) -> GroupState {
        let found = carried(&shape.lines, found);
        let sets = [Set::default(), Set::default()];
        let random = Random::seeded();
        let queue = WaitQueue::default();
        let mut state =
            GroupState { shape, found, sets, generation: 0, next_id: 0, epoch: None, random, queue };
        state.rebuild();
        state
    }

    /// Applies another configuration of the same group: servers that remain keep their state.
    pub(super) fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
        self.found = carried(&self.shape.lines, &self.found);
        self.rebuild();
    }

    /// Returns the current shape.
    pub(super) fn shape(&self) -> Shape {
        self.shape.clone()
    }

    /// Sets the addresses of a name.
    pub(super) fn put(&mut self, named: &Named, found: Vec<FoundAddress>) {
        if self.found.get(named) != Some(&found) {
            self.found.insert(named.clone(), found);
            self.rebuild();
        }
    }

    /// Records that a name could not be resolved, unless it has addresses.
    pub(super) fn put_unresolved(&mut self, named: &Named) {
        self.found.entry(named.clone()).or_default();
    }

    /// Returns the addresses that were found for names.
    pub(super) fn found(&self) -> &BTreeMap<Named, Vec<FoundAddress>> {
        &self.found
    }

    /// Whether the group has no server only because a name was never resolved.
    pub(super) fn awaits_names(&self) -> bool {
        self.sets.iter().all(|set| set.peers.is_empty()) && self.is_waiting()
    }

    fn is_waiting(&self) -> bool {
        let mut names = self.shape.lines.iter().filter_map(Line::named);
        names.any(|named| !self.found.contains_key(named))
    }

    /// Converts a time to the form used here.
    pub(super) fn moment(&mut self, now: Instant) -> Moment {
        // The turn of another thread may have begun slightly before that of the first request.
        let since = now.saturating_duration_since(*self.epoch.get_or_insert(now));
        Moment { seconds: since.as_secs() as i64, ms: since.as_millis() as i64 }
    }

    /// Rebuilds the sets in the order of the lines. A server that existed before keeps its ID.
    fn rebuild(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        let mut old: Vec<Peer> =
            self.sets.iter_mut().flat_map(|set| std::mem::take(&mut set.peers)).collect();
        let lines = Arc::clone(&self.shape.lines);
        for line in lines.iter() {
            match &line.source {
                Source::Fixed(address) => {
                    self.add_peer(line, (address, &line.text, line.weight), line.backup, &mut old);
                }
                Source::Named(named) => {
                    let found = self.found.get(named).cloned().unwrap_or_default();
                    self.add_found(line, named, found, &mut old);
                }
            }
        }
        let (with_ring, is_alone) = (self.shape.with_ring, self.sets[1].peers.is_empty());
        let [first, backup] = &mut self.sets;
        first.update_totals(with_ring);
        backup.update_totals(false);
        first.is_single = is_alone && first.peers.len() == 1;
    }

    /// Adds the addresses of a name. Known addresses keep their order, so that hashes do not change when a resolver rotates its
    /// responses; new addresses follow.
    fn add_found(&mut self, line: &Line, named: &Named, mut found: Vec<FoundAddress>, old: &mut Vec<Peer>) {
        let known = |found: &FoundAddress| {
            let index = old.iter().position(|peer| peer.address == found.address.address);
            index.unwrap_or(usize::MAX)
        };
        found.sort_by_key(known);
        let least = found.iter().map(|found| found.priority).min().unwrap_or(0);
        for found in &found {
            let is_service = named.service.is_some();
            let server = found.server.as_ref().filter(|_| is_service).unwrap_or(&line.text);
            let own = is_service && line.weight == 1;
            let weight = if own { i64::from(found.weight).max(1) } else { line.weight };
            let backup = line.backup || found.priority != least;
            self.add_peer(line, (&found.address, server, weight), backup, old);
        }
    }

    fn add_peer(
        &mut self,
        line: &Line,
        (address, server, weight): (&Address, &Arc<str>, i64),
        backup: bool,
        old: &mut Vec<Peer>,
    ) {
        let same = |peer: &Peer| peer.address == address.address && peer.server == *server;
        let before = old.iter().position(same).map(|index| old.remove(index));
        let is_new = before.is_none();
        let mut before = before.unwrap_or_else(|| self.fresh(address, server, weight));
        let effective = if before.weight == weight { before.effective } else { weight };
        let sid =
            if self.shape.with_sids { Sid::of(line.route.as_deref(), &address.name) } else { Sid::default() };
        self.sets[usize::from(backup)].peers.push(Peer {
            line: Arc::clone(&line.text),
            sid,
            weight,
            effective,
            max_conns: line.max_conns,
            max_fails: line.max_fails,
            fail_timeout: line.fail_timeout,
            accepts: line.accepts,
            slow_start_ms: line.slow_start_ms,
            checks: std::mem::take(&mut before.checks).continued(&self.shape.checks, is_new),
            ..before
        });
    }

    fn fresh(&mut self, address: &Address, server: &Arc<str>, weight: i64) -> Peer {
        self.next_id = self.next_id.wrapping_add(1);
        Peer {
            id: self.next_id,
            address: address.address.clone(),
            name: Arc::clone(&address.name),
            server: Arc::clone(server),
            line: Arc::clone(server),
            sid: Sid::default(),
            weight,
            current: 0,
            effective: weight,
            conns: 0,
            max_conns: 0,
            fails: 0,
            max_fails: 0,
            fail_timeout: 0,
            accessed: NEVER,
            checked: NEVER,
            accepts: Accepts::All,
            slow_start_ms: 0,
            slow_since_ms: NEVER,
            times: Times::default(),
            counts: Box::default(),
            checks: PeerChecks::default(),
        }
    }

    /// Takes over the statistics of the servers that `before` has too, and the results of their checks. A server may be on several
    /// lines.
    pub(super) fn take_counts(&mut self, before: &GroupState) {
        let mut old: Vec<&Peer> = before.sets.iter().flat_map(|set| &set.peers).collect();
        for peer in self.sets.iter_mut().flat_map(|set| &mut set.peers) {
            let same = |old: &&Peer| old.address == peer.address && old.server == peer.server;
            if let Some(index) = old.iter().position(same) {
                let old = old.remove(index);
                peer.counts.clone_from(&old.counts);
                peer.checks = old.checks.clone().continued(&self.shape.checks, false);
            }
        }
    }

    /// Applies the results of checks of another process, by name.
    pub(super) fn start_checks_with(&mut self, healths: &BTreeMap<&str, bool>) {
        for peer in self.sets.iter_mut().flat_map(|set| &mut set.peers) {
            if let Some(was_healthy) = healths.get(&*peer.name) {
                peer.checks.start_with(&self.shape.checks, *was_healthy);
            }
        }
    }

    /// Returns the server with this ID, in any set.
    pub(super) fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.sets.iter_mut().flat_map(|set| &mut set.peers).find(|peer| peer.id == id)
    }

    /// Ends a request at a server. Returns whether the server becomes unavailable.
    pub(super) fn release(
        &mut self,
        id: PeerId,
        failed: Option<bool>,
        tried: Option<&Tried>,
        now: Moment,
    ) -> bool {
        let is_single = self.sets[0].is_single;
        self.queue.wake_first();
        let Some(peer) = self.peer(id) else { return false };
        peer.conns = peer.conns.saturating_sub(1);
        tried.into_iter().for_each(|tried| peer.counts.end(tried));
        peer.counts.fails += u64::from(failed == Some(true));
        match failed {
            None => false,
            // Failures of the only server are not counted.
            Some(_) if is_single => {
                peer.fails = 0;
                false
            }
            Some(true) => {
                let is_left_alone = peer.count_failure(now);
                peer.counts.unavailable += u64::from(is_left_alone);
                is_left_alone
            }
            Some(false) => {
                peer.count_success(now);
                false
            }
        }
    }
}

/// Returns the addresses that names of these lines take over from the previous configuration. A host of the same service keeps its
/// addresses if only the port or the kind of lookup has changed. A name without addresses is resolved again, and requests wait for
/// it again.
fn carried(
    lines: &[Line],
    before: &BTreeMap<Named, Vec<FoundAddress>>,
) -> BTreeMap<Named, Vec<FoundAddress>> {
    let of_host = |named: &Named| {
        let is_same =
            |old: &Named| old.host.eq_ignore_ascii_case(&named.host) && old.service == named.service;
        before.iter().find(|(old, found)| is_same(old) && !found.is_empty()).map(|(_, found)| found)
    };
    let found = lines.iter().filter_map(Line::named).filter_map(|named| {
        let exact = before.get(named).filter(|found| !found.is_empty());
        let found = exact.or_else(|| of_host(named))?;
        let at_port = |found: &FoundAddress| match (&named.service, &found.address.address) {
            (None, PeerAddr::Inet(address)) => {
                let address = PeerAddr::Inet(SocketAddr::new(address.ip(), named.port));
                FoundAddress { address: Address::from(address), ..found.clone() }
            }
            _ => found.clone(),
        };
        Some((named.clone(), found.iter().map(at_port).collect()))
    });
    found.collect()
}

/// Pseudo-random numbers, predictable (SplitMix64).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    fn seeded() -> Random {
        use std::hash::{BuildHasher, RandomState};
        Random(RandomState::new().hash_one(0))
    }

    /// Returns a random number from 0 to below `limit`, which must be positive.
    pub(super) fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed % limit.unsigned_abs().max(1)) as i64
    }
}
