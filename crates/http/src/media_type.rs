//! Media types by file extension: nginx's built-in `types`, and the lookup.
//!
//! The configured tables belong to the `types` directive; this file has the defaults.

/// nginx's built-in `types`, for configurations without `types`.
pub const DEFAULT_TYPES: &[(&str, &str)] =
    &[("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

/// nginx's built-in `default_type`.
pub const DEFAULT_TYPE: &str = "text/plain";

/// Returns the built-in type of `extension`, ignoring case.
#[must_use]
pub fn built_in(extension: &[u8]) -> Option<&'static str> {
    let found = DEFAULT_TYPES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(extension));
    found.map(|(_, media_type)| *media_type)
}

/// Looks `extension` up in a table sorted by lower-case extension, without allocating.
#[must_use]
pub fn lookup<'a, T>(table: &'a [(Box<[u8]>, T)], extension: &[u8]) -> Option<&'a T> {
    let lower = || extension.iter().map(u8::to_ascii_lowercase);
    // Nearly every extension is in lower case, and is compared in one piece.
    let found = match extension.iter().any(u8::is_ascii_uppercase) {
        true => table.binary_search_by(|(known, _)| known.iter().copied().cmp(lower())),
        false => table.binary_search_by(|(known, _)| (**known).cmp(extension)),
    };
    found.ok().map(|index| &table[index].1)
}

/// Returns the extension of a path: after the last dot of its last segment, unless that dot starts the segment.
#[must_use]
pub fn extension_of(path: &[u8]) -> Option<&[u8]> {
    let dot = path.iter().rposition(|byte| matches!(byte, b'.' | b'/')).filter(|&at| path[at] == b'.')?;
    let is_first = dot == 0 || path[dot - 1] == b'/';
    (!is_first).then(|| &path[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_types_are_found_in_any_case() {
        assert_eq!(built_in(b"HTML"), Some("text/html"));
        assert_eq!(built_in(b"jpg"), Some("image/jpeg"));
        assert_eq!(built_in(b"jpeg"), None);
        assert_eq!(built_in(b""), None);
    }

    #[test]
    fn types_are_found_in_a_sorted_table() {
        let mut table: Vec<(Box<[u8]>, u32)> = Vec::new();
        for (index, extension) in ["css", "htm", "html", "js", "mjs", "tar.gz"].iter().enumerate() {
            table.push((extension.as_bytes().into(), index as u32));
        }
        assert_eq!(lookup(&table, b"HtmL"), Some(&2));
        assert_eq!(lookup(&table, b"css"), Some(&0));
        assert_eq!(lookup(&table, b"mjs"), Some(&4));
        assert_eq!(lookup(&table, b"ht"), None);
        assert_eq!(lookup(&table, b""), None);
    }

    #[test]
    fn extensions_are_found() {
        for (path, wanted) in [
            ("/a.html", Some("html")),
            ("/a.b/c", None),
            ("/.profile", None),
            ("/a.tar.gz", Some("gz")),
            ("/a.", Some("")),
            ("x.Y", Some("Y")),
        ] {
            assert_eq!(extension_of(path.as_bytes()), wanted.map(str::as_bytes), "{path}");
        }
    }
}
