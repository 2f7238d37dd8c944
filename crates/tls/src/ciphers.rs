//! Evaluates OpenSSL's cipher strings (`ssl_ciphers`) and suite lists (`ssl_conf_command Ciphersuites`) over the
//! supported suites.
//!
//! The syntax is that of `openssl-ciphers(1)`. `:`, `,` and spaces separate elements. A leading `!` removes suites
//! permanently, `-` removes suites, `+` moves suites to the end. `+` between names selects the suites that match both
//! names; `@STRENGTH` sorts. A name that matches no supported suite adds nothing, like a suite in OpenSSL that was
//! disabled at compile time: it is safer to offer fewer suites than configured than more. As in OpenSSL, cipher strings
//! do not affect the suites of TLS 1.3.

use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::{CipherSuite, SupportedCipherSuite};

/// A supported suite of TLS 1.2.
struct Suite {
    suite: SupportedCipherSuite,
    /// OpenSSL's name of the suite.
    name: &'static str,
    /// The keywords of cipher strings that match the suite.
    keywords: &'static [&'static str],
    /// Strength in bits, for `@STRENGTH`.
    bits: u16,
}

/// Keywords that match every supported suite of TLS 1.2.
const COMMON: [&str; 11] = [
    "ALL",
    "DEFAULT",
    "COMPLEMENTOFNULL",
    "HIGH",
    "ECDHE",
    "EECDH",
    "kECDHE",
    "kEECDH",
    "TLSv1.2",
    "AEAD",
    "FIPS",
];

/// The supported suites of TLS 1.2, in OpenSSL's default order.
static SUITES: [Suite; 6] = [
    Suite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        keywords: &["aECDSA", "ECDSA", "AES", "AES256", "AESGCM", "SUITEB192"],
        bits: 256,
    },
    Suite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        keywords: &["aRSA", "AES", "AES256", "AESGCM"],
        bits: 256,
    },
    Suite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        keywords: &["aECDSA", "ECDSA", "CHACHA20"],
        bits: 256,
    },
    Suite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        keywords: &["aRSA", "CHACHA20"],
        bits: 256,
    },
    Suite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        keywords: &["aECDSA", "ECDSA", "AES", "AES128", "AESGCM", "SUITEB128"],
        bits: 128,
    },
    Suite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        keywords: &["aRSA", "AES", "AES128", "AESGCM"],
        bits: 128,
    },
];

/// The supported suites of TLS 1.3, in OpenSSL's default order.
static SUITES_13: [(SupportedCipherSuite, &str); 3] = [
    (cipher_suite::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384"),
    (cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256"),
    (cipher_suite::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256"),
];

/// Suites of TLS 1.3 that OpenSSL supports and this server does not.
const UNSUPPORTED_13: [&str; 4] =
    ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256", "TLS_SHA256_SHA256", "TLS_SHA384_SHA384"];

impl Suite {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || COMMON.contains(&name) || self.keywords.contains(&name)
    }
}

/// Evaluates a cipher string. Returns the selected suites of TLS 1.2, in order of preference.
pub fn parse(text: &str) -> Vec<SupportedCipherSuite> {
    // Indexes into SUITES.
    let (mut active, mut killed): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for element in text.split([':', ',', ' ', ';']).filter(|element| !element.is_empty()) {
        if element == "@STRENGTH" {
            active.sort_by_key(|index| std::cmp::Reverse(SUITES[*index].bits));
            continue;
        }
        let (action, names) = match element.as_bytes()[0] {
            b'!' | b'-' | b'+' => (element.as_bytes()[0], &element[1..]),
            _ => (b'a', element),
        };
        let matches = |index: &usize| names.split('+').all(|name| SUITES[*index].is_called(name));
        match action {
            b'!' => {
                killed.extend((0..SUITES.len()).filter(matches));
                active.retain(|index| !matches(index));
            }
            b'-' => active.retain(|index| !matches(index)),
            b'+' => active.sort_by_key(matches),
            _ => {
                let is_new = |index: &usize| !active.contains(index) && !killed.contains(index);
                let new: Vec<usize> =
                    (0..SUITES.len()).filter(|index| matches(index) && is_new(index)).collect();
                active.extend(new);
            }
        }
    }
    active.into_iter().map(|index| SUITES[index].suite).collect()
}

/// Returns all supported suites of TLS 1.3, in order of preference.
pub fn all_13() -> Vec<SupportedCipherSuite> {
    SUITES_13.iter().map(|(suite, _)| *suite).collect()
}

/// Parses a list of suites of TLS 1.3, such as `TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384`. The error is the first
/// unknown name.
pub fn parse_13(list: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut suites = Vec::new();
    for name in list.split(':').filter(|name| !name.is_empty()) {
        match SUITES_13.iter().find(|(_, known)| *known == name) {
            Some((suite, _)) => suites.push(*suite),
            None if UNSUPPORTED_13.contains(&name) => {}
            None => return Err(name.to_owned()),
        }
    }
    Ok(suites)
}

/// Returns OpenSSL's name of a supported suite.
pub fn name_of(suite: CipherSuite) -> Option<&'static str> {
    let of_12 = SUITES.iter().find(|known| known.suite.suite() == suite).map(|known| known.name);
    of_12.or_else(|| SUITES_13.iter().find(|(known, _)| known.suite() == suite).map(|(_, name)| *name))
}

/// OpenSSL's names of suites that clients may offer and this server does not support, with their numbers.
const OTHERS: [(u16, &str); 34] = [
    (0x002f, "AES128-SHA"),
    (0x0033, "DHE-RSA-AES128-SHA"),
    (0x0035, "AES256-SHA"),
    (0x0039, "DHE-RSA-AES256-SHA"),
    (0x003c, "AES128-SHA256"),
    (0x003d, "AES256-SHA256"),
    (0x0067, "DHE-RSA-AES128-SHA256"),
    (0x006b, "DHE-RSA-AES256-SHA256"),
    (0x009c, "AES128-GCM-SHA256"),
    (0x009d, "AES256-GCM-SHA384"),
    (0x009e, "DHE-RSA-AES128-GCM-SHA256"),
    (0x009f, "DHE-RSA-AES256-GCM-SHA384"),
    (0x00ff, "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"),
    (0xc009, "ECDHE-ECDSA-AES128-SHA"),
    (0xc00a, "ECDHE-ECDSA-AES256-SHA"),
    (0xc013, "ECDHE-RSA-AES128-SHA"),
    (0xc014, "ECDHE-RSA-AES256-SHA"),
    (0xc023, "ECDHE-ECDSA-AES128-SHA256"),
    (0xc024, "ECDHE-ECDSA-AES256-SHA384"),
    (0xc027, "ECDHE-RSA-AES128-SHA256"),
    (0xc028, "ECDHE-RSA-AES256-SHA384"),
    (0xc09c, "AES128-CCM"),
    (0xc09d, "AES256-CCM"),
    (0xc09e, "DHE-RSA-AES128-CCM"),
    (0xc09f, "DHE-RSA-AES256-CCM"),
    (0xc0a0, "AES128-CCM8"),
    (0xc0a1, "AES256-CCM8"),
    (0xc0a2, "DHE-RSA-AES128-CCM8"),
    (0xc0a3, "DHE-RSA-AES256-CCM8"),
    (0xc0ac, "ECDHE-ECDSA-AES128-CCM"),
    (0xc0ad, "ECDHE-ECDSA-AES256-CCM"),
    (0xc0ae, "ECDHE-ECDSA-AES128-CCM8"),
    (0xc0af, "ECDHE-ECDSA-AES256-CCM8"),
    (0xccaa, "DHE-RSA-CHACHA20-POLY1305"),
];

/// Returns the name of a suite that a client offers, or its number in hexadecimal if OpenSSL has no name for it.
pub fn names_of_offer(suite: CipherSuite) -> String {
    let number = u16::from(suite);
    let other = || OTHERS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    name_of(suite).or_else(other).map_or_else(|| format!("0x{number:04x}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        parse(text).iter().filter_map(|suite| name_of(suite.suite())).collect()
    }

    #[test]
    fn the_default_of_nginx_selects_all_suites() {
        assert_eq!(names("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(names("HIGH:!aNULL:!MD5")[0], "ECDHE-ECDSA-AES256-GCM-SHA384");
    }

    #[test]
    fn names_retain_their_order() {
        let text = "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256";
        assert_eq!(names(text), ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]);
    }

    #[test]
    fn cipher_operators_remove_exclude_and_reorder() {
        assert_eq!(
            names("ALL:!aECDSA:-AES128"),
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]
        );
        assert_eq!(names("ALL:!CHACHA20:CHACHA20").len(), 4);
        assert_eq!(names("ALL:-CHACHA20:CHACHA20").len(), 6);
        assert!(
            names("ALL:+AES256").ends_with(&["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"])
        );
    }

    #[test]
    fn plus_between_names_is_an_intersection() {
        assert_eq!(names("EECDH+ECDSA+AES128"), ["ECDHE-ECDSA-AES128-GCM-SHA256"]);
        assert_eq!(names("EECDH+AESGCM:EDH+AESGCM").len(), 4);
        assert_eq!(names("kRSA+AES"), Vec::<&str>::new());
    }

    #[test]
    fn strength_sorts_and_security_levels_are_ignored() {
        let sorted = names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:@STRENGTH");
        assert_eq!(sorted, ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(names("@SECLEVEL=1:ALL").len(), 6);
    }

    #[test]
    fn only_selected_suites_are_offered() {
        assert_eq!(names("AES256-SHA:RC4-SHA:nonsense"), Vec::<&str>::new());
        assert_eq!(names(""), Vec::<&str>::new());
        assert_eq!(names("!ALL:ALL"), Vec::<&str>::new());
    }

    #[test]
    fn tls_1_3_suites_have_a_separate_list() {
        let suites = parse_13("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256").unwrap();
        assert_eq!(name_of(suites[0].suite()), Some("TLS_AES_128_GCM_SHA256"));
        assert_eq!(suites.len(), 1);
        assert_eq!(parse_13("TLS_NONE").unwrap_err(), "TLS_NONE");
    }
}
