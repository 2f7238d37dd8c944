//! Handshakes over a socket of `rt`: reads the ClientHello that selects a server, runs the steps of the handshake in
//! turns with other handshakes, and returns a [`Handshaken`], which becomes a stream by [`Handshaken::over`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io::{Buf, Errno, Segments};
use rt::Socket;

use crate::client::Client;
use crate::seen::Seen;
use crate::server::{
    HANDSHAKE_RECORD, Hello, HelloProgress, INTERNAL_ERROR, Server, UNRECOGNIZED_NAME, fatal_alert,
    read_hello,
};
use crate::session::{RECORD_BYTES_MAX, Session, TlsError};
use crate::stream::{Receiving, Stream, send_last};
use crate::turns::Turns;

/// Maximum number of bytes before a ClientHello is complete, as in OpenSSL (`SSL3_RT_MAX_PLAIN_LENGTH` and a record
/// header). A longer ClientHello needs several records and indicates an attack.
const HELLO_BYTES_MAX: usize = RECORD_BYTES_MAX + 5;

/// Reason why a handshake did not complete.
pub enum HandshakeError {
    /// The peer closed the connection.
    Closed,
    /// An operation on the socket failed.
    Broken(Errno),
    /// The TLS session failed. An alert was sent to the peer.
    Tls(TlsError),
    /// The requested server refuses handshakes (`ssl_reject_handshake`). An alert was sent to the peer.
    Rejected,
    /// The first bytes are not TLS. They are returned, for a response in plaintext.
    Plaintext(Buf),
}

impl std::fmt::Debug for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HandshakeError::Closed => f.write_str("peer closed connection in SSL handshake"),
            HandshakeError::Broken(errno) => write!(f, "peer closed connection in SSL handshake ({errno})"),
            HandshakeError::Tls(error) => error.fmt(f),
            HandshakeError::Rejected => f.write_str("SSL handshake rejected"),
            HandshakeError::Plaintext(_) => f.write_str("http request"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// Reads a ClientHello. `received` contains the bytes that have already been received; further bytes are appended to
/// it.
pub async fn greet(socket: &mut Socket, received: &mut Vec<u8>) -> Result<Hello, HandshakeError> {
    loop {
        match read_hello(received) {
            HelloProgress::Complete(hello) => return Ok(hello),
            HelloProgress::More if received.len() <= HELLO_BYTES_MAX => {}
            HelloProgress::More => {
                return Err(HandshakeError::Tls(TlsError::new(rustls::Error::HandshakeNotComplete)));
            }
            HelloProgress::Failed(error, alert) => {
                send_last(socket, alert);
                return Err(HandshakeError::Tls(error));
            }
        }
        let buf = receive(socket).await?;
        if received.is_empty() && !is_tls(&buf) {
            return Err(HandshakeError::Plaintext(buf));
        }
        received.extend_from_slice(&buf);
    }
}

/// Whether these bytes can be the first bytes of a TLS session.
pub fn is_tls(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|byte| *byte == HANDSHAKE_RECORD)
}

/// Sends a client the alert that its server refuses handshakes.
pub fn reject(socket: &mut Socket) -> HandshakeError {
    send_last(socket, fatal_alert(UNRECOGNIZED_NAME));
    HandshakeError::Rejected
}

/// Sends a client the alert `internal_error`, as OpenSSL does if no certificate is available.
pub fn fail(socket: &mut Socket) {
    send_last(socket, fatal_alert(INTERNAL_ERROR));
}

/// Runs a handshake to its end, with the selected server. `received` contains all bytes received so far. The steps take
/// turns with those of other handshakes. If several handshakes are in flight, another thread makes RSA signatures.
pub async fn accept(
    socket: &mut Socket,
    server: &Server,
    hello: &Hello,
    received: Vec<u8>,
    turns: &Turns,
) -> Result<Handshaken, HandshakeError> {
    let session = server.session_for(hello).map_err(HandshakeError::Tls)?;
    let signs_by_rsa = server.signs_by_rsa(hello);
    let mut first = step_in_turn(session, received, signs_by_rsa, turns).await?;
    // After a HelloRetryRequest the client sends a second ClientHello, and the signature follows.
    while signs_by_rsa && matches!(first.2, Ok(true)) && first.0.awaits_second_hello() {
        let mut session = first.0;
        send_output(socket, session.output()).await?;
        let received = receive(socket).await?.to_vec();
        first = step_in_turn(session, received, signs_by_rsa, turns).await?;
    }
    let (session, plain, stepped) = first;
    let mut handshaken = Handshaken::new(session, plain);
    handshaken.run(socket, stepped, Some(turns)).await?;
    Ok(handshaken)
}

/// A session, its received plaintext, and whether the handshake continues.
type Stepped = (Session, Vec<u8>, Result<bool, TlsError>);

/// Runs [`first_step`], on another thread if it may make an RSA signature and several handshakes are in flight.
async fn step_in_turn(
    session: Session,
    received: Vec<u8>,
    signs_by_rsa: bool,
    turns: &Turns,
) -> Result<Stepped, HandshakeError> {
    let step = move || first_step(session, received);
    if !(signs_by_rsa && turns.is_crowded()) {
        return Ok(turns.run(step).await);
    }
    // A step that panicked on the other thread has destroyed its session.
    let panicked = || HandshakeError::Tls(TlsError::new(rustls::Error::HandshakeNotComplete));
    turns.run_offloaded(step).await.ok_or_else(panicked)
}

/// Sends the output of a session.
async fn send_output(socket: &mut Socket, output: Vec<u8>) -> Result<(), HandshakeError> {
    if output.is_empty() {
        return Ok(());
    }
    let (sent, _) = socket.writer.send(Segments::from(output), false).await;
    sent.map(drop).map_err(HandshakeError::Broken)
}

/// Passes the first bytes to a session.
fn first_step(mut session: Session, mut received: Vec<u8>) -> Stepped {
    let mut plain = Vec::new();
    let stepped = session.read(&mut received, &mut |bytes| plain.extend_from_slice(bytes));
    let is_handshaking = session.is_handshaking();
    (session, plain, stepped.map(|()| is_handshaking))
}

/// Makes the handshake with an upstream.
pub async fn connect(socket: &mut Socket, client: &Client, name: &str) -> Result<Handshaken, HandshakeError> {
    let peer = rt::net::address::peer(socket.fd()).map_err(HandshakeError::Broken)?;
    let session = client.session(&format!("{peer:?}"), name).map_err(HandshakeError::Tls)?;
    let (session, plain, stepped) = first_step(session, Vec::new());
    let mut handshaken = Handshaken::new(session, plain);
    handshaken.run(socket, stepped, None).await?;
    Ok(handshaken)
}

/// Receives the next bytes of a handshake.
async fn receive(socket: &mut Socket) -> Result<Buf, HandshakeError> {
    match socket.reader.recv().await {
        Ok(Some(buf)) => Ok(buf),
        Ok(None) => Err(HandshakeError::Closed),
        Err(errno) => Err(HandshakeError::Broken(errno)),
    }
}

/// A session after its handshake, without its socket.
pub struct Handshaken {
    session: Rc<RefCell<Session>>,
    receiving: Receiving,
}

impl Handshaken {
    fn new(session: Session, plain: Vec<u8>) -> Handshaken {
        let receiving = Receiving::with(plain);
        Handshaken { session: Rc::new(RefCell::new(session)), receiving }
    }

    /// Returns the stream over the socket of the handshake.
    pub fn over(self, socket: Socket) -> Stream {
        let Handshaken { session, receiving } = self;
        Stream::new(socket, session, receiving)
    }

    /// Calls `ask` with the session, to read facts about the handshake and the peer.
    pub fn with_session<T>(&self, ask: impl FnOnce(&Session) -> T) -> T {
        ask(&self.session.borrow())
    }

    /// Returns a handle that later shows whether the handshake is complete.
    pub fn progress(&self) -> Progress {
        Progress::Session(Rc::clone(&self.session))
    }

    /// See [`Session::take_seen`].
    pub fn take_seen(&self) -> Seen {
        self.session.borrow_mut().take_seen()
    }

    /// Runs the handshake; `stepped` is the result of its first step.
    async fn run(
        &mut self,
        socket: &mut Socket,
        mut stepped: Result<bool, TlsError>,
        turns: Option<&Turns>,
    ) -> Result<(), HandshakeError> {
        loop {
            let is_handshaking = match stepped {
                Ok(is_handshaking) => is_handshaking,
                Err(error) => {
                    send_last(socket, self.session.borrow_mut().output());
                    return Err(HandshakeError::Tls(error));
                }
            };
            let output = match is_handshaking || !self.output_may_wait() {
                true => self.session.borrow_mut().output(),
                false => Vec::new(),
            };
            let is_silent = output.is_empty() && !is_handshaking && self.receiving.plain.is_empty();
            if is_silent && self.session.borrow().is_server() {
                socket.reader.acknowledge();
            }
            send_output(socket, output).await?;
            // If the library allows it, the response to early data is sent before the client's Finished message has
            // arrived.
            let is_early = !self.receiving.plain.is_empty() && self.session.borrow().may_respond_early();
            if !is_handshaking || is_early {
                return Ok(());
            }
            let mut received = receive(socket).await?.to_vec();
            stepped = match turns {
                Some(turns) => turns.run(|| self.step(&mut received)).await,
                None => self.step(&mut received),
            };
        }
    }

    /// Whether the last output of the handshake may be sent together with the first plaintext, because this plaintext follows
    /// immediately: the response to a request that has arrived, or the request of this side.
    ///
    /// A server sends its tickets without a request. In TLS 1.3 the client's Finished message needs no response, so the kernel would
    /// delay its acknowledgement by 40 ms, and a client with Nagle's algorithm would not send its request before (RFC 9293 section
    /// 3.7.4).
    fn output_may_wait(&self) -> bool {
        let session = self.session.borrow();
        session.protocol() == Some("TLSv1.3") && (!session.is_server() || !self.receiving.plain.is_empty())
    }

    /// Passes received bytes to the session. Returns whether the handshake continues.
    fn step(&mut self, received: &mut [u8]) -> Result<bool, TlsError> {
        let mut session = self.session.borrow_mut();
        let plain = &mut self.receiving.plain;
        session.read(received, &mut |bytes| plain.extend_from_slice(bytes))?;
        Ok(session.is_handshaking())
    }
}

/// Access to the state of a handshake while its connection serves early data.
pub enum Progress {
    /// Over TCP.
    Session(Rc<RefCell<Session>>),
    /// Over QUIC: whether the handshake continues.
    Quic(Rc<Cell<bool>>),
}

impl Progress {
    /// Whether the client's Finished message has not arrived yet.
    pub fn is_handshaking(&self) -> bool {
        match self {
            // The session is borrowed only while it processes data, and this function is not called during that time.
            Progress::Session(session) => session.try_borrow().is_ok_and(|session| session.is_handshaking()),
            Progress::Quic(is_handshaking) => is_handshaking.get(),
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Progress").field(&self.is_handshaking()).finish()
    }
}
