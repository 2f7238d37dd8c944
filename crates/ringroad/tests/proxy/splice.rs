//! Bodies and tunnels that are passed on by splice(2). Each test reads the counter of spliced bytes, so that it does not pass because the
//! bytes were copied. Each runs with two network engines.

use std::time::{Duration, Instant};

use crate::common::{BINARY, ours_only};
use testkit::client::request_bytes;
use testkit::origin::{At, Do, Framing, Origin, Reply};
use testkit::{Client, Content, Deadline, Gate, Server, wait};

/// Larger than all buffers between origin and client.
const LARGE: u64 = 24 << 20;

/// The maximum number of pipes of a thread, `rt::net::PIPES_MAX`.
const PIPES_MAX: u64 = 64;

/// Starts a server before the origin; `engine` is the directive for it, `extra` are further settings of `http`.
fn serve(origin: &Origin, engine: &str, extra: &str) -> Server {
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ {engine} }}
         http {{ log_format up '$status|$body_bytes_sent|$upstream_response_length|$upstream_bytes_received|$bytes_sent';
           access_log logs/access.log up;
           upstream kept {{ server {origin}; keepalive 4; }}
           proxy_http_version 1.1; proxy_set_header Connection ''; {extra}
           server {{ listen 127.0.0.1:0;
             location = /metrics {{ access_log off; metrics; }}
             location / {{ proxy_pass http://kept; }}
             location /direct/ {{ proxy_pass http://kept; proxy_buffering off; }}
             location /limited/ {{ proxy_pass http://kept; proxy_limit_rate 100m; }}
             location /rate/ {{ proxy_pass http://kept; limit_rate 100m; }}
             location /zip/ {{ proxy_pass http://kept; gzip on; gzip_types *; }}
             location /ws {{ proxy_pass http://kept; proxy_set_header Upgrade $http_upgrade;
                             proxy_set_header Connection upgrade; }} }} }}",
        origin = origin.addr(),
    );
    Server::builder(BINARY).conf(&conf).start()
}

/// Runs a test with epoll and with the default engine, which is io_uring if the machine has it.
fn with_engines(test: impl Fn(&str)) {
    if ours_only("nginx has no splice(2)") {
        ["use epoll;", ""].into_iter().for_each(test);
    }
}

/// Returns the number of bytes that were spliced so far.
fn spliced(server: &Server) -> u64 {
    let page = Client::connect(server.addr(0)).get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix("ringroad_spliced_bytes_total "));
    line.expect("the metric").parse().expect("a number")
}

/// Waits until more than `min` bytes were spliced and no further ones are, because the clients do not read.
fn wait_until_blocked(server: &Server, min: u64, deadline: Deadline) {
    // A busy machine makes no progress for a moment too.
    let (mut before, mut changed) = (0, Instant::now());
    let blocked = wait::until("the sockets are full", deadline, || {
        let now = spliced(server);
        if now != before {
            (before, changed) = (now, Instant::now());
        }
        (now > min && changed.elapsed() > Duration::from_millis(300)).then_some(())
    });
    blocked.unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the fields of the last of `lines` lines of the access log.
fn logged(server: &Server, lines: usize) -> Vec<u64> {
    let log = server.wait_for_access_log(lines, Deadline::default());
    let last = log.lines().nth(lines - 1).expect("the line exists");
    last.split('|').map(|field| field.parse().expect("a number")).collect()
}

#[test]
fn a_body_of_known_length_is_spliced_and_counted() {
    with_engines(|engine| {
        let content = Content::new(1, 1 << 20);
        let origin = Origin::start(move |_| Reply::ok().content(content));
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        for (lines, target) in ["/a", "/direct/b", "/c"].into_iter().enumerate() {
            let response = client.get(target);
            content.assert_body(&response.body);
            let line = logged(&server, lines + 1);
            assert_eq!(line[..3], [200, 1 << 20, 1 << 20], "{engine} {target}");
            assert!(line[3] > 1 << 20 && line[4] > 1 << 20, "the header sections are counted: {line:?}");
        }
        // The bytes that arrive with the header section are not spliced.
        assert!(spliced(&server) > 3 * (1 << 20) - 3 * (256 << 10), "{}", spliced(&server));
        assert_eq!(origin.stats().connections, 1, "the connection to the origin is reused");
    });
}

/// A small body, a changed body, an unknown length and a limited rate need the bytes in memory.
#[test]
fn other_bodies_are_not_spliced() {
    with_engines(|engine| {
        let content = Content::new(2, 300_000);
        let origin = Origin::start(move |request| match request.path() {
            "/small" => Reply::ok().content(Content::new(2, 10_000)),
            "/chunks" => Reply::ok().chunked(&[1000]).content(content),
            "/close" => Reply::ok().framing(Framing::UntilClose).content(content),
            _ => Reply::ok().content(content),
        });
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        assert_eq!(client.get("/small").body.len(), 10_000);
        for target in ["/chunks", "/close", "/limited/", "/rate/"] {
            content.assert_body(&client.get(target).body);
        }
        client.request("GET", "/zip/", &[("Accept-Encoding", "gzip")]);
        let mut old = Client::connect(server.addr(0));
        old.send("GET /close HTTP/1.0\r\n\r\n");
        old.head();
        content.assert_body(&old.read_to_end());
        assert_eq!(client.request("HEAD", "/", &[]).head.status, 200);
        assert_eq!(spliced(&server), 0, "{engine}");
    });
}

#[test]
fn a_spliced_body_that_ends_early_does_not_look_complete() {
    with_engines(|engine| {
        let content = Content::new(3, 2 << 20);
        let origin = Origin::start(move |request| {
            let reply = Reply::ok().content(content);
            match request.path().ends_with("reset") {
                true => reply.at(At::Body(1 << 20), Do::Reset),
                false => reply.at(At::Body(1 << 20), Do::Close),
            }
        });
        let server = serve(&origin, engine, "");
        for target in ["/close", "/reset", "/direct/close", "/direct/reset"] {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", target, &[]));
            assert!(client.try_response().is_err(), "{engine} {target}");
        }
        assert!(spliced(&server) > 0);
        server.wait_for_log("upstream prematurely closed connection", Deadline::default());
    });
}

/// Bytes after the end of a body must not become the response to another request.
#[test]
fn excess_bytes_after_a_spliced_body_close_the_connection() {
    with_engines(|engine| {
        let content = Content::new(4, 300_000);
        let origin = Origin::raw(move |connection| {
            while connection.read_request().is_some() {
                let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n".to_vec();
                bytes.extend_from_slice(&content.bytes(0..300_000));
                bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
                connection.send(bytes);
            }
        });
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        for _ in 0..4 {
            content.assert_body(&client.get("/").body);
        }
        assert!(spliced(&server) > 0, "{engine}");
        server.wait_for_log("upstream sent more data than specified", Deadline::default());
    });
}

/// A client that does not read occupies the upstream only without `proxy_buffering`.
#[test]
fn a_slow_client_of_a_buffered_body_frees_the_upstream() {
    with_engines(|engine| {
        let content = Content::new(5, LARGE);
        let origin = Origin::start(move |_| Reply::ok().content(content));
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/", &[]));
        let head = client.head();
        // The response is sent completely, although the client has read none of it.
        origin.wait_for("the upstream has sent everything", |stats| stats.replies == 1);
        let mut body = client.body(&head);
        content.compare(0..LARGE, &mut body).expect("the bytes are in order");
        assert!(spliced(&server) > 0, "{engine}");
        let log = server.wait_for_log("is buffered to a temporary file", Deadline::default());
        assert!(log.contains("[warn]"), "{log}");
    });
}

#[test]
fn a_slow_client_of_an_unbuffered_body_gets_it_in_order() {
    with_engines(|engine| {
        let content = Content::new(6, LARGE);
        let origin = Origin::start(move |_| Reply::ok().content(content));
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/direct/", &[]));
        let head = client.head();
        wait_until_blocked(&server, 1 << 20, Deadline::default());
        assert_eq!(origin.stats().replies, 0, "the upstream waits for the client");
        content.compare(0..LARGE, &mut client.body(&head)).expect("the bytes are in order");
        assert!(spliced(&server) > LARGE - (1 << 20), "{engine}");
    });
}

#[test]
fn a_client_that_leaves_ends_a_spliced_body() {
    with_engines(|engine| {
        let content = Content::new(7, LARGE);
        let gate = Gate::new();
        let waits = gate.clone();
        let origin = Origin::start(move |request| {
            let reply = Reply::ok().content(content);
            if request.path().ends_with("idle") { reply.wait_at(1 << 20, &waits) } else { reply }
        });
        let server = serve(&origin, engine, "");
        for (lines, target) in ["/direct/full", "/direct/idle"].into_iter().enumerate() {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", target, &[]));
            client.read_exact(1 << 19);
            client.reset();
            assert!(logged(&server, lines + 1)[1] < LARGE, "{engine} {target}");
        }
        gate.open();
        assert!(spliced(&server) > 0);
    });
}

#[test]
fn the_time_limits_of_both_sides_apply_to_a_spliced_body() {
    with_engines(|engine| {
        let content = Content::new(8, LARGE);
        let gate = Gate::new();
        let waits = gate.clone();
        let origin = Origin::start(move |request| {
            let reply = Reply::ok().content(content);
            if request.path().ends_with("stalls") { reply.wait_at(1 << 20, &waits) } else { reply }
        });
        let server = serve(&origin, engine, "proxy_read_timeout 500ms; send_timeout 500ms;");
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/direct/stalls", &[]));
        assert!(client.try_response().is_err(), "the upstream is too slow");
        server.wait_for_log("upstream timed out", Deadline::default());
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/direct/unread", &[]));
        server.wait_for_log("client timed out", Deadline::default());
        gate.open();
        assert!(spliced(&server) > 0, "{engine}");
    });
}

/// The bytes of a busy tunnel are spliced, in both directions; short messages are not, and the end is passed on.
#[test]
fn a_busy_tunnel_is_spliced() {
    with_engines(|engine| {
        let content = Content::new(9, 8 << 20);
        let origin = Origin::raw(move |connection| {
            if connection.read_request().is_none() {
                return;
            }
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            );
            for _ in 0..101 {
                let Some(message) = connection.read_exact(5) else { return };
                connection.send(message);
            }
            connection.send(content.bytes(0..8 << 20));
            let Some(bytes) = connection.read_exact(8 << 20) else { return };
            content.assert_body(&bytes);
            connection.send("short");
            connection.wait_for_close();
        });
        let server = serve(&origin, engine, "");
        let mut client = Client::connect(server.addr(0));
        client.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(client.head().status, 101);
        for _ in 0..100 {
            client.send("hello");
            assert_eq!(client.read_exact(5), b"hello");
        }
        assert_eq!(spliced(&server), 0, "{engine}");
        client.send("hello");
        assert_eq!(client.read_exact(5), b"hello");
        content.assert_body(&client.read_exact(8 << 20));
        let down = spliced(&server);
        assert!(down > 4 << 20, "{engine}: {down} bytes");
        client.send(content.bytes(0..8 << 20));
        assert_eq!(client.read_exact(5), b"short");
        assert!(spliced(&server) > down + (4 << 20), "{engine}: {} bytes", spliced(&server));
        client.half_close();
        client.expect_end();
        let log = server.wait_for_access_log(1, Deadline::default());
        assert!(log.starts_with("101|"), "{log}");
    });
}

/// With all pipes in use, bodies are copied.
#[test]
fn a_body_without_a_free_pipe_is_copied() {
    with_engines(|engine| {
        let content = Content::new(10, LARGE);
        let origin = Origin::start(move |_| Reply::ok().content(content));
        let server = serve(&origin, engine, "");
        let mut blocked: Vec<Client> = Vec::new();
        for _ in 0..PIPES_MAX {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", "/direct/", &[]));
            client.head();
            blocked.push(client);
        }
        // Each of them has filled the sockets, and its pipe has bytes.
        wait_until_blocked(&server, PIPES_MAX << 19, Deadline::after(Duration::from_secs(30)));
        let before = spliced(&server);
        let mut client = Client::connect(server.addr(0));
        content.assert_body(&client.get("/direct/").body);
        // Their sockets may still accept some bytes.
        assert!(spliced(&server) - before < LARGE / 2, "{engine}");
        drop(blocked);
        let freed = wait::until("the pipes are free", Deadline::default(), || {
            content.assert_body(&Client::connect(server.addr(0)).get("/direct/").body);
            (spliced(&server) > before).then_some(())
        });
        freed.unwrap_or_else(|error| panic!("{error}"));
    });
}
