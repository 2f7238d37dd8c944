//! gRPC calls, compared with nginx.

use crate::common::BINARY;
use crate::common::http2::{self, RESET};
use crate::common::http2_origin::{Asked, Conn, Http2Origin};
use testkit::Setup;

use super::echo;

const GRPC: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  server_tokens off;
  upstream app { server @APP@; keepalive 4; }
  server {
    listen 127.0.0.1:0 http2;
    client_body_temp_path @DATA@/body_temp;
    location / { grpc_pass grpc://app; }
    location /bare/ { grpc_pass @APP@; }
    location /set/ { grpc_set_header X-Set $arg_a; grpc_set_header Host set.test; grpc_set_header User-Agent "";
                     grpc_pass app; }
    location /hide/ { grpc_hide_header X-One; grpc_pass_header Server; grpc_pass app; }
    location /intercept/ { grpc_intercept_errors on; error_page 404 = /page; grpc_pass app; }
    location = /page { internal; return 200 "page\n"; }
    location /dead/ { grpc_pass grpc://127.0.0.1:1; error_page 502 = @dead; }
    location @dead { grpc_pass grpc://app; }
    location /variable/ { set $to app; grpc_pass grpc://$to; }
    location /rewrite/ { rewrite ^/rewrite/(.*)$ "/other/$1 x" break; grpc_pass grpc://app; }
    location /small/ { grpc_buffer_size 1k; grpc_pass grpc://app; }
    location /wide/ { grpc_buffer_size 64k; grpc_pass grpc://app; }
  }
}
"#;

/// Makes a call; returns the response and the request that the upstream received.
fn called(client: &mut http2::Http2<std::net::TcpStream>, case: &GrpcCase) -> String {
    let (method, path, fields, body) = *case;
    let stream = client.begin(method, path, fields, body.is_empty());
    if !body.is_empty() {
        client.body(stream, body.as_bytes());
    }
    let got = client.response(stream);
    // A `Host` that was set is equivalent to the authority (RFC 9113 section 8.3.1).
    let named =
        |line: &str| line.strip_prefix("host=").map_or(line.to_owned(), |host| format!(":authority={host}"));
    let mut lines: Vec<String> = got.text().lines().map(named).collect();
    lines.sort();
    let shown = ["content-type", "x-one", "grpc-status", "grpc-message"];
    let fields: Vec<_> = shown.iter().filter_map(|name| Some((name, got.field(name)?))).collect();
    let server = got.field("server").is_some_and(|value| value == "app");
    format!("{} {fields:?} {server} {:?} {:?}\n{}", got.status, got.trailers, got.reset, lines.join("\n"))
}

/// Method, path, fields and body of a call.
type GrpcCase = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

const GRPC_CASES: &[GrpcCase] = &[
    (
        "POST",
        "/a.B/C",
        &[("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", "1S")],
        "x",
    ),
    ("POST", "/a.B/C", &[("content-type", "application/grpc+proto"), ("user-agent", "u")], "message"),
    ("GET", "/plain?q=1", &[], ""),
    ("HEAD", "/plain", &[], ""),
    ("DELETE", "/a%20b/%2f?x", &[], ""),
    ("POST", "/length", &[("content-length", "3")], "abc"),
    ("POST", "/bare/x", &[("te", "trailers")], "x"),
    ("POST", "/set/x?a=b", &[("user-agent", "u"), ("x-set", "client")], "x"),
    ("POST", "/hide/one", &[], "x"),
    ("POST", "/one", &[], "x"),
    ("POST", "/intercept/missing", &[], "x"),
    ("POST", "/missing", &[], "x"),
    ("GET", "/dead/x", &[], ""),
    ("POST", "/variable/x", &[], "x"),
    ("GET", "/rewrite/y", &[], ""),
    ("POST", "/trailers", &[("te", "trailers")], "x"),
    ("POST", "/only", &[("te", "trailers")], "x"),
    ("POST", "/empty", &[("te", "trailers")], "x"),
    ("POST", "/reset", &[], "x"),
    ("POST", "/small/large", &[], "x"),
    ("POST", "/wide/large", &[], "x"),
    ("POST", "/status", &[], "x"),
    ("GET", "/none", &[], ""),
    ("GET", "/same", &[], ""),
];

fn grpc_server(conn: &mut Conn, asked: &Asked) {
    let stream = asked.stream;
    let grpc = ("content-type", "application/grpc");
    match asked.path().rsplit('/').next().unwrap_or_default() {
        "one" => conn.reply(stream, 200, &[("x-one", "1"), ("server", "app"), ("date", "never")], b"one"),
        "missing" => conn.reply(stream, 404, &[], b"missing"),
        "trailers" => {
            conn.head(stream, 200, &[grpc], false);
            conn.data(stream, b"message", false);
            conn.trailers(stream, &[("grpc-status", "0"), ("grpc-message", "fine")]);
        }
        "only" => conn.head(stream, 200, &[grpc, ("grpc-status", "12"), ("grpc-message", "no")], true),
        "empty" => {
            conn.head(stream, 200, &[grpc], false);
            conn.trailers(stream, &[("grpc-status", "5")]);
        }
        "reset" => _ = conn.frame(RESET, 0, stream, &11u32.to_be_bytes()),
        "large" => conn.reply(stream, 200, &[("x-large", &"x".repeat(3_000))], b"large"),
        "status" => conn.head(stream, 200, &[(":status", "200")], true),
        "none" => conn.head(stream, 204, &[], true),
        "same" => conn.head(stream, 304, &[], true),
        _ if asked.field(":method") == Some("HEAD") => {
            conn.head(stream, 200, &[("content-length", "5")], true)
        }
        _ => echo(conn, asked),
    }
}

#[test]
fn grpc_calls_are_the_same_as_with_nginx() {
    let app = Http2Origin::answering(grpc_server);
    let setup = Setup::new(GRPC).value("APP", &app.address());
    let ours = setup.start(BINARY);
    let mut client = http2::connect(&ours);
    let found: Vec<_> = GRPC_CASES.iter().map(|case| called(&mut client, case)).collect();
    drop(client);
    drop(ours);
    let Some(nginx) = setup.start_nginx() else { return };
    let mut client = http2::connect(&nginx);
    let mut differences = String::new();
    for (case, ours) in GRPC_CASES.iter().zip(found) {
        let theirs = called(&mut client, case);
        // Built-in pages differ in the server's name.
        let page = |text: String| text.replace("ringroad", "nginx");
        let (ours, theirs) = (page(ours), page(theirs));
        if ours != theirs {
            differences += &format!("{case:?}\n--- ours\n{ours}\n--- theirs\n{theirs}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
