//! A provider that signs what a test tells it to, and a browser that stores cookies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use aws_lc_rs::{digest, hmac, rand};
use serde_json::{Value, json};
use testkit::origin::{OriginRequest, Reply};
use testkit::{Client, Origin, Response, Server};

/// How the next ID tokens are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signing {
    /// With the published key.
    Published,
    /// With another key, under the published identifier.
    OtherKey,
    /// Without a signature.
    None,
    /// HMAC with the published key as the secret.
    PublicKeyAsSecret,
    /// With a changed signature.
    Damaged,
}

/// The state of a provider.
pub(super) struct IdpState {
    pub(super) key: EcdsaKeyPair,
    pub(super) key_id: String,
    pub(super) signing: Signing,
    /// Values that replace claims of ID tokens; `null` removes a claim.
    pub(super) claims: Value,
    /// Values that replace those of the metadata.
    pub(super) metadata: Value,
    /// Values that replace those of responses with tokens.
    pub(super) tokens: Value,
    pub(super) userinfo: Value,
    /// The logins: the query of the authentication request by the code.
    logins: BTreeMap<String, BTreeMap<String, String>>,
    /// The refresh token that is valid.
    pub(super) refresh_token: String,
    /// The issuer, if clients reach the provider through a server with TLS.
    pub(super) front: Option<String>,
    /// The response to any request with this beginning.
    pub(super) replies: BTreeMap<&'static str, Reply>,
    /// Faults of the client.
    pub(super) faults: Vec<String>,
    numbers: u64,
}

/// A provider on a port of 127.0.0.1.
pub(super) struct Idp {
    pub(super) origin: Origin,
    state: Arc<Mutex<IdpState>>,
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    http::base64::encode(bytes, &mut text);
    let text = String::from_utf8(text).expect("ASCII");
    text.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn key_pair() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key")
}

/// Decodes the arguments of a query or a form.
pub(super) fn arguments(text: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        let mut out = Vec::new();
        http::uri::unescape(text.replace('+', " ").as_bytes(), &mut out);
        String::from_utf8(out).expect("UTF-8")
    };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    text.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}

fn merge(into: &mut Value, other: &Value) {
    for (name, value) in other.as_object().expect("an object") {
        match value {
            Value::Null => _ = into.as_object_mut().expect("an object").remove(name),
            value => into[name] = value.clone(),
        }
    }
}

impl Idp {
    pub(super) fn start() -> Idp {
        let state = Arc::new(Mutex::new(IdpState {
            key: key_pair(),
            key_id: "one".to_owned(),
            signing: Signing::Published,
            claims: json!({}),
            metadata: json!({}),
            tokens: json!({}),
            userinfo: json!({"sub": "someone", "email": "someone@example.com"}),
            logins: BTreeMap::new(),
            refresh_token: String::new(),
            front: None,
            replies: BTreeMap::new(),
            faults: Vec::new(),
            numbers: 0,
        }));
        let shared = Arc::clone(&state);
        let origin = Origin::start(move |request| {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            respond(&mut state, request)
        });
        Idp { origin, state }
    }

    pub(super) fn issuer(&self) -> String {
        let front = self.state().front.clone();
        front.unwrap_or_else(|| format!("http://{}", self.origin.addr()))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, IdpState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the key.
    pub(super) fn rotate(&self) {
        let mut state = self.state();
        state.key = key_pair();
        state.key_id = format!("{}x", state.key_id);
    }

    /// Logs the user in; returns the target of the callback.
    pub(super) fn log_in(&self, location: &str) -> String {
        let (url, query) = location.split_once('?').expect("a query");
        assert_eq!(url, format!("{}/authorize", self.issuer()));
        let query = arguments(query);
        assert_eq!(query["response_type"], "code");
        assert!(query["scope"].split(' ').any(|scope| scope == "openid"));
        let state = query["state"].clone();
        let (_, path) = query["redirect_uri"].split_once("://").expect("a URL");
        let path = format!("/{}", path.split_once('/').expect("a path").1);
        let mut idp = self.state();
        idp.numbers += 1;
        let code = format!("code{}+&=", idp.numbers);
        idp.logins.insert(code.clone(), query);
        let mut escaped = Vec::new();
        http::uri::escape(http::uri::Escape::UriComponent, code.as_bytes(), &mut escaped);
        format!("{path}?code={}&state={state}", String::from_utf8(escaped).expect("ASCII"))
    }
}

fn respond(state: &mut IdpState, request: &OriginRequest) -> Reply {
    let found = state.replies.iter().find(|(path, _)| request.target.starts_with(**path));
    if let Some((_, reply)) = found {
        return reply.clone();
    }
    let host = request.header("Host").expect("a host");
    let issuer = state.front.clone().unwrap_or_else(|| format!("http://{host}"));
    let json_reply =
        |value: &Value| Reply::text(value.to_string()).header("Content-Type", "application/json");
    match request.path() {
        "/.well-known/openid-configuration" => {
            let mut metadata = json!({
                "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/keys"),
                "userinfo_endpoint": format!("{issuer}/userinfo"), "end_session_endpoint": format!("{issuer}/end"),
                "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
                "code_challenge_methods_supported": ["plain", "S256"],
            });
            merge(&mut metadata, &state.metadata);
            json_reply(&metadata)
        }
        "/keys" => {
            let point = state.key.public_key().as_ref();
            let (x, y) = (base64url(&point[1..33]), base64url(&point[33..]));
            json_reply(
                &json!({"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "kid": state.key_id, "x": x, "y": y}]}),
            )
        }
        "/token" => token(state, request, &issuer),
        "/userinfo" => {
            if request.header("Authorization").is_none_or(|it| !it.starts_with("Bearer access")) {
                state.faults.push("userinfo without its token".to_owned());
            }
            json_reply(&state.userinfo)
        }
        other => {
            state.faults.push(format!("a request of {other}"));
            Reply::new(404)
        }
    }
}

fn token(state: &mut IdpState, request: &OriginRequest, issuer: &str) -> Reply {
    let form = arguments(&String::from_utf8_lossy(&request.body));
    let refused = |error: &str| Reply::new(400).body(json!({"error": error}).to_string());
    let basic = testkit::client::basic("client%20one:s%2Fecret%3A");
    let posted = form.get("client_secret").is_some_and(|secret| secret == "s/ecret:");
    if request.header("Authorization") != Some(basic) && !posted {
        return refused("invalid_client");
    }
    let nonce = match form["grant_type"].as_str() {
        "refresh_token" => {
            if form["refresh_token"] != state.refresh_token || state.refresh_token.is_empty() {
                return refused("invalid_grant");
            }
            None
        }
        _ => {
            let Some(login) = state.logins.remove(&form["code"]) else { return refused("invalid_grant") };
            if login["redirect_uri"] != form["redirect_uri"] {
                return refused("invalid_grant");
            }
            if let Some(challenge) = login.get("code_challenge") {
                assert_eq!(login["code_challenge_method"], "S256");
                let verifier = form.get("code_verifier").cloned().unwrap_or_default();
                let hash = digest::digest(&digest::SHA256, verifier.as_bytes());
                if base64url(hash.as_ref()) != *challenge {
                    return refused("invalid_grant");
                }
            }
            Some(login["nonce"].clone())
        }
    };
    state.numbers += 1;
    let access = format!("access{}", state.numbers);
    state.refresh_token = format!("refresh{}", state.numbers);
    let mut claims =
        json!({"iss": issuer, "sub": "someone", "aud": "client one", "exp": now() + 300, "iat": now()});
    if let Some(nonce) = nonce {
        claims["nonce"] = nonce.into();
    }
    merge(&mut claims, &state.claims);
    let mut tokens =
        json!({"access_token": access, "token_type": "Bearer", "id_token": sign(state, &claims)});
    merge(&mut tokens, &state.tokens);
    if tokens["refresh_token"] == "yes" {
        tokens["refresh_token"] = state.refresh_token.clone().into();
    }
    Reply::text(tokens.to_string()).header("Cache-Control", "no-store")
}

/// Signs claims as the test requires.
fn sign(state: &IdpState, claims: &Value) -> String {
    let alg = match state.signing {
        Signing::None => "none",
        Signing::PublicKeyAsSecret => "HS256",
        _ => "ES256",
    };
    let header = json!({"alg": alg, "kid": state.key_id});
    let input =
        format!("{}.{}", base64url(header.to_string().as_bytes()), base64url(claims.to_string().as_bytes()));
    let random = rand::SystemRandom::new();
    let by = |key: &EcdsaKeyPair| key.sign(&random, input.as_bytes()).expect("signed").as_ref().to_vec();
    let signature = match state.signing {
        Signing::Published => by(&state.key),
        Signing::OtherKey => by(&key_pair()),
        Signing::None => Vec::new(),
        Signing::PublicKeyAsSecret => {
            let key = hmac::Key::new(hmac::HMAC_SHA256, state.key.public_key().as_ref());
            hmac::sign(&key, input.as_bytes()).as_ref().to_vec()
        }
        Signing::Damaged => {
            let mut signature = by(&state.key);
            signature[5] ^= 1;
            signature
        }
    };
    format!("{input}.{}", base64url(&signature))
}

/// A browser, with its cookies.
#[derive(Clone)]
pub(super) struct Browser {
    address: testkit::server::ListenAddr,
    pub(super) cookies: BTreeMap<String, String>,
}

impl Browser {
    pub(super) fn of(server: &Server) -> Browser {
        Browser { address: server.addr(0).clone(), cookies: BTreeMap::new() }
    }

    /// The same browser, at a server that replaces the one before.
    pub(super) fn at(mut self, server: &Server) -> Browser {
        self.address = server.addr(0).clone();
        self
    }

    pub(super) fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    pub(super) fn request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        let pairs: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookie = pairs.join("; ");
        let mut fields = fields.to_vec();
        if !cookie.is_empty() {
            fields.push(("Cookie", &cookie));
        }
        let response = Client::connect(&self.address).request(method, target, &fields);
        for line in response.head.all("Set-Cookie") {
            let (pair, attributes) = line.split_once(';').expect("attributes");
            let (name, value) = pair.split_once('=').expect("a value");
            assert!(attributes.contains("Path=/") && attributes.contains("HttpOnly"), "{line}");
            assert!(attributes.contains("SameSite=Lax") && !attributes.contains("Domain"), "{line}");
            match attributes.contains("Max-Age=0") {
                true => _ = self.cookies.remove(name),
                false => _ = self.cookies.insert(name.to_owned(), value.to_owned()),
            }
        }
        response
    }

    /// Returns the session cookie.
    pub(super) fn session(&self) -> Option<&String> {
        self.cookies.get("NGX_OIDC_SESSION")
    }

    /// Requests a page, logs in, and returns the response to the callback.
    pub(super) fn log_in(&mut self, idp: &Idp, target: &str) -> Response {
        let location = self.begin(target);
        self.get(&idp.log_in(&location))
    }

    /// Requests a page; returns the URL of the provider.
    #[track_caller]
    pub(super) fn begin(&mut self, target: &str) -> String {
        let response = self.get(target);
        assert_eq!(response.status, 302, "{}", response.text());
        response.field("Location").expect("a location").to_owned()
    }
}
