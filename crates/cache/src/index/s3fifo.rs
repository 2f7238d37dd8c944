//! Cache replacement: S3-FIFO (Yang and others, SOSP 2023) over a slab.
//!
//! ```text
//!               requested twice in the small queue
//!   new --> small (a tenth) -----------------------------> main --> evicted
//!    |         |                                            ^  ^ |
//!    |         +--> evicted, its fingerprint to the ghosts  |  +-+ requested since
//!    +------------------- fingerprint among the ghosts -----+
//! ```
//! A hit increments a counter of two bits and moves nothing. The same structure orders objects on disk
//! ([`crate::index`]) and in memory ([`crate::index::memory`]), with different meanings of weights and values.

/// Key of an object: a digest, so its bits are as good as random, but not secret.
pub(crate) type KeyBytes = [u8; 16];

/// Objects of one shard.
#[derive(Debug)]
pub(crate) struct S3Fifo<V> {
    nodes: Vec<Node<V>>,
    /// Index of the first node of each bucket of keys.
    buckets: Vec<u32>,
    seed: [u64; 2],
    /// Index of the first unused node; unused nodes are chained like those of buckets.
    free: u32,
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
    nodes_max: usize,
}

#[derive(Debug)]
struct Node<V> {
    key: KeyBytes,
    weight: u32,
    /// The next node of the bucket, or the next unused node.
    chain: u32,
    newer: u32,
    older: u32,
    queue: QueueName,
    /// Number of recent requests, at most [`FREQUENCY_MAX`].
    frequency: u8,
    value: V,
}

/// The queue of S3-FIFO that contains a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueName {
    NoQueue,
    Small,
    Main,
}

/// Index that stands for no node.
const NONE: u32 = u32::MAX;

/// Maximum of the request counter: two bits, as published. A higher limit would retain formerly popular objects for too
/// long.
const FREQUENCY_MAX: u8 = 3;

/// An object with more requests than this in the small queue moves to the main queue.
const PROMOTED_ABOVE: u8 = 1;

/// The small queue gets one part in this many of the total weight.
const SMALL_DIVISOR: u64 = 10;

/// Maximum number of objects that one eviction examines. Without this limit, a search among popular objects only would
/// hold the lock of the shard for long.
const EXAMINED_MAX: usize = 64;

#[derive(Debug)]
struct Queue {
    newest: u32,
    oldest: u32,
    weight: u64,
    count: usize,
}

/// The exhausted resource that requires an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    /// The weight: bytes of disk or memory.
    Weight,
    /// The number of nodes. Objects with weight 0 use nodes too.
    Nodes,
}

/// A removed object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removed<V> {
    pub(crate) key: KeyBytes,
    pub(crate) weight: u32,
    pub(crate) value: V,
}

impl<V: Default> S3Fifo<V> {
    /// Creates an empty structure for `nodes_max` objects. Address space is reserved; memory is used as objects are
    /// added.
    pub(crate) fn new(nodes_max: usize, seed: [u64; 2]) -> S3Fifo<V> {
        let nodes_max = nodes_max.clamp(1, NONE as usize - 1);
        let mut nodes = Vec::new();
        // If the reservation fails, memory is allocated as objects are added.
        let _ = nodes.try_reserve_exact(nodes_max);
        S3Fifo {
            nodes,
            buckets: vec![NONE_STORED; nodes_max.next_power_of_two()],
            // Odd factors: multiplication by an even one would lose bits.
            seed: [seed[0] | 1, seed[1] | 1],
            free: NONE,
            small: Queue::empty(),
            main: Queue::empty(),
            ghosts: Ghosts::new(nodes_max / 2),
            nodes_max,
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.small.count + self.main.count
    }

    /// Returns the sum of the weights.
    pub(crate) fn weight(&self) -> u64 {
        self.small.weight + self.main.weight
    }

    /// Whether all nodes are in use.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.nodes_max
    }

    /// Returns the value and the weight of an object.
    pub(crate) fn get(&self, key: &KeyBytes) -> Option<(&V, u32)> {
        let node = self.node(self.find(key)?);
        Some((&node.value, node.weight))
    }

    /// As [`S3Fifo::get`], for changes of the value; does not count a request.
    pub(crate) fn get_mut(&mut self, key: &KeyBytes) -> Option<&mut V> {
        let index = self.find(key)?;
        Some(&mut self.nodes[index as usize].value)
    }

    /// As [`S3Fifo::get`]; counts a request.
    pub(crate) fn touch(&mut self, key: &KeyBytes) -> Option<(&mut V, u32)> {
        self.touch_if(key, |_| true)
    }

    /// As [`S3Fifo::touch`], if the value is wanted.
    pub(crate) fn touch_if(
        &mut self,
        key: &KeyBytes,
        is_wanted: impl FnOnce(&V) -> bool,
    ) -> Option<(&mut V, u32)> {
        let index = self.find(key)?;
        let node = &mut self.nodes[index as usize];
        if !is_wanted(&node.value) {
            return None;
        }
        node.frequency = (node.frequency + 1).min(FREQUENCY_MAX);
        debug_assert!(node.queue != QueueName::NoQueue && node.frequency <= FREQUENCY_MAX);
        Some((&mut node.value, node.weight))
    }

    /// Returns the number of requests that were counted for an object, up to the maximum.
    #[cfg(test)]
    pub(crate) fn frequency(&self, key: &KeyBytes) -> Option<u8> {
        Some(self.node(self.find(key)?).frequency)
    }

    /// Whether the key was evicted recently, or was recorded by [`S3Fifo::remember`].
    pub(crate) fn remembers(&self, key: &KeyBytes) -> bool {
        self.ghosts.has(self.hash(key))
    }

    /// Records a key that is not inserted yet.
    pub(crate) fn remember(&mut self, key: &KeyBytes) {
        let hash = self.hash(key);
        self.ghosts.insert(hash);
    }

    /// Inserts an object, or replaces and returns an earlier one. Fails if no node is free: an object has to be evicted
    /// first.
    pub(crate) fn insert(&mut self, key: KeyBytes, weight: u32, value: V) -> Result<Option<Removed<V>>, V> {
        if let Some(index) = self.find(&key) {
            let node = &mut self.nodes[index as usize];
            let old = std::mem::replace(&mut node.weight, weight);
            let value = std::mem::replace(&mut node.value, value);
            let queue = if node.queue == QueueName::Small { &mut self.small } else { &mut self.main };
            debug_assert!(queue.weight >= u64::from(old), "a queue has the sum of its objects' weights");
            queue.weight = queue.weight - u64::from(old) + u64::from(weight);
            return Ok(Some(Removed { key, weight: old, value }));
        }
        if self.is_full() {
            return Err(value);
        }
        let hash = self.hash(&key);
        let to = if self.ghosts.has(hash) { QueueName::Main } else { QueueName::Small };
        let bucket = self.bucket(hash);
        let chain = unstored(self.buckets[bucket]);
        let node = Node {
            key,
            weight,
            chain,
            newer: NONE,
            older: NONE,
            queue: QueueName::NoQueue,
            frequency: 0,
            value,
        };
        let index = match self.free {
            NONE => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            index => {
                self.free = self.node(index).chain;
                self.nodes[index as usize] = node;
                index
            }
        };
        self.buckets[bucket] = stored(index);
        self.link(index, to);
        debug_assert!(self.len() <= self.nodes_max && self.find(&key) == Some(index));
        Ok(None)
    }

    /// Removes and returns an object.
    pub(crate) fn remove(&mut self, key: &KeyBytes) -> Option<Removed<V>> {
        let index = self.find(key)?;
        Some(self.take(index))
    }

    /// Evicts the least valuable object for the resource that is exhausted; `None` when there is no object.
    pub(crate) fn evict(&mut self, short: Exhausted) -> Option<Removed<V>> {
        for _ in 0..EXAMINED_MAX {
            if self.small_is_next(short) {
                let index = self.small.oldest;
                if self.node(index).frequency <= PROMOTED_ABOVE {
                    return Some(self.evict_small());
                }
                self.nodes[index as usize].frequency = 0;
                self.move_to(index, QueueName::Main);
            } else {
                let index = self.main.oldest;
                let node = self.nodes.get_mut(index as usize)?;
                if node.frequency == 0 {
                    return Some(self.take(index));
                }
                node.frequency -= 1;
                self.move_to(index, QueueName::Main);
            }
        }
        // All examined objects were requested recently: the oldest is evicted nevertheless.
        if self.small_is_next(short) { Some(self.evict_small()) } else { Some(self.take(self.main.oldest)) }
    }

    /// Visits the next `count` objects behind `cursor`, in no meaningful order. Returns the position to continue at; 0
    /// at the end. Objects that are inserted or removed during the scan may be missed.
    pub(crate) fn scan(
        &self,
        cursor: usize,
        count: usize,
        mut look: impl FnMut(&KeyBytes, u32, &V),
    ) -> usize {
        debug_assert!(self.nodes.len() <= self.nodes_max);
        let end = cursor.saturating_add(count).min(self.nodes.len());
        for node in self.nodes.get(cursor..end).unwrap_or_default() {
            if node.queue != QueueName::NoQueue {
                look(&node.key, node.weight, &node.value);
            }
        }
        if end == self.nodes.len() { 0 } else { end }
    }

    fn small_is_next(&self, short: Exhausted) -> bool {
        let (small, all) = match short {
            Exhausted::Weight => (self.small.weight, self.weight()),
            Exhausted::Nodes => (self.small.count as u64, self.len() as u64),
        };
        self.small.count > 0 && (self.main.count == 0 || small * SMALL_DIVISOR > all)
    }

    fn evict_small(&mut self) -> Removed<V> {
        let index = self.small.oldest;
        let hash = self.hash(&self.node(index).key);
        self.ghosts.insert(hash);
        self.take(index)
    }

    fn take(&mut self, index: u32) -> Removed<V> {
        self.unlink(index);
        let key = self.node(index).key;
        let bucket = self.bucket(self.hash(&key));
        let next = self.node(index).chain;
        let mut at = unstored(self.buckets[bucket]);
        if at == index {
            self.buckets[bucket] = stored(next);
        } else {
            while self.node(at).chain != index {
                at = self.node(at).chain;
            }
            self.nodes[at as usize].chain = next;
        }
        let free = std::mem::replace(&mut self.free, index);
        let node = &mut self.nodes[index as usize];
        node.chain = free;
        debug_assert!(node.queue == QueueName::NoQueue);
        Removed { key, weight: node.weight, value: std::mem::take(&mut node.value) }
    }

    fn find(&self, key: &KeyBytes) -> Option<u32> {
        let mut at = unstored(self.buckets[self.bucket(self.hash(key))]);
        while at != NONE && self.node(at).key != *key {
            at = self.node(at).chain;
        }
        (at != NONE).then_some(at)
    }

    /// Returns the hash of a key. Clients choose the texts of keys; the secret factors prevent them from filling a
    /// single bucket.
    fn hash(&self, key: &KeyBytes) -> u64 {
        let (low, high) = key.split_at(8);
        let part = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a half of sixteen bytes"));
        let mixed =
            part(low).wrapping_mul(self.seed[0]) ^ part(high).wrapping_mul(self.seed[1]).rotate_left(32);
        mixed ^ (mixed >> 29)
    }

    fn bucket(&self, hash: u64) -> usize {
        (hash.wrapping_mul(SPREAD) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn node(&self, index: u32) -> &Node<V> {
        &self.nodes[index as usize]
    }

    fn queue(&mut self, queue: QueueName) -> &mut Queue {
        match queue {
            QueueName::Small => &mut self.small,
            QueueName::Main => &mut self.main,
            QueueName::NoQueue => unreachable!("a node in use is in a queue"),
        }
    }

    fn move_to(&mut self, index: u32, to: QueueName) {
        self.unlink(index);
        self.link(index, to);
    }

    fn link(&mut self, index: u32, to: QueueName) {
        let weight = self.node(index).weight;
        debug_assert!(self.node(index).queue == QueueName::NoQueue, "a node is in at most one queue");
        let queue = self.queue(to);
        let older = std::mem::replace(&mut queue.newest, index);
        queue.weight += u64::from(weight);
        queue.count += 1;
        if older == NONE {
            queue.oldest = index;
        } else {
            self.nodes[older as usize].newer = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.queue, node.older, node.newer) = (to, older, NONE);
    }

    fn unlink(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let (newer, older, weight, from) = (node.newer, node.older, node.weight, node.queue);
        node.queue = QueueName::NoQueue;
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
        let queue = self.queue(from);
        assert!(queue.count > 0 && queue.weight >= u64::from(weight), "the node was in this queue");
        queue.weight -= u64::from(weight);
        queue.count -= 1;
        debug_assert!(queue.count > 0 || queue.weight == 0, "an empty queue has the weight 0");
        if newer == NONE {
            queue.newest = older;
        }
        if older == NONE {
            queue.oldest = newer;
        }
    }
}

impl Queue {
    fn empty() -> Queue {
        Queue { newest: NONE, oldest: NONE, weight: 0, count: 0 }
    }
}

/// The value of an empty bucket. A bucket stores the index of its first node plus one: fresh memory from the kernel is
/// zero, so the buckets need not be initialised at the start.
const NONE_STORED: u32 = 0;

fn stored(index: u32) -> u32 {
    index.wrapping_add(1)
}

fn unstored(number: u32) -> u32 {
    number.wrapping_sub(1)
}

/// Multiplier that spreads a hash over its upper half (golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fingerprints of keys that were evicted or requested once, in sets; new fingerprints overwrite the oldest of a set. A
/// lookup matches a wrong fingerprint once in 2^32 / [`WAYS`] lookups.
#[derive(Debug)]
struct Ghosts {
    /// Fingerprint in the upper half, insertion time in the lower half; 0 is empty.
    sets: Vec<[u64; WAYS]>,
    /// Number of insertions so far.
    time: u32,
}

/// Number of fingerprints per set.
const WAYS: usize = 4;

impl Ghosts {
    fn new(count: usize) -> Ghosts {
        Ghosts { sets: vec![[0; WAYS]; (count / WAYS).next_power_of_two()], time: 1 }
    }

    fn set(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }

    fn has(&self, hash: u64) -> bool {
        let age_max = (self.sets.len() * WAYS) as u32;
        let same =
            |&ghost: &u64| ghost >> 32 == hash >> 32 && self.time.wrapping_sub(ghost as u32) <= age_max;
        self.sets[self.set(hash)].iter().any(|ghost| *ghost != 0 && same(ghost))
    }

    fn insert(&mut self, hash: u64) {
        let (set, time) = (self.set(hash), self.time);
        self.time = time.wrapping_add(1);
        let ghost = (hash >> 32) << 32 | u64::from(time);
        let ways = &mut self.sets[set];
        let same = ways.iter().position(|known| known >> 32 == hash >> 32);
        let age = |known: &u64| if *known == 0 { u32::MAX } else { time.wrapping_sub(*known as u32) };
        let oldest = (0..WAYS).max_by_key(|&way| age(&ways[way])).unwrap_or(0);
        ways[same.unwrap_or(oldest)] = ghost;
        debug_assert!(self.has(hash));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(number: u32) -> KeyBytes {
        // Like a digest: neighbouring numbers have unrelated keys.
        let spread = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        spread.to_le_bytes()
    }

    fn filled(count: u32) -> S3Fifo<u32> {
        let mut fifo = S3Fifo::new(count as usize, [3, 5]);
        for number in 0..count {
            assert_eq!(fifo.insert(key(number), 1, number), Ok(None));
        }
        fifo
    }

    #[test]
    fn objects_without_requests_are_evicted_in_order() {
        let mut fifo = filled(10);
        let order: Vec<u32> =
            std::iter::from_fn(|| fifo.evict(Exhausted::Weight)).map(|taken| taken.value).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
        assert_eq!((fifo.len(), fifo.weight()), (0, 0));
    }

    #[test]
    fn requested_objects_survive_a_scan() {
        let mut fifo = filled(100);
        for number in 0..20 {
            for _ in 0..2 {
                fifo.touch(&key(number)).expect("it is there");
            }
        }
        // Ten times as many objects that are requested once pass through.
        for number in 1000..2000 {
            if fifo.is_full() {
                fifo.evict(Exhausted::Nodes).expect("there is something");
            }
            fifo.insert(key(number), 1, number).expect("there is room");
        }
        let kept = (0..20).filter(|&number| fifo.get(&key(number)).is_some()).count();
        assert_eq!(kept, 20);
    }

    #[test]
    fn a_returning_ghost_enters_the_main_queue() {
        let mut fifo = filled(10);
        assert_eq!(fifo.evict(Exhausted::Weight).map(|taken| taken.value), Some(0));
        assert!(fifo.remembers(&key(0)) && !fifo.remembers(&key(500)));
        fifo.insert(key(0), 1, 0).expect("there is room");
        assert_eq!(fifo.main.count, 1);
        fifo.remember(&key(500));
        assert!(fifo.remembers(&key(500)));
    }

    #[test]
    fn ghosts_are_replaced_by_newer_ones() {
        let mut ghosts = Ghosts::new(64);
        let hash = |number: u64| number.wrapping_mul(SPREAD);
        for number in 1..=1000 {
            ghosts.insert(hash(number));
            assert!(ghosts.has(hash(number)));
        }
        let known = (1..=1000).filter(|&number| ghosts.has(hash(number))).count();
        assert!((32..=64).contains(&known), "{known} of 64 places");
    }

    #[test]
    fn eviction_ends_even_if_all_objects_are_popular() {
        let mut fifo = filled(1000);
        for number in 0..1000 {
            for _ in 0..3 {
                fifo.touch(&key(number));
            }
        }
        assert!(fifo.evict(Exhausted::Weight).is_some());
    }

    #[test]
    fn weightless_objects_are_evicted_when_slots_are_scarce() {
        let mut fifo = S3Fifo::new(20, [3, 5]);
        for number in 0..10 {
            fifo.remember(&key(number));
            fifo.insert(key(number), 1, number).expect("there is room");
            fifo.insert(key(100 + number), 0, number).expect("there is room");
        }
        assert_eq!(fifo.evict(Exhausted::Weight).map(|taken| taken.weight), Some(1));
        assert_eq!(fifo.evict(Exhausted::Nodes).map(|taken| taken.weight), Some(0));
    }

    #[test]
    fn the_weight_of_an_object_may_change() {
        let mut fifo = filled(2);
        let old = fifo.insert(key(1), 5, 7).expect("it has a place").expect("there was one");
        assert_eq!((old.weight, old.value, fifo.weight(), fifo.len()), (1, 1, 6, 2));
        assert_eq!(fifo.insert(key(2), 1, 9), Err(9), "there is no room");
    }

    /// A value of 12 bytes keeps the index at 64 bytes per object, with bucket and ghost.
    #[test]
    fn a_node_is_small() {
        assert!(size_of::<Node<[u32; 3]>>() <= 52);
    }

    proptest! {
        /// After any sequence of steps, the structure has the same objects as a map, and correct sums.
        #[test]
        fn contains_the_same_objects_as_a_map(steps in prop::collection::vec((0u32..40, 0u8..5, 1u32..9), 0..400)) {
            let mut fifo = S3Fifo::new(16, [7, 11]);
            let mut map: HashMap<KeyBytes, (u32, u32)> = HashMap::new();
            for (number, what, weight) in steps {
                match what {
                    0 => prop_assert_eq!(
                        fifo.remove(&key(number)).map(|taken| (taken.weight, taken.value)),
                        map.remove(&key(number))
                    ),
                    1 => prop_assert_eq!(
                        fifo.touch(&key(number)).map(|(value, weight)| (weight, *value)),
                        map.get(&key(number)).copied()
                    ),
                    2 => if let Some(taken) = fifo.evict(Exhausted::Weight) {
                        prop_assert_eq!(map.remove(&taken.key), Some((taken.weight, taken.value)));
                    } else {
                        prop_assert!(map.is_empty());
                    },
                    _ => if fifo.insert(key(number), weight, number).is_ok() {
                        map.insert(key(number), (weight, number));
                    } else {
                        prop_assert_eq!(map.len(), 16);
                    },
                }
                prop_assert_eq!(fifo.len(), map.len());
                prop_assert_eq!(fifo.weight(), map.values().map(|(weight, _)| u64::from(*weight)).sum::<u64>());
            }
            let (mut seen, mut cursor) = (0, 0);
            loop {
                cursor = fifo.scan(cursor, 3, |key, _, _| {
                    seen += usize::from(map.contains_key(key));
                });
                if cursor == 0 {
                    break;
                }
            }
            prop_assert_eq!(seen, map.len());
        }
    }
}
