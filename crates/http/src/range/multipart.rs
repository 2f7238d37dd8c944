//! Framing of `multipart/byteranges` (RFC 9110 section 14.6), with the same bytes as nginx.
//!
//! ```text
//! CRLF --boundary CRLF Content-Type: .. CRLF Content-Range: .. CRLF CRLF  data     for each range
//! CRLF --boundary-- CRLF
//! ```

use super::{ByteRange, push_content_range};
use crate::bytes::decimal_len;

/// Length of nginx's boundary: a counter, padded with zeros.
pub const BOUNDARY_LEN: usize = 20;

/// Boundary, content type and size for one multi-range response.
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'a> {
    boundary: [u8; BOUNDARY_LEN],
    content_type: &'a [u8],
    size: u64,
}

impl<'a> Multipart<'a> {
    /// Creates the framing of one response. `boundary` must not occur in the data; nginx uses a counter that starts at a random
    /// number. `content_type` is the type of the representation with its charset, and may be empty; `size` is its length.
    #[must_use]
    pub fn new(boundary: u64, content_type: &'a [u8], size: u64) -> Self {
        let mut text = [b'0'; BOUNDARY_LEN];
        let mut rest = boundary;
        for slot in text.iter_mut().rev() {
            *slot = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Self { boundary: text, content_type, size }
    }

    /// Appends the value of `Content-Type` for the response.
    pub fn push_content_type(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"multipart/byteranges; boundary=");
        out.extend_from_slice(&self.boundary);
    }

    /// Appends the text before the data of `range`.
    pub fn push_part(&self, range: ByteRange, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(&self.boundary);
        if !self.content_type.is_empty() {
            out.extend_from_slice(b"\r\nContent-Type: ");
            out.extend_from_slice(self.content_type);
        }
        out.extend_from_slice(b"\r\nContent-Range: ");
        push_content_range(range, self.size, out);
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends the text after the last part.
    pub fn push_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(&self.boundary);
        out.extend_from_slice(b"--\r\n");
    }

    /// Returns the length of the complete body, for `Content-Length`.
    #[must_use]
    pub fn total_len(&self, ranges: &[ByteRange]) -> u64 {
        let parts = ranges.iter().map(|&range| self.part_len(range) + range.len());
        parts.sum::<u64>() + (b"\r\n--".len() + BOUNDARY_LEN + b"--\r\n".len()) as u64
    }

    fn part_len(&self, range: ByteRange) -> u64 {
        let numbers = [range.start, range.end - 1, self.size].map(decimal_len).iter().sum::<usize>();
        let type_len = if self.content_type.is_empty() { 0 } else { b"\r\nContent-Type: ".len() };
        let fixed = b"\r\n--\r\nContent-Range: bytes -/\r\n\r\n".len();
        (fixed + BOUNDARY_LEN + type_len + self.content_type.len() + numbers) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_multipart_response_with_two_parts_is_written() {
        let multipart = Multipart::new(42, b"text/plain", 10);
        let mut out = Vec::new();
        multipart.push_content_type(&mut out);
        assert_eq!(out, b"multipart/byteranges; boundary=00000000000000000042");
        out.clear();
        let ranges = [ByteRange { start: 0, end: 2 }, ByteRange { start: 9, end: 10 }];
        for (range, data) in ranges.into_iter().zip(["ab", "j"]) {
            multipart.push_part(range, &mut out);
            out.extend_from_slice(data.as_bytes());
        }
        multipart.push_end(&mut out);
        let wanted = "\r\n--00000000000000000042\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\nab\
                      \r\n--00000000000000000042\r\nContent-Type: text/plain\r\nContent-Range: bytes 9-9/10\r\n\r\nj\
                      \r\n--00000000000000000042--\r\n";
        assert_eq!(String::from_utf8_lossy(&out), wanted);
        assert_eq!(multipart.total_len(&ranges), wanted.len() as u64);
    }

    proptest! {
        #[test]
        fn the_announced_length_equals_the_written_length(
            boundary: u64,
            content_type in "(text/[a-z]{0,9})?",
            size in 1u64..u64::from(u32::MAX),
            starts in proptest::collection::vec(any::<u64>(), 1..5),
        ) {
            let multipart = Multipart::new(boundary, content_type.as_bytes(), size);
            let ranges: Vec<ByteRange> =
                starts.iter().map(|start| ByteRange { start: start % size, end: size }).collect();
            let mut out = Vec::new();
            for &range in &ranges {
                multipart.push_part(range, &mut out);
            }
            multipart.push_end(&mut out);
            let data: u64 = ranges.iter().map(|range| range.len()).sum();
            prop_assert_eq!(multipart.total_len(&ranges), out.len() as u64 + data);
        }
    }
}
