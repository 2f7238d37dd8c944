//! Decoder for FastCGI responses: header section and body in records, interleaved with messages for the log.
//!
//! ```text
//!   Header --8 bytes--> Content --all of it--> Padding --all of it--> Header
//!                                                 |
//!                                                 +-- of FCGI_END_REQUEST --> Over
//! ```

use std::ops::Range;

use super::record::{END_REQUEST, HEADER_LEN, ID, STDERR, STDOUT, VERSION};
use crate::fields::Method;
use crate::gateway::event::{BodyEvent, BodyStep, HeadEvent, InvalidBody, join};
use crate::response::parse::{Limits, ParsedResponse, ResponseError, ResponseProgress, parse_cgi};

/// Decoder of one FastCGI response; see [`crate::gateway::Decoder`].
#[derive(Clone, Debug)]
pub struct Decoder {
    method: Method,
    limits: Limits,
    part: RecordPart,
    /// Header of the current record; the first `header_len` bytes are received.
    header: [u8; HEADER_LEN],
    header_len: usize,
    /// Number of remaining bytes of the record's content.
    content: usize,
    /// Number of remaining bytes of the record's padding.
    padding: usize,
    /// Whether an empty `FCGI_STDOUT` record was received.
    stdout_closed: bool,
    /// Number of body bytes already unframed, because they arrived with the header section.
    plain: usize,
    /// Remaining bytes of the body, if its length is known.
    length: Option<u64>,
    /// Whether the response has no body regardless of its header section (RFC 9110 section 6.4.1).
    is_bare: bool,
    is_over: bool,
    /// Whether bytes arrived after the end of the response.
    has_excess: bool,
    messages: Vec<u8>,
    /// Number of message bytes received so far, including those already taken.
    messages_len: usize,
    /// Number of record bytes received so far that were not part of the response.
    noise: u64,
}

/// Part of a record that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordPart {
    Header,
    Content,
    Padding,
    Over,
}

/// Result of [`Decoder::step`].
enum Found {
    /// Bytes of the response: this range of the input.
    Data(usize, usize),
    More,
    End,
}

/// Maximum number of message bytes per response that are stored for the log; further bytes are dropped.
const MESSAGES_MAX: usize = 64 << 10;

/// Maximum number of bytes per response that are not response data: messages, and headers of empty records. It stops a server that
/// sends such records endlessly.
const NOISE_MAX: u64 = 64 << 20;

impl Decoder {
    pub(in crate::gateway) fn new(method: Method, limits: Limits) -> Self {
        Self {
            method,
            limits,
            part: RecordPart::Header,
            header: [0; HEADER_LEN],
            header_len: 0,
            content: 0,
            padding: 0,
            stdout_closed: false,
            plain: 0,
            length: None,
            is_bare: false,
            is_over: false,
            has_excess: false,
            messages: Vec::new(),
            messages_len: 0,
            noise: 0,
        }
    }

    pub(in crate::gateway) fn unframe(&mut self, received: &mut [u8]) -> Result<Range<usize>, ResponseError> {
        let (mut kept, mut at) = (0..0, 0);
        loop {
            let (consumed, found) = self.step(&received[at..])?;
            match found {
                Found::Data(start, end) => join(received, &mut kept, at + start..at + end),
                Found::More => return Ok(kept),
                Found::End => {
                    self.has_excess |= at + consumed < received.len();
                    return Ok(kept);
                }
            }
            at += consumed;
        }
    }

    pub(in crate::gateway) fn head(
        &mut self,
        head: &mut ParsedResponse,
        input: &[u8],
    ) -> Result<HeadEvent, ResponseError> {
        match parse_cgi(head, input, &self.limits)? {
            ResponseProgress::Complete { head_len } => {
                let status = head.status().code();
                self.is_bare = self.method == Method::Head || matches!(status, 204 | 304);
                self.length = head.content_length();
                self.plain = input.len() - head_len as usize;
                let is_short = self.length.is_some_and(|length| length > self.plain as u64);
                if self.part == RecordPart::Over && is_short && !self.is_bare {
                    return Err(ResponseError::StdoutClosed);
                }
                Ok(HeadEvent::Head(head_len))
            }
            _ if self.stdout_closed || self.part == RecordPart::Over => Err(ResponseError::StdoutClosed),
            _ => Ok(HeadEvent::More),
        }
    }

    pub(in crate::gateway) fn body(&mut self, input: &[u8]) -> Result<BodyStep, InvalidBody> {
        if self.is_over {
            return Ok(BodyStep { consumed: input.len(), event: BodyEvent::More });
        }
        if self.is_bare {
            // The following bytes are ignored. The connection is reusable if the end was already received.
            self.is_over = true;
            return Ok(BodyStep { consumed: input.len(), event: BodyEvent::End });
        }
        let mut at = 0;
        loop {
            let (consumed, found) = match self.plain {
                0 if self.part == RecordPart::Over => (0, Found::End),
                0 => self.step(&input[at..]).map_err(|error| InvalidBody(error.message()))?,
                plain => {
                    let len = plain.min(input.len() - at);
                    self.plain -= len;
                    (len, if len == 0 { Found::More } else { Found::Data(0, len) })
                }
            };
            let start = at;
            at += consumed;
            match found {
                Found::Data(from, to) => {
                    let len = self.counted(to - from);
                    if len > 0 {
                        let (from, to) = (start + from, start + from + len);
                        return Ok(BodyStep {
                            consumed: at,
                            event: BodyEvent::Data { start: from, end: to },
                        });
                    }
                }
                Found::More => return Ok(BodyStep { consumed: input.len(), event: BodyEvent::More }),
                Found::End if self.length.is_some_and(|left| left > 0) => {
                    return Err(InvalidBody(ResponseError::StdoutClosed.message()));
                }
                Found::End => {
                    self.is_over = true;
                    return Ok(BodyStep { consumed: at, event: BodyEvent::End });
                }
            }
        }
    }

    /// Subtracts `len` from the remaining length, if it is known. Returns how many of the bytes belong to the body.
    fn counted(&mut self, len: usize) -> usize {
        let Some(left) = &mut self.length else { return len };
        let taken = len.min((*left).min(usize::MAX as u64) as usize);
        *left -= taken as u64;
        taken
    }

    pub(in crate::gateway) fn ends_within(&self, input: &[u8]) -> bool {
        let is_complete = self.part == RecordPart::Over && input.len() == self.plain;
        self.is_bare || is_complete && self.length.is_none_or(|left| left <= self.plain as u64)
    }

    pub(in crate::gateway) fn remaining(&self) -> Option<u64> {
        match self.length {
            _ if self.is_over || self.is_bare => Some(0),
            None if self.part == RecordPart::Over => Some(self.plain as u64),
            length => length,
        }
    }

    pub(in crate::gateway) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(in crate::gateway) fn close(&mut self) -> bool {
        let ends = self.plain == 0
            && match self.length {
                Some(left) => left == 0,
                None => self.stdout_closed || self.part == RecordPart::Over,
            };
        // The connection cannot be reused.
        self.has_excess = true;
        self.is_over |= ends;
        ends
    }

    pub(in crate::gateway) fn keeps_alive(&self) -> bool {
        self.part == RecordPart::Over && !self.has_excess
    }

    pub(in crate::gateway) fn take_messages(&mut self) -> Option<Vec<u8>> {
        (!self.messages.is_empty()).then(|| std::mem::take(&mut self.messages))
    }

    /// Processes records up to the next response bytes or the end. Returns the number of bytes consumed.
    fn step(&mut self, input: &[u8]) -> Result<(usize, Found), ResponseError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.part {
                RecordPart::Over => return Ok((at, Found::End)),
                _ if rest.is_empty() => return Ok((at, Found::More)),
                RecordPart::Header => {
                    let len = rest.len().min(HEADER_LEN - self.header_len);
                    self.header[self.header_len..][..len].copy_from_slice(&rest[..len]);
                    self.header_len += len;
                    at += len;
                    if self.header_len == HEADER_LEN {
                        self.begin_record()?;
                    }
                }
                RecordPart::Content => {
                    let len = rest.len().min(self.content);
                    self.content -= len;
                    let start = at;
                    at += len;
                    self.end_record();
                    match self.header[1] {
                        STDOUT => return Ok((at, Found::Data(start, at))),
                        STDERR => self.hear(&input[start..at]),
                        _ => {}
                    }
                }
                RecordPart::Padding => {
                    let len = rest.len().min(self.padding);
                    self.padding -= len;
                    at += len;
                    self.end_record();
                }
            }
        }
    }

    /// Parses the header of a record.
    fn begin_record(&mut self) -> Result<(), ResponseError> {
        self.header_len = 0;
        let [version, kind, id_high, id, len_high, len, padding, _] = self.header;
        if version != VERSION {
            return Err(ResponseError::RecordVersion);
        }
        if (id_high, id) != (0, ID) {
            return Err(ResponseError::RecordId);
        }
        (self.content, self.padding) =
            (usize::from(u16::from_be_bytes([len_high, len])), usize::from(padding));
        // After the end of the response no further `FCGI_STDOUT` record may follow.
        let is_known = matches!(kind, STDERR | END_REQUEST) || kind == STDOUT && !self.stdout_closed;
        if !is_known {
            return Err(ResponseError::RecordType);
        }
        self.stdout_closed |= kind == STDOUT && self.content == 0;
        let is_noise = kind != STDOUT || self.content == 0;
        self.noise += if is_noise { (HEADER_LEN + self.content) as u64 } else { 0 };
        if self.noise > NOISE_MAX {
            return Err(ResponseError::TooManyMessages);
        }
        self.end_record();
        Ok(())
    }

    /// Moves to the part of the record that the next byte belongs to.
    fn end_record(&mut self) {
        self.part = match (self.content, self.padding) {
            (0, 0) if self.header[1] == END_REQUEST => RecordPart::Over,
            (0, 0) => RecordPart::Header,
            (0, _) => RecordPart::Padding,
            _ => RecordPart::Content,
        };
    }

    /// Stores a message for the log.
    fn hear(&mut self, text: &[u8]) {
        let len = text.len().min(MESSAGES_MAX - self.messages_len);
        self.messages_len += len;
        self.messages.extend_from_slice(&text[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a record with this much padding.
    fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let len = (content.len() as u16).to_be_bytes();
        let header = [1, kind, 0, 1, len[0], len[1], padding, 0];
        [&header[..], content, &vec![0xff; usize::from(padding)]].concat()
    }

    fn end() -> Vec<u8> {
        record(END_REQUEST, &[0; 8], 0)
    }

    /// Decodes a response that arrives in pieces of this size. Returns status, body, messages, and whether the connection is
    /// reusable.
    fn decoded(method: Method, bytes: &[u8], piece: usize) -> Result<(u16, Vec<u8>, Vec<u8>, bool), String> {
        let mut decoder = Decoder::new(method, Limits::default());
        let (mut head, mut input, mut body, mut messages) =
            (ParsedResponse::new(), Vec::new(), Vec::new(), Vec::new());
        let mut pieces = bytes.chunks(piece);
        let head_len = loop {
            let Some(piece) = pieces.next() else { return Err("closed".to_owned()) };
            let mut piece = piece.to_vec();
            let range = decoder.unframe(&mut piece).map_err(|error| error.message().to_owned())?;
            input.extend_from_slice(&piece[range]);
            match decoder.head(&mut head, &input).map_err(|error| error.message().to_owned())? {
                HeadEvent::Head(len) => break len as usize,
                _ => continue,
            }
        };
        let status = head.status().code();
        let mut rest = input.split_off(head_len);
        loop {
            let mut at = 0;
            loop {
                let step = decoder.body(&rest[at..]).map_err(|InvalidBody(words)| words.to_owned())?;
                match step.event {
                    BodyEvent::Data { start, end } => body.extend_from_slice(&rest[at + start..at + end]),
                    BodyEvent::More => break,
                    BodyEvent::End => {
                        messages.extend(decoder.take_messages().unwrap_or_default());
                        let keeps_alive = decoder.keeps_alive() && at + step.consumed == rest.len();
                        return Ok((status, body, messages, keeps_alive));
                    }
                }
                at += step.consumed;
            }
            match pieces.next() {
                Some(piece) => rest = piece.to_vec(),
                None if decoder.close() => return Ok((status, body, messages, decoder.keeps_alive())),
                None => return Err("closed".to_owned()),
            }
        }
    }

    #[test]
    fn responses_are_decoded_from_records_in_pieces_of_any_size() {
        let head = b"Status: 404 Not here\r\nContent-Type: text/plain\r\n\r\n";
        let bytes = [
            record(STDERR, b"note", 4),
            record(STDOUT, &head[..10], 0),
            record(STDOUT, &head[10..], 7),
            record(STDOUT, b"ab", 1),
            record(STDERR, b" and more", 0),
            record(STDOUT, b"c", 255),
            record(STDOUT, b"", 0),
            end(),
        ]
        .concat();
        for piece in 1..=bytes.len() {
            let found = decoded(Method::Get, &bytes, piece).expect("a good response");
            assert_eq!(found, (404, b"abc".to_vec(), b"note and more".to_vec(), true), "{piece}");
        }
    }

    #[test]
    fn the_status_is_taken_from_its_field_or_from_location() {
        for (head, expected) in [
            ("Content-Type: a\r\n\r\n", Ok(200)),
            ("Content-Type: a\n\n", Ok(200)),
            ("Location: /a\r\n\r\n", Ok(302)),
            ("Location: /a\r\nstatus: 201 Made\r\n\r\n", Ok(201)),
            ("Status: 500\r\n\r\n", Ok(500)),
            ("Status: x\r\n\r\n", Err("upstream sent invalid status")),
            ("Status: 100 Continue\r\n\r\n", Err("upstream sent invalid status")),
            ("Status: 2000\r\n\r\n", Err("upstream sent invalid status")),
        ] {
            let bytes = [record(STDOUT, head.as_bytes(), 0), end()].concat();
            let found = decoded(Method::Get, &bytes, 1000).map(|found| found.0);
            assert_eq!(found, expected.map_err(str::to_owned), "{head:?}");
        }
    }

    #[test]
    fn lengths_and_ends_must_agree() {
        let head = |length: &str| record(STDOUT, format!("Content-Length: {length}\r\n\r\n").as_bytes(), 0);
        let body = record(STDOUT, b"abc", 0);
        let get = |bytes: &[Vec<u8>], piece| {
            decoded(Method::Get, &bytes.concat(), piece).map(|(_, body, _, keeps_alive)| (body, keeps_alive))
        };
        let closed = || Err("closed".to_owned());
        for piece in [1, 1000] {
            assert_eq!(get(&[head("3"), body.clone(), end()], piece), Ok((b"abc".to_vec(), true)));
            // Excess bytes are dropped, as in nginx.
            assert_eq!(get(&[head("2"), body.clone(), end()], piece), Ok((b"ab".to_vec(), true)));
            let short = "upstream prematurely closed FastCGI stdout".to_owned();
            assert_eq!(get(&[head("4"), body.clone(), end()], piece), Err(short));
            // Without `FCGI_END_REQUEST`: the length or the empty record shows that the body is complete.
            assert_eq!(get(&[head("3"), body.clone()], piece), Ok((b"abc".to_vec(), false)));
            assert_eq!(get(&[head("4"), body.clone()], piece), closed());
            let bare = record(STDOUT, b"A: b\r\n\r\n", 0);
            let stdout_end = record(STDOUT, b"", 0);
            assert_eq!(get(&[bare.clone(), body.clone(), stdout_end], piece), Ok((b"abc".to_vec(), false)));
            assert_eq!(get(&[bare, body.clone()], piece), closed());
        }
        // Bytes after the end.
        assert_eq!(get(&[head("3"), body.clone(), end(), end()], 1000), Ok((b"abc".to_vec(), false)));
    }

    #[test]
    fn a_response_to_head_has_no_body() {
        let bytes = [record(STDOUT, b"Content-Length: 5\r\n\r\n", 0), end()].concat();
        assert_eq!(decoded(Method::Head, &bytes, 1000), Ok((200, Vec::new(), Vec::new(), true)));
        let bytes = [record(STDOUT, b"Status: 304\r\n\r\nabc", 0), end()].concat();
        assert_eq!(decoded(Method::Get, &bytes, 1000), Ok((304, Vec::new(), Vec::new(), true)));
    }

    #[test]
    fn unexpected_records_are_refused() {
        for (bytes, expected) in [
            (vec![2, 6, 0, 1, 0, 0, 0, 0], "upstream sent unsupported FastCGI protocol version"),
            (vec![1, 6, 0, 2, 0, 0, 0, 0], "upstream sent unexpected FastCGI request id"),
            (vec![1, 6, 1, 1, 0, 0, 0, 0], "upstream sent unexpected FastCGI request id"),
            (vec![1, 9, 0, 1, 0, 0, 0, 0], "upstream sent unexpected FastCGI record"),
            (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), "upstream sent unsupported FastCGI protocol version"),
            (end(), "upstream prematurely closed FastCGI stdout"),
            (record(STDOUT, b"", 0), "upstream prematurely closed FastCGI stdout"),
            ([record(STDOUT, b"A: b\r\n", 0), end()].concat(), "upstream prematurely closed FastCGI stdout"),
        ] {
            assert_eq!(decoded(Method::Get, &bytes, 1000), Err(expected.to_owned()), "{bytes:?}");
            let bytes = [record(STDOUT, b"A: b\r\n\r\n", 0), bytes].concat();
            if !expected.contains("stdout") {
                assert_eq!(decoded(Method::Get, &bytes, 14), Err(expected.to_owned()), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_flood_of_messages_is_truncated() {
        let mut decoder = Decoder::new(Method::Get, Limits::default());
        let mut kept = 0;
        for _ in 0..100 {
            let mut bytes = record(STDERR, &[b'x'; 4096], 0);
            assert_eq!(decoder.unframe(&mut bytes).map(|range| range.len()), Ok(0));
            kept += decoder.take_messages().map_or(0, |text| text.len());
        }
        assert_eq!(kept, MESSAGES_MAX);
    }
}
