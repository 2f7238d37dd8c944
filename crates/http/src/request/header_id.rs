//! [`HeaderId`]: field names that the server itself acts on (RFC 9110).
//!
//! The parser looks each name up once, by length and first letter, so that later code asks for a number instead of
//! comparing strings. Names outside the list are [`HeaderId::Other`] and are found by text.

use crate::bytes::{find_name_end, name_eq_lower};

/// A field name the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HeaderId {
    /// `Host`
    Host,
    /// `Connection`
    Connection,
    /// `Content-Length`
    ContentLength,
    /// `Transfer-Encoding`
    TransferEncoding,
    /// `Range`
    Range,
    /// `If-Range`
    IfRange,
    /// `If-Match`
    IfMatch,
    /// `If-None-Match`
    IfNoneMatch,
    /// `If-Modified-Since`
    IfModifiedSince,
    /// `If-Unmodified-Since`
    IfUnmodifiedSince,
    /// `Expect`
    Expect,
    /// `User-Agent`
    UserAgent,
    /// `Referer`
    Referer,
    /// `Cookie`
    Cookie,
    /// `Accept-Encoding`
    AcceptEncoding,
    /// `Accept`
    Accept,
    /// `Accept-Language`
    AcceptLanguage,
    /// `Cache-Control`
    CacheControl,
    /// `Pragma`
    Pragma,
    /// `Upgrade`
    Upgrade,
    /// `Authorization`
    Authorization,
    /// `Proxy-Authorization`
    ProxyAuthorization,
    /// `Content-Type`
    ContentType,
    /// `Content-Range`
    ContentRange,
    /// `X-Forwarded-For`
    XForwardedFor,
    /// `X-Forwarded-Proto`
    XForwardedProto,
    /// `X-Real-IP`
    XRealIp,
    /// `Via`
    Via,
    /// `Keep-Alive`
    KeepAlive,
    /// `TE`
    Te,
    /// `Trailer`
    Trailer,
    /// `Origin`
    Origin,
    /// `Date`
    Date,
    /// `Destination` (WebDAV)
    Destination,
    /// `Depth` (WebDAV)
    Depth,
    /// `Overwrite` (WebDAV)
    Overwrite,
    /// Any other name.
    Other,
}

impl HeaderId {
    /// Number of known names, without [`HeaderId::Other`].
    pub const COUNT: usize = Self::Other as usize;

    /// The identifier of `name`, in any case of letters.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        if find_name_end(name, 0) == name.len() { Self::of_plain(name) } else { Self::Other }
    }

    /// The identifier of a name that is made of letters, digits and hyphens only, as all known ones are.
    pub(super) fn of_plain(name: &[u8]) -> Self {
        let Some(&first) = name.first() else { return Self::Other };
        let candidates: &[Self] = match (name.len(), first | 0x20) {
            (2, b't') => &[Self::Te],
            (3, b'v') => &[Self::Via],
            (4, b'h') => &[Self::Host],
            (4, b'd') => &[Self::Date],
            (5, b'r') => &[Self::Range],
            (5, b'd') => &[Self::Depth],
            (6, b'a') => &[Self::Accept],
            (6, b'c') => &[Self::Cookie],
            (6, b'e') => &[Self::Expect],
            (6, b'p') => &[Self::Pragma],
            (6, b'o') => &[Self::Origin],
            (7, b'r') => &[Self::Referer],
            (7, b'u') => &[Self::Upgrade],
            (7, b't') => &[Self::Trailer],
            (8, b'i') => &[Self::IfRange, Self::IfMatch],
            (9, b'x') => &[Self::XRealIp],
            (9, b'o') => &[Self::Overwrite],
            (10, b'c') => &[Self::Connection],
            (10, b'u') => &[Self::UserAgent],
            (10, b'k') => &[Self::KeepAlive],
            (11, b'd') => &[Self::Destination],
            (12, b'c') => &[Self::ContentType],
            (13, b'c') => &[Self::CacheControl, Self::ContentRange],
            (13, b'i') => &[Self::IfNoneMatch],
            (13, b'a') => &[Self::Authorization],
            (14, b'c') => &[Self::ContentLength],
            (15, b'a') => &[Self::AcceptEncoding, Self::AcceptLanguage],
            (15, b'x') => &[Self::XForwardedFor],
            (17, b't') => &[Self::TransferEncoding],
            (17, b'i') => &[Self::IfModifiedSince],
            (17, b'x') => &[Self::XForwardedProto],
            (19, b'i') => &[Self::IfUnmodifiedSince],
            (19, b'p') => &[Self::ProxyAuthorization],
            _ => &[],
        };
        let found = candidates.iter().find(|&&id| name_eq_lower(name, LOWER_NAMES[id as usize].as_bytes()));
        found.copied().unwrap_or(Self::Other)
    }

    /// The name in its usual spelling; empty for [`HeaderId::Other`].
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Whether a second field of this name makes the request invalid, as in nginx: which of the two a party
    /// behind us would believe is unknown.
    #[must_use]
    pub fn is_unique(self) -> bool {
        matches!(
            self,
            Self::Host
                | Self::ContentLength
                | Self::TransferEncoding
                | Self::IfRange
                | Self::IfMatch
                | Self::IfNoneMatch
                | Self::IfModifiedSince
                | Self::IfUnmodifiedSince
                | Self::Expect
                | Self::Authorization
                | Self::ContentRange
        )
    }
}

/// Names in the order of the enum.
const NAMES: [&str; HeaderId::COUNT + 1] = [
    "Host",
    "Connection",
    "Content-Length",
    "Transfer-Encoding",
    "Range",
    "If-Range",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "Expect",
    "User-Agent",
    "Referer",
    "Cookie",
    "Accept-Encoding",
    "Accept",
    "Accept-Language",
    "Cache-Control",
    "Pragma",
    "Upgrade",
    "Authorization",
    "Proxy-Authorization",
    "Content-Type",
    "Content-Range",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "Via",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Origin",
    "Date",
    "Destination",
    "Depth",
    "Overwrite",
    "",
];

/// The same names in lower case, for comparison.
const LOWER_NAMES: [&str; HeaderId::COUNT + 1] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "expect",
    "user-agent",
    "referer",
    "cookie",
    "accept-encoding",
    "accept",
    "accept-language",
    "cache-control",
    "pragma",
    "upgrade",
    "authorization",
    "proxy-authorization",
    "content-type",
    "content-range",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-real-ip",
    "via",
    "keep-alive",
    "te",
    "trailer",
    "origin",
    "date",
    "destination",
    "depth",
    "overwrite",
    "",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for (index, name) in NAMES.iter().enumerate().take(HeaderId::COUNT) {
            assert_eq!(LOWER_NAMES[index], name.to_ascii_lowercase());
            let id = HeaderId::of(name.as_bytes());
            assert_eq!(id as usize, index, "{name}");
            assert_eq!(HeaderId::of(name.to_ascii_lowercase().as_bytes()), id);
            assert_eq!(HeaderId::of(name.to_ascii_uppercase().as_bytes()), id);
            assert_eq!(HeaderId::of(format!("{name}x").as_bytes()), HeaderId::Other, "{name}x");
        }
    }

    #[test]
    fn look_alikes_are_other() {
        for name in ["", "Hos", "Content_Length", "Transfer-Encodinh", "X-Real_IP", "c", "\u{212a}eep-Alive"]
        {
            assert_eq!(HeaderId::of(name.as_bytes()), HeaderId::Other, "{name}");
        }
    }
}
