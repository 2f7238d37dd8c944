//! Server blocks without certificate. As in nginx, such a block presents the certificate of the default server of its address, and
//! its handshakes have the settings of that server. The block's own directives are applied on top of them; nginx ignores most.
//!
//! Who may use a block is never inherited: client certificates are verified as the block itself or `http` says.

use conf::Error;
use exchange::acme::Acme;
use exchange::http2::Http2;
use exchange::http3::Http3;
use exchange::secured::VerifyClient;
use exchange::tls::Tls;
use site::config::{Http, ServerId};
use site::settings::listen::Listen;

use super::conf::{Conf, Notes, Offered};

/// Prepares the handshakes of blocks without certificate, for each address of a block.
pub(super) fn prepare(http: &mut Http) -> Result<(), Error> {
    let mut found = Vec::new();
    for listen in &http.listens {
        for servers in listen.tls_servers() {
            let lender = Block { http, id: servers.default, listens_for_http2: servers.http2 };
            if lender.conf().certificates.items().is_empty() {
                continue;
            }
            for &id in servers.all {
                let block = Block { id, ..lender };
                if let Some(tls) = block.borrow_from(&lender)? {
                    found.push((id, lender.id, tls));
                }
            }
        }
    }
    for (id, lender, tls) in found {
        let root = http.servers[id.0 as usize].root;
        let borrowed = &mut http.locations[root.0 as usize].scope.make_mut::<Tls>().borrowed;
        // Another address may have the same default server.
        if borrowed.iter().all(|(known, _)| *known != lender) {
            borrowed.push((lender, tls));
        }
    }
    Ok(())
}

/// A server block at an address.
#[derive(Clone, Copy)]
struct Block<'h> {
    http: &'h Http,
    id: ServerId,
    listens_for_http2: bool,
}

impl Block<'_> {
    fn scope(&self) -> &site::config::Scope {
        let root = self.http.servers[self.id.0 as usize].root;
        &self.http.locations[root.0 as usize].scope
    }

    fn conf(&self) -> &Conf {
        self.scope().of::<Conf>()
    }

    /// Returns the protocols that the block offers at this address.
    fn offered(&self) -> Offered {
        let is_quic = |listen: &&Listen| listen.spec.addr.is_quic() && listen.has_server(self.id);
        let quic = match self.http.listens.iter().any(|listen| is_quic(&listen)) {
            true => self.scope().of::<Http3>().alpn(),
            false => Vec::new(),
        };
        Offered { http2: self.listens_for_http2 || self.scope().of::<Http2>().enabled, quic }
    }

    /// Returns the settings of a block with the certificate of another block; `None` if the block has a certificate, or if all its
    /// handshakes are the same as those of the other block.
    fn borrow_from(&self, lender: &Block<'_>) -> Result<Option<Tls>, Error> {
        let (own, other) = (self.conf(), lender.conf());
        if !own.certificates.items().is_empty() || own.rejects {
            return Ok(None);
        }
        let is_verifying = [own, other].iter().any(|conf| conf.verify != VerifyClient::Off);
        if own.written.is_empty() && !is_verifying && self.offered() == lender.offered() {
            return Ok(None);
        }
        let server = &self.http.servers[self.id.0 as usize];
        let conf = own.over(other);
        let prepared =
            conf.prepare(std::slice::from_ref(&server.name), &self.offered(), lender.scope().of::<Acme>());
        let (tls, _) = prepared.map_err(|message| Error::at_known(server.position.as_ref(), message))?;
        Ok(Some(tls))
    }
}

impl Conf {
    /// Returns the settings of the handshakes of this block with the certificate of `lender`. Each setting has a line here, so that
    /// a new setting cannot be forgotten.
    fn over(&self, lender: &Conf) -> Conf {
        let own = self.clone();
        let lent = lender.clone();
        let is_written = |name: &str| self.written.iter().any(|written| written == name);
        macro_rules! written {
            ($field:ident, $name:literal) => {
                if is_written($name) { own.$field } else { lent.$field }
            };
        }
        Conf {
            // The certificate, and the data to load it.
            certificates: lent.certificates,
            keys: lent.keys,
            passwords: lent.passwords,
            certificate_cache: lent.certificate_cache,
            prefix: lent.prefix,
            expiries: Vec::new(),
            // Access.
            verify: own.verify,
            verify_depth: own.verify_depth,
            client_certificate: own.client_certificate,
            trusted_certificate: own.trusted_certificate,
            crl: own.crl,
            ocsp: own.ocsp,
            ocsp_responder: own.ocsp_responder,
            ocsp_cache: own.ocsp_cache,
            rejects: own.rejects,
            alpn: written!(alpn, "ssl_alpn"),
            // nginx uses the size of the block too.
            buffer_size: own.buffer_size,
            versions: written!(versions, "ssl_protocols"),
            versions_block: own.versions_block,
            ciphers: written!(ciphers, "ssl_ciphers"),
            groups: written!(groups, "ssl_ecdh_curve"),
            prefers_own_ciphers: written!(prefers_own_ciphers, "ssl_prefer_server_ciphers"),
            commands: written!(commands, "ssl_conf_command"),
            early_data: written!(early_data, "ssl_early_data"),
            compresses_certificates: written!(compresses_certificates, "ssl_certificate_compression"),
            cache: written!(cache, "ssl_session_cache"),
            tickets: written!(tickets, "ssl_session_tickets"),
            ticket_keys: written!(ticket_keys, "ssl_session_ticket_key"),
            session_timeout: written!(session_timeout, "ssl_session_timeout"),
            stapling: written!(stapling, "ssl_stapling"),
            stapling_span: None,
            notes: Notes::default(),
            stapling_responder: written!(stapling_responder, "ssl_stapling_responder"),
            verifies_stapling: written!(verifies_stapling, "ssl_stapling_verify"),
            stapling_file: written!(stapling_file, "ssl_stapling_file"),
            written: Vec::new(),
        }
    }
}
