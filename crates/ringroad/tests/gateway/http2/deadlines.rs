//! `grpc_deadline`: ends gRPC calls when the client's `grpc-timeout` has passed.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::{echo, start, start_with};
use crate::common::http2::{self, Fields, RESET};
use crate::common::http2_origin::{Conn, Http2Origin};
use testkit::Deadline;
use testkit::wait::DEFAULT_LIMIT;

/// Makes a call with this `grpc-timeout`; returns status, `grpc-*` fields of header and trailer section, and body.
fn called_within(
    client: &mut http2::Http2<std::net::TcpStream>,
    path: &str,
    timeout: &str,
    body: &[u8],
) -> (u16, Fields, String) {
    let call = [("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", timeout)];
    let got = client.post(path, &call, body);
    assert!(got.ended && got.reset.is_none(), "{got:?}");
    let fields = got.fields.iter().chain(&got.trailers).filter(|(name, _)| name.starts_with("grpc-"));
    (got.status, fields.cloned().collect(), got.text())
}

/// Returns the trailer fields of a call whose deadline has passed.
fn exceeded(message: &str) -> Fields {
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![field("grpc-status", "4"), field("grpc-message", message)]
}

/// Starts an origin that, by path, sends a complete, an unfinished or no response. The receiver gets the error codes of resets.
fn unfinished() -> (Http2Origin, Receiver<u32>) {
    let (sender, resets) = channel();
    let app = Http2Origin::start(&[], move |conn| {
        while let Some(asked) = conn.request() {
            match asked.path().rsplit('/').next() {
                Some("echo") => echo(conn, &asked),
                Some("unavailable") => conn.head(asked.stream, 503, &[], true),
                Some("begun") => {
                    conn.head(asked.stream, 200, &[("content-type", "application/grpc")], false);
                    conn.data(asked.stream, b"a part", false);
                    await_reset(conn, asked.stream, &sender);
                }
                _ => await_reset(conn, asked.stream, &sender),
            }
        }
    });
    (app, resets)
}

fn await_reset(conn: &mut Conn, stream: u32, codes: &Sender<u32>) {
    conn.until(|conn| conn.requests.get(&stream).is_some_and(|asked| asked.reset.is_some()));
    let reset = conn.requests.remove(&stream).and_then(|asked| asked.reset);
    reset.into_iter().for_each(|code| _ = codes.send(code));
}

/// `grpc_deadline`: a call ends when its `grpc-timeout` has passed, before or during the response. The upstream stream is reset.
#[test]
fn calls_end_at_their_deadline_with_grpc_deadline() {
    let (app, resets) = unfinished();
    let server = start(&app);
    let mut client = http2::connect(&server);
    let silent = called_within(&mut client, "/deadline/silent", "2S", b"x");
    assert_eq!(silent, (200, exceeded("Deadline Exceeded"), String::new()));
    assert_eq!(resets.recv_timeout(DEFAULT_LIMIT), Ok(8), "CANCEL");
    server.wait_for_log("(\"grpc-timeout\") has passed while waiting for upstream", Deadline::default());
    let begun = called_within(&mut client, "/deadline/begun", "3000000u", b"x");
    assert_eq!(begun, (200, exceeded("Deadline Exceeded"), "a part".to_owned()));
    assert_eq!(resets.recv_timeout(DEFAULT_LIMIT), Ok(8), "CANCEL");
    // A call whose deadline has passed already is not sent to the upstream.
    assert_eq!(called_within(&mut client, "/deadline/silent", "0n", b"x"), silent);
    // An invalid timeout, and a timeout that is not reached, are passed to the upstream unchanged.
    for timeout in ["1x", "123456789S", "2H"] {
        let (status, _, text) = called_within(&mut client, "/deadline/echo", timeout, b"x");
        assert!(status == 200 && text.contains(&format!("grpc-timeout={timeout}\n")), "{text}");
    }
    let got = client.post("/deadline/echo", &[("grpc-timeout", "0n")], b"x");
    assert!(got.status == 200, "the client does not use gRPC: {got:?}");
    let (_, _, text) = called_within(&mut client, "/grpc/echo", "0n", b"x");
    assert!(text.contains("grpc-timeout=0n\n"), "the directive is off: {text}");
    assert_eq!(app.connections(), 1, "the connection continues");
}

/// Further upstreams are tried before the deadline, but not after it. The requests have no body: a request whose body is passed on
/// while it is received has only one try.
#[test]
fn retries_stop_at_the_deadline_of_their_call() {
    let (silent, resets) = unfinished();
    let refusing = Http2Origin::answering(|conn, asked| {
        conn.frame(RESET, 0, asked.stream, &7u32.to_be_bytes());
    });
    let server = start_with(&silent, &refusing);
    let mut client = http2::connect(&server);
    // Either upstream may be tried first.
    for _ in 0..2 {
        let late = called_within(&mut client, "/deadline/two/silent", "2S", b"");
        assert_eq!(late, (200, exceeded("Deadline Exceeded"), String::new()));
        assert_eq!(resets.recv_timeout(DEFAULT_LIMIT), Ok(8));
    }
    assert_eq!((silent.connections(), refusing.connections() > 0), (1, true));
    // Before the deadline `grpc_next_upstream` applies as usual.
    let (app, _resets) = unfinished();
    let other = Http2Origin::answering(echo);
    let server = start_with(&app, &other);
    let mut client = http2::connect(&server);
    for _ in 0..4 {
        let (status, _, text) = called_within(&mut client, "/deadline/next/unavailable", "1H", b"");
        assert!(status == 200 && text.contains("grpc-timeout=1H\n"), "{status} {text}");
    }
    assert_eq!((app.connections(), other.connections()), (1, 1));
}
