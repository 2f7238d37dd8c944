//! The task that moves a response from the upstream to its readers and into the store. Main type: [`Filler`].
//!
//! The response is pending ([`crate::caching::pending`]) from before its last byte goes to a reader until its entry is
//! published, so that no client that has all of it gets an older one afterwards.

use std::sync::Arc;
use std::time::Instant;

use cache::{Asked, Fate, Fill, FillError, Key, Refused, Scope, Ticket};
use io::SharedBytes;

use crate::Coming;
use crate::caching::fetch::Fetch;
use crate::caching::filling::{End, Filling};
use crate::caching::pending::Pending;
use crate::caching::policy::{self, Answer};
use crate::caching::shared_fetch::SharedFetches;
use crate::caching::tasks::Cache;

/// A fill in flight.
pub struct Filler {
    /// The entry that is written; none any more when the disk has failed.
    fill: Option<Fill>,
    /// The readers.
    pub filling: Arc<Filling>,
    /// The body as it comes from the upstream, at the upstream's speed.
    body: Coming,
    /// The primary key.
    key: Key,
    /// Its text.
    text: Vec<u8>,
    /// The time of the upstream's request: a subject changed since then is not stored.
    asked: Instant,
    /// The question: purges since then are remembered until this is dropped.
    question: Arc<Asked>,
    /// The place of the fetch among all fetches of the key.
    ticket: Arc<Ticket>,
    /// Set once all of the body has come, if it is the newest response.
    pending: Option<Pending>,
}

impl Filler {
    /// A fill of a response whose body is still to be read. Boxed, because it is moved often.
    pub fn new(
        fetch: &Fetch,
        answer: &Answer<'_>,
        fill: Fill,
        filling: Arc<Filling>,
        body: Coming,
    ) -> Box<Filler> {
        let mut filler = Box::new(Filler {
            fill: Some(fill),
            filling,
            body,
            key: fetch.key,
            text: fetch.text.clone(),
            asked: answer.asked,
            question: Arc::clone(answer.question),
            ticket: Arc::clone(answer.ticket),
            pending: None,
        });
        // The client may get all of it before a byte is written.
        if filler.body.whole().is_some() || filler.body.is_over() {
            filler.completed(fetch.cache.shared_fetches());
        }
        filler
    }

    /// The body is complete: from here on requests for its key get it.
    fn completed(&mut self, shared_fetches: &Arc<SharedFetches>) {
        if self.pending.is_none() {
            let (filling, ticket) = (Arc::clone(&self.filling), Arc::clone(&self.ticket));
            let sequence = self.question.number();
            self.pending = shared_fetches.add_pending(self.key, (filling, ticket), sequence, self.asked);
        }
    }

    /// Moves the body from the upstream to the store and the readers. `finishes`: whether it continues when no client
    /// reads any more.
    pub async fn pump(mut self: Box<Self>, cache: &Cache, finishes: bool) {
        let Some(end) = self.take_all(cache, finishes).await else { return };
        if end == End::Whole {
            self.completed(cache.shared_fetches());
        }
        self.filling.finish(end);
        // Not stored if it is not whole, if a newer one is complete, or if a request has changed its subject.
        if end == End::Broken || self.pending.is_none() {
            return;
        }
        // Readers have their end already: they do not wait for the disk.
        let committed = match self.fill.take() {
            Some(fill) => fill.commit().await,
            None => Err(FillError::Refused(Refused::Gone)),
        };
        let shared_fetches = cache.shared_fetches();
        let is_wrong = match committed {
            Ok(()) => {
                if policy::is_for_others(&self.filling.meta) {
                    shared_fetches.unmark(&self.key);
                }
                false
            }
            Err(FillError::Refused(Refused::Older | Refused::Stopping | Refused::NotOwner))
            | Err(FillError::Purged) => false,
            // The stored response is older than one that clients have seen.
            Err(_) => true,
        };
        if is_wrong
            && let Some(store) = cache.store()
            && store.holds(&self.key, &self.text).await.unwrap_or(true)
        {
            let _ = store.purge(Scope::Key(self.key.0), Fate::Gone).await;
        }
    }

    /// `None` when no reader is left to continue for.
    async fn take_all(&mut self, cache: &Cache, finishes: bool) -> Option<End> {
        loop {
            match self.body.next().await {
                Ok(Some(piece)) => self.take(piece, cache.shared_fetches()).await,
                Ok(None) => return Some(End::Whole),
                Err(_) => return Some(End::Broken),
            }
            if self.body.is_over() {
                return Some(End::Whole);
            }
            if self.fill.is_none() && !self.filling.room().await {
                return None;
            }
            // `proxy_cache_finish off`: a fill that no client reads is not worth the bytes that are still to come.
            if !finishes && self.filling.end_if_unread() {
                return None;
            }
        }
    }

    /// Moves bytes to the disk first, and then to the readers: bytes that leave memory can be read from the file.
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
        // A reader that knows the length of the body is at its end with the last byte.
        if self.body.is_over() {
            self.completed(shared_fetches);
        }
        self.filling.push(piece, file);
    }
}
