//! Pebble, an ACME server for tests (by Let's Encrypt), with a DNS server that resolves every name to this machine, and
//! clients that inspect a server's certificates. Pebble validates at the ports of the server under test, so the server
//! starts first.
#![allow(dead_code, reason = "each suite is a program of its own and uses a part")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};
use testkit::dns::DnsServer;
use testkit::ports::free_port_of;
use testkit::program::Program;
use testkit::{Deadline, Server, TempDir};

/// Returns pebble's path: in `PATH`, or where `go install` installs it.
pub(crate) fn binary() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(home);
    let found = folders.find_map(|folder| Some(folder.join("pebble")).filter(|file| file.is_file()));
    if found.is_none() {
        testkit::skip(
            "pebble is not installed: go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1",
        );
    }
    found
}

/// Behaviour of an ACME server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manners {
    /// Percentage of nonces that it rejects.
    pub(crate) bad_nonces: u32,
    /// Number of root certificates in addition to the first.
    pub(crate) other_roots: u32,
    /// Name and key of a required external account.
    pub(crate) external_account: Option<(String, String)>,
}

/// A running ACME server.
pub(crate) struct Pebble {
    program: Program,
    dir: TempDir,
    /// A separate loopback address: servers of other tests listen on 127.0.0.1, and could bind a port before pebble does.
    ip: Ipv4Addr,
    /// Ports for ACME and for management.
    ports: (u16, u16),
    /// Root certificate (PEM) of its own TLS certificate.
    root: String,
    pub(crate) dns: DnsServer,
}

/// Returns an address of this machine that no other test uses.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number =
        (std::process::id() as u16).wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 80, high, low)
}

/// Returns a root certificate (PEM), and a certificate for this address with its key.
fn certificates(ip: Ipv4Addr) -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, "root of pebble itself");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let params = CertificateParams::new(vec![ip.to_string()]).expect("an address");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
    (root, certificate, key.serialize_pem())
}

impl Pebble {
    /// Starts an ACME server that validates at these ports.
    pub(crate) fn start(binary: &std::path::Path, http: u16, tls: u16, manners: &Manners) -> Pebble {
        let dns = DnsServer::start();
        let ip = own_ip();
        let (root, certificate, key) = certificates(ip);
        for _ in 0..10 {
            let ports = (free_port_of(ip), free_port_of(ip));
            let dir = TempDir::new("pebble");
            let (certificate, key) = (dir.write("cert.pem", &certificate), dir.write("key.pem", &key));
            let (is_bound, keys) = match &manners.external_account {
                None => (false, String::new()),
                Some((id, key)) => (true, format!("\"{id}\": \"{key}\"")),
            };
            let config = format!(
                r#"{{ "pebble": {{
                    "listenAddress": "{ip}:{}", "managementListenAddress": "{ip}:{}",
                    "certificate": "{}", "privateKey": "{}", "httpPort": {http}, "tlsPort": {tls},
                    "ocspResponderURL": "", "keyAlgorithm": "ecdsa",
                    "externalAccountBindingRequired": {is_bound}, "externalAccountMACKeys": {{ {keys} }},
                    "retryAfter": {{ "authz": 0, "order": 0 }},
                    "profiles": {{
                        "default": {{ "description": "90 days", "validityPeriod": 7776000 }},
                        "shortlived": {{ "description": "6 days", "validityPeriod": 518400 }} }} }} }}"#,
                ports.0,
                ports.1,
                certificate.display(),
                key.display()
            );
            let config = dir.write("config.json", config);
            let mut command = Command::new(binary);
            command.arg("-config").arg(config).arg("-dnsserver").arg(dns.addr().to_string());
            command.env("PEBBLE_VA_NOSLEEP", "1");
            command.env("PEBBLE_WFE_NONCEREJECT", manners.bad_nonces.to_string());
            command.env("PEBBLE_AUTHZREUSE", "0");
            command.env("PEBBLE_ALTERNATE_ROOTS", manners.other_roots.to_string());
            let program = Program::spawn(command, dir.path());
            let mut pebble = Pebble { program, dir, ip, ports, root: root.clone(), dns: DnsServer::start() };
            let up = testkit::wait::until("pebble", Deadline::default(), || {
                let is_there = |port| TcpStream::connect((ip, port)).is_ok();
                match pebble.program.exited() {
                    Some(_) => Some(false),
                    None => (is_there(ports.0) && is_there(ports.1)).then_some(true),
                }
            });
            if up.expect("it starts or ends") {
                pebble.dns = dns;
                return pebble;
            }
        }
        panic!("pebble does not start");
    }

    /// Returns the URL of the ACME directory.
    pub(crate) fn uri(&self) -> String {
        format!("https://{}:{}/dir", self.ip, self.ports.0)
    }

    /// Writes the root of its own certificate to a file; returns the path.
    pub(crate) fn trusted(&self) -> PathBuf {
        self.dir.write("root.pem", &self.root)
    }

    /// Resolves names to this machine.
    pub(crate) fn know(&self, names: &[&str]) {
        for name in names {
            self.dns.set_addresses(name, &["127.0.0.1"], 60);
        }
    }

    /// Returns its output.
    pub(crate) fn said(&self) -> String {
        self.program.stdout()
    }

    /// Makes a request to its management port; returns the response body.
    pub(crate) fn manage(&self, request: &str, body: &str) -> String {
        let address = SocketAddr::from((self.ip, self.ports.1));
        let (mut tls, _) = connect(address, &self.ip.to_string(), &[]);
        let message = format!(
            "{request} HTTP/1.0\r\nHost: pebble\r\nUser-Agent: test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        tls.write_all(message.as_bytes()).expect("it is sent");
        let mut response = String::new();
        // It closes connections without close_notify.
        let _ = tls.read_to_string(&mut response);
        let (head, body) = response.split_once("\r\n\r\n").expect("a header section");
        assert!(head.contains(" 200 "), "{request}: {response}");
        body.to_owned()
    }

    /// Returns one of the roots of the certificates that it issues.
    pub(crate) fn issuing_root(&self, number: u32) -> CertificateDer<'static> {
        let pem = self.manage(&format!("GET /roots/{number}"), "");
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Accepts any certificate, and stores the received ones.
#[derive(Debug, Default)]
struct Anyone(Mutex<Vec<CertificateDer<'static>>>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = std::iter::once(first).chain(others).map(|it| it.clone().into_owned()).collect();
        *self.0.lock().expect("no panic") = shown;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn server_name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).expect("a name")
}

/// Connects and completes the TLS handshake; returns the connection and the server's certificates.
fn connect(address: SocketAddr, name: &str, alpn: &[&str]) -> (Tls, Vec<CertificateDer<'static>>) {
    let anyone = Arc::new(Anyone::default());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let verifier = Arc::clone(&anyone) as Arc<dyn ServerCertVerifier>;
    let builder = builder.expect("versions").dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    let session = ClientConnection::new(Arc::new(config), server_name(name)).expect("a session");
    let mut tls = StreamOwned::new(session, socket);
    tls.flush().expect("a handshake");
    let shown = anyone.0.lock().expect("no panic").clone();
    (tls, shown)
}

/// Returns the certificates that a server sends for a name.
pub(crate) fn shown(server: &Server, index: usize, name: &str) -> Vec<CertificateDer<'static>> {
    connect(server.addr(index).tcp(), name, &[]).1
}

/// Returns whether a server's certificate for a name chains to this root; also checks that a request is served.
pub(crate) fn is_trusted(server: &Server, index: usize, name: &str, root: &CertificateDer<'static>) -> bool {
    is_trusted_at(server.addr(index).tcp(), name, root)
}

/// Like [`is_trusted`], for an address.
pub(crate) fn is_trusted_at(address: SocketAddr, name: &str, root: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(Deadline::default().left()).expect("a timeout");
    let session = ClientConnection::new(Arc::new(config), server_name(name)).expect("a session");
    let mut tls = StreamOwned::new(session, socket);
    let host = if name.parse::<IpAddr>().is_ok() { "localhost" } else { name };
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    if tls.write_all(request.as_bytes()).is_err() {
        return false;
    }
    let mut response = Vec::new();
    tls.read_to_end(&mut response).is_ok() && response.starts_with(b"HTTP/1.1 200 ")
}

/// Returns the response to a request over TLS, without verifying the certificate.
pub(crate) fn get(server: &Server, index: usize, name: &str, target: &str) -> String {
    let (mut tls, _) = connect(server.addr(index).tcp(), name, &[]);
    let request = format!("GET {target} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    tls.write_all(request.as_bytes()).expect("it is sent");
    let mut response = String::new();
    tls.read_to_string(&mut response).expect("a response");
    response
}

/// Waits until [`is_trusted`] is true.
#[track_caller]
pub(crate) fn wait_until_trusted(server: &Server, index: usize, name: &str, root: &CertificateDer<'static>) {
    let trusted = || is_trusted(server, index, name, root).then_some(());
    let done = testkit::wait::until(&format!("a certificate for {name}"), Deadline::default(), trusted);
    done.unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
}
