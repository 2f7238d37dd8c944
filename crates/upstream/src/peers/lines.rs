//! The settings of an upstream block: its servers with their parameters, the method, and the rest.
//!
//! All of it is data that the directives fill in and nothing changes afterwards; what changes while requests run is
//! [`super::table`]'s.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::Span;
use io::op::PeerAddr;

use super::ServersZone;
use super::address::{Place, Url, name_of};
use super::sticky::Sticky;
use crate::resolve::resolver::Resolver;
use exchange::config::Settings;
use exchange::shared_zone::Zone;
use exchange::template::Template;

/// One `server` line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// As it was written, without parameters.
    pub text: Arc<str>,
    /// Where its addresses come from.
    pub source: Source,
    /// `weight`
    pub weight: i64,
    /// `max_conns`; 0 is no limit.
    pub max_conns: u64,
    /// `max_fails`; 0 counts no failures.
    pub max_fails: u64,
    /// `fail_timeout`, in seconds.
    pub fail_timeout: i64,
    /// `slow_start`, in milliseconds; 0 disables it.
    pub slow_start_ms: i64,
    /// `backup`
    pub backup: bool,
    /// `down`, `drain`
    pub takes: Takes,
    /// `route`
    pub route: Option<Arc<str>>,
    /// Its file and line; none without a statement.
    pub place: Option<Span>,
}

impl Line {
    /// A server with nginx's defaults.
    pub fn new(text: &str, url: &Url) -> Line {
        let source = match &url.place {
            Place::Address(address) => Source::Fixed(Address::from(address.clone())),
            Place::Name => {
                let (host, port) = (url.host.clone(), url.port);
                Source::Named(Named { host, port, service: None, at_run_time: false })
            }
        };
        Line {
            text: text.into(),
            source,
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout: 10,
            slow_start_ms: 0,
            backup: false,
            takes: Takes::All,
            route: None,
            place: None,
        }
    }

    /// The name to resolve.
    pub fn named(&self) -> Option<&Named> {
        match &self.source {
            Source::Fixed(_) => None,
            Source::Named(named) => Some(named),
        }
    }
}

/// The directive that makes this line, without its end: what differs from the defaults is written.
impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "server {}", self.text)?;
        let pairs = [
            ("weight", (self.weight != 1).then(|| self.weight.to_string())),
            ("max_conns", (self.max_conns != 0).then(|| self.max_conns.to_string())),
            ("max_fails", (self.max_fails != 1).then(|| self.max_fails.to_string())),
            ("fail_timeout", (self.fail_timeout != 10).then(|| format!("{}s", self.fail_timeout))),
            ("slow_start", (self.slow_start_ms != 0).then(|| format!("{}ms", self.slow_start_ms))),
            ("service", self.named().and_then(|named| named.service.clone())),
            ("route", self.route.as_deref().map(str::to_owned)),
        ];
        for (name, value) in pairs {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        let words = [
            ("resolve", self.named().is_some_and(|named| named.at_run_time)),
            ("backup", self.backup),
            ("down", self.takes == Takes::Nobody),
            ("drain", self.takes == Takes::Sessions),
        ];
        words.iter().filter(|(_, is)| *is).try_for_each(|(word, _)| write!(f, " {word}"))
    }
}

/// Where the addresses of a [`Line`] come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// It is an address.
    Fixed(Address),
    /// It is a name, which is resolved separately.
    Named(Named),
}

/// A name to resolve: the interface to the resolver.
///
/// [`super::Group::names`] lists them, [`super::Group::put`] takes the addresses, as often as they change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// The name.
    pub host: String,
    /// The port; with a service it comes with each address instead.
    pub port: u16,
    /// `service`: which SRV records name the servers.
    pub service: Option<String>,
    /// `resolve`: by the resolver of the configuration and not by the system.
    pub at_run_time: bool,
}

/// An address that was found for a [`Named`].
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Address and port.
    pub address: Address,
    /// The name in the SRV record, which is the server's name then.
    pub server: Option<Arc<str>>,
    /// The weight in the SRV record, which counts where the line has none; 1 without a record.
    pub weight: u16,
    /// The priority in the SRV record: addresses above the least one are backups. 0 without a record.
    pub priority: u16,
}

/// An address with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// Where to connect to.
    pub address: PeerAddr,
    /// As `$upstream_addr` has it.
    pub name: Arc<str>,
}

impl From<PeerAddr> for Address {
    fn from(address: PeerAddr) -> Address {
        Address { name: name_of(&address), address }
    }
}

/// The requests that a server accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// All.
    #[default]
    All,
    /// `drain`: those of sessions that it has.
    Sessions,
    /// `down`
    Nobody,
}

/// How a server is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Method {
    /// By turns, in proportion to the weights.
    #[default]
    RoundRobin,
    /// `least_conn`
    LeastConn,
    /// `least_time`
    LeastTime {
        /// `last_byte`: the time of the whole response counts, not that of its head.
        whole: bool,
        /// `inflight`: requests without a response yet count with their waiting time.
        inflight: bool,
    },
    /// `ip_hash`
    IpHash,
    /// `hash`
    Hash(Template),
    /// `hash … consistent`
    Ring(Template),
    /// `random`
    Random {
        /// `two`: of two, the one with fewer connections.
        two: bool,
    },
}

impl Method {
    /// Whether `backup` and `slow_start` mean something with it: methods that bind a client to a server, and random
    /// ones, ignore them.
    pub fn takes_backup(&self) -> bool {
        matches!(self, Method::RoundRobin | Method::LeastConn | Method::LeastTime { .. })
    }
}

/// The idle connections to a group that each thread keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle connections at most (`keepalive`).
    pub idle_max: usize,
    /// Whether locations do not share them (the implicit default).
    pub local: bool,
    /// `keepalive_requests`
    pub requests: u64,
    /// `keepalive_time`
    pub time: Duration,
    /// `keepalive_timeout`
    pub timeout: Duration,
}

impl Default for Keepalive {
    /// The default of every upstream block since nginx 1.29.7.
    fn default() -> Keepalive {
        Keepalive {
            idle_max: 32,
            local: true,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

/// An upstream block while it is read.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Its name.
    pub name: String,
    /// Its servers in order.
    pub lines: Vec<Line>,
    /// The method, once a directive has named one.
    pub method: Option<Method>,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `keepalive` and its like.
    pub keepalive: Keepalive,
    /// `zone`
    pub zone: Option<Arc<Zone<ServersZone>>>,
    /// `state`
    pub state: Option<PathBuf>,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Option<Duration>,
}

impl Settings for Draft {}

impl Draft {
    /// A block without anything in it.
    pub fn new(name: &str) -> Draft {
        Draft {
            name: name.to_owned(),
            lines: Vec::new(),
            method: None,
            sticky: None,
            keepalive: Keepalive::default(),
            zone: None,
            state: None,
            resolver: None,
            resolver_timeout: None,
        }
    }
}
