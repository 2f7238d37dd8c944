//! Base64 with the URL-safe alphabet, without padding (RFC 4648 section 5).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes bytes.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..=group.len() {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

/// Decodes a text, with or without padding. Returns `None` if the text is invalid.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.as_bytes().chunks(4) {
        if group.len() == 1 {
            return None;
        }
        let mut bits = 0_u32;
        for byte in group {
            let digit = ALPHABET.iter().position(|known| known == byte)?;
            bits = bits << 6 | u32::try_from(digit).ok()?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend(bits.to_be_bytes()[1..].iter().take(group.len() - 1));
    }
    Some(bytes)
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
        assert_eq!(decode("Zg=="), Some(b"f".to_vec()));
        for text in ["Z", "Zg+", "a b", "Zg==A"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
