//! Range requests (RFC 9110 section 14), parsed like in nginx's range filter.
//!
//! [`parse`] converts the value of `Range` into byte ranges of one representation; [`if_range_matches`] decides whether `Range`
//! applies. [`multipart`] frames the parts of a multi-range response. [`ContentRange`] parses the range of an upstream's response,
//! [`RangeSet`] records stored ranges. The caller handles body bytes.

mod content;
pub mod multipart;
mod set;

pub use content::{ContentRange, ContentRangeError};
pub use set::{RangeSet, TooManyRanges};

use crate::conditional::{Comparison, Validators, tags_match};
use crate::{bytes, date};

/// A half-open byte range of a representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte; greater than `start`.
    pub end: u64,
}

impl ByteRange {
    /// Returns the number of bytes; never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// Response to a request with `Range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// 200 with the complete representation: another unit, too many ranges, or overlapping ranges whose sum exceeds the
    /// representation.
    Whole,
    /// 206 with the ranges.
    Partial,
    /// 416.
    NotSatisfiable,
}

/// nginx's default of `max_ranges`; by default only the size check below limits the ranges.
pub const MAX_RANGES_DEFAULT: u32 = i32::MAX as u32;

/// Parses the value of `Range` for a representation of `size` bytes into `out` (cleared first; empty unless the
/// outcome is [`RangeOutcome::Partial`]).
///
/// As in nginx, a malformed list after `bytes=` leads to 416; it is not ignored. Unlike in nginx, empty elements of the list are
/// ignored (RFC 9110 section 5.6.1.2), and a number of any size is valid: a range may end beyond the representation.
///
/// An empty range that starts at 0 (in a request for an empty file) leads to the complete representation.
pub fn parse(value: &[u8], size: u64, max_ranges: u32, out: &mut Vec<ByteRange>) -> RangeOutcome {
    out.clear();
    let Some((unit, list)) = value.split_at_checked(6) else { return RangeOutcome::Whole };
    if max_ranges == 0 || list.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
        return RangeOutcome::Whole;
    }
    let outcome = parse_list(list, size, max_ranges, out);
    if outcome != RangeOutcome::Partial {
        out.clear();
    }
    outcome
}

fn parse_list(list: &[u8], size: u64, max_ranges: u32, out: &mut Vec<ByteRange>) -> RangeOutcome {
    let mut total = 0u64;
    for item in list.split(|&byte| byte == b',').filter(|item| !skip_blanks(item).is_empty()) {
        let Some(spec) = parse_spec(item) else { return RangeOutcome::NotSatisfiable };
        let (start, end) = spec.resolve(size);
        if start < end {
            if out.len() as u64 == u64::from(max_ranges) {
                return RangeOutcome::Whole;
            }
            out.push(ByteRange { start, end });
            // Saturates because many ranges of a large representation can exceed `u64`; such a sum is above `size` in any case.
            total = total.saturating_add(end - start);
        } else if start == 0 {
            return RangeOutcome::Whole;
        }
    }
    match out.is_empty() {
        true => RangeOutcome::NotSatisfiable,
        false if total > size => RangeOutcome::Whole,
        false => RangeOutcome::Partial,
    }
}

/// One element of the list of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spec {
    /// `5-` or `5-9`.
    From { first: u64, last: Option<u64> },
    /// `-5`.
    Suffix(u64),
}

impl Spec {
    /// Returns the start and end in a representation of `size` bytes; the range is empty if end <= start.
    fn resolve(self, size: u64) -> (u64, u64) {
        match self {
            Self::From { first, last: None } => (first, size),
            Self::From { first, last: Some(last) } => (first, last.saturating_add(1).min(size)),
            Self::Suffix(len) => (size.saturating_sub(len), size),
        }
    }
}

/// Parses one element. As in nginx, blanks are allowed around the numbers and the hyphen, but not inside `-5`.
fn parse_spec(item: &[u8]) -> Option<Spec> {
    let item = skip_blanks(item);
    if let Some(suffix) = item.strip_prefix(b"-") {
        let (len, rest) = number(suffix)?;
        return skip_blanks(rest).is_empty().then_some(Spec::Suffix(len));
    }
    let (first, rest) = number(item)?;
    let rest = skip_blanks(skip_blanks(rest).strip_prefix(b"-")?);
    if rest.is_empty() {
        return Some(Spec::From { first, last: None });
    }
    let (last, rest) = number(rest)?;
    skip_blanks(rest).is_empty().then_some(Spec::From { first, last: Some(last) })
}

/// Splits `text` into the number at its start, at most `i64::MAX`, and the remaining text; `None` without a digit.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    (!digits.is_empty()).then(|| (crate::parse_decimal(digits).unwrap_or(i64::MAX as u64), rest))
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()..]
}

/// Whether `If-Range` allows `Range` (RFC 9110 section 13.1.5): an equal strong entity tag, or a date equal to the modification
/// time. nginx also accepts an equal weak tag; the RFC forbids it, because representations with different bytes may share a weak
/// tag.
#[must_use]
pub fn if_range_matches(value: &[u8], validators: Validators<'_>) -> bool {
    if value.len() >= 2 && value.ends_with(b"\"") {
        return validators.etag.is_some_and(|etag| tags_match(value, etag, Comparison::Strong));
    }
    validators.last_modified.is_some_and(|modified| date::parse_http(value) == Some(modified))
}

/// Appends the value of `Content-Range` for one range: `bytes 0-4/10`.
pub fn push_content_range(range: ByteRange, size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes ");
    bytes::push_decimal(out, range.start);
    out.push(b'-');
    bytes::push_decimal(out, range.end - 1);
    out.push(b'/');
    bytes::push_decimal(out, size);
}

/// Appends the value of `Content-Range` for 416: `bytes */10`.
pub fn push_unsatisfied_range(size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    bytes::push_decimal(out, size);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(value: &str, size: u64, max: u32) -> (RangeOutcome, Vec<(u64, u64)>) {
        let mut out = vec![ByteRange { start: 7, end: 9 }];
        let outcome = parse(value.as_bytes(), size, max, &mut out);
        (outcome, out.iter().map(|range| (range.start, range.end)).collect())
    }

    #[test]
    fn satisfiable_ranges_are_parsed() {
        for (value, wanted) in [
            ("bytes=0-0", vec![(0, 1)]),
            ("bytes=0-", vec![(0, 10)]),
            ("BYTES=2-5", vec![(2, 6)]),
            ("bytes=9-100", vec![(9, 10)]),
            ("bytes=-3", vec![(7, 10)]),
            ("bytes=-100", vec![(0, 10)]),
            ("bytes=0-1,4-5", vec![(0, 2), (4, 6)]),
            ("bytes= 0 - 1 , 4 - , 20-30", vec![(0, 2), (4, 10)]),
            ("bytes=5-6,0-1", vec![(5, 7), (0, 2)]),
            ("bytes=0-4,2-6", vec![(0, 5), (2, 7)]),
            ("bytes=20-,-1", vec![(9, 10)]),
            ("bytes=0-9223372036854775807", vec![(0, 10)]),
            ("bytes=0-18446744073709551616", vec![(0, 10)]),
            ("bytes=-99999999999999999999", vec![(0, 10)]),
            ("bytes=1-2,", vec![(1, 3)]),
            ("bytes=, ,1-2", vec![(1, 3)]),
            ("bytes=\t1-2 ,\t4-5", vec![(1, 3), (4, 6)]),
        ] {
            assert_eq!(run(value, 10, 100), (RangeOutcome::Partial, wanted), "{value}");
        }
    }

    #[test]
    fn some_ranges_select_the_complete_response() {
        for (value, size) in [
            ("", 10),
            ("bytes=", 10),
            ("bytes", 10),
            ("items=0-1", 10),
            ("bytes 0-1", 10),
            ("bytes=0-9,0-0", 10),
            ("bytes=0-,0-,0-", 10),
            ("bytes=0-", 0),
            ("bytes=-5", 0),
            ("bytes=0-0", 0),
        ] {
            assert_eq!(run(value, size, 100), (RangeOutcome::Whole, vec![]), "{value} of {size}");
        }
        assert_eq!(run("bytes=0-1,4-5,7-8", 10, 2), (RangeOutcome::Whole, vec![]), "more than max_ranges");
        assert_eq!(run("bytes=0-1,4-5", 10, 2).0, RangeOutcome::Partial);
        assert_eq!(run("bytes=0-1", 10, 0), (RangeOutcome::Whole, vec![]), "max_ranges 0");
    }

    #[test]
    fn unsatisfiable_ranges_are_refused() {
        for value in [
            "bytes=10-",
            "bytes=10-20",
            "bytes=5-4",
            "bytes=-0",
            "bytes=x",
            "bytes=1",
            "bytes=1-2-3",
            "bytes=,",
            "bytes=- 5",
            "bytes=--5",
            "bytes=1-x",
            "bytes=0x1-2",
            "bytes=1-2;",
            "bytes=9223372036854775808-",
        ] {
            assert_eq!(run(value, 10, 100), (RangeOutcome::NotSatisfiable, vec![]), "{value}");
        }
        assert_eq!(run("bytes=5-", 0, 100).0, RangeOutcome::NotSatisfiable);
    }

    #[test]
    fn if_range_is_evaluated() {
        let known = Validators { etag: Some(b"\"a\""), last_modified: Some(784_111_777) };
        let weak = Validators { etag: Some(b"W/\"a\""), last_modified: None };
        for (value, validators, wanted) in [
            ("\"a\"", known, true),
            ("\"b\"", known, false),
            ("W/\"a\"", known, false),
            ("W/\"a\"", weak, false),
            ("\"a\"", Validators::default(), false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", known, true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", known, false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", weak, false),
            ("junk", known, false),
            ("", known, false),
        ] {
            assert_eq!(if_range_matches(value.as_bytes(), validators), wanted, "{value}");
        }
    }

    #[test]
    fn content_range_values_are_written() {
        let mut out = Vec::new();
        push_content_range(ByteRange { start: 0, end: 5 }, 10, &mut out);
        assert_eq!(out, b"bytes 0-4/10");
        out.clear();
        push_unsatisfied_range(10, &mut out);
        assert_eq!(out, b"bytes */10");
    }

    proptest! {
        /// The model marks each byte of each range.
        #[test]
        fn agrees_with_a_naive_model(
            size in 0u64..40,
            specs in proptest::collection::vec((0u64..50, proptest::option::of(0u64..50), any::<bool>()), 1..5),
        ) {
            let text: Vec<String> = specs.iter().map(|(first, last, suffix)| match (last, suffix) {
                (_, true) => format!("-{first}"),
                (Some(last), _) => format!("{first}-{last}"),
                (None, _) => format!("{first}-"),
            }).collect();
            let (outcome, ranges) = run(&format!("bytes={}", text.join(",")), size, 100);

            let mut wanted = Vec::new();
            let mut whole = false;
            for (first, last, suffix) in specs {
                let covered: Vec<u64> = (0..size).filter(|&at| match (last, suffix) {
                    (_, true) => at + first >= size,
                    (Some(last), _) => at >= first && at <= last,
                    (None, _) => at >= first,
                }).collect();
                let starts_at_zero = if suffix { first >= size } else { first == 0 };
                match (covered.first(), covered.last()) {
                    (Some(&first), Some(&last)) => wanted.push((first, last + 1)),
                    _ => whole |= starts_at_zero,
                }
            }
            let total: u64 = wanted.iter().map(|(start, end)| end - start).sum();
            let expected = match () {
                () if whole || (total > size && !wanted.is_empty()) => (RangeOutcome::Whole, vec![]),
                () if wanted.is_empty() => (RangeOutcome::NotSatisfiable, vec![]),
                () => (RangeOutcome::Partial, wanted),
            };
            prop_assert_eq!((outcome, ranges), expected);
        }

        #[test]
        fn no_input_panics(value in "bytes=[0-9, x-]{0,40}", size: u64) {
            let (outcome, ranges) = run(&value, size, 1000);
            prop_assert_eq!(outcome == RangeOutcome::Partial, !ranges.is_empty());
            prop_assert!(ranges.iter().all(|&(start, end)| start < end && end <= size));
        }
    }
}
