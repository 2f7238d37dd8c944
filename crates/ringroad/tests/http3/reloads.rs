//! Connections that outlive reloads and worker processes.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::StreamId;
use rustix::process::Signal;
use testkit::process::{children, is_alive};
use testkit::program::signal_process;
use testkit::{Content, Deadline, TempDir};

use crate::client::{Client, Options};
use crate::common::BINARY;
use crate::common::tls::Authority;
use crate::{address, conf, serve};

const LARGE: usize = 8 << 20;

fn directives(text: &str) -> String {
    format!("location = /version {{ return 200 {text}; }}")
}

#[test]
fn a_reload_in_place_ends_no_connection() {
    let mut server = serve(2, &directives("first"), |builder| {
        builder.file("html/large.bin", Content::new(5, LARGE as u64))
    });
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(address(&server))).collect();
    let mut downloads = Vec::new();
    for client in &mut clients {
        assert_eq!(client.get("/version").text(), "first");
        let id = client.send("GET", "/large.bin", &[], None);
        client.set_reading(id, false);
        downloads.push(id);
    }
    for round in 0..3 {
        server.rewrite_conf(&conf(2, &directives(&format!("next{round}"))));
        server.reload();
        server.wait_for_log_count("in place", round + 1, Deadline::default());
        for client in &mut clients {
            assert_eq!(client.get("/version").text(), format!("next{round}"));
        }
    }
    for (client, id) in clients.iter_mut().zip(downloads) {
        client.set_reading(id, true);
        assert_eq!(client.reply(id).body.len(), LARGE);
        assert!(client.goaways.is_empty() && client.lost.is_none());
    }
}

/// The old worker process finishes its connections while the new one accepts others at the same address.
#[test]
fn a_replaced_worker_finishes_its_connections() {
    let text = |name: &str| format!("limit_rate 2m; {}", directives(name));
    let mut server =
        serve(2, &text("first"), |builder| builder.file("html/large.bin", Content::new(5, LARGE as u64)));
    let mut old = Client::with(address(&server), Options { stream_window: 256 << 10, ..Options::default() });
    let download = old.send("GET", "/large.bin", &[], None);
    assert_eq!(old.wait_for_head(download), 200);
    let before = server.workers();
    // Another number of threads needs another process... which has other sockets; the same number keeps them.
    let changed = conf(2, &text("second")).replace("events {}", "events { worker_connections 600; }");
    server.rewrite_conf(&changed);
    server.reload();
    server.wait_for_log("a new worker process is needed", Deadline::default());
    server.wait_for_log_count("start worker process ", 2, Deadline::default());
    // The master leads new connections to the new process when it is ready.
    let deadline = Deadline::default();
    let mut fresh = loop {
        let mut client = Client::connect(address(&server));
        if client.get("/version").text() == "second" {
            break client;
        }
        assert!(deadline.left().is_some(), "no connection reaches the new process");
    };
    for _ in 0..20 {
        assert_eq!(Client::connect(address(&server)).get("/version").text(), "second");
        old.drive_for(Duration::from_millis(20));
    }
    assert_eq!(old.reply(download).body.len(), LARGE);
    assert_ne!(server.workers(), before);
    // The old worker has announced the end.
    old.drive_until(|client| client.lost.is_some());
    assert_eq!(fresh.get("/version").text(), "second");
}

/// A handshake of which the old worker has received the first packet continues there, also if a packet of its client reaches the new worker.
#[test]
fn a_handshake_continues_in_its_process() {
    let text = |name: &str| format!("limit_rate 300k; {}", directives(name));
    let mut server =
        serve(2, &text("first"), |builder| builder.file("html/large.bin", Content::new(5, LARGE as u64)));
    let mut old = Client::connect(address(&server));
    let download = old.send("GET", "/large.bin", &[], None);
    assert_eq!(old.wait_for_head(download), 200);
    let mut begun: Vec<Client> =
        (0..4).map(|_| Client::begin(address(&server), Options::default())).collect();
    let mut later = Vec::new();
    for client in &mut begun {
        let mut packets = client.packets();
        // The key exchange with ML-KEM needs two packets.
        assert!(packets.len() > 1, "{} packets", packets.len());
        client.socket().send_to(&packets.remove(0), address(&server)).expect("a socket");
        later.push(packets);
    }
    testkit::wait::let_pass(Duration::from_millis(100));
    begun.iter_mut().for_each(Client::absorb);
    server.rewrite_conf(&conf(2, &text("second")).replace("events {}", "events { worker_connections 600; }"));
    server.reload();
    server.wait_for_log("gracefully shutting down", Deadline::default());
    for (client, packets) in begun.iter_mut().zip(later) {
        for packet in packets {
            client.socket().send_to(&packet, address(&server)).expect("a socket");
        }
        assert_eq!(client.get("/version").text(), "first");
    }
    assert_eq!(Client::connect(address(&server)).get("/version").text(), "second");
}

/// Connections of a killed worker end by a stateless reset of its successor, and clients connect again.
#[test]
fn clients_of_a_killed_worker_reconnect() {
    reconnect("quic_host_key key;");
    reconnect("");
}

fn reconnect(host_key: &str) {
    let directives = format!("{host_key} {}", directives("first"));
    let server =
        serve(2, &directives, |builder| builder.text("conf/key", "0123456789abcdef0123456789abcdef"));
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(address(&server))).collect();
    for client in &mut clients {
        assert_eq!(client.get("/version").text(), "first");
        client.drive_for(Duration::from_millis(40));
    }
    let worker = server.worker();
    signal_process(worker, Signal::KILL).expect("it lives");
    server.wait_for_log_count("start worker process ", 2, Deadline::default());
    assert_eq!(Client::connect(address(&server)).get("/version").text(), "first");
    for client in &mut clients {
        client.send("GET", "/version", &[], None);
        client.drive_until(|client| client.lost.is_some());
        assert!(matches!(client.lost, Some(quinn_proto::ConnectionError::Reset)), "{:?}", client.lost);
        assert_eq!(Client::connect(address(&server)).get("/version").text(), "first");
    }
}

#[test]
fn a_graceful_shutdown_finishes_requests() {
    let server = serve(2, &format!("limit_rate 4m; {}", directives("first")), |builder| {
        builder.file("html/large.bin", Content::new(5, LARGE as u64))
    });
    let mut client = Client::connect(address(&server));
    let id = client.send("GET", "/large.bin", &[], None);
    assert_eq!(client.wait_for_head(id), 200);
    server.signal(Signal::QUIT);
    assert_eq!(client.reply(id).body.len(), LARGE);
    client.drive_until(|client| client.lost.is_some());
    assert_eq!(client.goaways.len(), 2);
}

/// A third worker process uses the sockets of the first one, whose connections end; those of the second one continue.
#[test]
fn a_third_worker_ends_the_connections_of_the_first() {
    let text = |name: &str| format!("limit_rate 300k; {}", directives(name));
    let mut server =
        serve(2, &text("first"), |builder| builder.file("html/large.bin", Content::new(5, LARGE as u64)));
    let mut clients = Vec::new();
    for (round, name) in ["first", "second", "third"].into_iter().enumerate() {
        if round > 0 {
            let events = format!("events {{ worker_connections {}; }}", 600 + round);
            server.rewrite_conf(&conf(2, &text(name)).replace("events {}", &events));
            server.reload();
            server.wait_for_log_count("start worker process ", round + 1, Deadline::default());
        }
        let deadline = Deadline::default();
        let client = loop {
            // A client that is not driven must not fill its socket, which would lose the end of its connection.
            let options = Options { stream_window: 32 << 10, ..Options::default() };
            let mut client = Client::with(address(&server), options);
            if client.lost.is_none() && client.get("/version").text() == name {
                break client;
            }
            assert!(deadline.left().is_some(), "no connection reaches the new process");
        };
        clients.push(client);
        let client = clients.last_mut().expect("just added");
        let id = client.send("GET", "/large.bin", &[], None);
        assert_eq!(client.wait_for_head(id), 200);
    }
    let [first, second, third] = &mut clients[..] else { panic!("three clients") };
    // By CONNECTION_CLOSE, or by a stateless reset after its next packet. It does not wait for its idle timeout.
    let started = Instant::now();
    first.drive_until(|client| client.lost.is_some());
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(10), "{taken:?} {:?}", first.lost);
    for _ in 0..20 {
        second.drive_for(Duration::from_millis(20));
        third.drive_for(Duration::from_millis(20));
    }
    assert!(second.lost.is_none() && third.lost.is_none(), "{:?} {:?}", second.lost, third.lost);
    for _ in 0..10 {
        let mut client = Client::connect(address(&server));
        assert_eq!(client.get("/version").text(), "third");
    }
}

/// A daemon, which can be replaced by another binary.
struct Daemon {
    dir: TempDir,
    address: SocketAddr,
}

impl Daemon {
    /// `rate` is that of each response, in bytes per second.
    fn start(content: Content, rate: usize) -> Daemon {
        let dir = TempDir::new("http3-upgrade");
        ["conf", "logs", "html"].into_iter().for_each(|name| drop(dir.dir(name)));
        let port =
            UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        content.write_to(&dir.path().join("html/large.bin"));
        let (certificate, key) = Authority::new("root").server("localhost");
        dir.write("conf/a.pem", certificate);
        dir.write("conf/a.key", key);
        // With many connections a visitor needs longer until it continues one of them.
        let times = "client_header_timeout 10m; send_timeout 10m;";
        let text = conf(2, &format!("limit_rate {rate}; {times} {}", directives("here")))
            .replace("127.0.0.1:0", &format!("127.0.0.1:{port}"))
            .replace(
                "info; events {}",
                "info; events { worker_connections 10000; } daemon on; pid logs/pid;",
            );
        dir.write("conf/server.conf", text);
        let daemon = Daemon { dir, address: ([127, 0, 0, 1], port).into() };
        let prefix = format!("{}/", daemon.dir.path().display());
        let mut command = Command::new(BINARY);
        command.args(["-p", &prefix, "-c", "conf/server.conf", "-e", "logs/error.log"]);
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
        let outcome = testkit::wait::until(what, Deadline::default(), || holds().then_some(()));
        outcome.unwrap_or_else(|late| panic!("{late}\n{}", self.log()));
    }

    /// Replaces the binary, and returns the process IDs of the old and the new master.
    fn upgrade(&self) -> (i32, i32) {
        let old = self.pid().expect("it runs");
        let is_ready = |count: usize| self.log().matches("start worker process ").count() > count;
        let before = self.log().matches("start worker process ").count();
        signal_process(old, Signal::USR2).expect("it runs");
        self.wait("a new pid file", || self.pid().is_some_and(|pid| pid != old));
        self.wait("a worker of the new binary", || is_ready(before));
        (old, self.pid().expect("just seen"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = signal_process(pid, Signal::TERM);
            let end = Deadline::default();
            while is_alive(pid) && end.left().is_some() {
                testkit::wait::let_pass(Duration::from_millis(20));
            }
        }
    }
}

/// While the new binary of an upgrade that is taken back finishes its connections, the old one gets the new connections.
#[test]
fn an_upgrade_that_is_taken_back_refuses_no_connection() {
    let content = Content::new(7, 300 << 10);
    let daemon = Daemon::start(content, 60_000);
    let (_, new) = daemon.upgrade();
    let deadline = Deadline::default();
    let mut slow = loop {
        let mut client = Client::connect(daemon.address);
        let id = client.send("GET", "/large.bin", &[], None);
        if client.wait_for_head(id) == 200 {
            break (client, id);
        }
        assert!(deadline.left().is_some(), "no connection\n{}", daemon.log());
    };
    signal_process(new, Signal::QUIT).expect("it runs");
    daemon.wait("the shutdown", || daemon.log().contains("gracefully shutting down"));
    let began = Instant::now();
    // Longer than first packets are dropped instead of refused.
    while began.elapsed() < Duration::from_secs(2) {
        let mut client = Client::with(daemon.address, Options::default());
        assert!(client.lost.is_none(), "{:?}\n{}", client.lost, daemon.log());
        assert_eq!(client.get("/version").text(), "here");
        slow.0.drive_for(Duration::from_millis(50));
    }
    assert!(is_alive(new), "it finishes its download");
    assert_eq!(slow.0.reply(slow.1).body.len(), 300 << 10);
    daemon.wait("the end of the new binary", || !is_alive(new));
}

/// A client that downloads a file again and again, and sends small requests meanwhile. It opens another connection after a GOAWAY frame.
struct Visitor {
    address: SocketAddr,
    client: Client,
    download: StreamId,
    /// A connection that does not accept requests, with its last download.
    old: Option<(Client, StreamId)>,
    content: Content,
    len: usize,
}

impl Visitor {
    fn new(address: SocketAddr, content: Content, len: usize) -> Visitor {
        // The other visitors of its thread may need longer than the default until it is driven again.
        let mut client =
            Client::with(address, Options { idle: Duration::from_secs(600), ..Options::default() });
        assert!(client.lost.is_none(), "{:?}", client.lost);
        let download = client.send("GET", "/large.bin", &[], None);
        Visitor { address, client, download, old: None, content, len }
    }

    /// Sends a request, and continues the downloads. Returns the number of complete requests.
    fn step(&mut self) -> usize {
        let mut done = 0;
        if let Some((old, download)) = &mut self.old {
            old.drive_for(Duration::from_millis(1));
            if old.partial(*download).is_complete {
                self.content
                    .compare(0..self.len as u64, &mut &old.partial(*download).body[..])
                    .expect("the file");
                // The server would wait for acknowledgements of a client that is gone.
                old.close();
                (self.old, done) = (None, 1);
            } else {
                assert!(old.lost.is_none(), "a download was lost: {:?}", old.lost);
            }
        }
        // The other visitors of the thread may have needed so long that the server has ended the connection meanwhile.
        self.client.absorb();
        if !self.client.is_ended() {
            let id = self.client.send("GET", "/version", &[], None);
            if let Some(reply) = self.client.reply_unless_refused(id) {
                assert_eq!(reply.text(), "here", "{reply:?}");
                done += 1;
            }
        }
        let is_over = self.client.partial(self.download).is_complete || self.client.is_refused(self.download);
        if !self.client.goaways.is_empty() && (is_over || self.old.is_none()) {
            let mut next = Visitor::new(self.address, self.content, self.len);
            next.old = self.old.take();
            let Visitor { mut client, download, .. } = std::mem::replace(self, next);
            if client.partial(download).is_complete {
                self.content
                    .compare(0..self.len as u64, &mut &client.partial(download).body[..])
                    .expect("the file");
            }
            if is_over {
                client.close();
            } else {
                self.old = Some((client, download));
            }
        } else if self.client.partial(self.download).is_complete {
            let reply = self.client.reply(self.download);
            self.content.compare(0..self.len as u64, &mut &reply.body[..]).expect("the file");
            self.download = self.client.send("GET", "/large.bin", &[], None);
            done += 1;
        }
        done
    }

    /// Continues the downloads. Returns whether they are complete.
    fn finish(&mut self) -> bool {
        let old = self.old.iter_mut().map(|(client, id)| (client, *id));
        let mut is_complete = true;
        for (client, download) in old.chain([(&mut self.client, self.download)]) {
            client.drive_for(Duration::from_millis(1));
            let reply = client.partial(download);
            if client.is_refused(download) {
                continue;
            }
            assert!(reply.is_complete || client.lost.is_none(), "a download was lost: {:?}", client.lost);
            is_complete &= reply.is_complete;
            if reply.is_complete {
                self.content.compare(0..self.len as u64, &mut &reply.body[..]).expect("the file");
            }
        }
        is_complete
    }
}

/// Sets a flag when it is dropped.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Downloads and small requests of more than a hundred connections, through a reload in place, an upgrade of the binary, and the end of an upgrade
/// that was taken back: no request fails, and no connection is lost. `RINGROAD_TEST_CONNECTIONS` sets another number of connections.
#[test]
fn connections_survive_a_reload_and_upgrades_of_the_binary() {
    // A thread that continues many connections in turn would leave each of them silent for too long.
    const VISITORS_PER_THREAD: usize = 13;
    let connections = std::env::var("RINGROAD_TEST_CONNECTIONS")
        .map_or(104_usize, |count| count.parse().expect("a number"));
    let (len, content) = (300 << 10, Content::new(7, 300 << 10));
    // All responses together have the same rate with any number of connections.
    let daemon = Daemon::start(content, (16 << 20) / connections);
    let (is_done, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let visit = || {
            let mut visitors: Vec<Visitor> =
                (0..VISITORS_PER_THREAD).map(|_| Visitor::new(daemon.address, content, len)).collect();
            while !is_done.load(Ordering::SeqCst) {
                let done = visitors.iter_mut().map(Visitor::step).sum();
                requests.fetch_add(done, Ordering::SeqCst);
            }
            while !visitors.iter_mut().fold(true, |all, visitor| visitor.finish() & all) {}
        };
        let threads: Vec<_> = (0..connections / VISITORS_PER_THREAD).map(|_| scope.spawn(visit)).collect();
        // The scope waits for the visitors, also after a failure.
        let _end = SetAtEnd(&is_done);
        let ended = || threads.iter().any(|thread| thread.is_finished());
        let wait_for_requests = |more: usize| {
            let wanted = requests.load(Ordering::SeqCst) + more;
            daemon.wait("requests", || requests.load(Ordering::SeqCst) >= wanted || ended());
            assert!(!ended(), "a visitor has failed\n{}", daemon.log());
        };
        wait_for_requests(200);
        let reloaded = || daemon.log().matches("in place").count();
        signal_process(daemon.pid().expect("it runs"), Signal::HUP).expect("it runs");
        daemon.wait("the reload", || reloaded() == 1);
        wait_for_requests(200);
        // An upgrade that is taken back: the old worker gets new connections again.
        let (old, new) = daemon.upgrade();
        wait_for_requests(200);
        signal_process(new, Signal::QUIT).expect("it runs");
        daemon.wait("the end of the new binary", || !is_alive(new) && daemon.pid() == Some(old));
        wait_for_requests(200);
        let (old, new) = daemon.upgrade();
        wait_for_requests(200);
        signal_process(old, Signal::WINCH).expect("it runs");
        daemon.wait("the end of the old worker", || children(old).iter().all(|pid| *pid == new));
        signal_process(old, Signal::QUIT).expect("it runs");
        daemon.wait("the end of the old master", || !is_alive(old));
        wait_for_requests(200);
    });
}
