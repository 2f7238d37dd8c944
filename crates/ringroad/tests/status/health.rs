//! `health` and `shutdown_delay`: load balancers send clients to another server before this one stops, and no request
//! fails.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{BINARY, Running, ours_only};
use rustix::process::Signal;
use testkit::program::{run, signal_process};
use testkit::server::ListenAddr;
use testkit::wait::{self, Deadline};
use testkit::{Client, Origin, Response, Server, TempDir};

fn conf(main: &str) -> String {
    format!(
        "{main}\nevents {{}}\nhttp {{ server {{ listen 127.0.0.1:0; location / {{ return 200 served; }}
         location = /live {{ health live; }} location = /ready {{ health ready; }} }} }}\n"
    )
}

fn get(server: &Server, target: &str) -> Response {
    Client::connect(server.addr(0)).get(target)
}

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

#[test]
fn health_checks_return_a_text_and_a_status() {
    if !ours_only("health") {
        return;
    }
    let server = Server::start(BINARY, &conf(""));
    for target in ["/live", "/ready"] {
        let response = get(&server, target);
        assert_eq!((response.status, response.text().as_str()), (200, "ok\n"));
        assert_eq!(response.field("Cache-Control"), Some("no-store"));
        assert_eq!(Client::connect(server.addr(0)).request("DELETE", target, &[]).status, 405);
    }
}

/// After QUIT the readiness check fails while all requests are served, each as the last one on its connection; a second
/// QUIT ends the delay.
fn leaves(main: &str) {
    let server = Server::start(BINARY, &conf(&format!("shutdown_delay 1h; {main}")));
    let mut open = Client::connect(server.addr(0));
    let response = open.get("/");
    assert_eq!((response.status, response.field("Connection")), (200, Some("keep-alive")));
    server.signal(Signal::QUIT);
    server.wait_for_log("readiness checks fail for 3600000 ms", deadline());
    let unready = wait::until("the check fails", deadline(), || {
        Some(get(&server, "/ready")).filter(|response| response.status == 503)
    });
    assert_eq!(unready.expect("it is about to end").text(), "shutting down\n");
    assert_eq!(get(&server, "/live").status, 200);
    let response = open.get("/");
    assert_eq!((response.status, response.field("Connection")), (200, Some("close")));
    open.expect_end();
    assert_eq!(get(&server, "/").text(), "served", "new connections are accepted");
    server.signal(Signal::HUP);
    assert_eq!(get(&server, "/ready").status, 503, "a reload changes nothing");
    assert!(server.quit_and_wait().success());
}

#[test]
fn readiness_fails_before_the_server_stops() {
    if ours_only("shutdown_delay") {
        leaves("");
    }
}

#[test]
fn readiness_fails_before_the_stop_without_a_master() {
    if ours_only("shutdown_delay") {
        leaves("master_process off;");
    }
}

#[test]
fn the_server_stops_after_shutdown_delay() {
    if !ours_only("shutdown_delay") {
        return;
    }
    let mut server = Server::start(BINARY, &conf("shutdown_delay 300ms;"));
    server.signal(Signal::QUIT);
    assert!(server.wait_until_ended(deadline()).success());
    let log = server.error_log();
    let [elsewhere, ending] =
        ["readiness checks fail", "gracefully shutting down"].map(|text| log.find(text));
    assert!(elsewhere.is_some() && elsewhere < ending, "{log}");
}

/// An operator drains the server and cancels the drain; a new worker has the same state.
fn drains(main: &str) {
    let text = conf(&format!("{main}admin_socket admin.sock; worker_processes 1;"));
    let mut server = Server::start(BINARY, &text);
    let socket = server.path("admin.sock").display().to_string();
    let told = |command: &str| {
        let done = run(BINARY, &[command, "--socket", &socket]);
        assert!(done.status.success() && done.stderr.is_empty(), "{}", done.stderr);
        done.stdout
    };
    let becomes = |server: &Server, status: u16, word: &str| {
        let response = wait::until("the check", deadline(), || {
            Some(get(server, "/ready")).filter(|response| response.status == status)
        });
        assert_eq!(response.expect("the worker is notified").text(), word);
    };
    assert_eq!(told("undrain"), "the server was not drained\n");
    let mut open = Client::connect(server.addr(0));
    assert_eq!(open.get("/").field("Connection"), Some("keep-alive"));
    assert!(told("drain").starts_with("readiness checks fail"), "it was not drained");
    becomes(&server, 503, "drained\n");
    assert_eq!((open.get("/").field("Connection"), get(&server, "/live").status), (Some("close"), 200));
    open.expect_end();
    assert_eq!(told("drain"), "the server was drained already\n");
    if main.is_empty() {
        let is_new = |before: &[_]| server.is_replaced(before).then_some(());
        let before = server.workers();
        signal_process(before[0], Signal::KILL).expect("it is ours");
        wait::until("another worker", deadline(), || is_new(&before)).expect("the master starts it");
        becomes(&server, 503, "drained\n");
        // Another number of threads needs a new worker.
        let before = server.workers();
        server.rewrite_conf(&text.replace("worker_processes 1", "worker_processes 2"));
        server.reload();
        let is_new = || server.is_replaced(&before).then_some(());
        wait::until("the worker of the reload", deadline(), is_new).expect("the master starts it");
    } else {
        server.reload();
        server.wait_for_log("reconfiguring", deadline());
    }
    becomes(&server, 503, "drained\n");
    assert_eq!(told("undrain"), "readiness checks pass\n");
    becomes(&server, 200, "ok\n");
    assert_eq!(Client::connect(server.addr(0)).get("/").field("Connection"), Some("keep-alive"));
    assert!(server.quit_and_wait().success());
}

#[test]
fn an_operator_can_drain_and_resume_a_server() {
    if ours_only("drain") {
        drains("");
        drains("master_process off; ");
    }
}

#[test]
fn a_stopping_server_cannot_be_drained() {
    if !ours_only("drain") {
        return;
    }
    let server = Server::start(BINARY, &conf("shutdown_delay 1h; admin_socket admin.sock;"));
    server.signal(Signal::QUIT);
    server.wait_for_log("readiness checks fail for", deadline());
    let socket = server.path("admin.sock").display().to_string();
    let done = run(BINARY, &["undrain", "--socket", &socket]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(done.stderr, "ringroad undrain: the server is shutting down\n");
    assert!(server.quit_and_wait().success());
}

/// haproxy checks readiness every 20 ms, and all requests through it succeed while each of two servers in turn stops
/// and starts again. A server is down after three failed checks: on a busy machine a single check may be late.
#[test]
fn no_request_through_haproxy_fails_during_restarts() {
    if !ours_only("shutdown_delay") {
        return;
    }
    let text = conf("shutdown_delay 1h;");
    let mut servers = [Server::start(BINARY, &text), Server::start(BINARY, &text)];
    let port = Origin::start(|_| testkit::origin::Reply::ok()).port();
    let directory = TempDir::new("haproxy");
    let file = directory.path().join("haproxy.cfg");
    let addresses = servers.each_ref().map(|server| server.addr(0).to_string());
    let [first, second] = &addresses;
    let haproxy = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 10s\n timeout server 10s\n\
         timeout check 5s\n\
         listen front\n bind 127.0.0.1:{port}\n option httpchk GET /ready\n default-server check inter 20ms fall 3 rise 1\n \
         server a {first}\n server b {second}\n"
    );
    std::fs::write(&file, haproxy).expect("a file");
    let started = Command::new("haproxy")
        .arg("-db")
        .arg("-f")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = started else {
        testkit::skip(format_args!("haproxy is not installed (apt-get install haproxy)"));
        return;
    };
    let _running = Running(child);
    let front = ListenAddr::Tcp(([127, 0, 0, 1], port).into());
    let up = wait::until("haproxy", deadline(), || {
        Some(Client::try_connect(&front).ok()?.get("/")).filter(|response| response.status == 200)
    });
    up.expect("it serves");
    for round in 0..20 {
        let leaving = &mut servers[round % 2];
        let serve = || {
            let response = Client::connect(&front).get("/");
            assert_eq!((response.status, response.text().as_str()), (200, "served"), "round {round}");
        };
        leaving.signal(Signal::QUIT);
        // After the fourth failed check haproxy has processed the third.
        while leaving.access_log().matches("/ready HTTP/1.0\" 503").count() < 4 {
            serve();
        }
        leaving.signal(Signal::QUIT);
        while leaving.exited().is_none() {
            serve();
        }
        // It starts again at the same address.
        let address = &addresses[round % 2];
        *leaving = Server::start(BINARY, &text.replace("127.0.0.1:0", address));
        let ready = wait::until("both are there", deadline(), || {
            Some(get(leaving, "/ready")).filter(|response| response.status == 200)
        });
        ready.expect("it is ready");
        // When a request reaches the server, haproxy has noticed it. Until then haproxy uses only the other server, which must
        // not stop.
        let before = leaving.access_log().len();
        let seen = wait::until("haproxy sends requests there", deadline(), || {
            let response = Client::connect(&front).get("/?round");
            assert_eq!(response.status, 200);
            (leaving.access_log().len() > before && leaving.access_log().contains("/?round")).then_some(())
        });
        seen.expect("it gets requests");
    }
}
