//! Purges by requests, and invalidation by unsafe requests.
//!
//! The response to a purge is sent once the purge is durable, which the store ensures. Fetches in flight for the same key started
//! before it: their responses are not stored, and later requests do not wait for them.

use std::sync::Arc;

use ::cache::{Key, PurgeEffect, Scope, StoreError};

use crate::requested_range::slice_start;
use crate::slices::slices_tag;
use crate::tasks::Cache;
use exchange::request::Request;
use telemetry::Level;

/// Target of a purge request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purged {
    /// The entries of a key, with all variants, and all slices of its response (`slice`). A key that ends in a star is a pattern; each star in it matches any text.
    Key(Vec<u8>),
    /// All responses with at least one of these tags.
    Tags(Vec<Vec<u8>>),
    /// All entries.
    All,
}

/// Maximum number of tags per request: each is a record of the purge log. The request waits for one write of all records.
pub const TAGS_MAX: usize = 64;

/// Maximum length in bytes of a key, pattern or tag in a purge: the store's limit for keys.
const TEXT_MAX: usize = ::cache::TEXT_BYTES_MAX;

/// Purges on behalf of a request, and returns the status. 204: purged; 404: no entry has the key; 400: not a valid pattern or tag;
/// 503: the cache is not open, or another process owns the directory; 500: disk error. The number of entries that match a pattern
/// or tag is not known at that time.
pub async fn purge(request: &Request, cache: &Arc<Cache>, purged: &Purged, effect: PurgeEffect) -> u16 {
    let Some(store) = cache.store() else {
        request.log(Level::Error, format_args!("cache purge failed: the cache could not be opened"));
        return 503;
    };
    let mut was_there = true;
    let scopes = match purged {
        Purged::All => vec![Scope::All],
        Purged::Tags(tags) => tags.iter().map(|tag| Scope::Tag(tag.as_slice().into())).collect(),
        Purged::Key(text) if text.ends_with(b"*") => vec![Scope::Pattern(text.as_slice().into())],
        Purged::Key(text) => {
            let key = Key::of(text);
            // Entries being stored count, and so do entries that the disk cannot report.
            was_there = cache.shared_fetches().in_flight(&key).is_some()
                || store.holds(&key, text).await.unwrap_or(true);
            let slices = slice_start(request).and_then(|start| slices_tag(text, start));
            // Other slices than the first may be stored.
            was_there |= slices.is_some();
            let slices = slices.map(|tag| Scope::Tag(tag.into()));
            [Some(Scope::Key(key.0)), slices].into_iter().flatten().collect()
        }
    };
    let is_named = |scope: &Scope| match scope {
        Scope::Pattern(text) | Scope::Tag(text) => text.len() <= TEXT_MAX,
        Scope::Key(_) | Scope::All => true,
    };
    if scopes.is_empty() || scopes.len() > TAGS_MAX || !scopes.iter().all(is_named) {
        request.log(
            Level::Error,
            format_args!("cache purge has no tag, too many tags, or a tag or pattern that is too long"),
        );
        return 400;
    }
    for scope in &scopes {
        match scope {
            Scope::Key(key) => cache.shared_fetches().detach(&Key(*key)),
            _ => cache.shared_fetches().detach_all(rt::now()),
        }
    }
    if let Err(error) = store.purge_together(scopes, effect).await {
        request.log(Level::Error, format_args!("cache purge failed: {error}"));
        return if error == StoreError::NotOwner { 503 } else { 500 };
    }
    if was_there { 204 } else { 404 }
}

/// Removes the entries of a key, and of its further slices, after a request has changed its resource (RFC 9111 section 4.4). Writes
/// nothing if no entry exists: otherwise clients could fill the purge log.
pub async fn invalidate(request: &Request, cache: &Arc<Cache>, text: &[u8]) {
    let Some(store) = cache.store() else { return };
    let key = Key::of(text);
    // Before the lookup: from here on, no request that was sent earlier can store its response.
    cache.shared_fetches().outdate(&key, rt::now());
    store.outdate(&key).await;
    if !store.holds(&key, text).await.unwrap_or(true) {
        return;
    }
    // The client's change succeeded, so its response is passed on even if the stored response remains.
    let slices = slice_start(request).and_then(|start| slices_tag(text, start));
    let slices = slices.map(|tag| Scope::Tag(tag.into()));
    let scopes = [Some(Scope::Key(key.0)), slices].into_iter().flatten().collect();
    if let Err(error) = store.purge_together(scopes, PurgeEffect::Unusable).await {
        request.log(Level::Error, format_args!("stored response was not invalidated: {error}"));
    }
}
