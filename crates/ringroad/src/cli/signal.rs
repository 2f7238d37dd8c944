//! `-s`: finds the master by its pid file and sends it the signal.

use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::options::Command;
use crate::listen::error_text;
use crate::log::{Level, Log};
use crate::pidfile;

/// Sends the signal of a command.
pub(super) fn send(command: Command, pid_file: &Path, log: &Log) -> ExitCode {
    log.notice("signal process started");
    let shown = pid_file.display();
    let text = match pidfile::read_text(pid_file) {
        Ok(text) => text,
        Err(error) => {
            log.write(Level::Error, format_args!("open() \"{shown}\" failed ({})", error_text(&error)));
            return ExitCode::FAILURE;
        }
    };
    let Some(pid) = pidfile::parse(&text).and_then(|pid| i32::try_from(pid).ok()) else {
        log.write(Level::Error, format_args!("invalid PID number \"{text}\" in \"{shown}\""));
        return ExitCode::FAILURE;
    };
    // The master acts on the signal later; success means that it was sent.
    let signal = match command {
        Command::Stop => Signal::SIGTERM,
        Command::Quit => Signal::SIGQUIT,
        Command::Reopen => Signal::SIGUSR1,
        Command::Reload => Signal::SIGHUP,
    };
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            let (number, code) = (signal as i32, errno as i32);
            log.alert(format_args!("kill({pid}, {number}) failed ({code}: {})", errno.desc()));
            ExitCode::FAILURE
        }
    }
}
