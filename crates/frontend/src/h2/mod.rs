//! One HTTP/2 connection: a task that receives, runs each request until it first waits, and sends the frames of all requests
//! together.
//!
//! ```text
//!   received bytes --> events --> a request: run here until it first waits, then by a separate task
//!         ^                 `---> bytes of a body: to the inbox of its stream
//!         |
//!       wait <-- one send <-- frames that are ready: acknowledgements, heads, bodies by priority
//! ```
//!
//! [`shared`] is the state common to the tasks, [`stream`] one request, and [`link`] its interface for `streams`, which has the code common to
//! several protocols. `http::h2` implements the protocol itself.

mod link;
mod shared;
mod stream;

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http::h2::{Event, Fault, Limits, Scratch, Strain};
use io::{Buf, Errno, Segments};
use rt::Timer;

use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::opening::Opened;
use crate::streams::held::HeldRequests;
use crate::wire::{ProgressTimeout, Wire};
use exchange::capacity::Waits;
use exchange::effect;
use exchange::request::ConnInfo;
use shared::{CONNECTION_WINDOW, Input, OUT_BYTES_MAX, Shared};
use site::config::Section;
use site::settings::core::Core;
use site::settings::keepalive::LingeringClose;
use telemetry::tally::{self, Http2Limit, Stage};
use telemetry::{Level, Reason};
use transfer::body::SendError;

/// Maximum number of requests started in a row; then ready frames are sent and other connections get their turn.
const REQUESTS_IN_A_ROW: usize = 64;

/// Time between two receives from a client that has sent too many frames without effect. It then costs less than its own sends.
const SLOW_RECEIVE: Duration = Duration::from_millis(50);

/// Maximum number of bytes that are received and discarded after the last GOAWAY, besides bodies: enough for the frames in flight of a
/// client that reads the GOAWAY. Further bytes are a flood.
const LINGER_BYTES_MAX: u64 = 256 << 10;

/// Maximum time for the client to receive the GOAWAY; after it new streams are not served.
const GOAWAY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Serves a connection until its end.
pub(crate) async fn serve(opened: Opened) {
    let Opened { wire, info, early, thread, listen_socket, mut default, stage, .. } = opened;
    // The opening may have taken long.
    default.renew(&thread, &listen_socket, &info);
    // Heads and bodies of several streams are already combined into segments, so the last segment need not wait (TCP_NODELAY).
    wire.set_nodelay();
    let limits = limits(&default);
    let core = default.core();
    let (send_timeout, keepalive) = (core.sending.send_timeout, &core.keepalive);
    let lingers = keepalive.lingering_close != LingeringClose::Off;
    let lingering = lingers.then_some((keepalive.lingering_time, keepalive.lingering_timeout));
    let receive_max = default.http2().recv_buffer_size;
    let is_traced = default.thread_config.config.http.traces;
    // A connection must not hold a configuration that was replaced.
    drop(default);
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let shared = Shared::new(thread, wire.handle(), limits, waker.clone());
    let mut connection = Connection {
        shared,
        listen_socket,
        info,
        wire,
        input: Input::of(early.bytes().to_vec()),
        scratch: Scratch::default(),
        stage,
        timer: Timer::new(),
        send_timer: Timer::new(),
        progress_timeout: ProgressTimeout::new(send_timeout),
        in_flight: None,
        credited_at: rt::now(),
        end: End::Open,
        is_first: true,
        head_until: None,
        idle_since: None,
        batches: 0,
        requests: 0,
        received: 0,
        is_ended_calmly: false,
        is_unanswered: false,
        receive_max,
        lingering,
        was_held_up: false,
        data_received: 0,
        is_traced,
        stall: (0, rt::now()),
        held: HeldRequests::default(),
        slow_until: None,
        streams_max: limits.streams_max as usize,
        linger_bytes: 0,
        waker,
    };
    let stop = connection.run().await;
    connection.end(stop).await;
    connection.wire.end(&connection.shared.thread);
}

/// Returns the settings to send to the client.
fn limits(default: &DefaultServer) -> Limits {
    let settings = default.http2();
    Limits {
        streams_max: settings.streams_max,
        initial_window: settings.preread,
        connection_window: CONNECTION_WINDOW,
        head_max: effect::policy(default.core()).head_max,
    }
}

/// State of the task of a connection.
struct Connection {
    /// State shared with its streams.
    shared: Rc<Shared>,
    /// The listening socket that it arrived at.
    listen_socket: Rc<ListenSocket>,
    /// Facts of the connection; each request gets a copy.
    info: Rc<ConnInfo>,
    /// The transport of its bytes.
    wire: Wire,
    /// Bytes that were received and not yet processed.
    input: Input,
    /// Memory for decoding header sections.
    scratch: Scratch,
    /// Its state in the statistics of the thread.
    stage: tally::Counted,
    /// Deadline for receiving.
    timer: Timer,
    /// Deadline for sending.
    send_timer: Timer,
    /// Timeout of a send in flight without progress.
    progress_timeout: ProgressTimeout,
    /// Frames in flight.
    in_flight: Option<Segments>,
    /// Time up to which the elapsed time was credited to the client.
    credited_at: Instant,
    /// Progress of ending the connection.
    end: End,
    /// Whether no request has arrived yet.
    is_first: bool,
    /// Deadline for a header section that has begun.
    head_until: Option<Instant>,
    /// Start of the wait for a request, while there are none.
    idle_since: Option<Instant>,
    /// Number of sends since other connections got their turn.
    batches: u32,
    /// Number of requests started since then.
    requests: usize,
    /// Number of bytes received since then.
    received: u64,
    /// Whether GOAWAY was sent because of too many frames without effect.
    is_ended_calmly: bool,
    /// Whether nothing was sent since the last receive.
    is_unanswered: bool,
    /// Maximum of `received` (`http2_recv_buffer_size`).
    receive_max: u64,
    /// `lingering_time` and `lingering_timeout`, unless `lingering_close` is `off`. A reload may remove the server of the connection.
    lingering: Option<(Duration, Duration)>,
    /// Whether the client had not accepted the ready frames at the last check.
    was_held_up: bool,
    /// Number of bytes of request bodies that were received.
    data_received: u64,
    /// Whether the configuration has debug messages.
    is_traced: bool,
    /// Number of body bytes in both directions at the start of the last stall, and its time.
    stall: (u64, Instant),
    /// Requests that have not begun.
    held: HeldRequests<stream::DecodedRequest>,
    /// Time of the next receive from a client that has sent too many frames without effect.
    slow_until: Option<Instant>,
    /// Maximum number of requests in progress, including the work of cancelled requests.
    streams_max: usize,
    /// Maximum number of bytes to discard at the end.
    linger_bytes: u64,
    /// Waker of this task.
    waker: Waker,
}

/// Progress of ending a connection (RFC 9113 section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The end was not announced.
    Open,
    /// A first GOAWAY was sent. Streams that the client opens until this time are served.
    Announced(Instant),
    /// The GOAWAY with the last stream was sent.
    Last,
}

/// Reason why a connection ends.
enum Stop {
    /// The end was announced, and all streams have ended.
    Done,
    /// The client violated the protocol.
    Fault(Fault),
    /// The client has disconnected.
    Disconnected(Errno),
    /// The client accepted no bytes for too long.
    TimedOut,
    /// The client did not complete a header section in time.
    HeadTimedOut,
    /// The connection was chosen to make room for another.
    Reclaimed,
}

/// Result of a wait.
enum Woken {
    /// Bytes received from the client.
    Received(Buf),
    /// Streams have frames to send, or have ended.
    Streams,
    /// The deadline of the wait has passed.
    Elapsed,
}

impl Connection {
    /// Receives and sends until the end of the connection.
    async fn run(&mut self) -> Stop {
        let mut has_received = false;
        loop {
            if self.batches >= BATCHES_IN_A_ROW
                || self.received >= self.receive_max
                || self.requests >= REQUESTS_IN_A_ROW
            {
                (self.batches, self.received, self.requests) = (0, 0, 0);
                rt::yield_now().await;
            }
            // Checked before the input: if a reload has removed the address, no further stream is served.
            if self.end != End::Last
                && !self.listen_socket.serves(&self.shared.thread.thread_config(), &self.info)
            {
                self.send_last_goaway();
            }
            let handled = self.handle_input();
            self.count_limits(handled.as_ref().err());
            self.begin_held();
            match handled {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => {
                    // A client with many queued requests must not wait long for the first response.
                    if let Err(stop) = self.begin_sending().await {
                        return stop;
                    }
                    continue;
                }
                Err(fault) => return Stop::Fault(fault),
            }
            self.limit_strain(std::mem::take(&mut has_received));
            if let ControlFlow::Break(stop) = self.advance_end() {
                return stop;
            }
            match self.wait().await {
                Ok(Woken::Received(buf)) => {
                    self.pass_time();
                    self.received += buf.len() as u64;
                    self.is_unanswered = true;
                    has_received = true;
                    self.input.add(buf);
                }
                Ok(Woken::Streams) => {}
                Ok(Woken::Elapsed) => {
                    if let ControlFlow::Break(stop) = self.elapsed() {
                        return stop;
                    }
                }
                Err(stop) => return stop,
            }
        }
    }

    /// Processes the received bytes, event by event. A request runs when its header section is decoded, so that its response is
    /// ready for the next send. Returns `Break` if ready frames are to be sent, or other connections must get their turn, before the
    /// remaining bytes.
    fn handle_input(&mut self) -> Result<ControlFlow<()>, Fault> {
        while !self.input.bytes().is_empty() {
            let shared = Rc::clone(&self.shared);
            let input = self.input.bytes();
            let step = shared.with(|state| state.session.receive(input, &mut state.out))?;
            if self.is_traced {
                self.trace(&step.event);
            }
            match step.event {
                Event::More => break,
                Event::Nothing => {}
                Event::Head { stream, ends, block } => {
                    (self.head_until, self.idle_since) = (None, None);
                    let scratch = &mut self.scratch;
                    let head = stream::Head { id: stream, ends, block, input, scratch };
                    let decoded = stream::begin(&shared, &self.listen_socket, &self.info, head)?;
                    self.input.consume(step.used);
                    self.admit(decoded);
                    self.requests += 1;
                    // Further responses would wait for the frames of this send.
                    let is_due = self.in_flight.is_none() && self.shared.with(|state| state.is_full());
                    if is_due || self.requests >= REQUESTS_IN_A_ROW {
                        return Ok(ControlFlow::Break(()));
                    }
                    continue;
                }
                Event::Data { stream, start, end, ends } => {
                    debug_assert!(start <= end && end <= input.len(), "the payload is in the input");
                    self.data_received += (end - start) as u64;
                    let stream = shared.with(|state| state.session.get(stream).map(Rc::clone));
                    if let Some(stream) = stream {
                        let mut inbox = stream.inbox.borrow_mut();
                        inbox.add(&input[start..end]);
                        if ends {
                            inbox.trailers = shared.with(|state| state.session.take_trailers());
                            inbox.finish(Ok(()));
                        }
                    }
                }
                Event::Reset { stream, by_peer, .. } => shared.with(|state| state.abort(stream, by_peer)),
                Event::Window { stream } => shared.with(|state| state.open_window(stream)),
                Event::Priority { stream, priority } => {
                    shared.with(|state| state.set_priority(stream, priority));
                }
                Event::GoAway { .. } => {
                    if self.end == End::Open {
                        self.send_last_goaway();
                    }
                }
                Event::Round => shared.grow(),
                Event::Pong => {
                    if matches!(self.end, End::Announced(_)) {
                        self.send_last_goaway();
                    }
                }
            }
            self.input.consume(step.used);
        }
        self.shared.with(|state| self.shared.open_connection(state));
        // An incomplete frame is copied out of the receive buffer, because its remaining bytes may take long to arrive.
        self.input.keep();
        Ok(ControlFlow::Continue(()))
    }

    /// Runs a request until it first waits; then a separate task continues it.
    fn begin(&mut self, decoded: stream::DecodedRequest) {
        self.stage.set(Stage::Reading);
        self.stage.set(Stage::Writing);
        self.is_first = false;
        let (shared, listen_socket) = (Rc::clone(&self.shared), Rc::clone(&self.listen_socket));
        // Most requests never wait: they end here, and their frames are sent together with the frames of other streams.
        let mut task = Box::pin(stream::run(shared, listen_socket, decoded));
        if task.as_mut().poll(&mut Context::from_waker(&self.waker)).is_pending() {
            rt::spawn(task);
        }
    }

    /// Begins a request, unless it must be held back.
    fn admit(&mut self, decoded: stream::DecodedRequest) {
        if self.may_begin() {
            return self.begin_next(decoded);
        }
        if self.held.is_empty() {
            self.shared.thread.tally.count_http2_limit(Http2Limit::Resets);
        }
        self.shared.with(|state| state.session.hold(decoded.stream.id, true));
        self.held.add(decoded);
    }

    /// Whether a further request may begin before those that are held back: not while the client cancels many requests, and not while
    /// as many are in progress as it may open. Cancelled requests are in progress until their work has ended.
    fn may_begin(&self) -> bool {
        self.held.is_empty() && self.has_room() && self.held.waits_until().is_none()
    }

    /// Whether the work of another open request may begin.
    fn has_room(&self) -> bool {
        debug_assert!(self.held.len() <= self.open_streams(), "held requests are open streams");
        self.open_streams() - self.held.len() <= self.streams_max
    }

    /// Begins a request, and delays the next one if the client has wasted the work of many.
    fn begin_next(&mut self, decoded: stream::DecodedRequest) {
        let delay = self.shared.with(|state| state.session.start_delay());
        self.held.delay((!delay.is_zero()).then(|| rt::now() + delay));
        self.begin(decoded);
    }

    /// Begins held requests as far as permitted. Cancelled requests end without any work.
    fn begin_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for cancelled in self.held.take_cancelled() {
            self.begin(cancelled.abandoned());
        }
        while self.can_begin_held()
            && let Some(decoded) = self.held.take()
        {
            self.shared.with(|state| state.session.hold(decoded.stream.id, false));
            self.begin_next(decoded);
        }
    }

    /// Whether a held request can begin now.
    fn can_begin_held(&self) -> bool {
        // The first held request is one of the open streams.
        !self.held.is_empty()
            && self.open_streams() - self.held.len() < self.streams_max
            && self.held.waits_until().is_none()
    }

    /// Slows down a client that has sent too many frames without effect; if these continue, the connection accepts no further streams.
    fn limit_strain(&mut self, has_received: bool) {
        let strain = self.shared.with(|state| state.session.strain());
        if strain == Strain::None {
            self.slow_until = None;
            return;
        }
        if has_received {
            self.slow_until = Some(rt::now() + SLOW_RECEIVE);
        }
        if strain == Strain::Ended && !std::mem::replace(&mut self.is_ended_calmly, true) {
            self.end = End::Last;
            self.shared.with(|state| state.session.end_calmly(&mut state.out));
            self.shared.thread.tally.count_http2_limit(Http2Limit::Frames);
            self.complain(Level::Info, format_args!("{}", Fault::Flood.message()));
        }
    }

    /// Counts the limits that the client has reached.
    fn count_limits(&mut self, fault: Option<&Fault>) {
        let tally = &self.shared.thread.tally;
        for _ in 0..self.shared.with(|state| state.session.take_refused()) {
            tally.count_http2_limit(Http2Limit::Streams);
        }
        let limit = match fault {
            Some(Fault::Flood) if !self.is_ended_calmly => Some(Http2Limit::Frames),
            Some(Fault::HeadTooLarge) => Some(Http2Limit::HeaderBlock),
            _ => None,
        };
        let is_held_up = !self.may_receive();
        if is_held_up && !std::mem::replace(&mut self.was_held_up, is_held_up) {
            tally.count_http2_limit(Http2Limit::Output);
        }
        self.was_held_up = is_held_up;
        limit.into_iter().for_each(|limit| tally.count_http2_limit(limit));
    }

    /// Credits the elapsed complete seconds to the client's budgets of frames and resets.
    fn pass_time(&mut self) {
        let seconds = rt::now().duration_since(self.credited_at).as_secs();
        if seconds > 0 {
            self.credited_at += Duration::from_secs(seconds);
            self.shared.with(|state| state.session.pass_time(seconds));
        }
    }

    /// Returns the number of open streams.
    fn open_streams(&self) -> usize {
        self.shared.with(|state| state.session.open_streams())
    }
}

/// Ending the connection.
impl Connection {
    /// Advances the end of a connection by one step.
    fn advance_end(&mut self) -> ControlFlow<Stop> {
        let thread = &self.shared.thread;
        // A leaving server still accepts connections; each serves one request, as in HTTP/1, so that reconnects succeed.
        let is_leaving = if self.is_first { thread.is_draining() } else { thread.is_leaving() };
        let is_to_end = self.shared.is_ending.get() || is_leaving;
        if self.end == End::Open && is_to_end {
            self.end = End::Announced(rt::now() + GOAWAY_WAIT_MAX);
            self.shared.with(|state| state.session.announce_end(&mut state.out));
        }
        if let End::Announced(until) = self.end
            && rt::now() >= until
        {
            self.send_last_goaway();
        }
        let is_over = self.end == End::Last && self.open_streams() == 0;
        let has_left = self.in_flight.is_none() && self.shared.with(|state| state.out.is_empty());
        if is_over && has_left { ControlFlow::Break(Stop::Done) } else { ControlFlow::Continue(()) }
    }

    /// Sends the final GOAWAY; streams with higher numbers than the last opened stream are not served.
    fn send_last_goaway(&mut self) {
        self.end = End::Last;
        self.shared.with(|state| state.session.end(&mut state.out));
    }

    /// Handles a deadline that passed while waiting for bytes.
    fn elapsed(&mut self) -> ControlFlow<Stop> {
        if self.head_until.is_some_and(|until| until <= rt::now()) {
            return ControlFlow::Break(Stop::HeadTimedOut);
        }
        let now = rt::now();
        if self.slow_until.is_some_and(|until| until <= now) || !self.held.is_empty() {
            return ControlFlow::Continue(());
        }
        // Also while the end is announced: otherwise this deadline would elapse again and again within the turn.
        if self.open_streams() == 0 && self.end != End::Last {
            self.send_last_goaway();
        }
        ControlFlow::Continue(())
    }

    /// Ends the remaining streams, and sends the reason to the client if it may read it.
    async fn end(&mut self, stop: Stop) {
        let is_flood = self.is_ended_calmly || matches!(stop, Stop::Fault(_));
        // Others may still send the bodies for which they have a window.
        let window = if is_flood { 0 } else { self.shared.with(|state| state.session.connection_window()) };
        self.linger_bytes = LINGER_BYTES_MAX + 2 * window;
        match stop {
            Stop::Done => return self.linger().await,
            Stop::Fault(fault) => {
                self.complain(Level::Info, format_args!("{}", fault.message()));
                self.send_goaway(Some(fault), Errno::CONNRESET).await;
                self.linger().await;
            }
            Stop::HeadTimedOut => {
                let why = Reason(Errno::TIMEDOUT);
                self.complain(Level::Info, format_args!("client timed out ({why})"));
                self.send_goaway(None, Errno::TIMEDOUT).await;
            }
            Stop::Disconnected(errno) => self.shared.with(|state| state.abort_all(errno)),
            Stop::TimedOut => {
                let why = Reason(Errno::TIMEDOUT);
                self.complain(Level::Info, format_args!("client timed out ({why})"));
                self.shared.with(|state| state.abort_all(Errno::TIMEDOUT));
            }
            Stop::Reclaimed => {
                self.complain(Level::Info, format_args!("connection was closed to make room for another"));
                self.wire.set_reset_on_close();
                self.shared.with(|state| state.abort_all(Errno::CANCELED));
            }
        }
        self.begin_held();
        // The open requests are notified that their client has disconnected, and end by themselves.
        self.wire.abandon_send();
        poll_fn(|context| {
            self.shared.wait(context);
            if self.open_streams() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Ends all streams for the reason `errno`, and sends GOAWAY (RFC 9113 section 6.8) with the code of the fault, if any.
    async fn send_goaway(&mut self, fault: Option<Fault>, errno: Errno) {
        self.shared.with(|state| {
            let out = std::mem::take(&mut state.out);
            state.abort_all(errno);
            state.out = out;
            match fault {
                Some(fault) => state.session.fail(fault, &mut state.out),
                None => state.session.end(&mut state.out),
            }
        });
        // The client may not read the GOAWAY, so the send has a time limit.
        self.timer.set(rt::now() + GOAWAY_WAIT_MAX);
        let timer = self.timer.clone();
        let _ = timer.limit(self.flush()).await;
        self.wire.abandon_send();
    }

    /// Performs a lingering close, so that a TCP reset does not discard the GOAWAY frame before the client has read it.
    async fn linger(&mut self) {
        let Some((lingering_time, lingering_timeout)) = self.lingering else { return };
        self.wire.shutdown_write();
        let until = rt::now() + lingering_time;
        while rt::now() < until {
            self.timer.set((rt::now() + lingering_timeout).min(until));
            let _waiting = self.shared.thread.capacity.waits(Waits::Lingering, &self.timer, self.wire.fd());
            let timer = self.timer.clone();
            let Ok(Ok(Some(received))) = timer.limit(self.wire.recv()).await else { return };
            // A client that sends without end, such as a flood, must not be served longer than a client that reads the GOAWAY.
            let Some(rest) = self.linger_bytes.checked_sub(received.len() as u64) else { return };
            self.linger_bytes = rest;
        }
    }

    /// Writes a debug message about a received frame.
    #[cold]
    fn trace(&self, event: &Event) {
        let write = |what: std::fmt::Arguments<'_>| {
            let thread_config = self.shared.thread.thread_config();
            let server = self.listen_socket.default_server(Section::Http, &thread_config, &self.info);
            let message = format_args!("HTTP/2: {what}");
            self.shared.thread.log_about(&thread_config, &self.info, server, Level::Debug, message);
        };
        match *event {
            Event::More | Event::Nothing | Event::Round => {}
            Event::Head { stream, ends, .. } => {
                let body = if ends { "without body" } else { "with body" };
                write(format_args!("received a header section on stream {stream}, {body}"));
            }
            Event::Data { stream, start, end, ends } => {
                let last = if ends { ", the last" } else { "" };
                write(format_args!("received {} bytes of a body on stream {stream}{last}", end - start));
            }
            Event::Reset { stream, by_peer, code } => {
                let by = if by_peer { "client" } else { "server" };
                write(format_args!("stream {stream} was reset by the {by} with code {code}"));
            }
            Event::Window { stream: 0 } => {
                write(format_args!("the client opened the window of the connection"))
            }
            Event::Window { stream } => {
                write(format_args!("the client opened the window of stream {stream}"));
            }
            Event::Priority { stream, .. } => write(format_args!("received a priority for stream {stream}")),
            Event::GoAway { .. } => write(format_args!("received GOAWAY")),
            Event::Pong => write(format_args!("received the acknowledgement of a PING")),
        }
    }

    /// Logs a message about the connection, since there may be no request.
    fn complain(&self, level: Level, what: std::fmt::Arguments<'_>) {
        let thread = &self.shared.thread;
        let thread_config = thread.thread_config();
        let server = self.listen_socket.default_server(Section::Http, &thread_config, &self.info);
        let (client, address) = (&self.info.peer, &self.listen_socket.address);
        let message =
            format_args!("{what} while processing HTTP/2 connection, client: {client}, server: {address}");
        thread.log_about(&thread_config, &self.info, server, level, message);
    }
}

/// Waiting and sending.
impl Connection {
    /// Sends the ready frames.
    async fn flush(&mut self) -> Result<(), Stop> {
        poll_fn(|context| self.poll_send(context)).await
    }

    /// Starts to send the ready frames. Waits only if a send is in flight and the frames of the next one are complete.
    async fn begin_sending(&mut self) -> Result<(), Stop> {
        poll_fn(|context| match self.poll_batch(context) {
            Poll::Pending if !self.shared.with(|state| state.is_full()) => Poll::Ready(Ok(())),
            polled => polled.map_ok(drop),
        })
        .await
    }

    /// Waits for an event, and sends during the wait.
    async fn wait(&mut self) -> Result<Woken, Stop> {
        self.slow_until = self.slow_until.filter(|until| *until > rt::now());
        let is_idle = self.open_streams() == 0;
        let is_in_head = self.is_in_head();
        self.set_timer(is_idle, is_in_head);
        if is_idle {
            self.release_memory();
        }
        let thread = Rc::clone(&self.shared.thread);
        let timer = self.timer.clone();
        let awaited = self.awaited();
        let kind = match (is_idle, self.is_first) {
            _ if is_in_head && !self.is_first => Some(Waits::Head),
            (true, true) => Some(Waits::First),
            (true, false) => Some(Waits::Idle),
            (false, _) => awaited,
        };
        let since = if awaited.is_some() { self.stalled_since() } else { rt::now() };
        let waiting = kind.map(|kind| thread.capacity.waits_since(kind, &timer, self.wire.fd(), since));
        // With requests in flight only this event notifies of the worker's shutdown.
        let mut draining = std::pin::pin!(thread.draining.wait());
        let woken = poll_fn(|context| {
            if self.end == End::Open && draining.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(Woken::Streams));
            }
            let woken = self.poll_woken(context, is_idle);
            // The wait begins again with another `Waits` when all open requests begin or cease to wait for their client.
            let has_changed = woken.is_pending() && self.awaited() != awaited;
            if has_changed { Poll::Ready(Ok(Woken::Streams)) } else { woken }
        });
        let woken = woken.await?;
        let is_chosen = waiting.is_some_and(|waiting| waiting.is_chosen());
        match woken {
            // If the client does not accept the last GOAWAY, the connection is closed without it.
            Woken::Elapsed
                if is_chosen
                    && (matches!(kind, Some(Waits::Body | Waits::Reads | Waits::Head))
                        || self.end == End::Last) =>
            {
                Err(Stop::Reclaimed)
            }
            // Woken to release a configuration version.
            Woken::Elapsed if !is_chosen && timer.deadline().is_none_or(|deadline| deadline > rt::now()) => {
                Ok(Woken::Streams)
            }
            woken => Ok(woken),
        }
    }

    /// Returns the most urgent event: ready frames are sent before more bytes are received.
    fn poll_woken(&mut self, context: &mut Context<'_>, is_idle: bool) -> Poll<Result<Woken, Stop>> {
        if let Poll::Ready(sent) = self.poll_send(context) {
            sent?;
        }
        if self.shared.share.is_chosen() {
            return Poll::Ready(Err(Stop::Reclaimed));
        }
        if self.shared.share.is_retried() {
            self.shared.with(|state| self.shared.open_connection(state));
            if let Poll::Ready(sent) = self.poll_send(context) {
                sent?;
            }
        }
        // `run` handles the changes of the streams.
        let has_ended = self.shared.is_ending.get() && self.end == End::Open;
        let is_over = self.end == End::Last && self.in_flight.is_none() && self.open_streams() == 0;
        let has_begun_idling = is_idle != (self.open_streams() == 0);
        if self.batches >= BATCHES_IN_A_ROW
            || has_ended
            || is_over
            || has_begun_idling
            || self.can_begin_held()
        {
            return Poll::Ready(Ok(Woken::Streams));
        }
        if self.may_receive()
            && self.slow_until.is_none()
            && let Poll::Ready(received) = self.wire.poll_recv(context)
        {
            return Poll::Ready(match received {
                Ok(Some(buf)) => Ok(Woken::Received(buf)),
                Ok(None) => Err(Stop::Disconnected(Errno::CONNRESET)),
                Err(errno) => Err(Stop::Disconnected(errno)),
            });
        }
        (self.received, self.requests) = (0, 0);
        // The frames before a request or a body need no response, such as an acknowledgement of SETTINGS. A client with Nagle's
        // algorithm sends no more before they are acknowledged, which the kernel delays by 40 ms.
        let is_unanswered = std::mem::replace(&mut self.is_unanswered, false);
        if is_unanswered
            && self.in_flight.is_none()
            && (self.open_streams() == 0 || self.awaited() == Some(Waits::Body))
        {
            self.wire.acknowledge();
        }
        self.shared.wait(context);
        self.timer.poll_elapsed(context).map(|rt::Elapsed| Ok(Woken::Elapsed))
    }

    /// Whether the start of the connection or a header section is incomplete. On an idle connection any incomplete
    /// frame counts, because it may begin a header section.
    fn is_in_head(&self) -> bool {
        let begins = self.open_streams() == 0 && !self.input.bytes().is_empty();
        begins || self.shared.with(|state| state.session.is_in_head())
    }

    /// Sets the deadline for receiving.
    fn set_timer(&mut self, is_idle: bool, is_in_head: bool) {
        let default = DefaultServer::of(
            Section::Http,
            self.shared.thread.thread_config(),
            &self.listen_socket,
            &self.info,
        );
        let Core { reading, keepalive, .. } = default.core();
        if !is_in_head {
            self.head_until = None;
        }
        let now = rt::now();
        // As in nginx, only a request ends this wait; other frames do not restart it.
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        let since = self.idle_since.unwrap_or(now);
        let until = match (is_in_head, is_idle) {
            // The timeout applies to the complete header section, however many frames it arrives in.
            (true, _) => Some(*self.head_until.get_or_insert(now + reading.client_header_timeout)),
            // The connection only waits until the client accepts the last frames; the timeout for sending applies.
            (false, _) if self.end == End::Last => None,
            (false, true) if self.is_first => Some(since + reading.client_header_timeout),
            (false, true) => Some(since + keepalive.keepalive_timeout),
            (false, false) => None,
        };
        let announced = match self.end {
            End::Announced(until) => Some(until),
            End::Open | End::Last => None,
        };
        let begins = if self.held.is_empty() { None } else { self.held.waits_until() };
        match until.into_iter().chain(announced).chain(self.slow_until).chain(begins).min() {
            Some(until) => self.timer.set(until),
            None => self.timer.clear(),
        }
    }

    /// Returns what the client keeps all open requests waiting for; `None` if there are none, or one does not wait for the client.
    fn awaited(&self) -> Option<Waits> {
        if self.in_flight.is_some() { None } else { self.shared.with(|state| state.awaited()) }
    }

    /// Returns the time since which no body byte was sent or received. Frames without such bytes do not end a stall.
    fn stalled_since(&mut self) -> Instant {
        let progress = self.data_received + self.shared.with(|state| state.framed());
        if self.stall.0 != progress {
            self.stall = (progress, rt::now());
        }
        self.stall.1
    }

    /// Releases memory while the connection has no request.
    fn release_memory(&mut self) {
        self.stage.set(Stage::Waiting);
        self.scratch = Scratch::default();
        self.shared.with(|state| state.session.trim());
    }

    /// Whether to receive more: not while the client does not read the responses that it requested.
    fn may_receive(&self) -> bool {
        let in_flight = self.in_flight.as_ref().map_or(0, Segments::len);
        self.shared.with(|state| state.out.len()) + in_flight < OUT_BYTES_MAX
    }

    /// Sends the ready frames in as few sends as possible; pending while a send is in flight.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        while self.batches < BATCHES_IN_A_ROW {
            if !ready!(self.poll_batch(context))? {
                self.batches = 0;
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the frames in flight, or the ready frames of one send; returns whether there were any.
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Stop>> {
        if self.in_flight.is_none() && !self.take_off()? {
            return Poll::Ready(Ok(false));
        }
        let Connection { wire, in_flight: Some(data), .. } = self else { return Poll::Ready(Ok(false)) };
        let polled = wire.poll_send(context, data, false);
        // Encrypted frames need no memory while they are in flight.
        if data.is_empty()
            && let Some(memory) = data.take_vec()
        {
            self.shared.recycle_frames(memory);
        }
        if polled.is_pending() {
            self.batches = 0;
        }
        let Connection { wire, progress_timeout, send_timer, shared, .. } = self;
        let room = Some(wire.room(&shared.thread));
        let sent = progress_timeout.follow(context, send_timer, polled, room, || wire.sent_progress());
        ready!(sent.map_err(Stop::from))?;
        self.in_flight = None;
        self.is_unanswered = false;
        self.batches += 1;
        Poll::Ready(Ok(true))
    }

    /// Takes the ready frames to send; returns whether there are any.
    fn take_off(&mut self) -> Result<bool, Stop> {
        let Some(out) = self.shared.take_frames() else { return Ok(false) };
        let thread = &self.shared.thread;
        // As for HTTP/1 responses: io_uring submits the sends of many connections with one system call.
        let is_sent_directly = thread.calls_directly && !thread.has_ring && out.len() <= SENT_DIRECTLY_MAX;
        let mut data = Segments::from(out);
        if is_sent_directly {
            self.wire.send_now(&mut data, false).map_err(Stop::Disconnected)?;
        }
        self.in_flight = Some(data);
        Ok(true)
    }
}

impl From<SendError> for Stop {
    fn from(error: SendError) -> Stop {
        match error {
            SendError::TimedOut => Stop::TimedOut,
            SendError::Reclaimed => Stop::Reclaimed,
            SendError::CutOff => Stop::Disconnected(Errno::CANCELED),
            SendError::Closed(errno) => Stop::Disconnected(errno),
        }
    }
}

/// Maximum number of consecutive sends, of about 64 KiB each; then other connections get their turn.
const BATCHES_IN_A_ROW: u32 = 4;

/// Maximum size in bytes of a direct send, if the engine would make the same call.
const SENT_DIRECTLY_MAX: usize = 64 << 10;
