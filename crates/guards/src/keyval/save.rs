//! Writes the pairs of a zone to its state file, on a helper thread.
//!
//! A file is replaced atomically and is durable when the change gets its response. Changes that wait for the same write share it.

use std::any::Any;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::SystemTime;

use exchange::error_log;
use exchange::request::ThreadConfig;
use exchange::thread::Thread;
use rt::HelperPool;
use rt::local::Event;
use site::config::Section;
use site::shared_zone::AnyZone;
use telemetry::{Level, Reason};
use transfer::replaced_file;

use super::{KeyvalZone, json, now_ms, zones};

/// Maximum number of threads that write the files; each zone has one file, and one write at a time.
const STATE_FILE_THREADS_MAX: usize = 8;

/// The threads that write the files. A worker thread would wait for the disk.
static STATE_FILES: LazyLock<HelperPool> =
    LazyLock::new(|| HelperPool::new("keyval-state", STATE_FILE_THREADS_MAX));

/// The file that was written last, by which a change finds out that another one has written it too.
/// After a reload with another file name the path differs.
#[derive(Debug)]
pub(super) struct Saved {
    /// Its path.
    pub(super) path: PathBuf,
    /// Number of changes that it contains.
    pub(super) changes: u64,
}

/// Mode of state files: values may be secrets.
const MODE: u32 = 0o600;

/// Writes the pairs of a zone to its file, if it has one, after the caller has changed them. Returns whether the change is durable;
/// otherwise the error log has the reason. The write continues if the caller does not wait for it.
pub async fn save(zone: &Arc<KeyvalZone>, thread: &Rc<Thread>) -> bool {
    if zone.kind().state.is_none() {
        return true;
    }
    let (done, result) = (Event::new(), Rc::new(std::cell::Cell::new(false)));
    let task = write_and_log(Arc::clone(zone), Rc::clone(thread));
    let (ended, written) = (done.clone(), Rc::clone(&result));
    rt::spawn(async move {
        written.set(task.await);
        ended.set();
    });
    done.wait().await;
    result.get()
}

/// Begins to write the pairs of a zone that another module has changed, if the zone has a file. Nothing waits for the write: that module
/// does not promise that its changes are durable.
pub(super) fn save_changed(zone: &Arc<dyn AnyZone>, thread: &Rc<Thread>) {
    let zone: Arc<dyn Any + Send + Sync> = Arc::clone(zone) as _;
    let Ok(zone) = zone.downcast::<KeyvalZone>() else { return };
    if zone.kind().state.is_some() {
        let write = write_and_log(zone, Rc::clone(thread));
        rt::spawn(async move {
            write.await;
        });
    }
}

/// Writes the pairs of zones whose state file has another name since the reload.
pub(super) fn save_moved(thread: &Rc<Thread>, before: Option<&ThreadConfig>) {
    if before.is_none() {
        return;
    }
    let config = &thread.thread_config().config;
    for zone in [Section::Http, Section::Stream].into_iter().flat_map(|section| zones(config, section)) {
        let Some(path) = &zone.kind().state else { continue };
        // If a write holds the lock, its thread or a later change writes the new file.
        let is_moved = match zone.state().saved.try_lock() {
            Ok(saved) => saved.as_ref().is_none_or(|saved| saved.path != *path),
            Err(_) => true,
        };
        if is_moved {
            let write = write_and_log(Arc::clone(&zone), Rc::clone(thread));
            rt::spawn(async move {
                write.await;
            });
        }
    }
}

/// Writes the file on a helper thread and logs a failure. A failure does not undo the change: the pairs in memory are in effect, and the
/// next change writes all of them.
async fn write_and_log(zone: Arc<KeyvalZone>, thread: Rc<Thread>) -> bool {
    let on_helper = Arc::clone(&zone);
    let failed = match STATE_FILES.run(move || write(&on_helper)).await {
        Some(Ok(())) => return true,
        Some(Err(error)) => error,
        None => std::io::Error::from(ErrorKind::Other),
    };
    let reason = Reason(io::Errno::from_io_error(&failed).unwrap_or(io::Errno::IO));
    let path = zone.kind().state.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    let name = zone.name();
    error_log::write(
        &thread,
        Level::Error,
        format_args!(
            "the state of keyval zone \"{name}\" was not written to \"{path}\" ({reason}): changes last until the process ends"
        ),
    );
    false
}

/// Writes the file unless it has all changes: changes that waited for the lock of the file may be in it already. Runs on a helper thread,
/// which holds the lock of the pairs only while it copies them.
fn write(zone: &KeyvalZone) -> std::io::Result<()> {
    let Some(path) = &zone.kind().state else { return Ok(()) };
    let stored = zone.state();
    let wanted = stored.pairs.changes();
    let mut saved = stored.saved.lock().unwrap_or_else(PoisonError::into_inner);
    if saved.as_ref().is_some_and(|saved| saved.path == *path && saved.changes >= wanted) {
        return Ok(());
    }
    let (changes, pairs) = stored.pairs.copy(now_ms(SystemTime::now()));
    replaced_file::replace(path, &json::state_text(&pairs), MODE)?;
    *saved = Some(Saved { path: path.clone(), changes });
    Ok(())
}
