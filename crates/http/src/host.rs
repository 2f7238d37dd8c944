//! Validation of `Host` and of the authority of an absolute target (RFC 9110 section 7.2, RFC 3986 section 3.2).
//!
//! Follows nginx 1.29.4 and later: accepts the characters of a registered name or an IP literal, and a numeric port; drops one
//! trailing dot. Does not resolve names and does not choose a server.

use crate::Span;

/// A host that may be used to look up a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name without port and trailing dot, as a span of the validated text; it includes the brackets of an IP literal.
    pub name: Span,
    /// The port, if the text has a non-empty one.
    pub port: Option<u16>,
    /// Whether `name` has upper-case letters and needs [`lowercase_into`].
    pub has_upper: bool,
}

/// Reason to refuse a host; each means 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// No name: the text is empty, a lone dot, or a port alone.
    Empty,
    /// A byte that is invalid in a host, at this index.
    InvalidByte {
        /// Index in the validated text.
        at: u32,
    },
    /// Two consecutive dots, at this index.
    EmptyLabel {
        /// Index of the second dot.
        at: u32,
    },
    /// An opening bracket without its closing one.
    UnclosedLiteral,
    /// A port that is not a number up to 65535.
    InvalidPort,
}

/// Validates the value of a `Host` field or an authority without user information.
///
/// # Errors
/// One of [`HostError`]; all of them mean 400.
pub fn validate(value: &[u8]) -> Result<Host, HostError> {
    let is_literal = value.first() == Some(&b'[');
    let (name_end, seen) = if is_literal { literal_end(value)? } else { name_end(value)? };
    let port = match value.get(name_end) {
        None => None,
        Some(b':') => parse_port(&value[name_end + 1..])?,
        Some(_) => return Err(HostError::InvalidByte { at: name_end as u32 }),
    };
    let mut name = &value[..name_end];
    if let [head @ .., b'.'] = name {
        name = head;
    }
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    Ok(Host { name: Span::new(0, name.len()), port, has_upper: seen & UPPER != 0 })
}

/// Writes `name` in lower case to `out`, which is cleared first.
pub fn lowercase_into(name: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend(name.iter().map(u8::to_ascii_lowercase));
}

/// Returns the end of a registered name (the first colon, or the end of the text) and the classes of its bytes.
fn name_end(value: &[u8]) -> Result<(usize, u8), HostError> {
    let (mut before, mut seen, mut doubled) = (0, 0, 0);
    let mut end = value.len();
    for (at, &byte) in value.iter().enumerate() {
        let class = CLASS[usize::from(byte)];
        if class & NAME == 0 {
            end = at;
            break;
        }
        doubled |= class & before;
        before = class;
        seen |= class;
    }
    match value.get(end) {
        // The first error is reported.
        _ if doubled & DOT != 0 => {
            let second = value.windows(2).position(|two| two == b"..").map_or(end, |first| first + 1);
            Err(HostError::EmptyLabel { at: second as u32 })
        }
        None | Some(b':') => Ok((end, seen)),
        Some(_) => Err(HostError::InvalidByte { at: end as u32 }),
    }
}

/// Returns the end of an IP literal (after its closing bracket) and the classes of its bytes. The address itself is not parsed: an
/// invalid address matches no server name, so it only reaches the default server. Two consecutive dots are refused as in a name,
/// because the literal may become part of a path.
fn literal_end(value: &[u8]) -> Result<(usize, u8), HostError> {
    let mut seen = 0;
    for (at, &byte) in value.iter().enumerate().skip(1) {
        let class = CLASS[usize::from(byte)];
        match byte {
            b']' if at == 1 => return Err(HostError::Empty),
            b']' => return Ok((at + 1, seen)),
            b'.' if value[at - 1] == b'.' => return Err(HostError::EmptyLabel { at: at as u32 }),
            _ if class & LITERAL != 0 => seen |= class,
            _ => return Err(HostError::InvalidByte { at: at as u32 }),
        }
    }
    Err(HostError::UnclosedLiteral)
}

/// Parses a port. An empty port is allowed (RFC 3986 section 3.2.3) and means the default port.
fn parse_port(digits: &[u8]) -> Result<Option<u16>, HostError> {
    if digits.is_empty() {
        return Ok(None);
    }
    let port = crate::parse_decimal(digits).and_then(|port| u16::try_from(port).ok());
    port.map(Some).ok_or(HostError::InvalidPort)
}

/// Allowed in a registered name: `unreserved`, `sub-delims` and the percent sign of `pct-encoded` (RFC 3986 section 3.2.2).
const NAME: u8 = 1 << 0;
/// Allowed between the brackets of an IP literal: the same bytes without the percent sign, and colons.
const LITERAL: u8 = 1 << 1;
const DOT: u8 = 1 << 2;
const UPPER: u8 = 1 << 3;

/// The classes of each byte.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = NAME | LITERAL;
        }
        if (byte as u8).is_ascii_uppercase() {
            table[byte] |= UPPER;
        }
        byte += 1;
    }
    let others = b"-._~!$&'()*+,;=";
    let mut index = 0;
    while index < others.len() {
        table[others[index] as usize] = NAME | LITERAL;
        index += 1;
    }
    table[b'.' as usize] |= DOT;
    table[b'%' as usize] = NAME;
    table[b':' as usize] = LITERAL;
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_hosts_are_accepted() {
        for (value, name, port) in [
            ("example.com", "example.com", None),
            ("Example.COM:8080", "Example.COM", Some(8080)),
            ("example.com.", "example.com", None),
            ("example.com.:80", "example.com", Some(80)),
            ("a_b.test", "a_b.test", None),
            ("example.com:", "example.com", None),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("[::1]", "[::1]", None),
            ("[2001:DB8::1]:443", "[2001:DB8::1]", Some(443)),
            ("[::ffff:1.2.3.4]", "[::ffff:1.2.3.4]", None),
            ("x", "x", None),
        ] {
            let host = validate(value.as_bytes()).expect(value);
            assert_eq!(host.name.of(value.as_bytes()), name.as_bytes(), "{value}");
            assert_eq!(host.port, port, "{value}");
            assert_eq!(host.has_upper, name.bytes().any(|byte| byte.is_ascii_uppercase()), "{value}");
        }
    }

    #[test]
    fn invalid_hosts_are_refused() {
        for value in [
            "",
            ".",
            ":80",
            ".:80",
            "a..b",
            "..",
            "a b",
            "a/b",
            "a\\b",
            "a?b",
            "a#b",
            "user@host",
            "a\tb",
            "a\0b",
            "a\x7fb",
            "\u{e4}.de",
            "[::1",
            "[]",
            "[]:80",
            "[::1]x",
            "[::1]]",
            "[ab..cd::1]",
            "[..]",
            "[:/1]",
            "a:b",
            "a:-1",
            "a:65536",
            "a:80:80",
            "a:8 0",
            "<a>",
            "a\"b",
            "a,b/",
            "a]",
        ] {
            assert!(validate(value.as_bytes()).is_err(), "{value:?}");
        }
    }

    #[test]
    fn the_lower_case_host_is_written_to_the_callers_buffer() {
        let mut out = b"old".to_vec();
        lowercase_into(b"ExAmple.ORG", &mut out);
        assert_eq!(out, b"example.org");
    }
}
