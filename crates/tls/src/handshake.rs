//! Handshakes over a socket of rt: the hello that chooses a server, its steps beside those of other handshakes, and its
//! results. [`Handshaken::over`] makes the stream.

use std::cell::RefCell;
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
use crate::stream::{Receiving, Stream, tell};
use crate::turns::Turns;

/// Bytes of a client's hello at most, as in OpenSSL (`SSL3_RT_MAX_PLAIN_LENGTH` and a header). One that is longer comes in
/// several records and is an attack.
const HELLO_BYTES_MAX: usize = RECORD_BYTES_MAX + 5;

/// Why a handshake did not complete.
pub enum HandshakeError {
    /// The peer ended the connection.
    Closed,
    /// The connection broke.
    Broken(Errno),
    /// The session's own reason. The peer was informed.
    Tls(TlsError),
    /// The requested server refuses handshakes (`ssl_reject_handshake`). The peer was informed.
    Rejected,
    /// The first bytes are no TLS: they are for a response in plaintext.
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

/// Reads a client's hello. `received` are the bytes that came before, and all that came afterwards.
pub async fn greet(socket: &mut Socket, received: &mut Vec<u8>) -> Result<Hello, HandshakeError> {
    loop {
        match read_hello(received) {
            HelloProgress::Complete(hello) => return Ok(hello),
            HelloProgress::More if received.len() <= HELLO_BYTES_MAX => {}
            HelloProgress::More => {
                return Err(HandshakeError::Tls(TlsError::new(rustls::Error::HandshakeNotComplete)));
            }
            HelloProgress::Failed(error, alert) => {
                tell(socket, alert);
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

/// Whether bytes can be the first of a TLS session.
pub fn is_tls(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|byte| *byte == HANDSHAKE_RECORD)
}

/// Sends a client the refusal of its server.
pub fn reject(socket: &mut Socket) -> HandshakeError {
    tell(socket, fatal_alert(UNRECOGNIZED_NAME));
    HandshakeError::Rejected
}

/// Sends a client the failure of this side: `internal_error`, as OpenSSL does where it gets no certificate.
pub fn fail(socket: &mut Socket) {
    tell(socket, fatal_alert(INTERNAL_ERROR));
}

/// Takes a handshake to its end, with the server that was chosen. `received` is all that came so far. Its steps take turns
/// with those of other handshakes; if several are in flight, a signature of RSA is made on another thread.
pub async fn accept(
    socket: &mut Socket,
    server: &Server,
    hello: &Hello,
    received: Vec<u8>,
    turns: &Turns,
) -> Result<Handshaken, HandshakeError> {
    let session = server.session_for(hello).map_err(HandshakeError::Tls)?;
    let (mut handshaken, stepped) = if server.signs_by_rsa(hello) && turns.is_crowded() {
        let first = turns.run_elsewhere(move || first_step(session, received)).await;
        // A step that panicked there has ended its session.
        let panicked = || TlsError::new(rustls::Error::HandshakeNotComplete);
        let (session, plain, stepped) = first.ok_or_else(|| HandshakeError::Tls(panicked()))?;
        (Handshaken::new(session, plain), stepped)
    } else {
        let (session, plain, stepped) = turns.run(move || first_step(session, received)).await;
        (Handshaken::new(session, plain), stepped)
    };
    handshaken.run(socket, stepped, Some(turns)).await?;
    Ok(handshaken)
}

/// Has a session read the first bytes: the session, early data, and whether the handshake continues.
fn first_step(mut session: Session, mut received: Vec<u8>) -> (Session, Vec<u8>, Result<bool, TlsError>) {
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

/// The next bytes of a handshake.
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

    /// The stream over the socket that the handshake was made on.
    pub fn over(self, socket: Socket) -> Stream {
        let Handshaken { session, receiving } = self;
        Stream::new(socket, session, receiving)
    }

    /// Facts of the session about its handshake and its peer.
    pub fn with_session<T>(&self, ask: impl FnOnce(&Session) -> T) -> T {
        ask(&self.session.borrow())
    }

    /// For later questions whether the handshake has ended.
    pub fn progress(&self) -> Progress {
        Progress(Rc::clone(&self.session))
    }

    /// See [`Session::take_seen`].
    pub fn take_seen(&self) -> Seen {
        self.session.borrow_mut().take_seen()
    }

    /// Goes through the handshake, of which `stepped` is the result of the first step.
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
                    tell(socket, self.session.borrow_mut().output());
                    return Err(HandshakeError::Tls(error));
                }
            };
            // Of TLS 1.3 the last bytes of either side travel with the first plaintext: the peer does not wait for them.
            let may_wait = !is_handshaking && self.session.borrow().protocol() == Some("TLSv1.3");
            let output = if may_wait { Vec::new() } else { self.session.borrow_mut().output() };
            if !output.is_empty() {
                let (sent, _) = socket.writer.send(Segments::from(output), false).await;
                sent.map_err(HandshakeError::Broken)?;
            }
            // Early data is answered before the client's last words have come, where the library allows it.
            let is_early = !self.receiving.plain.is_empty() && self.session.borrow().may_answer_early();
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

    /// Reads received bytes of a handshake; whether it continues.
    fn step(&mut self, received: &mut [u8]) -> Result<bool, TlsError> {
        let mut session = self.session.borrow_mut();
        let plain = &mut self.receiving.plain;
        session.read(received, &mut |bytes| plain.extend_from_slice(bytes))?;
        Ok(session.is_handshaking())
    }
}

/// How far a handshake is, while its connection serves early data.
pub struct Progress(Rc<RefCell<Session>>);

impl Progress {
    /// Whether the client's last words have not come yet.
    pub fn is_handshaking(&self) -> bool {
        // It is borrowed only while it is driven, which no question interrupts.
        self.0.try_borrow().is_ok_and(|session| session.is_handshaking())
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Progress").field(&self.is_handshaking()).finish()
    }
}
