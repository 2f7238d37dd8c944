//! Percent-encoding and HTML escaping with nginx's sets of characters, and decoding.
//!
//! Which set applies where: [`Escape::Uri`] for a decoded path that goes into `Location` or to an upstream,
//! [`Escape::Args`] for a value put into a query, [`Escape::UriComponent`] for text between separators.

/// Which bytes are encoded. Control bytes, DEL and bytes above 0x7f always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A path: also space `"` `#` `%` `<` `>` `?` `\` `^` `` ` `` `{` `|` `}`.
    Uri,
    /// A query argument: the path's set and `&` `+` `;`.
    Args,
    /// All but letters, digits and `-` `.` `_` `~`.
    UriComponent,
    /// A text as a part of an address in HTML: what `Refresh` has, and `#` `%`.
    Html,
    /// An address in a `Refresh` attribute of HTML: space `"` `'` `<` `>` and the last column of the path's set.
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

/// Appends `text` with the bytes of the set as `%XX`.
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

/// Length that [`escape`] would append.
#[must_use]
pub fn escaped_len(kind: Escape, text: &[u8]) -> usize {
    text.iter().map(|&byte| if kind.applies(byte) { 3 } else { 1 }).sum()
}

/// Appends a decoded path, encoded for a URI.
pub fn escape_uri(path: &[u8], out: &mut Vec<u8>) {
    escape(Escape::Uri, path, out);
}

/// Appends a text, encoded as an argument of a query.
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

/// Appends `text` decoded. As in nginx, an invalid escape loses its per cent sign, and its first digit too when that
/// was valid.
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

/// The characters behind a per cent sign.
enum Escaped {
    /// A byte in hexadecimal.
    Byte { value: u8, digits: [u8; 2] },
    /// No digit: this byte stands for itself.
    None(u8),
    /// One digit, and another byte.
    Half,
}

/// Takes what belongs to a per cent sign off the front; nothing where the text ends before that is known.
fn take_escape(rest: &mut &[u8]) -> Option<Escaped> {
    let (&first, tail) = rest.split_first()?;
    *rest = tail;
    let Some(high) = crate::bytes::hex_value(first) else { return Some(Escaped::None(first)) };
    let (&second, tail) = rest.split_first()?;
    *rest = tail;
    let low = crate::bytes::hex_value(second);
    Some(low.map_or(Escaped::Half, |low| Escaped::Byte { value: high << 4 | low, digits: [first, second] }))
}

/// Appends a target that a client is to be sent to, without the escapes that it does not need: printable bytes above
/// the per cent sign are decoded, others keep their escape. As in nginx, the query is left as it is, an escaped
/// question mark starts one, and invalid escapes are dropped as by [`unescape`].
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
    fn sets_of_bytes() {
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
    fn html() {
        let mut out = Vec::new();
        escape_html(b"<a href=\"x\">'&'</a>", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;x&quot;&gt;'&amp;'&lt;/a&gt;");
    }

    #[test]
    fn unescape_drops_what_is_no_escape() {
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
    fn redirects_keep_the_escapes_that_they_need() {
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
    fn unescape_undoes_escape() {
        let all: Vec<u8> = (0..=255).collect();
        for kind in [Escape::Uri, Escape::Args, Escape::UriComponent] {
            let (mut coded, mut back) = (Vec::new(), Vec::new());
            escape(kind, &all, &mut coded);
            unescape(&coded, &mut back);
            assert_eq!(back, all);
        }
    }
}
