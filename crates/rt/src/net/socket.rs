//! A connection: one reader and one writer over one descriptor, and the order in which it ends.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use io::op::{Interest, PeerAddr};
use io::{Buf, Errno, Fd, Op, Segments};
use rustix::net::sockopt;

use super::address;
use super::reader::{Behind, Reader};
use super::writer::{FilePart, Sending, Writer};
use crate::file::File;
use crate::reactor::{self, OpFuture, Reactor};

/// A connected stream socket. Dropping it cancels operations in flight and then closes it through the engine, without
/// waiting.
pub struct Socket {
    reactor: Rc<Reactor>,
    /// Closes the descriptor when it is dropped.
    reader: Reader,
    writer: Writer,
    /// Whether `TCP_NODELAY` is known to be set.
    nodelay: Cell<bool>,
}

impl Socket {
    /// A connected, non-blocking socket.
    pub fn new(fd: OwnedFd) -> Socket {
        Socket::over(&reactor::current(), Fd::from(fd))
    }

    fn over(reactor: &Rc<Reactor>, fd: Fd) -> Socket {
        Socket {
            reactor: Rc::clone(reactor),
            reader: Reader::new(reactor, fd.clone()),
            writer: Writer::new(reactor, fd),
            nodelay: Cell::new(false),
        }
    }

    pub(super) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// The descriptor.
    pub fn fd(&self) -> &Fd {
        self.writer.fd()
    }

    /// Both sides, to receive and send at the same time.
    pub fn split(&mut self) -> (&mut Reader, &mut Writer) {
        (&mut self.reader, &mut self.writer)
    }

    /// See [`Reader::recv`].
    pub async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        self.reader.recv().await
    }

    /// See [`Reader::poll_recv`].
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        self.reader.poll_recv(context)
    }

    /// See [`Reader::try_recv`].
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        self.reader.try_recv()
    }

    /// See [`Reader::recv_into`].
    pub async fn recv_into(&mut self, buf: Buf) -> Result<Option<Buf>, Errno> {
        self.reader.recv_into(buf).await
    }

    /// See [`Reader::recv_behind`].
    pub async fn recv_behind(&mut self, buf: Buf) -> Result<Behind, Errno> {
        self.reader.recv_behind(buf).await
    }

    /// See [`Reader::recv_behind_now`].
    pub fn recv_behind_now(&mut self, buf: &mut Buf) -> Option<Result<usize, Errno>> {
        self.reader.recv_behind_now(buf)
    }

    /// See [`Reader::recv_now`].
    pub fn recv_now(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        self.reader.recv_now()
    }

    /// On drop closes the descriptor by a call of this thread, unless an operation is in flight: for a connection,
    /// whose close never waits. An operation of the engine would cost more than the call.
    pub fn close_directly(&mut self) {
        self.reader.close_directly();
    }

    /// See [`Reader::disarm`].
    pub fn disarm(&mut self) {
        self.reader.disarm();
    }

    /// See [`Reader::news`].
    pub async fn news(&mut self) {
        self.reader.news().await;
    }

    /// See [`Reader::is_quiet`].
    pub fn is_quiet(&mut self) -> bool {
        self.reader.is_quiet()
    }

    /// See [`Writer::send`].
    pub fn send(&mut self, data: Segments, more: bool) -> Sending<'_> {
        self.writer.send(data, more)
    }

    /// See [`Writer::send_now`].
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        self.writer.send_now(data, more)
    }

    /// See [`Writer::copies`].
    pub fn copies(&self, len: usize) -> bool {
        self.writer.copies(len)
    }

    /// See [`Writer::sendfile_now`].
    pub fn sendfile_now(&mut self, file: &File, offset: u64, len: u32) -> Result<u32, Errno> {
        self.writer.sendfile_now(file, offset, len)
    }

    /// See [`Writer::poll_send`].
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        self.writer.poll_send(context, data, more)
    }

    /// See [`Writer::poll_sendfile`].
    pub fn poll_sendfile(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
    ) -> Poll<Result<u32, Errno>> {
        self.writer.poll_sendfile(context, part)
    }

    /// See [`Writer::poll_writable`].
    pub fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        self.writer.poll_writable(context)
    }

    /// See [`Writer::give_up`].
    pub fn give_up_sending(&mut self) {
        self.writer.give_up();
    }

    /// See [`Writer::sendfile`].
    pub async fn sendfile(&mut self, part: &FilePart<'_>) -> Result<u32, Errno> {
        self.writer.sendfile(part).await
    }

    /// See [`Writer::writable`].
    pub async fn writable(&mut self) -> Result<(), Errno> {
        self.writer.writable().await
    }

    /// See [`Writer::progress`].
    pub fn sent_progress(&self) -> u64 {
        self.writer.progress()
    }

    /// See [`Writer::set_zero_copy`].
    pub fn set_zero_copy(&mut self, threshold: Option<usize>) {
        self.writer.set_zero_copy(threshold);
    }

    /// See [`Reader::set_multishot`].
    pub fn set_multishot(&mut self, multishot: bool) {
        self.reader.set_multishot(multishot);
    }

    /// See [`Writer::shutdown`].
    pub fn shutdown_write(&self) {
        self.writer.shutdown();
    }

    /// The address of the other end. It is the kind of this connection, for the engine.
    pub fn peer(&self) -> Result<PeerAddr, Errno> {
        let peer = address::peer(self.fd())?;
        if matches!(peer, PeerAddr::Inet(_)) {
            self.fd().set_tcp();
        }
        Ok(peer)
    }

    /// The address of this end.
    pub fn local(&self) -> Result<PeerAddr, Errno> {
        address::local(self.fd())
    }

    /// `TCP_NODELAY`; an error on sockets of other families. To set it again costs no system call.
    pub fn set_nodelay(&self, on: bool) -> Result<(), Errno> {
        if on && self.nodelay.get() {
            return Ok(());
        }
        sockopt::set_tcp_nodelay(self.fd(), on)?;
        self.nodelay.set(on);
        Ok(())
    }

    /// `TCP_CORK` (nginx's `tcp_nopush`); an error on sockets of other families.
    pub fn set_cork(&self, on: bool) -> Result<(), Errno> {
        sockopt::set_tcp_cork(self.fd(), on)
    }

    /// Makes the close a reset, which frees the socket's memory at once (`reset_timedout_connection`).
    pub fn set_reset_on_close(&self) -> Result<(), Errno> {
        sockopt::set_socket_linger(self.fd(), Some(Duration::ZERO))
    }

    /// Closes and waits for it: first for the receive that is armed, then for the close.
    pub async fn close(self) {
        let Socket { reactor, mut reader, writer, nodelay: _ } = self;
        reader.stop().await;
        let fd = reader.release();
        drop(writer);
        // When an operation still holds the descriptor, it is closed with that one's end.
        if let Ok(fd) = fd.into_owned() {
            let _ = OpFuture::new(&reactor, Op::Close { fd }).last().await;
        }
    }
}

/// Waits until the peer of a connection has ended its side, or the connection is broken. Bytes that it sends meanwhile
/// stay in the socket.
pub async fn hung_up(fd: &Fd) {
    let reactor = reactor::current();
    let op = || Op::Poll { fd: fd.clone(), interest: Interest::HangUp };
    // Whatever else ends the wait is the end of the connection too.
    while OpFuture::new(&reactor, op()).last().await.result == Err(Errno::INTR) {}
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}
