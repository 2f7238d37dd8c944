//! Certificates of `ringroad serve --tls NAME`: an authority issues them by ACME, and validates the names on the port
//! of the server.
//!
//! The challenge type is tls-alpn-01, which needs no other port. The account and the certificates are stored for later
//! starts, in a directory that the agent can access. The agent runs as the workers' user, which cannot access root's
//! home directory.

use std::path::{Path, PathBuf};

use acme::url::Url;

use super::quoted;
use crate::paths::make_passage;

/// Directory URL of Let's Encrypt.
pub(super) const DEFAULT_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Directory in which root stores persistent state of services (file-hierarchy(7)).
const STATE_OF_ROOT: &str = "/var/lib";

/// Subdirectory of the data directory.
const STATE: &str = "ringroad-acme";

/// The parsed options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Public {
    /// Names, at least one.
    pub(super) names: Vec<String>,
    /// URL of the authority's directory.
    pub(super) directory: String,
}

impl Public {
    /// Parses names separated by commas, and the URL of an authority. Returns `None` if a name or the URL is invalid.
    pub(super) fn parse(names: &str, directory: Option<&str>) -> Option<Public> {
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        // An authority cannot validate a name without a dot.
        let is_name = |name: &str| name.contains('.') && name.split('.').all(is_label);
        let names: Vec<String> = names.split(',').map(str::to_ascii_lowercase).collect();
        let directory = directory.unwrap_or(DEFAULT_DIRECTORY);
        Url::parse(directory)?;
        names.iter().all(|name| is_name(name)).then(|| Public { names, directory: directory.to_owned() })
    }

    /// Returns the directory of the account and the certificates; creates its parent directory.
    pub(super) fn state(&self) -> Result<PathBuf, std::io::Error> {
        let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let is_root = rustix::process::geteuid().is_root();
        let own = || Some(named("HOME")?.join(".local/share"));
        let data =
            named("XDG_DATA_HOME").or_else(|| if is_root { Some(STATE_OF_ROOT.into()) } else { own() });
        let data = data.ok_or(std::io::ErrorKind::NotFound)?.join(STATE);
        make_passage(&data)?;
        // An account is valid for one CA only, so each CA has a separate directory.
        let host =
            Url::parse(&self.directory).map_or_else(String::new, |url| format!("{}-{}", url.host, url.port));
        Ok(data.join(host.replace(['/', ':'], "_")))
    }

    /// Returns the directives of the authority, for the block `http`.
    pub(super) fn issuer(&self, state: &Path) -> String {
        format!(
            "acme_issuer public {{
        uri {};
        state_path {};
        challenge tls-alpn-01;
        accept_terms_of_service;
    }}",
            quoted(Path::new(&self.directory)),
            quoted(state)
        )
    }

    /// Returns the directives of the server.
    pub(super) fn server(&self) -> String {
        format!(
            "server_name {};
        acme_certificate public;
        ssl_certificate $acme_certificate;
        ssl_certificate_key $acme_certificate_key;
        http2 on;",
            self.names.join(" ")
        )
    }

    /// Returns the text for the operator of a server with this port; 0 is one that the kernel selects.
    pub(super) fn advice(&self, state: &Path, port: u16) -> String {
        let (names, directory) = (self.names.join(", "), &self.directory);
        let (state, one) = (state.display(), &self.names[0]);
        // The port of https is not part of the URL.
        let port = if matches!(port, 0 | 443) { String::new() } else { format!(":{port}") };
        format!(
            "The certificate for {names} is issued by
  {directory}
whose terms of service you accept by this command. The names must resolve to this machine, and port 443 must reach this
server. The account and the certificate are stored in
  {state}
The site is at https://{one}{port}/ as soon as the log reports that the certificate was obtained.
"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_a_directory_are_checked() {
        let names = |text: &str| Public::parse(text, None).map(|public| public.names);
        assert_eq!(names("Example.org"), Some(vec!["example.org".to_owned()]));
        assert_eq!(names("a.b,c.d").map(|names| names.len()), Some(2));
        for text in ["", "site", "a.b,", "a..b", "a.b; x", "*.a.b", "a.b/"] {
            assert_eq!(names(text), None, "{text}");
        }
        assert_eq!(Public::parse("a.b", Some("http://a/")), None);
        let public = Public::parse("a.b", Some("https://a.example/\"x")).expect("a URL");
        let advice = |port| public.advice(Path::new("/s"), port);
        assert!(advice(443).contains("at https://a.b/ as soon"), "{}", advice(443));
        assert!(advice(9443).contains("at https://a.b:9443/ as soon"), "{}", advice(9443));
        assert!(public.issuer(Path::new("/s")).contains("uri \"https://a.example/\\\"x\";"));
    }
}
