//! The result of a connection's handshake, and the verdict on its client's certificate.

use std::rc::Rc;

use ::tls::stream::Handshaken;
use ::tls::x509::Distrust;
use ::tls::{Hello, Trust};

/// `ssl_verify_client`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is asked for.
    #[default]
    Off,
    /// One is needed.
    On,
    /// One that is shown has to be trusted.
    Optional,
    /// One that is shown need not come from a root that is known.
    OptionalNoCa,
}

/// The result of a handshake.
#[derive(Debug)]
pub struct Secured {
    /// The client's hello.
    pub hello: Hello,
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
    /// The client's certificate and those that came with it, in DER.
    pub client: Vec<Vec<u8>>,
    /// The verdict on it, where the server judges certificates and one was shown.
    pub verdict: Option<Result<(), Distrust>>,
}

impl Secured {
    /// Facts after a handshake.
    pub fn new(
        handshaken: &Handshaken,
        hello: Hello,
        client: VerifyClient,
        trust: Option<&Trust>,
    ) -> Rc<Secured> {
        handshaken.with_session(|session| {
            let chain = session.peer_certificates();
            let trust = trust.filter(|_| !chain.is_empty());
            let verdict = match client {
                VerifyClient::Off => None,
                _ => trust.map(|trust| trust.judge(chain)),
            };
            Rc::new(Secured {
                hello,
                protocol: session.protocol().unwrap_or_default(),
                cipher: session.cipher().unwrap_or_default(),
                curve: session.curve().unwrap_or_default(),
                alpn: session.alpn().unwrap_or_default().to_vec(),
                is_resumed: session.is_resumed(),
                client: chain.iter().map(|der| der.to_vec()).collect(),
                verdict,
            })
        })
    }
}
