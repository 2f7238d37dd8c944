//! Resolves names to addresses without blocking a worker thread.
//!
//! | part | holds |
//! |---|---|
//! | `system` | names that are written in the configuration: the system's way, on a helper thread |
//! | [`resolver`] | names out of variables, and servers with `resolve`: by our own queries, as `resolver` says |
//! | `ask` | one question to name servers |
//! | `wire` | messages of DNS |
//! | [`settings`] | what `resolver` and `/etc/resolv.conf` say |
//! | [`keeper`] | looks up names of the configuration again in time, and hands what it finds to `upstream::peers` |
//!
//! Everything has a time and a limit; nothing here waits in the start of the server or on a worker thread.

mod ask;
pub mod keeper;
pub mod resolver;
pub mod settings;
mod system;
#[cfg(test)]
mod tests;
mod ttl;
mod unresolved;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use keeper::missing;
pub use unresolved::Unresolved;

use crate::Failure;
use crate::peers::{Group, Upstreams};
use exchange::config::{Config, Settings};
use exchange::request::Request;
use resolver::Resolver;
use telemetry::Level;

/// Waits until the names of a group have addresses, or are known to have none; not for ever.
pub async fn first_answer(request: &Request, group: &Arc<Group>) {
    let timer = rt::Timer::new();
    let timeout = group.resolver_timeout.unwrap_or(request.scope().of::<Conf>().timeout);
    timer.set(rt::now() + timeout);
    if let Err(rt::Elapsed) = timer.limit(group.first_answer()).await {
        let (name, why) = (&group.name, Unresolved::TimedOut);
        request.log(Level::Error, format_args!("{name} could not be resolved ({why})"));
    }
}

/// `resolver` and `resolver_timeout` of a block.
#[derive(Clone, Debug)]
pub struct Conf {
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub timeout: Duration,
}

impl Settings for Conf {}

/// Those of `http`, for the groups of servers, which have no other block.
#[derive(Debug, Default)]
pub struct HttpConf(pub Conf);

/// The default of `resolver_timeout`, nginx's.
pub const TIMEOUT: Duration = Duration::from_secs(30);

impl Default for Conf {
    fn default() -> Conf {
        Conf { resolver: None, timeout: TIMEOUT }
    }
}

/// To be called before a thread serves under this configuration: resolvers take over what those of the configuration
/// before know that ask the same name servers.
pub fn begin(config: &Config, before: &Config) {
    let known = resolvers(before);
    for resolver in resolvers(config) {
        if let Some(known) = known.iter().find(|known| known.asks_as(resolver)) {
            resolver.take_over(known);
        }
    }
}

/// The resolvers of a configuration, each once.
fn resolvers(config: &Config) -> Vec<&Arc<Resolver>> {
    let http = &config.http;
    let of_locations =
        http.locations.iter().filter_map(|location| location.scope.of::<Conf>().resolver.as_ref());
    let of_groups = http.of::<Upstreams>().groups().filter_map(|group| group.resolver.as_ref());
    let mut found: Vec<&Arc<Resolver>> = Vec::new();
    for resolver in http.of::<HttpConf>().0.resolver.iter().chain(of_locations).chain(of_groups) {
        if !found.iter().any(|known| Arc::ptr_eq(known, resolver)) {
            found.push(resolver);
        }
    }
    found
}

/// The addresses of a name that came out of variables, in an order that differs from request to request.
///
/// # Errors
/// The status of the response; the log has the reason.
pub async fn addresses(
    request: &Request,
    host: &[u8],
    port: u16,
) -> Result<impl Iterator<Item = SocketAddr> + use<>, Failure> {
    let Conf { resolver, timeout } = request.scope().of::<Conf>();
    let name = host.escape_ascii();
    let Some(resolver) = resolver else {
        request.log(Level::Error, format_args!("no resolver defined to resolve {name}"));
        return Err(Failure::Status(502));
    };
    match resolver.find(host, *timeout).await {
        Ok((addresses, _)) => {
            let count = addresses.len();
            let first = TURN.fetch_add(1, Ordering::Relaxed) % count.max(1);
            let places = (first..count).chain(0..first);
            Ok(places.map(move |place| SocketAddr::new(addresses[place], port)))
        }
        Err(unresolved) => {
            request.log(Level::Error, format_args!("{name} could not be resolved ({unresolved})"));
            Err(Failure::Status(502))
        }
    }
}

/// Which address is the first one of the next request.
static TURN: AtomicUsize = AtomicUsize::new(0);
