//! Logins that have begun: a client was sent to the provider, and is expected back.
//!
//! The server stores nothing about them, so clients without a session cannot fill any memory. A cookie has a random secret, the time
//! of its end and the URI that the client had requested. `nonce` and the verifier of PKCE are derived from the secret, and `state` is an
//! HMAC of all these values and the provider, by a key that all workers of a server share. So the cookie cannot be computed from the
//! URLs, the callback belongs to the browser that has the cookie, and only this server can make a login: a forged callback causes no
//! request to the provider. Nor does a repeated one: the last [`ENDED_MAX`] logins that have ended are known.
//!
//! A browser has at most [`SLOTS`] such cookies for a provider, so that several windows can log in and the header section of requests
//! has a limit. A login survives reloads, and may begin and end at different threads and workers. It does not survive a restart or the
//! upgrade of the binary.

use std::collections::{HashSet, VecDeque};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::conf::OidcProvider;
use super::cookies;
use super::secret::{RandomSecret, hashed, is_equal};
use exchange::request::Request;
use jose::base64url;

/// Number of logins at a provider that a browser may have begun.
const SLOTS: u8 = 3;

/// Time in seconds in which a login must end.
const LOGIN_TIME_S: u64 = 10 * 60;

/// Maximum length in bytes of a URI that is restored after a login; a longer one becomes `/`.
const RETURN_LEN_MAX: usize = 1024;

/// Number of logins at a provider that are known to have ended, about 100 bytes each. Of more than these in [`LOGIN_TIME_S`], the oldest
/// ones can be repeated, which then is a matter of the provider: it accepts a code once.
const ENDED_MAX: usize = 4096;

/// The key of `state`.
static SERVER_KEY: LazyLock<RandomSecret> = LazyLock::new(|| RandomSecret::of_server("oidc logins"));

/// The last logins that have ended, by their `state`.
#[derive(Debug, Default)]
pub(super) struct EndedLogins(Mutex<(VecDeque<String>, HashSet<String>)>);

impl EndedLogins {
    /// Records the end of a login; returns whether it has not ended before.
    fn end(&self, state: String) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (order, states) = &mut *known;
        if !states.insert(state.clone()) {
            return false;
        }
        order.push_back(state);
        if order.len() > ENDED_MAX
            && let Some(oldest) = order.pop_front()
        {
            states.remove(&oldest);
        }
        true
    }
}

/// A login that has begun.
pub(super) struct PendingLogin {
    /// The secret of the browser, from which the other values are derived.
    secret: RandomSecret,
    /// The number of the cookie.
    slot: u8,
    /// Time in seconds since 1970 at which the login is not accepted any more.
    ends_s: u64,
    /// The URI that the client gets after the login.
    pub(super) return_uri: String,
}

impl PendingLogin {
    /// Begins a login; `None` if the kernel has no random numbers.
    pub(super) fn begin(provider: &OidcProvider, request: &Request, now_s: u64) -> Option<PendingLogin> {
        let is_secure = cookies::is_secure(provider, request);
        let is_free = |slot: &u8| cookies::value(request, &cookie_name(provider, *slot, is_secure)).is_none();
        let secret = RandomSecret::new()?;
        let any = secret.derive("slot", b"").bytes().next().unwrap_or_default() % SLOTS;
        let slot = (0..SLOTS).find(is_free).unwrap_or(any);
        let uri = request.head.request_uri(request.bytes());
        let uri = std::str::from_utf8(uri).ok().filter(|uri| is_local(uri)).unwrap_or("/");
        Some(PendingLogin { secret, slot, ends_s: now_s + LOGIN_TIME_S, return_uri: uri.to_owned() })
    }

    /// Finds the login of a callback with this `state`.
    pub(super) fn find(
        provider: &OidcProvider,
        request: &Request,
        state: &[u8],
        now_s: u64,
    ) -> Option<PendingLogin> {
        let slot = state.first()?.checked_sub(b'0').filter(|slot| *slot < SLOTS)?;
        let name = cookie_name(provider, slot, cookies::is_secure(provider, request));
        let mut parts = std::str::from_utf8(cookies::value(request, &name)?).ok()?.split('.');
        let secret = RandomSecret::parse(parts.next()?.as_bytes())?;
        let ends_s = parts.next()?.parse().ok()?;
        let uri = parts.next().filter(|uri| uri.len() <= RETURN_LEN_MAX * 2)?;
        let return_uri = String::from_utf8(base64url::decode(uri.as_bytes())?).ok()?;
        let login = PendingLogin { secret, slot, ends_s, return_uri };
        let is_own = parts.next().is_none() && is_equal(login.state(provider).as_bytes(), state);
        // A URI was checked before, but the browser could have got the cookie from another site.
        let is_usable = now_s < ends_s && ends_s <= now_s + LOGIN_TIME_S && is_local(&login.return_uri);
        (is_own && is_usable).then_some(login)
    }

    /// Returns `state`.
    pub(super) fn state(&self, provider: &OidcProvider) -> String {
        let mut about = provider.context();
        let PendingLogin { secret, slot, ends_s, return_uri } = self;
        about.extend_from_slice(format!("\0{slot}\0{ends_s}\0{}\0{return_uri}", secret.text()).as_bytes());
        format!("{slot}{}", SERVER_KEY.derive("state", &about))
    }

    /// Ends the login, before its code is sent to the provider; returns whether it has not ended before.
    pub(super) fn end(&self, provider: &OidcProvider) -> bool {
        provider.ended.end(self.state(provider))
    }

    /// Returns `nonce`, which the ID token must have.
    pub(super) fn nonce(&self) -> String {
        self.secret.derive("nonce", b"")
    }

    /// Returns the verifier of PKCE (RFC 7636 section 4.1).
    pub(super) fn verifier(&self) -> String {
        self.secret.derive("verifier", b"")
    }

    /// Sets the cookie.
    pub(super) fn set_cookie(&self, provider: &OidcProvider, request: &mut Request) {
        let is_secure = cookies::is_secure(provider, request);
        let uri = base64url::encode(self.return_uri.as_bytes());
        let value = format!("{}.{}.{uri}", self.secret.text(), self.ends_s);
        let name = cookie_name(provider, self.slot, is_secure);
        cookies::set(request, &name, &value, Some(LOGIN_TIME_S), is_secure);
    }

    /// Removes the cookie: the login has ended.
    pub(super) fn remove_cookie(&self, provider: &OidcProvider, request: &mut Request) {
        let is_secure = cookies::is_secure(provider, request);
        cookies::remove(request, &cookie_name(provider, self.slot, is_secure), is_secure);
    }
}

/// Returns the name of a cookie. With TLS no other site of the domain can set it (`__Host-`).
fn cookie_name(provider: &OidcProvider, slot: u8, is_secure: bool) -> String {
    let prefix = if is_secure { "__Host-" } else { "" };
    format!("{prefix}oidc_login{slot}_{}", &hashed(&provider.context())[..8])
}

/// Whether a URI leads to this server: it is a path. Browsers read `//` and `/\` as the begin of a host, and ignore control characters.
fn is_local(uri: &str) -> bool {
    uri.len() <= RETURN_LEN_MAX
        && uri.starts_with('/')
        && !uri[1..].starts_with(['/', '\\'])
        && uri.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ended_logins_are_known() {
        let ended = EndedLogins::default();
        let state = |number: usize| format!("state{number}");
        assert!(ended.end(state(0)) && !ended.end(state(0)));
        assert!((1..ENDED_MAX).all(|number| ended.end(state(number))));
        assert!(!ended.end(state(0)), "it is the oldest one");
        assert!(ended.end(state(ENDED_MAX)) && ended.end(state(0)));
        assert!(!ended.end(state(2)));
        let known = ended.0.lock().expect("no thread has panicked");
        assert_eq!((known.0.len(), known.1.len()), (ENDED_MAX, ENDED_MAX));
    }

    #[test]
    fn only_paths_of_this_server_are_restored() {
        let long = format!("/{}", "x".repeat(RETURN_LEN_MAX));
        for uri in ["/", "/a", "/a//b?c=//d", "/%2F%2Fevil.example", "/.//evil.example"] {
            assert!(is_local(uri), "{uri}");
        }
        for uri in [
            "",
            "a",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "https://evil.example",
            "/\t/evil.example",
            "/a\r\nSet-Cookie: x",
            "/a b",
            "/\u{e9}",
            &long,
        ] {
            assert!(!is_local(uri), "{uri}");
        }
    }
}
