//! Base64 (RFC 4648) with nginx's leniency: decoding stops at the first `=`, padding may be missing, and unused trailing bits are
//! ignored.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The two characters that encode the values 62 and 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/` (section 4).
    Standard,
    /// `-` and `_` (section 5).
    Url,
}

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_allow_trailing_bits(true)
    .with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Decodes `text`. Returns `None` if it has a character outside the alphabet or ends in a group of a single character.
pub fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'=', text).unwrap_or(text.len());
    let alphabet = if alphabet == Alphabet::Url { &URL_SAFE } else { &STANDARD };
    GeneralPurpose::new(alphabet, LENIENT).decode(&text[..end]).ok()
}

/// Appends `bytes` encoded in the standard alphabet, with padding.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(base64::prelude::BASE64_STANDARD.encode(bytes).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_vectors_of_rfc_4648_match() {
        for (text, expected) in [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9vYmE=", Some("fooba")),
            ("Zm9vYmE", Some("fooba")),
            ("Zm9v=!", Some("foo")),
            ("Z", None),
            ("Zm9v!", None),
        ] {
            let found = decode(text.as_bytes(), Alphabet::Standard);
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{text}");
        }
        let bytes: Vec<u8> = (0..=255).collect();
        for end in [0, 1, 2, 3, 254, 255, 256] {
            let mut text = Vec::new();
            encode(&bytes[..end], &mut text);
            assert_eq!(text.len(), end.div_ceil(3) * 4);
            assert_eq!(decode(&text, Alphabet::Standard).as_deref(), Some(&bytes[..end]));
            let url: Vec<u8> = text
                .iter()
                .map(|byte| match byte {
                    b'+' => b'-',
                    b'/' => b'_',
                    _ => *byte,
                })
                .collect();
            assert_eq!(decode(&url, Alphabet::Url).as_deref(), Some(&bytes[..end]));
        }
        assert_eq!((decode(b"-_", Alphabet::Standard), decode(b"+/", Alphabet::Url)), (None, None));
    }
}
