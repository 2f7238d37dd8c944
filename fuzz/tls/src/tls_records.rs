//! Bytes of a client before and during its handshake, and tickets, in crate `tls`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use tls::server::{HelloProgress, ServerSettings, Versions, read_hello};
use tls::tickets::{TicketKeys, Tickets};
use tls::{Server, ciphers, groups, issue};

use crate::Target;
use crate::take_byte;

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_records",
    run,
    tokens: &[
        "\x16\x03\x01",
        "\x17\x03\x03",
        "\x15\x03\x03",
        "\x14\x03\x03\x00\x01\x01",
        "\x01\x00",
        "\x03\x03",
        "a.test",
    ],
};

/// Maximum size in bytes of a session's incomplete input plus pending output: far more than any handshake needs.
const OUTPUT_MAX: usize = 64 << 10;

fn keys() -> Arc<TicketKeys> {
    TicketKeys::from_files(&[vec![7; 48]]).expect("the size of a key")
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let identity = issue::placeholder(&["a.test".to_owned()], UNIX_EPOCH + Duration::from_secs(1 << 30));
        let settings = ServerSettings {
            identities: vec![identity.expect("a certificate")],
            stapled: Vec::new(),
            slots: Vec::new(),
            versions: Versions { tls12: true, tls13: true },
            suites: ciphers::parse("ALL"),
            suites_13: ciphers::all_13(),
            groups: groups::auto(),
            prefers_own_ciphers: false,
            prioritizes_chacha: false,
            client_authorities: Some(Vec::new()),
            alpn: vec![b"http/1.1".to_vec()],
            tickets: Some(keys()),
            sessions: None,
            session_timeout: Duration::from_secs(300),
            scope: b"a".to_vec(),
            record_bytes: 16 << 10,
            early_data: false,
            compresses_certificates: true,
        };
        Server::new(settings).expect("a server")
    })
}

/// Checks that a hello is parsed independently of the bytes after it. A session must have the same result for complete
/// bytes and for pieces, use limited memory, and return no plaintext before its handshake. A ticket that the server has
/// not encrypted must not decrypt.
pub fn run(data: &[u8]) {
    let mut data = data;
    let piece = usize::from(take_byte(&mut data)) + 1;
    let mut hello = None;
    for end in (0..=data.len()).step_by(piece).chain([data.len()]) {
        match (read_hello(&data[..end]), &hello) {
            (HelloProgress::Complete(found), None) => hello = Some(found),
            (HelloProgress::Complete(found), Some(before)) => assert_eq!(*before, found),
            (HelloProgress::More, Some(_)) => panic!("a complete hello became incomplete"),
            _ => {}
        }
    }
    let ended = |piece: usize| {
        let mut session = server().session().expect("a session");
        let mut plain = 0;
        let mut output = 0;
        let mut bytes = data.to_vec();
        for part in bytes.chunks_mut(piece) {
            let read = session.read(part, &mut |bytes| plain += bytes.len());
            output += session.output().len();
            if read.is_err() {
                break;
            }
        }
        assert!(output <= OUTPUT_MAX && (plain == 0 || !session.is_handshaking()));
        session.is_handshaking()
    };
    assert_eq!(ended(piece), ended(usize::MAX));
    let tickets = Tickets { keys: keys(), scope: b"a".to_vec(), lifetime: Duration::from_secs(300) };
    assert_eq!(tickets.open(data, 0), None);
    let ticket = tickets.seal(data, 0).expect("random numbers");
    assert_eq!(tickets.open(&ticket, 0).as_deref(), Some(data));
    let other = Tickets { scope: b"b".to_vec(), ..tickets };
    assert_eq!(other.open(&ticket, 0), None);
}
