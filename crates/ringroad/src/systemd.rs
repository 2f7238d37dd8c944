//! The messages to systemd, by the protocol of sd_notify(3): a datagram to the socket that `NOTIFY_SOCKET` names.
//!
//! ```text
//! starting --READY=1--> ready --RELOADING=1--> reloading --READY=1--> ready --STOPPING=1--> the end
//!                         +-- WATCHDOG=1, while the worker answers
//! ```
//! systemd believes the main process alone (`NotifyAccess=main`). So a new binary is silent while the master before it
//! lives, and that one sends `MAINPID=` when it leaves. Where the variable is missing nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use crate::log::{Level, Log};

/// Where messages go: a path, or a name of the abstract namespace after `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// How often a sign of life is expected, in microseconds.
const WATCHDOG_TIME: &str = "WATCHDOG_USEC";

/// The process that gives it; all that get the variables, if it is missing.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// How long a message may take. systemd may be busy, and the master has signals to obey.
const SEND_TIME: Duration = Duration::from_secs(1);

/// The master's side of the protocol.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    /// `None`: no service manager.
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// After which time without a sign of life systemd ends the service.
    watchdog: Option<Duration>,
    /// When the next sign of life is due.
    ping_at: Option<Instant>,
    state: State,
}

/// The last message to systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing yet, or nothing any more.
    #[default]
    Silent,
    Ready,
    Reloading,
}

impl Notifier {
    /// Reads the variables. An unusable address is reported: systemd would wait in vain.
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
                // After a change of the binary it names the master before.
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

    /// The server serves; also after a reload, with or without success.
    pub(crate) fn ready(&mut self, status: &str) {
        let pid = std::process::id();
        self.send(&format!("READY=1\nMAINPID={pid}\nSTATUS={status}"));
        self.state = State::Ready;
        self.ping_at = self.watchdog.map(|_| Instant::now());
    }

    /// A reload begins. systemd compares the time with that of its request.
    pub(crate) fn reloading(&mut self) {
        if self.state == State::Ready {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading the configuration"));
            self.state = State::Reloading;
        }
    }

    /// Whether a reload was announced and its end was not.
    pub(crate) fn is_reloading(&self) -> bool {
        self.state == State::Reloading
    }

    /// The end has begun. Watchdog messages continue until it is there.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=shutting down");
    }

    /// Another process is the main one from now on, and does that work.
    pub(crate) fn hand_over(&mut self, pid: u32) {
        self.send(&format!("MAINPID={pid}"));
        *self = Notifier::default();
    }

    /// When a sign of life is to be given.
    pub(crate) fn ping_at(&self) -> Option<Instant> {
        self.ping_at
    }

    /// Whether a sign of life is due; the next one is due after half of the time that systemd waits.
    pub(crate) fn take_ping(&mut self, now: Instant) -> bool {
        let due = self.ping_at.is_some_and(|at| at <= now);
        if due {
            self.ping_at = self.watchdog.map(|time| now + time / 2);
        }
        due
    }

    /// A sign of life.
    pub(crate) fn ping(&self) {
        self.send("WATCHDOG=1");
    }

    /// A lost message cannot be reported: systemd notices its absence.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// `/run/systemd/notify`, or `@name` in the abstract namespace, unix(7).
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    match name.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        Some((b'/', _)) => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        _ => Err(std::io::Error::other("neither a path nor an abstract name")),
    }
}

/// The time that systemd waits, if it waits for this process.
fn watchdog_time(time: &str, pid: &str, own: u32) -> Option<Duration> {
    let micros: u64 = time.parse().ok().filter(|micros| *micros > 0)?;
    let is_meant = pid.is_empty() || pid.parse() == Ok(own);
    is_meant.then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_paths_and_abstract_names() {
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
