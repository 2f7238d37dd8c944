//! The process that obtains certificates by ACME: it drops its privileges, connects to certificate authorities, and
//! reports to the master.
//!
//! The master starts the agent as `/proc/self/exe acme` with a control channel as standard input. The agent has no
//! listening socket, never reads from clients, and writes only to the state directories. If it exits, no state is lost,
//! and the master starts it again.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acme::agent::{Challenge, Host, HostExited, Level};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::control::acme::{AcmeChange, FromAgent, ToAgent};
use crate::control::{Channel, FROM_MASTER, Received};
use crate::worker::take_channel;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "acme";

/// Maximum time to wait until all workers have applied a change. A worker that needs longer is being replaced.
const INSTALL_TIME: Duration = Duration::from_secs(30);

/// Runs until the master has exited or no longer needs the agent.
pub(crate) fn run() -> ExitCode {
    let _ = nix::sys::prctl::set_name(c"ringroad");
    let Ok(channel) = take_channel(FROM_MASTER) else { return ExitCode::FAILURE };
    let mut master = MasterLink { channel, next: 0 };
    let Ok(ToAgent::Start { issuers, known, credentials }) = master.hear(None).ok_or(HostExited) else {
        return ExitCode::FAILURE;
    };
    if let Some(credentials) = credentials
        && let Err(error) = credentials.assume(false)
    {
        master.log(Level::Error, &format!("acme: {error}"));
        return ExitCode::FAILURE;
    }
    // The agent must not outlive the master, even during a request, which may last a minute. The signal is set last,
    // because a change of the user clears it.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let HostExited = acme::agent::run(&issuers, &known, &mut master);
    ExitCode::SUCCESS
}

/// The connection to the master.
struct MasterLink {
    channel: Channel,
    /// Number of the last change.
    next: u64,
}

impl MasterLink {
    /// Receives the next message, until a deadline if there is one. Returns `None` on timeout, or if the master has
    /// exited.
    fn hear(&mut self, deadline: Option<Instant>) -> Option<ToAgent> {
        loop {
            match self.channel.receive() {
                Ok(Received::Packet(packet)) => return ToAgent::decode(&packet.body).ok(),
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) | Err(_) => return None,
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let timeout = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            let sending = if self.channel.wants_to_send() { PollFlags::OUT } else { PollFlags::empty() };
            let mut polled = [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN | sending)];
            let polled = poll(&mut polled, timeout.as_ref());
            if polled.is_err_and(|errno| errno != Errno::INTR) || self.channel.flush().is_err() {
                return None;
            }
        }
    }

    fn send(&mut self, message: &FromAgent) -> Result<(), HostExited> {
        self.channel.send(&message.encode(), Vec::new()).map_err(|_| HostExited)
    }

    /// Sends a change and waits until every worker has applied it.
    fn change(&mut self, change: AcmeChange) -> Result<(), HostExited> {
        self.next += 1;
        self.send(&FromAgent::Change(self.next, change))?;
        let deadline = Instant::now() + INSTALL_TIME;
        loop {
            match self.hear(Some(deadline)) {
                Some(ToAgent::Done(number)) if number == self.next => return Ok(()),
                Some(_) => {}
                None if Instant::now() < deadline => return Err(HostExited),
                None => {
                    self.log(
                        Level::Warn,
                        "acme: some workers have not confirmed a challenge or certificate yet",
                    );
                    return Ok(());
                }
            }
        }
    }
}

impl Host for MasterLink {
    fn install(&mut self, challenge: &Challenge) -> Result<(), HostExited> {
        self.change(AcmeChange::Install(challenge.clone()))
    }

    fn remove(&mut self, challenge: &Challenge) -> Result<(), HostExited> {
        self.change(AcmeChange::Remove(challenge.clone()))
    }

    fn deliver(&mut self, id: &str, pem: &[u8]) -> Result<(), HostExited> {
        self.change(AcmeChange::Certificate { id: id.to_owned(), pem: pem.to_vec() })
    }

    fn log(&mut self, level: Level, text: &str) {
        // An exit of the master is detected at the next change.
        let _ = self.send(&FromAgent::Log(level, text.to_owned()));
    }

    fn wait(&mut self, time: Duration) -> Result<(), HostExited> {
        let deadline = Instant::now() + time;
        loop {
            match self.hear(Some(deadline)) {
                // A late confirmation of an earlier change.
                Some(_) => {}
                None if Instant::now() < deadline => return Err(HostExited),
                None => return Ok(()),
            }
        }
    }
}
