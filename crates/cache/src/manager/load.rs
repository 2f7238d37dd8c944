//! Loading: reads all directories concurrently to find every entry soon after a start. Until then, lookups check the
//! disk.
//!
//! No file is opened: the file name is the key, and the first lookup reads the entry. Names are read first, because
//! lookups need only them; sizes, which the limits and the snapshot need, are determined afterwards (`measure`).
//! Temporary files of fills that a crash has interrupted are removed. A directory that cannot be read is not treated as
//! empty: it is retried. Until it was read, the cache counts as not loaded, so that lookups still check the disk.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io::Errno;
use io::facts::DirEntry;
use rt::local::{Semaphore, WaitGroup};
use rustix::fs::FileType;

use crate::config::Pace;
use crate::disk::directory::{Directory, now_s};
use crate::entries::Entries;
use crate::index::BLOCK_BYTES;
use crate::key::Key;
use crate::manager::pace::Paced;
use crate::manager::sizes::{Named, SIZES_PENDING_MAX, measure};
use crate::manager::snapshot::{confirm, load_snapshot};
use crate::note::Note;

/// Maximum number of directories that are read concurrently. Each read occupies a thread, and the number of threads per
/// device is limited.
const READS_MAX: usize = 16;

/// A walk in flight.
struct Walk {
    entries: Arc<Entries>,
    reads: Semaphore,
    gauge: WaitGroup,
    pace: Paced,
    unconfirmed_up_to: u32,
    unread: RefCell<Vec<(Subdirectory, Errno)>>,
    /// Entries of unknown size, which wait for stat(2).
    named: RefCell<Vec<Named>>,
    /// Held while a list of such entries is being measured.
    measuring: Semaphore,
}

/// A directory that contains files of entries, or the directories of the next level.
#[derive(Debug)]
struct Subdirectory {
    path: CString,
    /// The names of its parent levels, followed by its own name.
    digits: Vec<Vec<u8>>,
}

/// Directories that could not be read. Their entries are neither in the index nor counted.
#[derive(Debug)]
pub(crate) struct UnreadDirectories {
    directories: Vec<Subdirectory>,
    /// Entries up to this version are known from a snapshot only.
    unconfirmed_up_to: u32,
    started: Instant,
    pause: Duration,
    /// Time of the next attempt.
    pub(crate) due: Instant,
}

/// First pause before unreadable directories are retried; doubled each time.
const UNREAD_FIRST: Duration = Duration::from_secs(1);

/// Maximum pause before a retry: a few calls a minute do no harm.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// Loads all entries; returns the directories that have to be retried.
pub(crate) async fn load(entries: &Arc<Entries>, pace: Pace) -> Option<UnreadDirectories> {
    let dir = &entries.dir;
    let started = rt::now();
    remove_leftovers(dir).await;
    if load_snapshot(entries).await {
        mark_loaded(entries, started, true);
        all_measured(entries);
        return None;
    }
    if dir.is_stopping() {
        return None;
    }
    // Entries that are inserted from here on have higher versions than those of the snapshot.
    let unconfirmed_up_to = entries.index.version();
    let top = Subdirectory { path: dir.path(), digits: Vec::new() };
    let unread = UnreadDirectories {
        directories: vec![top],
        unconfirmed_up_to,
        started,
        pause: UNREAD_FIRST / 2,
        due: started,
    };
    let (first, errno, unread) = walk(entries, pace, unread).await?;
    dir.note(Note::Unreadable {
        path: std::ffi::OsString::from_vec(first.path.as_bytes().to_vec()).into(),
        errno,
        directories: unread.directories.len() as u64,
    });
    // From here on, the limits apply to the known entries only. An error was logged, and a cache that stores nothing
    // because of one directory would help no client.
    entries.space.loaded();
    Some(unread)
}

/// Retries directories that could not be read.
pub(crate) async fn load_rest(
    entries: &Arc<Entries>,
    pace: Pace,
    unread: UnreadDirectories,
) -> Option<UnreadDirectories> {
    walk(entries, pace, unread).await.map(|(_, _, unread)| unread)
}

/// Reads directories recursively. Returns the directories that could not be read, preceded by the first of them and its
/// error.
async fn walk(
    entries: &Arc<Entries>,
    pace: Pace,
    wanted: UnreadDirectories,
) -> Option<(Subdirectory, Errno, UnreadDirectories)> {
    let dir = &entries.dir;
    let walk = Rc::new(Walk {
        entries: Arc::clone(entries),
        reads: Semaphore::new(READS_MAX),
        gauge: WaitGroup::new(),
        pace: Paced::new(pace),
        unconfirmed_up_to: wanted.unconfirmed_up_to,
        unread: RefCell::default(),
        named: RefCell::default(),
        measuring: Semaphore::new(1),
    });
    wanted.directories.into_iter().for_each(|directory| walk.begin_directory(directory));
    walk.gauge.wait_empty().await;
    if dir.is_stopping() {
        return None;
    }
    let (unread, named) = (walk.unread.take(), walk.named.take());
    if let Some((first, errno)) = unread.first() {
        let first = Subdirectory { path: first.path.clone(), digits: Vec::new() };
        let (errno, pause) = (*errno, (wanted.pause * 2).min(UNREAD_MAX));
        let directories = unread.into_iter().map(|(directory, _)| directory).collect();
        measure(entries, named).await;
        let due = rt::now() + pause;
        return Some((first, errno, UnreadDirectories { directories, pause, due, ..wanted }));
    }
    forget_unconfirmed(entries, wanted.unconfirmed_up_to);
    mark_loaded(entries, wanted.started, false);
    measure(entries, named).await;
    if !dir.is_stopping() {
        all_measured(entries);
        let bytes = entries.space.used.get() * BLOCK_BYTES;
        dir.note(Note::Measured { bytes, time_ms: since_ms(wanted.started) });
    }
    None
}

/// Marks the cache as loaded: from now on, an entry that is not in the index does not exist.
fn mark_loaded(entries: &Entries, started: Instant, from_snapshot: bool) {
    if entries.dir.is_stopping() {
        return;
    }
    if entries.index.is_empty() {
        entries.retention.surveyed();
    }
    entries.is_loaded.store(true, Ordering::Release);
    let (count, time_ms) = (entries.index.len() as u64, since_ms(started));
    entries.dir.note(Note::Loaded { entries: count, time_ms, from_snapshot });
}

/// Marks the cache as measured: from now on, the limits apply to the known entries.
fn all_measured(entries: &Entries) {
    entries.space.loaded();
    entries.is_measured.store(true, Ordering::Release);
}

/// Forgets entries that only the snapshot contained: all directories were read, and none had them.
fn forget_unconfirmed(entries: &Entries, unconfirmed_up_to: u32) {
    for (key, known) in entries.index.batches(0).flatten() {
        if known.blocks > 0 && known.version <= unconfirmed_up_to {
            entries.index.remove(&key, Some(known.version));
        }
    }
}

/// Removes temporary files of processes that have exited.
async fn remove_leftovers(dir: &Directory) {
    let Ok(staging) = dir.open_dir(dir.staging_path()).await else { return };
    loop {
        let Ok(found) = dir.read_dir(&staging).await else { return };
        if found.is_empty() {
            return;
        }
        for entry in found.into_iter().filter(|entry| dir.is_leftover(&entry.name)) {
            if let Ok(path) = CString::new([dir.staging_path().as_bytes(), b"/", &entry.name].concat()) {
                // A file that cannot be removed is retried at the next start.
                let _ = dir.unlink(path).await;
            }
        }
    }
}

impl Walk {
    /// Starts a task that reads a directory.
    fn begin_directory(self: &Rc<Walk>, directory: Subdirectory) {
        let (walk, counted) = (Rc::clone(self), self.gauge.enter());
        rt::spawn(async move {
            let permit = walk.reads.acquire().await;
            match walk.read_directory(&directory).await {
                // The directory was removed since its name was read.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => walk.unread.borrow_mut().push((directory, errno)),
            }
            drop(permit);
            drop(counted);
        });
    }

    async fn read_directory(
        self: &Rc<Walk>,
        Subdirectory { path, digits }: &Subdirectory,
    ) -> Result<(), Errno> {
        let dir = &self.entries.dir;
        let levels = dir.levels;
        let is_leaf = digits.len() == levels.digits().len();
        let opened = dir.open_dir(path.clone()).await?;
        let mut inner = Vec::new();
        loop {
            let found = dir.read_dir(&opened).await?;
            if found.is_empty() || dir.is_stopping() {
                break;
            }
            let (count, now_s) = (found.len() as u32, now_s());
            for entry in found {
                if is_leaf {
                    self.enter(&entry, digits, now_s);
                } else if is_directory(&entry) && is_digits(&entry.name, levels.digits()[digits.len()]) {
                    let path = CString::new([path.as_bytes(), b"/", &entry.name].concat());
                    let mut digits = digits.clone();
                    digits.push(entry.name.to_vec());
                    inner.push(Subdirectory { path: path.map_err(|_| Errno::INVAL)?, digits });
                }
            }
            self.pace.count(count).await;
            if self.named.borrow().len() >= SIZES_PENDING_MAX {
                let _turn = self.measuring.acquire().await;
                // An earlier task may have taken the list.
                let is_full = self.named.borrow().len() >= SIZES_PENDING_MAX;
                let named = if is_full { self.named.take() } else { Vec::new() };
                measure(&self.entries, named).await;
            }
        }
        // Started only after the directory was read to its end: if a read failed, a retry of this directory would read
        // its subdirectories again, concurrently.
        inner.into_iter().for_each(|directory| self.begin_directory(directory));
        Ok(())
    }

    /// Adds a file to the index if it is in the directory of its key.
    fn enter(&self, entry: &DirEntry, digits: &[Vec<u8>], now_s: u32) {
        let Some(key) = Key::from_hex(&entry.name) else { return };
        let mut end = entry.name.len();
        for parent in digits {
            if entry.name[end - parent.len()..end] != **parent {
                return;
            }
            end -= parent.len();
        }
        let is_file = FileType::from_raw_mode(entry.kind) == FileType::RegularFile;
        if is_file && confirm(&self.entries, &key, self.unconfirmed_up_to, now_s) {
            self.named.borrow_mut().push(Named { inode: entry.inode, key });
        }
    }
}

fn since_ms(started: Instant) -> u64 {
    rt::now().saturating_duration_since(started).as_millis() as u64
}

fn is_directory(entry: &DirEntry) -> bool {
    FileType::from_raw_mode(entry.kind) == FileType::Directory
}

fn is_digits(name: &[u8], count: u8) -> bool {
    name.len() == usize::from(count) && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
