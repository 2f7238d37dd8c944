//! A table of small states by key, shared by all threads, with a limit in bytes.
//!
//! Each key belongs to a shard. A shard has a lock that is held only briefly and never across a wait, so threads
//! contend only for the same shard. A shard keeps its states in order of last use, for modules that evict.
//!
//! Each state counts as much as in nginx's allocator (a power of two), so that a size means the same number of states.
//! The actual memory is less: a node of at most 64 bytes, an index entry, and long keys.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shared_zone::limits::Results;
use transfer::recency::{ListSlot, Recency};

/// Bytes of a page, and of nginx's header of a page.
const PAGE: u64 = 4096;
const PAGE_NOTE: u64 = 24;

/// Minimum number of pages per shard: with fewer states, an uneven distribution would fill one shard long before the
/// others.
const SHARD_PAGES: u64 = 64;

/// Maximum number of shards; more threads rarely contend.
const SHARDS_MAX: u64 = 16;

/// Minimum cost of a state; no module has a smaller one.
const COST_MIN: u64 = 64;

/// The table.
#[derive(Debug)]
pub struct Table<T> {
    /// The results of requests checked with this table.
    pub results: Results,
    shards: Box<[Mutex<Shard<T>>]>,
    /// Maximum number of bytes per shard.
    budget: u64,
    // Clients choose the keys, so a random hash hides the shard and chain from them.
    hasher: RandomState,
}

/// The states of some of the keys.
#[derive(Debug)]
pub struct Shard<T> {
    /// The first node of each hash chain.
    index: Box<[Link]>,
    nodes: Recency<Node<T>>,
    /// The remaining bytes.
    bytes_left: u64,
    /// The cost in bytes of a state without its key.
    overhead: u64,
}

type Link = Option<ListSlot>;

#[derive(Debug)]
struct Node<T> {
    key: Key,
    hash: u32,
    /// The next node in the chain.
    chain: Link,
    value: T,
}

/// A key. Addresses fit without separate memory.
#[derive(Clone, Debug)]
pub enum Key {
    /// A key that is stored inline, with its length.
    Short(u8, [u8; SHORT]),
    /// A longer key.
    Long(Box<[u8]>),
}

const SHORT: usize = 22;

impl Key {
    /// Copies these bytes.
    pub fn new(bytes: &[u8]) -> Key {
        match bytes.len() {
            len @ 0..=SHORT => {
                let mut short = [0; SHORT];
                short[..len].copy_from_slice(bytes);
                Key::Short(len as u8, short)
            }
            _ => Key::Long(bytes.into()),
        }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(len, bytes) => &bytes[..usize::from(*len)],
            Key::Long(bytes) => bytes,
        }
    }
}

impl<T> Table<T> {
    /// Returns an empty table for a zone of `bytes`; a state costs `overhead` plus the length of its key.
    pub fn new(bytes: u64, overhead: u64) -> Table<T> {
        let pages = usable_bytes(bytes) / PAGE;
        let shards = (pages / SHARD_PAGES).max(1).next_power_of_two().min(SHARDS_MAX);
        let budget = pages * PAGE / shards;
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(budget, overhead))).collect();
        Table { results: Results::default(), shards, budget, hasher: RandomState::new() }
    }

    /// Calls `look` with the locked shard of the key.
    pub fn with<R>(&self, key: &[u8], look: impl FnOnce(&mut Entry<'_, T>) -> R) -> R {
        let hash = self.hasher.hash_one(key);
        // The upper half of the hash selects the shard, the lower half the chain.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        debug_assert!(self.shards.len().is_power_of_two(), "the mask selects a shard");
        look(&mut Entry { shard: lock(&self.shards[shard]), key, hash: hash as u32 })
    }

    /// Returns the bytes of all states as nginx's allocator would count them.
    pub fn used(&self) -> u64 {
        debug_assert!(
            self.shards.iter().all(|shard| lock(shard).bytes_left <= self.budget),
            "no shard releases more than it has"
        );
        self.shards.iter().map(|shard| self.budget - lock(shard).bytes_left).sum()
    }

    /// Returns the current number of states.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).nodes.slots().count()).sum()
    }
}

/// Returns the bytes of a zone that nginx's allocator can give to states: complete pages.
pub fn usable_bytes(bytes: u64) -> u64 {
    // One page is used for nginx's header of the zone.
    (bytes.saturating_sub(PAGE) / (PAGE + PAGE_NOTE)).max(1) * PAGE
}

/// Ignores poisoning: no code that can panic runs while a shard is inconsistent.
fn lock<T>(shard: &Mutex<Shard<T>>) -> MutexGuard<'_, Shard<T>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A key and the shard that it belongs to.
pub struct Entry<'a, T> {
    shard: MutexGuard<'a, Shard<T>>,
    key: &'a [u8],
    hash: u32,
}

impl<T> Entry<'_, T> {
    /// Returns the state of the key.
    pub fn get(&mut self) -> Option<&mut T> {
        let slot = self.shard.find(self.key, self.hash)?;
        Some(&mut self.shard.nodes[slot].value)
    }

    /// Returns the state of the key and marks it as used now.
    pub fn touch(&mut self) -> Option<&mut T> {
        let slot = self.shard.find(self.key, self.hash)?;
        self.shard.nodes.touch(slot);
        Some(&mut self.shard.nodes[slot].value)
    }

    /// Adds a state for a key without one; returns `false` if the shard is full.
    pub fn insert(&mut self, value: T) -> bool {
        self.shard.insert(self.key, self.hash, value)
    }

    /// Removes the state of the key.
    pub fn remove(&mut self) {
        if let Some(slot) = self.shard.find(self.key, self.hash) {
            self.shard.remove(slot);
        }
    }

    /// Returns the least recently used state of this shard.
    pub fn oldest(&self) -> Option<&T> {
        let nodes = &self.shard.nodes;
        nodes.oldest().map(|slot| &nodes[slot].value)
    }

    /// Removes the least recently used state; returns `false` if the shard is empty.
    pub fn remove_oldest(&mut self) -> bool {
        self.shard.nodes.oldest().map(|slot| self.shard.remove(slot)).is_some()
    }
}

impl<T> Shard<T> {
    fn new(budget: u64, overhead: u64) -> Shard<T> {
        let nodes_max = (budget / cost(overhead, 1).max(COST_MIN)).min(u64::from(u32::MAX) - 1) as usize;
        // The kernel allocates the pages of index and nodes at their first write, and no state ever moves.
        let chains = nodes_max.next_power_of_two().min(CHAINS_MAX);
        Shard {
            index: vec![None; chains].into(),
            nodes: Recency::with_room_for(nodes_max),
            bytes_left: budget,
            overhead,
        }
    }

    fn chain(&mut self, hash: u32) -> &mut Link {
        debug_assert!(self.index.len().is_power_of_two(), "the mask selects a chain");
        let mask = self.index.len() - 1;
        &mut self.index[hash as usize & mask]
    }

    fn find(&mut self, key: &[u8], hash: u32) -> Link {
        let mut at = *self.chain(hash);
        while let Some(slot) = at {
            let node = &self.nodes[slot];
            if node.hash == hash && node.key.bytes() == key {
                return at;
            }
            at = node.chain;
        }
        None
    }

    fn insert(&mut self, key: &[u8], hash: u32, value: T) -> bool {
        let Some(left) = self.bytes_left.checked_sub(cost(self.overhead, key.len())) else { return false };
        debug_assert!(self.find(key, hash).is_none(), "a key has one state");
        let chain = *self.chain(hash);
        let slot = self.nodes.insert(Node { key: Key::new(key), hash, chain, value });
        *self.chain(hash) = Some(slot);
        self.bytes_left = left;
        true
    }

    fn remove(&mut self, slot: ListSlot) {
        let node = self.nodes.remove(slot);
        self.bytes_left += cost(self.overhead, node.key.bytes().len());
        let first = self.chain(node.hash);
        if *first == Some(slot) {
            *first = node.chain;
            return;
        }
        let mut at = *first;
        while let Some(before) = at {
            let before = &mut self.nodes[before];
            if before.chain == Some(slot) {
                before.chain = node.chain;
                return;
            }
            at = before.chain;
        }
    }
}

/// Maximum number of chains per shard: 16 MiB of index.
const CHAINS_MAX: usize = 1 << 22;

/// Returns the bytes that nginx's allocator uses for a state: a power of two, or complete pages.
fn cost(overhead: u64, key: usize) -> u64 {
    let bytes = overhead + key as u64;
    if bytes > PAGE / 2 { bytes.next_multiple_of(PAGE) } else { bytes.next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &Table<u32>) -> Vec<Vec<u8>> {
        let shard = lock(&table.shards[0]);
        shard.nodes.slots().map(|slot| shard.nodes[slot].key.bytes().to_vec()).collect()
    }

    #[test]
    fn states_are_found_changed_and_removed() {
        let table = Table::<u32>::new(32 << 10, 80);
        let long = vec![b'x'; 300];
        for key in [&b"a"[..], b"b", &long] {
            assert!(table.with(key, |entry| entry.get().is_none() && entry.insert(1)));
        }
        table.with(b"a", |entry| *entry.get().expect("it is there") += 1);
        assert_eq!(table.with(b"a", |entry| entry.get().copied()), Some(2));
        assert_eq!(keys(&table), [b"a".to_vec(), b"b".to_vec(), long.clone()]);
        table.with(b"a", |entry| entry.touch().is_some());
        assert_eq!(table.with(b"", |entry| entry.oldest().copied()), Some(1));
        table.with(&long, |entry| entry.remove());
        assert_eq!(keys(&table), [b"b", b"a"]);
        assert!(table.with(b"", |entry| entry.remove_oldest()));
        assert_eq!(keys(&table), [b"a"]);
        assert!(
            table.with(b"", |entry| entry.remove_oldest()) && !table.with(b"", |entry| entry.remove_oldest())
        );
    }

    #[test]
    fn a_size_holds_as_many_states_as_in_nginx() {
        // The documentation of limit_req_zone says: about 8 thousand states of 128 bytes in a megabyte.
        let fill = |bytes: u64, overhead: u64| {
            let table = Table::<u64>::new(bytes, overhead);
            let number = |number: u32| number.to_ne_bytes();
            let mut refused = 0;
            for key in 0..40_000 {
                refused += u32::from(!table.with(&number(key), |entry| entry.insert(0)));
            }
            assert!(refused > 0, "it is full");
            table.count()
        };
        assert_eq!(fill(32 << 10, 80), 6 * 32);
        assert_eq!(fill(1 << 20, 80), 253 * 32);
        assert_eq!(fill(1 << 20, 36), 253 * 64);
    }

    #[test]
    fn memory_is_bounded_by_the_size() {
        // An index entry and a node use less memory than the counted cost, also with a separately allocated key.
        assert!(Recency::<Node<[i64; 2]>>::NODE_LEN + 2 * size_of::<Link>() <= 128);
        assert!(Recency::<Node<u32>>::NODE_LEN + 2 * size_of::<Link>() <= 64);
        let table = Table::<u32>::new(32 << 10, 80);
        assert!(!table.with(&vec![0; 65_535], |entry| entry.insert(0)), "longer than the zone");
        let key = |number: u32| [number.to_ne_bytes(); 100].concat();
        for number in 0..10_000 {
            while !table.with(&key(number), |entry| entry.insert(0)) {
                assert!(table.with(b"", |entry| entry.remove_oldest()));
            }
        }
        let shard = lock(&table.shards[0]);
        assert_eq!(shard.nodes.slots().count(), 48, "512 bytes each");
        assert_eq!(shard.bytes_left, 0);
    }

    #[test]
    fn every_key_is_in_its_shard() {
        let table = Table::<u32>::new(10 << 20, 36);
        assert_eq!(table.shards.len(), SHARDS_MAX as usize);
        for number in 0..1000_u32 {
            assert!(table.with(&number.to_ne_bytes(), |entry| entry.insert(number)));
        }
        for number in (0..1000_u32).step_by(2) {
            table.with(&number.to_ne_bytes(), |entry| entry.remove());
        }
        for number in 0..1000_u32 {
            let found = table.with(&number.to_ne_bytes(), |entry| entry.get().copied());
            assert_eq!(found, (number % 2 == 1).then_some(number));
        }
        assert_eq!(table.count(), 500);
    }
}
