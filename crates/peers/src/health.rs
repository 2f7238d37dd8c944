//! Active health checks: which checks a group has, and what they have found about each server.
//!
//! A server may be checked by several checks; it accepts requests only if all of them permit this. The checks themselves are made
//! by crate `upstream`, which reports their results to [`Group::record_check`].
//!
//! ```text
//!   Checking (mandatory) --passes--> Healthy --fails--> Unhealthy --passes--> Healthy
//! ```

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use io::op::PeerAddr;

use super::Group;
use super::lines::Accepts;
use super::table::{Peer, PeerId};

/// One check of the servers of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Text that identifies the check over reloads: the parameters of its directive.
    pub key: Arc<str>,
    /// Number of consecutive failures after which a server is unhealthy.
    pub fails: u32,
    /// Number of consecutive passes after which a server is healthy.
    pub passes: u32,
    /// Whether a new server accepts no requests until it has passed.
    pub is_mandatory: bool,
    /// Whether a server that was healthy before a reload is not a new server.
    pub is_persistent: bool,
}

/// What checks have found about a server. In the order of severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The server accepts requests.
    #[default]
    Healthy,
    /// The server has not passed its first mandatory check yet.
    Checking,
    /// The server has failed.
    Unhealthy,
}

/// Numbers of the checks of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Number of checks.
    pub checks: u64,
    /// Number of failed checks.
    pub fails: u64,
    /// Number of times that the server became unhealthy.
    pub unhealthy: u64,
    /// Whether the last check was passed; `None` before the first check.
    pub last_passed: Option<bool>,
}

/// A server to check.
#[derive(Clone, Debug)]
pub struct CheckedServer {
    /// ID of the server in its group.
    pub id: PeerId,
    /// Address of the server.
    pub address: PeerAddr,
    /// Name as shown in `$upstream_addr`.
    pub name: Arc<str>,
    /// Whether the server was checked before.
    pub was_checked: bool,
}

/// The results of one check at a server.
#[derive(Clone, Debug)]
struct CheckResults {
    key: Arc<str>,
    health: Health,
    /// Number of consecutive passes, and of consecutive failures, up to now.
    passes: u32,
    fails: u32,
}

impl CheckResults {
    fn new(key: &Arc<str>, health: Health) -> CheckResults {
        CheckResults { key: Arc::clone(key), health, passes: 0, fails: 0 }
    }

    fn add(&mut self, check: &Check, has_passed: bool) {
        if has_passed {
            (self.passes, self.fails) = (self.passes.saturating_add(1), 0);
            if self.passes >= check.passes {
                self.health = Health::Healthy;
            }
        } else {
            (self.passes, self.fails) = (0, self.fails.saturating_add(1));
            if self.fails >= check.fails {
                self.health = Health::Unhealthy;
            }
        }
    }
}

/// The results of all checks at a server.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerChecks {
    results: Vec<CheckResults>,
    pub(super) counts: CheckCounts,
    pub(super) health: Health,
}

impl PeerChecks {
    /// Returns the results for the checks of a configuration. Checks that were made before continue.
    pub(super) fn continued(self, checks: &[Check], is_new: bool) -> PeerChecks {
        let result = |check: &Check| {
            let same = self.results.iter().find(|known| known.key == check.key);
            same.cloned().unwrap_or_else(|| {
                let was_healthy = !is_new && self.health == Health::Healthy;
                let must_wait = check.is_mandatory && !(check.is_persistent && was_healthy);
                CheckResults::new(&check.key, if must_wait { Health::Checking } else { Health::Healthy })
            })
        };
        let mut checks = PeerChecks { results: checks.iter().map(result).collect(), ..self };
        checks.update();
        checks
    }

    /// Applies what the previous process has found.
    pub(super) fn start_with(&mut self, checks: &[Check], was_healthy: bool) {
        for result in &mut self.results {
            let check = checks.iter().find(|check| check.key == result.key);
            match was_healthy {
                false => result.health = Health::Unhealthy,
                true if check.is_some_and(|check| check.is_persistent) => result.health = Health::Healthy,
                true => {}
            }
        }
        self.update();
    }

    fn update(&mut self) {
        self.health = self.results.iter().map(|result| result.health).max().unwrap_or_default();
    }

    /// Whether any check is made.
    pub(super) fn are_made(&self) -> bool {
        !self.results.is_empty()
    }

    /// Adds a result of a check.
    fn add(&mut self, check: &Check, has_passed: bool) {
        let Some(result) = self.results.iter_mut().find(|result| result.key == check.key) else { return };
        let before = self.health;
        result.add(check, has_passed);
        self.counts.checks += 1;
        self.counts.fails += u64::from(!has_passed);
        self.counts.last_passed = Some(has_passed);
        self.update();
        self.counts.unhealthy += u64::from(before != Health::Unhealthy && self.health == Health::Unhealthy);
    }
}

impl Group {
    /// Adds a check. Must be called before the group is in use. A check with the parameters of another one gets a separate key.
    pub fn add_check(&self, mut check: Check) -> Check {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        while checks.iter().any(|known| known.key == check.key) {
            check.key = format!("{}, again", check.key).into();
        }
        checks.push(check.clone());
        check
    }

    /// Whether the servers are checked.
    pub fn is_checked(&self) -> bool {
        !self.checks.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the number of the current list of servers, which changes with the list.
    pub fn servers_version(&self) -> u32 {
        self.state().lock().generation
    }

    /// Returns the servers to check: all except those with `down`.
    pub fn servers_to_check(&self) -> Vec<CheckedServer> {
        let state = self.state().lock();
        let peers = state.sets.iter().flat_map(|set| &set.peers);
        let used = peers.filter(|peer| peer.accepts != Accepts::Nothing);
        used.map(|peer| CheckedServer {
            id: peer.id,
            address: peer.address.clone(),
            name: Arc::clone(&peer.name),
            was_checked: peer.checks.counts.last_passed.is_some(),
        })
        .collect()
    }

    /// Records the result of a check. Returns the health of the server, if it has changed.
    pub fn record_check(&self, id: PeerId, check: &Check, has_passed: bool, now: Instant) -> Option<Health> {
        let mut state = self.state().lock();
        let moment = state.moment(now);
        let peer = state.peer(id)?;
        let before = peer.checks.health;
        peer.checks.add(check, has_passed);
        let health = peer.checks.health;
        if before != Health::Healthy && health == Health::Healthy {
            peer.begin_slow_start(moment);
        }
        (before != health).then_some(health)
    }
}

impl Peer {
    /// Whether active checks permit requests.
    pub(super) fn is_healthy(&self) -> bool {
        self.checks.health == Health::Healthy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, fails: u32, passes: u32) -> Check {
        Check { key: key.into(), fails, passes, is_mandatory: false, is_persistent: false }
    }

    fn of(checks: &[Check]) -> PeerChecks {
        PeerChecks::default().continued(checks, true)
    }

    /// Adds results, `+` for passed, and returns the health after each: `h`, `c`, `u`.
    fn run(checks: &mut PeerChecks, check: &Check, results: &str) -> String {
        let each = results.chars().map(|result| {
            checks.add(check, result == '+');
            match checks.health {
                Health::Healthy => 'h',
                Health::Checking => 'c',
                Health::Unhealthy => 'u',
            }
        });
        each.collect()
    }

    #[test]
    fn consecutive_results_change_the_health() {
        for (fails, passes, results, expected) in
            [(1, 1, "-+-+", "uhuh"), (3, 1, "--+---+", "hhhhhuh"), (1, 3, "-++-+++", "uuuuuuh")]
        {
            let check = check("a", fails, passes);
            let mut checks = of(std::slice::from_ref(&check));
            assert_eq!(run(&mut checks, &check, results), expected, "{fails} {passes} {results}");
        }
    }

    #[test]
    fn a_mandatory_check_must_be_passed_first() {
        let check = Check { is_mandatory: true, ..check("a", 2, 2) };
        let mut checks = of(std::slice::from_ref(&check));
        assert_eq!(checks.health, Health::Checking);
        assert_eq!(run(&mut checks, &check, "+-+-"), "cccc");
        assert_eq!(run(&mut checks, &check, "-++"), "uuh");
        assert_eq!(checks.counts, CheckCounts { checks: 7, fails: 3, unhealthy: 1, last_passed: Some(true) });
    }

    #[test]
    fn one_failed_check_of_several_suffices() {
        let both = [check("a", 1, 1), check("b", 1, 1)];
        let mut checks = of(&both);
        assert_eq!(run(&mut checks, &both[0], "-"), "u");
        assert_eq!(run(&mut checks, &both[1], "+"), "u");
        assert_eq!(run(&mut checks, &both[0], "+"), "h");
    }

    #[test]
    fn results_continue_under_the_next_configuration() {
        let old = check("a", 1, 2);
        let mut checks = of(std::slice::from_ref(&old));
        run(&mut checks, &old, "-+");
        let mut checks = checks.continued(&[Check { fails: 5, ..old.clone() }], false);
        assert_eq!(run(&mut checks, &old, "+"), "h", "the second pass");
        // A new check that is mandatory: only `persistent` spares the server a wait.
        let new = Check { is_mandatory: true, ..check("b", 1, 1) };
        assert_eq!(checks.clone().continued(std::slice::from_ref(&new), false).health, Health::Checking);
        let new = Check { is_persistent: true, ..new };
        assert_eq!(checks.clone().continued(std::slice::from_ref(&new), false).health, Health::Healthy);
        assert_eq!(checks.clone().continued(std::slice::from_ref(&new), true).health, Health::Checking);
        assert_eq!(checks.continued(&[], false).health, Health::Healthy);
    }

    #[test]
    fn the_next_process_starts_with_what_was_found() {
        let mandatory = Check { is_mandatory: true, ..check("a", 1, 1) };
        let persistent = Check { is_persistent: true, ..mandatory.clone() };
        for (check, was_healthy, expected) in [
            (&mandatory, true, Health::Checking),
            (&mandatory, false, Health::Unhealthy),
            (&persistent, true, Health::Healthy),
            (&check("a", 1, 1), false, Health::Unhealthy),
        ] {
            let mut checks = of(std::slice::from_ref(check));
            checks.start_with(std::slice::from_ref(check), was_healthy);
            assert_eq!(checks.health, expected, "{check:?} {was_healthy}");
        }
    }
}
