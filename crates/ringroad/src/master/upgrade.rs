//! Replaces the binary while the server runs. The protocol is that of nginx, so that either server can replace the other.
//!
//! ```text
//! old master --USR2--> the pid file gets the suffix .oldbin, the new binary is executed with the sockets
//!     |                     |--ready--> the new master writes the pid file; both masters' workers accept
//!     |                     +--exited--> the pid file gets its old name, workers are started again
//!     +--WINCH: workers finish   --HUP: workers start again   --QUIT, TERM: only the new master remains
//! ```
//! The new binary is the file in `argv[0]`: the program file of this process, which a package upgrade has replaced.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::daemon::MARK;
use super::process::describe;
use super::{Master, Phase};
use crate::inherit;
use crate::listen::error_text;
use crate::log::Level;

/// Reason why a process that is not a daemon does not upgrade: a shell or a container waits for its exit. nginx also
/// ignores the signal in this case.
pub(super) const NOT_A_DAEMON: &str = "not a daemon";

/// The master that executed this process, until it exits.
#[derive(Debug)]
pub(super) struct Predecessor {
    pid: u32,
    /// Becomes readable when the master has exited, pidfd_open(2). Without a pidfd the exit is noticed at the next event.
    process: Option<OwnedFd>,
}

/// A new binary that was executed.
#[derive(Debug)]
pub(super) struct NewBinary {
    child: Child,
    /// The name of the pid file before the upgrade.
    pid_path: PathBuf,
}

impl Predecessor {
    /// Returns the process that executed this one, even if it has exited.
    pub(super) fn find() -> Predecessor {
        let pid = inherit::predecessor();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Predecessor { pid, process }
    }

    /// Whether the master still runs: when it exits, this process gets another parent.
    pub(super) fn lives(&self) -> bool {
        parent_id() == self.pid
    }

    /// Returns the descriptor for poll(2).
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }
}

impl Master {
    /// Returns the reason why an upgrade of the binary cannot begin.
    pub(super) fn upgrade_obstacle(&self) -> Option<Cow<'static, str>> {
        if self.new_binary.is_some() {
            return Some("a new binary is already running: stop one of the two masters first".into());
        }
        // The exit of the old master may not have been noticed yet.
        if let Some(Predecessor { pid, .. }) = self.predecessor.as_ref().filter(|before| before.lives()) {
            return Some(
                format!(
                    "process {pid} of the last upgrade still runs, for example because of a download: wait until it exits, or \
                     stop it by \"kill {pid}\""
                )
                .into(),
            );
        }
        if !self.is_detached {
            return Some(NOT_A_DAEMON.into());
        }
        (self.phase == Phase::Ending || self.quit_at.is_some()).then_some("shutting down".into())
    }

    /// Executes the new binary. After a failure, this process continues unchanged.
    pub(super) fn change_binary(&mut self) {
        if let Some(obstacle) = self.upgrade_obstacle() {
            self.upgrading.refuse(&obstacle);
            return self
                .cycle
                .log
                .write(Level::Crit, format_args!("the changing binary signal is ignored: {obstacle}"));
        }
        self.cycle.log.notice("changing binary");
        self.upgrading.begin();
        if let Err(reason) = self.execute_new_binary() {
            self.cycle.log.alert(&reason);
            self.upgrading.fail(&reason);
        }
    }

    /// Renames the pid file and executes the new binary. Returns the reason of a failure.
    fn execute_new_binary(&mut self) -> Result<(), String> {
        let Some(pid_file) = &mut self.pid_file else {
            let why = "without a pid file, the old and the new master cannot be distinguished";
            return Err(format!("the binary is not changed: {why}"));
        };
        let pid_path = pid_file.path().to_owned();
        let renamed = pid_file.rename_to_oldbin();
        renamed.map_err(|message| format!("{message}, the binary is not changed"))?;
        let (command, name) = command();
        let started = execute(command, &self.cycle.listeners, self.bank);
        inherit::close_on_exec(&self.cycle.listeners);
        match started {
            Ok(child) => {
                self.cycle.log.notice(format_args!("start new binary process {}", child.id()));
                self.new_binary = Some(NewBinary { child, pid_path });
                Ok(())
            }
            Err(reason) => {
                self.restore_pid_file(pid_path);
                let name = name.to_string_lossy();
                Err(format!("execve() failed while executing new binary process \"{name}\" ({reason})"))
            }
        }
    }

    /// Handles the exit of the new binary: this process is the only master again.
    pub(super) fn reap_new_binary(&mut self) {
        let status = match &mut self.new_binary {
            Some(new) => new.child.try_wait().ok().flatten(),
            None => None,
        };
        let Some(status) = status else { return };
        let Some(NewBinary { child, pid_path }) = self.new_binary.take() else { return };
        self.log_end(child.id(), status);
        if self.phase == Phase::Ending {
            return;
        }
        self.restore_pid_file(pid_path);
        let (pid, how) = (child.id(), describe(status));
        self.upgrading.fail(&format!("new binary process {pid} {how}; the error log has the reason"));
        self.restore_admin_server();
        // The new binary has steered them to its worker.
        self.steer();
        // SIGWINCH stopped the workers in favour of the new binary, which has exited.
        if self.phase == Phase::Idle {
            self.phase = Phase::Running;
        }
    }

    fn log_end(&self, pid: u32, status: ExitStatus) {
        let level = if status.success() { Level::Notice } else { Level::Alert };
        self.cycle.log.write(level, format_args!("new binary process {pid} {}", describe(status)));
    }

    /// Handles SIGHUP while a new binary runs: starts workers with the present configuration, as nginx does. The file may have
    /// been changed for the new binary.
    pub(super) fn restart_workers(&mut self) {
        self.waiting.abandon();
        if self.phase == Phase::Idle {
            self.cycle.log.notice("start worker processes");
            self.phase = Phase::Running;
        } else {
            self.cycle.log.notice("the configuration is not reloaded while a new binary is running");
        }
    }

    /// Restores the name of the pid file, which contains this process's ID.
    fn restore_pid_file(&mut self, path: PathBuf) {
        let restored = self.pid_file.as_mut().map_or(Ok(()), |pid_file| pid_file.step_back(&path));
        if let Err(message) = restored {
            self.cycle.log.alert(message);
        }
    }

    /// Returns the process ID of the new binary while it runs.
    pub(super) fn new_binary_pid(&self) -> Option<u32> {
        self.new_binary.as_ref().map(|new| new.child.id())
    }

    /// Removes the files of unix sockets at the end, unless another master continues to use them.
    pub(super) fn forget_listeners(&self) {
        let lives = self.predecessor.as_ref().is_some_and(Predecessor::lives);
        if self.new_binary.is_none() && !lives {
            self.cycle.listeners.forget(None);
        }
    }

    /// Checks whether the master before this one has exited.
    pub(super) fn check_predecessor(&mut self) {
        if self.predecessor.take_if(|predecessor| !predecessor.lives()).is_some() {
            self.cycle.log.notice("the previous master process has exited");
        }
    }

    /// Returns the log message for a signal to upgrade the binary.
    pub(super) fn upgrade_action(&self) -> &'static str {
        match self.upgrade_obstacle().as_deref() {
            Some(NOT_A_DAEMON) => ", ignored: not a daemon",
            Some(_) => ", ignoring",
            None => ", changing binary",
        }
    }
}

/// Whether a signal is only handled after the first worker is ready.
pub(super) fn is_postponed(signal: Signal) -> bool {
    matches!(signal, Signal::SIGHUP | Signal::SIGWINCH | Signal::SIGUSR2)
}

/// Returns a command with the arguments of this process, and the program name.
fn command() -> (Command, OsString) {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "ringroad".into());
    let mut command = Command::new(&name);
    command.arg0(&name).args(args).env_remove(MARK);
    (command, name)
}

/// Executes the new binary with the sockets. `bank` is that of the sockets of QUIC in use.
fn execute(mut command: Command, listeners: &crate::listen::Listeners, bank: u8) -> Result<Child, String> {
    inherit::pass_sockets(&mut command, listeners, bank).map_err(crate::listen::errno_text)?;
    command.spawn().map_err(|error| error_text(&error))
}
