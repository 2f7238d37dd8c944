//! How clients learn of HTTP/3: `http3_alt_svc`, and `ringroad serve --tls`.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use rustls::version::TLS13;
use testkit::program::Program;
use testkit::{Deadline, TempDir};

use crate::client::Client;
use crate::common::tls::{Authority, files, get, text};
use crate::common::{BINARY, serve_with};
use crate::pebble::{self, Manners, Pebble};

/// Returns a port that is free for TCP and UDP.
fn free_port() -> u16 {
    loop {
        let port = testkit::ports::free_port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn responses_over_tcp_offer_http_3() {
    let authority = Authority::new("root");
    let own = authority.server("localhost");
    let (port, other) = (free_port(), free_port());
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{}} http {{ \
         ssl_certificate a.pem; ssl_certificate_key a.key; \
         server {{ listen 127.0.0.1:{port} ssl; listen 127.0.0.1:{other} quic; listen 127.0.0.1:{port} quic; \
         http3_alt_svc on; location / {{ return 200 x; }} location = /hour {{ http3_alt_svc 1h; return 404; }} \
         location = /off {{ http3_alt_svc off; return 200 x; }} \
         location = /own {{ add_header Alt-Svc clear; return 200 x; }} }} \
         server {{ listen 127.0.0.2:{port} ssl; http3_alt_svc on; location / {{ return 200 x; }} }} }}"
    );
    let server = serve_with(&conf, |builder| files(builder, "a", &own));
    let clients = authority.clients(&[&TLS13], None);
    let field = |target: &str| {
        let response = text(&get(&server, &clients, "localhost", target));
        let mut lines = response.lines().filter(|line| line.to_ascii_lowercase().starts_with("alt-svc"));
        let first = lines.next().map(str::to_owned);
        assert!(lines.next().is_none(), "{response}");
        first
    };
    assert_eq!(field("/"), Some(format!("Alt-Svc: h3=\":{port}\"; ma=86400")));
    assert_eq!(field("/hour"), Some(format!("Alt-Svc: h3=\":{port}\"; ma=3600")));
    assert_eq!(field("/off"), None);
    assert_eq!(field("/own").as_deref(), Some("Alt-Svc: clear"));
    // Over HTTP/3 it would tell nothing new.
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!(client.get("/").field("alt-svc"), None);
}

#[test]
fn serve_with_tls_offers_http_3() {
    let [site, data, said] = ["site", "data", "said"].map(TempDir::new);
    site.write("index.html", "<p>home</p>");
    let port = free_port();
    let mut command = Command::new(BINARY);
    command.arg("serve").arg(site.path()).args(["--tls", "--listen", &format!("127.0.0.1:{port}")]);
    command.env("XDG_DATA_HOME", data.path());
    let mut program = Program::spawn(command, said.path());
    program.wait_for_output("https://", Deadline::default());
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    let reply = client.get("/index.html");
    assert_eq!((reply.status, reply.text().as_str()), (200, "<p>home</p>"));
}

/// A certificate that was issued by a public CA after the start.
#[test]
fn serve_with_a_public_name_offers_http_3() {
    let Some(binary) = pebble::binary() else { return };
    let port = free_port();
    let pebble = Pebble::start(&binary, port, port, &Manners::default());
    pebble.know(&["www.example"]);
    let [site, data, said] = ["site", "data", "said"].map(TempDir::new);
    site.write("index.html", "<p>home</p>");
    let mut command = Command::new(BINARY);
    command.arg("serve").arg(site.path()).args(["--tls", "www.example", "--acme-directory", &pebble.uri()]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.env("XDG_DATA_HOME", data.path()).env("SSL_CERT_FILE", pebble.trusted());
    let mut program = Program::spawn(command, said.path());
    program.wait_for_output("issued a certificate for \"www.example\"", Deadline::default());
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    let reply = client.get("/index.html");
    assert_eq!((reply.status, reply.text().as_str()), (200, "<p>home</p>"));
    // The client has the certificate of the CA, not the one from before.
    let certificate = client.certificate();
    assert!(certificate.windows(6).any(|bytes| bytes == b"Pebble"), "{certificate:?}");
}
