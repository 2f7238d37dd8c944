//! Request paths: normalisation, escaping, query arguments (RFC 3986, as nginx applies it).
//!
//! [`normalise`] converts path and query as received into the path for the lookup of locations and files. It decodes, removes dot
//! segments, and refuses paths above the root. It does not access the file system.

mod args;
mod escape;

pub use args::{arg, args};
pub use escape::{
    Escape, escape, escape_args, escape_html, escape_uri, escaped_len, unescape, unescape_redirect,
};

use crate::Span;
use crate::bytes::hex_value;

/// Maximum length of a file name on Linux (`NAME_MAX`); no longer path segment can exist.
pub const SEGMENT_LEN_MAX: usize = 255;
/// Maximum length of a path in a system call (`PATH_MAX` without its NUL).
pub const PATH_LEN_MAX: usize = 4095;

/// Path and query, normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The path as a span of the input if it needed no change; otherwise the path is in `out`.
    clean: Option<Span>,
    /// The query as a span of the input, without its question mark; `None` if there is no question mark.
    pub args: Option<Span>,
    /// The file extension (nginx's `exten`): the text after the last dot of the last segment, as a span of the path.
    pub extension: Option<Span>,
}

impl Uri {
    /// Returns the decoded path, from the two buffers that were passed to [`normalise`].
    #[must_use]
    pub fn path<'a>(&self, input: &'a [u8], out: &'a [u8]) -> &'a [u8] {
        self.clean.map_or(out, |span| span.of(input))
    }

    /// Whether the path needed no change, so that nothing was written to `out`.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.clean.is_some()
    }
}

/// Reason to refuse a path; each means 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriError {
    /// The path does not start with a slash (or a question mark).
    NoSlash,
    /// A per cent sign without two hexadecimal digits after it.
    InvalidEscape,
    /// `%00`, which would end the file name in a system call.
    Nul,
    /// `..` above the root.
    AboveRoot,
}

/// Normalises `input`, path and query as [`crate::request::Head::path`] returns them, into `out` (cleared first). A path that needs
/// no change is scanned once and not copied. A fragment, which no client should send, is cut off.
///
/// # Errors
/// [`UriError`], all of which mean 400.
pub fn normalise(input: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<Uri, UriError> {
    out.clear();
    match input.first() {
        Some(b'/') => {}
        // An absolute target may have an empty path (RFC 9110 section 4.2.3), which means the root.
        None | Some(b'?') => {
            out.push(b'/');
            let args = (!input.is_empty()).then(|| args_span(input, 0));
            return Ok(Uri { clean: None, args, extension: None });
        }
        Some(_) => return Err(UriError::NoSlash),
    }
    match scan_clean(input) {
        Scan::Clean { path_len, dot } => Ok(Uri {
            clean: Some(Span::new(0, path_len)),
            args: (path_len < input.len()).then(|| args_span(input, path_len)),
            extension: dot.map(|dot| Span::new(dot + 1, path_len)),
        }),
        Scan::Complex => rewrite(input, merge_slashes, out),
    }
}

/// Whether a path cannot name a file because a segment or the complete path is too long for Linux. nginx returns 404 (file
/// handlers) when `open` fails with ENAMETOOLONG; this check saves the call.
#[must_use]
pub fn is_too_long_for_file(path: &[u8]) -> bool {
    path.len() > PATH_LEN_MAX
        || path.split(|&byte| byte == b'/').any(|segment| segment.len() > SEGMENT_LEN_MAX)
}

/// Result of the first scan of a path.
enum Scan {
    /// The path needs no decoding and no removal.
    Clean { path_len: usize, dot: Option<usize> },
    /// The path must be rewritten.
    Complex,
}

/// Searches for special bytes; the bytes between them need a single table lookup each.
fn scan_clean(input: &[u8]) -> Scan {
    let mut dot = None;
    let mut from = 0;
    loop {
        let plain = input[from..].iter().take_while(|&&byte| !HAS_MEANING[usize::from(byte)]).count();
        let at = from + plain;
        let after_slash = plain == 0 && at > 0 && input[at - 1] == b'/';
        match input.get(at) {
            None | Some(b'?') => return Scan::Clean { path_len: at, dot },
            Some(b'/') if !after_slash => dot = None,
            Some(b'.') if !after_slash => dot = Some(at),
            Some(_) => return Scan::Complex,
        }
        from = at + 1;
    }
}

/// Returns the span of the query after the question mark at `mark`, up to a fragment.
fn args_span(input: &[u8], mark: usize) -> Span {
    let start = mark + 1;
    let end = memchr::memchr(b'#', &input[start..]).map_or(input.len(), |at| start + at);
    Span::new(start, end)
}

/// Last bytes of the output; they decide the meaning of a slash or a dot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UriState {
    /// An ordinary byte of a segment.
    Usual,
    /// A slash.
    Slash,
    /// A slash and one dot.
    Dot,
    /// A slash and two dots.
    DotDot,
}

/// Decodes and removes dot segments in one pass. A decoded byte counts like a plain one: `%2e%2e` is a dot segment, `%2F` a
/// separator. A decoded `?`, `#` or `%` is an ordinary byte.
fn rewrite(input: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<Uri, UriError> {
    let mut state = UriState::Usual;
    let mut at = 0;
    let mut args = None;
    while let Some(&raw) = input.get(at) {
        let (byte, taken) = if raw == b'%' { (decode(&input[at..])?, 3) } else { (raw, 1) };
        match raw {
            b'?' => {
                args = Some(args_span(input, at));
                break;
            }
            b'#' => break,
            _ => {}
        }
        state = push(byte, state, merge_slashes, out)?;
        at += taken;
    }
    match state {
        UriState::Dot => out.truncate(out.len() - 1),
        UriState::DotDot => remove_parent(out)?,
        UriState::Usual | UriState::Slash => {}
    }
    Ok(Uri { clean: None, args, extension: extension_of(out) })
}

/// Appends one decoded byte, or removes the dot segment that it ends.
fn push(byte: u8, state: UriState, merge_slashes: bool, out: &mut Vec<u8>) -> Result<UriState, UriError> {
    match (byte, state) {
        (b'/', UriState::Slash) if merge_slashes => return Ok(UriState::Slash),
        (b'/', UriState::Dot) => {
            out.truncate(out.len() - 1);
            return Ok(UriState::Slash);
        }
        (b'/', UriState::DotDot) => {
            remove_parent(out)?;
            return Ok(UriState::Slash);
        }
        _ => out.push(byte),
    }
    Ok(match (byte, state) {
        (b'/', _) => UriState::Slash,
        (b'.', UriState::Slash) => UriState::Dot,
        (b'.', UriState::Dot) => UriState::DotDot,
        _ => UriState::Usual,
    })
}

/// Removes the last segment and its `/..`; `out` ends in `/..`.
fn remove_parent(out: &mut Vec<u8>) -> Result<(), UriError> {
    let slash = out.len() - 3;
    let parent = out[..slash].iter().rposition(|&byte| byte == b'/').ok_or(UriError::AboveRoot)?;
    out.truncate(parent + 1);
    Ok(())
}

/// Decodes the escape at the start of `input`.
fn decode(input: &[u8]) -> Result<u8, UriError> {
    let &[_, high, low, ..] = input else { return Err(UriError::InvalidEscape) };
    match (hex_value(high), hex_value(low)) {
        (Some(0), Some(0)) => Err(UriError::Nul),
        (Some(high), Some(low)) => Ok(high << 4 | low),
        _ => Err(UriError::InvalidEscape),
    }
}

/// Returns the text after the last dot of the last segment. Up to three dots at the start of the segment do not begin an extension:
/// nginx checks there for a dot segment.
fn extension_of(path: &[u8]) -> Option<Span> {
    let segment = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let leading = path[segment..].iter().take(3).take_while(|&&byte| byte == b'.').count();
    let dot = path.iter().rposition(|&byte| byte == b'.')?;
    (dot >= segment + leading).then(|| Span::new(dot + 1, path.len()))
}

/// Bytes that are special in the first scan of a path.
const HAS_MEANING: [bool; 256] = {
    let mut table = [false; 256];
    let bytes = b"/.?%#";
    let mut index = 0;
    while index < bytes.len() {
        table[bytes[index] as usize] = true;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(input: &str, merge: bool) -> Result<(String, Option<String>, Option<String>), UriError> {
        let mut out = Vec::new();
        let uri = normalise(input.as_bytes(), merge, &mut out)?;
        let path = uri.path(input.as_bytes(), &out);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let args = uri.args.map(|span| text(span.of(input.as_bytes())));
        Ok((text(path), args, uri.extension.map(|span| text(span.of(path)))))
    }

    #[test]
    fn paths_are_normalised_as_in_nginx() {
        for (input, path, args, extension) in [
            ("/", "/", None, None),
            ("/index.html", "/index.html", None, Some("html")),
            ("/a.b/c", "/a.b/c", None, None),
            ("/a.tar.gz?x=1&y=2", "/a.tar.gz", Some("x=1&y=2"), Some("gz")),
            ("/?", "/", Some(""), None),
            ("/a?b?c", "/a", Some("b?c"), None),
            ("/a?b/../%00", "/a", Some("b/../%00"), None),
            ("/a?b#c", "/a", Some("b"), None),
            ("/a#c?d", "/a", None, None),
            ("", "/", None, None),
            ("?x=1", "/", Some("x=1"), None),
            ("/%41%2ehtml", "/A.html", None, Some("html")),
            ("/a%20b", "/a b", None, None),
            ("/a+b", "/a+b", None, None),
            ("/a/./b", "/a/b", None, None),
            ("/a/.", "/a/", None, None),
            ("/a/b/..", "/a/", None, None),
            ("/a/b/../c", "/a/c", None, None),
            ("/a/%2e%2E/c", "/c", None, None),
            ("/a/b%2f..%2fc", "/a/c", None, None),
            ("/a/..", "/", None, None),
            ("/a/...", "/a/...", None, None),
            ("/a/..b", "/a/..b", None, None),
            ("/a/.b", "/a/.b", None, None),
            ("/a/.b.c", "/a/.b.c", None, Some("c")),
            ("/a.b/./c", "/a.b/c", None, None),
            ("//a///b", "/a/b", None, None),
            ("/a//../b", "/b", None, None),
            ("/a/./?q", "/a/", Some("q"), None),
            ("/a/..?q", "/", Some("q"), None),
            ("/%3f?%3f", "/?", Some("%3f"), None),
            ("/%23", "/#", None, None),
            ("/%252e%252e", "/%2e%2e", None, None),
            ("/\u{e9}", "/\u{e9}", None, None),
        ] {
            let wanted = (path.to_owned(), args.map(str::to_owned), extension.map(str::to_owned));
            assert_eq!(run(input, true), Ok(wanted), "{input}");
        }
    }

    #[test]
    fn slashes_are_preserved_when_not_merged() {
        for (input, path) in
            [("//a///b", "//a///b"), ("/a//../b", "/a/b"), ("/a/..//b", "//b"), ("/%2f", "//")]
        {
            assert_eq!(run(input, false).map(|uri| uri.0), Ok(path.to_owned()), "{input}");
        }
    }

    #[test]
    fn traversal_above_the_root_is_refused() {
        for input in [
            "/..",
            "/../",
            "/../a",
            "/a/../..",
            "/%2e%2e/etc/passwd",
            "/..%2f",
            "/a/..%2f../b",
            "/./..",
            "/..?x",
            "/..#",
        ] {
            assert_eq!(run(input, true), Err(UriError::AboveRoot), "{input}");
        }
    }

    #[test]
    fn nul_is_refused() {
        for input in ["/%00", "/a%00.html", "/..%00/"] {
            assert_eq!(run(input, true), Err(UriError::Nul), "{input}");
        }
    }

    #[test]
    fn bad_escapes_are_refused() {
        for input in ["/%", "/%4", "/%zz", "/%4g", "/%g4", "/a%?x=1", "/%u0041", "/%%41"] {
            assert_eq!(run(input, true), Err(UriError::InvalidEscape), "{input}");
        }
        assert_eq!(run("a/b", true), Err(UriError::NoSlash));
    }

    #[test]
    fn names_too_long_for_linux_are_refused() {
        let name = "x".repeat(SEGMENT_LEN_MAX);
        assert!(!is_too_long_for_file(format!("/{name}/{name}").as_bytes()));
        assert!(is_too_long_for_file(format!("/{name}x/a").as_bytes()));
        assert!(is_too_long_for_file("/a".repeat(PATH_LEN_MAX).as_bytes()));
    }

    /// Decodes, splits, then walks the segments: a slow and obvious reference implementation.
    fn model(input: &[u8]) -> Option<Vec<u8>> {
        let end = input.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(input.len());
        let mut decoded = Vec::new();
        let mut rest = &input[..end];
        while let Some((&byte, tail)) = rest.split_first() {
            if byte == b'%' {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return None;
                }
                let value = u8::from_str_radix(digits, 16).ok()?;
                decoded.push((value != 0).then_some(value)?);
                rest = &tail[2..];
            } else {
                decoded.push(byte);
                rest = tail;
            }
        }
        let mut stack: Vec<&[u8]> = Vec::new();
        let segments: Vec<&[u8]> = decoded[1..].split(|&byte| byte == b'/').collect();
        let last = segments.len() - 1;
        for (index, segment) in segments.iter().enumerate() {
            match *segment {
                b"." | b"" | b".." => {
                    if *segment == b".." {
                        stack.pop()?;
                    }
                    if index == last {
                        stack.push(b"");
                    }
                }
                name => stack.push(name),
            }
        }
        Some([b"/".as_slice(), &stack.join(&b'/')].concat())
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_model(tail in "[a./%2eEfF0?#]{0,24}") {
            let input = format!("/{tail}");
            let mut out = Vec::new();
            let got = normalise(input.as_bytes(), true, &mut out).ok();
            let got = got.map(|uri| uri.path(input.as_bytes(), &out).to_vec());
            prop_assert_eq!(got, model(input.as_bytes()));
        }

        #[test]
        fn a_normalised_path_stays_below_the_root(tail in proptest::collection::vec(any::<u8>(), 0..64), merge: bool) {
            let input = [b"/".as_slice(), &tail].concat();
            let mut out = Vec::new();
            if let Ok(uri) = normalise(&input, merge, &mut out) {
                let path = uri.path(&input, &out);
                prop_assert!(path.starts_with(b"/") && !path.contains(&0) || tail.contains(&0));
                prop_assert!(path.split(|&byte| byte == b'/').all(|segment| segment != b".." && segment != b"."));
            }
        }
    }
}
