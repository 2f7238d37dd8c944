//! The master's messages to systemd, and their times: a check of the state after each event.

use std::time::Instant;

use super::process::{Stage, WorkerProcess};
use super::{Master, Phase};
use crate::control::message::ToWorker;

/// Whether the worker answers.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The number of the newest question.
    asked: u64,
    /// The process that was asked.
    worker: u32,
    /// Whether an answer is missing.
    is_waiting: bool,
}

impl Master {
    /// Reports changes since the last event, and keeps the watchdog alive.
    pub(super) fn notify(&mut self) {
        // A new binary is not the main process before the old one has left.
        if self.phase == Phase::Starting || self.predecessor.is_some() {
            return;
        }
        let is_loaded = self.pending.is_none() && !self.reload_again;
        let is_news = self.told_generation == 0 || self.notifier.is_reloading() && is_loaded;
        if is_news && self.phase != Phase::Ending {
            self.tell_ready(self.told_generation != self.cycle.generation);
        }
        if self.notifier.take_ping(Instant::now()) {
            self.ping();
        }
    }

    fn tell_ready(&mut self, is_in_force: bool) {
        self.told_generation = self.cycle.generation;
        let generation = self.cycle.generation;
        let failed = if is_in_force { "" } else { "; the last reload failed, see the error log" };
        self.notifier.ready(&format!("serving configuration {generation}{failed}"));
    }

    /// The end has begun, for this process or for the service.
    pub(super) fn notify_end(&mut self) {
        match self.new_binary_pid() {
            Some(pid) => self.notifier.hand_over(pid),
            None if self.predecessor.is_none() => self.notifier.stopping(),
            None => {}
        }
    }

    /// A sign of life, unless the worker that serves owes one. A worker that starts or ends has its own time limits.
    fn ping(&mut self) {
        let serves = |worker: &&mut WorkerProcess| worker.stage == Stage::Serving;
        let Some(worker) = self.workers.iter_mut().find(serves) else { return self.notifier.ping() };
        let pid = worker.pid();
        if self.pulse.is_waiting && self.pulse.worker == pid {
            return;
        }
        self.pulse = Pulse { asked: self.pulse.asked + 1, worker: pid, is_waiting: true };
        worker.tell(&ToWorker::Ping(self.pulse.asked), Vec::new());
    }

    /// The worker answers: that is the sign of life of both.
    pub(super) fn handle_pong(&mut self, number: u64, pid: u32) {
        if self.pulse.is_waiting && self.pulse.asked == number && self.pulse.worker == pid {
            self.pulse.is_waiting = false;
            self.notifier.ping();
        }
    }
}
