//! Server addresses in the configuration: `127.0.0.1:8080`, `[::1]:80`, `unix:/run/x`, `example.com`.
//!
//! Parsing resolves no names; [`HostKind::Name`] marks an address that needs resolution.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use io::op::PeerAddr;

/// A parsed server address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The host (a name, an address, or the path of a Unix socket); it identifies a group.
    pub host: String,
    /// The configured port, or the default.
    pub port: u16,
    /// Whether a port was configured.
    pub has_port: bool,
    /// Kind of the host, with the address if known.
    pub kind: HostKind,
}

/// The kind of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// An address.
    Address(PeerAddr),
    /// A name that must be resolved.
    Name,
}

/// Error in an address, with nginx's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host is missing.
    NoHost,
    /// The host contains a slash or question mark, or has an unclosed bracket.
    InvalidHost,
    /// The port is not a number from 1 to 65535.
    InvalidPort,
    /// The text in brackets is not an address.
    InvalidV6,
    /// `unix:` has no path.
    NoPath,
    /// The path is longer than the kernel allows.
    LongPath,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::NoHost => "no host",
            Fault::InvalidHost => "invalid host",
            Fault::InvalidPort => "invalid port",
            Fault::InvalidV6 => "invalid IPv6 address",
            Fault::NoPath => "no path in the unix domain socket",
            Fault::LongPath => "too long path in the unix domain socket",
        })
    }
}

/// Maximum length in bytes of a socket path including the final zero (unix(7)).
const PATH_MAX: usize = 108;

impl Url {
    /// Parses an address. A path after it is an error, so callers remove it first.
    pub fn parse(text: &str, default_port: u16) -> Result<Url, Fault> {
        match text.split_at_checked(5) {
            Some((scheme, path)) if scheme.eq_ignore_ascii_case("unix:") => unix(path),
            _ if text.starts_with('[') => v6(text, default_port),
            _ => inet(text, default_port),
        }
    }

    /// Returns the address, unless the host is a name.
    pub fn address(&self) -> Option<&PeerAddr> {
        match &self.kind {
            HostKind::Address(address) => Some(address),
            HostKind::Name => None,
        }
    }
}

fn unix(path: &str) -> Result<Url, Fault> {
    match path.len() {
        0 => return Err(Fault::NoPath),
        len if len >= PATH_MAX => return Err(Fault::LongPath),
        _ => {}
    }
    let kind = HostKind::Address(PeerAddr::Unix(PathBuf::from(path)));
    Ok(Url { host: path.to_owned(), port: 0, has_port: false, kind })
}

fn v6(text: &str, default_port: u16) -> Result<Url, Fault> {
    let (inside, rest) = text[1..].split_once(']').ok_or(Fault::InvalidHost)?;
    if rest.contains('/') {
        return Err(Fault::InvalidHost);
    }
    let (port, has_port) = match rest.strip_prefix(':') {
        Some(digits) => (port(digits)?, true),
        None if rest.is_empty() => (default_port, false),
        None => return Err(Fault::InvalidHost),
    };
    if inside.is_empty() {
        return Err(Fault::NoHost);
    }
    let ip: Ipv6Addr = inside.parse().map_err(|_| Fault::InvalidV6)?;
    let kind = HostKind::Address(PeerAddr::Inet(SocketAddr::new(ip.into(), port)));
    Ok(Url { host: format!("[{inside}]"), port, has_port, kind })
}

fn inet(text: &str, default_port: u16) -> Result<Url, Fault> {
    if text.contains(['/', '?']) {
        return Err(Fault::InvalidHost);
    }
    let (host, port, has_port) = match text.split_once(':') {
        Some((host, digits)) => (host, port(digits)?, true),
        None => (text, default_port, false),
    };
    if host.is_empty() {
        return Err(Fault::NoHost);
    }
    let kind = match v4(host) {
        Some(ip) => HostKind::Address(PeerAddr::Inet(SocketAddr::new(IpAddr::V4(ip), port))),
        None => HostKind::Name,
    };
    Ok(Url { host: host.to_owned(), port, has_port, kind })
}

fn port(digits: &str) -> Result<u16, Fault> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.parse().ok().filter(|&port: &u16| is_number && port > 0);
    port.ok_or(Fault::InvalidPort)
}

/// Parses four decimal numbers. Unlike in the standard library, leading zeros are ignored, as in nginx.
fn v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        *octet = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// Returns the form of an address in `$upstream_addr`.
pub fn name_of(address: &PeerAddr) -> Arc<str> {
    match address {
        PeerAddr::Inet(address) => address.to_string().into(),
        PeerAddr::Unix(path) => format!("unix:{}", path.display()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_in_nginx() {
        for (text, expected) in [
            ("127.0.0.1", Ok(("127.0.0.1", 80, false, "127.0.0.1:80"))),
            ("127.0.0.1:8080", Ok(("127.0.0.1", 8080, true, "127.0.0.1:8080"))),
            ("010.000.0.1:1", Ok(("010.000.0.1", 1, true, "10.0.0.1:1"))),
            ("[::1]:65535", Ok(("[::1]", 65535, true, "[::1]:65535"))),
            ("[::1]", Ok(("[::1]", 80, false, "[::1]:80"))),
            ("unix:/run/x", Ok(("/run/x", 0, false, "unix:/run/x"))),
            ("UNIX:/run/x", Ok(("/run/x", 0, false, "unix:/run/x"))),
            ("a.example:81", Ok(("a.example", 81, true, "?"))),
            ("256.0.0.1", Ok(("256.0.0.1", 80, false, "?"))),
            ("1.2.3", Ok(("1.2.3", 80, false, "?"))),
            ("1.2.3.4.5", Ok(("1.2.3.4.5", 80, false, "?"))),
            ("", Err(Fault::NoHost)),
            (":80", Err(Fault::NoHost)),
            ("a:0", Err(Fault::InvalidPort)),
            ("a:65536", Err(Fault::InvalidPort)),
            ("a:", Err(Fault::InvalidPort)),
            ("a:+1", Err(Fault::InvalidPort)),
            ("a:1:2", Err(Fault::InvalidPort)),
            ("a/b", Err(Fault::InvalidHost)),
            ("a?b", Err(Fault::InvalidHost)),
            ("[::1", Err(Fault::InvalidHost)),
            ("[]", Err(Fault::NoHost)),
            ("[1.2.3.4]", Err(Fault::InvalidV6)),
            ("[::1]x", Err(Fault::InvalidHost)),
            ("[::1]:80/", Err(Fault::InvalidHost)),
            ("unix:", Err(Fault::NoPath)),
        ] {
            let found = Url::parse(text, 80).map(|url| {
                let name = url.address().map_or("?".into(), name_of);
                (url.host, url.port, url.has_port, name.to_string())
            });
            let expected =
                expected.map(|(host, port, has, name)| (host.to_owned(), port, has, name.to_owned()));
            assert_eq!(found, expected, "{text}");
        }
        let long = |len| Url::parse(&format!("unix:/{}", "x".repeat(len)), 80).err();
        assert_eq!((long(106), long(107)), (None, Some(Fault::LongPath)));
    }
}
