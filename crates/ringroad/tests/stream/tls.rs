//! TLS: termination, towards upstreams, and servers that the ClientHello selects.

use std::io::Write;

use crate::common::BINARY;
use crate::common::tls::{Authority, BOTH, connect as connect_tls, to_end};
use crate::support::{Upstream, connect, read_all, serve};
use testkit::{Deadline, Server};

/// Starts a server with this `stream` block, in which `DIR` stands for its directory, and with the certificates of `a.example` and
/// `b.example`.
fn serve_tls(authority: &Authority, stream: &str) -> Server {
    let mut builder = Server::builder(BINARY);
    let directory = builder.dir().display().to_string();
    for name in ["a", "b"] {
        let (certificate, key) = authority.server(&format!("{name}.example"));
        builder = builder.text(&format!("{name}.pem"), &certificate).text(&format!("{name}.key"), &key);
    }
    builder = builder.text("ca.pem", &authority.pem);
    let stream = stream.replace("DIR", &directory);
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ }}
         stream {{ log_format ends '$status $bytes_received $bytes_sent';
           access_log logs/access.log ends; {stream} }}"
    );
    builder.conf(&conf).start()
}

#[test]
fn tls_is_terminated_and_the_server_name_selects_a_server() {
    let authority = Authority::new("stream");
    let server = serve_tls(
        &authority,
        "server { listen 127.0.0.1:0 ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           return \"a $ssl_server_name $ssl_protocol\"; }
         server { listen 127.0.0.1:0 ssl; server_name b.example; ssl_certificate DIR/b.pem;
           ssl_certificate_key DIR/b.key; return \"b $ssl_server_name\"; }",
    );
    let clients = authority.clients(BOTH, None);
    assert_eq!(to_end(&mut connect_tls(&server, &clients, "a.example")), b"a a.example TLSv1.3");
    assert_eq!(to_end(&mut connect_tls(&server, &clients, "b.example")), b"b b.example");
    // Other bytes are no handshake.
    let mut client = connect(server.addr(0).tcp());
    client.write_all(b"plain text without TLS").expect("it is sent");
    assert_eq!(read_all(&mut client), b"");
    server.wait_for_log(
        "SSL_do_handshake() failed (SSL: wrong version number) while SSL handshaking",
        Deadline::default(),
    );
    let log = server.wait_for_access_log(3, Deadline::default());
    assert!(log.contains("500 0 0"), "{log}");
}

#[test]
fn a_required_client_certificate_is_verified() {
    let authority = Authority::new("stream");
    let server = serve_tls(
        &authority,
        "server { listen 127.0.0.1:0 ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           ssl_verify_client on; ssl_client_certificate DIR/ca.pem; return \"$ssl_client_verify\"; }",
    );
    let identity = authority.issue("client", rcgen::ExtendedKeyUsagePurpose::ClientAuth);
    let clients = authority.clients(BOTH, Some(&identity));
    assert_eq!(to_end(&mut connect_tls(&server, &clients, "a.example")), b"SUCCESS");
    let mut without = connect_tls(&server, &authority.clients(BOTH, None), "a.example");
    // Closed without an alert.
    let _ = std::io::Read::read_to_end(&mut without, &mut Vec::new());
    server.wait_for_log("client sent no required SSL certificate while SSL handshaking", Deadline::default());
}

#[test]
fn the_client_hello_selects_an_upstream_without_termination() {
    let authority = Authority::new("stream");
    let server = serve_tls(
        &authority,
        "map $ssl_preread_server_name $target { a.example unix:DIR/a.sock; default unix:DIR/b.sock; }
         log_format names '$ssl_preread_server_name $ssl_preread_protocol $ssl_preread_alpn_protocols';
         server { listen 127.0.0.1:0; ssl_preread on; access_log logs/names.log names; proxy_pass $target; }
         server { listen unix:DIR/a.sock ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           return \"this is a\"; }
         server { listen unix:DIR/b.sock ssl; ssl_certificate DIR/b.pem; ssl_certificate_key DIR/b.key;
           return \"this is b\"; }",
    );
    let clients = authority.clients(BOTH, None);
    assert_eq!(to_end(&mut connect_tls(&server, &clients, "a.example")), b"this is a");
    assert_eq!(to_end(&mut connect_tls(&server, &clients, "b.example")), b"this is b");
    let path = server.path("logs/names.log");
    let log = testkit::wait::until("two lines", Deadline::default(), || {
        std::fs::read_to_string(&path).ok().filter(|text| text.lines().count() == 2)
    });
    assert_eq!(log.expect("they are written").lines().next(), Some("a.example TLSv1.3 "));
}

#[test]
fn upstreams_are_reached_by_tls_and_verified() {
    let authority = Authority::new("stream");
    let server = serve_tls(
        &authority,
        "server { listen 127.0.0.1:0; proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate DIR/ca.pem;
           proxy_ssl_server_name on; proxy_ssl_name a.example; proxy_pass unix:DIR/a.sock; }
         server { listen 127.0.0.2:0; proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate DIR/ca.pem;
           proxy_ssl_name other.example; proxy_pass unix:DIR/a.sock; }
         server { listen unix:DIR/a.sock ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           return \"for $ssl_server_name\"; }",
    );
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"for a.example");
    assert_eq!(read_all(&mut connect(server.addr(1).tcp())), b"");
    server.wait_for_log(
        "upstream SSL certificate does not match \"other.example\" while SSL handshaking to upstream",
        Deadline::default(),
    );
}

/// A server passes its checks by a handshake with its certificate and by the text behind it.
#[test]
fn checks_use_tls_and_verify_servers() {
    let authority = Authority::new("stream");
    let server = serve_tls(
        &authority,
        "upstream group { server unix:DIR/a.sock; server unix:DIR/b.sock; server unix:DIR/plain.sock; server unix:DIR/text.sock; }
         match ready { expect ~ ^ready; }
         server { listen 127.0.0.1:0; proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate DIR/ca.pem;
           proxy_ssl_server_name on; proxy_ssl_name a.example; proxy_pass group;
           health_check match=ready interval=50ms mandatory; health_check_timeout 2s; }
         server { listen unix:DIR/a.sock ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           return \"ready $ssl_server_name\"; }
         server { listen unix:DIR/b.sock ssl; ssl_certificate DIR/b.pem; ssl_certificate_key DIR/b.key;
           return \"ready $ssl_server_name\"; }
         server { listen unix:DIR/plain.sock; return ready; }
         server { listen unix:DIR/text.sock ssl; ssl_certificate DIR/a.pem; ssl_certificate_key DIR/a.key;
           return busy; }",
    );
    server.wait_for_log_count("peer is unhealthy", 3, Deadline::default());
    server.wait_for_log("peer is healthy", Deadline::default());
    let log = server.error_log();
    let verdict = |socket: &str| {
        let line = log.lines().find(|line| line.contains(&format!("{socket}.sock in upstream")));
        line.unwrap_or_else(|| panic!("{log}")).to_owned()
    };
    assert!(verdict("a").contains("peer is healthy"), "{log}");
    assert!(verdict("b").contains("does not match \"a.example\""), "{log}");
    assert!(verdict("plain").contains("peer is unhealthy"), "{log}");
    assert!(verdict("text").contains("peer is unhealthy"), "{log}");
    assert!((0..4).all(|_| read_all(&mut connect(server.addr(0).tcp())) == b"ready a.example"));
}

#[test]
fn a_client_hello_is_limited_in_size_and_other_protocols_pass() {
    let upstream = Upstream::echo();
    let server = serve(&format!(
        "server {{ listen 127.0.0.1:0; ssl_preread on; preread_buffer_size 1k; preread_timeout 200ms; proxy_pass {}; }}",
        upstream.address
    ));
    let mut client = connect(server.addr(0).tcp());
    assert_eq!(crate::support::echo(&mut client, b"SSH-2.0-x\r\n"), b"SSH-2.0-x\r\n");
    drop(client);
    server.wait_for_access_log(1, Deadline::default());
    // A ClientHello of 16 KiB, of which 2 KiB arrive.
    let mut client = connect(server.addr(0).tcp());
    client
        .write_all(&[&b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"[..], &[0; 2048]].concat())
        .expect("it is sent");
    let _ = std::io::Read::read_to_end(&mut client, &mut Vec::new());
    server.wait_for_log("preread buffer full while prereading client data", Deadline::default());
    server.wait_for_access_log(2, Deadline::default());
    // One that never becomes complete.
    let mut client = connect(server.addr(0).tcp());
    client.write_all(b"\x16\x03\x01").expect("it is sent");
    assert_eq!(read_all(&mut client), b"");
    let log = server.wait_for_access_log(3, Deadline::default());
    assert_eq!(log.lines().map(|line| &line[..3]).collect::<Vec<_>>(), ["200", "400", "200"]);
}
