//! A table whose entries are identified by [`Key`]s: operations, tasks and timers of a thread.
//!
//! The entries are in chunks, so that growth moves none of them. A key contains the generation of its entry, which
//! changes with each use, so a stale key never matches a later use. A value stays in its entry after the use, so that
//! the next use can have its memory.

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

/// Values in entries that are used again.
pub struct Slab<T> {
    /// The box of a freed chunk is empty until the chunk is needed again.
    chunks: Vec<Box<[Entry<T>]>>,
    /// Unused entries, last in, first out: recently used entries stay in the CPU cache.
    free: Vec<u32>,
    /// Generation of new entries: not below those of freed chunks, so that no key is used twice.
    first_generation: u32,
    used: usize,
}

/// An entry, aligned to a CPU cache line: with many entries none is in the CPU cache when it is used, so each line that
/// it touches is a cache miss.
#[repr(align(64))]
struct Entry<T> {
    /// Number of times that a use began or ended: odd in an entry in use.
    generation: u32,
    value: T,
}

impl<T> Entry<T> {
    fn is_used(&self) -> bool {
        self.generation % 2 == 1
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), first_generation: 0, used: 0 }
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
        if self.free.is_empty() {
            self.add_chunk();
        }
        let slot = self.free.pop().expect("a chunk was just added");
        self.used += 1;
        let entry = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
        assert!(!entry.is_used(), "an entry has one use at a time");
        entry.generation = entry.generation.wrapping_add(1);
        (Key { slot, generation: entry.generation }, &mut entry.value)
    }

    /// Returns the value of an entry in use.
    #[inline]
    pub fn get(&mut self, key: Key) -> Option<&mut T> {
        entry(&mut self.chunks, key).map(|entry| &mut entry.value)
    }

    /// Returns the value of an entry that must be in use.
    ///
    /// # Panics
    /// When the entry is not in use with this key.
    #[inline]
    pub fn held(&mut self, key: Key) -> &mut T {
        self.get(key).expect("a key is used until the use of its entry ends")
    }

    /// Ends a use: the key is invalid from now on.
    ///
    /// # Panics
    /// When the entry is not in use with this key.
    #[inline]
    pub fn remove(&mut self, key: Key) {
        let removed = self.remove_after(key, |_| ());
        assert!(removed.is_some(), "the use of an entry ends once");
    }

    /// Ends a use after a last call with its value; `None` if the entry is not in use with this key.
    #[inline(always)]
    pub fn remove_after<R>(&mut self, key: Key, last: impl FnOnce(&mut T) -> R) -> Option<R> {
        let entry = entry(&mut self.chunks, key)?;
        let result = last(&mut entry.value);
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.slot);
        self.used -= 1;
        Some(result)
    }

    /// Returns the key and the value of the entry with this index.
    ///
    /// # Panics
    /// When the entry is not in use.
    #[inline]
    pub fn at(&mut self, slot: u32) -> (Key, &mut T) {
        let entry = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
        assert!(entry.is_used(), "an index is that of an entry in use");
        (Key { slot, generation: entry.generation }, &mut entry.value)
    }

    /// Returns all entries in use.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = self.chunks.iter().enumerate().flat_map(|(place, chunk)| {
            chunk.iter().enumerate().map(move |(index, entry)| (place * CHUNK + index, entry))
        });
        entries
            .filter(|(_, entry)| entry.is_used())
            .map(|(slot, entry)| (Key { slot: slot as u32, generation: entry.generation }, &entry.value))
    }

    /// Frees the chunks without an entry in use, and drops the other unused values.
    pub fn trim(&mut self) {
        for chunk in self.chunks.iter_mut().filter(|chunk| !chunk.is_empty()) {
            if chunk.iter().any(Entry::is_used) {
                let unused = chunk.iter_mut().filter(|entry| !entry.is_used());
                unused.for_each(|entry| entry.value = T::default());
                continue;
            }
            let newest = chunk.iter().map(|entry| entry.generation).max().unwrap_or(0);
            self.first_generation = self.first_generation.max(newest);
            *chunk = Box::default();
        }
        while self.chunks.pop_if(|chunk| chunk.is_empty()).is_some() {}
        self.chunks.shrink_to_fit();
        let chunks = &self.chunks;
        let exists = |slot: &u32| chunks.get(*slot as usize / CHUNK).is_some_and(|chunk| !chunk.is_empty());
        self.free.retain(exists);
        self.free.shrink_to_fit();
    }

    #[cold]
    fn add_chunk(&mut self) {
        let place = self.chunks.iter().position(|chunk| chunk.is_empty()).unwrap_or_else(|| {
            self.chunks.push(Box::default());
            self.chunks.len() - 1
        });
        let generation = self.first_generation;
        let fresh = |_| Entry { generation, value: T::default() };
        self.chunks[place] = (0..CHUNK).map(fresh).collect();
        let first = (place * CHUNK) as u32;
        self.free.extend((first..first + CHUNK as u32).rev());
    }
}

/// Returns an entry in use.
#[inline]
fn entry<T>(chunks: &mut [Box<[Entry<T>]>], key: Key) -> Option<&mut Entry<T>> {
    let entry = chunks.get_mut(key.slot as usize / CHUNK)?.get_mut(key.slot as usize % CHUNK)?;
    (entry.generation == key.generation).then_some(entry)
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
        assert_eq!(slab.at(second.slot), (second, &mut 5));
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
        assert!(slab.chunks[0].is_empty());
        assert!(slab.get(kept).is_some() && slab.get(keys[0]).is_none());
        assert!(slab.iter().map(|(key, _)| key).eq([kept]));
        let again: Vec<Key> = (0..600).map(|_| slab.insert().0).collect();
        assert!(again.iter().all(|key| !keys.contains(key)));
        assert_eq!(slab.len(), 601);
    }
}
