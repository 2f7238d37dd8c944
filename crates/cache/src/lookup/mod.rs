//! Lookups: in memory first, then in the file, whose bytes are used only if their checksums are correct. The result is
//! a [`Hit`], with a body in memory or [`Located`] in a file.
//!
//! ```text
//!   memory tier -> index: unknown and loading done -> miss
//!                     |
//!                     v  known, or not loaded, or not the owner
//!   plan -> open -> read (all of a small entry; slots and table of a large one) -> check -> hit
//!     header, key, variant, purges, chunk or table: each failed check is a miss, and a damaged entry is removed
//! ```
//! [`file`] plans the read, opens the file or takes one of the [`open_files`], and reads it. [`Check`] makes a hit from
//! an entry (in memory, open, or just read) if it matches the request: key text, variant, purges. [`reader`] reads the
//! bodies of large entries.

pub(crate) mod file;
pub(crate) mod open_files;
pub(crate) mod reader;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use http::response::parse::ParsedResponse;
use io::segments::Source;
use io::{Buf, Disk, DiskVia, Errno};
use rt::File;

use crate::config::Access;
use crate::disk::directory::{READ_FLAGS, ReadError, now_s};
use crate::entries::chunks::Chunks;
use crate::entries::{Entries, Image};
use crate::error::StoreError;
use crate::format::{ALIGN, Damage, Header};
use crate::index::IndexEntry;
use crate::key::Key;
use crate::lookup::file::{EntryFiles, FirstRead, LookupKey, PREFIX_BYTES, Read, ReadPlan, body_of};
use crate::lookup::open_files::{CachedHeader, Content, OpenFile, ReadBefore};
use crate::lookup::reader::Reader;
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
            sends_large_files: false,
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

    /// Returns the entry for a request if it is at hand, `is_wanted` and not purged, and counts a hit. It needs no wait and no
    /// disk: the entry is in memory, or its file is open and was read before. `None` states nothing about the entry:
    /// [`Lookup::find`] decides.
    pub(crate) fn find_at_hand(
        &self,
        key: &Key,
        text: &[u8],
        access: Access,
        is_wanted: impl Fn(&Meta) -> bool,
    ) -> Option<Hit> {
        let entries = &self.entries;
        if !entries.dir.is_owner() {
            return None;
        }
        // An entry that is not wanted, such as a stale one, is found again by `Lookup::find`, which counts its use.
        let image = entries.memory.find(&key.0, |image, _| is_wanted(&image.header.meta));
        let name = (entries.dir.seed, *key);
        let is_read = image.is_some()
            || (entries.dir.health.can_read(entries.dir.clock_ms())
                && open_files::has_read(name, |header| is_wanted(&header.meta)));
        if !is_read {
            return None;
        }
        // Looked up last, because this counts a use of the entry.
        let known = entries.index.touch(&key.0, now_s()).filter(|known| known.blocks > 0);
        let check = Check { entries, key: LookupKey { key, primary: key, text, access }, known };
        let hit = match image {
            Some((image, version)) if version == known?.version => check.image(&image)?,
            _ => match self.in_open_file(check, self.files.plan(key, access, known)) {
                OpenEntry::Read(hit) => hit?,
                OpenEntry::Unread(_) | OpenEntry::Closed => return None,
            },
        };
        if hit.is_purged_soft {
            return None;
        }
        let counters = &entries.counters;
        let counter = if hit.is_from_memory { &counters.hits_memory } else { &counters.hits_disk };
        counter.count();
        Some(hit)
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

    /// Looks for an entry among the open files.
    fn in_open_file(&self, check: Check<'_>, plan: ReadPlan) -> OpenEntry {
        let Some(open) = self.files.open_file(check.key.key, check.known, plan) else {
            return OpenEntry::Closed;
        };
        match open.read.as_ref().map(|read| &read.content) {
            Some(Content::Complete(image)) => OpenEntry::Read(check.image(image)),
            Some(Content::Start(read)) if plan.first_if_open == FirstRead::Prefix => {
                OpenEntry::Read(check.cached_header(plan, open.file, read))
            }
            _ => OpenEntry::Unread(open.file),
        }
    }

    /// Opens, reads and checks a file.
    async fn file(&self, check: Check<'_>) -> Result<Option<Hit>, StoreError> {
        let Check { entries, key: LookupKey { key, access, .. }, known } = check;
        let mut plan = self.files.plan(key, access, known);
        let opened = match self.in_open_file(check, plan) {
            OpenEntry::Read(hit) => return Ok(hit),
            OpenEntry::Unread(file) => {
                plan.first = plan.first_if_open;
                Ok(file)
            }
            OpenEntry::Closed => self.files.open(key, plan).await,
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
                    entries.retention.add_variant(&header.primary);
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

/// The result of a lookup among the open files.
enum OpenEntry {
    /// It was read before. `None`: it was purged, or has another key text.
    Read(Option<Hit>),
    /// It has to be read.
    Unread(File),
    /// It has to be opened.
    Closed,
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

/// A found entry. It belongs to the thread that looked it up.
pub struct Hit {
    /// The metadata.
    pub meta: Arc<Meta>,
    /// Whether a soft purge has made it stale: it is revalidated before use, and retained in case no upstream responds.
    pub is_purged_soft: bool,
    /// Whether it was found in the memory tier.
    pub is_from_memory: bool,
    /// The engine that has read it, and whether the read bypassed the page cache; `None` from the memory tier.
    pub read_by: Option<(DiskVia, bool)>,
    pub(crate) key: Key,
    pub(crate) version: u32,
    /// Sequence number of the last purge at the time of the lookup.
    pub(crate) sequence: u64,
    pub(crate) header: Arc<Header>,
    /// Bytes of the file in memory: at least its header and texts.
    pub image: Source,
    /// The body.
    pub body: Body,
}

/// The location of a body.
pub enum Body {
    /// A verified range of the image in memory.
    Image(Range<usize>),
    /// A range of the file.
    File(Located),
}

impl Hit {
    /// Returns the key of the entry's file: the primary key, or that of a variant.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns the stored header section.
    pub fn head(&self) -> &[u8] {
        &self.image.bytes()[self.head_range()]
    }

    /// Returns the range of the stored header section in the image.
    pub fn head_range(&self) -> Range<usize> {
        self.header.head.clone()
    }

    /// Returns the parsed header section, whose spans refer to [`Hit::head`]; `None` if it is invalid. All hits of an
    /// entry in memory share it.
    pub fn parsed_head(&self) -> Option<&Arc<ParsedResponse>> {
        self.header.parsed_head(self.image.bytes())
    }

    /// Returns the location of the body if it is in a file.
    pub fn located(&self) -> Option<&Located> {
        match &self.body {
            Body::Image(_) => None,
            Body::File(located) => Some(located),
        }
    }

    /// Returns the length of the complete body in bytes.
    pub fn length(&self) -> u64 {
        match &self.body {
            Body::Image(range) => range.len() as u64,
            Body::File(located) => located.length,
        }
    }
}

/// A body in a file. It starts at `offset`; only the bytes of present chunks are content.
#[derive(Clone)]
pub struct Located {
    /// The file, open for reading.
    pub file: File,
    /// Its device, and the backend that the cache is configured with.
    pub disk: Disk,
    /// Offset of the body in the file: a multiple of 4096.
    pub offset: u64,
    /// Length of the complete body in bytes.
    pub length: u64,
    pub(crate) key: Key,
    pub(crate) version: u32,
    /// `None` for a fill in flight, whose file has the bytes received so far.
    pub(crate) chunks: Option<Arc<Chunks>>,
    pub(crate) entries: Arc<Entries>,
}

impl Located {
    /// Whether all chunks of a range are stored.
    pub fn is_present(&self, range: &Range<u64>) -> bool {
        self.missing(range).is_none()
    }

    /// Returns the first missing part of a range, extended to complete chunks (it may begin before the range and end
    /// behind it): the range to fetch so that it can be stored.
    pub fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.chunks.as_ref()?.missing(range)
    }

    /// Whether the checksums of all chunks of a range were verified recently ([`crate::Config::verify`]), so that the
    /// range may be sent by sendfile or any other means. Other ranges must be read by [`Located::read`].
    pub fn is_verified(&self, range: &Range<u64>) -> bool {
        self.chunks.as_ref().is_none_or(|chunks| chunks.all_verified(range))
    }

    /// See [`crate::Config::calls_directly`].
    pub fn calls_directly(&self) -> bool {
        self.entries.dir.calls_directly
    }

    /// Returns a reader of a range with `window` reads in flight, which verifies each chunk that was not verified
    /// before.
    pub fn read(&self, range: Range<u64>, window: usize) -> Reader {
        Reader::new(self.clone(), range, window)
    }

    /// Reports damage and drops the entry.
    pub(crate) fn damaged(&self, damage: Damage) -> StoreError {
        if self.chunks.is_some() {
            self.entries.drop_damaged(&self.key, Some(self.version), damage);
        }
        StoreError::Damaged(damage)
    }
}

/// The check of one lookup: the key, and its state in the index. Its methods return `None` for an entry that was
/// purged, is damaged, or has another key text with the same digest.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) entries: &'a Arc<Entries>,
    pub(crate) key: LookupKey<'a>,
    pub(crate) known: Option<IndexEntry>,
}

impl Check<'_> {
    /// Checks an entry in memory.
    pub(crate) fn image(self, image: &Arc<Image>) -> Option<Hit> {
        let header = &image.header;
        if image.bytes[header.text.clone()] != *self.key.text {
            return None;
        }
        let is_purged_soft = self.outlived(header)?;
        debug_assert!(body_of(header).end <= image.bytes.len());
        let version = self.known.map_or(0, |known| known.version);
        let bytes = Source::Shared(Arc::clone(&image.bytes));
        let hit = self.hit(version, header, bytes, Body::Image(body_of(header)));
        Some(Hit { is_purged_soft, is_from_memory: true, ..hit })
    }

    /// Checks a large entry with an open file whose header was read recently.
    pub(crate) fn cached_header(self, plan: ReadPlan, file: File, read: &CachedHeader) -> Option<Hit> {
        let (header, key) = (&read.header, self.key);
        if header.primary != *key.primary || read.image[header.text.clone()] != *key.text {
            return None;
        }
        let is_purged_soft = self.outlived(header)?;
        let version = self.known.map_or(0, |known| known.version);
        let read_by = (plan.reads_of(&file), file.fd().is_direct());
        let located = self.located(plan, file, header, Arc::clone(&read.chunks));
        let image = Source::Shared(Arc::clone(&read.image));
        let hit = self.hit(version, header, image, Body::File(located));
        Some(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// Checks a file that was read.
    pub(crate) fn file(self, plan: ReadPlan, file: File, read: Read) -> Option<Hit> {
        let Read { buf, header, chunks, seen } = read;
        let (entries, key) = (self.entries, self.key);
        let read_by = (plan.reads_of(&file), file.fd().is_direct());
        let version = self.known.map(|known| known.version);
        let is_named = header.primary == *key.key || header.primary.variant(&header.meta.variant) == *key.key;
        if !is_named {
            entries.drop_damaged(key.key, version, Damage::Key);
            return None;
        }
        if header.primary != *key.primary || buf[header.text.clone()] != *key.text {
            return None;
        }
        let is_purged_soft = self.outlived(&header)?;
        // A file that bypasses the page cache contrary to its plan is used by this reader only.
        let is_as_planned = file.fd().is_direct() == plan.direct;
        let may_keep = version.is_some() && plan.calls_directly && is_as_planned && !header.layout.is_partial;
        let version = version.unwrap_or_else(|| entries.adopt(key.key, &header, chunks.as_deref()));
        let name = (entries.dir.seed, *key.key);
        let retained = (may_keep && open_files::should_retain(name)).then(|| file.clone());
        // Direct reads are for those who want no memory to be used, except that of `memory=`.
        let may_retain_complete = retained.is_some() && seen.is_some() && !plan.direct;
        let (image, body, content) = match chunks {
            Some(chunks) => {
                // Only the bytes of the header are copied, and the buffer is returned to the pool: a request that waits
                // for a buffer to read the body must not hold another one.
                let read = CachedHeader::new(&buf, &header, &chunks);
                let image = Source::Shared(Arc::clone(&read.image));
                let located = self.located(plan, file, &header, chunks);
                (image, Body::File(Located { version, ..located }), Some(Content::Start(read)))
            }
            None => {
                let is_retained = may_retain_complete && open_files::has_room(buf.len() as u64);
                let (bytes, image) = self.remember(version, buf, &header, is_retained);
                (bytes, Body::Image(body_of(&header)), image.map(Content::Complete))
            }
        };
        if let Some(file) = retained {
            let read = seen.zip(content).map(|(seen, content)| Rc::new(ReadBefore { seen, content }));
            open_files::retain_file(name, OpenFile { version, direct: plan.direct, file, read });
        }
        let hit = self.hit(version, &header, image, body);
        Some(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// Returns the hit; the caller sets the fields that depend on how the entry was found.
    fn hit(self, version: u32, header: &Arc<Header>, image: Source, body: Body) -> Hit {
        Hit {
            meta: Arc::clone(&header.meta),
            is_purged_soft: false,
            is_from_memory: false,
            read_by: None,
            key: *self.key.key,
            version,
            sequence: self.entries.sequence(),
            header: Arc::clone(header),
            image,
            body,
        }
    }

    /// Returns whether a soft purge applies to the entry. If a hard purge applies, removes the entry and returns
    /// `None`.
    fn outlived(self, header: &Header) -> Option<bool> {
        let effect = self.entries.purge_effect(header, self.key.text);
        if effect == Some(PurgeEffect::Unusable) {
            match self.known {
                Some(known) => self.entries.forget_purged(self.key.key, known.version),
                None => self.entries.remove_purged_file(self.key.key),
            }
            return None;
        }
        Some(effect.is_some())
    }

    /// Returns the location of the body of a large entry.
    fn located(self, plan: ReadPlan, file: File, header: &Header, chunks: Arc<Chunks>) -> Located {
        assert!(header.layout.body.is_multiple_of(ALIGN), "a large body begins at a block");
        let epoch = self.entries.epoch();
        chunks.begin_epoch(epoch);
        if self.known.is_some_and(|known| known.verified == epoch) && self.entries.dir.is_owner() {
            chunks.set_all_verified();
        }
        Located {
            disk: Disk { device: self.entries.dir.device, via: plan.reads_of(&file) },
            file,
            offset: header.layout.body,
            length: header.length,
            key: *self.key.key,
            version: self.known.map_or(0, |known| known.version),
            chunks: Some(chunks),
            entries: Arc::clone(self.entries),
        }
    }

    /// Offers a small entry to the memory tier, and returns it if it `is_retained` elsewhere. Others are not retained: a 304 changes
    /// their header in the same file, with the same version, and the memory tier would keep the old one.
    fn remember(
        self,
        version: u32,
        buf: Buf,
        header: &Arc<Header>,
        is_retained: bool,
    ) -> (Source, Option<Arc<Image>>) {
        let memory = &self.entries.memory;
        let is_offered = buf.len() as u64 <= memory.object_max();
        let is_wanted = header.layout.is_small && (is_offered || is_retained);
        if !self.entries.dir.is_owner() || !is_wanted {
            return (Source::Buf(buf), None);
        }
        let shared: Arc<[u8]> = Arc::from(&buf[..]);
        let image = Arc::new(Image { bytes: Arc::clone(&shared), header: Arc::clone(header) });
        if is_offered {
            let parsed_bytes = header.parsed_head(&buf).map_or(0, |head| head.memory_bytes());
            memory.offer(&self.key.key.0, version, (buf.len() + parsed_bytes) as u64, &image);
        }
        (Source::Shared(shared), Some(image).filter(|_| !is_offered))
    }
}
