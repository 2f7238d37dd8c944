//! Requests with a cache (`proxy_cache`): the cache, the key, and the cache's request to the upstream. `caching` handles
//! lookup and storage.

use std::rc::Rc;
use std::sync::Arc;

use ::cache::PurgeEffect;
use http::fields::{HeaderId, Method};
use http::freshness::store::Ignored;

use crate::passing::conf::Conf;
use crate::passing::protocol::{Family, Passing, Via};
use crate::passing::request::Fill;
use crate::passing::send::send;
use crate::passing::{pass, reply};
use caching::purge::{self, Purged};
use caching::settings::{Caches, Zone};
use caching::tasks::Cache;
use caching::{ModuleFunctions, UpstreamRequest, policy, record};
use exchange::rehearsal::Passed;
use exchange::request::Request;
use telemetry::{ForLog, Level};

impl<F: Family> Passing<F> {
    /// How a protocol sends the requests of a cache.
    pub(super) const ORIGIN: &'static ModuleFunctions = &ModuleFunctions {
        conf: |scope| &scope.of::<Passing<F>>().conf.cache,
        upstream: |scope| &scope.of::<Passing<F>>().conf.upstream,
        ignored: |scope| {
            let ignored = scope.of::<Passing<F>>().conf.ignored();
            Ignored {
                cache_control: ignored.has(HeaderId::CacheControl),
                expires: ignored.has(HeaderId::Expires),
                set_cookie: ignored.has(HeaderId::SetCookie),
                vary: ignored.has(HeaderId::Vary),
                accel_expires: ignored.has(HeaderId::XAccelExpires),
                accel_redirect: ignored.has(HeaderId::XAccelRedirect),
                accel_buffering: ignored.has(HeaderId::XAccelBuffering),
            }
        },
        send_request: |request, wanted| {
            Box::pin(async move {
                let thread_config = Rc::clone(&request.thread_config);
                let via = thread_config.config.location(request.location).scope.of::<Passing<F>>().via();
                let fill = wanted.is_shared.then(|| fill_of(request, via.conf, wanted));
                let reply = send(request, via, fill.as_ref()).await?;
                let unwanted = &via.conf.cache.no_store;
                // As in nginx, a 304 for the cache stores no response, and `$sent_http_*` are the fields of this response.
                if wanted.has_conditions() && reply.head.head().status().code() == 304 {
                    record::record_of(request).is_unwanted = false;
                } else if !unwanted.items().is_empty() {
                    let look = |request: &Request| policy::is_any_set(unwanted, request);
                    record::record_of(request).is_unwanted = reply::preview(request, via, &reply.head, look);
                }
                Ok(reply)
            })
        },
    };
}

/// A cache and the text of a key.
type Keyed = (Arc<Cache>, Vec<u8>);

/// Returns the cache of a request and the text of its key; `None` if it has no cache, or its method is not cached.
///
/// # Errors
/// The status for the client; the reason is logged.
pub(super) fn lookup(request: &mut Request, via: Via<'_>) -> Result<Option<Keyed>, u16> {
    if !via.conf.cache.has_method(request.method) {
        return Ok(None);
    }
    keyed(request, via)
}

/// Works like [`lookup`], for any method.
fn keyed(request: &mut Request, via: Via<'_>) -> Result<Option<Keyed>, u16> {
    let conf = via.conf;
    let Some(cache) = cache_of(request, conf)? else { return Ok(None) };
    // The destination is determined first, because the key may contain `$proxy_host`.
    let destination = pass::target(request, conf)?.1;
    let text = match &conf.cache.key {
        Some(template) => template.rendered(request),
        None => via.protocol.default_key(conf, request, &destination),
    };
    Ok(Some((cache, text)))
}

/// Returns the cache of a request.
fn cache_of(request: &mut Request, conf: &Conf) -> Result<Option<Arc<Cache>>, u16> {
    match &conf.cache.zone {
        Zone::Off => Ok(None),
        Zone::Named(zone) => Ok(Some(Arc::clone(zone.state()))),
        Zone::Variable(template) => {
            let name = template.rendered(request);
            if matches!(name.as_slice(), b"" | b"off") {
                return Ok(None);
            }
            let caches = &request.config().http.of::<Caches>().zones;
            let Some(zone) = caches.iter().find(|zone| zone.name().as_bytes() == name) else {
                let name = name.for_log();
                request.log(Level::Error, format_args!("cache \"{name}\" not found"));
                return Err(500);
            };
            Ok(Some(Arc::clone(zone.state())))
        }
    }
}

/// Returns where a rehearsed request would be passed on to, and its cache.
pub(super) fn rehearse(request: &mut Request, via: Via<'_>, prefix: &'static str) -> Result<Passed, u16> {
    let conf = via.conf;
    let is_cached_method = conf.cache.has_method(request.method);
    let destination = pass::target(request, conf)?.1;
    let zone = match &conf.cache.zone {
        Zone::Off => None,
        Zone::Named(zone) => Some(zone.name().to_owned()),
        Zone::Variable(template) => Some(String::from_utf8_lossy(&template.rendered(request)).into_owned())
            .filter(|name| !matches!(name.as_str(), "" | "off")),
    };
    let cache = zone.map(|zone| {
        let key = match &conf.cache.key {
            Some(template) => template.rendered(request),
            None => via.protocol.default_key(conf, request, &destination),
        };
        (zone, key)
    });
    let parts = &destination.target_parts;
    let url = if prefix == "proxy" { &parts.key_start } else { &parts.host };
    let url = String::from_utf8_lossy(url).into_owned();
    Ok(Passed { prefix, url, cache, is_cached_method })
}

/// Executes a purge request and returns the status for it. Returns `None` if the request is not a purge or has no cache: as in
/// nginx the request is then passed on.
pub(super) async fn purge(request: &mut Request, via: Via<'_>) -> Option<u16> {
    let conf = via.conf;
    let takes_all = policy::is_any_set(&conf.cache.purge_all, request);
    if !takes_all && !policy::is_any_set(&conf.cache.purge, request) {
        return None;
    }
    let (cache, text) = match keyed(request, via) {
        Ok(keyed) => keyed?,
        Err(status) => return Some(status),
    };
    let purged = match tags(request, conf) {
        _ if takes_all => Purged::All,
        Some(tags) => Purged::Tags(tags),
        None => Purged::Key(text),
    };
    let effect = if policy::is_any_set(&conf.cache.purge_soft, request) {
        PurgeEffect::Stale
    } else {
        PurgeEffect::Unusable
    };
    Some(Box::pin(purge::purge(request, &cache, &purged, effect)).await)
}

/// Returns the tags that a request names; `None` if it lacks the field.
fn tags(request: &Request, conf: &Conf) -> Option<Vec<Vec<u8>>> {
    let name = conf.cache.purge_tag_header.as_ref()?;
    let mut values = request.head.named(request.bytes(), name).peekable();
    values.peek()?;
    let tags = policy::split_tags(values).filter(|word| !word.is_empty());
    Some(tags.take(purge::TAGS_MAX + 1).map(<[u8]>::to_vec).collect())
}

/// Returns the cache's changes to the client's request.
fn fill_of(request: &Request, conf: &Conf, wanted: &UpstreamRequest) -> Fill {
    let mut fields = Vec::new();
    let mut add = |id, value: &Option<Vec<u8>>| fields.extend(value.clone().map(|value| (id, value)));
    add(HeaderId::IfNoneMatch, &wanted.if_none_match);
    add(HeaderId::Range, &wanted.range);
    add(HeaderId::IfRange, &wanted.if_range);
    add(HeaderId::IfModifiedSince, &wanted.if_modified_since.map(|date| http::date::http(date).to_vec()));
    Fill { as_get: request.method == Method::Head && conf.cache.convert_head, fields }
}
