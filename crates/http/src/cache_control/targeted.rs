//! Targeted fields (RFC 9213): `CDN-Cache-Control` and others that an operator names.

use super::{CacheControl, DELTA_SECONDS_MAX, Scope};
use crate::reply::FieldLine;
use crate::structured::{Dictionary, Value};

/// A targeted field that was found and is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targeted {
    /// Which of the names it was.
    pub index: usize,
    /// Its directives; `Cache-Control` and `Expires` are ignored beside it.
    pub control: CacheControl,
}

/// The first of the fields `names` (RFC 9213 section 2.2: the cache's target list, in the order of preference) that the
/// response has and that is valid and not empty.
///
/// Such a field is a structured dictionary. One that does not parse is passed over as if it were absent. Arguments of a
/// wrong type are ignored together with a directive that allows something, and alone for a directive that forbids
/// something.
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

/// The directives of a dictionary; of a repeated key the last counts, as everywhere in structured fields.
fn control(dictionary: &Dictionary<'_>) -> CacheControl {
    let flag = |name: &[u8]| !matches!(dictionary.get(name), None | Some(Value::Boolean(false)));
    let permission = |name: &[u8]| dictionary.get(name) == Some(Value::Boolean(true));
    let seconds = |name: &[u8]| match dictionary.get(name) {
        Some(Value::Integer(value)) => Some(value.clamp(0, i64::from(DELTA_SECONDS_MAX)) as u32),
        _ => None,
    };
    // Which fields a string names cannot be handed on, since it may be joined from several lines: the whole response it
    // is, which forbids more.
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
