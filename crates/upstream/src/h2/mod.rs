//! HTTP/2 connections to upstreams: each carries many concurrent exchanges as streams.
//!
//! ```text
//!   Sending --head, body--> StreamWriter --frames--> out --> driver: one send for all streams
//!   attempt, Live <--HTTP/1 text-- Inbox <--events-- Session <-- driver: receives
//! ```
//! [`driver`] is the task of a connection, [`stream`] one exchange on it. A response is passed on as HTTP/1 text with a chunked
//! body, so that the callers handle a single form of response. Every queued frame wakes the driver.

mod driver;
mod stream;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use http::h2::{ErrorCode, Fault, Limits, ResponseFault, STREAM_WINDOW_MAX, Session};
use io::Errno;
use rt::local::Counted;

use exchange::capacity::Windows;
use stream::Stream;
pub(super) use stream::{StreamEnd, StreamWriter};
use transfer::duplex::Duplex;

/// A connection.
pub(super) struct Connection {
    state: RefCell<State>,
    /// Waker of the connection's task, while it waits.
    driver: Cell<Option<Waker>>,
}

struct State {
    /// The memory of the thread for bodies.
    windows: Windows,
    session: Session<Rc<Stream>>,
    /// Frames ready to be sent.
    out: Vec<u8>,
    /// Number of exchanges in progress, including those that have sent nothing yet.
    users: usize,
    /// Number of exchanges so far.
    requests: u64,
    /// Number of cancelled exchanges in excess of complete ones; elapsed time lowers it.
    cancelled: u32,
    /// Whether it accepts no further exchanges.
    is_closing: bool,
    /// Whether the upstream has sent GOAWAY.
    has_goaway: bool,
    /// Time at which the last exchange ended.
    idle_since: Instant,
    /// Time of the last receive.
    received_at: Instant,
    /// Time of the ping in flight; reset when any bytes arrive.
    probed_at: Option<Instant>,
    /// Number of pings since the last header section or body bytes were received.
    probes: u32,
    /// Reason why the connection has ended.
    cut: Option<Cut>,
}

/// Continuation of a request after the bytes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// More bytes, already available.
    More,
    /// More bytes, possibly later.
    Later,
    /// Nothing: the request ends.
    End,
}

/// Reason why a stream delivers no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The upstream reset the stream with this error code.
    Reset(u32),
    /// The upstream reported that it did not process the request: any request may be sent again.
    Unprocessed,
    /// The upstream violated the protocol.
    Fault(Fault),
    /// The response head is invalid.
    Reply(ResponseFault),
    /// The upstream closed the connection.
    Closed,
    /// The connection broke, or a local error occurred.
    Errno(Errno),
}

impl Cut {
    /// Returns the corresponding error of a receive.
    fn errno(self) -> Errno {
        match self {
            Cut::Errno(errno) => errno,
            _ => Errno::CONNRESET,
        }
    }

    /// Returns the error code of the reset, if any.
    pub(super) fn code(self) -> Option<u32> {
        match self {
            Cut::Reset(code) => Some(code),
            Cut::Unprocessed => Some(ErrorCode::RefusedStream as u32),
            _ => None,
        }
    }

    /// Whether the response of the upstream counts as invalid.
    pub(super) fn is_invalid_response(self) -> bool {
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

/// Flow-control window of a stream in bytes, without a share of the thread's memory for bodies: the number of body bytes that an
/// upstream may send before they are read here.
const WINDOW_BYTES: u32 = 128 << 10;

/// Flow-control window in bytes with which a stream begins, if the thread has as much memory for bodies. Most responses then need a
/// single round trip.
const WINDOW_BYTES_FIRST: u32 = 4 << 20;

/// Window of a connection in bytes, which is reopened as bytes arrive; the windows of the streams limit the buffered bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Maximum size in bytes of a compressed header section that is buffered; `proxy_buffer_size` limits each exchange.
const HEAD_MAX: u32 = 64 << 10;

/// Maximum number of queued bytes of frames. Then no frames are added, and nothing is received, because a response to received
/// frames might have to be queued.
const OUT_BYTES_MAX: usize = 256 << 10;

/// Time after which an unacknowledged ping makes new exchanges use another connection, and time after which the connection counts as
/// broken.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PROBE_MAX: Duration = Duration::from_secs(10);

/// Minimum time without received bytes before a ping: bytes received within this time show that the upstream is reachable.
const PROBE_AFTER: Duration = Duration::from_secs(2);

/// Maximum number of pings without a header section or a body in between: grpc-go servers close the connection at the fourth
/// ("too_many_pings").
const PROBES_IN_A_ROW: u32 = 2;

/// Maximum number of cancelled exchanges in excess of complete ones; then new exchanges use another connection. Servers count the resets
/// of a connection as abuse, some from 100 on, and end it with the exchanges of all clients.
const CANCELLED_MAX: u32 = 50;

/// Number of cancelled exchanges per second that are not counted.
const CANCELLED_PER_SECOND: u32 = 10;

/// Settings of a keep-alive connection without exchanges.
pub(super) struct Idle {
    /// Maximum idle time.
    pub(super) time: Duration,
    /// Called when no exchange is in progress.
    pub(super) begins: Box<dyn Fn()>,
}

impl Connection {
    /// Starts HTTP/2 on a connection; `slot` is released when the connection has ended. If `idle` is `None`, the connection ends
    /// after its first exchange.
    pub(super) fn start(
        wire: Box<dyn Duplex>,
        slot: Option<Counted>,
        idle: Option<Idle>,
        windows: &Windows,
    ) -> Rc<Connection> {
        let limits = Limits {
            streams_max: 0,
            initial_window: WINDOW_BYTES,
            connection_window: CONNECTION_WINDOW,
            head_max: HEAD_MAX,
        };
        let mut out = Vec::new();
        let session = Session::client(limits, &mut out);
        let state = State {
            windows: windows.clone(),
            session,
            out,
            users: 0,
            requests: 0,
            cancelled: 0,
            is_closing: false,
            has_goaway: false,
            idle_since: rt::now(),
            received_at: rt::now(),
            probed_at: None,
            probes: 0,
            cut: None,
        };
        let connection = Rc::new(Connection { state: RefCell::new(state), driver: Cell::new(None) });
        rt::spawn(driver::drive(Rc::clone(&connection), wire, slot, idle));
        connection
    }

    /// Whether another exchange may begin on the connection.
    pub(super) fn is_available(&self) -> bool {
        let state = self.state.borrow();
        let is_in_doubt = state.probed_at.is_some_and(|at| rt::now() >= at + PROBE_TIMEOUT);
        // The session counts only streams that have sent a frame; `users` also counts exchanges that have not sent one yet.
        !state.is_closing
            && state.cut.is_none()
            && !is_in_doubt
            && state.users < state.session.streams_max()
            && state.session.may_open()
    }

    /// Returns the time at which the last exchange ended; `None` if an exchange is in progress, or the connection is closing.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let is_idle = state.users == 0 && !state.is_closing && state.cut.is_none();
        is_idle.then_some(state.idle_since)
    }

    /// Whether the connection has ended, or accepts no further exchanges.
    pub(super) fn is_closing(&self) -> bool {
        let state = self.state.borrow();
        state.is_closing || state.cut.is_some()
    }

    /// Returns the number of exchanges that have begun on the connection.
    pub(super) fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Accepts no further exchanges, and ends with the last one.
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

    /// Runs a step that may queue work for the driver, and wakes the driver.
    fn with<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let done = step(&mut self.state.borrow_mut());
        self.driver.take().into_iter().for_each(Waker::wake);
        done
    }
}

impl State {
    /// Ends all streams with this reason.
    fn fail(&mut self, cut: Cut) {
        self.cut.get_or_insert(cut);
        self.session.each().for_each(|(_, stream)| stream.cut(cut));
    }

    /// Counts the end of an exchange. A connection with many cancelled exchanges accepts no further ones, so that the cancellations of some
    /// clients do not end the exchanges of others.
    fn note_end(&mut self, is_cancelled: bool) {
        match is_cancelled {
            true => self.cancelled += 1,
            false => self.cancelled = self.cancelled.saturating_sub(1),
        }
        self.is_closing |= self.cancelled >= CANCELLED_MAX;
    }

    /// Pings the upstream if it may be unreachable, unless a ping is in flight. If no further ping is permitted, new exchanges open
    /// another connection.
    fn probe(&mut self) {
        let may_be_dead = rt::now() >= self.received_at + PROBE_AFTER;
        if !may_be_dead || self.probed_at.is_some() || self.cut.is_some() {
            return;
        }
        if self.probes == PROBES_IN_A_ROW {
            self.is_closing = true;
            return;
        }
        self.probed_at = Some(rt::now());
        self.probes += 1;
        self.session.ping(&mut self.out);
    }

    /// Opens a stream with a window as large as the thread's memory for bodies permits. The update of the window follows the header
    /// section of the request, so it costs no round trip.
    fn widen_first(&mut self, id: u32, stream: &Stream) {
        let share = self.windows.of_upstream(WINDOW_BYTES.into());
        let window = share.permit(WINDOW_BYTES_FIRST.into(), 0);
        self.session.widen(id, u32::try_from(window).unwrap_or(u32::MAX), &mut self.out);
        stream.set_share(share);
    }

    /// Doubles the windows of the responses that they have limited during a round trip.
    fn grow(&mut self) {
        for (id, window) in self.session.limited() {
            let share = self.session.get(id).and_then(|stream| stream.share());
            let Some(share) = share else { continue };
            let wanted = (2 * window).min(STREAM_WINDOW_MAX);
            let window = share.permit(wanted.into(), window.into());
            self.session.widen(id, u32::try_from(window).unwrap_or(u32::MAX), &mut self.out);
        }
    }

    /// Resets a stream because of invalid input from the upstream.
    fn refuse(&mut self, id: u32, stream: &Stream, cut: Cut) {
        self.session.reset(id, ErrorCode::Protocol, &mut self.out);
        stream.cut(cut);
    }
}
