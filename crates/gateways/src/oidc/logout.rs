//! Logout: by the client (OpenID Connect RP-Initiated Logout 1.0), and by the provider through the browser (Front-Channel Logout 1.0).

use std::rc::Rc;
use std::sync::Arc;

use io::segments::Source;

use super::call::Caller;
use super::conf::{OidcProvider, ServedUri};
use super::login::{absolute, redirect};
use super::state::{self, Current};
use super::tokens::add_arg;
use super::{args, cookies, discovery, sessions};
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;

/// The page after a logout without `post_logout_uri`.
const LOGGED_OUT: &[u8] =
    b"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Logged out</title></head>\n\
<body><p>You have logged out.</p></body></html>\n";

/// Ends the session of the client, then sends it to the provider, else to `post_logout_uri`.
pub(super) async fn by_client(request: &mut Request, served: Vec<ServedUri>) -> Step {
    // Of several providers with this URI, those where the client has a session.
    let has_session = |uri: &&ServedUri| state::session(&uri.provider, request).is_some();
    let Some(uri) = served.iter().find(has_session).or(served.first()) else { return Step::Next };
    let provider = Arc::clone(&uri.provider);
    let current = end_session(request, &provider);
    // The session has ended, also if the provider cannot be reached.
    let metadata = discovery::metadata(&Caller::of(request), &provider).await.ok();
    let after = provider.post_logout_uri.as_deref();
    let after = after
        .map(|uri| if uri.starts_with('/') { absolute(request, &provider, uri) } else { uri.to_owned() });
    if let Some(end) = metadata.as_ref().and_then(|metadata| metadata.end_session.as_ref()) {
        let mut query = String::new();
        add_arg(&mut query, "client_id", &provider.client_id);
        if let Some(current) = current.filter(|_| provider.adds_token_hint) {
            add_arg(&mut query, "id_token_hint", &current.session.id_token);
        }
        if let Some(after) = &after {
            add_arg(&mut query, "post_logout_redirect_uri", after);
        }
        return redirect(request, end.with_args(&query));
    }
    match after {
        Some(after) => redirect(request, after),
        None => page(request, LOGGED_OUT),
    }
}

/// Ends the session of the client's cookie. The cookie is removed also if there is no session, so that a browser does not send it
/// for ever.
fn end_session(request: &mut Request, provider: &Arc<OidcProvider>) -> Option<Rc<Current>> {
    let current = state::session(provider, request);
    let thread = Rc::clone(&request.conn.thread);
    if let Some(current) = &current {
        sessions::remove(provider, &thread, &current.id);
    }
    state::record(provider, request, None);
    let is_secure = cookies::is_secure(provider, request);
    cookies::remove(request, &provider.cookie_name, is_secure);
    current
}

/// Ends the sessions that belong to a session of the provider, or the one of the cookie.
pub(super) fn by_provider(request: &mut Request, served: &[ServedUri]) -> Step {
    let Some(args) = args::Args::parse(&request.args) else { return Step::Status(400) };
    match (args.get("iss"), args.get("sid")) {
        (Some(issuer), Some(sid)) if !sid.is_empty() => {
            let mut owners = served.iter().filter(|uri| uri.provider.issuer == issuer).peekable();
            if owners.peek().is_none() {
                return Step::Status(400);
            }
            let thread = Rc::clone(&request.conn.thread);
            owners.for_each(|uri| sessions::remove_sid(&uri.provider, &thread, &sid));
        }
        (None, None) => {
            for uri in served {
                if state::session(&uri.provider, request).is_some() {
                    end_session(request, &uri.provider);
                }
            }
        }
        // Front-Channel Logout 1.0 section 2: both or none.
        _ => return Step::Status(400),
    }
    page(request, b"")
}

/// Completes a response that no cache may store.
fn page(request: &mut Request, text: &'static [u8]) -> Step {
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text("text/html".into());
    response.fields.push(b"Cache-Control", b"no-store");
    response.set_bytes(Source::Static(text));
    Step::Done
}
