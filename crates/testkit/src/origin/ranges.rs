//! Conditional requests and ranges as a correct origin handles them: RFC 9110 sections 13 and 14, implemented
//! independently.
//!
//! [`precondition`] evaluates the conditions of a request, [`wanted`] returns the requested ranges of the object. The
//! module does not use crate `http`, whose bugs could otherwise hide from the tests.

use std::ops::Range;

use crate::date;
use crate::origin::request::OriginRequest;

/// Maximum number of ranges in a request; with more, the complete object is sent, as RFC 9110 section 14.2 allows.
const RANGES_MAX: usize = 32;

/// The validators of an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Validators {
    pub(crate) etag: Option<String>,
    pub(crate) modified: Option<u64>,
}

/// Result of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Answer,
    NotModified,
    Failed,
}

/// The requested ranges of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedRanges {
    Whole,
    Parts(Vec<Range<u64>>),
    Unsatisfiable,
}

/// Evaluates the conditions in the order of RFC 9110 section 13.2.2.
pub(crate) fn precondition(request: &OriginRequest, own: &Validators) -> Verdict {
    let safe = matches!(request.method.as_str(), "GET" | "HEAD");
    let date_of = |name: &str| request.header(name).and_then(|value| date::parse(&value));
    if request.header("if-match").is_some() {
        let strong = own.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        if !has_tag(request, "if-match", strong) {
            return Verdict::Failed;
        }
    } else if let (Some(date), Some(modified)) = (date_of("if-unmodified-since"), own.modified)
        && modified > date
    {
        return Verdict::Failed;
    }
    if request.header("if-none-match").is_some() {
        return match has_tag(request, "if-none-match", own.etag.as_deref()) {
            true if safe => Verdict::NotModified,
            true => Verdict::Failed,
            false => Verdict::Answer,
        };
    }
    match (date_of("if-modified-since"), own.modified) {
        (Some(date), Some(modified)) if safe && modified <= date => Verdict::NotModified,
        _ => Verdict::Answer,
    }
}

/// Whether a list of entity tags contains this one, by weak comparison.
fn has_tag(request: &OriginRequest, name: &str, own: Option<&str>) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let Some(own) = own.map(opaque) else { return false };
    request.headers(name).any(|value| value == "*" || value.split(',').any(|tag| opaque(tag) == own))
}

/// Evaluates `Range` and `If-Range` for an object of this size.
pub(crate) fn wanted(request: &OriginRequest, own: &Validators, size: u64) -> RequestedRanges {
    let Some(range) = request.header("range").filter(|_| request.method == "GET") else {
        return RequestedRanges::Whole;
    };
    if let Some(condition) = request.header("if-range") {
        // RFC 9110 section 13.1.5: strong comparison, and a date only if it is identical.
        let same_tag = own.etag.as_deref() == Some(condition.as_str()) && !condition.starts_with("W/");
        let same_date = own.modified.is_some() && date::parse(&condition) == own.modified;
        if !same_tag && !same_date {
            return RequestedRanges::Whole;
        }
    }
    let Some(list) = range.strip_prefix("bytes=") else { return RequestedRanges::Whole };
    let specs: Vec<&str> = list.split(',').map(str::trim).filter(|spec| !spec.is_empty()).collect();
    if specs.is_empty() || specs.len() > RANGES_MAX {
        return RequestedRanges::Whole;
    }
    let mut parts = Vec::new();
    for spec in specs {
        match part(spec, size) {
            // An invalid range invalidates the complete field.
            None => return RequestedRanges::Whole,
            Some(part) if part.is_empty() => {}
            Some(part) => parts.push(part),
        }
    }
    if parts.is_empty() { RequestedRanges::Unsatisfiable } else { RequestedRanges::Parts(parts) }
}

/// Parses one range; returns an empty range if the object has no byte of it.
fn part(spec: &str, size: u64) -> Option<Range<u64>> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| digits(text));
    match spec.split_once('-')? {
        ("", suffix) => {
            let count = number(suffix)?.min(size);
            Some(size - count..size)
        }
        (first, "") => Some(number(first)?.min(size)..size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(size)..last.saturating_add(1).min(size))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &str) -> OriginRequest {
        let head = format!("GET / HTTP/1.1\r\n{fields}");
        OriginRequest::parse(head.as_bytes()).expect("it is well-formed")
    }

    fn own(etag: &str) -> Validators {
        Validators { etag: Some(etag.to_owned()), modified: Some(784_111_777) }
    }

    #[test]
    fn ranges_are_limited_to_the_object() {
        let parts = |list: &str| wanted(&request(&format!("Range: bytes={list}\r\n")), &own("\"a\""), 100);
        let one = |start: u64, end: u64| RequestedRanges::Parts(std::iter::once(start..end).collect());
        assert_eq!(parts("0-0"), one(0, 1));
        assert_eq!(parts("90-"), one(90, 100));
        assert_eq!(parts("90-1000"), one(90, 100));
        assert_eq!(parts("-10"), one(90, 100));
        assert_eq!(parts("-1000"), one(0, 100));
        assert_eq!(parts("0-1, 200-300,50-50"), RequestedRanges::Parts(vec![0..2, 50..51]));
        assert_eq!(parts("100-"), RequestedRanges::Unsatisfiable);
        assert_eq!(parts("-0"), RequestedRanges::Unsatisfiable);
        for list in ["5-4", "a-b", "+1-2", "", "1", "0-1,x"] {
            assert_eq!(parts(list), RequestedRanges::Whole, "{list}");
        }
    }

    #[test]
    fn if_range_needs_an_identical_validator() {
        let wanted = |condition: &str, etag: &str| {
            let request = request(&format!("Range: bytes=0-0\r\nIf-Range: {condition}\r\n"));
            wanted(&request, &own(etag), 100) != RequestedRanges::Whole
        };
        assert!(wanted("\"a\"", "\"a\""));
        assert!(wanted("Sun, 06 Nov 1994 08:49:37 GMT", "\"a\""));
        assert!(!wanted("Sun, 06 Nov 1994 08:49:38 GMT", "\"a\""));
        assert!(!wanted("\"b\"", "\"a\"") && !wanted("W/\"a\"", "W/\"a\""));
    }

    #[test]
    fn conditions_are_evaluated_in_order() {
        let verdict = |fields: &str, etag: &str| precondition(&request(fields), &own(etag));
        let (old, same) = ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(verdict("", "\"a\""), Verdict::Answer);
        assert_eq!(verdict("If-None-Match: \"b\", W/\"a\"\r\n", "\"a\""), Verdict::NotModified);
        assert_eq!(verdict("If-None-Match: *\r\n", "\"a\""), Verdict::NotModified);
        let both = format!("If-None-Match: \"b\"\r\nIf-Modified-Since: {same}\r\n");
        assert_eq!(verdict(&both, "\"a\""), Verdict::Answer);
        assert_eq!(verdict(&format!("If-Modified-Since: {same}\r\n"), "\"a\""), Verdict::NotModified);
        assert_eq!(verdict(&format!("If-Modified-Since: {old}\r\n"), "\"a\""), Verdict::Answer);
        assert_eq!(verdict("If-Match: \"a\"\r\n", "W/\"a\""), Verdict::Failed);
        assert_eq!(verdict("If-Match: \"a\"\r\n", "\"a\""), Verdict::Answer);
        assert_eq!(verdict(&format!("If-Unmodified-Since: {old}\r\n"), "\"a\""), Verdict::Failed);
    }
}
