//! TLS to clients and upstreams: handshakes, names, sessions, client certificates, plain HTTP on a TLS port,
//! configuration errors. The client is rustls; each test creates its certificates.

use crate::common;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use crate::common::tls::{Authority, BOTH, Tls, body, connect, files, get, one, status, text, to_end};
use crate::common::{BINARY, ours_only, serve_with};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{HandshakeKind, version};
use testkit::server::StrictLimit;
use testkit::{Client, Deadline, Server, Setup};

/// Reads a response up to the last bytes of its body.
fn read_until(tls: &mut Tls, end: &[u8]) {
    let mut response = Vec::new();
    while !response.ends_with(end) {
        let mut piece = [0; 1000];
        let count = tls.read(&mut piece).expect("more");
        assert_ne!(count, 0, "{}", text(&response));
        response.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn files_are_served_over_both_tls_versions_with_keep_alive() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let page: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    let conf = one("root html; location /v { return 200 '$scheme $https $ssl_protocol $ssl_server_name'; }");
    let server = serve_with(&conf, |builder| files(builder, "a", &own).text("html/page.txt", &page));
    for (versions, name) in [(&[&version::TLS13][..], "TLSv1.3"), (&[&version::TLS12][..], "TLSv1.2")] {
        let clients = authority.clients(versions, None);
        assert_eq!(body(&get(&server, &clients, "a.test", "/page.txt")), page.as_bytes(), "{name}");
        let mut tls = connect(&server, &clients, "a.test");
        for _ in 0..3 {
            tls.write_all(b"GET /v HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("it is sent");
            read_until(&mut tls, format!("https on {name} a.test").as_bytes());
        }
    }
    common::assert_no_errors(&server);
}

#[test]
fn the_sni_name_selects_the_certificate_or_gets_an_alert() {
    let authority = Authority::new("root");
    let (a, b) = (authority.server("a.test"), authority.server("b.test"));
    let conf = "worker_processes 1; events {} http {\n\
        server { listen 127.0.0.1:0 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key; return 200 a; }\n\
        server { listen 127.0.0.1:0 ssl; server_name b.test; ssl_certificate b.pem; ssl_certificate_key b.key; return 200 b; }\n\
        server { listen 127.0.0.1:0 ssl; server_name c.test; ssl_reject_handshake on; } }";
    let server = serve_with(conf, |builder| files(files(builder, "a", &a), "b", &b));
    let clients = authority.clients(BOTH, None);
    for name in ["a.test", "b.test"] {
        let response = get(&server, &clients, name, "/");
        assert_eq!(body(&response), &name.as_bytes()[..1]);
    }
    let mut rejected = connect(&server, &clients, "c.test");
    let error =
        rejected.write_all(b"GET / HTTP/1.0\r\n\r\n").and_then(|()| rejected.read(&mut [0]).map(drop));
    assert!(error.expect_err("an alert").to_string().contains("UnrecognisedName"));
    // The default server's certificate is for another name.
    let mut unknown = connect(&server, &clients, "d.test");
    assert!(unknown.write_all(b"GET / HTTP/1.0\r\n\r\n").is_err());
}

#[test]
fn sessions_are_resumed_even_after_a_reload() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    for settings in ["", "ssl_session_tickets off; ssl_session_cache shared:s:1m;"] {
        let conf = one(&format!("{settings} return 200 $ssl_session_reused;"));
        let mut server = serve_with(&conf, |builder| files(builder, "a", &own));
        for versions in [&[&version::TLS13][..], &[&version::TLS12][..]] {
            let clients = authority.clients(versions, None);
            assert_eq!(body(&get(&server, &clients, "a.test", "/")), b".", "{settings}");
            assert_eq!(body(&get(&server, &clients, "a.test", "/")), b"r", "{settings}");
            server.rewrite_conf(&conf.replace("return 200", "add_header X-New 1; return 200"));
            server.reload();
            server.wait_for_log("was replaced by", Deadline::default());
            let mut tls = connect(&server, &clients, "a.test");
            tls.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
                .expect("it is sent");
            assert_eq!(body(&to_end(&mut tls)), b"r", "{settings}");
            assert_eq!(tls.conn.handshake_kind(), Some(HandshakeKind::Resumed));
        }
    }
}

#[test]
fn client_certificates_are_verified_as_configured() {
    let (authority, stranger) = (Authority::new("root"), Authority::new("stranger"));
    let own = authority.server("a.test");
    let good = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let bad = stranger.issue("mallory", ExtendedKeyUsagePurpose::ClientAuth);
    for (verify, without, with_good, with_bad) in [
        ("on", "400", "200", "400"),
        ("optional", "200", "200", "400"),
        ("optional_no_ca", "200", "200", "200"),
        ("off", "200", "200", "200"),
    ] {
        let conf = one(&format!(
            "ssl_verify_client {verify}; ssl_client_certificate root.pem; return 200 '$ssl_client_verify $ssl_client_s_dn';"
        ));
        let server =
            serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem));
        let ask = |identity| get(&server, &authority.clients(BOTH, identity), "a.test", "/");
        let (none, trusted, untrusted) = (ask(None), ask(Some(&good)), ask(Some(&bad)));
        assert_eq!(
            (status(&none), status(&trusted), status(&untrusted)),
            (without.into(), with_good.into(), with_bad.into()),
            "{verify}"
        );
        match verify {
            "on" => {
                assert!(text(&none).contains("No required SSL certificate was sent"), "{}", text(&none));
                assert!(text(&untrusted).contains("The SSL certificate error"), "{}", text(&untrusted));
                assert_eq!(text(body(&trusted)), "SUCCESS CN=client");
            }
            "optional_no_ca" => {
                assert_eq!(text(body(&untrusted)), "FAILED:unable to verify the first certificate CN=mallory")
            }
            "optional" => assert_eq!(text(body(&none)), "NONE "),
            _ => assert_eq!(text(body(&trusted)), "NONE "),
        }
    }
}

/// As in nginx, whose old workers close their connections: the new configuration may have another CA or CRL.
#[test]
fn a_reload_closes_connections_of_verified_clients() {
    if !ours_only("nginx closes the connections of its old workers") {
        return;
    }
    let (authority, other) = (Authority::new("root"), Authority::new("other"));
    let own = authority.server("a.test");
    let client = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let conf = one("ssl_verify_client on; ssl_client_certificate root.pem; return 200 $ssl_client_verify;");
    let mut server = serve_with(&conf, |builder| {
        files(builder, "a", &own).text("conf/root.pem", &authority.pem).text("conf/other.pem", &other.pem)
    });
    let mut tls = connect(&server, &authority.clients(BOTH, Some(&client)), "a.test");
    let request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    tls.write_all(request).expect("it is sent");
    read_until(&mut tls, b"SUCCESS");
    server.rewrite_conf(&conf.replace("root.pem", "other.pem"));
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    // The server may have closed the connection already.
    let _ = tls.write_all(request);
    let mut response = Vec::new();
    let end = tls.read_to_end(&mut response);
    assert!(response.is_empty(), "{}", text(&response));
    assert!(!end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it stays open");
}

#[test]
fn a_host_that_requires_client_certificates_gets_a_421() {
    let authority = Authority::new("root");
    let (a, b) = (authority.server("a.test"), authority.server("b.test"));
    let conf = "worker_processes 1; events {} http {\n\
        server { listen 127.0.0.1:0 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key; return 200 a; }\n\
        server { listen 127.0.0.1:0 ssl; server_name b.test; ssl_certificate b.pem; ssl_certificate_key b.key;\n\
          ssl_verify_client on; ssl_client_certificate root.pem; return 200 b; } }";
    let server = serve_with(conf, |builder| {
        files(files(builder, "a", &a), "b", &b).text("conf/root.pem", &authority.pem)
    });
    let mut tls = connect(&server, &authority.clients(BOTH, None), "a.test");
    tls.write_all(b"GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n").expect("it is sent");
    assert_eq!(status(&to_end(&mut tls)), "421");
}

#[test]
fn plain_http_on_a_tls_port_gets_an_explaining_page() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = serve_with(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let response = Client::connect(server.addr(0)).get("/");
    assert_eq!(response.status, 400);
    assert!(response.text().contains("The plain HTTP request was sent to HTTPS port"), "{}", response.text());
    let redirected =
        serve_with(&one("error_page 497 https://a.test$request_uri; return 200 x;"), |builder| {
            files(builder, "a", &own)
        });
    let response = Client::connect(redirected.addr(0)).get("/path");
    assert_eq!((response.status, response.field("location")), (302, Some("https://a.test/path")));
}

/// Without the setting in `.cargo/config.toml`, the library measures the processor's jitter in the first handshake of a worker,
/// which blocks the thread for 70 ms.
#[test]
fn random_numbers_come_without_measuring_the_processor() {
    let program = std::fs::read(BINARY).expect("the program is readable");
    // Names in the symbol table, and in debug information, end with a zero byte.
    let has = |name: &[u8]| program.split(|&byte| byte == 0).any(|found| found.ends_with(name));
    assert!(has(b"_CRYPTO_sysrand"), "the program has no symbols");
    assert!(!has(b"_jent_read_entropy"), "AWS_LC_SYS_NO_JITTER_ENTROPY of .cargo/config.toml has no effect");
}

#[test]
fn stalled_and_invalid_handshakes_delay_no_other_client() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let server = serve_with(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let clients = authority.clients(BOTH, None);
    let mut half = Vec::new();
    for garbage in [&b"\x16\x03\x01"[..], b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\xff\xff\xff\xff\xff"] {
        let mut socket = TcpStream::connect(server.addr(0).tcp()).expect("a connection");
        socket.write_all(garbage).expect("it is sent");
        half.push(socket);
    }
    let mut slow = connect(&server, &clients, "a.test");
    let mut hello = Vec::new();
    slow.conn.write_tls(&mut hello).expect("a hello");
    for byte in hello {
        slow.sock.write_all(&[byte]).expect("it is sent");
    }
    slow.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").expect("it is sent");
    assert_eq!(body(&to_end(&mut slow)), b"x");
    assert_eq!(body(&get(&server, &clients, "a.test", "/")), b"x");
}

#[test]
fn uploads_pass_through_tls_on_both_sides() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let upstream = serve_with(
        &one("client_max_body_size 9m; location / { client_body_in_file_only off; mirror_request_body off; \
              return 200 '$ssl_server_name $ssl_protocol'; }"),
        |builder| files(builder, "a", &own),
    );
    let port = upstream.addr(0).tcp().port();
    for (settings, expected) in [
        ("", "200"),
        (
            "proxy_ssl_verify on; proxy_ssl_trusted_certificate root.pem; proxy_ssl_name a.test; proxy_ssl_server_name on;",
            "200",
        ),
        ("proxy_ssl_verify on; proxy_ssl_trusted_certificate root.pem; proxy_ssl_name b.test;", "502"),
        ("proxy_ssl_verify on; proxy_ssl_trusted_certificate other.pem; proxy_ssl_name a.test;", "502"),
        ("proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;", "200"),
    ] {
        let conf = one(&format!(
            "client_max_body_size 9m; location / {{ proxy_pass https://127.0.0.1:{port}; {settings} }}\n\
             location /v {{ set $to https://127.0.0.1:{port}; proxy_pass $to; }}"
        ));
        let other = Authority::new("other");
        let server = serve_with(&conf, |builder| {
            files(builder, "a", &own).text("conf/root.pem", &authority.pem).text("conf/other.pem", &other.pem)
        });
        let clients = authority.clients(BOTH, None);
        let mut tls = connect(&server, &clients, "a.test");
        let upload = vec![b'x'; 3 << 20];
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            upload.len()
        );
        tls.write_all(head.as_bytes()).expect("it is sent");
        tls.write_all(&upload).expect("it is sent");
        let response = to_end(&mut tls);
        assert_eq!(status(&response), expected, "{settings}: {}", server.error_log());
        if settings.contains("proxy_ssl_server_name") {
            assert_eq!(text(body(&response)), "a.test TLSv1.3");
        }
        assert_eq!(
            status(&get(&server, &clients, "a.test", "/v")),
            "200",
            "an address with https in a variable"
        );
    }
}

/// An empty name crashed the worker process: the library searched for a zero byte that does not exist.
#[test]
fn an_upstream_with_an_empty_proxy_ssl_name_is_refused() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let upstream = serve_with(&one("return 200 x;"), |builder| files(builder, "a", &own));
    let conf = format!(
        "worker_processes 1; error_log logs/error.log notice; events {{ }}\nhttp {{\nserver {{ listen 127.0.0.1:0;\n\
         proxy_ssl_verify on; proxy_ssl_trusted_certificate root.pem; proxy_ssl_name $http_x;\n\
         location / {{ proxy_pass https://127.0.0.1:{}; }} }} }}",
        upstream.addr(0).tcp().port()
    );
    let server = serve_with(&conf, |builder| builder.text("conf/root.pem", &authority.pem));
    let workers = server.workers();
    for (name, expected) in [("", 502), (":443", 502), ("b.test", 502), ("a.test", 200)] {
        let response = Client::connect(server.addr(0)).request("GET", "/", &[("X", name)]);
        assert_eq!(response.status, expected, "{name}");
    }
    assert_eq!(server.workers(), workers, "no worker process was replaced");
    server.wait_for_log(
        "upstream SSL certificate does not match \"\" while SSL handshaking to upstream",
        Deadline::default(),
    );
}

/// `proxy_ssl_certificate` with variables: each request uses its own certificate, as in nginx.
#[test]
fn the_client_certificate_for_an_upstream_depends_on_the_request() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let who = "ssl_verify_client optional; ssl_client_certificate root.pem; return 200 '$ssl_client_verify $ssl_client_s_dn';";
    let upstream =
        serve_with(&one(who), |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem));
    let conf = |cache: &str| {
        format!(
            "worker_processes 1; error_log logs/error.log notice; events {{ }}\nhttp {{\nserver {{ listen 127.0.0.1:0;\n\
             location / {{ proxy_pass https://127.0.0.1:{}; {cache}\n\
             proxy_ssl_certificate $arg_file; proxy_ssl_certificate_key $arg_file; }} }} }}",
            upstream.addr(0).tcp().port()
        )
    };
    // nginx would resume a session that was made with another certificate (T28).
    let setup = Setup::new(&conf("proxy_ssl_session_reuse off;"));
    let file = |name: &str| setup.data().join(name).display().to_string();
    let write = |name: &str, holder: &str| {
        let (certificate, key) = authority.issue(holder, ExtendedKeyUsagePurpose::ClientAuth);
        // A new file, as a renewal creates it.
        std::fs::write(file("new"), certificate + &key).expect("the directory is writable");
        // The worker can read it, whatever the umask.
        std::fs::set_permissions(file("new"), Permissions::from_mode(0o644)).expect("it is ours");
        std::fs::rename(file("new"), file(name)).expect("the same directory");
    };
    write("one.pem", "one");
    write("two.pem", "two");
    // Only a request determines the files.
    let data = setup.data().display().to_string();
    let ours = |setup: &Setup| {
        setup.builder(BINARY).not_strict(StrictLimit::KeyInWorker).sandbox_path(&data).start()
    };
    let servers = [Some(ours(&setup)), setup.start_nginx()];
    for server in servers.iter().flatten() {
        let mut client = Client::connect(server.addr(0));
        for (name, expected) in [("one.pem", "SUCCESS CN=one"), ("two.pem", "SUCCESS CN=two")] {
            assert_eq!(client.get(&format!("/?file={}", file(name))).text(), expected);
        }
        assert_eq!(client.get("/").text(), "NONE ", "an empty name is no certificate");
        assert_eq!(client.get(&format!("/?file={}", file("none.pem"))).status, 500);
        server.wait_for_log("cannot load certificate", Deadline::default());
    }
    let kept = Setup::new(&conf("proxy_ssl_certificate_cache max=2 valid=1h;"));
    let kept = ours(&kept);
    let mut client = Client::connect(kept.addr(0));
    let mut ask = |name: &str| client.get(&format!("/?file={}", file(name))).text();
    assert_eq!(ask("one.pem"), "SUCCESS CN=one");
    write("one.pem", "renewed");
    assert_eq!(ask("one.pem"), "SUCCESS CN=one", "the cached certificate is used");
    assert_eq!(
        Client::connect(servers[0].as_ref().expect("ours").addr(0))
            .get(&format!("/?file={}", file("one.pem")))
            .text(),
        "SUCCESS CN=renewed"
    );
}

#[test]
fn a_bad_certificate_at_a_reload_retains_the_old_one() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let conf = one("return 200 x;");
    let server = serve_with(&conf, |builder| files(builder, "a", &own));
    std::fs::write(server.path("conf/a.pem"), "no certificate").expect("it is written");
    server.reload();
    server.wait_for_log("cannot load certificate", Deadline::default());
    assert_eq!(body(&get(&server, &authority.clients(BOTH, None), "a.test", "/")), b"x");
    // A renewed certificate is used as soon as the reload is active.
    let renewed = authority.server("a.test");
    std::fs::write(server.path("conf/a.pem"), &renewed.0).expect("it is written");
    std::fs::write(server.path("conf/a.key"), &renewed.1).expect("it is written");
    server.reload();
    server.wait_for_log("was replaced by", Deadline::default());
    let mut tls = connect(&server, &authority.clients(BOTH, None), "a.test");
    tls.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").expect("it is sent");
    to_end(&mut tls);
    let shown = tls.conn.peer_certificates().expect("a certificate")[0].clone();
    assert_eq!(shown, CertificateDer::from_pem_slice(renewed.0.as_bytes()).expect("PEM"));
}

#[test]
fn invalid_tls_configurations_are_refused_with_the_reason() {
    let authority = Authority::new("root");
    let (a, b) = (authority.server("a.test"), authority.server("b.test"));
    let listen = "listen 127.0.0.1:0 ssl;";
    for (server, expected) in [
        ("", "; the default server of 127.0.0.1:0 needs \"ssl_certificate\" and \"ssl_certificate_key\""),
        ("ssl_certificate a.pem;", "no \"ssl_certificate_key\" is defined for certificate"),
        ("ssl_certificate none.pem;", "cannot load certificate"),
        ("ssl_certificate a.key; ssl_certificate_key a.key;", "the file contains no certificate in PEM"),
        ("ssl_certificate a.pem; ssl_certificate_key b.key;", "does not belong to the certificate"),
        (
            "ssl_certificate a.pem; ssl_certificate_key a.pem;",
            "the file contains no readable private key in PEM",
        ),
        ("ssl_protocols TLSv1.1;", "TLSv1.1 are not supported: add TLSv1.2 or TLSv1.3"),
        ("ssl_protocols TLSv9;", "invalid value \"TLSv9\" in "),
        ("ssl_ecdh_curve nonsense;", "unknown curve name \"nonsense\""),
        ("ssl_session_cache shared:a;", "invalid session cache \"shared:a\""),
        ("ssl_session_cache shared:a:1k;", "session cache \"shared:a:1k\" is too small"),
        (
            "ssl_session_ticket_key a.pem; ssl_certificate a.pem; ssl_certificate_key a.key;",
            "must be 48 or 80 bytes",
        ),
        (
            "ssl_verify_client on; ssl_certificate a.pem; ssl_certificate_key a.key;",
            "no ssl_client_certificate or ssl_trusted_certificate",
        ),
        ("ssl_certificate engine:pkcs11:x;", "are not supported"),
    ] {
        let conf = format!("events {{}} http {{ server {{ {listen} {server} }} }}");
        let builder = Server::builder(BINARY).conf(&conf).arg("-t");
        let (ended, said) = files(files(builder, "a", &a), "b", &b).run_to_end();
        assert!(!ended.success(), "{server}: {said}");
        assert!(said.contains(expected), "{server}: {said}");
    }
}
