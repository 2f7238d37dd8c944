//! `-s`: finds the master by its pid file and sends it a signal.
//!
//! A standard configuration names nginx's pid file, so the process is checked first: the signal is sent only to a
//! server of this program, unless `--any-process` is given.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::letters::{Command, Options};
use super::output::print_error;
use super::upgrade;
use crate::listen::error_text;
use crate::log::{Level, Log};
use crate::pidfile;
use crate::reload_report::{ReloadReport, ReportListener};

/// Sends the signal of a command.
pub(super) fn send(command: Command, pid_file: &Path, options: &Options, log: &Log) -> ExitCode {
    log.notice("signal process started");
    let shown = pid_file.display();
    let pid = match master_of(pid_file) {
        Ok(pid) => pid,
        Err(message) => {
            log.write(Level::Error, message);
            return ExitCode::FAILURE;
        }
    };
    // The master handles the signal later. Success means that it was sent, except for a reload and an upgrade.
    let signal = match command {
        Command::Stop => Signal::TERM,
        Command::Quit => Signal::QUIT,
        Command::Reopen => Signal::USR1,
        Command::Reload => Signal::HUP,
        Command::Upgrade => Signal::USR2,
    };
    // Opened before the process is checked, so that the pid cannot be reused in between.
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    let other = other_program(pid);
    if let Some(other) = other.as_ref().filter(|_| !options.any_process) {
        log.write(
            Level::Error,
            format_args!(
                "process {pid} of \"{shown}\" is not ringroad but \"{}\" and is not signalled; set \"pid\" to a file that no \
                 other server uses, or add --any-process",
                other.display()
            ),
        );
        return ExitCode::FAILURE;
    }
    let master = MasterProcess { pid, descriptor };
    // Another program sends no result of a reload. That of an upgrade is in the pid files, also those of nginx.
    let waits = match command {
        Command::Reload => other.is_none(),
        Command::Upgrade => true,
        Command::Stop | Command::Quit | Command::Reopen => false,
    };
    let waits = waits && !options.no_wait;
    let mut listener = waits.then(|| listen_for_report(pid, signal, log)).flatten();
    let changed = upgrade::change_time(pid_file);
    let sent = match listener.as_mut().filter(|_| command == Command::Reload) {
        Some(listener) => request_reload(&master, listener),
        None => master.send(signal),
    };
    match sent {
        Ok(()) if command == Command::Upgrade && waits => upgrade::finish(
            &master,
            (pid_file, changed),
            listener,
            Instant::now() + RESULT_TIME,
            options.quiet,
        ),
        Ok(()) => match listener {
            Some(mut listener) => {
                report(&listener.wait(pid, master.ends(), Instant::now() + RESULT_TIME), options)
            }
            None => ExitCode::SUCCESS,
        },
        Err(errno) => {
            log_failure(errno, (pid, signal), pid_file, log);
            ExitCode::FAILURE
        }
    }
}

/// Logs that a signal could not be sent, with the remedy.
fn log_failure(errno: Errno, (pid, signal): (Pid, Signal), pid_file: &Path, log: &Log) {
    let (number, reason) = (signal.as_raw(), crate::listen::errno_text(errno));
    let remedy = match errno {
        Errno::SRCH => {
            format!("; no server runs with this configuration, \"{}\" is outdated", pid_file.display())
        }
        Errno::PERM => "; only root and the user that started the server can signal it".to_owned(),
        _ => String::new(),
    };
    log.alert(format_args!("kill({pid}, {number}) failed ({reason}){remedy}"));
}

/// A running master.
pub(super) struct MasterProcess {
    pub(super) pid: Pid,
    /// Its pidfd, or why there is none.
    descriptor: Result<OwnedFd, Errno>,
}

impl MasterProcess {
    /// Sends a signal.
    pub(super) fn send(&self, signal: Signal) -> Result<(), Errno> {
        match &self.descriptor {
            Ok(descriptor) => pidfd_send_signal(descriptor, signal),
            Err(Errno::SRCH) => Err(Errno::SRCH),
            // A system call filter may reject pidfd_send_signal.
            Err(_) => kill_process(self.pid, signal),
        }
    }

    /// Returns the descriptor that is readable when the process has exited, pidfd_open(2).
    pub(super) fn ends(&self) -> Option<&OwnedFd> {
        self.descriptor.as_ref().ok()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a command line program, and proc(5) has no event for a received signal"
    )]
    /// Waits until the process has received the signals of this number that were sent to it.
    pub(super) fn wait_received(pid: Pid, signal: Signal, until: Instant) {
        while is_pending(pid, signal) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the process id in a pid file, or the message of an error.
fn master_of(pid_file: &Path) -> Result<Pid, String> {
    let shown = pid_file.display();
    let text = pidfile::read_text(pid_file).map_err(|error| {
        // The file exists as long as a server runs.
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => "; no server runs with this configuration",
            _ => "",
        };
        format!("open() \"{shown}\" failed ({}){remedy}", error_text(&error))
    })?;
    let number = pidfile::parse(&text).and_then(|pid| i32::try_from(pid).ok());
    number.and_then(Pid::from_raw).ok_or_else(|| {
        format!(
            "invalid PID number \"{text}\" in \"{shown}\"; signal the master process by kill(1), or start the server again"
        )
    })
}

/// Maximum time that `-s reload` and `-s upgrade` wait for the result. A worker that does not apply a new configuration is killed after
/// half of it.
pub(super) const RESULT_TIME: Duration = Duration::from_secs(60);

/// Listens for the result, before the signal is sent. Without the socket a reload is not waited for.
fn listen_for_report(pid: Pid, signal: Signal, log: &Log) -> Option<ReportListener> {
    // Two pending signals of one number are one signal, signal(7), with only one sender, so this command waits until the server has
    // received the one before. A server that does not respond is reported by the wait for the result.
    MasterProcess::wait_received(pid, signal, Instant::now() + RESULT_TIME);
    let opened = ReportListener::open();
    if let Err(errno) = &opened {
        let reason = crate::listen::errno_text(*errno);
        let what = "the server cannot report the result to this command; it is in the error log";
        log.write(Level::Warn, format_args!("{what}: socket() failed ({reason})"));
    }
    opened.ok()
}

/// Sends SIGHUP until the master has connected for the result. If several commands send it at the same moment, the master sees only one of
/// them.
fn request_reload(master: &MasterProcess, listener: &mut ReportListener) -> Result<(), Errno> {
    for _ in 0..REQUESTS_MAX {
        master.send(Signal::HUP)?;
        MasterProcess::wait_received(master.pid, Signal::HUP, Instant::now() + RESULT_TIME);
        if listener.wait_for_master(master.pid, master.ends(), Instant::now() + CONNECT_TIME) {
            break;
        }
    }
    Ok(())
}

/// Time in which the master connects after it has received the signal.
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// Maximum number of signals of one command. A further signal causes a further reload, and has no other effect.
const REQUESTS_MAX: u32 = 5;

/// Whether a signal was sent to a process that has not received it yet, proc(5).
fn is_pending(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let bits = pending.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    bits >> (signal.as_raw() - 1) & 1 == 1
}

/// Prints the result of a reload in one line, and returns the exit status.
fn report(report: &ReloadReport, options: &Options) -> ExitCode {
    let failure = match report {
        ReloadReport::InForce { generation, is_in_place } => {
            if !options.quiet {
                let how = if *is_in_place { "in the running worker process" } else { "in a new worker process" };
                print_error(format_args!("ringroad: reload successful: configuration {generation} is in force, {how}\n"));
            }
            return ExitCode::SUCCESS;
        }
        ReloadReport::Refused(reason) => format!("reload failed, the old configuration stays in force: {reason}"),
        ReloadReport::Abandoned => "reload failed: the server does not reload, because it shuts down or is being replaced by a new binary".to_owned(),
        ReloadReport::Exited => "reload failed: the server has exited".to_owned(),
        ReloadReport::Late => {
            let seconds = RESULT_TIME.as_secs();
            format!("no result of the reload within {seconds} seconds; the error log of the server will have it")
        }
    };
    print_error(format_args!("ringroad: [emerg] {failure}\n"));
    ExitCode::FAILURE
}

/// Returns the program of a process if it is a different program; `None` also if the process has exited.
fn other_program(pid: Pid) -> Option<PathBuf> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    // The file name without the suffix that the kernel adds if the program file was replaced since the start.
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        OsStr::from_bytes(name.strip_suffix(b" (deleted)").unwrap_or(name)).to_owned()
    };
    let ours = std::env::current_exe().map(|path| name(&path)).unwrap_or_default();
    let is_ours = |path: &Path| name(path) == ours || name(path) == OsStr::new("ringroad");
    let program = match std::fs::read_link(folder.join("exe")) {
        Ok(program) => program,
        // For a process of another user only the name is readable.
        Err(_) => {
            let name = std::fs::read_to_string(folder.join("comm")).ok()?;
            PathBuf::from(name.trim_end())
        }
    };
    (!is_ours(&program)).then_some(program)
}
