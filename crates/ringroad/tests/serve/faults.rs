//! Effects on requests if the kernel, the disk or the peer fails: at most one connection is closed.
//!
//! The faults come from the fault engine (`engine_fault` in `events`), from files that change while they are served,
//! and from clients that stop reading. The engines themselves are tested in crate `io`.

use crate::common;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{assert_no_errors, ours_only};
use testkit::client::request_bytes;
use testkit::response::Fault;
use testkit::server::ServerBuilder;
use testkit::{Client, Content, Deadline, Server};

const NETS: [&str; 2] = ["io_uring", "epoll"];

/// Directives for each disk engine, for one location each.
const DISKS: [(&str, &str); 6] = [
    ("ring", "aio io_uring;"),
    ("direct", "aio io_uring; directio 1;"),
    ("libaio", "aio libaio; directio 1;"),
    ("threads", "aio threads;"),
    ("sync", "aio off;"),
    ("shm", "aio io_uring; aio_sendfile 512k;"),
];

const A: Content = Content::new(41, (1 << 20) + 1);
const B: Content = Content::new(42, 70_001);

fn prepared(builder: ServerBuilder) -> ServerBuilder {
    builder.file("html/a.bin", A).file("html/b.bin", B).text("html/ok.txt", "ok")
}

/// Starts a server on this network engine with these faults, which may contain the prefix as `DIR`, and a location for
/// each disk engine.
fn start(net: &str, faults: &[&str], http: &str) -> Server {
    let builder = prepared(Server::builder(common::BINARY));
    let mut text = format!("worker_processes 1;\nevents {{ use {net};\n");
    for fault in faults {
        let fault = fault.replace("DIR", &builder.dir().display().to_string());
        text.push_str(&format!("engine_fault {fault};\n"));
    }
    text.push_str(&format!("}}\nhttp {{ {http}\nserver {{ listen 127.0.0.1:0; root html;\n"));
    for (name, directives) in DISKS {
        text.push_str(&format!("location /{name}/ {{ alias html/; {directives} }}\n"));
    }
    text.push_str("location /sendfile/ { alias html/; sendfile on; aio off; }\n");
    text.push_str("location = /word { return 200 word; }\n} }\n");
    builder.conf(&text).start()
}

fn client(server: &Server) -> Client {
    Client::connect(server.addr(0))
}

/// Checks both files, completely and in ranges, from every location, and that the log has no errors.
fn check_all_responses(server: &Server) {
    let mut client = client(server);
    for place in DISKS.iter().map(|(name, _)| *name).chain(["sendfile"]) {
        A.assert_body(&client.get(&format!("/{place}/a.bin")).body);
        B.assert_body(&client.get(&format!("/{place}/b.bin")).body);
        let part = client.request("GET", &format!("/{place}/a.bin"), &[("Range", "bytes=4095-700000")]);
        A.assert_range(4095..700_001, &part.body);
    }
    assert_no_errors(server);
}

#[test]
fn partial_reads_are_continued() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        check_all_responses(&start(net, &["read short every=1"], ""));
        check_all_responses(&start(net, &["read short every=3", "sendfile short every=2"], ""));
    }
}

#[test]
fn partial_sends_and_receives_are_continued() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        check_all_responses(&start(net, &["send short every=2", "recv short every=2"], ""));
    }
}

#[test]
fn a_busy_disk_engine_is_retried() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let server = start(net, &["read error=EAGAIN every=3", "read error=EINTR every=5"], "");
        check_all_responses(&server);
        let mut clients: Vec<Client> = (0..50).map(|_| client(&server)).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            let place = DISKS[index % DISKS.len()].0;
            client.send(request_bytes("GET", &format!("/{place}/b.bin"), &[]));
        }
        for client in &mut clients {
            B.assert_body(&client.response().body);
        }
        // The message that the write-up of 2021 found in its log for each such read.
        assert!(
            !server.error_log().contains("(11: Resource temporarily unavailable)"),
            "{}",
            server.error_log()
        );
    }
}

#[test]
fn interrupted_operations_and_full_buffers_are_not_logged() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        check_all_responses(&start(net, &["send error=EINTR every=3", "recv error=ENOBUFS every=3"], ""));
        check_all_responses(&start(net, &["recv end every=2", "accept end every=2"], ""));
    }
}

#[test]
fn an_io_error_during_a_body_closes_only_that_connection() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        for (place, _) in DISKS {
            let server = start(net, &["read error=EIO every=3 path=DIR/html/a.bin"], "output_buffers 2 32k;");
            let mut bystander = client(&server);
            assert_eq!(bystander.get("/ok.txt").text(), "ok");
            let mut struck = client(&server);
            // With nine ranges of a third of the file, the third read occurs for any size of a read.
            let mut statuses = Vec::new();
            let ended = (0..9).find_map(|_| {
                struck.send(request_bytes("GET", &format!("/{place}/a.bin"), &[]));
                match struck.try_response() {
                    Ok(response) => {
                        statuses.push(response.status);
                        A.assert_body(&response.body);
                        None
                    }
                    Err(fault) => Some(fault),
                }
            });
            // A response that had begun can only be truncated; before its head is sent it could still become a 500.
            match ended {
                Some(Fault::Ended { .. } | Fault::Io(_)) => {}
                other => panic!("{net} {place}: {other:?} after {statuses:?}"),
            }
            let line = server.wait_for_log("(5: Input/output error)", Deadline::default());
            assert!(line.contains("[crit]") && line.contains("html/a.bin"), "{net} {place}: {line}");
            assert_eq!(bystander.get("/ok.txt").text(), "ok", "{net} {place}");
            B.assert_body(&client(&server).get(&format!("/{place}/b.bin")).body);
        }
    }
}

#[test]
fn errors_of_open_have_the_statuses_of_nginx() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        for (error, status, words) in [
            ("EACCES", 403, "(13: Permission denied)"),
            ("ENOENT", 404, "(2: No such file or directory)"),
            ("EMFILE", 500, "(24: Too many open files)"),
            ("EIO", 500, "(5: Input/output error)"),
        ] {
            let server = start(net, &[&format!("open error={error} first=1 path=DIR/html/ok.txt")], "");
            let mut client = client(&server);
            let response = client.get("/ok.txt");
            assert_eq!(response.status, status, "{net} {error}");
            let line = server.wait_for_log(words, Deadline::default());
            assert!(line.contains("html/ok.txt\" failed"), "{net} {error}: {line}");
            // nginx closes the connection after a 500.
            assert_eq!(common::client(&server).get("/ok.txt").text(), "ok", "{net} {error}");
        }
    }
}

/// Directives with which a location sends a file that is truncated during the response.
const SHRINKING: [(&str, &str); 7] = [
    ("ring", "aio io_uring;"),
    ("direct", "aio io_uring; directio 1;"),
    ("libaio", "aio libaio; directio 1;"),
    ("threads", "aio threads;"),
    ("sync", "aio off;"),
    ("sendfile", "sendfile on;"),
    ("shm", "aio_sendfile 512k;"),
];

/// More than all socket buffers between both ends can buffer.
const SHRINKING_FROM: u64 = 48 << 20;
const SHRINKING_TO: u64 = 1 << 20;

fn shrinking_server(net: &str) -> Server {
    let builder = Server::builder(common::BINARY).text("html/ok.txt", "ok");
    let mut text = format!(
        "worker_processes 1;\nevents {{ use {net}; }}\nhttp {{ server {{ listen 127.0.0.1:0; root html;\n"
    );
    for (place, directives) in SHRINKING {
        text.push_str(&format!("location /{place}/ {{ {directives} }}\n"));
        sparse(&builder.dir().join(format!("html/{place}/long.bin")));
    }
    text.push_str("} }\n");
    builder.conf(&text).start()
}

/// Creates a long sparse file of zeros.
fn sparse(path: &Path) {
    testkit::create_dir_all(path.parent().expect("it has a parent")).expect("below a fresh directory");
    testkit::write(path, "")
        .and_then(|()| File::options().write(true).open(path)?.set_len(SHRINKING_FROM))
        .expect("a fresh file");
}

#[test]
fn a_shrinking_file_closes_only_its_connection() {
    if !ours_only("the ways to move a file are chosen by directives of this project") {
        return;
    }
    for net in NETS {
        let server = shrinking_server(net);
        let mut bystander = client(&server);
        for (place, _) in SHRINKING {
            let mut reader = Client::connect_narrow(server.addr(0).tcp(), 64 * 1024);
            reader.send(request_bytes("GET", &format!("/{place}/long.bin"), &[]));
            let head = reader.head();
            assert_eq!(head.field("content-length"), Some(SHRINKING_FROM.to_string().as_str()));
            assert!(reader.read_exact(100_000).iter().all(|&byte| byte == 0), "{net} {place}");
            let path: PathBuf = server.path(&format!("html/{place}/long.bin"));
            let shortened =
                OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(SHRINKING_TO));
            shortened.expect("the file is the test's own");
            let mut rest = Vec::new();
            let _ = std::io::Read::read_to_end(&mut reader.rest(), &mut rest);
            assert!(
                (rest.len() as u64) < SHRINKING_FROM - 100_000,
                "{net} {place}: bytes beyond the end of the file were received"
            );
            assert!(rest.iter().all(|&byte| byte == 0), "{net} {place}");
            assert_eq!(bystander.get("/ok.txt").text(), "ok", "{net} {place}");
            let line = server.wait_for_log(&format!("{place}/long.bin"), Deadline::default());
            assert!(line.contains("[alert]") || line.contains("[crit]"), "{net} {place}: {line}");
        }
        assert!(server.quit_and_wait().success());
    }
}

#[test]
fn accepting_resumes_after_emfile() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let server = start(net, &["accept error=EMFILE first=2"], "");
        let mut clients: Vec<Client> = (0..10).map(|_| client(&server)).collect();
        for client in &mut clients {
            assert_eq!(client.get("/word").text(), "word", "{net}");
        }
        let line = server.wait_for_log("(24: Too many open files)", Deadline::default());
        assert!(line.contains("[crit]"), "{net}: {line}");
    }
}

#[test]
fn a_slow_disk_delays_only_its_own_requests() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        // The delay exceeds the test's timeout, so a response that waited for a slow one would never arrive in time.
        let faults = ["open delay=100s path=DIR/html/slow", "read delay=100s path=DIR/html/slow"];
        let server = start(net, &faults, "");
        let mut stuck: Vec<Client> = (0..100).map(|_| client(&server)).collect();
        for (index, client) in stuck.iter_mut().enumerate() {
            let place = DISKS[index % DISKS.len()].0;
            client.send(request_bytes("GET", &format!("/{place}/slow-{index}"), &[]));
        }
        for (place, _) in DISKS {
            let mut client = client(&server);
            for _ in 0..20 {
                assert_eq!(client.get(&format!("/{place}/ok.txt")).text(), "ok", "{net} {place}");
            }
            B.assert_body(&client.get(&format!("/{place}/b.bin")).body);
        }
        for client in &mut stuck {
            client.expect_silence(Duration::from_micros(100));
        }
        // They do not delay the shutdown either.
        assert!(server.stop_and_wait().success(), "{net}");
    }
}

/// The fault engine affects only operations that go through the engine.
#[test]
fn an_open_file_is_checked_inline_only_if_it_cannot_block() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let builder = prepared(Server::builder(common::BINARY));
        let root = builder.dir().join("html");
        // If the root depends on the request, its file system is unknown.
        let conf = format!(
            "worker_processes 1;\nevents {{ use {net}; engine_fault stat error=EIO; }}\n\
             http {{ server {{ listen 127.0.0.1:0; set $root {root}; location / {{ root {root}; }}\n\
             location /unknown/ {{ alias $root/; }} }} }}",
            root = root.display()
        );
        let server = builder.conf(&conf).start();
        let local = File::open(&root).and_then(|root| Ok(rustix::fs::fstatfs(root)?.f_type as u32));
        let local = local.expect("it is there");
        assert_eq!(client(&server).get("/unknown/ok.txt").status, 500, "{net}");
        // NFS, FUSE and 9p, which the test directory may be on.
        if [0x6969, 0x6573_5546, 0x0102_1997].contains(&local) {
            testkit::skip("the file system is not local");
            return;
        }
        assert_eq!(client(&server).get("/ok.txt").text(), "ok", "{net}");
    }
}

#[test]
fn a_lost_completion_does_not_block_the_stop() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        for fault in ["read lost first=1", "open lost first=1 path=DIR/html/a.bin", "send lost first=1"] {
            let server = start(net, &[fault], "");
            let mut waiting = client(&server);
            waiting.send(request_bytes("GET", "/ring/a.bin", &[]));
            let mut other = client(&server);
            other.send(request_bytes("GET", "/word", &[]));
            if !fault.starts_with("send") {
                assert_eq!(other.response().text(), "word", "{net} {fault}");
            }
            assert!(server.stop_and_wait().success(), "{net} {fault}");
        }
    }
}

#[test]
fn a_shared_chunk_is_never_overwritten_after_sending() {
    if !ours_only("aio_sendfile is a directive of this project") {
        return;
    }
    let content = Content::new(43, 12 << 20);
    for net in NETS {
        for chunk in ["64k", "512k", "1m"] {
            let conf = format!(
                "worker_processes 1;\nevents {{ use {net}; }}\nhttp {{ server {{ listen 127.0.0.1:0; root html; \
                 aio_sendfile {chunk}; }} }}"
            );
            let server = Server::builder(common::BINARY).conf(&conf).file("html/long.bin", content).start();
            let mut stopped: Vec<(Client, u64, u64)> = (0..3_u64)
                .map(|index| {
                    let mut client = client(&server);
                    client.send(request_bytes("GET", "/long.bin", &[]));
                    let head = client.head();
                    let length = head.field("content-length").and_then(|value| value.parse().ok());
                    assert_eq!(length, Some(content.size()));
                    // Each stops at another position within a chunk.
                    let read = 300_000 + index * 77_777;
                    content.assert_range(0..read, &client.read_exact(read as usize));
                    (client, read, content.size())
                })
                .collect();
            // During that, dozens of chunks pass through the same slots.
            let mut running = client(&server);
            content.compare(0..content.size(), &mut &running.get("/long.bin").body[..]).expect("the first");
            for (client, _, _) in &mut stopped {
                client.idle(Duration::from_millis(200));
            }
            content.compare(0..content.size(), &mut &running.get("/long.bin").body[..]).expect("the second");
            for (client, read, size) in &mut stopped {
                let rest = client.read_exact((*size - *read) as usize);
                content.assert_range(*read..*size, &rest);
            }
        }
    }
}

/// The file is a single box that is not a movie: a request that fails with this error has read the file. The pool has buffers for
/// twelve of these reads.
#[test]
fn readers_of_videos_wait_for_buffers() {
    const CLIENTS: usize = 40;
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let conf = format!(
            "worker_processes 1; error_log logs/error.log info;
             events {{ use {net}; buffer_pool 4m; engine_fault read delay=200ms; }}
             http {{ server {{ listen 127.0.0.1:0; root html; location / {{ mp4; }} }} }}"
        );
        let video = format!("\0\x10\0\0free{}", "\0".repeat((1 << 20) - 8));
        let server = Server::builder(common::BINARY).conf(&conf).text("html/a.mp4", &video).start();
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| client(&server)).collect();
        for client in &mut clients {
            client.send(request_bytes("GET", "/a.mp4?start=1", &[]));
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 500);
        }
        server.wait_for_log_count("no mp4 trak atoms were found", CLIENTS, Deadline::default());
    }
}

#[test]
fn clients_that_disconnect_leave_no_open_files() {
    if !ours_only("the ways to move a file are chosen by directives of this project") {
        return;
    }
    for net in NETS {
        let server = start(net, &[], "");
        // Counts connections and files; shared memory that waits for reuse may stay open.
        let open = |server: &Server| {
            let targets = testkit::process::fd_targets(worker(server));
            targets.iter().filter(|target| target.starts_with("socket:") || target.contains("/html/")).count()
        };
        // The worker's listening socket, and channels to its master and the signing process.
        let before = open(&server);
        assert_eq!(client(&server).get("/ring/ok.txt").text(), "ok");
        let settle = || {
            let closed = testkit::wait::until("closed descriptors", Deadline::default(), || {
                (open(&server) <= before).then_some(())
            });
            closed.unwrap_or_else(|late| {
                panic!("{net}: {late}: {:?}", testkit::process::fd_targets(worker(&server)))
            });
        };
        settle();
        for round in 0..3 {
            for (place, _) in DISKS {
                let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
                client.send(request_bytes("GET", &format!("/{place}/a.bin"), &[]));
                assert_eq!(client.head().status, 200, "{net} {place} {round}");
                client.reset();
            }
        }
        settle();
    }
}

/// Returns the process that serves requests.
fn worker(server: &Server) -> testkit::process::Pid {
    server.workers().first().copied().unwrap_or_else(|| server.pid())
}
