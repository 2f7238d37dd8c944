//! TLS settings: variables of a connection, certificates whose names have variables, OpenSSL commands.

use crate::common;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use crate::common::tls::{Authority, BOTH, body, connect, files, get, one, status, text, to_end};
use crate::common::{BINARY, serve_with};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version;
use testkit::server::{ServerBuilder, StrictLimit};
use testkit::{Deadline, Server};

#[test]
fn variables_show_offered_and_negotiated_parameters() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let identity = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let conf = one("ssl_verify_client optional; ssl_client_certificate root.pem; ssl_early_data on;\n\
         location /agreed { return 200 '$ssl_protocol|$ssl_cipher|$ssl_curve|$ssl_sigalg|$ssl_client_sigalg'; }\n\
         location /offered { return 200 '$ssl_ciphers|$ssl_curves|$ssl_sigalgs'; }\n\
         location /client { return 200 '$ssl_client_s_dn|$ssl_client_i_dn|$ssl_client_verify|$ssl_client_v_remain'; }\n\
         location /none { return 200 '[$ssl_early_data$ssl_ech_status$ssl_ech_outer_server_name]'; }");
    let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem));
    for (version, protocol, cipher, group) in [
        (&version::TLS13, "TLSv1.3", "TLS_AES_256_GCM_SHA384", "X25519MLKEM768"),
        (&version::TLS12, "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "X25519"),
    ] {
        let shown = |identity: Option<&(String, String)>, target: &str| {
            text(body(&get(&server, &authority.clients(&[version], identity), "a.test", target)))
        };
        let scheme = "ecdsa_secp256r1_sha256";
        assert_eq!(
            shown(Some(&identity), "/agreed"),
            format!("{protocol}|{cipher}|{group}|{scheme}|{scheme}")
        );
        assert_eq!(shown(None, "/agreed"), format!("{protocol}|{cipher}|{group}|{scheme}|"));
        let offered = shown(None, "/offered");
        let lists: Vec<&str> = offered.split('|').collect();
        assert!(lists[0].split(':').any(|suite| suite == cipher), "{offered}");
        assert!(lists[1].split(':').any(|group| group == "prime256v1"), "{offered}");
        assert!(lists[2].split(':').any(|scheme| scheme == "0x0403"), "{offered}");
        let client = shown(Some(&identity), "/client");
        assert!(client.starts_with("CN=client|CN=root|SUCCESS|"), "{client}");
        assert_eq!(shown(None, "/none"), "[]");
    }
}

#[test]
fn ssl_server_name_has_the_spelling_of_the_client() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = one("ssl_verify_client optional; ssl_client_certificate root.pem; server_name A.test; \
                    return 200 '$ssl_server_name $server_name';");
    let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem));
    let clients = authority.clients(BOTH, None);
    for name in ["a.test", "A.Test"] {
        let response = get(&server, &clients, name, "/");
        assert_eq!(text(body(&response)), format!("{name} a.test"), "{}", text(&response));
    }
}

/// A request in early data gets its response before the client's Finished, and only once.
#[test]
fn early_data_is_served_once_before_the_handshake_ends() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for (settings, is_early) in [("ssl_early_data on;", true), ("", false)] {
        let conf = one(&format!("{settings} return 200 '[$ssl_early_data$ssl_session_reused]';"));
        let server = serve_with(&conf, |builder| files(builder, "a", &own));
        let mut config = rustls::ClientConfig::clone(&authority.clients(&[&version::TLS13], None));
        config.enable_early_data = true;
        let config = std::sync::Arc::new(config);
        assert_eq!(body(&get(&server, &config, "a.test", "/")), b"[.]");
        let mut tls = connect(&server, &config, "a.test");
        let request = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        let offered = tls.conn.early_data().map(|mut early| early.write_all(request).expect("there is room"));
        assert_eq!(offered.is_some(), is_early);
        if !is_early {
            continue;
        }
        let mut first = Vec::new();
        tls.conn.write_tls(&mut first).expect("memory takes it");
        tls.sock.write_all(&first).expect("it is sent");
        let mut response = Vec::new();
        while !response.ends_with(b"[1r]") {
            // Nothing else is sent: the server waits for the client's Finished.
            assert_ne!(tls.conn.read_tls(&mut tls.sock).expect("more"), 0, "{}", text(&response));
            tls.conn.process_new_packets().expect("records");
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = tls.conn.reader().read(&mut piece) {
                response.extend_from_slice(&piece[..count]);
            }
        }
        assert!(tls.conn.is_early_data_accepted());
        // The same bytes again: the session is used up, so the request is not processed.
        let mut replayed = std::net::TcpStream::connect(server.addr(0).tcp()).expect("a connection");
        replayed.write_all(&first).expect("it is sent");
        server.wait_for_access_log(2, Deadline::default());
        assert_eq!(body(&get(&server, &authority.clients(BOTH, None), "a.test", "/")), b"[.]");
        let log = server.wait_for_access_log(3, Deadline::default());
        assert_eq!(log.lines().count(), 3, "two requests and the last one: {log}");
    }
}

/// Returns the certificate that a server sends.
fn shown(server: &Server, authority: &Authority, name: &str) -> Option<CertificateDer<'static>> {
    let mut tls = connect(server, &authority.clients(BOTH, None), name);
    tls.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    assert_eq!(status(&to_end(&mut tls)), "200");
    tls.conn.peer_certificates().map(|chain| chain[0].clone().into_owned())
}

fn der(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

/// Starts a server with certificates selected by the client's server name.
fn by_name(settings: &str) -> String {
    format!(
        "worker_processes 1; events {{}} http {{ server {{ listen 127.0.0.1:0 ssl; server_name _; {settings}\n\
         ssl_certificate certs/$ssl_server_name.pem; ssl_certificate_key certs/$ssl_server_name.key;\n\
         return 200 $ssl_server_name; }} }}"
    )
}

#[test]
fn certificates_with_variables_follow_the_sni_name() {
    let authority = Authority::new("root");
    let (a, b) = (authority.server("a.test"), authority.server("b.test"));
    let prepare = |builder: ServerBuilder| {
        let builder = builder.not_strict(StrictLimit::KeyInWorker);
        files(files(builder, "certs/a.test", &a), "certs/b.test", &b)
    };
    for cache in ["", "ssl_certificate_cache max=1 valid=1s;", "ssl_certificate_cache max=10 valid=1h;"] {
        let server = serve_with(&by_name(cache), prepare);
        for _ in 0..2 {
            assert_eq!(shown(&server, &authority, "a.test"), der(&a.0), "{cache}");
            assert_eq!(shown(&server, &authority, "b.test"), der(&b.0), "{cache}");
        }
        assert_eq!(shown(&server, &authority, "c.test"), None);
        let log = server.wait_for_log("cannot load certificate", Deadline::default());
        assert!(log.contains("certs/c.test.pem\": open() failed (2: No such file"), "{log}");
        assert!(log.contains("while SSL handshaking, client: 127.0.0.1"), "{log}");
        // Without a cache a renewed certificate is used immediately, with a cache after its entry has expired.
        let renewed = authority.server("a.test");
        let write = |name: &str, text: &str| {
            // With another inode, as renewal tools replace it.
            let (path, new) = (server.path(&format!("conf/certs/{name}")), server.path("conf/certs/new"));
            std::fs::write(&new, text).expect("it is written");
            // The worker can read it, whatever the umask.
            std::fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("it is ours");
            std::fs::rename(&new, path).expect("the same directory");
        };
        write("a.test.pem", &renewed.0);
        write("a.test.key", &renewed.1);
        match cache {
            "" => assert_eq!(shown(&server, &authority, "a.test"), der(&renewed.0)),
            cache if cache.contains("1s") => {
                common::until_stale(1);
                assert_eq!(shown(&server, &authority, "a.test"), der(&renewed.0), "{cache}");
            }
            _ => assert_eq!(shown(&server, &authority, "a.test"), der(&a.0), "the cached one is used"),
        }
    }
}

#[test]
fn a_damaged_certificate_with_variables_fails_only_its_handshake() {
    let authority = Authority::new("root");
    let (a, b) = (authority.server("a.test"), authority.server("b.test"));
    let server = serve_with(&by_name(""), |builder| {
        let builder = builder.not_strict(StrictLimit::KeyInWorker);
        let builder = files(files(builder, "certs/a.test", &a), "certs/b.test", &(b.0.clone(), a.1.clone()));
        files(builder, "certs/c.test", &("nonsense".to_owned(), a.1.clone()))
    });
    for (name, reason) in [
        ("b.test", "certs/b.test.pem\": key values mismatch"),
        ("c.test", "certs/c.test.pem\": no start line"),
    ] {
        assert_eq!(shown(&server, &authority, name), None);
        server.wait_for_log(reason, Deadline::default());
    }
    assert_eq!(shown(&server, &authority, "a.test"), der(&a.0));
}

#[test]
fn pem_text_in_variables_is_used_as_a_certificate() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = format!(
        "worker_processes 1; events {{}} http {{ map $ssl_server_name $pem {{ a.test '{}'; }} map $ssl_server_name $key {{ a.test '{}'; }}\n\
         server {{ listen 127.0.0.1:0 ssl; ssl_certificate data:$pem; ssl_certificate_key data:$key; return 200 x; }} }}",
        own.0, own.1
    );
    let server = serve_with(&conf, |builder| builder.not_strict(StrictLimit::KeyInWorker));
    assert_eq!(shown(&server, &authority, "a.test"), der(&own.0));
    assert_eq!(shown(&server, &authority, "b.test"), None);
    let log = server.wait_for_log("cannot load certificate", Deadline::default());
    assert!(!log.contains("PRIVATE"), "{log}");
}

#[test]
fn openssl_commands_are_applied_or_refused_with_their_line() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = one(
        "ssl_conf_command MinProtocol TLSv1.3;\nssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256;\n\
         ssl_conf_command Groups P-384;\nreturn 200 '$ssl_protocol $ssl_cipher $ssl_curve';",
    );
    let server = serve_with(&conf, |builder| files(builder, "a", &own));
    let response = get(&server, &authority.clients(BOTH, None), "a.test", "/");
    assert_eq!(text(body(&response)), "TLSv1.3 TLS_CHACHA20_POLY1305_SHA256 secp384r1");
    for (directive, reason) in [
        ("ssl_conf_command RecordPadding 16;", "failed: the supported commands are"),
        ("ssl_conf_command Options Compression;", "option \"Compression\" is not supported"),
        ("proxy_ssl_conf_command VerifyMode Peer;", "failed: the supported commands are"),
    ] {
        let conf = one(&format!("location / {{ }}\n{directive}"));
        let builder = Server::builder(BINARY).conf(&conf).arg("-t");
        let (ended, said) = files(builder, "a", &own).run_to_end();
        assert!(!ended.success(), "{directive}: {said}");
        assert!(said.contains(reason) && said.contains(":4"), "{directive}: {said}");
    }
}

#[test]
fn openssl_commands_restrict_connections_to_upstreams() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let upstream = serve_with(&one("return 200 '$ssl_protocol $ssl_cipher $ssl_curve';"), |builder| {
        files(builder, "a", &own)
    });
    let port = upstream.addr(0).tcp().port();
    for (commands, expected) in [
        (
            "proxy_ssl_conf_command MaxProtocol TLSv1.2; proxy_ssl_conf_command CipherString ECDHE-ECDSA-AES128-GCM-SHA256;",
            "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 X25519",
        ),
        (
            "proxy_ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; proxy_ssl_conf_command Groups P-256;",
            "TLSv1.3 TLS_AES_128_GCM_SHA256 prime256v1",
        ),
    ] {
        let conf = one(&format!("location / {{ proxy_pass https://127.0.0.1:{port}; {commands} }}"));
        let server = serve_with(&conf, |builder| files(builder, "a", &own));
        let response = get(&server, &authority.clients(BOTH, None), "a.test", "/");
        assert_eq!(text(body(&response)), expected);
    }
}

/// A client that prefers ChaCha20 gets it, whatever the server prefers.
#[test]
fn chacha_is_prioritized_for_clients_that_prefer_it() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = one(
        "ssl_prefer_server_ciphers on; ssl_conf_command Options PrioritizeChaCha; return 200 $ssl_cipher;",
    );
    let server = serve_with(&conf, |builder| files(builder, "a", &own));
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let plain = text(body(&get(&server, &authority.clients(BOTH, None), "a.test", "/")));
    assert_eq!(plain, "TLS_AES_256_GCM_SHA384");
    provider.cipher_suites.sort_by_key(|suite| !format!("{:?}", suite.suite()).contains("CHACHA20"));
    let builder = rustls::ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(BOTH);
    let config = builder.expect("versions").with_root_certificates(authority.roots()).with_no_client_auth();
    let liked = text(body(&get(&server, &config.into(), "a.test", "/")));
    assert_eq!(liked, "TLS_CHACHA20_POLY1305_SHA256");
}
