//! Private keys that sign messages: keys of ACME accounts, and keys of requested certificates.
//!
//! [`generate`] creates a key in PEM, [`SigningKey`] creates signatures of JSON Web Algorithms (RFC 7518 section 3),
//! [`mac`] computes an HMAC with a shared secret.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, RSA_PKCS1_SHA256,
};
use rcgen::{
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_RSA_SHA256, RsaKeySize,
};

use crate::certificate::FileError;
use crate::x509::{self, KeyError};

/// Types of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// ECDSA with the curve P-256.
    #[default]
    EcdsaP256,
    /// ECDSA with the curve P-384.
    EcdsaP384,
    /// ECDSA with the curve P-521.
    EcdsaP521,
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 3072 bits.
    Rsa3072,
    /// RSA with 4096 bits.
    Rsa4096,
}

impl KeyKind {
    /// All types, with their names in `acme_certificate`.
    pub const ALL: [(&'static str, KeyKind); 6] = [
        ("ecdsa:256", KeyKind::EcdsaP256),
        ("ecdsa:384", KeyKind::EcdsaP384),
        ("ecdsa:521", KeyKind::EcdsaP521),
        ("rsa:2048", KeyKind::Rsa2048),
        ("rsa:3072", KeyKind::Rsa3072),
        ("rsa:4096", KeyKind::Rsa4096),
    ];

    /// Returns the name of the type.
    pub fn name(self) -> &'static str {
        KeyKind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Generates a private key (PKCS#8 in PEM). Returns `None` if the machine has no random numbers.
pub fn generate(kind: KeyKind) -> Option<String> {
    use rcgen::KeyPair;
    let key = match kind {
        KeyKind::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        KeyKind::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        KeyKind::EcdsaP521 => KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512),
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
    };
    Some(key.ok()?.serialize_pem())
}

/// A private key that signs.
pub struct SigningKey(Kind);

enum Kind {
    Ecdsa { key: Box<EcdsaKeyPair>, algorithm: &'static str, curve: &'static str },
    Rsa(rsa::KeyPair),
}

/// The parameters of a public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// A point of a curve, with the curve's name in RFC 7518 section 6.2.
    Ecdsa {
        /// The name of the curve.
        curve: &'static str,
        /// The x coordinate.
        x: Vec<u8>,
        /// The y coordinate.
        y: Vec<u8>,
    },
    /// RSA.
    Rsa {
        /// The modulus.
        n: Vec<u8>,
        /// The exponent.
        e: Vec<u8>,
    },
}

impl SigningKey {
    /// Parses a private key in PEM: ECDSA with one of three curves, or RSA.
    pub fn from_pem(pem: &[u8]) -> Result<SigningKey, FileError> {
        type Row = (&'static EcdsaSigningAlgorithm, &'static str, &'static str);
        const ECDSA: [Row; 3] = [
            (&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256"),
            (&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384"),
            (&ECDSA_P521_SHA512_FIXED_SIGNING, "ES512", "P-521"),
        ];
        let der = x509::private_key(pem, &[]).map_err(|error| match error {
            KeyError::Unreadable(reason) => FileError::BadKey(reason),
            KeyError::Password => FileError::Password,
        })?;
        for (signing, algorithm, curve) in ECDSA {
            if let Ok(key) = EcdsaKeyPair::from_pkcs8(signing, &der) {
                return Ok(SigningKey(Kind::Ecdsa { key: Box::new(key), algorithm, curve }));
            }
        }
        let key = rsa::KeyPair::from_pkcs8(&der).map_err(|_| FileError::UnsupportedKey)?;
        Ok(SigningKey(Kind::Rsa(key)))
    }

    /// Returns the name of the signature algorithm (RFC 7518 section 3.1).
    pub fn algorithm(&self) -> &'static str {
        match &self.0 {
            Kind::Ecdsa { algorithm, .. } => algorithm,
            Kind::Rsa(_) => "RS256",
        }
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        match &self.0 {
            Kind::Ecdsa { key, curve, .. } => {
                // An uncompressed point is a byte with the value 4, followed by both coordinates.
                let point = key.public_key().as_ref();
                let (x, y) = point[1..].split_at(point.len() / 2);
                PublicKey::Ecdsa { curve, x: x.to_vec(), y: y.to_vec() }
            }
            Kind::Rsa(key) => {
                let public = key.public_key();
                let n = public.modulus().big_endian_without_leading_zero().to_vec();
                PublicKey::Rsa { n, e: public.exponent().big_endian_without_leading_zero().to_vec() }
            }
        }
    }

    /// Signs a message. Returns `None` if the machine has no random numbers.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.0 {
            Kind::Ecdsa { key, .. } => Some(key.sign(&random, message).ok()?.as_ref().to_vec()),
            Kind::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SigningKey").field(&self.algorithm()).finish()
    }
}

/// Returns the HMAC-SHA-256 of a message with a shared secret (`HS256`).
pub fn mac(secret: &[u8], message: &[u8]) -> Vec<u8> {
    use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
    sign(&Key::new(HMAC_SHA256, secret), message).as_ref().to_vec()
}

/// Returns a random number from 0 to less than 1, for schedules.
pub fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // If no random numbers are available, TLS does not work either; the result is then 0.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED,
        RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
    };

    #[test]
    fn signatures_of_each_key_type_are_verified_by_the_public_key() {
        for (name, kind) in KeyKind::ALL {
            assert_eq!(kind.name(), name);
            let pem = generate(kind).expect("a key");
            let key = SigningKey::from_pem(pem.as_bytes()).expect("it is readable");
            let signature = key.sign(b"message").expect("a signature");
            let verified = match key.public() {
                PublicKey::Ecdsa { curve, x, y } => {
                    let (algorithm, len) = match curve {
                        "P-256" => (&ECDSA_P256_SHA256_FIXED, 32),
                        "P-384" => (&ECDSA_P384_SHA384_FIXED, 48),
                        _ => (&ECDSA_P521_SHA512_FIXED, 66),
                    };
                    assert_eq!((x.len(), y.len()), (len, len), "{name}");
                    let point = [&[4][..], &x, &y].concat();
                    UnparsedPublicKey::new(algorithm, point).verify(b"message", &signature)
                }
                PublicKey::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(
                    &RSA_PKCS1_2048_8192_SHA256,
                    b"message",
                    &signature,
                ),
            };
            assert!(verified.is_ok(), "{name}");
        }
    }

    #[test]
    fn keys_of_other_types_are_refused() {
        let pem = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key").serialize_pem();
        assert!(SigningKey::from_pem(pem.as_bytes()).is_err());
        assert!(matches!(SigningKey::from_pem(b""), Err(FileError::BadKey(_))));
    }
}
