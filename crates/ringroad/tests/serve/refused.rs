//! Refused requests: always with 400 if two parsers could interpret them differently, and the connection is closed, so
//! that no bytes after them are parsed as a request.
//!
//! nginx refuses most of these requests. The run against nginx skips the requests that nginx tolerates. Paths that would leave
//! the root are in `serve/paths.rs`.

use crate::common::http2::{self, END, HEADERS, WHOLE, block};
use crate::common::{client, one_server, ours_only, refused, serve};
use testkit::wait::Deadline;
use testkit::{Client, Server};

/// The request that would be served if the bytes after a refused head were parsed as a request.
const SECOND: &str = "GET /second HTTP/1.1\r\nHost: a\r\n\r\n";

fn site() -> Server {
    serve(&one_server("", "location / { return 200 first; } location /second { return 200 second; }"))
}

/// Returns a request with these lines after `Host`, followed by another request.
fn with(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{SECOND}")
}

/// Sends each request; expects 400, the end of the connection, and no response to the bytes after it.
#[track_caller]
fn all_400(server: &Server, requests: &[String]) {
    for request in requests {
        assert_eq!(refused(server, request), 400, "{request:?}");
    }
    assert_eq!(client(server).get("/").text(), "first", "the server goes on");
}

#[test]
fn control_bytes_in_the_header_section_are_refused() {
    let server = site();
    all_400(&server, &[with("A: x\0y\r\n"), with("\0A: x\r\n"), with("A\0: x\r\n"), with("A\x01B: x\r\n")]);
    all_400(&server, &[format!("GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n{SECOND}")]);
    all_400(&server, &[format!("G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n{SECOND}")]);
    if ours_only("nginx accepts control bytes in values") {
        let bytes = (1..0x20_u8).chain([0x7f]).filter(|byte| !b"\t\r\n".contains(byte));
        all_400(&server, &bytes.map(|byte| with(&format!("A: x{}y\r\n", byte as char))).collect::<Vec<_>>());
    }
    let mut client = client(&server);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nA: tab\tand \u{e4}\r\n\r\n");
    assert_eq!(client.response().text(), "first", "a tab and bytes above 127 are text");
}

#[test]
fn the_error_log_names_the_refused_part_of_the_header_section() {
    let server = serve(&one_server("error_log logs/error.log info;", "location / { return 200; }"));
    for (head, message) in [
        ("GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", "invalid request while reading client request line"),
        ("GET / HTTP/1.1\r\n\r\n", "without \"Host\" header while reading client request headers"),
    ] {
        assert_eq!(refused(&server, head), 400, "{head:?}");
        server.wait_for_log(message, Deadline::default());
    }
}

/// Request objects are reused: an earlier request on another connection must not affect this response.
#[test]
fn a_refused_request_gets_an_error_page_after_a_head_request() {
    let server = site();
    for _ in 0..2 {
        assert_eq!(client(&server).request("HEAD", "/", &[("Connection", "close")]).status, 200);
        let mut client = client(&server);
        client.send("GET / HTTP/1.1\r\n\r\n");
        let response = client.response();
        assert_eq!(response.status, 400);
        assert!(response.text().contains("<h1>400 Bad Request</h1>"), "{}", response.text());
    }
}

#[test]
fn a_bare_cr_is_refused() {
    let server = site();
    all_400(
        &server,
        &[format!("GET / HTTP/1.1\rHost: a\r\n\r\n{SECOND}"), with("A\rB: x\r\n"), with("\rA: x\r\n")],
    );
    if ours_only("nginx treats a bare CR in a value as white space") {
        let first_line = format!("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n{SECOND}");
        all_400(&server, &[with("A: x\rB: y\r\n"), with("A: x\r\r\n"), with("A: \rB: y\r\n"), first_line]);
    }
}

#[test]
fn field_names_with_invalid_ends_are_refused() {
    let server = site();
    let first = |line: &str| format!("GET / HTTP/1.1\r\n{line}\r\nHost: a\r\n\r\n{SECOND}");
    all_400(
        &server,
        &[first(" A: x"), first("\tA: x"), with("A : x\r\n"), with("A\t: x\r\n"), with("A B: x\r\n")],
    );
    all_400(&server, &[with("Content-Length : 5\r\n"), with("Transfer-Encoding : chunked\r\n")]);
    all_400(&server, &[first(": x"), with(": x\r\n")]);
}

#[test]
fn folded_lines_are_refused() {
    let server = site();
    all_400(&server, &[with("A: x\r\n y\r\n"), with("A: x\r\n\ty\r\n"), with("A: x\n y\r\n")]);
    all_400(&server, &[with("Content-Length: 5\r\n Transfer-Encoding: chunked\r\n")]);
}

#[test]
fn conflicting_lengths_are_refused() {
    let server = site();
    all_400(
        &server,
        &[
            with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
            with("Content-Length: 5\r\nContent-Length: 6\r\n"),
            with("Content-Length: 5\r\ncontent-length: 5\r\n"),
            with("Content-Length: 5, 5\r\n"),
            with("Content-Length: +5\r\n"),
            with("Content-Length: -1\r\n"),
            with("Content-Length: 0x5\r\n"),
            with("Content-Length: 5 6\r\n"),
            with("Content-Length: 99999999999999999999\r\n"),
            with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            format!("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SECOND}"),
        ],
    );
    all_400(&server, &[with("Content-Length: \r\n")]);
    for coding in ["gzip", "identity", "chunked, chunked", "gzip, chunked", "xchunked", "chunked;q=1"] {
        let status = refused(&server, with(&format!("Transfer-Encoding: {coding}\r\n")));
        assert_eq!(status, 501, "{coding}");
    }
}

/// Pairs of framing fields, one of which a parser may miss: the request is refused, or the unusual field is ignored and the other
/// one is used. Every parser thus finds the following bytes at the same offset.
#[test]
fn ambiguous_framing_fields_are_refused_or_ignored() {
    let server = site();
    let refused_pairs = [
        "Content-Length: 5\r\nTransfer-Encoding\t: chunked\r\n",
        "Content-Length: 5\r\nX: y\0Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n",
        "Content-Length: 5\r\n\x01Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding\0: chunked\r\n",
        "Content-Length: 5\r\nContent-Length : 6\r\n",
        "Host: b\r\n",
        "Host : b\r\n",
    ];
    all_400(&server, &refused_pairs.map(with));
    if ours_only("nginx accepts or drops these fields") {
        let strict = [
            "Content-Length: 5\r\nTransfer-Encoding:\x0bchunked\r\n",
            "Content-Length: 5\r\nX: y\rTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\n:Transfer-Encoding: chunked\r\n",
            "Content-Length: 5\rContent-Length: 6\r\n",
        ];
        all_400(&server, &strict.map(with));
    }
    for odd in [
        "Transfer_Encoding: chunked",
        "(Transfer-Encoding: chunked",
        "Content_Length: 60",
        "Transfer-Encoding;: chunked",
    ] {
        let mut client = client(&server);
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n{odd}\r\n\r\n12345{SECOND}"));
        assert_eq!(client.response().text(), "first", "{odd}");
        assert_eq!(client.response().text(), "second", "{odd}");
    }
}

fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SECOND}")
}

/// The response may be sent before the body is found to be malformed; the bytes after it must not be served.
#[track_caller]
fn broken_chunks(server: &Server, body: &str) {
    let mut client = client(server);
    client.send(chunked(body));
    let response = client.response();
    assert_eq!(response.status, 400, "{body:?}");
    assert_ne!(response.text(), "second", "{body:?}");
    client.expect_end();
}

#[test]
fn broken_chunk_framing_is_refused() {
    let server = serve(&one_server(
        "",
        "location / { root html; try_files /none =405; } location /second { return 200 second; }",
    ));
    // `return` and `try_files` respond before the body is parsed; the connection must still be closed.
    for body in [
        "x\r\n",
        "5\r\nabcdeX\r\n0\r\n\r\n",
        "-1\r\n",
        "0x5\r\nabcde\r\n0\r\n\r\n",
        " 5\r\nabcde\r\n0\r\n\r\n",
        ";\r\n",
    ] {
        let mut client = client(&server);
        client.send(chunked(body));
        let first = client.response();
        assert!(matches!(first.status, 400 | 405), "{body:?}: {}", first.status);
        client.expect_end();
    }
    if !ours_only("nginx 1.22 accepts a bare LF as a line end, and detects a bad size after its response") {
        return;
    }
    for body in [
        "5\nabcde\r\n0\r\n\r\n",
        "5\r\nabcde\n0\r\n\r\n",
        "5\r\nabcde\r\n0\n\r\n",
        "5\r\nabcde\r\n0\r\n\n",
        "5;a\nb\r\nabcde\r\n0\r\n\r\n",
        "5;a\0\r\nabcde\r\n0\r\n\r\n",
        "5\rabcde\r\n0\r\n\r\n",
        "5\r\nabcde0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "99999999999999999\r\n",
        "5\r\nabcde\r\n0\r\nA\0: x\r\n\r\n",
    ] {
        let mut client = client(&server);
        client.send(chunked(body));
        let first = client.response();
        assert!(matches!(first.status, 400 | 405), "{body:?}: {}", first.status);
        client.expect_end();
    }
}

#[test]
fn an_error_has_precedence_over_broken_chunks() {
    let server = serve(&one_server(
        "",
        "location /none { return 404; } location /inside { deny all; } location /second { return 200 second; }",
    ));
    for (target, status) in [("none", 404), ("inside", 403), ("second", 400)] {
        let request = chunked("x\r\n").replacen("POST /", &format!("POST /{target}"), 1);
        assert_eq!(refused(&server, request), status, "{target}");
    }
}

#[test]
fn broken_chunks_received_with_the_head_are_logged() {
    let server = site();
    broken_chunks(&server, "x\r\n");
    broken_chunks(&server, "5\r\nabcdeXX0\r\n\r\n");
    if ours_only("nginx 1.22 accepts a bare LF as a line end in chunked framing") {
        broken_chunks(&server, "5\nabcde\r\n0\r\n\r\n");
    }
}

#[test]
fn invalid_hosts_are_refused() {
    let server = site();
    all_400(&server, &[format!("GET / HTTP/1.1\r\n\r\n{SECOND}"), with("Host: b\r\n")]);
    for host in ["", "a b", "a/b", "a..b"] {
        all_400(&server, &[format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n{SECOND}")]);
    }
}

/// The error log has the text of nginx, with the part of the header section that is at fault.
#[test]
fn refusals_are_logged_with_the_text_of_nginx() {
    let server = serve(&one_server("error_log logs/error.log info;", "location / { return 200 first; }"));
    for (head, line) in [
        ("get / HTTP/1.1\r\n", "client sent invalid method while reading client request line"),
        (
            "GET http://a..b/ HTTP/1.1\r\n",
            "client sent invalid host in request line while reading client request",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a b\r\n",
            "client sent invalid host header while reading client request headers",
        ),
    ] {
        assert_eq!(refused(&server, format!("{head}\r\n")), 400, "{head:?}");
        server.wait_for_log(line, Deadline::default());
    }
}

#[test]
fn invalid_request_lines_are_refused() {
    let server = site();
    let line = |line: &str| format!("{line}\r\nHost: a\r\n\r\n{SECOND}");
    all_400(
        &server,
        &[
            line("get / HTTP/1.1"),
            line("GET"),
            line("GET a HTTP/1.1"),
            line("GET http:/a HTTP/1.1"),
            line("GET / HTTP/1.x"),
            line("GET / HTTQ/1.1"),
            line("GET / HTTP/1.1 x"),
            line("GET /a b HTTP/1.1"),
            line(" GET / HTTP/1.1"),
            line("GET\t/ HTTP/1.1"),
            "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\x03\x03".to_owned(),
        ],
    );
    for version in ["HTTP/2.0", "HTTP/3.0"] {
        assert_eq!(refused(&server, line(&format!("GET / {version}"))), 505, "{version}");
    }
    if ours_only("nginx supports HTTP/0.9") {
        assert_eq!(refused(&server, "GET /\r\n"), 400);
    }
}

#[test]
fn a_bare_lf_may_end_a_header_line() {
    let server = site();
    let mut client = client(&server);
    client.send("GET / HTTP/1.1\nHost: a\nA: x\n\nGET / HTTP/1.1\r\nHost: a\nA: x\r\n\n");
    assert_eq!(client.response().text(), "first");
    assert_eq!(client.response().text(), "first");
}

fn odd_name(client: &mut Client, name: &str) -> String {
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: value\r\n\r\n"));
    client.response().text()
}

#[test]
fn invalid_field_names_are_dropped_passed_or_refused_as_configured() {
    let start = |directive: &str| {
        let conf = one_server("", &format!("{directive} location / {{ return 200 \"$http_x_y|\"; }}"));
        serve(&format!("error_log logs/error.log info; {conf}"))
    };
    let (server, underscores, kept) =
        (start(""), start("underscores_in_headers on;"), start("ignore_invalid_headers off;"));
    assert_eq!(odd_name(&mut client(&server), "X-Y"), "value|");
    assert_eq!(odd_name(&mut client(&server), "X_Y"), "|");
    assert_eq!(odd_name(&mut client(&server), "X.Y"), "|");
    assert_eq!(odd_name(&mut client(&underscores), "X_Y"), "value|");
    assert_eq!(odd_name(&mut client(&underscores), "X.Y"), "|");
    assert_eq!(odd_name(&mut client(&kept), "X_Y"), "value|");
    let log = server.wait_for_log("client sent invalid header line: \"X_Y: ", Deadline::default());
    assert!(log.contains(" [info] "), "{log}");
}

#[test]
fn http_strict_refuses_requests_that_nginx_tolerates() {
    if !ours_only("http_strict is a directive of this project") {
        return;
    }
    let server = serve(&one_server("", "http_strict on; location / { return 200 first; }"));
    let line = |line: &str| format!("{line}\r\nHost: a\r\n\r\n{SECOND}");
    all_400(&server, &[with("X_Y: z\r\n"), with("X(Y: z\r\n"), with("X.\u{e4}: z\r\n")]);
    all_400(&server, &[line("GET  / HTTP/1.1"), line("GET /   HTTP/1.1"), line("GET / HTTP/1.1 ")]);
    assert_eq!(client(&server).request("GET", "/", &[("X-Y", "z")]).text(), "first");
}

/// As in nginx, the settings of the named server apply once it is known.
#[test]
fn names_of_fields_are_accepted_by_the_server_that_the_request_names() {
    let server = serve(
        "events {} http { access_log off;
         server { listen 127.0.0.1:0; return 200 [$http_x_y]; }
         server { listen 127.0.0.1:0; server_name underscores; underscores_in_headers on; return 200 [$http_x_y]; } }",
    );
    let mut client = Client::connect(server.addr(0));
    for (target, host, wanted) in
        [("/", "a", "[]"), ("/", "underscores", "[1]"), ("http://underscores/", "a", "[1]"), ("/", "b", "[]")]
    {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX_Y: 1\r\n\r\n"));
        assert_eq!(client.response().text(), wanted, "{target} {host}");
    }
}

#[test]
fn names_of_fields_over_http2_are_accepted_by_the_server_that_the_request_names() {
    if !ours_only("nginx of Debian 12 has no directive http2") {
        return;
    }
    let server = serve(
        "events {} http { access_log off; http2 on;
         server { listen 127.0.0.1:0; return 200 [$http_x_y]; }
         server { listen 127.0.0.1:0; server_name underscores; underscores_in_headers on; return 200 [$http_x_y]; } }",
    );
    let mut streams = http2::connect(&server);
    for (host, wanted) in [("a", "[]"), ("underscores:80", "[1]"), ("b", "[]")] {
        let stream = streams.next_stream();
        let line = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", host)];
        streams.frame(HEADERS, WHOLE | END, stream, &block(&[&line[..], &[("x_y", "1")]].concat()));
        assert_eq!(streams.response(stream).text(), wanted, "HTTP/2 {host}");
    }
}
