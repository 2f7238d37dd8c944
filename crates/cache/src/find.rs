//! Lookups: memory first, then the file, which is trusted as far as its checksums reach.
//!
//! ```text
//!   memory tier -> index: unknown and loading done -> miss
//!                     |
//!                     v  known, or not loaded, or not the owner
//!   open -> one read (all of a small entry; slots and table of a large one)
//!     header, key, variant, purges, chunk or table: each that does not hold is a miss, and what is damaged is dropped
//! ```
//! What was opened a moment ago is still open (`held`). Of what was found `found` makes the hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io::op::{OpenHow, Stat};
use io::{Buf, DiskVia, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::chunks::Chunks;
use crate::config::Access;
use crate::crc32c;
use crate::error::StoreError;
use crate::format::header::{Header, Unread, decode};
use crate::format::table::{RECORD_BYTES, checksum};
use crate::format::{CHUNK_BYTES, Damage, chunks_of};
use crate::health::{Fault, fault_of};
use crate::hit::Hit;
use crate::index::Known;
use crate::key::Key;
use crate::note::Note;
use crate::opening::{First, PREFIX_BYTES, Way};
use crate::purge::{Fate, Purges, Subject};
use crate::reading::{ReadError, buffer, extend_to, read_into, read_prefix, read_whole};
use crate::store::{Selector, Store, now_ms, now_s};

/// A small entry in memory: its file as it is, and what was read from it.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
}

/// How often a header that is torn is read again: somebody may be writing a new head.
const HEADER_TRIES: u32 = 3;

/// Damaged entries that are named in the log in a minute; all are counted.
const DAMAGE_NOTES_MAX: u64 = 10;

/// What was found in the file of a key.
pub(crate) enum Found {
    Entry(Hit),
    /// There is none, or no longer.
    Nothing,
    /// It holds another text that has the same digest.
    Other,
}

/// Whose entry is looked for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The key of the file.
    pub(crate) key: &'a Key,
    pub(crate) primary: &'a Key,
    pub(crate) text: &'a [u8],
    access: Access,
}

impl Store {
    /// The entry for a request, memory first. A miss is `None`, also where the entry is damaged or for another variant.
    pub async fn find(
        self: &Arc<Store>,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
    ) -> Result<Option<Hit>, StoreError> {
        self.find_by(key, text, selector, self.access()).await
    }

    /// As [`Store::find`], read as a request's location says.
    pub async fn find_by(
        self: &Arc<Store>,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
        access: Access,
    ) -> Result<Option<Hit>, StoreError> {
        let found = self.select(Wanted { key, primary: key, text, access }, selector).await;
        match &found {
            Ok(Some(hit)) if hit.is_from_memory => self.counters.hits_memory.count(),
            Ok(Some(_)) => self.counters.hits_disk.count(),
            Ok(None) | Err(_) => self.counters.misses.count(),
        }
        found
    }

    /// The entry at the primary key, or the one for the variant that the request wants.
    async fn select(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        selector: Selector<'_>,
    ) -> Result<Option<Hit>, StoreError> {
        if !self.is_owner() {
            Box::pin(self.follow_purges()).await;
        }
        let Some(first) = self.entry(wanted).await? else { return Ok(None) };
        if first.meta.vary.is_empty() {
            return Ok(Some(first));
        }
        let variant = selector(&first.meta.vary);
        if variant == first.meta.variant {
            return Ok(Some(first));
        }
        let second = Wanted { key: &wanted.key.variant(&variant), ..wanted };
        // Boxed, like all that few lookups come to: the others would carry its room.
        let second = Box::pin(self.entry(second)).await?;
        Ok(second.filter(|hit| hit.meta.variant == variant && hit.meta.vary == first.meta.vary))
    }

    /// The entry for a request, without counting a lookup; none where the disk cannot give it.
    pub(crate) async fn find_unseen(
        self: &Arc<Store>,
        key: &Key,
        text: &[u8],
        selector: Selector<'_>,
    ) -> Option<Hit> {
        self.select(Wanted { key, primary: key, text, access: self.access() }, selector).await.ok()?
    }

    /// Whether anything is stored under a key, whichever variant. It counts as a use of the entry, and as no lookup.
    pub async fn holds(self: &Arc<Store>, key: &Key, text: &[u8]) -> Result<bool, StoreError> {
        Ok(self.entry(Wanted { key, primary: key, text, access: self.access() }).await?.is_some())
    }

    /// What the primary key's entry says about variants: its `Vary` and its variant.
    pub(crate) async fn variant_at(
        self: &Arc<Store>,
        key: &Key,
        text: &[u8],
    ) -> Option<Arc<crate::meta::Meta>> {
        let access = self.access();
        let found = self.entry(Wanted { key, primary: key, text, access }).await.ok()??;
        Some(found.meta)
    }

    /// The entry in the file of a key.
    async fn entry(self: &Arc<Store>, wanted: Wanted<'_>) -> Result<Option<Hit>, StoreError> {
        let known = self.index.touch(&wanted.key.0, now_s()).filter(|known| known.blocks > 0);
        let is_owner = self.is_owner();
        if is_owner
            && let Some(known) = known
            && let Some(image) = self.memory.get(&wanted.key.0, known.version)
        {
            return Ok(self.from_memory(wanted, known, &image));
        }
        if known.is_none() && is_owner && self.is_loaded() {
            return Ok(None);
        }
        if !self.health.can_read(now_ms()) {
            return Err(StoreError::PassThrough);
        }
        match self.from_file(wanted, known).await? {
            Found::Entry(hit) => Ok(Some(hit)),
            Found::Nothing | Found::Other => Ok(None),
        }
    }

    async fn from_file(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Option<Known>,
    ) -> Result<Found, StoreError> {
        let way = self.way(wanted.key, wanted.access, known);
        let opened = match self.held_for(wanted.key, known, way) {
            Some(held) => match held.read {
                Some(read) if way.first == First::Prefix => {
                    return Ok(self.from_held(wanted, known, way, held.file, &read));
                }
                _ => Ok(held.file),
            },
            None => self.open_entry(wanted.key, way).await,
        };
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // Somebody has removed it by hand, or it was evicted a moment ago.
                if let Some(known) = known {
                    self.forget(wanted.key, known.version);
                }
                return Ok(Found::Nothing);
            }
            Err(errno) => return Err(self.open_failed(errno)),
        };
        let read = match self.read(&file, wanted.key, known, way).await {
            Ok(read) => read,
            Err(ReadError::Disk(errno)) => return Err(self.read_failed("reading an entry", errno)),
            Err(ReadError::NoMemory) => return Err(StoreError::NoMemory),
            Err(ReadError::Damaged(damage)) => {
                self.drop_damaged(wanted.key, known.map(|known| known.version), damage);
                return Ok(Found::Nothing);
            }
        };
        if self.health.read_worked() {
            self.note(Note::Recovered { name: self.name() });
        }
        Ok(self.judge(wanted, known, way, file, read))
    }

    fn open_failed(&self, errno: Errno) -> StoreError {
        match fault_of(errno) {
            Fault::Process => StoreError::Disk { doing: "opening an entry", errno },
            Fault::Disk => self.read_failed("opening an entry", errno),
        }
    }

    /// Reads and checks an entry's header, and the body of one that is read whole or the table of another.
    pub(crate) async fn read(
        &self,
        file: &File,
        key: &Key,
        known: Option<Known>,
        way: Way,
    ) -> Result<Read, ReadError> {
        // Before the header is read, so that a new one that is written meanwhile shows. Of an open file, so it is in memory.
        let seen = match way.first {
            First::Prefix => Some(file.stat_inline().map_err(ReadError::Disk)?),
            First::Whole(_) => None,
        };
        let (mut buf, header) = self.read_header(file, way.first.bytes(), way).await?;
        let layout = header.layout;
        let end = layout.body + header.length;
        let is_whole = layout.is_small || (matches!(way.first, First::Whole(_)) && !layout.is_partial);
        if !is_whole {
            let table_end = layout.table + chunks_of(header.length) * RECORD_BYTES;
            if file.fd().is_direct() && table_end > buf.len() as u64 {
                // From where direct reads may start.
                buf = Box::pin(extend_to(file, buf, table_end, self.device, way.reads_of(file))).await?;
            }
            let chunks = match self.table_at_hand(file, &buf, &header, seen)? {
                Some(chunks) => chunks,
                None => Box::pin(self.table(file, &header, way.reads_of(file))).await?,
            };
            if way.evades && !io::page_cache::is_resident(file.fd(), layout.body, header.length) {
                self.evade(file, way);
            }
            return Ok(Read { buf, header, chunks: Some(chunks), seen });
        }
        if (buf.len() as u64) < end {
            self.evade(file, way);
            buf = Box::pin(extend_to(file, buf, end, self.device, way.reads_of(file))).await?;
            if (buf.len() as u64) < end {
                let index = (buf.len() as u64).saturating_sub(layout.body) / CHUNK_BYTES;
                return Err(ReadError::Damaged(Damage::Truncated { index }));
            }
        }
        let known = known.filter(|_| self.is_owner());
        let epoch = self.epoch();
        if layout.is_small || known.is_none_or(|known| known.verified != epoch) {
            self.verify(&buf, &header)?;
            if let Some(known) = known.filter(|_| !layout.is_small) {
                self.index.set_verified(&key.0, known.version, epoch);
            }
        }
        Ok(Read { buf, header, chunks: None, seen })
    }

    /// Compares all chunks of an entry that was read whole with their checksums.
    fn verify(&self, buf: &Buf, header: &Header) -> Result<(), ReadError> {
        let records = &buf[header.layout.table as usize..];
        let chunks = buf[body_of(header)].chunks(CHUNK_BYTES as usize);
        for (index, (chunk, record)) in (0..).zip(chunks.zip(records.chunks(RECORD_BYTES as usize))) {
            self.counters.verified_chunks.count();
            if checksum(header.nonce, index, record) != Some(crc32c::of(chunk)) {
                return Err(ReadError::Damaged(Damage::Chunk { index }));
            }
        }
        Ok(())
    }

    async fn read_header(&self, file: &File, bytes: u64, way: Way) -> Result<(Buf, Arc<Header>), ReadError> {
        let device = self.device;
        // How it is read is decided when there is a buffer: until then what is in memory now may have left it.
        let mut buf = match self.read_resident(file, bytes, way, buffer(bytes).await?) {
            Ok(buf) => buf,
            Err(buf) => {
                self.evade(file, way);
                read_into(buf, file, 0, bytes, device, way.reads_of(file)).await?
            }
        };
        let via = way.reads_of(file);
        let mut tries = 1;
        loop {
            match decode(&buf) {
                Ok(header) => return Ok((buf, Arc::new(header))),
                Err(Unread::More(wanted)) => {
                    let before = buf.len();
                    buf = Box::pin(extend_to(file, buf, wanted as u64, device, via)).await?;
                    if buf.len() < wanted && buf.len() == before {
                        return Err(ReadError::Damaged(Damage::Short));
                    }
                }
                Err(Unread::Damaged(Damage::Header)) if tries < HEADER_TRIES => {
                    tries += 1;
                    rt::yield_now().await;
                    buf = Box::pin(read_prefix(file, buf.len() as u64, device, via)).await?;
                }
                Err(Unread::Damaged(damage)) => return Err(ReadError::Damaged(damage)),
            }
        }
    }

    /// The records of a large entry where they need no further read: they are remembered, or lie in `prefix`, the start of
    /// its file.
    fn table_at_hand(
        &self,
        file: &File,
        prefix: &Buf,
        header: &Header,
        seen: Option<Stat>,
    ) -> Result<Option<Arc<Chunks>>, ReadError> {
        if !header.layout.is_partial {
            // What was cut since it was verified must not be begun.
            let size = seen.map_or_else(|| file.stat_inline(), Ok).map_err(ReadError::Disk)?.size;
            if size < header.layout.file_bytes(header.length) {
                let index = size.saturating_sub(header.layout.body) / CHUNK_BYTES;
                return Err(ReadError::Damaged(Damage::Truncated { index }));
            }
        }
        if let Some(chunks) = self.recent.get(header.nonce, header.length) {
            return Ok(Some(chunks));
        }
        let start = header.layout.table;
        let end = start + chunks_of(header.length) * RECORD_BYTES;
        if end > prefix.len() as u64 {
            return Ok(None);
        }
        let chunks = Chunks::new(header.nonce, header.length);
        chunks.take_records(0, &prefix[start as usize..end as usize]);
        self.with_records(header, chunks).map(Some)
    }

    /// The records of a large entry, read.
    async fn table(&self, file: &File, header: &Header, via: DiskVia) -> Result<Arc<Chunks>, ReadError> {
        let chunks = Chunks::new(header.nonce, header.length);
        let start = header.layout.table;
        let end = start + chunks_of(header.length) * RECORD_BYTES;
        let mut at = start;
        while at < end {
            // A table that a partial entry has not written to its end reads as no records. One read may end amid
            // a record, so each part is read whole.
            let wanted = (end - at).min(CHUNK_BYTES);
            let part = read_whole(file, at, wanted, self.device, via).await?;
            let part = &part[..part.len().min(wanted as usize)];
            chunks.take_records((at - start) / RECORD_BYTES, part);
            if (part.len() as u64) < wanted {
                break;
            }
            at += wanted;
        }
        self.with_records(header, chunks)
    }

    /// Remembers the chunks of an entry whose records are known; none may be missing of one that was stored whole.
    fn with_records(&self, header: &Header, chunks: Chunks) -> Result<Arc<Chunks>, ReadError> {
        match chunks.first_absent().filter(|_| !header.layout.is_partial) {
            Some(index) => Err(ReadError::Damaged(Damage::Truncated { index })),
            None => Ok(self.recent.put(Arc::new(chunks))),
        }
    }

    /// Removes an entry if a purge has hit it.
    pub(crate) async fn judge_purged(self: &Arc<Store>, key: &Key, known: Known) -> Judged {
        let flags = (OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let how = OpenHow { flags, ..OpenHow::default() };
        let file = match File::open(None, self.path_of(key).0, how, self.device, self.via()).await {
            Ok(file) => file,
            Err(Errno::NOENT) => return Judged::Outlived,
            Err(_) => return Judged::Unknown,
        };
        match self.read_header(&file, PREFIX_BYTES, self.way(key, self.access(), None)).await {
            Ok((buf, header)) => {
                if header.primary != *key {
                    self.settling.add_variant(&header.primary);
                }
                match fate(&self.purges(), &header, &buf[header.text.clone()]) {
                    Some(Fate::Gone) => {
                        self.forget_purged(key, known.version);
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

    /// Drops an entry that is damaged, and says so, not too often.
    pub(crate) fn drop_damaged(self: &Arc<Store>, key: &Key, version: Option<u32>, damage: Damage) {
        static MINUTE: AtomicU64 = AtomicU64::new(0);
        static NOTES: AtomicU64 = AtomicU64::new(0);
        self.counters.damaged.count();
        let minute = now_ms() / 60_000;
        if MINUTE.swap(minute, Ordering::Relaxed) != minute {
            NOTES.store(0, Ordering::Relaxed);
        }
        if NOTES.fetch_add(1, Ordering::Relaxed) < DAMAGE_NOTES_MAX {
            let path = self.path_of(key).0;
            let path = String::from_utf8_lossy(path.as_bytes()).into_owned().into();
            self.note(Note::Damaged { name: self.name(), path, damage });
        }
        match version {
            Some(version) => {
                self.remove_entry(key, version);
            }
            None => self.remove_file(key),
        }
    }
}

/// What a look for purges has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The entry is younger than all purges that name it, or is gone.
    Outlived,
    /// A soft purge has hit it.
    Stale,
    /// The disk does not give it.
    Unknown,
}

/// What a file holds.
pub(crate) struct Read {
    pub(crate) buf: Buf,
    pub(crate) header: Arc<Header>,
    /// Of a large entry.
    pub(crate) chunks: Option<Arc<Chunks>>,
    /// The file before its header was read.
    pub(crate) seen: Option<Stat>,
}

/// Where the body lies in the file of an entry that was read whole.
pub(crate) fn body_of(header: &Header) -> std::ops::Range<usize> {
    let start = header.layout.body as usize;
    start..start + header.length as usize
}

/// What purges have made of an entry.
pub(crate) fn fate(purges: &Purges, header: &Header, text: &[u8]) -> Option<Fate> {
    purges.fate(&Subject {
        primary: &header.primary.0,
        key: text,
        tags: &header.meta.tags,
        sequence: header.sequence,
    })
}
