//! Signals as a descriptor: blocked for the whole process and read with signalfd(2), so there is no handler. And the time that
//! poll(2) may wait beside them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::Timespec;

/// What master and worker listen to. SIGPIPE is among them so that it kills no process.
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

/// A signal and its sender, 0 when it came from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// A process id.
    pub(crate) sender: u32,
}

impl Signals {
    /// Blocks the signals in this thread and all that it will start: call it before the first one.
    pub(crate) fn block() -> Result<Signals, Errno> {
        let mut set = SigSet::empty();
        for signal in SIGNALS {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next one, if there is one.
    pub(crate) fn next(&self) -> Option<Arrived> {
        loop {
            // The kernel delivers only signals of the set, and an error here can only be an interruption.
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

/// The time that poll(2) may take until then.
pub(crate) fn timeout_until(at: Instant) -> Timespec {
    // Rounded up: waking a moment too early would mean to poll again at once.
    let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}
