//! Request bodies: with a length and chunked, read and discarded, and effects of `Expect` and of limits.
//!
//! No location here stores a body, so the tests check the response, and that the next request on the connection is
//! parsed from the correct byte. Broken framing is in `serve/refused.rs`.

use crate::common::{against_nginx, client, one_server, serve, serve_with};
use testkit::client::request_bytes;
use testkit::{Client, Deadline, Gate, Origin, Reply, Server};

fn site() -> Server {
    serve_with(
        &one_server(
            "",
            "root html; location = /ok { return 200 ok; } location /small/ { client_max_body_size 10; alias html/; } \
             location /unlimited/ { client_max_body_size 0; alias html/; }",
        ),
        |builder| builder.text("html/a.txt", "file"),
    )
}

fn post(target: &str, fields: &str, body: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
}

fn counted(target: &str, body: &str) -> String {
    post(target, &format!("Content-Length: {}\r\n", body.len()), body)
}

#[test]
fn a_body_with_content_length_is_skipped() {
    let server = site();
    let mut client = client(&server);
    client.send(counted("/ok", "GET /a.txt HTTP/1.1\r\nHost: inner\r\n\r\n")).send(counted("/ok", ""));
    assert_eq!(client.response().text(), "ok");
    assert_eq!(client.response().text(), "ok");
    client.send(
        "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345GET /ok HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(client.response().text(), "file", "a GET may have a body");
    assert_eq!(client.response().text(), "ok");
}

#[test]
fn a_chunked_body_is_skipped() {
    let server = site();
    let mut client = client(&server);
    let chunks = "5\r\nabcde\r\n00A;name=value;quoted=\"a b\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
    let request = post("/ok", "Transfer-Encoding: chunked\r\n", chunks);
    client.send(&request).send(post("/ok", "transfer-encoding: CHUNKED\r\n", "0\r\n\r\n"));
    assert_eq!(client.response().text(), "ok");
    assert_eq!(client.response().text(), "ok");
    client.send_in_pieces(&request, 1);
    assert_eq!(client.response().text(), "ok");
    client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().text(), "file");
}

#[test]
fn a_large_unused_body_is_discarded() {
    let server = site();
    let mut client = client(&server);
    let body = "x".repeat(700_000);
    client.send(counted("/a.txt", &body));
    assert_eq!(client.response().status, 405);
    let chunked: String = (0..50).map(|_| format!("{:x}\r\n{}\r\n", 10_000, &body[..10_000])).collect();
    client.send(post("/unlimited/a.txt", "Transfer-Encoding: chunked\r\n", &format!("{chunked}0\r\n\r\n")));
    assert_eq!(client.response().status, 405);
    client.send(counted("/ok", "end"));
    assert_eq!(client.response().text(), "ok", "the connection continues after the bodies");
}

#[test]
fn a_body_over_the_limit_is_413() {
    let server = site();
    let mut announced = client(&server);
    announced.send(post("/small/a.txt", "Content-Length: 11\r\n", ""));
    let response = announced.response();
    assert_eq!((response.status, response.field("connection")), (413, Some("close")));
    server.wait_for_log("client intended to send too large body: 11 bytes", Deadline::default());
    let mut fits = client(&server);
    fits.send(counted("/small/a.txt", "0123456789"));
    assert_eq!(fits.response().status, 405);
    let mut default = client(&server);
    default.send(post("/a.txt", "Content-Length: 1048577\r\n", ""));
    assert_eq!(default.response().status, 413, "1m is the default");
    let mut edge = client(&server);
    edge.send(counted("/a.txt", &"x".repeat(1_048_576)));
    assert_eq!(edge.response().status, 405);
}

#[test]
fn a_100_continue_is_sent_when_the_body_is_read() {
    let server = site();
    let mut client = client(&server);
    client.send(post("/ok", "Expect: 100-continue\r\nContent-Length: 3\r\n", ""));
    let first = client.response();
    // nginx sends no 100 for a body that is only discarded, yet the client must not wait forever: it gets either a 100
    // or the final response immediately.
    assert!(matches!(first.status, 100 | 200), "{}", first.status);
    if first.status == 100 {
        client.send("abc");
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn an_unknown_expectation_is_refused() {
    let server = site();
    let mut client = client(&server);
    client.send(post("/ok", "Expect: miracles\r\nContent-Length: 0\r\n", ""));
    let response = client.response();
    // nginx checks only for "100-continue"; RFC 9110 section 10.1.1 permits a 417.
    assert!(matches!(response.status, 200 | 417), "{}", response.status);
}

#[test]
fn a_client_that_disconnects_during_its_body_is_harmless() {
    let server = site();
    for _ in 0..20 {
        let mut client = client(&server);
        client.send(post("/a.txt", "Content-Length: 100000\r\n", "half"));
        client.reset();
    }
    let mut client = client(&server);
    client.send(post("/a.txt", "Content-Length: 5\r\n", "half"));
    assert_eq!(client.response().status, 405, "a response that needs no body does not wait for it");
    client.half_close();
    client.expect_end();
    assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok");
}

#[test]
fn a_stalled_body_times_out() {
    let conf = one_server("", "client_body_timeout 50ms; lingering_timeout 50ms; root html;");
    let server = serve_with(&conf, |builder| builder.text("html/a.txt", "file"));
    let mut client = client(&server);
    client.send(post("/a.txt", "Content-Length: 100\r\n", "some"));
    assert_eq!(client.response().status, 405);
    client.expect_end();
}

/// Once `lingering_timeout` has ended the discarding of a body, the server does not read on.
#[test]
fn a_body_is_discarded_for_one_lingering_time() {
    let conf = one_server("", "lingering_timeout 50ms; lingering_time 1h; root html;");
    let server = serve_with(&conf, |builder| builder.text("html/a.txt", "file"));
    let mut client = client(&server);
    client.send(post("/a.txt", "Content-Length: 100\r\n", "some"));
    assert_eq!(client.response().status, 405);
    client.expect_end();
    let is_reset = || client.try_send(b"x").is_err().then_some(());
    testkit::wait::until("a reset", Deadline::default(), is_reset).expect("the connection is closed");
}

#[test]
fn the_client_of_a_refused_upload_can_read_the_response() {
    // The purpose of lingering_close: without it the client's unread bytes turn the close into a reset, which may
    // destroy the response.
    let server =
        serve(&one_server("", "location / { root html; client_max_body_size 1k; lingering_close always; }"));
    for _ in 0..10 {
        let mut client = client(&server);
        let head = post("/x", "Content-Length: 300000\r\n", "");
        client.send(&head);
        let _ = client.try_send(&vec![b'x'; 300_000]);
        assert_eq!(client.response().status, 413);
    }
}

/// Expects the end of the responses; then the server must read on, because a reset could destroy the last response.
#[track_caller]
fn reads_on(client: &mut Client) {
    client.expect_end();
    client.try_send(&vec![b'x'; 8 << 20]).expect("the server reads on");
}

#[test]
fn the_client_of_a_refused_header_section_can_read_the_response() {
    let server =
        serve(&one_server("lingering_timeout 60s; lingering_time 60s;", "location / { return 200 ok; }"));
    let mut client = client(&server);
    let _ = client.try_send(format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}", "x".repeat(200_000)).as_bytes());
    assert_eq!(client.response().status, if against_nginx() { 400 } else { 431 });
    reads_on(&mut client);
}

/// The last response that `keepalive_requests` permits, while the next request is unread.
#[test]
fn a_client_that_pipelines_can_read_the_last_response() {
    let gate = Gate::new();
    let held = gate.clone();
    gate.close();
    let origin = Origin::start(move |_| Reply::text("up").wait_first(&held));
    let conf = one_server(
        "lingering_timeout 60s; lingering_time 60s; keepalive_requests 1;",
        &format!("location / {{ proxy_pass http://{}; }}", origin.addr()),
    );
    let server = serve(&conf);
    let mut client = client(&server);
    client.send(request_bytes("GET", "/", &[]));
    origin.wait_for("the request", |stats| stats.requests > 0);
    client.send(request_bytes("GET", "/", &[]));
    gate.open();
    assert_eq!(client.response().text(), "up");
    reads_on(&mut client);
}

/// The bytes after the request are not served, but they must not cause a reset either.
#[test]
fn a_client_that_sends_after_connection_close_can_read_the_response() {
    let gate = Gate::new();
    let held = gate.clone();
    gate.close();
    let origin = Origin::start(move |_| Reply::text("up").wait_first(&held));
    let http = "lingering_timeout 60s; lingering_time 60s;";
    let server = serve(&one_server(http, &format!("location / {{ proxy_pass http://{}; }}", origin.addr())));
    let mut client = client(&server);
    client.send(request_bytes("GET", "/", &[("Connection", "close")]));
    origin.wait_for("the request", |stats| stats.requests > 0);
    client.send(request_bytes("GET", "/", &[]));
    gate.open();
    assert_eq!(client.response().text(), "up");
    reads_on(&mut client);
}

#[test]
fn a_response_is_sent_before_the_connection_closes() {
    // Unread bytes turn the close into a reset, which discards unsent output.
    let server = serve(&one_server("", "location / { return 200 ok; lingering_close off; }"));
    for _ in 0..50 {
        let mut client = client(&server);
        client.send(post("/", "Connection: close\r\nContent-Length: 5\r\n", ""));
        let _ = client.try_send(b"12345");
        assert_eq!(client.response().text(), "ok");
    }
}
