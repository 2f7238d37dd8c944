//! The client's side, towards upstreams.

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::pki_types::ServerName;

use crate::certificate::Identity;
use crate::server::{Versions, provider};
use crate::session::{Session, TlsError};
use crate::verify::AnyServer;

/// Sessions that are kept for upstreams of one configuration: one for each name.
const SESSIONS_MAX: usize = 1024;

/// How connections to upstreams speak TLS.
#[derive(Debug)]
pub struct ClientSettings {
    /// `proxy_ssl_certificate` with its key.
    pub identity: Option<Identity>,
    /// `proxy_ssl_protocols`
    pub versions: Versions,
    /// `proxy_ssl_ciphers`: suites of TLS 1.2.
    pub suites: Vec<SupportedCipherSuite>,
    /// Suites of TLS 1.3.
    pub suites_13: Vec<SupportedCipherSuite>,
    /// `proxy_ssl_session_reuse`
    pub reuses_sessions: bool,
    /// `proxy_ssl_server_name`: whether the upstream is told its name.
    pub sends_name: bool,
    /// Protocols that are offered by ALPN, the best first.
    pub alpn: Vec<Vec<u8>>,
}

/// What handshakes with upstreams are made with.
#[derive(Clone, Debug)]
pub struct Client {
    config: Arc<rustls::ClientConfig>,
}

impl Client {
    /// Prepares handshakes.
    pub fn new(settings: ClientSettings) -> Result<Client, TlsError> {
        let provider = provider(&settings.suites, &settings.suites_13, &crate::groups::auto());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&settings.versions.list()).map_err(TlsError::new)?;
        // The upstream's certificate is judged behind the handshake.
        let builder = builder.dangerous().with_custom_certificate_verifier(AnyServer::new());
        let mut config = match settings.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(
                rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::clone(identity.key())),
            )),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = settings.alpn;
        config.enable_sni = settings.sends_name;
        config.resumption = if settings.reuses_sessions {
            Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS_MAX)))
        } else {
            Resumption::disabled()
        };
        Ok(Client { config: Arc::new(config) })
    }

    /// A session with an upstream of this name or address. Names that are no host names are not sent.
    pub fn session(&self, name: &str) -> Result<Session, TlsError> {
        let nameless = || ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let name = ServerName::try_from(name.to_owned()).unwrap_or_else(|_| nameless());
        Session::client(&self.config, name)
    }
}
