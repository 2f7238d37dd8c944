//! A scripted client tests a [`Session`]: the requirements of RFC 9113 for a server, by section.

use super::frame::{FrameHeader, FrameType, PREFACE};
use super::hpack;
use super::settings::WINDOW_MAX;
use super::*;
use crate::fields::BodyLength;
use crate::request::{Head, Policy};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GO_AWAY: u8 = 7;
pub(super) const WINDOW: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const PRIORITY_UPDATE: u8 = 16;
pub(super) const END: u8 = 1;
pub(super) const WHOLE: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const WITH_PRIORITY: u8 = 0x20;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut all = vec![a, b, c, kind, flags];
    all.extend_from_slice(&stream.to_be_bytes());
    all.extend_from_slice(payload);
    all
}

pub(super) fn setting(id: u16, value: u32) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend_from_slice(&value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

/// Returns a header block that does not use the dynamic table.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        let text = |text: &str, out: &mut Vec<u8>| {
            hpack::push_integer(out, 0, 7, text.len());
            out.extend_from_slice(text.as_bytes());
        };
        out.push(0);
        text(name, &mut out);
        text(value, &mut out);
    }
    out
}

pub(super) const LINE: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/a?b"), (":authority", "here")];

pub(super) fn line_and(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    block(&LINE.iter().chain(fields).copied().collect::<Vec<_>>())
}

pub(super) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END | WHOLE, stream, &line_and(&[]))
}

pub(super) fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &line_and(&[]))
}

pub(super) fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &bytes.to_be_bytes())
}

pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(RESET, 0, stream, &8u32.to_be_bytes())
}

/// A frame that the server has sent.
pub(super) type Sent = (FrameType, u8, u32, Vec<u8>);

/// Checks a sent frame: only flags of its type, no reserved bit (RFC 9113 section 4.1), no padding (section 6.1).
fn is_as_defined(kind: u8, flags: u8, stream: u8) {
    let defined = match kind {
        DATA => END,
        HEADERS => END | WHOLE,
        CONTINUATION => WHOLE,
        SETTINGS | PING => END,
        _ => 0,
    };
    assert!(kind <= CONTINUATION && flags & !defined == 0 && stream < 0x80, "{kind} {flags:x} {stream}");
}

pub(super) struct Peer {
    pub(super) session: Session<()>,
    pub(super) out: Vec<u8>,
    /// Results of parsing the received header sections, by stream.
    pub(super) heads: Vec<(u32, Result<Head, HeadFault>)>,
    pub(super) bodies: Vec<u8>,
    pub(super) raw: Vec<u8>,
}

impl Peer {
    /// Returns a peer that has not sent anything.
    pub(super) fn silent(limits: Limits) -> Peer {
        let mut out = Vec::new();
        let session = Session::new(limits, &mut out);
        Peer { session, out, heads: Vec::new(), bodies: Vec::new(), raw: Vec::new() }
    }

    /// Returns a peer that has sent preface and settings; the responses to them are checked and removed.
    pub(super) fn with(limits: Limits) -> Peer {
        let mut peer = Peer::silent(limits);
        peer.feed(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &[])].concat()).expect("a good start");
        peer.feed(&frame(SETTINGS, END, 0, &[])).expect("an acknowledgement");
        peer.out.clear();
        peer
    }

    pub(super) fn new() -> Peer {
        Peer::with(Limits::default())
    }

    /// Receives all bytes as one piece of input.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Fault> {
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let input = &bytes[at..];
            let step = self.session.receive(input, &mut self.out)?;
            match step.event {
                Event::More => break,
                Event::Nothing => {}
                Event::Head { stream, ends, block } => {
                    self.head(stream, ends, block, input)?;
                    events.push(step.event);
                }
                Event::Data { start, end, .. } => {
                    self.bodies.extend_from_slice(&input[start..end]);
                    events.push(step.event);
                }
                event => events.push(event),
            }
            at += step.used;
        }
        Ok(events)
    }

    pub(super) fn head(&mut self, stream: u32, ends: bool, block: Block, input: &[u8]) -> Result<(), Fault> {
        let (mut scratch, mut head, policy) = (Scratch::default(), Head::new(), Policy::default());
        self.raw.clear();
        let mut reader = HeadReader::new(&mut scratch, &mut head, &mut self.raw, &policy);
        self.session.decode(block, input, |name, value| reader.field(name, value))?;
        let finished = reader.finish(ends).map(|()| head);
        let length = match &finished {
            Ok(head) => match head.body() {
                BodyLength::Exactly(length) => Some(length),
                _ => None,
            },
            Err(_) => None,
        };
        self.session.open(stream, ends, length, ());
        self.heads.push((stream, finished));
        Ok(())
    }

    /// Returns the connection error that these bytes cause.
    pub(super) fn fault(mut self, bytes: &[u8]) -> Option<(Fault, ErrorCode)> {
        self.feed(bytes).err().map(|fault| (fault, fault.code()))
    }

    /// Returns the frames sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        let out = std::mem::take(&mut self.out);
        let (mut rest, mut sent) = (&out[..], Vec::new());
        while let Some(header) = FrameHeader::read(rest) {
            let end = 9 + header.len;
            is_as_defined(rest[3], rest[4], rest[5]);
            sent.push((header.kind, header.flags, header.stream, rest[9..end].to_vec()));
            rest = &rest[end..];
        }
        assert!(rest.is_empty(), "complete frames");
        sent
    }

    /// Returns the streams and codes of the RST_STREAM frames that were sent.
    pub(super) fn resets(&mut self) -> Vec<(u32, u32)> {
        let code = |payload: &[u8]| u32::from_be_bytes(payload.try_into().expect("four bytes"));
        let resets = self.sent().into_iter().filter(|(kind, ..)| *kind == FrameType::ResetStream);
        resets.map(|(_, _, stream, payload)| (stream, code(&payload))).collect()
    }

    pub(super) fn respond(&mut self, stream: u32) {
        let mut block = Vec::new();
        hpack::push_status(&mut block, 200);
        self.session.push_head(stream, &block, true, &mut self.out);
        self.session.release(stream, &mut self.out);
    }

    /// Receives the bytes; returns the result of parsing the only header section.
    pub(super) fn only_head(mut self, bytes: &[u8]) -> Result<Head, HeadFault> {
        self.feed(bytes).expect("a good connection");
        self.heads.pop().expect("a head").1
    }
}

pub(super) fn asked(fields: &[(&str, &str)]) -> Result<(), HeadFault> {
    Peer::new().only_head(&frame(HEADERS, END | WHOLE, 1, &block(fields))).map(drop)
}

/// RFC 9113 section 3.4: both ends begin with SETTINGS, the client after the preface.
#[test]
fn a_connection_starts_with_preface_and_settings() {
    let mut peer = Peer::silent(Limits::default());
    let sent = peer.sent();
    assert_eq!((sent[0].0, sent[0].1, sent[0].2), (FrameType::Settings, 0, 0));
    assert_eq!(peer.feed(&PREFACE[..10]), Ok(vec![]), "a part of the preface is no fault");
    peer.feed(&[&PREFACE[..], &setting(0x4, 10)].concat()).expect("a good start");
    assert_eq!(peer.sent(), [(FrameType::Settings, 1, 0, vec![])], "acknowledged (section 6.5.3)");
    let fault = Peer::silent(Limits::default()).fault(b"PRI * HTTP/2.1\r\n\r\n");
    assert_eq!(fault, Some((Fault::Preface, ErrorCode::Protocol)));
    // Clients that begin with another frame of the connection are served, as by nginx.
    for first in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, END, 0, &[])] {
        let mut peer = Peer::silent(Limits::default());
        let all = [&PREFACE[..], &first, &frame(SETTINGS, 0, 0, &[]), &get(1)].concat();
        assert_eq!(peer.feed(&all).map(|_| peer.heads.len()), Ok(1));
    }
    for first in [get(1), frame(WINDOW, 0, 0, &[0, 0, 0, 1])] {
        let fault = Peer::silent(Limits::default()).fault(&[&PREFACE[..], &first].concat());
        assert_eq!(fault, Some((Fault::NoSettings, ErrorCode::Protocol)));
    }
}

/// RFC 9113 section 4.1: unknown types, flags and the reserved bit are ignored.
#[test]
fn unknown_frames_and_flags_are_ignored() {
    let mut peer = Peer::new();
    assert_eq!(peer.feed(&frame(0xfe, 0xff, 1, b"some bytes")), Ok(vec![]));
    assert_eq!(peer.feed(&frame(PING, 0xfe, 1 << 31, b"12345678")), Ok(vec![]));
    assert_eq!(peer.sent(), [(FrameType::Ping, 1, 0, b"12345678".to_vec())]);
}

/// RFC 9113 section 4.2: frames longer than SETTINGS_MAX_FRAME_SIZE, and wrong lengths, are a FRAME_SIZE_ERROR.
#[test]
fn wrong_lengths_are_frame_size_errors() {
    let long = vec![0; (1 << 14) + 1];
    assert_eq!(
        Peer::new().fault(&frame(0xfe, 0, 0, &long)),
        Some((Fault::FrameTooLong, ErrorCode::FrameSize))
    );
    let wanted = Some((Fault::FrameLength, ErrorCode::FrameSize));
    for bytes in [
        frame(RESET, 0, 1, &[0; 3]),
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(SETTINGS, END, 0, &[0; 6]),
        frame(PING, 0, 0, &[0; 7]),
        frame(WINDOW, 0, 0, &[0; 5]),
        frame(GO_AWAY, 0, 0, &[0; 7]),
        frame(PRIORITY_UPDATE, 0, 0, &[0; 3]),
        frame(DATA, PADDED, 1, &[]),
        frame(HEADERS, PADDED, 3, &[]),
        frame(HEADERS, WITH_PRIORITY, 3, &[0; 4]),
    ] {
        assert_eq!(Peer::new().fault(&[post(1), bytes.clone()].concat()), wanted, "{bytes:?}");
    }
    assert!(Peer::new().fault(&frame(0xfe, 0, 0, &long[1..])).is_none(), "a frame of the maximum length");
}

/// RFC 9113 section 4.3: a block that cannot be decoded is a COMPRESSION_ERROR.
#[test]
fn an_undecodable_block_ends_the_connection() {
    let fault = Peer::new().fault(&frame(HEADERS, END | WHOLE, 1, &[0x80]));
    assert_eq!(fault, Some((Fault::Hpack(hpack::HpackError::Index), ErrorCode::Compression)));
    // All streams share one table: refused blocks change it too.
    let mut peer = Peer::with(Limits { streams_max: 1, ..Limits::default() });
    peer.feed(&post(1)).expect("a request");
    let mut indexed = vec![0x82, 0x84, 0x86, 0x41, 1, b'h', 0x40, 1, b'x', 1, b'y'];
    peer.feed(&frame(HEADERS, END | WHOLE, 3, &indexed)).expect("a refused stream");
    assert_eq!(peer.resets(), [(3, ErrorCode::RefusedStream as u32)]);
    peer.respond(1);
    indexed.truncate(3);
    indexed.extend([0xbf, 0xbe]);
    peer.feed(&frame(HEADERS, END | WHOLE, 5, &indexed)).expect("a request with fields from the table");
    let (_, head) = peer.heads.pop().expect("a head");
    assert_eq!(head.expect("a good head").named(&peer.raw, b"x").next(), Some(&b"y"[..]));
}

/// RFC 9113 section 5.1: frames for a stream that was not opened.
#[test]
fn frames_for_idle_streams_end_the_connection() {
    for bytes in [frame(DATA, 0, 1, b"x"), reset(1), window(1, 1), frame(DATA, 0, 2, b"x"), reset(4)] {
        let fault = Peer::new().fault(&bytes);
        assert_eq!(fault, Some((Fault::IdleStream, ErrorCode::Protocol)), "{bytes:?}");
    }
    assert!(
        Peer::new().fault(&frame(PRIORITY, 0, 1, &[0; 5])).is_none(),
        "section 5.1: allowed in any state"
    );
}

/// RFC 9113 section 5.1, half-closed (remote): further frames after the end of a request are a stream error STREAM_CLOSED.
#[test]
fn frames_after_the_end_of_a_request_reset_its_stream() {
    for bytes in [frame(DATA, 0, 1, b"x"), get(1)] {
        let mut peer = Peer::new();
        peer.feed(&get(1)).expect("a request");
        let code = ErrorCode::StreamClosed as u32;
        assert_eq!(peer.feed(&bytes), Ok(vec![Event::Reset { stream: 1, by_peer: false, code }]));
        assert_eq!(peer.resets(), [(1, ErrorCode::StreamClosed as u32)]);
    }
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    assert_eq!(peer.feed(&window(1, 5)), Ok(vec![Event::Window { stream: 1 }]), "allowed");
}

/// RFC 9113 section 5.1, closed: late frames are ignored; frames that cannot be late are a STREAM_CLOSED error.
#[test]
fn frames_for_closed_streams_are_ignored_or_refused() {
    let ended = || {
        let mut peer = Peer::new();
        peer.feed(&get(1)).expect("a request");
        peer.respond(1);
        assert_eq!(peer.resets(), []);
        peer
    };
    for bytes in [window(1, 1), reset(1), frame(PRIORITY, 0, 1, &[0; 5])] {
        assert_eq!(ended().feed(&bytes), Ok(vec![]), "{bytes:?}");
    }
    for bytes in [frame(DATA, END, 1, b"x"), get(1)] {
        assert_eq!(ended().fault(&bytes), Some((Fault::ClosedStream, ErrorCode::StreamClosed)), "{bytes:?}");
    }
    // This end has reset the stream, which the client does not know yet: its frames are received and ignored.
    let mut peer = Peer::new();
    peer.feed(&post(1)).expect("a request");
    peer.session.reset(1, ErrorCode::Cancel, &mut peer.out);
    for released in [false, true] {
        assert_eq!(
            peer.feed(&[frame(DATA, 0, 1, b"xy"), get(1), window(1, 1)].concat()),
            Ok(vec![]),
            "{released}"
        );
        peer.session.release(1, &mut peer.out);
    }
    assert_eq!(peer.resets(), [(1, ErrorCode::Cancel as u32)]);
    assert!(peer.bodies.is_empty());
}

/// RFC 9113 section 5.1.1: stream numbers are odd and increase.
#[test]
fn stream_numbers_must_be_odd_and_increase() {
    let wanted = Some((Fault::StreamNumber, ErrorCode::Protocol));
    assert_eq!(Peer::new().fault(&get(2)), wanted);
    assert_eq!(Peer::new().fault(&[get(5), get(3)].concat()), wanted);
    assert_eq!(Peer::new().fault(&get(0)), Some((Fault::WrongStream, ErrorCode::Protocol)));
}

/// RFC 9113 section 5.1.2: streams above the limit are refused, later ones are accepted.
#[test]
fn streams_above_the_limit_are_refused() {
    let mut peer = Peer::with(Limits { streams_max: 2, ..Limits::default() });
    peer.feed(&[get(1), get(3), get(5)].concat()).expect("a connection that goes on");
    assert_eq!(peer.resets(), [(5, ErrorCode::RefusedStream as u32)]);
    peer.respond(1);
    peer.feed(&get(7)).expect("a request");
    let streams: Vec<u32> = peer.heads.iter().map(|(stream, _)| *stream).collect();
    assert_eq!(streams, [1, 3, 7]);
}

/// RFC 9113 sections 5.2.1 and 6.9.1: DATA that exceeds a window is a FLOW_CONTROL_ERROR, of the stream or of the connection.
#[test]
fn bodies_must_not_exceed_their_windows() {
    let limits = Limits { initial_window: 100, ..Limits::default() };
    let mut peer = Peer::with(limits);
    peer.feed(&[post(1), frame(DATA, 0, 1, &[0; 100])].concat()).expect("a body");
    let code = ErrorCode::FlowControl as u32;
    assert_eq!(
        peer.feed(&frame(DATA, 0, 1, b"x")),
        Ok(vec![Event::Reset { stream: 1, by_peer: false, code }])
    );
    assert_eq!(peer.resets(), [(1, ErrorCode::FlowControl as u32)]);
    // Padding counts, and is credited back on arrival.
    let mut peer = Peer::with(limits);
    let padded = [&[59u8, b'x'][..], &[0; 59]].concat();
    peer.feed(&[post(1), frame(DATA, PADDED, 1, &padded)].concat()).expect("a body");
    assert_eq!(peer.sent(), []);
    assert_eq!(peer.bodies, b"x");
    peer.session.take(1, 1, &mut peer.out);
    assert_eq!(
        peer.sent(),
        [(FrameType::WindowUpdate, 0, 1, 61u32.to_be_bytes().to_vec())],
        "at half the window"
    );
    peer.feed(&frame(DATA, 0, 1, &[0; 100])).expect("a window that was opened again");
    // The window of the connection: discarded bodies count too.
    let mut peer = Peer::with(Limits { initial_window: WINDOW_MAX, ..limits });
    peer.feed(&post(1)).expect("a request");
    for _ in 0..(16 << 20) / 16_384 + 10 {
        peer.feed(&frame(DATA, 0, 1, &[0; 16_384])).expect("opened again by halves");
    }
    let opened: u32 = peer
        .sent()
        .iter()
        .filter(|sent| sent.2 == 0)
        .map(|sent| u32::from_be_bytes([sent.3[0], sent.3[1], sent.3[2], sent.3[3]]))
        .sum();
    assert_eq!(opened, 16 << 20);
    peer.session.receive_window_for_test(10);
    assert_eq!(
        peer.fault(&frame(DATA, 0, 1, &[0; 11])),
        Some((Fault::WindowExceeded, ErrorCode::FlowControl))
    );
}

/// RFC 9113 section 6.1: DATA without a stream, and padding longer than its frame.
#[test]
fn data_needs_a_stream_and_room_for_its_padding() {
    assert_eq!(Peer::new().fault(&frame(DATA, 0, 0, b"x")), Some((Fault::WrongStream, ErrorCode::Protocol)));
    let wanted = Some((Fault::Padding, ErrorCode::Protocol));
    for (kind, flags) in [(DATA, PADDED), (HEADERS, PADDED | WHOLE)] {
        let padded = frame(kind, flags, if kind == DATA { 1 } else { 3 }, &[3, 0, 0]);
        assert_eq!(Peer::new().fault(&[post(1), padded].concat()), wanted);
    }
}

/// RFC 9113 section 6.2: a head in one frame with padding and a priority.
#[test]
fn headers_may_be_padded_and_have_a_priority() {
    let mut payload = vec![4, 0, 0, 0, 3, 200];
    payload.extend(line_and(&[]));
    payload.extend([0; 4]);
    let head = Peer::new().only_head(&frame(HEADERS, END | WHOLE | PADDED | WITH_PRIORITY, 1, &payload));
    assert!(head.is_ok(), "{head:?}");
}

/// RFC 9113 sections 6.2 and 6.10: fragments must be consecutive, without other frames between them.
#[test]
fn fragments_of_a_header_block_are_consecutive() {
    let whole = line_and(&[("x-long", "value")]);
    let (first, rest) = whole.split_at(7);
    let (second, third) = rest.split_at(1);
    let begin = frame(HEADERS, END, 1, first);
    let bytes =
        [&begin[..], &frame(CONTINUATION, 0, 1, second), &frame(CONTINUATION, WHOLE, 1, third)].concat();
    let mut peer = Peer::new();
    peer.feed(&bytes).expect("a head");
    assert_eq!(
        peer.heads[0].1.as_ref().expect("a good head").body(),
        BodyLength::None,
        "END_STREAM of the first frame applies"
    );
    let wanted = Some((Fault::Continuation, ErrorCode::Protocol));
    for between in [
        frame(CONTINUATION, WHOLE, 3, rest),
        frame(PING, 0, 0, &[0; 8]),
        frame(DATA, 0, 1, b"x"),
        frame(0xfe, 0, 0, &[]),
        get(3),
    ] {
        assert_eq!(Peer::new().fault(&[begin.clone(), between].concat()), wanted);
    }
    assert_eq!(Peer::new().fault(&frame(CONTINUATION, WHOLE, 1, rest)), wanted, "without HEADERS");
    assert_eq!(Peer::new().fault(&[get(1), frame(CONTINUATION, WHOLE, 1, &[])].concat()), wanted);
}

/// RFC 9113 sections 6.3 to 6.8: frames of streams, and frames of the connection.
#[test]
fn frames_must_be_on_the_right_kind_of_stream() {
    let wanted = Some((Fault::WrongStream, ErrorCode::Protocol));
    for bytes in [
        frame(PRIORITY, 0, 0, &[0; 5]),
        frame(RESET, 0, 0, &[0; 4]),
        frame(SETTINGS, 0, 1, &[]),
        frame(PING, 0, 1, &[0; 8]),
        frame(GO_AWAY, 0, 1, &[0; 8]),
        frame(PRIORITY_UPDATE, 0, 1, &[0, 0, 0, 1]),
        frame(PRIORITY_UPDATE, 0, 0, &[0; 4]),
    ] {
        assert_eq!(Peer::new().fault(&[post(1), bytes.clone()].concat()), wanted, "{bytes:?}");
    }
}

/// RFC 9113 section 6.3: a PRIORITY frame with a wrong length is a stream error.
#[test]
fn a_wrong_priority_resets_its_stream() {
    let mut peer = Peer::new();
    peer.feed(&[post(1), frame(PRIORITY, 0, 1, &[0; 4])].concat()).expect("a connection that goes on");
    assert_eq!(peer.resets(), [(1, ErrorCode::FrameSize as u32)]);
}

/// RFC 9113 section 6.5.2: invalid values of settings.
#[test]
fn invalid_settings_are_refused() {
    for (id, value, wanted) in [
        (0x2, 2, Some((Fault::Setting, ErrorCode::Protocol))),
        (0x4, 1 << 31, Some((Fault::InitialWindow, ErrorCode::FlowControl))),
        (0x5, (1 << 14) - 1, Some((Fault::Setting, ErrorCode::Protocol))),
        (0x5, 1 << 24, Some((Fault::Setting, ErrorCode::Protocol))),
        (0x9, 2, Some((Fault::Setting, ErrorCode::Protocol))),
        (0x2, 1, None),
        (0x4, WINDOW_MAX, None),
        (0x5, (1 << 24) - 1, None),
        (0x3, 0, None),
        (0x6, 0, None),
        (0xabcd, 7, None),
    ] {
        assert_eq!(Peer::new().fault(&setting(id, value)), wanted, "{id:#x} {value}");
    }
}

/// RFC 9113 section 6.5.3: each SETTINGS frame is acknowledged, and its values apply from then on.
#[test]
fn settings_are_acknowledged_and_applied() {
    let mut peer = Peer::new();
    peer.feed(&[setting(0x1, 0), setting(0x5, 20_000)].concat()).expect("settings");
    assert_eq!(peer.sent(), [(FrameType::Settings, 1, 0, vec![]), (FrameType::Settings, 1, 0, vec![])]);
    assert_eq!(peer.session.payload_max(), 20_000);
    peer.feed(&get(1)).expect("a request");
    peer.respond(1);
    assert_eq!(
        peer.sent()[0].3,
        [0x20, 0x88],
        "the first block reduces the table to 0 bytes (RFC 7541 section 4.2)"
    );
}

/// RFC 9113 section 6.6: a client must not push.
#[test]
fn a_client_cannot_push() {
    assert_eq!(
        Peer::new().fault(&frame(PUSH, WHOLE, 1, &[0; 4])),
        Some((Fault::PushPromise, ErrorCode::Protocol))
    );
}

/// RFC 9113 section 6.7: a PING is returned with its payload, an acknowledgement is not.
#[test]
fn a_ping_is_returned() {
    let mut peer = Peer::new();
    assert_eq!(peer.feed(&frame(PING, 0, 0, b"abcdefgh")), Ok(vec![]));
    assert_eq!(peer.sent(), [(FrameType::Ping, 1, 0, b"abcdefgh".to_vec())]);
    assert_eq!(peer.feed(&frame(PING, END, 0, b"abcdefgh")), Ok(vec![Event::Pong]));
    assert_eq!(peer.sent(), []);
}

/// RFC 9113 section 6.8: the last served stream is announced, and streams above it are not started.
#[test]
fn streams_above_the_last_one_are_ignored_after_goaway() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    peer.session.announce_end(&mut peer.out);
    let sent = peer.sent();
    assert_eq!((sent[0].0, &sent[0].3[..4]), (FrameType::GoAway, &[0x7f, 0xff, 0xff, 0xff][..]));
    peer.feed(&post(3)).expect("a request in flight");
    assert_eq!(peer.heads.len(), 2);
    peer.session.end(&mut peer.out);
    assert_eq!(peer.sent()[0].3, [0, 0, 0, 3, 0, 0, 0, 0]);
    let late =
        [post(5), frame(DATA, 0, 5, b"x"), frame(DATA, END, 3, b"y"), frame(DATA, 0, 7, b"z")].concat();
    let events = peer.feed(&late).expect("a connection that goes on");
    assert_eq!((events.len(), peer.heads.len(), peer.bodies.as_slice()), (1, 2, &b"y"[..]));
    assert_eq!(peer.feed(&frame(GO_AWAY, 0, 0, &[0; 8])), Ok(vec![Event::GoAway { last: 0, code: 0 }]));
}

/// RFC 9113 sections 6.9 and 6.9.1: the increment of a window must not be 0, and its maximum is 2^31-1.
#[test]
fn window_increments_must_be_positive_and_not_overflow() {
    assert_eq!(Peer::new().fault(&window(0, 0)), Some((Fault::ZeroIncrement, ErrorCode::Protocol)));
    let wide = window(0, WINDOW_MAX);
    assert_eq!(Peer::new().fault(&wide), Some((Fault::WindowTooLarge, ErrorCode::FlowControl)));
    for (bytes, code) in [(0, ErrorCode::Protocol), (WINDOW_MAX, ErrorCode::FlowControl)] {
        let mut peer = Peer::new();
        peer.feed(&[post(1), window(1, bytes)].concat()).expect("a connection that goes on");
        assert_eq!(peer.resets(), [(1, code as u32)]);
    }
}

/// RFC 9113 section 6.9.2: a new initial window applies to open streams too, whose windows may become negative.
#[test]
fn a_smaller_initial_window_reduces_open_windows() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    let mut block = Vec::new();
    hpack::push_status(&mut block, 200);
    peer.session.push_head(1, &block, false, &mut peer.out);
    assert_eq!(peer.session.sendable(1), 65_535);
    peer.session.push_data(1, 1000, false, &mut peer.out);
    peer.out.extend([0; 1000]);
    peer.feed(&setting(0x4, 100)).expect("settings");
    assert_eq!(peer.session.sendable(1), 0, "the window is -900");
    peer.feed(&window(1, 900)).expect("a window");
    assert_eq!(peer.session.sendable(1), 0);
    peer.feed(&window(1, 5)).expect("a window");
    assert_eq!(peer.session.sendable(1), 5);
    peer.feed(&setting(0x4, 200)).expect("settings");
    assert_eq!(peer.session.sendable(1), 105);
    // Above the maximum window (section 6.9.2): a connection error.
    peer.feed(&window(1, WINDOW_MAX - 105)).expect("the widest window");
    assert_eq!(peer.fault(&setting(0x4, 201)), Some((Fault::WindowTooLarge, ErrorCode::FlowControl)));
}

/// RFC 9113 section 6.9: all streams share the window of the connection.
#[test]
fn all_streams_share_the_window_of_the_connection() {
    let mut peer = Peer::new();
    peer.feed(&[setting(0x4, 1 << 20), get(1), get(3)].concat()).expect("requests");
    peer.session.push_data(1, 65_000, false, &mut peer.out);
    assert_eq!((peer.session.sendable(1), peer.session.sendable(3)), (535, 535));
    peer.session.push_data(3, 535, true, &mut peer.out);
    assert!(peer.session.is_closed_for_all() && peer.session.sendable(1) == 0);
    peer.out.clear();
    assert_eq!(peer.feed(&window(0, 10)), Ok(vec![Event::Window { stream: 0 }]));
    assert_eq!(peer.session.sendable(1), 10);
}

/// RFC 9113 section 8.1: a response may end before its request; RST_STREAM with NO_ERROR then asks the client to stop.
#[test]
fn a_response_may_end_before_its_request() {
    let mut peer = Peer::new();
    peer.feed(&post(1)).expect("a request");
    peer.respond(1);
    let sent = peer.sent();
    assert_eq!((sent[0].0, sent[0].1), (FrameType::Headers, END | WHOLE));
    assert_eq!((sent[1].0, sent[1].3.as_slice()), (FrameType::ResetStream, &[0; 4][..]));
    assert_eq!(peer.feed(&frame(DATA, END, 1, b"late")), Ok(vec![]), "ignored");
    // A stream whose response is incomplete gets an error instead.
    peer.feed(&get(3)).expect("a request");
    peer.session.release(3, &mut peer.out);
    assert_eq!(peer.resets(), [(3, ErrorCode::Internal as u32)]);
}

/// RFC 9113 sections 4.3 and 6.10: a head longer than a frame is sent in several consecutive frames.
#[test]
fn a_long_header_block_is_sent_in_fragments() {
    let mut peer = Peer::new();
    peer.feed(&get(1)).expect("a request");
    let mut block = Vec::new();
    hpack::push_status(&mut block, 200);
    (0..40).for_each(|number| hpack::push_field(&mut block, format!("x-{number}").as_bytes(), &[b'{'; 1000]));
    peer.session.push_head(1, &block, true, &mut peer.out);
    let sent = peer.sent();
    let kinds: Vec<_> = sent.iter().map(|(kind, flags, ..)| (*kind, *flags)).collect();
    assert_eq!(
        kinds,
        [(FrameType::Headers, END), (FrameType::Continuation, 0), (FrameType::Continuation, WHOLE)]
    );
    let whole: Vec<u8> = sent.into_iter().flat_map(|(.., payload)| payload).collect();
    let mut count = 0;
    hpack::Decoder::default().decode(&whole, |_, _| count += 1).expect("a good block");
    assert_eq!(count, 41);
}

/// The events do not depend on how the bytes are split.
#[test]
fn split_points_of_the_input_do_not_matter() {
    let padded = [&[3u8][..], b"hello", &[0; 3]].concat();
    let all = [
        &PREFACE[..],
        &setting(0x4, 1000),
        &post(1),
        &frame(DATA, PADDED, 1, &padded),
        &frame(PING, 0, 0, b"12345678"),
        &frame(DATA, END, 1, b" there"),
        &get(3),
    ]
    .concat();
    let mut whole = Peer::silent(Limits::default());
    whole.feed(&all).expect("a good connection");
    for piece in 1..40 {
        let mut peer = Peer::silent(Limits::default());
        let mut held: Vec<u8> = Vec::new();
        for part in all.chunks(piece) {
            held.extend_from_slice(part);
            let mut at = 0;
            loop {
                let step = peer.session.receive(&held[at..], &mut peer.out).expect("a good connection");
                match step.event {
                    Event::Head { stream, ends, block } => {
                        peer.head(stream, ends, block, &held[at..]).expect("a good head");
                    }
                    Event::Data { start, end, .. } => {
                        peer.bodies.extend_from_slice(&held[at + start..at + end])
                    }
                    _ => {}
                }
                at += step.used;
                if step.event == Event::More || at == held.len() {
                    break;
                }
            }
            held.drain(..at);
        }
        assert_eq!((&peer.out, &peer.bodies), (&whole.out, &whole.bodies), "{piece}");
        assert_eq!((peer.heads.len(), peer.bodies.as_slice()), (2, &b"hello there"[..]));
    }
}
