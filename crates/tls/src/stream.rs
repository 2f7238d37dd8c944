//! TLS over a socket of rt, behind its handshake: a stream that is used as a socket is.
//!
//! Received records are decrypted, and their plaintext is handed out in the buffer that brought them. Plaintext to be sent
//! is sealed into one buffer of the thread's pool for each send. A stream that waits for its peer holds no buffer.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io::op::Source;
use io::{Buf, Errno, Segments};
use rt::Socket;
use rt::net::{Reader, Writer};

use crate::session::{Session, TlsError};

/// Bytes that one send is sealed into at most: three records and most of a fourth. A larger buffer would be in use for
/// longer, and the next one is sealed when this one has left.
const SEND_BYTES: usize = 64 << 10;

/// A connection that speaks TLS.
pub struct Stream {
    socket: Socket,
    /// Both directions need it, and neither over a wait.
    session: Rc<RefCell<Session>>,
    receiving: Receiving,
    sealed: Sealed,
}

/// Bytes for the peer that were sealed and have not all left.
#[derive(Default)]
struct Sealed {
    data: Segments,
    /// Whether there are any: the writer has them while they are on their way.
    is_unsent: bool,
}

/// Received bytes that have not been returned.
#[derive(Default)]
pub(crate) struct Receiving {
    /// Plaintext that did not fit into the buffer that brought it, from `start` on.
    pub(crate) plain: Vec<u8>,
    start: usize,
    /// A buffer for it that the pool does not have.
    wanted: Option<rt::BufferRequest>,
    /// What ended the session.
    failed: Option<TlsError>,
}

/// Sends a last message to a peer that is given up: it may be lost where the socket is full.
pub(crate) fn tell(socket: &mut Socket, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        let mut data = Segments::from(bytes);
        let _ = socket.writer.send_now(&mut data, false);
    }
}

impl Stream {
    pub(crate) fn new(socket: Socket, session: Rc<RefCell<Session>>, receiving: Receiving) -> Stream {
        Stream { socket, session, receiving, sealed: Sealed::default() }
    }

    /// The socket below.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// What sends while the owner receives.
    pub fn writer(&self) -> StreamWriter {
        let (writer, session) = (Writer::aside(self.socket.fd()), Rc::clone(&self.session));
        StreamWriter { writer, session, sealed: Sealed::default(), sent: 0 }
    }

    /// As [`Stream::recv`]: where the records need more memory than an engine's buffer, they come into this one.
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

    /// For users of the stream beside its owner.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle { socket: self.socket.fd().clone(), session: Rc::clone(&self.session) }
    }

    /// Bytes that have arrived, without a further receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        self.split().0.try_recv()
    }

    /// Whether no plaintext, end or error is pending.
    pub fn is_quiet(&mut self) -> bool {
        !self.has_plaintext() && self.receiving.failed.is_none() && self.socket.reader.is_quiet()
    }

    /// As [`Stream::socket`].
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Facts of the session about its handshake and its peer.
    pub fn with_session<T>(&self, ask: impl FnOnce(&Session) -> T) -> T {
        ask(&self.session.borrow())
    }

    /// Both directions.
    pub fn split(&mut self) -> (TlsReader<'_>, TlsWriter<'_>) {
        let (reader, writer) = self.socket.split();
        let session = &self.session;
        let receiving = &mut self.receiving;
        (TlsReader { reader, session, receiving }, TlsWriter { writer, session, sealed: &mut self.sealed })
    }

    /// The next plaintext; `None` at the end of the stream. A connection that ends without a closing alert ends the
    /// stream too, as in nginx: HTTP has its own ends.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        self.split().0.poll_recv(context)
    }

    /// As [`Stream::poll_recv`].
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

    /// Seals the bytes that fit into one buffer, and sends by a call of this thread as many as the socket takes at
    /// once; see [`rt::net::Writer::send_now`]. [`Stream::has_unsent`] covers sealed bytes that were not taken.
    pub fn send_now(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        self.split().1.send_now(data, more)
    }

    /// Whether sealed bytes have not left yet: [`Stream::poll_send`] sends them, also without further bytes.
    pub fn has_unsent(&self) -> bool {
        self.sealed.is_unsent
    }

    /// Announces the end, as far as the socket takes it.
    pub fn say_goodbye(&mut self) {
        if self.sealed.is_unsent {
            return;
        }
        let mut session = self.session.borrow_mut();
        // A session that failed has an alert for the peer instead.
        let bytes = session.close().unwrap_or_else(|_| session.output());
        tell(&mut self.socket, bytes);
    }

    /// As [`Stream::say_goodbye`], and ends the stream towards the peer.
    pub fn shutdown_write(&mut self) {
        self.say_goodbye();
        self.socket.writer.shutdown();
    }

    /// Why the session ended, where it failed.
    pub fn failure(&self) -> Option<&TlsError> {
        self.receiving.failed.as_ref()
    }

    /// Whether plaintext is pending.
    pub fn has_plaintext(&self) -> bool {
        self.receiving.start < self.receiving.plain.len()
    }
}

/// Sends beside the owner of a stream, which only receives meanwhile.
pub struct StreamWriter {
    writer: Writer,
    session: Rc<RefCell<Session>>,
    sealed: Sealed,
    /// Bytes of plaintext that were taken.
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

    /// Bytes of plaintext that were sealed for the peer.
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
        self.writer.give_up();
    }
}

/// The operations on a stream beside its owner.
pub struct StreamHandle {
    socket: io::Fd,
    session: Rc<RefCell<Session>>,
}

impl StreamHandle {
    /// The descriptor below.
    pub fn fd(&self) -> &io::Fd {
        &self.socket
    }

    /// Sends plaintext while the stream has nothing on its way.
    pub fn send(&self, mut data: Segments) -> impl Future<Output = Result<(), Errno>> + use<> {
        let (socket, session) = (self.socket.clone(), Rc::clone(&self.session));
        async move {
            while !data.is_empty() {
                let mut sealed = Segments::new();
                sealed.push(seal(&mut session.borrow_mut(), &mut data).map_err(|_| Errno::CONNABORTED)?);
                rt::net::send_aside(&socket, sealed).await?;
            }
            Ok(())
        }
    }
}

/// The receiving side of a [`Stream`].
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
        }
    }

    /// Bytes that have arrived, without a further receive.
    pub fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        loop {
            if self.receiving.start < self.receiving.plain.len() {
                let mut buf = rt::buffer_at_once(self.receiving.plain.len() - self.receiving.start)?;
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
                }
                end => return Some(end),
            }
        }
    }
}

impl Receiving {
    /// With plaintext that came before the stream was made.
    pub(crate) fn with(plain: Vec<u8>) -> Receiving {
        Receiving { plain, ..Receiving::default() }
    }

    /// Opens the records in a buffer, and puts as much of their plaintext into it as fits. `None` where there is none.
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

    /// Returns the remaining plaintext, in a buffer that may have to be waited for.
    fn poll_plain(&mut self, context: &mut Context<'_>) -> Poll<Buf> {
        let left = self.plain.len() - self.start;
        let wanted = self.wanted.get_or_insert_with(|| rt::buffer(left, 0));
        let mut buf = ready!(std::pin::Pin::new(wanted).poll(context));
        self.wanted = None;
        self.hand_out(&mut buf);
        Poll::Ready(buf)
    }
}

/// The sending side of a [`Stream`].
pub struct TlsWriter<'s> {
    writer: &'s mut Writer,
    session: &'s RefCell<Session>,
    sealed: &'s mut Sealed,
}

impl TlsWriter<'_> {
    /// See [`Stream::poll_send`]. After a session that failed, as after a socket that did, further sends fail.
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

    /// See [`rt::net::Writer::give_up`].
    pub fn give_up(&mut self) {
        self.writer.give_up();
    }

    /// Seals the front of `data`.
    fn seal(&mut self, data: &mut Segments) -> Result<(), Errno> {
        let sealed = seal(&mut self.session.borrow_mut(), data).map_err(|_| Errno::CONNABORTED)?;
        self.sealed.data.push(sealed);
        self.sealed.is_unsent = true;
        Ok(())
    }
}

/// Seals the front of `data` into one buffer, and takes it off.
fn seal(session: &mut Session, data: &mut Segments) -> Result<Source, TlsError> {
    let len = data.len();
    // With the session's own output: tickets hold the chain of a client, and may be longer than a buffer.
    let one_record = session.sealed_bytes(session.record_bytes());
    let wanted = session.sealed_bytes(len).min(SEND_BYTES.max(one_record));
    match rt::buffer_at_once(wanted) {
        Some(mut buf) => {
            let sealed = seal_into(session, data, buf.space())?;
            buf.set_len(sealed);
            Ok(Source::Buf(buf))
        }
        // The data may hold buffers of the pool that others wait for: it continues without one.
        None => {
            let mut bytes = vec![0; wanted.min(one_record)];
            let sealed = seal_into(session, data, &mut bytes)?;
            bytes.truncate(sealed);
            Ok(Source::Vec(bytes))
        }
    }
}

/// Seals as much of the front of `data` as fits into `out`, and takes it off; returns how many bytes it became.
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
            // The rest of a part goes with the one behind it, so that there are no more records than were reckoned with.
            let whole =
                if part.len() == data.len() { part.len() } else { part.len().max(record) / record * record };
            let taken = part.len().min(whole).min(room);
            sealed += session.seal(&part[..taken], &mut out[sealed..])?;
            taken
        } else {
            // A header section and a short body, or small pieces: one record for all of them.
            let gathered = gather(data, room.min(record));
            sealed += session.seal(&gathered, &mut out[sealed..])?;
            gathered.len()
        };
        data.advance(taken);
    }
    Ok(sealed)
}

/// A copy of the first bytes of `data`.
fn gather(data: &Segments, bytes_max: usize) -> Vec<u8> {
    let mut gathered = Vec::with_capacity(data.len().min(bytes_max));
    for part in data.parts() {
        let room = bytes_max - gathered.len();
        gathered.extend_from_slice(&part.bytes()[..part.bytes().len().min(room)]);
    }
    gathered
}
