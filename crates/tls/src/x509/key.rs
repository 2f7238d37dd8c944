//! Private keys: the passwords of an encrypted key, and the errors.

use super::object::{Certificate, PrivateKey, last_error};

/// Reason why a private key cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The file has no key, or the key is damaged, with the library's message.
    Unreadable(String),
    /// None of the passwords decrypts the key.
    Password,
}

/// Reads the first private key of a PEM file and returns it as PKCS#8 (RFC 5208) in DER. Tries the passwords in order
/// if the key is encrypted.
pub fn private_key(pem: &[u8], passwords: &[Vec<u8>]) -> Result<Vec<u8>, KeyError> {
    decrypted_key(pem, passwords).map(|(key, _)| key)
}

/// Reads a key like [`private_key`]; returns also whether it is encrypted.
pub(crate) fn decrypted_key(pem: &[u8], passwords: &[Vec<u8>]) -> Result<(Vec<u8>, bool), KeyError> {
    let mut tries = passwords.iter().map(Vec::as_slice);
    let mut tried = false;
    loop {
        let password = tries.next();
        let (key, is_encrypted) = PrivateKey::from_pem(pem, password);
        match key {
            Ok(key) => {
                let der = key.to_pkcs8().ok_or_else(|| KeyError::Unreadable(last_error()));
                return der.map(|der| (der, is_encrypted));
            }
            // The next password can help only if the key needs a password.
            Err(_) if is_encrypted && password.is_some() => tried = true,
            Err(_) if is_encrypted || tried => return Err(KeyError::Password),
            Err(reason) => return Err(KeyError::Unreadable(reason)),
        }
    }
}

/// Checks that a private key belongs to a certificate, both in DER. The error is the library's message.
pub fn key_belongs_to(key: &[u8], certificate: &[u8]) -> Result<(), String> {
    let certificate = Certificate::from_der(certificate).ok_or_else(last_error)?;
    let key = PrivateKey::from_der(key).ok_or_else(last_error)?;
    if key.is_of(&certificate) { Ok(()) } else { Err(last_error()) }
}
