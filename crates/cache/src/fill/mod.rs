//! Fills: a [`Fill`] becomes an entry when it is committed, and leaves no files when it is dropped.
//!
//! ```text
//!   begin: space is reserved                        write: bytes are gathered to chunks
//!     buffered: a few chunks -- nothing on disk until the commit: file, write and rename in one operation
//!     streamed: more chunks -- a temporary file -- chunks, some in flight -- commit: table, header, rename
//!               parts of an entry -- the entry's own file -- each chunk, then its record
//! ```
//! The header is written last, so an incomplete file has no header. For parts of a response, an entry without content
//! is created first, and all fills of its parts add to it. The checksum of a chunk is computed once, from the received
//! bytes.
//!
//! [`gather`] joins pieces to chunks, [`chunk_writer`] writes chunks, and [`publish`] gives a complete file its final
//! name. [`refresh`] changes an existing entry, [`backlog`] limits the number of fills that wait for the disk, and
//! [`order`] tracks the newest response for a key.

pub(crate) mod backlog;
pub(crate) mod chunk_writer;
pub(crate) mod gather;
pub(crate) mod order;
pub(crate) mod publish;
pub(crate) mod refresh;
pub(crate) mod start;

use std::sync::Arc;

use io::segments::Source;
use io::{Segments, SharedBytes};

use crate::disk::key_locks::KeyLocks;
use crate::disk::staging::{StagingDir, TempFile};
use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::error::{FillError, Refused};
use crate::fill::backlog::{Backlog, BacklogGuard};
use crate::fill::chunk_writer::{ChunkTarget, ChunkWriter, FillReader, WRITES_MAX};
use crate::fill::gather::{Gather, is_scarce};
use crate::fill::publish::{Condition, Publication, publish};
use crate::fill::refresh::open_to_change;
use crate::fill::start::{New, file_start, identity, slot, table};
use crate::format::{CHUNK_BYTES, Layout, chunk_len, chunks_of, is_storable, used_bytes};
use crate::index::SpaceReservation;
use crate::index::space::blocks_of;
use crate::key::Key;
use crate::lookup::{Hit, Lookup, Selector};
use crate::purge::retention::PendingRequest;
use crate::purge::{PurgeEffect, Subject};

/// Creates the entries of a cache.
pub(crate) struct Fills {
    entries: Arc<Entries>,
    lookup: Arc<Lookup>,
    /// Locks of keys to which fills add chunks, or whose first part is being stored.
    extending: KeyLocks,
    /// Locks of keys while a variant chooses its file name.
    variants: KeyLocks,
    /// Complete entries that wait for the disk.
    pub(crate) backlog: Backlog,
}

/// An entry that is being written, or parts that are being added to an entry. It belongs to the thread that began it.
/// It may be dropped at any time, even while one of its calls is awaited: a new entry then either exists completely or
/// not at all.
///
/// Bytes are gathered into chunks; a body of a few chunks is written together with its header at the commit. The caller
/// retains the bytes that are not in the file yet ([`FillReader::on_disk`]) as long as readers need them. Their number
/// never exceeds [`Fill::BEHIND_BYTES_MAX`].
pub struct Fill {
    fills: Arc<Fills>,
    new: New,
    /// Offset in the body of the next expected byte.
    next: u64,
    gather: Option<Gather>,
    state: State,
    /// Staging directory of the file, unless it is the one inside of the cache.
    staging: Option<StagingDir>,
    /// Reserved disk space that is not assigned to an entry yet.
    reserved: SpaceReservation,
    progress: FillProgress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FillProgress {
    /// All passed bytes were added.
    Ready,
    /// A call of `write` has begun. If it was dropped or has failed, bytes may be missing, and this state remains.
    Writing,
    /// The entry exists, or a publication that no longer depends on the fill creates it.
    Published,
}

/// Destination of complete chunks.
enum State {
    /// Memory until the commit, or until the body exceeds [`BUFFERED_BYTES_MAX`].
    Buffered(Vec<Gather>),
    /// A temporary file, which the commit publishes.
    Streamed { writer: ChunkWriter, temp: TempFile },
    /// The file of the published entry that the parts belong to.
    Parts(ChunkWriter),
}

impl State {
    /// Returns the writer of chunks; `None` while no file exists.
    fn writer(&self) -> Option<&ChunkWriter> {
        match self {
            State::Buffered(_) => None,
            State::Streamed { writer, .. } | State::Parts(writer) => Some(writer),
        }
    }
}

/// Maximum size in bytes of a body that is written in one operation; while slow clients have not received it, its bytes
/// stay in memory with their requests.
const BUFFERED_BYTES_MAX: u64 = 2 * CHUNK_BYTES;

const _: () = assert!(BUFFERED_BYTES_MAX <= Fill::BEHIND_BYTES_MAX);

impl Fill {
    /// Maximum number of bytes that were passed to [`Fill::write`] and cannot be read from the file yet.
    pub const BEHIND_BYTES_MAX: u64 = (WRITES_MAX as u64 + 2) * CHUNK_BYTES;

    /// Adds bytes of the body at `offset`. The offset must be the end of the last piece. In a partial entry, any offset
    /// is allowed, but incomplete chunks are not stored. Waits only when too many writes are in flight. After an error,
    /// or after a call that was dropped, the fill has failed and can only be dropped.
    pub async fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FillError> {
        self.write_shared(offset, &SharedBytes::copy(bytes)).await
    }

    /// As [`Fill::write`], for shared bytes, which are not copied.
    pub async fn write_shared(&mut self, offset: u64, piece: &SharedBytes) -> Result<(), FillError> {
        let end = offset + piece.len() as u64;
        if self.new.meta.length.is_some_and(|length| end > length) || end > crate::format::LENGTH_MAX {
            return Err(FillError::TooLong);
        }
        if self.progress != FillProgress::Ready || (offset != self.next && !self.new.is_partial) {
            return Err(FillError::Incomplete { got: self.next, expected: offset });
        }
        if offset != self.next {
            self.gather = None;
        }
        self.progress = FillProgress::Writing;
        let mut at = offset;
        while at < end {
            let chunk_end = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let part = (at - offset) as usize..(end.min(chunk_end) - offset) as usize;
            self.gather(at, piece.part(part)).await?;
            at = end.min(chunk_end);
        }
        debug_assert!(at == end.max(offset), "the complete piece was added");
        self.next = end;
        self.progress = FillProgress::Ready;
        Ok(())
    }

    /// Adds bytes to a chunk, and writes the chunk when it is complete.
    async fn gather(&mut self, at: u64, piece: SharedBytes) -> Result<(), FillError> {
        let (index, is_start) = (at / CHUNK_BYTES, at.is_multiple_of(CHUNK_BYTES));
        if self.gather.as_ref().is_none_or(|gather| gather.index != index) {
            // A chunk without its start could not be verified later, so its remaining bytes are not stored.
            if !is_start {
                return Ok(());
            }
            self.begin_chunk(index).await?;
        }
        let gather = self.gather.as_mut().expect("the chunk was begun above or earlier");
        if !gather.push(piece) {
            return Err(self.refuse(Refused::NoMemory));
        }
        let is_complete = match self.new.meta.length {
            Some(length) => gather.len == chunk_len(index, length),
            None => gather.len == CHUNK_BYTES,
        };
        if is_complete
            && self.state.writer().is_some()
            && let Some(gather) = self.gather.take()
        {
            self.flush(gather).await?;
        }
        Ok(())
    }

    async fn begin_chunk(&mut self, index: u64) -> Result<(), FillError> {
        if let State::Buffered(chunks) = &mut self.state
            && let Some(last) = self.gather.take()
        {
            if is_buffered(&self.new) {
                chunks.push(last);
            } else {
                // The body has more than one chunk.
                Box::pin(self.open()).await?;
                self.flush(last).await?;
            }
        }
        if is_scarce()
            && let Some(writer) = self.state.writer()
        {
            // Chunks in flight return their memory when they are written.
            writer.wait_for_writes().await;
        }
        if is_scarce() {
            return Err(self.refuse(Refused::NoMemory));
        }
        self.gather = Some(Gather::new(index));
        Ok(())
    }

    /// Creates the temporary file of a large entry, or the entry that parts are added to.
    async fn open(&mut self) -> Result<(), FillError> {
        let (text, meta) = (&self.new.text, &self.new.meta);
        let used = used_bytes(text, &self.new.head, meta);
        let layout = Layout::large(used, meta.length, self.new.is_partial);
        if meta.length.is_none() || self.new.is_partial {
            self.grow_to(blocks_of(layout.body)).await?;
        }
        let staging = self.staging.as_ref().filter(|_| !self.new.is_partial);
        let dir = &self.entries().dir;
        let temp = TempFile::create_in(dir, staging).await.map_err(|r| self.refuse(r))?;
        if dir.is_uncached {
            // Chunks leave the page cache as soon as they are on the disk.
            temp.file().set_uncached();
        }
        let nonce = dir.nonce();
        if self.new.is_partial {
            return self.open_parts(temp, layout, nonce).await;
        }
        let kind = ChunkTarget::New { staging: temp.staging().cloned() };
        let writer = ChunkWriter::new(self.entries(), temp.file(), layout, nonce, kind);
        self.state = State::Streamed { writer, temp };
        Ok(())
    }

    /// Publishes an entry without content, to which the fill adds its parts.
    async fn open_parts(&mut self, temp: TempFile, layout: Layout, nonce: u64) -> Result<(), FillError> {
        self.check_purged()?;
        let length = self.new.meta.length.ok_or(FillError::Empty)?;
        let (file, entries) = (temp.file().clone(), Arc::clone(self.entries()));
        let start = file_start(&identity(&self.new, layout, nonce, length), &self.new, &[]);
        let chunks = Chunks::new(nonce, length);
        chunks.begin_epoch(entries.epoch());
        let chunks = entries.recent.put(Arc::new(chunks));
        let (key, version) = self.publish(Some(temp), vec![start.into()], None).await?;
        let kind = ChunkTarget::Parts { key, version, chunks };
        self.state = State::Parts(ChunkWriter::new(&entries, &file, layout, nonce, kind));
        Ok(())
    }

    /// Starts writing a chunk.
    async fn flush(&mut self, gather: Gather) -> Result<(), FillError> {
        let is_part = matches!(self.state, State::Parts(_));
        if self.new.meta.length.is_none() || is_part {
            self.grow(blocks_of(gather.len)).await?;
        }
        // The entry of the parts is already published, so its size grows with each chunk.
        let reservation = is_part.then(|| self.reserved.take());
        // Chunks are flushed only after the file was created.
        let (State::Streamed { writer, .. } | State::Parts(writer)) = &mut self.state else { return Ok(()) };
        let started = writer.write(gather, reservation).await;
        started.map_err(|refused| self.refuse(refused))
    }

    /// Reserves `more` additional blocks.
    async fn grow(&mut self, more: u64) -> Result<(), FillError> {
        let entries = &self.fills.entries;
        entries
            .grow(&mut self.reserved, more)
            .await
            .map_err(|refused| entries.counters.refuse(refused).into())
    }

    /// Extends the reservation to `blocks` in total.
    async fn grow_to(&mut self, blocks: u64) -> Result<(), FillError> {
        self.grow(blocks.saturating_sub(self.reserved.count())).await
    }

    fn refuse(&self, refused: Refused) -> FillError {
        FillError::Refused(self.entries().counters.refuse(refused))
    }

    fn entries(&self) -> &Arc<Entries> {
        &self.fills.entries
    }

    /// Returns a reader of the bytes that were written so far, usable on any thread and after the end of the fill.
    /// `None` while no file exists.
    pub fn reader(&self) -> Option<FillReader> {
        self.state.writer().map(ChunkWriter::reader)
    }

    /// Publishes the fill as an entry, replacing an earlier one. The body must be complete. If this call is dropped,
    /// the entry was published, is published by a task of this thread, or leaves no files.
    pub async fn commit(mut self) -> Result<(), FillError> {
        let length = self.new.meta.length.unwrap_or(self.next);
        if self.progress != FillProgress::Ready || (!self.new.is_partial && length != self.next) {
            return Err(FillError::Incomplete { got: self.next, expected: length });
        }
        // From here on, only the disk can delay the commit.
        let backlog = self.fills.backlog.enter();
        // The last chunk of a body of unknown length.
        if self.state.writer().is_some() {
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
        match std::mem::replace(&mut self.state, State::Buffered(Vec::new())) {
            State::Buffered(chunks) => self.commit_buffered(chunks, length, backlog).await,
            State::Streamed { writer, temp } => {
                Box::pin(self.commit_streamed(writer, temp, length, backlog)).await
            }
            State::Parts(writer) => self.commit_parts(writer).await,
        }
    }

    fn check_purged(&self) -> Result<(), FillError> {
        let subject = Subject {
            primary: &self.new.key.0,
            key: &self.new.text,
            tags: &self.new.meta.tags,
            sequence: self.new.request.number(),
        };
        let effect = self.entries().purges.set().purge_effect(&subject);
        if effect == Some(PurgeEffect::Unusable) { Err(FillError::Purged) } else { Ok(()) }
    }

    /// Writes a complete file in one operation.
    async fn commit_buffered(
        &mut self,
        mut chunks: Vec<Gather>,
        length: u64,
        backlog: BacklogGuard,
    ) -> Result<(), FillError> {
        chunks.extend(self.gather.take());
        let got = chunks.iter().map(|chunk| chunk.len).sum::<u64>();
        if self.new.is_partial && got < length {
            return Err(FillError::Empty);
        }
        assert!(got == length, "{got} of {length} bytes of a body that was received in order");
        let used = used_bytes(&self.new.text, &self.new.head, &self.new.meta);
        let layout = match length <= CHUNK_BYTES {
            true => Layout::small(used, length),
            false => Layout::large(used, Some(length), false),
        };
        let nonce = self.entries().dir.nonce();
        let records: Vec<(u64, u32)> = chunks.iter().map(|chunk| (chunk.index, chunk.crc)).collect();
        let mut start = file_start(&identity(&self.new, layout, nonce, length), &self.new, &records);
        start.resize(layout.body as usize, 0);
        let mut first = Segments::new();
        first.push(Source::Vec(start));
        let data = if layout.is_small {
            chunks.into_iter().for_each(|chunk| first.append(chunk.data));
            vec![first]
        } else {
            self.remember(nonce, length, &records);
            [first].into_iter().chain(chunks.into_iter().map(|chunk| chunk.data)).collect()
        };
        self.publish_bytes(data, layout.file_bytes(length), backlog).await
    }

    /// Writes and publishes a file of `total` bytes, none of which are on the disk yet.
    async fn publish_bytes(
        &mut self,
        data: Vec<Segments>,
        total: u64,
        backlog: BacklogGuard,
    ) -> Result<(), FillError> {
        let given = data.iter().map(Segments::len).sum::<usize>() as u64;
        assert!(given == total, "{given} bytes to write to a file of {total} bytes");
        self.grow_to(blocks_of(total)).await?;
        let Some(staging) = &self.staging else {
            return self.publish(None, data, Some(backlog)).await.map(drop);
        };
        let dir = &self.entries().dir;
        let temp = TempFile::create_in(dir, Some(staging)).await.map_err(|r| self.refuse(r))?;
        let mut at = 0;
        for part in data {
            let next = at + part.len() as u64;
            temp.write(at, part).await.map_err(|refused| self.refuse(refused))?;
            at = next;
        }
        self.publish(Some(temp), Vec::new(), Some(backlog)).await.map(drop)
    }

    /// Writes the table of checksums, then the header, and publishes the file.
    async fn commit_streamed(
        &mut self,
        writer: ChunkWriter,
        temp: TempFile,
        length: u64,
        backlog: BacklogGuard,
    ) -> Result<(), FillError> {
        let (layout, nonce) = (writer.layout().with_length(length), writer.nonce());
        let records = writer.finish().await.map_err(|refused| self.refuse(refused))?;
        assert!(records.len() as u64 == chunks_of(length), "all chunks of {length} bytes are in the file");
        let identity = identity(&self.new, layout, nonce, length);
        self.remember(nonce, length, &records);
        let mut data = Vec::new();
        if layout.table < layout.body && !temp.is_outside() {
            data.push(Segments::from(file_start(&identity, &self.new, &records)));
        } else {
            let refuse = |refused| self.refuse(refused);
            temp.write(layout.table, table(nonce, &records).into()).await.map_err(refuse)?;
            temp.write(0, slot(&identity, &self.new).into()).await.map_err(refuse)?;
        }
        self.publish(Some(temp), data, Some(backlog)).await.map(drop)
    }

    /// Waits until the chunks of an already published entry are written.
    async fn commit_parts(&mut self, writer: ChunkWriter) -> Result<(), FillError> {
        let finished = writer.finish().await;
        self.state = State::Parts(writer);
        if finished.map_err(|refused| self.refuse(refused))?.is_empty() {
            return Err(FillError::Empty);
        }
        self.progress = FillProgress::Published;
        self.entries().counters.commits.count();
        Ok(())
    }

    /// Records the checksums of the new chunks, so that the first reader of the entry need not verify them.
    fn remember(&self, nonce: u64, length: u64, records: &[(u64, u32)]) {
        let chunks = Chunks::new(nonce, length);
        chunks.begin_epoch(self.entries().epoch());
        records.iter().for_each(|(index, crc)| chunks.add(*index, *crc));
        self.entries().recent.put(Arc::new(chunks));
    }

    /// Publishes the file; returns its key and its version.
    async fn publish(
        &mut self,
        temp: Option<TempFile>,
        data: Vec<Segments>,
        backlog: Option<BacklogGuard>,
    ) -> Result<(Key, u32), FillError> {
        let (fills, new) = (Arc::clone(&self.fills), &self.new);
        // Of several concurrent variants, one is stored at the primary key, and the others find it there.
        let variants = match new.meta.vary.is_empty() {
            true => None,
            false => Some(fills.variants.lock(&new.key).await),
        };
        let key = self.file_key().await;
        let publication = Publication {
            temp,
            data,
            key,
            reserved: self.reserved.take(),
            condition: Condition::Newest(new.ticket.clone(), Arc::clone(&new.meta)),
            request: Arc::clone(&new.request),
            variants,
            backlog,
        };
        let before = self.progress;
        if publication.backlog.is_some() {
            // From here on, the publication continues even if this fill is dropped.
            self.progress = FillProgress::Published;
        }
        let published = publish(&fills.entries, publication).await;
        if published.is_err() {
            self.progress = before;
        }
        published.map(|version| (key, version)).map_err(|refused| self.refuse(refused))
    }

    /// Returns the key of the file: the primary key, unless another variant is stored there.
    async fn file_key(&self) -> Key {
        let (key, meta) = (self.new.key, &self.new.meta);
        if meta.vary.is_empty() {
            return key;
        }
        match Box::pin(self.fills.lookup.variant_at(&key, &self.new.text)).await {
            Some(first) if first.vary == meta.vary && first.variant != meta.variant => {
                // Recorded before its file exists.
                self.entries().retention.add_variant(&key);
                key.variant(&meta.variant)
            }
            _ => key,
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.progress == FillProgress::Published {
            return;
        }
        self.entries().counters.aborts.count();
        if let State::Parts(writer) = &self.state
            && let Some((key, version)) = writer.empty_entry()
        {
            self.entries().remove_entry(&key, version);
        }
    }
}

/// Whether the complete entry is written at the commit.
fn is_buffered(new: &New) -> bool {
    !new.is_partial && new.meta.length.is_some_and(|length| length <= BUFFERED_BYTES_MAX)
}

impl Fills {
    pub(crate) fn new(lookup: &Arc<Lookup>) -> Fills {
        Fills {
            entries: Arc::clone(&lookup.entries),
            lookup: Arc::clone(lookup),
            extending: KeyLocks::default(),
            variants: KeyLocks::default(),
            backlog: Backlog::default(),
        }
    }

    /// Begins to store parts of a response. If another fill has begun or stored an entry for the key, and `joins`
    /// returns `true` for it (both have the same bytes), the parts are added to that entry. `selector` selects the
    /// variant for the request.
    pub(crate) async fn begin_parts(
        self: &Arc<Fills>,
        new: New,
        staging: Option<StagingDir>,
        selector: Selector<'_>,
        joins: impl Fn(&Hit) -> bool,
    ) -> Result<Fill, Refused> {
        // Serialised, so that the second call finds the entry that the first has begun.
        let _lock = self.extending.lock(&new.key).await;
        let found = self.lookup.find_uncounted(&new.key, &new.text, selector).await;
        if let Some(hit) = found.filter(joins) {
            match self.extend(&hit).await {
                // The entry was just removed.
                Err(Refused::Removed) => self.entries.counters.refuse(Refused::Removed),
                extended => return extended,
            };
        }
        self.begin(new, staging).await
    }

    /// Begins an entry: reserves its disk space and its slot in the index.
    pub(crate) async fn begin(
        self: &Arc<Fills>,
        new: New,
        staging: Option<StagingDir>,
    ) -> Result<Fill, Refused> {
        self.entries.dir.may_write()?;
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
        self.backlog.wait_for_turn().await?;
        let reserved = self.entries.reserve(&new.key, blocks_of(bytes)).await?;
        let is_streamed = length.is_some_and(|length| length > CHUNK_BYTES) && !is_buffered(&new);
        let mut fill = self.fill(new, State::Buffered(Vec::new()), reserved);
        fill.staging = staging;
        if is_streamed {
            Box::pin(fill.open()).await.map_err(|error| match error {
                FillError::Refused(refused) => refused,
                _ => Refused::Removed,
            })?;
        }
        Ok(fill)
    }

    /// Begins to add parts to a partial entry; several fills may do so concurrently.
    pub(crate) async fn extend(self: &Arc<Fills>, hit: &Hit) -> Result<Fill, Refused> {
        let entries = &self.entries;
        entries.dir.may_write()?;
        let located = hit.located().ok_or(Refused::Unstorable)?;
        let chunks = located.chunks.clone().ok_or(Refused::Unstorable)?;
        self.backlog.wait_for_turn().await?;
        let file = open_to_change(&entries.dir, &hit.key, &hit.header).await?.0;
        let header = &hit.header;
        let kind = ChunkTarget::Parts { key: hit.key, version: hit.version, chunks };
        let writer = ChunkWriter::new(entries, &file, header.layout, header.nonce, kind);
        let new = New {
            key: header.primary,
            text: hit.image.bytes()[header.text.clone()].to_vec(),
            meta: Arc::clone(&hit.meta),
            head: Arc::default(),
            is_partial: true,
            // A later purge has removed the entry from the index, which its chunks detect.
            request: PendingRequest::before(header.sequence),
            ticket: None,
        };
        let reserved = entries.reserve(&hit.key, 0).await?;
        Ok(self.fill(new, State::Parts(writer), reserved))
    }

    fn fill(self: &Arc<Fills>, new: New, state: State, reserved: SpaceReservation) -> Fill {
        self.entries.counters.fills.count();
        let (fills, gather, staging) = (Arc::clone(self), None, None);
        Fill { fills, new, next: 0, gather, state, staging, reserved, progress: FillProgress::Ready }
    }
}
