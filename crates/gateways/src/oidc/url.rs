//! URLs of a provider: in the configuration, and in the metadata, which the provider sends.

use peers::address::Url;

/// Maximum length of a URL in bytes.
const URL_LEN_MAX: usize = 2048;

/// A URL with the scheme `http` or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderUrl {
    /// The URL as written.
    pub(super) text: String,
    /// Whether the scheme is `https`.
    pub(super) is_secure: bool,
    /// Host and port as written.
    pub(super) authority: String,
    /// The server: a name or an address, and the port.
    pub(super) address: Url,
    /// Path and query.
    pub(super) target: String,
}

impl ProviderUrl {
    /// Parses a URL. It has no user name, no fragment, and only characters that a URL may have.
    pub(super) fn parse(text: &str) -> Result<ProviderUrl, &'static str> {
        let after = |scheme: &str| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (is_secure, rest) = match (after("https://"), after("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err("no \"https://\""),
        };
        if text.len() > URL_LEN_MAX {
            return Err("too many characters");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\\<>\"".contains(&byte)) {
            return Err("an invalid character");
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if !authority.bytes().all(is_host) {
            return Err("an invalid host");
        }
        let port = if is_secure { 443 } else { 80 };
        let address = Url::parse(authority, port).map_err(|_| "an invalid host or port")?;
        if address.host.is_empty() || authority.starts_with("unix:") {
            return Err("an invalid host");
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(ProviderUrl {
            text: text.to_owned(),
            is_secure,
            authority: authority.to_owned(),
            address,
            target: format!("{slash}{target}"),
        })
    }

    /// Returns the URL with these arguments added to its query.
    pub(super) fn with_args(&self, args: &str) -> String {
        let separator = match self.text.split_once('?') {
            None => "?",
            Some((_, query)) if query.is_empty() || query.ends_with('&') => "",
            Some(_) => "&",
        };
        format!("{}{separator}{args}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        for (text, authority, port, target) in [
            ("https://a.example", "a.example", 443, "/"),
            ("HTTPS://a.example/x/y?z=1", "a.example", 443, "/x/y?z=1"),
            ("http://[::1]:81?q", "[::1]:81", 81, "/?q"),
            ("http://127.0.0.1:5556/dex", "127.0.0.1:5556", 5556, "/dex"),
        ] {
            let url = ProviderUrl::parse(text).expect(text);
            assert_eq!(
                (url.authority.as_str(), url.address.port, url.target.as_str()),
                (authority, port, target)
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let long = format!("https://a.example/{}", "x".repeat(URL_LEN_MAX));
        for text in [
            "",
            "a.example",
            "ftp://a.example",
            "https://",
            "https:///x",
            "https://user@a.example",
            "https://a.example@b.example/",
            "https://a.example:0/",
            "https://a.example:x/",
            "https://a.example/#x",
            "https://a.example/\r\nX: y",
            "https://a.example/ x",
            "https://a.example\\@b.example",
            "https://a\u{e9}.example/",
            "http://unix:/run/x",
            &long,
        ] {
            assert!(ProviderUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_are_added() {
        let with = |text: &str| ProviderUrl::parse(text).expect(text).with_args("a=b");
        assert_eq!(with("https://x"), "https://x?a=b");
        assert_eq!(with("https://x/?"), "https://x/?a=b");
        assert_eq!(with("https://x/?c=d"), "https://x/?c=d&a=b");
    }
}
