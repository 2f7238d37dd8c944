//! Lines about requests in the access log and the error log.
//!
//! Reopening logs is tested with the signals.

use crate::common;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::common::{client, one_server, serve, serve_with};
use testkit::{Client, Deadline};

const LINES: &str = r#"log_format own '$remote_addr|$request|$status|$body_bytes_sent|$bytes_sent|$http_referer|$arg_x';
    log_format plain escape=none '$arg_x$http_x_y';
    log_format json escape=json '{"a":"$http_x_y","n":$status}';"#;

#[test]
fn the_default_is_combined() {
    let server = serve_with(&one_server("", "root html;"), |builder| builder.text("html/a.txt", "12345"));
    let mut client = client(&server);
    client.request("GET", "/a.txt?q", &[("Referer", "http://from/"), ("User-Agent", "agent \"x\"")]);
    client.request("HEAD", "/missing", &[]);
    let log = server.wait_for_access_log(2, Deadline::default());
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].starts_with("127.0.0.1 - - ["), "{log}");
    assert!(
        lines[0].ends_with(r#"] "GET /a.txt?q HTTP/1.1" 200 5 "http://from/" "agent \x22x\x22""#),
        "{log}"
    );
    let time = lines[0].split(['[', ']']).nth(1).expect("a time in brackets");
    assert!(time.len() == 26 && time.as_bytes()[2] == b'/' && time.as_bytes()[20] == b' ', "{time}");
    assert!(lines[1].ends_with(r#""HEAD /missing HTTP/1.1" 404 0 "-" "-""#), "{log}");
}

#[test]
fn a_custom_format_is_used() {
    let server = serve_with(&one_server(LINES, "root html; access_log logs/access.log own;"), |builder| {
        builder.text("html/a.txt", "12345")
    });
    let mut client = client(&server);
    let response = client.get("/a.txt?x=1");
    client.request("GET", "/a.txt", &[("Range", "bytes=1-2")]);
    client.send("GET http://other/a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    client.response();
    let log = server.wait_for_access_log(3, Deadline::default());
    let lines: Vec<&str> = log.lines().collect();
    let head: usize = "HTTP/1.1 200 OK\r\n\r\n".len()
        + response.head.fields.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
    assert_eq!(lines[0], format!("127.0.0.1|GET /a.txt?x=1 HTTP/1.1|200|5|{}|-|1", head + 5));
    assert!(lines[1].starts_with("127.0.0.1|GET /a.txt HTTP/1.1|206|2|"), "{log}");
    assert!(lines[2].starts_with("127.0.0.1|GET http://other/a.txt HTTP/1.1|200|5|"), "{log}");
}

#[test]
fn bytes_are_escaped_as_the_format_specifies() {
    let server = serve(&one_server(
        LINES,
        "access_log logs/access.log own; access_log logs/plain.log plain; access_log logs/json.log json; return 200;",
    ));
    let mut client = client(&server);
    client.send(b"GET /?x=\xe4%22\"\\ HTTP/1.1\r\nHost: a\r\nX-Y: q\"\\\t\xc3\xa4\r\n\r\n");
    assert_eq!(client.response().status, 200);
    let log = server.wait_for_access_log(1, Deadline::default());
    assert!(log.trim_end().ends_with(r"|-|\xE4%22\x22\x5C"), "{log}");
    // Each file is written separately, so the first file with its line proves nothing about the others.
    let file = |name: &str| {
        let written = || std::fs::read(server.path(name)).ok().filter(|bytes| bytes.ends_with(b"\n"));
        testkit::wait::until(name, Deadline::default(), written).expect("each log gets its line")
    };
    assert_eq!(file("logs/plain.log"), b"\xe4%22\"\\q\"\\\t\xc3\xa4\n");
    assert_eq!(file("logs/json.log"), "{\"a\":\"q\\\"\\\\\\tä\",\"n\":200}\n".as_bytes());
}

#[test]
fn logs_can_be_off_conditional_and_inherited() {
    let server = serve(&one_server(
        LINES,
        "set $wanted 1; \
         location / { access_log logs/access.log own if=$wanted; return 200; } \
         location /no { set $wanted 0; access_log logs/access.log own if=$wanted; return 200; } \
         location /off { access_log off; return 200; } \
         location /two { access_log logs/access.log own; access_log logs/two.log plain; return 200; }",
    ));
    let mut client = client(&server);
    for target in ["/no", "/off", "/two?x=2", "/last"] {
        assert_eq!(client.get(target).status, 200, "{target}");
    }
    let log = server.wait_for_access_log(2, Deadline::default());
    let uris: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(uris, ["/two?x=2", "/last"]);
    // Each file is written separately.
    let text = || std::fs::read_to_string(server.path("logs/two.log")).expect("opened at start");
    let written = || Some(text()).filter(|text| !text.is_empty());
    let text = testkit::wait::until("a line", Deadline::default(), written).expect("it is written");
    assert_eq!(text, "2\n");
}

#[test]
fn a_buffered_log_is_flushed_by_its_timer_and_at_exit() {
    let server =
        serve(&one_server(LINES, "access_log logs/access.log own buffer=32k flush=50ms; return 200;"));
    assert_eq!(client(&server).get("/").status, 200);
    assert_eq!(server.wait_for_access_log(1, Deadline::default()).lines().count(), 1);

    let server = serve(&one_server(LINES, "access_log logs/access.log own buffer=32k; return 200;"));
    for _ in 0..3 {
        assert_eq!(client(&server).get("/").status, 200);
    }
    let path = server.path("logs/access.log");
    let copy = testkit::TempDir::new("log");
    let kept = copy.path().join("kept");
    std::fs::hard_link(&path, &kept).expect("the same file system");
    assert!(server.quit_and_wait().success());
    assert_eq!(std::fs::read_to_string(&kept).expect("linked").lines().count(), 3, "written at the end");
}

#[test]
fn errors_are_logged_with_the_request() {
    let server = serve(&one_server("", "server_name here.test; root html;"));
    let mut client = Client::connect(server.addr(0));
    client.request("GET", "/missing?q", &[("Host", "asked.test"), ("Referer", "http://from/")]);
    let line = server.wait_for_log("failed (2: No such file or directory)", Deadline::default());
    let path = server.path("html/missing");
    let tail = "client: 127.0.0.1, server: here.test, request: \"GET /missing?q HTTP/1.1\", host: \"asked.test\", \
                referrer: \"http://from/\"";
    assert!(line.contains(" [error] "), "{line}");
    assert!(line.contains(&format!("open() \"{}\" failed", path.display())), "{line}");
    assert!(line.ends_with(tail), "{line}");
}

#[test]
fn log_not_found_off_suppresses_missing_files() {
    let server = serve(&one_server("", "root html; log_not_found off; location /told { log_not_found on; }"));
    let mut client = client(&server);
    assert_eq!(client.get("/quiet").status, 404);
    assert_eq!(client.get("/told").status, 404);
    let log = server.wait_for_log("/told\" failed", Deadline::default());
    assert!(log.contains("No such file"), "{log}");
    // Lines are logged in order, so the suppressed line would have been written by now.
    assert!(!server.error_log().contains("/quiet\""), "{}", server.error_log());
}

#[test]
fn control_characters_in_a_path_cannot_break_an_error_log_line() {
    let conf = one_server("", "location / { root html; }");
    let server = serve(&conf);
    assert_eq!(client(&server).get("/a%0A2026/01/01%20[emerg]%1B[2J%7F").status, 404);
    let line = server.wait_for_log("open() ", Deadline::default());
    assert!(line.contains("/html/a\\x0A2026/01/01 [emerg]\\x1B[2J\\x7F\" failed (2: No such file"), "{line}");
    assert!(!server.error_log().bytes().any(|byte| byte.is_ascii_control() && byte != b'\n'));
}

/// Number of servers that are tried. A direct write of 10 ms, which another process can cause on a busy processor, makes the
/// engine write the next lines.
const PROMPT_TRIES: usize = 5;

/// nginx writes a line before it reads the next request on the connection.
#[test]
fn a_response_is_logged_before_the_next_request_is_read() {
    if std::env::var_os(testkit::server::EVENTS_VARIABLE).is_some() {
        return testkit::skip("lines are written through the engine where faults are injected");
    }
    for net in testkit::engines::NETS {
        let late: Vec<String> = (0..PROMPT_TRIES).map_while(|_| first_late_line(net)).collect();
        assert!(late.len() < PROMPT_TRIES, "{net}: {late:?}");
    }
}

/// Returns the first line that is not in its file before the next response, if any.
fn first_late_line(net: &str) -> Option<String> {
    let conf = one_server(
        "log_format own $request_uri; access_log logs/access.log own;",
        "root html; location /named { open_log_file_cache max=9 valid=1h; access_log logs/$arg_v.log own; return 204; }",
    )
    .replace("events {}", &format!("events {{ use {net}; }}"));
    let builder = testkit::Server::builder(common::BINARY).conf(&conf);
    let builder = builder.text("html/a", "a").text("logs/empty", "");
    // Started as root, the server creates files as another user.
    let for_all = Permissions::from_mode(0o777);
    std::fs::set_permissions(builder.dir().join("logs"), for_all).expect("it is ours");
    let server = match builder.try_start() {
        Ok(server) => server,
        Err(why) if net == "io_uring" => {
            testkit::engines::report_skipped(net, "io_uring", &why);
            return None;
        }
        Err(why) => panic!("{why}"),
    };
    let mut client = client(&server);
    let text = |name: &str| std::fs::read_to_string(server.path(name)).unwrap_or_default();
    // Files are checked, and opened, when their first line is written.
    for target in ["/missing", "/named?v=v"] {
        client.get(target);
    }
    server.wait_for_access_log(1, Deadline::default());
    server.wait_for_log("/missing", Deadline::default());
    let named = || text("logs/v.log").ends_with("v\n").then_some(());
    testkit::wait::until("a line", Deadline::default(), named).expect("the file is made");
    for round in 0..100 {
        for (target, log) in [
            (format!("/a?{round}"), "logs/access.log"),
            (format!("/missing?{round}"), "logs/error.log"),
            (format!("/named?v=v&{round}"), "logs/v.log"),
        ] {
            client.get(&target);
            client.get("/a");
            if !text(log).contains(&target) {
                return Some(format!("{target} in {log}"));
            }
        }
    }
    None
}
