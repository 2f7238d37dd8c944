//! memcached: the same requests to this server and to nginx, with one scripted memcached, and with Debian's if it is
//! installed; effects of hostile servers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::common::BINARY;
use testkit::memcached::{Memcached, Reply};
use testkit::{Client, Deadline, Server, Setup, wait};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  server_tokens off;
  upstream cached { server @APP@; keepalive 4; }
  upstream both { server @APP@; server @OTHER@; keepalive 4; }
  types { text/css css; }
  memcached_connect_timeout 10s;
  server {
    listen 127.0.0.1:0;
    access_log off;
    default_type text/plain;
    set $memcached_key $uri;
    location / { memcached_pass @APP@; }
    location /kept/ { memcached_pass cached; }
    location /args/ { set $memcached_key "$uri?$args"; memcached_pass cached; }
    location /none/ { set $memcached_key ""; memcached_pass cached; }
    location /gzip/ { memcached_gzip_flag 2; memcached_pass cached; }
    location /gunzip/ { memcached_gzip_flag 2; gunzip on; memcached_pass cached; }
    location /page/ { error_page 404 = @made; memcached_pass cached; }
    location @made { return 200 "made for $uri, $upstream_status\n"; }
    location /told/ { error_page 404 /told.html; memcached_pass cached; }
    location = /told.html { internal; return 200 "told\n"; }
    location /bad/ { error_page 502 504 = @made; memcached_pass cached; }
    location /small/ { memcached_buffer_size 1k; memcached_pass cached; }
    location /next/ { memcached_next_upstream not_found invalid_response error; memcached_pass both; }
    location /first/ { memcached_next_upstream off; memcached_pass both; }
    location /if/ { if ($arg_a) { memcached_pass cached; } return 200 "no\n"; }
    location /if-other/ { proxy_pass http://127.0.0.1:1; if ($arg_a) { memcached_pass cached; } }
    location /slow/ { memcached_read_timeout 200ms; memcached_pass cached; }
    location /dead/ { memcached_pass 127.0.0.1:1; }
    location /tagged/ { add_header X-Status "$upstream_status" always; memcached_pass cached; }
  }
}
"#;

fn setup(app: &Memcached, other: &Memcached) -> Setup {
    Setup::new(CONF).value("APP", &app.address().to_string()).value("OTHER", &other.address().to_string())
}

/// Returns the response that the last segment of a key's path selects.
fn script(line: &[u8]) -> Reply {
    let line = String::from_utf8_lossy(line).into_owned();
    let Some(key) = line.strip_prefix("get ") else { return Reply::raw("ERROR\r\n") };
    let name = key.rsplit('/').next().unwrap_or_default();
    let line = |rest: &str| Reply::raw(format!("VALUE {key} {rest}"));
    match name.split('?').next().unwrap_or_default() {
        "missing" => Reply::missing(),
        "empty" => Reply::value(key, 0, ""),
        "big" => Reply::value(key, 0, "0123456789abcdef".repeat(20_000)),
        "flag" => Reply::value(key, 2, gzip()),
        "flags" => Reply::value(key, 7, gzip()),
        "plain" => Reply::value(key, 1, "plain"),
        "error" => Reply::raw("ERROR\r\n"),
        "server_error" => Reply::raw("SERVER_ERROR out of memory storing object\r\n"),
        "nothing" => Reply::raw("").then_close(),
        "half" => line("0 1").then_close(),
        "bare" => Reply::raw("END\n"),
        "other" => Reply::value("/elsewhere", 0, "hello"),
        "longer" => Reply::value(&format!("{key}x"), 0, "hello"),
        "noflags" => line("5\r\nhello\r\nEND\r\n"),
        "wordflags" => line("abc 5\r\nhello\r\nEND\r\n"),
        "nolength" => line("0 \r\nhello\r\nEND\r\n"),
        "minus" => line("0 -5\r\nhello\r\nEND\r\n"),
        "huge" => line("0 99999999999999999999\r\nhello\r\nEND\r\n"),
        "cas" => line("0 5 17\r\nhello\r\nEND\r\n"),
        "nul" => line("\0 5\r\nhello\r\nEND\r\n"),
        "endless" => Reply::raw(vec![b'x'; 100_000]),
        "trailer" => line("0 5\r\nhelloWHAT\r\n"),
        "notrailer" => line("0 5\r\nhello").then_close(),
        "short" => line("0 50\r\nhello").then_close(),
        "more" => line("0 5\r\nhello\r\nEND\r\nVALUE x 0 1\r\n"),
        "silent" => Reply::raw(""),
        _ => Reply::value(key, 0, format!("the value of {key}\n")),
    }
}

/// Returns "compressed" and a line feed, compressed by gzip.
fn gzip() -> Vec<u8> {
    let stored = b"\x01\x0b\x00\xf4\xffcompressed\n";
    let (crc, len) = (0xc84f_6dbb_u32, 11_u32);
    [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], stored, &crc.to_le_bytes(), &len.to_le_bytes()].concat()
}

fn send_request(server: &Server, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> String {
    let length = body.len().to_string();
    let mut all = vec![("Host", "example.org"), ("Connection", "close")];
    all.extend(fields);
    if !body.is_empty() {
        all.push(("Content-Length", &length));
    }
    let mut client = Client::connect(server.addr(0));
    client.send([testkit::client::request_bytes(method, target, &all), body.into()].concat());
    let response = match method {
        "HEAD" => client.response_to_head(),
        _ => match client.try_response() {
            Ok(response) => response,
            Err(_) => return "a broken response".to_owned(),
        },
    };
    let shown = [
        "Content-Type",
        "Content-Length",
        "Content-Encoding",
        "Content-Range",
        "Accept-Ranges",
        "Location",
        "X-Status",
    ];
    let fields: Vec<_> = shown.iter().filter_map(|name| Some((name, response.field(name)?))).collect();
    let text = response.text().replace("ringroad", "nginx");
    // Error pages contain the server's name, so their lengths differ.
    match response.status {
        300.. => format!("{} {text}", response.status),
        _ => format!("{} {fields:?}\n{text}", response.status),
    }
}

/// Names of responses in [`script`].
const NAMES: &[&str] = &[
    "a",
    "b.css",
    "missing",
    "empty",
    "big",
    "flag",
    "flags",
    "plain",
    "error",
    "server_error",
    "nothing",
    "half",
    "bare",
    "other",
    "longer",
    "noflags",
    "wordflags",
    "nolength",
    "minus",
    "huge",
    "cas",
    "nul",
    "endless",
    "trailer",
    "notrailer",
    "short",
    "more",
    "a%20b",
    "a%25b",
    "a%0d%0aget%20x",
    "%C3%A4",
];

const PLACES: &[&str] = &[
    "/",
    "/kept/",
    "/args/",
    "/none/",
    "/gzip/",
    "/gunzip/",
    "/page/",
    "/told/",
    "/bad/",
    "/small/",
    "/next/",
    "/first/",
    "/if/",
    "/if-other/",
    "/dead/",
    "/tagged/",
];

type Case = (&'static str, String, &'static [(&'static str, &'static str)], &'static str);

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for place in PLACES {
        for name in NAMES {
            cases.push(("GET", format!("{place}{name}"), &[], ""));
        }
        cases.push(("HEAD", format!("{place}a"), &[], ""));
        cases.push(("HEAD", format!("{place}big"), &[], ""));
        cases.push(("HEAD", format!("{place}missing"), &[], ""));
        cases.push(("GET", format!("{place}a"), &[("Range", "bytes=4-8")], ""));
        cases.push(("GET", format!("{place}big"), &[("Range", "bytes=-7")], ""));
        cases.push(("GET", format!("{place}a"), &[("Range", "bytes=900-")], ""));
        cases.push(("GET", format!("{place}a?a=1&b=2"), &[], ""));
        cases.push(("GET", format!("{place}flag"), &[("Accept-Encoding", "gzip")], ""));
        cases.push(("POST", format!("{place}a"), &[], "body"));
        cases.push(("DELETE", format!("{place}a"), &[], ""));
        cases.push(("GET", format!("{place}a"), &[], "body of a GET"));
    }
    cases.push(("GET", "/slow/silent".to_owned(), &[], ""));
    cases
}

#[test]
fn requests_and_responses_are_the_same_as_with_nginx() {
    let (app, other) = (
        Memcached::start(script),
        Memcached::start(|line| {
            let key = String::from_utf8_lossy(line).replace("get ", "");
            Reply::value(&key, 0, "of the other\n")
        }),
    );
    let setup = setup(&app, &other);
    let ours = setup.start(BINARY);
    let Some(nginx) = setup.start_nginx() else { return };
    let mut wrong = Vec::new();
    for (method, target, fields, body) in cases() {
        // Which of two servers is first depends on earlier requests.
        let is_turn = target.starts_with("/first/") || target.starts_with("/next/");
        let (mine, theirs) = (
            send_request(&ours, method, &target, fields, body),
            send_request(&nginx, method, &target, fields, body),
        );
        let same = |found: &str| found.contains("of the other") || found == mine || found.starts_with("502");
        if mine != theirs && !(is_turn && (same(&theirs) || mine.contains("of the other"))) {
            wrong.push(format!(
                "{method} {target} {fields:?}\n--- nginx\n{theirs:.300}\n--- ringroad\n{mine:.300}\n"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} requests:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn connections_are_reused_only_after_complete_responses() {
    let other = Memcached::start(script);
    for (name, made) in
        [("a", 1), ("empty", 1), ("missing", 1), ("big", 1), ("trailer", 3), ("more", 3), ("error", 3)]
    {
        let app = Memcached::start(script);
        let server = setup(&app, &other).start(BINARY);
        for _ in 0..3 {
            send_request(&server, "GET", &format!("/kept/{name}"), &[], "");
        }
        assert_eq!(app.connections(), made, "{name}");
    }
}

#[test]
fn hostile_servers_cause_the_log_lines_of_nginx() {
    let (app, other) = (Memcached::start(script), Memcached::start(script));
    let cases = [
        ("/error", "memcached sent invalid response: \"ERROR\" while reading response header from upstream"),
        ("/other", "memcached sent invalid key in response \"VALUE /elsewhere 0 5\" for key \"/other\""),
        ("/longer", "memcached sent invalid response: \"VALUE /longerx 0 5\""),
        (
            "/gzip/wordflags",
            "invalid flags in response \"VALUE /gzip/wordflags abc 5\" for key \"/gzip/wordflags\"",
        ),
        ("/minus", "memcached sent invalid length in response \"VALUE /minus 0 -5\" for key \"/minus\""),
        ("/trailer", "memcached sent invalid trailer while reading"),
        (
            "/missing",
            "key: \"/missing\" was not found by memcached while reading response header from upstream",
        ),
        ("/nothing", "upstream prematurely closed connection while reading response header from upstream"),
        ("/short", "upstream prematurely closed connection while reading upstream"),
        ("/endless", "upstream sent too big header while reading response header from upstream"),
        ("/none/a", "the \"$memcached_key\" variable is not set"),
    ];
    let setup = setup(&app, &other);
    let ours = setup.start(BINARY);
    for (target, words) in cases {
        send_request(&ours, "GET", target, &[], "");
        ours.wait_for_log(words, Deadline::default());
    }
    ours.wait_for_log(&format!("upstream: \"memcached://{}\"", app.address()), Deadline::default());
    let Some(nginx) = setup.start_nginx() else { return };
    for (target, words) in cases {
        send_request(&nginx, "GET", target, &[], "");
        // The state that nginx names depends on how many bytes arrived together.
        let words = words.split(" while ").next().unwrap_or_default();
        nginx.wait_for_log(words, Deadline::default());
    }
}

#[test]
fn wrong_configurations_cause_the_messages_of_nginx() {
    for (block, words) in [
        ("memcached_pass 127.0.0.1:1;", "unknown \"memcached_key\" variable"),
        ("set $memcached_key a; memcached_pass 127.0.0.1;", "no port in upstream \"127.0.0.1\""),
        ("set $memcached_key a; memcached_pass 127.0.0.1:1; memcached_pass 127.0.0.1:1;", "is duplicate"),
        ("memcached_next_upstream http_404;", "invalid value \"http_404\""),
        ("memcached_next_upstream invalid_header;", "invalid value \"invalid_header\""),
        ("memcached_gzip_flag yes;", "invalid number"),
        ("memcached_buffering off;", "unknown directive \"memcached_buffering\""),
    ] {
        let conf =
            format!("events {{}} http {{ server {{ listen 127.0.0.1:0; location / {{ {block} }} }} }}");
        let failure = Server::builder(BINARY).conf(&conf).try_start().expect_err(block);
        assert!(failure.contains(words), "{block}: {failure}");
        let nginx = testkit::nginx::binary();
        if nginx.exists() {
            let conf = conf.replace("127.0.0.1:0", "127.0.0.1:18080");
            let failure = Server::builder(nginx).conf(&conf).try_start().expect_err(block);
            assert!(failure.contains(words), "nginx, {block}: {failure}");
        }
    }
}

/// Debian's memcached, stopped when dropped.
struct Real(Child, u16);

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Real {
    fn start() -> Option<Real> {
        let port = testkit::ports::free_port();
        let started = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "nobody", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            testkit::skip("memcached is not installed (apt-get install memcached)");
            return None;
        };
        let real = Real(child, port);
        wait::until("memcached", Deadline::default(), || TcpStream::connect(("127.0.0.1", port)).ok())
            .expect("it starts");
        Some(real)
    }

    fn set(&self, key: &str, flags: u32, value: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.1)).expect("it listens");
        let line = format!("set {key} {flags} 0 {}\r\n", value.len());
        stream.write_all(&[line.as_bytes(), value, b"\r\n"].concat()).expect("it reads");
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said).expect("it answers");
        assert_eq!(said, "STORED\r\n");
    }
}

#[test]
fn debians_memcached_serves_stored_values() {
    let Some(real) = Real::start() else { return };
    real.set("/a", 0, b"first\n");
    real.set("/kept/big", 0, &b"0123456789".repeat(100_000));
    real.set("/kept/a%20b", 0, b"with a space\n");
    real.set("/gunzip/x", 2, &gzip());
    real.set("/kept/empty", 0, b"");
    let other = Memcached::start(script);
    let setup = Setup::new(CONF)
        .value("APP", &format!("127.0.0.1:{}", real.1))
        .value("OTHER", &other.address().to_string());
    let server = setup.start(BINARY);
    let text = |target: &str| send_request(&server, "GET", target, &[], "");
    assert!(text("/a").ends_with("\nfirst\n"), "{}", text("/a"));
    for _ in 0..3 {
        assert_eq!(text("/kept/big").split_once('\n').map(|(_, body)| body.len()), Some(1_000_000));
        assert!(text("/kept/a%20b").ends_with("with a space\n"));
        assert!(text("/kept/empty").starts_with("200"));
        assert!(text("/kept/none").starts_with("404"));
    }
    assert!(text("/gunzip/x").ends_with("compressed\n"), "{}", text("/gunzip/x"));
    // A key that memcached refuses.
    assert!(text(&format!("/kept/{}", "k".repeat(300))).starts_with("502"));
}
