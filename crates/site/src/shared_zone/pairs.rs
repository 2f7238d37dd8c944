//! The pairs of a zone: a sorted table with a limit in bytes, which all threads share. `keyval_zone` has such a zone, and sessions of
//! clients are stored in one.
//!
//! One lock protects the table. A lookup holds it for reading, briefly; only changes hold it for writing. A full
//! zone refuses a change and evicts nothing, because each pair was added on purpose. An expired pair is never found; changes
//! remove it.
//!
//! Times are in ms since 1970, so that a state file can hold them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use crate::network::Network;

/// The change of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairChange {
    /// The pair is removed.
    Remove,
    /// The pair is added or changed.
    Set {
        /// The value; `None` if it remains.
        value: Option<String>,
        /// Time in ms until the pair expires.
        expire_ms: Option<u64>,
    },
}

/// How a search key is matched with the keys of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// `string`: both keys are equal.
    Exact,
    /// `ip`: the key of the pair is a network that contains the address; the smallest network applies.
    Network,
    /// `prefix`: the key of the pair is a prefix of the search key; the longest prefix applies.
    Prefix,
}

/// Bytes that a pair costs besides its texts: its share of a node of the table, and the headers of two allocations.
const PAIR_OVERHEAD: u64 = 160;

/// Bytes that a pair with an expiry time costs besides its key, which the index by time stores too.
const EXPIRY_OVERHEAD: u64 = 96;

/// Maximum length of a state file in bytes: the master reads no larger file that workers have written.
pub const STATE_BYTES_MAX: u64 = 64 << 20;

/// Returns a time in ms since 1970.
pub fn now_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Number of pairs that are copied under one hold of the lock, so that a copy of a large zone delays no lookup.
const COPIED_AT_ONCE: usize = 256;

/// Why a change is refused. The zone is unchanged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairRefusal {
    /// The zone has no memory for the pair, or its state file would become too large.
    Full,
    /// A pair with this key exists.
    Exists,
    /// No pair has this key.
    Missing,
    /// With `type=ip` the key is not a network.
    NoNetwork,
    /// The text has no pair.
    Empty,
    /// The text has several pairs, and the zone has pairs.
    Several,
    /// A time is given, and the zone has no `timeout`.
    NoTimeout,
    /// A new pair has no value.
    NoValue,
}

/// The pairs of a zone.
pub struct Pairs {
    matching: Matching,
    /// Time in ms after which a pair expires; `None` for never.
    timeout_ms: Option<u64>,
    /// Maximum number of bytes of all pairs.
    bytes_max: u64,
    table: RwLock<Sorted>,
}

/// The table, and sums over its pairs.
#[derive(Default)]
struct Sorted {
    /// The pairs by their keys; with `type=ip` by [`network_key`].
    pairs: BTreeMap<Box<[u8]>, Pair>,
    /// The keys of pairs that expire, by their time and a number that makes it unique.
    expiring: BTreeMap<(u64, u64), Box<[u8]>>,
    /// The number for the next entry of `expiring`.
    next: u64,
    /// Number of pairs by the length of their network prefix: of IPv4, then from 33 on of IPv6. Empty unless `type=ip`.
    lengths: Vec<u32>,
    /// The cost of all pairs in bytes.
    bytes: u64,
    /// The length of the state file in bytes.
    state_bytes: u64,
    /// Number of changes so far.
    changes: u64,
}

/// A pair.
#[derive(Clone)]
struct Pair {
    /// The key as written, if the table has another form of it.
    written: Option<Box<str>>,
    value: Box<str>,
    /// The time of its end, as in [`Sorted::expiring`].
    expiry: Option<(u64, u64)>,
}

/// A copied pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedPair {
    /// The key as written.
    pub key: String,
    /// The value.
    pub value: String,
    /// Time in ms since 1970 at which it expires.
    pub expires_ms: Option<u64>,
}

impl fmt::Debug for Pairs {
    /// Values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pairs({:?}, {} bytes of {})", self.matching, self.read().bytes, self.bytes_max)
    }
}

impl Pairs {
    /// Returns an empty table with a limit in bytes.
    pub fn new(bytes_max: u64, matching: Matching, timeout_ms: Option<u64>) -> Pairs {
        Pairs { matching, timeout_ms, bytes_max, table: RwLock::new(Sorted::new(matching)) }
    }

    /// Appends the value for a search key; returns `false` if no pair matches.
    pub fn find(&self, key: &[u8], now_ms: u64, out: &mut Vec<u8>) -> bool {
        let table = self.read();
        let found = match self.matching {
            Matching::Exact => table.valid(key, now_ms),
            Matching::Prefix => table.longest_prefix(key, now_ms),
            Matching::Network => table.smallest_network(key, now_ms),
        };
        found.map(|pair| out.extend_from_slice(pair.value.as_bytes())).is_some()
    }

    /// Returns the value of the pair with this key as written, for `api`.
    pub fn get(&self, key: &str, now_ms: u64) -> Option<String> {
        let key = self.stored_key(key).ok()?;
        self.read().valid(&key, now_ms).map(|pair| pair.value.to_string())
    }

    /// Adds pairs: one, or several if the zone is empty.
    pub fn add(&self, changes: Vec<(String, PairChange)>, now_ms: u64) -> Result<(), PairRefusal> {
        match changes.len() {
            0 => return Err(PairRefusal::Empty),
            1 => {
                let mut table = self.write();
                table.remove_expired(now_ms);
                for (key, change) in changes {
                    self.insert(&mut table, key, change, now_ms)?;
                }
                table.changes += 1;
                return Ok(());
            }
            _ if self.has_any(now_ms) => return Err(PairRefusal::Several),
            _ => {}
        }
        // Built without the lock, so that lookups do not wait.
        let mut new = Sorted::new(self.matching);
        for (key, change) in changes {
            self.insert(&mut new, key, change, now_ms)?;
        }
        let mut table = self.write();
        table.remove_expired(now_ms);
        if !table.pairs.is_empty() {
            return Err(PairRefusal::Several);
        }
        new.changes = table.changes + 1;
        *table = new;
        Ok(())
    }

    /// Whether the zone has a valid pair.
    fn has_any(&self, now_ms: u64) -> bool {
        self.read().pairs.values().any(|pair| pair.is_valid(now_ms))
    }

    /// Changes or removes one pair. A new value begins a new `timeout`, unless the change has a time.
    pub fn change(&self, mut changes: Vec<(String, PairChange)>, now_ms: u64) -> Result<(), PairRefusal> {
        let (Some((text, change)), true) = (changes.pop(), changes.is_empty()) else {
            return Err(if changes.is_empty() { PairRefusal::Empty } else { PairRefusal::Several });
        };
        let key = self.stored_key(&text)?;
        let mut table = self.write();
        table.remove_expired(now_ms);
        let Some(before) = table.remove(&key) else { return Err(PairRefusal::Missing) };
        let PairChange::Set { value, expire_ms } = change else {
            table.changes += 1;
            return Ok(());
        };
        let value = value.unwrap_or_else(|| before.value.to_string());
        // The key remains as it was written first.
        let text = before.written.as_deref().map_or(text, str::to_owned);
        match self.insert(&mut table, text, PairChange::Set { value: Some(value), expire_ms }, now_ms) {
            Ok(()) => {
                table.changes += 1;
                Ok(())
            }
            Err(refusal) => {
                let expires_ms = before.expiry.map(|(at, _)| at);
                table.insert(key, before.written, before.value, expires_ms);
                Err(refusal)
            }
        }
    }

    /// Replaces the value of the pair with this key by the result of `edit`, which has the current value, if there is any. The pair
    /// then expires at this time in ms since 1970, also in a zone without `timeout`. Without a result the pair is removed.
    pub fn edit(
        &self,
        key: &str,
        now_ms: u64,
        edit: impl FnOnce(Option<&str>) -> Option<(String, u64)>,
    ) -> Result<(), PairRefusal> {
        let stored = self.stored_key(key)?;
        let mut table = self.write();
        table.remove_expired(now_ms);
        let before = table.remove(&stored);
        let edited = edit(before.as_ref().map(|pair| &*pair.value));
        let Some((value, expires_ms)) = edited else {
            table.changes += u64::from(before.is_some());
            return Ok(());
        };
        if !self.fits(&table, key.len(), &stored, &value, Some(expires_ms)) {
            if let Some(before) = before {
                let expires_ms = before.expiry.map(|(at, _)| at);
                table.insert(stored, before.written, before.value, expires_ms);
            }
            return Err(PairRefusal::Full);
        }
        let written = (self.matching == Matching::Network).then(|| key.into());
        table.insert(stored, written, value.into(), Some(expires_ms));
        table.changes += 1;
        Ok(())
    }

    /// Removes all pairs.
    pub fn clear(&self) {
        let mut table = self.write();
        let empty = Sorted { changes: table.changes + 1, ..Sorted::new(self.matching) };
        let before = std::mem::replace(&mut *table, empty);
        drop(table);
        // Released without the lock, because a large table takes a while.
        drop(before);
    }

    /// Adds the pairs of a state file, except those that have expired.
    pub fn restore(&self, pairs: Vec<CopiedPair>, now_ms: u64) -> Result<(), (String, PairRefusal)> {
        let mut table = self.write();
        for CopiedPair { key, value, expires_ms } in pairs {
            let stored = match self.stored_key(&key) {
                Ok(stored) if table.pairs.contains_key(&stored) => return Err((key, PairRefusal::Exists)),
                Ok(stored) => stored,
                Err(refusal) => return Err((key, refusal)),
            };
            // A file without times gets them when the zone has `timeout`; a zone without `timeout` ignores them.
            let expires_ms =
                self.timeout_ms.map(|timeout| expires_ms.unwrap_or(now_ms.saturating_add(timeout)));
            if expires_ms.is_some_and(|at| at <= now_ms) {
                continue;
            }
            let written = (self.matching == Matching::Network).then(|| Box::from(key.as_str()));
            if !self.fits(&table, key.len(), &stored, &value, expires_ms) {
                return Err((key, PairRefusal::Full));
            }
            table.insert(stored, written, value.into(), expires_ms);
        }
        Ok(())
    }

    /// Returns all valid pairs. Pairs that change meanwhile may have either state. The number of changes before the copy is returned
    /// too.
    pub fn copy(&self, now_ms: u64) -> (u64, Vec<CopiedPair>) {
        let changes = self.changes();
        let mut copied = Vec::new();
        let mut last: Option<Box<[u8]>> = None;
        loop {
            let table = self.read();
            let from = match &last {
                None => Bound::Unbounded,
                Some(last) => Bound::Excluded(&**last),
            };
            let mut seen = None;
            for (key, pair) in table.pairs.range::<[u8], _>((from, Bound::Unbounded)).take(COPIED_AT_ONCE) {
                seen = Some(key);
                if pair.is_valid(now_ms) {
                    copied.push(pair.copied(key));
                }
            }
            let seen = seen.cloned();
            drop(table);
            if seen.is_none() {
                return (changes, copied);
            }
            last = seen;
        }
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.read().changes
    }

    /// Returns the cost of all pairs in bytes.
    pub fn used(&self) -> u64 {
        self.read().bytes
    }

    /// Inserts a new pair.
    fn insert(
        &self,
        table: &mut Sorted,
        text: String,
        change: PairChange,
        now_ms: u64,
    ) -> Result<(), PairRefusal> {
        let PairChange::Set { value: Some(value), expire_ms } = change else {
            return Err(PairRefusal::NoValue);
        };
        let key = self.stored_key(&text)?;
        if expire_ms.is_some() && self.timeout_ms.is_none() {
            return Err(PairRefusal::NoTimeout);
        }
        if table.pairs.contains_key(&key) {
            return Err(PairRefusal::Exists);
        }
        let expires_ms = expire_ms.or(self.timeout_ms).map(|ms| now_ms.saturating_add(ms));
        if !self.fits(table, text.len(), &key, &value, expires_ms) {
            return Err(PairRefusal::Full);
        }
        let written = (self.matching == Matching::Network).then(|| text.into());
        table.insert(key, written, value.into(), expires_ms);
        Ok(())
    }

    /// Whether the zone has memory for a pair whose key has `written` bytes, and the state file too.
    fn fits(&self, table: &Sorted, written: usize, key: &[u8], value: &str, expires_ms: Option<u64>) -> bool {
        let written = if self.matching == Matching::Network { written } else { 0 };
        let bytes = cost(key.len(), written, value.len(), expires_ms.is_some());
        // No character of JSON is longer than six bytes.
        let state = state_cost(key.len().max(written), value.len());
        table.bytes.saturating_add(bytes) <= self.bytes_max
            && table.state_bytes.saturating_add(state) <= STATE_BYTES_MAX
    }

    /// Returns the key by which the table stores a pair.
    fn stored_key(&self, text: &str) -> Result<Box<[u8]>, PairRefusal> {
        match self.matching {
            Matching::Exact | Matching::Prefix => Ok(text.as_bytes().into()),
            Matching::Network => network(text.as_bytes()).map(network_key).ok_or(PairRefusal::NoNetwork),
        }
    }

    /// Ignores poisoning: no code that can panic runs while the table is inconsistent.
    fn read(&self) -> RwLockReadGuard<'_, Sorted> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Sorted> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the cost of a pair in bytes.
fn cost(key: usize, written: usize, value: usize, expires: bool) -> u64 {
    let texts = (key + written + value) as u64;
    let expiry = if expires { EXPIRY_OVERHEAD + key as u64 } else { 0 };
    PAIR_OVERHEAD + texts + expiry
}

/// Returns the maximum length of a pair in the state file.
fn state_cost(key: usize, value: usize) -> u64 {
    6 * (key + value) as u64 + 64
}

impl Pair {
    fn is_valid(&self, now_ms: u64) -> bool {
        self.expiry.is_none_or(|(at, _)| at > now_ms)
    }

    fn copied(&self, key: &[u8]) -> CopiedPair {
        let written = self.written.as_deref().map(str::to_owned);
        CopiedPair {
            key: written.unwrap_or_else(|| String::from_utf8_lossy(key).into_owned()),
            value: self.value.to_string(),
            expires_ms: self.expiry.map(|(at, _)| at),
        }
    }

    fn costs(&self, key: &[u8]) -> (u64, u64) {
        let written = self.written.as_deref().map_or(0, str::len);
        let bytes = cost(key.len(), written, self.value.len(), self.expiry.is_some());
        (bytes, state_cost(key.len().max(written), self.value.len()))
    }
}

impl Sorted {
    fn new(matching: Matching) -> Sorted {
        let lengths = if matching == Matching::Network { vec![0; 33 + 129] } else { Vec::new() };
        Sorted { lengths, ..Sorted::default() }
    }

    fn valid(&self, key: &[u8], now_ms: u64) -> Option<&Pair> {
        self.pairs.get(key).filter(|pair| pair.is_valid(now_ms))
    }

    /// Returns the pair with the longest key that is a prefix of `text`. Each step ends at a shorter prefix: the one that `text` has in
    /// common with the greatest key that is not above it.
    fn longest_prefix(&self, text: &[u8], now_ms: u64) -> Option<&Pair> {
        let mut rest = text;
        loop {
            let (key, pair) =
                self.pairs.range::<[u8], _>((Bound::Unbounded, Bound::Included(rest))).next_back()?;
            let common = key.iter().zip(rest).take_while(|(one, other)| one == other).count();
            let is_prefix = common == key.len();
            if is_prefix && pair.is_valid(now_ms) {
                return Some(pair);
            }
            match (is_prefix, common) {
                (_, 0) => return None,
                // An expired pair.
                (true, _) => rest = &rest[..common - 1],
                (false, _) => rest = &rest[..common],
            }
        }
    }

    /// Returns the pair of the smallest network that contains an address or network.
    fn smallest_network(&self, text: &[u8], now_ms: u64) -> Option<&Pair> {
        let network = network(text)?;
        let (first, length) = match network {
            Network::Unix => return None,
            Network::V4(_, length) => (0, length),
            Network::V6(_, length) => (33, length),
        };
        (0..=length).rev().filter(|length| self.lengths[first + *length as usize] > 0).find_map(|length| {
            let outer = match network {
                Network::Unix => return None,
                Network::V4(address, _) => Network::within(IpAddr::V4(address), length),
                Network::V6(address, _) => Network::within(IpAddr::V6(address), length),
            };
            self.valid(&network_key(outer), now_ms)
        })
    }

    fn insert(
        &mut self,
        key: Box<[u8]>,
        written: Option<Box<str>>,
        value: Box<str>,
        expires_ms: Option<u64>,
    ) {
        let expiry = expires_ms.map(|at| {
            self.next += 1;
            self.expiring.insert((at, self.next), key.clone());
            (at, self.next)
        });
        let pair = Pair { written, value, expiry };
        let (bytes, state) = pair.costs(&key);
        self.bytes += bytes;
        self.state_bytes += state;
        if let Some(count) = self.length_count(&key) {
            *count += 1;
        }
        let replaced = self.pairs.insert(key, pair);
        debug_assert!(replaced.is_none(), "a key has one pair");
    }

    fn remove(&mut self, key: &[u8]) -> Option<Pair> {
        let pair = self.pairs.remove(key)?;
        if let Some(expiry) = pair.expiry {
            self.expiring.remove(&expiry);
        }
        let (bytes, state) = pair.costs(key);
        self.bytes -= bytes;
        self.state_bytes -= state;
        if let Some(count) = self.length_count(key) {
            *count -= 1;
        }
        Some(pair)
    }

    /// Returns the number of networks with the length of this key.
    fn length_count(&mut self, key: &[u8]) -> Option<&mut u32> {
        let [family, length, ..] = key else { return None };
        let first = if *family == 4 { 0 } else { 33 };
        self.lengths.get_mut(first + usize::from(*length))
    }

    fn remove_expired(&mut self, now_ms: u64) {
        while let Some(first) = self.expiring.first_entry() {
            if first.key().0 > now_ms {
                return;
            }
            let key = first.get().clone();
            self.remove(&key);
        }
    }
}

/// Parses an address or a network. An IPv4-mapped IPv6 address is an IPv4 address.
fn network(text: &[u8]) -> Option<Network> {
    let (network, _) = Network::parse(std::str::from_utf8(text).ok()?)?;
    match network {
        Network::V6(address, 128) => Some(address.to_canonical().into()),
        network => Some(network),
    }
}

/// Returns the bytes by which a network is stored: the version, the length of the prefix, the address.
fn network_key(network: Network) -> Box<[u8]> {
    match network {
        Network::Unix => Box::default(),
        Network::V4(address, length) => [&[4, length as u8][..], &address.octets()].concat().into(),
        Network::V6(address, length) => [&[6, length as u8][..], &address.octets()].concat().into(),
    }
}
