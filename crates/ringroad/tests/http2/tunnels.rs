//! Extended CONNECT (RFC 8441): streams that carry another protocol, such as WebSocket. Streams whose client has left.

use std::net::TcpStream;

use super::requests::{numbers, pause, proxy};
use crate::common::http2::{self, DATA, END, HEADERS, Http2, RESET, WHOLE, block};
use crate::common::ours_only;
use testkit::Client;
use testkit::origin::{Origin, Reply};

const UPGRADE: &str = "location /ws { proxy_pass http://@ORIGIN@; proxy_set_header Upgrade $http_upgrade; \
                       proxy_set_header Connection upgrade; }";

/// Sends an extended CONNECT; returns its stream.
fn connect(client: &mut Http2<TcpStream>, path: &str) -> u32 {
    let stream = client.next_stream();
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("sec-websocket-version", "13"),
    ];
    client.frame(HEADERS, WHOLE, stream, &block(&fields));
    stream
}

/// WebSocket over HTTP/2 (RFC 8441): a separate stream, concurrent with other requests on the connection.
#[test]
fn websocket_uses_a_separate_stream() {
    if !ours_only("RFC 8441, which nginx does not implement") {
        return;
    }
    let origin = Origin::start(|request| match request.path() {
        "/ws" => {
            assert_eq!(request.method, "GET");
            assert_eq!(request.header("Sec-WebSocket-Key").map(|key| key.len()), Some(24));
            Reply::echo("websocket")
        }
        _ => Reply::text("beside"),
    });
    let server = proxy(&origin, "", UPGRADE);
    let mut client = http2::connect(&server);
    client.settle();
    assert!(client.settings.contains(&(8, 1)), "it is offered: {:?}", client.settings);
    let stream = connect(&mut client, "/ws");
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.status != 0));
    let got = &client.streams[&stream];
    assert_eq!((got.status, got.ended, got.field("sec-websocket-accept")), (200, false, None));
    let content = numbers(300_000);
    for (count, part) in content.chunks(10_000).enumerate() {
        client.frame(DATA, 0, stream, part);
        let here = count * 10_000 + part.len();
        client.until(|client| client.streams[&stream].body.len() == here);
        if count == 3 {
            assert_eq!(client.get("/").text(), "beside");
        }
    }
    assert!(client.streams[&stream].body == content);
    client.frame(DATA, END, stream, &[]);
    let got = client.response(stream);
    assert!(got.ended && got.reset.is_none(), "the upstream returns the end of the stream");
    // If a client resets the stream, the upstream connection is closed.
    let stream = connect(&mut client, "/ws");
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.status != 0));
    client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    assert_eq!(client.get("/").text(), "beside");
    // RFC 9113 section 8.5: only DATA is allowed on the stream.
    let stream = connect(&mut client, "/ws");
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.status != 0));
    client.frame(HEADERS, WHOLE | END, stream, &block(&[("a", "b")]));
    assert_eq!(client.response(stream).reset, Some(1), "PROTOCOL_ERROR");
    drop(client);
    origin.wait_for("the end", |stats| stats.connections_open == 0);
}

/// RFC 8441 section 5: a 2xx response means that the protocol was switched. An ordinary response of an upstream or of the server, with
/// the same status, is replaced by an error; other statuses are passed on.
#[test]
fn extended_connect_without_a_switch_gets_an_error() {
    let origin = Origin::start(|request| match request.path() {
        "/missing" => Reply::new(404),
        _ => Reply::text("ordinary"),
    });
    let server = proxy(&origin, "", "location /own { return 204; } location /moved { return 302 /ws; }");
    let mut client = http2::connect(&server);
    for (path, status) in [("/plain", 501), ("/own", 501), ("/moved", 302), ("/missing", 404)] {
        let stream = connect(&mut client, path);
        let got = client.response(stream);
        assert_eq!((got.status, got.ended), (status, true), "{path}");
        assert!(!got.text().contains("ordinary"));
    }
    // Ordinary requests get the same responses as before.
    assert_eq!((client.get("/plain").text().as_str(), client.get("/own").status), ("ordinary", 204));
    assert_eq!(Client::connect(server.addr(0)).get("/plain").text(), "ordinary");
}

/// RFC 8441 section 5: the reset of a connection behind a tunnel is RST_STREAM with CANCEL.
#[test]
fn the_reset_of_an_upstream_cancels_its_tunnel() {
    let origin = Origin::raw(|connection| {
        connection.read_request();
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
        connection.send(head);
        connection.reset();
    });
    let server = proxy(&origin, "", UPGRADE);
    let mut client = http2::connect(&server);
    let stream = connect(&mut client, "/ws");
    let got = client.response(stream);
    assert_eq!((got.status, got.reset), (200, Some(8)), "CANCEL");
}

/// The slot of a stream that its client has cancelled is free at once, although the rate limit permits no byte for a second.
#[test]
fn a_cancelled_rate_limited_response_frees_its_slot_before_the_next_send() {
    if !ours_only("nginx may wait for the next send") {
        return;
    }
    let conf = "worker_processes 1; error_log logs/error.log info; events {}
         http { access_log off; limit_conn_zone $server_name zone=z:1m; server { listen 127.0.0.1:0; http2 on;
           root html; limit_conn z 1; limit_rate 2k; } }";
    let server = testkit::Server::builder(crate::common::BINARY)
        .conf(conf)
        .file("html/a", testkit::Content::new(1, 60_000))
        .start();
    let mut client = http2::connect(&server);
    client.settle();
    let freed_after = |_| {
        let stream = client.ask("/a");
        client.until(|client| client.streams.get(&stream).is_some_and(|got| !got.body.is_empty()));
        client.frame(RESET, 0, stream, &[0, 0, 0, 8]);
        let began = std::time::Instant::now();
        loop {
            let next = client.ask("/a");
            client.until(|client| client.streams.get(&next).is_some_and(|got| got.status != 0));
            if client.streams[&next].status == 200 {
                client.frame(RESET, 0, next, &[0, 0, 0, 8]);
                pause(std::time::Duration::from_millis(300));
                return began.elapsed() - std::time::Duration::from_millis(300);
            }
        }
    };
    let best = (0..6).map(freed_after).min().expect("attempts");
    assert!(best < std::time::Duration::from_millis(400), "{best:?}");
}
