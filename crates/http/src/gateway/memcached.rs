//! The text protocol of memcached, of which only `get` is used
//! (<https://github.com/memcached/memcached/blob/master/doc/protocol.txt>).
//!
//! ```text
//!   get KEY  -->  VALUE KEY FLAGS LENGTH, the value, an empty line, END
//!            -->  END                                     if the server does not have the key
//! ```
//!
//! Such a response has no HTTP header section, so the decoder writes one: 200 with the length of the value, or 404. As in nginx,
//! invalid bytes after a complete value are only logged, and the connection is not reused; the client receives the complete value.

use super::event::{BodyEvent, BodyStep, HeadEvent, InvalidBody};
use super::{BodyFraming, Encoded, UpstreamProtocol};
use crate::fields::FieldLine;
use crate::fields::Method;
use crate::response::parse::{HeadWriter, Limits, ParsedResponse, ResponseError};
use crate::{Span, StatusCode, parse_decimal};

/// The command before a key.
const COMMAND: &[u8] = b"get ";

/// The beginning of the first line of a value.
const VALUE: &[u8] = b"VALUE ";

/// The complete response for an unknown key.
const NOT_FOUND: &[u8] = b"END";

/// The bytes after a value.
const END: &[u8] = b"\r\nEND\r\n";

/// Escapes a key for sending: control bytes, spaces and percent signs, as in nginx.
#[must_use]
pub fn escaped(key: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(key.len());
    for &byte in key {
        match byte {
            0..=b' ' | b'%' => {
                out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
            }
            _ => out.push(byte),
        }
    }
    out
}

/// Encodes a request for the value of a key. A value is gzip-compressed if its flags share a bit with `gzip_flag`.
#[must_use]
pub fn get(key: &[u8], gzip_flag: u64) -> Encoded {
    let head = [COMMAND, &escaped(key), b"\r\n"].concat();
    let protocol = UpstreamProtocol::Memcached { gzip_flag };
    Encoded { protocol, head, target: Span::EMPTY, framing: BodyFraming::Plain }
}

/// Extracts the key from a request that [`get`] encoded.
pub(super) fn key(head: &[u8]) -> &[u8] {
    let key = head.strip_prefix(COMMAND).unwrap_or_default();
    key.strip_suffix(b"\r\n").unwrap_or_default()
}

/// Decoder of one memcached response; see [`crate::gateway::Decoder`].
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The key as sent, escaped.
    key: Vec<u8>,
    gzip_flag: u64,
    head_max: u32,
    /// Whether the client does not need the value (HEAD).
    is_bare: bool,
    keeps_alive: bool,
    part: LinePart,
    /// The generated header section, until the caller takes it.
    written: Vec<u8>,
    is_missing: bool,
    /// Text for the log.
    note: Option<&'static str>,
}

/// Element of the response that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePart {
    /// The first line.
    Line,
    /// The value, with this many bytes remaining.
    Value(u64),
    /// [`END`], with this many bytes received.
    Trailer(usize),
    /// The end was reported.
    Over,
}

impl Decoder {
    pub(super) fn new(key: &[u8], gzip_flag: u64, method: Method, limits: Limits) -> Self {
        Self {
            key: key.to_vec(),
            gzip_flag,
            head_max: limits.head_max,
            is_bare: method == Method::Head,
            keeps_alive: false,
            part: LinePart::Line,
            written: Vec::new(),
            is_missing: false,
            note: None,
        }
    }

    pub(super) fn head(
        &mut self,
        head: &mut ParsedResponse,
        input: &[u8],
    ) -> Result<HeadEvent, ResponseError> {
        let most = &input[..input.len().min(self.head_max as usize)];
        let Some(line_feed) = memchr::memchr(b'\n', most) else {
            return match most.len() < self.head_max as usize {
                true => Ok(HeadEvent::More),
                false => Err(ResponseError::HeadTooLong),
            };
        };
        let line = input[..line_feed].strip_suffix(b"\r").ok_or(ResponseError::MemcachedResponse)?;
        let length = match line {
            NOT_FOUND => None,
            line => Some(self.value(line.strip_prefix(VALUE).ok_or(ResponseError::MemcachedResponse)?)?),
        };
        (self.written, *head) = match length {
            None => section(b"404 Not Found", 0, false),
            Some((length, is_gzip)) => section(b"200 OK", length, is_gzip),
        }?;
        self.is_missing = length.is_none();
        self.part = match length {
            Some((0, _)) => LinePart::Trailer(0),
            Some((length, _)) => LinePart::Value(length),
            None => LinePart::Trailer(END.len()),
        };
        Ok(HeadEvent::Written(line_feed as u32 + 1))
    }

    /// Parses a value line after its first word. Returns the length and whether the value is compressed.
    fn value(&self, rest: &[u8]) -> Result<(u64, bool), ResponseError> {
        let rest = rest.strip_prefix(&*self.key).ok_or(ResponseError::MemcachedKey)?;
        let rest = rest.strip_prefix(b" ").ok_or(ResponseError::MemcachedResponse)?;
        let space = memchr::memchr(b' ', rest).ok_or(ResponseError::MemcachedResponse)?;
        let (flags, length) = (&rest[..space], &rest[space + 1..]);
        if flags.contains(&0) {
            return Err(ResponseError::MemcachedResponse);
        }
        // nginx parses the flags only if it needs them.
        let is_gzip = match self.gzip_flag {
            0 => false,
            flag => parse_decimal(flags).ok_or(ResponseError::MemcachedFlags)? & flag != 0,
        };
        Ok((parse_decimal(length).ok_or(ResponseError::MemcachedLength)?, is_gzip))
    }

    pub(super) fn take_written(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.written)
    }

    pub(super) fn missing_key(&self) -> Option<&[u8]> {
        self.is_missing.then_some(&*self.key)
    }

    pub(super) fn body(&mut self, input: &[u8]) -> Result<BodyStep, InvalidBody> {
        if self.is_bare && matches!(self.part, LinePart::Value(_) | LinePart::Trailer(_)) {
            // Without this check the bytes of the value would be parsed as the next response.
            self.keeps_alive = is_complete(self.part, input);
            return Ok(self.ended(input.len()));
        }
        match self.part {
            LinePart::Value(left) if !input.is_empty() => {
                let len = input.len().min(left.min(usize::MAX as u64) as usize);
                self.part = match left - len as u64 {
                    0 => LinePart::Trailer(0),
                    left => LinePart::Value(left),
                };
                Ok(BodyStep { consumed: len, event: BodyEvent::Data { start: 0, end: len } })
            }
            LinePart::Trailer(seen) => {
                let expected = &END[seen..];
                let len = expected.len().min(input.len());
                if input[..len] != expected[..len] || input.len() > len && len > 0 {
                    self.note = Some("memcached sent invalid trailer");
                    return Ok(self.ended(input.len()));
                }
                if len < expected.len() {
                    self.part = LinePart::Trailer(seen + len);
                    return Ok(BodyStep { consumed: len, event: BodyEvent::More });
                }
                self.keeps_alive = true;
                Ok(self.ended(len))
            }
            LinePart::Line | LinePart::Value(_) | LinePart::Over => {
                Ok(BodyStep { consumed: input.len(), event: BodyEvent::More })
            }
        }
    }

    fn ended(&mut self, consumed: usize) -> BodyStep {
        self.part = LinePart::Over;
        BodyStep { consumed, event: BodyEvent::End }
    }

    pub(super) fn ends_within(&self, input: &[u8]) -> bool {
        match self.part {
            _ if self.is_bare => true,
            LinePart::Value(left) => (input.len() as u64).checked_sub(left) >= Some(END.len() as u64),
            LinePart::Trailer(seen) => input.len() >= END.len() - seen,
            LinePart::Line | LinePart::Over => false,
        }
    }

    pub(super) fn remaining(&self) -> Option<u64> {
        match self.part {
            LinePart::Line => None,
            _ if self.is_bare => Some(0),
            LinePart::Value(left) => Some(left),
            LinePart::Trailer(_) | LinePart::Over => Some(0),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.part == LinePart::Over
    }

    pub(super) fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    pub(super) fn take_note(&mut self) -> Option<&'static str> {
        self.note.take()
    }
}

/// Whether `input` is exactly the remaining part of the response.
fn is_complete(part: LinePart, input: &[u8]) -> bool {
    match part {
        LinePart::Value(left) => {
            let value = usize::try_from(left).ok().and_then(|left| input.split_at_checked(left));
            value.is_some_and(|(_, trailer)| trailer == END)
        }
        LinePart::Trailer(seen) => *input == END[seen..],
        LinePart::Line | LinePart::Over => false,
    }
}

/// Writes the HTTP header section for a response.
fn section(
    status_text: &[u8],
    length: u64,
    is_gzip: bool,
) -> Result<(Vec<u8>, ParsedResponse), ResponseError> {
    let status = if status_text.starts_with(b"2") { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut writer = HeadWriter::new(status, status_text, 96)?;
    writer.push(&FieldLine::new(b"Content-Length", length.to_string().as_bytes()))?;
    if is_gzip {
        writer.push(&FieldLine::new(b"Content-Encoding", b"gzip"))?;
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(gzip_flag: u64, method: Method) -> Decoder {
        Decoder::new(b"k%20", gzip_flag, method, Limits { head_max: 64, ..Limits::default() })
    }

    #[test]
    fn keys_are_escaped_as_in_nginx() {
        for (key, line) in [
            (&b"/a/b?c=d&e"[..], "get /a/b?c=d&e\r\n"),
            (b"a b", "get a%20b\r\n"),
            (b"100%", "get 100%25\r\n"),
            (b"\0\r\n\x1f!", "get %00%0D%0A%1F!\r\n"),
            (b"\x7f\xc3\xa4", "get \x7f\u{e4}\r\n"),
        ] {
            let encoded = get(key, 0);
            assert_eq!(encoded.head(), line.as_bytes(), "{key:?}");
            assert_eq!(super::key(encoded.head()), escaped(key));
        }
    }

    /// `gzip_flag`; a line; its status, length, and whether the value is compressed.
    type Line<'t> = (u64, &'t str, Result<(u16, u64, bool), ResponseError>);

    #[test]
    fn first_response_lines_become_header_sections() {
        let cases: &[Line<'_>] = &[
            (0, "VALUE k%20 0 5\r\n", Ok((200, 5, false))),
            (2, "VALUE k%20 0 5\r\n", Ok((200, 5, false))),
            (2, "VALUE k%20 3 5\r\n", Ok((200, 5, true))),
            (0, "VALUE k%20 abc 5\r\n", Ok((200, 5, false))),
            (0, "VALUE k%20  5\r\n", Ok((200, 5, false))),
            (2, "VALUE k%20  5\r\n", Err(ResponseError::MemcachedFlags)),
            (2, "VALUE k%20 x 5\r\n", Err(ResponseError::MemcachedFlags)),
            (2, "VALUE k%20 99999999999999999999 5\r\n", Err(ResponseError::MemcachedFlags)),
            (0, "VALUE k%20 0 5 17\r\n", Err(ResponseError::MemcachedLength)),
            (0, "VALUE k%20 0 -5\r\n", Err(ResponseError::MemcachedLength)),
            (0, "VALUE k%20 0 \r\n", Err(ResponseError::MemcachedLength)),
            (0, "VALUE k%20 0 99999999999999999999\r\n", Err(ResponseError::MemcachedLength)),
            (0, "VALUE k%20 5\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "VALUE k%20\0\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "VALUE k%20 \0 5\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "VALUE k%20more 0 5\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "VALUE other 0 5\r\n", Err(ResponseError::MemcachedKey)),
            (0, "VALUE k%20 0 5\n", Err(ResponseError::MemcachedResponse)),
            (0, "END\r\n", Ok((404, 0, false))),
            (0, "END \r\n", Err(ResponseError::MemcachedResponse)),
            (0, "ERROR\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "\r\n", Err(ResponseError::MemcachedResponse)),
            (0, "\n", Err(ResponseError::MemcachedResponse)),
        ];
        for (gzip_flag, line, expected) in cases {
            let mut decoder = decoder(*gzip_flag, Method::Get);
            let mut head = ParsedResponse::new();
            for len in 0..line.len() {
                assert_eq!(decoder.head(&mut head, &line.as_bytes()[..len]), Ok(HeadEvent::More), "{line:?}");
            }
            let found = decoder.head(&mut head, line.as_bytes()).map(|event| {
                assert_eq!(event, HeadEvent::Written(line.len() as u32), "{line:?}");
                let raw = decoder.take_written();
                let is_gzip = head.named(&raw, b"content-encoding").next() == Some(b"gzip");
                (head.status().code(), head.content_length().unwrap_or(u64::MAX), is_gzip)
            });
            assert_eq!(found, *expected, "{line:?}");
        }
        let mut long = decoder(0, Method::Get);
        assert_eq!(long.head(&mut ParsedResponse::new(), &[b'x'; 63]), Ok(HeadEvent::More));
        assert_eq!(long.head(&mut ParsedResponse::new(), &[b'x'; 64]), Err(ResponseError::HeadTooLong));
    }

    /// The line, the following bytes, the body in them, and the end as [`decoded`] returns it.
    type Row<'t> = (&'t str, &'t str, &'t str, Option<(bool, bool)>);

    /// Returns the body, whether the connection is reusable, and whether the trailer is invalid; the last two are `None` before the
    /// end.
    fn decoded(method: Method, line: &str, rest: &[u8], piece: usize) -> (Vec<u8>, Option<(bool, bool)>) {
        let mut decoder = decoder(0, method);
        decoder.head(&mut ParsedResponse::new(), line.as_bytes()).expect("a good line");
        let (mut body, mut at) = (Vec::new(), 0);
        loop {
            let end = (at + piece).min(rest.len());
            let claim = decoder.ends_within(&rest[at..end]);
            let step = decoder.body(&rest[at..end]).expect("no body is refused");
            match step.event {
                BodyEvent::Data { start, end } => body.extend_from_slice(&rest[at + start..at + end]),
                BodyEvent::More if end == rest.len() && at + step.consumed == end => {
                    assert!(!claim, "ends_within returned true for an incomplete response");
                    return (body, None);
                }
                BodyEvent::More => {}
                BodyEvent::End => {
                    assert!(decoder.is_over());
                    return (body, Some((decoder.keeps_alive(), decoder.take_note().is_some())));
                }
            }
            at += step.consumed;
        }
    }

    #[test]
    fn values_end_at_their_length_in_pieces_of_any_size() {
        let (five, none, missing) = ("VALUE k%20 0 5\r\n", "VALUE k%20 0 0\r\n", "END\r\n");
        let cases: &[Row<'_>] = &[
            (five, "hello\r\nEND\r\n", "hello", Some((true, false))),
            (five, "\r\nEND\r\nEND\r\n", "\r\nEND", Some((true, false))),
            (five, "helloXX", "hello", Some((false, true))),
            (five, "hello\r\nENX", "hello", Some((false, true))),
            (five, "hello\r\nEND", "hello", None),
            (five, "hel", "hel", None),
            (none, "\r\nEND\r\n", "", Some((true, false))),
            (none, "END\r\n", "", Some((false, true))),
            (missing, "", "", Some((true, false))),
        ];
        for (line, rest, body, end) in cases {
            for piece in 1..=rest.len().max(1) {
                let found = decoded(Method::Get, line, rest.as_bytes(), piece);
                assert_eq!(found, (body.as_bytes().to_vec(), *end), "{rest:?} in pieces of {piece}");
            }
        }
        // Excess bytes in the same piece count as a wrong trailer, as in nginx.
        let more = decoded(Method::Get, five, b"hello\r\nEND\r\nVALUE", 100);
        assert_eq!(more, (b"hello".to_vec(), Some((false, true))));
    }

    #[test]
    fn the_value_for_a_head_request_is_discarded() {
        let line = "VALUE k%20 0 5\r\n";
        for (rest, keeps_alive) in [("hello\r\nEND\r\n", true), ("hello\r\nEND", false), ("", false)] {
            let (body, end) = decoded(Method::Head, line, rest.as_bytes(), 100);
            assert_eq!((body, end), (Vec::new(), Some((keeps_alive, false))), "{rest:?}");
        }
    }
}
