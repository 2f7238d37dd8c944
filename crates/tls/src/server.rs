//! The server side of TLS: prepares handshakes from settings, and parses the ClientHello that selects a server block.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::CertificateDer;
use rustls::server::{
    Acceptor, ClientHello, NoServerSessionStorage, ResolvesServerCert, StoresServerSessions,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DistinguishedName, NamedGroup, PeerIncompatible, ProtocolVersion, SignatureAlgorithm,
    SignatureScheme, SupportedCipherSuite, version,
};

use crate::certificate::Identity;
use crate::certificate_compression::{compressors, decompressors};
use crate::session::{Session, TlsError};
use crate::sessions::{ServerSessions, SessionCache};
use crate::tickets::{TicketKeys, Tickets};
use crate::verify::AnyClient;

/// Maximum number of accepted bytes of early data (`ssl_early_data`); nginx has the same limit.
const EARLY_DATA_BYTES_MAX: u32 = 16 << 10;

/// Size in bytes of the session cache for early data, if the server has no `ssl_session_cache`.
const OWN_SESSIONS_BYTES: usize = 4 << 20;

/// The ALPN protocol of validation connections of a CA (RFC 8737 section 6.2).
pub const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// The content type of records with handshake messages (RFC 8446 section 5.1).
pub(crate) const HANDSHAKE_RECORD: u8 = 22;

/// The enabled versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// TLS 1.2
    pub tls12: bool,
    /// TLS 1.3
    pub tls13: bool,
}

impl Versions {
    /// Returns the enabled versions in rustls' form.
    pub(crate) fn list(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        let both = [(self.tls13, &version::TLS13), (self.tls12, &version::TLS12)];
        both.into_iter().filter_map(|(on, version)| on.then_some(version)).collect()
    }
}

/// The TLS settings of a server block.
#[derive(Debug)]
pub struct ServerSettings {
    /// `ssl_certificate` with its private key: one for each key type
    pub identities: Vec<Identity>,
    /// Certificates as in `identities`, whose OCSP responses are fetched while the server runs (`ssl_stapling`).
    pub stapled: Vec<Arc<Slot>>,
    /// Certificates that are replaced while the server runs.
    pub slots: Vec<Arc<Slot>>,
    /// `ssl_protocols`
    pub versions: Versions,
    /// `ssl_ciphers`: the suites of TLS 1.2
    pub suites: Vec<SupportedCipherSuite>,
    /// `Ciphersuites` of `ssl_conf_command`: the suites of TLS 1.3
    pub suites_13: Vec<SupportedCipherSuite>,
    /// `ssl_ecdh_curve`
    pub groups: Vec<&'static dyn SupportedKxGroup>,
    /// `ssl_prefer_server_ciphers`
    pub prefers_own_ciphers: bool,
    /// Whether ChaCha20 is used with clients that prefer it, even if the server's order of suites differs.
    pub prioritizes_chacha: bool,
    /// The CAs whose names are sent to clients with the request for a certificate; `None` if clients need no
    /// certificate.
    pub client_authorities: Option<Vec<CertificateDer<'static>>>,
    /// Protocols that are accepted by ALPN, in order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// The same for connections over QUIC; empty if the server has none.
    pub quic_alpn: Vec<Vec<u8>>,
    /// `ssl_session_tickets` with their keys
    pub tickets: Option<Arc<TicketKeys>>,
    /// `ssl_session_cache`
    pub sessions: Option<Arc<SessionCache>>,
    /// `ssl_session_timeout`
    pub session_timeout: Duration,
    /// Identifier of the server block. A session can be resumed only with the server block that created it.
    pub scope: Vec<u8>,
    /// `ssl_buffer_size`: maximum number of plaintext bytes per record
    pub record_bytes: usize,
    /// `ssl_early_data`
    pub early_data: bool,
    /// `ssl_certificate_compression`
    pub compresses_certificates: bool,
}

/// The prepared configuration of the handshakes of a server block.
#[derive(Clone, Debug)]
pub struct Server {
    config: Arc<rustls::ServerConfig>,
    /// The configuration for clients that prefer ChaCha20.
    chacha_first: Option<Arc<rustls::ServerConfig>>,
    /// The configuration for connections over QUIC.
    quic: Option<Arc<rustls::ServerConfig>>,
    identities: Arc<Identities>,
    record_bytes: usize,
}

/// Returns the library's cryptography, restricted to these suites and groups.
pub(crate) fn provider(
    suites: &[SupportedCipherSuite],
    suites_13: &[SupportedCipherSuite],
    groups: &[&'static dyn SupportedKxGroup],
) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = [suites_13, suites].concat();
    provider.kx_groups = groups.to_vec();
    Arc::new(provider)
}

impl Server {
    /// Prepares the handshakes of a server block.
    pub fn new(settings: ServerSettings) -> Result<Server, TlsError> {
        let identities = Arc::new(Identities::new(&settings));
        let sessions = Sessions::of(&settings);
        let versions = settings.versions;
        let order = (&settings.suites[..], &settings.suites_13[..], versions);
        let config = configure(&settings, order, &identities, &sessions)?;
        // In OpenSSL this option has an effect only together with `ssl_prefer_server_ciphers`.
        let has_second_order = settings.prioritizes_chacha && settings.prefers_own_ciphers;
        let chacha_first = has_second_order.then(|| {
            let (suites, suites_13) = (chacha_first(&settings.suites), chacha_first(&settings.suites_13));
            configure(&settings, (&suites, &suites_13, versions), &identities, &sessions)
        });
        let chacha_first = chacha_first.transpose()?;
        let quic =
            if settings.quic_alpn.is_empty() { None } else { Some(configure_quic(&settings, &identities)?) };
        Ok(Server { config, chacha_first, quic, identities, record_bytes: settings.record_bytes })
    }

    /// Creates a server that proves to a CA that this server controls a name (`tls-alpn-01`, RFC 8737). It has the
    /// certificate that the CA expects, and no settings for normal clients.
    pub fn for_challenge(identity: &Identity) -> Result<Server, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::new)?;
        let identities = Arc::new(Identities::sorted(vec![Shown::of(identity)], Vec::new()));
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&identities) as _);
        config.alpn_protocols = vec![ACME_PROTOCOL.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let record_bytes = crate::session::RECORD_BYTES_MAX;
        Ok(Server { config: Arc::new(config), chacha_first: None, quic: None, identities, record_bytes })
    }

    /// Whether a full handshake with this client needs an RSA signature, which costs ten times as much as an ECDSA
    /// signature.
    pub fn signs_by_rsa(&self, hello: &Hello) -> bool {
        let chosen = self.identities.choose(&hello.schemes, &hello.suites);
        chosen.is_some_and(|key| key.key.algorithm() == SignatureAlgorithm::RSA)
    }

    /// Returns a copy of the server with these certificates, which have precedence over its own certificates.
    pub fn with_identities(&self, identities: &[Identity]) -> Server {
        let found = identities.iter().map(Shown::of);
        let own = found.chain(self.identities.own.iter().cloned()).collect();
        let identities = Arc::new(Identities::sorted(own, self.identities.slots.clone()));
        let with = |config: &Arc<rustls::ServerConfig>| {
            let mut config = rustls::ServerConfig::clone(config);
            config.cert_resolver = Arc::clone(&identities) as _;
            // rustls' cache has space for four compressed chains. With more names, each handshake would miss the cache and
            // compress with the best quality.
            config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
            Arc::new(config)
        };
        let (config, chacha_first) = (with(&self.config), self.chacha_first.as_ref().map(with));
        let quic = self.quic.as_ref().map(with);
        Server { config, chacha_first, quic, identities, record_bytes: self.record_bytes }
    }

    /// Whether the server supports TLS 1.3.
    pub fn has_tls13(&self) -> bool {
        self.config.crypto_provider().cipher_suites.iter().any(|suite| suite.tls13().is_some())
    }

    /// Returns the configuration for connections over QUIC; `None` if the server has no protocol for them.
    pub(crate) fn quic(&self) -> Option<&Arc<rustls::ServerConfig>> {
        self.quic.as_ref()
    }

    /// Creates a session with a client before its first byte.
    pub fn session(&self) -> Result<Session, TlsError> {
        Session::server(&self.config, self.record_bytes)
    }

    /// Creates a session with the client that sent this ClientHello. The caller must pass the bytes of the ClientHello
    /// to the session again.
    pub fn session_for(&self, hello: &Hello) -> Result<Session, TlsError> {
        let likes_chacha = hello.suites.first().is_some_and(|suite| is_chacha(*suite));
        let config = self.chacha_first.as_ref().filter(|_| likes_chacha).unwrap_or(&self.config);
        Session::server(config, self.record_bytes)
    }
}

/// The storage of sessions.
struct Sessions {
    storage: Arc<dyn StoresServerSessions>,
    tickets: Option<Arc<Tickets>>,
}

impl Sessions {
    fn of(settings: &ServerSettings) -> Sessions {
        Sessions::of_scope(settings, settings.scope.clone())
    }

    /// Returns the storage of sessions that only connections of this scope can resume.
    fn of_scope(settings: &ServerSettings, scope: Vec<u8>) -> Sessions {
        let timeout = settings.session_timeout;
        let own = || settings.early_data.then(|| SessionCache::new(OWN_SESSIONS_BYTES));
        let storage: Arc<dyn StoresServerSessions> = match settings.sessions.clone().or_else(own) {
            Some(cache) => Arc::new(ServerSessions { cache, scope: scope.clone(), timeout }),
            None => Arc::new(NoServerSessionStorage {}),
        };
        // Early data needs sessions that can be used only once, which sessions in tickets cannot guarantee.
        let keys = settings.tickets.clone().filter(|_| !settings.early_data);
        let tickets = keys.map(|keys| Arc::new(Tickets { keys, scope, lifetime: timeout }));
        Sessions { storage, tickets }
    }
}

/// Creates rustls' configuration for handshakes with these suites of TLS 1.2 and 1.3, and these versions.
fn configure(
    settings: &ServerSettings,
    (suites, suites_13, versions): (&[SupportedCipherSuite], &[SupportedCipherSuite], Versions),
    identities: &Arc<Identities>,
    sessions: &Sessions,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = provider(suites, suites_13, &settings.groups);
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&versions.list()).map_err(TlsError::new)?;
    let builder = match &settings.client_authorities {
        Some(authorities) => builder.with_client_cert_verifier(AnyClient::new(names_of(authorities))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::clone(identities) as _);
    config.ignore_client_order = settings.prefers_own_ciphers;
    config.alpn_protocols = settings.alpn.clone();
    config.cert_decompressors = decompressors();
    config.cert_compressors = if settings.compresses_certificates { compressors() } else { Vec::new() };
    config.max_fragment_size = Some(settings.record_bytes.clamp(512, crate::session::RECORD_BYTES_MAX) + 5);
    config.session_storage = Arc::clone(&sessions.storage);
    if let Some(tickets) = &sessions.tickets {
        config.ticketer = Arc::clone(tickets) as _;
    }
    if settings.early_data {
        config.max_early_data_size = EARLY_DATA_BYTES_MAX;
        // Responses to early data are sent before the handshake is complete. rustls does not allow this if clients must
        // send certificates.
        config.send_half_rtt_data = true;
    }
    Ok(Arc::new(config))
}

/// Creates rustls' configuration for handshakes over QUIC, which has TLS 1.3 only (RFC 9001 section 4.2). Its sessions cannot be resumed over TCP,
/// and reversely, because the limits of early data differ.
fn configure_quic(
    settings: &ServerSettings,
    identities: &Arc<Identities>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let scope = [&settings.scope[..], b" over QUIC"].concat();
    let sessions = Sessions::of_scope(settings, scope);
    let mut config = rustls::ServerConfig::clone(&*configure(
        settings,
        (&[], &settings.suites_13, Versions { tls12: false, tls13: true }),
        identities,
        &sessions,
    )?);
    config.alpn_protocols = settings.quic_alpn.clone();
    config.max_fragment_size = None;
    // RFC 9001 section 4.6.1: flow control limits early data.
    config.max_early_data_size = if settings.early_data { u32::MAX } else { 0 };
    Ok(Arc::new(config))
}

/// Returns the suites, with those of ChaCha20 first.
fn chacha_first(suites: &[SupportedCipherSuite]) -> Vec<SupportedCipherSuite> {
    let mut suites = suites.to_vec();
    suites.sort_by_key(|suite| !is_chacha(suite.suite()));
    suites
}

fn is_chacha(suite: CipherSuite) -> bool {
    crate::ciphers::name_of(suite).is_some_and(|name| name.contains("CHACHA20"))
}

/// Returns the subjects of CA certificates, each once; a client selects its certificate by these names.
fn names_of(certificates: &[CertificateDer<'static>]) -> Vec<DistinguishedName> {
    let mut known = HashSet::new();
    let subjects = certificates.iter().filter_map(|der| crate::x509::subject_der(der));
    subjects.filter(|subject| known.insert(subject.clone())).map(DistinguishedName::from).collect()
}

/// A certificate that can be replaced while its server runs. Handshakes use the certificate that was set last.
#[derive(Debug)]
pub struct Slot {
    identity: RwLock<Identity>,
    is_placeholder: AtomicBool,
}

impl Slot {
    /// Creates a slot with a placeholder, which is used until a certificate is set.
    pub fn new(placeholder: Identity) -> Arc<Slot> {
        Arc::new(Slot { identity: RwLock::new(placeholder), is_placeholder: AtomicBool::new(true) })
    }

    /// Returns a slot with this certificate.
    pub fn with(identity: Identity) -> Arc<Slot> {
        Arc::new(Slot { identity: RwLock::new(identity), is_placeholder: AtomicBool::new(false) })
    }

    /// Replaces the certificate.
    pub fn set(&self, identity: Identity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
        self.is_placeholder.store(false, Ordering::Release);
    }

    /// Returns the certificate that handshakes use.
    pub fn get(&self) -> Identity {
        self.identity.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the slot still contains the placeholder.
    pub fn is_placeholder(&self) -> bool {
        self.is_placeholder.load(Ordering::Acquire)
    }
}

/// A certificate of a server block.
#[derive(Clone, Debug)]
enum Shown {
    /// The certificate does not change.
    Fixed(Arc<CertifiedKey>),
    /// The stapled OCSP response changes.
    Stapled(Arc<Slot>),
}

impl Shown {
    fn of(identity: &Identity) -> Shown {
        Shown::Fixed(Arc::clone(identity.key()))
    }

    fn key(&self) -> Arc<CertifiedKey> {
        match self {
            Shown::Fixed(key) => Arc::clone(key),
            Shown::Stapled(slot) => Arc::clone(slot.get().key()),
        }
    }
}

/// Chooses a certificate by the signature algorithms that a client supports.
#[derive(Debug)]
struct Identities {
    own: Vec<Shown>,
    slots: Vec<Arc<Slot>>,
}

impl Identities {
    fn new(settings: &ServerSettings) -> Identities {
        let stapled = settings.stapled.iter().cloned().map(Shown::Stapled);
        let own = settings.identities.iter().map(Shown::of).chain(stapled).collect();
        Identities::sorted(own, settings.slots.clone())
    }

    /// Sorts certificates with RSA keys last, because RSA signatures cost more CPU time than other signatures.
    fn sorted(mut own: Vec<Shown>, slots: Vec<Arc<Slot>>) -> Identities {
        own.sort_by_key(|shown| shown.key().key.algorithm() == SignatureAlgorithm::RSA);
        Identities { own, slots }
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.signature_schemes(), hello.cipher_suites())
    }
}

impl Identities {
    /// Selects a certificate for a client. The version of TLS is not known yet. So if the client's suites of TLS 1.2
    /// allow only one key type, a certificate of this type is selected.
    fn choose(&self, schemes: &[SignatureScheme], suites: &[CipherSuite]) -> Option<Arc<CertifiedKey>> {
        let offers = |kind: &str| {
            let is_of_kind = |name: &str| name.starts_with(kind);
            suites.iter().any(|suite| crate::ciphers::name_of(*suite).is_some_and(is_of_kind))
        };
        let (ecdsa, rsa) = (offers("ECDHE-ECDSA"), offers("ECDHE-RSA"));
        let is_offered = |key: &CertifiedKey| match key.key.algorithm() {
            SignatureAlgorithm::RSA => rsa || !ecdsa,
            _ => ecdsa || !rsa,
        };
        let suits = |key: &CertifiedKey| key.key.choose_scheme(schemes).is_some();
        let slots = self.slots.iter().map(|slot| Arc::clone(slot.get().key()));
        let all: Vec<Arc<CertifiedKey>> = self.own.iter().map(Shown::key).chain(slots).collect();
        let best = all.iter().find(|key| suits(key) && is_offered(key));
        best.or_else(|| all.iter().find(|key| suits(key))).or(all.first()).cloned()
    }
}

/// The ClientHello, by which the server block is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The server name (SNI, RFC 6066 section 3), in lower case.
    pub name: Option<String>,
    /// The server name in the spelling of the client.
    pub sent_name: Option<String>,
    /// Protocols that the client offers by ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// Cipher suites that the client offers.
    pub suites: Vec<CipherSuite>,
    /// Groups that the client offers.
    pub groups: Vec<NamedGroup>,
    /// Signature schemes that the client supports.
    pub schemes: Vec<SignatureScheme>,
}

impl Hello {
    /// Returns the facts of a ClientHello, which was parsed from `bytes`.
    fn of(hello: &ClientHello<'_>, bytes: &[u8]) -> Hello {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        Hello {
            sent_name: name.as_deref().map(|name| as_sent(name, bytes)),
            name,
            alpn: hello.alpn().map(|protocols| protocols.map(<[u8]>::to_vec).collect()).unwrap_or_default(),
            suites: hello.cipher_suites().to_vec(),
            groups: hello.named_groups().unwrap_or_default().to_vec(),
            schemes: hello.signature_schemes().to_vec(),
        }
    }
}

/// Returns a server name in the spelling of the client, of which rustls returns only the lower case. `bytes` contain the ClientHello. A
/// name that a record boundary divides is returned in lower case.
fn as_sent(name: &str, bytes: &[u8]) -> String {
    // The name follows the type `host_name` and a length (RFC 6066 section 3).
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut windows = bytes.windows(3 + name.len());
    let found = windows.find_map(|window| {
        let sent = window.strip_prefix(&[0])?.strip_prefix(&length)?;
        sent.eq_ignore_ascii_case(name.as_bytes()).then_some(sent)
    });
    found.and_then(|sent| str::from_utf8(sent).ok()).unwrap_or(name).to_owned()
}

/// The lists of suites, groups and schemes that a client offered, in a compact form that is stored until its connection
/// ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    numbers: Box<[u16]>,
    suites: usize,
    groups: usize,
}

impl Offer {
    /// Copies the lists of a ClientHello.
    pub fn of(hello: &Hello) -> Offer {
        let suites = hello.suites.iter().map(|suite| u16::from(*suite));
        let groups = hello.groups.iter().map(|group| u16::from(*group));
        let schemes = hello.schemes.iter().map(|scheme| u16::from(*scheme));
        let numbers = suites.chain(groups).chain(schemes).collect();
        Offer { numbers, suites: hello.suites.len(), groups: hello.groups.len() }
    }

    /// Returns the cipher suites.
    pub fn suites(&self) -> impl Iterator<Item = CipherSuite> {
        self.numbers[..self.suites].iter().map(|number| CipherSuite::from(*number))
    }

    /// Returns the groups of the key exchange.
    pub fn groups(&self) -> impl Iterator<Item = NamedGroup> {
        self.numbers[self.suites..][..self.groups].iter().map(|number| NamedGroup::from(*number))
    }

    /// Returns the signature schemes.
    pub fn schemes(&self) -> impl Iterator<Item = SignatureScheme> {
        self.numbers[self.suites + self.groups..].iter().map(|number| SignatureScheme::from(*number))
    }
}

/// The result of parsing the first bytes of a client.
#[derive(Debug)]
pub enum HelloProgress {
    /// More bytes are needed.
    More,
    /// The ClientHello is complete.
    Complete(Hello),
    /// The bytes are not a valid ClientHello: the error, and the alert for the client.
    Failed(TlsError, Vec<u8>),
}

/// Parses the ClientHello in all bytes received so far. The caller must pass the same bytes to the session of the
/// selected server.
pub fn read_hello(bytes: &[u8]) -> HelloProgress {
    if !is_complete_hello(bytes) {
        return HelloProgress::More;
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        // The acceptor reads a few KiB per call. If it reads nothing, the ClientHello counts as incomplete.
        if !matches!(acceptor.read_tls(&mut rest), Ok(count) if count > 0) {
            break;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return HelloProgress::Complete(Hello::of(&accepted.client_hello(), bytes)),
            Ok(None) => {}
            // The library reports a missing extension of TLS 1.2 before it compares versions.
            Err(_) if is_before_tls_1_2(bytes) => {
                let error = rustls::Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);
                return HelloProgress::Failed(TlsError::new(error), fatal_alert(PROTOCOL_VERSION));
            }
            Err((error, mut alert)) => {
                let mut out = Vec::new();
                // Writing to a `Vec` cannot fail.
                let _ = alert.write_all(&mut out);
                return HelloProgress::Failed(TlsError::new(error), out);
            }
        }
    }
    HelloProgress::More
}

/// Whether the newest version of a ClientHello is older than TLS 1.2. A client of TLS 1.3 states 1.2 in this field
/// (RFC 8446 section 4.1.2).
fn is_before_tls_1_2(bytes: &[u8]) -> bool {
    matches!(bytes, [HANDSHAKE_RECORD, _, _, _, _, 1, _, _, _, major, minor, ..] if (*major, *minor) < (3, 3))
}

/// Whether these bytes should be parsed: the lengths of records and message show that the ClientHello is complete, or
/// that the bytes are not a ClientHello. If a client sends single bytes, each byte costs only this check instead of a
/// complete parse.
fn is_complete_hello(bytes: &[u8]) -> bool {
    let (mut rest, mut found, mut needed, mut header) = (bytes, 0, 4, 0_usize);
    while found < needed {
        let &[kind, _, _, high, low, ref records @ ..] = rest else {
            // A record of another content type is recognised before its length is complete.
            return rest.first().is_some_and(|kind| *kind != HANDSHAKE_RECORD);
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind != HANDSHAKE_RECORD || len == 0 || len > crate::session::RECORD_BYTES_MAX {
            return true;
        }
        let Some((record, behind)) = records.split_at_checked(len) else { return false };
        for byte in record.iter().take(4_usize.saturating_sub(found)) {
            header = header << 8 | usize::from(*byte);
        }
        found += len;
        if found >= 4 {
            // The first byte of the message header is its type, the other three are its length.
            needed = 4 + (header & 0xff_ffff);
        }
        rest = behind;
    }
    true
}

/// The alert `unrecognized_name`, for a server that refuses handshakes (`ssl_reject_handshake`; RFC 6066 section 3).
pub(crate) const UNRECOGNIZED_NAME: u8 = 112;

/// The alert `protocol_version`, for a client that offers only versions that the server lacks (RFC 5246 appendix E.1).
const PROTOCOL_VERSION: u8 = 70;

/// The alert `internal_error` (RFC 8446 section 6.2).
pub(crate) const INTERNAL_ERROR: u8 = 80;

/// Encodes a fatal alert in a separate record, for use before the handshake has begun.
pub(crate) fn fatal_alert(description: u8) -> Vec<u8> {
    let version = u16::from(ProtocolVersion::TLSv1_2).to_be_bytes();
    vec![21, version[0], version[1], 0, 2, 2, description]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_that_is_listed_twice_is_announced_once() {
        let made = |name: &str| {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let (one, other) = (made("one"), made("other"));
        let listed = [one.clone(), other, one];
        let names = |certificates: &[CertificateDer<'static>]| -> Vec<Vec<u8>> {
            names_of(certificates).iter().map(|name| name.as_ref().to_vec()).collect()
        };
        assert_eq!(names(&listed), names(&listed[..2]));
        assert_eq!(names(&listed).len(), 2);
    }
}
