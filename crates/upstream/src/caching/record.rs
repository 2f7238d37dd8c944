//! How the cache handled a request, for `$upstream_cache_*`, `Cache-Status` and the log.
//!
//! Each decision for the request is recorded in it, and it is shown once, with the response.

use std::fmt;
use std::sync::Arc;

use ::cache::Meta;
use http::cache_status::{CacheStatus, Forwarded, Source};
use http::freshness::store::NotStored;
use http::vary::VaryError;

use crate::caching::settings::CacheConf;
use crate::state::{Cached, Tries};
use exchange::request::Request;

/// `$upstream_cache_status`, in nginx's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing was stored.
    Miss,
    /// The configuration said not to look.
    Bypass,
    /// The stored response was stale, and the response is new.
    Expired,
    /// The stored response was stale, and was used.
    Stale,
    /// The same while a new one is being fetched.
    Updating,
    /// The stored response was stale, and the upstream has confirmed it.
    Revalidated,
    /// It was stored, or was on its way into the cache for another request.
    Hit,
}

impl Status {
    /// The word.
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

/// Why a response was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstored {
    /// By its header fields, or the lack of them (RFC 9111).
    Rules(NotStored),
    /// By `proxy_no_cache`.
    Configured,
    /// By `proxy_cache_min_uses`.
    TooFewUses,
    /// By its `Vary`.
    Vary(VaryError),
    /// It is one of the responses that a stale one is used in the place of.
    Worse,
    /// By the cache itself.
    Refused(cache::Refused),
}

impl fmt::Display for Unstored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Names of the reasons are words for programs too, so they have no blanks.
            Unstored::Rules(reason) => write!(f, "{reason:?}"),
            Unstored::Configured => f.write_str("NoCacheConfigured"),
            Unstored::TooFewUses => f.write_str("TooFewUses"),
            Unstored::Vary(reason) => write!(f, "Vary{reason:?}"),
            Unstored::Worse => f.write_str("StaleIsBetter"),
            Unstored::Refused(reason) => write!(f, "cache-{reason}"),
        }
    }
}

/// The record of a request.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The response to the client.
    pub status: Option<Status>,
    /// The reason for the upstream's request, if any.
    pub forwarded: Option<Forwarded>,
    /// The upstream's status.
    pub forwarded_status: Option<u16>,
    /// Whether the request waited for another one's response.
    pub collapsed: bool,
    /// Whether the response is on its way into the cache.
    pub stored: bool,
    /// Why it is not.
    pub unstored: Option<Unstored>,
    /// Seconds since the response was stored (`$upstream_cache_age`).
    pub stored_for_s: Option<u64>,
    /// Seconds for which it is still fresh; negative when it is stale.
    pub ttl_s: Option<i64>,
    /// The facts of the stored response.
    pub found: Option<Arc<Meta>>,
    /// The text of the key.
    pub key: Vec<u8>,
}

/// The result of the cache for variables: to variables, and in `Cache-Status` where the configuration names this cache.
pub fn publish(request: &mut Request, conf: &CacheConf) {
    let Some(record) = request.extensions.get::<Record>() else { return };
    let Some(status) = record.status else { return };
    let cached = Cached { status: status.name(), age_s: record.stored_for_s, found: record.found.clone() };
    if let Some(name) = &conf.status_name {
        let mut value = Vec::new();
        record.cache_status(name, status).push(&mut value);
        request.response.fields.push((b"Cache-Status".to_vec(), value));
    }
    Tries::of(request).cached = Some(cached);
}

impl Record {
    /// The status of an upstream's response, by the earlier stored one.
    pub fn had(&self) -> Status {
        match self.forwarded {
            Some(Forwarded::Stale | Forwarded::Request) => Status::Expired,
            _ => Status::Miss,
        }
    }

    /// RFC 9211
    fn cache_status<'a>(&'a self, name: &'a [u8], status: Status) -> CacheStatus<'a> {
        let source = match status {
            Status::Hit if !self.collapsed => Source::Hit,
            Status::Stale | Status::Updating if self.forwarded_status.is_none() => Source::Hit,
            _ => Source::Forwarded(self.forwarded.unwrap_or(Forwarded::Miss)),
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

/// The record of a request, for changes.
pub fn of(request: &mut Request) -> &mut Record {
    request.extensions.get_or_default()
}
