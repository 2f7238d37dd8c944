//! Base64 with the URL-safe alphabet, without padding (RFC 7515 section 2), strictly: bytes have exactly one text, so that a token has
//! no second form with the same signature.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// Decodes a text. Returns `None` if it has padding, another character, or bits after the last byte.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}

/// Encodes bytes.
pub fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_texts_are_decoded() {
        for len in 0..20_u8 {
            let bytes: Vec<u8> = (0..len).map(|index| index.wrapping_mul(77)).collect();
            assert_eq!(decode(encode(&bytes).as_bytes()), Some(bytes));
        }
        assert_eq!(decode(b"Zg"), Some(b"f".to_vec()));
        for text in ["Zg==", "Zg=", "Zh", "Z", "Zg+", "+/", "a b", "Zm8\n", "Zm9"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
