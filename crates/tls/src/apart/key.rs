//! Private keys with their names, and PEM texts in which names replace the keys.
//!
//! The name of a key is the digest of the PEM sections that contain it. So the process that reads the files and the process that
//! gets the texts without keys agree on the name, also for encrypted keys and for files with a certificate and its key.

use std::cell::RefCell;

use aws_lc_rs::digest::{SHA256, digest};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use memchr::memmem::find;
use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use zeroize::Zeroizing;

/// Length in bytes of a name.
const NAME_BYTES: usize = 32;

/// The label of a PEM section that stands for private keys.
const PLACEHOLDER: &str = "RINGROAD KEY NAME";

/// The end of the labels of all PEM sections with private keys (RFC 7468 sections 10 and 11, and older labels such as
/// `RSA PRIVATE KEY`).
const KEY_LABEL_END: &[u8] = b"PRIVATE KEY";

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// The schemes of all types of keys.
const SCHEMES: [SignatureScheme; 10] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA256,
];

/// The name of a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyName([u8; NAME_BYTES]);

impl KeyName {
    /// Returns the name for the private keys of a PEM text; `None` if the text has none.
    pub fn of_text(pem: &[u8]) -> Option<KeyName> {
        let sections: Vec<&[u8]> = key_sections(pem).into_iter().map(|range| &pem[range]).collect();
        if sections.is_empty() {
            None
        } else {
            KeyName::from_bytes(digest(&SHA256, &sections.concat()).as_ref())
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<KeyName> {
        bytes.try_into().ok().map(KeyName)
    }

    pub(super) fn to_bytes(self) -> [u8; NAME_BYTES] {
        self.0
    }
}

/// A private key that a signing process is to hold. Only [`SecretKey::to_bytes`] reveals it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    name: KeyName,
    algorithm: u8,
    /// The numbers of the signature schemes, in order of preference.
    schemes: Vec<u16>,
    /// PKCS#8 in DER.
    pub(super) der: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretKey").field(&self.name).finish()
    }
}

impl SecretKey {
    /// Returns the name of the key.
    pub fn name(&self) -> KeyName {
        self.name
    }

    /// Returns the name and the key for the channel to the signing process.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([self.name.0.as_slice(), &self.der].concat())
    }

    /// Decodes a key that the signing process has received; `None` if the bytes are too short.
    pub fn from_bytes(bytes: &[u8]) -> Option<SecretKey> {
        let (name, der) = bytes.split_first_chunk()?;
        let der = Zeroizing::new(der.to_vec());
        Some(SecretKey { name: KeyName(*name), algorithm: 0, schemes: Vec::new(), der })
    }

    /// Returns the PEM section that stands for this key in the texts of workers.
    fn placeholder(&self) -> String {
        let schemes = self.schemes.iter().flat_map(|scheme| scheme.to_be_bytes());
        let bytes: Vec<u8> = self.name.0.into_iter().chain([self.algorithm]).chain(schemes).collect();
        format!(
            "-----BEGIN {PLACEHOLDER}-----\n{}\n-----END {PLACEHOLDER}-----\n",
            BASE64_STANDARD.encode(bytes)
        )
    }
}

thread_local! {
    /// The keys that were read on this thread, while [`collect`] runs.
    static COLLECTED: RefCell<Option<Vec<SecretKey>>> = const { RefCell::new(None) };
}

/// Calls a function; returns its result, and the private keys that [`crate::Identity::from_pem`] has read meanwhile on this
/// thread, each once.
pub fn collect<T>(read: impl FnOnce() -> T) -> (T, Vec<SecretKey>) {
    COLLECTED.set(Some(Vec::new()));
    let result = read();
    (result, COLLECTED.take().unwrap_or_default())
}

/// Adds a key to those that [`collect`] returns. `pem` is the text that it was read from, `der` is the key as PKCS#8.
pub(crate) fn note(pem: &[u8], der: &[u8], key: &dyn SigningKey) {
    COLLECTED.with_borrow_mut(|collected| {
        let (Some(collected), Some(name)) = (collected, KeyName::of_text(pem)) else { return };
        if collected.iter().any(|known| known.name == name) {
            return;
        }
        let (mut offered, mut schemes) = (SCHEMES.to_vec(), Vec::new());
        while let Some(signer) = key.choose_scheme(&offered) {
            offered.retain(|scheme| *scheme != signer.scheme());
            schemes.push(u16::from(signer.scheme()));
        }
        let der = Zeroizing::new(der.to_vec());
        collected.push(SecretKey { name, algorithm: key.algorithm().into(), schemes, der });
    });
}

/// Removes all private keys of a PEM text; `None` if it has none. If `keys` contain the first of them, a placeholder with its name
/// follows the remaining text.
pub fn without_keys(pem: &[u8], keys: &[SecretKey]) -> Option<Vec<u8>> {
    let name = KeyName::of_text(pem)?;
    let (mut text, mut end) = (Vec::new(), 0);
    for section in key_sections(pem) {
        text.extend_from_slice(&pem[end..section.start]);
        end = section.end;
    }
    text.extend_from_slice(&pem[end..]);
    if let Some(key) = keys.iter().find(|key| key.name == name) {
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.extend_from_slice(key.placeholder().as_bytes());
    }
    Some(text)
}

/// A decoded placeholder: name, type of the key, and its schemes in order of preference.
pub(crate) type Placeholder = (KeyName, SignatureAlgorithm, Vec<SignatureScheme>);

/// Returns the placeholder of a PEM text.
pub(crate) fn placeholder(pem: &[u8]) -> Option<Placeholder> {
    let [begin, end] = ["BEGIN", "END"].map(|word| format!("-----{word} {PLACEHOLDER}-----").into_bytes());
    let start = find(pem, &begin)? + begin.len();
    let rest = &pem[start..];
    let encoded = rest[..find(rest, &end)?].trim_ascii();
    let bytes = BASE64_STANDARD.decode(encoded).ok()?;
    let (name, rest) = bytes.split_first_chunk()?;
    let (algorithm, schemes) = rest.split_first()?;
    let (schemes, odd) = schemes.as_chunks::<2>();
    let schemes = schemes.iter().map(|number| SignatureScheme::from(u16::from_be_bytes(*number)));
    odd.is_empty().then(|| (KeyName(*name), SignatureAlgorithm::from(*algorithm), schemes.collect()))
}

/// Returns the positions of all PEM sections whose label ends with `PRIVATE KEY`. A section without an end continues to the end of
/// the text.
fn key_sections(pem: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut sections, mut from) = (Vec::new(), 0);
    while let Some(found) = find(&pem[from..], BEGIN) {
        let start = from + found;
        let label = start + BEGIN.len();
        let label = &pem[label..label + find(&pem[label..], DASHES).unwrap_or(pem.len() - label)];
        from = start + BEGIN.len();
        if !label.ends_with(KEY_LABEL_END) || label.contains(&b'\n') {
            continue;
        }
        let last = [END, label, DASHES].concat();
        let end = find(&pem[from..], &last).map_or(pem.len(), |end| from + end + last.len());
        // The end of the line belongs to the section.
        let line = pem[end..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count().min(2);
        sections.push(start..end + line);
        from = end + line;
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Identity;
    use crate::issue;
    use crate::signing::KeyKind;

    fn certificate_and_key(kind: KeyKind) -> String {
        issue::self_signed_pem(&["a.test".to_owned()], kind, std::time::SystemTime::now()).unwrap()
    }

    #[test]
    fn keys_of_any_label_are_removed_and_other_sections_stay() {
        let certificate = without_keys(certificate_and_key(KeyKind::EcdsaP256).as_bytes(), &[]).unwrap();
        let certificate = String::from_utf8(certificate).unwrap();
        for label in ["PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
            let key = format!("-----BEGIN {label}-----\nc2VjcmV0\n-----END {label}-----\n");
            for text in [format!("{key}{certificate}"), format!("{certificate}{key}"), format!("{key}{key}")]
            {
                let rest = without_keys(text.as_bytes(), &[]).unwrap();
                let expected = text.replace(&key, "");
                assert_eq!(String::from_utf8(rest).unwrap(), expected);
            }
        }
        assert_eq!(without_keys(certificate.as_bytes(), &[]), None);
        let endless = b"a\n-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n";
        assert_eq!(without_keys(endless, &[]).unwrap(), b"a\n");
        let other_end = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(without_keys(other_end, &[]).unwrap(), b"");
    }

    #[test]
    fn a_placeholder_names_the_key_and_its_schemes() {
        for (kind, count) in [(KeyKind::EcdsaP256, 1), (KeyKind::Rsa2048, 6)] {
            let text = certificate_and_key(kind);
            let read = || Identity::from_pem(text.as_bytes(), text.as_bytes(), &[]).unwrap();
            let (identity, keys) = collect(|| {
                read();
                read()
            });
            let [key] = keys.as_slice() else { panic!("{keys:?}") };
            let shown = without_keys(text.as_bytes(), &keys).unwrap();
            assert!(!shown.windows(11).any(|window| window == KEY_LABEL_END));
            let (name, algorithm, schemes) = placeholder(&shown).unwrap();
            assert_eq!((name, schemes.len()), (key.name(), count));
            assert_eq!(algorithm, identity.key().key.algorithm());
            let sent = SecretKey::from_bytes(&key.to_bytes()).unwrap();
            assert_eq!((sent.name(), &sent.der), (key.name(), &key.der));
            assert!(!format!("{key:?}").contains("der"));
        }
        assert!(collect(|| ()).1.is_empty());
    }
}
