//! Certificates for the TLS tests, and the client: rustls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, NamedGroup, RootCertStore, StreamOwned, version};
use testkit::Server;
use testkit::server::ServerBuilder;

/// A CA and the PEM files that it issues.
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate and its key.
    pub(crate) fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        self.sign(&[name], purpose, KeyPair::generate().expect("a key"))
    }

    /// Returns a server's certificate with several names.
    pub(crate) fn issue_names(&self, names: &[&str]) -> (String, String) {
        self.sign(names, ExtendedKeyUsagePurpose::ServerAuth, KeyPair::generate().expect("a key"))
    }

    /// Returns a server's certificate with an RSA key.
    pub(crate) fn rsa(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        self.sign(&[name], ExtendedKeyUsagePurpose::ServerAuth, key.expect("a key"))
    }

    /// Returns a server's certificate with this serial number.
    pub(crate) fn numbered(&self, name: &str, serial: u64) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }

    /// Returns a CRL with these serial numbers, which is valid for years.
    pub(crate) fn crl(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2050, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("a CRL").pem().expect("PEM")
    }

    fn sign(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose, key: KeyPair) -> (String, String) {
        let owned: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(owned).expect("names");
        params.distinguished_name.push(DnType::CommonName, names[0]);
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn server(&self, name: &str) -> (String, String) {
        self.issue(name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("PEM")).expect("a root");
        roots
    }

    /// Returns the configuration of clients that trust the CA; `identity` is their own certificate with its key.
    pub(crate) fn clients(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        identity: Option<&(String, String)>,
    ) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder = builder.expect("versions").with_root_certificates(self.roots());
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a key of its certificate")
            }
        })
    }
}

pub(crate) const BOTH: &[&rustls::SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Connects to the first address, before the TLS handshake.
pub(crate) fn connect(server: &Server, config: &Arc<ClientConfig>, name: &str) -> Tls {
    connect_to(server.addr(0).tcp(), config, name)
}

/// Connects to an address, before the TLS handshake.
pub(crate) fn connect_to(address: std::net::SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Tls {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(testkit::Deadline::default().left()).expect("a timeout");
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).expect("a session"), socket)
}

/// Returns the complete response to a GET on a separate connection.
pub(crate) fn get(server: &Server, config: &Arc<ClientConfig>, name: &str, target: &str) -> Vec<u8> {
    let mut tls = connect(server, config, name);
    let request = format!("GET {target} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    tls.write_all(request.as_bytes()).expect("it is sent");
    to_end(&mut tls)
}

/// Returns all bytes up to the close_notify alert.
pub(crate) fn to_end(tls: &mut Tls) -> Vec<u8> {
    let mut response = Vec::new();
    tls.read_to_end(&mut response).expect("a closing alert");
    response
}

pub(crate) fn text(response: &[u8]) -> String {
    String::from_utf8_lossy(response).into_owned()
}

pub(crate) fn body(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n").expect("an end of the header section");
    &response[end + 4..]
}

pub(crate) fn status(response: &[u8]) -> String {
    text(response).split_whitespace().nth(1).unwrap_or_default().to_owned()
}

/// Writes a certificate and its key into the directory of the configuration.
pub(crate) fn files(
    builder: ServerBuilder,
    name: &str,
    (certificate, key): &(String, String),
) -> ServerBuilder {
    builder.text(&format!("conf/{name}.pem"), certificate).text(&format!("conf/{name}.key"), key)
}

/// Returns a configuration with one TLS server.
pub(crate) fn one(server: &str) -> String {
    format!(
        "worker_processes 1; events {{}} http {{ server {{ listen 127.0.0.1:0 ssl; server_name a.test;\n\
         ssl_certificate a.pem; ssl_certificate_key a.key;\n{server}\n}} }}"
    )
}

/// Returns a copy of a client configuration that offers the sessions of one server to every other server too.
pub(crate) fn mixing_sessions(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.resumption = Resumption::store(Arc::new(OneName(ClientSessionMemoryCache::new(8))));
    Arc::new(config)
}

/// Stores the sessions of all servers under one name.
#[derive(Debug)]
struct OneName(ClientSessionMemoryCache);

fn one_name() -> ServerName<'static> {
    ServerName::try_from("one.test").expect("a name")
}

impl ClientSessionStore for OneName {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(one_name(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(&one_name())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(one_name(), value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(&one_name())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&one_name());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(one_name(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&one_name())
    }
}
