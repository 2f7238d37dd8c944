//! Access rules, limits on sessions, and rates.

use std::time::Instant;

use crate::support::{Upstream, connect, echo, read_all, serve};
use testkit::Deadline;

#[test]
fn a_denied_client_is_closed_and_logged_as_403() {
    let upstream = Upstream::echo();
    let server =
        serve(&format!("server {{ listen 127.0.0.1:0; deny 127.0.0.1; proxy_pass {}; }}", upstream.address));
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"");
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).trim_end(), "403 0 0");
    server.wait_for_log(
        "access forbidden by rule while initializing session, client: 127.0.0.1",
        Deadline::default(),
    );
}

#[test]
fn sessions_above_the_limit_of_a_key_are_refused() {
    let upstream = Upstream::echo();
    let server = serve(&format!(
        "limit_conn_zone $binary_remote_addr zone=clients:1m;
         server {{ listen 127.0.0.1:0; limit_conn clients 1; proxy_pass {}; }}",
        upstream.address
    ));
    let mut first = connect(server.addr(0).tcp());
    assert_eq!(echo(&mut first, b"a"), b"a");
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"");
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("503 "));
    server.wait_for_log("limiting connections by zone \"clients\"", Deadline::default());
    // The end of the first session makes room.
    drop(first);
    server.wait_for_access_log(2, Deadline::default());
    assert_eq!(echo(&mut connect(server.addr(0).tcp()), b"b"), b"b");
}

#[test]
fn a_rate_slows_a_direction() {
    let upstream = Upstream::echo();
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0; proxy_download_rate 1000; proxy_pass {}; }}",
        upstream.address
    ));
    let started = Instant::now();
    let mut client = connect(server.addr(0).tcp());
    // The bytes of two further seconds.
    assert_eq!(echo(&mut client, &[b'x'; 2500]).len(), 2500);
    assert!(started.elapsed().as_millis() >= 1900, "{:?}", started.elapsed());
}
