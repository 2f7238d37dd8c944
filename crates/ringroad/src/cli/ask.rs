//! The client's side of the admin socket: finds it, sends a call, reads packets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use serde_json::Value;

use super::options::Given;
use super::run::request_for;
use crate::listen::errno_text;
use crate::signals::timeout_until;
use crate::site::{self, Files};

/// Bytes of a packet at most: above those of an answer and of any line.
const PACKET_MAX: usize = 256 << 10;

/// A server that has taken a call.
#[derive(Debug)]
pub(super) struct Asked {
    socket: OwnedFd,
    /// A packet that does not fit would be cut, so it is larger than any.
    buffer: Vec<u8>,
}

/// What came.
#[derive(Debug)]
pub(super) enum Came<'a> {
    /// A packet.
    Packet(&'a [u8]),
    /// Nothing until the given time.
    Nothing,
    /// The server has ended, or does not serve operators any more.
    End,
}

/// The socket of the server that is meant: `--socket`, or that of the configuration.
pub(super) fn socket_path(given: &Given) -> Result<PathBuf, String> {
    if let Some(path) = given.value("socket") {
        return Ok(path.into());
    }
    let request = request_for(given.value("p").map(Path::new), given.value("c").map(Path::new));
    path_in(&request)
}

/// The socket that a configuration names.
pub(super) fn path_in(request: &crate::places::Request) -> Result<PathBuf, String> {
    let site = site::load(request, Files::Disk).map_err(|refused| refused.message)?;
    site.settings.admin_socket.ok_or_else(|| {
        let file = request.main.display();
        format!(
            "{file} has no \"admin_socket\"; add \"admin_socket run/ringroad.sock;\" at its top and reload"
        )
    })
}

/// Sends a call, and returns the answer to it.
pub(super) fn ask(path: &Path, call: &Value) -> Result<(Asked, Value), String> {
    // The two mistakes of a first try have a remedy each.
    let failed = |errno: Errno| {
        let remedy = match errno {
            Errno::NOENT | Errno::CONNREFUSED => "; does the server run, with this configuration?",
            Errno::ACCESS | Errno::PERM => "; only root and the server's own user may ask",
            _ => "",
        };
        format!("\"{}\": {}{remedy}", path.display(), errno_text(errno))
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    send(&socket, call.to_string().as_bytes(), SendFlags::NOSIGNAL).map_err(failed)?;
    let mut asked = Asked { socket, buffer: vec![0; PACKET_MAX] };
    let Came::Packet(packet) = asked.receive(None)? else {
        return Err(format!("\"{}\": the server gave no answer", path.display()));
    };
    let answer: Value =
        serde_json::from_slice(packet).map_err(|_| "the server's answer is no JSON".to_owned())?;
    match answer["error"].as_str() {
        Some(error) => Err(shown(error)),
        None => Ok((asked, answer)),
    }
}

impl Asked {
    /// The next packet; waits until then at most, or as long as it takes.
    pub(super) fn receive(&mut self, until: Option<Instant>) -> Result<Came<'_>, String> {
        let failed = |errno: Errno| format!("the admin socket failed ({})", errno_text(errno));
        loop {
            let mut wait = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut wait, until.map(timeout_until).as_ref()) {
                Ok(0) => return Ok(Came::Nothing),
                Err(errno) if errno != Errno::INTR => return Err(failed(errno)),
                _ => {}
            }
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(Came::End),
                Ok((count, _)) => return Ok(Came::Packet(&self.buffer[..count])),
                Err(Errno::AGAIN | Errno::INTR) if until.is_some_and(|until| until <= Instant::now()) => {
                    return Ok(Came::Nothing);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// The lines of a packet, as far as they are JSON.
pub(super) fn lines(packet: &[u8]) -> impl Iterator<Item = Value> {
    packet.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Text that a client chose, for a terminal: control characters would be commands to it.
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
