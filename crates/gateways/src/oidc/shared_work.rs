//! Work that is done once for all requests that need it: the fetch of a document, or the refresh of a session.
//!
//! ```text
//! first request: begin --> a task does the work --> release: the work is no longer in flight --> the end wakes all requests
//! other requests: wait for the end
//! ```
//! The work has a task of its own, so it continues without the client of the first request. The caller keeps the record of work in
//! flight; the caller's `release` removes it, also if the task is dropped because its thread ends.

use rt::watch::{self, Publisher, Watcher};

/// Work in flight, in its task.
struct SharedWork<R: FnOnce()> {
    /// Removes the record of the work.
    release: Option<R>,
    /// Dropped after the record is removed, which wakes the waiting requests.
    _end: Publisher,
}

impl<R: FnOnce()> Drop for SharedWork<R> {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// The end of work in flight, for the requests that wait.
#[derive(Clone)]
pub(super) struct WorkEnd(Watcher);

impl std::fmt::Debug for WorkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WorkEnd")
    }
}

impl WorkEnd {
    /// Waits for the end. The work may have been cancelled, because its thread ends.
    pub(super) async fn wait(&self) {
        // The end is the only event.
        let _ = self.0.above(0).await;
    }
}

/// Begins work in a task of its own. The caller records the end as that of work in flight, and `release` removes this record.
pub(super) fn begin(work: impl Future<Output = ()> + 'static, release: impl FnOnce() + 'static) -> WorkEnd {
    let (publisher, watcher) = watch::channel(0);
    let shared = SharedWork { release: Some(release), _end: publisher };
    rt::spawn(async move {
        work.await;
        drop(shared);
    });
    WorkEnd(watcher)
}
