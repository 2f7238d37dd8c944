//! `ringroad bench load` against scripted origins: every response and every failure is counted as its kind.
//!
//! No test requires a speed: latencies are only compared with the minimum that the origin causes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use testkit::origin::{Framing, OnAccept, Origin, Reply};
use testkit::program::{self, Finished};
use testkit::{Deadline, Gate, Program, TempDir};

use crate::control::BINARY;
use crate::runs;

/// Runs one load against an origin; returns the result as JSON.
#[track_caller]
fn load(engine: &str, url: &str, args: &[&str]) -> serde_json::Value {
    let all = [&["bench", "load", "--json", "--engine", engine, url][..], args].concat();
    let Finished { status, stdout, stderr, .. } = program::run(BINARY, &all);
    assert!(status.success(), "{all:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// Runs a load that must be refused; returns the line.
fn refused(args: &[&str]) -> String {
    runs::refused(&[&["bench", "load"][..], args].concat())
}

fn url(origin: &Origin, path: &str) -> String {
    format!("http://{}{path}", origin.addr())
}

/// Runs a test on each engine that this machine supports.
fn on_each_engine(test: impl Fn(&str)) {
    let engines = program::run(BINARY, &["engines"]).stdout;
    test("epoll");
    if engines.lines().any(|line| line.starts_with("io_uring ") && line.contains("works")) {
        test("uring");
    }
}

/// Returns a count at a JSON path of the result.
fn count(outcome: &serde_json::Value, path: &str) -> u64 {
    outcome.pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{path}: {outcome}"))
}

#[test]
fn the_warm_up_is_a_separate_load() {
    let origin = Origin::start(|_| Reply::text("x"));
    let args = ["--seconds", "0.05", "--warm-up", "0.05", "-c", "1"];
    let outcome = load("epoll", &url(&origin, "/"), &args);
    let stats = origin.stats();
    assert_eq!((stats.connections, count(&outcome, "/connections_made")), (2, 0), "{outcome}");
    // One request may be unanswered at the end of each load; the warm-up has had at least one response.
    assert!(count(&outcome, "/responses") < stats.requests, "{outcome}");
}

#[test]
fn failures_are_counted_by_kind() {
    on_each_engine(|engine| {
        let origin = Origin::start(|request| match request.sequence % 8 {
            1 => Reply::text("right"),
            2 => Reply::new(503),
            3 => Reply::text("wrong"),
            4 => Reply::text("shorter"),
            5 => Reply::reset(),
            6 => Reply::text("righ").declared_length(5).closing(),
            7 => Reply::raw("NOT-HTTP\r\n\r\n").closing(),
            _ => Reply::never(),
        });
        let right = format!("{:x}", crc32c::crc32c(b"right"));
        let args = ["--requests", "16", "-c", "1", "--timeout", "0.2", "--expect-crc32c", &right];
        let outcome = load(engine, &url(&origin, "/"), &args);
        for (path, wanted) in [
            ("/responses", 8),
            ("/statuses/200", 6),
            ("/statuses/503", 2),
            ("/errors/bad_status", 2),
            ("/errors/bad_check", 4),
            ("/errors/reset", 2),
            ("/errors/short_body", 2),
            ("/errors/parse", 2),
            ("/errors/timeout", 2),
            ("/errors/connect", 0),
        ] {
            assert_eq!(count(&outcome, path), wanted, "{path} on {engine}: {outcome}");
        }
    });
}

#[test]
fn a_stopped_server_is_a_failed_connection_for_each_request() {
    on_each_engine(|engine| {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::start(move |_| Reply::text("x").wait_first(&held));
        let target = url(&origin, "/");
        let args =
            ["bench", "load", "--json", "--engine", engine, "--close", "-c", "1", "--requests", "4", &target];
        let mut load = Program::start(BINARY, &args);
        gate.wait_reached();
        origin.refuse();
        gate.open();
        assert!(load.wait_until_ended(Deadline::default()).success(), "{}", load.stderr());
        let outcome: serde_json::Value = serde_json::from_str(&load.stdout()).unwrap();
        // A connection that the kernel had accepted before the listening socket was closed is reset.
        let failed = count(&outcome, "/errors/connect") + count(&outcome, "/errors/reset");
        assert_eq!((count(&outcome, "/responses"), failed), (1, 3), "{outcome}");
    });
}

#[test]
fn bodies_of_every_framing_are_checked() {
    let body: Vec<u8> = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
    let checksum = format!("{:08x}", crc32c::crc32c(&body));
    on_each_engine(|engine| {
        for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
            let (body, args) = (body.clone(), ["--expect-length", "300000", "--expect-crc32c", &checksum]);
            let origin = Origin::start(move |_| Reply::ok().body(&body).framing(framing));
            let all = [&["--requests", "12", "-c", "3"][..], &args].concat();
            let outcome = load(engine, &url(&origin, "/"), &all);
            assert_eq!(count(&outcome, "/responses"), 12, "{framing:?} on {engine}");
            assert_eq!(count(&outcome, "/errors/bad_check"), 0, "{framing:?} on {engine}");
            assert_eq!(count(&outcome, "/body_bytes"), 12 * 300_000, "{framing:?} on {engine}");
        }
    });
}

#[test]
fn the_urls_of_a_list_are_requested_in_turn() {
    let dir = TempDir::new("bench_load");
    let origin = Origin::start(|request| Reply::text(request.path()));
    let list = ["# two files", "", &url(&origin, "/one"), &url(&origin, "/other")].join("\n");
    let path = dir.write("list", list);
    load("epoll", "--urls", &[path.to_str().unwrap(), "--requests", "12", "-c", "2"]);
    let targets = origin.stats().targets;
    assert!(targets.len() == 2 && targets.values().all(|&times| times == 6), "{targets:?}");
}

#[test]
fn an_open_loop_includes_queueing_in_latency() {
    on_each_engine(|engine| {
        // Two hundred requests are due within 200 ms, and the first response takes 400 ms on the only connection: the
        // last request waits at least 200 ms before it is sent, half of the requests at least 300 ms.
        let first = AtomicU64::new(0);
        let origin = Origin::start(move |_| {
            let reply = Reply::text([b'x'; 40]);
            if first.fetch_add(1, Ordering::Relaxed) == 0 {
                reply.pace(1, Duration::from_millis(10))
            } else {
                reply
            }
        });
        let args = ["--rate", "1000", "--requests", "200", "-c", "1"];
        let outcome = load(engine, &url(&origin, "/"), &args);
        assert_eq!((count(&outcome, "/responses"), count(&outcome, "/errors/timeout")), (200, 0));
        let percentiles = outcome["latency_us"]["percentiles"].as_array().unwrap();
        assert_eq!(percentiles[0]["percentile"], 50.0);
        let median = percentiles[0]["us"].as_f64().unwrap();
        assert!(median >= 250_000.0, "{median} on {engine}");
    });
}

#[test]
fn an_open_loop_is_not_faster_than_its_rate() {
    on_each_engine(|engine| {
        let origin = Origin::start(|_| Reply::text("x"));
        let outcome = load(engine, &url(&origin, "/"), &["--rate", "500", "--requests", "100", "-c", "10"]);
        assert_eq!(count(&outcome, "/responses"), 100);
        // The last of a hundred requests is due 198 ms after the first.
        assert!(outcome["seconds"].as_f64().unwrap() > 0.19, "{outcome}");
        assert_eq!(origin.stats().requests, 100);
    });
}

#[test]
fn requests_that_an_open_loop_could_not_send_count_as_late() {
    on_each_engine(|engine| {
        // Only the first request gets a response.
        let origin =
            Origin::start(|request| if request.sequence == 1 { Reply::text("x") } else { Reply::never() });
        let args = ["--rate", "100", "--seconds", "0.2", "--warm-up", "0", "-c", "1", "--timeout", "2"];
        let outcome = load(engine, &url(&origin, "/"), &args);
        assert_eq!(count(&outcome, "/responses"), 1, "{outcome}");
        assert_eq!(count(&outcome, "/errors/timeout"), 19, "{outcome}");
        assert!(outcome["latency_us"]["max"].as_f64().unwrap() >= 2_000_000.0, "{outcome}");
    });
}

#[test]
fn each_request_uses_a_new_connection_with_close() {
    on_each_engine(|engine| {
        let origin = Origin::start(|_| Reply::text("x"));
        let outcome = load(engine, &url(&origin, "/"), &["--close", "--requests", "30", "-c", "4"]);
        assert_eq!((count(&outcome, "/responses"), count(&outcome, "/connections_made")), (30, 30));
        assert_eq!(origin.stats().connections, 30);
        assert!(origin.requests().iter().all(|request| request.lists("connection", "close")));
        origin.wait_for("the connections to end", |stats| stats.connections_open == 0);
    });
}

#[test]
fn connections_are_reused_until_the_server_closes_them() {
    on_each_engine(|engine| {
        let origin = Origin::start(|request| match request.number {
            3 => Reply::text("x").header("Connection", "close").closing(),
            _ => Reply::text("x"),
        });
        let outcome = load(engine, &url(&origin, "/"), &["--requests", "10", "-c", "1"]);
        assert_eq!((count(&outcome, "/responses"), origin.stats().connections), (10, 4), "{outcome}");
        assert_eq!(
            outcome["errors"],
            serde_json::json!({
                "bad_check": 0, "bad_status": 0, "connect": 0, "parse": 0, "reset": 0, "short_body": 0, "timeout": 0,
            })
        );
    });
}

#[test]
fn counting_patterns_request_each_number_once() {
    let origin = Origin::start(|_| Reply::text("x"));
    load("epoll", &url(&origin, "/f{00..24}"), &["--requests", "50", "-c", "7"]);
    let targets = origin.stats().targets;
    assert_eq!(targets.len(), 25, "{targets:?}");
    assert!(targets.contains_key("/f00") && targets.values().all(|&times| times == 2), "{targets:?}");
}

#[test]
fn random_numbers_stay_in_their_range() {
    let origin = Origin::start(|_| Reply::text("x"));
    load("epoll", &url(&origin, "/{3-5}"), &["--requests", "100", "-c", "2"]);
    let seen: Vec<String> = origin.stats().targets.into_keys().collect();
    assert_eq!(seen, ["/3", "/4", "/5"]);
}

#[test]
fn requests_match_the_options() {
    let dir = TempDir::new("bench_load");
    let body = dir.write("body", "the body");
    let origin = Origin::start(|_| Reply::text("x"));
    let args = ["--requests", "1", "-X", "POST", "-H", "X-A: b", "--body", body.to_str().unwrap()];
    load("epoll", &url(&origin, "/p?q"), &args);
    let request = origin.last_request();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/p?q"));
    assert_eq!(request.header("x-a").as_deref(), Some("b"));
    assert_eq!(request.header("host"), Some(origin.addr().to_string()));
    assert_eq!(request.body, b"the body");
    // A response to HEAD has no body, whatever its Content-Length.
    let outcome = load("epoll", &url(&origin, "/"), &["--requests", "5", "-X", "HEAD", "-c", "1"]);
    assert_eq!((count(&outcome, "/responses"), count(&outcome, "/body_bytes")), (5, 0));
}

#[test]
fn an_unresponsive_server_causes_one_line() {
    on_each_engine(|engine| {
        let origin = Origin::start(|_| Reply::text("x"));
        let target = url(&origin, "/");
        origin.on_accept(OnAccept::Ignore);
        let common = ["--engine", engine, "--seconds", "0.1", "--warm-up", "0", "--timeout", "0.1", &target];
        for rest in [&[][..], &["--rate", "10"], &["--close"]] {
            let said = refused(&[&common[..], rest].concat());
            assert!(said.contains("no response from"), "{said}");
        }
        origin.refuse();
        for rest in [&[][..], &["--rate", "10"], &["--close"]] {
            let said = refused(&[&common[..], rest].concat());
            assert!(said.contains(&origin.addr().to_string()) && said.contains("refused"), "{said}");
        }
    });
}

#[test]
fn wrong_arguments_cause_one_line() {
    for (args, part) in [
        (&[][..], "URL"),
        (&["https://127.0.0.1/"], "https is only supported over HTTP/3"),
        (&["http://127.0.0.1/", "--http3"], "HTTP/3 needs https"),
        (&["http://127.0.0.1/", "--loss", "1"], "required arguments were not provided"),
        (&["http://no-such-host.invalid/"], "the host was not found"),
        (&["http://127.0.0.1/", "-c", "0"], "0"),
        (&["http://127.0.0.1/", "--rate", "0"], "rate"),
        (&["http://127.0.0.1/", "--grain", "5"], "--rate"),
        (&["http://127.0.0.1/", "--seconds", "0"], "seconds"),
        (&["http://127.0.0.1/", "--engine", "kqueue"], "kqueue"),
        (&["http://127.0.0.1/", "--cpus", "4095x"], "cpus"),
        (&["http://127.0.0.1/", "--warm-up", "1", "--requests", "2"], "--warm-up"),
        (&["http://127.0.0.1:1/", "http://127.0.0.1:2/"], "different servers"),
        (&["http://127.0.0.1/", "-H", "no colon"], "NAME: VALUE"),
        (&["http://127.0.0.1/", "-X", "GE T"], "method"),
        (&["http://127.0.0.1/", "--expect-crc32c", "x"], "hexadecimal"),
        (&["http://127.0.0.1/", "--urls", "/no/such/list"], "/no/such/list"),
        (&["http://127.0.0.1/", "--body", "/no/such/body"], "/no/such/body"),
    ] {
        let said = refused(args);
        assert!(said.contains(part), "{args:?}: {said}");
    }
}
