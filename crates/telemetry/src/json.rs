//! Lines in the form of JSON objects (RFC 8259), written field by field without an intermediate tree.

use std::fmt;

/// An incomplete object at the end of a buffer.
pub struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    /// Begins an object.
    pub fn open(out: &'a mut Vec<u8>) -> Object<'a> {
        out.push(b'{');
        Object { out, first: true }
    }

    /// Appends a field with a text. Names come from this program and need no escapes.
    #[must_use]
    pub fn text(mut self, name: &str, value: impl fmt::Display) -> Object<'a> {
        self.name(name);
        self.out.push(b'"');
        // The text is formatted directly into the line, so that a long message needs no other memory. Writing to a
        // `Vec` cannot fail.
        let _ = fmt::write(&mut Escaped(self.out), format_args!("{value}"));
        self.out.push(b'"');
        self
    }

    /// Appends a field with bytes from a client. Bytes that are not UTF-8 are written as `\xHH`, because JSON can only
    /// contain text.
    #[must_use]
    pub fn bytes(mut self, name: &str, value: &[u8]) -> Object<'a> {
        self.name(name);
        self.out.push(b'"');
        for chunk in value.utf8_chunks() {
            escape(chunk.valid(), self.out);
            for byte in chunk.invalid() {
                let _ = fmt::write(&mut Escaped(self.out), format_args!("\\x{byte:02x}"));
            }
        }
        self.out.push(b'"');
        self
    }

    /// Appends a field with a number.
    #[must_use]
    pub fn number(mut self, name: &str, value: u64) -> Object<'a> {
        self.name(name);
        http::push_decimal(self.out, value);
        self
    }

    /// Ends the object.
    pub fn close(self) {
        self.out.push(b'}');
    }

    /// Appends the name of the next field, with its separator.
    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }
}

/// A writer that escapes text while it is formatted, so that no intermediate string is necessary.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, self.0);
        Ok(())
    }
}

/// Appends text with the escapes of RFC 8259 section 7.
fn escape(text: &str, out: &mut Vec<u8>) {
    let code = |byte: u8| {
        let digit = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
        [b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]
    };
    let mut before = 0;
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            // JSON does not require an escape for DEL, but terminals should not receive it.
            0..0x20 | 0x7f => out.extend_from_slice(&code(byte)),
            // U+0080 to U+009F: terminals interpret some of them as the start of an escape sequence.
            0x80..0xa0 if before == 0xc2 => {
                out.pop();
                out.extend_from_slice(&code(byte));
            }
            _ => out.push(byte),
        }
        before = byte;
    }
}

/// Truncates each text of the object at `start` to `max` bytes. Never divides a character or an escape.
pub(super) fn shorten(start: usize, max: usize, out: &mut Vec<u8>) {
    assert!(start <= out.len(), "the object begins within the text");
    let line = out.split_off(start);
    let mut rest = line.as_slice();
    // Length of the current text; `None` outside of texts.
    let mut length = None;
    while let [first, ..] = rest {
        let unit = match rest {
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            // The number of bytes of a character in UTF-8 (RFC 3629 section 3).
            _ => first.leading_ones().max(1) as usize,
        };
        let (unit, after) = rest.split_at(unit.min(rest.len()));
        rest = after;
        length = match length {
            None => (unit == b"\"").then_some(0),
            Some(_) if unit == b"\"" => None,
            Some(length) => Some(length + unit.len()),
        };
        if length.is_none_or(|length| length <= max) {
            out.extend_from_slice(unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json() {
        let mut out = b"> ".to_vec();
        let object = Object::open(&mut out).text("a", format_args!("q\"{}\\", "\n\u{1}ä\u{9b}"));
        object.number("n", 7).bytes("b", b"x\xff\"\xc3\xa4\0").close();
        assert_eq!(
            String::from_utf8(out).expect("JSON is UTF-8"),
            r#"> {"a":"q\"\n\u0001ä\u009b\\","n":7,"b":"x\\xff\"ä\u0000"}"#
        );
    }

    #[test]
    fn long_texts_are_shortened_between_characters_and_escapes() {
        let line = r#"> {"a":"q\"\n\u0001ä\u009b\\","n":1234567,"c":"\"","d":"€uro","e":""}"#;
        for (max, expected) in [
            (1, r#"> {"a":"q","n":1234567,"c":"","d":"","e":""}"#),
            (2, r#"> {"a":"q","n":1234567,"c":"\"","d":"","e":""}"#),
            (3, r#"> {"a":"q\"","n":1234567,"c":"\"","d":"€","e":""}"#),
            (10, r#"> {"a":"q\"\n","n":1234567,"c":"\"","d":"€uro","e":""}"#),
            (99, line),
        ] {
            let mut out = line.as_bytes().to_vec();
            shorten(2, max, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{max}");
        }
    }
}
