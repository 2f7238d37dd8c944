//! Passing a session of UDP to an upstream: datagrams in both directions, over a socket with one peer.
//!
//! A session ends when the expected number of responses has arrived (`proxy_responses`), after `proxy_timeout`, or when the upstream is
//! unreachable (ICMP). Until the first response, one datagram is retained, so that another server can get it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;

use io::Errno;
use io::op::PeerAddr;
use io::sys::{DATAGRAM_BYTES, DatagramsToSend};
use rt::local::Counted;
use rt::net::{ConnectStep, DatagramListener};
use rt::{Either, Timer, select};

use crate::choice::name_of;
use crate::link;
use crate::outgoing::Target;
use crate::stream::{Failed, Probe, ProbeFailure, SessionSettings, SessionTry, Tries, timed_out};
use exchange::session::Session;
use site::address::Address;
use telemetry::{Level, Reason};
use transfer::datagrams::{DatagramClient, Joined};

/// Statuses of sessions, as in nginx.
const OK: u16 = 200;
const INTERNAL_ERROR: u16 = 500;
const BAD_GATEWAY: u16 = 502;

/// Number of buffers of [`DATAGRAM_BYTES`] that one receive fills.
const BUFFERS: usize = 4;

/// Maximum number of receives in a row; then other sessions get their turn.
const RECEIVES_MAX: usize = 4;

thread_local! {
    /// Memory that the sessions of a thread receive into, one after the other.
    static SPACE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The numbers of datagrams of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramLimits {
    /// `proxy_requests`: datagrams of the client after which its next one begins another session.
    pub requests: Option<u64>,
    /// `proxy_responses`: expected responses for each datagram of the client.
    pub responses: Option<u64>,
}

/// The datagrams of a session so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Datagrams of the client that were sent to the current upstream.
    requests: u64,
    /// Datagrams that upstreams have sent.
    responses: u64,
}

impl Progress {
    /// Whether every datagram of the client got the expected number of responses. `false` if no number is expected.
    fn has_all_responses(&self, limits: DatagramLimits) -> bool {
        limits.responses.is_some_and(|each| self.responses >= each.saturating_mul(self.requests))
    }

    /// Whether neither further datagrams nor further responses are expected.
    fn is_done(&self, limits: DatagramLimits) -> bool {
        limits.requests.is_none_or(|most| self.requests >= most)
            && self.requests > 0
            && self.has_all_responses(limits)
    }
}

/// The end of a try.
enum Ended {
    /// The session ends with this status.
    Session(u16),
    /// The server has failed.
    Server,
}

/// Passes the datagrams of a session to an upstream, and the responses to the client. Returns the status of the session.
pub async fn pass(
    session: &mut Session,
    target: &Target,
    settings: &SessionSettings<'_>,
    limits: DatagramLimits,
) -> u16 {
    let Some(client) = session.datagrams.clone() else { return INTERNAL_ERROR };
    let Some(mut tries) = Tries::begin(session, target, settings).await else { return INTERNAL_ERROR };
    let mut progress = Progress::default();
    loop {
        let (next, record) = tries.next(session);
        let Some(next) = next else { return BAD_GATEWAY };
        match connect(session, settings, &next.address, &record).await {
            Ok((socket, peer, slot)) => {
                let exchange =
                    Exchange { client: &client, socket: &socket, peer, settings, limits, record: &record };
                match exchange.run(session, &mut progress).await {
                    Ended::Session(status) => {
                        tries.end(session, next.pick, &record, status != OK);
                        return status;
                    }
                    Ended::Server => tries.end(session, next.pick, &record, true),
                }
                drop(slot);
            }
            Err(Failed::Local) => {
                tries.abandon(next.pick, &record);
                return INTERNAL_ERROR;
            }
            Err(Failed::Server) => tries.end(session, next.pick, &record, true),
        }
        let has_datagram = progress.requests == 0 || client.has_retained();
        if !tries.may_repeat(settings) || !has_datagram {
            return BAD_GATEWAY;
        }
        // The retained datagram is sent again.
        progress.requests = 0;
    }
}

/// Checks one server by a datagram. The log has the reason of a failure. Without a test for responses the server passes if no ICMP message
/// of its host arrives in time; any response ends the wait.
pub async fn probe(
    session: &Session,
    settings: &SessionSettings<'_>,
    address: &PeerAddr,
    probe: &Probe<'_>,
) -> Result<(), ProbeFailure> {
    session.action.set("connecting to upstream");
    let record = SessionTry::new(name_of(address));
    let (socket, peer, _slot) = connect(session, settings, address, &record).await?;
    let timer = Timer::new();
    timer.set(rt::now() + probe.timeout);
    // Boxed, because the future is large only for the few probes in flight.
    match timer.limit(Box::pin(ask(session, settings, &socket, peer, probe))).await {
        Ok(result) => result,
        Err(rt::Elapsed) if probe.expect.is_none() => Ok(()),
        Err(rt::Elapsed) => Err(timed_out(session).into()),
    }
}

/// Sends the datagram of a health check, and receives until a datagram passes the test.
async fn ask(
    session: &Session,
    settings: &SessionSettings<'_>,
    socket: &DatagramListener,
    peer: SocketAddr,
    probe: &Probe<'_>,
) -> Result<(), ProbeFailure> {
    let failed = |call: &str, errno| {
        session.log(Level::Error, format_args!("{call} failed ({})", Reason(errno)));
        ProbeFailure::Server
    };
    session.action.set("sending to upstream");
    // As in a session, the header of the PROXY protocol and the first bytes are one datagram.
    let bytes = [settings.header.as_slice(), probe.send].concat();
    let message = DatagramsToSend { to: peer, from: None, ecn: 0, segment: None, bytes: &bytes };
    socket.send(&message).map_err(|errno| failed("send()", errno))?;
    session.action.set("reading from upstream");
    loop {
        socket.readable().await.map_err(|errno| failed("poll()", errno))?;
        let mut is_expected = false;
        let received = SPACE.with_borrow_mut(|space| {
            space.resize(BUFFERS * DATAGRAM_BYTES, 0);
            socket.receive(space, |facts, bytes| {
                let mut datagrams = bytes.chunks(facts.segment.max(1));
                is_expected |= match probe.expect {
                    Some(expect) => datagrams.any(expect),
                    None => true,
                };
            })
        });
        match received {
            // Also if an ICMP message about an earlier datagram has arrived meanwhile.
            _ if is_expected => return Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(failed("recv()", errno)),
        }
    }
}

/// Creates a socket for one upstream.
async fn connect(
    session: &Session,
    settings: &SessionSettings<'_>,
    address: &PeerAddr,
    record: &SessionTry,
) -> Result<(DatagramListener, SocketAddr, Counted), Failed> {
    let thread = session.thread();
    let PeerAddr::Inet(peer) = *address else {
        session.log(Level::Error, format_args!("a unix socket cannot be an upstream of UDP"));
        return Err(Failed::Server);
    };
    let Some(slot) = thread.slot_for_upstream(Some(&session.conn)).await else {
        if let Some(more) = thread.capacity.alarms.upstreams.due(rt::now()) {
            session.log(Level::Alert, format_args!("worker_connections are not enough{more}"));
        }
        return Err(Failed::Local);
    };
    let options = link::options(settings.upstream, address, session);
    let mut connected = DatagramListener::connect(peer, &options);
    if let Err(error) = &connected
        && error.step == ConnectStep::Socket
        && matches!(error.errno, Errno::MFILE | Errno::NFILE)
        && thread.free_descriptors(&thread.thread_config()).await
    {
        connected = DatagramListener::connect(peer, &options);
    }
    let socket = connected.map_err(|error| {
        let (call, errno) = (link::call(error.step, &options), Reason(error.errno));
        let (level, failed) = match error.step {
            ConnectStep::Connect => (Level::Error, Failed::Server),
            ConnectStep::Bind => (Level::Crit, Failed::Local),
            ConnectStep::Socket | ConnectStep::Option(_) => (Level::Alert, Failed::Local),
        };
        session.log(level, format_args!("{call} failed ({errno})"));
        failed
    })?;
    record.connected();
    if let Ok(local) = socket.local() {
        let (local, name) = (Address::Inet(local), &record.name);
        let local = site::address::WithPort(&local);
        session.log_plain(Level::Info, format_args!("udp proxy {local} connected to {name}"));
    }
    Ok((socket, peer, slot))
}

/// The exchange with one upstream.
struct Exchange<'a> {
    client: &'a DatagramClient,
    /// The socket; the kernel passes on only datagrams of this upstream.
    socket: &'a DatagramListener,
    /// The address of the upstream.
    peer: SocketAddr,
    settings: &'a SessionSettings<'a>,
    limits: DatagramLimits,
    /// What the log shows about this upstream.
    record: &'a SessionTry,
}

impl Exchange<'_> {
    /// Passes datagrams in both directions until the session or the upstream ends.
    async fn run(&self, session: &Session, progress: &mut Progress) -> Ended {
        session.action.set("proxying connection");
        let timer = Timer::new();
        timer.set(rt::now() + self.settings.timeout);
        if let Some(retained) = self.client.take_retained()
            && let Err(errno) = self.send_to_upstream(session, progress, retained)
        {
            return self.broken(session, "send()", errno);
        }
        // It stays armed while datagrams of the client arrive.
        let mut readable = pin!(Some(self.socket.readable()));
        loop {
            self.client.clear_arrived();
            while let Some(joined) = self.next_datagrams(progress) {
                timer.set(rt::now() + self.settings.timeout);
                let counts = &session.counts;
                counts.received.set(counts.received.get() + joined.bytes.len() as u64);
                if let Err(errno) = self.send_to_upstream(session, progress, joined) {
                    return self.broken(session, "send()", errno);
                }
            }
            if self.limits.requests.is_some_and(|most| progress.requests >= most) {
                self.client.leave();
            }
            if progress.is_done(self.limits) {
                return self.ended(session, progress, "done");
            }
            if readable.is_none() {
                readable.set(Some(self.socket.readable()));
            }
            let Some(armed) = readable.as_mut().as_pin_mut() else { continue };
            let arrived = match timer.limit(select(self.client.arrived(), armed)).await {
                Err(rt::Elapsed) => return self.timed_out(session, progress),
                Ok(arrived) => arrived,
            };
            let Either::Right(is_readable) = arrived else { continue };
            readable.set(None);
            if is_readable.is_ok() {
                match self.receive(session, progress) {
                    Ok(()) => timer.set(rt::now() + self.settings.timeout),
                    Err(errno) => return self.broken(session, "recv()", errno),
                }
            }
        }
    }

    /// Takes the next datagrams of the client that belong to this session.
    fn next_datagrams(&self, progress: &Progress) -> Option<Joined> {
        let left = self.limits.requests.map_or(u64::MAX, |most| most.saturating_sub(progress.requests));
        if left == 0 { None } else { self.client.take(left) }
    }

    /// Sends datagrams to the upstream. Datagrams that the send buffer has no space for are lost, as in a network.
    fn send_to_upstream(
        &self,
        session: &Session,
        progress: &mut Progress,
        joined: Joined,
    ) -> Result<(), Errno> {
        let is_first = progress.requests == 0;
        progress.requests += joined.count();
        let bytes = joined.bytes.len() as u64;
        let header = &self.settings.header;
        let sent = if is_first && !header.is_empty() {
            let first = [header.as_slice(), &joined.bytes].concat();
            self.send(&first, None)
        } else {
            self.send(&joined.bytes, joined.split())
        };
        // The only datagram, until the first response.
        match progress.requests == 1 && progress.responses == 0 {
            true => self.client.retain(joined),
            false => self.client.forget_retained(),
        }
        match sent {
            Ok(()) => {
                self.record.sent.set(self.record.sent.get() + bytes);
                session.counts.upstream_sent.set(self.record.sent.get());
                Ok(())
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(Errno::MSGSIZE) => {
                session.log(Level::Info, format_args!("a datagram is too long for the upstream"));
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Sends one datagram, or with `segment` several of this size.
    fn send(&self, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno> {
        self.socket.send(&DatagramsToSend { to: self.peer, from: None, ecn: 0, segment, bytes })
    }

    /// Receives the queued responses, and sends them to the client.
    fn receive(&self, session: &Session, progress: &mut Progress) -> Result<(), Errno> {
        for _ in 0..RECEIVES_MAX {
            let received = SPACE.with_borrow_mut(|space| {
                space.resize(BUFFERS * DATAGRAM_BYTES, 0);
                self.socket
                    .receive(space, |facts, bytes| self.pass_back(session, progress, facts.segment, bytes))
            });
            match received {
                Ok(BUFFERS) => {}
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Sends responses to the client. Those that the send buffer has no space for are lost.
    fn pass_back(&self, session: &Session, progress: &mut Progress, segment: usize, bytes: &[u8]) {
        let count = bytes.len().div_ceil(segment.max(1)).max(1) as u64;
        let split = u16::try_from(segment).ok().filter(|_| count > 1);
        progress.responses += count;
        self.client.forget_retained();
        self.record.note_first_byte();
        let add = |cell: &Cell<u64>| cell.set(cell.get() + bytes.len() as u64);
        add(&self.record.received);
        add(&session.counts.upstream_received);
        match self.client.send(bytes, split) {
            Ok(()) => add(&session.counts.sent),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {}
            Err(errno) => session.log(Level::Info, format_args!("send() failed ({})", Reason(errno))),
        }
    }

    /// Ends a session without datagrams for `proxy_timeout`: successfully, unless responses are missing.
    fn timed_out(&self, session: &Session, progress: &Progress) -> Ended {
        if self.limits.responses.is_none() || progress.has_all_responses(self.limits) {
            return self.ended(session, progress, "timed out");
        }
        session.log(Level::Error, format_args!("upstream timed out ({})", Reason(Errno::TIMEDOUT)));
        Ended::Session(BAD_GATEWAY)
    }

    /// Logs the numbers of datagrams and bytes of a session that has ended successfully.
    fn ended(&self, session: &Session, progress: &Progress, how: &str) -> Ended {
        let counts = &session.counts;
        session.log_plain(
            Level::Info,
            format_args!(
                "udp {how}, packets from/to client:{}/{}, bytes from/to client:{}/{}, bytes from/to upstream:{}/{}",
                progress.requests,
                progress.responses,
                counts.received.get(),
                counts.sent.get(),
                counts.upstream_received.get(),
                counts.upstream_sent.get()
            ),
        );
        Ended::Session(OK)
    }

    /// Logs an error of the upstream, such as a port that nothing listens on (ICMP).
    fn broken(&self, session: &Session, call: &str, errno: Errno) -> Ended {
        let action = if call == "recv()" {
            "proxying and reading from upstream"
        } else {
            "proxying and sending to upstream"
        };
        session.action.set(action);
        session.log(Level::Error, format_args!("{call} failed ({})", Reason(errno)));
        Ended::Server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_done_after_the_expected_responses() {
        let limits = |requests, responses| DatagramLimits { requests, responses };
        let done = |requests, responses, limits| Progress { requests, responses }.is_done(limits);
        assert!(!done(1, 9, limits(None, None)), "any number of responses");
        assert!(done(1, 1, limits(None, Some(1))) && !done(2, 1, limits(None, Some(1))));
        assert!(done(1, 0, limits(None, Some(0))) && !done(0, 0, limits(None, Some(0))));
        assert!(!done(1, 1, limits(Some(2), Some(1))) && done(2, 2, limits(Some(2), Some(1))));
        assert!(!done(2, 5, limits(Some(2), None)));
    }
}
