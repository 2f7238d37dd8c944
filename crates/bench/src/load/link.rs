//! One connection of a load: its state, its operations and its request in flight, and the bytes queued for sending.
//!
//! ```text
//!   Closed --connect--> Connecting --done--> Open --close announced--> Closing --end--> Closed
//!      ^                    |                  |
//!      +------ failed, closed, timed out ------+
//! ```
//! The steps of a connection are in the worker ([`super::worker`]).

use io::{Fd, OpId};
use tls::{Session, TlsError};

use super::reader::Reader;

pub(crate) struct Link {
    pub(crate) state: State,
    /// The socket, shared with the operations in flight, which keep it open until they complete.
    pub(crate) socket: Option<Fd>,
    /// The connect operation in flight.
    pub(crate) connect: Option<OpId>,
    /// The multishot receive, which stays armed.
    pub(crate) recv: Option<OpId>,
    /// The send in flight, one at a time: further bytes are queued in `out`.
    pub(crate) send: Option<OpId>,
    /// The request that was sent or is queued for sending.
    pub(crate) pending: Option<Pending>,
    /// Bytes queued until the send in flight completes.
    pub(crate) out: Vec<u8>,
    /// The second buffer, swapped with `out` while the other one is being sent.
    pub(crate) spare: Vec<u8>,
    /// Parser state of the response being received.
    pub(crate) reader: Reader,
    /// Whether the connection is in the queue of idle connections.
    pub(crate) is_queued: bool,
    pub(crate) tls: Option<Box<Session>>,
}

/// State of a connection. The time is that of the transition into the state, or the earliest time of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Closed; reconnects at `retry_at` at the earliest.
    Closed {
        retry_at: u64,
    },
    Connecting {
        since: u64,
    },
    Open,
    /// The server announced the close (`Connection: close`); bytes that it still sends are discarded.
    Closing {
        since: u64,
    },
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Time when the request was due.
    pub(crate) due: u64,
    /// Time when it was actually sent.
    pub(crate) sent: u64,
}

impl Link {
    /// Returns a closed connection.
    pub(crate) fn new() -> Link {
        Link {
            state: State::Closed { retry_at: 0 },
            socket: None,
            connect: None,
            recv: None,
            send: None,
            pending: None,
            out: Vec::new(),
            spare: Vec::new(),
            reader: Reader::new(),
            is_queued: false,
            tls: None,
        }
    }

    /// Resets the state for a new connection. Buffers that operations in flight own are not touched.
    pub(crate) fn reset(&mut self, retry_at: u64) {
        self.state = State::Closed { retry_at };
        (self.connect, self.recv, self.send) = (None, None, None);
        self.out.clear();
        self.pending = None;
        self.reader.restart();
        self.tls = None;
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.is_handshaking())
    }

    /// Returns the queued bytes for the server, encrypted if the connection uses TLS. Empty if nothing is to be sent.
    pub(crate) fn outgoing(&mut self) -> Result<Vec<u8>, TlsError> {
        let Some(session) = &mut self.tls else {
            if self.out.is_empty() {
                // The allocated memory is retained for the next request.
                return Ok(Vec::new());
            }
            return Ok(std::mem::replace(&mut self.out, std::mem::take(&mut self.spare)));
        };
        if session.is_handshaking() || self.out.is_empty() {
            return Ok(session.output());
        }
        let mut sealed = std::mem::take(&mut self.spare);
        sealed.resize(session.sealed_bytes(self.out.len()), 0);
        let len = session.seal(&self.out, &mut sealed)?;
        sealed.truncate(len);
        self.out.clear();
        Ok(sealed)
    }
}
