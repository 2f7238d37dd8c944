//! Closes connections and files of a thread to free connection slots, descriptors and buffers.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::capacity::{Entry, Resource, WINDOWS_BYTES_MAX, Waits};
use crate::client::Client;
use crate::error_log;
use crate::request::{ConnInfo, ThreadConfig};
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
        let any = self.choose(resource, 1) > 0;
        if any && resource == Resource::Descriptor {
            rt::sleep_until(rt::now() + CLOSING).await;
        } else if any {
            rt::yield_now().await;
        }
        any
    }

    /// Chooses the connections that cost least, `wanted` or more if there are as many that are idle. Returns their number.
    fn choose(&self, resource: Resource, wanted: usize) -> usize {
        let chosen = self.capacity.reclaim(wanted, || self.close_idle());
        let limit = match resource {
            Resource::Connection => Refusal::Connections,
            Resource::Descriptor => Refusal::Descriptors,
        };
        self.tally.count_refused(limit, chosen.clients);
        chosen.total()
    }

    /// Closes files or connections. Files that are only open for later requests are closed first, which affects no
    /// client.
    pub async fn free_descriptors(&self, thread_config: &ThreadConfig) -> bool {
        rt::net::close_unused_pipes()
            || close_unused(thread_config).await
            || self.reclaim(Resource::Descriptor).await
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
            self.report_exhausted(resource);
            self.capacity.changed().await;
        }
    }

    /// Logs that a resource is exhausted, unless that was logged recently.
    pub fn report_exhausted(&self, resource: Resource) {
        if let Some(alarm) = self.capacity.alarm(resource) {
            error_log::write(self, Level::Alert, format_args!("{alarm}"));
        }
    }

    /// Returns a slot for a connection to an upstream, for a request of this client's connection, if it has one. `None` if the
    /// remaining slots are reserved for accepted connections.
    pub async fn slot_for_upstream(&self, conn: Option<&ConnInfo>) -> Option<Counted> {
        let slot = match self.capacity.enter_for_upstream() {
            // Boxed, because most requests do not need this future.
            None => Box::pin(self.wait_for_slot(conn)).await,
            slot => slot,
        };
        if slot.is_none() {
            self.tally.count_refused(Refusal::Upstream, 1);
        }
        slot
    }

    /// Waits for a slot in the queue, and closes connections to free it.
    async fn wait_for_slot(&self, conn: Option<&ConnInfo>) -> Option<Counted> {
        let (capacity, began) = (&self.capacity, rt::now());
        let _noted = NotedWait::begin(conn);
        let turn = capacity.turn_for_upstream(conn.map(|conn| conn.number), began).await?;
        // The number of ended connections at which all chosen ones have ended.
        let mut ended = capacity.ended();
        loop {
            let missing = capacity.missing_for_upstream();
            if missing == 0 {
                return Some(capacity.enter());
            }
            let waited = rt::now().saturating_duration_since(began);
            // Chosen connections may take some turns to end: further ones are not closed in their stead.
            let ending = if capacity.is_ending() { ended - capacity.ended().min(ended) } else { 0 };
            let wanted = usize::try_from(ending).map_or(0, |ending| missing.saturating_sub(ending));
            let chosen = if wanted > 0 { self.choose(Resource::Connection, wanted) } else { 0 };
            if wanted == 0 {
                capacity.choose_lingering(missing);
            }
            if chosen > 0 {
                ended = capacity.ended() + ending + chosen as u64;
                capacity.hold_for_upstream(&turn, chosen);
            }
            if !capacity.may_free_slot(waited) {
                return None;
            }
            capacity.changed_for_upstream().await;
        }
    }
}

/// A request that waits for a slot, as its client's connection sees it.
struct NotedWait(Option<Rc<dyn Client>>);

impl NotedWait {
    fn begin(conn: Option<&ConnInfo>) -> NotedWait {
        let client = conn.and_then(|conn| conn.client.borrow().clone());
        client.iter().for_each(|client| client.note_slot_wait(true));
        NotedWait(client)
    }
}

impl Drop for NotedWait {
    fn drop(&mut self) {
        self.0.iter().for_each(|client| client.note_slot_wait(false));
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

/// A connection of QUIC that waits for its client, until the value is dropped. Unlike [`crate::capacity::Waiting`], it stays registered while the
/// task of the connection handles timers, so that it keeps its place in the order of closing. It may be chosen to be closed; then its timer expires.
pub struct QuicWait {
    thread: Rc<Thread>,
    entry: Entry,
    kind: Waits,
    since: Instant,
}

impl QuicWait {
    /// Registers a connection that has waited since this time. Its socket belongs to all connections of the thread, so its client is taken for silent.
    pub fn begin(thread: &Rc<Thread>, kind: Waits, timer: &Timer, since: Instant) -> QuicWait {
        let entry = thread.capacity.begin_wait(kind, timer, None, since);
        QuicWait { thread: Rc::clone(thread), entry, kind, since }
    }

    /// Whether it is a wait of this kind since this time.
    pub fn is(&self, kind: Waits, since: Instant) -> bool {
        (self.kind, self.since) == (kind, since)
    }

    /// Whether the connection has to end in favour of another.
    pub fn is_chosen(&self) -> bool {
        self.thread.capacity.is_chosen(self.entry)
    }
}

impl Drop for QuicWait {
    fn drop(&mut self) {
        self.thread.capacity.end_wait(self.entry);
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
