//! Settings: CAs, and the certificates to obtain from each.

use std::fmt;
use std::path::PathBuf;

use tls::signing::KeyKind;

/// How a CA verifies that this server controls a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChallengeKind {
    /// The CA requests a file over HTTP, on port 80 (RFC 8555 section 8.3).
    #[default]
    Http01,
    /// The CA makes a TLS handshake with a special ALPN protocol, on port 443 (RFC 8737).
    TlsAlpn01,
}

impl ChallengeKind {
    /// Returns the name of the challenge in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

/// The private key of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountKey {
    /// A key that is generated and stored in the state directory.
    Generated(KeyKind),
    /// A configured key in PEM.
    Pem(Vec<u8>),
}

/// An external account, to which the account at the CA is bound (RFC 8555 section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The identifier of the key.
    pub id: String,
    /// The shared secret.
    pub secret: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A type of certificates that a CA may offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name of the profile.
    pub name: String,
    /// Whether certificates without this profile are refused.
    pub is_required: bool,
}

/// A CA, and the account at this CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The name in the configuration.
    pub name: String,
    /// The URL of the CA's directory.
    pub uri: String,
    /// The private key of the account.
    pub account_key: AccountKey,
    /// How the CA verifies names.
    pub challenge: ChallengeKind,
    /// URLs to which the CA sends messages about the account.
    pub contacts: Vec<String>,
    /// The external account, if any.
    pub external_account: Option<ExternalAccount>,
    /// The common name of the root that the chain should lead to.
    pub preferred_chain: Option<String>,
    /// The requested type of certificates.
    pub profile: Option<Profile>,
    /// Roots in PEM for the certificate of the CA's server; `None` stands for the roots of the system.
    pub roots: Option<Vec<u8>>,
    /// Whether the certificate of the CA's server is verified.
    pub verifies: bool,
    /// The directory of accounts and certificates; `None` if nothing is stored.
    pub state_path: Option<PathBuf>,
    /// Whether the terms of service are accepted.
    pub accepts_terms: bool,
    /// Whether certificate requests contain a common name.
    pub has_common_name: bool,
    /// The certificates to obtain.
    pub orders: Vec<Order>,
}

impl Issuer {
    /// Creates the settings of a CA, with nginx's defaults.
    pub fn new(name: &str) -> Issuer {
        Issuer {
            name: name.to_owned(),
            uri: String::new(),
            account_key: AccountKey::Generated(KeyKind::default()),
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

    /// Returns an identifier of a certificate that is unique among all CAs.
    pub fn id_of(&self, order: &Order) -> String {
        format!("{}/{}", self.name, order.digest())
    }
}

/// A certificate to obtain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Host names and addresses, without duplicates.
    pub names: Vec<String>,
    /// The type of its private key.
    pub key: KeyKind,
}

impl Order {
    /// Returns a short text for file names, which is equal for equal orders.
    pub fn digest(&self) -> String {
        let text = format!("{} {}", self.key.name(), self.names.join(" "));
        tls::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns a text for messages: the first name and the number of the other names.
    pub fn shown(&self) -> String {
        match self.names.as_slice() {
            [] => String::new(),
            [name] => format!("\"{name}\""),
            [name, others @ ..] => format!("\"{name}\" and {} more", others.len()),
        }
    }
}
