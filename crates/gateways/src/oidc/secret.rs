//! Random secrets, and values that are derived from them.
//!
//! A secret is 256 random bits. The server stores none: a browser has it in a cookie, and the server stores its hash, or data that only
//! the secret decrypts. A derived value has a purpose, so that one that is sent in a URL is never accepted for another purpose.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::{digest, rand};
use jose::base64url;

/// Length of a secret in bytes.
const SECRET_LEN: usize = 32;

/// A secret that cannot be guessed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RandomSecret([u8; SECRET_LEN]);

impl std::fmt::Debug for RandomSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RandomSecret")
    }
}

impl RandomSecret {
    /// Creates a secret; `None` if the kernel has no random numbers.
    pub(super) fn new() -> Option<RandomSecret> {
        let mut bytes = [0; SECRET_LEN];
        rand::fill(&mut bytes).ok()?;
        Some(RandomSecret(bytes))
    }

    /// Returns the secret of this server for a purpose: that of all its workers, until it is restarted.
    pub(super) fn of_server(purpose: &str) -> RandomSecret {
        RandomSecret(tls::quic::shared_key(purpose.as_bytes()))
    }

    /// Parses the text of a secret.
    pub(super) fn parse(text: &[u8]) -> Option<RandomSecret> {
        // Longer texts are not decoded.
        let is_length = text.len() == (SECRET_LEN * 4).div_ceil(3);
        let bytes = is_length.then(|| base64url::decode(text)).flatten()?;
        bytes.try_into().ok().map(RandomSecret)
    }

    /// Returns the text of the secret.
    pub(super) fn text(&self) -> String {
        base64url::encode(&self.0)
    }

    /// Returns a value that proves the knowledge of the secret, without showing it. Each purpose has its own values.
    pub(super) fn derive(&self, purpose: &str, about: &[u8]) -> String {
        base64url::encode(self.derived(purpose, about).as_ref())
    }

    fn derived(&self, purpose: &str, about: &[u8]) -> hmac::Tag {
        let key = hmac::Key::new(HMAC_SHA256, &self.0);
        let mut context = hmac::Context::with_key(&key);
        context.update(purpose.as_bytes());
        context.update(b"\0");
        context.update(about);
        context.sign()
    }

    /// Returns the key for data that only the holder of the secret can read.
    fn cipher(&self) -> Option<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, self.derived("seal", b"").as_ref()).ok()?;
        Some(LessSafeKey::new(key))
    }

    /// Encrypts data. `context` is not part of the result, and needed to decrypt it.
    pub(super) fn seal(&self, context: &[u8], mut data: Vec<u8>) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        self.cipher()?.seal_in_place_append_tag(unique, Aad::from(context), &mut data).ok()?;
        Some(base64url::encode(&[&nonce[..], &data].concat()))
    }

    /// Decrypts the result of [`RandomSecret::seal`] with the same context.
    pub(super) fn open(&self, context: &[u8], sealed: &str) -> Option<Vec<u8>> {
        let mut data = base64url::decode(sealed.as_bytes())?;
        let (nonce, rest) = data.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.cipher()?.open_in_place(nonce, Aad::from(context), rest).ok()?;
        Some(opened.to_vec())
    }
}

/// Returns the SHA-256 hash of a text, as text.
pub(super) fn hashed(text: &[u8]) -> String {
    base64url::encode(digest::digest(&digest::SHA256, text).as_ref())
}

/// Whether two texts are equal. The time does not depend on their content.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> RandomSecret {
        RandomSecret::new().expect("random numbers")
    }

    #[test]
    fn texts_of_secrets_are_exact() {
        let one = secret();
        assert_eq!(RandomSecret::parse(one.text().as_bytes()), Some(one.clone()));
        assert_ne!(secret(), one);
        let text = one.text();
        for wrong in
            ["", &text[1..], &format!("{text}A"), &format!("{}=", &text[1..]), &format!("{}+", &text[1..])]
        {
            assert_eq!(RandomSecret::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn sealed_data_need_secret_and_context() {
        let one = secret();
        let sealed = one.seal(b"a", b"data".to_vec()).expect("sealed");
        assert_eq!(one.open(b"a", &sealed).as_deref(), Some(&b"data"[..]));
        assert_eq!(one.open(b"b", &sealed), None);
        assert_eq!(secret().open(b"a", &sealed), None);
        assert_ne!(one.seal(b"a", b"data".to_vec()).expect("sealed"), sealed);
        for wrong in ["", "AAAA", &sealed[4..], &format!("{sealed}AAAA"), "*"] {
            assert_eq!(one.open(b"a", wrong), None, "{wrong}");
        }
    }

    #[test]
    fn purposes_have_different_values() {
        let one = secret();
        assert_ne!(one.derive("a", b"x"), one.derive("b", b"x"));
        assert_ne!(one.derive("a", b"x"), one.derive("a", b"y"));
        assert_ne!(one.derive("a", b"x"), secret().derive("a", b"x"));
        assert_eq!(one.derive("a", b"x").len(), 43);
    }
}
