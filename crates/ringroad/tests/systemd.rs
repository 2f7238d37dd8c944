//! systemd's protocols, with the test in the role of systemd: notification, socket activation, watchdog.
//!
//! This test program is separate from `program/`: programs that other tests start at the same time would inherit the descriptors
//! of the sockets.
#![forbid(unsafe_code)]

mod control;

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::time::Duration;

use control::{BINARY, ask, site, wait_until};
use rustix::io::FdFlags;
use rustix::process::Signal;
use testkit::program::signal_process;
use testkit::server::ServerBuilder;
use testkit::{Deadline, ListenAddr, Server, TempDir};

/// The receiver of the service's notifications.
struct Manager {
    socket: UnixDatagram,
    /// Value of the service's `NOTIFY_SOCKET`.
    name: String,
}

impl Manager {
    /// Binds a path in this directory.
    fn at_path(dir: &Path) -> Manager {
        let path = dir.join("notify");
        Manager::of(UnixDatagram::bind(&path).expect("a socket"), path.display().to_string())
    }

    /// Binds a name in the abstract namespace.
    fn abstract_of(dir: &Path) -> Manager {
        let name = format!("ringroad{}", dir.display());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        Manager::of(UnixDatagram::bind_addr(&address).expect("a socket"), format!("@{name}"))
    }

    fn of(socket: UnixDatagram, name: String) -> Manager {
        socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
        Manager { socket, name }
    }

    /// Returns the next message, as lines.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8_lossy(&bytes[..count]).lines().map(str::to_owned).collect()
    }

    /// Returns the next message that is not a watchdog notification.
    fn next_news(&self) -> Vec<String> {
        loop {
            let message = self.next();
            if message != ["WATCHDOG=1"] {
                return message;
            }
        }
    }

    fn serve(&self, builder: ServerBuilder) -> Server {
        builder.env("NOTIFY_SOCKET", &self.name).start()
    }
}

/// Returns the value of a name in the message.
fn value<'a>(message: &'a [String], name: &str) -> &'a str {
    let found = message.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("{name} in {message:?}"))
}

#[test]
fn systemd_is_notified_of_start_reloads_and_stop() {
    let dir = TempDir::new("notify");
    for (manager, main) in [
        (Manager::at_path(dir.path()), ""),
        (Manager::abstract_of(dir.path()), ""),
        (Manager::abstract_of(&dir.path().join("b")), "master_process off;"),
    ] {
        let mut server = manager.serve(Server::builder(BINARY).conf(&site(main, "one")));
        let pid = server.pid().to_string();
        let message = manager.next();
        assert_eq!((value(&message, "READY"), value(&message, "MAINPID")), ("1", pid.as_str()));
        assert_eq!(value(&message, "STATUS"), "serving configuration 1");
        assert_eq!(ask(server.addr(0)), "one");

        server.rewrite_conf(&site(main, "two"));
        server.reload();
        let message = manager.next();
        assert_eq!(value(&message, "RELOADING"), "1");
        let micros: u64 = value(&message, "MONOTONIC_USEC").parse().expect("a number");
        assert!(micros > 0);
        assert_eq!(value(&manager.next(), "READY"), "1");
        assert_eq!(ask(server.addr(0)), "two", "active when systemd is notified");

        // A refused reload is reported as finished too.
        server.rewrite_conf("nonsense");
        server.reload();
        assert_eq!(value(&manager.next(), "RELOADING"), "1");
        let message = manager.next();
        assert_eq!(value(&message, "READY"), "1");
        if main.is_empty() {
            assert!(value(&message, "STATUS").contains("the last reload failed"), "{message:?}");
        }
        server.rewrite_conf(&site(main, "three"));
        server.reload();
        assert_eq!(value(&manager.next(), "RELOADING"), "1");
        assert!(!value(&manager.next(), "STATUS").contains("failed"));

        server.signal(Signal::QUIT);
        assert_eq!(value(&manager.next(), "STOPPING"), "1");
        assert!(server.wait_until_ended(Deadline::default()).success());
    }
}

#[test]
fn an_unreachable_service_manager_is_ignored() {
    for (name, is_told) in [("/nowhere/notify", false), ("relative", true), ("", false)] {
        let server = Server::builder(BINARY).conf(&site("", "here")).env("NOTIFY_SOCKET", name).start();
        assert_eq!(ask(server.addr(0)), "here");
        let warning = "NOTIFY_SOCKET \"relative\" cannot be used";
        assert_eq!(server.stderr().contains(warning), is_told, "{}", server.stderr());
        assert!(server.quit_and_wait().success());
    }
}

#[test]
fn watchdog_notifications_stop_with_the_worker() {
    let dir = TempDir::new("watchdog");
    for main in ["worker_processes 2;", "master_process off;"] {
        let _ = std::fs::remove_file(dir.path().join("notify"));
        let manager = Manager::at_path(dir.path());
        let builder = Server::builder(BINARY).conf(&site(main, "here")).env("WATCHDOG_USEC", "100000");
        let server = manager.serve(builder);
        assert_eq!(value(&manager.next(), "READY"), "1");
        for _ in 0..3 {
            assert_eq!(value(&manager.next(), "WATCHDOG"), "1");
        }
        let Some(&worker) = server.workers().first() else { continue };
        signal_process(worker, Signal::STOP).expect("it runs");
        // Notifications may have been in flight. After those none arrives, however long the wait.
        manager.socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let mut bytes = [0; 64];
        let silent = || manager.socket.recv(&mut bytes).is_err().then_some(());
        testkit::wait::until("silence", Deadline::default(), silent).expect("the worker has stopped");
        manager.socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
        signal_process(worker, Signal::CONT).expect("it runs");
        assert_eq!(value(&manager.next(), "WATCHDOG"), "1");
        // The master sends the notifications while no worker runs; the next worker causes them again once it serves.
        signal_process(worker, Signal::KILL).expect("it runs");
        server.wait_for_log_count(": start worker process ", 2, Deadline::default());
        for _ in 0..3 {
            assert_eq!(value(&manager.next(), "WATCHDOG"), "1");
        }
        server.signal(Signal::TERM);
        assert_eq!(value(&manager.next_news(), "STOPPING"), "1");
    }
}

#[test]
fn a_watchdog_for_another_process_is_ignored() {
    let dir = TempDir::new("watchdog");
    let manager = Manager::at_path(dir.path());
    let builder = Server::builder(BINARY).conf(&site("", "here"));
    let server = manager.serve(builder.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1"));
    assert_eq!(value(&manager.next(), "READY"), "1");
    assert_eq!(ask(server.addr(0)), "here");
    server.signal(Signal::TERM);
    assert_eq!(value(&manager.next(), "STOPPING"), "1");
}

#[test]
fn systemd_is_notified_of_a_new_binary_when_the_old_one_exits() {
    let dir = TempDir::new("handover");
    let manager = Manager::at_path(dir.path());
    let path = dir.path().join("site.sock");
    let unix = UnixListener::bind(&path).expect("a path");
    let conf = site("", "here").replace("listen 127.0.0.1:0;", &format!("listen unix:{};", path.display()));
    // With a socket from systemd, whose file exists after every server has stopped.
    let builder = Server::builder(BINARY).conf(&conf).env("WATCHDOG_USEC", "100000");
    let mut server = manager.serve(activate(builder, &[high(&unix)], "$$"));
    assert_eq!(value(&manager.next_news(), "READY"), "1");
    server.signal(Signal::USR2);
    let pid_file = server.path("logs/nginx.pid");
    let read = || std::fs::read_to_string(&pid_file).ok()?.trim().parse::<i32>().ok();
    let old = server.pid();
    wait_until("the pid file of the new binary", || read().is_some_and(|pid| pid != old));
    let new = read().expect("just seen");
    server.signal(Signal::QUIT);
    // Only the main process may send notifications. The new binary sends them once its process is the main process.
    assert_eq!(manager.next_news(), [format!("MAINPID={new}")]);
    let message = manager.next_news();
    assert_eq!((value(&message, "READY"), value(&message, "MAINPID")), ("1", new.to_string().as_str()));
    assert_eq!(value(&manager.next(), "WATCHDOG"), "1");
    assert!(server.wait_until_ended(Deadline::default()).success());
    assert_eq!(ask(&ListenAddr::Unix(path.clone())), "here");
    signal_process(new, Signal::QUIT).expect("it runs");
    assert_eq!(value(&manager.next_news(), "STOPPING"), "1");
    wait_until("the end", || !testkit::process::is_alive(new));
    assert!(path.exists(), "systemd listens on");
}

#[test]
fn a_new_binary_notices_that_the_old_one_exited_before_its_start() {
    let dir = TempDir::new("handover");
    let manager = Manager::at_path(dir.path());
    let builder = Server::builder(BINARY).conf(&site("", "here")).env("NGINX", "");
    // No process has this ID, PID_MAX_LIMIT of proc_sys_kernel(5).
    let mut server = manager.serve(builder.env("RINGROAD_PREDECESSOR", "4194304"));
    assert_eq!(value(&manager.next_news(), "READY"), "1");
    server.signal(Signal::TERM);
    assert!(server.wait_until_ended(Deadline::default()).success());
}

/// Passes sockets to the server as descriptors from 3 on, with a shell that supports descriptors of several digits.
fn activate(builder: ServerBuilder, sockets: &[OwnedFd], pid: &str) -> ServerBuilder {
    let mut commands = format!("export LISTEN_PID={pid} LISTEN_FDS={}", sockets.len());
    for (index, socket) in sockets.iter().enumerate() {
        rustix::io::fcntl_setfd(socket, FdFlags::empty()).expect("open");
        let number = socket.as_raw_fd();
        commands += &format!("; exec {}<&{number} {number}<&-", index + 3);
    }
    builder.shell(&format!("exec bash -c '{commands}; exec \"$0\" \"$@\"' \"$0\" \"$@\""))
}

/// Returns a duplicate with a number far from those that the server will get.
fn high(socket: impl AsFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(socket, 100).expect("a free number")
}

#[test]
fn sockets_from_systemd_are_matched_by_address() {
    let dir = TempDir::new("activation");
    let path = dir.path().join("site.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let unix = UnixListener::bind(&path).expect("a path");
    let (address, unused) = (tcp.local_addr().expect("bound"), other.local_addr().expect("bound"));
    let listens = format!("listen {address}; listen unix:{};", path.display());
    let conf = site("", "activated").replace("listen 127.0.0.1:0;", &listens);
    // A client that connects before the server starts waits in the backlog.
    let early = std::thread::spawn(move || ask(&ListenAddr::Tcp(address)));
    let sockets = [high(&unix), high(&other), high(&tcp)];
    let server = activate(Server::builder(BINARY).conf(&conf), &sockets, "$$").start();
    assert_eq!(early.join().expect("an answer"), "activated");
    assert_eq!(ask(&ListenAddr::Unix(path.clone())), "activated");
    let log = server.stderr() + &server.error_log();
    let warning =
        format!("1 of the inherited sockets of {unused} (from #4) are used by no \"listen\" directive");
    let remedy = format!("add \"listen {unused};\"");
    assert!(log.contains(&warning) && log.contains(&remedy), "{log}");
    let target = |fd: i32| std::fs::read_link(format!("/proc/{}/fd/{fd}", server.pid())).ok();
    let sockets_inode = std::fs::read_link(format!("/proc/self/fd/{}", other.as_raw_fd())).ok();
    assert!(sockets_inode.is_some() && target(4) != sockets_inode, "closed");
    // The worker gets each socket once, from the master.
    let worker = server.worker();
    let inherited = (3..6).filter(|fd| target(*fd).is_some()).count();
    assert!(inherited >= 2 && server.workers() == [worker]);

    // A reload retains the sockets; at shutdown the socket file stays for systemd, which continues to listen.
    server.reload();
    server.wait_for_log("was replaced by 2 in place", Deadline::default());
    assert_eq!(ask(&ListenAddr::Unix(path.clone())), "activated");
    assert!(server.quit_and_wait().success());
    assert!(path.exists());
    drop((tcp, other, unix, sockets));
}

#[test]
fn sockets_for_another_process_are_ignored() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let conf = site("", "own");
    let server = activate(Server::builder(BINARY).conf(&conf), &[high(&tcp)], "1").start();
    assert_eq!(ask(server.addr(0)), "own");
    assert!(!server.stderr().contains("inherited"), "{}", server.stderr());
}

#[test]
fn inherited_descriptors_that_are_not_listening_sockets_are_reported() {
    let file = std::fs::File::open("/dev/null").expect("it is everywhere");
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let sockets = [high(&file), high(&datagrams)];
    let server = activate(Server::builder(BINARY).conf(&site("", "here")), &sockets, "$$").start();
    assert_eq!(ask(server.addr(0)), "here");
    let log = server.stderr() + &server.error_log();
    assert!(log.contains("the inherited socket #3 cannot be used (88: "), "{log}");
    // It could be a socket of QUIC.
    assert!(log.contains("(from #4) are used by no \"listen\" directive, closing"), "{log}");
}

#[test]
fn a_daemon_inherits_the_sockets_of_its_parent() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = tcp.local_addr().expect("bound");
    let conf = site("daemon on;", "daemon").replace("127.0.0.1:0", &address.to_string());
    let server = activate(Server::builder(BINARY).conf(&conf), &[high(&tcp)], "$$").start();
    assert_eq!(ask(&ListenAddr::Tcp(address)), "daemon");
    wait_until("one worker", || server.workers().len() == 1);
}
