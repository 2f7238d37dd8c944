//! The cache of upstream responses: decides which requests use an entry, which request fetches, and which requests wait.
//!
//! ```text
//!   handler -- serve --> lookup --fresh--> served (HIT)
//!                           |
//!                           +--stale or none--> join the fetch of the key (shared_fetch)
//!                                                |            \-- follow: wait for the head, read along (filling)
//!                                                +-- lead: a separate task requests the upstream and fills the cache
//! ```
//!
//! A module such as `proxy` sends the requests to its upstream ([`ModuleFunctions`]); this crate decides when, and makes no connection
//! itself. The store is the crate `cache`.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `cache`, `telemetry`, `transfer`, `site`, `exchange`,
//! `peers`, `upstream`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`metrics`] | rows of the counters |
//! | [`inspect`] | the entry for a request of `ringroad explain` |
//! | [`purge`] | purges, and entries that an unsafe request invalidates |
//! | [`fetch`], [`filler`], [`following`], [`parts`], [`holes`], [`slices`] | one request to the upstream for all waiting requests; stores a body while it arrives; clients whose fetch stalls; partial entries; ranges that are not stored; keys of slices, and whether the stored slices of a response are of one version |
//! | [`trailed`] | trailer fields for the client whose request fetched |
//! | [`policy`], [`stored`] | whether a response may be stored and used; responses from the cache |
//! | [`settings`], [`tasks`] | the settings of the directives; opens and closes the stores |
//! | [`tally`] | counters |
//! | [`record`] | values of variables |
//! | [`shared_fetch`], [`pending`] | coalesced requests; complete responses that are not yet stored |
//! | [`stall_limits`] | when a fetch counts as stalled |
//! | [`filling`] | a body with its readers while it is stored |
//! | [`requested_range`] | the byte ranges of a client's request, of a 206 from an upstream, and of a slice |
//! | [`failures`] | failed requests, and failures that `proxy_cache_valid` retains |
//! | [`clock`] | times in ms since 1970 |

#![forbid(unsafe_code)]

pub mod clock;
pub mod failures;
pub mod fetch;
pub mod filler;
pub mod filling;
pub mod following;
pub mod holes;
pub mod inspect;
pub mod metrics;
pub mod parts;
pub mod pending;
pub mod policy;
pub mod purge;
pub mod record;
pub mod requested_range;
pub mod settings;
pub mod shared_fetch;
pub mod slices;
pub mod stall_limits;
pub mod stored;
pub mod tally;
pub mod tasks;
pub mod trailed;

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use cache::{Access, Hit, Key, Meta, Store, StoreError};
use http::cache_control::RequestCacheControl;
use http::cache_status::Forwarded;
use http::fields::{HeaderId, Method};
use http::freshness::Reuse;
use http::freshness::store::Ignored;
use rt::{Either, select};

use crate::clock::now_ms;
use crate::failures::{Failed, Stale};
use crate::fetch::Fetch;
use crate::policy::Grade;
use crate::record::{Record, Status, Unstored};
use crate::requested_range::{RenewsSlice, RequestedRange, slice_start};
use crate::settings::CacheConf;
use crate::shared_fetch::{FetchOutcome, Joined, Refreshed, SharedFetch};
use crate::stall_limits::StallLimits;
use crate::tasks::Cache;
use exchange::client;
use exchange::request::Request;
use site::config::Scope;
use transfer::body::{buffer_turns, choose};
use upstream::{Failure, Reply, Settings};

/// How a module sends requests to its upstream, and its cache settings.
pub struct ModuleFunctions {
    /// The cache settings.
    pub conf: fn(&Scope) -> &CacheConf,
    /// The upstream settings.
    pub upstream: fn(&Scope) -> &Settings,
    /// The response fields to ignore.
    pub ignored: fn(&Scope) -> Ignored,
    /// Sends a request to the upstream.
    pub send_request: SendRequest,
}

/// See [`ModuleFunctions::send_request`].
pub type SendRequest = for<'a> fn(
    &'a mut Request,
    &'a UpstreamRequest,
) -> Pin<Box<dyn Future<Output = Result<Reply, Failure>> + 'a>>;

/// Changes to the client's request when it is sent to an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamRequest {
    /// Whether the response may be shared: the request then omits the client's conditions and ranges, and uses GET for HEAD.
    pub is_shared: bool,
    /// `If-None-Match`
    pub if_none_match: Option<Vec<u8>>,
    /// `If-Modified-Since`, in seconds since 1970.
    pub if_modified_since: Option<i64>,
    /// `Range`
    pub range: Option<Vec<u8>>,
    /// `If-Range`
    pub if_range: Option<Vec<u8>>,
}

impl UpstreamRequest {
    /// Whether the conditions are those of the cache, so that a 304 is for the cache and not for the client.
    pub fn has_conditions(&self) -> bool {
        self.if_none_match.is_some() || self.if_modified_since.is_some()
    }
}

/// Maximum number of lookups per request; more are needed only if the entry changes faster than it is looked up.
const LOOKUPS_MAX: u32 = 4;

/// Serves a request from the cache or from the upstream.
///
/// # Errors
/// The status of an error, or the disconnection of the client.
pub async fn serve(
    request: &mut Request,
    origin: &'static ModuleFunctions,
    cache: Arc<Cache>,
    text: Vec<u8>,
) -> Result<Reply, Failure> {
    // An earlier location of the request may have had a cache, too (`error_page`).
    if let Some(earlier) = request.extensions.get_mut::<Record>() {
        *earlier = Record::default();
    }
    let thread_config = Rc::clone(&request.thread_config);
    let conf = (origin.conf)(&thread_config.config.location(request.location).scope);
    let Some(store) = cache.store() else {
        record::record_of(request).key = text;
        tally::count(request, cache.tallies());
        return (origin.send_request)(
            request,
            &UpstreamRequest { is_shared: true, ..UpstreamRequest::default() },
        )
        .await;
    };
    let key = Key::of_recent(&text);
    let control = policy::control_of(request, conf);
    let lookup = CacheLookup { origin, conf, cache: &cache, store, key, text, control, stalls: Cell::new(0) };
    if policy::is_any_set(&conf.bypass, request) || request.facts.get::<RenewsSlice>().is_some() {
        let record = record::record_of(request);
        (record.status, record.forwarded) = (Some(Status::Bypass), Some(Forwarded::Bypass));
        let result = match control.only_if_cached {
            true => Err(Failure::Status(504)),
            // Boxed, like all state in `run` that a hit does not need: it would enlarge the future.
            false => Box::pin(lookup.fetch(None).alone(request, !control.no_store)).await,
        };
        record::record_of(request).key = lookup.text;
        tally::count(request, cache.tallies());
        return result;
    }
    let result = match is_for_origin(request) {
        true => Box::pin(lookup.run_for_origin(request)).await,
        false => lookup.run(request).await,
    };
    let result = match result {
        Ok(reply) if slice_start(request).is_some() => Box::pin(lookup.confirmed_slice(request, reply)).await,
        result => result,
    };
    let record = record::record_of(request);
    record.key = lookup.text;
    // Without a response the status still shows whether a stale entry was found.
    record.status.get_or_insert(match record.forwarded {
        Some(Forwarded::Stale) => Status::Expired,
        _ => Status::Miss,
    });
    tally::count(request, cache.tallies());
    result
}

/// Serves a request from memory or an open file if the entry is fresh and nothing else has to be decided: without a wait, and without the
/// state that waits need. `None` states nothing about the entry: [`serve`] decides, and nothing was recorded or counted.
pub fn serve_at_hand(
    request: &mut Request,
    origin: &'static ModuleFunctions,
    cache: &Arc<Cache>,
    text: Vec<u8>,
) -> Option<Reply> {
    let thread_config = Rc::clone(&request.thread_config);
    let conf = (origin.conf)(&thread_config.config.location(request.location).scope);
    let store = cache.store()?;
    let key = Key::of_recent(&text);
    // A complete response that is not published yet may be newer than the entry.
    if !is_plain(request, conf) || cache.shared_fetches().pending.has(&key) {
        return None;
    }
    let now = now_ms();
    let hit = store.find_at_hand(&key, &text, access(request, store), |meta| {
        meta.fresh_until_ms > now
            && (meta.vary.is_empty() || policy::variant_of(request, &meta.vary) == meta.variant)
    })?;
    debug_assert_eq!(policy::grade(&hit, now), Grade::Fresh);
    let meta = Arc::clone(&hit.meta);
    let reply = stored::of_hit(request, hit, policy::age(&meta, now))?;
    // An earlier location of the request may have had a cache, too (`error_page`).
    request.extensions.insert(Record {
        status: Some(Status::Hit),
        stored_for_s: Some(policy::stored_for_s(&meta, now)),
        ttl_s: Some(policy::left_s(&meta, now)),
        found: Some(meta),
        key: text,
        ..Record::default()
    });
    tally::count(request, cache.tallies());
    Some(reply)
}

/// Whether a request may use any fresh entry: it bypasses no cache, is for no slice, has no `Cache-Control` to obey, and no condition of it
/// refers to the origin server.
fn is_plain(request: &Request, conf: &CacheConf) -> bool {
    !policy::is_any_set(&conf.bypass, request)
        && request.facts.get::<RenewsSlice>().is_none()
        && slice_start(request).is_none()
        && !is_for_origin(request)
        && (!conf.heeds_requests || policy::control_of(request, conf) == RequestCacheControl::default())
}

/// Whether a request has conditions that refer to the representation of the origin server.
fn is_for_origin(request: &Request) -> bool {
    request.header(HeaderId::IfMatch).is_some() || request.header(HeaderId::IfUnmodifiedSince).is_some()
}

/// One request that looks up a response.
struct CacheLookup<'a> {
    /// How to send a request to the upstream.
    origin: &'static ModuleFunctions,
    /// The settings of the request's location.
    conf: &'a CacheConf,
    /// The cache that the settings name.
    cache: &'a Arc<Cache>,
    /// The store of the cache.
    store: &'a Arc<Store>,
    /// The digest of the text; it identifies the entry.
    key: Key,
    /// The value of `proxy_cache_key`; it is stored in every entry and compared at every lookup.
    text: Vec<u8>,
    /// The client's `Cache-Control`; empty if it is ignored.
    control: RequestCacheControl,
    /// Number of fetches that have stalled while this request waited for them.
    stalls: Cell<u32>,
}

/// Result of a lookup.
enum LookupResult {
    /// A response.
    Reply(Reply),
    /// A fresh response that has holes, or may have holes.
    Parts(Hit),
    /// A stale response, to be revalidated.
    Stale(Hit),
    /// A fresh response that this client refuses, because it requires a newer one.
    TooOld(Hit),
    /// No entry.
    Nothing,
}

/// Where requests for the same response share a fetch.
struct FetchKey {
    /// The key of the fetch to join; narrowed to a variant once variants are known.
    key: Key,
    /// The value of [`shared_fetch::SharedFetches::ended`] before the lookup.
    ended: u64,
}

impl CacheLookup<'_> {
    /// Serves a request with conditions for the origin server. A stored response that meets them is used. Otherwise the upstream
    /// gets the request unchanged, because only the origin can decide (RFC 9111 section 4.3.2), and its response is not stored.
    async fn run_for_origin(&self, request: &mut Request) -> Result<Reply, Failure> {
        if let LookupResult::Reply(reply) = self.look_up(request).await
            && policy::meets_conditions(request, &reply.head)
        {
            return Ok(reply);
        }
        let record = record::record_of(request);
        record.status = Some(Status::Miss);
        if self.control.only_if_cached {
            return Err(Failure::Status(504));
        }
        record.forwarded = Some(Forwarded::Request);
        (self.origin.send_request)(request, &UpstreamRequest::default()).await
    }

    /// Repeats the lookup until it has a response. When an awaited response arrives, it may already be removed or be another
    /// variant; the lookup is then repeated, up to [`LOOKUPS_MAX`] times. Stalled fetches count separately: a request that sees many
    /// of them waits for the next one, because the upstream is slow, and must not get a request of each client.
    async fn run(&self, request: &mut Request) -> Result<Reply, Failure> {
        let mut fetch_key = FetchKey { key: self.key, ended: 0 };
        let mut lookups = 0;
        while lookups < LOOKUPS_MAX + self.stalls.get() {
            lookups += 1;
            // Checked in each round: the fields of `Vary` may be known by now, and variants are fetched concurrently.
            if fetch_key.key == self.key {
                fetch_key.key = fetch::variant_key(self.cache, &self.key, request);
            }
            fetch_key.ended = self.cache.shared_fetches().ended(&fetch_key.key);
            let stale = match self.look_up(request).await {
                LookupResult::Reply(reply) => return Ok(reply),
                LookupResult::Parts(hit)
                    if self.control.only_if_cached && parts::is_servable(request, &hit) =>
                {
                    let requested = self.requested(request);
                    return Box::pin(self.fetch(None).complete(request, hit, requested)).await;
                }
                // RFC 9111 section 5.2.1.7: responds 504 without a request to the upstream.
                _ if self.control.only_if_cached => {
                    record::record_of(request).status = Some(Status::Miss);
                    return Err(Failure::Status(504));
                }
                LookupResult::Parts(_) if self.control.no_store => {
                    return (self.origin.send_request)(request, &UpstreamRequest::default()).await;
                }
                LookupResult::Parts(hit) => {
                    let requested = self.requested(request);
                    let in_flight = requested
                        .and_then(|requested| Some((requested, self.part_in_flight(&hit, requested)?)));
                    let Some((part, shared_fetch)) = in_flight else {
                        return Box::pin(self.fetch(None).complete(request, hit, requested)).await;
                    };
                    match Box::pin(self.follow_part(request, &shared_fetch, None, part)).await? {
                        Followed::Reply(reply) => return Ok(reply),
                        Followed::Variant(_) | Followed::Retry => continue,
                    }
                }
                LookupResult::Stale(hit) => {
                    record::record_of(request).forwarded = Some(Forwarded::Stale);
                    Some(hit)
                }
                LookupResult::TooOld(hit) => {
                    record::record_of(request).forwarded = Some(Forwarded::Request);
                    Some(hit)
                }
                LookupResult::Nothing => {
                    let record = record::record_of(request);
                    if record.forwarded != Some(Forwarded::Request) {
                        // The key of a variant is known if a response to another variant was fetched.
                        record.forwarded = match fetch_key.key == self.key {
                            true => Some(Forwarded::UriMiss),
                            false => Some(Forwarded::VaryMiss),
                        };
                    }
                    None
                }
            };
            if let Some(failure) = self.retained_failure(request, stale.as_ref(), &fetch_key.key) {
                return Err(failure);
            }
            match Box::pin(self.obtain(request, stale, &mut fetch_key)).await? {
                Followed::Reply(reply) => return Ok(reply),
                Followed::Variant(key) => fetch_key.key = key,
                Followed::Retry => {}
            }
        }
        Box::pin(self.fetch(None).alone(request, true)).await
    }

    /// Returns an earlier failure that `proxy_cache_valid` retains for the variant. As in nginx it counts as a hit. A client that
    /// demands a new response contacts the upstream. So does a request for a stale response that may be used after a failure: the
    /// failure may be that of a request which did not know the stale response.
    fn retained_failure(&self, request: &mut Request, stale: Option<&Hit>, variant: &Key) -> Option<Failure> {
        let failures = self.cache.shared_fetches().failures(&self.key);
        let failed = failures.find(&self.key, variant, rt::now())?;
        if self.refuses_stored(request)
            || stale.is_some_and(|hit| failed.is_worse_than(self.conf, &hit.meta, now_ms()))
        {
            return None;
        }
        let record = record::record_of(request);
        (record.status, record.forwarded) = (Some(Status::Hit), None);
        Some(failed.failure)
    }

    /// Fetches a missing or stale response, or waits for another request's fetch. Rare paths are boxed, because most misses fetch
    /// in a separate task.
    async fn obtain(
        &self,
        request: &mut Request,
        stale: Option<Hit>,
        fetch_key: &mut FetchKey,
    ) -> Result<Followed, Failure> {
        if self.is_beyond_max_offset(request) {
            record::record_of(request).status = Some(Status::Miss);
            return (self.origin.send_request)(request, &UpstreamRequest::default())
                .await
                .map(Followed::Reply);
        }
        if self.control.no_store {
            return Box::pin(self.fetch(stale).alone(request, false)).await.map(Followed::Reply);
        }
        // A range of a response that is not stored is fetched alone, without the bytes before it. If the complete response was
        // stored before, the complete response is requested: a part would replace it.
        let had_all = stale.as_ref().is_some_and(parts::is_complete);
        let part = self.requested(request).filter(|requested| !had_all && self.is_for_a_part(*requested));
        if let Some(requested) = part {
            return Box::pin(self.obtain_part(request, stale, requested)).await;
        }
        // If the response will not be stored, the client's ranges are passed on. Several ranges are cut out of the complete response
        // only if that is stored.
        let is_ranged_miss = request.header(HeaderId::Range).is_some() && stale.is_none();
        if is_ranged_miss && let Some(reason) = self.unstored_in_advance() {
            let record = record::record_of(request);
            (record.status, record.unstored) = (Some(Status::Miss), Some(reason));
            return (self.origin.send_request)(request, &UpstreamRequest::default())
                .await
                .map(Followed::Reply);
        }
        // A response to HEAD has no body for other requests. It must not replace an entry with a body.
        if request.method == Method::Head && !self.conf.convert_head {
            let stores = stale.as_ref().is_none_or(|hit| policy::is_of_head(&hit.meta));
            return Box::pin(self.fetch(stale).alone(request, stores)).await.map(Followed::Reply);
        }
        // An explicit `proxy_cache_lock off` has nginx's meaning: every request is sent to the upstream.
        let has_updating =
            stale.as_ref().is_some_and(|hit| policy::uses_stale(self.conf, &hit.meta, Stale::Updating));
        if self.conf.lock == Some(false) && !has_updating {
            return Box::pin(self.fetch(stale).alone(request, true)).await.map(Followed::Reply);
        }
        let shared_fetches = self.cache.shared_fetches();
        let reply = match shared_fetches.join(&self.key, fetch_key.key, rt::now(), self.join_limits()) {
            Joined::Lead(lead) => {
                // Another request's fetch may have ended between the lookup and now. None can end while this request leads.
                let stale = match shared_fetches.ended(&fetch_key.key) == fetch_key.ended {
                    true => stale,
                    false => match self.look_up(request).await {
                        LookupResult::Reply(reply) => return Ok(Followed::Reply(reply)),
                        LookupResult::Parts(_) => return Ok(Followed::Retry),
                        LookupResult::Stale(hit) | LookupResult::TooOld(hit) => Some(hit),
                        LookupResult::Nothing => None,
                    },
                };
                self.fetch(stale).lead(request, lead).await
            }
            Joined::Marked => Box::pin(self.fetch(stale).alone(request, true)).await,
            // A fetch that started before this request cannot revalidate for it.
            Joined::Follow(_) if self.refuses_stored(request) => {
                Box::pin(self.fetch(stale).alone(request, true)).await
            }
            Joined::Follow(shared_fetch) => {
                return Box::pin(self.follow(request, &shared_fetch, (stale, fetch_key.key))).await;
            }
        };
        reply.map(Followed::Reply)
    }

    /// Waits for another request's fetch, and converts its outcome into a response.
    async fn follow(
        &self,
        request: &mut Request,
        shared_fetch: &Arc<SharedFetch>,
        (stale, key): (Option<Hit>, Key),
    ) -> Result<Followed, Failure> {
        // A fetch is in flight, so the old response may be served if stale use is allowed.
        let is_wanted = record::record_of(request).forwarded != Some(Forwarded::Request);
        let mut stale = stale;
        let is_good = |hit: &mut Hit| {
            is_wanted
                && policy::uses_stale(self.conf, &hit.meta, Stale::Updating)
                && parts::is_servable(request, hit)
        };
        if let Some(hit) = stale.take_if(is_good) {
            let reply = self.served(request, hit, Status::Updating);
            return reply.map(Followed::Reply).ok_or(Failure::Status(502));
        }
        let reply = match self.wait(request, shared_fetch).await? {
            Waited::FetchOutcome(FetchOutcome::Filling(filling)) => {
                let variant = policy::variant_of(request, &filling.meta.vary);
                if variant != filling.meta.variant {
                    // The response is for another variant. Other requests may want the same variant as this one.
                    return Ok(Followed::Variant(self.key.variant(&variant)));
                }
                let age = policy::age(&filling.meta, now_ms());
                let fetch = Rc::new(self.fetch(None));
                match following::reply(&fetch, request, &filling, (key, age)) {
                    Some(reply) => {
                        let record = record::record_of(request);
                        (record.status, record.collapsed) = (Some(Status::Hit), true);
                        record.stored = true;
                        reply
                    }
                    // The fetch has failed, or the start of its body is lost: this request is sent separately, without storing.
                    None => self.fetch(stale).alone(request, false).await?,
                }
            }
            Waited::FetchOutcome(FetchOutcome::Refreshed(refreshed)) => {
                return Ok(self.refreshed(request, &refreshed).await);
            }
            Waited::FetchOutcome(FetchOutcome::Retry) | Waited::Stalled => return Ok(Followed::Retry),
            // Concurrently with all other waiting requests: none has to wait for another.
            Waited::FetchOutcome(FetchOutcome::Alone) => self.fetch(stale).alone(request, true).await?,
            Waited::FetchOutcome(FetchOutcome::Failed(failed)) => {
                self.after_failure(request, stale, failed)?
            }
            // As in nginx, the response is not stored, because another fetch is in flight.
            Waited::TooLong => self.fetch(stale).alone(request, false).await?,
        };
        Ok(Followed::Reply(reply))
    }

    /// Returns the stored response that the awaited fetch has confirmed, as its leader does. The lookup is repeated if the response
    /// was removed, is another variant, or lacks bytes that this request needs.
    async fn refreshed(&self, request: &mut Request, refreshed: &Refreshed) -> Followed {
        let found = {
            let request = &*request;
            let selector = |vary: &[u8]| policy::variant_of(request, vary);
            self.store.find_by(&self.key, &self.text, &selector, access(request, self.store)).await
        };
        let Ok(Some(hit)) = found else { return Followed::Retry };
        if hit.is_purged_soft || !refreshed.covers(&hit.meta) || !parts::is_servable(request, &hit) {
            return Followed::Retry;
        }
        self.note(request, &hit.meta, now_ms());
        let reply = self.served(request, hit, Status::Hit);
        reply.map_or(Followed::Retry, |reply| {
            record::record_of(request).collapsed = true;
            Followed::Reply(reply)
        })
    }

    /// Returns the reason for which no response to this request will be stored, if it is known before the response. Counts a use.
    /// nginx passes ranges on with `proxy_cache_min_uses`, but not with `proxy_buffering off`.
    fn unstored_in_advance(&self) -> Option<Unstored> {
        if !self.conf.is_buffered {
            return Some(Unstored::Unbuffered);
        }
        self.fetch(None).has_too_few_uses(self.conf).then_some(Unstored::TooFewUses)
    }

    /// Returns the range to fetch separately, if any.
    fn requested(&self, request: &Request) -> Option<RequestedRange> {
        // If the configuration sets the range of the request, that range is stored under its own key.
        if self.conf.stores_parts && !self.conf.sets_range {
            requested_range::requested(request)
        } else {
            None
        }
    }

    /// Whether a range starts at `proxy_cache_max_range_offset` or beyond it. As in nginx, the bytes before it are then not fetched:
    /// the field `Range` is passed on unchanged, and the response is not stored.
    fn is_beyond_max_offset(&self, request: &Request) -> bool {
        self.conf.max_range_offset.is_some_and(|most| requested_range::starts_from(request, most))
    }

    /// Whether the client's `Cache-Control` refuses stored responses.
    fn refuses_stored(&self, request: &mut Request) -> bool {
        self.control.no_cache || record::record_of(request).forwarded == Some(Forwarded::Request)
    }

    /// Whether a range is fetched separately: not if it will not be stored, nor if a fetch of the complete response has no outcome
    /// yet, or has reached the range.
    fn is_for_a_part(&self, requested: RequestedRange) -> bool {
        let shared_fetches = self.cache.shared_fetches();
        if !self.conf.is_buffered || shared_fetches.are_parts_disabled(&self.key) {
            return false;
        }
        let Some(shared_fetch) = shared_fetches.moving(&self.key, rt::now(), self.join_limits()) else {
            return true;
        };
        match shared_fetch.known_outcome() {
            Some(FetchOutcome::Filling(filling)) => filling.has_parts() && !filling.has_reached(requested),
            _ => false,
        }
    }

    /// Fetches a range alone, or reads along with another fetch of the same range.
    async fn obtain_part(
        &self,
        request: &mut Request,
        stale: Option<Hit>,
        requested: RequestedRange,
    ) -> Result<Followed, Failure> {
        let name = self.key.variant(&requested.aligned());
        match self.cache.shared_fetches().join_part(
            &self.key,
            name,
            requested.chunks(),
            (rt::now(), self.join_limits()),
        ) {
            Joined::Lead(lead) => {
                self.fetch(stale).fetch_part(request, requested, Some(lead)).await.map(Followed::Reply)
            }
            Joined::Marked => self.fetch_part_alone(request, stale, requested).await,
            Joined::Follow(shared_fetch) => self.follow_part(request, &shared_fetch, stale, requested).await,
        }
    }

    /// Returns the fetch in flight of the missing part of a range.
    fn part_in_flight(&self, hit: &Hit, requested: RequestedRange) -> Option<Arc<SharedFetch>> {
        let body = hit.located()?;
        body.missing(&requested.within(body.length))?;
        let name = self.key.variant(&requested.aligned());
        self.cache.shared_fetches().find_part(
            &self.key,
            &name,
            requested.chunks(),
            (rt::now(), self.join_limits()),
        )
    }

    /// Waits for a range that another request fetches, and reads along.
    async fn follow_part(
        &self,
        request: &mut Request,
        shared_fetch: &Arc<SharedFetch>,
        stale: Option<Hit>,
        requested: RequestedRange,
    ) -> Result<Followed, Failure> {
        let reply = match self.wait(request, shared_fetch).await? {
            Waited::FetchOutcome(FetchOutcome::Filling(filling)) => {
                let fetch = Rc::new(self.fetch(None));
                let is_mine = policy::variant_of(request, &filling.meta.vary) == filling.meta.variant;
                let along = match is_mine {
                    true => filling.part().and_then(|part| {
                        let reader = filling.reader(part.range.clone())?.with_limit(fetch.limits.body);
                        Fetch::along(&fetch, request, &filling, reader)
                    }),
                    // The fetch is for another variant; this request fetches its own.
                    false => return self.fetch_part_alone(request, stale, requested).await,
                };
                // The upstream sent the complete response instead, or the fetch has ended: a repeated lookup finds the response.
                let Some(reply) = along else { return Ok(Followed::Retry) };
                let record = record::record_of(request);
                (record.status, record.collapsed, record.stored) = (Some(Status::Hit), true, true);
                reply
            }
            Waited::FetchOutcome(FetchOutcome::Retry | FetchOutcome::Refreshed(_)) | Waited::Stalled => {
                return Ok(Followed::Retry);
            }
            Waited::FetchOutcome(FetchOutcome::Failed(failed)) => {
                self.after_failure(request, stale, failed)?
            }
            Waited::FetchOutcome(FetchOutcome::Alone) | Waited::TooLong => {
                return self.fetch_part_alone(request, stale, requested).await;
            }
        };
        Ok(Followed::Reply(reply))
    }

    /// Fetches a range for this request, concurrently with other requests for it.
    async fn fetch_part_alone(
        &self,
        request: &mut Request,
        stale: Option<Hit>,
        requested: RequestedRange,
    ) -> Result<Followed, Failure> {
        self.fetch(stale).fetch_part(request, requested, None).await.map(Followed::Reply)
    }

    /// Looks up an entry.
    async fn look_up(&self, request: &mut Request) -> LookupResult {
        // Checked before the store, whose entry may be older.
        if let Some(found) = self.find_pending(request) {
            return found;
        }
        let found = {
            let request = &*request;
            let selector = |vary: &[u8]| policy::variant_of(request, vary);
            self.store.find_by(&self.key, &self.text, &selector, access(request, self.store)).await
        };
        // An unreadable entry counts as not stored, so requests continue without a disk. The store logs the error once.
        let Ok(Some(hit)) = found else { return LookupResult::Nothing };
        if self.is_damaged(request, &hit).await {
            return LookupResult::Nothing;
        }
        let now = now_ms();
        self.note(request, &hit.meta, now);
        match policy::reuse(self.conf, &hit, &self.control, (self.origin.ignored)(request.scope()), now) {
            Reuse::Fresh => {}
            Reuse::Stale => {
                return self
                    .served(request, hit, Status::Stale)
                    .map_or(LookupResult::Nothing, LookupResult::Reply);
            }
            Reuse::Validate(_) => return LookupResult::TooOld(hit),
        }
        match policy::grade(&hit, now) {
            // An unverified body may have holes that are not known yet.
            Grade::Fresh if hit.located().is_some_and(|body| !body.is_verified(&(0..body.length))) => {
                record::record_of(request).status = Some(Status::Hit);
                LookupResult::Parts(hit)
            }
            Grade::Fresh => {
                self.served(request, hit, Status::Hit).map_or(LookupResult::Nothing, LookupResult::Reply)
            }
            // With holes in the requested range it cannot be served immediately.
            _ if !parts::is_servable(request, &hit) => LookupResult::Stale(hit),
            Grade::StaleWhileRevalidate => self.update_in_background(request, hit),
            Grade::Stale
                if self.conf.background_update
                    && policy::uses_stale(self.conf, &hit.meta, Stale::Updating) =>
            {
                self.update_in_background(request, hit)
            }
            Grade::Stale => LookupResult::Stale(hit),
        }
    }

    /// Whether the first bytes of the requested body are damaged on disk, which drops the entry. The check precedes the sending of
    /// the head, so that the request is a miss. Damage found later allows only a request of the remaining bytes.
    async fn is_damaged(&self, request: &Request, hit: &Hit) -> bool {
        let Some(body) = hit.located().filter(|_| request.method != Method::Head) else { return false };
        let start = self.requested(request).map_or(0, |requested| requested.within(body.length).start);
        let first = start..start + 1;
        if body.is_verified(&first) || !body.is_present(&first) {
            return false;
        }
        matches!(
            Box::pin(body.read(first, 1).next()).await,
            Err(StoreError::Damaged(_) | StoreError::Disk { .. })
        )
    }

    /// Looks for a complete response whose entry is not published yet; `None` if the store must be searched.
    fn find_pending(&self, request: &mut Request) -> Option<LookupResult> {
        let is_wanted = |meta: &Meta| policy::variant_of(request, &meta.vary) == meta.variant;
        let (filling, sequence) = self.cache.shared_fetches().pending.find(&self.key, is_wanted)?;
        let meta = &filling.meta;
        if self.store.purge_effect(&self.key, &self.text, &meta.tags, sequence).is_some() {
            return None;
        }
        let now = now_ms();
        let age = policy::age(meta, now);
        if meta.fresh_until_ms <= now {
            // The entry in the store is not better.
            return Some(LookupResult::Nothing);
        }
        let left = policy::left_s(meta, now);
        let RequestCacheControl { no_cache, min_fresh, .. } = self.control;
        let is_unwanted = no_cache
            || self.control.is_too_old(age)
            || min_fresh.is_some_and(|least| left < i64::from(least));
        if is_unwanted {
            // The client demands a new fetch, which must not revalidate the stored response.
            record::record_of(request).forwarded = Some(Forwarded::Request);
            return Some(LookupResult::Nothing);
        }
        self.note(request, meta, now);
        let reply = stored::of_filling(&filling, age)?;
        record::record_of(request).status = Some(Status::Hit);
        Some(LookupResult::Reply(reply))
    }

    /// Serves a stale response while this or another request fetches a new one.
    fn update_in_background(&self, request: &mut Request, hit: Hit) -> LookupResult {
        let (status, lead) =
            match self.cache.shared_fetches().join(&self.key, self.key, rt::now(), self.join_limits()) {
                Joined::Lead(lead) => (Status::Stale, Some(lead)),
                Joined::Follow(_) | Joined::Marked => (Status::Updating, None),
            };
        let again = lead.map(|lead| (lead, fetch::StaleMeta::of(&hit)));
        let Some(reply) = self.served(request, hit, status) else { return LookupResult::Nothing };
        if let Some((lead, known)) = again {
            self.fetch(None).in_background(request, lead, known);
        }
        LookupResult::Reply(reply)
    }

    /// Returns the response to a request after another request's fetch failed.
    fn after_failure(
        &self,
        request: &mut Request,
        stale: Option<Hit>,
        failed: Failed,
    ) -> Result<Reply, Failure> {
        match stale {
            Some(hit)
                if parts::is_servable(request, &hit)
                    && failed.is_worse_than(self.conf, &hit.meta, now_ms()) =>
            {
                self.served(request, hit, Status::Stale).ok_or(failed.failure)
            }
            _ => Err(failed.failure),
        }
    }

    /// Returns a stored response for the client, recorded for the variables. `None` if its header section is invalid.
    fn served(&self, request: &mut Request, hit: Hit, status: Status) -> Option<Reply> {
        let age = policy::age(&hit.meta, now_ms());
        let reply = stored::of_hit(request, hit, age)?;
        record::record_of(request).status = Some(status);
        Some(reply)
    }

    /// Records the properties of a stored response for variables.
    fn note(&self, request: &mut Request, meta: &Arc<Meta>, now_ms: i64) {
        let record = record::record_of(request);
        record.stored_for_s = Some(policy::stored_for_s(meta, now_ms));
        record.ttl_s = Some(policy::left_s(meta, now_ms));
        record.found = Some(Arc::clone(meta));
    }

    /// Creates the state of a fetch, which may outlive the client's request.
    fn fetch(&self, stale: Option<Hit>) -> Fetch {
        Fetch {
            origin: self.origin,
            cache: Arc::clone(self.cache),
            store: Arc::clone(self.store),
            key: self.key,
            text: self.text.clone(),
            stale: stale.map(Rc::new),
            limits: self.conf.stall_limits(),
            is_confirming: false,
        }
    }

    /// Returns the limits of a fetch that this request may join.
    fn join_limits(&self) -> StallLimits {
        self.patient(self.conf.join_limits())
    }

    /// Returns these limits, without that for the head after [`LOOKUPS_MAX`] stalled fetches.
    fn patient(&self, limits: StallLimits) -> StallLimits {
        if self.stalls.get() < LOOKUPS_MAX { limits } else { limits.with_patience() }
    }

    /// Waits for another request's fetch.
    async fn wait(&self, request: &Request, shared_fetch: &Arc<SharedFetch>) -> Result<Waited, Failure> {
        let outcome = async {
            match self.conf.lock {
                Some(true) => {
                    let until = rt::now() + self.conf.lock_patience();
                    match select(shared_fetch.outcome(), rt::sleep_until(until)).await {
                        Either::Left(outcome) => Waited::FetchOutcome(outcome),
                        Either::Right(()) => Waited::TooLong,
                    }
                }
                _ => match shared_fetch.outcome_within(self.patient(self.conf.stall_limits())).await {
                    Some(outcome) => Waited::FetchOutcome(outcome),
                    None => {
                        self.stalls.set(self.stalls.get() + 1);
                        Waited::Stalled
                    }
                },
            }
        };
        or_disconnected(request, pin!(outcome)).await
    }
}

/// Outcome of following another request's fetch.
enum Followed {
    /// A response.
    Reply(Reply),
    /// The fetched response is not for this request; use this key instead.
    Variant(Key),
    /// The state has changed: repeat the lookup.
    Retry,
}

/// Outcome of waiting for another request's fetch.
enum Waited {
    /// The outcome of the other request's fetch.
    FetchOutcome(FetchOutcome),
    /// `proxy_cache_lock_timeout` has expired.
    TooLong,
    /// The fetch has stalled: it is no longer joined, so that another fetch starts.
    Stalled,
}

/// Waits for a future, or until the client disconnects. A fetch then continues for other waiting requests, because it is a separate
/// task.
pub async fn or_disconnected<T>(request: &Request, future: impl Future<Output = T>) -> Result<T, Failure> {
    // `post_action` continues without its client.
    let client = request.client_if(!request.is_detached);
    match select(future, client::closed(client)).await {
        Either::Left(value) => Ok(value),
        Either::Right(()) => Err(Failure::ClientClosed),
    }
}

/// Returns how to read stored responses for a request: with the engine of its location, bypassing the page cache if `directio`
/// applies.
pub fn access(request: &Request, store: &Store) -> Access {
    let core = &request.scope().core;
    let events = request.config().events();
    Access {
        via: choose::path_engine(core.sending.aio, &rt::caps()),
        direct_from: core.sending.directio,
        direct_via: choose::direct_engine(core.sending.aio, &rt::caps()),
        sends_files: core.sending.sendfile == Some(true),
        sends_large_files: core.sending.sendfile.unwrap_or(core.sending.names_no_reader()),
        client_has_space: !buffer_turns::are_on() || is_quick(request),
        // Injected faults must take effect, and they are injected in the engine.
        calls_directly: store.config().calls_directly && events.calls_directly(),
    }
}

/// Whether a response read in one piece can be sent immediately, as far as client and configuration are concerned.
fn is_quick(request: &Request) -> bool {
    let is_limited = request.limit_rate.is_some() || request.scope().core.limit_rate.is_some();
    let client = request.conn.client.borrow();
    // Under a memory limit a socket never accepts more than `UNSENT_MAX`.
    let needed = match rt::caps().memory_max {
        None => ::cache::FULL_READ_BYTES_MAX,
        Some(_) => ::cache::FULL_READ_BYTES_MAX.min(u64::from(rt::net::UNSENT_MAX) / 2),
    };
    !is_limited && client.as_ref().is_some_and(|client| client.send_space() >= needed)
}
