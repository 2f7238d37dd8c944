//! Tokens in crate `jose` before their signature is verified: sections, headers, claims (RFC 7515, RFC 7516, RFC 7519).
//!
//! The source files are compiled here directly, because the complete crate would add a cryptography library.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/jose/src/base64url.rs"]
mod base64url;
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/jose/src/claims.rs"]
mod claims;
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/jose/src/object.rs"]
mod object;
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/jose/src/token.rs"]
mod token;

use object::Object;
use token::{Encrypted, Signed, TOKEN_LEN_MAX};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "jwt_token",
    run,
    tokens: &[
        ".",
        "..",
        "eyJhbGciOiJIUzI1NiJ9",
        "e30",
        "{\"alg\":\"HS256\"}",
        "{\"exp\":",
        "{\"nbf\":",
        "1e400",
        "-0.0",
        "99999999999999999999",
        "null",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "[[[[",
        "]]]]",
        "{\"a\":{\"b\":",
        "}}",
        ",",
        ":",
        "true",
        "=",
        "-_",
        "\"crit\":[]",
        "\"zip\":\"DEF\"",
    ],
};

/// Parses a token, or the claims of one. Bytes have exactly one text in base64url, so that no other token has the same sections; an object has
/// no repeated name, for another parser of JSON too; a time that is accepted is within the bounds of its claims.
pub fn run(mut data: &[u8]) {
    if take_byte(&mut data) % 2 == 0 {
        check_token(data);
    } else {
        check_claims(data);
    }
}

fn check_token(text: &[u8]) {
    let sections: Vec<&[u8]> = text.split(|byte| *byte == b'.').collect();
    if let Ok(signed) = Signed::parse(text) {
        assert!(sections.len() == 3 && text.len() <= TOKEN_LEN_MAX);
        assert_eq!(base64url::encode(&signed.payload).as_bytes(), sections[1]);
        assert!(!signed.header.has("crit"));
    }
    if let Ok(encrypted) = Encrypted::parse(text) {
        assert!(sections.len() == 5 && text.len() <= TOKEN_LEN_MAX);
        assert!(!encrypted.header.has("crit") && !encrypted.header.has("zip"));
    }
    for section in sections {
        if let Some(bytes) = base64url::decode(section) {
            assert_eq!(base64url::encode(&bytes).as_bytes(), section);
        }
    }
}

fn check_claims(text: &[u8]) {
    let Ok(parsed) = claims::parse(text) else { return };
    let other: serde_json::Map<String, serde_json::Value> = match serde_json::from_slice(text) {
        Ok(other) => other,
        // Numbers beyond f64 and lone surrogates are accepted as text that has no value.
        Err(_) => return,
    };
    assert!(parsed.names().eq(other.keys().map(String::as_str)) || parsed.names().count() == other.len());
    for name in other.keys() {
        check_value(&parsed, name);
    }
    if claims::check_times(&parsed, 1000, 0).is_ok() {
        let number = |name: &str| other.get(name).map(|value| value.as_f64().expect("a number"));
        assert!(
            number("exp").is_none_or(|end| end > 1000.0) && number("nbf").is_none_or(|start| start <= 1000.0)
        );
        assert!(claims::check_times(&parsed, 1000, 60).is_ok(), "a tolerance refuses nothing more");
    }
}

fn check_value(parsed: &Object, name: &str) {
    let value = parsed.get(name);
    let text = value.as_ref().and_then(claims::text);
    assert_eq!(claims::at(parsed, &[name]).as_ref().and_then(claims::text), text);
    assert_eq!(claims::named(parsed, name).as_ref().and_then(claims::text), text);
}
