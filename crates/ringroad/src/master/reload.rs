//! Loads a new configuration while the old one serves.
//!
//! ```text
//! SIGHUP -> read, check, open --error--> old configuration continues
//!                |
//!        equal process key?  -- yes --> bundle to the worker ---- Reloaded ----> commit
//!                | no                                       +---- ReloadFailed -> old one continues
//!                | <------------------- exited -------------+
//!                +--> new worker on the same sockets -- Ready --> commit, old worker drains
//!                                                    +-- exited -> old one continues
//! ```
//! Until the commit the old configuration is unchanged. A second SIGHUP during a reload starts another reload afterwards.

use std::time::Instant;

use super::cycle::Logs;
use super::process::{RESPONSE_TIME, Stage, WorkerProcess};
use super::{Cycle, Master, Phase, announce, capabilities, move_pid_file};
use crate::adapter::{self, Files, Site};
use crate::control::message::{Bundle, ToWorker};
use crate::log::{Level, Log};
use crate::paths::Request;
use crate::reloads::ReloadOutcome;
use crate::restrict::{self, Plan};

/// A new configuration that is not in force yet.
#[derive(Debug)]
pub(crate) struct Pending {
    cycle: Cycle,
    /// The process ID of the worker that will serve it.
    worker: u32,
    /// Whether it is the configuration in force, for a worker with rules for replaced paths.
    is_renewal: bool,
    /// For a swap in place: the time at which the worker is killed if it has not responded.
    give_up_at: Option<Instant>,
}

impl Pending {
    /// Whether this worker was sent this configuration for a swap in place.
    fn is_swapped_by(&self, pid: u32, generation: u64) -> bool {
        self.give_up_at.is_some() && self.worker == pid && self.cycle.generation == generation
    }

    /// Returns the next configuration.
    pub(super) fn cycle(&self) -> &Cycle {
        &self.cycle
    }
}

#[cfg(test)]
impl Pending {
    /// Returns the worker whose response puts this configuration into force, its number, and whether the worker swaps it in place.
    pub(super) fn committed_by(&self) -> (u32, u64, bool) {
        (self.worker, self.cycle.generation, self.give_up_at.is_some())
    }
}

impl Master {
    /// Reads the configuration and starts the reload, if the configuration is valid.
    pub(super) fn reload(&mut self) {
        if self.pending.is_some() {
            self.reload_again = true;
            return;
        }
        self.cycle.log.notice("reconfiguring");
        self.notifier.reloading();
        self.waiting.begin();
        let log = self.cycle.log.clone();
        log.forget_error();
        let site = match adapter::load(&self.request, Files::Disk) {
            Ok(site) => site,
            Err(refused) => {
                log.write(refused.level, refused.message);
                return self.count_reload(ReloadOutcome::Refused);
            }
        };
        for (level, warning) in &site.warnings {
            log.write(*level, warning);
        }
        if let Some(obstacle) = capabilities::obstacle(self.dropped, &site, &self.request) {
            log.emerg(obstacle);
            return self.count_reload(ReloadOutcome::Refused);
        }
        if !restrict::is_supported(&site.config, &log) {
            return self.count_reload(ReloadOutcome::Refused);
        }
        self.generation += 1;
        let Ok(cycle) = Cycle::open(&self.request, site, self.generation, Some(&self.cycle.listeners), &log)
        else {
            return self.count_reload(ReloadOutcome::Refused);
        };
        log_changes(&self.cycle.site, &cycle.site, &self.request, &log);
        let reasons = replacement_reasons(&self.cycle, &cycle.site, self.plan());
        let in_place = reasons.is_empty();
        match self.workers.iter_mut().find(|worker| worker.stage == Stage::Serving) {
            Some(worker) if in_place => {
                // A new worker logs this itself.
                if let Some(plan) = Plan::of(&cycle.site.config) {
                    plan.log_omitted(&log);
                }
                let (bundle, fds) = cycle.bundle(worker.bank);
                let mut acme = self.acme.changes(adapter::issuers(&cycle.site.config));
                if worker.keys.is_some() {
                    acme = self.signer.take_keys(&cycle, &acme);
                    worker.add_keys(&cycle);
                }
                let bundle = Bundle { acme, ..bundle };
                worker.send(&ToWorker::Reload(Box::new(bundle)), fds);
                let give_up_at = Some(Instant::now() + RESPONSE_TIME);
                self.pending = Some(Pending { worker: worker.pid(), cycle, is_renewal: false, give_up_at });
            }
            _ => {
                if !in_place {
                    let reasons = reasons.join(", ");
                    log.notice(format_args!("a new worker process is needed: {reasons}"));
                }
                self.replace(cycle, false);
            }
        }
    }

    /// Starts a new worker process with the present configuration, because paths were replaced since the serving worker was started.
    pub(super) fn renew_worker(&mut self, reasons: &[String]) {
        self.cycle.log.notice(format_args!("a new worker process is needed: {}", reasons.join(", ")));
        self.generation += 1;
        let mut cycle = self.cycle.clone();
        cycle.generation = self.generation;
        cycle.create_directories();
        self.replace(cycle, true);
    }

    /// Returns the sandbox of the serving worker.
    pub(super) fn plan(&self) -> Option<&Plan> {
        let serving = self.workers.iter().find(|worker| worker.stage == Stage::Serving);
        serving.and_then(|worker| worker.plan.as_ref())
    }

    /// Starts a new worker process for a configuration.
    fn replace(&mut self, cycle: Cycle, is_renewal: bool) {
        self.cycle.log.notice("start worker processes");
        match self.start_worker(Some(&cycle), is_renewal) {
            Ok(worker) => {
                self.pending = Some(Pending { worker: worker.pid(), cycle, is_renewal, give_up_at: None });
                self.workers.push(worker);
            }
            Err(message) => {
                self.cycle.log.alert(message);
                cycle.listeners.forget(Some(&self.cycle.listeners));
                self.note_failure(is_renewal);
            }
        }
    }

    /// Handles a worker that could not be started for a configuration.
    fn note_failure(&mut self, is_renewal: bool) {
        if is_renewal {
            self.observer.begin_again();
        } else {
            self.count_reload(ReloadOutcome::Refused);
        }
    }

    /// Counts a reload, and sends the numbers to the workers, whose pages show them.
    fn count_reload(&mut self, outcome: ReloadOutcome) {
        self.reloads.count(outcome);
        self.waiting.finish(outcome, self.cycle.generation, &self.cycle.log.first_error());
        let message = ToWorker::Reloads(self.reloads);
        let stay = |worker: &&mut WorkerProcess| !matches!(worker.stage, Stage::Leaving { .. });
        self.workers.iter_mut().filter(stay).for_each(|worker| worker.send(&message, Vec::new()));
    }

    /// Handles a worker that is ready. If it serves the pending configuration, this configuration is put into force.
    pub(super) fn commit_replacement(&mut self, generation: u64) {
        match self.pending.take_if(|pending| pending.cycle.generation == generation) {
            Some(pending) => {
                // The shutdown timeout of the old configuration applies to its worker.
                let limit = self.cycle.site.settings.shutdown_timeout;
                if pending.is_renewal && self.notified_generation == self.cycle.generation {
                    self.notified_generation = generation;
                }
                self.commit(pending.cycle);
                self.phase = Phase::Running;
                self.dismiss(|worker| worker.generation != generation, limit);
                if !pending.is_renewal {
                    self.count_reload(ReloadOutcome::Replacement);
                }
                self.catch_up();
            }
            // The worker has replaced a crashed worker.
            None => self.catch_up(),
        }
    }

    /// Handles a worker that has swapped its configuration.
    pub(super) fn handle_reloaded(&mut self, generation: u64, index: usize) {
        let worker = &mut self.workers[index];
        let pid = worker.pid();
        if let Some(pending) = self.pending.take_if(|pending| pending.is_swapped_by(pid, generation)) {
            let old = std::mem::replace(&mut worker.generation, generation);
            self.commit(pending.cycle);
            self.count_reload(ReloadOutcome::InPlace);
            self.cycle.log.notice(format_args!(
                "configuration {old} of worker process {pid} was replaced by {generation} in place"
            ));
            self.catch_up();
        }
    }

    /// Handles a worker that keeps its old configuration because of an error.
    pub(super) fn handle_reload_failed(&mut self, generation: u64, pid: u32, message: &str) {
        if self.pending.as_ref().is_some_and(|pending| pending.is_swapped_by(pid, generation)) {
            self.workers.iter_mut().for_each(|worker| worker.remove_keys(generation));
            self.signer.note_unused();
            self.cycle.log.emerg(message);
            self.abandon_pending();
            self.count_reload(ReloadOutcome::Refused);
            self.catch_up();
        }
    }

    /// Returns the time at which a worker is replaced because of replaced paths. During a reload it waits for the end of the reload.
    pub(super) fn observer_deadline(&self) -> Option<Instant> {
        self.observer.deadline().filter(|_| self.pending.is_none())
    }

    /// Returns the time at which a worker that swaps its configuration is killed.
    pub(super) fn pending_deadline(&self) -> Option<Instant> {
        self.pending.as_ref().and_then(|pending| pending.give_up_at)
    }

    /// Returns the process ID of a worker that did not respond in time. Returns it only once per reload.
    pub(super) fn take_stuck_pending(&mut self, now: Instant) -> Option<u32> {
        let pending = self.pending.as_mut()?;
        pending.give_up_at.take_if(|at| *at <= now).map(|_| pending.worker)
    }

    /// Reopens the log files of the next configuration, during a reload.
    pub(super) fn reopen_pending_logs(&mut self) -> Logs {
        self.pending.as_mut().map(|pending| pending.cycle.reopen_logs()).unwrap_or_default()
    }

    /// Closes the resources of a configuration that does not come into force.
    pub(super) fn abandon_pending(&mut self) {
        if let Some(pending) = self.pending.take() {
            pending.cycle.listeners.forget(Some(&self.cycle.listeners));
        }
    }

    /// Handles the unexpected exit of a worker. If the worker has exited while it swapped its configuration, the next worker starts
    /// with the new configuration. Returns whether the exit has cancelled a reload, and the old worker still serves.
    pub(super) fn drop_pending_of(&mut self, worker: &WorkerProcess) -> bool {
        let Some(pending) = self.pending.take_if(|pending| pending.worker == worker.pid()) else {
            return false;
        };
        if worker.generation != pending.cycle.generation {
            // The new configuration may have caused the exit, so a worker with the old one serves until the other one is ready.
            self.keep_serving();
            self.replace(pending.cycle, false);
            return false;
        }
        self.cycle.log.emerg(match pending.is_renewal {
            true => "the worker process was not replaced, and another attempt follows",
            false => "the new configuration was not applied, the old one stays in force; reload again",
        });
        pending.cycle.listeners.forget(Some(&self.cycle.listeners));
        self.note_failure(pending.is_renewal);
        let serves = |worker: &WorkerProcess| worker.stage == Stage::Serving;
        let still_served = self.workers.iter().any(serves);
        self.catch_up();
        still_served
    }

    /// Puts the new configuration into force.
    fn commit(&mut self, cycle: Cycle) {
        announce(&cycle, Some(&self.cycle));
        let old = std::mem::replace(&mut self.cycle, cycle);
        self.steer();
        self.cycle.log.take_stderr_from(&old.log);
        old.listeners.forget(Some(&self.cycle.listeners));
        self.open_admin_server();
        // While a new binary runs, this process keeps the renamed pid file.
        if self.new_binary.is_none() {
            move_pid_file(&mut self.pid_file, &self.request, &self.cycle);
        }
        // The old configuration needs as much memory as the new one. The thread that compares paths may still use it.
        drop(old);
        thread_alloc::release_pages();
    }

    /// Starts a reload that was requested during the last one.
    fn catch_up(&mut self) {
        if std::mem::take(&mut self.reload_again) && self.phase != Phase::Ending {
            self.reload();
        }
    }
}

/// Logs the changes of the new configuration, if the log includes notices.
pub(super) fn log_changes(old: &Site, new: &Site, request: &Request, log: &Log) {
    if !log.accepts(Level::Notice) {
        return;
    }
    let changes = adapter::changes(old, new, request);
    for change in &changes {
        log.notice(format_args!("configuration change: {change}"));
    }
    if changes.is_empty() {
        log.notice("configuration change: none");
    }
}

/// Returns the reasons why the running process cannot use the new configuration; none if it can. The process settings must
/// be equal. An address that both configurations have must have the same number of sockets, because the threads keep their
/// sockets. `plan` is the sandbox of the process, which must permit what the configuration needs, and nothing else.
pub(super) fn replacement_reasons(old: &Cycle, new: &Site, plan: Option<&Plan>) -> Vec<String> {
    let key = |site: &Site| adapter::ProcessKey::of(&site.config);
    let mut reasons = key(&old.site).differences(&key(new));
    for spec in &new.settings.listens {
        let (address, count) = (&spec.addr, spec.sockets(new.settings.threads));
        let known = old.listeners.find(address).map(|known| known.sockets.len());
        if let Some(before) = known.filter(|before| *before != count) {
            reasons.push(format!("listen {address}: {before} -> {count} sockets"));
        }
    }
    if let (Some(plan), Some(new)) = (plan, Plan::of(&new.config)) {
        reasons.extend(plan.reasons(&new));
    }
    debug_assert!(!reasons.is_empty() || key(&old.site) == key(new), "every field of the key has a reason");
    reasons
}
