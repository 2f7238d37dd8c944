//! Taking away what is stored: purges that a request asks for, and what a request that changed something makes stale.
//!
//! A purge is answered when it holds also after a crash, which the store sees to. What is in flight for the same key
//! when it comes was asked for before it, so it is neither stored nor waited for by anybody who comes later.

use std::sync::Arc;

use ::cache::{Fate, Key, Scope, StoreError};

use crate::caching::tasks::Cache;
use exchange::request::Request;
use telemetry::Level;

/// What a request asks to be purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purged {
    /// What the text of a key names, with all variants. With a star at its end it is a pattern, in which each star stands
    /// for any text.
    Key(Vec<u8>),
    /// All whose answer had one of these tags.
    Tags(Vec<Vec<u8>>),
    /// Everything.
    All,
}

/// Tags that one request may name: each is a record of its own in the log, brought to the disk before the response.
pub const TAGS_MAX: usize = 64;

/// Longest text of a key, pattern or tag that is purged: what the store takes for a key.
const TEXT_MAX: usize = ::cache::TEXT_BYTES_MAX;

/// Purges on behalf of a request, and returns the status: 204; 404 where nothing is stored under a key; 400 for
/// what cannot be a key or a tag; 503 where another process owns the directory, and 500 where the disk refuses. What a
/// pattern or a tag fits nobody knows when it is answered.
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
            // What is on its way there counts, and what the disk does not tell may be there.
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
    for scope in scopes {
        match &scope {
            Scope::Key(key) => cache.shared_fetches().part_from(&Key(*key)),
            _ => cache.shared_fetches().part_from_all(rt::now()),
        }
        if let Err(error) = store.purge(scope, fate).await {
            request.log(Level::Error, format_args!("cache purge failed: {error}"));
            return if error == StoreError::NotOwner { 503 } else { 500 };
        }
    }
    if was_there { 204 } else { 404 }
}

/// Removes what is stored under a key, because a request changed what it is about (RFC 9111 section 4.4). Nothing is
/// written where nothing is stored: clients could fill the log of purges otherwise.
pub async fn invalidate(request: &Request, cache: &Arc<Cache>, text: &[u8]) {
    let Some(store) = cache.store() else { return };
    let key = Key::of(text);
    // First, so that what is stored from here on, but was asked for before, is noticed by whoever stores it.
    cache.shared_fetches().outdate(&key, rt::now());
    if !store.holds(&key, text).await.unwrap_or(true) {
        return;
    }
    // The client's change was made, so its response is passed on even where what is stored outlives it.
    if let Err(error) = store.purge(Scope::Key(key.0), Fate::Gone).await {
        request.log(Level::Error, format_args!("stored answer was not invalidated: {error}"));
    }
}
