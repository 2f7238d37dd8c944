//! Fetching a response from the upstream for several requests, and filling the cache with it.
//!
//! The leading request fetches in a separate task, so that waiting requests and the cache receive the response even if its client
//! disconnects. A response that must not be shared is returned to the leader alone.
//!
//! ```text
//!   leader --spawn--> task: request --+-- may be stored ---> Filling: read by leader and followers, written to the store
//!      ^                              +-- 304 -------------> stored response refreshed; all use it
//!      |                              +-- not shareable ---> handed over to the leader; the followers request it themselves
//!      +----- handed over ------------+-- failed ----------> leader and followers each decide whether to use a stale response
//! ```
//! Two orders matter. The leader's reader of a [`Filling`] is created before the first byte is read from the upstream, and the
//! leader receives the outcome of a fetch before the waiting requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use cache::{Fill, Hit, Key, Meta, New, PurgeEffect, Refused, Scope, Store};
use http::cache_status::Forwarded;
use http::fields::FieldLine;
use http::fields::{HeaderId, Method};
use http::freshness::store::NotStored;
use http::stored_fields;
use rt::local::Event;

use crate::clock::now_ms;
use crate::failures::Failed;
use crate::filler::Filler;
use crate::filling::{Filling, SharedHead};
use crate::policy::{self, CacheCandidate, OriginRequest};
use crate::record::{self, Record, Status, Unstored};
use crate::requested_range::{requested_slice, slice_start};
use crate::settings::CacheConf;
use crate::shared_fetch::{FetchLeader, FetchOutcome, Joined, Refreshed};
use crate::slices::{self, slices_tag};
use crate::stall_limits::StallLimits;
use crate::tasks::Cache;
use crate::trailed::with_trailers;
use crate::{ModuleFunctions, UpstreamRequest, access, or_disconnected, parts, stored};
use exchange::facts::Facts;
use exchange::request::{Request, Shared};
use exchange::subrequest;
use telemetry::Level;
use upstream::{Failure, Reply, ReplyBody, SetCookie, state};

/// One fetch.
pub struct Fetch {
    /// How to send a request to the upstream.
    pub origin: &'static ModuleFunctions,
    /// The shared fetches of the cache.
    pub cache: Arc<Cache>,
    /// The store that the response is written to.
    pub store: Arc<Store>,
    /// The primary key: the store distinguishes variants.
    pub key: Key,
    /// The text of the key.
    pub text: Vec<u8>,
    /// The stored stale response. The upstream may confirm it (304), or it may be better than an error response.
    pub stale: Option<Rc<Hit>>,
    /// Times without progress after which requests no longer wait for a fetch in flight.
    pub limits: StallLimits,
    /// Whether the upstream is asked to confirm the stored response even without `proxy_cache_revalidate`.
    pub is_confirming: bool,
}

/// The metadata of a stored response to be revalidated. It suffices for a conditional request, and does not keep the entry in use.
pub struct StaleMeta(Arc<Meta>);

impl StaleMeta {
    /// Returns the metadata of an entry.
    pub fn of(hit: &Hit) -> StaleMeta {
        StaleMeta(Arc::clone(&hit.meta))
    }
}

/// Result of a request to the upstream.
pub enum FetchResult {
    /// A response for this request; others share it if it is being stored.
    Reply(Reply),
    /// The stored response is fresh again, for waiting requests too or for this request alone.
    Refreshed {
        /// The stored response, if other requests may use it too.
        shared: Option<Refreshed>,
    },
    /// The upstream confirmed a stored response that was removed in the meantime.
    Removed,
    /// The upstream confirmed the stored response, for this request alone.
    Confirmed(Box<Confirmed>),
    /// No response, with the reason of each try in the log; or a response that is worse than the stale one.
    Failed(Failed),
}

/// A confirmed response that may not be stored with its new header section.
pub struct Confirmed {
    /// The confirmed entry.
    entry: Arc<Meta>,
    /// The header section for the client.
    head: Vec<u8>,
    /// The age in seconds.
    age_s: u32,
    /// Whether the stored response may not be used again.
    is_void: bool,
}

/// The result that the fetch task hands over to its leader.
#[derive(Clone, Default)]
struct Handed {
    /// Set before the event is signalled.
    slot: Rc<RefCell<Option<Handing>>>,
    event: Event,
}

/// The response, the upstream tries, the cookie of `sticky cookie`, and the cache record of the fetch.
type Handing = (FetchResult, Option<state::Tries>, Option<SetCookie>, Record);

impl Fetch {
    /// Fetches for this request alone: other requests do not wait for it. `stores` is whether the response may be stored.
    pub async fn alone(self, request: &mut Request, stores: bool) -> Result<Reply, Failure> {
        let (result, filler) = self.request_upstream(request, stores).await;
        let shared = filler.as_ref().filter(|filler| !policy::is_of_head(&filler.filling.meta));
        let lead = shared.and_then(|filler| self.announce(filler));
        self.start(request, filler, lead);
        self.conclude(request, result).await
    }

    /// Fetches for this request and the waiting requests.
    pub async fn lead(self, request: &mut Request, lead: FetchLeader) -> Result<Reply, Failure> {
        let handed = Handed::default();
        let fetch = Rc::new(self);
        spawn(leading(request), Rc::clone(&fetch), lead, Some(handed.clone()));
        or_disconnected(request, handed.event.wait()).await?;
        let handing = handed.slot.take();
        let Some((result, tries, cookie, record)) = handing else { return Err(Failure::Status(500)) };
        if let Some(tries) = tries {
            state::Tries::of(request).take_over(tries);
        }
        if let Some(cookie) = cookie {
            request.extensions.insert(cookie);
        }
        let own = record::record_of(request);
        (own.forwarded_status, own.stored, own.unstored) =
            (record.forwarded_status, record.stored, record.unstored);
        if let FetchResult::Reply(_) = result {
            own.ttl_s = record.ttl_s;
        }
        fetch.conclude(request, result).await
    }

    /// Fetches in the background of a request that already has its response.
    pub fn in_background(self, request: &Request, lead: FetchLeader, known: StaleMeta) {
        let mut child = detached(request);
        child.extensions.insert(Rc::new(known));
        spawn(child, Rc::new(self), lead, None);
    }

    /// Fetches for the waiting requests, in the background of a request whose response stalls.
    pub fn lead_in_background(fetch: &Rc<Fetch>, request: &Request, lead: FetchLeader) {
        spawn(detached(request), Rc::clone(fetch), lead, None);
    }

    /// Returns the cache settings of the request's location.
    pub fn conf<'r>(&self, request: &'r Request) -> &'r CacheConf {
        (self.origin.conf)(request.scope())
    }

    /// Converts the outcome into the response to this request. State that a miss does not need is boxed, so that the future of a
    /// miss stays small.
    pub async fn conclude(&self, request: &mut Request, result: FetchResult) -> Result<Reply, Failure> {
        let had = record::record_of(request).had();
        let status = |record: &mut Record, status| {
            record.status.get_or_insert(status);
        };
        match result {
            FetchResult::Reply(reply) => {
                status(record::record_of(request), had);
                let settings = (self.origin.upstream)(request.scope());
                Ok(with_trailers(request, settings, reply))
            }
            FetchResult::Refreshed { .. } | FetchResult::Removed => {
                match Box::pin(self.find(request)).await {
                    Some(hit) => {
                        let now_ms = now_ms();
                        let age = policy::age(&hit.meta, now_ms);
                        let record = record::record_of(request);
                        status(record, Status::Revalidated);
                        record.ttl_s = Some(policy::left_s(&hit.meta, now_ms));
                        stored::of_hit(request, hit, age).ok_or(Failure::Status(502))
                    }
                    None => self.unconditionally(request).await,
                }
            }
            FetchResult::Confirmed(confirmed) => {
                let Some(hit) = Box::pin(self.find(request)).await else {
                    return self.unconditionally(request).await;
                };
                status(record::record_of(request), Status::Revalidated);
                // Another request may have replaced the entry in the meantime.
                let is_same = hit.meta == confirmed.entry;
                if is_same && confirmed.is_void {
                    Box::pin(self.remove()).await;
                }
                let age = if is_same { confirmed.age_s } else { policy::age(&hit.meta, now_ms()) };
                let mut reply = stored::of_hit(request, hit, age).ok_or(Failure::Status(502))?;
                if is_same {
                    reply.head = Rc::new(stored::parse(&confirmed.head).ok_or(Failure::Status(502))?);
                }
                Ok(reply)
            }
            FetchResult::Failed(failed) => {
                let conf = self.conf(request);
                let is_worse =
                    self.stale.as_ref().is_some_and(|hit| failed.is_worse_than(conf, &hit.meta, now_ms()));
                match is_worse {
                    true => Box::pin(self.served_stale(request)).await.ok_or(failed.failure),
                    false => Err(failed.failure),
                }
            }
        }
    }

    /// Returns the stored response for a request.
    pub(super) async fn find(&self, request: &Request) -> Option<Hit> {
        let selector = |vary: &[u8]| policy::variant_of(request, vary);
        let access = access(request, &self.store);
        self.store.find_by(&self.key, &self.text, &selector, access).await.ok().flatten()
    }

    /// Removes the stored responses of the key, because the upstream has withdrawn or changed them.
    pub async fn remove(&self) {
        // If the disk refuses it, the next request leads to the same result.
        let _ = self.store.purge(Scope::Key(self.key.0), PurgeEffect::Unusable).await;
    }

    /// Returns the failure that a response with this status counts as, if the stale response is better.
    pub fn worse_than_stale(&self, request: &Request, conf: &CacheConf, status: u16) -> Option<Failed> {
        let (stale, failed) = (self.known(request)?, Failed::of_status(status));
        failed.is_worse_than(conf, stale, now_ms()).then_some(failed)
    }

    /// Returns the metadata of the stale response; another request may hold the entry.
    fn known<'a>(&'a self, request: &'a Request) -> Option<&'a Meta> {
        match &self.stale {
            Some(hit) => Some(&hit.meta),
            None => request.extensions.get::<Rc<StaleMeta>>().map(|known| &*known.0),
        }
    }

    /// Serves the stale response. The lookup is repeated, because the fetch may still hold the first result.
    async fn served_stale(&self, request: &mut Request) -> Option<Reply> {
        let hit = self.find(request).await.filter(|hit| parts::is_servable(request, hit))?;
        let age = policy::age(&hit.meta, now_ms());
        let reply = stored::of_hit(request, hit, age)?;
        let record = record::record_of(request);
        record.status.get_or_insert(Status::Stale);
        record.has_failed = true;
        Some(reply)
    }

    /// Requests the complete response, because the refreshed entry was removed in the meantime.
    async fn unconditionally(&self, request: &mut Request) -> Result<Reply, Failure> {
        let upstream_request = UpstreamRequest { is_shared: true, ..UpstreamRequest::default() };
        let reply = (self.origin.send_request)(request, &upstream_request).await?;
        record::record_of(request).status.get_or_insert(Status::Expired);
        Ok(reply)
    }

    /// Sends `request`, with or without a client, to the upstream, and begins to store the response if permitted.
    async fn request_upstream(
        &self,
        request: &mut Request,
        stores: bool,
    ) -> (FetchResult, Option<Box<Filler>>) {
        let thread_config = Rc::clone(&request.thread_config);
        let scope = &thread_config.config.location(request.location).scope;
        let upstream_request = self.upstream_request(request, (self.origin.conf)(scope));
        self.send_request(request, stores, upstream_request).await
    }

    /// Works like [`Fetch::request_upstream`], without conditions.
    async fn request_complete(
        &self,
        request: &mut Request,
        stores: bool,
    ) -> (FetchResult, Option<Box<Filler>>) {
        self.send_request(request, stores, UpstreamRequest { is_shared: true, ..UpstreamRequest::default() })
            .await
    }

    async fn send_request(
        &self,
        request: &mut Request,
        stores: bool,
        upstream_request: UpstreamRequest,
    ) -> (FetchResult, Option<Box<Filler>>) {
        let thread_config = Rc::clone(&request.thread_config);
        let scope = &thread_config.config.location(request.location).scope;
        let conf = (self.origin.conf)(scope);
        let origin_request = OriginRequest::new(&self.store, &self.key);
        let reply = match (self.origin.send_request)(request, &upstream_request).await {
            Ok(reply) => reply,
            Err(failure) => {
                let failed = Failed::of(request, failure);
                if stores {
                    self.retain_failure(request, conf, failed);
                }
                return (FetchResult::Failed(failed), None);
            }
        };
        let status = reply.head.head().status().code();
        record::record_of(request).forwarded_status = Some(status);
        self.cache.shared_fetches().failures(&self.key).drop_one(&self.key);
        let heading = Rc::clone(&reply.head);
        let candidate = origin_request.candidate(&reply, &heading, (self.origin.ignored)(scope));
        if status == 304 && upstream_request.has_conditions() {
            if self.known(request).is_none_or(|stored| policy::is_confirmed(stored, &heading)) {
                return (Box::pin(self.refresh(request, conf, &candidate)).await, None);
            }
            // The 304 refers to another response than the stored one; the cache has nothing of that response.
            drop(reply);
            return Box::pin(self.request_complete(request, stores)).await;
        }
        if let Some(failed) = self.worse_than_stale(request, conf, status) {
            record::record_of(request).unstored = Some(Unstored::Worse);
            return (FetchResult::Failed(failed), None);
        }
        if !stores {
            return (FetchResult::Reply(reply), None);
        }
        self.take(request, &candidate, reply).await
    }

    /// Retains a failure for as long as `proxy_cache_valid` permits for its status, as nginx does. It is not retained if a stale
    /// response is used in its place, nor if an upstream has sent a header section: the failure then concerns this one response.
    pub fn retain_failure(&self, request: &Request, conf: &CacheConf, failed: Failed) {
        let Failure::Status(status @ (502 | 504)) = failed.failure else { return };
        let Some(lifetime) = conf.valid_for(status).filter(|time| !time.is_zero()) else { return };
        let last = request.extensions.get::<state::Tries>().and_then(state::Tries::last);
        let is_for_one = last.is_some_and(|last| last.fails_alone());
        // A request with `proxy_cache_bypass` makes no lookup, so a usable stale response would not be known.
        let is_bypass = request
            .extensions
            .get::<Record>()
            .is_some_and(|record| record.forwarded == Some(Forwarded::Bypass));
        // A request that updates a response in the background does not hold the entry.
        let is_stale_used = self
            .known(request)
            .is_some_and(|stale| self.stale.is_none() || failed.is_worse_than(conf, stale, now_ms()));
        let is_unwanted = conf.min_uses > 1 || policy::is_any_set(&conf.no_store, request);
        if !is_for_one && !is_bypass && !is_stale_used && !is_unwanted {
            let variant = variant_key(&self.cache, &self.key, request);
            let failures = self.cache.shared_fetches().failures(&self.key);
            failures.add(&self.key, (variant, failed), lifetime, rt::now());
        }
    }

    /// Begins to store a response if permitted; otherwise the response is for its own request only.
    async fn take(
        &self,
        request: &mut Request,
        candidate: &CacheCandidate<'_>,
        reply: Reply,
    ) -> (FetchResult, Option<Box<Filler>>) {
        // With `proxy_method` the upstream may send a body that the client of a HEAD must not receive.
        if self.is_of_head(request) && !matches!(reply.body, ReplyBody::None) {
            return (FetchResult::Reply(reply), None);
        }
        let thread_config = Rc::clone(&request.thread_config);
        let scope = &thread_config.config.location(request.location).scope;
        match self.begin(request, (self.origin.conf)(scope), candidate).await {
            Ok((fill, filling)) => {
                let now_ms = now_ms();
                let record = record::record_of(request);
                (record.stored, record.ttl_s) = (true, Some(policy::left_s(&filling.meta, now_ms)));
                let received = Rc::clone(&reply.head);
                let body = reply.body.into_bulk(request, (self.origin.upstream)(scope));
                let age = policy::age(&filling.meta, now_ms);
                let own = match body.complete() {
                    // The body was already received completely.
                    Some(bytes) => stored::of_complete(&filling, bytes.clone(), age),
                    // The reader is created before the first byte is read, so that it cannot miss any.
                    None => stored::of_filling(&filling, age),
                };
                let filler = Filler::new(self, candidate, fill, filling, body);
                match own {
                    Some(reply) => {
                        let mut reply = stored::as_new(reply, &received);
                        // RFC 9111 section 5.2.2.4: fields named by `no-cache` are omitted only in later responses.
                        if policy::has_unshared_fields(&received) {
                            // The received header section already has the upstream's `Age`.
                            reply.stored.iter_mut().for_each(|stored| stored.age_s = None);
                            reply.head = received;
                        }
                        (FetchResult::Reply(reply), Some(filler))
                    }
                    None => (FetchResult::Failed(Failed::of_status(502)), None),
                }
            }
            Err(reason) => {
                record::record_of(request).unstored = Some(reason);
                (FetchResult::Reply(reply), None)
            }
        }
    }

    /// Handles a complete response, or an error, to a range request. Other requests for the resource wait for this response, because
    /// each would receive the complete response too. Requests for the same range wait for the fetch `waited_for`.
    pub async fn take_complete(
        &self,
        request: &mut Request,
        origin_request: OriginRequest,
        reply: Reply,
        waited_for: Option<FetchLeader>,
    ) -> Result<Reply, Failure> {
        let Joined::Lead(lead) =
            self.cache.shared_fetches().join(&self.key, self.key, rt::now(), self.limits)
        else {
            return self.take_alone(request, origin_request, reply).await;
        };
        let thread_config = Rc::clone(&request.thread_config);
        let scope = &thread_config.config.location(request.location).scope;
        let heading = Rc::clone(&reply.head);
        let candidate = origin_request.candidate(&reply, &heading, (self.origin.ignored)(scope));
        let (result, filler) = self.take(request, &candidate, reply).await;
        match filler {
            Some(filler) => {
                filler.filling.set_ignores_ranges();
                let lead = self.share(lead, &filler);
                if let Some(waited_for) = waited_for {
                    waited_for.publish(FetchOutcome::Filling(Arc::clone(&filler.filling)));
                }
                self.start(request, Some(filler), lead);
            }
            None => {
                // A 416 for one range does not apply to other ranges.
                if heading.head().status().code() != 416 {
                    lead.publish(FetchOutcome::Alone);
                }
                if let Some(waited_for) = waited_for {
                    waited_for.publish(FetchOutcome::Alone);
                }
            }
        }
        self.conclude(request, result).await
    }

    /// Works like [`Fetch::take`], for a response that was fetched for this request alone.
    pub async fn take_alone(
        &self,
        request: &mut Request,
        origin_request: OriginRequest,
        reply: Reply,
    ) -> Result<Reply, Failure> {
        let thread_config = Rc::clone(&request.thread_config);
        let scope = &thread_config.config.location(request.location).scope;
        let heading = Rc::clone(&reply.head);
        let candidate = origin_request.candidate(&reply, &heading, (self.origin.ignored)(scope));
        let (result, filler) = self.take(request, &candidate, reply).await;
        let lead = filler.as_ref().and_then(|filler| self.announce(filler));
        self.start(request, filler, lead);
        self.conclude(request, result).await
    }

    /// Shares a response that was fetched for one request alone but may be stored: other requests read along, unless another fetch
    /// is in flight.
    fn announce(&self, filler: &Filler) -> Option<FetchLeader> {
        if !policy::is_shareable(&filler.filling.meta) {
            return None;
        }
        self.cache.shared_fetches().unmark(&self.key);
        let Joined::Lead(lead) =
            self.cache.shared_fetches().join(&self.key, self.key, rt::now(), self.limits)
        else {
            return None;
        };
        self.share(lead, filler)
    }

    /// Lets other requests read along with a response. `None` if it is outdated: requests that wait for it repeat the lookup.
    fn share(&self, lead: FetchLeader, filler: &Filler) -> Option<FetchLeader> {
        lead.spread(&self.key, &filler.filling.meta);
        // Checked once the fetch is in the table: a later purge detaches it.
        if !filler.is_current(self) {
            return None;
        }
        lead.publish(FetchOutcome::Filling(Arc::clone(&filler.filling)));
        Some(lead)
    }

    /// Continues a fill in the background of the request. `lead` is dropped when the fill ends.
    fn start(&self, request: &Request, filler: Option<Box<Filler>>, lead: Option<FetchLeader>) {
        let Some(filler) = filler else { return };
        let cache = Arc::clone(&self.cache);
        let counted = request.conn.thread.fetches.enter();
        let finishes = self.conf(request).finishes_fills;
        rt::spawn(async move {
            filler.pump(&cache, finishes).await;
            // Dropped only now: other requests read along until the entry is published.
            drop((lead, counted));
        });
    }

    /// Returns the request to the upstream. Stale responses are revalidated only with `proxy_cache_revalidate`: some upstreams handle
    /// conditions incorrectly, and nginx sends none by default.
    fn upstream_request(&self, request: &Request, conf: &CacheConf) -> UpstreamRequest {
        let mut upstream_request = UpstreamRequest { is_shared: true, ..UpstreamRequest::default() };
        // An entry with holes cannot be served, so a 304 would not help.
        let is_answer = self.stale.as_ref().is_none_or(|hit| parts::is_servable(request, hit));
        if !(conf.revalidate || self.is_confirming) || !is_answer {
            return upstream_request;
        }
        if let Some(known) = self.known(request) {
            upstream_request.if_none_match = (!known.etag.is_empty()).then(|| known.etag.clone());
            upstream_request.if_modified_since = known.last_modified;
        }
        upstream_request
    }

    /// Whether the upstream receives a HEAD request.
    fn is_of_head(&self, request: &Request) -> bool {
        request.method == Method::Head && !self.conf(request).convert_head
    }

    /// Counts this use; returns whether `proxy_cache_min_uses` requires more uses.
    pub fn has_too_few_uses(&self, conf: &CacheConf) -> bool {
        conf.min_uses > 1 && self.store.count_use(&self.key) < conf.min_uses.min(cache::index::USES_MAX)
    }

    /// Begins to store a response and to share it.
    async fn begin(
        &self,
        request: &Request,
        conf: &CacheConf,
        candidate: &CacheCandidate<'_>,
    ) -> Result<(Fill, Arc<Filling>), Unstored> {
        if self.has_too_few_uses(conf) {
            return Err(Unstored::TooFewUses);
        }
        if !policy::is_buffered(conf, candidate) {
            return Err(Unstored::Unbuffered);
        }
        // Checked before the store is called: the header section excludes most responses that may not be stored.
        let mut meta = policy::judge(request, conf, candidate)?;
        // Unless the configuration sets the range, the part may differ from the requested range, may not match stored parts, or may not
        // suit the waiting requests.
        if matches!(meta.status, 206 | 416)
            && !(conf.sets_range
                && requested_slice(request)
                    .is_none_or(|slice| slices::is_storable(&self.text, slice, candidate.heading)))
        {
            return Err(Unstored::Rules(NotStored::Partial));
        }
        let (head, raw) = (candidate.heading.head(), candidate.heading.raw());
        meta.length = head.content_length();
        if let Some(tag) = slice_start(request).and_then(|start| slices_tag(&self.text, start)) {
            policy::collect_tags(std::iter::once(&tag[..]), &mut meta.tags);
        }
        if self.is_of_head(request) {
            policy::set_of_head(request, &mut meta);
        }
        let status_line = head.status_line(raw);
        let status = (head.status(), &*status_line);
        // The field lines were parsed just before.
        let (stored_head, parsed) = policy::stored_head(
            status,
            head.lines(raw),
            retained_fields(&meta),
            candidate.times.response_s(),
        )
        .map_err(|_| Unstored::Refused(Refused::Unstorable))?;
        let (meta, stored_head) = (Arc::new(meta), Arc::from(stored_head));
        let new = New {
            key: self.key,
            text: self.text.clone(),
            meta: Arc::clone(&meta),
            head: Arc::clone(&stored_head),
            is_partial: false,
            request: Arc::clone(candidate.pending_request),
            ticket: Some(Arc::clone(candidate.ticket)),
        };
        let temp_directory = (self.origin.upstream)(request.scope()).temp_path.path();
        let fill = self.store.begin_in(new, temp_directory).await.map_err(Unstored::Refused)?;
        Ok((fill, Filling::new(meta, SharedHead::new(stored_head, parsed))))
    }

    /// Updates the stored response after a 304 (RFC 9111 section 4.3.4).
    async fn refresh(
        &self,
        request: &mut Request,
        conf: &CacheConf,
        candidate: &CacheCandidate<'_>,
    ) -> FetchResult {
        let hit = match &self.stale {
            Some(hit) => Rc::clone(hit),
            None => {
                let request = &*request;
                let selector = |vary: &[u8]| policy::variant_of(request, vary);
                match self.store.find_by(&self.key, &self.text, &selector, access(request, &self.store)).await
                {
                    Ok(Some(hit)) => Rc::new(hit),
                    _ => return FetchResult::Removed,
                }
            }
        };
        match updated(request, conf, candidate, &hit) {
            Some((Ok(meta), head)) => {
                let shared = policy::is_shareable(&meta).then(|| Refreshed::of(&meta));
                // If the write fails, the old entry is revalidated at each use, which is correct too.
                if let Err(reason @ (Refused::Disk | Refused::Removed)) =
                    self.store.refresh(&hit, meta, &head).await
                {
                    let message = format_args!("stored response was not refreshed: {reason}");
                    request.log(Level::Info, message);
                }
                FetchResult::Refreshed { shared }
            }
            // The stored response may not get these fields, but this client must (RFC 9111 section 4.3.4).
            Some((Err(is_void), head)) => {
                let age_s = policy::age(&policy::unstored(candidate), now_ms());
                let entry = Arc::clone(&hit.meta);
                FetchResult::Confirmed(Box::new(Confirmed { entry, head, age_s, is_void }))
            }
            None => FetchResult::Refreshed { shared: None },
        }
    }
}

/// Returns the key of the variant that a request is for; the primary key while the fields of `Vary` are not known.
pub fn variant_key(cache: &Cache, key: &Key, request: &Request) -> Key {
    match cache.shared_fetches().varying(key) {
        Some(vary) => key.variant(&policy::variant_of(request, &vary)),
        None => *key,
    }
}

/// Returns the fields of a stored head that describe its own body. A response to HEAD has no body; its `Content-Length` is that of
/// GET.
fn retained_fields(meta: &Meta) -> &'static [HeaderId] {
    match policy::is_of_head(meta) {
        true => &[HeaderId::ContentRange, HeaderId::ContentLength],
        false => &[HeaderId::ContentRange],
    }
}

/// Returns the metadata of a stored response after a 304, and its header section. `Err` means that the updated response may not be
/// stored; with `Err(true)` the stored response may not be used again either.
fn updated(
    request: &Request,
    conf: &CacheConf,
    candidate: &CacheCandidate<'_>,
    hit: &Hit,
) -> Option<(Result<Meta, bool>, Vec<u8>)> {
    let head = hit.parsed_head()?;
    let (fresh, raw) = (candidate.heading.head(), candidate.heading.raw());
    let mut lines: Vec<FieldLine<'_>> = Vec::new();
    let update = stored_fields::update(head.lines(hit.head()), fresh.lines(raw), &mut lines);
    // A 304 without a date gets the time of its arrival, like other responses (RFC 9110 section 6.6.1).
    let is_date =
        |line: FieldLine<'_>| line.id == HeaderId::Date && http::date::parse_http(line.value).is_some();
    if !fresh.lines(raw).any(is_date) {
        lines.retain(|line| line.id != HeaderId::Date);
    }
    let status = (head.status(), head.status_text().of(hit.head()));
    let received_s = candidate.times.response_s();
    let write =
        |keeps: &[HeaderId]| policy::stored_head(status, lines.iter().copied(), keeps, received_s).ok();
    let (merged, _) = write(retained_fields(&hit.meta))?;
    if update.vary_changed && !candidate.ignored.vary {
        return Some((Err(true), merged));
    }
    // The age of the 304 counts, but is not stored.
    let (judged, judged_head) = write(&[retained_fields(&hit.meta), &[HeaderId::Age]].concat())?;
    let heading = upstream::Heading::new(io::segments::Source::Vec(judged), judged_head);
    let candidate = CacheCandidate { heading: &heading, ..*candidate };
    let mut meta = match policy::judge(request, conf, &candidate) {
        Ok(meta) => meta,
        Err(reason) => {
            let is_void = reason.is_prohibition() && !reason.is_of_request();
            return Some((Err(is_void), merged));
        }
    };
    // The stored body is unchanged.
    meta.length = hit.meta.length;
    meta.vary.clone_from(&hit.meta.vary);
    meta.variant.clone_from(&hit.meta.variant);
    meta.tags.clone_from(&hit.meta.tags);
    meta.status = hit.meta.status;
    Some((Ok(meta), merged))
}

/// Copies this request without its client, so that the copy can continue after this request has ended.
pub fn detached(request: &Request) -> Box<Request> {
    // The current values of the configuration's variables: the key and the upstream address may depend on them.
    copy(request, request.detached_values(), request.facts.copied())
}

/// Works like [`detached`], for the fetch that this request leads. Facts that the fetch finds, such as `$uid_set` or the range of a
/// slice, are also those of the response and of the access log, as `$request_id` is.
///
/// Values of the configuration's variables are copied, because others may change the originals while the fetch works: subrequests
/// of the same page assign variables of `set`, and the access log of a client that has left computes values of `map` without a response.
fn leading(request: &Request) -> Box<Request> {
    copy(request, request.detached_values(), request.facts.shared())
}

fn copy(request: &Request, shared: Shared, facts: Facts) -> Box<Request> {
    let mut child = request.child();
    child.location = request.location;
    child.method = request.method;
    child.uri.clone_from(&request.uri);
    child.args.clone_from(&request.args);
    child.shared = Rc::new(shared);
    child.captures.clone_from(&request.captures);
    child.started = request.started;
    // The copy is not a client request: it keeps the depth of the original, which matters for responses included in others.
    child.depth = request.depth;
    child.internal = request.internal;
    child.uri_replaced = request.uri_replaced;
    child.left_location = request.left_location;
    child.facts = facts;
    child.is_detached = true;
    subrequest::detach(request, &mut child);
    child
}

/// Starts the task of a fetch.
fn spawn(mut child: Box<Request>, fetch: Rc<Fetch>, lead: FetchLeader, handed: Option<Handed>) {
    // A worker process that shuts down waits for the fetches in flight.
    let counted = child.conn.thread.fetches.enter();
    child.is_awaited = handed.is_some();
    rt::spawn(async move {
        let (result, fill) = fetch.request_upstream(&mut child, true).await;
        let outcome = match (&result, &fill) {
            (_, Some(fill)) if policy::is_shareable(&fill.filling.meta) => {
                FetchOutcome::Filling(Arc::clone(&fill.filling))
            }
            (FetchResult::Reply(_) | FetchResult::Confirmed(_), _)
            | (FetchResult::Refreshed { shared: None }, None) => FetchOutcome::Alone,
            (FetchResult::Refreshed { shared: Some(refreshed) }, _) => {
                FetchOutcome::Refreshed(refreshed.clone())
            }
            (FetchResult::Refreshed { .. } | FetchResult::Removed, _) => FetchOutcome::Retry,
            (FetchResult::Failed(failed), _) => FetchOutcome::Failed(*failed),
        };
        // Without a leader, as in the background or after its client has disconnected, the task itself removes a void entry.
        if handed.as_ref().is_none_or(|handed| Rc::strong_count(&handed.slot) == 1)
            && let FetchResult::Confirmed(confirmed) = &result
            && confirmed.is_void
        {
            fetch.remove().await;
        }
        let is_background = handed.is_none();
        match handed {
            Some(handed) => {
                let tries = child.extensions.remove::<state::Tries>();
                let cookie = child.extensions.remove::<SetCookie>();
                let record = record::record_of(&mut child).clone();
                *handed.slot.borrow_mut() = Some((result, tries, cookie, record));
                handed.event.set();
            }
            // No client reads the response. As a reader, it would block a fill whose disk has failed.
            None => drop(result),
        }
        // After a failure without a leader the stale response remains in use; the reason is already logged.
        // The outcome is published after the hand-over: followers that run before the leader would find an outdated store.
        if let Some(fill) = fill.as_ref().filter(|fill| policy::is_shareable(&fill.filling.meta)) {
            lead.spread(&fetch.key, &fill.filling.meta);
            // A purge has detached an outdated fetch from its key, so later requests must not find it at the key of its variant.
            // After the insertion, so that no purge is missed.
            if !fill.is_current(&fetch) {
                lead.leave();
            }
        }
        lead.publish(outcome);
        if let Some(fill) = fill {
            let finishes = is_background || fetch.conf(&child).finishes_fills;
            fill.pump(&fetch.cache, finishes).await;
        }
        drop((lead, counted));
    });
}
