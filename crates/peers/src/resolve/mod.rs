//! Resolves names to addresses without blocking a worker thread.
//!
//! | part | content |
//! |---|---|
//! | `system` | literal names in the configuration: resolved by the system on a helper thread |
//! | [`resolver`] | names from variables, and servers with `resolve`: DNS queries by the settings of `resolver` |
//! | `query` | one query to name servers |
//! | `wire` | DNS messages |
//! | [`settings`] | settings of `resolver` and `/etc/resolv.conf` |
//! | [`refresher`] | resolves names of the configuration again before they expire, and passes the results to the groups |
//!
//! Every operation has a timeout and a limit; none blocks the start of the server or a worker thread.

mod query;
pub mod refresher;
pub mod resolver;
pub mod settings;
mod system;
#[cfg(test)]
mod tests;
mod ttl;
mod unresolved;
mod wire;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use refresher::{Reporter, missing};
pub use unresolved::Unresolved;

use resolver::Resolver;
use site::config::Settings;
use system::System;

/// `resolver` and `resolver_timeout` of a block.
#[derive(Clone, Debug)]
pub struct Conf {
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub timeout: Duration,
}

impl Settings for Conf {}

/// The settings of `http`, for upstream groups, which have no other enclosing block.
#[derive(Debug, Default)]
pub struct HttpConf(pub Conf);

/// nginx's default of `resolver_timeout`.
pub const TIMEOUT: Duration = Duration::from_secs(30);

impl Default for Conf {
    fn default() -> Conf {
        Conf { resolver: None, timeout: TIMEOUT }
    }
}

/// Takes over the caches of those resolvers of the previous configuration, `before`, that query the same name servers. Must be called
/// before a thread uses the resolvers.
pub fn begin(resolvers: &[&Arc<Resolver>], before: &[&Arc<Resolver>]) {
    for resolver in resolvers {
        if let Some(known) = before.iter().find(|known| known.queries_same(resolver)) {
            resolver.take_over(known);
        }
    }
}

/// Resolves a name by the system's resolver; returns the addresses or the resolver's error message.
pub async fn system_addresses(host: &str) -> Result<Vec<IpAddr>, String> {
    System::default().look_up(host).await.map(|found| found.usable)
}
