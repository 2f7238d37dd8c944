//! Settings of a `resolver` directive and of `/etc/resolv.conf`: the name servers and their use.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use conf::{Span, value};
use io::op::PeerAddr;

use crate::address::{Fault, HostKind, Url};

/// Settings of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name servers, used in round robin.
    pub(super) servers: Vec<NameServer>,
    /// `valid=`: time for which a result is used, overriding its TTL.
    pub(super) valid: Option<Duration>,
    /// `ipv4=`
    pub(super) ipv4: bool,
    /// `ipv6=`
    pub(super) ipv6: bool,
    /// The position of the directive.
    pub(super) position: Option<Span>,
}

/// A name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NameServer {
    /// Configured by address.
    At(SocketAddr),
    /// Configured by name and port; the system resolves the name.
    Named(String, u16),
}

/// The port of name servers.
const PORT: u16 = 53;

/// Errors in the arguments of `resolver`, with nginx's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsFault {
    /// An unknown parameter.
    Parameter(String),
    /// An invalid address.
    Address(Fault, String),
    /// A parameter of nginx's commercial version, which the free version treats as a name server.
    Lost(String),
    /// Both address families are off.
    NoFamily,
    /// No name server is given.
    NoServers,
}

impl SettingsFault {
    /// Returns what to write instead of a parameter of other servers.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            SettingsFault::Lost(text) if text.starts_with("local=") => Some(
                "OpenResty has this parameter: write the addresses of the name servers in /etc/resolv.conf instead",
            ),
            SettingsFault::Lost(text) if text.starts_with("status_zone=") => {
                Some("nginx's commercial version has this parameter: remove it")
            }
            _ => None,
        }
    }
}

impl fmt::Display for SettingsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsFault::Parameter(text) => write!(f, "invalid parameter: {text}"),
            SettingsFault::Address(fault, text) => write!(f, "{fault} in resolver \"{text}\""),
            SettingsFault::Lost(text) => write!(f, "host not found in resolver \"{text}\""),
            SettingsFault::NoFamily => f.write_str("\"ipv4\" and \"ipv6\" cannot both be \"off\""),
            SettingsFault::NoServers => f.write_str("no name servers defined"),
        }
    }
}

impl Settings {
    /// Creates settings with nginx's defaults.
    pub(super) fn of_servers(servers: Vec<NameServer>) -> Settings {
        Settings { servers, valid: None, ipv4: true, ipv6: true, position: None }
    }

    /// Sets the position of the directive, for messages.
    #[must_use]
    pub fn at(self, position: &Span) -> Settings {
        Settings { position: Some(position.clone()), ..self }
    }

    /// Parses the arguments of `resolver`.
    ///
    /// # Errors
    /// The first error in the arguments.
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Settings, SettingsFault> {
        let mut settings = Settings::of_servers(Vec::new());
        for word in words {
            let invalid = || SettingsFault::Parameter(word.to_owned());
            let flag = |text: &str| match text {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(invalid()),
            };
            match word.split_once('=') {
                Some(("valid", time)) => {
                    let seconds = value::seconds(time).map_err(|_| invalid())?;
                    settings.valid = Some(Duration::from_secs(seconds));
                }
                Some(("ipv4", text)) => settings.ipv4 = flag(text)?,
                Some(("ipv6", text)) => settings.ipv6 = flag(text)?,
                Some(_) => return Err(SettingsFault::Lost(word.to_owned())),
                None => settings.servers.push(server(word)?),
            }
        }
        match () {
            () if !settings.ipv4 && !settings.ipv6 => Err(SettingsFault::NoFamily),
            () if settings.servers.is_empty() => Err(SettingsFault::NoServers),
            () => Ok(settings),
        }
    }
}

fn server(word: &str) -> Result<NameServer, SettingsFault> {
    let wrong = |fault| SettingsFault::Address(fault, word.to_owned());
    let url = Url::parse(word, PORT).map_err(wrong)?;
    match url.kind {
        HostKind::Address(PeerAddr::Inet(address)) => Ok(NameServer::At(address)),
        HostKind::Address(PeerAddr::Unix(_)) => Err(wrong(Fault::InvalidHost)),
        HostKind::Name => Ok(NameServer::Named(url.host, url.port)),
    }
}

/// The content of `/etc/resolv.conf` (resolv.conf(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemSettings {
    pub(super) servers: Vec<SocketAddr>,
    /// Suffixes of names, tried in order.
    search: Vec<String>,
    /// Names with fewer dots are first resolved with these suffixes.
    dots_min: usize,
}

/// Maximum number of name servers and of search suffixes: the limits of resolv.conf(5).
const SYSTEM_SERVERS_MAX: usize = 3;
const SEARCH_MAX: usize = 6;

impl SystemSettings {
    /// Parses the file; without it there are no name servers.
    #[expect(clippy::disallowed_methods, reason = "on a helper thread")]
    pub(super) fn read(path: &Path) -> SystemSettings {
        SystemSettings::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> SystemSettings {
        let mut settings = SystemSettings { servers: Vec::new(), search: Vec::new(), dots_min: 1 };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // An address with a scope is skipped, since parsing it requires a lookup of the interface.
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    settings.servers.extend(address.map(|address| SocketAddr::new(address, PORT)));
                }
                // The last line counts.
                Some("search" | "domain") => settings.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    let mut dots = words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    settings.dots_min = dots.next_back().unwrap_or(settings.dots_min);
                }
                _ => {}
            }
        }
        settings.servers.truncate(SYSTEM_SERVERS_MAX);
        settings.search.truncate(SEARCH_MAX);
        settings
    }

    /// Returns the names that the system library queries for this name, in order.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let with_endings = self.search.iter().map(|ending| format!("{name}.{ending}"));
        let plain = std::iter::once(name.to_owned());
        match name.matches('.').count() >= self.dots_min {
            true => plain.chain(with_endings).collect(),
            false => with_endings.chain(plain).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text.split_whitespace()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_resolver_has_servers_and_parameters() {
        let at = |text: &str| NameServer::At(text.parse().expect("an address"));
        let servers = vec![at("127.0.0.1:53"), at("10.0.0.1:5353"), at("[::1]:53"), at("[::1]:54")];
        let mut expected = Settings::of_servers(servers);
        let servers = "127.0.0.1 10.0.0.1:5353 [::1] [::1]:54";
        assert_eq!(parse(servers), Ok(expected.clone()));
        (expected.valid, expected.ipv6) = (Some(Duration::from_secs(90)), false);
        assert_eq!(parse(&format!("valid=1m30s {servers} ipv6=off ipv4=on")), Ok(expected));
        let named = Settings::of_servers(vec![NameServer::Named("ns.example".to_owned(), 53)]);
        assert_eq!(parse("ns.example"), Ok(named));
    }

    #[test]
    fn wrong_arguments_cause_the_messages_of_nginx() {
        for (text, expected) in [
            ("127.0.0.1 valid=x", "invalid parameter: valid=x"),
            ("127.0.0.1 ipv4=1", "invalid parameter: ipv4=1"),
            ("127.0.0.1 ipv6=", "invalid parameter: ipv6="),
            ("127.0.0.1 ipv4=off ipv6=off", "\"ipv4\" and \"ipv6\" cannot both be \"off\""),
            ("127.0.0.1 status_zone=a", "host not found in resolver \"status_zone=a\""),
            ("valid=10s", "no name servers defined"),
            ("127.0.0.1:0", "invalid port in resolver \"127.0.0.1:0\""),
            ("[::x]", "invalid IPv6 address in resolver \"[::x]\""),
            ("unix:/run/dns", "invalid host in resolver \"unix:/run/dns\""),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn resolv_conf_is_parsed_as_in_libc() {
        let text = "# nameserver 10.0.0.9\nnameserver 10.0.0.1\nnameserver ::1 \nnameserver fe80::1%eth0\n\
                    search a.example b.example\noptions edns0 ndots:2\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n";
        let settings = SystemSettings::parse(text);
        let servers: Vec<String> = settings.servers.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["10.0.0.1:53", "[::1]:53", "10.0.0.2:53"]);
        assert_eq!(settings.candidates("a.b"), ["a.b.a.example", "a.b.b.example", "a.b"]);
        assert_eq!(settings.candidates("a.b.c"), ["a.b.c", "a.b.c.a.example", "a.b.c.b.example"]);
        assert_eq!(settings.candidates("a."), ["a."]);
        let without = SystemSettings::parse("");
        assert_eq!((without.candidates("a"), without.servers.len()), (vec!["a".to_owned()], 0));
    }
}
