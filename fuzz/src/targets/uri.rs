//! Paths and queries: [`http::uri`] (RFC 3986 sections 2.1, 5.2.4 and 6.2.2).

use http::uri::{
    Escape, UriError, arg, args, escape, escape_uri, escaped_len, normalise, unescape, unescape_redirect,
};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "uri",
    run,
    tokens: &[
        "/", "//", "/../", "/./", "..", ".", "%2e", "%2E%2e", "%2f", "%00", "%", "%4", "%zz", "?", "#", "&",
        "=", "a=b&c", "%25", "+", ";", "\\", ".html",
    ],
};

/// Normalises a path; checks that it cannot leave the root, and that a second normalisation changes nothing.
pub fn run(mut data: &[u8]) {
    let merge_slashes = take_byte(&mut data) & 1 == 0;
    let mut out = Vec::new();
    match normalise(data, merge_slashes, &mut out) {
        Ok(uri) => {
            let path = uri.path(data, &out).to_vec();
            check_path(&path, merge_slashes);
            if let Some(extension) = uri.extension {
                let text = extension.of(&path);
                assert!(
                    !text.contains(&b'/') && path[..path.len() - text.len()].ends_with(b"."),
                    "{extension:?}"
                );
            }
            if let Some(query) = uri.args {
                check_query(query.of(data));
            }
        }
        Err(UriError::NoSlash) => assert!(!matches!(data.first(), None | Some(b'/' | b'?'))),
        Err(UriError::Nul | UriError::InvalidEscape) => assert!(data.contains(&b'%')),
        Err(UriError::AboveRoot) => {}
    }
    check_escapes(data);
}

fn check_path(path: &[u8], merge_slashes: bool) {
    assert_eq!(path.first(), Some(&b'/'));
    let mut segments = path[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        assert!(segment != b".." && segment != b".", "a dot segment remains in {path:?}");
        let is_last = segments.peek().is_none();
        assert!(!merge_slashes || is_last || !segment.is_empty(), "repeated slashes remain in {path:?}");
    }
    let mut escaped = Vec::new();
    escape_uri(path, &mut escaped);
    // A raw NUL byte in a request never reaches this function; `%00` in the escaped form is rejected.
    if !path.contains(&0) {
        let mut out = Vec::new();
        let again = normalise(&escaped, merge_slashes, &mut out).expect("an escaped clean path is valid");
        assert_eq!(again.path(&escaped, &out), path, "a second pass changes the path");
    }
}

fn check_query(query: &[u8]) {
    for (name, value) in args(query) {
        assert!(name.len() + value.map_or(0, <[u8]>::len) <= query.len());
        assert!(!name.contains(&b'&'));
    }
    if let Some((name, Some(_))) = args(query).find(|(name, value)| !name.is_empty() && value.is_some()) {
        assert!(arg(query, name).is_some(), "{name:?} is in {query:?}");
    }
}

fn check_escapes(data: &[u8]) {
    for kind in [Escape::Uri, Escape::Args, Escape::UriComponent, Escape::Html, Escape::Refresh] {
        let mut escaped = Vec::new();
        escape(kind, data, &mut escaped);
        assert_eq!(escaped.len(), escaped_len(kind, data));
        if kind != Escape::Refresh {
            let mut back = Vec::new();
            unescape(&escaped, &mut back);
            assert_eq!(back, data, "unescaping after {kind:?} yields other bytes");
        }
    }
    let mut out = Vec::new();
    unescape(data, &mut out);
    assert!(out.len() <= data.len());
    out.clear();
    unescape_redirect(data, &mut out);
}
