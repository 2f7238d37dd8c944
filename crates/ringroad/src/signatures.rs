//! The sockets of a worker to the signing process, which the threads of the worker share.
//!
//! ```text
//!   thread --takes a socket--> request --> response --> returns the socket
//!     |  none is left: waits          |no response in time: requests fail for some seconds
//!     |                               |closed: waits for the sockets of the next process
//! ```
//! A request blocks its thread. So the time is limited, and after a failure only one request in some seconds waits again. The
//! master creates as many sockets as threads may sign at the same time.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use tls::apart::{Connection, MESSAGE_BYTES_MAX};

use crate::signals::timeout_until;

/// Length in bytes of the number at the beginning of requests and responses.
pub(crate) const NUMBER_BYTES: usize = size_of::<u64>();

/// Maximum length in bytes of a request: a number, the name of a key, a scheme, and the message.
pub(crate) const REQUEST_BYTES_MAX: usize = NUMBER_BYTES + 32 + 2 + MESSAGE_BYTES_MAX;

/// Maximum time of a request, with the waits for a socket, for sending and for the response. A signature takes less than 10 ms; the
/// processor may be busy.
pub(crate) const RESPONSE_TIME: Duration = Duration::from_secs(1);

/// Time after a missing response during which further requests fail immediately.
const PAUSE: Duration = Duration::from_secs(3);

/// Maximum time to wait for the sockets of the next process after one has exited. Its start takes a few milliseconds.
pub(crate) const RESTART_TIME: Duration = Duration::from_millis(250);

/// The failure of a request without a response in time, and of those that are not sent after it.
pub(crate) const SILENT: &str = "it does not respond";
pub(crate) const WAS_SILENT: &str = "it did not respond to an earlier request";

/// Size in bytes of the buffer for a response: the largest signature has 2 KiB (RSA with 16384 bits).
const RESPONSE_BYTES: usize = 4096;

/// Creates a socket for a worker and the one for the signing process.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// The sockets to the signing process.
#[derive(Debug)]
pub(crate) struct SignerSockets {
    state: Mutex<Sockets>,
    changed: Condvar,
}

#[derive(Debug)]
struct Sockets {
    idle: Vec<Line>,
    /// Number of sockets that are idle or in use.
    open: usize,
    /// The number of the process, which counts the calls of [`SignerSockets::replace`].
    process: u64,
    /// Time at which a socket was found closed.
    lost_at: Option<Instant>,
    /// No response has arrived in time; the next request may be sent at this time.
    retry_at: Option<Instant>,
}

/// A socket, and the number of its last request.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    process: u64,
    number: u64,
}

impl SignerSockets {
    /// Uses these sockets.
    pub(crate) fn new(sockets: Vec<OwnedFd>) -> SignerSockets {
        let state = Sockets { idle: Vec::new(), open: 0, process: 0, lost_at: None, retry_at: None };
        let own = SignerSockets { state: Mutex::new(state), changed: Condvar::new() };
        own.replace(sockets);
        own
    }

    /// Uses the sockets of another process from now on.
    pub(crate) fn replace(&self, sockets: Vec<OwnedFd>) {
        let mut state = self.state();
        let process = state.process + 1;
        let idle: Vec<_> = sockets.into_iter().map(|socket| Line { socket, process, number: 0 }).collect();
        // Without a free descriptor a message brings no sockets: requests must not wait for one.
        let lost_at = idle.is_empty().then(Instant::now);
        let open = idle.len();
        *state = Sockets { idle, open, process, lost_at, retry_at: None };
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, Sockets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a socket; waits while other threads use all of them.
    fn take(&self, deadline: Instant) -> Result<Line, String> {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            match state.retry_at {
                Some(at) if now < at => return Err(WAS_SILENT.to_owned()),
                // One request tries again; the others fail until it has succeeded.
                Some(_) if !state.idle.is_empty() => state.retry_at = Some(now + RESPONSE_TIME),
                _ => {}
            }
            if let Some(line) = state.idle.pop() {
                return Ok(line);
            }
            let (limit, reason) = match state.lost_at {
                Some(at) => (deadline.min(at + RESTART_TIME), "it has exited"),
                None => (deadline, "all connections to it are in use"),
            };
            let left = limit.saturating_duration_since(now);
            if left.is_zero() {
                return Err(reason.to_owned());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns a socket after a request. `has_responded` is `None` if the request had too little time to tell.
    fn put(&self, line: Line, has_responded: Option<bool>) {
        let mut state = self.state();
        if line.process == state.process {
            match has_responded {
                Some(true) => state.retry_at = None,
                Some(false) => state.retry_at = Some(Instant::now() + PAUSE),
                None => {}
            }
            state.idle.push(line);
            self.changed.notify_one();
        }
    }

    /// Drops a socket that was found closed. The process may have closed only this one, so the others are still used.
    fn lose(&self, line: &Line) {
        let mut state = self.state();
        if line.process == state.process {
            state.open = state.open.saturating_sub(1);
            if state.open == 0 {
                state.lost_at.get_or_insert_with(Instant::now);
            }
        }
    }
}

impl Connection for SignerSockets {
    fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        if request.len() > REQUEST_BYTES_MAX - NUMBER_BYTES {
            return Err("the message is too long".to_owned());
        }
        let deadline = Instant::now() + RESPONSE_TIME;
        loop {
            let mut line = self.take(deadline)?;
            let begun = Instant::now();
            match line.exchange(request, deadline) {
                Ok(response) => {
                    self.put(line, Some(true));
                    return Ok(response);
                }
                Err(Errno::AGAIN) => {
                    // The request may have used most of its time to wait for a socket.
                    let had_time = deadline.saturating_duration_since(begun) >= RESPONSE_TIME / 2;
                    self.put(line, had_time.then_some(false));
                    return Err(SILENT.to_owned());
                }
                Err(_) => self.lose(&line),
            }
        }
    }
}

impl Line {
    /// Sends a request and returns the response. The error is `AGAIN` if none arrives in time.
    fn exchange(&mut self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, Errno> {
        self.number += 1;
        let number = self.number.to_le_bytes();
        let packet = [number.as_slice(), request].concat();
        while let Err(errno) = send(&self.socket, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            match errno {
                Errno::AGAIN => self.wait(PollFlags::OUT, deadline)?,
                Errno::INTR => {}
                errno => return Err(errno),
            }
        }
        let mut buffer = [0; RESPONSE_BYTES];
        loop {
            let length = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, deadline)?;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            // A response with an older number is late: its request has failed.
            if let Some(response) = buffer[..length].strip_prefix(&number) {
                return Ok(response.to_vec());
            }
        }
    }

    /// Waits until the socket may be used. The error is `AGAIN` after the deadline.
    fn wait(&self, event: PollFlags, deadline: Instant) -> Result<(), Errno> {
        let mut polled = [PollFd::new(&self.socket, event)];
        if Instant::now() >= deadline {
            return Err(Errno::AGAIN);
        }
        match poll(&mut polled, Some(&timeout_until(deadline))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
