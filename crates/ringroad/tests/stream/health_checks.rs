//! `health_check` and `match` in `stream`.

use std::io::{Read, Write};
use std::net::TcpStream;
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
