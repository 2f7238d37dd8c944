//! Verification of signatures (RFC 7515 section 5.2).

use aws_lc_rs::{hmac, signature};

use crate::algorithm::{Sha, Signature};
use crate::key::{self, Key, KeySet, Material};
use crate::token::{Fault, Signed};

/// Verifies the signature of a token with the keys of these sets.
pub fn verify(token: &Signed<'_>, sets: &[&KeySet]) -> Result<(), Fault> {
    let name = token.header.text("alg").ok_or(Fault::Algorithm)?;
    let algorithm = Signature::named(&name).ok_or(Fault::Algorithm)?;
    let id = key_id(&token.header)?;
    let names = [name.as_str()];
    let mut keys = key::candidates(sets, &names, id.as_deref(), |key| fits(key, algorithm)).peekable();
    if keys.peek().is_none() {
        return Err(Fault::NoKey);
    }
    let is_valid = keys.any(|key| has_signed(key, algorithm, token.input, &token.signature));
    if is_valid { Ok(()) } else { Err(Fault::Signature) }
}

/// Returns `kid`, which must be a text.
pub(crate) fn key_id(header: &crate::Object) -> Result<Option<String>, Fault> {
    match header.has("kid") {
        true => header.text("kid").map(Some).ok_or(Fault::Format),
        false => Ok(None),
    }
}

/// Whether a key is of the algorithm's type and may verify signatures.
fn fits(key: &Key, algorithm: Signature) -> bool {
    let is_of_type = match (&key.material, algorithm) {
        (Material::Secret(_), Signature::Hmac(_))
        | (Material::Rsa { .. }, Signature::RsaPkcs1(_) | Signature::RsaPss(_))
        | (Material::Ed25519(_), Signature::EdDsa) => true,
        (Material::Ecdsa(curve, _), Signature::Ecdsa(sha)) => *curve == sha,
        _ => false,
    };
    is_of_type && key.verifies
}

/// Whether this key has signed `input`.
fn has_signed(key: &Key, algorithm: Signature, input: &[u8], made: &[u8]) -> bool {
    match (&key.material, algorithm) {
        (Material::Secret(secret), Signature::Hmac(sha)) => {
            // Compared in constant time.
            hmac::verify(&hmac::Key::new(hmac_algorithm(sha), secret), input, made).is_ok()
        }
        (Material::Rsa { public, .. }, Signature::RsaPkcs1(sha)) => {
            let parameters = match sha {
                Sha::Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                Sha::Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                Sha::Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            };
            public.verify(parameters, input, made).is_ok()
        }
        (Material::Rsa { public, .. }, Signature::RsaPss(sha)) => {
            let parameters = match sha {
                Sha::Sha256 => &signature::RSA_PSS_2048_8192_SHA256,
                Sha::Sha384 => &signature::RSA_PSS_2048_8192_SHA384,
                Sha::Sha512 => &signature::RSA_PSS_2048_8192_SHA512,
            };
            public.verify(parameters, input, made).is_ok()
        }
        (Material::Ecdsa(_, public), Signature::Ecdsa(_)) | (Material::Ed25519(public), Signature::EdDsa) => {
            public.verify_sig(input, made).is_ok()
        }
        _ => false,
    }
}

/// Returns the MAC with this hash.
pub(crate) fn hmac_algorithm(sha: Sha) -> hmac::Algorithm {
    match sha {
        Sha::Sha256 => hmac::HMAC_SHA256,
        Sha::Sha384 => hmac::HMAC_SHA384,
        Sha::Sha512 => hmac::HMAC_SHA512,
    }
}
