//! The session of a request, for the handler of the access phase and the variables.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use jose::object::Value;
use jose::{Object, Signed, claims};

use super::conf::{AuthConf, OidcProvider, ProvidersConf};
use super::secret::RandomSecret;
use super::sessions::{self, StoredSession};
use exchange::request::Request;
use site::slots::nested;

/// A session of a client.
pub(super) struct Current {
    /// The identifier in the cookie.
    pub(super) id: RandomSecret,
    /// The tokens and the times.
    pub(super) session: StoredSession,
    /// The claims of the ID token, which was verified at the login.
    claims: OnceCell<Option<Object>>,
    /// The claims of UserInfo.
    userinfo: OnceCell<Option<Object>>,
}

impl Current {
    /// Returns a session whose claims are parsed at their first use.
    pub(super) fn new(id: RandomSecret, session: StoredSession) -> Current {
        Current { id, session, claims: OnceCell::new(), userinfo: OnceCell::new() }
    }

    /// Returns the claims of the ID token.
    pub(super) fn claims(&self) -> Option<&Object> {
        let parse = || claims::parse(&Signed::parse(self.session.id_token.as_bytes()).ok()?.payload).ok();
        self.claims.get_or_init(parse).as_ref()
    }

    /// Returns a claim of the ID token, else of the UserInfo endpoint.
    fn claim(&self, name: &str) -> Option<Value> {
        let parse = || Object::parse(self.session.userinfo.as_bytes());
        let in_token = self.claims().and_then(|claims| claims::named(claims, name));
        in_token.or_else(|| claims::named(self.userinfo.get_or_init(parse).as_ref()?, name))
    }
}

/// The session that was looked up last.
#[derive(Default)]
struct LookedUp(Option<(Arc<OidcProvider>, Option<Rc<Current>>)>);

/// The provider of a location.
pub(super) enum LocationProvider {
    /// `auth_oidc off`
    None,
    /// This name is no provider.
    Unknown(Vec<u8>),
    /// This provider.
    Provider(Arc<OidcProvider>),
}

/// Returns the provider of the location of a request.
pub(super) fn provider_of(conf: &AuthConf, request: &Request) -> LocationProvider {
    let Some(template) = &conf.provider else { return LocationProvider::None };
    let name = template.rendered(request);
    let providers = request.config().http.of::<ProvidersConf>();
    match std::str::from_utf8(&name).ok().and_then(|name| providers.named(name)) {
        Some(provider) => LocationProvider::Provider(Arc::clone(provider)),
        None if *name == *b"off" => LocationProvider::None,
        None => LocationProvider::Unknown(name.to_vec()),
    }
}

/// Returns the session that the client has at a provider. It is looked up once for a request and its subrequests.
pub(super) fn session(provider: &Arc<OidcProvider>, request: &Request) -> Option<Rc<Current>> {
    if let Some(LookedUp(Some((known, current)))) = request.shared.extensions.borrow().get::<LookedUp>()
        && Arc::ptr_eq(known, provider)
    {
        return current.clone();
    }
    let id = sessions::id_of(provider, request);
    let found =
        id.and_then(|id| sessions::load(provider, &id).map(|session| Rc::new(Current::new(id, session))));
    record(provider, request, found.clone());
    found
}

/// Stores the session of a request.
pub(super) fn record(provider: &Arc<OidcProvider>, request: &Request, current: Option<Rc<Current>>) {
    let mut extensions = request.shared.extensions.borrow_mut();
    *extensions.get_or_default::<LookedUp>() = LookedUp(Some((Arc::clone(provider), current)));
}

/// Calls `append` with the session of a request, for a variable. The name of the provider may have variables, even this one by mistake.
pub(super) fn with(request: &Request, append: impl FnOnce(&Current) -> bool) -> bool {
    nested(request, "oidc", || match provider_of(request.scope().of::<AuthConf>(), request) {
        LocationProvider::Provider(provider) => {
            session(&provider, request).is_some_and(|current| append(&current))
        }
        LocationProvider::None | LocationProvider::Unknown(_) => false,
    })
}

/// Appends a claim by its name.
pub(super) fn claim(request: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    with(request, |current| {
        let text = current.claim(name).as_ref().and_then(claims::text);
        text.map(|text| out.extend_from_slice(text.as_bytes())).is_some()
    })
}
