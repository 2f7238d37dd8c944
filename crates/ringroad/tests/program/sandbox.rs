//! `sandbox on`: the restrictions of a worker, what it serves in spite of them, and reloads that need more.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::control::BINARY;
use rustix::process::Signal;
use testkit::seccomp::{Call, forbid_with};
use testkit::{Client, Content, Deadline, Server};

/// Errors of a kernel that lacks a call (`ENOSYS`), and of invalid arguments (`EINVAL`).
const NO_CALL: i32 = 38;
const INVALID: i32 = 22;

/// A site with files, a cache of an upstream in the same process, and a log of its own. `more` is added to the server.
fn conf(main: &str, more: &str) -> String {
    format!(
        "{main} events {{}} http {{ access_log logs/access.log; proxy_cache_path cache keys_zone=z:1m;
         server {{ listen 127.0.0.1:0; root html; {more}
         location /proxied/ {{ proxy_pass http://127.0.0.1:$server_port/a.bin; proxy_cache z;
         proxy_cache_key $uri; proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status; }} }} }}"
    )
}

fn start(main: &str) -> Server {
    let server = Server::builder(BINARY).conf(&conf(main, "")).file("html/a.bin", Content::new(3, 300_000));
    server.text("other/b.txt", "other").start()
}

/// Returns a line of the status of a worker, without its name.
fn status(server: &Server, name: &str) -> String {
    let pid = server.worker();
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a line of the kernel").trim().to_owned()
}

#[test]
fn a_restricted_worker_serves_files_and_a_cache_and_is_reloaded_in_place() {
    let mut server = start("sandbox on;");
    assert_eq!(status(&server, "Seccomp"), "2");
    assert_eq!(status(&server, "NoNewPrivs"), "1");
    if rustix::process::geteuid().is_root() {
        assert_eq!(status(&server, "CapBnd"), "0000000000000000");
    }
    let (before, body) = (server.workers(), Content::new(3, 300_000));
    let ask = |server: &Server, path: &str| Client::connect(server.addr(0)).get(path);
    for path in ["/a.bin", "/proxied/a.bin", "/proxied/a.bin"] {
        body.assert_body(&ask(&server, path).body);
    }
    assert_eq!(ask(&server, "/proxied/a.bin").field("X-Cache"), Some("HIT"));
    fs::rename(server.path("logs/access.log"), server.path("logs/old.log")).expect("the same directory");
    server.signal(Signal::USR1);
    server.wait_for_log_count("reopening logs", 3, Deadline::default());
    body.assert_body(&ask(&server, "/a.bin").body);
    server.wait_for_access_log(1, Deadline::default());
    server.rewrite_conf(&conf("sandbox on;", "location /new { return 200 new; }"));
    server.reload();
    server.wait_for_log("was replaced by 2 in place", Deadline::default());
    assert_eq!(ask(&server, "/new").text(), "new");
    body.assert_body(&ask(&server, "/proxied/a.bin").body);
    assert_eq!(server.workers(), before);
    let log = server.error_log();
    assert!(!log.contains("[alert]") && !log.contains("[crit]"), "{log}");
    assert!(server.quit_and_wait().success());
}

#[test]
fn a_directory_that_the_sandbox_does_not_permit_needs_a_new_worker() {
    let mut server = start("sandbox on;");
    let before = server.workers();
    symlink(server.path("other/b.txt"), server.path("html/link")).expect("a new name");
    let ask = |server: &Server, path: &str| Client::connect(server.addr(0)).get(path);
    if ask(&server, "/link").status == 200 {
        return testkit::skip("the kernel has no Landlock");
    }
    assert_eq!(ask(&server, "/link").status, 403);
    server.rewrite_conf(&conf("sandbox on; sandbox_path other;", ""));
    server.reload();
    let log = server.wait_for_log("a new worker process is needed: ", Deadline::default());
    assert!(log.contains("/other\" of \"sandbox_path\": the sandbox does not permit it"), "{log}");
    let is_alone = || server.is_replaced(&before).then_some(());
    testkit::wait::until("the new worker serves alone", Deadline::default(), is_alone)
        .expect("a replacement");
    assert_eq!(ask(&server, "/link").text(), "other");
    assert!(server.quit_and_wait().success());
}

/// systemd forbids openat2(2) if the unit has `RestrictSUIDSGID=yes`, as ours has. Links are checked by other calls then.
#[test]
fn a_worker_starts_and_checks_links_where_openat2_is_forbidden() {
    let checks = "location /none/ { disable_symlinks on; } location /below/ { root_beneath on; }";
    let conf = conf("sandbox on;", checks).replace("events {}", "events { use epoll; }");
    let serve = || {
        let mut server = Server::builder(BINARY).conf(&conf).text("other/b.txt", "other");
        for name in ["a.bin", "none/a.bin", "below/a.bin"] {
            server = server.file(&format!("html/{name}"), Content::new(3, 300_000));
        }
        let server = server.start();
        for name in ["none", "below"] {
            symlink(server.path("html/a.bin"), server.path(&format!("html/{name}/absolute")))
                .expect("a new name");
            symlink("../a.bin", server.path(&format!("html/{name}/relative"))).expect("a new name");
        }
        symlink(server.path("other/b.txt"), server.path("html/link")).expect("a new name");
        let mut client = Client::connect(server.addr(0));
        for path in ["/a.bin", "/proxied/a.bin", "/none/a.bin", "/below/a.bin", "/below/relative"] {
            Content::new(3, 300_000).assert_body(&client.get(path).body);
        }
        for path in ["/none/relative", "/none/absolute", "/below/absolute"] {
            assert_eq!(client.get(path).status, 403, "{path}\n{}", server.error_log());
        }
        let is_refused = client.get("/link").status == 403;
        assert!(server.quit_and_wait().success());
        is_refused
    };
    if forbid_with(Call::Openat2, NO_CALL, serve) == Some(false) {
        testkit::skip("the kernel has no Landlock");
    }
}

#[test]
fn without_a_sandbox_nothing_is_restricted() {
    let server = start("sandbox off;");
    assert_eq!(status(&server, "Seccomp"), "0");
    assert_eq!(status(&server, "NoNewPrivs"), "0");
    assert!(server.quit_and_wait().success());
}

/// A worker that was taken over can write to its cache. The next worker must not get what a link there leads to.
#[test]
fn a_link_in_a_cache_gives_the_next_worker_nothing() {
    let conf = conf("sandbox on;", "proxy_temp_path cache/spare;");
    let server =
        Server::builder(BINARY).conf(&conf).text("other/b.txt", "other").text("html/a.txt", "a").start();
    symlink(server.path("other/b.txt"), server.path("html/link")).expect("a new name");
    let ask = |server: &Server, path: &str| Client::connect(server.addr(0)).get(path);
    if ask(&server, "/link").status == 200 {
        return testkit::skip("the kernel has no Landlock");
    }
    let _ = fs::remove_dir_all(server.path("cache/spare"));
    symlink(server.path("other"), server.path("cache/spare")).expect("the directory was removed");
    let before = server.workers();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(before[0]).expect("a process"),
        Signal::KILL,
    )
    .expect("our own process");
    let is_replaced = || (!server.workers().is_empty() && server.workers() != before).then_some(());
    testkit::wait::until("the next worker", Deadline::default(), is_replaced).expect("a worker");
    let log = server.wait_for_log("where workers may have created it", Deadline::default());
    assert!(log.contains("/cache/spare\" of \"proxy_temp_path\""), "{log}");
    assert_eq!(ask(&server, "/link").status, 403);
    assert_eq!(ask(&server, "/a.txt").text(), "a");
    assert!(server.quit_and_wait().success());
}

/// The rules are opened before the change of the user, so a later chmod is sufficient.
#[test]
fn a_directory_is_served_after_its_user_was_permitted_to_reach_it() {
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("only root has workers of another user");
    }
    let builder = Server::builder(BINARY).conf(&conf("sandbox on;", "location /p/ { alias private/www/; }"));
    let builder = builder.text("private/www/a.txt", "private");
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own directory");
    };
    mode(&builder.dir().join("private"), 0o700);
    let server = builder.start();
    let ask = || Client::connect(server.addr(0)).get("/p/a.txt");
    assert_eq!(ask().status, 403);
    mode(&server.path("private"), 0o755);
    assert_eq!(ask().text(), "private");
}

#[test]
fn a_missing_path_of_the_sandbox_is_logged_with_the_remedy() {
    let server = start("sandbox on; sandbox_path /no-such-directory rw;");
    let line =
        "the sandbox permits nothing for \"/no-such-directory\" of \"sandbox_path\", which does not exist";
    server.wait_for_log_count(line, 1, Deadline::default());
    server.reload();
    server.wait_for_log("was replaced by 2 in place", Deadline::default());
    server.wait_for_log_count(line, 2, Deadline::default());
    assert!(server.quit_and_wait().success());
}

/// A path that has no rule of its own is not reported if another directive permits it.
#[test]
fn a_path_that_another_directive_permits_is_not_reported() {
    let conf = conf("sandbox on; sandbox_path other;", "location /c/ { alias cache/link/; }");
    let builder = Server::builder(BINARY).conf(&conf).text("other/b.txt", "other").text("cache/x", "");
    symlink("../other", builder.dir().join("cache/link")).expect("a new name");
    let server = builder.start();
    assert_eq!(Client::connect(server.addr(0)).get("/c/b.txt").text(), "other");
    let log = server.error_log();
    assert!(!log.contains("permits nothing"), "{log}");
    assert!(server.quit_and_wait().success());
}

#[test]
fn a_reload_that_permits_less_starts_a_new_worker() {
    let mut server = start("sandbox on; sandbox_path other;");
    symlink(server.path("other/b.txt"), server.path("html/link")).expect("a new name");
    let ask = |server: &Server, path: &str| Client::connect(server.addr(0)).get(path);
    assert_eq!(ask(&server, "/link").text(), "other");
    let before = server.workers();
    server.rewrite_conf(&conf("sandbox on;", ""));
    server.reload();
    let log = server.wait_for_log("a new worker process is needed: ", Deadline::default());
    assert!(log.contains("/other\" of \"sandbox_path\": the sandbox no longer permits it"), "{log}");
    let is_alone = || server.is_replaced(&before).then_some(());
    testkit::wait::until("the new worker serves alone", Deadline::default(), is_alone)
        .expect("a replacement");
    if ask(&server, "/link").status == 200 {
        return testkit::skip("the kernel has no Landlock");
    }
    assert_eq!(ask(&server, "/link").status, 403);
    assert!(server.quit_and_wait().success());
}

#[test]
fn strict_refuses_to_start_on_a_kernel_that_cannot_restrict_files() {
    for arguments in [&[][..], &["-t"]] {
        let run = || {
            let builder = Server::builder(BINARY).conf(&conf("sandbox strict;", ""));
            arguments.iter().fold(builder, |builder, argument| builder.arg(argument)).run_to_end()
        };
        let Some((status, said)) = forbid_with(Call::LandlockCreateRuleset, NO_CALL, run) else { return };
        assert!(!status.success(), "{said}");
        let expected = "\"sandbox strict\" needs Landlock and seccomp, but the kernel cannot restrict files";
        assert!(said.contains("[emerg]") && said.contains(expected), "{said}");
        assert!(said.contains("or use \"sandbox on\" in ") && said.contains("nginx.conf:1"), "{said}");
    }
}

/// What the kernel cannot restrict is neither a reason for a new worker nor a line about a path.
#[test]
fn a_kernel_that_cannot_restrict_files_has_no_reasons_for_a_new_worker() {
    let run = || {
        let mut server = start("sandbox on; sandbox_path /no-such-directory;");
        let upstream = "location /other/ { alias other/; } location /up { proxy_pass http://127.0.0.1:1; }";
        server.rewrite_conf(&conf("sandbox on;", upstream));
        server.reload();
        let in_place = "was replaced by 2 in place";
        let replaced = "a new worker process is needed";
        let log = || Some(server.error_log()).filter(|log| log.contains(in_place) || log.contains(replaced));
        let log = testkit::wait::until("a reload", Deadline::default(), log).expect("it ends");
        (log, Client::connect(server.addr(0)).get("/other/b.txt").text())
    };
    let Some((log, text)) = forbid_with(Call::LandlockCreateRuleset, NO_CALL, run) else { return };
    assert!(log.contains("was replaced by 2 in place") && !log.contains("permits nothing"), "{log}");
    assert_eq!(text, "other");
}

/// A worker with more roots than open files: each rule is closed when the kernel has it.
#[test]
fn more_roots_than_descriptors_are_served() {
    let locations: String = (0..300).map(|n| format!("location /{n}/ {{ root sites/{n}; }}\n")).collect();
    let mut builder =
        Server::builder(BINARY).conf(&conf("sandbox on; worker_rlimit_nofile 256;", &locations));
    for n in 0..300 {
        builder = builder.text(&format!("sites/{n}/{n}/a.txt"), &n.to_string());
    }
    let server = builder.start();
    for n in [0, 150, 299] {
        assert_eq!(Client::connect(server.addr(0)).get(&format!("/{n}/a.txt")).text(), n.to_string());
    }
    let log = server.error_log();
    assert!(!log.contains("permits nothing"), "{log}");
    assert!(server.quit_and_wait().success());
}

#[test]
fn on_warns_of_a_kernel_that_cannot_restrict_files() {
    let run = || {
        let server = start("sandbox on;");
        assert_eq!(Client::connect(server.addr(0)).get("/a.bin").status, 200);
        (server.error_log(), server.stderr())
    };
    let Some((log, stderr)) = forbid_with(Call::LandlockCreateRuleset, NO_CALL, run) else { return };
    let expected =
        "sandbox: the kernel cannot restrict files, ports and signals (Landlock of Linux 5.19) in ";
    assert!(stderr.contains(expected) && stderr.contains("[warn]"), "{stderr}\n{log}");
}

/// `EINVAL` has other causes than a kernel without seccomp.
#[test]
fn a_filter_that_the_kernel_rejects_prevents_the_start() {
    let run = || Server::builder(BINARY).conf(&conf("sandbox on;", "")).run_to_end();
    let Some((status, said)) = forbid_with(Call::Seccomp, INVALID, run) else { return };
    assert!(!status.success() && said.contains("the sandbox cannot be set up: seccomp"), "{said}");
}
