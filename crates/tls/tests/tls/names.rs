//! Names in certificates: which hosts a certificate is valid for, and the text of distinguished names.

use crate::chains::made;
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, DistinguishedName, DnType, SanType};
use tls::x509::{Certificate, NameForm};

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

#[test]
fn bytes_outside_ascii_are_escaped_in_distinguished_names() {
    let certificate = certificate(|params| {
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "M\u{fc}ller, \u{20ac}");
        params.distinguished_name.push(DnType::CommonName, "ok");
    });
    // `openssl x509 -nameopt RFC2253` prints the same.
    assert_eq!(certificate.subject(NameForm::Rfc2253).unwrap(), "CN=ok,O=M\\C3\\BCller\\, \\E2\\82\\AC");
    assert_eq!(certificate.issuer(NameForm::Rfc2253), certificate.subject(NameForm::Rfc2253));
    assert_eq!(certificate.subject(NameForm::Legacy).unwrap(), "/O=M\\xC3\\xBCller, \\xE2\\x82\\xAC/CN=ok");
}
