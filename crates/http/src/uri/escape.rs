//! Percent-encoding and HTML escaping with nginx's sets of characters, and decoding.
//!
//! [`Escape::Uri`] is for a decoded path in `Location` or in a request to an upstream. [`Escape::Args`] is for a value in a query,
//! [`Escape::UriComponent`] for text between separators.

/// Set of bytes to encode. Control bytes, DEL and bytes above 0x7f are always encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A path: also space `"` `#` `%` `<` `>` `?` `\` `^` `` ` `` `{` `|` `}`.
    Uri,
    /// A query argument: the path's set and `&` `+` `;`.
    Args,
    /// All bytes except letters, digits and `-` `.` `_` `~`.
    UriComponent,
    /// Text in a URI inside HTML: the set of `Refresh`, and `#` `%`.
    Html,
    /// A URI in `<meta http-equiv="Refresh">`: space `"` `'` `<` `>` `\` `^` `` ` `` `{` `|` `}`.
    Refresh,
}

impl Escape {
    fn applies(self, byte: u8) -> bool {
        if byte <= 0x20 || byte >= 0x7f {
            return true;
        }
        let set: &[u8] = match self {
            Self::Uri => b"\"#%<>?\\^`{|}",
            Self::Args => b"\"#%<>?\\^`{|}&+;",
            Self::Html => b"\"#%'<>\\^`{|}",
            Self::Refresh => b"\"'<>\\^`{|}",
            Self::UriComponent => return !(byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
        };
        set.contains(&byte)
    }
}

/// Appends `text`, with the bytes of the set encoded as `%XX`.
pub fn escape(kind: Escape, text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if kind.applies(byte) {
            let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
        } else {
            out.push(byte);
        }
    }
}

/// Returns the length of the text that [`escape`] appends.
#[must_use]
pub fn escaped_len(kind: Escape, text: &[u8]) -> usize {
    text.iter().map(|&byte| if kind.applies(byte) { 3 } else { 1 }).sum()
}

/// Appends a decoded path, percent-encoded for a URI.
pub fn escape_uri(path: &[u8], out: &mut Vec<u8>) {
    escape(Escape::Uri, path, out);
}

/// Appends a text, percent-encoded as a query argument.
pub fn escape_args(text: &[u8], out: &mut Vec<u8>) {
    escape(Escape::Args, text, out);
}

/// Appends `text` with `<` `>` `&` `"` as character references.
pub fn escape_html(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(byte),
        }
    }
}

/// Appends `text` decoded. As in nginx, an invalid escape loses its percent sign, and its first digit too if that digit is valid.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match take_escape(&mut rest) {
            Some(Escaped::Byte { value, .. }) => out.push(value),
            Some(Escaped::None(byte)) => out.push(byte),
            Some(Escaped::Half) => {}
            None => return,
        }
    }
}

/// Result of parsing the bytes after a percent sign.
enum Escaped {
    /// A byte in hexadecimal.
    Byte { value: u8, digits: [u8; 2] },
    /// No hexadecimal digit: this byte is literal.
    None(u8),
    /// One hexadecimal digit, followed by another byte.
    Half,
}

/// Removes an escape (after its percent sign) from the front of `rest`; `None` if the text ends within it.
fn take_escape(rest: &mut &[u8]) -> Option<Escaped> {
    let (&first, tail) = rest.split_first()?;
    *rest = tail;
    let Some(high) = crate::bytes::hex_value(first) else { return Some(Escaped::None(first)) };
    let (&second, tail) = rest.split_first()?;
    *rest = tail;
    let low = crate::bytes::hex_value(second);
    Some(low.map_or(Escaped::Half, |low| Escaped::Byte { value: high << 4 | low, digits: [first, second] }))
}

/// Appends the target of a redirect without unnecessary escapes: printable bytes above the percent sign are decoded, others remain
/// escaped. As in nginx, the query is unchanged, an escaped question mark begins a query, and invalid escapes are dropped as by
/// [`unescape`].
pub fn unescape_redirect(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'?' {
            out.push(byte);
            break;
        }
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match take_escape(&mut rest) {
            Some(Escaped::Byte { value: b'?', .. }) => {
                out.push(b'?');
                break;
            }
            Some(Escaped::Byte { value: byte @ b'&'..=b'~', .. } | Escaped::None(byte)) => out.push(byte),
            Some(Escaped::Byte { digits: [first, second], .. }) => {
                out.extend_from_slice(&[b'%', first, second]);
            }
            Some(Escaped::Half) => {}
            None => return,
        }
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(kind: Escape, text: &str) -> String {
        let mut out = Vec::new();
        escape(kind, text.as_bytes(), &mut out);
        assert_eq!(out.len(), escaped_len(kind, text.as_bytes()));
        String::from_utf8(out).expect("escapes are ASCII")
    }

    #[test]
    fn escaped_byte_sets_match_nginx() {
        let printable: String = (0x20..0x7f).map(char::from).collect();
        let kept = |kind| -> String { printable.chars().filter(|&c| !kind_applies(kind, c)).collect() };
        fn kind_applies(kind: Escape, c: char) -> bool {
            kind.applies(c as u8)
        }
        let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let lower = letters.to_ascii_lowercase();
        assert_eq!(kept(Escape::Uri), format!("!$&'()*+,-./0123456789:;=@{letters}[]_{lower}~"));
        assert_eq!(kept(Escape::Args), format!("!$'()*,-./0123456789:=@{letters}[]_{lower}~"));
        assert_eq!(kept(Escape::UriComponent), format!("-.0123456789{letters}_{lower}~"));
    }

    #[test]
    fn escapes_are_upper_case_hexadecimal() {
        assert_eq!(escaped(Escape::Uri, "/a b\u{e9}\n%?"), "/a%20b%C3%A9%0A%25%3F");
        assert_eq!(escaped(Escape::Args, "a&b+c;d=e"), "a%26b%2Bc%3Bd=e");
    }

    #[test]
    fn html_is_escaped() {
        let mut out = Vec::new();
        escape_html(b"<a href=\"x\">'&'</a>", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;x&quot;&gt;'&amp;'&lt;/a&gt;");
    }

    #[test]
    fn unescape_drops_malformed_escapes() {
        for (text, wanted) in [
            ("a%20b", "a b"),
            ("%41%4a%4A", "AJJ"),
            ("a+b", "a+b"),
            ("%zz", "zz"),
            ("%4zx", "x"),
            ("%", ""),
            ("%4", ""),
            ("%00", "\0"),
        ] {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out);
            assert_eq!(out, wanted.as_bytes(), "{text}");
        }
    }

    #[test]
    fn redirects_retain_required_escapes() {
        for (text, wanted) in [
            ("/a%20b", "/a%20b"),
            ("/%41%7e%7f%25%26%2f", "/A~%7f%25&/"),
            ("/a%c3%A9", "/a%c3%A9"),
            ("/a?%41", "/a?%41"),
            ("/a%3F%41", "/a?%41"),
            ("/%zz%4z%", "/zz"),
            ("/%4", "/"),
            ("/%0a", "/%0a"),
        ] {
            let mut out = Vec::new();
            unescape_redirect(text.as_bytes(), &mut out);
            assert_eq!(out, wanted.as_bytes(), "{text}");
        }
    }

    #[test]
    fn unescape_reverses_escape() {
        let all: Vec<u8> = (0..=255).collect();
        for kind in [Escape::Uri, Escape::Args, Escape::UriComponent] {
            let (mut coded, mut back) = (Vec::new(), Vec::new());
            escape(kind, &all, &mut coded);
            unescape(&coded, &mut back);
            assert_eq!(back, all);
        }
    }
}
