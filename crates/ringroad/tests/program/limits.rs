//! System limits: raised where permitted, reported where they are too low.

use crate::control::{BINARY, ask, site, wait_for_answer};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use testkit::{Client, Content, Deadline, Origin, Reply, Server, Setup};

/// Returns the soft and hard limit of a process, as proc(5) shows them.
pub(crate) fn limit(pid: i32, name: &str) -> (String, String) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("procfs");
    let row = text.lines().find_map(|line| line.strip_prefix(name)).expect("a row").to_owned();
    let mut values = row.split_whitespace().map(str::to_owned);
    (values.next().expect("soft"), values.next().expect("hard"))
}

fn own_limit(name: &str) -> (String, String) {
    limit(i32::try_from(std::process::id()).expect("a pid"), name)
}

#[test]
fn the_worker_raises_its_soft_limits_to_the_hard_limits() {
    let builder = Server::builder(BINARY).conf(&site("", "here"));
    let server = builder.shell("ulimit -S -n 256 && ulimit -S -l 64").start();
    assert_eq!(ask(server.addr(0)), "here");
    let worker = server.worker();
    let (soft, hard) = limit(worker, "Max open files");
    assert_eq!((&soft, &hard), (&own_limit("Max open files").1, &soft));
    let (soft, hard) = limit(worker, "Max locked memory");
    // Root with CAP_SYS_RESOURCE removes the limit.
    assert_eq!(soft, hard);
    assert!(soft == "unlimited" || soft == own_limit("Max locked memory").1, "{soft}");
}

#[test]
fn connections_above_the_descriptor_limit_cause_a_warning_at_start() {
    let conf = |files: u32| {
        site(&format!("worker_processes 4; worker_rlimit_nofile {files};"), "here")
            .replace("events {}", "events { worker_connections 60; }")
    };
    let warning = "[warn] 60 worker_connections exceed open file resource limit: 50 for each of 4 threads";
    let (status, stderr) = Server::builder(BINARY).conf(&conf(50)).arg("-t").run_to_end();
    assert!(status.success() && stderr.contains(warning), "{stderr}");
    let (status, stderr) = Server::builder(BINARY).conf(&conf(60)).arg("-t").run_to_end();
    assert!(status.success() && !stderr.contains("worker_connections"), "{stderr}");
    // Without the directive, the hard limit applies.
    let conf = conf(50).replace("worker_rlimit_nofile 50;", "");
    let builder = Server::builder(BINARY).conf(&conf).arg("-t");
    let (status, stderr) = builder.shell("ulimit -S -n 100 && ulimit -H -n 200").run_to_end();
    assert!(status.success() && stderr.contains(warning), "{stderr}");
}

#[test]
fn a_limit_above_the_permitted_maximum_becomes_the_hard_limit() {
    // More than fs.nr_open permits to any user.
    let conf = site("worker_rlimit_nofile 4000000000;", "here");
    let conf = conf.replace("events {}", "events { worker_connections 300; }");
    let builder = Server::builder(BINARY).conf(&conf);
    let server = builder.shell("ulimit -S -n 128 && ulimit -H -n 256").start();
    assert_eq!(ask(server.addr(0)), "here");
    assert_eq!(limit(server.worker(), "Max open files"), ("256".to_owned(), "256".to_owned()));
    let log = server.error_log();
    for line in [
        "[alert] setrlimit(RLIMIT_NOFILE, 4000000000) failed (1: Operation not permitted)",
        "[warn] 300 worker_connections exceed open file resource limit: 256 for each of 1 threads",
    ] {
        let (level, message) = line.split_once(' ').expect("a level");
        assert!(log.lines().any(|line| line.contains(level) && line.contains(message)), "{line}\n{log}");
    }
}

#[test]
fn a_cpu_that_cannot_be_used_is_reported_and_does_not_prevent_the_start() {
    let mask = format!("1{}", "0".repeat(1023));
    let server = Server::start(BINARY, &site(&format!("worker_cpu_affinity {mask};"), "here"));
    assert_eq!(ask(server.addr(0)), "here");
    let line = server.wait_for_log("sched_setaffinity() failed", Deadline::default());
    assert!(line.contains("[alert]") && line.contains("(22: Invalid argument)"), "{line}");
    assert!(server.quit_and_wait().success());
}

/// Sets the soft limit of a process.
fn limit_descriptors(pid: i32, soft: u64) {
    let maximum = limit(pid, "Max open files").1.parse().ok();
    let pid = Pid::from_raw(pid).expect("a process");
    let new = Rlimit { current: Some(soft), maximum };
    prlimit(Some(pid), Resource::Nofile, new).expect("both processes have the same user");
}

#[test]
fn a_worker_without_free_descriptors_continues_with_its_logs_and_configuration() {
    let conf = |text: &str| {
        // The worker has the user of this test: root, or a user for which the directive has no effect.
        site("user root; worker_processes 8;", text).replace("events {}", "events { use epoll; }")
    };
    let mut server = Server::start(BINARY, &conf("old"));
    let worker = server.worker();
    let previous: u64 = limit(worker, "Max open files").0.parse().expect("a number");
    let is_free = |number: &u64| std::fs::symlink_metadata(format!("/proc/{worker}/fd/{number}")).is_err();
    let leave = |count| limit_descriptors(worker, (0..).filter(is_free).nth(count).expect("there is no end"));
    leave(0);
    server.signal(Signal::USR1);
    let refused = "the logs are not reopened: the worker process has too many open files";
    let line = server.wait_for_log(refused, Deadline::default());
    assert!(line.contains("[alert]"), "{line}");
    server.rewrite_conf(&conf("new"));
    server.reload();
    server.wait_for_log_count("the worker process has too many open files", 2, Deadline::default());
    // Six descriptors suffice for the message, but not for the log files of eight threads. On a busy machine a thread may have
    // a further descriptor open for a moment.
    let is_refused_by_a_thread = |count| {
        let refusals = |server: &Server| server.error_log().matches("[emerg]").count();
        let before = refusals(&server);
        leave(count);
        server.reload();
        let is_refused = || (refusals(&server) > before).then_some(());
        testkit::wait::until("a refused reload", Deadline::default(), is_refused)
            .expect("too few descriptors");
        server.error_log().contains("a descriptor could not be duplicated for a thread")
    };
    assert!((6..12).any(is_refused_by_a_thread), "{}", server.error_log());
    limit_descriptors(worker, previous);
    assert_eq!(ask(server.addr(0)), "old");
    server.reload();
    wait_for_answer(&server, "new");
    assert_eq!(server.workers(), [worker]);
    assert!(server.quit_and_wait().success());
}

/// Some threads have set up io_uring when locked memory runs out for the next one, and all threads start again without io_uring.
/// The cache belongs to the process, and must survive the second start of the threads.
#[test]
fn the_cache_stores_after_a_fallback_from_io_uring() {
    let conf = "worker_processes 16; error_log logs/error.log info; events {}
        http { access_log off; proxy_cache_path @CACHE@ keys_zone=z:1m;
          server { listen 127.0.0.1:0; proxy_cache z; proxy_cache_valid 1h;
            add_header X-Cache $upstream_cache_status; location / { proxy_pass http://@ORIGIN@; } } }";
    // The kernel decides how many rings fit into a limit.
    for kib in [500, 1000, 2000, 4000] {
        let origin = Origin::start(|_| Reply::text("kept"));
        let setup = Setup::new(conf).origin(&origin);
        // If a limit below this one applies, that one is used.
        let limit = format!("ulimit -l {kib} 2>/dev/null || true");
        let server = setup.builder(BINARY).shell(&limit).start();
        let is_hit = || {
            let response = Client::connect(server.addr(0)).get("/");
            (response.field("X-Cache") == Some("HIT")).then_some(())
        };
        testkit::wait::until("a hit", Deadline::default(), is_hit)
            .unwrap_or_else(|late| panic!("{kib} KiB: {late}\n{}", server.error_log()));
        assert_eq!(origin.stats().requests, 1, "{kib} KiB\n{}", server.error_log());
        assert!(server.quit_and_wait().success(), "{kib} KiB");
    }
}

/// Starts a worker without root privileges that may lock this many KiB; returns `None` if the limit has no effect.
fn with_locked_memory(kib: u32, threads: u32, files: u32) -> Option<Server> {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let mask = text.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a row").trim().to_owned();
    // CAP_SYS_RESOURCE, capabilities(7).
    if u64::from_str_radix(&mask, 16).expect("a number") & 1 << 24 != 0 {
        testkit::skip("this user may exceed limits");
        return None;
    }
    let conf = format!(
        "worker_processes {threads}; events {{}} http {{ access_log off; \
         server {{ listen 127.0.0.1:0; root html; directio 512; }} }}"
    );
    let mut builder = Server::builder(BINARY).conf(&conf).shell(&format!("ulimit -l {kib}"));
    for file in 0..files {
        builder = builder.file(&format!("html/{file}.bin"), Content::new(u64::from(file), 100_000));
    }
    Some(builder.start())
}

#[test]
fn unregistrable_buffers_are_reported_once_with_the_remedy() {
    let Some(server) = with_locked_memory(700, 2, 8) else { return };
    if server.error_log().contains("using the \"epoll\"") {
        return testkit::skip("io_uring is not available");
    }
    for file in 0..8 {
        let response = Client::connect(server.addr(0)).get(&format!("/{file}.bin"));
        Content::new(file, 100_000).assert_body(&response.body);
    }
    let line = server.wait_for_log("[warn]", Deadline::default());
    assert!(line.contains("direct reads continue, but only "), "{line}");
    assert!(line.contains("remedy: raise the limit on locked memory (LimitMEMLOCK=, ulimit -l)"), "{line}");
}

#[test]
fn threads_fall_back_if_only_the_probe_could_set_up_io_uring() {
    // Enough for one small ring, but not for those of sixteen threads.
    let Some(server) = with_locked_memory(1000, 16, 1) else { return };
    Content::new(0, 100_000).assert_body(&Client::connect(server.addr(0)).get("/0.bin").body);
    let line = server.wait_for_log("[warn]", Deadline::default());
    assert!(line.contains("io_uring cannot be used, likely cause: "), "{line}");
    assert!(line.contains("remedy: "), "{line}");
    assert!(server.quit_and_wait().success());
}
