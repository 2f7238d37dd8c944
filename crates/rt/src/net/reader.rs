//! The receiving side of a connection.
//!
//! ```text
//!   Idle --recv--> Armed --terminal result--> Idle --end of stream--> (recv returns None from now on)
//!                   | EAGAIN
//!                   v
//!                Polling --readable--> Idle
//! ```
//! The operation belongs to the reader, not to the future of `recv`: a `recv` that is dropped because a timer fired
//! first loses no data.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::op::RecvInto;
use io::{Buf, Errno, Fd, NetOp, Op, Payload};
use rustix::net::RecvFlags;

use super::pipe::Pipe;
use super::receiving::Receiving;
use crate::op_table::{OpHandle, Outcome, UNLIMITED};
use crate::reactor::Reactor;

/// Maximum number of received buffers that wait for the connection's task before receiving stops. A pipelining client
/// fills one or two; a flood must not use up the thread's buffers.
pub const QUEUE_DEFAULT: u16 = 4;

/// The receiving side of a [`crate::Socket`].
pub struct Reader {
    reactor: Rc<Reactor>,
    fd: Fd,
    state: Receiving,
    end: bool,
    /// A result that [`Reader::readable`] has received and that the next `recv` returns. Boxed, because few connections
    /// ever have one.
    stored: Option<Box<Result<Buf, Errno>>>,
    /// Whether dropping the reader closes the descriptor.
    closes: bool,
    multishot: bool,
    /// Whether single-shot receives use large buffers.
    large: bool,
    queue: u16,
}

/// The destination of the next bytes when no receive is in flight.
enum Target {
    Multishot,
    Once,
    /// `None` while a receive has the buffer.
    Into(Option<Buf>),
}

/// The result of [`Reader::poll_splice`].
pub enum Filled {
    /// A pipe with bytes.
    Pipe(Pipe),
    /// The end of the stream.
    End,
    /// No pipe is free: the bytes must be received.
    NoPipe,
}

/// The result of [`Reader::recv_append`].
#[derive(Debug)]
pub enum Appended {
    /// The buffer with the received bytes appended.
    Grown(Buf),
    /// The unchanged buffer, and bytes that had arrived before the call.
    Separate(Buf, Buf),
    /// The end of the stream.
    End,
}

impl Reader {
    pub(super) fn new(reactor: &Rc<Reactor>, fd: Fd) -> Reader {
        Reader {
            reactor: Rc::clone(reactor),
            fd,
            state: Receiving::Idle,
            end: false,
            stored: None,
            closes: true,
            multishot: true,
            large: false,
            queue: QUEUE_DEFAULT,
        }
    }

    /// Returns the next bytes in a buffer that the engine picked; `None` at the end of the stream. One multishot
    /// receive stays in flight and fills a queue of a few buffers. Dropping the future loses no bytes.
    pub async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`Reader::recv`], for a hand-written future.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        let mut target = if self.multishot { Target::Multishot } else { Target::Once };
        self.poll(context, &mut target)
    }

    /// Returns bytes that have already been received, without starting another receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        if let Some(stored) = self.stored.take() {
            return Some((*stored).map(Some));
        }
        let Receiving::Armed(wait) = self.state else { return None };
        let outcome = self.reactor.try_wait(wait)?;
        self.handle(outcome)
    }

    /// Waits until `recv` has a result: bytes, the end of the stream, or an error. It consumes nothing. For an idle
    /// connection, whose peer should send nothing: after any of these results, the connection cannot be reused.
    /// Dropping the future leaves the receive in flight, for [`Reader::is_quiet`].
    pub async fn readable(&mut self) {
        if self.stored.is_none() && !self.end {
            match poll_fn(|context| self.poll_recv(context)).await {
                Ok(Some(buf)) => self.stored = Some(Box::new(Ok(buf))),
                Ok(None) => {}
                Err(errno) => self.stored = Some(Box::new(Err(errno))),
            }
        }
    }

    /// Whether the connection has no unread bytes, no end of stream and no error. With a receive in flight, as after a
    /// dropped [`Reader::readable`], this needs no system call and reflects the start of this turn. Otherwise a system call
    /// checks it.
    pub fn is_quiet(&mut self) -> bool {
        if self.end || self.stored.is_some() {
            return false;
        }
        if let Receiving::Armed(wait) = self.state {
            // A receive may have ended without a result for the caller, such as an interrupted one.
            while let Some(outcome) = self.reactor.try_wait(wait) {
                let stored = match self.handle(outcome) {
                    None if matches!(self.state, Receiving::Armed(_)) => continue,
                    None => break,
                    Some(Ok(None)) => None,
                    Some(Ok(Some(buf))) => Some(Ok(buf)),
                    Some(Err(errno)) => Some(Err(errno)),
                };
                self.stored = stored.map(Box::new);
                return false;
            }
        }
        match self.state {
            Receiving::Armed(_) => true,
            Receiving::Polling(wait) if self.reactor.has_result(wait) => false,
            Receiving::Polling(_) | Receiving::Idle => is_silent(&self.fd),
        }
    }

    /// Receives the next bytes into `buf`, for bodies: one receive per call, into memory of the caller's size. Bytes
    /// that have already been received are returned first, in their own buffer instead of `buf`. Returns `None` at the
    /// end of the stream. Dropping the future loses no bytes.
    pub async fn recv_into(&mut self, buf: Buf) -> Result<Option<Buf>, Errno> {
        let mut target = Target::Into(Some(buf));
        poll_fn(|context| self.poll(context, &mut target)).await
    }

    /// As [`Reader::recv_into`], behind the present content of `buf`. A dropped future may lose the buffer with its
    /// content, so a caller that drops it must close the connection.
    pub async fn recv_append(&mut self, buf: Buf) -> Result<Appended, Errno> {
        let mut target = Target::Into(Some(buf));
        poll_fn(|context| {
            let received = ready!(self.poll(context, &mut target))?;
            let held = match &mut target {
                Target::Into(held) => held.take(),
                Target::Multishot | Target::Once => None,
            };
            Poll::Ready(Ok(match (received, held) {
                (None, _) => Appended::End,
                (Some(received), Some(held)) => Appended::Separate(held, received),
                (Some(received), None) => Appended::Grown(received),
            }))
        })
        .await
    }

    /// Returns received bytes by a system call on this thread; `None` if a receive is in flight or the call would
    /// block. For callers that have been notified that bytes have arrived.
    pub fn recv_now(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        if !matches!(self.state, Receiving::Idle) || self.end || self.stored.is_some() {
            return None;
        }
        let mut buf = self.reactor.pool.get(self.reactor.caps.recv_buffer_bytes as usize)?;
        let received = self.recv_append_now(&mut buf)?;
        Some(received.map(|count| (count > 0).then_some(buf)))
    }

    /// As [`Reader::recv_now`], behind the present content of `buf`. Returns the number of bytes; 0 at the end of the
    /// stream.
    pub fn recv_append_now(&mut self, buf: &mut Buf) -> Option<Result<usize, Errno>> {
        if !matches!(self.state, Receiving::Idle) || self.end || self.stored.is_some() {
            return None;
        }
        let held = buf.len();
        assert!(held < buf.capacity(), "the buffer has room for received bytes");
        self.reactor.note_received();
        match rustix::net::recv(&self.fd, buf.spare_capacity(), RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                self.end = count == 0;
                buf.set_len(held + count);
                Some(Ok(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(Err(errno)),
        }
    }

    /// Whether the next bytes can be moved to a pipe: no received bytes are in memory, and no receive is in flight.
    pub fn can_splice(&self) -> bool {
        self.stored.is_none() && !matches!(self.state, Receiving::Armed(_))
    }

    /// Moves at most `len` received bytes to a pipe, and waits until any have arrived; the wait occupies no pipe. Only if
    /// [`Reader::can_splice`] is true. Dropping the future loses no bytes.
    pub fn poll_splice(&mut self, context: &mut Context<'_>, len: usize) -> Poll<Result<Filled, Errno>> {
        loop {
            match self.state {
                _ if self.end => return Poll::Ready(Ok(Filled::End)),
                Receiving::Idle if self.reactor.closed.get() => return Poll::Ready(Err(Errno::CANCELED)),
                Receiving::Idle => {
                    let Some(mut pipe) = Pipe::get(&self.reactor) else {
                        return Poll::Ready(Ok(Filled::NoPipe));
                    };
                    self.reactor.note_received();
                    match pipe.fill(&self.fd, len) {
                        Ok(0) => self.end = true,
                        Ok(_) => return Poll::Ready(Ok(Filled::Pipe(pipe))),
                        Err(Errno::AGAIN) => self.state = Receiving::poll(&self.reactor, &self.fd),
                        Err(Errno::INTR) => {}
                        Err(errno) => return Poll::Ready(Err(errno)),
                    }
                }
                Receiving::Polling(wait) => ready!(self.poll_arrival(context, wait))?,
                Receiving::Armed(_) => return Poll::Ready(Err(Errno::BUSY)),
            }
        }
    }

    /// Cancels a receive in flight. Returns its results one after the other; `None` when it has ended.
    pub fn poll_disarmed(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Option<Buf>, Errno>>> {
        if let Some(stored) = self.stored.take() {
            return Poll::Ready(Some((*stored).map(Some)));
        }
        while let Receiving::Armed(wait) = self.state {
            if !self.reactor.has_result(wait) {
                self.reactor.cancel(wait);
            }
            let outcome = ready!(self.reactor.poll_wait(wait, context));
            if let Some(result) = self.handle(outcome) {
                return Poll::Ready(Some(result));
            }
        }
        Poll::Ready(None)
    }

    /// Waits for the result of a poll for readiness.
    fn poll_arrival(&mut self, context: &mut Context<'_>, wait: OpHandle) -> Poll<Result<(), Errno>> {
        let outcome = ready!(self.reactor.poll_wait(wait, context));
        if !outcome.more {
            self.state = Receiving::Idle;
        }
        match outcome.result {
            Err(errno) if !matches!(errno, Errno::INTR | Errno::CANCELED) => Poll::Ready(Err(errno)),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Acknowledges received bytes immediately instead of after the kernel's delay, or together with the next bytes that are sent
    /// (`TCP_QUICKACK`, tcp(7)). For messages without a response; fails on sockets of other families, where it is not needed.
    pub fn acknowledge(&self) {
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.fd, true);
    }

    /// Cancels a receive in flight until the next `recv`: bytes of the peer stay in the kernel's receive buffer and
    /// occupy no buffer of the pool.
    pub fn disarm(&mut self) {
        if let Receiving::Armed(wait) = self.state {
            self.reactor.cancel(wait);
        }
    }

    /// Leaves closing to the last owner of the descriptor, which makes the system call on this thread. Has no effect if
    /// an operation is still in flight.
    pub(super) fn close_directly(&mut self) {
        self.closes = !matches!(self.state, Receiving::Idle);
    }

    /// Sets whether a multishot receive stays in flight (the default) or each `recv` submits a single-shot receive. A
    /// single-shot receive is cheaper for a connection that serves one request and is closed.
    pub fn set_multishot(&mut self, multishot: bool) {
        self.multishot = multishot;
    }

    /// Sets whether a single-shot receive uses a large buffer where the engine has one: for a peer that sends bodies.
    pub fn set_large(&mut self, large: bool) {
        self.large = large;
    }

    /// Advances the state until a result is available or an operation has to be waited for.
    fn poll(&mut self, context: &mut Context<'_>, target: &mut Target) -> Poll<Result<Option<Buf>, Errno>> {
        if let Some(stored) = self.stored.take() {
            return Poll::Ready((*stored).map(Some));
        }
        loop {
            if self.end {
                return Poll::Ready(Ok(None));
            }
            match self.state {
                Receiving::Idle if self.reactor.closed.get() => return Poll::Ready(Err(Errno::CANCELED)),
                Receiving::Idle => self.arm(target),
                Receiving::Armed(wait) => {
                    if matches!(target, Target::Into(Some(_))) && !self.reactor.has_result(wait) {
                        // The caller's buffer is used after the multishot receive has ended.
                        self.reactor.cancel(wait);
                    }
                    let mut outcome = ready!(self.reactor.poll_wait(wait, context));
                    // A receive without bytes returns the caller's buffer.
                    if let (Err(_), Target::Into(held @ None), Payload::Buf(_)) =
                        (outcome.result, &mut *target, &outcome.payload)
                        && let Payload::Buf(buf) = std::mem::replace(&mut outcome.payload, Payload::None)
                    {
                        *held = Some(buf);
                    }
                    if let Some(result) = self.handle(outcome) {
                        return Poll::Ready(result);
                    }
                }
                Receiving::Polling(wait) => ready!(self.poll_arrival(context, wait))?,
            }
        }
    }

    /// Submits a receive.
    fn arm(&mut self, target: &mut Target) {
        let (into, limit) = match target {
            Target::Multishot => (RecvInto::Stream, self.queue),
            Target::Once if self.large => (RecvInto::Large, UNLIMITED),
            Target::Once => (RecvInto::Pool, UNLIMITED),
            Target::Into(buf) => match buf.take() {
                Some(buf) => (RecvInto::Owned(buf), UNLIMITED),
                None => (RecvInto::Pool, UNLIMITED),
            },
        };
        let socket = self.fd.clone();
        self.state = Receiving::Armed(self.reactor.start(Op::Net(NetOp::Recv { socket, into }), limit));
    }

    /// Handles one result of the receive; returns `None` when it is no result for the caller.
    fn handle(&mut self, outcome: Outcome) -> Option<Result<Option<Buf>, Errno>> {
        if !outcome.more {
            self.state = Receiving::Idle;
        }
        match (outcome.result, outcome.payload) {
            (Ok(0), _) => {
                self.end = true;
                Some(Ok(None))
            }
            (Ok(_), Payload::Buf(buf)) => Some(Ok(Some(buf))),
            (Ok(_), _) => Some(Err(Errno::IO)),
            // The runtime cancelled the receive because its queue was full, or to use the caller's buffer.
            (Err(Errno::INTR | Errno::CANCELED), _) => None,
            (Err(Errno::AGAIN), _) => {
                self.state = Receiving::poll(&self.reactor, &self.fd);
                None
            }
            (Err(errno), _) => Some(Err(errno)),
        }
    }

    /// Cancels the operation in flight and drops its results.
    pub(super) async fn stop(&mut self) {
        while let Receiving::Armed(wait) | Receiving::Polling(wait) = self.state {
            self.reactor.cancel(wait);
            if !poll_fn(|context| self.reactor.poll_wait(wait, context)).await.more {
                self.state = Receiving::Idle;
            }
        }
    }

    /// Returns the descriptor to the caller, which closes it.
    pub(super) fn release(mut self) -> Fd {
        self.closes = false;
        self.fd.clone()
    }
}

impl Drop for Reader {
    /// Closes the descriptor. The reader does this because it holds the operation that has to end before. The writing
    /// half of the socket is dropped before the close is carried out.
    fn drop(&mut self) {
        if self.closes {
            self.state.close(&self.reactor, &self.fd);
        }
    }
}

/// Whether a receive on this socket would block: the kernel has neither bytes nor an end of stream nor an error.
pub fn is_silent(socket: &Fd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut space = [0; 1];
    loop {
        match rustix::net::recv(socket, &mut space, flags) {
            Err(Errno::INTR) => {}
            answer => return matches!(answer, Err(Errno::AGAIN)),
        }
    }
}
