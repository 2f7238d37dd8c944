//! Idle connections are closed in favour of new ones: at `worker_connections`, at the limit of descriptors, and where a
//! proxy forwards to itself.

use crate::common;
use crate::common::http2::{END, HEADERS, PING, SETTINGS, WHOLE, block, frame};
use rustix::process::Signal;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use testkit::burst::{Outcome, assert_all_right};
use testkit::client::request_bytes;
use testkit::program::signal_process;
use testkit::server::StrictLimit;
use testkit::{Burst, Client, Content, Deadline, Gate, Origin, Reply, Server, wait};

/// `worker_connections` of these tests, and a number of connections above that.
const LIMIT: usize = 64;
const CROWD: usize = 200;

/// Limit of descriptors of the test process: the tests run concurrently, each with many connections.
const DESCRIPTORS: u64 = 8192;

/// Runs a test with a single-threaded server for each network engine that this machine supports.
fn on_each_engine(server: &str, shell: &str, connections: usize, test: impl Fn(&Server, &str)) {
    on_each_engine_with(&format!("worker_connections {connections};"), server, shell, test);
}

fn on_each_engine_with(events: &str, server: &str, shell: &str, test: impl Fn(&Server, &str)) {
    testkit::burst::allow_fds(DESCRIPTORS);
    for net in ["epoll", "io_uring"] {
        let conf = format!(
            "worker_processes 1; error_log logs/error.log info; \
             events {{ use {net}; {events} }} http {{ access_log off; \
             server {{ listen 127.0.0.1:0; root html; location = /ok {{ return 200 ok; }} {server} }} }}"
        );
        let builder = Server::builder(common::BINARY).conf(&conf);
        let builder = builder
            .file("html/a.bin", Content::new(1, 50_000))
            .file("html/big.bin", Content::new(2, 4 << 20));
        let builder = if shell.is_empty() { builder } else { builder.shell(shell) };
        let builder = match server.contains("$server_port") {
            true => builder.not_strict(StrictLimit::PortOfRequest),
            false => builder,
        };
        match builder.try_start() {
            Ok(server) => test(&server, net),
            Err(reason) if net == "io_uring" && reason.contains("io_uring") => {
                testkit::skip(format_args!("io_uring is not available: {reason}"));
            }
            Err(reason) => panic!("{reason}"),
        }
    }
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.worker())).expect("procfs").count()
}

/// Returns the number of a serving worker's descriptors: a worker that has just started has not opened all of its own
/// yet.
fn descriptors_at_rest(server: &Server) -> usize {
    let mut client = Client::connect(server.addr(0));
    client.send("GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
    client.expect_end();
    descriptors(server)
}

/// Evicted connections are closed slightly later, and the pending accept may add one more.
fn assert_bounded(server: &Server, before: usize, net: &str) {
    let is_bounded = || (descriptors(server) <= before + LIMIT + 1).then_some(());
    wait::until("closed descriptors", Deadline::default(), is_bounded)
        .unwrap_or_else(|late| panic!("{net}: {late}: {}", descriptors(server)));
}

fn crowd(server: &Server, count: usize, first_bytes: &str) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::connect(server.addr(0));
        // The server may have closed the connection for a later one already.
        let _ = client.try_send(first_bytes.as_bytes());
        client
    };
    (0..count).map(connect).collect()
}

#[test]
fn the_oldest_silent_connections_are_closed_for_new_clients() {
    on_each_engine("", "", LIMIT, |server, net| {
        let before = descriptors_at_rest(server);
        let mut silent = crowd(server, CROWD, "");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        assert_bounded(server, before, net);
        silent[0].expect_end();
        assert_eq!(silent[CROWD - 1].get("/ok").text(), "ok", "{net}: the newest one is still there");
    });
}

/// Returns whether all threads of a process are stopped.
pub(crate) fn is_process_stopped(process: i32) -> Option<()> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.expect("procfs").path().join("stat"));
        stat.is_ok_and(|stat| stat.contains(") T "))
    };
    threads.into_iter().all(is_stopped).then_some(())
}

/// A stopped worker accumulates a queue of connections. With few `worker_connections` one accept returns one of them,
/// and the others are accepted before the first response is sent: as many as the limit allows, and no more.
#[test]
fn the_accept_queue_is_emptied_up_to_worker_connections() {
    let active = "location = /active { return 200 $connections_active; } keepalive_timeout 60s;";
    on_each_engine(active, "", LIMIT, |server, net| {
        let before = descriptors_at_rest(server);
        // Makes connections while the worker is stopped; returns those that get a response.
        let ask = |count: usize| -> Vec<Client> {
            let worker = server.worker();
            signal_process(worker, Signal::STOP).expect("it is ours");
            wait::until("the stop", Deadline::default(), || is_process_stopped(worker)).expect("a signal");
            let connect = |_| {
                let mut client = Client::connect(server.addr(0));
                client.send(request_bytes("GET", "/active", &[]));
                client
            };
            let clients = (0..count).map(connect).collect();
            signal_process(worker, Signal::CONT).expect("it is ours");
            clients
        };
        let mut clients = ask(LIMIT / 2);
        for client in &mut clients {
            assert_eq!(client.response().text(), (LIMIT / 2).to_string(), "{net}");
        }
        // Half of these fit in addition to the existing connections; the others replace idle connections.
        let mut more = ask(LIMIT);
        for client in &mut more {
            let active: usize = client.response().text().parse().expect("a number");
            assert!(active <= LIMIT + 1, "{net}: {active}");
        }
        assert_bounded(server, before, net);
    });
}

#[test]
fn the_oldest_incomplete_header_sections_are_closed_for_new_clients() {
    on_each_engine("", "", LIMIT, |server, net| {
        let before = descriptors_at_rest(server);
        let mut halves = crowd(server, CROWD, "GET /ok HTTP/1.1\r\nHost: a\r\nX-A: ");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        assert_bounded(server, before, net);
        let line = server.wait_for_log("closed to make room for another", Deadline::default());
        assert!(line.contains("[info]") && line.contains("while reading client request headers"), "{line}");
        assert!(halves[0].try_response().is_err(), "{net}");
        assert_eq!(
            halves[CROWD - 1].send("b\r\n\r\n").response().text(),
            "ok",
            "{net}: the newest one is served"
        );
    });
}

/// Clients that send one request after another always have connections that are too young to be closed. Others are closed
/// nevertheless.
#[test]
fn busy_clients_do_not_keep_new_clients_out() {
    on_each_engine("", "", LIMIT, |server, net| {
        let is_over = AtomicBool::new(false);
        let busy = || {
            while !is_over.load(Relaxed) {
                let mut stream = TcpStream::connect(server.addr(0).tcp()).expect("a listener");
                let mut exchange = || {
                    stream.write_all(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n")?;
                    stream.read(&mut [0; 4096])
                };
                // The connection may be closed for another client.
                while !is_over.load(Relaxed) && exchange().is_ok_and(|count| count > 0) {
                    wait::let_pass(Duration::from_millis(3));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..16).for_each(|_| _ = scope.spawn(busy));
            let _heads = crowd(server, 2 * LIMIT, "GET / HTTP/1.1\r\nHost: a\r\n");
            let attempt = |_| {
                let began = std::time::Instant::now();
                let served = std::panic::catch_unwind(|| Client::connect(server.addr(0)).get("/ok").text());
                (served.ok(), began.elapsed())
            };
            let attempts: Vec<_> = (0..3).map(attempt).collect();
            is_over.store(true, Relaxed);
            assert!(
                attempts.iter().all(|(served, _)| served.as_deref() == Some("ok")),
                "{net}: {attempts:?}"
            );
            // By chance all busy clients have a request in progress after a time; the machine may be busy.
            let fastest = attempts.iter().map(|(_, time)| *time).min().expect("attempts");
            assert!(fastest < Duration::from_secs(5), "{net}: {attempts:?}");
        });
    });
}

#[test]
fn silent_connections_are_closed_before_incomplete_header_sections() {
    on_each_engine("", "", LIMIT, |server, net| {
        let mut halves = crowd(server, LIMIT / 2, "GET /ok HTTP/1.1\r\nHost: a\r\nX-A: ");
        let _silent = crowd(server, CROWD, "");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        for half in &mut halves {
            assert_eq!(half.send("b\r\n\r\n").response().text(), "ok", "{net}");
        }
    });
}

#[test]
fn connections_with_stalled_bodies_are_closed_for_new_clients() {
    let origin = Origin::start(|_| Reply::text("up"));
    let up = format!("location = /up {{ proxy_pass http://{}; }}", origin.addr());
    on_each_engine(&up, "", LIMIT, |server, net| {
        let _halves = crowd(server, LIMIT, "POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        assert_eq!(Client::connect(server.addr(0)).get("/up").text(), "up", "{net}");
        let line = server.wait_for_log("closed to make room for another", Deadline::default());
        assert!(line.contains("while reading client request body"), "{line}");
    });
}

#[test]
fn http2_connections_with_stalled_bodies_are_closed_for_new_clients() {
    let origin = Origin::start(|_| Reply::text("up"));
    let up = format!("http2 on; location = /up {{ proxy_pass http://{}; }}", origin.addr());
    let line = [(":method", "POST"), (":scheme", "http"), (":path", "/up"), (":authority", "a")];
    let request = frame(HEADERS, WHOLE, 1, &block(&line));
    let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[]), &request].concat();
    let start = String::from_utf8(start).expect("bytes below 128");
    on_each_engine(&up, "", LIMIT, |server, net| {
        let _halves = crowd(server, LIMIT, &start);
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        assert_eq!(Client::connect(server.addr(0)).get("/up").text(), "up", "{net}");
        let line = server.wait_for_log("closed to make room for another", Deadline::default());
        assert!(line.contains("while processing HTTP/2 connection"), "{line}");
    });
}

/// Requests a file, reads only the header section of its response, and then nothing for a time.
fn stalled_download(server: &Server) -> Client {
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send(request_bytes("GET", "/big.bin", &[]));
    assert_eq!(client.head().status, 200);
    client
}

/// As nginx does not: there a client waits until the first of the downloads times out.
#[test]
fn stalled_downloads_are_closed_for_new_clients_the_oldest_first() {
    on_each_engine("send_timeout 600s;", "", LIMIT, |server, net| {
        let mut old: Vec<Client> = (0..LIMIT / 2).map(|_| stalled_download(server)).collect();
        // A stall that is older by more than the interval at which sends are observed.
        wait::let_pass(Duration::from_millis(500));
        let mut new: Vec<Client> = (0..LIMIT / 2).map(|_| stalled_download(server)).collect();
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(server.addr(0))).collect();
        for client in &mut clients {
            assert_eq!(client.get("/ok").text(), "ok", "{net}");
        }
        let line = server.wait_for_log("closed to make room for another", Deadline::default());
        assert!(line.contains("[info]") && line.contains("while sending response to client"), "{line}");
        let is_cut = |client: &mut Client| client.try_read_exact(4 << 20).is_err();
        assert!(old.iter_mut().any(is_cut), "{net}");
        assert!(!new.iter_mut().any(is_cut), "{net}: a newer stall was closed before an older one");
    });
}

/// The same while a proxied response is passed on, and for a response that is completely in memory.
#[test]
fn stalled_proxied_responses_are_closed_for_new_clients() {
    let origin = Origin::start(|_| Reply::text(Content::new(2, 8 << 20).bytes(0..8 << 20)));
    let up =
        format!("location = /big.bin {{ proxy_pass http://{}; proxy_max_temp_file_size 0; }}", origin.addr());
    on_each_engine(&up, "", LIMIT, |server, net| {
        // Each of them occupies a slot for its upstream too.
        let _stalled: Vec<Client> = (0..LIMIT / 2 - 4).map(|_| stalled_download(server)).collect();
        // A connection that waits silently for its turn may be closed for others too.
        let mut clients = Vec::new();
        for _ in 0..LIMIT / 2 {
            let mut client = Client::connect(server.addr(0));
            assert_eq!(client.get("/ok").text(), "ok", "{net}");
            clients.push(client);
        }
    });
}

/// A client that reads slowly makes progress, and keeps its connection.
#[test]
fn downloads_of_slow_clients_are_not_closed_for_new_clients() {
    on_each_engine("", "", LIMIT, |server, net| {
        let mut slow = stalled_download(server);
        let _stalled: Vec<Client> = (0..LIMIT - 1).map(|_| stalled_download(server)).collect();
        let server = &server;
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                // A window of TCP opens by 64 KiB on loopback, so progress is visible every 0.3 s.
                slow.read_slowly(512 << 10, 4 << 10, Duration::from_millis(20));
                slow.try_read_exact((4 << 20) - (512 << 10)).is_ok()
            });
            let crowd: Vec<Client> = (0..LIMIT / 2)
                .map(|_| {
                    let mut client = Client::connect(server.addr(0));
                    assert_eq!(client.get("/ok").text(), "ok", "{net}");
                    client
                })
                .collect();
            drop(crowd);
            assert!(reading.join().expect("a reader"), "{net}: its download was cut");
        });
    });
}

/// A client with a window of 0 receives the header section and no byte of the body. Other frames do not count as progress.
#[test]
fn http2_connections_with_closed_windows_are_closed_for_new_clients() {
    on_each_engine("http2 on; send_timeout 600s;", "", LIMIT, |server, net| {
        let line = [(":method", "GET"), (":scheme", "http"), (":path", "/a.bin"), (":authority", "a")];
        let window_of_0 = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let request = |stream| frame(HEADERS, WHOLE | END, stream, &block(&line));
        let start =
            [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &window_of_0, &request(1), &request(3)].concat();
        let stalled: Vec<Client> = (0..LIMIT)
            .map(|_| {
                let mut client = Client::connect(server.addr(0));
                client.send(&start);
                client
            })
            .collect();
        let ping = frame(PING, 0, 0, &[0; 8]);
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let mut stalled = stalled;
                while stopped
                    .recv_timeout(Duration::from_millis(300))
                    .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    stalled.iter_mut().for_each(|client| drop(client.try_send(&ping)));
                }
            });
            for _ in 0..4 {
                assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
            }
            drop(stop);
        });
        let line = server.wait_for_log("closed to make room for another", Deadline::default());
        assert!(line.contains("while processing HTTP/2 connection"), "{line}");
    });
}

/// Returns the CPU time of the worker in clock ticks: hundredths of a second.
fn cpu_ticks(server: &Server) -> u64 {
    let path = format!("/proc/{}/stat", server.worker());
    let stat = std::fs::read_to_string(path).expect("procfs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // `utime` and `stime` (proc_pid_stat(5)); the first of these fields is number 3.
    fields[11..=12].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_client_that_waits_for_a_connection_costs_no_cpu_time() {
    let slow = "location /slow/ { alias html/; limit_rate 4k; }";
    on_each_engine(slow, "", LIMIT, |server, net| {
        // A connection is not closed for others while a response is sent, unless its client does not read it.
        let download = |_| {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", "/slow/big.bin", &[]));
            assert_eq!(client.head().status, 200, "{net}");
            client
        };
        let downloads: Vec<Client> = (0..LIMIT).map(download).collect();
        let mut waiting = Client::connect(server.addr(0));
        waiting.send(request_bytes("GET", "/ok", &[]));
        server.wait_for_log("worker_connections are not enough", Deadline::default());
        let before = cpu_ticks(server);
        waiting.expect_silence(Duration::from_secs(1));
        let used = cpu_ticks(server) - before;
        assert!(used < 50, "{net}: {used} hundredths of a second within one second");
        drop(downloads);
        assert_eq!(waiting.response().text(), "ok", "{net}");
    });
}

#[test]
fn a_proxy_loop_is_refused_and_other_requests_are_served() {
    let looping = "location /loop { proxy_pass http://127.0.0.1:$server_port; }";
    on_each_engine(looping, "", LIMIT, |server, net| {
        let outcomes = Burst::new(server.addr(0)).get("/loop", LIMIT).run();
        // A connection whose request has not been received yet may have been closed.
        let refused = |outcome: &Outcome| [500, 502].contains(&outcome.status) || outcome.fault.is_some();
        assert!(outcomes.iter().all(refused), "{net}: {outcomes:?}");
        assert!(outcomes.iter().any(|outcome| outcome.status >= 500), "{net}: {outcomes:?}");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        // Requests that must wait for a connection are logged too.
        let words = "worker_connections are not enough while connecting to upstream";
        let line = server.wait_for_log(words, Deadline::default());
        assert!(line.contains("[alert]"), "{net}: {line}");
    });
}

#[test]
fn upstream_connections_count_as_connections() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("up").wait_first(&held));
    let up = format!("location = /up {{ proxy_pass http://{}; }}", origin.addr());
    on_each_engine(&up, "", LIMIT, |server, net| {
        gate.close();
        let before = origin.stats().requests;
        let ask = || {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", "/up", &[]));
            client
        };
        // Each uses two connections; the last sixteenth is reserved for clients.
        let mut clients: Vec<Client> = Vec::new();
        for count in 1..=(LIMIT - LIMIT / 16) as u64 / 2 {
            clients.push(ask());
            origin.wait_for("the request", |stats| stats.requests == before + count);
        }
        assert_eq!(ask().response().status, 500, "{net}");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
        let line = server.wait_for_log("worker_connections are not enough", Deadline::default());
        assert!(line.contains("[alert]") && line.contains("while connecting to upstream"), "{net}: {line}");
        gate.open();
        for client in &mut clients {
            assert_eq!(client.response().text(), "up", "{net}");
        }
        assert_eq!(ask().response().text(), "up", "{net}: there is room again");
    });
}

/// An idle connection of HTTP/2 that is chosen lingers after its GOAWAY frame. Meanwhile no further ones are chosen.
#[test]
fn a_request_without_a_slot_closes_no_more_connections_than_it_needs() {
    let origin = Origin::start(|_| Reply::text("up"));
    let up = format!("http2 on; location = /up {{ proxy_pass http://{}; }}", origin.addr());
    let line = [(":method", "GET"), (":scheme", "http"), (":path", "/ok"), (":authority", "a")];
    let request = frame(HEADERS, WHOLE | END, 1, &block(&line));
    let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[]), &request].concat();
    on_each_engine(&up, "", LIMIT, |server, net| {
        let connect = |_| {
            let mut stream = TcpStream::connect(server.addr(0).tcp()).expect("the server listens");
            stream.write_all(&start).expect("the server reads");
            stream.read_exact(&mut [0; 1]).expect("a frame");
            stream
        };
        let idle: Vec<TcpStream> = (0..LIMIT - 4).map(connect).collect();
        assert_eq!(Client::connect(server.addr(0)).get("/up").text(), "up", "{net}");
        let is_closed = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).expect("a socket");
            let read = stream.read_to_end(&mut Vec::new());
            !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let closed = idle.iter().filter(|stream| is_closed(stream)).count();
        // An eighth of them is closed in one call.
        assert!((1..=LIMIT / 4).contains(&closed), "{net}: {closed}");
    });
}

#[test]
fn accepted_requests_are_served_at_the_descriptor_limit() {
    let origin = Origin::start(|_| Reply::text("up"));
    let up = format!("location = /up {{ proxy_pass http://{}; }}", origin.addr());
    on_each_engine(&up, "ulimit -n 128", 1024, |server, net| {
        let are_served = || {
            let _halves = crowd(server, 150, "GET /ok HTTP/1.1\r\nHost: a\r\nX-A: ");
            let file = Burst::new(server.addr(0)).get("/a.bin", 30).expect(Content::new(1, 50_000)).start();
            let upstream = Burst::new(server.addr(0)).get("/up", 30).run();
            let outcomes = [file.join(), upstream].concat();
            // A slow client may be closed before it has sent its request.
            let (closed, right): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|one| one.head.is_none());
            assert_all_right(&right, 200);
            closed.is_empty().then_some(())
        };
        assert!((0..5).any(|_| are_served().is_some()), "{net}: each time some clients got no response");
        assert!(!server.error_log().contains("Too many open files"), "{net}: {}", server.error_log());
    });
}

/// Open files are closed for new clients, also if no connection is left that could be closed.
#[test]
fn cached_open_files_do_not_keep_clients_out() {
    let cached = "open_file_cache max=10000 inactive=1h; open_file_cache_valid 1h;";
    on_each_engine(cached, "ulimit -n 128", 1024, |server, net| {
        let html = server.path("html");
        for number in 0..300 {
            let file = html.join(format!("{number}.txt"));
            std::fs::write(&file, format!("file {number}")).expect("a file");
            // Readable for the worker's user whatever the umask is.
            std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
        }
        for number in 0..300 {
            let close = [("Host", "a"), ("Connection", "close")];
            let target = format!("/{number}.txt");
            let response = Client::connect(server.addr(0)).request("GET", &target, &close);
            assert_eq!(response.text(), format!("file {number}"), "{net}");
        }
    });
}

/// The smallest pool has 1024 buffers of 4 KiB, of which a quarter is reserved for bodies.
const SMALL_POOL: &str = "worker_connections 4096; buffer_pool 4m;";
const BUFFERS: usize = 900;

#[test]
fn slow_downloads_release_their_request_buffers() {
    let origin = Origin::start(|_| Reply::text("up"));
    let up = format!("location = /up {{ proxy_pass http://{}; }}", origin.addr());
    on_each_engine_with(SMALL_POOL, &up, "", |server, net| {
        let download = |_| {
            let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
            // The first bytes of the next request occupy a buffer too.
            client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\nGET /ok");
            client
        };
        let mut slow: Vec<Client> = (0..BUFFERS).map(download).collect();
        for (target, body) in [("/ok", "ok"), ("/up", "up")] {
            assert_eq!(Client::connect(server.addr(0)).get(target).text(), body, "{net}");
        }
        Content::new(1, 50_000).assert_body(&Client::connect(server.addr(0)).get("/a.bin").body);
        for client in slow.iter_mut().take(3) {
            Content::new(2, 4 << 20).assert_body(&client.response().body);
            assert_eq!(client.send(" HTTP/1.1\r\nHost: a\r\n\r\n").response().text(), "ok", "{net}");
        }
        assert!(!server.error_log().contains("[alert]"), "{net}: {}", server.error_log());
    });
}

#[test]
fn incomplete_header_sections_using_all_buffers_are_closed_and_logged() {
    on_each_engine_with(SMALL_POOL, "", "", |server, net| {
        let _halves = crowd(server, BUFFERS, "GET /ok HTTP/1.1\r\nHost: a\r\nX-A: ");
        let line = server.wait_for_log("are not enough for received bytes", Deadline::default());
        assert!(line.contains("[alert] ") && line.contains("remedy: a larger buffer_pool"), "{net}: {line}");
        assert_eq!(Client::connect(server.addr(0)).get("/ok").text(), "ok", "{net}");
    });
}

/// Returns the worker's resident memory in KiB.
fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.worker());
    let text = std::fs::read_to_string(path).expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Asserts that most of the memory of idle connections is freed when they are closed.
fn assert_memory_is_freed(server: &Server, of: &str) {
    let idle = |count| {
        let mut clients = crowd(server, count, "GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
        clients.iter_mut().for_each(|client| assert_eq!(client.response().text(), "ok", "{of}"));
        clients
    };
    // Memory allocated by the first requests is not released.
    drop(idle(100));
    let before = resident(server);
    let clients = idle(BUFFERS);
    let most = resident(server);
    drop(clients);
    let is_back = || (resident(server) <= before + (most - before) / 2).then_some(());
    wait::until("memory given back", Deadline::default(), is_back)
        .unwrap_or_else(|late| panic!("{of}: {late}: {before}, {most}, {} kB", resident(server)));
}

#[test]
fn memory_of_closed_connections_is_freed() {
    on_each_engine("", "", 4096, assert_memory_is_freed);
}

#[test]
fn memory_of_closed_connections_is_freed_by_threads_with_few_of_them() {
    testkit::burst::allow_fds(DESCRIPTORS);
    let conf = "worker_processes 4; events { use epoll; worker_connections 4096; } http { access_log off; \
                server { listen 127.0.0.1:0; location = /ok { return 200 ok; } } }";
    assert_memory_is_freed(&Server::start(common::BINARY, conf), "four threads");
}

#[test]
fn cdn_loop_stops_a_loop_at_the_second_pass() {
    let origin = Origin::start(|request| Reply::text(request.header("CDN-Loop").unwrap_or_default()));
    let looping = format!(
        "location /loop {{ proxy_cdn_loop a.example; proxy_pass http://127.0.0.1:$server_port; }}
         location = /up {{ proxy_cdn_loop a.example; proxy_pass http://{}; }}",
        origin.addr()
    );
    on_each_engine(&looping, "", LIMIT, |server, net| {
        let mut client = Client::connect(server.addr(0));
        assert_eq!(client.get("/loop").status, 502, "{net}");
        server.wait_for_log("loop detected", Deadline::default());
        assert_eq!(client.get("/up").text(), "a.example", "{net}");
        let others = client.request("GET", "/up", &[("CDN-Loop", "b.example; x=a.example, xa.example")]);
        assert_eq!(others.status, 200, "{net}");
        let again = client.request("GET", "/up", &[("cdn-loop", "b.example, A.example;v=1")]);
        assert_eq!(again.status, 502, "{net}");
    });
}
