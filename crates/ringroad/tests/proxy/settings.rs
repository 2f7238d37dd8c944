//! Proxy settings whose effect is visible only if a peer is slow, a limit is reached or a connection has been closed:
//! timeouts and counts of keep-alive connections and retries, the local address, limits of temporary files, uploads
//! that cannot be resent.

use crate::common;
use std::time::Duration;

use crate::common::BINARY;
use testkit::origin::{Origin, Reply};
use testkit::{Client, Content, Deadline, Gate, ListenAddr, Server, Setup, process};

/// Starts a server with these locations and groups.
fn start(origin: &Origin, other: &Origin, groups: &str, locations: &str) -> (Setup, Server) {
    let text = format!(
        "worker_processes 1; error_log logs/error.log info;
events {{ }}
http {{
  log_format up '$status|$upstream_status';
  access_log logs/access.log up;
  proxy_temp_path @DATA@/temp;
  client_max_body_size 0;
  proxy_http_version 1.1; proxy_set_header Connection '';
  {groups}
  server {{ listen 127.0.0.1:0; {locations} }}
}}
"
    );
    let setup = Setup::new(&text).origin(origin).upstream("OTHER", other.addr());
    let server = setup.start(BINARY);
    (setup, server)
}

fn text() -> Origin {
    Origin::start(|_| Reply::text("x"))
}

/// Waits at least this long: the tested setting is a timeout.
fn wait_at_least(ms: u64) {
    let never = testkit::wait::until("the time", Deadline::after(Duration::from_millis(ms)), || None::<()>);
    never.expect_err("nothing comes");
}

/// If another upstream has received the start of a body, the rest alone would look like a complete body.
#[test]
fn a_partly_sent_upload_is_not_retried() {
    let origin = Origin::raw(|connection| {
        if connection.read_head().is_some() {
            connection.read_exact(5);
        }
    });
    let other = Origin::start(|request| Reply::text(&request.body));
    let (_setup, server) = start(
        &origin,
        &other,
        "",
        "location /streamed/ { proxy_request_buffering off; proxy_pass http://@ORIGIN@; error_page 502 = @streamed; }
         location @streamed { proxy_request_buffering off; proxy_pass http://@OTHER@; }
         location /read/ { proxy_request_buffering off; proxy_pass http://@ORIGIN@; error_page 502 = @read; }
         location @read { proxy_pass http://@OTHER@; }",
    );
    for target in ["/streamed/", "/read/"] {
        let mut client = Client::connect(server.addr(0));
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nfirst"));
        assert_eq!(client.response().status, 502, "{target}");
    }
    assert_eq!(other.stats().requests, 0);
    server.wait_for_log("request body was passed on already", Deadline::default());
    // A body of which no upstream has received anything can be sent to another.
    origin.refuse();
    let mut client = Client::connect(server.addr(0));
    client.send("POST /streamed/ HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nfirstsecond");
    assert_eq!(client.response().text(), "firstsecond");
    let _ = origin.take_faults();
}

/// For a client that is slightly slow, the complete response is not written to the disk.
#[test]
fn a_temporary_file_obeys_its_size_limit() {
    const SIZE: u64 = 8 << 20;
    let origin = Origin::start(|_| Reply::ok().content(Content::new(3, SIZE)));
    let other = text();
    let (setup, server) = start(
        &origin,
        &other,
        "",
        "location / { proxy_max_temp_file_size 256k; proxy_pass http://@ORIGIN@; }",
    );
    let ListenAddr::Tcp(address) = server.addr(0) else { panic!("it listens on TCP") };
    let mut client = Client::connect_narrow(*address, 4096);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert_eq!(head.field("content-length"), Some("8388608"));
    let length = || temp_length(&server, &setup.data().join("temp"));
    let begun = || length().filter(|&length| length > 100 << 10);
    let mut most = testkit::wait::until("a file", Deadline::default(), begun).expect("it is written");
    let mut body = Vec::new();
    while (body.len() as u64) < SIZE {
        body.extend(client.read_exact(32 << 10));
        most = most.max(length().unwrap_or(0));
    }
    Content::new(3, SIZE).assert_body(&body);
    assert!(most <= 256 << 10, "{most} bytes in the file");
}

/// Returns the length of the largest temporary file below this directory that the worker has open.
fn temp_length(server: &Server, folder: &std::path::Path) -> Option<u64> {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.worker())).expect("the worker lives");
    let folder = folder.display().to_string();
    let files = fds.flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| link.display().to_string().starts_with(&folder))
    });
    files.filter_map(|entry| std::fs::metadata(entry.path()).ok()).map(|stat| stat.len()).max()
}

/// The disk accepts three writes and no more, so the file's length shows their size.
#[test]
fn writes_to_a_temporary_file_have_the_configured_size() {
    let origin = Origin::start(|_| Reply::ok().content(Content::new(3, 8 << 20)));
    let text = "worker_processes 1; error_log logs/error.log info;
events { engine_fault write error=EIO path=@DATA@/temp after=3; }
http { proxy_temp_path @DATA@/temp; proxy_buffers 4 16k; @SIZE@
  server { listen 127.0.0.1:0; location / { proxy_pass http://@ORIGIN@; } } }";
    for (size, least, most) in [("proxy_temp_file_write_size 16k;", 0, 48 << 10), ("", 48 << 10, 192 << 10)] {
        let setup = Setup::new(text).origin(&origin).value("SIZE", size);
        let server = setup.start(BINARY);
        let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.head();
        let begun = || temp_length(&server, &setup.data().join("temp")).filter(|&length| length > 0);
        testkit::wait::until("a file", Deadline::default(), begun).expect("it is written");
        // Bytes that the disk refuses stay in memory: nothing is written from here on.
        server.wait_for_log("goes on without a temporary file", Deadline::default());
        let length = temp_length(&server, &setup.data().join("temp")).expect("the client has not read it");
        assert!(length > least && length <= most, "{size} {length}");
    }
    let _ = origin.take_faults();
}

/// A body without a length is sent in chunks, one for each buffer that is flushed.
#[test]
fn pieces_for_the_client_have_the_configured_size() {
    let origin = Origin::start(|_| Reply::ok().chunked(&[300_000]).content(Content::new(3, 3_000_000)));
    let other = text();
    let (_setup, server) = start(
        &origin,
        &other,
        "proxy_buffers 16 8k;",
        "location / { proxy_pass http://@ORIGIN@; }
         location /busy { proxy_busy_buffers_size 8k; proxy_pass http://@ORIGIN@; }
         location /file { proxy_busy_buffers_size 8k; proxy_max_temp_file_size 4m; proxy_pass http://@ORIGIN@; }",
    );
    let largest = |target: &str| {
        let mut client = Client::connect_narrow(server.addr(0).tcp(), 16 << 10);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        assert_eq!(client.head().field("transfer-encoding"), Some("chunked"));
        let wire = client.read_to_end();
        let (mut rest, mut largest, mut body) = (wire.as_slice(), 0, Vec::new());
        loop {
            let end = rest.iter().position(|&byte| byte == b'\r').expect("a chunk");
            let size =
                std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
            let size = size.expect("a number");
            if size == 0 {
                Content::new(3, 3_000_000).assert_body(&body);
                return largest;
            }
            body.extend_from_slice(&rest[end + 2..end + 2 + size]);
            rest = &rest[end + 2 + size + 2..];
            largest = largest.max(size);
        }
    };
    assert!(largest("/") > 8 << 10, "otherwise there is nothing to limit");
    assert!(largest("/busy") <= 8 << 10);
    assert!(largest("/file") <= 8 << 10);
}

#[test]
fn idle_upstream_connections_obey_requests_time_and_timeout() {
    let origin = Origin::start(|_| {
        wait_at_least(5);
        Reply::text("x")
    });
    let other = text();
    let (_setup, server) = start(
        &origin,
        &other,
        "upstream count { server @ORIGIN@; keepalive 4; keepalive_requests 2; }
         upstream age { server @ORIGIN@; keepalive 4; keepalive_time 1ms; }
         upstream rest { server @ORIGIN@; keepalive 4; keepalive_timeout 3s; }
         upstream plain { server @ORIGIN@; keepalive 4; }",
        "location /count { proxy_pass http://count; } location /age { proxy_pass http://age; }
         location /rest { proxy_pass http://rest; } location /plain { proxy_pass http://plain; }",
    );
    let mut client = Client::connect(server.addr(0));
    for (target, connections) in [("/plain", 1), ("/count", 2), ("/age", 4), ("/rest", 1)] {
        let before = origin.stats().connections;
        for _ in 0..4 {
            assert_eq!(client.get(target).text(), "x");
        }
        assert_eq!(origin.stats().connections - before, connections, "{target}");
    }
    // Only the connection without a limit remains.
    origin.wait_for("the end of the idle connection", |stats| stats.connections_open == 1);
}

#[test]
fn tries_are_limited_in_number_and_time() {
    let origin = Origin::start(|_| {
        wait_at_least(30);
        Reply::new(503)
    });
    let other = text();
    let (_setup, server) = start(
        &origin,
        &other,
        "upstream pair { server @ORIGIN@ max_fails=0; server @OTHER@ backup; }
         proxy_next_upstream http_503;",
        "location /free { proxy_pass http://pair; }
         location /tries { proxy_next_upstream_tries 1; proxy_pass http://pair; }
         location /time { proxy_next_upstream_timeout 10ms; proxy_pass http://pair; }",
    );
    let mut client = Client::connect(server.addr(0));
    for (target, status) in [("/free", 200), ("/tries", 503), ("/time", 503)] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    assert_eq!(other.stats().requests, 1);
}

#[test]
fn a_client_that_disconnects_is_ignored_if_configured() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("late").wait_first(&held));
    let other = text();
    let (_setup, server) = start(
        &origin,
        &other,
        "",
        "location / { proxy_pass http://@ORIGIN@; }
         location /ignored { proxy_ignore_client_abort on; proxy_pass http://@ORIGIN@; }",
    );
    for target in ["/ignored", "/minded"] {
        let before = gate.arrived();
        let mut client = Client::connect(server.addr(0));
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        gate.wait_reached_by(before + 1);
    }
    // The connection of the location without `proxy_ignore_client_abort` is closed while the other one still waits.
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("499|"));
    gate.open();
    let log = server.wait_for_access_log(2, Deadline::default());
    assert!(log.lines().nth(1).is_some_and(|line| line.ends_with("|200")), "{log}");
}

/// An origin that does not read delays its request, but needs no more memory than the buffers.
#[test]
fn memory_for_an_origin_that_does_not_read_is_bounded() {
    let origin = Origin::raw(|connection| {
        if connection.read_head().is_some() {
            connection.pass(&Gate::new());
        }
    });
    let other = text();
    let (_setup, server) = start(
        &origin,
        &other,
        "",
        "location / { proxy_send_timeout 500ms; proxy_request_buffering off; proxy_socket_sndbuf 64k; proxy_pass http://@ORIGIN@; }",
    );
    let worker = server.worker();
    let before = process::resident_bytes(worker);
    let mut client = Client::connect(server.addr(0));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 268435456\r\n\r\n");
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0_u64;
    let gave_up = || server.error_log().contains("while sending request to upstream");
    while sent < 256 && !gave_up() && client.try_send(&piece).is_ok() {
        sent += 1;
    }
    assert!(sent < 64, "{sent} MiB were taken");
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while sending request",
        Deadline::default(),
    );
    let grown = process::resident_bytes(worker).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes of memory");
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("504|504"));
}

/// The response's field controls buffering, unless it is ignored.
#[test]
fn a_response_field_can_turn_buffering_off() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| {
        Reply::ok().header("X-Accel-Buffering", "no").chunked(&[6]).body("first second").wait_at(6, &held)
    });
    let other = text();
    let (_setup, server) = start(&origin, &other, "", "location / { proxy_pass http://@ORIGIN@; }");
    let mut client = Client::connect(server.addr(0));
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().field("x-accel-buffering"), None);
    assert_eq!(client.read_exact(11), b"6\r\nfirst \r\n");
    gate.wait_reached();
    gate.open();
    assert_eq!(client.read_exact(16), b"6\r\nsecond\r\n0\r\n\r\n");
}

/// A small body of known length is not awaited either, whatever the case of the value.
#[test]
fn an_unbuffered_body_of_known_length_is_not_awaited() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| {
        Reply::ok().header("X-Accel-Buffering", "No").body("first second").wait_at(6, &held)
    });
    let other = text();
    let (_setup, server) = start(&origin, &other, "", "location / { proxy_pass http://@ORIGIN@; }");
    let mut client = Client::connect(server.addr(0));
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().field("Content-Length"), Some("12"));
    assert_eq!(client.read_exact(6), b"first ");
    gate.open();
    assert_eq!(client.read_exact(6), b"second");
}

/// The address that an upstream sees, and upstreams of the other address family.
#[test]
fn upstream_connections_use_the_configured_local_address() {
    let origin = common::serve(
        "worker_processes 1; events {} http { server { listen 127.0.0.1:0; listen [::1]:0; return 200 $remote_addr; } }",
    );
    let (v4, v6) = (origin.addr(0), origin.addr(1));
    let text = format!(
        "worker_processes 1; events {{}} http {{ server {{ listen 127.0.0.1:0;
           location /fixed {{ proxy_bind 127.0.0.2; proxy_pass http://{v4}; }}
           location /asked {{ proxy_bind $arg_from; proxy_pass http://{v4}; }}
           location /none {{ proxy_bind off; proxy_socket_keepalive on; proxy_socket_rcvbuf 32k; proxy_pass http://{v4}; }}
           location /v6 {{ proxy_bind 127.0.0.2; proxy_pass http://{v6}; }} }} }}"
    );
    let server = Server::start(BINARY, &text);
    let mut client = Client::connect(server.addr(0));
    for (target, seen) in [
        ("/fixed", "127.0.0.2"),
        ("/asked?from=127.0.0.3", "127.0.0.3"),
        ("/asked?from=nonsense", "127.0.0.1"),
        ("/none", "127.0.0.1"),
        ("/v6", "::1"),
    ] {
        assert_eq!(client.get(target).text(), seen, "{target}");
    }
}
