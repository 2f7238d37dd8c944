//! The sending side of a connection.

use std::cell::Cell;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::op::Interest;
use io::segments::SEGMENTS_MAX;
use io::{Disk, DiskOp, Errno, Fd, NetOp, Op, Payload, Segments};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};

use super::pipe::Pipe;
use crate::file::File;
use crate::op_table::{OpHandle, Outcome, UNLIMITED};
use crate::reactor::{self, Reactor};

/// The sending side of a [`crate::Socket`].
pub struct Writer {
    reactor: Rc<Reactor>,
    fd: Fd,
    /// Minimum size in bytes of a send that is made without a copy.
    zero_copy_from: Option<usize>,
    state: WriterState,
    sent: Cell<u64>,
}

/// ```text
///          send           count of all bytes
///   Ready ------> Sending -------------------------------> Ready
///                  ^  |  | short count of a zero-copy send
///                  |  |  +----------> Returning -- segments returned --> (as after a count)
///                  |  | EAGAIN
///                  |  +------> Blocked --writable--+
///                  +-------------------------------+
///   Ready --sendfile--> Moving (waits for space first if the socket is full) --count--> Ready
///   Ready --writable, splice--> Awaiting --> Ready
///   an error, or an operation abandoned before it completed: Torn
/// ```
enum WriterState {
    /// No operation is in flight.
    Ready,
    /// The engine sends at most `len` bytes; with `more`, further data follows.
    Sending { wait: OpHandle, len: usize, more: bool },
    /// A zero-copy send was short; its segments are needed to send the remaining bytes.
    Returning { wait: OpHandle, result: Result<u32, Errno>, more: bool },
    /// The socket's send buffer is full.
    Blocked { wait: OpHandle, data: Segments, more: bool },
    /// Bytes of a file are being sent. If the socket is full, the writer first waits for space.
    Moving { wait: OpHandle, is_full: bool },
    /// A task waits until the socket accepts bytes.
    Awaiting { wait: OpHandle },
    /// The number of bytes that have reached the peer is unknown, so nothing more may be sent.
    Torn,
}

/// A range of a file that is sent without passing through user space (sendfile).
#[derive(Clone, Copy)]
pub struct FilePart<'f> {
    /// The file.
    pub file: &'f File,
    /// Offset of the first byte.
    pub offset: u64,
    /// Maximum number of bytes.
    pub len: u32,
    /// The device that the file is on, and the backend that sends them.
    pub disk: Disk,
}

/// A send in flight, created by [`Writer::send`]. Dropping it abandons the operation.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sending<'w> {
    writer: &'w mut Writer,
    /// The result, if there is nothing to send or sending has ended.
    early: Option<(Result<(), Errno>, Segments)>,
}

impl Writer {
    /// Creates a second writer, in addition to that of the connection's [`crate::Socket`], for code that sends while
    /// other code holds the first writer. Only one of the two may have bytes in flight.
    pub fn second(socket: &Fd) -> Writer {
        Writer::new(&reactor::current(), socket.clone())
    }

    pub(super) fn new(reactor: &Rc<Reactor>, fd: Fd) -> Writer {
        Writer {
            reactor: Rc::clone(reactor),
            fd,
            zero_copy_from: None,
            state: WriterState::Ready,
            sent: Cell::new(0),
        }
    }

    /// Sends all of `data`; `more` announces that further bytes follow immediately. Returns the segments, so that their
    /// vectors can be reused, unless the kernel still sends from them. After an error, and after a send that was
    /// dropped before it completed, further sends fail with `ECONNABORTED`.
    pub fn send(&mut self, data: Segments, more: bool) -> Sending<'_> {
        let early = match self.state {
            WriterState::Ready if data.is_empty() => Some((Ok(()), data)),
            WriterState::Ready => {
                self.start(data, more);
                None
            }
            _ => Some((Err(Errno::CONNABORTED), data)),
        };
        Sending { writer: self, early }
    }

    /// Submits a send to the engine.
    fn start(&mut self, data: Segments, more: bool) {
        let len = data.len();
        assert!(len > 0, "a send has bytes");
        let zero_copy = !self.copies(len);
        let op = Op::Net(NetOp::Send { socket: self.fd.clone(), data, more, zero_copy });
        self.state = WriterState::Sending { wait: self.reactor.start(op, UNLIMITED), len, more };
    }

    /// Advances the state until all bytes are sent or the task has to wait.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<(Result<(), Errno>, Segments)> {
        loop {
            match &mut self.state {
                &mut WriterState::Sending { wait, len, more } => {
                    let Outcome { result, more: returns, payload } =
                        ready!(self.reactor.poll_wait(wait, context));
                    if !returns {
                        if let Some(done) = self.count(result, payload, more) {
                            return Poll::Ready(done);
                        }
                    } else if result.is_ok_and(|count| count as usize == len) {
                        // The buffers are dropped when the peer has acknowledged them; no task waits for that.
                        self.reactor.detach(wait);
                        self.state = WriterState::Ready;
                        self.sent.set(self.sent.get() + len as u64);
                        return Poll::Ready((Ok(()), Segments::new()));
                    } else {
                        self.state = WriterState::Returning { wait, result, more };
                    }
                }
                &mut WriterState::Returning { wait, result, more } => {
                    let outcome = ready!(self.reactor.poll_wait(wait, context));
                    if !outcome.more
                        && let Some(done) = self.count(result, outcome.payload, more)
                    {
                        return Poll::Ready(done);
                    }
                }
                WriterState::Blocked { wait, data, more } => {
                    let outcome = ready!(self.reactor.poll_wait(*wait, context));
                    let (data, more) = (std::mem::take(data), *more);
                    match outcome.result {
                        Ok(_) | Err(Errno::INTR) => self.start(data, more),
                        Err(errno) => return Poll::Ready(self.tear(errno, data)),
                    }
                }
                WriterState::Ready
                | WriterState::Torn
                | WriterState::Moving { .. }
                | WriterState::Awaiting { .. } => {
                    panic!("a send is polled after its result")
                }
            }
        }
    }

    /// Handles the completion of a send. A short count is legal at any time: an engine may stop at a full socket or
    /// between segments.
    fn count(
        &mut self,
        result: Result<u32, Errno>,
        payload: Payload,
        more: bool,
    ) -> Option<(Result<(), Errno>, Segments)> {
        let mut data = match (payload, result) {
            (Payload::Segments(data), _) => data,
            (_, Ok(_)) => return Some(self.tear(Errno::IO, Segments::new())),
            (_, Err(errno)) => return Some(self.tear(errno, Segments::new())),
        };
        match result {
            Ok(0) => return Some(self.tear(Errno::IO, data)),
            Ok(count) => {
                assert!(count as usize <= data.len(), "the count of a send is at most its length");
                data.advance(count as usize);
                self.sent.set(self.sent.get() + u64::from(count));
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let op = Op::Net(NetOp::Poll { fd: self.fd.clone(), interest: Interest::Writable });
                self.state = WriterState::Blocked { wait: self.reactor.start(op, UNLIMITED), data, more };
                return None;
            }
            Err(errno) => return Some(self.tear(errno, data)),
        }
        if data.is_empty() {
            self.state = WriterState::Ready;
            return Some((Ok(()), data));
        }
        self.start(data, more);
        None
    }

    fn tear(&mut self, errno: Errno, data: Segments) -> (Result<(), Errno>, Segments) {
        self.state = WriterState::Torn;
        (Err(errno), data)
    }

    /// As [`Writer::send`] without a future: sends all of `data`, and must be polled again with the same arguments
    /// until it is ready. `data` is empty until then; at the end it has the segments again.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        match self.state {
            WriterState::Ready if data.is_empty() => return Poll::Ready(Ok(())),
            WriterState::Ready => self.start(std::mem::take(data), more),
            // The task that waited for space has given up.
            WriterState::Awaiting { .. } => {
                self.abandon();
                self.start(std::mem::take(data), more);
            }
            WriterState::Sending { .. } | WriterState::Returning { .. } | WriterState::Blocked { .. } => {}
            _ => return Poll::Ready(Err(Errno::CONNABORTED)),
        }
        let (result, back) = ready!(self.poll_sent(context));
        *data = back;
        Poll::Ready(result)
    }

    /// Sends a range of a file without passing through user space (sendfile), and waits while the socket is full.
    /// Returns the number of bytes sent, which may be less than requested; 0 is the end of the file. Polled as
    /// [`Writer::poll_send`].
    pub fn poll_sendfile(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
    ) -> Poll<Result<u32, Errno>> {
        loop {
            let (wait, is_full) = match self.state {
                WriterState::Ready => {
                    let &FilePart { file, offset, len, disk } = part;
                    let (socket, file) = (self.fd.clone(), file.fd().clone());
                    let op = Op::Disk { at: disk, op: DiskOp::Sendfile { socket, file, offset, len } };
                    (self.reactor.start(op, UNLIMITED), false)
                }
                WriterState::Moving { wait, is_full } => (wait, is_full),
                _ => return Poll::Ready(Err(Errno::CONNABORTED)),
            };
            self.state = WriterState::Moving { wait, is_full };
            let result = ready!(self.poll_last(context, wait));
            self.state = match result {
                Err(Errno::INTR) => WriterState::Ready,
                Err(Errno::AGAIN) if !is_full => {
                    WriterState::Moving { wait: self.start_to_poll(), is_full: true }
                }
                Ok(_) if is_full => WriterState::Ready,
                Ok(count) => {
                    self.state = WriterState::Ready;
                    self.sent.set(self.sent.get() + u64::from(count));
                    return Poll::Ready(Ok(count));
                }
                Err(errno) => {
                    self.state = WriterState::Torn;
                    return Poll::Ready(Err(errno));
                }
            };
        }
    }

    /// Waits until the socket accepts bytes. Polled as [`Writer::poll_send`].
    pub fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        loop {
            let wait = match self.state {
                WriterState::Ready => self.start_to_poll(),
                WriterState::Awaiting { wait } => wait,
                _ => return Poll::Ready(Err(Errno::CONNABORTED)),
            };
            self.state = WriterState::Awaiting { wait };
            let result = ready!(self.poll_last(context, wait));
            self.state = WriterState::Ready;
            match result {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(errno)),
            }
        }
    }

    /// Waits for the engine to report that the socket accepts bytes.
    fn start_to_poll(&self) -> OpHandle {
        let op = Op::Net(NetOp::Poll { fd: self.fd.clone(), interest: Interest::Writable });
        self.reactor.start(op, UNLIMITED)
    }

    /// Returns the terminal result of an operation.
    fn poll_last(&self, context: &mut Context<'_>, wait: OpHandle) -> Poll<Result<u32, Errno>> {
        loop {
            let outcome = ready!(self.reactor.poll_wait(wait, context));
            if !outcome.more {
                return Poll::Ready(outcome.result);
            }
        }
    }

    /// Abandons a send that was polled and is not ready. The number of bytes that have reached the peer is unknown, so
    /// nothing more may be sent.
    pub fn abandon(&mut self) {
        let (wait, then) = match self.state {
            WriterState::Sending { wait, .. }
            | WriterState::Returning { wait, .. }
            | WriterState::Blocked { wait, .. }
            | WriterState::Moving { wait, .. } => (wait, WriterState::Torn),
            WriterState::Awaiting { wait } => (wait, WriterState::Ready),
            WriterState::Ready | WriterState::Torn => return,
        };
        self.reactor.abandon(wait);
        self.state = then;
    }

    /// Sends the bytes that the socket accepts immediately, by a system call of this thread; the remaining bytes stay
    /// in `data`. For callers that also make the next system call directly: if the engine sent the remaining bytes,
    /// they would wait for its next kernel entry.
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(data.parts()) {
            *slice = IoSlice::new(part.bytes());
            count += 1;
        }
        let sent = self.send_slices_now(&slices[..count], more)?;
        data.advance(sent);
        Ok(())
    }

    /// As [`Writer::send_now`], for memory that the caller owns. Returns the number of bytes that the socket has accepted.
    pub fn send_slices_now(&mut self, parts: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
        if !matches!(self.state, WriterState::Ready) {
            return Err(Errno::CONNABORTED);
        }
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let result = match parts {
            [] => return Ok(0),
            [part] => rustix::net::send(&self.fd, part, flags),
            parts => rustix::net::sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags),
        };
        match result {
            Ok(count) => {
                self.sent.set(self.sent.get() + count as u64);
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => {
                self.state = WriterState::Torn;
                Err(errno)
            }
        }
    }

    /// As [`Writer::poll_sendfile`], by a system call of this thread, for bytes that are resident; `EAGAIN` when the
    /// socket is full.
    pub fn sendfile_now(&mut self, file: &File, offset: u64, len: u32) -> Result<u32, Errno> {
        if !matches!(self.state, WriterState::Ready) {
            return Err(Errno::CONNABORTED);
        }
        let mut offset = offset;
        let result = rustix::fs::sendfile(&self.fd, file.fd(), Some(&mut offset), len as usize);
        match result {
            Ok(count) => {
                assert!(count <= len as usize, "the count of a send is at most its length");
                self.sent.set(self.sent.get() + count as u64);
                Ok(count as u32)
            }
            Err(Errno::AGAIN | Errno::INTR) => Err(Errno::AGAIN),
            Err(errno) => {
                self.state = WriterState::Torn;
                Err(errno)
            }
        }
    }

    /// Moves all bytes of a pipe to the socket, and waits while the socket is full. Polled as [`Writer::poll_send`].
    pub fn poll_splice(&mut self, context: &mut Context<'_>, pipe: &mut Pipe) -> Poll<Result<(), Errno>> {
        loop {
            match self.state {
                _ if pipe.held() == 0 => return Poll::Ready(Ok(())),
                WriterState::Ready => match pipe.drain(&self.fd) {
                    Ok(count) => {
                        self.sent.set(self.sent.get() + count as u64);
                        if pipe.held() > 0 {
                            self.state = WriterState::Awaiting { wait: self.start_to_poll() };
                        }
                    }
                    Err(Errno::AGAIN) => {
                        self.state = WriterState::Awaiting { wait: self.start_to_poll() };
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => {
                        self.state = WriterState::Torn;
                        return Poll::Ready(Err(errno));
                    }
                },
                WriterState::Awaiting { .. } => ready!(self.poll_writable(context))?,
                _ => return Poll::Ready(Err(Errno::CONNABORTED)),
            }
        }
    }

    /// Sends at least `threshold` bytes without a copy where the engine supports it; `None`, the default, always
    /// copies. Zero-copy sends pay off on a real network card only.
    pub fn set_zero_copy(&mut self, threshold: Option<usize>) {
        self.zero_copy_from = threshold;
    }

    /// Whether a send of this many bytes would copy them.
    pub fn copies(&self, len: usize) -> bool {
        !self.reactor.caps.send_zero_copy || self.zero_copy_from.is_none_or(|threshold| len < threshold)
    }

    /// Returns the number of bytes passed to the kernel.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Returns a number that grows as the peer receives bytes: the bytes acknowledged by TCP, or the bytes sent less
    /// those queued in the kernel; 0 if the kernel reports neither. Makes one system call; meant for use after a timer
    /// has expired.
    pub fn progress(&self) -> u64 {
        progress(&self.fd, self.sent.get())
    }

    /// Closes the sending direction of the socket, shutdown(SHUT_WR), by a system call, because io_uring would use a
    /// kernel worker for this. An error means that the connection is closed, which the reader will report.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Write);
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }
}

/// Sends bytes on a connection whose writer is held by other code and has nothing in flight: for short interim
/// responses.
pub async fn send_interim(socket: &Fd, data: Segments) -> Result<(), Errno> {
    let mut writer = Writer::second(socket);
    writer.send(data, false).await.0
}

/// As [`Writer::progress`], for any socket: subtracts the bytes still queued from `sent`.
pub fn progress(socket: &Fd, sent: u64) -> u64 {
    let fd = socket.as_fd();
    io::sys::tcp_bytes_acked(fd).unwrap_or_else(|_| {
        let queued = io::sys::send_queue_bytes(fd);
        queued.map_or(0, |queued| sent.saturating_sub(u64::from(queued)))
    })
}

/// Returns the bytes that the peer has not acknowledged; 0 if the kernel does not report them.
pub fn unacknowledged(socket: &Fd) -> u64 {
    io::sys::send_queue_bytes(socket.as_fd()).map_or(0, u64::from)
}

/// If a cgroup limits memory: number of bytes that an accepted TCP connection has passed to the kernel and not sent, from which on its
/// socket accepts no more (`TCP_NOTSENT_LOWAT`). Bytes in flight are not limited, so that connections with a long round-trip time are as
/// fast as others.
pub const UNSENT_MAX: u32 = 128 << 10;

/// Returns the number of bytes that a socket accepts without waiting for its peer: a third of the free memory of its
/// send buffer. Packets to a peer with a small window occupy more than twice their bytes; a longer send would wait and
/// occupy its buffer. At most the unsent bytes that the socket still accepts ([`UNSENT_MAX`]). 0 if the kernel does
/// not report it.
pub fn send_space(socket: &Fd) -> u64 {
    let free = io::sys::send_buffer(socket.as_fd()).map_or(0, |(size, used)| size.saturating_sub(used)) / 3;
    if reactor::with_current(|reactor| reactor.caps.memory_max).is_none() {
        return u64::from(free);
    }
    let unsent = io::sys::tcp_info(socket.as_fd()).map_or(0, |info| info.unsent);
    u64::from(free.min(UNSENT_MAX.saturating_sub(unsent)))
}

impl Sending<'_> {
    /// See [`Writer::progress`].
    pub fn progress(&self) -> u64 {
        self.writer.progress()
    }
}

impl Future for Sending<'_> {
    type Output = (Result<(), Errno>, Segments);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.early.take() {
            Some(answer) => Poll::Ready(answer),
            None => self.writer.poll_sent(context),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.writer.abandon();
    }
}

impl Drop for Writer {
    /// Abandons a send in flight, because no task takes its result.
    fn drop(&mut self) {
        self.abandon();
    }
}
