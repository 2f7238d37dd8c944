//! HTTP/1, HTTP/2 and gRPC over TLS without a failed request, while the server is reloaded, drained, stopped, or its
//! worker killed. Module `common::load` has the clients, and the definition of a request that could be served;
//! `upgrade.rs` does the same for an upgrade of the binary.

use crate::common::load::{self, FILE_LEN, Load, Upstreams, served_once};
use crate::common::tls::{Authority, files};
use crate::control::{BINARY, wait_until};
use rustix::process::Signal;
use testkit::process::Pid;
use testkit::program::{run, signal_process};
use testkit::{Deadline, Server};

/// A server with its CA and upstreams.
struct Site {
    server: Server,
    authority: Authority,
    upstreams: Upstreams,
}

impl Site {
    /// Starts a server with directives of the main context.
    fn start(main: &str) -> Site {
        let (authority, upstreams) = (Authority::new("root"), Upstreams::start());
        let server = start(main, &authority, &upstreams);
        Site { server, authority, upstreams }
    }

    fn load(&self) -> Load {
        Load::new(&self.authority, self.server.addr(0).tcp())
    }

    /// Reloads the configuration with a change.
    fn reload_with(&mut self, from: &str, to: &str) {
        let text = self.server.conf().replacen(from, to, 1);
        assert_ne!(text, self.server.conf());
        self.server.rewrite_conf(&text);
        self.server.reload();
    }

    /// Waits until another worker process is the only one.
    fn wait_for_worker_after(&self, before: &[Pid]) {
        wait_until("another worker", || {
            let now = self.server.workers();
            now.len() == 1 && now != before
        });
    }
}

fn start(main: &str, authority: &Authority, upstreams: &Upstreams) -> Server {
    // Connections also end at `keepalive_requests`.
    let conf = format!(
        "worker_processes 1; {main}\nevents {{}}\nhttp {{ keepalive_requests 40; \
         server {{ listen 127.0.0.1:0 ssl;\n{} }} }}\n",
        load::server(upstreams)
    );
    let builder = files(Server::builder(BINARY).conf(&conf), "a", &authority.server("a.test"));
    builder.text("html/file", &"x".repeat(FILE_LEN)).start()
}

/// Asserts that the server has logged no message about a fault of its own.
fn assert_no_alerts(server: &Server) {
    let log = server.error_log();
    let is_bad =
        |line: &&str| ["[error]", "[crit]", "[alert]", "[emerg]"].iter().any(|level| line.contains(level));
    // A killed worker is an alert.
    let found: Vec<&str> =
        log.lines().filter(is_bad).filter(|line| !line.contains("exited on signal 9")).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn reloads_fail_no_request_over_tls() {
    let mut site = Site::start("");
    let load = site.load();
    let served = load.run(|| {
        for round in 1..=3 {
            // In place, with another certificate.
            let (pem, key) = site.authority.server("a.test");
            std::fs::write(site.server.path("conf/a.pem"), pem).expect("it is ours");
            std::fs::write(site.server.path("conf/a.key"), key).expect("it is ours");
            site.reload_with("add_header", &format!("add_header X-Round {round}; add_header"));
            site.server.wait_for_log_count("in place", round, Deadline::default());
            load.each_is_served();
            // Refused: the file has no certificate.
            let pem = std::fs::read(site.server.path("conf/a.pem")).expect("just written");
            std::fs::write(site.server.path("conf/a.pem"), "none").expect("it is ours");
            site.server.reload();
            site.server.wait_for_log_count("cannot load certificate", round, Deadline::default());
            std::fs::write(site.server.path("conf/a.pem"), pem).expect("it is ours");
            load.each_is_served();
            // Another number of threads needs a new worker.
            let before = site.server.workers();
            site.reload_with(
                &format!("worker_processes {}", 2 - round % 2),
                &format!("worker_processes {}", 1 + round % 2),
            );
            site.wait_for_worker_after(&before);
            load.each_is_served();
        }
    });
    served_once(&served, || site.server.access_log());
}

#[test]
fn a_killed_worker_costs_each_client_one_connection_over_tls() {
    let site = Site::start("");
    let load = site.load();
    load.run(|| {
        for _ in 0..3 {
            let before = site.server.workers();
            load.kill(|| {
                signal_process(before[0], Signal::KILL).expect("it is ours");
                site.wait_for_worker_after(&before);
            });
        }
    });
    assert_no_alerts(&site.server);
}

#[test]
fn a_drained_server_serves_all_requests_over_tls() {
    let site = Site::start("admin_socket admin.sock;");
    let socket = site.server.path("admin.sock").display().to_string();
    let load = site.load();
    let served = load.run(|| {
        for _ in 0..3 {
            for command in ["drain", "undrain"] {
                let done = run(BINARY, &[command, "--socket", &socket]);
                assert!(done.status.success(), "{}", done.stderr);
                load.each_is_served();
            }
        }
    });
    served_once(&served, || site.server.access_log());
    assert_no_alerts(&site.server);
}

/// Clients move to a second server, as if directed by a load balancer. The first server waits for this (`shutdown_delay`), and
/// then stops.
#[test]
fn a_server_that_stops_leaves_no_request_over_tls_behind() {
    let mut site = Site::start("shutdown_delay 1h;");
    let second = start("", &site.authority, &site.upstreams);
    let load = site.load();
    let served = load.run(|| {
        site.server.signal(Signal::QUIT);
        site.server.wait_for_log("readiness checks fail", Deadline::default());
        load.each_is_served();
        load.move_to(second.addr(0).tcp());
        // Connections to the first server end with the next response.
        load.each_is_served();
        site.server.signal(Signal::QUIT);
        assert!(site.server.wait_until_ended(Deadline::default()).success());
    });
    served_once(&served, || site.server.access_log() + &second.access_log());
    assert_no_alerts(&site.server);
    assert_no_alerts(&second);
}
