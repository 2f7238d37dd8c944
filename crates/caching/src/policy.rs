//! Rules: whether a response may be stored, how long it is fresh, and whether a stored response may be used.
//!
//! `http::freshness` has the rules; this file combines them with the configuration and the request. Where nginx and RFC 9111 differ
//! on storing or sharing, the stricter rule applies. An explicit setting (`proxy_cache_valid`, `proxy_ignore_headers`,
//! `proxy_cache_use_stale`) has nginx's meaning. docs/caching.md lists the differences.

use std::sync::Arc;
use std::time::Instant;

use cache::{Hit, Key, Meta, PendingRequest, Store, Ticket};
use http::StatusCode;
use http::cache_control::{Qualified, RequestCacheControl, qualified_fields};
use http::conditional::{self, Comparison, Evaluator, IfModifiedSince, Validators};
use http::fields::FieldLine;
use http::fields::HeaderId;
use http::freshness::store::{self, Exchange, Ignored, Rules};
use http::freshness::{self, CacheFields, Refusal, Reuse, Times, current_age};
use http::response::parse::{HeadWriter, ParsedResponse, ResponseError};
use http::validator::Validator;
use http::vary;

use crate::clock::{milliseconds, now_ms};
use crate::failures::{Failed, Stale};
use crate::record::{Record, Unstored};
use crate::settings::CacheConf;
use crate::stored;
use exchange::request::Request;
use site::config::Layered;
use site::template::Template;
use upstream::{Heading, Reply};

/// Targeted fields that this cache obeys (RFC 9213), in order of preference.
const TARGETS: &[&[u8]] = &[b"CDN-Cache-Control"];

/// A response to be judged.
pub struct CacheCandidate<'a> {
    /// The header section of the response.
    pub heading: &'a Heading,
    /// Times of the request and of the arrival of the header section, in ms since 1970.
    pub times: Times,
    /// `proxy_ignore_headers`
    pub ignored: Ignored,
    /// Number of the last purge at the time of the request, to detect later purges.
    pub pending_request: &'a Arc<PendingRequest>,
    /// The time of the request.
    pub requested_at: Instant,
    /// Position of the request among all requests for its key.
    pub ticket: &'a Arc<Ticket>,
}

/// A request to an upstream, for the store.
#[derive(Debug)]
pub struct OriginRequest {
    at_ms: i64,
    open: Arc<PendingRequest>,
    requested_at: Instant,
    ticket: Arc<Ticket>,
}

impl OriginRequest {
    /// Records a request that is sent now, for an entry of this store.
    pub fn new(store: &Store, key: &Key) -> OriginRequest {
        let (open, ticket) = (store.register_request(), Arc::new(store.ticket(key)));
        OriginRequest { at_ms: now_ms(), open, requested_at: rt::now(), ticket }
    }

    /// Returns the response to this request as a candidate for the cache.
    pub fn candidate<'a>(
        &'a self,
        reply: &Reply,
        heading: &'a Heading,
        ignored: Ignored,
    ) -> CacheCandidate<'a> {
        let times = Times { request_ms: self.at_ms, response_ms: milliseconds(reply.received_at.1) };
        let OriginRequest { ref open, requested_at, ref ticket, .. } = *self;
        CacheCandidate { heading, times, ignored, pending_request: open, requested_at, ticket }
    }
}

/// Returns the time that a response remains fresh, in seconds; negative if it is stale.
pub fn left_s(meta: &Meta, now_ms: i64) -> i64 {
    meta.fresh_until_ms.saturating_sub(now_ms).div_euclid(1000)
}

/// Returns the time since a response arrived, in seconds.
pub fn stored_for_s(meta: &Meta, now_ms: i64) -> u64 {
    (now_ms.saturating_sub(meta.response_time_ms).max(0) / 1000) as u64
}

/// Bit of [`Meta::flags`]: the response has `must-revalidate` or `proxy-revalidate`.
const MUST_REVALIDATE: u32 = 1;

/// Bit of [`Meta::flags`]: the response has `no-cache` without field names.
const NO_CACHE: u32 = 2;

/// Bit of [`Meta::flags`]: requests that waited for the response may use it.
const SHAREABLE: u32 = 4;

/// Precedes the names of `Vary` in the metadata of a response to HEAD that is stored without a body, as a separate variant. No
/// field has this name.
const METHOD: &[u8] = b":method";

/// Whether a stored response is a response to HEAD, without a body.
pub fn is_of_head(meta: &Meta) -> bool {
    meta.vary.starts_with(METHOD)
}

/// Marks the metadata as that of a response to HEAD.
pub fn set_of_head(request: &Request, meta: &mut Meta) {
    let names = [METHOD, &meta.vary].into_iter().filter(|names| !names.is_empty());
    meta.vary = names.collect::<Vec<_>>().join(&b","[..]);
    meta.variant = variant_of(request, &meta.vary);
    meta.length = Some(0);
}

/// Returns the metadata to store a response with.
pub fn judge(request: &Request, conf: &CacheConf, candidate: &CacheCandidate<'_>) -> Result<Meta, Unstored> {
    judge_as(candidate.heading.head().status().code(), request, conf, candidate)
}

/// Returns the metadata to store a response with under this status: a 206 is stored as a part of a 200.
pub fn judge_as(
    status: u16,
    request: &Request,
    conf: &CacheConf,
    candidate: &CacheCandidate<'_>,
) -> Result<Meta, Unstored> {
    let (head, raw) = (candidate.heading.head(), candidate.heading.raw());
    let fields = CacheFields::collect(head.lines(raw), TARGETS);
    let exchange = Exchange {
        status,
        is_authorized: request.header(HeaderId::Authorization).is_some(),
        times: candidate.times,
    };
    let valid = conf.valid_for(status);
    let rules = Rules {
        ignored: candidate.ignored,
        valid: valid.map(|time| time.as_secs().min(u64::from(u32::MAX)) as u32),
        stores_parts: conf.stores_parts || conf.sets_range,
        heuristic: conf.heuristic,
        s_maxage_forbids_stale: !conf.s_maxage_stale,
        // Requests with different credentials have different keys.
        stores_authorized: conf.stores_authorized || conf.credential_key.is_some() && valid.is_some(),
        // Without conditional requests to the upstream, such an entry would never be used.
        stores_for_validation: conf.revalidate,
    };
    if request.extensions.get::<Record>().is_some_and(|record| record.is_unwanted) {
        return Err(Unstored::Configured);
    }
    // As in nginx: the upstream may have checked this request before it permitted the internal location.
    if !candidate.ignored.accel_redirect && redirects(candidate.heading) {
        return Err(Unstored::Redirect);
    }
    let verdict = store::judge(&fields, exchange, &rules).map_err(Unstored::Rules)?;
    let names = match candidate.ignored.vary {
        true => Vec::new(),
        false => vary::selecting_names(head.all(raw, HeaderId::Vary)).map_err(Unstored::Vary)?,
    };
    // Stored in the form in which it is compared: lower case, sorted, without duplicates.
    let vary = names.join(&b","[..]);
    let until = |window: u32| match window {
        0 => 0,
        seconds => verdict.fresh_until_ms.saturating_add(i64::from(seconds) * 1000),
    };
    let mut meta = Meta {
        status,
        response_time_ms: candidate.times.response_ms,
        initial_age_ms: verdict.initial_age_ms,
        fresh_until_ms: verdict.fresh_until_ms,
        stale_while_revalidate_until_ms: until(verdict.stale_while_revalidate),
        stale_if_error_until_ms: until(verdict.stale_if_error),
        flags: if verdict.must_revalidate { MUST_REVALIDATE } else { 0 }
            | if verdict.no_cache { NO_CACHE } else { 0 }
            | if verdict.is_shareable { SHAREABLE } else { 0 },
        length: None,
        // A malformed tag too: the origin that generated it can compare it.
        etag: head.get(raw, HeaderId::Etag).unwrap_or_default().to_vec(),
        last_modified: fields.last_modified,
        variant: variant_of(request, &vary),
        vary,
        tags: Vec::new(),
    };
    if let Some(name) = &conf.tag_header {
        collect_tags(head.named(raw, name), &mut meta.tags);
    }
    Ok(meta)
}

/// Whether a response is replaced by an internal location (`X-Accel-Redirect`).
fn redirects(heading: &Heading) -> bool {
    heading.head().get(heading.raw(), HeaderId::XAccelRedirect).is_some_and(|target| !target.is_empty())
}

/// Whether a response is read ahead of its client (`proxy_buffering`, `X-Accel-Buffering`). As in nginx, other responses are not
/// stored: they may be endless streams, or addressed to one client. A 304 without a body updates a stored response regardless.
pub fn is_buffered(conf: &CacheConf, candidate: &CacheCandidate<'_>) -> bool {
    match candidate.ignored.accel_buffering {
        true => conf.is_buffered,
        false => candidate.heading.is_buffered(conf.is_buffered),
    }
}

/// Returns the metadata of a response that is not stored: its arrival, and its age according to its own fields.
pub fn unstored(candidate: &CacheCandidate<'_>) -> Meta {
    let (head, raw) = (candidate.heading.head(), candidate.heading.raw());
    Meta {
        status: head.status().code(),
        response_time_ms: candidate.times.response_ms,
        initial_age_ms: CacheFields::collect(head.lines(raw), TARGETS).declared_age_ms(),
        ..Meta::default()
    }
}

/// Whether requests that waited for a response may use it without a request to the upstream (RFC 9111 section 4), even if its
/// lifetime ended before it arrived.
pub fn is_shareable(meta: &Meta) -> bool {
    meta.flags & SHAREABLE != 0
}

/// Whether the configuration allows a stale response in this case. `must-revalidate` and `proxy-revalidate` have precedence (RFC
/// 9111 section 5.2.2.2) unless configured otherwise; `no-cache` always has.
pub fn uses_stale(conf: &CacheConf, meta: &Meta, case: Stale) -> bool {
    let forbidding = if conf.ignores_must_revalidate() { NO_CACHE } else { NO_CACHE | MUST_REVALIDATE };
    conf.uses_stale(case) && meta.flags & forbidding == 0
}

/// Whether a 304 refers to this stored response: it has the same validator, or none (RFC 9111 section 4.3.4). The stored tag was
/// the only one of the request, so a tag that differs only by `W/` is that tag: servers weaken the tag of a compressed 200, but
/// not that of its 304.
pub fn is_confirmed(stored: &Meta, fresh: &Heading) -> bool {
    let get = |id| fresh.head().get(fresh.raw(), id);
    if let Some(tag) = get(HeaderId::Etag)
        && !stored.etag.is_empty()
        && (conditional::strength(tag).is_none() || conditional::strength(&stored.etag).is_none())
    {
        // A malformed tag confirms only the same text.
        return *tag == *stored.etag;
    }
    if let Some(tag) = get(HeaderId::Etag)
        && conditional::tags_match(tag, &stored.etag, Comparison::Weak)
    {
        return true;
    }
    let date = get(HeaderId::Date).and_then(http::date::parse_http);
    let modified = stored.last_modified.map(http::date::http);
    let own = Validator::of(Some(&stored.etag), modified.as_ref().map(|text| &text[..]), None);
    match Validator::of(get(HeaderId::Etag), get(HeaderId::LastModified), date) {
        // A date alone is not compared with a stored entity tag, but with the stored date.
        Validator::Date(date, _) if !stored.etag.is_empty() => {
            stored.last_modified.is_none_or(|known| known == date)
        }
        fresh => own.confirmed_by(fresh),
    }
}

/// Collects tags in the form of an entry: separated by one space.
pub fn collect_tags<'a>(values: impl Iterator<Item = &'a [u8]>, tags: &mut Vec<u8>) {
    for word in split_tags(values).filter(|word| !word.is_empty()) {
        if !tags.is_empty() {
            tags.push(b' ');
        }
        tags.extend_from_slice(word);
    }
}

/// Splits tags, which are separated by spaces (`Surrogate-Key`) or commas (`Cache-Tag`). Some results are empty.
pub fn split_tags<'a>(values: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    values.flat_map(|value| value.split(|byte| matches!(byte, b' ' | b'\t' | b',')))
}

/// Returns the request's values of the fields in the stored `Vary`. Requests with equal texts get the same variant; the text is
/// empty for a response without `Vary`.
pub fn variant_of(request: &Request, vary: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    if vary.is_empty() {
        return key;
    }
    let names = vary.split(|byte| *byte == b',');
    let lines = |name: &[u8]| {
        if name == METHOD {
            return vec![request.method.name().as_bytes()].into_iter();
        }
        let bytes = request.bytes();
        let fields = request.head.fields().iter();
        let same = fields.filter(|field| field.name.of(bytes).eq_ignore_ascii_case(name));
        same.map(|field| field.value.of(bytes)).collect::<Vec<_>>().into_iter()
    };
    vary::secondary_key(names, lines, &mut key);
    key
}

/// Works like [`variant_of`], for a hypothetical request with this method and these header fields.
pub fn variant_of_fields(method: &str, fields: &[(String, String)], vary: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    if vary.is_empty() {
        return key;
    }
    let lines = |name: &[u8]| {
        if name == METHOD {
            return vec![method.as_bytes()].into_iter();
        }
        let same = fields.iter().filter(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>().into_iter()
    };
    vary::secondary_key(vary.split(|byte| *byte == b','), lines, &mut key);
    key
}

/// Whether a stored response meets `If-Match` and `If-Unmodified-Since` of a request.
pub fn meets_conditions(request: &Request, heading: &Heading) -> bool {
    let get = |id| heading.head().get(heading.raw(), id);
    let validators = Validators {
        etag: get(HeaderId::Etag),
        last_modified: get(HeaderId::LastModified).and_then(http::date::parse_http),
    };
    let mode = IfModifiedSince::Off;
    let outcome = conditional::evaluate(&request.head, request.bytes(), validators, mode, Evaluator::Origin);
    outcome != conditional::PreconditionResult::PreconditionFailed
}

/// Whether `no-cache` of a response names fields: these are not stored (RFC 9111 section 5.2.2.4).
pub fn has_unshared_fields(heading: &Heading) -> bool {
    let control = heading.head().all(heading.raw(), HeaderId::CacheControl);
    qualified_fields(control, Qualified::NoCache).next().is_some()
}

/// Whether one of the configured values is true: not empty and not `0`.
pub fn is_any_set(values: &Layered<Template>, request: &Request) -> bool {
    values.items().iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"))
}

/// Usability of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// It can be served.
    Fresh,
    /// It may be served while a new response is fetched in the background.
    StaleWhileRevalidate,
    /// It must be revalidated.
    Stale,
}

/// Returns the usability of a stored response at this time.
pub fn grade(hit: &Hit, now_ms: i64) -> Grade {
    match &hit.meta {
        _ if hit.is_purged_soft && hit.meta.stale_while_revalidate_until_ms > now_ms => {
            Grade::StaleWhileRevalidate
        }
        _ if hit.is_purged_soft => Grade::Stale,
        meta if meta.fresh_until_ms > now_ms => Grade::Fresh,
        meta if meta.stale_while_revalidate_until_ms > now_ms => Grade::StaleWhileRevalidate,
        _ => Grade::Stale,
    }
}

/// Returns the client's `Cache-Control`; empty unless `proxy_cache_request_control` is on.
pub fn control_of(request: &Request, conf: &CacheConf) -> RequestCacheControl {
    if !conf.heeds_requests {
        return RequestCacheControl::default();
    }
    let all = |id| request.head.all(request.bytes(), id);
    RequestCacheControl::parse(all(HeaderId::CacheControl), all(HeaderId::Pragma))
}

/// Whether a stored response satisfies the client's `Cache-Control`. For [`Reuse::Fresh`], [`grade`] decides further.
pub fn reuse(
    conf: &CacheConf,
    hit: &Hit,
    control: &RequestCacheControl,
    ignored: Ignored,
    now_ms: i64,
) -> Reuse {
    let says_nothing = !control.no_cache
        && control.max_age.is_none()
        && control.min_fresh.is_none()
        && control.max_stale.is_none();
    if !conf.heeds_requests || says_nothing {
        return Reuse::Fresh;
    }
    let Some(heading) = stored::heading(hit) else { return Reuse::Fresh };
    let lines = heading.head().lines(heading.raw());
    let fields = CacheFields::collect(lines, TARGETS).without(ignored);
    let (age, left) = (age(&hit.meta, now_ms), left_s(&hit.meta, now_ms));
    let lifetime = i64::from(age).saturating_add(left).clamp(0, i64::from(u32::MAX)) as u32;
    // A client that accepts stale responses does not make a purged response usable.
    let lifetime = if hit.is_purged_soft { 0 } else { lifetime };
    let control = match hit.is_purged_soft {
        true => RequestCacheControl { max_stale: None, ..*control },
        false => *control,
    };
    match freshness::reuse(&fields.control, lifetime, age, &control) {
        // Refused only because of its age: the operator's settings decide.
        Reuse::Validate(Refusal::NotAllowed) => Reuse::Fresh,
        reuse => reuse,
    }
}

impl Failed {
    /// Whether the stale response is better, by `proxy_cache_use_stale` or by its own `stale-if-error`.
    pub fn is_worse_than(self, conf: &CacheConf, stale: &Meta, now_ms: i64) -> bool {
        self.case.is_some_and(|case| uses_stale(conf, stale, case))
            || self.is_error && stale.stale_if_error_until_ms > now_ms
    }
}

/// Returns the age of a stored response, for `Age`.
pub fn age(meta: &Meta, now_ms: i64) -> u32 {
    current_age(meta.initial_age_ms, meta.response_time_ms, now_ms)
}

/// Returns the header section to store: without hop-by-hop fields, fields of the body's framing, and fields computed at each use. A
/// response without a valid `Date` gets its arrival time `received_s` (RFC 9110 section 6.6.1). `keeps` lists fields that describe
/// this body; other fields about the body are omitted.
///
/// # Errors
/// Field lines that are not allowed in a head.
pub fn stored_head<'a, I>(
    (status, status_text): (StatusCode, &[u8]),
    lines: I,
    keeps: &[HeaderId],
    received_s: i64,
) -> Result<(Vec<u8>, ParsedResponse), ResponseError>
where
    I: Iterator<Item = FieldLine<'a>> + Clone,
{
    let connection = lines.clone().filter(|line| line.id == HeaderId::Connection).map(|line| line.value);
    let options = http::hop_by_hop::ConnectionOptions::new(connection);
    let capacity = lines.clone().map(|line| line.name.len() + line.value.len() + 4).sum::<usize>() + 64;
    let mut out = HeadWriter::new(status, status_text, capacity)?;
    // RFC 9111 section 5.2.2.4: fields that always need revalidation are not stored.
    let control = lines.clone().filter(|line| line.id == HeaderId::CacheControl).map(|line| line.value);
    let unshared: Vec<&[u8]> = qualified_fields(control, Qualified::NoCache).collect();
    let mut has_date = false;
    for line in lines {
        if line.id == HeaderId::Date {
            let is_good = !has_date && http::date::parse_http(line.value).is_some();
            has_date |= is_good;
            if !is_good {
                continue;
            }
        }
        if unshared.iter().any(|name| name.eq_ignore_ascii_case(line.name)) {
            continue;
        }
        let is_framing = matches!(
            line.id,
            HeaderId::ContentLength | HeaderId::TransferEncoding | HeaderId::Age | HeaderId::ContentRange
        );
        if (!is_framing || keeps.contains(&line.id)) && http::stored_fields::is_stored(&line, &options) {
            out.push(&line)?;
        }
    }
    if !has_date {
        out.push(&FieldLine::new(b"Date", &http::date::http(received_s)))?;
    }
    out.finish()
}
