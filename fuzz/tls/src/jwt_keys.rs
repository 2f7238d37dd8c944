//! Key sets and tokens of crate `jose`: the first line is the key set, the rest the token.

use jose::{Encrypted, KeySet, Signed, encrypted, signed};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "jwt_keys",
    run,
    tokens: &[
        "{\"keys\":[",
        "]}",
        "\"kty\":\"oct\"",
        "\"kty\":\"RSA\"",
        "\"kty\":\"EC\"",
        "\"kty\":\"OKP\"",
        "\"crv\":\"P-256\"",
        "\"crv\":\"P-521\"",
        "\"use\":\"sig\"",
        "\"alg\":\"none\"",
        "\"kid\":\"a\"",
        "\"k\":\"AQ\"",
        "\"n\":\"AQ\"",
        "\"e\":\"AQAB\"",
        ".",
        "..",
        "=",
        "\n",
        "eyJhbGciOiJub25lIn0",
        "eyJhbGciOiJIUzI1NiJ9",
    ],
};

/// Verifies and decrypts the token. An accepted token is refused after a change of any of a few characters.
pub fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (keys, token) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let Ok(set) = KeySet::parse(keys) else { return };
    if !is_accepted(token, &set) {
        return;
    }
    for at in [0, token.len() / 3, token.len() / 2, token.len() - 1] {
        let mut changed = token.to_vec();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        assert!(!is_accepted(&changed, &set), "changed at {at}");
    }
}

fn is_accepted(token: &[u8], set: &KeySet) -> bool {
    let is_signed = Signed::parse(token).is_ok_and(|token| signed::verify(&token, &[set]).is_ok());
    is_signed || Encrypted::parse(token).is_ok_and(|token| encrypted::decrypt(&token, &[set]).is_ok())
}
