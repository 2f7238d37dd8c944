//! A TLS session without its socket. It receives bytes of the peer, and returns plaintext and bytes for the peer.
//!
//! rustls 0.23 gives access to records through a state machine that borrows the received bytes. [`Session::read`] runs
//! this state machine. Only this file uses that interface; version 0.24 replaces it by two separate objects.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, CommonState, HandshakeKind, InvalidMessage};

use crate::seen::{self, Seen};

/// Maximum number of plaintext bytes in a record (RFC 8446 section 5.1).
pub const RECORD_BYTES_MAX: usize = 16 << 10;

/// Maximum number of bytes that encryption adds to a record: header, explicit nonce of TLS 1.2 or inner content type of
/// 1.3, and authentication tag.
pub const RECORD_OVERHEAD: usize = 5 + 8 + 1 + 16;

/// Length in bytes of a KeyUpdate message (RFC 8446 section 4.6.3), which precedes a record if the peer has requested
/// it.
const KEY_UPDATE_BYTES: usize = 5 + RECORD_OVERHEAD;

/// Maximum number of stored bytes of an incomplete message. A certificate chain has at most 64 KiB (rustls' limit).
/// Twice that size leaves room for the record headers, and stops a message that arrives in tiny records.
const PARTIAL_BYTES_MAX: usize = 128 << 10;

/// The TLS state of one connection.
pub struct Session {
    side: Side,
    /// Bytes for the peer that contain no plaintext: handshake messages, alerts, KeyUpdate messages.
    output: Vec<u8>,
    /// The received bytes of an incomplete record or message. rustls has already parsed some of these bytes, and every
    /// step needs them again, even a step that only writes.
    partial: Vec<u8>,
    /// The error that ended the session.
    failed: Option<Box<TlsError>>,
    /// Whether the peer has sent a close_notify alert.
    peer_closed: bool,
    record_bytes: usize,
    /// Whether this side may already send plaintext although the client's Finished message has not arrived.
    may_respond_early: bool,
    /// Facts that rustls reported to callbacks of this crate during the handshake.
    seen: Option<Box<Seen>>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Reason why a session cannot continue.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsError(rustls::Error);

impl TlsError {
    pub(crate) fn new(error: rustls::Error) -> TlsError {
        TlsError(error)
    }

    /// Whether the peer ended the session by an alert.
    pub fn is_alert(&self) -> bool {
        matches!(self.0, rustls::Error::AlertReceived(_))
    }

    /// Whether the peer refused the certificate of this side.
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

    /// Whether this server could not sign, because of its signing process.
    pub fn is_unsigned(&self) -> bool {
        matches!(&self.0, rustls::Error::General(reason) if reason.starts_with(crate::apart::SIGNING_PROCESS))
    }

    /// Whether the bytes of the peer are not TLS.
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
    /// Creates the server side of a session, before the first byte of the client.
    pub fn server(config: &Arc<rustls::ServerConfig>, record_bytes: usize) -> Result<Session, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(config)).map_err(TlsError)?;
        Ok(Session::new(Side::Server(connection), record_bytes))
    }

    /// Creates the client side of a session, which sends first: [`Session::read`] with empty input makes the first
    /// output.
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
            may_respond_early: false,
            seen: None,
        }
    }

    /// Decrypts the bytes of the peer in place, and passes the plaintext of all complete records to `plain`. Stores the
    /// bytes of an incomplete record or message until the remaining bytes arrive.
    ///
    /// After an error [`Session::output`] may return an alert for the peer; no other operation is possible.
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
            // rustls stores offsets in the bytes that it has not used, so the next call must pass the same bytes again.
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

    /// Ends a session. Its output then contains an alert for the peer.
    fn fail(&mut self, error: &TlsError) {
        self.failed = Some(Box::new(error.clone()));
        self.partial = Vec::new();
        // rustls does not read while it has output; it must not read again after an error.
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

    /// Runs all steps of rustls' state machine that these bytes allow. Returns the number of bytes used.
    fn walk(&mut self, incoming: &mut [u8], plain: &mut dyn FnMut(&[u8])) -> (usize, Result<(), TlsError>) {
        let mut used = 0;
        loop {
            let rest = &mut incoming[used..];
            let Session { side, output, peer_closed, may_respond_early, .. } = self;
            let (count, next) = match side {
                Side::Server(connection) => match connection.process_tls_records(rest) {
                    UnbufferedStatus { discard, state: Ok(ConnectionState::ReadEarlyData(mut early)) } => {
                        early_data(discard, &mut early, plain)
                    }
                    UnbufferedStatus { discard, state: Ok(ConnectionState::WriteTraffic(_)) } => {
                        *may_respond_early = true;
                        (discard, Ok(Next::Wait))
                    }
                    status => step(status, output, peer_closed, plain),
                },
                Side::Client(connection) => {
                    step(connection.process_tls_records(rest), output, peer_closed, plain)
                }
            };
            used += count;
            assert!(used <= incoming.len(), "a session uses at most the passed bytes");
            match next {
                Ok(Next::Step) => {}
                Ok(Next::Wait) => return (used, Ok(())),
                Err(error) => return (used, Err(error)),
            }
        }
    }

    /// Takes the pending bytes for the peer, which must be sent before anything else.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether bytes for the peer are pending.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns the number of plaintext bytes that [`Session::seal`] can encrypt into `room` bytes.
    pub fn plain_bytes(&self, room: usize) -> usize {
        let room = room.saturating_sub(self.output.len() + KEY_UPDATE_BYTES);
        let whole = self.record_bytes + RECORD_OVERHEAD;
        (room / whole) * self.record_bytes + (room % whole).saturating_sub(RECORD_OVERHEAD)
    }

    /// Returns the number of bytes that [`Session::seal`] needs for `len` bytes of plaintext.
    pub fn sealed_bytes(&self, len: usize) -> usize {
        self.output.len() + KEY_UPDATE_BYTES + len + len.div_ceil(self.record_bytes) * RECORD_OVERHEAD
    }

    /// Returns the maximum number of plaintext bytes per record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Writes the bytes of [`Session::output`] and then the encrypted plaintext into `out`. Returns the number of bytes
    /// written. The length of `plain` must not exceed [`Session::plain_bytes`] of the length of `out`.
    ///
    /// # Panics
    /// If the plaintext is longer.
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, TlsError> {
        assert!(plain.len() <= self.plain_bytes(out.len()), "the encrypted plaintext fits into the buffer");
        let sealed = self.write(|writer, out| writer.encrypt(plain, out), out)?;
        assert!(sealed >= plain.len(), "encrypted data is not shorter than plaintext");
        Ok(sealed)
    }

    /// Ends the sending direction by a close_notify alert (RFC 8446 section 6.1). Returns the bytes for the peer.
    pub fn close(&mut self) -> Result<Vec<u8>, TlsError> {
        let mut out = vec![0; self.output.len() + 2 * RECORD_OVERHEAD];
        let len = self.write(|writer, out| writer.close(out), &mut out)?;
        out.truncate(len);
        Ok(out)
    }

    /// Writes the pending output into `out`, followed by the output of `write`.
    fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Writer, &mut [u8]) -> Result<usize, EncryptError>,
        out: &mut [u8],
    ) -> Result<usize, TlsError> {
        // The call adds the session's own messages to the output; it reads no new input.
        self.read(&mut [], &mut |_| {})?;
        let before = self.output.len();
        // The call above may have created a client's first ClientHello, whose length `plain_bytes` could not include.
        let may_write = !self.is_handshaking() || self.may_respond_early;
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
        // `plain_bytes` leaves room for the overhead, so the only possible error is a key that has encrypted too many
        // records.
        let written = written.map_err(|_| TlsError(rustls::Error::EncryptError))?;
        Ok(before + written)
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    /// Whether this is the side of the server.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self.side, Side::Server(_))
    }

    /// Whether the handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Whether this side may respond to early data because the client's Finished message has not arrived yet.
    pub fn may_respond_early(&self) -> bool {
        self.may_respond_early && self.is_handshaking()
    }

    /// Whether the peer has sent a close_notify alert.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Returns the protocol that was negotiated by ALPN (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.common().alpn_protocol()
    }

    /// Whether this session resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Takes the facts that rustls reported to callbacks of this crate during the handshake.
    pub fn take_seen(&mut self) -> Seen {
        self.seen.take().map(|seen| *seen).unwrap_or_default()
    }

    /// Whether a server has sent a HelloRetryRequest and has not made its signature yet.
    pub(crate) fn awaits_second_hello(&self) -> bool {
        let has_signed = self.seen.as_ref().is_some_and(|seen| seen.signature.is_some());
        self.common().handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest) && !has_signed
    }

    /// Returns the peer's certificate chain; the first certificate is the peer's.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.common().peer_certificates().unwrap_or_default()
    }

    /// Returns nginx's name of the version (`$ssl_protocol`), or `None` before the version is negotiated.
    pub fn protocol(&self) -> Option<&'static str> {
        match self.common().protocol_version()? {
            rustls::ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            rustls::ProtocolVersion::TLSv1_3 => Some("TLSv1.3"),
            _ => None,
        }
    }

    /// Returns OpenSSL's name of the cipher suite (`$ssl_cipher`).
    pub fn cipher(&self) -> Option<&'static str> {
        crate::ciphers::name_of(self.common().negotiated_cipher_suite()?.suite())
    }

    /// Returns OpenSSL's name of the key exchange group (`$ssl_curve`).
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
    /// The session needs more bytes of the peer, or waits for its caller to write.
    Wait,
}

/// Runs one step of a session. Returns the number of bytes used, and what follows.
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
        // The bytes are in the output, which is always sent first.
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

/// Passes early data to `plain`. Returns the number of bytes used.
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

/// The sending interface of rustls, for client and server sessions.
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
