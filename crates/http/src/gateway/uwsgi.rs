//! Encoder for uwsgi requests (<https://uwsgi-docs.readthedocs.io/en/latest/Protocol.html>): a header of four bytes, parameters,
//! then the body. The response is a CGI response.

use super::{BodyFraming, Encoded, UpstreamProtocol};
use crate::Span;

/// Encoder of one request. Call [`param`](Self::param) for each parameter, then [`end`](Self::end).
#[derive(Clone, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    is_short: bool,
}

/// Length of the header before the parameters: first modifier, length, second modifier.
const HEADER_LEN: usize = 4;

impl Encoder {
    /// Creates a request with these modifiers, which select the language of a server that supports several.
    #[must_use]
    pub fn new(modifier1: u8, modifier2: u8) -> Self {
        Self { bytes: vec![modifier1, 0, 0, modifier2], is_short: true }
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &[u8], value: &[u8]) {
        for part in [name, value] {
            self.is_short &= u16::try_from(part.len()).is_ok();
            self.bytes.extend_from_slice(&(part.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(part);
        }
    }

    /// Appends bytes after the parameters (`uwsgi_string`).
    pub fn string(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends the parameters; `None` if their length exceeds the length fields of the protocol.
    #[must_use]
    pub fn end(mut self) -> Option<Encoded> {
        let len = u16::try_from(self.bytes.len() - HEADER_LEN).ok().filter(|_| self.is_short)?;
        self.bytes[1..3].copy_from_slice(&len.to_le_bytes());
        let (head, framing) = (self.bytes, BodyFraming::Plain);
        Some(Encoded { protocol: UpstreamProtocol::Script, head, target: Span::EMPTY, framing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_lengths_in_little_endian() {
        let mut encoder = Encoder::new(5, 7);
        encoder.param(b"A", b"bc");
        let encoded = encoder.clone().end().expect("it is short");
        assert_eq!(encoded.head(), b"\x05\x07\0\x07\x01\0A\x02\0bc");
        encoder.param(b"B", &[b'x'; 65_521]);
        assert!(encoder.clone().end().is_some());
        encoder.string(b"y");
        assert!(encoder.end().is_some());
        let mut long = Encoder::new(0, 0);
        long.param(b"B", &[b'x'; 65_536]);
        assert!(long.end().is_none());
    }
}
