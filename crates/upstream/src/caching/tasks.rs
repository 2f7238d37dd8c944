//! The life of the caches of a process: opened with the configuration that names them, run by one thread each, stopped
//! when the process begins to end or a configuration does without them. One that cannot be opened is tried again as
//! long as it is needed: a directory may be mounted, or given to the server's user, after the start.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ::cache::{Config, Note, Notify, OpenError, Store};
use rt::Either;
use rt::watch::{self, Publisher};

use crate::caching::settings::Caches;
use crate::caching::shared_fetch::SharedFetches;
use crate::caching::tally::Tallies;
use exchange::error_log;
use exchange::files::is_on_local_disk;
use exchange::request::Generation;
use exchange::thread::Thread;
use telemetry::Level;

/// One cache, as threads and configurations share it.
pub struct Cache {
    /// There from the moment on at which it could be opened.
    store: OnceLock<Arc<Store>>,
    /// Why that was not the start.
    refusal: Option<OpenError>,
    config: Config,
    /// Whether it was closed. The lock is held while a store that was opened late is put in place, so that every store
    /// gets its stop.
    is_over: Mutex<bool>,
    /// Ends the wait for the next try; 1 when it is over.
    over: Publisher,
    /// 1 when what runs it has ended: its index is saved, and the directory belongs to another process.
    ended: Publisher,
    /// Fetches in flight, which outlive a configuration as the cache does.
    shared_fetches: Arc<SharedFetches>,
    /// The counters of the threads.
    tallies: Tallies,
    /// Whether a thread runs it.
    claimed: AtomicBool,
    notes: Arc<Notes>,
}

/// Notes of a store, until a thread writes them to the log.
#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

/// Notes that wait; a disk with more damage than that is known to be bad.
const NOTES_MAX: usize = 64;

/// How often a thread comes by.
const NOTES_EVERY: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("shared_fetches", &self.shared_fetches).finish_non_exhaustive()
    }
}

/// The pause before a cache that could not be opened is tried again, doubled each time: a quick repair is noticed soon,
/// and a permanent fault costs one try a minute.
const REOPEN_FIRST: Duration = Duration::from_secs(1);

/// The longest such pause.
const REOPEN_MAX: Duration = Duration::from_secs(60);

impl Cache {
    /// Opens a cache. While it cannot be opened requests bypass it.
    pub fn open(config: Config) -> Cache {
        let notes = Arc::new(Notes::default());
        let to = Arc::clone(&notes);
        let config = Config { notify: Notify(Arc::new(move |note| to.add(note))), ..config };
        let store = OnceLock::new();
        let refusal = match open(config.clone()) {
            // It was made a line above, so that it is empty.
            Ok(opened) => store.set(opened).err().and(None),
            Err(refusal) => Some(refusal),
        };
        let ((over, _), (ended, _)) = (watch::channel(0), watch::channel(0));
        let (is_over, claimed) = (Mutex::new(false), AtomicBool::new(false));
        let (shared_fetches, tallies) = (SharedFetches::new(), Tallies::start());
        Cache { store, refusal, config, is_over, over, ended, shared_fetches, tallies, claimed, notes }
    }

    /// The store, when it could be opened.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// The shared fetches.
    pub fn shared_fetches(&self) -> &Arc<SharedFetches> {
        &self.shared_fetches
    }

    /// The threads' counters of it.
    pub fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    /// Runs it on this thread, if no other one does.
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
            let tell = async {
                loop {
                    rt::sleep_until(rt::now() + NOTES_EVERY).await;
                    cache.notes.write(&thread);
                }
            };
            rt::select(run, tell).await;
            cache.notes.write(&thread);
        });
    }

    /// Waits for the store, trying again and again; `None` when it is not needed any more. The log reports that it is
    /// unavailable, and later that it is available: once each, however often it was tried.
    async fn opened(&self, thread: &Thread) -> Option<Arc<Store>> {
        let Some(refusal) = &self.refusal else { return self.store().map(Arc::clone) };
        let message = format_args!("{refusal}; answers pass through and are not stored until it can");
        error_log::write(thread, Level::Emerg, message);
        let (mut pause, over) = (REOPEN_FIRST, self.over.watch());
        loop {
            if let Either::Left(_) = rt::select(over.above(0), rt::sleep_until(rt::now() + pause)).await {
                return None;
            }
            pause = (pause * 2).min(REOPEN_MAX);
            // These calls wait for the disk, so they are made elsewhere.
            let config = self.config.clone();
            if let Some(Ok(store)) = rt::offload(move || open(config)).await {
                let name = &self.config.name;
                if !self.take(&store) {
                    return None;
                }
                error_log::write(thread, Level::Notice, format_args!("cache \"{name}\" can be used now"));
                return Some(store);
            }
        }
    }

    /// Puts a store that was opened late in place, unless the cache was closed.
    fn take(&self, store: &Arc<Store>) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        !*is_over && self.store.set(Arc::clone(store)).is_ok()
    }

    /// Ends it: the directory is another process's to have.
    fn stop(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.publish(1);
        if let Some(store) = self.store() {
            store.stop();
        }
    }
}

/// Opens a store. Its directory is examined again each time, because it may be another one by now.
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

    fn write(&self, thread: &Thread) {
        let notes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for note in notes {
            let level = if note.is_error() { Level::Error } else { Level::Notice };
            error_log::write(thread, level, format_args!("{note}"));
        }
    }
}

/// Starts the caches of a configuration that do not run yet, and stops those that only the earlier one had.
pub fn tend(thread: &Rc<Thread>, before: Option<&Generation>) {
    let now = thread.generation();
    let caches = |generation: &Generation| -> Vec<Arc<Cache>> {
        generation.config.http.of::<Caches>().zones.iter().map(|zone| Arc::clone(zone.state())).collect()
    };
    let kept = caches(&now);
    for cache in &kept {
        cache.tend(thread);
    }
    for old in before.map(caches).unwrap_or_default() {
        if !kept.iter().any(|cache| Arc::ptr_eq(cache, &old)) {
            old.stop();
        }
    }
}

// A worker that is to end stops its caches at once, before its last requests: its successor waits for the directories.

/// Releases the directories to another process, after saving their indexes. Lookups continue.
pub fn stop(generation: &Generation) {
    for zone in &generation.config.http.of::<Caches>().zones {
        zone.state().stop();
    }
}

/// Waits until the caches have ended, whichever thread runs them. A thread that has none stays as well: it may be putting
/// an entry in place, which has to be known before the index is saved as one that nothing is missing from.
pub async fn ended(thread: &Thread) {
    // Those of earlier configurations too.
    thread.caches.none_left().await;
    let caches: Vec<_> = thread
        .generation()
        .config
        .http
        .of::<Caches>()
        .zones
        .iter()
        .map(|zone| Arc::clone(zone.state()))
        .collect();
    for cache in caches {
        // The publisher lives as long as the cache, which is held here.
        let _ = cache.ended.watch().above(0).await;
    }
}
