//! Tests of requirements of RFC 9113 that the other suites do not cover, for both roles. docs/http2-musts.md lists all requirements
//! with their tests.

use super::client_tests::{self, Client};
use super::error::ErrorCode;
use super::frame::{END_HEADERS, END_STREAM, FrameType, PREFACE};
use super::settings::WINDOW_MAX;
use super::tests::*;
use super::{Event, Fault, HeadFault, Limits, Malformed, Priority, Session, hpack};
use crate::fields::HeaderId;
use crate::host::HostError;
use crate::request::ParseError;

/// Returns the settings in a payload.
fn settings_of(payload: &[u8]) -> Vec<(u16, u32)> {
    let (all, rest) = payload.as_chunks::<6>();
    assert!(rest.is_empty());
    let read = |&[i, j, a, b, c, d]: &[u8; 6]| (u16::from_be_bytes([i, j]), u32::from_be_bytes([a, b, c, d]));
    all.iter().map(read).collect()
}

fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    client_tests::frame(FrameType::WindowUpdate, 0, stream, &bytes.to_be_bytes())
}

/// Sections 3.4, 6.5 and 6.5.2: both ends begin with SETTINGS. A server does not send ENABLE_PUSH, a client sets it to 0. Neither end
/// changes the table size or the maximum frame size, so sections 4.2 and 4.3.1 require nothing more.
#[test]
fn own_settings_only_contain_permitted_values() {
    let mut peer = Peer::silent(Limits::default());
    let sent = peer.sent();
    assert_eq!(sent[0].0, FrameType::Settings);
    let ids = |payload: &[u8]| settings_of(payload).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(&sent[0].3), [3, 4, 8, 9]);
    let mut out = Vec::new();
    let _: Session<()> = Session::client(Limits::default(), &mut out);
    let first = out.strip_prefix(&PREFACE[..]).expect("the preface");
    assert_eq!(first[3], SETTINGS, "follows the preface");
    let payload = &first[9..9 + usize::from(first[2])];
    assert_eq!(ids(payload), [2, 4, 6]);
    assert_eq!(settings_of(payload)[0], (2, 0));
}

/// Section 3.4: first bytes of a server other than SETTINGS are a PROTOCOL_ERROR, even if they cannot be a frame.
#[test]
fn a_server_of_another_protocol_causes_a_protocol_error() {
    for text in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-x\r\n\r\n", b"\x15\x03\x03\0\x02\x02\x46\0\0"]
    {
        let mut out = Vec::new();
        let mut session: Session<()> = Session::client(Limits::default(), &mut out);
        let fault = session.receive(text, &mut out).expect_err("no SETTINGS");
        assert_eq!((fault, fault.code()), (Fault::NoSettings, ErrorCode::Protocol));
    }
}

/// Section 4.2: a frame with a payload of 16 384 bytes is accepted, whatever its type.
#[test]
fn frames_of_the_default_maximum_length_are_accepted() {
    let mut head = line_and(&[]);
    let fill = 16_384 - head.len() - 3;
    // A literal field with the name `a` fills the frame.
    let mut rest = vec![0, 1, b'a'];
    hpack::push_integer(&mut rest, 0, 7, fill - 3);
    rest.resize(fill + 3, b'x');
    head.extend(rest);
    assert_eq!(head.len(), 16_384);
    let mut peer = Peer::new();
    peer.feed(&frame(HEADERS, WHOLE, 1, &head))
        .expect("a head that is too long for the policy, but not for a frame");
    let mut peer = Peer::new();
    peer.feed(&[post(1), frame(DATA, 0, 1, &[7; 16_384])].concat()).expect("a body");
    assert_eq!(peer.bodies.len(), 16_384);
}

/// Section 5.1, idle: a frame other than HEADERS and PRIORITY on an idle stream ends the connection, at both ends.
#[test]
fn only_headers_and_priority_are_allowed_on_idle_streams() {
    let protocol =
        |fault: Option<(Fault, ErrorCode)>| fault.map(|(_, code)| code) == Some(ErrorCode::Protocol);
    for bytes in [
        frame(DATA, 0, 7, b"x"),
        reset(7),
        window(7, 1),
        frame(PUSH, WHOLE, 7, &[0, 0, 0, 8]),
        frame(CONTINUATION, WHOLE, 7, b""),
    ] {
        assert!(protocol(Peer::new().fault(&[get(1), bytes.clone()].concat())), "{bytes:?}");
        let mut client = Client::new(&[]);
        client.get();
        let fault = client.feed(&bytes).expect_err("an idle stream");
        assert_eq!(fault.code(), ErrorCode::Protocol, "{bytes:?}");
    }
    // A server opens no streams, so HEADERS on an idle stream are an error for a client.
    for stream in [2, 7] {
        let mut client = Client::new(&[]);
        client.get();
        let fault = client.feed(&client_tests::response(stream, 0, 200)).expect_err("an idle stream");
        assert_eq!(fault.code(), ErrorCode::Protocol);
    }
    let mut client = Client::new(&[]);
    client.get();
    assert_eq!(client.feed(&frame(PRIORITY, 0, 7, &[0; 5])), Ok(vec![]), "allowed in any state");
}

/// Sections 5.1 and 6.1: DATA on a stream number that the client has skipped gets one RST_STREAM with STREAM_CLOSED. The connection
/// continues.
#[test]
fn data_on_skipped_streams_resets_them() {
    let mut peer = Peer::new();
    peer.feed(&get(5)).expect("a request");
    let closed = ErrorCode::StreamClosed as u32;
    assert_eq!(peer.feed(&frame(DATA, 0, 3, b"x")), Ok(vec![]));
    assert_eq!(peer.feed(&frame(DATA, 0, 3, b"x")), Ok(vec![]));
    assert_eq!(peer.resets(), [(3, closed)]);
    assert!(peer.bodies.is_empty());
    assert_eq!(peer.fault(&get(1)), Some((Fault::StreamNumber, ErrorCode::Protocol)), "section 5.1.1");
}

/// Sections 5.1, 5.4.2 and 6.4: no frame is sent on a stream that the peer has reset, not even RST_STREAM. No RST_STREAM is sent for
/// an idle stream.
#[test]
fn no_frame_is_sent_after_a_reset() {
    let mut peer = Peer::new();
    peer.feed(&[post(1), reset(1)].concat()).expect("a connection that goes on");
    let mut block = Vec::new();
    hpack::push_status(&mut block, 200);
    let Peer { session, out, .. } = &mut peer;
    assert_eq!(session.push_head(1, &block, false, out), 0);
    assert_eq!((session.sendable(1), session.window(1), session.sends(1)), (0, 0, false));
    session.take(1, 60_000, out);
    session.widen(1, 1 << 20, out);
    session.reset(1, ErrorCode::Cancel, out);
    session.reset(9, ErrorCode::Cancel, out);
    session.release(1, out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(peer.feed(&reset(1)), Ok(vec![]), "once more");
    assert_eq!(peer.sent(), []);
}

/// Section 5.1, closed: the client cannot send HEADERS on a stream that it has reset, whether or not its work has ended. DATA may have
/// been queued behind the RST_STREAM: it is discarded, and counts for the window of the connection.
#[test]
fn headers_after_a_reset_by_the_client_end_the_connection() {
    for is_released in [false, true] {
        let prepared = || {
            let mut peer = Peer::new();
            peer.feed(&[post(1), reset(1)].concat()).expect("a connection that goes on");
            if is_released {
                peer.session.release(1, &mut peer.out);
            }
            peer.session.receive_window_for_test(100);
            let late = [window(1, 1), reset(1), frame(DATA, 0, 1, &[0; 30]), frame(DATA, END, 1, &[0; 30])];
            assert_eq!(peer.feed(&late.concat()), Ok(vec![]), "late frames");
            assert_eq!((peer.resets(), peer.bodies.len()), (vec![], 0), "{is_released}");
            peer
        };
        let closed = Some((Fault::ClosedStream, ErrorCode::StreamClosed));
        assert_eq!(prepared().fault(&get(1)), closed, "{is_released}");
        let above = Some((Fault::WindowExceeded, ErrorCode::FlowControl));
        assert_eq!(prepared().fault(&frame(DATA, 0, 1, &[0; 41])), above, "60 of 100 bytes are used");
        let flood = frame(DATA, 0, 1, &[]).repeat(3000);
        assert_eq!(prepared().fault(&flood).map(|(fault, _)| fault), Some(Fault::Flood), "{is_released}");
    }
}

/// Sections 5.4.2, 6.4, 6.8 and 6.9: frames on a closed stream are discarded, but still change the state of the connection: the HPACK
/// table and the receive window.
#[test]
fn discarded_frames_still_update_the_connection_state() {
    // `indexed` adds the field `x: y` to the HPACK table, `reused` refers to that entry.
    let indexed = [0x82, 0x84, 0x86, 0x41, 1, b'h', 0x40, 1, b'x', 1, b'y'];
    let reused = [0x82, 0x84, 0x86, 0xbf, 0xbe];
    let prepared: [fn(&mut Peer); 2] = [
        |peer| peer.session.reset(1, ErrorCode::Cancel, &mut peer.out),
        |peer| {
            peer.session.reset(1, ErrorCode::Cancel, &mut peer.out);
            peer.session.release(1, &mut peer.out);
        },
    ];
    for prepare in prepared {
        let mut peer = Peer::new();
        peer.feed(&post(1)).expect("a request");
        prepare(&mut peer);
        peer.session.receive_window_for_test(100);
        let late = [frame(HEADERS, WHOLE, 1, &indexed), frame(DATA, 0, 1, &[0; 60])].concat();
        assert_eq!(peer.feed(&late), Ok(vec![]));
        peer.feed(&frame(HEADERS, WHOLE, 3, &reused)).expect("the HPACK table was updated");
        let (_, head) = peer.heads.pop().expect("a head");
        assert_eq!(head.expect("a good head").named(&peer.raw, b"x").next(), Some(&b"y"[..]));
        let above = Some((Fault::WindowExceeded, ErrorCode::FlowControl));
        assert_eq!(peer.fault(&frame(DATA, 0, 1, &[0; 41])), above, "60 of 100 bytes are used");
    }
    // The same on streams above the last stream that GOAWAY has announced.
    let mut peer = Peer::new();
    peer.session.end(&mut peer.out);
    peer.session.receive_window_for_test(100);
    let late = [frame(HEADERS, WHOLE, 1, &indexed), frame(DATA, 0, 1, &[0; 60])].concat();
    assert_eq!(peer.feed(&late), Ok(vec![]));
    assert_eq!(peer.feed(&frame(HEADERS, WHOLE, 3, &reused)), Ok(vec![]));
    assert_eq!(peer.fault(&frame(DATA, 0, 3, &[0; 41])).map(|(fault, _)| fault), Some(Fault::WindowExceeded));
}

/// Section 6.5.3: of two values of one setting the last value applies, unknown settings are ignored, and the frame is acknowledged.
#[test]
fn settings_are_applied_in_order() {
    let values = [(4u16, 100u32), (0xabcd, 1), (4, 200), (1, 0), (1, 4096)];
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    let mut peer = Peer::new();
    peer.feed(&[get(1), frame(SETTINGS, 0, 0, &payload)].concat()).expect("settings");
    assert_eq!(peer.session.window(1), 200, "the last value applies (section 6.5.3)");
    assert_eq!(peer.sent(), [(FrameType::Settings, 1, 0, vec![])], "acknowledged immediately");
    // RFC 7541 section 4.2: the next block begins with the smallest table size, then the final one.
    peer.respond(1);
    assert_eq!(peer.sent()[0].3, [0x20, 0x3f, 0xe1, 0x1f, 0x88]);
    peer.feed(&get(3)).expect("a request");
    peer.respond(3);
    assert_eq!(peer.sent()[0].3, [0x88], "only once");
}

/// Sections 6.8 and 8.7: a GOAWAY never announces a higher last stream than an earlier GOAWAY, and never excludes a stream that was
/// begun.
#[test]
fn the_last_stream_of_goaway_never_increases() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    peer.session.announce_end(&mut peer.out);
    peer.feed(&get(3)).expect("a request");
    peer.session.end(&mut peer.out);
    peer.feed(&get(5)).expect("an ignored request");
    let fault = peer.feed(&frame(PING, 0, 0, &[0; 7])).expect_err("a wrong length");
    peer.session.fail(fault, &mut peer.out);
    let goaways = peer.sent().into_iter().filter(|(kind, ..)| *kind == FrameType::GoAway);
    let last: Vec<u32> =
        goaways.map(|(.., payload)| u32::from_be_bytes(*payload.first_chunk().expect("it"))).collect();
    assert_eq!(last, [WINDOW_MAX, 3, 3]);
    assert_eq!(peer.heads.len(), 2);
}

/// Section 6.9.3: until the peer has acknowledged a smaller initial window, it may send as much as the default window allows.
#[test]
fn a_smaller_window_applies_once_it_is_acknowledged() {
    let limits = Limits { initial_window: 100, ..Limits::default() };
    let mut peer = Peer::silent(limits);
    let begin = [&PREFACE[..], &frame(SETTINGS, 0, 0, &[])].concat();
    peer.feed(&begin).expect("a good start");
    let body = [post(1), frame(DATA, 0, 1, &[0; 16_384]).repeat(3)].concat();
    peer.feed(&body).expect("a body within the default window");
    assert_eq!(peer.bodies.len(), 3 * 16_384);
    assert_eq!(peer.resets(), []);
    peer.feed(&[frame(SETTINGS, END, 0, &[]), post(3), frame(DATA, 0, 3, &[0; 101])].concat())
        .expect("another body");
    assert_eq!(peer.resets(), [(3, ErrorCode::FlowControl as u32)]);
}

/// Section 6.9: an increment of 0 is an error also on a stream that has ended. That stream cannot be reset.
#[test]
fn a_zero_increment_on_an_ended_stream_ends_the_connection() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    peer.respond(1);
    assert_eq!(peer.feed(&window(1, 5)), Ok(vec![]));
    assert_eq!(peer.fault(&window(1, 0)), Some((Fault::ZeroIncrement, ErrorCode::Protocol)));
}

/// RFC 7540 section 5.3.1: a stream cannot depend on itself. All other dependencies are ignored.
#[test]
fn a_stream_that_depends_on_itself_ends_the_connection() {
    let own: [u8; 5] = [0x80, 0, 0, 1, 16];
    let head = [&own[..], &line_and(&[])].concat();
    for bytes in [frame(PRIORITY, 0, 1, &own), frame(HEADERS, END | WHOLE | WITH_PRIORITY, 1, &head)] {
        assert_eq!(Peer::new().fault(&bytes), Some((Fault::Dependency, ErrorCode::Protocol)), "{bytes:?}");
    }
    assert!(Peer::new().fault(&frame(PRIORITY, 0, 3, &own)).is_none(), "another stream");
}

/// Section 8.1.1: RST_STREAM ends the response to a malformed request. END_STREAM would close the stream before.
#[test]
fn the_response_to_a_malformed_request_ends_with_a_reset() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    peer.session.mark_malformed(1);
    let mut block = Vec::new();
    hpack::push_status(&mut block, 400);
    peer.session.push_head(1, &block, false, &mut peer.out);
    peer.session.push_data(1, 1, true, &mut peer.out);
    peer.out.push(b'x');
    peer.session.reset(1, ErrorCode::Protocol, &mut peer.out);
    peer.session.release(1, &mut peer.out);
    let sent: Vec<_> = peer.sent().into_iter().map(|(kind, flags, ..)| (kind, flags & END_STREAM)).collect();
    assert_eq!(sent, [(FrameType::Headers, 0), (FrameType::Data, 0), (FrameType::ResetStream, 0)]);
}

/// Section 6.10: CONTINUATION must be on the stream whose header block is incomplete.
#[test]
fn continuation_must_be_on_the_same_stream() {
    for bytes in [
        frame(CONTINUATION, WHOLE, 0, b""),
        [frame(HEADERS, END, 1, b""), frame(CONTINUATION, WHOLE, 0, b"")].concat(),
        [frame(HEADERS, END, 1, b""), frame(HEADERS, END | WHOLE, 1, b"")].concat(),
    ] {
        assert_eq!(Peer::new().fault(&bytes), Some((Fault::Continuation, ErrorCode::Protocol)), "{bytes:?}");
    }
    let head = client_tests::response(1, 0, 200);
    let open = [&head[..4], &[0], &head[5..]].concat();
    for next in [frame(PING, 0, 0, &[0; 8]), frame(CONTINUATION, WHOLE, 3, b""), frame(0xfe, 0, 0, b"")] {
        let mut client = Client::new(&[]);
        client.get();
        let fault = client.feed(&[open.clone(), next].concat()).expect_err("an interrupted header block");
        assert_eq!((fault, fault.code()), (Fault::Continuation, ErrorCode::Protocol));
    }
}

/// Section 7: an unknown error code gets no special treatment.
#[test]
fn unknown_error_codes_get_no_special_treatment() {
    let code = 0xdead_beef_u32;
    let mut peer = Peer::new();
    let bytes = [post(1), frame(RESET, 0, 1, &code.to_be_bytes())].concat();
    let events = peer.feed(&bytes).expect("a connection that goes on");
    assert_eq!(events[1], Event::Reset { stream: 1, by_peer: true, code });
    let goaway = [&[0; 4][..], &code.to_be_bytes()].concat();
    assert_eq!(peer.feed(&frame(GO_AWAY, 0, 0, &goaway)), Ok(vec![Event::GoAway { last: 0, code }]));
    assert_eq!(peer.feed(&get(3)).map(|events| events.len()), Ok(1), "the request is served");
}

/// Section 8.1: a complete response is not discarded because of a later RST_STREAM.
#[test]
fn a_complete_response_remains_valid_after_a_reset() {
    let mut client = Client::new(&[]);
    let mut block = Vec::new();
    hpack::push_request(&mut block, b"POST", b"http", b"/", b"h");
    let id = client.session.open_next(());
    client.session.push_head(id, &block, false, &mut client.out);
    let bytes = [
        client_tests::response(id, 0, 200),
        client_tests::frame(FrameType::Data, END_STREAM, id, b"whole"),
        client_tests::frame(FrameType::ResetStream, 0, id, &[0; 4]),
    ]
    .concat();
    let events = client.feed(&bytes).expect("good frames");
    assert!(matches!(events[1], Event::Data { ends: true, .. }), "{events:?}");
    assert_eq!(events[2], Event::Reset { stream: id, by_peer: true, code: 0 }, "the reset follows");
}

/// Section 8.1: after an early response the rest of the request is discarded, but its errors are reported as on an open stream, once.
#[test]
fn errors_after_an_early_response_are_reported() {
    let announced =
        |length: &str| block(&[&[(":method", "POST")], &LINE[1..], &[("content-length", length)]].concat());
    let cases = [
        ("second header section", frame(HEADERS, WHOLE, 1, &block(&[("a", "b")])), ErrorCode::Protocol),
        ("pseudo field", frame(HEADERS, WHOLE | END, 1, &block(&[(":path", "/")])), ErrorCode::Protocol),
        (
            "trailers before the length",
            frame(HEADERS, WHOLE | END, 1, &block(&[("a", "b")])),
            ErrorCode::Protocol,
        ),
        ("too long", frame(DATA, 0, 1, b"123456"), ErrorCode::Protocol),
        ("too short", frame(DATA, END, 1, b"1"), ErrorCode::Protocol),
        ("priority", frame(PRIORITY, 0, 1, &[0; 4]), ErrorCode::FrameSize),
        ("window", window_update(1, WINDOW_MAX), ErrorCode::FlowControl),
    ];
    for (name, bytes, code) in cases {
        let mut peer = Peer::new();
        peer.feed(&frame(HEADERS, WHOLE, 1, &announced("5"))).expect("a request");
        peer.respond(1);
        assert_eq!(peer.resets(), [(1, ErrorCode::NoError as u32)]);
        peer.feed(&bytes.repeat(2)).expect("a stream error");
        assert_eq!(peer.resets(), [(1, code as u32)], "{name}");
    }
    // A request that ends as announced, with and without trailers, and one that the client resets.
    let good = [
        frame(DATA, END, 1, b"12345"),
        [frame(DATA, 0, 1, b"12345"), frame(HEADERS, WHOLE | END, 1, &block(&[("a", "b")]))].concat(),
        [frame(DATA, 0, 1, b"1"), reset(1)].concat(),
    ];
    for bytes in good {
        let mut peer = Peer::new();
        peer.feed(&frame(HEADERS, WHOLE, 1, &announced("5"))).expect("a request");
        peer.respond(1);
        peer.feed(&[&bytes[..], &window_update(1, 1)].concat()).expect("a good end");
        assert_eq!(peer.resets(), [(1, ErrorCode::NoError as u32)]);
    }
}

/// Section 8.3.1: `Host` and `:authority` are compared without regard to case and default port. A request in which they differ is
/// malformed.
#[test]
fn hosts_are_compared_by_the_rules_of_their_scheme() {
    let request = |scheme, authority, host| {
        let fields = [
            (":method", "GET"),
            (":scheme", scheme),
            (":path", "/"),
            (":authority", authority),
            ("host", host),
        ];
        asked(&fields)
    };
    for (scheme, authority, host) in [
        ("http", "here", "HERE"),
        ("http", "here:80", "here"),
        ("http", "here", "here:"),
        ("https", "Here", "here:443"),
        ("https", "here:8443", "here:8443"),
    ] {
        assert_eq!(request(scheme, authority, host), Ok(()), "{scheme} {authority} {host}");
    }
    for (scheme, authority, host) in [
        ("http", "here", "here:443"),
        ("https", "here", "here:80"),
        ("http", "here", "there"),
        ("http", "here:8080", "here"),
    ] {
        let wanted = Err(HeadFault::Malformed(Malformed::Host));
        assert_eq!(request(scheme, authority, host), wanted, "{scheme} {authority} {host}");
    }
    assert_eq!(
        request("http", "user@here", "user@here"),
        Err(HeadFault::Refused(ParseError::InvalidHost(HostError::InvalidByte { at: 4 })))
    );
}

/// RFC 9110 section 7.2 and RFC 9112 section 3.2: several `Host` fields are refused, even if they equal `:authority`.
#[test]
fn several_host_fields_are_refused() {
    let refused = Err(HeadFault::Refused(ParseError::Duplicate(HeaderId::Host)));
    let host = ("host", "here");
    assert_eq!(asked(&[LINE.as_slice(), &[host]].concat()), Ok(()));
    assert_eq!(asked(&[LINE.as_slice(), &[host, host]].concat()), refused);
    assert_eq!(asked(&[&LINE[..3], &[host, host]].concat()), refused, "without an authority");
}

/// Section 8.2.3: `cookie` fields are joined even if they are empty, and a single empty field is not dropped.
#[test]
fn empty_cookie_fields_are_not_dropped() {
    for (values, wanted) in
        [(vec![""], &b""[..]), (vec!["", "a=b"], b"; a=b"), (vec!["a=b", "", "c=d"], b"a=b; ; c=d")]
    {
        let mut peer = Peer::new();
        let fields: Vec<_> = values.iter().map(|&value| ("cookie", value)).collect();
        peer.feed(&frame(HEADERS, END | WHOLE, 1, &line_and(&fields))).expect("a request");
        let head = peer.heads[0].1.as_ref().expect("a good head");
        assert_eq!(head.all(&peer.raw, HeaderId::Cookie).collect::<Vec<_>>(), [wanted], "{values:?}");
    }
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    let head = peer.heads[0].1.as_ref().expect("a good head");
    assert_eq!(head.get(&peer.raw, HeaderId::Cookie), None);
}

/// Section 8.5: a stream that carries another protocol accepts only DATA; a header section resets it.
#[test]
fn a_header_section_resets_a_tunnel() {
    let mut peer = Peer::new();
    peer.feed(&post(1)).expect("a request");
    peer.session.tunnel(1);
    peer.feed(&frame(DATA, 0, 1, b"bytes")).expect("bytes of the protocol");
    peer.feed(&frame(HEADERS, END | WHOLE, 1, &block(&[("a", "b")]))).expect("a connection that goes on");
    assert_eq!(
        (peer.resets(), peer.bodies.as_slice()),
        (vec![(1, ErrorCode::Protocol as u32)], &b"bytes"[..])
    );
}

/// RFC 8441 section 5: if the upstream resets the connection of a tunnel, the stream is reset with CANCEL.
#[test]
fn a_broken_tunnel_is_cancelled() {
    let mut peer = Peer::new();
    peer.feed(&post(1)).expect("a request");
    peer.session.tunnel(1);
    peer.session.release(1, &mut peer.out);
    assert_eq!(peer.resets(), [(1, ErrorCode::Cancel as u32)]);
}

/// RFC 8441 section 4 and RFC 9110 section 7.8: the protocol is a token.
#[test]
fn the_protocol_of_extended_connect_is_a_token() {
    let with = |protocol| {
        let line = [(":method", "CONNECT"), (":scheme", "http"), (":path", "/"), (":authority", "here")];
        asked(&[&line[..], &[(":protocol", protocol)]].concat())
    };
    assert_eq!(with("connect-udp"), Ok(()));
    for protocol in ["", "web socket", "a/1", "a,b", "w\u{e9}b"] {
        assert_eq!(with(protocol), Err(HeadFault::Malformed(Malformed::Protocol)), "{protocol}");
    }
}

/// Section 6.9.1: padding counts for flow control. The server returns it to the window of the stream even if no bytes of a body
/// arrive.
#[test]
fn padding_is_returned_to_the_window_of_its_stream() {
    let mut peer = Peer::with(Limits { initial_window: 1000, ..Limits::default() });
    peer.feed(&post(1)).expect("a request");
    let padding = [&[199][..], &[0; 199]].concat();
    let (mut sent, mut returned) = (0, 0);
    for _ in 0..50 {
        peer.feed(&frame(DATA, PADDED, 1, &padding)).expect("padding");
        sent += 200;
        for (kind, _, stream, payload) in peer.sent() {
            assert_eq!((kind, stream), (FrameType::WindowUpdate, 1));
            returned += u32::from_be_bytes(payload.try_into().expect("four bytes"));
        }
        assert!(sent - returned < 500, "{sent} {returned}");
    }
}

fn priority_update(stream: u32) -> Vec<u8> {
    frame(PRIORITY_UPDATE, 0, 0, &[&stream.to_be_bytes()[..], b"u=1, i"].concat())
}

/// RFC 9218 section 7.1: a priority may arrive before its stream is opened; the priority of a closed stream is ignored.
#[test]
fn a_priority_update_changes_the_priority() {
    let priority = Priority { urgency: 1, is_incremental: true };
    let mut peer = Peer::new();
    assert_eq!(peer.feed(&priority_update(5)), Ok(vec![]));
    peer.feed(&get(5)).expect("a request");
    assert_eq!((peer.session.take_update(5), peer.session.take_update(5)), (Some(priority), None));
    assert_eq!(peer.feed(&priority_update(5)), Ok(vec![Event::Priority { stream: 5, priority }]));
    peer.respond(5);
    for closed in [1, 3, 5] {
        assert_eq!(peer.feed(&priority_update(closed)), Ok(vec![]));
        assert_eq!(peer.session.take_update(closed), None);
    }
}

/// RFC 9218 section 7.1: PRIORITY_UPDATE for a stream that the server would open, for more streams than the client may open, or from a
/// server is a PROTOCOL_ERROR.
#[test]
fn inappropriate_priority_updates_end_the_connection() {
    let wanted = Some((Fault::PriorityUpdate, ErrorCode::Protocol));
    assert_eq!(Peer::new().fault(&priority_update(2)), wanted);
    let mut client = Client::new(&[]);
    let id = client.get();
    assert_eq!(client.feed(&priority_update(id)), Err(Fault::PriorityUpdate));
    // The limit is two streams: one is open, one has a priority but is not open. A third stream would exceed the limit.
    let begin = |peer: &mut Peer| {
        let updates = [priority_update(1), get(1), priority_update(3), priority_update(3)].concat();
        peer.feed(&updates).expect("permitted streams");
    };
    let limits = Limits { streams_max: 2, ..Limits::default() };
    let mut peer = Peer::with(limits);
    begin(&mut peer);
    peer.respond(1);
    peer.feed(&priority_update(5)).expect("the first stream has ended");
    assert_eq!(peer.fault(&priority_update(7)), wanted);
    // A client that has not acknowledged the limit may exceed it.
    let mut peer = Peer::silent(limits);
    peer.feed(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &[])].concat()).expect("a good start");
    begin(&mut peer);
    assert_eq!(peer.feed(&priority_update(5)), Ok(vec![]));
    assert_eq!(peer.session.take_update(5), None);
}

/// Section 6.9: a client accepts WINDOW_UPDATE on half-closed and closed streams.
#[test]
fn late_window_updates_are_accepted_by_a_client() {
    let mut client = Client::new(&[]);
    let id = client.get();
    assert_eq!(client.feed(&window_update(id, 5)), Ok(vec![Event::Window { stream: id }]));
    let response = client_tests::response(id, END_STREAM | END_HEADERS, 200);
    client.feed(&response).expect("a response");
    client.session.release(id, &mut client.out);
    assert_eq!(client.feed(&window_update(id, 5)), Ok(vec![]));
    assert_eq!(client.feed(&window_update(0, WINDOW_MAX)), Err(Fault::WindowTooLarge));
}
