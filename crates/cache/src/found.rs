//! Of what was found in memory, in an open file or in one that was read, whether it is what was wanted, and the
//! [`Hit`] that is made of it.

use std::rc::Rc;
use std::sync::Arc;

use io::Buf;
use io::op::Source;
use rt::File;

use crate::chunks::Chunks;
use crate::find::{Found, Image, Read, Wanted, body_of, fate};
use crate::format::Damage;
use crate::format::header::Header;
use crate::held::{HeldHead, Holding};
use crate::hit::{Hit, Located, Placed};
use crate::index::Known;
use crate::key::Key;
use crate::opening::Way;
use crate::purge::Fate;
use crate::space::blocks_of;
use crate::store::{Store, now_s};

/// A purge has hit it.
pub(crate) struct Purged;

impl Store {
    /// An entry of the memory tier.
    pub(crate) fn from_memory(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Known,
        image: &Arc<Image>,
    ) -> Option<Hit> {
        let header = &image.header;
        if image.bytes[header.text.clone()] != *wanted.text {
            return None;
        }
        let fate = fate(&self.purges(), header, wanted.text);
        if fate == Some(Fate::Gone) {
            self.forget_purged(wanted.key, known.version);
            return None;
        }
        let body = body_of(header);
        let bytes = Source::Shared(Arc::clone(&image.bytes));
        let hit = self.hit(wanted.key, known.version, header, bytes, Placed::Image(body));
        Some(Hit { is_purged_soft: fate.is_some(), is_from_memory: true, ..hit })
    }

    /// A large entry whose file was opened and whose header was read a moment ago.
    pub(crate) fn from_held(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Option<Known>,
        way: Way,
        file: File,
        read: &HeldHead,
    ) -> Found {
        let header = &read.header;
        if header.primary != *wanted.primary || read.image[header.text.clone()] != *wanted.text {
            return Found::Other;
        }
        let Ok(is_purged_soft) = self.outlived(wanted, known, header) else { return Found::Nothing };
        let version = known.map_or(0, |known| known.version);
        let read_by = (way.reads_of(&file), file.fd().is_direct());
        let located = self.located(wanted, known, way, file, header, Arc::clone(&read.chunks));
        let image = Source::Shared(Arc::clone(&read.image));
        let hit = self.hit(wanted.key, version, header, image, Placed::File(located));
        Found::Entry(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// Compares what was read with what is wanted.
    pub(crate) fn judge(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Option<Known>,
        way: Way,
        file: File,
        read: Read,
    ) -> Found {
        let Read { buf, header, chunks, seen } = read;
        let read_by = (way.reads_of(&file), file.fd().is_direct());
        let version = known.map(|known| known.version);
        let is_named =
            header.primary == *wanted.key || header.primary.variant(&header.meta.variant) == *wanted.key;
        if !is_named {
            self.drop_damaged(wanted.key, version, Damage::Key);
            return Found::Nothing;
        }
        if header.primary != *wanted.primary || buf[header.text.clone()] != *wanted.text {
            return Found::Other;
        }
        let Ok(is_purged_soft) = self.outlived(wanted, known, &header) else { return Found::Nothing };
        // A file that was opened past the page cache unasked is for this one reader.
        let is_as_asked = file.fd().is_direct() == way.direct;
        let is_held = version.is_some() && way.calls_directly && is_as_asked && !header.layout.is_partial;
        let version = version.unwrap_or_else(|| self.know(wanted.key, &header, chunks.as_deref()));
        let held = (is_held && self.is_to_be_held(wanted.key)).then(|| file.clone());
        let mut held_head = None;
        let (image, body) = match chunks {
            Some(chunks) => {
                // What is kept is what the header tells of. The buffer goes back: those who wait for one to read the body
                // must not hold others.
                let read = HeldHead::new(&buf, &header, &chunks, seen);
                let image = Source::Shared(Arc::clone(&read.image));
                held_head = seen.and(Some(read));
                let located = self.located(wanted, known, way, file, &header, chunks);
                (image, Placed::File(Located { version, ..located }))
            }
            None => (self.remember(wanted.key, version, buf, &header), Placed::Image(body_of(&header))),
        };
        if let Some(file) = held {
            let resident_until = Rc::default();
            let holding = Holding { version, direct: way.direct, file, read: held_head, resident_until };
            self.hold(wanted.key, holding);
        }
        let hit = self.hit(wanted.key, version, &header, image, body);
        Found::Entry(Hit { is_purged_soft, read_by: Some(read_by), ..hit })
    }

    /// An entry as it was found, of which it is not said yet how.
    fn hit(&self, key: &Key, version: u32, header: &Arc<Header>, image: Source, body: Placed) -> Hit {
        Hit {
            meta: Arc::clone(&header.meta),
            is_purged_soft: false,
            is_from_memory: false,
            read_by: None,
            key: *key,
            version,
            sequence: self.sequence(),
            header: Arc::clone(header),
            image,
            body,
        }
    }

    /// Whether an entry has outlived all purges; if so, whether a soft one has hit it. One that has not is removed.
    fn outlived(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Option<Known>,
        header: &Header,
    ) -> Result<bool, Purged> {
        let fate = fate(&self.purges(), header, wanted.text);
        if fate == Some(Fate::Gone) {
            match known {
                Some(known) => self.forget_purged(wanted.key, known.version),
                None => self.remove_purged_file(wanted.key),
            }
            return Err(Purged);
        }
        Ok(fate.is_some())
    }

    /// Where the body of a large entry is.
    fn located(
        self: &Arc<Store>,
        wanted: Wanted<'_>,
        known: Option<Known>,
        way: Way,
        file: File,
        header: &Header,
        chunks: Arc<Chunks>,
    ) -> Located {
        let epoch = self.epoch();
        chunks.begin_epoch(epoch);
        if known.is_some_and(|known| known.verified == epoch) && self.is_owner() {
            chunks.set_all_verified();
        }
        Located {
            device: self.device,
            via: way.reads_of(&file),
            file,
            offset: header.layout.body,
            length: header.length,
            key: *wanted.key,
            version: known.map_or(0, |known| known.version),
            chunks: Some(chunks),
            store: Arc::clone(self),
        }
    }

    /// Offers a small entry to the memory tier.
    fn remember(&self, key: &Key, version: u32, buf: Buf, header: &Arc<Header>) -> Source {
        let bytes = buf.len() as u64;
        if !self.is_owner() || bytes > self.memory.object_max() {
            return Source::Buf(buf);
        }
        let bytes: Arc<[u8]> = Arc::from(&buf[..]);
        let image = Arc::new(Image { bytes: Arc::clone(&bytes), header: Arc::clone(header) });
        self.memory.offer(&key.0, version, bytes.len() as u64, &image);
        Source::Shared(bytes)
    }

    /// Enters what a probe has found into the index; answers its version.
    fn know(self: &Arc<Store>, key: &Key, header: &Header, chunks: Option<&Chunks>) -> u32 {
        let bytes = match chunks {
            Some(chunks) => header.layout.body + chunks.present_bytes(),
            None => header.layout.file_bytes(header.length),
        };
        let (_, victim) = self.index.insert_found(&key.0, blocks_of(bytes) as u32, now_s());
        self.remove_victims(victim);
        self.index.peek(&key.0).map_or(0, |known| known.version)
    }
}
