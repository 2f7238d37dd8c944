//! The content of spans.

use super::{Collector, EXPORTER, named};
use crate::common::{BINARY, ours_only};
use std::time::{Duration, SystemTime};
use testkit::origin::Reply;
use testkit::wait::Deadline;
use testkit::{Client, Origin, Server, Setup};

const SERVER: u64 = 2;

/// Starts a server with an exporter; `http` is the content of the block.
fn start(collector: &Collector, origin: &Origin, http: &str) -> Server {
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }} http {{ {EXPORTER} {http} }}"
    );
    Setup::new(&text).origin(origin).upstream("COLLECTOR", collector.origin.addr()).start(BINARY)
}

#[test]
fn a_span_has_the_attributes_of_nginxs_module() {
    if !ours_only("otel") {
        return;
    }
    let (collector, origin) = (Collector::start(), Origin::start(|_| Reply::text("hello")));
    let server = start(
        &collector,
        &origin,
        "otel_service_name shop; otel_resource_attr host.name h1; otel_resource_attr 'a b' 'c d'; otel_trace on;
         server { listen 127.0.0.1:0; server_name shop.example other.example;
           otel_span_attr site $host;
           location /a/ { proxy_pass http://@ORIGIN@; }
           location /b { otel_span_name \"$request_method $uri\"; otel_span_attr http.request.header.x_key $http_x_key;
                         otel_span_attr empty $nothing; set $nothing ''; return 503 sorry; } }",
    );
    let before =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let mut client = Client::connect(server.addr(0));
    let fields = [("Host", "SHOP.example"), ("User-Agent", "test/1"), ("Content-Length", "3")];
    client.send(b"POST /a/x?y=%ff\xff HTTP/1.1\r\n".as_slice());
    client.send(fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>());
    client.send("\r\nabc");
    assert_eq!(client.response().text(), "hello");
    assert_eq!(client.request("GET", "/b?q", &[("X-Key", "k")]).status, 503);
    let spans = collector.wait(&server, 2);
    let span = named(&spans, "/a/");
    let port = server.addr(0).tcp().port().to_string();
    let client_port = client.local_addr().expect("it is connected").port().to_string();
    for (name, value) in [
        ("http.method", "POST"),
        ("http.target", "/a/x?y=%ff\u{fffd}"),
        ("http.route", "/a/"),
        ("http.scheme", "http"),
        ("http.flavor", "1.1"),
        ("http.user_agent", "test/1"),
        ("http.request_content_length", "3"),
        ("http.response_content_length", "5"),
        ("http.status_code", "200"),
        ("net.host.name", "shop.example"),
        ("net.host.port", &port),
        ("net.sock.peer.addr", "127.0.0.1"),
        ("net.sock.peer.port", &client_port),
        ("site", "shop.example"),
    ] {
        assert_eq!(span.attribute(name), value, "{name}");
    }
    assert_eq!((span.kind, span.parent.as_str(), span.status.0, span.attributes.len()), (SERVER, "", 0, 14));
    let hour = 3_600_000_000_000;
    assert!(span.start + 1_000_000_000 > before && span.end < before + hour, "{before} {span:?}");
    for (name, value) in [("service.name", "shop"), ("host.name", "h1"), ("a b", "c d")] {
        assert_eq!(span.resource.get(name).map(String::as_str), Some(value));
    }
    let span = named(&spans, "GET /b");
    assert_eq!(span.attribute("http.request.header.x_key"), "[k]");
    assert_eq!((span.attribute("http.status_code"), span.status.0), ("503", 2));
    assert_eq!(span.attributes.get("empty").map(String::as_str), Some(""));
    assert_eq!(span.attributes.get("site"), None, "a block replaces the attributes of the outer block");
}

#[test]
fn a_request_has_one_span_wherever_it_ends() {
    if !ours_only("otel") {
        return;
    }
    let (collector, origin) = (Collector::start(), Origin::start(|_| Reply::new(404)));
    let server = start(
        &collector,
        &origin,
        "otel_trace on; otel_trace_context propagate;
         server { listen 127.0.0.1:0; if ($arg_early) { return 204; } rewrite ^/old$ /new last;
           error_page 404 /page;
           location / { proxy_pass http://@ORIGIN@; proxy_intercept_errors on; }
           location /page { otel_trace off; return 200 page; }
           location /new { return 201; }
           location /last { rewrite ^ /page last; }
           location /off { otel_trace off; otel_trace_context ignore; return 204; }
           location /drop { return 444; } }",
    );
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ask = |target: &str| {
        let response = Client::connect(server.addr(0)).request("GET", target, &[("traceparent", parent)]);
        response.status
    };
    assert_eq!([ask("/x?early=1"), ask("/x"), ask("/off")], [204, 404, 204]);
    // The first location has decided.
    assert_eq!([ask("/last"), ask("/old")], [200, 201]);
    let mut client = Client::connect(server.addr(0));
    client.send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
    let mut client = Client::connect(server.addr(0));
    client.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 400);
    // That of "/x" has two further spans, of its try.
    let mut spans = collector.wait(&server, 8);
    spans.retain(|span| span.kind == SERVER);
    let found: Vec<(&str, &str)> = spans
        .iter()
        .map(|span| (span.attribute("http.target"), span.attribute("http.status_code")))
        .collect();
    let expected = [
        ("/x?early=1", "204"),
        ("/x", "404"),
        ("/last", "200"),
        ("/old", "201"),
        ("/drop", "444"),
        ("/", "400"),
    ];
    assert_eq!(found, expected);
    for span in &spans[..2] {
        assert_eq!((&span.trace[..], &span.parent[..]), (&parent[3..35], &parent[36..52]));
    }
    testkit::wait::let_pass(Duration::from_millis(50));
    assert_eq!(collector.take().len(), 8);
}

#[test]
fn a_request_that_a_percentage_does_not_choose_has_identifiers_and_no_span() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ {EXPORTER} otel_trace 0%;
           log_format t '$uri $otel_trace_id $otel_span_id $otel_parent_sampled'; access_log logs/access.log t;
           server {{ listen 127.0.0.1:0;
             location / {{ return 200 '$otel_trace_id $otel_span_id'; }}
             location /rewritten {{ set $id $otel_trace_id; rewrite ^ /all last; }}
             location /moved {{ rewrite ^ /all last; }}
             location /all {{ otel_trace on; return 200 '$otel_trace_id'; }}
             location /whole {{ otel_trace 100%; return 200 ''; }} }} }}"
    );
    let server = Setup::new(&text).upstream("COLLECTOR", collector.origin.addr()).start(BINARY);
    let mut client = Client::connect(server.addr(0));
    let first = client.get("/").text();
    let second = client.get("/").text();
    assert!(first.len() == 32 + 1 + 16 && first[..32] != second[..32], "{first} {second}");
    let (rewritten, moved) = (client.get("/rewritten").text(), client.get("/moved").text());
    // Of all requests only this one is traced: the first location decides.
    assert_eq!(client.get("/whole").status, 200);
    assert_eq!(collector.wait(&server, 1)[0].attribute("http.target"), "/whole");
    testkit::wait::let_pass(Duration::from_millis(50));
    assert_eq!(collector.take().len(), 1);
    let log = server.wait_for_access_log(5, Deadline::default());
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[..2], [format!("/ {first} 0"), format!("/ {second} 0")], "the same identifiers");
    assert!(lines[2].contains(&rewritten) && lines[3].contains(&moved) && rewritten.len() == 32, "{log}");
}

const INTERNAL: u64 = 1;
const CLIENT: u64 = 3;

#[test]
fn tries_and_subrequests_have_spans_below_that_of_the_request() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    let refusing = Origin::start(|_| Reply::new(503));
    let origin = Origin::start(|_| Reply::text("x"));
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ {EXPORTER} otel_trace on;
           upstream both {{ server @SECOND@; server 127.0.0.1:1; server @ORIGIN@ backup; }}
           server {{ listen 127.0.0.1:0;
             location / {{ auth_request /auth; proxy_pass http://both; proxy_next_upstream error http_503; }}
             location = /auth {{ internal; proxy_pass http://@ORIGIN@; }} }} }}"
    );
    let server = Setup::new(&text)
        .origin(&origin)
        .upstream("SECOND", refusing.addr())
        .upstream("COLLECTOR", collector.origin.addr())
        .start(BINARY);
    assert_eq!(Client::connect(server.addr(0)).get("/").text(), "x");
    // The request, its three tries with two connections, the subrequest, its try with a connection.
    let spans = collector.wait(&server, 9);
    let request = named(&spans, "/");
    let subrequest = named(&spans, "subrequest");
    assert!(spans.iter().all(|span| span.trace == request.trace));
    assert_eq!((subrequest.kind, &subrequest.parent), (INTERNAL, &request.id));
    assert_eq!(
        (subrequest.attribute("http.target"), subrequest.attribute("http.status_code")),
        ("/auth", "200")
    );
    let tries = |parent: &str| {
        spans.iter().filter(|span| span.name == "upstream" && span.parent == parent).collect::<Vec<_>>()
    };
    let of_request = tries(&request.id);
    let found: Vec<_> = of_request
        .iter()
        .map(|span| (span.attribute("http.status_code"), span.attribute("http.resend_count"), span.status.0))
        .collect();
    assert_eq!(found.len(), 3, "{spans:?}");
    assert!(found.contains(&("200", "2", 0)), "{found:?}");
    assert_eq!(found.iter().filter(|(_, _, status)| *status == 2).count(), 2, "{found:?}");
    let unreachable = of_request.iter().find(|span| span.attribute("net.sock.peer.addr") == "127.0.0.1:1");
    assert_eq!(
        unreachable.map(|span| (span.status.clone(), span.kind)),
        Some(((2, "no response".to_owned()), CLIENT))
    );
    let of_subrequest = tries(&subrequest.id);
    assert_eq!(of_subrequest.len(), 1, "{spans:?}");
    for connect in spans.iter().filter(|span| span.name == "upstream.connect") {
        let parent = spans.iter().find(|span| span.id == connect.parent).expect("a try");
        assert!(parent.name == "upstream" && parent.start == connect.start && connect.end <= parent.end);
    }
    for span in spans.iter().filter(|span| span.id != request.id) {
        assert!(request.start <= span.start && span.end <= request.end, "{request:?} {span:?}");
    }
}

#[test]
fn a_cache_has_spans_for_lookups_and_fetches() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    let origin = Origin::start(|_| Reply::text("x").header("Cache-Control", "max-age=60"));
    let server = start(
        &collector,
        &origin,
        "otel_trace on; proxy_cache_path @CACHE@ keys_zone=z:1m;
         server { listen 127.0.0.1:0; location / { proxy_cache z; proxy_pass http://@ORIGIN@; }
           location /file { root html; } }",
    );
    std::fs::create_dir_all(server.path("html/file")).expect("the directory is writable");
    std::fs::write(server.path("html/file/a"), "a").expect("the directory is writable");
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a").text(), "x");
    // The request, the lookup, the fetch, the try and its connection.
    let spans = collector.wait(&server, 5);
    let request = named(&spans, "/");
    assert_eq!(named(&spans, "cache.lookup").attribute("cache.status"), "MISS");
    for name in ["cache.lookup", "cache.fetch", "upstream"] {
        let span = named(&spans, name);
        assert_eq!((&span.parent, &span.trace), (&request.id, &request.trace), "{name}");
    }
    collector.take();
    assert_eq!(client.get("/a").text(), "x");
    let spans = collector.wait(&server, 2);
    assert_eq!((named(&spans, "cache.lookup").attribute("cache.status"), spans.len()), ("HIT", 2));
    collector.take();
    assert_eq!(client.get("/file/a").text(), "a");
    let spans = collector.wait(&server, 2);
    assert_eq!(named(&spans, "file.open").parent, named(&spans, "/file").id);
}
