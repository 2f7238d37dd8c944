//! The master's side of the admin socket: receives calls, and stores the sockets of watchers for workers that start
//! later.
//!
//! Nothing here blocks: a caller that sends nothing is dropped after [`CALL_TIME`], and a response is one packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::socket::AdminSocket;
use super::{CALL_MAX, Call, is_silent, refuse};

/// Time after which a caller without a call is dropped. Programs send their call immediately.
const CALL_TIME: Duration = Duration::from_secs(5);

/// Maximum number of callers without a call; further ones are rejected.
const CALLERS_MAX: usize = 16;

/// Maximum number of watchers, the same as in the server.
const WATCHERS_MAX: usize = crate::adapter::WATCHERS_MAX;

/// The master's state for operators.
#[derive(Debug, Default)]
pub(crate) struct AdminServer {
    /// `None` without `admin_socket`.
    socket: Option<AdminSocket>,
    /// Callers that have sent no call yet, with their deadlines.
    callers: Vec<(OwnedFd, Instant)>,
    /// Stored for workers that start later.
    watchers: Vec<Watching>,
    /// Whether the server is drained; also passed to workers that start later.
    pub(crate) is_drained: bool,
}

/// A client that watches requests.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    /// The filter expression of the client, which has been parsed without an error.
    pub(crate) filter: String,
    /// The client's socket, of which workers have duplicates.
    pub(crate) socket: Rc<OwnedFd>,
}

impl AdminServer {
    /// Opens the socket of a configuration, or closes it. The existing socket is retained if its path is unchanged.
    pub(crate) fn listen(&mut self, path: Option<&Path>, takes_over: bool) -> Result<(), String> {
        if self.socket.as_ref().map(AdminSocket::path) == path {
            return Ok(());
        }
        let socket = path.map(|path| AdminSocket::open(path, takes_over)).transpose()?;
        self.socket = socket;
        if self.socket.is_none() {
            self.callers.clear();
            // Workers have duplicates of these sockets. The shutdown ends the connections for them, too.
            for watching in self.watchers.drain(..) {
                let _ = shutdown(&watching.socket, Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Reopens the socket at its path, after a new binary that had taken it has exited.
    pub(crate) fn restore(&mut self) -> Result<(), String> {
        let Some(path) = self.socket.take().map(|socket| socket.path().to_owned()) else { return Ok(()) };
        self.listen(Some(&path), true)
    }

    /// Returns the descriptors to poll(2) for input.
    pub(crate) fn polled(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.iter().map(|socket| socket.fd().as_fd());
        let callers = self.callers.iter().map(|(caller, _)| caller.as_fd());
        socket.chain(callers).chain(self.watchers.iter().map(|watching| watching.socket.as_fd()))
    }

    /// Returns the earliest deadline of a silent caller.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.callers.iter().map(|(_, until)| *until).min()
    }

    /// Accepts callers, except the processes `children`, and receives their packets; returns the calls with the callers' sockets.
    pub(crate) fn calls(&mut self, children: &[u32]) -> Vec<(Call, OwnedFd)> {
        self.watchers.retain(|watching| is_silent(&watching.socket));
        while let Some(caller) = self.socket.as_ref().and_then(|socket| socket.accept(children)) {
            match caller {
                Err(foreign) => refuse(&foreign, "only root and the server's user may use the admin socket"),
                Ok(caller) if self.callers.len() >= CALLERS_MAX => refuse(&caller, "too many callers"),
                Ok(caller) => self.callers.push((caller, Instant::now() + CALL_TIME)),
            }
        }
        let mut calls = Vec::new();
        for (caller, until) in std::mem::take(&mut self.callers) {
            let mut packet = [0; CALL_MAX];
            match recv(&caller, &mut packet[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Err(Errno::AGAIN | Errno::INTR) if until > Instant::now() => {
                    self.callers.push((caller, until))
                }
                Ok((_, 0)) | Err(_) => {}
                Ok((_, length)) if length > CALL_MAX => refuse(&caller, "the call is too long"),
                Ok((_, length)) => match Call::parse(&packet[..length]) {
                    Ok(call) => calls.push((call, caller)),
                    Err(message) => refuse(&caller, &message),
                },
            }
        }
        calls
    }

    /// Stores a watching client; returns the number of watchers, or the reason of a rejection.
    pub(crate) fn watch(&mut self, watching: Watching) -> Result<usize, String> {
        if self.watchers.len() >= WATCHERS_MAX {
            return Err(format!("{WATCHERS_MAX} clients watch requests already"));
        }
        self.watchers.push(watching);
        Ok(self.watchers.len())
    }

    /// Returns the watchers, which a new worker must be sent.
    pub(crate) fn watchers(&self) -> &[Watching] {
        &self.watchers
    }
}
