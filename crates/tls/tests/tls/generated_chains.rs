//! Compares verification of several hundred generated chains with `openssl verify`: certificates that are expired, not
//! yet valid, of another issuer, too deep, revoked, outside of name constraints, or for another purpose.
//!
//! For a chain with one flaw the error number and message must be equal. If a chain has several flaws, the libraries
//! may find different flaws first; then only the decision must be equal.

use crate::chains::{Case, Files, Made, has_openssl, params};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, NameConstraints, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use tls::x509::Purpose;

/// Number of chains. Each needs one run of the command.
const CHAINS: u64 = 300;

/// Random numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}

/// The flaw of a certificate in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Expired,
    NotYetValid,
    NoAuthority,
    PathLength,
    OutsideOfNames,
    ExcludedName,
    MayNotSign,
    OtherKey,
    Left,
    UnknownRoot,
    OtherUse,
    Revoked,
    OldList,
    TooDeep,
}

const FLAWS: [Flaw; 14] = [
    Flaw::Expired,
    Flaw::NotYetValid,
    Flaw::NoAuthority,
    Flaw::PathLength,
    Flaw::OutsideOfNames,
    Flaw::ExcludedName,
    Flaw::MayNotSign,
    Flaw::OtherKey,
    Flaw::Left,
    Flaw::UnknownRoot,
    Flaw::OtherUse,
    Flaw::Revoked,
    Flaw::OldList,
    Flaw::TooDeep,
];

/// Flaws with their positions in the chain: 0 is the root.
type Flaws = Vec<(Flaw, usize)>;

fn subtree(name: &str) -> Vec<GeneralSubtree> {
    vec![GeneralSubtree::DnsName(name.to_owned())]
}

/// Returns the parameters of the certificate at this position.
fn params_of(place: usize, last: usize, flaws: &Flaws, purpose: Purpose) -> CertificateParams {
    let has = |flaw| flaws.contains(&(flaw, place));
    let mut made = params(&format!("certificate {place}"));
    made.serial_number = Some(SerialNumber::from(100 + place as u64));
    if place < last {
        made.subject_alt_names = Vec::new();
        made.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        made.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    } else {
        let wanted = purpose == Purpose::Client;
        let wanted = if has(Flaw::OtherUse) { !wanted } else { wanted };
        made.extended_key_usages = vec![match wanted {
            true => ExtendedKeyUsagePurpose::ClientAuth,
            false => ExtendedKeyUsagePurpose::ServerAuth,
        }];
    }
    if has(Flaw::Expired) {
        made.not_after = date_time_ymd(2021, 1, 1);
    }
    if has(Flaw::NotYetValid) {
        made.not_before = date_time_ymd(2048, 1, 1);
    }
    if has(Flaw::NoAuthority) {
        (made.is_ca, made.key_usages) = (IsCa::ExplicitNoCa, Vec::new());
    }
    if has(Flaw::PathLength) {
        made.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    }
    if has(Flaw::MayNotSign) {
        made.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    }
    let (permitted_subtrees, excluded_subtrees) = match place {
        _ if has(Flaw::OutsideOfNames) => (subtree("example.net"), Vec::new()),
        _ if has(Flaw::ExcludedName) => (Vec::new(), subtree("example.org")),
        _ => (Vec::new(), Vec::new()),
    };
    if !permitted_subtrees.is_empty() || !excluded_subtrees.is_empty() {
        made.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees });
    }
    made
}

/// Returns the CRL of a CA.
fn list_of(issuer: &Made, place: usize, flaws: &Flaws) -> String {
    let is_revoked = flaws.contains(&(Flaw::Revoked, place + 1));
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(if is_revoked { 101 + place as u64 } else { 1 }),
        revocation_time: date_time_ymd(2022, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let until = if flaws.contains(&(Flaw::OldList, place)) { 2023 } else { 2048 };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2022, 1, 1),
        next_update: date_time_ymd(until, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    // Permits the library to sign a CRL even with a certificate that may not sign CRLs. Verification must then reject
    // the CRL.
    let mut params = issuer.params.clone();
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    list.signed_by(&rcgen::Issuer::from_params(&params, &issuer.key)).unwrap().pem().unwrap()
}

/// Returns the chain of this seed, and its flaws.
fn case(seed: u64, keys: &[KeyPair]) -> (Case, Flaws) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let last = 1 + random.below(4) as usize;
    let purpose = if random.below(2) == 0 { Purpose::Client } else { Purpose::Server };
    // Half of the chains have one flaw, a quarter have none.
    let count = [0, 1, 1, 2][random.below(4) as usize];
    let mut flaws: Flaws = (0..count)
        .map(|_| (FLAWS[random.below(FLAWS.len() as u64) as usize], random.below(last as u64 + 1) as usize))
        .collect();
    for (flaw, place) in &mut flaws {
        *place = match flaw {
            Flaw::OtherUse => last,
            Flaw::Revoked => (*place).max(1),
            Flaw::Left => (*place).clamp(1, last.max(2) - 1),
            Flaw::NoAuthority
            | Flaw::PathLength
            | Flaw::OutsideOfNames
            | Flaw::ExcludedName
            | Flaw::MayNotSign
            | Flaw::OldList => (*place).min(last - 1),
            Flaw::OtherKey => (*place).max(1),
            _ => *place,
        };
    }
    // Removes flaws that have no effect in a chain of this length.
    flaws.retain(|(flaw, place)| match flaw {
        Flaw::PathLength => place + 1 < last,
        Flaw::Left => last > 1 && (1..last).contains(place),
        _ => true,
    });
    let has = |flaw| flaws.iter().any(|(known, _)| *known == flaw);
    let key = |place: usize| KeyPair::from_pem(&keys[place].serialize_pem()).unwrap();
    let mut made: Vec<Made> = Vec::new();
    for place in 0..=last {
        let params = params_of(place, last, &flaws, purpose);
        let key = key(place);
        let certificate = match made.last() {
            None => params.self_signed(&key),
            Some(_) if flaws.contains(&(Flaw::OtherKey, place)) => {
                // Signs with the issuer's name and the key of another issuer.
                let issuer = &made[place - 1];
                params.signed_by(&key, &rcgen::Issuer::from_params(&issuer.params, &keys[7]))
            }
            Some(issuer) => params.signed_by(&key, &issuer.issuer()),
        };
        made.push(Made { certificate: certificate.unwrap(), params, key });
    }
    let chain = (1..=last).rev().filter(|place| !flaws.contains(&(Flaw::Left, *place)) || *place == last);
    let chain = chain.map(|place| made[place].certificate.pem()).collect();
    let root = if has(Flaw::UnknownRoot) {
        let mut params = params("another root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&keys[6]).unwrap().pem()
    } else {
        made[0].certificate.pem()
    };
    let has_lists = has(Flaw::Revoked) || has(Flaw::OldList) || random.below(4) == 0;
    let lists = (0..last).map(|place| list_of(&made[place], place, &flaws));
    let crls = if has_lists { lists.collect() } else { Vec::new() };
    let depth = if has(Flaw::TooDeep) { (last as u32).saturating_sub(2) } else { 9 };
    (Case { name: "generated", chain, roots: vec![root], crls, depth, purpose }, flaws)
}

#[test]
fn results_for_generated_chains_match_openssl() {
    if !has_openssl() {
        return;
    }
    let files = Files::new("generated");
    let keys: Vec<KeyPair> = (0..8).map(|_| KeyPair::generate().unwrap()).collect();
    let (mut differences, mut trusted, mut words) = (Vec::new(), 0, 0);
    for seed in 0..CHAINS {
        let (case, flaws) = case(seed, &keys);
        let (ours, theirs) = (case.ours(), case.theirs(&files));
        trusted += u64::from(ours.is_ok());
        // If an issuer may not sign, aws-lc searches for another issuer and reports it as missing; OpenSSL reports the
        // issuer that it found.
        let is_other_number = flaws.iter().any(|(flaw, _)| *flaw == Flaw::MayNotSign);
        let is_same = match flaws.len() < 2 && !is_other_number {
            true => ours == theirs,
            false => ours.is_ok() == theirs.is_ok(),
        };
        words += u64::from(ours == theirs);
        if !is_same {
            differences.push(format!(
                "seed {seed}, {flaws:?}, {} certificates, depth {}: {ours:?}, openssl {theirs:?}",
                case.chain.len(),
                case.depth
            ));
        }
    }
    assert!(differences.is_empty(), "{} of {CHAINS}: {differences:#?}", differences.len());
    assert!(trusted > CHAINS / 10 && trusted < CHAINS / 2, "{trusted} of {CHAINS} are trusted");
    assert!(words > CHAINS * 9 / 10, "{words} of {CHAINS} have the same words");
}
