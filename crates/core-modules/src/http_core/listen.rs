//! The arguments of `listen`: addresses and options.
//!
//! One directive may specify several addresses: a name that resolves to more than one, or a range of ports. Each gets
//! the options of the directive. Options of several directives for one address are merged when all servers are known
//! (`site::settings::listen::gather`), because the servers that share a socket may be anywhere in `http`.
//!
//! Four options belong to the address and not to the socket: `default_server`, `ssl`, `http2` and `proxy_protocol`. All
//! others are socket options, which nginx allows only once per address, and so does this parser.
//!
//! `quic` makes it an address of QUIC, which is a different one than that of TCP with the same port. It excludes the options of TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use conf::{Error, value};

use site::config::{Cx, Section};
use site::settings::listen::{ListenAddr, ListenAddress, ListenSpec, Options, ServerDraft, SoKeepalive};

/// Maximum length of `sun_path` of unix(7), without the NUL at its end.
const UNIX_PATH_LEN_MAX: usize = 107;

/// nginx's default port of `http`.
const PORT: u16 = 80;

/// Implements the setter of `listen` in `http`.
pub(super) fn read(draft: &mut ServerDraft, cx: &mut Cx<'_>) -> Result<(), Error> {
    read_for(draft, Some(PORT), cx)
}

/// Implements the setter of `listen` in `stream`, where an address needs a port.
pub(crate) fn read_stream(draft: &mut ServerDraft, cx: &mut Cx<'_>) -> Result<(), Error> {
    read_for(draft, None, cx)
}

fn read_for(draft: &mut ServerDraft, default_port: Option<u16>, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let addrs = resolve(text, default_port)
        .map_err(|fault| cx.error(format_args!("{fault} in \"{text}\" of the \"listen\" directive")))?;
    let mut spec = ListenSpec::of(addrs[0].clone(), text, Some(cx.statement.span().clone()));
    let (mut default_server, mut protocols) = (false, Options::default());
    // An address has one transport: TCP, unless a parameter selects another one.
    let (mut is_quic, mut is_udp) = (false, false);
    for option in cx.statement.texts().skip(1) {
        match option {
            "quic" if cx.http.section == Section::Http => (is_quic, protocols.tls) = (true, true),
            "default_server" | "default" => default_server = true,
            "proxy_protocol" => protocols.proxy_protocol = true,
            "ssl" => protocols.tls = true,
            "udp" if cx.http.section == Section::Stream => is_udp = true,
            "http2" if cx.http.section == Section::Http => {
                let what =
                    "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
                cx.warn(what);
                protocols.http2 = true;
            }
            _ => read_option(&mut spec, option, cx)?,
        }
    }
    let has = |name: &&str| cx.statement.texts().skip(1).any(|option| is_named(option, name));
    if let Some(option) = TCP_OPTIONS.iter().find(|name| has(name)).filter(|_| is_quic || is_udp) {
        let other = if is_quic { "quic" } else { "udp" };
        return Err(cx.error(format_args!("\"{option}\" parameter is incompatible with \"{other}\"")));
    }
    // Each thread has a socket, so that all datagrams of a client reach the same thread: the kernel selects the socket by the
    // addresses (socket(7), SO_REUSEPORT). With one socket for all threads, each thread would begin its own session.
    spec.reuseport |= is_udp;
    for (index, addr) in addrs.iter().enumerate() {
        // A name may resolve to the same address several times.
        if !addrs[..index].contains(addr) {
            let addr = match addr {
                ListenAddr::Tcp(inet) if is_quic => ListenAddr::Quic(*inet),
                ListenAddr::Tcp(inet) if is_udp => ListenAddr::Udp(*inet),
                ListenAddr::Unix(_) if is_quic || is_udp => {
                    let option = if is_quic { "quic" } else { "udp" };
                    return Err(
                        cx.error(format_args!("\"{option}\" needs an IP address instead of \"{text}\""))
                    );
                }
                other => other.clone(),
            };
            let spec = ListenSpec { addr, ..spec.clone() };
            draft.listens.push(ListenAddress { spec, default_server, protocols });
        }
    }
    Ok(())
}

/// Options that an address of QUIC or UDP cannot have, in the order in which nginx checks them.
const TCP_OPTIONS: [&str; 9] = [
    "fastopen",
    "backlog",
    "accept_filter",
    "deferred",
    "multipath",
    "ssl",
    "http2",
    "so_keepalive",
    "proxy_protocol",
];

/// Whether an option, possibly with a value, has this name.
fn is_named(option: &str, name: &str) -> bool {
    option.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Parses a socket option. Units: `rcvbuf` and `sndbuf` are bytes (socket(7), SO_RCVBUF and SO_SNDBUF), `backlog` and
/// `fastopen` are connections (listen(2); tcp(7), TCP_FASTOPEN), times of `so_keepalive` are seconds (tcp(7)).
fn read_option(spec: &mut ListenSpec, option: &str, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (name, text) = option.split_once('=').map_or((option, None), |(name, text)| (name, Some(text)));
    let wrong = |name: &str| cx.error(format_args!("invalid {name} \"{option}\""));
    let number = |text: &str| value::number(text).ok().and_then(|number| u32::try_from(number).ok());
    match (name, text) {
        // Without effect: every address has a separate socket anyway, except addresses that a wildcard covers.
        ("bind", None) => {}
        ("deferred", None) => spec.deferred = true,
        ("reuseport", None) => spec.reuseport = true,
        ("backlog", Some(text)) => {
            spec.backlog = number(text).filter(|&backlog| backlog > 0).ok_or_else(|| wrong("backlog"))?;
        }
        ("fastopen", Some(text)) => spec.fastopen = Some(number(text).ok_or_else(|| wrong("fastopen"))?),
        ("rcvbuf", Some(text)) => spec.rcvbuf = Some(value::size(text).map_err(|_| wrong("rcvbuf"))?),
        ("sndbuf", Some(text)) => spec.sndbuf = Some(value::size(text).map_err(|_| wrong("sndbuf"))?),
        ("ipv6only", Some("on")) => spec.ipv6only = true,
        ("ipv6only", Some("off")) => spec.ipv6only = false,
        ("ipv6only", Some(_)) => return Err(wrong("parameter")),
        ("so_keepalive", Some(text)) => {
            let fault = || cx.error(format_args!("invalid so_keepalive value: \"{text}\""));
            spec.so_keepalive = Some(read_keepalive(text).ok_or_else(fault)?);
        }
        // A FreeBSD option (accf_http(9)); nginx also warns on Linux.
        ("accept_filter", Some(_)) => {
            cx.warn(format_args!("accept filters \"{option}\" are not supported on this platform, ignored"));
            return Ok(());
        }
        ("multipath", None) if cx.http.section == Section::Http => return Err(cx.not_supported(option)),
        _ => return Err(wrong("parameter")),
    }
    spec.set = true;
    Ok(())
}

/// Parses `on`, `off` or `idle:interval:count`
fn read_keepalive(text: &str) -> Option<SoKeepalive> {
    if text == "on" {
        return Some(SoKeepalive::On { idle: None, interval: None, count: None });
    }
    if text == "off" {
        return Some(SoKeepalive::Off);
    }
    let parts: Vec<&str> = text.splitn(3, ':').collect();
    let part = |index: usize| parts.get(index).copied().filter(|part| !part.is_empty());
    let seconds =
        |index| part(index).map(|text| value::seconds(text).ok().and_then(|time| time.try_into().ok()));
    let count = part(2).map(|text| value::number(text).ok().and_then(|count| count.try_into().ok()));
    let numbers = [seconds(0), seconds(1), count];
    let [idle, interval, count] = numbers;
    if numbers.contains(&Some(None)) || numbers == [None; 3] {
        return None;
    }
    Some(SoKeepalive::On { idle: idle.flatten(), interval: interval.flatten(), count: count.flatten() })
}

/// Returns the addresses of a text; `Err` has nginx's message. The system resolves names, which may block: for start
/// and reload only.
fn resolve(text: &str, default_port: Option<u16>) -> Result<Vec<ListenAddr>, &'static str> {
    let default_ports = default_port.map(|port| (port, port)).ok_or("no port");
    if let Some((_, path)) =
        text.split_at_checked(5).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("unix:"))
    {
        return match path.len() {
            0 => Err("no path in the unix domain socket"),
            len if len > UNIX_PATH_LEN_MAX => Err("too long path in the unix domain socket"),
            _ => Ok(vec![ListenAddr::Unix(path.into())]),
        };
    }
    let (ips, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, tail) = rest.split_once(']').ok_or("invalid host")?;
            let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
            let ports = match (tail, tail.strip_prefix(':')) {
                ("", _) => default_ports?,
                (_, Some(ports)) => read_ports(ports)?,
                _ => return Err("invalid host"),
            };
            (vec![ip.into()], ports)
        }
        None => match text.split_once(':') {
            Some((host, ports)) => {
                let ports = read_ports(ports)?;
                (ips_of(host)?, ports)
            }
            None if text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains('.') => {
                (vec![Ipv4Addr::UNSPECIFIED.into()], read_ports(text)?)
            }
            None => (ips_of(text)?, default_ports?),
        },
    };
    let with_ports =
        (ports.0..=ports.1).flat_map(|port| ips.iter().map(move |ip| SocketAddr::new(*ip, port)));
    Ok(with_ports.map(ListenAddr::Tcp).collect())
}

/// Parses a port, or the first and the last port of a range.
fn read_ports(text: &str) -> Result<(u16, u16), &'static str> {
    let port = |text: &str| match value::number(text).map(u16::try_from) {
        // Unlike in nginx port 0 is valid: the kernel chooses a port, and the master logs it.
        Ok(Ok(port)) => Ok(port),
        _ => Err("invalid port"),
    };
    match text.split_once('-') {
        None => port(text).map(|port| (port, port)),
        Some((first, last)) => match (port(first)?, port(last)?) {
            (first, last) if first > last => Err("invalid port range"),
            ports => Ok(ports),
        },
    }
}

/// Returns the addresses of a literal address, of `*`, or of a name, which may have several.
fn ips_of(host: &str) -> Result<Vec<IpAddr>, &'static str> {
    match host {
        "" => return Err("no host"),
        "*" => return Ok(vec![Ipv4Addr::UNSPECIFIED.into()]),
        _ if host.contains('/') => return Err("invalid host"),
        _ => {}
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(vec![ip.into()]);
    }
    let found = (host, 0).to_socket_addrs().map_err(|_| "host not found")?;
    let ips: Vec<IpAddr> = found.map(|addr| addr.ip()).collect();
    if ips.is_empty() { Err("host not found") } else { Ok(ips) }
}
