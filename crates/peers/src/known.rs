//! Addresses of names and results of checks, passed from a worker process to its successor as text: one line per address, with
//! tab-separated fields. The process that stores the text in between does not parse it.
//!
//! ```text
//! group | host | service or - | weight | priority | name in the SRV record or - | address:port
//! group | healthy or unhealthy | name of the address
//! ```
//! The reader may be older or newer than the writer, and an attacker who controls the worker process may have written the text.
//! Invalid lines are skipped, and an address is used only if the configuration has its name.

use std::collections::BTreeMap;
use std::fmt::Write;

use io::op::PeerAddr;

use super::health::Health;
use super::lines::{Address, FoundAddress, Named};
use super::{Group, Upstreams};

/// The addresses of the names of one group.
pub(super) type KnownAddresses = BTreeMap<Named, Vec<FoundAddress>>;

/// Placeholder for an absent field. No name consists of a single hyphen.
const NONE: &str = "-";

impl Upstreams {
    /// Returns the known addresses of all names, in complete lines up to `bytes_max`.
    pub fn known_addresses(&self, bytes_max: usize) -> String {
        let mut text = String::new();
        for group in self.groups() {
            group.put_health(&mut text, bytes_max);
            let mut told = Vec::new();
            for (named, found) in group.known().iter().filter(|(_, found)| !found.is_empty()) {
                // The port comes from the configuration; a host has the same addresses for all ports.
                let host = (named.host.to_ascii_lowercase(), named.service.clone());
                if !told.contains(&host) {
                    found.iter().for_each(|found| put_line(&mut text, &group.name, named, found, bytes_max));
                    told.push(host);
                }
            }
        }
        text
    }

    /// Works like [`Upstreams::begin`], with the text of [`Upstreams::known_addresses`] from the previous process.
    pub fn begin_with(&self, text: &str) {
        let mut known: BTreeMap<String, KnownAddresses> = BTreeMap::new();
        for (group, named, found) in text.lines().filter_map(read_line) {
            known.entry(group).or_default().entry(named).or_default().push(found);
        }
        let mut healths: BTreeMap<String, BTreeMap<&str, bool>> = BTreeMap::new();
        for (group, name, is_healthy) in text.lines().filter_map(read_health) {
            healths.entry(group).or_default().insert(name, is_healthy);
        }
        let nothing = KnownAddresses::new();
        for group in self.groups() {
            let name = group.name.to_ascii_lowercase();
            group.begin_with(known.get(&name).unwrap_or(&nothing));
            if let Some(healths) = healths.get(&name) {
                group.state().lock().start_checks_with(healths);
            }
        }
    }
}

impl Group {
    fn known(&self) -> KnownAddresses {
        self.state().lock().found().clone()
    }

    /// Appends the results of checks that the next process needs: unhealthy servers, and healthy ones if a check is persistent.
    fn put_health(&self, text: &mut String, bytes_max: usize) {
        if !self.is_checked() {
            return;
        }
        let state = self.state().lock();
        let is_persistent = state.shape().checks.iter().any(|check| check.is_persistent);
        for peer in state.sets.iter().flat_map(|set| &set.peers) {
            let word = match peer.checks.health {
                Health::Unhealthy => "unhealthy",
                Health::Healthy if is_persistent => "healthy",
                Health::Healthy | Health::Checking => continue,
            };
            let start = text.len();
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{}\t{word}\t{}", self.name, peer.name);
            if text.len() > bytes_max {
                text.truncate(start);
            }
        }
    }

    fn begin_with(&self, known: &KnownAddresses) {
        self.state.get_or_init(|| self.fresh(known));
    }
}

fn put_line(text: &mut String, group: &str, named: &Named, found: &FoundAddress, bytes_max: usize) {
    let PeerAddr::Inet(address) = &found.address.address else { return };
    let (service, server) =
        (named.service.as_deref().unwrap_or(NONE), found.server.as_deref().unwrap_or(NONE));
    let FoundAddress { weight, priority, .. } = found;
    let start = text.len();
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "{group}\t{}\t{service}\t{weight}\t{priority}\t{server}\t{address}", named.host);
    if text.len() > bytes_max {
        text.truncate(start);
    }
}

fn read_line(line: &str) -> Option<(String, Named, FoundAddress)> {
    let mut fields = line.split('\t');
    let group = fields.next()?.to_ascii_lowercase();
    let (host, service) = (fields.next()?.to_owned(), optional(fields.next()?));
    let (weight, priority) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let server = optional(fields.next()?).map(Into::into);
    let address = PeerAddr::Inet(fields.next()?.parse().ok()?);
    // The text has no port and no kind of lookup: the configuration's name is found by host and service.
    let named = Named { host, port: 0, service, at_run_time: true };
    let found = FoundAddress { address: Address::from(address), server, weight, priority };
    fields.next().is_none().then_some((group, named, found))
}

fn read_health(line: &str) -> Option<(String, &str, bool)> {
    let mut fields = line.split('\t');
    let group = fields.next()?.to_ascii_lowercase();
    let is_healthy = match fields.next()? {
        "healthy" => true,
        "unhealthy" => false,
        _ => return None,
    };
    let name = fields.next()?;
    fields.next().is_none().then_some((group, name, is_healthy))
}

fn optional(field: &str) -> Option<String> {
    (field != NONE).then(|| field.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::address::Url;
    use super::super::lines::{Draft, Line};
    use super::*;

    /// Creates the groups of a configuration with one block whose servers are these names.
    fn of_names(names: &[&str]) -> Upstreams {
        let mut draft = Draft::new("Moving");
        let line = |text: &&str| Line::new(text, &Url::parse(text, 80).expect("a name"));
        draft.lines = names.iter().map(line).collect();
        let mut groups = Upstreams::default();
        groups.add_block(draft);
        groups
    }

    fn put(groups: &Upstreams, host: &str, addresses: &[&str]) {
        let group = groups.groups().next().expect("one");
        let named = group.names().find(|named| named.host == host).expect("a name of the group").clone();
        let found = addresses.iter().map(|address| FoundAddress {
            address: Address::from(PeerAddr::Inet(address.parse().expect("an address"))),
            server: None,
            weight: 1,
            priority: 0,
        });
        group.put(&named, found.collect(), || ());
    }

    fn addresses(groups: &Upstreams) -> Vec<String> {
        groups.groups().flat_map(|group| group.addresses()).collect()
    }

    #[test]
    fn the_next_process_has_the_addresses_of_unchanged_names() {
        let before = of_names(&["a.example:8080", "b.example", "gone.example"]);
        put(&before, "a.example", &["127.0.0.1:8080", "[::1]:8080"]);
        put(&before, "gone.example", &["127.0.0.3:80"]);
        let text = before.known_addresses(usize::MAX);
        let after = of_names(&["A.example:9090", "b.example"]);
        after.begin_with(&text);
        assert_eq!(addresses(&after), ["127.0.0.1:9090", "[::1]:9090"], "{text}");
        assert_eq!(after.known_addresses(usize::MAX).lines().count(), 2);
    }

    #[test]
    fn the_next_process_starts_with_the_results_of_checks() {
        use super::super::health::Check;
        use super::super::{Condition, Group};
        let groups = |is_persistent| {
            let groups = of_names(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
            let check = Check { key: "a".into(), fails: 1, passes: 1, is_mandatory: true, is_persistent };
            let check = groups.groups().next().expect("one").add_check(check);
            (groups, check)
        };
        let group = |groups: &Upstreams| std::sync::Arc::clone(groups.groups().next().expect("one"));
        let conditions = |group: &Group| -> Vec<Condition> {
            group.peers(std::time::Instant::now()).iter().map(|peer| peer.condition).collect()
        };
        for (is_persistent, expected) in [(true, Condition::Up), (false, Condition::Checking)] {
            let (before, check) = groups(is_persistent);
            let servers = group(&before).servers_to_check();
            for (server, has_passed) in servers.iter().zip([true, false]) {
                group(&before).record_check(server.id, &check, has_passed, std::time::Instant::now());
            }
            let text = before.known_addresses(usize::MAX);
            let (after, _) = groups(is_persistent);
            after.begin_with(&text);
            assert_eq!(
                conditions(&group(&after)),
                [expected, Condition::Unhealthy, Condition::Checking],
                "{text}"
            );
        }
    }

    #[test]
    fn lines_are_complete_and_bounded_and_invalid_ones_are_skipped() {
        let before = of_names(&["a.example"]);
        put(&before, "a.example", &["127.0.0.1:80", "127.0.0.2:80"]);
        let whole = before.known_addresses(usize::MAX);
        let first = whole.lines().next().expect("a line").len() + 1;
        assert_eq!(before.known_addresses(first), &whole[..first]);
        assert_eq!(before.known_addresses(first - 1), "");
        for end in 0..whole.len() {
            of_names(&["a.example"]).begin_with(&whole[..end]);
        }
        let after = of_names(&["a.example"]);
        after.begin_with("moving\ta.example\n\nmoving\ta.example\t-\t70000\t0\t-\t127.0.0.1:80\nx\ty\tz");
        assert!(addresses(&after).is_empty());
    }
}
