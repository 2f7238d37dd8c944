//! Requests for tokens and for UserInfo (OpenID Connect Core 1.0 sections 3.1.3, 5.3 and 12), and the refresh of tokens.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use http::uri::{Escape, escape};
use jose::Object;
use jose::object::Value;

use super::call::{Caller, ProviderCall, ProviderFault, ProviderResponse, call};
use super::conf::OidcProvider;
use super::discovery;
use super::documents::ProviderMetadata;
use super::id_token::{self, ExpectedClaims};
use super::secret::RandomSecret;
use super::sessions::{self, ListedAs, StoredSession, milliseconds};
use super::shared_work::{self, WorkEnd};
use super::state::Current;
use exchange::error_log;
use std::time::Duration;
use telemetry::{ForLog, Level};

/// Maximum size in bytes of a response with tokens.
const TOKENS_BYTES_MAX: usize = 128 << 10;

/// Maximum size in bytes of a response of the UserInfo endpoint.
const USERINFO_BYTES_MAX: usize = 64 << 10;

/// Minimum time between refreshes of a session, also after a failure and if the provider's tokens expire immediately.
const REFRESH_PAUSE: Duration = Duration::from_secs(10);

/// Why tokens were not issued.
#[derive(Debug)]
pub(super) enum TokenFailure {
    /// The code or the refresh token is not valid, or not any more.
    Grant(String),
    /// The provider did not respond, or its response is not usable.
    Provider(ProviderFault),
}

impl From<ProviderFault> for TokenFailure {
    fn from(fault: ProviderFault) -> TokenFailure {
        TokenFailure::Provider(fault)
    }
}

impl TokenFailure {
    fn of(reason: impl Into<Arc<str>>) -> TokenFailure {
        TokenFailure::Provider(ProviderFault::new(reason))
    }
}

/// Appends an argument of a form or a query.
pub(super) fn add_arg(form: &mut String, name: &str, value: &str) {
    if !form.is_empty() {
        form.push('&');
    }
    form.push_str(name);
    form.push('=');
    form.push_str(&escaped(value));
}

/// Encodes a text for a form or a query.
fn escaped(text: &str) -> String {
    let mut escaped = Vec::new();
    escape(Escape::UriComponent, text.as_bytes(), &mut escaped);
    String::from_utf8(escaped).expect("escaped text is ASCII")
}

/// The tokens of a response, which are not verified yet.
struct IssuedTokens {
    /// The ID token, which a refresh need not have.
    id_token: Option<String>,
    /// The access token, of characters that a header field may have.
    access_token: String,
    /// The refresh token.
    refresh_token: Option<String>,
    /// Time in seconds until the access token expires.
    expires_in_s: Option<u64>,
}

/// Requests tokens with a form. The request is never sent again after it reached the provider, because a code is valid once. Adds the client's credentials.
async fn request_tokens(
    caller: &Caller,
    provider: &OidcProvider,
    metadata: &ProviderMetadata,
    mut form: String,
) -> Result<IssuedTokens, TokenFailure> {
    let mut authorization = None;
    match &provider.client_secret {
        Some(secret) if !metadata.posts_secret => {
            // RFC 6749 section 2.3.1: both are encoded as in a form.
            let pair = format!("{}:{}", escaped(&provider.client_id), escaped(&secret.0));
            let mut text = b"Basic ".to_vec();
            http::base64::encode(pair.as_bytes(), &mut text);
            authorization = Some(String::from_utf8_lossy(&text).into_owned());
        }
        secret => {
            add_arg(&mut form, "client_id", &provider.client_id);
            if let Some(secret) = secret {
                add_arg(&mut form, "client_secret", &secret.0);
            }
        }
    }
    let url = &metadata.token;
    let content = ProviderCall { url, authorization, form: Some(form), bytes_max: TOKENS_BYTES_MAX };
    let response = call(caller, provider.secure.as_ref(), &content).await?;
    parse_tokens(&response).map_err(|failure| match failure {
        TokenFailure::Provider(fault) => TokenFailure::Provider(ProviderFault {
            reason: format!("{}: {}", url.text, fault.reason).into(),
            ..fault
        }),
        grant => grant,
    })
}

/// Checks a response of the token endpoint (RFC 6749 section 5). Its texts are not trusted.
fn parse_tokens(response: &ProviderResponse) -> Result<IssuedTokens, TokenFailure> {
    let object = Object::parse(&response.body);
    if response.status != 200 {
        let error = object.and_then(|object| object.text("error")).unwrap_or_default();
        let shown: String = error.chars().take(100).collect();
        let reason = format!("status {}, error \"{}\"", response.status, shown.as_bytes().for_log());
        return Err(match error.as_str() {
            "invalid_grant" => TokenFailure::Grant(reason),
            _ => TokenFailure::of(reason),
        });
    }
    let object = object.ok_or_else(|| TokenFailure::of("the response is no JSON object"))?;
    // RFC 6749 appendix A: such a text may be in a header field.
    let is_token = |text: &String| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let access_token = object.text("access_token").filter(is_token);
    let access_token = access_token.ok_or_else(|| TokenFailure::of("the response has no access token"))?;
    if object.text("token_type").is_none_or(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err(TokenFailure::of("the access token has another type than Bearer"));
    }
    let expires_in_s = match object.get("expires_in") {
        Some(Value::Literal(text) | Value::Text(text)) => text.parse().ok(),
        _ => None,
    };
    Ok(IssuedTokens {
        id_token: object.text("id_token"),
        access_token,
        refresh_token: object.text("refresh_token").filter(is_token),
        expires_in_s,
    })
}

/// Verifies an ID token. A provider may replace its keys at any time, and announces that only by the key set itself. With keys that do not match, fetches them again once.
async fn verify(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    metadata: &Arc<ProviderMetadata>,
    id_token: &str,
    expected: &ExpectedClaims<'_>,
) -> Result<Object, TokenFailure> {
    let refused = |fault| TokenFailure::of(format!("the ID token is refused: {fault}"));
    let keys = discovery::keys(caller, provider, metadata, None).await?;
    match id_token::verify(id_token, &keys, provider, metadata, expected) {
        Err(fault) if fault.is_about_keys() => {
            let newer = discovery::keys(caller, provider, metadata, Some(&keys)).await;
            let newer = newer.map_err(|_| refused(fault))?;
            id_token::verify(id_token, &newer, provider, metadata, expected).map_err(refused)
        }
        result => result.map_err(refused),
    }
}

/// Requests UserInfo; its subject must be that of the ID token (section 5.3.2).
async fn userinfo(
    caller: &Caller,
    provider: &OidcProvider,
    metadata: &ProviderMetadata,
    access_token: &str,
    subject: &str,
) -> Result<String, ProviderFault> {
    if !provider.has_userinfo {
        return Ok(String::new());
    }
    let url = metadata.userinfo.as_ref();
    let url = url.ok_or_else(|| ProviderFault::new("the metadata has no \"userinfo_endpoint\""))?;
    let authorization = Some(format!("Bearer {access_token}"));
    let content = ProviderCall { url, authorization, form: None, bytes_max: USERINFO_BYTES_MAX };
    let response = call(caller, provider.secure.as_ref(), &content).await?;
    let fault = |what: &str| ProviderFault::new(format!("{}: {what}", url.text));
    if response.status != 200 {
        return Err(fault(&format!("status {}", response.status)));
    }
    let object = Object::parse(&response.body).ok_or_else(|| fault("UserInfo is no JSON object"))?;
    if object.text("sub").as_deref() != Some(subject) {
        return Err(fault("UserInfo is about another subject"));
    }
    String::from_utf8(response.body).map_err(|_| fault("UserInfo is no text"))
}

/// A verified login.
pub(super) struct LoggedIn {
    /// The new session.
    pub(super) session: StoredSession,
    /// `sub`
    pub(super) subject: String,
    /// `sid`
    pub(super) sid: Option<String>,
}

/// Exchanges the code of a callback for a session.
pub(super) async fn exchange_code(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    metadata: &Arc<ProviderMetadata>,
    mut form: String,
    nonce: &str,
) -> Result<LoggedIn, TokenFailure> {
    add_arg(&mut form, "grant_type", "authorization_code");
    let issued = request_tokens(caller, provider, metadata, form).await?;
    let id_token = issued.id_token.clone();
    let id_token = id_token.ok_or_else(|| TokenFailure::of("the response has no ID token"))?;
    let expected = ExpectedClaims { nonce: Some(nonce), subject: None, access_token: &issued.access_token };
    let claims = verify(caller, provider, metadata, &id_token, &expected).await?;
    finish(caller, provider, metadata, issued, (id_token, claims), "").await
}

/// Makes a session of verified tokens.
async fn finish(
    caller: &Caller,
    provider: &OidcProvider,
    metadata: &ProviderMetadata,
    issued: IssuedTokens,
    (id_token, claims): (String, Object),
    old_refresh_token: &str,
) -> Result<LoggedIn, TokenFailure> {
    let subject = claims.text("sub").unwrap_or_default();
    let userinfo = userinfo(caller, provider, metadata, &issued.access_token, &subject).await?;
    let (now, pause) = (sessions::now(), milliseconds(REFRESH_PAUSE));
    let until_end = match claims.get("exp") {
        Some(Value::Literal(text)) => text.parse::<f64>().ok().map(|end| (end * 1000.0) as u64),
        _ => None,
    };
    let refresh_ms = match issued.expires_in_s {
        Some(seconds) => now.saturating_add(seconds.saturating_mul(1000)),
        None => until_end.unwrap_or(u64::MAX),
    };
    let session = StoredSession {
        id_token,
        access_token: issued.access_token,
        refresh_token: issued.refresh_token.unwrap_or_else(|| old_refresh_token.to_owned()),
        userinfo,
        ends_ms: sessions::end_of(provider),
        refresh_ms: refresh_ms.max(now + pause),
    };
    if session.len() > sessions::SESSION_BYTES_MAX {
        let what = format!("the tokens have more than {} bytes", sessions::SESSION_BYTES_MAX);
        return Err(TokenFailure::of(what));
    }
    Ok(LoggedIn { session, subject, sid: claims.text("sid") })
}

/// The refreshes in flight, by the key of the session: the requests of a client wait for one of them, because most providers accept a
/// refresh token only once.
static REFRESHES: LazyLock<Mutex<HashMap<String, WorkEnd>>> = LazyLock::new(Mutex::default);

/// Returns the refreshes in flight. No code that can panic runs while they are locked.
fn refreshes() -> MutexGuard<'static, HashMap<String, WorkEnd>> {
    REFRESHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the tokens of a session need a refresh.
pub(super) fn needs_refresh(session: &StoredSession) -> bool {
    !session.refresh_token.is_empty() && session.refresh_ms <= sessions::now()
}

/// Refreshes the tokens of a session, if no other request does so; waits for the end. Then returns the session, if there still is one.
pub(super) async fn refresh(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    current: &Rc<Current>,
) -> Option<Rc<Current>> {
    let key = sessions::key_of(&current.id);
    let end = {
        let mut refreshes = refreshes();
        match refreshes.get(&key) {
            Some(end) => end.clone(),
            None => {
                let (caller, provider) = (caller.clone(), Arc::clone(provider));
                let (id, released) = (current.id.clone(), key.clone());
                let work = async move { refresh_stored(&caller, &provider, &id).await };
                let end = shared_work::begin(work, move || _ = self::refreshes().remove(&released));
                refreshes.insert(key, end.clone());
                end
            }
        }
    };
    end.wait().await;
    let session = sessions::load(provider, &current.id)?;
    Some(Rc::new(Current::new(current.id.clone(), session)))
}

/// Refreshes the session in the zone. It ends if the provider refuses; while the provider cannot be reached, it has its old tokens.
async fn refresh_stored(caller: &Caller, provider: &Arc<OidcProvider>, id: &RandomSecret) {
    // Another request may have refreshed it since the caller has read it.
    let Some(session) = sessions::load(provider, id).filter(needs_refresh) else { return };
    let current = Current::new(id.clone(), session);
    let log = |level: Level, reason: &str| {
        let name = &provider.name;
        error_log::write(
            &caller.thread,
            level,
            format_args!("OIDC provider \"{name}\": tokens were not refreshed: {reason}"),
        );
    };
    let (session, subject, sid) = match try_refresh(caller, provider, &current).await {
        Ok(LoggedIn { session, subject, sid }) => (session, subject, sid),
        Err(TokenFailure::Grant(reason)) => {
            log(Level::Info, &reason);
            return sessions::remove(provider, &caller.thread, id);
        }
        Err(TokenFailure::Provider(fault)) => {
            log(Level::Error, &fault.reason);
            let refresh_ms = sessions::now() + milliseconds(REFRESH_PAUSE);
            let claims = current.claims();
            let text = |name: &str| claims.and_then(|claims| claims.text(name));
            let session = StoredSession { refresh_ms, ..current.session.clone() };
            (session, text("sub").unwrap_or_default(), text("sid"))
        }
    };
    let listed = ListedAs { subject: &subject, sid: sid.as_deref() };
    if sessions::replace(provider, &caller.thread, id, &session, &listed).is_err() {
        log(Level::Error, "the zone of sessions is full");
    }
}

/// Requests new tokens with the refresh token. The user must be the same; a token of another login is refused (section 12.2).
async fn try_refresh(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    current: &Current,
) -> Result<LoggedIn, TokenFailure> {
    let metadata = discovery::metadata(caller, provider).await?;
    let mut form = String::new();
    add_arg(&mut form, "grant_type", "refresh_token");
    add_arg(&mut form, "refresh_token", &current.session.refresh_token);
    let issued = request_tokens(caller, provider, &metadata, form).await?;
    let old = current.claims().cloned().unwrap_or_default();
    let subject = old.text("sub").unwrap_or_default();
    let verified = match &issued.id_token {
        Some(id_token) => {
            let expected =
                ExpectedClaims { nonce: None, subject: Some(&subject), access_token: &issued.access_token };
            let claims = verify(caller, provider, &metadata, id_token, &expected).await?;
            if claims.has("nonce") && claims.text("nonce") != old.text("nonce") {
                return Err(TokenFailure::of("the refreshed ID token is that of another login"));
            }
            (id_token.clone(), claims)
        }
        // Section 12.2: the response need not have one.
        None => (current.session.id_token.clone(), old),
    };
    finish(caller, provider, &metadata, issued, verified, &current.session.refresh_token).await
}

/// Returns the challenge of PKCE for a verifier (RFC 7636 section 4.2).
pub(super) fn challenge(verifier: &str) -> String {
    super::secret::hashed(verifier.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(status: u16, body: &str) -> Result<IssuedTokens, TokenFailure> {
        parse_tokens(&ProviderResponse { status, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn the_challenge_is_that_of_the_rfc() {
        // RFC 7636 appendix B
        assert_eq!(
            challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }

    #[test]
    fn arguments_are_escaped() {
        let mut form = String::new();
        add_arg(&mut form, "a", "b&c=d \r\n");
        add_arg(&mut form, "e", "\u{e9}");
        assert_eq!(form, "a=b%26c%3Dd%20%0D%0A&e=%C3%A9");
    }

    #[test]
    fn responses_with_tokens_are_checked() {
        let issued =
            parse(200, r#"{"access_token":"a","token_type":"bearer","expires_in":"60","refresh_token":""}"#)
                .expect("it is valid");
        assert_eq!((issued.access_token.as_str(), issued.expires_in_s), ("a", Some(60)));
        assert!(issued.refresh_token.is_none() && issued.id_token.is_none());
        for body in [
            "",
            "[]",
            "{}",
            r#"{"access_token":"a"}"#,
            r#"{"access_token":"a","token_type":"mac"}"#,
            r#"{"access_token":"","token_type":"Bearer"}"#,
            r#"{"access_token":"a\r\nX: y","token_type":"Bearer"}"#,
            r#"{"access_token":"a","access_token":"b","token_type":"Bearer"}"#,
        ] {
            assert!(matches!(parse(200, body), Err(TokenFailure::Provider(_))), "{body}");
        }
        assert!(matches!(parse(400, r#"{"error":"invalid_grant"}"#), Err(TokenFailure::Grant(_))));
        assert!(matches!(parse(400, r#"{"error":"invalid_client"}"#), Err(TokenFailure::Provider(_))));
        assert!(matches!(parse(500, "x"), Err(TokenFailure::Provider(_))));
    }
}
