//! Master and worker processes: signals, crashes, privileges, pid file, daemon, sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::control::{BINARY, ask, site, wait_for_answer, wait_until};
use rustix::process::Signal;
use testkit::process::{children, fd_targets, is_alive, threads};
use testkit::program::signal_process;
use testkit::{Client, Content, Deadline, ListenAddr, Program, Server, TempDir};

fn only_worker(server: &Server) -> i32 {
    let workers = server.workers();
    assert_eq!(workers.len(), 1, "{workers:?}\n{}", server.error_log());
    workers[0]
}

#[test]
fn stop_and_quit_end_both_processes_and_remove_the_pid_file() {
    for (signal, line) in [
        (Signal::TERM, "signal 15 (SIGTERM) received from"),
        (Signal::INT, "signal 2 (SIGINT) received from"),
        (Signal::QUIT, "signal 3 (SIGQUIT) received from"),
    ] {
        let mut server = Server::start(BINARY, &site("", "here"));
        assert_eq!(ask(server.addr(0)), "here");
        let (worker, pid_file) = (only_worker(&server), server.path("logs/nginx.pid"));
        assert_eq!(fs::read_to_string(&pid_file).expect("it is there"), format!("{}\n", server.pid()));
        server.signal(signal);
        let status = server.wait_until_ended(Deadline::default());
        assert!(status.success(), "{status}\n{}", server.error_log());
        assert!(!is_alive(worker));
        assert!(!pid_file.exists());
        let log = server.error_log();
        assert!(log.contains(line), "{log}");
        assert!(log.contains(&format!("worker process {worker} exited with code 0")), "{log}");
        assert!(log.trim_end().ends_with(&format!("{0}#{0}: exit", server.pid())), "{log}");
        let worded = if signal == Signal::QUIT { "gracefully shutting down" } else { "exiting" };
        assert!(log.contains(&format!("{worker}#{worker}: {worded}")), "{log}");
        assert!(TcpStream::connect(server.addr(0).tcp()).is_err(), "the port is closed");
    }
}

#[test]
fn the_start_is_logged_as_in_nginx_before_the_pid_file_exists() {
    let server = Server::start(BINARY, &site("", "here"));
    let (log, pid, worker) = (server.error_log(), server.pid(), only_worker(&server));
    for line in [
        "using the \"".to_owned(),
        "getrlimit(RLIMIT_NOFILE): ".to_owned(),
        "start worker processes".to_owned(),
        format!("start worker process {worker}"),
        format!("listening on {}", server.addr(0)),
    ] {
        let found = log.lines().find(|found| found.contains(&format!("[notice] {pid}#{pid}: {line}")));
        let found = found.unwrap_or_else(|| panic!("{line}\n{log}"));
        let stamp: String =
            found.chars().take(20).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(stamp, "0000/00/00 00:00:00 ");
    }
}

#[test]
fn a_killed_worker_is_replaced_without_refused_connections() {
    let server = Server::start(BINARY, &site("worker_processes 2;", "back"));
    kill_worker(&server);
    // A delay would have been logged with the worker's exit.
    let log = server.error_log();
    assert!(!log.contains("the next one"), "{log}");
}

/// The measurement for the test above.
#[test]
#[ignore = "takes times"]
fn a_killed_worker_is_replaced_within_200_ms() {
    let server = Server::start(BINARY, &site("worker_processes 2;", "back"));
    let away = kill_worker(&server);
    assert!(away < Duration::from_millis(200), "{away:?}");
}

/// Kills the worker of a server; clients may see only a pause. Returns the length of the pause.
fn kill_worker(server: &Server) -> Duration {
    let first = only_worker(server);
    let address = server.addr(0).tcp();
    signal_process(first, Signal::KILL).expect("it runs");
    let killed = Instant::now();
    // The listening socket stays open: each connection is accepted, and served by the next worker.
    let waiting: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(address).expect("never refused")).collect();
    assert_eq!(ask(server.addr(0)), "back");
    let away = killed.elapsed();
    drop(waiting);
    assert_ne!(only_worker(server), first);
    server.wait_for_log(&format!("worker process {first} exited on signal 9"), Deadline::default());
    assert_eq!(server.addr(0).tcp(), address);
    away
}

#[test]
fn a_worker_killed_under_load_costs_only_open_connections() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 3;
    let server = Server::start(BINARY, &site("worker_processes 2;", "loaded"));
    let address = server.addr(0).tcp();
    let (done, asked, broken) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let mut connection = TcpStream::connect(address).expect("never refused");
                    let mut answer = String::new();
                    let sent =
                        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    let read = sent.and_then(|()| connection.read_to_string(&mut answer));
                    match read.is_ok() && answer.ends_with("\r\n\r\nloaded") {
                        true => asked.fetch_add(1, Ordering::SeqCst),
                        false => broken.fetch_add(1, Ordering::SeqCst),
                    };
                }
            });
        }
        for round in 1..=KILLS {
            let before = asked.load(Ordering::SeqCst);
            wait_until("answers", || asked.load(Ordering::SeqCst) >= before + 50);
            signal_process(only_worker(&server), Signal::KILL).expect("it runs");
            server.wait_for_log_count("exited on signal 9", round, Deadline::default());
            wait_until("the next worker", || server.workers().len() == 1);
        }
        let before = asked.load(Ordering::SeqCst);
        wait_until("answers", || asked.load(Ordering::SeqCst) >= before + 50);
        done.store(true, Ordering::SeqCst);
    });
    let broken = broken.load(Ordering::SeqCst);
    assert!(broken <= CLIENTS * KILLS, "{broken} connections were lost");
}

#[test]
fn a_quit_signal_during_the_start_stops_the_server() {
    let folder = TempDir::new("early");
    let mut server = begin(&folder, "pid a.pid;");
    server.wait_for_output(": start worker process ", Deadline::default());
    server.signal(Signal::QUIT);
    assert!(server.wait_until_ended(Deadline::default()).success());
}

#[test]
fn a_worker_that_served_is_replaced_immediately_each_time() {
    let server = Server::start(BINARY, &site("", "here"));
    for death in 1..=8 {
        assert_eq!(ask(server.addr(0)), "here");
        signal_process(only_worker(&server), Signal::KILL).expect("it runs");
        server.wait_for_log_count("exited on signal 9", death, Deadline::default());
        wait_until("a worker", || server.workers().len() == 1);
    }
    assert_eq!(ask(server.addr(0)), "here");
    let log = server.error_log();
    assert!(!log.contains("the next one"), "{log}");
}

#[test]
fn workers_that_fail_to_start_are_retried_with_growing_delays() {
    let folder = TempDir::new("gone");
    let main = format!("working_directory {};", folder.path().display());
    let server = Server::start(BINARY, &site(&main, "here"));
    assert_eq!(ask(server.addr(0)), "here");
    // Without its directory no worker becomes ready.
    fs::remove_dir(folder.path()).expect("it is empty");
    signal_process(only_worker(&server), Signal::KILL).expect("it runs");
    let line = server.wait_for_log("workers cannot start", Deadline::default());
    assert!(line.contains("(\"exited with code 2\"), the next attempt is in 500 ms"), "{line}");
    // Five attempts without a delay: the crash of the worker that had served requests does not count.
    let log = server.error_log();
    let before = log.split("workers cannot start").next().expect("the log begins somewhere");
    assert_eq!(before.matches("exited with code 2").count(), 5, "{log}");
    testkit::create_dir_all(folder.path()).expect("as before");
    assert_eq!(ask(server.addr(0)), "here");
}

/// Starts a server without waiting: writes its configuration, and logs to standard error.
fn begin(folder: &TempDir, main: &str) -> Program {
    let conf = folder.write("a.conf", site(&format!("{main} error_log stderr notice; daemon off;"), "here"));
    let prefix = format!("{}/", folder.path().display());
    Program::start(BINARY, &["-p", &prefix, "-c", &conf.display().to_string()])
}

#[test]
fn a_reload_signal_during_the_start_is_obeyed() {
    for round in 0..5 {
        let folder = TempDir::new("early");
        let mut server = begin(&folder, "pid a.pid;");
        // The signal usually arrives before the worker is ready, and never before the server has blocked it.
        server.wait_for_output(": start worker process ", Deadline::default());
        server.signal(Signal::HUP);
        server.wait_for_output("was replaced by 2 in place", Deadline::default());
        server.signal(Signal::TERM);
        assert!(server.wait_until_ended(Deadline::default()).success(), "round {round}");
    }
}

#[test]
fn workers_exit_after_their_master_is_killed() {
    let mut server = Server::start(BINARY, &site("", "here"));
    let worker = only_worker(&server);
    server.signal(Signal::KILL);
    server.wait_until_ended(Deadline::default());
    wait_until("the worker's end", || !is_alive(worker));
}

#[test]
fn every_thread_of_the_worker_runs_as_the_configured_user() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("changing the user takes root");
        return;
    }
    for (main, group) in [("user nobody; worker_processes 3;", None), ("user nobody daemon;", Some(1))] {
        let server = Server::start(BINARY, &site(main, "here"));
        assert_eq!(ask(server.addr(0)), "here");
        let nobody = id_of("/etc/passwd", "nobody", 2);
        let group = group.unwrap_or_else(|| id_of("/etc/passwd", "nobody", 3));
        let all = threads(only_worker(&server));
        assert!(!all.is_empty());
        for thread in all {
            assert_eq!((thread.uids, thread.gids), ([nobody; 4], [group; 4]), "{thread:?}");
            assert!(thread.groups.iter().all(|&id| id == group), "{thread:?}");
            assert_eq!(thread.capabilities, 0, "{thread:?}");
        }
        assert_eq!(threads(server.pid())[0].uids, [0; 4], "the master stays root");
    }
    let server = Server::start(BINARY, &site("user nobody;", "here"));
    let has_group = fs::read_to_string("/etc/group").unwrap_or_default().contains("\nnobody:");
    let warned =
        server.error_log().contains("[warn]") || server.stderr().contains("there is no group \"nobody\"");
    assert_ne!(has_group, warned, "{}{}", server.error_log(), server.stderr());
}

#[test]
fn pool_and_kernel_threads_run_as_the_configured_user() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("changing the user takes root");
        return;
    }
    let conf = "user nobody daemon; worker_processes 2; events {} http { access_log off; \
                server { listen 127.0.0.1:0; root html; location /pool/ { alias html/; aio threads; directio 512; } \
                location /ring/ { alias html/; aio io_uring; directio 512; } } }";
    let mut builder = Server::builder(BINARY).conf(conf);
    for file in 0..40 {
        // Files that were not requested before: io_uring worker threads open them.
        builder = builder.file(&format!("html/{file}.bin"), Content::new(file, 200_000));
    }
    let server = builder.start();
    for file in 0..40 {
        let location = if file % 2 == 0 { "pool" } else { "ring" };
        let response = Client::connect(server.addr(0)).get(&format!("/{location}/{file}.bin"));
        Content::new(file, 200_000).assert_body(&response.body);
    }
    let nobody = id_of("/etc/passwd", "nobody", 2);
    // A new thread has its creator's name until it sets its own.
    wait_until("two threads with a worker's name", || {
        let names = threads(only_worker(&server)).into_iter().map(|thread| thread.name);
        names.filter(|name| name.starts_with("worker ")).count() == 2
    });
    let all = threads(only_worker(&server));
    for thread in &all {
        assert_eq!((thread.uids, thread.gids), ([nobody; 4], [1; 4]), "{thread:?}");
        assert!(thread.groups.iter().all(|&id| id == 1), "{thread:?}");
        assert_eq!(thread.capabilities, 0, "{thread:?}");
    }
    let names: Vec<&str> = all.iter().map(|thread| thread.name.as_str()).collect();
    assert!(names.len() > 3, "threads of the pool: {names:?}");
    // The first operation that would block creates these kernel threads; they exit some time after the last.
    if !names.iter().any(|name| name.starts_with("iou-wrk-")) {
        eprintln!("no kernel worker was seen: {names:?}");
    }
}

#[test]
fn an_unknown_user_is_an_error_for_root() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("users are looked up by root only");
        return;
    }
    let refused = Server::builder(BINARY).conf(&site("user no-such-user;", "here")).run_to_end();
    assert!(!refused.0.success());
    assert!(refused.1.contains("[emerg] getpwnam(\"no-such-user\") failed in "), "{}", refused.1);
}

#[test]
fn an_unprivileged_worker_can_use_the_body_temp_directory() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("changing an owner takes root");
        return;
    }
    let server = Server::start(BINARY, &site("user nobody;", "here"));
    let folder = server.path("client_body_temp");
    let made = fs::metadata(&folder).expect("the master made it");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), id_of("/etc/passwd", "nobody", 2));
    drop(server);
    // A directory that cannot be created does not prevent the start.
    let conf = "user nobody; events {} http { access_log off; client_body_temp_path /proc/none;
        server { listen 127.0.0.1:0; location / { return 200 here; } } }";
    let server = Server::start(BINARY, conf);
    assert_eq!(ask(server.addr(0)), "here");
    let said = server
        .wait_for_log("mkdir() \"/proc/none\" failed (2: No such file or directory)", Deadline::default());
    assert!(said.contains("[warn]"), "{said}");
}

fn id_of(file: &str, name: &str, field: usize) -> u32 {
    let text = fs::read_to_string(file).expect("every system has it");
    let row = text.lines().find(|row| row.starts_with(&format!("{name}:"))).expect("the user exists");
    row.split(':').nth(field).and_then(|id| id.parse().ok()).expect("a number")
}

#[test]
fn a_daemon_detaches_from_its_parent_and_its_terminal() {
    let mut server = Server::start(BINARY, &site("daemon on;", "detached"));
    assert_eq!(ask(server.addr(0)), "detached");
    // The parent exits right after the daemon has notified it, which is not before the daemon serves requests.
    let parent = testkit::wait::until("the end of the parent", Deadline::default(), || server.exited());
    let parent = parent.expect("the process that was started ends");
    assert!(parent.success());
    let pid = server.pid();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    assert_eq!(fields[4], "0", "no terminal");
    let targets = [0, 1].map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).expect("open"));
    assert!(targets.iter().all(|target| target.as_os_str() == "/dev/null"), "{targets:?}");
    // No process keeps a descriptor open whose end the caller may wait for, such as the pipe of `$(ringroad)`.
    let log = server.path("logs/error.log");
    for worker in server.workers() {
        let stderr = fs::read_link(format!("/proc/{worker}/fd/2")).expect("open");
        assert_eq!(stderr, log);
    }
    // Only a daemon stops its workers at SIGWINCH, as in nginx; a reload starts them again.
    server.signal(Signal::WINCH);
    wait_until("no worker", || server.workers().is_empty());
    server.reload();
    wait_for_answer(&server, "detached");
    assert!(server.quit_and_wait().success());
}

#[test]
fn files_of_a_daemon_are_not_writable_for_others() {
    let mode = |path: &Path| fs::metadata(path).expect("the daemon made it").permissions().mode() & 0o777;
    let mut server = Server::start(BINARY, &site("daemon on; pid first.pid;", "one"));
    assert_eq!(mode(&server.path("first.pid")), 0o644);
    // The umask of a daemon is 0. A reload creates missing files and directories.
    fs::rename(server.path("logs"), server.path("old")).expect("they are siblings");
    server.rewrite_conf(&site("daemon on; pid logs/second.pid; error_log logs/new.log notice;", "two"));
    server.reload();
    wait_for_answer(&server, "two");
    wait_until("the pid file to move", || server.path("logs/second.pid").exists());
    assert_eq!(mode(&server.path("logs")), 0o755);
    assert_eq!(mode(&server.path("logs/second.pid")), 0o644);
    assert_eq!(mode(&server.path("logs/new.log")), 0o644);
}

#[test]
fn a_reload_works_after_winch_stopped_the_worker_of_an_earlier_reload() {
    let mut server = Server::start(BINARY, &site("daemon on;", "first"));
    // Another number of threads needs another process. SIGWINCH arrives when the process is hardly ready.
    server.rewrite_conf(&site("daemon on; worker_processes 2;", "second"));
    server.reload();
    server.wait_for_log_count(": start worker process ", 2, Deadline::default());
    server.signal(Signal::WINCH);
    wait_until("no worker", || server.workers().is_empty());
    server.rewrite_conf(&site("daemon on; worker_processes 2;", "third"));
    server.reload();
    wait_for_answer(&server, "third");
}

#[test]
fn signals_without_effect_are_logged() {
    let server = Server::start(BINARY, &site("", "here"));
    server.signal(Signal::WINCH);
    server.signal(Signal::USR2);
    server.wait_for_log("(SIGWINCH) received from", Deadline::default());
    let line = server.wait_for_log("(SIGUSR2) received from", Deadline::default());
    assert!(line.contains("[notice]") && line.contains("ignored"), "{line}");
    assert_eq!(ask(server.addr(0)), "here");
    assert_eq!(server.workers().len(), 1);
}

#[test]
fn logs_are_reopened_at_usr1() {
    let server = Server::start(BINARY, &site("", "here"));
    let (current, rotated) = (server.path("logs/error.log"), server.path("logs/rotated.log"));
    fs::rename(&current, &rotated).expect("the log is there");
    server.signal(Signal::USR1);
    wait_until("lines of both processes in the new file", || {
        server.error_log().matches("reopening logs").count() == 2
    });
    let old = fs::read_to_string(&rotated).expect("renamed");
    assert!(old.contains("signal 10 (SIGUSR1) received from"), "{old}");
    wait_until_closed(&[server.pid(), only_worker(&server)], &rotated);
}

#[test]
fn no_thread_of_a_daemon_keeps_a_rotated_log_open() {
    let mut server = Server::start(BINARY, &site("daemon on;", "one"));
    // Standard error of a worker that is started later is the log.
    server.rewrite_conf(&site("daemon on; worker_processes 2;", "two"));
    server.reload();
    wait_for_answer(&server, "two");
    wait_until("the end of the first worker", || server.workers().len() == 1);
    let rotated = server.path("logs/rotated.log");
    fs::rename(server.path("logs/error.log"), &rotated).expect("the log is there");
    server.signal(Signal::USR1);
    wait_until_closed(&[server.pid(), only_worker(&server)], &rotated);
    assert!(server.quit_and_wait().success());
}

#[test]
fn logs_of_a_reload_in_progress_are_reopened_too() {
    let mut server = Server::start(BINARY, &site("", "one"));
    let worker = only_worker(&server);
    signal_process(worker, Signal::STOP).expect("it runs");
    server.rewrite_conf(&site("error_log logs/next.log notice;", "two"));
    server.reload();
    let (current, rotated) = (server.path("logs/next.log"), server.path("logs/rotated.log"));
    wait_until("the log of the next configuration", || current.exists());
    fs::rename(&current, &rotated).expect("it is there");
    server.signal(Signal::USR1);
    server.wait_for_log("reopening logs", Deadline::default());
    signal_process(worker, Signal::CONT).expect("it runs");
    wait_for_answer(&server, "two");
    wait_until_closed(&[server.pid(), worker], &rotated);
    assert!(current.exists());
}

/// Waits until none of these processes has a log file open.
fn wait_until_closed(processes: &[i32], file: &Path) {
    let is_open = |pid: &i32| fd_targets(*pid).iter().any(|target| Path::new(target) == file);
    wait_until("the old file to be closed", || !processes.iter().any(is_open));
}

#[test]
fn unix_sockets_are_created_and_removed_with_the_server() {
    let dir = TempDir::new("unix");
    let path = dir.path().join("site.sock");
    let conf = site("", "unix").replace("listen 127.0.0.1:0;", &format!("listen unix:{};", path.display()));
    let server = Server::start(BINARY, &conf);
    assert_eq!(server.addr(0), &ListenAddr::Unix(path.clone()));
    assert_eq!(ask(server.addr(0)), "unix");
    // The address is in use: another server listens.
    let (status, stderr) = Server::builder(BINARY).conf(&conf).run_to_end();
    assert!(!status.success());
    let refused = format!("[emerg] bind() to unix:{} failed (98: Address already in use)", path.display());
    assert!(stderr.contains(&refused) && stderr.contains("still could not bind()"), "{stderr}");
    assert!(server.quit_and_wait().success());
    assert!(!path.exists());
    // Files left behind by a killed server do not prevent the next start.
    let mut server = Server::start(BINARY, &conf);
    server.signal(Signal::KILL);
    server.wait_until_ended(Deadline::default());
    assert!(fs::metadata(&path).expect("left behind").file_type().is_socket());
    let server = Server::start(BINARY, &conf);
    assert_eq!(ask(server.addr(0)), "unix");
}

#[test]
fn a_port_in_use_is_tried_five_times_and_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("bound");
    let conf = site("", "here").replace("127.0.0.1:0", &address.to_string());
    let (status, stderr) = Server::builder(BINARY).conf(&conf).run_to_end();
    assert_eq!(status.code(), Some(1));
    let line = format!("ringroad: [emerg] bind() to {address} failed (98: Address already in use) in ");
    assert_eq!(stderr.matches(&line).count(), 5, "{stderr}");
    assert_eq!(stderr.matches("/conf/nginx.conf:").count(), 5, "the position of the directive: {stderr}");
    let last = "ringroad: [emerg] still could not bind(); another program uses the address, or this server runs already: \
                \"ss -ltnp\" shows the process\n";
    assert!(stderr.ends_with(last), "{stderr}");
}

#[test]
fn a_port_released_during_the_retries_is_bound() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("bound");
    let dir = TempDir::new("retry");
    let conf = site("daemon off; pid nginx.pid; error_log stderr;", "late");
    dir.write("nginx.conf", conf.replace("127.0.0.1:0", &address.to_string()));
    let prefix = format!("{}/", dir.path().display());
    let mut program = Program::start(BINARY, &["-p", &prefix, "-c", "nginx.conf", "-e", "stderr"]);
    program.wait_for_output("failed (98: Address already in use)", Deadline::default());
    drop(taken);
    let answer = testkit::wait::until("an answer", Deadline::default(), || {
        let mut client = Client::try_connect(&ListenAddr::Tcp(address)).ok()?;
        // While no server listens, the kernel may have assigned the port to the client itself, which then receives its
        // own bytes.
        client.try_send(&testkit::client::request_bytes("GET", "/", &[])).ok()?;
        Some(client.try_response().ok()?.text())
    });
    assert_eq!(answer.unwrap_or_else(|late| panic!("{late}\n{}", program.stderr())), "late");
    program.signal(Signal::QUIT);
    assert!(program.wait_until_ended(Deadline::default()).success(), "{}", program.stderr());
}

/// Operations of a killed process in io_uring keep its sockets open slightly longer than the process lives.
#[test]
fn the_port_of_a_killed_server_can_be_bound_by_the_next() {
    let mut server = Server::start(BINARY, &site("worker_processes 2;", "first"));
    let address = server.addr(0).tcp();
    let open: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    assert_eq!(ask(server.addr(0)), "first");
    server.signal(Signal::KILL);
    server.wait_until_ended(Deadline::default());
    let conf = site("", "second").replace("127.0.0.1:0", &address.to_string());
    let server = Server::builder(BINARY).conf(&conf).start();
    wait_for_answer(&server, "second");
    drop(open);
}

#[test]
fn reuseport_gives_each_thread_a_separate_socket() {
    let conf = site("worker_processes 3;", "shared").replace("127.0.0.1:0", "127.0.0.1:0 reuseport");
    let server = Server::start(BINARY, &conf);
    let port = format!(":{:04X} ", server.addr(0).tcp().port());
    let table = fs::read_to_string("/proc/net/tcp").expect("procfs");
    // State 0A is LISTEN, proc_net_tcp(5).
    let listening = table.lines().filter(|line| line.contains(&port) && line.contains(" 00000000:0000 0A "));
    assert_eq!(listening.count(), 3, "{table}");
    for _ in 0..20 {
        assert_eq!(ask(server.addr(0)), "shared");
    }
}

#[test]
fn one_process_serves_without_a_master() {
    let server = Server::start(BINARY, &site("master_process off;", "alone"));
    assert_eq!(ask(server.addr(0)), "alone");
    assert_eq!(children(server.pid()), [0i32; 0]);
    let pid_file = server.path("logs/nginx.pid");
    assert!(pid_file.exists());
    server.signal(Signal::USR1);
    server.wait_for_log("reopening logs", Deadline::default());
    assert!(server.quit_and_wait().success());
}

#[test]
fn a_reload_without_a_master_checks_the_sockets_and_moves_the_pid_file() {
    let main = "master_process off; worker_processes 2;";
    let mut server = Server::start(BINARY, &site(main, "alone"));
    server.rewrite_conf(&site(main, "spread").replace("127.0.0.1:0", "127.0.0.1:0 reuseport"));
    server.reload();
    let line = server.wait_for_log("the new configuration needs a new process", Deadline::default());
    assert!(line.contains("listen 127.0.0.1:0: 1 -> 2 sockets"), "{line}");
    for _ in 0..10 {
        assert_eq!(ask(server.addr(0)), "alone");
    }
    server.rewrite_conf(&site(&format!("{main} pid logs/other.pid;"), "moved"));
    server.reload();
    wait_until("the pid file to move", || {
        server.path("logs/other.pid").exists() && !server.path("logs/nginx.pid").exists()
    });
    let moved = server.path("logs/other.pid");
    assert_eq!(ask(server.addr(0)), "moved");
    server.signal(Signal::QUIT);
    assert!(server.wait_until_ended(Deadline::default()).success());
    assert!(!moved.exists());
}

#[test]
fn a_server_without_a_master_ignores_reloads_during_its_shutdown() {
    let body = Content::new(7, 32 << 20);
    let conf =
        "master_process off; events {} http { access_log off; server { listen 127.0.0.1:0; root html; } }";
    let mut server = Server::builder(BINARY).conf(conf).file("html/a.bin", body).start();
    let mut open = TcpStream::connect(server.addr(0).tcp()).expect("it listens");
    open.write_all(b"GET /a.bin HTTP/1.0\r\n\r\n").expect("connected");
    open.read_exact(&mut [0; 1]).expect("the response begins");
    server.signal(Signal::QUIT);
    wait_until("the port to be closed", || TcpStream::connect(server.addr(0).tcp()).is_err());
    server.signal(Signal::HUP);
    server.wait_for_log("(SIGHUP) received", Deadline::default());
    open.read_to_end(&mut Vec::new()).expect("the rest of the response");
    assert!(server.wait_until_ended(Deadline::default()).success());
    let log = server.error_log();
    assert!(!log.contains("reconfiguring"), "{log}");
}

#[test]
fn new_directories_have_the_permissions_of_dav_access_with_any_umask() {
    let conf = "user root; events {} http { access_log off; server { listen 127.0.0.1:0; root html; \
                dav_methods MKCOL; dav_access group:rw all:rw; } }";
    let server = Server::builder(BINARY).conf(conf).shell("umask 022").start();
    let mut client = TcpStream::connect(server.addr(0).tcp()).expect("it listens");
    client.write_all(b"MKCOL /new/ HTTP/1.0\r\n\r\n").expect("connected");
    let mut response = String::new();
    client.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
    let mode = fs::metadata(server.path("html/new")).expect("just created").permissions().mode();
    assert_eq!(mode & 0o777, 0o777);
}

#[test]
fn paths_depend_on_the_prefix_and_the_command_line() {
    let server = Server::builder(BINARY).conf(&site("", "here")).arg("-g").arg("worker_processes 2;").start();
    assert_eq!(ask(server.addr(0)), "here");
    let output = std::process::Command::new(BINARY)
        .args(["-p", &format!("{}/", server.dir().display()), "-c", "conf/nginx.conf", "-s", "quit"])
        .output()
        .expect("the binary was built");
    assert!(output.status.success());
    server.wait_for_log("signal 3 (SIGQUIT) received from", Deadline::default());
    wait_until("the pid file to go", || !server.path("logs/nginx.pid").exists());
}

#[test]
fn the_port_of_a_stopped_server_is_free_immediately() {
    let server = Server::start(BINARY, &site("", "first"));
    let address = server.addr(0).tcp();
    // If the server closes a connection first, its port is in TIME_WAIT.
    let mut open = TcpStream::connect(address).expect("it listens");
    assert!(server.stop_and_wait().success());
    let _ = open.read(&mut [0; 16]);
    let conf = site("", "second").replace("127.0.0.1:0", &address.to_string());
    let server = Server::builder(BINARY).conf(&conf).start();
    assert_eq!(ask(server.addr(0)), "second");
}

#[test]
fn limits_environment_and_working_directory_apply_to_the_worker() {
    let main = "worker_processes 2; worker_rlimit_nofile 150; worker_rlimit_core 0; env FROM_CALLER; \
                env WRITTEN=value; working_directory html;";
    let builder = Server::builder(BINARY).conf(&site(main, "here"));
    let server = builder.env("FROM_CALLER", "kept").env("OTHER", "dropped").start();
    let worker = only_worker(&server);
    let read = |name: &str| fs::read(format!("/proc/{worker}/{name}")).expect("procfs");
    let limits = String::from_utf8(read("limits")).expect("text");
    let files: Vec<&str> = limits.lines().filter(|line| line.starts_with("Max open files")).collect();
    // Multiplied per thread, as nginx counts per worker.
    assert!(files[0].split_whitespace().skip(3).take(2).all(|limit| limit == "300"), "{files:?}");
    let environment = String::from_utf8(read("environ")).expect("text");
    // The worker inherits the server's own variables too, and the test run sets one of them.
    let asked_for = |variable: &&str| !variable.is_empty() && !variable.starts_with("RINGROAD_");
    let variables: Vec<&str> = environment.split('\0').filter(asked_for).collect();
    assert_eq!(variables, ["FROM_CALLER=kept", "WRITTEN=value"]);
    let folder = fs::read_link(format!("/proc/{worker}/cwd")).expect("procfs");
    assert_eq!(folder, server.path("html").canonicalize().expect("it is there"));
}

#[test]
fn quit_completes_requests_in_progress() {
    let body = Content::new(7, 3 << 20);
    let conf = "events {} http { access_log off; server { listen 127.0.0.1:0; root html; } }";
    let mut server = Server::builder(BINARY).conf(conf).file("html/large.bin", body).start();
    // A client with a small receive buffer: most of the body is unsent when the signal arrives.
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert_eq!(head.status, 200);
    server.signal(Signal::QUIT);
    server.wait_for_log("gracefully shutting down", Deadline::default());
    wait_until("the socket to be closed", || TcpStream::connect(server.addr(0).tcp()).is_err());
    body.compare(0..3 << 20, &mut client.body(&head)).unwrap_or_else(|mismatch| panic!("{mismatch:?}"));
    assert!(server.wait_until_ended(Deadline::default()).success());
}

/// Otherwise a request that is in flight when the worker begins to shut down arrives at a closed connection.
#[test]
fn keepalive_min_timeout_protects_idle_connections_from_a_shutdown() {
    let conf = "worker_processes 1; events {} http { access_log off; keepalive_timeout 600s; \
                server { listen 127.0.0.1:0; location / { return 200 other; } \
                location /protected { keepalive_min_timeout 600s; return 200 protected; } } }";
    let mut server = Server::start(BINARY, conf);
    let mut protected = Client::connect(server.addr(0));
    assert_eq!(protected.get("/protected").text(), "protected");
    let mut other = Client::connect(server.addr(0));
    assert_eq!(other.get("/").text(), "other");
    server.signal(Signal::QUIT);
    other.expect_end();
    let last = protected.get("/");
    assert_eq!((last.text().as_str(), last.field("Connection")), ("other", Some("close")));
    protected.expect_end();
    assert!(server.wait_until_ended(Deadline::default()).success());
}

#[test]
fn worker_shutdown_timeout_ends_an_old_worker() {
    let main = "worker_shutdown_timeout 300ms;";
    let conf = "events {} http { access_log off; server { listen 127.0.0.1:0; root html; } }";
    let builder = Server::builder(BINARY).conf(&format!("{main} {conf}"));
    let mut server = builder.file("html/large.bin", Content::new(7, 8 << 20)).start();
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    // The client does not read on; without the timeout the server would never stop.
    server.signal(Signal::QUIT);
    assert!(server.wait_until_ended(Deadline::default()).success(), "{}", server.error_log());
}
