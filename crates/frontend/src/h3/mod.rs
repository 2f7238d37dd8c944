//! One HTTP/3 connection: a task that handles the events of its QUIC connection, runs each request until it first waits, and sends the
//! packets of all requests together.
//!
//! ```text
//!   events of quinn-proto --> streams --> a request: run here until it first waits, then by a separate task
//!         ^                      `---> bytes of a body: to the inbox of its stream
//!         |
//!       wait <-- packets <-- control stream, heads, bodies by priority
//! ```
//! The task begins before the handshake. [`shared`] is the state common to the tasks, [`stream`] one request, [`link`] its interface for
//! `streams`, which has the code common to HTTP/2 and HTTP/3. `http::h3` implements the protocol itself.
//!
//! ```text
//!   first packet --> handshake ----------- complete ----------> check of the client --> session --> GOAWAY --> closed
//!                        `--> early data, address proved --------------^
//! ```
//! A session that begins with early data is the same as any other. Only its handshake has a time limit of its own, and `$ssl_early_data` is `1`
//! until that handshake is complete.

mod link;
mod shared;
mod stream;

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use http::h3::{Http3ErrorCode, Http3Fault, Http3Limits, Scratch, Strain, UniEvent};
use io::Errno;
use quinn_proto::{ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId};
use rt::Timer;

use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::quic::{QuicConnection, Sent};
use crate::streams::held::HeldRequests;
use ::tls::handshake::Progress;
use ::tls::quic::Facts;
use exchange::capacity::Waits;
use exchange::effect;
use exchange::http3::H3;
use exchange::ocsp::BlockRef;
use exchange::ocsp::client::{self, RefusedClient};
use exchange::reclaim::QuicWait;
use exchange::request::{ConnInfo, ThreadConfig};
use exchange::secured::{Secured, VerifyClient};
use exchange::thread::Thread;
use exchange::tls::{self, Tls};
use shared::Http3Shared;
use site::config::{Section, ServerId};
use stream::{Decoding, Http3Request};
use telemetry::tally::{self, Http2Limit, QuicEvent, Stage};
use telemetry::{Level, Reason};

/// Maximum number of requests started in a row; then packets are sent and other connections get their turn.
const REQUESTS_IN_A_ROW: usize = 64;

/// Time for the client to receive the first GOAWAY; after it new streams are not served. It is not derived from the round-trip time, which
/// says nothing about how long the program of the client takes: a request after a handshake just completed would be refused.
const GOAWAY_WAIT: Duration = Duration::from_secs(1);

/// Minimum time for the client to acknowledge the last responses before the connection is closed.
const DELIVERY_TIME: Duration = Duration::from_secs(60);

/// Part of the idle timeout after which the client of an open request is asked for a sign of life.
const PING_DIVISOR: u32 = 3;

/// Maximum time for which a closed connection answers packets of its client; three probe timeouts are usually less (RFC 9000 section
/// 10.2). `quinn-proto` has no timeout in each case.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(10);

/// Serves a connection from its first packet until its end.
pub(crate) async fn serve(connection: Rc<QuicConnection>, info: ConnInfo, default: DefaultServer) {
    let endpoint = Rc::clone(&connection.endpoint);
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let (now, peer) = (rt::now(), connection.proto.borrow().remote_address());
    let mut driver = Http3Driver {
        stage: endpoint.thread.tally.connection(),
        listen_socket: Rc::clone(&endpoint.listen_socket),
        info: Rc::new(info),
        shared: None,
        scratch: Scratch::default(),
        timer: Timer::new(),
        end: EndProgress::Open,
        is_handshaking: Rc::new(Cell::new(true)),
        is_first: true,
        head_since: None,
        head_until: None,
        waiting: None,
        idle_since: Some(now),
        pinged_at: now,
        credited_at: now,
        requests: 0,
        is_ended_calmly: false,
        held: HeldRequests::default(),
        stall: (0, now),
        is_hq: false,
        peer,
        counted_packets: (0, 0),
        client_idle: None,
        checking: None,
        checked: None,
        waker,
        connection,
    };
    // A connection must not hold a configuration that was replaced.
    drop(default);
    let stop = driver.run().await;
    driver.finish(stop).await;
}

/// Http3State of the task of a connection.
struct Http3Driver {
    /// The connection of QUIC.
    connection: Rc<QuicConnection>,
    /// The listening socket that it arrived at.
    listen_socket: Rc<ListenSocket>,
    /// Facts of the connection; each request gets a copy.
    info: Rc<ConnInfo>,
    /// Http3State shared with its streams, once the handshake is complete or early data is served.
    shared: Option<Rc<Http3Shared>>,
    /// Memory for decoding header sections.
    scratch: Scratch,
    /// Its state in the statistics of the thread.
    stage: tally::Counted,
    /// The next deadline of the connection, or of QUIC.
    timer: Timer,
    /// Progress of ending the connection.
    end: EndProgress,
    /// Whether the handshake continues.
    is_handshaking: Rc<Cell<bool>>,
    /// Whether no request has arrived yet.
    is_first: bool,
    /// Start of a header section that is not complete, and its deadline.
    head_since: Option<Instant>,
    head_until: Option<Instant>,
    /// The wait for the client, if the connection may be closed to make room for another.
    waiting: Option<QuicWait>,
    /// Start of the wait for a request, while there are none.
    idle_since: Option<Instant>,
    /// Time of the last PING.
    pinged_at: Instant,
    /// Time up to which the elapsed time was credited to the client.
    credited_at: Instant,
    /// Number of requests started since other connections got their turn.
    requests: usize,
    /// Whether GOAWAY was sent because of too many frames without effect.
    is_ended_calmly: bool,
    /// Requests that have not begun.
    held: HeldRequests<Http3Request>,
    /// Number of body bytes in both directions at the start of the last stall, and its time.
    stall: (u64, Instant),
    /// Whether the protocol is HTTP/0.9 over QUIC (`http3_hq`).
    is_hq: bool,
    /// The address of the client.
    peer: SocketAddr,
    /// Number of sent and of lost packets that were counted.
    counted_packets: (u64, u64),
    /// The idle timeout of the client, if it has one.
    client_idle: Option<Duration>,
    /// The check of the client, and its result.
    checking: Option<Pin<Box<dyn Future<Output = Option<CheckedClient>>>>>,
    checked: Option<Option<CheckedClient>>,
    /// Waker of this task.
    waker: Waker,
}

/// A client after the check of its certificate.
struct CheckedClient {
    /// The facts of its handshake.
    secured: Rc<Secured>,
    /// Why the check has failed.
    failure: Option<String>,
}

/// Returns the server of a handshake and its settings. `None` if a reload has removed the address.
fn settings_of<'c>(
    thread_config: &'c ThreadConfig,
    listen_socket: &ListenSocket,
    info: &ConnInfo,
    facts: &Facts,
) -> Option<(ServerId, &'c Tls)> {
    let listen = listen_socket.listen(thread_config)?;
    let (server, _) = tls::server_of(facts.hello.name.as_deref(), listen, &info.local);
    Some((server, tls::settings_of(&thread_config.config.http, server, listen, &info.local)))
}

/// Checks the client of a handshake, which may have to ask an OCSP responder. `None` if a reload has removed the address.
async fn check_client(
    thread: Rc<Thread>,
    listen_socket: Rc<ListenSocket>,
    info: Rc<ConnInfo>,
    facts: Facts,
    early: Option<Progress>,
) -> Option<CheckedClient> {
    let thread_config = thread.thread_config();
    let (server, settings) = settings_of(&thread_config, &listen_socket, &info, &facts)?;
    let at = BlockRef { config: Arc::clone(&thread_config.config), section: Section::Http, server };
    settings.staples.iter().for_each(|staple| staple.tend(&thread, || at.clone()));
    let (mut refused, mut failure) = (None, None);
    if let (Some(checks), Some(trust)) = (&settings.checks, &settings.trust) {
        let checked = client::check(&thread, &at, checks, trust, &facts.chain).await;
        if let Err(RefusedClient { verdict, failure: why }) = checked {
            (refused, failure) = (Some(verdict), why);
        }
    }
    let trust = settings.trust.as_deref();
    let secured = Secured::over_quic(facts, early, settings.client, trust, refused, thread_config.number);
    Some(CheckedClient { secured, failure })
}

/// Progress of ending a connection (RFC 9114 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndProgress {
    /// The end was not announced.
    Open,
    /// A first GOAWAY was sent. Streams that the client opens until this time are served.
    Announced(Instant),
    /// The GOAWAY with the first refused stream was sent.
    Last,
}

/// Reason why a connection ends.
enum StopReason {
    /// The end was announced, and all streams have ended.
    Done,
    /// The client violated the protocol.
    Fault(Http3Fault),
    /// The client has disconnected, or QUIC has failed.
    Lost(ConnectionError),
    /// The client did not complete its handshake or a header section in time.
    TimedOut,
    /// The connection was chosen to make room for another.
    Reclaimed,
    /// Another worker process uses the sockets, so no packet of the client will be received.
    Taken,
}

impl Http3Driver {
    /// Handles events and sends packets until the end of the connection.
    async fn run(&mut self) -> StopReason {
        loop {
            self.connection.pass_time(rt::now());
            if self.connection.endpoint.is_taken() {
                return StopReason::Taken;
            }
            while let Some(event) = self.connection.event() {
                let handled = match event {
                    Event::HandshakeDataReady => {
                        self.begin_early();
                        Ok(())
                    }
                    Event::Connected => {
                        self.complete_handshake();
                        Ok(())
                    }
                    Event::ConnectionLost { reason } => return StopReason::Lost(reason),
                    Event::Stream(event) => self.handle_stream(event),
                    Event::DatagramReceived | Event::DatagramsUnblocked => Ok(()),
                };
                if let Err(fault) = handled {
                    return StopReason::Fault(fault);
                }
                if self.requests >= REQUESTS_IN_A_ROW {
                    break;
                }
            }
            self.note_address();
            if let Some(shared) = &self.shared {
                shared.flush_writable();
            }
            if let Some(secured) = self.checked.take()
                && let Err(fault) = self.begin_session(secured)
            {
                return StopReason::Fault(fault);
            }
            if let ControlFlow::Break(stop) = self.follow_up() {
                return stop;
            }
            let sent = self.connection.send();
            if sent == Sent::More || self.requests >= REQUESTS_IN_A_ROW {
                self.requests = 0;
                rt::yield_now().await;
                continue;
            }
            if let ControlFlow::Break(stop) = self.wait(sent == Sent::Blocked).await {
                return stop;
            }
        }
    }

    /// Returns the facts of the handshake.
    fn facts(&self) -> Facts {
        let data = self.connection.proto.borrow().crypto_session().handshake_data();
        *data.and_then(|data| data.downcast::<Facts>().ok()).expect("the server has read the ClientHello")
    }

    /// Begins to serve early data if the server has accepted it. The client must have proved its address: otherwise it could send requests
    /// in the name of another address. A client's certificate is not proved before the end of the handshake.
    fn begin_early(&mut self) {
        let facts = self.facts();
        if !facts.accepts_early_data || !self.connection.is_validated() {
            return;
        }
        let thread_config = self.connection.endpoint.thread.thread_config();
        let settings = settings_of(&thread_config, &self.listen_socket, &self.info, &facts);
        if settings.is_some_and(|(_, settings)| settings.client == VerifyClient::Off) {
            let early = Progress::Quic(Rc::clone(&self.is_handshaking));
            self.check_client(facts, Some(early));
        }
    }

    /// Handles the end of the handshake: the client has proved its address, by whatever packets. The session may have begun before.
    fn complete_handshake(&mut self) {
        self.is_handshaking.set(false);
        self.connection.note_validated();
        let facts = self.facts();
        let tally = &self.connection.endpoint.thread.tally;
        let how = if facts.is_resumed { tally::Handshake::Resumed } else { tally::Handshake::Full };
        tally.count_handshake(how);
        if facts.offers_early_data {
            let is_accepted = facts.accepts_early_data;
            let event = if is_accepted { QuicEvent::EarlyAccepted } else { QuicEvent::EarlyRefused };
            tally.count_quic(event);
        }
        let has_begun = self.shared.is_some() || self.checking.is_some() || self.checked.is_some();
        if !has_begun {
            self.check_client(facts, None);
        }
    }

    /// Begins the check of the client's certificate, during which the connection continues.
    fn check_client(&mut self, facts: Facts, early: Option<Progress>) {
        self.is_hq = facts.alpn != H3;
        self.client_idle = facts.idle_timeout;
        let (listen_socket, info) = (Rc::clone(&self.listen_socket), Rc::clone(&self.info));
        let thread = Rc::clone(&self.connection.endpoint.thread);
        let checking = check_client(thread, listen_socket, info, facts, early);
        self.checking = Some(Box::pin(checking));
        self.poll_checking(&mut Context::from_waker(&self.waker.clone()));
    }

    /// Continues the check of the client's certificate. Returns whether it has ended.
    fn poll_checking(&mut self, context: &mut Context<'_>) -> bool {
        let Some(checking) = &mut self.checking else { return false };
        let Poll::Ready(checked) = checking.as_mut().poll(context) else { return false };
        (self.checking, self.checked) = (None, Some(checked));
        true
    }

    /// Begins the session after the check of the client.
    fn begin_session(&mut self, checked: Option<CheckedClient>) -> Result<(), Http3Fault> {
        let thread = Rc::clone(&self.connection.endpoint.thread);
        let Some(CheckedClient { secured, failure }) = checked else {
            // A reload has removed the address.
            self.connection.close(Http3ErrorCode::NoError as u64, "");
            return Ok(());
        };
        if let Some(failure) = failure {
            self.complain(Level::Error, format_args!("{failure}"));
        }
        let thread_config = thread.thread_config();
        // The cell is empty: this runs once per connection.
        let _ = self.info.secured.set(secured);
        let default =
            DefaultServer::of(Section::Http, Rc::clone(&thread_config), &self.listen_socket, &self.info);
        let policy = effect::policy(default.core());
        let mut grease = [0; 4];
        ::tls::quic::fill_random(&mut grease);
        let limits = Http3Limits {
            streams_max: default.http3().streams_max,
            head_max: policy.head_max,
            fields_max: policy.fields_max,
            table_capacity: 0,
            blocked_max: 0,
            grease: u32::from_ne_bytes(grease),
        };
        let buffer = default.http3().stream_buffer;
        let shared =
            Http3Shared::new(&thread, &self.connection, (limits, self.is_hq), buffer, self.waker.clone());
        self.shared = Some(shared);
        self.idle_since = Some(rt::now());
        // Streams that the client has opened before.
        self.accept(Dir::Uni)?;
        self.accept(Dir::Bi)
    }

    /// Handles an event of a stream.
    fn handle_stream(&mut self, event: StreamEvent) -> Result<(), Http3Fault> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        match event {
            StreamEvent::Opened { dir } => self.accept(dir),
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_uni(id),
            StreamEvent::Readable { id } => self.read(id),
            StreamEvent::Writable { id } => {
                shared.note_writable(id);
                Ok(())
            }
            StreamEvent::Stopped { id, .. } if id.dir() == Dir::Uni => Err(Http3Fault::ClosedCriticalStream),
            StreamEvent::Stopped { id, .. } => match shared.stream(id) {
                Some(stream) if !stream.is_done() => stream::cancelled(&shared, &stream),
                _ => Ok(()),
            },
            StreamEvent::Finished { .. } | StreamEvent::Available { .. } => Ok(()),
        }
    }

    /// Accepts the streams that the client has opened.
    fn accept(&mut self, dir: Dir) -> Result<(), Http3Fault> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        loop {
            let opened = self.connection.proto.borrow_mut().streams().accept(dir);
            let Some(id) = opened else { break };
            if dir == Dir::Uni {
                self.read_uni(id)?;
            } else if stream::open(&shared, id).is_some() {
                self.idle_since = None;
                self.read(id)?;
            }
        }
        shared.adapt_window();
        Ok(())
    }

    /// Reads a stream with a request.
    fn read(&mut self, id: StreamId) -> Result<(), Http3Fault> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        let Some(stream) = shared.stream(id) else { return Ok(()) };
        let Http3Driver { listen_socket, info, scratch, .. } = self;
        let mut decoding = Decoding { shared: &shared, listen_socket, info, scratch };
        let decoded = decoding.receive(&stream)?;
        if let Some(decoded) = decoded {
            self.admit(decoded);
            // The first bytes of a body may have followed, and its remaining bytes may be in the buffers of QUIC.
        }
        Ok(())
    }

    /// Reads a unidirectional stream.
    fn read_uni(&mut self, id: StreamId) -> Result<(), Http3Fault> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        let (mut bytes, mut is_ended) = (Vec::new(), false);
        {
            let mut proto = self.connection.proto.borrow_mut();
            let mut receiver = proto.recv_stream(id);
            let Ok(mut chunks) = receiver.read(true) else { return Ok(()) };
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => bytes.push(chunk.bytes),
                    Ok(None) | Err(ReadError::Reset(_)) => {
                        is_ended = true;
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                }
            }
            let _ = chunks.finalize();
        }
        if shared.is_hq {
            return Ok(());
        }
        for chunk in &bytes {
            let mut input = &chunk[..];
            while !input.is_empty() {
                let step =
                    shared.with(|state| state.session.receive_uni(id.into(), input, &mut state.out))?;
                debug_assert!(step.used <= input.len(), "the session uses at most the input");
                input = &input[step.used..];
                match step.event {
                    UniEvent::Ignored => {
                        shared.stop(id, Http3ErrorCode::StreamCreation);
                        return Ok(());
                    }
                    UniEvent::Priority { stream, priority } => {
                        let known = quinn_proto::VarInt::from_u64(stream).ok().map(StreamId::from);
                        if let Some(stream) = known.and_then(|id| shared.stream(id)) {
                            shared.set_priority(&stream, priority);
                        }
                    }
                    UniEvent::More | UniEvent::Settings | UniEvent::GoAway { .. } | UniEvent::Unblocked => {}
                }
            }
        }
        if is_ended {
            shared.with(|state| state.session.end_uni(id.into()))?;
        }
        Ok(())
    }

    /// Runs a request until it first waits; then a separate task continues it.
    fn begin(&mut self, decoded: Http3Request) {
        let Some(shared) = self.shared.clone() else { return };
        self.stage.set(Stage::Reading);
        self.stage.set(Stage::Writing);
        self.is_first = false;
        self.requests += 1;
        let mut task = Box::pin(stream::run(shared, Rc::clone(&self.listen_socket), decoded));
        if task.as_mut().poll(&mut Context::from_waker(&self.waker)).is_pending() {
            rt::spawn(task);
        }
    }

    /// Begins a request, unless it must be held back: the client cancels many requests.
    fn admit(&mut self, decoded: Http3Request) {
        if self.held.is_empty() && self.held.waits_until().is_none() {
            return self.begin_next(decoded);
        }
        let Some(shared) = &self.shared else { return };
        if self.held.is_empty() {
            shared.thread.tally.count_http2_limit(Http2Limit::Resets);
        }
        decoded.stream.codec.borrow_mut().hold(true);
        self.held.add(decoded);
    }

    /// Begins a request, and delays the next one if the client has wasted the work of many.
    fn begin_next(&mut self, decoded: Http3Request) {
        let Some(shared) = &self.shared else { return };
        let delay = shared.with(|state| state.session.start_delay());
        self.held.delay((!delay.is_zero()).then(|| rt::now() + delay));
        self.begin(decoded);
    }

    /// Begins held requests as far as permitted. Cancelled requests end without any work.
    fn begin_held(&mut self) {
        for cancelled in self.held.take_cancelled() {
            self.begin(cancelled.abandoned());
        }
        while self.held.waits_until().is_none()
            && let Some(decoded) = self.held.take()
        {
            decoded.stream.codec.borrow_mut().hold(false);
            self.begin_next(decoded);
        }
    }

    /// Handles what does not follow from single events: limits, the end of the connection.
    fn follow_up(&mut self) -> ControlFlow<StopReason> {
        let Some(shared) = self.shared.clone() else { return ControlFlow::Continue(()) };
        if let Some(fault) = shared.take_fault() {
            return ControlFlow::Break(StopReason::Fault(fault));
        }
        self.begin_held();
        let seconds = rt::now().duration_since(self.credited_at).as_secs();
        if seconds > 0 {
            self.credited_at += Duration::from_secs(seconds);
            self.count_packets();
            shared.with(|state| state.session.pass_time(seconds));
        }
        let is_flood = shared.with(|state| state.session.strain()) == Strain::Ended;
        if is_flood && !std::mem::replace(&mut self.is_ended_calmly, true) {
            self.end = EndProgress::Last;
            shared.with(|state| state.session.end(&mut state.out));
            shared.thread.tally.count_http2_limit(Http2Limit::Frames);
            self.complain(Level::Info, format_args!("{}", Http3Fault::Flood.message()));
        }
        let thread_config = shared.thread.thread_config();
        if self.end != EndProgress::Last && !self.listen_socket.serves(&thread_config, &self.info) {
            self.send_last_goaway();
        }
        let is_leaving = if self.is_first { shared.thread.is_draining() } else { shared.thread.is_leaving() };
        if self.end == EndProgress::Open && (shared.is_ending.get() || is_leaving) {
            self.end = EndProgress::Announced(rt::now() + GOAWAY_WAIT);
            shared.with(|state| state.session.announce_end(&mut state.out));
        }
        if let EndProgress::Announced(until) = self.end
            && rt::now() >= until
        {
            self.send_last_goaway();
        }
        if shared.share.is_chosen() {
            return ControlFlow::Break(StopReason::Reclaimed);
        }
        if shared.share.is_retried() {
            shared.adapt_window();
        }
        shared.adapt_send_window();
        shared.write_control();
        let is_over =
            self.end == EndProgress::Last && shared.open_streams() == 0 && shared.undelivered_streams() == 0;
        if is_over { ControlFlow::Break(StopReason::Done) } else { ControlFlow::Continue(()) }
    }

    /// Counts the packets since the last call.
    fn count_packets(&mut self) {
        let proto = self.connection.proto.borrow();
        let (path, tally) = (proto.stats().path, &self.connection.endpoint.thread.tally);
        let counted = (path.sent_packets, path.lost_packets);
        let (sent, lost) = std::mem::replace(&mut self.counted_packets, counted);
        tally.count_packets(counted.0.saturating_sub(sent), counted.1.saturating_sub(lost));
    }

    /// Counts a change of the client's address.
    fn note_address(&mut self) {
        let peer = self.connection.proto.borrow().remote_address();
        if std::mem::replace(&mut self.peer, peer) != peer {
            self.connection.endpoint.thread.tally.count_quic(QuicEvent::Migration);
        }
    }

    /// Sends the final GOAWAY; streams from its ID on are not served.
    fn send_last_goaway(&mut self) {
        self.end = EndProgress::Last;
        if let Some(shared) = &self.shared {
            shared.with(|state| state.session.end(&mut state.out));
            shared.write_control();
        }
    }

    /// Waits for an event.
    async fn wait(&mut self, is_blocked: bool) -> ControlFlow<StopReason> {
        let open = self.shared.as_ref().map_or(0, |shared| shared.open_streams());
        let is_in_head = self.shared.as_ref().is_some_and(|shared| shared.is_in_head());
        let deadline = match self.deadline(open, is_in_head) {
            ControlFlow::Continue(deadline) => deadline,
            ControlFlow::Break(stop) => return ControlFlow::Break(stop),
        };
        match deadline.into_iter().chain(self.connection.timeout()).min() {
            Some(until) => self.timer.set(until),
            None => self.timer.clear(),
        }
        if open == 0 {
            self.stage.set(Stage::Waiting);
            self.scratch = Scratch::default();
        }
        let awaited = self.shared.as_ref().and_then(|shared| shared.awaited()).filter(|_| open > 0);
        let undelivered = self.shared.as_ref().map_or(0, |shared| shared.undelivered_streams());
        let kind = match (open == 0, self.is_first) {
            _ if is_in_head && !self.is_first => Some(Waits::Head),
            (true, true) => Some(Waits::First),
            // The last response is not acknowledged: its client may still receive it.
            (true, false) if undelivered > 0 => Some(Waits::Reads),
            (true, false) => Some(Waits::Idle),
            (false, _) => awaited,
        };
        let since = match kind {
            Some(Waits::First) => self.info.opened,
            Some(Waits::Idle) => self.idle_since.unwrap_or(self.info.opened),
            Some(Waits::Head) => self.head_since.unwrap_or(self.info.opened),
            _ => self.stalled_since(),
        };
        let endpoint = Rc::clone(&self.connection.endpoint);
        let (thread, socket) = (&endpoint.thread, &endpoint.socket);
        let timer = self.timer.clone();
        if !matches!((&self.waiting, kind), (Some(waiting), Some(kind)) if waiting.is(kind, since)) {
            self.waiting = kind.map(|kind| QuicWait::begin(thread, kind, &timer, since));
        }
        if let ControlFlow::Break(stop) = self.check_chosen(kind) {
            return ControlFlow::Break(stop);
        }
        let mut draining = pin!(thread.draining.wait());
        let mut writable = pin!(async {
            match is_blocked {
                true => socket.writable().await,
                false => std::future::pending().await,
            }
        });
        let is_open = self.end == EndProgress::Open && self.shared.is_some();
        poll_fn(|context| {
            if self.connection.poll_woken(context).is_ready()
                || self.poll_checking(context)
                || writable.as_mut().poll(context).is_ready()
                || is_open && draining.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(());
            }
            timer.poll_elapsed(context).map(|rt::Elapsed| ())
        })
        .await;
        self.check_chosen(kind)
    }

    /// Begins the end of a connection that was chosen to make room for another.
    fn check_chosen(&mut self, kind: Option<Waits>) -> ControlFlow<StopReason> {
        if !self.waiting.as_ref().is_some_and(QuicWait::is_chosen) {
            return ControlFlow::Continue(());
        }
        self.waiting = None;
        if kind == Some(Waits::Idle) && self.end != EndProgress::Last {
            self.send_last_goaway();
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(StopReason::Reclaimed)
    }

    /// Returns the next deadline of the connection itself; the reason to stop if one has passed.
    fn deadline(&mut self, open: usize, is_in_head: bool) -> ControlFlow<StopReason, Option<Instant>> {
        let thread = &self.connection.endpoint.thread;
        let default =
            DefaultServer::of(Section::Http, thread.thread_config(), &self.listen_socket, &self.info);
        let (reading, keepalive) = (&default.core().reading, &default.core().keepalive);
        let (header_timeout, keepalive_timeout) =
            (reading.client_header_timeout, keepalive.keepalive_timeout);
        let now = rt::now();
        // Early data of a client that never completes its handshake must not hold the connection.
        if self.shared.is_none() || self.is_handshaking.get() {
            let until = self.info.opened + header_timeout;
            return if now >= until {
                ControlFlow::Break(StopReason::TimedOut)
            } else {
                ControlFlow::Continue(Some(until))
            };
        }
        self.head_since = is_in_head.then(|| self.head_since.unwrap_or(now));
        self.head_until = self.head_since.map(|since| since + header_timeout);
        self.idle_since = (open == 0).then(|| self.idle_since.unwrap_or(now));
        if self.head_until.is_some_and(|until| until <= now) {
            return ControlFlow::Break(StopReason::TimedOut);
        }
        let idle = if self.is_first { header_timeout } else { keepalive_timeout };
        // The last responses are delivered before the connection is closed.
        let idle = if self.end == EndProgress::Last { idle.max(DELIVERY_TIME) } else { idle };
        let mut idle_until = self.idle_since.map(|since| since + idle);
        if let (Some(since), true) = (self.idle_since, idle_until.is_some_and(|until| until <= now)) {
            let is_given_up = self.end == EndProgress::Last;
            self.send_last_goaway();
            let undelivered = self.shared.as_ref().map_or(0, |shared| shared.undelivered_streams());
            if is_given_up || undelivered == 0 {
                return ControlFlow::Break(StopReason::Done);
            }
            idle_until = Some(since + idle.max(DELIVERY_TIME));
        }
        // A client that waits for a response need not send anything, so its packets must not cease because of that.
        let silence = self.client_idle.unwrap_or(Duration::MAX).min(keepalive_timeout.max(PING_MIN));
        let interval = (silence / PING_DIVISOR).max(PING_INTERVAL_MIN);
        let ping = (open > 0).then(|| self.pinged_at + interval);
        if ping.is_some_and(|at| at <= now) {
            self.pinged_at = now;
            self.connection.proto.borrow_mut().ping();
            self.connection.wake();
        }
        let announced = match self.end {
            EndProgress::Announced(until) => Some(until),
            EndProgress::Open | EndProgress::Last => None,
        };
        let begins = if self.held.is_empty() { None } else { self.held.waits_until() };
        let all = [self.head_until, idle_until, ping.filter(|at| *at > now), announced, begins];
        ControlFlow::Continue(all.into_iter().flatten().min())
    }

    /// Returns the time since which no body byte was sent or received.
    fn stalled_since(&mut self) -> Instant {
        let progress = self.shared.as_ref().map_or(0, |shared| shared.progress());
        if self.stall.0 != progress {
            self.stall = (progress, rt::now());
        }
        self.stall.1
    }

    /// Logs why the connection ends. Returns the code and the text for the client, and the error of the remaining streams.
    fn report_end(&self, stop: &StopReason) -> (Http3ErrorCode, &'static str, Errno) {
        match stop {
            StopReason::Done => (Http3ErrorCode::NoError, "", Errno::CONNRESET),
            StopReason::Fault(fault) => {
                self.complain(Level::Info, format_args!("{}", fault.message()));
                (fault.code(), fault.message(), Errno::CONNRESET)
            }
            StopReason::Lost(error) => {
                self.report_lost(error);
                (Http3ErrorCode::NoError, "", Errno::CONNRESET)
            }
            StopReason::TimedOut => {
                let why = Reason(Errno::TIMEDOUT);
                self.complain(Level::Info, format_args!("client timed out ({why})"));
                (Http3ErrorCode::NoError, "", Errno::TIMEDOUT)
            }
            StopReason::Taken => {
                self.complain(
                    Level::Info,
                    format_args!("connection was closed, because a third worker process was started"),
                );
                (Http3ErrorCode::NoError, "", Errno::CONNRESET)
            }
            StopReason::Reclaimed => {
                self.complain(Level::Info, format_args!("connection was closed to make room for another"));
                (Http3ErrorCode::ExcessiveLoad, "", Errno::CANCELED)
            }
        }
    }

    /// Ends the remaining streams, and sends the reason to the client.
    async fn finish(&mut self, stop: StopReason) {
        let (code, reason, errno) = self.report_end(&stop);
        if self.is_handshaking.get() {
            self.connection.endpoint.thread.tally.count_handshake(tally::Handshake::Failed);
        }
        self.count_packets();
        // The last GOAWAY.
        let _ = self.connection.send();
        self.connection.close(code as u64, reason);
        self.waiting = None;
        if let Some(shared) = self.shared.clone() {
            shared.abort_all(errno);
            for held in self.held.take_all() {
                self.begin(held.abandoned());
            }
        }
        // The open requests are notified that their client has disconnected, and end by themselves. Meanwhile the client gets the reason again if it
        // sends more packets (RFC 9000 section 10.2).
        let until = rt::now() + CLOSING_TIME_MAX;
        let mut closing = None;
        loop {
            self.connection.pass_time(rt::now());
            while self.connection.event().is_some() {}
            let is_blocked = self.connection.send() == Sent::Blocked;
            let open = self.shared.as_ref().map_or(0, |shared| shared.open_streams());
            let limit = Some(until).filter(|until| rt::now() < *until);
            if open == 0 {
                self.connection.leave_slot();
                closing = closing.or_else(|| self.connection.endpoint.enter_closing());
                if self.connection.is_drained() || limit.is_none() || closing.is_none() {
                    break;
                }
            }
            match self.connection.timeout().into_iter().chain(limit).min() {
                Some(until) => self.timer.set(until),
                None => self.timer.clear(),
            }
            let timer = self.timer.clone();
            let endpoint = Rc::clone(&self.connection.endpoint);
            let woken = poll_fn(|context| self.connection.poll_woken(context));
            let waited = async {
                match is_blocked {
                    true => drop(rt::select(woken, endpoint.socket.writable()).await),
                    false => woken.await,
                }
            };
            let _ = timer.limit(waited).await;
        }
        self.connection.remove();
    }

    /// Logs the loss of the connection, unless the client has closed it.
    fn report_lost(&self, error: &ConnectionError) {
        match error {
            ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => {}
            ConnectionError::TransportError(error) if self.is_handshaking.get() => {
                self.complain(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {error})"));
            }
            other => self.complain(Level::Info, format_args!("QUIC connection ended: {other}")),
        }
    }

    /// Logs a message about the connection, since there may be no request.
    fn complain(&self, level: Level, what: std::fmt::Arguments<'_>) {
        let thread = &self.connection.endpoint.thread;
        let thread_config = thread.thread_config();
        let server = self.listen_socket.default_server(Section::Http, &thread_config, &self.info);
        let (client, address) = (&self.info.peer, &self.listen_socket.address);
        let step = if self.is_handshaking.get() { "SSL handshaking" } else { "processing HTTP/3 connection" };
        let message = format_args!("{what} while {step}, client: {client}, server: {address}");
        thread.log_about(&thread_config, &self.info, server, level, message);
    }
}

/// Minimum of the time in which a client with an open request must send a packet, if the idle timeout of the client is not less.
const PING_MIN: Duration = Duration::from_secs(10);

/// Minimum time between two requests for a sign of life, for clients with a very short idle timeout.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(100);
