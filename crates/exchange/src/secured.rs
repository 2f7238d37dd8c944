//! The result of a connection's handshake, and the verdict on its client's certificate.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

use ::tls::handshake::{Handshaken, Progress};
use ::tls::seen::Seen;
use ::tls::server::Offer;
use ::tls::x509::{Certificate, Distrust};
use ::tls::{Hello, Trust};

/// `ssl_verify_client`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is required.
    #[default]
    Off,
    /// One is needed.
    On,
    /// One that is shown has to be trusted.
    Optional,
    /// One that is shown need not come from a root that is known.
    OptionalNoCa,
}

/// The result of a handshake. It lives as long as its connection, which may be idle for long: no more is kept than requests
/// may ask for.
#[derive(Debug, Default)]
pub struct Secured {
    /// The server's name in the hello.
    pub name: Option<Box<str>>,
    /// The client's offer.
    pub offer: Offer,
    /// nginx's name of the version.
    pub protocol: &'static str,
    /// OpenSSL's name of the cipher suite.
    pub cipher: &'static str,
    /// OpenSSL's name of the group of the key exchange.
    pub curve: &'static str,
    /// The protocol that ALPN agreed on.
    pub alpn: Vec<u8>,
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// The identifier of the session, and the schemes of signatures.
    pub seen: Seen,
    /// The client's certificate.
    pub client: Option<Box<ClientCertificate>>,
    /// The verdict on it, where the server judges certificates and one was shown.
    pub verdict: Option<Result<(), Distrust>>,
    /// For the connection of early data, which is served before the handshake has ended.
    pub early: Option<Progress>,
}

/// The certificate of a client.
pub struct ClientCertificate {
    /// In DER.
    pub der: Vec<u8>,
    /// The same, read when a variable first asks for a part of it.
    parsed: OnceCell<Option<Certificate>>,
}

impl ClientCertificate {
    /// The certificate; nothing where it cannot be read.
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
    /// The facts known before the handshake continues: the hello.
    pub fn hello(hello: &Hello) -> Rc<Secured> {
        let name = hello.name.as_deref().map(Box::from);
        Rc::new(Secured { name, offer: Offer::of(hello), ..Secured::default() })
    }

    /// Facts after a handshake.
    pub fn new(
        handshaken: &Handshaken,
        hello: &Hello,
        client: VerifyClient,
        trust: Option<&Trust>,
    ) -> Rc<Secured> {
        let seen = handshaken.take_seen();
        handshaken.with_session(|session| {
            let chain = session.peer_certificates();
            let trust = trust.filter(|_| !chain.is_empty());
            let verdict = match client {
                VerifyClient::Off => None,
                _ => trust.map(|trust| trust.judge(chain)),
            };
            let own = chain.first();
            Rc::new(Secured {
                name: hello.name.as_deref().map(Box::from),
                offer: Offer::of(hello),
                protocol: session.protocol().unwrap_or_default(),
                cipher: session.cipher().unwrap_or_default(),
                curve: session.curve().unwrap_or_default(),
                alpn: session.alpn().unwrap_or_default().to_vec(),
                is_resumed: session.is_resumed(),
                seen,
                client: own
                    .map(|der| Box::new(ClientCertificate { der: der.to_vec(), parsed: OnceCell::new() })),
                verdict,
                early: session.may_answer_early().then(|| handshaken.progress()),
            })
        })
    }
}
