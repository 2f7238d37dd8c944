//! [`Entries`]: the entries of a cache, and all functions that remove them. This module keeps the index, the memory
//! tier, the disk space and the purges consistent.
//!
//! Lookups, fills and the manager use it. `removal` removes entries, `eviction` reserves space for new ones, [`chunks`] has
//! the state of large entries' chunks.

pub(crate) mod chunks;
mod eviction;
pub(crate) mod removal;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::disk::directory::{Directory, now_ms, now_s};
use crate::entries::chunks::{Chunks, RecentChunks};
use crate::format::{Damage, Header};
use crate::index::memory::MemoryTier;
use crate::index::space::{Space, blocks_of};
use crate::index::{Index, Used};
use crate::key::Key;
use crate::note::Note;
use crate::purge::log::PurgeLog;
use crate::purge::retention::Retention;
use crate::purge::{PurgeEffect, Subject};
use crate::stats::Counters;

/// The entries of one cache, shared by all threads.
pub(crate) struct Entries {
    pub(crate) dir: Arc<Directory>,
    pub(crate) index: Index,
    pub(crate) memory: MemoryTier<Image>,
    pub(crate) recent: RecentChunks,
    pub(crate) space: Space,
    pub(crate) purges: Arc<PurgeLog>,
    /// Decides which purges may be forgotten.
    pub(crate) retention: Retention,
    pub(crate) counters: Counters,
    pub(crate) is_loaded: AtomicBool,
    pub(crate) is_measured: AtomicBool,
    /// Length of an epoch ([`crate::Config::verify`]).
    verify: Option<Duration>,
    /// Start of the first epoch: set at its first use.
    began: OnceLock<Instant>,
    /// Number of removals in flight.
    removals: AtomicUsize,
}

/// A small entry in memory: the bytes of its file, and its decoded header.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
}

/// Maximum number of damaged entries that are logged per minute; all are counted.
const DAMAGE_NOTES_MAX: u64 = 10;

impl Entries {
    /// Creates an empty set. Loading (from a snapshot or by reading the directories) and lookups add entries.
    /// `seed` must be secret to clients.
    pub(crate) fn new(
        config: &Config,
        dir: Arc<Directory>,
        purges: Arc<PurgeLog>,
        seed: [u64; 2],
    ) -> Entries {
        let used = Used::default();
        Entries {
            dir,
            index: Index::new(config.keys_zone, seed, used.clone()),
            memory: MemoryTier::new(config.memory, seed),
            recent: RecentChunks::default(),
            space: Space::new(config.max_size, config.min_free, used),
            purges,
            retention: Retention::default(),
            counters: Counters::default(),
            is_loaded: AtomicBool::new(false),
            is_measured: AtomicBool::new(false),
            verify: config.verify,
            began: OnceLock::new(),
            removals: AtomicUsize::new(0),
        }
    }

    /// Whether all entries on disk are in the index.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Whether the sizes of all entries are known too, which takes longer.
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured.load(Ordering::Acquire)
    }

    /// Returns the number of the current epoch of [`crate::Config::verify`]; never 0. The numbers restart after 65 535
    /// epochs, which is seven years by default.
    pub(crate) fn epoch(&self) -> u16 {
        let Some(length) = self.verify else { return 1 };
        let now = rt::now();
        let passed = now.saturating_duration_since(*self.began.get_or_init(|| now));
        1 + (passed.as_millis() / length.as_millis().max(1) % u128::from(u16::MAX)) as u16
    }

    /// Returns the sequence number of the last purge.
    pub(crate) fn sequence(&self) -> u64 {
        self.purges.set().sequence()
    }

    /// Returns the effect of purges on an entry. An entry with the number of an unknown purge was stored after a purge
    /// that the log has lost. It counts as purged, since other lost purges may apply to it. Only the owner checks this,
    /// because other processes may not have read the newest purges of the log.
    pub(crate) fn purge_effect(&self, header: &Header, text: &[u8]) -> Option<PurgeEffect> {
        let purges = self.purges.set();
        if purges.is_unknown(header.sequence) && self.dir.is_owner() {
            return Some(PurgeEffect::Unusable);
        }
        purges.purge_effect(&Subject {
            primary: &header.primary.0,
            key: text,
            tags: &header.meta.tags,
            sequence: header.sequence,
        })
    }

    /// Removes the entry of a key purge, and forgets the purge if no other object can match it.
    pub(crate) fn carry_out(self: &Arc<Entries>, key: &Key, purge: u64) {
        if let Some(known) = self.index.peek(&key.0).filter(|known| known.blocks > 0) {
            // Its variants are removed when they are found.
            self.forget_purged(key, known.version);
        }
        self.forget_if_unmatched(key, purge);
    }

    /// Forgets a purge of a key if no matching object is stored.
    pub(crate) fn forget_if_unmatched(&self, key: &Key, purge: u64) {
        let is_known = self.dir.is_owner() && self.is_loaded();
        if !is_known || !self.retention.may_forget(key, purge) {
            return;
        }
        // The requests are checked before the index: the entry of an older request is added to the index before that
        // request ends.
        let has_no_older_request = purge <= self.retention.without_older_requests();
        let is_stored = self.index.peek(&key.0).is_some_and(|known| known.blocks > 0);
        if has_no_older_request && !is_stored {
            self.purges.set_mut().forget_key(&key.0, purge);
        } else {
            self.retention.postpone(key, purge);
        }
    }

    /// Adds to the index a cache file that a lookup found on disk; returns the version of the index entry.
    pub(crate) fn adopt(self: &Arc<Entries>, key: &Key, header: &Header, chunks: Option<&Chunks>) -> u32 {
        let bytes = match chunks {
            Some(chunks) => header.layout.body + chunks.present_bytes(),
            None => header.layout.file_bytes(header.length),
        };
        self.remove_evicted(self.index.insert_found(&key.0, blocks_of(bytes) as u32, now_s()));
        self.index.peek(&key.0).map_or(0, |known| known.version)
    }

    /// Removes a damaged entry, and reports it at a limited rate.
    pub(crate) fn drop_damaged(self: &Arc<Entries>, key: &Key, version: Option<u32>, damage: Damage) {
        static MINUTE: AtomicU64 = AtomicU64::new(0);
        static NOTES: AtomicU64 = AtomicU64::new(0);
        self.counters.damaged.count();
        let minute = now_ms() / 60_000;
        if MINUTE.swap(minute, Ordering::Relaxed) != minute {
            NOTES.store(0, Ordering::Relaxed);
        }
        if NOTES.fetch_add(1, Ordering::Relaxed) < DAMAGE_NOTES_MAX {
            let path = self.dir.path_of(key).0;
            let path = String::from_utf8_lossy(path.as_bytes()).into_owned().into();
            self.dir.note(Note::Damaged { path, damage });
        }
        match version {
            Some(version) => {
                self.remove_entry(key, version);
            }
            None => self.remove_file(key),
        }
    }

    /// Whether no removal is in flight and no key is locked, so that nothing changes on the disk.
    pub(crate) fn is_quiet(&self) -> bool {
        self.dir.locks.is_empty() && self.removals.load(Ordering::Acquire) == 0
    }
}
