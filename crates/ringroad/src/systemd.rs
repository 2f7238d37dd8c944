//! Messages to systemd, by the protocol of sd_notify(3): datagrams to the socket that `NOTIFY_SOCKET` names.
//!
//! ```text
//! starting --READY=1--> ready --RELOADING=1--> reloading --READY=1--> ready --STOPPING=1--> exit
//!                         +-- WATCHDOG=1, while the worker responds
//! ```
//! systemd accepts messages only from the main process (`NotifyAccess=main`). So a new binary sends nothing while the
//! previous master runs, and that master sends `MAINPID=` when it exits. Without the variable nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::log::{Level, Log};

/// Variable with the socket address: a path, or an abstract name after `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Variable with the watchdog timeout in microseconds.
const WATCHDOG_TIME: &str = "WATCHDOG_USEC";

/// Variable with the ID of the process that must send watchdog messages. Without this variable, every process with the
/// other variables may send them.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Maximum time to wait for systemd when a message is sent, because the master must handle signals.
const SEND_TIME: Duration = Duration::from_secs(1);

/// The master's side of the protocol.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    /// `None` without a service manager.
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Watchdog timeout: systemd kills the service if it receives no message for this time.
    watchdog: Option<Duration>,
    /// Time of the next watchdog message.
    ping_at: Option<Instant>,
    state: State,
}

/// The last message to systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No message yet, or no more messages.
    #[default]
    Silent,
    Ready,
    Reloading,
}

impl Notifier {
    /// Reads the variables. An invalid address is reported, because systemd would wait for messages until its timeout.
    pub(crate) fn from_environment(is_new_binary: bool, log: &Log) -> Notifier {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
            return Notifier::default();
        };
        let socket = address(name.as_bytes()).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_TIME))?;
            Ok((socket, address))
        });
        match socket {
            Ok(socket) => {
                let text = |name: &str| std::env::var(name).unwrap_or_default();
                // After a binary upgrade, the variable still contains the id of the previous master.
                let pid = if is_new_binary { String::new() } else { text(WATCHDOG_PID) };
                let watchdog = watchdog_time(&text(WATCHDOG_TIME), &pid, std::process::id());
                Notifier { socket: Some(socket), watchdog, ping_at: None, state: State::Silent }
            }
            Err(error) => {
                let name = name.to_string_lossy();
                log.write(
                    Level::Warn,
                    format_args!("{SOCKET} \"{name}\" cannot be used ({error}), systemd is not notified"),
                );
                Notifier::default()
            }
        }
    }

    /// Whether a service manager follows the main process.
    pub(crate) fn is_supervised(&self) -> bool {
        self.socket.is_some()
    }

    /// Reports that the server is ready. Also called after each reload, whether it succeeded or not.
    pub(crate) fn ready(&mut self, status: &str) {
        let pid = std::process::id();
        self.send(&format!("READY=1\nMAINPID={pid}\nSTATUS={status}"));
        self.state = State::Ready;
        self.ping_at = self.watchdog.map(|_| Instant::now());
    }

    /// Reports the begin of a reload. systemd compares the time with that of its request.
    pub(crate) fn reloading(&mut self) {
        if self.state == State::Ready {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading the configuration"));
            self.state = State::Reloading;
        }
    }

    /// Whether the begin of a reload was reported, and its end was not yet.
    pub(crate) fn is_reloading(&self) -> bool {
        self.state == State::Reloading
    }

    /// Reports the begin of the shutdown. Watchdog messages continue until its end.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=shutting down");
    }

    /// Reports that another process is the main process. That process sends the messages from now on.
    pub(crate) fn hand_over(&mut self, pid: u32) {
        self.send(&format!("MAINPID={pid}"));
        *self = Notifier::default();
    }

    /// Returns the time of the next watchdog message.
    pub(crate) fn ping_at(&self) -> Option<Instant> {
        self.ping_at
    }

    /// Whether a watchdog message is due; the next one is due after half of the watchdog timeout.
    pub(crate) fn take_ping(&mut self, now: Instant) -> bool {
        let due = self.ping_at.is_some_and(|at| at <= now);
        if due {
            self.ping_at = self.watchdog.map(|time| now + time / 2);
        }
        due
    }

    /// Sends a watchdog message.
    pub(crate) fn ping(&self) {
        self.send("WATCHDOG=1");
    }

    /// Sends a message. A failure cannot be reported; systemd notices the missing message.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// Parses `/run/systemd/notify`, or `@name` in the abstract namespace, unix(7).
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    match name.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        Some((b'/', _)) => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        _ => Err(std::io::Error::other("neither a path nor an abstract name")),
    }
}

/// Returns the watchdog timeout, if it applies to this process.
fn watchdog_time(time: &str, pid: &str, own: u32) -> Option<Duration> {
    let micros: u64 = time.parse().ok().filter(|micros| *micros > 0)?;
    let is_meant = pid.is_empty() || pid.parse() == Ok(own);
    is_meant.then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_addresses_are_paths_and_abstract_names() {
        let path = address(b"/run/notify").expect("a path");
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/notify")));
        let name = address(b"@a/b").expect("a name");
        assert_eq!(name.as_abstract_name(), Some(b"a/b".as_slice()));
        for wrong in [b"vsock:2:1".as_slice(), b"relative", &[b'/'; 200], &[b'@'; 200]] {
            assert!(address(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_watchdog_is_for_one_process() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog_time("1000000", "42", 42), second);
        assert_eq!(watchdog_time("1000000", "", 42), second);
        for (time, pid) in [("1000000", "43"), ("0", "42"), ("", ""), ("-1", ""), ("1000000", "x")] {
            assert_eq!(watchdog_time(time, pid, 42), None, "{time} {pid}");
        }
    }
}
