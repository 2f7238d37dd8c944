//! The selected engine, its messages, and the behaviour if the kernel refuses io_uring.

use crate::control;
use std::process::{Command, Output};

use crate::control::{BINARY, ask, site};
use testkit::program::run;
use testkit::seccomp::{Call, forbid};
use testkit::{Client, Content, Deadline, ListenAddr, Program, Server, TempDir};

/// The probe's messages under the seccomp filter: the cause and the remedy.
const CAUSE: &str = "a seccomp filter of this process";
const REMEDY: &str =
    "remedy: allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile";

/// Returns whether the system forbids io_uring already, which is then the reported cause.
fn is_forbidden_by_sysctl() -> bool {
    let value = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let forbids = !matches!(value.trim(), "" | "0");
    if forbids {
        testkit::skip(format_args!("kernel.io_uring_disabled is {}", value.trim()));
    }
    forbids
}

#[test]
fn the_default_falls_back_to_epoll_and_logs_the_cause() {
    if is_forbidden_by_sysctl() {
        return;
    }
    let body = Content::new(3, 300_000);
    let conf = "worker_processes 2; events {} http { access_log off; server { listen 127.0.0.1:0; root html; \
                location /direct/ { alias html/; directio 512; } location /on/ { alias html/; aio on; } } }";
    let start = || Server::builder(BINARY).conf(conf).file("html/a.bin", body).start();
    let Some(server) = forbid(Call::IoUringSetup, start) else { return };
    for path in ["/a.bin", "/direct/a.bin", "/on/a.bin"] {
        body.assert_body(&Client::connect(server.addr(0)).get(path).body);
    }
    let log = server.error_log();
    assert!(log.contains("[notice]") && log.contains(": using the \"epoll\" event method\n"), "{log}");
    let warning = log.lines().find(|line| line.contains("[warn]")).expect("the reason").to_owned();
    assert!(warning.contains("io_uring cannot be used, likely cause: io_uring_setup: "), "{warning}");
    assert!(warning.contains(CAUSE) && warning.contains(REMEDY), "{warning}");
    assert!(
        warning.contains("; used instead: epoll for the network, and for files without \"aio\" threads"),
        "{warning}"
    );
    assert!(server.quit_and_wait().success());
}

#[test]
fn a_server_configured_for_io_uring_refuses_to_start_without_it() {
    if is_forbidden_by_sysctl() {
        return;
    }
    let with = |main: &str| site(main, "here").replace("events {}", "events { use io_uring; }");
    for main in ["", "master_process off;", "daemon on;"] {
        let builder = Server::builder(BINARY).conf(&with(main));
        let Some((status, stderr)) = forbid(Call::IoUringSetup, || builder.run_to_end()) else { return };
        assert_eq!(status.code(), Some(1), "{main} {stderr}");
        let line = stderr.lines().find(|line| line.contains("[emerg]")).expect("the reason");
        assert!(
            line.starts_with("ringroad: [emerg] \"use io_uring\": likely cause: io_uring_setup: "),
            "{line}"
        );
        assert!(line.contains(CAUSE) && line.contains(REMEDY), "{line}");
    }
    let conf = with("");
    // The configuration may be tested in another environment than the server's: this is a warning.
    let tested = forbid(Call::IoUringSetup, || Server::builder(BINARY).conf(&conf).arg("-t").run_to_end());
    let Some((status, stderr)) = tested else { return };
    assert!(status.success() && stderr.contains("test is successful"), "{stderr}");
    let line = stderr.lines().find(|line| line.contains("[warn]")).expect("the warning");
    assert!(line.contains("\"use io_uring\"") && line.contains(REMEDY), "{line}");
    // A configuration that does not use io_uring gets no message about it.
    for method in ["events {}", "events { use epoll; }"] {
        let conf = site("", "here").replace("events {}", method);
        let tested =
            forbid(Call::IoUringSetup, || Server::builder(BINARY).conf(&conf).arg("-t").run_to_end());
        let Some((status, stderr)) = tested else { return };
        assert!(status.success() && !stderr.contains("io_uring"), "{stderr}");
    }
}

#[test]
fn configured_epoll_causes_no_warning_without_io_uring() {
    let conf = site("", "here").replace("events {}", "events { use epoll; }");
    let Some(server) = forbid(Call::IoUringSetup, || Server::start(BINARY, &conf)) else { return };
    assert_eq!(ask(server.addr(0)), "here");
    assert!(!server.error_log().contains("[warn]"), "{}", server.error_log());
}

#[test]
fn serve_works_without_io_uring() {
    let dir = TempDir::new("folder");
    dir.write("a.txt", "served");
    let folder = dir.path().display().to_string();
    let start = || Program::start(BINARY, &["serve", &folder, "--listen", "127.0.0.1:0"]);
    let Some(mut program) = forbid(Call::IoUringSetup, start) else { return };
    let line = program.wait_for_output("http://", Deadline::default());
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let address = address.and_then(|address| address.parse().ok()).expect("a URL alone on its line");
    assert_eq!(Client::connect(&ListenAddr::Tcp(address)).get("/a.txt").text(), "served");
    assert!(program.stderr().contains("io_uring cannot be used"), "{}", program.stderr());
}

#[test]
fn a_reload_to_unavailable_io_uring_changes_nothing() {
    let conf = site("", "old");
    let Some(mut server) = forbid(Call::IoUringSetup, || Server::start(BINARY, &conf)) else { return };
    server.rewrite_conf(&site("", "new").replace("events {}", "events { use io_uring; }"));
    server.reload();
    let line = server.wait_for_log("\"use io_uring\": likely cause: ", Deadline::default());
    assert!(line.contains("[emerg]"), "{line}");
    server.wait_for_log("the new configuration was not applied", Deadline::default());
    assert_eq!(ask(server.addr(0)), "old");
    server.rewrite_conf(&site("", "newer"));
    server.reload();
    control::wait_for_answer(&server, "newer");
}

#[test]
fn the_probe_reports_the_system_call_filter() {
    let probe = |args: &[&str]| forbid(Call::IoUringSetup, || run(BINARY, args));
    if is_forbidden_by_sysctl() {
        return;
    }
    let (Some(table), Some(json)) = (probe(&["engines"]), probe(&["engines", "--json"])) else { return };
    assert!(table.status.success() && json.status.success());
    let row = table.stdout.lines().find(|line| line.starts_with("io_uring  ")).expect("a row for the ring");
    assert!(row.contains("missing") && row.contains(CAUSE) && row.contains(REMEDY), "{row}");
    for line in ["\nnetwork  epoll: io_uring cannot be used, likely cause: ", "\ndisk     threads; "] {
        assert!(table.stdout.contains(line), "{}", table.stdout);
    }
    assert!(json.stdout.starts_with("{\"net\":\"epoll\",\"refusal\":{\"cause\":\"io_uring_setup: "));
    assert!(json.stdout.contains(CAUSE) && json.stdout.ends_with("]}\n"), "{}", json.stdout);
}

#[test]
fn the_probe_and_the_server_agree() {
    let Output { status, stdout, .. } =
        Command::new(BINARY).args(["engines", "--json"]).output().expect("the binary was built");
    assert!(status.success());
    let json = String::from_utf8(stdout).expect("text");
    let net = if json.starts_with("{\"net\":\"io_uring\",\"refusal\":null,") { "io_uring" } else { "epoll" };
    let server = Server::start(BINARY, &site("", "here"));
    let log = server.error_log();
    if log.contains("limit on locked memory") {
        // The limit applies to all processes of the workers' user together, but not to root, who ran the probe.
        return testkit::skip("other servers have locked the memory of this user");
    }
    assert!(log.contains(&format!(": using the \"{net}\" event method\n")), "{json}\n{log}");
    assert_eq!(log.contains("io_uring cannot be used"), net == "epoll", "{log}");
}

#[test]
fn a_panic_ends_the_worker_process_and_a_new_one_starts() {
    // If an engine cannot wait, its thread cannot continue: the runtime panics.
    let main = "worker_processes 2;";
    let conf = site(main, "here").replace("events {}", "events { use epoll; }");
    let Some(server) = forbid(Call::EpollPwait, || Server::start(BINARY, &conf)) else { return };
    server.wait_for_log_count("exited with code 1", 4, Deadline::default());
    server.wait_for_log_count(": start worker process ", 5, Deadline::default());
    let log = server.error_log();
    assert!(log.contains("[alert]") && log.contains("a worker thread has panicked"), "{log}");
    // Each worker was ready before its exit, so the master starts the next one without a delay.
    assert!(!log.contains("the next one"), "{log}");
}
