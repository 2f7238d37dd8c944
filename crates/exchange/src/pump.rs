//! Runs one request, from a parsed header section to the next step of the connection: one loop for all
//! protocols of clients.
//!
//! ```text
//! head --> phases --> filters --> response in memory --------------------> Transport::send --+--> log --> remaining
//!           |  ^                  `-> body that is read or received later --> Outlet --------+            request body
//!           `--+ waits: a handler, the request's body
//! ```
//!
//! All steps that do not wait are plain functions on the stack, and return [`Pending`] for steps that do. This keeps
//! the state of a connection small: with many connections, each of its cache lines is fetched from memory for each
//! response.

use std::pin::{Pin, pin};
use std::rc::Rc;

use io::{Errno, Segments};
use rt::panics::Panic;
use rt::{Either, select};

use crate::course::{self, AfterPhases, BodyNeed, PhaseCursor, Progress, Waiting};
use crate::phases::Step;
use crate::request::Request;
use crate::request_body::{BodyFailure, Feed};
use crate::response::Body;
use crate::takeover::Ended;
use crate::transport::{After, Received, Transport};
use crate::{cut_off, effect, error_page, prepare, sending};
use telemetry::tally::TunnelEnd;
use telemetry::{Level, Reason};
use transfer::body::{BodyError, Outlet, Rate, SendError};

/// The pending step of a request. `R` is [`Transport::Unsent`].
enum Pending<R> {
    /// The request has ended; the connection continues as stated.
    Nothing(After),
    /// The phases wait for this reason.
    Step(PhaseCursor, Waiting),
    /// The request's body has to be read first.
    Body(PhaseCursor),
    /// An error replaces the response.
    Error(u16),
    /// The remaining bytes of a response in memory wait for the client to read.
    Sending(R),
    /// A read of the complete body, which is appended to the header section.
    Read(Pin<Box<dyn Future<Output = Result<Segments, BodyError>>>>),
    /// A response that is sent piece by piece.
    Pieces(PendingResponse),
    /// A switch to another protocol, after this header section.
    Takeover(Vec<u8>),
    /// Work after the response, followed by this state.
    Afterwards(After),
}

/// State of a response that cannot be sent in one call.
struct PendingResponse {
    head: Vec<u8>,
    rate: Option<Box<Rate>>,
    /// Whether a 100 (Continue) response is to be sent first.
    sends_continue: bool,
}

/// Returns how a request goes on that ran within [`cut_off::unless`] and [`rt::panics::catch`]. The caller has the transport and the
/// request anyway, so that a connection needs no memory for them.
pub fn end_of_run<T: Transport>(
    transport: &mut T,
    request: &mut Request,
    ran: Option<Result<After, Panic>>,
) -> After {
    match ran {
        Some(Ok(after)) => return after,
        Some(Err(panic)) => end_after_panic(transport, request, &panic),
        None => end_cut_off(transport, request),
    }
    After::Drop
}

/// Ends a request that the server's shutdown cuts off outside the sending of its response, with its log lines.
fn end_cut_off<T: Transport>(transport: &mut T, request: &mut Request) {
    (request.keepalive, request.completed) = (false, false);
    if request.sent > 0 {
        transport.break_off(request, &SendError::CutOff.into());
    }
    if !request.is_ended() {
        request.log(
            Level::Info,
            format_args!("worker_shutdown_timeout has passed while processing the request"),
        );
        request.end();
    }
}

/// Ends a request that panicked: its error line and its access line, and a response that does not look complete. A second
/// panic, of the log, ends only these.
fn end_after_panic<T: Transport>(transport: &mut T, request: &mut Request, panic: &Panic) {
    request.keepalive = false;
    request.completed = false;
    // Whether bytes of the response were sent is not known. The status tells the fault anyway.
    request.response.status = 500;
    let ended = rt::panics::catch_call(|| {
        request.log(Level::Alert, format_args!("the server panicked: {panic}, while processing the request"));
        transport.break_off(request, &BodyError::Broken);
        if !request.is_ended() {
            request.end();
        }
    });
    // The executor reports a panic of the log on standard error.
    if let Err(second) = ended {
        std::panic::resume_unwind(Box::new(second.to_string()));
    }
}

/// Runs a request to its end; its header section may be invalid. The caller passes the outcome to [`end_of_run`].
pub async fn run<T: Transport>(transport: &mut T, request: &mut Request, received: Received) -> After {
    let mut pump = Pump { transport, request };
    let mut pending = pump.received(received);
    // The boxed states are rare and large.
    loop {
        pump.release_buffers(&pending);
        pending = match pending {
            Pending::Nothing(after) => return after,
            Pending::Step(mut cursor, waiting) => {
                let step = waiting.step(pump.request).await;
                match cursor.take(pump.request, step) {
                    Some(outcome) => pump.decided(outcome),
                    None => pump.advance(cursor),
                }
            }
            Pending::Body(mut cursor) => {
                let outcome = Box::pin(pump.decide_with_body(&mut cursor)).await;
                pump.decided(outcome)
            }
            Pending::Error(status) => match Box::pin(course::replace(pump.request, status)).await {
                AfterPhases::Respond => pump.begin_response(),
                AfterPhases::Drop => dropped(pump.request),
            },
            Pending::Sending(mut rest) => {
                let sent = pump.transport.send_remaining(pump.request, &mut rest).await;
                pump.sent(sent)
            }
            Pending::Read(read) => match read.await {
                Ok(data) => pump.send(data),
                Err(error) => pump.sent(Err(error)),
            },
            Pending::Pieces(held) => {
                let sent = Box::pin(pump.send_in_pieces(held)).await;
                pump.sent(sent)
            }
            Pending::Takeover(head) => {
                let after = Box::pin(pump.take_over(head)).await;
                pump.end_response(after)
            }
            Pending::Afterwards(after) => return Box::pin(pump.end(after)).await,
        }
    }
}

/// A request and the state of its connection.
struct Pump<'p, T> {
    transport: &'p mut T,
    request: &'p mut Request,
}

/// The steps up to a decision.
impl<T: Transport> Pump<'_, T> {
    /// Releases the receive buffers of a request that waits, or whose client may read slowly. Otherwise thousands of
    /// slow downloads would hold all buffers.
    fn release_buffers(&mut self, pending: &Pending<T::Unsent>) {
        let takes_long = match pending {
            Pending::Nothing(_) => false,
            Pending::Pieces(_) | Pending::Takeover(_) => true,
            _ => rt::buffers_are_scarce(),
        };
        if takes_long {
            self.request.release_buffer();
            self.transport.release_buffers();
        }
    }

    /// Handles the result of reading a header section, which is in the request.
    fn received(&mut self, received: Received) -> Pending<T::Unsent> {
        match received {
            Received::Head => {}
            Received::Refused(status) => {
                // A response to HEAD has no body, whatever the error is (RFC 9110 section 9.3.2).
                self.request.method = self.request.head.method();
                self.request.keepalive = false;
                return Pending::Error(status);
            }
            Received::Abandoned(status) => {
                self.request.response.status = status;
                return dropped(self.request);
            }
            Received::Closed => return Pending::Nothing(After::Drop),
        }
        let thread_config = Rc::clone(&self.request.thread_config);
        match PhaseCursor::begin(self.request, self.transport.listen(&thread_config)) {
            (_, Some(outcome)) => self.decided(outcome),
            (mut cursor, None) if needs_early_body(self.request) => match course::too_large(self.request) {
                None => Pending::Body(cursor),
                Some(status) => match cursor.take(self.request, Step::Status(status)) {
                    Some(outcome) => self.decided(outcome),
                    None => self.advance(cursor),
                },
            },
            (cursor, None) => self.advance(cursor),
        }
    }

    /// Runs the phases of the request, until they wait.
    fn advance(&mut self, mut cursor: PhaseCursor) -> Pending<T::Unsent> {
        match cursor.advance(self.request) {
            Progress::Decided(outcome) => self.decided(outcome),
            Progress::Waits(waiting) => Pending::Step(cursor, waiting),
            Progress::NeedsBody => Pending::Body(cursor),
        }
    }

    fn decided(&mut self, outcome: AfterPhases) -> Pending<T::Unsent> {
        if outcome == AfterPhases::Drop {
            return dropped(self.request);
        }
        if !self.request.is_body_consumed && self.transport.body_is_broken(self.request) {
            self.request.keepalive = false;
            // As in nginx an error with another reason has precedence.
            if self.request.response.status < 400 {
                return Pending::Error(400);
            }
        }
        self.begin_response()
    }

    /// Reads the body that a handler needs, and continues with it.
    async fn decide_with_body(&mut self, cursor: &mut PhaseCursor) -> AfterPhases {
        loop {
            let body_need = cursor.take_body_need();
            let is_stored = body_need == BodyNeed::Stored;
            let is_in_pieces = (is_stored || body_need == BodyNeed::Pieces) && self.request.body.is_none();
            // As in nginx a body that arrived with the header section counts as complete (`$request_body`).
            if is_in_pieces && !self.transport.has_complete_body(self.request) {
                let feed = self.transport.begin_feed(self.request, is_stored).await;
                if let Some(outcome) = self.decide_with_pieces(cursor, feed).await {
                    return outcome;
                }
                continue;
            }
            let outcome = match self.transport.read_body(self.request, body_need).await {
                Ok(None) => None,
                Ok(Some(feed)) => match self.decide_with_pieces(cursor, Ok(*feed)).await {
                    None => continue,
                    outcome => outcome,
                },
                Err(failure) => failed(cursor, self.request, failure),
            };
            let decided = match outcome {
                None => course::run(cursor, self.request).await,
                outcome => outcome,
            };
            if let Some(outcome) = decided {
                return outcome;
            }
        }
    }

    /// Continues while the body is read for the handler that consumes it.
    async fn decide_with_pieces(
        &mut self,
        cursor: &mut PhaseCursor,
        feed: Result<Feed<T::UnreadBody>, BodyFailure>,
    ) -> Option<AfterPhases> {
        let Pump { transport, request } = self;
        let feed = match feed {
            Ok(feed) => feed,
            Err(failure) => {
                (request.is_body_consumed, request.keepalive) = (true, false);
                request.body.get_or_insert_default();
                return match failed(cursor, request, failure) {
                    None => course::run(cursor, request).await,
                    outcome => outcome,
                };
            }
        };
        let incoming = Rc::clone(&feed.incoming);
        debug_assert!(request.incoming.is_none(), "a request has one body");
        request.incoming = Some(Rc::clone(&incoming));
        // The reader is polled first, so that available bytes are sent together with the header section.
        let outcome = match select(transport.feed(feed), course::run(cursor, request)).await {
            Either::Left(never) => match never {},
            Either::Right(outcome) => outcome,
        };
        request.incoming = None;
        request.received += incoming.received();
        // The remaining body could not be distinguished from a following request.
        request.is_body_consumed = true;
        if !incoming.is_complete() {
            request.keepalive = false;
            // The upstream has responded before it received the complete request. Bytes received earlier are lost with
            // the feed, and the next ones must not follow the gap.
            if Rc::strong_count(&incoming) > 1 && !incoming.has_earlier() {
                transport.continue_feeding(request, &incoming);
            }
        }
        // A handler that requests the body later gets an empty body. `body_was_streamed` states that it was not empty.
        request.body_was_streamed = true;
        request.body.get_or_insert_default();
        outcome
    }
}

/// The steps of a response.
impl<T: Transport> Pump<'_, T> {
    /// Sends the response.
    fn begin_response(&mut self) -> Pending<T::Unsent> {
        if let Some(status) = prepare::filter(self.request) {
            return Pending::Error(status);
        }
        match self.prepare() {
            Ok(data) => self.send(data),
            Err(pending) => pending,
        }
    }

    /// Writes the header section. Returns the complete response if it is in memory, or the state of its body.
    fn prepare(&mut self) -> Result<Segments, Pending<T::Unsent>> {
        let Pump { transport, request } = self;
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let sends_continue = transport.begin_response(request, core);
        let mut head = std::mem::take(&mut request.spare);
        if !transport.write_head(request, core, &mut head) {
            request.response.blank_controls();
            if !transport.write_head(request, core, &mut head) {
                request.log(Level::Error, format_args!("the name of a response header field is not valid"));
                request.keepalive = false;
                // All fields are dropped, because the invalid one is not known.
                request.response.clear();
                error_page::respond(request, 500);
                transport.write_head(request, core, &mut head);
            }
        }
        request.sent_head = head.len() as u64;
        request.header_ready = rt::now();
        if let Body::Tunnel(_) = request.response.body {
            return Err(Pending::Takeover(head));
        }
        let rate = effect::rate(core, request);
        if rate.is_some() || sends_continue {
            return Err(Pending::Pieces(PendingResponse { head, rate: rate.map(Box::new), sends_continue }));
        }
        prepare::try_read(request, core, head).map_err(|head| match prepare::in_one_read(request, core) {
            Some((file, read)) => Pending::Read(Box::pin(file.read_after_head(head, read))),
            None => Pending::Pieces(PendingResponse { head, rate: None, sends_continue }),
        })
    }

    /// Sends a response that is completely in memory.
    fn send(&mut self, data: Segments) -> Pending<T::Unsent> {
        match self.transport.send(self.request, data) {
            Ok(Some(rest)) => Pending::Sending(rest),
            sent => self.sent(sent.map(drop)),
        }
    }

    /// Sends a response piece by piece.
    async fn send_in_pieces(&mut self, held: PendingResponse) -> Result<(), BodyError> {
        let Pump { transport, request } = self;
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let PendingResponse { head, rate, sends_continue } = held;
        let mut outlet = transport.outlet(request, core, rate.map(|rate| *rate), sends_continue);
        let sent = cut_off::unless(pin!(sending::send(&mut outlet, head, request))).await;
        let sent = sent.unwrap_or(Err(SendError::CutOff.into()));
        request.sent = outlet.sent();
        request.store_spare(outlet.take_spare());
        drop(outlet);
        if let Err(error) = &sent {
            transport.wait_for_delivery(request, core, error).await;
        }
        sent
    }

    /// Announces the switch to another protocol, and hands the connection over.
    async fn take_over(&mut self, head: Vec<u8>) -> After {
        let Pump { transport, request } = self;
        if let Body::Tunnel(by) = std::mem::take(&mut request.response.body) {
            request.keepalive = false;
            match transport.take_over(request, head, by).await {
                Ok(end) => {
                    request.sent += end.sent;
                    request.completed = matches!(end.reason, Ended::Closed | Ended::HalfClosed);
                    log_end(request, end.reason);
                }
                Err(error) => self.failed(&error),
            }
        }
        After::Drop
    }

    /// Handles the result of sending the response.
    fn sent(&mut self, sent: Result<(), BodyError>) -> Pending<T::Unsent> {
        self.request.completed = sent.is_ok();
        let after = match sent {
            Ok(()) if self.request.keepalive => After::KeepAlive,
            Ok(()) => After::Close,
            Err(error) => {
                self.failed(&error);
                After::Drop
            }
        };
        self.end_response(after)
    }

    /// Handles a failure to send the complete response.
    fn failed(&mut self, error: &BodyError) {
        sending::log_failure(self.request, error);
        self.transport.break_off(self.request, error);
    }

    /// Ends the request with its log lines, unless `post_action` or an unread body has to be processed first.
    fn end_response(&mut self, after: After) -> Pending<T::Unsent> {
        let has_post_action = self.request.scope().core.subrequests.post_action.is_some();
        if has_post_action || has_unread_body(self.request, after) {
            return Pending::Afterwards(after);
        }
        self.request.end();
        Pending::Nothing(after)
    }

    /// Performs the work after the response.
    async fn end(&mut self, after: After) -> After {
        course::post_action(self.request).await;
        self.request.end();
        match has_unread_body(self.request, after) {
            true if self.transport.discard_body(self.request).await => after,
            true => After::Close,
            false => after,
        }
    }
}

/// Ends a connection without a response.
fn dropped<R>(request: &mut Request) -> Pending<R> {
    request.end();
    Pending::Nothing(After::Drop)
}

/// Handles a failure to read a body.
fn failed(cursor: &mut PhaseCursor, request: &mut Request, failure: BodyFailure) -> Option<AfterPhases> {
    match failure {
        BodyFailure::Refused(status) => cursor.take(request, Step::Status(status)),
        BodyFailure::Abandoned(status) => {
            request.response.status = status;
            Some(AfterPhases::Drop)
        }
    }
}

/// Counts the end of a connection with another protocol, and logs it if that is worth a line.
fn log_end(request: &Request, reason: Ended) {
    request.conn.thread.tally.count_tunnel(match reason {
        Ended::Closed => TunnelEnd::Closed,
        Ended::HalfClosed => TunnelEnd::HalfClosed,
        Ended::Idle => TunnelEnd::Idle,
        Ended::CutOff => TunnelEnd::CutOff,
        Ended::Upstream(_) => TunnelEnd::Upstream,
        Ended::Client(_) => TunnelEnd::Client,
    });
    let doing = "while proxying upgraded connection";
    if reason == Ended::CutOff {
        return request.log(Level::Info, format_args!("worker_shutdown_timeout has passed {doing}"));
    }
    let (level, what, errno) = match reason {
        Ended::Closed | Ended::HalfClosed | Ended::CutOff => return,
        Ended::Idle => (Level::Error, "upstream timed out", Errno::TIMEDOUT),
        Ended::Upstream(errno) => (Level::Error, "upstream connection failed", errno),
        Ended::Client(errno) => (Level::Info, "client connection failed", errno),
    };
    request.log(level, format_args!("{what} ({}) {doing}", Reason(errno)));
}

/// Whether an unread body precedes the next request.
fn has_unread_body(request: &Request, after: After) -> bool {
    after == After::KeepAlive && !request.is_body_consumed && request.head.body().has_body()
}

/// Whether the body is to be read before a location is chosen (`client_body_early_read`).
fn needs_early_body(request: &Request) -> bool {
    let texts = request.scope().core.reading.client_body_early_read.items();
    !texts.is_empty()
        && request.head.body().has_body()
        && texts.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"))
}
