//! The check of a token in the access phase.

use std::sync::{Arc, LazyLock};

use jose::{Encrypted, Fault, KeySet, Object, Signed, claims, encrypted, signed};

use super::token::{self, CheckState, Presented};
use super::{Conf, Realm, TokenType, keys};
use exchange::credentials;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::AuthChallenges;
use rt::HelperPool;
use site::template::Template;
use telemetry::Level;
use telemetry::time_zone::since_1970;

/// The threads that decrypt with RSA. Clients determine the number of such operations, so they delay nothing else.
static DECRYPTION: LazyLock<HelperPool> = LazyLock::new(|| HelperPool::for_computation("jwt-decryption"));

/// Why a request is refused.
enum CheckFailure {
    /// The token is invalid.
    Token(Fault),
    /// A key set cannot be loaded, or a thread panicked; logged.
    Internal,
}

impl From<Fault> for CheckFailure {
    fn from(fault: Fault) -> CheckFailure {
        CheckFailure::Token(fault)
    }
}

/// Checks the token of a request, and the required values.
pub(super) async fn run(conf: &Conf, request: &mut Request) -> Step {
    let Realm::On(realm) = &conf.realm else {
        // Without `auth_jwt` no requirement can be met.
        request.log(Level::Error, format_args!("\"auth_jwt_require\" needs \"auth_jwt\""));
        return Step::Status(conf.required.items().first().map_or(401, |required| required.status));
    };
    let Some(text) = token::text_of(conf, request) else {
        token::record(request, Presented::default());
        request.log(Level::Info, format_args!("no JSON Web Token was provided"));
        return refuse(request, realm, "");
    };
    match check(conf, request, text.clone()).await {
        Ok(presented) => token::record(request, presented),
        Err(failure) => {
            token::record(request, Presented::new(text, conf.token_type, CheckState::Refused));
            let CheckFailure::Token(fault) = failure else { return Step::Status(500) };
            // Tokens expire regularly.
            let is_usual = matches!(fault, Fault::Expired | Fault::NotYetValid);
            let level = if is_usual { Level::Info } else { Level::Error };
            request.log(level, format_args!("the JSON Web Token is refused: {fault}"));
            return refuse(request, realm, ",error=\"invalid_token\"");
        }
    }
    for required in conf.required.items() {
        let is_met = |value: &Template| !matches!(value.rendered(request).as_slice(), b"" | b"0");
        if required.values.iter().all(is_met) {
            continue;
        }
        request.log(Level::Error, format_args!("a value of \"auth_jwt_require\" is empty or \"0\""));
        return match required.status {
            401 => refuse(request, realm, ",error=\"invalid_token\""),
            status => Step::Status(status),
        };
    }
    Step::Allow
}

/// Responds with a challenge (RFC 6750 section 3). `error` is empty for a request without a token.
fn refuse(request: &mut Request, realm: &Template, error: &str) -> Step {
    let realm = realm.rendered(request);
    let challenge = [b"Bearer realm=\"", realm.as_slice(), b"\"", error.as_bytes()].concat();
    let is_for_proxy = credentials::are_for_proxy(request);
    request.response.challenges = AuthChallenges { values: vec![challenge], is_for_proxy };
    Step::Status(credentials::status_without(request))
}

/// Verifies or decrypts the token, and checks its claims.
async fn check(conf: &Conf, request: &mut Request, text: Vec<u8>) -> Result<Presented, CheckFailure> {
    // The format is checked before keys are loaded, because it costs less.
    let is_slow = match conf.token_type {
        TokenType::Signed => Signed::parse(&text).map(|_| false)?,
        TokenType::Encrypted | TokenType::Nested => encrypted::is_slow(&Encrypted::parse(&text)?),
    };
    let mut sets = Vec::new();
    for source in conf.keys.items() {
        sets.push(keys::load(source, conf.cached, request).await.ok_or(CheckFailure::Internal)?);
    }
    if sets.is_empty() {
        request.log(Level::Error, format_args!("\"auth_jwt\" has no key"));
        return Err(CheckFailure::Internal);
    }
    let token_type = conf.token_type;
    let opened = match is_slow {
        false => open(&text, token_type, &sets),
        true => {
            let (client, text) = (request.client().client_network(), text.clone());
            let opened = DECRYPTION.run_for(client, move || open(&text, token_type, &sets)).await;
            opened.ok_or_else(|| {
                request.log(Level::Alert, format_args!("decrypting a JSON Web Token panicked"));
                CheckFailure::Internal
            })?
        }
    };
    let Opened { header, claims, payload } = opened?;
    let now = u64::try_from(since_1970(rt::wall()).0).unwrap_or_default();
    claims::check_times(&claims, now, conf.leeway.as_secs())?;
    let mut presented = Presented::new(text, token_type, CheckState::Verified);
    (presented.header, presented.claims, presented.payload) = (header, Some(claims), payload);
    Ok(presented)
}

/// The content of a token whose signature is verified, or which was decrypted.
struct Opened {
    header: Object,
    claims: Object,
    payload: Option<Vec<u8>>,
}

/// Verifies or decrypts a token.
fn open(text: &[u8], token_type: TokenType, sets: &[Arc<KeySet>]) -> Result<Opened, Fault> {
    let sets: Vec<&KeySet> = sets.iter().map(|set| &**set).collect();
    if token_type == TokenType::Signed {
        let token = Signed::parse(text)?;
        signed::verify(&token, &sets)?;
        return Ok(Opened { header: token.header, claims: claims::parse(&token.payload)?, payload: None });
    }
    let token = Encrypted::parse(text)?;
    let payload = encrypted::decrypt(&token, &sets)?;
    let claims = match token_type {
        TokenType::Nested => {
            let inner = Signed::parse(&payload)?;
            signed::verify(&inner, &sets)?;
            claims::parse(&inner.payload)?
        }
        TokenType::Signed | TokenType::Encrypted => claims::parse(&payload)?,
    };
    Ok(Opened { header: token.header, claims, payload: Some(payload) })
}
