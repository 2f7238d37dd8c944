//! Sessions of UDP while processes are replaced, descriptors run out, or limits are reached.

use std::cell::Cell;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::BINARY;
use crate::support::{Upstream, connect, echo, serve, serve_with};
use testkit::process::is_alive;
use testkit::program::signal_process;
use testkit::{Deadline, TempDir, ports, wait};

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    socket
}

/// Returns the next response, which must come from this address.
fn response(socket: &UdpSocket, from: SocketAddr) -> String {
    let mut buffer = [0; 1000];
    let (count, sender) = socket.recv_from(&mut buffer).expect("a response");
    assert_eq!(sender, from);
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

/// Sends a text until there is a response that `wanted` accepts.
fn ask_until(to: SocketAddr, text: &str, wanted: impl Fn(&str) -> bool) {
    let found = wait::until("a response", Deadline::default(), || {
        let socket = client();
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time limit");
        socket.send_to(text.as_bytes(), to).expect("it is sent");
        let mut buffer = [0; 1000];
        let count = socket.recv(&mut buffer).ok()?;
        wanted(&String::from_utf8_lossy(&buffer[..count])).then_some(())
    });
    found.expect("a response");
}

/// Starts an upstream that responds with its name and the text.
fn upstream(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("it is bound");
    std::thread::spawn(move || respond_to_others(name, &socket, None));
    address
}

/// Responds with this name and the text to every sender but one.
fn respond_to_others(name: &str, socket: &UdpSocket, but: Option<SocketAddr>) {
    let mut buffer = [0; 1000];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        if Some(from) != but {
            let text = String::from_utf8_lossy(&buffer[..count]);
            let _ = socket.send_to(format!("{name} {text}").as_bytes(), from);
        }
    }
}

/// An upstream that reports its first datagram, and responds to its sender when it is told to. To others it responds at once.
struct Held {
    address: SocketAddr,
    arrived: Receiver<()>,
    respond: Sender<&'static str>,
}

impl Held {
    fn start() -> Held {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("it is bound");
        let ((report, arrived), (respond, told)) = (channel(), channel::<&str>());
        std::thread::spawn(move || {
            let Ok((_, from)) = socket.recv_from(&mut [0; 1000]) else { return };
            let _ = report.send(());
            let others = socket.try_clone().expect("a descriptor");
            std::thread::spawn(move || respond_to_others("held", &others, Some(from)));
            while let Ok(text) = told.recv() {
                let _ = socket.send_to(text.as_bytes(), from);
            }
        });
        Held { address, arrived, respond }
    }

    fn wait_arrived(&self) {
        self.arrived.recv_timeout(Duration::from_secs(20)).expect("a datagram");
    }
}

#[test]
fn limit_conn_counts_sessions_of_udp() {
    let server = serve(&format!(
        "limit_conn_zone $binary_remote_addr zone=clients:1m;
         server {{ listen 127.0.0.1:0 udp; limit_conn clients 1; proxy_pass {}; proxy_timeout 300ms; }}",
        upstream("a")
    ));
    let address = server.addr(0).tcp();
    let first = client();
    first.send_to(b"one", address).expect("it is sent");
    assert_eq!(response(&first, address), "a one");
    // Another port is another session of the same address.
    client().send_to(b"two", address).expect("it is sent");
    assert_eq!(server.wait_for_access_log(1, Deadline::default()), "503 0 0\n");
    server.wait_for_log("limiting connections by zone \"clients\"", Deadline::default());
    // Datagrams of the first session are no sessions.
    first.send_to(b"three", address).expect("it is sent");
    assert_eq!(response(&first, address), "a three");
    server.wait_for_log("udp timed out", Deadline::default());
    ask_until(address, "four", |text| text == "a four");
}

#[test]
fn a_replaced_worker_sends_the_responses_of_its_sessions_and_the_next_one_serves_new_clients() {
    let held = Held::start();
    let mut server = serve_with(
        "sandbox on;",
        &format!("server {{ listen 127.0.0.1:0 udp; proxy_pass {}; }}", held.address),
    );
    let (address, before) = (server.addr(0).tcp(), server.workers());
    let old = client();
    old.send_to(b"x", address).expect("it is sent");
    held.wait_arrived();
    // The sandbox permits other ports only to a new process.
    let new = upstream("new");
    let changed = server.conf().replace(&held.address.to_string(), &new.to_string());
    server.rewrite_conf(&changed);
    server.reload();
    ask_until(address, "y", |text| text == "new y");
    held.respond.send("late").expect("it waits");
    assert_eq!(response(&old, address), "late");
    // Not where the kernel cannot restrict processes.
    if server.error_log().contains("a new worker process is needed") {
        assert!(server.workers().iter().any(|pid| !before.contains(pid)), "another process");
    }
}

#[test]
fn used_up_descriptors_end_sessions_and_no_others() {
    let tcp = Upstream::echo();
    let server = serve_with(
        "worker_rlimit_nofile 100;",
        &format!(
            "server {{ listen 127.0.0.1:0 udp; proxy_pass {}; proxy_timeout 500ms; }}
             server {{ listen 127.0.0.2:0; proxy_pass {}; }}",
            upstream("a"),
            tcp.address
        ),
    );
    let mut before = connect(server.addr(1).tcp());
    assert_eq!(echo(&mut before, b"before"), b"before");
    let clients: Vec<_> = (0..200).map(|_| client()).collect();
    for socket in &clients {
        socket.send_to(b"x", server.addr(0).tcp()).expect("it is sent");
    }
    server.wait_for_log("socket() failed (24: Too many open files)", Deadline::default());
    // Connections of TCP continue, and new clients are served when sessions have ended.
    assert_eq!(echo(&mut before, b"during"), b"during");
    ask_until(server.addr(0).tcp(), "again", |text| text == "a again");
    assert_eq!(echo(&mut connect(server.addr(1).tcp()), b"after"), b"after");
    let log = server.access_log();
    assert!(log.lines().any(|line| line.starts_with("500 ")), "sessions without a socket: {log}");
}

/// A server that can replace its program: only a daemon does.
struct Daemon {
    dir: TempDir,
    address: SocketAddr,
    /// The first master. With sessions it would not end before their timeout.
    old: Cell<Option<i32>>,
}

impl Daemon {
    fn start(upstream: SocketAddr) -> Daemon {
        let (dir, port) = (TempDir::new("udp-upgrade"), ports::free_port());
        dir.dir("logs");
        dir.write(
            "server.conf",
            format!(
                "daemon on; worker_processes 1; pid logs/pid; error_log logs/error.log notice; events {{ }}
                 stream {{ server {{ listen 127.0.0.1:{port} udp; proxy_pass {upstream}; }} }}"
            ),
        );
        let daemon = Daemon { dir, address: ([127, 0, 0, 1], port).into(), old: Cell::new(None) };
        let prefix = format!("{}/", daemon.dir.path().display());
        let mut command = Command::new(BINARY);
        command.args(["-p", &prefix, "-c", "server.conf", "-e", "logs/error.log"]);
        let status = command.stdin(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
        assert!(status.success(), "{}", daemon.log());
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("logs/error.log")).unwrap_or_default()
    }

    fn pid(&self) -> Option<i32> {
        fs::read_to_string(self.dir.path().join("logs/pid")).ok()?.trim().parse().ok()
    }

    #[track_caller]
    fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let outcome = wait::until(what, Deadline::default(), || holds().then_some(()));
        outcome.unwrap_or_else(|late| panic!("{late}\n{}", self.log()));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for pid in [self.pid(), self.old.get()].into_iter().flatten().filter(|&pid| is_alive(pid)) {
            let _ = signal_process(pid, Signal::TERM);
            let _ = wait::until("the end", Deadline::default(), || (!is_alive(pid)).then_some(()));
        }
    }
}

#[test]
fn an_upgrade_of_the_program_loses_no_session_and_no_datagram_of_new_clients() {
    let held = Held::start();
    let daemon = Daemon::start(held.address);
    let first = client();
    wait::until("the first datagram", Deadline::default(), || {
        first.send_to(b"x", daemon.address).expect("it is sent");
        held.arrived.recv_timeout(Duration::from_millis(200)).ok()
    })
    .expect("it arrives");
    let old = daemon.pid().expect("it runs");
    daemon.old.set(Some(old));
    // The next program has another upstream.
    let conf = daemon.dir.path().join("server.conf");
    let text = fs::read_to_string(&conf).expect("the configuration");
    fs::write(&conf, text.replace(&held.address.to_string(), &upstream("new").to_string()))
        .expect("it is written");
    signal_process(old, Signal::USR2).expect("it runs");
    daemon.wait("a new master", || daemon.pid().is_some_and(|pid| pid != old));
    daemon.wait("its worker", || daemon.log().matches("start worker process ").count() >= 2);
    signal_process(old, Signal::QUIT).expect("it runs");
    // While the old worker has a session, its socket is also that of the new one. Until it has the signal, it serves new clients, too:
    // none of them waits in vain, and soon only the new program serves them.
    let is_new = |number: i32| {
        let socket = client();
        socket.send_to(format!("{number}").as_bytes(), daemon.address).expect("it is sent");
        let text = response(&socket, daemon.address);
        assert!([format!("new {number}"), format!("held {number}")].contains(&text), "{text}");
        text.starts_with("new")
    };
    daemon.wait("the new program alone", || (0..50).all(is_new));
    held.respond.send("late").expect("it waits");
    assert_eq!(response(&first, daemon.address), "late");
}
