//! The export of spans: batches, failures of collectors, reloads, the end of the server.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Collector, EXPORTER, decode};
use crate::common::{BINARY, ours_only};
use testkit::gate::Gate;
use testkit::origin::Reply;
use testkit::wait::{self, Deadline};
use testkit::{Client, Origin, Server, Setup, TempDir};

/// Returns a configuration with these rows of `otel_exporter`.
fn conf(rows: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ otel_exporter {{ endpoint http://@COLLECTOR@/v1/traces; {rows} }}
           server {{ listen 127.0.0.1:0; location / {{ otel_trace on; return 200 x; }}
             location /api {{ api; }} location = /metrics {{ metrics; }} }} }}"
    )
}

fn start(collector: &Origin, rows: &str) -> Server {
    Setup::new(&conf(rows)).upstream("COLLECTOR", collector.addr()).start(BINARY)
}

/// Makes traced requests on one connection; each must be served.
fn ask(server: &Server, count: usize) {
    let mut client = Client::connect(server.addr(0));
    for _ in 0..count {
        assert_eq!(client.get("/").text(), "x");
    }
}

/// Returns the number of spans with a result.
fn counted(server: &Server, result: &str) -> u64 {
    let response = Client::connect(server.addr(0)).get("/api/9/traces");
    let found: Value = serde_json::from_slice(&response.body).expect("JSON");
    found["spans"][result].as_u64().expect("a number")
}

#[track_caller]
fn wait_for_count(server: &Server, result: &str, count: u64) {
    let found =
        wait::until("a count", Deadline::default(), || (counted(server, result) == count).then_some(()));
    found.unwrap_or_else(|_| panic!("{result}: {} {}", counted(server, result), server.error_log()));
}

#[test]
fn a_full_batch_is_sent_at_once_and_others_after_the_interval() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    let server = start(&collector.origin, "interval 1h; batch_size 3; header X-Key 'k 1';");
    ask(&server, 7);
    assert_eq!(collector.wait(&server, 6).len(), 6);
    let request = collector.origin.last_request();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/traces"));
    assert_eq!(request.header("content-type").as_deref(), Some("application/x-protobuf"));
    assert_eq!(request.header("x-key").as_deref(), Some("k 1"));
    assert_eq!(request.header("host"), Some(collector.origin.addr().to_string()));
    assert_eq!(decode::spans(&request.body).len(), 3);
    wait_for_count(&server, "exported", 6);
    // The end of the server does not wait for the interval.
    assert!(server.quit_and_wait().success());
    assert_eq!(collector.spans.lock().expect("no panic").len(), 7);

    let server = start(&collector.origin, "interval 50ms;");
    collector.take();
    ask(&server, 1);
    assert_eq!(collector.wait(&server, 1).len(), 1);
}

#[test]
fn spans_wait_for_a_collector_that_is_away() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    collector.origin.refuse();
    let server = start(&collector.origin, "interval 10ms;");
    ask(&server, 2);
    wait::let_pass(Duration::from_millis(100));
    assert_eq!(counted(&server, "exported") + counted(&server, "failed"), 0);
    collector.origin.accept_again();
    assert_eq!(collector.wait(&server, 2).len(), 2);
    wait_for_count(&server, "exported", 2);
}

#[test]
fn statuses_of_a_collector_postpone_or_discard_a_batch() {
    if !ours_only("otel") {
        return;
    }
    let origin = Origin::start(|request| {
        let status = match request.sequence {
            1 => 503,
            2 => 200,
            _ => 400,
        };
        Reply::new(status).header("Retry-After", "1")
    });
    let server = start(&origin, "interval 10ms;");
    let begun = Instant::now();
    ask(&server, 1);
    wait_for_count(&server, "exported", 1);
    assert!(begun.elapsed() >= Duration::from_secs(1) && origin.stats().requests == 2);
    ask(&server, 1);
    wait_for_count(&server, "failed", 1);
    server.wait_for_log("[error]", Deadline::default());
    let log = server.error_log();
    let line = "OTel export failure: the collector responded with status 400; 1 spans are lost";
    assert!(log.contains(line), "{log}");
    let page = Client::connect(server.addr(0)).get("/metrics").text();
    for row in [
        "{result=\"exported\"} 1",
        "{result=\"failed\"} 1",
        "{result=\"dropped\"} 0",
        "{result=\"rejected\"} 0",
    ] {
        assert!(page.contains(&format!("ringroad_trace_spans_total{row}\n")), "{page}");
    }
}

#[test]
fn responses_of_a_collector_may_be_partial_or_garbage() {
    if !ours_only("otel") {
        return;
    }
    let partial = Reply::ok().body([&[0x0a, 6, 0x08, 1, 0x12, 2][..], b"no"].concat());
    let no_message = Reply::text("<html>");
    let too_large = Reply::ok().body(vec![b'x'; 1 << 20]);
    let origin =
        Origin::replies([partial, no_message, too_large, Reply::raw("SSH-2.0\r\n\r\n"), Reply::reset()]);
    let server = start(&origin, "interval 10ms; batch_size 2;");
    ask(&server, 2);
    wait_for_count(&server, "rejected", 1);
    assert_eq!(counted(&server, "exported"), 1);
    server.wait_for_log("OTel export failure: 1 spans were rejected: no", Deadline::default());
    ask(&server, 2);
    wait_for_count(&server, "failed", 2);
    // The others may succeed later, so their batches wait.
    ask(&server, 2);
    origin.wait_for("the third request", |stats| stats.requests >= 3);
    ask(&server, 20);
    assert_eq!(counted(&server, "failed"), 2);
}

#[test]
fn a_collector_that_stalls_holds_up_no_request() {
    if !ours_only("otel") {
        return;
    }
    let gate = Gate::new();
    let at = gate.clone();
    let origin = Origin::start(move |_| Reply::ok().wait_first(&at));
    let server = start(&origin, "interval 1h; batch_size 2; batch_count 3;");
    ask(&server, 2);
    gate.wait_reached();
    ask(&server, 10);
    // One batch is in flight, two wait.
    assert_eq!(counted(&server, "dropped"), 6);
    server.wait_for_log("OTel dropped a record: all batches are full", Deadline::default());
    gate.open();
    wait_for_count(&server, "exported", 6);
    ask(&server, 2);
    wait_for_count(&server, "exported", 8);
}

#[test]
fn a_stalled_collector_delays_the_end_of_the_server_for_a_limited_time() {
    if !ours_only("otel") {
        return;
    }
    let origin = Origin::start(|_| Reply::never());
    let server = start(&origin, "interval 1h;");
    ask(&server, 3);
    let dir = TempDir::new("otel-log");
    let log = dir.path().join("log");
    std::fs::hard_link(server.path("logs/error.log"), &log).expect("the same file system");
    let begun = Instant::now();
    assert!(server.quit_and_wait().success());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let log = std::fs::read_to_string(&log).expect("it is a file");
    let line = "OTel export failure: the collector is too slow at exit; 3 spans are lost";
    assert!(log.contains(line), "{log}");
}

#[test]
fn a_reload_keeps_the_spans() {
    if !ours_only("otel") {
        return;
    }
    let (first, second) = (Collector::start(), Collector::start());
    let mut server = start(&first.origin, "interval 1h;");
    ask(&server, 2);
    // In place: the thread continues with the new settings.
    let changed = server.conf().replace("interval 1h", "interval 20ms; header x-new 1");
    server.rewrite_conf(&changed);
    server.reload();
    assert_eq!(first.wait(&server, 2).len(), 2);
    assert_eq!(first.origin.last_request().header("x-new").as_deref(), Some("1"));
    // Without an exporter the last spans are sent to the old one.
    server.rewrite_conf(&changed.replace("20ms", "1h"));
    server.reload();
    wait_for_generation(&server, 3);
    ask(&server, 3);
    let start = changed.find("otel_exporter").expect("it has the block");
    let end = start + changed[start..].find('}').expect("it ends") + 1;
    let without = format!("{}{}", &changed[..start], &changed[end..]).replace("otel_trace on;", "");
    server.rewrite_conf(&without);
    server.reload();
    assert_eq!(first.wait(&server, 5).len(), 5);
    // The sandbox permits the port of another collector only to another worker process.
    let addresses = (first.origin.addr().to_string(), second.origin.addr().to_string());
    server.rewrite_conf(&changed.replace(&addresses.0, &addresses.1));
    server.reload();
    let arrived = wait::until("spans", Deadline::default(), || {
        ask(&server, 1);
        (!second.take().is_empty()).then_some(())
    });
    assert!(arrived.is_ok(), "{}", server.error_log());
}

fn wait_for_generation(server: &Server, generation: u64) {
    let reached = || {
        let response = Client::connect(server.addr(0)).get("/api/9/nginx");
        let nginx: Value = serde_json::from_slice(&response.body).expect("JSON");
        (nginx["generation"].as_u64() == Some(generation)).then_some(())
    };
    wait::until("the reload", Deadline::default(), reached).expect("the configuration is in use");
}

#[test]
fn a_configuration_of_nginx_with_its_module_loads() {
    if !ours_only("otel") {
        return;
    }
    let collector = Collector::start();
    let text = format!(
        "load_module modules/ngx_otel_module.so; worker_processes 1; error_log logs/error.log notice; events {{ }}
         http {{ {EXPORTER} otel_service_name a; otel_trace on;
           server {{ listen 127.0.0.1:0; location / {{ otel_trace_context inject; return 200 x; }} }} }}"
    );
    let server = Setup::new(&text).upstream("COLLECTOR", collector.origin.addr()).start(BINARY);
    ask(&server, 1);
    collector.wait(&server, 1);
}
