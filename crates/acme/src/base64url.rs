//! Base64 with the URL-safe alphabet, without padding (RFC 4648 section 5).

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

/// Unused bits of the last digit are ignored.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Encodes bytes.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    LENIENT.encode(bytes)
}

/// Decodes a text, with or without padding. Returns `None` if the text is invalid.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    LENIENT.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_are_decoded() {
        assert_eq!(encode(b"\xfb\xff\xfe"), "-__-");
        assert_eq!(encode(b"f"), "Zg");
        for len in 0..20_u8 {
            let bytes: Vec<u8> = (0..len).map(|index| index.wrapping_mul(77)).collect();
            assert_eq!(decode(&encode(&bytes)).as_deref(), Some(bytes.as_slice()));
        }
        for text in ["Zg==", "Zg=", "Zg", "Zh"] {
            assert_eq!(decode(text), Some(b"f".to_vec()), "{text}");
        }
        for text in ["Z", "Zg+", "a b", "Zg==A", "Zg+/"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
