//! The client end of a connection, tested with the server end and with frames that a server must not send.

use super::frame::{self, ACK, END_HEADERS, END_STREAM, FrameType, PREFACE};
use super::hpack::{push_field, push_request, push_status};
use super::{ErrorCode, Event, Fault, Limits, Session};

/// Client session, with the frames that it has not sent yet.
pub(super) struct Client {
    pub(super) session: Session<()>,
    pub(super) out: Vec<u8>,
}

impl Client {
    /// Returns a client that has received only the server's settings.
    pub(super) fn new(settings: &[(u16, u32)]) -> Client {
        let mut out = Vec::new();
        let session = Session::client(Limits::default(), &mut out);
        let mut client = Client { session, out };
        assert_eq!(client.feed(&settings_frame(settings)), Ok(client.first_events(settings)));
        client
    }

    pub(super) fn first_events(&self, settings: &[(u16, u32)]) -> Vec<Event> {
        let moves = settings.iter().any(|(id, value)| *id == 4 && *value != 65535);
        if moves { vec![Event::Window { stream: 0 }] } else { Vec::new() }
    }

    /// Receives these bytes; returns the events that require an action.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Fault> {
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let step = self.session.receive(&bytes[at..], &mut self.out)?;
            if let Event::Head { block, .. } = step.event {
                self.session.decode(block, &bytes[at..], |_, _| ())?;
            }
            match step.event {
                Event::More => break,
                Event::Nothing => {}
                event => events.push(event),
            }
            at += step.used;
        }
        Ok(events)
    }

    pub(super) fn get(&mut self) -> u32 {
        let mut block = Vec::new();
        push_request(&mut block, b"GET", b"http", b"/", b"h");
        let id = self.session.open_next(());
        assert!(self.session.push_head(id, &block, true, &mut self.out) > 0);
        id
    }
}

pub(super) fn frame(kind: FrameType, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push(&mut out, kind, flags, stream, payload);
    out
}

pub(super) fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let bytes: Vec<u8> = settings
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(FrameType::Settings, 0, 0, &bytes)
}

pub(super) fn response(stream: u32, flags: u8, status: u16) -> Vec<u8> {
    let mut block = Vec::new();
    push_status(&mut block, status);
    frame(FrameType::Headers, flags | END_HEADERS, stream, &block)
}

pub(super) fn is_head(event: &Event, wanted: u32, wanted_end: bool) -> bool {
    matches!(event, Event::Head { stream, ends, .. } if (*stream, *ends) == (wanted, wanted_end))
}

/// An error of a server about one stream does not end the other requests of the connection.
#[test]
fn own_dependencies_and_zero_increments_of_a_server_are_ignored() {
    let mut client = Client::new(&[]);
    let (first, second) = (client.get(), client.get());
    let own = [&first.to_be_bytes()[..], &[16]].concat();
    assert_eq!(client.feed(&frame(FrameType::Priority, 0, first, &own)), Ok(vec![]));
    client.feed(&response(first, END_STREAM, 200)).expect("a response");
    client.session.release(first, &mut client.out);
    assert_eq!(client.feed(&frame(FrameType::WindowUpdate, 0, first, &[0; 4])), Ok(vec![]));
    let events = client.feed(&response(second, END_STREAM, 200)).expect("another response");
    assert!(is_head(&events[0], second, true), "{events:?}");
}

#[test]
fn client_and_server_sessions_interoperate() {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let mut client = Session::client(Limits::default(), &mut out);
    let mut server: Session<()> = Session::new(Limits::default(), &mut back);
    let mut block = Vec::new();
    push_request(&mut block, b"POST", b"https", b"/p", b"h");
    push_field(&mut block, b"te", b"trailers");
    let id = client.open_next(());
    client.push_head(id, &block, false, &mut out);
    client.push_data(id, 5, true, &mut out);
    out.extend_from_slice(b"hello");
    assert!(out.starts_with(PREFACE));
    let (mut at, mut fields, mut body) = (0, Vec::new(), Vec::new());
    while at < out.len() {
        let step = server.receive(&out[at..], &mut back).expect("good frames");
        match step.event {
            Event::Head { stream, ends, block } => {
                assert_eq!((stream, ends), (1, false));
                let field = |name: &[u8], value: &[u8]| fields.push([name, b"=", value].concat());
                server.decode(block, &out[at..], field).expect("a good block");
                server.open(stream, ends, None, ());
            }
            Event::Data { start, end, ends, .. } => {
                body.extend_from_slice(&out[at + start..at + end]);
                assert!(ends);
            }
            _ => {}
        }
        at += step.used;
    }
    let wanted = [&b":method=POST"[..], b":scheme=https", b":path=/p", b":authority=h", b"te=trailers"];
    assert_eq!(fields, wanted);
    assert_eq!(body, b"hello");
    // The response: an interim head, head, body, trailers.
    let (mut interim, mut head, mut trailers) = (Vec::new(), Vec::new(), Vec::new());
    push_status(&mut interim, 103);
    push_status(&mut head, 200);
    push_field(&mut trailers, b"grpc-status", b"0");
    server.push_head(1, &interim, false, &mut back);
    server.push_head(1, &head, false, &mut back);
    server.push_data(1, 2, false, &mut back);
    back.extend_from_slice(b"hi");
    server.push_head(1, &trailers, true, &mut back);
    let mut client = Client { session: client, out };
    let mut events = client.feed(&back).expect("good frames");
    events.retain(|event| !matches!(event, Event::Window { .. }));
    assert!(matches!(events[..], [_, _, Event::Data { stream: 1, ends: false, .. }, _]), "{events:?}");
    assert!(is_head(&events[0], 1, false) && is_head(&events[1], 1, false) && is_head(&events[3], 1, true));
    assert_eq!(client.session.release(1, &mut Vec::new()), Some(()));
}

/// RFC 9113 section 5.1.1: streams have odd, increasing numbers; section 5.1.2: at most as many as the server permits are open.
#[test]
fn streams_are_opened_up_to_the_limit_of_the_server() {
    let mut client = Client::new(&[(3, 2)]);
    assert_eq!((client.get(), client.session.may_open(), client.get()), (1, true, 3));
    assert!(!client.session.may_open());
    assert!(is_head(&client.feed(&response(1, END_STREAM, 200)).expect("a response")[0], 1, true));
    client.session.release(1, &mut client.out);
    assert!(client.session.may_open());
    assert_eq!(client.get(), 5);
    client.feed(&settings_frame(&[(3, 0)])).expect("settings");
    assert!(!client.session.may_open());
}

/// RFC 9113 sections 8.4 and 6.5.2: server push is disabled.
#[test]
fn a_push_ends_the_connection() {
    let mut client = Client::new(&[]);
    client.get();
    assert_eq!(
        client.feed(&frame(FrameType::PushPromise, END_HEADERS, 1, &[0, 0, 0, 2])),
        Err(Fault::PushPromise)
    );
    assert_eq!(Client::new(&[]).feed(&settings_frame(&[(2, 1)])), Err(Fault::Setting));
    let mut client = Client::new(&[(2, 0)]);
    assert_eq!(client.feed(&response(2, 0, 200)), Err(Fault::StreamNumber), "a server opens no streams");
    assert_eq!(client.feed(&response(1, 0, 200)), Err(Fault::StreamNumber), "no request was sent");
    assert_eq!(client.feed(&frame(FrameType::Data, 0, 1, b"x")), Err(Fault::IdleStream));
}

/// RFC 9113 section 3.4: the first frame is SETTINGS.
#[test]
fn a_server_starts_with_settings() {
    let mut out = Vec::new();
    let mut session: Session<()> = Session::client(Limits::default(), &mut out);
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &frame(FrameType::Ping, 0, 0, &[0; 8])] {
        let fault = session.receive(bytes, &mut out).expect_err("no SETTINGS");
        assert!(matches!(fault, Fault::NoSettings | Fault::FrameTooLong), "{fault:?}");
    }
    let ack = frame(FrameType::Settings, ACK, 0, &[]);
    assert_eq!(session.receive(&ack, &mut out), Err(Fault::NoSettings));
}

#[test]
fn the_end_of_a_connection_reports_unprocessed_streams() {
    let mut client = Client::new(&[]);
    client.get();
    let bytes = frame(FrameType::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 7, b'x']);
    assert_eq!(client.feed(&bytes), Ok(vec![Event::GoAway { last: 1, code: 7 }]));
    assert_eq!(client.feed(&frame(FrameType::GoAway, 0, 0, &[0; 7])), Err(Fault::FrameLength));
    let mut out = Vec::new();
    client.session.fail(Fault::Padding, &mut out);
    assert_eq!(out[9..], [0, 0, 0, 0, 0, 0, 0, 1], "GOAWAY names no stream: a server opens none");
}

#[test]
fn a_reset_is_reported_with_its_code() {
    let mut client = Client::new(&[]);
    let id = client.get();
    let bytes = frame(FrameType::ResetStream, 0, id, &[0, 0, 0, 7]);
    let code = ErrorCode::RefusedStream as u32;
    assert_eq!(client.feed(&bytes), Ok(vec![Event::Reset { stream: id, by_peer: true, code }]));
}

/// A server may reset every stream that the client opened: any number of resets is valid.
#[test]
fn resets_of_a_server_are_not_a_flood() {
    let mut client = Client::new(&[]);
    for _ in 0..3000 {
        let id = client.get();
        client.feed(&frame(FrameType::ResetStream, 0, id, &[0, 0, 0, 7])).expect("a connection that goes on");
        client.session.release(id, &mut Vec::new());
    }
}

#[test]
fn frames_without_effect_are_a_flood() {
    let mut client = Client::new(&[]);
    let ping = frame(FrameType::Ping, 0, 0, &[0; 8]);
    let fault = (0..4000).find_map(|_| client.feed(&ping).err());
    assert_eq!(fault, Some(Fault::Flood));
}

/// RFC 9113 section 8.1.1: a body whose length differs from the announced length resets the stream.
#[test]
fn bodies_must_have_the_announced_length() {
    for (body, flags) in [(&b"ab"[..], END_STREAM), (b"abcd", 0)] {
        let mut client = Client::new(&[]);
        let id = client.get();
        client.feed(&response(id, 0, 200)).expect("a head");
        client.session.expect(id, 3);
        let code = ErrorCode::Protocol as u32;
        let reset = Event::Reset { stream: id, by_peer: false, code };
        assert_eq!(client.feed(&frame(FrameType::Data, flags, id, body)), Ok(vec![reset]));
    }
    let mut client = Client::new(&[]);
    let id = client.get();
    client.feed(&response(id, 0, 200)).expect("a head");
    client.session.expect(id, 3);
    let events = client.feed(&response(id, END_STREAM, 200)).expect("a connection that goes on");
    assert!(
        matches!(events[..], [Event::Reset { by_peer: false, .. }]),
        "trailers before the end of the body: {events:?}"
    );
}

/// An unneeded response is cancelled, and its frames in flight are ignored.
#[test]
fn a_dropped_stream_is_cancelled() {
    let mut client = Client::new(&[]);
    let id = client.get();
    let mut out = Vec::new();
    client.session.release(id, &mut out);
    assert_eq!(out, frame(FrameType::ResetStream, 0, id, &[0, 0, 0, ErrorCode::Cancel as u8]));
    let late = [response(id, 0, 200), frame(FrameType::Data, END_STREAM, id, b"late")].concat();
    assert_eq!(client.feed(&late), Ok(Vec::new()));
}
