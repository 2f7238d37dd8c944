//! Settings of connections, processes and engines, each verified by the effect that a client or the kernel observes.

use crate::common;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{client, one_server, ours_only, refused, serve, serve_with};
use testkit::client::request_bytes;
use testkit::process::{Pid, threads};
use testkit::wait::{Deadline, until};
use testkit::{Client, Content, Server};

/// More than the buffers of both sockets hold.
const LONG_BYTES: u64 = 24 << 20;

/// Requests a long file, reads nothing until the server has closed the connection, and then the bytes that the kernel
/// still has.
fn stall(server: &Server, target: &str) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(server.addr(0).tcp())?;
    std::io::Write::write_all(&mut stream, &request_bytes("GET", target, &[]))?;
    let text = "client timed out (110: Connection timed out) while sending response to client";
    server.wait_for_log(text, Deadline::default());
    server.wait_for_access_log(1, Deadline::default());
    let mut rest = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(180)))?;
    stream.read_to_end(&mut rest)
}

#[test]
fn a_client_that_does_not_read_times_out() {
    for sendfile in ["off", "on"] {
        let site = |reset: &str| {
            let text = format!("sendfile {sendfile}; send_timeout 100ms; reset_timedout_connection {reset};");
            let conf = one_server("error_log logs/error.log info;", &format!("{text} root html;"));
            serve_with(&conf, |builder| builder.file("html/long.bin", Content::new(3, LONG_BYTES)))
        };
        let read = stall(&site("off"), "/long.bin").expect("an orderly end");
        assert!(read > 0 && (read as u64) < LONG_BYTES, "{read}");
        let error = stall(&site("on"), "/long.bin").expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn reset_timedout_connection_resets_after_timeouts_of_requests_and_444() {
    let site = |reset: &str| {
        let text = format!(
            "reset_timedout_connection {reset}; client_header_timeout 200ms; client_body_timeout 200ms;
             location /444 {{ return 444; }} location /408 {{ return 408; }} location /body {{ proxy_pass http://127.0.0.1:9; }}"
        );
        serve(&one_server("", &text))
    };
    let (off, on) = (site("off"), site("on"));
    for (request, is_reset) in [
        ("GET /444 HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("GET /408 HTTP/1.1\r\nHost: a\r\n\r\n", false),
        ("GET / HT", true),
        ("GET / HTTP/1.1\r\nHost: a\r\n", true),
        ("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", true),
    ] {
        let end = |server: &Server| {
            let mut stream = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
            std::io::Write::write_all(&mut stream, request.as_bytes()).expect("sent");
            stream.set_read_timeout(Some(Duration::from_secs(180))).expect("a timeout");
            stream.read_to_end(&mut Vec::new())
        };
        assert_eq!(end(&off).expect("an orderly end"), 0, "{request:?}");
        let error = end(&on).err().map(|error| error.kind());
        assert_eq!(error, is_reset.then_some(std::io::ErrorKind::ConnectionReset), "{request:?}");
    }
}

#[test]
fn keepalive_time_limits_the_age_of_connections() {
    let server = serve(&one_server(
        "",
        "location / { keepalive_time 50ms; return 200; } location /long { return 200; }
         location /longer { keepalive_time 2h; return 200; }",
    ));
    let mut client = client(&server);
    assert_eq!(client.get("/longer").field("connection"), Some("keep-alive"));
    client.idle(Duration::from_millis(60));
    assert_eq!(client.get("/long").field("connection"), Some("keep-alive"));
    assert_eq!(client.get("/").field("connection"), Some("close"));
    client.expect_end();
}

#[test]
fn keepalive_disable_closes_connections_of_old_browsers() {
    let msie = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
    let safari =
        "Mozilla/5.0 (Macintosh; U; Intel Mac OS X 10_5) AppleWebKit/525.13 Version/3.1 Safari/525.13";
    let conf = one_server(
        "",
        "location / { return 200; } location /none { keepalive_disable none; return 200; }
         location /safari { keepalive_disable safari; return 200; }",
    );
    let server = serve(&conf);
    for (method, target, agent, expected) in [
        ("POST", "/", msie, "close"),
        ("GET", "/", msie, "keep-alive"),
        ("POST", "/none", msie, "keep-alive"),
        ("POST", "/safari", msie, "keep-alive"),
        ("GET", "/", safari, "keep-alive"),
        ("GET", "/safari", safari, "close"),
    ] {
        let fields = [("User-Agent", agent), ("Content-Length", "0")];
        let response = client(&server).request(method, target, &fields);
        assert_eq!(response.field("connection"), Some(expected), "{method} {target} {agent}");
    }
}

#[test]
fn max_headers_limits_header_lines() {
    if !ours_only("max_headers is younger than Debian's nginx") {
        return;
    }
    let server = serve(&one_server("max_headers 3; error_log logs/error.log info;", "return 200 ok;"));
    let head = |lines: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(lines));
    let mut client = client(&server);
    client.send(head(2));
    assert_eq!(client.response().text(), "ok");
    assert_eq!(refused(&server, head(3)), 431);
    server.wait_for_log("client sent too many header lines", Deadline::default());
}

#[test]
fn a_body_is_delimited_by_close_without_chunked_encoding() {
    let conf =
        one_server("", "root html; sub_filter one two; sub_filter_types *; chunked_transfer_encoding off;");
    let server = serve_with(&conf, |builder| builder.text("html/a.txt", "one and one"));
    let mut client = client(&server);
    client.send(request_bytes("GET", "/a.txt", &[]));
    let head = client.head();
    assert_eq!((head.field("transfer-encoding"), head.field("content-length")), (None, None));
    assert_eq!(head.field("connection"), Some("close"));
    assert_eq!(client.read_to_end(), b"two and one");
}

#[test]
fn error_pages_are_padded_for_old_browsers() {
    let conf = one_server("", "location / { return 404; } location /off { msie_padding off; return 404; }");
    let server = serve(&conf);
    let length = |target: &str, agent: &str| {
        client(&server).request("GET", target, &[("User-Agent", agent)]).body.len()
    };
    let (plain, old) = ("curl/8", "Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 5.1)");
    assert!(length("/", plain) < 200 && length("/", old) > 400);
    assert_eq!(length("/off", plain), length("/off", old));
}

/// Returns the threads of a process whose names begin with `name`, once there are `count`: a new thread has its
/// creator's name until it sets its own.
fn named(pid: Pid, name: &str, count: usize) -> Vec<Pid> {
    until(name, Deadline::default(), || {
        let all = threads(pid).into_iter().filter(|one| one.name.starts_with(name));
        Some(all.map(|one| one.tid).collect()).filter(|all: &Vec<Pid>| all.len() == count)
    })
    .expect("so many threads with this name")
}

#[test]
fn thread_pools_have_names() {
    if !ours_only("$body_engine is of this project") {
        return;
    }
    let conf =
        "thread_pool few threads=2 max_queue=16; events {} http { server { listen 127.0.0.1:0; root html;
        add_header X-Engine $body_engine; directio 4k; aio threads=few;
        location /sent/ { alias html/; directio off; sendfile on; } } }";
    let content = Content::new(5, 300_000);
    let server = serve_with(conf, |builder| builder.file("html/a.bin", content));
    for (target, engine) in [("/a.bin", "threads direct"), ("/sent/a.bin", "sendfile threads")] {
        let response = client(&server).get(target);
        content.assert_body(&response.body);
        assert_eq!(response.field("x-engine"), Some(engine), "{target}");
    }
    named(server.worker(), "few", 2);
    let unknown = conf.replace("thread_pool few", "thread_pool other");
    let (status, output) = Server::builder(common::BINARY).conf(&unknown).run_to_end();
    assert!(!status.success());
    assert!(output.contains("[emerg] unknown thread pool \"few\" in "), "{output}");
}

#[test]
fn threads_have_the_configured_affinity_and_priority() {
    if !ours_only("the threads of a worker are of this project") {
        return;
    }
    let conf = "worker_processes 2; worker_cpu_affinity 01 01; worker_priority 5; events {}
        http { server { listen 127.0.0.1:0; return 200; } }";
    let server = serve(conf);
    assert_eq!(client(&server).get("/").status, 200);
    let worker = server.worker();
    for thread in named(worker, "worker ", 2) {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{worker}/task/{thread}/{name}")).expect("it runs")
        };
        assert!(read("status").contains("\nCpus_allowed_list:\t0\n"), "{}", read("status"));
        // The name is in parentheses; the nice value is the 19th field (proc_pid_stat(5)).
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
        assert_eq!(fields[16], "5", "{stat}");
    }
}

#[test]
fn engine_directives_are_accepted_and_files_are_served() {
    if !ours_only("the directives are of this project") {
        return;
    }
    let content = Content::new(6, 700_001);
    for events in [
        "ring_entries 64; ring_recv_buffers 8 1k; ring_io_workers 1; device_share 1; buffer_pool 4m; zero_copy off;",
        "ring_entries 4096; ring_recv_buffers 2048 8k; ring_io_workers 64; zero_copy 1k; try_cached off;",
        "use epoll; worker_aio_requests 1; device_share 1; buffer_pool 4m; try_cached off; multi_accept on;",
    ] {
        let conf = format!(
            "events {{ {events} }} http {{ server {{ listen 127.0.0.1:0; root html;
             location /direct/ {{ alias html/; directio 1; aio libaio; }}
             location /sent/ {{ alias html/; sendfile on; sendfile_max_chunk 4k; read_ahead 1; tcp_nopush on; }}
             location /shared/ {{ alias html/; aio_sendfile 64k; }} }} }}"
        );
        let server = serve_with(&conf, |builder| builder.file("html/a.bin", content));
        let mut clients: Vec<Client> = (0..8).map(|_| client(&server)).collect();
        for target in ["/a.bin", "/direct/a.bin", "/sent/a.bin", "/shared/a.bin"] {
            for client in &mut clients {
                client.send(request_bytes("GET", target, &[]));
            }
            for client in &mut clients {
                content.assert_body(&client.response().body);
            }
        }
    }
}

#[test]
fn clients_that_do_not_read_leave_buffers_for_other_clients() {
    for net in ["epoll", "io_uring"] {
        let main =
            format!("worker_processes 1; events {{ use {net}; buffer_pool 16m; ring_recv_buffers 64 4k; }}");
        let conf = format!("{main} http {{ server {{ listen 127.0.0.1:0; root html; }} }}");
        let content = Content::new(7, 8 << 20);
        let started = Server::builder(common::BINARY).conf(&conf).file("html/a.bin", content).try_start();
        let server = match started {
            Ok(server) => server,
            Err(reason) if net == "io_uring" && reason.contains("io_uring") => {
                return testkit::skip(format_args!("io_uring is not available: {reason}"));
            }
            Err(reason) => panic!("{reason}"),
        };
        let mut idle: Vec<Client> =
            (0..60).map(|_| Client::connect_narrow(server.addr(0).tcp(), 4096)).collect();
        for client in &mut idle {
            client.send(request_bytes("GET", "/a.bin", &[]));
        }
        content.assert_body(&client(&server).get("/a.bin").body);
        // No waiting connection was closed either.
        for client in idle.iter_mut().take(3) {
            content.assert_body(&client.response().body);
        }
        assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
    }
}

#[test]
fn listeners_accept_every_option() {
    if !ours_only("testkit picks IPv4 ports for nginx") {
        return;
    }
    let conf = "events {} http { server { return 200 $server_addr;
        listen 127.0.0.1:0 default_server backlog=7 rcvbuf=64k sndbuf=64k deferred so_keepalive=30m::10 fastopen=3;
        listen [::1]:0 ipv6only=on so_keepalive=on reuseport; } }";
    let server = serve(conf);
    assert_eq!(client(&server).get("/").text(), "127.0.0.1");
    assert_eq!(Client::connect(server.addr(1)).get("/").text(), "::1");
    // ss(8) shows the backlog as a listener's queue; no file in /proc contains it.
    assert_eq!(server.logged_addresses().len(), 2);
}

#[test]
fn keepalive_timeout_can_be_set_per_location() {
    let server = serve(&one_server(
        "",
        "keepalive_timeout 1h; location /short { keepalive_timeout 50ms; return 200; } location /long { return 200; }",
    ));
    let mut long = client(&server);
    // Both requests are sent in one write: a slow client would otherwise send the second one too late.
    long.send([request_bytes("GET", "/short", &[]), request_bytes("GET", "/long", &[])].concat());
    assert_eq!((long.response().status, long.response().status), (200, 200));
    let mut short = client(&server);
    assert_eq!(short.get("/short").status, 200);
    // The server closes it: the client's deadline would pass long before the server-wide timeout of an hour.
    short.expect_end();
    assert_eq!(long.get("/long").status, 200);
}

#[test]
fn limit_rate_applies_to_generated_responses() {
    let text = "x".repeat(3000);
    let conf = format!(
        "location /text {{ limit_rate 2k; return 200 {text}; }}
         location /filtered {{ limit_rate 2k; sub_filter_types *; sub_filter y z; proxy_buffering off; return 200 {text}; }}"
    );
    let server = serve(&one_server("", &conf));
    for target in ["/text", "/filtered"] {
        let start = std::time::Instant::now();
        assert_eq!(client(&server).get(target).body.len(), text.len());
        // One second's share is sent without delay. The rest is due a second after the start. A busy machine may take
        // longer.
        assert!(start.elapsed() >= Duration::from_millis(900), "{target}: {:?}", start.elapsed());
    }
}

#[test]
fn an_invalid_rate_is_logged_and_ignored() {
    let http = "error_log logs/error.log error;";
    let server = serve(&one_server(http, "location / { limit_rate $arg_rate; return 200 x; }"));
    assert_eq!(client(&server).get("/?rate=ten").text(), "x");
    server.wait_for_log("invalid size \"ten\"", Deadline::default());
}

#[test]
fn options_asterisk_is_handled_by_the_server_itself() {
    let server = serve(&one_server("", "access_log logs/access.log; return 403;"));
    let mut client = client(&server);
    for fields in ["", "Content-Length: 2\r\n"] {
        let body = if fields.is_empty() { "" } else { "ab" };
        client.send(format!("OPTIONS * HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"));
        let response = client.response();
        assert_eq!((response.status, response.field("connection")), (204, Some("keep-alive")));
    }
    assert_eq!(client.get("/").status, 403);
    assert_eq!(refused(&server, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    assert_eq!(refused(&server, "OPTIONS *x HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    let log = server.wait_for_access_log(5, Deadline::default());
    assert!(log.starts_with("127.0.0.1 - - [") && log.contains("] \"OPTIONS * HTTP/1.1\" 204 0 "), "{log}");
}

#[test]
fn http_strict_refuses_malformed_chunk_extensions() {
    let conf = |strict: &str| one_server(&format!("http_strict {strict};"), "return 200;");
    let (strict, tolerant) = (serve(&conf("on")), serve(&conf("off")));
    let status = |server: &Server, line: &str| {
        refused(
            server,
            format!(
                "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{line}\r\nx\r\n0\r\n\r\n"
            ),
        )
    };
    for line in ["1;", "1;@", "1 ", "1 ;a", "1;a="] {
        assert_eq!((status(&strict, line), status(&tolerant, line)), (400, 200), "{line:?}");
    }
    for line in ["1", "1;a", "1;a=b;c=\"d\""] {
        assert_eq!((status(&strict, line), status(&tolerant, line)), (200, 200), "{line:?}");
    }
}

#[test]
fn a_variable_prefix_without_a_name_is_empty() {
    let server = serve(&one_server(
        "",
        "return 200 \"[$arg_][${arg_}][$http_][$cookie_][$sent_http_][$upstream_http_]\";",
    ));
    assert_eq!(client(&server).get("/?=1&a=2").text(), "[][][][][][]");
}

#[test]
fn a_relative_user_file_is_found_beside_the_configuration() {
    if !ours_only("testkit's nginx has another configuration directory") {
        return;
    }
    let conf = one_server(
        "map $arg_file $file { default $arg_file; }",
        "auth_basic on; auth_basic_user_file $file; root html;",
    );
    let server = serve_with(&conf, |builder| {
        // Only a request determines the file.
        let builder = builder.sandbox_path("conf");
        builder.text("conf/users", "a:{PLAIN}b\n").text("html/in", "inside")
    });
    let ask = |file: &str| {
        let authorization = testkit::client::basic("a:b");
        client(&server)
            .request("GET", &format!("/in?file={file}"), &[("Authorization", &authorization)])
            .status
    };
    assert_eq!(ask("users"), 200);
    assert_eq!(ask(&server.path("conf/users").display().to_string()), 200);
}

#[test]
fn random_index_also_picks_symlinks_to_files() {
    let conf = one_server("", "location / { root html; random_index on; }");
    let server = serve_with(&conf, |builder| {
        let builder = builder.text("html/other/file", "by a link").text("html/lonely/.hidden", "never");
        let html = builder.dir().join("html");
        std::os::unix::fs::symlink("../other/file", html.join("lonely/link")).expect("a new link");
        std::os::unix::fs::symlink("../other", html.join("lonely/folder")).expect("a new link");
        std::os::unix::fs::symlink("nowhere", html.join("lonely/dangling")).expect("a new link");
        builder
    });
    for _ in 0..10 {
        assert_eq!(client(&server).get("/lonely/").text(), "by a link");
    }
}

/// With the old size the response would be cut off, or the file.
#[test]
fn a_file_edited_in_place_is_served_completely_from_the_open_file_cache() {
    use std::io::Write;
    let server = Server::start(
        common::BINARY,
        "worker_processes 1; events { } http { server { listen 127.0.0.1:0; root html;
         open_file_cache max=100 inactive=1h; open_file_cache_valid 1h; location /read/ { alias html/; sendfile off; } } }",
    );
    let path = server.path("html/page.txt");
    testkit::write(&path, "first").expect("a file");
    let mut client = Client::connect(server.addr(0));
    for text in ["first", "a much longer second text", "3rd", "", &"x".repeat(100_000), "end"] {
        // The same inode: no new file takes the name.
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(&path).expect("the file");
        file.write_all(text.as_bytes()).expect("written");
        drop(file);
        for target in ["/page.txt", "/read/page.txt"] {
            let response = client.get(target);
            assert_eq!((response.status, response.text().as_str()), (200, text), "{target}");
        }
    }
}
