//! The header section of a response. The tries, the cache and the variables of `$upstream_http_*` share it.

use std::ops::Range;
use std::sync::Arc;

use http::fields::HeaderId;
use http::h2::hpack::NeverIndexed;
use http::response::parse::ParsedResponse;
use io::segments::Source;

/// The header section of a response: its bytes and its parsed form.
#[derive(Debug)]
pub struct Heading {
    raw: Source,
    /// The range of `raw` that the head's spans refer to.
    range: Range<usize>,
    /// Shared with the memory of a cache.
    head: Arc<ParsedResponse>,
    never_indexed: Option<Box<NeverIndexed>>,
}

impl Heading {
    /// Creates the heading from a head that was parsed from the start of `raw`.
    pub fn new(raw: Source, head: impl Into<Arc<ParsedResponse>>) -> Heading {
        let range = 0..raw.bytes().len();
        Heading::within(raw, range, head.into())
    }

    /// Creates the heading from a head that was parsed from a range of `raw`.
    pub fn within(raw: Source, range: Range<usize>, head: Arc<ParsedResponse>) -> Heading {
        Heading { raw, range, head, never_indexed: None }
    }

    /// Sets the names of the never-indexed fields, which only a response over HTTP/2 has.
    pub(super) fn with_never_indexed(self, names: Option<Box<NeverIndexed>>) -> Heading {
        Heading { never_indexed: names, ..self }
    }

    /// Returns the names of the never-indexed fields (RFC 7541 section 7.1.3).
    pub fn never_indexed(&self) -> Option<&NeverIndexed> {
        self.never_indexed.as_deref()
    }

    /// Returns the bytes that the head's spans refer to.
    pub fn raw(&self) -> &[u8] {
        &self.raw.bytes()[self.range.clone()]
    }

    /// Returns the parsed head.
    pub fn head(&self) -> &ParsedResponse {
        &self.head
    }

    /// Returns the parsed head. All responses from the same cache entry in memory have the same one.
    pub fn shared_head(&self) -> &Arc<ParsedResponse> {
        &self.head
    }

    /// Whether the body is read ahead of the client: as in nginx by the last valid `X-Accel-Buffering`, else by `buffering`.
    pub fn is_buffered(&self, buffering: bool) -> bool {
        let values = self.head.all(self.raw(), HeaderId::XAccelBuffering);
        values.fold(buffering, |buffering, value| match value {
            value if value.eq_ignore_ascii_case(b"no") => false,
            value if value.eq_ignore_ascii_case(b"yes") => true,
            _ => buffering,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_valid_buffering_field_counts() {
        let is_buffered = |values: &[&str]| {
            let lines: String =
                values.iter().map(|value| format!("X-Accel-Buffering: {value}\r\n")).collect();
            let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n").into_bytes();
            let mut head = ParsedResponse::new();
            http::response::parse::parse(&mut head, &text, &http::response::parse::Limits::default())
                .expect("a response");
            Heading::new(Source::Vec(text), head).is_buffered(true)
        };
        for values in [&["No"][..], &["yes", "no"], &["no", "x"]] {
            assert!(!is_buffered(values), "{values:?}");
        }
        for values in [&["x"][..], &[], &["no", "YES"]] {
            assert!(is_buffered(values), "{values:?}");
        }
    }
}
