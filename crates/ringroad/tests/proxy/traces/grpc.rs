//! The export by OTLP/gRPC: the call, statuses of collectors, TLS.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::decode;
use crate::common::http2_origin::{Asked, Conn, Http2Origin};
use crate::common::{BINARY, ours_only};
use testkit::wait::{self, Deadline};
use testkit::{Client, Server};

const FRAME: [u8; 5] = [0; 5];

fn start(endpoint: &str, rows: &str) -> Server {
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ otel_exporter {{ endpoint {endpoint}; interval 10ms; {rows} }}
           server {{ listen 127.0.0.1:0; location / {{ otel_trace on; return 200 x; }} location /api {{ api; }} }} }}"
    );
    Server::start(BINARY, &text)
}

fn ask(server: &Server) {
    assert_eq!(Client::connect(server.addr(0)).get("/a").text(), "x");
}

#[track_caller]
fn wait_for_count(server: &Server, result: &str, count: u64) {
    let counted = || {
        let response = Client::connect(server.addr(0)).get("/api/9/traces");
        let found: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
        found["spans"][result].as_u64().expect("a number")
    };
    let found = wait::until("a count", Deadline::default(), || (counted() == count).then_some(()));
    found.unwrap_or_else(|_| panic!("{result}: {} {}", counted(), server.error_log()));
}

/// Responds with a message and a status.
fn accept(conn: &mut Conn, asked: &Asked) {
    conn.head(asked.stream, 200, &[("content-type", "application/grpc")], false);
    conn.data(asked.stream, &FRAME, false);
    conn.trailers(asked.stream, &[("grpc-status", "0"), ("grpc-message", "")]);
}

#[test]
fn a_call_has_the_form_of_grpc() {
    if !ours_only("otel") {
        return;
    }
    let calls = Arc::<Mutex<Vec<Asked>>>::default();
    let received = Arc::clone(&calls);
    let collector = Http2Origin::answering(move |conn, asked| {
        received.lock().expect("no panic").push(asked.clone());
        accept(conn, asked);
    });
    let server = start(&collector.address(), "header Authorization 'Bearer t';");
    ask(&server);
    wait_for_count(&server, "exported", 1);
    ask(&server);
    wait_for_count(&server, "exported", 2);
    let calls = calls.lock().expect("no panic").clone();
    assert_eq!(calls.len(), 2);
    for call in &calls {
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
            (":authority", &collector.address()),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "10S"),
            ("authorization", "Bearer t"),
        ] {
            assert_eq!(call.field(name), Some(value), "{name}");
        }
        assert!(
            call.field("user-agent").is_some_and(|agent| agent.starts_with("OTel-OTLP-Exporter-ringroad/"))
        );
        let length = u32::from_be_bytes(call.body[1..5].try_into().expect("four bytes"));
        assert_eq!((call.body[0], length as usize), (0, call.body.len() - 5));
        let spans = decode::spans(&call.body[5..]);
        assert_eq!((spans.len(), spans[0].attribute("http.target")), (1, "/a"));
    }
}

#[test]
fn statuses_of_calls_postpone_or_discard_a_batch() {
    if !ours_only("otel") {
        return;
    }
    let count = Mutex::new(0);
    let collector = Http2Origin::answering(move |conn, asked| {
        let mut count = count.lock().expect("no panic");
        *count += 1;
        let kind = ("content-type", "application/grpc");
        match *count {
            1 => conn.head(asked.stream, 200, &[kind, ("grpc-status", "14")], true),
            3 => conn.head(
                asked.stream,
                200,
                &[kind, ("grpc-status", "3"), ("grpc-message", "bad%20one")],
                true,
            ),
            4 => {
                conn.head(asked.stream, 200, &[kind], false);
                conn.data(asked.stream, &[0, 0, 0, 0, 4, 0x0a, 2, 0x08, 1], false);
                conn.trailers(asked.stream, &[("grpc-status", "0")]);
            }
            5 => {
                conn.head(asked.stream, 200, &[kind], false);
                conn.data(asked.stream, b"garbage", false);
                conn.trailers(asked.stream, &[("grpc-status", "0")]);
            }
            6 => conn.head(asked.stream, 200, &[kind], true),
            _ => accept(conn, asked),
        }
    });
    let server = start(&collector.address(), "");
    let begun = Instant::now();
    ask(&server);
    wait_for_count(&server, "exported", 1);
    assert!(begun.elapsed() >= Duration::from_secs(1), "the batch was sent again after a pause");
    for (result, total) in [("failed", 1), ("rejected", 1), ("failed", 2), ("failed", 3), ("exported", 2)] {
        ask(&server);
        wait_for_count(&server, result, total);
    }
    let log = server.error_log();
    assert!(
        log.contains("the collector responded with gRPC status 3 \"bad%20one\"; 1 spans are lost"),
        "{log}"
    );
}
