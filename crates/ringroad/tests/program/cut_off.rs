//! Requests that `worker_shutdown_timeout` cuts off: each has its line in the access log, with the number of bytes that were sent.

use rustix::process::Signal;
use testkit::client::request_bytes;
use testkit::origin::Origin;
use testkit::{Client, Content, Deadline, Gate, Server};

use crate::common::{BINARY, http2};

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Starts requests that do not end, makes the worker leave by `leave`, and checks their lines.
fn check(leave: impl Fn(&mut Server)) {
    let gate = std::sync::Arc::new(Gate::new());
    let held = std::sync::Arc::clone(&gate);
    let origin = Origin::raw(move |connection| {
        let Some(request) = connection.read_request() else { return };
        if request.target == "/ws" {
            connection
                .send("HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello");
        }
        connection.pass(&held);
    });
    let conf = format!(
        "worker_processes 1; worker_shutdown_timeout 300ms; error_log logs/error.log info; events {{}}
         http {{ log_format line '$request_method $uri $status $body_bytes_sent $request_completion.';
           access_log logs/access.log line;
           server {{ listen 127.0.0.1:0; http2 on; root html; send_timeout 600s;
             location /paced/ {{ limit_rate 2k; alias html/; }}
             location /up {{ proxy_pass http://{0}; }}
             location /ws {{ proxy_pass http://{0}; proxy_set_header Upgrade $http_upgrade;
                             proxy_set_header Connection upgrade; }} }} }}",
        origin.addr()
    );
    let files = |builder: testkit::ServerBuilder| {
        builder.file("html/a", Content::new(1, 60_000)).file("html/big", Content::new(1, 16 << 20))
    };
    let mut server = files(Server::builder(BINARY).conf(&conf)).start();
    let ask = |target: &str| {
        let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
        client.send(request_bytes("GET", target, &[]));
        client
    };
    let mut clients = [ask("/paced/a"), ask("/big"), ask("/up")];
    assert_eq!((clients[0].head().status, clients[1].head().status), (200, 200));
    clients[0].read_exact(100);
    clients[1].read_exact(100);
    let mut tunnel = Client::connect(server.addr(0));
    tunnel.send(UPGRADE);
    assert_eq!(tunnel.head().status, 101);
    assert_eq!(tunnel.read_exact(5), b"hello");
    let mut upload = Client::connect(server.addr(0));
    upload.send("POST /up/post HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    let mut h2 = http2::connect(&server);
    h2.settle();
    let streams = [h2.ask("/paced/a"), h2.ask("/big"), h2.ask("/up/h2")];
    h2.until(|client| {
        streams[..2].iter().all(|stream| client.streams.get(stream).is_some_and(|got| !got.body.is_empty()))
    });
    gate.wait_reached_by(3);
    leave(&mut server);
    let log = server.wait_for_access_log(8, Deadline::default());
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let bytes = |start: &str| {
        let of =
            lines.iter().filter_map(|line| line.strip_prefix(start)?.split_once(' ')?.0.parse::<u64>().ok());
        let of: Vec<u64> = of.collect();
        assert!(!of.is_empty(), "{start}: {log}");
        of
    };
    for (start, count, least) in [("GET /paced/a 200 ", 2, 1), ("GET /big 200 ", 2, 4096)] {
        let found = bytes(start);
        assert!(found.len() == count && found.iter().all(|sent| (least..16 << 20).contains(sent)), "{log}");
    }
    assert_eq!(bytes("GET /ws 101 "), [5], "{log}");
    assert_eq!(
        (bytes("GET /up 000 "), bytes("GET /up/h2 000 "), bytes("POST /up/post 000 ")),
        (vec![0], vec![0], vec![0])
    );
    assert!(lines.iter().all(|line| line.ends_with(" .")), "none is complete: {log}");
    let line = server.wait_for_log("worker_shutdown_timeout has passed", Deadline::default());
    assert!(line.contains("[info]"), "{line}");
    gate.open();
}

#[test]
fn requests_that_a_quit_cuts_off_have_lines_in_the_access_log() {
    check(|server| server.signal(Signal::QUIT));
}

#[test]
fn requests_that_a_reload_cuts_off_have_lines_in_the_access_log() {
    check(|server| {
        // Another number of threads needs another worker.
        let conf = server.conf().replace("worker_processes 1", "worker_processes 2");
        server.rewrite_conf(&conf);
        server.reload();
    });
}
