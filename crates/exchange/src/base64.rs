//! Base64 (RFC 4648) with nginx's leniency: decoding stops at the first `=`, and padding may be missing.

/// Which characters stand for 62 and 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/` (section 4).
    Standard,
    /// `-` and `_` (section 5).
    Url,
}

/// The decoded bytes of a text; `None` for characters outside the alphabet, and for a last group of a single character.
pub fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'=', text).unwrap_or(text.len());
    let mut out = Vec::with_capacity(end / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in &text[..end] {
        let value = match (byte, alphabet) {
            (b'A'..=b'Z', _) => byte - b'A',
            (b'a'..=b'z', _) => byte - b'a' + 26,
            (b'0'..=b'9', _) => byte - b'0' + 52,
            (b'+', Alphabet::Standard) | (b'-', Alphabet::Url) => 62,
            (b'/', Alphabet::Standard) | (b'_', Alphabet::Url) => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    (end % 4 != 1).then_some(out)
}

/// Appends the text of `bytes` in the standard alphabet, padded.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= group.len() { digit } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_rfc_4648() {
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
