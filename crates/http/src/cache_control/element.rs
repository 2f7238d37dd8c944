//! One element of a list of directives: its name and its argument (RFC 9111 section 5.2).

use super::DELTA_SECONDS_MAX;
use crate::bytes::trim_ows;

/// The text after the equals sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Argument<'a> {
    /// No equals sign.
    None,
    /// A token, or any unquoted text up to the comma.
    Plain(&'a [u8]),
    /// The text between quotes, with its backslashes.
    Quoted(&'a [u8]),
    /// An unclosed quoted string.
    Open,
}

impl<'a> Argument<'a> {
    /// Returns the argument as a number of seconds, at most [`DELTA_SECONDS_MAX`]. A token and a quoted string are both accepted,
    /// as section 5.2 requires. `None` if the text is not a plain decimal number.
    pub(super) fn seconds(self) -> Option<u32> {
        match self {
            Self::Plain(text) | Self::Quoted(text) => delta_seconds(text),
            Self::None | Self::Open => None,
        }
    }

    /// Returns the listed field names; none if any name is invalid. The directive then counts as one without field names, so that
    /// it forbids more instead of less.
    pub(super) fn field_names(self) -> impl Iterator<Item = &'a [u8]> {
        let text = match self {
            Self::Plain(text) | Self::Quoted(text) => text,
            Self::None | Self::Open => b"",
        };
        let names = || text.split(|&byte| byte == b',').map(trim_ows);
        let valid = names().all(|name| name.iter().all(|&byte| crate::bytes::is_token(byte)));
        names().filter(move |name| valid && !name.is_empty())
    }
}

/// Parses a number of seconds (RFC 9111 section 1.2.2): decimal digits, limited to [`DELTA_SECONDS_MAX`].
pub(crate) fn delta_seconds(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = text
        .iter()
        .fold(0u64, |value, digit| (value * 10 + u64::from(digit - b'0')).min(u64::from(DELTA_SECONDS_MAX)));
    Some(value as u32)
}

/// Iterates over the elements of one value. White space around the equals sign is accepted; empty elements are skipped.
pub(super) fn elements(value: &[u8]) -> Elements<'_> {
    Elements { rest: value }
}

/// See [`elements`].
pub(super) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = (&'a [u8], Argument<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest;
            if rest.is_empty() {
                return None;
            }
            let name_len = rest.iter().position(|byte| matches!(byte, b',' | b'=')).unwrap_or(rest.len());
            let name = trim_ows(&rest[..name_len]);
            let after = &rest[name_len..];
            let argument = match after.strip_prefix(b"=") {
                Some(text) => self.argument(text),
                None => {
                    self.rest = after.get(1..).unwrap_or_default();
                    Argument::None
                }
            };
            if !name.is_empty() {
                return Some((name, argument));
            }
        }
    }
}

impl<'a> Elements<'a> {
    /// Parses the argument at the start of `text` and skips to the next comma.
    fn argument(&mut self, text: &'a [u8]) -> Argument<'a> {
        let blank = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let text = &text[blank..];
        let (argument, after) = match text.strip_prefix(b"\"") {
            None => {
                let len = memchr::memchr(b',', text).unwrap_or(text.len());
                (Argument::Plain(trim_ows(&text[..len])), &text[len..])
            }
            Some(inner) => match closing_quote(inner) {
                Some(len) => (Argument::Quoted(&inner[..len]), &inner[len + 1..]),
                // The text after the unclosed quote is parsed as if unquoted.
                None => (Argument::Open, inner),
            },
        };
        let comma = memchr::memchr(b',', after).map_or(after.len(), |comma| comma + 1);
        self.rest = &after[comma..];
        argument
    }
}

/// Returns the index of the closing quote of a quoted string.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
