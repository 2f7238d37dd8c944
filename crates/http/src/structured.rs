//! Structured field values (RFC 8941): parsing of dictionaries, encoding of items.
//!
//! [`Dictionary`] parses `CDN-Cache-Control` and other targeted fields (RFC 9213), and `Priority` (RFC 9218); the `push_`
//! functions write `Cache-Status` (RFC 9211). Parameters are checked and skipped. A syntax error makes the entire field
//! invalid, as section 4.2 requires.

/// The value of a dictionary member. Strings are raw: the text between the quotes, with its backslashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer of at most fifteen digits.
    Integer(i64),
    /// A decimal, in thousandths.
    Decimal(i64),
    /// A string.
    String(&'a [u8]),
    /// A token.
    Token(&'a [u8]),
    /// A byte sequence, in base 64.
    Bytes(&'a [u8]),
    /// A boolean; a key without a value is true.
    Boolean(bool),
    /// A list in parentheses, unparsed.
    InnerList(&'a [u8]),
}

/// A parsed dictionary that borrows its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dictionary<'a> {
    members: Vec<(&'a [u8], Value<'a>)>,
}

impl<'a> Dictionary<'a> {
    /// Parses a field value; the caller joins several lines by `", "`. Returns `None` for a syntax error. An empty value is an
    /// empty dictionary.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut reader = FieldReader { text, at: 0 };
        let mut members = Vec::new();
        reader.skip_spaces();
        while !reader.is_done() {
            let key = reader.key()?;
            let value = if reader.take(b'=') { reader.item_or_list()? } else { Value::Boolean(true) };
            reader.parameters()?;
            members.push((key, value));
            reader.skip_white_space();
            if reader.is_done() {
                break;
            }
            if !reader.take(b',') {
                return None;
            }
            reader.skip_white_space();
            if reader.is_done() {
                // Trailing comma.
                return None;
            }
        }
        Some(Self { members })
    }

    /// Returns the members in order. If a key is repeated, the last member counts.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], Value<'a>)> + '_ {
        self.members.iter().copied()
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Value<'a>> {
        self.members().rev().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Maximum number of digits of an integer, and of the two parts of a decimal (RFC 8941 section 4.2.4).
const INTEGER_DIGITS_MAX: usize = 15;
const WHOLE_DIGITS_MAX: usize = 12;
const FRACTION_DIGITS_MAX: usize = 3;

struct FieldReader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn is_done(&self) -> bool {
        self.at == self.text.len()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let start = self.at;
        while self.peek().is_some_and(&belongs) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn skip_spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    fn skip_white_space(&mut self) {
        self.take_while(|byte| matches!(byte, b' ' | b'\t'));
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.peek().filter(|byte| byte.is_ascii_lowercase() || *byte == b'*')?;
        Some(self.take_while(is_key_byte))
    }

    fn item_or_list(&mut self) -> Option<Value<'a>> {
        let start = self.at;
        if !self.take(b'(') {
            return self.bare_item();
        }
        loop {
            self.skip_spaces();
            if self.take(b')') {
                return Some(Value::InnerList(&self.text[start..self.at]));
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip_spaces();
            self.key()?;
            if self.take(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn bare_item(&mut self) -> Option<Value<'a>> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => self.boolean(),
            b':' => self.bytes(),
            byte if byte.is_ascii_alphabetic() || byte == b'*' => {
                Some(Value::Token(self.take_while(is_token_byte)))
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value<'a>> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        let whole = self.digits(INTEGER_DIGITS_MAX)?;
        if !self.take(b'.') {
            return Some(Value::Integer(sign * value_of(whole)));
        }
        if whole.len() > WHOLE_DIGITS_MAX {
            return None;
        }
        let fraction = self.digits(FRACTION_DIGITS_MAX)?;
        let scale = [100, 10, 1][fraction.len() - 1];
        Some(Value::Decimal(sign * (value_of(whole) * 1000 + value_of(fraction) * scale)))
    }

    /// Reads at least one digit, at most `max`.
    fn digits(&mut self, max: usize) -> Option<&'a [u8]> {
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        (1..=max).contains(&digits.len()).then_some(digits)
    }

    fn string(&mut self) -> Option<Value<'a>> {
        self.at += 1;
        let start = self.at;
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return Some(Value::String(&self.text[start..self.at - 1])),
                b'\\' if self.take(b'"') || self.take(b'\\') => {}
                b'\\' => return None,
                b' '..=b'~' => {}
                _ => return None,
            }
        }
    }

    fn boolean(&mut self) -> Option<Value<'a>> {
        self.at += 1;
        if self.take(b'1') {
            return Some(Value::Boolean(true));
        }
        self.take(b'0').then_some(Value::Boolean(false))
    }

    fn bytes(&mut self) -> Option<Value<'a>> {
        self.at += 1;
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
        let bytes = self.take_while(is_base64);
        self.take(b':').then_some(Value::Bytes(bytes))
    }
}

/// Returns the value of at most fifteen digits.
fn value_of(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'))
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

/// Whether `text` can be written as a token.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'*')
        && text.iter().all(|&byte| is_token_byte(byte))
}

/// Appends `text` as a string. Bytes that are invalid in a string are written as `%` and two hexadecimal digits; the text is for
/// humans.
pub fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {
                let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    out.push(b'"');
}

/// Appends `text` as a token if it is one, else as a string.
pub fn push_token_or_string(out: &mut Vec<u8>, text: &[u8]) {
    if is_token(text) { out.extend_from_slice(text) } else { push_string(out, text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Option<Value<'_>> {
        Dictionary::parse(text.as_bytes()).and_then(|dictionary| dictionary.get(b"a"))
    }

    #[test]
    fn structured_items_are_parsed() {
        for (text, value) in [
            ("a", Value::Boolean(true)),
            ("a=?1", Value::Boolean(true)),
            ("a=?0", Value::Boolean(false)),
            ("a=0", Value::Integer(0)),
            ("a=-12", Value::Integer(-12)),
            ("a=007", Value::Integer(7)),
            ("a=999999999999999", Value::Integer(999_999_999_999_999)),
            ("a=1.5", Value::Decimal(1500)),
            ("a=-0.125", Value::Decimal(-125)),
            ("a=\"\"", Value::String(b"")),
            ("a=\"x y\"", Value::String(b"x y")),
            ("a=\"x\\\"y\\\\\"", Value::String(b"x\\\"y\\\\")),
            ("a=tok/en:x", Value::Token(b"tok/en:x")),
            ("a=*", Value::Token(b"*")),
            ("a=:aGk=:", Value::Bytes(b"aGk=")),
            ("a=()", Value::InnerList(b"()")),
            ("a=( 1  x;q \"y\" );p", Value::InnerList(b"( 1  x;q \"y\" )")),
            ("a;x;y=1;  z=\"1\"", Value::Boolean(true)),
            ("  a=1  ", Value::Integer(1)),
            ("b, a=1", Value::Integer(1)),
            ("a=1 \t,\t b", Value::Integer(1)),
            ("a=1, a=2", Value::Integer(2)),
            ("*x-_.9=2,a=3", Value::Integer(3)),
        ] {
            assert_eq!(one(text), Some(value), "{text}");
        }
        assert_eq!(Dictionary::parse(b"").map(|found| found.is_empty()), Some(true));
        assert_eq!(Dictionary::parse(b"  ").map(|found| found.is_empty()), Some(true));
    }

    #[test]
    fn invalid_structured_values_are_refused() {
        for text in [
            "A=1",
            "a=",
            "a=,b",
            "a,",
            "a, ",
            ",a",
            "a,,b",
            "a b",
            "a =1",
            "a= 1",
            "\ta",
            "a=1.",
            "a=1.2345",
            "a=.5",
            "a=--1",
            "a=-",
            "a=1234567890123456",
            "a=1234567890123.1",
            "a=\"x",
            "a=\"\\x\"",
            "a=\"\u{e9}\"",
            "a=\"\x7f\"",
            "a=?2",
            "a=?",
            "a=:x",
            "a=:x y:",
            "a=(1",
            "a=(1,2)",
            "a=(1\"x\")",
            "a;",
            "a;X",
            "a;x=",
            "a=@1",
            "a=%x",
            "a=\u{e9}",
        ] {
            assert_eq!(Dictionary::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn items_are_written() {
        for (text, token_or_string) in [
            ("abc", "abc"),
            ("*a/b:c", "*a/b:c"),
            ("1a", "\"1a\""),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("a\r\n\u{e9}", "\"a%0D%0A%C3%A9\""),
        ] {
            let mut out = Vec::new();
            push_token_or_string(&mut out, text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&out), token_or_string, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(text in proptest::collection::vec(any::<u8>(), 0..60), near in "[a-z0-9=;,\"()?:. \\\\-]{0,30}") {
            let _ = Dictionary::parse(&text);
            let _ = Dictionary::parse(near.as_bytes());
        }

        #[test]
        fn written_strings_are_parsed(text in proptest::collection::vec(any::<u8>(), 0..30)) {
            let mut out = b"a=".to_vec();
            push_string(&mut out, &text);
            let dictionary = Dictionary::parse(&out).expect("a string");
            prop_assert!(matches!(dictionary.get(b"a"), Some(Value::String(_))));
        }
    }
}
