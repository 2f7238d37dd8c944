//! `health_check` and `match`: states of servers, tests of responses, reloads, limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use crate::common::http2_origin::Http2Origin;
use crate::common::{BINARY, ours_only};
use testkit::fastcgi::{FastCgi, Reply as ScriptReply};
use testkit::gate::Gate;
use testkit::origin::Reply;
use testkit::wait::{self, Deadline};
use testkit::{Client, Origin, Server, Setup};

/// Returns the `api` object of a group.
fn group(server: &Server, name: &str) -> Value {
    let path = format!("/api/9/http/upstreams/{name}");
    let response = Client::connect(server.addr(0)).get(&path);
    serde_json::from_slice(&response.body).expect("JSON")
}

/// Waits until the servers of a group have these states.
fn wait_for_states(server: &Server, name: &str, states: &[&str]) -> Value {
    let found = wait::until("states", Deadline::default(), || {
        let group = group(server, name);
        let peers = group["peers"].as_array().expect("a list");
        let found: Vec<_> = peers.iter().map(|peer| peer["state"].as_str().expect("a text")).collect();
        (found == states).then(|| group.clone())
    });
    found.unwrap_or_else(|_| panic!("{states:?}: {} {}", group(server, name), server.error_log()))
}

fn get(server: &Server, target: &str) -> (u16, String) {
    let response = Client::connect(server.addr(0)).get(target);
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}

/// An origin whose response to `/health` has a status that the test sets.
fn switched(name: &'static str) -> (Origin, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let current = Arc::clone(&status);
    let origin = Origin::start(move |request| match request.target.as_str() {
        "/health" => Reply::new(current.load(Ordering::Relaxed)).body("x"),
        _ => Reply::text(name),
    });
    (origin, status)
}

/// A configuration with one group `back` of two servers, these directives in its location, and `api`.
fn conf(check: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log notice; events {{ }}
         http {{
           upstream back {{ zone back 64k; server @ORIGIN@; server @SECOND@; }}
           match good {{ status 200; }}
           server {{ listen 127.0.0.1:0;
             location / {{ proxy_pass http://back; {check} }}
             location /api {{ api write=on; }} location = /metrics {{ metrics; }} }}
         }}"
    )
}

#[test]
fn an_unhealthy_server_gets_no_requests_until_it_passes_again() {
    if !ours_only("health_check") {
        return;
    }
    let ((first, status), (second, _)) = (switched("first"), switched("second"));
    let setup = Setup::new(&conf("health_check uri=/health match=good interval=50ms fails=2 passes=2;"))
        .origin(&first)
        .upstream("SECOND", second.addr());
    let mut server = setup.start(BINARY);
    wait_for_states(&server, "back", &["up", "up"]);
    status.store(503, Ordering::Relaxed);
    let found = wait_for_states(&server, "back", &["unhealthy", "up"]);
    assert_eq!(found["peers"][0]["health_checks"]["last_passed"], json!(false), "{found}");
    assert_eq!(found["peers"][0]["health_checks"]["unhealthy"], json!(1), "{found}");
    assert!(found["peers"][0]["health_checks"]["fails"].as_u64() >= Some(2), "{found}");
    assert!((0..6).all(|_| get(&server, "/x") == (200, "second".to_owned())));
    let line = format!(
        "peer is unhealthy: the response has status 503, health check \"good\" of peer {} in upstream \"back\"",
        first.addr()
    );
    server.wait_for_log(&line, Deadline::default());
    let metrics = get(&server, "/metrics").1;
    let row = format!("ringroad_upstream_unhealthy_total{{upstream=\"back\",peer=\"{}\"}} 1", first.addr());
    assert!(metrics.contains(&row), "{metrics}");

    // A reload in place keeps the state: the new configuration has not checked the server yet.
    let changed =
        server.conf().replace("interval=50ms", "interval=50ms ").replace("/x", "/y") + "# changed\n";
    server.rewrite_conf(&changed);
    server.reload();
    wait::until("the reload", Deadline::default(), || {
        let nginx: Value = serde_json::from_str(&get(&server, "/api/9/nginx").1).expect("JSON");
        (nginx["generation"] == json!(2)).then_some(())
    })
    .expect("the configuration is in use");
    assert!((0..6).all(|_| get(&server, "/x") == (200, "second".to_owned())));
    let found = group(&server, "back");
    assert_eq!(found["peers"][0]["health_checks"]["unhealthy"], json!(1), "{found}");

    status.store(200, Ordering::Relaxed);
    wait_for_states(&server, "back", &["up", "up"]);
    server.wait_for_log("peer is healthy, health check \"good\"", Deadline::default());
    wait::until("the first server", Deadline::default(), || (get(&server, "/x").1 == "first").then_some(()))
        .expect("it gets requests again");
}

#[test]
fn each_server_is_asked_once_and_not_by_every_thread() {
    if !ours_only("health_check") {
        return;
    }
    let ((first, _), (second, _)) = (switched("first"), switched("second"));
    let setup = Setup::new(&conf("health_check uri=/health interval=1h;"))
        .origin(&first)
        .upstream("SECOND", second.addr());
    let server = setup.start(BINARY);
    let found = wait::until("checks", Deadline::default(), || {
        let found = group(&server, "back");
        let is_checked = |index: usize| found["peers"][index]["health_checks"]["checks"] == json!(1);
        (is_checked(0) && is_checked(1)).then_some(found.clone())
    });
    assert!(found.is_ok(), "{}", group(&server, "back"));
    assert_eq!((first.stats().of("/health"), second.stats().of("/health")), (1, 1));
    let request = first.last_request();
    assert_eq!(request.header("Host").as_deref(), Some("back"), "the host of proxy_pass");
}

#[test]
fn a_mandatory_server_gets_no_requests_before_it_has_passed() {
    if !ours_only("health_check") {
        return;
    }
    let gate = Gate::new();
    let waits = gate.clone();
    let slow = Origin::start(move |request| match request.target.as_str() {
        "/health" => Reply::text("x").wait_first(&waits),
        _ => Reply::text("slow"),
    });
    let setup = Setup::new(&conf("health_check uri=/health mandatory interval=50ms;"))
        .origin(&slow)
        .upstream("SECOND", slow.addr());
    let server = setup.start(BINARY);
    wait_for_states(&server, "back", &["checking", "checking"]);
    assert_eq!(get(&server, "/x").0, 502);
    server.wait_for_log("no live upstreams", Deadline::default());
    gate.open();
    wait_for_states(&server, "back", &["up", "up"]);
    assert_eq!(get(&server, "/x"), (200, "slow".to_owned()));
    // A server that is added at run time is checked too.
    let other = Origin::start(|_| Reply::new(500));
    let body = json!({ "server": other.addr().to_string() }).to_string();
    let length = body.len().to_string();
    let fields = [("Content-Length", length.as_str()), ("Content-Type", "application/json")];
    let mut client = Client::connect(server.addr(0));
    let path = "/api/9/http/upstreams/back/servers";
    client.send(testkit::client::request_bytes("POST", path, &fields)).send(body);
    assert_eq!(client.response().status, 201);
    wait_for_states(&server, "back", &["up", "up", "unhealthy"]);
}

#[test]
fn a_match_block_tests_status_fields_body_and_variables() {
    if !ours_only("match") {
        return;
    }
    let origin = Origin::start(|_| Reply::text("Welcome to this server").header("X-State", "ready"));
    let tests = [
        ("status 200; header X-State = ready; body ~ Welcome; require $upstream_http_x_state;", "up"),
        ("status ! 200;", "unhealthy"),
        ("header X-State != ready;", "unhealthy"),
        ("header ! X-State;", "unhealthy"),
        ("body !~ Welcome;", "unhealthy"),
        ("require $upstream_http_x_other;", "unhealthy"),
    ];
    let mut text = "events { } error_log logs/error.log notice; http {".to_owned();
    for (index, (rows, _)) in tests.iter().enumerate() {
        text += &format!("match m{index} {{ {rows} }} upstream u{index} {{ server @ORIGIN@; }}\n");
    }
    text += "server { listen 127.0.0.1:0; location /api { api; }";
    for index in 0..tests.len() {
        text += &format!(
            "location /{index} {{ proxy_pass http://u{index}; health_check match=m{index} mandatory; }}\n"
        );
    }
    let server = Setup::new(&(text + "} }")).origin(&origin).start(BINARY);
    for (index, (rows, state)) in tests.iter().enumerate() {
        wait_for_states(&server, &format!("u{index}"), &[state]);
        let status = if *state == "up" { 200 } else { 502 };
        assert_eq!(get(&server, &format!("/{index}")).0, status, "{rows}");
    }
}

#[test]
fn checks_may_have_another_port_and_idle_connections() {
    if !ours_only("health_check") {
        return;
    }
    let (checked, _) = switched("checked");
    let served = Origin::start(|_| Reply::text("served"));
    let text =
        conf(&format!("health_check uri=/health interval=20ms keepalive_time=1h port={};", checked.port()))
            .replace("server @SECOND@;", "");
    let server = Setup::new(&text).origin(&served).start(BINARY);
    checked.wait_for("checks", |stats| stats.of("/health") >= 5);
    assert_eq!(checked.stats().connections, 1, "one connection for all checks");
    assert_eq!(served.stats().requests, 0);
    assert_eq!(get(&server, "/x"), (200, "served".to_owned()));
}

#[test]
fn servers_that_do_not_respond_leave_connections_to_requests() {
    if !ours_only("health_check") {
        return;
    }
    // 40 servers that accept connections and never respond, and one that does.
    let hanging = Origin::start(|_| Reply::never());
    let (good, _) = switched("good");
    let port = hanging.port();
    let servers: String = (0..40).map(|index| format!("server 127.0.0.1:{port} route=r{index}; ")).collect();
    let text = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ worker_connections 64; }}
         http {{
           upstream hanging {{ {servers} }}
           upstream good {{ server @ORIGIN@; }}
           server {{ listen 127.0.0.1:0;
             location /hanging {{ proxy_pass http://hanging; proxy_read_timeout 1h; health_check mandatory; }}
             location / {{ proxy_pass http://good; health_check uri=/health interval=20ms; }}
             location /api {{ api; }} }}
         }}"
    );
    let server = Setup::new(&text).origin(&good).start(BINARY);
    good.wait_for("checks of the other group", |stats| stats.of("/health") >= 10);
    let stats = hanging.stats();
    // An eighth of the connections, and half of it for one check.
    assert_eq!((stats.connections, stats.requests), (4, 4));
    for _ in 0..50 {
        assert_eq!(get(&server, "/x"), (200, "good".to_owned()));
    }
}

#[test]
fn a_check_that_this_server_cannot_make_does_not_count() {
    if !ours_only("health_check") {
        return;
    }
    let (origin, _) = switched("good");
    let text =
        conf("proxy_bind 192.0.2.1; health_check uri=/health interval=20ms;").replace("server @SECOND@;", "");
    let server = Setup::new(&text).origin(&origin).start(BINARY);
    let log = server.wait_for_log("a check could not be made: bind(192.0.2.1) failed", Deadline::default());
    assert!(log.contains("[alert]"), "{log}");
    let found = wait_for_states(&server, "back", &["up"]);
    assert_eq!(found["peers"][0]["health_checks"]["fails"], json!(0), "{found}");
}

#[test]
fn a_new_process_starts_with_the_unhealthy_servers() {
    if !ours_only("health_check") {
        return;
    }
    let ((first, status), (second, _)) = (switched("first"), switched("second"));
    status.store(503, Ordering::Relaxed);
    let setup = Setup::new(&conf("health_check uri=/health interval=1s mandatory persistent;"))
        .origin(&first)
        .upstream("SECOND", second.addr());
    let mut server = setup.start(BINARY);
    wait_for_states(&server, "back", &["unhealthy", "up"]);
    let before = server.workers();
    // Needs a new worker process.
    let changed = server.conf().replace("worker_processes 2", "worker_processes 1");
    server.rewrite_conf(&changed);
    server.reload();
    wait::until("a new worker", Deadline::default(), || {
        let workers = server.workers();
        (!workers.is_empty() && workers.iter().all(|worker| !before.contains(worker))).then_some(())
    })
    .expect("the worker is replaced");
    let found = group(&server, "back");
    let states: Vec<_> = [0, 1].map(|index| found["peers"][index]["state"].clone()).to_vec();
    assert_eq!(states, [json!("unhealthy"), json!("up")], "{found}");
}

/// Returns the response message of the gRPC health checking protocol with this status.
fn health_message(status: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, 2, 8, status]
}

#[test]
fn grpc_servers_are_checked_by_their_protocol() {
    if !ours_only("health_check type=grpc") {
        return;
    }
    let origin = Http2Origin::answering(|conn, asked| {
        let (stream, kind) = (asked.stream, [("content-type", "application/grpc")]);
        assert_eq!(asked.field(":path"), Some("/grpc.health.v1.Health/Check"));
        match asked.body.as_slice() {
            // The complete server.
            [0, 0, 0, 0, 0] => {
                conn.head(stream, 200, &kind, false);
                conn.data(stream, &health_message(1), false);
                conn.trailers(stream, &[("grpc-status", "0")]);
            }
            // The service "b".
            [0, 0, 0, 0, 3, 0x0a, 1, b'b'] => {
                conn.head(stream, 200, &kind, false);
                conn.data(stream, &health_message(2), false);
                conn.trailers(stream, &[("grpc-status", "0")]);
            }
            _ => conn.head(stream, 200, &[kind[0], ("grpc-status", "12")], true),
        }
    });
    let checks = [
        ("", "up"),
        ("grpc_service=b", "unhealthy"),
        ("grpc_service=c", "unhealthy"),
        ("grpc_service=c grpc_status=12", "up"),
    ];
    let mut text = "events { } error_log logs/error.log notice; http {".to_owned();
    let mut locations = String::new();
    for (index, (parameters, _)) in checks.iter().enumerate() {
        text += &format!("upstream u{index} {{ server {}; }}\n", origin.address());
        locations += &format!(
            "location /{index} {{ grpc_pass u{index}; health_check mandatory type=grpc {parameters}; }}\n"
        );
    }
    text += &format!("server {{ listen 127.0.0.1:0; location /api {{ api; }} {locations} }} }}");
    let server = Setup::new(&text).start(BINARY);
    for (index, (_, state)) in checks.iter().enumerate() {
        wait_for_states(&server, &format!("u{index}"), &[state]);
    }
    server.wait_for_log("peer is unhealthy: the service is not serving", Deadline::default());
    server.wait_for_log("peer is unhealthy: the response has gRPC status 12", Deadline::default());
}

#[test]
fn fastcgi_servers_are_checked_with_the_parameters_of_their_location() {
    if !ours_only("health_check") {
        return;
    }
    let script = FastCgi::start(|request| {
        let is_ping =
            request.param("SCRIPT_NAME") == Some("/ping") && request.param("REQUEST_METHOD") == Some("GET");
        ScriptReply::script(
            request,
            if is_ping { "Content-Type: text/plain\r\n\r\npong" } else { "Status: 500\r\n\r\n" },
        )
    });
    let text = format!(
        "events {{ }} error_log logs/error.log notice; http {{
           upstream php {{ server {}; }} match pong {{ status 200; body ~ ^pong$; }}
           server {{ listen 127.0.0.1:0; location /api {{ api; }}
             location / {{ fastcgi_pass php; fastcgi_param SCRIPT_NAME $uri; fastcgi_param REQUEST_METHOD $request_method;
               health_check uri=/ping match=pong mandatory; }} }} }}",
        script.address()
    );
    let server = Setup::new(&text).start(BINARY);
    wait_for_states(&server, "php", &["up"]);
}
