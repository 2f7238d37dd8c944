//! Determines the address of a client behind a trusted proxy.
//!
//! The address from a proxy is in a request field or in a PROXY protocol header. It replaces the peer address for all
//! callers of [`Request::client`], from this module's phases to the end of the request.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use conf::{Args, Error, Spec};
use http::fields::HeaderId;

use crate::{Declaration, Directive, Module};
use exchange::module::{SessionHooks, SessionVariable, Variable};
use exchange::phases::{Phase, Step};
use exchange::request::{Address, ConnInfo, OnConnection, Request};
use exchange::session::{SessionPhase, SessionStep};
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::network::Network;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    add_to_plan: |_, scope, plan| {
        if !scope.of::<Conf>().from.items().is_empty() {
            // Early, so that rewriting uses the address; and again for locations with other settings.
            plan.now(Phase::PostRead, scope.shared::<Conf>(), run);
            plan.now(Phase::Preaccess, scope.shared::<Conf>(), run);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_realip")
    })
};

/// `set_real_ip_from` in `stream`: the address is that of the PROXY protocol.
pub(crate) static STREAM: Module = Module {
    session: SessionHooks {
        variables: SESSION_VARIABLES,
        add_to_plan: |_, scope, plan| {
            if !scope.of::<Conf>().from.items().is_empty() {
                plan.now(SessionPhase::PostAccept, scope.shared::<Conf>(), |conf, session| {
                    session.real_client = conf.of_proxy_header(&session.conn);
                    SessionStep::Next
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        twin: Some(&["real_ip_header", "real_ip_recursive"]),
        ..Declaration::named("stream_realip")
    })
};

const SESSION_VARIABLES: &[SessionVariable] = &[
    SessionVariable {
        name: "realip_remote_addr",
        get: |session, out| session.conn.peer.show_address(out),
        set: None,
        help: "The address of the connection's peer, whatever `$remote_addr` is.",
    },
    SessionVariable {
        name: "realip_remote_port",
        get: |session, out| session.conn.peer.show_port(out),
        set: None,
        help: "The port of the connection's peer, whatever `$remote_port` is.",
    },
];

impl Conf {
    /// Returns the client's address in the header of the PROXY protocol of a trusted proxy.
    fn of_proxy_header(&self, conn: &ConnInfo) -> Option<Address> {
        let trusted = |address: &Address| self.from.items().iter().any(|network| network.includes(address));
        let search = Search { trusted: &trusted, recursive: self.recursive };
        let proxy = conn.proxy.get()?;
        // The PROXY protocol header has the port separately.
        let ip = search.back(&conn.peer, [proxy.src_addr.as_slice()])?.ip();
        Some(Address::Inet((ip, proxy.src_port).into()))
    }
}

const DIRECTIVES: &[Directive] = &[
    // No peer is trusted by default, because clients can send any field.
    Directive::scope(
        Spec::new(
            "http_realip",
            "set_real_ip_from",
            LEVELS,
            Args::Exactly(1),
            "Trusts the client address that proxies with this address, network or host name report.",
        )
        .many(),
        trust,
    ),
    Directive::scope(
        Spec::new(
            "http_realip",
            "real_ip_header",
            LEVELS,
            Args::Exactly(1),
            "The request field with the client's address, or `proxy_protocol`.",
        )
        .default("X-Real-IP"),
        |scope, cx| {
            scope.make_mut::<Conf>().source = match cx.arg(0) {
                "X-Real-IP" => Source::RealIp,
                "X-Forwarded-For" => Source::ForwardedFor,
                "proxy_protocol" => Source::ProxyProtocol,
                name => Source::Field(name.into()),
            };
            Ok(())
        },
    ),
    // Off uses the address that the connecting proxy reports; on follows a chain of trusted proxies.
    Directive::scope(
        Spec::new(
            "http_realip",
            "real_ip_recursive",
            LEVELS,
            Args::Flag,
            "Uses the last address of the field that is not trusted, instead of the last address.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().recursive),
    ),
];

const VARIABLES: &[Variable] = &[
    // For logging the proxy of a request.
    Variable {
        name: "realip_remote_addr",
        get: |request, out| request.conn.peer.show_address(out),
        set: None,
        help: "The address of the connection's peer, whatever `$remote_addr` is.",
    },
    Variable {
        name: "realip_remote_port",
        get: |request, out| request.conn.peer.show_port(out),
        set: None,
        help: "The port of the connection's peer, whatever `$remote_port` is.",
    },
];

/// The trusted proxies, and the source of the address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// The trusted networks. A peer outside of them is the client, whatever it sends.
    from: Layered<Network>,
    source: Source,
    recursive: bool,
}

impl Settings for Conf {}

/// The source of the client's address.
#[derive(Clone, Debug, Default)]
enum Source {
    /// `X-Real-IP`: one address.
    #[default]
    RealIp,
    /// `X-Forwarded-For`: a list to which each proxy adds, in one field or several.
    ForwardedFor,
    /// The PROXY protocol header before the first request.
    ProxyProtocol,
    /// The first field of this name.
    Field(Arc<str>),
}

/// Adds a trusted network. Names are resolved now, which may block, so that requests need not wait.
fn trust(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    if let Some(network) = Network::read(text, cx) {
        scope.make_mut::<Conf>().from.make_mut(cx.block).push(network);
        return Ok(());
    }
    // All addresses of the name are trusted.
    let lost = || cx.error(format_args!("host not found in set_real_ip_from \"{text}\""));
    let found = (text, 0).to_socket_addrs().map_err(|_| lost())?;
    let networks: Vec<Network> = found.map(|address| address.ip().into()).collect();
    if networks.is_empty() {
        return Err(lost());
    }
    scope.make_mut::<Conf>().from.make_mut(cx.block).extend(networks);
    Ok(())
}

/// Sets the address, unless it is set already: the second phase is for locations with other settings.
fn run(conf: &Conf, request: &mut Request) -> Step {
    if request.real_client.is_none() {
        request.real_client = find(conf, request);
    }
    Step::Next
}

/// Returns the client's address from a trusted proxy; `None` if the peer is not trusted, or sends no address.
fn find(conf: &Conf, request: &Request) -> Option<Address> {
    let trusted = |address: &Address| conf.from.items().iter().any(|network| network.includes(address));
    let search = Search { trusted: &trusted, recursive: conf.recursive };
    let peer = &request.conn.peer;
    let found = match &conf.source {
        Source::RealIp => search.back(peer, [request.header(HeaderId::XRealIp)?]),
        Source::ForwardedFor => {
            // Each proxy appends to the field that it received, so the last address is the nearest.
            let values: Vec<&[u8]> = request.head.all(request.bytes(), HeaderId::XForwardedFor).collect();
            search.back(peer, values.into_iter().rev())
        }
        Source::Field(name) => {
            search.back(peer, request.head.named(request.bytes(), name.as_bytes()).take(1))
        }
        Source::ProxyProtocol => return conf.of_proxy_header(&request.conn),
    };
    found.map(Address::Inet)
}

/// A search from the connection's peer towards the client.
pub(crate) struct Search<'a> {
    /// Whether the client address reported by this address is trusted.
    pub(crate) trusted: &'a dyn Fn(&Address) -> bool,
    /// Whether the search continues over trusted addresses.
    pub(crate) recursive: bool,
}

impl Search<'_> {
    /// Searches backwards through lists of addresses, the last list first. The search ends at an address that is not
    /// trusted, at an invalid address, or after one step unless it is recursive.
    pub(crate) fn back<'v>(
        &self,
        peer: &Address,
        values: impl IntoIterator<Item = &'v [u8]>,
    ) -> Option<SocketAddr> {
        let mut found: Option<SocketAddr> = None;
        for value in values {
            let is_separator = |byte: &u8| matches!(byte, b',' | b' ');
            if value.iter().all(is_separator) {
                return found;
            }
            for part in value.split(is_separator).rev().filter(|part| !part.is_empty()) {
                let is_trusted = match found {
                    None => (self.trusted)(peer),
                    Some(address) => (self.trusted)(&Address::Inet(address)),
                };
                match parse(part) {
                    Some(address) if is_trusted => found = Some(address),
                    _ => return found,
                }
                if !self.recursive {
                    return found;
                }
            }
        }
        found
    }
}

/// Returns the address of a client behind proxies from `X-Forwarded-For`, if `start` is a trusted proxy.
pub(crate) fn behind_proxies<R: OnConnection>(
    request: &R,
    start: Address,
    proxies: &[Network],
    recursive: bool,
) -> Address {
    // Without a trusted proxy the fields are not read.
    if proxies.is_empty() {
        return start;
    }
    let trusted = |address: &Address| proxies.iter().any(|network| network.includes(address));
    let search = Search { trusted: &trusted, recursive };
    let values = request.forwarded_for();
    search.back(&start, values.into_iter().rev()).map_or(start, Address::Inet)
}

/// Parses an address with or without a port; port 0 is invalid. IPv6 with a port is in brackets; without a port the brackets
/// are optional.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let in_brackets = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(ip) = in_brackets.unwrap_or(text).parse::<IpAddr>() {
        return Some((ip, 0).into());
    }
    // A zone ID (`%`) refers to a local interface, which a proxy cannot know.
    let is_right = |address: &SocketAddr| address.port() != 0 && !text.contains('%');
    text.parse().ok().filter(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};

    #[test]
    fn addresses_are_searched_from_the_last() {
        let trusted = |address: &Address| matches!(address, Address::Inet(address) if address.ip().to_string().starts_with("10."));
        let search = |recursive, peer: &str, values: &[&str]| {
            let peer = Address::Inet((peer.parse::<IpAddr>().expect("an address"), 5).into());
            let search = Search { trusted: &trusted, recursive };
            let found = search.back(&peer, values.iter().rev().map(|value| value.as_bytes()));
            found.map_or("-".to_owned(), |address| address.to_string())
        };
        for (recursive, peer, values, expected) in [
            (false, "10.0.0.1", &["1.1.1.1, 10.0.0.2"][..], "10.0.0.2:0"),
            (true, "10.0.0.1", &["1.1.1.1, 10.0.0.2"], "1.1.1.1:0"),
            (true, "10.0.0.1", &["2.2.2.2, 1.1.1.1, 10.0.0.2"], "1.1.1.1:0"),
            (true, "10.0.0.1", &["10.0.0.3 10.0.0.2 ,, "], "10.0.0.3:0"),
            (true, "10.0.0.1", &["2.2.2.2", "10.0.0.4", "10.0.0.3,10.0.0.2"], "2.2.2.2:0"),
            (true, "10.0.0.1", &["2.2.2.2", "x, 10.0.0.2"], "10.0.0.2:0"),
            (false, "10.0.0.1", &["2.2.2.2", "10.0.0.2"], "10.0.0.2:0"),
            (true, "11.0.0.1", &["1.1.1.1"], "-"),
            (true, "10.0.0.1", &["unknown"], "-"),
            (true, "10.0.0.1", &[" , "], "-"),
            (false, "10.0.0.1", &["1.1.1.1:80"], "1.1.1.1:80"),
            (false, "10.0.0.1", &["1.1.1.1:0"], "-"),
            (false, "10.0.0.1", &["::1"], "[::1]:0"),
            (false, "10.0.0.1", &["[::1]:99"], "[::1]:99"),
            (false, "10.0.0.1", &["[::1]"], "[::1]:0"),
            (false, "10.0.0.1", &["[[::1]]"], "-"),
            (false, "10.0.0.1", &["[::1"], "-"),
            (false, "10.0.0.1", &["[]"], "-"),
            (false, "10.0.0.1", &["[fe80::1%1]:99"], "-"),
        ] {
            assert_eq!(search(recursive, peer, values), expected, "{recursive} {peer} {values:?}");
        }
    }

    #[test]
    fn settings_are_inherited_and_replaced() {
        let config = loaded(
            "set_real_ip_from 10.0.0.0/8; set_real_ip_from unix:; real_ip_recursive on; real_ip_header X-Own;
             server { location /a {} location /b { set_real_ip_from ::1; real_ip_header X-Forwarded-For; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.expect("it is there").scope.of::<Conf>().clone()
        };
        let (a, b) = (conf("/a"), conf("/b"));
        assert_eq!((a.from.items().len(), b.from.items().len()), (2, 1));
        assert!(a.recursive && b.recursive);
        assert!(matches!(a.source, Source::Field(name) if &*name == "X-Own"));
        assert!(matches!(b.source, Source::ForwardedFor));
        let named = loaded("set_real_ip_from localhost;");
        assert!(named.http.listens.is_empty());
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("set_real_ip_from 10.0.0.0/33;", "host not found in set_real_ip_from \"10.0.0.0/33\""),
            (
                "real_ip_recursive x;",
                "invalid value \"x\" in \"real_ip_recursive\" directive, it must be \"on\" or \"off\"",
            ),
            ("real_ip_header a; real_ip_header b;", "\"real_ip_header\" directive is duplicate"),
            ("set_real_ip_from;", "invalid number of arguments in \"set_real_ip_from\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{found}");
        }
        let found = warnings("http {\nset_real_ip_from 1.2.3.4/24; }");
        assert_eq!(found, ["low address bits of 1.2.3.4/24 are meaningless in /conf/nginx.conf:2"]);
    }
}
