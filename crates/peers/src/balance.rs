//! Selection of the next server with nginx's algorithms, so that the same requests are sent to the same servers.
//!
//! [`Choices`] records the servers that one request has tried; [`GroupState::choose`] selects the next from it and from the state of the
//! servers. All methods fall back to round robin, and round robin falls back to the backups.

use smallvec::SmallVec;

use super::lines::Accepts;
use super::table::{GroupState, Moment, Peer, PeerId, Random, Set, Times};

/// Maximum number of selections by hash or at random before the fallback to round robin.
const SELECTIONS_MAX: u32 = 20;

/// The choices made for one request.
#[derive(Clone, Debug)]
pub(super) struct Choices {
    /// Index of the current set: primary servers or backups.
    pub(super) set: usize,
    tried: SmallVec<[PeerId; 8]>,
    walk: Walk,
    /// Number of selections, limited by [`SELECTIONS_MAX`].
    selections: u32,
    /// The server that the client's session names.
    pub(super) hint: Option<Vec<u8>>,
}

/// Method of selection, with its position.
#[derive(Clone, Debug)]
pub(super) enum Walk {
    /// Round robin.
    Rounds,
    /// Least number of requests.
    LeastConn,
    /// Least response time.
    LeastTime { full_response: bool, inflight: bool },
    /// Hash of these bytes of the client's address.
    Address { bytes: SmallVec<[u8; 16]>, hash: u32 },
    /// Hash of a text.
    Key { key: Vec<u8>, hash: u32, rehash: u32 },
    /// Consistent hash of a text; `at` is the ring's generation and the index of the next point.
    Ring { key: Vec<u8>, at: Option<(u32, usize)> },
    /// Random.
    Random { two: bool },
}

impl Walk {
    /// Hashes the client's address: three bytes of IPv4, or all bytes of IPv6. Without an address the bytes are zero.
    pub(super) fn address(client: Option<std::net::IpAddr>) -> Walk {
        let bytes = match client {
            Some(std::net::IpAddr::V4(ip)) => SmallVec::from_slice(&ip.octets()[..3]),
            Some(std::net::IpAddr::V6(ip)) => SmallVec::from_slice(&ip.octets()),
            None => SmallVec::from_slice(&[0; 3]),
        };
        Walk::Address { bytes, hash: 89 }
    }

    /// Hashes a text.
    pub(super) fn key(key: Vec<u8>) -> Walk {
        Walk::Key { key, hash: 0, rehash: 0 }
    }
}

impl Choices {
    /// Creates the choices of a request before its first try.
    pub(super) fn new(walk: Walk, hint: Option<Vec<u8>>) -> Choices {
        Choices { set: 0, tried: SmallVec::new(), walk, selections: 0, hint }
    }

    fn has_tried(&self, peer: &Peer) -> bool {
        self.tried.contains(&peer.id)
    }

    /// Records the chosen server.
    fn took(&mut self, peer: &mut Peer, now: Moment) {
        self.tried.push(peer.id);
        peer.mark_checked(now);
    }
}

impl GroupState {
    /// Selects the next server for a request and counts the request. Returns the index in the current set.
    pub(super) fn choose(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        let index = match choices.walk {
            Walk::Rounds => self.rounds(choices, now),
            Walk::LeastConn | Walk::LeastTime { .. } => self.least(choices, now),
            _ => self.select_by_method(choices, now).or_else(|| self.rounds(choices, now)),
        }?;
        let peer = &mut self.sets[choices.set].peers[index];
        peer.conns += 1;
        if let Walk::LeastTime { inflight: true, .. } = choices.walk {
            peer.times.begin(now);
        }
        Some(index)
    }

    /// Returns the number of servers that a request may be sent to in sequence.
    pub(super) fn tries(&self) -> u32 {
        self.sets.iter().map(|set| set.tries).sum()
    }

    /// Selects by round robin among the primary servers, then among the backups.
    fn rounds(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        self.with_backups(choices, |set, choices| {
            if !set.is_single {
                return set.round(choices, now);
            }
            let only = &set.peers[0];
            let is_open = only.accepts == Accepts::All && only.is_healthy() && !only.is_full();
            // Failed requests of a single server do not matter, but failed checks do. A session is looked up first, because `drain` permits its requests.
            let of_session = set.of_session(choices.hint.as_deref(), &choices.tried, now);
            of_session.or_else(|| is_open.then_some(0))
        })
    }

    /// Selects by least load among the primary servers, then among the backups.
    fn least(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        if self.sets[choices.set].is_single {
            return self.rounds(choices, now);
        }
        self.with_backups(choices, |set, choices| set.least(choices, now))
    }

    fn with_backups(
        &mut self,
        choices: &mut Choices,
        mut look: impl FnMut(&mut Set, &mut Choices) -> Option<usize>,
    ) -> Option<usize> {
        if let Some(index) = look(&mut self.sets[choices.set], choices) {
            return Some(index);
        }
        if choices.set > 0 || self.sets[1].peers.is_empty() {
            return None;
        }
        choices.set = 1;
        choices.tried.clear();
        look(&mut self.sets[1], choices)
    }

    /// Selects by hash or at random in the current set; `None` to fall back to round robin.
    fn select_by_method(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        let set = &mut self.sets[choices.set];
        let is_empty = match &choices.walk {
            Walk::Key { key, .. } | Walk::Ring { key, .. } => key.is_empty(),
            _ => false,
        };
        if choices.selections > SELECTIONS_MAX || set.peers.len() < 2 || is_empty {
            return None;
        }
        if let Some(index) = set.of_session(choices.hint.as_deref(), &choices.tried, now) {
            choices.took(&mut set.peers[index], now);
            return Some(index);
        }
        if let Walk::Ring { .. } = choices.walk {
            return set.on_ring(choices, self.generation, now);
        }
        let mut first = None;
        loop {
            let index = choices.walk.step(set, &mut self.random);
            let peer = &set.peers[index];
            let is_candidate = first != Some(index) && !choices.has_tried(peer) && peer.is_open(now);
            match first {
                _ if !is_candidate => {}
                Some(first) => {
                    let index = set.less_loaded(first, index);
                    choices.took(&mut set.peers[index], now);
                    return Some(index);
                }
                None if matches!(choices.walk, Walk::Random { two: true }) => first = Some(index),
                None => {
                    choices.took(&mut set.peers[index], now);
                    return Some(index);
                }
            }
            // As in nginx, the first of two random selections counts too.
            choices.selections += 1;
            if choices.selections > SELECTIONS_MAX {
                return None;
            }
        }
    }
}

impl Walk {
    /// Moves to the next position.
    fn step(&mut self, set: &Set, random: &mut Random) -> usize {
        let weight = match self {
            Walk::Address { bytes, hash } => {
                for byte in bytes.iter() {
                    *hash = (*hash * 113 + u32::from(*byte)) % 6271;
                }
                i64::from(*hash) % set.total_weight.max(1)
            }
            Walk::Key { key, hash, rehash } => {
                // Like Cache::Memcached: the number of previous hashes precedes the text.
                let mut hasher = crc32fast::Hasher::new();
                if *rehash > 0 {
                    hasher.update(rehash.to_string().as_bytes());
                }
                hasher.update(key);
                *hash = hash.wrapping_add(hasher.finalize() >> 16 & 0x7fff);
                *rehash += 1;
                i64::from(*hash) % set.total_weight.max(1)
            }
            Walk::Random { .. } => random.below(set.total_weight),
            Walk::Rounds | Walk::LeastConn | Walk::LeastTime { .. } | Walk::Ring { .. } => {
                panic!("this method selects without steps")
            }
        };
        set.at_weight(weight)
    }
}

impl Set {
    /// Runs one round of smooth weighted round robin: each server gains its weight, then the server with the highest sum is chosen
    /// and its sum is reduced by the total.
    fn round(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        let session = self.of_session(choices.hint.as_deref(), &choices.tried, now);
        if let Some(index) = session {
            let peer = &mut self.peers[index];
            // The deficit of the session's server is already as large as the weight of all other servers: it is not increased.
            if peer.current <= -(self.total_weight.saturating_sub(peer.weight)).saturating_mul(self.scale) {
                choices.took(peer, now);
                return Some(index);
            }
        }
        let is_open = |peer: &Peer| !choices.has_tried(peer) && peer.is_open(now);
        let (best, total) = self.gain(0, None, now, is_open);
        let index = session.or(best)?;
        let peer = &mut self.peers[index];
        peer.current = peer.current.saturating_sub(total);
        choices.took(peer, now);
        Some(index)
    }

    /// Adds each participating server's weight to its sum, from index `from` on. Returns the server with the highest sum (`best`
    /// wins ties), and the total of the weights.
    fn gain(
        &mut self,
        from: usize,
        mut best: Option<usize>,
        now: Moment,
        takes_part: impl Fn(&Peer) -> bool,
    ) -> (Option<usize>, i64) {
        let mut total = 0_i64;
        for index in from..self.peers.len() {
            if !takes_part(&self.peers[index]) {
                continue;
            }
            let peer = &mut self.peers[index];
            let gain = peer.gain(now, self.scale);
            peer.current = peer.current.saturating_add(gain);
            total = total.saturating_add(gain);
            if peer.effective < peer.weight {
                peer.effective += 1;
            }
            let current = peer.current;
            if best.is_none_or(|best| current > self.peers[best].current) {
                best = Some(index);
            }
        }
        (best, total)
    }

    /// Returns the server with the least load relative to its weight; ties are resolved by round robin.
    fn least(&mut self, choices: &mut Choices, now: Moment) -> Option<usize> {
        if let Some(index) = self.of_session(choices.hint.as_deref(), &choices.tried, now) {
            choices.took(&mut self.peers[index], now);
            return Some(index);
        }
        let scale = self.scale;
        let mut best: Option<(usize, Load)> = None;
        let mut many = false;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            if choices.has_tried(peer) || !peer.is_open(now) {
                continue;
            }
            let load = Load::of(peer, &choices.walk, now, scale);
            match &best {
                Some((_, least)) if load.is_above(least) => {}
                Some((_, least)) if !least.is_above(&load) => many = true,
                _ => (best, many) = (Some((index, load)), false),
            }
        }
        let (mut index, least) = best?;
        if many {
            let walk = &choices.walk;
            let is_equal = |peer: &Peer| {
                let load = || Load::known(peer, walk, now, scale);
                !choices.has_tried(peer) && peer.is_open(now) && load().is_equal(&least)
            };
            let (best, total) = self.gain(index, Some(index), now, is_equal);
            index = best.unwrap_or(index);
            self.peers[index].current = self.peers[index].current.saturating_sub(total);
        }
        choices.took(&mut self.peers[index], now);
        Some(index)
    }

    /// Returns the index of that one of two servers that has fewer requests relative to its weight.
    fn less_loaded(&self, first: usize, second: usize) -> usize {
        let (one, two) = (&self.peers[first], &self.peers[second]);
        let weighed = |conns: u64, weight: i64| u128::from(conns) * u128::from(weight.unsigned_abs());
        if weighed(two.conns, one.weight) > weighed(one.conns, two.weight) { first } else { second }
    }

    /// Returns the server at the key's point of the ring, or at one of the following points. Several addresses of a server are used
    /// in round robin.
    fn on_ring(&mut self, choices: &mut Choices, generation: u32, now: Moment) -> Option<usize> {
        loop {
            let ring = self.ring.as_ref()?;
            let Walk::Ring { key, at } = &mut choices.walk else { return None };
            let number = match *at {
                Some((of, number)) if of == generation => number,
                _ => ring.start(key),
            };
            *at = Some((generation, number));
            let first = ring.server(number)?;
            let server = self.peers.get(first as usize).map(|peer| peer.server.clone())?;
            let is_there =
                |peer: &Peer| peer.server == server && !choices.has_tried(peer) && peer.is_open(now);
            let (best, total) = self.gain(0, None, now, is_there);
            if let Some(index) = best {
                let peer = &mut self.peers[index];
                peer.current = peer.current.saturating_sub(total);
                choices.took(peer, now);
                return Some(index);
            }
            let Walk::Ring { at, .. } = &mut choices.walk else { return None };
            *at = Some((generation, number + 1));
            choices.selections += 1;
            if choices.selections > SELECTIONS_MAX {
                return None;
            }
        }
    }
}

/// Load of a server as a fraction, compared without division.
#[derive(Clone, Copy, Debug)]
struct Load {
    amount: u128,
    weight: u128,
}

impl Load {
    fn of(peer: &mut Peer, walk: &Walk, now: Moment, scale: i64) -> Load {
        if matches!(walk, Walk::LeastTime { .. }) {
            peer.times.update_waiting(now);
        }
        Load::known(peer, walk, now, scale)
    }

    fn known(peer: &Peer, walk: &Walk, now: Moment, scale: i64) -> Load {
        let amount = match walk {
            Walk::LeastTime { full_response, .. } => u128::from(expected_ms(peer, *full_response, now)),
            _ => u128::from(peer.conns),
        };
        Load { amount, weight: peer.load_weight(now, scale) }
    }

    fn is_above(&self, other: &Load) -> bool {
        self.amount * other.weight > other.amount * self.weight
    }

    fn is_equal(&self, other: &Load) -> bool {
        self.amount * other.weight == other.amount * self.weight
    }
}

/// Maximum response time in ms that is compared; between slower servers, the number of requests decides.
const TIME_MAX_MS: u64 = 5000;

/// Resolution of times in ms: smaller differences are ignored.
const TIME_STEP_MS: u64 = 20;

/// Returns the expected time in ms until a server would complete its requests and one more.
fn expected_ms(peer: &Peer, full_response: bool, now: Moment) -> u64 {
    let times = &peer.times;
    let mut time = if full_response { times.response } else { times.header };
    // A slow server gets another chance: without requests, its time is halved once per fail_timeout.
    time = time.checked_shr(u32::try_from(peer.idle_steps(now)).unwrap_or(u32::MAX)).unwrap_or(0);
    if times.inflight_count > 0 {
        time = time.max(times.inflight);
    }
    time = if time > TIME_MAX_MS { TIME_MAX_MS } else { time + TIME_STEP_MS - time % TIME_STEP_MS };
    time.saturating_mul(peer.conns.saturating_add(1))
}

impl Times {
    /// Counts another waiting request.
    fn begin(&mut self, now: Moment) {
        debug_assert!(self.inflight_count >= 0, "a number of requests is not negative");
        if self.inflight_count > 0 {
            self.inflight_sum += (now.ms - self.inflight_changed) * self.inflight_count;
        }
        self.inflight_changed = now.ms;
        self.inflight_count += 1;
    }

    /// Ends the count of a request that has waited for `waited_ms`.
    pub(super) fn end(&mut self, waited_ms: u64, now: Moment) {
        debug_assert!(self.inflight_count >= 0, "a number of requests is not negative");
        if self.inflight_count <= 1 {
            self.inflight_sum = 0;
        } else {
            let since = (now.ms - self.inflight_changed) * self.inflight_count;
            self.inflight_sum = (self.inflight_sum + since - waited_ms as i64).max(0);
            self.inflight_changed = now.ms;
        }
        self.inflight_count = (self.inflight_count - 1).max(0);
    }

    /// Moves the average waiting time towards the current value.
    fn update_waiting(&mut self, now: Moment) {
        if self.inflight_count > 0 {
            let each = self.inflight_sum / self.inflight_count + (now.ms - self.inflight_changed);
            Times::follow(&mut self.inflight, each.max(0).unsigned_abs());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::address::Url;
    use crate::lines::Line;
    use crate::table::Shape;

    fn at(seconds: i64) -> Moment {
        Moment { seconds, ms: seconds * 1000 }
    }

    /// Creates a server that was tried at second 100.
    fn state() -> GroupState {
        let url = Url::parse("10.0.0.1", 80).expect("an address");
        let lines = vec![Line::new("10.0.0.1", &url)].into();
        let shape = Shape { lines, with_sids: false, with_ring: false, checks: Arc::default() };
        let mut state = GroupState::new(shape, &Default::default());
        state.sets[0].peers[0].mark_checked(at(100));
        state
    }

    #[test]
    fn averages_move_by_a_twentieth() {
        let mut average = 0;
        for (value, expected) in [(100, 100), (200, 105), (105, 105), (0, 100), (113, 101)] {
            Times::follow(&mut average, value);
            assert_eq!(average, expected, "{value}");
        }
    }

    #[test]
    fn times_are_quantised_limited_and_fade() {
        let mut state = state();
        let peer = &mut state.sets[0].peers[0];
        for (time, conns, seconds, expected) in [
            (0, 0, 100, 20),
            (19, 0, 100, 20),
            (20, 0, 100, 40),
            (105, 2, 100, 360),
            (5000, 0, 100, 5020),
            (5001, 3, 100, 20_000),
            // Its fail_timeout is ten seconds; after it the time is halved every eleven seconds.
            (400, 0, 110, 420),
            (400, 0, 111, 220),
            (400, 0, 122, 120),
            (400, 0, 1_000_000, 20),
        ] {
            (peer.times.header, peer.conns) = (time, conns);
            assert_eq!(expected_ms(peer, false, at(seconds)), expected, "{time} {conns} {seconds}");
        }
    }

    #[test]
    fn waiting_requests_count_with_their_waiting_time() {
        let mut state = state();
        let peer = &mut state.sets[0].peers[0];
        peer.times.begin(at(100));
        peer.times.begin(at(102));
        peer.times.update_waiting(at(103));
        // The first request waited two seconds, then both waited one.
        assert_eq!(peer.times.inflight, 2000 / 2 + 1000);
        assert_eq!(expected_ms(peer, false, at(103)), 2020);
        peer.times.end(3000, at(103));
        peer.times.inflight = 0;
        peer.times.update_waiting(at(104));
        assert_eq!(peer.times.inflight, 1000 + 1000, "the one that is left has waited for two");
        peer.times.end(2000, at(104));
        assert_eq!((peer.times.inflight_count, peer.times.inflight_sum), (0, 0));
        assert_eq!(expected_ms(peer, false, at(104)), 20, "nobody waits");
    }
}
