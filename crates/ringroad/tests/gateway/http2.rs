//! HTTP/2 and gRPC to upstreams: forwarded requests and responses, effects of exchanges on one connection on each
//! other, and effects of hostile servers.

mod calls;
mod deadlines;
mod pings;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::common::BINARY;
use crate::common::http2::{
    self, DATA, END, GO_AWAY, HEADERS, PING, RESET, SETTINGS, WHOLE, WINDOW, block, frame, setting,
};
use crate::common::http2_origin::{Asked, Conn, Http2Origin};
use rustix::process::Signal;
use testkit::{Client, Deadline, Server, Setup, wait};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  proxy_cache_path @CACHE@ keys_zone=c:1m;
  upstream app { server @APP@; keepalive 8; }
  upstream two { server @APP@; server @OTHER@; keepalive 8; }
  client_max_body_size 100m;
  large_client_header_buffers 4 16k;
  server {
    listen 127.0.0.1:0;
    http2 on;
    proxy_http_version 2;
    proxy_pass_trailers on;
    location / { proxy_pass http://app; }
    location /once/ { proxy_pass http://@APP@; }
    location /stream/ { proxy_request_buffering off; proxy_buffering off; proxy_pass http://app; }
    location /set/ { proxy_set_header Host other.test; proxy_set_header TE trailers; proxy_set_header X $arg_x;
                     proxy_pass http://app; }
    location /authority/ { proxy_set_header Host $arg_h; proxy_pass http://app; }
    location /authority/grpc/ { grpc_set_header Host one; grpc_set_header Host $arg_h; grpc_pass grpc://app; }
    location /two/ { proxy_pass http://two; }
    location /cache/ { proxy_cache c; proxy_cache_valid 200 1h; add_header X-Cache $upstream_cache_status always;
                       proxy_pass http://app;
                       location /cache/grpc/ { grpc_pass grpc://app; } }
    location /grpc/ { grpc_pass grpc://app; grpc_set_header X set; }
    location /status/ { grpc_error_status on; grpc_pass grpc://app;
                        location /status/silent { grpc_read_timeout 300ms; grpc_pass grpc://app; }
                        location /status/denied/ { deny all; } }
    location /off/ { grpc_error_status off; grpc_pass grpc://app; }
    location /dead/ { grpc_pass grpc://127.0.0.1:1; }
    location /deadline/ { grpc_deadline on; grpc_pass grpc://app; }
    location /deadline/two/ { grpc_deadline on; grpc_pass grpc://two; }
    location /deadline/next/ { grpc_deadline on; grpc_next_upstream error timeout http_503 non_idempotent; grpc_pass grpc://two; }
  }
}
"#;

fn start_with(app: &Http2Origin, other: &Http2Origin) -> Server {
    Setup::new(CONF).value("APP", &app.address()).value("OTHER", &other.address()).start(BINARY)
}

fn start(app: &Http2Origin) -> Server {
    start_with(app, app)
}

/// Returns the received request as text.
fn shown(asked: &Asked) -> String {
    let fields = asked.fields.iter().map(|(name, value)| format!("{name}={value}\n"));
    let sum: u64 = asked.body.iter().map(|byte| u64::from(*byte)).sum();
    fields.collect::<String>() + &format!("body {} {sum}\n", asked.body.len())
}

fn echo(conn: &mut Conn, asked: &Asked) {
    conn.reply(asked.stream, 200, &[("content-type", "text/plain")], shown(asked).as_bytes());
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|place| (place % 251) as u8).collect()
}

#[test]
fn requests_have_pseudo_fields_first_and_no_connection_fields() {
    let app = Http2Origin::answering(echo);
    let server = start(&app);
    let mut client = Client::connect(server.addr(0));
    let fields = [
        ("Host", "client.test"),
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=1"),
        ("TE", "trailers"),
        ("User-Agent", "agent"),
        ("Cookie", "a=b"),
        ("X-Mixed-Case", "V"),
    ];
    let text = client.request("GET", "/a%20b?c", &fields).text();
    let wanted = ":method=GET\n:scheme=http\n:path=/a%20b?c\n:authority=app\nuser-agent=agent\ncookie=a=b\n\
                  x-mixed-case=V\nbody 0 0\n";
    assert_eq!(text, wanted);
    let text = client.request("DELETE", "/set/x?x=1", &[("Host", "client.test")]).text();
    let wanted = ":method=DELETE\n:scheme=http\n:path=/set/x?x=1\n:authority=other.test\nte=trailers\nx=1\n\
                  body 0 0\n";
    assert_eq!(text, wanted);
    // An empty `Host` is replaced by the default; the last of two is sent.
    for target in ["/authority/x", "/authority/grpc/x"] {
        assert!(client.get(target).text().contains("\n:authority=app\n"), "{target}");
        let text = client.get(&format!("{target}?h=two")).text();
        assert!(text.contains("\n:authority=two\n") && !text.contains("one"), "{target}: {text}");
    }
    assert_eq!(app.connections(), 1);
}

#[test]
fn bodies_of_all_lengths_pass_in_both_directions() {
    let app = Http2Origin::answering(|conn, asked| {
        let length = asked.body.len().to_string();
        conn.reply(asked.stream, 200, &[("content-length", length.as_str())], &asked.body);
    });
    let server = start(&app);
    for len in [1, 4_000, 16_384, 16_385, 65_535, 65_536, 300_000, 5_000_000] {
        let body = numbers(len);
        for target in ["/up", "/stream/up", "/once/up"] {
            let mut client = Client::connect(server.addr(0));
            let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len}\r\n\r\n");
            client.send([head.as_bytes(), &body].concat());
            assert!(client.response().body == body, "{target} {len}");
        }
        let mut client = http2::connect(&server);
        assert!(client.post("/stream/up", &[], &body).body == body, "{len} by HTTP/2");
    }
}

/// RFC 9113 section 8.1: responses without a body, and interim responses.
#[test]
fn responses_without_a_body_and_interim_responses_pass() {
    let app = Http2Origin::answering(|conn, asked| {
        conn.head(asked.stream, 103, &[("link", "</a>")], false);
        match asked.path() {
            "/none" => conn.head(asked.stream, 204, &[("x", "1")], true),
            "/same" => conn.head(asked.stream, 304, &[("etag", "\"e\""), ("content-length", "7")], true),
            "/data" => {
                conn.head(asked.stream, 304, &[("etag", "\"e\"")], false);
                conn.data(asked.stream, b"", true);
            }
            "/empty" => conn.head(asked.stream, 200, &[], true),
            _ => conn.head(asked.stream, 200, &[("content-length", "7")], true),
        }
    });
    let server = start(&app);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/none").head.status, 204);
    for target in ["/same", "/data"] {
        let response = client.get(target);
        assert_eq!((response.head.status, response.field("etag")), (304, Some("\"e\"")), "{target}");
    }
    assert_eq!(client.get("/empty").text(), "");
    client.send("HEAD /head HTTP/1.1\r\nHost: h\r\n\r\n");
    let response = client.response_to_head();
    assert_eq!((response.head.status, response.field("content-length")), (200, Some("7")));
    assert_eq!(response.head.reason, "OK");
    assert_eq!(app.connections(), 1, "each stream ended well");
}

#[test]
fn concurrent_requests_share_a_connection_as_the_server_allows() {
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, beside) = (Arc::clone(&most), AtomicUsize::new(0));
    // The origin responds on the first connection when it has four concurrent requests and other connections have the remaining
    // two.
    let app = Http2Origin::start(&setting(3, 4), move |conn| {
        let wants = |conn: &Conn| match conn.requests.values().next() {
            Some(first) if conn.number == 0 && first.path() == "/held" => conn.requests.len() >= 4,
            first => first.is_some(),
        };
        while conn.until(wants) {
            seen.fetch_max(conn.requests.len(), Ordering::Relaxed);
            let held = conn.requests.values().filter(|asked| asked.path() == "/held").count();
            if conn.number > 0 {
                beside.fetch_add(held, Ordering::Relaxed);
            } else if held > 0 {
                let are_there = || (beside.load(Ordering::Relaxed) >= 2).then_some(());
                wait::until("the other two", Deadline::default(), are_there).expect("other connections");
            }
            for (_, asked) in std::mem::take(&mut conn.requests) {
                echo(conn, &asked);
            }
        }
    });
    let server = start(&app);
    // After this response the server has received the limit.
    assert_eq!(Client::connect(server.addr(0)).get("/warm").status, 200);
    let mut clients: Vec<_> = (0..6).map(|_| Client::connect(server.addr(0))).collect();
    clients.iter_mut().for_each(|client| _ = client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n"));
    clients.iter_mut().for_each(|client| assert_eq!(client.response().head.status, 200));
    assert_eq!(most.load(Ordering::Relaxed), 4);
    assert!((2..=3).contains(&app.connections()), "{}", app.connections());
}

/// A client that does not read blocks only its own stream.
#[test]
fn a_client_that_does_not_read_blocks_only_its_own_stream() {
    let app = Http2Origin::answering(|conn, asked| match asked.path() {
        // The stream's window stops it; the connection's window is far larger.
        "/stream/big" => {
            conn.head(asked.stream, 200, &[], false);
            let stream = asked.stream;
            let mut left = numbers(1_000_000);
            while !left.is_empty() {
                let room = conn.window(stream).min(16_384) as usize;
                let part = left.split_off(left.len() - room.min(left.len()));
                if part.is_empty() {
                    return;
                }
                conn.data(stream, &part, false);
            }
        }
        _ => echo(conn, asked),
    });
    let server = start(&app);
    let mut slow = http2::connect_with(&server, &setting(4, 0));
    slow.opens = false;
    let stream = slow.ask("/stream/big");
    slow.until(|client| client.streams.get(&stream).is_some_and(|got| got.status == 200));
    let mut other = Client::connect(server.addr(0));
    for _ in 0..20 {
        assert_eq!(other.get("/a").head.status, 200);
    }
    assert_eq!(app.connections(), 1);
    assert!(slow.streams[&stream].body.is_empty());
}

/// RFC 9113 section 6.9: no more is sent than the windows allow, and the rest is sent when they open.
#[test]
fn bodies_obey_the_flow_control_of_the_upstream() {
    let app = Http2Origin::start(&setting(4, 10), |conn| {
        conn.opens = false;
        while conn.until(|conn| !conn.requests.is_empty()) {
            let id = *conn.requests.keys().next().expect("one");
            let mut allowed = 10;
            loop {
                let len = |conn: &Conn| conn.requests[&id].body.len();
                if !conn.until(|conn| len(conn) == allowed || conn.requests[&id].ended) {
                    return;
                }
                assert!(len(conn) <= allowed, "{} bytes", len(conn));
                if conn.requests[&id].ended {
                    break;
                }
                // The PING's acknowledgement proves that no more DATA was sent.
                allowed += 1_000;
                conn.send(&[frame(WINDOW, 0, id, &1_000u32.to_be_bytes())].concat());
            }
            let asked = conn.requests.remove(&id).expect("it is there");
            echo(conn, &asked);
        }
    });
    let server = start(&app);
    // Until the server's SETTINGS are known, windows have the RFC's initial size.
    assert_eq!(Client::connect(server.addr(0)).get("/warm").head.status, 200);
    let body = numbers(20_500);
    let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
    for target in ["/up", "/stream/up"] {
        let mut client = Client::connect(server.addr(0));
        let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        client.send([head.as_bytes(), &body].concat());
        let text = client.response().text();
        assert!(text.ends_with(&format!("body 20500 {sum}\n")), "{text}");
    }
}

/// RFC 9113 section 8.7: requests that a server reports as unprocessed are sent again, whatever the method.
#[test]
fn unprocessed_requests_are_retried() {
    let refusals = AtomicUsize::new(0);
    let app = Http2Origin::answering(move |conn, asked| {
        let is_first = asked.path().contains("again") && refusals.fetch_add(1, Ordering::Relaxed) == 0;
        match asked.path() {
            "/warm" => echo(conn, asked),
            "/again/goaway" if is_first => {
                let (last, code) = ((asked.stream - 2).to_be_bytes(), 0u32.to_be_bytes());
                conn.frame(GO_AWAY, 0, 0, &[last, code].concat());
            }
            _ => echo(conn, asked),
        }
    });
    let server = start(&app);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/warm").head.status, 200);
    client.send("POST /again/goaway HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    let response = client.response();
    assert!(response.head.status == 200 && response.text().contains("body 3 294"), "{}", response.text());
    assert_eq!(app.connections(), 2);

    // An upstream group: requests that this server refuses are sent to the other.
    let refusing = Http2Origin::answering(|conn, asked| {
        conn.frame(RESET, 0, asked.stream, &7u32.to_be_bytes());
    });
    let good = Http2Origin::answering(echo);
    let server = start_with(&refusing, &good);
    let mut client = Client::connect(server.addr(0));
    for _ in 0..4 {
        client.send("POST /two/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        let response = client.response();
        assert!(response.head.status == 200 && response.text().contains("body 3 294"), "{}", response.text());
    }
}

/// After a GOAWAY the connection is closed when its streams have ended: begun streams are completed.
#[test]
fn begun_streams_are_completed_after_a_goaway() {
    let app = Http2Origin::answering(|conn, asked| {
        let (last, code) = (asked.stream.to_be_bytes(), 0u32.to_be_bytes());
        conn.frame(GO_AWAY, 0, 0, &[last, code].concat());
        echo(conn, asked);
    });
    let server = start(&app);
    let mut client = Client::connect(server.addr(0));
    for count in 1..=3 {
        assert_eq!(client.get("/a").head.status, 200);
        assert_eq!(app.connections(), count, "each uses a separate connection");
    }
}

/// A protocol violation by the server is a 502 with its reason in the log; the next request uses a new connection or a
/// new stream.
#[test]
fn hostile_upstreams_cause_a_502_and_a_log_line() {
    let head = |fields: &[(&str, &str)], flags: u8| frame(HEADERS, WHOLE | flags, 1, &block(fields));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("text", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), "upstream sent too large frame"),
        ("reset", frame(RESET, 0, 1, &2u32.to_be_bytes()), "upstream rejected request with error 2"),
        ("no status", head(&[("a", "b")], END), "upstream sent no :status header"),
        ("status", head(&[(":status", "2x0")], END), "upstream sent invalid :status"),
        ("twice", head(&[(":status", "200"), (":status", "200")], END), "duplicate :status"),
        ("101", head(&[(":status", "101")], END), "upstream sent unexpected :status"),
        ("upper case", head(&[(":status", "200"), ("A", "b")], END), "upstream sent invalid header"),
        ("line", head(&[(":status", "200"), ("a", "b\r\nc: d")], END), "upstream sent invalid header"),
        ("connection", head(&[(":status", "200"), ("connection", "close")], END), "connection-specific"),
        ("large", head(&[(":status", "200"), ("a", &"x".repeat(9_000))], END), "too big header"),
        ("interim end", head(&[(":status", "103")], END), "upstream sent unexpected :status"),
        ("data first", frame(DATA, END, 1, b"x"), "upstream sent no :status header"),
        ("hpack", frame(HEADERS, WHOLE | END, 1, &[0x80]), "header block that cannot be decoded"),
        (
            "no body",
            head(&[(":status", "200"), ("content-length", "7")], END),
            "upstream sent no body although",
        ),
        ("push", frame(5, WHOLE, 1, &2u32.to_be_bytes()), "PUSH_PROMISE"),
        ("idle", frame(DATA, 0, 9, b"x"), "frame for idle stream"),
        ("even", frame(HEADERS, WHOLE | END, 2, &block(&[(":status", "200")])), "incorrect identifier"),
        ("long", frame(DATA, 0, 1, &[0; 20_000]), "too large frame"),
        ("window", frame(WINDOW, 0, 0, &0u32.to_be_bytes()), "incorrect window increment 0"),
        ("setting", frame(SETTINGS, 0, 0, &setting(2, 1)), "incorrect value"),
        ("pings", frame(PING, 0, 0, &[0; 8]).repeat(4_000), "http2 flood"),
        ("close", Vec::new(), "upstream prematurely closed connection"),
    ];
    for (name, bytes, words) in cases {
        let is_closing = bytes.is_empty();
        let app = Http2Origin::start(&[], move |conn| {
            if conn.number > 0 {
                while let Some(asked) = conn.request() {
                    echo(conn, &asked);
                }
                return;
            }
            let _ = conn.request();
            conn.send(&bytes);
            if !is_closing {
                while conn.request().is_some() {}
            }
        });
        let server = start(&app);
        let mut client = Client::connect(server.addr(0));
        assert_eq!(client.get("/a").head.status, 502, "{name}");
        server.wait_for_log(words, Deadline::default());
        if is_closing {
            assert_eq!(client.get("/b").head.status, 200, "{name}");
        }
    }
}

/// RFC 9113 sections 8.1, 8.2.2 and 8.3: a trailer section must end the stream, and must not have pseudo-header or connection-specific
/// fields.
#[test]
fn invalid_trailer_sections_of_upstreams_are_refused() {
    let app = Http2Origin::answering(|conn, asked| {
        conn.head(asked.stream, 200, &[], false);
        conn.data(asked.stream, b"body", false);
        let (field, flags) = match asked.path().rsplit('/').next() {
            Some("good") => (("a", "b"), END),
            Some("endless") => (("a", "b"), 0),
            Some("pseudo") => ((":status", "200"), END),
            Some("name") => (("A", "b"), END),
            _ => (("connection", "close"), END),
        };
        conn.frame(HEADERS, WHOLE | flags, asked.stream, &block(&[field]));
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    for (name, is_good) in
        [("good", true), ("endless", false), ("pseudo", false), ("name", false), ("connection", false)]
    {
        let got = client.get(&format!("/stream/{name}"));
        assert_eq!(
            (got.status, got.ended, got.trailers.len()),
            (200, is_good, usize::from(is_good)),
            "{name}"
        );
        assert_eq!(got.reset.is_some(), !is_good, "{name}");
    }
    assert_eq!(app.connections(), 1, "stream errors");
}

/// RFC 9113 section 8.1: a server may reset a request after a complete response, which remains valid.
#[test]
fn an_early_response_survives_the_reset_of_its_request() {
    let app = Http2Origin::start(&[], |conn| {
        conn.opens = false;
        while conn.until(|conn| conn.requests.values().any(|asked| !asked.body.is_empty())) {
            let stream = *conn.requests.keys().next().expect("one");
            conn.requests.remove(&stream);
            let head = frame(HEADERS, WHOLE, stream, &block(&[(":status", "200")]));
            let (body, reset) = (frame(DATA, END, stream, b"early"), frame(RESET, 0, stream, &[0; 4]));
            conn.send(&[head, body, reset].concat());
        }
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    for target in ["/stream/a", "/grpc/a"] {
        let stream = client.begin("POST", target, &[], false);
        client.body_without_end(stream, &numbers(60_000));
        let got = client.response(stream);
        assert_eq!((got.status, got.text().as_str(), got.ended), (200, "early", true), "{target}");
    }
}

/// RFC 7541 sections 6.2.3 and 7.1.3: a never-indexed field is passed on as never indexed, in both directions.
#[test]
fn never_indexed_fields_are_passed_on_as_never_indexed() {
    let app = Http2Origin::answering(|conn, asked| {
        let has = |name: &str| asked.never_indexed.as_ref().is_some_and(|names| names.has(name.as_bytes()));
        let seen = format!("{} {}", has("x-secret"), has("x-open"));
        let mut head = block(&[(":status", "200"), ("x-seen", &seen)]);
        // Two never-indexed fields with literal names.
        head.extend(b"\x10\x07x-token\x03abc\x10\x04etag\x03\"1\"");
        conn.frame(HEADERS, WHOLE | END, asked.stream, &head);
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    // The second request would find the fields in the tables if they had been indexed.
    for _ in 0..2 {
        let stream = client.next_stream();
        let line = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/a"),
            (":authority", "here"),
            ("x-open", "1"),
        ];
        let mut head = block(&line);
        head.extend(b"\x10\x08x-secret\x02me");
        client.frame(HEADERS, WHOLE | END, stream, &head);
        let got = client.response(stream);
        assert_eq!((got.field("x-seen"), got.field("x-token")), (Some("true false"), Some("abc")));
        let names = got.never_indexed.expect("some");
        assert!(names.has(b"x-token") && !names.has(b"x-seen"), "{names:?}");
    }
    assert_eq!(client.get("/a").field("x-seen"), Some("false false"), "only fields of the same request");
}

/// An incomplete body of an upstream aborts the response to the client, and is not stored.
#[test]
fn incomplete_bodies_are_not_treated_as_complete() {
    let count = AtomicUsize::new(0);
    let app = Http2Origin::answering(move |conn, asked| {
        if count.fetch_add(1, Ordering::Relaxed) > 2 {
            return conn.reply(asked.stream, 200, &[], b"whole");
        }
        let length = [("content-length", "10")];
        conn.head(asked.stream, 200, if asked.path().contains("length") { &length } else { &[] }, false);
        conn.data(asked.stream, b"half", asked.path().contains("length"));
        if !asked.path().contains("length") {
            conn.frame(RESET, 0, asked.stream, &2u32.to_be_bytes());
        }
    });
    let server = start(&app);
    for target in ["/cache/a", "/stream/length", "/stream/b"] {
        let mut client = Client::connect(server.addr(0));
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let rest = client.read_to_end();
        let text = String::from_utf8_lossy(&rest);
        // The response is truncated, or is only an error page. A frame that is too short for its payload delivers
        // nothing.
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let is_cut = head.starts_with("HTTP/1.1 200 ") && ["", "half", "4\r\nhalf\r\n"].contains(&body);
        assert!(is_cut || head.starts_with("HTTP/1.1 502 "), "{target}: {text}");
    }
    let mut client = Client::connect(server.addr(0));
    let response = client.get("/cache/a");
    assert_eq!((response.text().as_str(), response.field("X-Cache")), ("whole", Some("MISS")));
}

#[test]
fn the_cache_stores_responses_received_by_http2() {
    let app = Http2Origin::answering(|conn, asked| {
        conn.reply(asked.stream, 200, &[("x", "y")], &numbers(50_000));
    });
    let server = start(&app);
    let mut client = Client::connect(server.addr(0));
    assert!(client.get("/cache/a").body == numbers(50_000));
    let hit = || {
        let response = Client::connect(server.addr(0)).get("/cache/a");
        assert!(response.body == numbers(50_000));
        response.field("X-Cache") == Some("HIT")
    };
    wait::until("a hit", Deadline::default(), || hit().then_some(())).expect("it is stored");
}

#[test]
fn trailers_reach_clients_of_both_versions() {
    let app = Http2Origin::answering(|conn, asked| {
        conn.head(asked.stream, 200, &[("content-type", "text/plain")], false);
        conn.data(asked.stream, b"body", false);
        conn.trailers(asked.stream, &[("x-sum", "1"), ("x-sum", "2")]);
    });
    let server = start(&app);
    for target in ["/a", "/stream/a", "/grpc/a"] {
        let got = http2::connect(&server).get(target);
        let wanted =
            [("x-sum", "1"), ("x-sum", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((got.text().as_str(), &got.trailers[..]), ("body", &wanted[..]), "{target}");
    }
    let mut client = Client::connect(server.addr(0));
    client.send("GET /stream/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let text = String::from_utf8(client.read_to_end()).expect("text");
    assert!(text.ends_with("4\r\nbody\r\n0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n"), "{text}");
}

/// Trailers of a request are forwarded after the last byte of its body, except those that could change the message. For
/// HTTP/1 they are dropped.
#[test]
fn trailers_of_requests_reach_upstreams_of_http2() {
    let app = Http2Origin::answering(|conn, asked| {
        let trailers = asked.trailers.iter().map(|(name, value)| format!("[{name}={value}]"));
        let text = format!("{} {}", asked.body.len(), trailers.collect::<String>());
        conn.reply(asked.stream, 200, &[("content-type", "text/plain")], text.as_bytes());
    });
    let server = start(&app);
    let fields = [("te", "trailers"), ("content-type", "application/grpc")];
    let long = "x".repeat(7_000);
    for target in ["/a", "/stream/a", "/grpc/a"] {
        for body in [b"body".as_slice(), &numbers(100_000)] {
            let mut client = http2::connect(&server);
            let stream = client.begin("POST", target, &fields, false);
            client.body_without_end(stream, body);
            let sent = [("x-sum", "1"), ("content-length", "9"), ("x-sum", "2"), ("x-long", &long)];
            client.frame(HEADERS, WHOLE | END, stream, &block(&sent));
            let wanted = format!("{} [x-sum=1][x-sum=2][x-long={long}]", body.len());
            assert_eq!(client.response(stream).text(), wanted, "{target}");
        }
    }
    let mut client = http2::connect(&server);
    let stream = client.begin("POST", "/a", &fields, false);
    client.frame(HEADERS, WHOLE | END, stream, &block(&[("x-long", &"x".repeat(9_000))]));
    assert_eq!(client.response(stream).reset, Some(1), "longer than in HTTP/1");
    let mut client = Client::connect(server.addr(0));
    client.send("POST /stream/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(client.response().text(), "3 ");
}

/// Both directions stay open: the client sends its next message after it has received the response to the last one.
#[test]
fn grpc_messages_pass_in_both_directions_on_one_stream() {
    let app = Http2Origin::start(&[], |conn| {
        if !conn.until(|conn| !conn.requests.is_empty()) {
            return;
        }
        let id = *conn.requests.keys().next().expect("one");
        let asked = conn.requests[&id].clone();
        assert_eq!((asked.field("te"), asked.field("x")), (Some("trailers"), Some("set")));
        assert_eq!(asked.field(":path"), Some("/grpc/Talk"));
        assert_eq!(asked.field("content-type"), Some("application/grpc"));
        conn.head(id, 200, &[("content-type", "application/grpc")], false);
        for count in 1.. {
            if !conn.until(|conn| conn.requests[&id].body.len() >= count || conn.requests[&id].ended) {
                return;
            }
            if conn.requests[&id].ended {
                break;
            }
            let echoed = conn.requests[&id].body[count - 1];
            conn.data(id, &[echoed], false);
        }
        conn.trailers(id, &[("grpc-status", "0"), ("grpc-message", "")]);
        while conn.request().is_some() {}
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    let fields = [("te", "trailers"), ("content-type", "application/grpc")];
    let stream = client.begin("POST", "/grpc/Talk", &fields, false);
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.status == 200));
    for count in 1..=10usize {
        client.frame(DATA, 0, stream, &[count as u8]);
        client.until(|client| client.streams[&stream].body.len() == count);
        assert_eq!(client.streams[&stream].body[count - 1], count as u8);
    }
    client.frame(DATA, END, stream, &[]);
    let got = client.response(stream);
    assert_eq!(got.trailers[0], ("grpc-status".to_owned(), "0".to_owned()));
    assert_eq!(got.reset, None);
}

/// A response with only trailers is a HEADERS frame with END_STREAM.
#[test]
fn grpc_errors_have_no_body() {
    let app = Http2Origin::answering(|conn, asked| {
        conn.head(asked.stream, 200, &[("content-type", "application/grpc"), ("grpc-status", "12")], true);
    });
    let server = start(&app);
    let got = http2::connect(&server).post("/grpc/None", &[("te", "trailers")], b"x");
    assert_eq!((got.status, got.field("grpc-status"), got.body.len(), got.ended), (200, Some("12"), 0, true));
}

/// A client that cancels a request cancels its stream to the upstream (RFC 9113 section 7); the connection stays usable
/// for others.
#[test]
fn a_cancelled_request_cancels_only_its_upstream_stream() {
    let (tell, told) = channel();
    let app = Http2Origin::start(&[], move |conn| {
        if !conn.until(|conn| conn.requests.len() == 1) {
            return;
        }
        let id = *conn.requests.keys().next().expect("one");
        tell.send(()).expect("the test waits");
        if !conn.until(|conn| conn.requests[&id].reset.is_some()) {
            return;
        }
        assert_eq!(conn.requests[&id].reset, Some(8), "CANCEL");
        while let Some(asked) = conn.request() {
            echo(conn, &asked);
        }
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    let stream = client.ask("/stream/wait");
    told.recv().expect("a request");
    client.frame(RESET, 0, stream, &8u32.to_be_bytes());
    assert_eq!(client.get("/a").status, 200);
    assert_eq!(app.connections(), 1);
}

/// A client of either HTTP version that disconnects, before or during the response, cancels its stream to the upstream.
#[test]
fn a_client_that_disconnects_cancels_its_upstream_stream() {
    for (path, has_begun) in
        [("/stream/wait", false), ("/stream/head", true), ("/wait", false), ("/head", true)]
    {
        for is_http1 in [true, false] {
            let (tell, told) = channel();
            let app = Http2Origin::start(&[], move |conn| {
                if !conn.until(|conn| conn.requests.len() == 1) {
                    return;
                }
                let id = *conn.requests.keys().next().expect("one");
                if has_begun {
                    conn.head(id, 200, &[("content-type", "text/plain")], false);
                    conn.data(id, b"a part", false);
                }
                tell.send(None).expect("the test waits");
                let ends = conn.until(|conn| conn.requests[&id].reset.is_some());
                tell.send(conn.requests[&id].reset.filter(|_| ends)).expect("the test waits");
                while conn.request().is_some() {}
            });
            let server = start(&app);
            if is_http1 {
                let mut client = Client::connect(server.addr(0));
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
                assert_eq!(told.recv(), Ok(None), "the request has arrived");
                drop(client);
            } else {
                let mut client = http2::connect(&server);
                let stream = client.ask(path);
                assert_eq!(told.recv(), Ok(None), "the request has arrived");
                if has_begun && path.starts_with("/stream") {
                    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.body.len() == 6));
                }
                drop(client);
            }
            assert_eq!(told.recv(), Ok(Some(8)), "{path} by HTTP/1 {is_http1}: CANCEL");
        }
    }
}

/// A reset by the upstream before its response: a 502 as in nginx, and a retry only after REFUSED_STREAM. Within its
/// response, the client receives the codes that concern the call; gRPC clients map them to a status.
#[test]
fn resets_of_upstreams_cause_502_retry_or_abort() {
    let app = Http2Origin::answering(|conn, asked| {
        let code: u32 = asked.path().rsplit('/').next().and_then(|code| code.parse().ok()).expect("a code");
        if asked.path().contains("begun") {
            conn.head(asked.stream, 200, &[("content-type", "application/grpc")], false);
            conn.data(asked.stream, b"a part", false);
        }
        conn.frame(RESET, 0, asked.stream, &code.to_be_bytes());
    });
    let other = Http2Origin::answering(echo);
    let server = start_with(&app, &other);
    let mut client = http2::connect(&server);
    for code in 0..=14 {
        for target in ["/a", "/stream", "/grpc"] {
            let got = client.post(&format!("{target}/{code}"), &[], b"x");
            assert_eq!((got.status, got.ended), (502, true), "{target} {code}");
        }
        for target in ["/stream", "/grpc"] {
            let got = client.get(&format!("{target}/begun/{code}"));
            let passed = if [8, 11, 12].contains(&code) { code } else { 2 };
            assert_eq!((got.status, got.reset), (200, Some(passed)), "{target} {code}");
        }
    }
    let has_failed = |code: u32| {
        let server = start_with(&app, &other);
        let mut client = http2::connect(&server);
        (0..2).any(|_| client.post(&format!("/two/{code}"), &[], b"x").status == 502)
    };
    assert_eq!([7, 8].map(has_failed), [false, true], "a POST is retried if it was not processed");
}

/// gRPC clients get a gRPC status for every error that is not from their upstream.
#[test]
fn errors_become_a_grpc_status_with_grpc_error_status() {
    let app = Http2Origin::answering(|conn, asked| match asked.path().rsplit('/').next().expect("a name") {
        "silent" => {}
        "not-found" => conn.head(asked.stream, 404, &[("content-type", "text/plain")], true),
        code => {
            let code: u32 = code.parse().expect("a code");
            conn.frame(RESET, 0, asked.stream, &code.to_be_bytes());
        }
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    let call = [("te", "trailers"), ("content-type", "application/grpc+proto")];
    let mut called = |target: &str| {
        let got = client.post(target, &call, b"x");
        let field = |name| got.field(name).unwrap_or("-").to_owned();
        (got.status, field("grpc-status"), field("grpc-message"), got.body.len(), got.ended)
    };
    let status = |status: &str, message: &str| (200, status.to_owned(), message.to_owned(), 0, true);
    for code in 0..=14u32 {
        let wanted = match code {
            7 => "14",
            8 => "1",
            11 => "8",
            12 => "7",
            _ => "13",
        };
        assert_eq!(called(&format!("/status/{code}")), status(wanted, "Bad Gateway"), "{code}");
    }
    assert_eq!(called("/status/silent"), status("4", "Gateway Time-out"));
    assert_eq!(called("/status/denied/x"), status("7", "Forbidden"));
    let (code, grpc, ..) = called("/status/not-found");
    assert_eq!((code, grpc.as_str()), (404, "-"), "an error of the server itself");
    let (code, grpc, ..) = called("/grpc/2");
    assert_eq!((code, grpc.as_str()), (200, "13"), "the default with grpc_pass");
    let (code, grpc, ..) = called("/off/2");
    assert_eq!((code, grpc.as_str()), (502, "-"), "the directive is off");
    assert_eq!(called("/dead/x"), status("14", "Bad Gateway"), "no upstream responds");
    let got = client.post("/status/2", &[], b"x");
    assert_eq!((got.status, got.field("grpc-status")), (502, None), "the client does not use gRPC");
    // Over HTTP/1 the end of the response must be known.
    let mut client = Client::connect(server.addr(0));
    for _ in 0..2 {
        client.send("POST /status/2 HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n");
        let response = client.response();
        assert_eq!((response.status, response.field("grpc-status")), (200, Some("13")));
    }
}

/// As in nginx, gRPC has no cache directives, and HTTP cache directives do not apply to `grpc_pass`.
#[test]
fn grpc_responses_are_not_cached() {
    for directive in
        ["grpc_cache c;", "grpc_cache_valid 1h;", "grpc_cache_key x;", "grpc_store on;", "grpc_buffering on;"]
    {
        let conf = format!(
            "events {{}} http {{ server {{ listen 127.0.0.1:0; location / {{ {directive} grpc_pass grpc://127.0.0.1:1; }} }} }}"
        );
        let (status, output) = Server::builder(BINARY).conf(&conf).run_to_end();
        let name = directive.split(' ').next().expect("a name");
        assert!(!status.success() && output.contains(&format!("unknown directive \"{name}\"")), "{output}");
    }
    let count = AtomicUsize::new(0);
    let app = Http2Origin::answering(move |conn, asked| {
        let text = count.fetch_add(1, Ordering::Relaxed).to_string();
        conn.reply(asked.stream, 200, &[("cache-control", "max-age=3600")], text.as_bytes());
    });
    let server = start(&app);
    let mut client = http2::connect(&server);
    assert_eq!(client.get("/cache/grpc/a").text(), "0");
    assert_eq!(client.get("/cache/grpc/a").text(), "1", "grpc_pass stores nothing");
    assert_eq!(client.get("/cache/a").text(), "2");
    assert_eq!(client.get("/cache/a").text(), "2", "proxy_pass stores it");
}

/// A connection to an upstream that no longer responds is not used again, once a PING on it gets no response.
#[test]
fn a_dead_upstream_connection_is_not_used_again() {
    let app = Http2Origin::start(&[], |conn| {
        conn.acknowledges = conn.number > 0;
        loop {
            let Some(asked) = conn.request() else { return };
            if conn.number > 0 {
                echo(conn, &asked);
            }
        }
    });
    // A PING is sent if nothing was received for two seconds.
    let conf = CONF.replace("proxy_http_version 2;", "proxy_http_version 2; proxy_read_timeout 2200ms;");
    let server = Setup::new(&conf).value("APP", &app.address()).value("OTHER", &app.address()).start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a").head.status, 504);
    let answered = || (client.get("/b").head.status == 200).then_some(());
    wait::until("another connection", Deadline::default(), answered).expect("the dead one is not used");
}

/// `keepalive` limits idle connections: of two connections that become idle, the server closes one.
#[test]
fn idle_connections_above_the_limit_are_closed() {
    let (go, gone) = channel();
    let (gone, closed) = (Mutex::new(gone), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&closed);
    // SETTINGS_MAX_CONCURRENT_STREAMS: each exchange needs a connection.
    let app = Http2Origin::start(&setting(3, 1), move |conn| {
        // An idle connection is not closed by the origin.
        conn.sender().set_read_timeout(None).expect("a socket");
        while let Some(asked) = conn.request() {
            conn.head(asked.stream, 200, &[], false);
            conn.data(asked.stream, b"one ", false);
            gone.lock().expect("no panic").recv().expect("the test goes on");
            conn.data(asked.stream, b"two", true);
        }
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let conf = CONF.replace("keepalive 8;", "keepalive 1; keepalive_timeout 1h;");
    let server = Setup::new(&conf).value("APP", &app.address()).value("OTHER", &app.address()).start(BINARY);
    let mut client = http2::connect(&server);
    let streams = [(); 2].map(|()| {
        let stream = client.ask("/stream/held");
        client.until(|client| client.streams.get(&stream).is_some_and(|got| got.body == b"one "));
        stream
    });
    assert_eq!(app.connections(), 2);
    (0..3).for_each(|_| go.send(()).expect("the origin waits"));
    for stream in streams {
        assert_eq!(client.response(stream).text(), "one two");
    }
    let is_closed = || (closed.load(Ordering::Relaxed) == 1).then_some(());
    wait::until("the end of a connection", Deadline::default(), is_closed).expect("the limit is 1");
    let stream = client.ask("/a");
    assert_eq!((client.response(stream).text().as_str(), app.connections()), ("one two", 2));
}

/// Open streams are completed under their configuration, and later requests use new connections.
#[test]
fn open_streams_are_completed_after_a_reload() {
    let (go, gone) = channel();
    let gone = Arc::new(Mutex::new(gone));
    let app = Http2Origin::answering(move |conn, asked| {
        if asked.path() == "/stream/held" {
            conn.head(asked.stream, 200, &[], false);
            conn.data(asked.stream, b"one ", false);
            let (mut sender, stream) = (conn.sender(), asked.stream);
            let gone = Arc::clone(&gone);
            std::thread::spawn(move || {
                gone.lock().expect("no panic").recv().expect("the test goes on");
                sender.write_all(&frame(DATA, END, stream, b"two")).expect("it is connected");
            });
        } else {
            echo(conn, asked);
        }
    });
    let server = start(&app);
    let mut held = http2::connect(&server);
    let stream = held.ask("/stream/held");
    held.until(|client| client.streams.get(&stream).is_some_and(|got| got.body == b"one "));
    server.signal(Signal::HUP);
    server.wait_for_log("reconfiguring", Deadline::default());
    let moved = || {
        assert_eq!(Client::connect(server.addr(0)).get("/a").head.status, 200);
        (app.connections() > 1).then_some(())
    };
    wait::until("another connection", Deadline::default(), moved).expect("no old connection is reused");
    go.send(()).expect("the origin waits");
    let got = held.response(stream);
    assert_eq!((got.text().as_str(), got.reset), ("one two", None));
}
