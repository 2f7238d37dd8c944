//! The response of a fetch that another request leads, for a client with a limited wait.
//!
//! ```text
//!   read along --stalled--> `SOON_BYTES` sent, strong validator --> remaining bytes by a range request for this client
//!       ^              \-> otherwise another fetch of the key that makes progress, or a new one
//!       |                                               |
//!       +---- same bytes as those sent -----------------+---- different bytes: connection closed
//! ```
//! The client has the header section of the first fetch and the beginning of its body. It gets the remaining bytes of another body
//! only in two cases. Either both have the same strong validator; or the other response has the same describing fields and begins
//! with the bytes that the client has, so that the client gets the complete other body.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::Key;
use http::fields::HeaderId;
use io::segments::Source;

use crate::fetch::{Fetch, detached};
use crate::filling::{Filling, FillingReader};
use crate::shared_fetch::{FetchOutcome, Joined, SOON_BYTES};
use crate::{LOOKUPS_MAX, parts, stored};
use exchange::request::Request;
use exchange::response::Body;
use transfer::body::BodyError;
use transfer::body::ranged::{Ranged, RangedBody};
use transfer::body::source::BodySource;
use upstream::{Heading, Reply, ReplyBody};

/// Returns the response from another request's fetch of this key; `None` if it can no longer be joined.
pub fn reply(
    fetch: &Rc<Fetch>,
    request: &Request,
    filling: &Arc<Filling>,
    (key, age): (Key, u32),
) -> Option<Reply> {
    if filling.is_complete() {
        return stored::of_filling(filling, age);
    }
    let (heading, same, length) = (filling.heading()?, filling.heading()?, filling.length());
    let reader = filling.reader(0..u64::MAX)?.with_limit(fetch.limits.body);
    let continuation = Continuation {
        fetch: Rc::clone(fetch),
        request: detached(request),
        filling: Arc::clone(filling),
        heading: same,
        key,
    };
    let continuation = Rc::new(continuation);
    let body = match length {
        Some(length) => {
            let source = Following { continuation, held: Cell::new(Some(reader)) };
            Body::Ranged(RangedBody::new(Box::new(source), length))
        }
        None => Body::Source(Box::new(FollowingSource::new(continuation, reader))),
    };
    Some(stored::reply(heading, ReplyBody::Ready(Box::new(body)), length, age))
}

/// State that a client needs to continue after the joined fetch has stalled.
struct Continuation {
    /// The fetch: how to send a request to the upstream.
    fetch: Rc<Fetch>,
    /// A copy of the client's request, without the client.
    request: Box<Request>,
    /// The joined fetch.
    filling: Arc<Filling>,
    /// The head that the client has received.
    heading: Heading,
    /// The key at which requests like this one share a fetch.
    key: Key,
}

/// A body of a known length.
struct Following {
    continuation: Rc<Continuation>,
    /// Prevents needed bytes of the body from being dropped until the first range is opened.
    held: Cell<Option<FillingReader>>,
}

impl Ranged for Following {
    fn open(&self, range: Range<u64>) -> Box<dyn BodySource> {
        let continuation = Rc::clone(&self.continuation);
        match self.held.take() {
            Some(mut reader) => {
                reader.narrow(range);
                Box::new(FollowingSource::new(continuation, reader))
            }
            None => match continuation.filling.reader(range) {
                Some(reader) => {
                    let reader = reader.with_limit(continuation.fetch.limits.body);
                    Box::new(FollowingSource {
                        is_alone: false,
                        ..FollowingSource::new(continuation, reader)
                    })
                }
                None => Box::new(stored::Lost),
            },
        }
    }
}

struct FollowingSource {
    continuation: Rc<Continuation>,
    reader: FillingReader,
    /// The range of the body that was sent to the client.
    sent: Range<u64>,
    /// Whether the client has received only `sent` of the body; `false` if other ranges were sent before.
    is_alone: bool,
    /// Number of switches to another fetch.
    changes: u32,
    changing: Option<Changing>,
}

type Changing = Pin<Box<dyn Future<Output = Option<FillingReader>>>>;

impl FollowingSource {
    fn new(continuation: Rc<Continuation>, reader: FillingReader) -> FollowingSource {
        let start = reader.requested().start;
        FollowingSource {
            continuation,
            reader,
            sent: start..start,
            is_alone: true,
            changes: 0,
            changing: None,
        }
    }
}

impl BodySource for FollowingSource {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            if let Some(changing) = &mut self.changing {
                let Some(reader) = ready!(changing.as_mut().poll(context)) else {
                    return Poll::Ready(Err(BodyError::Broken));
                };
                (self.reader, self.changing) = (reader, None);
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(source) => {
                    self.sent.end += source.as_ref().map_or(0, |source| source.bytes().len() as u64);
                    return Poll::Ready(Ok(source));
                }
                // After this many switches the client waits for the upstream without a limit.
                Poll::Pending if self.changes == LOOKUPS_MAX => return Poll::Pending,
                Poll::Pending => {
                    ready!(self.reader.poll_stalled(context));
                    self.changes += 1;
                    let (continuation, sent, end) =
                        (Rc::clone(&self.continuation), self.sent.clone(), self.reader.requested().end);
                    // The fetch to compare with: a separately fetched range has no beginning.
                    let current = Arc::clone(self.reader.filling());
                    let has_all = self.is_alone && current.part().is_none();
                    let current = has_all.then_some(current);
                    self.changing =
                        Some(Box::pin(async move { continuation.next_reader(current, sent, end).await }));
                }
            }
        }
    }

    fn is_reading(&self) -> bool {
        self.changing.is_none() && self.reader.is_reading()
    }
}

impl Continuation {
    /// Returns a reader of the remaining bytes, up to `end`, from another fetch. Returns `None` if no fetch matches the bytes that
    /// the client has, the range `sent` of the `current` fetch.
    async fn next_reader(
        &self,
        current: Option<Arc<Filling>>,
        sent: Range<u64>,
        end: u64,
    ) -> Option<FillingReader> {
        let is_strong = !parts::if_range_of(&self.heading).is_empty();
        if let Some(length) = self.filling.meta.length
            && is_strong
            && sent.end >= SOON_BYTES
        {
            let rest = sent.end..end.min(length);
            let mut request = detached(&self.request);
            let reply = parts::request_hole(&self.fetch, &mut request, &self.heading, &rest).await.ok()?;
            if parts::fitting(&reply, &self.heading, &rest) {
                return parts::begin(&self.fetch, &request, None, (reply, None), rest).await;
            }
        }
        for _ in 0..LOOKUPS_MAX {
            let Some(filling) = self.other_fetch().await? else { continue };
            let reader = filling.reader(sent.end..end)?.with_limit(self.fetch.limits.body);
            let other = filling.heading()?;
            if parts::joins(&self.heading, &other) {
                return Some(reader);
            }
            if filling.meta.length != self.filling.meta.length || !describes_same(&self.heading, &other) {
                return None;
            }
            let (one, two) = (current.as_ref()?.reader(sent.clone())?, filling.reader(sent.clone())?);
            if let Some(is_same) = have_same_bytes(one, two.with_limit(self.fetch.limits.body)).await {
                return is_same.then_some(reader);
            }
        }
        None
    }

    /// Returns the progressing fetch of the key, or a new one. The inner `None` means that the lookup must be repeated, the outer
    /// `None` that this client cannot use any fetch.
    async fn other_fetch(&self) -> Option<Option<Arc<Filling>>> {
        let Fetch { cache, limits, .. } = &*self.fetch;
        let shared_fetch = match cache.shared_fetches().join(&self.key, self.key, rt::now(), *limits) {
            Joined::Lead(lead) => {
                let shared_fetch = Arc::clone(lead.shared_fetch());
                Fetch::lead_in_background(&self.fetch, &self.request, lead);
                shared_fetch
            }
            Joined::Follow(shared_fetch) => shared_fetch,
            Joined::Marked => return None,
        };
        match shared_fetch.outcome_within(*limits).await {
            Some(FetchOutcome::Filling(filling)) if filling.meta.variant == self.filling.meta.variant => {
                Some(Some(filling))
            }
            None | Some(FetchOutcome::Retry | FetchOutcome::Refreshed(_)) => Some(None),
            Some(FetchOutcome::Filling(_) | FetchOutcome::Alone | FetchOutcome::Failed(_)) => None,
        }
    }
}

/// Whether two header sections describe the same content, without proof that the bodies are equal.
fn describes_same(one: &Heading, other: &Heading) -> bool {
    const DESCRIBING: [HeaderId; 5] = [
        HeaderId::ContentType,
        HeaderId::ContentEncoding,
        HeaderId::ContentRange,
        HeaderId::Etag,
        HeaderId::LastModified,
    ];
    one.head().status() == other.head().status()
        && DESCRIBING.iter().all(|id| one.head().get(one.raw(), *id) == other.head().get(other.raw(), *id))
}

/// Whether two readers return the same bytes; `None` if one of them has stalled.
async fn have_same_bytes(one: FillingReader, other: FillingReader) -> Option<bool> {
    let mut sides = [ComparedBody::new(one), ComparedBody::new(other)];
    loop {
        for side in &mut sides {
            poll_fn(|context| side.poll_fill(context)).await?;
        }
        let [one, other] = &mut sides;
        let (left, right) = (one.bytes(), other.bytes());
        let count = left.len().min(right.len());
        if count == 0 {
            // If one body has ended, the other must have ended too, and neither may be broken.
            return Some(left.len() == right.len() && one.is_complete && other.is_complete);
        }
        if left[..count] != right[..count] {
            return Some(false);
        }
        (one.at, other.at) = (one.at + count, other.at + count);
    }
}

/// One of two bodies to compare.
struct ComparedBody {
    reader: FillingReader,
    piece: Option<Source>,
    at: usize,
    /// Whether the body has ended properly.
    is_complete: bool,
    is_over: bool,
}

impl ComparedBody {
    fn new(reader: FillingReader) -> ComparedBody {
        ComparedBody { reader, piece: None, at: 0, is_complete: false, is_over: false }
    }

    fn bytes(&self) -> &[u8] {
        self.piece.as_ref().map_or(&[], |piece| &piece.bytes()[self.at..])
    }

    /// Becomes ready when bytes are available or the body has ended; `None` if it has stalled.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Option<()>> {
        while self.bytes().is_empty() && !self.is_over {
            match self.reader.poll_next(context) {
                Poll::Ready(Ok(Some(piece))) => (self.piece, self.at) = (Some(piece), 0),
                Poll::Ready(end) => (self.is_over, self.is_complete) = (true, end.is_ok()),
                Poll::Pending => return self.reader.poll_stalled(context).map(|()| None),
            }
        }
        Poll::Ready(Some(()))
    }
}
