//! The system calls of the epoll backend: each is tried first; then the operation completes, waits or continues in the
//! next turn.

use std::io::IoSlice;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags};
use smallvec::SmallVec;

use super::table::{Registration, Side};
use super::{Epoll, wait_target};
use crate::buf::Buf;
use crate::fd::Fd;
use crate::op::{Completion, Interest, NetOp, OpId, Payload, PeerAddr, RECV_LARGE_BYTES, RecvInto};
use crate::segments::{SEGMENTS_MAX, Segment, Segments};
use crate::slot::Slots;

/// Maximum number of connections that a multishot accept accepts per turn, so that a burst does not starve the existing
/// connections.
const ACCEPTS_PER_TURN: usize = 16;

/// Maximum number of buffers that a streaming receive fills per turn, so that a flooding peer does not starve other
/// connections.
const STREAM_BUFFERS_PER_TURN: usize = 4;

impl Epoll {
    /// Makes the system call of an operation.
    pub(super) fn run(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let op = slots.net(id);
        // An operation that may have further results stays in its slot.
        if let NetOp::Recv { socket, into: into @ (RecvInto::Pool | RecvInto::Large | RecvInto::Stream) } = op
        {
            let (socket, streams) = (socket.clone(), matches!(into, RecvInto::Stream));
            let bytes = match into {
                RecvInto::Large => RECV_LARGE_BYTES as usize,
                _ => self.recv_buffer_bytes,
            };
            return self.recv_pooled(id, &socket, bytes, streams, slots, done);
        }
        match std::mem::take(op) {
            NetOp::Nop => slots.finish(id, Ok(0), false, Payload::None, done),
            NetOp::Close { fd } => {
                drop(fd);
                slots.finish(id, Ok(0), false, Payload::None, done);
            }
            NetOp::Accept { listener, multishot } => self.accept(id, listener, multishot, slots, done),
            NetOp::Recv { socket, into: RecvInto::Owned(buf) } => self.recv(id, socket, buf, slots, done),
            NetOp::Recv { .. } => unreachable!("a receive into the pool does not leave its slot"),
            NetOp::Send { socket, data, more, zero_copy } => {
                let result = send(&socket, &data, more);
                self.kernel_entries += 1;
                let full = match result {
                    Ok(count) => count < data.len(),
                    Err(error) => error == Errno::AGAIN,
                };
                assert!(
                    result.is_err() || result.is_ok_and(|count| count <= data.len()),
                    "the count of a send is at most its length"
                );
                // A short count means that the send buffer is full; an edge will report free space.
                self.table.of(&socket).writable &= !full;
                match result {
                    Ok(count) => {
                        slots.finish(id, Ok(count as u32), false, Payload::Segments(data), done);
                    }
                    Err(error) => {
                        self.retry_or_end(
                            id,
                            NetOp::Send { socket, data, more, zero_copy },
                            error,
                            slots,
                            done,
                        );
                    }
                }
            }
            NetOp::Connect { socket, peer } => self.connect(id, socket, peer, slots, done),
            NetOp::Poll { fd, interest } => self.poll(id, fd, interest, slots, done),
        }
    }

    /// Puts an operation whose call has failed back into its slot. The operation waits if the call would have blocked;
    /// otherwise it completes with the error.
    fn retry_or_end(
        &mut self,
        id: OpId,
        op: NetOp,
        error: Errno,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        let waits_at = wait_target(&op).map(|(side, fd)| (side, fd.clone()));
        *slots.net(id) = op;
        match waits_at {
            Some((side, fd)) => self.wait_or_end(id, side, &fd, error, slots, done),
            None => slots.end_with(id, Err(error), done),
        }
    }

    /// Makes an operation wait if its call would have blocked; otherwise it completes with the error.
    fn wait_or_end(
        &mut self,
        id: OpId,
        side: Side,
        fd: &Fd,
        error: Errno,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        if error == Errno::AGAIN {
            self.table.of(fd).exhaust(side);
            self.park(id, side, fd, slots, done);
        } else {
            slots.end_with(id, Err(error), done);
        }
    }

    fn accept(
        &mut self,
        id: OpId,
        listener: Fd,
        multishot: bool,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        let most = if multishot { ACCEPTS_PER_TURN } else { 1 };
        for _ in 0..most {
            self.kernel_entries += 1;
            match accept_one(&listener) {
                Ok(socket) => {
                    self.table.of(&listener).accepted += 1;
                    slots.finish(id, Ok(0), multishot, Payload::Accepted(socket), done);
                }
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    self.listeners_to_check.push(listener.clone());
                    return slots.end_with(id, Err(error), done);
                }
            }
            if !multishot {
                self.listeners_to_check.push(listener.clone());
                return;
            }
        }
        if self.table.of(&listener).accepted > 0 {
            self.listeners_to_check.push(listener.clone());
        }
        // Listeners are level-triggered, so their readiness is never recorded.
        *slots.net(id) = NetOp::Accept { listener: listener.clone(), multishot };
        self.park(id, Side::Accept, &listener, slots, done);
    }

    /// Receives into the caller's buffer.
    fn recv(&mut self, id: OpId, socket: Fd, mut buf: Buf, slots: &mut Slots, done: &mut Vec<Completion>) {
        self.kernel_entries += 1;
        let len = buf.len();
        match recv_some(&socket, buf.spare_capacity()) {
            Ok(count) => {
                self.note_received(&socket, count, buf.capacity() - len);
                buf.set_len(len + count);
                slots.finish(id, Ok(count as u32), false, Payload::Buf(buf), done);
            }
            Err(error) => {
                let op = NetOp::Recv { socket, into: RecvInto::Owned(buf) };
                self.retry_or_end(id, op, error, slots, done);
            }
        }
    }

    /// Receives into buffers of the pool: into one, or, if it `streams`, into as many as a turn allows.
    fn recv_pooled(
        &mut self,
        id: OpId,
        socket: &Fd,
        bytes: usize,
        streams: bool,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        let buffers_max = if streams { STREAM_BUFFERS_PER_TURN } else { 1 };
        for _ in 0..buffers_max {
            let fitting = self.pool.get(bytes);
            let Some(mut buf) = fitting.or_else(|| self.pool.get(self.recv_buffer_bytes)) else {
                self.recv_starved += 1;
                return self.starved.push_back(id);
            };
            self.kernel_entries += 1;
            let count = match recv_some(socket, buf.space()) {
                Ok(count) => count,
                Err(error) => {
                    drop(buf);
                    return self.wait_or_end(id, Side::Read, socket, error, slots, done);
                }
            };
            self.note_received(socket, count, buf.capacity());
            let more = streams && count > 0;
            buf.set_len(count);
            let payload = if count > 0 { Payload::Buf(buf) } else { Payload::None };
            slots.finish(id, Ok(count as u32), more, payload, done);
            if !more {
                return;
            }
            if !self.table.of(socket).readable {
                break;
            }
        }
        if self.table.of(socket).readable {
            self.again.push(id);
        } else {
            self.park(id, Side::Read, socket, slots, done);
        }
    }

    /// Records the readiness after a receive. A receive that did not fill its buffer has emptied the socket, and the
    /// next byte causes an edge. The exception is a peer that has closed its side, whose edge may already have been
    /// reported. A datagram implies nothing about the next one, which may have arrived without another edge.
    fn note_received(&mut self, socket: &Fd, count: usize, capacity: usize) {
        assert!(count <= capacity, "more bytes received than there is room for");
        let entry = self.table.of(socket);
        entry.readable = count == capacity || entry.hung_up || socket.has_datagrams();
    }

    /// Retries receives that found no buffer, while buffers are available.
    pub(super) fn feed_starved(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        for _ in 0..self.starved.len() {
            let Some(buf) = self.pool.get(self.recv_buffer_bytes) else { return };
            drop(buf);
            if let Some(id) = self.starved.pop_front() {
                self.run(id, slots, done);
            }
        }
    }

    fn connect(
        &mut self,
        id: OpId,
        socket: Fd,
        peer: PeerAddr,
        slots: &mut Slots,
        done: &mut Vec<Completion>,
    ) {
        // If an earlier call has started the connect, an event has shown its end, and the result is the socket's error
        // (`SO_ERROR`). Otherwise the call is made now.
        let entry = self.table.of(&socket);
        let asked = entry.registration == Registration::Edge && entry.connecting;
        entry.connecting = false;
        self.kernel_entries += 1;
        let result = if asked {
            rustix::net::sockopt::socket_error(&socket).and_then(|error| error)
        } else {
            connect_to(&socket, &peer)
        };
        match result {
            Err(Errno::INPROGRESS) => {
                let entry = self.table.of(&socket);
                entry.connecting = true;
                let op = NetOp::Connect { socket, peer };
                self.retry_or_end(id, op, Errno::AGAIN, slots, done);
            }
            result => slots.finish(id, result.map(|()| 0), false, Payload::None, done),
        }
    }

    fn poll(&mut self, id: OpId, fd: Fd, interest: Interest, slots: &mut Slots, done: &mut Vec<Completion>) {
        let wanted = match interest {
            Interest::Readable => PollFlags::IN | PollFlags::RDHUP,
            Interest::Writable => PollFlags::OUT,
            Interest::HangUp => PollFlags::RDHUP,
        };
        self.kernel_entries += 1;
        let mut asked = [PollFd::new(&fd, wanted)];
        let found = retry_on_intr(|| rustix::event::poll(&mut asked, Some(&Timespec::default())));
        let events = asked[0].revents().bits();
        match found {
            Ok(0) => self.retry_or_end(id, NetOp::Poll { fd, interest }, Errno::AGAIN, slots, done),
            found => slots.finish(id, found.map(|_| u32::from(events)), false, Payload::None, done),
        }
    }

    /// Completes a cancelled operation, which has been removed from all queues.
    pub(super) fn end_cancelled(&mut self, id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) {
        let listener = match slots.net(id) {
            NetOp::Accept { listener, .. } => Some(listener.clone()),
            _ => None,
        };
        // The kernel may have chosen this thread for a connection and woken no other thread, so that connection is
        // accepted first.
        if let Some(listener) = listener.filter(|_| !slots.is_abandoned(id)) {
            self.kernel_entries += 1;
            if let Ok(socket) = accept_one(&listener) {
                return slots.finish(id, Ok(0), false, Payload::Accepted(socket), done);
            }
        }
        slots.end_with(id, Err(Errno::CANCELED), done);
    }
}

/// Accepts a usable connection; skips connections that the peer aborted before (accept(2), "Error handling": treat
/// `ECONNABORTED` like `EAGAIN` by retrying).
fn accept_one(listener: &Fd) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        match rustix::net::accept_with(listener, flags) {
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            result => return result,
        }
    }
}

fn recv_some(socket: &Fd, space: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::net::recv(socket, &mut *space, RecvFlags::DONTWAIT)).map(|(_, count)| count)
}

fn send(socket: &Fd, data: &Segments, more: bool) -> Result<usize, Errno> {
    let slices: SmallVec<[IoSlice<'_>; SEGMENTS_MAX]> =
        data.parts().map(Segment::bytes).map(IoSlice::new).collect();
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    flags.set(SendFlags::MORE, more);
    let send = || rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags);
    let sent = retry_on_intr(send)?;
    debug_assert!(sent <= data.len(), "the count of a send is at most its length");
    Ok(sent)
}

fn connect_to(socket: &Fd, peer: &PeerAddr) -> Result<(), Errno> {
    match peer {
        PeerAddr::Inet(address) => rustix::net::connect(socket, address),
        PeerAddr::Unix(path) => rustix::net::connect(socket, &SocketAddrUnix::new(path.as_path())?),
    }
}
