//! Compares OCSP requests, and the verification of responses, with those of `openssl ocsp`, which also creates the responses. Damaged
//! responses have no status.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::chains::{Files, Made, authority, has_openssl, made};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, SerialNumber};
use tls::ocsp::{RESPONSE_BYTES_MAX, Status, Subject, ValidResponse, Verification};
use tls::x509::{Certificate, Roots};

/// Root CA, intermediate CA, certificates of the intermediate CA, and the files of several signers.
struct Authorities {
    files: Files,
    root: Made,
    middle: Made,
    good: Made,
}

fn serial(number: u64) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.serial_number = Some(SerialNumber::from(number))
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

fn certificate(made: &Made) -> Certificate {
    Certificate::from_der(made.certificate.der()).unwrap()
}

/// A response and its expected verdict.
struct Case<'a> {
    name: &'static str,
    /// Certificate whose status is read from the response.
    of: &'a Made,
    /// Certificate in the request to the responder.
    asked: &'a Made,
    signer: &'a str,
    /// Further arguments of `openssl ocsp`.
    more: &'a [&'a str],
    expected: Result<Status, &'static str>,
}

impl Authorities {
    fn new(test: &str) -> Authorities {
        let files = Files::new(test);
        let root = authority("root", None, |_| {});
        let middle = authority("middle", Some(&root), |_| {});
        let other = authority("other", None, |_| {});
        let good = made("good", Some(&middle), serial(0x1001));
        let for_responses = |params: &mut CertificateParams| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::OcspSigning];
        };
        let delegated = made("delegated", Some(&middle), for_responses);
        let of_other = made("delegated by another", Some(&other), for_responses);
        let of_root = made("delegated by the root", Some(&root), for_responses);
        let undelegated = made("undelegated", Some(&middle), |_| {});
        let all = [
            ("root", &root),
            ("middle", &middle),
            ("other", &other),
            ("good", &good),
            ("delegated", &delegated),
            ("of_other", &of_other),
            ("of_root", &of_root),
            ("undelegated", &undelegated),
        ];
        for (name, made) in all {
            files.write(&format!("{name}.pem"), &made.certificate.pem());
            files.write(&format!("{name}.key"), &made.key.serialize_pem());
        }
        files.write(
            "index",
            "V\t490101000000Z\t\t1001\tunknown\t/CN=good\nR\t490101000000Z\t250101000000Z\t1002\tunknown\t/CN=revoked\n",
        );
        Authorities { files, root, middle, good }
    }

    fn subject(&self, of: &Made) -> Subject {
        Subject::new(certificate(of), certificate(&self.middle), Vec::new())
    }

    fn roots(&self) -> Roots {
        let mut roots = Roots::new().unwrap();
        roots.add(self.root.certificate.der()).unwrap();
        roots
    }

    /// Runs `openssl ocsp` as the responder for a request of this crate; returns the response.
    fn respond(&self, asked: &Made, signer: &str, more: &[&str]) -> Vec<u8> {
        let request = self.subject(asked).request().unwrap();
        std::fs::write(self.files.write("request", ""), request).unwrap();
        let (signer, key) = (format!("{signer}.pem"), format!("{signer}.key"));
        let mut arguments = vec!["ocsp", "-index", "index", "-CA", "middle.pem", "-reqin", "request"];
        arguments.extend(["-rsigner", &signer, "-rkey", &key, "-respout", "response"]);
        arguments.extend_from_slice(more);
        self.files.make(&arguments);
        self.files.read("response")
    }

    /// Returns the verdict of `openssl ocsp` on the file `response`.
    fn theirs(&self, of: &Made) -> Option<Status> {
        self.files.write("of.pem", &of.certificate.pem());
        let mut arguments = vec!["ocsp", "-respin", "response", "-issuer", "middle.pem", "-cert", "of.pem"];
        arguments.extend(["-CAfile", "root.pem", "-no-CApath", "-no-CAstore", "-no_nonce"]);
        arguments.extend(["-verify_other", "middle.pem"]);
        let (_, text) = self.files.openssl(&arguments);
        if !text.contains("Response verify OK") || text.contains("Status times invalid") {
            return None;
        }
        match text {
            _ if text.contains("of.pem: good") => Some(Status::Good),
            _ if text.contains("of.pem: revoked") => Some(Status::Revoked),
            _ if text.contains("of.pem: unknown") => Some(Status::Unknown),
            _ => None,
        }
    }
}

#[test]
fn ocsp_requests_match_openssl() {
    if !has_openssl() {
        return;
    }
    let all = Authorities::new("ocsp-requests");
    let arguments = "ocsp -issuer middle.pem -cert good.pem -no_nonce -reqout request";
    all.files.make(&arguments.split(' ').collect::<Vec<_>>());
    assert_eq!(all.subject(&all.good).request().unwrap(), all.files.read("request"));
}

#[test]
fn verification_results_match_openssl() {
    if !has_openssl() {
        return;
    }
    let all = Authorities::new("ocsp-verdicts");
    let revoked = made("revoked", Some(&all.middle), serial(0x1002));
    let unknown = made("unknown", Some(&all.middle), serial(0x1003));
    let good = &all.good;
    let case =
        |name, of, expected| Case { name, of, asked: of, signer: "middle", more: &["-ndays", "1"], expected };
    let by = |signer, case| Case { signer, ..case };
    let unsigned = "OCSP_basic_verify() failed";
    let cases = [
        case("good", good, Ok(Status::Good)),
        case("revoked", &revoked, Ok(Status::Revoked)),
        case("unknown", &unknown, Ok(Status::Unknown)),
        Case { more: &[], ..case("without an end", good, Ok(Status::Good)) },
        Case { more: &["-resp_key_id", "-resp_no_certs"], ..case("by key", good, Ok(Status::Good)) },
        by("delegated", case("delegated", &revoked, Ok(Status::Revoked))),
        by("undelegated", case("no responder", good, Err(unsigned))),
        by("root", case("by the issuer's issuer", good, Err(unsigned))),
        by("of_root", case("delegated by the issuer's issuer", good, Err(unsigned))),
        by("of_other", case("delegated by another", good, Err(unsigned))),
        by("other", case("by another", good, Err(unsigned))),
        by("good", case("by itself", good, Err(unsigned))),
        Case { more: &["-badsig"], ..case("damaged", good, Err(unsigned)) },
        Case { asked: &revoked, ..case("another serial", good, Err("certificate status not found")) },
        Case {
            more: &["-rcid", "sha256"],
            ..case("another digest", good, Err("certificate status not found"))
        },
    ];
    let roots = all.roots();
    for Case { name, of, asked, signer, more, expected } in cases {
        let response = all.respond(asked, signer, more);
        let ours = all.subject(of).judge(&response, &roots, Verification::Full, now());
        let theirs = all.theirs(of);
        match (&ours, expected) {
            (Ok(known), Ok(status)) => {
                assert_eq!(known.status, status, "{name}");
                assert_eq!(known.until.is_some(), more.contains(&"-ndays"), "{name}");
            }
            (Err(message), Err(start)) => assert!(message.starts_with(start), "{name}: {message}"),
            _ => panic!("{name}: {ours:?}"),
        }
        assert_eq!(ours.ok().map(|known| known.status), theirs, "{name}");
    }
}

#[test]
fn a_response_expires_at_next_update() {
    if !has_openssl() {
        return;
    }
    let all = Authorities::new("ocsp-times");
    let (roots, subject) = (all.roots(), all.subject(&all.good));
    let response = all.respond(&all.good, "middle", &["-nmin", "1"]);
    let at = |time| subject.judge(&response, &roots, Verification::Full, time);
    let until = at(now()).unwrap().until.unwrap();
    assert_eq!(at(until + 300), Ok(ValidResponse { status: Status::Good, until: Some(until) }));
    let expired = at(until + 301).unwrap_err();
    assert_eq!(expired, "OCSP_check_validity() failed (SSL: status expired)");
    let early = at(until - 60 - 301).unwrap_err();
    assert_eq!(early, "OCSP_check_validity() failed (SSL: status not yet valid)");
    assert_eq!(all.theirs(&all.good), Some(Status::Good));
}

#[test]
fn a_stapled_response_needs_its_issuer_but_no_root() {
    if !has_openssl() {
        return;
    }
    let all = Authorities::new("ocsp-stapling");
    let (subject, none) = (all.subject(&all.good), Roots::new().unwrap());
    let judge = |response: &[u8], verification| {
        subject.judge(response, &none, verification, now()).map(|known| known.status)
    };
    let by_issuer = all.respond(&all.good, "middle", &[]);
    assert!(judge(&by_issuer, Verification::Full).is_err(), "there is no root");
    assert_eq!(judge(&by_issuer, Verification::KnownIssuer), Ok(Status::Good));
    assert_eq!(judge(&by_issuer, Verification::SignatureAlone), Ok(Status::Good));
    let by_other = all.respond(&all.good, "other", &[]);
    assert!(judge(&by_other, Verification::KnownIssuer).is_err());
    assert_eq!(judge(&by_other, Verification::SignatureAlone), Ok(Status::Good));
    let damaged = all.respond(&all.good, "middle", &["-badsig"]);
    assert!(judge(&damaged, Verification::SignatureAlone).is_err());
}

#[test]
fn damaged_responses_have_no_status() {
    if !has_openssl() {
        return;
    }
    let all = Authorities::new("ocsp-damaged");
    let (roots, subject) = (all.roots(), all.subject(&all.good));
    let judge = |response: &[u8]| subject.judge(response, &roots, Verification::Full, now());
    let response = all.respond(&all.good, "delegated", &[]);
    let known = judge(&response).unwrap();
    for len in 0..response.len() {
        assert!(judge(&response[..len]).is_err(), "{len}");
    }
    for place in 0..response.len() {
        let mut changed = response.clone();
        changed[place] ^= 0x10;
        let ours = judge(&changed);
        assert!(ours.is_err() || ours == Ok(known), "{place}: {ours:?}");
    }
    let unauthorized = judge(&[0x30, 3, 0x0a, 1, 6]).unwrap_err();
    assert_eq!(unauthorized, "OCSP response not successful (6: unauthorized)");
    assert!(judge(&vec![0x30; RESPONSE_BYTES_MAX + 1]).unwrap_err().contains("more than 65536 bytes"));
}
