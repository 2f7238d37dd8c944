//! Partially stored responses: a range request for a response that is not stored fetches only the needed part. Stored parts serve
//! any range within them, and holes are fetched when a request needs them.
//!
//! ```text
//!   wanted   |-----------------------------------------|
//!   stored   |#######|          |############|
//!   fetched          |~~~~~~~~~~|            |~~~~~~~~~|     one request for each hole, when it is reached
//! ```
//! This file requests parts and distributes them as they arrive: several requests for the same part read along with the first
//! ([`Filling`]). [`holes`] has the body for one request, made of stored parts and holes.
//!
//! Parts are joined only if both have the same strong validator (RFC 9110 section 15.3.7.3). If an upstream sends a part of another
//! version, or the complete response, the resource has changed: the stored parts are removed.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use cache::{CHUNK_BYTES, Fill, Hit, Key, Meta, New, PurgeEffect, Scope, Store};
use http::StatusCode;
use http::cache_status::Forwarded;
use http::fields::HeaderId;
use http::freshness::store::NotStored;
use http::push_decimal;
use http::range::{ContentRange, ContentRangeError};
use http::validator::Validator;

use crate::clock::now_ms;
use crate::failures::Failed;
use crate::fetch::{Fetch, FetchResult, detached};
use crate::filling::{End, Filling, FillingReader, SharedHead};
use crate::holes::{self, Holed};
use crate::policy::{self, OriginRequest};
use crate::record::{self, Status, Unstored};
use crate::requested_range::{Part, RequestedRange, requested};
use crate::shared_fetch::{FetchLeader, FetchOutcome};
use crate::stored;
use crate::tasks::Cache;
use crate::{UpstreamRequest, or_disconnected};
use exchange::request::Request;
use exchange::response::Body;
use transfer::body::ranged::RangedBody;
use upstream::{BulkBody, Failure, Heading, Reply, ReplyBody};

/// The request that replaces a request for a part.
enum Instead {
    /// The complete response: without a strong validator parts cannot be combined, so each range would be fetched
    /// again and again.
    Complete,
    /// The unchanged request: the head cannot be converted to that of the complete response.
    Unchanged,
}

/// Whether the complete body of a response is stored.
pub fn is_complete(hit: &Hit) -> bool {
    hit.located().is_none_or(|body| body.is_present(&(0..body.length)))
}

/// Whether a stored response can be served without a fetch: the requested range, or the complete body, has no holes.
pub fn is_servable(request: &Request, hit: &Hit) -> bool {
    hit.located().is_none_or(|body| {
        let requested = requested(request).filter(|_| request.header(HeaderId::IfRange).is_none());
        body.is_present(&requested.map_or(0..body.length, |requested| requested.within(body.length)))
    })
}

/// Returns the part in a 206, if it can be stored: its range and the complete length; it must have a strong validator.
pub fn part_of(heading: &Heading) -> Option<Part> {
    let (range, total) = ContentRange::of_part(heading.head(), heading.raw()).ok()?;
    validator(heading).is_strong().then_some(())?;
    Some(Part { range: range.start..range.end, length: total? })
}

/// Returns the validator of a response: its entity tag, or its date, which is strong if old enough (RFC 9110 section 8.8.2.2).
fn validator(heading: &Heading) -> Validator<'_> {
    let get = |id| heading.head().get(heading.raw(), id);
    let date = get(HeaderId::Date).and_then(http::date::parse_http);
    Validator::of(get(HeaderId::Etag), get(HeaderId::LastModified), date)
}

/// Returns the `If-Range` value of a stored head; empty if it has no validator for joining parts.
pub fn if_range_of(head: &Heading) -> Vec<u8> {
    let mut text = Vec::new();
    let _ = validator(head).push_if_range(&mut text);
    text
}

/// Whether two responses have the same content, so that their parts may be joined (RFC 9110 section 15.3.7.3).
pub fn joins(stored: &Heading, coming: &Heading) -> bool {
    validator(stored).joins(validator(coming))
}

/// Requests a hole from the upstream.
pub async fn request_hole(
    fetch: &Fetch,
    request: &mut Request,
    heading: &Heading,
    hole: &Range<u64>,
) -> Result<Reply, Failure> {
    assert!(hole.start < hole.end, "a hole has bytes");
    let mut range = b"bytes=".to_vec();
    push_decimal(&mut range, hole.start);
    range.push(b'-');
    push_decimal(&mut range, hole.end - 1);
    let wanted = UpstreamRequest {
        is_shared: true,
        range: Some(range),
        if_range: Some(if_range_of(heading)).filter(|value| !value.is_empty()),
        ..UpstreamRequest::default()
    };
    (fetch.origin.send_request)(request, &wanted).await
}

/// Whether a response is the requested hole, with the same content as the stored parts.
pub fn fitting(reply: &Reply, stored: &Heading, hole: &Range<u64>) -> bool {
    let part = part_of(&reply.head).filter(|_| reply.head.head().status().code() == 206);
    joins(stored, &reply.head) && part.is_some_and(|part| part.has(hole) && may_be(reply, &part.range))
}

/// Whether the body of a response may have as many bytes as its `Content-Range` states; a body that is still arriving may.
/// `Content-Length` was already compared with that field.
fn may_be(reply: &Reply, range: &Range<u64>) -> bool {
    let length = match &reply.body {
        ReplyBody::None => 0,
        ReplyBody::Bytes(source) => source.bytes().len() as u64,
        _ => return true,
    };
    length == range.end - range.start
}

/// Begins to pass on a hole, and to store it in the entry if permitted. `lead` publishes it to the requests for the same hole.
pub async fn begin(
    fetch: &Fetch,
    request: &Request,
    entry: Option<(&Hit, OriginRequest)>,
    (reply, lead): (Reply, Option<FetchLeader>),
    hole: Range<u64>,
) -> Option<FillingReader> {
    let part = part_of(&reply.head)?;
    let (fill, meta, head) = match entry {
        Some((hit, origin_request)) => {
            // The fields of the part decide, not those of the entry. If it may not be stored, only its own client gets it.
            let fill = match fetch.may_extend(request, &origin_request, &reply) {
                true => fetch.store.extend(hit).await.ok(),
                false => None,
            };
            (fill, Arc::clone(&hit.meta), stored::shared(hit))
        }
        None => (None, Arc::default(), None),
    };
    let start = part.range.start;
    let filling = Filling::of_part(meta, head, part, fill.is_some());
    let reader = filling.reader(hole.start.max(start)..hole.end)?;
    start_part(fetch, request, filling, reply, Writing { start, fill, lead });
    Some(reader)
}

/// Destination of a part, in addition to its readers.
struct Writing {
    /// Start offset.
    start: u64,
    /// The entry, if the part is stored.
    fill: Option<Fill>,
    /// Publishes the outcome to other requests for the same part.
    lead: Option<FetchLeader>,
}

/// The object that a part belongs to, for a part whose length differs from its `Content-Range`.
struct Object {
    cache: Arc<Cache>,
    store: Arc<Store>,
    key: Key,
}

impl Object {
    /// Removes all parts and disables requests for parts of the object for some time.
    async fn drop_parts(&self) {
        self.cache.shared_fetches().disable_parts(&self.key);
        // If the disk refuses it, the next part leads to the same result.
        let _ = self.store.purge(Scope::Key(self.key.0), PurgeEffect::Unusable).await;
    }
}

/// Passes a part of a body on as it arrives, to its readers and to the store. The reader of the leading request was created before.
fn start_part(fetch: &Fetch, request: &Request, filling: Arc<Filling>, reply: Reply, writing: Writing) {
    if let Some(lead) = &writing.lead {
        lead.publish(match &writing.fill {
            Some(_) => FetchOutcome::Filling(Arc::clone(&filling)),
            // A part that is not stored is read at the speed of its client, which must not slow others down.
            None => FetchOutcome::Alone,
        });
    }
    let settings = (fetch.origin.upstream)(request.scope());
    let body = reply.body.into_bulk(request, settings);
    let counted = request.conn.thread.fetches.enter();
    let (cache, store) = (Arc::clone(&fetch.cache), Arc::clone(&fetch.store));
    let object = Object { cache, store, key: fetch.key };
    rt::spawn(async move {
        pump(filling, body, writing, object).await;
        drop(counted);
    });
}

/// Informs waiting requests that there was no response. If the leader's client has disconnected, a waiting request takes over.
pub fn publish_failure(lead: Option<FetchLeader>, failed: Failed) {
    if let Some(lead) = lead.filter(|_| failed.failure != Failure::ClientClosed) {
        lead.publish(FetchOutcome::Failed(failed));
    }
}

/// Maximum size in bytes of a part that is fetched completely even without readers.
const FINISHED_MAX: u64 = 1 << 20;

/// Moves a part from the upstream to its readers and to the store.
async fn pump(filling: Arc<Filling>, mut body: BulkBody, writing: Writing, object: Object) {
    let Writing { start, mut fill, lead } = writing;
    let mut at = start;
    // Media players often read only the start of the range that they request.
    let wanted = filling.part().map_or(0, |part| part.range.end);
    let is_short = wanted.saturating_sub(start) <= FINISHED_MAX;
    // Offset at which the fetch may stop without readers: the end of the current chunk.
    let mut worth = None;
    let end = loop {
        match body.next().await {
            Ok(Some(piece)) if at + piece.len() as u64 > wanted => break None,
            Ok(Some(piece)) => {
                if let Some(writing) = &mut fill
                    && writing.write_shared(at, &piece).await.is_err()
                {
                    // Set before the data is dropped, so that new readers notice it.
                    filling.lose_disk();
                    fill = None;
                }
                at += piece.len() as u64;
                filling.push(piece, fill.as_ref().and_then(Fill::reader));
                if fill.is_none() && !filling.wait_for_readers().await {
                    break Some(End::Broken);
                }
                if is_short || !filling.is_unread() {
                    worth = None;
                } else if at >= *worth.get_or_insert(at.next_multiple_of(CHUNK_BYTES))
                    && filling.end_if_unread()
                {
                    break Some(End::Broken);
                }
            }
            Ok(None) => break (at == wanted).then_some(End::Complete),
            Err(_) => break Some(End::Broken),
        }
    };
    // Shorter or longer than announced: no byte of the part can be trusted, and it must not appear complete.
    let Some(end) = end else {
        drop(fill);
        object.drop_parts().await;
        return filling.finish(End::Broken);
    };
    filling.finish(end);
    // Complete chunks are valid even if the remaining part did not arrive.
    if let Some(fill) = fill {
        let _ = fill.commit().await;
    }
    drop(lead);
}

impl Fetch {
    /// Whether a part may be added to the entry of an earlier response: no rule for the complete response forbids it (RFC 9111
    /// section 3). A part need not have a lifetime, which is that of the entry: some fields are omitted in a 206 (RFC 9110 section
    /// 15.3.7).
    fn may_extend(&self, request: &Request, origin_request: &OriginRequest, reply: &Reply) -> bool {
        let candidate = origin_request.candidate(reply, &reply.head, (self.origin.ignored)(request.scope()));
        let conf = self.conf(request);
        policy::is_buffered(conf, &candidate)
            && policy::judge_as(StatusCode::OK.code(), request, conf, &candidate)
                .map_or_else(|reason| !reason.is_prohibition(), |_| true)
    }

    /// Fetches a range of a response that is not stored, and stores the result. `lead` publishes it to requests for the same range.
    pub async fn fetch_part(
        self,
        request: &mut Request,
        requested: RequestedRange,
        lead: Option<FetchLeader>,
    ) -> Result<Reply, Failure> {
        let wanted = UpstreamRequest {
            is_shared: true,
            range: Some(requested.aligned()),
            ..UpstreamRequest::default()
        };
        let origin_request = OriginRequest::new(&self.store, &self.key);
        let reply = match (self.origin.send_request)(request, &wanted).await {
            Ok(reply) => reply,
            Err(failure) => {
                let failed = Failed::of(request, failure);
                self.retain_failure(request, self.conf(request), failed);
                return self.part_failed(request, failed, lead).await;
            }
        };
        let status = reply.head.head().status().code();
        record::record_of(request).forwarded_status = Some(status);
        self.cache.shared_fetches().failures(&self.key).drop_one(&self.key);
        if let Some(failed) = self.worse_than_stale(request, self.conf(request), status) {
            return self.part_failed(request, failed, lead).await;
        }
        if status != 206 {
            // The complete response or an error: handled as if it had been requested.
            return self.take_complete(request, origin_request, reply, lead).await;
        }
        let record = record::record_of(request);
        record.status = Some(record.had());
        let part = match ContentRange::of_part(reply.head.head(), reply.head.raw()) {
            Ok((range, Some(length))) => Some(Part { range: range.start..range.end, length }),
            Err(ContentRangeError::LengthDiffers) => None,
            // A part without a valid `Content-Range` and the complete length cannot be stored: the request is sent unchanged.
            Ok((_, None)) | Err(_) => {
                return (self.origin.send_request)(request, &UpstreamRequest::default()).await;
            }
        };
        let Some(part) = part.filter(|part| may_be(&reply, &part.range)) else {
            // The body does not match the announced range. Requests that wait for the part get the complete response too.
            drop(reply);
            self.cache.shared_fetches().disable_parts(&self.key);
            return self.fetch_complete(request, lead).await;
        };
        let start = part.range.start;
        let (fill, filling) = match self.begin_part(request, &reply, part, origin_request).await {
            Ok(begun) => begun,
            Err(Instead::Complete) => {
                // Requests that wait for the part get the complete response too.
                drop(reply);
                self.cache.shared_fetches().disable_parts(&self.key);
                return self.fetch_complete(request, lead).await;
            }
            Err(Instead::Unchanged) => {
                return (self.origin.send_request)(request, &UpstreamRequest::default()).await;
            }
        };
        let fetch = Rc::new(self);
        let reader = filling.reader(filling.part().map_or(0..0, |part| part.range.clone()));
        let response = reader
            .and_then(|reader| Fetch::along(&fetch, request, &filling, reader))
            .ok_or(Failure::Status(502))?;
        let heading = Rc::clone(&reply.head);
        start_part(&fetch, request, filling, reply, Writing { start, fill, lead });
        Ok(stored::as_new(response, &heading))
    }

    /// Returns the outcome for a request whose part could not be fetched, and for the waiting requests: each decides whether stale
    /// use is allowed.
    async fn part_failed(
        self,
        request: &mut Request,
        failed: Failed,
        lead: Option<FetchLeader>,
    ) -> Result<Reply, Failure> {
        publish_failure(lead, failed);
        self.conclude(request, FetchResult::Failed(failed)).await
    }

    /// Returns the response from a part that is arriving; `None` if it can no longer be joined.
    pub fn along(
        fetch: &Rc<Fetch>,
        request: &Request,
        filling: &Arc<Filling>,
        reader: FillingReader,
    ) -> Option<Reply> {
        let part = filling.part()?;
        let (heading, same) = (filling.heading()?, filling.heading()?);
        // The part suffices, unless a filter needs more of the body than the client requested.
        let (child, coming) = (detached(request), Some((part.range.clone(), reader)));
        let source = Holed::new(Rc::clone(fetch), child, None, Rc::new(same), coming);
        let body = Body::Ranged(RangedBody::new(Box::new(source), part.length));
        let age = policy::age(&filling.meta, now_ms());
        Some(stored::reply(heading, ReplyBody::Ready(Box::new(body)), Some(part.length), age))
    }

    /// Begins to store a part of a new response; the body is read from the filling even if it is not stored.
    async fn begin_part(
        &self,
        request: &mut Request,
        reply: &Reply,
        part: Part,
        origin_request: OriginRequest,
    ) -> Result<(Option<Fill>, Arc<Filling>), Instead> {
        let conf = self.conf(request);
        let (head, raw) = (reply.head.head(), reply.head.raw());
        let candidate = origin_request.candidate(reply, &reply.head, (self.origin.ignored)(request.scope()));
        let judged = if self.has_too_few_uses(conf) {
            Err(Unstored::TooFewUses)
        } else if policy::is_buffered(conf, &candidate) {
            // The rules for the complete response apply to its parts, because they become one entry.
            policy::judge_as(StatusCode::OK.code(), request, conf, &candidate)
        } else {
            Err(Unstored::Unbuffered)
        };
        let status = (StatusCode::OK, &b"200 OK"[..]);
        let received_s = candidate.times.response_s();
        let Ok((stored_head, parsed)) = policy::stored_head(status, head.lines(raw), &[], received_s) else {
            return Err(Instead::Unchanged);
        };
        let stored_head = Arc::from(stored_head);
        let mut fill = None;
        let mut meta =
            Arc::new(Meta { status: 200, length: Some(part.length), ..policy::unstored(&candidate) });
        match judged {
            Ok(facts) if validator(&reply.head).is_strong() => {
                meta = Arc::new(Meta { status: 200, length: Some(part.length), ..facts });
                let is_being_filled =
                    self.cache.shared_fetches().moving(&self.key, rt::now(), self.limits).is_some();
                if !is_being_filled {
                    let new = New {
                        key: self.key,
                        text: self.text.clone(),
                        meta: Arc::clone(&meta),
                        head: Arc::clone(&stored_head),
                        is_partial: true,
                        request: Arc::clone(candidate.pending_request),
                        ticket: Some(Arc::clone(candidate.ticket)),
                    };
                    let temp_directory = (self.origin.upstream)(request.scope()).temp_path.path();
                    let (request, store) = (&*request, &self.store);
                    let selector = |vary: &[u8]| policy::variant_of(request, vary);
                    let joins = |hit: &Hit| {
                        hit.meta.response_time_ms >= candidate.times.request_ms
                            && !hit.is_purged_soft
                            && hit.meta.length == Some(part.length)
                            && stored::heading(hit).is_some_and(|other| joins(&other, &reply.head))
                    };
                    fill = store.begin_parts(new, temp_directory, &selector, joins).await.ok();
                }
            }
            // A mark means that the complete response could not be stored either.
            Ok(_) if !self.cache.shared_fetches().is_marked(&self.key, rt::now()) => {
                return Err(Instead::Complete);
            }
            Ok(_) => record::record_of(request).unstored = Some(Unstored::Rules(NotStored::Partial)),
            Err(reason) => record::record_of(request).unstored = Some(reason),
        }
        record::record_of(request).stored = fill.is_some();
        let head = SharedHead::new(stored_head, parsed);
        let filling = Filling::of_part(meta, Some(head), part, fill.is_some());
        Ok((fill, filling))
    }

    /// Serves a stored response with holes in the requested range.
    pub async fn complete(
        self,
        request: &mut Request,
        hit: Hit,
        requested: Option<RequestedRange>,
    ) -> Result<Reply, Failure> {
        let Some(located) = hit.located().cloned() else { return Err(Failure::Status(500)) };
        let wanted = requested.map_or(0..located.length, |requested| requested.within(located.length));
        let heading = Rc::new(stored::heading(&hit).ok_or(Failure::Status(502))?);
        let (fetch, hit) = (Rc::new(self), Rc::new(hit));
        let child = detached(request);
        let mut first = None;
        if let Some(hole) = located.missing(&wanted) {
            let waiting = holes::join(&fetch, hit.key(), &heading, &hole);
            let lead = match or_disconnected(request, waiting).await? {
                holes::HoleFetch::Lead(lead) => lead,
                holes::HoleFetch::Failed(failure) => return Err(failure),
                holes::HoleFetch::Along(filling) => match fetch.hole_along(request, &filling, &hole) {
                    Some(Ok(reader)) => {
                        first = Some((hole.clone(), reader));
                        None
                    }
                    Some(Err(reply)) => return Ok(reply),
                    None => None,
                },
            };
            if first.is_none() {
                match fetch.request_first_hole(request, (&hit, &heading), hole, lead).await? {
                    Ok(coming) => first = Some(coming),
                    Err(reply) => return Ok(reply),
                }
            }
        }
        let (length, age) = (located.length, policy::age(&hit.meta, now_ms()));
        let own = stored::heading(&hit).ok_or(Failure::Status(502))?;
        let source = Holed::new(fetch, child, Some(hit), heading, first);
        let body = Body::Ranged(RangedBody::new(Box::new(source), length));
        Ok(stored::reply(own, ReplyBody::Ready(Box::new(body)), Some(length), age))
    }

    /// Reads along with another fetch of the same hole, or returns the response if the fetch delivered new content. `None` if it
    /// can no longer be joined.
    fn hole_along(
        &self,
        request: &mut Request,
        filling: &Arc<Filling>,
        hole: &Range<u64>,
    ) -> Option<Result<FillingReader, Reply>> {
        let joined = match filling.part() {
            Some(_) => Ok(filling.reader(hole.clone())?.with_limit(self.limits.body)),
            None if policy::variant_of(request, &filling.meta.vary) != filling.meta.variant => return None,
            None => Err(stored::of_filling(filling, policy::age(&filling.meta, now_ms()))?),
        };
        let record = record::record_of(request);
        (record.status, record.collapsed, record.stored) = (Some(Status::Hit), true, true);
        Some(joined)
    }

    /// Requests the first hole of a response before its head is sent. Returns the response instead if it is a new version.
    async fn request_first_hole(
        &self,
        request: &mut Request,
        (hit, heading): (&Hit, &Heading),
        hole: Range<u64>,
        lead: Option<FetchLeader>,
    ) -> Result<Result<(Range<u64>, FillingReader), Reply>, Failure> {
        let origin_request = OriginRequest::new(&self.store, &self.key);
        let record = record::record_of(request);
        record.forwarded = Some(Forwarded::Partial);
        record.status = Some(Status::Miss);
        // Uses the request itself, so that its variables show the fetch.
        let reply = match request_hole(self, request, heading, &hole).await {
            Ok(reply) => reply,
            Err(failure) => {
                publish_failure(lead, Failed::of(request, failure));
                return Err(failure);
            }
        };
        let status = reply.head.head().status().code();
        record::record_of(request).forwarded_status = Some(status);
        if fitting(&reply, heading, &hole) {
            let entry = Some((hit, origin_request));
            let reader = begin(self, request, entry, (reply, lead), hole.clone()).await;
            return Ok(Ok((hole, reader.ok_or(Failure::Status(502))?)));
        }
        if status == 206 {
            // The part has other content than the stored response: the complete response is requested.
            drop(reply);
            return self.fetch_complete(request, lead).await.map(Err);
        }
        self.take_complete(request, origin_request, reply, lead).await.map(Err)
    }

    /// Fetches the complete response, to replace the stored one.
    async fn fetch_complete(
        &self,
        request: &mut Request,
        lead: Option<FetchLeader>,
    ) -> Result<Reply, Failure> {
        let origin_request = OriginRequest::new(&self.store, &self.key);
        let wanted = UpstreamRequest { is_shared: true, ..UpstreamRequest::default() };
        let reply = (self.origin.send_request)(request, &wanted).await?;
        self.take_complete(request, origin_request, reply, lead).await
    }
}
