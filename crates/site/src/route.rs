//! Finds listener, server and location of a request, in the tables that requests use. For `ringroad explain`.

use std::net::{IpAddr, SocketAddr};

use crate::address::Address;
use crate::config::{Config, LocationId, ServerId};
pub use crate::find_location::Candidate;
use crate::network::Network;
use crate::settings::locations::Locations;

/// The route of a request, as far as the tables decide it.
#[derive(Debug)]
pub struct Route {
    /// The listening socket that accepts the connection.
    pub listener: String,
    /// The address that the client connects to.
    pub local: SocketAddr,
    /// Whether connections to it use TLS.
    pub is_tls: bool,
    /// Whether connections to it use QUIC.
    pub is_quic: bool,
    /// The index of the server in the configuration.
    pub server: usize,
    /// Whether a name selected it; otherwise it is the default.
    pub is_named: bool,
}

/// Returns the socket and the server of a request. `ip` is the address in the URL, if it has one. With `wants_quic` the request is one of
/// HTTP/3.
pub fn route(
    config: &Config,
    ip: Option<IpAddr>,
    port: u16,
    host: &[u8],
    wants_quic: bool,
) -> Result<Route, String> {
    let on_port = config.http.listens.iter().filter_map(|listen| Some((listen.spec.addr.inet()?, listen)));
    let mut on_port: Vec<_> = on_port.filter(|(address, _)| address.port() == port).collect();
    // Clients begin with TCP.
    on_port.sort_by_key(|(_, listen)| listen.spec.addr.is_quic());
    if wants_quic {
        on_port.retain(|(_, listen)| listen.spec.addr.is_quic());
    }
    let takes = |address: &SocketAddr| match ip {
        Some(ip) if address.ip().is_unspecified() => address.is_ipv4() == ip.is_ipv4(),
        Some(ip) => address.ip() == ip,
        None => true,
    };
    let exact = on_port.iter().find(|(address, _)| ip.is_some_and(|ip| address.ip() == ip));
    let wildcard = || on_port.iter().find(|(address, _)| address.ip().is_unspecified() && takes(address));
    let found = exact.or_else(wildcard).or_else(|| on_port.iter().find(|(address, _)| takes(address)));
    let Some((address, listen)) = found else {
        let all: Vec<&str> = config.http.listens.iter().map(|listen| listen.spec.text.as_str()).collect();
        let by = if wants_quic { " by QUIC" } else { "" };
        return Err(format!("no server listens{by} on this address, only on {}", all.join(", ")));
    };
    let local = ip.unwrap_or_else(|| match (address.ip().is_unspecified(), address.is_ipv4()) {
        (true, true) => std::net::Ipv4Addr::LOCALHOST.into(),
        (true, false) => std::net::Ipv6Addr::LOCALHOST.into(),
        (false, _) => address.ip(),
    });
    let address = SocketAddr::new(local, port);
    let local = Address::Inet(address);
    let (default, names) = listen.lookup(&local);
    let mut lower = Vec::new();
    http::host::lowercase_into(host, &mut lower);
    let named = names.find(&lower).map_err(|_| "PCRE aborted a pattern of server_name".to_owned())?;
    let server = named.as_ref().map_or(default, |named| named.server);
    Ok(Route {
        listener: listen.spec.addr.to_string(),
        local: address,
        is_tls: listen.is_tls(&local),
        is_quic: listen.spec.addr.is_quic(),
        server: server.0 as usize,
        is_named: named.is_some(),
    })
}

/// The location of a path in a server.
#[derive(Debug)]
pub struct FoundLocation {
    /// The locations from the outermost to the innermost, as written; empty for the server's own settings.
    pub chain: Vec<String>,
    /// Other locations that were checked, and why they do not match.
    pub losers: Vec<(String, Candidate)>,
    /// The kind of match of the innermost location.
    pub how: Option<Candidate>,
    /// Whether a location of the server depends on a variable, which is unknown here.
    pub has_predicates: bool,
}

/// Finds the location of a decoded path.
pub fn find_location(config: &Config, server: usize, uri: &[u8]) -> Result<FoundLocation, String> {
    let server = config.server(ServerId(server as u32));
    let arena = &config.http.locations;
    let found =
        server.locations.find(arena, uri).map_err(|_| "PCRE aborted a pattern of a location".to_owned())?;
    let mut chain = Vec::new();
    let id = found.location.unwrap_or(server.root);
    trace(config, &server.locations, id, &mut chain);
    let mut losers = Vec::new();
    let mut how = None;
    let mut tables = &server.locations;
    for depth in 0..chain.len().max(1) {
        for (candidate, why) in tables.candidates(uri) {
            match chain.get(depth) {
                Some(winner) if *winner == candidate => how = Some(why),
                _ => losers.push((config.location(candidate).name.clone(), why)),
            }
        }
        match chain.get(depth) {
            Some(winner) => tables = &config.location(*winner).nested,
            None => break,
        }
    }
    let chain = chain.into_iter().map(|id| config.location(id).name.clone()).collect();
    Ok(FoundLocation { chain, losers, how, has_predicates: server.locations.has_predicates() })
}

/// Returns the locations from the outermost to this one, as written; `None` for the settings of the server and for blocks that are no
/// locations, such as `if`.
pub fn chain_of(config: &Config, server: usize, id: LocationId) -> Option<Vec<String>> {
    let server = config.server(ServerId(server as u32));
    let mut chain = Vec::new();
    let name = |id: LocationId| config.location(id).name.clone();
    if trace(config, &server.locations, id, &mut chain) {
        return Some(chain.into_iter().map(name).collect());
    }
    let is_named = server.locations.named(&name(id)) == Some(id);
    is_named.then(|| vec![name(id)])
}

/// Whether the argument of `allow` or `deny` includes an address: `all`, an address or a network.
pub fn covers(text: &str, ip: IpAddr) -> bool {
    let client = Address::Inet(SocketAddr::new(ip, 0));
    text == "all" || Network::parse(text).is_some_and(|(network, _)| network.includes(&client))
}

/// Finds the path to a location through the enclosing locations.
fn trace(config: &Config, tables: &Locations, id: LocationId, chain: &mut Vec<LocationId>) -> bool {
    for candidate in tables.all() {
        chain.push(candidate);
        if candidate == id || trace(config, &config.location(candidate).nested, id, chain) {
            return true;
        }
        chain.pop();
    }
    false
}

/// Returns the engine for the body of a file of this size.
pub fn mover(config: &Config, caps: &io::engine::Caps, location: LocationId, bytes: u64) -> String {
    transfer::body::choose::mover(&config.location(location).scope.core.sending, caps, bytes).to_string()
}

/// Decodes the path of a target, and separates the query.
pub fn path_and_query(target: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let mut path = Vec::new();
    let uri = http::uri::normalise(target, true, &mut path)
        .map_err(|error| format!("the path is refused with 400: {error:?}"))?;
    if uri.is_clean() {
        path = uri.path(target, b"").to_vec();
    }
    Ok((path, uri.args.map_or(Vec::new(), |span| span.of(target).to_vec())))
}
