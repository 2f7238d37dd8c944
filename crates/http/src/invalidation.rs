//! Invalidation of stored responses by unsafe requests (RFC 9111 section 4.4).
//!
//! [`invalidates`] returns whether an exchange invalidates entries. [`same_origin_target`] returns the target of `Location` or
//! `Content-Location` of its response. The target of the request itself is invalidated too; the caller does that and computes keys
//! from targets.

use crate::fields::Method;

/// Whether the entries of the target must be invalidated: the method is not known to be safe, and the response is not an error.
#[must_use]
pub fn invalidates(method: Method, status: u16) -> bool {
    !is_safe(method) && matches!(status, 200..=399)
}

/// Whether a method is safe (RFC 9110 section 9.2.1, RFC 4918 section 9.1). An unknown method is not.
#[must_use]
pub fn is_safe(method: Method) -> bool {
    matches!(method, Method::Get | Method::Head | Method::Options | Method::Trace | Method::Propfind)
}

/// The target of a request, as the client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// `http` or `https`.
    pub scheme: &'a [u8],
    /// Host, and port unless it is the default.
    pub authority: &'a [u8],
    /// Path and query, starting with a slash.
    pub path: &'a [u8],
}

/// Returns the path and query of `reference` (the value of `Location` or `Content-Location`), if it has the same origin: an
/// upstream must not be able to invalidate entries of other origins. `None` for an invalid reference, and for the target itself.
#[must_use]
pub fn same_origin_target(target: Target<'_>, reference: &[u8]) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'#', reference).unwrap_or(reference.len());
    let reference = &reference[..end];
    if reference.iter().any(|byte| matches!(byte, 0..=b' ' | 0x7f | b'\\')) {
        return None;
    }
    let found = match split_authority(reference) {
        Some((scheme, authority, path)) => {
            let scheme = if scheme.is_empty() { target.scheme } else { scheme };
            let same = scheme.eq_ignore_ascii_case(target.scheme)
                && same_authority(scheme, authority, target.authority);
            same.then(|| without_dots(b"", if path.is_empty() { b"/" } else { path }))?
        }
        None => relative_target(target.path, reference)?,
    };
    (found != target.path).then_some(found)
}

/// Splits a reference with an authority into scheme (empty for `//host`), authority, and the remaining text.
fn split_authority(reference: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let slashes = memchr::memmem::find(reference, b"//")?;
    let scheme = match &reference[..slashes] {
        b"" => b"",
        scheme => scheme.strip_suffix(b":")?,
    };
    let has_scheme_bytes =
        scheme.iter().all(|&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if !has_scheme_bytes {
        return None;
    }
    let rest = &reference[slashes + 2..];
    let len = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some((scheme, &rest[..len], &rest[len..]))
}

/// Compares two authorities: hosts ignoring case, absent ports as the default of the scheme. Unusual forms, such as user
/// information, compare as different.
fn same_authority(scheme: &[u8], left: &[u8], right: &[u8]) -> bool {
    let default: &[u8] = if scheme.eq_ignore_ascii_case(b"https") { b"443" } else { b"80" };
    let split = |authority: &[u8]| -> (Vec<u8>, Vec<u8>) {
        // The colon of a port follows the closing bracket of an IPv6 address.
        let bracket = memchr::memrchr(b']', authority).unwrap_or(0);
        let colon = memchr::memrchr(b':', &authority[bracket..]).map(|colon| bracket + colon);
        let port = colon.map_or(&b""[..], |colon| &authority[colon + 1..]);
        let host = authority[..colon.unwrap_or(authority.len())].to_ascii_lowercase();
        (host, if port.is_empty() { default.to_vec() } else { port.to_vec() })
    };
    !left.is_empty() && split(left) == split(right)
}

/// Resolves a reference without an authority against a path (RFC 3986 section 5.2.2).
fn relative_target(base: &[u8], reference: &[u8]) -> Option<Vec<u8>> {
    let base_path = &base[..memchr::memchr(b'?', base).unwrap_or(base.len())];
    match reference.first()? {
        b'/' => Some(without_dots(b"", reference)),
        b'?' => Some([base_path, reference].concat()),
        _ => {
            // A colon in the first segment makes the reference a URI with a scheme (`mailto:x`).
            let segment = reference.split(|byte| matches!(byte, b'/' | b'?')).next().unwrap_or_default();
            let folder_len = memchr::memrchr(b'/', base_path)? + 1;
            (!segment.contains(&b':')).then(|| without_dots(&base_path[..folder_len], reference))
        }
    }
}

/// Concatenates `folder` and `path`, and removes the segments `.` and `..` (RFC 3986 section 5.2.4); the query is unchanged.
fn without_dots(folder: &[u8], path: &[u8]) -> Vec<u8> {
    let path = [folder, path].concat();
    let (path, query) = path.split_at(memchr::memchr(b'?', &path).unwrap_or(path.len()));
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_folder = false;
    for segment in path.split(|&byte| byte == b'/') {
        ends_in_folder = matches!(segment, b"." | b"..");
        match segment {
            b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    if ends_in_folder {
        segments.push(b"");
    }
    [b"/", segments.join(&b'/').as_slice(), query].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn successful_unsafe_requests_invalidate() {
        for (method, status, wanted) in [
            (Method::Post, 200, true),
            (Method::Put, 204, true),
            (Method::Delete, 301, true),
            (Method::Patch, 399, true),
            (Method::Other, 200, true),
            (Method::Post, 400, false),
            (Method::Delete, 500, false),
            (Method::Post, 103, false),
            (Method::Get, 200, false),
            (Method::Head, 200, false),
            (Method::Options, 200, false),
            (Method::Trace, 200, false),
            (Method::Propfind, 207, false),
        ] {
            assert_eq!(invalidates(method, status), wanted, "{method:?} {status}");
        }
    }

    const TARGET: Target<'_> = Target { scheme: b"http", authority: b"Example.com", path: b"/a/b/c?d=1" };

    fn found(reference: &str) -> Option<String> {
        same_origin_target(TARGET, reference.as_bytes()).map(|path| String::from_utf8(path).expect("text"))
    }

    #[test]
    fn targets_on_the_same_origin_are_invalidated() {
        for (reference, wanted) in [
            ("/x", "/x"),
            ("/x?y=/../z", "/x?y=/../z"),
            ("/x#part", "/x"),
            ("/", "/"),
            ("http://example.com/x", "/x"),
            ("HTTP://EXAMPLE.COM:80/x", "/x"),
            ("http://example.com:/x", "/x"),
            ("http://example.com", "/"),
            ("http://example.com?q", "/?q"),
            ("//example.com/x", "/x"),
            ("x", "/a/b/x"),
            ("x/y?z", "/a/b/x/y?z"),
            ("./x", "/a/b/x"),
            ("../x", "/a/x"),
            ("..", "/a/"),
            (".", "/a/b/"),
            ("../../../x", "/x"),
            ("/x/./y/../z", "/x/z"),
            // Two slashes within a path do not begin an authority.
            ("/x//y", "/x//y"),
            ("/x?to=http://other/", "/x?to=http://other/"),
            ("?q", "/a/b/c?q"),
            ("x?y:z", "/a/b/x?y:z"),
            ("./x:y", "/a/b/x:y"),
        ] {
            assert_eq!(found(reference).as_deref(), Some(wanted), "{reference}");
        }
    }

    #[test]
    fn other_origins_and_invalid_references_are_ignored() {
        for reference in [
            "",
            "#part",
            "/a/b/c?d=1",
            "c?d=1",
            "http://example.com/a/b/c?d=1",
            "https://example.com/x",
            "http://example.com:8080/x",
            "http://www.example.com/x",
            "http://user@example.com/x",
            "http:///x",
            "//other/x",
            "mailto:x",
            "http:x",
            "/a b",
            "/a\\b",
            "\\\\other",
            "/a\0",
            "/a\r\nX: 1",
        ] {
            assert_eq!(found(reference), None, "{reference:?}");
        }
    }

    #[test]
    fn default_ports_and_addresses_are_compared() {
        for (scheme, authority, reference, wanted) in [
            ("https", "a", "https://a:443/x", true),
            ("https", "a", "https://a:80/x", false),
            ("https", "a:443", "//a/x", true),
            ("http", "a:8080", "http://a:8080/x", true),
            ("http", "a:8080", "http://a/x", false),
            ("http", "[::1]", "http://[::1]:80/x", true),
            ("http", "[::1]:81", "http://[::1]/x", false),
        ] {
            let target = Target { scheme: scheme.as_bytes(), authority: authority.as_bytes(), path: b"/" };
            let found = same_origin_target(target, reference.as_bytes());
            assert_eq!(found.is_some(), wanted, "{authority} {reference}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(reference in proptest::collection::vec(any::<u8>(), 0..40), near in "(http|:|//|example.com|\\.|[/?#ax]){0,8}") {
            for reference in [reference.as_slice(), near.as_bytes()] {
                if let Some(path) = same_origin_target(TARGET, reference) {
                    prop_assert!(path.starts_with(b"/"));
                    let end = path.iter().position(|&byte| byte == b'?').unwrap_or(path.len());
                    prop_assert!(!path[..end].split(|&byte| byte == b'/').any(|segment| segment == b".."));
                }
            }
        }
    }
}
