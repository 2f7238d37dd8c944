//! Selection of the response fields to store, and their update by a 304 (RFC 9111 sections 3.1, 3.2 and 4.3.4).
//!
//! Works on lists of [`FieldLine`]; the caller reads and writes them, in a parsed head or in the metadata of an entry.

use crate::conditional::{Comparison, tags_match};
use crate::fields::FieldLine;
use crate::fields::HeaderId;
use crate::hop_by_hop::ConnectionOptions;
use crate::vary::selecting_names;

/// Whether a response field is stored (RFC 9111 section 3.1). Hop-by-hop fields and fields for the authentication with a proxy
/// are not stored. `options` are the `Connection` options of the same response.
#[must_use]
pub fn is_stored<'a, I>(line: &FieldLine<'_>, options: &ConnectionOptions<I>) -> bool
where
    I: Iterator<Item = &'a [u8]> + Clone,
{
    let of_a_proxy = matches!(
        line.id,
        HeaderId::ProxyAuthenticate | HeaderId::ProxyAuthenticationInfo | HeaderId::ProxyAuthorization
    );
    !of_a_proxy && !options.removes(line.id, line.name)
}

/// Whether a field of a 304 replaces the stored field (RFC 9111 section 3.2). Fields that describe the stored body, and fields that
/// are never stored, do not.
#[must_use]
pub fn is_updated(id: HeaderId) -> bool {
    !matches!(
        id,
        // These fields describe the body; the 304 has none, and the stored body does not change.
        HeaderId::ContentLength
            | HeaderId::TransferEncoding
            | HeaderId::ContentEncoding
            | HeaderId::ContentRange
            | HeaderId::Trailer
            // Responses with `Set-Cookie` are not stored, so an update must not add it.
            | HeaderId::SetCookie
    )
}

/// Result of an update, besides the changed fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Whether a field has another value than before.
    pub changed: bool,
    /// Whether `Vary` names other fields, so that the key of the stored response is outdated. The caller must drop the response or
    /// store it under another key.
    pub vary_changed: bool,
    /// Whether the 304 had `Set-Cookie`, which is sent only to the requesting client.
    pub has_set_cookie: bool,
}

/// Writes the fields of a stored response, updated with the fields `fresh` of a 304, to `out` (cleared first). A field of the 304
/// replaces all stored lines of its name, at the position of the first; new fields are appended. `Age` of the stored response is
/// removed, since it counted from the previous validation. A tag that differs only by `W/` stays weak: the 304 was sent for it.
pub fn update<'a, S, F>(stored: S, fresh: F, out: &mut Vec<FieldLine<'a>>) -> Update
where
    S: Iterator<Item = FieldLine<'a>> + Clone,
    F: Iterator<Item = FieldLine<'a>> + Clone,
{
    out.clear();
    let connection = fresh.clone().filter(|line| line.id == HeaderId::Connection).map(|line| line.value);
    let options = ConnectionOptions::new(connection);
    let is_weak_tag_of = |old: FieldLine<'a>, line: &FieldLine<'a>| {
        old.id == HeaderId::Etag
            && old.value.starts_with(b"W/")
            && tags_match(old.value, line.value, Comparison::Weak)
    };
    let stays_weak = |line: &FieldLine<'a>| {
        line.id == HeaderId::Etag && stored.clone().any(|old| is_weak_tag_of(old, line))
    };
    let replaces =
        |line: &FieldLine<'a>| is_updated(line.id) && is_stored(line, &options) && !stays_weak(line);
    let has_set_cookie = fresh.clone().any(|line| line.id == HeaderId::SetCookie);
    let fresh = fresh.filter(replaces);
    for line in stored.clone() {
        let is_replaced = fresh.clone().any(|new| same_name(&new, &line));
        if !is_replaced {
            if line.id != HeaderId::Age {
                out.push(line);
            }
        } else if !out.iter().any(|written| same_name(written, &line)) {
            out.extend(fresh.clone().filter(|new| same_name(new, &line)));
        }
    }
    out.extend(fresh.filter(|new| !stored.clone().any(|line| same_name(&line, new))));
    Update {
        changed: !stored.clone().map(|line| line.value).eq(out.iter().map(|line| line.value)),
        vary_changed: selecting_names(values(stored, HeaderId::Vary))
            != selecting_names(values(out.iter().copied(), HeaderId::Vary)),
        has_set_cookie,
    }
}

fn values<'a>(lines: impl Iterator<Item = FieldLine<'a>>, id: HeaderId) -> impl Iterator<Item = &'a [u8]> {
    lines.filter(move |line| line.id == id).map(|line| line.value)
}

fn same_name(left: &FieldLine<'_>, right: &FieldLine<'_>) -> bool {
    left.id == right.id && (left.id != HeaderId::Other || left.name.eq_ignore_ascii_case(right.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &str) -> Vec<FieldLine<'_>> {
        text.split('|')
            .filter(|line| !line.is_empty())
            .map(|line| {
                let (name, value) = line.split_once('=').expect("an equals sign");
                FieldLine::new(name.as_bytes(), value.as_bytes())
            })
            .collect()
    }

    fn updated(stored: &str, fresh: &str) -> (String, Update) {
        let (stored, fresh) = (lines(stored), lines(fresh));
        let mut out = vec![FieldLine::new(b"old", b"old")];
        let update = update(stored.iter().copied(), fresh.iter().copied(), &mut out);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let written: Vec<String> =
            out.iter().map(|line| format!("{}={}", text(line.name), text(line.value))).collect();
        (written.join("|"), update)
    }

    #[test]
    fn a_304_replaces_fields() {
        for (stored, fresh, wanted) in [
            ("", "", ""),
            ("A=1|B=2", "", "A=1|B=2"),
            ("A=1|B=2", "a=3", "a=3|B=2"),
            ("A=1|B=2", "C=3", "A=1|B=2|C=3"),
            ("A=1|B=2|a=3", "A=4|A=5", "A=4|A=5|B=2"),
            ("Date=1|ETag=2", "ETag=3|Date=4", "Date=4|ETag=3"),
            ("ETag=W/\"2\"", "ETag=\"2\"", "ETag=W/\"2\""),
            ("ETag=\"2\"", "ETag=W/\"2\"", "ETag=W/\"2\""),
            ("Cache-Control=a|Cache-Control=b", "Cache-Control=c", "Cache-Control=c"),
            ("Age=9|A=1", "", "A=1"),
            ("Age=9|A=1", "Age=3", "Age=3|A=1"),
        ] {
            assert_eq!(updated(stored, fresh).0, wanted, "{stored} by {fresh}");
        }
    }

    #[test]
    fn a_304_does_not_replace_fields_about_the_body() {
        let stored = "Content-Length=9|Content-Encoding=gzip|Content-Range=x|Content-Type=a";
        let fresh =
            "Content-Length=0|Content-Encoding=br|Content-Range=y|Transfer-Encoding=chunked|Content-Type=b";
        let wanted = "Content-Length=9|Content-Encoding=gzip|Content-Range=x|Content-Type=b";
        assert_eq!(updated(stored, fresh).0, wanted);
        assert_eq!(updated("A=1", "Content-Length=0|Set-Cookie=x|Trailer=y").0, "A=1", "no new body fields");
    }

    #[test]
    fn a_304_does_not_add_unstorable_fields() {
        let fresh = "Connection=close, X-Hop|X-Hop=1|Keep-Alive=5|Proxy-Authenticate=x|Upgrade=y|X=2";
        assert_eq!(updated("X=1|X-Hop=0", fresh).0, "X=2|X-Hop=0");
    }

    #[test]
    fn an_update_reports_changes() {
        let plain = Update::default();
        for (stored, fresh, wanted) in [
            ("A=1", "A=1", plain),
            ("A=1", "A=2", Update { changed: true, ..plain }),
            ("A=1", "B=2", Update { changed: true, ..plain }),
            ("Vary=a", "Vary=a", plain),
            ("Vary=a", "", plain),
            ("Vary=a", "Vary=b", Update { changed: true, vary_changed: true, ..plain }),
            ("A=1", "Vary=b", Update { changed: true, vary_changed: true, ..plain }),
            ("A=1", "Set-Cookie=b", Update { has_set_cookie: true, ..plain }),
        ] {
            assert_eq!(updated(stored, fresh).1, wanted, "{stored} by {fresh}");
        }
    }

    #[test]
    fn storable_fields_are_selected() {
        let options = ConnectionOptions::new([&b"x-hop"[..]].into_iter());
        for (name, wanted) in [
            ("ETag", true),
            ("Set-Cookie", true),
            ("Trailer", true),
            ("Connection", false),
            ("X-Hop", false),
            ("Transfer-Encoding", false),
            ("Proxy-Authenticate", false),
            ("Proxy-Authentication-Info", false),
        ] {
            assert_eq!(is_stored(&FieldLine::new(name.as_bytes(), b""), &options), wanted, "{name}");
        }
    }

    proptest! {
        /// Each name has the values of the 304 if the 304 contains it and may change it, otherwise the stored values.
        #[test]
        fn agrees_with_a_naive_model(
            stored in proptest::collection::vec(("(A|b|ETag|Content-Length|Vary)", "[0-9]"), 0..6),
            fresh in proptest::collection::vec(("(a|B|etag|content-length|VARY)", "[0-9]"), 0..6),
        ) {
            let text = |list: &[(String, String)]| {
                list.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("|")
            };
            let (written, _) = updated(&text(&stored), &text(&fresh));
            let written = lines(&written);
            for name in ["a", "b", "etag", "content-length", "vary"] {
                let of = |list: &[(String, String)]| -> Vec<String> {
                    list.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone()).collect()
                };
                let replaced = !of(&fresh).is_empty() && name != "content-length";
                let wanted = if replaced { of(&fresh) } else { of(&stored) };
                let found: Vec<String> = written
                    .iter()
                    .filter(|line| line.name.eq_ignore_ascii_case(name.as_bytes()))
                    .map(|line| String::from_utf8_lossy(line.value).into_owned())
                    .collect();
                prop_assert_eq!(found, wanted, "{}", name);
            }
        }
    }
}
