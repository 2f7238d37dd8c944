//! Fuzzes requests of workers to the signing process in crate `tls`: only inputs of signatures of handshakes are signed.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use tls::Identity;
use tls::apart::{Answer, SecretKey, Signer, collect};
use tls::issue::self_signed_pem;
use tls::signing::KeyKind;

use crate::{Target, take_byte};

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_signer",
    run,
    tokens: &[
        "\x04\x03",
        "\x08\x04",
        "\x04\x01",
        "TLS 1.3, server CertificateVerify\0",
        "TLS 1.3, client CertificateVerify\0",
        "                                                                ",
        "\x03\0\x1d\x20",
        "\x03\0\x17\x41\x04",
        "\x10\0\0",
    ],
};

/// The signing process, with an ECDSA and an RSA key.
static SIGNER: LazyLock<(Signer, Vec<SecretKey>)> = LazyLock::new(|| {
    let read = |kind| {
        let pem = self_signed_pem(&["a.example".to_owned()], kind, SystemTime::now()).expect("a key");
        collect(|| Identity::from_pem(pem.as_bytes(), pem.as_bytes(), &[]).expect("a certificate")).1
    };
    let keys = [read(KeyKind::EcdsaP256), read(KeyKind::Rsa2048)].concat();
    let signer = Signer::default();
    assert_eq!(signer.set(keys.clone(), true, Instant::now()), 0);
    (signer, keys)
});

/// The first byte selects a key, or none; the rest is the request without the name of the key.
pub fn run(data: &[u8]) {
    let mut rest = data;
    let (signer, keys) = &*SIGNER;
    let index = usize::from(take_byte(&mut rest));
    let key = keys.get(index);
    let name = key.map_or(vec![7; 32], |key| key.to_bytes()[..32].to_vec());
    let answer = signer.answer_within(&[name.as_slice(), rest].concat(), Duration::ZERO);
    let _ = signer.answer_within(data, Duration::ZERO);
    if let Answer::Signature(signature) = answer {
        assert!(key.is_some(), "a key that does not exist has signed");
        let (scheme, message) = rest.split_at(2);
        assert_eq!(signature.len() > 100, index == 1, "of the other key");
        assert_eq!(scheme == [4, 3], index == 0, "a scheme of the other key");
        assert!(is_of_handshake(message), "{message:?} was signed");
    }
}

/// Whether a message is one of the four inputs, checked without the code of crate `tls`.
fn is_of_handshake(message: &[u8]) -> bool {
    let spaces = message.iter().take_while(|byte| **byte == b' ').count();
    if spaces >= 64 {
        let context = [&b"TLS 1.3, server CertificateVerify\0"[..], b"TLS 1.3, client CertificateVerify\0"];
        return [130, 146].contains(&message.len()) && context.contains(&&message[64..98]);
    }
    let is_exchange = message.get(64) == Some(&3)
        && message.get(65) == Some(&0)
        && message.get(67).is_some_and(|length| message.len() == 68 + usize::from(*length));
    let is_transcript = message.first() == Some(&1) && message.len() >= 12;
    is_exchange || is_transcript
}
