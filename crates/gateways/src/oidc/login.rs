//! The login: the redirect to the provider, and the callback (OpenID Connect Core 1.0 section 3.1).

use std::sync::Arc;

use io::segments::Source;

use super::call::{Caller, ProviderFault};
use super::conf::{OidcProvider, ServedUri};
use super::discovery;
use super::documents::ProviderMetadata;
use super::pending::PendingLogin;
use super::secret::RandomSecret;
use super::sessions::{self, ListedAs};
use super::state;
use super::tokens::{self, LoggedIn, TokenFailure, add_arg};
use super::{args, cookies};
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;
use http::fields::Method;
use telemetry::{ForLog, Level};

/// Completes a redirect, which no cache may store.
pub(super) fn redirect(request: &mut Request, location: String) -> Step {
    let response = &mut request.response;
    response.status = 302;
    response.location = Some(location.into_bytes());
    response.content_type = ContentType::None;
    // Those of modules that refused the request before, with `satisfy any`.
    response.challenges.clear();
    response.fields.push(b"Cache-Control", b"no-store");
    // The URL of a callback has a code.
    response.fields.push(b"Referrer-Policy", b"no-referrer");
    response.set_bytes(Source::Static(b""));
    Step::Done
}

/// Logs a failure of the provider; returns the response to the client.
pub(super) fn failed(request: &Request, provider: &OidcProvider, fault: &ProviderFault) -> Step {
    request.log(Level::Error, format_args!("OIDC provider \"{}\": {}", provider.name, fault.reason));
    Step::Status(fault.status)
}

/// Logs why a client is refused. This is not the fault of the server or the provider.
fn refused(request: &Request, provider: &OidcProvider, status: u16, reason: &str) -> Step {
    request.log(
        Level::Info,
        format_args!("OIDC provider \"{}\": the login is refused: {reason}", provider.name),
    );
    Step::Status(status)
}

/// Redirects a client without a session to the provider.
pub(super) async fn begin(request: &mut Request, provider: &Arc<OidcProvider>) -> Step {
    // A script or an image cannot log in, and its requests must not replace the cookies of a login in another window.
    let mut modes = request.head.named(request.bytes(), b"sec-fetch-mode");
    if modes.next().is_some_and(|mode| mode != b"navigate") {
        drop(modes);
        request.response.challenges.values.push(b"Bearer".to_vec());
        return refused(request, provider, 401, "the request is no navigation");
    }
    drop(modes);
    let metadata = match discovery::metadata(&Caller::of(request), provider).await {
        Ok(metadata) => metadata,
        // Logged by the fetch.
        Err(fault) => return Step::Status(fault.status),
    };
    let Some(login) = PendingLogin::begin(provider, request, sessions::now() / 1000) else {
        request.log(Level::Crit, format_args!("no random numbers for a login"));
        return Step::Status(500);
    };
    let location = authentication_url(request, provider, &metadata, &login);
    login.set_cookie(provider, request);
    redirect(request, location)
}

/// Returns the URL of the authentication request (section 3.1.2.1).
fn authentication_url(
    request: &Request,
    provider: &OidcProvider,
    metadata: &ProviderMetadata,
    login: &PendingLogin,
) -> String {
    let mut query = String::new();
    let mut add = |name: &str, value: &str| add_arg(&mut query, name, value);
    add("response_type", "code");
    add("scope", &provider.scope);
    add("client_id", &provider.client_id);
    add("redirect_uri", &redirect_uri(request, provider));
    add("state", &login.state(provider));
    add("nonce", &login.nonce());
    if uses_pkce(provider, metadata) {
        add("code_challenge", &tokens::challenge(&login.verifier()));
        add("code_challenge_method", "S256");
    }
    if !provider.extra_auth_args.is_empty() {
        query.push('&');
        query.push_str(&provider.extra_auth_args);
    }
    metadata.authorization.with_args(&query)
}

/// Whether PKCE is used. The verifier of a login exists anyway, so a change of the metadata during a login has no effect on it.
fn uses_pkce(provider: &OidcProvider, metadata: &ProviderMetadata) -> bool {
    provider.pkce.unwrap_or(metadata.has_pkce)
}

/// Returns a path of this server as a URL: of the host in an absolute redirect URI, else of the host that the client has requested.
pub(super) fn absolute(request: &Request, provider: &OidcProvider, path: &str) -> String {
    if let Some(base) = &provider.redirect.base {
        return format!("{base}{path}");
    }
    let host = String::from_utf8_lossy(request.host_or_name());
    if host.is_empty() {
        // Only a client of HTTP/1.0 names no host. The address of this server is added to the path later.
        return path.to_owned();
    }
    let port = request.named_port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{path}", request.conn.scheme())
}

/// Returns the redirect URI. Both requests of a login must have the same.
fn redirect_uri(request: &Request, provider: &OidcProvider) -> String {
    let redirect = &provider.redirect;
    redirect.absolute.clone().unwrap_or_else(|| absolute(request, provider, &redirect.path))
}

/// Completes a login. The cookie and `state` only prove that this server began the login, and that the browser that began it also ends
/// it. The user is determined by the ID token alone. Of several providers with this URI, that of the login is used.
pub(super) async fn callback(request: &mut Request, served: Vec<ServedUri>) -> Step {
    let Some(first) = served.first() else { return Step::Next };
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    let Some(args) = args::Args::parse(&request.args) else {
        return refused(request, &first.provider, 400, "an argument is repeated");
    };
    let state = args.get("state").unwrap_or_default().into_bytes();
    let now = sessions::now() / 1000;
    let found = served.iter().find_map(|uri| {
        PendingLogin::find(&uri.provider, request, &state, now)
            .map(|login| (login, Arc::clone(&uri.provider)))
    });
    let Some((login, provider)) = found else {
        let reason = "no login of this browser has this state, or it has taken too long";
        return refused(request, &first.provider, 400, reason);
    };
    // The login has ended, whatever its result.
    login.remove_cookie(&provider, request);
    match complete(request, &provider, &login, &args).await {
        Ok(()) => {
            let location = absolute(request, &provider, &login.return_uri);
            redirect(request, location)
        }
        Err(step) => step,
    }
}

/// Exchanges the code for a session, and sets its cookie.
async fn complete(
    request: &mut Request,
    provider: &Arc<OidcProvider>,
    login: &PendingLogin,
    args: &args::Args,
) -> Result<(), Step> {
    let caller = Caller::of(request);
    let metadata = discovery::metadata(&caller, provider).await;
    let metadata = metadata.map_err(|fault| Step::Status(fault.status))?;
    // RFC 9207 section 2.4: a code of another provider must not be sent to this one.
    let is_own = match args.get("iss") {
        Some(issuer) => issuer == provider.issuer,
        None => !metadata.names_issuer,
    };
    if !is_own {
        return Err(refused(request, provider, 400, "the response is not that of the provider (\"iss\")"));
    }
    if let Some(error) = args.get("error") {
        let shown: String = error.chars().take(100).collect();
        let reason = format!("error \"{}\"", shown.as_bytes().for_log());
        let status = if error == "access_denied" { 403 } else { 502 };
        return Err(refused(request, provider, status, &reason));
    }
    let Some(code) = args.get("code").filter(|code| !code.is_empty()) else {
        return Err(refused(request, provider, 400, "the response has no code"));
    };
    if !login.end(provider) {
        return Err(refused(request, provider, 400, "the login has ended before"));
    }
    let mut form = String::new();
    add_arg(&mut form, "code", &code);
    add_arg(&mut form, "redirect_uri", &redirect_uri(request, provider));
    if uses_pkce(provider, &metadata) {
        add_arg(&mut form, "code_verifier", &login.verifier());
    }
    let logged_in = tokens::exchange_code(&caller, provider, &metadata, form, &login.nonce()).await;
    match logged_in {
        Ok(logged_in) => begin_session(request, provider, &logged_in),
        Err(TokenFailure::Grant(reason)) => Err(refused(request, provider, 400, &reason)),
        Err(TokenFailure::Provider(fault)) => Err(failed(request, provider, &fault)),
    }
}

/// Begins a session with a new identifier, never with one that the client has sent: otherwise an attacker could set a cookie before the
/// login and use the session after it. The previous session of the browser ends.
fn begin_session(
    request: &mut Request,
    provider: &Arc<OidcProvider>,
    logged_in: &LoggedIn,
) -> Result<(), Step> {
    let thread = std::rc::Rc::clone(&request.conn.thread);
    if let Some(id) = sessions::id_of(provider, request) {
        sessions::remove(provider, &thread, &id);
    }
    let Some(id) = RandomSecret::new() else {
        request.log(Level::Crit, format_args!("no random numbers for a session"));
        return Err(Step::Status(500));
    };
    let LoggedIn { session, subject, sid } = logged_in;
    let listed = ListedAs { subject, sid: sid.as_deref() };
    if let Err(refusal) = sessions::add(provider, &thread, &id, session, &listed) {
        let name = &provider.name;
        request.log(
            Level::Error,
            format_args!(
                "OIDC provider \"{name}\": the session is not stored, its zone is full ({refusal:?})"
            ),
        );
        return Err(Step::Status(503));
    }
    let is_secure = cookies::is_secure(provider, request);
    cookies::set(request, &provider.cookie_name, &id.text(), None, is_secure);
    state::record(provider, request, None);
    Ok(())
}
