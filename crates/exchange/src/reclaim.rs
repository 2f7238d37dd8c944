//! Closes connections and files of a thread to free connection slots, descriptors and buffers.

use std::rc::Rc;
use std::time::Duration;

use crate::capacity::{Entry, Resource, WINDOWS_BYTES_MAX};
use crate::error_log;
use crate::request::ThreadConfig;
use crate::thread::Thread;
use io::Fd;
use rt::Timer;
use rt::local::Counted;
use telemetry::Level;
use telemetry::tally::Refusal;

/// Time that closing descriptors takes: a few event-loop turns.
const CLOSING: Duration = Duration::from_millis(1);

/// Number of files that are closed in one call when descriptors run out: enough for the next requests.
const FILES_CLOSED: usize = 16;

/// Minimum time between two searches for buffers; released buffers are available again by then.
const BUFFERS_AGAIN: Duration = Duration::from_millis(100);

impl Thread {
    /// Closes the connections that cost least, and waits until they are closed. Returns whether there were any.
    pub async fn reclaim(&self, resource: Resource) -> bool {
        let reclaimed = self.capacity.reclaim(|| self.close_idle());
        let limit = match resource {
            Resource::Connection => Refusal::Connections,
            Resource::Descriptor => Refusal::Descriptors,
        };
        self.tally.count_refused(limit, reclaimed.unwrap_or(0));
        let any = reclaimed.is_some();
        if any && resource == Resource::Descriptor {
            rt::sleep_until(rt::now() + CLOSING).await;
        } else if any {
            rt::yield_now().await;
        }
        any
    }

    /// Closes files or connections. Files that are only open for later requests are closed first, which affects no
    /// client.
    pub async fn free_descriptors(&self, thread_config: &ThreadConfig) -> bool {
        close_unused(thread_config).await || self.reclaim(Resource::Descriptor).await
    }

    /// Waits until a connection may be accepted. Further connections wait in the kernel's accept queue. A draining thread does
    /// not wait, because it accepts no more connections.
    pub async fn wait_for_capacity(&self) {
        while let Some(resource) = self.capacity.exhausted().filter(|_| !self.is_draining()) {
            let is_freed = match resource {
                Resource::Connection => self.reclaim(resource).await,
                Resource::Descriptor => self.free_descriptors(&self.thread_config()).await,
            };
            if is_freed {
                continue;
            }
            if let Some(alarm) = self.capacity.alarm(resource) {
                error_log::write(self, Level::Alert, format_args!("{alarm}"));
            }
            self.capacity.changed().await;
        }
    }

    /// Returns a slot for a connection to an upstream; `None` if the remaining slots are reserved for accepted
    /// connections.
    pub async fn slot_for_upstream(&self) -> Option<Counted> {
        let capacity = &self.capacity;
        let began = rt::now();
        // New connections may take the freed slots, so the number of attempts is limited.
        let mut attempts = 2 * capacity.slots_for_clients() + 1;
        while !capacity.has_slot_for_upstream() && attempts > 0 {
            if self.reclaim(Resource::Connection).await {
                attempts -= 1;
                continue;
            }
            let waited = rt::now().saturating_duration_since(began);
            if capacity.grace().is_none_or(|grace| waited >= grace) {
                break;
            }
            capacity.changed_for_upstream().await;
        }
        if !capacity.has_slot_for_upstream() {
            self.tally.count_refused(Refusal::Upstream, 1);
            return None;
        }
        Some(capacity.enter())
    }
}

/// A connection whose client reads nothing of its response at present, until the value is dropped. It may be chosen to be closed; then
/// its timer expires.
pub struct Stall {
    thread: Rc<Thread>,
    entry: Entry,
}

impl Stall {
    /// Registers a connection that has sent `progress` bytes; see [`rt::net::progress`].
    pub fn begin(thread: &Rc<Thread>, timer: &Timer, socket: &Fd, progress: u64) -> Stall {
        let entry = thread.capacity.begin_stall(timer, socket, progress);
        Stall { thread: Rc::clone(thread), entry }
    }

    /// Whether the connection has to end in favour of another.
    pub fn is_chosen(&self) -> bool {
        self.thread.capacity.is_chosen(self.entry)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.thread.capacity.end_stall(self.entry);
    }
}

/// Closes connections with stalled incomplete requests whenever receive buffers run out, until the thread ends. An idle
/// connection has no buffer and stays open.
pub async fn watch_buffers(thread: Rc<Thread>) {
    loop {
        rt::buffers_ran_out().await;
        let ended = thread.capacity.end_stalled();
        thread.tally.count_refused(Refusal::Buffers, ended);
        if let Some(more) = thread.capacity.alarms.buffers.due(rt::now()) {
            let bytes = rt::pool().bytes_max();
            error_log::write(
                &thread,
                Level::Alert,
                format_args!(
                    "buffers of {bytes} bytes are not enough for received bytes, {ended} connections with incomplete \
                     requests were closed, remedy: a larger buffer_pool{more}"
                ),
            );
        }
        rt::sleep_until(rt::now() + BUFFERS_AGAIN).await;
    }
}

/// Closes connections that hold much of the memory for bodies over HTTP/2 and send nothing, whenever others are stopped,
/// until the thread ends.
pub async fn watch_windows(thread: Rc<Thread>) {
    loop {
        let ended = thread.capacity.windows.relieve().await;
        if ended == 0 {
            continue;
        }
        thread.tally.count_refused(Refusal::Windows, ended);
        if let Some(more) = thread.capacity.alarms.windows.due(rt::now()) {
            error_log::write(
                &thread,
                Level::Alert,
                format_args!(
                    "{WINDOWS_BYTES_MAX} bytes are not enough for bodies over HTTP/2, {ended} connections that hold \
                     the most and send nothing were closed{more}"
                ),
            );
        }
    }
}

/// Closes cached files that no response uses, so that another file can be opened. Returns whether there were any.
async fn close_unused(thread_config: &ThreadConfig) -> bool {
    let files = thread_config.open_files.evict(FILES_CLOSED);
    let any = !files.is_empty();
    for file in files {
        file.close().await;
    }
    any
}
