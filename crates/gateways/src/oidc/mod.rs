//! `oidc`: clients log in at an OpenID provider (OpenID Connect Core 1.0, authorization code flow), with nginx's directives.
//!
//! ```text
//! request without a session --> redirect to the provider --> callback: code --> tokens --> session --> the requested URI
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`conf`] | the directives |
//! | [`login`] | the redirect to the provider, and the callback |
//! | [`logout`] | the ends of sessions |
//! | [`tokens`] | requests for tokens, and their refresh |
//! | [`state`] | the session of a request |
//! | [`sessions`] | the sessions in their zone |
//! | [`pending`] | logins that have begun |
//! | [`id_token`] | the checks of an ID token |
//! | [`discovery`] | the fetches of the metadata and the keys of a provider |
//! | [`documents`] | documents of a provider, which all threads share |
//! | [`shared_work`] | work that is done once for all requests that need it |
//! | [`call`](mod@call) | one request to a provider |
//! | [`cookies`], [`args`], [`url`], [`secret`] | cookies, arguments, URLs, random secrets |
//!
//! Every failure refuses the request. Tokens, codes and secrets are in no message of any level.

mod args;
mod call;
mod conf;
mod cookies;
mod discovery;
mod documents;
mod id_token;
mod login;
mod logout;
mod pending;
mod secret;
mod sessions;
mod shared_work;
mod state;
mod tokens;
mod url;

use std::sync::Arc;

use self::call::Caller;
use self::conf::{AuthConf, ProvidersConf, ServedKind, ServedUri};
use self::state::LocationProvider;
use crate::{Declaration, Module};
use exchange::module::{Prefixed, Variable};
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use site::config::{HttpType, Scope, SettingsType};
use site::declaration::BlockHooks;
use telemetry::{ForLog, Level};

/// The module. As with `satisfy any` the access phase may end before this module, its own URIs are served before that phase then.
pub(crate) static MODULE: Module = Module {
    variables: &[
        Variable {
            name: "oidc_access_token",
            get: |request, out| text(request, |current| &current.session.access_token, out),
            set: None,
            help: "The access token of the session of `auth_oidc`.",
        },
        Variable {
            name: "oidc_id_token",
            get: |request, out| text(request, |current| &current.session.id_token, out),
            set: None,
            help: "The ID token of the session of `auth_oidc`.",
        },
        Variable {
            name: "oidc_userinfo",
            get: |request, out| text(request, |current| &current.session.userinfo, out),
            set: None,
            help: "The UserInfo of the session of `auth_oidc`, as JSON; needs `userinfo on`.",
        },
    ],
    prefixed: &[Prefixed {
        prefix: "oidc_claim_",
        get: state::claim,
        help: "A claim of the ID token of `auth_oidc`, else of UserInfo.",
    }],
    add_to_plan: |http, scope, plan| {
        if !http.of::<ProvidersConf>().is_used() {
            return;
        }
        let conf = scope.shared::<AuthConf>();
        if scope.core.satisfy.any {
            plan.now_or_later(
                Phase::Preaccess,
                Arc::clone(&conf),
                |_, request| served(request).is_empty().then_some(Step::Next),
                |_, request| Box::pin(serve(request)),
            );
        }
        plan.now_or_later(Phase::Access, conf, admit, |conf, request| Box::pin(run(conf, request)));
    },
    rehearse,
    ..Module::of(Declaration {
        directives: &[conf::DIRECTIVES],
        settings: &[SettingsType::of::<AuthConf>()],
        http: &[HttpType::of::<ProvidersConf>()],
        blocks: BlockHooks { requires: conf::requires, ..BlockHooks::NONE },
        addresses: conf::complete,
        check: conf::check,
        ..Declaration::named("http_oidc")
    })
};

/// Whether access needs a login. A name with variables may be `off` for some requests, as an argument of `auth_basic` may be.
/// For warnings it counts as a restriction.
pub fn restricts_by_login(scope: &Scope) -> bool {
    scope.of::<AuthConf>().provider.is_some()
}

/// Appends a text of the session, unless it is empty.
fn text(request: &Request, of: fn(&state::Current) -> &String, out: &mut Vec<u8>) -> bool {
    state::with(request, |current| {
        let text = of(current);
        out.extend_from_slice(text.as_bytes());
        !text.is_empty()
    })
}

/// Returns the purposes of the requested URI. The provider returns clients to a path that need not be inside of a location with
/// `auth_oidc`, so all locations of the server have this handler.
fn served(request: &Request) -> Vec<ServedUri> {
    let conf = request.config().http.of::<ProvidersConf>();
    conf.served(request.server.0, &request.uri).cloned().collect()
}

/// Serves a URI of the module.
async fn serve(request: &mut Request) -> Step {
    let mut served = served(request);
    let Some(kind) = served.first().map(|uri| uri.kind) else { return Step::Next };
    served.retain(|uri| uri.kind == kind);
    match kind {
        ServedKind::Callback => login::callback(request, served).await,
        ServedKind::Logout => logout::by_client(request, served).await,
        ServedKind::FrontChannelLogout => logout::by_provider(request, &served),
    }
}

/// Permits a request whose session needs no refresh; `None` if the handler has to wait.
fn admit(conf: &AuthConf, request: &mut Request) -> Option<Step> {
    if !served(request).is_empty() {
        return None;
    }
    match state::provider_of(conf, request) {
        LocationProvider::None => Some(Step::Next),
        LocationProvider::Unknown(name) => {
            request.log(Level::Error, format_args!("unknown OIDC provider \"{}\"", name.for_log()));
            Some(Step::Status(500))
        }
        LocationProvider::Provider(provider) => {
            let current = state::session(&provider, request)?;
            (!tokens::needs_refresh(&current.session)).then_some(Step::Allow)
        }
    }
}

/// Serves a URI of the module; else refreshes the session of a request, or begins a login.
async fn run(conf: &AuthConf, request: &mut Request) -> Step {
    if !served(request).is_empty() {
        return serve(request).await;
    }
    let LocationProvider::Provider(provider) = state::provider_of(conf, request) else { return Step::Next };
    if let Some(current) = state::session(&provider, request) {
        let current = tokens::refresh(&Caller::of(request), &provider, &current).await;
        let is_valid = current.is_some();
        state::record(&provider, request, current);
        if is_valid {
            return Step::Allow;
        }
    }
    login::begin(request, &provider).await
}

/// Notes that a session is assumed: a rehearsal sends no request to a provider.
fn rehearse(request: &mut Request) -> Option<Step> {
    /// A note was made.
    #[derive(Default)]
    struct Noted;

    let purpose = served(request).first().map(|uri| (uri.kind, uri.provider.name.clone()));
    let text = match purpose {
        Some((kind, name)) => {
            let what = match kind {
                ServedKind::Callback => "the redirect URI",
                ServedKind::Logout => "the logout URI",
                ServedKind::FrontChannelLogout => "the front-channel logout URI",
            };
            format!("this is {what} of the OIDC provider \"{name}\": the module itself responds")
        }
        None => match state::provider_of(request.scope().of::<AuthConf>(), request) {
            LocationProvider::Provider(provider) => format!(
                "a session is assumed: without one the client is redirected to the OIDC provider \"{}\" ({})",
                provider.name, provider.issuer
            ),
            // The handlers do nothing, or refuse the request.
            LocationProvider::None | LocationProvider::Unknown(_) => return None,
        },
    };
    let is_first = request.shared.extensions.borrow().get::<Noted>().is_none();
    if is_first {
        request.shared.extensions.borrow_mut().insert(Noted);
        request.note(|| Event::Said { label: "oidc", text });
    }
    Some(Step::Next)
}

#[cfg(test)]
mod tests;
