//! TLS to upstreams: the settings of a location, and the verification of an upstream's certificate.

use std::fmt;
use std::sync::Arc;

use exchange::certificates::{LoadError, NamedCertificates};
use site::template::Template;
use site::variables::HasVariables;
use tls::handshake::HandshakeError;
use tls::x509::{Certificate, Distrust};
use tls::{Client, Session, Trust};

/// TLS settings of a location (`proxy_ssl_*`).
#[derive(Debug)]
pub struct SecureSettings {
    /// Client configuration of handshakes.
    pub client: Client,
    /// `proxy_ssl_certificate` with variables: one certificate and key.
    pub named: Option<NamedCertificates>,
    /// `proxy_ssl_name`, if set: the name to verify in the upstream's certificate, and the name sent by SNI.
    pub name: Option<Template>,
    /// The trusted CAs (`proxy_ssl_verify`).
    pub trust: Option<Trust>,
}

/// TLS settings of one connection.
#[derive(Clone, Debug)]
pub struct Secure {
    pub(super) settings: Arc<SecureSettings>,
    pub(super) name: String,
    /// Names of the certificate and the key, if they contain variables.
    pair: Option<(String, String)>,
}

/// Connections with the same settings, name and certificate are interchangeable.
impl PartialEq for Secure {
    fn eq(&self, other: &Secure) -> bool {
        Arc::ptr_eq(&self.settings, &other.settings) && self.name == other.name && self.pair == other.pair
    }
}

/// Reason why a TLS connection to an upstream failed.
pub(super) enum SecureError {
    Handshake(HandshakeError),
    /// The client certificate cannot be read.
    Load(LoadError),
    NoCertificate,
    Distrust(Distrust),
    /// The certificate is for another host.
    Name(String),
}

impl Secure {
    /// Creates the settings for a request to `host`, which may include a port.
    pub fn of<R: HasVariables>(settings: &Arc<SecureSettings>, host: &[u8], request: &R) -> Secure {
        let name = settings.name.as_ref().map(|name| name.rendered(request));
        let name = name.as_deref().unwrap_or(host);
        let pair = settings.named.as_ref().and_then(|named| named.names(request).into_iter().next());
        let name = host_of(&String::from_utf8_lossy(name)).to_owned();
        Secure { settings: Arc::clone(settings), name, pair }
    }

    /// Returns the client configuration of handshakes. A certificate with an empty name is not used, as in nginx.
    pub(super) async fn client(&self) -> Result<Client, SecureError> {
        let SecureSettings { client, named, .. } = &*self.settings;
        let pair = self.pair.clone().filter(|(certificate, _)| !certificate.is_empty());
        let (Some(named), Some(pair)) = (named, pair) else { return Ok(client.clone()) };
        let loaded = named.load(vec![pair]).await.map_err(SecureError::Load)?;
        Ok(loaded.first().map_or_else(|| client.clone(), |identity| client.with_identity(identity)))
    }

    /// Verifies the certificate of an upstream.
    pub(super) fn judge(&self, session: &Session) -> Result<(), SecureError> {
        let Some(trust) = &self.settings.trust else { return Ok(()) };
        let chain = session.peer_certificates();
        let first = chain.first().ok_or(SecureError::NoCertificate)?;
        trust.judge(chain).map_err(SecureError::Distrust)?;
        match Certificate::from_der(first).is_some_and(|it| it.is_for(&self.name)) {
            true => Ok(()),
            false => Err(SecureError::Name(self.name.clone())),
        }
    }
}

/// Returns the host without its port, as in nginx; an address without brackets.
fn host_of(text: &str) -> &str {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    text.rsplit_once(':').map_or(text, |(host, _)| host)
}

impl fmt::Display for SecureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecureError::Handshake(HandshakeError::Tls(error)) => {
                write!(f, "SSL_do_handshake() failed (SSL: {error})")
            }
            SecureError::Handshake(error) => error.fmt(f),
            SecureError::Load(error) => error.fmt(f),
            SecureError::NoCertificate => f.write_str("upstream sent no SSL certificate"),
            SecureError::Distrust(Distrust { code, reason, .. }) => {
                write!(f, "upstream SSL certificate verify error: ({code}:{reason})")
            }
            SecureError::Name(name) => write!(f, "upstream SSL certificate does not match \"{name}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_brackets_are_not_part_of_a_name() {
        for (text, host) in
            [("a.b", "a.b"), ("a.b:443", "a.b"), ("[::1]:443", "::1"), ("[::1]", "::1"), ("", "")]
        {
            assert_eq!(host_of(text), host, "{text}");
        }
    }
}
