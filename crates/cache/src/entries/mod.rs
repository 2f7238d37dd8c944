//! [`Entries`]: the entries of a cache and every way in which one leaves. The index, the memory tier, the space on the
//! disk and the purges agree here.
//!
//! Lookups, fills and the manager stand above and share it. `removal` takes entries out, `room` makes room for new ones,
//! [`chunks`] knows the chunks of large entries.

pub(crate) mod chunks;
pub(crate) mod removal;
mod room;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::disk::directory::{Directory, now_ms, now_s};
use crate::entries::chunks::{Chunks, RecentChunks};
use crate::format::Damage;
use crate::format::header::Header;
use crate::index::memory::MemoryTier;
use crate::index::space::{Space, blocks_of};
use crate::index::{Index, SpaceReservation};
use crate::key::Key;
use crate::note::Note;
use crate::purge::log::PurgeLog;
use crate::purge::settling::{Asked, Settling};
use crate::purge::{Fate, Subject};
use crate::stats::Counters;

/// The entries of one cache, shared by all threads.
pub(crate) struct Entries {
    pub(crate) dir: Arc<Directory>,
    pub(crate) index: Index,
    pub(crate) memory: MemoryTier<Image>,
    pub(crate) recent: RecentChunks,
    pub(crate) space: Space,
    pub(crate) purges: Arc<PurgeLog>,
    /// Which purges may be forgotten.
    pub(crate) settling: Settling,
    pub(crate) counters: Counters,
    pub(crate) is_loaded: AtomicBool,
    pub(crate) is_measured: AtomicBool,
    /// Length of an epoch ([`crate::Config::verify`]).
    verify: Option<Duration>,
    /// When the first epoch began: set at its first use.
    began: OnceLock<Instant>,
    /// Removals in flight.
    removals: AtomicUsize,
}

/// A small entry in memory: its file as it is, and the header that was read from it.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
}

/// Damaged entries that are named in the log in a minute; all are counted.
const DAMAGE_NOTES_MAX: u64 = 10;

impl Entries {
    /// No entries yet: a walk, a snapshot or lookups find them.
    pub(crate) fn new(
        dir: Arc<Directory>,
        index: Index,
        memory: MemoryTier<Image>,
        space: Space,
        purges: Arc<PurgeLog>,
        verify: Option<Duration>,
    ) -> Entries {
        Entries {
            dir,
            index,
            memory,
            recent: RecentChunks::default(),
            space,
            purges,
            settling: Settling::default(),
            counters: Counters::default(),
            is_loaded: AtomicBool::new(false),
            is_measured: AtomicBool::new(false),
            verify,
            began: OnceLock::new(),
            removals: AtomicUsize::new(0),
        }
    }

    /// Whether all entries on disk are known.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Whether their sizes are known too, which come later.
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured.load(Ordering::Acquire)
    }

    /// The number of the current epoch of [`crate::Config::verify`]; never 0. After 65 535 epochs the numbers restart,
    /// which is seven years by default.
    pub(crate) fn epoch(&self) -> u16 {
        let Some(length) = self.verify else { return 1 };
        let now = rt::now();
        let passed = now.saturating_duration_since(*self.began.get_or_init(|| now));
        1 + (passed.as_millis() / length.as_millis().max(1) % u128::from(u16::MAX)) as u16
    }

    /// The number of the last purge.
    pub(crate) fn sequence(&self) -> u64 {
        self.purges.set().sequence()
    }

    /// The effect of purges on an entry.
    pub(crate) fn fate(&self, header: &Header, text: &[u8]) -> Option<Fate> {
        self.purges.set().fate(&Subject {
            primary: &header.primary.0,
            key: text,
            tags: &header.meta.tags,
            sequence: header.sequence,
        })
    }

    /// A question that goes to an upstream now.
    pub(crate) fn ask(&self) -> Arc<Asked> {
        self.settling.ask(|| self.sequence())
    }

    /// Takes out the entry that a purge of a key has hit, and forgets the purge when that is all that it names.
    pub(crate) fn carry_out(self: &Arc<Entries>, key: &Key, purge: u64) {
        if let Some(known) = self.index.peek(&key.0).filter(|known| known.blocks > 0) {
            // Its variants go as they are found.
            self.forget_purged(key, known.version);
        }
        self.settle(key, purge);
    }

    /// Forgets a purge of a key where nothing is stored that it names.
    pub(crate) fn settle(&self, key: &Key, purge: u64) {
        let is_known = self.dir.is_owner() && self.is_loaded();
        if !is_known || !self.settling.may_forget(key, purge) {
            return;
        }
        // In this order: an entry of an older question is in the index once the question is not open any more.
        let is_settled = purge <= self.settling.settled();
        let is_stored = self.index.peek(&key.0).is_some_and(|known| known.blocks > 0);
        if is_settled && !is_stored {
            self.purges.set_mut().forget_key(&key.0, purge);
        } else {
            self.settling.postpone(key, purge);
        }
    }

    /// Enters a file that a lookup has found into the index; returns its version.
    pub(crate) fn adopt(self: &Arc<Entries>, key: &Key, header: &Header, chunks: Option<&Chunks>) -> u32 {
        let bytes = match chunks {
            Some(chunks) => header.layout.body + chunks.present_bytes(),
            None => header.layout.file_bytes(header.length),
        };
        let (_, victim) = self.index.insert_found(&key.0, blocks_of(bytes) as u32, now_s());
        self.remove_evicted(victim);
        self.index.peek(&key.0).map_or(0, |known| known.version)
    }

    /// Drops a damaged entry, and reports it at a limited rate.
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
            self.dir.note(|name| Note::Damaged { name, path, damage });
        }
        match version {
            Some(version) => {
                self.remove_entry(key, version);
            }
            None => self.remove_file(key),
        }
    }

    /// Whether no removal is in flight and no key is locked: nothing changes on the disk.
    pub(crate) fn is_quiet(&self) -> bool {
        self.dir.locks.is_empty() && self.removals.load(Ordering::Acquire) == 0
    }

    /// Nothing, to which a fill adds the space that it needs.
    pub(crate) fn no_space(&self) -> SpaceReservation {
        self.space.none()
    }
}
