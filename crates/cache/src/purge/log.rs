//! Purges on disk: [`PurgeLog`]. It is written before a purge is confirmed, and it is the first file that is read at a
//! start.
//!
//! ```text
//!   purge: numbered, record added to the group +--> waits for its group --> confirmed
//!                                              |         ^
//!                 one task: takes the group, one write, one fdatasync; meanwhile, the next group is collected
//!
//!   rewriting (manager): records of new groups are also collected in a copy -- stored purges written, shard by
//!                        shard -- file system flushed -- the collected records written -- fdatasync -- rename
//! ```
//! The log is a file of records ([`crate::purge::encode`]) followed by zeroes. Each group is written behind the last
//! complete record, so that a torn group is overwritten. The file stays open between groups. A group is taken after the
//! ready tasks have run, so that it includes the next purges of clients that purge again immediately.
//!
//! The cost of a purge does not depend on the number of stored purges: a log that has doubled its length is rewritten
//! as a new file, while purges continue. They wait only for the last write and the rename.

use std::ffi::{CStr, CString};
use std::future::poll_fn;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use io::Errno;
use io::facts::Stat;
use rt::File;
use rt::file::{self, Create};
use rustix::fs::OFlags;

use crate::disk::directory::{Directory, ReadError};
use crate::error::{OpenError, StoreError};
use crate::format::crc32c;
use crate::key::Key;
use crate::mutex::lock;
use crate::purge::{Log, PurgeEffect, Purges, Scope, TEXT_MAX, encode};
use crate::stats::Counter;

/// Name of the log in the cache's directory.
pub(crate) const LOG_NAME: &str = "ringroad.purges";

/// Size in bytes below which the log is never rewritten, because a rewrite flushes all dirty data of the file system to
/// the device. A start reads a log of this size in a tenth of a second.
const REWRITE_BYTES: u64 = 8 << 20;

/// Maximum number of bytes of the log that are read: several times [`crate::purge::NAMES_MAX`] tags of usual length.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// Number of zero bytes that are written behind a group when the file has to grow. Flushing a write that does not
/// extend the file takes a fraction of the time. The space is enough for some thousands of records.
const ROOM_BYTES: usize = 256 << 10;

/// Number of bytes per write during a rewrite of the log.
const PIECE_BYTES: usize = 256 << 10;

/// Time after a change of the log during which a further change may leave the same file times: they may be as coarse as
/// a tick of the kernel's clock.
const TICK: Duration = Duration::from_millis(100);

/// The purges of a cache and their log.
pub(crate) struct PurgeLog {
    dir: Arc<Directory>,
    set: RwLock<Purges>,
    /// Number of confirmed purges.
    pub(crate) confirmed: Counter,
    /// Number of written groups.
    pub(crate) writes: Counter,
    /// Number of bytes of complete records.
    valid_len: AtomicU64,
    /// Size in bytes above which the log is rewritten.
    rewrite_at: AtomicU64,
    /// Whether the file name of the log is durable.
    is_named: AtomicBool,
    group: Mutex<Group>,
    /// The open log file after the last group, for the thread that writes the next group.
    file: Mutex<Option<OwnedFd>>,
    /// State of the log file as last read by a process that does not own it. The file stays open, so that no new log gets
    /// its inode.
    seen: Mutex<Option<(Seen, Option<OwnedFd>)>>,
}

/// Purges that are written next, in one group.
#[derive(Debug, Default)]
struct Group {
    records: Vec<u8>,
    count: u64,
    batch: Arc<Batch>,
    /// Whether a task is writing groups.
    is_written: bool,
    /// Records written since a rewrite of the log began.
    since_rewrite: Option<Vec<u8>>,
}

/// Passes the result of a group to the waiting tasks.
#[derive(Debug, Default)]
struct Batch(Mutex<BatchState>);

#[derive(Debug, Default)]
struct BatchState {
    result: Option<Result<(), StoreError>>,
    waiting: Vec<Waker>,
}

impl Batch {
    async fn done(&self) -> Result<(), StoreError> {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            match &state.result {
                Some(result) => Poll::Ready(result.clone()),
                None => {
                    state.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn finish(&self, result: Result<(), StoreError>) {
        let mut state = lock(&self.0);
        debug_assert!(state.result.is_none(), "a group ends once");
        state.result = Some(result);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The task that writes groups. When it is dropped before its end, for example because its thread exits, it fails the
/// waiting purges.
struct Writer {
    log: Arc<PurgeLog>,
    /// Waiting purges of the group that is being written.
    batch: Option<Arc<Batch>>,
    is_done: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut group = lock(&self.log.group);
        group.is_written = false;
        group.records.clear();
        let next = std::mem::take(&mut group.batch);
        drop(group);
        let result = Err(StoreError::Disk { doing: WRITING, errno: Errno::CANCELED });
        self.batch.take().into_iter().chain([next]).for_each(|batch| batch.finish(result.clone()));
    }
}

/// Name of the operation, for messages.
const WRITING: &str = "writing a purge";

/// Size, change time and inode of the log file.
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

/// Reads the log at a start; returns its bytes. These calls block on the disk.
fn read(directory: &Path) -> Result<Vec<u8>, OpenError> {
    let path = directory.join(LOG_NAME);
    let failed = |errno| OpenError { path: path.clone(), errno };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(path.as_os_str().as_bytes(), flags, rustix::fs::Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        // A cache with an unreadable purge log must not be used: purged entries would be valid again.
        Err(errno) => return Err(failed(errno)),
    };
    let mut bytes = Vec::new();
    let read = std::fs::File::from(file).take(LOG_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    Ok(bytes)
}

/// Applies all complete records; returns their bytes.
fn apply(purges: &mut Purges, bytes: &[u8]) -> u64 {
    let mut log = Log::new(bytes, crc32c);
    for purge in log.by_ref() {
        purges.apply(&purge);
    }
    log.valid_len as u64
}

impl PurgeLog {
    /// Reads the log at a start. These calls block on the disk.
    pub(crate) fn open(path: &Path, dir: &Arc<Directory>) -> Result<PurgeLog, OpenError> {
        let mut purges = Purges::default();
        let valid_len = apply(&mut purges, &read(path)?);
        Ok(PurgeLog {
            dir: Arc::clone(dir),
            set: RwLock::new(purges),
            confirmed: Counter::default(),
            writes: Counter::default(),
            valid_len: AtomicU64::new(valid_len),
            rewrite_at: AtomicU64::new(REWRITE_BYTES),
            is_named: AtomicBool::new(false),
            group: Mutex::default(),
            file: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// Returns the stored purges.
    pub(crate) fn set(&self) -> RwLockReadGuard<'_, Purges> {
        self.set.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stored purges for changes.
    pub(crate) fn set_mut(&self) -> RwLockWriteGuard<'_, Purges> {
        self.set.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log should be rewritten.
    pub(crate) fn is_long(&self) -> bool {
        self.valid_len.load(Ordering::Relaxed) > self.rewrite_at.load(Ordering::Relaxed)
    }

    /// Adds purges, with consecutive numbers. Returns the first number when all purges are durable.
    pub(crate) async fn add(
        self: &Arc<PurgeLog>,
        scopes: Vec<Scope>,
        effect: PurgeEffect,
    ) -> Result<u64, StoreError> {
        if !self.dir.is_owner() {
            return Err(StoreError::NotOwner);
        }
        if scopes.iter().any(|scope| scope.text().len() > TEXT_MAX) {
            return Err(StoreError::Disk { doing: WRITING, errno: Errno::INVAL });
        }
        let (number, batch) = self.gather(scopes, effect);
        batch.done().await?;
        Ok(number)
    }

    /// Numbers purges and adds their records to the group that is written next.
    fn gather(self: &Arc<PurgeLog>, scopes: Vec<Scope>, effect: PurgeEffect) -> (u64, Arc<Batch>) {
        // One lock for both, so that the order of the numbers is the order in the log.
        let mut group = lock(&self.group);
        let mut purges = self.set_mut();
        // The time of day is above all numbers of a log that was lost, so new purges apply to all stored entries.
        purges.raise_to(rt::wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64));
        let number = purges.sequence() + 1;
        for scope in scopes {
            let purge = purges.add(scope, effect);
            let is_written = encode(&purge, crc32c, &mut group.records);
            assert!(is_written, "the text of the purge is short enough");
            group.count += 1;
        }
        drop(purges);
        let batch = Arc::clone(&group.batch);
        let is_first = !std::mem::replace(&mut group.is_written, true);
        drop(group);
        if is_first {
            let writer = Writer { log: Arc::clone(self), batch: None, is_done: false };
            rt::spawn(writer.write_groups());
        }
        (number, batch)
    }

    /// Takes the open log file.
    fn take_file(&self) -> Option<File> {
        lock(&self.file).take().map(File::new)
    }

    /// Replaces the state of the log file as last read, and closes the file of the previous state.
    fn set_seen(&self, seen: Option<(Seen, Option<OwnedFd>)>) {
        let before = std::mem::replace(&mut *lock(&self.seen), seen);
        drop(before.and_then(|(_, file)| file).map(File::new));
    }

    /// Appends records to the log and flushes them to the device.
    async fn append(&self, mut records: Vec<u8>) -> Result<(), Errno> {
        let dir = &self.dir;
        let valid_len = self.valid_len.load(Ordering::Relaxed);
        // The open file may have been removed, or another file may have its name now.
        let is_named = |file: &File| file.stat_inline().is_ok_and(|stat| stat.links > 0);
        let file = match self.take_file().filter(is_named) {
            Some(file) => file,
            None => dir.create(self.path(), Create::Keep).await?,
        };
        let size = file.stat_inline()?.size;
        if size < valid_len {
            // The file was truncated or removed by hand: all stored purges are written again, including these records.
            return self.replace_lost().await;
        }
        let end = valid_len + records.len() as u64;
        debug_assert!(end > valid_len, "a group has records");
        if end > size {
            records.resize(records.len() + ROOM_BYTES, 0);
        }
        dir.write(&file, valid_len, records.into()).await?;
        dir.sync(&file).await?;
        if !self.is_named.load(Ordering::Relaxed) {
            dir.sync_names().await?;
            self.is_named.store(true, Ordering::Relaxed);
        }
        self.valid_len.store(end, Ordering::Relaxed);
        self.writes.count();
        *lock(&self.file) = file.into_fd();
        Ok(())
    }

    /// Rewrites the log while purges continue, to remove forgotten purges from the disk.
    pub(crate) async fn rewrite(&self) {
        lock(&self.group).since_rewrite = Some(Vec::new());
        let result = self.rewrite_concurrently().await;
        lock(&self.group).since_rewrite = None;
        if let Err(errno) = result {
            // The next attempt is made when the log has doubled its length again.
            self.rewrite_at.store(2 * self.valid_len.load(Ordering::Relaxed), Ordering::Relaxed);
            self.dir.write_failed(WRITING, errno);
        }
    }

    async fn rewrite_concurrently(&self) -> Result<(), Errno> {
        let temp = self.dir.temp_path();
        let written = async {
            let (file, len) = self.write_stored(&temp).await?;
            // The removal of a purged file must be durable before its purge is forgotten, in case of a power failure.
            self.dir.sync_all().await?;
            self.dir.sync(&file).await?;
            let turn = self.dir.locks.lock(&turn_key()).await;
            // No group is written from here on.
            let _lock = self.dir.locks.lock(&log_key()).await;
            drop(turn);
            let since = lock(&self.group).since_rewrite.take().unwrap_or_default();
            self.replace(&file, len, since, &temp).await
        };
        let result = written.await;
        if result.is_err() {
            let _ = self.dir.unlink(temp).await;
        }
        result
    }

    /// Writes all stored purges to a new log, in place of a lost one; for the task that writes groups.
    async fn replace_lost(&self) -> Result<(), Errno> {
        let temp = self.dir.temp_path();
        let (file, len) = Box::pin(self.write_stored(&temp)).await?;
        self.replace(&file, len, Vec::new(), &temp).await
    }

    /// Writes all stored purges to a new file; returns the file and its length.
    async fn write_stored(&self, path: &CStr) -> Result<(File, u64), Errno> {
        let file = self.dir.create(path.to_owned(), Create::New).await?;
        let (mut at, mut text) = (0, Vec::new());
        for part in 0..Purges::PARTS {
            // Locks one shard at a time: lookups and purges continue in between.
            for purge in self.set().part(part) {
                // `encode` fails only for texts that are too long, and `add` rejects those.
                encode(&purge, crc32c, &mut text);
            }
            if text.len() >= PIECE_BYTES || part + 1 == Purges::PARTS {
                let len = text.len() as u64;
                self.dir.write(&file, at, std::mem::take(&mut text).into()).await?;
                at += len;
            } else {
                rt::yield_now().await;
            }
        }
        Ok((file, at))
    }

    /// Writes the records `since` to the end of a new log, and replaces the log by it.
    async fn replace(&self, file: &File, len: u64, since: Vec<u8>, path: &CStr) -> Result<(), Errno> {
        let dir = &self.dir;
        let end = len + since.len() as u64;
        dir.write(file, len, since.into()).await?;
        dir.sync(file).await?;
        dir.rename(path.to_owned(), self.path()).await?;
        // If the old file stayed open, it would occupy disk space until the next purge, or as long as this process runs.
        drop(self.take_file());
        self.set_seen(None);
        self.valid_len.store(end, Ordering::Relaxed);
        self.rewrite_at.store((2 * end).max(REWRITE_BYTES), Ordering::Relaxed);
        // Until the rename is durable, a crash could restore the old log, which lacks later purges.
        self.is_named.store(false, Ordering::Relaxed);
        dir.sync_names().await?;
        self.is_named.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Applies the purges of the process that owns the directory. The check for changes of the log is a stat without
    /// disk access. After an error, purges may be missing.
    pub(crate) async fn follow(&self) -> Result<(), Errno> {
        let dir = &self.dir;
        let stat = match file::stat_now(&self.path()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let seen = lock(&self.seen).as_ref().map(|(seen, _)| *seen);
        if seen == Some(stat.into()) {
            return Ok(());
        }
        let file = dir.open_file(self.path(), OFlags::RDONLY).await?;
        let stat = file.stat_inline()?;
        // If it is the same file, it has only grown, behind the range that was read. No other file has its inode, because
        // it is still open.
        let is_same = seen.is_some_and(|seen| seen.inode == stat.inode);
        let from = if is_same { self.valid_len.load(Ordering::Relaxed) } else { 0 };
        let to = stat.size.min(LOG_BYTES_MAX);
        let bytes = dir.to_read(&file).read_all(from, to).await.map_err(|error| match error {
            ReadError::Disk(errno) => errno,
            ReadError::NoMemory | ReadError::Damaged(_) => Errno::NOMEM,
        })?;
        let valid_len = from + apply(&mut self.set_mut(), &bytes);
        debug_assert!(valid_len <= to.max(from), "no record is behind the end of the file");
        self.valid_len.store(valid_len, Ordering::Relaxed);
        let changed = UNIX_EPOCH + Duration::new(stat.changed.0.max(0) as u64, stat.changed.1);
        // If a further change may leave the same file times, the next call reads the log again.
        let is_settled = rt::wall().duration_since(changed).is_ok_and(|age| age >= TICK);
        let seen = Seen { size: if is_settled { stat.size } else { u64::MAX }, ..stat.into() };
        self.set_seen(Some((seen, file.into_fd())));
        Ok(())
    }

    fn path(&self) -> CString {
        self.dir.path_in(LOG_NAME.as_bytes())
    }
}

impl Writer {
    /// Writes group after group until no new group has gathered.
    async fn write_groups(mut self) {
        let log = Arc::clone(&self.log);
        let dir = &log.dir;
        loop {
            // Lets a rewrite that waits for the lock of the log have it before the next group.
            drop(dir.locks.lock(&turn_key()).await);
            let _lock = dir.locks.lock(&log_key()).await;
            let Some((records, count)) = self.take_group() else { return };
            let result = match dir.is_owner() {
                true => log.append(records).await.map_err(|errno| {
                    dir.write_failed(WRITING, errno);
                    StoreError::Disk { doing: WRITING, errno }
                }),
                // Another process may write the log by now.
                false => Err(StoreError::NotOwner),
            };
            if result.is_ok() {
                log.confirmed.add(count);
            }
            if let Some(batch) = self.batch.take() {
                batch.finish(result);
            }
            dir.manager.wake();
            // Woken tasks may purge again before the next group is taken.
            rt::yield_to_ready().await;
        }
    }

    /// Takes the records of the next group. Without records, the task has ended, and the next purge starts another one.
    fn take_group(&mut self) -> Option<(Vec<u8>, u64)> {
        let mut group = lock(&self.log.group);
        let group = &mut *group;
        if group.records.is_empty() {
            group.is_written = false;
            self.is_done = true;
            return None;
        }
        if let Some(since_rewrite) = &mut group.since_rewrite {
            since_rewrite.extend_from_slice(&group.records);
        }
        assert!(group.count > 0 && self.batch.is_none(), "one group is written at a time");
        self.batch = Some(std::mem::take(&mut group.batch));
        Some((std::mem::take(&mut group.records), std::mem::take(&mut group.count)))
    }
}

/// Returns the lock key of the log: a key that no known text maps to.
fn log_key() -> Key {
    Key([0; 16])
}

/// Returns the key of the lock that a rewrite holds while it waits for the lock of the log.
fn turn_key() -> Key {
    Key([1; 16])
}
