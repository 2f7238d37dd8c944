//! Files of certificates: empty names, several certificates of one key type, PEM sections `TRUSTED CERTIFICATE`, encrypted keys.

use std::fmt::Write as _;
use std::process::Command;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use testkit::server::StrictLimit;
use testkit::{Client, Server};

use crate::common::tls::{Authority, BOTH, connect, files, get, one, status, text};
use crate::common::{BINARY, ours_only, serve_with};

/// Returns a configuration with these directives in `http`, `server` and `location`.
fn layers(http: &str, server: &str, location: &str) -> String {
    format!(
        "worker_processes 1; events {{}} http {{ {http}\n\
         server {{ listen 127.0.0.1:0 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key;\n\
         {server}\nlocation / {{ {location} }} }} }}"
    )
}

#[test]
fn an_empty_name_cancels_an_inherited_file() {
    if !ours_only("the messages are compared with nginx's in another form") {
        return;
    }
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let secure = |prefix: &str| match prefix {
        "proxy" => "proxy_pass https://127.0.0.1:1;",
        "grpc" => "grpc_pass grpcs://127.0.0.1:1;",
        _ => "uwsgi_pass suwsgi://127.0.0.1:1;",
    };
    let mut cases = Vec::new();
    for name in ["ssl_crl", "ssl_trusted_certificate", "ssl_stapling_file", "ssl_client_certificate"] {
        cases.push((layers(&format!("{name} none.pem;"), &format!("{name} '';"), ""), name));
    }
    for name in ["ssl_ocsp_responder", "ssl_stapling_responder"] {
        let http = format!("ssl_stapling on; {name} http://a.test/;");
        cases.push((layers(&http, &format!("{name} '';"), ""), name));
    }
    for prefix in ["proxy", "grpc", "uwsgi"] {
        let inherited = format!(
            "{prefix}_ssl_certificate a.pem; {prefix}_ssl_certificate_key a.key; {prefix}_ssl_crl a.key;"
        );
        let cancelled = format!(
            "{prefix}_ssl_certificate ''; {prefix}_ssl_certificate_key ''; {prefix}_ssl_crl ''; {prefix}_ssl_trusted_certificate '';"
        );
        cases.push((layers(&inherited, "", &format!("{} {cancelled}", secure(prefix))), prefix));
    }
    cases.push((layers("fastcgi_index a;", "", "fastcgi_index '';"), "fastcgi_index"));
    cases.push((layers("", "ssl_certificate_key '';", ""), "a second ssl_certificate_key"));
    for (conf, what) in cases {
        let inherited_file_is_read = conf.contains("none.pem");
        let builder = Server::builder(BINARY).conf(&conf.replace("none.pem", "a.pem")).arg("-t");
        let (ended, said) = files(builder, "a", &own).run_to_end();
        // A file with another content is read where it is written.
        let expected = ended.success() || inherited_file_is_read && said.contains("revocation list");
        assert!(expected, "{what}: {said}");
    }
    let conf = layers(
        "",
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate a.pem;",
        "proxy_pass https://127.0.0.1:1; proxy_ssl_trusted_certificate '';",
    );
    let (_, said) = files(Server::builder(BINARY).conf(&conf).arg("-t"), "a", &own).run_to_end();
    assert!(said.contains("no proxy_ssl_trusted_certificate for proxy_ssl_verify"), "{said}");
}

#[test]
fn an_empty_proxy_ssl_certificate_presents_no_certificate() {
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let who = "ssl_verify_client optional; ssl_client_certificate root.pem; return 200 '$ssl_client_verify';";
    let upstream =
        serve_with(&one(who), |builder| files(builder, "a", &own).text("conf/root.pem", &authority.pem));
    let pass = format!("proxy_pass https://127.0.0.1:{};", upstream.addr(0).tcp().port());
    let client = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let conf = format!(
        "worker_processes 1; events {{}} http {{ proxy_ssl_certificate c.pem; proxy_ssl_certificate_key c.key;\n\
         server {{ listen 127.0.0.1:0; location /with {{ {pass} }}\n\
         location /without {{ {pass} proxy_ssl_certificate ''; proxy_ssl_certificate_key ''; }} }} }}"
    );
    let server = serve_with(&conf, |builder| files(builder, "c", &client));
    assert_eq!(Client::connect(server.addr(0)).get("/with").text(), "SUCCESS");
    assert_eq!(Client::connect(server.addr(0)).get("/without").text(), "NONE");
}

#[test]
fn the_last_of_two_certificates_of_one_key_type_is_used() {
    let authority = Authority::new("root");
    let (first, last) = (authority.server("a.test"), authority.server("a.test"));
    let conf = one("return 200 x;").replace(
        "ssl_certificate a.pem;",
        "ssl_certificate b.pem; ssl_certificate_key b.key; ssl_certificate a.pem;",
    );
    let server = serve_with(&conf, |builder| files(files(builder, "a", &last), "b", &first));
    let mut tls = connect(&server, &authority.clients(BOTH, None), "a.test");
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).expect("a handshake");
    }
    let shown = tls.conn.peer_certificates().expect("a chain")[0].clone();
    assert_eq!(shown, CertificateDer::from_pem_slice(last.0.as_bytes()).expect("PEM"));
    if ours_only("nginx replaces the certificate silently") {
        let builder = Server::builder(BINARY).conf(&conf).arg("-t");
        let (ended, said) = files(files(builder, "a", &last), "b", &first).run_to_end();
        assert!(ended.success() && said.contains("b.pem\" is not used, because "), "{said}");
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let value =
            (0..3).fold(0, |value, index| value << 8 | usize::from(three.get(index).copied().unwrap_or(0)));
        let digit = |index: usize| match index <= three.len() {
            true => char::from(DIGITS[value >> (18 - 6 * index) & 63]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(four).collect()
}

/// Returns a PEM section with a certificate and trust settings, as `openssl x509 -trustout` writes it.
fn trusted(pem: &str, settings: &[u8]) -> String {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
    let encoded = base64(&[&der[..], settings].concat());
    let mut text = "-----BEGIN TRUSTED CERTIFICATE-----\n".to_owned();
    for line in encoded.as_bytes().chunks(64) {
        let _ = writeln!(text, "{}", str::from_utf8(line).expect("base64"));
    }
    text + "-----END TRUSTED CERTIFICATE-----\n"
}

/// The settings are a sequence of trusted uses, and of rejected uses with tag 0 (`X509_CERT_AUX` of OpenSSL).
#[test]
fn a_trusted_certificate_section_is_read_with_its_trust_settings() {
    let clients: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02";
    let servers: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
    let settings = |tag: u8, usage: &[u8]| [&[0x30, 0x0c, tag, 0x0a], usage].concat();
    let authority = Authority::new("root");
    let own = authority.server("a.test");
    let client = authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    let conf = one("ssl_verify_client on; ssl_client_certificate root.pem; return 200 $ssl_client_verify;");
    for (what, settings, expected) in [
        ("no settings", Vec::new(), "200"),
        ("trusted for clients", settings(0x30, clients), "200"),
        ("trusted for servers", settings(0x30, servers), "400"),
        ("rejected for clients", settings(0xa0, clients), "400"),
    ] {
        let root = trusted(&authority.pem, &settings);
        // The server's own certificate may have this form too.
        let own = (trusted(&own.0, &settings), own.1.clone());
        let server = serve_with(&conf, |builder| files(builder, "a", &own).text("conf/root.pem", &root));
        let response = get(&server, &authority.clients(BOTH, Some(&client)), "a.test", "/");
        assert_eq!(status(&response), expected, "{what}: {}", text(&response));
    }
}

#[test]
fn an_encrypted_key_is_not_cached() {
    if !ours_only("Debian's nginx has no certificate cache") {
        return;
    }
    if Command::new("openssl").arg("version").output().is_err() {
        testkit::skip(format_args!("openssl is not installed"));
        return;
    }
    let authority = Authority::new("root");
    let (first, second) = (authority.server("a.test"), authority.server("a.test"));
    let conf = one("ssl_certificate_cache max=10 valid=1h; ssl_password_file pass; return 200 x;")
        .replace("a.pem", "$ssl_server_name.pem")
        .replace("a.key", "$ssl_server_name.key");
    for is_encrypted in [true, false] {
        let server = serve_with(&conf, |builder| {
            let builder = builder.not_strict(StrictLimit::KeyInWorker);
            files(builder, "a.test", &first).text("conf/pass", "secret\n")
        });
        let path = |name: &str| server.path(&format!("conf/a.test.{name}"));
        let write = |pair: &(String, String)| {
            std::fs::write(path("pem"), &pair.0).expect("it is ours");
            std::fs::write(path("key"), &pair.1).expect("it is ours");
            if is_encrypted {
                let mut command = Command::new("openssl");
                command.args(["pkcs8", "-topk8", "-passout", "pass:secret", "-in"]).arg(path("key"));
                let encrypted = command.output().expect("it runs").stdout;
                std::fs::write(path("key"), encrypted).expect("it is ours");
            }
        };
        let shown = || {
            let mut tls = connect(&server, &authority.clients(BOTH, None), "a.test");
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock).expect("a handshake");
            }
            tls.conn.peer_certificates().expect("a chain")[0].clone().into_owned()
        };
        let der = |pair: &(String, String)| CertificateDer::from_pem_slice(pair.0.as_bytes()).expect("PEM");
        write(&first);
        assert_eq!(shown(), der(&first));
        write(&second);
        assert_eq!(shown(), der(if is_encrypted { &second } else { &first }), "encrypted: {is_encrypted}");
    }
}
