//! Records how the cache handled a request, for `$upstream_cache_*`, `Cache-Status` and the log.
//!
//! Each decision about the request is recorded; the record is published once, with the response.

use std::fmt;
use std::sync::Arc;

use ::cache::{Key, Meta};
use http::cache_status::{CacheStatus, Forwarded, Source};
use http::freshness::store::NotStored;
use http::vary::VaryError;

use exchange::request::Request;
use upstream::state::{self, Cached, Tries};

/// `$upstream_cache_status`, with nginx's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No entry was found.
    Miss,
    /// The configuration disabled the lookup.
    Bypass,
    /// The entry was stale, and the response is new.
    Expired,
    /// The entry was stale and was used.
    Stale,
    /// The entry was stale and was used while a new response is being fetched.
    Updating,
    /// The entry was stale, and the upstream confirmed it.
    Revalidated,
    /// The response was stored, or was being stored for another request.
    Hit,
}

impl Status {
    /// Returns the value of the variable.
    pub fn name(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

/// Reason why a response was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstored {
    /// Its header fields, or missing header fields (RFC 9111).
    Rules(NotStored),
    /// `proxy_no_cache`.
    Configured,
    /// `proxy_cache_min_uses`.
    TooFewUses,
    /// Its `X-Accel-Redirect`.
    Redirect,
    /// It is passed on unbuffered (`proxy_buffering off`, `X-Accel-Buffering: no`).
    Unbuffered,
    /// Its `Vary`.
    Vary(VaryError),
    /// A stale response was better and was used instead.
    Worse,
    /// The store refused it.
    Refused(cache::Refused),
}

impl fmt::Display for Unstored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Programs parse the names, so they contain no spaces.
            Unstored::Rules(reason) => write!(f, "{reason:?}"),
            Unstored::Configured => f.write_str("NoCacheConfigured"),
            Unstored::TooFewUses => f.write_str("TooFewUses"),
            Unstored::Redirect => f.write_str("AccelRedirect"),
            Unstored::Unbuffered => f.write_str("Unbuffered"),
            Unstored::Vary(reason) => write!(f, "Vary{reason:?}"),
            Unstored::Worse => f.write_str("StaleIsBetter"),
            Unstored::Refused(reason) => write!(f, "cache-{reason}"),
        }
    }
}

impl Unstored {
    /// Whether the response may not be stored, however long it is fresh.
    pub fn is_prohibition(self) -> bool {
        match self {
            Unstored::Rules(reason) => !matches!(reason, NotStored::NoLifetime | NotStored::Expired),
            Unstored::Vary(_) | Unstored::Redirect | Unstored::Unbuffered | Unstored::Configured => true,
            Unstored::TooFewUses | Unstored::Worse | Unstored::Refused(_) => false,
        }
    }

    /// Whether the response to another request may be stored.
    pub fn is_of_request(self) -> bool {
        matches!(self, Unstored::Rules(NotStored::Authorization) | Unstored::Configured)
    }
}

/// The record of a request.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The cache status of the response to the client.
    pub status: Option<Status>,
    /// The reason for the request to the upstream, if any.
    pub forwarded: Option<Forwarded>,
    /// The upstream's status.
    pub forwarded_status: Option<u16>,
    /// Whether the request waited for the response to another request.
    pub collapsed: bool,
    /// Whether the request to the upstream failed, so that a stale response was used.
    pub has_failed: bool,
    /// Whether the response is being stored.
    pub stored: bool,
    /// Reason why it is not stored.
    pub unstored: Option<Unstored>,
    /// Whether `proxy_no_cache` forbids storing the upstream's response.
    pub is_unwanted: bool,
    /// Seconds since the response was stored (`$upstream_cache_age`).
    pub stored_for_s: Option<u64>,
    /// Remaining freshness lifetime in seconds; negative for a stale response.
    pub ttl_s: Option<i64>,
    /// The metadata of the stored response.
    pub found: Option<Arc<Meta>>,
    /// The text of the key.
    pub key: Vec<u8>,
    /// Whether the body is sent from the file of an entry, instead of being read by the store.
    pub is_sent_from_file: bool,
    /// Number that identifies the cache whose counters count the request.
    pub tallies: Option<u64>,
}

/// Publishes the cache result: in variables, and in `Cache-Status` if the configuration has a name for this cache.
pub fn publish(request: &mut Request, status_name: Option<&[u8]>) {
    let Some(record) = request.extensions.get::<Record>() else { return };
    let Some(status) = record.status else { return };
    if request.is_traced() {
        record.trace(request, status);
    }
    let cached = Cached { status: status.name(), age_s: record.stored_for_s };
    if let Some(name) = status_name {
        let mut value = Vec::new();
        record.cache_status(name, status).push(&mut value);
        request.response.fields.push(b"Cache-Status", &value);
    }
    Tries::of(request).cached = Some(cached);
}

impl Record {
    /// Writes a debug message about the result. The text of the key may contain a cookie, so only its MD5 is written.
    #[cold]
    fn trace(&self, request: &Request, status: Status) {
        let (status, key) = (status.name(), Key::of(&self.key));
        match (self.stored, self.unstored) {
            (true, _) => request.trace(format_args!("cache: {status}, the response is stored, key {key:?}")),
            (_, Some(why)) => request.trace(format_args!("cache: {status}, not stored: {why}, key {key:?}")),
            _ => request.trace(format_args!("cache: {status}, key {key:?}")),
        }
    }

    /// Returns the status for a response of the upstream: it depends on whether the lookup found an entry.
    pub fn had(&self) -> Status {
        match self.forwarded {
            Some(Forwarded::Stale | Forwarded::Request) => Status::Expired,
            _ => Status::Miss,
        }
    }

    /// Converts the record for `Cache-Status` (RFC 9211).
    fn cache_status<'a>(&'a self, name: &'a [u8], status: Status) -> CacheStatus<'a> {
        let source = match status {
            Status::Hit if !self.collapsed => Source::Hit,
            Status::Stale | Status::Updating if self.forwarded_status.is_none() && !self.has_failed => {
                Source::Hit
            }
            // Without a request to the upstream (`only-if-cached`) nothing is reported.
            _ => self.forwarded.map_or(Source::Unreported, Source::Forwarded),
        };
        CacheStatus {
            forwarded_status: self.forwarded_status,
            ttl: self.ttl_s,
            stored: self.stored,
            collapsed: self.collapsed.then_some(true),
            key: Some(&self.key),
            ..CacheStatus::new(name, source)
        }
    }
}

/// Returns the metadata of the stored response, after the record was published.
fn published_meta(request: &Request) -> Option<&Meta> {
    if state::cache_status_text(request).is_empty() {
        return None;
    }
    request.extensions.get::<Record>()?.found.as_deref()
}

/// `$upstream_cache_etag`
pub fn cache_etag(request: &Request, out: &mut Vec<u8>) -> bool {
    let etag = published_meta(request).map(|meta| &meta.etag).filter(|etag| !etag.is_empty());
    etag.map(|etag| out.extend_from_slice(etag)).is_some()
}

/// `$upstream_cache_last_modified`
pub fn cache_last_modified(request: &Request, out: &mut Vec<u8>) -> bool {
    let date = published_meta(request).and_then(|meta| meta.last_modified);
    date.map(|date| out.extend_from_slice(&http::date::http(date))).is_some()
}

/// Returns the record of a request, mutable.
pub fn record_of(request: &mut Request) -> &mut Record {
    request.extensions.get_or_default()
}
