//! [`HeaderId`]: field names that the server handles itself (RFC 9110).
//!
//! The parser looks each name up once, by length and first letter; later code compares IDs instead of strings. Other names are
//! [`HeaderId::Other`] and are searched by text.

use crate::bytes::{find_name_end, name_eq_lower};

/// ID of a known field name.
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
    /// `Age`
    Age,
    /// `Expires`
    Expires,
    /// `Last-Modified`
    LastModified,
    /// `ETag`
    Etag,
    /// `Vary`
    Vary,
    /// `Set-Cookie`
    SetCookie,
    /// `Location`
    Location,
    /// `Content-Location`
    ContentLocation,
    /// `Content-Encoding`
    ContentEncoding,
    /// `Content-Disposition`
    ContentDisposition,
    /// `Accept-Ranges`
    AcceptRanges,
    /// `Server`
    Server,
    /// `Link`
    Link,
    /// `Refresh`
    Refresh,
    /// `Retry-After`
    RetryAfter,
    /// `WWW-Authenticate`
    WwwAuthenticate,
    /// `Proxy-Authenticate`
    ProxyAuthenticate,
    /// `Proxy-Authentication-Info`
    ProxyAuthenticationInfo,
    /// `Proxy-Connection`, which some old clients send instead of `Connection`
    ProxyConnection,
    /// `Cache-Status` (RFC 9211)
    CacheStatus,
    /// `CDN-Cache-Control` (RFC 9213)
    CdnCacheControl,
    /// `X-Accel-Expires` (nginx)
    XAccelExpires,
    /// `X-Accel-Redirect` (nginx)
    XAccelRedirect,
    /// `X-Accel-Buffering` (nginx)
    XAccelBuffering,
    /// `X-Accel-Limit-Rate` (nginx)
    XAccelLimitRate,
    /// `X-Accel-Charset` (nginx)
    XAccelCharset,
    /// Any other name.
    Other,
}

impl HeaderId {
    /// Number of known names, without [`HeaderId::Other`].
    pub const COUNT: usize = Self::Other as usize;

    /// Returns the ID of `name`, ignoring case.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        if find_name_end(name, 0) == name.len() { Self::of_plain(name) } else { Self::Other }
    }

    /// Returns the ID of a name that consists of letters, digits and hyphens only, as all known names do.
    pub(crate) fn of_plain(name: &[u8]) -> Self {
        let Some(&first) = name.first() else { return Self::Other };
        let candidates: &[Self] = match (name.len(), first | 0x20) {
            (2, b't') => &[Self::Te],
            (3, b'a') => &[Self::Age],
            (3, b'v') => &[Self::Via],
            (4, b'd') => &[Self::Date],
            (4, b'e') => &[Self::Etag],
            (4, b'h') => &[Self::Host],
            (4, b'l') => &[Self::Link],
            (4, b'v') => &[Self::Vary],
            (5, b'd') => &[Self::Depth],
            (5, b'r') => &[Self::Range],
            (6, b'a') => &[Self::Accept],
            (6, b'c') => &[Self::Cookie],
            (6, b'e') => &[Self::Expect],
            (6, b'o') => &[Self::Origin],
            (6, b'p') => &[Self::Pragma],
            (6, b's') => &[Self::Server],
            (7, b'e') => &[Self::Expires],
            (7, b'r') => &[Self::Referer, Self::Refresh],
            (7, b't') => &[Self::Trailer],
            (7, b'u') => &[Self::Upgrade],
            (8, b'i') => &[Self::IfRange, Self::IfMatch],
            (8, b'l') => &[Self::Location],
            (9, b'o') => &[Self::Overwrite],
            (9, b'x') => &[Self::XRealIp],
            (10, b'c') => &[Self::Connection],
            (10, b'k') => &[Self::KeepAlive],
            (10, b's') => &[Self::SetCookie],
            (10, b'u') => &[Self::UserAgent],
            (11, b'd') => &[Self::Destination],
            (11, b'r') => &[Self::RetryAfter],
            (12, b'c') => &[Self::ContentType, Self::CacheStatus],
            (13, b'a') => &[Self::Authorization, Self::AcceptRanges],
            (13, b'c') => &[Self::CacheControl, Self::ContentRange],
            (13, b'i') => &[Self::IfNoneMatch],
            (13, b'l') => &[Self::LastModified],
            (14, b'c') => &[Self::ContentLength],
            (15, b'a') => &[Self::AcceptEncoding, Self::AcceptLanguage],
            (15, b'x') => &[Self::XForwardedFor, Self::XAccelExpires, Self::XAccelCharset],
            (16, b'c') => &[Self::ContentLocation, Self::ContentEncoding],
            (16, b'p') => &[Self::ProxyConnection],
            (16, b'w') => &[Self::WwwAuthenticate],
            (16, b'x') => &[Self::XAccelRedirect],
            (17, b'c') => &[Self::CdnCacheControl],
            (17, b'i') => &[Self::IfModifiedSince],
            (17, b't') => &[Self::TransferEncoding],
            (17, b'x') => &[Self::XForwardedProto, Self::XAccelBuffering],
            (18, b'p') => &[Self::ProxyAuthenticate],
            (18, b'x') => &[Self::XAccelLimitRate],
            (19, b'c') => &[Self::ContentDisposition],
            (19, b'i') => &[Self::IfUnmodifiedSince],
            (19, b'p') => &[Self::ProxyAuthorization],
            (25, b'p') => &[Self::ProxyAuthenticationInfo],
            _ => &[],
        };
        let found = candidates.iter().find(|&&id| name_eq_lower(name, LOWER_NAMES[id as usize].as_bytes()));
        found.copied().unwrap_or(Self::Other)
    }

    /// Returns the name in its usual spelling; empty for [`HeaderId::Other`].
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Whether nginx uses the first field of this name from an upstream and drops repetitions with a warning. These fields have one
    /// value and do not affect the end of the body.
    #[must_use]
    pub fn is_first_only(self) -> bool {
        matches!(
            self,
            Self::ContentType
                | Self::Date
                | Self::Etag
                | Self::Expires
                | Self::LastModified
                | Self::Location
                | Self::Refresh
                | Self::Server
                | Self::XAccelExpires
                | Self::XAccelLimitRate
                | Self::XAccelRedirect
        )
    }

    /// Whether a repetition of this field makes the request invalid, as in nginx: upstreams might use either of the two values.
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
    "Age",
    "Expires",
    "Last-Modified",
    "ETag",
    "Vary",
    "Set-Cookie",
    "Location",
    "Content-Location",
    "Content-Encoding",
    "Content-Disposition",
    "Accept-Ranges",
    "Server",
    "Link",
    "Refresh",
    "Retry-After",
    "WWW-Authenticate",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "Proxy-Connection",
    "Cache-Status",
    "CDN-Cache-Control",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Buffering",
    "X-Accel-Limit-Rate",
    "X-Accel-Charset",
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
    "age",
    "expires",
    "last-modified",
    "etag",
    "vary",
    "set-cookie",
    "location",
    "content-location",
    "content-encoding",
    "content-disposition",
    "accept-ranges",
    "server",
    "link",
    "refresh",
    "retry-after",
    "www-authenticate",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "cache-status",
    "cdn-cache-control",
    "x-accel-expires",
    "x-accel-redirect",
    "x-accel-buffering",
    "x-accel-limit-rate",
    "x-accel-charset",
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
    fn similar_names_are_not_known_names() {
        for name in ["", "Hos", "Content_Length", "Transfer-Encodinh", "X-Real_IP", "c", "\u{212a}eep-Alive"]
        {
            assert_eq!(HeaderId::of(name.as_bytes()), HeaderId::Other, "{name}");
        }
    }
}
