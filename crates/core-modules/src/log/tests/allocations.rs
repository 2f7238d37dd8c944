//! Tests that in the steady state a log line needs no allocation, for any target and format.
#![expect(clippy::disallowed_methods, reason = "a test may wait")]

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use io::engine::{EngineConfig, NetKind};
use rt::Runtime;
use rustix::fs::{Mode, OFlags};
use testkit::TempDir;

use crate::testing;
use exchange::files::root_facts;
use exchange::request::{Address, ConnInfo, Request};
use exchange::thread::{ConfigVersion, Thread};
use site::config::{Config, ServerId};
use telemetry::files::{LogFiles, Opened};
use telemetry::shared::Shared;

const ROUNDS: u32 = 1000;

/// Number of rounds until every buffer has reached its size.
const WARM_UP: u32 = 200;

/// Allocations that do not belong to lines: the waker of `block_on`, an advancing wall clock, a table that grows once
/// when a socket is full.
const ONCE_MAX: u64 = 8;

const HEAD: &[u8] =
    b"GET /a/b?x=1 HTTP/1.1\r\nHost: here\r\nUser-Agent: \"agent\"\r\nReferer: http://x/\xff\r\n\r\n";

/// Returns a request that was read, on a thread with its own configuration.
fn request(config: &Arc<Config>, files: Opened) -> Box<Request> {
    let version = ConfigVersion::new(crate::all(), config, root_facts(config), 1, Arc::new(()));
    let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, LogFiles::new(1, true), files));
    let address = |port| Address::Inet(([127, 0, 0, 1], port).into());
    let conn =
        ConnInfo { number: 7, requests: Cell::new(1), ..ConnInfo::new(&thread, address(4711), address(80)) };
    let mut request = Box::new(Request::new(thread.thread_config(), Rc::new(conn), ServerId(0)));
    let mut raw = rt::pool().get(HEAD.len()).expect("memory for a head");
    raw.append(HEAD);
    let parsed = http::request::parse(&mut request.head, &raw, &http::request::Policy::default());
    assert!(matches!(parsed, Ok(http::request::Progress::Complete { .. })), "{parsed:?}");
    request.take_head(io::segments::Source::Buf(raw), 0);
    request.uri = b"/a/b".to_vec();
    request.response.status = 200;
    request
}

/// Opens the files that the master would open.
fn opened(config: &Config) -> Opened {
    let open = |path: &PathBuf| -> OwnedFd {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).expect("a file in a folder of its own")
    };
    config.log_files().into_iter().map(|path| (path.clone(), open(&path))).collect()
}

/// Writes lines one by one, each followed by event-loop turns in which the writer works.
async fn rounds(request: &Request, count: u32) {
    for _ in 0..count {
        request.end();
        while !request.conn.thread.logs.outgoing().is_idle() {
            rt::yield_now().await;
        }
    }
}

/// Returns the number of allocations of all lines with these directives: the maximum of a run with io_uring, if available,
/// and a run without. `FOLDER` in the directives stands for the path of `folder`.
fn allocations(http: &str, folder: &TempDir) -> u64 {
    let config = testing::loaded(&http.replace("FOLDER", &folder.path().display().to_string()));
    let engine = |disk_ring| EngineConfig { net: NetKind::Epoll, disk_ring, ..EngineConfig::default() };
    let engines = [true, false].map(|disk_ring| io::build(engine(disk_ring)));
    let counts = engines.into_iter().flatten().map(|engine| allocations_on(engine, &config));
    counts.max().expect("epoll is everywhere")
}

fn allocations_on(engine: Box<dyn io::Engine>, config: &Arc<Config>) -> u64 {
    let mut runtime = Runtime::new(engine);
    let request = runtime.block_on(async {
        let request = request(config, opened(config));
        rounds(&request, WARM_UP).await;
        request
    });
    let counted = allocation_counter::measure(|| runtime.block_on(rounds(&request, ROUNDS)));
    runtime.block_on(async { drop(request) });
    counted.count_total
}

#[test]
fn a_line_allocates_nothing() {
    let folder = TempDir::new("log-allocations");
    let formats = "log_format json escape=json '{\"u\":\"$http_user_agent\",\"r\":\"$http_referer\",\"t\":\"$time_iso8601\",
        \"n\":$msec,\"d\":$request_time,\"q\":\"$args\",\"x\":\"$arg_x\",\"h\":\"$host\",\"p\":\"$remote_port\"}';";
    for log in [
        "access_log FOLDER/plain.log;",
        "access_log FOLDER/json.log json;",
        "access_log FOLDER/conditional.log combined if=$http_host;",
        "access_log FOLDER/several.log; access_log FOLDER/further.log json;",
        "access_log FOLDER/$host.log; open_log_file_cache max=9;",
    ] {
        let count = allocations(&format!("{formats} server {{ root FOLDER; {log} }}"), &folder);
        assert!(count <= ONCE_MAX, "{count} allocations in {ROUNDS} lines: {log}");
    }
}

#[test]
fn a_message_allocates_nothing() {
    let folder = TempDir::new("syslog-allocations");
    let socket = UnixDatagram::bind(folder.path().join("log")).expect("a socket in a folder of its own");
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        let mut messages = 0;
        // An empty datagram is the end.
        while let Ok(count @ 1..) = socket.recv(&mut bytes) {
            assert!(bytes[..count].starts_with(b"<190>"));
            messages += 1;
        }
        messages
    });
    let count = allocations("server { access_log syslog:server=unix:FOLDER/log; }", &folder);
    assert!(count <= ONCE_MAX, "{count} allocations in {ROUNDS} messages");
    let end = UnixDatagram::unbound().expect("a descriptor is free");
    end.send_to(&[], folder.path().join("log")).expect("it is bound");
    let messages = reader.join().expect("messages are messages");
    assert_eq!(messages % (WARM_UP + ROUNDS), 0, "{messages} messages");
}
