//! Texts of certificate authorities in crate `acme`: URLs and links, times, base64url.
//!
//! The source files are compiled here directly: they need only the standard library, and the complete crate would add a
//! cryptography library.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/acme/src/base64url.rs"]
mod base64url;
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/acme/src/schedule.rs"]
mod schedule;
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/acme/src/url.rs"]
mod url;

use url::{Url, alternate};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "acme_texts",
    run,
    tokens: &[
        "https://",
        "a.example",
        ":443",
        "[::1]",
        "/",
        "?",
        "#",
        "//",
        "<",
        ">",
        "; rel=\"alternate\"",
        "2026-11-25T21:43:21",
        "Z",
        "+01:00",
        ".5",
        "Zm9v",
        "-_",
        "=",
    ],
};

/// Checks that a round trip preserves a parsed URL, that references resolve to https unless they name another scheme,
/// and that encoding decoded base64url yields the original text.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(base) = Url::parse(text) {
        let written = base.joined(&base.target);
        if !base.target.contains("://") && !base.target.starts_with("//") {
            assert_eq!(Url::parse(&written).as_ref(), Some(&base), "{written}");
        }
        assert!(!base.host.is_empty() && base.target.starts_with('/'));
    }
    let base = Url::parse("https://a.example/dir").expect("a URL");
    let joined = base.joined(text);
    assert!(text.contains("://") || joined.starts_with("https:"), "{joined}");
    if let Some(target) = alternate(text) {
        assert!(text.contains(target) && !target.contains('>'));
    }
    if let Some(time) = schedule::parse_time(text) {
        assert!((-62_200_000_000..253_500_000_000).contains(&time), "{text}: {time}");
    }
    if let Some(bytes) = base64url::decode(text) {
        let again = base64url::encode(&bytes);
        assert_eq!(base64url::decode(&again), Some(bytes));
    }
    assert_eq!(base64url::decode(&base64url::encode(data)).as_deref(), Some(data));
}
