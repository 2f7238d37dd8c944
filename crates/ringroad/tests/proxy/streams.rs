//! Bodies that are sent in pieces, with pauses chosen by the origin: the client has each piece before the origin may
//! send the next one, through every filter and protocol.
//!
//! No test measures time. If each piece waited in the kernel for 200 ms (`MSG_MORE`) or 40 ms (delayed
//! acknowledgements), this many pieces would exceed a test's timeout.

use std::io::Read;
use std::time::Duration;

use crate::common::BINARY;
use testkit::client::request_bytes;
use testkit::origin::{Connection, Origin};
use testkit::{Client, Gate, Server, Setup};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { @EVENTS@ }
http {
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=z:1m;
  proxy_cache_lock on;
  proxy_http_version 1.1;
  gzip on; gzip_types *; gzip_min_length 0;
  brotli on; brotli_types *; brotli_min_length 0;
  zstd on; zstd_types *; zstd_min_length 0;
  server {
    listen 127.0.0.1:0;
    root html;
    location / { proxy_pass http://@ORIGIN@; }
    location /direct/ { proxy_pass http://@ORIGIN@; proxy_buffering off; }
    location /cached/ { proxy_pass http://@ORIGIN@; proxy_cache z; proxy_cache_valid 1h; }
    location /gzip/ { proxy_pass http://@ORIGIN@; }
    location /gzip/direct/ { proxy_pass http://@ORIGIN@; proxy_buffering off; }
    location /gzip/cached/ { proxy_pass http://@ORIGIN@; proxy_cache z; proxy_cache_valid 1h; }
    location /br/ { proxy_pass http://@ORIGIN@; brotli_comp_level 2; }
    location /br/slow/ { proxy_pass http://@ORIGIN@; brotli_comp_level 7; }
    location /zstd/ { proxy_pass http://@ORIGIN@; }
    location /zstd/slow/ { proxy_pass http://@ORIGIN@; zstd_comp_level 9; }
    location /sub/ { proxy_pass http://@ORIGIN@; sub_filter_types *; sub_filter old new; sub_filter_once off; }
    location = /page { ssi on; ssi_types *; }
  }
}
";

/// Number of pieces of a body.
const PIECES: usize = 200;

/// Timeout of a test: the pieces alone would take longer if each waited in the kernel.
const LIMIT: Duration = Duration::from_secs(30);

fn piece(number: usize) -> String {
    format!("piece {number:04} of a body that pauses\n")
}

/// Begins a response whose body has this framing: `length`, `close`, or else chunked.
fn begin(connection: &mut Connection, framing: &str) -> bool {
    let length = PIECES * piece(0).len();
    let framing = match framing {
        "length" => format!("Content-Length: {length}\r\n"),
        "close" => "Connection: close\r\n".to_owned(),
        _ => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n"))
}

/// Starts an origin that sends a piece each time that the gate lets it through.
fn origin(gate: &Gate) -> Origin {
    let gate = gate.clone();
    Origin::raw(move |connection| {
        while let Some(request) = connection.read_request() {
            let framing = request.header("x-framing").unwrap_or_default();
            let chunked = framing.is_empty();
            if !begin(connection, &framing) {
                return;
            }
            for number in 0..PIECES {
                let text = piece(number);
                let (before, after) = match chunked {
                    true => (format!("{:x}\r\n", text.len()), "\r\n"),
                    false => (String::new(), ""),
                };
                if !connection.pass(&gate) || !connection.send(format!("{before}{text}{after}")) {
                    return;
                }
            }
            if chunked {
                connection.send("0\r\n\r\n");
            }
            if framing == "close" {
                return;
            }
        }
    })
}

/// Starts a server for each network engine that this machine supports.
fn servers(origin: &Origin) -> Vec<(&'static str, Setup, Server)> {
    let mut servers = Vec::new();
    for net in testkit::engines::NETS {
        let setup = Setup::new(CONF).origin(origin).value("EVENTS", &format!("use {net};"));
        let page = "before<!--#include virtual=\"/part\" -->";
        match setup.builder(BINARY).text("html/page", page).try_start() {
            Ok(server) => servers.push((net, setup, server)),
            Err(why) if net == "io_uring" => testkit::engines::report_skipped(net, "io_uring", &why),
            Err(why) => panic!("{why}"),
        }
    }
    servers
}

/// Requests a target.
fn send_request(server: &Server, target: &str, fields: &[(&str, &str)]) -> Client {
    let mut client = Client::connect(server.addr(0));
    client.deadline(LIMIT);
    client.send(request_bytes("GET", target, fields));
    client
}

/// Reads the expected start of a body.
fn expect(body: &mut dyn Read, text: &str, what: &str) {
    let mut bytes = vec![0; text.len()];
    body.read_exact(&mut bytes).unwrap_or_else(|error| panic!("{what}: {text:?}: {error}"));
    assert_eq!(String::from_utf8_lossy(&bytes), text, "{what}");
}

/// Reads all pieces; lets the origin send each one after the preceding one was received.
fn expect_pieces(body: &mut dyn Read, gate: &Gate, what: &str) {
    gate.let_through(1);
    expect(body, &piece(0), what);
    expect_more_pieces(body, gate, what);
}

/// Like [`expect_pieces`], after the first piece.
fn expect_more_pieces(body: &mut dyn Read, gate: &Gate, what: &str) {
    for number in 1..PIECES {
        gate.let_through(1);
        expect(body, &piece(number), what);
    }
    expect_end(body, what);
}

fn expect_end(body: &mut dyn Read, what: &str) {
    let mut rest = Vec::new();
    body.read_to_end(&mut rest).unwrap_or_else(|error| panic!("{what}: the end: {error}"));
    assert!(rest.is_empty(), "{what}: {rest:?} behind the last piece");
}

#[test]
fn a_client_gets_each_piece_before_the_next_is_sent() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        for target in ["/", "/direct/", "/cached/", "/sub/"] {
            let what = format!("{target} on {net}");
            let mut client = send_request(&server, target, &[]);
            // The header section too is received before the first piece.
            let head = client.head();
            assert_eq!(head.status, 200, "{what}");
            expect_pieces(&mut client.body(&head), &gate, &what);
        }
        testkit::engines::report_ran(net, "sync");
    }
}

#[test]
fn a_body_of_known_length_is_passed_on_piece_by_piece() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        for target in ["/", "/direct/", "/cached/known", "/sub/"] {
            let what = format!("{target} on {net}");
            let mut client = send_request(&server, target, &[("X-Framing", "length")]);
            // A header section with a length may wait for the first piece.
            gate.let_through(1);
            let head = client.head();
            let mut body = client.body(&head);
            expect(&mut body, &piece(0), &what);
            expect_more_pieces(&mut body, &gate, &what);
        }
    }
}

#[test]
fn an_http_1_0_client_gets_each_piece_before_the_next_is_sent() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        for target in ["/", "/direct/", "/cached/", "/sub/"] {
            for framing in ["", "close"] {
                let what = format!("{target} on {net}, {framing:?}");
                let mut client = Client::connect(server.addr(0));
                client.deadline(LIMIT);
                client.send(format!("GET {target}{framing} HTTP/1.0\r\nX-Framing: {framing}\r\n\r\n"));
                let head = client.head();
                expect_pieces(&mut client.body(&head), &gate, &what);
            }
        }
    }
}

const POSTPONED: &str = "worker_processes 1; error_log logs/error.log notice;
events { }
http {
  proxy_temp_path @DATA@;
  server {
    listen 127.0.0.1:0;
    root @DATA@/html; ssi on; ssi_types *;
    location = /now { postpone_output 0; }
    location = /later { postpone_output 1000; }
    location = /part { proxy_pass http://@ORIGIN@; }
    location = /ping { return 204; }
  }
}
";

/// `postpone_output`, as in nginx: a few bytes of a page wait for the next part.
#[test]
fn postponed_bytes_wait_for_the_next_part() {
    let gate = Gate::new();
    let origin = Origin::raw({
        let gate = gate.clone();
        move |connection| {
            while connection.read_request().is_some() && connection.pass(&gate) {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npart");
            }
        }
    });
    let setup = Setup::new(POSTPONED).origin(&origin);
    testkit::create_dir_all(setup.data().join("html")).expect("the directory is writable");
    for name in ["now", "later"] {
        let page = "before <!--#include virtual=\"/part\" --> behind";
        testkit::write(setup.data().join("html").join(name), page).expect("the directory is writable");
    }
    let servers = [Some(setup.start(BINARY)), setup.start_nginx()];
    for server in servers.iter().flatten() {
        let mut client = send_request(server, "/now", &[]);
        let head = client.head();
        let mut body = client.body(&head);
        expect(&mut body, "before ", "/now");
        gate.let_through(1);
        expect(&mut body, "part behind", "/now");
        expect_end(&mut body, "/now");
        let before = gate.arrived();
        let mut client = send_request(server, "/later", &[]);
        gate.wait_reached_by(before + 1);
        client.expect_silence(Duration::from_millis(200));
        gate.let_through(1);
        assert_eq!(client.response().text(), "before part behind");
    }
}

/// Requests that have joined a fetch get each piece at the same time as the first request.
#[test]
fn followers_of_a_fetch_get_each_piece_before_the_next_is_sent() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        let mut first = send_request(&server, "/cached/shared", &[]);
        let first_head = first.head();
        let mut second = send_request(&server, "/cached/shared", &[]);
        let second_head = second.head();
        let (mut one, mut other) = (first.body(&first_head), second.body(&second_head));
        for number in 0..PIECES {
            gate.let_through(1);
            expect(&mut one, &piece(number), net);
            expect(&mut other, &piece(number), net);
        }
        expect_end(&mut one, net);
        expect_end(&mut other, net);
    }
}

/// A page begins before its included part has begun.
#[test]
fn an_included_stream_is_passed_on_piece_by_piece() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        let mut client = send_request(&server, "/page", &[]);
        let head = client.head();
        let mut body = client.body(&head);
        expect(&mut body, "before", net);
        expect_pieces(&mut body, &gate, net);
    }
}

/// When the origin pauses, the encoder is flushed: the received bytes can be decoded.
#[test]
fn a_compressed_stream_is_flushed_piece_by_piece() {
    let gate = Gate::new();
    let origin = origin(&gate);
    for (net, _setup, server) in servers(&origin) {
        for target in ["/gzip/", "/gzip/direct/", "/gzip/cached/"] {
            let what = format!("{target} on {net}");
            let mut client = send_request(&server, target, &[("Accept-Encoding", "gzip")]);
            let head = client.head();
            assert_eq!(head.field("Content-Encoding"), Some("gzip"), "{what}");
            // A decoder reads its header when it is created.
            gate.let_through(1);
            let mut body = flate2::read::GzDecoder::new(client.body(&head));
            expect(&mut body, &piece(0), &what);
            expect_more_pieces(&mut body, &gate, &what);
        }
        // The encoders' own tests verify that these bytes can be decoded.
        for (coding, target) in
            [("br", "/br/"), ("br", "/br/slow/"), ("zstd", "/zstd/"), ("zstd", "/zstd/slow/")]
        {
            let what = format!("{target} on {net}");
            let mut client = send_request(&server, target, &[("Accept-Encoding", coding)]);
            let head = client.head();
            assert_eq!(head.field("Content-Encoding"), Some(coding), "{what}");
            let mut body = client.body(&head);
            for number in 0..PIECES {
                gate.let_through(1);
                let read = body.read(&mut [0; 4096]);
                assert!(matches!(read, Ok(1..)), "{what}: piece {number}: {read:?}");
            }
            std::io::copy(&mut body, &mut std::io::sink()).expect("it ends");
        }
    }
}

/// Starts an origin that closes its connection in the middle of a chunked body.
fn breaking_origin(pieces: usize) -> Origin {
    Origin::raw(move |connection| {
        if connection.read_request().is_some() {
            let mut text =
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_owned();
            for number in 0..pieces {
                let piece = piece(number);
                text.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
            }
            connection.send(text);
        }
    })
}

/// The client receives the bytes before the truncation, and not the end of the body.
#[test]
fn bytes_before_the_truncation_of_a_body_are_sent() {
    let origin = breaking_origin(3);
    let expected: String = (0..3).map(piece).collect();
    for (net, _setup, server) in servers(&origin) {
        for (target, before) in
            [("/", ""), ("/direct/", ""), ("/sub/", ""), ("/cached/", ""), ("/page", "before")]
        {
            let what = format!("{target} on {net}");
            let mut client = send_request(&server, target, &[]);
            let head = client.head();
            assert_eq!(head.status, 200, "{what}");
            let mut body = client.body(&head);
            expect(&mut body, &format!("{before}{expected}"), &what);
            assert!(body.read_to_end(&mut Vec::new()).is_err(), "{what}: the truncation is not visible");
        }
        let mut client = send_request(&server, "/gzip/", &[("Accept-Encoding", "gzip")]);
        let head = client.head();
        let mut body = flate2::read::GzDecoder::new(client.body(&head));
        expect(&mut body, &expected, net);
        assert!(body.read_to_end(&mut Vec::new()).is_err(), "{net}: the truncation is not visible");
    }
}

/// An HTTP/1.0 client regards the end of the connection as the end of the body, so it gets a reset; the bytes before
/// the reset are not lost, even if the client reads slowly.
#[test]
fn an_http_1_0_client_gets_the_bytes_before_the_reset() {
    const MANY: usize = 20_000;
    let origin = breaking_origin(MANY);
    let expected: String = (0..MANY).map(piece).collect();
    for (net, _setup, server) in servers(&origin) {
        for target in ["/", "/direct/", "/sub/"] {
            let what = format!("{target} on {net}");
            let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
            client.send(format!("GET {target} HTTP/1.0\r\n\r\n"));
            assert_eq!(client.head().status, 200, "{what}");
            let mut bytes = Vec::new();
            let end = client.rest().read_to_end(&mut bytes);
            assert!(bytes == expected.as_bytes(), "{what}: {} of {} bytes", bytes.len(), expected.len());
            assert_eq!(end.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset), "{what}");
        }
    }
}
