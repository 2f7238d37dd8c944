//! The life of the caches of a process: opened with the configuration that names them, run by one thread each, stopped
//! when the process begins to end or a configuration does without them.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::cache::{Config, Note, Notify, OpenError, Store};

use crate::caching::flight::Flights;
use crate::files::is_on_local_disk;
use crate::log::{Level, error};
use crate::request::Generation;
use crate::thread::Thread;

/// One cache, as threads and configurations share it.
pub(crate) struct Cache {
    store: Result<Arc<Store>, OpenError>,
    /// Fetches under way, which outlive a configuration as the cache does.
    flights: Arc<Flights>,
    /// Whether a thread runs it.
    claimed: AtomicBool,
    notes: Arc<Notes>,
}

/// What a store has to say, until a thread that may write to the log comes by.
#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

/// Notes that wait; a disk with more damage than that is known to be bad.
const NOTES_MAX: usize = 64;

/// How often a thread comes by.
const NOTES_EVERY: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("flights", &self.flights).finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens a cache. One that cannot be opened is none: requests pass through.
    pub(crate) fn open(config: Config) -> Cache {
        let notes = Arc::new(Notes::default());
        let to = Arc::clone(&notes);
        let notify = Notify(Arc::new(move |note| to.add(note)));
        let calls_directly = is_on_local_disk(&config.path);
        let store = Store::open(Config { notify, calls_directly, ..config });
        Cache { store, flights: Flights::new(), claimed: AtomicBool::new(false), notes }
    }

    /// The store, when it could be opened.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref().ok()
    }

    /// Who fetches what.
    pub(crate) fn flights(&self) -> &Arc<Flights> {
        &self.flights
    }

    /// Runs it on this thread, if no other one does.
    fn tend(self: &Arc<Cache>, thread: &Rc<Thread>) {
        if self.claimed.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = match &self.store {
            Ok(store) => Arc::clone(store),
            Err(reason) => {
                let message = format_args!("{reason}; answers pass through and are not stored");
                return error::write(thread, Level::Emerg, message);
            }
        };
        let counted = thread.caches.enter();
        let (cache, thread) = (Arc::clone(self), Rc::clone(thread));
        rt::spawn(async move {
            let run = async {
                store.run().await;
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
            error::write(thread, level, format_args!("{note}"));
        }
    }
}

/// Runs the caches of a configuration that nobody runs yet, and stops those that only the one before it had.
pub(crate) fn tend(thread: &Rc<Thread>, before: Option<&Generation>) {
    let now = thread.generation();
    let caches = |generation: &Generation| -> Vec<Arc<Cache>> {
        generation.config.http.caches.iter().map(|zone| Arc::clone(zone.state())).collect()
    };
    let kept = caches(&now);
    for cache in &kept {
        cache.tend(thread);
    }
    for old in before.map(caches).unwrap_or_default() {
        if !kept.iter().any(|cache| Arc::ptr_eq(cache, &old))
            && let Some(store) = old.store()
        {
            store.stop();
        }
    }
}

// A worker that is to end stops its caches at once, before its last requests: its successor waits for the folders.

/// Lets another process have the folders, which saves what is known of them first. Lookups go on.
pub(crate) fn stop(generation: &Generation) {
    for zone in &generation.config.http.caches {
        if let Some(store) = zone.state().store() {
            store.stop();
        }
    }
}
