//! Lifetime of a system lookup's result, if it came from name servers.
//!
//! getaddrinfo(3) returns no TTL, so the same name servers are queried for it. If they return the same addresses, the system's
//! result came from them and their TTL applies. If they return others, the name may have changed, or each response is a different
//! selection; then their TTL applies too, limited to the time for unknown names.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::Resolver;
use super::settings::{NameServer, Settings, SystemSettings};
use super::system::LOOKUPS;
use super::wire::Name;

/// Name servers to query for TTLs.
#[derive(Clone)]
pub(super) struct TimeSource {
    /// `resolver` of the configuration, if any.
    resolver: Option<Arc<Resolver>>,
    resolv_conf: PathBuf,
}

/// Minimum interval between lookups of a name, regardless of the TTL.
const MIN: Duration = Duration::from_secs(1);

/// Maximum interval between lookups: an operator who moves a server expects it to be found within an hour.
const MAX: Duration = Duration::from_secs(3600);

/// Lifetime of a result whose TTL is unknown.
pub(super) const UNKNOWN: Duration = Duration::from_secs(60);

/// Maximum time of the query; the addresses are already in use.
const QUERY_TIME: Duration = Duration::from_secs(5);

impl TimeSource {
    pub(super) fn new(resolver: Option<Arc<Resolver>>) -> TimeSource {
        TimeSource { resolver, resolv_conf: PathBuf::from("/etc/resolv.conf") }
    }

    /// Returns the lifetime of these addresses of a name.
    pub(super) async fn time(&self, host: &str, all: &BTreeSet<IpAddr>) -> Duration {
        self.query_lifetime(host, all).await.unwrap_or(UNKNOWN)
    }

    /// Returns the lifetime according to the name servers; `None` if they do not resolve the name.
    async fn query_lifetime(&self, host: &str, all: &BTreeSet<IpAddr>) -> Option<Duration> {
        let host = host.trim_end_matches('.');
        if host == "localhost" || host.ends_with(".localhost") {
            // A name of this machine only (RFC 6761 section 6.3).
            return None;
        }
        let path = self.resolv_conf.clone();
        let system = LOOKUPS.run(move || SystemSettings::read(&path)).await?;
        let candidates = system.candidates(host);
        let resolver = self.resolver.clone().unwrap_or_else(|| {
            let servers = system.servers.into_iter().map(NameServer::At).collect();
            Resolver::new(Settings::of_servers(servers))
        });
        let deadline = rt::now() + QUERY_TIME;
        for candidate in candidates {
            let Some(name) = Name::parse(candidate.as_bytes()) else { continue };
            if let Ok((found, time)) = resolver.addresses(&name, deadline).await {
                let wanted: BTreeSet<IpAddr> =
                    all.iter().filter(|address| resolver.uses_family(address)).copied().collect();
                let is_same = found.into_iter().collect::<BTreeSet<_>>() == wanted;
                return Some(time.clamp(MIN, if is_same { MAX } else { UNKNOWN }));
            }
        }
        None
    }
}
