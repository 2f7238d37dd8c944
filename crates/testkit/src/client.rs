//! A client that sends exactly the test's bytes, on a TCP or unix connection.
//!
//! [`Client`] sends raw bytes, in one or several pieces, and reads raw bytes or [`Response`]s. It adds nothing, not
//! even a `Host` field, unless [`Client::get`] or [`Client::request`] composes the request. Every operation fails at
//! the client's [`Deadline`]; a test that cannot continue panics with the sent and received bytes. The `try_` variants
//! return the fault for tests that expect one.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use crate::bridge;
use crate::response::{self, BodyLength, BodyReader, Fault, Head, Response};
use crate::server::ListenAddr;
use crate::socket::Socket;
use crate::wait::{self, Deadline};

/// Maximum number of bytes of the last request that a panic message shows.
const SHOWN_BYTES: usize = 300;

/// One connection to a server.
pub struct Client {
    stream: BufReader<Stream>,
    last_sent: Vec<u8>,
    /// The client address that the server sees, if a bridge is in between.
    bridged: Option<SocketAddr>,
}

impl Client {
    /// Connects to an address that the harness has determined.
    #[track_caller]
    pub fn connect(to: &ListenAddr) -> Client {
        Client::try_connect(to).unwrap_or_else(|error| panic!("connect to {to}: {error}"))
    }

    /// Connects, and returns the error: for servers that are expected to refuse.
    pub fn try_connect(to: &ListenAddr) -> io::Result<Client> {
        if let (true, ListenAddr::Tcp(address)) = (bridge::is_enabled(), to) {
            let (stream, local) = bridge::connect(*address)?;
            return Ok(Client { bridged: Some(local), ..Client::over(Socket::Unix(stream)) });
        }
        Ok(Client::over(Socket::connect(to)?))
    }

    /// Connects with a receive buffer of about `bytes`, so that a client that stops reading soon blocks the server. The
    /// kernel doubles the number and has a minimum (socket(7), SO_RCVBUF).
    #[track_caller]
    pub fn connect_narrow(address: SocketAddr, bytes: usize) -> Client {
        let socket = Socket::connect_narrow(address, bytes);
        Client::over(socket.unwrap_or_else(|error| panic!("connect to {address}: {error}")))
    }

    fn over(socket: Socket) -> Client {
        let stream = Stream { socket, deadline: Deadline::default() };
        Client { stream: BufReader::new(stream), last_sent: Vec::new(), bridged: None }
    }

    /// Sets a time limit for all following operations together.
    pub fn deadline(&mut self, limit: Duration) -> &mut Client {
        self.stream.get_mut().deadline = Deadline::after(limit);
        self
    }

    /// Sends bytes unchanged.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        let bytes = bytes.as_ref();
        self.try_send(bytes).unwrap_or_else(|error| self.fail("send", &error));
        self
    }

    /// Sends bytes, and returns the error: for connections that the server may have closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.last_sent.clear();
        self.last_sent.extend_from_slice(&bytes[..bytes.len().min(SHOWN_BYTES)]);
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends bytes in pieces of `piece` bytes, each by a separate system call and segment. The server may still receive
    /// several of them in one read: to make it receive one separately, wait for an effect of that piece.
    #[track_caller]
    pub fn send_in_pieces(&mut self, bytes: impl AsRef<[u8]>, piece: usize) -> &mut Client {
        for part in bytes.as_ref().chunks(piece) {
            self.send(part);
            std::thread::yield_now();
        }
        self
    }

    /// Sends a GET for `target` on a connection that stays open, and reads the response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    /// Sends a request without a body and reads the response. `Host: localhost` is added unless `fields` has one.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        self.send(request_bytes(method, target, fields));
        if method == "HEAD" { self.response_to_head() } else { self.response() }
    }

    /// Reads one response with its body. An interim response (1xx) counts as one without a body.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.try_response().unwrap_or_else(|fault| self.fail("response", &fault))
    }

    /// Reads the response to a HEAD request.
    #[track_caller]
    pub fn response_to_head(&mut self) -> Response {
        response::read_response(&mut self.stream, true).unwrap_or_else(|fault| self.fail("response", &fault))
    }

    /// Reads one response, and returns its fault.
    pub fn try_response(&mut self) -> Result<Response, Fault> {
        response::read_response(&mut self.stream, false)
    }

    /// Reads one response to a HEAD request, and returns its fault.
    pub fn try_response_to_head(&mut self) -> Result<Response, Fault> {
        response::read_response(&mut self.stream, true)
    }

    /// Reads only the head; then read the body with [`Client::body`] or as raw bytes.
    #[track_caller]
    pub fn head(&mut self) -> Head {
        response::read_head(&mut self.stream).unwrap_or_else(|fault| self.fail("head", &fault))
    }

    /// Returns a reader of the body that follows `head`, for bodies that are too large for memory. Read it completely
    /// before the next response.
    #[track_caller]
    pub fn body(&mut self, head: &Head) -> BodyReader<'_> {
        let length = head.body_length(false).unwrap_or_else(|fault| self.fail("body", &fault));
        BodyReader::new(&mut self.stream, length)
    }

    /// Returns a reader up to the end of the connection.
    pub fn rest(&mut self) -> BodyReader<'_> {
        BodyReader::new(&mut self.stream, BodyLength::Close)
    }

    /// Reads exactly `count` raw bytes.
    #[track_caller]
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap_or_else(|error| self.fail("read_exact", &error));
        bytes
    }

    /// Reads exactly `count` raw bytes, unless the connection ends earlier.
    pub fn try_read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads `count` raw bytes, at most `piece` at a time with a pause after each: a slow reader.
    #[track_caller]
    pub fn read_slowly(&mut self, count: usize, piece: usize, pause: Duration) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            bytes.extend(self.read_exact(piece.min(count - bytes.len())));
            self.idle(pause);
        }
        bytes
    }

    /// Does nothing for about this time, like a client that has stopped reading.
    pub fn idle(&mut self, time: Duration) {
        let end = Deadline::after(time);
        while let Some(left) = end.left() {
            wait::pause(left);
        }
    }

    /// Reads everything up to the end of the connection.
    #[track_caller]
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).unwrap_or_else(|error| self.fail("read_to_end", &error));
        bytes
    }

    /// Panics unless the server closes the connection without sending another byte. A reset counts as a close: the
    /// kernel sends one if the server closes with unread bytes of the client.
    #[track_caller]
    pub fn expect_end(&mut self) {
        match self.stream.fill_buf() {
            Ok([]) => {}
            Ok(bytes) => {
                let bytes = bytes.to_vec();
                self.fail("end of connection", &format!("got {:?}", String::from_utf8_lossy(&bytes)));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => self.fail("end of connection", &error),
        }
    }

    /// Panics if the server sends a byte or closes the connection within `time`.
    #[track_caller]
    pub fn expect_silence(&mut self, time: Duration) {
        let script_deadline = std::mem::replace(&mut self.stream.get_mut().deadline, Deadline::after(time));
        let outcome = self.stream.fill_buf().map(<[u8]>::to_vec);
        self.stream.get_mut().deadline = script_deadline;
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => self.fail("silence", &error),
            Ok(bytes) => self.fail("silence", &format!("got {:?}", String::from_utf8_lossy(&bytes))),
        }
    }

    /// Shuts down the sending direction and continues to read.
    #[track_caller]
    pub fn half_close(&mut self) -> &mut Client {
        match self.stream.get_ref().socket.shutdown(Shutdown::Write) {
            // shutdown(2): the peer has reset the connection, so it is already closed.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            outcome => outcome.unwrap_or_else(|error| self.fail("half close", &error)),
        }
        self
    }

    /// Closes the connection with a reset instead of a FIN.
    pub fn reset(self) {
        self.stream.get_ref().socket.reset_on_close();
    }

    /// Returns the local address, for a search in the server's log. `None` on a unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.stream.get_ref().socket {
            Socket::Tcp(stream) => stream.local_addr().ok(),
            Socket::Unix(_) => self.bridged,
        }
    }

    #[track_caller]
    fn fail(&self, step: &str, error: &dyn std::fmt::Display) -> ! {
        let sent = String::from_utf8_lossy(&self.last_sent);
        panic!("client: {step}: {error} (last sent: {sent:?})")
    }
}

/// Returns the bytes of a request without a body, for pipelining or sending in pieces.
pub fn request_bytes(method: &str, target: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("Host: localhost\r\n");
    }
    for (name, value) in fields {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// A socket with a deadline for reads and writes.
#[derive(Debug)]
struct Stream {
    socket: Socket,
    deadline: Deadline,
}

impl Stream {
    fn left(&self) -> io::Result<Duration> {
        self.deadline.left().ok_or_else(timed_out)
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client's deadline passed")
}

/// Converts EAGAIN of a socket timeout (socket(7), SO_RCVTIMEO) to a timeout error, which is easier to understand.
fn name_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { timed_out() } else { error }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        let outcome = self.socket.set_read_timeout(left).and_then(|()| self.socket.read(out));
        outcome.map_err(name_timeout)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        let outcome = self.socket.set_write_timeout(left).and_then(|()| self.socket.write(bytes));
        outcome.map_err(name_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the value of `Authorization` for a user name and a password, separated by a colon (RFC 7617).
pub fn basic(user_and_password: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("Basic ");
    for group in user_and_password.as_bytes().chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}
