//! Checks a file that a lookup found (in memory, open, or just read) against the request: key text, variant, purges. If it
//! matches, builds the [`Hit`].

use std::sync::Arc;

use io::Buf;
use io::op::Source;
use rt::File;

use crate::entries::chunks::Chunks;
use crate::entries::{Entries, Image};
use crate::format::header::Header;
use crate::format::{ALIGN, Damage};
use crate::index::Known;
use crate::lookup::hit::{Hit, Located, Placed};
use crate::lookup::open_files::{self, CachedHeader, OpenFile};
use crate::lookup::plan::{LookupKey, ReadPlan};
use crate::lookup::read::{Read, body_of};
use crate::purge::Fate;

/// The result of a check.
pub(crate) enum Checked {
    Entry(Hit),
    /// There is no entry, or no longer.
    Nothing,
    /// It holds another text that has the same digest.
    KeyCollision,
}

/// One lookup: the key, and its state in the index.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) entries: &'a Arc<Entries>,
    pub(crate) key: LookupKey<'a>,
    pub(crate) known: Option<Known>,
}

/// A purge has hit it.
struct Purged;

impl Check<'_> {
    /// An entry of the memory tier.
    pub(crate) fn image(self, image: &Arc<Image>) -> Option<Hit> {
        let header = &image.header;
        if image.bytes[header.text.clone()] != *self.key.text {
            return None;
        }
        let is_purged_soft = self.outlived(header).ok()?;
        debug_assert!(body_of(header).end <= image.bytes.len());
        let version = self.known.map_or(0, |known| known.version);
        let bytes = Source::Shared(Arc::clone(&image.bytes));
        let hit = self.hit(version, header, bytes, Placed::Image(body_of(header)));
        Some(Hit { is_purged_soft, is_from_memory: true, ..hit })
    }

    /// A large entry whose file was opened and whose header was read recently.
    pub(crate) fn cached_header(self, plan: ReadPlan, file: File, read: &CachedHeader) -> Checked {
        let (header, key) = (&read.header, self.key);
        if header.primary != *key.primary || read.image[header.text.clone()] != *key.text {
            return Checked::KeyCollision;
        }
        let Ok(is_purged_soft) = self.outlived(header) else { return Checked::Nothing };
        let version = self.known.map_or(0, |known| known.version);
        let read_by = (plan.reads_of(&file), file.fd().is_direct());
        let located = self.located(plan, file, header, Arc::clone(&read.chunks));
        let image = Source::Shared(Arc::clone(&read.image));
        let hit = self.hit(version, header, image, Placed::File(located));
        Checked::Entry(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// A file that was read.
    pub(crate) fn file(self, plan: ReadPlan, file: File, read: Read) -> Checked {
        let Read { buf, header, chunks, seen } = read;
        let (entries, key) = (self.entries, self.key);
        let read_by = (plan.reads_of(&file), file.fd().is_direct());
        let version = self.known.map(|known| known.version);
        let is_named = header.primary == *key.key || header.primary.variant(&header.meta.variant) == *key.key;
        if !is_named {
            entries.drop_damaged(key.key, version, Damage::Key);
            return Checked::Nothing;
        }
        if header.primary != *key.primary || buf[header.text.clone()] != *key.text {
            return Checked::KeyCollision;
        }
        let Ok(is_purged_soft) = self.outlived(&header) else { return Checked::Nothing };
        // A file that bypasses the page cache against its plan is for this one reader.
        let is_as_planned = file.fd().is_direct() == plan.direct;
        let may_keep = version.is_some() && plan.calls_directly && is_as_planned && !header.layout.is_partial;
        let version = version.unwrap_or_else(|| entries.adopt(key.key, &header, chunks.as_deref()));
        let name = (entries.dir.id(), *key.key);
        let kept = (may_keep && open_files::is_worth_keeping(name)).then(|| file.clone());
        let mut cached = None;
        let (image, body) = match chunks {
            Some(chunks) => {
                // The buffer goes back, only the bytes that the header names stay: requests that wait for a buffer to
                // read the body must not hold others.
                let read = CachedHeader::new(&buf, &header, &chunks, seen);
                let image = Source::Shared(Arc::clone(&read.image));
                cached = seen.and(Some(read));
                let located = self.located(plan, file, &header, chunks);
                (image, Placed::File(Located { version, ..located }))
            }
            None => (self.remember(version, buf, &header), Placed::Image(body_of(&header))),
        };
        if let Some(file) = kept {
            open_files::keep(name, OpenFile { version, direct: plan.direct, file, read: cached });
        }
        let hit = self.hit(version, &header, image, body);
        Checked::Entry(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// The entry, not yet with the way that it was found.
    fn hit(self, version: u32, header: &Arc<Header>, image: Source, body: Placed) -> Hit {
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

    /// Whether an entry has outlived all purges; if so, whether a soft one has hit it. One that has not is removed.
    fn outlived(self, header: &Header) -> Result<bool, Purged> {
        let fate = self.entries.fate(header, self.key.text);
        if fate == Some(Fate::Gone) {
            match self.known {
                Some(known) => self.entries.forget_purged(self.key.key, known.version),
                None => self.entries.remove_purged_file(self.key.key),
            }
            return Err(Purged);
        }
        Ok(fate.is_some())
    }

    /// Where the body of a large entry is.
    fn located(self, plan: ReadPlan, file: File, header: &Header, chunks: Arc<Chunks>) -> Located {
        assert!(header.layout.body.is_multiple_of(ALIGN), "a large body begins at a block");
        let epoch = self.entries.epoch();
        chunks.begin_epoch(epoch);
        if self.known.is_some_and(|known| known.verified == epoch) && self.entries.dir.is_owner() {
            chunks.set_all_verified();
        }
        Located {
            device: self.entries.dir.device(),
            via: plan.reads_of(&file),
            file,
            offset: header.layout.body,
            length: header.length,
            key: *self.key.key,
            version: self.known.map_or(0, |known| known.version),
            chunks: Some(chunks),
            entries: Arc::clone(self.entries),
        }
    }

    /// Offers a small entry to the memory tier.
    fn remember(self, version: u32, buf: Buf, header: &Arc<Header>) -> Source {
        let (bytes, memory) = (buf.len() as u64, &self.entries.memory);
        if !self.entries.dir.is_owner() || bytes > memory.object_max() {
            return Source::Buf(buf);
        }
        let shared: Arc<[u8]> = Arc::from(&buf[..]);
        let image = Arc::new(Image { bytes: Arc::clone(&shared), header: Arc::clone(header) });
        memory.offer(&self.key.key.0, version, bytes, &image);
        Source::Shared(shared)
    }
}
