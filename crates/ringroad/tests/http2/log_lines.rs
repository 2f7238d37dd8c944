//! Lines of the access log for requests that end early or are refused, with the values of nginx.

use crate::common::http2::{self, DATA, END, HEADERS, RESET, WHOLE, block, setting};
use crate::common::{one_server, serve};
use testkit::{Deadline, Server};

const LINE: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/text"), (":authority", "here")];

/// Returns a server that logs the status, the URI and the length of the sent body.
fn start() -> Server {
    let http = "http2 on; log_format line '$status $uri $body_bytes_sent'; access_log logs/access.log line;";
    let locations =
        "location /text { return 200 0123456789; } location /up { proxy_pass http://127.0.0.1:1; }";
    serve(&one_server(http, locations))
}

#[test]
fn only_bytes_in_frames_are_logged_as_sent() {
    let server = start();
    let mut client = http2::connect_with(&server, &setting(4, 5));
    client.opens = false;
    let stream = client.ask("/text");
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.body.len() == 5));
    client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    assert_eq!(server.wait_for_access_log(1, Deadline::default()), "200 /text 5\n");
}

#[test]
fn a_body_that_its_client_cancels_is_logged_as_499() {
    let server = start();
    let mut client = http2::connect(&server);
    let stream = client.next_stream();
    let line = [(":method", "POST"), LINE[1], (":path", "/up"), LINE[3], ("content-length", "5")];
    client.frame(HEADERS, WHOLE, stream, &block(&line));
    client.frame(DATA, 0, stream, b"abc");
    client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    assert_eq!(server.wait_for_access_log(1, Deadline::default()), "499 /up 0\n");
    // An error of the client, unlike a cancellation.
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE, stream, &block(&line));
    client.frame(DATA, END, stream, b"abc");
    assert_eq!(server.wait_for_access_log(2, Deadline::default()).lines().last(), Some("400 /up 0"));
}

#[test]
fn the_uri_of_a_malformed_request_is_logged() {
    let server = start();
    let mut client = http2::connect(&server);
    let stream = client.next_stream();
    client.frame(HEADERS, WHOLE | END, stream, &block(&[&LINE[..], &[("Upper", "x")]].concat()));
    let line = server.wait_for_access_log(1, Deadline::default());
    assert!(line.starts_with("400 /text "), "{line}");
}
