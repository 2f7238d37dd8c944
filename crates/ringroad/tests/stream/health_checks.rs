//! `health_check` and `match` in `stream`.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Upstream, closed_address, connect, read_all, serve};
use testkit::{Deadline, wait};

/// Returns what a session gets.
fn session(server: &testkit::Server) -> String {
    String::from_utf8(read_all(&mut connect(server.addr(0).tcp()))).expect("a text")
}

/// An upstream that responds to `PING` while it is healthy, and sends its name to all others.
fn switched(name: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let current = Arc::clone(&healthy);
    let upstream = Upstream::start(move |mut stream: TcpStream| {
        stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("a time limit");
        let mut bytes = [0; 6];
        match stream.read_exact(&mut bytes) {
            Ok(()) if &bytes == b"PING\r\n" => {
                let response: &[u8] =
                    if current.load(Ordering::Relaxed) { b"+PONG\r\n" } else { b"-ERR\r\n" };
                let _ = stream.write_all(response);
                let _ = stream.read(&mut bytes);
            }
            _ => _ = stream.write_all(name.as_bytes()),
        }
    });
    (upstream, healthy)
}

#[test]
fn sessions_are_passed_to_servers_that_pass_their_checks() {
    let (one, healthy) = switched("one");
    let two = Upstream::named("two");
    let server = serve(&format!(
        "upstream group {{ server {}; server {} backup; }}
         match redis {{ send \"PING\\r\\n\"; expect ~ ^\\+PONG; }}
         server {{ listen 127.0.0.1:0; proxy_pass group;
           health_check match=redis interval=50ms fails=2; health_check_timeout 10s; }}",
        one.address, two.address
    ));
    assert_eq!(session(&server), "one");
    healthy.store(false, Ordering::Relaxed);
    // The backup sends its name to checks too, so it is unhealthy.
    let log = server.wait_for_log(
        &format!("health check \"redis\" of peer {} in upstream \"group\"", one.address),
        Deadline::default(),
    );
    assert!(
        log.contains("peer is unhealthy: upstream closed the connection before the expected text"),
        "{log}"
    );
    assert_eq!(session(&server), "");
    server.wait_for_log("no live upstreams", Deadline::default());
    healthy.store(true, Ordering::Relaxed);
    wait::until("the server", Deadline::default(), || (session(&server) == "one").then_some(()))
        .expect("it gets sessions again");
}

#[test]
fn a_mandatory_check_without_a_match_needs_a_connection() {
    let one = Upstream::named("one");
    let closed = closed_address();
    let server = serve(&format!(
        "upstream group {{ server {}; server {closed}; }}
         server {{ listen 127.0.0.1:0; proxy_pass group; proxy_next_upstream off; health_check mandatory; }}",
        one.address
    ));
    let log = server.wait_for_log(&format!("of peer {closed} in upstream \"group\""), Deadline::default());
    assert!(log.contains("peer is unhealthy: connect() failed (111: Connection refused)"), "{log}");
    wait::until("the server", Deadline::default(), || (session(&server) == "one").then_some(()))
        .expect("it has passed");
    assert!((0..6).all(|_| session(&server) == "one"), "the other is not tried");
}

/// An upstream that responds with `response` to the datagram `request` while it is healthy, and to all others with its name.
fn switched_udp(
    name: &'static str,
    request: &'static [u8],
    response: &'static [u8],
) -> (std::net::SocketAddr, Arc<AtomicBool>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let current = Arc::clone(&healthy);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let mut buffer = [0; 1000];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let is_check = &buffer[..count] == request;
            if !is_check || current.load(Ordering::Relaxed) {
                let _ = socket.send_to(if is_check { response } else { name.as_bytes() }, from);
            }
        }
    });
    (address, healthy)
}

/// Sends a datagram, and returns the response, or an empty text after a second without one.
fn ask(server: &testkit::Server) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(1))).expect("a time limit");
    socket.send_to(b"question", server.addr(0).tcp()).expect("it is sent");
    let mut buffer = [0; 100];
    let count = socket.recv(&mut buffer).unwrap_or_default();
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[test]
fn datagrams_are_passed_to_servers_that_respond_to_checks() {
    let (one, healthy) = switched_udp("one", b"\x01PING", b"..PONG");
    let (two, _) = switched_udp("two", b"\x01PING", b"other");
    let server = serve(&format!(
        "upstream group {{ server {one}; server {two}; }}
         match ping {{ send \\x01PING; expect ~ PONG$; }}
         server {{ listen 127.0.0.1:0 udp; proxy_pass group; proxy_responses 1; proxy_timeout 1s;
           health_check udp match=ping interval=50ms mandatory; health_check_timeout 200ms; }}"
    ));
    wait::until("the server", Deadline::default(), || (ask(&server) == "one").then_some(()))
        .expect("it has passed");
    let log = server.wait_for_log(&format!("of peer {two} in upstream \"group\""), Deadline::default());
    assert!(
        log.contains("peer is unhealthy: upstream timed out (110: Connection timed out)"),
        "another response does not pass: {log}"
    );
    assert!((0..4).all(|_| ask(&server) == "one"), "the other gets no session");
    healthy.store(false, Ordering::Relaxed);
    let failed = format!("while reading from upstream, health check \"ping\" of peer {one}");
    server.wait_for_log(&failed, Deadline::default());
    assert_eq!(ask(&server), "");
    server.wait_for_log("no live upstreams", Deadline::default());
    healthy.store(true, Ordering::Relaxed);
    wait::until("the server", Deadline::default(), || (ask(&server) == "one").then_some(()))
        .expect("it gets sessions again");
}

#[test]
fn without_a_match_a_check_of_udp_fails_by_an_icmp_message_only() {
    // A server that never responds to the datagram of a check, such as one of syslog.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    silent.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a time limit");
    let address = silent.local_addr().expect("it is bound");
    let closed = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let server = serve(&format!(
        "upstream group {{ server {address}; server {closed}; }}
         server {{ listen 127.0.0.1:0 udp; proxy_pass group; proxy_protocol on;
           health_check udp interval=50ms mandatory; health_check_timeout 100ms; }}"
    ));
    let mut buffer = [0; 100];
    for _ in 0..3 {
        let count = silent.recv(&mut buffer).expect("a check");
        assert_eq!(&buffer[..count], b"PROXY UNKNOWN\r\nnginx health check");
    }
    let log = server.wait_for_log(&format!("of peer {closed} in upstream \"group\""), Deadline::default());
    assert!(log.contains("peer is unhealthy: recv() failed (111: Connection refused)"), "{log}");
    server
        .wait_for_log(&format!("peer is healthy, health check \"\" of peer {address}"), Deadline::default());
}
