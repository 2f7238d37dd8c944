//! Lookups: in memory first, then in the file, whose bytes are used only if their checksums are correct.
//!
//! ```text
//!   memory tier -> index: unknown and loading done -> miss
//!                     |
//!                     v  known, or not loaded, or not the owner
//!   plan -> open -> read (all of a small entry; slots and table of a large one) -> check -> hit
//!     header, key, variant, purges, chunk or table: each failed check is a miss, and a damaged entry is removed
//! ```
//! [`file`] plans the read, opens the file or takes one of the [`open_files`], and reads it. [`hit`] compares it with
//! the request and creates the hit. [`reader`] reads the bodies of large entries.

pub(crate) mod file;
pub(crate) mod hit;
pub(crate) mod open_files;
pub(crate) mod reader;

use std::sync::Arc;

use io::Errno;

use crate::config::Access;
use crate::disk::directory::{READ_FLAGS, now_s};
use crate::disk::read::ReadError;
use crate::entries::Entries;
use crate::error::StoreError;
use crate::index::IndexEntry;
use crate::key::Key;
use crate::lookup::file::{EntryFiles, FirstRead, LookupKey, PREFIX_BYTES};
use crate::lookup::hit::{Check, Hit};
use crate::meta::Meta;
use crate::purge::PurgeEffect;

/// Computes, from the stored `Vary` ([`crate::Meta::vary`]), the text that selects the variant for the request
/// ([`crate::Meta::variant`]).
pub type Selector<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Lookups in one cache.
pub(crate) struct Lookup {
    pub(crate) entries: Arc<Entries>,
    pub(crate) files: EntryFiles,
    /// Whether entries are read bypassing the page cache if the lookup does not specify it.
    is_direct: bool,
}

impl Lookup {
    pub(crate) fn new(entries: &Arc<Entries>, is_direct: bool) -> Lookup {
        Lookup { entries: Arc::clone(entries), files: EntryFiles::new(entries), is_direct }
    }

    /// Returns the default settings for reading entries.
    pub(crate) fn access(&self) -> Access {
        let dir = &self.entries.dir;
        Access {
            via: dir.via(),
            direct_from: self.is_direct.then_some(0),
            direct_via: dir.via(),
            sends_files: false,
            client_has_space: true,
            calls_directly: dir.calls_directly,
        }
    }

    /// Returns the entry for a request, and counts a hit or a miss.
    pub(crate) async fn find(
        &self,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
        access: Access,
    ) -> Result<Option<Hit>, StoreError> {
        let found = self.select(LookupKey { key, primary: key, text, access }, selector).await;
        let counters = &self.entries.counters;
        match &found {
            Ok(Some(hit)) if hit.is_from_memory => counters.hits_memory.count(),
            Ok(Some(_)) => counters.hits_disk.count(),
            Ok(None) | Err(_) => counters.misses.count(),
        }
        found
    }

    /// As [`Lookup::find`] without counting; `None` after disk errors.
    pub(crate) async fn find_uncounted(&self, key: &Key, text: &[u8], selector: Selector<'_>) -> Option<Hit> {
        self.select(LookupKey { key, primary: key, text, access: self.access() }, selector).await.ok()?
    }

    /// Returns the entry at the primary key, or the entry of the requested variant.
    async fn select(&self, wanted: LookupKey<'_>, selector: Selector<'_>) -> Result<Option<Hit>, StoreError> {
        if !self.entries.dir.is_owner() {
            // Reads new purges of the owner. After an error, the next lookup tries again.
            let _ = Box::pin(self.entries.purges.follow()).await;
        }
        let Some(first) = self.entry(wanted).await? else { return Ok(None) };
        if first.meta.vary.is_empty() {
            return Ok(Some(first));
        }
        let variant = selector(&first.meta.vary);
        if variant == first.meta.variant {
            return Ok(Some(first));
        }
        let second = LookupKey { key: &wanted.key.variant(&variant), ..wanted };
        // Boxed, like all code that few lookups reach: otherwise it would enlarge the future of every lookup.
        let second = Box::pin(self.entry(second)).await?;
        Ok(second.filter(|hit| hit.meta.variant == variant && hit.meta.vary == first.meta.vary))
    }

    /// Whether an entry of any variant is stored under a key. Counts as a use of the entry, but not as a lookup.
    pub(crate) async fn holds(&self, key: &Key, text: &[u8]) -> Result<bool, StoreError> {
        let entries = &self.entries;
        let knows_all = entries.dir.is_owner() && entries.is_loaded();
        if knows_all && !entries.purges.set().may_hit(&key.0) {
            // The index has all the information that the file could give.
            return Ok(entries.index.touch(&key.0, now_s()).is_some_and(|known| known.blocks > 0));
        }
        let access = self.access();
        Ok(self.entry(LookupKey { key, primary: key, text, access }).await?.is_some())
    }

    /// Returns the metadata of the entry at the primary key, with its `Vary` and its variant.
    pub(crate) async fn variant_at(&self, key: &Key, text: &[u8]) -> Option<Arc<Meta>> {
        let access = self.access();
        let found = self.entry(LookupKey { key, primary: key, text, access }).await.ok()??;
        Some(found.meta)
    }

    /// Returns the entry in the file of a key.
    async fn entry(&self, key: LookupKey<'_>) -> Result<Option<Hit>, StoreError> {
        let entries = &self.entries;
        let known = entries.index.touch(&key.key.0, now_s()).filter(|known| known.blocks > 0);
        let is_owner = entries.dir.is_owner();
        let check = Check { entries, key, known };
        if is_owner
            && let Some(known) = known
            && let Some(image) = entries.memory.get(&key.key.0, known.version)
        {
            return Ok(check.image(&image));
        }
        if known.is_none() && is_owner && entries.is_loaded() {
            return Ok(None);
        }
        if !entries.dir.health.can_read(entries.dir.clock_ms()) {
            return Err(StoreError::PassThrough);
        }
        self.file(check).await
    }

    /// Opens, reads and checks a file.
    async fn file(&self, check: Check<'_>) -> Result<Option<Hit>, StoreError> {
        let Check { entries, key: LookupKey { key, access, .. }, known } = check;
        let plan = self.files.plan(key, access, known);
        let opened = match self.files.open_file(key, known, plan) {
            Some(open) => match open.read {
                Some(read) if plan.first == FirstRead::Prefix => {
                    return Ok(check.cached_header(plan, open.file, &read));
                }
                _ => Ok(open.file),
            },
            None => self.files.open(key, plan).await,
        };
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // The file was removed by hand, or was just evicted.
                if let Some(known) = known {
                    entries.forget(key, known.version);
                }
                return Ok(None);
            }
            Err(errno) => return Err(entries.dir.open_failed(errno)),
        };
        let read = match self.files.read_entry(&file, key, known, plan).await {
            Ok(read) => read,
            Err(ReadError::Disk(errno)) => return Err(entries.dir.read_failed("reading an entry", errno)),
            Err(ReadError::NoMemory) => return Err(StoreError::NoMemory),
            Err(ReadError::Damaged(damage)) => {
                entries.drop_damaged(key, known.map(|known| known.version), damage);
                return Ok(None);
            }
        };
        entries.dir.read_succeeded();
        Ok(check.file(plan, file, read))
    }

    /// Removes an entry if a purge applies to it.
    pub(crate) async fn judge_purged(&self, key: &Key, known: IndexEntry) -> Judged {
        let entries = &self.entries;
        let file = match entries.dir.open_file(entries.dir.path_of(key).0, READ_FLAGS).await {
            Ok(file) => file,
            Err(Errno::NOENT) => return Judged::Outlived,
            Err(_) => return Judged::Unknown,
        };
        let plan = self.files.plan(key, self.access(), None);
        match self.files.read_header(&file, PREFIX_BYTES, plan).await {
            Ok((buf, header)) => {
                if header.primary != *key {
                    entries.settling.add_variant(&header.primary);
                }
                match entries.purge_effect(&header, &buf[header.text.clone()]) {
                    Some(PurgeEffect::Unusable) => {
                        entries.forget_purged(key, known.version);
                        Judged::Outlived
                    }
                    Some(PurgeEffect::Stale) => Judged::Stale,
                    None => Judged::Outlived,
                }
            }
            // A damaged entry is never served.
            Err(ReadError::Damaged(_)) => Judged::Outlived,
            Err(ReadError::Disk(_) | ReadError::NoMemory) => Judged::Unknown,
        }
    }
}

/// The result of a check against purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The entry is newer than all matching purges, or was removed.
    Outlived,
    /// A soft purge applies to the entry.
    Stale,
    /// The entry cannot be read.
    Unknown,
}
