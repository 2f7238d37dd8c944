//! One QUIC connection, as its task and the tasks of its streams use it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use io::Errno;
use quinn_proto::{ConnectionHandle, EndpointEvent, Event, Transmit, VarInt};
use rt::local::Counted;

use crate::quic::{Endpoint, congestion};

/// Maximum number of datagrams of one send: those of 64 KiB.
const DATAGRAMS_MAX: usize = 44;

/// Number of bytes after which other connections get their turn.
const BYTES_IN_A_ROW: usize = 128 << 10;

/// A connection.
pub(crate) struct QuicConnection {
    /// The endpoint of its address.
    pub(crate) endpoint: Rc<Endpoint>,
    /// Its handle in the endpoint.
    pub(super) handle: ConnectionHandle,
    /// The protocol. Borrowed for single steps.
    pub(crate) proto: RefCell<quinn_proto::Connection>,
    /// The connection's slot of `worker_connections`, until its requests have ended after its end.
    slot: Cell<Option<Counted>>,
    /// Counts the handshake while its client has not proved its address.
    unvalidated: Cell<Option<Counted>>,
    /// Whether the endpoint has freed the handle, and may use it for another connection.
    is_freed: Cell<bool>,
    /// Waker of the connection's task, while it waits.
    task: Cell<Option<Waker>>,
    /// Whether the task was woken since it last ran.
    is_woken: Cell<bool>,
    /// Packets that the full socket has not accepted.
    unsent: RefCell<Option<Transmit>>,
    /// Memory of packets.
    packets: RefCell<Vec<u8>>,
}

/// Result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All packets were sent.
    All,
    /// More packets are ready; other connections have to get their turn before.
    More,
    /// The socket is full.
    Blocked,
}

impl QuicConnection {
    /// Returns a new connection.
    pub(super) fn new(
        endpoint: &Rc<Endpoint>,
        handle: ConnectionHandle,
        proto: quinn_proto::Connection,
        (slot, unvalidated): (Counted, Option<Counted>),
    ) -> Rc<QuicConnection> {
        Rc::new(QuicConnection {
            endpoint: Rc::clone(endpoint),
            handle,
            proto: RefCell::new(proto),
            slot: Cell::new(Some(slot)),
            unvalidated: Cell::new(unvalidated),
            is_freed: Cell::new(false),
            task: Cell::new(None),
            is_woken: Cell::new(true),
            unsent: RefCell::default(),
            packets: RefCell::default(),
        })
    }

    /// Whether the client has proved its address.
    pub(crate) fn is_validated(&self) -> bool {
        let unvalidated = self.unvalidated.take();
        let is_validated = unvalidated.is_none();
        self.unvalidated.set(unvalidated);
        is_validated
    }

    /// Notes that the client has proved its address.
    pub(crate) fn note_validated(&self) {
        self.unvalidated.take();
    }

    /// Gives the slot of the connection to others: it is closed, and its requests have ended.
    pub(crate) fn leave_slot(&self) {
        self.note_validated();
        self.slot.take();
    }

    /// Wakes the task of the connection: there are events or data to be sent.
    pub(crate) fn wake(&self) {
        self.is_woken.set(true);
        self.task.take().into_iter().for_each(Waker::wake);
    }

    /// Becomes ready when the connection was woken since the last call.
    pub(crate) fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_woken.take() {
            return Poll::Ready(());
        }
        self.task.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Returns the next event of the application, after those between connection and endpoint.
    pub(crate) fn event(&self) -> Option<Event> {
        let mut proto = self.proto.borrow_mut();
        while let Some(event) = proto.poll_endpoint_events() {
            // The handle may be that of another connection already.
            if self.is_freed.get() {
                continue;
            }
            self.is_freed.set(event.is_drained());
            let answer = self.endpoint.proto.borrow_mut().handle_event(self.handle, event);
            if let Some(answer) = answer {
                proto.handle_event(answer);
            }
        }
        proto.poll()
    }

    /// Handles the timeouts that have passed.
    pub(crate) fn pass_time(&self, now: Instant) {
        let mut proto = self.proto.borrow_mut();
        if proto.poll_timeout().is_some_and(|timeout| timeout <= now) {
            proto.handle_timeout(now);
        }
    }

    /// Returns the time of the next timeout.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.proto.borrow_mut().poll_timeout()
    }

    /// Sends the ready packets.
    pub(crate) fn send(&self) -> Sent {
        let (mut packets, mut unsent) = (self.packets.borrow_mut(), self.unsent.borrow_mut());
        let mut sent = 0;
        while sent < BYTES_IN_A_ROW {
            if unsent.is_none() {
                packets.clear();
                let most = if self.endpoint.socket.joins_datagrams() { DATAGRAMS_MAX } else { 1 };
                *unsent =
                    congestion::next_packets(&mut self.proto.borrow_mut(), rt::now(), most, &mut packets);
            }
            let Some(transmit) = unsent.as_ref() else {
                *packets = Vec::new();
                return Sent::All;
            };
            let bytes = packets.get(..transmit.size).unwrap_or(&packets);
            sent += bytes.len();
            match self.endpoint.send(transmit, bytes) {
                Err(Errno::AGAIN) => return Sent::Blocked,
                // A packet that cannot be sent is lost, which the protocol notices: a path may have a smaller MTU (EMSGSIZE), or there is no route.
                Ok(()) | Err(_) => *unsent = None,
            }
        }
        Sent::More
    }

    /// Closes the connection with the code of an application error.
    pub(crate) fn close(&self, code: u64, reason: &'static str) {
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        self.proto.borrow_mut().close(rt::now(), code, Bytes::from_static(reason.as_bytes()));
        self.wake();
    }

    /// Whether all state of the connection can be dropped.
    pub(crate) fn is_drained(&self) -> bool {
        self.proto.borrow().is_drained()
    }

    /// Removes the connection from its endpoint, once it is drained.
    pub(crate) fn remove(&self) {
        // The endpoint gets the last event.
        while self.event().is_some() {}
        if !self.is_freed.replace(true) {
            self.endpoint.proto.borrow_mut().handle_event(self.handle, EndpointEvent::drained());
        }
        self.endpoint.remove(self);
    }
}
