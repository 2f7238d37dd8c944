//! Byte ranges: requested by the client, sent by an upstream, and of slices.
//!
//! [`RequestedRange`] is the range that a client requests, [`Part`] the range of a 206, [`RequestedSlice`] the slice of a request.

use std::ops::Range;

use cache::CHUNK_BYTES;
use http::fields::{HeaderId, Method};
use http::push_decimal;

use exchange::facts::Fact;
use exchange::request::Request;

/// The single range that a client requests (RFC 9110 section 14.1.2), before the complete length is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedRange {
    /// From a byte offset up to an end offset (exclusive), or to the end of the body.
    From(u64, Option<u64>),
    /// The last N bytes.
    Last(u64),
}

/// Returns the requested range, if it is fetched and stored separately. Several ranges are cut out of the complete response.
pub fn requested(request: &Request) -> Option<RequestedRange> {
    // Subrequests, which filters make, need the complete response.
    if request.method != Method::Get || request.depth > 0 {
        return None;
    }
    let value = request.header(HeaderId::Range)?;
    let (unit, spec) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") || spec.contains(&b',') {
        return None;
    }
    let dash = memchr::memchr(b'-', spec)?;
    let number = |text: &[u8]| http::parse_decimal(text.trim_ascii());
    match (spec[..dash].trim_ascii(), spec[dash + 1..].trim_ascii()) {
        (b"", last) => number(last).filter(|last| *last > 0).map(RequestedRange::Last),
        (first, b"") => Some(RequestedRange::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| RequestedRange::From(first, last.checked_add(1)))
        }
    }
}

/// Whether the first requested range starts at or after `offset`, whether or not ranges are fetched separately
/// (`proxy_cache_parts`). The last N bytes count as such a range, because their offset is not known. As in nginx, every request with
/// `Range` does for the offset 0.
pub fn starts_from(request: &Request, offset: u64) -> bool {
    // Subrequests, which filters make, need the complete response.
    let Some(value) = request.header(HeaderId::Range).filter(|_| request.depth == 0) else { return false };
    let Some((unit, spec)) = value.split_at_checked(6) else { return offset == 0 };
    let spec = spec.trim_ascii_start();
    let digits = spec.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_beyond =
        spec.starts_with(b"-") || http::parse_decimal(&spec[..digits]).is_some_and(|start| start >= offset);
    offset == 0 || unit.eq_ignore_ascii_case(b"bytes=") && is_beyond
}

impl RequestedRange {
    /// Returns the range to request from the upstream: complete chunks, because only these can be stored. The last N bytes are
    /// requested unchanged, because their offset is not known.
    pub fn aligned(self) -> Vec<u8> {
        let mut text = b"bytes=".to_vec();
        match self {
            RequestedRange::Last(count) => {
                text.push(b'-');
                push_decimal(&mut text, count);
            }
            RequestedRange::From(first, end) => {
                push_decimal(&mut text, first / CHUNK_BYTES * CHUNK_BYTES);
                text.push(b'-');
                if let Some(end) = end.and_then(|end| end.checked_next_multiple_of(CHUNK_BYTES)) {
                    debug_assert!(end > first, "a range has bytes");
                    push_decimal(&mut text, end - 1);
                }
            }
        }
        text
    }

    /// Returns the range in complete chunks, if the start is known. A range without an end extends to the maximum offset.
    pub fn chunks(self) -> Option<Range<u64>> {
        let RequestedRange::From(first, end) = self else { return None };
        let end = end.and_then(|end| end.checked_next_multiple_of(CHUNK_BYTES)).unwrap_or(u64::MAX);
        Some(first / CHUNK_BYTES * CHUNK_BYTES..end)
    }

    /// Returns the start of the range, if known.
    pub fn start(self) -> Option<u64> {
        match self {
            RequestedRange::From(first, _) => Some(first),
            RequestedRange::Last(_) => None,
        }
    }

    /// Returns the range in a body of `length` bytes; empty if the body ends before the range.
    pub fn within(self, length: u64) -> Range<u64> {
        match self {
            RequestedRange::From(first, end) => {
                first.min(length)..end.unwrap_or(length).clamp(first.min(length), length)
            }
            RequestedRange::Last(count) => length.saturating_sub(count)..length,
        }
    }
}

/// A part of a body, sent by an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The range of the part.
    pub range: Range<u64>,
    /// Complete length of the body in bytes.
    pub length: u64,
}

impl Part {
    /// Whether the part contains all bytes of `range`.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && self.range.end >= range.end
    }
}

/// The slice that a request is for (`slice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedSlice {
    /// Offset of the slice.
    pub start: u64,
    /// Size of all slices but the last one, in bytes.
    pub size: u64,
}

impl RequestedSlice {
    /// Returns the offset of its last byte, if the body does not end before.
    pub fn last(self) -> u64 {
        debug_assert!(self.size > 0, "a slice has bytes");
        self.start + (self.size - 1)
    }

    /// Returns the range of the slice in a body of `length` bytes; it starts beyond its end if the body ends before the slice.
    pub fn within(self, length: u64) -> Range<u64> {
        self.start..length.min(self.start + self.size)
    }
}

impl Fact for RequestedSlice {
    fn outlives_location(&self) -> bool {
        true
    }
}

/// Makes a request for a slice contact the upstream, because the stored slice is of another version of the object.
#[derive(Clone, Copy, Debug)]
pub struct RenewsSlice;

impl Fact for RenewsSlice {
    fn outlives_location(&self) -> bool {
        true
    }
}

/// Returns the slice that a request is for (`slice`), once `$slice_range` was evaluated.
pub fn requested_slice(request: &Request) -> Option<RequestedSlice> {
    request.facts.get::<RequestedSlice>().map(|slice| *slice)
}

/// Returns the offset of that slice.
pub fn slice_start(request: &Request) -> Option<u64> {
    requested_slice(request).map(|slice| slice.start)
}
