//! Statistics of a cache: [`Stats`] for readers, [`Counters`] for the code that counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Refused;

/// Counters of one cache since its start, and its present content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of entries in the index.
    pub entries: u64,
    /// Maximum number of entries in the index (`keys_zone`).
    pub entries_max: u64,
    /// Bytes on disk of entries and of fills in flight.
    pub bytes: u64,
    /// Bytes in the memory tier.
    pub memory_bytes: u64,
    /// Whether all entries on disk are in the index.
    pub is_loaded: bool,
    /// Whether the sizes of all entries are known too, which takes longer.
    pub is_measured: bool,
    /// Whether this process owns the directory: it fills, evicts and purges.
    pub is_owner: bool,
    /// Whether the disk is not used for a while after failures.
    pub is_pass_through: bool,
    /// Whether the directory could not be opened for writing at the start: entries are read, and none are stored.
    pub is_unwritable: bool,
    /// Lookups that found an entry in memory.
    pub hits_memory: u64,
    /// Lookups that found an entry on disk.
    pub hits_disk: u64,
    /// Lookups that found no entry.
    pub misses: u64,
    /// Fills begun.
    pub fills: u64,
    /// Fills that became entries.
    pub commits: u64,
    /// Fills that did not become entries.
    pub aborts: u64,
    /// Entries evicted for space on the disk or in the index.
    pub evicted: u64,
    /// Entries removed because they were inactive.
    pub inactive: u64,
    /// Entries that a purge removed.
    pub purged: u64,
    /// Purges that were carried out.
    pub purges: u64,
    /// Writes to the purge log; each is flushed once for all purges in it.
    pub purge_writes: u64,
    /// Purges that are stored because an entry that is older than the purge may exist.
    pub purges_stored: u64,
    /// Entries dropped because they were damaged.
    pub damaged: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes, renames and removals that failed.
    pub write_errors: u64,
    /// Number of bytes read from cache files, without bodies that users of this crate send from a file.
    pub read_bytes: u64,
    /// Number of bytes written to cache files.
    pub written_bytes: u64,
    /// Number of times that the cache began to pass responses through without storing them.
    pub pass_throughs: u64,
    /// Chunks with a verified checksum.
    pub verified_chunks: u64,
    /// Responses not stored, by reason ([`Refused::NAMES`]).
    pub refused: [u64; Refused::NAMES.len()],
}

/// The counters, incremented by any thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits_memory: Counter,
    pub(crate) hits_disk: Counter,
    pub(crate) misses: Counter,
    pub(crate) fills: Counter,
    pub(crate) commits: Counter,
    pub(crate) aborts: Counter,
    pub(crate) evicted: Counter,
    pub(crate) inactive: Counter,
    pub(crate) purged: Counter,
    pub(crate) damaged: Counter,
    pub(crate) verified_chunks: Counter,
    pub(crate) refused: [Counter; Refused::NAMES.len()],
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub(crate) fn count(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// Counts a refusal and returns it.
    pub(crate) fn refuse(&self, refused: Refused) -> Refused {
        self.refused[refused.index()].count();
        refused
    }

    /// Returns the statistics that are counted here; the other fields are 0.
    pub(crate) fn stats(&self) -> Stats {
        let mut refused = [0; Refused::NAMES.len()];
        refused.iter_mut().zip(&self.refused).for_each(|(to, from)| *to = from.get());
        Stats {
            hits_memory: self.hits_memory.get(),
            hits_disk: self.hits_disk.get(),
            misses: self.misses.get(),
            fills: self.fills.get(),
            commits: self.commits.get(),
            aborts: self.aborts.get(),
            evicted: self.evicted.get(),
            inactive: self.inactive.get(),
            purged: self.purged.get(),
            damaged: self.damaged.get(),
            verified_chunks: self.verified_chunks.get(),
            refused,
            ..Stats::default()
        }
    }
}
