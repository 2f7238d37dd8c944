//! Clients with Nagle's algorithm: such a client sends the next segment only after the previous one was acknowledged, which the
//! kernel of the server delays by at least 40 ms unless the server sends something.
//!
//! The kernel counts the acknowledgements that it has delayed, for each network namespace. So each of these tests runs in a
//! namespace of its own, as a program of its own, and needs root. It fails if each of many responses came after such an
//! acknowledgement, which does not depend on the load of the machine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::common::tls::{Authority, BOTH, Tls, connect, files, one};
use crate::common::{one_server, ours_only, serve, serve_with};
use rustls::version;
use testkit::{Deadline, Origin, Reply, Server};

/// The environment variable of a test that runs in a network namespace of its own.
const INSIDE: &str = "RINGROAD_TEST_OWN_NETWORK";

/// Whether the caller runs in a network namespace of its own. If not, this runs the test `name` of this file in one.
fn is_in_own_network(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        testkit::skip("needs root, for a network namespace");
        return false;
    }
    let test = format!("delays::{name}");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture"]);
    command.arg(std::env::current_exe().expect("its path")).arg(test).env(INSIDE, "1");
    let output = command.output().expect("unshare(1) is a part of util-linux");
    if output.status.code() == Some(127) {
        testkit::skip("ip is not installed (apt-get install iproute2)");
        return false;
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if text.starts_with("unshare:") {
        testkit::skip(format_args!("needs the permission for a network namespace: {}", text.trim_end()));
        return false;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Returns the number of acknowledgements that were sent by the timer of delayed acknowledgements (`DelayedACKs` of netstat).
fn delayed_acknowledgements() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").expect("the kernel's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "DelayedACKs").expect("Linux has it since 2.2");
    value.parse().expect("a number")
}

/// Asserts that not every response came after a delayed acknowledgement. Other connections may delay some in the meantime. The
/// first response does not count, because the kernel acknowledges the first segments of a connection at once.
fn assert_prompt(what: &str, mut attempt: impl FnMut()) {
    let mut delays = [0; 20];
    for delayed in &mut delays {
        let before = delayed_acknowledgements();
        attempt();
        *delayed = delayed_acknowledgements() - before;
    }
    assert!(
        delays[1..].contains(&0),
        "{what}: acknowledgements were delayed during each exchange: {delays:?}"
    );
}

/// Whether the server under test avoids the delay that this test looks for, and this is the program that looks for it.
fn is_prompt(name: &str) -> bool {
    ours_only("nginx leaves the acknowledgement to the kernel") && is_in_own_network(name)
}

fn handshake(
    server: &Server,
    authority: &Authority,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Tls {
    let mut tls = connect(server, &authority.clients(versions, None), "a.test");
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).expect("a handshake");
    }
    tls
}

#[test]
fn tickets_of_tls_1_3_are_sent_without_a_request() {
    if !ours_only("nginx leaves the acknowledgement to the kernel") {
        return;
    }
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for settings in ["", "ssl_session_tickets off; ssl_session_cache shared:s:1m;"] {
        let server =
            serve_with(&one(&format!("{settings} return 200 x;")), |builder| files(builder, "a", &own));
        let mut tls = handshake(&server, &authority, &[&version::TLS13]);
        while tls.conn.tls13_tickets_received() == 0 {
            let count = tls.conn.read_tls(&mut tls.sock).expect("a ticket arrives");
            assert_ne!(count, 0, "{settings}: the connection was closed");
            tls.conn.process_new_packets().expect("valid records");
        }
    }
}

#[test]
fn the_first_request_after_a_tls_handshake_does_not_wait_for_an_acknowledgement() {
    if !is_in_own_network("the_first_request_after_a_tls_handshake_does_not_wait_for_an_acknowledgement") {
        return;
    }
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for settings in ["", "ssl_session_tickets off;"] {
        let server =
            serve_with(&one(&format!("{settings} return 200 x;")), |builder| files(builder, "a", &own));
        assert_prompt(settings, || {
            let mut tls = handshake(&server, &authority, BOTH);
            tls.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("it is sent");
            tls.read_exact(&mut [0; 1]).expect("a response");
        });
    }
}

/// Sends segments, and receives until the received bytes end with these.
fn exchange(socket: &mut TcpStream, segments: &[&[u8]], end: &[u8]) {
    for segment in segments {
        socket.write_all(segment).expect("it is sent");
    }
    let mut received = Vec::new();
    while !received.ends_with(end) {
        let mut piece = [0; 500];
        let count = socket.read(&mut piece).expect("a response");
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&piece[..count]);
    }
}

fn plain(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    socket
}

#[test]
fn a_request_in_two_segments_does_not_wait_for_an_acknowledgement() {
    if !is_prompt("a_request_in_two_segments_does_not_wait_for_an_acknowledgement") {
        return;
    }
    let server = serve(&one_server("", "return 200 body;"));
    let mut socket = plain(&server);
    assert_prompt("a header section", || {
        exchange(&mut socket, &[b"GET / HTTP/1.1\r\n", b"Host: a\r\n\r\n"], b"body");
    });
}

#[test]
fn a_body_after_its_header_section_does_not_wait_for_an_acknowledgement() {
    if !is_prompt("a_body_after_its_header_section_does_not_wait_for_an_acknowledgement") {
        return;
    }
    let origin = Origin::start(|_| Reply::text("body"));
    let pass = format!("proxy_pass http://{};", origin.addr());
    let locations = format!("location / {{ {pass} }} location /u {{ proxy_request_buffering off; {pass} }}");
    let server = serve(&one_server("", &locations));
    for target in ["/", "/u"] {
        let mut socket = plain(&server);
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        assert_prompt(target, || exchange(&mut socket, &[head.as_bytes(), b"hello"], b"body"));
    }
}

/// Frames of HTTP/2: the client's preface with empty SETTINGS, an acknowledgement of SETTINGS, a WINDOW_UPDATE.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const ACKNOWLEDGED: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";
const WINDOW: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01";

/// Returns a GET on a stream, of host `a`.
fn get(stream: u8) -> Vec<u8> {
    [&b"\0\0\x06\x01\x05\0\0\0"[..], &[stream], b"\x82\x84\x86\x41\x01a"].concat()
}

#[test]
fn a_request_after_frames_without_response_does_not_wait_for_an_acknowledgement() {
    if !is_prompt("a_request_after_frames_without_response_does_not_wait_for_an_acknowledgement") {
        return;
    }
    let server = serve(&one_server("http2 on;", "return 200 body;"));
    assert_prompt("SETTINGS", || {
        let mut socket = plain(&server);
        exchange(&mut socket, &[PREFACE], ACKNOWLEDGED);
        exchange(&mut socket, &[ACKNOWLEDGED, &get(1)], b"body");
    });
    assert_prompt("WINDOW_UPDATE", || {
        let mut socket = plain(&server);
        exchange(&mut socket, &[PREFACE], ACKNOWLEDGED);
        exchange(&mut socket, &[&[ACKNOWLEDGED, &get(1)].concat()], b"body");
        exchange(&mut socket, &[WINDOW, &get(3)], b"body");
    });
}
