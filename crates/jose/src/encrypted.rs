//! Decryption (RFC 7516 section 5.2). The encryption authenticates header and content, so changed content is an error.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rsa::{
    OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512,
    OaepPrivateDecryptingKey,
};

use crate::algorithm::{ContentEncryption, KeyManagement, Sha};
use crate::base64url;
use crate::key::{self, Key, KeySet, Material};
use crate::signed::{hmac_algorithm, key_id};
use crate::token::{Encrypted, Fault};
use crate::wrap;

/// Whether the decryption needs the private key of RSA, which takes about a millisecond.
pub fn is_slow(token: &Encrypted<'_>) -> bool {
    let algorithm = token.header.text("alg");
    matches!(algorithm.as_deref().and_then(KeyManagement::named), Some(KeyManagement::RsaOaep(_)))
}

/// Decrypts the content of a token with the keys of these sets.
pub fn decrypt(token: &Encrypted<'_>, sets: &[&KeySet]) -> Result<Vec<u8>, Fault> {
    let name = token.header.text("alg").ok_or(Fault::Algorithm)?;
    let management = KeyManagement::named(&name).ok_or(Fault::Algorithm)?;
    let content_name = token.header.text("enc").ok_or(Fault::Algorithm)?;
    let encryption = ContentEncryption::named(&content_name).ok_or(Fault::Algorithm)?;
    let id = key_id(&token.header)?;
    // A shared key may have the name of the content encryption instead of `dir` (RFC 7520 section 5.6.1).
    let names = [name.as_str(), content_name.as_str()];
    let names = if management == KeyManagement::Direct { &names[..] } else { &names[..1] };
    let mut keys =
        key::candidates(sets, names, id.as_deref(), |key| fits(key, management, encryption)).peekable();
    if keys.peek().is_none() {
        return Err(Fault::NoKey);
    }
    let content = keys.find_map(|key| {
        let content_key = content_key(key, management, token)?;
        // The length is that of the content encryption, so that no key of another algorithm is used.
        if content_key.len() != encryption.key_len() {
            return None;
        }
        open(encryption, &content_key, token)
    });
    content.ok_or(Fault::Signature)
}

/// Whether a key has the type and length for this key management.
fn fits(key: &Key, management: KeyManagement, encryption: ContentEncryption) -> bool {
    let is_of_type = match (&key.material, management) {
        (Material::Secret(secret), KeyManagement::Direct) => secret.len() == encryption.key_len(),
        (Material::Secret(secret), KeyManagement::AesKw(len) | KeyManagement::AesGcmKw(len)) => {
            secret.len() == len
        }
        (Material::Rsa { private, .. }, KeyManagement::RsaOaep(_)) => private.is_some(),
        _ => false,
    };
    is_of_type && key.decrypts
}

/// Returns the content encryption key of a token.
fn content_key(key: &Key, management: KeyManagement, token: &Encrypted<'_>) -> Option<Vec<u8>> {
    match (&key.material, management) {
        (Material::Secret(secret), KeyManagement::Direct) => token.key.is_empty().then(|| secret.clone()),
        (Material::Secret(secret), KeyManagement::AesKw(_)) => wrap::unwrap(secret, &token.key),
        (Material::Secret(secret), KeyManagement::AesGcmKw(_)) => {
            let member = |name| base64url::decode(token.header.text(name)?.as_bytes());
            open_gcm(secret, &member("iv")?, &[], token.key.clone(), &member("tag")?)
        }
        (Material::Rsa { private: Some(private), .. }, KeyManagement::RsaOaep(sha)) => {
            open_oaep(private, sha, &token.key)
        }
        _ => None,
    }
}

/// Decrypts the content.
fn open(encryption: ContentEncryption, key: &[u8], token: &Encrypted<'_>) -> Option<Vec<u8>> {
    let content = token.content.clone();
    match encryption {
        ContentEncryption::Gcm(_) => open_gcm(key, &token.iv, token.header_text, content, &token.tag),
        ContentEncryption::CbcHmac(len) => open_cbc(key, len, token, content),
    }
}

/// Decrypts by AES GCM (RFC 7518 section 5.3).
fn open_gcm(
    key: &[u8],
    iv: &[u8],
    authenticated: &[u8],
    mut content: Vec<u8>,
    tag: &[u8],
) -> Option<Vec<u8>> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        32 => &aead::AES_256_GCM,
        _ => return None,
    };
    // A shorter tag would be easier to guess.
    if tag.len() != algorithm.tag_len() {
        return None;
    }
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
    let nonce = Nonce::try_assume_unique_for_key(iv).ok()?;
    content.extend_from_slice(tag);
    let len = key.open_in_place(nonce, Aad::from(authenticated), &mut content).ok()?.len();
    content.truncate(len);
    Some(content)
}

/// Decrypts by AES CBC with HMAC (RFC 7518 section 5.2). The MAC is verified first, so that padding reveals nothing.
fn open_cbc(key: &[u8], len: usize, token: &Encrypted<'_>, mut content: Vec<u8>) -> Option<Vec<u8>> {
    let (mac_key, cipher_key) = key.split_at_checked(len)?;
    let (algorithm, sha) = match len {
        16 => (&AES_128, Sha::Sha256),
        24 => (&AES_192, Sha::Sha384),
        _ => (&AES_256, Sha::Sha512),
    };
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac_algorithm(sha), mac_key));
    mac.update(token.header_text);
    mac.update(&token.iv);
    mac.update(&content);
    mac.update(&(8 * token.header_text.len() as u64).to_be_bytes());
    let mac = mac.sign();
    verify_slices_are_equal(mac.as_ref().get(..len)?, &token.tag).ok()?;
    let iv = FixedLength::<16>::try_from(token.iv.as_slice()).ok()?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(UnboundCipherKey::new(algorithm, cipher_key).ok()?).ok()?;
    let len = key.decrypt(&mut content, DecryptionContext::Iv128(iv)).ok()?.len();
    content.truncate(len);
    Some(content)
}

/// Decrypts a key by RSA OAEP (RFC 7518 section 4.3).
fn open_oaep(private: &OaepPrivateDecryptingKey, sha: Option<Sha>, encrypted: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match sha {
        None => &OAEP_SHA1_MGF1SHA1,
        Some(Sha::Sha256) => &OAEP_SHA256_MGF1SHA256,
        Some(Sha::Sha384) => &OAEP_SHA384_MGF1SHA384,
        Some(Sha::Sha512) => &OAEP_SHA512_MGF1SHA512,
    };
    let mut key = vec![0; private.min_output_size()];
    let len = private.decrypt(algorithm, encrypted, &mut key, None).ok()?.len();
    key.truncate(len);
    Some(key)
}
