//! Listening sockets.

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use io::op::{Interest, PeerAddr};
use io::{Errno, Fd, Op, Payload};

use super::address;
use crate::op_table::Outcome;
use crate::op_table::{OpHandle, UNLIMITED};
use crate::reactor::{self, Reactor};

/// Connections that a multishot accept may have brought in before the caller takes them. Above, it is
/// stopped and the rest waits in the kernel's queue, where another process could still take it.
const QUEUE_MAX: u32 = 64;

/// Connections that are taken from the kernel's queue after a stop at most. Others may listen on the same
/// socket, so the queue need never be empty; a full default backlog is more than one turn's calls.
const LAST_MAX: u32 = 512;

/// A listening socket. Dropping it stops it; a connection that comes in after that is closed.
pub struct Listener {
    shared: Rc<ListenerState>,
    multishot: bool,
    /// Whether the accept that is armed stays armed.
    armed_multishot: bool,
}

/// Stops a [`Listener`] while its task waits in `accept`.
#[derive(Clone)]
pub struct Stopper(Weak<ListenerState>);

struct ListenerState {
    reactor: Rc<Reactor>,
    fd: Fd,
    state: Cell<AcceptState>,
    stopped: Cell<bool>,
    /// Connections that may still be taken after a stop.
    last: Cell<u32>,
}

#[derive(Clone, Copy, Debug)]
enum AcceptState {
    /// Nothing is in flight.
    Idle,
    /// An accept.
    Armed(OpHandle),
    /// Readiness, where the engine said that the accept would block.
    Polling(OpHandle),
}

impl Listener {
    /// A listening socket. `multishot` only where no other thread accepts from the same socket: a ring that
    /// waits first would take every connection.
    pub fn new(fd: OwnedFd, multishot: bool) -> Listener {
        // Calls that must not wait are made on it; an error shows with the first accept.
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        let shared = ListenerState {
            reactor: reactor::current(),
            fd: Fd::from(fd),
            state: Cell::new(AcceptState::Idle),
            stopped: Cell::new(false),
            last: Cell::new(LAST_MAX),
        };
        Listener { shared: Rc::new(shared), multishot, armed_multishot: false }
    }

    /// The next connection, non-blocking and close-on-exec. `ECANCELED` after [`Listener::stop`], once the
    /// connections that still came in are handed out. Other errors are the caller's to wait out:
    /// `EMFILE` and `ENFILE` last until a descriptor is free. Dropping the future loses no connection.
    pub async fn accept(&mut self) -> Result<OwnedFd, Errno> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// Whether one accept stays armed, from the next one on; one that is armed is stopped where it must not stay. It
    /// takes all that the kernel has, so the caller needs room for a whole queue.
    pub fn set_multishot(&mut self, multishot: bool) {
        self.multishot = multishot;
        if let AcceptState::Armed(wait) = self.shared.state.get()
            && self.armed_multishot
            && !multishot
        {
            self.armed_multishot = false;
            self.shared.reactor.cancel(wait);
        }
    }

    /// Waits until [`Listener::accept`] has a result, as far as is known, and takes no connection: for a caller that
    /// makes room for it first.
    pub async fn ready(&mut self) {
        let shared = &*self.shared;
        poll_fn(|context| {
            loop {
                match shared.state.get() {
                    AcceptState::Idle if shared.reactor.closed.get() || shared.stopped.get() => {
                        return Poll::Ready(());
                    }
                    AcceptState::Idle => shared.poll_readable(),
                    AcceptState::Armed(_) => return Poll::Ready(()),
                    AcceptState::Polling(wait) => {
                        if !ready!(shared.reactor.poll_wait(wait, context)).more {
                            shared.state.set(AcceptState::Idle);
                        }
                        return Poll::Ready(());
                    }
                }
            }
        })
        .await;
    }

    /// As [`Listener::accept`], for a hand-written future.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Result<OwnedFd, Errno>> {
        let shared = &*self.shared;
        loop {
            match shared.state.get() {
                AcceptState::Idle if shared.reactor.closed.get() => return Poll::Ready(Err(Errno::CANCELED)),
                AcceptState::Idle if shared.stopped.get() => return Poll::Ready(self.last()),
                AcceptState::Idle => {
                    let limit = if self.multishot { QUEUE_MAX } else { UNLIMITED };
                    let op = Op::Accept { listener: shared.fd.clone(), multishot: self.multishot };
                    self.armed_multishot = self.multishot;
                    shared.state.set(AcceptState::Armed(shared.reactor.start(op, limit)));
                }
                AcceptState::Armed(wait) | AcceptState::Polling(wait) => {
                    let outcome = ready!(shared.reactor.poll_wait(wait, context));
                    if let Some(result) = shared.handle(outcome) {
                        return Poll::Ready(result);
                    }
                }
            }
        }
    }

    /// After a stop: a connection that the kernel may have woken this accept for. It wakes one waiter for a connection,
    /// and a waiter that is then cancelled leaves the connection in the queue without another wake-up.
    fn last(&self) -> Result<OwnedFd, Errno> {
        let left = self.shared.last.get();
        if left == 0 {
            return Err(Errno::CANCELED);
        }
        self.shared.last.set(left - 1);
        self.accept_now()?.ok_or(Errno::CANCELED)
    }

    /// Stops accepting; see [`Listener::accept`].
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Stops this listener from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(Rc::downgrade(&self.shared))
    }

    /// Takes back [`Listener::stop`].
    pub fn resume(&mut self) {
        self.shared.stopped.set(false);
        self.shared.last.set(LAST_MAX);
    }

    /// Takes a connection out of the kernel's queue now, if there is one: to empty the queue before the last listening
    /// socket is closed, which would reset the rest.
    pub fn accept_now(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.shared.fd, flags) {
                Ok(fd) => return Ok(Some(fd)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The address that it listens on.
    pub fn local(&self) -> Result<PeerAddr, Errno> {
        address::local(&self.shared.fd)
    }
}

impl Stopper {
    /// As [`Listener::stop`].
    pub fn stop(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.stop();
        }
    }

    /// Restarts the accept: the armed one keeps a slot in the tables of this thread, at their end if it was armed when
    /// there were many connections, and holds their memory.
    pub fn rearm(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        if let AcceptState::Armed(wait) | AcceptState::Polling(wait) = shared.state.get() {
            shared.reactor.cancel(wait);
        }
    }
}

impl ListenerState {
    fn stop(&self) {
        self.stopped.set(true);
        if let AcceptState::Armed(wait) | AcceptState::Polling(wait) = self.state.get() {
            self.reactor.cancel(wait);
        }
    }

    fn poll_readable(&self) {
        let op = Op::Poll { fd: self.fd.clone(), interest: Interest::Readable };
        self.state.set(AcceptState::Polling(self.reactor.start(op, UNLIMITED)));
    }

    /// Takes one result; `None` when it is no result for the caller.
    fn handle(&self, outcome: Outcome) -> Option<Result<OwnedFd, Errno>> {
        let polled = matches!(self.state.get(), AcceptState::Polling(_));
        if !outcome.more {
            self.state.set(AcceptState::Idle);
        }
        match (outcome.result, outcome.payload) {
            (Ok(_), Payload::Accepted(fd)) => Some(Ok(fd)),
            (Ok(_), _) if polled => None,
            (Ok(_), _) => Some(Err(Errno::IO)),
            // Cancelled by us, or a peer that was gone before it was accepted (accept(2)).
            (Err(Errno::INTR | Errno::CANCELED | Errno::CONNABORTED), _) => None,
            (Err(Errno::AGAIN), _) if !self.stopped.get() => {
                self.poll_readable();
                None
            }
            (Err(Errno::AGAIN), _) => None,
            (Err(errno), _) => Some(Err(errno)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stopped.set(true);
        if let AcceptState::Armed(wait) | AcceptState::Polling(wait) =
            self.shared.state.replace(AcceptState::Idle)
        {
            self.shared.reactor.abandon(wait);
        }
    }
}
