//! Encoder for FastCGI requests: the parameters, with the records before and after them.

use super::record::{BEGIN_REQUEST, CONTENT_MAX, HEADER_LEN, PARAMS, header};
use crate::Span;
use crate::gateway::{BodyFraming, Encoded, UpstreamProtocol};

/// Encoder of one request. Call [`param`](Self::param) for each parameter, in order, then [`end`](Self::end).
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The first record, space for the header of the second record, and the parameters.
    bytes: Vec<u8>,
}

/// Initial capacity in bytes, enough for most requests: twenty parameters of usual length and the client's fields.
const HEAD_BYTES: usize = 2048;

/// Offset of the parameters.
const PARAMS_START: usize = 3 * HEADER_LEN;

/// Lengths of at least this value are encoded in four bytes, with the highest bit set.
const LONG: usize = 0x80;

impl Encoder {
    /// Creates a request; `keeps_alive` tells the server to keep the connection open afterwards.
    #[must_use]
    pub fn new(keeps_alive: bool) -> Self {
        const RESPONDER: u8 = 1;
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(&header(BEGIN_REQUEST, 8));
        bytes.extend_from_slice(&[0, RESPONDER, u8::from(keeps_alive), 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&[0; HEADER_LEN]);
        Self { bytes }
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &[u8], value: &[u8]) {
        for len in [name.len(), value.len()] {
            match len {
                0..LONG => self.bytes.push(len as u8),
                _ => self.bytes.extend_from_slice(&(len as u32 | 1 << 31).to_be_bytes()),
            }
        }
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
    }

    /// Ends the parameters.
    #[must_use]
    pub fn end(self) -> Encoded {
        let mut head = self.bytes;
        let len = head.len() - PARAMS_START;
        if len > CONTENT_MAX {
            // The parameters are one stream, which may be split into records at any byte.
            let params = head.split_off(PARAMS_START);
            head.truncate(PARAMS_START - HEADER_LEN);
            for piece in params.chunks(CONTENT_MAX) {
                head.extend_from_slice(&header(PARAMS, piece.len()));
                head.extend_from_slice(piece);
            }
        } else if len > 0 {
            head[PARAMS_START - HEADER_LEN..PARAMS_START].copy_from_slice(&header(PARAMS, len));
        } else {
            head.truncate(PARAMS_START - HEADER_LEN);
        }
        head.extend_from_slice(&header(PARAMS, 0));
        Encoded {
            protocol: UpstreamProtocol::FastCgi,
            head,
            target: Span::EMPTY,
            framing: BodyFraming::Records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses records into types and contents.
    fn records(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() {
            assert_eq!((header[0], header[2], header[3], header[6]), (1, 0, 1, 0));
            let (content, rest) = rest.split_at(usize::from(u16::from_be_bytes([header[4], header[5]])));
            found.push((header[1], content.to_vec()));
            bytes = rest;
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn a_request_consists_of_begin_parameters_and_their_end() {
        let mut encoder = Encoder::new(true);
        encoder.param(b"A", b"bc");
        encoder.param(b"EMPTY", b"");
        let expected =
            [(1, vec![0, 1, 1, 0, 0, 0, 0, 0]), (4, b"\x01\x02Abc\x05\x00EMPTY".to_vec()), (4, Vec::new())];
        assert_eq!(records(encoder.end().head()), expected);
        assert_eq!(records(Encoder::new(false).end().head()).len(), 2);
    }

    #[test]
    fn long_values_have_long_lengths_and_several_records() {
        let mut encoder = Encoder::new(false);
        encoder.param(b"N", &[b'x'; 127]);
        encoder.param(b"N", &[b'x'; 128]);
        let params = &records(encoder.clone().end().head())[1].1;
        assert_eq!(params[..2], [1, 127]);
        assert_eq!(params[130..135], [1, 0x80, 0, 0, 128]);
        encoder.param(b"LONG", &[b'y'; 200_000]);
        let records = records(encoder.end().head());
        let lens: Vec<_> = records.iter().map(|(_, content)| content.len()).collect();
        let rest = 130 + 134 + 200_009 - 3 * CONTENT_MAX;
        assert_eq!(lens, [8, CONTENT_MAX, CONTENT_MAX, CONTENT_MAX, rest, 0]);
    }

    #[test]
    fn a_body_is_sent_in_records_and_ends_with_an_empty_one() {
        let framing = Encoder::new(false).end().framing();
        assert_eq!(framing.around(3), (vec![1, 5, 0, 1, 0, 3, 0, 0], &b""[..]));
        assert_eq!((framing.end(), framing.piece_max()), (&[1, 5, 0, 1, 0, 0, 0, 0][..], 65_528));
    }
}
