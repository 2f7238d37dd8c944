//! The state of a large entry's chunks: which are stored, and which were verified. [`Chunks`] is shared by all readers
//! of the entry; [`RecentChunks`] caches it between lookups.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::bits::Bits;
use crate::format::{CHUNK_BYTES, LENGTH_MAX, RECORD_BYTES, checksum, chunks_of};
use crate::mutex::lock;

/// The chunks of one entry.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Distinguishes this entry from a later one of the same key.
    pub(crate) nonce: u64,
    length: u64,
    checksums: Box<[AtomicU32]>,
    present: Bits,
    verified: Bits,
    /// The epoch in which the bits of `verified` were set ([`crate::Config::verify`]); 0 before the first lookup.
    epoch: AtomicU16,
}

impl Chunks {
    /// Creates the state of an entry without any chunk.
    pub(crate) fn new(nonce: u64, length: u64) -> Chunks {
        let count = chunks_of(length) as usize;
        let checksums = (0..count).map(|_| AtomicU32::new(0)).collect();
        let (present, verified) = (Bits::new(count), Bits::new(count));
        Chunks { nonce, length, checksums, present, verified, epoch: AtomicU16::new(0) }
    }

    /// Returns a copy in which no chunk is verified.
    pub(crate) fn unverified(&self, epoch: u16) -> Chunks {
        let copy = Chunks::new(self.nonce, self.length);
        for index in 0..self.count() {
            if let Some(crc) = self.checksum(index) {
                copy.checksums[index as usize].store(crc, Ordering::Relaxed);
                copy.present.set(index);
            }
        }
        copy.begin_epoch(epoch);
        debug_assert!(copy.present_bytes() <= self.present_bytes() && copy.epoch() == epoch);
        copy
    }

    /// Discards the verifications of an earlier epoch.
    pub(crate) fn begin_epoch(&self, epoch: u16) {
        if self.epoch.load(Ordering::Acquire) != epoch {
            // Cleared before the epoch is changed: a reader that sees the new epoch sees no old bit. Two threads may
            // run this concurrently; a bit that one of them loses costs one more verification.
            self.verified.clear();
            self.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Returns the epoch in which chunks were verified.
    pub(crate) fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Adds the records of the chunks from `first` on.
    pub(crate) fn take_records(&self, first: u64, records: &[u8]) {
        let records = records.chunks_exact(RECORD_BYTES as usize);
        for (index, record) in (first..self.count()).zip(records) {
            if let Some(crc) = checksum(self.nonce, index, record) {
                self.checksums[index as usize].store(crc, Ordering::Relaxed);
                self.present.set(index);
            }
        }
    }

    /// Adds a stored chunk, which counts as verified because its checksum was computed from it.
    pub(crate) fn add(&self, index: u64, crc: u32) {
        let Some(checksum) = self.checksums.get(index as usize) else { return };
        checksum.store(crc, Ordering::Relaxed);
        self.verified.set(index);
        self.present.set(index);
    }

    /// Returns the number of chunks of the complete body.
    pub(crate) fn count(&self) -> u64 {
        self.checksums.len() as u64
    }

    /// Returns the checksum of a stored chunk.
    pub(crate) fn checksum(&self, index: u64) -> Option<u32> {
        // The bit is set after the checksum was stored.
        self.present.has(index).then(|| self.checksums[index as usize].load(Ordering::Relaxed))
    }

    /// Whether a chunk was verified.
    pub(crate) fn is_verified(&self, index: u64) -> bool {
        self.verified.has(index)
    }

    /// Records that a chunk was verified; returns whether this call completed the verification of the entry.
    pub(crate) fn set_verified(&self, index: u64) -> bool {
        self.verified.set(index) && self.verified.is_full()
    }

    /// Marks all stored chunks as verified; for an entry that the index records as verified.
    pub(crate) fn set_all_verified(&self) {
        (0..self.count()).filter(|&index| self.present.has(index)).for_each(|index| {
            self.verified.set(index);
        });
    }

    /// Returns the first chunk without a valid record.
    pub(crate) fn first_absent(&self) -> Option<u64> {
        (0..self.count()).find(|&index| !self.present.has(index))
    }

    /// Returns the chunks that a byte range overlaps.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.length);
        if range.start >= end {
            return 0..0;
        }
        range.start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)
    }

    /// Returns the first missing part of a range, extended to complete chunks.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let touched = self.touched(range);
        let first = touched.clone().find(|&index| !self.present.has(index))?;
        let end = (first..touched.end).find(|&index| self.present.has(index)).unwrap_or(touched.end);
        debug_assert!(first < end && end <= self.count());
        Some(first * CHUNK_BYTES..(end * CHUNK_BYTES).min(self.length))
    }

    /// Whether all chunks of a range were verified.
    pub(crate) fn all_verified(&self, range: &Range<u64>) -> bool {
        self.touched(range).all(|index| self.verified.has(index))
    }

    /// Returns the number of stored bytes.
    pub(crate) fn present_bytes(&self) -> u64 {
        let last = self.count().saturating_sub(1);
        let short = if self.count() > 0 && self.present.has(last) {
            self.count() * CHUNK_BYTES - self.length
        } else {
            0
        };
        let bytes = self.present.count() * CHUNK_BYTES - short;
        debug_assert!(bytes <= self.length, "{bytes} of {} bytes", self.length);
        bytes
    }
}

/// Maximum number of entries with cached chunks. Without the cache, a lookup reads the table again, and the chunks are
/// verified again.
const RECENT_ENTRIES_MAX: usize = 4096;

/// Maximum number of cached chunks of all entries: those of one entry of the maximum length. At some 4 bytes per chunk,
/// they need 17 MiB.
const RECENT_CHUNKS_MAX: u64 = LENGTH_MAX / CHUNK_BYTES;

/// The chunks of recently used entries, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentChunks(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    entries: HashMap<u64, Arc<Chunks>>,
    order: VecDeque<u64>,
    chunks: u64,
}

impl RecentChunks {
    /// Returns the cached chunks of the entry with this nonce.
    pub(crate) fn get(&self, nonce: u64, length: u64) -> Option<Arc<Chunks>> {
        lock(&self.0).entries.get(&nonce).filter(|chunks| chunks.length == length).map(Arc::clone)
    }

    /// Caches the chunks of an entry, unless another reader has done that; returns the shared ones.
    pub(crate) fn put(&self, chunks: Arc<Chunks>) -> Arc<Chunks> {
        let mut state = lock(&self.0);
        if let Some(known) = state.entries.get(&chunks.nonce).filter(|known| known.length == chunks.length) {
            return Arc::clone(known);
        }
        state.chunks += chunks.count();
        match state.entries.insert(chunks.nonce, Arc::clone(&chunks)) {
            Some(old) => state.chunks -= old.count(),
            None => state.order.push_back(chunks.nonce),
        }
        while state.order.len() > RECENT_ENTRIES_MAX || state.chunks > RECENT_CHUNKS_MAX {
            let Some(oldest) = state.order.pop_front() else { break };
            if let Some(old) = state.entries.remove(&oldest) {
                state.chunks -= old.count();
            }
        }
        debug_assert_eq!(state.order.len(), state.entries.len());
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record;

    #[test]
    fn holes_are_complete_chunks() {
        let chunks = Chunks::new(1, 10 * CHUNK_BYTES + 5);
        assert_eq!(chunks.missing(&(0..3)), Some(0..CHUNK_BYTES));
        for index in [0, 1, 4, 10] {
            chunks.add(index, 0);
        }
        assert_eq!(chunks.missing(&(0..2 * CHUNK_BYTES)), None);
        assert_eq!(chunks.missing(&(0..u64::MAX)), Some(2 * CHUNK_BYTES..4 * CHUNK_BYTES));
        assert_eq!(
            chunks.missing(&(5 * CHUNK_BYTES + 7..7 * CHUNK_BYTES)),
            Some(5 * CHUNK_BYTES..7 * CHUNK_BYTES)
        );
        assert_eq!(chunks.missing(&(10 * CHUNK_BYTES..u64::MAX)), None, "the last one is short and there");
        assert_eq!(chunks.present_bytes(), 3 * CHUNK_BYTES + 5);
        assert!(
            chunks.all_verified(&(0..2 * CHUNK_BYTES)) && !chunks.all_verified(&(0..2 * CHUNK_BYTES + 1))
        );
        assert_eq!(Chunks::new(1, 0).missing(&(0..9)), None);
    }

    #[test]
    fn records_define_the_stored_chunks() {
        let chunks = Chunks::new(9, 3 * CHUNK_BYTES);
        let mut table = [record(9, 0, 7), [0; 8], record(9, 2, 8)].concat();
        chunks.take_records(0, &table);
        assert_eq!([0, 1, 2, 3].map(|index| chunks.checksum(index)), [Some(7), None, Some(8), None]);
        assert_eq!(chunks.first_absent(), Some(1));
        assert!(!chunks.is_verified(0));
        chunks.set_all_verified();
        assert!(chunks.is_verified(0) && !chunks.is_verified(1) && chunks.is_verified(2));
        chunks.begin_epoch(1);
        assert!(!chunks.is_verified(0) && !chunks.set_verified(0), "an epoch begins without comparisons");
        chunks.begin_epoch(1);
        assert!(chunks.is_verified(0) && !chunks.unverified(1).is_verified(0));
        assert_eq!([0, 1, 2].map(|index| chunks.unverified(1).checksum(index)), [Some(7), None, Some(8)]);
        table.rotate_left(8);
        let moved = Chunks::new(9, 3 * CHUNK_BYTES);
        moved.take_records(0, &table);
        assert_eq!(moved.present_bytes(), 0, "records are about one place");
    }

    #[test]
    fn the_oldest_entries_are_forgotten() {
        let recent = RecentChunks::default();
        for number in 0..RECENT_ENTRIES_MAX as u64 + 10 {
            recent.put(Arc::new(Chunks::new(number, 100)));
        }
        assert!(recent.get(0, 100).is_none());
        assert!(recent.get(10, 100).is_some());
        assert!(recent.get(10, 101).is_none(), "another entry");
        let first = recent.get(10, 100).unwrap();
        assert!(Arc::ptr_eq(&first, &recent.put(Arc::new(Chunks::new(10, 100)))));
        recent.put(Arc::new(Chunks::new(1, RECENT_CHUNKS_MAX * CHUNK_BYTES)));
        assert_eq!(lock(&recent.0).order.len(), 1, "a large one takes the place of many");
        assert_eq!(lock(&recent.0).chunks, RECENT_CHUNKS_MAX);
    }
}
