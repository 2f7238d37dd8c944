//! Sends the master's notifications to systemd. Checks after each event whether a notification is due.

use std::time::Instant;

use super::process::{Stage, WorkerProcess};
use super::{Master, Phase};
use crate::control::message::ToWorker;

/// State of the liveness check of the worker.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// The number of the last ping.
    number: u64,
    /// The process ID of the worker that received the ping.
    worker: u32,
    /// Whether the worker has not responded yet.
    is_waiting: bool,
}

impl Master {
    /// Notifies systemd of changes since the last event, and sends watchdog pings that are due.
    pub(super) fn notify(&mut self) {
        // A new binary becomes the main process only when the old one has exited.
        if self.phase == Phase::Starting || self.predecessor.is_some() {
            return;
        }
        let is_loaded = self.pending.is_none() && !self.reload_again;
        let is_news = self.notified_generation == 0 || self.notifier.is_reloading() && is_loaded;
        if is_news && self.phase != Phase::Ending {
            self.notify_ready(self.notified_generation != self.cycle.generation);
        }
        if self.notifier.take_ping(Instant::now()) {
            self.ping();
        }
    }

    fn notify_ready(&mut self, is_in_force: bool) {
        self.notified_generation = self.cycle.generation;
        let generation = self.cycle.generation;
        let failed = if is_in_force { "" } else { "; the last reload failed, see the error log" };
        self.notifier.ready(&format!("serving configuration {generation}{failed}"));
    }

    /// Notifies systemd that this process, or the service, begins to stop.
    pub(super) fn notify_end(&mut self) {
        match self.new_binary_pid() {
            Some(pid) => self.notifier.hand_over(pid),
            None if self.predecessor.is_none() => self.notifier.stopping(),
            None => {}
        }
    }

    /// Sends a watchdog ping, after a check of the serving worker. A worker that starts or stops is not checked, because it has
    /// separate time limits.
    pub(super) fn ping(&mut self) {
        let serves = |worker: &&mut WorkerProcess| worker.stage == Stage::Serving;
        let Some(worker) = self.workers.iter_mut().find(serves) else { return self.notifier.ping() };
        let pid = worker.pid();
        if self.liveness.is_waiting && self.liveness.worker == pid {
            return;
        }
        self.liveness = Liveness { number: self.liveness.number + 1, worker: pid, is_waiting: true };
        worker.send(&ToWorker::Ping(self.liveness.number), Vec::new());
    }

    /// Handles the response of the worker, which proves that both processes are alive.
    pub(super) fn handle_pong(&mut self, number: u64, pid: u32) {
        if self.liveness.is_waiting && self.liveness.number == number && self.liveness.worker == pid {
            self.liveness.is_waiting = false;
            self.notifier.ping();
        }
    }
}
