//! A connection: one reader and one writer over one descriptor, and the order in which they are closed.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io::op::{Interest, PeerAddr};
use io::{Errno, Fd, NetOp, Op};
use rustix::net::sockopt;

use super::address;
use super::reader::Reader;
use super::writer::Writer;
use crate::reactor::{self, OpFuture};

/// A connected stream socket. Dropping it cancels operations in flight and then closes it through the engine, without
/// waiting.
pub struct Socket {
    /// The receiving side. It closes the descriptor when it is dropped.
    pub reader: Reader,
    /// The sending side.
    pub writer: Writer,
    /// Whether `TCP_NODELAY` is known to be set.
    nodelay: Cell<bool>,
}

impl Socket {
    /// Wraps a connected, non-blocking socket.
    pub fn new(fd: OwnedFd) -> Socket {
        let (reactor, fd) = (reactor::current(), Fd::from(fd));
        Socket {
            reader: Reader::new(&reactor, fd.clone()),
            writer: Writer::new(&reactor, fd),
            nodelay: Cell::new(false),
        }
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> &Fd {
        self.writer.fd()
    }

    /// Returns both sides, to receive and send concurrently.
    pub fn split(&mut self) -> (&mut Reader, &mut Writer) {
        (&mut self.reader, &mut self.writer)
    }

    /// Makes the drop close the descriptor by a system call on this thread, unless an operation is in flight. Closing a
    /// connection never blocks, and an operation of the engine would cost more than the system call.
    pub fn close_directly(&mut self) {
        self.reader.close_directly();
    }

    /// Returns the peer's address. Also marks a TCP connection for the engine.
    pub fn peer(&self) -> Result<PeerAddr, Errno> {
        let peer = address::peer(self.fd())?;
        if matches!(peer, PeerAddr::Inet(_)) {
            self.fd().set_tcp();
        }
        Ok(peer)
    }

    /// Returns the local address.
    pub fn local(&self) -> Result<PeerAddr, Errno> {
        address::local(self.fd())
    }

    /// Sets `TCP_NODELAY`; fails on sockets of other families. Setting it again makes no system call.
    pub fn set_nodelay(&self, on: bool) -> Result<(), Errno> {
        if on && self.nodelay.get() {
            return Ok(());
        }
        sockopt::set_tcp_nodelay(self.fd(), on)?;
        self.nodelay.set(on);
        Ok(())
    }

    /// Sets `TCP_CORK` (nginx's `tcp_nopush`); fails on sockets of other families.
    pub fn set_cork(&self, on: bool) -> Result<(), Errno> {
        sockopt::set_tcp_cork(self.fd(), on)
    }

    /// Makes the close send a reset, which frees the socket's memory immediately (`reset_timedout_connection`).
    pub fn set_reset_on_close(&self) -> Result<(), Errno> {
        sockopt::set_socket_linger(self.fd(), Some(Duration::ZERO))
    }

    /// Closes the connection and waits: first for the receive in flight to end, then for the close.
    pub async fn close(self) {
        let Socket { mut reader, writer, nodelay: _ } = self;
        reader.stop().await;
        let fd = reader.release();
        drop(writer);
        // If an operation still holds the descriptor, the descriptor is closed when that operation ends.
        if let Ok(fd) = fd.into_owned() {
            let _ = OpFuture::new(&reactor::current(), Op::Net(NetOp::Close { fd })).await;
        }
    }
}

/// Waits until the peer has closed its side of a connection, or the connection is broken. Bytes that arrive before stay
/// in the socket.
pub async fn hung_up(fd: &Fd) {
    let reactor = reactor::current();
    let op = || Op::Net(NetOp::Poll { fd: fd.clone(), interest: Interest::HangUp });
    // Any other result means that the connection has ended too.
    while OpFuture::new(&reactor, op()).await.result == Err(Errno::INTR) {}
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}
