//! Upstream data in logs and fields: all `$upstream_*` and `$proxy_*` variables, for one server, for several, for none,
//! and for cached responses.

use crate::common::BINARY;
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Response, Server, Setup};

/// One line for each variable, which is easier to read than one long line.
const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format all '$uri status=$upstream_status addr=$upstream_addr connect=$upstream_connect_time'
    ' header=$upstream_header_time response=$upstream_response_time queue=$upstream_queue_time'
    ' length=$upstream_response_length received=$upstream_bytes_received sent=$upstream_bytes_sent'
    ' server=$upstream_last_server_name field=$upstream_http_x_own none=$upstream_http_x_none'
    ' cookie=$upstream_cookie_sid trailer=$upstream_trailer_x_sum'
    ' cache=$upstream_cache_status age=$upstream_cache_age etag=$upstream_cache_etag date=$upstream_cache_last_modified'
    ' host=$proxy_host port=$proxy_port internal=$proxy_internal_host body=$proxy_internal_body_length'
    ' chunked=$proxy_internal_chunked forwarded=$proxy_add_x_forwarded_for.';
  access_log logs/access.log all;
  proxy_cache_path @CACHE@ keys_zone=one:1m;
  upstream pair { server @ORIGIN@ max_fails=0; server @OTHER@ backup; }
  server {
    listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /pair/ { proxy_next_upstream http_503; proxy_pass http://pair/x/; }
    location /streamed/ { proxy_request_buffering off; proxy_pass http://@ORIGIN@; }
    location /cached/ { proxy_cache one; proxy_cache_key $uri; proxy_cache_valid 1h; proxy_pass http://@ORIGIN@; }
    location /replaced/ { proxy_intercept_errors on; error_page 404 /nobody/; proxy_pass http://@ORIGIN@; }
    location /nobody/ { return 200 x; }
    location /head/ { proxy_buffer_size 8k; proxy_pass http://@ORIGIN@; }
    location /less/ { proxy_buffer_size 1k; proxy_pass http://@ORIGIN@; }
    location /shown/ {
      add_header X-Shown '$upstream_status|$upstream_http_x_one|$upstream_cookie_sid';
      add_header X-Asked '$proxy_host|$proxy_port|$proxy_internal_body_length|$proxy_internal_chunked';
      proxy_pass http://@ORIGIN@;
    }
  }
}
";

fn answer(request: &OriginRequest) -> Reply {
    let reply = || {
        Reply::ok()
            .header("X-Own", "a")
            .header("x-own", "b")
            .header("X-One", "1")
            .header("Set-Cookie", "other=1")
            .header("Set-Cookie", "sid=secret; Path=/")
            .body("four")
    };
    match request.path() {
        "/x/failing" => Reply::new(503).header("X-Own", "bad").body("bad"),
        "/replaced/status" => Reply::new(404).body("none"),
        "/replaced/field" => reply().header("X-Accel-Redirect", "/nobody/"),
        "/trailers" => reply().chunked(&[4]).trailer("X-Sum", "4"),
        "/head/" | "/less/" => Reply::ok().head_bytes(5000),
        "/cached/a" => Reply::text("kept")
            .header("ETag", "\"e\"")
            .header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        _ => reply(),
    }
}

fn start(origin: &Origin, other: &Origin) -> (Setup, Server) {
    let setup = Setup::new(CONF).origin(origin).upstream("OTHER", other.addr());
    let server = setup.start(BINARY);
    (setup, server)
}

/// The values in the log line of a target, by their names.
struct Line(String);

impl Line {
    fn of(server: &Server, count: usize, target: &str) -> Line {
        let log = server.wait_for_access_log(count, Deadline::default());
        let line = log.lines().rev().find(|line| line.starts_with(&format!("{target} ")));
        Line(line.unwrap_or_else(|| panic!("no line for {target}: {log}")).to_owned())
    }

    #[track_caller]
    fn get(&self, name: &str) -> &str {
        let start = self.0.find(&format!(" {name}=")).unwrap_or_else(|| panic!("{name}: {}", self.0));
        let rest = &self.0[start + name.len() + 2..];
        // Values contain spaces; the next name follows them.
        let end = rest.match_indices('=').next().and_then(|(at, _)| rest[..at].rfind(' '));
        &rest[..end.unwrap_or(rest.len())]
    }

    #[track_caller]
    fn has(&self, expected: &[(&str, &str)]) {
        for (name, value) in expected {
            assert_eq!(self.get(name), *value, "{name}: {}", self.0);
        }
    }

    /// Returns a time in seconds, written with three decimals.
    #[track_caller]
    fn time(&self, name: &str) -> f64 {
        let text = self.get(name);
        assert_eq!(text.split_once('.').map(|(_, digits)| digits.len()), Some(3), "{name}: {}", self.0);
        text.parse().unwrap_or_else(|_| panic!("{name}: {}", self.0))
    }
}

#[test]
fn upstream_variables_after_one_attempt() {
    let (origin, other) = (Origin::start(answer), Origin::start(answer));
    let (_setup, server) = start(&origin, &other);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(
        client.request("POST", "/a", &[("X-Forwarded-For", "192.0.2.1"), ("Content-Length", "0")]).text(),
        "four"
    );
    let (line, address) = (Line::of(&server, 1, "/a"), origin.addr().to_string());
    let port = address.rsplit_once(':').map(|(_, port)| port).unwrap_or_default();
    line.has(&[
        ("status", "200"),
        ("addr", &address),
        ("queue", "-"),
        ("length", "4"),
        ("server", &address),
        ("field", "a, b"),
        ("none", "-"),
        ("cookie", "secret"),
        ("trailer", "-"),
        ("cache", "-"),
        ("age", "-"),
        ("host", &address),
        ("port", port),
        ("internal", &address),
        ("body", "0"),
        ("chunked", "-"),
        ("forwarded", "192.0.2.1, 127.0.0.1."),
    ]);
    assert!(line.time("connect") <= line.time("header") && line.time("header") <= line.time("response"));
    let (sent, received) = (line.get("sent").parse::<u64>(), line.get("received").parse::<u64>());
    assert!(sent.is_ok_and(|sent| sent > 40) && received.is_ok_and(|received| received > 100), "{}", line.0);
    client.get("/trailers");
    Line::of(&server, 2, "/trailers").has(&[("trailer", "4"), ("length", "4"), ("body", "-")]);
    client.send("POST /streamed/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    // A body that arrives together with the head is forwarded with its length.
    origin.wait_for("its connection", |stats| stats.connections > 2);
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    Line::of(&server, 3, "/streamed/").has(&[("chunked", "chunked"), ("body", "-")]);
    client.get("/nobody/");
    let line = Line::of(&server, 4, "/nobody/");
    let names =
        ["status", "addr", "connect", "header", "response", "length", "received", "sent", "server", "host"];
    assert!(names.iter().all(|name| line.get(name) == "-"), "{}", line.0);
}

#[test]
fn upstream_variables_after_several_attempts() {
    let (origin, other) =
        (Origin::start(answer), Origin::start(|_| Reply::text("good").header("X-Own", "good")));
    let (_setup, server) = start(&origin, &other);
    assert_eq!(Client::connect(server.addr(0)).get("/pair/failing").text(), "good");
    let line = Line::of(&server, 1, "/pair/failing");
    let (first, second) = (origin.addr().to_string(), other.addr().to_string());
    line.has(&[
        ("status", "503, 200"),
        ("addr", &format!("{first}, {second}")),
        ("length", "0, 4"),
        // Values of the last server.
        ("server", &second),
        ("field", "good"),
        // Values of the group, which has no port.
        ("host", "pair"),
        ("port", "80"),
    ]);
    for name in ["connect", "header", "response", "received", "sent"] {
        assert_eq!(line.get(name).split(", ").count(), 2, "{name}: {}", line.0);
    }
}

#[test]
fn a_replaced_response_has_no_length() {
    let (origin, other) = (Origin::start(answer), Origin::start(answer));
    let (_setup, server) = start(&origin, &other);
    let mut client = Client::connect(server.addr(0));
    for (lines, target) in (1..).zip(["/replaced/status", "/replaced/field"]) {
        assert_eq!(client.get(target).text(), "x");
        // After the internal redirect this is the value of `$uri`.
        Line::of(&server, lines, "/nobody/").has(&[("addr", &origin.addr().to_string()), ("length", "0")]);
    }
}

#[test]
fn upstream_variables_after_a_cache_hit() {
    let (origin, other) = (Origin::start(answer), Origin::start(answer));
    let (_setup, server) = start(&origin, &other);
    let mut client = Client::connect(server.addr(0));
    client.get("/cached/a");
    Line::of(&server, 1, "/cached/a").has(&[("cache", "MISS"), ("status", "200"), ("age", "-")]);
    let mut count = 1;
    let line = testkit::wait::until("a hit", Deadline::default(), || {
        count += 1;
        client.get("/cached/a");
        // A request that joins a fetch shortly before its end is a hit too, although the response is not yet cached.
        let line = Line::of(&server, count, "/cached/a");
        (line.get("cache") == "HIT" && line.get("age") != "-").then_some(line)
    });
    let line = line.expect("it is stored");
    line.has(&[
        ("status", "-"),
        ("addr", "-"),
        ("length", "-"),
        ("etag", "\\x22e\\x22"),
        ("host", &origin.addr().to_string()),
        ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ]);
    assert!(line.get("age").parse::<u64>().is_ok_and(|age| age < 60), "{}", line.0);
}

/// The head of a response is 5000 bytes long.
#[test]
fn proxy_buffer_size_limits_the_response_head() {
    let (origin, other) = (Origin::start(answer), Origin::start(answer));
    let (_setup, server) = start(&origin, &other);
    let mut client = Client::connect(server.addr(0));
    assert_eq!((client.get("/head/").status, client.get("/less/").status), (200, 502));
    server.wait_for_log("upstream sent too big header", Deadline::default());
}

/// The variables have the same values in response fields as in nginx. nginx before 1.23 returns only the first of several fields.
#[test]
fn variables_of_response_fields_are_the_same_as_in_nginx() {
    let (origin, other) = (Origin::start(answer), Origin::start(answer));
    let (_setup, server) = start(&origin, &other);
    let shown = |server: &Server| -> Response {
        Client::connect(server.addr(0)).request("POST", "/shown/", &[("Content-Length", "0")])
    };
    let ours = shown(&server);
    let fields = ["x-shown", "x-asked"].map(|name| ours.field(name).map(str::to_owned));
    assert_eq!(fields[0].as_deref(), Some("200|1|secret"));
    let address = origin.addr().to_string();
    let port = address.rsplit_once(':').map(|(_, port)| port).unwrap_or_default();
    assert_eq!(fields[1], Some(format!("{address}|{port}|0|")));
    // Debian's nginx lacks some of the other variables.
    let text = "events {} http { server { listen 127.0.0.1:0; location /shown/ {
      add_header X-Shown '$upstream_status|$upstream_http_x_one|$upstream_cookie_sid';
      add_header X-Asked '$proxy_host|$proxy_port|$proxy_internal_body_length|$proxy_internal_chunked';
      proxy_pass http://@ORIGIN@; } } }";
    let setup = Setup::new(text).origin(&origin);
    let Some(nginx) = setup.start_nginx() else { return };
    let theirs = shown(&nginx);
    assert_eq!(["x-shown", "x-asked"].map(|name| theirs.field(name).map(str::to_owned)), fields);
}
