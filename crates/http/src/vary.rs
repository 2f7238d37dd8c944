//! `Vary`: selection of a stored response for a request (RFC 9111 section 4.1, RFC 9110 section 12.5.5).
//!
//! [`secondary_key`] writes the request fields named by `Vary` in a normal form: two requests with equal keys select the same
//! variant. The cache stores keys and variants.

use crate::bytes::trim_ows;
use crate::fields::HeaderId;

/// Maximum number of field names in `Vary`. Sites use up to ten; each costs a search in every request.
pub const NAMES_MAX: usize = 32;

/// Reason why the fields of `Vary` cannot select a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaryError {
    /// `*`: the request fields do not suffice for a selection.
    Any,
    /// More than [`NAMES_MAX`] different names.
    TooManyNames,
    /// An invalid field name.
    InvalidName,
}

/// Returns the names in all `Vary` lines, as written, including `*`.
pub fn names<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    let items = |value: &'a [u8]| value.split(|&byte| byte == b',').map(trim_ows);
    values.into_iter().flat_map(items).filter(|name| !name.is_empty())
}

/// Returns the names in all `Vary` lines in normal form: lower case, sorted, without duplicates.
///
/// # Errors
/// [`VaryError`]
pub fn selecting_names<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Box<[u8]>>, VaryError> {
    let mut found: Vec<Box<[u8]>> = Vec::new();
    for name in names(values) {
        if name == b"*" {
            return Err(VaryError::Any);
        }
        if !name.iter().all(|&byte| crate::bytes::is_token(byte)) {
            return Err(VaryError::InvalidName);
        }
        let name = name.to_ascii_lowercase().into_boxed_slice();
        if let Err(position) = found.binary_search(&name) {
            if found.len() == NAMES_MAX {
                return Err(VaryError::TooManyNames);
            }
            found.insert(position, name);
        }
    }
    Ok(found)
}

/// Writes the key of a request for a response that varies by `names` (from [`selecting_names`]) to `key` (cleared first). `lines`
/// returns the values of all lines of a request field, given its name in lower case.
///
/// Each field is written as its name, whether it is absent, and its length-prefixed value. Absent and empty fields differ, and no
/// value can imitate another field. Lines are joined by a comma and a space. White space is normalised only where the field is
/// known to be a list. Case and weights are normalised in `Accept-Encoding` and `Accept-Language`. The order matters only among
/// languages of equal weight, because some origins use it as a preference (RFC 9110 section 12.5.4). Further normalisation could
/// merge requests that the origin distinguishes.
pub fn secondary_key<'a, 'n, N, F, I>(names: N, mut lines: F, key: &mut Vec<u8>)
where
    N: IntoIterator<Item = &'n [u8]>,
    F: FnMut(&'n [u8]) -> I,
    I: Iterator<Item = &'a [u8]>,
{
    key.clear();
    for name in names {
        key.extend_from_slice(name);
        let mut values = lines(name).peekable();
        if values.peek().is_none() {
            key.extend_from_slice(b"\0-");
            continue;
        }
        key.extend_from_slice(b"\0+");
        let length_at = key.len();
        key.extend_from_slice(&[0; LENGTH_LEN]);
        push_normalised(HeaderId::of(name), values, key);
        let len = (key.len() - length_at - LENGTH_LEN) as u32;
        key[length_at..length_at + LENGTH_LEN].copy_from_slice(&len.to_le_bytes());
    }
}

/// Length in bytes of a length prefix in a key.
const LENGTH_LEN: usize = size_of::<u32>();

fn push_normalised<'a>(id: HeaderId, values: impl Iterator<Item = &'a [u8]>, key: &mut Vec<u8>) {
    let is_list = matches!(id, HeaderId::Accept | HeaderId::AcceptEncoding | HeaderId::AcceptLanguage);
    if !is_list {
        push_joined(values.map(trim_ows), key);
        return;
    }
    let mut items: Vec<&[u8]> = values.flat_map(list_items).filter(|item| !item.is_empty()).collect();
    if id == HeaderId::Accept {
        push_joined(items.into_iter(), key);
        return;
    }
    // Codings and languages are case-insensitive, and their weights express the preference.
    let mut weighted: Vec<(Vec<u8>, u16)> = items.drain(..).map(weighted).collect();
    match id {
        HeaderId::AcceptEncoding => weighted.sort_unstable(),
        _ => weighted.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight)),
    }
    weighted.dedup();
    let written: Vec<Vec<u8>> = weighted.into_iter().map(with_weight).collect();
    push_joined(written.iter().map(Vec::as_slice), key);
}

/// The default weight (RFC 9110 section 12.4.2), in thousandths.
const WEIGHT_MAX: u16 = 1000;

/// Parses `GZIP ; q=0.50` to `gzip` and 500. An invalid weight remains part of the name.
fn weighted(item: &[u8]) -> (Vec<u8>, u16) {
    let bytes = item.iter().filter(|byte| !matches!(byte, b' ' | b'\t'));
    let mut name: Vec<u8> = bytes.map(u8::to_ascii_lowercase).collect();
    let Some(at) = memchr::memmem::rfind(&name, b";q=") else { return (name, WEIGHT_MAX) };
    match weight(&name[at + 3..]) {
        Some(weight) => {
            name.truncate(at);
            (name, weight)
        }
        None => (name, WEIGHT_MAX),
    }
}

/// Parses a `qvalue`, in thousandths.
fn weight(text: &[u8]) -> Option<u16> {
    let (whole, digits) = match text {
        [whole @ (b'0' | b'1')] => (*whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] => (*whole, digits),
        _ => return None,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| digits.get(at).map_or(0, |byte| u16::from(byte - b'0'));
    let thousandths = digit(0) * 100 + digit(1) * 10 + digit(2);
    let weight = u16::from(whole - b'0') * WEIGHT_MAX + thousandths;
    (weight <= WEIGHT_MAX).then_some(weight)
}

fn with_weight((mut name, weight): (Vec<u8>, u16)) -> Vec<u8> {
    if weight < WEIGHT_MAX {
        name.extend_from_slice(b";q=");
        crate::push_decimal(&mut name, u64::from(weight));
    }
    name
}

fn push_joined<'a>(items: impl Iterator<Item = &'a [u8]>, key: &mut Vec<u8>) {
    for (index, item) in items.enumerate() {
        if index > 0 {
            key.extend_from_slice(b", ");
        }
        key.extend_from_slice(item);
    }
}

/// Splits a list; a comma in a quoted string is not a separator.
fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let separates = move |&byte: &u8| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => return byte == b',' && !quoted,
        }
        false
    };
    value.split(separates).map(trim_ows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    fn selecting(values: &[&str]) -> Result<Vec<String>, VaryError> {
        let names = selecting_names(values.iter().map(|value| value.as_bytes()))?;
        Ok(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    fn key(vary: &[&str], fields: Fields<'_>) -> Vec<u8> {
        let names = selecting_names(vary.iter().map(|value| value.as_bytes())).expect("names");
        let mut key = b"old".to_vec();
        let lines = |name: &[u8]| {
            let name = name.to_vec();
            fields
                .iter()
                .filter(move |(field, _)| field.as_bytes().eq_ignore_ascii_case(&name))
                .map(|(_, value)| value.as_bytes())
        };
        secondary_key(names.iter().map(|name| &**name), lines, &mut key);
        key
    }

    #[test]
    fn names_are_normalised() {
        for (values, wanted) in [
            (&[][..], &[][..]),
            (&["", " , "], &[]),
            (&["Accept-Encoding"], &["accept-encoding"]),
            (&["B, a", "A ,c,b"], &["a", "b", "c"]),
            (&["X_Y!"], &["x_y!"]),
        ] {
            assert_eq!(selecting(values).expect("names"), wanted, "{values:?}");
        }
        for (values, error) in [
            (&["*"][..], VaryError::Any),
            (&["a, *"], VaryError::Any),
            (&["a", "*"], VaryError::Any),
            (&["a b"], VaryError::InvalidName),
            (&["a\0"], VaryError::InvalidName),
            (&["**", "a:"], VaryError::InvalidName),
        ] {
            assert_eq!(selecting(values), Err(error), "{values:?}");
        }
        let many: Vec<String> = (0..=NAMES_MAX).map(|index| format!("x{index}")).collect();
        assert_eq!(selecting(&[&many.join(",")]), Err(VaryError::TooManyNames));
        assert_eq!(selecting(&[&many[1..].join(",")]).map(|names| names.len()), Ok(NAMES_MAX));
    }

    #[test]
    fn equivalent_requests_select_the_same_variant() {
        let same: &[(&[&str], Fields<'_>, Fields<'_>)] = &[
            (&["Accept-Encoding"], &[], &[("X", "1")]),
            (&["Accept-Encoding"], &[("Accept-Encoding", "gzip, br")], &[("accept-encoding", "br,GZIP")]),
            (
                &["Accept-Encoding"],
                &[("Accept-Encoding", "gzip, br")],
                &[("Accept-Encoding", "gzip"), ("Accept-Encoding", "br")],
            ),
            (&["Accept-Encoding"], &[("Accept-Encoding", "br;q=0.5")], &[("Accept-Encoding", "BR ; Q=0.5,")]),
            (
                &["Accept-Encoding"],
                &[("Accept-Encoding", "br;q=1.0, gzip;q=0.50")],
                &[("Accept-Encoding", "gzip;q=0.5,br")],
            ),
            (
                &["Accept-Language"],
                &[("Accept-Language", "de-CH, en;q=0.5")],
                &[("Accept-Language", "DE-ch,EN ; q=0.50")],
            ),
            (
                &["Accept-Language"],
                &[("Accept-Language", "de, en;q=0.5")],
                &[("Accept-Language", "en;q=0.5, de;q=1")],
            ),
            (&["Accept"], &[("Accept", "a/b,c/d")], &[("Accept", " a/b ,\tc/d")]),
            (&["Accept"], &[("Accept", "a/b"), ("Accept", "c/d")], &[("Accept", "a/b, c/d")]),
            (&["X"], &[("X", "a"), ("X", "b")], &[("x", "a, b")]),
            (&["B, A"], &[("A", "1"), ("B", "2")], &[("B", "2"), ("A", "1")]),
            (&["a", "A"], &[("A", "1")], &[("a", "1")]),
        ];
        for (vary, left, right) in same {
            assert_eq!(key(vary, left), key(vary, right), "{vary:?} {left:?} {right:?}");
        }
    }

    #[test]
    fn different_requests_select_different_variants() {
        let different: &[(&[&str], Fields<'_>, Fields<'_>)] = &[
            (&["X"], &[], &[("X", "")]),
            (&["X"], &[("X", "a")], &[("X", "A")]),
            (&["X"], &[("X", "a,b")], &[("X", "a, b")]),
            (&["X"], &[("X", "a"), ("X", "b")], &[("X", "b"), ("X", "a")]),
            (&["X, Y"], &[("X", "1")], &[("Y", "1")]),
            (&["X, Y"], &[("X", "1"), ("Y", "2")], &[("X", "2"), ("Y", "1")]),
            (&["Accept"], &[("Accept", "a/b,c/d")], &[("Accept", "c/d,a/b")]),
            (&["Accept"], &[("Accept", "a/b;x=\"1,2\"")], &[("Accept", "a/b;x=\"1, 2\"")]),
            (&["Accept"], &[("Accept", "a/b;x=\"\\\",2\"")], &[("Accept", "a/b;x=\"\\\", 2\"")]),
            (&["Accept-Language"], &[("Accept-Language", "de, en")], &[("Accept-Language", "en, de")]),
            (
                &["Accept-Language"],
                &[("Accept-Language", "de, en;q=0.5")],
                &[("Accept-Language", "de, en;q=0.6")],
            ),
            (&["Accept-Language"], &[("Accept-Language", "de;q=x")], &[("Accept-Language", "de")]),
            (&["Accept-Encoding"], &[("Accept-Encoding", "br;q=0")], &[("Accept-Encoding", "br")]),
            (&["Accept-Encoding"], &[], &[("Accept-Encoding", "")]),
        ];
        for (vary, left, right) in different {
            assert_ne!(key(vary, left), key(vary, right), "{vary:?} {left:?} {right:?}");
        }
    }

    #[test]
    fn a_key_is_empty_without_vary() {
        assert_eq!(key(&[], &[("X", "1")]), b"");
        assert_eq!(key(&["x"], &[]), b"x\0-");
        assert_eq!(key(&["x"], &[("X", "ab")]), b"x\0+\x02\0\0\0ab");
    }

    proptest! {
        /// No values exist for which two different requests share a key.
        #[test]
        fn values_in_a_variant_key_are_unambiguous(
            left in proptest::array::uniform2("[ -+\\x00xy]{0,9}"),
            right in proptest::array::uniform2("[ -+\\x00xy]{0,9}"),
        ) {
            let trimmed = |values: &[String; 2]| values.clone().map(|value| value.trim().to_owned());
            let fields = |values: &[String; 2]| {
                key(&["x, y"], &[("X", &values[0]), ("Y", &values[1])])
            };
            prop_assert_eq!(fields(&left) == fields(&right), trimmed(&left) == trimmed(&right));
        }

        #[test]
        fn no_input_panics(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = selecting_names([value.as_slice()]);
            let mut out = Vec::new();
            for name in [&b"accept"[..], b"accept-encoding", b"x"] {
                secondary_key([name], |_| [value.as_slice()].into_iter(), &mut out);
            }
        }
    }
}
