//! [`Directory`]: the directory of one cache, and the only access to its disk. It builds paths and temporary names. It
//! opens, creates, writes, publishes and removes files. It also tracks whether this process owns the directory and
//! whether the disk works. [`DiskFile`] reads an open file, continued after short reads, into buffers of the thread.
//!
//! It has no knowledge of entries and of the index, so a simulated disk or another kind of store can replace it.

use std::ffi::{CString, OsStr};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use io::facts::{DeviceId, DirEntry, EntryAttributes, Space};
use io::op::{NewFile, OpenHow};
use io::{Buf, Disk, DiskVia, Errno, Segments};
use rt::file::{self, Create, Lock};
use rt::{Either, File, HelperPool};
use rustix::fs::{CWD, Dir, Mode, OFlags};

use crate::config::{Config, Notify};
use crate::disk::health::{Health, is_shortage};
use crate::disk::key_locks::KeyLocks;
use crate::disk::wakeup::Wakeup;
use crate::error::{OpenError, Refused, StoreError};
use crate::format::{ALIGN, Damage};
use crate::key::{Key, Levels, Parents};
use crate::mutex::lock;
use crate::note::Note;
use crate::stats::Counter;

/// Maximum number of helper threads per cache: its manager, which has one task, and flushes of purges use these threads.
const HELPERS_MAX: usize = 2;

/// The directory of a cache.
pub(crate) struct Directory {
    /// Path as passed to the kernel, without a trailing slash.
    base: Vec<u8>,
    /// Path of the staging directory.
    staging: Vec<u8>,
    /// The device of its file system.
    pub(crate) device: DeviceId,
    /// The disk backend of the configuration.
    via: DiskVia,
    /// The directory levels over which the entries are spread.
    pub(crate) levels: Levels,
    /// Whether written bytes leave the page cache.
    pub(crate) is_uncached: bool,
    /// See [`Config::calls_directly`].
    pub(crate) calls_directly: bool,
    lock: Mutex<Option<Lock>>,
    /// Why the lock could not be opened at the start.
    lock_error: Option<Errno>,
    is_owner: AtomicBool,
    is_stopping: AtomicBool,
    pub(crate) health: Health,
    /// Start of the clock of `health`: set at its first use.
    began: OnceLock<Instant>,
    pub(crate) counts: DiskCounts,
    /// Locks on cache files, by key.
    pub(crate) locks: KeyLocks,
    /// Wakes the manager: for a stop, when space is scarce, or after a disk failure.
    pub(crate) manager: Wakeup,
    notify: Notify,
    /// Random number, so that two processes never choose the same nonce or temporary name. It identifies the directory
    /// in this process.
    pub(crate) seed: u64,
    /// Common prefix of all temporary paths of this process.
    temp_start: Vec<u8>,
    count: AtomicU64,
    /// The threads for work on this directory that no operation of the engine covers: a disk that does not respond delays
    /// no other cache.
    pub(crate) helpers: HelperPool,
}

/// Counters of disk calls, see [`crate::Stats`].
#[derive(Debug, Default)]
pub(crate) struct DiskCounts {
    pub(crate) read_errors: Counter,
    pub(crate) write_errors: Counter,
    pub(crate) pass_throughs: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
}

/// Permission bits of directories: only the user of the workers has access, as in nginx.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
/// Permission bits of files: also restricted to the user of the workers.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Start of the names of all files and directories that do not belong to entries.
const OWN_NAMES: &[u8] = b"ringroad.";
/// Name of the lock file.
const LOCK_NAME: &str = "ringroad.lock";
/// Name of the staging directory.
const STAGING_NAME: &str = "ringroad.tmp";

/// Maximum number of digits in a temporary name.
const DIGITS_MAX: usize = 20;

/// Buffer size in bytes for reading a directory: some 800 names per operation.
const DIR_READ_BYTES: u32 = 32 << 10;

/// Flags for opening the file of an entry for reading. The open must neither block on a FIFO with that name nor follow
/// a symbolic link.
pub(crate) const READ_FLAGS: OFlags =
    OFlags::from_bits_retain(OFlags::RDONLY.bits() | OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits());

impl Directory {
    /// Creates the directory and takes its lock. These calls may wait for the disk.
    pub(crate) fn open(config: &Config, seed: u64) -> Result<Directory, OpenError> {
        let device = make_directory(&config.path)?;
        let staging = config.path.join(STAGING_NAME);
        // If this fails, the first write reports it, and responses are passed through without being stored.
        let _ = make_directory(&staging);
        let lock_path = config.path.join(LOCK_NAME);
        let (lock, lock_error) = match Lock::try_take(&checked(lock_path.as_os_str().as_bytes().to_vec())) {
            Ok(lock) => (lock, None),
            // The directory is readable but not writable: treated as if another process owned it.
            Err(errno @ (Errno::ROFS | Errno::ACCESS)) => (None, Some(errno)),
            Err(errno) => return Err(OpenError { path: lock_path, errno }),
        };
        let (base, staging) = (trimmed(&config.path), trimmed(&staging));
        let temp_start =
            [&staging, &b"/"[..], format!("{}{seed:016x}.", temp_family(&base)).as_bytes()].concat();
        Ok(Directory {
            base,
            staging,
            device,
            via: config.via,
            levels: config.levels,
            is_uncached: config.direct,
            calls_directly: config.calls_directly,
            is_owner: AtomicBool::new(lock.is_some()),
            lock: Mutex::new(lock),
            lock_error,
            is_stopping: AtomicBool::new(false),
            health: Health::default(),
            began: OnceLock::new(),
            counts: DiskCounts::default(),
            locks: KeyLocks::default(),
            manager: Wakeup::default(),
            notify: config.notify.clone(),
            seed,
            temp_start,
            count: AtomicU64::new(0),
            helpers: HelperPool::new("cache", HELPERS_MAX),
        })
    }

    /// Whether it contains no entries. Blocks on the disk. An unreadable directory counts as not empty.
    pub(crate) fn is_empty(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, self.path(), flags, Mode::empty());
        let is_own = |name: &[u8]| matches!(name, b"." | b"..") || name.starts_with(OWN_NAMES);
        opened.and_then(Dir::new).is_ok_and(|mut names| {
            names.all(|entry| entry.is_ok_and(|entry| is_own(entry.file_name().to_bytes())))
        })
    }

    /// Returns the configured disk backend, or the next best one that this thread has.
    pub(crate) fn via(&self) -> DiskVia {
        let caps = rt::caps();
        let has = |via: DiskVia| match via {
            DiskVia::Ring => caps.disk_ring,
            DiskVia::Libaio => caps.disk_libaio,
            DiskVia::Pool(number) => number < caps.pools,
            DiskVia::Sync => true,
        };
        let choices = [self.via, DiskVia::Ring, DiskVia::Pool(0), DiskVia::Sync];
        choices.into_iter().find(|via| has(*via)).unwrap_or(DiskVia::Sync)
    }

    /// Returns the device with the backend of [`Directory::via`].
    pub(crate) fn disk(&self) -> Disk {
        Disk { device: self.device, via: self.via() }
    }

    /// Returns a unique number for a new entry.
    pub(crate) fn nonce(&self) -> u64 {
        // Multiplication by an odd factor maps different counts to different numbers.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Paths.
impl Directory {
    /// Returns the path of a key's file, and the offsets at which its parent directories end.
    pub(crate) fn path_of(&self, key: &Key) -> (CString, Parents) {
        // Includes the terminating zero byte, so that adding it does not reallocate.
        let mut path = Vec::with_capacity(self.base.len() + self.levels.path_len() + 1);
        path.extend_from_slice(&self.base);
        let parents = self.levels.push_path(&mut path, key);
        debug_assert!(path.len() == self.base.len() + self.levels.path_len());
        (checked(path), parents)
    }

    /// Returns the path of a key's file relative to the directory.
    pub(crate) fn name_of(&self, key: &Key) -> CString {
        let mut path = Vec::with_capacity(48);
        self.levels.push_path(&mut path, key);
        // Removes the leading slash of the first level.
        path.remove(0);
        checked(path)
    }

    /// Returns the path of a name below the directory.
    pub(crate) fn path_in(&self, name: &[u8]) -> CString {
        checked([&self.base, &b"/"[..], name].concat())
    }

    /// Returns the path of the directory itself.
    pub(crate) fn path(&self) -> CString {
        self.path_in(b".")
    }

    /// Returns the path of the staging directory.
    pub(crate) fn staging_path(&self) -> CString {
        checked(self.staging.clone())
    }

    /// Returns an unused temporary path.
    pub(crate) fn temp_path(&self) -> CString {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut path = Vec::with_capacity(self.temp_start.len() + DIGITS_MAX + 1);
        path.extend_from_slice(&self.temp_start);
        write!(path, "{number}").expect("writing to a vector cannot fail");
        checked(path)
    }

    /// Whether a name in the staging directory is a temporary file that an earlier process of this cache has left
    /// behind. Other caches may use the same staging directory.
    pub(crate) fn is_leftover(&self, name: &[u8]) -> bool {
        let ours = &self.temp_start[self.staging.len() + 1..];
        name.starts_with(temp_family(&self.base).as_bytes()) && !name.starts_with(ours)
    }
}

/// Files.
impl Directory {
    /// Opens a file below the directory.
    pub(crate) async fn open_file(&self, path: CString, flags: OFlags) -> Result<File, Errno> {
        let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
        File::open(None, path, how, self.disk()).await
    }

    /// Opens the directory at this path.
    pub(crate) async fn open_dir(&self, path: CString) -> Result<File, Errno> {
        self.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW).await
    }

    /// Returns the next entries of a directory; an empty list at its end.
    pub(crate) async fn read_dir(&self, dir: &File) -> Result<Vec<DirEntry>, Errno> {
        dir.read_dir(DIR_READ_BYTES, EntryAttributes::Kind, self.disk()).await
    }

    /// Returns an open file below the directory, to be read.
    pub(crate) fn to_read<'a>(&self, file: &'a File) -> DiskFile<'a> {
        DiskFile { file, disk: self.disk() }
    }

    /// Creates a file, or opens it for reading and writing.
    pub(crate) async fn create(&self, path: CString, create: Create) -> Result<File, Errno> {
        File::create(path, create, FILE_MODE, self.disk()).await
    }

    /// Creates a directory; an existing directory is not an error.
    pub(crate) async fn make_dir(&self, path: CString) -> Result<(), Errno> {
        match file::mkdir(path, DIRECTORY_MODE, self.disk()).await {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    /// Writes all of `data` at `offset`.
    pub(crate) async fn write(&self, file: &File, offset: u64, data: Segments) -> Result<(), Errno> {
        let wanted = data.len() as u64;
        let written = file.write_segments_at(offset, data, self.disk()).await.0?;
        assert!(written == wanted, "{written} of {wanted} bytes were written");
        self.counts.written_bytes.add(written);
        Ok(())
    }

    /// Creates a complete file, or completes `open_temp`, and renames it to `to` in one operation. Creates missing parent
    /// directories.
    pub(crate) async fn publish(
        &self,
        to: (CString, Parents),
        temp: CString,
        open_temp: Option<&File>,
        data: Vec<Segments>,
    ) -> Result<(), Errno> {
        let (to, parents) = to;
        let open_temp = open_temp.map(|file| file.fd().clone());
        let bytes: usize = data.iter().map(Segments::len).sum();
        let new = NewFile { temp, to, open_temp, mode: FILE_MODE, data, uncached: self.is_uncached };
        let (done, back) = File::put(Box::new(new), self.disk()).await;
        let done = match (done, back) {
            (Err(Errno::NOENT), Some(new)) => {
                Box::pin(self.make_parents(&new.to, parents)).await?;
                File::put(new, self.disk()).await.0
            }
            (done, _) => done,
        };
        if done.is_ok() {
            self.counts.written_bytes.add(bytes as u64);
        }
        done
    }

    async fn make_parents(&self, path: &CString, parents: Parents) -> Result<(), Errno> {
        // The following write reports the failure.
        let _ = self.make_dir(self.staging_path()).await;
        for &end in parents.ends() {
            let parent = CString::new(&path.as_bytes()[..end]).map_err(|_| Errno::INVAL)?;
            self.make_dir(parent).await?;
        }
        Ok(())
    }

    /// Renames a file and replaces an existing file with the new name.
    pub(crate) async fn rename(&self, from: CString, to: CString) -> Result<(), Errno> {
        file::rename(from, to, self.disk()).await
    }

    /// Removes a file.
    pub(crate) async fn unlink(&self, path: CString) -> Result<(), Errno> {
        file::unlink(path, self.disk()).await
    }

    /// Flushes the data of a file to the device (fdatasync).
    pub(crate) async fn sync(&self, file: &File) -> Result<(), Errno> {
        file.sync(self.disk()).await
    }

    /// Flushes the directory, so that renames and new names in it are durable.
    pub(crate) async fn sync_names(&self) -> Result<(), Errno> {
        self.sync(&self.open_dir(self.path()).await?).await
    }

    /// Flushes its complete file system to the device (syncfs), including removals.
    pub(crate) async fn sync_all(&self) -> Result<(), Errno> {
        let directory = self.open_dir(self.path()).await?;
        let fd = rustix::io::fcntl_dupfd_cloexec(&directory, 0)?;
        self.helpers.run(move || rustix::fs::syncfs(fd)).await.unwrap_or(Err(Errno::IO))
    }

    /// Returns the free and total space of its file system.
    pub(crate) async fn space(&self) -> Result<Space, Errno> {
        file::space(self.path(), self.disk()).await
    }
}

/// The state of the disk.
impl Directory {
    /// Returns the time in ms for [`Health`]. Unlike the time of day it never goes back, which would extend a pause.
    pub(crate) fn clock_ms(&self) -> u64 {
        let now = rt::now();
        now.saturating_duration_since(*self.began.get_or_init(|| now)).as_millis() as u64
    }

    /// Passes a note to the operator.
    pub(crate) fn note(&self, note: Note) {
        (self.notify.0)(note);
    }

    /// Passes the note to the operator that the disk fails.
    pub(crate) fn disk_failed(&self, doing: &'static str, errno: Errno) {
        self.note(Note::PassThrough { path: OsStr::from_bytes(&self.base).into(), doing, errno });
    }

    /// Records that a failure has begun a pause of the disk.
    fn begin_pause(&self, doing: &'static str, errno: Errno) {
        self.counts.pass_throughs.count();
        self.disk_failed(doing, errno);
    }

    /// Records a failed write, rename or removal.
    pub(crate) fn write_failed(&self, doing: &'static str, errno: Errno) {
        self.counts.write_errors.count();
        if self.health.write_failed(errno, self.clock_ms()) {
            self.begin_pause(doing, errno);
            // The manager schedules a trial write.
            self.manager.wake();
        }
    }

    /// Records a failed read.
    pub(crate) fn read_failed(&self, doing: &'static str, errno: Errno) -> StoreError {
        self.counts.read_errors.count();
        if self.health.read_failed(errno, self.clock_ms()) {
            self.begin_pause(doing, errno);
        }
        StoreError::Disk { doing, errno }
    }

    /// Records a failure to open a file: a lack of descriptors is not a disk failure, any other error counts as a
    /// failed read.
    pub(crate) fn open_failed(&self, errno: Errno) -> StoreError {
        let doing = "opening an entry";
        match is_shortage(errno) {
            true => StoreError::Disk { doing, errno },
            false => self.read_failed(doing, errno),
        }
    }

    /// Records a successful read.
    pub(crate) fn read_succeeded(&self) {
        if self.health.read_succeeded() {
            self.note(Note::Recovered);
        }
    }

    /// Whether this process may start a write now.
    pub(crate) fn may_write(&self) -> Result<(), Refused> {
        if self.is_stopping() {
            return Err(Refused::Stopping);
        }
        self.may_finish()?;
        if self.health.can_write() { Ok(()) } else { Err(Refused::PassThrough) }
    }

    /// Whether a complete entry may still be published. Fails as soon as another process may own the directory.
    pub(crate) fn may_finish(&self) -> Result<(), Refused> {
        if self.is_owner() { Ok(()) } else { Err(Refused::NotOwner) }
    }
}

/// Ownership.
impl Directory {
    /// Whether this process owns the directory: only the owner fills, evicts and purges.
    pub(crate) fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Acquire)
    }

    /// Whether the directory could not be opened for writing at the start, and still is not owned.
    pub(crate) fn is_unwritable(&self) -> bool {
        self.lock_error.is_some() && !self.is_owner()
    }

    /// Whether the cache is being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Begins the stop.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.manager.wake();
    }

    /// Takes the lock if its holder has exited; returns whether this process has the lock.
    pub(crate) fn try_lock(&self) -> bool {
        let mut lock = lock(&self.lock);
        if lock.is_none() {
            *lock = Lock::try_take(&self.path_in(LOCK_NAME.as_bytes())).ok().flatten();
        }
        lock.is_some()
    }

    /// Returns the note about a directory that this process does not own at the start.
    pub(crate) fn unowned(&self) -> Note {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        match self.lock_error {
            Some(errno) => {
                let lock = [&self.base, &b"/"[..], LOCK_NAME.as_bytes()].concat();
                Note::Unwritable { path: path(&lock), errno }
            }
            None => Note::NotOwner { path: path(&self.base) },
        }
    }

    /// Begins ownership: from now on this process may write.
    pub(crate) fn begin_owning(&self) {
        assert!(lock(&self.lock).is_some(), "the owner has the lock");
        self.is_owner.store(true, Ordering::Release);
    }

    /// Ends ownership: from now on nothing new is written or removed.
    pub(crate) fn end_owning(&self) {
        self.is_owner.store(false, Ordering::Release);
    }

    /// Releases the lock, so that another process can own the directory.
    pub(crate) fn unlock(&self) {
        assert!(!self.is_owner(), "nothing is written without the lock");
        let lock = lock(&self.lock).take();
        drop(lock);
    }
}

/// Returns the time of day in milliseconds since 1970: the clock of entries on disk.
pub(crate) fn now_ms() -> u64 {
    rt::wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// Returns the time of day in seconds since 1970, the unit of the index.
pub(crate) fn now_s() -> u32 {
    (now_ms() / 1000) as u32
}

/// Returns the common prefix of all temporary names of a cache, independent of the process.
fn temp_family(base: &[u8]) -> String {
    let digits = Key::of(base).hex();
    format!("{}-", String::from_utf8_lossy(&digits[..16]))
}

fn trimmed(path: &Path) -> Vec<u8> {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    while bytes.len() > 1 && bytes.last() == Some(&b'/') {
        bytes.pop();
    }
    bytes
}

/// Converts a path to a C string. Paths consist of the configured directories, checked by [`Directory::open`], and of
/// digits.
fn checked(path: Vec<u8>) -> CString {
    CString::new(path).expect("the directories of a cache have no zero byte")
}

/// Creates a directory if it is missing, and returns its device.
fn make_directory(path: &Path) -> Result<DeviceId, OpenError> {
    let failed = |errno| OpenError { path: path.to_owned(), errno };
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        // An existing directory may be on a read-only file system.
        Err(Errno::ROFS | Errno::ACCESS) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let opened = rustix::fs::openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let stat = opened.and_then(rustix::fs::fstat).map_err(failed)?;
    Ok(DeviceId(stat.st_dev))
}

/// The reason why a file could not be read as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Disk(Errno),
    NoMemory,
    Damaged(Damage),
}

/// Size of the largest buffer in bytes.
const BUF_BYTES_MAX: u64 = 1 << 20;

/// A file, and the backend of its reads.
#[derive(Clone, Copy)]
pub(crate) struct DiskFile<'a> {
    pub(crate) file: &'a File,
    pub(crate) disk: Disk,
}

impl DiskFile<'_> {
    /// Reads up to `bytes` at `at` in one read; the buffer is empty at the end of the file.
    pub(crate) async fn read_some(self, at: u64, bytes: u64) -> Result<Buf, ReadError> {
        self.read_into(buffer(bytes).await?, at, bytes).await
    }

    /// As [`DiskFile::read_some`], into a buffer that [`buffer`] has returned for this many bytes.
    pub(crate) async fn read_into(self, buf: Buf, at: u64, bytes: u64) -> Result<Buf, ReadError> {
        let bytes = bytes.min(BUF_BYTES_MAX);
        let (result, buf) = self.file.read_at(at, bytes as u32, buf, self.disk).await;
        let count = result.map_err(ReadError::Disk)?;
        assert!(u64::from(count) <= bytes, "{count} of {bytes} bytes were read");
        debug_assert!(buf.as_ref().is_none_or(|buf| buf.len() == count as usize));
        buf.ok_or(ReadError::NoMemory)
    }

    /// Appends to `buf`, which begins at the start of the file, the following bytes of the file, until `end` or the end of the file.
    /// The kernel may return fewer bytes than requested at any offset.
    pub(crate) async fn extend_to(self, buf: Buf, end: u64) -> Result<Buf, ReadError> {
        let mut buf = buf;
        if end > BUF_BYTES_MAX {
            // A header of this size is never written.
            return Err(ReadError::Damaged(Damage::Layout));
        }
        if (buf.capacity() as u64) < end && lacks_buffer(end) {
            drop(buf);
            buf = self.read_some(0, end.next_multiple_of(ALIGN)).await?;
        }
        if (buf.capacity() as u64) < end {
            let mut larger = buffer(end).await?;
            larger.append(&buf);
            buf = larger;
        }
        self.continue_read(buf, 0, end).await
    }

    /// Continues a read that started at `start`, until `buf` has `wanted` bytes or the file ends. `buf` has the bytes
    /// read so far, and room for `wanted` bytes.
    async fn continue_read(self, buf: Buf, start: u64, wanted: u64) -> Result<Buf, ReadError> {
        let mut buf = buf;
        let mut may_start_over = true;
        while (buf.len() as u64) < wanted {
            // A direct read must start at a multiple of the block size, so the bytes of an incomplete block are read
            // again.
            let done = buf.len() as u64 / ALIGN * ALIGN;
            let bytes = (wanted - done).next_multiple_of(ALIGN);
            if std::mem::take(&mut may_start_over) && lacks_buffer(bytes) {
                drop(buf);
                buf = self.read_some(start, wanted.next_multiple_of(ALIGN)).await?;
                continue;
            }
            let more = self.read_some(start + done, bytes).await?;
            let known = buf.len() - done as usize;
            if more.len() > known {
                buf.append(&more[known..]);
                continue;
            }
            let rest = self.read_rest(start + buf.len() as u64, start + wanted).await?;
            if rest.is_empty() {
                break;
            }
            buf.append(&rest);
        }
        Ok(buf)
    }

    /// Reads at `at`, after a read from the start of the block has returned no new bytes. Either the file ends at `at`,
    /// or both earlier reads were short at this byte. A read that starts at `at` distinguishes the two.
    async fn read_rest(self, at: u64, end: u64) -> Result<Buf, ReadError> {
        match self.read_some(at, end - at).await {
            // A direct read cannot start at this offset: then this is treated as the end.
            Err(ReadError::Disk(Errno::INVAL)) => {
                let mut nothing = rt::pool().get(0).ok_or(ReadError::NoMemory)?;
                nothing.set_len(0);
                Ok(nothing)
            }
            read => read,
        }
    }

    /// Reads `wanted` bytes at `at`, in as many reads as necessary; returns fewer only at the end of the file.
    pub(crate) async fn read_full(self, at: u64, wanted: u64) -> Result<Buf, ReadError> {
        // Reads complete blocks, so that a file open for direct I/O can be read; the excess is removed.
        let buf = self.read_some(at, wanted.next_multiple_of(ALIGN)).await?;
        if buf.len() as u64 >= wanted {
            return Ok(buf);
        }
        // Boxed, because this call is rare and its future is large.
        Box::pin(self.continue_read(buf, at, wanted)).await
    }

    /// Reads the bytes between these offsets, up to the end of the file.
    pub(crate) async fn read_all(self, from: u64, to: u64) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while from + (all.len() as u64) < to {
            let at = from + all.len() as u64;
            let part = self.read_some(at, to - at).await?;
            if part.is_empty() {
                break;
            }
            all.extend_from_slice(&part);
        }
        assert!(all.len() as u64 <= to.saturating_sub(from), "no more than requested");
        Ok(all)
    }
}

/// Time limit for waiting for a buffer: the default (`send_timeout`) of file bodies, which wait in the same queue.
const BUFFER_WAIT_MAX: Duration = Duration::from_secs(60);

/// Divisor of the pool's size for the part that is reserved for receiving requests and their bodies.
const SPARED_DIVISOR: u64 = 4;

/// Whether a buffer of this size is not available immediately. A task that has a buffer must not wait for another
/// buffer: two such tasks could wait for each other.
fn lacks_buffer(bytes: u64) -> bool {
    let pool = rt::pool();
    pool.spare_bytes() < bytes + pool.bytes_max() / SPARED_DIVISOR
}

/// Returns an empty buffer of the thread's pool, for this many bytes but at most of the largest class. Waits if
/// necessary: a stored response must not become a miss because many responses are being sent.
pub(crate) async fn buffer(bytes: u64) -> Result<Buf, ReadError> {
    let bytes = bytes.min(BUF_BYTES_MAX) as usize;
    let spared = rt::pool().bytes_max() / SPARED_DIVISOR;
    match rt::select(rt::buffer(bytes, spared), rt::sleep_until(rt::now() + BUFFER_WAIT_MAX)).await {
        Either::Left(mut buf) => {
            buf.set_len(0);
            Ok(buf)
        }
        Either::Right(()) => Err(ReadError::NoMemory),
    }
}
