//! Writes chunks to a file: [`ChunkWriter`], with a limited number in flight, and [`Progress`], which other threads
//! see.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io::Errno;
use rt::File;
use rt::local::Event;

use crate::disk::key_locks::KeyLocks;
use crate::disk::staging::{StagingDir, write_failed};
use crate::entries::Entries;
use crate::entries::chunks::Chunks;
use crate::error::Refused;
use crate::fill::gather::Gather;
use crate::format::CHUNK_BYTES;
use crate::format::crc32c::{RECORD_BYTES, record};
use crate::format::header::Layout;
use crate::index::SpaceReservation;
use crate::key::Key;

/// Chunks of one fill in flight: the kernel writes one at a time to a file, so that another one waits for it is enough.
pub(crate) const WRITES_MAX: usize = 2;

/// The entry of the chunks.
pub(crate) enum Kind {
    /// Those of a new entry, perhaps in another directory than the cache's: their records come at the commit.
    New { staging: Option<StagingDir> },
    /// Those of an entry that is there: each has its record written behind it. Several may add to one entry.
    Parts { key: Key, version: u32, chunks: Arc<Chunks>, locks: KeyLocks },
}

/// Chunks on their way to a file. Dropped, those in flight still get there.
pub(crate) struct ChunkWriter {
    shared: Rc<Shared>,
}

struct Shared {
    entries: Arc<Entries>,
    file: File,
    layout: Layout,
    nonce: u64,
    kind: Kind,
    progress: Arc<Progress>,
    failed: Cell<Option<Refused>>,
    /// Chunks in flight.
    flying: RefCell<BTreeSet<u64>>,
    /// One of them has landed.
    landed: Event,
    /// Checksums and lengths of the chunks that are in the file.
    written: RefCell<BTreeMap<u64, (u32, u64)>>,
    /// The first chunk that is not, and bytes up to there: counted from the first one that was put, before which a part has
    /// nothing.
    prefix: Cell<Option<(u64, u64)>>,
}

/// How far a fill has come; any thread may look.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The file, while it has readers; `None` where it could not be opened twice.
    fd: Option<OwnedFd>,
    on_disk: AtomicU64,
}

impl Progress {
    /// The end of the readable bytes. It begins with the first chunk that was put.
    pub(crate) fn on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Acquire)
    }

    /// The file for another thread.
    pub(crate) fn share(&self) -> Result<OwnedFd, Errno> {
        let fd = self.fd.as_ref().ok_or(Errno::MFILE)?;
        rustix::io::fcntl_dupfd_cloexec(fd, 0)
    }
}

impl ChunkWriter {
    pub(crate) fn new(
        entries: &Arc<Entries>,
        file: &File,
        layout: Layout,
        nonce: u64,
        kind: Kind,
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
            flying: RefCell::default(),
            landed: Event::new(),
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

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.shared.progress
    }

    /// Starts the write of a chunk. Waits while [`WRITES_MAX`] are in flight, or while the oldest is this many chunks
    /// behind, because readers of the file wait for that one. `room` is the space by which an existing entry grows.
    pub(crate) async fn write(
        &mut self,
        chunk: Gather,
        room: Option<SpaceReservation>,
    ) -> Result<(), Refused> {
        let index = chunk.index;
        while self.shared.is_behind(index) {
            self.shared.landed.wait().await;
        }
        self.check()?;
        let shared = Rc::clone(&self.shared);
        if shared.prefix.get().is_none() {
            shared.prefix.set(Some((index, index * CHUNK_BYTES)));
        }
        let is_alone = shared.flying.borrow_mut().insert(index);
        assert!(is_alone, "chunk {index} is written once at a time");
        rt::spawn(async move {
            shared.write(chunk, room).await;
            let was_flying = shared.flying.borrow_mut().remove(&index);
            assert!(was_flying, "chunk {index} lands once");
            shared.landed.pulse();
        });
        Ok(())
    }

    fn check(&self) -> Result<(), Refused> {
        self.shared.failed.get().map_or(Ok(()), Err)
    }

    /// Waits until no chunk is in flight.
    pub(crate) async fn settle(&self) {
        while !self.shared.flying.borrow().is_empty() {
            self.shared.landed.wait().await;
        }
    }

    /// The entry that parts were to be added to, when it has none.
    pub(crate) fn empty_entry(&self) -> Option<(Key, u32)> {
        match &self.shared.kind {
            Kind::Parts { key, version, chunks, .. } if chunks.present_bytes() == 0 => Some((*key, *version)),
            _ => None,
        }
    }

    /// Waits for all chunks and returns their checksums in order.
    pub(crate) async fn finish(&self) -> Result<Vec<(u64, u32)>, Refused> {
        self.settle().await;
        self.check()?;
        debug_assert!(self.shared.flying.borrow().is_empty());
        let written = self.shared.written.borrow();
        Ok(written.iter().map(|(index, (crc, _))| (*index, *crc)).collect())
    }
}

impl Shared {
    fn is_behind(&self, index: u64) -> bool {
        let flying = self.flying.borrow();
        let is_far = |oldest: &u64| *oldest == index || oldest + WRITES_MAX as u64 <= index;
        flying.len() >= WRITES_MAX || flying.first().is_some_and(is_far)
    }

    async fn write(&self, chunk: Gather, room: Option<SpaceReservation>) {
        let Gather { index, data, len, crc } = chunk;
        let dir = &self.entries.dir;
        // One fill writes a chunk at a time. The one that waited has nothing to add.
        let _lock = match &self.kind {
            Kind::New { .. } => None,
            Kind::Parts { key, chunks, locks, .. } => {
                let was_there = chunks.checksum(index).is_some();
                let lock = locks.lock(&key.variant(&index.to_le_bytes())).await;
                if !was_there && chunks.checksum(index) == Some(crc) {
                    return self.landed_in_file(index, crc, len);
                }
                Some(lock)
            }
        };
        let at = self.layout.body + index * CHUNK_BYTES;
        if let Err(errno) = dir.write(&self.file, at, data).await {
            return self.fail(errno);
        }
        if let Kind::Parts { key, version, chunks, .. } = &self.kind {
            let is_new = chunks.checksum(index).is_none();
            let at = self.layout.table + index * RECORD_BYTES;
            let bytes = record(self.nonce, index, crc).to_vec();
            if let Err(errno) = dir.write(&self.file, at, bytes.into()).await {
                return self.fail(errno);
            }
            chunks.add(index, crc);
            // A rewritten one has its space.
            if is_new
                && let Some(room) = room
                && !self.entries.index.grow(&key.0, *version, room)
            {
                // The entry is gone.
                self.failed.set(Some(Refused::Gone));
            }
        }
        self.landed_in_file(index, crc, len);
    }

    fn landed_in_file(&self, index: u64, crc: u32, len: u64) {
        assert!(len > 0 && len <= CHUNK_BYTES, "chunk {index} has {len} bytes");
        self.written.borrow_mut().insert(index, (crc, len));
        self.advance();
    }

    /// Advances the end of the readable bytes over all chunks that follow it without a hole.
    fn advance(&self) {
        let Some((mut next, mut bytes)) = self.prefix.get() else { return };
        let written = self.written.borrow();
        while let Some((_, len)) = written.get(&next) {
            (next, bytes) = (next + 1, bytes + len);
        }
        self.prefix.set(Some((next, bytes)));
        debug_assert!(bytes <= next * CHUNK_BYTES && bytes >= self.progress.on_disk());
        self.progress.on_disk.store(bytes, Ordering::Release);
    }

    fn fail(&self, errno: Errno) {
        let staging = match &self.kind {
            Kind::New { staging } => staging.as_ref(),
            Kind::Parts { .. } => None,
        };
        let refused = write_failed(&self.entries.dir, staging, errno);
        if self.failed.get().is_none() {
            self.failed.set(Some(refused));
        }
    }
}
