//! Writing: [`Fill`] becomes an entry when it is committed, and leaves nothing behind when it is dropped.
//!
//! ```text
//!   begin: room is reserved                      write: bytes gather to chunks
//!     small, or of a few chunks -- nothing on disk until the commit: file, write and rename in one operation
//!     large -- temporary file (`elsewhere`: in another folder) -- chunks, so many in flight -- commit: table, header, rename
//!     parts of an entry -- the entry's own file -- each chunk, then its record
//! ```
//! The header is written last, so a file that is not whole has none; of what comes in parts an entry without content is made
//! first, to which all who have a part of it add theirs. The checksum of a chunk is made once, from the
//! bytes that came.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use io::op::Source;
use io::{Frozen, Segments};

use crate::chunks::Chunks;
use crate::crc32c;
use crate::elsewhere::TempFolder;
use crate::error::{FillError, Refused, StoreError};
use crate::format::header::{Identity, Layout, encode, is_storable, used_bytes};
use crate::format::table::record;
use crate::format::{CHUNK_BYTES, chunk_len, chunks_of};
use crate::hit::{Hit, Located};
use crate::key::Key;
use crate::meta::New;
use crate::place::{Provided, Temp, Whole, place};
use crate::purge::{Fate, Subject};
use crate::settling::Asked;
use crate::space::{Blocks, blocks_of};
use crate::store::{Selector, Store};
use crate::writing::{Chunk, Kind, Progress, WRITES_MAX, Writing};

/// An entry that is being written, or parts that are added to one. Belongs to the thread that began it.
///
/// Bytes are gathered into chunks, and a body of a few chunks is written with its head at the commit: what has not got to
/// the file ([`FillReader::on_disk`]) has to be kept by the caller for as long as others want it from here. That
/// is never more than [`Fill::BEHIND_BYTES_MAX`].
pub struct Fill {
    store: Arc<Store>,
    new: New,
    /// Where the bytes came to, or will go on.
    next: u64,
    gather: Option<Gather>,
    /// Whole chunks before that one, of a body that is written when all of it is there.
    held: Vec<Gather>,
    to: To,
    /// Where its file is made, when that is not inside of the cache.
    folder: Option<TempFolder>,
    /// What it has of the disk and no entry has yet.
    reserved: Blocks,
    is_done: bool,
}

/// Bytes of one chunk from its start, as the pieces that they came in.
struct Gather {
    index: u64,
    data: Segments,
    len: u64,
    crc: u32,
}

impl Gather {
    fn new(index: u64) -> Gather {
        Gather { index, data: Segments::new(), len: 0, crc: 0 }
    }

    /// Adds a piece; `false` where there is no memory to join the many pieces before it.
    fn push(&mut self, piece: Frozen) -> bool {
        if self.data.parts().count() == PIECES_MAX && !self.join() {
            return false;
        }
        self.len += piece.len() as u64;
        self.crc = crc32c::append(self.crc, &piece);
        self.data.push(Source::Frozen(piece));
        true
    }

    /// Copies what there is into one buffer: an upstream sends as little at once as it likes.
    fn join(&mut self) -> bool {
        let Some(mut buf) = rt::pool().get(CHUNK_BYTES as usize) else { return false };
        self.data.parts().for_each(|part| _ = buf.append(part.bytes()));
        self.data = Segments::new();
        self.data.push(Source::Buf(buf));
        true
    }
}

/// Pieces of a chunk that are written as they came.
const PIECES_MAX: usize = io::op::SEGMENTS_MAX - 1;

/// Where the bytes go.
enum To {
    /// Nowhere until the commit, or until there are too many.
    Memory,
    /// A temporary file.
    Temp { temp: Temp, writing: Writing },
    /// The file of the entry that they are a part of.
    Entry { writing: Writing },
}

/// Bytes of a body that is written as a whole: what slow clients have not taken of it is in memory for as long as they are
/// there.
const HELD_BYTES_MAX: u64 = 2 * CHUNK_BYTES;

const _: () = assert!(HELD_BYTES_MAX <= Fill::BEHIND_BYTES_MAX);

/// One part in so many of a thread's buffers is not for what waits to be written: where the disk is slower than the
/// upstreams, what comes is passed on unstored, and those who read need buffers then too.
const SPARED_PART: u64 = 16;

impl Fill {
    /// Most bytes that were given to [`Fill::write`] and cannot be read from the file yet.
    pub const BEHIND_BYTES_MAX: u64 = (WRITES_MAX as u64 + 2) * CHUNK_BYTES;

    /// Adds bytes of the body at `offset`, which is where the last piece ended or, in a partial entry, anywhere; bytes of
    /// a chunk that does not come whole are not stored then. Waits only when writes are behind. After an error the
    /// fill is over and can only be dropped.
    pub async fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FillError> {
        self.put(offset, &Frozen::copy(bytes)).await
    }

    /// The same for bytes that others share, which are not copied.
    pub async fn put(&mut self, offset: u64, piece: &Frozen) -> Result<(), FillError> {
        let end = offset + piece.len() as u64;
        if self.new.meta.length.is_some_and(|length| end > length) || end > crate::format::LENGTH_MAX {
            return Err(FillError::TooLong);
        }
        if offset != self.next {
            if !self.new.is_partial {
                return Err(FillError::Incomplete { got: self.next, wanted: offset });
            }
            self.gather = None;
        }
        let mut at = offset;
        while at < end {
            let chunk_end = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let part = (at - offset) as usize..(end.min(chunk_end) - offset) as usize;
            self.gather(at, piece.part(part)).await?;
            at = end.min(chunk_end);
        }
        self.next = end;
        Ok(())
    }

    /// Adds bytes to a chunk and writes it when it is whole.
    async fn gather(&mut self, at: u64, piece: Frozen) -> Result<(), FillError> {
        let (index, is_start) = (at / CHUNK_BYTES, at.is_multiple_of(CHUNK_BYTES));
        if self.gather.as_ref().is_none_or(|gather| gather.index != index) {
            // The rest of a chunk whose start did not come cannot be checked later, so it is not stored.
            if !is_start {
                return Ok(());
            }
            if let (To::Memory, Some(last)) = (&self.to, self.gather.take()) {
                if is_held(&self.new) {
                    self.held.push(last);
                } else {
                    // There is more than one chunk after all.
                    Box::pin(self.open()).await?;
                    self.flush(last).await?;
                }
            }
            if is_scarce()
                && let To::Temp { writing, .. } | To::Entry { writing } = &self.to
            {
                // What it has in flight is memory that comes back.
                writing.settle().await;
            }
            if is_scarce() {
                return Err(self.refuse(Refused::NoMemory));
            }
            self.gather = Some(Gather::new(index));
        }
        let gather = self.gather.as_mut().expect("it was made above or matched");
        if !gather.push(piece) {
            return Err(self.refuse(Refused::NoMemory));
        }
        let is_whole = match self.new.meta.length {
            Some(length) => gather.len == chunk_len(index, length),
            None => gather.len == CHUNK_BYTES,
        };
        if is_whole
            && !matches!(self.to, To::Memory)
            && let Some(gather) = self.gather.take()
        {
            self.flush(gather).await?;
        }
        Ok(())
    }

    /// Makes the temporary file of a large entry, or the entry that parts are added to.
    async fn open(&mut self) -> Result<(), FillError> {
        let (text, meta) = (&self.new.text, &self.new.meta);
        let used = used_bytes(text, &self.new.head, meta);
        let layout = Layout::large(used, meta.length, self.new.is_partial);
        if meta.length.is_none() || self.new.is_partial {
            self.grow_to(blocks_of(layout.body)).await?;
        }
        let folder = self.folder.as_ref().filter(|_| !self.new.is_partial);
        let temp = self.store.temp_in(folder).await.map_err(|r| self.refuse(r))?;
        if self.store.config.direct {
            // Chunks leave the page cache as they get to the disk.
            temp.file().set_uncached();
        }
        let nonce = self.store.nonce();
        if self.new.is_partial {
            return self.open_parts(temp, layout, nonce).await;
        }
        let kind = Kind::New { elsewhere: temp.elsewhere().cloned() };
        let writing = Writing::new(&self.store, temp.file(), layout, nonce, kind);
        self.to = To::Temp { temp, writing };
        Ok(())
    }

    /// Puts an entry without content in its place.
    async fn open_parts(&mut self, temp: Temp, layout: Layout, nonce: u64) -> Result<(), FillError> {
        self.check_purged()?;
        let length = self.new.meta.length.ok_or(FillError::Empty)?;
        let (file, mut slots) = (temp.file().clone(), Vec::new());
        let identity = self.identity(layout, nonce, length);
        encode(&identity, &self.new.text, &self.new.head, &self.new.meta, &mut slots);
        slots.resize(layout.table as usize, 0);
        let chunks = Chunks::new(nonce, length);
        chunks.begin_epoch(self.store.epoch());
        let chunks = self.store.recent.put(Arc::new(chunks));
        let (key, version) = self.put_in_place(Whole::Begun(temp, slots.into())).await?;
        let kind = Kind::Parts { key, version, chunks };
        self.to = To::Entry { writing: Writing::new(&self.store, &file, layout, nonce, kind) };
        Ok(())
    }

    /// Starts the write of a chunk.
    async fn flush(&mut self, gather: Gather) -> Result<(), FillError> {
        if self.new.meta.length.is_none() || matches!(self.to, To::Entry { .. }) {
            self.grow(blocks_of(gather.len)).await?;
        }
        let (writing, room) = match &mut self.to {
            To::Temp { writing, .. } => (writing, None),
            // The entry is there, and grows by each chunk.
            To::Entry { writing } => (writing, Some(self.reserved.take())),
            // Chunks are flushed when there is a file.
            To::Memory => return Ok(()),
        };
        let Gather { index, data, len, crc } = gather;
        let started = writing.put(index, Chunk { data, len, crc, room }).await;
        started.map_err(|refused| self.refuse(refused))
    }

    /// Reserves so many blocks more.
    async fn grow(&mut self, more: u64) -> Result<(), FillError> {
        self.store.grow(&mut self.reserved, more).await.map_err(|refused| self.refuse(refused))
    }

    /// Reserves so many blocks in all.
    async fn grow_to(&mut self, blocks: u64) -> Result<(), FillError> {
        self.grow(blocks.saturating_sub(self.reserved.count())).await
    }

    fn refuse(&self, refused: Refused) -> FillError {
        FillError::Refused(self.store.counters.refuse(refused))
    }

    /// For who wants to read what has been written so far, on any thread; it outlives the fill. `None` while there is no
    /// file.
    pub fn reader(&self) -> Option<FillReader> {
        let (To::Temp { writing, .. } | To::Entry { writing }) = &self.to else { return None };
        Some(FillReader {
            store: Arc::clone(&self.store),
            progress: Arc::clone(writing.progress()),
            offset: writing.layout().body,
        })
    }

    /// Makes it an entry, in place of an earlier one. The body is at its end now. To be polled to its end: dropped on the
    /// way it may leave a file that the index does not know.
    pub async fn commit(mut self) -> Result<(), FillError> {
        let length = match self.new.meta.length {
            Some(length) if !self.new.is_partial && length != self.next => {
                return Err(FillError::Incomplete { got: self.next, wanted: length });
            }
            Some(length) => length,
            None => self.next,
        };
        // From here on nobody waits for it but the disk.
        let store = Arc::clone(&self.store);
        let _behind = store.backlog.enter();
        // The last chunk of a body whose length was not known, or the only one.
        if !matches!(self.to, To::Memory) {
            let last = self.gather.take().filter(|last| {
                last.len == chunk_len(last.index, length) && last.index + 1 == chunks_of(length)
            });
            if let Some(gather) = last {
                self.flush(gather).await?;
            }
        }
        if self.new.meta.length.is_none() {
            Arc::make_mut(&mut self.new.meta).length = Some(length);
        }
        self.check_purged()?;
        match std::mem::replace(&mut self.to, To::Memory) {
            To::Memory if self.held.is_empty() => self.commit_small(length).await?,
            To::Memory => self.commit_held(length).await?,
            To::Temp { temp, writing } => Box::pin(self.commit_large(length, temp, writing)).await?,
            To::Entry { writing } => {
                let finished = writing.finish().await;
                self.to = To::Entry { writing };
                if finished.map_err(|refused| self.refuse(refused))?.is_empty() {
                    return Err(FillError::Empty);
                }
            }
        }
        self.is_done = true;
        self.store.counters.commits.count();
        Ok(())
    }

    fn check_purged(&self) -> Result<(), FillError> {
        let subject = Subject {
            primary: &self.new.key.0,
            key: &self.new.text,
            tags: &self.new.meta.tags,
            sequence: self.new.asked.number(),
        };
        let fate = self.store.purges().fate(&subject);
        if fate == Some(Fate::Gone) { Err(FillError::Purged) } else { Ok(()) }
    }

    /// Header, record and body in one write.
    async fn commit_small(&mut self, length: u64) -> Result<(), FillError> {
        let body = self.gather.take().unwrap_or_else(|| Gather::new(0));
        if self.new.is_partial && body.len < length {
            return Err(FillError::Empty);
        }
        let used = used_bytes(&self.new.text, &self.new.head, &self.new.meta);
        let layout = Layout::small(used, length);
        let nonce = self.store.nonce();
        let mut data = Segments::new();
        let crc = (body.len > 0).then_some(body.crc);
        data.push(Source::Vec(small_start(&self.identity(layout, nonce, length), &self.new, crc)));
        data.append(body.data);
        self.commit_bytes(vec![data]).await
    }

    /// The same for a body of a few chunks, in the layout of large ones.
    async fn commit_held(&mut self, length: u64) -> Result<(), FillError> {
        let mut chunks = std::mem::take(&mut self.held);
        chunks.extend(self.gather.take());
        let used = used_bytes(&self.new.text, &self.new.head, &self.new.meta);
        let (layout, nonce) = (Layout::large(used, Some(length), false), self.store.nonce());
        let records: Vec<(u64, u32)> = chunks.iter().map(|chunk| (chunk.index, chunk.crc)).collect();
        let mut start = self.large_start(&self.identity(layout, nonce, length), &records);
        start.resize(layout.body as usize, 0);
        let mut data = vec![Segments::from(start)];
        data.extend(chunks.into_iter().map(|chunk| chunk.data));
        self.remember(nonce, length, &records);
        self.commit_bytes(data).await
    }

    /// All of a file, which nothing has been written of.
    async fn commit_bytes(&mut self, data: Vec<Segments>) -> Result<(), FillError> {
        let total = data.iter().map(Segments::len).sum::<usize>() as u64;
        self.grow_to(blocks_of(total)).await?;
        let Some(folder) = &self.folder else {
            return self.put_in_place(Whole::Bytes(data)).await.map(drop);
        };
        let temp = self.store.temp_in(Some(folder)).await.map_err(|r| self.refuse(r))?;
        let mut at = 0;
        for part in data {
            let next = at + part.len() as u64;
            temp.write(at, part).await.map_err(|refused| self.refuse(refused))?;
            at = next;
        }
        self.put_in_place(Whole::Written(temp)).await.map(drop)
    }

    /// Slots and table of a large entry whose table lies behind them.
    fn large_start(&self, identity: &Identity, records: &[(u64, u32)]) -> Vec<u8> {
        let mut start = Vec::with_capacity(identity.layout.body as usize);
        encode(identity, &self.new.text, &self.new.head, &self.new.meta, &mut start);
        start.resize(identity.layout.table as usize, 0);
        start.extend(records.iter().flat_map(|(index, crc)| record(identity.nonce, *index, *crc)));
        start
    }

    /// Spares the first reader of an entry to look at what was just written.
    fn remember(&self, nonce: u64, length: u64, records: &[(u64, u32)]) {
        let chunks = Chunks::new(nonce, length);
        chunks.begin_epoch(self.store.epoch());
        records.iter().for_each(|(index, crc)| chunks.add(*index, *crc));
        self.store.recent.put(Arc::new(chunks));
    }

    /// The table, then the header.
    async fn commit_large(&mut self, length: u64, temp: Temp, writing: Writing) -> Result<(), FillError> {
        let (layout, nonce) = (writing.layout().settle(length), writing.nonce());
        let records = writing.finish().await.map_err(|refused| self.refuse(refused))?;
        let identity = self.identity(layout, nonce, length);
        self.remember(nonce, length, &records);
        debug_assert_eq!(records.len() as u64, chunks_of(length), "parts are written to an entry of theirs");
        if layout.table < layout.body && temp.elsewhere().is_none() {
            let start = Segments::from(self.large_start(&identity, &records));
            return self.put_in_place(Whole::Begun(temp, start)).await.map(drop);
        }
        let table: Vec<u8> = records.iter().flat_map(|(index, crc)| record(nonce, *index, *crc)).collect();
        temp.write(layout.table, table.into()).await.map_err(|refused| self.refuse(refused))?;
        let mut slot = Vec::new();
        encode(&identity, &self.new.text, &self.new.head, &self.new.meta, &mut slot);
        temp.write(0, slot.into()).await.map_err(|refused| self.refuse(refused))?;
        self.put_in_place(Whole::Written(temp)).await.map(drop)
    }

    fn identity(&self, layout: Layout, nonce: u64, length: u64) -> Identity {
        let (sequence, primary) = (self.new.asked.number(), self.new.key);
        Identity { layout, generation: 1, nonce, sequence, length, primary }
    }

    /// Answers the key of its file and its version.
    async fn put_in_place(&mut self, whole: Whole) -> Result<(Key, u32), FillError> {
        // Of several variants that come at once one lies at the primary key, and the others know of it.
        let _placing = match self.new.meta.vary.is_empty() {
            true => None,
            false => Some(self.store.placing.take(&self.new.key).await),
        };
        let key = self.place().await;
        let blocks = self.reserved.take();
        // Not by a task of its own: who fills sees it through.
        let version = place(&self.store, whole, key, blocks, Provided::Newest(&self.new)).await;
        version.map(|version| (key, version)).map_err(|refused| self.refuse(refused))
    }

    /// The key of the file: the primary key, unless another variant lies there.
    async fn place(&self) -> Key {
        let (key, meta) = (self.new.key, &self.new.meta);
        if meta.vary.is_empty() {
            return key;
        }
        match Box::pin(self.store.variant_at(&key, &self.new.text)).await {
            Some(first) if first.vary == meta.vary && first.variant != meta.variant => {
                // Before its file is there.
                self.store.settling.add_variant(&key);
                key.variant(&meta.variant)
            }
            _ => key,
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.store.counters.aborts.count();
        if let To::Entry { writing } = &self.to
            && let Some((key, version)) = writing.empty_entry()
        {
            self.store.remove_entry(&key, version);
        }
    }
}

/// Whether the buffers that are left are not for what waits to be written.
fn is_scarce() -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < pool.bytes_max() / SPARED_PART
}

/// Whether all of it is written at the commit.
fn is_held(new: &New) -> bool {
    !new.is_partial && new.meta.length.is_some_and(|length| length <= HELD_BYTES_MAX)
}

/// The file of a small entry, up to its body, whose checksum this is.
pub(crate) fn small_start(identity: &Identity, new: &New, crc: Option<u32>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(identity.layout.body as usize);
    encode(identity, &new.text, &new.head, &new.meta, &mut bytes);
    bytes.resize(identity.layout.table as usize, 0);
    if let Some(crc) = crc {
        bytes.extend_from_slice(&record(identity.nonce, 0, crc));
    }
    debug_assert_eq!(bytes.len() as u64, identity.layout.body);
    bytes
}

impl Store {
    /// Begins an entry: reserves its bytes and its place.
    pub async fn begin(self: &Arc<Store>, new: New) -> Result<Fill, Refused> {
        self.begin_new(new, None).await.map_err(|refused| self.counters.refuse(refused))
    }

    /// The same, with a folder that it is written in before it is whole where the cache has [`crate::Config::use_temp_path`].
    pub async fn begin_in(self: &Arc<Store>, new: New, folder: &Path) -> Result<Fill, Refused> {
        let name = |folder: &Path| CString::new(folder.as_os_str().as_bytes()).ok().map(Arc::from);
        let folder = Some(folder).filter(|_| self.config.use_temp_path).and_then(name);
        self.begin_new(new, folder).await.map_err(|refused| self.counters.refuse(refused))
    }

    /// Begins to store parts of something, or adds to the entry that somebody else has begun or stored meanwhile, where
    /// `joins` says that both are of the same bytes. `selector` finds the one for the request that the parts are for.
    pub async fn begin_parts(
        self: &Arc<Store>,
        new: New,
        folder: &Path,
        selector: Selector<'_>,
        joins: impl Fn(&Hit) -> bool,
    ) -> Result<Fill, Refused> {
        // One after the other, so that the second finds what the first has begun.
        let _lease = self.extending.take(&new.key).await;
        if let Some(hit) = self.find_unseen(&new.key, &new.text, selector).await.filter(joins) {
            match self.extend(&hit).await {
                // Removed a moment ago.
                Err(Refused::Gone) => {}
                extended => return extended,
            }
        }
        self.begin_in(new, folder).await
    }

    async fn begin_new(self: &Arc<Store>, new: New, folder: Option<TempFolder>) -> Result<Fill, Refused> {
        self.may_write()?;
        let length = new.meta.length;
        if !is_storable(&new.text, &new.head, &new.meta) || (new.is_partial && length.is_none()) {
            return Err(Refused::Unstorable);
        }
        let used = used_bytes(&new.text, &new.head, &new.meta);
        let bytes = match length {
            Some(length) if length <= CHUNK_BYTES => Layout::small(used, length).file_bytes(length),
            Some(_) if new.is_partial => used as u64,
            Some(length) => Layout::large(used, Some(length), false).file_bytes(length),
            None => used as u64,
        };
        self.backlog.room().await?;
        let reserved = self.reserve(&new.key, blocks_of(bytes)).await?;
        let is_large = length.is_some_and(|length| length > CHUNK_BYTES) && !is_held(&new);
        let mut fill = Fill {
            store: Arc::clone(self),
            new,
            next: 0,
            gather: None,
            held: Vec::new(),
            to: To::Memory,
            folder,
            reserved,
            is_done: false,
        };
        self.counters.fills.count();
        if is_large {
            Box::pin(fill.open()).await.map_err(|error| match error {
                FillError::Refused(refused) => refused,
                _ => Refused::Gone,
            })?;
        }
        Ok(fill)
    }

    /// Whether this process may write now.
    pub(crate) fn may_write(&self) -> Result<(), Refused> {
        if self.is_stopping() {
            return Err(Refused::Stopping);
        }
        if !self.is_owner() {
            return Err(Refused::NotOwner);
        }
        if !self.health.can_write() {
            return Err(Refused::PassThrough);
        }
        Ok(())
    }

    /// Begins to add parts to a partial entry; others may do so at the same time.
    pub async fn extend(self: &Arc<Store>, hit: &Hit) -> Result<Fill, Refused> {
        self.extend_entry(hit).await.map_err(|refused| self.counters.refuse(refused))
    }

    async fn extend_entry(self: &Arc<Store>, hit: &Hit) -> Result<Fill, Refused> {
        self.may_write()?;
        let located = hit.located().ok_or(Refused::Unstorable)?;
        let chunks = located.chunks.clone().ok_or(Refused::Unstorable)?;
        self.backlog.room().await?;
        let file = self.open_to_change(&hit.key, &hit.header).await?.0;
        let header = &hit.header;
        let kind = Kind::Parts { key: hit.key, version: hit.version, chunks };
        let writing = Writing::new(self, &file, header.layout, header.nonce, kind);
        let new = New {
            key: header.primary,
            text: hit.image.bytes()[header.text.clone()].to_vec(),
            meta: Arc::clone(&hit.meta),
            head: Arc::default(),
            is_partial: true,
            // Purges that came since have taken the entry out of the index, which its chunks notice.
            asked: Asked::before(header.sequence),
            ticket: None,
        };
        self.counters.fills.count();
        Ok(Fill {
            store: Arc::clone(self),
            new,
            next: 0,
            gather: None,
            held: Vec::new(),
            to: To::Entry { writing },
            folder: None,
            reserved: self.reserve(&hit.key, 0).await?,
            is_done: false,
        })
    }
}

/// Reads a fill under way, on any thread.
#[derive(Clone)]
pub struct FillReader {
    store: Arc<Store>,
    progress: Arc<Progress>,
    offset: u64,
}

impl FillReader {
    /// Where what can be read of the body ends. It begins with the first chunk that was written whole, which is the start of
    /// the body unless a part of it is written.
    pub fn on_disk(&self) -> u64 {
        self.progress.on_disk()
    }

    /// The body so far as this thread's file. Of a part nothing is content but what [`FillReader::on_disk`] says.
    pub fn located(&self) -> Result<Located, StoreError> {
        let doing = "sharing a file under way";
        let fd = self.progress.share().map_err(|errno| StoreError::Disk { doing, errno })?;
        Ok(Located {
            file: rt::File::new(fd),
            device: self.store.device,
            via: self.store.via(),
            offset: self.offset,
            length: self.on_disk(),
            key: Key([0; 16]),
            version: 0,
            chunks: None,
            store: Arc::clone(&self.store),
        })
    }
}
