//! Certificates, servers and clients of the tests, and a pair of sessions connected in memory.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tls::client::ClientSettings;
use tls::server::{ServerSettings, Versions};
use tls::tickets::TicketKeys;
use tls::{Client, Identity, Server, Session, TlsError, ciphers, groups};

pub(crate) const TLS12: Versions = Versions { tls12: true, tls13: false };
pub(crate) const TLS13: Versions = Versions { tls12: false, tls13: true };

/// Returns the certificate of all tests; its content does not affect a handshake.
pub(crate) fn identity() -> Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let made = IDENTITY.get_or_init(|| {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["example.org".to_owned()]).unwrap().self_signed(&key).unwrap();
        Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes(), &[]).unwrap()
    });
    made.clone()
}

/// Returns settings of a server with both versions, without sessions and tickets.
pub(crate) fn settings() -> ServerSettings {
    ServerSettings {
        identities: vec![identity()],
        stapled: Vec::new(),
        slots: Vec::new(),
        versions: Versions { tls12: true, tls13: true },
        suites: ciphers::parse("ALL"),
        suites_13: ciphers::all_13(),
        groups: groups::parse("X25519").unwrap().supported,
        prefers_own_ciphers: false,
        prioritizes_chacha: false,
        client_authorities: None,
        quic_alpn: Vec::new(),
        alpn: Vec::new(),
        tickets: None,
        sessions: None,
        session_timeout: Duration::from_secs(300),
        scope: b"server".to_vec(),
        record_bytes: 16 << 10,
        early_data: false,
        compresses_certificates: true,
    }
}

pub(crate) fn server(change: impl FnOnce(&mut ServerSettings)) -> Server {
    let mut settings = settings();
    change(&mut settings);
    Server::new(settings).unwrap()
}

pub(crate) fn keys() -> Arc<TicketKeys> {
    TicketKeys::random(Duration::from_secs(300)).unwrap()
}

pub(crate) fn client(versions: Versions) -> Client {
    Client::new(ClientSettings {
        identity: None,
        versions,
        suites: ciphers::parse("ALL"),
        suites_13: ciphers::all_13(),
        groups: groups::auto(),
        reuses_sessions: true,
        sends_name: true,
        alpn: Vec::new(),
    })
    .unwrap()
}

/// Both sides of a connection, and the plaintext that each has received.
pub(crate) struct Pair {
    pub(crate) client: Session,
    pub(crate) server: Session,
    pub(crate) at_client: Vec<u8>,
    pub(crate) at_server: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(client: &Client, server: &Server) -> Pair {
        Pair::with(client.session("peer", "example.org").unwrap(), server)
    }

    pub(crate) fn with(client: Session, server: &Server) -> Pair {
        let server = server.session().unwrap();
        Pair { client, server, at_client: Vec::new(), at_server: Vec::new() }
    }

    /// Exchanges the output of both sides in pieces of `piece` bytes, until neither has more.
    pub(crate) fn settle(&mut self, piece: usize) -> Result<(), TlsError> {
        self.client.read(&mut [], &mut |_| {})?;
        loop {
            let (mut up, mut down) = (self.client.output(), self.server.output());
            if up.is_empty() && down.is_empty() {
                return Ok(());
            }
            for bytes in up.chunks_mut(piece) {
                self.server.read(bytes, &mut |plain| self.at_server.extend_from_slice(plain))?;
            }
            for bytes in down.chunks_mut(piece) {
                self.client.read(bytes, &mut |plain| self.at_client.extend_from_slice(plain))?;
            }
        }
    }

    /// Returns both sides after their handshake.
    pub(crate) fn settled(client: &Client, server: &Server) -> Pair {
        let mut pair = Pair::new(client, server);
        pair.settle(usize::MAX).unwrap();
        assert!(!pair.client.is_handshaking() && !pair.server.is_handshaking());
        pair
    }
}

/// Encrypts all of `plain`, into `room` bytes at a time.
pub(crate) fn seal(session: &mut Session, mut plain: &[u8], room: usize) -> Vec<u8> {
    let mut sealed = Vec::new();
    while !plain.is_empty() {
        let mut out = vec![0; room];
        let (now, later) = plain.split_at(session.plain_bytes(room).min(plain.len()));
        assert!(!now.is_empty(), "there is room");
        let written = session.seal(now, &mut out).unwrap();
        out.truncate(written);
        sealed.extend_from_slice(&out);
        plain = later;
    }
    sealed
}

/// Decrypts bytes that arrive in pieces.
pub(crate) fn open(session: &mut Session, sealed: &mut [u8], piece: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    for bytes in sealed.chunks_mut(piece) {
        session.read(bytes, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
    }
    plain
}

/// Returns bytes whose neighbours differ.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}
