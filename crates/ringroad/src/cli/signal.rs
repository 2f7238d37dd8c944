//! `-s`: finds the master by its pid file and sends it a signal.
//!
//! A standard configuration names nginx's pid file, so the process is checked first: the signal is sent only to a
//! server of this program, unless `--any-process` is given.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::letters::Command;
use crate::listen::error_text;
use crate::log::{Level, Log};
use crate::pidfile;

/// Sends the signal of a command.
pub(super) fn send(command: Command, pid_file: &Path, any_process: bool, log: &Log) -> ExitCode {
    log.notice("signal process started");
    let shown = pid_file.display();
    let text = match pidfile::read_text(pid_file) {
        Ok(text) => text,
        Err(error) => {
            // The file exists as long as a server runs.
            let remedy = match error.kind() {
                std::io::ErrorKind::NotFound => "; no server runs with this configuration",
                _ => "",
            };
            let reason = error_text(&error);
            log.write(Level::Error, format_args!("open() \"{shown}\" failed ({reason}){remedy}"));
            return ExitCode::FAILURE;
        }
    };
    let number = pidfile::parse(&text).and_then(|pid| i32::try_from(pid).ok());
    let Some(pid) = number.and_then(Pid::from_raw) else {
        let what = format_args!(
            "invalid PID number \"{text}\" in \"{shown}\"; signal the master process by kill(1), or start the server again"
        );
        log.write(Level::Error, what);
        return ExitCode::FAILURE;
    };
    // The master handles the signal later; success means that it was sent.
    let signal = match command {
        Command::Stop => Signal::TERM,
        Command::Quit => Signal::QUIT,
        Command::Reopen => Signal::USR1,
        Command::Reload => Signal::HUP,
    };
    // Opened before the process is checked, so that the pid cannot be reused in between.
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    if let Some(other) = other_program(pid).filter(|_| !any_process) {
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
    let sent = match descriptor {
        Ok(descriptor) => pidfd_send_signal(descriptor, signal),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        // A system call filter may reject pidfd_send_signal.
        Err(_) => kill_process(pid, signal),
    };
    match sent {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            let (number, reason) = (signal.as_raw(), crate::listen::errno_text(errno));
            let remedy = match errno {
                Errno::SRCH => format!("; no server runs with this configuration, \"{shown}\" is outdated"),
                Errno::PERM => "; only root and the user that started the server can signal it".to_owned(),
                _ => String::new(),
            };
            log.alert(format_args!("kill({pid}, {number}) failed ({reason}){remedy}"));
            ExitCode::FAILURE
        }
    }
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
