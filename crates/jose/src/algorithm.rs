//! The names of algorithms (RFC 7518, RFC 8037). Only these exist: a token with any other name is invalid.

/// The algorithm of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// HMAC (`HS256`, `HS384`, `HS512`).
    Hmac(Sha),
    /// RSA with PKCS #1 padding (`RS256`, `RS384`, `RS512`).
    RsaPkcs1(Sha),
    /// RSA with PSS padding (`PS256`, `PS384`, `PS512`).
    RsaPss(Sha),
    /// ECDSA (`ES256`, `ES384`, `ES512`); the hash determines the curve.
    Ecdsa(Sha),
    /// `EdDSA` with Ed25519.
    EdDsa,
}

/// A hash of the SHA-2 family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sha {
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

/// Returns the hash of an algorithm's name after its first letters.
fn sha(bits: &str) -> Option<Sha> {
    match bits {
        "256" => Some(Sha::Sha256),
        "384" => Some(Sha::Sha384),
        "512" => Some(Sha::Sha512),
        _ => None,
    }
}

impl Signature {
    /// Returns the algorithm of this name, which is case-sensitive.
    pub fn named(name: &str) -> Option<Signature> {
        if name == "EdDSA" {
            return Some(Signature::EdDsa);
        }
        let (family, bits) = name.split_at_checked(2)?;
        let sha = sha(bits)?;
        match family {
            "HS" => Some(Signature::Hmac(sha)),
            "RS" => Some(Signature::RsaPkcs1(sha)),
            "PS" => Some(Signature::RsaPss(sha)),
            "ES" => Some(Signature::Ecdsa(sha)),
            _ => None,
        }
    }
}

/// How the content encryption key of a token is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyManagement {
    /// `dir`: it is the shared key.
    Direct,
    /// AES Key Wrap, with the length of the key in bytes (`A128KW`, `A192KW`, `A256KW`).
    AesKw(usize),
    /// AES GCM, with the length of the key in bytes (`A128GCMKW`, `A192GCMKW`, `A256GCMKW`).
    AesGcmKw(usize),
    /// RSA OAEP; `None` is SHA-1 (`RSA-OAEP`, `RSA-OAEP-256`, `RSA-OAEP-384`, `RSA-OAEP-512`).
    RsaOaep(Option<Sha>),
}

impl KeyManagement {
    /// Returns the algorithm of this name.
    pub fn named(name: &str) -> Option<KeyManagement> {
        Some(match name {
            "dir" => KeyManagement::Direct,
            "A128KW" => KeyManagement::AesKw(16),
            "A192KW" => KeyManagement::AesKw(24),
            "A256KW" => KeyManagement::AesKw(32),
            "A128GCMKW" => KeyManagement::AesGcmKw(16),
            "A192GCMKW" => KeyManagement::AesGcmKw(24),
            "A256GCMKW" => KeyManagement::AesGcmKw(32),
            "RSA-OAEP" => KeyManagement::RsaOaep(None),
            _ => KeyManagement::RsaOaep(Some(sha(name.strip_prefix("RSA-OAEP-")?)?)),
        })
    }
}

/// How the content of a token is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentEncryption {
    /// AES CBC with HMAC, with the length of the AES key in bytes (`A128CBC-HS256`, `A192CBC-HS384`, `A256CBC-HS512`).
    CbcHmac(usize),
    /// AES GCM, with the length of the key in bytes (`A128GCM`, `A192GCM`, `A256GCM`).
    Gcm(usize),
}

impl ContentEncryption {
    /// Returns the algorithm of this name.
    pub fn named(name: &str) -> Option<ContentEncryption> {
        Some(match name {
            "A128CBC-HS256" => ContentEncryption::CbcHmac(16),
            "A192CBC-HS384" => ContentEncryption::CbcHmac(24),
            "A256CBC-HS512" => ContentEncryption::CbcHmac(32),
            "A128GCM" => ContentEncryption::Gcm(16),
            "A192GCM" => ContentEncryption::Gcm(24),
            "A256GCM" => ContentEncryption::Gcm(32),
            _ => return None,
        })
    }

    /// Returns the length of the content encryption key in bytes.
    pub fn key_len(self) -> usize {
        match self {
            ContentEncryption::CbcHmac(len) => 2 * len,
            ContentEncryption::Gcm(len) => len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_case_sensitive_and_there_is_no_none() {
        assert_eq!(Signature::named("HS256"), Some(Signature::Hmac(Sha::Sha256)));
        assert_eq!(Signature::named("PS384"), Some(Signature::RsaPss(Sha::Sha384)));
        assert_eq!(Signature::named("ES512"), Some(Signature::Ecdsa(Sha::Sha512)));
        for name in [
            "none", "None", "nOnE", "", "hs256", "HS255", "HS2567", "ES256K", "EdDsa", "Ed25519", "é56",
            "dir",
        ] {
            assert_eq!(Signature::named(name), None, "{name}");
        }
        assert_eq!(KeyManagement::named("RSA-OAEP"), Some(KeyManagement::RsaOaep(None)));
        assert_eq!(KeyManagement::named("RSA-OAEP-512"), Some(KeyManagement::RsaOaep(Some(Sha::Sha512))));
        for name in
            ["RSA1_5", "RSA-OAEP-", "RSA-OAEP-1", "A128CTRKW", "ECDH-ES", "PBES2-HS256+A128KW", "none", ""]
        {
            assert_eq!(KeyManagement::named(name), None, "{name}");
        }
        assert_eq!(ContentEncryption::named("A128CBC-HS256").map(ContentEncryption::key_len), Some(32));
        assert_eq!(ContentEncryption::named("A128CBC"), None);
    }
}
