//! Chooses the server of a QUIC handshake by its ClientHello.

use std::sync::Arc;

use ::tls::quic::{Choose, Refusal};
use ::tls::{Hello, Server};

use exchange::tls;
use site::address::Address;
use site::config::Config;

/// The configuration and the addresses of a connection in its handshake.
pub(super) struct ServerChoice {
    /// The configuration at the beginning of the handshake.
    pub(super) config: Arc<Config>,
    /// Index of the listening address in it.
    pub(super) listen: usize,
    /// The address that the client connects to.
    pub(super) local: Address,
}

impl Choose for ServerChoice {
    fn choose(&self, hello: &Hello) -> Result<Server, Refusal> {
        let Some(listen) = self.config.http.listens.get(self.listen) else { return Err(Refusal::Rejected) };
        let default = listen.lookup(&self.local).0;
        let settings = |server| tls::settings_of(&self.config.http, server, listen, &self.local);
        let asked = tls::server_of(hello.name.as_deref(), listen, &self.local).0;
        if settings(asked).rejects {
            return Err(Refusal::Rejected);
        }
        // As over TCP, a server without a certificate uses the certificate of the default server of the address.
        let shown = [asked, default].into_iter().find(|server| settings(*server).server.is_some());
        let settings = settings(shown.ok_or(Refusal::NoCertificate)?);
        // `quinn-proto` has no handshake that waits for a file.
        let server = settings.server.clone().filter(|_| settings.named.is_none());
        server.ok_or(Refusal::NoCertificate)
    }
}
