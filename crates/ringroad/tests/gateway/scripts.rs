//! SCGI and uwsgi: the same requests to this server and to nginx with one scripted application server, and effects of
//! hostile servers.

use crate::common::BINARY;
use testkit::script::{Protocol, Request, ScriptServer};
use testkit::{Client, Deadline, Setup};

/// Configuration for one protocol; `@P@` is its prefix.
const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  server_tokens off;
  @P@_temp_path @DATA@/temp;
  @P@_cache_path @CACHE@ keys_zone=c:1m;
  upstream app { server @APP@; }
  @P@_param REQUEST_METHOD $request_method;
  @P@_param REQUEST_URI $request_uri;
  @P@_param QUERY_STRING $query_string;
  @P@_param EMPTY $arg_empty if_not_empty;
  @P@_param HTTP_X_SET set;
  @LENGTH@
  server {
    listen 127.0.0.1:0;
    access_log off;
    client_max_body_size 100m;
    client_body_temp_path @DATA@/body_temp;
    location / { @P@_pass @APP@; }
    location /group/ { @P@_pass app; }
    location /variable/ { set $to app; @P@_pass $to; }
    location /bare/ { @P@_pass_request_headers off; @P@_pass app; }
    location /stream/ { @P@_request_buffering off; @P@_buffering off; @P@_pass app; }
    location /intercept/ { @P@_intercept_errors on; error_page 404 /page; @P@_pass app; }
    location = /page { internal; return 200 "page for $status\n"; }
    location /dead/ { @P@_pass 127.0.0.1:1; error_page 502 = @dead; }
    location @dead { @P@_pass app; }
    location /cache/ {
      @P@_cache c; @P@_cache_key $uri; @P@_cache_valid 200 404 1h;
      add_header X-Cache $upstream_cache_status always; @P@_pass app;
    }
    @MORE@
  }
}
"#;

const BOTH: [(Protocol, &str); 2] = [(Protocol::Scgi, "scgi"), (Protocol::Uwsgi, "uwsgi")];

fn setup(prefix: &str, app: &ScriptServer) -> Setup {
    // SCGI always sends the length, and the `SCGI` parameter only if nginx's `scgi_params` is included.
    let (length, more) = match prefix {
        "uwsgi" => (
            "uwsgi_param CONTENT_LENGTH $content_length;",
            "location /modified/ { uwsgi_modifier1 5; uwsgi_modifier2 7; uwsgi_pass uwsgi://app; }",
        ),
        _ => ("scgi_param SCGI 1;", "location /modified/ { scgi_pass app; }"),
    };
    Setup::new(CONF)
        .value("P", prefix)
        .value("APP", &app.address().to_string())
        .value("LENGTH", length)
        .value("MORE", more)
}

/// Responds according to the path: with all received parameters, or with the response that the path names.
fn script(request: &Request) -> Vec<u8> {
    let path = request.param("REQUEST_URI").unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let text: &str = match path.rsplit('/').next().unwrap_or_default() {
        "status" => "Status: 404 Not there\r\nContent-Type: text/plain\r\nX-One: 1\r\n\r\ngone",
        "line" => "HTTP/1.1 201 Made\r\nContent-Type: text/plain\r\n\r\nmade",
        "location" => "Location: /elsewhere\r\nContent-Type: text/plain\r\n\r\n",
        "none" => "Status: 204 None\r\n\r\n",
        "lf" => "Content-Type: text/plain\n\nlines",
        "length" => "Content-Length: 3\r\nContent-Type: text/plain\r\n\r\nabc",
        _ => {
            let mut all = String::from("Content-Type: text/plain\r\n\r\n");
            for (name, value) in &request.params {
                all.push_str(&format!("{name}={value}\n"));
            }
            let body: u64 = request.body.iter().map(|byte| u64::from(*byte)).sum();
            all.push_str(&format!("{:?} body {} {body}\n", request.modifiers, request.body.len()));
            return all.into_bytes();
        }
    };
    text.as_bytes().to_vec()
}

fn send_request(
    client: &mut Client,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> String {
    let length = body.len().to_string();
    let mut all = vec![("Host", "example.org")];
    all.extend(fields);
    if !body.is_empty() {
        all.push(("Content-Length", &length));
    }
    client.send([testkit::client::request_bytes(method, target, &all), body.to_vec()].concat());
    let response = if method == "HEAD" { client.response_to_head() } else { client.response() };
    let shown = ["Content-Type", "Location", "X-One", "Status", "X-Cache"];
    let fields: Vec<_> = shown.iter().filter_map(|name| Some((name, response.field(name)?))).collect();
    format!("{} {fields:?}\n{}", response.status, response.text())
}

/// Method, target and fields of a request.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Requests for both servers.
const CASES: &[Case] = &[
    ("GET", "/a?b=c", &[("User-Agent", "client/1"), ("X-Set", "of the client"), ("Cookie", "a=1")]),
    ("GET", "/a%20b/c?empty=1", &[]),
    ("HEAD", "/a", &[]),
    ("DELETE", "/a", &[]),
    ("GET", "/group/a", &[]),
    ("GET", "/variable/a", &[]),
    ("GET", "/modified/a", &[]),
    ("GET", "/bare/a", &[("X-A", "b")]),
    ("GET", "/stream/a", &[]),
    ("GET", "/status", &[]),
    ("GET", "/line", &[]),
    ("GET", "/location", &[]),
    ("GET", "/none", &[]),
    ("GET", "/lf", &[]),
    ("GET", "/length", &[]),
    ("HEAD", "/length", &[]),
    ("GET", "/intercept/status", &[]),
    ("GET", "/dead/a", &[]),
    ("GET", "/cache/b", &[("If-None-Match", "\"x\"")]),
    ("GET", "/cache/b", &[]),
    ("GET", "/cache/status", &[]),
    ("GET", "/cache/status", &[]),
];

#[test]
fn requests_and_responses_are_the_same_as_with_nginx() {
    for (protocol, prefix) in BOTH {
        let app = ScriptServer::start(protocol, script);
        let setup = setup(prefix, &app);
        let ours = setup.start(BINARY);
        let mut client = Client::connect(ours.addr(0));
        let found: Vec<_> = CASES
            .iter()
            .map(|(method, target, fields)| send_request(&mut client, method, target, fields, b""))
            .collect();
        drop((client, ours));
        let _ = std::fs::remove_dir_all(setup.cache());
        let Some(nginx) = setup.start_nginx() else { return };
        let mut client = Client::connect(nginx.addr(0));
        for ((method, target, fields), ours) in CASES.iter().zip(found) {
            let theirs = send_request(&mut client, method, target, fields, b"");
            // Row P43: without the client's fields, nginx 1.22 does not send HTTP_HOST.
            let shown = |text: String| match target.starts_with("/bare/") {
                true => text.replace("HTTP_HOST=example.org\n", ""),
                false => text,
            };
            assert_eq!(shown(ours), shown(theirs), "{prefix} {method} {target}");
        }
    }
}

#[test]
fn http_host_is_the_host_that_selected_the_server() {
    for (protocol, prefix) in BOTH {
        let app = ScriptServer::start(protocol, script);
        let server = setup(prefix, &app).start(BINARY);
        let mut client = Client::connect(server.addr(0));
        client.send("GET http://Abs.example:81/a HTTP/1.1\r\nHost: other.example:82\r\n\r\n");
        let text = client.response().text();
        let hosts: Vec<&str> = text.lines().filter(|line| line.starts_with("HTTP_HOST=")).collect();
        assert_eq!(hosts, ["HTTP_HOST=abs.example:81"], "{prefix}");
    }
}

#[test]
fn bodies_arrive_complete() {
    for (protocol, prefix) in BOTH {
        let app = ScriptServer::start(protocol, script);
        let server = setup(prefix, &app).start(BINARY);
        let mut client = Client::connect(server.addr(0));
        for len in [1, 65_536, 3_000_000] {
            let body: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
            let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
            for target in ["/up", "/stream/up"] {
                let shown = send_request(&mut client, "POST", target, &[], &body);
                assert!(shown.contains(&format!("body {len} {sum}\n")), "{prefix} {target} {len}: {shown}");
            }
        }
        // A chunked body is read completely first, as SCGI and uwsgi send its length before it.
        let chunked = "Host: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        client.send(format!("POST /stream/up HTTP/1.1\r\n{chunked}"));
        let text = client.response().text();
        assert!(text.contains("body 3 294\n"), "{prefix}: {text}");
    }
}

#[test]
fn hostile_applications_cause_a_502_and_a_log_line() {
    for (protocol, prefix) in BOTH {
        for (bytes, words) in [
            (b"<html>no header\r\n".to_vec(), "upstream sent invalid header"),
            (b"Status: abc\r\n\r\n".to_vec(), "upstream sent invalid status"),
            (Vec::new(), "prematurely closed connection"),
            (b"Status: 200 OK\r\nA".to_vec(), "prematurely closed connection"),
            (b"X-Long: aaaaaaaaaaaaaaa\r\n".repeat(400), "upstream sent too big header"),
            (b"Content-Length: 9\r\nContent-Length: 8\r\n\r\nabc".to_vec(), "duplicate header line"),
        ] {
            let sent = bytes.clone();
            let app = ScriptServer::start(protocol, move |_| sent.clone());
            let setup = setup(prefix, &app);
            let server = setup.start(BINARY);
            let mut client = Client::connect(server.addr(0));
            for target in ["/a", "/cache/a", "/stream/a"] {
                let shown = send_request(&mut client, "GET", target, &[], b"");
                assert!(shown.starts_with("502"), "{prefix} {target} {bytes:?}: {shown}");
            }
            server.wait_for_log(words, Deadline::default());
        }
    }
}

#[test]
fn parameters_too_long_for_uwsgi_are_refused() {
    let app = ScriptServer::start(Protocol::Uwsgi, script);
    let buffers = "client_max_body_size 100m; large_client_header_buffers 8 80k;";
    let text = CONF.replace("client_max_body_size 100m;", buffers);
    let mut setup = setup("uwsgi", &app);
    setup.set_text(&text);
    let server = setup.start(BINARY);
    let long = "x".repeat(70_000);
    let shown = send_request(&mut Client::connect(server.addr(0)), "GET", "/a", &[("X-Long", &long)], b"");
    assert!(shown.starts_with("500"), "{shown}");
    server.wait_for_log("uwsgi request is too big", Deadline::default());
}
