//! Heads for storage, and heads that decoders generate for HTTP/2 and memcached. [`HeadWriter`] writes a head line by line
//! together with its parsed form; [`parse_written`] parses a stored head.

use super::{ParsedResponse, ResponseError, ResponsePhase, parser};
use crate::fields::{Field, FieldLine, HeaderId};
use crate::{Span, StatusCode};

/// The text before the status.
const VERSION: &[u8] = b"HTTP/1.1 ";

/// The separator between a name and its value.
const SEPARATOR: &[u8] = b": ";

/// Writer of a head. It receives names and values separately, so its [`ParsedResponse`] is known without parsing.
#[derive(Debug)]
pub struct HeadWriter {
    bytes: Vec<u8>,
    head: ParsedResponse,
}

impl HeadWriter {
    /// Creates a head that begins with a status line. `status_text` is the status with its reason ([`ParsedResponse::status_text`]);
    /// `capacity` is the expected size in bytes.
    ///
    /// # Errors
    /// `status_text` is empty: a response of HTTP/0.9 has no head that could be stored.
    pub fn new(status: StatusCode, status_text: &[u8], capacity: usize) -> Result<Self, ResponseError> {
        if status_text.is_empty() {
            return Err(ResponseError::InvalidStatusLine);
        }
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(VERSION);
        bytes.extend_from_slice(status_text);
        let head = ParsedResponse {
            status,
            status_text: Span::new(VERSION.len(), bytes.len()),
            reason: parser::reason(VERSION.len(), status_text),
            ..ParsedResponse::new()
        };
        bytes.extend_from_slice(b"\r\n");
        Ok(HeadWriter { bytes, head })
    }

    /// Writes a line. A repeated field of which only the first counts is written, but not added to the parsed form.
    ///
    /// # Errors
    /// A repeated field that must be unique, or too many lines.
    pub fn push(&mut self, line: &FieldLine<'_>) -> Result<(), ResponseError> {
        let name = self.append(line.name);
        self.bytes.extend_from_slice(SEPARATOR);
        let value = self.append(line.value);
        self.bytes.extend_from_slice(b"\r\n");
        parser::add_field(&mut self.head, Field { name, value, id: line.id })
    }

    /// Returns the bytes, including the final empty line, and their parsed form.
    ///
    /// # Errors
    /// Contradictory fields for the length of the body, as in the parser.
    pub fn finish(mut self) -> Result<(Vec<u8>, ParsedResponse), ResponseError> {
        self.bytes.extend_from_slice(b"\r\n");
        self.head.end_at(&self.bytes)?;
        Ok((self.bytes, self.head))
    }

    fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }
}

/// Parses the output of a [`HeadWriter`]. Only finds the bounds of names and values: the input must have a verified checksum.
/// Returns `None` if the bytes are not a head; bytes after the head are ignored. The result may be stored for long, so it has no
/// spare memory.
#[must_use]
pub fn parse_written(bytes: &[u8]) -> Option<ParsedResponse> {
    if !bytes.starts_with(VERSION) {
        return None;
    }
    let mut head = ParsedResponse::new();
    let mut line_feed = memchr::memchr(b'\n', bytes)?;
    parser::status_line(&mut head, bytes, 0, line_feed).ok()?;
    loop {
        let start = line_feed + 1;
        line_feed = start + memchr::memchr(b'\n', &bytes[start..])?;
        let line = bytes[start..line_feed].strip_suffix(b"\r")?;
        if line.is_empty() {
            head.end_at(&bytes[..=line_feed]).ok()?;
            head.fields.lines.shrink_to_fit();
            return Some(head);
        }
        let name_len = memchr::memchr(b':', line)?;
        let value_start = name_len + SEPARATOR.len();
        if value_start > line.len() {
            return None;
        }
        let name = Span::new(start, start + name_len);
        let value = Span::new(start + value_start, start + line.len());
        let id = HeaderId::of(&line[..name_len]);
        parser::add_field(&mut head, Field { name, value, id }).ok()?;
    }
}

impl ParsedResponse {
    /// Marks the head as complete, consisting of all of `bytes`.
    fn end_at(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        parser::finish(self, bytes)?;
        self.phase = ResponsePhase::Done;
        self.line_start = bytes.len() as u32;
        self.scanned = self.line_start;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::parse::{Limits, ResponseProgress, parse};

    fn parsed(bytes: &[u8]) -> ParsedResponse {
        let mut head = ParsedResponse::new();
        let limits = Limits { head_max: 1 << 16, fields_max: 1000 };
        let progress = parse(&mut head, bytes, &limits);
        assert_eq!(progress, Ok(ResponseProgress::Complete { head_len: bytes.len() as u32 }));
        head
    }

    #[test]
    fn written_heads_contain_the_parsed_fields() {
        let heads: [&[u8]; 5] = [
            b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 12\r\nEmpty:\r\nX: 1\r\nX: 2\r\n\r\n",
            b"HTTP/1.1 200\r\nnocolon\r\n\r\n",
            b"HTTP/1.0 403.1 Forbidden\nETag: \"a\"\nEtag: \"b\"\n\n",
            b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 301 Moved Permanently\r\nunder_score: \t a b \t\r\nLocation: /\r\n\r\n",
        ];
        for raw in heads {
            let head = parsed(raw);
            let text = head.status_text().of(raw);
            let mut writer = HeadWriter::new(head.status(), text, 0).unwrap();
            head.lines(raw).for_each(|line| writer.push(&line).unwrap());
            let (bytes, written) = writer.finish().unwrap();
            assert_eq!(format!("{written:?}"), format!("{:?}", parsed(&bytes)), "{}", bytes.escape_ascii());
            let read = parse_written(&[&bytes[..], b"body\n\r\n"].concat());
            assert_eq!(format!("{:?}", read.unwrap()), format!("{written:?}"));
            let lines = |head: &ParsedResponse, raw: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
                head.lines(raw).map(|line| (line.name.to_vec(), line.value.to_vec())).collect()
            };
            assert_eq!(lines(&written, &bytes), lines(&head, raw));
        }
    }

    #[test]
    fn only_heads_of_the_writer_are_accepted() {
        let whole = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n";
        assert!(parse_written(whole).is_some());
        for len in 0..whole.len() {
            assert!(parse_written(&whole[..len]).is_none(), "{len} bytes");
        }
        let others: [&[u8]; 6] = [
            b"HTTP/1.1 200 OK\nA: b\n\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA:\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        ];
        others.iter().for_each(|other| assert!(parse_written(other).is_none(), "{}", other.escape_ascii()));
    }

    #[test]
    fn a_head_needs_a_status_line() {
        assert!(HeadWriter::new(StatusCode::OK, b"", 0).is_err());
    }

    #[test]
    fn contradictory_lengths_are_refused() {
        let push = |lines: &[(&[u8], &[u8])]| {
            let mut writer = HeadWriter::new(StatusCode::OK, b"200 OK", 0).unwrap();
            let pushed: Result<(), ResponseError> =
                lines.iter().try_for_each(|(name, value)| writer.push(&FieldLine::new(name, value)));
            pushed.and_then(|()| writer.finish()).map(drop)
        };
        assert_eq!(push(&[(b"Content-Length", b"1")]), Ok(()));
        assert!(push(&[(b"Content-Length", b"1"), (b"Content-Length", b"1")]).is_err());
        assert!(push(&[(b"Content-Length", b"1"), (b"Transfer-Encoding", b"chunked")]).is_err());
    }
}
