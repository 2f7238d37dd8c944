//! The process that obtains certificates by ACME: it drops its privileges, connects to certificate authorities, and
//! reports to the master.
//!
//! The master starts the agent as `/proc/self/exe acme` with a control channel as standard input. The agent restricts itself
//! (crate `sandbox`) to the files, ports and system calls that it needs, unless `sandbox off` is written. It has no listening
//! socket, never reads from clients, and writes only to the state directories. If it exits, no state is lost, and the master
//! starts it again.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acme::agent::{Challenge, Host, HostExited, Level};
use acme::fetch::SYSTEM_ROOTS;
use acme::settings::Issuer;
use acme::url::Url;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox::{Calls, FileRules, RefusedCalls, RuleError};

use crate::control::acme::{AcmeChange, FromAgent, ToAgent};
use crate::control::{Channel, FROM_MASTER, Received};
use crate::listen::errno_text;
use crate::owned_links;
use crate::restrict::{DNS, LIBRARIES};
use crate::worker::take_channel;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "acme";

/// Maximum time to wait until all workers have applied a change. A worker that needs longer is being replaced.
const INSTALL_TIME: Duration = Duration::from_secs(30);

/// Port of CAs. The directory of a CA may name other servers than its own.
const HTTPS: u16 = 443;

/// Directories with the files and sockets of name resolution (resolv.conf(5), nsswitch.conf(5)), and with time zones. /etc is
/// complete, because other programs replace `resolv.conf` there.
const READABLE: &[&str] = &[
    "/etc",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/nscd",
    "/usr/share/zoneinfo",
    "/dev/null",
];

/// Runs until the master has exited or no longer needs the agent.
pub(crate) fn run() -> ExitCode {
    // Such as files that the shell of the operator has left open.
    sandbox::close_unexpected();
    let _ = nix::sys::prctl::set_name(c"ringroad");
    let Ok(channel) = take_channel(FROM_MASTER) else { return ExitCode::FAILURE };
    let mut master = MasterLink { channel, next: 0, refused: None };
    let Ok(ToAgent::Start { issuers, known, credentials, is_restricted }) =
        master.hear(None).ok_or(HostExited)
    else {
        return ExitCode::FAILURE;
    };
    let master_user = rustix::process::geteuid().as_raw();
    // Needs privileges, so the change of the user comes later. Without them there is nothing to remove.
    if is_restricted {
        let _ = sandbox::empty_bounding_set();
    }
    if let Some(credentials) = credentials
        && let Err(error) = credentials.assume(false)
    {
        master.log(Level::Error, &format!("acme: {error}"));
        return ExitCode::FAILURE;
    }
    // The agent must not outlive the master, even during a request, which may last a minute. The signal is set after the
    // change of the user, which clears it.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    match is_restricted.then(|| restrict(&issuers, master_user, &mut master)).transpose() {
        Ok(refused) => master.refused = refused,
        Err(error) => master.log(Level::Error, &format!("acme: the process is not restricted: {error}")),
    }
    let HostExited = acme::agent::run(&issuers, &known, &mut master);
    ExitCode::SUCCESS
}

/// Restricts the process to what it needs: files of its states and of name resolution, the roots of the system, connections to the
/// ports of its CAs, and the system calls of a client.
fn restrict(
    issuers: &[Issuer],
    master_user: u32,
    master: &mut MasterLink,
) -> Result<RefusedCalls, sandbox::Error> {
    // The C library loads the modules that /etc/nsswitch.conf names with the first lookup. Later it could not map them.
    let _ = ("localhost", 443).to_socket_addrs();
    let states: Vec<&Path> = issuers.iter().filter_map(|issuer| issuer.state_path.as_deref()).collect();
    let ports = issuers.iter().filter_map(|issuer| Url::parse(&issuer.uri)).map(|url| url.port);
    let ports: BTreeSet<u16> = ports.chain([HTTPS, DNS]).collect();
    // What the kernel lacks is reported for the worker, which needs more.
    let mut rules = FileRules::new(Some(&ports), Some(&BTreeSet::new()))?;
    let mut permit = |path: &Path| match rules.permit(path, false) {
        Err(RuleError::Limit(error)) => Err(error),
        // Paths that do not exist are not used.
        Ok(_) | Err(RuleError::Path(_)) => Ok(()),
    };
    roots_and_resolver()
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .try_for_each(|path| permit(&path))?;
    for path in states {
        // A rule needs an existing directory. A failure is reported when the agent opens the state.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(path);
        // A worker that was taken over has the user of this process, and could lead it to other directories by a symbolic link.
        match owned_links::open_directory(path, master_user) {
            Ok(directory) => rules.permit_open(&directory, true)?,
            Err(errno) => {
                let (path, reason, remedy) = (path.display(), errno_text(errno), owned_links::remedy(errno));
                master.log(Level::Error, &format!("acme: open() \"{path}\" failed ({reason}){remedy}"));
            }
        }
    }
    sandbox::drop_privileges(false, false)?;
    rules.enforce()?;
    sandbox::restrict_calls(Calls::Agent)
}

/// Returns the paths that the process reads: files of name resolution, and the certificates that the system trusts. They are
/// directories where programs replace the files while the server runs.
fn roots_and_resolver() -> Vec<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = SYSTEM_ROOTS.iter().map(PathBuf::from);
    let bundles = named.into_iter().chain(known).filter_map(|file| {
        let file = file.canonicalize().ok()?;
        Some([file.parent()?.to_owned(), file])
    });
    let mut paths: Vec<PathBuf> = bundles.flatten().collect();
    paths.extend(READABLE.iter().chain(LIBRARIES).map(PathBuf::from));
    paths
}

/// The connection to the master.
struct MasterLink {
    channel: Channel,
    /// Number of the last change.
    next: u64,
    /// System calls that the kernel has refused.
    refused: Option<RefusedCalls>,
}

impl MasterLink {
    /// Receives the next message, until a deadline if there is one. Returns `None` on timeout, or if the master has
    /// exited.
    fn hear(&mut self, deadline: Option<Instant>) -> Option<ToAgent> {
        for name in self.refused.as_ref().map(RefusedCalls::take).unwrap_or_default() {
            self.log(Level::Error, &format!("acme: the system call {name} was refused"));
        }
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
