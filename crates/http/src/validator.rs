//! Validators of responses and their uses (RFC 9110 section 8.8): joining ranges, `If-Range`, and revalidation.

use crate::conditional::{self, Comparison, Strength};
use crate::date;

/// Minimum difference in seconds between `Last-Modified` and `Date` that makes the date a strong validator. RFC 9110 section
/// 8.8.2.2 requires at least one second, and enough for clock differences; RFC 7232 required sixty.
pub const STRONG_DATE_GAP_S: i64 = 60;

/// Validator of a response: the entity tag if present, otherwise the date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validator<'a> {
    /// No validator, or only malformed ones.
    #[default]
    None,
    /// An entity tag with its quotes.
    Etag(&'a [u8], Strength),
    /// `Last-Modified` in seconds since 1970.
    Date(i64, Strength),
}

impl<'a> Validator<'a> {
    /// Determines the validator from the fields of a response. A date is strong if the response was generated long enough after it
    /// (RFC 9110 section 8.8.2.2): the content may change twice within a second.
    #[must_use]
    pub fn of(etag: Option<&'a [u8]>, last_modified: Option<&[u8]>, response_date: Option<i64>) -> Self {
        if let Some((tag, strength)) = etag.and_then(|tag| Some((tag, conditional::strength(tag)?))) {
            return Self::Etag(tag, strength);
        }
        let Some(modified) = last_modified.and_then(date::parse_http) else { return Self::None };
        let gap = response_date.map(|date| date.saturating_sub(modified));
        let is_strong = gap.is_some_and(|gap| gap >= STRONG_DATE_GAP_S);
        Self::Date(modified, if is_strong { Strength::Strong } else { Strength::Weak })
    }

    /// Whether the validator is strong.
    #[must_use]
    pub fn is_strong(self) -> bool {
        matches!(self, Self::Etag(_, Strength::Strong) | Self::Date(_, Strength::Strong))
    }

    /// Whether ranges with these validators belong to the same representation and may be joined (RFC 9110 section 15.3.7.3): both
    /// strong, of the same kind, and equal.
    #[must_use]
    pub fn joins(self, other: Self) -> bool {
        self.is_strong() && other.is_strong() && self.same_as(other, Comparison::Strong)
    }

    /// Whether a 304 with the validator `fresh` refers to the stored response with this validator (RFC 9111 section 4.3.4). A 304
    /// without a validator refers to the only candidate.
    #[must_use]
    pub fn confirmed_by(self, fresh: Self) -> bool {
        match fresh {
            Self::None => true,
            _ if fresh.is_strong() => self.same_as(fresh, Comparison::Strong),
            _ => self.same_as(fresh, Comparison::Weak),
        }
    }

    fn same_as(self, other: Self, comparison: Comparison) -> bool {
        match (self, other) {
            (Self::Etag(left, _), Self::Etag(right, _)) => conditional::tags_match(left, right, comparison),
            (Self::Date(left, _), Self::Date(right, _)) => left == right,
            _ => false,
        }
    }

    /// Appends the value of `If-Range` for a request of a further range of the same representation (RFC 9110 section 13.1.5).
    /// Appends nothing and returns false for a weak validator.
    #[must_use]
    pub fn push_if_range(self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Etag(tag, Strength::Strong) => out.extend_from_slice(tag),
            Self::Date(modified, Strength::Strong) => out.extend_from_slice(&date::http(modified)),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: i64 = 784_111_777;
    const TEXT: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn etag(tag: &str) -> Validator<'_> {
        Validator::of(Some(tag.as_bytes()), Some(TEXT), Some(DATE + 100))
    }

    fn date(gap: i64) -> Validator<'static> {
        Validator::of(None, Some(TEXT), Some(DATE + gap))
    }

    #[test]
    fn the_tag_takes_precedence_over_the_date() {
        assert_eq!(etag("\"a\""), Validator::Etag(b"\"a\"", Strength::Strong));
        assert_eq!(etag("W/\"a\""), Validator::Etag(b"W/\"a\"", Strength::Weak));
        assert_eq!(etag("a"), Validator::Date(DATE, Strength::Strong), "no tag");
        assert_eq!(Validator::of(None, Some(b"x"), Some(DATE)), Validator::None);
        assert_eq!(Validator::of(None, None, Some(DATE)), Validator::None);
    }

    #[test]
    fn dates_are_strong_validators_after_a_minute() {
        for (gap, strong) in [(0, false), (59, false), (60, true), (-100, false), (i64::MAX - DATE, true)] {
            assert_eq!(date(gap).is_strong(), strong, "{gap}");
        }
        assert!(!Validator::of(None, Some(TEXT), None).is_strong(), "the time of generation is unknown");
        let far = Validator::of(None, Some(TEXT), Some(i64::MIN));
        assert!(!far.is_strong());
    }

    #[test]
    fn ranges_are_combined_under_an_equal_strong_validator() {
        for (left, right, wanted) in [
            (etag("\"a\""), etag("\"a\""), true),
            (etag("\"a\""), etag("\"b\""), false),
            (etag("\"a\""), etag("W/\"a\""), false),
            (etag("W/\"a\""), etag("W/\"a\""), false),
            (date(60), date(60), true),
            (date(60), date(1000), true),
            (date(60), date(0), false),
            (date(0), date(0), false),
            (date(60), Validator::Date(DATE + 1, Strength::Strong), false),
            (etag("\"a\""), date(60), false),
            (Validator::None, Validator::None, false),
        ] {
            assert_eq!(left.joins(right), wanted, "{left:?} {right:?}");
            assert_eq!(right.joins(left), wanted, "{right:?} {left:?}");
        }
    }

    #[test]
    fn a_304_is_matched_with_its_stored_response() {
        for (stored, fresh, wanted) in [
            (etag("\"a\""), Validator::None, true),
            (Validator::None, Validator::None, true),
            (etag("\"a\""), etag("\"a\""), true),
            (etag("\"a\""), etag("W/\"a\""), true),
            (etag("W/\"a\""), etag("W/\"a\""), true),
            (etag("W/\"a\""), etag("\"a\""), false),
            (etag("\"a\""), etag("\"b\""), false),
            (date(60), date(0), true),
            (date(0), Validator::Date(DATE + 1, Strength::Weak), false),
            (Validator::None, etag("\"a\""), false),
        ] {
            assert_eq!(stored.confirmed_by(fresh), wanted, "{stored:?} {fresh:?}");
        }
    }

    #[test]
    fn if_range_accepts_only_strong_validators() {
        for (validator, wanted) in [
            (etag("\"a\""), Some(&b"\"a\""[..])),
            (etag("W/\"a\""), None),
            (date(60), Some(TEXT)),
            (date(0), None),
            (Validator::None, None),
        ] {
            let mut out = Vec::new();
            assert_eq!(validator.push_if_range(&mut out), wanted.is_some(), "{validator:?}");
            assert_eq!(out, wanted.unwrap_or_default(), "{validator:?}");
        }
    }
}
