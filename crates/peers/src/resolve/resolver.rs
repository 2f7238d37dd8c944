//! `resolver`: resolves names by DNS queries of this server, and caches results for their TTL.
//!
//! ```text
//!   find --> in the table and not expired -----------------------> result
//!     |                                                              ^
//!     +----> lookup in flight: waits with other requests ------+     |
//!     +----> a task looks it up: query, aliases, query --------+--> into the table
//! ```
//! All threads share the table of a [`Resolver`]. The lookup is a separate task, so that it continues when its request ends.
//! Expired results are retained for use while no name server responds.

use std::collections::{HashMap, hash_map};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use conf::Span;
use rt::watch::Watcher;
use rt::{Either, Timer, select};
use site::address::ClientNetwork;

use super::query::{Silence, Turn, query};
use super::settings::{NameServer, Settings};
use super::system::System;
use super::unresolved::Unresolved;
use super::wire::{ADDRESSES_MAX, Lookup, NXDOMAIN, Name, RecordType, Response, SERVFAIL, Service};

/// A resolver with its cache.
pub struct Resolver {
    settings: Settings,
    turn: Turn,
    table: Mutex<NameTable>,
    /// The name servers that are configured by name.
    named: Arc<Mutex<HashMap<String, NamedServer>>>,
    /// Resolves the names of name servers.
    system: System,
}

/// Addresses of a name server that is configured by name.
struct NamedServer {
    found: Vec<IpAddr>,
    /// Time of expiry.
    until: Instant,
    /// Start of the last lookup.
    started: Instant,
    /// Closed once the last lookup has ended.
    lookup: Watcher,
}

/// Addresses of a name, and their expiry time.
pub type Addresses = (Arc<[IpAddr]>, Instant);

/// Servers of a service, each with its addresses or the reason why it has none.
pub(super) type Services = Vec<(Service, Result<Vec<IpAddr>, Unresolved>)>;

/// Cached results and lookups in flight.
#[derive(Default)]
struct NameTable {
    names: HashMap<Name, Entry>,
    /// Number of lookups in flight.
    lookups: usize,
    /// The same by client, for clients with any.
    lookups_by_client: HashMap<ClientNetwork, usize>,
}

struct Entry {
    /// The last result.
    found: Option<Addresses>,
    /// Time until which the result may be used after its expiry.
    stale_until: Instant,
    /// The lookup in flight.
    lookup: Option<Arc<NameLookup>>,
    used: Instant,
}

/// A lookup in flight.
struct NameLookup {
    /// The client whose request started it.
    client: ClientNetwork,
    started: Instant,
    /// The result; not set if no name server responded within the time of the lookup.
    outcome: OnceLock<Result<Addresses, Unresolved>>,
    done: Watcher,
}

/// Wakes the waiting requests when a lookup has ended, even if its task was dropped.
struct LookupDone(rt::watch::Publisher);

/// Maximum number of cached names: names from client-controlled variables must not fill the memory. An entry has some hundred
/// bytes.
const NAMES_MAX: usize = 8192;

/// Maximum number of lookups in flight; each has two sockets per queried name server.
const LOOKUPS_MAX: usize = 512;

/// Maximum number of lookups in flight of names that were never found. Clients may choose such names, and a silent name server
/// occupies a lookup for `resolver_timeout`: the remaining lookups are for names that were found before. One client gets at most half
/// of what the other clients leave.
const LOOKUPS_NEW_MAX: usize = LOOKUPS_MAX / 4 * 3;

/// Maximum time for which a result is used.
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Time for which expired addresses may be used if no name server responds (RFC 8767 section 5: days).
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Maximum time that requests wait for a response if there are expired addresses (RFC 8767 section 5).
const STALE_AFTER: Duration = Duration::from_millis(1800);

/// Time for which expired addresses are used without another query (RFC 8767 section 5).
const STALE_TIME: Duration = Duration::from_secs(5);

/// Maximum wait for the other address family once the first has returned addresses.
const OTHER_FAMILY_TIME: Duration = Duration::from_secs(2);

/// Maximum number of queries for following aliases that a response does not resolve: nginx's limit is 50.
const QUERIES_MAX: u32 = 8;

/// Time for which the address of a name server that is configured by name is used.
const SERVER_TIME: Duration = Duration::from_secs(60);

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.settings.fmt(f)
    }
}

impl Resolver {
    /// Creates a resolver with an empty cache.
    pub fn new(settings: Settings) -> Arc<Resolver> {
        Resolver::with_system(settings, System::default())
    }

    fn with_system(settings: Settings, system: System) -> Arc<Resolver> {
        let (turn, table, named) = (Turn::default(), Mutex::default(), Arc::default());
        Arc::new(Resolver { settings, turn, table, named, system })
    }

    /// Returns the ports of the name servers. Responses that a datagram cannot hold are requested over TCP.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.settings.servers.iter().map(|server| match server {
            NameServer::At(address) => address.port(),
            NameServer::Named(_, port) => *port,
        })
    }

    /// Returns the name servers that are configured by name, with the position of the directive.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, Option<&Span>)> {
        self.settings.servers.iter().filter_map(|server| match server {
            NameServer::Named(name, _) => Some((name.as_str(), self.settings.position.as_ref())),
            NameServer::At(_) => None,
        })
    }

    /// Whether both resolvers query the same name servers for the same address families.
    pub(super) fn queries_same(&self, other: &Resolver) -> bool {
        let (own, theirs) = (&self.settings, &other.settings);
        own.servers == theirs.servers && (own.ipv4, own.ipv6) == (theirs.ipv4, theirs.ipv6)
    }

    /// Takes over the cache of the previous configuration's resolver, as expired results: the first request queries again, as after
    /// a reload of nginx, but does not fail while no name server responds.
    pub(super) fn take_over(&self, before: &Resolver) {
        let now = Instant::now();
        let known: Vec<(Name, Entry)> = before
            .table()
            .names
            .iter()
            .filter_map(|(name, entry)| {
                let (addresses, until) = entry.found.as_ref().filter(|_| now < entry.stale_until)?;
                let found = Some((Arc::clone(addresses), now.min(*until)));
                Some((
                    name.clone(),
                    Entry { found, stale_until: entry.stale_until, lookup: None, used: entry.used },
                ))
            })
            .collect();
        self.table().names.extend(known);
    }

    /// Returns the addresses of a name, in the order of the response. `client` shares the lookups in flight with other clients.
    ///
    /// # Errors
    /// Returns the reason if the name cannot be resolved within `timeout`.
    pub async fn find(
        self: &Arc<Resolver>,
        text: &[u8],
        timeout: Duration,
        client: ClientNetwork,
    ) -> Result<Addresses, Unresolved> {
        let name = Name::parse(text).ok_or(Unresolved::Code(NXDOMAIN))?;
        let deadline = rt::now() + timeout;
        loop {
            let (lookup, stale, is_leader) = match self.table().begin(&name, rt::now(), client)? {
                LookupStart::Cached(found) => return Ok(found),
                LookupStart::Joined(lookup, stale) => (lookup, stale, false),
                LookupStart::Leader(lookup, done, stale) => {
                    let (resolver, name, lookup_too) = (Arc::clone(self), name.clone(), Arc::clone(&lookup));
                    // A complete timeout, even if this request ends earlier: other requests wait for the lookup too.
                    let until = rt::now() + timeout;
                    rt::spawn(async move { resolver.lead(name, lookup_too, done, until).await });
                    (lookup, stale, true)
                }
            };
            let timer = Timer::new();
            timer.set(match stale {
                Some(_) => deadline.min(lookup.started + STALE_AFTER),
                None => deadline,
            });
            let outcome = match timer.limit(lookup.done.above(0)).await {
                Ok(_) => lookup.outcome.get().cloned(),
                Err(rt::Elapsed) => None,
            };
            match (outcome, stale) {
                // NXDOMAIN is not among these errors: it is a response, and replaces the expired addresses.
                (
                    None | Some(Err(Unresolved::TimedOut | Unresolved::Code(1 | SERVFAIL | 4..))),
                    Some(stale),
                ) => return Ok(stale),
                // The lookup began before this request, or with a shorter timeout: joins or starts another lookup.
                (None, None) if !is_leader && rt::now() < deadline => {}
                (outcome, _) => return outcome.unwrap_or(Err(Unresolved::TimedOut)),
            }
        }
    }

    /// Runs the task of a lookup.
    async fn lead(
        self: Arc<Resolver>,
        name: Name,
        lookup: Arc<NameLookup>,
        done: LookupDone,
        until: Instant,
    ) {
        let ending = Ending { resolver: &self, name: &name, lookup: &lookup, _done: done };
        let found = self.addresses(&name, until).await;
        if matches!(found, Err(Unresolved::TimedOut)) && rt::now() >= until {
            return;
        }
        let outcome = found.map(|(addresses, ttl)| (addresses.into(), rt::now() + ttl));
        // Only this task sets it.
        let _ = ending.lookup.outcome.set(outcome);
    }

    /// Whether addresses of this family are used.
    pub(super) fn uses_family(&self, address: &IpAddr) -> bool {
        if address.is_ipv4() { self.settings.ipv4 } else { self.settings.ipv6 }
    }

    /// Queries the addresses of all enabled families; returns them with their lifetime. Does not use the table.
    pub(super) async fn addresses(
        &self,
        name: &Name,
        deadline: Instant,
    ) -> Result<(Vec<IpAddr>, Duration), Unresolved> {
        let servers = self.servers(deadline).await;
        let mut v4 = pin!(self.family(&servers, name, RecordType::A, deadline));
        let mut v6 = pin!(self.family(&servers, name, RecordType::Aaaa, deadline));
        let (first, second) = match (self.settings.ipv4, self.settings.ipv6) {
            (true, false) => (v4.await, Err(Unresolved::Code(NXDOMAIN))),
            (false, _) => (Err(Unresolved::Code(NXDOMAIN)), v6.await),
            (true, true) => match select(v4.as_mut(), v6.as_mut()).await {
                Either::Left(first) => (limited(&first, v6).await, first),
                Either::Right(first) => (limited(&first, v4).await, first),
            },
        };
        match (first, second) {
            (Ok((mut one, ttl_one)), Ok((mut other, ttl_other))) => {
                // IPv4 first, as in nginx.
                if one.first().is_some_and(IpAddr::is_ipv6) {
                    std::mem::swap(&mut one, &mut other);
                }
                one.extend(other);
                one.truncate(ADDRESSES_MAX);
                Ok((one, self.holds(ttl_one.min(ttl_other))))
            }
            (Ok((found, seconds)), Err(_)) | (Err(_), Ok((found, seconds))) => {
                Ok((found, self.holds(seconds)))
            }
            // A server failure is weaker evidence than a response that the name does not exist.
            (Err(Unresolved::Code(NXDOMAIN)), Err(other)) | (Err(other), Err(_)) => Err(other),
        }
    }

    /// Queries the addresses of a name, with their TTL: for callers that cache themselves.
    ///
    /// # Errors
    /// The error, at the latest after `timeout`.
    pub(super) async fn look_up(
        &self,
        text: &[u8],
        timeout: Duration,
    ) -> Result<(Vec<IpAddr>, Duration), Unresolved> {
        let name = Name::parse(text).ok_or(Unresolved::Code(NXDOMAIN))?;
        self.addresses(&name, rt::now() + timeout).await
    }

    /// Queries the addresses of one family and follows aliases.
    async fn family(
        &self,
        servers: &[SocketAddr],
        name: &Name,
        kind: RecordType,
        deadline: Instant,
    ) -> Result<(Vec<IpAddr>, u32), Unresolved> {
        self.follow(servers, name, kind, deadline, Response::addresses).await
    }

    async fn follow<T>(
        &self,
        servers: &[SocketAddr],
        name: &Name,
        kind: RecordType,
        deadline: Instant,
        read: impl Fn(&Response, &Name) -> Lookup<T>,
    ) -> Result<(Vec<T>, u32), Unresolved> {
        let (mut name, mut least) = (name.clone(), u32::MAX);
        for _ in 0..QUERIES_MAX {
            let response = query(servers, &self.turn, &name, kind, deadline).await;
            let response = response.map_err(|Silence| Unresolved::TimedOut)?;
            if response.code != 0 {
                return Err(Unresolved::Code(response.code));
            }
            match read(&response, &name) {
                Lookup::Found(found, seconds) => return Ok((found, least.min(seconds))),
                Lookup::Alias(to, seconds) => (name, least) = (to, least.min(seconds)),
                Lookup::Nothing => break,
            }
        }
        // A name without addresses does not exist as a host.
        Err(Unresolved::Code(NXDOMAIN))
    }

    /// Returns the servers of a service: the targets of its SRV records with their addresses. The records must be found within
    /// `timeout`. All targets are then resolved concurrently, each within the complete `timeout`, so that a slow target does not affect
    /// the others.
    ///
    /// # Errors
    /// The error of the SRV records. If no target has addresses, the error of the first target.
    pub(super) async fn look_up_service(
        &self,
        text: &str,
        timeout: Duration,
    ) -> Result<(Services, Duration), Unresolved> {
        let name = Name::parse(text.as_bytes()).ok_or(Unresolved::Code(NXDOMAIN))?;
        let deadline = rt::now() + timeout;
        let servers = self.servers(deadline).await;
        let found = self.follow(&servers, &name, RecordType::Srv, deadline, Response::services).await;
        let (services, seconds) = found?;
        let deadline = rt::now() + timeout;
        let found = services.iter().map(|service| self.addresses(&service.target, deadline));
        let found = rt::join_all(found).await;
        if let Some(&Err(failure)) = found.first()
            && found.iter().all(Result::is_err)
        {
            return Err(failure);
        }
        let least = found.iter().flatten().map(|(_, holds)| *holds).min();
        let holds = self.holds(seconds).min(least.unwrap_or(TTL_MAX));
        let found = found.into_iter().map(|found| found.map(|(addresses, _)| addresses));
        Ok((services.into_iter().zip(found).collect(), holds))
    }

    /// Returns the time for which a result with this TTL is used.
    fn holds(&self, seconds: u32) -> Duration {
        let own = Duration::from_secs(seconds.into()).min(TTL_MAX);
        self.settings.valid.unwrap_or(own)
    }

    /// Returns the addresses of the name servers. `deadline` limits the wait for each name without known addresses.
    async fn servers(&self, deadline: Instant) -> Vec<SocketAddr> {
        let mut servers = Vec::new();
        for server in &self.settings.servers {
            match server {
                NameServer::At(address) => servers.push(*address),
                NameServer::Named(name, port) => {
                    let found = self.named_server(name, deadline).await;
                    servers.extend(found.into_iter().map(|address| SocketAddr::new(address, *port)));
                }
            }
        }
        servers
    }

    /// Returns the addresses of a name server. As for other names, expired addresses are used while the system does not respond.
    async fn named_server(&self, name: &str, deadline: Instant) -> Vec<IpAddr> {
        let (lookup, until) = {
            let (mut named, now) = (lock(&self.named), rt::now());
            let server = named.entry(name.to_owned()).or_insert_with(|| {
                let (_, lookup) = rt::watch::channel(0);
                NamedServer { found: Vec::new(), until: now, started: now, lookup }
            });
            if server.until > now {
                return server.found.clone();
            }
            // One lookup at a time: it may occupy a helper thread for long.
            if server.lookup.is_closed() {
                (server.started, server.lookup) = (now, self.look_up_server(name));
            }
            let until = if server.found.is_empty() { deadline } else { server.started + STALE_AFTER };
            (server.lookup.clone(), until.min(deadline))
        };
        let timer = Timer::new();
        timer.set(until);
        // Either the lookup has ended, or the known addresses are used.
        let _ = timer.limit(lookup.above(0)).await;
        lock(&self.named).get(name).map(|server| server.found.clone()).unwrap_or_default()
    }

    /// Looks up a name server in a separate task, so that the result counts even if it is late.
    fn look_up_server(&self, name: &str) -> Watcher {
        let (publisher, lookup) = rt::watch::channel(0);
        let (named, system, name) = (Arc::clone(&self.named), self.system.clone(), name.to_owned());
        rt::spawn(async move {
            let result = system.look_up(&name).await;
            if let Some(server) = lock(&named).get_mut(&name) {
                match result {
                    Ok(found) => (server.found, server.until) = (found.usable, rt::now() + SERVER_TIME),
                    Err(_) if server.found.is_empty() => {}
                    Err(_) => server.until = rt::now() + STALE_TIME,
                }
            }
            drop(publisher);
        });
        lookup
    }

    fn table(&self) -> MutexGuard<'_, NameTable> {
        lock(&self.table)
    }
}

/// Locks a mutex. It ignores poisoning, because a panic cannot leave the data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result for the other address family, with a limited wait once the first has returned addresses.
async fn limited<T>(
    first: &Result<T, Unresolved>,
    other: impl Future<Output = Result<T, Unresolved>>,
) -> Result<T, Unresolved> {
    if first.is_err() {
        return other.await;
    }
    let timer = Timer::new();
    timer.set(rt::now() + OTHER_FAMILY_TIME);
    timer.limit(other).await.unwrap_or(Err(Unresolved::TimedOut))
}

/// The end of a lookup, for any reason: stores the result in the table and wakes waiting requests.
struct Ending<'a> {
    resolver: &'a Resolver,
    name: &'a Name,
    lookup: &'a Arc<NameLookup>,
    _done: LookupDone,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut table = self.resolver.table();
        table.end(self.lookup.client);
        let outcome = self.lookup.outcome.get();
        let Some(entry) = table.names.get_mut(self.name) else { return };
        entry.lookup = None;
        match outcome {
            Some(Ok(found)) => {
                entry.stale_until = found.1 + STALE_MAX;
                entry.found = Some(found.clone());
            }
            // A negative response replaces the known addresses.
            Some(Err(Unresolved::Code(NXDOMAIN))) => entry.found = None,
            // The known addresses are used for some time, so that not every request waits for another failing query. The clock is
            // read directly, since the runtime may no longer exist.
            Some(Err(_)) | None => entry.found = entry.stale(Instant::now()),
        }
        if entry.found.is_none() {
            table.names.remove(self.name);
        }
        drop(table);
        self._done.0.publish(1);
    }
}

/// How a request gets the addresses of a name.
enum LookupStart {
    /// From the cache; expired addresses if too many lookups are in flight.
    Cached(Addresses),
    /// From the lookup in flight; with the expired addresses, if any.
    Joined(Arc<NameLookup>, Option<Addresses>),
    /// From a lookup that the caller starts; with the expired addresses, if any.
    Leader(Arc<NameLookup>, LookupDone, Option<Addresses>),
}

impl NameTable {
    fn begin(&mut self, name: &Name, now: Instant, client: ClientNetwork) -> Result<LookupStart, Unresolved> {
        if let Some(entry) = self.names.get_mut(name) {
            entry.used = now;
            if let Some(found) = entry.found.as_ref().filter(|(_, until)| *until > now) {
                return Ok(LookupStart::Cached(found.clone()));
            }
            if let Some(lookup) = &entry.lookup {
                return Ok(LookupStart::Joined(Arc::clone(lookup), entry.stale(now)));
            }
        }
        let is_known = self.names.get(name).is_some_and(|entry| entry.found.is_some());
        let may_begin = if is_known { self.lookups < LOOKUPS_MAX } else { self.has_lookup(client) };
        if !may_begin {
            let stale = self.names.get(name).and_then(|entry| entry.stale(now));
            return stale.map(LookupStart::Cached).ok_or(Unresolved::Busy);
        }
        self.make_room(now);
        self.lookups += 1;
        *self.lookups_by_client.entry(client).or_default() += 1;
        let (publisher, done) = rt::watch::channel(0);
        let lookup = Arc::new(NameLookup { client, started: now, outcome: OnceLock::new(), done });
        let fresh = || Entry { found: None, stale_until: now, lookup: None, used: now };
        let entry = self.names.entry(name.clone()).or_insert_with(fresh);
        entry.lookup = Some(Arc::clone(&lookup));
        Ok(LookupStart::Leader(lookup, LookupDone(publisher), entry.stale(now)))
    }

    /// Whether the client may look up a name that was never found.
    fn has_lookup(&self, client: ClientNetwork) -> bool {
        let own = self.lookups_by_client.get(&client).copied().unwrap_or(0);
        debug_assert!(own <= self.lookups, "the lookups of a client are among all lookups");
        own < LOOKUPS_NEW_MAX.saturating_sub(self.lookups - own).div_ceil(2)
    }

    /// Counts the end of a client's lookup.
    fn end(&mut self, client: ClientNetwork) {
        debug_assert!(self.lookups > 0, "each lookup is counted");
        self.lookups = self.lookups.saturating_sub(1);
        if let hash_map::Entry::Occupied(mut own) = self.lookups_by_client.entry(client) {
            assert!(*own.get() > 0, "each lookup of a client is counted");
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Removes an eighth of the names, the least recently used, if the table is full.
    fn make_room(&mut self, now: Instant) {
        if self.names.len() < NAMES_MAX {
            return;
        }
        self.names.retain(|_, entry| entry.lookup.is_some() || entry.stale(now).is_some());
        let mut used: Vec<Instant> = self.names.values().map(|entry| entry.used).collect();
        if used.len() < NAMES_MAX {
            return;
        }
        let (_, &mut limit, _) = used.select_nth_unstable(NAMES_MAX / 8);
        self.names.retain(|_, entry| entry.lookup.is_some() || entry.used > limit);
    }
}

impl Entry {
    /// Returns the expired result, for use while no name server responds.
    fn stale(&self, now: Instant) -> Option<Addresses> {
        let (addresses, _) = self.found.as_ref()?;
        (now < self.stale_until).then(|| (Arc::clone(addresses), now + STALE_TIME))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use io::engine::{EngineConfig, NetKind};
    use testkit::{DnsServer, TempDir};

    use super::*;

    fn name(number: usize) -> Name {
        Name::parse(format!("n{number}.example").as_bytes()).expect("a name")
    }

    fn client(number: usize) -> ClientNetwork {
        Some(IpAddr::from((number as u32).to_be_bytes()))
    }

    fn found(now: Instant) -> Addresses {
        (Arc::new([IpAddr::from([10, 0, 0, 1])]), now + STALE_AFTER)
    }

    #[test]
    fn the_table_is_limited_and_retains_used_names() {
        let (mut table, now) = (NameTable::default(), Instant::now());
        let at = |number: usize| now + Duration::from_micros(number as u64);
        for number in 0..NAMES_MAX + 10 {
            let Ok(LookupStart::Leader(..)) = table.begin(&name(number), at(number), None) else {
                panic!("it is new")
            };
            table.end(None);
            let entry = table.names.get_mut(&name(number)).expect("it was put there");
            (entry.lookup, entry.found, entry.stale_until) = (None, Some(found(now)), now + STALE_MAX);
            assert!(table.names.len() <= NAMES_MAX);
            // The first name is in use all the time.
            assert!(
                matches!(table.begin(&name(0), at(number), None), Ok(LookupStart::Cached(_))),
                "{number}"
            );
        }
        assert!(!table.names.contains_key(&name(1)));
    }

    #[test]
    fn lookups_are_limited_and_shared() {
        let (mut table, now) = (NameTable::default(), Instant::now());
        let mut leads = Vec::new();
        for number in 0..LOOKUPS_NEW_MAX {
            leads.push(table.begin(&name(number), now, client(number)));
        }
        assert!(matches!(table.begin(&name(LOOKUPS_MAX), now, client(LOOKUPS_MAX)), Err(Unresolved::Busy)));
        for number in LOOKUPS_MAX + 1..=2 * LOOKUPS_MAX - LOOKUPS_NEW_MAX {
            let (found, lookup) = (Some(found(now)), None);
            let expired = Entry { found, stale_until: now, lookup, used: now };
            table.names.insert(name(number), expired);
            leads.push(table.begin(&name(number), now + STALE_MAX, client(0)));
        }
        assert_eq!(table.lookups, LOOKUPS_MAX, "names that were found before have lookups of their own");
        assert!(matches!(table.begin(&name(0), now, client(0)), Ok(LookupStart::Joined(_, None))));
        let known = Entry { found: Some(found(now)), stale_until: now + STALE_MAX, lookup: None, used: now };
        table.names.insert(name(LOOKUPS_MAX), known);
        let expired = now + STALE_AFTER;
        let Ok(LookupStart::Cached((_, until))) = table.begin(&name(LOOKUPS_MAX), expired, client(0)) else {
            panic!("expired addresses are usable")
        };
        assert_eq!(until, expired + STALE_TIME);
    }

    #[test]
    fn a_client_gets_half_of_the_lookups_that_others_leave() {
        let (mut table, now) = (NameTable::default(), Instant::now());
        let mut names = (0..).map(name);
        let mut take = |table: &mut NameTable, number| {
            let mut begin = || table.begin(&names.next().expect("endless"), now, client(number)).is_ok();
            (0..LOOKUPS_MAX).filter(|_| begin()).count()
        };
        let half = LOOKUPS_NEW_MAX / 2;
        assert_eq!([1, 2, 3].map(|number| take(&mut table, number)), [half, half / 2, half / 4]);
        (0..half).for_each(|_| table.end(client(1)));
        assert!(!table.lookups_by_client.contains_key(&client(1)), "only clients with lookups are counted");
        assert!(take(&mut table, 3) > half / 4 && take(&mut table, 4) > 0);
    }

    /// The second lookup of the name server's address does not end.
    #[test]
    fn known_addresses_of_a_name_server_are_used_while_the_system_hangs() {
        let (dns, folder) = (DnsServer::start(), TempDir::new("resolve-named"));
        let (release, released) = mpsc::channel::<()>();
        let (released, calls) = (Mutex::new(released), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let system = System::for_tests(folder.path(), move |_| {
            if counted.fetch_add(1, Ordering::Relaxed) > 0 {
                // Ends when the sender is dropped.
                let _ = lock(&released).recv();
            }
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        });
        let words = format!("ns.example:{} ipv6=off", dns.addr().port());
        let settings = Settings::parse(words.split_whitespace()).expect("a resolver");
        let resolver = Resolver::with_system(settings, system);
        let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
        rt::Runtime::new(engine.expect("epoll is everywhere")).block_on(async {
            for name in ["a", "b", "c"] {
                dns.set_addresses(name, &["10.0.0.1"], 60);
                let found = resolver.find(name.as_bytes(), testkit::wait::DEFAULT_LIMIT, None).await;
                assert!(found.is_ok(), "{name}: {found:?}");
                // The address of the name server expires.
                lock(&resolver.named).values_mut().for_each(|server| server.until = rt::now());
            }
        });
        assert!(calls.load(Ordering::Relaxed) <= 2, "one lookup at a time");
        drop(release);
    }
}
