//! Compressed responses for HTTP/2 clients that read slowly or not at all: the memory of their encoders is limited, and
//! other clients are served.

use std::io::{Cursor, Read};
use std::net::TcpStream;

use flate2::read::GzDecoder;

use crate::common::http2::{self, Got, Http2, SETTINGS, WINDOW, setting};
use crate::common::{BINARY, client, one_server};
use testkit::Server;

/// Returns text that compresses to a third.
fn page(lines: u64) -> String {
    let words = |line: u64| line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..lines).map(|line| format!("<p class=\"line\">{:x} is line {line}</p>\n", words(line))).collect()
}

fn gunzipped(body: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(Cursor::new(body)).read_to_string(&mut text).expect("it is complete");
    text
}

fn metric(server: &Server, name: &str) -> u64 {
    let page = client(server).get("/metrics").text();
    let number = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    number.unwrap_or_else(|| panic!("{name} is missing")).parse::<f64>().expect("a number") as u64
}

/// Requests the page on N streams.
fn ask(client: &mut Http2<TcpStream>, streams: usize, coding: &str) -> Vec<u32> {
    let mut one = || client.begin("GET", "/page.html", &[("accept-encoding", coding)], true);
    (0..streams).map(|_| one()).collect()
}

/// Opens the windows of the connection and of all its streams.
fn open_windows(client: &mut Http2<TcpStream>) {
    client.opens = true;
    client.frame(SETTINGS, 0, 0, &setting(4, 1 << 24));
    client.frame(WINDOW, 0, 0, &(1_u32 << 30).to_be_bytes());
}

fn start(events: &str, page: &str) -> Server {
    let http = "access_log off; http2 on; gzip on; brotli on; zstd on; types { text/html html; }";
    let conf = one_server(http, "root html; location = /metrics { metrics; }");
    let conf = conf.replace("events {}", &format!("events {{ {events} }}"));
    Server::builder(BINARY).conf(&conf).text("html/page.html", page).start()
}

#[test]
fn a_client_without_windows_gets_header_sections_and_no_encoder() {
    let page = page(40_000);
    let server = start("", &page);
    let before = metric(&server, "process_resident_memory_bytes");
    for coding in ["br", "zstd", "gzip"] {
        let mut client = http2::connect_with(&server, &setting(4, 0));
        let streams = ask(&mut client, 100, coding);
        let has_head = |client: &Http2<TcpStream>, id: &u32| client.streams.contains_key(id);
        client.until(|client| streams.iter().all(|id| has_head(client, id)));
        let grown = metric(&server, "process_resident_memory_bytes").saturating_sub(before);
        assert!(grown < 48 << 20, "{coding}: {grown} bytes for 100 bodies that nobody receives");
        if coding == "gzip" {
            open_windows(&mut client);
            assert!(gunzipped(&client.response(streams[7]).body) == page);
        }
    }
}

/// The encoders of stalled clients are given back to others. The rest of a stalled body is not compressed, but complete.
#[test]
fn stalled_bodies_give_their_encoders_to_other_clients_and_stay_complete() {
    let page = page(20_000);
    // The limit for encoders is half of it, six encoders of gzip.
    let server = start("buffer_pool 4m;", &page);
    let mut stalled = http2::connect_with(&server, &setting(4, 2000));
    stalled.opens = false;
    let streams = ask(&mut stalled, 20, "gzip");
    stalled.until(|client| {
        streams.iter().all(|id| client.streams.get(id).is_some_and(|got| !got.body.is_empty()))
    });
    for _ in 0..3 {
        let response = client(&server).request("GET", "/page.html", &[("Accept-Encoding", "gzip")]);
        assert_eq!(response.field("Content-Encoding"), Some("gzip"));
        assert!(gunzipped(&response.body) == page, "a client that reads is served");
    }
    open_windows(&mut stalled);
    let bodies: Vec<Got> = streams.iter().map(|&id| stalled.response(id)).collect();
    for body in &bodies {
        assert!(body.ended && gunzipped(&body.body) == page, "{} bytes", body.body.len());
    }
    let compressed = bodies.iter().filter(|body| body.body.len() * 2 < page.len()).count();
    assert!(compressed <= 12, "{compressed} of 20 bodies had an encoder to their end");
    let shown = metric(&server, "ringroad_encoders_limited_total{how=\"recalled\"}")
        + metric(&server, "ringroad_encoders_limited_total{how=\"refused\"}");
    assert!(shown >= 8, "{shown} bodies are counted");
}
