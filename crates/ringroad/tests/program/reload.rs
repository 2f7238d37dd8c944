//! Reloads: no connection is refused or reset, and after an error the old configuration stays active.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::control::{BINARY, ask, site, wait_for_answer, wait_until};
use rustix::process::Signal;
use testkit::process::resident_bytes;
use testkit::program::{Finished, Program, run, signal_process};
use testkit::{Client, Content, Deadline, Server, TempDir};

/// Connects and makes requests in a loop while `action` runs; every connection must get a complete response.
fn under_load(server: &Server, action: impl FnOnce()) {
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let address = server.addr(0).clone();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let mut client = Client::try_connect(&address).expect("never refused");
                    assert_eq!(client.get("/").status, 200, "never reset");
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        action();
        // Some more requests for the end of the old configuration.
        let enough = asked.load(Ordering::SeqCst) + 20;
        wait_until("answers", || asked.load(Ordering::SeqCst) >= enough);
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_new_process_takes_over_without_a_lost_connection() {
    let mut server = Server::start(BINARY, &site("worker_processes 1;", "v0"));
    let first = server.workers();
    let mut confs = Vec::new();
    for round in 1..=6 {
        confs.push((site(&format!("worker_processes {};", 1 + round % 2), &format!("v{round}")), round));
    }
    let server = &mut server;
    let handle = Server::logged_addresses(server);
    assert_eq!(handle.len(), 1);
    for (conf, round) in confs {
        server.rewrite_conf(&conf);
        under_load(server, || {
            server.reload();
            wait_for_answer(server, &format!("v{round}"));
        });
    }
    wait_until("the old workers' end", || server.workers().len() == 1);
    assert_ne!(server.workers(), first);
    // The master notices an exit slightly later.
    server.wait_for_log_count("exited with code 0", 6, Deadline::default());
    let log = server.error_log();
    assert_eq!(log.matches("exited with code 0").count(), 6, "{log}");
    assert_eq!(log.matches(": reconfiguring").count(), 6, "{log}");
    assert_eq!(log.matches("(SIGHUP) received from").count(), 6, "{log}");
    assert_eq!(log.matches("gracefully shutting down").count(), 6, "{log}");
    assert_eq!(log.matches("listening on").count(), 1, "the same socket all the time\n{log}");
}

#[test]
fn the_same_process_loads_a_new_site_in_place() {
    let mut server = Server::start(BINARY, &site("", "v0"));
    let worker = server.workers();
    for round in 1..=6 {
        server.rewrite_conf(&site("", &format!("v{round}")));
        under_load(&server, || {
            server.reload();
            wait_for_answer(&server, &format!("v{round}"));
        });
    }
    assert_eq!(server.workers(), worker);
    server.wait_for_log_count("exited with code 0", 6, Deadline::default());
}

#[test]
fn a_reload_of_a_wrong_configuration_changes_nothing() {
    let mut server = Server::start(BINARY, &site("", "good"));
    let worker = server.workers();
    for (conf, message) in [
        ("events {} http { server { lsten 80; } }", "[emerg] "),
        ("events {} http {", "[emerg] "),
        (
            "events {} http { server { listen 127.0.0.1:0; listen unix:/nonexistent/a.sock; } }",
            "bind() to unix:",
        ),
    ] {
        let before = server.error_log().matches("[emerg]").count();
        server.rewrite_conf(conf);
        server.reload();
        let line = server.wait_for_log_count("[emerg]", before + 1, Deadline::default());
        assert!(line.contains(message), "{line}");
        assert_eq!(ask(server.addr(0)), "good");
    }
    assert_eq!(server.workers(), worker);
    server.rewrite_conf(&site("", "better"));
    server.reload();
    wait_for_answer(&server, "better");
}

#[test]
fn reloads_add_and_remove_listeners() {
    let dir = TempDir::new("listeners");
    let path = dir.path().join("extra.sock");
    let with = |main: &str| {
        let extra = format!("listen 127.0.0.1:0; listen unix:{};", path.display());
        site(main, "both").replace("listen 127.0.0.1:0;", &extra)
    };
    for main in ["", "worker_processes 2;"] {
        let mut server = Server::start(BINARY, &site("", "one"));
        server.rewrite_conf(&with(main));
        server.reload();
        server.wait_for_log("listening on unix:", Deadline::default());
        let addresses = server.logged_addresses();
        assert_eq!(addresses.len(), 2);
        wait_for_answer(&server, "both");
        assert_eq!(ask(&addresses[1]), "both");
        server.rewrite_conf(&site("", "one"));
        server.reload();
        wait_for_answer(&server, "one");
        wait_until("the socket to go", || !path.exists());
    }
}

#[test]
fn the_last_of_several_quick_reloads_is_effective() {
    let mut server = Server::start(BINARY, &site("", "v0"));
    for round in 1..=10 {
        server.rewrite_conf(&site(&format!("worker_processes {};", 1 + round % 2), &format!("v{round}")));
        server.reload();
    }
    wait_for_answer(&server, "v10");
    wait_until("the old workers' end", || server.workers().len() == 1);
}

/// A worker that does not respond to a reload is killed after half a minute; here the test kills it.
#[test]
fn a_worker_killed_during_a_reload_is_replaced_with_the_new_configuration() {
    let mut server = Server::start(BINARY, &site("", "v0"));
    let worker = server.worker();
    signal_process(worker, Signal::STOP).expect("it runs");
    server.rewrite_conf(&site("", "v1"));
    server.reload();
    server.wait_for_log("reconfiguring", Deadline::default());
    signal_process(worker, Signal::KILL).expect("it is stopped");
    // Until then the worker's engine may accept connections.
    server.wait_for_log("exited on signal 9", Deadline::default());
    wait_for_answer(&server, "v1");
    assert!(!server.error_log().contains("was not applied"), "{}", server.error_log());
}

#[test]
fn the_pid_file_moves_to_its_newly_configured_path() {
    let mut server = Server::start(BINARY, &site("pid logs/a.pid;", "v0"));
    server.rewrite_conf(&site("pid logs/b.pid;", "v1"));
    server.reload();
    wait_for_answer(&server, "v1");
    let (old, new) = (server.path("logs/a.pid"), server.path("logs/b.pid"));
    wait_until("the file to move", || !old.exists() && new.exists());
    assert_eq!(std::fs::read_to_string(new).expect("written"), format!("{}\n", server.pid()));
}

#[test]
fn the_next_request_of_an_open_connection_uses_the_new_site() {
    for main in ["worker_processes 3;", "master_process off; worker_processes 3;"] {
        let mut server = Server::start(BINARY, &site(main, "v0"));
        let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(server.addr(0))).collect();
        // Half of the clients have already made a request; the others have only connected.
        for client in &mut clients[..3] {
            assert_eq!(client.get("/").text(), "v0");
        }
        for round in 1..=3 {
            let text = format!("v{round}");
            server.rewrite_conf(&site(main, &text));
            server.reload();
            server.wait_for_log(&format!("was replaced by {} in place", round + 1), Deadline::default());
            // No connection retains the old configuration: idle connections release it and stay open.
            let line = server.wait_for_log_count("exited with code 0", round, Deadline::default());
            assert!(line.contains(&format!(": configuration {round} of worker process")), "{line}");
            for client in &mut clients {
                assert_eq!(client.get("/").text(), text);
            }
        }
    }
}

#[test]
fn a_replaced_configuration_is_freed_after_its_last_request() {
    let body = Content::new(9, 3 << 20);
    let conf = |index: &str| {
        format!(
            "events {{}} http {{ access_log off; server {{ listen 127.0.0.1:0; root html; index {index}; }} }}"
        )
    };
    let mut server = Server::builder(BINARY).conf(&conf("a.html")).file("html/large.bin", body).start();
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    for (round, index) in ["b.html", "c.html"].iter().enumerate() {
        server.rewrite_conf(&conf(index));
        server.reload();
        server.wait_for_log_count("in place", round + 1, Deadline::default());
    }
    // The second configuration was never used by a request, the first still is.
    let line = server.wait_for_log("exited with code 0", Deadline::default());
    assert!(line.contains("configuration 2 of worker process"), "{line}");
    assert_eq!(server.error_log().matches("exited with code 0").count(), 1, "{}", server.error_log());
    body.compare(0..3 << 20, &mut client.body(&head)).unwrap_or_else(|mismatch| panic!("{mismatch:?}"));
    let line = server.wait_for_log_count("exited with code 0", 2, Deadline::default());
    let worker = server.worker();
    assert!(
        line.ends_with(&format!("configuration 1 of worker process {worker} exited with code 0")),
        "{line}"
    );
}

/// Rows of a table, and the maximum growth of a process by its reload. The table needs 13 MiB in each process.
const ROWS: u32 = 60_000;
const GROWTH_MAX: u64 = 6 << 20;

#[test]
fn the_memory_of_a_replaced_configuration_is_released() {
    let rows: String = (0..ROWS).map(|row| format!("s{row}.example.org value{row};\n")).collect();
    let conf = format!(
        "worker_processes 1; events {{}} http {{ access_log off; map $host $m {{\n{rows}}} \
         server {{ listen 127.0.0.1:0; location / {{ return 200 a$m; }} }} }}"
    );
    let mut server = Server::start(BINARY, &conf);
    assert_eq!(ask(server.addr(0)), "a");
    let processes = [server.pid(), server.worker()];
    let before = processes.map(resident_bytes);
    for round in 1..=2 {
        server.rewrite_conf(&conf);
        server.reload();
        server.wait_for_log_count("in place", round, Deadline::default());
    }
    for (process, before) in processes.into_iter().zip(before) {
        let is_back = || resident_bytes(process) <= before + GROWTH_MAX;
        wait_until(&format!("the memory of {before} bytes"), is_back);
    }
}

#[test]
fn a_begun_response_is_completed_after_its_process_was_replaced() {
    let body = Content::new(9, 3 << 20);
    let conf = |threads: u32| {
        format!(
            "worker_processes {threads}; events {{}} http {{ access_log off; \
             server {{ listen 127.0.0.1:0; root html; }} }}"
        )
    };
    let mut server = Server::builder(BINARY).conf(&conf(1)).file("html/large.bin", body).start();
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    server.rewrite_conf(&conf(2));
    server.reload();
    server.wait_for_log("gracefully shutting down", Deadline::default());
    assert_eq!(server.workers().len(), 2, "the old one is still there");
    body.compare(0..3 << 20, &mut client.body(&head)).unwrap_or_else(|mismatch| panic!("{mismatch:?}"));
    wait_until("the old worker's end", || server.workers().len() == 1);
}

#[test]
fn a_reload_logs_the_configuration_changes() {
    for main in ["", "master_process off;"] {
        let mut server = Server::start(BINARY, &site(main, "v0"));
        let more = site(main, "v1").replace("access_log off;", "access_log off; server_tokens off;");
        server.rewrite_conf(&more);
        server.reload();
        wait_for_answer(&server, "v1");
        let place = format!(" in {}", server.path("").display());
        for change in ["return 200 v0 -> 200 v1 (http, server, location /)", "+ server_tokens off (http)"] {
            server.wait_for_log(&format!("configuration change: {change}{place}"), Deadline::default());
        }
        server.reload();
        server.wait_for_log("configuration change: none", Deadline::default());
        let log = server.error_log();
        assert_eq!(log.matches("configuration change: ").count(), 3, "{log}");
        assert!(!log.contains("a new worker process is needed"), "{log}");
        server.rewrite_conf(&more.replace("events {}", "worker_processes 2; env A; events {}"));
        server.reload();
        server.wait_for_log("configuration change: + worker_processes 2 in ", Deadline::default());
        server.wait_for_log("configuration change: + env A in ", Deadline::default());
        let line = match main {
            "" => "a new worker process is needed: worker_processes 1 -> 2, env",
            _ => "use master_process on (worker_processes 1 -> 2, env)",
        };
        server.wait_for_log(line, Deadline::default());
    }
}

/// The master is root, so links that the user of workers creates must have no effect.
#[test]
fn links_of_the_user_of_workers_are_not_followed_by_the_master() {
    const OTHER: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("only root can give files away");
    }
    let conf = "events {} http { access_log real/access.log; client_body_temp_path given/body;
        upstream back { zone back 64k; state real/back.state; }
        server { listen 127.0.0.1:0; location / { return 200 first; } location /back { proxy_pass http://back; } } }";
    let builder = Server::builder(BINARY).conf(conf).text("real/back.state", "server 127.0.0.1:1;\n");
    let mut server =
        builder.text("given/a", "").text("secret/body/a", "").text("secret/file", "secret").start();
    let link = |target: &str, name: &str| {
        let name = server.path(name);
        std::os::unix::fs::symlink(server.path(target), &name).expect("a new name");
        std::os::unix::fs::lchown(name, Some(OTHER), Some(OTHER)).expect("root");
    };
    std::fs::remove_file(server.path("real/back.state")).expect("it exists");
    std::fs::remove_file(server.path("real/access.log")).expect("it exists");
    std::fs::remove_dir(server.path("given/body")).expect("it exists");
    for (target, name) in [
        ("secret/file", "real/back.state"),
        ("secret/file", "real/access.log"),
        ("secret/body", "given/body"),
    ] {
        link(target, name);
    }
    let refused = "a symbolic link in the path is followed only if root";
    let wait = |server: &Server, start: &str| {
        let line = server.wait_for_log(start, Deadline::default());
        assert!(line.contains(refused), "{line}");
    };
    // Logs are opened again.
    server.signal(Signal::USR1);
    wait(&server, "real/access.log\" failed (40");
    // A worker replaces one that died.
    signal_process(server.worker(), Signal::KILL).expect("it lives");
    wait(&server, "using its previous content");
    // The configuration is read again.
    server.reload();
    server.wait_for_log_count("back.state\" failed", 2, Deadline::default());
    server.rewrite_conf(&conf.replace("real/", "logs/"));
    server.reload();
    wait(&server, ": chown() \"");
    let owner = std::os::unix::fs::MetadataExt::uid(
        &std::fs::metadata(server.path("secret/body")).expect("a directory"),
    );
    assert_eq!(owner, 0);
    assert_eq!(std::fs::read_to_string(server.path("secret/file")).expect("a file"), "secret");
}

/// Runs `-s reload` for a server.
fn reload_command(server: &Server, more: &[&str]) -> Finished {
    let prefix = format!("{}/", server.dir().display());
    run(BINARY, &[&["-p", &prefix, "-c", "conf/nginx.conf", "-s", "reload"], more].concat())
}

#[test]
fn the_reload_command_reports_whether_the_new_configuration_is_in_force() {
    for main in ["", "master_process off;"] {
        let mut server = Server::start(BINARY, &site(main, "v0"));
        server.rewrite_conf(&site(main, "v1"));
        let said = reload_command(&server, &[]);
        let expected =
            "ringroad: reload successful: configuration 2 is in force, in the running worker process\n";
        assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), expected));
        // The command returns after the reload, so no wait is needed.
        assert_eq!(ask(server.addr(0)), "v1");
        server.rewrite_conf(&site(main, "v2"));
        let said = reload_command(&server, &["-q"]);
        assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));
        assert_eq!(ask(server.addr(0)), "v2");
        // The command loads this configuration, but the server cannot open the socket.
        let bad = "listen 127.0.0.1:0; listen unix:/nonexistent/a.sock;";
        server.rewrite_conf(&site(main, "v3").replace("listen 127.0.0.1:0;", bad));
        let said = reload_command(&server, &[]);
        assert_eq!(said.status.code(), Some(1));
        let (start, reason) =
            said.stderr.split_once(": bind() to unix:/nonexistent/a.sock failed (2: ").unwrap();
        assert_eq!(start, "ringroad: [emerg] reload failed, the old configuration stays in force");
        assert_eq!(reason.lines().count(), 1, "{reason}");
        assert_eq!(ask(server.addr(0)), "v2");
        server.rewrite_conf(&site(main, "v4"));
        let said = reload_command(&server, &["--no-wait"]);
        assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));
        wait_for_answer(&server, "v4");
    }
}

#[test]
fn the_reload_command_reports_a_new_worker_process_and_one_that_cannot_start() {
    let mut server = Server::start(BINARY, &site("", "v0"));
    server.rewrite_conf(&site("worker_processes 2;", "v1"));
    let said = reload_command(&server, &[]);
    let expected = "ringroad: reload successful: configuration 2 is in force, in a new worker process\n";
    assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), expected));
    // The old worker may accept a last connection before it reads the message to leave.
    wait_for_answer(&server, "v1");
    // A reload in flight is cancelled by the end of the server.
    signal_process(server.worker(), Signal::STOP).expect("it runs");
    server.rewrite_conf(&site("worker_processes 2;", "v2"));
    let prefix = format!("{}/", server.dir().display());
    let mut waiting = Program::start(BINARY, &["-p", &prefix, "-c", "conf/nginx.conf", "-s", "reload"]);
    server.wait_for_log_count(": reconfiguring", 2, Deadline::default());
    server.signal(Signal::TERM);
    assert_eq!(waiting.wait_until_ended(Deadline::default()).code(), Some(1));
    let said = waiting.stderr();
    assert!(said.contains("reload failed: the server does not reload, because it shuts down"), "{said}");
}

/// Two pending SIGHUPs are one signal, and the kernel names only one sender.
#[test]
fn each_of_several_concurrent_reload_commands_gets_a_result() {
    let server = Server::start(BINARY, &site("", "v0"));
    let prefix = format!("{}/", server.dir().display());
    let start = || Program::start(BINARY, &["-p", &prefix, "-c", "conf/nginx.conf", "-s", "reload"]);
    signal_process(server.pid(), Signal::STOP).expect("it runs");
    let mut commands: Vec<Program> = (0..4).map(|_| start()).collect();
    signal_process(server.pid(), Signal::CONT).expect("it is stopped");
    for command in &mut commands {
        let status = command.wait_until_ended(Deadline::default());
        let said = command.stderr();
        assert!(status.success() && said.contains("reload successful"), "{said}");
    }
}
