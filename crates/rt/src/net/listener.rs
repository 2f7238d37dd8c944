//! Listening sockets.

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use io::op::PeerAddr;
use io::{Errno, Fd, NetOp, Op, Payload};

use super::address;
use super::receiving::Receiving;
use crate::op_table::{Outcome, UNLIMITED};
use crate::reactor::{self, Reactor};

/// Maximum number of connections that a multishot accept may have accepted before the caller takes them. Above it, the
/// accept is cancelled and further connections wait in the kernel's backlog, where another process could still accept
/// them.
const QUEUE_MAX: u16 = 64;

/// Maximum number of connections that are accepted from the backlog after a stop. Other processes may listen on the
/// same socket, so the backlog may never become empty; accepting a full default backlog would be too many calls for one
/// turn.
const LAST_MAX: u32 = 512;

/// A listening socket. Dropping it stops it; a connection that is accepted after that is closed.
pub struct Listener {
    shared: Rc<ListenerState>,
    multishot: bool,
    /// Whether the accept in flight is a multishot accept.
    armed_multishot: bool,
}

/// Stops a [`Listener`] while its task waits in `accept`.
#[derive(Clone)]
pub struct Stopper(Weak<ListenerState>);

struct ListenerState {
    reactor: Rc<Reactor>,
    fd: Fd,
    state: Cell<Receiving>,
    stopped: Cell<bool>,
    /// Number of connections that may still be accepted after a stop.
    last: Cell<u32>,
}

impl Listener {
    /// Creates a listener over a listening socket. `multishot` may be set only if no other thread accepts from the same
    /// socket: the io_uring that waits first would accept every connection.
    pub fn new(fd: OwnedFd, multishot: bool) -> Listener {
        // Non-blocking system calls are made on it; an error is detected by the first accept.
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        let reactor = reactor::current();
        if reactor.caps.memory_max.is_some() {
            // Fails for Unix sockets, whose send buffers the kernel limits to a fixed size.
            let _ = io::sys::set_unsent_max(fd.as_fd(), super::UNSENT_MAX);
        }
        let shared = ListenerState {
            reactor,
            fd: Fd::from(fd),
            state: Cell::new(Receiving::Idle),
            stopped: Cell::new(false),
            last: Cell::new(LAST_MAX),
        };
        Listener { shared: Rc::new(shared), multishot, armed_multishot: false }
    }

    /// Returns the next connection, non-blocking and close-on-exec. Fails with `ECANCELED` after [`Listener::stop`],
    /// once all connections accepted until then were returned. The caller must wait after other errors: `EMFILE` and
    /// `ENFILE` persist until a descriptor is free. Dropping the future loses no connection.
    pub async fn accept(&mut self) -> Result<OwnedFd, Errno> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// Sets whether further accepts are multishot accepts. Without it, a multishot accept in flight is cancelled. A
    /// multishot accept accepts all connections in the kernel's backlog, so the caller needs room for a full backlog.
    pub fn set_multishot(&mut self, multishot: bool) {
        self.multishot = multishot;
        if let Receiving::Armed(wait) = self.shared.state.get()
            && self.armed_multishot
            && !multishot
        {
            self.armed_multishot = false;
            self.shared.reactor.cancel(wait);
        }
    }

    /// Waits until [`Listener::accept`] is expected to have a result, without accepting a connection: for a caller that
    /// first makes room for it.
    pub async fn ready(&mut self) {
        let shared = &*self.shared;
        poll_fn(|context| {
            loop {
                match shared.state.get() {
                    Receiving::Idle if shared.reactor.closed.get() || shared.stopped.get() => {
                        return Poll::Ready(());
                    }
                    Receiving::Idle => shared.state.set(Receiving::poll(&shared.reactor, &shared.fd)),
                    Receiving::Armed(_) => return Poll::Ready(()),
                    Receiving::Polling(wait) => {
                        if !ready!(shared.reactor.poll_wait(wait, context)).more {
                            shared.state.set(Receiving::Idle);
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
                Receiving::Idle if shared.reactor.closed.get() => return Poll::Ready(Err(Errno::CANCELED)),
                Receiving::Idle if shared.stopped.get() => return Poll::Ready(self.last()),
                Receiving::Idle => {
                    let limit = if self.multishot { QUEUE_MAX } else { UNLIMITED };
                    let op =
                        Op::Net(NetOp::Accept { listener: shared.fd.clone(), multishot: self.multishot });
                    self.armed_multishot = self.multishot;
                    shared.state.set(Receiving::Armed(shared.reactor.start(op, limit)));
                }
                Receiving::Armed(wait) | Receiving::Polling(wait) => {
                    let outcome = ready!(shared.reactor.poll_wait(wait, context));
                    if let Some(result) = shared.handle(outcome) {
                        return Poll::Ready(result);
                    }
                }
            }
        }
    }

    /// Returns a connection from the backlog after a stop. The kernel wakes one waiter per connection. If it has woken
    /// the accept that the stop cancels, the connection stays in the backlog without another wake-up.
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

    /// Returns a handle that stops this listener.
    pub fn stopper(&self) -> Stopper {
        Stopper(Rc::downgrade(&self.shared))
    }

    /// Accepts a connection from the kernel's backlog immediately, if there is one. Used to empty the backlog before
    /// the last listening socket is closed, which would reset the remaining connections.
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

    /// Returns the address that it listens on.
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

    /// Restarts the accept. An accept in flight occupies a slot in the tables of this thread. If it started while many
    /// connections existed, the slot is near the end of a table, which then cannot be trimmed.
    pub fn rearm(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.cancel();
        }
    }
}

impl ListenerState {
    fn stop(&self) {
        self.stopped.set(true);
        self.cancel();
    }

    fn cancel(&self) {
        if let Receiving::Armed(wait) | Receiving::Polling(wait) = self.state.get() {
            self.reactor.cancel(wait);
        }
    }

    /// Handles one result; returns `None` when it is no result for the caller.
    fn handle(&self, outcome: Outcome) -> Option<Result<OwnedFd, Errno>> {
        let polled = matches!(self.state.get(), Receiving::Polling(_));
        if !outcome.more {
            self.state.set(Receiving::Idle);
        }
        match (outcome.result, outcome.payload) {
            (Ok(_), Payload::Accepted(fd)) => Some(Ok(fd)),
            (Ok(_), _) if polled => None,
            (Ok(_), _) => Some(Err(Errno::IO)),
            // Cancelled by this type, or a connection that its peer aborted before it was accepted (accept(2)).
            (Err(Errno::INTR | Errno::CANCELED | Errno::CONNABORTED), _) => None,
            (Err(Errno::AGAIN), _) if !self.stopped.get() => {
                self.state.set(Receiving::poll(&self.reactor, &self.fd));
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
        if let Receiving::Armed(wait) | Receiving::Polling(wait) = self.shared.state.replace(Receiving::Idle)
        {
            self.shared.reactor.abandon(wait);
        }
    }
}
