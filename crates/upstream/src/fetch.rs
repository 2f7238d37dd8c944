//! Tries upstreams until one responds or no server remains.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use http::fields::Method;
use http::gateway::UpstreamProtocol;
use io::op::PeerAddr;
use io::segments::Source;
use rt::Timer;
use rt::net::{ConnectOptions, ConnectStep};

use crate::attempt::{self, TryError, TryResponse};
use crate::body::{BodyStart, Live};
use crate::choice::{Choice, Chosen, Next};
use crate::h2::Cut;
use crate::heading::Heading;
use crate::link::{self, IdlePool, Link};
use crate::outgoing::{Failure, Outgoing, OutgoingBody, Target};
use crate::reply::{Reply, ReplyBody};
use crate::secure::SecureError;
use crate::settings::{NextUpstream, Settings};
use crate::state::{DEADLINE_PASSED, Fault, Tries, Try};
use crate::tunnel::Tunnel;
use exchange::client;
use exchange::refusals;
use exchange::request::Request;
use exchange::thread::Thread;
use peers::queue::Overflow;
use peers::{NoPeer, TryOutcome};
use telemetry::{Level, Reason};

/// Sends the request to upstreams until one responds. Each try is recorded for `$upstream_*`.
///
/// # Errors
/// See [`Failure`]; the log has the reason of each try.
pub async fn fetch(
    request: &mut Request,
    settings: &Settings,
    target: &Target,
    outgoing: Outgoing,
) -> Result<Reply, Failure> {
    let tries = Tries::of(request);
    tries.set_url(outgoing.scheme, outgoing.encoded.target());
    tries.is_past_deadline = false;
    if outgoing.is_past_deadline() {
        return Err(Aborted::DeadlinePassed.fail(request));
    }
    let mut choice = match Choice::at_once(request, target) {
        Some(choice) => choice,
        None => {
            // Boxed, because few requests wait.
            let resolved = Box::into_pin(Box::new(Choice::resolved(request, target)));
            let chosen = watched(request, settings, outgoing.deadline, pin!(resolved)).await;
            match chosen {
                Ok(chosen) => chosen?,
                Err(aborted) => return Err(aborted.fail(request)),
            }
        }
    };
    if settings.next_upstream_tries > 0 {
        choice.limit_tries(settings.next_upstream_tries);
    }
    let mut fetch =
        TrySeries { settings, outgoing: &outgoing, choice, started: rt::now(), is_first: true, fresh: None };
    loop {
        let is_fresh = fetch.fresh.is_some();
        let next = match fetch.next(request) {
            // Boxed, because few requests wait.
            Err(NoPeer::Busy) if fetch.is_first => Box::pin(fetch.queued(request)).await?,
            next => next.map_err(|reason| fetch.without_server(request, reason))?,
        };
        if let Some(reply) = fetch.attempt(request, next, is_fresh).await? {
            return Ok(reply);
        }
    }
}

/// The tries of one request.
struct TrySeries<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
    choice: Choice,
    started: Instant,
    is_first: bool,
    /// An upstream that closed an idle connection: the request is sent again on a new connection.
    fresh: Option<Box<Next>>,
}

impl TrySeries<'_> {
    /// Returns the server of the next try: the last one again if it has closed an idle connection.
    fn next(&mut self, request: &mut Request) -> Result<Box<Next>, NoPeer> {
        match self.fresh.take() {
            Some(next) => Ok(next),
            None => self.choice.next(request, self.is_first),
        }
    }

    /// Ends a request for which no server is available.
    fn without_server(&self, request: &mut Request, reason: NoPeer) -> Failure {
        let name = self.choice.name();
        let record = Tries::of(request).begin(&name, &name, None, self.is_first);
        record.is_unresolved.set(reason == NoPeer::Unresolved);
        request.log(Level::Error, format_args!("no live upstreams while connecting to upstream"));
        failed(&record, 502)
    }

    /// Waits in the queue of the group for the first server, until its time is over or the client leaves. Without a queue the request
    /// ends.
    async fn queued(&mut self, request: &mut Request) -> Result<Box<Next>, Failure> {
        let mut queued = match self.choice.wait(request) {
            None => return Err(self.without_server(request, NoPeer::Busy)),
            Some(Err(Overflow)) => return Err(self.overflow(request)),
            Some(Ok(queued)) => queued,
        };
        let timer = Timer::new();
        timer.set(rt::now() + queued.timeout());
        // A wake-up does not mean that a server is free: another thread may have been faster, or the server has failed.
        loop {
            let waited = {
                let turn = pin!(timer.limit(Box::pin(queued.turn())));
                watched(request, self.settings, self.outgoing.deadline, turn).await
            };
            match waited {
                Err(aborted) => return Err(aborted.fail(request)),
                Ok(Err(rt::Elapsed)) => {
                    request.log(Level::Error, format_args!("upstream queue timed out"));
                    return Err(self.without_server(request, NoPeer::Busy));
                }
                Ok(Ok(Err(Overflow))) => return Err(self.overflow(request)),
                Ok(Ok(Ok(()))) => {}
            }
            if let Some(next) = self.choice.in_turn(request, &queued) {
                return Ok(next);
            }
        }
    }

    /// Ends a request for which the queue is full, or that has left a full queue for another client.
    fn overflow(&self, request: &mut Request) -> Failure {
        request.log(Level::Error, format_args!("upstream queue is full"));
        self.without_server(request, NoPeer::Busy)
    }

    /// Begins the record of a try.
    fn begin_try(&mut self, request: &mut Request, next: &Next) -> Rc<Try> {
        let (address, name, server) = (next.address(), next.name(), next.server());
        let is_first = std::mem::replace(&mut self.is_first, false);
        if request.is_traced() {
            request.trace(format_args!("upstream try: server \"{server}\", address {name}"));
        }
        Tries::of(request).begin(name, server, Some(address), is_first)
    }

    /// Makes one try; returns `None` if another try must follow.
    async fn attempt(
        &mut self,
        request: &mut Request,
        mut next: Box<Next>,
        is_fresh: bool,
    ) -> Result<Option<Reply>, Failure> {
        let record = self.begin_try(request, &next);
        let sent = Cell::new(false);
        let attempt =
            Attempt { settings: self.settings, outgoing: self.outgoing, record: &record, sent: &sent };
        let done = {
            let running = pin!(attempt.run(request, next.address(), self.choice.pool(), is_fresh));
            watched(request, self.settings, self.outgoing.deadline, running).await
        };
        let done = match done {
            Ok(done) => done,
            Err(aborted) => {
                let failure = aborted.end(request, &record);
                next.abandon(&record);
                return Err(failure);
            }
        };
        match done {
            Ok(done) => {
                let status = done.heading.head().status().code();
                note_status(request, &record, status);
                let reason = NextUpstream::of_status(status);
                match reason.filter(|&reason| self.choice.tries() > 1 && self.may_repeat(reason, sent.get()))
                {
                    Some(reason) => self.next_try(request, *next, &record, (reason, status), sent.get()),
                    None => {
                        self.choice.header_received(request, &mut next);
                        Ok(Some(self.reply(done, *next, record, &request.conn.thread)))
                    }
                }
            }
            Err((try_error, is_reused)) => {
                let ended = |next: Box<Next>, status| {
                    let failure = failed(&record, status);
                    next.abandon(&record);
                    Err(failure)
                };
                let why = match try_error {
                    TryError::Local => return ended(next, 500),
                    TryError::Client(status) => return ended(next, status),
                    TryError::Failed if is_reused && self.may_repeat(NextUpstream::ERROR, sent.get()) => {
                        // The connection was closed while idle, which is not a failure of the upstream.
                        failed(&record, 502);
                        self.fresh = Some(next);
                        return Ok(None);
                    }
                    TryError::Failed => (NextUpstream::ERROR, 502),
                    TryError::TimedOut => (NextUpstream::TIMEOUT, 504),
                    TryError::InvalidHeader => {
                        record.is_invalid.set(true);
                        (NextUpstream::INVALID_HEADER, 502)
                    }
                };
                self.next_try(request, *next, &record, why, sent.get())
            }
        }
    }

    /// Returns the response of a successful try.
    fn reply(&mut self, done: Done, next: Next, record: Rc<Try>, thread: &Rc<Thread>) -> Reply {
        let body = match done.body {
            BodyState::All(source) => {
                self.choice.response_ended(next, &record);
                source.map_or(ReplyBody::None, ReplyBody::Bytes)
            }
            BodyState::Part(mut live) => {
                live.hold(Chosen::new(std::mem::take(&mut self.choice), next, record));
                ReplyBody::Live(live)
            }
            BodyState::Tunnel(mut live) => {
                live.hold(Chosen::new(std::mem::take(&mut self.choice), next, record));
                ReplyBody::Tunnel(Box::new(Tunnel::new(*live, self.settings, thread)))
            }
        };
        Reply { head: done.heading, body, received_at: (rt::now(), rt::wall()), stored: None }
    }

    /// Ends a failed try, and the request if no other server may be tried.
    fn next_try(
        &mut self,
        request: &mut Request,
        next: Next,
        record: &Try,
        (reason, status): (NextUpstream, u16),
        was_sent: bool,
    ) -> Result<Option<Reply>, Failure> {
        let failure = failed(record, status);
        record.is_replaced.set(true);
        let outcome = match reason {
            NextUpstream::HTTP_403 | NextUpstream::HTTP_404 => TryOutcome::Passed,
            _ => TryOutcome::Failed,
        };
        self.choice.report(request, next, outcome, record);
        let is_repeated = self.choice.tries() > 0 && self.may_repeat(reason, was_sent);
        if request.is_traced() {
            let then = if is_repeated { "another server is tried" } else { "no other server may be tried" };
            request.trace(format_args!("upstream try failed ({status}), {then}"));
        }
        if is_repeated { Ok(None) } else { Err(failure) }
    }

    /// Whether another upstream may be tried for this reason. `was_sent` is whether sending of the request has begun.
    fn may_repeat(&self, reason: NextUpstream, was_sent: bool) -> bool {
        let Settings { next_upstream, next_upstream_timeout, .. } = self.settings;
        let waited = rt::now().saturating_duration_since(self.started);
        let in_time = !self.outgoing.is_past_deadline()
            && (next_upstream_timeout.is_zero() || waited < *next_upstream_timeout);
        let is_safe = self.outgoing.is_idempotent || next_upstream.contains(NextUpstream::NON_IDEMPOTENT);
        // A body that was passed on while it arrived cannot be sent again.
        let is_complete = !matches!(self.outgoing.body, OutgoingBody::Streamed);
        next_upstream.contains(reason) && in_time && (!was_sent || is_safe && is_complete)
    }
}

/// Stores the status of an upstream's response.
fn note_status(request: &Request, record: &Try, status: u16) {
    record.status.set(status);
    if request.is_traced() {
        request.trace(format_args!("upstream sent status {status}"));
    }
}

/// Result of a try with a response.
struct Done {
    heading: Rc<Heading>,
    body: BodyState,
}

/// The body of a response, as far as it was received.
enum BodyState {
    All(Option<Source>),
    Part(Box<Live>),
    /// The connection switches to another protocol.
    Tunnel(Box<Live>),
}

/// Records a try that ended without a response for the client.
fn failed(record: &Try, status: u16) -> Failure {
    record.status.set(status);
    record.end();
    Failure::Status(status)
}

/// Reason to stop waiting for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aborted {
    /// The client has closed the connection.
    ClientClosed,
    /// The client's deadline has passed.
    DeadlinePassed,
}

impl Aborted {
    /// Ends the request and the record of its try. Dropping the try has already closed its connection or cancelled its stream.
    fn end(self, request: &mut Request, record: &Try) -> Failure {
        match self.fail(request) {
            Failure::Status(status) => failed(record, status),
            gone => {
                record.end();
                gone
            }
        }
    }

    /// Logs the reason, and returns the failure that ends the request.
    fn fail(self, request: &mut Request) -> Failure {
        match self {
            Aborted::ClientClosed => {
                let what = "client prematurely closed connection, so upstream connection is closed too";
                request.log(Level::Info, format_args!("{what}"));
                Failure::ClientClosed
            }
            Aborted::DeadlinePassed => {
                request.log(Level::Info, format_args!("{DEADLINE_PASSED} while waiting for upstream"));
                Tries::of(request).is_past_deadline = true;
                Failure::Status(504)
            }
        }
    }
}

/// Waits for a future, until the client closes its connection or the deadline passes. The caller pins the future: a future that is
/// passed by value would need memory twice.
async fn watched<F: Future>(
    request: &Request,
    settings: &Settings,
    deadline: Option<Instant>,
    mut future: Pin<&mut F>,
) -> Result<F::Output, Aborted> {
    let client = request.client_if(!settings.ignore_client_abort && !request.is_detached);
    let mut closed = pin!(client::closed(client));
    // Boxed to save memory, because few requests have a deadline.
    let mut passed = deadline.map(|deadline| Box::pin(rt::sleep_until(deadline)));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if let Some(passed) = &mut passed
            && passed.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(Aborted::DeadlinePassed));
        }
        closed.as_mut().poll(context).map(|()| Err(Aborted::ClientClosed))
    })
    .await
}

/// One try.
struct Attempt<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
    record: &'a Rc<Try>,
    /// Whether sending of the request has begun.
    sent: &'a Cell<bool>,
}

impl Attempt<'_> {
    /// Gets a connection and sends the request on it. An error includes whether the connection was reused and returned no byte in
    /// this try.
    async fn run(
        &self,
        request: &Request,
        address: &PeerAddr,
        pool: Option<&Rc<IdlePool>>,
        is_fresh: bool,
    ) -> Result<Done, (TryError, bool)> {
        let options = link::options(self.settings, address, request);
        let idle = pool.filter(|_| !is_fresh).and_then(|pool| self.idle(pool, address, &options));
        let mut link = match idle {
            Some(link) => link,
            // Boxed, because most requests use an idle connection.
            None => {
                let connecting = Box::pin(self.connect(request, address, pool, options));
                connecting.await.map_err(|try_error| (try_error, false))?
            }
        };
        let Attempt { settings, outgoing, record, sent } = self;
        record.connect_time.set(Some(record.elapsed()));
        let is_reused = link.requests > 0;
        record.is_reused.set(is_reused);
        let response = attempt::run(request, settings, outgoing, &mut link, record, sent).await;
        if let (Err(_), Some(cut)) = (&response, link.wire.cut()) {
            record.reset.set(cut.code());
        }
        if response.is_err()
            && link.wire.cut() == Some(Cut::Unprocessed)
            && request.incoming.as_ref().is_none_or(|incoming| !incoming.is_started())
        {
            // The upstream reports that it did not process the request (RFC 9113 section 8.7). This server still has the complete
            // request and can send it again.
            sent.set(false);
        }
        let response =
            response.map_err(|try_error| (try_error, is_reused && record.bytes_received.get() == 0))?;
        record.header_time.set(Some(record.elapsed()));
        *record.heading.borrow_mut() = Some(Rc::clone(&response.heading));
        self.begin_body(request, link, response).await.map_err(|try_error| (try_error, false))
    }

    /// Returns an idle connection, or a new stream on an HTTP/2 connection, if one is available.
    fn idle(&self, pool: &IdlePool, address: &PeerAddr, options: &ConnectOptions) -> Option<Box<Link>> {
        let secure = self.outgoing.secure.as_ref();
        match self.outgoing.encoded.protocol() {
            UpstreamProtocol::Http2 => pool.join(address, options, secure),
            // A tunnel may carry connection state of one client, so its connection is not reused.
            UpstreamProtocol::Bytes => None,
            _ => pool.take(address, options, secure),
        }
    }

    /// Receives a small body before it returns: a body that fits into the buffer of the header section. Header section and body can
    /// then be sent together, and a try with a broken body can be repeated.
    async fn begin_body(
        &self,
        request: &Request,
        link: Box<Link>,
        response: TryResponse,
    ) -> Result<Done, TryError> {
        let TryResponse { heading, rest, is_full, decoder, keep_alive, sending } = response;
        let (record, read_timeout) = (Rc::clone(self.record), self.settings.read_timeout);
        let calls_directly = request.thread_config.config.events().calls_directly();
        let splice_from = request.thread_config.config.events().splice_from();
        let body_start = BodyStart { rest, is_full, calls_directly, splice_from };
        let mut live = Live::new(link, decoder, body_start, record, keep_alive, read_timeout);
        live.continue_sending(sending);
        let is_tunnel = heading.head().status().code() == 101
            || self.outgoing.encoded.protocol() == UpstreamProtocol::Bytes;
        if !is_tunnel && let Some(complete) = live.take_complete() {
            return Ok(Done { heading, body: BodyState::All(complete.map(Source::Buf)) });
        }
        live.limit_until(self.outgoing.deadline);
        live.restart_timer();
        // Boxed once, because `Live` is large and moved often.
        let mut live = Box::new(live);
        if is_tunnel {
            live.shrink();
            return Ok(Done { heading, body: BodyState::Tunnel(live) });
        }
        // If the field is ignored (`proxy_ignore_headers`), the header section is only sent earlier than necessary.
        let is_buffered = self.settings.buffering && heading.is_buffered(true);
        // A HEAD that is sent as GET for a cache needs only the header section. A response that is also stored as a file must not
        // end with its client.
        let waits = is_buffered && !self.settings.stores && request.method != Method::Head;
        let left = match live.remaining().filter(|_| waits) {
            Some(left) if left <= self.settings.buffer_size => left as usize,
            _ => {
                live.shrink();
                return Ok(Done { heading, body: BodyState::Part(live) });
            }
        };
        let buf = rt::pool().get(left).filter(|buf| buf.capacity() >= left);
        let Some(mut bytes) = buf else { return Ok(Done { heading, body: BodyState::Part(live) }) };
        bytes.set_len(0);
        loop {
            match live.next(left).await {
                Ok(Some(piece)) => _ = bytes.append(&piece),
                Ok(None) => return Ok(Done { heading, body: BodyState::All(Some(Source::Buf(bytes))) }),
                Err(fault) => {
                    request.log(Level::Error, format_args!("{fault} while reading upstream"));
                    return Err(match fault {
                        Fault::TimedOut => TryError::TimedOut,
                        Fault::Local(_) => TryError::Local,
                        _ => TryError::Failed,
                    });
                }
            }
        }
    }

    /// Performs the TLS handshake, if the upstream uses TLS, within `proxy_connect_timeout`.
    async fn secure(&self, request: &Request, link: Box<Link>, timer: &Timer) -> Result<Box<Link>, TryError> {
        let Some(secure) = self.outgoing.secure.clone() else { return Ok(link) };
        timer.set(rt::now() + self.settings.connect_timeout);
        // Boxed, because most requests do not need this future.
        match timer.limit(Box::pin(link.secure(secure))).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => {
                request.log(Level::Error, format_args!("{error} while SSL handshaking to upstream"));
                // With another upstream the same error would occur.
                let is_ours = matches!(error, SecureError::Load(_));
                Err(if is_ours { TryError::Local } else { TryError::Failed })
            }
            Err(rt::Elapsed) => {
                let errno = Reason(io::Errno::TIMEDOUT);
                let what = format_args!("upstream timed out ({errno}) while SSL handshaking to upstream");
                request.log(Level::Error, what);
                Err(TryError::TimedOut)
            }
        }
    }

    async fn connect(
        &self,
        request: &Request,
        address: &PeerAddr,
        pool: Option<&Rc<IdlePool>>,
        options: ConnectOptions,
    ) -> Result<Box<Link>, TryError> {
        let thread = &request.conn.thread;
        let Some(slot) = thread.slot_for_upstream(Some(&request.conn)).await else {
            if let Some(more) = thread.capacity.alarms.upstreams.due(rt::now()) {
                let what =
                    format_args!("worker_connections are not enough while connecting to upstream{more}");
                request.log(Level::Alert, what);
            }
            return Err(TryError::Local);
        };
        let timer = Timer::new();
        timer.set(rt::now() + self.settings.connect_timeout);
        let connecting = pin!(Link::connect(thread, address, pool.cloned(), options.clone(), slot));
        match timer.limit(connecting).await {
            Ok(Ok(link)) => {
                let link = self.secure(request, link, &timer).await?;
                let is_shared = self.outgoing.encoded.protocol() == UpstreamProtocol::Http2;
                Ok(if is_shared { link.multiplex(&request.conn.thread.capacity.windows) } else { link })
            }
            Ok(Err(error)) => {
                let (errno, call) = (Reason(error.errno), link::call(error.step, &options));
                // nginx's levels: a local error is more severe, and another server would not help.
                let (level, try_error) = match error.step {
                    ConnectStep::Connect => (Level::Error, TryError::Failed),
                    ConnectStep::Bind => (Level::Crit, TryError::Local),
                    ConnectStep::Socket | ConnectStep::Option(_) => (Level::Alert, TryError::Local),
                };
                request.log(level, format_args!("{call} failed ({errno}) while connecting to upstream"));
                if let Some(line) = refusals::refused_port(&request.conn.thread, address, error.errno) {
                    request.log(Level::Error, format_args!("{line}"));
                }
                Err(try_error)
            }
            Err(rt::Elapsed) => {
                let errno = Reason(io::Errno::TIMEDOUT);
                let what = format_args!("upstream timed out ({errno}) while connecting to upstream");
                request.log(Level::Error, what);
                Err(TryError::TimedOut)
            }
        }
    }
}
