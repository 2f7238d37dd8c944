//! Sessions in memory: handshakes of both versions, data of all sizes and in pieces, resumption, closing.

use std::io::{Read, Write};
use std::sync::Arc;

use crate::common::{Pair, TLS12, TLS13, client, keys, open, pattern, seal, server};
use rustls::pki_types::ServerName;
use tls::server::Versions;
use tls::sessions::SessionCache;
use tls::{Server, Session};

const BOTH: [Versions; 2] = [TLS12, TLS13];

#[test]
fn handshakes_of_both_versions_succeed_in_pieces_of_any_size() {
    let server = server(|settings| settings.alpn = vec![b"http/1.1".to_vec()]);
    for versions in BOTH {
        for piece in [1, 2, 5, 6, 7, 100, 1000, usize::MAX] {
            let mut pair = Pair::new(&client(versions), &server);
            pair.settle(piece).unwrap();
            assert!(!pair.client.is_handshaking() && !pair.server.is_handshaking(), "pieces of {piece}");
            assert_eq!(pair.client.protocol(), pair.server.protocol());
            assert_eq!(pair.client.peer_certificates().len(), 1);
            assert!(pair.server.cipher().is_some() && pair.server.alpn().is_none());
        }
    }
}

#[test]
fn a_flight_may_be_split_anywhere() {
    let server = server(|_| {});
    for versions in BOTH {
        let len = {
            let mut session = client(versions).session("peer", "example.org").unwrap();
            session.read(&mut [], &mut |_| {}).unwrap();
            session.output().len()
        };
        for cut in (0..=len).step_by(3) {
            let mut pair = Pair::new(&client(versions), &server);
            pair.client.read(&mut [], &mut |_| {}).unwrap();
            let mut hello = pair.client.output();
            let cut = cut.min(hello.len());
            let (before, behind) = hello.split_at_mut(cut);
            pair.server.read(before, &mut |_| {}).unwrap();
            pair.server.read(behind, &mut |_| {}).unwrap();
            pair.settle(usize::MAX).unwrap();
            assert!(!pair.server.is_handshaking(), "cut at {cut}");
        }
    }
}

#[test]
fn a_mebibyte_is_sent_in_both_directions() {
    let data = pattern(1 << 20);
    let server = server(|_| {});
    for versions in BOTH {
        for (room, piece) in [(64 << 10, 4096), (100, usize::MAX), (16_500, 16_411)] {
            let mut pair = Pair::settled(&client(versions), &server);
            let mut up = seal(&mut pair.client, &data, room);
            assert!(open(&mut pair.server, &mut up, piece) == data);
            let mut down = seal(&mut pair.server, &data, room);
            assert!(open(&mut pair.client, &mut down, piece) == data);
        }
    }
}

#[test]
fn all_lengths_near_record_sizes_fit_into_the_computed_size() {
    for record in [1, 512, 4096, 16_384] {
        let server = server(|settings| settings.record_bytes = record);
        for versions in BOTH {
            let mut pair = Pair::settled(&client(versions), &server);
            for near in [0, record, 2 * record, 3 * record, 4 * record] {
                for plain in near.saturating_sub(2)..near + 3 {
                    let needed = pair.server.sealed_bytes(plain);
                    assert!(pair.server.plain_bytes(needed) >= plain, "{plain} in records of {record}");
                    let mut out = vec![0; needed];
                    let data = pattern(plain);
                    let written = pair.server.seal(&data, &mut out).unwrap();
                    out.truncate(written);
                    assert!(open(&mut pair.client, &mut out, usize::MAX) == data);
                }
            }
        }
    }
}

#[test]
fn every_output_size_holds_the_computed_length() {
    let server = server(|settings| settings.record_bytes = 600);
    for versions in BOTH {
        let mut pair = Pair::settled(&client(versions), &server);
        let data = pattern(4000);
        for room in 0..2600 {
            let mut out = vec![0; room];
            let len = pair.server.plain_bytes(room);
            let written = pair.server.seal(&data[..len], &mut out).unwrap();
            out.truncate(written);
            assert!(open(&mut pair.client, &mut out, usize::MAX) == data[..len], "room of {room}");
        }
    }
}

#[test]
fn records_have_at_most_the_configured_size() {
    for record in [512, 1400, 4096] {
        let server = server(|settings| settings.record_bytes = record);
        let mut pair = Pair::settled(&client(TLS13), &server);
        let sealed = seal(&mut pair.server, &pattern(20_000), 64 << 10);
        let (mut rest, mut longest) = (&sealed[..], 0);
        while !rest.is_empty() {
            let len = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
            longest = longest.max(len);
            rest = &rest[5 + len..];
        }
        assert_eq!(longest, record + 17, "type and tag");
    }
}

/// Exchanges all output of both sides.
fn settle(buffered: &mut rustls::Connection, session: &mut Session, plain: &mut Vec<u8>) {
    loop {
        let (mut there, back) = (Vec::new(), session.output());
        while buffered.wants_write() {
            buffered.write_tls(&mut there).unwrap();
        }
        if there.is_empty() && back.is_empty() {
            return;
        }
        session.read(&mut there, &mut |bytes| plain.extend_from_slice(bytes)).unwrap();
        let mut back = &back[..];
        while !back.is_empty() {
            buffered.read_tls(&mut back).unwrap();
            buffered.process_new_packets().unwrap();
        }
    }
}

/// Returns a client that uses the buffered interface of rustls.
fn buffered(version: &'static rustls::SupportedProtocolVersion) -> rustls::Connection {
    let name = ServerName::try_from("example.org").unwrap();
    rustls::ClientConnection::new(Arc::new(buffered_config(version)), name).unwrap().into()
}

fn buffered_config(version: &'static rustls::SupportedProtocolVersion) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(crate::common::identity().chain()[0].clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[test]
fn the_buffered_client_of_rustls_interoperates() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (mut peer, mut session) = (buffered(version), server(|_| {}).session().unwrap());
        let mut plain = Vec::new();
        settle(&mut peer, &mut session, &mut plain);
        assert!(!peer.is_handshaking() && !session.is_handshaking());
        peer.writer().write_all(b"from the client").unwrap();
        settle(&mut peer, &mut session, &mut plain);
        assert_eq!(plain, b"from the client");
        let mut sealed = &seal(&mut session, b"from the server", 1000)[..];
        peer.read_tls(&mut sealed).unwrap();
        peer.process_new_packets().unwrap();
        let mut buf = [0; 100];
        let len = peer.reader().read(&mut buf).unwrap();
        assert_eq!(&buf[..len], b"from the server");
        peer.send_close_notify();
        settle(&mut peer, &mut session, &mut plain);
        assert!(session.peer_closed());
    }
}

#[test]
fn a_key_update_is_done_although_the_buffer_is_full() {
    let (mut peer, mut session) = (buffered(&rustls::version::TLS13), server(|_| {}).session().unwrap());
    let mut plain = Vec::new();
    settle(&mut peer, &mut session, &mut plain);
    for room in [100, 1000, 16_500, 64 << 10] {
        let rustls::Connection::Client(connection) = &mut peer else { unreachable!() };
        connection.refresh_traffic_keys().unwrap();
        settle(&mut peer, &mut session, &mut plain);
        let data = pattern(session.plain_bytes(room));
        let mut out = vec![0; room];
        let written = session.seal(&data, &mut out).unwrap();
        out.truncate(written);
        let mut rest = &out[..];
        let mut received = Vec::new();
        while !rest.is_empty() {
            peer.read_tls(&mut rest).unwrap();
            peer.process_new_packets().unwrap();
            let mut buf = vec![0; 64 << 10];
            while let Ok(len @ 1..) = peer.reader().read(&mut buf) {
                received.extend_from_slice(&buf[..len]);
            }
        }
        assert!(received == data, "room of {room}");
    }
}

#[test]
fn each_side_receives_close_notify() {
    for versions in BOTH {
        let mut pair = Pair::settled(&client(versions), &server(|_| {}));
        let mut end = pair.client.close().unwrap();
        let mut last = seal(&mut pair.server, b"last", 100);
        open(&mut pair.server, &mut end, 1);
        assert!(pair.server.peer_closed() && !pair.client.peer_closed());
        // One direction has ended, the other still sends.
        last.extend(seal(&mut pair.server, b" words", 100));
        last.extend(pair.server.close().unwrap());
        assert_eq!(open(&mut pair.client, &mut last, usize::MAX), b"last words");
        assert!(pair.client.peer_closed());
    }
}

#[test]
fn bytes_after_close_notify_are_ignored() {
    let mut pair = Pair::settled(&client(TLS13), &server(|_| {}));
    let mut end = pair.client.close().unwrap();
    end.extend(pattern(5000));
    assert_eq!(open(&mut pair.server, &mut end, 1000), b"");
    assert!(pair.server.peer_closed());
    assert!(pair.server.seal(b"more", &mut [0; 200]).is_ok(), "this direction goes on");
}

#[test]
fn a_damaged_record_causes_an_alert() {
    for versions in BOTH {
        let mut pair = Pair::settled(&client(versions), &server(|_| {}));
        let mut sealed = seal(&mut pair.client, b"data", 100);
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        assert!(pair.server.read(&mut sealed, &mut |_| {}).is_err());
        assert!(pair.server.close().is_err(), "nothing else can be said");
        let mut alert = pair.server.output();
        let error = pair.client.read(&mut alert, &mut |_| {}).unwrap_err();
        assert!(error.is_alert(), "{error}");
    }
}

#[test]
fn disjoint_versions_cause_an_alert() {
    let server = server(|settings| settings.versions = TLS12);
    let mut pair = Pair::new(&client(TLS13), &server);
    assert!(pair.settle(usize::MAX).is_err());
    let mut alert = pair.server.output();
    assert!(pair.client.read(&mut alert, &mut |_| {}).unwrap_err().is_alert());
}

/// Whether a second connection, to another server, resumes the session of the first.
fn resumes(versions: Versions, first: &Server, second: &Server) -> bool {
    let client = client(versions);
    for server in [first, second] {
        let mut pair = Pair::settled(&client, server);
        // Tickets of TLS 1.3 are sent with the first data.
        let mut data = seal(&mut pair.server, b"x", 4000);
        open(&mut pair.client, &mut data, usize::MAX);
        assert_eq!(pair.client.is_resumed(), pair.server.is_resumed());
        if pair.client.is_resumed() {
            return true;
        }
    }
    false
}

#[test]
fn tickets_and_the_cache_resume_only_sessions_of_their_server() {
    let (keys, cache) = (keys(), SessionCache::new(1 << 20));
    let by_ticket = |scope: &str| {
        server(|settings| (settings.tickets, settings.scope) = (Some(Arc::clone(&keys)), scope.into()))
    };
    let by_cache = |scope: &str| {
        server(|settings| (settings.sessions, settings.scope) = (Some(Arc::clone(&cache)), scope.into()))
    };
    for versions in BOTH {
        assert!(resumes(versions, &by_ticket("a"), &by_ticket("a")));
        assert!(!resumes(versions, &by_ticket("a"), &by_ticket("b")));
        assert!(resumes(versions, &by_cache("a"), &by_cache("a")));
        assert!(!resumes(versions, &by_cache("a"), &by_cache("b")));
        assert!(!resumes(versions, &server(|_| {}), &server(|_| {})), "neither tickets nor a cache");
    }
}

#[test]
fn sessions_of_different_upstreams_do_not_mix() {
    let keys = keys();
    let server = server(|settings| settings.tickets = Some(keys));
    for versions in BOTH {
        let client = client(versions);
        let resumed = |peer: &str, name: &str| {
            let mut pair = Pair::with(client.session(peer, name).unwrap(), &server);
            pair.settle(usize::MAX).unwrap();
            let mut data = seal(&mut pair.server, b"x", 4000);
            open(&mut pair.client, &mut data, usize::MAX);
            pair.client.is_resumed()
        };
        assert!(!resumed("10.0.0.1:443", "example.org"));
        assert!(!resumed("10.0.0.2:443", "example.org"), "another peer");
        assert!(!resumed("10.0.0.1:443", "example.net"), "another name");
        assert!(!resumed("10.0.0.1:443", "no host name 1"));
        assert!(!resumed("10.0.0.1:443", "no host name 2"), "names that are not sent");
        assert!(resumed("10.0.0.1:443", "example.org"));
        assert!(resumed("10.0.0.2:443", "example.org"));
    }
}

#[test]
fn early_data_is_accepted_only_if_allowed() {
    for allowed in [false, true] {
        let server = server(|settings| {
            settings.early_data = allowed;
            settings.sessions = Some(SessionCache::new(1 << 20));
        });
        let mut config = buffered_config(&rustls::version::TLS13);
        config.enable_early_data = true;
        let config = Arc::new(config);
        let name = ServerName::try_from("example.org").unwrap();
        let mut plain = Vec::new();
        let mut first: rustls::Connection =
            rustls::ClientConnection::new(Arc::clone(&config), name.clone()).unwrap().into();
        settle(&mut first, &mut server.session().unwrap(), &mut plain);
        let mut second = rustls::ClientConnection::new(config, name).unwrap();
        let is_offered = second.early_data().map(|mut early| early.write_all(b"early").unwrap()).is_some();
        assert_eq!(is_offered, allowed);
        let mut second = second.into();
        settle(&mut second, &mut server.session().unwrap(), &mut plain);
        assert_eq!(plain, if allowed { &b"early"[..] } else { b"" });
    }
}
