//! `proxy_pass` and its siblings: where requests go, read once, or for each request where variables are in it.
//!
//! `request` has the URI that is passed on; `upstream::peers` has the servers of the address.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Contexts, Error, Span};
use io::op::PeerAddr;

use crate::passing::conf::Conf;
use crate::passing::{Family, Passing};
use exchange::config::{Cx, Scope};
use exchange::request::Request;
use exchange::settings::core::FoundBy;
use exchange::template::Template;
use telemetry::Level;
use upstream::Target;
use upstream::peers::address::{self, Fault, Url};
use upstream::peers::{Group, Upstreams};

/// One `proxy_pass`.
#[derive(Debug)]
pub(crate) struct Pass {
    to: To,
    /// The part of a request's path that the URI of the address replaces: the path of the location.
    location: Box<str>,
    /// The schemes of an address.
    schemes: &'static [Scheme],
}

/// Where to.
#[derive(Debug)]
enum To {
    /// As it is written.
    Written { url: Box<str>, group: Arc<Group>, place: Arc<Place> },
    /// As each request has it, with where that stands.
    Variables(Template, Span),
}

/// The parts of an address beside the server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Scheme and host, as the usual cache key starts.
    pub(crate) key_start: Vec<u8>,
    /// Whether it is spoken to by TLS.
    pub(crate) is_secure: bool,
    /// `$proxy_host`: the host, with the port if it is not the scheme's.
    pub(crate) host: Vec<u8>,
    /// `$proxy_port`; a unix socket has none.
    pub(crate) port: Option<u16>,
    /// The text after the host.
    pub(crate) uri: Vec<u8>,
}

impl Pass {
    /// The address and its parts, when it is without variables.
    pub(crate) fn written(&self) -> Option<(&str, &Place)> {
        match &self.to {
            To::Written { url, place, .. } => Some((url, place)),
            To::Variables(..) => None,
        }
    }

    /// Whether requests may be passed on by TLS.
    pub(super) fn may_be_secure(&self) -> bool {
        match &self.to {
            To::Written { place, .. } => place.is_secure,
            To::Variables(..) => true,
        }
    }

    /// The part of the path that the URI replaces.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Whether a URI that only lacks the slash at the end of the location's path is sent there, as in nginx.
    pub(crate) fn redirects_to_slash(&self) -> bool {
        self.location.ends_with('/')
    }
}

/// Where one request goes.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) place: Arc<Place>,
    /// Whether its URI came out of variables, and goes out as it is.
    pub(crate) is_evaluated: bool,
    /// The prefix of the protocol: `$proxy_host` and its siblings are for HTTP.
    pub(crate) prefix: &'static str,
}

/// The scheme of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) text: &'static str,
    /// Its usual port.
    pub(crate) port: u16,
    pub(crate) is_secure: bool,
}

impl Scheme {
    /// None: the address stands alone.
    pub(crate) const NONE: Scheme = Scheme { text: "", port: 0, is_secure: false };
}

/// The setter.
pub(crate) fn set<F: Family>(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    set_to::<F>(scope, cx, cx.arg(0))
}

/// The same for an address that need not be written.
pub(crate) fn set_to<F: Family>(scope: &mut Scope, cx: &mut Cx<'_>, text: &str) -> Result<(), Error> {
    let location = match &scope.core.found_by {
        FoundBy::Prefix(path) if cx.context == Contexts::LOCATION => Some(&**path),
        _ => None,
    };
    let template = cx.template(text)?;
    let to = match template.constant() {
        None => To::Variables(template, cx.statement.span().clone()),
        Some(text) => written(F::SCHEMES, text, location.is_some(), cx)?,
    };
    let pass = Arc::new(Pass { to, location: location.unwrap_or_default().into(), schemes: F::SCHEMES });
    let conf = &mut scope.own::<Passing<F>>().conf;
    (conf.pass, conf.pass_block) = (Some(pass), cx.block);
    Ok(())
}

/// An address without variables.
fn written(schemes: &[Scheme], text: &str, has_path: bool, cx: &mut Cx<'_>) -> Result<To, Error> {
    let found = after_scheme(schemes, text.as_bytes());
    let (scheme, rest) = found.ok_or_else(|| {
        let error = cx.error("invalid URL prefix");
        let known: Vec<_> = schemes.iter().map(|scheme| format!("\"{}\"", scheme.text)).collect();
        error.advise(format_args!("it must begin with {}", known.join(" or ")))
    })?;
    // It was text, and the scheme is ASCII.
    let rest = &text[text.len() - rest.len()..];
    let (authority, uri) = split(rest);
    let url = Url::parse(authority, scheme.port).map_err(|fault| {
        let error = cx.error(format_args!("{fault} in upstream \"{rest}\""));
        match rest.split_once("://") {
            Some((_, address)) => error.advise(format_args!("write the address alone: \"{address}\"")),
            None => error,
        }
    })?;
    // A block of this name may stand further down in the text: blocks are read before the locations.
    let group = cx.http.own::<Upstreams>().of_address(&url, cx.statement.span());
    let group = group.map_err(|fault| cx.error(fault))?;
    if lacks_port(&url) && group.port.is_some() {
        return Err(cx.error(format_args!("no port in upstream \"{rest}\"")));
    }
    // There would be nothing in the request's path that it could take the place of.
    if !has_path && !uri.is_empty() {
        let name = &cx.statement.name.text;
        return Err(cx.error(format_args!(
            "\"{name}\" cannot have URI part in location given by regular expression, or inside named location, or \
             inside \"if\" statement, or inside \"limit_except\" block"
        )));
    }
    let place = Arc::new(Place::of(scheme, &url, authority, uri.as_bytes()));
    Ok(To::Written { url: text.into(), group, place })
}

/// Whether an address has no port and its scheme knows none.
fn lacks_port(url: &Url) -> bool {
    url.port == 0 && !matches!(url.address(), Some(PeerAddr::Unix(_)))
}

/// The scheme of an address, and the rest.
fn after_scheme<'t>(schemes: &[Scheme], text: &'t [u8]) -> Option<(Scheme, &'t [u8])> {
    schemes.iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.text.len())?;
        start.eq_ignore_ascii_case(scheme.text.as_bytes()).then_some((*scheme, rest))
    })
}

/// Host and port, and the URI behind them. A colon separates it from the path of a socket.
fn split(text: &str) -> (&str, &str) {
    let socket = text.get(..UNIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(UNIX));
    if socket {
        let path = &text[UNIX.len()..];
        return match path.find(':') {
            Some(colon) => (&text[..UNIX.len() + colon], &path[colon + 1..]),
            None => (text, ""),
        };
    }
    text.split_at(text.find(['/', '?']).unwrap_or(text.len()))
}

/// The prefix of a socket's path.
const UNIX: &str = "unix:";

impl Place {
    fn of(scheme: Scheme, url: &Url, authority: &str, uri: &[u8]) -> Place {
        let uri = match uri.first() {
            // A query alone belongs to the root.
            Some(b'?') => [b"/", uri].concat(),
            _ => uri.to_vec(),
        };
        let is_socket = authority.get(..UNIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(UNIX));
        let (host, port) = match is_socket {
            true => ("localhost".into(), None),
            false if url.port == scheme.port => (Cow::Borrowed(url.host.as_str()), Some(url.port)),
            false => (format!("{}:{}", url.host, url.port).into(), Some(url.port)),
        };
        let key_host = if is_socket { Cow::Owned(format!("{authority}:")) } else { host.clone() };
        let key_start = format!("{}{key_host}", scheme.text).into_bytes();
        Place { key_start, is_secure: scheme.is_secure, host: host.into_owned().into_bytes(), port, uri }
    }
}

/// Finds out where a request goes, which variables show from then on. An invalid address made of variables is logged.
///
/// # Errors
/// The status that answers.
pub(crate) fn target(request: &mut Request, conf: &Conf) -> Result<(Target, Destination), u16> {
    let (target, destination) = found(request, conf)?;
    request.extensions.insert(destination.clone());
    Ok((target, destination))
}

fn found(request: &mut Request, conf: &Conf) -> Result<(Target, Destination), u16> {
    let Some(pass) = &conf.pass else { return Err(500) };
    match &pass.to {
        To::Written { group, place, .. } => {
            let destination =
                Destination { place: Arc::clone(place), is_evaluated: false, prefix: conf.prefix };
            Ok((Target::Group(Arc::clone(group)), destination))
        }
        To::Variables(template, place) => {
            let text = template.rendered(request);
            evaluate(conf.prefix, pass.schemes, request, &text).map_err(|fault| {
                let shown = fault.shown(&text);
                request.log(Level::Error, format_args!("{shown} of \"{}_pass\" in {place}", conf.prefix));
                500
            })
        }
    }
}

/// The error in an address made of variables.
enum Wrong {
    Scheme,
    Address(Fault),
    /// It is no group, and has no port.
    NoPort,
    /// It has bytes that are no text.
    NoText,
}

impl Wrong {
    fn shown(&self, text: &[u8]) -> String {
        let text = text.escape_ascii();
        match self {
            Wrong::Scheme => format!("invalid URL prefix in \"{text}\""),
            Wrong::Address(fault) => format!("{fault} in upstream \"{text}\""),
            Wrong::NoPort => format!("no port in upstream \"{text}\""),
            Wrong::NoText => format!("invalid host in upstream \"{text}\""),
        }
    }
}

/// Reads an address that came out of variables: a group's name first, then an address, then a name to be resolved.
fn evaluate(
    prefix: &'static str,
    schemes: &[Scheme],
    request: &Request,
    text: &[u8],
) -> Result<(Target, Destination), Wrong> {
    let (scheme, rest) = after_scheme(schemes, text).ok_or(Wrong::Scheme)?;
    // The URI may hold any bytes, the authority only text; a slash, a colon and a question mark are single bytes.
    let valid = rest.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let (authority, _) = split(valid);
    let uri = match split(valid) {
        (authority, uri) if authority.len() + uri.len() < valid.len() => &rest[authority.len() + 1..],
        (authority, _) => &rest[authority.len()..],
    };
    if authority.len() == valid.len() && valid.len() < rest.len() {
        return Err(Wrong::NoText);
    }
    let url = Url::parse(authority, scheme.port).map_err(Wrong::Address)?;
    let place = Arc::new(Place::of(scheme, &url, authority, uri));
    let destination = Destination { place, is_evaluated: true, prefix };
    let upstreams = &request.config().http.of::<Upstreams>();
    // A group first: its name is no name of a host, and need not resolve.
    let target = match upstreams.find(url.host.as_bytes(), url.port, url.has_port) {
        Some(group) => Target::Group(Arc::clone(group)),
        None if lacks_port(&url) => return Err(Wrong::NoPort),
        None => match url.place {
            address::Place::Address(address) => Target::Address(address),
            address::Place::Name => Target::Dynamic { host: url.host.into_bytes(), port: url.port },
        },
    };
    Ok((target, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP: Scheme = Scheme { text: "http://", port: 80, is_secure: false };

    #[test]
    fn addresses_and_uris_are_told_apart() {
        for (text, expected) in [
            ("a", ("a", "")),
            ("a:80/b?c", ("a:80", "/b?c")),
            ("a?b/c", ("a", "?b/c")),
            ("[::1]:80/", ("[::1]:80", "/")),
            ("unix:/a/b", ("unix:/a/b", "")),
            ("unix:/a/b:/c:d", ("unix:/a/b", "/c:d")),
            ("UNIX:/a:", ("UNIX:/a", "")),
        ] {
            assert_eq!(split(text), expected, "{text}");
        }
    }

    #[test]
    fn an_address_says_what_the_host_field_is() {
        let place = |text: &str| {
            let (authority, uri) = split(text);
            let url = Url::parse(authority, 80).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            let place = Place::of(HTTP, &url, authority, uri.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&place.key_start), text(&place.host), place.port, text(&place.uri))
        };
        let shown =
            |key: &str, host: &str, port, uri: &str| (key.to_owned(), host.to_owned(), port, uri.to_owned());
        assert_eq!(place("A.b"), shown("http://A.b", "A.b", Some(80), ""));
        assert_eq!(place("a:80/"), shown("http://a", "a", Some(80), "/"));
        assert_eq!(place("a:81/x"), shown("http://a:81", "a:81", Some(81), "/x"));
        assert_eq!(place("[::1]:81?x"), shown("http://[::1]:81", "[::1]:81", Some(81), "/?x"));
        assert_eq!(place("unix:/s:/x"), shown("http://unix:/s:", "localhost", None, "/x"));
    }
}
