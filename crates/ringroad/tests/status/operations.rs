//! Metrics for the operation of a server: reloads, limits that close connections, caches, disks, lost log lines. Each test reads a
//! metric, causes a change, and reads the metric again.

use std::collections::HashMap;

use crate::common::{BINARY, ours_only};
use rustix::process::Signal;
use testkit::client::request_bytes;
use testkit::origin::Reply;
use testkit::program::signal_process;
use testkit::wait::{self, Deadline};
use testkit::{Client, Content, Origin, Server, Setup, TempDir};

/// Values on a page by metric name and labels, without the prefix `ringroad_`.
type Numbers = HashMap<String, f64>;

fn numbers(server: &Server) -> Numbers {
    let response = Client::connect(server.addr(0)).request("GET", "/metrics", &[("Connection", "close")]);
    assert_eq!(response.status, 200);
    let text = response.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("ringroad_"));
    lines
        .map(|line| {
            let (name, number) = line.rsplit_once(' ').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        })
        .collect()
}

/// Waits until the values satisfy a condition; returns them.
#[track_caller]
fn once(server: &Server, what: &str, are_so: impl Fn(&Numbers) -> bool) -> Numbers {
    let found =
        wait::until(what, Deadline::default(), || Some(numbers(server)).filter(|numbers| are_so(numbers)));
    found.unwrap_or_else(|_| panic!("{what}: {:#?}", numbers(server)))
}

/// Sends one request with `Connection: close`; returns the bytes of the response.
fn get(server: &Server, target: &str) -> Vec<u8> {
    let mut client = Client::connect(server.addr(0));
    client.send(request_bytes("GET", target, &[("Connection", "close")]));
    client.read_to_end()
}

/// The alert rules of docs/status.md are valid for Prometheus, and name only existing metrics.
#[test]
fn documented_alerts_name_existing_metrics() {
    let page = include_str!("../../../../docs/status.md");
    let (_, rules) = page.split_once("```yaml\ngroups:").expect("the rules");
    let rules = format!("groups:{}", rules.split_once("```").expect("an end").0);
    let known = include_str!("../../../../docs/counters.md");
    let word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let named = rules.split(|char| !word(char)).filter(|name| {
        name.starts_with("ringroad_") || (name.starts_with("process_") && name.ends_with("_fds"))
    });
    let mut count = 0;
    for name in named {
        let row = format!("| `{}` |", name.strip_suffix("_bucket").unwrap_or(name));
        assert!(known.contains(&row), "{name} is in no row");
        count += 1;
    }
    assert!(count > 12, "{count} metrics");
    let dir = TempDir::new("rules");
    let file = dir.write("rules.yml", &rules);
    match std::process::Command::new("promtool").args(["check", "rules"]).arg(&file).output() {
        Ok(output) => {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && out.contains("12 rules found"), "{out}{err}");
        }
        Err(_) => testkit::skip(format_args!("promtool is not installed (apt-get install prometheus)")),
    }
}

/// Returns the numbers of reloads by way, and 1.0 if the last reload succeeded.
fn reloads(numbers: &Numbers) -> ([f64; 3], f64) {
    let of = |way| numbers[&format!("config_reloads_total{{way=\"{way}\"}}")];
    (["in_place", "replacement", "refused"].map(of), numbers["config_last_reload_success"])
}

fn reload_conf(main: &str, location: &str) -> String {
    format!(
        "{main} events {{}} http {{ server {{ listen 127.0.0.1:0; {location} location = /metrics {{ metrics; }} }} }}"
    )
}

#[test]
fn reloads_are_counted_by_method_across_workers() {
    if !ours_only("metrics") {
        return;
    }
    let mut server = Server::start(BINARY, &reload_conf("worker_processes 2;", ""));
    assert_eq!(reloads(&numbers(&server)), ([0.0; 3], 1.0), "none yet");
    let reload = |server: &mut Server, conf: &str, expected| {
        server.rewrite_conf(conf);
        server.reload();
        once(server, &format!("{expected:?}"), |numbers| reloads(numbers) == expected)
    };
    let in_place = reload_conf("worker_processes 2;", "location /new { return 200; }");
    reload(&mut server, &in_place, ([1.0, 0.0, 0.0], 1.0));
    reload(&mut server, "nonsense", ([1.0, 0.0, 1.0], 0.0));
    reload(&mut server, "more nonsense;", ([1.0, 0.0, 2.0], 0.0));
    // The syntax is valid, but the log file cannot be created.
    let unusable = format!("error_log /nowhere/error.log; {in_place}");
    reload(&mut server, &unusable, ([1.0, 0.0, 3.0], 0.0));
    let before = server.worker();
    let replaced = reload(&mut server, &reload_conf("worker_processes 3;", ""), ([1.0, 1.0, 3.0], 1.0));
    assert_eq!(replaced["config_generation"], 1.0, "it is another process");
    reload(&mut server, "nonsense", ([1.0, 1.0, 4.0], 0.0));
    // A worker that dies is replaced by a new worker with the same configuration.
    let dead = *server.workers().iter().find(|worker| **worker != before).expect("a new worker");
    signal_process(dead, Signal::KILL).expect("it is ours");
    server.wait_for_log("exited on signal 9", Deadline::default());
    let known = wait::until("another worker", Deadline::default(), || {
        let others: Vec<_> = server.workers().into_iter().filter(|worker| *worker != dead).collect();
        Some(()).filter(|()| others.iter().any(|worker| *worker != before))
    });
    known.expect("another worker");
    once(&server, "the same numbers", |numbers| reloads(numbers) == ([1.0, 1.0, 4.0], 0.0));
    // A reload of the configuration in force succeeds again. It is in place if the master knows that the new worker is ready, which is logged.
    server.wait_for_log_count("event method", 3, Deadline::default());
    reload(&mut server, &reload_conf("worker_processes 3;", ""), ([2.0, 1.0, 4.0], 1.0));
}

#[test]
fn a_server_without_a_master_counts_its_reloads() {
    if !ours_only("metrics") {
        return;
    }
    let main = "master_process off; worker_processes 2;";
    let mut server = Server::start(BINARY, &reload_conf(main, ""));
    for (main, expected) in [
        (main, ([1.0, 0.0, 0.0], 1.0)),
        ("master_process off; worker_processes 3;", ([1.0, 0.0, 1.0], 0.0)),
        ("nonsense", ([1.0, 0.0, 2.0], 0.0)),
        (main, ([2.0, 0.0, 2.0], 1.0)),
    ] {
        server.rewrite_conf(&reload_conf(main, ""));
        server.reload();
        once(&server, main, |numbers| reloads(numbers) == expected);
    }
}

/// Opens twice as many keep-alive connections as `worker_connections` allows. Each request gets its response, because older idle
/// connections are closed.
#[test]
fn connections_closed_for_new_clients_are_counted() {
    if !ours_only("metrics") {
        return;
    }
    const MAX: usize = 8;
    for threads in [1, 2] {
        let conf = format!(
            "worker_processes {threads}; events {{ worker_connections {MAX}; }} http {{ access_log off; server {{ listen 127.0.0.1:0; \
             location = /ok {{ return 200 ok; }} location = /metrics {{ metrics; }} }} }}"
        );
        let server = Server::start(BINARY, &conf);
        let refused =
            |numbers: &Numbers, limit| numbers[&format!("connections_refused_total{{limit=\"{limit}\"}}")];
        let before = numbers(&server);
        assert_eq!(refused(&before, "worker_connections"), 0.0);
        let crowd = 2 * MAX * threads;
        let mut clients = Vec::new();
        for _ in 0..crowd {
            let mut client = Client::connect(server.addr(0));
            assert_eq!(client.get("/ok").status, 200);
            clients.push(client);
        }
        let after = numbers(&server);
        let closed = refused(&after, "worker_connections");
        assert!(closed >= (crowd - MAX * threads) as f64, "{threads} threads: {closed} of {crowd}");
        assert!(closed <= after["connections_closed_total"], "{closed} were closed");
        for limit in ["descriptors", "buffers", "upstream"] {
            assert_eq!(refused(&after, limit), 0.0, "{limit}");
        }
        drop(clients);
    }
}

#[test]
fn upstream_connections_above_the_limit_are_counted() {
    if !ours_only("metrics") {
        return;
    }
    let origin = Origin::start(|_| Reply::text("from behind"));
    let setup = Setup::new(
        "worker_processes 1; events { worker_connections 1; } http { access_log off; server { listen 127.0.0.1:0; \
         location / { proxy_pass http://@ORIGIN@; } location = /metrics { metrics; } } }",
    );
    let setup = setup.origin(&origin);
    let server = setup.start(BINARY);
    let refused = "connections_refused_total{limit=\"upstream\"}";
    assert_eq!(numbers(&server)[refused], 0.0);
    assert!(!get(&server, "/").starts_with(b"HTTP/1.1 200"), "the client uses the only connection");
    once(&server, "a refused upstream", |numbers| numbers[refused] >= 1.0);
}

const CACHE: &str = "worker_processes 2; events {}
http {
    access_log off;
    proxy_cache_path @CACHE@ keys_zone=z:1m;
    proxy_cache z;
    proxy_cache_valid 200 1h;
    server {
        listen 127.0.0.1:0;
        location / { proxy_pass http://@ORIGIN@; sendfile off; aio threads; }
        location = /metrics { metrics; }
    }
}
";

/// Body size in bytes. A hit does not read a body of this size in one call, so that the engine reads its chunks.
const BODY: usize = 3 << 20;

#[test]
fn caches_count_bytes_and_ages_of_hits() {
    if !ours_only("metrics") {
        return;
    }
    const HITS: usize = 6;
    let origin = Origin::start(|_| Reply::text(vec![b'x'; BODY]));
    let setup = Setup::new(CACHE).origin(&origin);
    let mut server = setup.start(BINARY);
    let served = |numbers: &Numbers, source| {
        numbers[&format!("cache_served_bytes_total{{zone=\"z\",source=\"{source}\"}}")]
    };
    let device = |numbers: &Numbers, direction| {
        numbers[&format!("cache_device_bytes_total{{zone=\"z\",direction=\"{direction}\"}}")]
    };
    let hits = |numbers: &Numbers| numbers["cache_hit_age_seconds_count{zone=\"z\"}"];
    let none = numbers(&server);
    assert_eq!((served(&none, "upstream"), served(&none, "cache"), hits(&none)), (0.0, 0.0, 0.0));

    let first = get(&server, "/large").len();
    let stored = once(&server, "a stored response", |numbers| {
        served(numbers, "upstream") == first as f64 && device(numbers, "write") >= BODY as f64
    });
    assert_eq!((served(&stored, "cache"), hits(&stored)), (0.0, 0.0));
    let from_cache: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..HITS).map(|_| scope.spawn(|| get(&server, "/large").len())).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    let hit = once(&server, "the hits", |numbers| {
        hits(numbers) == HITS as f64 && served(numbers, "cache") == from_cache as f64
    });
    assert_eq!(served(&hit, "upstream"), first as f64, "{hit:#?}");
    assert!(device(&hit, "read") >= BODY as f64, "{hit:#?}");
    // The age of each hit is at most some seconds, and not negative.
    assert_eq!(hit["cache_hit_age_seconds_bucket{zone=\"z\",le=\"1024\"}"], HITS as f64);

    // A reload in place retains all values.
    server.rewrite_conf(&setup.text().replace("access_log off;", "access_log off; log_not_found off;"));
    server.reload();
    let reloaded = once(&server, "a reload", |numbers| reloads(numbers).0[0] == 1.0);
    assert_eq!((served(&reloaded, "cache"), hits(&reloaded)), (from_cache as f64, HITS as f64));
    // In a new worker the values start at zero; the cache entries are still available.
    let old = server.workers();
    server.rewrite_conf(&setup.text().replace("worker_processes 2", "worker_processes 1"));
    server.reload();
    let is_over = || (!server.workers().contains(&old[0])).then_some(());
    wait::until("the old worker's end", Deadline::default(), is_over).expect("no request remains");
    let replaced = once(&server, "a replacement", |numbers| reloads(numbers).0[1] == 1.0);
    assert_eq!((served(&replaced, "cache"), hits(&replaced)), (0.0, 0.0));
    let again = get(&server, "/large").len();
    once(&server, "a hit of the new worker", |numbers| {
        served(numbers, "cache") == again as f64 && hits(numbers) == 1.0
    });
}

/// Reads of a file are delayed by the test. They count as in flight during the delay, and their durations include it.
#[test]
fn disk_operations_are_timed_from_submission_to_completion() {
    if !ours_only("metrics") {
        return;
    }
    let conf = "worker_processes 2;
events { engine_fault read delay=500ms; }
http {
    access_log off;
    server {
        listen 127.0.0.1:0;
        root html; sendfile off; aio threads;
        location = /metrics { metrics; }
    }
}
";
    let builder = Server::builder(BINARY).conf(conf);
    let server = builder.file("html/slow", Content::new(1, 20_000)).start();
    let sum = |numbers: &Numbers, start: &str, end: &str| -> f64 {
        let meant = |name: &String| name.starts_with(start) && name.ends_with(end);
        numbers.iter().filter(|(name, _)| meant(name)).map(|(_, number)| number).sum()
    };
    let in_flight = |numbers: &Numbers| sum(numbers, "disk_in_flight{", "}");
    let ended = |numbers: &Numbers| sum(numbers, "disk_operation_seconds_count{", "op=\"read\"}");
    let early =
        |numbers: &Numbers| sum(numbers, "disk_operation_seconds_bucket{", "op=\"read\",le=\"0.262144\"}");
    once(&server, "no operation in flight", |numbers| in_flight(numbers) == 0.0);
    let before = numbers(&server);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| get(&server, "/slow").len())).collect();
        once(&server, "operations in flight", |numbers| in_flight(numbers) >= 1.0);
        let lens: Vec<_> = clients.into_iter().map(|client| client.join().expect("a client")).collect();
        assert!(lens.iter().all(|len| *len > 20_000), "{lens:?}");
    });
    let slow = once(&server, "three slow reads", |numbers| ended(numbers) >= ended(&before) + 3.0);
    assert_eq!(early(&slow), early(&before), "each has taken half a second: {slow:#?}");
    once(&server, "no operation in flight", |numbers| in_flight(numbers) == 0.0);
}

#[test]
fn limit_zones_report_their_usage() {
    if !ours_only("metrics") {
        return;
    }
    let conf = "worker_processes 2; events {}
http {
    access_log off;
    limit_req_zone $arg_k zone=keys:1m rate=1000r/s;
    limit_conn_zone $arg_k zone=open:1m;
    server {
        listen 127.0.0.1:0;
        location / { limit_req zone=keys burst=100 nodelay; root html; }
        location = /metrics { metrics; }
    }
}
";
    let mut server = Server::builder(BINARY).conf(conf).file("html/x", Content::new(1, 10)).start();
    let of = |numbers: &Numbers, zone: &str| {
        (
            numbers[&format!("limit_zone_bytes{{zone=\"{zone}\"}}")],
            numbers[&format!("limit_zone_bytes_max{{zone=\"{zone}\"}}")],
        )
    };
    let size = f64::from(1 << 20);
    assert_eq!(of(&numbers(&server), "keys"), (0.0, size));
    for key in 0..10 {
        assert!(get(&server, &format!("/x?k={key}")).starts_with(b"HTTP/1.1 200"));
    }
    // 128 bytes for each state, as in nginx's documentation.
    let full = numbers(&server);
    assert_eq!((of(&full, "keys"), of(&full, "open")), ((1280.0, size), (0.0, size)));
    server.rewrite_conf(&conf.replace("access_log off;", "access_log off; log_not_found off;"));
    server.reload();
    let reloaded = once(&server, "a reload", |numbers| reloads(numbers).0[0] == 1.0);
    assert_eq!(of(&reloaded, "keys"), (1280.0, size));
}

/// Writes to a full disk fail. A file name that contains a client's value does not become a label.
#[test]
fn lost_log_lines_are_counted_by_target() {
    if !ours_only("metrics") {
        return;
    }
    const EACH: usize = 20;
    let conf = "worker_processes 2; events {}
http {
    server {
        listen 127.0.0.1:0;
        location = /full { access_log /dev/full; return 204; }
        location = /named { access_log logs/none/$arg_name.log; return 204; }
        location = /well { access_log logs/well.log; return 204; }
        location = /metrics { access_log off; metrics; }
    }
}
";
    let mut server = Server::start(BINARY, conf);
    let well = server.path("logs/well.log").display().to_string();
    let lost =
        |numbers: &Numbers, target: &str| numbers[&format!("log_lines_lost_total{{target=\"{target}\"}}")];
    let before = numbers(&server);
    assert_eq!((lost(&before, "/dev/full"), lost(&before, &well)), (0.0, 0.0));
    std::thread::scope(|scope| {
        for target in ["/full", "/well", "/named?name=chosen"] {
            scope
                .spawn(|| (0..EACH).for_each(|_| assert!(get(&server, target).starts_with(b"HTTP/1.1 204"))));
        }
    });
    let each = EACH as f64;
    let after = once(&server, "lost lines", |numbers| {
        lost(numbers, "/dev/full") == each && lost(numbers, "names with variables") == each
    });
    assert_eq!(lost(&after, &well), 0.0);
    assert!(!after.keys().any(|name| name.contains("chosen")), "{after:#?}");
    server.rewrite_conf(&conf.replace("http {", "http { log_not_found off;"));
    server.reload();
    let reloaded = once(&server, "a reload", |numbers| reloads(numbers).0[0] == 1.0);
    assert_eq!(lost(&reloaded, "/dev/full"), each, "it is the same process");
}
