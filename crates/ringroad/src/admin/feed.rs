//! Lines from the threads that serve to the clients that watch, in the first thread of the process.
//!
//! A socket that is full costs its client lines, and nothing else: no call here waits.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde_json::json;

use super::{PACKET_MAX, is_silent};
use crate::site::{Filter, Watcher, Worker};

/// From one look at the lines to the next: a line comes this much later, and packets have many lines under load.
const PAUSE: Duration = Duration::from_millis(10);

/// All clients that watch this process.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// In the order in which they came.
    clients: Vec<Client>,
    /// Lines wait for the next look.
    has_lines: bool,
    /// When that look may be.
    next: Option<Instant>,
}

/// One client.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Where threads leave lines.
    watcher: Arc<Watcher>,
    /// Lines that were taken, and how much of them was sent.
    lines: Vec<u8>,
    sent: usize,
    /// The socket was full.
    is_blocked: bool,
}

impl Feed {
    /// Begins to feed a client, and tells it so: requests that end from here on are shown. One whose filter this process cannot
    /// read gets nothing from it; the master has read it before.
    pub(crate) fn add(&mut self, worker: &Worker, filter: &str, socket: OwnedFd) {
        // Those that have left make room, also before their sockets were looked at.
        self.send(worker, false);
        let watcher = Filter::parse(filter).ok().and_then(|filter| worker.watch(filter));
        if let Some(watcher) = watcher {
            let begin = json!({ "watching": std::process::id() }).to_string() + "\n";
            let _ = send(&socket, begin.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            let client = Client { socket, watcher, lines: Vec::new(), sent: 0, is_blocked: false };
            self.clients.push(client);
        }
    }

    /// Adds descriptors for poll(2).
    pub(crate) fn poll<'f>(&'f self, polled: &mut Vec<PollFd<'f>>) {
        for client in &self.clients {
            let room = if client.is_blocked { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::new(&client.socket, PollFlags::IN | room));
        }
    }

    /// When lines that wait are due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.has_lines)
    }

    /// Sends what is due, and lets clients go that have left.
    pub(crate) fn turn(&mut self, worker: &Worker) {
        if self.clients.is_empty() {
            return;
        }
        self.has_lines |= worker.take_has_lines();
        let now = Instant::now();
        let is_due = self.has_lines && self.next.is_none_or(|next| next <= now);
        if is_due {
            (self.has_lines, self.next) = (false, Some(now + PAUSE));
        }
        self.send(worker, is_due);
    }

    /// The end of the process: sends what there is.
    pub(crate) fn finish(&mut self, worker: &Worker) {
        self.send(worker, true);
    }

    /// Serves each client. One that has gone is watched for no more, which spares requests the work.
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
    /// Sends packets until all is sent or the socket is full. False when the client has gone.
    fn send(&mut self, is_due: bool) -> bool {
        // Behind a full socket lines may have come that no look is due for.
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

    /// Takes the lines that wait; false where there are none.
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

/// The first whole lines that fit into a packet, one at least.
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
    fn packets_have_whole_lines() {
        assert_eq!(packet(b"a\nbc\n"), b"a\nbc\n");
        let long = [vec![b'x'; PACKET_MAX + 5], b"\ny\n".to_vec()].concat();
        assert_eq!(packet(&long).len(), PACKET_MAX + 6);
        let two = [vec![b'x'; PACKET_MAX - 5], b"\n".to_vec(), vec![b'y'; 20], b"\n".to_vec()].concat();
        assert_eq!(packet(&two).len(), PACKET_MAX - 4);
    }
}
