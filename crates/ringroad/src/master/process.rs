//! The master's object for a worker process: start, messages, exit.

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::apart::SecretKey;

use super::child::ChildProcess;
use super::link::Link;
use super::signer_line::SignerLine;
use crate::control::acme::AcmeChange;
use crate::control::expected::Expected;
use crate::control::message::{Bundle, ToMaster, ToWorker};
use crate::control::{Channel, Received};
use crate::listen::{errno_text, error_text};
use crate::master::cycle::Cycle;
use crate::master::daemon::is_mark;
use crate::owned_links;
use crate::reloads::Reloads;
use crate::restrict::Plan;
use crate::{adapter, worker};

/// The running executable, even if its file was replaced.
pub(super) const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Maximum time for a worker to start, or to swap its configuration. Reading the largest configurations takes a second or two; a
/// longer time indicates that the worker hangs.
pub(super) const RESPONSE_TIME: Duration = Duration::from_secs(30);

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
    link: Link,
    /// The messages that the worker may send.
    expected: Expected,
    pub(crate) stage: Stage,
    /// The number of the configuration that the worker serves.
    pub(crate) generation: u64,
    /// The keys that the worker uses by the signing process; `None` if it holds its keys itself.
    pub(super) keys: Option<UsedKeys>,
    /// The sandbox of the process; `None` without one. A reload in place does not change it.
    pub(crate) plan: Option<Plan>,
    /// Whether the process was killed. It may take the kernel some time to end it.
    is_killed: bool,
    /// The bank of the sockets of QUIC that it uses.
    pub(crate) bank: u8,
}

/// The keys of the signing process that a worker uses.
#[derive(Debug)]
pub(super) struct UsedKeys {
    /// The sockets to the signing process.
    pub(super) sockets: SignerLine,
    /// The keys of each configuration that the worker has not retired.
    pub(super) by_generation: Vec<(u64, Arc<[SecretKey]>)>,
}

impl WorkerProcess {
    /// Starts a process and sends it the configuration, with the known addresses of names and the certificates. `counts` are the
    /// number of workers that exited unexpectedly, and the numbers of reloads. `bank` is that of the sockets of QUIC, `plan` the sandbox. With `signer` the worker holds no private
    /// keys, and `acme` must contain none.
    pub(crate) fn start(
        cycle: &Cycle,
        addresses: &str,
        counts: (u64, Reloads),
        acme: Vec<AcmeChange>,
        signer: Option<(SignerLine, Vec<Rc<OwnedFd>>)>,
        bank: u8,
        plan: Option<Plan>,
    ) -> Result<WorkerProcess, String> {
        if let Some(plan) = &plan {
            owned_links::distrust(cycle.user(), plan.writable());
            plan.log_omitted(&cycle.log);
        }
        let (channel, theirs) =
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
        let (bundle, mut fds) = cycle.bundle(bank);
        let (line, signer_sockets) = signer.unzip();
        let keys = line.map(|sockets| UsedKeys {
            sockets,
            by_generation: vec![(cycle.generation, Arc::clone(&cycle.site.keys))],
        });
        let signer_sockets = signer_sockets.unwrap_or_default();
        let sockets = signer_sockets.len() as u64;
        fds.extend(signer_sockets);
        let (addresses, tickets) = (addresses.to_owned(), adapter::tickets());
        let (respawned, reloads) = counts;
        let paths = plan.as_ref().map(|plan| plan.paths().clone()).unwrap_or_default();
        let quic_secret = adapter::quic_secret();
        let bundle = Bundle {
            addresses,
            respawned,
            reloads,
            acme,
            tickets,
            quic_secret,
            signer_sockets: sockets,
            paths,
            ..bundle
        };
        let mut link = Link::new(channel);
        link.send(&ToWorker::Start(Box::new(bundle)).encode(), fds);
        Ok(WorkerProcess {
            child,
            link,
            expected: Expected::new(cycle.generation),
            stage: Stage::Starting { kill_at: Instant::now() + RESPONSE_TIME },
            generation: cycle.generation,
            keys,
            plan,
            is_killed: false,
            bank,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the channel for poll(2), and whether it has unsent data.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.link.polled()
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
        self.link.flush();
    }

    /// Sends the worker a message. If the channel is closed, the worker is ending and needs no message.
    pub(crate) fn send(&mut self, message: &ToWorker, fds: Vec<Rc<OwnedFd>>) {
        self.expected.note(message);
        self.link.send(&message.encode(), fds);
    }

    /// Returns the reason to kill a worker that does not use its channel as it has to. It is returned only once.
    pub(crate) fn take_channel_fault(&mut self, now: Instant) -> Option<&'static str> {
        if self.is_killed { None } else { self.link.take_fault(now) }
    }

    /// Returns the time at which [`WorkerProcess::take_channel_fault`] may have a reason.
    pub(crate) fn channel_deadline(&self) -> Option<Instant> {
        self.link.deadline().filter(|_| !self.is_killed)
    }

    /// Returns the next message of the worker. A message that is malformed or not expected ends the worker, so the number of
    /// messages is limited.
    pub(crate) fn hear(&mut self) -> Heard {
        match self.link.receive() {
            Ok(Received::Nothing) => Heard::Nothing,
            Ok(Received::Packet(packet)) => match ToMaster::decode(&packet.body) {
                Ok(message) => match self.expected.check(&message) {
                    Ok(()) => Heard::Message(message),
                    Err(reason) => self.give_up(format!("control channel: {reason}")),
                },
                Err(_) => self.give_up("control channel: a malformed message".to_owned()),
            },
            Ok(Received::Closed) => Heard::Silence,
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Returns the exit status if the process has exited.
    pub(crate) fn reap(&mut self) -> Option<ExitStatus> {
        self.child.try_wait()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill();
        self.is_killed = true;
    }

    /// Returns the time at which the master kills the worker because of its stage.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Leaving { kill_at } => kill_at,
            Stage::Starting { kill_at } => Some(kill_at),
            Stage::Serving => None,
        }
        .filter(|_| !self.is_killed)
    }

    /// Kills a worker that sent a malformed or unexpected message, because it cannot be trusted to serve.
    pub(crate) fn give_up(&mut self, reason: String) -> Heard {
        self.link.close();
        self.kill();
        Heard::Nonsense(reason)
    }
}

#[cfg(test)]
impl WorkerProcess {
    /// Lets the time pass that the worker has to exit after it has closed the channel.
    pub(super) fn skip_exit_time(&mut self) {
        self.link.skip_exit_time();
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
