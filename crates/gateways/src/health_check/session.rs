//! One probe in `stream`: a connection as `proxy` opens it, or a socket of UDP, bytes that are sent, and a test of the received bytes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::matching::Match;
use super::{CheckConf, Checks, find_match, required_group};
use crate::stream_proxy;
use conf::Error;
use exchange::rehearsal::Rehearsal;
use exchange::request::{Address, ConnInfo};
use exchange::session::Session;
use exchange::thread::Thread;
use io::op::PeerAddr;
use peers::Group;
use site::config::{Scope, ServerId};
use upstream::checks::{HealthCheck, ProbeResult};
use upstream::stream::{Probe, ProbeFailure, ReceivedTest};

/// Returns the group that a server passes sessions to.
pub(super) fn group_of(scope: &Scope, conf: &CheckConf) -> Result<Arc<Group>, Error> {
    required_group(stream_proxy::pass_of(scope), conf)
}

/// What the probes of a check need.
struct SessionCheck {
    thread: Rc<Thread>,
    /// The connection of the sessions, which no client has opened.
    conn: ConnInfo,
    /// Index of an address of the server.
    listen: usize,
    server: ServerId,
    tests: Option<Arc<Match>>,
    is_udp: bool,
    timeout: Duration,
}

/// The datagram of a check over UDP without a `send`, as in nginx's commercial edition.
const DATAGRAM_DEFAULT: &[u8] = b"nginx health check";

/// Returns the checks of the configuration in use.
pub(super) fn checks(thread: &Rc<Thread>) -> Vec<HealthCheck> {
    let thread_config = thread.thread_config();
    let block = &thread_config.config.stream;
    let mut checks = Vec::new();
    for location in &block.locations {
        let Checks { list, timeout } = location.scope.of::<Checks>();
        for conf in list {
            // The configuration was checked when it was read.
            let (Ok(group), Ok(tests), Some(check), Some(listen)) = (
                group_of(&location.scope, conf),
                find_match(block, conf),
                conf.check.get(),
                block.listens.iter().position(|listen| listen.has_server(location.server)),
            ) else {
                continue;
            };
            let here = Address::Unix(Vec::new());
            let session_check = Rc::new(SessionCheck {
                thread: Rc::clone(thread),
                conn: ConnInfo::new(thread, here.clone(), here),
                listen,
                server: location.server,
                tests,
                is_udp: conf.is_udp,
                timeout: *timeout,
            });
            checks.push(HealthCheck {
                group,
                check: check.clone(),
                name: conf.match_name.clone(),
                interval: conf.interval,
                jitter: conf.jitter,
                port: conf.port,
                probe: Box::new(move |address| Box::pin(probe(Rc::clone(&session_check), address))),
            });
        }
    }
    checks
}

/// Makes a probe.
async fn probe(check: Rc<SessionCheck>, address: PeerAddr) -> ProbeResult {
    let rehearsal = Rc::new(Rehearsal::default());
    let conn = Rc::new(ConnInfo { rehearsal: Some(Rc::clone(&rehearsal)), ..check.conn.clone() });
    let mut session = Session::new(check.thread.thread_config(), conn, check.listen);
    session.set_server(check.server);
    let (send, expect) = match check.tests.as_deref() {
        Some(Match::Text(test)) => (test.send.as_slice(), test.expect.as_ref()),
        _ => (&[][..], None),
    };
    let send = if check.is_udp && send.is_empty() { DATAGRAM_DEFAULT } else { send };
    let is_expected = expect.map(|expect| |received: &[u8]| expect.is_in(received));
    let probe = Probe {
        send,
        expect: is_expected.as_ref().map(|test| test as ReceivedTest<'_>),
        timeout: check.timeout,
    };
    let Some(settings) = stream_proxy::probe_settings(&session) else {
        return ProbeResult::NotMade("the server passes no sessions on".to_owned());
    };
    let result = match check.is_udp {
        true => upstream::datagrams::probe(&session, &settings, &address, &probe).await,
        false => upstream::stream::probe(&session, &settings, &address, &probe).await,
    };
    let logged = || rehearsal.last_logged().unwrap_or_else(|| "the connection failed".to_owned());
    match result {
        Ok(()) => ProbeResult::Passed,
        Err(ProbeFailure::Server) => ProbeResult::Failed(logged()),
        Err(ProbeFailure::Local) => ProbeResult::NotMade(logged()),
    }
}
