//! Requests as browsers and tools make them: methods, targets, the lifetime of a connection, and its limits.
//!
//! Tested elsewhere: selection of the location (`serve/locations.rs`), conditions and ranges (`serve/ranges.rs`), request
//! bodies (`serve/bodies.rs`), refused requests (`serve/refused.rs`).

use crate::common;
use crate::common::{client, error_page, one_server, refused, serve, serve_with};
use testkit::client::request_bytes;
use testkit::response::BodyLength;
use testkit::{Client, Content, Deadline, Server};

const PAGE: &str = "<p>hello</p>\n";

fn site() -> Server {
    let conf = one_server(
        "types { text/html html; text/plain txt; } default_type application/x-rest; server_tokens off;",
        "root html; location = /empty { return 204; } location = /text { return 200 abc; }",
    );
    serve_with(&conf, |builder| {
        builder
            .text("html/index.html", PAGE)
            .text("html/sub/index.html", "sub")
            .text("html/a.txt", "0123456789")
            .text("html/A.TXT", "upper")
            .text("html/none", "")
            .text("html/odd.xyz", "?")
    })
}

#[test]
fn a_file_is_served_with_its_header_fields() {
    let server = site();
    let response = client(&server).get("/a.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "0123456789"));
    assert_eq!((response.head.minor_version, response.head.reason.as_str()), (1, "OK"));
    assert_eq!(response.length, BodyLength::Bytes(10));
    assert_eq!(response.field("server"), Some(common::server_name()));
    assert_eq!(response.field("content-type"), Some("text/plain"));
    assert_eq!(response.field("accept-ranges"), Some("bytes"));
    assert_eq!(response.field("connection"), Some("keep-alive"));
    let date = response.field("date").expect("every response is dated");
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    let modified = response.field("last-modified").expect("a file has a time");
    assert!(modified.len() == 29 && modified.ends_with(" GMT"), "{modified}");
    let etag = response.field("etag").expect("etag is on by default");
    assert!(etag.starts_with('"') && etag.ends_with("-a\""), "{etag}: time and size in hexadecimal");
    let names: Vec<&str> = response.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    let order = ["Server", "Date", "Content-Type", "Content-Length", "Last-Modified", "Connection", "ETag"];
    assert_eq!(names, [&order[..], &["Accept-Ranges"]].concat());
}

#[test]
fn the_content_type_depends_on_the_file_name() {
    let server = site();
    let mut client = client(&server);
    let mut kind = |target: &str| client.get(target).field("content-type").map(str::to_owned);
    assert_eq!(kind("/").as_deref(), Some("text/html"));
    assert_eq!(kind("/a.txt").as_deref(), Some("text/plain"));
    assert_eq!(kind("/A.TXT").as_deref(), Some("text/plain"));
    assert_eq!(kind("/odd.xyz").as_deref(), Some("application/x-rest"));
    assert_eq!(kind("/none").as_deref(), Some("application/x-rest"));
}

#[test]
fn a_directory_serves_its_index_and_redirects_to_a_slash() {
    let server = site();
    let mut client = client(&server);
    assert_eq!(client.get("/").text(), PAGE);
    assert_eq!(client.get("/?query=1").text(), PAGE);
    assert_eq!(client.get("/sub/").text(), "sub");
    let redirect = client.get("/sub?a=b");
    assert_eq!(redirect.status, 301);
    let port = server.addr(0).tcp().port();
    assert_eq!(redirect.field("location"), Some(format!("http://localhost:{port}/sub/?a=b").as_str()));
    assert_eq!(redirect.body, error_page("301 Moved Permanently").as_bytes());
}

#[test]
fn a_missing_file_is_a_404_page() {
    let server = site();
    let mut client = client(&server);
    let missing = client.get("/nothing");
    assert_eq!((missing.status, missing.text()), (404, error_page("404 Not Found")));
    assert_eq!(missing.field("content-type"), Some("text/html"));
    assert_eq!(missing.field("connection"), Some("keep-alive"));
    // A file's name with a slash is a nonexistent directory, in nginx too.
    assert_eq!(client.get("/a.txt/").status, 404);
    assert_eq!(client.get("/a.txt/x").status, 404);
    assert_eq!(client.get("/sub/sub/sub").status, 404);
    let forbidden = client.get("/sub/../sub/index.html/..//");
    assert_eq!(forbidden.status, 200);
    server.wait_for_log("(2: No such file or directory)", Deadline::default());
}

#[test]
fn a_directory_without_an_index_is_forbidden() {
    let server = serve_with(&one_server("", "root html;"), |builder| builder.text("html/d/x", ""));
    assert_eq!(client(&server).get("/d/").status, 403);
    let line = server.wait_for_log("is forbidden", Deadline::default());
    assert!(line.contains("directory index of \"") && line.contains("html/d/\" is forbidden"), "{line}");
}

#[test]
fn an_unreadable_file_is_forbidden() {
    use std::os::unix::fs::PermissionsExt;
    // Root can read everything, so the file is of a kind that cannot be opened for reading: a socket.
    let server = serve_with(&one_server("", "root html;"), |builder| builder.text("html/secret", "no"));
    let path = server.path("html/secret");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("the file is ours");
    let readable = std::fs::read(&path).is_ok();
    let status = client(&server).get("/secret").status;
    // If root started the server, its worker runs as another user, so it may not be able to read the file either.
    assert!(status == 403 || (readable && status == 200), "{status}");
    let socket = server.path("html/socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a fresh name");
    // With a umask of 077 access would be denied before the file type is checked.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o755)).expect("the socket is ours");
    let status = client(&server).get("/socket").status;
    assert!(matches!(status, 404 | 500), "a socket is no file: {status}");
}

#[test]
fn a_head_response_equals_get_without_the_body() {
    let server = site();
    let mut client = client(&server);
    let get = client.get("/a.txt");
    let head = client.request("HEAD", "/a.txt", &[]);
    assert_eq!((head.status, head.length), (200, BodyLength::None));
    assert_eq!(head.field("content-length"), Some("10"));
    assert_eq!(head.field("etag"), get.field("etag"));
    let missing = client.request("HEAD", "/nothing", &[]);
    assert_eq!(missing.status, 404);
    assert_eq!(missing.field("content-length"), Some(error_page("404 Not Found").len().to_string().as_str()));
    assert_eq!(client.request("HEAD", "/text", &[]).field("content-length"), Some("3"));
    assert_eq!(client.get("/text").text(), "abc");
}

#[test]
fn files_allow_only_get_and_head() {
    let server = site();
    let mut client = client(&server);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "MKCOL", "BREW"] {
        let response = client.request(method, "/a.txt", &[]);
        assert_eq!(response.status, 405, "{method}");
        assert_eq!(response.text(), error_page("405 Not Allowed"), "{method}");
    }
    assert_eq!(client.request("POST", "/text", &[("Content-Length", "0")]).status, 200);
    assert_eq!(client.request("OPTIONS", "/empty", &[]).status, 204);
    assert_eq!(refused(&server, "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
    // nginx 1.22 does not support this form of target.
    let connect = if common::against_nginx() { 400 } else { 405 };
    assert_eq!(refused(&server, "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"), connect);
}

#[test]
fn a_204_response_has_no_body_and_no_length() {
    let server = site();
    let mut client = client(&server);
    let response = client.get("/empty");
    assert_eq!((response.status, response.length), (204, BodyLength::None));
    assert_eq!(response.field("content-length"), None);
    assert_eq!(response.field("content-type"), None);
    assert_eq!(client.get("/none").body, b"");
}

#[test]
fn a_connection_is_reused_and_pipelined() {
    let server = site();
    let mut client = client(&server);
    let targets = ["/a.txt", "/nothing", "/text", "/", "/empty", "/none", "/sub/"];
    let requests: Vec<u8> = targets.iter().flat_map(|target| request_bytes("GET", target, &[])).collect();
    client.send(&requests);
    let statuses: Vec<u16> = targets.iter().map(|_| client.response().status).collect();
    assert_eq!(statuses, [200, 404, 200, 200, 204, 200, 200]);
    client.send_in_pieces(&requests, 3);
    for (target, status) in targets.iter().zip(statuses) {
        assert_eq!(client.response().status, status, "{target}");
    }
}

#[test]
fn a_header_section_may_arrive_byte_by_byte() {
    let server = site();
    let mut client = client(&server);
    client.send_in_pieces(request_bytes("GET", "/a.txt", &[("X-Long", &"v".repeat(500))]), 1);
    assert_eq!(client.response().text(), "0123456789");
    client.send("\r\n\r\n").send(request_bytes("GET", "/text", &[]));
    assert_eq!(client.response().text(), "abc", "empty lines between requests are skipped");
}

#[test]
fn http_10_connections_close_unless_keep_alive_is_requested() {
    let server = site();
    let mut plain = client(&server);
    plain.send("GET /a.txt HTTP/1.0\r\n\r\n");
    let response = plain.response();
    assert_eq!((response.status, response.field("connection")), (200, Some("close")));
    assert_eq!(response.text(), "0123456789");
    plain.expect_end();

    let mut kept = client(&server);
    for _ in 0..2 {
        kept.send("GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = kept.response();
        assert_eq!((response.status, response.field("connection")), (200, Some("keep-alive")));
    }
}

#[test]
fn the_client_may_request_close() {
    let server = site();
    for value in ["close", "Close", "CLOSE"] {
        let mut client = client(&server);
        let response = client.request("GET", "/a.txt", &[("Connection", value)]);
        assert_eq!((response.status, response.field("connection")), (200, Some("close")), "{value}");
        client.expect_end();
    }
    let mut client = client(&server);
    client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n").half_close();
    assert_eq!(client.response().text(), "0123456789", "a half-closed client gets its response");
    client.expect_end();
}

#[test]
fn the_host_of_an_absolute_target_is_used() {
    let conf = "events {} http { server { listen 127.0.0.1:0; server_name one; return 200 $host-$http_host-$uri; } }";
    let server = serve(conf);
    let mut client = client(&server);
    client.send("GET http://One/a%20b/?x HTTP/1.1\r\nHost: two:1\r\n\r\n");
    assert_eq!(client.response().text(), "one-two:1-/a b/");
    client.send("GET http://one HTTP/1.1\r\nHost: one\r\n\r\n");
    assert_eq!(client.response().text(), "one-one-/");
    client.send("GET http://one:81?q=1 HTTP/1.1\r\nHost: one\r\n\r\n");
    assert_eq!(client.response().text(), "one-one-/");
}

#[test]
fn a_connection_closes_after_keepalive_requests() {
    let server = serve(&one_server("", "keepalive_requests 3; location / { return 200; }"));
    let mut client = client(&server);
    let kept = |client: &mut Client| client.get("/").field("connection").map(str::to_owned);
    assert_eq!(kept(&mut client).as_deref(), Some("keep-alive"));
    assert_eq!(kept(&mut client).as_deref(), Some("keep-alive"));
    assert_eq!(kept(&mut client).as_deref(), Some("close"));
    client.expect_end();
}

#[test]
fn keep_alive_can_be_turned_off_and_announced() {
    let conf = one_server(
        "",
        "location / { keepalive_timeout 0; return 200; } \
                               location /told { keepalive_timeout 10s 7s; return 200; }",
    );
    let server = serve(&conf);
    let mut client = client(&server);
    assert_eq!(client.get("/told").field("keep-alive"), Some("timeout=7"));
    let response = client.get("/");
    assert_eq!((response.field("connection"), response.field("keep-alive")), (Some("close"), None));
    client.expect_end();
}

#[test]
fn an_idle_connection_is_closed() {
    let server = serve(&one_server("", "keepalive_timeout 50ms; location / { return 200; }"));
    let mut client = client(&server);
    assert_eq!(client.get("/").field("connection"), Some("keep-alive"));
    client.expect_end();
}

#[test]
fn an_incomplete_header_section_times_out() {
    let server = serve(&one_server("", "client_header_timeout 50ms; return 200;"));
    let mut silent = client(&server);
    silent.expect_end();
    // nginx closes the connection without a response, and logs 408. A client that sends its bytes later is not logged.
    let is_logged = || {
        let mut slow = client(&server);
        let _ = slow.try_send(b"GET / HTTP/1.1\r\nHost:");
        slow.expect_end();
        Some(server.access_log()).filter(|log| log.ends_with('\n'))
    };
    let log = testkit::wait::until("a line", Deadline::default(), is_logged).expect("a client in time");
    assert!(log.contains("\" 408 0 "), "{log}");
}

#[test]
fn long_header_sections_are_refused() {
    let http = "log_format status $status; large_client_header_buffers 2 1k; client_header_buffer_size 256;";
    let conf = one_server(http, "access_log logs/access.log status; return 200 ok;");
    let server = serve(&conf);
    let get = |target: &str, lines: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let mut client = client(&server);
    client.send(get(&format!("/{}", "x".repeat(900)), ""));
    assert_eq!(client.response().text(), "ok");
    client.send(get("/", &format!("A: {}\r\n", "x".repeat(900))));
    assert_eq!(client.response().text(), "ok");
    assert_eq!(refused(&server, get(&format!("/{}", "x".repeat(1100)), "")), 414);
    // nginx has the internal status 494 and long responded with 400; RFC 6585 defines 431 for it.
    let too_large = if common::against_nginx() { 400 } else { 431 };
    assert_eq!(refused(&server, get("/", &format!("A: {}\r\n", "x".repeat(1100)))), too_large);
    let lines = format!("A: {}\r\n", "x".repeat(700)).repeat(4);
    assert_eq!(refused(&server, get("/", &lines)), too_large);
    // The log has the status that the client received.
    let log = server.wait_for_access_log(5, Deadline::default());
    let logged: Vec<String> = log.lines().map(str::to_owned).collect();
    assert_eq!(logged, ["200", "200", "414", &too_large.to_string(), &too_large.to_string()]);
}

#[test]
fn limit_rate_spreads_a_body_over_time() {
    let content = Content::new(21, 150_000);
    let conf = one_server("", "location / { root html; limit_rate 100k; limit_rate_after 10000; }");
    let server = serve_with(&conf, |builder| builder.file("html/a.bin", content));
    let start = std::time::Instant::now();
    let response = client(&server).get("/a.bin");
    content.assert_body(&response.body);
    // The first second's share and the initial allowance are sent without delay; the remaining 37 600 bytes take at
    // least 0.36 s. The test has no upper bound: a busy machine would exceed it.
    assert!(start.elapsed() >= std::time::Duration::from_millis(300), "{:?}", start.elapsed());
}

#[test]
fn two_hundred_concurrent_connections_are_served() {
    let server = site();
    let mut clients: Vec<Client> = (0..200).map(|_| client(&server)).collect();
    for _ in 0..2 {
        for client in &mut clients {
            client.send(request_bytes("GET", "/a.txt", &[]));
        }
        for client in &mut clients {
            assert_eq!(client.response().text(), "0123456789");
        }
    }
}

#[test]
fn ipv4_ipv6_and_unix_sockets_listen() {
    if !common::ours_only("testkit picks IPv4 ports for nginx") {
        return;
    }
    let dir = testkit::TempDir::new("unix");
    let socket = dir.path().join("socket");
    let conf = format!(
        "events {{}} http {{ server {{ listen 127.0.0.1:0; return 200 $server_addr; }} \
         server {{ listen [::1]:0; return 200 $server_addr; }} \
         server {{ listen unix:{}; return 200 $server_addr; }} }}",
        socket.display()
    );
    let server = serve(&conf);
    let answer = |index: usize| Client::connect(server.addr(index)).get("/").text();
    assert_eq!(answer(0), "127.0.0.1");
    assert_eq!(answer(1), "::1");
    assert!(answer(2).starts_with("unix:"), "{}", answer(2));
}

#[test]
fn clients_that_shut_down_sending_get_their_response() {
    if !common::ours_only("testkit picks a port for nginx, and no unix socket") {
        return;
    }
    for events in ["", "use epoll;"] {
        let dir = testkit::TempDir::new("unix");
        let conf = format!(
            "worker_processes 1; events {{ {events} }} http {{ keepalive_timeout 600s; \
             server {{ listen 127.0.0.1:0; listen unix:{}; return 200 ok; }} }}",
            dir.path().join("socket").display()
        );
        let server = serve(&conf);
        for listener in [0, 1] {
            // Many concurrently, so that the server sees requests and ends of connections in the same turn.
            let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(server.addr(listener))).collect();
            for client in &mut clients {
                client.send(request_bytes("GET", "/", &[])).half_close();
            }
            for client in &mut clients {
                assert_eq!(client.response().text(), "ok");
                client.expect_end();
            }
        }
    }
}

#[test]
fn a_graceful_stop_logs_no_error() {
    let server = site();
    let mut client = client(&server);
    assert_eq!(client.get("/a.txt").status, 200);
    let log = server.path("logs/error.log");
    drop(client);
    let kept = std::fs::read_to_string(&log).expect("the harness asks for a log");
    assert!(!kept.contains("[emerg]") && !kept.contains("[alert]") && !kept.contains("[crit]"), "{kept}");
    assert!(server.quit_and_wait().success());
}

/// If the kernel has deferred the accept until the request arrived, and for the last response of a connection, the server makes
/// the system calls without the engine. Clients see no difference with either network engine.
#[test]
fn a_deferred_connection_gets_the_same_responses() {
    for engine in ["", "use epoll;"] {
        let conf = format!(
            "worker_processes 1; events {{ {engine} }} http {{ server {{ listen 127.0.0.1:0 deferred;\n\
             location = /text {{ return 200 abc; }} location /much/ {{ alias much/; }} }} }}"
        );
        let server = serve_with(&conf, |builder| {
            builder.file("much/a", Content::new(7, 300_000)).file("much/b", Content::new(8, 700))
        });
        let close = [("Connection", "close")];
        for _ in 0..20 {
            let mut client = client(&server);
            let response = client.request("GET", "/text", &close);
            assert_eq!((response.status, response.text().as_str()), (200, "abc"));
            client.expect_end();
        }
        let response = client(&server).request("GET", "/much/a", &close);
        assert_eq!(response.body, Content::new(7, 300_000).bytes(0..300_000));
        // Concurrent requests share one lookup of the file, but no request uses an earlier lookup.
        for size in [700, 800, 900] {
            testkit::write(server.path("much/b"), Content::new(9, size).bytes(0..size))
                .expect("a file of the test");
            let mut clients: Vec<_> = (0..20).map(|_| client(&server)).collect();
            for client in &mut clients {
                client.send(request_bytes("GET", "/much/b", &close));
            }
            for client in &mut clients {
                assert_eq!(client.response().body, Content::new(9, size).bytes(0..size));
                client.expect_end();
            }
        }
        let mut client = client(&server);
        client.send_in_pieces(request_bytes("GET", "/text", &[]), 5);
        assert_eq!(client.response().text(), "abc", "the first bytes were an incomplete request");
        assert_eq!(client.get("/text").text(), "abc");
        // Pipelined requests: a request after the last one is not read, and must not prevent the last response.
        let two = [request_bytes("GET", "/text", &close), request_bytes("GET", "/text", &close)].concat();
        let response = client.send(two).response();
        assert_eq!((response.field("connection"), response.text().as_str()), (Some("close"), "abc"));
    }
}
