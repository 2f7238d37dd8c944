//! Trailer sections of requests (RFC 9113 section 8.1, RFC 9114 section 4.1).
//!
//! Main type: [`TrailerReader`]. It receives the decoded fields one by one. The maximum length is the same as in HTTP/1.

use super::head::is_trailer;
use crate::fields::HeaderId;
use crate::framing::{TRAILER_LEN_MAX, may_be_trailer};

/// Names and values of trailer fields.
pub type TrailerFields = Vec<(Vec<u8>, Vec<u8>)>;

/// Collector of trailer fields.
#[derive(Debug, Default)]
pub struct TrailerReader {
    fields: TrailerFields,
    /// Number of bytes of all fields.
    size: usize,
    is_invalid: bool,
}

impl TrailerReader {
    /// Adds a field.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += name.len() + value.len();
        self.is_invalid |= !is_trailer(name, value) || self.size > TRAILER_LEN_MAX as usize;
        if !self.is_invalid && may_be_trailer(HeaderId::of(name)) {
            self.fields.push((name.to_vec(), value.to_vec()));
        }
    }

    /// Returns the fields without those that must not be passed on; `None` if the section is malformed.
    #[must_use]
    pub fn finish(self) -> Option<TrailerFields> {
        (!self.is_invalid).then_some(self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&str, &str)]) -> Option<TrailerFields> {
        let mut reader = TrailerReader::default();
        fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes()));
        reader.finish()
    }

    #[test]
    fn trailers_are_limited_and_some_are_not_passed_on() {
        let long = "x".repeat(TRAILER_LEN_MAX as usize);
        assert_eq!(read(&[]), Some(vec![]));
        assert_eq!(read(&[("a", "b"), ("content-length", "1")]), Some(vec![(b"a".to_vec(), b"b".to_vec())]));
        for wrong in [("a", &*long), (":path", "/"), ("A", "b"), ("a", " b"), ("connection", "close")] {
            assert_eq!(read(&[("x", "y"), wrong]), None, "{}", wrong.0);
        }
    }
}
