//! Starts the daemon without fork(2): the process executes its program file again in a new session.
//!
//! ```text
//! ringroad ---- starts ----> ringroad, no terminal: opens, binds, starts the worker
//!    | reads the pipe                |
//!    |<------- one byte: ready ------+   exit status 0
//!    |<------- end of the pipe ------+   exit status of the daemon: it could not start
//! ```
//! The caller's shell continues only when the server serves requests, and a failure to start is visible in the exit status. nginx
//! forks when its sockets are bound, and cannot report later errors this way. fork(2) would require unsafe code.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::process::OWN_EXECUTABLE;
use crate::listen::{errno_text, error_text};
use crate::log::Log;
use crate::paths::is_in_place_of_nginx;

/// The environment variable that marks the second process as the daemon. Standard input of the daemon is the pipe.
pub(super) const MARK: &str = "RINGROAD_DAEMON";

/// Whether this process is the daemon.
pub(crate) fn is_daemon() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Whether an environment variable is the mark, which is not passed to workers.
pub(super) fn is_mark(name: &str) -> bool {
    name == MARK
}

/// Starts the daemon with the arguments of this process, and waits until the daemon serves requests or exits.
pub(crate) fn launch(log: &Log) -> ExitCode {
    match try_launch() {
        Ok(status) => status,
        Err(error) => {
            log.emerg(format_args!("starting the daemon failed ({})", error_text(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit status of the daemon if it exits before it is ready.
fn try_launch() -> io::Result<ExitCode> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "ringroad".into());
    let mut command = Command::new(OWN_EXECUTABLE);
    command.arg0(name).args(args).env(MARK, "1").stdin(Stdio::from(theirs));
    let mut child = command.spawn()?;
    // The command still owns the other end of the pipe. With it, the exit of the daemon would not close the pipe.
    drop(command);
    let mut told = [0];
    match std::fs::File::from(ours).read(&mut told)? {
        0 => {
            let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
            Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The daemon's end of the pipe, by which it notifies its caller.
#[derive(Debug)]
pub(super) struct Readiness(OwnedFd);

impl Readiness {
    /// Notifies the caller that the server serves requests, and redirects standard error.
    pub(super) fn notify(self, log: &Log) {
        leave_stderr(log);
        // Fails if the caller was interrupted, and has closed the pipe.
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

/// Redirects standard error to the log, for output of libraries, unless the log is standard error.
pub(super) fn leave_stderr(log: &Log) {
    if let Some(file) = log.file_instead_of_stderr() {
        let _ = rustix::stdio::dup2_stderr(file);
    }
}

/// Detaches from the session and the terminal. Standard error stays open until the server serves requests.
pub(super) fn detach() -> Result<Readiness, String> {
    // As in nginx: files get exactly the requested modes.
    rustix::process::umask(Mode::empty());
    // Debian's script of nginx signals only a process with the name of its program.
    let name = if is_in_place_of_nginx() { c"nginx" } else { c"ringroad" };
    nix::sys::prctl::set_name(name).map_err(|errno| format!("prctl() failed ({errno})"))?;
    nix::unistd::setsid().map_err(|errno| format!("setsid() failed ({errno})"))?;
    let failed = |errno: Errno| format!("open() \"/dev/null\" failed ({})", errno_text(errno));
    let pipe = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3).map_err(failed)?;
    let null =
        rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    Ok(Readiness(pipe))
}
