//! Writes `Cache-Status` (RFC 9211): how this cache handled a request.
//!
//! [`CacheStatus`] is one member of the list. The members of caches nearer to the origin precede it, in separate field lines.

use crate::bytes::push_decimal;
use crate::structured::{push_string, push_token_or_string};

/// Why a request went to the origin (RFC 9211 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// The cache was bypassed: `proxy_cache_bypass`.
    Bypass,
    /// The method is not cached.
    Method,
    /// The cache has no entry for the key.
    UriMiss,
    /// The cache has entries for the key, but no variant for this request.
    VaryMiss,
    /// The cache could not use a stored response; the reason is not reported.
    Miss,
    /// The request's own directives forbade the use of the stored response.
    Request,
    /// The stored response was stale.
    Stale,
    /// Only a part of the requested range was stored.
    Partial,
}

impl Forwarded {
    /// Returns the token.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// Source of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the cache, without a request to the origin.
    Hit,
    /// From the origin: this request, or a coalesced one, was forwarded.
    Forwarded(Forwarded),
    /// Not reported.
    Unreported,
}

/// One member of `Cache-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// Name of the cache: a host name, or another name that its operator recognises.
    pub name: &'a [u8],
    /// `hit` or `fwd`.
    pub source: Source,
    /// `fwd-status`: the status of the origin. Set only if the request went there.
    pub forwarded_status: Option<u16>,
    /// `ttl`: remaining freshness lifetime in seconds; negative for a stale response.
    pub ttl: Option<i64>,
    /// `stored`: whether the response was stored. Set only if the request went to the origin.
    pub stored: bool,
    /// `collapsed`: whether the request waited for the response to another request. Set only if the request went to the origin.
    pub collapsed: Option<bool>,
    /// `key`: the key of the lookup.
    pub key: Option<&'a [u8]>,
    /// `detail`: additional information.
    pub detail: Option<&'a [u8]>,
}

/// Maximum length of the key in the field, in bytes; a longer key is truncated. A key may contain a complete URI with its
/// arguments, and some clients refuse fields of that length.
pub const KEY_LEN_MAX: usize = 1024;

impl<'a> CacheStatus<'a> {
    /// Creates a member that has only the source of the response.
    #[must_use]
    pub fn new(name: &'a [u8], source: Source) -> Self {
        Self {
            name,
            source,
            forwarded_status: None,
            ttl: None,
            stored: false,
            collapsed: None,
            key: None,
            detail: None,
        }
    }

    /// Appends the field value.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_token_or_string(out, self.name);
        match self.source {
            Source::Hit => out.extend_from_slice(b"; hit"),
            Source::Forwarded(why) => {
                out.extend_from_slice(b"; fwd=");
                out.extend_from_slice(why.name().as_bytes());
                self.push_forwarded(out);
            }
            Source::Unreported => {}
        }
        if let Some(ttl) = self.ttl {
            out.extend_from_slice(if ttl < 0 { b"; ttl=-" } else { b"; ttl=" });
            push_decimal(out, ttl.unsigned_abs().min(INTEGER_MAX));
        }
        if let Some(key) = self.key {
            out.extend_from_slice(b"; key=");
            push_string(out, &key[..key.len().min(KEY_LEN_MAX)]);
        }
        if let Some(detail) = self.detail {
            out.extend_from_slice(b"; detail=");
            push_token_or_string(out, detail);
        }
    }

    fn push_forwarded(&self, out: &mut Vec<u8>) {
        if let Some(status) = self.forwarded_status {
            out.extend_from_slice(b"; fwd-status=");
            push_decimal(out, u64::from(status));
        }
        if self.stored {
            out.extend_from_slice(b"; stored");
        }
        match self.collapsed {
            Some(true) => out.extend_from_slice(b"; collapsed"),
            Some(false) => out.extend_from_slice(b"; collapsed=?0"),
            None => {}
        }
    }
}

/// Largest integer of a structured field (RFC 8941 section 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structured::Dictionary;
    use proptest::prelude::*;

    fn written(status: &CacheStatus<'_>) -> String {
        let mut out = Vec::new();
        status.push(&mut out);
        String::from_utf8(out).expect("printable")
    }

    #[test]
    fn members_of_cache_status_are_written() {
        let hit = CacheStatus::new(b"ringroad", Source::Hit);
        let forwarded = |why| CacheStatus::new(b"cdn.example.com", Source::Forwarded(why));
        for (status, wanted) in [
            (hit, "ringroad; hit"),
            (CacheStatus { ttl: Some(376), ..hit }, "ringroad; hit; ttl=376"),
            (CacheStatus { ttl: Some(-412), ..hit }, "ringroad; hit; ttl=-412"),
            (CacheStatus { ttl: Some(i64::MIN), ..hit }, "ringroad; hit; ttl=-999999999999999"),
            (
                CacheStatus { stored: true, forwarded_status: Some(200), collapsed: Some(true), ..hit },
                "ringroad; hit",
            ),
            (CacheStatus { detail: Some(b"ram"), ..hit }, "ringroad; hit; detail=ram"),
            (CacheStatus { detail: Some(b"two words"), ..hit }, "ringroad; hit; detail=\"two words\""),
            (CacheStatus::new(b"my cache", Source::Unreported), "\"my cache\""),
            (
                CacheStatus { stored: true, ttl: Some(0), ..forwarded(Forwarded::UriMiss) },
                "cdn.example.com; fwd=uri-miss; stored; ttl=0",
            ),
            (
                CacheStatus {
                    forwarded_status: Some(304),
                    collapsed: Some(false),
                    key: Some(b"http://a/\"b\"\xff"),
                    ..forwarded(Forwarded::Stale)
                },
                "cdn.example.com; fwd=stale; fwd-status=304; collapsed=?0; key=\"http://a/\\\"b\\\"%FF\"",
            ),
            (
                CacheStatus { collapsed: Some(true), ..forwarded(Forwarded::VaryMiss) },
                "cdn.example.com; fwd=vary-miss; collapsed",
            ),
        ] {
            assert_eq!(written(&status), wanted);
        }
    }

    #[test]
    fn every_reason_is_a_token_of_the_rfc() {
        use Forwarded as F;
        let all = [F::Bypass, F::Method, F::UriMiss, F::VaryMiss, F::Miss, F::Request, F::Stale, F::Partial];
        let names = ["bypass", "method", "uri-miss", "vary-miss", "miss", "request", "stale", "partial"];
        assert_eq!(all.map(F::name), names);
    }

    #[test]
    fn long_keys_are_truncated() {
        let key = vec![b'k'; 5000];
        let status = CacheStatus { key: Some(&key), ..CacheStatus::new(b"r", Source::Hit) };
        assert_eq!(written(&status).len(), "r; hit; key=\"\"".len() + KEY_LEN_MAX);
    }

    proptest! {
        /// The value is one valid item for any bytes of name, key and detail. The test parses it as the value of a dictionary
        /// member.
        #[test]
        fn the_value_is_always_a_valid_item(
            name in proptest::collection::vec(any::<u8>(), 0..10),
            key in proptest::collection::vec(any::<u8>(), 0..40),
            detail in proptest::collection::vec(any::<u8>(), 0..40),
            ttl: i64,
        ) {
            let status = CacheStatus {
                key: Some(&key),
                detail: Some(&detail),
                ttl: Some(ttl),
                ..CacheStatus::new(&name, Source::Forwarded(Forwarded::Miss))
            };
            let item = format!("a={}", written(&status));
            let dictionary = Dictionary::parse(item.as_bytes());
            prop_assert_eq!(dictionary.map(|found| found.members().count()), Some(1), "{}", item);
        }
    }
}
