//! The master's part of the admin socket: takes calls, and keeps the sockets of watchers for workers that start later.
//!
//! Nothing here waits: a caller that says nothing is dropped after [`CALL_TIME`], and an answer is one packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::socket::AdminSocket;
use super::{CALL_MAX, Call, is_silent, refuse};

/// How long a caller may be silent: programs send their call at once.
const CALL_TIME: Duration = Duration::from_secs(5);

/// Callers whose call has not come; more are turned away.
const CALLERS_MAX: usize = 16;

/// Watchers at most, as the server has it.
const WATCHERS_MAX: usize = crate::site::WATCHERS_MAX;

/// All that the master has for operators.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// None without `admin_socket`.
    socket: Option<AdminSocket>,
    /// Those whose call has not come, and until when it may.
    callers: Vec<(OwnedFd, Instant)>,
    /// For workers that start later.
    watchers: Vec<Watching>,
    /// Clients are sent elsewhere; for workers that start later too.
    pub(crate) is_drained: bool,
}

/// A client that watches requests.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    /// As the client sent it; it was read without an error.
    pub(crate) filter: String,
    /// Workers have copies of it.
    pub(crate) socket: Rc<OwnedFd>,
}

impl Desk {
    /// Opens the socket of a configuration, or closes it. The one that is there stays where its name does.
    pub(crate) fn listen(&mut self, path: Option<&Path>, takes_over: bool) -> Result<(), String> {
        if self.socket.as_ref().map(AdminSocket::path) == path {
            return Ok(());
        }
        let socket = path.map(|path| AdminSocket::open(path, takes_over)).transpose()?;
        self.socket = socket;
        if self.socket.is_none() {
            self.callers.clear();
            // Workers have copies of these sockets, which see the end by it.
            for watching in self.watchers.drain(..) {
                let _ = shutdown(&watching.socket, Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Opens the socket again under its name, which a new binary that has ended had taken.
    pub(crate) fn restore(&mut self) -> Result<(), String> {
        let Some(path) = self.socket.take().map(|socket| socket.path().to_owned()) else { return Ok(()) };
        self.listen(Some(&path), true)
    }

    /// Descriptors for poll(2), to be read.
    pub(crate) fn polled(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.iter().map(|socket| socket.fd().as_fd());
        let callers = self.callers.iter().map(|(caller, _)| caller.as_fd());
        socket.chain(callers).chain(self.watchers.iter().map(|watching| watching.socket.as_fd()))
    }

    /// When the next silent caller is dropped.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.callers.iter().map(|(_, until)| *until).min()
    }

    /// Takes what has come; returns calls with the sockets of their callers.
    pub(crate) fn calls(&mut self) -> Vec<(Call, OwnedFd)> {
        self.watchers.retain(|watching| is_silent(&watching.socket));
        while let Some(caller) = self.socket.as_ref().and_then(AdminSocket::accept) {
            match caller {
                Err(foreign) => refuse(&foreign, "only root and the server's own user may ask"),
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

    /// Keeps a client that watches; the number of all, or the reason against it.
    pub(crate) fn watch(&mut self, watching: Watching) -> Result<usize, String> {
        if self.watchers.len() >= WATCHERS_MAX {
            return Err(format!("{WATCHERS_MAX} clients watch requests already"));
        }
        self.watchers.push(watching);
        Ok(self.watchers.len())
    }

    /// Those that a new worker has to know.
    pub(crate) fn watchers(&self) -> &[Watching] {
        &self.watchers
    }
}
