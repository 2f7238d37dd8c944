//! One connection of a load: its state, what is under way on it, and the bytes that wait to be sent.
//!
//! ```text
//!   Closed --connect--> Connecting --done--> Open --a response says close--> Closing --end--> Closed
//!      ^                    |                  |
//!      +------ failed, the end, too late ------+
//! ```
//! What happens at each step is the worker's business ([`super::worker`]).

use std::collections::VecDeque;

use io::{Fd, OpId};
use tls::{Session, TlsError};

use super::reader::Reader;

/// One connection.
pub(crate) struct Link {
    /// How far it has come.
    pub(crate) state: State,
    /// Shared with the operations under way, which keep it open until they end.
    pub(crate) socket: Option<Fd>,
    /// Operations under way.
    pub(crate) connect: Option<OpId>,
    /// The receive that stays armed.
    pub(crate) recv: Option<OpId>,
    /// The one send at a time: further bytes wait in `out`.
    pub(crate) send: Option<OpId>,
    /// Requests that were written or wait to be, in order.
    pub(crate) pending: VecDeque<Pending>,
    /// Bytes that wait for the send under way to end.
    pub(crate) out: Vec<u8>,
    /// The vector that is not being sent now.
    pub(crate) spare: Vec<u8>,
    /// Where it stands in the response that is coming.
    pub(crate) reader: Reader,
    /// Number of its server.
    pub(crate) origin: u16,
    /// Whether it stands in the queue of those that have nothing to do.
    pub(crate) is_queued: bool,
    /// Its TLS, where it speaks that.
    pub(crate) tls: Option<Box<Session>>,
}

/// Where a connection stands. Times are when it came there, or may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not there; not to be begun before this time.
    Closed {
        retry_at: u64,
    },
    Connecting {
        since: u64,
    },
    /// Made.
    Open,
    /// The server announced that it closes; bytes that it still sends are ignored.
    Closing {
        since: u64,
    },
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// When it should have been sent.
    pub(crate) due: u64,
    /// When it was.
    pub(crate) sent: u64,
    /// Number of what is asked for, which knows what the response must be.
    pub(crate) target: u32,
}

impl Link {
    /// A connection that is still to be made, for `depth` requests at once.
    pub(crate) fn new(origin: usize, depth: usize) -> Link {
        Link {
            state: State::Closed { retry_at: 0 },
            socket: None,
            connect: None,
            recv: None,
            send: None,
            pending: VecDeque::with_capacity(depth),
            out: Vec::new(),
            spare: Vec::new(),
            reader: Reader::new(),
            origin: origin as u16,
            is_queued: false,
            tls: None,
        }
    }

    /// Forgets everything about the connection that was; what its operations still own is not here any more.
    pub(crate) fn reset(&mut self, retry_at: u64) {
        self.state = State::Closed { retry_at };
        (self.connect, self.recv, self.send) = (None, None, None);
        self.out.clear();
        self.pending.clear();
        self.reader.restart();
        self.tls = None;
    }

    /// Whether its handshake is still under way.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.is_handshaking())
    }

    /// Bytes for the server: what waits, sealed where the connection speaks TLS. Empty where there is nothing to send.
    pub(crate) fn outgoing(&mut self) -> Result<Vec<u8>, TlsError> {
        let Some(session) = &mut self.tls else {
            if self.out.is_empty() {
                // Its memory stays for the next request.
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
