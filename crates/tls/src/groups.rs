//! Groups of the key exchange, with OpenSSL's names (`ssl_ecdh_curve`).

use rustls::NamedGroup;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group;

/// Supported groups with the names that OpenSSL accepts. OpenSSL shows the first name.
static GROUPS: [(&dyn SupportedKxGroup, &[&str]); 4] = [
    (kx_group::X25519MLKEM768, &["X25519MLKEM768"]),
    (kx_group::X25519, &["X25519"]),
    (kx_group::SECP256R1, &["prime256v1", "P-256", "secp256r1"]),
    (kx_group::SECP384R1, &["secp384r1", "P-384"]),
];

/// Groups that OpenSSL supports and this server does not.
const UNSUPPORTED: [&str; 12] = [
    "secp521r1",
    "P-521",
    "X448",
    "SecP256r1MLKEM768",
    "SecP384r1MLKEM1024",
    "ffdhe2048",
    "ffdhe3072",
    "ffdhe4096",
    "brainpoolP256r1",
    "brainpoolP384r1",
    "brainpoolP512r1",
    "secp256k1",
];

/// The groups of a list, and the known names in it that are not supported.
#[derive(Debug)]
pub struct Groups {
    /// The supported groups, in order of preference.
    pub supported: Vec<&'static dyn SupportedKxGroup>,
    /// Names of groups that were ignored because they are not supported.
    pub unsupported: Vec<String>,
}

/// Returns the groups of nginx's `auto`.
pub fn auto() -> Vec<&'static dyn SupportedKxGroup> {
    GROUPS.iter().map(|(group, _)| *group).collect()
}

/// Parses a list such as `X25519:P-256`. The error is the unknown name.
pub fn parse(list: &str) -> Result<Groups, String> {
    if list == "auto" {
        return Ok(Groups { supported: auto(), unsupported: Vec::new() });
    }
    let mut groups = Groups { supported: Vec::new(), unsupported: Vec::new() };
    for name in list.split(':') {
        // OpenSSL ignores an unknown group with the prefix `?`. The prefix `*` marks a group for which a key share is
        // sent.
        let (optional, name) = match name.trim_start_matches('*').strip_prefix('?') {
            Some(name) => (true, name.trim_start_matches('*')),
            None => (false, name.trim_start_matches('*')),
        };
        let is_it = |known: &&str| known.eq_ignore_ascii_case(name);
        if let Some((group, _)) = GROUPS.iter().find(|(_, names)| names.iter().any(&is_it)) {
            groups.supported.push(*group);
        } else if UNSUPPORTED.iter().any(&is_it) {
            groups.unsupported.push(name.to_owned());
        } else if !optional {
            return Err(name.to_owned());
        }
    }
    Ok(groups)
}

/// Returns OpenSSL's name of a supported group.
pub fn name_of(group: NamedGroup) -> Option<&'static str> {
    GROUPS.iter().find(|(known, _)| known.name() == group).map(|(_, names)| names[0])
}

/// OpenSSL's names of groups that a client may offer and this server does not support, with their numbers (RFC 8446
/// section 4.2.7).
const OTHERS: [(u16, &str); 14] = [
    (0x0016, "secp256k1"),
    (0x0019, "secp521r1"),
    (0x001a, "brainpoolP256r1"),
    (0x001b, "brainpoolP384r1"),
    (0x001c, "brainpoolP512r1"),
    (0x001e, "X448"),
    (0x001f, "brainpoolP256r1tls13"),
    (0x0020, "brainpoolP384r1tls13"),
    (0x0021, "brainpoolP512r1tls13"),
    (0x0100, "ffdhe2048"),
    (0x0101, "ffdhe3072"),
    (0x0102, "ffdhe4096"),
    (0x0103, "ffdhe6144"),
    (0x0104, "ffdhe8192"),
];

/// Returns the name of a group that a client offers, or its number in hexadecimal if OpenSSL has no name for it.
pub fn name_of_offer(group: NamedGroup) -> String {
    let number = u16::from(group);
    let other = || OTHERS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    name_of(group).or_else(other).map_or_else(|| format!("0x{number:04x}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        parse(list).unwrap().supported.iter().filter_map(|group| name_of(group.name())).collect()
    }

    #[test]
    fn lists_select_groups_in_order() {
        assert_eq!(names("auto"), ["X25519MLKEM768", "X25519", "prime256v1", "secp384r1"]);
        assert_eq!(names("secp384r1:prime256v1"), ["secp384r1", "prime256v1"]);
        assert_eq!(names("p-256:x25519"), ["prime256v1", "X25519"]);
        assert_eq!(names("?nonesuch:*X25519"), ["X25519"]);
    }

    #[test]
    fn unsupported_groups_are_reported() {
        let groups = parse("X25519:P-521").unwrap();
        assert_eq!((groups.supported.len(), groups.unsupported), (1, vec!["P-521".to_owned()]));
        assert_eq!(parse("X25519:P-257").unwrap_err(), "P-257");
    }
}
