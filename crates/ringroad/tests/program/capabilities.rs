//! Capabilities of the master, as proc(5) shows them: those that the configuration does not need are dropped at the start.

use crate::control::{BINARY, ask, site, wait_for_answer};
use testkit::{Deadline, Server};

const SYS_NICE: u64 = 1 << 23;

/// The capabilities that the master keeps for every configuration: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP,
/// NET_BIND_SERVICE, IPC_LOCK, SYS_RESOURCE; DAC_READ_SEARCH only without DAC_OVERRIDE.
const KEPT: u64 =
    1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 14 | 1 << 24;

/// Returns the value of a row of `/proc/PID/status`.
fn status(pid: i32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("procfs");
    let row = text.lines().find_map(|line| line.strip_prefix(name)).expect("a row");
    u64::from_str_radix(row.trim_start_matches(':').trim(), 16).expect("a number")
}

/// Returns the sets of capabilities: inheritable, permitted, effective, bounding, ambient.
fn sets(pid: i32) -> [u64; 5] {
    ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|name| status(pid, name))
}

#[test]
fn the_master_has_only_the_capabilities_that_its_configuration_needs() {
    let own = sets(i32::try_from(std::process::id()).expect("a pid"));
    let mut server = Server::builder(BINARY).conf(&site("", "first")).start();
    assert_eq!(ask(server.addr(0)), "first");
    for (index, found) in sets(server.pid()).into_iter().enumerate() {
        // Without SETPCAP the bounding set cannot be changed.
        if index != 3 || own[2] & 1 << 8 != 0 {
            assert_eq!(found & !KEPT, 0, "set {index}: {found:x}");
        }
        assert_eq!(found, found & own[index], "set {index}: {found:x}");
    }
    assert_eq!(status(server.pid(), "NoNewPrivs"), 1);
    // What every configuration needs still works: another worker of another user.
    server.rewrite_conf(&site("worker_processes 2;", "second"));
    server.reload();
    wait_for_answer(&server, "second");
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

#[test]
fn a_reload_that_needs_a_dropped_capability_is_refused_with_the_directive() {
    let own = sets(i32::try_from(std::process::id()).expect("a pid"));
    if own[2] & SYS_NICE == 0 {
        return testkit::skip("this user may not raise priorities");
    }
    let mut server = Server::builder(BINARY).conf(&site("", "first")).start();
    server.rewrite_conf(&site("worker_priority -5;", "second"));
    server.reload();
    let line = server.wait_for_log("CAP_SYS_NICE", Deadline::default());
    assert!(line.contains("[emerg]") && line.contains("restart the server to use it in "), "{line}");
    assert_eq!(ask(server.addr(0)), "first");
    drop(server);
    let server = Server::builder(BINARY).conf(&site("worker_priority -5;", "third")).start();
    assert_eq!(ask(server.addr(0)), "third");
    assert_ne!(sets(server.pid())[1] & SYS_NICE, 0);
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

#[test]
fn a_written_sandbox_off_keeps_the_capabilities_of_the_master() {
    let own = i32::try_from(std::process::id()).expect("a pid");
    let server = Server::builder(BINARY).conf(&site("sandbox off;", "first")).start();
    assert_eq!(ask(server.addr(0)), "first");
    assert_eq!(sets(server.pid()), sets(own));
    assert_eq!(status(server.pid(), "NoNewPrivs"), status(own, "NoNewPrivs"));
}
