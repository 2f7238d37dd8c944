//! AES Key Wrap (RFC 3394), for keys of 128, 192 and 256 bits. The key wrap of aws-lc-rs has no 192 bits, so the steps are here, over
//! its block cipher.

use aws_lc_rs::cipher::{AES_128, AES_192, AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;

/// The value that shows whether the key was right (section 2.2.3.1).
const INITIAL: [u8; 8] = [0xa6; 8];

/// Maximum number of halves of a block in a wrapped key: the longest key for content has 64 bytes.
const HALVES_MAX: usize = 8;

/// Unwraps a key; returns `None` if it was wrapped with another key, or changed.
pub(crate) fn unwrap(secret: &[u8], wrapped: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match secret.len() {
        16 => &AES_128,
        24 => &AES_192,
        32 => &AES_256,
        _ => return None,
    };
    let (check, halves) = wrapped.split_first_chunk::<8>()?;
    let count = halves.len() / 8;
    if halves.len() % 8 != 0 || !(2..=HALVES_MAX).contains(&count) {
        return None;
    }
    let cipher = DecryptingKey::ecb(UnboundCipherKey::new(algorithm, secret).ok()?).ok()?;
    let (mut check, mut key) = (*check, halves.to_vec());
    for step in (1..=6 * count).rev() {
        let half = &mut key[(step - 1) % count * 8..][..8];
        let counted = u64::from_be_bytes(check) ^ step as u64;
        let mut block = [counted.to_be_bytes(), half.try_into().ok()?].concat();
        let block = cipher.decrypt(&mut block, DecryptionContext::None).ok()?;
        check.copy_from_slice(&block[..8]);
        half.copy_from_slice(&block[8..]);
    }
    verify_slices_are_equal(&check, &INITIAL).is_ok().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect()
    }

    /// The vectors of RFC 3394 section 4.
    #[test]
    fn keys_of_the_rfc_are_unwrapped() {
        let data = "00112233445566778899AABBCCDDEEFF0001020304050607";
        let secret = "000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F";
        for (secret_len, data_len, wrapped) in [
            (16, 16, "1FA68B0A8112B447AEF34BD8FB5A7B829D3E862371D2CFE5"),
            (24, 16, "96778B25AE6CA435F92B5B97C050AED2468AB8A17AD84E5D"),
            (32, 16, "64E8C3F9CE0F5BA263E9777905818A2A93C8191E7D6E8AE7"),
            (24, 24, "031D33264E15D33268F24EC260743EDCE1C6C7DDEE725A936BA814915C6762D2"),
            (32, 24, "A8F9BC1612C68B3FF6E6F4FBE30E71E4769C8B80A32CB8958CD5D17D6B254DA1"),
        ] {
            let (secret, data, mut wrapped) =
                (&bytes(secret)[..secret_len], &bytes(data)[..data_len], bytes(wrapped));
            assert_eq!(unwrap(secret, &wrapped).as_deref(), Some(data), "{secret_len}");
            assert_eq!(unwrap(&secret[1..], &wrapped), None);
            for at in 0..wrapped.len() {
                wrapped[at] ^= 1;
                assert_eq!(unwrap(secret, &wrapped), None, "byte {at}");
                wrapped[at] ^= 1;
            }
            for len in 0..wrapped.len() {
                assert_eq!(unwrap(secret, &wrapped[..len]), None);
            }
        }
        assert_eq!(unwrap(&[0; 16], &[0; 80]), None);
    }
}
