//! Tunnels of which one side has ended: the other side has a short time, and then both sockets are free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::BINARY;
use testkit::client::request_bytes;
use testkit::origin::Origin;
use testkit::{Client, Content, Deadline, Gate, Server, wait};

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Starts a server whose tunnels lead to this origin; with these settings and this number of connections.
fn serve(origin: &Origin, settings: &str, connections: usize) -> Server {
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ worker_connections {connections}; }}
         http {{ log_format ends '$status $bytes_sent'; access_log logs/access.log ends;
           server {{ listen 127.0.0.1:0; {settings}
             location = /ok {{ access_log off; return 200 ok; }}
             location = /metrics {{ access_log off; metrics; }}
             location /ws {{ proxy_pass http://{}; proxy_set_header Upgrade $http_upgrade;
                             proxy_set_header Connection upgrade; }} }} }}",
        origin.addr()
    );
    Server::builder(BINARY).conf(&conf).start()
}

/// Opens a tunnel.
fn tunnel(server: &Server) -> Client {
    let mut client = Client::connect(server.addr(0));
    client.send(UPGRADE);
    assert_eq!(client.head().status, 101);
    client
}

/// Returns the number of tunnels that ended in this way.
fn ended(server: &Server, end: &str) -> u64 {
    let page = Client::connect(server.addr(0)).get("/metrics").text();
    let name = format!("ringroad_tunnels_ended_total{{end=\"{end}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&name)).expect("the metric");
    line.parse().expect("a number")
}

/// Starts an origin that switches the protocol and then ignores its client until the gate opens.
fn ignoring_origin(gate: &Arc<Gate>, ends_first: bool) -> Origin {
    let gate = Arc::clone(gate);
    Origin::raw(move |connection| {
        if connection.read_request().is_some() {
            connection.send(SWITCHED);
            if ends_first {
                connection.half_close();
            }
            connection.pass(&gate);
        }
    })
}

#[test]
fn a_tunnel_whose_client_has_left_is_closed_although_the_upstream_ignores_the_end() {
    let gate = Arc::new(Gate::new());
    let origin = ignoring_origin(&gate, false);
    // The first time limit is the default.
    for settings in ["proxy_read_timeout 600s;", "proxy_read_timeout 600s; proxy_half_close_timeout 100ms;"] {
        let server = serve(&origin, settings, 512);
        drop(tunnel(&server));
        let log = server.wait_for_access_log(1, Deadline::default());
        assert!(log.starts_with("101 "), "{log}");
        assert_eq!(ended(&server, "half_closed"), 1);
    }
    gate.open();
}

#[test]
fn a_tunnel_whose_upstream_has_ended_is_closed_although_the_client_ignores_the_end() {
    let gate = Arc::new(Gate::new());
    let origin = ignoring_origin(&gate, true);
    let server = serve(&origin, "proxy_read_timeout 600s; proxy_half_close_timeout 100ms;", 512);
    let client = tunnel(&server);
    server.wait_for_access_log(1, Deadline::default());
    assert_eq!(ended(&server, "half_closed"), 1);
    gate.open();
    drop(client);
}

/// The time limit is for silence: an upstream that still sends is not cut off.
#[test]
fn a_response_after_the_end_of_the_client_is_complete() {
    const PIECES: usize = 10;
    let origin = Origin::raw(|connection| {
        if connection.read_request().is_some() {
            connection.send(SWITCHED);
            connection.wait_for_close();
            for _ in 0..PIECES {
                wait::let_pass(Duration::from_millis(200));
                connection.send([b'x'; 1000]);
            }
        }
    });
    let server = serve(&origin, "proxy_half_close_timeout 1500ms;", 512);
    let mut client = tunnel(&server);
    client.half_close();
    assert_eq!(client.read_to_end().len(), PIECES * 1000);
    server.wait_for_access_log(1, Deadline::default());
    assert_eq!((ended(&server, "closed"), ended(&server, "half_closed")), (1, 0));
}

/// Before its time limit, such a tunnel is closed if another client needs its slots.
#[test]
fn tunnels_whose_clients_have_left_are_closed_for_new_clients() {
    let gate = Arc::new(Gate::new());
    let origin = ignoring_origin(&gate, false);
    let server = serve(&origin, "proxy_read_timeout 600s; proxy_half_close_timeout 600s;", 64);
    for _ in 0..20 {
        drop(tunnel(&server));
    }
    let mut clients: Vec<Client> = (0..50).map(|_| Client::connect(server.addr(0))).collect();
    // On a busy machine a client may be closed for another before the server has seen that the tunnels have ended; then it
    // connects again. If tunnels kept their slots, each round would close clients.
    let is_kept = |client: &mut Client| {
        let sent = client.try_send(&request_bytes("GET", "/ok", &[]));
        let response = sent.ok().and_then(|()| client.try_response().ok());
        if let Some(response) = &response {
            assert_eq!(response.text(), "ok");
        } else {
            *client = Client::connect(server.addr(0));
        }
        response.is_some()
    };
    let are_kept = || (clients.iter_mut().all(is_kept)).then_some(());
    wait::until("a round without a closed client", Deadline::default(), are_kept).expect("slots");
    drop(clients);
    drop(tunnel(&server));
    gate.open();
}

/// Clients that leave at the same time as others need connections to upstreams: a request waits for the slots of their tunnels.
#[test]
fn tunnels_whose_clients_have_left_are_closed_for_connections_to_upstreams() {
    let gate = Arc::new(Gate::new());
    let origin = ignoring_origin(&gate, false);
    let other = Origin::start(|_| testkit::Reply::text("ok"));
    let settings = format!(
        "proxy_half_close_timeout 600s; location /pass {{ access_log off; proxy_pass http://{}; }}",
        other.addr()
    );
    let server = serve(&origin, &settings, 64);
    // 64 slots less the four that upstreams leave to clients.
    let tunnels: Vec<Client> = (0..30).map(|_| tunnel(&server)).collect();
    drop(tunnels);
    for number in 0..40 {
        let response = Client::connect(server.addr(0)).get("/pass");
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "request {number}");
    }
    gate.open();
}

/// With a limit on connections, the slot of a client that has left is free for the next client at once, although the rate limit permits
/// no byte for a second. Of several attempts one has to be fast, since the machine may be busy.
#[test]
fn a_client_that_leaves_a_rate_limited_response_frees_its_slot_before_the_next_send() {
    let conf = "worker_processes 1; error_log logs/error.log info; events {}
         http { access_log off; limit_conn_zone all zone=z:1m; server { listen 127.0.0.1:0; root html;
           location = /slow { limit_conn z 1; limit_rate 2k; alias html/a; }
           location = /text { limit_conn z 1; limit_rate 2k; gzip on; gzip_types *; alias html/a; } } }";
    let conf = conf.replace("limit_conn_zone all", "limit_conn_zone $server_name");
    for use_ in ["epoll", "io_uring"] {
        let conf = conf.replace("events {}", &format!("events {{ use {use_}; }}"));
        let server =
            match Server::builder(BINARY).conf(&conf).file("html/a", Content::new(1, 60_000)).try_start() {
                Ok(server) => server,
                Err(reason) if reason.contains("io_uring") => continue,
                Err(reason) => panic!("{reason}"),
            };
        for target in ["/slow", "/text"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
            let freed_after = |_| {
                let mut first = Client::connect(server.addr(0));
                first.send(&request);
                assert_eq!(first.head().status, 200);
                first.read_exact(500);
                drop(first);
                let began = Instant::now();
                let is_served = || {
                    let mut next = Client::connect(server.addr(0));
                    next.send(&request);
                    (next.head().status == 200).then(|| next.reset())
                };
                wait::until("a free slot", Deadline::default(), is_served).expect("it left");
                let took = began.elapsed();
                // The second client has to leave too.
                wait::let_pass(Duration::from_millis(300));
                took
            };
            let best = (0..6).map(freed_after).min().expect("attempts");
            assert!(best < Duration::from_millis(400), "{use_} {target}: {best:?}");
        }
    }
}

/// A client that has only ended its sending direction has not left.
#[test]
fn a_client_that_ends_its_side_gets_its_complete_rate_limited_response() {
    let conf = "worker_processes 1; error_log logs/error.log info; events {}
         http { access_log off; server { listen 127.0.0.1:0; limit_rate 2k; root html; } }";
    let content = Content::new(1, 6000);
    let server = Server::builder(BINARY).conf(conf).file("html/a", content).start();
    let mut client = Client::connect(server.addr(0));
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    client.half_close();
    content.assert_body(&client.response().body);
}
