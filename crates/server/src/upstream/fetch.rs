//! One try after the other, until an upstream answers or nobody is left to be asked.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io::op::Source;
use rt::{Either, select};

use crate::log::{Level, Reason};
use crate::request::Request;
use crate::upstream::body::Live;
use crate::upstream::choice::{Choice, Chosen, Next, Peer};
use crate::upstream::exchange::{self, Answer, Trouble};
use crate::upstream::link::{self, Home, Link};
use crate::upstream::peers::Outcome;
use crate::upstream::state::{Tries, Try};
use crate::upstream::tunnel::Tunnel;
use crate::upstream::{Failure, NextUpstream, Outgoing, OutgoingBody, Reply, ReplyBody, Settings, Target};

/// Asks upstreams until one answers. Each try is recorded for `$upstream_*`.
///
/// # Errors
/// See [`Failure`]; the log has the reason of each try.
pub(crate) async fn fetch(
    request: &mut Request,
    settings: &Settings,
    target: &Target,
    outgoing: Outgoing,
) -> Result<Reply, Failure> {
    Tries::of(request).set_url(SCHEME, outgoing.target());
    let mut choice = Choice::of(request, target).await?;
    if settings.next_upstream_tries > 0 {
        choice.limit_tries(settings.next_upstream_tries);
    }
    let mut fetch =
        Fetch { settings, outgoing: &outgoing, choice, started: rt::now(), is_first: true, fresh: None };
    loop {
        let is_fresh = fetch.fresh.is_some();
        let next = fetch.next(request)?;
        if let Some(reply) = fetch.attempt(request, next, is_fresh).await? {
            return Ok(reply);
        }
    }
}

/// What stands before addresses in log lines.
const SCHEME: &str = "http://";

/// How long an upstream has before it is looked whether the client still waits.
const WATCH_AFTER: Duration = Duration::from_millis(20);

/// The tries of one request.
struct Fetch<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
    choice: Choice,
    started: Instant,
    is_first: bool,
    /// An upstream that closed a connection while it was idle: it is asked again on a new one.
    fresh: Option<Next>,
}

impl Fetch<'_> {
    fn next(&mut self, request: &mut Request) -> Result<Next, Failure> {
        if let Some(next) = self.fresh.take() {
            return Ok(next);
        }
        self.choice.next(request).map_err(|_| {
            let name = self.choice.name();
            let record = Tries::of(request).begin(&name, &name, None, self.is_first);
            request.log(Level::Error, format_args!("no live upstreams while connecting to upstream"));
            failed(&record, 502)
        })
    }

    /// One try; no reply where another one is to follow.
    async fn attempt(
        &mut self,
        request: &mut Request,
        mut next: Next,
        is_fresh: bool,
    ) -> Result<Option<Reply>, Failure> {
        let Peer { address, name, server } = &next.peer;
        let record = Tries::of(request).begin(name, server, Some(address), self.is_first);
        self.is_first = false;
        let sent = Cell::new(false);
        let attempt =
            Attempt { settings: self.settings, outgoing: self.outgoing, record: &record, sent: &sent };
        let running = attempt.run(request, &next.peer, self.choice.home(), is_fresh);
        let Some(done) = watched(request, self.settings, running).await else {
            record.end();
            return Err(Failure::Gone);
        };
        match done {
            Ok((link, answer)) => {
                let status = answer.heading.head().status().code();
                record.status.set(status);
                let reason = NextUpstream::of_status(status);
                match reason.filter(|&reason| self.choice.tries() > 1 && self.may_repeat(reason, sent.get()))
                {
                    Some(reason) => self.go_on(request, next, &record, (reason, status), sent.get()),
                    None => {
                        self.choice.answered(request, next.pick.as_mut());
                        let chosen = Chosen::new(std::mem::take(&mut self.choice), next.pick);
                        self.reply(request, link, answer, record, chosen).await
                    }
                }
            }
            Err((trouble, is_reused)) => {
                let why = match trouble {
                    Trouble::Local => return Err(failed(&record, 500)),
                    Trouble::Client(status) => return Err(failed(&record, status)),
                    Trouble::Failed if is_reused && self.may_repeat(NextUpstream::ERROR, sent.get()) => {
                        // It was closed while it was idle, which is no fault of the upstream.
                        failed(&record, 502);
                        self.fresh = Some(next);
                        return Ok(None);
                    }
                    Trouble::Failed => (NextUpstream::ERROR, 502),
                    Trouble::TimedOut => (NextUpstream::TIMEOUT, 504),
                    Trouble::InvalidHeader => (NextUpstream::INVALID_HEADER, 502),
                };
                self.go_on(request, next, &record, why, sent.get())
            }
        }
    }

    /// Ends a try that has failed, and everything where nobody else may be asked.
    fn go_on(
        &mut self,
        request: &mut Request,
        next: Next,
        record: &Try,
        (reason, status): (NextUpstream, u16),
        was_sent: bool,
    ) -> Result<Option<Reply>, Failure> {
        let failure = failed(record, status);
        let outcome = match reason {
            NextUpstream::HTTP_403 | NextUpstream::HTTP_404 => Outcome::Passed,
            _ => Outcome::Failed,
        };
        self.choice.report(request, next.pick, outcome);
        match self.choice.tries() > 0 && self.may_repeat(reason, was_sent) {
            true => Ok(None),
            false => Err(failure),
        }
    }

    /// Whether another upstream may get the request too, for this reason, after this much happened with one.
    fn may_repeat(&self, reason: NextUpstream, was_sent: bool) -> bool {
        let Settings { next_upstream, next_upstream_timeout, .. } = self.settings;
        let waited = rt::now().saturating_duration_since(self.started);
        let in_time = next_upstream_timeout.is_zero() || waited < *next_upstream_timeout;
        let is_safe = self.outgoing.is_idempotent || next_upstream.contains(NextUpstream::NON_IDEMPOTENT);
        // Of a body that was passed on while it came, nothing is left to be sent again.
        let is_whole = !matches!(self.outgoing.body, OutgoingBody::Streamed);
        next_upstream.contains(reason) && in_time && (!was_sent || is_safe && is_whole)
    }

    /// The reply of an upstream that answered, with its body where that is short.
    async fn reply(
        &mut self,
        request: &mut Request,
        link: Link,
        answer: Answer,
        record: Rc<Try>,
        chosen: Chosen,
    ) -> Result<Option<Reply>, Failure> {
        let Answer { heading, rest, framing, keeps } = answer;
        let status = heading.head().status().code();
        let mut live =
            Live::new(link, framing, rest, Rc::clone(&record), chosen, keeps, self.settings.read_timeout);
        let body = match live.take_whole() {
            _ if status == 101 => ReplyBody::Tunnel(Box::new(Tunnel::new(live, self.settings))),
            Some(None) => ReplyBody::None,
            Some(Some(buf)) => ReplyBody::Bytes(Source::Buf(buf)),
            None => ReplyBody::Live(Box::new(live)),
        };
        let _ = request;
        Ok(Some(Reply { head: heading, body, received_at: (rt::now(), rt::wall()) }))
    }
}

impl Outgoing {
    /// What is asked for, as it stands in the request line.
    fn target(&self) -> &[u8] {
        self.head.split(|&byte| byte == b' ').nth(1).unwrap_or_default()
    }
}

/// A try has ended without an answer for the client.
fn failed(record: &Try, status: u16) -> Failure {
    record.status.set(status);
    record.end();
    Failure::Status(status)
}

/// The output of a future, or `None` when the client is gone before.
async fn watched<F: Future>(request: &Request, settings: &Settings, future: F) -> Option<F::Output> {
    match select(future, gone(request, !settings.ignore_client_abort)).await {
        Either::Left(output) => Some(output),
        Either::Right(()) => {
            request.log(
                Level::Info,
                format_args!("client prematurely closed connection, so upstream connection is closed too"),
            );
            None
        }
    }
}

/// Waits until the client of a request has gone, where that matters, but not before the upstream had a little time: most
/// answers are here before that, and to watch costs an operation of the engine.
pub(crate) async fn gone(request: &Request, matters: bool) {
    let socket = request.conn.socket.borrow().clone();
    let Some(socket) = socket.filter(|_| matters) else { return std::future::pending().await };
    rt::sleep_until(rt::now() + WATCH_AFTER).await;
    rt::net::hung_up(&socket).await;
}

/// One try.
struct Attempt<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
    record: &'a Rc<Try>,
    /// Whether anything has gone out.
    sent: &'a Cell<bool>,
}

impl Attempt<'_> {
    /// Gets a connection and asks on it. An error comes with whether the connection had been used before and brought
    /// nothing since.
    async fn run(
        &self,
        request: &Request,
        peer: &Peer,
        home: Option<&Rc<Home>>,
        is_fresh: bool,
    ) -> Result<(Link, Answer), (Trouble, bool)> {
        let idle = home.filter(|_| !is_fresh).and_then(|home| home.take(&peer.address));
        let mut link = match idle {
            Some(link) => link,
            None => self.connect(request, peer, home).await.map_err(|trouble| (trouble, false))?,
        };
        let Attempt { settings, outgoing, record, sent } = self;
        record.connect_time.set(Some(record.elapsed()));
        let is_reused = link.requests > 0;
        let answer = exchange::run(request, settings, outgoing, &mut link, record, sent).await;
        let answer = answer.map_err(|trouble| (trouble, is_reused && record.bytes_received.get() == 0))?;
        record.header_time.set(Some(record.elapsed()));
        *record.heading.borrow_mut() = Some(Rc::clone(&answer.heading));
        Ok((link, answer))
    }

    async fn connect(
        &self,
        request: &Request,
        peer: &Peer,
        home: Option<&Rc<Home>>,
    ) -> Result<Link, Trouble> {
        let timer = rt::Timer::new();
        timer.set(rt::now() + self.settings.connect_timeout);
        let connecting = Link::connect(&peer.address, home.cloned(), self.settings, request);
        match timer.limit(connecting).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => {
                let (errno, call) = (Reason(error.errno), link::call(error.step));
                request
                    .log(Level::Error, format_args!("{call} failed ({errno}) while connecting to upstream"));
                Err(Trouble::Failed)
            }
            Err(rt::Elapsed) => {
                let errno = Reason(io::Errno::TIMEDOUT);
                let what = format_args!("upstream timed out ({errno}) while connecting to upstream");
                request.log(Level::Error, what);
                Err(Trouble::TimedOut)
            }
        }
    }
}
