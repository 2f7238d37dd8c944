//! A table whose entries are identified by [`Key`]s: operations, tasks and timers of a thread.
//!
//! The entries are in chunks, so that growth moves none of them. A key contains the generation of its entry, which
//! changes with each use, so a stale key never matches a later use. A value stays in its entry after the use, so that
//! the next use can have its memory.

use std::ops::{Deref, DerefMut};

/// Number of entries of a chunk.
const CHUNK: usize = 256;

/// Identifier of an entry in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Index of the entry; dense and small.
    pub slot: u32,
    /// Number of times that a use of the entry began or ended.
    pub generation: u32,
}

impl Key {
    /// Encodes the key as a number.
    #[inline]
    pub fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Decodes a number that [`Key::pack`] returned.
    #[inline]
    pub fn unpack(number: u64) -> Key {
        Key { slot: number as u32, generation: (number >> 32) as u32 }
    }
}

/// End of the list of unused entries.
const NONE: u32 = u32::MAX;

/// Values in entries that are used again.
pub struct Slab<T> {
    /// `None` is a freed chunk, until it is needed again. A chunk has a fixed length, so that a look-up checks one index
    /// only.
    chunks: Vec<Option<Box<Chunk<T>>>>,
    /// The unused entry that is used next: the last one freed, because it is in the CPU cache.
    free: u32,
    /// Generation of new entries: not below those of freed chunks, so that no key is used twice.
    first_generation: u32,
    used: usize,
}

type Chunk<T> = [Entry<T>; CHUNK];

/// An entry, aligned to a CPU cache line: with many entries none is in the CPU cache when it is used, so each line that
/// it touches is a cache miss.
#[repr(align(64))]
struct Entry<T> {
    /// Number of times that a use began or ended: odd in an entry in use.
    generation: u32,
    /// The unused entry after this one, in an unused entry.
    next_free: u32,
    value: T,
}

impl<T> Entry<T> {
    fn is_used(&self) -> bool {
        self.generation % 2 == 1
    }
}

/// An entry in use: its value, and the end of its use, by one look-up.
pub struct InUse<'a, T> {
    entry: &'a mut Entry<T>,
    slot: u32,
    free: &'a mut u32,
    used: &'a mut usize,
}

impl<T> InUse<'_, T> {
    /// Ends the use: the key is invalid from now on.
    #[inline]
    pub fn end(self) {
        self.entry.generation = self.entry.generation.wrapping_add(1);
        self.entry.next_free = std::mem::replace(self.free, self.slot);
        *self.used -= 1;
    }

    /// Returns the key of this use.
    #[inline]
    pub fn key(&self) -> Key {
        Key { slot: self.slot, generation: self.entry.generation }
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.entry.value
    }
}

impl<T> DerefMut for InUse<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.entry.value
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: NONE, first_generation: 0, used: 0 }
    }
}

impl<T: Default> Slab<T> {
    /// Number of bytes of an entry.
    pub const ENTRY_BYTES: usize = size_of::<Entry<T>>();

    /// Returns the number of entries in use.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether no entry is in use.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Begins a use of an entry. Its value is that of the previous use, or the default.
    #[inline]
    pub fn insert(&mut self) -> (Key, &mut T) {
        if self.free == NONE {
            self.add_chunk();
        }
        let slot = self.free;
        let entry = entry(&mut self.chunks, slot).expect("an unused entry is in a chunk");
        assert!(!entry.is_used(), "an entry has one use at a time");
        self.free = entry.next_free;
        self.used += 1;
        entry.generation = entry.generation.wrapping_add(1);
        (Key { slot, generation: entry.generation }, &mut entry.value)
    }

    /// Returns the value of an entry in use.
    #[inline]
    pub fn get(&mut self, key: Key) -> Option<&mut T> {
        let entry = entry(&mut self.chunks, key.slot)?;
        (entry.generation == key.generation).then_some(&mut entry.value)
    }

    /// Returns the value of an entry that must be in use.
    ///
    /// # Panics
    /// When the entry is not in use with this key.
    #[inline]
    pub fn held(&mut self, key: Key) -> &mut T {
        self.get(key).expect("a key is used until the use of its entry ends")
    }

    /// Returns an entry in use.
    #[inline]
    pub fn in_use(&mut self, key: Key) -> Option<InUse<'_, T>> {
        let entry = entry(&mut self.chunks, key.slot)?;
        let is_key = entry.generation == key.generation;
        is_key.then_some(InUse { entry, slot: key.slot, free: &mut self.free, used: &mut self.used })
    }

    /// Ends a use: the key is invalid from now on.
    ///
    /// # Panics
    /// When the entry is not in use with this key.
    #[inline]
    pub fn remove(&mut self, key: Key) {
        self.in_use(key).expect("the use of an entry ends once").end();
    }

    /// Returns the entry with this index.
    ///
    /// # Panics
    /// When the entry is not in use.
    #[inline]
    pub fn at(&mut self, slot: u32) -> InUse<'_, T> {
        let entry = entry(&mut self.chunks, slot).filter(|entry| entry.is_used());
        let entry = entry.expect("an index is that of an entry in use");
        InUse { entry, slot, free: &mut self.free, used: &mut self.used }
    }

    /// Returns all entries in use.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = self.chunks.iter().enumerate().flat_map(|(chunk_index, chunk)| {
            let entries = chunk.iter().flat_map(|chunk| chunk.iter().enumerate());
            entries.map(move |(index, entry)| (chunk_index * CHUNK + index, entry))
        });
        entries
            .filter(|(_, entry)| entry.is_used())
            .map(|(slot, entry)| (Key { slot: slot as u32, generation: entry.generation }, &entry.value))
    }

    /// Frees the chunks without an entry in use, and drops the other unused values.
    pub fn trim(&mut self) {
        self.free = NONE;
        for (chunk_index, freeable) in self.chunks.iter_mut().enumerate().rev() {
            let Some(chunk) = freeable else { continue };
            if !chunk.iter().any(Entry::is_used) {
                for entry in chunk.iter() {
                    // Generations wrap, so their order is that of their difference.
                    if entry.generation.wrapping_sub(self.first_generation) as i32 > 0 {
                        self.first_generation = entry.generation;
                    }
                }
                *freeable = None;
                continue;
            }
            for (index, entry) in chunk.iter_mut().enumerate().rev().filter(|(_, entry)| !entry.is_used()) {
                entry.value = T::default();
                entry.next_free = std::mem::replace(&mut self.free, (chunk_index * CHUNK + index) as u32);
            }
        }
        while self.chunks.pop_if(|chunk| chunk.is_none()).is_some() {}
        self.chunks.shrink_to_fit();
    }

    /// Adds a chunk when no entry is unused.
    #[cold]
    fn add_chunk(&mut self) {
        let chunk_index = self.chunks.iter().position(Option::is_none).unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() - 1
        });
        let first = (chunk_index * CHUNK) as u32;
        let fresh = |index| {
            let next_free = if index + 1 < CHUNK { first + index as u32 + 1 } else { NONE };
            Entry { generation: self.first_generation, next_free, value: T::default() }
        };
        let chunk: Box<[Entry<T>]> = (0..CHUNK).map(fresh).collect();
        // Always succeeds: the length is `CHUNK`.
        self.chunks[chunk_index] = chunk.try_into().ok();
        self.free = first;
    }
}

/// Returns an entry, unless its chunk was freed.
#[inline]
fn entry<T>(chunks: &mut [Option<Box<Chunk<T>>>], slot: u32) -> Option<&mut Entry<T>> {
    let chunk = chunks.get_mut(slot as usize / CHUNK)?.as_mut()?;
    Some(&mut chunk[slot as usize % CHUNK])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_used_twice() {
        let mut slab = Slab::default();
        let (first, value) = slab.insert();
        *value = 5;
        assert_eq!(Key::unpack(first.pack()), first);
        assert_eq!(slab.get(first), Some(&mut 5));
        slab.remove(first);
        assert!(slab.get(first).is_none() && slab.is_empty());
        let (second, value) = slab.insert();
        assert_eq!((second.slot, *value), (first.slot, 5), "the entry is used again, with its value");
        assert_ne!(first, second);
        assert!(slab.get(first).is_none());
        let entry = slab.at(second.slot);
        assert_eq!((entry.key(), *entry), (second, 5));
    }

    #[test]
    fn freed_chunks_are_used_again_with_new_keys() {
        let mut slab = Slab::<u64>::default();
        let keys: Vec<Key> = (0..600).map(|_| slab.insert().0).collect();
        // One entry of the second chunk remains.
        keys.iter().filter(|key| key.slot != 300).for_each(|&key| slab.remove(key));
        let kept = keys[300];
        slab.trim();
        assert_eq!(slab.chunks.len(), 2, "the last chunk is freed");
        assert!(slab.chunks[0].is_none());
        assert!(slab.get(kept).is_some() && slab.get(keys[0]).is_none());
        assert!(slab.iter().map(|(key, _)| key).eq([kept]));
        let again: Vec<Key> = (0..600).map(|_| slab.insert().0).collect();
        assert!(again.iter().all(|key| !keys.contains(key)));
        assert_eq!(slab.len(), 601);
    }
}
