//! Bodies to and from upstreams, tested with the binary: uploads that are buffered first or streamed, other protocols
//! after a 101, and proxied responses in subrequests.

use crate::common;
use crate::common::BINARY;
use testkit::origin::{Ended, Origin, Reply};
use testkit::{Client, Content, Deadline, Filesystem, Gate, Server, Setup};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format up '$status|$upstream_status|$upstream_bytes_sent|$request_length';
  access_log logs/access.log up;
  proxy_temp_path @DATA@;
  proxy_cache_path @CACHE@ keys_zone=bodies:1m;
  client_body_buffer_size 8k;
  client_max_body_size 1m;
  proxy_http_version 1.1;
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /stream/ { proxy_pass http://@ORIGIN@; proxy_request_buffering off; }
    location /stalled/ { proxy_pass http://@ORIGIN@; proxy_request_buffering off; client_body_timeout 300ms; }
    location /interim/ { proxy_pass http://@ORIGIN@; proxy_request_buffering off; proxy_read_timeout 100ms;
       client_body_timeout 1s; }
    location /ws/ { proxy_pass http://@ORIGIN@;
       proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
       location /ws/silent { proxy_pass http://@ORIGIN@; proxy_read_timeout 3s; } }
    location /protected/ { auth_request /auth; proxy_pass http://@ORIGIN@; }
    location = /auth { internal; proxy_pass http://@ORIGIN@/auth; proxy_pass_request_body off;
       proxy_set_header Content-Length ''; }
    location /page/ { ssi on; ssi_types *; proxy_pass http://@ORIGIN@; }
    location /mirrored/ { mirror /mirror; proxy_pass http://@ORIGIN@; }
    location = /mirror { internal; proxy_pass http://@ORIGIN@/copy$request_uri; }
    location /zip/ { gzip on; gzip_types *; gzip_min_length 1; proxy_pass http://@ORIGIN@; }
    location /trailers/ { proxy_pass http://@ORIGIN@; proxy_pass_trailers on; }
    location /hidden/ { proxy_pass http://@ORIGIN@; proxy_pass_trailers on; proxy_hide_header X-Secret;
       proxy_pass_header X-Pad; proxy_buffering off; location /hidden/read/ { proxy_buffering on;
       proxy_pass http://@ORIGIN@; } }
    location /early/ { proxy_pass http://@ORIGIN@; proxy_buffering off; proxy_read_timeout 2s;
       client_body_temp_path @TEMP@; client_body_buffer_size 6m; client_max_body_size 16m; }
    location /full/ { proxy_pass http://@ORIGIN@; client_body_temp_path @TEMP@; @WHOLE@ }
    location /whole/ { client_body_temp_path @TEMP@; client_max_body_size 4m; proxy_pass http://@ORIGIN@;
       location /whole/mirrored/ { mirror /mirror; proxy_pass http://@ORIGIN@; }
       location /whole/cached/ { proxy_cache bodies; proxy_cache_methods POST GET;
          proxy_cache_key $request_uri; proxy_cache_valid 1m; proxy_pass http://@ORIGIN@; }
       location /whole/set/ { proxy_set_body '<$request_body>'; proxy_pass http://@ORIGIN@; } }
    location /slow/ { proxy_pass http://@ORIGIN@; proxy_limit_rate 200k; }
  }
}
";

fn start(origin: &Origin) -> Server {
    start_with(origin, "/proc/none", "")
}

/// `/full/` has its temporary files in this directory.
fn start_with(origin: &Origin, folder: &str, whole: &str) -> Server {
    Setup::new(CONF).origin(origin).value("TEMP", folder).value("WHOLE", whole).start(BINARY)
}

fn start_with_http2(origin: &Origin, folder: &str) -> Server {
    let conf = CONF.replacen("http {", "http { http2 on;", 1);
    Setup::new(&conf).origin(origin).value("TEMP", folder).value("WHOLE", "").start(BINARY)
}

fn upload(client: &mut Client, target: &str, body: &[u8]) -> testkit::Response {
    client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(body);
    client.response()
}

fn upload_chunked(client: &mut Client, target: &str, pieces: &[&[u8]]) -> testkit::Response {
    client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for piece in pieces {
        client.send(format!("{:x}\r\n", piece.len())).send(piece).send("\r\n");
    }
    client.send("0\r\n\r\n");
    client.response()
}

#[test]
fn uploads_of_every_size_and_framing_arrive() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    let content = Content::new(4, 400_000);
    for target in ["/", "/stream/"] {
        for size in [0, 1, 5000, 20_000, 400_000] {
            let body = content.bytes(0..size);
            assert_eq!(upload(&mut client, target, &body).body, body, "{size} bytes to {target}");
            let request = origin.last_request();
            assert_eq!(request.header("content-length"), Some(size.to_string()), "{target}");
        }
        let body = content.bytes(0..100_000);
        let pieces = [&body[..1], &body[1..70_000], &body[70_000..]];
        assert_eq!(upload_chunked(&mut client, target, &pieces).body, body, "{target}");
        let chunked = origin.last_request().header("transfer-encoding");
        // A buffered body has a length; a streamed one is forwarded as it arrives.
        assert_eq!(chunked.as_deref(), (target == "/stream/").then_some("chunked"));
    }
}

/// Sends uploads whose temporary files cannot be created.
fn assert_arrives_without_a_file(server: &Server, origin: &Origin, failed: &str) {
    let mut client = Client::connect(server.addr(0));
    let body = Content::new(4, 900_000).bytes(0..900_000);
    // The third request proves that the connection is still usable.
    for count in 1..=3 {
        assert_eq!(upload(&mut client, "/full/", &body).body, body);
        assert_eq!(origin.stats().requests, count);
    }
    let pieces = [&body[..1], &body[1..70_000], &body[70_000..]];
    assert_eq!(upload_chunked(&mut client, "/full/", &pieces).body, body);
    let line = server.wait_for_log("the body goes on without a temporary file", Deadline::default());
    assert!(line.contains("[crit]") && line.contains(failed), "{line}");
}

#[test]
fn an_upload_continues_if_its_temporary_file_cannot_be_created() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start(&origin);
    assert_arrives_without_a_file(&server, &origin, "open() \"/proc/none/");
}

#[test]
fn an_upload_continues_if_the_temporary_file_system_is_full() {
    let Some(disk) = Filesystem::new(4) else { return };
    disk.fill(300 << 10);
    let origin = Origin::start(|request| Reply::text(&request.body));
    let folder = disk.path().display().to_string();
    let server = start_with(&origin, &folder, "");
    assert_arrives_without_a_file(&server, &origin, &format!("write() \"{folder}/"));
}

#[test]
fn an_http2_upload_continues_if_the_temporary_file_system_is_full() {
    if !common::ours_only("nginx responds with 500") {
        return;
    }
    let Some(disk) = Filesystem::new(4) else { return };
    disk.fill(300 << 10);
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start_with_http2(&origin, &disk.path().display().to_string());
    // The client has sent the complete body when the file fails: bytes buffered in the server are not lost.
    let body = Content::new(4, 900_000).bytes(0..900_000);
    let got = common::http2::connect(&server).post("/full/", &[("content-length", "900000")], &body);
    assert_eq!(got.status, 200, "{}", got.text());
    assert!(got.body == body, "{} bytes", got.body.len());
}

/// The bytes that were received before the file failed count too.
#[test]
fn an_http2_upload_without_a_file_is_limited_in_total() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start_with_http2(&origin, "/proc/none");
    // More than client_body_buffer_size precedes the failure, so less than client_max_body_size follows it.
    let body = Content::new(4, (1 << 20) + 8192).bytes(0..(1 << 20) + 8192);
    assert_eq!(common::http2::connect(&server).post("/full/", &[], &body).status, 413);
}

/// The upstream must not get the start and the end of a body without its middle.
#[test]
fn an_early_response_to_an_http2_upload_without_a_file_leaves_no_gap() {
    let gate = Gate::new();
    let body = Content::new(4, 6_500_000).bytes(0..6_500_000);
    let (released, expected) = (gate.clone(), body.clone());
    let origin = Origin::raw(move |connection| {
        let Some(mut request) = connection.read_head() else { return };
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n");
        // Until then most of the body waits in the server: it does not fit into the buffers of the sockets.
        connection.pass(&released);
        let is_complete = connection.read_body(&mut request);
        assert!(!is_complete || request.body == expected, "{} bytes", request.body.len());
        connection.send("0\r\n\r\n");
    });
    let server = start_with_http2(&origin, "/proc/none");
    let mut client = common::http2::connect(&server);
    let stream = client.begin("POST", "/early/", &[], false);
    client.body(stream, &body);
    client.until(|client| client.streams.get(&stream).is_some_and(|got| got.status > 0));
    gate.open();
    client.response(stream);
}

/// If the complete body is needed, a body of up to a megabyte is buffered in memory, and a longer body is refused.
fn assert_is_buffered_in_memory(server: &Server, origin: &Origin, failed: &str) {
    let mut client = Client::connect(server.addr(0));
    let body = Content::new(4, 900_000).bytes(0..900_000);
    let pieces = [&body[..1], &body[1..470_000], &body[470_000..]];
    for what in ["mirrored", "cached"] {
        assert_eq!(upload(&mut client, &format!("/whole/{what}/1"), &body).body, body, "{what}");
        assert_eq!(upload_chunked(&mut client, &format!("/whole/{what}/2"), &pieces).body, body, "{what}");
    }
    let set = upload(&mut client, "/whole/set/", &body).body;
    assert!(set.starts_with(b"<") && set.ends_with(b">") && set[1..=body.len()] == body);
    let before = origin.stats().requests;
    let long = Content::new(5, 1_040_000).bytes(0..1_040_000);
    assert_eq!(upload(&mut client, "/whole/set/", &long).body.len(), 1_040_002);
    let long = Content::new(5, 1_100_000).bytes(0..1_100_000);
    let status = |response: testkit::Response| response.status;
    assert_eq!(status(upload(&mut Client::connect(server.addr(0)), "/whole/cached/3", &long)), 500);
    let pieces = [&long[..500_000], &long[500_000..]];
    assert_eq!(status(upload_chunked(&mut Client::connect(server.addr(0)), "/whole/cached/4", &pieces)), 500);
    assert_eq!(origin.stats().requests, before + 1);
    let line = server.wait_for_log("stays in memory", Deadline::default());
    assert!(line.contains("[crit]") && line.contains(failed), "{line}");
}

#[test]
fn a_buffered_body_stays_in_memory_if_no_file_can_be_created() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start(&origin);
    assert_is_buffered_in_memory(&server, &origin, "open() \"/proc/none/");
}

#[test]
fn a_buffered_body_stays_in_memory_if_the_file_system_is_full() {
    let Some(disk) = Filesystem::new(4) else { return };
    disk.fill(300 << 10);
    let origin = Origin::start(|request| Reply::text(&request.body));
    let folder = disk.path().display().to_string();
    let server = start_with(&origin, &folder, "");
    assert_is_buffered_in_memory(&server, &origin, &format!("write() \"{folder}/"));
}

/// A file that the configuration requires cannot be omitted.
#[test]
fn an_upload_that_requires_a_file_fails_with_the_reason_in_the_log() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start_with(&origin, "/proc/none", "client_body_in_file_only on;");
    for _ in 0..3 {
        assert_eq!(upload(&mut Client::connect(server.addr(0)), "/full/", &[b'a'; 20_000]).status, 500);
    }
    let line = server.wait_for_log("while reading client request body", Deadline::default());
    assert!(line.contains("[crit]") && line.contains("open() \"/proc/none/"), "{line}");
    assert_eq!(origin.stats().requests, 0);
}

/// The origin has the first half before the client sends the second.
#[test]
fn a_streamed_upload_is_passed_on_while_it_is_received() {
    let gate = Gate::new();
    let half = gate.clone();
    let origin = Origin::raw(move |connection| {
        let Some(mut request) = connection.read_head() else { return };
        let first = connection.read_exact(5).expect("the first half is here");
        assert_eq!(first, b"first");
        connection.pass(&half);
        request.body = connection.read_exact(6).expect("the second half is here");
        connection.reply(&request, &Reply::text(&request.body));
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("PUT /stream/ HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nfirst");
    gate.wait_reached();
    gate.open();
    client.send("second");
    assert_eq!(client.response().text(), "second");
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("200|200|"));
}

/// As in nginx, `proxy_read_timeout` begins when the request was sent.
#[test]
fn an_interim_response_does_not_limit_the_time_of_a_streamed_upload() {
    let origin = Origin::raw(|connection| {
        if connection.read_head().is_some() {
            connection.send("HTTP/1.1 100 Continue\r\n\r\n");
            connection.wait_for_close();
        }
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("PUT /interim/ HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    // The client's timeout applies, although that of the upstream is shorter.
    client.expect_end();
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("408|"));
    let _ = origin.take_faults();
}

#[test]
fn a_response_may_precede_the_end_of_the_request_body() {
    let origin = Origin::raw(|connection| {
        let Some(request) = connection.read_head() else { return };
        connection.reply(&request, &Reply::new(413).body("no"));
        connection.wait_for_close();
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("PUT /stream/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nfirst");
    let response = client.response();
    assert_eq!((response.status, response.text().as_str()), (413, "no"));
    assert_eq!(response.field("Connection"), Some("close"), "the remaining body is not read");
}

#[test]
fn an_error_in_a_streamed_upload_aborts_it() {
    let origin = Origin::start(|request| Reply::text(&request.body));
    let server = start(&origin);
    let head = "POST /stream/ HTTP/1.1\r\nHost: a\r\n";
    let asked = |text: String| {
        let mut client = Client::connect(server.addr(0));
        client.send(text);
        client.response().status
    };
    assert_eq!(asked(format!("{head}Content-Length: 2000000\r\n\r\n")), 413);
    assert_eq!(asked(format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n200000\r\n")), 413);
    assert_eq!(asked(format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n")), 400);
    // As in nginx an idle client gets no response, and the log has 408.
    let mut client = Client::connect(server.addr(0));
    client.send("POST /stalled/ HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    client.expect_end();
    assert!(server.wait_for_access_log(4, Deadline::default()).lines().any(|line| line.starts_with("408|")));
    let mut client = Client::connect(server.addr(0));
    client.send(format!("{head}Content-Length: 10\r\n\r\nabc"));
    drop(client);
    server.wait_for_log("client prematurely closed connection", Deadline::default());
    origin.wait_for("the end of all", |stats| stats.connections_open == 0);
    let _ = origin.take_faults();
}

#[test]
fn upgraded_connections_pass_bytes_in_both_directions() {
    let origin = Origin::start(|_| Reply::echo("websocket"));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("GET /ws/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly");
    let head = client.head();
    assert_eq!((head.status, head.field("Upgrade")), (101, Some("websocket")));
    assert_eq!(head.field("Connection"), Some("upgrade"));
    assert_eq!(client.read_exact(5), b"early");
    let content = Content::new(9, 300_000).bytes(0..300_000);
    for part in content.chunks(50_000) {
        client.send(part);
        assert_eq!(client.read_exact(part.len()), part);
    }
    client.half_close();
    assert_eq!(client.read_to_end(), b"", "the upstream returns the end of the stream");
    origin.wait_for("the end", |stats| stats.connections_open == 0);
    let log = server.wait_for_access_log(1, Deadline::default());
    let fields: Vec<&str> = log.trim_end().split('|').collect();
    assert_eq!(fields[..2], ["101", "101"]);
    assert!(fields[2].parse::<u64>().is_ok_and(|sent| sent > 300_005), "{log}");
}

/// A message of several segments does not wait for the client's acknowledgement of the first segment: with this many
/// messages, the waits would exceed the time limit. A busy machine may exceed it too, so there are three attempts.
#[test]
fn long_messages_of_a_tunnel_are_sent_without_delay() {
    let origin = Origin::start(|_| Reply::echo("websocket"));
    let server = start(&origin);
    let message = Content::new(3, 5000).bytes(0..5000);
    let is_fast = |_| {
        let mut client = Client::connect(server.addr(0));
        client.send("GET /ws/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(client.head().status, 101);
        let limit = Deadline::after(std::time::Duration::from_secs(30));
        for _ in 0..1000 {
            client.send(&message);
            assert_eq!(client.read_exact(message.len()), message);
        }
        limit.left().is_some()
    };
    assert!((0..3).any(is_fast));
}

#[test]
fn an_idle_tunnel_times_out() {
    let origin = Origin::start(|_| Reply::echo("websocket"));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("GET /ws/silent HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.head().status, 101);
    client.expect_end();
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while proxying upgraded connection",
        Deadline::default(),
    );
    origin.wait_for("the end", |stats| stats.connections_open == 0);
}

/// During a graceful stop, a worker continues a tunnel, and exits after the end of the tunnel.
#[test]
fn a_tunnel_continues_during_a_graceful_stop() {
    let origin = Origin::start(|_| Reply::echo("websocket"));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("GET /ws/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.head().status, 101);
    server.signal(rustix::process::Signal::QUIT);
    server.wait_for_log("gracefully shutting down", Deadline::default());
    client.send("still here");
    assert_eq!(client.read_exact(10), b"still here");
    client.half_close();
    assert_eq!(client.read_to_end(), b"");
    assert!(server.quit_and_wait().success());
}

#[test]
fn subrequests_are_proxied() {
    let origin = Origin::start(|request| match request.target.as_str() {
        "/auth" => match request.header("x-key") {
            Some(_) => Reply::new(204),
            None => Reply::new(403),
        },
        "/protected/x" => Reply::text("secret"),
        "/page/index" => Reply::text("a<!--#include virtual=\"/page/part\" -->c"),
        "/page/part" => Reply::ok().chunked(&[1]).body("part"),
        "/zip/x" => Reply::ok().chunked(&[1000]).content(Content::new(1, 50_000)),
        _ => Reply::text(&request.body),
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/protected/x").status, 403);
    assert_eq!(client.request("GET", "/protected/x", &[("X-Key", "1")]).text(), "secret");
    assert_eq!(client.get("/page/index").text(), "apartc");
    let zipped = client.request("GET", "/zip/x", &[("Accept-Encoding", "gzip")]);
    assert_eq!(zipped.field("Content-Encoding"), Some("gzip"));
    assert!(zipped.body.len() > 40_000, "random bytes do not shrink much");
    let before = origin.stats().requests;
    assert_eq!(upload(&mut client, "/mirrored/y", b"both").text(), "both");
    origin.wait_for("the copy", |stats| stats.requests == before + 2 && stats.in_flight == 0);
    let copies = origin.requests();
    let copy = copies.iter().find(|request| request.target == "/copy/mirrored/y").expect("it was mirrored");
    assert_eq!(copy.body, b"both");
    assert_eq!(upload(&mut client, "/mirrored/empty", b"").text(), "");
    origin.wait_for("the copy of no bytes", |stats| stats.requests == before + 4 && stats.in_flight == 0);
    let copies = origin.requests();
    let copy =
        copies.iter().find(|request| request.target == "/copy/mirrored/empty").expect("it was mirrored");
    assert_eq!(copy.header("content-length").as_deref(), Some("0"));
}

/// Starts an origin with a page that includes a part for each gate; the part waits there.
fn page_of_parts(wait: &'static str, gates: Vec<Gate>) -> Origin {
    let of_part = |part: usize| format!("<!--#include virtual=\"/page/part{part}\" {wait}-->");
    let page: String = (0..gates.len()).map(of_part).collect();
    Origin::start(move |request| match request.target.strip_prefix("/page/part") {
        Some(number) => {
            let part: usize = number.parse().expect("a number");
            Reply::text(format!("[{part}]")).wait_first(&gates[part])
        }
        None => Reply::text(&page),
    })
}

/// No part gets its response before all are requested; their order is that of the page.
#[test]
fn includes_without_wait_run_concurrently() {
    let gate = Gate::new();
    let origin = page_of_parts("", vec![gate.clone(); 3]);
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/page/index", &[]));
    origin.wait_for("the page and all parts", |stats| stats.requests == 4);
    gate.open();
    assert_eq!(client.response().text(), "[0][1][2]");
}

#[test]
fn includes_with_wait_run_sequentially() {
    let gate = Gate::new();
    let origin = page_of_parts("wait=\"yes\" ", vec![gate.clone(); 5]);
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/page/index", &[]));
    for part in 1..=5 {
        gate.wait_reached_by(part);
        assert_eq!(origin.stats().requests, 1 + part, "the page and so many parts");
        gate.let_through(1);
    }
    assert_eq!(client.response().text(), "[0][1][2][3][4]");
}

/// A page with many parts has a bounded number of concurrent subrequests, and all of them in the end.
#[test]
fn concurrent_includes_are_limited() {
    // Sixteen parts may be in flight, and sixteen parts wait at each gate.
    let gates: Vec<Gate> = (0..6).map(|_| Gate::new()).collect();
    let origin = page_of_parts("", (0..96).map(|part: usize| gates[part / 16].clone()).collect());
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/page/index", &[]));
    for (index, gate) in gates.iter().enumerate() {
        gate.wait_reached_by(16);
        // A further part would be requested before this request.
        assert_eq!(Client::connect(server.addr(0)).get("/").status, 200);
        assert!(gates[index + 1..].iter().all(|later| later.arrived() == 0), "group {index}");
        gate.open();
    }
    let expected: String = (0..96).map(|part| format!("[{part}]")).collect();
    assert_eq!(client.response().text(), expected);
}

/// The pending subrequests of a client that disconnects are cancelled.
#[test]
fn includes_are_cancelled_when_their_client_disconnects() {
    let gate = Gate::new();
    let origin = page_of_parts("", vec![gate.clone(); 3]);
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/page/index", &[]));
    origin.wait_for("the page and all parts", |stats| stats.requests == 4);
    drop(client);
    server.wait_for_access_log(1, Deadline::default());
    gate.open();
    origin.wait_for("their end", |stats| stats.in_flight == 0 && stats.connections_open <= 1);
}

#[test]
fn trailers_are_passed_on_where_configured() {
    let origin = Origin::start(|_| {
        Reply::ok().chunked(&[3]).body("abcdef").trailer("X-Sum", "6").trailer("Content-Length", "9")
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/trailers/", &[("Connection", "close")]));
    assert_eq!(client.head().field("Transfer-Encoding"), Some("chunked"));
    let wire = String::from_utf8(client.read_to_end()).expect("it is text");
    assert!(wire.ends_with("0\r\nX-Sum: 6\r\n\r\n"), "{wire:?}");
}

#[test]
fn hidden_fields_are_removed_from_trailers() {
    let origin = Origin::start(|_| {
        let reply = Reply::ok().chunked(&[3]).body("abcdef").trailer("x-secret", "1").trailer("Server", "o");
        reply.trailer("X-Pad", "p").trailer("X-Sum", "6")
    });
    let server = start(&origin);
    for target in ["/hidden/", "/hidden/read/"] {
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", target, &[("Connection", "close")]));
        assert_eq!(client.head().status, 200);
        let wire = String::from_utf8(client.read_to_end()).expect("it is text");
        assert!(wire.ends_with("\r\n0\r\nX-Pad: p\r\nX-Sum: 6\r\n\r\n"), "{target}: {wire:?}");
    }
}

/// Tests the order of events and not a duration: the rate limit delays the origin, not the client.
#[test]
fn reads_from_an_origin_obey_the_rate_limit() {
    let origin = Origin::start(|_| Reply::ok().content(Content::new(1, 100_000)));
    let server = start(&origin);
    let began = std::time::Instant::now();
    Content::new(1, 100_000).assert_body(&Client::connect(server.addr(0)).get("/slow/").body);
    assert!(began.elapsed() > std::time::Duration::from_millis(300), "100 kB at 200 kB a second");
}

#[test]
fn an_upload_waits_for_an_origin_that_reads_slowly() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::raw(move |connection| {
        let Some(mut request) = connection.read_head() else { return };
        connection.pass(&held);
        if connection.read_body(&mut request) {
            assert_eq!(connection.reply(&request, &Reply::text(&request.body)), Ended::Kept);
        }
    });
    let server = start(&origin);
    let body = Content::new(2, 900_000).bytes(0..900_000);
    for target in ["/", "/stream/"] {
        let mut client = Client::connect(server.addr(0));
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
        let (sender, bytes) = (server.addr(0).clone(), body.clone());
        drop(sender);
        let writer = std::thread::spawn(move || {
            client.send(&bytes);
            client.response().body
        });
        gate.wait_reached();
        gate.open();
        assert_eq!(writer.join().expect("it ends"), body, "{target}");
        gate.close();
    }
}

/// A header section that no buffer of the pool can hold stands for a pool without free buffers.
#[test]
fn a_subrequest_needs_no_buffer_of_the_pool() {
    let origin = Origin::start(|_| Reply::text("content"));
    let conf = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  large_client_header_buffers 4 700k;
  server {
    listen 127.0.0.1:0;
    location = /page {
      more_set_input_headers \"X-Copy: $http_x\";
      auth_request /check;
      proxy_set_header X \"\"; proxy_set_header X-Copy \"\";
      proxy_pass http://@ORIGIN@;
    }
    location = /check { if ($http_x_copy = $http_x) { return 204; } return 403; }
  }
}
";
    let server = Setup::new(conf).origin(&origin).start(BINARY);
    let value = "x".repeat(600 << 10);
    let response =
        Client::connect(server.addr(0)).request("GET", "/page", &[("Host", "a"), ("X", value.as_str())]);
    assert_eq!((response.status, response.text().as_str()), (200, "content"));
}

/// An error page is fetched with GET and needs no body, even if the client's method is GET too: the location is run, as in nginx.
#[test]
fn an_error_page_is_fetched_although_a_streamed_body_has_begun() {
    let origin = Origin::start(|request| Reply::text(format!("{} {}", request.path(), request.body.len())));
    let dead = Origin::raw(|connection| {
        connection.read_head();
        connection.read_exact(5);
    });
    let conf = "worker_processes 1; error_log logs/error.log info; events { }
      http { server { listen 127.0.0.1:0; proxy_http_version 1.1; proxy_request_buffering off;
        location /up/ { proxy_pass http://@DEAD@; error_page 502 = /pass; }
        location /text/ { proxy_pass http://@DEAD@; error_page 502 = /200; }
        location /pass { proxy_pass http://@ORIGIN@; } location /200 { return 200 text; } } }";
    let server = Setup::new(conf).origin(&origin).upstream("DEAD", dead.addr()).start(BINARY);
    for method in ["POST", "GET", "PUT", "DELETE"] {
        for (target, expected) in [("/up/", "/pass 0"), ("/text/", "text")] {
            for (framing, body) in
                [("Content-Length: 11", "first"), ("Transfer-Encoding: chunked", "5\r\nfirst\r\n")]
            {
                let mut client = Client::connect(server.addr(0));
                client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}"));
                let response = client.response();
                assert_eq!(
                    (response.status, response.text().as_str()),
                    (200, expected),
                    "{method} {framing}"
                );
            }
        }
    }
    let _ = dead.take_faults();
}

/// A rewrite does not make a request an error page, whose body is omitted.
#[test]
fn a_streamed_body_is_passed_on_after_a_rewrite_for_every_method() {
    let origin = Origin::start(|request| {
        Reply::text("")
            .header("X-Seen", format!("{} {} {}", request.path(), request.body.len(), request.method))
    });
    let conf = "worker_processes 1; error_log logs/error.log info; events { }
      http { server { listen 127.0.0.1:0; proxy_http_version 1.1; proxy_request_buffering off;
        location / { rewrite ^ /new break; proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(conf).origin(&origin).start(BINARY);
    for method in ["HEAD", "GET", "POST"] {
        let mut client = Client::connect(server.addr(0));
        let fields = "Host: a\r\nContent-Length: 5\r\nExpect: 100-continue";
        client.send(format!("{method} /old HTTP/1.1\r\n{fields}\r\n\r\n"));
        assert_eq!(client.response_to_head().status, 100, "{method}: the body is streamed");
        client.send("hello");
        let response = client.response_to_head();
        assert_eq!(response.field("X-Seen"), Some(&*format!("/new 5 {method}")));
    }
}

/// Without buffering there is no file, so `$request_body` has the body that arrived with the header section, as in nginx.
#[test]
fn a_body_that_is_not_buffered_gets_no_file() {
    let origin = Origin::start(|request| Reply::text(request.header("x-body").unwrap_or_default()));
    let conf = "worker_processes 1; error_log logs/error.log info; events { }
      http { client_body_temp_path @DATA@/temp; proxy_set_header X-Body '$request_body|$request_body_file';
        proxy_http_version 1.1; client_body_in_file_only on;
        server { listen 127.0.0.1:0;
          location / { proxy_request_buffering off; proxy_pass http://@ORIGIN@; }
          location /file { proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(conf).origin(&origin).start(BINARY);
    let mut client = Client::connect(server.addr(0));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.response().text(), "hello|");
    client.send("POST /file HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    let text = client.response().text();
    assert!(text.starts_with("|/") && text.contains("/temp/"), "{text}");
}
