//! [`Directory`]: the directory of one cache, and the only way to its disk. It makes paths and temporary names, opens,
//! makes, writes, publishes and removes files, and knows whether this process owns it and whether the disk works.
//!
//! It knows no entries and no index. A simulated disk, or a store of another kind, takes its place.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use io::op::{DeviceId, DirEntry, EntryLook, NewFile, OpenHow, Space};
use io::{Buf, DiskVia, Errno, Segments};
use rt::File;
use rt::file::{self, Create, Lock};
use rustix::fs::{CWD, Mode, OFlags};

use crate::config::{Config, Notify};
use crate::disk::health::{Fault, Health, fault_of};
use crate::disk::key_locks::KeyLocks;
use crate::disk::wakeup::Wakeup;
use crate::error::{OpenError, Refused, StoreError};
use crate::key::{Key, Levels, Parents};
use crate::note::Note;
use crate::stats::Counter;

/// The directory of a cache.
pub(crate) struct Directory {
    /// The zone, for messages.
    name: String,
    /// The path as the kernel gets it, without a slash at its end.
    base: Vec<u8>,
    /// Where files are written before they are entries.
    staging: Vec<u8>,
    device: DeviceId,
    /// The disk backend of the configuration.
    via: DiskVia,
    levels: Levels,
    /// Whether written bytes leave the page cache.
    is_uncached: bool,
    /// See [`Config::calls_directly`].
    calls_directly: bool,
    lock: Mutex<Option<Lock>>,
    is_owner: AtomicBool,
    is_stopping: AtomicBool,
    pub(crate) health: Health,
    pub(crate) errors: ErrorCounts,
    /// Locks on the files of keys.
    pub(crate) locks: KeyLocks,
    /// Wakes the manager: it is to stop, or room is short, or the disk has failed.
    pub(crate) manager: Wakeup,
    notify: Notify,
    /// Random: two processes never choose the same nonce or temporary name.
    seed: u64,
    /// The start of all temporary paths of this process.
    temp_start: Vec<u8>,
    count: AtomicU64,
}

/// Failed calls, counted.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) pass_throughs: Counter,
}

/// Permissions of directories: the user of the workers alone, as in nginx.
const DIRECTORY_MODE: u32 = 0o700;
/// Permissions of files, for the same reason.
const FILE_MODE: u32 = 0o600;

/// The lock file.
const LOCK_NAME: &str = "ringroad.lock";
/// The directory of files that are being written.
const STAGING_NAME: &str = "ringroad.tmp";

/// Digits of the largest number of a temporary name.
const DIGITS_MAX: usize = 20;

/// Bytes of directory entries that one operation brings: some 800 names.
const DIR_READ_BYTES: u32 = 32 << 10;

/// Flags to open the file of an entry for reading: the open must neither wait for a pipe of that name nor follow a
/// link.
pub(crate) const READ_FLAGS: OFlags =
    OFlags::from_bits_retain(OFlags::RDONLY.bits() | OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits());

impl Directory {
    /// Makes the directory and takes its lock. These calls may wait for the disk.
    pub(crate) fn open(config: &Config, seed: u64) -> Result<Directory, OpenError> {
        let device = make_directory(&config.path)?;
        let staging = config.path.join(STAGING_NAME);
        // If it cannot be made, the first write reports it and the cache passes through.
        let _ = make_directory(&staging);
        let lock_path = config.path.join(LOCK_NAME);
        let lock = match Lock::try_take(&c_path(lock_path.as_os_str().as_bytes())?) {
            Ok(lock) => lock,
            // It can be read and not written: as if another process owned it.
            Err(Errno::ROFS | Errno::ACCESS) => None,
            Err(errno) => return Err(OpenError::Lock { path: lock_path, errno }),
        };
        let (base, staging) = (trimmed(&config.path), trimmed(&staging));
        let temp_start =
            [&staging, &b"/"[..], format!("{}{seed:016x}.", temp_family(&base)).as_bytes()].concat();
        Ok(Directory {
            name: config.name.clone(),
            base,
            staging,
            device,
            via: config.via,
            levels: config.levels,
            is_uncached: config.direct,
            calls_directly: config.calls_directly,
            is_owner: AtomicBool::new(lock.is_some()),
            lock: Mutex::new(lock),
            is_stopping: AtomicBool::new(false),
            health: Health::default(),
            errors: ErrorCounts::default(),
            locks: KeyLocks::default(),
            manager: Wakeup::default(),
            notify: config.notify.clone(),
            seed,
            temp_start,
            count: AtomicU64::new(0),
        })
    }

    /// Its file system.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// The configured disk backend, or the next best one that this thread has.
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

    /// A number that no other directory of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.seed
    }

    /// How its entries are spread over directories.
    pub(crate) fn levels(&self) -> Levels {
        self.levels
    }

    /// A number for a new entry that no other has.
    pub(crate) fn nonce(&self) -> u64 {
        // An odd factor keeps different numbers different.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Paths.
impl Directory {
    /// The path of a key's file, and where its parent directories end.
    pub(crate) fn path_of(&self, key: &Key) -> (CString, Parents) {
        // With the zero byte at its end, so that it is not moved when it gets that.
        let mut path = Vec::with_capacity(self.base.len() + self.levels.path_len() + 1);
        path.extend_from_slice(&self.base);
        let parents = self.levels.push_path(&mut path, key);
        debug_assert!(path.len() == self.base.len() + self.levels.path_len());
        (checked(path), parents)
    }

    /// The same below the directory.
    pub(crate) fn name_of(&self, key: &Key) -> CString {
        let mut path = Vec::with_capacity(48);
        self.levels.push_path(&mut path, key);
        // It begins with a slash, as a path behind a directory does.
        path.remove(0);
        checked(path)
    }

    /// A path below the directory.
    pub(crate) fn path_in(&self, name: &[u8]) -> CString {
        checked([&self.base, &b"/"[..], name].concat())
    }

    /// The path of the directory itself.
    pub(crate) fn path(&self) -> CString {
        self.path_in(b".")
    }

    /// The directory of files that are being written.
    pub(crate) fn staging_path(&self) -> CString {
        checked(self.staging.clone())
    }

    /// An unused temporary path.
    pub(crate) fn temp_path(&self) -> CString {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut path = Vec::with_capacity(self.temp_start.len() + DIGITS_MAX + 1);
        path.extend_from_slice(&self.temp_start);
        write!(path, "{number}").expect("a vector takes it");
        checked(path)
    }

    /// Whether a name below the staging directory is a temporary file of this cache that an earlier process has left:
    /// other caches may use the same directory.
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
        File::open(None, path, how, self.device, self.via()).await
    }

    /// Opens the directory at this path.
    pub(crate) async fn open_dir(&self, path: CString) -> Result<File, Errno> {
        self.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW).await
    }

    /// The next entries of a directory; none at its end.
    pub(crate) async fn read_dir(&self, dir: &File) -> Result<Vec<DirEntry>, Errno> {
        dir.read_dir(DIR_READ_BYTES, EntryLook::Kind, self.device, self.via()).await
    }

    /// Makes a file, or opens it to read and write.
    pub(crate) async fn create(&self, path: CString, create: Create) -> Result<File, Errno> {
        File::create(path, create, FILE_MODE, self.device, self.via()).await
    }

    /// Makes a directory; one that is there is fine.
    pub(crate) async fn make_dir(&self, path: CString) -> Result<(), Errno> {
        match file::mkdir(path, DIRECTORY_MODE, self.device, self.via()).await {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    /// Writes all of `data` at `offset`.
    pub(crate) async fn write(&self, file: &File, offset: u64, data: Segments) -> Result<(), Errno> {
        let wanted = data.len() as u64;
        let written = file.write_segments_at(offset, data, self.device, self.via()).await.0?;
        assert!(written == wanted, "{written} of {wanted} bytes were written");
        Ok(())
    }

    /// The same for a buffer.
    pub(crate) async fn write_buf(&self, file: &File, offset: u64, buf: Buf) -> Result<(), Errno> {
        file.write_at(offset, buf, self.device, self.via()).await.0.map(drop)
    }

    /// Makes a whole file, or finishes `begun`, and gives it the name `to` in one operation. Missing parents are made.
    pub(crate) async fn publish(
        &self,
        to: (CString, Parents),
        temp: CString,
        begun: Option<&File>,
        data: Vec<Segments>,
    ) -> Result<(), Errno> {
        let (to, parents) = to;
        let begun = begun.map(|file| file.fd().clone());
        let new = NewFile { temp, to, begun, mode: FILE_MODE, data, uncached: self.is_uncached };
        let (done, back) = File::put(Box::new(new), self.device, self.via()).await;
        if let (Err(Errno::NOENT), Some(new)) = (done, back) {
            Box::pin(self.make_parents(&new.to, parents)).await?;
            return File::put(new, self.device, self.via()).await.0;
        }
        done
    }

    async fn make_parents(&self, path: &CString, parents: Parents) -> Result<(), Errno> {
        // The write reports a failure.
        let _ = self.make_dir(self.staging_path()).await;
        for &end in parents.ends() {
            let parent = CString::new(&path.as_bytes()[..end]).map_err(|_| Errno::INVAL)?;
            self.make_dir(parent).await?;
        }
        Ok(())
    }

    /// Gives a file another name, in the place of the file that has it.
    pub(crate) async fn rename(&self, from: CString, to: CString) -> Result<(), Errno> {
        file::rename(from, to, self.device, self.via()).await
    }

    /// Removes a file.
    pub(crate) async fn unlink(&self, path: CString) -> Result<(), Errno> {
        file::unlink(path, self.device, self.via()).await
    }

    /// Brings a file to the device.
    pub(crate) async fn sync(&self, file: &File) -> Result<(), Errno> {
        file.sync(self.device, self.via()).await
    }

    /// Brings the names in the directory to the device.
    pub(crate) async fn sync_names(&self) -> Result<(), Errno> {
        self.sync(&self.open_dir(self.path()).await?).await
    }

    /// Brings everything on its file system to the device, removals too.
    pub(crate) async fn sync_all(&self) -> Result<(), Errno> {
        let directory = self.open_dir(self.path()).await?;
        let fd = rustix::io::fcntl_dupfd_cloexec(&directory, 0)?;
        rt::spawn_blocking(move || rustix::fs::syncfs(fd)).await.unwrap_or(Err(Errno::IO))
    }

    /// Space on its file system.
    pub(crate) async fn space(&self) -> Result<Space, Errno> {
        file::space(self.path(), self.device, self.via()).await
    }

    /// See [`Config::calls_directly`].
    pub(crate) fn calls_directly(&self) -> bool {
        self.calls_directly
    }

    /// Whether written bytes leave the page cache.
    pub(crate) fn is_uncached(&self) -> bool {
        self.is_uncached
    }
}

/// The state of the disk.
impl Directory {
    /// Notifies the operator.
    pub(crate) fn note(&self, note: impl FnOnce(String) -> Note) {
        (self.notify.0)(note(self.name.clone()));
    }

    /// A write, rename or removal failed.
    pub(crate) fn write_failed(&self, doing: &'static str, errno: Errno) {
        self.errors.writes.count();
        if self.health.write_failed(errno, now_ms()) {
            self.errors.pass_throughs.count();
            self.note(|name| Note::PassThrough { name, doing, errno });
            // The manager plans a trial.
            self.manager.wake();
        }
    }

    /// A read failed.
    pub(crate) fn read_failed(&self, doing: &'static str, errno: Errno) -> StoreError {
        self.errors.reads.count();
        if self.health.read_failed(errno, now_ms()) {
            self.errors.pass_throughs.count();
            self.note(|name| Note::PassThrough { name, doing, errno });
        }
        StoreError::Disk { doing, errno }
    }

    /// Opening a file failed: for lack of descriptors, or as a read.
    pub(crate) fn open_failed(&self, errno: Errno) -> StoreError {
        let doing = "opening an entry";
        match fault_of(errno) {
            Fault::Process => StoreError::Disk { doing, errno },
            Fault::Disk => self.read_failed(doing, errno),
        }
    }

    /// A read succeeded.
    pub(crate) fn read_worked(&self) {
        if self.health.read_worked() {
            self.note(|name| Note::Recovered { name });
        }
    }

    /// Whether this process may write now.
    pub(crate) fn may_write(&self) -> Result<(), Refused> {
        if self.is_stopping() {
            return Err(Refused::Stopping);
        }
        self.may_finish()?;
        if self.health.can_write() { Ok(()) } else { Err(Refused::PassThrough) }
    }

    /// Whether an entry that is complete may still come: not once another process may own the directory.
    pub(crate) fn may_finish(&self) -> Result<(), Refused> {
        if self.is_owner() { Ok(()) } else { Err(Refused::NotOwner) }
    }
}

/// Ownership.
impl Directory {
    /// Whether this process fills, evicts and purges.
    pub(crate) fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Acquire)
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

    /// Takes the lock when its holder is gone; returns whether this process has it now.
    pub(crate) fn try_lock(&self) -> bool {
        let mut lock = self.lock_guard();
        if lock.is_none() {
            *lock = Lock::try_take(&self.path_in(LOCK_NAME.as_bytes())).ok().flatten();
        }
        lock.is_some()
    }

    /// From here on this process may write.
    pub(crate) fn begin_owning(&self) {
        assert!(self.lock_guard().is_some(), "the owner has the lock");
        self.is_owner.store(true, Ordering::Release);
    }

    /// From here on nothing new is written or removed.
    pub(crate) fn end_owning(&self) {
        self.is_owner.store(false, Ordering::Release);
    }

    /// Gives the directory to another process.
    pub(crate) fn unlock(&self) {
        assert!(!self.is_owner(), "nothing is written without the lock");
        let lock = self.lock_guard().take();
        drop(lock);
    }

    fn lock_guard(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time of day in milliseconds since 1970: the clock of entries on disk.
pub(crate) fn now_ms() -> u64 {
    rt::wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// The time of day in seconds since 1970, as the index has it.
pub(crate) fn now_s() -> u32 {
    (now_ms() / 1000) as u32
}

/// The start of all temporary names of a cache, whichever process made them.
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

fn c_path(path: &[u8]) -> Result<CString, OpenError> {
    CString::new(path).map_err(|_| OpenError::Path(PathBuf::from(std::ffi::OsStr::from_bytes(path))))
}

/// Paths consist of the configured directories, checked by [`Directory::open`], and of digits.
fn checked(path: Vec<u8>) -> CString {
    CString::new(path).expect("the directories of a cache have no zero byte")
}

/// Makes a directory if it is missing and returns its device.
fn make_directory(path: &Path) -> Result<DeviceId, OpenError> {
    let name = c_path(path.as_os_str().as_bytes())?;
    let failed = |errno| OpenError::Directory { path: path.to_owned(), errno };
    match rustix::fs::mkdirat(CWD, &name, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        // A directory that is there can be on a file system that is read only.
        Err(Errno::ROFS | Errno::ACCESS) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let opened = rustix::fs::openat(CWD, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let stat = opened.and_then(rustix::fs::fstat).map_err(failed)?;
    Ok(DeviceId(stat.st_dev))
}
