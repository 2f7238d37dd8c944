//! How long the system's answer for a name is used, if it came from name servers.
//!
//! getaddrinfo(3) returns no TTL. So the same name servers are queried for it: where they return the same addresses,
//! the system's answer came from them and their TTL applies. Where they return others, the name may just have moved, or
//! each answer is a different selection; then it applies too, but at most as long as for unknown names.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::Resolver;
use super::settings::{NameServer, Settings, SystemSettings};
use super::wire::Name;

/// The name servers to query for TTLs.
#[derive(Clone)]
pub(super) struct TimeSource {
    /// `resolver` of the configuration, where there is one.
    resolver: Option<Arc<Resolver>>,
    resolv_conf: PathBuf,
}

/// No name is looked up more often, whatever its time.
const MIN: Duration = Duration::from_secs(1);

/// Nor less often: an operator who moves a server expects it to be found within an hour.
const MAX: Duration = Duration::from_secs(3600);

/// How long an answer of unknown lifetime is used.
pub(super) const UNKNOWN: Duration = Duration::from_secs(60);

/// How long the question may take. The addresses are in use meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

impl TimeSource {
    pub(super) fn new(resolver: Option<Arc<Resolver>>) -> TimeSource {
        TimeSource { resolver, resolv_conf: PathBuf::from("/etc/resolv.conf") }
    }

    /// How long these addresses of a name hold.
    pub(super) async fn time(&self, host: &str, all: &BTreeSet<IpAddr>) -> Duration {
        self.told(host, all).await.unwrap_or(UNKNOWN)
    }

    /// The same as name servers have it, where they know the name.
    async fn told(&self, host: &str, all: &BTreeSet<IpAddr>) -> Option<Duration> {
        let host = host.trim_end_matches('.');
        if host == "localhost" || host.ends_with(".localhost") {
            // A name of this machine alone (RFC 6761 section 6.3).
            return None;
        }
        let path = self.resolv_conf.clone();
        let system = rt::spawn_blocking(move || SystemSettings::read(&path)).await?;
        let candidates = system.candidates(host);
        let resolver = self.resolver.clone().unwrap_or_else(|| {
            let servers = system.servers.into_iter().map(NameServer::At).collect();
            Resolver::new(Settings::of_servers(servers))
        });
        let deadline = rt::now() + PATIENCE;
        for candidate in candidates {
            let Some(name) = Name::parse(candidate.as_bytes()) else { continue };
            if let Ok((found, time)) = resolver.addresses(&name, deadline).await {
                let wanted: BTreeSet<IpAddr> =
                    all.iter().filter(|address| resolver.wants(address)).copied().collect();
                let is_same = found.into_iter().collect::<BTreeSet<_>>() == wanted;
                return Some(time.clamp(MIN, if is_same { MAX } else { UNKNOWN }));
            }
        }
        None
    }
}
