//! A TLS stream over a socket of `rt`, after the handshake. It has the interface of a socket.
//!
//! The plaintext of received records is returned in the buffer in which the records arrived. Each send encrypts
//! plaintext into one buffer of the thread's buffer pool. A stream that waits for its peer uses no buffer.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::segments::Source;
use io::{Buf, Errno, Segments};
use rt::Socket;
use rt::net::{Reader, Writer};

use crate::session::{Session, TlsError};

/// Maximum number of encrypted bytes per send: three records and most of a fourth. A larger buffer would be in use for
/// longer, because the next send encrypts only after this one has completed.
pub const SEND_BYTES: usize = 64 << 10;

/// A TLS connection.
pub struct Stream {
    socket: Socket,
    /// The session. Both directions use it, and neither borrows it across an await.
    session: Rc<RefCell<Session>>,
    receiving: Receiving,
    sealed: Sealed,
}

/// Encrypted bytes for the peer that have not been sent completely.
#[derive(Default)]
struct Sealed {
    data: Segments,
    /// Whether encrypted bytes are not sent yet. `data` may be empty then, because the writer owns the bytes in flight.
    is_unsent: bool,
}

/// Received bytes that have not been returned.
#[derive(Default)]
pub(crate) struct Receiving {
    /// Plaintext that did not fit into the buffer in which its records arrived. The bytes before `start` have been
    /// returned.
    pub(crate) plain: Vec<u8>,
    start: usize,
    /// A pending request for a buffer of the pool, for the plaintext.
    wanted: Option<rt::BufferRequest>,
    /// The error that ended the session.
    failed: Option<TlsError>,
}

/// Sends a last message to a peer before the connection is closed. The message is lost if the socket's send buffer is
/// full.
pub(crate) fn send_last(socket: &mut Socket, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        let mut data = Segments::from(bytes);
        let _ = socket.writer.send_now(&mut data, false);
    }
}

impl Stream {
    pub(crate) fn new(socket: Socket, session: Rc<RefCell<Session>>, receiving: Receiving) -> Stream {
        Stream { socket, session, receiving, sealed: Sealed::default() }
    }

    /// Returns the socket of the stream.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns a writer that sends while the owner of the stream receives.
    pub fn writer(&self) -> StreamWriter {
        let (writer, session) = (Writer::second(self.socket.fd()), Rc::clone(&self.session));
        StreamWriter { writer, session, sealed: Sealed::default(), sent: 0 }
    }

    /// Receives like [`Stream::recv`], but uses `buf` for records that need more memory than an engine's buffer.
    pub async fn recv_into(&mut self, buf: Buf) -> Result<Option<Buf>, Errno> {
        if self.has_plaintext() || self.receiving.failed.is_some() || self.session.borrow().peer_closed() {
            return self.recv().await;
        }
        let Some(buf) = self.socket.reader.recv_into(buf).await? else { return Ok(None) };
        match self.receiving.open(&self.session, buf) {
            Some(buf) => Ok(Some(buf)),
            None => self.recv().await,
        }
    }

    /// Returns a handle for users of the stream other than its owner.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle { socket: self.socket.fd().clone(), session: Rc::clone(&self.session) }
    }

    /// Returns bytes that have already arrived, without submitting a receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        self.split().0.try_recv()
    }

    /// Whether the peer has ended the session, or the session has failed.
    pub fn has_ended(&self) -> bool {
        self.receiving.failed.is_some() || self.session.borrow().peer_closed()
    }

    /// Whether no plaintext, end of stream or error is pending.
    pub fn is_quiet(&mut self) -> bool {
        !self.has_plaintext() && !self.has_ended() && self.socket.reader.is_quiet()
    }

    /// Returns the socket of the stream.
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Calls `ask` with the session, to read facts about the handshake and the peer.
    pub fn with_session<T>(&self, ask: impl FnOnce(&Session) -> T) -> T {
        ask(&self.session.borrow())
    }

    /// Returns both directions.
    pub fn split(&mut self) -> (TlsReader<'_>, TlsWriter<'_>) {
        let (reader, writer) = self.socket.split();
        let session = &self.session;
        let receiving = &mut self.receiving;
        (TlsReader { reader, session, receiving }, TlsWriter { writer, session, sealed: &mut self.sealed })
    }

    /// Returns the next plaintext, or `None` at the end of the stream. A connection that is closed without a
    /// close_notify alert also ends the stream, as in nginx: HTTP marks the end of its messages itself.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        self.split().0.poll_recv(context)
    }

    /// Receives like [`Stream::poll_recv`].
    pub async fn recv(&mut self) -> Result<Option<Buf>, Errno> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Sends all of `data`; see [`rt::net::Writer::poll_send`].
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        self.split().1.poll_send(context, data, more)
    }

    /// Encrypts the bytes that fit into one buffer, and sends by one system call as many as the socket's send buffer
    /// accepts; see [`rt::net::Writer::send_now`]. Afterwards [`Stream::has_unsent`] shows whether encrypted bytes
    /// remain.
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        self.split().1.send_now(data, more)
    }

    /// Makes the next send include the output of the session that otherwise waits for the first plaintext, such as the last message of
    /// a client's handshake: for protocols whose server sends first.
    pub fn queue_output(&mut self) {
        debug_assert!(!self.sealed.is_unsent, "nothing was sent before");
        let output = self.session.borrow_mut().output();
        if !output.is_empty() {
            self.sealed.data.push(Source::Vec(output));
            self.sealed.is_unsent = true;
        }
    }

    /// Whether encrypted bytes are not sent yet. [`Stream::poll_send`] sends them, even if `data` is empty.
    pub fn has_unsent(&self) -> bool {
        self.sealed.is_unsent
    }

    /// Sends a close_notify alert, unless the socket's send buffer is full.
    pub fn send_close_notify(&mut self) {
        if self.sealed.is_unsent {
            return;
        }
        let mut session = self.session.borrow_mut();
        // The output of a failed session is another alert for the peer.
        let bytes = session.close().unwrap_or_else(|_| session.output());
        send_last(&mut self.socket, bytes);
    }

    /// Sends a close_notify alert like [`Stream::send_close_notify`], then calls shutdown(SHUT_WR).
    pub fn shutdown_write(&mut self) {
        self.send_close_notify();
        self.socket.writer.shutdown();
    }

    /// Returns the error of a failed session.
    pub fn failure(&self) -> Option<&TlsError> {
        self.receiving.failed.as_ref()
    }

    /// Whether decrypted plaintext is pending.
    pub fn has_plaintext(&self) -> bool {
        self.receiving.start < self.receiving.plain.len()
    }
}

/// Sends for a user other than the owner of a stream, while the owner only receives.
pub struct StreamWriter {
    writer: Writer,
    session: Rc<RefCell<Session>>,
    sealed: Sealed,
    /// Number of plaintext bytes encrypted so far.
    sent: u64,
}

impl StreamWriter {
    /// See [`Stream::poll_send`].
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        let before = data.len();
        let StreamWriter { writer, session, sealed, .. } = self;
        let sent = TlsWriter { writer, session, sealed }.poll_send(context, data, more);
        self.sent += (before - data.len()) as u64;
        sent
    }

    /// Returns the number of plaintext bytes encrypted for the peer.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// See [`Writer::progress`].
    pub fn progress(&self) -> u64 {
        self.writer.progress()
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.writer.abandon();
    }
}

/// Operations on a stream for users other than its owner.
pub struct StreamHandle {
    socket: io::Fd,
    session: Rc<RefCell<Session>>,
}

impl StreamHandle {
    /// Returns the file descriptor of the socket.
    pub fn fd(&self) -> &io::Fd {
        &self.socket
    }

    /// Sends plaintext while the stream has no send in flight.
    pub fn send(&self, mut data: Segments) -> impl Future<Output = Result<(), Errno>> + use<> {
        let (socket, session) = (self.socket.clone(), Rc::clone(&self.session));
        async move {
            while !data.is_empty() {
                let mut sealed = Segments::new();
                sealed.push(seal(&mut session.borrow_mut(), &mut data).map_err(|_| Errno::CONNABORTED)?);
                rt::net::send_interim(&socket, sealed).await?;
            }
            Ok(())
        }
    }
}

/// The receiving direction of a [`Stream`].
pub struct TlsReader<'s> {
    reader: &'s mut Reader,
    session: &'s RefCell<Session>,
    receiving: &'s mut Receiving,
}

impl TlsReader<'_> {
    /// See [`Stream::poll_recv`].
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        loop {
            if self.receiving.start < self.receiving.plain.len() {
                return self.receiving.poll_plain(context).map(|buf| Ok(Some(buf)));
            }
            if self.receiving.failed.is_some() {
                return Poll::Ready(Err(Errno::CONNABORTED));
            }
            if self.session.borrow().peer_closed() {
                return Poll::Ready(Ok(None));
            }
            let Some(buf) = ready!(self.reader.poll_recv(context))? else { return Poll::Ready(Ok(None)) };
            if let Some(buf) = self.receiving.open(self.session, buf) {
                return Poll::Ready(Ok(Some(buf)));
            }
            self.acknowledge();
        }
    }

    /// Acknowledges a message that is not plaintext and that the peer's next bytes follow, such as a Finished message after early
    /// data. The session's output waits for the next plaintext, and a peer with Nagle's algorithm for the acknowledgement.
    fn acknowledge(&self) {
        if self.session.borrow().has_output() {
            self.reader.acknowledge();
        }
    }

    /// Returns bytes that have already arrived, without submitting a receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        loop {
            if self.receiving.start < self.receiving.plain.len() {
                let mut buf = rt::try_buffer(self.receiving.plain.len() - self.receiving.start)?;
                self.receiving.hand_out(&mut buf);
                return Some(Ok(Some(buf)));
            }
            if self.receiving.failed.is_some() {
                return Some(Err(Errno::CONNABORTED));
            }
            if self.session.borrow().peer_closed() {
                return Some(Ok(None));
            }
            match self.reader.try_recv()? {
                Ok(Some(buf)) => {
                    if let Some(buf) = self.receiving.open(self.session, buf) {
                        return Some(Ok(Some(buf)));
                    }
                    self.acknowledge();
                }
                end => return Some(end),
            }
        }
    }
}

impl Receiving {
    /// Creates the state with plaintext that arrived during the handshake.
    pub(crate) fn with(plain: Vec<u8>) -> Receiving {
        Receiving { plain, ..Receiving::default() }
    }

    /// Decrypts the records in a buffer, and replaces them by as much of their plaintext as fits. Returns `None`
    /// without plaintext.
    fn open(&mut self, session: &RefCell<Session>, mut buf: Buf) -> Option<Buf> {
        let plain = &mut self.plain;
        let mut take = |bytes: &[u8]| plain.extend_from_slice(bytes);
        let read = session.borrow_mut().read(&mut buf, &mut take);
        self.failed = read.err();
        if self.plain.is_empty() {
            return None;
        }
        buf.set_len(0);
        self.hand_out(&mut buf);
        Some(buf)
    }

    /// Moves plaintext into an empty buffer.
    fn hand_out(&mut self, buf: &mut Buf) {
        self.start += buf.append(&self.plain[self.start..]);
        if self.start == self.plain.len() {
            self.plain = Vec::new();
            self.start = 0;
        }
    }

    /// Returns the remaining plaintext, if necessary after waiting for a buffer.
    fn poll_plain(&mut self, context: &mut Context<'_>) -> Poll<Buf> {
        let left = self.plain.len() - self.start;
        let wanted = self.wanted.get_or_insert_with(|| rt::buffer(left, 0));
        let mut buf = ready!(std::pin::Pin::new(wanted).poll(context));
        self.wanted = None;
        self.hand_out(&mut buf);
        Poll::Ready(buf)
    }
}

/// The sending direction of a [`Stream`].
pub struct TlsWriter<'s> {
    writer: &'s mut Writer,
    session: &'s RefCell<Session>,
    sealed: &'s mut Sealed,
}

impl TlsWriter<'_> {
    /// See [`Stream::poll_send`]. After a failed session or socket, all further sends fail.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Segments,
        more: bool,
    ) -> Poll<Result<(), Errno>> {
        loop {
            if self.sealed.is_unsent {
                let follows = more || !data.is_empty();
                ready!(self.writer.poll_send(context, &mut self.sealed.data, follows))?;
                *self.sealed = Sealed::default();
            }
            if data.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.seal(data)?;
        }
    }

    /// See [`Stream::send_now`].
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        if self.sealed.is_unsent || data.is_empty() {
            return Ok(());
        }
        self.seal(data)?;
        self.writer.send_now(&mut self.sealed.data, more || !data.is_empty())?;
        if self.sealed.data.is_empty() {
            *self.sealed = Sealed::default();
        }
        Ok(())
    }

    /// See [`rt::net::Writer::abandon`].
    pub fn give_up(&mut self) {
        self.writer.abandon();
    }

    /// Encrypts the first bytes of `data`, as many as fit into one buffer.
    fn seal(&mut self, data: &mut Segments) -> Result<(), Errno> {
        let sealed = seal(&mut self.session.borrow_mut(), data).map_err(|_| Errno::CONNABORTED)?;
        self.sealed.data.push(sealed);
        self.sealed.is_unsent = true;
        Ok(())
    }
}

/// Encrypts the first bytes of `data` into one buffer, and removes them from `data`.
fn seal(session: &mut Session, data: &mut Segments) -> Result<Source, TlsError> {
    let len = data.len();
    // The length includes the session's own output: tickets contain the client's certificate chain, and can be longer
    // than a buffer.
    let one_record = session.sealed_bytes(session.record_bytes());
    let wanted = session.sealed_bytes(len).min(SEND_BYTES.max(one_record));
    match rt::try_buffer(wanted) {
        Some(mut buf) => {
            let sealed = seal_into(session, data, buf.space())?;
            buf.set_len(sealed);
            Ok(Source::Buf(buf))
        }
        // `data` may contain buffers of the pool for which other tasks wait, so this send uses memory outside the pool
        // instead of waiting.
        None => {
            let mut bytes = vec![0; wanted.min(one_record)];
            let sealed = seal_into(session, data, &mut bytes)?;
            bytes.truncate(sealed);
            Ok(Source::Vec(bytes))
        }
    }
}

/// Encrypts as many of the first bytes of `data` as fit into `out`, and removes them. Returns the number of encrypted
/// bytes.
fn seal_into(session: &mut Session, data: &mut Segments, out: &mut [u8]) -> Result<usize, TlsError> {
    let mut sealed = 0;
    loop {
        let room = session.plain_bytes(out.len() - sealed);
        let Some(part) = data.parts().next() else { break };
        let part = part.bytes();
        if room == 0 {
            break;
        }
        let record = session.record_bytes();
        let taken = if part.len() >= room.min(record) || part.len() == data.len() {
            // The last incomplete record of a segment is combined with the next segment, so that the number of records
            // stays within the estimate.
            let whole =
                if part.len() == data.len() { part.len() } else { part.len().max(record) / record * record };
            let taken = part.len().min(whole).min(room);
            sealed += session.seal(&part[..taken], &mut out[sealed..])?;
            taken
        } else {
            // A header section and a small body, or small segments, are combined into one record.
            let gathered = gather(data, room.min(record));
            sealed += session.seal(&gathered, &mut out[sealed..])?;
            gathered.len()
        };
        data.advance(taken);
    }
    Ok(sealed)
}

/// Copies the first bytes of `data`.
fn gather(data: &Segments, bytes_max: usize) -> Vec<u8> {
    let mut gathered = Vec::with_capacity(data.len().min(bytes_max));
    for part in data.parts() {
        let room = bytes_max - gathered.len();
        gathered.extend_from_slice(&part.bytes()[..part.bytes().len().min(room)]);
    }
    gathered
}
