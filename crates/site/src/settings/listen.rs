//! `listen`: addresses, their options, and the servers of each address.
//!
//! One [`Listen`] is one socket. If a wildcard address and others share a port, nginx binds only the wildcard address
//! and selects the server by a connection's local address. This file does the same.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use conf::{Error, Span};

use crate::address::Address;
use crate::ids::ServerId;
use crate::settings::main::started_as_root;
use crate::settings::names::{NameTable, ServerName};

/// The key of a listening socket: its transport and its address. Sockets of two transports may have the same IP address and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// TCP over IPv4 or IPv6. With port 0 the kernel selects a port.
    Tcp(SocketAddr),
    /// The path of a stream socket in the UNIX domain.
    Unix(PathBuf),
    /// QUIC: UDP over IPv4 or IPv6.
    Quic(SocketAddr),
    /// Datagrams of any protocol: UDP over IPv4 or IPv6.
    Udp(SocketAddr),
}

/// Prefix of addresses for QUIC in texts.
const QUIC: &str = "quic:";

/// Prefix of addresses for UDP in texts.
const UDP: &str = "udp:";

impl ListenAddr {
    /// Parses the format of `Display`.
    pub fn parse(text: &str) -> Option<ListenAddr> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Some(ListenAddr::Unix(path.into()));
        }
        if let Some(address) = text.strip_prefix(UDP) {
            return address.parse().ok().map(ListenAddr::Udp);
        }
        match text.strip_prefix(QUIC) {
            Some(address) => address.parse().ok().map(ListenAddr::Quic),
            None => text.parse().ok().map(ListenAddr::Tcp),
        }
    }

    /// Returns the parameters of `listen` for the address.
    pub fn directive(&self) -> String {
        match self {
            ListenAddr::Quic(address) => format!("listen {address} quic;"),
            ListenAddr::Udp(address) => format!("listen {address} udp;"),
            ListenAddr::Tcp(_) | ListenAddr::Unix(_) => format!("listen {self};"),
        }
    }

    /// Returns the IP address and port; `None` for a path.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            ListenAddr::Tcp(addr) | ListenAddr::Quic(addr) | ListenAddr::Udp(addr) => Some(*addr),
            ListenAddr::Unix(_) => None,
        }
    }

    /// Whether the address is one of QUIC.
    pub fn is_quic(&self) -> bool {
        matches!(self, ListenAddr::Quic(_))
    }

    /// Whether this is the wildcard address that also accepts the connections of `other`: of the same transport, family and port.
    pub fn is_wildcard_for(&self, other: &ListenAddr) -> bool {
        match (self, other) {
            (ListenAddr::Tcp(wildcard), ListenAddr::Tcp(addr))
            | (ListenAddr::Quic(wildcard), ListenAddr::Quic(addr))
            | (ListenAddr::Udp(wildcard), ListenAddr::Udp(addr)) => {
                wildcard.ip().is_unspecified()
                    && wildcard.is_ipv4() == addr.is_ipv4()
                    && wildcard.port() == addr.port()
            }
            _ => false,
        }
    }
}

/// Formats an address as nginx does, `0.0.0.0:80`, `[::]:80`, `unix:/run/x`, with a prefix for QUIC and UDP: `quic:0.0.0.0:443`.
impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(addr) => addr.fmt(f),
            ListenAddr::Quic(addr) => write!(f, "{QUIC}{addr}"),
            ListenAddr::Udp(addr) => write!(f, "{UDP}{addr}"),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket to listen on and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSpec {
    /// The address.
    pub addr: ListenAddr,
    /// The address as written.
    pub text: String,
    /// `backlog`: maximum number of connections that wait to be accepted.
    pub backlog: u32,
    /// `rcvbuf`, in bytes.
    pub rcvbuf: Option<u64>,
    /// `sndbuf`, in bytes.
    pub sndbuf: Option<u64>,
    /// `fastopen`: maximum number of connections with data that have not finished their handshake.
    pub fastopen: Option<u32>,
    /// `deferred`: accept only after data has arrived.
    pub deferred: bool,
    /// `reuseport`: a socket for each thread.
    pub reuseport: bool,
    /// `so_keepalive`; `None` uses the system's default.
    pub so_keepalive: Option<SoKeepalive>,
    /// `ipv6only`; only relevant for IPv6 wildcard addresses.
    pub ipv6only: bool,
    /// Whether any option of the socket was set.
    pub set: bool,
    /// The position of the directive; of a server without `listen` that of its block. `None` if it is not in a file.
    pub position: Option<Span>,
}

/// `so_keepalive`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoKeepalive {
    /// `off`
    Off,
    /// `on`, or numbers; `None` uses the system's default.
    On {
        /// Idle time in seconds before the first probe.
        idle: Option<u32>,
        /// Time in seconds between probes.
        interval: Option<u32>,
        /// Number of unanswered probes that close the connection.
        count: Option<u32>,
    },
}

/// Default of `backlog`, as in nginx on Linux.
const BACKLOG_DEFAULT: u32 = 511;

/// One address of a `listen` directive.
#[derive(Clone, Debug)]
pub struct ListenAddress {
    /// The address, and the options of its socket.
    pub spec: ListenSpec,
    /// `default_server`
    pub default_server: bool,
    /// The protocols of its connections.
    pub protocols: Options,
}

/// Protocol options of an address; each `listen` for that address may add some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// `ssl`
    pub tls: bool,
    /// `http2`
    pub http2: bool,
}

impl Options {
    /// Whether `others` include all of these options.
    fn are_in(self, others: Options) -> bool {
        (others.proxy_protocol || !self.proxy_protocol)
            && (others.tls || !self.tls)
            && (others.http2 || !self.http2)
    }

    fn and(self, others: Options) -> Options {
        Options {
            proxy_protocol: self.proxy_protocol || others.proxy_protocol,
            tls: self.tls || others.tls,
            http2: self.http2 || others.http2,
        }
    }
}

impl ListenAddress {
    /// Returns the default address of a server.
    pub fn default_address(position: Span) -> ListenAddress {
        let port = if started_as_root() { 80 } else { 8000 };
        let addr = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let spec = ListenSpec::of(ListenAddr::Tcp(addr), "*", Some(position));
        ListenAddress { spec, default_server: false, protocols: Options::default() }
    }
}

impl ListenSpec {
    /// Returns the settings of an address with nginx's defaults.
    pub fn of(addr: ListenAddr, text: &str, position: Option<Span>) -> ListenSpec {
        ListenSpec {
            addr,
            text: text.to_owned(),
            backlog: BACKLOG_DEFAULT,
            rcvbuf: None,
            sndbuf: None,
            fastopen: None,
            deferred: false,
            reuseport: false,
            so_keepalive: None,
            ipv6only: true,
            set: false,
            position,
        }
    }

    /// Returns the number of sockets of the address. QUIC has two banks of a socket for each thread: while a worker process
    /// finishes its connections, its successor uses the other bank.
    pub fn sockets(&self, threads: u32) -> usize {
        let threads = threads.max(1) as usize;
        match self.addr {
            ListenAddr::Quic(_) => 2 * threads,
            _ if self.reuseport => threads,
            _ => 1,
        }
    }
}

/// The servers of one address.
#[derive(Debug)]
pub struct Servers {
    /// All servers of the address.
    all: Vec<ServerId>,
    default_server: ServerId,
    names: NameTable,
    protocols: Options,
}

/// A listening socket and its servers.
#[derive(Debug)]
pub struct Listen {
    /// Its address and options.
    pub spec: ListenSpec,
    servers: Servers,
    /// Addresses on the port of a wildcard, distinguished by the local address of a connection.
    inner: Vec<(IpAddr, Servers)>,
}

/// The servers of an address that uses TLS.
pub struct TlsServers<'l> {
    /// The default server.
    pub default: ServerId,
    /// All servers, the default server included.
    pub all: &'l [ServerId],
    /// Whether the address has `http2`.
    pub http2: bool,
    /// Whether the address has `quic`.
    pub quic: bool,
}

impl Listen {
    /// Returns the default server and the names for a connection to this local address.
    pub fn lookup(&self, local: &Address) -> (ServerId, &NameTable) {
        let servers = self.servers_at(local);
        (servers.default_server, &servers.names)
    }

    /// Whether connections to this local address start with a header of the PROXY protocol.
    pub fn expects_proxy_protocol(&self, local: &Address) -> bool {
        self.servers_at(local).protocols.proxy_protocol
    }

    /// Whether connections to this local address use TLS.
    pub fn is_tls(&self, local: &Address) -> bool {
        self.servers_at(local).protocols.tls
    }

    /// Whether connections to this local address may begin with HTTP/2, whatever the settings of its servers.
    pub fn is_http2(&self, local: &Address) -> bool {
        self.servers_at(local).protocols.http2
    }

    /// Whether a server listens on this socket.
    pub fn has_server(&self, server: ServerId) -> bool {
        let all = std::iter::once(&self.servers).chain(self.inner.iter().map(|(_, servers)| servers));
        all.flat_map(|servers| &servers.all).any(|known| *known == server)
    }

    /// Returns the default servers of the addresses that use TLS.
    pub fn tls_defaults(&self) -> impl Iterator<Item = ServerId> {
        let all = std::iter::once(&self.servers).chain(self.inner.iter().map(|(_, servers)| servers));
        all.filter(|servers| servers.protocols.tls).map(|servers| servers.default_server)
    }

    /// Returns the servers of each address that uses TLS.
    pub fn tls_servers(&self) -> impl Iterator<Item = TlsServers<'_>> {
        let all = std::iter::once(&self.servers).chain(self.inner.iter().map(|(_, servers)| servers));
        all.filter(|servers| servers.protocols.tls).map(|servers| TlsServers {
            default: servers.default_server,
            all: &servers.all,
            http2: servers.protocols.http2,
            quic: self.spec.addr.is_quic(),
        })
    }

    fn servers_at(&self, local: &Address) -> &Servers {
        let inner = match local {
            // The address, which is in another cache line, need not be read then.
            _ if self.inner.is_empty() => None,
            Address::Inet(local) => self.inner.iter().find(|(addr, _)| *addr == local.ip()),
            Address::Unix(_) => None,
        };
        inner.map_or(&self.servers, |(_, servers)| servers)
    }
}

/// A server while its block is parsed.
#[derive(Debug)]
pub struct ServerDraft {
    /// The index of the server.
    pub id: ServerId,
    /// Its addresses.
    pub listens: Vec<ListenAddress>,
    /// Its names.
    pub names: Vec<ServerName>,
    /// The block's first line, for messages about an implied `listen`.
    position: Span,
}

impl ServerDraft {
    /// Returns an empty server.
    pub fn new(id: ServerId, statement: &conf::Statement) -> ServerDraft {
        ServerDraft { id, listens: Vec::new(), names: Vec::new(), position: statement.span().clone() }
    }

    /// Adds the defaults for missing `listen` and `server_name`.
    pub fn complete(&mut self) {
        if self.listens.is_empty() {
            self.listens.push(ListenAddress::default_address(self.position.clone()));
        }
        // The empty name is searched like any other name.
        if self.names.is_empty() {
            self.names.push(ServerName::default().at(&self.position));
        }
    }

    /// Returns the value of `$server_name`.
    pub fn first_name(&self) -> String {
        self.names.first().map(ServerName::shown).unwrap_or_default()
    }
}

/// An address and its parameters while `listen` directives are merged.
struct GatheredAddress {
    spec: ListenSpec,
    default_server: Option<ServerId>,
    /// The servers of this address, by index of their drafts.
    servers: Vec<usize>,
    /// The union of the options of all its lines, because a socket has an option or not.
    options: Options,
    protocols: Protocols,
}

/// The protocol options in the lines of an address, for nginx's warnings.
#[derive(Clone, Copy, Default)]
struct Protocols {
    /// The options of the last counted line; `None` after the first line.
    previous: Option<Options>,
    /// Whether the options of two lines differed.
    changed: bool,
}

impl Protocols {
    /// Records another line; returns whether it contradicts an earlier one. A line without the option may follow lines
    /// with it, and the reverse once, but not if socket options were set.
    fn note(&mut self, before: Options, entry_set: bool, listen: &ListenAddress) -> bool {
        let now = listen.protocols;
        let differs_from_said = self.previous.is_some_and(|previous| previous != now);
        let (previous, contradicts) = match (now.are_in(before), before.are_in(now)) {
            (false, keeps) => (before, (entry_set && !listen.spec.set) || self.changed || !keeps),
            (true, false) => (now, listen.spec.set || differs_from_said),
            (true, true) => (now, (listen.spec.set && self.changed) || differs_from_said),
        };
        self.previous = Some(previous);
        self.changed |= before != now;
        contradicts
    }
}

/// Groups the servers by address. The effective options and the default server are determined as in nginx.
pub fn gather(drafts: Vec<ServerDraft>, warnings: &mut Vec<Error>) -> Result<Vec<Listen>, Error> {
    let mut entries: Vec<GatheredAddress> = Vec::new();
    for (position, draft) in drafts.iter().enumerate() {
        for listen in &draft.listens {
            add(&mut entries, listen, position, draft.id, warnings)?;
        }
    }
    let mut listens: Vec<Listen> = Vec::new();
    let mut inner: Vec<(ListenAddr, IpAddr, Servers)> = Vec::new();
    for index in 0..entries.len() {
        let entry = &entries[index];
        let servers = servers_of(entry, &drafts, warnings)?;
        match entry.spec.addr.inet() {
            Some(addr) if !entry.spec.set && has_wildcard(&entries, &entry.spec.addr) => {
                inner.push((entry.spec.addr.clone(), addr.ip(), servers));
            }
            _ => listens.push(Listen { spec: entry.spec.clone(), servers, inner: Vec::new() }),
        }
    }
    for (addr, ip, servers) in inner {
        let around = listens.iter_mut().find(|listen| listen.spec.addr.is_wildcard_for(&addr));
        around.expect("`inner` has only addresses with a wildcard").inner.push((ip, servers));
    }
    Ok(listens)
}

/// Adds one address of one server, with nginx's rules for repeated parameters.
fn add(
    entries: &mut Vec<GatheredAddress>,
    listen: &ListenAddress,
    position: usize,
    id: ServerId,
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    let addr = &listen.spec.addr;
    let default_server = listen.default_server.then_some(id);
    let Some(entry) = entries.iter_mut().find(|entry| entry.spec.addr == *addr) else {
        entries.push(GatheredAddress {
            spec: listen.spec.clone(),
            default_server,
            servers: vec![position],
            options: listen.protocols,
            protocols: Protocols::default(),
        });
        return Ok(());
    };
    let fault =
        |what: &str| Err(Error::at_known(listen.spec.position.as_ref(), format_args!("{what} {addr}")));
    if entry.servers.contains(&position) {
        return fault("a duplicate listen");
    }
    if listen.spec.set && entry.spec.set {
        return fault("duplicate listen options for");
    }
    if listen.default_server && entry.default_server.is_some() {
        return fault("a duplicate default server for");
    }
    if entry.protocols.note(entry.options, entry.spec.set, listen) {
        let message = format_args!("protocol options redefined for {addr}");
        warnings.push(Error::at_known(listen.spec.position.as_ref(), message).with_level(conf::Level::Warn));
    }
    entry.servers.push(position);
    entry.options = entry.options.and(listen.protocols);
    entry.default_server = entry.default_server.or(default_server);
    if listen.spec.set {
        entry.spec = listen.spec.clone();
    }
    Ok(())
}

/// Returns the names and the default server of an address. The default is the first server unless one has
/// `default_server`.
fn servers_of(
    entry: &GatheredAddress,
    drafts: &[ServerDraft],
    warnings: &mut Vec<Error>,
) -> Result<Servers, Error> {
    let servers = entry.servers.iter().map(|&position| &drafts[position]);
    let named: Vec<(&ServerName, ServerId)> =
        servers.flat_map(|draft| draft.names.iter().map(|name| (name, draft.id))).collect();
    let first = drafts[entry.servers[0]].id;
    let default_server = entry.default_server.unwrap_or(first);
    let several = entry.servers.len() > 1;
    let names = NameTable::build(&named, default_server, &entry.spec.addr, several, warnings)?;
    let all = entry.servers.iter().map(|&position| drafts[position].id).collect();
    Ok(Servers { all, default_server, names, protocols: entry.options })
}

/// Whether a wildcard address on the same port also accepts the connections of this address.
fn has_wildcard(entries: &[GatheredAddress], addr: &ListenAddr) -> bool {
    let is_specific = addr.inet().is_some_and(|addr| !addr.ip().is_unspecified());
    is_specific && entries.iter().any(|entry| entry.spec.addr.is_wildcard_for(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_name_the_transport() {
        for (text, directive) in [
            ("quic:[::]:443", "listen [::]:443 quic;"),
            ("127.0.0.1:80", "listen 127.0.0.1:80;"),
            ("unix:/run/x", "listen unix:/run/x;"),
        ] {
            let address = ListenAddr::parse(text).expect("an address");
            assert_eq!((address.to_string().as_str(), address.directive().as_str()), (text, directive));
        }
    }
}
