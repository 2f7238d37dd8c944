//! Sessions of UDP: datagrams in both directions, `proxy_requests`, `proxy_responses`, failures, limits, reloads.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::support::{serve, serve_with};
use testkit::dns::{Answer, Kind};
use testkit::{Deadline, DnsServer, Gate, Server, process, wait};

/// Returns a socket that does not wait forever.
fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    socket
}

/// Sends a text to an address, and returns the response.
fn ask(socket: &UdpSocket, to: SocketAddr, text: &str) -> String {
    socket.send_to(text.as_bytes(), to).expect("it is sent");
    let mut buffer = [0; 65536];
    let (count, from) = socket.recv_from(&mut buffer).expect("a response");
    assert_eq!(from, to, "the address that the client has sent to");
    String::from_utf8(buffer[..count].to_vec()).expect("a text")
}

/// Works like [`ask`], and repeats a datagram that is lost: the receive buffer of the server may be full.
fn ask_again(socket: &UdpSocket, to: SocketAddr, text: &str) -> String {
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time limit");
    let mut buffer = [0; 1000];
    let response = wait::until("a response", Deadline::default(), || {
        socket.send_to(text.as_bytes(), to).expect("it is sent");
        socket.recv_from(&mut buffer).ok()
    });
    let (count, _) = response.expect("a response");
    String::from_utf8(buffer[..count].to_vec()).expect("a text")
}

/// Starts an upstream that responds with its name, the port of the sender, and the text. Its thread ends with the test program.
fn upstream(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]);
            let _ = socket.send_to(format!("{name} {} {text}", from.port()).as_bytes(), from);
        }
    });
    address
}

/// Returns the port in a response: the same session has the same port.
fn port(response: &str) -> &str {
    response.split(' ').nth(1).expect("a port")
}

fn address(server: &Server) -> SocketAddr {
    server.addr(0).tcp()
}

/// Returns an address that nothing listens on.
fn closed() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port")
}

#[test]
fn a_session_has_one_upstream_socket_until_its_timeout() {
    let server = serve(&format!(
        "log_format udp '$protocol $status $bytes_received $bytes_sent $upstream_bytes_sent $upstream_bytes_received';
         server {{ listen 127.0.0.1:0 udp; access_log logs/access.log udp; proxy_pass {}; proxy_timeout 300ms; }}",
        upstream("a")
    ));
    let socket = client();
    let first = ask(&socket, address(&server), "one");
    let second = ask(&socket, address(&server), "two");
    assert!(first.ends_with(" one") && second.ends_with(" two"), "{first} {second}");
    assert_eq!(port(&first), port(&second));
    let lines = server.wait_for_access_log(1, Deadline::default());
    let expected = format!("UDP 200 6 {0} 6 {0}\n", first.len() + second.len());
    assert_eq!(lines, expected);
    let third = ask(&socket, address(&server), "three");
    assert!(third.ends_with(" three"), "{third}");
    server.wait_for_log("udp timed out, packets from/to client:2/2", Deadline::default());
}

#[test]
fn expected_responses_and_requests_end_a_session() {
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0 udp; proxy_pass {}; proxy_responses 1; proxy_requests 1; }}",
        upstream("dns")
    ));
    let socket = client();
    for text in ["one", "two", "three"] {
        assert!(ask(&socket, address(&server), text).ends_with(text));
    }
    let lines = server.wait_for_access_log(3, Deadline::default());
    assert!(lines.lines().all(|line| line.starts_with("200 ")), "{lines}");
    server.wait_for_log("udp done, packets from/to client:1/1", Deadline::default());
}

#[test]
fn no_response_is_a_failure_if_one_is_expected_and_none_if_none_is() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let to = silent.local_addr().expect("it is bound");
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0 udp; proxy_pass {to}; proxy_responses 1; proxy_timeout 100ms; }}
         server {{ listen 127.0.0.2:0 udp; proxy_pass {to}; proxy_responses 0; }}"
    ));
    let mut buffer = [0; 100];
    client().send_to(b"x", server.addr(0).tcp()).expect("it is sent");
    assert_eq!(silent.recv_from(&mut buffer).expect("it arrives").0, 1);
    let lines = server.wait_for_access_log(1, Deadline::default());
    assert!(lines.starts_with("502 1 0"), "{lines}");
    client().send_to(b"log", server.addr(1).tcp()).expect("it is sent");
    assert_eq!(silent.recv_from(&mut buffer).expect("it arrives").0, 3);
    let lines = server.wait_for_access_log(2, Deadline::default());
    assert!(lines.lines().nth(1).is_some_and(|line| line.starts_with("200 3 0")), "{lines}");
}

#[test]
fn another_server_gets_the_datagram_if_a_port_is_closed() {
    let good = upstream("good");
    let server = serve(&format!(
        "upstream group {{ server {} weight=100; server {good}; }}
         server {{ listen 127.0.0.1:0 udp; proxy_pass group; proxy_responses 1; }}",
        closed()
    ));
    assert!(ask(&client(), address(&server), "x").starts_with("good "));
    server.wait_for_log(
        "(111: Connection refused) while proxying and reading from upstream",
        Deadline::default(),
    );
}

#[test]
fn balancers_access_rules_and_return_apply_to_clients_of_udp() {
    let (a, b) = (upstream("a"), upstream("b"));
    let server = serve(&format!(
        "upstream group {{ server {a}; server {b}; }}
         server {{ listen 127.0.0.1:0 udp; proxy_pass group; proxy_responses 1; }}
         server {{ listen 127.0.0.2:0 udp; deny all; proxy_pass group; }}
         server {{ listen 127.0.0.3:0 udp; return \"$protocol $remote_addr\"; }}"
    ));
    let names: String = (0..4).map(|_| ask(&client(), address(&server), "x")[..1].to_owned()).collect();
    assert_eq!(names.matches('a').count(), 2, "{names}");
    client().send_to(b"x", server.addr(1).tcp()).expect("it is sent");
    let lines = server.wait_for_access_log(5, Deadline::default());
    assert!(lines.lines().any(|line| line.starts_with("403 ")), "{lines}");
    let socket = client();
    for _ in 0..2 {
        assert_eq!(ask(&socket, server.addr(2).tcp(), "x"), "UDP 127.0.0.1");
    }
}

#[test]
fn a_wildcard_address_responds_from_the_address_of_the_request() {
    let server = serve(&format!(
        "server {{ listen 0.0.0.0:0 udp; proxy_pass {0}; }} server {{ listen [::1]:0 udp; proxy_pass {0}; }}",
        upstream("a")
    ));
    let port = address(&server).port();
    for ip in ["127.0.0.1", "127.0.0.7"] {
        let ip: IpAddr = ip.parse().expect("an address");
        assert!(ask(&client(), SocketAddr::new(ip, port), "x").starts_with("a "));
    }
    let socket = UdpSocket::bind("[::1]:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    assert!(ask(&socket, server.addr(1).tcp(), "x").starts_with("a "));
}

#[test]
fn long_and_empty_datagrams_are_passed_unchanged() {
    let server = serve(&format!("server {{ listen 127.0.0.1:0 udp; proxy_pass {}; }}", upstream("a")));
    let socket = client();
    for len in [0, 1, 1472, 9000, 60_000] {
        let text = "x".repeat(len);
        assert!(ask(&socket, address(&server), &text).ends_with(&format!(" {text}")), "{len}");
    }
    // Many datagrams at once arrive separately.
    for number in 0..40 {
        socket.send_to(format!("{number}").as_bytes(), address(&server)).expect("it is sent");
    }
    let mut buffer = [0; 100];
    let mut received = 0;
    while received < 40 {
        let (count, _) = socket.recv_from(&mut buffer).expect("a response");
        assert!(buffer[..count].ends_with(format!(" {received}").as_bytes()), "{received}");
        received += 1;
    }
}

#[test]
fn a_flood_of_addresses_does_not_end_sessions_of_others() {
    let server = {
        let conf = format!(
            "worker_processes 1; error_log logs/error.log notice; events {{ worker_connections 64; }}
             stream {{ server {{ listen 127.0.0.1:0 udp; proxy_pass {}; }} }}",
            upstream("a")
        );
        Server::builder(crate::common::BINARY).conf(&conf).start()
    };
    let socket = client();
    let first = ask(&socket, address(&server), "one");
    assert_eq!(port(&ask(&socket, address(&server), "two")), port(&first));
    // 300 clients, and room for 32 sessions.
    for _ in 0..300 {
        client().send_to(b"x", address(&server)).expect("it is sent");
    }
    assert!(ask_again(&client(), address(&server), "new").ends_with(" new"), "new clients are served too");
    assert_eq!(port(&ask_again(&socket, address(&server), "three")), port(&first), "the session continues");
}

#[test]
fn a_flood_that_waits_for_its_upstream_leaves_memory_and_first_datagrams_to_others() {
    let (dns, gate, upstream) = (DnsServer::start(), Gate::new(), upstream("a"));
    let late = Answer::Late(gate.clone(), Box::new(Answer::addresses(&["127.0.0.1"], 60)));
    dns.set("late.test", Kind::A, late);
    let conf = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ worker_connections 4096; }}
         stream {{ resolver {} ipv6=off; resolver_timeout 60s; map $protocol $name {{ default late.test; }}
           server {{ listen 127.0.0.1:0 udp; proxy_pass $name:{}; }}
           server {{ listen 127.0.0.2:0 udp; proxy_pass {upstream}; }} }}",
        dns.addr(),
        upstream.port()
    );
    let server = Server::builder(crate::common::BINARY).conf(&conf).start();
    let worker = server.worker();
    let first = client();
    first.send_to(b"first", server.addr(0).tcp()).expect("it is sent");
    gate.wait_reached();
    let before = process::resident_bytes(worker);
    let other = client();
    // 400 addresses; each sends as much as one session may have: 100 MiB.
    let bytes = vec![0; 8 << 10];
    for number in 0..400 {
        let socket = UdpSocket::bind(format!("127.0.{}.{}:0", 1 + number / 200, 1 + number % 200));
        let socket = socket.expect("a port");
        for _ in 0..32 {
            socket.send_to(&bytes, server.addr(0).tcp()).expect("it is sent");
        }
        // The worker has processed the datagrams before this one.
        assert!(ask_again(&other, server.addr(1).tcp(), "other").ends_with(" other"));
    }
    let grown = process::resident_bytes(worker) - before;
    // 16 MiB, and the sessions themselves.
    assert!(grown < 48 << 20, "{grown} bytes");
    assert!(grown > 8 << 20, "{grown} bytes: the flood has arrived");
    let late = client();
    late.send_to(b"last", server.addr(0).tcp()).expect("it is sent");
    assert!(ask_again(&other, server.addr(1).tcp(), "other").ends_with(" other"));
    gate.open();
    for (socket, text) in [(first, " first"), (late, " last")] {
        let mut buffer = [0; 100];
        let (count, _) = socket.recv_from(&mut buffer).expect("a response");
        assert!(buffer[..count].ends_with(text.as_bytes()));
    }
}

#[test]
fn sessions_continue_across_a_reload_and_new_ones_use_the_new_configuration() {
    let (old, new) = (upstream("old"), upstream("new"));
    // Otherwise the sandbox would need a new process for another port.
    let stream = format!("server {{ listen 127.0.0.1:0 udp; proxy_pass {old}; }}");
    let mut server = serve_with("sandbox off;", &stream);
    let socket = client();
    let first = ask(&socket, address(&server), "x");
    let changed = server.conf().replace(&old.to_string(), &new.to_string());
    server.rewrite_conf(&changed);
    server.reload();
    wait::until("the new upstream", Deadline::default(), || {
        ask(&client(), address(&server), "x").starts_with("new ").then_some(())
    })
    .expect("the new configuration is used");
    assert_eq!(port(&ask(&socket, address(&server), "y")), port(&first));
}

#[test]
fn a_shutdown_ends_sessions_after_its_timeout() {
    let server = serve_with(
        "worker_shutdown_timeout 200ms;",
        &format!("server {{ listen 127.0.0.1:0 udp; proxy_pass {}; }}", upstream("a")),
    );
    assert!(ask(&client(), address(&server), "x").starts_with("a "));
    assert!(server.quit_and_wait().success());
}
