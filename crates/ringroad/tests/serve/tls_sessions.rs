//! TLS under load and across worker processes: floods of handshakes, incomplete handshakes, sessions that survive a
//! worker.

use crate::common;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::tls::{Authority, BOTH, body, connect, files, get, one, text, to_end};
use crate::common::{serve_with, tls::Tls};
use rustix::process::{Resource, Signal, getrlimit};
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, version};
use testkit::{Deadline, Server, process, wait};

fn signal(pid: i32, signal: Signal) {
    testkit::program::signal_process(pid, signal).expect("it runs");
}

fn only_worker(server: &Server) -> i32 {
    let workers = server.workers();
    assert_eq!(workers.len(), 1, "{workers:?}\n{}", server.error_log());
    workers[0]
}

/// Returns a client and its ClientHello, which has not been sent.
fn hello(config: &Arc<ClientConfig>) -> (ClientConnection, Vec<u8>) {
    let name = "a.test".try_into().expect("a name");
    let mut session = ClientConnection::new(Arc::clone(config), name).expect("a session");
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).expect("a hello");
    (session, bytes)
}

/// Returns the value of a metric.
fn number(page: &[u8], name: &str) -> u64 {
    let page = text(page);
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name}\n{page}")).trim().parse().expect("a number")
}

/// Requests the metrics on an open connection.
fn metrics(tls: &mut Tls) -> Vec<u8> {
    tls.write_all(b"GET /metrics HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("it is sent");
    let mut page = Vec::new();
    // The last chunk.
    while !page.ends_with(b"0\r\n\r\n") && !is_complete(&page) {
        let mut piece = [0; 16 << 10];
        let count = tls.read(&mut piece).expect("more");
        assert_ne!(count, 0, "{}", text(&page));
        page.extend_from_slice(&piece[..count]);
    }
    page
}

/// Returns whether a response with a Content-Length is complete.
fn is_complete(page: &[u8]) -> bool {
    let text = text(page);
    let Some((head, content)) = text.split_once("\r\n\r\n") else { return false };
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    len.is_some_and(|len| len.parse() == Ok(content.len()))
}

/// Connects clients whose ClientHellos reach the server together: the worker is stopped until all are sent.
fn flood(server: &Server, config: &Arc<ClientConfig>, count: usize) -> Vec<Tls> {
    let worker = only_worker(server);
    signal(worker, Signal::STOP);
    let clients = (0..count).map(|_| {
        let (session, bytes) = hello(config);
        let mut socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
        socket.write_all(&bytes).expect("it is sent");
        socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
        Tls::new(session, socket)
    });
    let clients = clients.collect();
    signal(worker, Signal::CONT);
    clients
}

#[test]
fn handshakes_in_a_flood_are_queued_and_sign_on_other_threads() {
    const CLIENTS: usize = 60;
    let authority = Authority::new("root");
    let conf = one("location / { return 200 x; } location = /metrics { metrics; }");
    for (own, how) in [(authority.server("a.test"), "later"), (authority.rsa("a.test"), "elsewhere")] {
        let server = serve_with(&conf, |builder| files(builder, "a", &own));
        let mut config = ClientConfig::clone(&authority.clients(BOTH, None));
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        let mut kept = connect(&server, &config, "a.test");
        metrics(&mut kept);
        let mut full = 1;
        let name = format!("ringroad_tls_handshake_steps_total{{how=\"{how}\"}}");
        let counted = || {
            let clients = flood(&server, &config, CLIENTS);
            full += CLIENTS as u64;
            // The earlier connection is served, and so is each of the others.
            metrics(&mut kept);
            for mut client in clients {
                client
                    .write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
                    .expect("it is sent");
                assert_eq!(body(&to_end(&mut client)), b"x", "{}", server.error_log());
            }
            let page = metrics(&mut kept);
            assert_eq!(number(&page, "ringroad_tls_handshakes_total{result=\"full\"}"), full);
            Some(number(&page, &name)).filter(|count| *count > 0)
        };
        // The kernel decides how many ClientHellos arrive in one turn. Eventually more arrive than one turn processes.
        wait::until(&name, Deadline::default(), counted).expect("handshakes wait for others");
        common::assert_no_errors(&server);
    }
}

#[test]
fn thousands_of_incomplete_handshakes_need_little_memory_and_time_out() {
    testkit::burst::allow_fds(8192);
    let spare = getrlimit(Resource::Nofile).current.unwrap_or(2200).saturating_sub(200);
    let count = usize::try_from(spare.min(2000)).expect("a number");
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = one("client_header_timeout 5s; return 200 x;")
        .replace("events {}", "events { worker_connections 4096; }");
    let server = serve_with(&conf, |builder| files(builder, "a", &own));
    let config = authority.clients(BOTH, None);
    assert_eq!(body(&get(&server, &config, "a.test", "/")), b"x");
    let before = process::resident_bytes(only_worker(&server));
    let (_, bytes) = hello(&config);
    let half: Vec<TcpStream> = (0..count)
        .map(|number| {
            let mut socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
            // At every offset in a ClientHello, from its first byte to its last but one.
            let part = &bytes[..1 + number % (bytes.len() - 1)];
            socket.write_all(part).expect("it is sent");
            socket
        })
        .collect();
    assert_eq!(body(&get(&server, &config, "a.test", "/")), b"x", "another client is served meanwhile");
    let grown = process::resident_bytes(only_worker(&server)).saturating_sub(before);
    assert!(grown < count as u64 * (48 << 10), "{grown} bytes for {count} half handshakes");
    for mut socket in half {
        socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
        let ended = socket.read_to_end(&mut Vec::new());
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
    }
    assert_eq!(body(&get(&server, &config, "a.test", "/")), b"x");
}

/// Returns whether a request on a separate connection resumed an earlier session, and the server's response.
fn is_resumed(server: &Server, config: &Arc<ClientConfig>, name: &str) -> bool {
    let mut tls = connect(server, config, name);
    tls.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes())
        .expect("it is sent");
    let shown = to_end(&mut tls);
    let is_resumed = tls.conn.handshake_kind() == Some(HandshakeKind::Resumed);
    assert_eq!(body(&shown), if is_resumed { &b"r"[..] } else { b"." });
    is_resumed
}

/// Waits until this worker has exited and exactly one other runs.
fn wait_for_another_worker(server: &Server, before: i32) {
    let is_replaced = || matches!(server.workers()[..], [worker] if worker != before).then_some(());
    wait::until("another worker", Deadline::default(), is_replaced).expect("it comes");
}

#[test]
fn tickets_are_valid_across_reloads_and_workers() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let key = "k".repeat(80);
    for (settings, version) in [
        ("", &version::TLS13),
        ("", &version::TLS12),
        ("ssl_session_timeout 1d;", &version::TLS13),
        ("ssl_session_ticket_key key;", &version::TLS12),
    ] {
        let conf = one(&format!("{settings} return 200 $ssl_session_reused;"));
        let prepare = |builder| files(builder, "a", &own).text("conf/key", &key);
        let mut server = serve_with(&conf, prepare);
        let config = authority.clients(&[version], None);
        assert!(!is_resumed(&server, &config, "a.test"));
        server.rewrite_conf(&conf.replace("return 200", "add_header X-New 1; return 200"));
        server.reload();
        server.wait_for_log("was replaced by", Deadline::default());
        assert!(is_resumed(&server, &config, "a.test"), "after a reload in place, {settings}");
        let first = only_worker(&server);
        server.rewrite_conf(&conf.replace("events {}", "events { worker_connections 100; }"));
        server.reload();
        wait_for_another_worker(&server, first);
        assert!(is_resumed(&server, &config, "a.test"), "after a replacement, {settings}");
        let second = only_worker(&server);
        signal(second, Signal::KILL);
        wait_for_another_worker(&server, second);
        assert!(is_resumed(&server, &config, "a.test"), "after a death, {settings}");
    }
}

#[test]
fn a_session_is_not_resumed_at_another_server() {
    let authority = Authority::new("root");
    let both = authority.issue_names(&["a.test", "b.test"]);
    // The same certificate and ticket key: the servers differ only in their names.
    let server = |name: &str| {
        format!(
            "server {{ listen 127.0.0.1:0 ssl; server_name {name}; ssl_certificate a.pem; ssl_certificate_key a.key;\n\
             ssl_session_ticket_key key; ssl_session_cache shared:s:1m; return 200 $ssl_session_reused; }}"
        )
    };
    let conf =
        format!("worker_processes 1; events {{}} http {{ {} {} }}", server("a.test"), server("b.test"));
    let server = serve_with(&conf, |builder| files(builder, "a", &both).text("conf/key", &"k".repeat(48)));
    for version in [&version::TLS13, &version::TLS12] {
        let config = common::tls::mixing_sessions(&authority.clients(&[version], None));
        assert!(!is_resumed(&server, &config, "a.test"));
        assert!(!is_resumed(&server, &config, "b.test"), "the session was made by another server");
        assert!(is_resumed(&server, &config, "b.test"));
    }
}

/// Each connection that resumes a session has the identifier of the session.
#[test]
fn resumed_connections_have_the_same_session_identifier() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for settings in ["", "ssl_session_tickets off; ssl_session_cache shared:s:1m;"] {
        let conf = one(&format!("{settings} return 200 '$ssl_session_reused $ssl_session_id';"));
        let server = serve_with(&conf, |builder| files(builder, "a", &own));
        for version in [&version::TLS13, &version::TLS12] {
            let config = authority.clients(&[version], None);
            let first = text(body(&get(&server, &config, "a.test", "/")));
            let second = text(body(&get(&server, &config, "a.test", "/")));
            let (reused, id) = first.split_once(' ').expect("two words");
            assert_eq!((reused, id.len()), (".", 64), "{first}");
            assert_eq!(second, format!("r {id}"), "{settings}");
            let other = authority.clients(&[version], None);
            assert_ne!(text(body(&get(&server, &other, "a.test", "/"))), first);
        }
    }
}

/// A handshake has a timeout, however slowly its bytes arrive.
#[test]
fn a_slow_handshake_times_out() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server =
        serve_with(&one("client_header_timeout 1s; return 200 x;"), |builder| files(builder, "a", &own));
    let mut socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let (_, bytes) = hello(&authority.clients(BOTH, None));
    let mut bytes = bytes.iter();
    let ended = || {
        let sent = bytes.next().map_or(Ok(()), |byte| socket.write_all(&[*byte]));
        let received = socket.read(&mut [0; 100]);
        let is_open = sent.is_ok()
            && received.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        (!is_open).then_some(())
    };
    wait::until("the end", Deadline::default(), ended).expect("the server ends it");
}
