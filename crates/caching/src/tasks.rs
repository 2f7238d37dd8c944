//! Lifecycle of the caches of a process. A cache is opened with the configuration that names it, and run by one thread. It is
//! stopped when the process begins to shut down, or when a configuration no longer names it. Opening is retried as long as the
//! cache is needed: a directory may be mounted, or made accessible, after the start.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ::cache::{Config, Note, Notify, OpenError, Store};
use rt::watch::{self, Publisher};
use rt::{Either, HelperPool};

use crate::settings::Caches;
use crate::shared_fetch::SharedFetches;
use crate::tally::Tallies;
use exchange::error_log;
use exchange::files::is_on_local_disk;
use exchange::request::ThreadConfig;
use exchange::thread::Thread;
use telemetry::Level;

/// One cache, shared by threads and configuration versions.
pub struct Cache {
    /// Set once the store is open.
    store: OnceLock<Arc<Store>>,
    /// The error of the first attempt to open the store.
    refusal: Option<OpenError>,
    config: Config,
    /// Whether the cache was closed. The lock is held while a late store is set, so that every store is stopped.
    is_closed: Mutex<bool>,
    /// Ends the wait for the next attempt to open; 1 when the cache was closed.
    closed: Publisher,
    /// 1 when the store's task has ended: its index is saved, and another process may use the directory.
    ended: Publisher,
    /// Fetches in flight; like the cache they outlive a configuration version.
    shared_fetches: Arc<SharedFetches>,
    /// The counters of the threads.
    tallies: Tallies,
    /// Whether a thread runs the cache.
    claimed: AtomicBool,
    notes: Arc<Notes>,
}

/// Notes of a store, its messages for the operator, until a thread writes them to the log.
#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

/// Maximum number of pending notes; further notes are dropped, because they would only report more damage of the same disk.
const NOTES_MAX: usize = 64;

/// Interval in which a thread logs pending notes.
const NOTES_EVERY: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("shared_fetches", &self.shared_fetches).finish_non_exhaustive()
    }
}

/// First pause before opening is retried; doubled each time. A quick repair is noticed soon, and a permanent fault costs one
/// attempt per minute.
const REOPEN_FIRST: Duration = Duration::from_secs(1);

/// Maximum pause before opening is retried.
const REOPEN_MAX: Duration = Duration::from_secs(60);

impl Cache {
    /// Opens a cache. Requests bypass it until it is open.
    pub fn open(config: Config) -> Cache {
        let notes = Arc::new(Notes::default());
        let to = Arc::clone(&notes);
        let config = Config { notify: Notify(Arc::new(move |note| to.add(note))), ..config };
        let store = OnceLock::new();
        let refusal = match open(config.clone()) {
            // The cell was created just before, so it is empty.
            Ok(opened) => store.set(opened).err().and(None),
            Err(refusal) => Some(refusal),
        };
        let ((closed, _), (ended, _)) = (watch::channel(0), watch::channel(0));
        let (is_closed, claimed) = (Mutex::new(false), AtomicBool::new(false));
        let (shared_fetches, tallies) = (SharedFetches::new(), Tallies::start());
        Cache { store, refusal, config, is_closed, closed, ended, shared_fetches, tallies, claimed, notes }
    }

    /// Returns the store, if it is open.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Returns the shared fetches.
    pub fn shared_fetches(&self) -> &Arc<SharedFetches> {
        &self.shared_fetches
    }

    /// Returns the threads' counters of this cache.
    pub fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    /// Runs the cache on this thread, unless another thread runs it.
    fn tend(self: &Arc<Cache>, thread: &Rc<Thread>) {
        if self.claimed.swap(true, Ordering::AcqRel) {
            return;
        }
        let counted = thread.caches.enter();
        let (cache, thread) = (Arc::clone(self), Rc::clone(thread));
        rt::spawn(async move {
            let run = async {
                if let Some(store) = cache.opened(&thread).await {
                    store.run().await;
                }
                cache.ended.publish(1);
                drop(counted);
            };
            let write_notes = async {
                loop {
                    rt::sleep_until(rt::now() + NOTES_EVERY).await;
                    cache.write_notes(&thread);
                }
            };
            rt::select(run, write_notes).await;
            cache.write_notes(&thread);
        });
    }

    /// Retries to open the store until it is open; `None` if the cache is no longer needed. The log reports once that the cache is
    /// unavailable, and once that it is available.
    async fn opened(&self, thread: &Thread) -> Option<Arc<Store>> {
        let Some(refusal) = &self.refusal else { return self.store().map(Arc::clone) };
        let message =
            format_args!("{refusal}; responses pass through and are not stored until it can be used");
        error_log::write(thread, Level::Emerg, message);
        // Opening blocks on the disk, so it runs on another thread.
        let opener = HelperPool::new("cache", 1);
        let (mut pause, closed) = (REOPEN_FIRST, self.closed.watch());
        loop {
            if let Either::Left(_) = rt::select(closed.above(0), rt::sleep_until(rt::now() + pause)).await {
                return None;
            }
            pause = (pause * 2).min(REOPEN_MAX);
            let config = self.config.clone();
            if let Some(Ok(store)) = opener.run(move || open(config)).await {
                let name = &self.config.name;
                if !self.take(&store) {
                    return None;
                }
                error_log::write(thread, Level::Notice, format_args!("cache \"{name}\" can be used now"));
                return Some(store);
            }
        }
    }

    /// Sets a store that was opened late, unless the cache was closed.
    fn take(&self, store: &Arc<Store>) -> bool {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        !*is_closed && self.store.set(Arc::clone(store)).is_ok()
    }

    /// Writes the pending notes to the log.
    fn write_notes(&self, thread: &Thread) {
        let notes = std::mem::take(&mut *self.notes.0.lock().unwrap_or_else(PoisonError::into_inner));
        for note in notes {
            let level = if note.is_error() { Level::Error } else { Level::Notice };
            error_log::write(thread, level, format_args!("cache \"{}\": {note}", self.config.name));
        }
    }

    /// Stops the cache, so that another process or configuration can take over the directory.
    fn stop(&self) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.closed.publish(1);
        if let Some(store) = self.store() {
            store.stop();
        }
    }
}

/// Opens a store. The directory is examined again each time, because another file system may be mounted there.
fn open(config: Config) -> Result<Arc<Store>, OpenError> {
    let calls_directly = is_on_local_disk(&config.path);
    Store::open(Config { calls_directly, ..config })
}

impl Notes {
    fn add(&self, note: Note) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.push(note);
        }
    }
}

/// Starts new caches of a configuration, and stops those that only the previous configuration had.
pub fn tend(thread: &Rc<Thread>, before: Option<&ThreadConfig>) {
    let now = thread.thread_config();
    let caches = |thread_config: &ThreadConfig| -> Vec<Arc<Cache>> {
        thread_config.config.http.of::<Caches>().zones.iter().map(|zone| Arc::clone(zone.state())).collect()
    };
    let remaining = caches(&now);
    for cache in &remaining {
        cache.tend(thread);
    }
    for old in before.map(caches).unwrap_or_default() {
        if !remaining.iter().any(|cache| Arc::ptr_eq(cache, &old)) {
            old.stop();
        }
    }
}

// A worker process that shuts down stops its caches immediately, before its last requests: its successor waits for the directories.

/// Releases the directories to another process, after saving the indexes. Lookups continue.
pub fn stop(thread_config: &ThreadConfig) {
    for zone in &thread_config.config.http.of::<Caches>().zones {
        zone.state().stop();
    }
}

/// Waits until the caches have ended, on whichever thread they run. A thread that runs no cache waits too: it may be publishing an
/// entry, which must be known before the index is saved as complete.
pub async fn ended(thread: &Thread) {
    // Including the caches of earlier configurations.
    thread.caches.wait_empty().await;
    let caches: Vec<_> = thread
        .thread_config()
        .config
        .http
        .of::<Caches>()
        .zones
        .iter()
        .map(|zone| Arc::clone(zone.state()))
        .collect();
    for cache in caches {
        // The publisher lives as long as the cache, which is referenced here.
        let _ = cache.ended.watch().above(0).await;
    }
}
