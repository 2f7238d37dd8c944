//! The scripted origin, tested with the scripted client: what it sends, when, and what it counts.

use std::time::Duration;

use testkit::client::request_bytes;
use testkit::origin::{At, Do, Ended, Framing, OnAccept};
use testkit::response::{BodyLength, Fault};
use testkit::{Client, Content, Gate, Origin, Reply, TempDir};

/// Sends one request to an origin that always sends this reply; returns all bytes received up to the end of the
/// connection.
fn wire_of(reply: Reply) -> Vec<u8> {
    let origin = Origin::start(move |_| reply.clone());
    let mut client = Client::connect(origin.addr());
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.read_to_end()
}

fn text_of(reply: Reply) -> String {
    String::from_utf8_lossy(&wire_of(reply)).into_owned()
}

#[test]
fn requests_are_recorded_byte_for_byte_with_their_numbers() {
    let origin = Origin::start(|request| Reply::text(format!("{} {}", request.connection, request.number)));
    let mut client = Client::connect(origin.addr());
    client.send("POST /a?b HTTP/1.1\r\nhOST:  a \r\nContent-Length: 3\r\nX: \r\nX: \x7f2\r\n\r\nabc");
    assert_eq!(client.response().text(), "1 1");
    let chunks = "5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nT: v\r\n\r\n";
    client.send(format!("PUT /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"));
    assert_eq!(client.response().text(), "1 2");
    assert_eq!(Client::connect(origin.addr()).get("/c").text(), "2 1");
    let requests = origin.requests();
    let lines: Vec<&[u8]> = requests[0].lines.iter().map(Vec::as_slice).collect();
    assert_eq!(lines, [&b"hOST:  a "[..], b"Content-Length: 3", b"X: ", b"X: \x7f2"]);
    assert_eq!((requests[0].body.as_slice(), requests[0].path()), (&b"abc"[..], "/a"));
    assert_eq!((requests[1].body.as_slice(), &requests[1].chunks[..]), (&b"hello!"[..], &[5, 1][..]));
    assert_eq!(requests[1].trailers, [b"T: v"]);
    assert_eq!((requests[2].connection, requests[2].number, requests[2].sequence), (2, 1, 3));
    let stats = origin.wait_for("three replies", |stats| stats.replies == 3);
    assert_eq!((stats.connections, stats.requests, stats.of("/a?b"), stats.of("/b")), (2, 3, 1, 1));
}

#[test]
fn replies_are_framed_as_configured() {
    let reply = Reply::new(404).header("Set-Cookie", "a").header("Set-Cookie", b"\x00\xff").body("no");
    let expected =
        b"HTTP/1.1 404 Not Found\r\nSet-Cookie: a\r\nSet-Cookie: \x00\xff\r\nContent-Length: 2\r\n\r\nno";
    assert_eq!(wire_of(reply), expected);
    let chunked = Reply::text("abcdefgh").chunked(&[1, 3]).chunk_extension(";q").trailer("X", "y");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        text_of(chunked),
        format!("{head}1;q\r\na\r\n3;q\r\nbcd\r\n3;q\r\nefg\r\n1;q\r\nh\r\n0;q\r\nX: y\r\n\r\n")
    );
    assert_eq!(
        text_of(Reply::text("abc").framing(Framing::UntilClose).version("HTTP/1.0").reason("")),
        "HTTP/1.0 200 \r\n\r\nabc"
    );
    assert_eq!(text_of(Reply::new(204)), "HTTP/1.1 204 No Content\r\n\r\n");
    let interim = Reply::text("x").interim(103, &[("Link", "</a>")]);
    let expected =
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(text_of(interim), expected);
}

#[test]
fn head_requests_get_no_body_and_the_connection_continues() {
    let origin = Origin::start(|_| Reply::text("body"));
    let mut client = Client::connect(origin.addr());
    assert_eq!(client.request("HEAD", "/", &[]).field("content-length"), Some("4"));
    assert_eq!(client.get("/").text(), "body");
    let mut old = Client::connect(origin.addr());
    old.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(old.response().text(), "body");
    old.expect_end();
}

#[test]
fn framing_can_be_deliberately_wrong() {
    assert!(text_of(Reply::text("abc").declared_length(5)).ends_with("Content-Length: 5\r\n\r\nabc"));
    assert!(text_of(Reply::text("abc").declared_length(1)).ends_with("Content-Length: 1\r\n\r\nabc"));
    let cut = Reply::text("abc").chunked(&[]).without_last_chunk();
    assert!(text_of(cut).ends_with("\r\n\r\n3\r\nabc\r\n"));
    let bad = Reply::text("abc").chunked(&[1]).chunk_size_text(1, "zz").chunk_size_text(3, "-0");
    assert!(text_of(bad).ends_with("\r\n\r\n1\r\na\r\nzz\r\nb\r\n1\r\nc\r\n-0\r\n\r\n"));
    assert!(text_of(Reply::ok().before("garbage\r\n")).starts_with("garbage\r\nHTTP/1.1 200 OK\r\n"));
    let head_only = wire_of(Reply::ok().head_bytes(20_000));
    assert_eq!((head_only.len(), head_only.ends_with(b"p\r\n\r\n")), (20_000, true));
    assert_eq!(text_of(Reply::ok().at(At::Wire(12), Do::Close)), "HTTP/1.1 200");
    assert_eq!(wire_of(Reply::raw(b"\x00\x01HTTP")), b"\x00\x01HTTP");
    let bodied = Reply::new(204).body("x").with_body_always();
    assert_eq!(text_of(bodied), "HTTP/1.1 204 No Content\r\n\r\nx");
}

#[test]
fn a_gate_stops_a_reply_at_its_offset() {
    let content = Content::new(1, 300_000);
    let (first, second) = (Gate::new(), Gate::new());
    let reply = Reply::ok().content(content).chunked(&[1000]).wait_at(0, &first).wait_at(150_001, &second);
    let origin = Origin::start(move |_| reply.clone());
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[]));
    assert_eq!(client.head().status, 200);
    first.wait_reached();
    client.expect_silence(Duration::from_millis(5));
    first.open();
    second.wait_reached();
    let stats = origin.stats();
    assert_eq!((stats.in_flight, stats.in_flight_max, stats.replies), (1, 1, 0));
    // 150 chunks, and one byte of the next one after its size line.
    let (head, sent) = ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".len(), 150 * 1007 + 6);
    assert_eq!(stats.bytes_sent, (head + sent) as u64);
    let half = client.read_exact(sent);
    assert_eq!(half[5..1005], content.bytes(0..1000));
    client.expect_silence(Duration::from_millis(5));
    second.open();
    client.read_exact(149 * 1007 + 1001);
    assert_eq!(client.read_exact(5), b"0\r\n\r\n");
    origin.wait_for("the end", |stats| stats.in_flight == 0 && stats.replies == 1);
}

#[test]
fn connections_end_as_configured() {
    let origin = Origin::replies([
        Reply::text("0123456789").at(At::Body(4), Do::Reset),
        Reply::close(),
        Reply::never(),
        Reply::text("last").closing(),
    ]);
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[]));
    match client.try_response() {
        Err(Fault::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        other => panic!("{other:?}"),
    }
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[])).expect_end();
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[])).expect_silence(Duration::from_millis(5));
    drop(client);
    origin.wait_for("the end of the silence", |stats| stats.connections_open == 0);
    let mut client = Client::connect(origin.addr());
    let response = client.get("/");
    assert_eq!((response.text().as_str(), response.field("connection")), ("last", Some("close")));
    client.expect_end();
    assert_eq!(Client::connect(origin.addr()).get("/").status, 599);
}

#[test]
fn a_reader_that_disconnects_is_counted() {
    let gate = Gate::new();
    let reply = Reply::ok().content(Content::new(1, 50_000_000)).wait_at(10, &gate);
    let origin = Origin::start(move |_| reply.clone());
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[]));
    gate.wait_reached();
    drop(client);
    gate.open();
    let stats = origin.wait_for("the abort", |stats| stats.aborted == 1);
    assert_eq!(stats.replies, 0);
}

#[test]
fn a_refusing_origin_retains_its_port() {
    let origin = Origin::start(|_| Reply::text("here"));
    assert_eq!(Client::connect(origin.addr()).get("/").text(), "here");
    origin.refuse();
    let error = Client::try_connect(origin.addr()).err().expect("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    origin.accept_again();
    assert_eq!(Client::connect(origin.addr()).get("/").text(), "here");
    for what in [OnAccept::Close, OnAccept::Reset] {
        origin.on_accept(what);
        Client::connect(origin.addr()).expect_end();
    }
    origin.on_accept(OnAccept::Ignore);
    let mut ignored = Client::connect(origin.addr());
    ignored.send(request_bytes("GET", "/", &[])).expect_silence(Duration::from_millis(5));
    assert_eq!(origin.wait_for("all", |stats| stats.connections == 5).requests, 2);
}

#[test]
fn a_unix_socket_serves_and_refuses_as_well() {
    let dir = TempDir::new("origin");
    let origin = Origin::start_unix(&dir.path().join("o.sock"), |_| Reply::text("here"));
    assert_eq!(Client::connect(origin.addr()).get("/").text(), "here");
    origin.refuse();
    assert!(Client::try_connect(origin.addr()).is_err());
    origin.accept_again();
    assert_eq!(Client::connect(origin.addr()).get("/").text(), "here");
}

#[test]
fn an_upgraded_connection_passes_bytes_in_both_directions() {
    let origin = Origin::replies([
        Reply::echo("websocket"),
        Reply::new(101).framing(Framing::Unframed).then(|connection| {
            connection.send("hello");
            assert_eq!(connection.read_exact(3).as_deref(), Some(&b"bye"[..]));
            connection.half_close();
            connection.wait_for_close();
        }),
    ]);
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[("Upgrade", "websocket"), ("Connection", "upgrade")]));
    assert_eq!(client.head().field("upgrade"), Some("websocket"));
    client.send("abc");
    assert_eq!(client.read_exact(3), b"abc");
    client.half_close().expect_end();
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[]));
    client.head();
    assert_eq!(client.read_exact(5), b"hello");
    client.send("bye").expect_end();
}

#[test]
fn a_raw_script_reads_and_writes_arbitrary_bytes() {
    let origin = Origin::raw(|connection| {
        let Some(mut request) = connection.read_head() else { return };
        connection.send("HTTP/1.1 100 Continue\r\n\r\n");
        assert!(connection.read_body(&mut request));
        let reply = Reply::text(&request.body).at(At::Wire(5), Do::Close);
        assert_eq!(connection.reply(&request, &reply), Ended::Close);
    });
    let mut client = Client::connect(origin.addr());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
    assert_eq!((client.response().status, origin.stats().in_flight), (100, 1));
    client.send("ab");
    assert_eq!(client.read_to_end(), b"HTTP/");
}

#[test]
fn forbidden_events_are_faults() {
    let origin = Origin::start(|request| {
        assert_ne!(request.target, "/bad", "a target of the test's");
        Reply::text("abc").at(At::Body(4), Do::Close)
    });
    Client::connect(origin.addr()).get("/");
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/bad", &[])).expect_end();
    for request in ["GET /\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"] {
        Client::connect(origin.addr()).send(request).expect_end();
    }
    origin.wait_for("all to end", |stats| stats.connections_open == 0);
    let faults = origin.take_faults();
    let has = |text: &str| faults.iter().any(|fault| fault.contains(text));
    assert!(has("no Body(4)") && has("a target of the test's"), "{faults:?}");
    assert!(has("no request line") && has("ambiguous framing"), "{faults:?}");
    assert_eq!(faults.len(), 4);
}

#[test]
#[should_panic(expected = "at the origin: malformed request")]
fn an_unexpected_fault_fails_the_test() {
    let origin = Origin::start(|_| Reply::ok());
    Client::connect(origin.addr()).send("GET /\r\n\r\n").expect_end();
    drop(origin);
}

#[test]
fn a_dropped_origin_ends_waiting_replies() {
    let gate = Gate::new();
    let held = Reply::text("x").wait_first(&gate);
    let origin = Origin::start(move |_| held.clone());
    let mut client = Client::connect(origin.addr());
    client.send(request_bytes("GET", "/", &[]));
    gate.wait_reached();
    let mut idle = Client::connect(origin.addr());
    drop(origin);
    client.expect_end();
    idle.expect_end();
}

#[test]
fn a_paced_reply_is_slow_and_complete() {
    let content = Content::new(3, 100_000);
    let reply = Reply::ok().content(content).pace(20_000, Duration::from_millis(4));
    let origin = Origin::start(move |_| reply.clone());
    let started = std::time::Instant::now();
    let response = Client::connect(origin.addr()).get("/");
    // Five ticks, and a part of one for the head; the first tick starts immediately.
    assert!(started.elapsed() >= Duration::from_millis(20), "{:?}", started.elapsed());
    assert_eq!(response.length, BodyLength::Bytes(100_000));
    content.assert_body(&response.body);
}
