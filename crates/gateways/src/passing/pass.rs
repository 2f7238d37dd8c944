//! `proxy_pass` and related directives: the destination of requests, parsed once, or per request if it has variables.
//!
//! `request` has the URI that is passed on; `peers` has the servers of the address.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Contexts, Error, Object, Span};
use io::op::PeerAddr;

use crate::passing::conf::Conf;
use crate::passing::protocol::{Family, Passing};
use exchange::request::Request;
use peers::address::{self, Fault, Url};
use peers::{Group, Upstreams};
use site::config::{Cx, Scope, Section};
use site::settings::core::FoundBy;
use site::template::Template;
use site::variables::HasVariables;
use telemetry::{ForLog, Level};
use upstream::Target;

/// One `proxy_pass`.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(super) to: To,
    /// The prefix of a request's path that the URI of the address replaces: the path of the location.
    location: Box<str>,
    /// The schemes of an address.
    pub(super) schemes: &'static [Scheme],
    /// Whether an address may have a URI.
    pub(crate) has_uri: bool,
}

/// Destination of a `proxy_pass`.
#[derive(Debug)]
pub(super) enum To {
    /// A literal address.
    Written { url: Box<str>, group: Arc<Group>, target_parts: Arc<TargetParts> },
    /// An address with variables, and its location in the configuration.
    Variables(Template, Span),
}

/// The parts of an address, except the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetParts {
    /// Scheme and host, the start of the default cache key.
    pub(crate) key_start: Vec<u8>,
    /// Whether it uses TLS.
    pub(crate) is_secure: bool,
    /// `$proxy_host`: the host, with the port unless it is the scheme's default.
    pub(crate) host: Vec<u8>,
    /// `$proxy_port`; `None` for a Unix socket.
    pub(crate) port: Option<u16>,
    /// The text after the host.
    pub(crate) uri: Vec<u8>,
}

impl Pass {
    /// Returns the address and its parts, if it has no variables.
    pub(crate) fn written(&self) -> Option<(&str, &TargetParts)> {
        match &self.to {
            To::Written { url, target_parts, .. } => Some((url, target_parts)),
            To::Variables(..) => None,
        }
    }

    /// Returns the group of the address, if it has no variables.
    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        match &self.to {
            To::Written { group, .. } => Some(group),
            To::Variables(..) => None,
        }
    }

    /// Whether the destination may use TLS.
    pub(super) fn may_be_secure(&self) -> bool {
        match &self.to {
            To::Written { target_parts, .. } => target_parts.is_secure,
            To::Variables(..) => true,
        }
    }

    /// Returns the path of the location, the prefix that the URI of the address replaces.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Whether a request that lacks only the final slash of the location's path is redirected, as in nginx.
    pub(crate) fn redirects_to_slash(&self) -> bool {
        self.location.ends_with('/')
    }
}

/// Destination of one request.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) target_parts: Arc<TargetParts>,
    /// Whether its URI came from variables and is sent unchanged.
    pub(crate) is_evaluated: bool,
    /// Prefix of the protocol: `$proxy_host` and related variables are for HTTP.
    pub(crate) prefix: &'static str,
}

/// The scheme of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) text: &'static str,
    /// Its default port.
    pub(crate) port: u16,
    pub(crate) is_secure: bool,
}

impl Scheme {
    /// No scheme: the address stands alone.
    pub(crate) const NONE: Scheme = Scheme { text: "", port: 0, is_secure: false };
}

/// Sets the destination from the argument of the directive.
pub(crate) fn set<F: Family>(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    set_to::<F>(scope, cx, cx.arg(0))
}

/// Works like [`set`], for an address that is not an argument of the directive.
pub(crate) fn set_to<F: Family>(scope: &mut Scope, cx: &mut Cx<'_>, text: &str) -> Result<(), Error> {
    let location = match &scope.core.found_by {
        FoundBy::Exact(path) | FoundBy::Prefix(path) if cx.context == Contexts::LOCATION => Some(&**path),
        _ => None,
    };
    let pass = read(text, location, F::SCHEMES, F::HAS_URI, cx)?;
    let conf = &mut scope.make_mut::<Passing<F>>().conf;
    (conf.pass, conf.pass_block) = (Some(pass), cx.block);
    scope.core.pass = F::PREFIX;
    Ok(())
}

/// Parses a destination with one of these schemes. `location` is the path that a URI replaces.
pub(crate) fn read(
    text: &str,
    location: Option<&str>,
    schemes: &'static [Scheme],
    has_uri: bool,
    cx: &mut Cx<'_>,
) -> Result<Arc<Pass>, Error> {
    let template = cx.template(text)?;
    let to = match template.constant() {
        None => To::Variables(template, cx.statement.span().clone()),
        Some(text) => written(text, location.is_some(), (schemes, has_uri), cx)?,
    };
    Ok(Arc::new(Pass { to, location: location.unwrap_or_default().into(), schemes, has_uri }))
}

/// Parses an address without variables.
fn written(
    text: &str,
    has_path: bool,
    (schemes, has_uri): (&'static [Scheme], bool),
    cx: &mut Cx<'_>,
) -> Result<To, Error> {
    let found = after_scheme(schemes, text.as_bytes());
    let (scheme, rest) = found.ok_or_else(|| {
        let error = cx.error("invalid URL prefix");
        let known: Vec<_> = schemes.iter().map(|scheme| format!("\"{}\"", scheme.text)).collect();
        error.advise(format_args!("it must begin with {}", known.join(" or ")))
    })?;
    // The scheme is ASCII, so the rest of the string begins at a character boundary.
    debug_assert!(text.as_bytes().ends_with(rest), "the scheme is the start of the text");
    let rest = &text[text.len() - rest.len()..];
    let (authority, uri) = split(rest, has_uri);
    let url = Url::parse(authority, scheme.port).map_err(|fault| {
        let error = cx.error(format_args!("{fault} in upstream \"{rest}\""));
        match rest.split_once("://") {
            Some((_, address)) => error.advise(format_args!("write the address alone: \"{address}\"")),
            None => error,
        }
    })?;
    // A block with this name may follow later in the file: blocks are read before the locations.
    let group = cx.http.make_mut::<Upstreams>().of_address(&url, cx.statement.span());
    let group = group.map_err(|fault| cx.error(fault))?;
    if lacks_port(&url) && group.port.is_some() {
        if cx.http.section == Section::Stream {
            return Err(cx.error(format_args!("no port in upstream \"{rest}\"")));
        }
        return Err(cx.undefined(Object::Upstream, rest));
    }
    // The request's path has no prefix that the URI could replace.
    if !has_path && !uri.is_empty() {
        let name = &cx.statement.name.text;
        return Err(cx.error(format_args!(
            "\"{name}\" cannot have URI part in location given by regular expression, or inside named location, or \
             inside \"if\" statement, or inside \"limit_except\" block"
        )));
    }
    let target_parts = Arc::new(TargetParts::of(scheme, &url, authority, uri.as_bytes()));
    Ok(To::Written { url: text.into(), group, target_parts })
}

/// Whether an address has no port and its scheme has no default.
fn lacks_port(url: &Url) -> bool {
    url.port == 0 && !matches!(url.address(), Some(PeerAddr::Unix(_)))
}

/// Splits an address into its scheme and the remaining text.
pub(super) fn after_scheme<'t>(schemes: &[Scheme], text: &'t [u8]) -> Option<(Scheme, &'t [u8])> {
    schemes.iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.text.len())?;
        start.eq_ignore_ascii_case(scheme.text.as_bytes()).then_some((*scheme, rest))
    })
}

/// Splits into host with port, and URI. A colon separates the path of a socket from the URI. Without `has_uri` the text has no
/// URI, as in nginx: the path of a socket may have colons, and a slash after a host is an error of the host.
pub(super) fn split(text: &str, has_uri: bool) -> (&str, &str) {
    if !has_uri {
        return (text, "");
    }
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

impl TargetParts {
    fn of(scheme: Scheme, url: &Url, authority: &str, uri: &[u8]) -> TargetParts {
        let uri = match uri.first() {
            // A query without a path belongs to the root.
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
        TargetParts {
            key_start,
            is_secure: scheme.is_secure,
            host: host.into_owned().into_bytes(),
            port,
            uri,
        }
    }
}

/// Determines the destination of a request and stores it for variables. An invalid address from variables is logged.
///
/// # Errors
/// The status for the client.
pub(crate) fn target(request: &mut Request, conf: &Conf) -> Result<(Target, Destination), u16> {
    let (target, destination) = found(request, conf)?;
    request.extensions.insert(destination.clone());
    Ok((target, destination))
}

fn found(request: &Request, conf: &Conf) -> Result<(Target, Destination), u16> {
    let Some(pass) = &conf.pass else { return Err(500) };
    evaluated(conf.prefix, pass, request, || request.config().http.of::<Upstreams>()).ok_or(500)
}

/// Returns the destination of a request or session among these groups; `None` if its address is invalid, which is logged.
pub(crate) fn evaluated<'u, R: HasVariables>(
    prefix: &'static str,
    pass: &Pass,
    request: &R,
    upstreams: impl FnOnce() -> &'u Upstreams,
) -> Option<(Target, Destination)> {
    match &pass.to {
        To::Written { group, target_parts, .. } => {
            let destination =
                Destination { target_parts: Arc::clone(target_parts), is_evaluated: false, prefix };
            Some((Target::Group(Arc::clone(group)), destination))
        }
        To::Variables(template, position) => {
            let text = template.rendered(request);
            let evaluated = evaluate(prefix, pass, upstreams(), &text).map_err(|fault| {
                let shown = fault.shown(&text);
                request.log(Level::Error, format_args!("{shown} of \"{prefix}_pass\" in {position}"));
            });
            evaluated.ok()
        }
    }
}

/// The error in an address from variables.
enum Wrong {
    Scheme,
    Address(Fault),
    /// The name is not a group, and has no port.
    NoPort,
    /// The address is not valid UTF-8.
    NoText,
}

impl Wrong {
    fn shown(&self, text: &[u8]) -> String {
        let text = text.for_log();
        match self {
            Wrong::Scheme => format!("invalid URL prefix in \"{text}\""),
            Wrong::Address(fault) => format!("{fault} in upstream \"{text}\""),
            Wrong::NoPort => format!("no port in upstream \"{text}\""),
            Wrong::NoText => format!("invalid host in upstream \"{text}\""),
        }
    }
}

/// Parses an address from variables: first as a group's name, then as an address, then as a name to resolve.
fn evaluate(
    prefix: &'static str,
    pass: &Pass,
    upstreams: &Upstreams,
    text: &[u8],
) -> Result<(Target, Destination), Wrong> {
    let (scheme, rest) = after_scheme(pass.schemes, text).ok_or(Wrong::Scheme)?;
    // The URI may contain any bytes, but the authority must be valid UTF-8. The separators (slash, colon, question mark) are ASCII.
    let valid = rest.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let (authority, _) = split(valid, pass.has_uri);
    let uri = match split(valid, pass.has_uri) {
        (authority, uri) if authority.len() + uri.len() < valid.len() => &rest[authority.len() + 1..],
        (authority, _) => &rest[authority.len()..],
    };
    if authority.len() == valid.len() && valid.len() < rest.len() {
        return Err(Wrong::NoText);
    }
    debug_assert!(
        rest.starts_with(authority.as_bytes()) && rest.ends_with(uri),
        "both are parts of the text"
    );
    let url = Url::parse(authority, scheme.port).map_err(Wrong::Address)?;
    let target_parts = Arc::new(TargetParts::of(scheme, &url, authority, uri));
    let destination = Destination { target_parts, is_evaluated: true, prefix };
    // Groups are searched first: the name of a group is not a host name and need not resolve.
    let target = match upstreams.find(url.host.as_bytes(), url.port, url.has_port) {
        Some(group) => Target::Group(Arc::clone(group)),
        None if lacks_port(&url) => return Err(Wrong::NoPort),
        None => match url.kind {
            address::HostKind::Address(address) => Target::Address(address),
            address::HostKind::Name => Target::Dynamic { host: url.host.into_bytes(), port: url.port },
        },
    };
    Ok((target, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP: Scheme = Scheme { text: "http://", port: 80, is_secure: false };

    #[test]
    fn addresses_and_uris_are_distinguished() {
        for (text, expected) in [
            ("a", ("a", "")),
            ("a:80/b?c", ("a:80", "/b?c")),
            ("a?b/c", ("a", "?b/c")),
            ("[::1]:80/", ("[::1]:80", "/")),
            ("unix:/a/b", ("unix:/a/b", "")),
            ("unix:/a/b:/c:d", ("unix:/a/b", "/c:d")),
            ("UNIX:/a:", ("UNIX:/a", "")),
        ] {
            assert_eq!(split(text, true), expected, "{text}");
        }
        assert_eq!(split("unix:/a:/b", false), ("unix:/a:/b", ""));
    }

    #[test]
    fn the_host_field_is_derived_from_the_address() {
        let target_parts = |text: &str| {
            let (authority, uri) = split(text, true);
            let url = Url::parse(authority, 80).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            let target_parts = TargetParts::of(HTTP, &url, authority, uri.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (
                text(&target_parts.key_start),
                text(&target_parts.host),
                target_parts.port,
                text(&target_parts.uri),
            )
        };
        let shown =
            |key: &str, host: &str, port, uri: &str| (key.to_owned(), host.to_owned(), port, uri.to_owned());
        assert_eq!(target_parts("A.b"), shown("http://A.b", "A.b", Some(80), ""));
        assert_eq!(target_parts("a:80/"), shown("http://a", "a", Some(80), "/"));
        assert_eq!(target_parts("a:81/x"), shown("http://a:81", "a:81", Some(81), "/x"));
        assert_eq!(target_parts("[::1]:81?x"), shown("http://[::1]:81", "[::1]:81", Some(81), "/?x"));
        assert_eq!(target_parts("unix:/s:/x"), shown("http://unix:/s:", "localhost", None, "/x"));
    }
}
