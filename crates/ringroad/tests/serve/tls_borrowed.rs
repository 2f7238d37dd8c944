//! Server blocks that use the certificate of the default server of their address: which of their own TLS settings apply.

use std::io::{Read, Write};

use crate::common::tls::{Authority, BOTH, body, connect, files, get, status, text, to_end};
use crate::common::{assert_no_errors, ours_only, serve_with};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::version;
use testkit::Server;

/// Returns a server with the block `a.test`, which has the certificate for all names, and a block `b.test` without certificate.
fn serve(authority: &Authority, default: &str, own: &str) -> Server {
    let conf = format!(
        "worker_processes 1; events {{}} http {{\n\
         server {{ listen 127.0.0.1:0 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key; {default}\n\
           return 200 'a $ssl_client_verify'; }}\n\
         server {{ listen 127.0.0.1:0 ssl; server_name b.test; {own}\n\
           return 200 'b $ssl_client_verify $ssl_session_reused'; }} }}"
    );
    let own = authority.issue_names(&["a.test", "b.test"]);
    serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem))
}

fn is_ours() -> bool {
    ours_only(
        "nginx uses the settings of the default server, and neither requests nor verifies certificates for the other",
    )
}

const VERIFIES: &str = "ssl_client_certificate root.pem; ssl_verify_client";

#[test]
fn ssl_verify_client_applies_to_a_block_without_certificate() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    let client = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let server = serve(&authority, "", &format!("{VERIFIES} on;"));
    let without = get(&server, &authority.clients(BOTH, None), "b.test", "/");
    assert_eq!(status(&without), "400", "{}", text(&without));
    // The certificate settings of another server were negotiated.
    let mut tls = connect(&server, &authority.clients(BOTH, None), "a.test");
    tls.write_all(b"GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n").expect("it is sent");
    assert_eq!(status(&to_end(&mut tls)), "421");
    let with = get(&server, &authority.clients(BOTH, Some(&client)), "b.test", "/");
    assert_eq!(text(body(&with)), "b SUCCESS .");
    assert_no_errors(&server);
}

#[test]
fn an_untrusted_client_is_refused_by_a_block_without_certificate() {
    if !is_ours() {
        return;
    }
    let (authority, stranger) = (Authority::new("root"), Authority::new("stranger"));
    let bad = stranger.issue("mallory", ExtendedKeyUsagePurpose::ClientAuth);
    for (verify, expected) in [("on", "400"), ("optional", "400"), ("optional_no_ca", "200"), ("off", "200")]
    {
        let server = serve(&authority, "", &format!("{VERIFIES} {verify};"));
        let response = get(&server, &authority.clients(BOTH, Some(&bad)), "b.test", "/");
        assert_eq!(status(&response), expected, "{verify}: {}", text(&response));
    }
}

#[test]
fn a_block_without_certificate_does_not_inherit_the_verification_of_the_default_server() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    let server = serve(&authority, &format!("{VERIFIES} on;"), "");
    let clients = authority.clients(BOTH, None);
    assert_eq!(status(&get(&server, &clients, "a.test", "/")), "400");
    assert_eq!(text(body(&get(&server, &clients, "b.test", "/"))), "b NONE .");
}

/// A session of a block without verification must not be resumed as a session of a verified client.
#[test]
fn sessions_do_not_pass_from_the_default_server_to_a_block_that_verifies_clients() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    let server = serve(&authority, "", &format!("{VERIFIES} on;"));
    let clients = crate::common::tls::mixing_sessions(&authority.clients(BOTH, None));
    assert_eq!(status(&get(&server, &clients, "a.test", "/")), "200");
    assert_eq!(status(&get(&server, &clients, "b.test", "/")), "400");
}

#[test]
fn the_protocols_of_a_block_without_certificate_apply() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    let server = serve(&authority, "", "ssl_protocols TLSv1.3;");
    let accepts = |versions: &[&'static rustls::SupportedProtocolVersion], name| {
        let mut tls = connect(&server, &authority.clients(versions, None), name);
        tls.write_all(b"GET / HTTP/1.0\r\n\r\n").is_ok() && tls.read(&mut [0]).is_ok_and(|count| count == 1)
    };
    assert!(accepts(&[&version::TLS12], "a.test"));
    assert!(!accepts(&[&version::TLS12], "b.test"));
    assert!(accepts(&[&version::TLS13], "b.test"));
    // What the block does not write is that of the default server.
    let server = serve(&authority, "ssl_protocols TLSv1.3;", "ssl_session_tickets off;");
    let mut tls = connect(&server, &authority.clients(&[&version::TLS12], None), "b.test");
    assert!(tls.write_all(b"GET / HTTP/1.0\r\n\r\n").is_err());
    let clients = authority.clients(BOTH, None);
    for _ in 0..2 {
        assert_eq!(text(body(&get(&server, &clients, "b.test", "/"))), "b NONE .", "a ticket was issued");
    }
}

#[test]
fn http2_of_a_block_without_certificate_is_negotiated() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    for (default, own, expected) in [("http2 on;", "", None), ("", "http2 on;", Some(&b"h2"[..]))] {
        let server = serve(&authority, default, own);
        let mut config = rustls::ClientConfig::clone(&authority.clients(BOTH, None));
        config.alpn_protocols = vec![b"h2".to_vec()];
        let mut tls = connect(&server, &std::sync::Arc::new(config), "b.test");
        while tls.conn.is_handshaking() && tls.conn.complete_io(&mut tls.sock).is_ok() {}
        assert_eq!(tls.conn.alpn_protocol(), expected, "{default} {own}");
    }
}

#[test]
fn missing_files_of_a_block_without_certificate_are_reported() {
    if !is_ours() {
        return;
    }
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = "events {} http { server { listen 127.0.0.1:0 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key; }\n\
        server { listen 127.0.0.1:0 ssl; server_name b.test; ssl_verify_client on; } }";
    let builder = Server::builder(crate::common::BINARY).conf(conf).arg("-t");
    let (ended, said) = files(builder, "a", &own).run_to_end();
    let expected = "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client in ";
    assert!(!ended.success() && said.contains(expected) && said.contains("nginx.conf:2"), "{said}");
}
