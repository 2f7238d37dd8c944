//! TLS for requests: the settings of a server block, and whether a request may be served on its connection.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use ::tls::x509::Distrust;
use ::tls::{Server, Trust};
use http::fields::Version;
use telemetry::Level;

use crate::certificates::NamedCertificates;
use crate::http2::Http2;
use crate::http3::{H3, HQ, Http3};
use crate::ocsp::Staple;
use crate::ocsp::client::ClientChecks;
use crate::request::Request;
use crate::secured::{Secured, VerifyClient};
use site::address::Address;
use site::config::{Http, ServerId, Settings};
use site::settings::listen::Listen;

/// The TLS settings of a server block, from the directives of module `http_ssl`.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Settings of handshakes; `None` if the block has no certificate.
    pub server: Option<Server>,
    /// `ssl_reject_handshake`
    pub rejects: bool,
    /// `ssl_verify_client`
    pub client: VerifyClient,
    /// Trust settings for clients' certificates.
    pub trust: Option<Arc<Trust>>,
    /// Certificates with variables in their names, which a handshake loads.
    pub named: Option<Arc<NamedCertificates>>,
    /// Certificates whose OCSP responses are fetched. Each handshake calls [`Staple::tend`] for them.
    pub staples: Vec<Arc<Staple>>,
    /// `ssl_ocsp`
    pub checks: Option<Arc<ClientChecks>>,
    /// For a block without certificate, which presents the certificate of the default server of its address: its settings for each
    /// default server whose handshakes need others than those above.
    pub borrowed: Vec<(ServerId, Tls)>,
}

impl Settings for Tls {}

/// Returns the TLS settings of a server for connections to this local address. They are the only settings that a handshake or a
/// request may use: a block without certificate has others on each address.
pub fn settings_of<'c>(block: &'c Http, server: ServerId, listen: &Listen, local: &Address) -> &'c Tls {
    let own = block.server_scope(server).of::<Tls>();
    if own.borrowed.is_empty() {
        return own;
    }
    let default = listen.lookup(local).0;
    own.borrowed.iter().find(|(lender, _)| *lender == default).map_or(own, |(_, borrowed)| borrowed)
}

/// Returns the server for this name in any spelling (SNI, or a host without port), and whether the name selected it.
pub fn server_of(name: Option<&str>, listen: &Listen, local: &Address) -> (ServerId, bool) {
    let (default, names) = listen.lookup(local);
    let name = name.unwrap_or_default();
    let lower = match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    };
    let named = if name.is_empty() { None } else { names.find(lower.as_bytes()).ok().flatten() };
    (named.as_ref().map_or(default, |named| named.server), named.is_some())
}

/// Checks whether the server of the request's host may serve the request on this connection. The error is the status of the
/// rejection.
pub fn admit(request: &Request, listen: &Listen) -> Result<(), u16> {
    if !request.conn.is_tls {
        return Ok(());
    }
    let Some(secured) = request.conn.secured.get() else {
        request.log(Level::Info, format_args!("client sent plain HTTP request to HTTPS port"));
        return Err(497);
    };
    // The client may repeat the request on another connection, whose handshake does not select HTTP/2 (RFC 9110 section 15.5.20).
    if request.head.version() == Version::Http2
        && !request.scope().of::<Http2>().enabled
        && !listen.is_http2(&request.conn.local)
    {
        request.log(
            Level::Info,
            format_args!("client requested a server without HTTP/2 on an HTTP/2 connection"),
        );
        return Err(421);
    }
    if request.conn.is_quic {
        let http3 = request.scope().of::<Http3>();
        let is_offered = (http3.enabled && secured.alpn == H3) || (http3.hq && secured.alpn == HQ);
        if !is_offered {
            request
                .log(Level::Info, format_args!("client requested a server without this protocol over QUIC"));
            return Err(421);
        }
    }
    let settings = settings_of(&request.config().http, request.server, listen, &request.conn.local);
    if settings.client == VerifyClient::Off {
        return Ok(());
    }
    // The handshake used the certificate settings of another server.
    let negotiated = server_of(secured.name.as_deref(), listen, &request.conn.local).0;
    if negotiated != request.server {
        let what = "client attempted to request the server name different from the one that was negotiated";
        request.log(Level::Info, format_args!("{what}"));
        return Err(421);
    }
    admit_client(settings, secured).map_err(|refusal| {
        request.log(Level::Info, format_args!("{refusal}"));
        match refusal {
            ClientRefusal::Invalid(_) => 495,
            ClientRefusal::Missing => 496,
        }
    })
}

/// The reason why a client is refused for its certificate, formatted with nginx's message.
#[derive(Debug)]
pub enum ClientRefusal<'a> {
    /// The certificate is not trusted.
    Invalid(&'a Distrust),
    /// The client sent no certificate.
    Missing,
}

impl fmt::Display for ClientRefusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientRefusal::Invalid(distrust) => {
                write!(f, "client SSL certificate verify error: {}", distrust.logged())
            }
            ClientRefusal::Missing => f.write_str("client sent no required SSL certificate"),
        }
    }
}

/// Checks the client's certificate by the settings of its server (`ssl_verify_client`).
pub fn admit_client<'a>(settings: &Tls, secured: &'a Secured) -> Result<(), ClientRefusal<'a>> {
    match &secured.verdict {
        Some(Err(distrust))
            if settings.client != VerifyClient::OptionalNoCa || !distrust.is_only_unknown_root() =>
        {
            Err(ClientRefusal::Invalid(distrust))
        }
        None if settings.client == VerifyClient::On => Err(ClientRefusal::Missing),
        _ => Ok(()),
    }
}
