//! Compares the verification of chains and keys with the `openssl` command: decision, error number and message must be
//! equal.

use crate::chains::{Case, Files, Made, authority, has_openssl, made};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyIdMethod, KeyPair, NameConstraints, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use tls::certificate::FileError;
use tls::x509::{KeyError, Purpose, Roots, key_belongs_to, private_key};
use tls::{Identity, Trust};

/// Returns the chains: a root, an intermediate CA, and certificates of every kind.
fn cases() -> Vec<Case> {
    let root = authority("root", None, |_| {});
    let middle = authority("middle", Some(&root), |_| {});
    let usage = |usage| move |params: &mut CertificateParams| params.extended_key_usages = vec![usage];
    let good = made("good", Some(&middle), usage(ExtendedKeyUsagePurpose::ClientAuth));
    let any = made("any", Some(&root), |_| {});
    let old = made("old", Some(&root), |params| params.not_after = date_time_ymd(2021, 1, 1));
    let new = made("new", Some(&root), |params| params.not_before = date_time_ymd(2048, 1, 1));
    let alone = made("alone", None, |_| {});
    let other = authority("other", None, |_| {});
    let of_server = made("server", Some(&root), usage(ExtendedKeyUsagePurpose::ServerAuth));
    let no_authority = made("leaf of a leaf", Some(&any), |_| {});
    let mut deep: Vec<Made> = Vec::new();
    for number in 0..4 {
        deep.push(authority(&format!("deep {number}"), Some(deep.last().unwrap_or(&root)), |_| {}));
    }
    let deepest = made("deepest", deep.last(), |_| {});
    let short_path = authority("short path", Some(&root), |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))
    });
    let too_long = authority("too long", Some(&short_path), |_| {});
    let below_too_long = made("below", Some(&too_long), |_| {});
    let subtree = || vec![GeneralSubtree::DnsName("example.net".to_owned())];
    let narrow = authority("narrow", Some(&root), |params| {
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees: subtree(), excluded_subtrees: Vec::new() });
    });
    let outside = made("outside", Some(&narrow), |_| {});
    let old_root = authority("old root", None, |params| params.not_after = date_time_ymd(2021, 1, 1));
    let below_old = made("below old", Some(&old_root), |_| {});

    let mut deep_chain: Vec<&Made> = vec![&deepest];
    deep_chain.extend(deep.iter().rev());
    let depth = |depth, case| Case { depth, ..case };
    let server = |case| Case { purpose: Purpose::Server, ..case };
    let mut cases = vec![
        Case::new("good", &[&good, &middle], &root),
        Case::new("any purpose", &[&any], &root),
        server(Case::new("any purpose, server", &[&any], &root)),
        Case::new("root sent along", &[&good, &middle, &root], &root),
        Case::new("expired", &[&old], &root),
        Case::new("not yet valid", &[&new], &root),
        Case::new("self-signed", &[&alone], &root),
        Case::new("self-signed and trusted", &[&alone], &alone),
        Case::new("unknown root", &[&good, &middle], &other),
        Case::new("unknown root in the chain", &[&good, &middle, &root], &other),
        Case::new("nothing between", &[&good], &root),
        Case::new("wrong purpose", &[&of_server], &root),
        server(Case::new("wrong purpose, server", &[&good, &middle], &root)),
        Case::new("signed by no authority", &[&no_authority, &any], &root),
        Case::new("path too long", &[&below_too_long, &too_long, &short_path], &root),
        Case::new("outside of names", &[&outside, &narrow], &root),
        Case::new("expired root", &[&below_old], &old_root),
    ];
    for limit in 0..6 {
        cases.push(depth(limit, Case::new("deep", &deep_chain, &root)));
        cases.push(depth(limit, Case::new("depth of two", &[&good, &middle], &root)));
        cases.push(depth(limit, Case::new("deep below an unknown root", &deep_chain, &other)));
        cases.push(depth(limit, Case::new("alone", &[&alone], &root)));
        cases.push(depth(limit, Case::new("unknown root sent along", &[&good, &middle, &root], &other)));
    }
    cases.push(bad_signature(&any, &root));
    cases.extend(revocations(&any, &root));
    cases
}

fn bad_signature(any: &Made, root: &Made) -> Case {
    let mut der = any.certificate.der().to_vec();
    let last = der.len() - 1;
    der[last] ^= 1;
    Case { chain: vec![tls::certificate::to_pem(&der)], ..Case::new("bad signature", &[any], root) }
}

fn revocations(any: &Made, root: &Made) -> Vec<Case> {
    let crl = |issuer: &Made, serial: u64, until| {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2022, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        CertificateRevocationListParams {
            this_update: date_time_ymd(2022, 1, 1),
            next_update: until,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        }
        .signed_by(&issuer.issuer())
        .unwrap()
        .pem()
        .unwrap()
    };
    let numbered =
        made("numbered", Some(root), |params| params.serial_number = Some(SerialNumber::from(4711_u64)));
    let other = authority("lists of others", None, |_| {});
    let far = date_time_ymd(2048, 1, 1);
    let with = |name, crl: String| Case { crls: vec![crl], ..Case::new(name, &[&numbered], root) };
    let mut damaged = with("list of a damaged signature", crl(root, 1, far));
    damaged.chain = vec![any.certificate.pem()];
    vec![
        with("revoked", crl(root, 4711, far)),
        with("another is revoked", crl(root, 4712, far)),
        with("old list", crl(root, 4712, date_time_ymd(2023, 1, 1))),
        with("list of another authority", crl(&other, 4711, far)),
        damaged,
    ]
}

#[test]
fn verification_results_match_openssl() {
    if !has_openssl() {
        return;
    }
    let files = Files::new("verdicts");
    let mut differences = Vec::new();
    for case in cases() {
        let (ours, theirs) = (case.ours(), case.theirs(&files));
        if ours != theirs {
            differences.push(format!("{}, depth {}: {ours:?}, openssl {theirs:?}", case.name, case.depth));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_too_long_chain_is_distinguished_from_an_unknown_root() {
    // `optional_no_ca` accepts clients whose only error is an unknown root.
    let root = authority("root", None, |_| {});
    let middle = authority("middle", Some(&root), |_| {});
    let leaf = made("leaf", Some(&middle), |_| {});
    let mut roots = Roots::new().unwrap();
    roots.add(root.certificate.der()).unwrap();
    let error =
        roots.verify(&[leaf.certificate.der(), middle.certificate.der()], Purpose::Client, 0).unwrap_err();
    assert!(!error.is_only_unknown_root());
    assert_eq!(error.to_string(), "certificate chain too long");
    let error = roots.verify(&[leaf.certificate.der()], Purpose::Client, 0).unwrap_err();
    assert!(error.is_only_unknown_root());
}

/// The expected verdicts are those of nginx with OpenSSL 3.
#[test]
fn an_unknown_root_does_not_hide_other_flaws_of_a_client() {
    let (root, stranger) = (authority("root", None, |_| {}), authority("stranger", None, |_| {}));
    let middle = authority("middle", Some(&stranger), |_| {});
    let known_middle = authority("known middle", Some(&root), |_| {});
    let issued = |issuer, change: fn(&mut CertificateParams)| made("client", Some(issuer), change);
    let of_server = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let old = |params: &mut CertificateParams| params.not_after = date_time_ymd(2021, 1, 1);
    let der = |made: &Made| made.certificate.der().clone();
    let damaged = |made: &Made| {
        let mut der = made.certificate.der().to_vec();
        *der.last_mut().unwrap() ^= 1;
        CertificateDer::from(der)
    };
    let (expired, purpose) = ("certificate has expired", "unsuitable certificate purpose");
    let (alone, good) = (issued(&stranger, |_| {}), issued(&middle, |_| {}));
    for (trusted, chain, is_accepted, reason) in [
        (&root, vec![der(&alone)], true, "unable to verify the first certificate"),
        (&root, vec![damaged(&alone)], true, "unable to verify the first certificate"),
        (&root, vec![der(&issued(&stranger, old))], false, expired),
        (&root, vec![der(&issued(&stranger, of_server))], true, "unable to verify the first certificate"),
        (&root, vec![der(&made("self", None, |_| {}))], true, "self-signed certificate"),
        (&root, vec![der(&made("self", None, old))], false, expired),
        (&root, vec![der(&made("self", None, of_server))], false, purpose),
        (&root, vec![der(&good), der(&middle)], true, "unable to get local issuer certificate"),
        (&root, vec![damaged(&good), der(&middle)], false, "certificate signature failure"),
        (&root, vec![der(&issued(&middle, old)), der(&middle)], false, expired),
        (&root, vec![der(&issued(&middle, of_server)), der(&middle)], false, purpose),
        (&root, vec![der(&issued(&middle, old)), der(&middle), der(&stranger)], false, expired),
        (&known_middle, vec![der(&issued(&known_middle, |_| {}))], false, "unable to get issuer certificate"),
    ] {
        let mut roots = Roots::new().unwrap();
        roots.add(trusted.certificate.der()).unwrap();
        let verdict = Trust::new(roots, 3, Purpose::Client).judge(&chain).unwrap_err();
        assert_eq!((verdict.is_only_unknown_root(), verdict.reason.as_str()), (is_accepted, reason));
    }
}

#[test]
fn a_version_1_certificate_is_verified_as_by_openssl() {
    if !has_openssl() {
        return;
    }
    let files = Files::new("v1");
    files.write("none.cnf", "[req]\ndistinguished_name = name\n[name]\n");
    files.make(&[
        "req",
        "-x509",
        "-config",
        "none.cnf",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "100",
        "-subj",
        "/CN=old root",
    ]);
    files.make(&[
        "req", "-new", "-config", "none.cnf", "-newkey", "rsa:2048", "-nodes", "-keyout", "leaf.key", "-out",
        "leaf.csr", "-subj", "/CN=old",
    ]);
    files.make(&[
        "x509",
        "-req",
        "-in",
        "leaf.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        "leaf.pem",
        "-days",
        "50",
    ]);
    let text = |name| String::from_utf8(files.read(name)).unwrap();
    let case = Case {
        name: "version 1",
        chain: vec![text("leaf.pem")],
        roots: vec![text("ca.pem")],
        crls: Vec::new(),
        depth: 1,
        purpose: Purpose::Client,
    };
    assert_eq!(case.ours(), case.theirs(&files));
    assert_eq!(case.ours(), Ok(()));
    assert!(Identity::from_pem(&files.read("leaf.pem"), &files.read("leaf.key"), &[]).is_ok());
    let mismatch = Identity::from_pem(&files.read("leaf.pem"), &files.read("ca.key"), &[]);
    assert!(matches!(mismatch, Err(FileError::KeyMismatch(words)) if words == "key values mismatch"));
}

#[test]
fn keys_of_every_format_are_parsed() {
    if !has_openssl() {
        return;
    }
    let files = Files::new("keys");
    files.make(&["genrsa", "-traditional", "-out", "rsa.pem", "2048"]);
    files.make(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ec.pem"]);
    for kind in ["rsa", "ec"] {
        let plain = files.read(&format!("{kind}.pem"));
        let expected = private_key(&plain, &[]).unwrap();
        let to = |name: &str, arguments: &[&str]| {
            let input = format!("{kind}.pem");
            files.make(&[&[arguments[0], "-in", &input, "-out", name], &arguments[1..]].concat());
            files.read(name)
        };
        let pkcs8 = to("8.pem", &["pkcs8", "-topk8", "-nocrypt"]);
        assert_eq!(private_key(&pkcs8, &[]).unwrap(), expected, "{kind}");
        let traditional = to("t.pem", &[kind, "-aes128", "-passout", "pass:secret"]);
        let encrypted = to("e.pem", &["pkcs8", "-topk8", "-passout", "pass:secret"]);
        let old = to("o.pem", &["pkcs8", "-topk8", "-v2", "des3", "-passout", "pass:secret"]);
        let traditional = if kind == "rsa" {
            to("tr.pem", &["rsa", "-traditional", "-aes128", "-passout", "pass:secret"])
        } else {
            traditional
        };
        for pem in [traditional, encrypted, old] {
            let password = |text: &str| text.as_bytes().to_vec();
            assert_eq!(private_key(&pem, &[password("secret")]).unwrap(), expected, "{kind}");
            assert_eq!(private_key(&pem, &[password("wrong"), password("secret")]).unwrap(), expected);
            for wrong in [&[][..], &[password("wrong")], &[password("")], &[password("secret ")]] {
                assert_eq!(private_key(&pem, wrong), Err(KeyError::Password), "{kind}");
            }
        }
    }
}

#[test]
fn damaged_keys_are_refused_and_never_panic() {
    let key = KeyPair::generate().unwrap();
    let pem = key.serialize_pem();
    for len in 0..pem.len() - 30 {
        assert!(
            matches!(private_key(&pem.as_bytes()[..len], &[]), Err(KeyError::Unreadable(_))),
            "{len} bytes"
        );
    }
    for (index, byte) in key.serialize_der().iter().enumerate() {
        let mut der = key.serialize_der();
        der[index] = !byte;
        let _ = key_belongs_to(&der, b"no certificate");
    }
    for text in ["", "garbage", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"] {
        assert!(
            matches!(private_key(text.as_bytes(), &[b"x".to_vec()]), Err(KeyError::Unreadable(_))),
            "{text}"
        );
    }
}

#[test]
fn damaged_certificates_never_panic_and_are_not_trusted() {
    let root = authority("root", None, |_| {});
    let leaf = made("leaf", Some(&root), |_| {});
    let mut roots = Roots::new().unwrap();
    roots.add(root.certificate.der()).unwrap();
    let der = leaf.certificate.der().to_vec();
    assert_eq!(roots.verify(&[&der], Purpose::Client, 1), Ok(()));
    for index in 0..der.len() {
        for new in [0, 0xff, der[index] ^ 1, der[index].wrapping_add(1)] {
            let mut damaged = der.clone();
            damaged[index] = new;
            assert!(
                damaged == der || roots.verify(&[&damaged], Purpose::Client, 1).is_err(),
                "byte {index}: {new}"
            );
        }
        assert!(roots.verify(&[&der[..index]], Purpose::Client, 1).is_err());
    }
    let longer = [&der[..], b"x"].concat();
    assert!(roots.verify(&[&longer], Purpose::Client, 1).is_err(), "bytes behind the certificate");
    let none: [&[u8]; 0] = [];
    assert!(roots.verify(&none, Purpose::Client, 1).is_err());
}
