//! The settings of an upstream block: its servers with their parameters, the method, and other directives.
//!
//! All settings are data that directives set and that do not change afterwards; state that changes at run time is in
//! [`super::table`].

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::{Bare, Span};
use io::op::PeerAddr;

use super::ServersZone;
use super::address::{HostKind, Url, name_of};
use super::queue::QueueLimits;
use super::sticky::Sticky;
use crate::resolve::resolver::Resolver;
use site::config::Settings;
use site::shared_zone::Zone;
use site::template::Template;

/// One `server` line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The address as configured, without parameters.
    pub text: Arc<str>,
    /// Source of the server's addresses.
    pub source: Source,
    /// `weight`
    pub weight: i64,
    /// `max_conns`; 0 means no limit.
    pub max_conns: u64,
    /// `max_fails`; 0 disables the counting of failures.
    pub max_fails: u64,
    /// `fail_timeout`, in seconds.
    pub fail_timeout: i64,
    /// `slow_start`, in milliseconds; 0 disables it.
    pub slow_start_ms: i64,
    /// `backup`
    pub backup: bool,
    /// `down`, `drain`
    pub accepts: Accepts,
    /// `route`
    pub route: Option<Arc<str>>,
    /// File and line of the statement; `None` for a server that was added through `api`.
    pub position: Option<Span>,
}

impl Line {
    /// Creates a server with nginx's defaults.
    pub fn new(text: &str, url: &Url) -> Line {
        let source = match &url.kind {
            HostKind::Address(address) => Source::Fixed(Address::from(address.clone())),
            HostKind::Name => {
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
            accepts: Accepts::All,
            route: None,
            position: None,
        }
    }

    /// Returns the name to resolve.
    pub fn named(&self) -> Option<&Named> {
        match &self.source {
            Source::Fixed(_) => None,
            Source::Named(named) => Some(named),
        }
    }
}

/// Formats the directive of this line without the semicolon; parameters with default values are omitted.
impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "server {}", Bare(&self.text))?;
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
                write!(f, " {}", Bare(&format!("{name}={value}")))?;
            }
        }
        let words = [
            ("resolve", self.named().is_some_and(|named| named.at_run_time)),
            ("backup", self.backup),
            ("down", self.accepts == Accepts::Nothing),
            ("drain", self.accepts == Accepts::Sessions),
        ];
        words.iter().filter(|(_, is)| *is).try_for_each(|(word, _)| write!(f, " {word}"))
    }
}

/// Source of the addresses of a [`Line`].
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A literal address.
    Fixed(Address),
    /// A name, which is resolved separately.
    Named(Named),
}

/// A name to resolve, as passed to the resolver.
///
/// [`super::Group::names`] lists the names; [`super::Group::put`] sets their addresses whenever they change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// The name.
    pub host: String,
    /// The port; with `service`, SRV records provide the ports instead.
    pub port: u16,
    /// `service`: which SRV records to query.
    pub service: Option<String>,
    /// `resolve`: resolved by the configured resolver instead of the system.
    pub at_run_time: bool,
}

/// An address found for a [`Named`].
#[derive(Clone, Debug, PartialEq)]
pub struct FoundAddress {
    /// Address and port.
    pub address: Address,
    /// The target name of the SRV record, which becomes the server's name.
    pub server: Option<Arc<str>>,
    /// The weight of the SRV record, used if the line has none; 1 without a record.
    pub weight: u16,
    /// The priority of the SRV record: addresses above the lowest priority value are backups. 0 without a record.
    pub priority: u16,
}

/// An address with its displayed name.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// Address to connect to.
    pub address: PeerAddr,
    /// Name as shown in `$upstream_addr`.
    pub name: Arc<str>,
}

impl From<PeerAddr> for Address {
    fn from(address: PeerAddr) -> Address {
        Address { name: name_of(&address), address }
    }
}

/// Which requests a server accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepts {
    /// All requests.
    #[default]
    All,
    /// `drain`: requests of existing sessions.
    Sessions,
    /// `down`
    Nothing,
}

/// Method of choosing a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Method {
    /// Round robin, in proportion to the weights.
    #[default]
    RoundRobin,
    /// `least_conn`
    LeastConn,
    /// `least_time`
    LeastTime {
        /// `last_byte`: uses the time of the complete response instead of that of its head.
        full_response: bool,
        /// `inflight`: includes the waiting time of requests in flight.
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
        /// `two`: chooses two at random and uses the one with fewer connections.
        two: bool,
    },
}

impl Method {
    /// Whether `backup` and `slow_start` have an effect: hash and random methods ignore them.
    pub fn takes_backup(&self) -> bool {
        matches!(self, Method::RoundRobin | Method::LeastConn | Method::LeastTime { .. })
    }
}

/// Limits of the idle connections to a group, per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Maximum number of idle connections (`keepalive`).
    pub idle_max: usize,
    /// Whether locations do not share connections (the implicit default).
    pub local: bool,
    /// `keepalive_requests`
    pub requests: u64,
    /// `keepalive_time`
    pub time: Duration,
    /// `keepalive_timeout`
    pub timeout: Duration,
}

impl Default for Keepalive {
    /// Returns the default of every upstream block since nginx 1.29.7.
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

/// An upstream block that is being parsed.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Its name.
    pub name: String,
    /// The servers in order.
    pub lines: Vec<Line>,
    /// The method, if a directive set it.
    pub method: Option<Method>,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `keepalive` and related directives.
    pub keepalive: Keepalive,
    /// `queue`
    pub queue: Option<QueueLimits>,
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
    /// Creates an empty block.
    pub fn new(name: &str) -> Draft {
        Draft {
            name: name.to_owned(),
            lines: Vec::new(),
            method: None,
            sticky: None,
            keepalive: Keepalive::default(),
            queue: None,
            zone: None,
            state: None,
            resolver: None,
            resolver_timeout: None,
        }
    }
}
