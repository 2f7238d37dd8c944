//! Sends bytes that a correct peer never sends. Expects no panic, bounded memory and bounded work.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Pair, TLS12, TLS13, client, open, pattern, seal, server};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use proptest::prelude::*;
use rustls::ConnectionTrafficSecrets;
use rustls::pki_types::ServerName;
use tls::Session;
use tls::server::{HelloProgress, read_hello};

/// A TLS 1.3 client that encrypts arbitrary records.
struct Hostile {
    key: LessSafeKey,
    iv: Vec<u8>,
    number: u64,
}

impl Hostile {
    /// Returns a client after a regular handshake, and the session of its server.
    fn connected() -> (Hostile, Session) {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(crate::common::identity().chain()[0].clone()).unwrap();
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites = vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        let name = ServerName::try_from("example.org").unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut session = server(|_| {}).session().unwrap();
        while client.is_handshaking() || session.is_handshaking() {
            let mut there = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut there).unwrap();
            }
            session.read(&mut there, &mut |_| {}).unwrap();
            let back = session.output();
            let mut back = &back[..];
            while !back.is_empty() {
                client.read_tls(&mut back).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        let (number, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { unreachable!() };
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
        (Hostile { key, iv: iv.as_ref().to_vec(), number }, session)
    }

    /// Encodes a record (RFC 8446 section 5.2).
    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce: [u8; 12] = self.iv.clone().try_into().unwrap();
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        let mut sealed = [content, &[kind]].concat();
        let len = ((sealed.len() + 16) as u16).to_be_bytes();
        let header = [23, 3, 3, len[0], len[1]];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed).unwrap();
        [&header[..], &sealed].concat()
    }
}

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

#[test]
fn a_response_is_encrypted_while_a_message_is_incomplete() {
    // A KeyUpdate message without its body, after a request.
    for piece in [1, 7, usize::MAX] {
        let (mut hostile, mut session) = Hostile::connected();
        let mut bytes = hostile.record(DATA, b"request");
        bytes.extend(hostile.record(HANDSHAKE, &[24, 0, 0]));
        bytes.extend(hostile.record(HANDSHAKE, &[1]));
        assert_eq!(open(&mut session, &mut bytes, piece), b"request");
        assert!(!seal(&mut session, b"response", 1000).is_empty());
        // The message continues, and the next request is read.
        let mut bytes = hostile.record(HANDSHAKE, &[0]);
        assert_eq!(open(&mut session, &mut bytes, piece), b"");
        assert!(session.close().is_ok());
    }
}

#[test]
fn other_records_within_a_message_are_refused() {
    for kind in [DATA, ALERT] {
        let (mut hostile, mut session) = Hostile::connected();
        let mut bytes = hostile.record(HANDSHAKE, &[24, 0]);
        bytes.extend(hostile.record(kind, &[1, 0]));
        assert!(session.read(&mut bytes, &mut |_| {}).is_err());
        assert!(session.seal(b"x", &mut [0; 100]).is_err());
        assert!(session.read(&mut [], &mut |_| {}).is_err());
        assert!(session.close().is_err());
    }
}

#[test]
fn a_session_encrypts_nothing_before_its_hello() {
    let pair = Pair::new(&client(TLS13), &server(|_| {}));
    for mut session in [pair.client, pair.server] {
        assert!(session.seal(b"x", &mut [0; 100]).is_err());
        assert!(session.close().is_err());
    }
}

#[test]
fn an_alert_within_a_handshake_message_is_refused() {
    // With TLS 1.2 no key is needed to send this.
    let mut pair = Pair::new(&client(TLS12), &server(|_| {}));
    pair.client.read(&mut [], &mut |_| {}).unwrap();
    let mut hello = pair.client.output();
    pair.server.read(&mut hello, &mut |_| {}).unwrap();
    let mut bytes = [&[HANDSHAKE, 3, 3, 0, 5, 16, 0, 0, 33, 32][..], &[ALERT, 3, 3, 0, 2, 2, 40]].concat();
    assert!(pair.server.read(&mut bytes, &mut |_| {}).is_err());
    assert!(pair.server.close().is_err());
}

#[test]
fn an_endless_message_is_bounded() {
    for content in [1, 16, 1000] {
        let (mut hostile, mut session) = Hostile::connected();
        let mut first = hostile.record(HANDSHAKE, &[4, 0, 0xff, 0xff]);
        session.read(&mut first, &mut |_| {}).unwrap();
        let mut sent = 0;
        let start = Instant::now();
        let counted = allocation_counter::measure(|| {
            while sent < 4 << 20 {
                let mut record = hostile.record(HANDSHAKE, &vec![0; content]);
                sent += record.len();
                if session.read(&mut record, &mut |_| {}).is_err() {
                    return;
                }
            }
        });
        assert!(sent < 256 << 10, "{sent} bytes in pieces of {content}");
        assert!(counted.bytes_max < 1 << 20, "{counted:?}");
        assert!(start.elapsed().as_secs() < 60);
    }
}

#[test]
fn empty_records_are_harmless() {
    for kind in [DATA, HANDSHAKE] {
        for piece in [1, 10, 100, usize::MAX] {
            let (mut hostile, mut session) = Hostile::connected();
            let mut bytes: Vec<u8> = (0..30).flat_map(|_| hostile.record(kind, b"")).collect();
            for part in bytes.chunks_mut(piece) {
                session.read(part, &mut |_| {}).unwrap();
                session.seal(b"x", &mut [0; 100]).unwrap();
            }
            let mut bytes =
                [hostile.record(DATA, b"data"), hostile.record(HANDSHAKE, &[24, 0, 0, 1, 1])].concat();
            let mut plain = Vec::new();
            for part in bytes.chunks_mut(piece) {
                if session.read(part, &mut |bytes| plain.extend_from_slice(bytes)).is_err() {
                    break;
                }
                session.seal(b"x", &mut [0; 100]).unwrap();
            }
            assert!(kind == HANDSHAKE || plain == b"data");
        }
    }
    for kind in [DATA, HANDSHAKE, ALERT] {
        let (mut hostile, mut session) = Hostile::connected();
        let mut bytes: Vec<u8> = (0..10_000).flat_map(|_| hostile.record(kind, b"")).collect();
        assert!(session.read(&mut bytes, &mut |_| {}).is_err(), "they are not endless");
    }
}

#[test]
fn a_ticket_from_a_client_is_refused_with_an_alert() {
    let (mut hostile, mut session) = Hostile::connected();
    let mut bytes = hostile.record(HANDSHAKE, &[4, 0, 0, 1, 0]);
    assert!(session.read(&mut bytes, &mut |_| {}).is_err());
    assert!(!session.output().is_empty(), "an alert");
}

#[test]
fn renegotiation_is_refused_or_ignored() {
    let mut pair = Pair::settled(&client(TLS12), &server(|_| {}));
    let mut hello = vec![HANDSHAKE, 3, 3, 0, 4, 1, 0, 0, 0];
    assert!(pair.server.read(&mut hello, &mut |_| {}).is_err(), "in plaintext");
}

/// Returns a complete ClientHello in one record.
fn hello() -> Vec<u8> {
    hello_for("Example.ORG")
}

fn hello_for(name: &str) -> Vec<u8> {
    let mut session = client(TLS13).session("peer", name).unwrap();
    session.read(&mut [], &mut |_| {}).unwrap();
    session.output()
}

/// Returns a ClientHello in records of `bytes` bytes.
fn fragmented(hello: &[u8], bytes: usize) -> Vec<u8> {
    hello[5..].chunks(bytes).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8], part].concat()).collect()
}

#[test]
fn a_hello_is_parsed_when_complete_for_any_split() {
    let hello = hello();
    for bytes in [hello.clone(), fragmented(&hello, 1), fragmented(&hello, 3), fragmented(&hello, 100)] {
        for len in 0..bytes.len() {
            assert!(matches!(read_hello(&bytes[..len]), HelloProgress::More), "{len}");
        }
        let HelloProgress::Complete(read) = read_hello(&bytes) else { panic!("it is complete") };
        assert_eq!(read.name.as_deref(), Some("example.org"));
        assert!(read.sent_name.is_some_and(|name| name.eq_ignore_ascii_case("example.org")));
        let more = [&bytes[..], b"more"].concat();
        assert!(matches!(read_hello(&more), HelloProgress::Complete(_)));
    }
}

#[test]
fn the_server_name_is_available_in_the_spelling_of_the_client() {
    let spelling = |bytes: &[u8]| match read_hello(bytes) {
        HelloProgress::Complete(read) => read.sent_name,
        _ => None,
    };
    assert_eq!(spelling(&hello()).as_deref(), Some("Example.ORG"));
    // Records that divide the name.
    assert_eq!(spelling(&fragmented(&hello(), 3)).as_deref(), Some("example.org"));
}

/// RFC 6066 section 3 forbids the dot. It would make `$ssl_server_name` an unknown name, and part of the name of a file.
#[test]
fn a_final_dot_of_the_server_name_is_removed() {
    let mut hello = hello_for("Example.ORGx");
    let at = hello.windows(4).position(|window| window == b"ORGx").expect("the name");
    hello[at + 3] = b'.';
    let HelloProgress::Complete(read) = read_hello(&hello) else { panic!("it is complete") };
    assert_eq!((read.name.as_deref(), read.sent_name.as_deref()), (Some("example.org"), Some("example.org")));
}

#[test]
fn a_hello_received_byte_by_byte_is_not_reparsed_each_time() {
    // The longest input that a handshake accepts, in the smallest records.
    let mut endless = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xff];
    while endless.len() < 16 << 10 {
        endless.extend_from_slice(&[22, 3, 1, 0, 1, 0]);
    }
    let counted = allocation_counter::measure(|| {
        for len in 0..endless.len() {
            assert!(matches!(read_hello(&endless[..len]), HelloProgress::More));
        }
    });
    assert_eq!(counted.count_total, 0, "nothing is parsed or stored");
}

/// RFC 5246 appendix E.1 requires this alert.
#[test]
fn a_hello_of_an_old_version_causes_the_alert_protocol_version() {
    for minor in [0, 1, 2] {
        let mut bytes = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, minor];
        bytes.extend_from_slice(&[7; 32]);
        // No session, one suite, no compression.
        bytes.extend_from_slice(&[0, 0, 2, 0, 0x2f, 1, 0]);
        let HelloProgress::Failed(error, alert) = read_hello(&bytes) else { panic!("version 3.{minor}") };
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 70], "version 3.{minor}: {error}");
    }
}

#[test]
fn an_invalid_hello_causes_an_alert() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0, 4, 2, 0, 0, 0],
        &[22, 3, 1, 0xff, 0xff],
    ] {
        assert!(matches!(read_hello(bytes), HelloProgress::Failed(..)), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..3000), piece in 1..500_usize, is_record: bool) {
        if is_record && bytes.len() >= 5 {
            bytes[..5].copy_from_slice(&[22, 3, 3, 0, 200]);
        }
        let _ = read_hello(&bytes);
        for mut session in [server(|_| {}).session().unwrap(), client(TLS13).session("peer", "example.org").unwrap()] {
            let mut copy = bytes.clone();
            for part in copy.chunks_mut(piece) {
                let _ = session.read(part, &mut |_| {});
                let _ = session.output();
            }
            let _ = session.seal(b"x", &mut [0; 100]);
            let _ = session.close();
        }
    }

    #[test]
    fn damaged_handshakes_and_data_never_panic(
        is_12: bool,
        flight in 0..5_usize,
        place in any::<prop::sample::Index>(),
        new in prop::collection::vec(any::<u8>(), 0..8),
        removed in 0..8_usize,
        piece in 1..2000_usize,
    ) {
        let mut pair = Pair::new(&client(if is_12 { TLS12 } else { TLS13 }), &server(|_| {}));
        let _ = pair.client.read(&mut [], &mut |_| {});
        let mut has_failed = false;
        for number in 0..6 {
            let is_up = number % 2 == 0;
            let (from, to) = if is_up { (&mut pair.client, &mut pair.server) } else { (&mut pair.server, &mut pair.client) };
            let mut bytes = from.output();
            if !from.is_handshaking() && !has_failed {
                bytes.extend(seal(from, &pattern(3000), 1000));
            }
            if number == flight && !bytes.is_empty() {
                let start = place.index(bytes.len());
                let end = (start + removed).min(bytes.len());
                bytes.splice(start..end, new.iter().copied());
            }
            for part in bytes.chunks_mut(piece) {
                has_failed |= to.read(part, &mut |_| {}).is_err();
            }
            has_failed |= to.read(&mut [], &mut |_| {}).is_err();
        }
    }

    #[test]
    fn hostile_records_after_the_handshake_never_panic(
        records in prop::collection::vec((20..25_u8, prop::collection::vec(prop_oneof![Just(0), Just(24), any::<u8>()], 0..40)), 1..8),
        piece in 1..200_usize,
    ) {
        let (mut hostile, mut session) = Hostile::connected();
        for (kind, content) in records {
            let mut bytes = hostile.record(kind, &content);
            for part in bytes.chunks_mut(piece) {
                let _ = session.read(part, &mut |_| {});
                let mut out = vec![0; 2000];
                let len = session.plain_bytes(out.len());
                let _ = session.seal(&pattern(len), &mut out);
            }
        }
        let _ = session.close();
    }
}
