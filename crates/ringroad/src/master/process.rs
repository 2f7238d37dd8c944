//! The master's object for a worker process: start, messages, exit.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::apart::SecretKey;

use super::child::ChildProcess;
use crate::control::acme::AcmeChange;
use crate::control::expected::Expected;
use crate::control::message::{Bundle, ToMaster, ToWorker};
use crate::control::{Channel, Received};
use crate::listen::{errno_text, error_text};
use crate::master::cycle::Cycle;
use crate::master::daemon::is_mark;
use crate::reloads::Reloads;
use crate::restrict::Plan;
use crate::{adapter, worker};

/// The running executable, even if its file was replaced.
pub(super) const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Maximum time for a worker to start, or to swap its configuration. Reading the largest configurations takes a second or two; a
/// longer time indicates that the worker hangs.
pub(super) const RESPONSE_TIME: Duration = Duration::from_secs(30);

/// Maximum time from the end of the channel to the end of the process. Only the exit of a worker closes its end, but the kernel may
/// then wait for a disk.
const EXIT_TIME: Duration = Duration::from_secs(10);

/// Prefix of variables that a worker inherits without an `env` directive; they are switches for tests.
const OWN_VARIABLES: &str = "RINGROAD_";

/// The state of a worker.
///
/// ```text
/// Starting --ready--> Serving --quit or stop--> Leaving --> exited
///     +--------failed or crashed at any time---------------> exited
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The worker has its bundle and does not accept connections yet. It is killed at `kill_at`, because the start or reload
    /// cannot continue without it.
    Starting { kill_at: Instant },
    /// The worker accepts connections.
    Serving,
    /// The worker has received `Quit` or `Stop`. It is killed at `kill_at`, if set.
    Leaving { kill_at: Option<Instant> },
}

/// Result of reading a worker's channel.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message.
    Message(ToMaster),
    /// No message is available now.
    Nothing,
    /// The worker has closed the channel, because it exits.
    Silence,
    /// A message was malformed or not expected. The text describes the error, and the worker was killed.
    Nonsense(String),
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    child: ChildProcess,
    /// The channel; `None` after the other end was closed.
    channel: Option<Channel>,
    /// The time at which the worker is killed, because it has closed the channel without an exit.
    closed_until: Option<Instant>,
    /// The messages that the worker may send.
    expected: Expected,
    pub(crate) stage: Stage,
    /// The number of the configuration that the worker serves.
    pub(crate) generation: u64,
    /// The keys that the worker uses by the signing process; `None` if it holds its keys itself.
    pub(super) keys: Option<UsedKeys>,
    /// The sandbox of the process; `None` without one. A reload in place does not change it.
    pub(crate) plan: Option<Plan>,
}

/// The keys of the signing process that a worker uses.
#[derive(Debug)]
pub(super) struct UsedKeys {
    /// Number of threads of the worker.
    pub(super) threads: u32,
    /// The keys of each configuration that the worker has not retired.
    pub(super) by_generation: Vec<(u64, Arc<[SecretKey]>)>,
}

impl WorkerProcess {
    /// Starts a process and sends it the configuration, with the known addresses of names and the certificates. `counts` are the
    /// number of workers that exited unexpectedly, and the numbers of reloads. With `signer_sockets` the worker holds no private
    /// keys, and `acme` must contain none.
    pub(crate) fn start(
        cycle: &Cycle,
        addresses: &str,
        counts: (u64, Reloads),
        acme: Vec<AcmeChange>,
        signer_sockets: Vec<Rc<OwnedFd>>,
    ) -> Result<WorkerProcess, String> {
        let (mut channel, theirs) =
            Channel::pair().map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
        let mut command = Command::new(OWN_EXECUTABLE);
        command.arg0("ringroad: worker process").arg(worker::SUBCOMMAND);
        // A reader of the daemon's output, such as ssh or a shell's `$(...)`, waits until all writers have closed it. Messages
        // about the worker's start use the channel instead.
        if cycle.site.settings.daemon
            && let Some(file) = cycle.log.file_instead_of_stderr()
            && let Ok(file) = file.try_clone_to_owned()
        {
            command.stderr(Stdio::from(file));
        }
        command.env_clear().envs(environment(&cycle.site.settings.env));
        let child = ChildProcess::spawn(command, theirs);
        let child = child.map_err(|error| format!("starting a worker failed ({})", error_text(&error)))?;
        let (bundle, mut fds) = cycle.bundle();
        let keys = (!signer_sockets.is_empty()).then(|| UsedKeys {
            threads: cycle.site.settings.threads,
            by_generation: vec![(cycle.generation, Arc::clone(&cycle.site.keys))],
        });
        let sockets = signer_sockets.len() as u64;
        fds.extend(signer_sockets);
        let (addresses, tickets) = (addresses.to_owned(), adapter::tickets());
        let (respawned, reloads) = counts;
        let bundle =
            Bundle { addresses, respawned, reloads, acme, tickets, signer_sockets: sockets, ..bundle };
        // If the send fails because the worker has died, its exit status shows this.
        let _ = channel.send(&ToWorker::Start(Box::new(bundle)).encode(), fds);
        Ok(WorkerProcess {
            child,
            channel: Some(channel),
            closed_until: None,
            expected: Expected::new(cycle.generation),
            stage: Stage::Starting { kill_at: Instant::now() + RESPONSE_TIME },
            generation: cycle.generation,
            keys,
            plan: Plan::of(&cycle.site.config),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the channel for poll(2), and whether it has unsent data.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), channel.wants_to_send()))
    }

    /// Notes the keys of a configuration that replaces the present one in the worker.
    pub(super) fn add_keys(&mut self, cycle: &Cycle) {
        if let Some(used) = &mut self.keys {
            used.by_generation.push((cycle.generation, Arc::clone(&cycle.site.keys)));
        }
    }

    /// Notes that the worker no longer uses the keys of a configuration.
    pub(super) fn remove_keys(&mut self, generation: u64) {
        if let Some(used) = &mut self.keys {
            used.by_generation.retain(|(known, _)| *known != generation);
        }
    }

    /// Sends queued messages.
    pub(crate) fn flush(&mut self) {
        let broken = self.channel.as_mut().is_some_and(|channel| channel.flush().is_err());
        if broken {
            self.channel = None;
        }
    }

    /// Sends the worker a message. If the channel is closed, the worker is ending and needs no message.
    pub(crate) fn send(&mut self, message: &ToWorker, fds: Vec<Rc<OwnedFd>>) {
        self.expected.note(message);
        let broken =
            self.channel.as_mut().is_some_and(|channel| channel.send(&message.encode(), fds).is_err());
        if broken {
            self.channel = None;
        }
    }

    /// Returns the reason to kill a worker that does not use its channel as it has to. The reason of a closed channel is returned
    /// only once.
    pub(crate) fn take_channel_fault(&mut self, now: Instant) -> Option<&'static str> {
        if self.channel.as_ref().is_some_and(|channel| channel.is_unread(now)) {
            self.channel = None;
            return Some("does not read its messages");
        }
        self.closed_until.take_if(|until| *until <= now).map(|_| "has closed the control channel and runs")
    }

    /// Returns the time at which [`WorkerProcess::take_channel_fault`] may have a reason.
    pub(crate) fn channel_deadline(&self) -> Option<Instant> {
        self.closed_until.or_else(|| self.channel.as_ref().and_then(Channel::unread_until))
    }

    /// Returns the next message of the worker. A message that is malformed or not expected ends the worker, so the number of
    /// messages is limited.
    pub(crate) fn hear(&mut self) -> Heard {
        let Some(channel) = &mut self.channel else { return Heard::Nothing };
        match channel.receive() {
            Ok(Received::Nothing) => Heard::Nothing,
            Ok(Received::Packet(packet)) => match ToMaster::decode(&packet.body) {
                Ok(message) => match self.expected.check(&message) {
                    Ok(()) => Heard::Message(message),
                    Err(reason) => self.give_up(format!("control channel: {reason}")),
                },
                Err(_) => self.give_up("control channel: a malformed message".to_owned()),
            },
            Ok(Received::Closed) => {
                self.channel = None;
                self.closed_until = Some(Instant::now() + EXIT_TIME);
                Heard::Silence
            }
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Returns the exit status if the process has exited.
    pub(crate) fn reap(&mut self) -> Option<ExitStatus> {
        self.child.try_wait()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Kills a worker that sent a malformed or unexpected message, because it cannot be trusted to serve.
    pub(crate) fn give_up(&mut self, reason: String) -> Heard {
        self.channel = None;
        self.kill();
        Heard::Nonsense(reason)
    }
}

/// Returns nginx's text: `exited with code 0`, `exited on signal 9`.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) if status.core_dumped() => format!("exited on signal {signal} (core dumped)"),
        (None, Some(signal)) => format!("exited on signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}

/// Returns the command of a process that logs by messages: it has no standard output, and no log file as standard error, which
/// would stay open after a rotation.
pub(super) fn command_without_log(
    cycle: &Cycle,
    title: &str,
    subcommand: &str,
    env: &[(String, Option<String>)],
) -> Command {
    let mut command = Command::new(OWN_EXECUTABLE);
    command.arg0(title).arg(subcommand).stdout(Stdio::null()).env_clear().envs(environment(env));
    if cycle.site.settings.daemon && cycle.log.file_instead_of_stderr().is_some() {
        command.stderr(Stdio::null());
    }
    command
}

/// Returns the environment of a worker by nginx's rule: TZ and the variables of `env`. Adds this server's own switches.
pub(super) fn environment(wanted: &[(String, Option<String>)]) -> Vec<(OsString, OsString)> {
    let own = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with(OWN_VARIABLES) && !is_mark(&name)
    });
    let mut found: Vec<(OsString, OsString)> = own.collect();
    let time_zone = ("TZ".to_owned(), None);
    for (name, value) in wanted.iter().chain([&time_zone]) {
        let value = value.as_ref().map(OsString::from).or_else(|| std::env::var_os(name));
        found.extend(value.map(|value| (OsString::from(name), value)));
    }
    found
}
