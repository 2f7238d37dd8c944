//! Requests of the protocol `hq-interop`: a request line of HTTP/0.9 on each stream of QUIC. Implementations of QUIC use it to test each
//! other without HTTP/3; `http3_hq` enables it.
//!
//! Main type: [`RequestLine`]. The response is a body alone.

use crate::fields::Version;
use crate::request::{Composer, Head, ParseError, Policy};

/// A request line that arrives in pieces.
#[derive(Debug, Default)]
pub struct RequestLine {
    line: Vec<u8>,
    is_complete: bool,
}

impl RequestLine {
    /// Adds received bytes; returns whether the line is complete. Bytes after it are ignored.
    ///
    /// # Errors
    /// The line is longer than `policy` permits.
    pub fn receive(&mut self, input: &[u8], policy: &Policy) -> Result<bool, ParseError> {
        if self.is_complete {
            return Ok(true);
        }
        let end = memchr::memchr(b'\n', input);
        let bytes = &input[..end.unwrap_or(input.len())];
        if self.line.len() + bytes.len() > policy.request_line_max as usize {
            return Err(ParseError::RequestLineTooLong);
        }
        self.line.extend_from_slice(bytes);
        self.is_complete = end.is_some();
        Ok(self.is_complete)
    }

    /// Fills the head when the line is complete or the stream has ended. `head` must be new or cleared, `buf` empty.
    ///
    /// # Errors
    /// The line is not a GET request for a path.
    pub fn read(&self, head: &mut Head, buf: &mut Vec<u8>, policy: &Policy) -> Result<(), ParseError> {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let target = line.strip_prefix(b"GET ").ok_or(ParseError::InvalidMethod)?;
        if target.first() != Some(&b'/') {
            return Err(ParseError::InvalidTarget);
        }
        Composer::begin(head, buf, policy, Version::Http10, (b"GET", target))?.finish(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::BodyLength;

    fn read(pieces: &[&str]) -> Result<Vec<u8>, ParseError> {
        let policy = Policy { request_line_max: 20, ..Policy::default() };
        let (mut line, mut head, mut buf) = (RequestLine::default(), Head::new(), Vec::new());
        for piece in pieces {
            line.receive(piece.as_bytes(), &policy)?;
        }
        line.read(&mut head, &mut buf, &policy)?;
        assert_eq!(head.body(), BodyLength::None);
        Ok(head.request_uri(&buf).to_vec())
    }

    #[test]
    fn a_request_line_ends_with_a_line_feed_or_the_stream() {
        for pieces in [&["GET /a?b\r\n"][..], &["GET /a?b\n"], &["GET /a?b"], &["GE", "T /a", "?b\r", "\nx"]]
        {
            assert_eq!(read(pieces).as_deref(), Ok(&b"/a?b"[..]), "{pieces:?}");
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for (line, wanted) in [
            ("", ParseError::InvalidMethod),
            ("POST /", ParseError::InvalidMethod),
            ("GET a", ParseError::InvalidTarget),
            ("GET / HTTP/1.1\r\n", ParseError::InvalidTarget),
            ("GET /a\rb\n", ParseError::InvalidTarget),
            ("GET /xxxxxxxxxxxxxxxxxxxxxxxxxxxx", ParseError::RequestLineTooLong),
        ] {
            assert_eq!(read(&[line]), Err(wanted), "{line}");
        }
    }
}
