//! `ringroad bench` where it starts servers: what it starts, what it leaves behind, and what wrong use gets.
//!
//! Nothing here looks at a figure. Peers are used where they are installed and are not needed.

use testkit::program;

const RINGROAD: &str = env!("CARGO_BIN_EXE_ringroad");

/// Runs it, and expects one line, status 2 and nothing else.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let finished = program::run(RINGROAD, args);
    assert_eq!(finished.status.code(), Some(2), "{args:?}: {}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{args:?}: {}", finished.stderr);
    assert_eq!(finished.stdout, "", "{args:?}");
    finished.stderr
}

#[test]
fn enter_becomes_the_program() {
    let parent = std::process::id().to_string();
    let finished = program::run(
        RINGROAD,
        &[
            "bench",
            "enter",
            "--parent",
            &parent,
            "--cpu",
            "0",
            "--",
            "/bin/sh",
            "-c",
            "echo $0 $1; grep Cpus_allowed_list /proc/self/status; grep SigBlk /proc/self/status",
            "-a",
            "b",
        ],
    );
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines, ["-a b", "Cpus_allowed_list:\t0", "SigBlk:\t0000000000000000"]);
}

#[test]
fn enter_starts_nothing_for_a_parent_that_is_gone() {
    let said = refused(&["bench", "enter", "--parent", "1", "--", "/bin/echo", "started"]);
    assert!(said.contains("interrupted"), "{said}");
}

#[test]
fn enter_says_what_it_could_not_do() {
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
fn a_peer_that_is_named_wrongly_is_refused() {
    let said = refused(&["bench", "all", "--instant", "--peer", "nginx=/nowhere/nginx"]);
    assert!(said.contains("/nowhere/nginx: no such program"), "{said}");
    let said = refused(&["bench", "all", "--instant", "--peer", "apache=/bin/true"]);
    assert!(said.contains("known are nginx, lighttpd, fio, wrk"), "{said}");
}
