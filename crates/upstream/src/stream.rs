//! Passing a session of `stream` to an upstream: tries at one server after the other, then a relay in both directions.
//!
//! ```text
//!   handler -- Target --> connect: server --> connection --> PROXY header, TLS --> Connected --> relay --> status
//!                           ^                     |
//!                           +---- another try ----+
//! ```
//! [`SessionTries`] has the tries for `$upstream_*`; it is in the extensions of the session.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::op::PeerAddr;
use io::segments::Source;
use io::{Errno, Segments};
use rt::net::ConnectStep;

use crate::choice::{addresses, name_of, wait_resolved};
use crate::link::{self, Link};
use crate::outgoing::Target;
use crate::relay::{Call, HalfClose, Relay, RelayCounts, RelayEnd, RelayLimits, Side};
use crate::secure::{Secure, SecureError};
use crate::sessions::client_of;
use crate::settings::{NextUpstream, Settings};
use exchange::refusals;
use exchange::session::Session;
use peers::counts::Tried;
use peers::resolve::Conf;
use peers::{Ask, Pick, Selection, TryOutcome};
use site::address::Address;
use telemetry::{Level, Reason};
use transfer::duplex::Duplex;

/// Statuses of sessions, as in nginx.
const OK: u16 = 200;
const INTERNAL_ERROR: u16 = 500;
const BAD_GATEWAY: u16 = 502;

/// The settings of a session in addition to those of connections.
#[derive(Clone, Debug)]
pub struct SessionSettings<'a> {
    /// Settings of connections: timeouts, addresses, `proxy_next_upstream`.
    pub upstream: &'a Settings,
    /// TLS to the upstream, with the host of the address.
    pub secure: Option<Secure>,
    /// `proxy_timeout`
    pub timeout: Duration,
    /// `proxy_half_close`
    pub half_close: bool,
    /// `proxy_upload_rate`, in bytes per second.
    pub upload_rate: Option<u64>,
    /// `proxy_download_rate`, in bytes per second.
    pub download_rate: Option<u64>,
    /// The header of the PROXY protocol to send first.
    pub header: Vec<u8>,
    /// `tcp_nodelay`
    pub nodelay: bool,
}

/// The tries of a session, in order.
#[derive(Default)]
pub struct SessionTries(pub Vec<Rc<SessionTry>>);

/// Record of one try.
pub struct SessionTry {
    /// Name as shown in `$upstream_addr`.
    pub name: Arc<str>,
    started: Instant,
    /// Time from the start of the try to the connection.
    pub connect_time: Cell<Option<Duration>>,
    /// Time of the first byte from the upstream.
    first_byte: Cell<Option<Instant>>,
    ended: Cell<Option<Instant>>,
    /// Bytes to the upstream.
    pub sent: Cell<u64>,
    /// Bytes from the upstream.
    pub received: Cell<u64>,
    /// Whether the try failed.
    is_failed: Cell<bool>,
}

impl SessionTry {
    pub(super) fn new(name: Arc<str>) -> Rc<SessionTry> {
        Rc::new(SessionTry {
            name,
            started: rt::now(),
            connect_time: Cell::default(),
            first_byte: Cell::default(),
            ended: Cell::default(),
            sent: Cell::default(),
            received: Cell::default(),
            is_failed: Cell::default(),
        })
    }

    /// Returns the time from the start of the try to the first byte of the upstream.
    pub fn first_byte_time(&self) -> Option<Duration> {
        self.first_byte.get().map(|at| at.saturating_duration_since(self.started))
    }

    /// Returns the time from the start of the try to its end.
    pub fn session_time(&self) -> Option<Duration> {
        self.ended.get().map(|at| at.saturating_duration_since(self.started))
    }

    fn end(&self) {
        self.ended.set(Some(rt::now()));
    }

    /// Records that the connection is established.
    pub(super) fn connected(&self) {
        self.connect_time.set(Some(rt::now().saturating_duration_since(self.started)));
    }

    /// Records the arrival of bytes of the upstream.
    pub(super) fn note_first_byte(&self) {
        if self.first_byte.get().is_none() {
            self.first_byte.set(Some(rt::now()));
        }
    }

    fn facts(&self) -> Tried {
        Tried {
            status: if self.is_failed.get() { BAD_GATEWAY } else { OK },
            sent: self.sent.get(),
            received: self.received.get(),
            connect: self.connect_time.get(),
            header: self.first_byte_time(),
            response: self.session_time().unwrap_or_default(),
        }
    }
}

/// The servers that a session may use.
enum Servers {
    Group(Selection),
    /// Addresses without a group: each is tried once, in this order.
    List(VecDeque<(PeerAddr, Arc<str>)>),
}

/// The next server to try.
pub(super) struct NextServer {
    pub(super) address: PeerAddr,
    name: Arc<str>,
    pub(super) pick: Option<Pick>,
}

/// The reason why a try failed.
pub(super) enum Failed {
    /// Another server may be tried.
    Server,
    /// Another server would not help.
    Local,
}

impl Servers {
    /// Returns the servers of a target; resolves a name. `None` if there are none; the log has the reason.
    async fn of(session: &Session, target: &Target) -> Option<Servers> {
        let conf = session.scope().of::<Conf>();
        Some(match target {
            Target::Group(group) => {
                if group.awaits_names() {
                    Box::pin(wait_resolved(session, conf, group)).await;
                }
                let key = group.key().map(|key| key.rendered(session)).unwrap_or_default();
                Servers::Group(group.select(Ask { client: client_of(session.client()), key, session: None }))
            }
            Target::Address(address) | Target::Checked(_, address) => {
                Servers::List([(address.clone(), name_of(address))].into())
            }
            Target::Dynamic { host, port } => {
                let found = Box::pin(addresses(session, conf, session.client(), host, *port)).await?;
                let named = found.map(|address| {
                    let address = PeerAddr::Inet(address);
                    let name = name_of(&address);
                    (address, name)
                });
                Servers::List(named.collect())
            }
        })
    }

    fn limit_tries(&mut self, most: u32) {
        match self {
            Servers::Group(selection) => selection.limit_tries(most),
            Servers::List(left) => left.truncate(most as usize),
        }
    }

    fn tries(&self) -> u32 {
        match self {
            Servers::Group(selection) => selection.tries(),
            Servers::List(left) => left.len() as u32,
        }
    }

    fn next(&mut self) -> Option<NextServer> {
        match self {
            Servers::Group(selection) => {
                let pick = selection.next_peer().ok()?;
                let (address, name) = (pick.address.clone(), Arc::clone(&pick.name));
                Some(NextServer { address, name, pick: Some(pick) })
            }
            Servers::List(left) => {
                let (address, name) = left.pop_front()?;
                Some(NextServer { address, name, pick: None })
            }
        }
    }

    /// Returns the name of the group, for the log if no server is available.
    fn name(&self) -> Arc<str> {
        match self {
            Servers::Group(selection) => selection.group().name.as_str().into(),
            Servers::List(_) => "".into(),
        }
    }

    fn report(&mut self, session: &Session, pick: Option<Pick>, outcome: TryOutcome, record: &SessionTry) {
        if let (Servers::Group(selection), Some(pick)) = (self, pick)
            && selection.report(pick, outcome, &record.facts())
        {
            session.log(Level::Warn, format_args!("upstream server temporarily disabled"));
        }
    }
}

/// The tries of a session, one server after the other.
pub(super) struct Tries {
    servers: Servers,
    started: Instant,
}

impl Tries {
    /// Begins the tries at the servers of a target; `None` if there are none. The log has the reason.
    pub(super) async fn begin(
        session: &Session,
        target: &Target,
        settings: &SessionSettings<'_>,
    ) -> Option<Tries> {
        *session.upstream.borrow_mut() = Some("".into());
        let mut servers = Servers::of(session, target).await?;
        if settings.upstream.next_upstream_tries > 0 {
            servers.limit_tries(settings.upstream.next_upstream_tries);
        }
        Some(Tries { servers, started: rt::now() })
    }

    /// Returns the next server and the record of its try. Without a server the try has ended; the log has the reason.
    pub(super) fn next(&mut self, session: &Session) -> (Option<NextServer>, Rc<SessionTry>) {
        session.action.set("connecting to upstream");
        let next = self.servers.next();
        let name = next.as_ref().map_or_else(|| self.servers.name(), |next| Arc::clone(&next.name));
        *session.upstream.borrow_mut() = Some(Arc::clone(&name));
        let record = SessionTry::new(name);
        session.extensions.borrow_mut().get_or_default::<SessionTries>().0.push(Rc::clone(&record));
        if next.is_none() {
            session.log(Level::Error, format_args!("no live upstreams"));
            record.end();
        }
        (next, record)
    }

    /// Ends a try, and reports its outcome to the group.
    pub(super) fn end(
        &mut self,
        session: &Session,
        pick: Option<Pick>,
        record: &SessionTry,
        is_failed: bool,
    ) {
        record.end();
        record.is_failed.set(is_failed);
        let outcome = if is_failed { TryOutcome::Failed } else { TryOutcome::Responded };
        self.servers.report(session, pick, outcome, record);
    }

    /// Ends a try for a reason that is not the server's fault.
    pub(super) fn abandon(&self, pick: Option<Pick>, record: &SessionTry) {
        record.end();
        record.is_failed.set(true);
        if let Some(pick) = pick {
            pick.abandon(&record.facts());
        }
    }

    /// Whether another server may be tried after a failure.
    pub(super) fn may_repeat(&self, settings: &SessionSettings<'_>) -> bool {
        let Settings { next_upstream, next_upstream_timeout, .. } = settings.upstream;
        let waited = rt::now().saturating_duration_since(self.started);
        let is_late = !next_upstream_timeout.is_zero() && waited >= *next_upstream_timeout;
        self.servers.tries() > 0 && next_upstream.contains(NextUpstream::ERROR) && !is_late
    }
}

/// Passes a session to an upstream, and relays its bytes to the end. Returns the status of the session.
pub async fn pass(session: &mut Session, target: &Target, settings: &SessionSettings<'_>) -> u16 {
    let Some(mut tries) = Tries::begin(session, target, settings).await else { return INTERNAL_ERROR };
    loop {
        let (next, record) = tries.next(session);
        let Some(NextServer { address, pick, .. }) = next else { return BAD_GATEWAY };
        match connect(session, settings, &address, &record).await {
            Ok(link) => {
                let status = relay(session, settings, link, &record).await;
                tries.end(session, pick, &record, false);
                return status;
            }
            Err(Failed::Local) => {
                tries.abandon(pick, &record);
                return INTERNAL_ERROR;
            }
            Err(Failed::Server) => tries.end(session, pick, &record, true),
        }
        if !tries.may_repeat(settings) {
            return BAD_GATEWAY;
        }
    }
}

/// Opens a connection, sends the header of the PROXY protocol if TLS follows, and performs the TLS handshake.
async fn connect(
    session: &Session,
    settings: &SessionSettings<'_>,
    address: &PeerAddr,
    record: &SessionTry,
) -> Result<Box<Link>, Failed> {
    let thread = session.thread();
    let Some(slot) = thread.slot_for_upstream(Some(&session.conn)).await else {
        if let Some(more) = thread.capacity.alarms.upstreams.due(rt::now()) {
            session.log(Level::Alert, format_args!("worker_connections are not enough{more}"));
        }
        return Err(Failed::Local);
    };
    let mut options = link::options(settings.upstream, address, session);
    options.nodelay = settings.nodelay;
    let timer = rt::Timer::new();
    timer.set(rt::now() + settings.upstream.connect_timeout);
    let connecting = pin!(Link::connect(thread, address, None, options.clone(), slot));
    let mut link = match timer.limit(connecting).await {
        Err(rt::Elapsed) => return Err(timed_out(session)),
        Ok(Ok(link)) => link,
        Ok(Err(error)) => {
            let (call, errno) = (link::call(error.step, &options), Reason(error.errno));
            let (level, failed) = match error.step {
                ConnectStep::Connect => (Level::Error, Failed::Server),
                ConnectStep::Bind => (Level::Crit, Failed::Local),
                ConnectStep::Socket | ConnectStep::Option(_) => (Level::Alert, Failed::Local),
            };
            session.log(level, format_args!("{call} failed ({errno})"));
            if let Some(line) = refusals::refused_port(thread, address, error.errno) {
                session.log(Level::Error, format_args!("{line}"));
            }
            return Err(failed);
        }
    };
    if let Some(secure) = settings.secure.clone() {
        // Boxed, because most sessions do not need this future.
        link = Box::pin(secured(session, settings, link, secure, record)).await?;
    }
    record.connected();
    if let Ok(local) = link.wire.local() {
        let local = Address::from(local);
        let (local, name) = (site::address::WithPort(&local), &record.name);
        session.log_plain(Level::Info, format_args!("proxy {local} connected to {name}"));
    }
    Ok(link)
}

/// Sends the header of the PROXY protocol, and performs the TLS handshake, each within `proxy_connect_timeout`.
async fn secured(
    session: &Session,
    settings: &SessionSettings<'_>,
    mut link: Box<Link>,
    secure: Secure,
    record: &SessionTry,
) -> Result<Box<Link>, Failed> {
    let timer = rt::Timer::new();
    timer.set(rt::now() + settings.upstream.connect_timeout);
    let timed_out = || timed_out(session);
    let broken = |errno| {
        session.log(Level::Error, format_args!("send() failed ({})", Reason(errno)));
        Failed::Server
    };
    if !settings.header.is_empty() {
        session.action.set("sending PROXY protocol header to upstream");
        let header = Segments::from(settings.header.clone());
        let sent = timer.limit(pin!(send(&mut link, header))).await;
        sent.map_err(|rt::Elapsed| timed_out())?.map_err(broken)?;
        record.sent.set(settings.header.len() as u64);
    }
    session.action.set("SSL handshaking to upstream");
    let handshaken = timer.limit(Box::pin(link.secure(secure))).await;
    let mut link = handshaken.map_err(|rt::Elapsed| timed_out())?.map_err(|error| {
        session.log(Level::Error, format_args!("{error}"));
        // With another upstream the same error would occur.
        if matches!(error, SecureError::Load(_)) { Failed::Local } else { Failed::Server }
    })?;
    // The last message of the handshake would wait for the first bytes of the client, which may never come.
    link.wire.queue_output();
    let flushed = timer.limit(pin!(send(&mut link, Segments::new()))).await;
    flushed.map_err(|rt::Elapsed| timed_out())?.map_err(broken)?;
    Ok(link)
}

/// A test of received bytes.
pub type ReceivedTest<'a> = &'a dyn Fn(&[u8]) -> bool;

/// What a health check sends, and the test of what the server sends.
pub struct Probe<'a> {
    /// The bytes to send after the connection is established.
    pub send: &'a [u8],
    /// Whether the received bytes pass the test; without a test the connection suffices.
    pub expect: Option<ReceivedTest<'a>>,
    /// `health_check_timeout`, from the connection on; over UDP from the datagram on.
    pub timeout: Duration,
}

/// Maximum number of bytes of a server that a health check examines.
const PROBE_BYTES_MAX: usize = 64 << 10;

/// Checks one server. Returns `false` if this server could not make the check; the log has the reason of a failure.
pub async fn probe(
    session: &Session,
    settings: &SessionSettings<'_>,
    address: &PeerAddr,
    probe: &Probe<'_>,
) -> Result<(), ProbeFailure> {
    session.action.set("connecting to upstream");
    let record = SessionTry::new(name_of(address));
    let mut link = connect(session, settings, address, &record).await?;
    let timer = rt::Timer::new();
    timer.set(rt::now() + probe.timeout);
    // Boxed, because the future is large only for the few probes in flight.
    match timer.limit(Box::pin(converse(session, settings, &mut link, probe))).await {
        Ok(result) => result,
        Err(rt::Elapsed) => Err(timed_out(session).into()),
    }
}

/// The reason why a health check was not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailure {
    /// The server has failed.
    Server,
    /// This server could not make the check.
    Local,
}

impl From<Failed> for ProbeFailure {
    fn from(failed: Failed) -> ProbeFailure {
        match failed {
            Failed::Server => ProbeFailure::Server,
            Failed::Local => ProbeFailure::Local,
        }
    }
}

/// Sends the bytes of a health check, and receives until the test is passed.
async fn converse(
    session: &Session,
    settings: &SessionSettings<'_>,
    link: &mut Link,
    probe: &Probe<'_>,
) -> Result<(), ProbeFailure> {
    let failed = |what: std::fmt::Arguments<'_>| {
        session.log(Level::Error, what);
        ProbeFailure::Server
    };
    let mut first = if settings.secure.is_none() { settings.header.clone() } else { Vec::new() };
    first.extend_from_slice(probe.send);
    if !first.is_empty() {
        session.action.set("sending to upstream");
        let sent = send(link, Segments::from(first)).await;
        sent.map_err(|errno| failed(format_args!("send() failed ({})", Reason(errno))))?;
    }
    let Some(expect) = probe.expect else { return Ok(()) };
    session.action.set("reading from upstream");
    let mut received = Vec::new();
    loop {
        match link.wire.recv().await {
            Ok(Some(buf)) => received.extend_from_slice(&buf),
            Ok(None) => {
                return Err(failed(format_args!("upstream closed the connection before the expected text")));
            }
            Err(errno) => return Err(failed(format_args!("recv() failed ({})", Reason(errno)))),
        }
        received.truncate(PROBE_BYTES_MAX);
        if expect(&received) {
            return Ok(());
        }
        if received.len() == PROBE_BYTES_MAX {
            return Err(failed(format_args!(
                "upstream sent {PROBE_BYTES_MAX} bytes without the expected text"
            )));
        }
    }
}

/// Logs a timeout.
pub(super) fn timed_out(session: &Session) -> Failed {
    session.log(Level::Error, format_args!("upstream timed out ({})", Reason(Errno::TIMEDOUT)));
    Failed::Server
}

/// Sends bytes to the upstream.
async fn send(link: &mut Link, mut data: Segments) -> Result<(), Errno> {
    std::future::poll_fn(|context| Duplex::poll_send(&mut link.wire, context, &mut data)).await
}

/// Relays the bytes of a session to the end. Returns its status.
async fn relay(
    session: &mut Session,
    settings: &SessionSettings<'_>,
    mut link: Box<Link>,
    record: &SessionTry,
) -> u16 {
    session.action.set("proxying connection");
    let Some(mut client) = session.client.take() else { return INTERNAL_ERROR };
    let early = std::mem::take(&mut session.early);
    let counts = Rc::clone(&session.counts);
    let mut first = if settings.secure.is_none() { settings.header.clone() } else { Vec::new() };
    // Its bytes are not the client's.
    let before = first.len() as u64;
    first.extend_from_slice(&early);
    let early = (!first.is_empty()).then(|| Source::Vec(first));
    let idle = settings.timeout;
    let received = Cell::new(0);
    let ended = Relay {
        thread: session.thread(),
        client: &mut *client,
        upstream: &mut link.wire,
        timer: &rt::Timer::new(),
        limits: RelayLimits {
            idle_max: idle,
            half_close: match settings.half_close {
                true => HalfClose::IsPassedOn(idle),
                false => HalfClose::EndsBoth,
            },
            upload_rate: settings.upload_rate,
            download_rate: settings.download_rate,
        },
        counts: RelayCounts {
            up: [&received, &record.sent],
            down: [&record.received, &counts.sent],
            first_byte: &record.first_byte,
        },
    }
    .run(early, None)
    .await;
    counts.received.set(received.get() - before.min(received.get()));
    counts.upstream_sent.set(record.sent.get());
    counts.upstream_received.set(record.received.get());
    log_end(session, ended);
    // Closed with the session, after its line was written.
    session.client = Some(client);
    OK
}

/// Logs the end of a relay, with nginx's messages.
fn log_end(session: &Session, ended: RelayEnd) {
    let name = |side| match side {
        Side::Client => "client",
        Side::Upstream => "upstream",
    };
    let last = match ended {
        RelayEnd::Closed(side) => Some(side),
        RelayEnd::Idle | RelayEnd::HalfClosed => {
            let errno = Reason(Errno::TIMEDOUT);
            session.log(Level::Info, format_args!("connection timed out ({errno})"));
            None
        }
        RelayEnd::CutOff => {
            session.log(Level::Info, format_args!("disconnected on shutdown"));
            None
        }
        RelayEnd::Broken(side, call, errno) => {
            // As in nginx, what a client does is no error of the server.
            let level = if side == Side::Client { Level::Info } else { Level::Error };
            let (call, action, last) = match (call, side) {
                (Call::Receive, Side::Client) => ("recv()", "proxying and reading from client", Some(side)),
                (Call::Receive, _) => ("recv()", "proxying and reading from upstream", Some(side)),
                (Call::Send, Side::Client) => ("send()", "proxying and sending to client", None),
                (Call::Send, _) => ("send()", "proxying and sending to upstream", None),
            };
            session.action.set(action);
            session.log(level, format_args!("{call} failed ({})", Reason(errno)));
            last
        }
    };
    let Some(last) = last else { return };
    let counts = &session.counts;
    session.log_plain(
        Level::Info,
        format_args!(
            "{} disconnected, bytes from/to client:{}/{}, bytes from/to upstream:{}/{}",
            name(last),
            counts.received.get(),
            counts.sent.get(),
            counts.upstream_received.get(),
            counts.upstream_sent.get()
        ),
    );
}
