//! `Range` and `Content-Range` (RFC 9110 section 14), and the set of ranges that a cache has stored.

use http::range::{
    ByteRange, ContentRange, RangeOutcome, RangeSet, parse, push_content_range, push_unsatisfied_range,
};

use super::{take_byte, take_u64};
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "range",
    run,
    tokens: &[
        "bytes=",
        "bytes ",
        "0-",
        "-5",
        "0-0",
        "5-9,",
        ",",
        "-",
        "/",
        "*",
        "bytes */10",
        "bytes 0-4/10",
        " ",
        "9223372036854775807",
        "18446744073709551615",
        "BYTES=",
    ],
};

/// Maximum number of ranges of the set under test.
const RANGES_MAX: usize = 8;

/// Parses a value for a random size, writes the ranges as `Content-Range`, and compares a set with a model.
pub fn run(mut data: &[u8]) {
    let (shift, max_ranges) = (take_byte(&mut data), u32::from(take_byte(&mut data)));
    // The maximum file size is i64::MAX.
    let size = (take_u64(&mut data) >> 1) >> (shift & 63);
    let mut ranges = Vec::new();
    let outcome = parse(data, size, max_ranges, &mut ranges);
    assert_eq!(outcome == RangeOutcome::Partial, !ranges.is_empty());
    assert!(ranges.len() <= max_ranges as usize);
    let mut total = 0_u64;
    for range in &ranges {
        assert!(range.start < range.end && range.end <= size, "{range:?} of {size}");
        total = total.checked_add(range.len()).expect("the sum is compared with the size");
        let mut text = Vec::new();
        push_content_range(*range, size, &mut text);
        assert_content_range(&text, ContentRange::Part { range: *range, size: Some(size) });
    }
    assert!(total <= size);
    let mut text = Vec::new();
    push_unsatisfied_range(size, &mut text);
    assert_content_range(&text, ContentRange::Unsatisfied { size });
    if let Some(ContentRange::Part { range, size }) = ContentRange::parse(data) {
        assert!(range.start < range.end && size.is_none_or(|size| range.end <= size));
    }
    check_set(data);
}

/// Parses the output of a writer, with or without the field name, and compares the value.
fn assert_content_range(text: &[u8], expected: ContentRange) {
    let value = text.strip_prefix(b"Content-Range: ").unwrap_or(text);
    let value = value.strip_suffix(b"\r\n").unwrap_or(value);
    assert_eq!(ContentRange::parse(value), Some(expected), "{}", text.escape_ascii());
}

/// Inserts ranges below 64 into a set and into a bit mask, and compares them.
fn check_set(data: &[u8]) {
    let (mut set, mut mask) = (RangeSet::new(), 0_u64);
    for pair in data.chunks_exact(2) {
        let (start, len) = (u64::from(pair[0] & 63), u64::from(pair[1] & 15));
        let end = (start + len).min(64);
        if start == end {
            continue;
        }
        let range = ByteRange { start, end };
        if set.insert(range, RANGES_MAX).is_ok() {
            mask |= (start..end).fold(0, |bits, bit| bits | 1 << bit);
        }
        assert_eq!(set.covered(), u64::from(mask.count_ones()));
        assert!(set.ranges().len() <= RANGES_MAX);
    }
    for at in 0..64_u64 {
        assert_eq!(
            set.contains(ByteRange { start: at, end: at + 1 }),
            mask >> at & 1 == 1,
            "{set:?} at {at}"
        );
    }
    let missing: u64 = set.holes(ByteRange { start: 0, end: 64 }).map(ByteRange::len).sum();
    assert_eq!(missing, u64::from(mask.count_zeros()));
}
