//! `sandbox on`: the restrictions of a worker, what it serves in spite of them, and reloads that need more.

use std::fs;

use crate::control::BINARY;
use rustix::process::Signal;
use testkit::{Client, Content, Deadline, Server};

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
    let pid = server.workers()[0];
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
    std::os::unix::fs::symlink(server.path("other/b.txt"), server.path("html/link")).expect("a new name");
    let ask = |server: &Server, path: &str| Client::connect(server.addr(0)).get(path);
    if ask(&server, "/link").status == 200 {
        return testkit::skip("the kernel has no Landlock");
    }
    assert_eq!(ask(&server, "/link").status, 403);
    server.rewrite_conf(&conf("sandbox on; sandbox_path other;", ""));
    server.reload();
    let log = server.wait_for_log("a new worker process is needed: ", Deadline::default());
    assert!(log.contains("/other\" of \"sandbox_path\": the sandbox does not permit it"), "{log}");
    let is_alone = || (server.workers() != before && server.workers().len() == 1).then_some(());
    testkit::wait::until("the new worker serves alone", Deadline::default(), is_alone)
        .expect("a replacement");
    assert_eq!(ask(&server, "/link").text(), "other");
    assert!(server.quit_and_wait().success());
}

#[test]
fn without_a_sandbox_nothing_is_restricted() {
    let server = start("sandbox off;");
    assert_eq!(status(&server, "Seccomp"), "0");
    assert_eq!(status(&server, "NoNewPrivs"), "0");
    assert!(server.quit_and_wait().success());
}
