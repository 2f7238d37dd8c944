//! Loading: all folders are read side by side, so that a start knows every entry soon. Until then lookups ask the disk.
//!
//! Nothing is opened: a name is a key, and what an entry is, its first lookup finds out. Names come first, as all
//! lookups need no more than these; sizes, which the limits and the snapshot need, come after them (`measure`).
//! Leftovers of fills that a crash has ended are removed on the way. A folder that cannot be read is not taken for an empty one: it is tried again, and
//! until it was read the cache counts as not loaded, so that lookups go on asking the disk.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io::Errno;
use io::op::{DirEntry, EntryLook, OpenHow};
use rt::File;
use rt::file;
use rt::local::{Gauge, Semaphore};
use rustix::fs::{FileType, OFlags};

use crate::config::Pace;
use crate::index::{BLOCK_BYTES, Cursor};
use crate::key::Key;
use crate::measure::{Named, SIZES_LEFT_MAX};
use crate::note::Note;
use crate::snapshot::{Loaded, confirm};
use crate::store::{Store, now_s};

/// Folders that are read at once. Reading one is the work of a thread, of which a device has some.
const FOLDERS_MAX: usize = 16;

/// Bytes of entries that one operation brings: some 800 names.
const READ_BYTES: u32 = 32 << 10;

/// Entries that are looked at under the lock of a shard.
const SCAN_MAX: usize = 512;

/// A walk under way.
struct Walk {
    store: Arc<Store>,
    folders: Semaphore,
    gauge: Gauge,
    pace: Paced,
    unconfirmed_up_to: u32,
    unread: RefCell<Vec<(Folder, Errno)>>,
    /// Entries whose sizes are still to be looked at.
    named: RefCell<Vec<Named>>,
    /// One list of them is looked at at a time.
    measuring: Semaphore,
}

/// A folder of entries, or of such folders.
#[derive(Debug)]
struct Folder {
    path: CString,
    /// The names of the folders that lead to it.
    digits: Vec<Vec<u8>>,
}

/// Folders that could not be read. What lies in them is neither known nor counted.
#[derive(Debug)]
pub(crate) struct Unread {
    folders: Vec<Folder>,
    /// What was known before this version is known from a snapshot only.
    unconfirmed_up_to: u32,
    begun: Instant,
    pause: Duration,
    /// When they are tried again.
    pub(crate) due: Instant,
}

/// The pause before folders that could not be read are tried again, doubled each time.
const UNREAD_FIRST: Duration = Duration::from_secs(1);

/// The longest such pause: a few calls a minute harm nobody.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// Keeps a pace: files at a time and time at a time, then a pause.
pub(crate) struct Paced {
    pace: Pace,
    files: std::cell::Cell<u32>,
    begun: std::cell::Cell<Instant>,
}

impl Paced {
    pub(crate) fn new(pace: Pace) -> Paced {
        Paced { pace, files: std::cell::Cell::new(0), begun: std::cell::Cell::new(rt::now()) }
    }

    /// Counts files that were worked on, and pauses when it is time.
    pub(crate) async fn worked(&self, files: u32) {
        self.files.set(self.files.get().saturating_add(files));
        let took = rt::now().saturating_duration_since(self.begun.get());
        if self.pace.sleep.is_zero() || (self.files.get() < self.pace.files && took < self.pace.threshold) {
            return;
        }
        self.files.set(0);
        rt::sleep_until(rt::now() + self.pace.sleep).await;
        self.begun.set(rt::now());
    }
}

impl Store {
    /// Makes all entries known; answers the folders for which that has to be tried again.
    pub(crate) async fn load(self: &Arc<Store>) -> Option<Unread> {
        let begun = rt::now();
        self.remove_leftovers().await;
        if self.load_snapshot().await == Loaded::All {
            self.all_known(begun, true);
            self.all_measured();
            return None;
        }
        if self.is_stopping() {
            return None;
        }
        // What was written since the start has versions above this one, which belongs to nothing.
        let unconfirmed_up_to = self.index.version();
        let top = Folder { path: self.path_in(b"."), digits: Vec::new() };
        let unread =
            Unread { folders: vec![top], unconfirmed_up_to, begun, pause: UNREAD_FIRST / 2, due: begun };
        let unread = self.walk(unread).await?;
        self.note(Note::Unreadable {
            name: self.name(),
            path: std::ffi::OsString::from_vec(unread.0.path.as_bytes().to_vec()).into(),
            errno: unread.1,
            folders: unread.2.folders.len() as u64,
        });
        // The limits hold for what is known, and the log says so: a cache that stores nothing because of one folder would
        // help nobody.
        self.space.loaded();
        Some(unread.2)
    }

    /// Tries folders again that could not be read.
    pub(crate) async fn load_rest(self: &Arc<Store>, unread: Unread) -> Option<Unread> {
        self.walk(unread).await.map(|(_, _, unread)| unread)
    }

    /// Reads folders and all that is in them; answers those that could not be read, and the first of them with the reason.
    async fn walk(self: &Arc<Store>, wanted: Unread) -> Option<(Folder, Errno, Unread)> {
        let walk = Rc::new(Walk {
            store: Arc::clone(self),
            folders: Semaphore::new(FOLDERS_MAX),
            gauge: Gauge::new(),
            pace: Paced::new(self.config.loader),
            unconfirmed_up_to: wanted.unconfirmed_up_to,
            unread: RefCell::default(),
            named: RefCell::default(),
            measuring: Semaphore::new(1),
        });
        wanted.folders.into_iter().for_each(|folder| walk.begin_folder(folder));
        walk.gauge.none_left().await;
        if self.is_stopping() {
            return None;
        }
        let (unread, named) = (walk.unread.take(), walk.named.take());
        if let Some((first, errno)) = unread.first() {
            let first = Folder { path: first.path.clone(), digits: Vec::new() };
            let (errno, pause) = (*errno, (wanted.pause * 2).min(UNREAD_MAX));
            let folders = unread.into_iter().map(|(folder, _)| folder).collect();
            self.measure(named).await;
            let due = rt::now() + pause;
            return Some((first, errno, Unread { folders, pause, due, ..wanted }));
        }
        self.forget_unconfirmed(wanted.unconfirmed_up_to);
        self.all_known(wanted.begun, false);
        self.measure(named).await;
        if !self.is_stopping() {
            self.all_measured();
            self.note(Note::Measured {
                name: self.name(),
                bytes: self.space.used() * BLOCK_BYTES,
                time_ms: since_ms(wanted.begun),
            });
        }
        None
    }

    /// From here on what is not in the index is not there.
    fn all_known(&self, begun: Instant, from_snapshot: bool) {
        if self.is_stopping() {
            return;
        }
        if self.index.is_empty() {
            self.settling.surveyed();
        }
        self.is_loaded.store(true, Ordering::Release);
        self.note(Note::Loaded {
            name: self.name(),
            entries: self.index.len() as u64,
            time_ms: since_ms(begun),
            from_snapshot,
        });
    }

    /// From here on the limits hold for what is known.
    fn all_measured(&self) {
        self.space.loaded();
        self.is_measured.store(true, Ordering::Release);
    }

    /// Forgets what only the snapshot knew: all folders were read, and it is in none of them.
    fn forget_unconfirmed(&self, unconfirmed_up_to: u32) {
        let mut cursor = Some(Cursor::default());
        while let Some(here) = cursor {
            let mut gone = Vec::new();
            cursor = self.index.scan(here, SCAN_MAX, |key, known| {
                if known.blocks > 0 && known.version <= unconfirmed_up_to {
                    gone.push((*key, known.version));
                }
            });
            for (key, version) in gone {
                self.index.remove(&key, Some(version));
            }
        }
    }

    /// Removes temporary files of processes that are gone.
    async fn remove_leftovers(self: &Arc<Store>) {
        let Ok(folder) = CString::new(self.temp.clone()) else { return };
        let Ok(opened) = self.open_folder(folder.clone()).await else { return };
        let ours = self.temp_prefix();
        loop {
            let read = opened.read_dir(READ_BYTES, EntryLook::Kind, self.device, self.via()).await;
            let Ok(entries) = read else { return };
            if entries.is_empty() {
                return;
            }
            for entry in entries {
                let is_left = entry.name.starts_with(self.temp_family().as_bytes())
                    && !entry.name.starts_with(ours.as_bytes());
                let path = CString::new([folder.as_bytes(), b"/", &entry.name].concat());
                if let (true, Ok(path)) = (is_left, path) {
                    // One that cannot be removed is tried again at the next start.
                    let _ = file::unlink(path, self.device, self.via()).await;
                }
            }
        }
    }

    pub(crate) async fn open_folder(&self, path: CString) -> Result<File, Errno> {
        let flags = (OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW).bits() as i32;
        File::open(None, path, OpenHow { flags, ..OpenHow::default() }, self.device, self.via()).await
    }
}

impl Walk {
    /// Starts a task that reads a folder.
    fn begin_folder(self: &Rc<Walk>, folder: Folder) {
        let (walk, counted) = (Rc::clone(self), self.gauge.enter());
        rt::spawn(async move {
            let permit = walk.folders.acquire().await;
            match walk.read_folder(&folder).await {
                // It has gone since its name was read, with all that was in it.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => walk.unread.borrow_mut().push((folder, errno)),
            }
            drop(permit);
            drop(counted);
        });
    }

    async fn read_folder(self: &Rc<Walk>, Folder { path, digits }: &Folder) -> Result<(), Errno> {
        let store = &self.store;
        let levels = store.config.levels;
        let is_leaf = digits.len() == levels.digits().len();
        let folder = store.open_folder(path.clone()).await?;
        let mut inner = Vec::new();
        loop {
            let entries = folder.read_dir(READ_BYTES, EntryLook::Kind, store.device, store.via()).await?;
            if entries.is_empty() || store.is_stopping() {
                break;
            }
            let (count, now_s) = (entries.len() as u32, now_s());
            for entry in entries {
                if is_leaf {
                    self.enter(&entry, digits, now_s);
                } else if is_folder(&entry) && is_digits(&entry.name, levels.digits()[digits.len()]) {
                    let path = CString::new([path.as_bytes(), b"/", &entry.name].concat());
                    let mut digits = digits.clone();
                    digits.push(entry.name.to_vec());
                    inner.push(Folder { path: path.map_err(|_| Errno::INVAL)?, digits });
                }
            }
            self.pace.worked(count).await;
            if self.named.borrow().len() >= SIZES_LEFT_MAX {
                let _turn = self.measuring.acquire().await;
                // Whoever had the turn before may have taken it.
                let is_full = self.named.borrow().len() >= SIZES_LEFT_MAX;
                let named = if is_full { self.named.take() } else { Vec::new() };
                store.measure(named).await;
            }
        }
        // Not before it was read to its end: what is tried again as a whole must not be under way in parts.
        inner.into_iter().for_each(|folder| self.begin_folder(folder));
        Ok(())
    }

    /// Enters a file that lies where the file of its key has to lie.
    fn enter(&self, entry: &DirEntry, digits: &[Vec<u8>], now_s: u32) {
        let Some(key) = Key::from_hex(&entry.name) else { return };
        let mut end = entry.name.len();
        for folder in digits {
            if entry.name[end - folder.len()..end] != **folder {
                return;
            }
            end -= folder.len();
        }
        let is_file = FileType::from_raw_mode(entry.kind) == FileType::RegularFile;
        if is_file && confirm(&self.store, &key, self.unconfirmed_up_to, now_s) {
            self.named.borrow_mut().push(Named { inode: entry.inode, key });
        }
    }
}

fn since_ms(begun: Instant) -> u64 {
    rt::now().saturating_duration_since(begun).as_millis() as u64
}

fn is_folder(entry: &DirEntry) -> bool {
    FileType::from_raw_mode(entry.kind) == FileType::Directory
}

fn is_digits(name: &[u8], count: u8) -> bool {
    name.len() == usize::from(count) && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The longest time that anything of a store sleeps without looking whether it is to stop.
pub(crate) const NAP: Duration = Duration::from_millis(500);
