//! Hostile HTTP/2 clients, tested with the binary: a test reaches each limit of docs/http2.md, the connection or the
//! stream ends with the limit's error code, and other clients are served. The rules themselves are tested in
//! `http::h2`.

use std::net::TcpStream;

use crate::common::http2::{
    self, CONTINUATION, DATA, END, HEADERS, Http2, PING, RESET, SETTINGS, WHOLE, WINDOW, block, frame,
    setting,
};
use crate::common::{BINARY, one_server, serve, serve_with};
use testkit::files::Content;
use testkit::origin::{Origin, Reply};
use testkit::{Server, Setup};

/// ENHANCE_YOUR_CALM
const CALM: u32 = 11;

const LINE: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")];

fn start() -> Server {
    serve(&one_server("http2 on;", "location / { return 200 x; }"))
}

/// Sends until the server reads no more, and expects GOAWAY with this code. Other clients must be served then.
#[track_caller]
fn ends_with(
    server: &Server,
    code: u32,
    client: &mut Http2<TcpStream>,
    mut bytes: impl FnMut(u32) -> Vec<u8>,
) {
    for number in 0..20_000 {
        if client.try_send(&bytes(number)).is_err() {
            break;
        }
    }
    client.until_closed();
    assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(code));
    assert_eq!(http2::connect(server).get("/").status, 200);
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE | END, stream, &block(&LINE))
}

/// As in nginx, `keepalive_timeout 0` of the server ends a connection, but the settings of a location do not.
#[test]
fn keepalive_settings_of_a_location_do_not_end_the_connection() {
    let once = "keepalive_timeout 0; keepalive_requests 1; keepalive_time 1ms;";
    let locations = format!("location / {{ return 200 x; }} location /once {{ {once} return 200 x; }}");
    let server = serve(&one_server("http2 on;", &locations));
    let mut client = http2::connect(&server);
    for target in ["/once", "/once", "/"] {
        assert_eq!(client.get(target).status, 200);
    }
    assert!(client.goaways.is_empty());
    let server = serve(&one_server("http2 on;", "keepalive_timeout 0; return 200 x;"));
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/").status, 200);
    client.until_closed();
    assert_eq!(client.goaways, [(0x7fff_ffff, 0), (1, 0)]);
}

/// A body that arrives too slowly, and `return 444`, reset only their stream, with the code of nginx.
#[test]
fn streams_without_a_response_are_reset_with_the_code_of_nginx() {
    let locations = "location / { proxy_pass http://127.0.0.1:1; }
        location /closed { return 444; } location /x { return 200 x; }";
    let server = serve(&one_server("http2 on; client_body_timeout 200ms;", locations));
    let mut client = http2::connect(&server);
    let closed = block(&[LINE[0], LINE[1], (":path", "/closed"), LINE[3]]);
    for request in [frame(HEADERS, WHOLE, 1, &block(&LINE)), frame(HEADERS, WHOLE | END, 3, &closed)] {
        client.send(&request);
    }
    for stream in [1, 3] {
        let got = client.response(stream);
        assert_eq!((got.status, got.reset), (0, Some(1)), "{stream}");
    }
    client.frame(HEADERS, WHOLE | END, 5, &block(&[LINE[0], LINE[1], (":path", "/x"), LINE[3]]));
    assert_eq!(client.response(5).status, 200);
}

/// Streams that are opened and immediately reset, with an upstream that never responds: each request remains until its
/// cancellation is complete, so the upstream gets no more requests than the limit of concurrent streams.
#[test]
fn rapid_resets_are_limited() {
    let origin = Origin::raw(|connection| {
        connection.read_request();
        connection.wait_for_close();
    });
    let text = "worker_processes 1; events {} http { http2 on; server { listen 127.0.0.1:0;
        location / { return 200 x; } location /slow { proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let slow = block(&[LINE[0], LINE[1], (":path", "/slow"), LINE[3]]);
    ends_with(&server, CALM, &mut http2::connect(&server), |number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, WHOLE | END, stream, &slow), frame(RESET, 0, stream, &8u32.to_be_bytes())].concat()
    });
    assert!(origin.stats().requests <= 40, "{}", origin.stats().requests);
    // Without an upstream: responses are complete before the reset is read, so no stream remains to be reset.
    let mut client = http2::connect(&server);
    for number in 0..900 {
        let stream = 2 * number + 1;
        client.send(&[get(stream), frame(RESET, 0, stream, &8u32.to_be_bytes())].concat());
    }
    client.settle();
    assert!(client.goaways.is_empty());
}

/// Ten thousand requests whose bodies never arrive: the permitted number is open, and the others are refused until they
/// count as a flood.
#[test]
fn ten_thousand_incomplete_requests_are_limited() {
    let text = "client_body_early_read 1; location / { return 200 x; }";
    let server = serve(&one_server("http2 on;", text));
    let mut client = http2::connect(&server);
    for number in 0..10_000u32 {
        if client.try_send(&frame(HEADERS, WHOLE, 2 * number + 1, &block(&LINE))).is_err() {
            break;
        }
    }
    client.until_closed();
    let refused = client.streams.values().filter(|got| got.reset == Some(7)).count();
    // Time permits further streams on a slow machine.
    assert!((129..1000).contains(&refused), "{refused}");
    assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(CALM));
    assert_eq!(http2::connect(&server).get("/").status, 200);
}

/// Requests whose bodies were received and consumed, as during long responses: their windows are available to others.
#[test]
fn windows_of_consumed_request_bodies_are_available_again() {
    let origin = Origin::raw(|connection| {
        connection.read_request();
        connection.wait_for_close();
    });
    let text = "worker_processes 1; events { worker_connections 1024; } http { http2 on; http2_body_preread_size 1m;
        server { listen 127.0.0.1:0; location / { return 200 x; } location /slow { proxy_pass http://@ORIGIN@; }
        location /counters { cache_counters; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let mut clients = [http2::connect(&server), http2::connect(&server), http2::connect(&server)];
    for (index, client) in clients.iter_mut().enumerate() {
        for _ in 0..100 {
            let stream = client.begin("POST", "/slow", &[], false);
            client.body(stream, b"x");
        }
        client.settle();
        // The upstream has each body before the next connection opens the same number.
        let count = 100 * (index as u64 + 1);
        let asked = || (origin.stats().requests >= count).then_some(());
        testkit::wait::until("the requests", testkit::Deadline::default(), asked)
            .expect("they are passed on");
        assert!(client.streams.values().all(|got| got.reset.is_none()));
    }
    let page = http2::connect(&server).get("/counters").text();
    assert!(page.contains("ringroad_http2_limits_total{limit=\"bodies\"} 0\n"), "{page}");
}

#[test]
fn floods_of_frames_without_effect_are_limited() {
    let server = start();
    for bytes in [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, &setting(4, 1)),
        frame(SETTINGS, 0, 0, &[]),
        frame(2, 0, 1, &[0; 5]),
        frame(0xfe, 0, 0, b"unknown"),
        frame(http2::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1]),
        frame(WINDOW, 0, 0, &1u32.to_be_bytes()),
    ] {
        ends_with(&server, CALM, &mut http2::connect(&server), |_| bytes.clone());
    }
    let mut client = http2::connect(&server);
    client.begin("POST", "/", &[], false);
    ends_with(&server, CALM, &mut client, |_| frame(DATA, 0, 1, &[]));
}

#[test]
fn floods_of_header_fragments_are_limited_and_counted() {
    let server = serve(&one_server(
        "http2 on;",
        "location / { return 200 x; } location /counters { cache_counters; }",
    ));
    for size in [0, 1, 16_384] {
        let mut client = http2::connect(&server);
        client.frame(HEADERS, END, 1, &block(&LINE));
        ends_with(&server, CALM, &mut client, |_| frame(CONTINUATION, 0, 1, &vec![0; size]));
    }
    ends_with(&server, CALM, &mut http2::connect(&server), |_| frame(PING, 0, 0, b"12345678"));
    let page = http2::connect(&server).get("/counters").text();
    for (limit, count) in
        [("streams", 0), ("resets", 0), ("frames", 1), ("header_block", 3), ("output", 0), ("bodies", 0)]
    {
        let line = format!("ringroad_http2_limits_total{{limit=\"{limit}\"}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

/// A table entry of 4 KiB, and bytes that each reference it: the head is refused for its decoded size, and the
/// connection continues.
#[test]
fn an_hpack_bomb_is_refused_by_its_decoded_size() {
    let server = start();
    let mut bomb = block(&LINE);
    bomb.extend([0x40, 1, b'a', 0x7f, 0x81, 0x1e]);
    bomb.extend([b'x'; 4000]);
    bomb.extend([0xbe; 12_000]);
    let mut client = http2::connect(&server);
    for _ in 0..20 {
        let stream = client.next_stream();
        client.frame(HEADERS, WHOLE | END, stream, &bomb);
        assert_eq!(client.response(stream).status, 431);
    }
    assert_eq!(client.get("/").status, 200);
    let many = [&LINE[..], &[("a", "")].repeat(1500)].concat();
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE | END, stream, &block(&many));
    assert_eq!(client.response(stream).status, 431, "max_headers");
}

/// A client that requests a body byte by byte, with window updates of 1.
#[test]
fn a_body_requested_byte_by_byte_is_served() {
    let server =
        serve_with(&one_server("http2 on;", "root html; location = / { return 200 x; }"), |builder| {
            builder.file("html/file.bin", Content::new(1, 100_000))
        });
    let mut client = http2::connect_with(&server, &setting(4, 0));
    client.opens = false;
    let stream = client.ask("/file.bin");
    ends_with(&server, CALM, &mut client, |_| frame(WINDOW, 0, stream, &1u32.to_be_bytes()));
}

/// Returns the resident memory of the worker in KiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.worker()));
    let status = status.expect("a worker");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a size").to_owned();
    line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("a number")
}

/// Neither the frames of a long response nor a long field is retained by an idle connection.
#[test]
fn idle_connections_retain_little_memory() {
    let http = "http2 on; large_client_header_buffers 4 64k;";
    let server = serve_with(&one_server(http, "root html; location = /x { return 200 x; }"), |builder| {
        builder.file("html/file.bin", Content::new(1, 1_000_000))
    });
    // The Huffman code of `0` has five zero bits: 40 000 bytes are a value of 64 000 bytes.
    let mut head = block(&[LINE[0], LINE[1], (":path", "/x"), LINE[3]]);
    head.extend([0, 1, b'a', 0xff, 0xc1, 0xb7, 2]);
    head.extend([0; 40_000]);
    let idle = || {
        let mut client = http2::connect_with(&server, &setting(4, 1 << 30));
        client.send(&frame(WINDOW, 0, 0, &(1u32 << 30).to_be_bytes()));
        assert_eq!(client.get("/file.bin").body.len(), 1_000_000);
        let stream = client.next_stream();
        let parts: Vec<&[u8]> = head.chunks(16_000).collect();
        client.frame(HEADERS, END, stream, parts[0]);
        client.frame(CONTINUATION, 0, stream, parts[1]);
        client.frame(CONTINUATION, WHOLE, stream, parts[2]);
        assert_eq!(client.response(stream).status, 200);
        client.settle();
        client
    };
    drop((idle(), idle()));
    let before = resident(&server);
    let clients: Vec<_> = (0..100).map(|_| idle()).collect();
    let each = resident(&server).saturating_sub(before) / clients.len() as u64;
    assert!(each < 40, "{each} KiB");
}

/// Clients that send requests without reading: the memory for each is bounded, and other clients are served.
#[test]
fn memory_for_clients_that_do_not_read_is_bounded() {
    let server =
        serve_with(&one_server("http2 on;", "root html; location = / { return 200 x; }"), |builder| {
            builder.file("html/file.bin", Content::new(1, 1_000_000))
        });
    let before = resident(&server);
    let path = block(&[LINE[0], LINE[1], (":path", "/file.bin"), LINE[3]]);
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = http2::connect_with(&server, &setting(4, (1 << 31) - 1));
        client.send(&frame(WINDOW, 0, 0, &((1u32 << 31) - 1 - 65_535).to_be_bytes()));
        for number in 0..128 {
            client.send(&frame(HEADERS, WHOLE | END, 2 * number + 1, &path));
        }
        clients.push(client);
    }
    for _ in 0..20 {
        assert_eq!(http2::connect(&server).get("/").status, 200);
    }
    let grown = resident(&server).saturating_sub(before);
    // For 8 connections with 128 responses of 1 MB each, readahead is a buffer of 16 to 124 KiB per stream.
    assert!(grown < 80 << 10, "{grown} KiB");
    drop(clients);
}

/// Windows that overflow, and bytes beyond the server's windows.
#[test]
fn flow_control_violations_are_refused() {
    let server = serve(&one_server("http2 on; http2_body_preread_size 100;", "location / { return 200 x; }"));
    let mut client = http2::connect(&server);
    client.settle();
    let stream = client.begin("POST", "/", &[], false);
    client.response(stream);
    // The body was never read: the response is complete, and late DATA is discarded.
    client.frame(DATA, 0, stream, &[0; 50]);
    client.settle();
    assert!(client.goaways.is_empty());
    let text = "client_body_early_read 1; client_body_buffer_size 1k; location / { return 200 x; }";
    let server = serve(&one_server("http2 on; http2_body_preread_size 100;", text));
    let mut client = http2::connect(&server);
    client.settle();
    let stream = client.begin("POST", "/", &[], false);
    let whole = client.post("/", &[], &[b'x'; 5000]);
    assert_eq!(whole.status, 200);
    client.frame(WINDOW, 0, stream, &0x7fff_ffff_u32.to_be_bytes());
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.reset == Some(3)));
    assert_eq!(client.get("/").status, 200);
}

/// With `http2_body_preread_size 0`, the bytes of a body are received once the request is processed, for each way of reading a
/// body. The bytes of a tunnel are received too.
#[test]
fn bodies_and_tunnels_are_received_without_a_preread_window() {
    let origin = Origin::start(|request| match request.path() {
        "/ws" => Reply::echo("websocket"),
        _ => Reply::text(request.body.len().to_string()),
    });
    let text = "worker_processes 1; events {} http { http2 on; http2_body_preread_size 0; server { listen 127.0.0.1:0;
        location / { proxy_pass http://@ORIGIN@; }
        location /pieces { proxy_request_buffering off; proxy_pass http://@ORIGIN@; }
        location /ws { proxy_pass http://@ORIGIN@; proxy_set_header Upgrade $http_upgrade;
                       proxy_set_header Connection upgrade; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let mut client = http2::connect(&server);
    client.settle();
    for path in ["/whole", "/pieces"] {
        assert_eq!(client.post(path, &[], &[7; 300_000]).text(), "300000", "{path}");
        client = http2::connect(&server);
        client.settle();
    }
    let stream = client.next_stream();
    let connect = [(":method", "CONNECT"), (":protocol", "websocket"), (":path", "/ws"), LINE[1], LINE[3]];
    client.frame(HEADERS, WHOLE, stream, &block(&connect));
    client.body(stream, &[7; 300_000]);
    let got = client.response(stream);
    assert_eq!((got.status, got.body.len(), got.reset), (200, 300_000, None));
}

/// Before the first request, and in the middle of a header block. No other frame may interrupt the block, so the settings are
/// acknowledged before.
#[test]
fn a_silent_client_times_out() {
    let server = serve(&one_server("http2 on; client_header_timeout 200ms;", "location / { return 200 x; }"));
    for is_in_block in [false, true] {
        let mut client = http2::connect(&server);
        client.settle();
        if is_in_block {
            client.frame(HEADERS, END, 1, &[0x82]);
        }
        client.until_closed();
        assert_eq!(client.goaways, [(0, 0)]);
    }
}

/// Clients take turns: a check of another client waits only for the checks that have begun, one for each thread.
#[test]
fn passwords_of_a_greedy_client_delay_others_by_one_check() {
    let conf = one_server(
        "http2 on; set_real_ip_from 127.0.0.1; auth_basic a; auth_basic_user_file users;",
        "location / { try_files /none =200; }",
    );
    let users = "a:$6$rounds=2000$saltsalt$pIMXjwJFgTam6pM3yCqN/9Pte9YqhykbEIBcmpjbhKFejnVHp5XxciDrX8odS2jQxLtj9ho0BrqVWR54ocRaY/\n";
    let server = serve_with(&conf, |builder| builder.text("conf/users", users));
    let ask = |client: &mut Http2<TcpStream>, from: &str| {
        let fields = [("authorization", "Basic YTp3cm9uZw=="), ("x-real-ip", from)];
        client.begin("GET", "/", &fields, true)
    };
    let mut greedy: Vec<_> = (0..4).map(|_| http2::connect(&server)).collect();
    for client in &mut greedy {
        (0..100).for_each(|_| _ = ask(client, "192.0.2.2"));
        client.settle();
    }
    let mut checked = || {
        greedy.iter_mut().for_each(Http2::settle);
        greedy.iter().flat_map(|client| client.streams.values()).filter(|got| got.status == 401).count()
    };
    let before = checked();
    let mut other = http2::connect(&server);
    let stream = ask(&mut other, "192.0.2.1");
    assert_eq!(other.response(stream).status, 401);
    let after = checked();
    assert!(after < 200, "{before} of 400 checks had ended before, {after} after");
}
