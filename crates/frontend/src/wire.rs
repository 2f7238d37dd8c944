//! The transport of a client's connection, plain or TLS: all socket operations of this crate's protocols use it.
//!
//! Main types: [`Wire`], which the connection owns, and [`WireHandle`] for other users of the socket. Each call has one branch and
//! uses no trait object.
//!
//! ```text
//!   head, body, response of a protocol      code that takes a connection over  requests, concurrently
//!                |                                      | Duplex                    | Client
//!                +------------------- Wire -------------+                       WireHandle
//!                                      |                                            |
//!                                      +---------- socket, or TLS over it ----------------+
//! ```
//! A send takes the caller's bytes and returns the unsent ones. Methods named `poll_` keep their state in the wire: they must be
//! polled again until they are ready or abandoned.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use io::op::PeerAddr;
use io::sys::TcpInfo;
use io::{Buf, Errno, Fd, Segments};
use rt::net::{Appended, FilePart, Pipe};
use rt::{Socket, Timer};

use exchange::cut_off;
use exchange::reclaim::Stall;
use exchange::thread::Thread;
use tls::Stream;
use tls::handshake::Handshaken;
use tls::stream::StreamHandle;
use transfer::body::SendError;
use transfer::duplex::Duplex;

/// A client's connection.
pub enum Wire {
    /// A plain socket.
    Plain(Socket),
    /// TLS over a socket.
    Tls(Box<Stream>),
}

impl Wire {
    /// Wraps the socket in TLS after the handshake. A wire with TLS is unchanged.
    pub fn secured(self, handshaken: Handshaken) -> Wire {
        match self {
            Wire::Plain(socket) => Wire::Tls(Box::new(handshaken.over(socket))),
            Wire::Tls(stream) => Wire::Tls(stream),
        }
    }

    /// Returns the underlying socket.
    fn socket(&self) -> &Socket {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => stream.socket(),
        }
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => stream.socket_mut(),
        }
    }

    /// Creates the wire of an accepted socket.
    pub fn plain(fd: OwnedFd) -> Wire {
        Wire::Plain(Socket::new(fd))
    }

    /// Returns a handle for other code, while the connection owns the wire.
    pub fn handle(&self) -> WireHandle {
        match self {
            Wire::Plain(socket) => WireHandle::Plain(socket.fd().clone()),
            Wire::Tls(stream) => WireHandle::Tls(stream.handle()),
        }
    }

    /// Returns the file descriptor, to identify connections and to check their buffers. It must not be used to send or receive.
    pub fn fd(&self) -> &Fd {
        self.socket().fd()
    }

    /// Returns the address of the peer.
    pub fn peer(&self) -> Result<PeerAddr, Errno> {
        self.socket().peer()
    }

    /// Returns the local address.
    pub fn local(&self) -> Result<PeerAddr, Errno> {
        self.socket().local()
    }

    /// Sends the closing message of TLS, and closes the socket when its last owner releases it.
    pub fn end(mut self, thread: &Thread) {
        self.send_close_notify();
        if thread.calls_directly {
            self.socket_mut().close_directly();
        }
    }

    /// See [`Socket::set_nodelay`]. A Unix socket has no such option; the error is ignored.
    pub fn set_nodelay(&self) {
        let _ = self.socket().set_nodelay(true);
    }

    /// Makes closing the connection send a reset.
    pub fn set_reset_on_close(&self) {
        let _ = self.socket().set_reset_on_close();
    }

    /// See [`rt::net::Writer::set_zero_copy`].
    pub fn set_zero_copy(&mut self, threshold: Option<usize>) {
        self.socket_mut().writer.set_zero_copy(threshold);
    }
}

/// Receiving.
impl Wire {
    /// See [`rt::net::Reader::recv`].
    pub async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        match self {
            Wire::Plain(socket) => socket.reader.recv().await,
            Wire::Tls(stream) => stream.recv().await,
        }
    }

    /// See [`rt::net::Reader::poll_recv`].
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.poll_recv(context),
            Wire::Tls(stream) => stream.poll_recv(context),
        }
    }

    /// See [`rt::net::Reader::try_recv`].
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.try_recv(),
            Wire::Tls(stream) => stream.try_recv(),
        }
    }

    /// See [`rt::net::Reader::recv_now`].
    pub fn recv_now(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.recv_now(),
            // Received bytes must be decrypted, and a record may be incomplete.
            Wire::Tls(stream) => stream.try_recv(),
        }
    }

    /// See [`rt::net::Reader::recv_append_now`].
    pub fn recv_append_now(&mut self, buf: &mut Buf) -> Option<Result<usize, Errno>> {
        match self {
            Wire::Plain(socket) => socket.reader.recv_append_now(buf),
            // Received bytes must be decrypted, and a record may be incomplete.
            Wire::Tls(_) => None,
        }
    }

    /// See [`rt::net::Reader::recv_append`].
    pub async fn recv_append(&mut self, buf: Buf) -> Result<Appended, Errno> {
        match self {
            Wire::Plain(socket) => socket.reader.recv_append(buf).await,
            // Plaintext is returned in the buffers in which its records were received.
            Wire::Tls(stream) => Ok(match stream.recv().await? {
                Some(received) => Appended::Separate(buf, received),
                None => Appended::End,
            }),
        }
    }

    /// See [`rt::net::Reader::acknowledge`].
    pub fn acknowledge(&self) {
        self.socket().reader.acknowledge();
    }

    /// See [`rt::net::Reader::set_multishot`].
    pub fn set_multishot(&mut self, multishot: bool) {
        self.socket_mut().reader.set_multishot(multishot);
    }

    /// See [`rt::net::Reader::disarm`].
    pub fn disarm(&mut self) {
        self.socket_mut().reader.disarm();
    }

    /// See [`rt::net::Reader::is_quiet`].
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Wire::Plain(socket) => socket.reader.is_quiet(),
            Wire::Tls(stream) => stream.is_quiet(),
        }
    }
}

/// Sending.
impl Wire {
    /// See [`rt::net::Writer::poll_send`].
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        match self {
            Wire::Plain(socket) => socket.writer.poll_send(context, data, more),
            Wire::Tls(stream) => stream.poll_send(context, data, more),
        }
    }

    /// Returns the means to end a stalled send in favour of another connection.
    pub fn room<'a>(&'a self, thread: &'a Rc<Thread>) -> Room<'a> {
        Room { thread, socket: self.fd() }
    }

    /// Sends bytes from memory, and returns in `data` the memory that the kernel no longer uses. This is not an async function,
    /// because its additional state would be part of every connection.
    ///
    /// # Errors
    /// The client accepted no bytes for `timeout`, disconnected, or was chosen to make room for another connection. No bytes may be
    /// sent afterwards.
    pub fn send<'a>(
        &'a mut self,
        thread: &'a Rc<Thread>,
        timer: &'a Timer,
        timeout: Duration,
        data: &'a mut Segments,
        more: bool,
    ) -> impl Future<Output = Result<(), SendError>> + 'a {
        // Short responses do not stall, unless the client has read none of many.
        let is_watched = data.len() >= WATCHED_MIN || thread.capacity.is_busy();
        let mut progress_timeout = ProgressTimeout::new(timeout);
        poll_fn(move |context| {
            let polled = self.poll_send(context, data, more);
            let room = is_watched.then(|| self.room(thread));
            let sent = match progress_timeout.follow(context, timer, polled, room, || self.sent_progress()) {
                Poll::Pending if cut_off::has_begun() => Err(SendError::CutOff),
                polled => ready!(polled),
            };
            self.abandon_send();
            Poll::Ready(sent)
        })
    }

    /// See [`rt::net::Writer::send_now`].
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        match self {
            Wire::Plain(socket) => socket.writer.send_now(data, more),
            Wire::Tls(stream) => stream.send_now(data, more),
        }
    }

    /// See [`rt::net::Writer::copies`].
    pub fn copies(&self, len: usize) -> bool {
        match self {
            Wire::Plain(socket) => socket.writer.copies(len),
            Wire::Tls(_) => true,
        }
    }

    /// Whether file bytes can be sent by sendfile, without reading them.
    pub fn accepts_files(&self) -> bool {
        matches!(self, Wire::Plain(_))
    }

    /// See [`rt::net::Writer::poll_sendfile`].
    pub fn poll_sendfile(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
    ) -> Poll<Result<u32, Errno>> {
        match self {
            Wire::Plain(socket) => socket.writer.poll_sendfile(context, part),
            Wire::Tls(_) => Poll::Ready(Err(Errno::OPNOTSUPP)),
        }
    }

    /// See [`rt::net::Writer::sendfile_now`].
    pub fn sendfile_now(&mut self, part: &FilePart<'_>) -> Result<u32, Errno> {
        match self {
            Wire::Plain(socket) => socket.writer.sendfile_now(part.file, part.offset, part.len),
            Wire::Tls(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// See [`rt::net::Writer::poll_splice`].
    pub fn poll_splice(&mut self, context: &mut Context<'_>, pipe: &mut Pipe) -> Poll<Result<(), Errno>> {
        match self {
            Wire::Plain(socket) => socket.writer.poll_splice(context, pipe),
            Wire::Tls(_) => Poll::Ready(Err(Errno::OPNOTSUPP)),
        }
    }

    /// See [`rt::net::Writer::poll_writable`].
    pub fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        self.socket_mut().writer.poll_writable(context)
    }

    /// See [`rt::net::Writer::abandon`].
    pub fn abandon_send(&mut self) {
        self.socket_mut().writer.abandon();
    }

    /// See [`rt::net::Writer::progress`].
    pub fn sent_progress(&self) -> u64 {
        self.socket().writer.progress()
    }

    /// Returns a number that increases as the client accepts bytes, including file bytes; see [`rt::net::progress`].
    pub fn progress(&self) -> u64 {
        rt::net::progress(self.fd(), u64::MAX)
    }

    /// Returns the number of bytes that can be sent without waiting for the client; see [`rt::net::send_space`].
    pub fn send_space(&self) -> u64 {
        rt::net::send_space(self.fd())
    }

    /// Returns the number of bytes that the client has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        rt::net::unacknowledged(self.fd())
    }

    /// Whether the kernel has closed the connection, because the client has reset it.
    pub fn is_broken(&self) -> bool {
        io::sys::tcp_info(self.fd().as_fd()).is_ok_and(|info| info.is_closed)
    }

    /// See [`Socket::set_cork`]. A Unix socket has no segments and returns an error, which is ignored.
    pub fn set_cork(&self, on: bool) {
        let _ = self.socket().set_cork(on);
    }

    /// Closes the sending direction: shutdown(SHUT_WR), with TLS after its closing message.
    pub fn shutdown_write(&mut self) {
        match self {
            Wire::Plain(socket) => socket.writer.shutdown(),
            Wire::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Whether bytes that a call has accepted are unsent: [`Wire::poll_send`] sends them, also without further bytes.
    pub fn has_unsent(&self) -> bool {
        match self {
            Wire::Plain(_) => false,
            Wire::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Sends the closing message of TLS, before the connection is closed.
    pub fn send_close_notify(&mut self) {
        if let Wire::Tls(stream) = self {
            stream.send_close_notify();
        }
    }
}

impl Duplex for Wire {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        Wire::poll_recv(self, context)
    }

    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        Wire::try_recv(self)
    }

    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>> {
        Wire::poll_send(self, context, data, false)
    }

    fn end_sending(&mut self) {
        self.shutdown_write();
    }

    fn socket(&self) -> Option<&Fd> {
        Some(self.fd())
    }

    fn plain(&mut self) -> Option<&mut Socket> {
        match self {
            Wire::Plain(socket) => Some(socket),
            Wire::Tls(_) => None,
        }
    }
}

/// Handle to a connection for code that does not own its [`Wire`].
pub enum WireHandle {
    /// A plain socket.
    Plain(Fd),
    /// TLS over a socket.
    Tls(StreamHandle),
}

impl WireHandle {
    fn fd(&self) -> &Fd {
        match self {
            WireHandle::Plain(socket) => socket,
            WireHandle::Tls(stream) => stream.fd(),
        }
    }

    /// Waits until the client has shut down its side, or the connection is broken.
    pub fn hung_up(&self) -> impl Future<Output = ()> + use<> {
        let socket = self.fd().clone();
        async move { rt::net::hung_up(&socket).await }
    }

    /// See [`Wire::send_space`].
    pub fn send_space(&self) -> u64 {
        rt::net::send_space(self.fd())
    }

    /// Sends bytes. The wire must have none in flight.
    pub fn send(&self, data: Segments) -> Pin<Box<dyn Future<Output = Result<(), Errno>>>> {
        match self {
            WireHandle::Plain(socket) => {
                let socket = socket.clone();
                Box::pin(async move { rt::net::send_interim(&socket, data).await })
            }
            WireHandle::Tls(stream) => Box::pin(stream.send(data)),
        }
    }

    /// Returns the kernel's `TCP_INFO` of the connection; `None` if it is not TCP.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        io::sys::tcp_info(self.fd().as_fd()).ok()
    }
}

/// The means to end a stalled send in favour of another connection.
#[derive(Clone, Copy)]
pub struct Room<'a> {
    thread: &'a Rc<Thread>,
    socket: &'a Fd,
}

/// Time that a send may wait before its connection is registered as one whose client may have ceased to read. Most sends take less
/// and save the registration.
const WATCHED_AFTER: Duration = Duration::from_millis(200);

/// Minimum size in bytes of a response in memory whose send is always registered.
const WATCHED_MIN: usize = 64 << 10;

/// Timeout of a send without progress.
pub struct ProgressTimeout {
    timeout: Duration,
    state: Waiting,
    /// The registration of a send that takes longer, in a box because it is rare and each connection has this value.
    stall: Option<Box<Stall>>,
}

/// State of waiting for a send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// No send waits.
    No,
    /// A send waits for less than the timeout.
    Started,
    /// A send waits longer; the value is the progress at the last check.
    Since(u64),
}

impl ProgressTimeout {
    /// Creates the timeout of a send.
    pub fn new(timeout: Duration) -> ProgressTimeout {
        ProgressTimeout { timeout, state: Waiting::No, stall: None }
    }

    /// Whether a send waits.
    pub fn is_running(&self) -> bool {
        self.state != Waiting::No
    }

    /// Processes the result of a poll: returns an error once the client has accepted no bytes for the timeout. `progress` returns a
    /// number that grows as the client accepts bytes. The first check has no earlier number to compare with, but a send that completes
    /// in time needs no query of the kernel. With `room`, that check follows soon, and then the connection can be chosen to make room
    /// for another.
    pub fn follow<T>(
        &mut self,
        context: &Context<'_>,
        timer: &Timer,
        polled: Poll<Result<T, Errno>>,
        room: Option<Room<'_>>,
        progress: impl Fn() -> u64,
    ) -> Poll<Result<T, SendError>> {
        if polled.is_pending() && self.state == Waiting::No && room.is_some() {
            self.state = Waiting::Started;
            timer.set(rt::now() + self.timeout.min(WATCHED_AFTER));
        }
        self.follow_with(context, timer, polled, room, || None, progress)
    }

    /// Like [`ProgressTimeout::follow`]. `first` may return the progress at the start of the wait: then a stalled client is detected
    /// after one timeout.
    pub fn follow_from<T>(
        &mut self,
        context: &Context<'_>,
        timer: &Timer,
        polled: Poll<Result<T, Errno>>,
        first: impl FnOnce() -> Option<u64>,
        progress: impl Fn() -> u64,
    ) -> Poll<Result<T, SendError>> {
        self.follow_with(context, timer, polled, None, first, progress)
    }

    fn follow_with<T>(
        &mut self,
        context: &Context<'_>,
        timer: &Timer,
        polled: Poll<Result<T, Errno>>,
        room: Option<Room<'_>>,
        first: impl FnOnce() -> Option<u64>,
        progress: impl Fn() -> u64,
    ) -> Poll<Result<T, SendError>> {
        if let Poll::Ready(result) = polled {
            (self.state, self.stall) = (Waiting::No, None);
            return Poll::Ready(result.map_err(SendError::Closed));
        }
        if self.state == Waiting::No {
            self.state = first().map_or(Waiting::Started, Waiting::Since);
            timer.set(rt::now() + self.timeout);
        }
        loop {
            ready!(timer.poll_elapsed(context));
            let is_chosen = self.stall.as_ref().is_some_and(|stall| stall.is_chosen());
            let now = Waiting::Since(progress());
            if is_chosen || now == self.state {
                (self.state, self.stall) = (Waiting::No, None);
                let error = if is_chosen { SendError::Reclaimed } else { SendError::TimedOut };
                return Poll::Ready(Err(error));
            }
            if let (Some(room), None) = (room, &self.stall) {
                let progress = rt::net::progress(room.socket, u64::MAX);
                self.stall = Some(Box::new(Stall::begin(room.thread, timer, room.socket, progress)));
            }
            self.state = now;
            timer.set(rt::now() + self.timeout);
        }
    }
}
