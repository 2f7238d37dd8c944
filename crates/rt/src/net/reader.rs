//! The receiving side of a connection.
//!
//! ```text
//!   Idle --recv--> Armed --terminal result--> Idle --end of stream--> (recv answers None for ever)
//!                   | EAGAIN
//!                   v
//!                Polling --readable--> Idle
//! ```
//! The operation belongs to the reader, not to the future of `recv`: a `recv` that is dropped, because a
//! timer won, loses nothing.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::op::{Interest, RecvInto};
use io::{Buf, Errno, Fd, Op, Payload};
use rustix::net::RecvFlags;

use crate::op_table::Outcome;
use crate::op_table::{OpHandle, UNLIMITED};
use crate::reactor::Reactor;

/// Buffers of received bytes that wait for the connection's task before the peer is made to wait. A
/// pipelining client fills one or two; a flood must not take the thread's buffers.
pub const QUEUE_DEFAULT: u32 = 4;

/// The receiving side of a [`crate::Socket`].
pub struct Reader {
    reactor: Rc<Reactor>,
    fd: Fd,
    state: ReaderState,
    end: bool,
    /// A result that [`Reader::news`] has received, which the next `recv` returns. Boxed, because few connections ever
    /// have one.
    kept: Option<Box<Result<Buf, Errno>>>,
    /// Whether the descriptor is closed with the reader.
    closes: bool,
    multishot: bool,
    /// Whether single receives take large buffers.
    large: bool,
    queue: u32,
}

/// The operation that the reader waits for.
#[derive(Clone, Copy, Debug)]
enum ReaderState {
    /// Nothing.
    Idle,
    /// Bytes.
    Armed(OpHandle),
    /// Readiness, where the engine said that the receive would block.
    Polling(OpHandle),
}

/// The destination of the next bytes when no receive is armed.
enum Target {
    Multishot,
    Once,
    /// The buffer is here unless a receive has it.
    Into(Option<Buf>),
}

/// The result of [`Reader::recv_behind`].
#[derive(Debug)]
pub enum Behind {
    /// The buffer with more content.
    Grown(Buf),
    /// The unchanged buffer, and bytes that had come before the request.
    Apart(Buf, Buf),
    /// The end of the stream.
    End,
}

impl Reader {
    pub(super) fn new(reactor: &Rc<Reactor>, fd: Fd) -> Reader {
        Reader {
            reactor: Rc::clone(reactor),
            fd,
            state: ReaderState::Idle,
            end: false,
            kept: None,
            closes: true,
            multishot: true,
            large: false,
            queue: QUEUE_DEFAULT,
        }
    }

    /// The next bytes, in a buffer that the engine picked; `None` at the end of the stream. One receive
    /// stays armed and fills a queue of a few buffers. Dropping the future loses no bytes.
    pub async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`Reader::recv`], for a hand-written future.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        let mut target = if self.multishot { Target::Multishot } else { Target::Once };
        self.poll(context, &mut target)
    }

    /// Bytes that have already arrived, without another receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        if let Some(kept) = self.kept.take() {
            return Some((*kept).map(Some));
        }
        let ReaderState::Armed(wait) = self.state else { return None };
        let outcome = self.reactor.try_wait(wait)?;
        self.handle(outcome)
    }

    /// Waits until `recv` has a result: bytes, the end, an error. It consumes nothing. For an idle connection, whose
    /// peer should send nothing: after any of these the connection cannot be reused. Dropping the future leaves the
    /// receive armed, for [`Reader::is_quiet`].
    pub async fn news(&mut self) {
        if self.kept.is_none() && !self.end {
            match poll_fn(|context| self.poll_recv(context)).await {
                Ok(Some(buf)) => self.kept = Some(Box::new(Ok(buf))),
                Ok(None) => {}
                Err(errno) => self.kept = Some(Box::new(Err(errno))),
            }
        }
    }

    /// Whether there are no untaken bytes, no end and no error. With an armed receive, as after a dropped
    /// [`Reader::news`], this needs no system call and is as of the start of this turn; else a system call checks it.
    pub fn is_quiet(&mut self) -> bool {
        if self.end || self.kept.is_some() {
            return false;
        }
        if let ReaderState::Armed(wait) = self.state {
            // A receive may have ended without telling anything, as one that was interrupted.
            while let Some(outcome) = self.reactor.try_wait(wait) {
                let kept = match self.handle(outcome) {
                    None if matches!(self.state, ReaderState::Armed(_)) => continue,
                    None => break,
                    Some(Ok(None)) => None,
                    Some(Ok(Some(buf))) => Some(Ok(buf)),
                    Some(Err(errno)) => Some(Err(errno)),
                };
                self.kept = kept.map(Box::new);
                return false;
            }
        }
        match self.state {
            ReaderState::Armed(_) => true,
            ReaderState::Polling(wait) if self.reactor.has_result(wait) => false,
            ReaderState::Polling(_) | ReaderState::Idle => is_silent(&self.fd),
        }
    }

    /// The next bytes in `buf`, for bodies: one receive for each call, into memory of the caller's size. Bytes that
    /// have already arrived come first, in their buffer instead of `buf`. `None` at the end of the stream. Dropping the
    /// future loses no bytes.
    pub async fn recv_into(&mut self, buf: Buf) -> Result<Option<Buf>, Errno> {
        let mut target = Target::Into(Some(buf));
        poll_fn(|context| self.poll(context, &mut target)).await
    }

    /// As [`Reader::recv_into`], behind the present content of `buf`. A dropped future may lose the buffer with its
    /// content, so only a caller that then gives up the connection may drop it.
    pub async fn recv_behind(&mut self, buf: Buf) -> Result<Behind, Errno> {
        let mut target = Target::Into(Some(buf));
        poll_fn(|context| {
            let received = ready!(self.poll(context, &mut target))?;
            let held = match &mut target {
                Target::Into(held) => held.take(),
                Target::Multishot | Target::Once => None,
            };
            Poll::Ready(Ok(match (received, held) {
                (None, _) => Behind::End,
                (Some(received), Some(held)) => Behind::Apart(held, received),
                (Some(received), None) => Behind::Grown(received),
            }))
        })
        .await
    }

    /// Received bytes, by a call of this thread; none where a receive is in flight or the call would have to wait. For
    /// callers that know that bytes have arrived.
    pub fn recv_now(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        if !matches!(self.state, ReaderState::Idle) || self.end || self.kept.is_some() {
            return None;
        }
        let mut buf = self.reactor.pool.get(self.reactor.caps.recv_buffer_bytes as usize)?;
        let received = self.recv_behind_now(&mut buf)?;
        Some(received.map(|count| (count > 0).then_some(buf)))
    }

    /// As [`Reader::recv_now`], behind what `buf` holds already: how many bytes came, 0 at the end of the stream.
    pub fn recv_behind_now(&mut self, buf: &mut Buf) -> Option<Result<usize, Errno>> {
        if !matches!(self.state, ReaderState::Idle) || self.end || self.kept.is_some() {
            return None;
        }
        let held = buf.len();
        assert!(held < buf.capacity(), "there is room for what comes");
        self.reactor.note_received();
        match rustix::net::recv(&self.fd, buf.room(), RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                self.end = count == 0;
                buf.set_len(held + count);
                Some(Ok(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(Err(errno)),
        }
    }

    /// Stops an armed receive until the next `recv`: bytes of the peer wait in the kernel meanwhile and take no buffer.
    pub fn disarm(&mut self) {
        if let ReaderState::Armed(wait) = self.state {
            self.reactor.cancel(wait);
        }
    }

    /// Leaves the close to the last owner of the descriptor, who makes the call on this thread; where an operation is
    /// still in flight, nothing changes.
    pub(super) fn close_directly(&mut self) {
        self.closes = !matches!(self.state, ReaderState::Idle);
    }

    /// Whether one receive stays armed (the default) or each `recv` asks once: cheaper for a connection
    /// that brings one request and is closed.
    pub fn set_multishot(&mut self, multishot: bool) {
        self.multishot = multishot;
    }

    /// Whether a receive that asks once takes a large buffer where the engine has one: for a peer that sends bodies.
    pub fn set_large(&mut self, large: bool) {
        self.large = large;
    }

    /// Moves through the states until there is a result or an operation to wait for.
    fn poll(&mut self, context: &mut Context<'_>, target: &mut Target) -> Poll<Result<Option<Buf>, Errno>> {
        if let Some(kept) = self.kept.take() {
            return Poll::Ready((*kept).map(Some));
        }
        loop {
            if self.end {
                return Poll::Ready(Ok(None));
            }
            match self.state {
                ReaderState::Idle if self.reactor.closed.get() => return Poll::Ready(Err(Errno::CANCELED)),
                ReaderState::Idle => self.arm(target),
                ReaderState::Armed(wait) => {
                    if matches!(target, Target::Into(Some(_))) && !self.reactor.has_result(wait) {
                        // The bulk buffer waits until the armed receive has ended.
                        self.reactor.cancel(wait);
                    }
                    let mut outcome = ready!(self.reactor.poll_wait(wait, context));
                    // A receive that brought nothing gives the caller's buffer back.
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
                ReaderState::Polling(wait) => {
                    let outcome = ready!(self.reactor.poll_wait(wait, context));
                    if !outcome.more {
                        self.state = ReaderState::Idle;
                    }
                    if let Err(errno) = outcome.result
                        && !matches!(errno, Errno::INTR | Errno::CANCELED)
                    {
                        return Poll::Ready(Err(errno));
                    }
                }
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
        self.state = ReaderState::Armed(self.reactor.start(Op::Recv { socket, into }, limit));
    }

    /// Takes one result of the armed receive; `None` when it is no result for the caller.
    fn handle(&mut self, outcome: Outcome) -> Option<Result<Option<Buf>, Errno>> {
        if !outcome.more {
            self.state = ReaderState::Idle;
        }
        match (outcome.result, outcome.payload) {
            (Ok(0), _) => {
                self.end = true;
                Some(Ok(None))
            }
            (Ok(_), Payload::Buf(buf)) => Some(Ok(Some(buf))),
            (Ok(_), _) => Some(Err(Errno::IO)),
            // The runtime stopped the receive because its queue was full, or for a bulk buffer.
            (Err(Errno::INTR | Errno::CANCELED), _) => None,
            (Err(Errno::AGAIN), _) => {
                let op = Op::Poll { fd: self.fd.clone(), interest: Interest::Readable };
                self.state = ReaderState::Polling(self.reactor.start(op, UNLIMITED));
                None
            }
            (Err(errno), _) => Some(Err(errno)),
        }
    }

    /// Ends the armed operation and drops its results.
    pub(super) async fn stop(&mut self) {
        while let ReaderState::Armed(wait) | ReaderState::Polling(wait) = self.state {
            self.reactor.cancel(wait);
            if !poll_fn(|context| self.reactor.poll_wait(wait, context)).await.more {
                self.state = ReaderState::Idle;
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
    /// Closes the descriptor: the reader knows which operation has to end before. The other side of the
    /// socket is gone by the time that this is acted on.
    fn drop(&mut self) {
        match self.state {
            _ if !self.closes => {}
            ReaderState::Armed(wait) | ReaderState::Polling(wait) => {
                self.reactor.close_after(wait, self.fd.clone())
            }
            ReaderState::Idle => self.reactor.close(self.fd.clone()),
        }
    }
}

/// Whether a receive on this socket would have to wait: neither bytes nor an end nor an error are in the kernel.
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
