//! Peer certificates in crate `tls`: only the unchanged certificate that a CA has signed is trusted.

use tls::x509::{Purpose, Roots};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_certificates",
    run,
    tokens: &["\x30\u{2}", "\x06\x03\x55\x1d", "\x01\x01\u{7f}", "\x04\x02", "\x17\x0d", "\x05\x00"],
};

/// The CA certificate, with an RSA key: RSA signatures have only one encoding.
const ROOT: &[u8] = include_bytes!("../data/root.der");

/// A client certificate signed by the CA.
const LEAF: &[u8] = include_bytes!("../data/leaf.der");

/// Verifies the input as a client certificate, alone, and before and after a valid one.
pub fn run(data: &[u8]) {
    let mut roots = Roots::new().expect("memory");
    roots.add(ROOT).expect("a certificate");
    let is_known = data == LEAF || data == ROOT;
    let verdict = roots.verify(&[data], Purpose::Client, 1);
    assert!(verdict.is_err() || is_known, "a certificate that the CA has not signed is trusted");
    assert!(data != LEAF || verdict.is_ok(), "{verdict:?}");
    let first = roots.verify(&[data, LEAF], Purpose::Client, 1);
    assert!(first.is_err() || is_known, "a certificate is trusted because of a valid one after it");
    // The result does not matter: only a panic would be an error. Data after a valid certificate may make its
    // verification fail.
    let _ = roots.verify(&[LEAF, data], Purpose::Client, 1);
    // With the input as the only root, the certificate must not be trusted, because the input has not signed it.
    let mut others = Roots::new().expect("memory");
    if others.add(data).is_ok() && !is_known {
        let by_other = others.verify(&[LEAF], Purpose::Client, 1);
        assert!(by_other.is_err() || others_key_is_roots(data), "{by_other:?}");
    }
}

/// Whether a certificate contains the key of the root: it may be another encoding of the root.
fn others_key_is_roots(data: &[u8]) -> bool {
    // A part of the RSA modulus that is long enough to be unique.
    let key = &ROOT[ROOT.len() / 3..ROOT.len() / 3 + 64];
    data.windows(key.len()).any(|part| part == key)
}
