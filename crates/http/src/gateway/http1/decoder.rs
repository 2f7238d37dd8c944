//! Decoder for HTTP/1 responses: a head as text, and a body delimited by length, by chunks or by the end of the connection.

use crate::connection::response_keeps_alive;
use crate::fields::Method;
use crate::framing::{ChunkedDecoder, Event, ResponseFraming, may_be_trailer};
use crate::gateway::event::{BodyEvent, BodyStep, HeadEvent, InvalidBody};
use crate::response::parse::{
    Limits, ParsedResponse, ResponseError, ResponseProgress, parse, parse_cgi, parse_fields,
};

/// Decoder of one HTTP/1 response; see [`crate::gateway::Decoder`].
#[derive(Clone, Debug)]
pub struct Decoder {
    method: Method,
    limits: Limits,
    origin: Origin,
    keeps_alive: bool,
    part: BodyPart,
}

/// Source of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A server that speaks HTTP/1.
    Server,
    /// A script; its response may lack a status line.
    Script,
    /// A stream of HTTP/2, converted to text. Its body is always chunked, regardless of `Content-Length`.
    Stream,
}

/// Framing of the body and the current position in it.
#[derive(Clone, Debug)]
enum BodyPart {
    /// This many bytes remain; 0 before the head is complete.
    Length(u64),
    /// Chunked coding, and the trailer lines received so far.
    Chunks(ChunkedDecoder, Vec<u8>),
    /// The body extends to the end of the connection.
    Close,
    /// The body has ended; contains the trailer lines.
    Over(Vec<u8>),
}

const INVALID_CHUNKS: InvalidBody = InvalidBody("upstream sent invalid chunked response");

/// Maximum number of trailer fields that are passed on: more than any protocol uses, and little memory.
const TRAILERS_MAX: u16 = 100;

impl Decoder {
    pub(in crate::gateway) fn new(method: Method, limits: Limits) -> Self {
        Self { method, limits, origin: Origin::Server, keeps_alive: false, part: BodyPart::Length(0) }
    }

    /// Creates a decoder that also accepts CGI responses. Their connections are not reused.
    pub(in crate::gateway) fn of_script(method: Method, limits: Limits) -> Self {
        Self { origin: Origin::Script, ..Self::new(method, limits) }
    }

    /// Creates a decoder for the text of a converted HTTP/2 stream.
    pub(in crate::gateway) fn of_stream(method: Method, limits: Limits) -> Self {
        Self { origin: Origin::Stream, ..Self::new(method, limits) }
    }

    pub(in crate::gateway) fn head(
        &mut self,
        head: &mut ParsedResponse,
        input: &[u8],
    ) -> Result<HeadEvent, ResponseError> {
        let progress = match head.is_cgi() {
            false => parse(head, input, &self.limits)?,
            true => ResponseProgress::Http09,
        };
        let progress = match progress {
            ResponseProgress::Http09 if self.origin == Origin::Script => {
                parse_cgi(head, input, &self.limits)?
            }
            progress => progress,
        };
        Ok(match progress {
            ResponseProgress::Incomplete => HeadEvent::More,
            ResponseProgress::Complete { head_len } if head.is_interim() => HeadEvent::Interim(head_len),
            ResponseProgress::Complete { head_len } => {
                let framing = match (ResponseFraming::of(self.method, head), self.origin) {
                    (ResponseFraming::Length(_) | ResponseFraming::UntilClose, Origin::Stream) => {
                        ResponseFraming::Chunked
                    }
                    (framing, _) => framing,
                };
                let keeps_alive = response_keeps_alive(head, input) && framing.is_delimited();
                self.keeps_alive = keeps_alive && self.origin != Origin::Script;
                self.part = match framing {
                    ResponseFraming::None => BodyPart::Length(0),
                    ResponseFraming::Length(length) => BodyPart::Length(length),
                    ResponseFraming::Chunked => {
                        BodyPart::Chunks(ChunkedDecoder::without_limits(), Vec::new())
                    }
                    ResponseFraming::UntilClose => BodyPart::Close,
                };
                HeadEvent::Head(head_len)
            }
            ResponseProgress::Http09 => {
                self.part = BodyPart::Close;
                HeadEvent::NoHead
            }
        })
    }

    #[inline]
    pub(in crate::gateway) fn body(&mut self, input: &[u8]) -> Result<BodyStep, InvalidBody> {
        match &mut self.part {
            BodyPart::Length(0) => {
                self.part = BodyPart::Over(Vec::new());
                Ok(BodyStep { consumed: 0, event: BodyEvent::End })
            }
            BodyPart::Length(left) => {
                let len = input.len().min((*left).min(usize::MAX as u64) as usize);
                *left -= len as u64;
                Ok(data(len))
            }
            BodyPart::Chunks(decoder, trailers) => {
                let step = decoder.handle_with_trailers(input, trailers).map_err(|_| INVALID_CHUNKS)?;
                let event = match step.event {
                    Event::Data { start, end } => BodyEvent::Data { start, end },
                    Event::More => BodyEvent::More,
                    Event::End => BodyEvent::End,
                };
                if event == BodyEvent::End {
                    self.part = BodyPart::Over(std::mem::take(trailers));
                }
                Ok(BodyStep { consumed: step.consumed, event })
            }
            BodyPart::Close => Ok(data(input.len())),
            // More bytes than announced.
            BodyPart::Over(_) => Ok(BodyStep { consumed: input.len(), event: BodyEvent::More }),
        }
    }

    pub(in crate::gateway) fn ends_within(&self, input: &[u8]) -> bool {
        match &self.part {
            BodyPart::Length(left) => input.len() as u64 >= *left,
            // The body is decoded on trial first: if its end is not at the end of the input, no state may change.
            BodyPart::Chunks(decoder, _) => ends_with_last_chunk(input) && is_complete(*decoder, input),
            BodyPart::Close | BodyPart::Over(_) => false,
        }
    }

    pub(in crate::gateway) fn remaining(&self) -> Option<u64> {
        match self.part {
            BodyPart::Length(left) => Some(left),
            BodyPart::Over(_) => Some(0),
            BodyPart::Chunks(..) | BodyPart::Close => None,
        }
    }

    pub(in crate::gateway) fn skip(&mut self, count: u64) {
        if let BodyPart::Length(left) = &mut self.part {
            debug_assert!(count <= *left, "only bytes of the body are skipped");
            *left -= count.min(*left);
        }
    }

    pub(in crate::gateway) fn is_over(&self) -> bool {
        matches!(self.part, BodyPart::Over(_))
    }

    pub(in crate::gateway) fn close(&mut self) -> bool {
        let ends = matches!(self.part, BodyPart::Close);
        if ends {
            self.part = BodyPart::Over(Vec::new());
        }
        ends
    }

    pub(in crate::gateway) fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    pub(in crate::gateway) fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let BodyPart::Over(section) = &self.part else { return Vec::new() };
        let mut fields = Vec::new();
        if section.is_empty() || parse_fields(section, TRAILERS_MAX, &mut fields).is_err() {
            return Vec::new();
        }
        let passed = fields.iter().filter(|field| may_be_trailer(field.id));
        passed.map(|field| (field.name.of(section).to_vec(), field.value.of(section).to_vec())).collect()
    }
}

/// Returns the first `len` bytes as bytes of the body.
fn data(len: usize) -> BodyStep {
    let event = if len == 0 { BodyEvent::More } else { BodyEvent::Data { start: 0, end: len } };
    BodyStep { consumed: len, event }
}

/// Whether the bytes may contain the last chunk. This check is cheaper than decoding.
fn ends_with_last_chunk(bytes: &[u8]) -> bool {
    bytes.ends_with(b"0\r\n\r\n")
}

/// Whether the body ends exactly at the end of these bytes and has no trailers. A trailer line may look like a last chunk.
fn is_complete(mut decoder: ChunkedDecoder, bytes: &[u8]) -> bool {
    let (mut at, mut trailers) = (0, Vec::new());
    loop {
        let Ok(step) = decoder.handle_with_trailers(&bytes[at..], &mut trailers) else { return false };
        at += step.consumed;
        match step.event {
            Event::Data { .. } => {}
            Event::More => return false,
            Event::End => return at == bytes.len() && trailers.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(method: Method, text: &[u8]) -> (Decoder, usize) {
        let mut decoder = Decoder::new(method, Limits::default());
        let mut head = ParsedResponse::new();
        match decoder.head(&mut head, text).expect("a good head") {
            HeadEvent::Head(len) => (decoder, len as usize),
            event => panic!("{event:?}"),
        }
    }

    /// Decodes the body in pieces of this many bytes. Returns also the number of bytes after its end, if the end was received.
    fn decoded(
        decoder: &mut Decoder,
        input: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, Option<usize>), InvalidBody> {
        let (mut body, mut at) = (Vec::new(), 0);
        loop {
            let end = (at + piece).min(input.len());
            let step = decoder.body(&input[at..end])?;
            match step.event {
                BodyEvent::Data { start, end } => body.extend_from_slice(&input[at + start..at + end]),
                BodyEvent::More if end == input.len() => return Ok((body, None)),
                BodyEvent::More => {}
                BodyEvent::End => return Ok((body, Some(input.len() - at - step.consumed))),
            }
            at += step.consumed;
        }
    }

    /// The head without `HTTP/`; the input; the body; the number of bytes after the end, if the body ends; whether the connection
    /// is reusable.
    type Row<'t> = (&'t str, &'t str, &'t str, Option<usize>, bool);

    const ROWS: [Row<'static>; 11] = [
        ("1.1 200\r\nContent-Length: 3\r\n\r\n", "abc", "abc", Some(0), true),
        ("1.1 200\r\nContent-Length: 3\r\n\r\n", "abcde", "abc", Some(2), true),
        ("1.1 200\r\nContent-Length: 3\r\n\r\n", "ab", "ab", None, true),
        ("1.1 200\r\nContent-Length: 0\r\n\r\n", "", "", Some(0), true),
        ("1.0 200\r\nContent-Length: 1\r\n\r\n", "a", "a", Some(0), false),
        ("1.1 200\r\nConnection: close\r\nContent-Length: 1\r\n\r\n", "a", "a", Some(0), false),
        ("1.1 200\r\n\r\n", "abc", "abc", None, false),
        ("1.1 304\r\nContent-Length: 3\r\n\r\n", "abc", "", Some(3), true),
        (
            "1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
            "2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n",
            "abc",
            Some(0),
            true,
        ),
        ("1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\nA: 1\r\n\r\nrest", "", Some(4), true),
        ("1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", "2\r\nab\r\n0\r\n\r", "ab", None, true),
    ];

    #[test]
    fn bodies_end_as_framed_in_pieces_of_any_size() {
        for (head, bytes, body, behind, keeps_alive) in ROWS {
            let text = format!("HTTP/{head}{bytes}");
            for piece in 1..=bytes.len().max(1) {
                let (mut decoder, len) = decoder(Method::Get, text.as_bytes());
                assert_eq!(decoder.keeps_alive(), keeps_alive, "{head}");
                let found = decoded(&mut decoder, &text.as_bytes()[len..], piece).expect(head);
                // Bytes after the last piece are not visible.
                let behind = behind.map(|behind| (body.as_bytes().to_vec(), Some(behind)));
                assert_eq!(found, behind.unwrap_or((body.as_bytes().to_vec(), None)), "{head} {piece}");
                assert_eq!(decoder.is_over(), found.1.is_some(), "{head} {piece}");
            }
        }
    }

    #[test]
    fn the_end_of_the_connection_ends_only_bodies_without_framing() {
        for (head, bytes, _, behind, _) in ROWS.iter().filter(|row| row.3.is_none()) {
            let text = format!("HTTP/{head}{bytes}");
            let (mut decoder, len) = decoder(Method::Get, text.as_bytes());
            decoded(&mut decoder, &text.as_bytes()[len..], text.len()).expect(head);
            assert_eq!(*behind, None);
            assert_eq!(decoder.close(), *head == "1.1 200\r\n\r\n", "{head}");
            assert_eq!(decoder.is_over(), *head == "1.1 200\r\n\r\n", "{head}");
        }
    }

    #[test]
    fn interim_final_and_missing_heads_are_distinguished() {
        let mut decoder = Decoder::new(Method::Get, Limits::default());
        let mut head = ParsedResponse::new();
        let text = b"HTTP/1.1 103 x\r\nA: 1\r\n\r\nHTTP/1.1 200 x\r\n\r\n";
        assert_eq!(decoder.head(&mut head, &text[..20]), Ok(HeadEvent::More));
        assert_eq!(decoder.head(&mut head, text), Ok(HeadEvent::Interim(24)));
        head.clear();
        assert_eq!(decoder.head(&mut head, &text[24..]), Ok(HeadEvent::Head(18)));
        let mut bare = Decoder::new(Method::Get, Limits::default());
        assert_eq!(bare.head(&mut ParsedResponse::new(), b"<html>"), Ok(HeadEvent::NoHead));
        assert!(!bare.keeps_alive() && bare.close());
    }

    #[test]
    fn a_script_may_omit_the_status_line() {
        for (text, status, body) in [
            ("Status: 404 x\r\nContent-Length: 2\r\n\r\nab", 404, "ab"),
            ("HTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nab", 201, "ab"),
            ("Location: /a\n\nabc", 302, "abc"),
            ("H: 1\r\n\r\n", 200, ""),
        ] {
            let mut decoder = Decoder::of_script(Method::Get, Limits::default());
            let mut head = ParsedResponse::new();
            // Each byte may be the last one received.
            let len = (1..=text.len()).find_map(|end| {
                match decoder.head(&mut head, &text.as_bytes()[..end]).expect("a good head") {
                    HeadEvent::Head(len) => Some(len as usize),
                    _ => None,
                }
            });
            let len = len.expect("a complete header section");
            let (found, _) = decoded(&mut decoder, &text.as_bytes()[len..], 100).expect("a body");
            assert_eq!((head.status().code(), &found[..]), (status, body.as_bytes()), "{text:?}");
            assert!(!decoder.keeps_alive());
        }
        let mut decoder = Decoder::of_script(Method::Get, Limits::default());
        assert!(decoder.head(&mut ParsedResponse::new(), b"no header\r\n").is_err());
    }

    #[test]
    fn permitted_trailers_are_returned() {
        let text = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (mut decoder, _) = decoder(Method::Get, text);
        let section = b"0\r\nX-Sum: 1\r\nContent-Length: 7\r\nServer-Timing: a\r\n\r\n";
        decoded(&mut decoder, section, 3).expect("good chunks");
        let wanted = [("X-Sum", "1"), ("Server-Timing", "a")];
        assert_eq!(decoder.trailers(), wanted.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn malformed_chunks_are_refused() {
        let text = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n";
        for bytes in ["zz\r\n", "2\r\nabc", "1\na"] {
            let (mut decoder, _) = decoder(Method::Get, text);
            assert_eq!(decoded(&mut decoder, bytes.as_bytes(), 1), Err(INVALID_CHUNKS), "{bytes:?}");
        }
    }

    /// `ends_within` is true only for a body that ends with its last chunk at the end of the input.
    #[test]
    fn a_complete_chunked_body_is_distinguished_from_a_partial_one() {
        let text = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let whole = |bytes: &str| decoder(Method::Get, text).0.ends_within(bytes.as_bytes());
        assert!(whole("3\r\nabc\r\n0\r\n\r\n"));
        assert!(whole("0\r\n\r\n"));
        assert!(!whole("3\r\nabc\r\n"));
        // The text of the last chunk inside a longer chunk; bytes after it; no chunks at all.
        assert!(!whole("9\r\nabc0\r\n\r\n"));
        assert!(!whole("0\r\n\r\nabc0\r\n\r\n"));
        assert!(!whole("zz\r\n0\r\n\r\n"));
        // Trailers, which are only processed when a body is decoded piece by piece.
        assert!(!whole("3\r\nabc\r\n0\r\ngrpc-status: 0\r\n\r\n"));
    }
}
