//! Clients with Nagle's algorithm: such a client sends the next segment only after the previous one was acknowledged, which the
//! kernel of the server delays by 40 ms unless the server sends something. The fastest of many tries shows whether this delay
//! always occurs; it does not depend on the load of the machine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::tls::{Authority, BOTH, Tls, connect, files, one};
use crate::common::{one_server, ours_only, serve, serve_with};
use rustls::version;
use testkit::{Deadline, Origin, Reply, Server};

/// Half the minimum delay of an acknowledgement in Linux.
const DELAY: Duration = Duration::from_millis(20);

/// Asserts that not every try takes as long as a delayed acknowledgement.
fn assert_prompt(what: &str, mut attempt: impl FnMut() -> Duration) {
    let fastest = (0..20).map(|_| attempt()).min().expect("there are tries");
    assert!(fastest < DELAY, "{what}: {fastest:?}");
}

/// Whether the server under test avoids the delay that this test looks for.
fn is_prompt() -> bool {
    ours_only("nginx leaves the acknowledgement to the kernel")
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
    if !is_prompt() {
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
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for settings in ["", "ssl_session_tickets off;"] {
        let server =
            serve_with(&one(&format!("{settings} return 200 x;")), |builder| files(builder, "a", &own));
        assert_prompt(settings, || {
            let mut tls = handshake(&server, &authority, BOTH);
            let begin = Instant::now();
            tls.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("it is sent");
            tls.read_exact(&mut [0; 1]).expect("a response");
            begin.elapsed()
        });
    }
}

/// Sends segments, and receives until the received bytes end with these; returns the time.
fn exchange(socket: &mut TcpStream, segments: &[&[u8]], end: &[u8]) -> Duration {
    let begin = Instant::now();
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
    begin.elapsed()
}

fn plain(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    socket
}

#[test]
fn a_request_in_two_segments_does_not_wait_for_an_acknowledgement() {
    if !is_prompt() {
        return;
    }
    let server = serve(&one_server("", "return 200 body;"));
    let mut socket = plain(&server);
    assert_prompt("a header section", || {
        exchange(&mut socket, &[b"GET / HTTP/1.1\r\n", b"Host: a\r\n\r\n"], b"body")
    });
}

#[test]
fn a_body_after_its_header_section_does_not_wait_for_an_acknowledgement() {
    if !is_prompt() {
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
    if !is_prompt() {
        return;
    }
    let server = serve(&one_server("http2 on;", "return 200 body;"));
    assert_prompt("SETTINGS", || {
        let mut socket = plain(&server);
        exchange(&mut socket, &[PREFACE], ACKNOWLEDGED);
        exchange(&mut socket, &[ACKNOWLEDGED, &get(1)], b"body")
    });
    assert_prompt("WINDOW_UPDATE", || {
        let mut socket = plain(&server);
        exchange(&mut socket, &[PREFACE], ACKNOWLEDGED);
        exchange(&mut socket, &[&[ACKNOWLEDGED, &get(1)].concat()], b"body");
        exchange(&mut socket, &[WINDOW, &get(3)], b"body")
    });
}
