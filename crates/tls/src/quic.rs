//! Handshakes of connections over QUIC (RFC 9001), for `quinn-proto`. As over TCP, the ClientHello selects the server block, whose
//! settings the handshake then uses.
//!
//! ```text
//!   CRYPTO frames --> ClientHello incomplete --complete--> choice by its name --> session of rustls
//!                                                              `--> alert
//! ```
//! Main types: [`Handshakes`], the configuration for one connection; [`Facts`], its result.

use std::any::Any;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::{hkdf, hmac};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey, HmacKey, KeyPair, Keys, PacketKey, ServerConfig,
    Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::HandshakeKind;
use rustls::pki_types::CertificateDer;
use rustls::quic::{KeyChange, Secrets, ServerConnection, Version};

use crate::seen::{self, Seen};
use crate::server::{
    HANDSHAKE_RECORD, Hello, HelloProgress, INTERNAL_ERROR, Server, UNRECOGNIZED_NAME, read_hello,
};
use crate::session::{RECORD_BYTES_MAX, TlsError};

/// The version of QUIC (RFC 9000 section 15).
pub const VERSION: u32 = 1;

/// Maximum number of bytes of a ClientHello, which is passed to the parser in one record.
const HELLO_BYTES_MAX: usize = RECORD_BYTES_MAX;

/// The type of a ClientHello (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;

/// The alerts `unexpected_message` and `no_application_protocol` (RFC 8446 section 6.2, RFC 7301 section 3.2).
const UNEXPECTED_MESSAGE: u8 = 10;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Reason why no server was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The requested server refuses handshakes (`ssl_reject_handshake`).
    Rejected,
    /// The server has no certificate for this handshake.
    NoCertificate,
}

/// Chooses the server by the ClientHello.
pub trait Choose: Send + Sync {
    /// Returns the settings of the handshake.
    fn choose(&self, hello: &Hello) -> Result<Server, Refusal>;
}

/// The handshakes of connections whose server is chosen in the same way.
pub struct Handshakes {
    choose: Arc<dyn Choose>,
    /// Makes the keys of Initial packets, which depend on no certificate.
    initial: Arc<QuicServerConfig>,
}

/// Maker of [`Handshakes`], with the keys that all of them share.
#[derive(Clone)]
pub struct InitialKeys(Arc<QuicServerConfig>);

impl InitialKeys {
    /// Prepares the keys of Initial packets.
    pub fn new() -> Result<InitialKeys, TlsError> {
        let general = |_| TlsError::new(rustls::Error::General("no suite for Initial packets".to_owned()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(TlsError::new)?;
        let resolver = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
        let config = builder.with_no_client_auth().with_cert_resolver(resolver);
        Ok(InitialKeys(Arc::new(QuicServerConfig::try_from(config).map_err(general)?)))
    }

    /// Returns the configuration for connections whose server is chosen by `choose`.
    pub fn handshakes(&self, choose: Arc<dyn Choose>) -> Handshakes {
        Handshakes { choose, initial: Arc::clone(&self.0) }
    }
}

impl ServerConfig for Handshakes {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.initial.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initial.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        let mut parameters = Vec::new();
        params.write(&mut parameters);
        Box::new(QuicSession {
            handshakes: self,
            version,
            parameters,
            hello_bytes: Vec::new(),
            hello: Hello::default(),
            offers_early_data: false,
            accepts_early_data: AtomicBool::new(false),
            connection: None,
            next_secrets: None,
            seen: Seen::default(),
            is_announced: false,
        })
    }
}

/// The facts of a handshake that requests need.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The ClientHello.
    pub hello: Hello,
    /// nginx's name of the version.
    pub protocol: &'static str,
    /// OpenSSL's name of the cipher suite.
    pub cipher: &'static str,
    /// OpenSSL's name of the key exchange group.
    pub curve: &'static str,
    /// The protocol that was negotiated by ALPN.
    pub alpn: Vec<u8>,
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// The session identifier and the signature schemes.
    pub seen: Seen,
    /// Whether the client has offered early data.
    pub offers_early_data: bool,
    /// Whether the server accepts the early data.
    pub accepts_early_data: bool,
    /// The idle timeout of the client; `None` if it has none.
    pub idle_timeout: Option<Duration>,
    /// The client's certificate chain.
    pub chain: Vec<CertificateDer<'static>>,
}

/// The extension `early_data` (RFC 8446 section 4.2.10).
const EARLY_DATA: u16 = 42;

/// Whether a valid ClientHello (RFC 8446 section 4.1.2) has an extension.
fn has_extension(hello: &[u8], wanted: u16) -> bool {
    let search = || {
        // The header of the message, the version and the random number.
        let mut rest = hello.get(4 + 2 + 32..)?;
        // The session ID, the suites and the compression methods, each after its length.
        for len_bytes in [1, 2, 1] {
            let len = take_int(&mut rest, len_bytes)?;
            rest = rest.get(len..)?;
        }
        take_int(&mut rest, 2)?;
        while !rest.is_empty() {
            let (kind, len) = (take_int(&mut rest, 2)?, take_int(&mut rest, 2)?);
            if kind == usize::from(wanted) {
                return Some(());
            }
            rest = rest.get(len..)?;
        }
        None
    };
    search().is_some()
}

/// Reads an integer of this number of bytes.
fn take_int(bytes: &mut &[u8], len: usize) -> Option<usize> {
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(number.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

/// The ID of `max_idle_timeout` (RFC 9000 section 18.2).
const MAX_IDLE_TIMEOUT: u64 = 1;

/// Returns the idle timeout in valid transport parameters, which `quinn-proto` does not pass on. `None` if it is missing or 0.
fn idle_timeout(mut parameters: &[u8]) -> Option<Duration> {
    while !parameters.is_empty() {
        let (id, len) = (read_number(&mut parameters)?, read_number(&mut parameters)?);
        let (mut value, rest) = parameters.split_at_checked(usize::try_from(len).ok()?)?;
        if id == MAX_IDLE_TIMEOUT {
            return read_number(&mut value).filter(|ms| *ms > 0).map(Duration::from_millis);
        }
        parameters = rest;
    }
    None
}

/// Reads an integer of variable length (RFC 9000 section 16).
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let first = u64::from(number[0] & 0x3f);
    Some(number[1..].iter().fold(first, |value, byte| value << 8 | u64::from(*byte)))
}

/// The TLS session of one connection.
struct QuicSession {
    handshakes: Arc<Handshakes>,
    version: u32,
    /// The server's transport parameters.
    parameters: Vec<u8>,
    /// The received bytes of the ClientHello, until it is complete.
    hello_bytes: Vec<u8>,
    hello: Hello,
    /// Whether the ClientHello has the extension `early_data`, and whether there are keys for early data.
    offers_early_data: bool,
    accepts_early_data: AtomicBool,
    /// The session, once the server is chosen.
    connection: Option<ServerConnection>,
    next_secrets: Option<Secrets>,
    seen: Seen,
    /// Whether `quinn-proto` was told that [`Facts`] are available.
    is_announced: bool,
}

/// Returns the error of a handshake that ends with this alert.
fn failed(alert: u8, reason: impl ToString) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(alert), frame: None, reason: reason.to_string() }
}

impl QuicSession {
    /// Adds bytes of the ClientHello. Returns all its bytes when it is complete.
    fn add_hello(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, TransportError> {
        self.hello_bytes.extend_from_slice(bytes);
        let received = &self.hello_bytes;
        let Some(&[kind, high, middle, low]) = received.first_chunk() else { return Ok(None) };
        if kind != CLIENT_HELLO {
            return Err(failed(UNEXPECTED_MESSAGE, "no ClientHello"));
        }
        let len = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
        if len > HELLO_BYTES_MAX {
            return Err(failed(UNEXPECTED_MESSAGE, "the ClientHello is too long"));
        }
        let is_complete = received.len() >= len;
        Ok(is_complete.then(|| std::mem::take(&mut self.hello_bytes)))
    }

    /// Chooses the server and begins the session.
    fn begin(&mut self, hello: &[u8]) -> Result<ServerConnection, TransportError> {
        let len = u16::try_from(hello.len()).map_err(|_| failed(UNEXPECTED_MESSAGE, "too long"))?;
        let [high, low] = len.to_be_bytes();
        // The parser needs the record layer, which QUIC does not have.
        let record = [&[HANDSHAKE_RECORD, 3, 1, high, low], hello].concat();
        self.hello = match read_hello(&record) {
            HelloProgress::Complete(hello) => hello,
            HelloProgress::More => return Err(failed(UNEXPECTED_MESSAGE, "invalid ClientHello")),
            HelloProgress::Failed(error, alert) => {
                return Err(failed(alert.last().copied().unwrap_or(INTERNAL_ERROR), error));
            }
        };
        self.offers_early_data = has_extension(hello, EARLY_DATA);
        let server = self.handshakes.choose.choose(&self.hello).map_err(|refusal| match refusal {
            Refusal::Rejected => failed(UNRECOGNIZED_NAME, "SSL handshake rejected"),
            Refusal::NoCertificate => {
                failed(INTERNAL_ERROR, "the server has no certificate for this handshake")
            }
        })?;
        let Some(config) = server.quic().filter(|_| !self.hello.alpn.is_empty()) else {
            return Err(failed(NO_APPLICATION_PROTOCOL, "no application protocol"));
        };
        let parameters = std::mem::take(&mut self.parameters);
        ServerConnection::new(Arc::clone(config), Version::V1, parameters)
            .map_err(|error| failed(INTERNAL_ERROR, error))
    }
}

impl Session for QuicSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, _: Side) -> Keys {
        let keys = self.handshakes.initial.initial_keys(self.version, dst_cid);
        keys.unwrap_or_else(|_| unreachable!("the version was accepted with the first packet"))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let connection = self.connection.as_ref()?;
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        let group = connection.negotiated_key_exchange_group().map(|group| group.name());
        Some(Box::new(Facts {
            hello: self.hello.clone(),
            protocol: "TLSv1.3",
            cipher: suite.and_then(crate::ciphers::name_of).unwrap_or_default(),
            curve: group.and_then(crate::groups::name_of).unwrap_or_default(),
            alpn: connection.alpn_protocol().unwrap_or_default().to_vec(),
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            seen: self.seen,
            offers_early_data: self.offers_early_data,
            accepts_early_data: self.accepts_early_data.load(Ordering::Relaxed),
            idle_timeout: connection.quic_transport_parameters().and_then(idle_timeout),
            chain: connection.peer_certificates().unwrap_or_default().to_vec(),
        }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.connection.as_ref()?.zero_rtt_keys()?;
        self.accepts_early_data.store(true, Ordering::Relaxed);
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let begun = self.connection.is_none();
        let hello = if begun { self.add_hello(bytes)? } else { None };
        let bytes = match (&hello, begun) {
            (Some(hello), _) => {
                self.connection = Some(self.begin(hello)?);
                hello
            }
            (None, true) => return Ok(false),
            (None, false) => bytes,
        };
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let read = seen::within(&mut self.seen, || connection.read_hs(bytes));
        if let Err(error) = read {
            let alert = connection.alert().map_or(INTERNAL_ERROR, u8::from);
            return Err(failed(alert, error));
        }
        Ok(!std::mem::replace(&mut self.is_announced, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) =
            self.connection.as_ref().and_then(|connection| connection.quic_transport_parameters())
        else {
            return Ok(None);
        };
        let read = TransportParameters::read(Side::Server, &mut Cursor::new(bytes));
        read.map(Some).map_err(TransportError::from)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let connection = self.connection.as_mut()?;
        let keys = match seen::within(&mut self.seen, || connection.write_hs(buf))? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next_secrets = Some(next);
                keys
            }
        };
        Some(Keys {
            header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
            packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next_secrets.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only servers send Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // This server has no use for exported keys.
        Err(ExportKeyingMaterialError)
    }
}

/// Length of the [`shared_secret`].
const SHARED_SECRET_BYTES: usize = 32;

/// The keys of a server for address validation tokens and stateless resets (RFC 9000 sections 8.1 and 10.3), derived from one secret
/// (`quic_host_key`).
#[derive(Clone)]
pub struct HostKey(Vec<u8>);

impl HostKey {
    /// Returns the keys for a secret.
    pub fn new(secret: &[u8]) -> HostKey {
        HostKey(secret.to_vec())
    }

    /// Returns keys for the [`shared_secret`].
    pub fn shared() -> HostKey {
        HostKey(shared_secret().to_vec())
    }

    /// Returns the key of tokens.
    pub fn tokens(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"ringroad quic tokens").extract(&self.0))
    }

    /// Returns the key of stateless resets.
    pub fn resets(&self) -> Arc<dyn HmacKey> {
        let own = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let key = hmac::sign(&own, b"ringroad quic stateless resets");
        Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()))
    }
}

static SHARED_SECRET: OnceLock<Vec<u8>> = OnceLock::new();

/// Returns the secret of servers without `quic_host_key`: a random one, unless [`set_shared_secret`] was called before.
pub fn shared_secret() -> &'static [u8] {
    SHARED_SECRET.get_or_init(|| {
        let mut secret = vec![0; SHARED_SECRET_BYTES];
        fill_random(&mut secret);
        secret
    })
}

/// Returns a key for another purpose, derived from [`shared_secret`]: all worker processes of a master have the same one.
pub fn shared_key(purpose: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, shared_secret());
    let mut context = hmac::Context::with_key(&key);
    context.update(b"ringroad key\0");
    context.update(purpose);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

/// Sets the secret in a worker process to that of its master: the stateless resets of each worker process are then valid for connections
/// of the others. Without effect if [`shared_secret`] was called before, or if the length is wrong.
pub fn set_shared_secret(secret: &[u8]) {
    if secret.len() == SHARED_SECRET_BYTES {
        let _ = SHARED_SECRET.set(secret.to_vec());
    }
}

/// Fills a buffer with random bytes, such as those of connection IDs.
///
/// # Panics
/// If the kernel has no random numbers, without which there is no TLS either.
pub fn fill_random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the kernel has random numbers");
}
