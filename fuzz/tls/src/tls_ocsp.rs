//! Fuzzes OCSP responses in crate `tls`: only a response that the authority signed yields a status.

use tls::ocsp::{Status, Subject, ValidResponse, Verification};
use tls::x509::{Certificate, Roots};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_ocsp",
    run,
    tokens: &[
        "\x30\u{2}",
        "\x0a\x01",
        "\x06\x09\x2b\x06\x01\x05\x05\x07\x30\x01\x01",
        "\x18\x0f",
        "\x04\x14",
    ],
};

/// Certificate of the authority. Its key is an RSA key, so each signed content has only one valid signature.
const ROOT: &[u8] = include_bytes!("../data/ocsp_root.der");

/// Certificate that the authority has signed, with the URL of a responder.
const LEAF: &[u8] = include_bytes!("../data/ocsp_leaf.der");

/// Time at which responses are verified, in seconds since 1970.
const NOW: i64 = 1_795_731_803;

/// Uses the input as an OCSP response, as a certificate and as an issuer.
pub fn run(data: &[u8]) {
    let certificate = |der| Certificate::from_der(der).expect("a certificate");
    let mut roots = Roots::new().expect("memory");
    roots.add(ROOT).expect("a certificate");
    let subject = Subject::new(certificate(LEAF), certificate(ROOT), Vec::new());
    // The authority signed two responses: "good" without nextUpdate, and "revoked" with a later nextUpdate.
    if let Ok(known) = subject.judge(data, &roots, Verification::Full, NOW) {
        let is_signed = matches!(
            known,
            ValidResponse { status: Status::Good, until: None }
                | ValidResponse { status: Status::Revoked, until: Some(NOW..) }
        );
        assert!(is_signed, "{known:?} was not signed");
    }
    for verification in [Verification::KnownIssuer, Verification::SignatureAlone] {
        let _ = subject.judge(data, &roots, verification, NOW);
    }
    if let Some(other) = Certificate::from_der(data) {
        assert!(data != LEAF || other.ocsp_url().as_deref() == Some("http://a.example/ocsp"));
        let _ = other.is_issuer_of(&certificate(LEAF));
        let (own, issuer) = (Subject::new(other, certificate(ROOT), Vec::new()), certificate(data));
        let _ = own.request();
        let _ = Subject::new(certificate(LEAF), issuer, Vec::new()).request();
    }
}
