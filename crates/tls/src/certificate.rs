//! Reads certificates and their private keys from PEM files.
//!
//! [`Identity`] is a certificate chain with its private key, as a server or a client presents it. Errors begin with
//! OpenSSL's messages for the same file.

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use zeroize::Zeroizing;

use crate::apart::{self, RemoteKey};
use crate::seen;
use crate::x509::{self, Certificate, KeyError};

/// Reason why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The file contains no certificate.
    NoCertificate,
    /// The file contains a private key and no certificate.
    KeyInstead,
    /// The file contains DER (X.690) instead of PEM.
    Der,
    /// A certificate in the file is damaged.
    BadCertificate,
    /// The file contains no private key, or a damaged key, with the library's message.
    BadKey(String),
    /// None of the passwords decrypts the key.
    Password,
    /// The key does not belong to the certificate, with the library's message.
    KeyMismatch(String),
    /// The type of the key is not supported.
    UnsupportedKey,
    /// A CRL is missing or damaged, for this reason.
    BadCrl(String),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileError::NoCertificate => f.write_str("no start line: the file contains no certificate in PEM"),
            FileError::KeyInstead => f.write_str(
                "no start line: the file contains no certificate in PEM, but a private key: exchange the files of certificate and key",
            ),
            FileError::Der => f.write_str(
                "no start line: the file contains no certificate in PEM, but DER: convert it by openssl x509 -inform der",
            ),
            FileError::BadCertificate => f.write_str("a certificate in the file is damaged"),
            FileError::BadKey(reason) => {
                write!(f, "{reason}: the file contains no readable private key in PEM")
            }
            FileError::Password => f.write_str("bad password read: no password decrypts the key"),
            FileError::KeyMismatch(reason) => write!(f, "{reason}"),
            FileError::UnsupportedKey => {
                f.write_str("this type of key is not supported: use RSA, ECDSA or Ed25519")
            }
            FileError::BadCrl(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for FileError {}

/// A certificate chain with the private key of its first certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    /// Whether the key was decrypted by a password.
    is_decrypted: bool,
    /// Time when the first certificate expires, in seconds since 1970.
    expires: Option<i64>,
}

impl Identity {
    /// Parses a chain and its key, both in PEM. The first certificate belongs to the key; the others follow in the
    /// order in which they are sent.
    pub fn from_pem(chain: &[u8], key: &[u8], passwords: &[Vec<u8>]) -> Result<Identity, FileError> {
        let chain = certificates(chain)?;
        let first = chain.first().ok_or(FileError::NoCertificate)?;
        let parsed = Certificate::from_der(first).ok_or(FileError::BadCertificate)?;
        let expires = parsed.expires();
        // The process that read the file has compared the key with the certificate.
        if let Some(remote) = RemoteKey::of(key) {
            let key = Arc::new(Watched(Arc::new(remote)));
            return Ok(Identity {
                key: Arc::new(CertifiedKey::new(chain, key)),
                is_decrypted: false,
                expires,
            });
        }
        let (der, is_decrypted) = x509::decrypted_key(key, passwords).map_err(|error| match error {
            KeyError::Unreadable(reason) => FileError::BadKey(reason),
            KeyError::Password => FileError::Password,
        })?;
        let der = Zeroizing::new(der);
        x509::key_belongs_to(&der, first).map_err(|reason| mismatch(&der, &chain, reason))?;
        let pkcs8 = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.as_slice()));
        let signing = any_supported_type(&pkcs8).map_err(|_| FileError::UnsupportedKey)?;
        apart::note(key, &der, &*signing);
        let key = Arc::new(Watched(signing));
        Ok(Identity { key: Arc::new(CertifiedKey::new(chain, key)), is_decrypted, expires })
    }

    /// Returns the identity with a stapled OCSP response of the CA (RFC 6960), in DER.
    pub fn with_ocsp(&self, response: Vec<u8>) -> Identity {
        let mut key = CertifiedKey::clone(&self.key);
        key.ocsp = Some(response);
        Identity { key: Arc::new(key), ..self.clone() }
    }

    /// Returns the certificate and key in the form that rustls needs.
    pub(crate) fn key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// Returns the certificates in DER; the first one belongs to the key.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// Whether the file of the key is encrypted. Such a key is not cached, as in nginx.
    pub fn is_decrypted(&self) -> bool {
        self.is_decrypted
    }

    /// Whether the keys have the same type. As in OpenSSL, a server uses only the last certificate of a key type.
    pub fn has_key_type_of(&self, other: &Identity) -> bool {
        self.key.key.algorithm() == other.key.key.algorithm()
    }

    /// Adds a certificate to those of a server, instead of an earlier one of the same key type.
    pub fn add_to(self, identities: &mut Vec<Identity>) {
        identities.retain(|earlier| !earlier.has_key_type_of(&self));
        identities.push(self);
    }

    /// Returns the time when the certificate expires, in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        self.expires
    }
}

/// A key that records the signature scheme of each signature in [`crate::seen`].
#[derive(Debug)]
struct Watched(Arc<dyn SigningKey>);

impl SigningKey for Watched {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered).map(|signer| Box::new(WatchedSigner(signer)) as _)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[derive(Debug)]
struct WatchedSigner(Box<dyn Signer>);

impl Signer for WatchedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        seen::note(|seen| seen.signature = Some(self.0.scheme()));
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}

/// Returns the error of a key that does not belong to the first certificate of a chain. If it belongs to another one, the order is
/// wrong.
fn mismatch(key: &[u8], chain: &[CertificateDer<'_>], reason: String) -> FileError {
    let own = chain.iter().position(|certificate| x509::key_belongs_to(key, certificate).is_ok());
    FileError::KeyMismatch(match own {
        None => reason,
        Some(index) => {
            let number = index + 1;
            format!(
                "{reason}: the key belongs to certificate {number} of the file, which must be the first one"
            )
        }
    })
}

/// Labels of certificates besides `CERTIFICATE`, which OpenSSL reads too.
const OTHER_LABELS: [&str; 2] = ["TRUSTED CERTIFICATE", "X509 CERTIFICATE"];

/// Returns all certificates of a PEM file. Ignores other sections, as OpenSSL does.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let mut found = authorities(pem)?;
    // Trust settings are not part of the certificate.
    for der in found.iter_mut().filter(|_| has_other_label(pem)) {
        *der = x509::without_trust_settings(der).ok_or(FileError::BadCertificate)?.into();
    }
    Ok(found)
}

/// Returns all certificates of a PEM file for [`x509::Roots::add`]: those in sections `TRUSTED CERTIFICATE` are followed by their
/// trust settings.
pub fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let renamed = has_other_label(pem).then(|| {
        let mut text = String::from_utf8_lossy(pem).into_owned();
        for label in OTHER_LABELS {
            for end in ["-----BEGIN ", "-----END "] {
                text = text.replace(&format!("{end}{label}-----"), &format!("{end}CERTIFICATE-----"));
            }
        }
        text
    });
    let pem = renamed.as_ref().map_or(pem, |text| text.as_bytes());
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|_| FileError::BadCertificate)?;
    if !found.is_empty() {
        return Ok(found);
    }
    let has = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    Err(match () {
        () if has(b"PRIVATE KEY-----") => FileError::KeyInstead,
        // A sequence with a length of two bytes.
        () if pem.starts_with(&[0x30, 0x82]) => FileError::Der,
        () => FileError::NoCertificate,
    })
}

fn has_other_label(pem: &[u8]) -> bool {
    OTHER_LABELS.iter().any(|label| pem.windows(label.len()).any(|window| window == label.as_bytes()))
}

/// Returns all CRLs of a PEM file, in DER.
pub fn crls(pem: &[u8]) -> Result<Vec<Vec<u8>>, FileError> {
    let damaged = |_| FileError::BadCrl("a CRL in the file is damaged".to_owned());
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem)
        .map(|crl| crl.map(|crl| crl.as_ref().to_vec()))
        .collect();
    let found = found.map_err(damaged)?;
    if found.is_empty() {
        return Err(FileError::BadCrl("no start line: the file contains no CRL in PEM".to_owned()));
    }
    Ok(found)
}

/// Encodes a certificate in PEM, as in `$ssl_client_raw_cert`.
pub fn to_pem(der: &[u8]) -> String {
    const LINE: usize = 64;
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let encoded = BASE64_STANDARD.encode(der);
    for line in encoded.as_bytes().chunks(LINE) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
