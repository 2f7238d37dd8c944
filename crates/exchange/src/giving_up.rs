//! Closes connections and files of a thread to free connection slots, descriptors and buffers.

use std::rc::Rc;
use std::time::Duration;

use crate::error_log;
use crate::request::Generation;
use crate::room::{GRACE, Want};
use crate::thread::Thread;
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
    pub async fn give_up(&self, want: Want) -> bool {
        let given_up = self.room.give_up(|| self.give_up_idle());
        let limit = match want {
            Want::Connection => Refusal::Connections,
            Want::Descriptor => Refusal::Descriptors,
        };
        self.tally.count_refused(limit, given_up.unwrap_or(0));
        let any = given_up.is_some();
        if any && want == Want::Descriptor {
            rt::sleep_until(rt::now() + CLOSING).await;
        } else if any {
            rt::yield_now().await;
        }
        any
    }

    /// Closes files or connections. Files that are only open for later requests are closed first, which affects no
    /// client.
    pub async fn give_up_descriptors(&self, generation: &Generation) -> bool {
        close_unused(generation).await || self.give_up(Want::Descriptor).await
    }

    /// Waits until a connection may be accepted. Further connections wait in the kernel's backlog.
    pub async fn room_to_accept(&self) {
        while let Some(want) = self.room.lacks() {
            if self.give_up(want).await {
                continue;
            }
            if let Some(alarm) = self.room.alarm(want) {
                error_log::write(self, Level::Alert, format_args!("{alarm}"));
            }
            self.room.changed().await;
        }
    }

    /// Returns a slot for a connection to an upstream; `None` if the remaining slots are reserved for accepted
    /// connections.
    pub async fn place_for_upstream(&self) -> Option<Counted> {
        let room = &self.room;
        let mut has_waited = false;
        // New connections may take the freed slots, so the number of attempts is limited.
        for _ in 0..=2 * room.places_for_clients() {
            if room.has_place_for_upstream() {
                break;
            }
            if self.give_up(Want::Connection).await {
                continue;
            }
            if has_waited || !room.has_quiet() {
                break;
            }
            has_waited = true;
            rt::sleep_until(rt::now() + GRACE).await;
        }
        if !room.has_place_for_upstream() {
            self.tally.count_refused(Refusal::Upstream, 1);
            return None;
        }
        Some(room.enter())
    }
}

/// Closes connections with stalled incomplete requests whenever receive buffers run out, until the thread ends. An idle
/// connection has no buffer and stays open.
pub async fn watch_buffers(thread: Rc<Thread>) {
    loop {
        rt::buffers_ran_out().await;
        let ended = thread.room.end_stalled();
        thread.tally.count_refused(Refusal::Buffers, ended);
        if let Some(more) = thread.room.alarms.buffers.due(rt::now()) {
            let bytes = rt::pool().bytes_max();
            error_log::write(
                &thread,
                Level::Alert,
                format_args!(
                    "buffers of {bytes} bytes are not enough for received bytes, {ended} connections with half a \
                     request were closed, remedy: a larger buffer_pool{more}"
                ),
            );
        }
        rt::sleep_until(rt::now() + BUFFERS_AGAIN).await;
    }
}

/// Closes cached files that no response uses, so that another file can be opened. Returns whether there were any.
async fn close_unused(generation: &Generation) -> bool {
    let files = generation.open_files.give_up(FILES_CLOSED);
    let any = !files.is_empty();
    for file in files {
        file.close().await;
    }
    any
}
