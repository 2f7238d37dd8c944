//! Lines of the access log compared with nginx: the same bytes are sent to both servers, and the log lines must be
//! equal.
//!
//! Excluded are values that a server does not control (times, numbers of connections); only their forms are checked.

use crate::common::{against_nginx, one_server, serve_with};
use testkit::{Client, Deadline, Server, nginx};

/// Values that do not depend on the time. `$bytes_sent` and `$body_bytes_sent` are equal if the server does not send
/// its name.
const FORMATS: &str = r#"
    log_format same '$remote_addr|$remote_user|$request|$status|$connection_requests|$request_length|$pipe|$request_method'
                    '|$request_uri|$uri|$args|$is_args|$server_protocol|$scheme|$host|$server_name|$request_completion'
                    '|$http_referer|$http_user_agent|$http_x_y|$http_cookie|$cookie_c|$arg_a|$content_type'
                    '|$sent_http_content_type|$sent_http_content_length|$sent_http_location|$body_bytes_sent|$limit_rate'
                    '|$https|$document_uri|$query_string|$uri|$nothing|$part';
    log_format json escape=json '{"r":"$request","x":"$http_x_y","u":"$uri","none":"$http_none"}';
    log_format none escape=none '$request|$http_x_y|$http_none|$uri';
    log_format sent '$request|$bytes_sent|$body_bytes_sent';
    log_format times '$msec|$time_iso8601|$time_local|$request_time|$connection|$pid';
"#;

const SERVER: &str = r#"
    server_name here.test; server_tokens off; root html; set $nothing ''; error_page 404 /404.txt;
    access_log logs/access.log same; access_log logs/json.log json; access_log logs/none.log none;
    access_log logs/times.log times;
    location /text { default_type text/x; return 200 answer; }
    location /sent { access_log logs/sent.log sent; access_log logs/access.log same; return 200 "some text"; }
    location /moved { return 301 /there; }
    location /quiet { access_log off; return 204; }
    location /closed { return 444; }
    location ~ ^/part/(?<part>.+)$ { return 200 "$1"; }
"#;

/// Heads and bodies, one connection per row; the first byte of a pipelined request is sent with the request before it.
const REQUESTS: &[&[u8]] = &[
    b"GET /text?a=1&b HTTP/1.1\r\nHost: HERE.test\r\nUser-Agent: a\"b\\c\r\nReferer: http://x/\r\n\r\n",
    b"GET /text HTTP/1.0\r\n\r\n",
    b"HEAD /text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"POST /text HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Type: x/y\r\nConnection: close\r\n\r\nhello",
    b"POST /text HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /a.txt HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\nConnection: close\r\n\r\n",
    b"GET /a%20b/../a.txt?x=%22 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /missing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /moved HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /quiet HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /closed HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /part/one HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /text HTTP/1.1\r\nHost: a\r\nX-Y: q\"\\\tu \xc3\xa4\r\nCookie: b=1; c=2\r\nConnection: close\r\n\r\n",
    b"GET /text HTTP/1.1\r\nHost: a\r\nAuthorization: Basic dXNlcjpwYXNz\r\nConnection: close\r\n\r\n",
    b"GET /text HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Og==\r\nConnection: close\r\n\r\n",
    b"GET /sent HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /text?1 HTTP/1.1\r\nHost: a\r\n\r\nGET /text?2 HTTP/1.1\r\nHost: a\r\n\r\nGET /text?3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"\r\n\nGET /text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET http://other:80/text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"BREW /text HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /text HTTP/1.1\r\n\r\n",
    b"get /text HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET \"\\ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
    b"GET /te",
    b"GET /text?1 HTTP/1.1\r\nX-A: 1\r\nHo",
];

/// Number of lines that the requests write to `logs/access.log`: two more by pipelining, one less by `access_log off`.
const LINES: usize = REQUESTS.len() + 2 - 1;

#[derive(Debug, PartialEq)]
struct Logs {
    same: Vec<String>,
    json: String,
    none: Vec<u8>,
    sent: String,
    times: String,
}

/// Sends everything, one connection after the other, and reads the logs.
fn send_requests(server: &Server) -> Logs {
    for (sent, bytes) in REQUESTS.iter().enumerate() {
        let mut client = Client::connect(server.addr(0));
        client.send(bytes);
        client.half_close();
        client.read_to_end();
        // In the order of the requests: the next one is sent after this one is in the log.
        let pipelined = if sent >= 16 { 2 } else { 0 };
        let quiet = usize::from(sent >= 9);
        server.wait_for_access_log(sent + 1 + pipelined - quiet, Deadline::default());
    }
    // Each file is written separately.
    let read = |name: &str, lines: usize| {
        let whole = |bytes: &Vec<u8>| bytes.iter().filter(|&&byte| byte == b'\n').count() >= lines;
        let written = || std::fs::read(server.path(name)).ok().filter(whole);
        testkit::wait::until(name, Deadline::default(), written).expect("each log gets its lines")
    };
    let text = |name: &str, lines| String::from_utf8_lossy(&read(name, lines)).into_owned();
    let same: Vec<String> = server.access_log().lines().map(str::to_owned).collect();
    assert_eq!(same.len(), LINES, "{same:#?}");
    // One request is logged to a separate file.
    Logs {
        same,
        json: text("logs/json.log", LINES - 1),
        none: read("logs/none.log", LINES - 1),
        sent: text("logs/sent.log", 1),
        times: text("logs/times.log", LINES - 1),
    }
}

#[test]
fn log_lines_are_the_same_as_in_nginx() {
    let conf = one_server(FORMATS, SERVER);
    let files = |builder: testkit::ServerBuilder| {
        builder.text("html/a.txt", "12345").text("html/404.txt", "not here\n")
    };
    let ours = send_requests(&serve_with(&conf, files));
    check_times(&ours.times);
    if against_nginx() {
        return;
    }
    let Some(peer) = nginx::start_with(&conf, files) else { return };
    let theirs = send_requests(&peer);
    check_times(&theirs.times);
    // Built-in pages contain a server name that is three bytes longer.
    let ours_same = ours.same.iter().map(|line| line.replace("|153|", "|150|").replace("|165|", "|162|"));
    let pairs = ours_same.map(without_port).zip(theirs.same.iter().map(without_port));
    let different: Vec<String> = pairs
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("{ours}\n{theirs}\n"))
        .collect();
    assert!(different.is_empty(), "Ringroad's line, then nginx's:\n{}", different.join("\n"));
    assert_eq!(ours.json, theirs.json);
    assert_eq!(ours.none.escape_ascii().to_string(), theirs.none.escape_ascii().to_string());
    // Only the name in `Server` is longer.
    let numbers = |line: &str| -> Vec<u64> {
        line.trim().split('|').skip(1).map(|number| number.parse().expect("a number")).collect()
    };
    let (ours, theirs) = (numbers(&ours.sent), numbers(&theirs.sent));
    assert_eq!((ours[0] - 3, ours[1]), (theirs[0], theirs[1]));
}

/// Removes the port in a `Location`, which varies.
fn without_port(line: impl AsRef<str>) -> String {
    match line.as_ref().split_once("|http://a:") {
        None => line.as_ref().to_owned(),
        Some((head, tail)) => {
            format!("{head}|http://a:{}", tail.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
    }
}

/// Checks the form of times: `1763724586.123|2026-11-21T12:00:00+00:00|21/Nov/2026:12:00:00 +0000|0.001|5|4711`.
fn check_times(times: &str) {
    for line in times.lines() {
        let shape: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        let parts: Vec<&str> = shape.split('|').collect();
        assert_eq!(parts[0], "0000000000.000", "{line}");
        assert!(["0000-00-00T00:00:00+00:00", "0000-00-00T00:00:00-00:00"].contains(&parts[1]), "{line}");
        let local = parts[2].split(['/', ':', ' ']).map(str::len).collect::<Vec<_>>();
        assert_eq!(local, [2, 3, 4, 2, 2, 2, 5], "{line}");
        assert!(parts[3].strip_suffix(".000").is_some_and(|seconds| !seconds.is_empty()), "{line}");
        assert!(
            parts[4..].iter().all(|number| !number.is_empty() && number.bytes().all(|byte| byte == b'0')),
            "{line}"
        );
    }
    assert!(times.lines().count() > LINES / 2, "{times}");
}
