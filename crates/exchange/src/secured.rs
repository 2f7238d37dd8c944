//! The result of a connection's TLS handshake, and the verification result of its client's certificate.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

use ::tls::handshake::{Handshaken, Progress};
use ::tls::quic::Facts;
use ::tls::seen::Seen;
use ::tls::server::Offer;
use ::tls::x509::{Certificate, Distrust};
use ::tls::{CertificateDer, Hello, Trust};

/// `ssl_verify_client`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is required.
    #[default]
    Off,
    /// A valid certificate is required.
    On,
    /// If a certificate is sent, it has to be trusted.
    Optional,
    /// If a certificate is sent, its root CA may be unknown.
    OptionalNoCa,
}

/// The result of a handshake. It exists until the connection ends, and connections may be idle for long. So it contains
/// only data that requests can use.
#[derive(Debug, Default)]
pub struct Secured {
    /// The server name (SNI) of the ClientHello, in the spelling of the client.
    pub name: Option<Box<str>>,
    /// The versions, ciphers and groups that the client offered.
    pub offer: Offer,
    /// nginx's name of the protocol version.
    pub protocol: &'static str,
    /// OpenSSL's name of the cipher suite.
    pub cipher: &'static str,
    /// OpenSSL's name of the key exchange group.
    pub curve: &'static str,
    /// The protocol that ALPN agreed on.
    pub alpn: Vec<u8>,
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// The session identifier, and the signature schemes.
    pub seen: Seen,
    /// The client's certificate.
    pub client: Option<Box<ClientCertificate>>,
    /// The verification result, if the server verifies certificates and the client sent one.
    pub verdict: Option<Result<(), Distrust>>,
    /// Number of the configuration version of the verification.
    pub config_version: u64,
    /// The progress of the handshake, for a connection with early data, which is served before the handshake ends.
    pub early: Option<Progress>,
}

/// The certificate of a client.
pub struct ClientCertificate {
    /// The certificate in DER.
    pub der: Vec<u8>,
    /// The parsed certificate, created when a variable first needs it.
    parsed: OnceCell<Option<Certificate>>,
}

impl ClientCertificate {
    /// Returns the parsed certificate; `None` if it is invalid.
    pub fn parsed(&self) -> Option<&Certificate> {
        self.parsed.get_or_init(|| Certificate::from_der(&self.der)).as_ref()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("bytes", &self.der.len()).finish_non_exhaustive()
    }
}

impl Secured {
    /// Returns the facts known from the ClientHello, before the handshake continues.
    pub fn hello(hello: &Hello) -> Rc<Secured> {
        let name = hello.sent_name.as_deref().map(Box::from);
        Rc::new(Secured { name, offer: Offer::of(hello), ..Secured::default() })
    }

    /// Collects the facts of a handshake. `refused` is the verdict of `ssl_ocsp` if it refuses the client's certificate.
    pub fn new(
        handshaken: &Handshaken,
        hello: &Hello,
        client: VerifyClient,
        trust: Option<&Trust>,
        refused: Option<Distrust>,
        config_version: u64,
    ) -> Rc<Secured> {
        let seen = handshaken.take_seen();
        handshaken.with_session(|session| {
            let chain = session.peer_certificates();
            Rc::new(Secured {
                name: hello.sent_name.as_deref().map(Box::from),
                offer: Offer::of(hello),
                protocol: session.protocol().unwrap_or_default(),
                cipher: session.cipher().unwrap_or_default(),
                curve: session.curve().unwrap_or_default(),
                alpn: session.alpn().unwrap_or_default().to_vec(),
                is_resumed: session.is_resumed(),
                seen,
                client: client_certificate(chain),
                verdict: verdict(client, trust, chain, refused),
                config_version,
                early: session.may_respond_early().then(|| handshaken.progress()),
            })
        })
    }

    /// Collects the facts of a handshake over QUIC, which is complete unless there is an `early`. `refused` as for [`Secured::new`].
    pub fn over_quic(
        facts: Facts,
        early: Option<Progress>,
        client: VerifyClient,
        trust: Option<&Trust>,
        refused: Option<Distrust>,
        config_version: u64,
    ) -> Rc<Secured> {
        let Facts { hello, protocol, cipher, curve, alpn, is_resumed, seen, chain, .. } = facts;
        Rc::new(Secured {
            name: hello.sent_name.as_deref().map(Box::from),
            offer: Offer::of(&hello),
            protocol,
            cipher,
            curve,
            alpn,
            is_resumed,
            seen,
            client: client_certificate(&chain),
            verdict: verdict(client, trust, &chain, refused),
            config_version,
            early,
        })
    }
}

/// Returns the client's certificate, the first of its chain.
fn client_certificate(chain: &[CertificateDer<'static>]) -> Option<Box<ClientCertificate>> {
    let own = chain.first();
    own.map(|der| Box::new(ClientCertificate { der: der.to_vec(), parsed: OnceCell::new() }))
}

/// Returns the verification result, if the server verifies certificates and the client sent one.
fn verdict(
    client: VerifyClient,
    trust: Option<&Trust>,
    chain: &[CertificateDer<'static>],
    refused: Option<Distrust>,
) -> Option<Result<(), Distrust>> {
    let trust = trust.filter(|_| !chain.is_empty());
    match client {
        VerifyClient::Off => None,
        _ => trust.map(|trust| refused.map_or_else(|| trust.judge(chain), Err)),
    }
}
