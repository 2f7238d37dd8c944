//! The fields `traceparent` and `tracestate` of requests to upstreams: which values they have, and that each arrives exactly once.

use std::sync::{Arc, Mutex};

use crate::common::http2_origin::Http2Origin;
use crate::common::{BINARY, http2, ours_only};
use testkit::fastcgi::{FastCgi, Reply as ScriptReply};
use testkit::gate::Gate;
use testkit::origin::Reply;
use testkit::{Client, Origin, Server, Setup};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A valid value of a client, sampled.
const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Responds with the values of the two fields, a line for each.
fn echo() -> Origin {
    Origin::start(|request| {
        let line = |name: &str| request.headers(name).collect::<Vec<_>>().join(" | ");
        Reply::text(format!("{}\n{}", line("traceparent"), line("tracestate")))
    })
}

/// Starts a server that passes requests to an origin; no collector listens at its endpoint.
fn start(origin: &Origin, http: &str, location: &str) -> Server {
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ otel_exporter {{ endpoint 127.0.0.1:1; }} {http}
           server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://@ORIGIN@; {location} }} }} }}"
    );
    Setup::new(&text).origin(origin).start(BINARY)
}

/// Sends a request with these fields; returns the two values that the upstream received.
fn sent(server: &Server, fields: &[(&str, &str)]) -> (String, String) {
    let response = Client::connect(server.addr(0)).request("GET", "/", fields);
    let text = response.text();
    let (parent, state) = text.split_once('\n').unwrap_or_else(|| panic!("{} {text}", response.status));
    (parent.to_owned(), state.to_owned())
}

/// Returns trace, span and flags of a value, which must be a valid one of this server.
#[track_caller]
fn parts(value: &str) -> (String, String, String) {
    let parts: Vec<&str> = value.split('-').collect();
    let [version, trace, span, flags] = parts.as_slice() else { panic!("\"{value}\" is no single value") };
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    assert!(
        *version == "00" && trace.len() == 32 && span.len() == 16 && is_hex(trace) && is_hex(span),
        "{value}"
    );
    assert!(matches!(*flags, "00" | "01"), "{value}");
    ((*trace).to_owned(), (*span).to_owned(), (*flags).to_owned())
}

#[test]
fn propagate_continues_a_valid_trace_and_begins_one_otherwise() {
    if !ours_only("otel") {
        return;
    }
    let origin = echo();
    let server = start(&origin, "", "otel_trace_context propagate; otel_trace $otel_parent_sampled;");
    let (parent, state) =
        sent(&server, &[("traceparent", CLIENT), ("tracestate", "a=1, b=2"), ("TraceState", "c=3")]);
    let (trace, span, flags) = parts(&parent);
    assert_eq!((trace.as_str(), flags.as_str(), state.as_str()), (TRACE, "01", "a=1,b=2,c=3"));
    assert_ne!(span, SPAN, "the upstream's parent is the span of this server");
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    let (trace, _, flags) = parts(&sent(&server, &[("Traceparent", &unsampled)]).0);
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    let future = format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be");
    assert_eq!(parts(&sent(&server, &[("traceparent", &future)]).0).0, TRACE);
    let bad_state = sent(&server, &[("traceparent", CLIENT), ("tracestate", "a=1,a=2")]);
    assert_eq!((parts(&bad_state.0).0.as_str(), bad_state.1.as_str()), (TRACE, ""));
    for invalid in [
        "",
        "x",
        &CLIENT.to_uppercase(),
        &CLIENT.replace("00-", "ff-"),
        &format!("{CLIENT}-00"),
        &format!("00-{}-{SPAN}-01", "0".repeat(32)),
        &format!("00-{TRACE}-{}-01", "0".repeat(16)),
    ] {
        let (parent, state) = sent(&server, &[("traceparent", invalid), ("tracestate", "a=1")]);
        let (trace, _, flags) = parts(&parent);
        assert!(trace != TRACE && flags == "00" && state.is_empty(), "{invalid}: {parent} {state}");
    }
    // It is not known which of two fields another server would use.
    let (parent, state) =
        sent(&server, &[("traceparent", CLIENT), ("TRACEPARENT", CLIENT), ("tracestate", "a=1")]);
    assert!(parts(&parent).0 != TRACE && state.is_empty(), "{parent} {state}");
    let (first, second) = (parts(&sent(&server, &[]).0).0, parts(&sent(&server, &[]).0).0);
    assert_ne!(first, second);
}

#[test]
fn the_other_modes_replace_or_pass_on_the_fields() {
    if !ours_only("otel") {
        return;
    }
    let origin = echo();
    let fields = [("traceparent", CLIENT), ("tracestate", "a=1")];
    let server = start(&origin, "otel_trace on;", "otel_trace_context inject;");
    let (parent, state) = sent(&server, &fields);
    let (trace, _, flags) = parts(&parent);
    assert!(trace != TRACE && flags == "01" && state.is_empty(), "{parent} {state}");
    for mode in ["otel_trace_context extract;", "otel_trace_context ignore;", ""] {
        let server = start(&origin, "otel_trace on;", mode);
        assert_eq!(sent(&server, &fields), (CLIENT.to_owned(), "a=1".to_owned()), "{mode}");
        let twice = [("traceparent", CLIENT), ("traceparent", "x")];
        assert_eq!(sent(&server, &twice).0, format!("{CLIENT} | x"), "{mode}");
    }
}

#[test]
fn configured_fields_override_and_a_client_cannot_remove_the_fields() {
    if !ours_only("otel") {
        return;
    }
    let origin = echo();
    let propagate = "otel_trace_context propagate; otel_trace on;";
    let fields = [("traceparent", CLIENT), ("tracestate", "a=1")];
    let server =
        start(&origin, propagate, "proxy_set_header traceparent mine; proxy_set_header Tracestate $uri;");
    assert_eq!(sent(&server, &fields), ("mine".to_owned(), "/".to_owned()));
    let server = start(&origin, propagate, "proxy_set_header Traceparent \"\";");
    assert_eq!(sent(&server, &fields), (String::new(), "a=1".to_owned()));
    let server = start(&origin, propagate, "proxy_set_header x-trace $http_traceparent;");
    for options in ["traceparent", "close, Traceparent,tracestate", "TRACESTATE , keep-alive"] {
        let (parent, state) = sent(&server, &[fields[0], fields[1], ("Connection", options)]);
        assert_eq!((parts(&parent).0.as_str(), state.as_str()), (TRACE, "a=1"), "{options}");
    }
    // Later readers of the request's fields get the new value, as in nginx.
    let request = origin.last_request();
    assert_eq!(request.header("x-trace"), request.header("traceparent"));
}

#[test]
fn variables_have_the_identifiers() {
    if !ours_only("otel") {
        return;
    }
    let all = "$otel_trace_id $otel_span_id $otel_parent_id $otel_parent_sampled";
    let server = Server::start(
        BINARY,
        &format!(
            "worker_processes 1; events {{ }} http {{ otel_exporter {{ endpoint 127.0.0.1:1; }} log_format t '{all}'; access_log logs/access.log t;
               split_clients $otel_trace_id $sampled {{ 50% on; * off; }}
               server {{ listen 127.0.0.1:0;
                 location / {{ otel_trace on; otel_trace_context extract; return 200 '{all}'; }}
                 location /new {{ return 200 '{all}'; }}
                 location /half {{ otel_trace 50%; otel_trace_context propagate; return 200 $http_traceparent; }}
                 location /split {{ otel_trace $sampled; otel_trace_context inject; return 200 $http_traceparent; }} }} }}"
        ),
    );
    let get = |target: &str, fields: &[(&str, &str)]| {
        Client::connect(server.addr(0)).request("GET", target, fields).text()
    };
    let text = get("/", &[("traceparent", CLIENT)]);
    let own = text.split(' ').nth(1).expect("a span").to_owned();
    assert_eq!(text, format!("{TRACE} {own} {SPAN} 1"));
    assert!(own.len() == 16 && own != SPAN);
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    assert!(get("/", &[("traceparent", &unsampled)]).ends_with(&format!(" {SPAN} 0")));
    let new = get("/new", &[("traceparent", CLIENT)]);
    assert!(new.len() == 32 + 1 + 16 + 3 && new.ends_with("  0") && !new.contains(TRACE), "{new}");
    let log = server.wait_for_access_log(3, testkit::wait::Deadline::default());
    assert_eq!(log.lines().collect::<Vec<_>>()[0], text, "the log has the same identifiers");
    // A ratio by the identifier: both decisions occur, and the flag is the decision.
    let flags: Vec<String> = (0..64).map(|_| parts(&get("/split", &[])).2).collect();
    assert!(flags.iter().any(|flag| flag == "01") && flags.iter().any(|flag| flag == "00"), "{flags:?}");
    let flags: Vec<String> = (0..64).map(|_| parts(&get("/half", &[])).2).collect();
    assert!(flags.iter().any(|flag| flag == "01") && flags.iter().any(|flag| flag == "00"), "{flags:?}");
    // A parent has decided for all of its trace.
    for (parent, flag) in [(CLIENT, "01"), (unsampled.as_str(), "00")] {
        assert!((0..8).all(|_| parts(&get("/half", &[("traceparent", parent)])).2 == flag));
    }
}

#[test]
fn each_try_and_each_subrequest_has_the_same_field_once() {
    if !ours_only("otel") {
        return;
    }
    let refusing = Origin::start(|_| Reply::new(503));
    let origin = Origin::start(|request| match request.path() {
        "/" => Reply::text("<!--#include virtual=\"/part\" -->").header("Content-Type", "text/html"),
        _ => Reply::text("x"),
    });
    let text = "worker_processes 1; error_log logs/error.log notice; events { }
         http { otel_exporter { endpoint 127.0.0.1:1; } otel_trace on; otel_trace_context propagate;
           upstream both { server @SECOND@; server @ORIGIN@ backup; }
           server { listen 127.0.0.1:0; ssi on;
             location / { auth_request /auth; mirror /mirror; proxy_pass http://both; proxy_next_upstream http_503; }
             location = /auth { internal; proxy_pass http://@ORIGIN@; }
             location = /mirror { internal; proxy_pass http://@ORIGIN@; }
             location = /part { proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).upstream("SECOND", refusing.addr()).start(BINARY);
    let fields = [("traceparent", CLIENT), ("tracestate", "a=1"), ("tracestate", "b=2")];
    let response = Client::connect(server.addr(0)).request("GET", "/", &fields);
    assert_eq!((response.status, response.text().as_str()), (200, "x"));
    origin.wait_for("the copy", |stats| stats.requests >= 4);
    let mut requests = origin.requests();
    requests.append(&mut refusing.requests());
    let mut targets: Vec<_> = requests.iter().map(|request| request.target.as_str()).collect();
    targets.sort_unstable();
    assert_eq!(targets, ["/", "/", "/auth", "/mirror", "/part"]);
    let first = requests[0].header("traceparent").expect("the field");
    assert_eq!(parts(&first).0, TRACE);
    for request in &requests {
        let (parents, states): (Vec<_>, Vec<_>) =
            (request.headers("traceparent").collect(), request.headers("tracestate").collect());
        assert_eq!(
            (parents, states),
            (vec![first.clone()], vec!["a=1,b=2".to_owned()]),
            "{}",
            request.target
        );
    }
}

#[test]
fn all_protocols_of_upstreams_get_the_field_once() {
    if !ours_only("otel") {
        return;
    }
    let seen = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let (of_script, of_grpc) = (Arc::clone(&seen), Arc::clone(&seen));
    let script = FastCgi::start(move |request| {
        let values = request.params.iter().filter(|(name, _)| name == "HTTP_TRACEPARENT");
        of_script.lock().expect("no panic").push(values.map(|(_, value)| value.clone()).collect());
        ScriptReply::script(request, "Content-Type: text/plain\r\n\r\n")
    });
    let grpc = Http2Origin::answering(move |conn, asked| {
        let values = asked.fields.iter().filter(|(name, _)| name == "traceparent");
        of_grpc.lock().expect("no panic").push(values.map(|(_, value)| value.clone()).collect());
        conn.head(asked.stream, 200, &[("content-type", "application/grpc"), ("grpc-status", "0")], true);
    });
    let server = Server::start(
        BINARY,
        &format!(
            "worker_processes 1; events {{ }} http {{ otel_exporter {{ endpoint 127.0.0.1:1; }}
               otel_trace on; otel_trace_context propagate;
               server {{ listen 127.0.0.1:0; http2 on;
                 location /script {{ fastcgi_pass {}; fastcgi_param SCRIPT_NAME $uri; }}
                 location /mine {{ fastcgi_pass {}; fastcgi_param HTTP_TRACEPARENT mine; }}
                 location /call {{ grpc_pass grpc://{}; }} }} }}",
            script.address(),
            script.address(),
            grpc.address()
        ),
    );
    let fields = [("traceparent", CLIENT), ("content-type", "application/grpc"), ("te", "trailers")];
    let mut client = http2::connect(&server);
    for path in ["/script", "/mine", "/call"] {
        assert_eq!(client.post(path, &fields, b"").status, 200, "{path}");
    }
    let seen = seen.lock().expect("no panic").clone();
    let [of_script, mine, of_call] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(mine, &["mine"]);
    for values in [of_script, of_call] {
        let [value] = values.as_slice() else { panic!("{values:?}") };
        assert_eq!(parts(value).0, TRACE);
    }
}

#[test]
fn a_shared_fetch_has_the_context_of_the_request_that_started_it() {
    if !ours_only("otel") {
        return;
    }
    let gate = Gate::new();
    let at = gate.clone();
    let origin =
        Origin::start(move |_| Reply::text("x").header("Cache-Control", "max-age=60").wait_first(&at));
    let text = "worker_processes 1; events { }
         http { otel_exporter { endpoint 127.0.0.1:1; } otel_trace on; otel_trace_context propagate;
           proxy_cache_path @CACHE@ keys_zone=z:1m;
           server { listen 127.0.0.1:0; location / { proxy_cache z; proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&origin).start(BINARY);
    let begin = |trace: &str| {
        let mut client = Client::connect(server.addr(0));
        let parent = format!("00-{trace}-{SPAN}-01");
        client.send(format!("GET /a HTTP/1.1\r\nHost: a\r\ntraceparent: {parent}\r\n\r\n"));
        client
    };
    let mut first = begin(TRACE);
    gate.wait_reached();
    let mut second = begin("11111111111111111111111111111111");
    gate.open();
    assert_eq!((first.response().text(), second.response().text()), ("x".to_owned(), "x".to_owned()));
    let mut third = begin("22222222222222222222222222222222");
    assert_eq!(third.response().text(), "x");
    assert_eq!(origin.stats().requests, 1);
    let values: Vec<_> = origin.last_request().headers("traceparent").map(|value| parts(&value).0).collect();
    assert_eq!(values, [TRACE]);
}
