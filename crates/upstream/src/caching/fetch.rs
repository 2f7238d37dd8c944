//! Asking the upstream for a response that others may get too, and filling the cache with it.
//!
//! The leading request fetches in a separate task, so that the waiting requests and the cache still get the response
//! when its client disconnects. A response that must not be shared is returned to the leader alone.
//!
//! ```text
//!   leader --spawn--> task: ask --+-- may be stored --> Filling: to leader, to followers, into the store
//!      ^                          +-- 304 ------------> stored answer refreshed; all look it up again
//!      |                          +-- is for one ------> handed to the leader; the others ask themselves
//!      +----- handed over --------+-- failed ----------> leader and followers decide on a stale answer, each for itself
//! ```
//! Order matters twice. The leader's reader of a [`Filling`] is made before the first byte is read from the upstream,
//! and the leader gets the outcome of a fetch before the waiting requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cache::{Fill, Hit, Key, Meta, New, Refused, Store};
use http::freshness::store::NotStored;
use http::reply::FieldLine;
use http::request::{HeaderId, Method};
use http::stored_fields;
use rt::local::Event;

use crate::caching::asked::{SliceStart, slice_start};
use crate::caching::filler::Filler;
use crate::caching::filling::{Filling, SharedHead};
use crate::caching::policy::{self, Answer, Failed, Question, now_s};
use crate::caching::record::{self, Record, Status, Unstored};
use crate::caching::settings::CacheConf;
use crate::caching::shared_fetch::{FetchLeader, Joined, Outcome};
use crate::caching::tasks::Cache;
use crate::caching::{Origin, Wanted, access, or_gone, parts, stored};
use crate::{Failure, Reply, ReplyBody, state};
use exchange::request::Request;
use telemetry::Level;

/// One fetch.
pub struct Fetch {
    /// The way to ask the upstream.
    pub origin: &'static Origin,
    /// The shared fetches of the cache.
    pub cache: Arc<Cache>,
    /// Where the response goes.
    pub store: Arc<Store>,
    /// The primary key: the store distinguishes variants.
    pub key: Key,
    /// Its text.
    pub text: Vec<u8>,
    /// The stored stale response. The fetch may confirm it (304), or it may be the better response when the new one is
    /// an error.
    pub stale: Option<Rc<Hit>>,
    /// How long other fetches may bring nothing before they are no longer waited for.
    pub limit: Duration,
}

/// The facts of a stored response to be revalidated: enough for the conditions of a request, without holding the entry
/// while it is served to another request.
pub struct Known(Arc<Meta>);

impl Known {
    /// The facts of an entry.
    pub fn of(hit: &Hit) -> Known {
        Known(Arc::clone(&hit.meta))
    }
}

/// The outcome of a request to the upstream.
pub enum Answered {
    /// A response for this request, and for others if it is being stored.
    Reply(Reply),
    /// The stored one is fresh again, for the waiting requests too or for this request alone.
    Refreshed {
        /// Whether others may use it too.
        is_for_others: bool,
    },
    /// There is none, and the log has the reason of each try, or one that is worse than the stored one.
    Failed(Failed),
}

/// The result that the task of a fetch passes to its leader.
#[derive(Clone, Default)]
struct Handed {
    /// Filled before the event is set.
    slot: Rc<RefCell<Option<Handing>>>,
    event: Event,
}

/// The response, and the record of its fetch.
type Handing = (Answered, Option<state::Tries>, Record);

impl Fetch {
    /// Fetches for this request alone: others do not wait for it. `stores` is whether the response may be stored.
    pub async fn alone(self, request: &mut Request, stores: bool) -> Result<Reply, Failure> {
        let (answered, filler) = self.ask(request, stores).await;
        let shared = filler.as_ref().filter(|filler| !policy::is_of_head(&filler.filling.meta));
        let lead = shared.and_then(|filler| self.announce(filler));
        self.start(request, filler, lead);
        self.conclude(request, answered).await
    }

    /// Fetches for this request and the waiting ones.
    pub async fn lead(self, request: &mut Request, lead: FetchLeader) -> Result<Reply, Failure> {
        let Some(child) = detached(request) else { return Err(Failure::Status(500)) };
        let handed = Handed::default();
        let fetch = Rc::new(self);
        spawn(child, Rc::clone(&fetch), lead, Some(handed.clone()));
        or_gone(request, handed.event.wait()).await?;
        let Some((answered, tries, record)) = handed.slot.take() else { return Err(Failure::Status(500)) };
        if let Some(tries) = tries {
            request.extensions.insert(tries);
        }
        let own = record::of(request);
        (own.forwarded_status, own.stored, own.unstored) =
            (record.forwarded_status, record.stored, record.unstored);
        fetch.conclude(request, answered).await
    }

    /// Fetches beside a request that has its response already.
    pub fn beside(self, request: &Request, lead: FetchLeader, known: Known) {
        let Some(mut child) = detached(request) else { return };
        child.extensions.insert(Rc::new(known));
        spawn(child, Rc::new(self), lead, None);
    }

    /// Fetches for the waiting requests, beside a request whose response stalls. Nothing is fetched where memory is
    /// short.
    pub fn lead_beside(fetch: &Rc<Fetch>, request: &Request, lead: FetchLeader) {
        if let Some(child) = detached(request) {
            spawn(child, Rc::clone(fetch), lead, None);
        }
    }

    /// The settings of the cache where the request is.
    pub fn conf<'r>(&self, request: &'r Request) -> &'r CacheConf {
        (self.origin.conf)(request.scope())
    }

    /// Makes the response to this request out of the outcome. State that a miss does not need is boxed, so that a miss
    /// has no room for it.
    pub async fn conclude(&self, request: &mut Request, answered: Answered) -> Result<Reply, Failure> {
        let had = record::of(request).had();
        let status = |record: &mut Record, status| {
            record.status.get_or_insert(status);
        };
        match answered {
            Answered::Reply(reply) => {
                status(record::of(request), had);
                Ok(reply)
            }
            Answered::Refreshed { .. } => {
                let found = {
                    let request = &*request;
                    let selector = |vary: &[u8]| policy::variant_of(request, vary);
                    let access = access(request, &self.store);
                    Box::pin(self.store.find_by(&self.key, &self.text, &selector, access)).await
                };
                let stale = self.stale.as_ref().map(|hit| Arc::clone(&hit.meta));
                match (found, stale) {
                    (Ok(Some(hit)), _) => {
                        let age = policy::age(&hit.meta, now_s());
                        status(record::of(request), Status::Revalidated);
                        stored::of_hit(request, hit, age).ok_or(Failure::Status(502))
                    }
                    _ => self.unconditionally(request).await,
                }
            }
            Answered::Failed(failed) => {
                let conf = self.conf(request);
                let is_worse =
                    self.stale.as_ref().is_some_and(|hit| failed.is_worse_than(conf, &hit.meta, now_s()));
                match is_worse {
                    true => Box::pin(self.served_stale(request)).await.ok_or(failed.failure),
                    false => Err(failed.failure),
                }
            }
        }
    }

    /// The outcome of a response with this status, where the stale one is better.
    pub fn worse_than_stale(&self, request: &Request, conf: &CacheConf, status: u16) -> Option<Failed> {
        let (stale, failed) = (self.known(request)?, Failed::of_status(status));
        failed.is_worse_than(conf, stale, now_s()).then_some(failed)
    }

    /// The facts of the stored stale response, which another request may hold.
    fn known<'a>(&'a self, request: &'a Request) -> Option<&'a Meta> {
        match &self.stale {
            Some(hit) => Some(&hit.meta),
            None => request.extensions.get::<Rc<Known>>().map(|known| &*known.0),
        }
    }

    /// The stored stale response. It is looked up again, because the fetch may still hold the first result.
    async fn served_stale(&self, request: &mut Request) -> Option<Reply> {
        let found = {
            let request = &*request;
            let selector = |vary: &[u8]| policy::variant_of(request, vary);
            self.store.find_by(&self.key, &self.text, &selector, access(request, &self.store)).await
        };
        let hit = found.ok()?.filter(|hit| parts::is_servable(request, hit))?;
        let age = policy::age(&hit.meta, now_s());
        let reply = stored::of_hit(request, hit, age)?;
        record::of(request).status.get_or_insert(Status::Stale);
        Some(reply)
    }

    /// The refreshed entry is gone meanwhile: the whole is requested.
    async fn unconditionally(&self, request: &mut Request) -> Result<Reply, Failure> {
        let wanted = Wanted { is_shared: true, ..Wanted::default() };
        let reply = (self.origin.ask)(request, &wanted).await?;
        record::of(request).status.get_or_insert(Status::Expired);
        Ok(reply)
    }

    /// Sends `request`, with or without a client, to the upstream, and begins to store the response if it may be
    /// stored.
    async fn ask(&self, request: &mut Request, stores: bool) -> (Answered, Option<Box<Filler>>) {
        let generation = Rc::clone(&request.generation);
        let scope = &generation.config.location(request.location).scope;
        let wanted = self.wanted(request, (self.origin.conf)(scope));
        self.ask_what(request, stores, wanted).await
    }

    /// As [`Fetch::ask`] without conditions.
    async fn ask_for_whole(&self, request: &mut Request, stores: bool) -> (Answered, Option<Box<Filler>>) {
        self.ask_what(request, stores, Wanted { is_shared: true, ..Wanted::default() }).await
    }

    async fn ask_what(
        &self,
        request: &mut Request,
        stores: bool,
        wanted: Wanted,
    ) -> (Answered, Option<Box<Filler>>) {
        let generation = Rc::clone(&request.generation);
        let scope = &generation.config.location(request.location).scope;
        let conf = (self.origin.conf)(scope);
        let question = Question::new(&self.store, &self.key);
        let reply = match (self.origin.ask)(request, &wanted).await {
            Ok(reply) => reply,
            Err(failure) => return (Answered::Failed(Failed::of(request, failure)), None),
        };
        let status = reply.head.head().status().code();
        record::of(request).forwarded_status = Some(status);
        let heading = Rc::clone(&reply.head);
        let answer = question.answer(&reply, &heading, (self.origin.ignored)(scope));
        if status == 304 && wanted.has_conditions() {
            if self.known(request).is_none_or(|stored| policy::is_confirmed(stored, &heading)) {
                return (Box::pin(self.refresh(request, conf, &answer)).await, None);
            }
            // It is about another response than the stored one, of which nothing is here.
            drop(reply);
            return Box::pin(self.ask_for_whole(request, stores)).await;
        }
        if let Some(failed) = self.worse_than_stale(request, conf, status) {
            record::of(request).unstored = Some(Unstored::Worse);
            return (Answered::Failed(failed), None);
        }
        if !stores {
            return (Answered::Reply(reply), None);
        }
        self.take(request, &answer, reply).await
    }

    /// Begins to store a response if permitted; otherwise it is for its own request.
    async fn take(
        &self,
        request: &mut Request,
        answer: &Answer<'_>,
        reply: Reply,
    ) -> (Answered, Option<Box<Filler>>) {
        // `proxy_method` may have requested a body that this client does not get.
        if self.is_of_head(request) && !matches!(reply.body, ReplyBody::None) {
            return (Answered::Reply(reply), None);
        }
        let generation = Rc::clone(&request.generation);
        let scope = &generation.config.location(request.location).scope;
        match self.begin(request, (self.origin.conf)(scope), answer).await {
            Ok((fill, filling)) => {
                record::of(request).stored = true;
                let body = reply.body.into_coming(request, (self.origin.upstream)(scope));
                let age = policy::age(&filling.meta, now_s());
                let own = match body.whole() {
                    // Received bytes need no further wait.
                    Some(bytes) => stored::of_whole(&filling, bytes.clone(), age),
                    // Made before a byte has come, so that none of them can be lost to it.
                    None => stored::of_filling(&filling, age),
                };
                let filler = Filler::new(self, answer, fill, filling, body);
                match own {
                    Some(reply) => (Answered::Reply(stored::as_new(reply)), Some(filler)),
                    None => (Answered::Failed(Failed::of_status(502)), None),
                }
            }
            Err(reason) => {
                record::of(request).unstored = Some(reason);
                (Answered::Reply(reply), None)
            }
        }
    }

    /// Takes the whole response of an upstream to a request for a range. Other requests for the resource wait for it,
    /// because each would get the whole. Requests for the same range wait for `waited_for`.
    pub async fn take_whole(
        &self,
        request: &mut Request,
        question: Question,
        reply: Reply,
        waited_for: Option<FetchLeader>,
    ) -> Result<Reply, Failure> {
        let Joined::Lead(lead) = self.cache.shared_fetches().join(&self.key, self.key, rt::now(), self.limit)
        else {
            return self.take_alone(request, question, reply).await;
        };
        let generation = Rc::clone(&request.generation);
        let scope = &generation.config.location(request.location).scope;
        let heading = Rc::clone(&reply.head);
        let answer = question.answer(&reply, &heading, (self.origin.ignored)(scope));
        let (answered, filler) = self.take(request, &answer, reply).await;
        match filler {
            Some(filler) => {
                filler.filling.refuse_parts();
                lead.spread(&self.key, &filler.filling.meta);
                lead.publish(Outcome::Filling(Arc::clone(&filler.filling)));
                if let Some(waited_for) = waited_for {
                    waited_for.publish(Outcome::Filling(Arc::clone(&filler.filling)));
                }
                self.start(request, Some(filler), Some(lead));
            }
            None => {
                // A failure of one range is no failure of other ranges.
                if heading.head().status().code() != 416 {
                    lead.publish(Outcome::Alone);
                }
                if let Some(waited_for) = waited_for {
                    waited_for.publish(Outcome::Alone);
                }
            }
        }
        self.conclude(request, answered).await
    }

    /// As [`Fetch::take`], of a response that came for this request alone.
    pub async fn take_alone(
        &self,
        request: &mut Request,
        question: Question,
        reply: Reply,
    ) -> Result<Reply, Failure> {
        let generation = Rc::clone(&request.generation);
        let scope = &generation.config.location(request.location).scope;
        let heading = Rc::clone(&reply.head);
        let answer = question.answer(&reply, &heading, (self.origin.ignored)(scope));
        let (answered, filler) = self.take(request, &answer, reply).await;
        let lead = filler.as_ref().and_then(|filler| self.announce(filler));
        self.start(request, filler, lead);
        self.conclude(request, answered).await
    }

    /// Shares a response that came for one request alone and may be stored after all: others read along, unless another
    /// fetch is in flight.
    fn announce(&self, filler: &Filler) -> Option<FetchLeader> {
        if !policy::is_for_others(&filler.filling.meta) {
            return None;
        }
        self.cache.shared_fetches().unmark(&self.key);
        let Joined::Lead(lead) = self.cache.shared_fetches().join(&self.key, self.key, rt::now(), self.limit)
        else {
            return None;
        };
        lead.spread(&self.key, &filler.filling.meta);
        lead.publish(Outcome::Filling(Arc::clone(&filler.filling)));
        Some(lead)
    }

    /// Lets a fill continue beside the request. `lead` is dropped at its end.
    fn start(&self, request: &Request, filler: Option<Box<Filler>>, lead: Option<FetchLeader>) {
        let Some(filler) = filler else { return };
        let cache = Arc::clone(&self.cache);
        let counted = request.conn.thread.fetches.enter();
        let finishes = self.conf(request).finishes_fills;
        rt::spawn(async move {
            filler.pump(&cache, finishes).await;
            // Only now: until its entry is found, others read along.
            drop((lead, counted));
        });
    }

    /// The request to the upstream. It is conditional only with `proxy_cache_revalidate`: some upstreams handle
    /// conditions wrongly, and nginx does not send them by default.
    fn wanted(&self, request: &Request, conf: &CacheConf) -> Wanted {
        let mut wanted = Wanted { is_shared: true, ..Wanted::default() };
        // An entry with holes cannot be served, so a confirmation would not help.
        let is_answer = self.stale.as_ref().is_none_or(|hit| parts::is_servable(request, hit));
        if !conf.revalidate || !is_answer {
            return wanted;
        }
        if let Some(known) = self.known(request) {
            wanted.if_none_match = (!known.etag.is_empty()).then(|| known.etag.clone());
            wanted.if_modified_since = known.last_modified;
        }
        wanted
    }

    /// Whether the upstream gets a HEAD.
    fn is_of_head(&self, request: &Request) -> bool {
        request.method == Method::Head && !self.conf(request).convert_head
    }

    /// Counts this use, and returns whether more are required (`proxy_cache_min_uses`).
    pub fn has_too_few_uses(&self, conf: &CacheConf) -> bool {
        conf.min_uses > 1 && u64::from(self.store.count_use(&self.key)) < conf.min_uses
    }

    /// Begins to store a response, and to share it.
    async fn begin(
        &self,
        request: &Request,
        conf: &CacheConf,
        answer: &Answer<'_>,
    ) -> Result<(Fill, Arc<Filling>), Unstored> {
        if self.has_too_few_uses(conf) {
            return Err(Unstored::TooFewUses);
        }
        // Judged before the store is called: the header section rules out most responses that may not be stored.
        let mut meta = policy::judge(request, conf, answer)?;
        if matches!(meta.status, 206 | 416) && !conf.sets_range {
            // Not the requested part, or not one that could be joined with others; or a part that the others did not
            // request.
            return Err(Unstored::Rules(NotStored::Partial));
        }
        let (head, raw) = (answer.heading.head(), answer.heading.raw());
        meta.length = head.content_length();
        if self.is_of_head(request) {
            policy::set_of_head(request, &mut meta);
        }
        let status_line = head.status_line(raw);
        let status = (head.status(), &*status_line);
        // Its lines have just been parsed.
        let (stored_head, parsed) =
            policy::stored_head(status, head.lines(raw), kept_fields(&meta), answer.times.response)
                .map_err(|_| Unstored::Refused(Refused::Unstorable))?;
        let (meta, stored_head) = (Arc::new(meta), Arc::from(stored_head));
        let new = New {
            key: self.key,
            text: self.text.clone(),
            meta: Arc::clone(&meta),
            head: Arc::clone(&stored_head),
            is_partial: false,
            asked: Arc::clone(answer.question),
            ticket: Some(Arc::clone(answer.ticket)),
        };
        let temp_folder = &(self.origin.upstream)(request.scope()).temp_path.0;
        let fill = self.store.begin_in(new, temp_folder).await.map_err(Unstored::Refused)?;
        Ok((fill, Filling::new(meta, SharedHead::new(stored_head, parsed))))
    }

    /// Updates the stored response by a 304 (RFC 9111 section 4.3.4).
    async fn refresh(&self, request: &mut Request, conf: &CacheConf, answer: &Answer<'_>) -> Answered {
        let hit = match &self.stale {
            Some(hit) => Rc::clone(hit),
            None => {
                let request = &*request;
                let selector = |vary: &[u8]| policy::variant_of(request, vary);
                match self.store.find_by(&self.key, &self.text, &selector, access(request, &self.store)).await
                {
                    Ok(Some(hit)) => Rc::new(hit),
                    _ => return Answered::Refreshed { is_for_others: true },
                }
            }
        };
        match updated(request, conf, answer, &hit) {
            Some((meta, head)) => {
                let is_for_others = policy::is_for_others(&meta);
                // If the write fails, the old entry is revalidated each time, which is correct too.
                if let Err(reason @ (Refused::Disk(_) | Refused::Gone)) =
                    self.store.refresh(&hit, meta, &head).await
                {
                    let message = format_args!("stored answer was not refreshed: {reason}");
                    request.log(Level::Info, message);
                }
                Answered::Refreshed { is_for_others }
            }
            None => Answered::Refreshed { is_for_others: false },
        }
    }
}

/// Fields of a stored head that describe its own body. A response to HEAD has none, so its length is that of GET.
fn kept_fields(meta: &Meta) -> &'static [HeaderId] {
    match policy::is_of_head(meta) {
        true => &[HeaderId::ContentRange, HeaderId::ContentLength],
        false => &[HeaderId::ContentRange],
    }
}

/// The facts and the header section of a stored response after a 304.
fn updated(request: &Request, conf: &CacheConf, answer: &Answer<'_>, hit: &Hit) -> Option<(Meta, Vec<u8>)> {
    let head = http::reply::parse_written(hit.head())?;
    let (fresh, raw) = (answer.heading.head(), answer.heading.raw());
    let mut lines: Vec<FieldLine<'_>> = Vec::new();
    let update = stored_fields::update(head.lines(hit.head()), fresh.lines(raw), &mut lines);
    if update.vary_changed {
        return None;
    }
    let status = (head.status(), head.status_text().of(hit.head()));
    let received_s = answer.times.response;
    let (merged, merged_head) =
        policy::stored_head(status, lines.iter().copied(), kept_fields(&hit.meta), received_s).ok()?;
    let heading = crate::Heading::new(io::op::Source::Vec(merged.clone()), merged_head);
    let answer = Answer { heading: &heading, ..*answer };
    let mut meta = policy::judge(request, conf, &answer).ok()?;
    // The stored body has not changed.
    meta.length = hit.meta.length;
    meta.vary.clone_from(&hit.meta.vary);
    meta.variant.clone_from(&hit.meta.variant);
    meta.tags.clone_from(&hit.meta.tags);
    meta.status = hit.meta.status;
    Some((meta, merged))
}

/// A copy of this request without a client, which continues when this one is gone.
pub fn detached(request: &Request) -> Option<Box<Request>> {
    let mut child = request.child()?;
    child.location = request.location;
    child.method = request.method;
    child.uri.clone_from(&request.uri);
    child.args.clone_from(&request.args);
    // The present values of the configuration's variables: key and upstream address may depend on them.
    child.shared = Rc::new(request.shared.apart_with_values());
    child.captures.clone_from(&request.captures);
    child.started = request.started;
    // Not one that the client made: what counts on its depth is about responses that are put into others.
    child.depth = request.depth;
    child.internal = request.internal;
    child.uri_replaced = request.uri_replaced;
    child.left_location = request.left_location;
    if let Some(start) = slice_start(request) {
        child.facts.insert(SliceStart(start));
    }
    child.is_detached = true;
    Some(child)
}

/// Starts the task of a fetch.
fn spawn(mut child: Box<Request>, fetch: Rc<Fetch>, lead: FetchLeader, handed: Option<Handed>) {
    // A worker that ends waits for it.
    let counted = child.conn.thread.fetches.enter();
    child.is_awaited = handed.is_some();
    rt::spawn(async move {
        let (answered, fill) = fetch.ask(&mut child, true).await;
        let outcome = match (&answered, &fill) {
            (_, Some(fill)) if policy::is_for_others(&fill.filling.meta) => {
                Outcome::Filling(Arc::clone(&fill.filling))
            }
            (Answered::Reply(_), _) | (Answered::Refreshed { is_for_others: false }, None) => Outcome::Alone,
            (Answered::Refreshed { .. }, _) => Outcome::LookAgain,
            (Answered::Failed(failed), _) => Outcome::Failed(*failed),
        };
        if let Some(handed) = handed {
            let tries = child.extensions.remove::<state::Tries>();
            let record = record::of(&mut child).clone();
            *handed.slot.borrow_mut() = Some((answered, tries, record));
            handed.event.set();
        } else if let Answered::Failed(_) = answered {
            // No request waits, and the stale response is still served: the log has the reason already.
        }
        // After the hand-over: followers that are quicker than the leader would find the store as it was.
        if let Some(fill) = fill.as_ref().filter(|fill| policy::is_for_others(&fill.filling.meta)) {
            lead.spread(&fetch.key, &fill.filling.meta);
        }
        lead.publish(outcome);
        if let Some(fill) = fill {
            let finishes = fetch.conf(&child).finishes_fills;
            fill.pump(&fetch.cache, finishes).await;
        }
        drop((lead, counted));
    });
}
