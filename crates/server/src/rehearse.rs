//! Runs the real course of a request that no client has sent, for `ringroad explain`.
//!
//! The request runs on a thread of its own, with its own engine and its own state: zones are empty, and no log, cache, connection or
//! upstream is used. `exchange::rehearsal` describes what is left out.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use io::engine::{EngineConfig, NetKind};
use rt::thread::Setup;

use exchange::course::AfterPhases;
use exchange::files::{self, root_facts};
use exchange::rehearsal::{Note, Rehearsal};
use exchange::rehearse::{compose, run as run_course};
use exchange::request::{Address, ConnInfo, Request};
use exchange::response::Body;
use exchange::secured::Secured;
use exchange::thread::{ConfigVersion, Thread};
use site::config::{Config, LocationId, ServerId};
use site::shared_zone::Zones;
use telemetry::files::LogFiles;
use telemetry::shared::Shared;

use crate::process::pools_for_rehearsal;

/// Maximum time of a rehearsal: a file system that does not respond must not block the caller.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The request to rehearse.
#[derive(Clone, Debug)]
pub struct Question {
    /// The method as written.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names and values of the header fields, with `host`.
    pub fields: Vec<(String, String)>,
    /// The address of the client.
    pub from: IpAddr,
    /// The address that the client connects to.
    pub to: SocketAddr,
    /// The name of the TLS handshake; `None` without TLS.
    pub tls_name: Option<String>,
    /// Whether the request is one of HTTP/3.
    pub is_quic: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Course {
    /// The events in order.
    pub notes: Vec<Note>,
    /// The server.
    pub server: ServerId,
    /// The location that has produced the response.
    pub location: LocationId,
    /// The status of the response; `None` if the connection is closed without a response.
    pub status: Option<u16>,
    /// The value of `Location`.
    pub redirect: Option<Vec<u8>>,
    /// The length of the content, if it is known.
    pub length: Option<u64>,
    /// The file of the URI. The response is this file if `is_file`.
    pub path: PathBuf,
    /// Whether the response is a file.
    pub is_file: bool,
}

/// Rehearses a request. The configuration must have been loaded for this purpose, because its shared zones begin here.
pub fn rehearse(config: &Arc<Config>, question: &Question) -> Result<Course, String> {
    config.http.zones.begin(&Zones::default());
    let pools = pools_for_rehearsal(config).map_err(|error| error.to_string())?;
    let engine = EngineConfig { net: NetKind::Epoll, disk_ring: false, pools, ..EngineConfig::default() };
    let version = ConfigVersion::new(modules::all(), config, root_facts(config), 1, Arc::new(()));
    let config = Arc::clone(config);
    let question = question.clone();
    let setup = Setup { name: "rehearsal".to_owned(), ..Setup::default() };
    let (finished, result) = mpsc::sync_channel(1);
    let main = move |_| async move {
        // Fails if the caller no longer waits.
        let _ = finished.try_send(run(&config, version, &question).await);
    };
    let thread = rt::thread::start(setup, Duration::ZERO, || io::build(engine), main);
    thread.map_err(|error| error.to_string())?;
    match result.recv_timeout(TIME_MAX) {
        Ok(course) => course,
        Err(RecvTimeoutError::Timeout) => {
            let seconds = TIME_MAX.as_secs();
            Err(format!("the request was not finished within {seconds} seconds: a disk does not respond"))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err("the server panicked while it processed the request".to_owned())
        }
    }
}

/// Opens `/dev/null` for each log file, so that nothing is written.
#[expect(clippy::disallowed_methods, reason = "before the request: the device never blocks")]
fn logs_without_effect(config: &Config) -> Result<Vec<(PathBuf, OwnedFd)>, String> {
    let open = |path: PathBuf| {
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        null.map(|null| (path, null)).map_err(|errno| format!("/dev/null: {errno}"))
    };
    config.log_files().into_iter().map(open).collect()
}

async fn run(config: &Arc<Config>, version: ConfigVersion, question: &Question) -> Result<Course, String> {
    let logs = LogFiles::new(1, false);
    let files = logs_without_effect(config)?;
    let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, logs, files));
    let (from, to) = (SocketAddr::new(question.from, 4711), question.to);
    let thread_config = thread.thread_config();
    let local = Address::Inet(to);
    let mut listens =
        config.http.listens.iter().filter(|listen| listen.spec.addr.is_quic() == question.is_quic);
    let listen = listens.find(|listen| listen.spec.addr.inet().is_some_and(|addr| covers(addr, to)));
    let listen = listen.ok_or("no server listens on this address")?;
    let rehearsal = Rc::new(Rehearsal::default());
    let secured = question.tls_name.as_ref().map(|name| {
        let alpn = if question.is_quic { b"h3".to_vec() } else { b"http/1.1".to_vec() };
        Rc::new(Secured { name: Some(name.as_str().into()), protocol: "TLSv1.3", alpn, ..Secured::default() })
    });
    let info = Rc::new(ConnInfo {
        is_traced: true,
        is_proxied: listen.expects_proxy_protocol(&local),
        rehearsal: Some(Rc::clone(&rehearsal)),
        is_tls: listen.is_tls(&local),
        is_quic: question.is_quic,
        secured: secured.map_or_else(OnceCell::new, OnceCell::from),
        ..ConnInfo::new(&thread, Address::Inet(from), Address::Inet(to))
    });
    let default = listen.lookup(&local).0;
    let mut request = thread.take_request(&thread_config, &info, default);
    compose(&mut request, &question.method, &question.target, &question.fields)?;
    let outcome = run_course(&mut request, listen).await;
    Ok(course(&request, outcome, &rehearsal))
}

/// Whether a listening address accepts connections to this address.
fn covers(listens: SocketAddr, to: SocketAddr) -> bool {
    listens.port() == to.port()
        && (listens.ip() == to.ip() || listens.ip().is_unspecified() && (listens.is_ipv6() || to.is_ipv4()))
}

fn course(request: &Request, outcome: AfterPhases, rehearsal: &Rehearsal) -> Course {
    let response = &request.response;
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    Course {
        notes: rehearsal.take(),
        server: request.server,
        location: request.location,
        status: (outcome == AfterPhases::Respond).then_some(request.error_status.unwrap_or(response.status)),
        redirect: response.location.clone(),
        length: response.content_length,
        path: PathBuf::from(String::from_utf8_lossy(&path).into_owned()),
        is_file: matches!(response.body, Body::File(_)),
    }
}
