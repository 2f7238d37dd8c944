//! Syslog servers: the arguments of `syslog:server=…`, the header of a message, and the socket for it.
//!
//! A message is one datagram in the form of RFC 3164, as nginx writes it. The socket never waits: a server that does
//! not read in time causes `EAGAIN`, and the caller decides about the message.

use std::cell::RefCell;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::Level;

/// A syslog server and how messages for it begin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    address: Address,
    /// As it was written, for messages about it.
    pub server: String,
    facility: u8,
    severity: u8,
    tag: String,
    /// Empty with `nohostname`.
    hostname: String,
}

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Address {
    Inet(SocketAddr),
    Unix(PathBuf),
}

/// The port of syslog over UDP (RFC 5426).
const PORT: u16 = 514;

/// RFC 3164 section 4.1.3.
const TAG_MAX: usize = 32;

/// Bytes of a line of the error log that nginx has room for.
const ERROR_LINE_MAX: usize = 2048;

/// nginx's names, by their numbers in RFC 3164.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Bytes of `sun_path` in unix(7), without the NUL.
const UNIX_PATH_MAX: usize = 107;

impl Peer {
    /// Parses the text after `syslog:`; the error is nginx's text. Names of servers are looked up, which blocks: only
    /// while a configuration is read.
    pub fn parse(text: &str, hostname: &str) -> Result<Peer, String> {
        let (mut server, mut facility, mut severity, mut tag) = (None, None, None, None);
        let mut hostname = hostname;
        for option in text.split(',') {
            // Of several faults the first one is reported, with its text.
            if let Some(value) = option.strip_prefix("server=") {
                once("server", &server)?;
                let fault = |fault| format!("{fault} in syslog server \"{value}\"");
                server = Some((Address::parse(value).map_err(fault)?, value));
            } else if let Some(value) = option.strip_prefix("facility=") {
                once("facility", &facility)?;
                let known = FACILITIES.iter().position(|name| *name == value);
                facility = Some(known.ok_or_else(|| format!("unknown syslog facility \"{value}\""))?);
            } else if let Some(value) = option.strip_prefix("severity=") {
                once("severity", &severity)?;
                let known = Level::NAMES.iter().find(|(name, _)| *name == value);
                severity = Some(known.ok_or_else(|| format!("unknown syslog severity \"{value}\""))?.1);
            } else if let Some(value) = option.strip_prefix("tag=") {
                once("tag", &tag)?;
                tag = Some(checked_tag(value)?);
            } else if option == "nohostname" {
                hostname = "";
            } else {
                return Err(format!("unknown syslog parameter \"{option}\""));
            }
        }
        let (address, server) = server.ok_or("no syslog server specified")?;
        Ok(Peer {
            address,
            server: server.to_owned(),
            facility: facility.unwrap_or(23) as u8,
            severity: severity.unwrap_or(Level::Info) as u8,
            // The name that filters of a syslog server know from nginx.
            tag: tag.unwrap_or("nginx").to_owned(),
            hostname: hostname.to_owned(),
        })
    }

    /// Appends the header of a message; `level` is that of a line of the error log, and `time` the form of
    /// [`syslog_time`].
    pub fn header(&self, level: Option<Level>, time: &[u8], out: &mut Vec<u8>) {
        // nginx replaces the configured severity by the level of each error.
        let severity = level.map_or(self.severity, |level| level as u8);
        out.push(b'<');
        http::push_decimal(out, u64::from(self.facility) * 8 + u64::from(severity));
        out.push(b'>');
        out.extend_from_slice(time);
        out.push(b' ');
        if !self.hostname.is_empty() {
            out.extend_from_slice(self.hostname.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(self.tag.as_bytes());
        out.extend_from_slice(b": ");
    }

    /// Cuts a message of the error log, which starts at `start`, where nginx cuts it.
    pub fn cut(start: usize, out: &mut Vec<u8>) {
        out.truncate(start + ERROR_LINE_MAX);
    }

    /// Whether a datagram that was lost shows as an error of the next one (ip(7), `ECONNREFUSED`).
    pub fn is_inet(&self) -> bool {
        matches!(self.address, Address::Inet(_))
    }
}

/// nginx's message for an option that is written twice.
fn once<T>(name: &str, known: &Option<T>) -> Result<(), String> {
    match known {
        Some(_) => Err(format!("duplicate syslog \"{name}\"")),
        None => Ok(()),
    }
}

/// A tag in nginx's bounds.
fn checked_tag(tag: &str) -> Result<&str, String> {
    if tag.len() > TAG_MAX {
        return Err("syslog tag length exceeds 32".to_owned());
    }
    // RFC 3164 knows letters and digits; nginx lets underscores pass too.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !tag.bytes().all(is_allowed) {
        return Err("syslog \"tag\" only allows alphanumeric characters and underscore".to_owned());
    }
    Ok(tag)
}

impl Address {
    /// `unix:/path`, `host`, `host:port`, `[v6]:port`.
    fn parse(text: &str) -> Result<Address, &'static str> {
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
            return match &text[5..] {
                "" => Err("no path in the unix domain socket"),
                path if path.len() > UNIX_PATH_MAX => Err("too long path in the unix domain socket"),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        // A bracket keeps the colons of an IPv6 address apart from the one of the port.
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or("invalid port")?)),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        // Port 0 could be sent to, but no server can listen there.
        let port = match port {
            None => PORT,
            Some(port) => port.parse().ok().filter(|&port| port > 0).ok_or("invalid port")?,
        };
        if host.is_empty() {
            return Err("no host");
        }
        if host.contains(['/', '?', '#']) {
            return Err("invalid host");
        }
        // The first address, as in nginx: a datagram does not show whether another one would do better.
        let found = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
        found.map(Address::Inet).ok_or("host not found")
    }
}

/// `Nov  1 09:30:00` out of `01/Nov/2026:09:30:00 +0000`: RFC 3164, 4.1.2, pads the day with a space.
pub fn syslog_time(common_log: &[u8; 26]) -> [u8; 15] {
    let mut time = *b"Nov  1 09:30:00";
    time[..3].copy_from_slice(&common_log[3..6]);
    time[4] = if common_log[0] == b'0' { b' ' } else { common_log[0] };
    time[5] = common_log[1];
    time[7..].copy_from_slice(&common_log[12..20]);
    time
}

/// A socket to a server, opened when it is needed and again after an error. Not shared between threads.
#[derive(Debug)]
pub struct Socket {
    peer: Arc<Peer>,
    fd: RefCell<Option<OwnedFd>>,
}

/// Why a message did not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The server does not read; it may in a moment.
    Busy,
    /// The call and its error.
    Failed(&'static str, Errno),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Busy => f.write_str("send() would wait"),
            SendError::Failed(call, errno) => {
                write!(f, "{call}() failed ({})", crate::Reason(*errno))
            }
        }
    }
}

impl Socket {
    /// No system call is made before the first message.
    pub fn new(peer: &Arc<Peer>) -> Socket {
        Socket { peer: Arc::clone(peer), fd: RefCell::new(None) }
    }

    /// The server.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Sends one message now, or not at all. After an error the next one goes through a new socket: a server that was
    /// restarted has a new one too.
    pub fn send(&self, message: &[u8]) -> Result<(), SendError> {
        // Taken out, so that whatever is not put back below is closed.
        let mut place = self.fd.borrow_mut();
        let fd = match place.take() {
            Some(fd) => fd,
            None => self.open().map_err(|(call, errno)| SendError::Failed(call, errno))?,
        };
        // The flag beside that of the socket: descriptors that were handed on could lack it.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::io::retry_on_intr(|| rustix::net::send(&fd, message, flags)) {
            Ok(_) => {
                *place = Some(fd);
                Ok(())
            }
            // The queue of a unix socket, or of an interface, is full.
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                *place = Some(fd);
                Err(SendError::Busy)
            }
            // It is the message that is wrong, not the socket.
            Err(Errno::MSGSIZE) => {
                *place = Some(fd);
                Err(SendError::Failed("send", Errno::MSGSIZE))
            }
            Err(errno) => Err(SendError::Failed("send", errno)),
        }
    }

    /// A connected socket: errors of the other side are returned by the next send, udp(7).
    fn open(&self) -> Result<OwnedFd, (&'static str, Errno)> {
        let family = match &self.peer.address {
            Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|errno| ("socket", errno))?;
        // Neither kind waits for the other side: connect(2) of a datagram socket only remembers the address.
        let connected = match &self.peer.address {
            Address::Inet(address) => rustix::net::connect(&fd, address),
            Address::Unix(path) => unix_address(path).and_then(|address| rustix::net::connect(&fd, &address)),
        };
        connected.map_err(|errno| ("connect", errno))?;
        Ok(fd)
    }
}

/// nginx has no names in the abstract namespace, so the path is one in the file system.
fn unix_address(path: &Path) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::parse(text, "machine").unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn header(text: &str, level: Option<Level>) -> String {
        let mut out = Vec::new();
        peer(text).header(level, b"Nov  1 09:30:00", &mut out);
        String::from_utf8(out).expect("a header is text")
    }

    #[test]
    fn headers_are_nginxs() {
        assert_eq!(header("server=unix:/x", None), "<190>Nov  1 09:30:00 machine nginx: ");
        let text = "server=127.0.0.1,facility=kern,tag=Web_1,severity=error,nohostname";
        assert_eq!(header(text, None), "<3>Nov  1 09:30:00 Web_1: ");
        assert_eq!(header(text, Some(Level::Alert)), "<1>Nov  1 09:30:00 Web_1: ");
        assert_eq!(&syslog_time(b"01/Nov/2026:09:30:00 +0000"), b"Nov  1 09:30:00");
        assert_eq!(&syslog_time(b"21/Nov/2026:09:30:59 +0000"), b"Nov 21 09:30:59");
    }

    #[test]
    fn addresses_of_all_families() {
        let inet = |text: &str| Address::Inet(text.parse().expect("an address"));
        for (text, expected) in [
            ("server=127.0.0.1", inet("127.0.0.1:514")),
            ("server=127.0.0.1:99", inet("127.0.0.1:99")),
            ("server=[::1]", inet("[::1]:514")),
            ("server=[::1]:99", inet("[::1]:99")),
            ("server=unix:/dev/log", Address::Unix("/dev/log".into())),
        ] {
            assert_eq!(peer(text).address, expected, "{text}");
        }
    }

    #[test]
    fn wrong_words_are_refused_with_nginxs_texts() {
        for (text, expected) in [
            ("", "unknown syslog parameter \"\""),
            ("tag=a", "no syslog server specified"),
            ("server=127.0.0.1,server=127.0.0.1", "duplicate syslog \"server\""),
            ("server=", "no host in syslog server \"\""),
            ("server=:1", "no host in syslog server \":1\""),
            ("server=127.0.0.1:0", "invalid port in syslog server \"127.0.0.1:0\""),
            ("server=127.0.0.1:x", "invalid port in syslog server \"127.0.0.1:x\""),
            ("server=127.0.0.1/x", "invalid host in syslog server \"127.0.0.1/x\""),
            ("server=unix:", "no path in the unix domain socket in syslog server \"unix:\""),
            ("server=none.invalid", "host not found in syslog server \"none.invalid\""),
            ("facility=x", "unknown syslog facility \"x\""),
            ("facility=user,facility=user", "duplicate syslog \"facility\""),
            ("severity=err", "unknown syslog severity \"err\""),
            ("severity=warn,severity=warn", "duplicate syslog \"severity\""),
            ("tag=a,tag=b", "duplicate syslog \"tag\""),
            ("tag=a-b", "syslog \"tag\" only allows alphanumeric characters and underscore"),
            ("tag=123456789012345678901234567890123", "syslog tag length exceeds 32"),
            ("server=127.0.0.1,x", "unknown syslog parameter \"x\""),
        ] {
            assert_eq!(Peer::parse(text, "machine").expect_err(text), expected, "{text}");
        }
        let long = format!("server=unix:/{}", "x".repeat(107));
        assert!(Peer::parse(&long, "").expect_err("too long").starts_with("too long path"));
    }
}
