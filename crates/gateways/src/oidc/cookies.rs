//! Cookies: values of a request, and fields of responses.

use http::fields::HeaderId;

use super::conf::OidcProvider;
use exchange::request::Request;

/// Whether cookies are sent over TLS only: if the client uses TLS, or the redirect URI says that a proxy before this server has TLS.
pub(super) fn is_secure(provider: &OidcProvider, request: &Request) -> bool {
    provider.redirect.absolute.is_some() || request.conn.secured.get().is_some()
}

/// Returns the value of a cookie. Two different values have none: another site of the same domain may have set one of them.
///
/// Names are case-sensitive here: for a prefix such as `__Host-` browsers give no guarantee in another case.
pub(super) fn value<'r>(request: &'r Request, name: &str) -> Option<&'r [u8]> {
    let lines = request.head.all(request.bytes(), HeaderId::Cookie);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    let mut found = None;
    for pair in pairs {
        let pair = pair.trim_ascii();
        let Some(value) = pair.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) else {
            continue;
        };
        if found.is_some_and(|found| found != value) {
            return None;
        }
        found = Some(value);
    }
    found
}

/// Adds a cookie to the response. `SameSite=Lax` is the strictest value with which a browser sends the cookie when the provider
/// returns the client. Without `Domain` no other host gets the cookie. The cookie ends with the browser's session or after a time in seconds. Its value has only characters that
/// a cookie may have.
pub(super) fn set(request: &mut Request, name: &str, value: &str, max_age_s: Option<u64>, is_secure: bool) {
    debug_assert!(
        value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
        "{value}"
    );
    let mut text = format!("{name}={value}; Path=/");
    if let Some(seconds) = max_age_s {
        text.push_str(&format!("; Max-Age={seconds}"));
    }
    text.push_str("; HttpOnly; SameSite=Lax");
    if is_secure {
        text.push_str("; Secure");
    }
    request.response.fields.push(b"Set-Cookie", text.as_bytes());
}

/// Removes a cookie from the browser.
pub(super) fn remove(request: &mut Request, name: &str, is_secure: bool) {
    set(request, name, "", Some(0), is_secure);
}
