//! The ACME protocol (RFC 8555): directory, account, orders, authorizations, certificates, renewal information (RFC 9773).
//!
//! ```text
//! directory --> account --> order --> authorizations --> finalize --> certificate
//!                                          |  each: challenge installed in all threads, then "ready", then polled
//!                                          +-- if already valid: skipped
//! ```
//! [`Client`] is an account at a CA. This module does not access the disk.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::fields::Method;
use serde_json::{Map, Value, json};
use tls::certificate::Identity;
use tls::signing::{SigningKey, generate};
use tls::x509::{Certificate, NameForm};
use tls::{certificate, issue};

use crate::agent::{Challenge, Host, HostExited, Level};
use crate::base64url;
use crate::fetch::{FetchError, Fetcher, Response};
use crate::jws::{self, Signer};
use crate::schedule::{QUERY_TIME, QUERY_TIME_BOUNDS, Window, parse_time};
use crate::settings::{ChallengeKind, Issuer, Order};
use crate::state;
use crate::url::{Url, alternate};

/// Maximum number of tries for a request if the CA rejects its nonce.
const NONCE_TRIES: u32 = 20;

/// Maximum time for a CA to verify a name, or to issue a certificate.
const POLL_TIME: Duration = Duration::from_secs(120);

/// Minimum and maximum of the pause between polls.
const POLL_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// Maximum number of characters of a CA's text in a message.
const WORDS_MAX: usize = 400;

/// An error of a CA (RFC 9457, RFC 8555 section 6.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The last component of the error type, such as `rateLimited`.
    pub kind: String,
    /// The CA's description of the error.
    pub detail: String,
    /// The status of the response.
    pub status: u16,
    /// The time to wait before a retry, if the CA sends it.
    pub retry_after: Option<Duration>,
}

impl Problem {
    fn of(value: &Value, response: &Response) -> Problem {
        let kind = value["type"].as_str().unwrap_or_default();
        let kind = kind.rsplit(':').next().unwrap_or_default();
        let mut detail = value["detail"].as_str().unwrap_or_default().to_owned();
        for part in value["subproblems"].as_array().into_iter().flatten() {
            let name = part["identifier"]["value"].as_str().unwrap_or_default();
            detail.push_str(&format!("; {name}: {}", part["detail"].as_str().unwrap_or_default()));
        }
        let (kind, detail) = (printable(kind), printable(&detail));
        Problem { kind, detail, status: response.status, retry_after: retry_after(response) }
    }
}

/// Makes a CA's text safe for logs: limits its length, and replaces control characters by spaces.
fn printable(text: &str) -> String {
    text.chars().take(WORDS_MAX).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Reason why a certificate could not be obtained.
#[derive(Debug)]
pub enum AcmeError {
    /// The request failed without a response.
    Fetch(FetchError),
    /// The CA responded with an error.
    Problem(Problem),
    /// A response violates the protocol. The text names the missing member.
    Malformed(&'static str),
    /// The terms of service with this URL are not accepted.
    Terms(String),
    /// The CA requires an external account.
    NoExternalAccount,
    /// The CA does not offer the profile.
    Profile(String),
    /// The CA does not offer a challenge of this type for a name.
    NoChallenge(String, ChallengeKind),
    /// The CA could not verify a name, for this reason.
    Unverified(String, String),
    /// An operation did not complete in time.
    TimedOut(&'static str),
    /// The machine has no random numbers, or a key of this server cannot be used.
    Key(String),
    /// The certificate is not the requested one.
    Certificate(String),
    /// The host has exited.
    HostExited,
}

impl fmt::Display for AcmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcmeError::Fetch(error) => error.fmt(f),
            AcmeError::Problem(Problem { kind, detail, status, .. }) => {
                write!(f, "the authority refuses: {kind} ({status}): {detail}")
            }
            AcmeError::Malformed(what) => write!(f, "the authority sent no {what}"),
            AcmeError::Terms(url) => {
                write!(f, "the terms of service have to be accepted by \"accept_terms_of_service\": {url}")
            }
            AcmeError::NoExternalAccount => f.write_str("the authority requires an \"external_account_key\""),
            AcmeError::Profile(name) => write!(f, "the authority does not offer the profile \"{name}\""),
            AcmeError::NoChallenge(name, kind) => {
                write!(f, "the authority offers no {} challenge for \"{name}\"", kind.name())
            }
            AcmeError::Unverified(name, reason) => {
                write!(f, "the authority could not verify \"{name}\": {reason}")
            }
            AcmeError::TimedOut(what) => write!(f, "the authority did not finish {what} in time"),
            AcmeError::Key(reason) => write!(f, "a key cannot be used: {reason}"),
            AcmeError::Certificate(reason) => write!(f, "the certificate cannot be used: {reason}"),
            AcmeError::HostExited => f.write_str("the server has exited"),
        }
    }
}

impl From<FetchError> for AcmeError {
    fn from(error: FetchError) -> AcmeError {
        AcmeError::Fetch(error)
    }
}

impl From<HostExited> for AcmeError {
    fn from(HostExited: HostExited) -> AcmeError {
        AcmeError::HostExited
    }
}

impl AcmeError {
    /// Returns the time to wait before a retry, if the CA sent it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            AcmeError::Problem(problem) => problem.retry_after,
            _ => None,
        }
    }

    fn is_problem(&self, kinds: &[&str]) -> bool {
        matches!(self, AcmeError::Problem(problem) if kinds.contains(&problem.kind.as_str()))
    }
}

/// An account at a CA.
pub struct Client<'a> {
    issuer: &'a Issuer,
    fetcher: Fetcher,
    key: SigningKey,
    directory: Map<String, Value>,
    account: Option<String>,
    nonces: Vec<String>,
}

/// A new certificate.
#[derive(Debug)]
pub struct Issued {
    /// The chain with its private key, in PEM, after a line that names the CA ([`state::with_issuer`]).
    pub pem: Vec<u8>,
}

/// The renewal information of a CA for a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The time window of the renewal.
    pub window: Window,
    /// The CA's explanation, if any.
    pub explanation: Option<String>,
    /// The time until the next query for renewal information.
    pub query_after: Duration,
}

impl<'a> Client<'a> {
    /// Fetches the CA's directory. `account` is the URL of the account, if known.
    pub fn new(
        issuer: &'a Issuer,
        key: SigningKey,
        account: Option<String>,
    ) -> Result<Client<'a>, AcmeError> {
        let fetcher = Fetcher::new(issuer.roots.as_deref(), issuer.verifies)?;
        let response = fetcher.request(Method::Get, &issuer.uri, None)?;
        if response.status >= 400 {
            return Err(AcmeError::Problem(Problem::of(&body_of(&response), &response)));
        }
        let Value::Object(directory) = body_of(&response) else {
            return Err(AcmeError::Malformed("directory"));
        };
        Ok(Client { issuer, fetcher, key, directory, account, nonces: Vec::new() })
    }

    /// Returns the URL of the account.
    pub fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    /// Removes the URL of an account that the CA does not know.
    pub fn forget_account(&mut self) {
        self.account = None;
    }

    fn url(&self, name: &'static str) -> Result<String, AcmeError> {
        self.directory.get(name).and_then(Value::as_str).map(str::to_owned).ok_or(AcmeError::Malformed(name))
    }

    fn meta(&self, name: &str) -> &Value {
        self.directory.get("meta").map_or(&Value::Null, |meta| &meta[name])
    }

    /// Returns a nonce, which protects a request against replay (RFC 8555 section 6.5).
    fn nonce(&mut self) -> Result<String, AcmeError> {
        if let Some(nonce) = self.nonces.pop() {
            return Ok(nonce);
        }
        let url = self.url("newNonce")?;
        let response = self.fetcher.request(Method::Head, &url, None)?;
        response.field("replay-nonce").map(str::to_owned).ok_or(AcmeError::Malformed("nonce"))
    }

    /// Sends a signed request; retries if the CA rejects the nonce.
    fn post(&mut self, url: &str, payload: Option<&Value>) -> Result<Response, AcmeError> {
        let mut tries = 0;
        loop {
            let nonce = self.nonce()?;
            let signer = self.account.as_deref().map_or(Signer::Key, Signer::Account);
            let message = jws::sign(&self.key, signer, url, &nonce, payload);
            let message = message.ok_or_else(|| AcmeError::Key("signing failed".to_owned()))?;
            let body = Some(("application/jose+json", message.as_bytes()));
            let response = self.fetcher.request(Method::Post, url, body)?;
            // Every response contains a nonce for the next request, even an error response (RFC 8555 section 6.5).
            self.nonces.extend(response.field("replay-nonce").map(str::to_owned));
            if response.status < 400 {
                return Ok(response);
            }
            let problem = Problem::of(&body_of(&response), &response);
            tries += 1;
            if problem.kind != "badNonce" || tries >= NONCE_TRIES {
                return Err(AcmeError::Problem(problem));
            }
        }
    }

    /// Finds or creates the account of the key. Returns whether the account's URL was unknown before.
    pub fn ensure_account(&mut self) -> Result<bool, AcmeError> {
        if self.account.is_some() {
            return Ok(false);
        }
        let url = self.url("newAccount")?;
        let terms = self.meta("termsOfService").as_str().map(printable);
        if let Some(terms) = terms.filter(|_| !self.issuer.accepts_terms) {
            return Err(AcmeError::Terms(terms));
        }
        let needs_binding = self.meta("externalAccountRequired").as_bool().unwrap_or(false);
        let mut payload = json!({ "contact": self.issuer.contacts });
        if self.issuer.accepts_terms {
            payload["termsOfServiceAgreed"] = true.into();
        }
        match &self.issuer.external_account {
            Some(account) => {
                payload["externalAccountBinding"] = jws::bind(&self.key, &url, &account.id, &account.secret);
            }
            None if needs_binding => return Err(AcmeError::NoExternalAccount),
            None => {}
        }
        let response = self.post(&url, Some(&payload))?;
        let status = body_of(&response)["status"].as_str().unwrap_or("valid").to_owned();
        if status != "valid" {
            return Err(AcmeError::Malformed("valid account"));
        }
        let account = response.field("location").ok_or(AcmeError::Malformed("URL of the account"))?;
        self.account = Some(Url::parse(&url).map_or_else(|| account.to_owned(), |base| base.joined(account)));
        Ok(true)
    }

    /// Obtains a certificate. `old` is the certificate that it replaces, if any.
    pub fn obtain(
        &mut self,
        order: &Order,
        old: Option<&Certificate>,
        host: &mut dyn Host,
    ) -> Result<Issued, AcmeError> {
        let (url, mut object) = self.new_order(order, old, host)?;
        let mut installed = Vec::new();
        let verified = self.authorize(&object, &mut installed, host);
        // The challenges are removed even after an error. If the host has exited, there is nothing to remove.
        for challenge in &installed {
            host.remove(challenge)?;
        }
        verified?;
        object = self.poll(&url, "the order", host, |object| object["status"] != "pending")?;
        if object["status"] != "ready" {
            return Err(failed_order(&object));
        }
        // Each certificate has a new key, so a compromised key is useless after the next renewal.
        let key =
            generate(order.key).ok_or_else(|| AcmeError::Key("it could not be generated".to_owned()))?;
        let first = order.names.iter().find(|name| name.parse::<IpAddr>().is_err()).or(order.names.first());
        let common_name = first.filter(|_| self.issuer.has_common_name).map(String::as_str);
        let request = issue::request(&order.names, common_name, key.as_bytes());
        let request = request.map_err(|error| AcmeError::Key(error.to_string()))?;
        let finalize = object["finalize"].as_str().ok_or(AcmeError::Malformed("finalize"))?.to_owned();
        host.log(Level::Info, &format!("acme: finalizing the order for {}", order.shown()));
        // The state of the order is polled afterwards, because this response may arrive before the certificate is issued.
        self.post(&finalize, Some(&json!({ "csr": base64url::encode(request) })))?;
        object = self.poll(&url, "the certificate", host, |object| object["status"] != "processing")?;
        if object["status"] != "valid" {
            return Err(failed_order(&object));
        }
        let certificate =
            object["certificate"].as_str().ok_or(AcmeError::Malformed("certificate"))?.to_owned();
        let chain = self.download(&certificate)?;
        let pem = state::with_issuer(&[chain.as_slice(), key.as_bytes()].concat(), &self.issuer.uri);
        check(&pem, order).map_err(AcmeError::Certificate)?;
        Ok(Issued { pem })
    }

    /// Creates an order. Returns its URL and its state.
    fn new_order(
        &mut self,
        order: &Order,
        old: Option<&Certificate>,
        host: &mut dyn Host,
    ) -> Result<(String, Value), AcmeError> {
        let url = self.url("newOrder")?;
        let identifiers: Vec<Value> = order.names.iter().map(|name| identifier(name)).collect();
        let mut payload = json!({ "identifiers": identifiers });
        if let Some(profile) = &self.issuer.profile {
            let is_offered = self.meta("profiles").get(&profile.name).is_some();
            if is_offered {
                payload["profile"] = profile.name.as_str().into();
            } else if profile.is_required {
                return Err(AcmeError::Profile(profile.name.clone()));
            } else {
                let name = &profile.name;
                host.log(
                    Level::Notice,
                    &format!("acme: the authority does not offer the profile \"{name}\""),
                );
            }
        }
        let replaced = old.filter(|_| self.directory.contains_key("renewalInfo")).and_then(certificate_id);
        if let Some(replaced) = replaced {
            payload["replaces"] = replaced.into();
        }
        let mut response = self.post(&url, Some(&payload));
        // If the CA rejects the name of the replaced certificate, the order is sent without it (RFC 9773 section 5), also if the
        // CA reports an internal error: it may have lost the earlier order.
        let is_refused = |error: &AcmeError| {
            error.is_problem(&["alreadyReplaced", "malformed", "conflict", "unauthorized", "serverInternal"])
        };
        let drop_replaced = |payload: &mut Value| {
            payload.as_object_mut().is_some_and(|members| members.remove("replaces").is_some())
        };
        if response.as_ref().is_err_and(is_refused) && drop_replaced(&mut payload) {
            response = self.post(&url, Some(&payload));
        }
        let response = response?;
        let location = response.field("location").ok_or(AcmeError::Malformed("URL of the order"))?;
        let location = Url::parse(&url).map_or_else(|| location.to_owned(), |base| base.joined(location));
        Ok((location, body_of(&response)))
    }

    /// Lets the CA verify all names of an order that are not verified yet.
    fn authorize(
        &mut self,
        object: &Value,
        installed: &mut Vec<Challenge>,
        host: &mut dyn Host,
    ) -> Result<(), AcmeError> {
        let mut asked = Vec::new();
        for url in object["authorizations"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let authorization = body_of(&self.post(url, None)?);
            let name = authorization["identifier"]["value"].as_str().unwrap_or_default().to_owned();
            match authorization["status"].as_str() {
                Some("valid") => continue,
                Some("pending") => {}
                _ => return Err(unverified(&name, &authorization)),
            }
            let (challenge, ready) = self.challenge(&name, &authorization)?;
            installed.push(challenge);
            asked.push((url.to_owned(), name, ready));
        }
        // All challenges must be installed in all threads before the CA is informed of the first one.
        for challenge in installed.iter() {
            host.install(challenge)?;
        }
        for (_, name, ready) in &asked {
            host.log(
                Level::Info,
                &format!(
                    "acme: the challenge for \"{}\" is ready, requesting its validation",
                    printable(name)
                ),
            );
            self.post(ready, Some(&json!({})))?;
        }
        for (url, name, _) in &asked {
            let authorization =
                self.poll(url, "a verification", host, |object| object["status"] != "pending")?;
            if authorization["status"] != "valid" {
                return Err(unverified(name, &authorization));
            }
        }
        Ok(())
    }

    /// Returns the challenge to install for a name, and the URL at which the CA is informed that it is ready.
    fn challenge(&self, name: &str, authorization: &Value) -> Result<(Challenge, String), AcmeError> {
        let kind = self.issuer.challenge;
        let mut offered = authorization["challenges"].as_array().into_iter().flatten();
        let found = offered.find(|challenge| challenge["type"] == kind.name());
        let found = found.ok_or_else(|| AcmeError::NoChallenge(printable(name), kind))?;
        let url = found["url"].as_str().ok_or(AcmeError::Malformed("URL of a challenge"))?;
        let token = found["token"].as_str().filter(|token| is_token(token));
        let token = token.ok_or(AcmeError::Malformed("token of a challenge"))?;
        let text = format!("{token}.{}", jws::thumbprint(&self.key));
        let challenge = match kind {
            ChallengeKind::Http01 => Challenge::Http { token: token.to_owned(), text },
            ChallengeKind::TlsAlpn01 => {
                let proof = tls::digest(text.as_bytes());
                let proof = proof.as_slice().try_into().map_err(|_| AcmeError::Malformed("digest"))?;
                let pem = issue::challenge(name, proof).map_err(|error| AcmeError::Key(error.to_string()))?;
                Challenge::Tls { name: challenge_name(name), pem: pem.into_bytes() }
            }
        };
        Ok((challenge, url.to_owned()))
    }

    /// Fetches an object repeatedly until `is_done` returns true.
    fn poll(
        &mut self,
        url: &str,
        what: &'static str,
        host: &mut dyn Host,
        is_done: impl Fn(&Value) -> bool,
    ) -> Result<Value, AcmeError> {
        let end = Instant::now() + POLL_TIME;
        let mut pause = POLL_PAUSE.0;
        loop {
            let response = self.post(url, None)?;
            let object = body_of(&response);
            if is_done(&object) {
                return Ok(object);
            }
            if Instant::now() >= end {
                return Err(AcmeError::TimedOut(what));
            }
            let asked = retry_after(&response).unwrap_or(pause);
            host.wait(asked.clamp(POLL_PAUSE.0, POLL_PAUSE.1))?;
            pause = pause.saturating_mul(2);
        }
    }

    /// Downloads a chain. If the CA offers several chains, selects the preferred one.
    fn download(&mut self, url: &str) -> Result<Vec<u8>, AcmeError> {
        let response = self.post(url, None)?;
        let Some(wanted) = &self.issuer.preferred_chain else { return Ok(response.body) };
        if is_issued_by(&response.body, wanted) {
            return Ok(response.body);
        }
        let base = Url::parse(url);
        let others: Vec<String> = response
            .all("link")
            .filter_map(|link| alternate(link).zip(base.as_ref()))
            .map(|(link, base)| base.joined(link))
            .collect();
        for other in others {
            let chain = self.post(&other, None)?.body;
            if is_issued_by(&chain, wanted) {
                return Ok(chain);
            }
        }
        Ok(response.body)
    }

    /// Queries when a certificate should be renewed. Returns `None` if the CA does not support renewal information.
    pub fn renewal(&self, certificate: &Certificate) -> Result<Option<Renewal>, AcmeError> {
        let Some(base) = self.directory.get("renewalInfo").and_then(Value::as_str) else { return Ok(None) };
        let Some(id) = certificate_id(certificate) else { return Ok(None) };
        let url = format!("{}/{id}", base.trim_end_matches('/'));
        let response = self.fetcher.request(Method::Get, &url, None)?;
        let object = body_of(&response);
        if response.status >= 400 {
            return Err(AcmeError::Problem(Problem::of(&object, &response)));
        }
        let time = |name: &str| object["suggestedWindow"][name].as_str().and_then(parse_time);
        let window = time("start").zip(time("end")).filter(|(start, end)| start < end);
        let (start, end) = window.ok_or(AcmeError::Malformed("window for renewal"))?;
        let query_after = retry_after(&response).unwrap_or(QUERY_TIME);
        Ok(Some(Renewal {
            window: Window { start, end },
            explanation: object["explanationURL"].as_str().map(printable),
            query_after: query_after.clamp(QUERY_TIME_BOUNDS.0, QUERY_TIME_BOUNDS.1),
        }))
    }
}

/// Checks that a chain with its key matches the order.
pub fn check(pem: &[u8], order: &Order) -> Result<(), String> {
    let identity = Identity::from_pem(pem, pem, &[]).map_err(|error| error.to_string())?;
    let first = identity.chain().first().and_then(|first| Certificate::from_der(first));
    let first = first.ok_or("it is damaged")?;
    match order.names.iter().find(|name| !first.is_for(name)) {
        Some(name) => Err(format!("it is not for \"{name}\"")),
        None => Ok(()),
    }
}

/// Returns the CA's identifier of a certificate (RFC 9773 section 4.1): the authority key identifier and the serial number.
fn certificate_id(certificate: &Certificate) -> Option<String> {
    let key = certificate.authority_key_id()?;
    let digits = certificate.serial()?;
    let digits = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits };
    let byte = |index: usize| u8::from_str_radix(digits.get(index..index + 2)?, 16).ok();
    let mut serial = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    // In DER the first bit is a sign, so a positive number may need a leading zero byte.
    if serial.first().is_some_and(|first| *first >= 0x80) {
        serial.insert(0, 0);
    }
    Some(format!("{}.{}", base64url::encode(key), base64url::encode(serial)))
}

fn body_of(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or(Value::Null)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.field("retry-after")?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = u64::try_from(http::date::parse_http(text.as_bytes())?).ok()?;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs();
    Some(Duration::from_secs(at.saturating_sub(now)))
}

fn identifier(name: &str) -> Value {
    let kind = if name.parse::<IpAddr>().is_ok() { "ip" } else { "dns" };
    json!({ "type": kind, "value": name })
}

/// Whether a token is valid base64url (RFC 8555 section 8.1). Tokens are used in paths and as keys of a table.
pub(crate) fn is_token(token: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=512).contains(&token.len()) && token.bytes().all(is_digit)
}

/// Returns the server name that a CA sends in the handshake of a challenge. For an address it is the name for reverse lookups
/// (RFC 8738 section 6).
pub(crate) fn challenge_name(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(address)) => {
            let digits =
                address.octets().into_iter().rev().map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            digits.collect::<String>() + "ip6.arpa"
        }
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Returns the error of a failed order.
fn failed_order(object: &Value) -> AcmeError {
    match object.get("error") {
        Some(error) => AcmeError::Problem(Problem::of(error, &Response::default())),
        None => AcmeError::Malformed("order that is ready"),
    }
}

/// Returns the error of a name that was not verified.
fn unverified(name: &str, authorization: &Value) -> AcmeError {
    let mut challenges = authorization["challenges"].as_array().into_iter().flatten();
    let detail = challenges.find_map(|challenge| challenge["error"]["detail"].as_str());
    let reason = detail.or(authorization["status"].as_str()).unwrap_or("no reason");
    AcmeError::Unverified(printable(name), printable(reason))
}

/// Whether the last certificate of a chain was issued by a root with this common name.
fn is_issued_by(chain: &[u8], name: &str) -> bool {
    let chain = certificate::certificates(chain).unwrap_or_default();
    let last = chain.last().and_then(|last| Certificate::from_der(last));
    let issuer = last.and_then(|last| last.issuer(NameForm::Rfc2253)).unwrap_or_default();
    // Commas in values are escaped by backslashes (RFC 2253 section 2.4).
    let escaped: String = name
        .chars()
        .flat_map(|char| [Some('\\').filter(|_| ",+\"\\<>;".contains(char)), Some(char)])
        .flatten()
        .collect();
    let whole = format!("CN={escaped}");
    issuer == whole
        || issuer.starts_with(&format!("{whole},"))
        || issuer.ends_with(&format!(",{whole}"))
        || issuer.contains(&format!(",{whole},"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sni_names_for_addresses_are_reverse_lookup_names() {
        assert_eq!(challenge_name("Example.Org"), "example.org");
        assert_eq!(challenge_name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        let expected = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(challenge_name("2001:db8::1"), expected);
    }

    #[test]
    fn tokens_are_not_paths() {
        assert!(is_token("abc-_1"));
        for token in ["", "../x", "a/b", "a b"] {
            assert!(!is_token(token), "{token}");
        }
    }

    #[test]
    fn messages_of_an_authority_have_no_control_characters() {
        let object = json!({"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too\nmany",
            "subproblems": [{"identifier": {"value": "a.b"}, "detail": "why"}]});
        let fields = vec![("retry-after".to_owned(), "90".to_owned())];
        let problem = Problem::of(&object, &Response { status: 429, fields, body: Vec::new() });
        assert_eq!((problem.kind.as_str(), problem.detail.as_str()), ("rateLimited", "too many; a.b: why"));
        assert_eq!(problem.retry_after, Some(Duration::from_secs(90)));
    }
}
