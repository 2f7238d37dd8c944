//! A request and the sticky sessions of a group: the values by which a server is selected, the cookie in the response, and the log
//! lines about the table of sessions.

use std::net::IpAddr;

use exchange::request::{Address, Request};
use peers::sticky::{Cookie, Expires, Learn, Learned, SAME_SITE, Sid, Sticky, StickyKind};
use peers::{Ask, Group, Pick, Selection};
use site::var_ref::VarRef;
use telemetry::Level;
use telemetry::time_zone::since_1970;

/// The `Set-Cookie` to add to a response, stored in the request.
pub struct SetCookie(pub Vec<u8>);

/// Returns the values by which a server of this group is selected.
pub(super) fn ask(group: &Group, request: &Request) -> Ask {
    Ask {
        client: client_of(request.client()),
        key: group.key().map(|key| key.rendered(request)).unwrap_or_default(),
        session: group.sticky.as_ref().and_then(|sticky| first_value(&sticky.lookup, request)),
    }
}

/// Returns the client's address for `ip_hash`: the address that `realip` has set, otherwise the address of the peer.
pub(super) fn client_of(client: &Address) -> Option<IpAddr> {
    match client {
        Address::Inet(address) => Some(address.ip()),
        Address::Unix(_) => None,
    }
}

/// Returns the first of these variables that is not empty.
fn first_value(variables: &[VarRef], request: &Request) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for variable in variables {
        if variable.value(request, &mut text) && !text.is_empty() {
            return Some(text);
        }
        text.clear();
    }
    None
}

/// Stores the cookie of a selected server in the request's extensions, with `sticky cookie`.
pub(super) fn set_cookie(group: &Group, pick: &Pick, request: &mut Request) {
    if let Some(Sticky { kind: StickyKind::Cookie(cookie), .. }) = &group.sticky {
        let text = cookie_text(cookie, pick.sid(), request);
        request.extensions.insert(SetCookie(text));
    }
}

/// Returns the value of `Set-Cookie` for a client, with the attributes in nginx's order.
fn cookie_text(cookie: &Cookie, sid: &Sid, request: &Request) -> Vec<u8> {
    let mut text = cookie.name.clone().into_bytes();
    text.push(b'=');
    text.extend_from_slice(sid.as_slice());
    match cookie.expires {
        None => {}
        Some(Expires::Max) => {
            text.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000");
        }
        Some(Expires::After(seconds)) => {
            let (now, _) = since_1970(rt::wall());
            text.extend_from_slice(b"; expires=");
            text.extend_from_slice(&http::date::cookie(now.saturating_add(seconds)));
            text.extend_from_slice(format!("; max-age={seconds}").as_bytes());
        }
    }
    let domain = cookie.domain.as_ref().map(|domain| domain.rendered(request)).unwrap_or_default();
    append(&mut text, b"; domain=", &domain);
    text.extend_from_slice(if cookie.http_only { b"; httponly" } else { b"" });
    text.extend_from_slice(if cookie.secure { b"; secure" } else { b"" });
    let mut same_site = cookie.same_site.as_ref().map(|value| value.rendered(request)).unwrap_or_default();
    let is_known = |value: &[u8]| SAME_SITE.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(value));
    if !same_site.is_empty() && !is_known(&same_site) {
        same_site = b"strict".to_vec();
    }
    append(&mut text, b"; samesite=", &same_site);
    append(&mut text, b"; path=", cookie.path.as_deref().unwrap_or_default().as_bytes());
    text
}

fn append(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !value.is_empty() {
        text.extend_from_slice(name);
        text.extend_from_slice(value);
    }
}

/// Reports the header section of a response to the group, with the session that the response creates.
pub(super) fn header_received(selection: &mut Selection, request: &Request, pick: &mut Pick) {
    let created = learn_of(selection.group()).and_then(|learn| first_value(&learn.create, request));
    if let Some(learned) = selection.header_received(pick, created) {
        log_learned(selection.group(), learned, request);
    }
}

fn learn_of(group: &Group) -> Option<&Learn> {
    match &group.sticky.as_ref()?.kind {
        StickyKind::Learn(learn) => Some(learn),
        _ => None,
    }
}

/// Logs that the table of sessions has no space.
fn log_learned(group: &Group, learned: Learned, request: &Request) {
    let zone = learn_of(group).map_or("", |learn| learn.zone.name());
    let what = "could not allocate node in sticky session zone";
    match learned {
        Learned::Noted => {}
        Learned::PushedOut => {
            let then = "expiring least recently used session";
            request.log(Level::Warn, format_args!("{what} \"{zone}\", {then}"));
        }
        Learned::NoSpace => request.log(Level::Alert, format_args!("{what} \"{zone}\"")),
    }
}
