//! Syslog servers: the arguments of `syslog:server=…`, the header of a message, and the socket.
//!
//! A message is a datagram in the format of RFC 3164, as in nginx. The socket is nonblocking: if the server does not
//! read fast enough, `EAGAIN` is returned, and the caller decides about the message.

use std::cell::RefCell;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::{Level, json};

/// A syslog server and the settings of the headers of its messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    address: Address,
    /// The server as written in the configuration, for error messages.
    pub server: String,
    facility: u8,
    severity: u8,
    tag: String,
    /// The host name in headers; empty with `nohostname`.
    hostname: String,
}

/// The address of a syslog server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Address {
    Inet(SocketAddr),
    Unix(PathBuf),
}

/// The port of syslog over UDP (RFC 5426).
const PORT: u16 = 514;

/// Maximum length of a tag in bytes (RFC 3164 section 4.1.3).
const TAG_MAX: usize = 32;

/// Size in bytes of nginx's buffer for a line of the error log.
const ERROR_LINE_MAX: usize = 2048;

/// Maximum lengths in bytes of each text in a JSON line that is too long. They are applied in this order, until the line
/// is short enough. A line has up to seven texts without another limit on their lengths.
const JSON_TEXT_MAX: [usize; 3] = [1024, 512, 256];

/// nginx's names of the facilities; the index is the number in RFC 3164.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Maximum length in bytes of `sun_path` (unix(7)), without the NUL.
const UNIX_PATH_MAX: usize = 107;

impl Peer {
    /// Parses the text after `syslog:`. The error is nginx's text. Resolving host names blocks, so this must only be
    /// called while a configuration is read.
    pub fn parse(text: &str, hostname: &str) -> Result<Peer, String> {
        let (mut server, mut facility, mut severity, mut tag) = (None, None, None, None);
        let mut hostname = hostname;
        for option in text.split(',') {
            // The first of several errors is reported.
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
            // nginx's default tag, which filters of syslog servers expect.
            tag: tag.unwrap_or("nginx").to_owned(),
            hostname: hostname.to_owned(),
        })
    }

    /// Returns the path of the server's UNIX-domain socket, if it has one.
    pub fn socket(&self) -> Option<&Path> {
        match &self.address {
            Address::Inet(_) => None,
            Address::Unix(path) => Some(path),
        }
    }

    /// Appends the header of a message. `level` is the level of a line of the error log; `time` has the format of
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

    /// Truncates a message of the error log that begins at `start` to nginx's length. In a JSON object, only texts are
    /// truncated, so that it remains JSON.
    pub fn cut(start: usize, out: &mut Vec<u8>) {
        // A line in text form begins with the date, never with a brace.
        if out.get(start) != Some(&b'{') {
            return out.truncate(start + ERROR_LINE_MAX);
        }
        for text_max in JSON_TEXT_MAX {
            if out.len() - start > ERROR_LINE_MAX {
                json::shorten(start, text_max, out);
            }
        }
    }

    /// Whether the loss of a datagram is reported by the next send (ip(7), `ECONNREFUSED`).
    pub fn is_inet(&self) -> bool {
        matches!(self.address, Address::Inet(_))
    }
}

/// Returns nginx's error for an option that is written twice.
fn once<T>(name: &str, known: &Option<T>) -> Result<(), String> {
    match known {
        Some(_) => Err(format!("duplicate syslog \"{name}\"")),
        None => Ok(()),
    }
}

/// Checks that a tag is within nginx's limits.
fn checked_tag(tag: &str) -> Result<&str, String> {
    if tag.len() > TAG_MAX {
        return Err("syslog tag length exceeds 32".to_owned());
    }
    // RFC 3164 allows letters and digits; nginx also allows underscores.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !tag.bytes().all(is_allowed) {
        return Err("syslog \"tag\" only allows alphanumeric characters and underscore".to_owned());
    }
    Ok(tag)
}

impl Address {
    /// Parses `unix:/path`, `host`, `host:port` or `[v6]:port`.
    fn parse(text: &str) -> Result<Address, &'static str> {
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
            return match &text[5..] {
                "" => Err("no path in the unix domain socket"),
                path if path.len() > UNIX_PATH_MAX => Err("too long path in the unix domain socket"),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        // Brackets separate the colons of an IPv6 address from that of the port.
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or("invalid port")?)),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        // The kernel can send to port 0, but no server can listen on it.
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
        // Uses the first address, as nginx does: with datagrams it is not visible whether another address would work
        // better.
        let found = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
        found.map(Address::Inet).ok_or("host not found")
    }
}

/// Converts `01/Nov/2026:09:30:00 +0000` to `Nov  1 09:30:00`. RFC 3164, 4.1.2, pads the day with a space.
pub fn syslog_time(common_log: &[u8; 26]) -> [u8; 15] {
    let mut time = *b"Nov  1 09:30:00";
    time[..3].copy_from_slice(&common_log[3..6]);
    time[4] = if common_log[0] == b'0' { b' ' } else { common_log[0] };
    time[5] = common_log[1];
    time[7..].copy_from_slice(&common_log[12..20]);
    time
}

/// A socket to a syslog server, which is opened on demand and reopened after an error. Not shared between threads.
#[derive(Debug)]
pub struct Socket {
    peer: Arc<Peer>,
    fd: RefCell<Option<OwnedFd>>,
}

/// Reason why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The server does not read now; a retry may succeed.
    Busy,
    /// The name of the failed system call and its error.
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
    /// Creates the socket's state; the first message makes the first system call.
    pub fn new(peer: &Arc<Peer>) -> Socket {
        Socket { peer: Arc::clone(peer), fd: RefCell::new(None) }
    }

    /// Returns the server.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Sends a message without waiting. After an error the next message uses a new socket, because a restarted server
    /// also has a new socket.
    pub fn send(&self, message: &[u8]) -> Result<(), SendError> {
        // The descriptor is closed on return unless it is stored again below.
        let mut place = self.fd.borrow_mut();
        let fd = match place.take() {
            Some(fd) => fd,
            None => self.open().map_err(|(call, errno)| SendError::Failed(call, errno))?,
        };
        // `DONTWAIT` is necessary in addition to the flag of the socket, which an inherited descriptor may lack.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::io::retry_on_intr(|| rustix::net::send(&fd, message, flags)) {
            Ok(_) => {
                *place = Some(fd);
                Ok(())
            }
            // The queue of a unix socket or of a network interface is full.
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                *place = Some(fd);
                Err(SendError::Busy)
            }
            // The message is invalid, not the socket.
            Err(Errno::MSGSIZE) => {
                *place = Some(fd);
                Err(SendError::Failed("send", Errno::MSGSIZE))
            }
            Err(errno) => Err(SendError::Failed("send", errno)),
        }
    }

    /// Opens a connected socket, so that errors of the peer are returned by the next send, udp(7).
    fn open(&self) -> Result<OwnedFd, (&'static str, Errno)> {
        let family = match &self.peer.address {
            Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|errno| ("socket", errno))?;
        // Neither kind of socket waits for the peer: connect(2) of a datagram socket only stores the address.
        let connected = match &self.peer.address {
            Address::Inet(address) => rustix::net::connect(&fd, address),
            Address::Unix(path) => unix_address(path).and_then(|address| rustix::net::connect(&fd, &address)),
        };
        connected.map_err(|errno| ("connect", errno))?;
        Ok(fd)
    }
}

/// Converts a path. nginx does not support the abstract namespace, so this is always a path in the file system.
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
    fn syslog_headers_match_nginx() {
        assert_eq!(header("server=unix:/x", None), "<190>Nov  1 09:30:00 machine nginx: ");
        let text = "server=127.0.0.1,facility=kern,tag=Web_1,severity=error,nohostname";
        assert_eq!(header(text, None), "<3>Nov  1 09:30:00 Web_1: ");
        assert_eq!(header(text, Some(Level::Alert)), "<1>Nov  1 09:30:00 Web_1: ");
        assert_eq!(&syslog_time(b"01/Nov/2026:09:30:00 +0000"), b"Nov  1 09:30:00");
        assert_eq!(&syslog_time(b"21/Nov/2026:09:30:59 +0000"), b"Nov 21 09:30:59");
    }

    #[test]
    fn a_long_json_message_remains_json() {
        let line = |path: &str, referrer: &str| {
            let mut out = b"<1>".to_vec();
            let object = json::Object::open(&mut out).text("message", format_args!("open() {path}"));
            object
                .text("request", path)
                .text("upstream", path)
                .text("host", path)
                .text("referrer", referrer)
                .close();
            Peer::cut(3, &mut out);
            String::from_utf8(out).expect("JSON is UTF-8")
        };
        let short =
            r#"<1>{"message":"open() /a","request":"/a","upstream":"/a","host":"/a","referrer":"/b"}"#;
        assert_eq!(line("/a", "/b"), short);
        // Short texts are unchanged.
        assert_eq!(line("/a", &"x".repeat(3000)), short.replace("/b", &"x".repeat(1024)));
        // No escape is divided.
        let (escapes, message) = ("\\\"".repeat(128), "\\\"".repeat(124));
        let expected = short.replacen("/a", &message, 1).replace("/a", &escapes);
        assert_eq!(line(&"\"".repeat(3000), "/b"), expected);
    }

    #[test]
    fn addresses_of_all_families_are_parsed() {
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
    fn wrong_parameters_cause_the_messages_of_nginx() {
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
