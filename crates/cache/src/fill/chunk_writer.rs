//! Writes chunks to a file: [`ChunkWriter`], with a limited number of writes in flight, and [`FillReader`], which reads
//! the file on any thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io::Errno;
use rt::File;
use rt::local::Event;

use crate::disk::staging::{StagingDir, write_failed};
use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::error::{Refused, StoreError};
use crate::fill::gather::Gather;
use crate::format::{CHUNK_BYTES, Layout, RECORD_BYTES, record};
use crate::index::SpaceReservation;
use crate::key::Key;
use crate::lookup::Located;

/// Maximum number of writes in flight per fill. The kernel executes one write to a file at a time, so one waiting write
/// is enough.
pub(crate) const WRITES_MAX: usize = 2;

/// The entry that the chunks belong to.
pub(crate) enum ChunkTarget {
    /// A new entry, possibly in a staging directory outside of the cache; the records are written at the commit.
    New { staging: Option<StagingDir> },
    /// An existing entry: the record of each chunk is written after the chunk. Several fills may add to one entry.
    Parts { key: Key, version: u32, chunks: Arc<Chunks> },
}

/// Writes the chunks of a file. Writes in flight complete even if this is dropped.
pub(crate) struct ChunkWriter {
    shared: Rc<Shared>,
}

struct Shared {
    entries: Arc<Entries>,
    file: File,
    layout: Layout,
    nonce: u64,
    kind: ChunkTarget,
    progress: Arc<Progress>,
    failed: Cell<Option<Refused>>,
    /// Indices of the chunks in flight.
    in_flight: RefCell<BTreeSet<u64>>,
    /// Signalled when a write has completed.
    write_done: Event,
    /// Checksums and lengths of the chunks in the file.
    written: RefCell<BTreeMap<u64, (u32, u64)>>,
    /// Index of the first chunk that is not in the file, and the end of the contiguous bytes before it, which begin
    /// with the first chunk that was passed to the writer. `None` before that chunk.
    prefix: Cell<Option<(u64, u64)>>,
}

/// Progress of a fill.
struct Progress {
    /// The file, for readers; `None` if the descriptor could not be duplicated.
    fd: Option<OwnedFd>,
    /// End of the readable bytes, which begin at the first chunk that was passed to the writer.
    on_disk: AtomicU64,
}

/// Reads a fill in flight, on any thread.
#[derive(Clone)]
pub struct FillReader {
    entries: Arc<Entries>,
    progress: Arc<Progress>,
    offset: u64,
}

impl FillReader {
    /// Returns the end of the readable bytes of the body. They begin with the first chunk that was written completely:
    /// the start of the body, except in a fill of parts.
    pub fn on_disk(&self) -> u64 {
        self.progress.on_disk.load(Ordering::Acquire)
    }

    /// Returns the body written so far, as a file of this thread. In a fill of parts, only the bytes up to
    /// [`FillReader::on_disk`] are content.
    pub fn located(&self) -> Result<Located, StoreError> {
        let doing = "duplicating the descriptor of an incomplete entry";
        let fd = self.progress.fd.as_ref().ok_or(Errno::MFILE);
        // A duplicate of the descriptor, for this thread.
        let fd = fd.and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let fd = fd.map_err(|errno| StoreError::Disk { doing, errno })?;
        let dir = &self.entries.dir;
        Ok(Located {
            file: File::new(fd),
            disk: dir.disk(),
            offset: self.offset,
            length: self.on_disk(),
            key: Key([0; 16]),
            version: 0,
            chunks: None,
            entries: Arc::clone(&self.entries),
        })
    }
}

impl ChunkWriter {
    pub(crate) fn new(
        entries: &Arc<Entries>,
        file: &File,
        layout: Layout,
        nonce: u64,
        kind: ChunkTarget,
    ) -> ChunkWriter {
        let fd = rustix::io::fcntl_dupfd_cloexec(file.as_fd(), 0).ok();
        let shared = Shared {
            entries: Arc::clone(entries),
            file: file.clone(),
            layout,
            nonce,
            kind,
            progress: Arc::new(Progress { fd, on_disk: AtomicU64::new(0) }),
            failed: Cell::new(None),
            in_flight: RefCell::default(),
            write_done: Event::new(),
            written: RefCell::default(),
            prefix: Cell::new(None),
        };
        ChunkWriter { shared: Rc::new(shared) }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.shared.layout
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.shared.nonce
    }

    /// Returns a reader of the bytes that were written so far.
    pub(crate) fn reader(&self) -> FillReader {
        let Shared { entries, progress, layout, .. } = &*self.shared;
        FillReader { entries: Arc::clone(entries), progress: Arc::clone(progress), offset: layout.body }
    }

    /// Starts writing a chunk. Waits while [`WRITES_MAX`] writes are in flight, or while the oldest write is that many
    /// chunks behind, because readers of the file wait for it. `reservation` is the space by which an existing entry
    /// grows.
    pub(crate) async fn write(
        &mut self,
        chunk: Gather,
        reservation: Option<SpaceReservation>,
    ) -> Result<(), Refused> {
        let index = chunk.index;
        while self.shared.is_queue_full(index) {
            self.shared.write_done.wait().await;
        }
        self.check()?;
        let shared = Rc::clone(&self.shared);
        if shared.prefix.get().is_none() {
            shared.prefix.set(Some((index, index * CHUNK_BYTES)));
        }
        let is_alone = shared.in_flight.borrow_mut().insert(index);
        assert!(is_alone, "chunk {index} is written once at a time");
        rt::spawn(async move {
            shared.write(chunk, reservation).await;
            let was_in_flight = shared.in_flight.borrow_mut().remove(&index);
            assert!(was_in_flight, "the write of chunk {index} ends once");
            shared.write_done.pulse();
        });
        Ok(())
    }

    fn check(&self) -> Result<(), Refused> {
        self.shared.failed.get().map_or(Ok(()), Err)
    }

    /// Waits until no write is in flight.
    pub(crate) async fn wait_for_writes(&self) {
        while !self.shared.in_flight.borrow().is_empty() {
            self.shared.write_done.wait().await;
        }
    }

    /// Returns the entry that parts were to be added to, if it has no chunks.
    pub(crate) fn empty_entry(&self) -> Option<(Key, u32)> {
        match &self.shared.kind {
            ChunkTarget::Parts { key, version, chunks, .. } if chunks.present_bytes() == 0 => {
                Some((*key, *version))
            }
            _ => None,
        }
    }

    /// Waits for all writes and returns the checksums in the order of the chunks.
    pub(crate) async fn finish(&self) -> Result<Vec<(u64, u32)>, Refused> {
        self.wait_for_writes().await;
        self.check()?;
        debug_assert!(self.shared.in_flight.borrow().is_empty());
        let written = self.shared.written.borrow();
        Ok(written.iter().map(|(index, (crc, _))| (*index, *crc)).collect())
    }
}

impl Shared {
    fn is_queue_full(&self, index: u64) -> bool {
        let in_flight = self.in_flight.borrow();
        let is_far = |oldest: &u64| *oldest == index || oldest + WRITES_MAX as u64 <= index;
        in_flight.len() >= WRITES_MAX || in_flight.first().is_some_and(is_far)
    }

    async fn write(&self, chunk: Gather, reservation: Option<SpaceReservation>) {
        let Gather { index, data, len, crc } = chunk;
        let dir = &self.entries.dir;
        // Only one fill writes a chunk at a time. A fill that has waited for another one need not write the chunk
        // again.
        let _lock = match &self.kind {
            ChunkTarget::New { .. } => None,
            ChunkTarget::Parts { key, chunks, .. } => {
                let was_there = chunks.checksum(index).is_some();
                // A stop waits for locks of the directory.
                let lock = dir.locks.lock(&key.variant(&index.to_le_bytes())).await;
                if !was_there && chunks.checksum(index) == Some(crc) {
                    return self.record_in_file(index, crc, len);
                }
                // Another process may own the entry by now.
                if let Err(refused) = dir.may_finish() {
                    return self.failed.set(Some(refused));
                }
                Some(lock)
            }
        };
        let at = self.layout.body + index * CHUNK_BYTES;
        if let Err(errno) = dir.write(&self.file, at, data).await {
            return self.fail(errno);
        }
        if let ChunkTarget::Parts { key, version, chunks, .. } = &self.kind {
            let is_new = chunks.checksum(index).is_none();
            let at = self.layout.table + index * RECORD_BYTES;
            let bytes = record(self.nonce, index, crc).to_vec();
            if let Err(errno) = dir.write(&self.file, at, bytes.into()).await {
                return self.fail(errno);
            }
            chunks.add(index, crc);
            // A chunk that replaces an earlier one needs no additional space.
            if is_new
                && let Some(reservation) = reservation
                && !self.entries.index.grow(&key.0, *version, reservation)
            {
                // The entry was removed.
                self.failed.set(Some(Refused::Removed));
            }
        }
        self.record_in_file(index, crc, len);
    }

    fn record_in_file(&self, index: u64, crc: u32, len: u64) {
        assert!(len > 0 && len <= CHUNK_BYTES, "chunk {index} has {len} bytes");
        self.written.borrow_mut().insert(index, (crc, len));
        self.advance();
    }

    /// Advances the end of the readable bytes over all chunks that follow without a gap.
    fn advance(&self) {
        let Some((mut next, mut bytes)) = self.prefix.get() else { return };
        let written = self.written.borrow();
        while let Some((_, len)) = written.get(&next) {
            (next, bytes) = (next + 1, bytes + len);
        }
        self.prefix.set(Some((next, bytes)));
        debug_assert!(bytes <= next * CHUNK_BYTES && bytes >= self.progress.on_disk.load(Ordering::Relaxed));
        self.progress.on_disk.store(bytes, Ordering::Release);
    }

    fn fail(&self, errno: Errno) {
        let staging = match &self.kind {
            ChunkTarget::New { staging } => staging.as_ref(),
            ChunkTarget::Parts { .. } => None,
        };
        let refused = write_failed(&self.entries.dir, staging, errno);
        if self.failed.get().is_none() {
            self.failed.set(Some(refused));
        }
    }
}
