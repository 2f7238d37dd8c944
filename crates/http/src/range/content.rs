//! Parsing of `Content-Range` (RFC 9110 section 14.4).

use super::{ByteRange, number};
use crate::fields::HeaderId;
use crate::response::parse::ParsedResponse;

/// The value of `Content-Range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes 0-4/10`: the range, and the complete length if known (otherwise `bytes 0-4/*`).
    Part {
        /// The range.
        range: ByteRange,
        /// The complete length.
        size: Option<u64>,
    },
    /// `bytes */10` of a 416: the complete length.
    Unsatisfied {
        /// The complete length.
        size: u64,
    },
}

/// Reason why a partial response cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRangeError {
    /// The field is absent.
    Missing,
    /// The field occurs more than once, which is ambiguous.
    Repeated,
    /// Another unit than bytes, or an invalid range.
    Invalid,
    /// `Content-Length` differs from the length of the range.
    LengthDiffers,
}

impl ContentRange {
    /// Parses a value; `None` if it is not a byte range. The unit is case-insensitive; as in nginx, spaces between the elements are
    /// accepted.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (unit, rest) = value.split_at_checked(6)?;
        if !unit.eq_ignore_ascii_case(b"bytes ") {
            return None;
        }
        let slash = memchr::memchr(b'/', rest)?;
        let (range, size) =
            (crate::bytes::trim_ows(&rest[..slash]), crate::bytes::trim_ows(&rest[slash + 1..]));
        let size = match size {
            b"*" => None,
            digits => Some(crate::parse_decimal(digits)?),
        };
        if range == b"*" {
            return size.map(|size| Self::Unsatisfied { size });
        }
        let (first, rest) = number(range)?;
        let last = crate::bytes::trim_ows(crate::bytes::trim_ows(rest).strip_prefix(b"-")?);
        let last = crate::parse_decimal(last)?;
        // Section 14.4: such a range must not be used to combine partial responses.
        if last < first || size.is_some_and(|size| size <= last) {
            return None;
        }
        // Numbers are at most i64::MAX, so the addition cannot overflow.
        Some(Self::Part { range: ByteRange { start: first, end: last + 1 }, size })
    }

    /// Parses the field of a 206 and checks it against `Content-Length`, if present.
    ///
    /// # Errors
    /// [`ContentRangeError`]; the response must not be stored or used as the requested range.
    pub fn of_part(head: &ParsedResponse, buf: &[u8]) -> Result<(ByteRange, Option<u64>), ContentRangeError> {
        let mut values = head.all(buf, HeaderId::ContentRange);
        let value = values.next().ok_or(ContentRangeError::Missing)?;
        if values.next().is_some() {
            return Err(ContentRangeError::Repeated);
        }
        match Self::parse(value) {
            Some(Self::Part { range, .. })
                if head.content_length().is_some_and(|length| length != range.len()) =>
            {
                Err(ContentRangeError::LengthDiffers)
            }
            Some(Self::Part { range, size }) => Ok((range, size)),
            _ => Err(ContentRangeError::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::parse::{Limits, parse};
    use proptest::prelude::*;

    fn part(start: u64, end: u64, size: Option<u64>) -> ContentRange {
        ContentRange::Part { range: ByteRange { start, end }, size }
    }

    #[test]
    fn content_range_values_are_parsed() {
        for (value, wanted) in [
            ("bytes 0-4/10", Some(part(0, 5, Some(10)))),
            ("bytes 9-9/10", Some(part(9, 10, Some(10)))),
            ("Bytes 0-4/*", Some(part(0, 5, None))),
            ("bytes  0 - 4 / 10 ", Some(part(0, 5, Some(10)))),
            ("bytes */10", Some(ContentRange::Unsatisfied { size: 10 })),
            ("bytes */0", Some(ContentRange::Unsatisfied { size: 0 })),
            (
                "bytes 0-9223372036854775806/9223372036854775807",
                Some(part(0, i64::MAX as u64, Some(i64::MAX as u64))),
            ),
            ("bytes 5-4/10", None),
            ("bytes 0-10/10", None),
            ("bytes 0-0/0", None),
            ("bytes */*", None),
            ("bytes=0-4/10", None),
            ("bytes 0-4", None),
            ("bytes 0/10", None),
            ("bytes 0-/10", None),
            ("bytes -4/10", None),
            ("bytes 0-4/", None),
            ("bytes 0-4/x", None),
            ("bytes 0-4/10/3", None),
            ("bytes 0-4-5/10", None),
            ("items 0-4/10", None),
            ("bytes +0-4/10", None),
            ("bytes 0-9223372036854775808/*", None),
            ("", None),
            ("bytes ", None),
        ] {
            assert_eq!(ContentRange::parse(value.as_bytes()), wanted, "{value}");
        }
    }

    #[test]
    fn content_ranges_of_responses_are_parsed() {
        use ContentRangeError as Error;
        let range = ByteRange { start: 0, end: 5 };
        for (fields, wanted) in [
            ("Content-Range: bytes 0-4/10\r\n", Ok((range, Some(10)))),
            ("Content-Range: bytes 0-4/10\r\nContent-Length: 5\r\n", Ok((range, Some(10)))),
            ("Content-Range: bytes 0-4/*\r\nTransfer-Encoding: chunked\r\n", Ok((range, None))),
            ("Content-Range: bytes 0-4/10\r\nContent-Length: 6\r\n", Err(Error::LengthDiffers)),
            ("", Err(Error::Missing)),
            ("Content-Range: bytes 0-4/10\r\nContent-Range: bytes 0-4/10\r\n", Err(Error::Repeated)),
            ("Content-Range: bytes */10\r\n", Err(Error::Invalid)),
            ("Content-Range: x\r\n", Err(Error::Invalid)),
        ] {
            let text = format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n");
            let mut head = ParsedResponse::new();
            parse(&mut head, text.as_bytes(), &Limits::default()).expect(fields);
            assert_eq!(ContentRange::of_part(&head, text.as_bytes()), wanted, "{fields}");
        }
    }

    proptest! {
        #[test]
        fn written_content_ranges_are_parsed(start in 0u64..1 << 62, len in 1u64..1 << 61, more in 0u64..1 << 61) {
            let range = ByteRange { start, end: start + len };
            let mut value = Vec::new();
            super::super::push_content_range(range, start + len + more, &mut value);
            prop_assert_eq!(ContentRange::parse(&value), Some(part(start, start + len, Some(start + len + more))));
        }

        #[test]
        fn no_input_panics(value in proptest::collection::vec(any::<u8>(), 0..40), near in "bytes [0-9*/ -]{0,30}") {
            for value in [value.as_slice(), near.as_bytes()] {
                if let Some(ContentRange::Part { range, size }) = ContentRange::parse(value) {
                    prop_assert!(range.start < range.end && size.is_none_or(|size| range.end <= size));
                }
            }
        }
    }
}
