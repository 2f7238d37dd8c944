//! Lookups: memory first, then the file, which is trusted as far as its checksums reach.
//!
//! ```text
//!   memory tier -> index: unknown and loading done -> miss
//!                     |
//!                     v  known, or not loaded, or not the owner
//!   plan -> open -> read (all of a small entry; slots and table of a large one) -> check -> hit
//!     header, key, variant, purges, chunk or table: each that does not hold is a miss, and a damaged entry is dropped
//! ```
//! [`open`] plans, and opens or takes one of the [`open_files`]; [`read`] reads; [`hit`] compares with the request and makes
//! the hit. [`reader`] reads the bodies of large entries.

pub(crate) mod hit;
pub(crate) mod open;
pub(crate) mod open_files;
pub(crate) mod read;
pub(crate) mod reader;

use std::sync::Arc;

use io::Errno;

use crate::config::Access;
use crate::disk::directory::{READ_FLAGS, now_ms, now_s};
use crate::disk::read::ReadError;
use crate::entries::Entries;
use crate::error::StoreError;
use crate::index::Known;
use crate::key::Key;
use crate::lookup::hit::{Check, Checked, Hit};
use crate::lookup::open::{FirstRead, LookupKey, Opener, PREFIX_BYTES};
use crate::lookup::read::{read_entry, read_header};
use crate::meta::Meta;
use crate::purge::Fate;

/// Makes of the stored `Vary` ([`crate::Meta::vary`]) the text of the request that it selects ([`crate::Meta::variant`]).
pub type Selector<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Lookups in one cache.
pub(crate) struct Lookup {
    pub(crate) entries: Arc<Entries>,
    pub(crate) opener: Opener,
    /// Whether entries are read bypassing the page cache if a lookup does not set it.
    is_direct: bool,
}

impl Lookup {
    pub(crate) fn new(entries: &Arc<Entries>, is_direct: bool) -> Lookup {
        Lookup { entries: Arc::clone(entries), opener: Opener::new(&entries.dir), is_direct }
    }

    /// How entries are read if a lookup does not set it.
    pub(crate) fn access(&self) -> Access {
        let dir = &self.entries.dir;
        Access {
            via: dir.via(),
            direct_from: self.is_direct.then_some(0),
            direct_via: dir.via(),
            sends_files: false,
            has_room: true,
            calls_directly: dir.calls_directly(),
        }
    }

    /// The entry for a request, counted.
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

    /// The same without counting; none where the disk cannot give it.
    pub(crate) async fn find_uncounted(&self, key: &Key, text: &[u8], selector: Selector<'_>) -> Option<Hit> {
        self.select(LookupKey { key, primary: key, text, access: self.access() }, selector).await.ok()?
    }

    /// The entry at the primary key, or the one for the requested variant.
    async fn select(&self, wanted: LookupKey<'_>, selector: Selector<'_>) -> Result<Option<Hit>, StoreError> {
        if !self.entries.dir.is_owner() {
            Box::pin(self.entries.purges.follow()).await;
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
        // Boxed, as everything that few lookups come to: the others would carry its room.
        let second = Box::pin(self.entry(second)).await?;
        Ok(second.filter(|hit| hit.meta.variant == variant && hit.meta.vary == first.meta.vary))
    }

    /// Whether anything is stored under a key, whichever variant. It counts as a use of the entry, and as no lookup.
    pub(crate) async fn holds(&self, key: &Key, text: &[u8]) -> Result<bool, StoreError> {
        let entries = &self.entries;
        let knows_all = entries.dir.is_owner() && entries.is_loaded();
        if knows_all && !entries.purges.set().may_hit(&key.0) {
            // The file would tell nothing that the index does not know.
            return Ok(entries.index.touch(&key.0, now_s()).is_some_and(|known| known.blocks > 0));
        }
        let access = self.access();
        Ok(self.entry(LookupKey { key, primary: key, text, access }).await?.is_some())
    }

    /// The facts of the entry at the primary key: its `Vary` and its variant.
    pub(crate) async fn variant_at(&self, key: &Key, text: &[u8]) -> Option<Arc<Meta>> {
        let access = self.access();
        let found = self.entry(LookupKey { key, primary: key, text, access }).await.ok()??;
        Some(found.meta)
    }

    /// The entry in the file of a key.
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
        if !entries.dir.health.can_read(now_ms()) {
            return Err(StoreError::PassThrough);
        }
        match self.file(check).await? {
            Checked::Entry(hit) => Ok(Some(hit)),
            Checked::Nothing | Checked::KeyCollision => Ok(None),
        }
    }

    /// Opens, reads and checks a file.
    async fn file(&self, check: Check<'_>) -> Result<Checked, StoreError> {
        let Check { entries, key: LookupKey { key, access, .. }, known } = check;
        let plan = self.opener.plan(key, access, known);
        let opened = match self.opener.open_file(key, known, plan) {
            Some(open) => match open.read {
                Some(read) if plan.first == FirstRead::Prefix => {
                    return Ok(check.cached_header(plan, open.file, &read));
                }
                _ => Ok(open.file),
            },
            None => self.opener.open(key, plan).await,
        };
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // It was removed by hand, or just evicted.
                if let Some(known) = known {
                    entries.forget(key, known.version);
                }
                return Ok(Checked::Nothing);
            }
            Err(errno) => return Err(entries.dir.open_failed(errno)),
        };
        let read = match read_entry(entries, &self.opener, &file, key, known, plan).await {
            Ok(read) => read,
            Err(ReadError::Disk(errno)) => return Err(entries.dir.read_failed("reading an entry", errno)),
            Err(ReadError::NoMemory) => return Err(StoreError::NoMemory),
            Err(ReadError::Damaged(damage)) => {
                entries.drop_damaged(key, known.map(|known| known.version), damage);
                return Ok(Checked::Nothing);
            }
        };
        entries.dir.read_worked();
        Ok(check.file(plan, file, read))
    }

    /// Removes an entry if a purge has hit it.
    pub(crate) async fn judge_purged(&self, key: &Key, known: Known) -> Judged {
        let entries = &self.entries;
        let file = match entries.dir.open_file(entries.dir.path_of(key).0, READ_FLAGS).await {
            Ok(file) => file,
            Err(Errno::NOENT) => return Judged::Outlived,
            Err(_) => return Judged::Unknown,
        };
        let plan = self.opener.plan(key, self.access(), None);
        match read_header(entries, &self.opener, &file, PREFIX_BYTES, plan).await {
            Ok((buf, header)) => {
                if header.primary != *key {
                    entries.settling.add_variant(&header.primary);
                }
                match entries.fate(&header, &buf[header.text.clone()]) {
                    Some(Fate::Gone) => {
                        entries.forget_purged(key, known.version);
                        Judged::Outlived
                    }
                    Some(Fate::Stale) => Judged::Stale,
                    None => Judged::Outlived,
                }
            }
            // It is never served.
            Err(ReadError::Damaged(_)) => Judged::Outlived,
            Err(ReadError::Disk(_) | ReadError::NoMemory) => Judged::Unknown,
        }
    }
}

/// The result of a check for purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The entry is younger than all purges that name it, or is gone.
    Outlived,
    /// A soft purge has hit it.
    Stale,
    /// The disk does not give it.
    Unknown,
}
