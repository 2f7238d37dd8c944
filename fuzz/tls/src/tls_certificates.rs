//! Certificates of peers, of crate `tls`: what is not the certificate that an authority has signed is not trusted.

use tls::x509::{Purpose, Roots};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_certificates",
    run,
    tokens: &["\x30\u{2}", "\x06\x03\x55\x1d", "\x01\x01\u{7f}", "\x04\x02", "\x17\x0d", "\x05\x00"],
};

/// The authority, whose key is of RSA: its signatures have one form only.
const ROOT: &[u8] = include_bytes!("../data/root.der");

/// A client's certificate that it has signed.
const LEAF: &[u8] = include_bytes!("../data/leaf.der");

/// The input is a client's certificate, alone, before and behind a good one.
pub fn run(data: &[u8]) {
    let mut roots = Roots::new().expect("memory");
    roots.add(ROOT).expect("a certificate");
    let is_known = data == LEAF || data == ROOT;
    let verdict = roots.verify(&[data], Purpose::Client, 1);
    assert!(verdict.is_err() || is_known, "a certificate that was not signed is trusted");
    assert!(data != LEAF || verdict.is_ok(), "{verdict:?}");
    let first = roots.verify(&[data, LEAF], Purpose::Client, 1);
    assert!(first.is_err() || is_known, "a certificate is trusted for another one");
    // What stands beside a good chain is at most no certificate, which ends the verification.
    let _ = roots.verify(&[LEAF, data], Purpose::Client, 1);
    // A root that is not one trusts nothing that it did not sign.
    let mut others = Roots::new().expect("memory");
    if others.add(data).is_ok() && !is_known {
        let by_other = others.verify(&[LEAF], Purpose::Client, 1);
        assert!(by_other.is_err() || others_key_is_roots(data), "{by_other:?}");
    }
}

/// Whether a certificate has the key of the root: it may be another form of it.
fn others_key_is_roots(data: &[u8]) -> bool {
    // The modulus of RSA, a part of the key that is long enough to be one of a kind.
    let key = &ROOT[ROOT.len() / 3..ROOT.len() / 3 + 64];
    data.windows(key.len()).any(|part| part == key)
}
