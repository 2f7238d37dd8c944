//! Incremental parser of a response, for clients that never block.
//!
//! [`Receiver`] is fed with received bytes and stores the parts that a test needs: header sections, a checksum of the
//! body, its first bytes, and the first difference from the expected bytes. The blocking reader of complete responses
//! is in `response`, whose parser of header sections is used here.

use std::sync::Arc;

use crate::files::Checksum;
use crate::response::{self, BodyLength, Fault, Head};

/// Maximum size of a head, and of a line of chunked framing, in bytes.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// State of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Expects a head, of an interim response or of the final one.
    Head,
    /// Expects this many bytes of a body with a length.
    Counted(u64),
    /// Expects a chunk-size line.
    ChunkSize,
    /// Expects this many bytes of the current chunk.
    Chunk(u64),
    /// Expects the line end after a chunk.
    ChunkEnd,
    /// Expects a line of the trailer section.
    Trailer,
    /// All bytes up to the end of the connection belong to the body.
    UntilClose,
    /// The response is complete.
    Ended,
}

/// The checks and the stored parts of a body.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyChecks {
    /// The expected bytes.
    pub(crate) expected: Option<Arc<[u8]>>,
    /// Number of its first bytes to store.
    pub(crate) stored_max: usize,
    /// Whether the request was a HEAD, so that there is no body.
    pub(crate) to_head: bool,
}

/// A response being received.
#[derive(Debug)]
pub(crate) struct Receiver {
    state: State,
    /// Bytes of an incomplete head or line.
    pending: Vec<u8>,
    checks: BodyChecks,
    sum: Checksum,
    pub(crate) interim: Vec<Head>,
    pub(crate) head: Option<Head>,
    pub(crate) kept: Vec<u8>,
    pub(crate) body_bytes: u64,
    pub(crate) wrong_at: Option<u64>,
}

impl Receiver {
    pub(crate) fn new(checks: BodyChecks) -> Receiver {
        Receiver {
            state: State::Head,
            pending: Vec::new(),
            checks,
            sum: Checksum::default(),
            interim: Vec::new(),
            head: None,
            kept: Vec::new(),
            body_bytes: 0,
            wrong_at: None,
        }
    }

    /// Whether the response is complete.
    pub(crate) fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(crate) fn checksum(&self) -> u64 {
        self.sum.value()
    }

    /// Parses received bytes. Bytes after the end of the response are a fault, because these clients send one request.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let (state, used) = match self.state {
                State::Head => self.feed_head(bytes)?,
                State::ChunkSize | State::ChunkEnd | State::Trailer => self.feed_line(bytes)?,
                State::UntilClose => (State::UntilClose, self.feed_body(bytes)),
                State::Counted(left) => match self.feed_body(&bytes[..bytes.len().min(left as usize)]) {
                    used if used as u64 == left => (State::Ended, used),
                    used => (State::Counted(left - used as u64), used),
                },
                State::Chunk(left) => match self.feed_body(&bytes[..bytes.len().min(left as usize)]) {
                    used if used as u64 == left => (State::ChunkEnd, used),
                    used => (State::Chunk(left - used as u64), used),
                },
                State::Ended => {
                    let line = bytes[..bytes.len().min(100)].to_vec();
                    return Err(Fault::Malformed { rule: "bytes after the response", line });
                }
            };
            if state == State::Ended {
                self.end_body();
            }
            self.state = state;
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Handles the end of the connection.
    pub(crate) fn feed_end(&mut self) -> Result<(), Fault> {
        let at = match self.state {
            State::Ended => return Ok(()),
            State::UntilClose => {
                self.end_body();
                self.state = State::Ended;
                return Ok(());
            }
            State::Head => "the head",
            State::Counted(_) | State::Chunk(_) => "the body",
            State::ChunkSize | State::ChunkEnd => "the chunk framing",
            State::Trailer => "the trailer section",
        };
        Err(Fault::Ended { at })
    }

    fn feed_head(&mut self, bytes: &[u8]) -> Result<(State, usize), Fault> {
        const END: &[u8] = b"\r\n\r\n";
        let before = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let from = before.saturating_sub(END.len() - 1);
        let Some(at) = self.pending[from..].windows(END.len()).position(|window| window == END) else {
            return self.unfinished(State::Head, bytes.len());
        };
        let end = from + at + END.len();
        self.pending.truncate(end);
        let head = response::read_head(&mut &std::mem::take(&mut self.pending)[..])?;
        let used = end - before;
        // 101 is a final response; the bytes after it are not HTTP.
        if head.status < 200 && head.status != 101 {
            self.interim.push(head);
            return Ok((State::Head, used));
        }
        let length = match head.status {
            101 => BodyLength::Close,
            _ => head.body_length(self.checks.to_head)?,
        };
        self.head = Some(head);
        let state = match length {
            BodyLength::None | BodyLength::Bytes(0) => State::Ended,
            BodyLength::Bytes(count) => State::Counted(count),
            BodyLength::Chunked => State::ChunkSize,
            BodyLength::Close => State::UntilClose,
        };
        Ok((state, used))
    }

    fn feed_line(&mut self, bytes: &[u8]) -> Result<(State, usize), Fault> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.pending.extend_from_slice(bytes);
            return self.unfinished(self.state, bytes.len());
        };
        self.pending.extend_from_slice(&bytes[..=end]);
        let line = std::mem::take(&mut self.pending);
        let text = line.strip_suffix(b"\r\n").and_then(|text| std::str::from_utf8(text).ok());
        let malformed = |rule| Fault::Malformed { rule, line: line.clone() };
        let text = text.ok_or_else(|| malformed("line of chunk framing"))?;
        let state = match (self.state, text) {
            (State::ChunkEnd, "") => State::ChunkSize,
            (State::ChunkEnd, _) => return Err(malformed("no CRLF after a chunk")),
            (State::Trailer, "") => State::Ended,
            (State::Trailer, _) => State::Trailer,
            (_, text) => match response::chunk_size(text) {
                Some(0) => State::Trailer,
                Some(size) => State::Chunk(size),
                None => return Err(malformed("chunk size is no hexadecimal number")),
            },
        };
        Ok((state, end + 1))
    }

    fn unfinished(&mut self, state: State, used: usize) -> Result<(State, usize), Fault> {
        match self.pending.len() > HEAD_BYTES_MAX {
            true => Err(Fault::Malformed { rule: "line or head too long", line: Vec::new() }),
            false => Ok((state, used)),
        }
    }

    fn feed_body(&mut self, bytes: &[u8]) -> usize {
        self.sum.add(bytes);
        let room = self.checks.stored_max.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if let (Some(expected), None) = (&self.checks.expected, self.wrong_at) {
            let rest = expected.get(self.body_bytes as usize..).unwrap_or(&[]);
            let same = rest.get(..bytes.len()) == Some(bytes);
            // The bytes are compared one by one only after a difference was found.
            let first = rest.iter().zip(bytes).position(|(expected, found)| expected != found);
            let first = first.unwrap_or(rest.len());
            self.wrong_at = (!same).then_some(self.body_bytes + first as u64);
        }
        self.body_bytes += bytes.len() as u64;
        bytes.len()
    }

    /// Handles the end of the body; a body that ends early is wrong from there on.
    fn end_body(&mut self) {
        let short = self.checks.expected.as_ref().is_some_and(|all| self.body_bytes < all.len() as u64);
        if short && !self.checks.to_head && self.wrong_at.is_none() {
            self.wrong_at = Some(self.body_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wire: &[u8], piece: usize, checks: BodyChecks) -> Result<Receiver, Fault> {
        let mut receiver = Receiver::new(checks);
        for piece in wire.chunks(piece) {
            receiver.feed(piece)?;
        }
        receiver.feed_end()?;
        Ok(receiver)
    }

    #[test]
    fn pieces_of_any_size_give_the_same_result() {
        let counted = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n";
        let close = b"HTTP/1.1 200 OK\r\n\r\nhello";
        for piece in [1, 2, 3, 7, 1000] {
            for wire in [&counted[..], chunked, close] {
                let checks =
                    BodyChecks { expected: Some(b"hello"[..].into()), stored_max: 4, to_head: false };
                let receiver = receive(wire, piece, checks).expect("it is well-formed");
                assert_eq!((receiver.kept.as_slice(), receiver.body_bytes), (&b"hell"[..], 5));
                assert_eq!(receiver.checksum(), Checksum::of(b"hello"));
                assert_eq!(receiver.wrong_at, None);
                assert_eq!(receiver.head.as_ref().map(|head| head.status), Some(200));
            }
        }
        let interim = receive(counted, 5, BodyChecks::default()).expect("it is well-formed").interim;
        assert_eq!(interim.iter().map(|head| head.status).collect::<Vec<_>>(), [103]);
    }

    #[test]
    fn the_first_wrong_byte_is_reported() {
        let wrong_at = |body: &str| {
            let wire = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let checks = BodyChecks { expected: Some(b"hello"[..].into()), ..BodyChecks::default() };
            receive(wire.as_bytes(), 3, checks).expect("it is well-formed").wrong_at
        };
        assert_eq!(wrong_at("hello"), None);
        assert_eq!(wrong_at("hexlo"), Some(2));
        assert_eq!(wrong_at("hel"), Some(3));
        assert_eq!(wrong_at(""), Some(0));
        assert_eq!(wrong_at("hello!"), Some(5));
    }

    #[test]
    fn truncated_or_malformed_responses_are_faults() {
        let fault = |wire: &str| match receive(wire.as_bytes(), 4, BodyChecks::default()) {
            Err(fault) => fault.to_string(),
            Ok(receiver) => panic!("{receiver:?}"),
        };
        assert_eq!(fault("HTTP/1.1 20"), "connection ended in the head");
        assert_eq!(fault("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), "connection ended in the body");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(fault(&format!("{chunked}1\r\na\r\n")), "connection ended in the chunk framing");
        assert!(fault(&format!("{chunked}x\r\n")).starts_with("chunk size is no"));
        assert!(fault(&format!("{chunked}1\r\nab\r\n")).starts_with("no CRLF after"));
        assert!(fault("HTTP/1.1 204 No Content\r\n\r\nx").starts_with("bytes after"));
    }
}
