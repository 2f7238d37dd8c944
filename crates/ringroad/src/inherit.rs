//! Listening sockets inherited from another process: the master of nginx or Ringroad during a binary upgrade, or
//! systemd.
//!
//! | variable | who sets it | content |
//! |---|---|---|
//! | `NGINX` | a master that upgrades its binary | descriptor numbers, `6;7;` |
//! | `RINGROAD_KEPT_SOCKETS` | the same, if it is Ringroad | the numbers in `NGINX` of sockets that systemd opened |
//! | `RINGROAD_PREDECESSOR` | the same, if it is Ringroad | its process ID |
//! | `RINGROAD_QUIC_BANK` | the same, if it is Ringroad | the bank of the sockets of QUIC that its worker uses |
//! | `LISTEN_FDS`, `LISTEN_PID` | systemd, sd_listen_fds(3) | the number of descriptors from 3 on, and the process that they are for |
//!
//! [`take`] converts the inherited sockets to [`Listeners`]. Listeners of the configuration then use the inherited
//! sockets with the same address. They set the options of the configuration, and reset `deferred` and `fastopen` if the
//! configuration does not have them.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::LazyLock;

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{SocketType, sockopt};

use crate::listen::{ListenAddr, ListenSpec, Listener, Listeners, errno_text};
use crate::log::{Level, Log};

/// nginx's variable with the inherited sockets.
const SOCKETS: &str = "NGINX";

/// Variable with the numbers of the inherited sockets that systemd opened.
const SYSTEMD_SOCKETS: &str = "RINGROAD_KEPT_SOCKETS";

/// Variable with the bank of the sockets of QUIC that the worker of the old master uses.
const QUIC_BANK: &str = "RINGROAD_QUIC_BANK";

/// Variable with the process ID of the master that executed this process.
const PREDECESSOR: &str = "RINGROAD_PREDECESSOR";

/// The parent at the start of the process.
static PARENT: LazyLock<u32> = LazyLock::new(parent_id);

/// Variables of systemd. They are meant for one process, so a new binary does not get them.
const LISTEN_FDS: &str = "LISTEN_FDS";
const LISTEN_PID: &str = "LISTEN_PID";
const LISTEN_NAMES: &str = "LISTEN_FDNAMES";

/// The first descriptor that systemd passes, sd_listen_fds(3).
const FIRST: RawFd = 3;

/// Maximum number of inherited sockets: the default limit of descriptors of a process.
const SOCKETS_MAX: usize = 1024;

/// Sockets that were open when this process started.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// One listener per address. The options of the sockets are not known.
    pub(crate) listeners: Listeners,
    /// The first descriptor of each listener, for messages.
    numbers: Vec<RawFd>,
}

/// Whether this process is the new binary of a running master.
pub(crate) fn is_new_binary() -> bool {
    std::env::var_os(SOCKETS).is_some()
}

/// Stores the process ID of the parent. As in nginx this is the first step of the program: if the parent exits, the
/// process gets another parent.
pub(crate) fn note_parent() {
    LazyLock::force(&PARENT);
}

/// Returns the process ID of the master that executed this process. An nginx master does not pass its process ID, so
/// the parent at the start is used.
pub(crate) fn predecessor() -> u32 {
    std::env::var(PREDECESSOR).ok().and_then(|pid| pid.parse().ok()).unwrap_or(*PARENT)
}

/// Returns the bank of the sockets of QUIC that the worker of the old master uses.
pub(crate) fn bank() -> u8 {
    std::env::var(QUIC_BANK).ok().and_then(|bank| bank.parse().ok()).filter(|bank| *bank <= 1).unwrap_or(0)
}

/// Takes over the sockets. A descriptor that is not a listening socket is reported and ignored. `is_daemon`: this
/// process was started by the process to which systemd passed the sockets.
pub(crate) fn take(is_daemon: bool, log: &Log) -> Inherited {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let (numbers, kept) = if is_new_binary() {
        let kept = parse(&text(SYSTEMD_SOCKETS)).unwrap_or_else(|(numbers, _)| numbers);
        let numbers = parse(&text(SOCKETS)).unwrap_or_else(|(numbers, wrong)| {
            log.emerg(format_args!(
                "invalid socket number \"{wrong}\" in {SOCKETS} environment variable, ignoring the rest of the variable"
            ));
            numbers
        });
        log.notice(format_args!("using inherited sockets from \"{}\"", text(SOCKETS)));
        (numbers, kept)
    } else {
        let own = if is_daemon { parent_id() } else { std::process::id() };
        let numbers = from_system(&text(LISTEN_PID), &text(LISTEN_FDS), own);
        (numbers.clone(), numbers)
    };
    let mut inherited = Inherited::default();
    if numbers.is_empty() {
        return inherited;
    }
    for (number, adopted) in ::io::sys::adopt_listeners(&numbers) {
        let added = adopted.and_then(|socket| inherited.add(number, socket, kept.contains(&number)));
        if let Err(errno) = added {
            let reason = errno_text(errno);
            log.alert(format_args!("the inherited socket #{number} cannot be used ({reason}), ignored"));
        }
    }
    inherited
}

impl Inherited {
    /// Adds a socket to the listener of its address.
    fn add(&mut self, number: RawFd, socket: OwnedFd, is_from_systemd: bool) -> Result<(), Errno> {
        let address = address_of(&socket)?;
        // Close-on-exec: a worker gets its sockets through its channel, and must not inherit them a second time.
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        // systemd's sockets are blocking.
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
        let listeners = &mut self.listeners.0;
        match listeners.iter_mut().find(|listener| listener.actual == address) {
            Some(listener) => listener.sockets.push(Rc::new(socket)),
            None => {
                let (spec, sockets) = (unknown_options(&address), vec![Rc::new(socket)]);
                listeners.push(Listener { spec, sockets, actual: address, is_from_systemd });
                self.numbers.push(number);
            }
        }
        Ok(())
    }

    /// Reports sockets that the configuration does not use. They are closed when `self` is dropped.
    pub(crate) fn close_unused(self, used: &Listeners, log: &Log) {
        for (listener, number) in self.listeners.0.iter().zip(&self.numbers) {
            let address = &listener.actual;
            let taken = used.find(address).map_or(0, |used| used.sockets.len());
            let left = listener.sockets.len().saturating_sub(taken);
            if left == 0 {
                continue;
            }
            let remedy = match (listener.is_from_systemd, taken) {
                // The configuration of the new binary is different, which is not an error.
                (false, 0) => {
                    log.notice(format_args!(
                        "closing the inherited socket of {address}, which is not listened on"
                    ));
                    continue;
                }
                (true, 0) => {
                    format!("add \"{}\" or remove the socket from the socket unit", address.directive())
                }
                _ => "connections in their accept queues are lost; set worker_processes to the number of sockets".to_owned(),
            };
            log.write(
                Level::Warn,
                format_args!("{left} of the inherited sockets of {address} (from #{number}) are used by no \"listen\" directive, closing: {remedy}"),
            );
        }
    }
}

/// Passes the sockets to a new binary, with the bank of the sockets of QUIC in use. [`close_on_exec`] must be called after it has started.
pub(crate) fn pass_sockets(command: &mut Command, listeners: &Listeners, bank: u8) -> Result<(), Errno> {
    let (mut all, mut kept) = (String::new(), String::new());
    for listener in &listeners.0 {
        for socket in &listener.sockets {
            rustix::io::fcntl_setfd(&**socket, FdFlags::empty())?;
            // Writing to a `String` cannot fail.
            let _ = write!(all, "{};", socket.as_raw_fd());
            if listener.is_from_systemd {
                let _ = write!(kept, "{};", socket.as_raw_fd());
            }
        }
    }
    command.env(SOCKETS, all).env(SYSTEMD_SOCKETS, kept).env(PREDECESSOR, std::process::id().to_string());
    command.env(QUIC_BANK, bank.to_string());
    for name in [LISTEN_FDS, LISTEN_PID, LISTEN_NAMES] {
        command.env_remove(name);
    }
    Ok(())
}

/// Sets close-on-exec, so that programs started later do not inherit the sockets.
pub(crate) fn close_on_exec(listeners: &Listeners) {
    for socket in listeners.0.iter().flat_map(|listener| &listener.sockets) {
        // Fails only for a descriptor that is not open.
        let _ = rustix::io::fcntl_setfd(&**socket, FdFlags::CLOEXEC);
    }
}

/// Parses `6;7;` or `6:7:`. The error for an invalid number includes the numbers before it, which nginx uses too.
fn parse(text: &str) -> Result<Vec<RawFd>, (Vec<RawFd>, String)> {
    let mut numbers = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find([';', ':']) {
        let number = rest[..end].parse().ok().filter(|number| *number >= 0);
        match number {
            Some(number) if numbers.len() < SOCKETS_MAX => numbers.push(number),
            _ => return Err((numbers, rest.to_owned())),
        }
        rest = &rest[end + 1..];
    }
    if rest.is_empty() { Ok(numbers) } else { Err((numbers, rest.to_owned())) }
}

/// Returns the descriptors that systemd passes, if they are for this process.
fn from_system(pid: &str, count: &str, own: u32) -> Vec<RawFd> {
    match (pid.parse::<u32>(), count.parse::<RawFd>()) {
        (Ok(pid), Ok(count)) if pid == own && count > 0 => {
            (FIRST..FIRST.saturating_add(count)).take(SOCKETS_MAX).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the address of a listening socket. A UDP socket that never fragments datagrams is one of QUIC. Other types and address
/// families are errors.
fn address_of(socket: &OwnedFd) -> Result<ListenAddr, Errno> {
    let kind = sockopt::socket_type(socket)?;
    let name = rustix::net::getsockname(socket)?;
    match (kind, SocketAddr::try_from(name.clone())) {
        (SocketType::STREAM, Ok(address)) => return Ok(ListenAddr::Tcp(address)),
        (SocketType::STREAM, Err(_)) => {}
        (SocketType::DGRAM, Ok(address)) if address.port() > 0 => {
            let is_quic = ::io::sys::sends_whole_datagrams(socket.as_fd());
            return Ok(if is_quic { ListenAddr::Quic(address) } else { ListenAddr::Udp(address) });
        }
        _ => return Err(Errno::PROTOTYPE),
    }
    let name = rustix::net::SocketAddrUnix::try_from(name).map_err(|_| Errno::AFNOSUPPORT)?;
    let path = name.path_bytes().ok_or(Errno::AFNOSUPPORT)?;
    Ok(ListenAddr::Unix(Path::new(std::ffi::OsStr::from_bytes(path)).to_owned()))
}

/// Returns options that stand for an unknown state of a socket, so that `deferred` and `fastopen` are reset if
/// necessary.
fn unknown_options(address: &ListenAddr) -> ListenSpec {
    let is_tcp = matches!(address, ListenAddr::Tcp(_));
    let fastopen = is_tcp.then_some(0);
    ListenSpec { deferred: is_tcp, fastopen, ..ListenSpec::of(address.clone(), "", None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_descriptor_numbers_are_parsed_as_in_nginx() {
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("6;7;"), Ok(vec![6, 7]));
        assert_eq!(parse("6:12;"), Ok(vec![6, 12]));
        assert_eq!(parse("6;x;8;"), Err((vec![6], "x;8;".to_owned())));
        assert_eq!(parse("6;7"), Err((vec![6], "7".to_owned())));
        assert_eq!(parse("-6;"), Err((vec![], "-6;".to_owned())));
        assert_eq!(parse(";"), Err((vec![], ";".to_owned())));
        let many = "9;".repeat(SOCKETS_MAX + 1);
        assert_eq!(parse(&many), Err((vec![9; SOCKETS_MAX], "9;".to_owned())));
    }

    #[test]
    fn sockets_from_systemd_are_for_one_process() {
        assert_eq!(from_system("42", "2", 42), [3, 4]);
        for (pid, count) in [("43", "2"), ("", ""), ("42", "-1"), ("42", "0"), ("42", "x")] {
            assert!(from_system(pid, count, 42).is_empty(), "{pid} {count}");
        }
        assert_eq!(from_system("42", "2147483647", 42).len(), SOCKETS_MAX);
    }
}
