//! Sockets to upstreams: connect timeouts, local addresses, socket options, and the keep-alive connections that may be
//! reused.

use crate::common;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::common::BINARY;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use testkit::origin::{Origin, Reply};
use testkit::{Client, Deadline, Gate, Server, Setup, TempDir, process};

/// A listening server whose backlog is full: the kernel responds to no more connection attempts, which hang.
struct Full {
    address: SocketAddr,
    _listener: OwnedFd,
    _waiting: Vec<TcpStream>,
}

impl Full {
    fn new() -> Full {
        let listener =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        rustix::net::listen(&listener, 0).expect("it is bound");
        let name = rustix::net::getsockname(&listener).expect("it is bound");
        let address = SocketAddr::try_from(name).expect("of TCP");
        let attempt = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let waiting = std::iter::from_fn(attempt).take(100).collect();
        Full { address, _listener: listener, _waiting: waiting }
    }
}

#[test]
fn a_slow_connect_times_out() {
    let full = Full::new();
    let origin = Origin::start(|_| Reply::text("other"));
    let text = "worker_processes 1; error_log logs/error.log info; events {} http {
  log_format up '$status|$upstream_status|$upstream_connect_time'; access_log logs/access.log up;
  upstream pair { server @FULL@ max_fails=0; server @ORIGIN@ backup; }
  proxy_connect_timeout 500ms;
  server { listen 127.0.0.1:0;
    location / { proxy_pass http://@FULL@; }
    location /pair { proxy_pass http://pair; }
    location /error { proxy_next_upstream error; proxy_pass http://pair; } } }";
    let setup = Setup::new(text).origin(&origin).value("FULL", &full.address.to_string());
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/").status, 504);
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while connecting to upstream",
        Deadline::default(),
    );
    assert_eq!(client.get("/pair").text(), "other");
    assert_eq!(client.get("/error").status, 504, "`error` does not include a timeout");
    let log = server.wait_for_access_log(3, Deadline::default());
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!((lines[0], lines[2]), ("504|504|-", "504|504|-"));
    assert!(lines[1].starts_with("200|504, 200|-, 0."), "{log}");
}

/// Returns a socket's `SO_KEEPALIVE`, `SO_RCVBUF` and `SO_SNDBUF`.
fn options(socket: &OwnedFd) -> (bool, usize, usize) {
    let keepalive = sockopt::socket_keepalive(socket).expect("a socket");
    let receive = sockopt::socket_recv_buffer_size(socket).expect("a socket");
    (keepalive, receive, sockopt::socket_send_buffer_size(socket).expect("a socket"))
}

#[test]
fn socket_options_are_set_as_configured() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("x").wait_first(&held));
    let text = common::one_server(
        "proxy_socket_keepalive on; proxy_socket_rcvbuf 16k; proxy_socket_sndbuf 24k; proxy_send_lowat 4k;",
        "location / { proxy_pass http://@ORIGIN@; }
         location /own { proxy_socket_keepalive off; proxy_socket_rcvbuf 0; proxy_socket_sndbuf 0; proxy_pass http://@ORIGIN@; }",
    );
    let server = Setup::new(&text).origin(&origin).start(BINARY);
    server.wait_for_log("\"proxy_send_lowat\" is not supported, ignored", Deadline::default());
    let usual = {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        options(&socket)
    };
    for (target, expected) in [("/", (true, 32 << 10, 48 << 10)), ("/own", usual)] {
        let mut client = Client::connect(server.addr(0));
        let before = gate.arrived();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        gate.wait_reached_by(before + 1);
        let (sockets, is_allowed) = process::sockets_to(server.worker(), origin.addr().tcp());
        if !is_allowed {
            return testkit::skip("descriptors of another process cannot be copied here");
        }
        let [socket] = sockets.as_slice() else { panic!("{} sockets", sockets.len()) };
        // The kernel doubles a set value (socket(7)), and sizes an accepted connection's buffers by itself.
        let (keepalive, receive, send) = options(socket);
        assert_eq!(keepalive, expected.0, "{target}");
        if target == "/" {
            assert_eq!((receive, send), (expected.1, expected.2));
        } else {
            assert!(receive >= expected.1 && send >= expected.2, "{receive} {send}");
        }
        assert!(sockopt::tcp_nodelay(socket).expect("a socket"), "{target}");
        gate.let_through(1);
        assert_eq!(client.response().text(), "x");
    }
}

/// Starts a server that responds with the client's address.
fn client_address_server() -> Server {
    common::serve(
        "worker_processes 1; events {} http { keepalive_requests 100; server { listen 127.0.0.1:0;
       return 200 '$remote_addr $connection_requests'; } }",
    )
}

/// nginx would reuse a connection from another local address than the request's.
#[test]
fn idle_connections_are_reused_only_for_the_same_local_address() {
    let origin = client_address_server();
    let text = format!(
        "worker_processes 1; events {{}} http {{
           upstream one {{ server {}; keepalive 8; }}
           server {{ listen 127.0.0.1:0;
           location /none {{ proxy_pass http://one; }}
           location /fixed {{ proxy_bind 127.0.0.2; proxy_pass http://one; }}
           location /asked {{ proxy_bind $arg_from; proxy_pass http://one; }}
           location /kernel {{ proxy_socket_keepalive on; proxy_pass http://one; }} }} }}",
        origin.addr(0)
    );
    let server = Server::start(BINARY, &text);
    let mut client = Client::connect(server.addr(0));
    for (target, expected) in [
        ("/none", "127.0.0.1 1"),
        ("/fixed", "127.0.0.2 1"),
        ("/none", "127.0.0.1 2"),
        ("/fixed", "127.0.0.2 2"),
        // The same address may come from different sources.
        ("/asked?from=127.0.0.2", "127.0.0.2 3"),
        ("/asked?from=127.0.0.3", "127.0.0.3 1"),
        ("/asked", "127.0.0.1 3"),
        ("/kernel", "127.0.0.1 1"),
        ("/kernel", "127.0.0.1 2"),
    ] {
        assert_eq!(client.get(target).text(), expected, "{target}");
    }
}

/// 192.0.2.0/24 is not in use (RFC 5737).
#[test]
fn binding_a_foreign_address_causes_a_500() {
    let (origin, other) = (Origin::start(|_| Reply::text("x")), Origin::start(|_| Reply::text("x")));
    let text = common::one_server(
        "upstream pair { server @ORIGIN@; server @OTHER@; }",
        "location / { proxy_bind 192.0.2.7; proxy_pass http://pair; }
         location /port { proxy_bind 192.0.2.7:77; proxy_pass http://pair; }",
    );
    let server = Setup::new(&text).origin(&origin).upstream("OTHER", other.addr()).start(BINARY);
    for (target, name) in [("/", "192.0.2.7"), ("/port", "192.0.2.7:77")] {
        assert_eq!(common::client(&server).get(target).status, 500, "{target}");
        let line = server.wait_for_log(
            &format!(
                "bind({name}) failed (99: Cannot assign requested address) while connecting to upstream"
            ),
            Deadline::default(),
        );
        assert!(line.contains("[crit]"), "{line}");
    }
    assert_eq!(origin.stats().connections + other.stats().connections, 0);
}

/// `CAP_NET_RAW` of capabilities(7).
const NET_RAW: u64 = 1 << 13;

fn transparent(origin: &Server) -> String {
    format!(
        "user nobody; worker_processes 2; events {{}} http {{ server {{ listen 127.0.0.1:0;
           location / {{ proxy_bind 127.0.0.9 transparent; proxy_pass http://{}; }} }} }}",
        origin.addr(0)
    )
}

/// Workers retain the capability that `transparent` needs, and no other.
#[test]
fn a_transparent_address_works_without_a_root_worker() {
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("changing the user takes root");
    }
    let origin = client_address_server();
    let server = Server::start(BINARY, &transparent(&origin));
    let threads = process::threads(server.worker());
    let is_allowed = process::threads(server.pid()).iter().all(|thread| thread.capabilities & NET_RAW != 0);
    if !is_allowed {
        return testkit::skip("this root has no CAP_NET_RAW");
    }
    assert!(
        threads.iter().all(|thread| thread.capabilities == NET_RAW && thread.uids[1] != 0),
        "{threads:?}"
    );
    assert_eq!(common::client(&server).get("/").text(), "127.0.0.9 1");
}

/// Without the capability the log names the system call that failed.
#[test]
fn a_transparent_address_without_the_capability_is_reported() {
    let origin = client_address_server();
    let folder = TempDir::new("without");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("ours");
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !std::path::Path::new("/usr/bin/setpriv").exists() {
        return testkit::skip("no setpriv to start a root with less");
    }
    let script =
        format!("#!/bin/sh\nexec /usr/bin/setpriv --bounding-set -net_raw,-net_admin {BINARY} \"$@\"\n");
    let script = folder.write("ringroad", &script);
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let binary = if is_root { script.as_path() } else { std::path::Path::new(BINARY) };
    let server = Server::start(binary, &transparent(&origin));
    let threads = process::threads(server.worker());
    if threads.iter().any(|thread| thread.capabilities != 0) {
        return testkit::skip("capabilities cannot be taken away here");
    }
    assert_eq!(common::client(&server).get("/").status, 500);
    let line = server.wait_for_log(
        "setsockopt(IP_TRANSPARENT) failed (1: Operation not permitted) while connecting to upstream",
        Deadline::default(),
    );
    assert!(line.contains("[alert]"), "{line}");
}
