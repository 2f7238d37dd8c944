//! Clients that cancel requests: browsers, gRPC clients and proxies do so often, and must not lose other requests; rapid resets must
//! not reach upstreams.

use std::net::TcpStream;
use std::time::Duration;

use crate::common::http2::{
    self, DATA, END, GO_AWAY, HEADERS, Http2, PING, RESET, SETTINGS, WHOLE, WINDOW, block, frame, setting,
};
use crate::common::{BINARY, one_server, serve_with};
use crate::requests::{pause, proxy};
use testkit::files::Content;
use testkit::origin::{Origin, Reply};
use testkit::{Client, Deadline, Setup};

/// ENHANCE_YOUR_CALM
const CALM: u32 = 11;

/// The frame of RFC 9113 section 6.3, which must have five bytes.
const PRIORITY_OLD: u8 = 2;

const LINE: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/slow"), (":authority", "here")];

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE | END, stream, &block(&LINE))
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RESET, 0, stream, &8u32.to_be_bytes())
}

/// Returns an origin that responds to `/fast` and not to other requests; `/stream` gets a header section and the start of a body.
fn origin() -> Origin {
    Origin::raw(|connection| {
        while let Some(request) = connection.read_request() {
            match request.path() {
                "/fast" => drop(connection.reply(&request, &Reply::text("fast"))),
                "/stream" => {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nstart");
                    return connection.wait_for_close();
                }
                _ => return connection.wait_for_close(),
            }
        }
    })
}

/// A search field: each key begins six slow requests and cancels the six before. No request fails, and the connection remains.
#[test]
fn a_browser_may_cancel_the_requests_of_every_key() {
    let origin = origin();
    let server = proxy(&origin, "", "");
    let mut client = http2::connect(&server);
    let mut open: Vec<u32> = Vec::new();
    for _ in 0..60 {
        for stream in std::mem::take(&mut open) {
            client.send(&reset(stream));
        }
        open = (0..6).map(|_| client.ask("/slow")).collect();
        pause(Duration::from_millis(20));
        assert_eq!(client.get("/fast").status, 200);
    }
    assert!(client.goaways.is_empty());
    assert!(client.streams.values().all(|got| got.reset.is_none()), "no request is refused");
}

/// A gRPC channel: 300 streaming calls are cancelled after their first message, while another call of the channel continues.
#[test]
fn cancelled_streaming_calls_do_not_end_another_call() {
    let origin = origin();
    let server = proxy(&origin, "", "proxy_buffering off;");
    let mut client = http2::connect(&server);
    let other = client.ask("/stream");
    for _ in 0..300 {
        let stream = client.ask("/stream");
        client.until(|client| client.streams.get(&stream).is_some_and(|got| got.body.len() == 5));
        client.send(&reset(stream));
    }
    assert_eq!(client.get("/fast").status, 200);
    assert!(client.goaways.is_empty());
    assert_eq!(client.streams[&other].reset, None);
    client.send(&reset(other));
}

/// Requests that are cancelled in the same write do not reach an upstream, apart from the first ones. Their log lines are those of
/// other cancelled requests.
#[test]
fn rapid_resets_reach_an_upstream_sixteen_times() {
    let origin = origin();
    let server = proxy(&origin, "log_format line '$status'; access_log logs/access.log line;", "");
    let mut client = http2::connect(&server);
    for number in 0..400 {
        client.send(&[get(2 * number + 1), reset(2 * number + 1)].concat());
    }
    client.settle();
    let log = server.wait_for_access_log(400, Deadline::default());
    assert_eq!(log, "499\n".repeat(400));
    let count = origin.stats().requests;
    assert!(count <= 40, "{count}");
    // The connection continues, and a further request is delayed by milliseconds.
    let stream = 801;
    let fast = block(&[LINE[0], LINE[1], (":path", "/fast"), LINE[3]]);
    client.frame(HEADERS, WHOLE | END, stream, &fast);
    assert_eq!(client.response(stream).status, 200);
    assert!(client.goaways.is_empty());
}

/// Rapid resets without end, with slow downloads on the same connection: the connection accepts no further streams, and the downloads
/// are complete.
#[test]
fn a_flood_is_slowed_down_then_ended_without_cutting_open_streams() {
    let server = serve_with(&one_server("http2 on;", "root html;"), |builder| {
        builder.file("html/file.bin", Content::new(1, 200_000))
    });
    let flood_of = |client: &mut Http2<TcpStream>, bytes: &dyn Fn(u32) -> Vec<u8>| {
        for number in 10..60_000 {
            if client.try_send(&bytes(2 * number + 1)).is_err() {
                return;
            }
        }
    };
    let mut client = http2::connect_with(&server, &setting(4, 100_000));
    client.opens = false;
    let stream = client.ask("/file.bin");
    let is_at_window =
        |client: &Http2<TcpStream>| client.streams.get(&stream).is_some_and(|got| got.body.len() == 65_535);
    client.until(is_at_window);
    // More than the budget, and less than what ends the connection immediately.
    for _ in 0..2200 {
        client.frame(PING, 0, 0, b"12345678");
    }
    client.until(|client| !client.goaways.is_empty());
    assert_eq!(client.goaways, [(stream, CALM)]);
    client.opens = true;
    let opened =
        [frame(WINDOW, 0, 0, &200_000u32.to_be_bytes()), frame(WINDOW, 0, stream, &200_000u32.to_be_bytes())];
    client.send(&opened.concat());
    assert_eq!(client.response(stream).body.len(), 200_000);
    client.until_closed();
    // Without end the flood ends the connection, whatever streams are open.
    let mut client = http2::connect_with(&server, &setting(4, 0));
    client.ask("/file.bin");
    flood_of(&mut client, &|_| frame(PING, 0, 0, b"12345678"));
    client.until_closed();
    assert!(client.goaways.iter().all(|(_, code)| *code == CALM));
}

/// After the GOAWAY for a flood the server does not receive the bytes that follow.
#[test]
fn a_flood_is_not_received_after_its_goaway() {
    let server = serve_with(&one_server("http2 on;", "return 200 x;"), |builder| builder);
    let mut client = http2::connect(&server);
    let pings = frame(PING, 0, 0, b"12345678").repeat(4096);
    let count = (0..4000).take_while(|_| client.try_send(&pings).is_ok()).count();
    assert!(count * pings.len() < 40 << 20, "{count}");
    client.until_closed();
}

/// The same for a connection whose end its client has announced: only the bytes for which the client has windows are received.
#[test]
fn a_flood_is_not_received_after_a_graceful_end() {
    let server = serve_with(&one_server("http2 on;", "return 200 x;"), |builder| builder);
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/").status, 200);
    client.frame(GO_AWAY, 0, 0, &[0; 8]);
    client.until(|client| !client.goaways.is_empty());
    let pings = frame(PING, 0, 0, b"12345678").repeat(4096);
    let count = (0..4000).take_while(|_| client.try_send(&pings).is_ok()).count();
    assert!(count * pings.len() < 40 << 20, "{count}");
}

/// Short frames of a body that nobody reads any more are frames without effect.
#[test]
fn a_flood_of_data_on_a_closed_stream_ends_its_connection() {
    let server = serve_with(&one_server("http2 on;", "return 200 x;"), |builder| builder);
    let mut client = http2::connect(&server);
    client.opens = false;
    let line = [(":method", "POST"), LINE[1], LINE[2], LINE[3]];
    client.frame(HEADERS, WHOLE, 1, &block(&line));
    client.until(|client| client.streams.get(&1).is_some_and(|got| got.reset == Some(0)));
    let data = frame(DATA, 0, 1, b"x").repeat(100);
    let _ = (0..4000).take_while(|_| client.try_send(&data).is_ok()).count();
    client.until_closed();
    assert!(client.goaways.iter().all(|(_, code)| *code == CALM));
}

/// Requests that the server resets for an error of the client are wasted as those that the client resets (CVE-2025-8671).
#[test]
fn provoked_resets_reach_an_upstream_as_rarely_as_rapid_resets() {
    let updates = [0u32, 0x7fff_ffff].map(|bytes| (WINDOW, bytes.to_be_bytes()));
    for (kind, payload) in updates.into_iter().chain([(DATA, *b"late"), (PRIORITY_OLD, *b"four")]) {
        let origin = origin();
        let server = proxy(&origin, "", "");
        let mut client = http2::connect(&server);
        for number in 0..150 {
            client.send(&[get(2 * number + 1), frame(kind, 0, 2 * number + 1, &payload)].concat());
        }
        client.settle();
        let count = origin.stats().requests;
        assert!(count <= 40, "{kind}: {count}");
        assert!(client.goaways.is_empty());
    }
}

/// RFC 9113 section 5.1.2: a stream that was reset does not count, although the work for it has not ended.
#[test]
fn a_reset_and_a_new_stream_in_one_write_are_served() {
    let origin = origin();
    let server = proxy(&origin, "http2_max_concurrent_streams 4;", "");
    let mut client = http2::connect(&server);
    for _ in 0..20 {
        let open: Vec<u32> = (0..4).map(|_| client.ask("/slow")).collect();
        let next: Vec<u32> = (0..4).map(|_| client.next_stream()).collect();
        let fast = block(&[LINE[0], LINE[1], (":path", "/fast"), LINE[3]]);
        let resets: Vec<u8> = open.into_iter().flat_map(reset).collect();
        let heads: Vec<u8> = next.iter().flat_map(|id| frame(HEADERS, WHOLE | END, *id, &fast)).collect();
        client.send(&[resets, heads].concat());
        for stream in next {
            let got = client.response(stream);
            assert_eq!((got.status, got.reset), (200, None));
        }
    }
}

/// Size in bytes of a download that sockets cannot buffer.
const SIZE: u64 = 32 << 20;

/// Clients that disconnect from a server before another server, over HTTP/2 between them, do not end the downloads of others.
#[test]
fn clients_of_a_proxy_that_disconnect_do_not_end_the_downloads_of_others() {
    let slow = origin();
    let text = "worker_processes 1; events {} http { http2 on; server { listen 127.0.0.1:0; root html;
        location /slow { proxy_pass http://@ORIGIN@; } } }";
    let back =
        Setup::new(text).origin(&slow).builder(BINARY).file("html/file.bin", Content::new(1, SIZE)).start();
    let text = format!(
        "worker_processes 1; events {{}} http {{ upstream back {{ server 127.0.0.1:{}; }} server {{ listen 127.0.0.1:0;
         proxy_http_version 2; proxy_buffering off; location / {{ proxy_pass http://back; }} }} }}",
        back.addr(0).tcp().port()
    );
    let front = Setup::new(&text).start(BINARY);
    let mut downloads: Vec<Client> = (0..4).map(|_| Client::connect(front.addr(0))).collect();
    for client in &mut downloads {
        client.send("GET /file.bin HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for batch in 1..=20 {
        let mut strangers: Vec<Client> = (0..20).map(|_| Client::connect(front.addr(0))).collect();
        for client in &mut strangers {
            client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        slow.wait_for("the requests", |stats| stats.requests >= 20 * batch);
    }
    for client in &mut downloads {
        let response = client.response();
        assert_eq!((response.status, response.body.len()), (200, SIZE as usize));
    }
}

/// A body in a request with `Content-Length: 0` resets its stream before the request is processed.
#[test]
fn a_body_that_must_be_empty_does_not_reach_the_upstream() {
    let origin = origin();
    let server = proxy(&origin, "", "");
    let mut client = http2::connect(&server);
    let line = [(":method", "POST"), LINE[1], (":path", "/fast"), LINE[3], ("content-length", "0")];
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE, stream, &block(&line));
    client.settle();
    client.frame(DATA, END, stream, b"abc");
    assert_eq!(client.response(stream).reset, Some(1));
    assert_eq!(origin.stats().requests, 0);
    // The end may follow in an empty frame.
    let stream = client.next_stream();
    client.send(&[frame(HEADERS, WHOLE, stream, &block(&line)), frame(DATA, END, stream, b"")].concat());
    assert_eq!(client.response(stream).status, 200);
}

/// Clients that begin with PING or with an acknowledgement of SETTINGS are served, as by nginx.
#[test]
fn a_client_whose_first_frame_is_a_ping_or_an_acknowledgement_is_served() {
    let server = serve_with(&one_server("http2 on;", "return 200 x;"), |builder| builder);
    for first in [frame(PING, 0, 0, b"12345678"), frame(SETTINGS, END, 0, &[])] {
        let stream = TcpStream::connect(server.addr(0).tcp()).expect("a listener");
        stream.set_read_timeout(Some(testkit::wait::DEFAULT_LIMIT)).expect("a socket");
        let mut client = Http2::over_first(stream, &first);
        assert_eq!(client.get("/").status, 200);
    }
}
