//! An HTTP/2 client connection: [`http::h2::Session`] with responses by [`http::h2::ResponseReader`].

use std::collections::BTreeSet;

use http::h2::hpack::push_request;
use http::h2::{Event, Fault, Limits, ResponseReader, Session};
use http::response::parse;

use super::h2_session::in_pieces;
use super::{h2_session, take_byte};
use crate::Target;

/// See the module.
pub const TARGET: Target = Target { name: "h2_client", run, tokens: h2_session::TARGET.tokens };

/// Receives the input after settings, as the responses to three requests. It is received in one call and in pieces,
/// with the same result.
pub fn run(mut data: &[u8]) {
    let (flags, piece) = (take_byte(&mut data), usize::from(take_byte(&mut data)) + 1);
    let limits = match flags & 1 {
        0 => Limits::default(),
        _ => Limits { streams_max: 0, initial_window: 20, head_max: 100, ..Limits::default() },
    };
    let start = [&b"\0\0\0\x04\0\0\0\0\0"[..], data].concat();
    let mut whole = Client::new(limits);
    let result = whole.receive(&start, start.len());
    let mut cut = Client::new(limits);
    assert_eq!(result, cut.receive(&start, piece), "pieces change the result");
    assert_eq!((whole.body, whole.heads), (cut.body, cut.heads), "pieces change what was received");
    assert_eq!(whole.out, cut.out, "pieces change what was sent");
}

struct Client {
    session: Session<()>,
    out: Vec<u8>,
    body: Vec<u8>,
    /// Heads in the form of HTTP/1, and faults.
    heads: Vec<Vec<u8>>,
    /// Streams that have received a head.
    answered: BTreeSet<u32>,
}

impl Client {
    fn new(limits: Limits) -> Client {
        let mut out = Vec::new();
        let mut session = Session::client(limits, &mut out);
        for _ in 0..3 {
            let mut block = Vec::new();
            push_request(&mut block, b"POST", b"http", b"/", b"h");
            let id = session.open_next(());
            session.push_head(id, &block, id == 1, &mut out);
        }
        Client { session, out, body: Vec::new(), heads: Vec::new(), answered: BTreeSet::new() }
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
                Event::Head { stream, block, .. } => {
                    assert!(self.session.get(stream).is_some(), "stream {stream} was not opened");
                    let mut reader = ResponseReader::new(parse::Limits { head_max: 100, fields_max: 5 });
                    self.session.decode(block, input, |name, value| reader.field(name, value))?;
                    if self.answered.insert(stream)
                        && let Ok((text, head)) = reader.finish()
                    {
                        if let Some(length) = head.content_length() {
                            self.session.expect(stream, length);
                        }
                        self.heads.push(text);
                    }
                }
                Event::Data { stream, start, end, .. } => {
                    assert!(self.session.get(stream).is_some(), "stream {stream} was not opened");
                    self.body.extend_from_slice(&input[start..end]);
                }
                Event::Reset { stream, .. } => _ = self.session.release(stream, &mut self.out),
                _ => {}
            }
            Ok(Some(step.used))
        })
    }
}
