//! Encoder for HTTP/1 requests: the head is written directly as text, without an intermediate table.

use crate::fields::{BodyLength, Version};
use crate::gateway::event::BodyFraming;
use crate::gateway::{Encoded, UpstreamProtocol};
use crate::{Span, push_decimal};

/// Encoder of one request; see [`crate::gateway::Encoder`].
#[derive(Clone, Debug)]
pub struct Encoder {
    version: Version,
    head: Vec<u8>,
    target: Span,
    framing: BodyFraming,
}

/// Initial capacity in bytes, enough for most heads of requests.
const HEAD_BYTES: usize = 512;

impl Encoder {
    /// Creates an encoder for `version`; later versions are sent as 1.1.
    #[must_use]
    pub fn new(version: Version) -> Self {
        let head = Vec::with_capacity(HEAD_BYTES);
        Self { version, head, target: Span::EMPTY, framing: BodyFraming::Plain }
    }

    pub(in crate::gateway) fn begin(&mut self, method: &[u8], target: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.head.extend_from_slice(method);
        self.head.push(b' ');
        let start = self.head.len();
        target(&mut self.head);
        self.target = Span::new(start, self.head.len());
        self.head.extend_from_slice(match self.version {
            Version::Http10 => b" HTTP/1.0\r\n",
            Version::Http11 | Version::Http2 | Version::Http3 => b" HTTP/1.1\r\n",
        });
        !self.target.is_empty()
    }

    #[inline]
    pub(in crate::gateway) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.head.extend_from_slice(name);
        self.head.extend_from_slice(b": ");
        self.head.extend_from_slice(value);
        self.head.extend_from_slice(b"\r\n");
    }

    pub(in crate::gateway) fn body(&mut self, length: BodyLength) {
        match length {
            BodyLength::None => {}
            BodyLength::Exactly(length) => {
                self.head.extend_from_slice(b"Content-Length: ");
                push_decimal(&mut self.head, length);
                self.head.extend_from_slice(b"\r\n");
            }
            BodyLength::Unknown => {
                self.framing = BodyFraming::Chunks;
                self.head.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
        }
    }

    pub(in crate::gateway) fn end(mut self) -> Encoded {
        self.head.extend_from_slice(b"\r\n");
        let Self { head, target, framing, .. } = self;
        Encoded { protocol: UpstreamProtocol::Http1, head, target, framing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a complete request with this body, a piece at a time.
    fn encoded(version: Version, length: BodyLength, pieces: &[&str]) -> String {
        let mut encoder = Encoder::new(version);
        assert!(encoder.begin(b"PUT", |out| out.extend_from_slice(b"/a?b")));
        encoder.field(b"Host", b"h");
        encoder.body(length);
        encoder.field(b"X", b"");
        let encoder = encoder.end();
        assert_eq!(encoder.target(), b"/a?b");
        let mut all = encoder.head().to_vec();
        for piece in pieces {
            let (before, after) = encoder.framing().around(piece.len() as u64);
            all.extend([&before[..], piece.as_bytes(), after].concat());
        }
        all.extend(encoder.framing().end());
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn requests_are_encoded_with_their_body_framing() {
        let rows: [(Version, BodyLength, &[&str], &str); 4] = [
            (Version::Http10, BodyLength::None, &[], "PUT /a?b HTTP/1.0\r\nHost: h\r\nX: \r\n\r\n"),
            (
                Version::Http11,
                BodyLength::Exactly(0),
                &[],
                "PUT /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nX: \r\n\r\n",
            ),
            (
                Version::Http11,
                BodyLength::Exactly(3),
                &["ab", "c"],
                "PUT /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nX: \r\n\r\nabc",
            ),
            (
                Version::Http11,
                BodyLength::Unknown,
                &["ab", "c"],
                "PUT /a?b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX: \r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            ),
        ];
        for (version, length, pieces, wanted) in rows {
            assert_eq!(encoded(version, length, pieces), wanted);
        }
    }

    #[test]
    fn a_missing_target_is_refused() {
        assert!(!Encoder::new(Version::Http11).begin(b"GET", |_| {}));
    }
}
