//! Purges on disk: a log that is written before a purge is answered, and read before anything else at a start.
//!
//! The log is a file of records ([`crate::purge::encode`]). Each is written behind the last one that was whole, so that
//! one which was torn is written over. When the log has grown much longer than what it says, it is written
//! anew beside, brought to the device, and renamed.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::Errno;
use io::op::{OpenHow, Source, Stat};
use rt::File;
use rt::file::{self, Create};
use rustix::fs::OFlags;

use crate::crc32c;
use crate::error::{OpenError, StoreError};
use crate::key::Key;
use crate::purge::{Fate, Log, Purges, Scope, encode};
use crate::reading::{ReadError, read_some};
use crate::store::{FILE_MODE, Store};

/// The log in the cache's folder.
pub(crate) const LOG_NAME: &str = "ringroad.purges";

/// A log that is shorter is never written anew.
const COMPACT_BYTES: u64 = 1 << 20;

/// Longest log that is read: [`crate::purge::NAMES_MAX`] tags of usual length, several times over.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// What is known of the log.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    /// Bytes of whole records.
    good: AtomicU64,
    /// Purges up to this one are forgotten, so that what is older cannot be compared with them.
    forgotten: AtomicU64,
    /// The log as a process saw it that does not own it.
    seen: Mutex<Option<Seen>>,
}

/// Size, change and number of the log's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    size: u64,
    changed: (i64, u32),
    inode: u64,
}

impl From<Stat> for Seen {
    fn from(stat: Stat) -> Seen {
        Seen { size: stat.size, changed: stat.changed, inode: stat.inode }
    }
}

impl LogState {
    /// The last purge that is forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the log at a start. These calls wait for the disk.
pub(crate) fn open(folder: &Path) -> Result<(Purges, LogState), OpenError> {
    let path = folder.join(LOG_NAME);
    let failed = |errno| OpenError::Folder { path: path.clone(), errno };
    let mut purges = Purges::default();
    let state = LogState::default();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(path.as_os_str().as_bytes(), flags, rustix::fs::Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok((purges, state)),
        // A cache whose purges cannot be read must not be used: what was purged could come back.
        Err(errno) => return Err(failed(errno)),
    };
    let size = rustix::fs::fstat(&file).map_err(failed)?.st_size as u64;
    let mut bytes = vec![0; size.min(LOG_BYTES_MAX) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    state.good.store(apply(&mut purges, &bytes[..filled]), Ordering::Relaxed);
    Ok((purges, state))
}

/// Follows all whole records; answers their bytes.
fn apply(purges: &mut Purges, bytes: &[u8]) -> u64 {
    let mut log = Log::new(bytes, crc32c::of);
    for purge in log.by_ref() {
        purges.apply(&purge);
    }
    log.good as u64
}

impl Store {
    /// Purges: answered when it holds also after a crash. What was purged is deleted later, as it is found.
    pub async fn purge(self: &Arc<Store>, scope: Scope, fate: Fate) -> Result<(), StoreError> {
        if !self.is_owner() {
            return Err(StoreError::NotOwner);
        }
        // One at a time: each record is written behind the last one.
        let lease = self.leases.take(&log_key()).await;
        let purge = self.purges_mut().add(scope, fate);
        let mut record = Vec::new();
        if !encode(&purge, crc32c::of, &mut record) {
            return Err(StoreError::Disk { doing: "writing a purge", errno: Errno::INVAL });
        }
        let result = self.append(record).await;
        drop(lease);
        if let Err(errno) = result {
            self.write_failed("writing a purge", errno);
            return Err(StoreError::Disk { doing: "writing a purge", errno });
        }
        self.counters.purges.count();
        if let (Scope::Key(key), Fate::Gone) = (&purge.scope, fate)
            && let Some(known) = self.index.peek(key)
        {
            // Its variants go as they are found.
            self.forget_purged(&Key(*key), known.version);
        }
        self.bell.ring();
        Ok(())
    }

    /// Adds a record to the log and brings it to the device.
    async fn append(&self, record: Vec<u8>) -> Result<(), Errno> {
        let good = self.purge_log.good.load(Ordering::Relaxed);
        if good > COMPACT_BYTES {
            let list = self.log_text();
            if (list.len() as u64) < good / 2 {
                return self.write_log(list).await;
            }
        }
        let (device, via) = (self.device, self.via());
        let path = self.path_in(LOG_NAME.as_bytes());
        let file = File::create(path, Create::Keep, FILE_MODE, device, via).await?;
        let len = record.len() as u64;
        write(&file, good, record, self).await?;
        file.sync(device, via).await?;
        if good == 0 {
            self.sync_folder().await?;
        }
        self.purge_log.good.store(good + len, Ordering::Relaxed);
        Ok(())
    }

    /// All purges that still count, as a log.
    fn log_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for purge in self.purges().list() {
            // One that is too long was never taken.
            encode(&purge, crc32c::of, &mut text);
        }
        text
    }

    /// Forgets purges that no entry is older than, and writes the log anew.
    pub(crate) async fn forget_purges(&self, sequence: u64) -> Result<(), Errno> {
        let lease = self.leases.take(&log_key()).await;
        // A fill that asked its upstream before then is refused rather than compared with what is forgotten.
        self.purge_log.forgotten.fetch_max(sequence, Ordering::AcqRel);
        self.purges_mut().forget(sequence);
        let text = self.log_text();
        let result = self.write_log(text).await;
        drop(lease);
        result
    }

    /// Puts a new log in the place of the old one.
    async fn write_log(&self, text: Vec<u8>) -> Result<(), Errno> {
        let (device, via) = (self.device, self.via());
        let beside = self.temp_path();
        let file = File::create(beside.clone(), Create::New, FILE_MODE, device, via).await?;
        let len = text.len() as u64;
        write(&file, 0, text, self).await?;
        file.sync(device, via).await?;
        file::rename(beside, self.path_in(LOG_NAME.as_bytes()), device, via).await?;
        // Without this a crash could bring the old log back, which lacks what comes from now on.
        self.sync_folder().await?;
        self.purge_log.good.store(len, Ordering::Relaxed);
        Ok(())
    }

    async fn sync_folder(&self) -> Result<(), Errno> {
        let flags = (OFlags::RDONLY | OFlags::DIRECTORY).bits() as i32;
        let how = OpenHow { flags, ..OpenHow::default() };
        let folder = File::open(None, self.path_in(b"."), how, self.device, self.via()).await?;
        folder.sync(self.device, self.via()).await
    }

    /// Follows the purges of the process that owns the folder. The look at the log is a call that finds it in memory.
    pub(crate) async fn follow_purges(&self) {
        let path = self.path_in(LOG_NAME.as_bytes());
        let Ok(stat) = file::stat_now(&path) else { return };
        if *self.purge_log.seen() == Some(stat.into()) {
            return;
        }
        let how = OpenHow { flags: OFlags::RDONLY.bits() as i32, ..OpenHow::default() };
        let Ok(file) = File::open(None, path, how, self.device, self.via()).await else { return };
        let Ok(stat) = file.stat_inline() else { return };
        let Ok(bytes) = self.read_all(&file, stat.size.min(LOG_BYTES_MAX)).await else { return };
        let good = apply(&mut self.purges_mut(), &bytes);
        self.purge_log.good.store(good, Ordering::Relaxed);
        *self.purge_log.seen() = Some(stat.into());
    }

    /// A file from its start, up to `bytes`.
    pub(crate) async fn read_all(&self, file: &File, bytes: u64) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while (all.len() as u64) < bytes {
            let at = all.len() as u64;
            let part = read_some(file, at, bytes - at, self.device, self.via()).await?;
            if part.is_empty() {
                break;
            }
            all.extend_from_slice(&part);
        }
        Ok(all)
    }
}

/// Writes all of `bytes` at `offset`.
pub(crate) async fn write(file: &File, offset: u64, bytes: Vec<u8>, store: &Store) -> Result<(), Errno> {
    let mut data = io::Segments::new();
    data.push(Source::Vec(bytes));
    file.write_segments_at(offset, data, store.device, store.via()).await.0.map(drop)
}

/// What the log is leased by: a key that no text has, as far as anybody knows.
fn log_key() -> Key {
    Key([0; 16])
}
