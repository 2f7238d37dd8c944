//! Becoming a daemon without fork: the executable starts itself again in a new session.
//!
//! ```text
//! ringroad ---- starts ----> ringroad, no terminal: opens, binds, starts the worker
//!    | reads the pipe                |
//!    |<------- one byte: ready ------+   exit status 0
//!    |<------- end of the pipe ------+   exit status of the daemon: it could not start
//! ```
//! The caller gets its prompt back when the server really serves, and a failure as exit status: nginx forks when its
//! sockets are bound and cannot report later errors. Only a fork would need unsafe code.

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

/// Marks the second process as the daemon. Its standard input is the pipe.
pub(super) const MARK: &str = "RINGROAD_DAEMON";

/// Whether this is the second process.
pub(crate) fn is_daemon() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Whether a variable of the environment is the mark, which workers need not see.
pub(super) fn is_mark(name: &str) -> bool {
    name == MARK
}

/// Starts the daemon with the arguments of this process and waits until it serves or ends.
pub(crate) fn launch(log: &Log) -> ExitCode {
    match try_launch() {
        Ok(status) => status,
        Err(error) => {
            log.emerg(format_args!("starting the daemon failed ({})", error_text(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The exit status of the daemon is passed on only when it ends before it is ready.
fn try_launch() -> io::Result<ExitCode> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "ringroad".into());
    let mut command = Command::new(OWN_EXECUTABLE);
    command.arg0(name).args(args).env(MARK, "1").stdin(Stdio::from(theirs));
    let mut child = command.spawn()?;
    // The command owns the other end until here, and would keep the pipe open.
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

/// The daemon's end of the pipe.
#[derive(Debug)]
pub(super) struct Readiness(OwnedFd);

impl Readiness {
    /// Notifies the caller that the server serves, and leaves its standard error.
    pub(super) fn tell(self, log: &Log) {
        leave_stderr(log);
        // An interrupted caller does not wait for it.
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

/// What libraries print goes where the log goes from now on, unless that is standard error itself.
pub(super) fn leave_stderr(log: &Log) {
    if let Some(file) = log.file_instead_of_stderr() {
        let _ = rustix::stdio::dup2_stderr(file);
    }
}

/// Leaves the session and the terminal, but for standard error, which is needed until the server serves.
pub(super) fn detach() -> Result<Readiness, String> {
    // As nginx: files get the requested modes.
    rustix::process::umask(Mode::empty());
    nix::sys::prctl::set_name(c"ringroad").map_err(|errno| format!("prctl() failed ({errno})"))?;
    nix::unistd::setsid().map_err(|errno| format!("setsid() failed ({errno})"))?;
    let failed = |errno: Errno| format!("open() \"/dev/null\" failed ({})", errno_text(errno));
    let pipe = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3).map_err(failed)?;
    let null =
        rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    Ok(Readiness(pipe))
}
