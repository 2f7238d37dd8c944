//! Passes lines from the server's threads to the watching clients, in the main thread of the worker process.
//!
//! If a client's socket is full, this client loses lines; no call here blocks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde_json::json;

use super::{PACKET_MAX, is_silent};
use crate::adapter::{Filter, Watcher, Worker};

/// Minimum time between two collections of lines. A line is delayed by up to this time, and under load a packet has
/// many lines.
const PAUSE: Duration = Duration::from_millis(10);

/// All clients that watch this process.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// The clients in the order of their arrival.
    clients: Vec<Client>,
    /// Whether lines wait to be collected.
    has_lines: bool,
    /// Earliest time of the next collection.
    next: Option<Instant>,
}

/// A watching client.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// The queue into which the server's threads put lines.
    watcher: Arc<Watcher>,
    /// Collected lines, and the number of bytes already sent.
    lines: Vec<u8>,
    sent: usize,
    /// Whether the socket was full.
    is_blocked: bool,
}

impl Feed {
    /// Adds a client and sends it a first packet. The client gets the requests that finish from now on. If this process
    /// cannot parse the filter, it sends nothing; this does not happen, because the master has already parsed the
    /// filter.
    pub(crate) fn add(&mut self, worker: &Worker, filter: &str, socket: OwnedFd) {
        // Removes disconnected clients, so that their slots are free even if their sockets have not been polled since.
        self.send(worker, false);
        let watcher = Filter::parse(filter).ok().and_then(|filter| worker.watch(filter));
        if let Some(watcher) = watcher {
            let begin = json!({ "watching": std::process::id() }).to_string() + "\n";
            let _ = send(&socket, begin.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            let client = Client { socket, watcher, lines: Vec::new(), sent: 0, is_blocked: false };
            self.clients.push(client);
        }
    }

    /// Adds the descriptors for poll(2).
    pub(crate) fn poll<'f>(&'f self, polled: &mut Vec<PollFd<'f>>) {
        for client in &self.clients {
            let room = if client.is_blocked { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::new(&client.socket, PollFlags::IN | room));
        }
    }

    /// Returns the time of the next collection, if lines are waiting.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.has_lines)
    }

    /// Sends lines that are due, and removes clients that have disconnected.
    pub(crate) fn turn(&mut self, worker: &Worker) {
        // Also without clients: a line of a client that has just been removed must not suppress the wake-up for the next client.
        self.has_lines |= worker.take_has_lines();
        if self.clients.is_empty() {
            self.has_lines = false;
            return;
        }
        let now = Instant::now();
        let is_due = self.has_lines && self.next.is_none_or(|next| next <= now);
        if is_due {
            (self.has_lines, self.next) = (false, Some(now + PAUSE));
        }
        self.send(worker, is_due);
    }

    /// Sends all remaining lines at the end of the process.
    pub(crate) fn finish(&mut self, worker: &Worker) {
        self.send(worker, true);
    }

    /// Sends to each client. The watcher of a disconnected client is removed, which saves work for requests.
    fn send(&mut self, worker: &Worker, is_due: bool) {
        self.clients.retain_mut(|client| {
            let stays = is_silent(&client.socket) && client.send(is_due);
            if !stays {
                worker.unwatch(&client.watcher);
            }
            stays
        });
    }
}

impl Client {
    /// Sends packets until all lines are sent or the socket is full. Returns false if the client has disconnected.
    fn send(&mut self, is_due: bool) -> bool {
        // While the socket was full, lines may have accumulated; they are sent without waiting for the next collection.
        let mut may_take = is_due || self.is_blocked;
        loop {
            if self.sent == self.lines.len() {
                self.sent = 0;
                self.lines.clear();
                if !std::mem::take(&mut may_take) || !self.take() {
                    return true;
                }
            }
            let packet = packet(&self.lines[self.sent..]);
            match send(&self.socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => self.sent += packet.len(),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    return true;
                }
                Err(_) => return false,
            }
            self.is_blocked = false;
        }
    }

    /// Collects the waiting lines; returns false without lines.
    fn take(&mut self) -> bool {
        let (lines, dropped) = self.watcher.take();
        self.lines = lines;
        if dropped > 0 {
            self.lines.extend_from_slice(json!({ "dropped": dropped }).to_string().as_bytes());
            self.lines.push(b'\n');
        }
        !self.lines.is_empty()
    }
}

/// Returns the first complete lines that fit into a packet, at least one.
fn packet(lines: &[u8]) -> &[u8] {
    let fits = &lines[..lines.len().min(PACKET_MAX)];
    let end = fits.iter().rposition(|&byte| byte == b'\n');
    let end = end.or_else(|| lines.iter().position(|&byte| byte == b'\n'));
    &lines[..end.map_or(lines.len(), |end| end + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_contain_complete_lines() {
        assert_eq!(packet(b"a\nbc\n"), b"a\nbc\n");
        let long = [vec![b'x'; PACKET_MAX + 5], b"\ny\n".to_vec()].concat();
        assert_eq!(packet(&long).len(), PACKET_MAX + 6);
        let two = [vec![b'x'; PACKET_MAX - 5], b"\n".to_vec(), vec![b'y'; 20], b"\n".to_vec()].concat();
        assert_eq!(packet(&two).len(), PACKET_MAX - 4);
    }
}
