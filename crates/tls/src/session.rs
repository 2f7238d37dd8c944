//! One TLS session without its socket: bytes of the peer in, plaintext and bytes for the peer out.
//!
//! rustls 0.23 shows its records through a state machine that borrows the received bytes ([`Session::read`] walks it).
//! This is the only file that knows that interface; version 0.24 replaces it by two halves.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, CommonState, HandshakeKind, InvalidMessage};

use crate::seen::{self, Seen};

/// A record holds at most this many bytes of plaintext (RFC 8446 section 5.1).
pub const RECORD_BYTES_MAX: usize = 16 << 10;

/// Bytes that sealing adds to a record at most: header, explicit nonce of TLS 1.2 or inner type of 1.3, and tag.
pub const RECORD_OVERHEAD: usize = 5 + 8 + 1 + 16;

/// Bytes of the update of keys (RFC 8446 section 4.6.3) that may go out before a record: the peer may have requested it.
const KEY_UPDATE_BYTES: usize = 5 + RECORD_OVERHEAD;

/// Bytes that are kept of a message that is not complete. A chain of certificates has 64 KiB at most (rustls' limit);
/// twice that is room for its records, and ends a message that comes in tiny ones.
const PARTIAL_BYTES_MAX: usize = 128 << 10;

/// The state of one connection's TLS.
pub struct Session {
    side: Side,
    /// Bytes for the peer that belong to no plaintext: handshake, alerts, key updates.
    output: Vec<u8>,
    /// The received part of an incomplete record or message. rustls has read a part of it already, and each step needs
    /// it, those that only write too.
    partial: Vec<u8>,
    /// What ended the session before its end.
    failed: Option<Box<TlsError>>,
    /// Whether the peer has said that it sends no more.
    peer_closed: bool,
    record_bytes: usize,
    /// Whether this side may send plaintext already, while the end of the handshake is on its way from the client.
    may_answer_early: bool,
    /// Facts reported to parts of this crate during the handshake.
    seen: Option<Box<Seen>>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Why a session cannot continue.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsError(rustls::Error);

impl TlsError {
    pub(crate) fn new(error: rustls::Error) -> TlsError {
        TlsError(error)
    }

    /// Whether the peer ended the session by an alert, which is no fault of this side.
    pub fn is_alert(&self) -> bool {
        matches!(self.0, rustls::Error::AlertReceived(_))
    }

    /// Whether the peer did not trust the certificate that it was shown.
    pub fn is_distrust(&self) -> bool {
        use AlertDescription as Alert;
        matches!(
            self.0,
            rustls::Error::AlertReceived(
                Alert::BadCertificate
                    | Alert::UnknownCA
                    | Alert::CertificateExpired
                    | Alert::CertificateUnknown
                    | Alert::CertificateRevoked
            )
        )
    }

    /// Whether the bytes were no TLS at all.
    pub fn is_no_tls(&self) -> bool {
        matches!(self.0, rustls::Error::InvalidMessage(_))
    }
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for TlsError {}

impl Session {
    /// The server's side of a connection, before its first byte.
    pub fn server(config: &Arc<rustls::ServerConfig>, record_bytes: usize) -> Result<Session, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(config)).map_err(TlsError)?;
        Ok(Session::new(Side::Server(connection), record_bytes))
    }

    /// The client's side of a connection, which speaks first: [`Session::read`] without input makes its first bytes.
    pub fn client(
        config: &Arc<rustls::ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Session, TlsError> {
        let connection = UnbufferedClientConnection::new(Arc::clone(config), name).map_err(TlsError)?;
        Ok(Session::new(Side::Client(connection), RECORD_BYTES_MAX))
    }

    fn new(side: Side, record_bytes: usize) -> Session {
        let record_bytes = record_bytes.clamp(1, RECORD_BYTES_MAX);
        Session {
            side,
            output: Vec::new(),
            partial: Vec::new(),
            failed: None,
            peer_closed: false,
            record_bytes,
            may_answer_early: false,
            seen: None,
        }
    }

    /// Reads bytes of the peer in place, and returns the plaintext of all whole records. The beginning of an incomplete
    /// record or message is kept until the rest comes.
    ///
    /// After an error [`Session::output`] may hold an alert for the peer; nothing else can be done.
    pub fn read(&mut self, incoming: &mut [u8], plain: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(TlsError::clone(error));
        }
        if self.is_handshaking() {
            let mut seen = self.seen.take().unwrap_or_default();
            let read = seen::within(&mut seen, || self.read_records(incoming, plain));
            self.seen = Some(seen);
            return read;
        }
        self.read_records(incoming, plain)
    }

    fn read_records(&mut self, incoming: &mut [u8], plain: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        let done = if self.partial.is_empty() {
            let (used, done) = self.walk(incoming, plain);
            self.partial.extend_from_slice(&incoming[used..]);
            done
        } else {
            // rustls remembers places in bytes that it has not used: it must be given the same ones again.
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(incoming);
            let (used, done) = self.walk(&mut partial, plain);
            if used < partial.len() {
                partial.drain(..used);
                self.partial = partial;
            }
            done
        };
        if self.peer_closed {
            self.partial = Vec::new();
        }
        let is_too_long = self.partial.len() > PARTIAL_BYTES_MAX;
        let too_long = || Err(TlsError(InvalidMessage::HandshakePayloadTooLarge.into()));
        let done = if is_too_long { done.and_then(|()| too_long()) } else { done };
        done.inspect_err(|error| self.fail(error))
    }

    /// Ends a session. Its response is in its output afterwards.
    fn fail(&mut self, error: &TlsError) {
        self.failed = Some(Box::new(error.clone()));
        self.partial = Vec::new();
        // While there is output rustls reads nothing, which it must not do again after an error.
        while self.common().wants_write() {
            let Session { side, output, peer_closed, .. } = self;
            let (_, next) = match side {
                Side::Server(connection) => {
                    step(connection.process_tls_records(&mut []), output, peer_closed, &mut |_| {})
                }
                Side::Client(connection) => {
                    step(connection.process_tls_records(&mut []), output, peer_closed, &mut |_| {})
                }
            };
            if next != Ok(Next::Step) {
                return;
            }
        }
    }

    /// Takes all steps that these bytes allow. Returns how many of them were used.
    fn walk(&mut self, incoming: &mut [u8], plain: &mut dyn FnMut(&[u8])) -> (usize, Result<(), TlsError>) {
        let mut used = 0;
        loop {
            let rest = &mut incoming[used..];
            let Session { side, output, peer_closed, may_answer_early, .. } = self;
            let (count, next) = match side {
                Side::Server(connection) => match connection.process_tls_records(rest) {
                    UnbufferedStatus { discard, state: Ok(ConnectionState::ReadEarlyData(mut early)) } => {
                        early_data(discard, &mut early, plain)
                    }
                    UnbufferedStatus { discard, state: Ok(ConnectionState::WriteTraffic(_)) } => {
                        *may_answer_early = true;
                        (discard, Ok(Next::Wait))
                    }
                    status => step(status, output, peer_closed, plain),
                },
                Side::Client(connection) => {
                    step(connection.process_tls_records(rest), output, peer_closed, plain)
                }
            };
            used += count;
            assert!(used <= incoming.len(), "a session uses no more bytes than it was given");
            match next {
                Ok(Next::Step) => {}
                Ok(Next::Wait) => return (used, Ok(())),
                Err(error) => return (used, Err(error)),
            }
        }
    }

    /// Bytes for the peer that wait to be sent before anything else; they are then no longer here.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether there are such bytes.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Bytes of plaintext that [`Session::seal`] can put into this many bytes for the peer.
    pub fn plain_bytes(&self, room: usize) -> usize {
        let room = room.saturating_sub(self.output.len() + KEY_UPDATE_BYTES);
        let whole = self.record_bytes + RECORD_OVERHEAD;
        (room / whole) * self.record_bytes + (room % whole).saturating_sub(RECORD_OVERHEAD)
    }

    /// Room that [`Session::seal`] needs for this much plaintext.
    pub fn sealed_bytes(&self, len: usize) -> usize {
        self.output.len() + KEY_UPDATE_BYTES + len + len.div_ceil(self.record_bytes) * RECORD_OVERHEAD
    }

    /// Bytes of plaintext that a record holds at most.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Seals plaintext into `out`, behind the bytes of [`Session::output`], and returns how many bytes are there now.
    /// At most [`Session::plain_bytes`] of its length fit.
    ///
    /// # Panics
    /// When there is more plaintext than that.
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, TlsError> {
        assert!(plain.len() <= self.plain_bytes(out.len()), "plaintext fits into what it is sealed into");
        let sealed = self.write(|writer, out| writer.encrypt(plain, out), out)?;
        assert!(sealed >= plain.len(), "sealing makes nothing shorter");
        Ok(sealed)
    }

    /// Announces the end to the peer (RFC 8446 section 6.1), and returns the bytes for it.
    pub fn close(&mut self) -> Result<Vec<u8>, TlsError> {
        let mut out = vec![0; self.output.len() + 2 * RECORD_OVERHEAD];
        let len = self.write(|writer, out| writer.close(out), &mut out)?;
        out.truncate(len);
        Ok(out)
    }

    /// Lets the session write into `out`, behind its output.
    fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Writer, &mut [u8]) -> Result<usize, EncryptError>,
        out: &mut [u8],
    ) -> Result<usize, TlsError> {
        // Pending output comes first; nothing new is read.
        self.read(&mut [], &mut |_| {})?;
        let before = self.output.len();
        // A session that has sent no hello yet has made it just now; `plain_bytes` could not count it.
        let may_write = !self.is_handshaking() || self.may_answer_early;
        let Some(room) = out.get_mut(..before).filter(|_| may_write) else {
            return Err(TlsError(rustls::Error::HandshakeNotComplete));
        };
        room.copy_from_slice(&self.output);
        self.output = Vec::new();
        let Session { side, partial, .. } = self;
        let written = match side {
            Side::Server(connection) => match connection.process_tls_records(partial).state {
                Ok(ConnectionState::WriteTraffic(mut writer)) => write(&mut writer, &mut out[before..]),
                Ok(_) => return Err(TlsError(rustls::Error::HandshakeNotComplete)),
                Err(error) => return Err(TlsError(error)),
            },
            Side::Client(connection) => match connection.process_tls_records(partial).state {
                Ok(ConnectionState::WriteTraffic(mut writer)) => write(&mut writer, &mut out[before..]),
                Ok(_) => return Err(TlsError(rustls::Error::HandshakeNotComplete)),
                Err(error) => return Err(TlsError(error)),
            },
        };
        // `plain_bytes` leaves room for the overhead, so only keys that have sealed too much are a reason.
        let written = written.map_err(|_| TlsError(rustls::Error::EncryptError))?;
        Ok(before + written)
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    /// Whether the handshake is still in progress.
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Whether this side may answer early data: the end of the handshake has not come yet.
    pub fn may_answer_early(&self) -> bool {
        self.may_answer_early && self.is_handshaking()
    }

    /// Whether the peer has said that it sends no more.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// The protocol that was agreed on by ALPN (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.common().alpn_protocol()
    }

    /// Whether the session resumes an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Facts reported to parts of this crate during the handshake; it is then no longer here.
    pub fn take_seen(&mut self) -> Seen {
        self.seen.take().map(|seen| *seen).unwrap_or_default()
    }

    /// The peer's certificates, its own first.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.common().peer_certificates().unwrap_or_default()
    }

    /// nginx's name of the version (`$ssl_protocol`); nothing before it is agreed on.
    pub fn protocol(&self) -> Option<&'static str> {
        match self.common().protocol_version()? {
            rustls::ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            rustls::ProtocolVersion::TLSv1_3 => Some("TLSv1.3"),
            _ => None,
        }
    }

    /// OpenSSL's name of the cipher suite (`$ssl_cipher`).
    pub fn cipher(&self) -> Option<&'static str> {
        crate::ciphers::name_of(self.common().negotiated_cipher_suite()?.suite())
    }

    /// OpenSSL's name of the group of the key exchange (`$ssl_curve`).
    pub fn curve(&self) -> Option<&'static str> {
        crate::groups::name_of(self.common().negotiated_key_exchange_group()?.name())
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("protocol", &self.protocol()).finish_non_exhaustive()
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Step,
    /// More bytes of the peer are needed, or it is this side's turn.
    Wait,
}

/// Takes one step of a session: how many bytes were used, and the next step.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    output: &mut Vec<u8>,
    peer_closed: &mut bool,
    plain: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Next, TlsError>) {
    let mut used = status.discard;
    let state = match status.state {
        Ok(state) => state,
        Err(error) => return (used, Err(TlsError(error))),
    };
    let next = match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        used += record.discard;
                        plain(record.payload);
                    }
                    Err(error) => return (used, Err(TlsError(error))),
                }
            }
            Ok(Next::Step)
        }
        ConnectionState::EncodeTlsData(mut data) => encode(&mut data, output),
        // It is in the output, which goes out before anything else does.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Next::Step)
        }
        ConnectionState::PeerClosed => {
            *peer_closed = true;
            Ok(Next::Step)
        }
        _ => Ok(Next::Wait),
    };
    (used, next)
}

/// Appends bytes for the peer to the output.
fn encode<Data>(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, Data>,
    output: &mut Vec<u8>,
) -> Result<Next, TlsError> {
    let before = output.len();
    let mut written = data.encode(&mut []);
    if let Err(EncodeError::InsufficientSize(needed)) = written {
        output.resize(before + needed.required_size, 0);
        written = data.encode(&mut output[before..]);
    }
    let written = written.map_err(|_| TlsError(rustls::Error::EncryptError))?;
    output.truncate(before + written);
    Ok(Next::Step)
}

/// Returns the plaintext that came before the handshake's end, and how many bytes were used.
fn early_data(
    discard: usize,
    early: &mut rustls::unbuffered::ReadEarlyData<'_, '_, rustls::server::ServerConnectionData>,
    plain: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Next, TlsError>) {
    let mut used = discard;
    while let Some(record) = early.next_record() {
        match record {
            Ok(record) => {
                used += record.discard;
                plain(record.payload);
            }
            Err(error) => return (used, Err(TlsError(error))),
        }
    }
    (used, Ok(Next::Step))
}

/// A session that may write, of either side.
trait Writer {
    fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, EncryptError>;
    fn close(&mut self, out: &mut [u8]) -> Result<usize, EncryptError>;
}

impl<Data> Writer for rustls::unbuffered::WriteTraffic<'_, Data> {
    fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, EncryptError> {
        rustls::unbuffered::WriteTraffic::encrypt(self, plain, out)
    }

    fn close(&mut self, out: &mut [u8]) -> Result<usize, EncryptError> {
        self.queue_close_notify(out)
    }
}
