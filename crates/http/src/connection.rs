//! Keep-alive (RFC 9112 section 9), `Expect` (RFC 9110 section 10.1.1), and the browsers that nginx handles specially.

use crate::bytes::trim_ows;
use crate::fields::{HeaderId, Version};
use crate::request::Head;
use crate::response::parse::ParsedResponse;

/// Whether the client requests keep-alive: the default of its HTTP version, unless `Connection` overrides it. `close` wins over
/// `keep-alive` if both are present.
#[must_use]
pub fn requests_keep_alive(head: &Head, buf: &[u8]) -> bool {
    let mut keep = head.version() == Version::Http11;
    for value in head.all(buf, HeaderId::Connection) {
        if has_token(value, b"close") {
            return false;
        }
        keep |= has_token(value, b"keep-alive");
    }
    keep
}

/// Whether the upstream's connection can be reused after this response, provided that the end of the connection does not delimit
/// its body. As in nginx, a connection of HTTP/1.0 is never reused, even with `keep-alive`: RFC 9112 section 9.3 permits reuse, and
/// its appendix C.2.2 explains why proxies should not do it.
#[must_use]
pub fn response_keeps_alive(head: &ParsedResponse, buf: &[u8]) -> bool {
    head.version() == Version::Http11
        && head.status().code() != 101
        && !head.all(buf, HeaderId::Connection).any(|value| has_token(value, b"close"))
}

/// Whether the comma-separated list `value` contains `token`, ignoring case.
#[must_use]
pub fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|item| trim_ows(item).eq_ignore_ascii_case(token))
}

/// Returns the value of `Upgrade`, if `Connection` has the option `upgrade`.
#[must_use]
pub fn upgrade<'a>(head: &Head, buf: &'a [u8]) -> Option<&'a [u8]> {
    let asked = head.all(buf, HeaderId::Connection).any(|value| has_token(value, b"upgrade"));
    if asked && head.version() == Version::Http11 { head.get(buf, HeaderId::Upgrade) } else { None }
}

/// The client's `Expect`: a condition for sending its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No expectation, or HTTP/1.0, where the field has no meaning.
    Nothing,
    /// The client expects an interim `100 Continue` before it sends the body.
    Continue,
    /// An unknown expectation. nginx ignores it; the RFC would allow 417.
    Unknown,
}

/// Parses `Expect`.
#[must_use]
pub fn expect(head: &Head, buf: &[u8]) -> Expect {
    match head.get(buf, HeaderId::Expect) {
        Some(_) if head.version() == Version::Http10 => Expect::Nothing,
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Expect::Continue,
        Some(_) => Expect::Unknown,
        None => Expect::Nothing,
    }
}

/// The interim response to [`Expect::Continue`], as nginx writes it.
pub const CONTINUE_RESPONSE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Browsers of `keepalive_disable`, `msie_padding` and `msie_refresh`, recognised by `User-Agent` with nginx's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Browser {
    /// Internet Explorer, unless it is Opera with Internet Explorer's name.
    pub msie: bool,
    /// Internet Explorer 4 to 6, without Service Pack 2 of Windows XP (`SV1`).
    pub msie6: bool,
    /// Safari on macOS or iOS.
    pub safari: bool,
    /// Chrome and browsers based on it.
    pub chrome: bool,
}

/// Every Internet Explorer has this text in `User-Agent`, followed by its version.
const MSIE: &[u8] = b"MSIE ";

impl Browser {
    /// Reads the value of `User-Agent`.
    #[must_use]
    pub fn detect(user_agent: &[u8]) -> Self {
        let find = |needle: &[u8]| memchr::memmem::find(user_agent, needle);
        let has = |needle| find(needle).is_some();
        let mut browser = Self::default();
        if let Some(at) = find(MSIE) {
            browser.msie = true;
            let version = &user_agent[at + MSIE.len()..];
            browser.msie6 = match version {
                [b'4' | b'5', b'.', ..] => true,
                [b'6', b'.', ..] => !has(b"SV1"),
                _ => false,
            };
        }
        if has(b"Opera") {
            (browser.msie, browser.msie6) = (false, false);
        }
        if !browser.msie {
            browser.chrome = !has(b"Gecko/") && has(b"Chrome/");
            browser.safari = !has(b"Gecko/") && !browser.chrome && has(b"Safari/") && has(b"Mac OS X");
        }
        browser
    }

    /// Returns the value of [`Browser::msie6`]. For other clients, this function costs a single search.
    #[must_use]
    pub fn is_msie6(user_agent: &[u8]) -> bool {
        memchr::memmem::find(user_agent, MSIE).is_some() && Self::detect(user_agent).msie6
    }

    /// Whether nginx pads short error pages for this browser.
    #[must_use]
    pub fn needs_padding(self) -> bool {
        self.msie || self.chrome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Policy, Progress, parse};
    use crate::response;

    fn head(text: &str) -> (Head, Vec<u8>) {
        let mut head = Head::new();
        let done = parse(&mut head, text.as_bytes(), &Policy::default()).expect(text);
        assert!(matches!(done, Progress::Complete { .. }), "{text}");
        (head, text.as_bytes().to_vec())
    }

    #[test]
    fn keep_alive_depends_on_version_and_tokens() {
        for (version, field, wanted) in [
            ("1.1", "", true),
            ("1.0", "", false),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: Close\r\n", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
            ("1.1", "Connection: te ,\t close \r\n", false),
            ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
            ("1.1", "Connection: close\r\nConnection: keep-alive\r\n", false),
            ("1.1", "Connection: closed\r\n", true),
            ("1.0", "Connection: not-keep-alive\r\n", false),
        ] {
            let (head, buf) = head(&format!("GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n"));
            assert_eq!(requests_keep_alive(&head, &buf), wanted, "{version} {field:?}");
        }
    }

    #[test]
    fn upstream_keep_alive_depends_on_version_and_tokens() {
        for (line, field, wanted) in [
            ("1.1 200 OK", "", true),
            ("1.1 200 OK", "Connection: keep-alive\r\n", true),
            ("1.1 200 OK", "Connection: Close\r\n", false),
            ("1.1 200 OK", "Connection: a\r\nConnection: b, close\r\n", false),
            ("1.1 200 OK", "Connection: not-close\r\n", true),
            ("1.0 200 OK", "", false),
            ("1.0 200 OK", "Connection: keep-alive\r\n", false),
            ("1.1 101 Switching Protocols", "Connection: upgrade\r\n", false),
        ] {
            let text = format!("HTTP/{line}\r\n{field}\r\n");
            let mut head = ParsedResponse::new();
            response::parse::parse(&mut head, text.as_bytes(), &response::parse::Limits::default())
                .expect(line);
            assert_eq!(response_keeps_alive(&head, text.as_bytes()), wanted, "{line} {field:?}");
        }
    }

    #[test]
    fn expectations_are_parsed() {
        for (version, value, wanted) in [
            ("1.1", "100-continue", Expect::Continue),
            ("1.1", "100-Continue", Expect::Continue),
            ("1.0", "100-continue", Expect::Nothing),
            ("1.1", "200-ok", Expect::Unknown),
        ] {
            let (head, buf) = head(&format!("GET / HTTP/{version}\r\nHost: a\r\nExpect: {value}\r\n\r\n"));
            assert_eq!(expect(&head, &buf), wanted, "{version} {value}");
        }
    }

    #[test]
    fn upgrade_needs_both_fields() {
        let (both, buf) =
            head("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(upgrade(&both, &buf), Some(&b"websocket"[..]));
        let (one, buf) = head("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(upgrade(&one, &buf), None);
    }

    #[test]
    fn old_browsers_are_recognised() {
        let old = Browser::detect(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)");
        assert!(old.msie && old.msie6 && old.needs_padding());
        let patched = Browser::detect(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)");
        assert!(patched.msie && !patched.msie6);
        let opera = Browser::detect(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; en) Opera 8.50");
        assert_eq!(opera, Browser::default());
        for (agent, expected) in
            [("MSIE 6.0; ", true), ("MSIE 6.0; SV1", false), ("MSIE 7.0", false), ("curl/8", false)]
        {
            assert_eq!(Browser::is_msie6(agent.as_bytes()), expected, "{agent}");
        }
        assert!(!Browser::is_msie6(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; en) Opera 8.50"));
        let chrome = Browser::detect(
            b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
        );
        assert!(chrome.chrome && !chrome.safari && chrome.needs_padding());
        let firefox =
            Browser::detect(b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0");
        assert_eq!(firefox, Browser::default());
    }
}
