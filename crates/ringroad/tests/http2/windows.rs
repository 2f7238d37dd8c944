//! Receive windows of HTTP/2: their memory is divided among the clients, and they grow with the bytes that are consumed in a round
//! trip. A relay without a clock counts the round trips.

use std::net::TcpStream;

use crate::common::http2::{self, Http2, setting};
use crate::common::http2_origin::Http2Origin;
use crate::common::{BINARY, one_server, serve};
use testkit::origin::{Origin, Reply};
use testkit::wait::DEFAULT_LIMIT;
use testkit::{Rounds, Server, Setup};

/// Size of a body in bytes.
const BODY: usize = 4 << 20;

/// Connects through a relay.
fn connect(relay: &Rounds) -> Http2<TcpStream> {
    let stream = TcpStream::connect(relay.address()).expect("a listener");
    stream.set_read_timeout(Some(DEFAULT_LIMIT)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    Http2::over(stream, &[])
}

/// Sends a body through a relay; returns the status of the response and the number of round trips.
fn upload(server: &Server, method: &str, path: &str) -> (u16, usize) {
    let relay = Rounds::to(server.addr(0).tcp());
    let mut client = connect(&relay);
    let stream = client.begin(method, path, &[("content-length", &BODY.to_string())], false);
    client.body(stream, &vec![7; BODY]);
    (client.response(stream).status, relay.count())
}

/// 40 connections with 128 bodies that never arrive hold windows for 320 MiB, and cost others nothing: neither a request with a body
/// over HTTP/2, nor a large one.
#[test]
fn silent_bodies_of_one_client_refuse_no_body_of_another() {
    let text = "worker_processes 1; events { worker_connections 512; } http { http2 on; server { listen 127.0.0.1:0;
        client_max_body_size 0; client_body_early_read 1; location / { return 200 x; } location /c { cache_counters; } } }";
    let server = serve(text);
    let silent: Vec<_> = (0..40)
        .map(|_| {
            let mut client = http2::connect(&server);
            for _ in 0..128 {
                client.begin("POST", "/", &[], false);
            }
            client.settle();
            assert!(client.streams.values().all(|got| got.reset.is_none()));
            client
        })
        .collect();
    let mut other = http2::connect(&server);
    for size in [1, 100, 100_000, 8 << 20] {
        assert_eq!(other.post("/", &[], &vec![7; size]).status, 200, "{size} bytes");
    }
    assert!(other.get("/c").text().contains("ringroad_http2_limits_total{limit=\"bodies\"} 0\n"));
    drop(silent);
}

/// Bodies whose bytes arrive and are not consumed, since their requests are delayed: they fill most of the memory for bodies, and
/// others get a share of the rest. When they have ended, nothing is reserved for them.
#[test]
fn bodies_that_are_not_consumed_leave_memory_to_others() {
    let origin = Origin::start(|request| Reply::text(request.body.len().to_string()));
    let text =
        "worker_processes 1; events { worker_connections 512; } http { http2 on; http2_body_preread_size 1m;
        limit_req_zone $request_method zone=z:1m rate=1r/m; client_max_body_size 0; server { listen 127.0.0.1:0;
        location /c { cache_counters; } location / { proxy_pass http://@ORIGIN@; }
        location /held { limit_req zone=z burst=10000; proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let mut sent = 0;
    let greedy: Vec<_> = (0..24)
        .map(|_| {
            let mut client = http2::connect(&server);
            for _ in 0..40 {
                let stream = client.begin("POST", "/held", &[], false);
                let count = client.offer(stream, 1 << 20);
                sent += count;
                if count == 0 {
                    break;
                }
            }
            client
        })
        .collect();
    assert!((100 << 20..300 << 20).contains(&sent), "{sent} bytes");
    let mut other = http2::connect(&server);
    for size in [1, 100_000, 8 << 20] {
        assert_eq!(other.post("/", &[], &vec![7; size]).status, 200, "{size} bytes");
    }
    let counted = other.get("/c").text();
    assert!(!counted.contains("ringroad_http2_limits_total{limit=\"bodies\"} 0\n"), "{counted}");
    drop(greedy);
}

/// The header section and the first window, the remaining body, the response.
#[test]
fn a_body_that_goes_to_a_file_needs_two_round_trips() {
    let origin = Origin::start(|request| Reply::text(request.body.len().to_string()));
    let text =
        "user root root; worker_processes 1; events {} http { http2 on; server { listen 127.0.0.1:0; client_max_body_size 0;
        location / { root dav; dav_methods PUT; create_full_put_path on; }
        location /buffered { proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let (status, rounds) = upload(&server, "PUT", "/a.bin");
    assert!(status == 201 && rounds <= 4, "{status} after {rounds} round trips");
    let (status, rounds) = upload(&server, "POST", "/buffered");
    assert!(status == 200 && rounds <= 4, "{status} after {rounds} round trips");
}

/// 64 windows of 64 KiB: the window doubles in each round trip.
#[test]
fn the_window_of_an_unbuffered_body_grows_with_what_its_upstream_consumes() {
    let origin = Origin::start(|request| Reply::text(request.body.len().to_string()));
    let text =
        "worker_processes 1; events {} http { http2 on; server { listen 127.0.0.1:0; client_max_body_size 0;
        location / { proxy_request_buffering off; proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let (status, rounds) = upload(&server, "POST", "/");
    assert!(status == 200 && rounds <= 16, "{status} after {rounds} round trips");
}

/// The window for a response follows the header section of its request.
#[test]
fn a_response_of_an_http2_upstream_needs_one_round_trip() {
    let origin = Http2Origin::answering(|conn, asked| conn.reply(asked.stream, 200, &[], &vec![7; BODY]));
    let relay = Rounds::to(origin.address().parse().expect("an address"));
    let upstream = relay.address();
    let locations = format!(
        "location / {{ proxy_http_version 2; proxy_pass http://{upstream}; }}
         location /unbuffered {{ proxy_http_version 2; proxy_buffering off; proxy_pass http://{upstream}; }}
         location /grpc {{ grpc_pass {upstream}; }}"
    );
    let server = serve(&one_server("http2 on;", &locations));
    for path in ["/", "/unbuffered", "/grpc"] {
        let before = relay.count();
        let mut client = http2::connect_with(&server, &setting(4, 1 << 30));
        let got = client.get(path);
        let rounds = relay.count() - before;
        // The acknowledgement of the settings, and window updates that the origin does not need.
        assert!(
            got.body.len() == BODY && rounds <= 4,
            "{path}: {} bytes, {rounds} round trips",
            got.body.len()
        );
    }
}
