//! Texts in OpenSSL's syntax in crate `tls`: cipher strings, lists of suites and groups, commands.

use tls::commands::Commands;
use tls::server::Versions;
use tls::{ciphers, groups};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "tls_texts",
    run,
    tokens: &[
        "HIGH",
        "ALL",
        "DEFAULT",
        "!aNULL",
        "!MD5",
        ":",
        "+",
        "-",
        "!",
        "@STRENGTH",
        "@SECLEVEL=1",
        "ECDHE",
        "EECDH",
        "aRSA",
        "AESGCM",
        "AES128",
        "CHACHA20",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_AES_128_GCM_SHA256",
        "X25519",
        "P-256",
        "secp384r1",
        "auto",
        "?",
        "*",
        "MinProtocol",
        "MaxProtocol",
        "Protocol",
        "TLSv1.2",
        "TLSv1.3",
        "ALL,-",
        "Options",
        "ServerPreference",
        "-SessionTicket",
        "Groups",
        "Ciphersuites",
        "CipherString",
        " ",
    ],
};

/// Checks that the result has no suite twice, that a permanently removed suite is absent, that parsing the names of the
/// result yields the same result, and that commands add no version.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let left = ciphers::parse(text);
    let names: Vec<&str> = left.iter().filter_map(|suite| ciphers::name_of(suite.suite())).collect();
    assert_eq!(names.len(), left.len());
    for (index, name) in names.iter().enumerate() {
        assert!(!names[..index].contains(name), "{text}: {name} twice");
    }
    assert_eq!(ciphers::parse(&names.join(":")), left, "{text}");
    assert!(ciphers::parse(&format!("!ALL:{text}")).is_empty(), "{text}");
    assert!(ciphers::parse(&format!("{text}:!ALL")).is_empty(), "{text}");
    if let Ok(suites) = ciphers::parse_13(text) {
        assert!(suites.len() <= text.len());
    }
    if let Ok(groups) = groups::parse(text) {
        assert!(groups.supported.len() + groups.unsupported.len() <= text.len().max(4));
    }
    let (name, value) = text.split_once(' ').unwrap_or((text, ""));
    let mut commands = Commands::default();
    let taken = commands.apply(name, value);
    for tls12 in [false, true] {
        for tls13 in [false, true] {
            let versions = commands.versions(Versions { tls12, tls13 });
            assert!(versions.tls12 <= tls12 && versions.tls13 <= tls13, "{text}");
        }
    }
    // An accepted command is accepted again, with the same effect.
    let again = commands.apply(name, value);
    assert_eq!(taken, again, "{text}");
}
