//! The result of a reload or of an upgrade, for the command `-s reload` or `-s upgrade` that has requested it.
//!
//! ```text
//! ringroad -s reload                                     master
//!   listens on the abstract address of its pid
//!   SIGHUP -------------------------------------------->  signalfd(2) has the pid of the sender
//!   accept  <------------------------------------------  connects to the address of this pid, then reloads
//!   prints  <-------------- {"outcome":"in place"} ----  sends the result
//! ```
//! For `-s upgrade` the signal is SIGUSR2, and only a failure is sent: the command reads a success from the pid file.
//!
//! The server needs no configuration for this, unlike for the admin socket. Both sides check the credentials of the other side
//! (unix(7), `SO_PEERCRED`), because any process may use an abstract address. For a sender that does not listen, such as kill(1),
//! the cost is one refused connection. The master never waits: the socket is non-blocking, and a result is one packet.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::reloads::ReloadOutcome;
use crate::signals::timeout_until;

/// Maximum number of commands that wait for one reload or upgrade; further ones get no result. Only root and the user of the server can
/// send the signal.
const WAITING_MAX: usize = 16;

/// Maximum size of a result in bytes. A longer reason of a failure is cut.
const REPORT_MAX: usize = 8 << 10;

/// Maximum length of the reason of a failure in bytes, so that it fits with its JSON escapes.
const REASON_MAX: usize = 1 << 10;

/// Returns the abstract address of the command with this pid.
fn address_of(pid: u32) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("ringroad-reload-{pid}").as_bytes())
}

/// Creates a close-on-exec socket for packets.
fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The result of a reload as a command receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReloadReport {
    /// This configuration version is in force.
    InForce { generation: u64, is_in_place: bool },
    /// The old configuration stays in force, for this reason.
    Refused(String),
    /// The server has closed the connection without a result: it shuts down.
    Abandoned,
    /// The server has exited.
    Exited,
    /// No result until the deadline.
    Late,
}

impl ReloadReport {
    fn parse(packet: &[u8]) -> ReloadReport {
        let value: Value = serde_json::from_slice(packet).unwrap_or_default();
        match value["generation"].as_u64() {
            Some(generation) => ReloadReport::InForce {
                generation,
                is_in_place: value["in_place"].as_bool().unwrap_or_default(),
            },
            None => ReloadReport::Refused(value["reason"].as_str().unwrap_or_default().to_owned()),
        }
    }
}

/// The side of the command.
#[derive(Debug)]
pub(crate) struct ReportListener {
    socket: OwnedFd,
    /// The connection of the master.
    connection: Option<OwnedFd>,
}

/// A step of waiting for a result.
#[derive(Debug)]
pub(crate) enum ReportStep {
    /// The result.
    Packet(Vec<u8>),
    /// The master has closed the connection without a result.
    Closed,
    /// The master has exited.
    Exited,
    /// Nothing until the deadline.
    Late,
}

impl ReportListener {
    /// Listens for the result. Must be called before the signal is sent.
    pub(crate) fn open() -> Result<ReportListener, Errno> {
        let socket = new_socket()?;
        bind(&socket, &address_of(std::process::id())?)?;
        listen(&socket, 1)?;
        Ok(ReportListener { socket, connection: None })
    }

    /// Waits for the result of a reload by the master with this pid. `ends` is its pidfd, which is readable when the master has exited
    /// (pidfd_open(2)).
    pub(crate) fn wait(&mut self, master: Pid, ends: Option<&OwnedFd>, until: Instant) -> ReloadReport {
        match self.receive(master, ends, until) {
            ReportStep::Packet(packet) => ReloadReport::parse(&packet),
            ReportStep::Closed => ReloadReport::Abandoned,
            ReportStep::Exited => ReloadReport::Exited,
            ReportStep::Late => ReloadReport::Late,
        }
    }

    /// Waits until the master has connected, which it does when it receives the signal. Returns `false` if it has not until the deadline.
    pub(crate) fn wait_for_master(&mut self, master: Pid, ends: Option<&OwnedFd>, until: Instant) -> bool {
        loop {
            let mut polled = vec![PollFd::new(&self.socket, PollFlags::IN)];
            polled.extend(ends.map(|ends| PollFd::new(ends, PollFlags::IN)));
            match poll(&mut polled, Some(&timeout_until(until))) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(_) if until <= Instant::now() => return false,
                Err(_) => continue,
            }
            // The wait for the result reports a master that has exited.
            if polled[0].revents().is_empty() || self.accept(master) {
                return true;
            }
        }
    }

    /// Accepts a connection. Returns `false` if it is not the master's.
    fn accept(&mut self, master: Pid) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let peer = accept_with(&self.socket, flags).ok();
        self.connection =
            peer.filter(|peer| sockopt::socket_peercred(peer).is_ok_and(|who| who.pid == master));
        self.connection.is_some()
    }

    /// Waits for a result until the deadline. May be called again after [`ReportStep::Late`].
    pub(crate) fn receive(&mut self, master: Pid, ends: Option<&OwnedFd>, until: Instant) -> ReportStep {
        loop {
            let awaited = self.connection.as_ref().unwrap_or(&self.socket);
            let mut polled = vec![PollFd::new(awaited, PollFlags::IN)];
            polled.extend(ends.map(|ends| PollFd::new(ends, PollFlags::IN)));
            match poll(&mut polled, Some(&timeout_until(until))) {
                Ok(0) => return ReportStep::Late,
                Ok(_) => {}
                Err(_) if until <= Instant::now() => return ReportStep::Late,
                Err(_) => continue,
            }
            let has_input = !polled[0].revents().is_empty();
            if !has_input {
                return ReportStep::Exited;
            }
            match &self.connection {
                None => {
                    self.accept(master);
                }
                Some(peer) => {
                    let mut packet = [0; REPORT_MAX];
                    let received = recv(peer, &mut packet[..], RecvFlags::DONTWAIT);
                    if received.is_err_and(|errno| errno != Errno::CONNRESET) {
                        continue;
                    }
                    // A connection has one result.
                    self.connection = None;
                    return match received {
                        Ok((length @ 1.., _)) => ReportStep::Packet(packet[..length].to_vec()),
                        _ => ReportStep::Closed,
                    };
                }
            }
        }
    }
}

/// Returns the reason in the packet of a failed upgrade.
pub(crate) fn upgrade_failure(packet: &[u8]) -> String {
    let value: Value = serde_json::from_slice(packet).unwrap_or_default();
    value["reason"].as_str().unwrap_or_default().to_owned()
}

/// The side of the master: the commands that wait for a result. Dropping a socket tells its command that there is no result.
#[derive(Debug, Default)]
pub(crate) struct WaitingCommands {
    /// Those of the reload or upgrade in flight.
    current: Vec<OwnedFd>,
    /// Those of the next one.
    next: Vec<OwnedFd>,
}

impl WaitingCommands {
    /// Adds the sender of a signal, if it is a command that waits. Other senders do not listen.
    pub(crate) fn add(&mut self, sender: u32) {
        // The kernel sends no such signal to a server without a terminal; a sender outside of the pid namespace has no number.
        if sender == 0 || self.next.len() >= WAITING_MAX {
            return;
        }
        let connected = || -> Result<OwnedFd, Errno> {
            let socket = new_socket()?;
            connect(&socket, &address_of(sender)?)?;
            let listener = sockopt::socket_peercred(&socket)?.uid;
            let may_know = listener.is_root() || listener == rustix::process::geteuid();
            may_know.then_some(socket).ok_or(Errno::PERM)
        };
        self.next.extend(connected());
    }

    /// Begins a reload or an upgrade for all senders so far.
    pub(crate) fn begin(&mut self) {
        self.current = std::mem::take(&mut self.next);
    }

    /// Drops all commands, because the server shuts down.
    pub(crate) fn abandon(&mut self) {
        *self = WaitingCommands::default();
    }

    /// Sends the result of the reload. `reason` is that of a refusal.
    pub(crate) fn finish(&mut self, outcome: ReloadOutcome, generation: u64, reason: &str) {
        match outcome {
            ReloadOutcome::Refused => self.fail(reason),
            taken => {
                let report = json!({ "generation": generation, "in_place": taken == ReloadOutcome::InPlace });
                send_to(self.current.drain(..), &report);
            }
        }
    }

    /// Sends the reason of the failure to the commands of the reload or upgrade in flight.
    pub(crate) fn fail(&mut self, reason: &str) {
        send_to(self.current.drain(..), &failure(reason));
    }

    /// Sends the reason to the commands whose reload or upgrade does not begin.
    pub(crate) fn refuse(&mut self, reason: &str) {
        send_to(self.next.drain(..), &failure(reason));
    }
}

/// Returns the result of a failure, with a reason that fits.
fn failure(reason: &str) -> Value {
    let length = (0..=REASON_MAX.min(reason.len())).rev().find(|&at| reason.is_char_boundary(at));
    json!({ "reason": reason[..length.unwrap_or(0)] })
}

/// Sends a result to commands.
fn send_to(commands: impl Iterator<Item = OwnedFd>, report: &Value) {
    let packet = report.to_string();
    for socket in commands {
        // The command may have exited. An empty socket has room for one packet.
        let _ = send(&socket, packet.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The address of a command depends on the pid, so only one test of this process listens at a time.
    static LISTENS: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// The test is both sides, because the address depends on the pid.
    #[test]
    fn a_waiting_command_gets_the_result_of_its_reload() {
        let _only = LISTENS.lock();
        let (own, me) = (std::process::id(), rustix::process::getpid());
        let mut listener = ReportListener::open().expect("the address is free");
        let soon = || Instant::now() + Duration::from_secs(20);
        let mut waiting = WaitingCommands::default();
        assert!(!listener.wait_for_master(me, None, Instant::now()));
        waiting.add(own);
        assert!(listener.wait_for_master(me, None, soon()));
        waiting.begin();
        waiting.finish(ReloadOutcome::InPlace, 7, "");
        let expected = ReloadReport::InForce { generation: 7, is_in_place: true };
        assert_eq!(listener.wait(me, None, soon()), expected);
        // The second request belongs to the next reload.
        waiting.add(own);
        waiting.finish(ReloadOutcome::InPlace, 8, "");
        assert_eq!(listener.wait(me, None, Instant::now()), ReloadReport::Late);
        waiting.begin();
        waiting.finish(ReloadOutcome::Refused, 8, &"ä".repeat(4000));
        let ReloadReport::Refused(reason) = listener.wait(me, None, soon()) else { panic!("a refusal") };
        assert_eq!(reason.len(), REASON_MAX);
        waiting.add(own);
        waiting.abandon();
        assert_eq!(listener.wait(me, None, soon()), ReloadReport::Abandoned);
        // A foreign process is no master.
        waiting.add(own);
        let other = Pid::from_raw(1).expect("init");
        assert_eq!(listener.wait(other, None, Instant::now() + Duration::from_millis(1)), ReloadReport::Late);
    }

    #[test]
    fn a_waiting_command_gets_the_failure_of_its_upgrade() {
        let _only = LISTENS.lock();
        let (own, me) = (std::process::id(), rustix::process::getpid());
        let mut listener = ReportListener::open().expect("the address is free");
        let mut waiting = WaitingCommands::default();
        waiting.add(own);
        waiting.begin();
        // The upgrade of the first command is in flight when the second command is refused.
        assert!(matches!(listener.receive(me, None, Instant::now()), ReportStep::Late));
        waiting.refuse("not for it");
        waiting.fail("exited");
        let soon = Instant::now() + Duration::from_secs(20);
        let ReportStep::Packet(packet) = listener.receive(me, None, soon) else { panic!("a failure") };
        assert_eq!(upgrade_failure(&packet), "exited");
    }
}
