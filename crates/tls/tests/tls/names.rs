//! Names in certificates: which hosts a certificate is valid for.

use crate::chains::made;
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, SanType};
use tls::x509::Certificate;

fn certificate(change: impl FnOnce(&mut CertificateParams)) -> Certificate {
    Certificate::from_der(made("name", None, change).certificate.der()).unwrap()
}

/// For length 0 the library calls strlen(3), which read beyond the name and crashed the worker.
#[test]
fn no_certificate_is_valid_for_an_empty_name() {
    let dns = |name: &str| SanType::DnsName(Ia5String::try_from(name).unwrap());
    let names =
        certificate(|params| params.subject_alt_names = vec![dns("example.org"), dns("*.example.org")]);
    let only_common_name = certificate(|params| params.subject_alt_names = Vec::new());
    for (host, expected) in [
        ("", false),
        ("example.org", true),
        ("a.example.org", true),
        ("example.org\0", false),
        ("example.org\0.test", false),
        ("\0", false),
        (".", false),
        (&"a".repeat(100_000), false),
    ] {
        assert_eq!(names.is_for(host), expected, "{host:.20}");
    }
    // Empty texts whose address is dangling, and within another text.
    let empty = String::new();
    assert!(!names.is_for(&empty) && !names.is_for(&"example.org"[3..3]));
    assert!(!only_common_name.is_for(""));
    assert!(only_common_name.is_for("name"));
}
