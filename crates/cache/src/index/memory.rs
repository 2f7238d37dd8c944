//! The memory tier (`memory=`): frequently requested small objects, complete in memory, with a separate limit.
//!
//! Direct reads leave nothing in the page cache. With them, hot objects use no memory beyond this limit, which can be
//! chosen to fit the memory limit of a container.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::s3fifo::{Exhausted, KeyBytes, S3Fifo};
use crate::mutex::lock;

/// Number of shards, each with its lock.
const SHARDS: usize = 16;

/// Memory of one object in addition to its bytes: the node, the counters of its `Arc`, and the allocator's rounding.
const OVERHEAD_BYTES: u64 = 192;

/// Divisor of the shard size that gives the maximum size of an object: a few large objects would evict all others.
const LARGEST_DIVISOR: u64 = 16;

/// Objects in memory, of a type that the store chooses.
pub(crate) struct MemoryTier<T> {
    shards: Box<[Mutex<S3Fifo<Slot<T>>>]>,
    shard_bytes: u64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Slot<T> {
    object: Option<Arc<T>>,
    version: u32,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { object: None, version: 0 }
    }
}

impl<T> MemoryTier<T> {
    /// Creates a tier of at most `bytes`; with 0, it stores nothing. `seed` must be secret to clients.
    pub(crate) fn new(bytes: u64, seed: [u64; 2]) -> MemoryTier<T> {
        let shard_bytes = bytes / SHARDS as u64;
        // The number of slots suffices for objects of 512 bytes on average. With smaller objects, the slots are
        // exhausted before the bytes.
        let places = (shard_bytes / 512) as usize;
        let count = if bytes == 0 { 0 } else { SHARDS };
        let shards = (0..count).map(|_| Mutex::new(S3Fifo::new(places, seed))).collect();
        MemoryTier { shards, shard_bytes, bytes: AtomicU64::new(0) }
    }

    /// Returns the maximum size of an object in bytes.
    pub(crate) fn object_max(&self) -> u64 {
        (self.shard_bytes / LARGEST_DIVISOR).saturating_sub(OVERHEAD_BYTES)
    }

    /// Returns the number of bytes in use, including the overhead.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the object and its version, if it is wanted, and counts a use of it. The lock is held while `is_wanted` runs.
    pub(crate) fn find(&self, key: &KeyBytes, is_wanted: impl Fn(&T, u32) -> bool) -> Option<(Arc<T>, u32)> {
        let mut shard = self.shard(key)?;
        let is_wanted =
            |slot: &Slot<T>| slot.object.as_ref().is_some_and(|object| is_wanted(object, slot.version));
        let (slot, _) = shard.touch_if(key, is_wanted)?;
        slot.object.as_ref().map(|object| (Arc::clone(object), slot.version))
    }

    /// Returns the object, if it has this version, and counts a use of it.
    pub(crate) fn get(&self, key: &KeyBytes, version: u32) -> Option<Arc<T>> {
        self.find(key, |_, found| found == version).map(|(object, _)| object)
    }

    /// Stores an object of this many bytes, if it is worth a slot: not at its first request if it would evict others.
    pub(crate) fn offer(&self, key: &KeyBytes, version: u32, bytes: u64, object: &Arc<T>) {
        let Some(mut shard) = self.shard(key).filter(|_| bytes <= self.object_max()) else { return };
        let weight = (bytes + OVERHEAD_BYTES) as u32;
        let is_short = shard.is_full() || shard.weight() + u64::from(weight) > self.shard_bytes;
        if is_short && shard.get(key).is_none() && !shard.remembers(key) {
            shard.remember(key);
            return;
        }
        let before = shard.weight();
        // Its old copy is removed first, so that another object is evicted.
        shard.remove(key);
        let mut dropped = Vec::new();
        while shard.is_full() || shard.weight() + u64::from(weight) > self.shard_bytes {
            let short = if shard.is_full() { Exhausted::Nodes } else { Exhausted::Weight };
            match shard.evict(short) {
                Some(taken) => dropped.push(taken.value),
                None => break,
            }
        }
        let _ = shard.insert(*key, weight, Slot { object: Some(Arc::clone(object)), version });
        let after = shard.weight();
        debug_assert!(after <= self.shard_bytes, "{after} of {} bytes", self.shard_bytes);
        // Memory is freed after the lock is released.
        drop(shard);
        drop(dropped);
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Removes an object.
    pub(crate) fn remove(&self, key: &KeyBytes) {
        let taken = self.shard(key).and_then(|mut shard| shard.remove(key));
        if let Some(taken) = taken {
            let before = self.bytes.fetch_sub(u64::from(taken.weight), Ordering::Relaxed);
            debug_assert!(taken.weight as u64 >= OVERHEAD_BYTES && before > 0);
        }
    }

    /// Removes all objects.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            loop {
                // One object per lock, because other threads wait for it.
                let taken = lock(shard).evict(Exhausted::Nodes);
                let Some(taken) = taken else { break };
                self.bytes.fetch_sub(u64::from(taken.weight), Ordering::Relaxed);
            }
        }
    }

    fn shard(&self, key: &KeyBytes) -> Option<MutexGuard<'_, S3Fifo<Slot<T>>>> {
        self.shards.get(usize::from(key[15]) % SHARDS).map(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> KeyBytes {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes()
    }

    /// A request for a stale entry finds it twice: first only a fresh entry is wanted.
    #[test]
    fn only_wanted_objects_are_used() {
        let frequency = |wanted: &[bool]| {
            let memory = MemoryTier::new(1 << 20, [3, 5]);
            memory.offer(&key(1), 1, 100, &Arc::new(1));
            for is_wanted in wanted {
                assert_eq!(memory.find(&key(1), |_, _| *is_wanted).is_some(), *is_wanted);
            }
            let shard = memory.shard(&key(1)).expect("the tier is on");
            shard.frequency(&key(1)).expect("it is stored")
        };
        assert_eq!(frequency(&[false, true]), frequency(&[true]));
        assert_ne!(frequency(&[true, true]), frequency(&[true]));
    }

    #[test]
    fn the_limit_is_never_exceeded() {
        let memory = MemoryTier::new(1 << 20, [3, 5]);
        for number in 0..20_000u64 {
            let bytes = number % (memory.object_max() + 10);
            // Twice, so that a full tier admits it.
            for _ in 0..2 {
                memory.offer(&key(number), 1, bytes, &Arc::new(number));
            }
            assert!(memory.bytes() <= 1 << 20);
        }
        let kept = (0..20_000).filter(|&number| memory.get(&key(number), 1).is_some()).count();
        assert!(kept > 100, "{kept}");
        memory.clear();
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn memory_holds_one_version_of_an_object() {
        let memory = MemoryTier::new(1 << 20, [3, 5]);
        memory.offer(&key(1), 1, 100, &Arc::new("old"));
        assert_eq!(memory.get(&key(1), 1).as_deref(), Some(&"old"));
        assert_eq!(memory.get(&key(1), 2), None);
        memory.offer(&key(1), 2, 200, &Arc::new("new"));
        assert_eq!((memory.get(&key(1), 1), memory.get(&key(1), 2).as_deref()), (None, Some(&"new")));
        assert_eq!(memory.bytes(), 200 + OVERHEAD_BYTES);
        memory.remove(&key(1));
        assert_eq!((memory.get(&key(1), 2), memory.bytes()), (None, 0));
    }

    #[test]
    fn hot_objects_are_retained_during_a_scan() {
        let memory = MemoryTier::new(1 << 20, [3, 5]);
        memory.offer(&key(0), 1, 1000, &Arc::new(0));
        for number in 1..10_000u64 {
            memory.offer(&key(number), 1, 1000, &Arc::new(number));
            assert!(memory.get(&key(0), 1).is_some(), "{number}");
        }
    }

    #[test]
    fn nothing_is_stored_without_memory() {
        let memory = MemoryTier::new(0, [3, 5]);
        memory.offer(&key(1), 1, 0, &Arc::new(()));
        assert_eq!((memory.get(&key(1), 1), memory.object_max()), (None, 0));
        memory.remove(&key(1));
        memory.clear();
    }
}
