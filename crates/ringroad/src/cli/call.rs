//! The client's side of the admin socket: finds its path, sends a call, receives packets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use serde_json::Value;

use super::options::Arguments;
use super::request::request_for;
use crate::adapter;
use crate::listen::errno_text;
use crate::loader::DiskLoader;
use crate::paths::Request;
use crate::signals::timeout_until;

/// Size of the receive buffer in bytes: larger than any response and any line.
const PACKET_MAX: usize = 256 << 10;

/// The admin socket of packages.
const PACKAGED_SOCKET: &str = "/run/ringroad-admin.sock";

/// Maximum time for the response to a call: the server may have to read a large configuration or an entry of a cache.
const RESPONSE_TIME: Duration = Duration::from_secs(30);

/// A connection to a server that has accepted a call.
#[derive(Debug)]
pub(super) struct AdminConnection {
    socket: OwnedFd,
    /// Receive buffer: larger than any packet, because a packet that does not fit is truncated.
    buffer: Vec<u8>,
}

/// Result of a receive.
#[derive(Debug)]
pub(super) enum ReceiveResult<'a> {
    /// A packet.
    Packet(&'a [u8]),
    /// No packet until the deadline.
    Nothing,
    /// The server has exited, or has closed its admin socket.
    End,
}

/// Returns the path of the admin socket: that of `--socket`, or that in the configuration.
pub(super) fn socket_path(given: &Arguments) -> Result<PathBuf, String> {
    if let Some(path) = given.value("socket") {
        return Ok(path.into());
    }
    let request = request_for(given.value("p").map(Path::new), given.value("c").map(Path::new));
    path_in(&request)
}

/// Returns the path of the admin socket that a configuration names. Only the syntax of the file is read: a server may run although
/// its configuration has got an error since, or a certificate that only root can read.
pub(super) fn path_in(request: &Request) -> Result<PathBuf, String> {
    const REMEDY: &str = "name the socket of a running server by --socket PATH";
    let tree = conf::parse_past_faults(&conf::Source::new(&request.main), &DiskLoader::new(request))
        .map_err(|error| format!("{error}; {REMEDY}"))?;
    let named = tree.statements.iter().rfind(|statement| statement.name.text == "admin_socket");
    let named = named.and_then(|statement| statement.arg(0)).filter(|path| !matches!(*path, "" | "off"));
    let path = named.map(|path| request.places.prefix.join(path.strip_prefix("unix:").unwrap_or(path)));
    path.ok_or_else(|| {
        let file = request.main.display();
        match adapter::problems(request).first() {
            Some(problem) => format!("{}; {REMEDY}, such as {PACKAGED_SOCKET}", problem.message),
            None => format!(
                "{file} has no \"admin_socket\"; add \"admin_socket /run/ringroad.sock;\" at its top and reload"
            ),
        }
    })
}

/// Sends a call; returns the connection and the response.
pub(super) fn call(path: &Path, call: &Value) -> Result<(AdminConnection, Value), String> {
    // The two most common errors get a hint.
    let failed = |errno: Errno| {
        let remedy = match errno {
            Errno::NOENT | Errno::CONNREFUSED => "; is the server running with this configuration?",
            Errno::ACCESS | Errno::PERM => "; only root and the server's user may use the admin socket",
            _ => "",
        };
        format!("\"{}\": {}{remedy}", path.display(), errno_text(errno))
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    send(&socket, call.to_string().as_bytes(), SendFlags::NOSIGNAL).map_err(failed)?;
    let mut connection = AdminConnection { socket, buffer: vec![0; PACKET_MAX] };
    let packet = match connection.receive(Some(Instant::now() + RESPONSE_TIME))? {
        ReceiveResult::Packet(packet) => packet,
        ReceiveResult::Nothing => {
            let (path, seconds) = (path.display(), RESPONSE_TIME.as_secs());
            return Err(format!(
                "\"{path}\": no response within {seconds} seconds; the server is stopped, overloaded or waits for a disk"
            ));
        }
        ReceiveResult::End => return Err(format!("\"{}\": the server sent no response", path.display())),
    };
    let answer: Value =
        serde_json::from_slice(packet).map_err(|_| "the server's response is not JSON".to_owned())?;
    match answer["error"].as_str() {
        Some(error) => Err(shown(error)),
        None => Ok((connection, answer)),
    }
}

impl AdminConnection {
    /// Receives the next packet. Waits until the deadline, or without a limit if there is none.
    pub(super) fn receive(&mut self, until: Option<Instant>) -> Result<ReceiveResult<'_>, String> {
        let failed = |errno: Errno| format!("the admin socket failed ({})", errno_text(errno));
        loop {
            let mut wait = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut wait, until.map(timeout_until).as_ref()) {
                Ok(0) => return Ok(ReceiveResult::Nothing),
                Err(errno) if errno != Errno::INTR => return Err(failed(errno)),
                _ => {}
            }
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(ReceiveResult::End),
                Ok((count, _)) => return Ok(ReceiveResult::Packet(&self.buffer[..count])),
                Err(Errno::AGAIN | Errno::INTR) if until.is_some_and(|until| until <= Instant::now()) => {
                    return Ok(ReceiveResult::Nothing);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// Parses the lines of a packet; skips lines that are not JSON.
pub(super) fn lines(packet: &[u8]) -> impl Iterator<Item = Value> {
    packet.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Escapes control characters in text that a client chose, because a terminal would interpret them.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_unicode()),
            false => out.push(letter),
        }
    }
    out
}
