//! Body length and chunked coding (RFC 9112 sections 6 and 7.1).
//!
//! [`ResponseFraming`] determines the length of a response body from the parsed head; for requests the head contains it
//! ([`crate::fields::BodyLength`]). [`ChunkedDecoder`] decodes a chunked body; [`chunk_header`] and [`push_last_chunk`] encode it.
//! Body bytes are not copied: the decoder returns ranges.

mod chunked;
mod response;

pub use chunked::{ChunkedDecoder, ChunkedError, Event, LINE_LEN_MAX, Step, TRAILER_LEN_MAX};
pub use response::{ResponseFraming, may_be_trailer};

use crate::response::encode::{InvalidField, push_field};

/// Maximum length of a chunk header: sixteen hexadecimal digits and CRLF.
pub const CHUNK_HEADER_LEN_MAX: usize = 18;

/// The bytes after the data of each chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The last chunk without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Writes the header of a chunk of `len` bytes to `buf` and returns the text. `len` must not be zero: a chunk of zero bytes would
/// end the body, for example after an empty flush.
pub fn chunk_header(len: u64, buf: &mut [u8; CHUNK_HEADER_LEN_MAX]) -> &[u8] {
    assert!(len != 0, "an empty chunk ends the body");
    let digits = (u64::BITS - len.leading_zeros()).div_ceil(4) as usize;
    for (index, slot) in buf.iter_mut().take(digits).enumerate() {
        let nibble = len >> (4 * (digits - 1 - index)) & 15;
        *slot = b"0123456789abcdef"[nibble as usize];
    }
    buf[digits..digits + 2].copy_from_slice(b"\r\n");
    &buf[..digits + 2]
}

/// Appends the last chunk, with trailer fields.
///
/// # Errors
/// [`InvalidField`] if a trailer would break the framing; `out` is unchanged then.
pub fn push_last_chunk(trailers: &[(&[u8], &[u8])], out: &mut Vec<u8>) -> Result<(), InvalidField> {
    let before = out.len();
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        if let Err(error) = push_field(out, name, value) {
            out.truncate(before);
            return Err(error);
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_headers_are_written() {
        for len in [1, 9, 10, 15, 16, 255, 256, 4096, 0xdead_beef, u64::MAX] {
            let mut buf = [0; CHUNK_HEADER_LEN_MAX];
            assert_eq!(chunk_header(len, &mut buf), format!("{len:x}\r\n").as_bytes());
        }
    }

    #[test]
    fn the_last_chunk_is_written_with_trailers() {
        let mut out = b"x".to_vec();
        push_last_chunk(&[(b"A", b"1"), (b"B", b"2")], &mut out).expect("valid trailers");
        assert_eq!(out, b"x0\r\nA: 1\r\nB: 2\r\n\r\n");
        assert!(push_last_chunk(&[(b"A", b"1"), (b"B", b"2\r\nC: 3")], &mut out).is_err());
        assert_eq!(out, b"x0\r\nA: 1\r\nB: 2\r\n\r\n", "nothing is left behind by a refused trailer");
        let mut out = Vec::new();
        push_last_chunk(&[], &mut out).expect("no trailers");
        assert_eq!(out, LAST_CHUNK);
    }
}
