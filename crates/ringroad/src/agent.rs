//! The process that obtains certificates: it gives up its privileges, connects to authorities, and reports to the
//! master.
//!
//! Started by the master as `/proc/self/exe acme` with a control channel as standard input. It has no listening socket, reads nothing of a
//! client, and writes to the state directories alone. Its end at any point loses nothing: the master starts another one.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acme::agent::{Challenge, Gone, Host, Level};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::control::acme::{AcmeChange, FromAgent, ToAgent};
use crate::control::{Channel, FROM_MASTER, Received};
use crate::worker::take_channel;

/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "acme";

/// How long workers may take to have a challenge in place. One that takes longer is being replaced.
const INSTALL_TIME: Duration = Duration::from_secs(30);

/// Runs until the master is gone or has no use for it.
pub(crate) fn run() -> ExitCode {
    let _ = nix::sys::prctl::set_name(c"ringroad");
    let Ok(channel) = take_channel(FROM_MASTER) else { return ExitCode::FAILURE };
    let mut master = MasterLink { channel, next: 0 };
    let Ok(ToAgent::Start { issuers, known, credentials }) = master.hear(None).ok_or(Gone) else {
        return ExitCode::FAILURE;
    };
    if let Some(credentials) = credentials
        && let Err(error) = credentials.assume(false)
    {
        master.log(Level::Error, &format!("acme: {error}"));
        return ExitCode::FAILURE;
    }
    // A request may take a minute; the master's end is not waited for. Set last, because a change of the user takes it back.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let Gone = acme::agent::run(&issuers, &known, &mut master);
    ExitCode::SUCCESS
}

/// The master, as the agent sees it.
struct MasterLink {
    channel: Channel,
    /// The number of the last change.
    next: u64,
}

impl MasterLink {
    /// The next message, by a deadline if there is one. `None`: the time is over, or the master is gone.
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

    fn tell(&mut self, message: &FromAgent) -> Result<(), Gone> {
        self.channel.send(&message.encode(), Vec::new()).map_err(|_| Gone)
    }

    /// Has something changed in every worker.
    fn change(&mut self, change: AcmeChange) -> Result<(), Gone> {
        self.next += 1;
        self.tell(&FromAgent::Change(self.next, change))?;
        let deadline = Instant::now() + INSTALL_TIME;
        loop {
            match self.hear(Some(deadline)) {
                Some(ToAgent::Done(number)) if number == self.next => return Ok(()),
                Some(_) => {}
                None if Instant::now() < deadline => return Err(Gone),
                None => {
                    self.log(Level::Warn, "acme: workers take long to confirm a change");
                    return Ok(());
                }
            }
        }
    }
}

impl Host for MasterLink {
    fn install(&mut self, challenge: &Challenge) -> Result<(), Gone> {
        self.change(AcmeChange::Install(challenge.clone()))
    }

    fn remove(&mut self, challenge: &Challenge) -> Result<(), Gone> {
        self.change(AcmeChange::Remove(challenge.clone()))
    }

    fn deliver(&mut self, id: &str, pem: &[u8]) -> Result<(), Gone> {
        self.change(AcmeChange::Certificate { id: id.to_owned(), pem: pem.to_vec() })
    }

    fn log(&mut self, level: Level, text: &str) {
        // A master that is gone shows at the next change.
        let _ = self.tell(&FromAgent::Log(level, text.to_owned()));
    }

    fn wait(&mut self, time: Duration) -> Result<(), Gone> {
        let deadline = Instant::now() + time;
        loop {
            match self.hear(Some(deadline)) {
                // A confirmation that came late.
                Some(_) => {}
                None if Instant::now() < deadline => return Err(Gone),
                None => return Ok(()),
            }
        }
    }
}
