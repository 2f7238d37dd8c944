//! The TLS settings of the clients.

use tls::client::ClientSettings;
use tls::server::Versions;
use tls::{Client, ciphers, groups};

use crate::failure::Failure;

/// Returns a client of TLS 1.3 that offers this protocol. It does not verify certificates. A URL with an address has no name to send.
pub(crate) fn tls_client(resumes: bool, protocol: &[u8]) -> Result<Client, Failure> {
    let settings = ClientSettings {
        identity: None,
        versions: Versions { tls12: false, tls13: true },
        suites: Vec::new(),
        suites_13: ciphers::all_13(),
        // A group that all servers support.
        groups: groups::parse("X25519").map(|groups| groups.supported).unwrap_or_default(),
        reuses_sessions: resumes,
        sends_name: true,
        alpn: vec![protocol.to_vec()],
    };
    Client::new(settings).map_err(|error| Failure::Other(format!("TLS: {error}")))
}
