//! The settings: authorities, and the certificates to obtain from each.

use std::fmt;
use std::path::PathBuf;

use tls::signing::KeyKind;

/// How an authority checks that a name is this server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChallengeKind {
    /// It asks for a file over HTTP, on port 80 (RFC 8555 section 8.3).
    #[default]
    Http01,
    /// It makes a handshake with a special protocol, on port 443 (RFC 8737).
    TlsAlpn01,
}

impl ChallengeKind {
    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

/// The key of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountKey {
    /// It is made and kept in the state directory.
    Made(KeyKind),
    /// A key in PEM.
    Pem(Vec<u8>),
}

/// An account elsewhere, to which the one at the authority is bound (RFC 8555 section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The name of the key.
    pub id: String,
    /// The shared secret.
    pub secret: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A kind of certificates that an authority may offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Whether a certificate without it is refused.
    pub is_required: bool,
}

/// A certificate authority, and the account there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The name in the configuration.
    pub name: String,
    /// The URL of its directory.
    pub uri: String,
    /// The key of the account.
    pub account_key: AccountKey,
    /// How names are checked.
    pub challenge: ChallengeKind,
    /// URLs for messages about the account.
    pub contacts: Vec<String>,
    /// An account elsewhere.
    pub external_account: Option<ExternalAccount>,
    /// The name of the root that the chain should lead to.
    pub preferred_chain: Option<String>,
    /// The kind of certificates.
    pub profile: Option<Profile>,
    /// Roots in PEM that the authority's own certificate comes from; the system's without them.
    pub roots: Option<Vec<u8>>,
    /// Whether the authority's own certificate is verified.
    pub verifies: bool,
    /// The directory of accounts and certificates; nothing is kept without it.
    pub state_path: Option<PathBuf>,
    /// Whether the terms of service are accepted.
    pub accepts_terms: bool,
    /// Whether requests have a common name.
    pub has_common_name: bool,
    /// The certificates to obtain.
    pub orders: Vec<Order>,
}

impl Issuer {
    /// An authority with nginx's defaults.
    pub fn new(name: &str) -> Issuer {
        Issuer {
            name: name.to_owned(),
            uri: String::new(),
            account_key: AccountKey::Made(KeyKind::default()),
            challenge: ChallengeKind::default(),
            contacts: Vec::new(),
            external_account: None,
            preferred_chain: None,
            profile: None,
            roots: None,
            verifies: true,
            state_path: None,
            accepts_terms: false,
            has_common_name: false,
            orders: Vec::new(),
        }
    }

    /// The name of a certificate among those of all authorities.
    pub fn id_of(&self, order: &Order) -> String {
        format!("{}/{}", self.name, order.digest())
    }
}

/// A certificate to obtain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Names and addresses, each once.
    pub names: Vec<String>,
    /// The kind of its key.
    pub key: KeyKind,
}

impl Order {
    /// A short name for file names: equal for equal orders.
    pub fn digest(&self) -> String {
        let text = format!("{} {}", self.key.name(), self.names.join(" "));
        tls::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// For messages: the first name and how many follow it.
    pub fn shown(&self) -> String {
        match self.names.as_slice() {
            [] => String::new(),
            [name] => format!("\"{name}\""),
            [name, others @ ..] => format!("\"{name}\" and {} more", others.len()),
        }
    }
}
