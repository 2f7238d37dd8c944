//! The checks of an ID token (OpenID Connect Core 1.0 sections 3.1.3.7 and 12.2).

use aws_lc_rs::digest;
use jose::object::Value;
use jose::{KeySet, Object, Signed, base64url, claims, signed};

use super::conf::OidcProvider;
use super::documents::ProviderMetadata;
use jose::token::Fault;
use telemetry::time_zone::since_1970;

/// Tolerance in seconds for clocks that differ.
const LEEWAY_S: u64 = 30;

/// Maximum length of a subject in bytes (section 2).
const SUBJECT_LEN_MAX: usize = 255;

/// Why an ID token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdTokenFault {
    /// The token itself is invalid.
    Token(Fault),
    /// The provider does not sign with this algorithm.
    Algorithm,
    /// A claim is missing, or has another value.
    Claim(&'static str),
}

impl From<Fault> for IdTokenFault {
    fn from(fault: Fault) -> IdTokenFault {
        IdTokenFault::Token(fault)
    }
}

impl std::fmt::Display for IdTokenFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IdTokenFault::Token(fault) => fault.fmt(f),
            IdTokenFault::Algorithm => f.write_str("its algorithm is not one of the provider's"),
            IdTokenFault::Claim(name) => write!(f, "its claim \"{name}\" is missing or wrong"),
        }
    }
}

impl IdTokenFault {
    /// Whether other keys of the provider may have signed the token.
    pub(super) fn is_about_keys(self) -> bool {
        matches!(self, IdTokenFault::Token(Fault::NoKey | Fault::Signature))
    }
}

/// The values that a token must have.
pub(super) struct ExpectedClaims<'a> {
    /// The `nonce` of the login; `None` for a refresh.
    pub(super) nonce: Option<&'a str>,
    /// The user of a refreshed session.
    pub(super) subject: Option<&'a str>,
    /// The access token that was issued with the ID token.
    pub(super) access_token: &'a str,
}

/// Verifies an ID token; returns its claims.
pub(super) fn verify(
    text: &str,
    keys: &KeySet,
    provider: &OidcProvider,
    metadata: &ProviderMetadata,
    expected: &ExpectedClaims<'_>,
) -> Result<Object, IdTokenFault> {
    let token = Signed::parse(text.as_bytes())?;
    let algorithm = token.header.text("alg").ok_or(Fault::Algorithm)?;
    // Shared secrets are not used: the secret of a client may be short, and one that can be guessed would permit any token.
    if algorithm.starts_with("HS") || !metadata.algorithms.contains(&algorithm) {
        return Err(IdTokenFault::Algorithm);
    }
    signed::verify(&token, &[keys])?;
    let claims = claims::parse(&token.payload)?;
    let now = u64::try_from(since_1970(rt::wall()).0).unwrap_or_default();
    check_claims(&claims, provider, expected, now)?;
    check_access_token(&claims, &algorithm, expected.access_token)?;
    Ok(claims)
}

/// Checks the claims. Each check is one of section 3.1.3.7; a claim that is missing is as wrong as one with another value, except `azp`
/// for a single audience, `nbf`, and `nonce` in a refresh. The time is given in seconds since 1970.
fn check_claims(
    claims: &Object,
    provider: &OidcProvider,
    expected: &ExpectedClaims<'_>,
    now: u64,
) -> Result<(), IdTokenFault> {
    let must = |name: &'static str, is_right: bool| match is_right {
        true => Ok(()),
        false => Err(IdTokenFault::Claim(name)),
    };
    let text = |name: &str| claims.text(name);
    must("iss", text("iss").as_deref() == Some(&provider.issuer))?;
    let audience = match claims.get("aud") {
        Some(Value::Text(one)) => vec![one],
        Some(Value::Array(items)) => items.iter().filter_map(claims::text).collect(),
        _ => Vec::new(),
    };
    must("aud", audience.contains(&provider.client_id))?;
    // With several audiences the token must be issued for this client.
    let needs_party = audience.len() > 1 || claims.has("azp");
    must("azp", !needs_party || text("azp").as_deref() == Some(&provider.client_id))?;
    must("exp", claims.has("exp"))?;
    claims::check_times(claims, now, LEEWAY_S)?;
    let issued = match claims.get("iat") {
        Some(Value::Literal(number)) => number.parse::<f64>().ok(),
        _ => None,
    };
    must("iat", issued.is_some_and(|issued| issued <= (now + LEEWAY_S) as f64))?;
    let subject = text("sub").filter(|subject| !subject.is_empty() && subject.len() <= SUBJECT_LEN_MAX);
    must("sub", subject.is_some() && expected.subject.is_none_or(|known| subject.as_deref() == Some(known)))?;
    let nonce = text("nonce");
    must("nonce", expected.nonce.is_none_or(|sent| nonce.as_deref() == Some(sent)))
}

/// Checks that the access token was issued with the ID token, if the ID token has its hash (section 3.1.3.6).
fn check_access_token(claims: &Object, algorithm: &str, access_token: &str) -> Result<(), IdTokenFault> {
    if !claims.has("at_hash") {
        return Ok(());
    }
    let hash = match algorithm.get(2..) {
        Some("256") => &digest::SHA256,
        Some("384") => &digest::SHA384,
        _ => &digest::SHA512,
    };
    let digest = digest::digest(hash, access_token.as_bytes());
    let half = base64url::encode(&digest.as_ref()[..digest.as_ref().len() / 2]);
    match claims.text("at_hash") == Some(half) {
        true => Ok(()),
        false => Err(IdTokenFault::Claim("at_hash")),
    }
}
