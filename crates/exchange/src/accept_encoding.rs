//! Determines the content codings that a client accepts (RFC 9110 section 12.5.3), with the parsing rules of nginx and
//! its modules.
//!
//! An asterisk matches no coding here. nginx ignores it too, and clients that accept gzip name it.

use http::date::parse_http;
use http::fields::{HeaderId, Version};

use crate::request::Request;
use site::settings::gzip_clients::Proxied;

/// Whether the response to `request` may be compressed with gzip. This depends on the request's `Accept-Encoding`, HTTP
/// version and `User-Agent`, and for proxied requests on the caching fields of the response.
pub fn gzip(request: &Request) -> bool {
    if request.depth > 0 {
        return false;
    }
    // Only the first field of this name counts, as in nginx.
    let Some(accepted) = request.header(HeaderId::AcceptEncoding) else { return false };
    if !has_gzip(accepted) {
        return false;
    }
    let conf = &request.scope().core.responding.gzip_clients;
    let agent = request.header(HeaderId::UserAgent);
    if conf.disable_msie6 && agent.is_some_and(http::connection::Browser::is_msie6) {
        return false;
    }
    if !conf.http_10 && request.head.version() == Version::Http10 {
        return false;
    }
    // The proxy may cache the response and serve it to clients that do not accept gzip.
    if request.header(HeaderId::Via).is_some() && !for_proxy(request, conf.proxied) {
        return false;
    }
    !agent.is_some_and(|agent| conf.disable.items().iter().any(|pattern| pattern.is_match(agent)))
}

/// Whether the client accepts the content coding `name`, for codings other than gzip: as in nginx's modules for them, only
/// `Accept-Encoding` counts. A quality of zero refuses the coding.
pub fn coding(request: &Request, name: &str) -> bool {
    request.depth == 0
        && request
            .header(HeaderId::AcceptEncoding)
            .is_some_and(|accepted| has_coding(accepted, name.as_bytes()))
}

/// Whether the client gives the coding `name` more weight than the coding `other` (RFC 9110 section 12.4.2). Most clients give
/// no weights, and all codings have the same.
pub fn outweighs(request: &Request, name: &str, other: &str) -> bool {
    let accepted = request.header(HeaderId::AcceptEncoding).filter(|accepted| accepted.contains(&b';'));
    accepted.is_some_and(|accepted| weight(accepted, name) > weight(accepted, other))
}

/// Returns the weight of a coding in thousandths; 0 if it is not named.
fn weight(accepted: &[u8], name: &str) -> u16 {
    for member in accepted.split(|&byte| byte == b',') {
        let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        if !parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case(name.as_bytes())) {
            continue;
        }
        let quality = parts.find_map(|part| match part {
            [b'q' | b'Q', rest @ ..] => {
                rest.trim_ascii_start().strip_prefix(b"=").map(<[u8]>::trim_ascii_start)
            }
            _ => None,
        });
        return quality.map_or(WEIGHT_MAX, thousandths);
    }
    0
}

/// The weight without a `q` parameter.
const WEIGHT_MAX: u16 = 1000;

/// Parses `0.25` to 250. An invalid weight counts like none.
fn thousandths(text: &[u8]) -> u16 {
    match text {
        [b'0'] => 0,
        [b'0', b'.', digits @ ..] if digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) => {
            let padded = digits.iter().map(|digit| u16::from(digit - b'0')).chain([0; 3]);
            padded.take(3).fold(0, |sum, digit| sum * 10 + digit)
        }
        _ => WEIGHT_MAX,
    }
}

/// Checks `gzip_proxied`: whether the response to a proxied request may be compressed, because the proxy will not cache
/// it for other clients.
fn for_proxy(request: &Request, allowed: Proxied) -> bool {
    if allowed.has(Proxied::OFF) {
        return false;
    }
    if allowed.has(Proxied::ANY) {
        return true;
    }
    if allowed.has(Proxied::AUTH) && request.header(HeaderId::Authorization).is_some() {
        return true;
    }
    // `Expires` takes precedence over `Cache-Control`.
    let response = &request.response;
    if let Some(expires) = response.field(b"Expires") {
        let now = telemetry::time_zone::since_1970(rt::wall()).0;
        return allowed.has(Proxied::EXPIRED) && parse_http(expires).is_some_and(|expires| expires < now);
    }
    if response.field(b"Cache-Control").is_some() {
        let named =
            [(Proxied::NO_CACHE, "no-cache"), (Proxied::NO_STORE, "no-store"), (Proxied::PRIVATE, "private")];
        let fields = response.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Cache-Control"));
        let values: Vec<&[u8]> = fields.map(|(_, value)| value).collect();
        let says = |token: &str| values.iter().any(|value| has_token(value, token.as_bytes()));
        return named.iter().any(|&(bit, token)| allowed.has(bit) && says(token));
    }
    !(allowed.has(Proxied::NO_LAST_MODIFIED) && response.last_modified.is_some()
        || allowed.has(Proxied::NO_ETAG) && response.etag.is_some())
}

/// Whether a comma-separated list contains this token without a value.
fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|members| {
        // Only the text after the last semicolon of a member is compared, so a token followed by a semicolon does not
        // match.
        let last = members.rsplit(|&byte| byte == b';').next().unwrap_or_default();
        last.trim_ascii().eq_ignore_ascii_case(token)
    })
}

/// Searches for gzip exactly as nginx does, including its quirks, so that both servers choose the same response. The
/// first occurrence at the start of a member counts, with its quality.
fn has_gzip(accepted: &[u8]) -> bool {
    let mut start = 0;
    let behind = loop {
        let Some(index) = find(&accepted[start..], b"gzip") else { return false };
        let index = start + index;
        if index == start || matches!(accepted[index - 1], b',' | b' ') {
            break &accepted[index + 4..];
        }
        start = index + 4;
    };
    let behind = skip_spaces(behind);
    match behind.split_first() {
        None | Some((b',', _)) => true,
        Some((b';', parameter)) => has_quality(skip_spaces(parameter)),
        Some(_) => false,
    }
}

/// Whether a quality accepts: `q=0.001` to `q=1.000`, or an empty parameter.
fn has_quality(parameter: &[u8]) -> bool {
    let value = match parameter {
        [] => return true,
        [b'q' | b'Q', b'=', value @ ..] if !value.is_empty() => value,
        _ => return false,
    };
    let end = value.iter().position(|byte| matches!(byte, b',' | b' ')).unwrap_or(value.len());
    match &value[..end] {
        [b'0'] => false,
        [b'1'] => true,
        [whole @ (b'0' | b'1'), b'.', digits @ ..] => {
            let is_number = digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit);
            let some = digits.iter().any(|&digit| digit != b'0');
            is_number && (*whole == b'1') != some
        }
        _ => false,
    }
}

/// Searches as the nginx modules for brotli and zstd do. Any member of this name counts, and the first match decides by
/// its quality. Any quality other than zero accepts.
fn has_coding(accepted: &[u8], name: &[u8]) -> bool {
    let mut start = 0;
    while let Some(index) = find(&accepted[start..], name) {
        let index = start + index;
        start = index + name.len();
        let begins = index == 0 || matches!(accepted[index - 1], b',' | b' ');
        let ends = matches!(accepted.get(start), None | Some(b',' | b' ' | b';'));
        if begins && ends {
            return !is_refused(&accepted[start..]);
        }
    }
    false
}

/// Whether the text after the name is `;q=0`, `;q=0.0` and so on. Spaces are allowed anywhere.
fn is_refused(behind: &[u8]) -> bool {
    let mut rest = behind;
    for wanted in [b";", b"q", b"=", b"0"] {
        match skip_spaces(rest).strip_prefix(wanted) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    let Some(digits) = rest.strip_prefix(b".") else { return true };
    let digits = digits.iter().take(3).take_while(|digit| digit.is_ascii_digit());
    digits.copied().all(|digit| digit == b'0')
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|&&byte| byte == b' ').count()..]
}

/// Returns the offset of the first case-insensitive match of `name`, which is lower case.
fn find(text: &[u8], name: &[u8]) -> Option<usize> {
    text.windows(name.len()).position(|window| window.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_parsed_as_in_nginx() {
        for accepted in [
            "gzip",
            "GZIP",
            "gzip, deflate",
            "deflate, gzip",
            "deflate,gzip;q=1",
            "gzip;q=0.001",
            "gzip; q=0.5, x",
            "gzip ;Q=1.000",
            "gzip;q=1.",
            "gzip;",
            "gzip; ",
            "br, gzip;q=0.2",
            "xgzipgzip",
            "gzip ,x",
        ] {
            assert!(has_gzip(accepted.as_bytes()), "{accepted}");
        }
        for accepted in [
            "",
            "gzi",
            "*",
            "deflate",
            "gzip;q=0",
            "gzip;q=0.000",
            "gzip;q=0.",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=",
            "gzip;q",
            "gzip;q = 1",
            "gzip;x=1",
            "gzipx",
            "xgzip",
            "gzip/2",
            "gzip;q=0.5x",
        ] {
            assert!(!has_gzip(accepted.as_bytes()), "{accepted}");
        }
    }

    #[test]
    fn other_codings_are_refused_by_a_quality_of_zero() {
        for accepted in
            ["br", "gzip, br", "BR;q=0.5", "br ;q=1", "xbr, br", "br;q=0.001", "br;x=0", "br;q=x", "abr,br"]
        {
            assert!(has_coding(accepted.as_bytes(), b"br"), "{accepted}");
        }
        for accepted in [
            "",
            "b",
            "*",
            "brx",
            "xbr",
            "br;q=0",
            "br; q=0.",
            "br;q=0.0",
            "br ; q = 0.000, gzip",
            "br;q=0.0009",
        ] {
            assert!(!has_coding(accepted.as_bytes(), b"br"), "{accepted}");
        }
        assert!(has_coding(b"gzip, deflate, br, zstd", b"zstd") && !has_coding(b"zst", b"zstd"));
    }

    #[test]
    fn weights_are_parsed() {
        for (accepted, gzip, br) in [
            ("br;q=0.1, gzip;q=1", 1000, 100),
            ("gzip, br", 1000, 1000),
            ("gzip;q=0.25;x=1,BR ; Q = 0.001", 250, 1),
            ("gzip;q=0, br;q=x", 0, 1000),
            ("gzip;q=0., xbr;q=1", 0, 0),
            ("gzip;x=1;q=0.5, br;q=0.1234", 500, 1000),
        ] {
            let found = (weight(accepted.as_bytes(), "gzip"), weight(accepted.as_bytes(), "br"));
            assert_eq!(found, (gzip, br), "{accepted}");
        }
    }

    #[test]
    fn tokens_of_cache_control_are_separate_words() {
        for list in ["no-cache", "a, no-cache", "NO-CACHE ,x", "max-age=0; no-cache"] {
            assert!(has_token(list.as_bytes(), b"no-cache"), "{list}");
        }
        for list in ["", "no-cache=\"x\"", "no-cachex", "x no-cache", "no-cache;x"] {
            assert!(!has_token(list.as_bytes(), b"no-cache"), "{list}");
        }
    }
}
