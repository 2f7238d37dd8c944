//! An HTTP/2 server connection: [`http::h2::Session`].

use http::fields::BodyLength;
use http::h2::frame::{FrameHeader, PAYLOAD_MAX};
use http::h2::hpack::push_status;
use http::h2::{Block, Event, Fault, HeadReader, Limits, PREFACE, Scratch, Session};
use http::request::{Head, Policy};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "h2_session",
    run,
    tokens: &[
        "\0\0\0\u{4}\0\0\0\0\0",
        "\0\0\0\u{4}\u{1}\0\0\0\0",
        "\0\0\u{6}\u{4}\0\0\0\0\0\0\u{4}\0\0\0\u{10}",
        "\0\0\u{5}\u{1}\u{5}\0\0\0\u{1}",
        "\0\0\u{5}\u{1}\u{4}\0\0\0\u{3}",
        "\0\0\u{5}\u{1}\u{0}\0\0\0\u{5}",
        "\0\0\u{1}\u{9}\u{4}\0\0\0\u{5}",
        "\0\0\u{3}\0\0\0\0\0\u{3}abc",
        "\0\0\u{3}\0\u{1}\0\0\0\u{3}abc",
        "\0\0\u{4}\0\u{8}\0\0\0\u{3}\u{2}a\0\0",
        "\0\0\u{4}\u{3}\0\0\0\0\u{1}\0\0\0\u{8}",
        "\0\0\u{4}\u{8}\0\0\0\0\0\0\0\u{1}\0",
        "\0\0\u{8}\u{6}\0\0\0\0\0abcdefgh",
        "\0\0\u{8}\u{7}\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "\0\0\u{5}\u{2}\0\0\0\0\u{3}\0\0\0\0\0",
        "\0\0\u{7}\u{10}\0\0\0\0\0\0\0\0\u{3}u=1",
    ],
};

/// Receives the input after a preface and settings. It is received in one call and in pieces, with the same result.
pub fn run(mut data: &[u8]) {
    let (flags, piece) = (take_byte(&mut data), usize::from(take_byte(&mut data)) + 1);
    let limits = match flags & 1 {
        0 => Limits::default(),
        _ => Limits { streams_max: 3, initial_window: 20, head_max: 100, ..Limits::default() },
    };
    let start = [&PREFACE[..], b"\0\0\0\x04\0\0\0\0\0", data].concat();
    let mut whole = Server::new(limits, flags);
    let result = whole.receive(&start, start.len());
    let mut cut = Server::new(limits, flags);
    assert_eq!(result, cut.receive(&start, piece), "pieces change the result");
    assert_eq!(whole.body, cut.body, "pieces change what was received");
    // If bodies are consumed, the window updates depend on the pieces.
    assert!(whole.takes || whole.out == cut.out, "pieces change what was sent");
    whole.check_output();
}

/// Passes bytes to `handle` in pieces of this size, together with previous bytes that it did not use; `handle` returns
/// `None` if it needs more.
pub(super) fn in_pieces(
    bytes: &[u8],
    piece: usize,
    mut handle: impl FnMut(&[u8]) -> Result<Option<usize>, Fault>,
) -> Result<(), Fault> {
    let mut held: Vec<u8> = Vec::new();
    for part in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(part);
        let mut at = 0;
        while at < held.len() {
            match handle(&held[at..])? {
                None => break,
                Some(used) => at += used,
            }
        }
        held.drain(..at);
        assert!(held.len() <= 9 + PAYLOAD_MAX, "more than one frame is buffered");
    }
    Ok(())
}

struct Server {
    session: Session<()>,
    out: Vec<u8>,
    body: Vec<u8>,
    scratch: Scratch,
    responds: bool,
    takes: bool,
}

impl Server {
    /// Creates a server. Flags determine whether requests get responses, and whether bodies are consumed.
    fn new(limits: Limits, flags: u8) -> Server {
        let mut out = Vec::new();
        let session = Session::new(limits, &mut out);
        Server {
            session,
            out,
            body: Vec::new(),
            scratch: Scratch::default(),
            responds: flags & 2 != 0,
            takes: flags & 4 != 0,
        }
    }

    /// Receives bytes; unused bytes of a piece are passed again with the next one.
    fn receive(&mut self, bytes: &[u8], piece: usize) -> Result<(), Fault> {
        in_pieces(bytes, piece, |input| {
            let step = self.session.receive(input, &mut self.out)?;
            assert!(step.used <= input.len());
            match step.event {
                Event::More => return Ok(None),
                Event::Round => {
                    for (id, window) in self.session.limited() {
                        self.session.widen(id, 2 * window, &mut self.out);
                    }
                }
                Event::Head { stream, ends, block } => self.head(stream, ends, block, input)?,
                Event::Data { stream, start, end, .. } => {
                    self.body.extend_from_slice(&input[start..end]);
                    if self.takes {
                        self.session.take(stream, (end - start) as u32, &mut self.out);
                    }
                }
                _ => {}
            }
            Ok(Some(step.used))
        })
    }

    fn head(&mut self, stream: u32, ends: bool, block: Block, input: &[u8]) -> Result<(), Fault> {
        let (mut head, mut raw, policy) = (Head::new(), Vec::new(), Policy::default());
        let mut reader = HeadReader::new(&mut self.scratch, &mut head, &mut raw, &policy);
        self.session.decode(block, input, |name, value| reader.field(name, value))?;
        let finished = reader.finish(ends);
        assert!(raw.len() <= policy.head_max as usize);
        let length = match head.body() {
            BodyLength::Exactly(length) => Some(length),
            _ => None,
        };
        self.session.open(stream, ends, length, ());
        if finished.is_ok() {
            let fields = head.fields().iter();
            fields.for_each(|field| assert!(!field.name.of(&raw).iter().any(u8::is_ascii_uppercase)));
        }
        if self.responds {
            let mut block = Vec::new();
            push_status(&mut block, finished.map_or(400, |()| 200));
            self.session.push_head(stream, &block, false, &mut self.out);
            let len = self.session.sendable(stream).min(10);
            self.session.push_data(stream, len, true, &mut self.out);
            self.out.extend_from_slice(&b"0123456789"[..len]);
            self.session.release(stream, &mut self.out);
        }
        Ok(())
    }

    /// Checks that the output consists of complete frames.
    fn check_output(&self) {
        let mut rest = &self.out[..];
        while let Some(header) = FrameHeader::read(rest) {
            assert!(header.len <= PAYLOAD_MAX);
            rest = rest.get(9 + header.len..).expect("a complete frame");
        }
        assert!(rest.is_empty());
    }
}
