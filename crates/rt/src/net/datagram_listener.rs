//! UDP datagrams from and to any peer, over a socket that is bound to an address.
//!
//! The engine waits until the socket is readable or writable. The datagrams themselves are received and sent by system calls that do
//! not wait, several with each call (`io::sys`): so a datagram costs a fraction of an operation of the engine.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use io::op::{Interest, PeerAddr};
use io::sys::{self, Datagrams, DatagramsToSend};
use io::{Errno, Fd, NetOp, Op};
use rustix::net::SocketType;

use super::address;
use super::connect::{ConnectError, ConnectOptions, ConnectStep, family_of};
use crate::reactor::{self, OpFuture, Reactor};

/// A UDP socket that is bound to an address, or has one peer. Dropping it closes it through the engine.
pub struct DatagramListener {
    reactor: Rc<Reactor>,
    fd: Fd,
    /// Whether the kernel has refused to split datagrams.
    is_split_refused: Cell<bool>,
}

impl DatagramListener {
    /// Wraps a bound socket, which was prepared by [`sys::prepare_datagrams`].
    pub fn new(fd: OwnedFd) -> DatagramListener {
        let fd = Fd::from(fd);
        fd.set_datagrams();
        DatagramListener { reactor: reactor::current(), fd, is_split_refused: Cell::new(false) }
    }

    /// Creates a socket for datagrams to and from `peer`. Nothing is sent, so this does not wait. An unreachable peer is only
    /// detected later (`ECONNREFUSED` of a send or receive). Options of stream sockets are ignored.
    pub fn connect(peer: SocketAddr, options: &ConnectOptions) -> Result<DatagramListener, ConnectError> {
        let fd = options.prepare(family_of(&PeerAddr::Inet(peer)), SocketType::DGRAM)?;
        sys::join_received_datagrams(fd.as_fd());
        let connected = rustix::net::connect(&fd, &peer);
        connected.map_err(|errno| ConnectError { step: ConnectStep::Connect, errno })?;
        Ok(DatagramListener::new(fd))
    }

    /// Returns the address that the socket is bound to.
    pub fn local(&self) -> Result<SocketAddr, Errno> {
        match address::local(&self.fd)? {
            PeerAddr::Inet(address) => Ok(address),
            PeerAddr::Unix(_) => Err(Errno::AFNOSUPPORT),
        }
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Waits until datagrams or an error are queued.
    pub async fn readable(&self) -> Result<(), Errno> {
        self.wait(Interest::Readable).await
    }

    /// Waits until the send buffer has space.
    pub async fn writable(&self) -> Result<(), Errno> {
        self.wait(Interest::Writable).await
    }

    async fn wait(&self, interest: Interest) -> Result<(), Errno> {
        let op = Op::Net(NetOp::Poll { fd: self.fd.clone(), interest });
        match OpFuture::new(&self.reactor, op).await.result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Receives queued messages, as [`sys::receive_datagrams`] does.
    pub fn receive(&self, space: &mut [u8], each: impl FnMut(&Datagrams, &mut [u8])) -> Result<usize, Errno> {
        sys::receive_datagrams(self.fd.as_fd(), space, each)
    }

    /// Sends a message, as [`sys::send_datagrams`] does. If the kernel cannot split it, its datagrams are sent one after the other.
    pub fn send(&self, message: &DatagramsToSend<'_>) -> Result<(), Errno> {
        let Some(segment) = message.segment else { return sys::send_datagrams(self.fd.as_fd(), message) };
        if !self.is_split_refused.get() {
            match sys::send_datagrams(self.fd.as_fd(), message) {
                // The network device cannot compute the checksums, or the kernel is older than 4.18.
                Err(Errno::IO | Errno::INVAL) => self.is_split_refused.set(true),
                sent => return sent,
            }
        }
        for bytes in message.bytes.chunks(usize::from(segment).max(1)) {
            sys::send_datagrams(self.fd.as_fd(), &DatagramsToSend { segment: None, bytes, ..*message })?;
        }
        Ok(())
    }

    /// Whether the kernel splits messages.
    pub fn joins_datagrams(&self) -> bool {
        !self.is_split_refused.get()
    }
}

impl AsFd for DatagramListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        self.reactor.close(self.fd.clone());
    }
}
