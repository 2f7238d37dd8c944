//! UDP datagrams to and from one peer, such as a DNS server.
//!
//! ```text
//!   Idle --recv--> Armed --a datagram, an error--> Idle
//!                    | EAGAIN
//!                    v
//!                 Polling --readable--> Idle
//! ```
//! As in [`super::Reader`], the operation belongs to the socket, so a `recv` that is dropped because of a timer loses
//! no datagram. UDP itself may lose datagrams.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::op::{Interest, PeerAddr, RecvInto};
use io::{Buf, Errno, Fd, NetOp, Op, Payload, Segments};
use rustix::net::SocketType;

use super::connect::{ConnectError, ConnectOptions, ConnectStep, family_of};
use super::receiving::Receiving;
use crate::op_table::{Outcome, UNLIMITED};
use crate::reactor::{self, OpFuture, Reactor};

/// A UDP socket with one peer: it receives no data from other senders. Dropping it closes it through the engine.
pub struct Datagram {
    reactor: Rc<Reactor>,
    fd: Fd,
    state: Receiving,
}

impl Datagram {
    /// Creates a socket for datagrams to and from `peer`. Nothing is sent, so this does not wait. An unreachable peer
    /// is only detected later (`ECONNREFUSED` of a send or receive). Options of stream sockets are ignored.
    pub fn connect(peer: SocketAddr, options: &ConnectOptions) -> Result<Datagram, ConnectError> {
        let fd = options.prepare(family_of(&PeerAddr::Inet(peer)), SocketType::DGRAM)?;
        let connected = rustix::net::connect(&fd, &peer);
        connected.map_err(|errno| ConnectError { step: ConnectStep::Connect, errno })?;
        let fd = Fd::from(fd);
        fd.set_datagrams();
        Ok(Datagram { reactor: reactor::current(), fd, state: Receiving::Idle })
    }

    /// Sends all of `data`, which may be empty, as one datagram; fails with `EMSGSIZE` when it is too long. Returns the
    /// segments for reuse of their vectors. If the future is dropped, it is unknown whether the datagram was sent.
    pub async fn send(&self, data: Segments) -> (Result<(), Errno>, Segments) {
        let mut data = data;
        loop {
            let op = Op::Net(NetOp::Send { socket: self.fd.clone(), data, more: false, zero_copy: false });
            let Outcome { result, payload, .. } = OpFuture::new(&self.reactor, op).await;
            data = match (result, payload) {
                (Err(Errno::INTR), Payload::Segments(data)) => data,
                (Err(Errno::AGAIN), Payload::Segments(data)) => match self.writable().await {
                    Ok(()) => data,
                    Err(errno) => return (Err(errno), data),
                },
                (result, Payload::Segments(data)) => return (result.map(drop), data),
                // An engine that has ended does not return the segments.
                (result, _) => return (Err(result.err().unwrap_or(Errno::IO)), Segments::new()),
            };
        }
    }

    async fn writable(&self) -> Result<(), Errno> {
        let op = Op::Net(NetOp::Poll { fd: self.fd.clone(), interest: Interest::Writable });
        match OpFuture::new(&self.reactor, op).await.result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Receives the next datagram, which may be empty, into `buf`, or into the buffer of an earlier call that was
    /// dropped. A longer datagram is truncated, so a full buffer may hold only a part of one. Dropping the future loses
    /// nothing. An error such as `ECONNREFUSED` affects only this call.
    pub async fn recv(&mut self, buf: Buf) -> Result<Buf, Errno> {
        let mut buf = Some(buf);
        poll_fn(|context| self.poll_recv(context, &mut buf)).await
    }

    fn poll_recv(&mut self, context: &mut Context<'_>, buf: &mut Option<Buf>) -> Poll<Result<Buf, Errno>> {
        loop {
            match self.state {
                Receiving::Idle => {
                    let empty = buf.take().map(|mut buf| {
                        buf.set_len(0);
                        buf
                    });
                    let into = empty.map_or(RecvInto::Pool, RecvInto::Owned);
                    let op = Op::Net(NetOp::Recv { socket: self.fd.clone(), into });
                    self.state = Receiving::Armed(self.reactor.start(op, UNLIMITED));
                }
                Receiving::Armed(wait) => {
                    let Outcome { result, payload, .. } = ready!(self.reactor.poll_wait(wait, context));
                    self.state = Receiving::Idle;
                    let back = match payload {
                        Payload::Buf(back) => Some(back),
                        _ => None,
                    };
                    match (result, back) {
                        (Ok(count), Some(back)) => {
                            assert_eq!(count as usize, back.len(), "the buffer holds what was received");
                            return Poll::Ready(Ok(back));
                        }
                        (Ok(_), None) => return Poll::Ready(Err(Errno::IO)),
                        (Err(Errno::INTR), back) => *buf = back.or(buf.take()),
                        (Err(Errno::AGAIN), back) => {
                            *buf = back.or(buf.take());
                            self.state = Receiving::poll(&self.reactor, &self.fd);
                        }
                        (Err(errno), _) => return Poll::Ready(Err(errno)),
                    }
                }
                Receiving::Polling(wait) => {
                    let outcome = ready!(self.reactor.poll_wait(wait, context));
                    self.state = Receiving::Idle;
                    match outcome.result {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Poll::Ready(Err(errno)),
                    }
                }
            }
        }
    }

    /// Returns the local address.
    pub fn local(&self) -> Result<PeerAddr, Errno> {
        super::address::local(&self.fd)
    }
}

impl AsFd for Datagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.state.close(&self.reactor, &self.fd);
    }
}
