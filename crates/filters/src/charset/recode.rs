//! Converts a body to another charset.
//!
//! The result does not depend on the boundaries of the body's pieces. Only UTF-8 characters can be split by a boundary;
//! their first bytes are held back.

use std::io::Write;

use crate::charset::map::{Conversion, Tables, Utf8Table};
use exchange::filter::{BodyFilter, Output};
use exchange::request::Request;
use transfer::coding::CodingError;

/// Converts a text to another charset.
pub(super) struct Recode {
    /// The tables and the direction.
    conversion: Conversion,
    /// The first bytes of a character whose last bytes have not arrived.
    held: Vec<u8>,
}

impl Recode {
    /// Creates the filter of a body; no byte is held back yet.
    pub(super) fn new(conversion: Conversion) -> Recode {
        Recode { conversion, held: Vec::new() }
    }

    /// Whether the conversion preserves the length: each byte becomes one byte.
    pub(super) fn preserves_length(&self) -> bool {
        matches!(self.conversion.map.tables, Tables::Bytes { .. })
    }

    /// Converts `input` and appends the result.
    fn recode(&mut self, input: &[u8], out: &mut Vec<u8>) {
        match (&self.conversion.map.tables, self.conversion.is_back) {
            (Tables::Bytes { forth: table, .. }, false) | (Tables::Bytes { back: table, .. }, true) => {
                out.extend(input.iter().map(|&byte| table[usize::from(byte)]));
            }
            (Tables::Utf8 { forth, .. }, false) => {
                for &byte in input {
                    out.extend_from_slice(forth[usize::from(byte)].as_bytes());
                }
            }
            // The input is copied only if a character was split.
            (Tables::Utf8 { back, .. }, true) if self.held.is_empty() => {
                self.held = from_utf8(back, input, out);
            }
            (Tables::Utf8 { back, .. }, true) => {
                let mut whole = std::mem::take(&mut self.held);
                whole.extend_from_slice(input);
                self.held = from_utf8(back, &whole, out);
            }
        }
    }
}

/// Converts from UTF-8. A character that the charset lacks becomes an entity, an invalid one a question mark. Returns
/// the bytes of an incomplete character at the end.
fn from_utf8(table: &Utf8Table, input: &[u8], out: &mut Vec<u8>) -> Vec<u8> {
    let mut rest = input.len();
    for chunk in input.utf8_chunks() {
        for character in chunk.valid().chars() {
            match table.byte(character) {
                // As in nginx ASCII is not converted in this direction.
                _ if character.is_ascii() => out.push(character as u8),
                Some(byte) => out.push(byte),
                None => {
                    // Writing to a `Vec` cannot fail.
                    let _ = write!(out, "&#{};", u32::from(character));
                }
            }
        }
        let wrong = chunk.invalid();
        debug_assert!(chunk.valid().len() + wrong.len() <= rest, "chunks are parts of the text");
        rest -= chunk.valid().len() + wrong.len();
        let is_incomplete = || std::str::from_utf8(wrong).is_err_and(|error| error.error_len().is_none());
        match wrong {
            [] => {}
            _ if rest == 0 && is_incomplete() => {
                debug_assert!(wrong.len() < 4, "a character has at most four bytes");
                return wrong.to_vec();
            }
            _ => out.push(b'?'),
        }
    }
    debug_assert!(rest == 0, "the complete input was converted");
    Vec::new()
}

impl BodyFilter for Recode {
    fn push(&mut self, _: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        self.recode(input, out.bytes());
        Ok(input.len())
    }

    /// As in nginx an incomplete character at the end is dropped.
    fn finish(&mut self, _: &mut Request, _: &mut Output) -> Result<(), CodingError> {
        self.held.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charset::map::Maps;
    use crate::testing::loaded;

    fn recode(from: &str, to: &str) -> Recode {
        let config = loaded(
            "charset_map koi8-r utf-8 { C1 D0B0; C2 D0B1; 80 E29480; }
             charset_map koi8-r windows-1251 { C1 E0; C2 E1; }",
        );
        Recode::new(
            config.http.of::<Maps>().conversion(from.as_bytes(), to.as_bytes()).expect("there is a map"),
        )
    }

    /// Returns the result, which must not depend on where the input is split.
    fn text(from: &str, to: &str, input: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        recode(from, to).recode(input, &mut whole);
        for piece in 1..5 {
            let (mut filter, mut out) = (recode(from, to), Vec::new());
            for bytes in input.chunks(piece) {
                filter.recode(bytes, &mut out);
            }
            assert_eq!(out, whole, "in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn bytes_are_recoded_to_bytes() {
        assert!(recode("koi8-r", "windows-1251").preserves_length());
        assert_eq!(text("koi8-r", "windows-1251", b"a\xc1\xc2\x80\r\n"), b"a\xe0\xe1?\r\n");
        assert_eq!(text("windows-1251", "koi8-r", b"a\xe0\xe1\xff"), b"a\xc1\xc2?");
    }

    #[test]
    fn bytes_are_recoded_to_utf_8() {
        assert!(!recode("koi8-r", "utf-8").preserves_length());
        assert_eq!(text("koi8-r", "utf-8", b"a\xc1\xc2\x80\xff"), "a\u{430}\u{431}\u{2500}?".as_bytes());
    }

    #[test]
    fn utf_8_is_recoded_to_bytes_and_entities() {
        let input = "a\u{430}\u{431}\u{2500}\u{44f}\u{1f600}b";
        assert_eq!(text("utf-8", "koi8-r", input.as_bytes()), b"a\xc1\xc2\x80&#1103;&#128512;b");
    }

    #[test]
    fn invalid_utf_8_becomes_a_question_mark() {
        assert_eq!(text("utf-8", "koi8-r", b"a\xff\xd0<b>\xd0"), b"a??<b>");
        assert_eq!(text("utf-8", "koi8-r", b"\x80\xd0\xb0\xc0\xc1"), b"?\xc1??");
    }
}
