//! Strict parser of one HTTP/1.x response, which shares no code with the server.
//!
//! [`Head`] is the status line and the fields; [`BodyLength`] is how RFC 9112 section 6.3 delimits the body;
//! [`Response`] is both with the body in memory. The parser accepts only forms that the project promises to send: CRLF
//! line ends, one space in the status line, no control characters, valid chunk framing. Anything else is a [`Fault`],
//! because a lenient test client would hide a broken server.

use std::fmt;
use std::io::{self, BufRead, Read};

/// Maximum length of a line in bytes: more than any response of a test has.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// Maximum number of header fields in a response.
const FIELDS_MAX: usize = 200;

/// The status line and the header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// `1` for HTTP/1.1, `0` for HTTP/1.0.
    pub minor_version: u8,
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// Names and values in the received order; names as sent, values without surrounding white space.
    pub fields: Vec<(String, String)>,
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code, also in `head`.
    pub status: u16,
    /// Status line and fields.
    pub head: Head,
    /// The body without chunk framing.
    pub body: Vec<u8>,
    /// How the body was delimited.
    pub length: BodyLength,
}

/// How the end of the body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body: HEAD, 1xx, 204, 304.
    None,
    /// A number of bytes.
    Bytes(u64),
    /// By chunked coding.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// Error in the received bytes.
#[derive(Debug)]
pub enum Fault {
    /// The connection failed or the deadline passed; the bytes were valid so far.
    Io(io::Error),
    /// The connection ended within a part of the response.
    Ended {
        /// The part that was being read.
        at: &'static str,
    },
    /// The bytes violate the protocol.
    Malformed {
        /// The violated rule.
        rule: &'static str,
        /// The offending line or value.
        line: Vec<u8>,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(error) => write!(f, "{error}"),
            Fault::Ended { at } => write!(f, "connection ended in {at}"),
            Fault::Malformed { rule, line } => write!(f, "{rule}: {:?}", String::from_utf8_lossy(line)),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl Head {
    /// Returns the value of the first field with this name, compared without case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the values of all fields with this name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let matching = self.fields.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name));
        matching.map(|(_, value)| value.as_str())
    }

    /// Returns how the body is delimited; `to_head` if the request was a HEAD.
    pub fn body_length(&self, to_head: bool) -> Result<BodyLength, Fault> {
        let lengths: Vec<&str> = self.all("content-length").collect();
        let codings: Vec<&str> = self.all("transfer-encoding").collect();
        let malformed = |rule, value: &str| Fault::Malformed { rule, line: value.as_bytes().to_vec() };
        if lengths.len() > 1 {
            return Err(malformed("more than one Content-Length", &lengths.join(", ")));
        }
        if let (Some(length), Some(_)) = (lengths.first(), codings.first()) {
            return Err(malformed("Content-Length with Transfer-Encoding", length));
        }
        if to_head || self.status < 200 || matches!(self.status, 204 | 304) {
            return Ok(BodyLength::None);
        }
        match (codings.as_slice(), lengths.first()) {
            ([], None) => Ok(BodyLength::Close),
            ([], Some(length)) => match decimal(length) {
                Some(length) => Ok(BodyLength::Bytes(length)),
                None => Err(malformed("Content-Length is no number", length)),
            },
            (["chunked"], _) => Ok(BodyLength::Chunked),
            (codings, _) => Err(malformed("Transfer-Encoding other than chunked", &codings.join(", "))),
        }
    }
}

impl Response {
    /// Returns the value of the first field with this name, compared without case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }

    /// Returns the body as text; for error pages and `return` bodies.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads a status line and the fields up to the empty line.
pub fn read_head(from: &mut dyn BufRead) -> Result<Head, Fault> {
    let line = read_line(from, "the status line")?;
    let malformed = |rule| Fault::Malformed { rule, line: line.clone() };
    let text = std::str::from_utf8(&line).map_err(|_| malformed("status line is not text"))?;
    let minor_version = match text.get(..9) {
        Some("HTTP/1.1 ") => 1,
        Some("HTTP/1.0 ") => 0,
        _ => return Err(malformed("status line does not start with a version")),
    };
    let status = text.get(9..12).filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()));
    let status = status.and_then(|code| code.parse().ok()).ok_or_else(|| malformed("no status code"))?;
    let reason = text[12..].strip_prefix(' ').ok_or_else(|| malformed("no space after the status code"))?;
    let reason = reason.to_owned();
    let mut fields = Vec::new();
    loop {
        let line = read_line(from, "the header fields")?;
        if line.is_empty() {
            return Ok(Head { minor_version, status, reason, fields });
        }
        fields.push(parse_field(&line)?);
        if fields.len() > FIELDS_MAX {
            return Err(Fault::Malformed { rule: "too many header fields", line });
        }
    }
}

/// Reads a response with its body in memory; `to_head` if the request was a HEAD.
pub fn read_response(from: &mut dyn BufRead, to_head: bool) -> Result<Response, Fault> {
    let head = read_head(from)?;
    let length = head.body_length(to_head)?;
    let mut body = Vec::new();
    BodyReader::new(from, length).read_all(&mut body)?;
    Ok(Response { status: head.status, head, body, length })
}

/// Reader that removes the framing of a body.
///
/// As a [`Read`] it reports a fault as an `io::Error` of kind `InvalidData` or `UnexpectedEof`.
pub struct BodyReader<'a> {
    from: &'a mut dyn BufRead,
    state: BodyState,
}

/// State of a [`BodyReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    /// This many bytes remain of a body with a length.
    Counted(u64),
    /// A chunk-size line comes next.
    ChunkSize,
    /// This many bytes remain of the current chunk.
    Chunk(u64),
    /// Everything up to the end of the connection belongs to the body.
    UntilClose,
    /// The body has ended.
    Ended,
}

impl<'a> BodyReader<'a> {
    /// Creates a reader at the first byte after the head.
    pub fn new(from: &'a mut dyn BufRead, length: BodyLength) -> BodyReader<'a> {
        let state = match length {
            BodyLength::None | BodyLength::Bytes(0) => BodyState::Ended,
            BodyLength::Bytes(count) => BodyState::Counted(count),
            BodyLength::Chunked => BodyState::ChunkSize,
            BodyLength::Close => BodyState::UntilClose,
        };
        BodyReader { from, state }
    }

    fn read_all(&mut self, body: &mut Vec<u8>) -> Result<(), Fault> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.read_some(&mut buffer)? {
                0 => return Ok(()),
                count => body.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if self.state == BodyState::ChunkSize {
            self.state = self.next_chunk()?;
        }
        let limit = match self.state {
            BodyState::Ended => return Ok(0),
            BodyState::Counted(left) | BodyState::Chunk(left) => left.min(out.len() as u64) as usize,
            BodyState::UntilClose => out.len(),
            BodyState::ChunkSize => panic!("next_chunk leaves this state"),
        };
        let count = self.from.read(&mut out[..limit])?;
        self.state = match (self.state, count) {
            (BodyState::UntilClose, 0) => BodyState::Ended,
            (BodyState::UntilClose, _) => BodyState::UntilClose,
            (_, 0) => return Err(Fault::Ended { at: "the body" }),
            (BodyState::Counted(left), count) if left == count as u64 => BodyState::Ended,
            (BodyState::Counted(left), count) => BodyState::Counted(left - count as u64),
            (BodyState::Chunk(left), count) if left == count as u64 => self.end_of_chunk()?,
            (BodyState::Chunk(left), count) => BodyState::Chunk(left - count as u64),
            (state, _) => panic!("nothing is read in state {state:?}"),
        };
        Ok(count)
    }

    fn next_chunk(&mut self) -> Result<BodyState, Fault> {
        let line = read_line(self.from, "a chunk size")?;
        let size = std::str::from_utf8(&line).ok().and_then(chunk_size);
        let Some(size) = size else {
            return Err(Fault::Malformed { rule: "chunk size is no hexadecimal number", line });
        };
        if size > 0 {
            return Ok(BodyState::Chunk(size));
        }
        // The trailer section: fields, then an empty line.
        loop {
            let line = read_line(self.from, "the trailer section")?;
            if line.is_empty() {
                return Ok(BodyState::Ended);
            }
            parse_field(&line)?;
        }
    }

    fn end_of_chunk(&mut self) -> Result<BodyState, Fault> {
        let line = read_line(self.from, "the end of a chunk")?;
        if !line.is_empty() {
            return Err(Fault::Malformed { rule: "no CRLF after a chunk", line });
        }
        Ok(BodyState::ChunkSize)
    }
}

impl Read for BodyReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_some(out).map_err(|fault| match fault {
            Fault::Io(error) => error,
            ended @ Fault::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, ended),
            malformed => io::Error::new(io::ErrorKind::InvalidData, malformed),
        })
    }
}

/// Reads one line that ends in CRLF; returns it without the CRLF.
fn read_line(from: &mut dyn BufRead, at: &'static str) -> Result<Vec<u8>, Fault> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") {
        let cut = line.len() as u64 == LINE_BYTES_MAX;
        return Err(if cut { Fault::Malformed { rule: "line too long", line } } else { Fault::Ended { at } });
    }
    line.pop();
    if line.pop() != Some(b'\r') {
        return Err(Fault::Malformed { rule: "line does not end in CRLF", line });
    }
    if line.iter().any(|&byte| byte < b' ' && byte != b'\t') {
        return Err(Fault::Malformed { rule: "control character in a line", line });
    }
    Ok(line)
}

fn parse_field(line: &[u8]) -> Result<(String, String), Fault> {
    let malformed = |rule| Fault::Malformed { rule, line: line.to_vec() };
    let colon =
        line.iter().position(|&byte| byte == b':').ok_or_else(|| malformed("field without a colon"))?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if name.is_empty() || !name.iter().all(token) {
        return Err(malformed("field name is no token"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches([' ', '\t']).to_owned();
    Ok((text(name), text(value)))
}

/// Parses decimal digits only: `parse` alone would accept a plus sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

pub(crate) fn chunk_size(text: &str) -> Option<u64> {
    let digits = text.split(';').next().unwrap_or("");
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> Result<Response, Fault> {
        read_response(&mut bytes, false)
    }

    #[test]
    fn bodies_end_as_framed() {
        let counted = read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef").expect("counted");
        assert_eq!((counted.body.as_slice(), counted.length), (&b"abc"[..], BodyLength::Bytes(3)));
        let wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\nrest";
        let chunked = read(wire).expect("chunked");
        assert_eq!(chunked.body, b"abc0123456789");
        let close = read(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nall of it").expect("until close");
        assert_eq!((close.text().as_str(), close.length), ("all of it", BodyLength::Close));
        assert_eq!((close.head.minor_version, close.head.reason.as_str()), (0, "Not Found"));
        let none = read(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n").expect("no body");
        assert_eq!((none.body.len(), none.length), (0, BodyLength::None));
    }

    #[test]
    fn bytes_after_a_response_remain_unread() {
        let mut wire = &b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..];
        assert_eq!(read_response(&mut wire, false).expect("first").status, 204);
        assert_eq!(read_response(&mut wire, false).expect("second").status, 200);
        assert!(wire.is_empty());
    }

    #[test]
    fn broken_framing_is_a_fault() {
        let rule = |wire: &[u8]| match read(wire) {
            Err(Fault::Malformed { rule, .. }) => rule,
            other => panic!("{:?}: {other:?}", String::from_utf8_lossy(wire)),
        };
        assert_eq!(rule(b"HTTP/1.1 200 OK\n\r\n"), "line does not end in CRLF");
        assert_eq!(rule(b"HTTP/2 200 OK\r\n\r\n"), "status line does not start with a version");
        assert_eq!(rule(b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n"), "field name is no token");
        assert_eq!(rule(b"HTTP/1.1 200 OK\r\nA\r\n\r\n"), "field without a colon");
        assert_eq!(rule(b"HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n"), "control character in a line");
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
        let with = |rest: &[u8]| [&head[..], rest].concat();
        assert_eq!(rule(&with(b"Content-Length: 1\r\n\r\n")), "Content-Length with Transfer-Encoding");
        assert_eq!(rule(&with(b"\r\n-1\r\n")), "chunk size is no hexadecimal number");
        assert_eq!(rule(&with(b"\r\n1\r\nab\r\n")), "no CRLF after a chunk");
        assert_eq!(rule(b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n"), "Content-Length is no number");
    }

    #[test]
    fn a_truncated_response_reports_where() {
        let at = |wire: &[u8]| match read(wire) {
            Err(Fault::Ended { at }) => at,
            other => panic!("{:?}: {other:?}", String::from_utf8_lossy(wire)),
        };
        assert_eq!(at(b"HTTP/1.1 20"), "the status line");
        assert_eq!(at(b"HTTP/1.1 200 OK\r\nServ"), "the header fields");
        assert_eq!(at(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), "the body");
    }
}
