//! A worker process as the master sees it: its start, its messages, and its end.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::control::acme::AcmeChange;
use crate::control::message::{Bundle, ToMaster, ToWorker};
use crate::control::{Channel, Received};
use crate::listen::{errno_text, error_text};
use crate::master::cycle::Cycle;
use crate::master::daemon::is_mark;
use crate::{site, worker};

/// The running executable, also when the file was replaced meanwhile.
pub(super) const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// How long a worker may take to start, or to swap its configuration. Reading the largest configurations takes a second
/// or two; a longer response means a hanging worker.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Variables that begin like this reach the worker without an `env` directive: switches for tests.
const OWN_VARIABLES: &str = "RINGROAD_";

/// Where a worker stands.
///
/// ```text
/// Starting --ready--> Serving --quit or stop--> Leaving --> gone
///     +--------failed or died at any point-----------------> gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Has its bundle, does not accept yet; killed at the instant, because nothing continues without it.
    Starting { kill_at: Instant },
    /// Accepts.
    Serving,
    /// Was told to end, and is killed at the instant if there is one.
    Leaving { kill_at: Option<Instant> },
}

/// The messages of a worker.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message.
    Message(ToMaster),
    /// Nothing more at the moment.
    Nothing,
    /// Nothing ever again: it ends.
    Silence,
    /// Its messages make no sense for this reason, and it was killed.
    Nonsense(String),
}

/// One worker process.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    child: Child,
    /// Gone once the other end was closed.
    channel: Option<Channel>,
    pub(crate) stage: Stage,
    /// Which configuration it serves.
    pub(crate) generation: u64,
}

impl WorkerProcess {
    /// Starts a process and sends it the configuration, with the addresses of names and the certificates as they are known.
    pub(crate) fn start(
        cycle: &Cycle,
        addresses: &str,
        respawned: u64,
        acme: Vec<AcmeChange>,
    ) -> Result<WorkerProcess, String> {
        let (mut channel, theirs) =
            Channel::pair().map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
        let mut command = Command::new(OWN_EXECUTABLE);
        command.arg0("ringroad: worker process").arg(worker::SUBCOMMAND).stdin(Stdio::from(theirs));
        // A reader of a daemon's output, such as ssh or a shell's `$(...)`, waits until all writers have closed it. The
        // channel carries the worker's messages about its start.
        if cycle.site.settings.daemon
            && let Some(file) = cycle.log.file_instead_of_stderr()
            && let Ok(file) = file.try_clone_to_owned()
        {
            command.stderr(Stdio::from(file));
        }
        command.env_clear().envs(environment(&cycle.site.settings.env));
        let child = command.spawn();
        // The command owns the other end until here; kept open it would hide the worker's death.
        drop(command);
        let child = child.map_err(|error| format!("starting a worker failed ({})", error_text(&error)))?;
        let (bundle, fds) = cycle.bundle();
        let (addresses, tickets) = (addresses.to_owned(), site::tickets());
        let bundle = Bundle { addresses, respawned, acme, tickets, ..bundle };
        // A worker that dies this early is noticed by its exit status.
        let _ = channel.send(&ToWorker::Start(Box::new(bundle)).encode(), fds);
        Ok(WorkerProcess {
            child,
            channel: Some(channel),
            stage: Stage::Starting { kill_at: Instant::now() + ANSWER_TIME },
            generation: cycle.generation,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The channel, for poll(2), and whether it waits for room to send.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), channel.wants_to_send()))
    }

    /// Sends queued messages.
    pub(crate) fn flush(&mut self) {
        let broken = self.channel.as_mut().is_some_and(|channel| channel.flush().is_err());
        if broken {
            self.channel = None;
        }
    }

    /// Sends the worker a message. A worker with a closed channel is ending and needs no message.
    pub(crate) fn tell(&mut self, message: &ToWorker, fds: Vec<Rc<OwnedFd>>) {
        let broken =
            self.channel.as_mut().is_some_and(|channel| channel.send(&message.encode(), fds).is_err());
        if broken {
            self.channel = None;
        }
    }

    /// The next thing that the worker said.
    pub(crate) fn hear(&mut self) -> Heard {
        let Some(channel) = &mut self.channel else { return Heard::Nothing };
        match channel.receive() {
            Ok(Received::Nothing) => Heard::Nothing,
            Ok(Received::Packet(packet)) => match ToMaster::decode(&packet.body) {
                Ok(message) => Heard::Message(message),
                Err(_) => self.give_up("control channel: a malformed message".to_owned()),
            },
            Ok(Received::Closed) => {
                self.channel = None;
                Heard::Silence
            }
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Whether the process has ended, and how.
    pub(crate) fn reap(&mut self) -> Option<ExitStatus> {
        // An error would mean that another thread reaped our child, and no other does.
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; then the signal is not sent.
        let _ = self.child.kill();
    }

    /// A worker that talks nonsense cannot be trusted to serve.
    pub(crate) fn give_up(&mut self, reason: String) -> Heard {
        self.channel = None;
        self.kill();
        Heard::Nonsense(reason)
    }
}

/// `exited with code 0`, `exited on signal 9`: nginx's words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) if status.core_dumped() => format!("exited on signal {signal} (core dumped)"),
        (None, Some(signal)) => format!("exited on signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}

/// nginx's rule: TZ, what `env` names, nothing else; and our own switches.
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
