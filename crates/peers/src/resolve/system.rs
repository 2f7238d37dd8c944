//! Resolves names with the system: getaddrinfo(3) on a helper thread. It reads `/etc/hosts`, queries name servers, or uses other
//! sources of nsswitch.conf(5).
//!
//! The server uses [`System::look_up`]; [`System::look_up_now`] blocks. The call returns no TTL; [`super::ttl`] determines one.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use rt::HelperPool;

/// A lookup function; `Err` contains the system's message.
type Lookup = dyn Fn(&str) -> Result<Vec<IpAddr>, String> + Send + Sync;

/// Resolution by the system.
#[derive(Clone)]
pub(super) struct System {
    hosts: Arc<PathBuf>,
    /// File in which the kernel lists the IPv6 addresses of this machine.
    interfaces_v6: Arc<PathBuf>,
    lookup: Arc<Lookup>,
}

/// Result of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemAddresses {
    /// Addresses that this machine can reach, in the system's order.
    pub(super) usable: Vec<IpAddr>,
    /// All addresses found.
    pub(super) all: BTreeSet<IpAddr>,
    /// The version of the hosts file, if it contains the name.
    pub(super) hosts: Option<Stamp>,
}

/// Maximum number of threads for lookups. A name server that is down delays each name by some seconds. More threads would
/// help only configurations with very many such names, and those are resolved again later anyway.
const LOOKUP_THREADS_MAX: usize = 8;

/// The threads of lookups: a name server that does not respond delays no other work.
pub(super) static LOOKUPS: LazyLock<HelperPool> =
    LazyLock::new(|| HelperPool::new("lookups", LOOKUP_THREADS_MAX));

/// Identifies a version of a file; `None` if the file does not exist.
pub(super) type Stamp = Option<(SystemTime, u64)>;

impl Default for System {
    fn default() -> System {
        System {
            hosts: Arc::new(PathBuf::from("/etc/hosts")),
            interfaces_v6: Arc::new(PathBuf::from("/proc/net/if_inet6")),
            lookup: Arc::new(getaddrinfo),
        }
    }
}

/// Calls getaddrinfo(3). The port and the socket type are required by the interface and discarded.
fn getaddrinfo(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = (name, 0).to_socket_addrs().map_err(|error| reason(&error.to_string()))?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Returns the system's message, without the standard library's prefix.
fn reason(text: &str) -> String {
    text.rsplit_once("information: ").map_or(text, |(_, reason)| reason).to_owned()
}

impl System {
    /// Returns the addresses of a name, at least one.
    ///
    /// # Errors
    /// The system's message.
    pub(super) async fn look_up(&self, name: &str) -> Result<SystemAddresses, String> {
        let (system, name) = (self.clone(), name.to_owned());
        let done = LOOKUPS.run(move || system.look_up_now(&name)).await;
        done.unwrap_or_else(|| Err("the lookup has failed".to_owned()))
    }

    /// Works like [`System::look_up`], but blocks, for long if no name server responds.
    pub(super) fn look_up_now(&self, name: &str) -> Result<SystemAddresses, String> {
        // Before the call: a change of the file during the call must be noticed afterwards.
        let hosts = self.has_host(name).then(|| self.stamp_now());
        let found = (self.lookup)(name)?;
        let all: BTreeSet<IpAddr> = found.iter().copied().collect();
        if all.is_empty() {
            return Err("No address associated with hostname".to_owned());
        }
        Ok(SystemAddresses { usable: self.usable(&found), all, hosts })
    }

    /// Returns the current version of the hosts file.
    pub(super) async fn stamp(&self) -> Stamp {
        let system = self.clone();
        LOOKUPS.run(move || system.stamp_now()).await.flatten()
    }

    #[expect(clippy::disallowed_methods, reason = "on a helper thread")]
    fn stamp_now(&self) -> Stamp {
        let facts = std::fs::metadata(&*self.hosts).ok()?;
        Some((facts.modified().ok()?, facts.len()))
    }

    /// Whether the hosts file contains a name (hosts(5)).
    #[expect(clippy::disallowed_methods, reason = "on a helper thread")]
    fn has_host(&self, name: &str) -> bool {
        let text = std::fs::read(&*self.hosts).unwrap_or_default();
        let name = name.trim_end_matches('.');
        String::from_utf8_lossy(&text).lines().any(|line| {
            let line = line.split('#').next().unwrap_or_default();
            line.split_whitespace().skip(1).any(|known| known.eq_ignore_ascii_case(name))
        })
    }

    /// Omits IPv6 addresses if this machine has none: a connection to them would fail immediately and count as a failure of the
    /// server. nginx uses `AI_ADDRCONFIG` for this. Also removes duplicates.
    fn usable(&self, found: &[IpAddr]) -> Vec<IpAddr> {
        let own = self.local_v6();
        let reachable = |address: &&IpAddr| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) if address.is_loopback() => own.loopback,
            IpAddr::V6(_) => own.others,
        };
        let mut seen = BTreeSet::new();
        let mut usable: Vec<IpAddr> = found.iter().filter(reachable).copied().collect();
        if usable.is_empty() {
            // No address is reachable; connecting will report the error.
            usable = found.to_vec();
        }
        usable.retain(|address| seen.insert(*address));
        usable
    }

    /// Returns which kinds of IPv6 addresses this machine has.
    #[expect(clippy::disallowed_methods, reason = "on a helper thread, and the kernel's own file")]
    fn local_v6(&self) -> LocalV6 {
        let text = std::fs::read_to_string(&*self.interfaces_v6).unwrap_or_default();
        let addresses = text.lines().filter_map(|line| line.split_whitespace().next());
        addresses.fold(LocalV6::default(), |own, address| match u128::from_str_radix(address, 16) {
            Ok(1) => LocalV6 { loopback: true, ..own },
            Ok(_) => LocalV6 { others: true, ..own },
            Err(_) => own,
        })
    }
}

/// See [`System::local_v6`].
#[derive(Clone, Copy, Debug, Default)]
struct LocalV6 {
    loopback: bool,
    others: bool,
}

#[cfg(test)]
impl System {
    /// Creates a resolver with a lookup function and files of the test.
    pub(super) fn for_tests(
        folder: &std::path::Path,
        lookup: impl Fn(&str) -> Result<Vec<IpAddr>, String> + Send + Sync + 'static,
    ) -> System {
        System {
            hosts: Arc::new(folder.join("hosts")),
            interfaces_v6: Arc::new(folder.join("if_inet6")),
            lookup: Arc::new(lookup),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn names_in_the_hosts_file_are_recognised() {
        let folder = testkit::TempDir::new("resolve-hosts");
        let system = System::for_tests(folder.path(), |_| Ok(addresses(&["10.0.0.1"])));
        let found = |name: &str| system.look_up_now(name).expect("found").hosts;
        assert_eq!(found("one"), None, "there is no such file");
        std::fs::write(folder.path().join("hosts"), "# 10.0.0.1 no\n10.0.0.1\tOne two # three\n\n::1 four\n")
            .expect("written");
        for (name, is_there) in [
            ("one", true),
            ("ONE", true),
            ("two.", true),
            ("three", false),
            ("no", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(found(name).is_some(), is_there, "{name}");
        }
        let before = found("four");
        std::fs::write(folder.path().join("hosts"), "::1 four four.example\n").expect("written");
        assert_ne!(found("four"), before);
    }

    #[test]
    fn unreachable_address_families_are_omitted() {
        let folder = testkit::TempDir::new("resolve-v6");
        let all = ["10.0.0.1", "::1", "2001:db8::1", "10.0.0.1"];
        let system = System::for_tests(folder.path(), move |name| match name {
            "v6" => Ok(addresses(&["2001:db8::1"])),
            "none" => Ok(Vec::new()),
            _ => Ok(addresses(&all)),
        });
        let usable = |name: &str| system.look_up_now(name).map(|found| found.usable);
        assert_eq!(usable("all"), Ok(addresses(&["10.0.0.1"])));
        assert_eq!(usable("v6"), Ok(addresses(&["2001:db8::1"])), "there is no other");
        assert!(usable("none").is_err());
        let lo = "00000000000000000000000000000001 01 80 10 80       lo\n";
        std::fs::write(folder.path().join("if_inet6"), lo).expect("written");
        assert_eq!(usable("all"), Ok(addresses(&["10.0.0.1", "::1"])));
        let other = "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n";
        std::fs::write(folder.path().join("if_inet6"), format!("{lo}{other}")).expect("written");
        assert_eq!(usable("all"), Ok(addresses(&["10.0.0.1", "::1", "2001:db8::1"])));
    }

    #[test]
    fn the_system_resolves_localhost_and_reports_unknown_names() {
        let found = System::default().look_up_now("localhost").expect("every machine has it");
        assert!(found.all.iter().all(IpAddr::is_loopback), "{found:?}");
        // A name that is too long is not sent to name servers.
        let long = "a".repeat(300);
        let refused = System::default().look_up_now(&long).expect_err("no name");
        assert!(!refused.contains("information"), "{refused}");
    }
}
