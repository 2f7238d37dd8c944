//! The master's view of the signing process of `sandbox strict`: started before the first worker that needs it, restarted when it
//! exits, killed when no worker needs it any more.
//!
//! The process holds the keys of all configurations that a worker may still use, and those that ACME has provided. A key that
//! none of them uses is forgotten after 70 seconds: [`COLLECT_PAUSE`], and a minute for handshakes that have begun.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tls::apart::SecretKey;

use super::child::{ChildProcess, Dying};
use super::link::Link;
use super::process::{Stage, WorkerProcess, command_without_log, describe};
use super::respawn::Respawn;
use super::signer_line::SignerLine;
use super::{Cycle, Master};
use crate::adapter;
use crate::control::acme::AcmeChange;
use crate::control::budget::Budget;
use crate::control::message::ToWorker;
use crate::control::signer::{FROM_SIGNER, FromSigner, ToSigner};
use crate::control::{Channel, Received};
use crate::listen::{errno_text, error_text};
use crate::log::Log;
use crate::{signatures, signer};

/// Pause after a process that was killed because it broke a rule. Handshakes fail meanwhile; after a crash they only wait.
const PAUSE_AFTER_FAULT: Duration = Duration::from_millis(500);

/// Time from a reason why keys may be no longer in use until the keys in use are collected. This reads all certificates of ACME, and
/// a worker decides how often it gives a reason.
const COLLECT_PAUSE: Duration = Duration::from_secs(10);

/// Pause before sockets that the process has refused are created again. A worker that has exited may have been its reason, and it
/// notices this a little later.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum size in bytes of a message with keys. Both processes hold its bytes twice.
const KEYS_BYTES_MAX: usize = 1 << 20;

/// The signing process, if it runs.
#[derive(Debug)]
pub(super) struct Signer {
    process: Option<Process>,
    /// Processes that were killed.
    dying: Dying,
    /// Maximum number of sockets that the process serves. The process enforces it, too.
    sockets_max: usize,
    /// The number of the last message with sockets.
    lines: u64,
    /// Earliest time to create sockets again that the process has refused.
    reconnect_at: Option<Instant>,
    respawn: Respawn,
    /// Earliest time of the next start.
    start_at: Option<Instant>,
    /// The time at which the keys in use are collected, because a configuration or a certificate may be no longer in use.
    collect_at: Option<Instant>,
}

impl Default for Signer {
    fn default() -> Signer {
        Signer {
            process: None,
            dying: Dying::default(),
            sockets_max: signer::sockets_max(),
            lines: 0,
            reconnect_at: None,
            respawn: Respawn::default(),
            start_at: None,
            collect_at: None,
        }
    }
}

#[derive(Debug)]
struct Process {
    child: ChildProcess,
    link: Link,
    /// The messages that it may still send.
    messages: Budget,
}

impl Process {
    /// Returns the next message of the process. An error is the reason to end it.
    fn next_message(&mut self) -> Option<Result<FromSigner, String>> {
        let packet = match self.link.receive() {
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::Nothing | Received::Closed) => return None,
            Err(error) => return Some(Err(error.to_string())),
        };
        Some(match FromSigner::decode(&packet.body) {
            Ok(message) if self.messages.take(Instant::now()) => Ok(message),
            Ok(_) => Err("too many messages".to_owned()),
            Err(_) => Err("a malformed message".to_owned()),
        })
    }
}

impl Signer {
    /// Starts the process.
    fn start(&mut self, cycle: &Cycle) -> Result<(), String> {
        let (channel, theirs) = Channel::pair_within(FROM_SIGNER)
            .map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
        let command = command_without_log(cycle, "ringroad: signing process", signer::SUBCOMMAND, &[]);
        let child = ChildProcess::spawn(command, theirs);
        let child =
            child.map_err(|error| format!("starting the signing process failed ({})", error_text(&error)))?;
        cycle.log.notice(format_args!("start signing process {}", child.id()));
        let mut link = Link::new(channel);
        link.send(&ToSigner::Start { credentials: cycle.credentials().cloned() }.encode(), Vec::new());
        self.process = Some(Process { child, link, messages: Budget::new(Instant::now()) });
        (self.start_at, self.collect_at) = (None, None);
        Ok(())
    }

    /// Sends keys. A failure means that the process has exited, which [`Signer::check`] detects.
    pub(super) fn send_keys(&mut self, keys: Vec<SecretKey>, is_complete: bool) {
        let Some(process) = &mut self.process else { return };
        let mut batches = batches(keys, KEYS_BYTES_MAX).into_iter().peekable();
        while let Some(keys) = batches.next() {
            let has_more = batches.peek().is_some();
            let message = ToSigner::Keys { keys, is_complete, has_more };
            process.link.send(&zeroize::Zeroizing::new(message.encode()), Vec::new());
        }
    }

    /// Sends the private keys of a configuration and of changes of ACME; returns the changes without the keys, for a worker.
    pub(super) fn take_keys(&mut self, cycle: &Cycle, changes: &[AcmeChange]) -> Vec<AcmeChange> {
        let (changes, mut keys) = without_keys(changes);
        keys.extend(cycle.site.keys.iter().cloned());
        self.send_keys(keys, false);
        changes
    }

    /// Creates sockets between the process and a new worker with this number of threads; returns those of the worker. `workers` are
    /// the present ones. With `must_fit` it is an error if the process has no room for the sockets; else the worker gets them
    /// when other workers have exited, or when the process runs.
    pub(super) fn open_line(
        &mut self,
        threads: u32,
        workers: &[WorkerProcess],
        must_fit: bool,
    ) -> Result<(SignerLine, Vec<Rc<OwnedFd>>), String> {
        let mut line = SignerLine::new(threads);
        let (needed, max) = (line.sockets(), self.sockets_max);
        if needed > max / 2 {
            return Err(format!(
                "{threads} threads need {needed} sockets to the signing process, which has {} for a worker: raise the limit on open \
                 files",
                max / 2
            ));
        }
        let used = used_sockets(workers);
        if must_fit && used + needed > max {
            return Err(format!(
                "a worker needs {needed} sockets to the signing process, and other workers use {used} of {max}: reload when they have \
                 finished their requests, set \"worker_shutdown_timeout\", or raise the limit on open files"
            ));
        }
        let ours = self.connect(&mut line, used)?;
        Ok((line, ours))
    }

    /// Creates the sockets of a worker; returns its ends. The process gets the other ends if it runs, and if it has room beside the
    /// `used` sockets of other workers.
    fn connect(&mut self, line: &mut SignerLine, used: usize) -> Result<Vec<Rc<OwnedFd>>, String> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..line.sockets() {
            let (one, other) =
                signatures::pair().map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
            ours.push(Rc::new(one));
            theirs.push(Rc::new(other));
        }
        let fits = used + line.sockets() <= self.sockets_max;
        line.number = None;
        if let Some(process) = self.process.as_mut().filter(|_| fits) {
            self.lines += 1;
            line.number = Some(self.lines);
            let message = ToSigner::Serve { line: self.lines, sockets: theirs.len() as u64 };
            process.link.send(&message.encode(), theirs);
        }
        Ok(ours)
    }

    /// Creates sockets for workers that have none, as far as the process has room: first for those that serve.
    fn reconnect(&mut self, workers: &mut [WorkerProcess]) -> Result<(), String> {
        self.reconnect_at.take_if(|at| *at <= Instant::now());
        if self.process.is_none() || self.reconnect_at.is_some() {
            return Ok(());
        }
        let mut order: Vec<usize> = (0..workers.len()).collect();
        order.sort_by_key(|index| match workers[*index].stage {
            Stage::Serving => 0,
            Stage::Starting { .. } => 1,
            Stage::Leaving { .. } => 2,
        });
        for index in order {
            let used = used_sockets(workers);
            let worker = &mut workers[index];
            let Some(line) = worker.keys.as_mut().map(|keys| &mut keys.sockets) else { continue };
            if line.number.is_none() && used + line.sockets() <= self.sockets_max {
                let sockets = self.connect(line, used)?;
                worker.send(&ToWorker::Signer, sockets);
            }
        }
        Ok(())
    }

    /// Handles sockets that the process has closed.
    fn handle_refused(&mut self, number: u64, reason: &str, workers: &mut [WorkerProcess], log: &Log) {
        let lines =
            workers.iter_mut().filter_map(|worker| worker.keys.as_mut().map(|keys| &mut keys.sockets));
        // Otherwise the worker has exited.
        for line in lines.filter(|line| line.number == Some(number)) {
            line.number = None;
            if !std::mem::replace(&mut line.is_reported, true) {
                log.alert(format_args!("signing process: {reason}"));
            }
            self.reconnect_at = Some(Instant::now() + RECONNECT_PAUSE);
        }
    }

    /// Whether the next process starts later.
    fn is_paused(&self) -> bool {
        self.start_at.is_some_and(|at| at > Instant::now())
    }

    /// Notes that keys may be no longer in use.
    pub(super) fn note_unused(&mut self) {
        if self.process.is_some() {
            self.collect_at.get_or_insert_with(|| Instant::now() + COLLECT_PAUSE);
        }
    }

    /// Returns the process ID.
    pub(super) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Returns the channel for poll(2), and whether it has unsent data.
    pub(super) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.process.as_ref().and_then(|process| process.link.polled())
    }

    /// Returns the time when the process must be started, killed because of its channel, or sent the keys in use.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = self.process.as_ref().and_then(|process| process.link.deadline());
        let with_process = self.collect_at.into_iter().chain(self.reconnect_at);
        let with_process = with_process.filter(|_| self.process.is_some());
        self.start_at.into_iter().chain(limit).chain(with_process).min()
    }

    /// Handles the messages of the process, kills it if it breaks a rule, and detects its exit.
    fn check(&mut self, workers: &mut [WorkerProcess], log: &Log) {
        self.dying.reap();
        let mut fault = None;
        while let Some(message) = self.process.as_mut().and_then(Process::next_message) {
            match message {
                Ok(FromSigner::Line(line)) => log.alert(format_args!("signing process: {line}")),
                Ok(FromSigner::Refused { line, reason }) => self.handle_refused(line, &reason, workers, log),
                Err(reason) => {
                    fault = Some(format!("signing process: control channel: {reason}"));
                    break;
                }
            }
        }
        let Some(process) = &mut self.process else { return };
        let pid = process.child.id();
        process.link.flush();
        let of_channel = process.link.take_fault(Instant::now());
        fault = fault.or_else(|| of_channel.map(|fault| format!("signing process {pid} {fault}")));
        let how = match &fault {
            Some(fault) => {
                log.alert(format_args!("{fault}, killing the process"));
                "was killed".to_owned()
            }
            None => match process.child.try_wait() {
                Some(status) => describe(status),
                None => return,
            },
        };
        self.discard(workers);
        let (now, what) = (Instant::now(), format!("signing process {pid} {how}"));
        let pause = if fault.is_some() { PAUSE_AFTER_FAULT } else { Duration::ZERO };
        let delay = self.respawn.handle_death(&how, now).max(pause);
        if delay.is_zero() {
            log.alert(what);
        } else {
            log.alert(format_args!("{what}, the next one starts in {} ms", delay.as_millis()));
        }
        self.start_at = Some(now + delay);
    }

    /// Kills the process, if it runs. No worker has sockets to it any more.
    fn discard(&mut self, workers: &mut [WorkerProcess]) {
        if let Some(process) = self.process.take() {
            self.dying.kill(process.child);
        }
        for line in workers.iter_mut().filter_map(|worker| worker.keys.as_mut()) {
            line.sockets.number = None;
        }
        self.reconnect_at = None;
    }

    /// Kills the process, because no worker needs it.
    pub(super) fn stop(&mut self) {
        self.discard(&mut []);
        self.start_at = None;
    }
}

/// Returns the number of sockets that workers have.
fn used_sockets(workers: &[WorkerProcess]) -> usize {
    let lines = workers.iter().filter_map(|worker| worker.keys.as_ref()).map(|keys| &keys.sockets);
    lines.filter(|line| line.number.is_some()).map(SignerLine::sockets).sum()
}

/// Divides keys into lists, each of at most `bytes_max` bytes or with one key. There is at least one list.
fn batches(keys: Vec<SecretKey>, bytes_max: usize) -> Vec<Vec<SecretKey>> {
    let (mut batches, mut bytes) = (vec![Vec::new()], 0);
    for key in keys {
        let length = zeroize::Zeroizing::new(key.to_bytes()).len();
        if bytes > 0 && bytes + length > bytes_max {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(batch) = batches.last_mut() {
            batch.push(key);
        }
    }
    batches
}

#[cfg(test)]
impl Signer {
    /// Lets the time pass that the process has to exit after it has closed the channel.
    pub(super) fn skip_exit_time(&mut self) {
        self.process.iter_mut().for_each(|process| process.link.skip_exit_time());
    }

    /// Lets the time pass until the keys in use are collected.
    pub(super) fn skip_collect_pause(&mut self) {
        self.collect_at = self.collect_at.map(|_| Instant::now());
    }

    /// Sets the maximum number of sockets.
    pub(super) fn set_sockets_max(&mut self, count: usize) {
        self.sockets_max = count;
    }

    /// Lets the time pass until refused sockets are created again.
    pub(super) fn skip_reconnect_pause(&mut self) {
        self.reconnect_at = self.reconnect_at.map(|_| Instant::now());
    }

    /// Whether the process has sockets of a worker.
    pub(super) fn serves(&self, worker: &WorkerProcess) -> bool {
        self.process.is_some() && worker.keys.as_ref().is_some_and(|keys| keys.sockets.number.is_some())
    }
}

impl Master {
    /// Keeps the signing process running while a worker needs it.
    pub(super) fn keep_signer(&mut self) {
        self.signer.check(&mut self.workers, &self.cycle.log);
        if !self.workers.iter().any(|worker| worker.keys.is_some()) {
            self.signer.stop();
            return;
        }
        if self.signer.process.is_some() {
            if self.signer.collect_at.take_if(|at| *at <= Instant::now()).is_some() {
                let keys = self.keys_in_use();
                self.signer.send_keys(keys, true);
            }
            if let Err(message) = self.signer.reconnect(&mut self.workers) {
                self.cycle.log.alert(message);
                self.signer.reconnect_at = Some(Instant::now() + RECONNECT_PAUSE);
            }
            return;
        }
        if let Err(message) = self.start_signer(None) {
            self.cycle.log.alert(&message);
            self.signer.discard(&mut self.workers);
            let delay = self.signer.respawn.handle_death(&message, Instant::now());
            self.signer.start_at = Some(Instant::now() + delay);
        }
    }

    /// Starts the process if it does not run, for the next configuration or the one in force. Sends it all keys, and connects the
    /// workers to it. During the pause after an exit it is not started: workers are connected to it after its start.
    pub(super) fn start_signer(&mut self, next: Option<&Cycle>) -> Result<(), String> {
        if self.signer.process.is_some() || self.signer.is_paused() {
            return Ok(());
        }
        let keys = self.keys_in_use();
        let Master { signer, workers, cycle, .. } = self;
        signer.start(next.unwrap_or(cycle))?;
        signer.send_keys(keys, true);
        signer.reconnect(workers)
    }

    /// Returns the keys of all configurations that a worker uses or may use soon, and those of ACME.
    pub(super) fn keys_in_use(&self) -> Vec<SecretKey> {
        let pending = self.pending.as_ref().map(|pending| pending.cycle());
        let mut keys = Vec::new();
        for cycle in [&self.cycle].into_iter().chain(pending) {
            keys.extend(cycle.site.keys.iter().cloned());
            let changes = self.acme.changes(adapter::issuers(&cycle.site.config));
            keys.extend(without_keys(&changes).1);
        }
        let used = self.workers.iter().filter_map(|worker| worker.keys.as_ref());
        keys.extend(
            used.flat_map(|used| used.by_generation.iter().flat_map(|(_, keys)| keys.iter().cloned())),
        );
        keys.sort_by_key(SecretKey::name);
        keys.dedup_by_key(|key| key.name());
        keys
    }
}

/// Returns changes of ACME in which names replace the private keys, and these keys.
fn without_keys(changes: &[AcmeChange]) -> (Vec<AcmeChange>, Vec<SecretKey>) {
    let (changes, keys): (Vec<_>, Vec<_>) = changes.iter().map(AcmeChange::without_key).unzip();
    (changes, keys.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sent_in_messages_of_limited_size() {
        let keys =
            |count: usize| (0..count).map(|_| SecretKey::from_bytes(&[7; 40]).expect("a key")).collect();
        let lengths = |count| batches(keys(count), 100).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(0), [0], "a complete list may be empty");
        assert_eq!(lengths(2), [2]);
        assert_eq!(lengths(5), [2, 2, 1]);
        assert_eq!(batches(keys(2), 10).len(), 2);
    }
}
