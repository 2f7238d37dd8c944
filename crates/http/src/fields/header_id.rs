//! [`HeaderId`]: field names that the server handles itself (RFC 9110).
//!
//! The parser looks each name up once, by a hash of its length and of two letters; later code compares IDs instead of strings.
//! Other names are [`HeaderId::Other`] and are searched by text.

use crate::bytes::name_eq_lower;

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
        let (Some(&first), Some(&last)) = (name.first(), name.last()) else { return Self::Other };
        let id = BY_HASH[hash(name.len(), first, last)];
        if name_eq_lower(name, LOWER_NAMES[id as usize].as_bytes()) { id } else { Self::Other }
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

/// Returns the index in [`BY_HASH`] of a name with this length, first and last byte. Each known name has another index.
const fn hash(len: usize, first: u8, last: u8) -> usize {
    let (first, last) = ((first | 0x20) as usize, (last | 0x20) as usize);
    (len * 32 + first * 2 + last * 23) % 256
}

/// The known names by their hash.
const BY_HASH: [HeaderId; 256] = {
    let mut table = [HeaderId::Other; 256];
    let mut index = 0;
    while index < HeaderId::COUNT {
        let (name, id) = (LOWER_NAMES[index].as_bytes(), IDS[index]);
        let at = hash(name.len(), name[0], name[name.len() - 1]);
        assert!(matches!(table[at], HeaderId::Other) && id as usize == index, "no two names have one hash");
        table[at] = id;
        index += 1;
    }
    table
};

/// The IDs of the known names in the order of the enum.
const IDS: [HeaderId; HeaderId::COUNT] = [
    HeaderId::Host,
    HeaderId::Connection,
    HeaderId::ContentLength,
    HeaderId::TransferEncoding,
    HeaderId::Range,
    HeaderId::IfRange,
    HeaderId::IfMatch,
    HeaderId::IfNoneMatch,
    HeaderId::IfModifiedSince,
    HeaderId::IfUnmodifiedSince,
    HeaderId::Expect,
    HeaderId::UserAgent,
    HeaderId::Referer,
    HeaderId::Cookie,
    HeaderId::AcceptEncoding,
    HeaderId::Accept,
    HeaderId::AcceptLanguage,
    HeaderId::CacheControl,
    HeaderId::Pragma,
    HeaderId::Upgrade,
    HeaderId::Authorization,
    HeaderId::ProxyAuthorization,
    HeaderId::ContentType,
    HeaderId::ContentRange,
    HeaderId::XForwardedFor,
    HeaderId::XForwardedProto,
    HeaderId::XRealIp,
    HeaderId::Via,
    HeaderId::KeepAlive,
    HeaderId::Te,
    HeaderId::Trailer,
    HeaderId::Origin,
    HeaderId::Date,
    HeaderId::Destination,
    HeaderId::Depth,
    HeaderId::Overwrite,
    HeaderId::Age,
    HeaderId::Expires,
    HeaderId::LastModified,
    HeaderId::Etag,
    HeaderId::Vary,
    HeaderId::SetCookie,
    HeaderId::Location,
    HeaderId::ContentLocation,
    HeaderId::ContentEncoding,
    HeaderId::ContentDisposition,
    HeaderId::AcceptRanges,
    HeaderId::Server,
    HeaderId::Link,
    HeaderId::Refresh,
    HeaderId::RetryAfter,
    HeaderId::WwwAuthenticate,
    HeaderId::ProxyAuthenticate,
    HeaderId::ProxyAuthenticationInfo,
    HeaderId::ProxyConnection,
    HeaderId::CacheStatus,
    HeaderId::CdnCacheControl,
    HeaderId::XAccelExpires,
    HeaderId::XAccelRedirect,
    HeaderId::XAccelBuffering,
    HeaderId::XAccelLimitRate,
    HeaderId::XAccelCharset,
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
        for name in [
            "",
            "Hos",
            "Content_Length",
            "Transfer-Encodinh",
            "X-Real_IP",
            "c",
            "\u{212a}eep-Alive",
            "Content\rLength",
        ] {
            assert_eq!(HeaderId::of(name.as_bytes()), HeaderId::Other, "{name}");
        }
    }
}
