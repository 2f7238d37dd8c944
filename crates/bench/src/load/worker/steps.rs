//! The steps of a connection: connect, send requests, receive responses, close.
//!
//! The module above contains the other half of [`Worker`], which decides when a step is due; [`super::count`] counts
//! the results.

use std::os::fd::OwnedFd;

use io::op::{PeerAddr, RecvInto};
use io::segments::Source;
use io::{Completion, Errno, NetOp, Op, Payload, Segments};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Worker;
use crate::failure::Failure;
use crate::load::link::State;
use crate::load::outcome::Failed;
use crate::load::plan::Reuse;
use crate::load::reader::Response;

/// Time in nanoseconds before a failed connection is retried.
const RETRY: u64 = 10_000_000;
impl Worker<'_> {
    /// Passes a completion to the connection of its operation.
    pub(super) fn complete(&mut self, completion: Completion) {
        let id = completion.id;
        let index = completion.token as usize;
        let link = &mut self.links[index];
        // Other completions are of a close, or of an operation that was abandoned while handling the batch.
        if link.connect == Some(id) {
            link.connect = None;
            self.connected(index, completion.result);
        } else if link.send == Some(id) {
            self.sent(index, completion);
        } else if link.recv == Some(id) {
            self.received(index, completion);
        }
    }

    /// Sends the queued bytes, unless a send is in flight.
    pub(super) fn flush(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.send.is_some() || link.state != State::Open {
            return;
        }
        let Some(socket) = link.socket.clone() else { return };
        // The vector is moved into the send and returned with its completion: two vectors alternate for the life of the
        // connection.
        let Ok(bytes) = link.outgoing() else { return self.fail(index, Failed::Reset) };
        if bytes.is_empty() {
            return;
        }
        let mut data = Segments::new();
        data.push(Source::Vec(bytes));
        let op = Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false });
        self.links[index].send = self.submit(index, op);
    }

    /// Handles the completion of a send: sends the remaining bytes, or those queued since.
    fn sent(&mut self, index: usize, completion: Completion) {
        let link = &mut self.links[index];
        link.send = None;
        let (Ok(count), Payload::Segments(mut data)) = (completion.result, completion.payload) else {
            if link.state == State::Open {
                self.fail(index, Failed::Reset);
            }
            return;
        };
        // A partial send is normal if the server reads slowly.
        data.advance(count as usize);
        if data.is_empty() {
            if let Some(mut bytes) = data.take_vec() {
                bytes.clear();
                link.spare = bytes;
            }
            self.flush(index);
        } else if let Some(socket) = link.socket.clone() {
            let op = Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false });
            self.links[index].send = self.submit(index, op);
        }
    }

    /// Starts to connect; the queued bytes are sent once the connection is established.
    pub(super) fn begin_connect(&mut self, index: usize) {
        let peer = self.peer().clone();
        let socket = match socket_for(&peer) {
            Ok(socket) => io::Fd::from(socket),
            Err(errno) => return self.connect_failed(index, errno),
        };
        self.links[index].socket = Some(socket.clone());
        self.links[index].state = State::Connecting { since: self.now };
        self.links[index].connect = self.submit(index, Op::Net(NetOp::Connect { socket, peer }));
    }

    /// Handles the completion of a connect: arms the receive, which stays armed until the connection ends.
    fn connected(&mut self, index: usize, result: Result<u32, Errno>) {
        if let Err(errno) = result {
            return self.connect_failed(index, errno);
        }
        self.has_connected = true;
        // Only established connections are counted; refused ones count as errors.
        self.tally.connections += 1;
        if let Some(client) = &self.plan.tls {
            // The first step generates the ClientHello.
            let begun = client.session("server", "bench").and_then(|mut session| {
                session.read(&mut [], &mut |_| {})?;
                Ok(session)
            });
            match begun {
                Ok(session) => self.links[index].tls = Some(Box::new(session)),
                Err(error) => self.failure = Some(Failure::Other(format!("TLS: {error}"))),
            }
        }
        let link = &mut self.links[index];
        link.state = State::Open;
        let Some(socket) = link.socket.clone() else { return };
        let op = Op::Net(NetOp::Recv { socket, into: RecvInto::Stream });
        self.links[index].recv = self.submit(index, op);
        self.flush(index);
        self.offer(index);
    }

    /// Handles a failed connect. If no connection has been established before, the load fails: the address is wrong, or
    /// nothing listens there.
    pub(super) fn connect_failed(&mut self, index: usize, errno: Errno) {
        if !self.has_connected {
            let peer = match self.peer() {
                PeerAddr::Inet(address) => address.to_string(),
                PeerAddr::Unix(path) => path.display().to_string(),
            };
            self.failure = Some(Failure::kernel(format!("connect to {peer}"))(errno));
        }
        if self.links[index].pending.is_some() {
            self.fail_request(index, Failed::Connect);
        } else {
            // A request that waits for a connection fails with it, so that the load ends even if nothing listens any
            // more.
            let due = self.schedule.take(self.now).unwrap_or(self.now);
            self.count_failed(Failed::Connect, due);
        }
        self.close(index, self.now + RETRY);
    }

    /// Handles received bytes, the end of the stream, or an error.
    fn received(&mut self, index: usize, completion: Completion) {
        let is_last = !completion.more;
        if is_last {
            self.links[index].recv = None;
        }
        match (completion.result, completion.payload) {
            (Ok(1..), Payload::Buf(mut bytes)) => {
                // Bytes after the last response belong to no request and are discarded.
                if self.links[index].state == State::Open {
                    match self.links[index].tls.is_some() {
                        false => self.read(index, &bytes),
                        true => self.read_sealed(index, &mut bytes),
                    }
                }
                let link = &mut self.links[index];
                if let (true, Some(socket), None) = (is_last, link.socket.clone(), link.recv) {
                    let op = Op::Net(NetOp::Recv { socket, into: RecvInto::Stream });
                    self.links[index].recv = self.submit(index, op);
                }
            }
            (Ok(_), _) => self.ended(index),
            (Err(_), _) if self.links[index].state == State::Open => self.fail(index, Failed::Reset),
            (Err(_), _) => self.replace_connection(index),
        }
    }

    /// Decrypts records and parses their content. Sends queued requests when the handshake has completed.
    fn read_sealed(&mut self, index: usize, bytes: &mut [u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let Some(session) = &mut self.links[index].tls else { return };
        let opened = session.read(bytes, &mut |bytes| plain.extend_from_slice(bytes));
        let is_ended = opened.is_err() || session.peer_closed();
        if !plain.is_empty() {
            self.read(index, &plain);
        }
        self.plain = plain;
        if opened.is_err() && self.links[index].state == State::Open {
            return self.fail(index, Failed::Parse);
        }
        if !is_ended {
            self.flush(index);
        }
    }

    /// Parses received bytes into responses, and sends a new request for each of them.
    fn read(&mut self, index: usize, bytes: &[u8]) {
        let mut input = bytes;
        while !input.is_empty() {
            match self.links[index].reader.read(&mut self.heads, &mut input) {
                Ok(Some(response)) => {
                    if !self.responded(index, response) {
                        return;
                    }
                }
                Ok(None) => break,
                Err(failed) => return self.fail(index, failed),
            }
        }
        if self.links[index].pending.is_none() && self.links[index].reader.is_within_answer() {
            return self.fail(index, Failed::Parse);
        }
        self.offer(index);
    }

    /// Counts a response; returns whether the connection stays open.
    fn responded(&mut self, index: usize, response: Response) -> bool {
        let Some(pending) = self.links[index].pending.take() else {
            // The server sent a response without a request.
            self.fail(index, Failed::Parse);
            return false;
        };
        self.under_way -= 1;
        self.count(pending, response);
        if response.is_kept && self.plan.reuse != Reuse::PerRequest {
            return true;
        }
        if response.is_kept {
            self.replace_connection(index);
        } else {
            // The server has announced the close: the generator waits for it, so that TIME_WAIT is on the server's
            // side.
            self.links[index].state = State::Closing { since: self.now };
        }
        false
    }

    /// Handles the orderly end of a server's stream.
    fn ended(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.state == State::Open {
            match link.reader.end(&self.heads) {
                Ok(Some(_)) if link.pending.is_none() => return self.fail(index, Failed::Parse),
                Ok(Some(response)) => {
                    self.responded(index, response);
                }
                Ok(None) if link.pending.is_none() => {}
                Ok(None) => return self.fail(index, Failed::Reset),
                Err(failed) => return self.fail(index, failed),
            }
        }
        self.replace_connection(index);
    }

    /// Fails the request in flight and opens a new connection.
    pub(super) fn fail(&mut self, index: usize, failed: Failed) {
        self.fail_request(index, failed);
        self.replace_connection(index);
    }

    /// Fails the request in flight; without one, the failure counts for the connection.
    fn fail_request(&mut self, index: usize, failed: Failed) {
        let pending = self.links[index].pending.take();
        self.under_way -= u64::from(pending.is_some());
        self.count_failed(failed, pending.map_or(self.now, |pending| pending.due));
    }

    /// Closes a connection and opens the next one in the same slot.
    pub(super) fn replace_connection(&mut self, index: usize) {
        self.close(index, self.now);
        self.revive(index);
    }

    pub(super) fn revive(&mut self, index: usize) {
        match self.plan.reuse {
            Reuse::PerRequest => self.offer(index),
            Reuse::KeepAlive if self.schedule.is_over(self.now) => {}
            Reuse::KeepAlive => self.begin_connect(index),
        }
    }

    /// Closes a connection, including its operations in flight, and keeps it closed until `retry_at`.
    fn close(&mut self, index: usize, retry_at: u64) {
        let link = &mut self.links[index];
        self.under_way -= u64::from(link.pending.is_some());
        let operations = [link.connect.take(), link.recv.take(), link.send.take()];
        let socket = link.socket.take();
        link.reset(retry_at);
        // The engine reports no further completions of these operations, and recovers their buffers.
        for id in operations.into_iter().flatten() {
            self.engine.abandon(id);
        }
        // A socket that an abandoned operation still references is closed when the operation completes.
        if let Some(Ok(fd)) = socket.map(io::Fd::into_owned) {
            let _closed_here_when_refused = self.engine.submit(Op::Net(NetOp::Close { fd }), index as u64);
        }
    }
}

/// Creates a socket for a connection to `peer`, with TCP_NODELAY.
fn socket_for(peer: &PeerAddr) -> Result<OwnedFd, Errno> {
    let family = match peer {
        PeerAddr::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        PeerAddr::Inet(_) => AddressFamily::INET6,
        PeerAddr::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if family != AddressFamily::UNIX {
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    }
    Ok(socket)
}
