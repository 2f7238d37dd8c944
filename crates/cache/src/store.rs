//! One cache: [`Store`], shared by all threads. What it does is spread over `find`, `fill`, `change`, `remove`,
//! `purging` and `run`; here are its parts and how it is opened.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Instant, UNIX_EPOCH};

use io::op::DeviceId;
use io::page_cache::{PageCacheAdmission, TryPredictor};
use io::{DiskVia, Errno};
use rt::file::Lock;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::rand::GetRandomFlags;

use crate::backlog::Backlog;
use crate::chunks::Recent;
use crate::config::{Access, Config};
use crate::elsewhere::Elsewhere;
use crate::error::{OpenError, StoreError};
use crate::find::Image;
use crate::health::Health;
use crate::index::{BLOCK_BYTES, Index};
use crate::key::{Folders, Key};
use crate::leases::Leases;
use crate::memory::Memory;
use crate::note::Note;
use crate::order::{Orders, Ticket};
use crate::purge::{Fate, Purges, Subject};
use crate::settling::Settling;
use crate::space::{Space, Used};
use crate::stats::{Counters, Stats};

/// One cache. Every call that is async is made on a thread with a runtime.
pub struct Store {
    pub(crate) config: Config,
    /// The folder as the kernel gets it, without a slash at its end.
    base: Vec<u8>,
    /// Where entries are written before they are whole.
    pub(crate) temp: Vec<u8>,
    pub(crate) device: DeviceId,
    pub(crate) index: Index,
    pub(crate) memory: Memory<Image>,
    pub(crate) recent: Recent,
    /// When the first epoch began: when it was first asked for.
    began: OnceLock<Instant>,
    purges: RwLock<Purges>,
    pub(crate) space: Space,
    pub(crate) health: Health,
    pub(crate) elsewhere: Elsewhere,
    pub(crate) leases: Leases,
    /// Chunks that are being added to entries.
    pub(crate) extending: Leases,
    /// Who decides where a variant lies.
    pub(crate) placing: Leases,
    /// The order of the fetches that are under way.
    orders: Arc<Orders>,
    /// Entries that are whole and wait for the disk.
    pub(crate) backlog: Backlog,
    pub(crate) counters: Counters,
    lock: Mutex<Option<Lock>>,
    is_owner: AtomicBool,
    pub(crate) is_loaded: AtomicBool,
    pub(crate) is_measured: AtomicBool,
    is_stopping: AtomicBool,
    /// Whether paths of entries lately were in the kernel's lookup cache.
    pub(crate) names: TryPredictor,
    /// Whether entries lately were in the page cache.
    pub(crate) data: TryPredictor,
    /// Whether entries that were not in the page cache, and were let in, stay there.
    pub(crate) admission: PageCacheAdmission,
    /// Removals under way.
    pub(crate) removals: AtomicUsize,
    /// Wakes the manager: it is to stop, or room is short.
    pub(crate) bell: crate::bell::Bell,
    /// Random, so that nobody can make two entries with one nonce, nor temporary names meet those of another process.
    seed: u64,
    /// What temporary names begin with: each fill needs one, and the folder's digest is in it.
    temp_start: OnceLock<Vec<u8>>,
    count: AtomicU64,
    pub(crate) purge_log: crate::purging::LogState,
    /// Which purges may be forgotten.
    pub(crate) settling: Settling,
}

/// Makes of the stored `Vary` ([`crate::Meta::vary`]) what the request says to it ([`crate::Meta::variant`]).
pub type Selector<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Permissions of folders and files: the user of the workers alone, as in nginx.
pub(crate) const FOLDER_MODE: u32 = 0o700;
/// See [`FOLDER_MODE`].
pub(crate) const FILE_MODE: u32 = 0o600;

/// Of so many reads of entries that have not stayed in memory one is let in where entries stay: it costs an eighth of the
/// reads a little, and soon all is in memory.
const LET_IN_OF_MIN: u32 = 8;

/// What is ours in the folder and no entry.
pub(crate) const LOCK_NAME: &str = "ringroad.lock";
/// Entries that are being written.
const TEMP_NAME: &str = "ringroad.tmp";

/// Digits of the largest number of a temporary name.
const DIGITS_MAX: usize = 20;

impl Store {
    /// Opens a cache: makes its folder, takes its lock and reads its purges. These calls may wait for the disk, so it is
    /// for a start, or for [`rt::offload`]; the rest is [`Store::run`]'s.
    pub fn open(config: Config) -> Result<Arc<Store>, OpenError> {
        if let Some(refusal) = config.engine.refusal() {
            return Err(OpenError::Engine(refusal));
        }
        let device = make_folder(&config.path)?;
        let temp = config.path.join(TEMP_NAME);
        // Where it cannot be made, the first write says so and the cache passes through.
        let _ = make_folder(&temp);
        let lock_path = config.path.join(LOCK_NAME);
        let lock = match Lock::try_take(&c_path(lock_path.as_os_str().as_bytes())?) {
            Ok(lock) => lock,
            // It can be read and not written: as if another process did that.
            Err(Errno::ROFS | Errno::ACCESS) => None,
            Err(errno) => return Err(OpenError::Lock { path: lock_path, errno }),
        };
        if lock.is_some() {
            crate::snapshot::set_aside(&trimmed(&config.path));
        }
        let mut random = [0; 24];
        // The call fails only where the kernel has no such call, and then nothing secret is lost.
        let _ = rustix::rand::getrandom(&mut random, GetRandomFlags::empty());
        let word = |at: usize| u64::from_le_bytes(random[at..at + 8].try_into().expect("eight bytes"));
        let seed = [word(0), word(8)];
        let (purges, purge_log) = crate::purging::open(&config.path)?;
        let used = Used::default();
        let store = Store {
            base: trimmed(&config.path),
            temp: trimmed(&temp),
            device,
            index: Index::new(config.keys_zone, seed, used.clone()),
            memory: Memory::new(config.memory, seed),
            recent: Recent::default(),
            began: OnceLock::new(),
            purges: RwLock::new(purges),
            space: Space::new(config.max_size, config.min_free, used),
            health: Health::default(),
            elsewhere: Elsewhere::default(),
            leases: Leases::default(),
            extending: Leases::default(),
            placing: Leases::default(),
            orders: Arc::default(),
            backlog: Backlog::default(),
            counters: Counters::default(),
            is_owner: AtomicBool::new(lock.is_some()),
            lock: Mutex::new(lock),
            is_loaded: AtomicBool::new(false),
            is_measured: AtomicBool::new(false),
            names: TryPredictor::default(),
            data: TryPredictor::default(),
            admission: PageCacheAdmission::new(LET_IN_OF_MIN),
            is_stopping: AtomicBool::new(false),
            removals: AtomicUsize::new(0),
            bell: crate::bell::Bell::default(),
            seed: word(16),
            temp_start: OnceLock::new(),
            count: AtomicU64::new(0),
            purge_log,
            settling: Settling::default(),
            config,
        };
        if !store.is_owner() {
            store.note(Note::NotOwner { name: store.name(), path: store.config.path.clone() });
        }
        Ok(Arc::new(store))
    }

    /// Ends [`Store::run`], which saves the index first and gives the folder to another process. Fills under way are
    /// refused from here on; lookups go on.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The file system that entries are on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// A number that grows with every purge.
    pub fn sequence(&self) -> u64 {
        self.purges().sequence()
    }

    /// The place of a fetch that begins now among all fetches of its key, for [`crate::New::ticket`].
    pub fn ticket(&self, key: &Key) -> Ticket {
        self.orders.take(*key)
    }

    /// What purges have made of a response that is not in its place yet, as they do of an entry.
    pub fn fate(&self, key: &Key, text: &[u8], tags: &[u8], sequence: u64) -> Option<Fate> {
        self.purges().fate(&Subject { primary: &key.0, key: text, tags, sequence })
    }

    /// Counts that a key which has no entry was asked for, and answers how often by now (`proxy_cache_min_uses`).
    pub fn count_use(&self, key: &Key) -> u32 {
        u32::from(self.index.count_use(&key.0, now_s()))
    }

    /// Its numbers.
    pub fn stats(&self) -> Stats {
        Stats {
            entries: self.index.len() as u64,
            entries_max: self.config.entries_max(),
            bytes: self.space.used() * BLOCK_BYTES,
            memory_bytes: self.memory.bytes(),
            purges_kept: self.purges().len() as u64,
            is_loaded: self.is_loaded(),
            is_measured: self.is_measured(),
            is_owner: self.is_owner(),
            is_pass_through: !self.health.can_write(),
            ..self.counters.stats()
        }
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether this process fills, evicts and purges.
    pub fn is_owner(&self) -> bool {
        self.is_owner.load(Ordering::Acquire)
    }

    /// Whether all entries on disk are known.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Whether their sizes are known too, which come later.
    pub fn is_measured(&self) -> bool {
        self.is_measured.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// The number of the epoch of [`Config::verify`]; never 0. After 65 535 epochs the numbers begin anew, which is seven
    /// years by default.
    pub(crate) fn epoch(&self) -> u16 {
        let Some(length) = self.config.verify else { return 1 };
        let now = rt::now();
        let passed = now.saturating_duration_since(*self.began.get_or_init(|| now));
        1 + (passed.as_millis() / length.as_millis().max(1) % u128::from(u16::MAX)) as u16
    }

    /// The disk backend that was asked for, or the next best one that this thread has.
    pub(crate) fn via(&self) -> DiskVia {
        let caps = rt::caps();
        let has = |via: DiskVia| match via {
            DiskVia::Ring => caps.disk_ring,
            DiskVia::Libaio => caps.disk_libaio,
            DiskVia::Pool(number) => number < caps.pools,
            DiskVia::Sync => true,
        };
        let choices = [self.config.via, DiskVia::Ring, DiskVia::Pool(0), DiskVia::Sync];
        choices.into_iter().find(|via| has(*via)).unwrap_or(DiskVia::Sync)
    }

    /// How entries are read where nothing else is said.
    pub(crate) fn access(&self) -> Access {
        Access {
            via: self.via(),
            direct_from: self.config.direct.then_some(0),
            direct_via: self.via(),
            sends_files: false,
            has_room: true,
            calls_directly: self.config.calls_directly,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.config.name.clone()
    }

    pub(crate) fn note(&self, note: Note) {
        (self.config.notify.0)(note);
    }

    pub(crate) fn purges(&self) -> RwLockReadGuard<'_, Purges> {
        self.purges.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn purges_mut(&self) -> RwLockWriteGuard<'_, Purges> {
        self.purges.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a key's file and its folders.
    pub(crate) fn path_of(&self, key: &Key) -> (CString, Folders) {
        // With the zero byte at its end, so that it is not moved when it gets that.
        let mut path = Vec::with_capacity(self.base.len() + self.config.levels.path_len() + 1);
        path.extend_from_slice(&self.base);
        let folders = self.config.levels.push_path(&mut path, key);
        (checked(path), folders)
    }

    /// The same below the cache's folder.
    pub(crate) fn name_of(&self, key: &Key) -> CString {
        let mut path = Vec::with_capacity(48);
        self.config.levels.push_path(&mut path, key);
        // It begins with a slash, as what is put behind a folder.
        path.remove(0);
        checked(path)
    }

    /// A path below the cache's folder.
    pub(crate) fn path_in(&self, name: &[u8]) -> CString {
        checked([&self.base, &b"/"[..], name].concat())
    }

    /// A temporary name that nobody has.
    pub(crate) fn temp_path(&self) -> CString {
        let start = || [&self.temp, &b"/"[..], self.temp_prefix().as_bytes()].concat();
        let start = self.temp_start.get_or_init(start);
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        // With the zero byte at its end, as above.
        let mut path = Vec::with_capacity(start.len() + DIGITS_MAX + 1);
        path.extend_from_slice(start);
        write!(path, "{number}").expect("a vector takes it");
        checked(path)
    }

    /// What the names of temporary files of this cache begin with, whatever process wrote them: other caches may use
    /// the same folder.
    pub(crate) fn temp_family(&self) -> String {
        let digits = Key::of(&self.base).hex();
        format!("{}-", String::from_utf8_lossy(&digits[..16]))
    }

    /// What those of this process begin with.
    pub(crate) fn temp_prefix(&self) -> String {
        format!("{}{:016x}.", self.temp_family(), self.seed)
    }

    /// A number for a new entry that no other has.
    pub(crate) fn nonce(&self) -> u64 {
        // An odd factor keeps different numbers different.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A write, rename or removal failed.
    pub(crate) fn write_failed(&self, doing: &'static str, errno: Errno) {
        self.counters.write_errors.count();
        if self.health.write_failed(errno, now_ms()) {
            self.counters.pass_throughs.count();
            self.note(Note::PassThrough { name: self.name(), doing, errno });
            // The manager plans a trial.
            self.bell.ring();
        }
    }

    /// A read failed.
    pub(crate) fn read_failed(&self, doing: &'static str, errno: Errno) -> StoreError {
        self.counters.read_errors.count();
        if self.health.read_failed(errno, now_ms()) {
            self.counters.pass_throughs.count();
            self.note(Note::PassThrough { name: self.name(), doing, errno });
        }
        StoreError::Disk { doing, errno }
    }

    /// Takes the lock when its holder is gone; answers whether this process owns the folder now.
    pub(crate) fn try_own(&self) -> bool {
        let mut lock = self.lock_guard();
        if lock.is_none() {
            *lock = Lock::try_take(&self.path_in(LOCK_NAME.as_bytes())).ok().flatten();
        }
        lock.is_some()
    }

    /// From here on this process may write.
    pub(crate) fn begin_owning(&self) {
        self.is_owner.store(true, Ordering::Release);
    }

    /// From here on nothing new is written or removed.
    pub(crate) fn end_owning(&self) {
        self.is_owner.store(false, Ordering::Release);
    }

    /// Gives the folder to another process.
    pub(crate) fn unlock(&self) {
        let lock = self.lock_guard().take();
        drop(lock);
    }

    /// A number that no other store of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.seed
    }

    /// The folder as the kernel gets it.
    pub(crate) fn base(&self) -> &[u8] {
        &self.base
    }

    fn lock_guard(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time of day in milliseconds since 1970: the clock of what is on disk.
pub(crate) fn now_ms() -> u64 {
    rt::wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// The time of day in seconds since 1970, as the index has it.
pub(crate) fn now_s() -> u32 {
    (now_ms() / 1000) as u32
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

/// Paths are made of the configured folders, looked at by [`Store::open`], and of digits.
fn checked(path: Vec<u8>) -> CString {
    CString::new(path).expect("the folders of a cache have no zero byte")
}

/// Makes a folder if it is missing and answers its device.
fn make_folder(path: &Path) -> Result<DeviceId, OpenError> {
    let name = c_path(path.as_os_str().as_bytes())?;
    let failed = |errno| OpenError::Folder { path: path.to_owned(), errno };
    match rustix::fs::mkdirat(CWD, &name, Mode::from_raw_mode(FOLDER_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        // A folder that is there can be on a file system that is read only.
        Err(Errno::ROFS | Errno::ACCESS) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let folder = rustix::fs::openat(CWD, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let stat = folder.and_then(rustix::fs::fstat).map_err(failed)?;
    Ok(DeviceId(stat.st_dev))
}
