//! Keys and key sets (RFC 7517), and the choice of the keys for a token.
//!
//! A key that this crate cannot use is skipped, as section 5 recommends: providers publish keys of new types before they use them. A
//! set without a usable key is an error, so that an empty file cannot look like a valid one.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeyPairComponents, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RsaPublicKeyComponents,
};

use crate::algorithm::Sha;
use crate::base64url;
use crate::object::{Object, Value};

/// Maximum length of the text of a key set in bytes.
pub const KEY_SET_LEN_MAX: usize = 1 << 20;

/// Maximum number of keys of a set.
const KEYS_MAX: usize = 100;

/// Maximum number of keys that are tried for a token. Without `kid` in the token, all keys of its type match.
const KEYS_TRIED_MAX: usize = 16;

/// Minimum and maximum length of the modulus of an RSA key in bytes.
const RSA_LEN: std::ops::RangeInclusive<usize> = 256..=1024;

/// A set of keys.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
    /// The reasons why keys were skipped.
    skipped: Vec<String>,
}

/// A key.
pub struct Key {
    id: Option<String>,
    /// The only algorithm that it may be used with.
    algorithm: Option<String>,
    /// Whether it may verify signatures.
    pub(crate) verifies: bool,
    /// Whether it may decrypt tokens.
    pub(crate) decrypts: bool,
    pub(crate) material: Material,
}

/// The key itself. Its type restricts the algorithms.
pub(crate) enum Material {
    /// `oct`: a secret, for HMAC and AES.
    Secret(Vec<u8>),
    /// `RSA`
    Rsa { public: RsaPublicKeyComponents<Vec<u8>>, private: Option<OaepPrivateDecryptingKey> },
    /// `EC`: the curve is that of the signature algorithm with this hash.
    Ecdsa(Sha, ParsedPublicKey),
    /// `OKP` with Ed25519.
    Ed25519(ParsedPublicKey),
}

/// Why a text is no key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySetFault {
    /// It is too long, or no object of JSON, or has no list of keys.
    Format,
    /// It has no usable key; with the reasons.
    NoKey(Vec<String>),
}

impl fmt::Display for KeySetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySetFault::Format => f.write_str("it is no JSON Web Key Set"),
            KeySetFault::NoKey(reasons) if reasons.is_empty() => f.write_str("it has no key"),
            KeySetFault::NoKey(reasons) => write!(f, "it has no usable key: {}", reasons.join(", ")),
        }
    }
}

impl fmt::Debug for Key {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, {})", self.id, self.type_name())
    }
}

impl KeySet {
    /// Parses a key set, or a single key.
    pub fn parse(text: &[u8]) -> Result<KeySet, KeySetFault> {
        if text.len() > KEY_SET_LEN_MAX {
            return Err(KeySetFault::Format);
        }
        let object = Object::parse(text).ok_or(KeySetFault::Format)?;
        let keys = match object.get("keys") {
            Some(Value::Array(keys)) => keys,
            None if object.has("kty") => vec![Value::Object(object)],
            _ => return Err(KeySetFault::Format),
        };
        if keys.len() > KEYS_MAX {
            return Err(KeySetFault::Format);
        }
        let mut set = KeySet::default();
        for (index, key) in keys.into_iter().enumerate() {
            let Value::Object(key) = key else { return Err(KeySetFault::Format) };
            match Key::read(&key) {
                Ok(key) => set.keys.push(key),
                Err(reason) => set.skipped.push(format!("key {}: {reason}", index + 1)),
            }
        }
        if set.keys.is_empty() { Err(KeySetFault::NoKey(set.skipped)) } else { Ok(set) }
    }

    /// Returns the keys.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the reasons why keys were skipped.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }
}

/// Returns the keys of several sets for a token with one of these algorithms and `kid`, to be tried in their order. A key without `alg` or
/// `kid` matches each token.
pub(crate) fn candidates<'k>(
    sets: &'k [&KeySet],
    algorithms: &'k [&str],
    id: Option<&'k str>,
    fits: impl Fn(&Key) -> bool + 'k,
) -> impl Iterator<Item = &'k Key> {
    let keys = sets.iter().flat_map(|set| &set.keys);
    let keys = keys.filter(move |key| {
        let has_id = id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id));
        let has_algorithm = key.algorithm.as_deref().is_none_or(|own| algorithms.contains(&own));
        has_id && has_algorithm && fits(key)
    });
    keys.take(KEYS_TRIED_MAX)
}

/// The member has another type, or is absent.
const NO_MEMBER: &str = "a member is missing or invalid";

impl Key {
    /// Reads a key; the error has the reason in words.
    fn read(object: &Object) -> Result<Key, &'static str> {
        let optional = |name| match object.has(name) {
            true => object.text(name).map(Some).ok_or(NO_MEMBER),
            false => Ok(None),
        };
        let material = match object.text("kty").ok_or(NO_MEMBER)?.as_str() {
            "oct" => Material::Secret(secret(object)?),
            "RSA" => rsa(object)?,
            "EC" => elliptic(object)?,
            "OKP" => edwards(object)?,
            _ => return Err("its type is not supported"),
        };
        let purpose = optional("use")?;
        let (signs, encrypts) = match purpose.as_deref() {
            None => (true, true),
            Some("sig") => (true, false),
            Some("enc") => (false, true),
            Some(_) => return Err("its use is not supported"),
        };
        let operations = operations(object)?;
        let may = |names: &[&str]| {
            operations.as_ref().is_none_or(|all| all.iter().any(|one| names.contains(&one.as_str())))
        };
        Ok(Key {
            id: optional("kid")?,
            algorithm: optional("alg")?,
            // A private key lists "sign"; its public part verifies. The same secret signs and verifies.
            verifies: signs && may(&["verify", "sign"]),
            decrypts: encrypts && may(&["decrypt", "unwrapKey"]),
            material,
        })
    }

    /// Returns the length in bytes of a shared secret.
    pub fn secret_len(&self) -> Option<usize> {
        match &self.material {
            Material::Secret(secret) => Some(secret.len()),
            _ => None,
        }
    }

    /// Returns the name of its type.
    pub fn type_name(&self) -> &'static str {
        match self.material {
            Material::Secret(_) => "oct",
            Material::Rsa { .. } => "RSA",
            Material::Ecdsa(..) => "EC",
            Material::Ed25519(_) => "OKP",
        }
    }
}

/// Returns `key_ops` (RFC 7517 section 4.3).
fn operations(object: &Object) -> Result<Option<Vec<String>>, &'static str> {
    match object.get("key_ops") {
        None if !object.has("key_ops") => Ok(None),
        Some(Value::Array(items)) => {
            let texts = items.into_iter().map(|item| match item {
                Value::Text(text) => Some(text),
                _ => None,
            });
            texts.collect::<Option<_>>().map(Some).ok_or(NO_MEMBER)
        }
        _ => Err(NO_MEMBER),
    }
}

/// Returns the bytes of a member.
fn bytes(object: &Object, name: &str) -> Result<Vec<u8>, &'static str> {
    let text = object.text(name).ok_or(NO_MEMBER)?;
    base64url::decode(text.as_bytes()).ok_or(NO_MEMBER)
}

fn secret(object: &Object) -> Result<Vec<u8>, &'static str> {
    let secret = bytes(object, "k")?;
    if secret.is_empty() { Err("its secret is empty") } else { Ok(secret) }
}

/// Reads an RSA key. Only a private key with all its numbers can decrypt.
fn rsa(object: &Object) -> Result<Material, &'static str> {
    // Some libraries write a zero before the number (RFC 7518 section 6.3.1.1).
    let number = |name| {
        bytes(object, name).map(|bytes| bytes[bytes.iter().take_while(|byte| **byte == 0).count()..].to_vec())
    };
    let (n, e) = (number("n")?, number("e")?);
    if !RSA_LEN.contains(&n.len()) {
        return Err("its RSA modulus has not 2048 to 8192 bits");
    }
    let public = RsaPublicKeyComponents { n, e };
    let private = match object.has("d") {
        true => Some(private_rsa(&public, number)?),
        false => None,
    };
    Ok(Material::Rsa { public, private })
}

fn private_rsa(
    public: &RsaPublicKeyComponents<Vec<u8>>,
    number: impl Fn(&'static str) -> Result<Vec<u8>, &'static str>,
) -> Result<OaepPrivateDecryptingKey, &'static str> {
    let components = KeyPairComponents {
        public_key: RsaPublicKeyComponents { n: public.n.as_slice(), e: public.e.as_slice() },
        d: number("d")?,
        p: number("p")?,
        q: number("q")?,
        dP: number("dp")?,
        dQ: number("dq")?,
        qInv: number("qi")?,
    };
    let pair = KeyPair::from_components(&components).map_err(|_| "its RSA numbers do not match")?;
    let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).map_err(|_| NO_MEMBER)?;
    let key = PrivateDecryptingKey::from_pkcs8(der.as_ref()).map_err(|_| NO_MEMBER)?;
    OaepPrivateDecryptingKey::new(key).map_err(|_| NO_MEMBER)
}

fn elliptic(object: &Object) -> Result<Material, &'static str> {
    let (sha, algorithm, len) = match object.text("crv").ok_or(NO_MEMBER)?.as_str() {
        "P-256" => (Sha::Sha256, &ECDSA_P256_SHA256_FIXED, 32),
        "P-384" => (Sha::Sha384, &ECDSA_P384_SHA384_FIXED, 48),
        "P-521" => (Sha::Sha512, &ECDSA_P521_SHA512_FIXED, 66),
        _ => return Err("its curve is not supported"),
    };
    let (x, y) = (bytes(object, "x")?, bytes(object, "y")?);
    if x.len() != len || y.len() != len {
        return Err("a coordinate has not the length of its curve");
    }
    let point = [&[4][..], &x, &y].concat();
    let key = ParsedPublicKey::new(algorithm, point).map_err(|_| "its point is not on the curve")?;
    Ok(Material::Ecdsa(sha, key))
}

fn edwards(object: &Object) -> Result<Material, &'static str> {
    if object.text("crv").ok_or(NO_MEMBER)? != "Ed25519" {
        return Err("its curve is not supported");
    }
    let key = ParsedPublicKey::new(&ED25519, bytes(object, "x")?).map_err(|_| "it is no Ed25519 key")?;
    Ok(Material::Ed25519(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_needs_a_usable_key() {
        for text in ["", "[]", "{}", "{\"keys\":{}}", "{\"keys\":[1]}", "{\"keys\":null}", "x"] {
            assert_eq!(KeySet::parse(text.as_bytes()).map(|_| ()), Err(KeySetFault::Format), "{text}");
        }
        assert_eq!(KeySet::parse(b"{\"keys\":[]}").map(|_| ()), Err(KeySetFault::NoKey(vec![])));
        let set =
            KeySet::parse(br#"{"keys":[{"kty":"new"},{"kty":"oct","k":"AQ"}]}"#).expect("one is usable");
        assert_eq!(
            (set.keys().len(), set.skipped()),
            (1, &["key 1: its type is not supported".to_owned()][..])
        );
        assert_eq!(KeySet::parse(br#"{"kty":"oct","k":"AQ"}"#).expect("a single key").keys().len(), 1);
        let long =
            format!("{{\"keys\":[{}]}}", vec!["{\"kty\":\"oct\",\"k\":\"AQ\"}"; KEYS_MAX + 1].join(","));
        assert_eq!(KeySet::parse(long.as_bytes()).map(|_| ()), Err(KeySetFault::Format));
    }

    #[test]
    fn wrong_keys_are_skipped_with_the_reason() {
        for (key, expected) in [
            (r#"{"kty":"oct"}"#, NO_MEMBER),
            (r#"{"kty":"oct","k":""}"#, "its secret is empty"),
            (r#"{"kty":"oct","k":"AQ=="}"#, NO_MEMBER),
            (r#"{"kty":"oct","k":"AQ","use":"x"}"#, "its use is not supported"),
            (r#"{"kty":"oct","k":"AQ","kid":1}"#, NO_MEMBER),
            (r#"{"kty":"oct","k":"AQ","key_ops":"verify"}"#, NO_MEMBER),
            (r#"{"kty":"RSA","n":"AQ","e":"AQAB"}"#, "its RSA modulus has not 2048 to 8192 bits"),
            (r#"{"kty":"EC","crv":"secp256k1","x":"AQ","y":"AQ"}"#, "its curve is not supported"),
            (
                r#"{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}"#,
                "a coordinate has not the length of its curve",
            ),
            (r#"{"kty":"OKP","crv":"Ed448","x":"AQ"}"#, "its curve is not supported"),
            (r#"{"kty":"OKP","crv":"Ed25519","x":"AQ"}"#, "it is no Ed25519 key"),
        ] {
            let found = KeySet::parse(key.as_bytes()).map(|_| ());
            assert_eq!(found, Err(KeySetFault::NoKey(vec![format!("key 1: {expected}")])), "{key}");
        }
        let zero = base64url::encode(&[0; 32]);
        let key = format!("{{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"{zero}\",\"y\":\"{zero}\"}}");
        assert!(KeySet::parse(key.as_bytes()).is_err(), "(0, 0) is not on the curve");
    }
}
