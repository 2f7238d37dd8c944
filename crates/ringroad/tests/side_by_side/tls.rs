//! Random TLS handshakes with this server and with nginx, which have the same configuration: versions, cipher suites,
//! groups, names, ALPN, valid and invalid client certificates, sessions offered to their own server and to others. Both
//! must have the same result and send the same data, except for differences listed in docs/nginx-differences.md.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::SystemTime;

use crate::common::BINARY;
use crate::common::tls::{Authority, body, files, mixing_sessions, text};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup, SignatureScheme,
    version,
};
use testkit::server::ServerBuilder;
use testkit::{Deadline, Server, nginx};

const SHOWN: &str = "$ssl_protocol $ssl_cipher $ssl_curve [$ssl_server_name] $ssl_session_reused $ssl_client_verify \
                     [$ssl_client_s_dn] [$ssl_alpn_protocol]";

/// Returns a configuration with an address for each kind of settings.
fn conf(address: impl Fn(usize) -> String) -> String {
    let ecdsa = "ssl_certificate a.pem; ssl_certificate_key a.key;";
    let rsa = "ssl_certificate r.pem; ssl_certificate_key r.key;";
    let common = "ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:s:1m; ssl_ecdh_curve X25519:prime256v1:secp384r1; ssl_session_ticket_key key;";
    let one = |index: usize, settings: &str| {
        let address = address(index);
        format!(
            "server {{ listen {address} ssl; server_name a.test; {settings}\nreturn 200 'own {SHOWN}'; }}\n"
        )
    };
    let servers = [
        one(0, ecdsa),
        one(
            WITH_BOTH_KEYS,
            &format!(
                "{ecdsa} {rsa} ssl_protocols TLSv1.2; ssl_prefer_server_ciphers on; \
                 ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384;"
            ),
        ),
        one(2, &format!("{ecdsa} ssl_protocols TLSv1.3; ssl_ecdh_curve secp384r1;")),
        one(3, &format!("{ecdsa} ssl_verify_client on; ssl_client_certificate root.pem;")),
        one(
            4,
            &format!(
                "{rsa} ssl_verify_client optional; ssl_client_certificate root.pem; ssl_session_tickets off;"
            ),
        ),
        one(5, &format!("{ecdsa} ssl_verify_client optional_no_ca; ssl_client_certificate root.pem;")),
    ];
    format!(
        "worker_processes 1; error_log logs/error.log info; events {{}}\nhttp {{ access_log off; {common}\n{}}}\n",
        servers.concat()
    )
}

/// Index of the address whose servers have keys of both types, and their own cipher-suite order.
const WITH_BOTH_KEYS: usize = 1;

/// Random numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % end as u64).expect("it is below the end")
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// Returns some of these, at least one, in random order.
    fn some<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let mut left = all.to_vec();
        let count = 1 + self.below(all.len());
        (0..count).map(|_| left.remove(self.below(left.len()))).collect()
    }
}

/// Accepts any certificate: the received certificate is compared later.
#[derive(Debug)]
struct Any(Arc<CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Certificates that clients may send.
struct Identities(Vec<(&'static str, Option<(String, String)>)>);

impl Identities {
    fn new(authority: &Authority) -> Identities {
        let expired = {
            let (mut params, key) =
                (CertificateParams::new(Vec::new()).expect("no names"), KeyPair::generate().expect("a key"));
            params.distinguished_name.push(DnType::CommonName, "expired");
            (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
            (params.signed_by(&key, &authority.issuer).expect("a certificate").pem(), key.serialize_pem())
        };
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        Identities(vec![
            ("none", None),
            ("good", Some(authority.issue("good", client.clone()))),
            ("expired", Some(expired)),
            ("unknown", Some(Authority::new("stranger").issue("unknown", client))),
            ("for servers", Some(authority.server("for servers"))),
        ])
    }
}

/// A client and the connections that it makes.
struct Case {
    config: Arc<ClientConfig>,
    /// Index of the address and the requested server name; `None` sends no name.
    connections: Vec<(usize, Option<&'static str>)>,
    /// Whether the client may use TLS 1.2 and does not offer the curve of the ECDSA certificates.
    lacks_curve_of_key: bool,
    shown: String,
}

const ADDRESSES: usize = 6;

const NAMES: [Option<&str>; 3] = [Some("a.test"), None, Some("unknown.test")];

fn case(seed: u64, identities: &Identities) -> Case {
    let mut random = Random::new(seed);
    let mut provider = aws_lc_rs::default_provider();
    let versions = match random.below(4) {
        0 => &[&version::TLS12][..],
        1 => &[&version::TLS13],
        _ => &[&version::TLS13, &version::TLS12],
    };
    // Each version needs a cipher suite.
    let (suites_13, suites_12): (Vec<_>, Vec<_>) =
        provider.cipher_suites.iter().copied().partition(|suite| suite.tls13().is_some());
    let (suites_13, suites_12) = (random.some(&suites_13), random.some(&suites_12));
    provider.cipher_suites = [suites_13, suites_12].concat();
    let groups: Vec<&'static dyn SupportedKxGroup> = aws_lc_rs::ALL_KX_GROUPS.to_vec();
    provider.kx_groups = random.some(&groups);
    let has_p256 = provider.kx_groups.iter().any(|group| group.name() == NamedGroup::secp256r1);
    let lacks_curve_of_key = !has_p256 && versions.contains(&&version::TLS12);
    let provider = Arc::new(provider);
    let (who, identity) = &identities.0[random.below(identities.0.len())];
    let alpn: &[&[u8]] = match random.below(4) {
        0 => &[b"http/1.1"],
        1 => &[b"nonsense"],
        2 => &[b"h2", b"http/1.1"],
        _ => &[],
    };
    let address = random.below(ADDRESSES);
    let other = if random.chance(3) { random.below(ADDRESSES) } else { address };
    let name = NAMES[random.below(NAMES.len())];
    let shown = format!(
        "seed {seed}: {versions:?} {:?} {:?} certificate {who}, ALPN {:?}, addresses {address} {other}, name {name:?}",
        provider.cipher_suites.iter().map(|suite| suite.suite()).collect::<Vec<_>>(),
        provider.kx_groups.iter().map(|group| group.name()).collect::<Vec<_>>(),
        alpn.iter().map(|protocol| text(protocol)).collect::<Vec<_>>(),
    );
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions);
    let builder =
        builder.expect("versions").dangerous().with_custom_certificate_verifier(Arc::new(Any(provider)));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("a key of its certificate")
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = name.is_some();
    let connections = vec![(address, name), (address, name), (other, name)];
    Case { config: Arc::new(config), connections, lacks_curve_of_key, shown }
}

/// Returns a client's view of a connection.
fn outcome(server: &Server, config: &Arc<ClientConfig>, address: usize, name: Option<&str>) -> String {
    let host = name.unwrap_or("a.test").to_owned();
    let name = ServerName::try_from(host.clone()).expect("a name");
    let mut session = match ClientConnection::new(Arc::clone(config), name) {
        Ok(session) => session,
        Err(error) => return format!("no client: {error}"),
    };
    let mut socket = TcpStream::connect(server.addr(address).tcp()).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    let mut tls = rustls::Stream::new(&mut session, &mut socket);
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut response = Vec::new();
    let read = tls.write_all(request.as_bytes()).and_then(|()| tls.read_to_end(&mut response).map(drop));
    match read {
        Err(error) if error.kind() == ErrorKind::InvalidData && response.is_empty() => {
            return format!("refused: {error}");
        }
        Err(error) if response.is_empty() => return format!("ended: {:?}", error.kind()),
        _ => {}
    }
    let own = session.peer_certificates().map_or(0, |chain| chain[0].len());
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    let head = text(&response);
    let status = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let content = if status == "200" { text(body(&response)) } else { String::new() };
    format!("{status} {content}, certificate of {own} bytes, resumed {is_resumed}")
}

/// Runs the cases of these seeds, and returns the differences.
fn differences(seeds: std::ops::Range<u64>) -> Option<Vec<String>> {
    let authority = Authority::new("root");
    let (ecdsa, rsa) = (authority.server("a.test"), authority.rsa("a.test"));
    let identities = Identities::new(&authority);
    let key = "k".repeat(80);
    let prepare = |builder: ServerBuilder| {
        let builder = files(files(builder, "a", &ecdsa), "r", &rsa);
        builder.text("conf/root.pem", &authority.pem).text("conf/key", &key)
    };
    // nginx gets a port for each address, and this server an address for each port.
    let theirs = nginx::start_with(&conf(|_| "127.0.0.1:0".to_owned()), prepare)?;
    let ours =
        prepare(Server::builder(BINARY).conf(&conf(|index| format!("127.0.0.{}:0", index + 1)))).start();
    let mut found = Vec::new();
    for seed in seeds {
        let case = case(seed, &identities);
        let run = |server: &Server| {
            let config = mixing_sessions(&case.config);
            let outcomes =
                case.connections.iter().map(|(address, name)| outcome(server, &config, *address, *name));
            outcomes.collect::<Vec<_>>()
        };
        let (own, other) = (run(&ours), run(&theirs));
        for (index, (own, other)) in own.iter().zip(&other).enumerate() {
            let address = case.connections[index].0;
            // T26
            let lacks_curve = case.lacks_curve_of_key && other.starts_with("refused");
            // T8
            let is_of_another = address != case.connections[0].0
                && other.ends_with("resumed true")
                && own.ends_with("resumed false");
            if !lacks_curve && !is_of_another && comparable(own, address) != comparable(other, address) {
                found.push(format!("{}\n  connection {index}: {own}\n  nginx:        {other}", case.shown));
                break;
            }
        }
    }
    Some(found)
}

/// Returns an outcome without the differences listed in docs/nginx-differences.md: which of several keys is selected,
/// and with it the cipher suite (T22), the group (T23), which of several reasons an alert has (T24), and whether a
/// session is resumed whose certificate is rejected again (T25).
fn comparable(outcome: &str, address: usize) -> String {
    if outcome.starts_with("refused") {
        return "refused".to_owned();
    }
    if outcome.starts_with("400") {
        return "400".to_owned();
    }
    let is_compared = |(index, word): &(usize, &str)| match *index {
        // The suite.
        3 => address != WITH_BOTH_KEYS,
        // The group.
        4 => false,
        // The size of the certificate in bytes, the only number among these words.
        _ => address != WITH_BOTH_KEYS || *index == 0 || word.parse::<usize>().is_err(),
    };
    let words = outcome.split(' ').enumerate().filter(is_compared);
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

#[expect(clippy::print_stdout, reason = "the number of clients is a part of the result")]
fn assert_same(seeds: std::ops::Range<u64>) {
    let begun = SystemTime::now();
    let count = seeds.end - seeds.start;
    let Some(found) = differences(seeds) else { return };
    let shown: Vec<&String> = found.iter().take(20).collect();
    assert!(
        found.is_empty(),
        "{} of {count} cases differ:\n{}",
        found.len(),
        shown.iter().map(|it| it.as_str()).collect::<Vec<_>>().join("\n")
    );
    println!("{count} clients with three connections each in {:?}", begun.elapsed());
}

#[test]
fn a_hundred_random_tls_clients_get_the_results_of_nginx() {
    assert_same(0..100);
}

#[test]
#[ignore = "takes minutes"]
fn thousands_of_random_tls_clients_get_the_results_of_nginx() {
    let count = std::env::var("RINGROAD_TEST_TLS_CLIENTS").ok().and_then(|count| count.parse().ok());
    assert_same(100..100 + count.unwrap_or(3_400));
}
