//! Commands of OpenSSL's configuration (`ssl_conf_command`, `proxy_ssl_conf_command`; SSL_CONF_cmd(3)), as far as they
//! apply to this server.
//!
//! Main type: [`Commands`], the settings of the commands, which replace those of directives. A command that cannot be
//! implemented is an error, because a configuration that contains a command relies on its effect.

use crate::ciphers;
use crate::groups;
use crate::server::Versions;

/// Settings of the commands, which replace the settings of directives. Of several equal commands the last is used.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `CipherString`
    pub ciphers: Option<String>,
    /// `Ciphersuites`
    pub suites_13: Option<Vec<crate::Suite>>,
    /// `Groups`, `Curves`
    pub groups: Option<String>,
    /// `MinProtocol`: whether it excludes TLS 1.2
    without_12: Option<bool>,
    /// `MaxProtocol`: whether it excludes TLS 1.3
    without_13: Option<bool>,
    /// `Options ServerPreference`
    pub prefers_own_ciphers: Option<bool>,
    /// `Options PrioritizeChaCha`
    pub prioritizes_chacha: bool,
    /// `Options -SessionTicket`
    pub without_tickets: bool,
}

/// The result of an accepted command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obeyed {
    /// The command has its effect.
    Yes,
    /// The command only affects performance, and has no effect here for this reason.
    WithoutEffect(&'static str),
}

/// The message of a refused command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names of the supported commands, for the error message of an unsupported command.
const NAMES: &str =
    "CipherString, Ciphersuites, Curves, Groups, MinProtocol, MaxProtocol, Protocol and Options";

/// A flag of `Options`: its name, and its meaning when the flag is on and when it is off.
type Flag = (&'static str, Meaning, Meaning);

#[derive(Clone, Copy)]
enum Meaning {
    /// This server always behaves as the flag requests.
    So,
    /// This server cannot behave as the flag requests, for this reason.
    Never(&'static str),
    /// The flag changes a setting.
    Set(fn(&mut Commands)),
    /// The flag only affects performance, and has no effect here for this reason.
    Speed(&'static str),
}

use Meaning::{Never, Set, So, Speed};

const FLAGS: &[Flag] = &[
    ("SessionTicket", So, Set(|it| it.without_tickets = true)),
    (
        "ServerPreference",
        Set(|it| it.prefers_own_ciphers = Some(true)),
        Set(|it| it.prefers_own_ciphers = Some(false)),
    ),
    ("PrioritizeChaCha", Set(|it| it.prioritizes_chacha = true), Set(|it| it.prioritizes_chacha = false)),
    ("NoRenegotiation", So, Never("renegotiation is not implemented")),
    ("NoResumptionOnRenegotiation", So, So),
    ("ClientRenegotiation", Never("renegotiation is not implemented"), So),
    ("UnsafeLegacyRenegotiation", Never("renegotiation is not implemented"), So),
    ("Compression", Never("compression of records is not implemented"), So),
    // This server has no suites with CBC, and no key exchange without ephemeral keys.
    ("EncryptThenMac", So, So),
    ("EmptyFragments", So, So),
    ("Bugs", So, So),
    ("DHSingle", So, So),
    ("ECDHSingle", So, So),
    ("AllowNoDHEKEX", Never("each resumption performs a new key exchange"), So),
    ("PreferNoDHEKEX", Never("each resumption performs a new key exchange"), So),
    ("AntiReplay", So, Never("early data is always protected from replay")),
    ("MiddleboxCompat", So, Never("it cannot be disabled")),
    ("ExtendedMasterSecret", So, Never("it cannot be disabled")),
    ("KTLS", Speed("records are encrypted by this server, not by the kernel"), So),
    ("KTLSTxZerocopySendfile", Speed("records are encrypted by this server, not by the kernel"), So),
    ("StrictCertCheck", So, So),
];

impl Commands {
    /// Returns the combined settings of these commands; each command is a name and a value.
    pub fn of(commands: &[(String, String)]) -> Result<Commands, Refused> {
        let mut all = Commands::default();
        for (name, value) in commands {
            all.apply(name, value)?;
        }
        Ok(all)
    }

    /// Applies a command.
    pub fn apply(&mut self, name: &str, value: &str) -> Result<Obeyed, Refused> {
        let refused =
            |reason: &str| Refused(format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed: {reason}"));
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("CipherString") {
            self.ciphers = Some(value.to_owned());
        } else if is("Ciphersuites") {
            let suites = ciphers::parse_13(value);
            let suites = suites.map_err(|name| refused(&format!("\"{name}\" is not a suite of TLS 1.3")))?;
            self.suites_13 = Some(suites);
        } else if is("Curves") || is("Groups") {
            let groups =
                groups::parse(value).map_err(|name| refused(&format!("unknown curve name \"{name}\"")))?;
            if groups.supported.is_empty() {
                return Err(refused("none of these curves is supported"));
            }
            self.groups = Some(value.to_owned());
        } else if is("MinProtocol") {
            self.without_12 = Some(match value {
                "TLSv1.3" => true,
                "TLSv1.2" | "TLSv1.1" | "TLSv1" | "SSLv3" | "None" => false,
                _ => return Err(refused("the versions are TLSv1.2, TLSv1.3 and None")),
            });
        } else if is("MaxProtocol") {
            self.without_13 = Some(match value {
                "TLSv1.2" => true,
                "TLSv1.3" | "None" => false,
                "TLSv1.1" | "TLSv1" | "SSLv3" => return Err(refused("versions below 1.2 are not supported")),
                _ => return Err(refused("the versions are TLSv1.2, TLSv1.3 and None")),
            });
        } else if is("Protocol") {
            self.take_protocols(value)
                .map_err(|version| refused(&format!("unknown version \"{version}\"")))?;
        } else if is("Options") {
            return self.apply_options(value).map_err(|reason| refused(&reason));
        } else {
            return Err(refused(&format!("the supported commands are {NAMES}")));
        }
        Ok(Obeyed::Yes)
    }

    /// Applies a value of `Protocol` such as `ALL,-TLSv1.2`, which turns versions on and off in order.
    fn take_protocols(&mut self, value: &str) -> Result<(), String> {
        for item in value.split(',').filter(|item| !item.is_empty()) {
            let (is_off, version) = match item.strip_prefix('-') {
                Some(version) => (true, version),
                None => (false, item.strip_prefix('+').unwrap_or(item)),
            };
            match version {
                "ALL" => (self.without_12, self.without_13) = (Some(is_off), Some(is_off)),
                "TLSv1.2" => self.without_12 = Some(is_off),
                "TLSv1.3" => self.without_13 = Some(is_off),
                "TLSv1.1" | "TLSv1" | "SSLv3" | "SSLv2" => {}
                _ => return Err(version.to_owned()),
            }
        }
        Ok(())
    }

    fn apply_options(&mut self, value: &str) -> Result<Obeyed, String> {
        let mut obeyed = Obeyed::Yes;
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (is_off, name) = match item.strip_prefix('-') {
                Some(name) => (true, name),
                None => (false, item.strip_prefix('+').unwrap_or(item)),
            };
            let flag = FLAGS.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(name));
            let (_, on, off) = flag.ok_or_else(|| format!("option \"{name}\" is not supported"))?;
            match if is_off { off } else { on } {
                So => {}
                Set(set) => set(self),
                Speed(reason) => obeyed = Obeyed::WithoutEffect(reason),
                Never(reason) => return Err(format!("option \"{item}\" is not supported, {reason}")),
            }
        }
        Ok(obeyed)
    }

    /// Returns the versions of the directive, restricted by the commands.
    pub fn versions(&self, directive: Versions) -> Versions {
        Versions {
            tls12: self.without_12.map_or(directive.tls12, |without| directive.tls12 && !without),
            tls13: self.without_13.map_or(directive.tls13, |without| directive.tls13 && !without),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Versions = Versions { tls12: true, tls13: true };

    fn taken(commands: &[(&str, &str)]) -> Commands {
        let mut taken = Commands::default();
        for (name, value) in commands {
            taken.apply(name, value).unwrap();
        }
        taken
    }

    #[test]
    fn versions_are_restricted() {
        for (commands, tls12, tls13) in [
            (&[("MinProtocol", "TLSv1.3")][..], false, true),
            (&[("minprotocol", "TLSv1.1"), ("MaxProtocol", "TLSv1.2")], true, false),
            (&[("Protocol", "-ALL,TLSv1.2")], true, false),
            (&[("Protocol", "ALL,-TLSv1.2")], false, true),
            (&[("MinProtocol", "TLSv1.3"), ("MinProtocol", "None")], true, true),
        ] {
            assert_eq!(taken(commands).versions(BOTH), Versions { tls12, tls13 }, "{commands:?}");
        }
        let only_12 = Versions { tls12: true, tls13: false };
        assert_eq!(taken(&[("Protocol", "ALL")]).versions(only_12), only_12, "a command adds no version");
    }

    #[test]
    fn options_are_applied_or_refused() {
        let taken = taken(&[("Options", "ServerPreference,PrioritizeChaCha,-SessionTicket,NoRenegotiation")]);
        assert!(taken.prioritizes_chacha && taken.without_tickets);
        assert_eq!(taken.prefers_own_ciphers, Some(true));
        let mut commands = Commands::default();
        assert!(matches!(commands.apply("Options", "KTLS"), Ok(Obeyed::WithoutEffect(_))));
        for (name, value, reason) in [
            ("Options", "Compression", "compression of records is not implemented"),
            ("Options", "-AntiReplay", "always protected"),
            ("Options", "Nonsense", "option \"Nonsense\" is not supported"),
            ("RecordPadding", "16", "the supported commands are"),
            ("MaxProtocol", "TLSv1.1", "below 1.2"),
            ("MinProtocol", "TLSv9", "the versions are"),
            ("Groups", "P-521", "none of these curves is supported"),
            ("Groups", "P-1", "unknown curve name \"P-1\""),
            ("Ciphersuites", "TLS_NONE", "\"TLS_NONE\" is not a suite"),
        ] {
            let refused = Commands::default().apply(name, value).unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed: ")),
                "{refused}"
            );
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
