//! The task that moves a response from the upstream to its readers and to the store. Main type: [`Filler`].
//!
//! The response is pending ([`crate::pending`]) from before a reader gets its last byte until its entry is published. So a
//! client that has the complete response cannot get an older one afterwards.

use std::sync::Arc;
use std::time::Instant;

use cache::{Fill, FillError, Key, PendingRequest, PurgeEffect, Refused, Scope, Ticket};
use io::SharedBytes;

use crate::fetch::Fetch;
use crate::filling::{End, Filling};
use crate::pending::Pending;
use crate::policy::{self, CacheCandidate};
use crate::shared_fetch::SharedFetches;
use crate::tasks::Cache;
use upstream::BulkBody;

/// A fill in flight.
pub struct Filler {
    /// The entry being written; `None` after a disk failure.
    fill: Option<Fill>,
    /// The response, shared with its readers.
    pub filling: Arc<Filling>,
    /// The body from the upstream, at the upstream's speed.
    body: BulkBody,
    /// The primary key.
    key: Key,
    /// The text of the key.
    text: Vec<u8>,
    /// Time of the request to the upstream: the response is not stored if its resource was changed since then.
    requested_at: Instant,
    /// Number of the last purge before the request: later purges are recorded until this is dropped.
    pending_request: Arc<PendingRequest>,
    /// Position of this fetch in the order of all fetches of the key.
    ticket: Arc<Ticket>,
    /// Set once the complete body has arrived, if it is the newest response.
    pending: Option<Pending>,
}

impl Filler {
    /// Creates the fill of a response whose body is not read yet. Boxed, because it is moved often.
    pub fn new(
        fetch: &Fetch,
        candidate: &CacheCandidate<'_>,
        fill: Fill,
        filling: Arc<Filling>,
        body: BulkBody,
    ) -> Box<Filler> {
        let mut filler = Box::new(Filler {
            fill: Some(fill),
            filling,
            body,
            key: fetch.key,
            text: fetch.text.clone(),
            requested_at: candidate.requested_at,
            pending_request: Arc::clone(candidate.pending_request),
            ticket: Arc::clone(candidate.ticket),
            pending: None,
        });
        // The client may receive the complete response before a byte is written.
        if filler.body.complete().is_some() || filler.body.is_over() {
            filler.completed(fetch.cache.shared_fetches());
        }
        filler
    }

    /// Whether later requests may read along: not if the response was requested before a purge or a change of its resource.
    pub fn is_current(&self, fetch: &Fetch) -> bool {
        let (meta, number) = (&self.filling.meta, self.pending_request.number());
        !fetch.cache.shared_fetches().is_outdated(&self.key, self.requested_at)
            && fetch.store.purge_effect(&self.key, &self.text, &meta.tags, number).is_none()
    }

    /// Marks the body as complete: from here on requests for its key use it.
    fn completed(&mut self, shared_fetches: &Arc<SharedFetches>) {
        if self.pending.is_none() {
            let (filling, ticket) = (Arc::clone(&self.filling), Arc::clone(&self.ticket));
            let sequence = self.pending_request.number();
            self.pending =
                shared_fetches.add_pending(self.key, (filling, ticket), sequence, self.requested_at);
        }
    }

    /// Moves the body from the upstream to the store and the readers. `finishes` is whether it continues without readers.
    pub async fn pump(mut self: Box<Self>, cache: &Cache, finishes: bool) {
        let Some(end) = self.take_all(cache, finishes).await else { return };
        if end == End::Complete {
            self.completed(cache.shared_fetches());
        }
        self.filling.finish(end);
        // Not stored if it is incomplete, if a newer response is complete, or if a request has changed its resource.
        if end == End::Broken || self.pending.is_none() {
            return;
        }
        // The readers have been notified of the end: they do not wait for the disk.
        let committed = match self.fill.take() {
            Some(fill) => fill.commit().await,
            None => Err(FillError::Refused(Refused::Removed)),
        };
        let shared_fetches = cache.shared_fetches();
        let is_wrong = match committed {
            Ok(()) => {
                if policy::is_shareable(&self.filling.meta) {
                    shared_fetches.unmark(&self.key);
                }
                false
            }
            Err(FillError::Refused(Refused::Superseded | Refused::Stopping | Refused::NotOwner))
            | Err(FillError::Purged) => false,
            // The entry in the store is older than a response that clients have received.
            Err(_) => true,
        };
        if is_wrong
            && let Some(store) = cache.store()
            && store.holds(&self.key, &self.text).await.unwrap_or(true)
        {
            let _ = store.purge(Scope::Key(self.key.0), PurgeEffect::Unusable).await;
        }
    }

    /// Reads the complete body; `None` if the fill stops because no reader remains.
    async fn take_all(&mut self, cache: &Cache, finishes: bool) -> Option<End> {
        loop {
            match self.body.next().await {
                Ok(Some(piece)) => self.take(piece, cache.shared_fetches()).await,
                Ok(None) => return Some(End::Complete),
                Err(_) => return Some(End::Broken),
            }
            if self.body.is_over() {
                return Some(End::Complete);
            }
            if self.fill.is_none() && !self.filling.wait_for_readers().await {
                return None;
            }
            // `proxy_cache_finish off`: a fill without readers does not justify further transfers.
            if !finishes && self.filling.end_if_unread() {
                return None;
            }
        }
    }

    /// Writes bytes to the disk before the readers get them: bytes that leave memory can then be read from the file.
    async fn take(&mut self, piece: SharedBytes, shared_fetches: &Arc<SharedFetches>) {
        let at = self.filling.arrived();
        let written = match &mut self.fill {
            Some(fill) => fill.write_shared(at, &piece).await.is_ok(),
            None => false,
        };
        if !written && self.fill.is_some() {
            // Set before the data is dropped, so that new readers notice it.
            self.filling.lose_disk();
            self.fill = None;
        }
        let file = self.fill.as_ref().and_then(Fill::reader);
        // A reader that knows the length of the body ends at the last byte.
        if self.body.is_over() {
            self.completed(shared_fetches);
        }
        self.filling.push(piece, file);
    }
}
