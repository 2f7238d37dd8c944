//! Receives signals through a descriptor, signalfd(2). The signals are blocked in all threads, so no signal handler is
//! needed. Also computes the poll(2) timeout until a deadline.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::Timespec;

/// The signals that master and worker handle. SIGPIPE is included so that it does not kill the process.
const SIGNALS: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
    Signal::SIGALRM,
    Signal::SIGPIPE,
];

/// Blocked signals, to be polled and read.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

/// A signal and its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// Process id of the sender, 0 if the kernel sent the signal.
    pub(crate) sender: u32,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts later. Must be called before the first
    /// thread is started.
    pub(crate) fn block() -> Result<Signals, Errno> {
        let mut set = SigSet::empty();
        for signal in SIGNALS {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Returns the next pending signal, if any.
    pub(crate) fn next(&self) -> Option<Arrived> {
        loop {
            // The kernel returns only signals of the set, and an error here can only be an interruption.
            let info = self.0.read_signal().ok().flatten()?;
            let number = i32::try_from(info.ssi_signo).ok();
            let signal = number.and_then(|number| Signal::try_from(number).ok());
            match signal {
                Some(Signal::SIGPIPE) | None => {}
                Some(signal) => return Some(Arrived { signal, sender: info.ssi_pid }),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the poll(2) timeout until a deadline.
pub(crate) fn timeout_until(at: Instant) -> Timespec {
    // Rounded up, so that poll(2) does not return just before the deadline.
    let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}
