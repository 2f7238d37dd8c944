//! The client side of TLS, for connections to upstreams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::SupportedCipherSuite;
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::ServerName;

use crate::certificate::Identity;
use crate::certificate_compression::{compressors, decompressors};
use crate::server::{Versions, provider};
use crate::session::{Session, TlsError};
use crate::verify::AnyServer;

/// Maximum number of upstreams per configuration whose sessions are stored.
const UPSTREAMS_MAX: usize = 1024;

/// Maximum number of stored sessions per upstream. The value is rustls' limit for tickets of TLS 1.3.
const SESSIONS_MAX: usize = 8;

/// TLS settings of connections to upstreams.
#[derive(Debug)]
pub struct ClientSettings {
    /// `proxy_ssl_certificate` with its private key
    pub identity: Option<Identity>,
    /// `proxy_ssl_protocols`
    pub versions: Versions,
    /// `proxy_ssl_ciphers`: the suites of TLS 1.2
    pub suites: Vec<SupportedCipherSuite>,
    /// The suites of TLS 1.3.
    pub suites_13: Vec<SupportedCipherSuite>,
    /// The groups of the key exchange, in order of preference.
    pub groups: Vec<&'static dyn SupportedKxGroup>,
    /// `proxy_ssl_session_reuse`
    pub reuses_sessions: bool,
    /// `proxy_ssl_server_name`: whether the name is sent to the upstream (SNI)
    pub sends_name: bool,
    /// Protocols that are offered by ALPN, in order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The prepared configuration of handshakes with upstreams.
#[derive(Clone, Debug)]
pub struct Client {
    config: Arc<rustls::ClientConfig>,
    /// One configuration for each upstream, with the sessions of that upstream; `None` if sessions are not reused. A
    /// session of one upstream is not offered to another, even under the same name. Otherwise the other upstream could
    /// recognise the session, and its certificate would not be verified.
    upstreams: Option<Arc<Mutex<Upstreams>>>,
}

/// Configurations by the peer's address and the server name in the ClientHello.
type Upstreams = HashMap<(String, String), Arc<rustls::ClientConfig>>;

impl Client {
    /// Prepares handshakes with these settings.
    pub fn new(settings: ClientSettings) -> Result<Client, TlsError> {
        let provider = provider(&settings.suites, &settings.suites_13, &settings.groups);
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&settings.versions.list()).map_err(TlsError::new)?;
        // The upstream's certificate is verified after the handshake.
        let builder = builder.dangerous().with_custom_certificate_verifier(AnyServer::new());
        let mut config = match settings.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(
                rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::clone(identity.key())),
            )),
            None => builder.with_no_client_auth(),
        };
        config.cert_compressors = compressors();
        config.cert_decompressors = decompressors();
        config.alpn_protocols = settings.alpn;
        config.enable_sni = settings.sends_name;
        config.resumption = Resumption::disabled();
        let upstreams = settings.reuses_sessions.then(Arc::default);
        Ok(Client { config: Arc::new(config), upstreams })
    }

    /// Returns a client with this certificate. Its sessions are not resumed, because a session that began with one
    /// certificate must not be offered with another certificate.
    #[must_use]
    pub fn with_identity(&self, identity: &Identity) -> Client {
        let mut config = rustls::ClientConfig::clone(&self.config);
        config.client_auth_cert_resolver =
            Arc::new(rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::clone(identity.key())));
        Client { config: Arc::new(config), upstreams: None }
    }

    /// Creates a session with the upstream at `peer`, with this name or address in the ClientHello. A name that is not
    /// a valid host name is not sent.
    pub fn session(&self, peer: &str, name: &str) -> Result<Session, TlsError> {
        let config = self.config_of(peer, name);
        let nameless = || ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let name = ServerName::try_from(name.to_owned()).unwrap_or_else(|_| nameless());
        Session::client(&config, name)
    }

    /// Returns the settings of connections over QUIC with the upstream at `peer`. `early_data` permits requests in the first packets
    /// of a resumed session.
    pub fn quic(
        &self,
        peer: &str,
        name: &str,
        early_data: bool,
    ) -> Result<Arc<dyn quinn_proto::crypto::ClientConfig>, TlsError> {
        let mut config = rustls::ClientConfig::clone(&self.config_of(peer, name));
        config.enable_early_data = early_data;
        let no_suite = |_| TlsError::new(rustls::Error::General("no suite for Initial packets".to_owned()));
        Ok(Arc::new(QuicClientConfig::try_from(config).map_err(no_suite)?))
    }

    fn config_of(&self, peer: &str, name: &str) -> Arc<rustls::ClientConfig> {
        let Some(upstreams) = &self.upstreams else { return Arc::clone(&self.config) };
        let mut upstreams = upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (peer.to_owned(), name.to_owned());
        if !upstreams.contains_key(&key) && upstreams.len() >= UPSTREAMS_MAX {
            // Removes the sessions of any upstream; its next handshake is then a full handshake.
            let other = upstreams.keys().next().cloned();
            other.and_then(|other| upstreams.remove(&other));
        }
        let config = upstreams.entry(key).or_insert_with(|| {
            let mut config = rustls::ClientConfig::clone(&self.config);
            config.resumption = Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS_MAX)));
            Arc::new(config)
        });
        Arc::clone(config)
    }
}
