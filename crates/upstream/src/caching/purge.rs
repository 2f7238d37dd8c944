//! Purges by a request, and invalidation by unsafe requests.
//!
//! The response to a purge is sent when the purge survives a crash, which the store ensures. Fetches in flight for the
//! same key started before it, so their responses are not stored, and later requests do not wait for them.

use std::sync::Arc;

use ::cache::{Fate, Key, Scope, StoreError};

use crate::caching::tasks::Cache;
use exchange::request::Request;
use telemetry::Level;

/// The target of a purge request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purged {
    /// The entries of a key's text, with all variants. With a star at its end it is a pattern, in which each star
    /// matches any text.
    Key(Vec<u8>),
    /// All responses with one of these tags.
    Tags(Vec<Vec<u8>>),
    /// Everything.
    All,
}

/// Most tags of one request: each is a record of the log. The request waits for one write of them all.
pub const TAGS_MAX: usize = 64;

/// Longest text of a key, pattern or tag that is purged: the limit of the store for keys.
const TEXT_MAX: usize = ::cache::TEXT_BYTES_MAX;

/// Purges on behalf of a request, and returns the status: 204; 404 where nothing is stored under a key; 400 for what
/// cannot be a key or a tag; 503 where another process owns the directory, and 500 where the disk refuses. The number
/// of matches of a pattern or a tag is unknown at that time.
pub async fn purge(request: &Request, cache: &Arc<Cache>, purged: &Purged, fate: Fate) -> u16 {
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
            // Entries that are being stored count, and so do entries that the disk does not report.
            was_there = cache.shared_fetches().under_way(&key).is_some()
                || store.holds(&key, text).await.unwrap_or(true);
            vec![Scope::Key(key.0)]
        }
    };
    let is_named = |scope: &Scope| match scope {
        Scope::Pattern(text) | Scope::Tag(text) => text.len() <= TEXT_MAX,
        Scope::Key(_) | Scope::All => true,
    };
    if scopes.is_empty() || scopes.len() > TAGS_MAX || !scopes.iter().all(is_named) {
        request
            .log(Level::Error, format_args!("cache purge names no tag, too many, or one that is too long"));
        return 400;
    }
    for scope in &scopes {
        match scope {
            Scope::Key(key) => cache.shared_fetches().part_from(&Key(*key)),
            _ => cache.shared_fetches().part_from_all(rt::now()),
        }
    }
    if let Err(error) = store.purge_together(scopes, fate).await {
        request.log(Level::Error, format_args!("cache purge failed: {error}"));
        return if error == StoreError::NotOwner { 503 } else { 500 };
    }
    if was_there { 204 } else { 404 }
}

/// Removes the entries of a key, because a request has changed its resource (RFC 9111 section 4.4). Nothing is written
/// where nothing is stored: clients could fill the log of purges otherwise.
pub async fn invalidate(request: &Request, cache: &Arc<Cache>, text: &[u8]) {
    let Some(store) = cache.store() else { return };
    let key = Key::of(text);
    // First, so that no earlier request stores its response after this point.
    cache.shared_fetches().outdate(&key, rt::now());
    store.outdate(&key).await;
    if !store.holds(&key, text).await.unwrap_or(true) {
        return;
    }
    // The client's change was made, so its response is passed on even if the stored one remains.
    if let Err(error) = store.purge(Scope::Key(key.0), Fate::Gone).await {
        request.log(Level::Error, format_args!("stored response was not invalidated: {error}"));
    }
}
