//! The exchange with upstreams, tested with the binary: faulty origins, keep-alive connections, bodies of any size in
//! both directions, slow clients and origins, and other protocols after a 101.
//!
//! Changes to a response's fields and the choice of a server are tested elsewhere (`proxy_*`).

use std::time::Duration;

use crate::common::{BINARY, ours_only};
use testkit::origin::{At, Do, Origin, Reply};
use testkit::{Client, Content, Deadline, Filesystem, Gate, Server, Setup, process, wait};

/// One location for everything that needs no other settings, and a log of each request.
const CONF: &str = "worker_processes @THREADS@; error_log logs/error.log info;
events { @EVENTS@ }
http {
  log_format up '$status|$upstream_addr|$upstream_status|$upstream_response_length|$upstream_bytes_received|$upstream_connect_time';
  access_log logs/access.log up;
  upstream kept { server @ORIGIN@; keepalive 4; @KEEP@ }
  upstream pair { server @ORIGIN@; server @OTHER@; }
  proxy_temp_path @DATA@;
  server {
    listen 127.0.0.1:0;
    @SERVER@
    location / { proxy_pass http://@ORIGIN@; }
    location /kept/ { proxy_pass http://kept; proxy_http_version 1.1; proxy_set_header Connection ''; }
    location /pair/ { proxy_pass http://pair; }
    location /direct/ { proxy_pass http://@ORIGIN@; proxy_buffering off; }
    location /stream/ { proxy_pass http://@ORIGIN@; proxy_request_buffering off; proxy_http_version 1.1; }
    location /ws/ { proxy_pass http://@ORIGIN@; proxy_http_version 1.1;
       proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }
    location /short/ { proxy_pass http://@ORIGIN@; proxy_read_timeout 200ms; }
  }
}
";

fn setup(origin: &Origin) -> Setup {
    Setup::new(CONF)
        .origin(origin)
        .upstream("OTHER", origin.addr())
        .value("THREADS", "1")
        .value("EVENTS", "")
        .value("KEEP", "")
        .value("SERVER", "")
}

fn start(origin: &Origin) -> Server {
    setup(origin).start(BINARY)
}

/// A body that is not buffered gets the complete `proxy_read_timeout` after the header section, and after a delay by
/// `proxy_limit_rate`.
#[test]
#[expect(clippy::disallowed_methods, reason = "the origin is slow: the test does not wait for an event")]
fn the_read_timeout_of_an_unbuffered_body_begins_when_it_is_read() {
    const BYTES: u64 = 2000;
    let origin = Origin::start(|request| {
        // Part of the timeout passes before the header section.
        std::thread::sleep(Duration::from_millis(300));
        let sent = if request.target == "/limited" { BYTES } else { 1 };
        Reply::ok().content(Content::new(1, BYTES + 1)).at(At::Body(sent), Do::Hang)
    });
    let locations = "proxy_buffering off; proxy_read_timeout 3s;
        location = /body { proxy_pass http://@ORIGIN@; }
        location = /limited { proxy_limit_rate 1000; proxy_pass http://@ORIGIN@; }";
    let conf = CONF
        .replace("@SERVER@", locations)
        .replace("up '", "up '$upstream_header_time|$upstream_response_time|");
    let server = Setup::new(&conf)
        .origin(&origin)
        .upstream("OTHER", origin.addr())
        .value("THREADS", "1")
        .value("EVENTS", "")
        .value("KEEP", "")
        .start(BINARY);
    let clients = ["/body", "/limited"].map(|target| {
        let mut client = Client::connect(server.addr(0));
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    });
    let log = server.wait_for_access_log(2, Deadline::default());
    let times = log.lines().map(|line| {
        let times: Vec<f64> = line.split('|').take(2).map(|time| time.parse().expect("a time")).collect();
        times[1] - times[0]
    });
    // Times in the log are rounded to milliseconds.
    let times: Vec<f64> = times.collect();
    assert!(times[0] > 2.99 && times[1] > 4.99, "{times:?}");
    drop(clients);
}

/// Waits until the access log has this many lines; returns the last one, split into fields.
fn logged(server: &Server, lines: usize) -> Vec<String> {
    let log = server.wait_for_access_log(lines, Deadline::default());
    let last = log.lines().nth(lines - 1).expect("the line is there");
    last.split('|').map(str::to_owned).collect()
}

#[test]
fn responses_of_every_framing_are_complete() {
    let content = Content::new(7, 300_000);
    let large = content;
    let origin = Origin::start(move |request| match request.target.as_str() {
        "/length" => Reply::ok().content(large),
        "/chunks" => Reply::ok().chunked(&[1, 70_000, 3]).content(large),
        "/close" => Reply::ok().framing(testkit::origin::Framing::UntilClose).content(large),
        "/small" => Reply::text("small"),
        "/small-chunks" => Reply::ok().chunked(&[2]).body("chunks"),
        _ => Reply::new(204),
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    for target in ["/length", "/chunks", "/close"] {
        let response = client.get(target);
        assert_eq!(response.head.status, 200, "{target}");
        content.assert_body(&response.body);
    }
    assert_eq!(client.get("/small").text(), "small");
    assert_eq!(client.get("/small-chunks").text(), "chunks");
    assert_eq!(client.get("/none").head.status, 204);
    let line = logged(&server, 6);
    assert_eq!(line[1], origin.addr().to_string());
    assert_eq!((line[0].as_str(), line[2].as_str(), line[3].as_str()), ("204", "204", "0"));
}

#[test]
fn a_truncated_response_never_looks_complete() {
    let content = Content::new(8, 200_000);
    let origin = Origin::start(move |request| {
        let reply = Reply::ok().content(content);
        match request.path().trim_start_matches("/direct") {
            "/close" => reply.at(At::Body(150_000), Do::Close),
            "/reset" => reply.chunked(&[1000]).at(At::Body(150_000), Do::Reset),
            "/too-little" => reply.declared_length(200_001).closing(),
            "/no-last-chunk" => reply.chunked(&[1000]).without_last_chunk().closing(),
            "/bad-chunk" => reply.chunked(&[1000]).chunk_size_text(150, "zz"),
            _ => Reply::new(500),
        }
    });
    let server = start(&origin);
    for target in ["/close", "/reset", "/too-little", "/no-last-chunk", "/bad-chunk"] {
        for prefix in ["", "/direct"] {
            let mut client = Client::connect(server.addr(0));
            client.send(testkit::client::request_bytes("GET", &format!("{prefix}{target}"), &[]));
            let fault = client.try_response().expect_err("a truncated response");
            drop(fault);
        }
    }
    server.wait_for_log("upstream prematurely closed connection while reading upstream", Deadline::default());
    server.wait_for_log(
        "recv() failed (104: Connection reset by peer) while reading upstream",
        Deadline::default(),
    );
    let _ = origin.take_faults();
}

/// For HTTP/1.0 clients the end of the connection ends the body: only a reset distinguishes a truncated body from a complete one.
#[test]
fn a_truncated_body_delimited_by_close_ends_with_a_reset() {
    let origin = Origin::start(|_| {
        Reply::ok().chunked(&[1000]).content(Content::new(1, 50_000)).at(At::Body(40_000), Do::Close)
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.head().status, 200);
    let mut body = Vec::new();
    let error = std::io::Read::read_to_end(&mut client.rest(), &mut body).expect_err("no orderly end");
    assert!(body.len() < 50_000, "{error}");
}

#[test]
fn an_invalid_response_causes_a_502() {
    let origin = Origin::start(|request| match request.path() {
        "/close" => Reply::close(),
        "/reset" => Reply::reset(),
        "/short/never" => Reply::never(),
        "/big" => Reply::ok().head_bytes(9000),
        "/invalid" => Reply::raw("HTTP/1.1 200 OK\r\n bad: 1\r\n\r\n"),
        "/both" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        "/dies-early" => Reply::ok().body("0123456789").at(At::Body(5), Do::Close),
        "/unasked" => Reply::raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        _ => Reply::ok(),
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    let reading = "while reading response header from upstream";
    for (target, status, line) in [
        ("/close", 502, format!("upstream prematurely closed connection {reading}")),
        ("/reset", 502, format!("recv() failed (104: Connection reset by peer) {reading}")),
        ("/short/never", 504, format!("upstream timed out (110: Connection timed out) {reading}")),
        ("/big", 502, format!("upstream sent too big header {reading}")),
        ("/invalid", 502, format!("upstream sent invalid header: \" bad: 1\" {reading}")),
        ("/both", 502, format!("at the same time {reading}")),
        ("/unasked", 502, format!("upstream sent unexpected 101 response {reading}")),
    ] {
        assert_eq!(client.get(target).status, status, "{target}");
        let line = server.wait_for_log(&line, Deadline::default());
        let about = format!("upstream: \"http://{}{target}\", host: \"localhost\"", origin.addr());
        assert!(line.contains(&about), "{line}");
    }
    origin.refuse();
    assert_eq!(client.get("/refused").status, 502);
    server.wait_for_log(
        "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1",
        Deadline::default(),
    );
    let line = logged(&server, 8);
    assert_eq!(line[1..6], [&origin.addr().to_string(), "502", "0", "0", "-"].map(str::to_owned));
    let _ = origin.take_faults();
}

/// If nothing has been sent to the client yet, it can get an error instead of a truncated response.
#[test]
fn a_small_truncated_response_becomes_an_error_page() {
    let origin = Origin::start(|_| Reply::ok().body("0123456789").at(At::Body(5), Do::Close));
    let server = start(&origin);
    assert_eq!(Client::connect(server.addr(0)).get("/").status, 502);
    server.wait_for_log("upstream prematurely closed connection while reading upstream", Deadline::default());
}

#[test]
fn a_response_without_a_header_section_is_all_body() {
    let origin = Origin::raw(|connection| {
        if connection.read_request().is_some() {
            connection.send("just text");
        }
    });
    let server = start(&origin);
    let response = Client::connect(server.addr(0)).get("/");
    assert_eq!((response.status, response.text().as_str()), (200, "just text"));
    server.wait_for_log("upstream sent no valid HTTP/1.0 header", Deadline::default());
}

#[test]
fn upstream_connections_are_reused() {
    let origin = Origin::start(|request| match request.path() {
        "/kept/closing" => Reply::text("x").closing(),
        "/kept/excess" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc"),
        "/kept/large" => Reply::ok().content(Content::new(1, 100_000)),
        _ => Reply::text("kept"),
    });
    let server = setup(&origin).value("KEEP", "keepalive_requests 6;").start(BINARY);
    let mut client = Client::connect(server.addr(0));
    for _ in 0..4 {
        assert_eq!(client.get("/kept/").text(), "kept");
    }
    assert_eq!(client.get("/kept/large").body.len(), 100_000);
    assert_eq!(origin.stats().connections, 1);
    assert_eq!(client.get("/kept/").text(), "kept");
    assert_eq!(client.get("/kept/").text(), "kept");
    assert_eq!(origin.stats().connections, 2, "six requests, and the seventh on another connection");
    client.get("/kept/closing");
    client.get("/kept/");
    assert_eq!(origin.stats().connections, 3);
    assert_eq!(client.get("/kept/excess").text(), "a", "excess bytes are cut off");
    server.wait_for_log(
        "upstream sent more data than specified in \"Content-Length\" header",
        Deadline::default(),
    );
    client.get("/kept/");
    assert_eq!(origin.stats().connections, 4, "a connection with excess bytes is not reused");
    let _ = origin.take_faults();
}

/// Zero-copy sends are used only to clients: an upload is complete when all of it is sent, not when its buffers are
/// released, and its upstream connection is reused.
#[test]
fn connections_are_reused_after_uploads_of_any_size() {
    let origin = Origin::start(|request| Reply::text(request.body.len().to_string()));
    for (events, body) in [("zero_copy 1k;", "8k"), ("zero_copy 1k;", "512k"), ("zero_copy off;", "512k")] {
        let before = origin.stats().connections;
        let server = setup(&origin)
            .value("EVENTS", events)
            .value("SERVER", &format!("client_body_buffer_size {body}; client_max_body_size 1m;"))
            .start(BINARY);
        let mut client = Client::connect(server.addr(0));
        for size in [400_000, 2000, 400_000] {
            client.send(format!("PUT /kept/ HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"));
            client.send(vec![b'x'; size]);
            assert_eq!(client.response().text(), size.to_string());
        }
        assert_eq!(origin.stats().connections - before, 1, "{events} {body}");
    }
}

/// The upstream responds after the head, as an upstream that refuses a body does, and reads the body later. The request is sent
/// completely although its response is complete, and the connection is reused.
#[test]
fn the_connection_is_reused_after_an_early_response_to_an_upload() {
    let gate = Gate::new();
    let reads_on = gate.clone();
    let origin = Origin::raw(move |connection| {
        while let Some(mut request) = connection.read_head() {
            let reply = match connection.number() {
                1 => Reply::text("first"),
                // Only the first connection is kept alive, so that it is the one that is reused.
                _ => Reply::text("other").closing(),
            };
            if !matches!(connection.reply(&request, &reply), testkit::origin::Ended::Kept) {
                return;
            }
            if request.method == "PUT" && !(connection.pass(&reads_on) && connection.read_body(&mut request))
            {
                return;
            }
        }
    });
    let server = setup(&origin)
        .value("SERVER", "client_body_buffer_size 1m; client_max_body_size 1m; proxy_socket_sndbuf 16k;")
        .start(BINARY);
    let mut client = Client::connect(server.addr(0));
    client.send("PUT /kept/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.send(vec![b'x'; 1_000_000]);
    assert_eq!(client.response().text(), "first", "the response does not wait for the upload");
    gate.open();
    let is_reused = || (Client::connect(server.addr(0)).get("/kept/").text() == "first").then_some(());
    wait::until("the first connection", Deadline::default(), is_reused).expect("it is used again");
    let _ = origin.take_faults();
}

/// Bodies of a known length are received into memory of that size. Bytes that a client sends after a body belong to the
/// next request, however they are segmented.
#[test]
fn a_request_pipelined_after_a_long_body_is_not_lost() {
    let told = |body: &[u8]| {
        let sum = body.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        format!("{} {sum}", body.len())
    };
    let origin = Origin::start(move |request| Reply::text(told(&request.body)));
    let (bodies, sizes) = (Content::new(8, 1 << 20), [1, 3_000, 4_096, 20_000, 70_000, 300_000]);
    for settings in ["client_body_buffer_size 1m;", "client_body_buffer_size 8k;"] {
        let server = setup(&origin).value("SERVER", settings).start(BINARY);
        for piece in [usize::MAX, 5_000] {
            for target in ["/kept/", "/stream/"] {
                let mut client = Client::connect(server.addr(0));
                let mut bytes = Vec::new();
                for size in sizes {
                    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
                    bytes.extend_from_slice(head.as_bytes());
                    bytes.extend_from_slice(&bodies.bytes(0..size));
                }
                client.send_in_pieces(&bytes, piece.min(bytes.len()));
                for size in sizes {
                    let expected = told(&bodies.bytes(0..size));
                    assert_eq!(client.response().text(), expected, "{target} {settings} {piece}");
                }
            }
        }
    }
}

/// The origin closes a keep-alive connection on which the request has already been sent: retried if that is safe.
#[test]
fn a_request_on_a_closed_idle_connection_is_retried_if_safe() {
    let origin = Origin::raw(|connection| {
        while let Some(request) = connection.read_request() {
            let is_second = request.number == 2;
            if is_second
                || !matches!(connection.reply(&request, &Reply::text("kept")), testkit::origin::Ended::Kept)
            {
                return;
            }
        }
    });
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/kept/").text(), "kept");
    assert_eq!(client.get("/kept/").text(), "kept");
    let line = logged(&server, 2);
    assert_eq!((line[0].as_str(), line[2].as_str()), ("200", "502, 200"));
    assert_eq!(client.request("POST", "/kept/", &[]).status, 502, "a second POST could do a thing twice");
}

#[test]
fn an_idle_connection_closed_by_the_origin_is_not_used() {
    let origin = Origin::start(|_| Reply::text("kept"));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.get("/kept/");
    origin.end_connections();
    origin.wait_for("the end", |stats| stats.connections_open == 0);
    assert_eq!(client.request("POST", "/kept/", &[]).status, 200);
    assert_eq!(origin.stats().connections, 2);
}

#[test]
fn a_reload_closes_idle_connections() {
    let origin = Origin::start(|_| Reply::text("kept"));
    let server = start(&origin);
    Client::connect(server.addr(0)).get("/kept/");
    assert_eq!(origin.stats().connections_open, 1);
    server.reload();
    origin.wait_for("the end of the idle connection", |stats| stats.connections_open == 0);
}

#[test]
fn another_server_is_tried_if_the_retry_is_safe() {
    let bad = Origin::start(|request| match request.path() {
        "/pair/unavailable" => Reply::new(503),
        _ => Reply::close(),
    });
    let good = Origin::start(|_| Reply::text("good"));
    let conf = setup(&bad).upstream("OTHER", good.addr()).value(
        "SERVER",
        "location = /pair/unavailable { proxy_pass http://pair; proxy_next_upstream error http_503; }
         location = /pair/off { proxy_pass http://pair; proxy_next_upstream off; }
         location = /pair/any { proxy_pass http://pair; proxy_next_upstream error non_idempotent; }",
    );
    let conf = {
        let mut conf = conf;
        let text = CONF.replace(
            "server @ORIGIN@; server @OTHER@;",
            "server @ORIGIN@ max_fails=0; server @OTHER@ backup;",
        );
        conf.set_text(&text);
        conf
    };
    let server = conf.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/pair/").text(), "good");
    let line = logged(&server, 1);
    assert_eq!(line[1], format!("{}, {}", bad.addr(), good.addr()));
    assert_eq!(line[2], "502, 200");
    assert_eq!(client.get("/pair/unavailable").text(), "good");
    assert_eq!(logged(&server, 2)[2], "503, 200");
    assert_eq!(client.get("/pair/off").status, 502);
    assert_eq!(client.request("POST", "/pair/", &[]).status, 502);
    assert_eq!(client.request("POST", "/pair/any", &[]).text(), "good");
    bad.refuse();
    assert_eq!(client.request("POST", "/pair/", &[]).text(), "good", "nothing of it was sent");
}

#[test]
fn a_slow_client_needs_a_bounded_amount_of_memory() {
    const SIZE: u64 = 64 << 20;
    let origin = Origin::start(|_| Reply::ok().content(Content::new(3, SIZE)));
    let location =
        format!("location /memory/ {{ proxy_pass http://{}; proxy_max_temp_file_size 0; }}", origin.addr());
    let server = setup(&origin).value("SERVER", &location).start(BINARY);
    let worker = server.worker();
    let before = process::resident_bytes(worker);
    let testkit::ListenAddr::Tcp(address) = server.addr(0) else { panic!("it listens on TCP") };
    let mut slow = Client::connect_narrow(*address, 4096);
    slow.send("GET /memory/ HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = slow.head();
    // Responses to other clients are still forwarded; the first client's slowness blocks its origin.
    Client::connect(server.addr(0)).get("/memory/");
    let sent = origin.stats().bytes_sent;
    assert!(sent < SIZE + (SIZE / 2), "{sent} bytes: the bytes for the slow client are held back");
    // With a temporary file the origin can send its complete response.
    let mut spooled = Client::connect_narrow(*address, 4096);
    spooled.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
    let spooled_head = spooled.head();
    origin.wait_for("the complete response", |stats| stats.replies == 2);
    let grown = process::resident_bytes(worker).saturating_sub(before);
    assert!(grown < SIZE / 2, "{grown} bytes of memory");
    Content::new(3, SIZE).compare(0..SIZE, &mut spooled.body(&spooled_head)).expect("the bytes are right");
    let buffered = "an upstream response is buffered to a temporary file /";
    let log = server.wait_for_log(buffered, Deadline::default());
    let line = log.lines().find(|line| line.contains(buffered)).expect("the wait has found it");
    assert!(line.contains("[warn]") && line.contains("request: \"GET /file HTTP/1.1\""), "{line}");
    Content::new(3, SIZE).compare(0..SIZE, &mut slow.body(&head)).expect("the bytes are right");
}

/// The response to one client is in its temporary file when clients that do not read occupy all buffers for bodies.
#[test]
fn slow_clients_of_spooled_responses_do_not_end_others() {
    if !ours_only("the buffer pool") {
        return;
    }
    const SIZE: u64 = 8 << 20;
    let content = Content::new(3, SIZE);
    let origin = Origin::start(move |_| Reply::ok().content(content));
    let pass = format!("proxy_pass http://{};", origin.addr());
    let locations = format!(
        "location /slow {{ {pass} proxy_buffers 8 64k; }} location /late {{ {pass} proxy_buffers 4 4k; }}"
    );
    let server = setup(&origin).value("EVENTS", "buffer_pool 4m;").value("SERVER", &locations).start(BINARY);
    let get = |target: &str| {
        let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    let mut late = get("/late");
    wait_until_received(&origin);
    let _slow: Vec<_> = (0..12).map(|_| get("/slow")).collect();
    // More slow clients would need more buffers than exist, and may have to wait.
    origin.wait_for("slow clients", |stats| stats.requests >= 5);
    let head = late.head();
    content.compare(0..SIZE, &mut late.body(&head)).expect("the bytes are right");
}

/// Waits until the server has received the complete response: it then closes the connection to the origin.
fn wait_until_received(origin: &Origin) {
    origin.wait_for("a response", |stats| stats.replies == 1);
    let port = format!(":{:04X}", origin.addr().tcp().port());
    // The columns 2 and 3 of proc_net_tcp(5); 01 is ESTABLISHED, and 08 is CLOSE_WAIT.
    let is_open = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().skip(2).take(2).collect();
        columns[0].ends_with(&port) && ["01", "08"].contains(&columns[1])
    };
    let closed = wait::until("the end of the connection to the origin", Deadline::default(), || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("procfs");
        (!table.lines().skip(1).any(is_open)).then_some(())
    });
    closed.expect("the server receives the response");
}

/// Requests more than buffers and sockets hold, makes the file fail, and then reads everything.
fn assert_continues_without_a_file(folder: &str, failed: &str) {
    const SIZE: u64 = 64 << 20;
    let origin = Origin::start(|_| Reply::ok().content(Content::new(3, SIZE)));
    let location =
        format!("location /gone/ {{ proxy_pass http://{}; proxy_temp_path {folder}; }}", origin.addr());
    let server = setup(&origin).value("SERVER", &location).start(BINARY);
    let testkit::ListenAddr::Tcp(address) = server.addr(0) else { panic!("it listens on TCP") };
    let mut slow = Client::connect_narrow(*address, 4096);
    slow.send("GET /gone/ HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = slow.head();
    server.wait_for_log(failed, Deadline::default());
    Content::new(3, SIZE).compare(0..SIZE, &mut slow.body(&head)).expect("the bytes are right");
    assert_eq!(server.error_log().matches("goes on without a temporary file").count(), 1);
}

#[test]
fn a_response_continues_if_its_temporary_file_cannot_be_created() {
    assert_continues_without_a_file("/proc/none", "open() \"/proc/none/");
}

#[test]
fn a_response_continues_if_the_temporary_file_system_is_full() {
    let Some(disk) = Filesystem::new(24) else { return };
    let folder = disk.path().display().to_string();
    assert_continues_without_a_file(&folder, &format!("write() \"{folder}\" failed (28: "));
}

#[test]
fn a_slow_origin_delays_no_other_request() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |request| match request.path() {
        "/held" => Reply::text("late").wait_first(&held),
        _ => Reply::text("fast"),
    });
    let server = start(&origin);
    let mut waiting = Client::connect(server.addr(0));
    waiting.send(testkit::client::request_bytes("GET", "/held", &[]));
    gate.wait_reached();
    let mut client = Client::connect(server.addr(0));
    for _ in 0..20 {
        assert_eq!(client.get("/fast").text(), "fast");
    }
    gate.open();
    assert_eq!(waiting.response().text(), "late");
}

#[test]
fn a_client_that_disconnects_cancels_its_upstream_request() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |request| match request.path() {
        "/head" => Reply::text("late").wait_first(&held),
        _ => Reply::ok().chunked(&[5]).body("0123456789").wait_at(5, &held),
    });
    let server = start(&origin);
    for (target, line) in [("/head", "499|"), ("/direct/", "200|")] {
        let before = gate.arrived();
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", target, &[]));
        gate.wait_reached_by(before + 1);
        if target == "/direct/" {
            assert_eq!(client.head().status, 200, "the head does not wait for the body");
        }
        drop(client);
        server.wait_for_access_log(if target == "/head" { 1 } else { 2 }, Deadline::default());
        assert!(server.access_log().lines().last().is_some_and(|last| last.starts_with(line)), "{target}");
    }
    server.wait_for_log(
        "client prematurely closed connection, so upstream connection is closed too",
        Deadline::default(),
    );
    gate.open();
    origin.wait_for("the end of both", |stats| stats.connections_open == 0);
}

/// The client receives the first event of a stream before the second one exists.
#[test]
fn each_piece_is_passed_on_immediately_without_buffering() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::ok().chunked(&[6]).body("first second").wait_at(6, &held));
    let server = start(&origin);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", "/direct/", &[]));
    assert_eq!(client.head().field("Transfer-Encoding"), Some("chunked"));
    assert_eq!(client.read_exact(11), b"6\r\nfirst \r\n");
    gate.wait_reached();
    gate.open();
    assert_eq!(client.read_exact(16), b"6\r\nsecond\r\n0\r\n\r\n");
}

/// The same exchanges on each network engine, as each transfers bytes differently.
#[test]
fn all_engines_pass_requests_and_responses() {
    if !ours_only("engines") {
        return;
    }
    let content = Content::new(5, 3 << 20);
    let body = content;
    let origin = Origin::start(move |request| match request.path() {
        "/kept/echo" | "/stream/echo" => Reply::text(&request.body),
        _ => Reply::ok().chunked(&[40_000]).content(body),
    });
    for net in testkit::engines::NETS {
        let builder =
            setup(&origin).value("EVENTS", &format!("use {net};")).value("THREADS", "2").builder(BINARY);
        let server = match builder.try_start() {
            Ok(server) => server,
            Err(why) if net == "io_uring" => {
                testkit::engines::report_skipped(net, "io_uring", &why);
                continue;
            }
            Err(why) => panic!("{why}"),
        };
        let mut client = Client::connect(server.addr(0));
        for target in ["/", "/direct/", "/kept/"] {
            content.assert_body(&client.get(target).body);
        }
        let upload = Content::new(6, 500_000).bytes(0..500_000);
        for target in ["/kept/echo", "/stream/echo"] {
            client.send(format!(
                "POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                upload.len()
            ));
            client.send(&upload);
            assert_eq!(client.response().body, upload, "{target} on {net}");
        }
        let log = server.error_log();
        assert!(!log.contains("[alert]") && !log.contains("[crit]"), "{log}");
    }
}

/// Partial and interrupted system calls, and receives that end early, do not change the received bytes.
#[test]
fn partial_and_interrupted_system_calls_change_nothing() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    let content = Content::new(5, 300_000);
    let body = content;
    let origin = Origin::start(move |request| match request.path() {
        "/kept/echo" | "/stream/echo" => Reply::text(&request.body),
        _ => Reply::ok().chunked(&[40_000]).content(body),
    });
    for net in testkit::engines::NETS {
        for faults in [
            "engine_fault send short every=2; engine_fault recv short every=2;",
            "engine_fault send error=EINTR every=3; engine_fault recv error=ENOBUFS every=3;",
            "engine_fault recv end every=2; engine_fault write short every=2;",
        ] {
            let events = format!("use {net}; {faults}");
            let Ok(server) = setup(&origin).value("EVENTS", &events).builder(BINARY).try_start() else {
                assert_eq!(net, "io_uring", "epoll is available everywhere");
                continue;
            };
            let mut client = Client::connect(server.addr(0));
            for target in ["/", "/direct/", "/kept/"] {
                content.assert_body(&client.get(target).body);
            }
            let upload = content.bytes(0..100_000);
            for target in ["/kept/echo", "/stream/echo"] {
                client.send(format!(
                    "POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                    upload.len()
                ));
                client.send(&upload);
                assert_eq!(client.response().body, upload, "{target} on {net} with {faults}");
            }
        }
    }
}
