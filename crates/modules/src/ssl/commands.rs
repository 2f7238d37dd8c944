//! `ssl_conf_command` and its siblings for upstreams: commands of OpenSSL's configuration that have a meaning here.

use ::tls::ciphers;
use ::tls::server::Versions;

/// What commands put in the place of other directives.
pub(crate) struct Chosen {
    /// Suites of TLS 1.3.
    pub(crate) suites_13: Vec<::tls::Suite>,
    /// Groups of the key exchange, where a command names them.
    pub(crate) groups: Option<String>,
    /// Versions of the protocol.
    pub(crate) versions: Versions,
    /// Whether the order of suites is that of this side.
    pub(crate) prefers_own_ciphers: bool,
}

impl Chosen {
    /// Carries out commands in their order.
    pub(crate) fn of(versions: Versions, commands: &[(String, String)]) -> Result<Chosen, String> {
        let mut chosen =
            Chosen { suites_13: ciphers::all_13(), groups: None, versions, prefers_own_ciphers: false };
        for (name, value) in commands {
            chosen.take(name, value)?;
        }
        Ok(chosen)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        let refused = || format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed");
        match name {
            "Ciphersuites" => self.suites_13 = ciphers::parse_13(value).map_err(|_| refused())?,
            "Curves" | "Groups" => self.groups = Some(value.to_owned()),
            "MinProtocol" => match value {
                "TLSv1.3" => self.versions.tls12 = false,
                "TLSv1.2" | "TLSv1.1" | "TLSv1" | "SSLv3" | "None" => {}
                _ => return Err(refused()),
            },
            "MaxProtocol" => match value {
                "TLSv1.2" => self.versions.tls13 = false,
                "TLSv1.3" | "None" => {}
                _ => return Err(refused()),
            },
            "Options" => {
                for option in value.split(',') {
                    match option.trim_start_matches('-') {
                        "ServerPreference" => self.prefers_own_ciphers = !option.starts_with('-'),
                        // Nothing of what these turn off or on exists here.
                        "PrioritizeChaCha"
                        | "SessionTicket"
                        | "NoRenegotiation"
                        | "NoResumptionOnRenegotiation"
                        | "EncryptThenMac"
                        | "Compression"
                        | "EmptyFragments"
                        | "AntiReplay"
                        // Records are encrypted by this process, whoever asks the kernel to.
                        | "KTLS" => {}
                        _ => return Err(refused()),
                    }
                }
            }
            _ => {
                return Err(format!(
                    "{}: the commands are Ciphersuites, Curves, Groups, MinProtocol, MaxProtocol and Options",
                    refused()
                ));
            }
        }
        Ok(())
    }
}
