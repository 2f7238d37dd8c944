//! Encoder for SCGI 1 requests (<https://python.ca/scgi/protocol.txt>): parameters as one netstring, then the body.
//! `CONTENT_LENGTH` is the first parameter, and `SCGI` is required. The response is a CGI response.

use super::{BodyFraming, Encoded, UpstreamProtocol};
use crate::{Span, push_decimal};

/// Encoder of one request. Call [`param`](Self::param) for each parameter, then [`end`](Self::end).
#[derive(Clone, Debug)]
pub struct Encoder {
    params: Vec<u8>,
}

impl Encoder {
    /// Creates a request with a body of this length.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let mut params = b"CONTENT_LENGTH\0".to_vec();
        push_decimal(&mut params, length);
        params.push(0);
        Self { params }
    }

    /// Adds a parameter. A zero byte is replaced by a space, because it would end the parameter early.
    pub fn param(&mut self, name: &[u8], value: &[u8]) {
        for part in [name, value] {
            self.params.extend(part.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }));
            self.params.push(0);
        }
    }

    /// Ends the parameters.
    #[must_use]
    pub fn end(self) -> Encoded {
        let mut head = Vec::with_capacity(self.params.len() + 16);
        push_decimal(&mut head, self.params.len() as u64);
        head.push(b':');
        head.extend_from_slice(&self.params);
        head.push(b',');
        Encoded { protocol: UpstreamProtocol::Script, head, target: Span::EMPTY, framing: BodyFraming::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_netstring() {
        let mut encoder = Encoder::new(27);
        encoder.param(b"SCGI", b"1");
        encoder.param(b"REQUEST_METHOD", b"POST");
        encoder.param(b"A", b"b\0c");
        let expected = b"51:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0A\0b c\0,";
        assert_eq!(encoder.end().head(), expected);
    }
}
