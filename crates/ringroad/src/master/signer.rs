//! The master's view of the signing process of `sandbox strict`: started before the first worker that needs it, restarted when it
//! exits, killed when no worker needs it any more.
//!
//! The process holds the keys of all configurations that a worker may still use, and those that ACME has provided. A key that
//! none of them uses is forgotten after a minute.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use tls::apart::SecretKey;

use super::child::ChildProcess;
use super::process::{command_without_log, describe};
use super::respawn::Respawn;
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

/// Number of sockets for each thread of a worker: one for the thread, and one for the helper thread that makes its RSA signatures.
const SOCKETS_PER_THREAD: usize = 2;

/// The signing process, if it runs.
#[derive(Debug, Default)]
pub(super) struct Signer {
    process: Option<Process>,
    respawn: Respawn,
    /// Earliest time of the next start.
    start_at: Option<Instant>,
    /// Whether a configuration or a certificate may be no longer in use.
    has_unused: bool,
}

#[derive(Debug)]
struct Process {
    child: ChildProcess,
    channel: Channel,
    /// The lines that it may still send.
    lines: Budget,
}

impl Process {
    /// Returns the next line of the process for the log. An error is the reason to end it.
    fn next_line(&mut self) -> Option<Result<String, String>> {
        let packet = match self.channel.receive() {
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::Nothing | Received::Closed) => return None,
            Err(error) => return Some(Err(error.to_string())),
        };
        Some(match FromSigner::decode(&packet.body) {
            Ok(FromSigner(line)) if self.lines.take(Instant::now()) => Ok(line),
            Ok(_) => Err("too many messages".to_owned()),
            Err(_) => Err("a malformed message".to_owned()),
        })
    }
}

impl Signer {
    /// Starts the process.
    fn start(&mut self, cycle: &Cycle) -> Result<(), String> {
        let (mut channel, theirs) = Channel::pair_within(FROM_SIGNER)
            .map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
        let command = command_without_log(cycle, "ringroad: signing process", signer::SUBCOMMAND, &[]);
        let child = ChildProcess::spawn(command, theirs);
        let child =
            child.map_err(|error| format!("starting the signing process failed ({})", error_text(&error)))?;
        cycle.log.notice(format_args!("start signing process {}", child.id()));
        let _ =
            channel.send(&ToSigner::Start { credentials: cycle.credentials().cloned() }.encode(), Vec::new());
        self.process = Some(Process { child, channel, lines: Budget::new(Instant::now()) });
        self.start_at = None;
        Ok(())
    }

    /// Sends keys. A failure means that the process has exited, which [`Signer::check`] detects.
    pub(super) fn send_keys(&mut self, keys: Vec<SecretKey>, is_complete: bool) {
        if let Some(process) = &mut self.process {
            let message = zeroize::Zeroizing::new(ToSigner::Keys { keys, is_complete }.encode());
            let _ = process.channel.send(&message, Vec::new());
        }
    }

    /// Sends the private keys of a configuration and of changes of ACME; returns the changes without the keys, for a worker.
    pub(super) fn take_keys(&mut self, cycle: &Cycle, changes: &[AcmeChange]) -> Vec<AcmeChange> {
        let (changes, mut keys) = without_keys(changes);
        keys.extend(cycle.site.keys.iter().cloned());
        self.send_keys(keys, false);
        changes
    }

    /// Creates sockets between the process and a worker with this number of threads; returns those of the worker.
    pub(super) fn connect(&mut self, threads: u32) -> Result<Vec<Rc<OwnedFd>>, String> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..threads as usize * SOCKETS_PER_THREAD {
            let (one, other) =
                signatures::pair().map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
            ours.push(Rc::new(one));
            theirs.push(Rc::new(other));
        }
        if let Some(process) = &mut self.process {
            let _ = process.channel.send(&ToSigner::Serve.encode(), theirs);
        }
        Ok(ours)
    }

    /// Notes that keys may be no longer in use.
    pub(super) fn note_unused(&mut self) {
        self.has_unused = true;
    }

    /// Returns the channel for poll(2), and whether it has unsent data.
    pub(super) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.process.as_ref().map(|process| (process.channel.as_fd(), process.channel.wants_to_send()))
    }

    /// Returns the time when the process must be started.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.start_at
    }

    /// Logs the lines of the process, and detects its exit.
    fn check(&mut self, log: &Log) {
        let Some(process) = &mut self.process else { return };
        while let Some(line) = process.next_line() {
            match line {
                Ok(line) => log.alert(format_args!("signing process: {line}")),
                Err(reason) => {
                    log.alert(format_args!(
                        "signing process: control channel: {reason}, killing the process"
                    ));
                    process.child.kill();
                    process.child.wait();
                    break;
                }
            }
        }
        let _ = process.channel.flush();
        let Some(status) = process.child.try_wait() else { return };
        let (pid, how) = (process.child.id(), describe(status));
        self.process = None;
        let (now, what) = (Instant::now(), format!("signing process {pid} {how}"));
        let delay = self.respawn.handle_death(&how, now);
        if delay.is_zero() {
            log.alert(what);
        } else {
            log.alert(format_args!("{what}, the next one starts in {} ms", delay.as_millis()));
        }
        self.start_at = Some(now + delay);
    }

    /// Kills the process.
    pub(super) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.child.kill();
            process.child.wait();
        }
        self.start_at = None;
    }
}

impl Master {
    /// Keeps the signing process running while a worker needs it.
    pub(super) fn keep_signer(&mut self) {
        self.signer.check(&self.cycle.log);
        if !self.workers.iter().any(|worker| worker.keys.is_some()) {
            self.signer.stop();
            return;
        }
        if self.signer.process.is_some() {
            if std::mem::take(&mut self.signer.has_unused) {
                let keys = self.keys_in_use();
                self.signer.send_keys(keys, true);
            }
            return;
        }
        if self.signer.start_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if let Err(message) = self.start_signer(None) {
            self.cycle.log.alert(&message);
            self.signer.stop();
            let delay = self.signer.respawn.handle_death(&message, Instant::now());
            self.signer.start_at = Some(Instant::now() + delay);
        }
    }

    /// Starts the process if it does not run, for the next configuration or the one in force. Sends it all keys, and connects the
    /// workers to it.
    pub(super) fn start_signer(&mut self, next: Option<&Cycle>) -> Result<(), String> {
        if self.signer.process.is_some() {
            return Ok(());
        }
        let keys = self.keys_in_use();
        let Master { signer, workers, cycle, .. } = self;
        signer.start(next.unwrap_or(cycle))?;
        signer.send_keys(keys, true);
        for worker in workers.iter_mut() {
            if let Some(used) = &worker.keys {
                let sockets = signer.connect(used.threads)?;
                worker.send(&ToWorker::Signer, sockets);
            }
        }
        Ok(())
    }

    /// Returns the keys of all configurations that a worker uses or may use soon, and those of ACME.
    fn keys_in_use(&self) -> Vec<SecretKey> {
        let own = [&self.cycle].into_iter().chain(self.pending.as_ref().map(|pending| pending.cycle()));
        let mut keys: Vec<SecretKey> = own.flat_map(|cycle| cycle.site.keys.iter().cloned()).collect();
        let used = self.workers.iter().filter_map(|worker| worker.keys.as_ref());
        keys.extend(
            used.flat_map(|used| used.by_generation.iter().flat_map(|(_, keys)| keys.iter().cloned())),
        );
        let changes = self.acme.changes(adapter::issuers(&self.cycle.site.config));
        keys.extend(without_keys(&changes).1);
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
