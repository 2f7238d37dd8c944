//! URLs and links of CAs, as far as ACME needs them (RFC 3986, RFC 8288). This module makes no I/O.

/// An https URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host name or address; an IPv6 address has no brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query.
    pub target: String,
    /// Host and port as written in the URL.
    pub authority: String,
}

impl Url {
    /// Parses a URL. Returns `None` if the text is not an https URL.
    pub fn parse(text: &str) -> Option<Url> {
        let scheme = text.get(..8)?;
        if !scheme.eq_ignore_ascii_case("https://") || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let rest = &text[8..];
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                (host, port.strip_prefix(':').or((port.is_empty()).then_some(""))?)
            }
            None => authority.split_once(':').unwrap_or((authority, "")),
        };
        let port = if port.is_empty() { 443 } else { port.parse().ok()? };
        if host.is_empty() || host.contains('@') {
            return None;
        }
        Some(Url { host: host.to_owned(), port, target, authority: authority.to_owned() })
    }

    /// Resolves a reference relative to this URL (RFC 3986 section 5.2), as far as CAs use references.
    pub fn joined(&self, reference: &str) -> String {
        match reference {
            _ if reference.contains("://") => reference.to_owned(),
            _ if reference.starts_with("//") => format!("https:{reference}"),
            _ if reference.starts_with('/') => format!("https://{}{reference}", self.authority),
            _ => {
                let path = self.target.split('?').next().unwrap_or_default();
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                format!("https://{}{directory}/{reference}", self.authority)
            }
        }
    }
}

/// Returns the target of a `Link` field with the relation `alternate` (RFC 8288).
pub fn alternate(link: &str) -> Option<&str> {
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let mut parameters = parameters.split(';').map(str::trim);
    let is_alternate = parameters.any(|parameter| matches!(parameter, "rel=alternate" | "rel=\"alternate\""));
    is_alternate.then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_host_port_and_target() {
        let parts = |text: &str| Url::parse(text).map(|url| (url.host.clone(), url.port, url.target.clone()));
        let expected = |host: &str, port, target: &str| Some((host.to_owned(), port, target.to_owned()));
        assert_eq!(parts("https://a.example/dir?x=1#y"), expected("a.example", 443, "/dir?x=1"));
        assert_eq!(parts("HTTPS://a.example:14000"), expected("a.example", 14000, "/"));
        assert_eq!(parts("https://[::1]:81/a"), expected("::1", 81, "/a"));
        assert_eq!(parts("https://[::1]"), expected("::1", 443, "/"));
        for text in [
            "",
            "http://a/",
            "https://",
            "https:///a",
            "https://a:b/",
            "https://a b/",
            "https://u@a/",
            "https://[::1",
        ] {
            assert_eq!(parts(text), None, "{text}");
        }
    }

    #[test]
    fn references_are_resolved() {
        let base = Url::parse("https://a:1/b/c?d").expect("a URL");
        assert_eq!(base.joined("https://x/y"), "https://x/y");
        assert_eq!(base.joined("//x/y"), "https://x/y");
        assert_eq!(base.joined("/y"), "https://a:1/y");
        assert_eq!(base.joined("y"), "https://a:1/b/y");
    }

    #[test]
    fn links_to_other_chains_are_found() {
        assert_eq!(alternate("<https://a/1>;rel=\"alternate\""), Some("https://a/1"));
        assert_eq!(alternate("</1>; title=x; rel=alternate"), Some("/1"));
        for link in ["<https://a/1>;rel=\"index\"", "https://a/1", "<https://a/1", ""] {
            assert_eq!(alternate(link), None, "{link}");
        }
    }
}
