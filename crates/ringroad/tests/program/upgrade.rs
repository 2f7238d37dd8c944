//! Binary upgrade without interruption: from Ringroad to Ringroad, from nginx to Ringroad, and from Ringroad to nginx.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::load::{self, FILE_LEN, Load, Upstreams, served_once};
use crate::common::tls::{Authority, BOTH};
use crate::control::{self, BINARY, wait_until};
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use testkit::nginx;
use testkit::ports::free_port;
use testkit::process::{children, is_alive};
use testkit::program::{run, signal_process};
use testkit::{Client, Deadline, ListenAddr, Server, TempDir};

/// A server whose binary is a file in the test's directory.
struct Site {
    dir: TempDir,
    tcp: ListenAddr,
    unix: ListenAddr,
}

/// Configuration that both servers parse. `PREFIX` is the directory; the port was free shortly before.
const CONF: &str = "daemon on; worker_processes 1; pid PREFIXlogs/server.pid; error_log PREFIXlogs/error.log notice;\n\
    events { worker_connections 512; EVENTS }\n\
    http { access_log off; server { listen 127.0.0.1:PORT; listen unix:PREFIXsite.sock; TLS\n\
    location / { return 200 here; } } }";

impl Site {
    /// Creates the directory, with a binary and a configuration.
    fn new(binary: &Path, events: &str, tls: &str) -> Site {
        let dir = TempDir::new("upgrade");
        for name in ["bin", "conf", "logs"] {
            dir.dir(name);
        }
        let port = free_port();
        let tcp = ListenAddr::Tcp(([127, 0, 0, 1], port).into());
        let unix = ListenAddr::Unix(dir.path().join("site.sock"));
        let site = Site { dir, tcp, unix };
        let conf = CONF.replace("PORT", &port.to_string()).replace("EVENTS", events).replace("TLS", tls);
        site.dir.write("conf/server.conf", conf.replace("PREFIX", &site.prefix()));
        site.install(binary);
        site
    }

    /// Returns the prefix in nginx's form.
    fn prefix(&self) -> String {
        format!("{}/", self.dir.path().display())
    }

    fn binary(&self) -> PathBuf {
        self.dir.path().join("bin/server")
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.path().join("logs/server.pid")
    }

    /// Replaces the binary, as a package manager does.
    fn install(&self, binary: &Path) {
        let fresh = self.dir.path().join("bin/fresh");
        if fs::hard_link(binary, &fresh).is_err() {
            fs::copy(binary, &fresh).expect("the binary can be read");
        }
        fs::rename(&fresh, self.binary()).expect("they are siblings");
        // A rename has no effect if both names are links to one file.
        let _ = fs::remove_file(&fresh);
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binary());
        command.arg("-p").arg(self.prefix()).args(["-c", "conf/server.conf", "-e", "logs/error.log"]);
        command
    }

    /// Starts the daemon and returns its process ID.
    fn start(&self) -> i32 {
        let stderr = fs::File::create(self.dir.path().join("stderr")).expect("a file");
        let status = self.command().stdin(Stdio::null()).stderr(stderr).status().expect("it starts");
        assert!(status.success(), "{}", self.log());
        wait_until("the pid file", || self.pid().is_some());
        self.pid().expect("just seen")
    }

    fn pid(&self) -> Option<i32> {
        fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }

    fn old_pid(&self) -> Option<i32> {
        fs::read_to_string(self.pid_file().with_extension("pid.oldbin")).ok()?.trim().parse().ok()
    }

    /// Returns the logs, which a failed test prints.
    fn log(&self) -> String {
        let text = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        text("logs/error.log") + "--- stderr\n" + &text("stderr")
    }

    #[track_caller]
    fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let outcome = testkit::wait::until(what, Deadline::default(), || holds().then_some(()));
        outcome.unwrap_or_else(|late| panic!("{late}\n{}", self.log()));
    }

    /// Sends USR2 and returns the new master's process ID when its worker accepts connections.
    fn upgrade(&self) -> i32 {
        let old = self.pid().expect("it runs");
        signal_process(old, Signal::USR2).expect("it runs");
        self.wait("a new pid file beside the old one", || {
            self.old_pid() == Some(old) && self.pid().is_some_and(|pid| pid != old)
        });
        let new = self.pid().expect("just seen");
        self.wait("a worker of the new binary", || !children(new).is_empty());
        new
    }

    /// Runs `-s upgrade` of Ringroad with these further options; returns its exit status and standard error.
    fn upgrade_command(&self, more: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(BINARY);
        command.arg("-p").arg(self.prefix()).args([
            "-c",
            "conf/server.conf",
            "-e",
            "logs/error.log",
            "-s",
            "upgrade",
        ]);
        let said = command.args(more).output().expect("the binary was built");
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    }

    /// Completes the upgrade: stops first the old workers, then the old master.
    fn finish(&self, old: i32, new: i32) {
        signal_process(old, Signal::WINCH).expect("it runs");
        self.wait("no worker of the old binary", || children(old).iter().all(|pid| *pid == new));
        signal_process(old, Signal::QUIT).expect("it runs");
        self.wait("the end of the old master", || !is_alive(old) && self.old_pid().is_none());
        assert_eq!(self.pid(), Some(new));
    }

    /// Returns the name of the program that responds.
    fn served_by(&self) -> String {
        let response = Client::connect(&self.tcp).get("/");
        assert_eq!(response.text(), "here");
        response.field("server").unwrap_or_default().split('/').next().unwrap_or_default().to_owned()
    }

    /// Runs `action` while clients make requests, each on a separate connection. Every request must get a response.
    fn under_load(&self, action: impl FnOnce()) -> usize {
        let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let mut clients = Vec::new();
            for address in [&self.tcp, &self.tcp, &self.unix] {
                let (done, asked) = (&done, &asked);
                clients.push(scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        let mut client = Client::try_connect(address)
                            .unwrap_or_else(|error| panic!("refused: {error}\n{}", self.log()));
                        assert_eq!(client.get("/").status, 200, "never reset");
                        asked.fetch_add(1, Ordering::SeqCst);
                    }
                }));
            }
            let more = |count| {
                let enough = asked.load(Ordering::SeqCst) + count;
                let failed = || clients.iter().any(|client| client.is_finished());
                self.wait("responses", || failed() || asked.load(Ordering::SeqCst) >= enough);
            };
            // Also if something fails: the clients would never stop.
            let _end = End(&done);
            more(20);
            action();
            more(20);
        });
        asked.into_inner()
    }
}

/// Stops the clients when dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for pid in [self.old_pid(), self.pid()].into_iter().flatten() {
            // The command line proves that the process ID is the server's.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&*self.dir.path().to_string_lossy()) {
                let workers = children(pid);
                for pid in [pid].into_iter().chain(workers) {
                    let _ = signal_process(pid, Signal::KILL);
                }
            }
        }
    }
}

#[test]
fn ringroad_replaces_nginx_and_nginx_replaces_ringroad() {
    let Some(nginx) = nginx::installed() else { return };
    let site = Site::new(&nginx, "", "");
    site.start();
    assert_eq!(site.served_by(), "nginx");
    let asked = site.under_load(|| {
        for (binary, name) in
            [(Path::new(BINARY), "ringroad"), (&nginx, "nginx"), (Path::new(BINARY), "ringroad")]
        {
            let old = site.pid().expect("it runs");
            site.install(binary);
            let new = site.upgrade();
            site.finish(old, new);
            assert_eq!(site.served_by(), name);
        }
    });
    assert!(asked > 0);
    let log = site.log();
    for line in ["start new binary process", "using inherited sockets from \"", "changing binary"] {
        assert!(log.matches(line).count() >= 3, "{line}\n{log}");
    }
    // The last master removes the socket file.
    signal_process(site.pid().expect("it runs"), Signal::QUIT).expect("it runs");
    site.wait("the end", || site.pid().is_none());
    assert!(!site.dir.path().join("site.sock").exists(), "{}", site.log());
}

#[test]
#[ignore = "twenty rounds"]
fn twenty_upgrades_between_nginx_and_ringroad_work() {
    let Some(nginx) = nginx::installed() else { return };
    let site = Site::new(&nginx, "", "");
    site.start();
    let asked = site.under_load(|| {
        for round in 0..20 {
            let old = site.pid().expect("it runs");
            site.install(if round % 2 == 0 { Path::new(BINARY) } else { &nginx });
            let new = site.upgrade();
            site.finish(old, new);
        }
    });
    eprintln!("{asked} requests, none failed");
}

#[test]
fn ringroad_replaces_ringroad_on_every_engine() {
    for engine in ["epoll", "io_uring"] {
        let site = Site::new(Path::new(BINARY), &format!("use {engine};"), "");
        let (out, status) = {
            let output = site.command().arg("-t").output().expect("it runs");
            (String::from_utf8_lossy(&output.stderr).into_owned(), output.status)
        };
        if !status.success() || out.contains("io_uring cannot be used") {
            testkit::report_skipped(engine, "sync", &out);
            continue;
        }
        let first = site.start();
        let mut old = first;
        site.under_load(|| {
            for _ in 0..2 {
                site.install(Path::new(BINARY));
                let new = site.upgrade();
                site.finish(old, new);
                old = new;
            }
        });
        let log = site.log();
        assert!(log.matches(&format!("using the \"{engine}\" event method")).count() >= 3, "{log}");
        assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
    }
}

#[test]
fn the_upgrade_command_returns_when_the_new_binary_serves() {
    let site = Site::new(Path::new(BINARY), "", "");
    // With a delay of the shutdown, the old worker would continue to accept connections after QUIT.
    let conf = fs::read_to_string(site.dir.path().join("conf/server.conf")).expect("a file");
    site.dir.write("conf/server.conf", format!("shutdown_delay 60s; {conf}"));
    let mut old = site.start();
    site.under_load(|| {
        for quiet in [&[][..], &["-q"]] {
            site.install(Path::new(BINARY));
            let (code, said) = site.upgrade_command(&[&["--any-process"], quiet].concat());
            let new = site.pid().expect("it serves");
            assert_eq!(code, Some(0), "{said}\n{}", site.log());
            assert_ne!(new, old);
            let expected = format!(
                "ringroad: upgrade successful: process {new} serves, process {old} finishes its requests and exits\n"
            );
            assert_eq!(said, if quiet.is_empty() { expected.as_str() } else { "" });
            site.wait("the end of the old master", || !is_alive(old) && site.old_pid().is_none());
            old = new;
        }
    });
    let log = site.log();
    assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
}

#[test]
fn the_upgrade_command_reports_why_the_old_binary_continues() {
    let site = Site::new(Path::new(BINARY), "", "");
    let pid = site.start();
    let failed = |expected: &str| {
        let (code, said) = site.upgrade_command(&["--any-process"]);
        assert_eq!(code, Some(1), "{said}");
        let start = format!("ringroad: [emerg] upgrade failed: process {pid} continues to serve: ");
        let reason = said.strip_prefix(&start).unwrap_or_else(|| panic!("{said}\n{}", site.log()));
        assert!(reason.contains(expected) && reason.lines().count() == 1, "{said}");
        assert_eq!((site.pid(), site.old_pid()), (Some(pid), None));
        assert_eq!(site.served_by(), "ringroad");
    };
    // A program that the kernel does not execute, and one that exits.
    for (program, expected) in [
        ("no program", "execve() failed while executing new binary process"),
        ("#!/bin/sh\nexit 7\n", "exited with code 7; the error log has the reason"),
    ] {
        fs::remove_file(site.binary()).expect("it exists");
        fs::write(site.binary(), program).expect("it can be written");
        fs::set_permissions(site.binary(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        failed(expected);
    }
    // A configuration that the command and the new binary can load, but that the new binary cannot serve.
    site.install(Path::new(BINARY));
    let conf = fs::read_to_string(site.dir.path().join("conf/server.conf")).expect("a file");
    site.dir
        .write("conf/server.conf", conf.replace("location /", "listen unix:/nonexistent/a.sock; location /"));
    failed("exited with code 1; the error log has the reason");
    assert!(site.log().contains("bind() to unix:/nonexistent/a.sock failed"), "{}", site.log());
    site.dir.write("conf/server.conf", &conf);
    // While two binaries run, neither starts a third one. Then the signals of nginx complete the upgrade.
    let new = site.upgrade();
    let (code, said) = site.upgrade_command(&["--any-process"]);
    assert_eq!(code, Some(1));
    let expected = format!(
        "upgrade failed: process {new} continues to serve: process {pid} of the last upgrade still runs, for example because of a \
         download: wait until it exits, or stop it by \"kill {pid}\"\n"
    );
    assert!(said.ends_with(&expected), "{said}");
    site.finish(pid, new);
}

#[test]
fn the_upgrade_command_is_refused_by_servers_that_cannot_upgrade() {
    for (main, expected) in [
        ("", " continues to serve: not a daemon\n"),
        ("master_process off;", "\"master_process off\": no master executes a new binary"),
    ] {
        let server = Server::start(BINARY, &control::site(main, "here"));
        let prefix = format!("{}/", server.dir().display());
        let said = run(BINARY, &["-p", &prefix, "-c", "conf/nginx.conf", "-s", "upgrade"]);
        assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
        assert!(said.stderr.contains(expected), "{}", said.stderr);
        assert_eq!(control::ask(server.addr(0)), "here");
    }
}

/// The pid files of nginx are sufficient: nginx reports nothing to the command.
#[test]
fn the_upgrade_command_replaces_nginx() {
    let Some(nginx) = nginx::installed() else { return };
    let site = Site::new(&nginx, "", "");
    let old = site.start();
    let (code, said) = site.upgrade_command(&[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("is not ringroad"), "{said}");
    assert_eq!(site.pid(), Some(old));
    // A new binary that exits.
    let conf = fs::read_to_string(site.dir.path().join("conf/server.conf")).expect("a file");
    site.install(Path::new(BINARY));
    site.dir
        .write("conf/server.conf", conf.replace("location /", "listen unix:/nonexistent/a.sock; location /"));
    let (code, said) = site.upgrade_command(&["--any-process"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the new binary has exited"), "{said}");
    site.dir.write("conf/server.conf", conf);
    let (code, said) = site.upgrade_command(&["--any-process"]);
    assert_eq!(code, Some(0), "{said}\n{}", site.log());
    assert_eq!(site.served_by(), "ringroad");
    site.wait("the end of nginx", || !is_alive(old) && site.old_pid().is_none());
}

/// Writes a certificate into the directory; returns its CA.
fn write_certificate(dir: &TempDir) -> Authority {
    let authority = Authority::new("root");
    let (certificate, key) = authority.server("a.test");
    dir.write("conf/a.pem", certificate);
    dir.write("conf/a.key", key);
    authority
}

/// The new binary has other ticket keys, so that clients cannot resume their sessions.
#[test]
fn upgrades_fail_no_request_over_tls() {
    let (port, upstreams) = (free_port(), Upstreams::start());
    let tls = format!("listen 127.0.0.1:{port} ssl;\n{}", load::server(&upstreams));
    let site = Site::new(Path::new(BINARY), "", &tls);
    let authority = write_certificate(&site.dir);
    site.dir.write("html/file", "x".repeat(FILE_LEN));
    let mut old = site.start();
    let load = Load::new(&authority, ([127, 0, 0, 1], port).into());
    let served = load.run(|| {
        for _ in 0..2 {
            site.install(Path::new(BINARY));
            let new = site.upgrade();
            load.each_is_served();
            // The old master and its worker are stopped in two steps here, and by one signal below.
            site.finish(old, new);
            load.each_is_served();
            old = new;
        }
        let new = site.upgrade();
        signal_process(old, Signal::QUIT).expect("it runs");
        site.wait("the end of the old master", || !is_alive(old) && site.old_pid().is_none());
        assert_eq!(site.pid(), Some(new));
    });
    served_once(&served, || fs::read_to_string(site.dir.path().join("logs/access.log")).unwrap_or_default());
    let log = site.log();
    assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
}

#[test]
fn tls_continues_and_the_old_worker_completes_its_response() {
    tls_continues("");
}

#[test]
fn tls_continues_with_a_signing_process_for_each_binary() {
    tls_continues("sandbox strict;");
}

fn tls_continues(main: &str) {
    let port = free_port();
    let tls = format!(
        "listen 127.0.0.1:{port} ssl; ssl_certificate PREFIXconf/a.pem; ssl_certificate_key PREFIXconf/a.key;\n\
         location /big/ {{ root PREFIX; }}"
    );
    let site = Site::new(Path::new(BINARY), "", &tls);
    let conf = site.dir.path().join("conf/server.conf");
    let text = fs::read_to_string(&conf).expect("it is there");
    fs::write(&conf, main.to_owned() + &text).expect("it is ours");
    let config = write_certificate(&site.dir).clients(BOTH, None);
    let size = 8 << 20;
    site.dir.write("big/file", vec![b'x'; size]);
    let old = site.start();
    let processes = if main.is_empty() { 1 } else { 2 };
    assert_eq!(children(old).len(), processes);
    let connect = |target: &str| {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("never refused");
        socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
        let name = ServerName::try_from("a.test").expect("a name");
        let session = ClientConnection::new(Arc::clone(&config), name).expect("a session");
        let mut tls = StreamOwned::new(session, socket);
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).expect("it is sent");
        tls
    };
    // Begun with the old binary and read only after the upgrade.
    let mut slow = connect("/big/file");
    let mut first = [0; 1000];
    slow.read_exact(&mut first).expect("it begins");
    let new = site.upgrade();
    signal_process(old, Signal::WINCH).expect("it runs");
    let mut whole = Vec::new();
    connect("/").read_to_end(&mut whole).expect("a closing alert");
    assert!(whole.ends_with(b"here"), "{}", String::from_utf8_lossy(&whole));
    whole.clear();
    slow.read_to_end(&mut whole).expect("the old worker goes on");
    assert!(whole.len() + first.len() > size, "{}", whole.len());
    site.finish(old, new);
    assert_eq!(children(new).len(), processes);
    let mut whole = Vec::new();
    connect("/").read_to_end(&mut whole).expect("a closing alert");
    assert!(whole.ends_with(b"here"));
}

#[test]
fn a_binary_that_cannot_be_executed_changes_nothing() {
    let site = Site::new(Path::new(BINARY), "", "");
    let pid = site.start();
    fs::remove_file(site.binary()).expect("it was installed");
    site.under_load(|| {
        signal_process(pid, Signal::USR2).expect("it runs");
        site.wait("the failure in the log", || {
            site.log().contains("failed while executing new binary process")
        });
    });
    site.wait("the pid file", || site.pid() == Some(pid) && site.old_pid().is_none());
    assert_eq!(site.served_by(), "ringroad");
}

#[test]
fn the_old_binary_resumes_after_the_new_one_has_exited() {
    let site = Site::new(Path::new(BINARY), "", "");
    let pid = site.start();
    // A binary that exits immediately.
    let script = site.dir.write("bin/script", "#!/bin/sh\nexit 3\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::rename(&script, site.binary()).expect("they are siblings");
    signal_process(pid, Signal::USR2).expect("it runs");
    site.wait("its end", || site.log().contains("exited with code 3"));
    site.wait("the pid file", || site.pid() == Some(pid) && site.old_pid().is_none());

    // A binary that refuses the configuration.
    site.install(Path::new(BINARY));
    let conf = site.dir.path().join("conf/server.conf");
    let text = fs::read_to_string(&conf).expect("it is there");
    fs::write(&conf, "nonsense;").expect("it is ours");
    signal_process(pid, Signal::USR2).expect("it runs");
    site.wait("its end", || site.log().contains("exited with code 1"));
    site.wait("the pid file", || site.pid() == Some(pid) && site.old_pid().is_none());
    fs::write(&conf, text).expect("it is ours");

    // A binary that is killed after the old workers have exited.
    site.under_load(|| {
        let new = site.upgrade();
        signal_process(pid, Signal::WINCH).expect("it runs");
        site.wait("no worker of the old binary", || children(pid) == [new]);
        signal_process(new, Signal::QUIT).expect("it runs");
        site.wait("the old workers", || children(pid).len() == 1 && !is_alive(new));
        site.wait("the pid file", || site.pid() == Some(pid) && site.old_pid().is_none());
    });
    let unix = site.dir.path().join("site.sock");
    assert!(unix.exists(), "the socket is still in use");
    // And the next upgrade succeeds.
    let new = site.upgrade();
    site.finish(pid, new);
}

#[test]
fn a_new_binary_that_fails_at_its_admin_socket_leaves_the_inherited_sockets() {
    let site = Site::new(Path::new(BINARY), "", "");
    let pid = site.start();
    let text = fs::read_to_string(site.dir.path().join("conf/server.conf")).expect("it was written");
    let text = format!("admin_socket {}missing/admin.sock;\n{text}", site.prefix());
    site.dir.write("conf/server.conf", text);
    signal_process(pid, Signal::USR2).expect("it runs");
    site.wait("its end", || site.log().contains("exited with code 1"));
    assert_eq!(Client::connect(&site.unix).get("/").text(), "here");
}

#[test]
fn the_old_binary_resumes_after_hup() {
    let site = Site::new(Path::new(BINARY), "", "");
    let pid = site.start();
    let new = site.upgrade();
    // Neither of the two starts a third.
    for pid in [pid, new] {
        signal_process(pid, Signal::USR2).expect("it runs");
    }
    site.wait("both refuse", || site.log().matches("the changing binary signal is ignored").count() == 2);
    signal_process(pid, Signal::WINCH).expect("it runs");
    site.wait("no worker of the old binary", || children(pid) == [new]);
    site.under_load(|| {
        signal_process(pid, Signal::HUP).expect("it runs");
        site.wait("a worker of the old binary", || children(pid).len() == 2);
        signal_process(new, Signal::QUIT).expect("it runs");
        site.wait("the end of the new binary", || !is_alive(new) && site.pid() == Some(pid));
    });
    assert_eq!(site.served_by(), "ringroad");
}

#[test]
fn the_command_line_controls_the_master_of_the_pid_file() {
    let site = Site::new(Path::new(BINARY), "", "");
    let old = site.start();
    let new = site.upgrade();
    let status = site.command().args(["-s", "reload"]).status().expect("it runs");
    assert!(status.success());
    let line = format!("{new}#{new}: signal 1 (SIGHUP) received");
    site.wait("a reload of the new master", || site.log().contains(&line));
    let status = site.command().args(["-s", "quit"]).status().expect("it runs");
    assert!(status.success());
    site.wait("the end of the new master", || !is_alive(new) && site.pid() == Some(old));
    assert_eq!(site.served_by(), "ringroad");
    let status = site.command().args(["-s", "stop"]).status().expect("it runs");
    assert!(status.success());
    site.wait("the end", || !is_alive(old) && site.pid().is_none());
}

/// Commands query the newest master, and the old one again if the newest has exited.
#[test]
fn the_admin_socket_belongs_to_the_newest_master() {
    let site = Site::new(Path::new(BINARY), "", "");
    let socket = site.dir.path().join("admin.sock");
    let text = fs::read_to_string(site.dir.path().join("conf/server.conf")).expect("it was written");
    site.dir.write("conf/server.conf", format!("admin_socket {};\n{text}", socket.display()));
    let url = format!("http://{}/", site.tcp.tcp());
    let asks = || {
        let said = run(BINARY, &["explain", "--socket", &socket.display().to_string(), &url]);
        said.stdout.contains("response   200 by \"return\" at ")
    };
    let file = || fs::metadata(&socket).ok().map(|found| found.ino());
    let old = site.start();
    let first = file();
    assert!(first.is_some() && asks(), "{}", site.log());
    let new = site.upgrade();
    site.wait("the socket of the new master", || file().is_some_and(|file| Some(file) != first));
    assert!(asks(), "{}", site.log());
    signal_process(new, Signal::TERM).expect("it runs");
    site.wait("the socket of the old master", || !is_alive(new) && file().is_some() && asks());
    let new = site.upgrade();
    site.finish(old, new);
    assert!(asks(), "the old master must not remove the file\n{}", site.log());
    signal_process(new, Signal::QUIT).expect("it runs");
    site.wait("the end", || !is_alive(new));
    assert_eq!(file(), None);
}
