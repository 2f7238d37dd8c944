//! A scripted peer tests an [`Http3Session`]: the requirements of RFC 9114, 9204, 9218 and 9220, by section. docs/http3-musts.md lists
//! them with their tests.

use proptest::prelude::*;

use super::*;
use crate::fields::{BodyLength, HeaderId, Version};
use crate::h3::error::{Http3ErrorCode, RequestFault, StreamFailure};
use crate::h3::frame::{push_frame_start, read_varint};
use crate::h3::qpack::{self, QpackError, STATIC_PREFIX};
use crate::h3::request::RequestEvent;
use crate::multiplexed::{Block, HeadFault, HeadReader, Malformed, ResponseReader, Scratch};
use crate::request::{Head, Policy};

const CONTROL: u64 = 2;
const ENCODER: u64 = 6;
const DECODER: u64 = 10;
const OTHER: u64 = 14;

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    push_varint(&mut out, value);
    out
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame_start(&mut out, kind, payload.len() as u64);
    out.extend_from_slice(payload);
    out
}

fn settings(pairs: &[(u64, u64)]) -> Vec<u8> {
    let payload: Vec<u8> =
        pairs.iter().flat_map(|&(id, value)| [varint(id), varint(value)].concat()).collect();
    frame(kind::SETTINGS, &payload)
}

/// Returns a header block with its prefix.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = STATIC_PREFIX.to_vec();
    for (name, value) in fields {
        // Written as literals, because `push_field` changes the case of names.
        out.push(0x27);
        out.push((name.len() - 7) as u8);
        out.extend_from_slice(name.as_bytes());
        crate::multiplexed::coding::push_text(&mut out, 0, 7, value.as_bytes(), false);
    }
    out
}

const LINE: [(&str, &str); 3] = [(":scheme", "https"), (":authority", "here"), (":method", "GET")];

/// Returns HEADERS of a request for `/a`, with further fields. Names have at least seven bytes.
fn request_with(method: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = STATIC_PREFIX.to_vec();
    qpack::push_request(&mut out, method.as_bytes(), b"https", b"/a", b"here");
    out.extend_from_slice(&block(fields)[2..]);
    frame(kind::HEADERS, &out)
}

fn get() -> Vec<u8> {
    request_with("GET", &[])
}

fn data(bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, bytes)
}

fn trailers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, &block(fields))
}

/// Result of a request stream.
#[derive(Debug, Default, PartialEq)]
struct Received {
    head: Option<Result<(), HeadFault>>,
    raw: Vec<u8>,
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    error: Option<StreamFailure>,
}

struct Peer {
    session: Http3Session,
    out: Http3Output,
    /// The last head.
    head: Head,
}

impl Peer {
    fn with(limits: Http3Limits, is_server: bool) -> Peer {
        let mut out = Http3Output::default();
        let session = Http3Session::begin(is_server, limits, &mut out);
        Peer { session, out, head: Head::new() }
    }

    /// Returns a server whose client has sent its settings.
    fn server() -> Peer {
        Peer::with(Http3Limits::default(), true).begun()
    }

    fn client() -> Peer {
        Peer::with(Http3Limits::default(), false).begun()
    }

    fn dynamic(blocked_max: u16) -> Peer {
        Peer::with(Http3Limits { table_capacity: 220, blocked_max, ..Http3Limits::default() }, true).begun()
    }

    fn begun(mut self) -> Peer {
        let events = self.uni(CONTROL, &[varint(0), settings(&[])].concat());
        assert_eq!(events, Ok(vec![UniEvent::Settings]));
        self.out = Http3Output::default();
        self
    }

    /// Feeds a unidirectional stream.
    fn uni(&mut self, id: u64, bytes: &[u8]) -> Result<Vec<UniEvent>, Http3Fault> {
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let step = self.session.receive_uni(id, &bytes[at..], &mut self.out)?;
            at += step.used;
            if step.event != UniEvent::More {
                events.push(step.event);
            }
        }
        Ok(events)
    }

    fn control(&mut self, bytes: &[u8]) -> Result<Vec<UniEvent>, Http3Fault> {
        self.uni(CONTROL, bytes)
    }

    /// Receives a complete request stream in pieces.
    fn request(&mut self, id: u64, bytes: &[u8], piece: usize) -> Received {
        let mut received = Received::default();
        let mut stream = self.session.open(id).expect("no GOAWAY was sent");
        let error = self.receive(&mut stream, bytes, piece, &mut received).err();
        received.error = error.or_else(|| self.session.receive_end(&mut stream).err());
        received
    }

    fn receive(
        &mut self,
        stream: &mut RequestStream,
        bytes: &[u8],
        piece: usize,
        received: &mut Received,
    ) -> Result<(), StreamFailure> {
        for input in bytes.chunks(piece.max(1)) {
            let mut at = 0;
            while at < input.len() {
                let input = &input[at..];
                let step = self.session.receive(stream, input)?;
                assert!(step.used > 0, "the stream advances");
                at += step.used;
                match step.event {
                    RequestEvent::More => assert_eq!(step.used, input.len()),
                    RequestEvent::Head { block } => self.decode(stream, block, input, received)?,
                    RequestEvent::Data { start, end } => {
                        assert!(start < end);
                        received.body.extend_from_slice(&input[start..end]);
                    }
                    RequestEvent::Trailers { block } => {
                        let fields = self.session.decode_trailers(stream, block, input, &mut self.out)?;
                        received.trailers = fields.expect("not blocked");
                    }
                }
            }
        }
        Ok(())
    }

    fn decode(
        &mut self,
        stream: &mut RequestStream,
        block: Block,
        input: &[u8],
        received: &mut Received,
    ) -> Result<(), StreamFailure> {
        let (mut scratch, policy) = (Scratch::default(), Policy::default());
        self.head.clear();
        let mut reader =
            HeadReader::new(&mut scratch, &mut self.head, &mut received.raw, &policy).version(Version::Http3);
        let decoded = self
            .session
            .decode(stream, block, input, &mut self.out, |name, value| reader.field(name, value))?;
        assert_eq!(decoded, DecodedSection::Fields);
        let finished = reader.finish(false);
        if let BodyLength::Exactly(length) = self.head.body() {
            stream.expect(length);
        }
        if finished.is_ok() && self.head.field(HeaderId::Upgrade).is_some() {
            stream.tunnel();
        }
        received.head = Some(finished);
        Ok(())
    }

    /// Returns the error of a request stream with these bytes.
    fn error(bytes: &[u8]) -> Option<StreamFailure> {
        Peer::server().request(0, bytes, usize::MAX).error
    }
}

fn ends_connection(error: Option<StreamFailure>, code: Http3ErrorCode) -> bool {
    matches!(error, Some(StreamFailure::Connection(fault)) if fault.code() == code)
}

fn ends_stream(error: Option<StreamFailure>, code: Http3ErrorCode) -> bool {
    matches!(error, Some(StreamFailure::Stream(fault)) if fault.code() == code)
}

/// Returns the settings that an end sends first.
fn own_settings(is_server: bool, limits: Http3Limits) -> Vec<(u64, u64)> {
    let peer = Peer::with(limits, is_server);
    assert!(peer.out.decoder.is_empty());
    let bytes = peer.out.control;
    assert_eq!(bytes[..2], [0, 4], "a control stream that begins with SETTINGS");
    let mut rest = &bytes[3..];
    assert_eq!(rest.len(), usize::from(bytes[2]));
    let mut pairs = Vec::new();
    while let Some((id, used)) = read_varint(rest) {
        let (value, more) = read_varint(&rest[used..]).expect("a value");
        pairs.push((id, value));
        rest = &rest[used + more..];
    }
    pairs
}

#[test]
fn the_own_control_stream_begins_with_permitted_settings() {
    for (is_server, grease) in [(true, 0), (false, 0), (true, u32::MAX)] {
        for table_capacity in [0, 4096] {
            let limits = Http3Limits { grease, table_capacity, blocked_max: 7, ..Http3Limits::default() };
            let pairs = own_settings(is_server, limits);
            let value = |id: u64| pairs.iter().find(|(other, _)| *other == id).map(|(_, value)| *value);
            assert!(pairs.iter().all(|(id, _)| !matches!(id, 0 | 2..=5)), "no setting of HTTP/2");
            let ids: std::collections::HashSet<u64> = pairs.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids.len(), pairs.len(), "each once");
            assert!(pairs.iter().any(|(id, _)| *id >= 0x21 && (id - 0x21) % 0x1f == 0), "a reserved setting");
            assert_eq!(value(6), Some((33 << 10) + 32 * 1000));
            assert_eq!(value(8), is_server.then_some(1));
            let wanted = (table_capacity > 0).then_some((4096, 7));
            assert_eq!(value(1).zip(value(7)), wanted);
        }
    }
}

#[test]
fn a_control_stream_must_begin_with_settings() {
    for kind in [0x0, 0x1, 0x2, 0x3, 0x5, 0x7, 0xd, 0x21, 0xf_0700, 0x1234] {
        for is_server in [true, false] {
            let mut peer = Peer::with(Http3Limits::default(), is_server);
            let fault = peer.uni(CONTROL, &[varint(0), frame(kind, &[0])].concat()).expect_err("no SETTINGS");
            assert_eq!(fault.code(), Http3ErrorCode::MissingSettings, "{kind:x}");
        }
    }
}

#[test]
fn settings_are_applied_and_unknown_ones_ignored() {
    let mut peer = Peer::with(Http3Limits::default(), true);
    assert_eq!(peer.session.peer(), None);
    let frames =
        settings(&[(1, 4096), (6, 1 << 40), (7, 16), (8, 1), (0x21, 5), (0x33, 1), (VARINT_MAX, VARINT_MAX)]);
    assert_eq!(peer.uni(CONTROL, &[varint(0), frames].concat()), Ok(vec![UniEvent::Settings]));
    let wanted = Http3Settings {
        table_capacity: 4096,
        blocked_streams: 16,
        field_section_max: 1 << 40,
        has_extended_connect: true,
    };
    assert_eq!(peer.session.peer(), Some(&wanted));
    assert_eq!(Peer::server().session.peer(), Some(&Http3Settings::default()));
}

#[test]
fn invalid_settings_end_the_connection() {
    let fault = |payload: &[u8]| {
        let mut peer = Peer::with(Http3Limits::default(), true);
        peer.uni(CONTROL, &[varint(0), frame(kind::SETTINGS, payload)].concat()).expect_err("invalid").code()
    };
    for id in [0, 2, 3, 4, 5] {
        assert_eq!(fault(&[id, 0]), Http3ErrorCode::Settings, "reserved setting {id}");
    }
    for pair in [[6, 6], [1, 1], [33, 33]] {
        assert_eq!(fault(&[pair[0], 1, pair[1], 1]), Http3ErrorCode::Settings, "{pair:?} twice");
    }
    assert_eq!(fault(&[8, 2]), Http3ErrorCode::Settings);
    for truncated in [&[6][..], &[0x40], &[6, 0x40], &[6, 1, 7]] {
        assert_eq!(fault(truncated), Http3ErrorCode::Frame, "{truncated:?}");
    }
    let many: Vec<u8> = (100..1000).flat_map(|id| [varint(id), varint(0)].concat()).collect();
    assert_eq!(fault(&many), Http3ErrorCode::ExcessiveLoad);
    assert_eq!(fault(&[0x40; 5000]), Http3ErrorCode::ExcessiveLoad);
}

#[test]
fn a_second_stream_of_a_type_ends_the_connection() {
    for stream_type in [stream_type::CONTROL, stream_type::ENCODER, stream_type::DECODER] {
        let mut peer = Peer::server();
        if stream_type != stream_type::CONTROL {
            assert_eq!(peer.uni(ENCODER, &varint(stream_type)), Ok(vec![]));
        }
        let fault = peer.uni(OTHER, &varint(stream_type)).expect_err("a second stream");
        assert_eq!((fault, fault.code()), (Http3Fault::DuplicateStream, Http3ErrorCode::StreamCreation));
    }
}

#[test]
fn critical_streams_must_not_be_closed() {
    let mut peer = Peer::server();
    peer.uni(ENCODER, &varint(stream_type::ENCODER)).expect("a stream");
    peer.uni(DECODER, &varint(stream_type::DECODER)).expect("a stream");
    for id in [CONTROL, ENCODER, DECODER] {
        let fault = peer.session.end_uni(id).expect_err("a critical stream");
        assert_eq!(fault.code(), Http3ErrorCode::ClosedCriticalStream);
    }
}

#[test]
fn streams_of_unknown_types_are_ignored() {
    let mut peer = Peer::server();
    for stream_type in [0x4, 0x21, 0x54, VARINT_MAX] {
        let bytes = [varint(stream_type), b"anything".to_vec()].concat();
        for piece in [1, 100] {
            let events: Vec<UniEvent> = bytes
                .chunks(piece)
                .map(|input| peer.session.receive_uni(OTHER, input, &mut peer.out).expect("ignored").event)
                .take_while(|event| *event != UniEvent::Ignored)
                .collect();
            assert!(events.len() < 8);
            assert_eq!(peer.session.end_uni(OTHER), Ok(()));
        }
    }
    // RFC 9114 section 6.2: a stream may end before its type.
    assert_eq!(peer.uni(OTHER, &[0x40]), Ok(vec![]));
    assert_eq!(peer.session.end_uni(OTHER), Ok(()));
    assert!(peer.session.untyped.is_empty());
}

#[test]
fn the_type_of_a_stream_may_arrive_in_pieces() {
    let mut peer = Peer::with(Http3Limits::default(), true);
    let bytes = [&[0x80, 0, 0, 0][..], &settings(&[(6, 9)])].concat();
    let events: Vec<UniEvent> =
        bytes.iter().flat_map(|byte| peer.uni(CONTROL, &[*byte]).expect("good")).collect();
    assert_eq!(events, [UniEvent::Settings]);
}

#[test]
fn neither_end_accepts_pushes() {
    let code = |peer: &mut Peer, id, bytes: &[u8]| peer.uni(id, bytes).expect_err("a push").code();
    assert_eq!(code(&mut Peer::server(), OTHER, &[1]), Http3ErrorCode::StreamCreation);
    assert_eq!(code(&mut Peer::client(), OTHER, &[1, 0]), Http3ErrorCode::Id);
    // RFC 9114 section 7.2.3.
    for mut peer in [Peer::server(), Peer::client()] {
        assert_eq!(code(&mut peer, CONTROL, &frame(kind::CANCEL_PUSH, &[0])), Http3ErrorCode::Id);
    }
    // Section 7.2.5.
    let promise = frame(kind::PUSH_PROMISE, &[0, 0, 0]);
    let received = Peer::client().request(0, &promise, 100);
    assert!(ends_connection(received.error, Http3ErrorCode::Id));
    // Section 7.2.7: a limit must not decrease, and clients must not receive one.
    let mut peer = Peer::server();
    assert_eq!(
        peer.control(&[frame(kind::MAX_PUSH_ID, &[5]), frame(kind::MAX_PUSH_ID, &[5])].concat()),
        Ok(vec![])
    );
    assert_eq!(code(&mut peer, CONTROL, &frame(kind::MAX_PUSH_ID, &[4])), Http3ErrorCode::Id);
    let limit = frame(kind::MAX_PUSH_ID, &[5]);
    assert_eq!(code(&mut Peer::client(), CONTROL, &limit), Http3ErrorCode::FrameUnexpected);
}

#[test]
fn frames_on_the_wrong_stream_end_the_connection() {
    for kind in [0x0, 0x1, 0x2, 0x4, 0x5, 0x6, 0x8, 0x9] {
        let fault = Peer::server().control(&frame(kind, &[])).expect_err("unexpected");
        assert_eq!(fault.code(), Http3ErrorCode::FrameUnexpected, "{kind:x} on the control stream");
    }
    for kind in [0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xd, 0xf_0700, 0xf_0701] {
        for before in [&[][..], &get(), &[get(), data(b"x")].concat()] {
            let error = Peer::error(&[before, &frame(kind, &[0])].concat());
            assert!(ends_connection(error, Http3ErrorCode::FrameUnexpected), "{kind:x} on a request stream");
        }
    }
}

#[test]
fn frames_in_the_wrong_order_end_the_connection() {
    let end = trailers(&[("x-check", "v")]);
    for bytes in [data(b"x"), [get(), end.clone(), data(b"x")].concat(), [get(), end.clone(), end].concat()] {
        assert!(ends_connection(Peer::error(&bytes), Http3ErrorCode::FrameUnexpected));
    }
}

#[test]
fn unknown_frames_are_ignored_between_all_others() {
    let unknown = [frame(0x21, b""), frame(0x4000, &[9; 300]), frame(VARINT_MAX, b"x")].concat();
    let parts = [get(), data(b"ab"), data(b"c"), trailers(&[("x-check", "v")])];
    let bytes: Vec<u8> =
        parts.iter().flat_map(|part| [&unknown[..], part].concat()).chain(unknown.clone()).collect();
    let received = Peer::server().request(0, &bytes, usize::MAX);
    assert_eq!((received.error, &received.body[..]), (None, &b"abc"[..]));
    assert_eq!(received.trailers, [(b"x-check".to_vec(), b"v".to_vec())]);
    let mut peer = Peer::server();
    let goaway = frame(kind::GOAWAY, &[0]);
    assert_eq!(
        peer.control(&[&unknown[..], &goaway, &unknown].concat()),
        Ok(vec![UniEvent::GoAway { id: 0 }])
    );
}

#[test]
fn control_frames_of_the_wrong_length_are_frame_errors() {
    for kind in [kind::GOAWAY, kind::CANCEL_PUSH, kind::MAX_PUSH_ID] {
        for payload in [&[][..], &[0x40], &[0, 0], &[0xc0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            let fault = Peer::server().control(&frame(kind, payload)).expect_err("a wrong length");
            assert_eq!(fault.code(), Http3ErrorCode::Frame, "{kind:x} {payload:?}");
        }
    }
    for kind in [kind::PRIORITY_UPDATE, kind::PRIORITY_UPDATE_PUSH] {
        let fault = Peer::server().control(&frame(kind, &[])).expect_err("no identifier");
        assert_eq!(fault.code(), Http3ErrorCode::Frame);
    }
}

/// RFC 9114 section 7.1.
#[test]
fn a_stream_that_ends_inside_a_frame_ends_the_connection() {
    let bytes = [get(), data(b"abc"), frame(0x21, b"x")].concat();
    let boundaries = [get().len(), get().len() + data(b"abc").len(), bytes.len()];
    for end in 1..=bytes.len() {
        let error = Peer::error(&bytes[..end]);
        match boundaries.contains(&end) {
            true => assert_eq!(error, None),
            false => assert!(ends_connection(error, Http3ErrorCode::Frame), "{end}: {error:?}"),
        }
    }
}

/// RFC 9114 section 4.1.
#[test]
fn a_stream_without_a_request_is_incomplete() {
    for bytes in [vec![], frame(0x21, b"x")] {
        assert!(ends_stream(Peer::error(&bytes), Http3ErrorCode::RequestIncomplete));
    }
}

/// RFC 9114 section 4.1.2.
#[test]
fn a_body_of_another_length_is_malformed() {
    let post = request_with("POST", &[("content-length", "3")]);
    let end = trailers(&[("x-check", "v")]);
    for bodies in
        [&[][..], &[data(b"ab")], &[data(b"abcd")], &[data(b"ab"), data(b"cd")], &[data(b"ab"), end.clone()]]
    {
        let error = Peer::error(&[post.clone(), bodies.concat()].concat());
        assert!(ends_stream(error, Http3ErrorCode::Message), "{bodies:?}");
    }
    for bodies in [&[data(b"abc")][..], &[data(b"ab"), data(b""), data(b"c"), end]] {
        assert_eq!(Peer::error(&[post.clone(), bodies.concat()].concat()), None, "{bodies:?}");
    }
}

/// RFC 9114 sections 4.2 to 4.4, with the rules of HTTP/2.
#[test]
fn malformed_requests_are_recognised() {
    let head = |fields: &[(&str, &str)]| {
        let bytes = frame(kind::HEADERS, &block(fields));
        Peer::server().request(0, &bytes, usize::MAX).head.expect("a head")
    };
    // The helper writes names of seven bytes and more, so `:path` is added by `request_with`.
    assert_eq!(head(&LINE), Err(HeadFault::Malformed(Malformed::Missing)), "no path");
    let with = |field: (&'static str, &'static str)| {
        Peer::server().request(0, &request_with("GET", &[field]), usize::MAX).head.expect("a head")
    };
    assert_eq!(with(("x-field", "v")), Ok(()));
    for (field, wanted) in [
        (("X-Field", "v"), Malformed::Name),
        (("x field", "v"), Malformed::Name),
        (("x-field", " v"), Malformed::Value),
        (("x-field", "a\r\nb: c"), Malformed::Value),
        (("x-field", "a\0"), Malformed::Value),
        (("connection", "close"), Malformed::Connection),
        (("transfer-encoding", "chunked"), Malformed::Connection),
        (("proxy-connection", "close"), Malformed::Connection),
        (("keep-alive", "1"), Malformed::Connection),
        (("upgrade", "x"), Malformed::Connection),
        ((":unknown", "x"), Malformed::Pseudo),
        ((":status", "200"), Malformed::Pseudo),
        ((":method", "GET"), Malformed::Pseudo),
        ((":protocol", "websocket"), Malformed::Pseudo),
    ] {
        assert_eq!(with(field), Err(HeadFault::Malformed(wanted)), "{field:?}");
    }
    let twice = request_with("GET", &[("x-field", "v"), (":scheme", "https")]);
    let received = Peer::server().request(0, &twice, usize::MAX);
    assert_eq!(received.head, Some(Err(HeadFault::Malformed(Malformed::Pseudo))), "after other fields");
}

/// RFC 9114 section 4.2.1.
#[test]
fn cookies_of_several_fields_are_joined_in_http_3() {
    let mut bytes = STATIC_PREFIX.to_vec();
    qpack::push_request(&mut bytes, b"GET", b"https", b"/", b"here");
    for value in [&b"a=1"[..], b"b=2", b"c=3"] {
        qpack::push_field(&mut bytes, b"cookie", value);
    }
    let mut peer = Peer::server();
    let received = peer.request(0, &frame(kind::HEADERS, &bytes), usize::MAX);
    assert_eq!(peer.head.get(&received.raw, HeaderId::Cookie), Some(&b"a=1; b=2; c=3"[..]));
}

/// RFC 9114 section 4.3.1.
#[test]
fn authority_and_host_of_http_3_must_be_equal() {
    for (authority, host, wanted) in [
        ("here", "here", Ok(())),
        ("", "here", Ok(())),
        ("here", "HERE:443", Ok(())),
        ("here", "there", Err(HeadFault::Malformed(Malformed::Host))),
    ] {
        let mut bytes = STATIC_PREFIX.to_vec();
        qpack::push_request(&mut bytes, b"GET", b"https", b"/", authority.as_bytes());
        qpack::push_field(&mut bytes, b"host", host.as_bytes());
        let received = Peer::server().request(0, &frame(kind::HEADERS, &bytes), usize::MAX);
        assert_eq!(received.head, Some(wanted), "{authority} {host}");
    }
    let mut bytes = STATIC_PREFIX.to_vec();
    qpack::push_request(&mut bytes, b"GET", b"https", b"/", b"");
    let received = Peer::server().request(0, &frame(kind::HEADERS, &bytes), usize::MAX);
    assert!(received.head.is_some_and(|head| head.is_err()), "neither");
}

/// RFC 9114 section 4.4: CONNECT without `:protocol` is refused as in HTTP/1, and malformed with a path.
#[test]
fn plain_connect_has_only_an_authority() {
    for (scheme, is_malformed) in [("", false), ("https", true)] {
        let mut bytes = STATIC_PREFIX.to_vec();
        qpack::push_request(&mut bytes, b"CONNECT", scheme.as_bytes(), b"/", b"here:1");
        let received = Peer::server().request(0, &frame(kind::HEADERS, &bytes), usize::MAX);
        let head = received.head.expect("a head");
        assert_eq!(head == Err(HeadFault::Malformed(Malformed::Missing)), is_malformed);
        assert!(head.is_err());
    }
}

/// RFC 9114 sections 6.1, 8 and 8.1, RFC 9204 section 6.
#[test]
fn each_fault_has_the_code_of_its_section() {
    for (fault, code) in [
        (Http3Fault::MissingSettings, 0x10a),
        (Http3Fault::DuplicateStream, 0x103),
        (Http3Fault::WrongStreamType, 0x103),
        (Http3Fault::ClosedCriticalStream, 0x104),
        (Http3Fault::FrameUnexpected, 0x105),
        (Http3Fault::Truncated, 0x106),
        (Http3Fault::FrameLength, 0x106),
        (Http3Fault::Setting, 0x109),
        (Http3Fault::GoAway, 0x108),
        (Http3Fault::Push, 0x108),
        (Http3Fault::PriorityUpdate, 0x108),
        (Http3Fault::FrameTooLong, 0x107),
        (Http3Fault::Decompression(QpackError::Prefix), 0x200),
        (Http3Fault::BlockedStreams, 0x200),
        (Http3Fault::EncoderStream(QpackError::Prefix), 0x201),
        (Http3Fault::DecoderStream, 0x202),
        (Http3Fault::Flood, 0x107),
    ] {
        assert_eq!(fault.code() as u64, code, "{}", fault.message());
    }
    for (fault, code) in [
        (RequestFault::Incomplete, 0x10d),
        (RequestFault::Length, 0x10e),
        (RequestFault::Trailers, 0x10e),
        (RequestFault::HeadTooLarge, 0x107),
    ] {
        assert_eq!(fault.code() as u64, code, "{}", fault.message());
    }
}

#[test]
fn a_request_becomes_the_same_head_as_in_http_2() {
    let bytes =
        request_with("POST", &[("content-type", "a/b"), ("content-length", "0"), ("user-agent", "me")]);
    let mut peer = Peer::server();
    let received = peer.request(0, &bytes, usize::MAX);
    assert_eq!((received.head, received.error), (Some(Ok(())), None));
    let (head, raw) = (&peer.head, &received.raw[..]);
    assert_eq!((head.version(), head.body()), (Version::Http3, BodyLength::Exactly(0)));
    assert_eq!((head.request_uri(raw), head.get(raw, HeaderId::Host)), (&b"/a"[..], Some(&b"here"[..])));
    let mut protocol = Vec::new();
    head.push_protocol(&mut protocol);
    assert_eq!(protocol, b"HTTP/3.0");
}

/// RFC 9220, RFC 9114 section 4.4.
#[test]
fn extended_connect_begins_a_tunnel_of_data_frames() {
    let mut out = STATIC_PREFIX.to_vec();
    qpack::push_request(&mut out, b"CONNECT", b"https", b"/chat", b"here");
    out.extend_from_slice(&block(&[(":protocol", "websocket")])[2..]);
    let connect = frame(kind::HEADERS, &out);
    let mut peer = Peer::server();
    let received =
        peer.request(0, &[connect.clone(), data(b"ab"), frame(0x21, b"x"), data(b"c")].concat(), 3);
    assert_eq!((received.error, &received.body[..]), (None, &b"abc"[..]));
    assert_eq!(peer.head.get(&received.raw, HeaderId::Upgrade), Some(&b"websocket"[..]));
    let error = Peer::error(&[connect, trailers(&[("x-check", "v")])].concat());
    assert!(ends_connection(error, Http3ErrorCode::FrameUnexpected));
}

#[test]
fn malformed_trailers_end_the_stream() {
    for field in [(":method", "GET"), ("X-Check", "v"), ("x-check", " v"), ("connection", "close")] {
        let error = Peer::error(&[get(), trailers(&[field])].concat());
        assert!(ends_stream(error, Http3ErrorCode::Message), "{field:?}");
    }
}

/// RFC 9114 section 5.2.
#[test]
fn goaway_excludes_later_streams() {
    let mut peer = Peer::server();
    peer.session.open(0).expect("a stream");
    peer.session.announce_end(&mut peer.out);
    assert_eq!(peer.out.control, frame(kind::GOAWAY, &varint((1 << 62) - 4)));
    peer.session.open(4).expect("a stream that the client opened before the GOAWAY arrived");
    peer.out.control.clear();
    peer.session.end(&mut peer.out);
    peer.session.end(&mut peer.out);
    peer.session.announce_end(&mut peer.out);
    assert_eq!(peer.out.control, frame(kind::GOAWAY, &[8]), "the identifier does not increase");
    assert!(peer.session.open(8).is_none() && peer.session.open(4).is_some());
}

#[test]
fn the_identifier_of_a_goaway_must_not_increase() {
    for mut peer in [Peer::server(), Peer::client()] {
        let goaway = |id: u8| frame(kind::GOAWAY, &[id]);
        assert_eq!(
            peer.control(&[goaway(8), goaway(8), goaway(4)].concat()).map(|events| events.len()),
            Ok(3)
        );
        assert_eq!(peer.session.goaway(), Some(4));
        assert_eq!(peer.control(&goaway(8)).map_err(Http3Fault::code), Err(Http3ErrorCode::Id));
    }
    let mut peer = Peer::client();
    assert_eq!(peer.control(&frame(kind::GOAWAY, &[5])).map_err(Http3Fault::code), Err(Http3ErrorCode::Id));
    let mut peer = Peer::client();
    peer.control(&frame(kind::GOAWAY, &[4])).expect("a GOAWAY");
    assert!(peer.session.open(0).is_some() && peer.session.open(4).is_none());
}

/// RFC 9218 section 7.2.
#[test]
fn priority_updates_are_applied_or_stored() {
    let update =
        |id: u64, text: &str| frame(kind::PRIORITY_UPDATE, &[&varint(id)[..], text.as_bytes()].concat());
    let priority = |urgency, is_incremental| Priority { urgency, is_incremental };
    let mut peer = Peer::server();
    assert_eq!(peer.control(&[update(0, "u=1"), update(0, "u=2, i"), update(4, "u=7")].concat()), Ok(vec![]));
    peer.session.open(0).expect("a stream");
    assert_eq!(peer.session.take_update(0), Some(priority(2, true)));
    assert_eq!((peer.session.take_update(0), peer.session.take_update(8)), (None, None));
    let wanted = UniEvent::Priority { stream: 0, priority: priority(0, false) };
    assert_eq!(peer.control(&update(0, "u=0")), Ok(vec![wanted]));
    assert_eq!(peer.control(&update(0, "u=\"x")).map(|events| events.len()), Ok(1), "the default");
    let code = |mut peer: Peer, bytes: &[u8]| peer.control(bytes).expect_err("invalid").code();
    for id in [1, 2, 3, 4 * 128, VARINT_MAX] {
        assert_eq!(code(Peer::server(), &update(id, "u=1")), Http3ErrorCode::Id, "{id}");
    }
    let push = frame(kind::PRIORITY_UPDATE_PUSH, &[0, b'i']);
    assert_eq!(code(Peer::server(), &push), Http3ErrorCode::Id);
    for bytes in [update(0, "i"), push] {
        assert_eq!(code(Peer::client(), &bytes), Http3ErrorCode::FrameUnexpected);
    }
}

#[test]
fn stored_priorities_are_bounded() {
    let mut peer = Peer::with(Http3Limits { streams_max: 3, ..Http3Limits::default() }, true).begun();
    for opened in 0..20 {
        for id in opened..opened + 3 {
            let payload = [varint(4 * id), b"u=1".to_vec()].concat();
            peer.control(&frame(kind::PRIORITY_UPDATE, &payload)).expect("a permitted stream");
        }
        assert!(peer.session.updates.len() <= 3);
        peer.session.open(4 * opened).expect("a stream");
    }
}

/// RFC 9114 sections 4.2.2 and 10.5.1.
#[test]
fn a_header_section_above_the_limits_is_refused() {
    let long = "x".repeat(40 << 10);
    let received = Peer::server().request(0, &request_with("GET", &[("x-field", &long)]), 1000);
    let too_long = crate::request::ParseError::HeadTooLong;
    assert_eq!((received.head, received.error), (Some(Err(HeadFault::Refused(too_long))), None));
    let longer = "x".repeat(66 << 10);
    let received = Peer::server().request(0, &request_with("GET", &[("x-field", &longer)]), 1000);
    assert_eq!((received.head, received.error), (None, Some(RequestFault::HeadTooLarge.into())));
    assert_eq!(RequestFault::HeadTooLarge.status(), too_long.status());
}

/// RFC 9204 section 6.
#[test]
fn undecodable_sections_end_the_connection() {
    for section in [&[][..], &[0], &[0, 0, 0xff, 0x24], &[2, 0, 0x80], &[0, 0, 0x51]] {
        let error = Peer::error(&frame(kind::HEADERS, section));
        assert!(ends_connection(error, Http3ErrorCode::QpackDecompressionFailed), "{section:?}");
        let error = Peer::error(&[get(), frame(kind::HEADERS, section)].concat());
        assert!(ends_connection(error, Http3ErrorCode::QpackDecompressionFailed), "{section:?}");
    }
}

#[test]
fn invalid_qpack_instructions_end_the_connection() {
    let mut peer = Peer::server();
    // A capacity of 0, as announced, is allowed.
    assert_eq!(peer.uni(ENCODER, &[2, 0x20]), Ok(vec![]));
    let fault = peer.uni(ENCODER, &[0x41, b'a', 0]).expect_err("no table");
    assert_eq!(fault, Http3Fault::EncoderStream(QpackError::Capacity));
    assert_eq!(fault.code(), Http3ErrorCode::QpackEncoderStream);
    // The own encoder adds no entries: nothing can be acknowledged. A cancelled stream needs no action.
    for instruction in
        [&[0x80][..], &[0xff, 0], &[0], &[1], &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]]
    {
        let mut peer = Peer::server();
        assert_eq!(peer.uni(DECODER, &[3, 0x44, 0x7f, 0x80, 0x01]), Ok(vec![]));
        let fault = peer.uni(DECODER, instruction).expect_err("nothing to acknowledge");
        assert_eq!(fault.code(), Http3ErrorCode::QpackDecoderStream, "{instruction:?}");
    }
}

/// Encoder instructions of RFC 9204 appendix B.2, which add `:authority` and `:path`.
const INSERTS: &[u8] = b"\x02\x3f\xbd\x01\xc0\x0fwww.example.com\xc1\x0c/sample/path";

/// HEADERS that need both entries.
fn dynamic_request() -> Vec<u8> {
    frame(kind::HEADERS, &[0x03, 0x81, 0xd1, 0xd7, 0x10, 0x11])
}

/// RFC 9204 sections 2.1.2, 2.2.1 and 4.4.
#[test]
fn a_blocked_section_is_decoded_when_its_entries_arrive() {
    for piece in [1, 100] {
        let mut peer = Peer::dynamic(1);
        let mut stream = peer.session.open(4).expect("a stream");
        let (mut found, bytes) = (None, dynamic_request());
        for input in bytes.chunks(piece) {
            let step = peer.session.receive(&mut stream, input).expect("a frame");
            assert_eq!(step.used, input.len());
            if let RequestEvent::Head { block } = step.event {
                let decoded =
                    peer.session.decode(&mut stream, block, input, &mut peer.out, |_, _| panic!("blocked"));
                found = Some(decoded);
            }
        }
        assert_eq!((found, peer.session.take_unblocked()), (Some(Ok(DecodedSection::Blocked)), None));
        let (first, rest) = INSERTS.split_at(INSERTS.len() - 1);
        assert_eq!(peer.uni(ENCODER, first), Ok(vec![]));
        assert_eq!(peer.uni(ENCODER, rest), Ok(vec![UniEvent::Unblocked]));
        assert_eq!((peer.session.take_unblocked(), peer.session.take_unblocked()), (Some(4), None));
        let mut received = Received::default();
        peer.decode(&mut stream, Block::Gathered, b"", &mut received).expect("decoded");
        assert_eq!(received.head, Some(Ok(())));
        assert_eq!(peer.head.request_uri(&received.raw), b"/sample/path");
        // The type of the stream, two increments, and the acknowledgement of stream 4.
        assert_eq!(peer.out.decoder, [3, 1, 1, 0x84]);
        assert!(stream.block.is_empty());
    }
}

#[test]
fn the_number_of_blocked_streams_is_limited() {
    let mut peer = Peer::dynamic(1);
    let mut blocked = |id: u64| {
        let (mut stream, bytes) = (peer.session.open(id).expect("a stream"), dynamic_request());
        let step = peer.session.receive(&mut stream, &bytes).expect("a frame");
        let RequestEvent::Head { block } = step.event else { panic!("a head") };
        let decoded = peer.session.decode(&mut stream, block, &bytes, &mut peer.out, |_, _| ());
        (stream, decoded)
    };
    let (mut first, decoded) = blocked(0);
    assert_eq!(decoded, Ok(DecodedSection::Blocked));
    let fault = blocked(4).1.expect_err("a second stream");
    assert_eq!(fault.code(), Http3ErrorCode::QpackDecompressionFailed);
    // A stream that is reset no longer counts (RFC 9204 section 2.2.2.2).
    peer.session.cancelled(&mut first, &mut peer.out).expect("cancelled");
    assert_eq!(peer.out.decoder, [3, 0x40]);
    peer.session.cancelled(&mut first, &mut peer.out).expect("cancelled");
    assert_eq!(peer.out.decoder, [3, 0x40], "once");
    assert!(peer.session.blocked.is_empty() && first.block.is_empty());
}

/// RFC 9204 section 2.1.1: the entries that a waiting section refers to must not be evicted. Its prefix would have another meaning.
#[test]
fn a_section_does_not_wait_twice() {
    let mut peer = Peer::dynamic(1);
    let (mut stream, bytes) = (peer.session.open(0).expect("a stream"), frame(kind::HEADERS, &[2, 0, 0x80]));
    let step = peer.session.receive(&mut stream, &bytes).expect("a frame");
    let RequestEvent::Head { block } = step.event else { panic!("a head") };
    let decoded = peer.session.decode(&mut stream, block, &bytes, &mut peer.out, |_, _| ());
    assert_eq!(decoded, Ok(DecodedSection::Blocked));
    // Seven of at most six entries: 2 now stands for 13 entries.
    let inserts = [&[2, 0x3f, 0xbd, 1][..], &[0x40, 0].repeat(7)].concat();
    assert_eq!(peer.uni(ENCODER, &inserts), Ok(vec![UniEvent::Unblocked]));
    assert_eq!(peer.session.take_unblocked(), Some(0));
    let decoded = peer.session.decode(&mut stream, Block::Gathered, b"", &mut peer.out, |_, _| ());
    assert_eq!(decoded.map_err(Http3Fault::code), Err(Http3ErrorCode::QpackDecompressionFailed));
}

/// RFC 9114 section 10.5: work without effect is bounded.
#[test]
fn frames_without_effect_are_limited() {
    let stream_floods = [frame(0x21, b""), data(b"")];
    for flood in stream_floods {
        let mut peer = Peer::server();
        let received = peer.request(0, &[get(), flood.repeat(900)].concat(), usize::MAX);
        assert_eq!((received.error, peer.session.strain()), (None, Strain::None));
        peer.request(4, &[get(), flood.repeat(500)].concat(), usize::MAX);
        assert_eq!(peer.session.strain(), Strain::Slow);
        peer.session.pass_time(100);
        assert_eq!(peer.session.strain(), Strain::None, "a low rate is permitted");
        let received = peer.request(8, &[get(), flood.repeat(4000)].concat(), usize::MAX);
        assert!(ends_connection(received.error, Http3ErrorCode::ExcessiveLoad));
    }
    let update = frame(kind::PRIORITY_UPDATE, &[0, b'i']);
    for flood in [frame(0x21, b""), frame(kind::GOAWAY, &[0]), frame(kind::MAX_PUSH_ID, &[0]), update] {
        let fault = Peer::server().control(&flood.repeat(4000)).expect_err("a flood");
        assert_eq!(fault.code(), Http3ErrorCode::ExcessiveLoad);
    }
    let mut peer = Peer::server();
    let fault = (0..4000).find_map(|number| peer.uni(OTHER + 4 * number, &[0x21]).err());
    assert_eq!(fault, Some(Http3Fault::Flood), "streams of unknown types");
    let mut peer = Peer::server();
    let cancellations = [&[3][..], &[0x44; 4000]].concat();
    assert_eq!(peer.uni(DECODER, &cancellations), Err(Http3Fault::Flood));
    let mut peer = Peer::dynamic(0);
    let large = [&[2, 0x3f, 0xbd, 1, 0x41, b'a', 100][..], &[b'x'; 100], &[0; 4000]].concat();
    assert_eq!(peer.uni(ENCODER, &large), Err(Http3Fault::Flood), "copies of entries");
}

#[test]
fn complete_messages_pay_for_frames_without_effect() {
    let mut peer = Peer::server();
    for number in 0..5000 {
        let mut stream = peer.session.open(4 * number).expect("a stream");
        let mut received = Received::default();
        let bytes = [frame(0x21, b"x"), get(), frame(0x21, b"x")].concat();
        peer.receive(&mut stream, &bytes, 100, &mut received).expect("a request");
        peer.session.finish(&mut stream);
    }
    assert_eq!(peer.session.strain(), Strain::None);
}

#[test]
fn cancelled_requests_delay_further_ones() {
    let mut peer = Peer::server();
    for number in 0..200 {
        let mut stream = peer.session.open(4 * number).expect("a stream");
        stream.hold(number % 2 == 1);
        peer.session.cancelled(&mut stream, &mut peer.out).expect("no flood");
    }
    assert!(peer.session.start_delay() > Duration::ZERO);
    peer.session.pass_time(60);
    assert_eq!(peer.session.start_delay(), Duration::ZERO);
    let provoked = (0..2000).find_map(|number| {
        let mut stream = peer.session.open(4 * number).expect("a stream");
        peer.session.provoked(&mut stream, &mut peer.out).err()
    });
    assert_eq!(provoked, Some(Http3Fault::Flood), "errors of the client");
}

/// A client receives what a server sends: interim responses, a body in one frame, trailers.
#[test]
fn a_response_is_received_by_a_client() {
    let mut server = Peer::server();
    let mut bytes = Vec::new();
    let mut stream = server.session.open(0).expect("a stream");
    let mut head = Vec::new();
    qpack::push_status(&mut head, 103);
    server.session.push_interim(&head, &mut bytes);
    assert!(!stream.has_head);
    head.clear();
    qpack::push_status(&mut head, 200);
    qpack::push_field(&mut head, b"Content-Length", b"5");
    let len = server.session.push_head(&mut stream, &head, &mut bytes);
    assert!(bytes.ends_with(&head) && len == head.len() + 4);
    server.session.push_data(5, &mut bytes);
    bytes.extend_from_slice(b"hello");
    head.clear();
    qpack::push_field(&mut head, b"X-Check", b"v");
    server.session.push_trailers(&head, &mut bytes);
    server.session.finish(&mut stream);
    for piece in [1, 7, 1000] {
        let mut client = Peer::client();
        let mut stream = client.session.open(0).expect("a stream");
        let (mut heads, mut body, mut trailers) = (Vec::new(), Vec::new(), Vec::new());
        for input in bytes.chunks(piece) {
            let mut at = 0;
            while at < input.len() {
                let here = &input[at..];
                let step = client.session.receive(&mut stream, here).expect("a response");
                at += step.used;
                match step.event {
                    RequestEvent::More => {}
                    RequestEvent::Head { block } => {
                        let limits = crate::response::parse::Limits { head_max: 1000, fields_max: 10 };
                        let mut reader = ResponseReader::new(limits);
                        let field = |name: &[u8], value: &[u8]| reader.field(name, value);
                        client
                            .session
                            .decode(&mut stream, block, here, &mut client.out, field)
                            .expect("a head");
                        let (_, head) = reader.finish().expect("a good head");
                        if head.is_interim() {
                            stream.expect_another_head();
                        }
                        head.content_length().into_iter().for_each(|length| stream.expect(length));
                        heads.push(head.status().code());
                    }
                    RequestEvent::Data { start, end } => body.extend_from_slice(&here[start..end]),
                    RequestEvent::Trailers { block } => {
                        let fields =
                            client.session.decode_trailers(&mut stream, block, here, &mut client.out);
                        trailers = fields.expect("trailers").expect("not blocked");
                    }
                }
            }
        }
        assert_eq!(client.session.receive_end(&mut stream), Ok(()));
        assert_eq!((heads, &body[..]), (vec![103, 200], &b"hello"[..]));
        assert_eq!(trailers, [(b"x-check".to_vec(), b"v".to_vec())]);
    }
}

/// Frames of a request stream, valid or not.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => Just(get()),
        2 => Just(request_with("POST", &[("content-length", "4")])),
        3 => prop::collection::vec(any::<u8>(), 0..6).prop_map(|body| data(&body)),
        1 => Just(trailers(&[("x-check", "v")])),
        1 => (0u64..0x30, prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(kind, payload)| frame(kind, &payload)),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn pieces_do_not_change_the_result_of_a_request(bytes in frames(), piece in 1usize..9) {
        let mut all = Peer::server();
        let mut cut = Peer::server();
        prop_assert_eq!(all.request(0, &bytes, usize::MAX), cut.request(0, &bytes, piece));
        prop_assert_eq!(all.out.decoder, cut.out.decoder);
    }

    #[test]
    fn pieces_do_not_change_the_result_of_a_control_stream(
        frames in prop::collection::vec((0u64..0x30, prop::collection::vec(any::<u8>(), 0..10)), 0..6),
        stream_type in 0u64..4,
        piece in 1usize..9,
    ) {
        let frames = frames.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect::<Vec<_>>();
        let bytes = [varint(stream_type), settings(&[(6, 1)]), frames].concat();
        let mut all = Peer::with(Http3Limits { table_capacity: 100, ..Http3Limits::default() }, true);
        let mut cut = Peer::with(Http3Limits { table_capacity: 100, ..Http3Limits::default() }, true);
        let mut events = Ok(Vec::new());
        for input in bytes.chunks(piece) {
            match cut.uni(OTHER, input) {
                Ok(more) => events.as_mut().expect("no error before").extend(more),
                Err(fault) => {
                    events = Err(fault);
                    break;
                }
            }
        }
        match (all.uni(OTHER, &bytes), events) {
            (Ok(all), Ok(cut)) => prop_assert_eq!(all, cut),
            (all, cut) => prop_assert_eq!(all.err(), cut.err()),
        }
    }
}
