//! The side of the signing process: answers requests for signatures.
//!
//! ```text
//! request  = name of the key (32 bytes) | signature scheme (2 bytes, big endian) | message
//! response = 0 | signature     1: no such key     2: refused
//! ```
//! A request comes from a process that an attacker may control. It is refused unless the message is the input of a signature
//! of a TLS handshake, and the scheme is one of the key's.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;

use super::handshake_part::{HandshakePart, handshake_part};
use super::key::{KeyName, SecretKey};

/// Maximum length in bytes of a message to sign: that of a client's signature in TLS 1.2 contains all messages of the
/// handshake, with the certificates of both sides.
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Time that a request for an unknown key waits for it: a worker may get its configuration before this process has the keys.
const KEY_TIME: Duration = Duration::from_millis(500);

/// Time after which a key is forgotten that no configuration uses any more, for handshakes that have begun with it.
const UNUSED_TIME: Duration = Duration::from_secs(60);

/// The private keys of a signing process.
#[derive(Debug, Default)]
pub struct Signer {
    keys: Mutex<BTreeMap<KeyName, Held>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Held {
    key: Arc<dyn SigningKey>,
    /// The time at which the key is forgotten.
    forget_at: Option<Instant>,
}

impl Signer {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<KeyName, Held>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds keys. If `is_complete`, all other keys are forgotten after a minute. Returns the number of keys that cannot be used.
    pub fn set(&self, wanted: Vec<SecretKey>, is_complete: bool, now: Instant) -> usize {
        self.set_parsed(wanted, is_complete, now, parse)
    }

    /// Does the work of [`Signer::set`]. `parse` is called without the lock, because a signature must not wait until all keys of a
    /// large configuration are parsed.
    fn set_parsed(
        &self,
        wanted: Vec<SecretKey>,
        is_complete: bool,
        now: Instant,
        parse: impl Fn(&SecretKey) -> Option<Arc<dyn SigningKey>>,
    ) -> usize {
        let count = wanted.len();
        let known = |name| self.keys().get(&name).map(|held| Arc::clone(&held.key));
        let usable = wanted.into_iter().filter_map(|secret| {
            let name = secret.name();
            Some((name, known(name).or_else(|| parse(&secret))?))
        });
        let usable: Vec<_> = usable.collect();
        let unusable = count - usable.len();
        let mut keys = self.keys();
        for held in keys.values_mut().filter(|_| is_complete) {
            held.forget_at.get_or_insert(now + UNUSED_TIME);
        }
        for (name, key) in usable {
            keys.entry(name).or_insert(Held { key, forget_at: None }).forget_at = None;
        }
        self.changed.notify_all();
        unusable
    }

    /// Forgets keys that have not been used by a configuration for a minute. Returns the time of the next call.
    pub fn forget_unused(&self, now: Instant) -> Option<Instant> {
        let mut keys = self.keys();
        keys.retain(|_, held| held.forget_at.is_none_or(|at| at > now));
        keys.values().filter_map(|held| held.forget_at).min()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys().len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Answers a request. It may wait for half a second if the key is not known.
    pub fn answer(&self, request: &[u8]) -> Vec<u8> {
        self.answer_within(request, KEY_TIME).encode()
    }

    /// Answers a request; waits at most this time for an unknown key.
    pub fn answer_within(&self, request: &[u8], time: Duration) -> Answer {
        let Some((name, scheme, message)) = decode_request(request) else { return Answer::Refused };
        match handshake_part(message) {
            None => return Answer::Refused,
            // TLS 1.3 does not permit these schemes in handshakes (RFC 8446 section 4.2.3).
            Some(HandshakePart::Server13 | HandshakePart::Client13) if is_pkcs1(scheme) => {
                return Answer::Refused;
            }
            Some(_) => {}
        }
        let Some(key) = self.key(name, time) else { return Answer::UnknownKey };
        let signer = key.choose_scheme(&[scheme]);
        match signer.and_then(|signer| signer.sign(message).ok()) {
            Some(signature) => Answer::Signature(signature),
            None => Answer::Refused,
        }
    }

    fn key(&self, name: KeyName, time: Duration) -> Option<Arc<dyn SigningKey>> {
        let keys = self.keys();
        let waited = self.changed.wait_timeout_while(keys, time, |keys| !keys.contains_key(&name));
        let (keys, _) = waited.unwrap_or_else(PoisonError::into_inner);
        keys.get(&name).map(|held| Arc::clone(&held.key))
    }
}

/// Parses a key; `None` if it cannot be used.
fn parse(secret: &SecretKey) -> Option<Arc<dyn SigningKey>> {
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(secret.der.as_slice()));
    any_supported_type(&der).ok()
}

fn is_pkcs1(scheme: SignatureScheme) -> bool {
    use SignatureScheme as S;
    matches!(scheme, S::RSA_PKCS1_SHA256 | S::RSA_PKCS1_SHA384 | S::RSA_PKCS1_SHA512)
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The signature.
    Signature(Vec<u8>),
    /// The signing process does not have the key.
    UnknownKey,
    /// The request is malformed, or its message is not part of a handshake.
    Refused,
}

impl Answer {
    fn encode(self) -> Vec<u8> {
        match self {
            Answer::Signature(mut signature) => {
                signature.insert(0, 0);
                signature
            }
            Answer::UnknownKey => vec![1],
            Answer::Refused => vec![2],
        }
    }

    pub(super) fn decode(mut response: Vec<u8>) -> Answer {
        match response.first() {
            Some(0) => {
                response.remove(0);
                Answer::Signature(response)
            }
            Some(1) => Answer::UnknownKey,
            _ => Answer::Refused,
        }
    }
}

pub(super) fn encode_request(name: KeyName, scheme: SignatureScheme, message: &[u8]) -> Vec<u8> {
    [name.to_bytes().as_slice(), &u16::from(scheme).to_be_bytes(), message].concat()
}

fn decode_request(request: &[u8]) -> Option<(KeyName, SignatureScheme, &[u8])> {
    let (name, rest) = request.split_at_checked(32)?;
    let (scheme, message) = rest.split_first_chunk()?;
    let fits = message.len() <= MESSAGE_BYTES_MAX;
    Some((KeyName::from_bytes(name)?, SignatureScheme::from(u16::from_be_bytes(*scheme)), message))
        .filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apart::key::collect;
    use crate::certificate::Identity;
    use crate::issue;
    use crate::signing::KeyKind;

    fn secret(kind: KeyKind) -> SecretKey {
        let names = ["a.test".to_owned()];
        let text = issue::self_signed_pem(&names, kind, std::time::SystemTime::now()).unwrap();
        let (read, keys) = collect(|| Identity::from_pem(text.as_bytes(), text.as_bytes(), &[]));
        read.unwrap();
        keys.into_iter().next().unwrap()
    }

    fn verify_13() -> Vec<u8> {
        [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[7; 32]].concat()
    }

    #[test]
    fn only_inputs_of_handshakes_are_signed() {
        let (signer, now) = (Signer::default(), Instant::now());
        let keys = [secret(KeyKind::EcdsaP256), secret(KeyKind::Rsa2048)];
        assert_eq!(signer.set(keys.to_vec(), true, now), 0);
        let [ecdsa, rsa] = keys.map(|key| key.name());
        let ask = |name, scheme, message: &[u8]| {
            signer.answer_within(&encode_request(name, scheme, message), Duration::ZERO)
        };
        use SignatureScheme as S;
        for (name, scheme) in [(ecdsa, S::ECDSA_NISTP256_SHA256), (rsa, S::RSA_PSS_SHA256)] {
            assert!(matches!(ask(name, scheme, &verify_13()), Answer::Signature(_)), "{scheme:?}");
            assert_eq!(ask(name, scheme, b"eyJhbGciOiJFUzI1NiJ9.e30"), Answer::Refused);
        }
        // A scheme of another key type, and one that TLS 1.3 does not permit.
        assert_eq!(ask(ecdsa, S::RSA_PSS_SHA256, &verify_13()), Answer::Refused);
        assert_eq!(ask(rsa, S::RSA_PKCS1_SHA256, &verify_13()), Answer::Refused);
        let exchange = [&[9; 64][..], &[3, 0, 29, 32], &[1; 32]].concat();
        assert!(matches!(ask(rsa, S::RSA_PKCS1_SHA256, &exchange), Answer::Signature(_)));
        let unknown = KeyName::from_bytes(&[1; 32]).unwrap();
        assert_eq!(ask(unknown, S::ECDSA_NISTP256_SHA256, &verify_13()), Answer::UnknownKey);
        for request in [&b""[..], &[0; 33], &[0; 34]] {
            assert_eq!(signer.answer_within(request, Duration::ZERO), Answer::Refused);
        }
        let long = encode_request(ecdsa, S::ECDSA_NISTP256_SHA256, &vec![0; MESSAGE_BYTES_MAX + 1]);
        assert_eq!(signer.answer_within(&long, Duration::ZERO), Answer::Refused);
    }

    #[test]
    fn unused_keys_are_forgotten_after_a_minute() {
        let (signer, now) = (Signer::default(), Instant::now());
        let [first, second] = [secret(KeyKind::EcdsaP256), secret(KeyKind::EcdsaP256)];
        signer.set(vec![first.clone()], true, now);
        signer.set(vec![second.clone()], false, now);
        assert_eq!((signer.len(), signer.forget_unused(now)), (2, None));
        signer.set(vec![second], true, now);
        assert_eq!(signer.forget_unused(now), Some(now + UNUSED_TIME));
        assert_eq!((signer.len(), signer.forget_unused(now + UNUSED_TIME)), (2, None));
        assert_eq!(signer.len(), 1);
        // A key that is used again is not forgotten.
        signer.set(vec![first.clone()], true, now);
        signer.set(vec![first], true, now);
        signer.forget_unused(now + UNUSED_TIME);
        assert_eq!(signer.len(), 1);
    }

    #[test]
    fn keys_are_parsed_without_the_lock_of_signatures() {
        let (signer, now) = (Signer::default(), Instant::now());
        let keys = vec![secret(KeyKind::EcdsaP256), secret(KeyKind::EcdsaP256)];
        let parsed = std::cell::Cell::new(0);
        let parse_unlocked = |secret: &SecretKey| {
            assert!(signer.keys.try_lock().is_ok(), "signatures wait");
            parsed.set(parsed.get() + 1);
            parse(secret)
        };
        assert_eq!(signer.set_parsed(keys.clone(), true, now, parse_unlocked), 0);
        // A known key is not parsed again.
        assert_eq!(signer.set_parsed(keys, true, now, parse_unlocked), 0);
        assert_eq!((signer.len(), parsed.get()), (2, 2));
        assert_eq!(signer.set_parsed(vec![secret(KeyKind::EcdsaP256)], false, now, |_| None), 1);
    }

    #[test]
    fn a_request_waits_for_a_key_that_arrives_soon() {
        let (signer, key) = (Signer::default(), secret(KeyKind::EcdsaP256));
        let request = encode_request(key.name(), SignatureScheme::ECDSA_NISTP256_SHA256, &verify_13());
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| signer.answer_within(&request, Duration::from_secs(20)));
            signer.set(vec![key], true, Instant::now());
            assert!(matches!(answer.join().unwrap(), Answer::Signature(_)));
        });
    }
}
