//! Hostile peers of a proxy, tested with the binary: origins with arbitrary responses, and clients that try request
//! smuggling.
//!
//! Responses are generated from a seed, which is also the requested target, so a failure names the seed to run again.
//! The test harness parses strictly at both ends: a message that it regards as complete is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::BINARY;
use testkit::origin::{Connection, Origin, Reply};
use testkit::{Client, Deadline, Server, Setup, process};

const CONF: &str = "worker_processes 2; error_log logs/error.log info;
events { }
http {
  proxy_temp_path @DATA@/temp;
  proxy_cache_path @CACHE@ keys_zone=hostile:1m;
  upstream hostile { server @ORIGIN@ max_fails=0; keepalive 4; }
  proxy_http_version 1.1;
  proxy_set_header Connection '';
  server {
    listen 127.0.0.1:0;
    access_log off;
    underscores_in_headers off;
    location / { proxy_pass http://hostile; }
    location /impatient/ { proxy_read_timeout 40ms; proxy_pass http://hostile; }
    location /direct/ { proxy_buffering off; proxy_pass http://hostile; }
    location /filters/ { gzip on; gzip_types *; gzip_min_length 1; ssi on; ssi_types *;
       sub_filter nowhere-to-be-found x; sub_filter_types *; sub_filter_once off; proxy_pass http://hostile; }
    location /cache/ { proxy_cache hostile; proxy_cache_valid any 1m; proxy_pass http://hostile; }
    location /spool/ { proxy_buffers 3 4k; proxy_pass http://hostile; }
    location /stream/ { proxy_request_buffering off; proxy_pass http://hostile; }
    location /hints/ { early_hints 1; proxy_pass http://hostile; }
  }
}
";

/// Locations through which responses are forwarded.
const PLACES: [&str; 7] = ["plain", "direct", "filters", "cache", "spool", "hints", "impatient"];

/// A generator whose numbers are the same everywhere (xorshift64*).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }

    fn of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.roll(texts.len())]
    }
}

/// The part of a response that a client may see.
#[derive(Debug, PartialEq)]
enum Truth {
    /// This body, with status 200.
    Whole(Vec<u8>),
    /// An error, or a truncated response.
    Broken,
    /// Any well-formed response that contains nothing of another response.
    Any,
}

/// The origin's action after the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Next,
    Close,
    Reset,
    Silence,
}

/// A response generated from a number.
struct Case {
    bytes: Vec<u8>,
    truth: Truth,
    then: Then,
    /// Bytes per write; the last bytes are sent together.
    piece: usize,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut dice = Dice::new(seed);
        let body = body(seed, &mut dice);
        let kind = dice.roll(12);
        let (bytes, truth, then) = match kind {
            0..3 => whole(&mut dice, body),
            3..6 => truncated(&mut dice, &body),
            6..8 => ambiguous(&mut dice, &body),
            8 => interim(&mut dice, body),
            9 => excess(&mut dice, body),
            10 => mutated(&mut dice, body),
            _ => garbage(&mut dice),
        };
        let piece = if kind == 9 { 1 << 20 } else { [1, 7, 100, 4096, 1 << 20][dice.roll(5)] };
        Case { bytes, truth, then, piece }
    }

    /// Sends the response; returns whether the connection may be used for another request.
    fn play(&self, connection: &mut Connection) -> bool {
        let (slow, rest) = self.bytes.split_at(self.bytes.len().min(self.piece * 40));
        for piece in slow.chunks(self.piece) {
            if !connection.send(piece) {
                return false;
            }
        }
        connection.send(rest);
        match self.then {
            Then::Next => return true,
            Then::Close => {}
            Then::Reset => connection.reset(),
            Then::Silence => connection.wait_for_close(),
        }
        false
    }
}

/// Returns a body in which every part identifies its response.
fn body(seed: u64, dice: &mut Dice) -> Vec<u8> {
    let len = [1, 60, 3000, 5000, 5000, 9000, 9000, 60_000][dice.roll(8)];
    let len = len + dice.roll(len);
    let mark = format!("[{seed}]").into_bytes();
    let mut body = mark.repeat(len / mark.len() + 1);
    body.truncate(len);
    body
}

fn chunked(dice: &mut Dice, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let size = 1 + dice.roll(9000).max(body.len() / 50);
    for piece in body.chunks(size) {
        out.extend(format!("{:x}{}\r\n", piece.len(), dice.of(&["", ";a", ";a=b", " "])).into_bytes());
        out.extend(piece);
        out.extend(b"\r\n");
    }
    out
}

fn head(fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{fields}\r\n").into_bytes()
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [head(&format!("Content-Length: {}\r\n", body.len())), body.to_vec()].concat()
}

fn whole(dice: &mut Dice, body: Vec<u8>) -> (Vec<u8>, Truth, Then) {
    let then = [Then::Next, Then::Close][dice.roll(2)];
    match dice.roll(3) {
        0 => (with_length(&body), Truth::Whole(body), then),
        1 => {
            let mut out = head("Transfer-Encoding: chunked\r\n");
            out.extend(chunked(dice, &body));
            out.extend(dice.of(&["0\r\n\r\n", "000\r\n\r\n", "0;x\r\nT: 1\r\n\r\n"]).as_bytes());
            (out, Truth::Whole(body), then)
        }
        _ => ([head(""), body.clone()].concat(), Truth::Whole(body), Then::Close),
    }
}

fn truncated(dice: &mut Dice, body: &[u8]) -> (Vec<u8>, Truth, Then) {
    let mut bytes = with_length(body);
    let mut end = bytes.len();
    if dice.roll(2) == 0 {
        bytes = head("Transfer-Encoding: chunked\r\n");
        bytes.extend(chunked(dice, body));
        end = bytes.len();
        bytes.extend(
            dice.of(&[
                "0\r\n",
                "0\r\nT: 1\r\n",
                "g\r\n",
                "-1\r\n",
                "ffffffffffffffff1\r\n",
                "5\r\nabcdeX\r\n",
            ])
            .bytes(),
        );
        if dice.roll(2) == 0 {
            end = bytes.len();
        }
    }
    // Truncates after the first byte of the status line, or anywhere later.
    bytes.truncate(
        [
            end - dice.roll(end.min(20)).min(end - 16) - usize::from(end < bytes.len()),
            16 + dice.roll(end - 16),
        ][dice.roll(2)],
    );
    if bytes.ends_with(b"\r\n0\r\n\r\n") || bytes.len() == with_length(body).len() {
        bytes.pop();
    }
    (bytes, Truth::Broken, [Then::Close, Then::Reset, Then::Silence, Then::Close][dice.roll(4)])
}

/// Returns heads that two parsers may interpret differently.
fn ambiguous(dice: &mut Dice, body: &[u8]) -> (Vec<u8>, Truth, Then) {
    let len = body.len();
    let fields = match dice.roll(13) {
        0 => format!("Content-Length: {len}\r\nTransfer-Encoding: chunked\r\n"),
        1 => format!("Content-Length: {len}\r\nContent-Length: {}\r\n", len + 1),
        2 => format!("Content-Length: +{len}\r\n"),
        3 => format!("Content-Length: -{len}\r\n"),
        4 => format!("Content-Length: 0x{len:x}\r\n"),
        5 => format!("Content-Length: {len}, {}\r\n", len + 2),
        6 => "Content-Length: 99999999999999999999999\r\n".to_owned(),
        7 => "Transfer-Encoding: gzip\r\n".to_owned(),
        8 => "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n".to_owned(),
        9 => format!("Content-Length: {len}\r\n X: 1\r\n"),
        10 => format!("Content-Length : {len}\r\n"),
        11 => format!("Content-Length: {len}\r\nX: {}\r\n", "y".repeat(9000)),
        _ => format!("Content-Length: {len}\r\nX: a\0b\r\n"),
    };
    ([head(&fields), body.to_vec()].concat(), Truth::Broken, Then::Close)
}

fn interim(dice: &mut Dice, body: Vec<u8>) -> (Vec<u8>, Truth, Then) {
    let one = dice.of(&[
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        "HTTP/1.1 102 Processing\r\nX: 1\r\n\r\n",
    ]);
    match dice.roll(3) {
        0 => (one.repeat(1000).into_bytes(), Truth::Broken, Then::Close),
        1 => (one.repeat(3).into_bytes(), Truth::Broken, Then::Close),
        _ => ([one.repeat(5).into_bytes(), with_length(&body)].concat(), Truth::Whole(body), Then::Next),
    }
}

/// Returns more bytes than belong to the response: no client may ever get the excess.
///
/// The response is short and sent in one write: bytes that arrive after the connection is reused cannot be
/// distinguished from the next response.
fn excess(dice: &mut Dice, mut body: Vec<u8>) -> (Vec<u8>, Truth, Then) {
    body.truncate(3000);
    let mut bytes = with_length(&body);
    let evil = dice.of(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        "evil",
        "\r\n",
        "HTTP/1.1 100 C\r\n\r\n",
    ]);
    bytes.extend(evil.repeat(1 + dice.roll(3)).into_bytes());
    (bytes, Truth::Whole(body), [Then::Close, Then::Next][dice.roll(2)])
}

fn mutated(dice: &mut Dice, body: Vec<u8>) -> (Vec<u8>, Truth, Then) {
    let (mut bytes, _, _) = whole(dice, body);
    let reach = bytes.len().min(150);
    for _ in 0..1 + dice.roll(4) {
        let at = dice.roll(reach);
        match dice.roll(3) {
            0 => bytes[at] = dice.roll(256) as u8,
            1 => bytes.insert(at, b"\r\n\0 :;,0"[dice.roll(8)]),
            _ => drop(bytes.remove(at)),
        }
    }
    (bytes, Truth::Any, Then::Close)
}

fn garbage(dice: &mut Dice) -> (Vec<u8>, Truth, Then) {
    let mut bytes = dice
        .of(&["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 ", "HTTP/9.9 999 \r\n\r\n", "\r\n\r\n"])
        .as_bytes()
        .to_vec();
    let len = dice.roll(9000);
    bytes.extend((0..len).map(|_| dice.roll(256) as u8));
    (bytes, Truth::Any, [Then::Close, Then::Reset][dice.roll(2)])
}

/// Starts the origin of the cases. The requests that it reads must be correct, whatever its responses.
fn hostile() -> Origin {
    Origin::raw(|connection| {
        while let Some(request) = connection.read_request() {
            let number = request.path().rsplit('/').next().and_then(|text| text.parse().ok());
            let goes_on = match number {
                Some(seed) => Case::new(seed).play(connection),
                None => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"),
            };
            if !goes_on {
                return;
            }
        }
    })
}

/// Requests one response, and checks it.
fn check(client: &mut Client, place: &str, seed: u64) -> bool {
    let case = Case::new(seed);
    let extra = match (place, seed % 3) {
        ("filters", 0) => "Accept-Encoding: gzip\r\n",
        ("plain" | "cache" | "filters", 1) => "Range: bytes=0-0\r\n",
        _ => "",
    };
    client.send(format!("GET /{place}/{seed} HTTP/1.1\r\nHost: a\r\n{extra}\r\n"));
    let mut got = client.try_response();
    while got.as_ref().is_ok_and(|response| response.status < 200) {
        got = client.try_response();
    }
    let about =
        format!("/{place}/{seed} {:?} {}", case.then, case.bytes[..case.bytes.len().min(200)].escape_ascii());
    let response = match got {
        Ok(response) => response,
        Err(testkit::response::Fault::Ended { .. }) => {
            assert!(!matches!(case.truth, Truth::Whole(_)), "cut: {about}");
            return false;
        }
        Err(testkit::response::Fault::Io(error)) => {
            assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "no response: {about}");
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no response: {about}");
            assert!(!matches!(case.truth, Truth::Whole(_)), "{error}: {about}");
            return false;
        }
        // `obs-text`, which RFC 9110 section 5.5 permits and the harness does not parse.
        Err(testkit::response::Fault::Malformed { rule, .. }) if rule.ends_with("not text") => return false,
        Err(fault) => panic!("{fault}: {about}"),
    };
    let is_plain = response.field("Content-Encoding").is_none();
    match &case.truth {
        Truth::Whole(body) => {
            let is_impatient = place == "impatient" && response.status == 504;
            assert!(matches!(response.status, 200 | 206) || is_impatient, "{}: {about}", response.status);
            if response.status == 200 && is_plain {
                assert!(response.body == *body, "another body: {about}");
            }
        }
        Truth::Broken => {
            // The first byte of a body may be received although the last one never arrives.
            assert!(
                response.status >= 500 || response.status == 206,
                "{} looks complete: {about}",
                response.status
            );
        }
        Truth::Any => {}
    }
    let start = &response.body[..response.body.len().min(1000)];
    assert!(!start.windows(4).any(|window| window == b"evil"), "bytes of another response: {about}");
    let closes = response.field("Connection") == Some("close");
    if !closes {
        assert_eq!(client.get("/fine").text(), "fine", "behind {about}");
    }
    !closes
}

/// Runs this many cases through all locations with several concurrent clients.
fn play(cases: u64, first: u64) {
    let origin = hostile();
    let server = Setup::new(CONF).origin(&origin).start(BINARY);
    let before: usize = server.workers().iter().map(|&pid| process::open_fds(pid)).sum();
    let next = Arc::new(AtomicU64::new(first));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (next, server) = (Arc::clone(&next), &server);
            scope.spawn(move || {
                let mut client = Client::connect(server.addr(0));
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + cases {
                        return;
                    }
                    // Cases in which the upstream is silent have a separate location with a short timeout.
                    let place = match Case::new(seed).then {
                        Then::Silence => "impatient",
                        _ => PLACES[seed as usize % (PLACES.len() - 1)],
                    };
                    for _ in 0..if place == "cache" { 2 } else { 1 } {
                        if !check(&mut client, place, seed) {
                            client = Client::connect(server.addr(0));
                        }
                    }
                }
            });
        }
    });
    sane(&server, &origin, before);
}

/// Checks that the log has no alerts, and that no connection and no descriptor was leaked.
fn sane(server: &Server, origin: &Origin, fds_before: usize) {
    let log = server.error_log();
    assert!(!log.contains("panicked") && !server.stderr().contains("panicked"), "{log}");
    assert!(!log.contains("[alert]") && !log.contains("[crit]") && !log.contains("[emerg]"), "{log}");
    // Four per thread may be kept alive.
    origin.wait_for("the end of connections", |stats| stats.connections_open <= 8);
    let fds = || server.workers().iter().map(|&pid| process::open_fds(pid)).sum::<usize>();
    let settled = || (fds() <= fds_before + 16).then_some(());
    if testkit::wait::until("descriptors", Deadline::default(), settled).is_err() {
        panic!("{} descriptors, {fds_before} before", fds());
    }
    // Truncated requests are those with early responses; no request was malformed.
    assert_eq!(origin.take_faults(), Vec::<String>::new());
}

#[test]
fn arbitrary_bytes_of_an_origin_are_harmless() {
    play(3000, 1);
}

/// Like [`arbitrary_bytes_of_an_origin_are_harmless`], with more cases.
#[test]
#[ignore = "takes minutes"]
fn many_arbitrary_responses_of_an_origin_are_harmless() {
    play(200_000, 1_000_000);
}

/// Requests that two parsers could interpret as different ones. No part of a body is ever a request at the origin.
#[test]
fn an_origin_gets_exactly_one_request_for_each() {
    const INNER: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = Setup::new(CONF).origin(&origin).start(BINARY);
    let len = INNER.len();
    let mut cases = Vec::new();
    for fields in [
        format!("Content-Length: {len}\r\nTransfer-Encoding: chunked"),
        "Transfer-Encoding: xchunked".to_owned(),
        "Transfer-Encoding: chunked, identity".to_owned(),
        "Transfer-Encoding : chunked".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".to_owned(),
        "Transfer-Encoding:\r\n chunked".to_owned(),
        format!("Content-Length: {len}\r\nContent-Length: 0"),
        format!("Content-Length: 0\r\nContent-Length: {len}"),
        format!("Content-Length: +{len}"),
        format!("Content-Length: {len}, 0"),
        format!("Content-Length: 0x{len:x}"),
        format!("Content-Length:\r\n {len}"),
        format!("X: 1\rContent-Length: {len}"),
        format!("X: \0\r\nContent-Length: {len}"),
        format!("Content-Length: {len}\r\nConnection: Content-Length"),
        format!("Content-Length: {len}\r\nConnection: close, Host, Content-Length"),
        format!("Content-Length: {len}\r\nContent_Length: 0\r\nTransfer_Encoding: chunked"),
        format!("Content-Length: {len}\r\nExpect: 100-continue"),
        format!("Content-Length: {len}\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings"),
        format!("Content-Length: {len}\r\nTE: chunked\r\nTrailer: Content-Length"),
    ] {
        for line in
            ["POST /P/x HTTP/1.1", "GET /P/x HTTP/1.1", "POST http://b/P/x HTTP/1.1", "POST /P/x HTTP/1.0"]
        {
            cases.push(format!("{line}\r\nHost: a\r\n{fields}\r\n\r\n{INNER}"));
        }
    }
    for chunks in [
        format!("{len:x}\n{INNER}\r\n0\r\n\r\n"),
        format!("0x{len:x}\r\n{INNER}\r\n0\r\n\r\n"),
        format!("-1\r\n{INNER}\r\n0\r\n\r\n"),
        format!("10000000000000000{len:x}\r\n{INNER}\r\n0\r\n\r\n"),
        format!("{len:x};\n{INNER}\r\n0\r\n\r\n"),
        format!("{len:x};a=\"\r\n{INNER}\"\r\n{INNER}\r\n0\r\n\r\n"),
        format!("{len:x}\r\n{INNER}X\r\n0\r\n\r\n"),
        format!("{len:x}\r\n{INNER}\r\n0\r\nContent-Length: 5\r\nHost: evil\r\n\r\n"),
    ] {
        cases.push(format!("POST /P/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"));
    }
    let mut sent = 0;
    for place in ["plain", "stream", "cache"] {
        for case in &cases {
            let text = case.replace("/P/", &format!("/{place}/"));
            let mut client = Client::connect(server.addr(0));
            // The server may close the connection before it has read everything.
            let _ = client.try_send(text.as_bytes());
            let got = client.try_response();
            if let Ok(response) = &got {
                assert!(
                    matches!(response.status, 100 | 200 | 400 | 411 | 501),
                    "{} for {text:?}",
                    response.status
                );
            }
            sent += u64::from(got.is_ok());
        }
    }
    assert!(sent > 100, "{sent} responses");
    for request in origin.requests() {
        let count = |name: &str| request.headers(name).count();
        let shown = || {
            format!(
                "{} {:?}",
                request.target,
                request.lines.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>()
            )
        };
        assert!(count("content-length") + count("transfer-encoding") <= 1, "{}", shown());
        assert_eq!(count("host"), 1, "{}", shown());
        assert_eq!(request.header("host").as_deref(), Some("hostile"), "{}", shown());
        assert!(request.target.ends_with("/x"), "{}", shown());
        for name in ["upgrade", "te", "expect", "http2-settings", "content_length", "transfer_encoding"] {
            assert_eq!(count(name), 0, "{name} in {}", shown());
        }
    }
    assert_eq!(origin.stats().of("/smuggled"), 0);
}
