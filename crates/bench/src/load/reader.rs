//! Reader of responses: the end of each response, its status, and the length and checksum of its body.
//!
//! No I/O. [`http::gateway::Decoder`] parses heads and bodies. A head that is identical to the previous one is only
//! compared with it; under a steady load heads are identical for a second at a time.

use http::fields::Method;
use http::gateway::{BodyEvent, Decoder, HeadEvent};
use http::response::parse::{Limits, ParsedResponse};

use super::outcome::Failed;
use super::plan::ResponseKind;

/// Maximum size of a head in bytes. Servers refuse to write longer ones.
const HEAD_BYTES_MAX: u32 = 64 << 10;

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Length of the body in bytes, without framing.
    pub(crate) body_bytes: u64,
    /// CRC-32C of the body; 0 if the plan expects no checksum.
    pub(crate) crc32c: u32,
    /// Whether the connection stays open after the response.
    pub(crate) is_kept: bool,
}

/// The start value of a response; the length and the checksum of its body are added to it.
pub(super) const START: Response = Response { status: 200, body_bytes: 0, crc32c: 0, is_kept: true };

/// A response after its head, and the decoder of its body.
type Start = (Response, Decoder);

/// Parser state that all connections of a thread share.
pub(crate) struct Heads {
    method: Method,
    response_kind: ResponseKind,
    has_checksum: bool,
    head: ParsedResponse,
    /// The previous head, and the response that it starts.
    last: Vec<u8>,
    last_start: Option<Start>,
}

impl Heads {
    /// Creates the state for responses to requests with this method. Checksums are computed only if `has_checksum` is
    /// set.
    pub(crate) fn new(method: &str, response_kind: ResponseKind, has_checksum: bool) -> Heads {
        Heads {
            method: Method::of(method.as_bytes()),
            response_kind,
            has_checksum,
            head: ParsedResponse::new(),
            last: Vec::with_capacity(HEAD_BYTES_MAX as usize),
            last_start: None,
        }
    }

    /// Parses the head at the start of `input`; returns its length and the response that it starts, if it is not an
    /// interim response. Returns `None` while the head is incomplete.
    fn read(&mut self, input: &[u8]) -> Result<Option<(usize, Option<Start>)>, Failed> {
        if self.last_start.is_some() && input.starts_with(&self.last) {
            return Ok(Some((self.last.len(), self.last_start.clone())));
        }
        self.head.clear();
        let limits = Limits { head_max: HEAD_BYTES_MAX, ..Limits::default() };
        let mut decoder = Decoder::http1(self.method, limits);
        let head_len = match decoder.head(&mut self.head, input) {
            Ok(HeadEvent::Head(head_len)) => head_len as usize,
            // The final response follows (RFC 9110 section 15.2).
            Ok(HeadEvent::Interim(head_len)) => return Ok(Some((head_len as usize, None))),
            Ok(HeadEvent::More) => return Ok(None),
            Ok(HeadEvent::Written(_) | HeadEvent::NoHead) | Err(_) => return Err(Failed::Parse),
        };
        // Stored even if each response has a different head: copying a few hundred bytes that are in the CPU cache is
        // cheap.
        self.last.clear();
        self.last.extend_from_slice(&input[..head_len]);
        let (status, is_kept) = (self.head.status().code(), decoder.keeps_alive());
        self.last_start = Some((Response { status, is_kept, ..START }, decoder));
        Ok(Some((head_len, self.last_start.clone())))
    }
}

/// Parser state of one connection.
pub(crate) struct Reader {
    place: Position,
    /// The beginning of an incomplete head.
    partial: Vec<u8>,
    response: Response,
}

/// Position of the parser within the response being received.
enum Position {
    /// Before or within a head.
    Head,
    Body(Decoder),
    /// Within a response without a head, of which this number of bytes is missing.
    Bytes(u64),
}

impl Reader {
    pub(crate) fn new() -> Reader {
        Reader { place: Position::Head, partial: Vec::new(), response: START }
    }

    pub(crate) fn restart(&mut self) {
        self.place = Position::Head;
        self.partial.clear();
    }

    /// Whether a response has been received partially.
    pub(crate) fn is_within_answer(&self) -> bool {
        !matches!(self.place, Position::Head) || !self.partial.is_empty()
    }

    /// Consumes bytes from the front of `input`, up to the end of the next response, which is returned, or all of them.
    pub(crate) fn read(&mut self, heads: &mut Heads, input: &mut &[u8]) -> Result<Option<Response>, Failed> {
        while !input.is_empty() {
            let is_complete = match self.place {
                Position::Head => self.read_head(heads, input)?,
                _ => self.read_body(heads.has_checksum, input)?,
            };
            if is_complete {
                self.place = Position::Head;
                return Ok(Some(self.response));
            }
        }
        Ok(None)
    }

    /// Handles the end of the connection: returns the response that ends with it, or why it is incomplete. Returns
    /// `None` between two responses.
    pub(crate) fn end(&mut self, heads: &Heads) -> Result<Option<Response>, Failed> {
        if heads.response_kind == ResponseKind::End {
            return Ok(Some(Response { is_kept: false, ..START }));
        }
        match std::mem::replace(&mut self.place, Position::Head) {
            Position::Head if self.partial.is_empty() => Ok(None),
            Position::Head => Err(Failed::Reset),
            Position::Body(mut decoder) => {
                if decoder.close() {
                    Ok(Some(self.response))
                } else {
                    Err(Failed::ShortBody)
                }
            }
            Position::Bytes(_) => Err(Failed::ShortBody),
        }
    }

    /// Parses a head; returns whether the response is complete without a body. A head that arrives in pieces is
    /// collected in `partial`, which is rare.
    fn read_head(&mut self, heads: &mut Heads, input: &mut &[u8]) -> Result<bool, Failed> {
        match heads.response_kind {
            ResponseKind::Http => {}
            ResponseKind::Bytes(bytes) => {
                (self.response, self.place) = (START, Position::Bytes(bytes));
                return Ok(false);
            }
            ResponseKind::End => return Err(Failed::Parse),
        }
        let had = self.partial.len();
        let found = if had == 0 {
            heads.read(input)?
        } else {
            let room = (HEAD_BYTES_MAX as usize).saturating_sub(had);
            self.partial.extend_from_slice(&input[..input.len().min(room)]);
            heads.read(&self.partial)?
        };
        let Some((head_len, start)) = found else {
            if had == 0 {
                self.partial.extend_from_slice(input);
            }
            *input = &[];
            return Ok(false);
        };
        self.partial.clear();
        *input = &input[head_len - had..];
        let Some((response, decoder)) = start else { return Ok(false) };
        let is_complete = decoder.remaining() == Some(0);
        (self.response, self.place) = (response, Position::Body(decoder));
        Ok(is_complete)
    }

    /// Consumes bytes of the body; returns whether the body is complete.
    fn read_body(&mut self, has_checksum: bool, input: &mut &[u8]) -> Result<bool, Failed> {
        let (body, consumed, is_complete) = match &mut self.place {
            Position::Head => return Ok(false),
            Position::Body(decoder) => {
                let step = decoder.body(input).map_err(|_| Failed::Parse)?;
                let body = match step.event {
                    BodyEvent::Data { start, end } => &input[start..end],
                    BodyEvent::More | BodyEvent::End => &[],
                };
                (body, step.consumed, decoder.remaining() == Some(0))
            }
            Position::Bytes(missing) => {
                let count = input.len().min(usize::try_from(*missing).unwrap_or(usize::MAX));
                *missing -= count as u64;
                (&input[..count], count, *missing == 0)
            }
        };
        self.response.body_bytes += body.len() as u64;
        if has_checksum {
            self.response.crc32c = crc32c::crc32c_append(self.response.crc32c, body);
        }
        *input = &input[consumed..];
        Ok(is_complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of [`Reader::end`].
    type AtEnd = Result<Option<Response>, Failed>;

    /// Parses all responses in `text`, which arrives in pieces of `piece` bytes; returns them and the result at its
    /// end.
    fn read(method: &str, text: &str, piece: usize) -> Result<(Vec<Response>, AtEnd), Failed> {
        read_as(ResponseKind::Http, method, text, piece)
    }

    fn read_as(
        kind: ResponseKind,
        method: &str,
        text: &str,
        piece: usize,
    ) -> Result<(Vec<Response>, AtEnd), Failed> {
        let mut heads = Heads::new(method, kind, true);
        let mut reader = Reader::new();
        let mut responses = Vec::new();
        for mut input in text.as_bytes().chunks(piece) {
            while !input.is_empty() {
                responses.extend(reader.read(&mut heads, &mut input)?);
            }
        }
        Ok((responses, reader.end(&heads)))
    }

    const PIECES: [usize; 5] = [1, 2, 7, 50, 10_000];

    #[test]
    fn responses_of_every_framing_are_read_in_any_pieces() {
        let text = concat!(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\n123\r\n0\r\nA: b\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        let hello = crc32c::crc32c(b"hello");
        let kept = |status, body_bytes, crc32c| Response { status, body_bytes, crc32c, is_kept: true };
        let wanted = [
            kept(200, 5, hello),
            kept(200, 5, hello),
            kept(304, 0, 0),
            kept(200, 8, crc32c::crc32c(b"hello123")),
            Response { status: 404, body_bytes: 0, crc32c: 0, is_kept: false },
        ];
        for piece in PIECES {
            assert_eq!(read("GET", text, piece), Ok((wanted.to_vec(), Ok(None))), "{piece}");
        }
    }

    #[test]
    fn responses_without_a_head_are_read() {
        for piece in PIECES {
            let (responses, end) = read_as(ResponseKind::Bytes(3), "", "abcabcab", piece).unwrap();
            assert_eq!(responses, [Response { body_bytes: 3, crc32c: crc32c::crc32c(b"abc"), ..START }; 2]);
            assert_eq!(end, Err(Failed::ShortBody), "{piece}");
        }
        let ended = Response { is_kept: false, ..START };
        assert_eq!(read_as(ResponseKind::End, "", "", 1), Ok((Vec::new(), Ok(Some(ended)))));
        assert_eq!(read_as(ResponseKind::End, "", "x", 1), Err(Failed::Parse));
    }

    #[test]
    fn ends_of_connections_are_detected() {
        let until_close = "HTTP/1.1 200 OK\r\n\r\nhello";
        let response =
            Response { status: 200, body_bytes: 5, crc32c: crc32c::crc32c(b"hello"), is_kept: false };
        for piece in PIECES {
            assert_eq!(read("GET", until_close, piece), Ok((Vec::new(), Ok(Some(response)))), "{piece}");
            for (text, broken) in [
                ("HTTP/1.1 200 OK\r\nContent-Le", Failed::Reset),
                ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", Failed::ShortBody),
                ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Failed::ShortBody),
            ] {
                assert_eq!(read("GET", text, piece), Ok((Vec::new(), Err(broken))), "{text} {piece}");
            }
        }
    }

    #[test]
    fn invalid_responses_are_refused() {
        for text in [
            "SSH-2.0-x\r\n",
            "HTTP/1.1 two hundred\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        ] {
            assert_eq!(read("GET", text, 10_000), Err(Failed::Parse), "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(100_000));
        for piece in [1000, 16 << 10, 1 << 20] {
            assert_eq!(read("GET", &endless, piece), Err(Failed::Parse), "{piece}");
        }
    }

    #[test]
    fn the_response_to_head_has_no_body() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let (responses, _) = read("HEAD", text, 10_000).unwrap();
        assert_eq!(responses.len(), 2);
    }

    #[test]
    fn a_head_with_the_prefix_of_the_last_one_is_parsed_separately() {
        let text = concat!(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhey",
        );
        let (responses, end) = read("GET", text, 10_000).unwrap();
        let lengths: Vec<u64> = responses.iter().map(|response| response.body_bytes).collect();
        assert_eq!((lengths, end), (vec![5, 3], Ok(None)));
    }
}
