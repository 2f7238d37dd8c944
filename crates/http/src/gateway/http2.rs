//! Encoder for HTTP/2 requests (RFC 9113 section 8.3.1): a field block that does not use the dynamic table, so it can be encoded
//! before a connection is available. Crate `upstream` converts the frames of a response to chunked HTTP/1 text, because the
//! conversion needs the dynamic tables of the connection.

use crate::fields::{BodyLength, HeaderId};
use crate::gateway::event::BodyFraming;
use crate::gateway::{Encoded, UpstreamProtocol};
use crate::h2::hpack::{self, NeverIndexed};
use crate::{Span, push_decimal};

/// Encoder of one request; see [`crate::gateway::Encoder`].
#[derive(Clone, Debug)]
pub struct Encoder {
    method: Vec<u8>,
    scheme: &'static str,
    target: Vec<u8>,
    authority: Vec<u8>,
    fields: Vec<u8>,
    never_indexed: Option<NeverIndexed>,
}

/// Initial capacity in bytes, enough for the fields of most requests.
const FIELD_BYTES: usize = 512;

impl Encoder {
    /// Creates an encoder for this scheme.
    #[must_use]
    pub fn new(scheme: &'static str) -> Self {
        let fields = Vec::with_capacity(FIELD_BYTES);
        let (method, target, authority) = (Vec::new(), Vec::new(), Vec::new());
        Self { method, scheme, target, authority, fields, never_indexed: None }
    }

    /// Encodes fields with these names as never indexed, as they were received (RFC 7541 section 7.1.3).
    #[must_use]
    pub fn never_indexing(self, names: Option<NeverIndexed>) -> Self {
        Self { never_indexed: names, ..self }
    }

    pub(in crate::gateway) fn begin(&mut self, method: &[u8], target: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.method.extend_from_slice(method);
        target(&mut self.target);
        !self.target.is_empty()
    }

    pub(in crate::gateway) fn field(&mut self, name: &[u8], value: &[u8]) {
        match HeaderId::of(name) {
            HeaderId::Host => self.authority = value.to_vec(),
            // RFC 9113 section 8.2.2.
            HeaderId::Connection
            | HeaderId::ProxyConnection
            | HeaderId::KeepAlive
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade => {}
            HeaderId::Te if !value.eq_ignore_ascii_case(b"trailers") => {}
            _ if self.never_indexed.as_ref().is_some_and(|names| names.has(name)) => {
                hpack::push_never_indexed(&mut self.fields, name, value.trim_ascii());
            }
            // Values must not begin or end with whitespace (RFC 9113 section 8.2.1).
            _ => hpack::push_field(&mut self.fields, name, value.trim_ascii()),
        }
    }

    pub(in crate::gateway) fn body(&mut self, length: BodyLength) {
        if let BodyLength::Exactly(length) = length {
            let mut text = Vec::with_capacity(20);
            push_decimal(&mut text, length);
            hpack::push_field(&mut self.fields, b"content-length", &text);
        }
    }

    pub(in crate::gateway) fn end(self) -> Encoded {
        let Self { method, scheme, target, authority, fields, .. } = self;
        let mut head = Vec::with_capacity(fields.len() + target.len() + authority.len() + 32);
        let start = hpack::push_request(&mut head, &method, scheme.as_bytes(), &target, &authority);
        head.extend_from_slice(&fields);
        let target = Span::new(start, start + target.len());
        Encoded { protocol: UpstreamProtocol::Http2, head, target, framing: BodyFraming::Frames }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::Decoder;

    #[test]
    fn pseudo_fields_are_first_and_connection_fields_are_dropped() {
        let mut encoder = Encoder::new("https");
        assert!(encoder.begin(b"PUT", |out| out.extend_from_slice(b"/a?b")));
        encoder.field(b"X-A", b" 1 ");
        encoder.field(b"Host", b"h:8");
        for name in ["Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "TE"] {
            encoder.field(name.as_bytes(), b"gzip");
        }
        encoder.field(b"TE", b"trailers");
        encoder.body(BodyLength::Exactly(3));
        let encoded = encoder.end();
        assert_eq!((encoded.protocol(), encoded.framing()), (UpstreamProtocol::Http2, BodyFraming::Frames));
        assert_eq!(encoded.target(), b"/a?b");
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let taken = Decoder::default()
            .decode(encoded.head(), |name, value| fields.push(format!("{}={}", text(name), text(value))));
        assert_eq!(taken, Ok(()));
        let wanted = [
            ":method=PUT",
            ":scheme=https",
            ":path=/a?b",
            ":authority=h:8",
            "x-a=1",
            "te=trailers",
            "content-length=3",
        ];
        assert_eq!(fields, wanted);
    }

    #[test]
    fn a_request_without_a_host_has_no_authority() {
        let mut encoder = Encoder::new("http");
        assert!(encoder.begin(b"GET", |out| out.push(b'/')));
        let mut names = Vec::new();
        let encoded = encoder.end();
        Decoder::default().decode(encoded.head(), |name, _| names.push(name.to_vec())).expect("a block");
        assert_eq!(names, [&b":method"[..], b":scheme", b":path"]);
        assert!(!Encoder::new("http").begin(b"GET", |_| {}), "a request without a target");
        // RFC 9113 section 8.3.1: OPTIONS without a path has the target `*`.
        let mut encoder = Encoder::new("http");
        assert!(encoder.begin(b"OPTIONS", |out| out.push(b'*')));
        assert_eq!(encoder.end().target(), b"*");
    }
}
