//! `ringroad bench` scenarios that start servers: the started processes, remaining files and processes, and the
//! messages for wrong use.
//!
//! No test compares measured values. Peers are used if they are installed, but are not required.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use testkit::Deadline;
use testkit::program::{self, Program};

use crate::control::BINARY;
use crate::runs::{Bench, check_tables, groups_of, list, refused};

#[test]
fn enter_executes_the_program() {
    let parent = std::process::id().to_string();
    let script = "echo $0 $1; grep Cpus_allowed_list /proc/self/status; grep SigBlk /proc/self/status";
    let enter = ["bench", "enter", "--parent", &parent, "--cpu", "0", "--"];
    let finished = program::run(BINARY, &[&enter[..], &["/bin/sh", "-c", script, "-a", "b"]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines, ["-a b", "Cpus_allowed_list:\t0", "SigBlk:\t0000000000000000"]);
}

#[test]
fn enter_starts_nothing_after_its_parent_has_exited() {
    let said = refused(&["bench", "enter", "--parent", "1", "--", "/bin/echo", "started"]);
    assert!(said.contains("interrupted"), "{said}");
}

#[test]
fn enter_reports_the_operation_that_failed() {
    let parent = std::process::id().to_string();
    let enter = |more: &[&str]| refused(&[&["bench", "enter", "--parent", &parent], more].concat());
    let said = enter(&["--", "/nowhere/nginx"]);
    assert!(said.contains("cannot execute /nowhere/nginx: No such file"), "{said}");
    let said = enter(&["--group", "/nowhere", "--", "/bin/true"]);
    assert!(said.contains("cannot join the control group /nowhere/cgroup.procs"), "{said}");
    let said = enter(&["--cpu", "1023", "--", "/bin/true"]);
    assert!(said.contains("sched_setaffinity"), "{said}");
}

#[test]
fn an_invalid_peer_name_is_refused() {
    let said = refused(&["bench", "all", "--instant", "--peer", "nginx=/nowhere/nginx"]);
    assert!(said.contains("/nowhere/nginx: no such program"), "{said}");
    let said = refused(&["bench", "all", "--instant", "--peer", "apache=/bin/true"]);
    assert!(said.contains("known peers are nginx, lighttpd, h2o, haproxy, fio, strace, h2load"), "{said}");
}

#[test]
fn an_invalid_program_to_measure_is_refused() {
    let said = refused(&["bench", "all", "--instant", "--ringroad", "/nowhere/ringroad"]);
    assert!(said.contains("/nowhere/ringroad: no such program"), "{said}");
}

/// Every table cell has a number, a text or a reason, and the report has findings and single runs.
#[track_caller]
fn assert_complete(report: &Value, scenario: &str) {
    let section = &report["sections"][0];
    assert_eq!(section["scenario"], scenario);
    assert_eq!(section["failed"], Value::Null);
    check_tables(section);
    for part in ["rankings", "configurations"] {
        assert!(!list(&section[part]).is_empty(), "{part}");
    }
    let is_ours = |name: &Value| {
        name.as_str().is_some_and(|name| name.starts_with("io_uring") || name.starts_with("epoll"))
    };
    for run in list(&section["runs"]) {
        // An instant run may be too short for a busy machine.
        let reason = run["labels"]["nothing"].as_str().unwrap_or_default();
        let is_excused = reason.is_empty() || reason.contains("no response from");
        assert!(is_excused || !is_ours(&run["labels"]["server"]), "{run}");
    }
    for fact in list(&section["skipped"]) {
        let reason = fact["value"].as_str().unwrap_or_default();
        let has_failed = reason.contains("ended with") || reason.contains("did not respond");
        assert!(!has_failed || !is_ours(&fact["name"]), "{fact}");
    }
}

/// Checks the rows of proxied responses and of uploads: the origin responds to an upload with 9 bytes, after its
/// complete body.
#[track_caller]
fn assert_proxied_requests(report: &Value) {
    let section = &report["sections"][0];
    let tables = list(&section["tables"]);
    for (case, response_bytes, servers) in [
        ("response of 1k", 1024.0, 5),
        ("response of 10k", 10240.0, 5),
        ("response of 100k", 102400.0, 9),
        ("response of 1m", 1048576.0, 9),
        ("hit of a cache of 1k", 1024.0, 8),
        ("hit of a cache of 10k", 10240.0, 8),
        ("hit of a cache of 100k", 102400.0, 6),
        ("upload of 16k", 9.0, 5),
        ("upload of 256k", 9.0, 6),
    ] {
        let title = format!("Proxied, {case}, ");
        let table = tables
            .iter()
            .find(|table| table["title"].as_str().is_some_and(|found| found.starts_with(&title)))
            .unwrap_or_else(|| panic!("{case}: {tables:?}"));
        let rows = list(&table["rows"]);
        let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names[..3], ["io_uring", "epoll", "nginx"], "{case}");
        assert_eq!(names.len(), servers, "{case}: {names:?}");
        let epoll = &rows[1]["cells"];
        assert!(epoll[0]["figure"].is_object() && epoll[3]["figure"].is_object(), "{case}: {epoll}");
        let runs = list(&section["runs"]);
        let is_epoll = |run: &&Value| run["labels"]["proxied"] == case && run["labels"]["server"] == "epoll";
        let run = runs.iter().find(is_epoll).unwrap_or_else(|| panic!("{case}: {runs:?}"));
        let figure = |name: &str| run["figures"][name].as_f64().expect("a figure");
        assert_eq!(figure("body_bytes"), figure("requests") * response_bytes, "{run}");
        assert_eq!(figure("errors"), 0.0, "{run}");
    }
}

#[test]
fn http_runs_with_the_installed_peers() {
    let bench = Bench::new("bench-http");
    let report = bench.report(&["http", "--instant", "--workers", "1,2", "--connections", "1,4"]);
    assert_complete(&report, "http");
    let facts = list(&report["machine"]);
    for name in [
        "processor",
        "kernel",
        "file system",
        "device",
        "mitigations",
        "limits",
        "congestion control",
        "engines",
    ] {
        assert!(facts.iter().any(|fact| fact["name"] == name), "{name}");
    }
    let tables = list(&report["sections"][0]["tables"]);
    let warm: Vec<_> = tables
        .iter()
        .filter(|table| table["title"].as_str().is_some_and(|title| title.starts_with("A file of ")))
        .collect();
    assert_eq!(warm.len(), 5, "four sizes, and the smallest over short connections");
    for table in warm {
        assert!(table["rows"][1]["cells"][0]["figure"].is_object(), "ours on epoll, everywhere: {table}");
    }
    let rows = tables[4]["rows"].as_array().expect("rows");
    for way in ["epoll", "io_uring", "io_uring, own listeners"] {
        let start = format!("{way}, 4 connections");
        assert!(
            rows.iter().any(|row| row["name"].as_str().is_some_and(|name| name.starts_with(&start))),
            "{way}"
        );
    }
    assert_proxied_requests(&report);
}

/// Runs a scenario with `--instant` and without peers; the report names the peers that were left out.
fn runs_without_peers(scenario: &str, more: &[&str]) {
    let without =
        ["--peer", "nginx=none", "--peer", "lighttpd=none", "--peer", "h2o=none", "--peer", "haproxy=none"];
    let bench = Bench::new("bench-alone");
    let report = bench.report(&[&[scenario, "--instant"], more, &without].concat());
    assert_complete(&report, scenario);
    let skipped = list(&report["sections"][0]["skipped"]);
    let is_nginx = |fact: &&Value| fact["name"].as_str().is_some_and(|name| name.starts_with("nginx"));
    let reason = skipped.iter().find(is_nginx).and_then(|fact| fact["value"].as_str());
    assert!(reason.is_some_and(|reason| !reason.is_empty()), "{scenario}: {skipped:?}");
    let peers = list(&report["peers"]);
    assert!(
        peers.iter().any(|fact| fact["name"] == "nginx" && fact["value"] == "nginx is excluded by --peer"),
        "{peers:?}"
    );
}

/// Runs a scenario with `--instant` and the installed peers.
fn run_with_installed_peers(scenario: &str, more: &[&str]) {
    let report = Bench::new("bench-files").report(&[&[scenario, "--instant"], more].concat());
    assert_complete(&report, scenario);
}

#[test]
fn http_runs_without_peers() {
    runs_without_peers("http", &["--connections", "2"]);
}

#[test]
fn responses_over_a_wire_are_measured_or_the_reason_is_shown() {
    let report = Bench::new("bench-wire").report(&["wire", "--instant"]);
    let section = &report["sections"][0];
    let rows = list(&section["tables"][1]["rows"]);
    let (cell, skipped) = (&rows[0]["cells"][0], section["skipped"].to_string());
    let is_measured = cell["figure"].is_object() || cell["broken"].to_string().contains("no response from");
    assert!(is_measured || skipped.contains("needs root") || skipped.contains("rps_cpus"), "{section}");
    let devices = std::fs::read_to_string("/proc/net/dev").expect("devices");
    assert!(!devices.contains("ringroad-"), "{devices}");
}

#[test]
fn crowd_runs_without_peers() {
    runs_without_peers("crowd", &[]);
}

#[test]
fn fill_runs_without_peers() {
    runs_without_peers("fill", &[]);
}

#[test]
fn cache_runs_without_peers() {
    runs_without_peers("cache", &[]);
}

#[test]
fn isolate_runs_without_peers() {
    runs_without_peers("isolate", &[]);
}

#[test]
fn large_runs_without_peers() {
    runs_without_peers("large", &["--clients", "1,2"]);
}

#[test]
fn stream_runs_without_peers() {
    runs_without_peers("stream", &["--streams", "2"]);
}

#[test]
fn stream_proxy_runs_without_peers() {
    runs_without_peers("stream-proxy", &[]);
}

#[test]
fn delay_runs_without_peers() {
    runs_without_peers("delay", &[]);
}

#[test]
fn tls_runs_without_peers() {
    runs_without_peers("tls", &[]);
}

#[test]
fn crowd_runs_with_the_installed_peers() {
    run_with_installed_peers("crowd", &[]);
}

#[test]
fn fill_runs_with_the_installed_peers() {
    run_with_installed_peers("fill", &["--connections", "8"]);
}

#[test]
fn isolate_runs_with_the_installed_peers() {
    run_with_installed_peers("isolate", &["--stuck", "20"]);
}

#[test]
fn large_runs_with_the_installed_peers() {
    run_with_installed_peers("large", &["--clients", "1,2"]);
}

#[test]
fn tls_runs_with_the_installed_peers() {
    run_with_installed_peers("tls", &[]);
}

/// The peers of Debian have no QUIC: their rows have the reason.
#[test]
fn requests_over_http3_are_measured() {
    let report = Bench::new("bench-h3").report(&["h3", "--instant"]);
    let section = &report["sections"][0];
    let tables = list(&section["tables"]);
    assert_eq!(tables.len(), 12, "{}", section["skipped"]);
    for table in tables {
        for row in &list(&table["rows"])[..2] {
            let cell = &list(&row["cells"])[0];
            assert!(cell["figure"].is_object(), "{}: {row}", table["title"]);
        }
    }
    for part in ["plots", "findings", "rankings"] {
        assert!(!list(&section[part]).is_empty(), "{part}");
    }
}

#[test]
fn requests_over_http2_are_measured_or_the_missing_generator_is_named() {
    for (scenario, tables) in [("h2", 5), ("grpc", 3)] {
        let bench = Bench::new("bench-h2");
        let report = bench.report(&[scenario, "--instant", "--peer", "nginx=none", "--peer", "h2o=none"]);
        let section = &report["sections"][0];
        let skipped = list(&section["skipped"]);
        let is_missing = |fact: &Value| {
            fact["value"].as_str().is_some_and(|reason| reason.starts_with("h2load is not installed"))
        };
        if skipped.iter().any(is_missing) {
            println!("skipped: {skipped:?}");
            continue;
        }
        let found = list(&section["tables"]);
        assert_eq!(found.len(), tables, "{scenario}: {skipped:?}");
        for table in found {
            assert!(table["rows"][0]["cells"][1]["figure"].is_object(), "{scenario}: {table}");
        }
        for part in ["plots", "findings", "rankings"] {
            assert!(!section[part].as_array().expect(part).is_empty(), "{scenario}: {part}");
        }
    }
}

#[test]
fn rows_without_a_load_generator_have_its_reason() {
    let report = Bench::new("bench-h2load").report(&["h2", "--instant", "--peer", "h2load=none"]);
    let row = &report["sections"][0]["tables"][0]["rows"][0];
    assert_eq!(row["cells"][0]["missing"], "h2load is excluded by --peer", "{row}");
}

#[test]
fn a_port_in_use_is_refused() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let said = Bench::new("bench-port").refused(&["http", "--instant", "--host-network", "--port", &port]);
    assert!(said.contains(&format!("listening on 127.0.0.1:{port}: ")), "{said}");
}

#[test]
fn a_peer_that_exits_or_never_responds_has_its_reason_in_the_report() {
    let bench = Bench::new("bench-peer");
    let reason = |path: &str| {
        let peer = format!("nginx={path}");
        let report = bench.report(&["stream", "--instant", "--streams", "2", "--peer", &peer]);
        assert_complete(&report, "stream");
        let row = &report["sections"][0]["tables"][0]["rows"][2];
        assert_eq!(row["name"], "proxied: nginx");
        row["cells"][0]["missing"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
    };
    let said = reason("/bin/false");
    assert!(said.starts_with("nginx ended with exit status: 1"), "{said}");
    // The script's child process would outlive it.
    let script = bench.dir.path().join("silent.sh");
    // A number unique to this run: others may be running.
    let time = 1_000_000 + std::process::id();
    let text = format!("#!/bin/sh\ncase $1 in -V) ;; *) sleep {time} & sleep {time};; esac\n");
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let said = reason(&script.display().to_string());
    assert!(said.contains("did not respond within"), "{said}");
    let words = format!("sleep\0{time}\0");
    let sleeping = std::fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == words.as_bytes())
    });
    assert_eq!(sleeping.count(), 0);
}

#[test]
fn an_unusable_directory_is_refused() {
    // An error for root too, although file permissions never deny access to root.
    let said = refused(&["bench", "nop", "--instant", "--out", "/proc/none"]);
    assert!(said.contains("cannot write the report to /proc/none"), "{said}");
    let out = std::env::temp_dir().join("ringroad-bench-none").display().to_string();
    let said = refused(&["bench", "http", "--instant", "--work", "/proc", "--out", &out]);
    assert!(said.contains("cannot create the directory"), "{said}");
    let said = refused(&["bench", "large", "--megabytes", "0"]);
    assert!(said.contains("--megabytes"), "{said}");
}

/// Starts a run that would take minutes, and waits until its servers are under load.
fn long_run(bench: &Bench, scenario: &str) -> Program {
    let words = bench.command_line(&[scenario, "--seconds", "60"]);
    let mut program = Program::start(BINARY, &words.iter().map(String::as_str).collect::<Vec<_>>());
    program.wait_for_output(&format!("{scenario}: "), Deadline::default());
    let started = testkit::wait::until("a server", Deadline::default(), || {
        (!bench.processes().is_empty()).then_some(())
    });
    started.expect("servers are started");
    program
}

#[test]
fn a_signal_ends_a_run_cleanly_and_a_second_one_is_ignored() {
    for scenario in ["http", "isolate"] {
        let bench = Bench::new("bench-signal");
        let mut program = long_run(&bench, scenario);
        program.signal(Signal::TERM);
        program.signal(Signal::INT);
        let status = program.wait_until_ended(Deadline::default());
        assert_eq!(status.code(), Some(2), "{}", program.stderr());
        assert!(
            program.stderr().contains("interrupted; programs of the run are stopped"),
            "{}",
            program.stderr()
        );
        bench.assert_no_process_left(program.pid());
    }
}

#[test]
fn servers_exit_when_their_run_is_killed() {
    let bench = Bench::new("bench-killed");
    let mut program = long_run(&bench, "http");
    program.signal(Signal::KILL);
    program.wait_until_ended(Deadline::default());
    let gone = testkit::wait::until("the end of servers", Deadline::default(), || {
        bench.processes().is_empty().then_some(())
    });
    assert!(gone.is_ok(), "{:?}", bench.processes());
    let pid = program.pid();
    // The run is a zombie until then.
    drop(program);
    // The next run of the same kind removes the cgroups that a killed run has left behind.
    Bench::new("bench-after").report(&["http", "--instant", "--connections", "1"]);
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
}
