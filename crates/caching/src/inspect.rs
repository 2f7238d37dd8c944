//! The content of a cache for a request, for `ringroad explain`. Sends no request to an upstream.
//!
//! The lookup is the same as for a request, so the entry counts as used.

use ::cache::Key;
use site::config::Config;

use crate::clock::now_ms;
use crate::policy::{self, Grade};
use crate::settings::Caches;
use crate::stall_limits::{LONGEST_WAIT, StallLimits};

/// The parts of a request that select a stored response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// The cache, by the name of its zone.
    pub zone: String,
    /// The text of the key.
    pub key: Vec<u8>,
    /// The method.
    pub method: String,
    /// Request header fields, for responses with `Vary`.
    pub fields: Vec<(String, String)>,
}

/// Returns lines of text that describe how the request would be handled.
pub async fn inspect(config: &Config, query: &EntryQuery) -> Vec<String> {
    let caches = config.http.of::<Caches>();
    let Some(zone) = caches.zones.iter().find(|zone| zone.name() == query.zone) else {
        return vec![format!("the running server has no cache \"{}\"", query.zone)];
    };
    let cache = zone.state();
    let Some(store) = cache.store() else {
        return vec!["not cached: the cache could not be opened, requests bypass it".to_owned()];
    };
    let key = Key::of(&query.key);
    let selector = |vary: &[u8]| policy::variant_of_fields(&query.method, &query.fields, vary);
    let found = store.find(&key, &query.key, &selector).await;
    let mut lines = Vec::new();
    match found {
        Err(error) => lines.push(format!("not cached: the entry cannot be read: {error}")),
        Ok(None) => {
            let varies = cache.shared_fetches().varying(&key).is_some();
            let stats = store.stats();
            let loads = match (stats.is_unwritable, stats.is_loaded) {
                (true, _) => "; the cache stores nothing, because its directory cannot be written",
                (_, false) => "; the cache still reads its directory",
                (_, true) => "",
            };
            lines.push(match varies {
                true => format!("not cached: MISS, no variant for these header fields{loads}"),
                false => format!("not cached: MISS, nothing is stored under this key{loads}"),
            });
        }
        Ok(Some(hit)) => {
            let (now, meta) = (now_ms(), &hit.meta);
            let age = policy::age(meta, now);
            let left = policy::left_s(meta, now);
            let place = if hit.is_from_memory { "in memory" } else { "on the disk" };
            lines.push(match policy::grade(&hit, now) {
                Grade::Fresh => format!("cached: HIT, fresh for {left} s more, age {age} s"),
                Grade::StaleWhileRevalidate => {
                    format!(
                        "cached: stale, age {age} s; served while a new response is fetched in the background"
                    )
                }
                Grade::Stale if hit.is_purged_soft => {
                    format!("cached: purged, age {age} s; the request is sent to the upstream")
                }
                Grade::Stale => {
                    format!(
                        "cached: stale for {} s, age {age} s; the request is sent to the upstream",
                        left.saturating_neg()
                    )
                }
            });
            let vary = if meta.vary.is_empty() { "" } else { ", one of several variants" };
            lines.push(format!("status {}, {} bytes, {place}{vary}", meta.status, hit.length()));
        }
    }
    let limits = StallLimits { head: LONGEST_WAIT, body: LONGEST_WAIT };
    if cache.shared_fetches().moving(&key, rt::now(), limits).is_some() {
        lines.push("a fetch is in flight: the request waits for it".to_owned());
    }
    if cache.shared_fetches().is_marked(&key, rt::now()) {
        lines.push(
            "the last response was for one request only: requests do not wait for each other; \"ringroad log\" shows why".to_owned(),
        );
    }
    lines
}
