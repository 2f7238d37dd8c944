//! Connections to upstreams that speak HTTP/2: each carries many exchanges at once, as streams.
//!
//! ```text
//!   Sending --head, body--> StreamWriter --frames--> out --> driver: one send for all streams
//!   attempt, Live <--text of HTTP/1-- Inbox <--events-- Session <-- driver: receives
//! ```
//! [`driver`] is the task of a connection, [`stream`] its view of one exchange. A response is handed on as text of HTTP/1
//! with a body in chunks, so that everything above reads one kind of response. Every queued frame wakes the driver.

mod driver;
mod stream;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use http::h2::{ErrorCode, Fault, Limits, ReplyFault, Session};
use io::Errno;
use rt::local::Counted;

use stream::Stream;
pub(super) use stream::{StreamEnd, StreamWriter};
use transfer::duplex::Duplex;

/// A connection.
pub(super) struct Connection {
    state: RefCell<State>,
    /// The task of the connection, while it waits.
    driver: Cell<Option<Waker>>,
}

struct State {
    session: Session<Rc<Stream>>,
    /// Frames that are ready to leave.
    out: Vec<u8>,
    /// Exchanges that use it, also those that have sent nothing yet.
    users: usize,
    /// Exchanges so far.
    requests: u64,
    /// Whether it takes no further exchange.
    is_closing: bool,
    /// Whether the upstream has said that it serves no further stream.
    has_goodbye: bool,
    /// The time since when it is idle.
    idle_since: Instant,
    /// When the upstream was pinged, until something comes.
    probed_at: Option<Instant>,
    /// Why it has ended.
    cut: Option<Cut>,
}

/// The action after the bytes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// Others that are available.
    More,
    /// Others, which may take their time.
    Later,
    /// Nothing: this is the end of the request.
    End,
}

/// Why a stream brings nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The upstream has reset the stream, with this code.
    Reset(u32),
    /// The upstream said that it did not process the request: it may be sent again, whatever it is.
    Unprocessed,
    /// The upstream broke the rules of the protocol.
    Fault(Fault),
    /// The head is none.
    Reply(ReplyFault),
    /// The upstream closed the connection.
    Closed,
    /// The connection broke, or a local failure.
    Errno(Errno),
}

impl Cut {
    /// The same as the error of a receive.
    fn errno(self) -> Errno {
        match self {
            Cut::Errno(errno) => errno,
            _ => Errno::CONNRESET,
        }
    }

    /// The code of the reset.
    pub(super) fn code(self) -> Option<u32> {
        match self {
            Cut::Reset(code) => Some(code),
            Cut::Unprocessed => Some(ErrorCode::RefusedStream as u32),
            _ => None,
        }
    }

    /// Whether the upstream has answered with an error status.
    pub(super) fn is_invalid_answer(self) -> bool {
        matches!(self, Cut::Reset(_) | Cut::Fault(_) | Cut::Reply(_))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Reset(code) => write!(f, "upstream rejected request with error {code}"),
            Cut::Unprocessed => f.write_str("upstream did not process the request"),
            Cut::Fault(fault) => f.write_str(&fault.message().replacen("client", "upstream", 1)),
            Cut::Reply(fault) => f.write_str(fault.message()),
            Cut::Closed => f.write_str("upstream prematurely closed connection"),
            Cut::Errno(errno) => write!(f, "recv() failed ({})", telemetry::Reason(*errno)),
        }
    }
}

/// Bytes of a body that an upstream may send before the client, or a buffer, takes them.
const WINDOW_BYTES: u32 = 128 << 10;

/// Bytes of a header section as it is compressed, which are gathered at most: `proxy_buffer_size` is that of each exchange.
const HEAD_MAX: u32 = 64 << 10;

/// Bytes in frames from which on nothing is added, and nothing is received that may call for more.
const OUT_BYTES_MAX: usize = 256 << 10;

/// How long the upstream may leave a question open before new exchanges take another connection, and before this one counts as broken.
const PROBE_DOUBT: Duration = Duration::from_secs(1);
const PROBE_MAX: Duration = Duration::from_secs(10);

impl Connection {
    /// Begins to speak HTTP/2; `place` is given back when the connection has ended. Without exchanges it is kept for `idle`, or ends with
    /// its first exchange.
    pub(super) fn start(
        wire: Box<dyn Duplex>,
        place: Option<Counted>,
        idle: Option<Duration>,
    ) -> Rc<Connection> {
        let limits = Limits { streams_max: 0, initial_window: WINDOW_BYTES, head_max: HEAD_MAX };
        let mut out = Vec::new();
        let session = Session::client(limits, &mut out);
        let state = State {
            session,
            out,
            users: 0,
            requests: 0,
            is_closing: false,
            has_goodbye: false,
            idle_since: rt::now(),
            probed_at: None,
            cut: None,
        };
        let connection = Rc::new(Connection { state: RefCell::new(state), driver: Cell::new(None) });
        rt::spawn(driver::drive(Rc::clone(&connection), wire, place, idle.unwrap_or_default()));
        connection
    }

    /// Whether another exchange may begin on it.
    pub(super) fn is_available(&self) -> bool {
        let state = self.state.borrow();
        let is_in_doubt = state.probed_at.is_some_and(|at| rt::now() >= at + PROBE_DOUBT);
        // Streams are counted when they have sent something; those that are about to, before.
        !state.is_closing
            && state.cut.is_none()
            && !is_in_doubt
            && state.users < state.session.streams_max()
            && state.session.may_open()
    }

    /// Whether no exchange uses it.
    pub(super) fn is_idle(&self) -> bool {
        self.state.borrow().users == 0
    }

    /// Whether it has ended, or takes no further exchange.
    pub(super) fn is_closing(&self) -> bool {
        let state = self.state.borrow();
        state.is_closing || state.cut.is_some()
    }

    /// Exchanges that were begun on it.
    pub(super) fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Takes no further exchange, and ends with the last one.
    pub(super) fn close(&self) {
        self.with(|state| state.is_closing = true);
    }

    /// Begins an exchange.
    pub(super) fn begin(self: &Rc<Connection>) -> StreamEnd {
        let mut state = self.state.borrow_mut();
        state.users += 1;
        state.requests += 1;
        drop(state);
        StreamEnd::new(Rc::clone(self))
    }

    /// A step that may leave something for the driver to do.
    fn with<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let done = step(&mut self.state.borrow_mut());
        self.driver.take().into_iter().for_each(Waker::wake);
        done
    }
}

impl State {
    /// All streams break off.
    fn fail(&mut self, cut: Cut) {
        self.cut.get_or_insert(cut);
        self.session.each().for_each(|(_, stream)| stream.cut(cut));
    }

    /// Pings the upstream, unless a ping is in flight.
    fn probe(&mut self) {
        if self.probed_at.is_none() && self.cut.is_none() {
            self.probed_at = Some(rt::now());
            self.session.ping(&mut self.out);
        }
    }

    /// Ends a stream for what its upstream has sent.
    fn refuse(&mut self, id: u32, stream: &Stream, cut: Cut) {
        self.session.reset(id, ErrorCode::Protocol, &mut self.out);
        stream.cut(cut);
    }
}
