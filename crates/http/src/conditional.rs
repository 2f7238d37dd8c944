//! Conditional requests and entity tags (RFC 9110 sections 8.8.3 and 13).
//!
//! Order and outcome follow RFC 9110 section 13.2.2. nginx differs in one case: with both `If-None-Match` and `If-Modified-Since`
//! it returns 304 only if both match. The RFC ignores the date in this case, and so does this file. Likewise
//! `If-Unmodified-Since` is ignored if the request has `If-Match`, or if the value is not a date; nginx returns 412. The exact
//! comparison of `If-Modified-Since` (the default) is nginx's.

use crate::bytes::trim_ows;
use crate::date;
use crate::fields::{HeaderId, Method};
use crate::request::Head;

/// Result of the preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionResult {
    /// Process the request as if it had no condition.
    Proceed,
    /// Return 304, without a body.
    NotModified,
    /// Return 412.
    PreconditionFailed,
}

/// `if_modified_since`: how the date of that field is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// The field is ignored.
    Off,
    /// Equal to the modification time.
    #[default]
    Exact,
    /// Not before the modification time.
    Before,
}

/// The server that evaluates the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// The origin server of the representation.
    Origin,
    /// A cache. It ignores `If-Match` and `If-Unmodified-Since`: they refer to the representation of the origin server, and the
    /// cache may have an older one (RFC 9111 section 4.3.2). It also ignores invalid HTTP dates (RFC 9110 section 13.1.3).
    Cache,
}

/// The validators of the selected representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// The entity tag with its quotes, weak or strong.
    pub etag: Option<&'a [u8]>,
    /// Modification time in seconds since 1970.
    pub last_modified: Option<i64>,
}

/// Whether a request has a precondition that [`evaluate`] considers.
#[must_use]
pub fn is_conditional(head: &Head) -> bool {
    let ids =
        [HeaderId::IfMatch, HeaderId::IfUnmodifiedSince, HeaderId::IfNoneMatch, HeaderId::IfModifiedSince];
    ids.into_iter().any(|id| head.field(id).is_some())
}

/// Evaluates the preconditions of a request for an existing representation. `If-Range` is handled in [`crate::range`].
#[must_use]
pub fn evaluate(
    head: &Head,
    buf: &[u8],
    validators: Validators<'_>,
    mode: IfModifiedSince,
    evaluator: Evaluator,
) -> PreconditionResult {
    let get = |id| head.get(buf, id);
    // Steps 1 and 2: the representation must still be in the state that the client knows.
    let is_known = match (get(HeaderId::IfMatch), get(HeaderId::IfUnmodifiedSince)) {
        _ if evaluator == Evaluator::Cache => true,
        (Some(list), _) => matches_list(list, validators.etag, Comparison::Strong),
        (None, Some(value)) => {
            let dates = date::parse_http(value).zip(validators.last_modified);
            dates.is_none_or(|(since, modified)| since >= modified)
        }
        (None, None) => true,
    };
    if !is_known {
        return PreconditionResult::PreconditionFailed;
    }
    // Steps 3 and 4: the client's copy may still be valid.
    let reads = matches!(head.method(), Method::Get | Method::Head);
    if let Some(list) = get(HeaderId::IfNoneMatch) {
        return match matches_list(list, validators.etag, Comparison::Weak) {
            false => PreconditionResult::Proceed,
            true if reads => PreconditionResult::NotModified,
            true => PreconditionResult::PreconditionFailed,
        };
    }
    match (get(HeaderId::IfModifiedSince), validators.last_modified) {
        (Some(value), Some(modified)) if reads => {
            let since = match evaluator {
                Evaluator::Origin => date::parse_http(value),
                Evaluator::Cache => date::parse_expiration(value),
            };
            match since.is_some_and(|since| is_unmodified(since, modified, mode)) {
                true => PreconditionResult::NotModified,
                false => PreconditionResult::Proceed,
            }
        }
        _ => PreconditionResult::Proceed,
    }
}

fn is_unmodified(since: i64, modified: i64, mode: IfModifiedSince) -> bool {
    match mode {
        IfModifiedSince::Off => false,
        IfModifiedSince::Exact => since == modified,
        IfModifiedSince::Before => since >= modified,
    }
}

/// How two entity tags are compared (RFC 9110 section 8.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal, and neither is weak.
    Strong,
    /// Equal, ignoring the weakness prefix `W/`.
    Weak,
}

/// Whether `list` (the value of `If-Match` or `If-None-Match`) is `*` or contains `etag`. Elements from an unclosed quote on are
/// ignored. Some origins generate tags without quotes, and their clients return these: as in nginx, they match the same text.
#[must_use]
pub fn matches_list(list: &[u8], etag: Option<&[u8]>, comparison: Comparison) -> bool {
    if trim_ows(list) == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    let mut rest = list;
    loop {
        let Some(start) = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b',')) else {
            return false;
        };
        rest = &rest[start..];
        let prefix = if rest.starts_with(b"W/") { 2 } else { 0 };
        let is_quoted = rest.get(prefix) == Some(&b'"');
        let len = if is_quoted {
            let Some(len) = memchr::memchr(b'"', &rest[prefix + 1..]) else { return false };
            prefix + len + 2
        } else {
            memchr::memchr(b',', rest).unwrap_or(rest.len())
        };
        let (tag, tail) = rest.split_at(len);
        let tag = if is_quoted { tag } else { trim_ows(tag) };
        if tags_match(tag, etag, comparison) {
            return true;
        }
        rest = tail;
    }
}

/// Strength of an entity tag (RFC 9110 section 8.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Representations with different bytes have different tags.
    Strong,
    /// Equal tags mean equivalent content, possibly with different bytes.
    Weak,
}

/// Returns the strength of an entity tag; `None` for a malformed one (RFC 9110 section 8.8.3), which says nothing about the bytes of
/// a representation.
#[must_use]
pub fn strength(tag: &[u8]) -> Option<Strength> {
    let (opaque, strength) =
        tag.strip_prefix(b"W/").map_or((tag, Strength::Strong), |opaque| (opaque, Strength::Weak));
    let inner = opaque.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let valid = inner.iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..));
    valid.then_some(strength)
}

/// Whether two entity tags match.
#[must_use]
pub fn tags_match(left: &[u8], right: &[u8], comparison: Comparison) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").map_or((false, tag.len()), |rest| (true, rest.len()));
    let ((left_weak, left_len), (right_weak, right_len)) = (opaque(left), opaque(right));
    if comparison == Comparison::Strong && (left_weak || right_weak) {
        return false;
    }
    left[left.len() - left_len..] == right[right.len() - right_len..]
}

/// Maximum length of the entity tag of a file: `W/`, two quotes, a hyphen, two numbers of sixteen digits.
pub const ETAG_LEN_MAX: usize = 37;

/// An entity tag, generated from a file or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag(TagText);

/// Text of an entity tag. Nearly all tags are generated from files; these fit into the inline variant and need no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TagText {
    Short { text: [u8; ETAG_LEN_MAX], len: u8 },
    Long(Box<[u8]>),
}

impl Etag {
    /// Creates nginx's tag of a file: modification time in seconds and size in bytes, in hexadecimal.
    #[must_use]
    pub fn of_file(modified: i64, size: u64) -> Self {
        let (mut text, mut len) = ([0; ETAG_LEN_MAX], 0);
        let mut push = |byte| {
            text[len] = byte;
            len += 1;
        };
        push(b'"');
        // nginx prints a time before 1970 in two's complement.
        hex_digits(modified as u64).for_each(&mut push);
        push(b'-');
        hex_digits(size).for_each(&mut push);
        push(b'"');
        Self(TagText::Short { text, len: len as u8 })
    }

    /// Creates an entity tag that this server did not generate; `tag` includes the quotes.
    #[must_use]
    pub fn from_text(tag: &[u8]) -> Self {
        let (mut text, len) = ([0; ETAG_LEN_MAX], tag.len());
        let Some(place) = text.get_mut(..len) else { return Self(TagText::Long(tag.into())) };
        place.copy_from_slice(tag);
        Self(TagText::Short { text, len: len as u8 })
    }

    /// Converts the tag to a weak one; a weak tag is unchanged. Returns `None` for a text without quotes, which is not a tag, as in
    /// nginx.
    #[must_use]
    pub fn weakened(self) -> Option<Self> {
        match self.as_bytes() {
            [b'W', b'/', _, ..] => Some(self),
            strong @ [b'"', ..] => Some(Self::from_text(&[b"W/", strong].concat())),
            _ => None,
        }
    }

    /// Returns the tag with its quotes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            TagText::Short { text, len } => &text[..usize::from(*len)],
            TagText::Long(text) => text,
        }
    }
}

fn hex_digits(value: u64) -> impl Iterator<Item = u8> {
    let digits = (u64::BITS - value.leading_zeros()).div_ceil(4).max(1);
    (0..digits).rev().map(move |index| b"0123456789abcdef"[(value >> (4 * index) & 15) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Policy, parse};

    const MODIFIED: i64 = 784_111_777;
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn outcome(method: &str, fields: &[(&str, &str)], mode: IfModifiedSince) -> PreconditionResult {
        outcome_by(Evaluator::Origin, method, fields, mode)
    }

    fn outcome_by(
        evaluator: Evaluator,
        method: &str,
        fields: &[(&str, &str)],
        mode: IfModifiedSince,
    ) -> PreconditionResult {
        let mut text = format!("{method} / HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut head = Head::new();
        parse(&mut head, text.as_bytes(), &Policy::default()).expect("valid head");
        let validators = Validators { etag: Some(b"\"a-1\""), last_modified: Some(MODIFIED) };
        let outcome = evaluate(&head, text.as_bytes(), validators, mode, evaluator);
        assert_eq!(is_conditional(&head), !fields.is_empty());
        assert!(is_conditional(&head) || outcome == PreconditionResult::Proceed);
        outcome
    }

    #[test]
    fn a_request_without_a_condition_proceeds() {
        let outcome = outcome("GET", &[], IfModifiedSince::Exact);
        assert_eq!(outcome, PreconditionResult::Proceed);
    }

    #[test]
    fn a_cache_ignores_conditions_for_the_origin_and_invalid_dates() {
        let future = |zone| format!("Fri, 01 Jan 2038 00:00:00 {zone}");
        for (name, value, wanted) in [
            ("If-Match", "\"b\"", PreconditionResult::Proceed),
            ("If-Unmodified-Since", EARLIER, PreconditionResult::Proceed),
            ("If-None-Match", "\"a-1\"", PreconditionResult::NotModified),
            ("If-Modified-Since", &future("GMT"), PreconditionResult::NotModified),
            ("If-Modified-Since", &future("EST"), PreconditionResult::Proceed),
            ("If-Modified-Since", &future("GMT; length=1"), PreconditionResult::Proceed),
        ] {
            let got = outcome_by(Evaluator::Cache, "GET", &[(name, value)], IfModifiedSince::Before);
            assert_eq!(got, wanted, "{name}: {value}");
        }
    }

    #[test]
    fn single_conditions_are_evaluated() {
        use PreconditionResult::{NotModified, PreconditionFailed, Proceed};
        for (method, name, value, wanted) in [
            ("GET", "If-None-Match", "\"a-1\"", NotModified),
            ("GET", "If-None-Match", "W/\"a-1\"", NotModified),
            ("HEAD", "If-None-Match", "\"x\", \"a-1\"", NotModified),
            ("GET", "If-None-Match", "\"x\" , ,W/\"a-1\" ", NotModified),
            ("GET", "If-None-Match", "*", NotModified),
            ("PUT", "If-None-Match", "*", PreconditionFailed),
            ("PUT", "If-None-Match", "\"a-1\"", PreconditionFailed),
            ("GET", "If-None-Match", "\"a-2\"", Proceed),
            ("GET", "If-None-Match", "a-1", Proceed),
            ("GET", "If-None-Match", "\"a-1", Proceed),
            ("GET", "If-None-Match", "\"x,\"a-1\"\"", Proceed),
            ("GET", "If-None-Match", "", Proceed),
            ("GET", "If-Match", "\"a-1\"", Proceed),
            ("GET", "If-Match", "*", Proceed),
            ("GET", "If-Match", "W/\"a-1\"", PreconditionFailed),
            ("GET", "If-Match", "\"b\"", PreconditionFailed),
            ("PUT", "If-Match", "\"b\", \"a-1\"", Proceed),
            ("GET", "If-Unmodified-Since", SAME, Proceed),
            ("GET", "If-Unmodified-Since", LATER, Proceed),
            ("GET", "If-Unmodified-Since", EARLIER, PreconditionFailed),
            ("GET", "If-Unmodified-Since", "yesterday", Proceed),
            ("GET", "If-Modified-Since", SAME, NotModified),
            ("GET", "If-Modified-Since", EARLIER, Proceed),
            ("GET", "If-Modified-Since", LATER, Proceed),
            ("GET", "If-Modified-Since", "yesterday", Proceed),
            ("POST", "If-Modified-Since", SAME, Proceed),
        ] {
            let got = outcome(method, &[(name, value)], IfModifiedSince::Exact);
            assert_eq!(got, wanted, "{method} {name}: {value}");
        }
    }

    #[test]
    fn modes_of_if_modified_since_are_applied() {
        for (mode, value, wanted) in [
            (IfModifiedSince::Off, SAME, PreconditionResult::Proceed),
            (IfModifiedSince::Before, SAME, PreconditionResult::NotModified),
            (IfModifiedSince::Before, LATER, PreconditionResult::NotModified),
            (IfModifiedSince::Before, EARLIER, PreconditionResult::Proceed),
        ] {
            assert_eq!(outcome("GET", &[("If-Modified-Since", value)], mode), wanted, "{mode:?} {value}");
        }
    }

    #[test]
    fn conditions_are_evaluated_in_order() {
        let both = |first, second| outcome("GET", &[first, second], IfModifiedSince::Exact);
        assert_eq!(
            both(("If-None-Match", "\"a-1\""), ("If-Modified-Since", EARLIER)),
            PreconditionResult::NotModified,
            "the tag decides alone; nginx would send 200 here"
        );
        assert_eq!(
            both(("If-None-Match", "\"x\""), ("If-Modified-Since", SAME)),
            PreconditionResult::Proceed,
            "a tag that does not match outranks the date"
        );
        assert_eq!(
            both(("If-Match", "\"a-1\""), ("If-Unmodified-Since", EARLIER)),
            PreconditionResult::Proceed,
            "the date is ignored if the request has If-Match"
        );
        assert_eq!(
            both(("If-Match", "\"b\""), ("If-None-Match", "\"a-1\"")),
            PreconditionResult::PreconditionFailed
        );
    }

    #[test]
    fn tags_without_quotes_match_the_same_text() {
        for (list, wanted) in [
            ("abc", true),
            ("\"x\", abc", true),
            (" x , abc\t,y", true),
            ("W/abc", true),
            ("abcd", false),
            ("ab", false),
            ("abc x", false),
            ("\"abc\"", false),
            ("\"x, abc", false),
        ] {
            assert_eq!(matches_list(list.as_bytes(), Some(b"abc"), Comparison::Weak), wanted, "{list}");
        }
        assert!(!matches_list(b"abc", Some(b"\"abc\""), Comparison::Weak));
        assert!(matches_list(b"x, \"abc\"", Some(b"\"abc\""), Comparison::Strong));
    }

    #[test]
    fn strong_and_weak_tags_are_distinguished() {
        for (tag, wanted) in [
            ("\"a\"", Some(Strength::Strong)),
            ("\"\"", Some(Strength::Strong)),
            ("W/\"a\"", Some(Strength::Weak)),
            ("w/\"a\"", None),
            ("a", None),
            ("", None),
            ("\"", None),
            ("W/", None),
            ("\"a", None),
            ("\"a b\"", None),
            ("\"a\"b\"", None),
            ("\"a\", \"b\"", None),
        ] {
            assert_eq!(strength(tag.as_bytes()), wanted, "{tag}");
        }
    }

    #[test]
    fn tags_of_files_match_nginx() {
        for (modified, size, wanted) in [
            (0x5a1b_2c3d, 0x264, "\"5a1b2c3d-264\""),
            (0, 0, "\"0-0\""),
            (-1, 1, "\"ffffffffffffffff-1\""),
            (i64::MIN, u64::MAX, "\"8000000000000000-ffffffffffffffff\""),
        ] {
            assert_eq!(Etag::of_file(modified, size).as_bytes(), wanted.as_bytes());
        }
    }
}
