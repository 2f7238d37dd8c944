//! The in-memory index of a cache: a few words for each object on the disk. It is divided into shards; the lock of a
//! shard is held for some ten nanoseconds.
//!
//! An object leaves the index before its file is deleted. Until loading has completed, the index may list a file that
//! was just deleted, and an object that exists may be missing; lookups check the disk then.

pub(crate) mod memory;
pub(crate) mod s3fifo;
pub(crate) mod space;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use self::s3fifo::{Exhausted, KeyBytes, Removed, S3Fifo};
pub use self::space::{SpaceReservation, Used};
use crate::mutex::lock;

/// Maximum number of bytes of index memory per object, including its share of buckets and ghosts.
pub const OBJECT_BYTES: u64 = 64;

/// Number of shards: far more than threads, so that two threads rarely contend for a lock.
const SHARDS: usize = 64;

/// Maximum number of objects in a batch, which are read under one lock.
pub(crate) const BATCH_MAX: usize = 512;

/// Block size in bytes for counting disk space: the smallest allocation unit of usual file systems.
pub const BLOCK_BYTES: u64 = 4096;

/// State of an object that is known without disk access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Number of blocks of its file; 0 for a key without a file. With it, a small file is read in one operation. Until
    /// the file is measured, this is an estimate of at least 1.
    pub blocks: u32,
    /// Whether its size is known.
    pub measured: bool,
    /// Distinguishes this object from a later one under the same key.
    pub version: u32,
    /// The epoch ([`crate::Config::verify`]) in which its checksums were last verified, or in which it was written; 0
    /// for never.
    pub verified: u16,
    /// Whether it was requested since it was found or written.
    pub requested: bool,
    /// The time of its last request, in seconds of the store's clock.
    pub accessed_s: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    accessed_s: u32,
    version: u32,
    verified: u16,
    /// The flags [`REQUESTED`] and [`MEASURED`] in one byte, because every object has such a field.
    marks: u8,
    /// Number of requests for the key before it got a file (`proxy_cache_min_uses`).
    uses: u8,
}

/// Maximum number of counted requests for a key without a file: the counter has one byte per object.
pub const USES_MAX: u64 = u8::MAX as u64;

/// See [`IndexEntry::requested`].
const REQUESTED: u8 = 1;

/// See [`IndexEntry::measured`].
const MEASURED: u8 = 2;

impl Facts {
    fn entry(self, blocks: u32) -> IndexEntry {
        let Facts { accessed_s, version, verified, marks, .. } = self;
        let (requested, measured) = (marks & REQUESTED != 0, marks & MEASURED != 0);
        IndexEntry { blocks, measured, version, verified, requested, accessed_s }
    }
}

/// An object whose file will be deleted.
#[derive(Debug)]
pub struct Victim {
    /// Its key.
    pub key: KeyBytes,
    /// Blocks of its file.
    pub blocks: SpaceReservation,
}

/// The source of an object in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// The object was written: its checksums were computed from its bytes.
    Written {
        /// The epoch in which it was written.
        epoch: u16,
    },
    /// The object was found on the disk.
    Found,
    /// Only the name of its file was found on the disk; its size is an estimate until [`Index::measure`].
    Named,
}

/// The index of one cache.
pub struct Index {
    shards: Box<[Mutex<S3Fifo<Facts>>]>,
    /// Blocks of all files, including some that are not in the index.
    used: Used,
    version: AtomicU64,
    /// The shard where the next eviction starts.
    next: AtomicU64,
}

impl Index {
    /// Creates an index that uses at most `bytes` of memory (`keys_zone`) and counts the blocks of its files in `used`.
    /// `seed` must be secret to clients.
    pub fn new(bytes: u64, seed: [u64; 2], used: Used) -> Index {
        let per_shard = (bytes / OBJECT_BYTES / SHARDS as u64).max(1) as usize;
        let shards = (0..SHARDS).map(|_| Mutex::new(S3Fifo::new(per_shard, seed))).collect();
        Index { shards, used, version: AtomicU64::new(1), next: AtomicU64::new(0) }
    }

    /// Returns the version of the latest object: later insertions have a higher one.
    pub fn version(&self) -> u32 {
        (self.version.load(Ordering::Relaxed) as u32).wrapping_sub(1)
    }

    /// Returns the number of objects, including keys without a file.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether the index has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the state of a requested object and counts the request.
    pub fn touch(&self, key: &KeyBytes, now_s: u32) -> Option<IndexEntry> {
        let mut shard = self.shard(key);
        let (facts, blocks) = shard.touch(key)?;
        let known = Facts { accessed_s: now_s, ..*facts }.entry(blocks);
        facts.accessed_s = now_s;
        facts.marks |= REQUESTED;
        Some(known)
    }

    /// Returns the state of an object, without counting a request.
    pub fn peek(&self, key: &KeyBytes) -> Option<IndexEntry> {
        self.shard(key).get(key).map(|(facts, blocks)| facts.entry(blocks))
    }

    /// Counts a request for a key without a file. Returns the number of requests so far, at most [`USES_MAX`], and the
    /// object that was evicted if the index was full.
    pub fn count_use(&self, key: &KeyBytes, now_s: u32) -> (u8, Option<Victim>) {
        let mut shard = self.shard(key);
        if let Some((facts, _)) = shard.touch(key) {
            facts.accessed_s = now_s;
            facts.uses = facts.uses.saturating_add(1);
            return (facts.uses, None);
        }
        let facts = Facts { accessed_s: now_s, uses: 1, ..Facts::default() };
        let (_, victim) = insert_or_evict(&mut shard, *key, 0, facts);
        drop(shard);
        (1, victim.and_then(|taken| self.victim_of(taken)))
    }

    /// Whether a new object may evict another one while the disk is full, because its key was requested recently.
    /// Records that the key is requested now.
    pub fn admits(&self, key: &KeyBytes) -> bool {
        let mut shard = self.shard(key);
        let known = shard.remembers(key) || shard.get(key).is_some_and(|(facts, _)| facts.uses > 1);
        if !known {
            shard.remember(key);
        }
        known
    }

    /// Inserts an object, replacing an earlier object of the key and its file. Returns its version, and the object that
    /// was evicted if the index was full.
    pub fn insert(
        &self,
        key: &KeyBytes,
        blocks: SpaceReservation,
        origin: ObjectSource,
        accessed_s: u32,
    ) -> (u32, Option<Victim>) {
        let version = self.version.fetch_add(1, Ordering::Relaxed) as u32;
        let mut shard = self.shard(key);
        let uses = shard.get(key).map_or(0, |(facts, _)| facts.uses);
        let (verified, marks) = match origin {
            ObjectSource::Written { epoch } => (epoch, MEASURED),
            ObjectSource::Found => (0, MEASURED),
            ObjectSource::Named => (0, 0),
        };
        let facts = Facts { accessed_s, version, verified, marks, uses };
        let weight = weight_of(&blocks);
        let (replaced, victim) = insert_or_evict(&mut shard, *key, weight, facts);
        drop(shard);
        blocks.commit();
        drop(replaced.and_then(|taken| self.victim_of(taken)));
        (version, victim.and_then(|taken| self.victim_of(taken)))
    }

    /// As [`Index::insert`], for an object that loading has found. If an object of the key was written since, keeps
    /// that one.
    pub fn insert_found(&self, key: &KeyBytes, blocks: u32, accessed_s: u32) -> Option<Victim> {
        if self.peek(key).is_some_and(|known| known.blocks > 0) {
            return None;
        }
        self.insert(key, self.used.adopt(u64::from(blocks)), ObjectSource::Found, accessed_s).1
    }

    /// Records that the file has grown by `more` blocks; returns `false` if the object was replaced.
    pub fn grow(&self, key: &KeyBytes, version: u32, more: SpaceReservation) -> bool {
        let mut shard = self.shard(key);
        let Some((&facts, old)) = shard.get(key).filter(|(facts, _)| facts.version == version) else {
            return false;
        };
        let _ = shard.insert(*key, old.saturating_add(weight_of(&more)), facts);
        more.commit();
        true
    }

    /// Records the size of an object from [`ObjectSource::Named`]. Does nothing for other objects, whose size is known.
    pub fn measure(&self, key: &KeyBytes, blocks: u32) {
        let mut shard = self.shard(key);
        let Some((&facts, old)) =
            shard.get(key).filter(|(facts, weight)| *weight > 0 && facts.marks & MEASURED == 0)
        else {
            return;
        };
        debug_assert!(blocks > 0, "a file occupies at least one block");
        let _ = shard.insert(*key, blocks, Facts { marks: facts.marks | MEASURED, ..facts });
        self.used.adopt(u64::from(blocks)).commit();
        drop(self.used.release_of(u64::from(old)));
    }

    /// Records that the object's checksums were verified in this epoch.
    pub fn set_verified(&self, key: &KeyBytes, version: u32, epoch: u16) {
        if let Some(facts) = self.shard(key).get_mut(key).filter(|facts| facts.version == version) {
            facts.verified = epoch;
        }
    }

    /// Removes the object of this version, or of any version; the caller deletes its file.
    pub fn remove(&self, key: &KeyBytes, version: Option<u32>) -> Option<Victim> {
        let mut shard = self.shard(key);
        if let Some(version) = version
            && shard.get(key).is_none_or(|(facts, _)| facts.version != version)
        {
            return None;
        }
        let taken = shard.remove(key)?;
        drop(shard);
        self.victim_of(taken)
    }

    /// Evicts the least valuable objects until this many blocks are free or this many objects were evicted. Cycles
    /// through the shards.
    pub fn evict(&self, blocks: u64, objects_max: usize) -> Vec<Victim> {
        let mut victims = Vec::new();
        let (mut freed, mut examined, mut idle) = (0, 0, 0);
        while freed < blocks && examined < objects_max && idle < SHARDS {
            let number = self.next.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
            let Some(taken) = lock(&self.shards[number]).evict(Exhausted::Weight) else {
                idle += 1;
                continue;
            };
            (idle, examined) = (0, examined + 1);
            freed += u64::from(taken.weight);
            victims.extend(self.victim_of(taken));
        }
        debug_assert!(examined <= objects_max);
        victims
    }

    /// Removes the objects of a batch that had no request since `before_s`; returns their files.
    pub fn expire(&self, batch: &[(KeyBytes, IndexEntry)], before_s: u32) -> Vec<Victim> {
        let is_old = |known: IndexEntry| known.accessed_s < before_s;
        let mut victims = Vec::new();
        for (key, known) in batch.iter().filter(|(_, known)| is_old(*known)) {
            // It may have been requested since, so it is checked again under the lock.
            if self.peek(key).is_some_and(is_old) {
                victims.extend(self.remove(key, Some(known.version)));
            }
        }
        victims
    }

    /// Returns all objects in batches, each of which is read under the lock of one shard. Begins with the shard of this
    /// number. Objects that are inserted or removed meanwhile may be missed.
    pub fn batches(&self, first: u64) -> impl Iterator<Item = Vec<(KeyBytes, IndexEntry)>> {
        let mut next = Some((first as usize % SHARDS, 0));
        std::iter::from_fn(move || {
            let (shard, position) = next?;
            // Allocated before the shard is locked.
            let mut batch = Vec::with_capacity(BATCH_MAX);
            let add = |key: &KeyBytes, blocks, facts: &Facts| batch.push((*key, facts.entry(blocks)));
            next = match lock(&self.shards[shard]).scan(position, BATCH_MAX, add) {
                0 => Some((shard + 1, 0)).filter(|(shard, _)| *shard < SHARDS),
                position => Some((shard, position)),
            };
            Some(batch)
        })
    }

    /// Returns the file to delete for a removed object; `None` for a key without a file.
    fn victim_of(&self, taken: Removed<Facts>) -> Option<Victim> {
        let blocks = u64::from(taken.weight);
        (blocks > 0).then(|| Victim { key: taken.key, blocks: self.used.release_of(blocks) })
    }

    fn shard(&self, key: &KeyBytes) -> MutexGuard<'_, S3Fifo<Facts>> {
        // The last byte of the key also selects the directory of the file, but nothing else in the index depends on it.
        lock(&self.shards[usize::from(key[15]) % SHARDS])
    }
}

/// Inserts an object. Returns the earlier object of the key, and the object that was evicted if the shard was full.
fn insert_or_evict(
    shard: &mut S3Fifo<Facts>,
    key: KeyBytes,
    weight: u32,
    facts: Facts,
) -> (Option<Removed<Facts>>, Option<Removed<Facts>>) {
    match shard.insert(key, weight, facts) {
        Ok(replaced) => (replaced, None),
        Err(facts) => {
            let victim = shard.evict(Exhausted::Nodes);
            // The shard has room for at least one object, as one was just evicted.
            (shard.insert(key, weight, facts).unwrap_or_default(), victim)
        }
    }
}

fn weight_of(blocks: &SpaceReservation) -> u32 {
    u32::try_from(blocks.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> KeyBytes {
        let spread = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        spread.to_be_bytes()
    }

    fn index(objects: u64) -> Index {
        Index::new(objects * OBJECT_BYTES, [3, 5], Used::default())
    }

    /// Returns the sum of the blocks of all objects, which must equal the count.
    fn counted(index: &Index) -> u64 {
        index.batches(0).flatten().map(|(_, known)| u64::from(known.blocks)).sum()
    }

    #[test]
    fn an_object_is_inserted_found_and_removed() {
        let index = index(1000);
        assert_eq!(index.touch(&key(1), 5), None);
        let (version, victim) = index.insert(&key(1), index.used.adopt(3), ObjectSource::Found, 7);
        assert!(victim.is_none());
        let known = index.touch(&key(1), 9).expect("it is there");
        assert_eq!(
            known,
            IndexEntry { blocks: 3, measured: true, version, verified: 0, requested: false, accessed_s: 9 }
        );
        index.set_verified(&key(1), version + 1, 5);
        assert_eq!(index.peek(&key(1)).expect("it is there").verified, 0, "that was another object");
        index.set_verified(&key(1), version, 5);
        assert_eq!(index.peek(&key(1)).expect("it is there").verified, 5);
        let grow = |version, more| index.grow(&key(1), version, index.used.adopt(more));
        assert!(grow(version, 5) && !grow(version + 1, 9));
        assert_eq!((index.used.get(), counted(&index)), (8, 8));
        let (newer, _) = index.insert(&key(1), index.used.adopt(2), ObjectSource::Written { epoch: 1 }, 9);
        assert!(index.remove(&key(1), Some(version)).is_none(), "that one is replaced");
        let victim = index.remove(&key(1), Some(newer)).expect("it is there");
        assert_eq!((victim.key, victim.blocks.count()), (key(1), 2));
        assert_eq!((index.len(), index.used.get()), (0, 2), "its file is there");
        drop(victim);
        assert_eq!(index.used.get(), 0);
    }

    #[test]
    fn uses_are_counted_before_a_file_exists() {
        let index = index(1000);
        assert_eq!([1, 2, 3].map(|now| index.count_use(&key(1), now).0), [1, 2, 3]);
        assert!(index.remove(&key(1), None).is_none(), "there is no file to delete");
        for _ in 0..300 {
            index.count_use(&key(2), 1);
        }
        assert_eq!(u64::from(index.count_use(&key(2), 1).0), USES_MAX);
    }

    #[test]
    fn uses_are_counted_in_a_full_index() {
        let index = index(640);
        for number in 0..5000 {
            index.insert(&key(number), index.used.adopt(2), ObjectSource::Written { epoch: 1 }, 1);
        }
        let (len, before) = (index.len(), counted(&index));
        let (first, victim) = index.count_use(&key(9000), 1);
        assert_eq!(first, 1);
        assert_eq!(victim.expect("a file is removed for it").blocks.count(), 2);
        assert_eq!((index.count_use(&key(9000), 2).0, index.len(), counted(&index)), (2, len, before - 2));
        // Keys that are requested once do not evict files that are in use.
        for number in 0..5000 {
            index.touch(&key(number), 3);
            index.touch(&key(number), 3);
        }
        for number in 10_000..20_000 {
            index.count_use(&key(number), 3);
        }
        assert!(counted(&index) > before / 2, "{} of {before} blocks", counted(&index));
    }

    #[test]
    fn loading_does_not_replace_entries_written_during_the_load() {
        let index = index(1000);
        let (version, _) = index.insert(&key(1), index.used.adopt(4), ObjectSource::Written { epoch: 1 }, 1);
        assert!(index.insert_found(&key(1), 9, 1).is_none());
        assert_eq!(index.peek(&key(1)).map(|known| (known.blocks, known.version)), Some((4, version)));
        index.count_use(&key(2), 1);
        assert!(index.insert_found(&key(2), 9, 1).is_none());
        assert_eq!(index.used.get(), 13);
    }

    #[test]
    fn a_measured_size_does_not_apply_to_a_newer_version() {
        let index = index(1000);
        let (version, _) = index.insert(&key(1), index.used.adopt(1), ObjectSource::Named, 7);
        assert!(!index.touch(&key(1), 9).expect("it is named").measured);
        index.measure(&key(1), 5);
        let known = index.peek(&key(1)).expect("it is there");
        assert_eq!((known.blocks, known.measured, known.version), (5, true, version));
        assert!(known.requested && known.accessed_s == 9, "requests before `measure` are retained");
        index.insert(&key(1), index.used.adopt(2), ObjectSource::Written { epoch: 1 }, 9);
        index.measure(&key(1), 7);
        index.measure(&key(2), 7);
        index.count_use(&key(3), 1);
        index.measure(&key(3), 7);
        assert_eq!((index.used.get(), counted(&index)), (2, 2));
    }

    #[test]
    fn the_index_is_bounded_and_returns_evicted_entries() {
        let index = index(640);
        let mut deleted = 0;
        for number in 0..5000 {
            let (_, victim) =
                index.insert(&key(number), index.used.adopt(2), ObjectSource::Written { epoch: 1 }, 1);
            deleted += victim.map_or(0, |victim| victim.blocks.count());
        }
        assert!(index.len() <= 640, "{}", index.len());
        assert_eq!(index.used.get() + deleted, 10_000, "every evicted object was returned");
        assert_eq!(counted(&index), index.used.get());
        assert!(size_of::<Facts>() <= 12);
    }

    #[test]
    fn eviction_frees_the_requested_space() {
        let index = index(1000);
        for number in 0..500 {
            index.insert(&key(number), index.used.adopt(4), ObjectSource::Written { epoch: 1 }, 1);
        }
        let mut victims = index.evict(100, usize::MAX);
        assert_eq!((victims.len(), index.used.get(), counted(&index)), (25, 2000, 1900));
        victims.extend(index.evict(u64::MAX, 10));
        assert_eq!(victims.len(), 35, "at most `objects_max` objects");
        victims.extend(index.evict(u64::MAX, usize::MAX));
        assert_eq!((victims.len(), index.len(), index.used.get()), (500, 0, 2000));
        victims.clear();
        assert_eq!(index.used.get(), 0);
    }

    #[test]
    fn entries_without_requests_expire() {
        // More objects per shard than a batch has.
        let index = index(100_000);
        for number in 0..40_000 {
            index.insert(&key(number), index.used.adopt(1), ObjectSource::Found, number as u32 / 200);
        }
        index.touch(&key(5), 300);
        let victims: Vec<_> = index.batches(3).flat_map(|batch| index.expire(&batch, 100)).collect();
        let before: usize = (0..3).map(|shard| lock(&index.shards[shard]).len()).sum();
        victims.iter().for_each(|victim| assert!(usize::from(victim.key[15]) % SHARDS >= 3));
        let others: Vec<_> = index.batches(0).flat_map(|batch| index.expire(&batch, 100)).collect();
        assert!(others.len() < before);
        assert_eq!((victims.len() + others.len(), index.len()), (19_999, 20_001));
        assert!(index.peek(&key(5)).is_some());
    }

    #[test]
    fn a_full_disk_admits_objects_requested_twice() {
        let index = index(1000);
        assert!(!index.admits(&key(1)) && index.admits(&key(1)));
        assert!(!index.admits(&key(2)));
    }
}
