//! The default TLS settings, graded as public graders do, with `openssl s_client` as the client: versions, suites,
//! forward secrecy, groups, renegotiation, compression, downgrades, and `Strict-Transport-Security` as docs/tls.md
//! recommends it.
//!
//! A grader offers all suites, and then repeats this without the accepted ones until the server refuses. The list of
//! suites is that of the installed OpenSSL, those without authentication or encryption included.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::common::BINARY;
use crate::common::tls::{Authority, body, files, get, one, text};
use testkit::Server;

/// The field that docs/tls.md recommends.
const HSTS: &str = "add_header Strict-Transport-Security \"max-age=63072000\" always;";

/// Runs `openssl` without input; returns its output and messages.
fn openssl(arguments: &str) -> Option<String> {
    let output = Command::new("openssl").args(arguments.split(' ')).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// A server with the default settings, and a certificate of each kind.
struct Graded {
    server: Server,
    authority: Authority,
}

impl Graded {
    fn start() -> Option<Graded> {
        if openssl("version").is_none() {
            testkit::skip(format_args!("openssl is not installed (apt-get install openssl)"));
            return None;
        }
        let authority = Authority::new("root");
        let conf = one(&format!(
            "ssl_certificate rsa.pem; ssl_certificate_key rsa.key; {HSTS} location = / {{ return 200 ok; }}"
        ));
        let builder = files(Server::builder(BINARY).conf(&conf), "a", &authority.server("a.test"));
        let server = files(builder, "rsa", &authority.rsa("a.test")).start();
        Some(Graded { server, authority })
    }

    /// Returns the messages of a handshake.
    fn handshake(&self, options: &str) -> String {
        let address = self.server.addr(0).tcp();
        openssl(&format!("s_client -connect {address} -servername a.test {options}"))
            .expect("it was run before")
    }

    /// Returns all names of a list that the server accepts, by offering those that it has not accepted yet.
    fn accepted(&self, options: &str, mut offered: Vec<String>, end: &str) -> BTreeSet<String> {
        let mut accepted = BTreeSet::new();
        while !offered.is_empty() {
            let said = self.handshake(&format!("{options} {}{end}", offered.join(":")));
            let Some(suite) = suite(&said) else {
                assert!(is_refused(&said), "{said}");
                break;
            };
            offered.retain(|name| *name != suite);
            assert!(accepted.insert(suite.to_owned()), "not offered: {suite}\n{said}");
        }
        accepted
    }
}

/// Returns the suite of a completed handshake.
fn suite(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("Cipher is ")?;
    rest.split_whitespace().next().filter(|suite| *suite != "(NONE)")
}

/// Returns whether the server has refused the handshake by an alert. Otherwise the client has not sent the offer.
fn is_refused(said: &str) -> bool {
    said.contains("SSL alert number 40") || said.contains("SSL alert number 70")
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn versions_before_1_2_are_refused() {
    let Some(graded) = Graded::start() else { return };
    for (version, is_served) in [("tls1", false), ("tls1_1", false), ("tls1_2", true), ("tls1_3", true)] {
        let said = graded.handshake(&format!("-{version} -cipher ALL:@SECLEVEL=0"));
        assert_eq!((suite(&said).is_some(), is_refused(&said)), (is_served, !is_served), "{version}: {said}");
    }
}

/// Every suite of TLS 1.2 has an ephemeral key exchange and authenticated encryption: no RSA key transport, CBC, RC4 or
/// 3DES. Those of TLS 1.3 always have.
#[test]
fn every_suite_has_forward_secrecy_and_authenticated_encryption() {
    let Some(graded) = Graded::start() else { return };
    let all = openssl("ciphers -s -tls1_2 ALL:COMPLEMENTOFALL:@SECLEVEL=0").expect("it was run before");
    let offered: Vec<String> = all.trim().split(':').map(str::to_owned).collect();
    assert!(offered.iter().any(|suite| suite == "AES128-SHA"), "weak suites are offered: {all}");
    let accepted = graded.accepted("-tls1_2 -cipher", offered, ":@SECLEVEL=0");
    let expected = names(&[
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ]);
    assert_eq!(accepted, expected);
    let strong = ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"];
    let weaker = ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];
    let offered = strong.iter().chain(&weaker).map(|name| (*name).to_owned()).collect();
    assert_eq!(graded.accepted("-tls1_3 -ciphersuites", offered, ""), names(&strong));
}

/// The key exchange is as strong as 3072 bits of RSA, with elliptic curves of at least 253 bits. The length of the server's RSA
/// key is the operator's choice: the test uses 2048 bits.
#[test]
fn groups_of_the_key_exchange_are_strong() {
    let Some(graded) = Graded::start() else { return };
    for (group, is_strong) in [
        ("X25519", true),
        ("P-256", true),
        ("P-384", true),
        ("P-192", false),
        ("P-224", false),
        ("secp160k1", false),
        ("ffdhe2048", false),
    ] {
        // With RSA: OpenSSL applies its groups to the key of an ECDSA certificate too.
        let suite_of_rsa = "ECDHE-RSA-AES256-GCM-SHA384:@SECLEVEL=0";
        let said = graded.handshake(&format!("-tls1_2 -groups {group} -cipher {suite_of_rsa}"));
        assert_eq!((suite(&said).is_some(), is_refused(&said)), (is_strong, !is_strong), "{group}: {said}");
        let bits = said.split_once("Server Temp Key: ").and_then(|(_, rest)| {
            rest.lines().next()?.rsplit_once(", ")?.1.strip_suffix(" bits")?.parse::<u32>().ok()
        });
        assert_eq!(bits.is_some_and(|bits| bits >= 253), is_strong, "{group}: {said}");
    }
}

/// A downgrade attack that makes a client offer only TLS 1.2 is detected (RFC 7507, RFC 8446 section 4.1.3).
#[test]
fn renegotiation_is_secure_and_downgrades_and_compression_are_not_possible() {
    let Some(graded) = Graded::start() else { return };
    let said = graded.handshake("-tls1_2 -comp");
    for line in ["Secure Renegotiation IS supported", "Compression: NONE", "Extended master secret: yes"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let said = graded.handshake("-tls1_2 -fallback_scsv");
    assert!(said.contains("inappropriate fallback") && suite(&said).is_none(), "{said}");
    // A client that offers TLS 1.3 is not downgraded.
    let said = graded.handshake("-fallback_scsv");
    assert!(suite(&said).is_some() && said.contains("TLSv1.3"), "{said}");
}

#[test]
fn strict_transport_security_is_sent_with_every_response() {
    let Some(graded) = Graded::start() else { return };
    let clients = graded.authority.clients(crate::common::tls::BOTH, None);
    for (target, status) in [("/", "200"), ("/none", "404")] {
        let response = get(&graded.server, &clients, "a.test", target);
        let head = &response[..response.len() - body(&response).len()];
        let lines = text(head);
        assert!(lines.starts_with(&format!("HTTP/1.1 {status} ")), "{lines}");
        let field = "\r\nStrict-Transport-Security: max-age=63072000\r\n";
        assert_eq!(lines.matches(field).count(), 1, "{lines}");
    }
    let page = include_str!("../../../../docs/tls.md");
    assert!(page.contains(HSTS), "docs/tls.md recommends this line");
}
