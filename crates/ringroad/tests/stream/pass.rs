//! `pass`: connections that continue at another listening address, of `http` or of `stream`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use crate::common::BINARY;
use crate::common::tls::{Authority, BOTH, connect_to};
use crate::support::{Upstream, connect, echo, read_all, serve};
use testkit::ports::free_port;
use testkit::{Deadline, Server};

/// Starts a server; `DIR` stands for its directory, `PORT` for a port that nothing else uses.
fn serve_both(
    more: impl FnOnce(testkit::ServerBuilder) -> testkit::ServerBuilder,
    http: &str,
    stream: &str,
) -> Server {
    let builder = more(Server::builder(BINARY));
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ }}
         stream {{ log_format ends '$status $bytes_received $bytes_sent'; access_log logs/stream.log ends; {stream} }}
         http {{ log_format requests '$remote_addr $server_addr $connection_requests $scheme $status';
           access_log logs/access.log requests; {http} }}"
    );
    let conf = conf.replace("DIR", &builder.dir().display().to_string());
    builder.conf(&conf.replace("PORT", &free_port().to_string())).start()
}

/// Sends a request whose response ends the connection, and returns the response.
fn request(stream: &mut (impl Read + Write), target: &str) -> String {
    let text = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the connection ends");
    response
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a header section").1
}

/// The addresses by which clients of the first listening address pass, with those of `pass`.
#[test]
fn a_connection_continues_in_http_with_its_client_and_the_address_of_the_directive() {
    let http = "server { listen unix:DIR/http.sock; listen 127.0.0.1:PORT;
        location / { return 200 \"$remote_addr $server_addr:$server_port $scheme\"; } }
      server { listen 0.0.0.0:PORT; location / { return 200 \"wildcard $server_addr\"; } }";
    let server = serve_both(
        |builder| builder,
        http,
        "map $server_port $to { default unix:DIR/http.sock; }
         server { listen 127.0.0.2:0; pass 127.0.0.1:PORT; }
         server { listen 127.0.0.3:0; pass $to; }
         server { listen 127.0.0.4:0; pass 127.0.0.9:PORT; }",
    );
    let address = |ip: &str| -> SocketAddr {
        let addresses = server.logged_addresses();
        let found = addresses.iter().map(|address| address.to_string()).find(|text| text.starts_with(ip));
        found.expect("it listens").parse().expect("an address")
    };
    let answer = |ip: &str| body(&request(&mut connect(address(ip)), "/")).to_owned();
    let direct = answer("127.0.0.2");
    assert!(direct.starts_with("127.0.0.1 127.0.0.1:") && direct.ends_with(" http"), "{direct}");
    let unix = answer("127.0.0.3");
    assert!(unix.starts_with("127.0.0.1 unix:"), "{unix}");
    assert_eq!(answer("127.0.0.4"), "wildcard 127.0.0.9");
    // Keep-alive requests, and the access logs: only that of `http`.
    let mut client = connect(address("127.0.0.2"));
    for _ in 0..2 {
        client.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is sent");
        let mut buffer = [0; 1000];
        let count = client.read(&mut buffer).expect("a response");
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
    }
    let log = server.wait_for_access_log(5, Deadline::default());
    assert!(log.lines().last().is_some_and(|line| line.starts_with("127.0.0.1 127.0.0.1 2 http")), "{log}");
    assert_eq!(std::fs::read_to_string(server.path("logs/stream.log")).expect("a log"), "");
}

/// TLS is terminated first, so the other address serves plain requests over TLS.
#[test]
fn tls_of_the_first_server_stays_and_a_plain_connection_gets_that_of_the_address() {
    let authority = Authority::new("pass");
    let (certificate, key) = authority.server("a.example");
    let server = serve_both(
        |builder| builder.text("a.pem", &certificate).text("a.key", &key),
        "ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
         server { listen unix:DIR/plain.sock; location / { return 200 \"$scheme $ssl_server_name\"; } }
         server { listen unix:DIR/tls.sock ssl; location / { return 200 \"own $scheme $ssl_server_name\"; } }",
        "ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
         server { listen 127.0.0.1:0 ssl; pass unix:DIR/plain.sock; }
         server { listen 127.0.0.2:0; ssl_preread on; pass unix:DIR/tls.sock; }
         server { listen 127.0.0.3:0 ssl; pass unix:DIR/tls.sock; }",
    );
    let clients = authority.clients(BOTH, None);
    let mut by_ip = server.logged_addresses();
    by_ip.retain(|address| address.to_string().starts_with("127."));
    by_ip.sort_by_key(|address| address.to_string());
    let answer = |index: usize| {
        let mut stream = connect_to(by_ip[index].tcp(), &clients, "a.example");
        request(&mut stream, "/")
    };
    assert_eq!(body(&answer(0)), "https a.example");
    // The ClientHello that `ssl_preread` has read is passed on.
    assert_eq!(body(&answer(1)), "own https a.example");
    let mut refused = connect_to(by_ip[2].tcp(), &clients, "a.example");
    assert!(refused.read(&mut [0]).map_or(true, |count| count == 0));
    server
        .wait_for_log("connection uses TLS already, no \"ssl\" is possible for \"unix:", Deadline::default());
}

#[test]
fn proxy_headers_name_the_client_of_the_next_address() {
    let server = serve_both(
        |builder| builder,
        "server { listen unix:DIR/a.sock; location / { return 200 \"$remote_addr $proxy_protocol_addr\"; } }
         server { listen unix:DIR/b.sock proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
           location / { return 200 \"$remote_addr $proxy_protocol_addr\"; } }",
        "set_real_ip_from 127.0.0.0/8;
         server { listen 127.0.0.1:0 proxy_protocol; pass unix:DIR/a.sock; }
         server { listen 127.0.0.2:0; pass unix:DIR/b.sock; }",
    );
    let mut by_ip = server.logged_addresses();
    by_ip.retain(|address| address.to_string().starts_with("127."));
    by_ip.sort_by_key(|address| address.to_string());
    for (address, expected) in by_ip.iter().zip(["192.0.2.1 192.0.2.1", "192.0.2.1 192.0.2.1"]) {
        let mut client = connect(address.tcp());
        client.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n").expect("it is sent");
        assert_eq!(body(&request(&mut client, "/")), expected);
    }
}

#[test]
fn a_connection_continues_at_another_server_of_stream_and_keeps_its_place_of_limit_conn() {
    let upstream = Upstream::echo();
    let server = serve_both(
        |builder| builder,
        "server { listen unix:DIR/http.sock; }",
        &format!(
            "limit_conn_zone $binary_remote_addr zone=clients:1m;
             server {{ listen unix:DIR/inner.sock; proxy_pass {}; }}
             server {{ listen 127.0.0.1:0; limit_conn clients 1; pass unix:DIR/inner.sock; }}",
            upstream.address
        ),
    );
    let address =
        server.logged_addresses().into_iter().find(|address| address.to_string().starts_with("127."));
    let address = address.expect("it listens").tcp();
    let mut first = connect(address);
    assert_eq!(echo(&mut first, b"a"), b"a");
    assert_eq!(read_all(&mut connect(address)), b"", "the limit");
    drop(first);
    let again = testkit::wait::until("a place", Deadline::default(), || {
        let mut next = connect(address);
        next.write_all(b"b").ok()?;
        let mut byte = [0];
        (next.read(&mut byte).ok() == Some(1)).then_some(())
    });
    again.expect("the place is free");
    // One line for the inner session; the outer one has none.
    let log = std::fs::read_to_string(server.path("logs/stream.log")).expect("a log");
    assert!(log.starts_with("503 0 0\n200 1 1\n") || log.starts_with("200 1 1\n503 0 0\n"), "{log}");
}

#[test]
fn addresses_that_nothing_listens_on_cycles_and_datagrams_are_errors() {
    let server = serve(
        "map $server_port $name { default localhost:80; }
         server { listen 127.0.0.1:0; pass 127.0.0.1:1; }
         server { listen 127.0.0.2:0; pass $name; }
         server { listen 127.0.0.3:0 udp; pass 127.0.0.1:1; }",
    );
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"");
    server.wait_for_log(
        "port not found for \"127.0.0.1:1\" while passing connection to port",
        Deadline::default(),
    );
    assert_eq!(read_all(&mut connect(server.addr(1).tcp())), b"");
    server.wait_for_log("no address with a port in pass \"localhost:80\"", Deadline::default());
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    udp.send_to(b"x", server.addr(2).tcp()).expect("it is sent");
    server.wait_for_log("cannot pass udp connection", Deadline::default());
    let log = server.wait_for_access_log(3, Deadline::default());
    assert_eq!(log, "200 0 0\n500 0 0\n500 0 0\n");

    let port = free_port();
    let server = serve(&format!("server {{ listen 127.0.0.1:{port}; pass 127.0.0.1:{port}; }}"));
    let mut client: TcpStream = connect(SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!(read_all(&mut client), b"");
    server.wait_for_log("stream pass cycle while passing connection to port", Deadline::default());
}
