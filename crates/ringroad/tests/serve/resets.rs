//! Clients that reset their connections while these wait for an accept: each request is logged, counted and limited as any other.

use rustix::process::Signal;
use testkit::client::request_bytes;
use testkit::program::signal_process;
use testkit::{Client, Content, Deadline, Server};

use crate::common::BINARY;
use crate::room::is_process_stopped;

/// Number of connections, below the length of the accept queue.
const COUNT: usize = 200;

#[test]
fn connections_that_are_reset_before_the_accept_are_logged_counted_and_limited() {
    // One address has a name, the other is a wildcard, whose local address is read from the socket.
    for (net, listen) in [("epoll", "127.0.0.1:0"), ("io_uring", "127.0.0.1:0"), ("epoll", "0.0.0.0:0")] {
        let conf = format!(
            "worker_processes 1; error_log logs/error.log info; events {{ use {net}; worker_connections 1024; }}
             http {{ log_format line '$remote_addr $status $request'; access_log logs/access.log line;
               limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;
               server {{ listen {listen};
                 location = /get {{ limit_req zone=z burst=9 nodelay; root html; }}
                 location = /metrics {{ access_log off; metrics; }} }} }}"
        );
        let server =
            match Server::builder(BINARY).conf(&conf).file("html/get", Content::new(1, 10)).try_start() {
                Ok(server) => server,
                Err(reason) if reason.contains("io_uring") => continue,
                Err(reason) => panic!("{reason}"),
            };
        let (worker, address) = (server.worker(), server.addr(0).tcp());
        let address: testkit::ListenAddr =
            testkit::ListenAddr::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], address.port())));
        signal_process(worker, Signal::STOP).expect("it is ours");
        testkit::wait::until("the stop", Deadline::default(), || is_process_stopped(worker))
            .expect("a signal");
        for _ in 0..COUNT {
            let mut client = Client::connect(&address);
            client.send(request_bytes("GET", "/get", &[]));
            client.reset();
        }
        signal_process(worker, Signal::CONT).expect("it is ours");
        let log = server.wait_for_access_log(COUNT, Deadline::default());
        let of = |status: &str| {
            let line = format!("127.0.0.1 {status} GET /get HTTP/1.1");
            log.lines().filter(|logged| **logged == line).count()
        };
        assert_eq!(
            (of("200"), of("503")),
            (10, COUNT - 10),
            "{net} {listen}: {}",
            log.lines().last().unwrap_or_default()
        );
        let page = Client::connect(&address).get("/metrics").text();
        let number = |name: &str| {
            let value = page.lines().find_map(|line| line.strip_prefix(name)).expect("the metric");
            value.trim().parse::<usize>().expect("a number")
        };
        assert_eq!(number("ringroad_connections_accepted_total "), COUNT + 1, "{net} {listen}");
        assert_eq!(number("ringroad_requests_total "), COUNT + 1, "{net} {listen}");
    }
}
