//! What a location that passes requests on needs: the ports and sockets of its upstreams, and the directories that it writes to.
//!
//! The destination may have variables. Their known values ([`site::known_values`]) determine the ports.

use std::net::SocketAddr;
use std::path::PathBuf;

use ::conf::Span;
use peers::address::{HostKind, Url};
use peers::resolve::{Conf as ResolverConf, HttpConf};
use peers::{Destination, Group, Upstreams};
use site::config::{Http, Scope};
use site::known_values::{KnownText, known_texts, written};
use site::template::Template;
use site::uses::{FileUse, UsedPath, Uses};

use super::conf::Conf;
use super::pass::{Pass, To, after_scheme, split};
use super::protocol::Family;
use super::store::Store;
use io::op::PeerAddr;
use upstream::BindAddr;

/// The port of name servers. libc uses TCP for responses that a datagram cannot hold.
const NAME_SERVER_PORT: u16 = 53;

/// Variables whose values begin with a slash or a question mark, so that they end the address before them.
const URI_VARIABLES: [&str; 4] = ["uri", "request_uri", "document_uri", "is_args"];

/// Variables whose values are addresses without a port.
const ADDRESS_VARIABLES: [&str; 5] =
    ["proxy_protocol_addr", "proxy_protocol_server_addr", "realip_remote_addr", "remote_addr", "server_addr"];

impl Conf {
    /// Adds what a block needs that passes requests on with these settings.
    pub(super) fn add_uses<F: Family>(&self, http: &Http, scope: &Scope, uses: &mut Uses) {
        if matches!(self.store, Store::ByUri) {
            scope.core.files.add_root_use(http.prefix_path(), FileUse::Write, uses);
        }
        if F::HAS_BUFFERS {
            let directive = format!("{}_temp_path", F::PREFIX);
            uses.add(&directive, None, UsedPath::fixed(self.upstream.temp_path.path(), FileUse::Write));
        }
        self.add_ports(http, scope, uses);
    }

    /// Adds the ports and sockets that a block needs to pass requests or sessions on with these settings.
    pub(crate) fn add_ports(&self, http: &Http, scope: &Scope, uses: &mut Uses) {
        uses.connects(NAME_SERVER_PORT);
        let resolvers = [&scope.of::<ResolverConf>().resolver, &http.of::<HttpConf>().0.resolver];
        for resolver in resolvers.into_iter().flatten() {
            resolver.ports().for_each(|port| uses.connects(port));
        }
        match self.upstream.bind.as_ref().map(|bind| &bind.address) {
            Some(BindAddr::Fixed(address)) => uses.binds(address.port()),
            Some(BindAddr::Text(template)) => add_local_ports(template, http, uses),
            None => {}
        }
        let Some(pass) = &self.pass else { return };
        let mut found = Ports { directive: format!("{}_pass", self.prefix), at: None, uses };
        match &pass.to {
            To::Written { group, .. } => found.add_group(group),
            To::Variables(template, span) => {
                for known in known_texts(template, &http.registry) {
                    if !found.add_address(&known, pass, http.of(), span) {
                        let text = written(template, &http.registry);
                        found.uses.connects_to_any_port(&found.directive, Some(span), &text);
                    }
                }
            }
        }
    }
}

/// Adds what connections of a directive at this position to the servers of a group need, outside of locations.
pub(crate) fn add_ports_of_group(directive: &str, at: &Span, group: &Group, uses: &mut Uses) {
    uses.connects(NAME_SERVER_PORT);
    Ports { directive: directive.to_owned(), at: Some(at), uses }.add_group(group);
}

/// Adds the ports of a local address with variables: those of its known values. If only a request determines the address, all ports
/// are added, except for an address without a port, such as `$remote_addr`.
fn add_local_ports(template: &Template, http: &Http, uses: &mut Uses) {
    let text = written(template, &http.registry);
    let (name, port) = text.split_once(':').unwrap_or((&text, "0"));
    if name.strip_prefix('$').is_some_and(|name| ADDRESS_VARIABLES.contains(&name))
        && let Ok(port) = port.parse()
    {
        return uses.binds(port);
    }
    for known in known_texts(template, &http.registry) {
        match known.unknown {
            Some(_) => uses.binds_any_port(),
            // Another text is no address, and has no effect.
            None => {
                if let Ok(address) = known.text.parse::<SocketAddr>() {
                    uses.binds(address.port());
                }
            }
        }
    }
}

/// The ports of one directive.
struct Ports<'a> {
    directive: String,
    /// Its position, for servers that have none of their own.
    at: Option<&'a Span>,
    uses: &'a mut Uses,
}

impl Ports<'_> {
    /// Adds the servers of a group.
    fn add_group(&mut self, group: &Group) {
        for (destination, position) in group.destinations() {
            match destination {
                Destination::Port(port) => self.uses.connects(port),
                Destination::Socket(path) => self.add_socket(path.to_owned(), position),
                Destination::Service(service) => {
                    self.uses.connects_to_any_port("server", position, &format!("service={service}"));
                }
            }
        }
        if let Some(resolver) = &group.resolver {
            resolver.ports().for_each(|port| self.uses.connects(port));
        }
    }

    fn add_socket(&mut self, path: PathBuf, position: Option<&Span>) {
        let position = position.or(self.at);
        self.uses.add(&self.directive, position, UsedPath::fixed(&path, FileUse::Connect));
    }

    /// Adds the server of an address from variables. Returns `false` if its port is unknown.
    fn add_address(&mut self, known: &KnownText, pass: &Pass, upstreams: &Upstreams, span: &Span) -> bool {
        let (mut text, mut is_complete) = (known.text.clone(), true);
        if let Some(unknown) = &known.unknown {
            let is_uri = unknown.variable.module_name().is_some_and(|name| URI_VARIABLES.contains(&name));
            // After an unknown host, the port may be known: "http://$name:8080".
            let port = unknown.after.strip_prefix(':').map(|rest| {
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                (&rest[..end], &rest[end..])
            });
            match port {
                _ if is_uri => {}
                Some((port, rest)) if !port.is_empty() && (rest.is_empty() || rest.starts_with('/')) => {
                    text = format!("{text}name:{port}{rest}");
                }
                _ => is_complete = false,
            }
        }
        // An unassigned variable has no address.
        if text.is_empty() {
            return is_complete;
        }
        let Some((scheme, rest)) = after_scheme(pass.schemes, text.as_bytes()) else { return is_complete };
        let rest = &text[text.len() - rest.len()..];
        let (authority, uri) = split(rest, pass.has_uri);
        // The beginning of an address is complete if its URI has begun.
        if !is_complete && uri.is_empty() {
            return false;
        }
        let Ok(url) = Url::parse(authority, scheme.port) else { return true };
        let group = upstreams.find(url.host.as_bytes(), url.port, url.has_port);
        match (group, &url.kind) {
            (Some(group), _) => self.add_group(group),
            (None, HostKind::Address(PeerAddr::Unix(path))) => self.add_socket(path.clone(), Some(span)),
            (None, _) => self.uses.connects(url.port),
        }
        true
    }
}
