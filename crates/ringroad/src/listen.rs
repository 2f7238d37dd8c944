//! Listening sockets: opened by the master, retained over reloads, and passed to the worker.
//!
//! [`Listeners::open`] creates the sockets of a configuration. It takes over the sockets of the previous configuration
//! with the same address, so that no queued connection is lost. The worker accepts the connections.
//!
//! | at a reload | effect on the socket |
//! |---|---|
//! | the address is unchanged | the socket stays open, and the options of the new configuration are set |
//! | the address is new | it is opened; if that fails, the old configuration stays in effect |
//! | the address is removed | the master closes it, the old worker stops accepting |
//! | the first configuration, with sockets of another process | as at a reload, see `inherit` |
//! | `reuseport` or the number of threads changes | sockets are added or closed, the first ones stay |
//!
//! An address of QUIC has two banks of UDP sockets, with a socket for each thread: a worker process uses one, and its successor the
//! other one until the first has finished its connections. A program in the kernel selects the socket of each packet ([`steer`]).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ::io::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, sockopt};
pub(crate) use site::settings::listen::{ListenAddr, ListenSpec, SoKeepalive};

use crate::log::{Level, Log, place_of};
use crate::owned_links;

/// Number of bind attempts for an address in use, and the pause between them: as in nginx, to survive a restart in
/// which the old server has not yet closed its sockets.
const BIND_TRIES: u32 = 5;
const BIND_PAUSE: Duration = Duration::from_millis(500);

/// Time in seconds after which a deferred connection is accepted without data, as in nginx. The kernel rounds the time
/// up to a time of its SYN-ACK retransmissions.
const DEFER_SECONDS: u32 = 1;

/// The sockets of one address.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) spec: ListenSpec,
    /// One socket, or one per thread. Sockets that the previous configuration had too are shared with it.
    pub(crate) sockets: Vec<Rc<OwnedFd>>,
    /// The address with the port that the kernel selected.
    pub(crate) actual: ListenAddr,
    /// Whether systemd opened the sockets. It uses them again after this server has exited, so the file of a unix
    /// socket is not removed.
    pub(crate) is_from_systemd: bool,
}

impl Listener {
    /// Returns the sockets for a worker process: those of one bank if the address has two.
    pub(crate) fn bank(&self, bank: u8) -> &[Rc<OwnedFd>] {
        if !self.spec.addr.is_quic() {
            return &self.sockets;
        }
        let (first, second) = self.sockets.split_at(self.sockets.len() / 2);
        if bank == 0 { first } else { second }
    }
}

/// All sockets of a configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(pub(crate) Vec<Listener>);

/// At least one socket could not be opened; the log has the reasons.
#[derive(Debug)]
pub(crate) struct NotListening;

/// Why a socket could not be opened.
#[derive(Debug)]
struct Refusal {
    /// The failed system call, for the message.
    call: &'static str,
    /// The error; EADDRINUSE is retried.
    errno: Errno,
}

impl Listeners {
    /// Opens new sockets and takes over existing ones.
    pub(crate) fn open(
        wanted: &[ListenSpec],
        threads: u32,
        old: Option<&Listeners>,
        log: &Log,
    ) -> Result<Listeners, NotListening> {
        let mut opened = Listeners::default();
        let mut missing: Vec<&ListenSpec> = wanted.iter().collect();
        for attempt in 1..=BIND_TRIES {
            let mut busy = Vec::new();
            for spec in missing {
                match open_one(spec, threads, old, log) {
                    Ok(listener) => opened.0.push(listener),
                    Err(refusal) => {
                        log.emerg(refusal.text(spec));
                        if refusal.errno != Errno::ADDRINUSE {
                            opened.forget(old);
                            return Err(NotListening);
                        }
                        busy.push(spec);
                    }
                }
            }
            if busy.is_empty() {
                return Ok(opened.in_order_of(wanted));
            }
            missing = busy;
            if attempt < BIND_TRIES {
                log.write(
                    Level::Notice,
                    format_args!("try again to bind() after {}ms", BIND_PAUSE.as_millis()),
                );
                pause(BIND_PAUSE);
            }
        }
        log.emerg(
            "still could not bind(); another program uses the address, or this server runs already: \"ss -ltnp\" shows the process",
        );
        opened.forget(old);
        Err(NotListening)
    }

    /// Lets sockets accept connections again that were shut down, shutdown(2): their state is shared by all processes. If this
    /// fails, the sockets are unchanged.
    pub(crate) fn restore(&mut self, threads: u32, log: &Log) {
        let specs: Vec<ListenSpec> = self.0.iter().map(|listener| listener.spec.clone()).collect();
        if let Ok(opened) = Listeners::open(&specs, threads, Some(self), log) {
            *self = opened;
        }
    }

    /// For `-t`: checks whether the sockets could be opened. An address in use is not an error. All sockets are closed
    /// again. `reuseport` is not set: the kernel would assign connections of the running server to the new socket, and
    /// reset them when it is closed.
    pub(crate) fn try_open(wanted: &[ListenSpec], log: &Log) -> Result<(), NotListening> {
        let mut result = Ok(());
        for spec in wanted {
            match open_one(&ListenSpec { reuseport: false, ..spec.clone() }, 1, None, log) {
                Ok(listener) => Listeners(vec![listener]).forget(None),
                Err(refusal) if refusal.errno == Errno::ADDRINUSE => {}
                Err(refusal) => {
                    log.emerg(refusal.text(spec));
                    result = Err(NotListening);
                }
            }
        }
        result
    }

    /// Makes new connections of QUIC go to a bank. An error is logged: then the kernel continues to use the other bank.
    pub(crate) fn steer(&self, bank: u8, log: &Log) {
        for listener in self.0.iter().filter(|listener| listener.spec.addr.is_quic()) {
            if let Err(refusal) = steer(&listener.sockets, bank) {
                log.alert(refusal.text(&listener.spec));
            }
        }
    }

    /// Returns the sockets of an address.
    pub(crate) fn find(&self, address: &ListenAddr) -> Option<&Listener> {
        self.0.iter().find(|listener| listener.spec.addr == *address)
    }

    /// Removes the files of unix sockets that `kept` does not use. A socket is closed when its last owner is dropped.
    pub(crate) fn forget(&self, kept: Option<&Listeners>) {
        for listener in &self.0 {
            let address = &listener.spec.addr;
            let in_use = kept.is_some_and(|kept| kept.find(address).is_some());
            if let (ListenAddr::Unix(path), false) = (address, in_use || listener.is_from_systemd) {
                // The file may have been removed already, which is not an error.
                let _ = owned_links::remove(path);
            }
        }
    }

    /// Sorts the listeners in the order of the configuration. The order differs if an address was bound only by a
    /// retry.
    fn in_order_of(mut self, wanted: &[ListenSpec]) -> Listeners {
        self.0.sort_by_key(|listener| wanted.iter().position(|spec| *spec == listener.spec));
        self
    }
}

impl Refusal {
    fn text(&self, spec: &ListenSpec) -> String {
        let (address, place) = (&spec.addr, place_of(spec.position.as_ref()));
        let (reason, remedy) = (errno_text(self.errno), bind_remedy(self.errno));
        format!("{}() to {address} failed ({reason}){place}{remedy}", self.call)
    }
}

/// Returns a hint for a bind error, for display after the reason.
pub(crate) fn bind_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "; ports below 1024 need root: start as root, or choose a higher port",
        Errno::LOOP => owned_links::remedy(errno),
        Errno::ADDRNOTAVAIL => "; no interface of this machine has the address: \"ip address\" lists them",
        _ => "",
    }
}

/// Formats an error as in nginx's log: `98: Address already in use`.
pub(crate) fn errno_text(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let reason = text.split(" (os error").next().unwrap_or_default();
    format!("{}: {reason}", errno.raw_os_error())
}

/// Formats an error of the standard library in the same way.
pub(crate) fn error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => errno_text(Errno::from_raw_os_error(code)),
        None => error.to_string(),
    }
}

/// Returns the sockets of one address: existing sockets, and new ones if more are needed.
fn open_one(
    spec: &ListenSpec,
    threads: u32,
    old: Option<&Listeners>,
    log: &Log,
) -> Result<Listener, Refusal> {
    let count = spec.sockets(threads);
    let inherited = old.and_then(|old| old.find(&spec.addr));
    let mut sockets: Vec<Rc<OwnedFd>> = inherited.map_or_else(Vec::new, |old| old.sockets.clone());
    sockets.truncate(count);
    // A TCP socket listens again, a unix socket cannot.
    sockets.retain(|socket| !matches!(spec.addr, ListenAddr::Unix(_)) || !is_shut_down(socket));
    for socket in &sockets {
        if let Some(old) = inherited {
            unset(socket, &old.spec, spec);
        }
        configure(socket, spec, log);
        if let ListenAddr::Quic(address) = &spec.addr {
            // The socket may be one of nginx.
            sys::prepare_datagrams(socket.as_fd(), address.is_ipv6())
                .map_err(|errno| Refusal { call: "setsockopt", errno })?;
        } else if let ListenAddr::Udp(address) = &spec.addr {
            sys::prepare_fragmented_datagrams(socket.as_fd(), address.is_ipv6())
                .map_err(|errno| Refusal { call: "setsockopt", errno })?;
        } else {
            // Also changes the backlog of a socket that is already listening.
            rustix::net::listen(socket, backlog(spec)).map_err(|errno| Refusal { call: "listen", errno })?;
        }
    }
    // With port 0 the second socket must use the port of the first.
    let mut actual = inherited.map(|old| old.actual.clone());
    while sockets.len() < count {
        let address = actual.as_ref().unwrap_or(&spec.addr);
        let socket = open_socket(address, spec, log)?;
        if actual.is_none() {
            actual = Some(actual_address(&socket, &spec.addr)?);
        }
        sockets.push(Rc::new(socket));
    }
    let actual = actual.unwrap_or_else(|| spec.addr.clone());
    if spec.addr.is_quic() && inherited.is_none_or(|old| old.sockets.len() != count) {
        steer(&sockets, 0)?;
    }
    let is_from_systemd = inherited.is_some_and(|old| old.is_from_systemd);
    Ok(Listener { spec: spec.clone(), sockets, actual, is_from_systemd })
}

/// Makes the kernel pass each QUIC packet to the socket of its connection, and those of new connections to the `bank` (0 or 1).
fn steer(sockets: &[Rc<OwnedFd>], bank: u8) -> Result<(), Refusal> {
    let Some(first) = sockets.first() else { return Ok(()) };
    let threads = u16::try_from(sockets.len() / 2).unwrap_or(u16::MAX);
    let attached = sys::steer_datagrams(first.as_fd(), threads, bank);
    attached.map_err(|errno| Refusal { call: "setsockopt(SO_ATTACH_REUSEPORT_CBPF)", errno })
}

/// Opens a listening socket. SO_REUSEADDR lets a restart bind while old connections are in TIME_WAIT, socket(7).
fn open_socket(address: &ListenAddr, spec: &ListenSpec, log: &Log) -> Result<OwnedFd, Refusal> {
    let family = match address {
        ListenAddr::Unix(_) => AddressFamily::UNIX,
        ListenAddr::Tcp(inet) | ListenAddr::Quic(inet) | ListenAddr::Udp(inet) => match inet {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        },
    };
    let is_quic = address.is_quic();
    let is_udp = matches!(address, ListenAddr::Udp(_));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = if is_quic || is_udp { SocketType::DGRAM } else { SocketType::STREAM };
    let socket = rustix::net::socket_with(family, kind, flags, None);
    let socket = socket.map_err(|errno| Refusal { call: "socket", errno })?;
    let set = |outcome: Result<(), Errno>| outcome.map_err(|errno| Refusal { call: "setsockopt", errno });
    if is_quic {
        // Without SO_REUSEADDR, with which another process could bind the port too.
        set(sys::prepare_datagrams(socket.as_fd(), family == AddressFamily::INET6).map(drop))?;
    } else if is_udp {
        set(sys::prepare_fragmented_datagrams(socket.as_fd(), family == AddressFamily::INET6))?;
    } else {
        set(sockopt::set_socket_reuseaddr(&socket, true))?;
    }
    if spec.reuseport || is_quic {
        set(sockopt::set_socket_reuseport(&socket, true))?;
    }
    if family == AddressFamily::INET6 {
        set(sockopt::set_ipv6_v6only(&socket, spec.ipv6only))?;
    }
    configure(&socket, spec, log);
    match address {
        ListenAddr::Tcp(inet) | ListenAddr::Quic(inet) | ListenAddr::Udp(inet) => {
            bind(&socket, inet).map_err(|errno| Refusal { call: "bind", errno })?;
        }
        ListenAddr::Unix(path) => bind_unix(&socket, path, log)?,
    }
    if is_quic || is_udp {
        return Ok(socket);
    }
    rustix::net::listen(&socket, backlog(spec)).map_err(|errno| Refusal { call: "listen", errno })?;
    Ok(socket)
}

/// Sets options that may also be changed on an existing socket. If an option fails, the socket is used without it.
fn configure(socket: &OwnedFd, spec: &ListenSpec, log: &Log) {
    let check = |what: &str, outcome: Result<(), Errno>| {
        if let Err(errno) = outcome {
            let address = &spec.addr;
            let reason = errno_text(errno);
            log.write(Level::Alert, format_args!("setsockopt({what}) {address} failed ({reason}), ignored"));
        }
    };
    // A size above the address space cannot be set, and is ignored.
    let size = |bytes: Option<u64>| bytes.and_then(|bytes| usize::try_from(bytes).ok());
    if let Some(bytes) = size(spec.rcvbuf) {
        check("SO_RCVBUF", sockopt::set_socket_recv_buffer_size(socket, bytes));
    }
    if let Some(bytes) = size(spec.sndbuf) {
        check("SO_SNDBUF", sockopt::set_socket_send_buffer_size(socket, bytes));
    }
    if spec.reuseport {
        check("SO_REUSEPORT", sockopt::set_socket_reuseport(socket, true));
    }
    if spec.deferred {
        check("TCP_DEFER_ACCEPT", sys::set_defer_accept(socket.as_fd(), DEFER_SECONDS));
    }
    if let Some(queue) = spec.fastopen {
        check("TCP_FASTOPEN", sys::set_fastopen(socket.as_fd(), queue));
    }
    let seconds = |time: u32| Duration::from_secs(u64::from(time));
    match spec.so_keepalive {
        None => {}
        Some(SoKeepalive::Off) => check("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, false)),
        Some(SoKeepalive::On { idle, interval, count }) => {
            check("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, true));
            if let Some(idle) = idle {
                check("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(socket, seconds(idle)));
            }
            if let Some(interval) = interval {
                check("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(socket, seconds(interval)));
            }
            if let Some(count) = count {
                check("TCP_KEEPCNT", sockopt::set_tcp_keepcnt(socket, count));
            }
        }
    }
}

/// Whether a unix socket accepts no more connections.
fn is_shut_down(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::RDHUP)
}

/// Returns the length of the accept queue for listen(2).
fn backlog(spec: &ListenSpec) -> i32 {
    i32::try_from(spec.backlog).unwrap_or(i32::MAX)
}

/// Resets `deferred` and `fastopen` if the previous configuration has set them and the new one does not. As in nginx,
/// other options keep their values. This cannot fail, since the socket supports these options.
fn unset(socket: &OwnedFd, old: &ListenSpec, new: &ListenSpec) {
    if old.deferred && !new.deferred {
        let _ = sys::set_defer_accept(socket.as_fd(), 0);
    }
    if old.fastopen.is_some() && new.fastopen.is_none() {
        let _ = sys::set_fastopen(socket.as_fd(), 0);
    }
}

/// Binds to a path. An existing file is an error, unless it is the socket of a killed server, which is removed.
fn bind_unix(socket: &OwnedFd, path: &Path, log: &Log) -> Result<(), Refusal> {
    let refusal = |errno| Refusal { call: "bind", errno };
    let address = SocketAddrUnix::new(path).map_err(refusal)?;
    // Another user must not choose the directory by a symbolic link.
    owned_links::directory_of(path).map_err(refusal)?;
    // As in nginx: the permissions of the directory decide who may connect. The file gets the mode of the socket (unix(7)) without the
    // bits of the umask: a chmod of the path could follow a symbolic link that has replaced the file.
    rustix::fs::fchmod(socket, Mode::from_raw_mode(0o666))
        .map_err(|errno| Refusal { call: "fchmod", errno })?;
    let bind = || {
        let umask = rustix::process::umask(Mode::empty());
        let bound = bind(socket, &address);
        rustix::process::umask(umask);
        bound
    };
    match bind() {
        Err(Errno::ADDRINUSE) if is_stale(path) => {
            let shown = path.display();
            log.write(
                Level::Notice,
                format_args!("removing the socket unix:{shown}, no process listens on it"),
            );
            let _ = owned_links::remove(path);
            bind().map_err(refusal)
        }
        outcome => outcome.map_err(refusal),
    }
}

/// Whether a path is a socket left by a killed server. nginx would fail to start here.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

/// Returns the address with the port that the kernel selected.
fn actual_address(socket: &OwnedFd, wanted: &ListenAddr) -> Result<ListenAddr, Refusal> {
    if matches!(wanted, ListenAddr::Unix(_)) {
        return Ok(wanted.clone());
    }
    let name = rustix::net::getsockname(socket).map_err(|errno| Refusal { call: "getsockname", errno })?;
    let name = SocketAddr::try_from(name).map_err(|errno| Refusal { call: "getsockname", errno })?;
    Ok(match wanted {
        ListenAddr::Quic(_) => ListenAddr::Quic(name),
        ListenAddr::Udp(_) => ListenAddr::Udp(name),
        ListenAddr::Tcp(_) | ListenAddr::Unix(_) => ListenAddr::Tcp(name),
    })
}

/// Returns the address for a client on this machine: a wildcard address is replaced by the loopback address.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    match address {
        SocketAddr::V4(_) if address.ip().is_unspecified() => reachable.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(_) if address.ip().is_unspecified() => reachable.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    reachable
}

/// Sleeps. Signals that terminate the process are not blocked.
fn pause(time: Duration) {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // A wake-up before the timeout only makes the retry earlier.
    let _ = poll(&mut [], Some(&time));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;

    fn spec(deferred: bool) -> ListenSpec {
        let address = ListenAddr::parse("127.0.0.1:0").expect("an address");
        let fastopen = deferred.then_some(8);
        ListenSpec { backlog: 16, deferred, fastopen, ..ListenSpec::of(address, "", None) }
    }

    /// A worker that was taken over can shut down the sockets, whose state all processes share.
    #[test]
    fn sockets_that_a_worker_has_shut_down_listen_again() {
        let log = Log::echo_only();
        let free = Listeners::open(&[spec(false)], 1, None, &log).expect("a free port").0[0].actual.clone();
        let path = std::env::temp_dir().join(format!("ringroad-shut-down-{}", std::process::id()));
        let unix = ListenAddr::Unix(path.clone());
        let specs =
            [free, unix].map(|address| ListenSpec { backlog: 16, ..ListenSpec::of(address, "", None) });
        let mut listeners = Listeners::open(&specs, 1, None, &log).expect("free addresses");
        let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        let ListenAddr::Tcp(address) = specs[0].addr else { panic!("a port") };
        let connect = || (TcpStream::connect(address).is_ok(), UnixStream::connect(&path).is_ok());
        assert_eq!(connect(), (true, true));
        listeners.restore(1, &log);
        assert_eq!(connect(), (true, true));
        for listener in &listeners.0 {
            rustix::net::shutdown(&*listener.sockets[0], rustix::net::Shutdown::Both).expect("it listens");
        }
        assert_eq!(connect(), (false, false));
        listeners.restore(1, &log);
        assert_eq!(connect(), (true, true));
        listeners.forget(None);
        assert!(!path.exists());
    }

    /// The mode of a file of another user's choice must not change.
    #[test]
    fn a_link_of_another_user_is_not_followed_to_the_directory_of_a_socket() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let folder = std::env::temp_dir().join(format!("ringroad-socket-links-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("real")).expect("a directory");
        std::os::unix::fs::symlink("real", folder.join("there")).expect("a link");
        std::os::unix::fs::lchown(folder.join("there"), Some(65_533), None).expect("root");
        let spec = ListenSpec::of(ListenAddr::Unix(folder.join("there/a.sock")), "", None);
        assert!(Listeners::open(&[spec], 1, None, &Log::echo_only()).is_err());
        assert!(!folder.join("real/a.sock").exists());
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    #[test]
    fn a_test_of_the_configuration_takes_no_connection_of_a_running_server() {
        let log = Log::stderr(Level::Emerg);
        let shared = ListenSpec { reuseport: true, backlog: 512, ..spec(false) };
        let running = Listeners::open(std::slice::from_ref(&shared), 1, None, &log).expect("a free port");
        let actual = running.0[0].actual.clone();
        let ListenAddr::Tcp(address) = actual else { panic!("a port") };
        let clients = std::thread::spawn(move || {
            (0..200).map(|_| TcpStream::connect(address).expect("it listens")).collect::<Vec<_>>()
        });
        let tested = [ListenSpec { addr: actual, ..shared }];
        while !clients.is_finished() {
            Listeners::try_open(&tested, &log).expect("an address in use is no error");
        }
        let clients = clients.join().expect("all connect");
        let accept = || rustix::net::accept(&*running.0[0].sockets[0]).ok();
        assert_eq!(std::iter::from_fn(accept).count(), clients.len());
    }

    #[test]
    fn deferred_accept_is_turned_off_by_a_reload_without_it() {
        let log = Log::stderr(Level::Alert);
        let first = Listeners::open(&[spec(true)], 1, None, &log).expect("a free port");
        let ListenAddr::Tcp(address) = first.0[0].actual else { panic!("a port") };
        let accept = |listeners: &Listeners| rustix::net::accept(&*listeners.0[0].sockets[0]);
        let mut silent = TcpStream::connect(address).expect("it listens");
        assert_eq!(accept(&first).expect_err("no data yet"), Errno::AGAIN);
        silent.write_all(b"x").expect("connected");
        accept(&first).expect("data is there");
        let second = Listeners::open(&[spec(false)], 1, Some(&first), &log).expect("the same socket");
        assert!(Rc::ptr_eq(&first.0[0].sockets[0], &second.0[0].sockets[0]));
        let _silent = TcpStream::connect(address).expect("it listens");
        accept(&second).expect("nothing is waited for");
    }
}
