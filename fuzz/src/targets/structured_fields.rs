//! Structured fields: [`http::structured`] (RFC 9651), the cache directives based on them, and dates.

use http::structured::{Dictionary, Value, is_token, push_string, push_token_or_string};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "structured_fields",
    run,
    tokens: &[
        "a=1",
        "max-age=60",
        ", ",
        ";q=0.5",
        "?1",
        "?0",
        "\"x\\\"y\"",
        ":aGk=:",
        "(a b;c \"d\")",
        "*",
        "=",
        "999999999999999",
        "-1.125",
        "@1659578233",
        "%\"f%c3%bc\"",
        "no-store",
        "private=\"a, b\"",
        "\t",
    ],
};

/// Parses a dictionary; checks the limits of its values, and round trips of strings.
pub fn run(data: &[u8]) {
    if let Some(dictionary) = Dictionary::parse(data) {
        assert_eq!(dictionary.is_empty(), dictionary.members().next().is_none());
        for (key, value) in dictionary.members() {
            check_key(key);
            check_value(&value);
            let last = dictionary.members().rev().find(|(name, _)| *name == key).map(|(_, value)| value);
            assert_eq!(dictionary.get(key), last, "the last member of a key counts");
        }
    }
    check_writing(data);
    if let Some(seconds) = http::date::parse_http(data) {
        // Every parsed date can be written and parsed in the preferred form.
        assert_eq!(http::date::parse_http(&http::date::http(seconds)), Some(seconds));
    }
}

fn check_key(key: &[u8]) {
    assert!(key.first().is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'*'));
    assert!(
        key.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte))
    );
}

fn check_value(value: &Value<'_>) {
    match value {
        Value::Integer(number) => assert!(number.abs() <= 999_999_999_999_999),
        Value::Decimal(thousandths) => assert!(thousandths.abs() <= 999_999_999_999_999),
        Value::Token(text) => assert!(is_token(text)),
        Value::String(text) => assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte))),
        _ => {}
    }
}

fn check_writing(data: &[u8]) {
    for write in [push_string as fn(&mut Vec<u8>, &[u8]), push_token_or_string] {
        let mut text = b"a=".to_vec();
        write(&mut text, data);
        let dictionary = Dictionary::parse(&text).expect("a string that was written is valid");
        match dictionary.get(b"a") {
            Some(Value::Token(token)) => assert_eq!(token, data),
            Some(Value::String(raw)) => {
                let is_plain = data.iter().all(|byte| (b' '..=b'~').contains(byte));
                assert!(!is_plain || without_backslashes(raw) == data);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn without_backslashes(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = raw.iter();
    while let Some(&byte) = bytes.next() {
        out.push(if byte == b'\\' { *bytes.next().expect("a backslash escapes a byte") } else { byte });
    }
    out
}
