//! Keeps the names of groups resolved: one task per name, on one thread.
//!
//! ```text
//!            +--- failed: a growing pause ---+
//!            v                               |
//!   start -> look up -- found: put into the groups -- wait until it may have changed --+
//!            ^                                                                         |
//!            +-------------------------------------------------------------------------+
//! ```
//! A name that cannot be resolved keeps its previous addresses. Without any address a group has no server, and requests get 502
//! until the name is resolved. Beginning and end of a failure are logged.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::Span;
use io::op::PeerAddr;
use rt::local::Event;

use super::resolver::Resolver;
use super::system::{System, SystemAddresses};
use super::ttl::{TimeSource, UNKNOWN};
use super::unresolved::Unresolved;
use super::wire::{ADDRESSES_MAX, NXDOMAIN};
use crate::lines::{Address, FoundAddress, Named};
use crate::resolve::Conf;
use crate::{Group, Upstreams};
use telemetry::Level;

/// Keeps the names of the groups of one configuration resolved until it is dropped.
pub struct Refresher {
    end: Rc<Event>,
}

/// Pauses after a failed resolution: a server that was just started responds soon, and a server that stays down is not queried
/// continuously.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Interval of checking whether the hosts file has changed. It is changed manually, or when a container starts.
const HOSTS_EVERY: Duration = Duration::from_secs(5);

impl Refresher {
    /// Starts on this thread. `default` has the settings for groups without their own. The first results arrive later.
    pub fn start(groups: &Upstreams, default: &Conf, reporter: &Reporter) -> Refresher {
        let refresher = Refresher { end: Rc::new(Event::new()) };
        for (host, users) in literal_names(groups) {
            let resolver = users.iter().find_map(|user| user.group.resolver.clone());
            let times = TimeSource::new(resolver.or_else(|| default.resolver.clone()));
            let (system, reporter) = (System::default(), reporter.clone());
            let name = SystemName { host, users, system, times, reporter, hosts_every: HOSTS_EVERY };
            refresher.spawn(name.refresh());
        }
        for (group, named) in run_time_names(groups) {
            // A configuration without a resolver is refused.
            let Some(resolver) = group.resolver.clone().or_else(|| default.resolver.clone()) else {
                continue;
            };
            let timeout = group.resolver_timeout.unwrap_or(default.timeout);
            let name = RunTimeName { group, named, resolver, timeout, reporter: reporter.clone() };
            refresher.spawn(name.refresh());
        }
        refresher
    }

    /// Spawns a task that ends when the refresher is dropped.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let end = Rc::clone(&self.end);
        rt::spawn(async move {
            let _ = rt::select(end.wait(), task).await;
        });
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.end.set();
    }
}

/// A group that uses a name.
pub(super) struct User {
    pub(super) group: Arc<Group>,
    pub(super) named: Named,
    pub(super) position: Option<Span>,
}

/// Returns the names that the system resolves, with the groups that use them.
fn literal_names(groups: &Upstreams) -> BTreeMap<String, Vec<User>> {
    let mut names: BTreeMap<String, Vec<User>> = BTreeMap::new();
    for group in groups.groups() {
        for (named, position) in group.names_with_positions().filter(|(named, _)| !named.at_run_time) {
            let user = User { group: Arc::clone(group), named: named.clone(), position: position.cloned() };
            names.entry(named.host.to_ascii_lowercase()).or_default().push(user);
        }
    }
    names
}

/// Returns the names that a configured resolver resolves (`resolve`).
fn run_time_names(groups: &Upstreams) -> Vec<(Arc<Group>, Named)> {
    let names = |group: &Arc<Group>| {
        let names = group.names().filter(|named| named.at_run_time).cloned();
        names.map(|named| (Arc::clone(group), named)).collect::<Vec<_>>()
    };
    groups.groups().flat_map(names).collect()
}

/// Destination of log messages and of changes.
#[derive(Clone)]
pub struct Reporter {
    /// Writes a line to the error log.
    pub log: Rc<dyn Fn(Level, fmt::Arguments<'_>)>,
    /// Called when the addresses of a name are set.
    pub changed: Rc<dyn Fn()>,
}

impl Reporter {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        (self.log)(level, message);
    }
}

/// A name that the system resolves.
pub(super) struct SystemName {
    pub(super) host: String,
    pub(super) users: Vec<User>,
    pub(super) system: System,
    pub(super) times: TimeSource,
    pub(super) reporter: Reporter,
    /// Interval of checking whether the hosts file has changed.
    pub(super) hosts_every: Duration,
}

impl SystemName {
    /// Resolves the name repeatedly.
    pub(super) async fn refresh(self) {
        let mut failures = 0;
        loop {
            match self.system.look_up(&self.host).await {
                Ok(found) => {
                    self.put(&found.usable);
                    // After this line requests use the addresses.
                    if failures > 0 {
                        self.reporter
                            .log(Level::Notice, format_args!("host \"{}\" is found again", self.host));
                    }
                    failures = 0;
                    self.until_changed(&found).await;
                }
                Err(reason) => {
                    if failures == 0 {
                        self.log_failure(&reason);
                    }
                    self.users.iter().for_each(|user| user.group.put_unresolved(&user.named));
                    rt::sleep_until(rt::now() + pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    fn put(&self, addresses: &[IpAddr]) {
        for user in &self.users {
            let found = addresses.iter().map(|&address| found_at(SocketAddr::new(address, user.named.port)));
            user.group.put(&user.named, found.collect(), &*self.reporter.changed);
        }
    }

    /// Waits until the result may have changed.
    async fn until_changed(&self, found: &SystemAddresses) {
        let now = rt::now();
        let Some(stamp) = found.hosts else {
            let time = self.times.time(&self.host, &found.all).await;
            return rt::sleep_until(now + time).await;
        };
        let refresh = now + UNKNOWN;
        while rt::now() < refresh && self.system.stamp().await == stamp {
            rt::sleep_until(rt::now() + self.hosts_every).await;
        }
    }

    /// Logs the first of consecutive failures.
    fn log_failure(&self, reason: &str) {
        let name = &self.host;
        let position = self.users.iter().find_map(|user| user.position.as_ref());
        let position = position.map(|position| format!(" in {position}")).unwrap_or_default();
        let what = format_args!("host not found in upstream \"{name}\" ({reason}){position}");
        self.reporter.log(Level::Error, what);
    }
}

/// A name that a configured resolver resolves.
struct RunTimeName {
    group: Arc<Group>,
    named: Named,
    resolver: Arc<Resolver>,
    timeout: Duration,
    reporter: Reporter,
}

impl RunTimeName {
    /// Resolves the name repeatedly.
    async fn refresh(self) {
        let mut failures = 0;
        loop {
            let next = match self.find().await {
                Ok((found, holds)) => {
                    self.group.put(&self.named, found, &*self.reporter.changed);
                    if failures > 0 {
                        self.reporter.log(Level::Notice, format_args!("{self} is resolved again"));
                    }
                    failures = 0;
                    rt::now() + holds.max(PAUSE_MIN)
                }
                Err(unresolved) => {
                    if failures == 0 {
                        let what = format_args!("{self} could not be resolved ({unresolved})");
                        self.reporter.log(Level::Error, what);
                    }
                    match unresolved {
                        // As in nginx: the name servers report that the name no longer exists.
                        Unresolved::Code(NXDOMAIN) => {
                            self.group.put(&self.named, Vec::new(), &*self.reporter.changed);
                        }
                        _ => self.group.put_unresolved(&self.named),
                    }
                    failures += 1;
                    rt::now() + pause(failures - 1)
                }
            };
            rt::sleep_until(next).await;
        }
    }

    async fn find(&self) -> Result<(Vec<FoundAddress>, Duration), Unresolved> {
        let Named { host, port, service, .. } = &self.named;
        let Some(service) = service else {
            let (addresses, holds) = self.resolver.look_up(host.as_bytes(), self.timeout).await?;
            let found = addresses.into_iter().map(|address| found_at(SocketAddr::new(address, *port)));
            return Ok((found.collect(), holds));
        };
        let (services, holds) =
            self.resolver.look_up_service(&service_name(service, host), self.timeout).await?;
        for (service, found) in &services {
            if let Err(unresolved) = found {
                let target = &service.target;
                let what =
                    format_args!("{target} could not be resolved ({unresolved}) while resolving {self}");
                self.reporter.log(Level::Error, what);
            }
        }
        let found = services.iter().flat_map(|(service, addresses)| {
            let server: Arc<str> = service.target.to_string().into();
            addresses.iter().flatten().map(move |&address| FoundAddress {
                server: Some(Arc::clone(&server)),
                weight: service.weight,
                priority: service.priority,
                ..found_at(SocketAddr::new(address, service.port))
            })
        });
        Ok((found.take(ADDRESSES_MAX).collect(), holds))
    }
}

impl fmt::Display for RunTimeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.named.service {
            Some(service) => write!(f, "service {service} of {}", self.named.host),
            None => f.write_str(&self.named.host),
        }
    }
}

/// Returns the name of the SRV records for `service=`: a service without a dot is a TCP service (RFC 2782).
fn service_name(service: &str, host: &str) -> String {
    if service.contains('.') { format!("{service}.{host}") } else { format!("_{service}._tcp.{host}") }
}

/// Returns the pause after a failure that `failures` consecutive failures preceded.
fn pause(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

/// Returns an address that is not from an SRV record.
fn found_at(address: SocketAddr) -> FoundAddress {
    FoundAddress { address: Address::from(PeerAddr::Inet(address)), server: None, weight: 1, priority: 0 }
}

/// Resolves all literal names of groups and of resolvers with blocking calls, for `-t`. Returns a message for each name that cannot be
/// resolved, or not within `patience` for all names together.
pub fn missing(groups: &Upstreams, resolvers: &[&Arc<Resolver>], patience: Duration) -> Vec<String> {
    let mut open = checked_names(groups, resolvers);
    let (sender, answers) = std::sync::mpsc::channel();
    for key in open.keys().cloned() {
        let sender = sender.clone();
        // The thread is not joined, since the program ends soon. A thread that cannot be started is reported like a timeout.
        let _ = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            let found = System::default().look_up_now(&key.1).map(drop);
            let _ = sender.send((key, found));
        });
    }
    drop(sender);
    let deadline = Instant::now() + patience;
    let mut missing = Vec::new();
    while let Ok((key, found)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        let position = open.remove(&key).flatten();
        if let Err(reason) = found {
            missing.push(not_found(&key, &reason, position.as_ref()));
        }
    }
    missing.extend(open.iter().map(|(key, position)| not_found(key, "no result in time", position.as_ref())));
    missing
}

/// Returns the names that the system resolves, each after its use for messages, with the position of a directive.
fn checked_names(
    groups: &Upstreams,
    resolvers: &[&Arc<Resolver>],
) -> BTreeMap<(&'static str, String), Option<Span>> {
    let mut names = BTreeMap::new();
    for (name, users) in literal_names(groups) {
        names.insert(("upstream", name), users.into_iter().find_map(|user| user.position));
    }
    for (name, position) in resolvers.iter().flat_map(|resolver| resolver.names()) {
        names.entry(("resolver", name.to_owned())).or_insert(position.cloned());
    }
    names
}

fn not_found((user, name): &(&'static str, String), reason: &str, position: Option<&Span>) -> String {
    let position = position.map(|position| format!(" in {position}")).unwrap_or_default();
    format!("host not found in {user} \"{name}\" ({reason}){position}; the running server retries the lookup")
}
