//! Targeted fields (RFC 9213): `CDN-Cache-Control` and others that the operator names.

use super::{CacheControl, DELTA_SECONDS_MAX, Scope};
use crate::fields::FieldLine;
use crate::structured::{Dictionary, Value};

/// A targeted field that is present and valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targeted {
    /// Index of the field in the list of names.
    pub index: usize,
    /// Its directives; they replace `Cache-Control` and `Expires`.
    pub control: CacheControl,
}

/// Returns the first of the fields `names` that is present, valid and not empty. `names` is the target list of the cache in order
/// of preference (RFC 9213 section 2.2).
///
/// A targeted field is a structured dictionary. A field with a syntax error is treated as absent. If an argument has the wrong
/// type, a permitting directive is ignored, and a forbidding directive counts without the argument.
#[must_use]
pub fn targeted<'a, I>(lines: I, names: &[&[u8]]) -> Option<Targeted>
where
    I: Iterator<Item = FieldLine<'a>> + Clone,
{
    names.iter().enumerate().find_map(|(index, name)| {
        let values = lines.clone().filter(|line| line.name.eq_ignore_ascii_case(name));
        let values: Vec<&[u8]> = values.map(|line| line.value).collect();
        let text = values.join(&b", "[..]);
        let dictionary = Dictionary::parse(&text)?;
        (!dictionary.is_empty()).then(|| Targeted { index, control: control(&dictionary) })
    })
}

/// Returns the directives of a dictionary; the last of several equal keys counts, as in all structured fields.
fn control(dictionary: &Dictionary<'_>) -> CacheControl {
    let flag = |name: &[u8]| !matches!(dictionary.get(name), None | Some(Value::Boolean(false)));
    let permission = |name: &[u8]| dictionary.get(name) == Some(Value::Boolean(true));
    let seconds = |name: &[u8]| match dictionary.get(name) {
        Some(Value::Integer(value)) => Some(value.clamp(0, i64::from(DELTA_SECONDS_MAX)) as u32),
        _ => None,
    };
    // The field names in a string cannot be returned as a slice of one line, since the string may be joined from several lines. The
    // stricter scope, the complete response, is used instead.
    let scope = |name: &[u8]| if flag(name) { Scope::Whole } else { Scope::Nothing };
    CacheControl {
        no_store: flag(b"no-store"),
        no_cache: scope(b"no-cache"),
        private: scope(b"private"),
        public: permission(b"public"),
        must_revalidate: flag(b"must-revalidate"),
        proxy_revalidate: flag(b"proxy-revalidate"),
        must_understand: flag(b"must-understand"),
        no_transform: flag(b"no-transform"),
        immutable: permission(b"immutable"),
        max_age: seconds(b"max-age"),
        s_maxage: seconds(b"s-maxage"),
        stale_while_revalidate: seconds(b"stale-while-revalidate"),
        stale_if_error: seconds(b"stale-if-error"),
    }
}
