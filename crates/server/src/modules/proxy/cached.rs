//! Requests whose answers may come from a cache (`proxy_cache`): which cache, under which key, and how the upstream is asked
//! on its behalf. What follows from it is the business of `caching`.

use std::rc::Rc;
use std::sync::Arc;

use http::freshness::store::Ignored;
use http::request::{HeaderId, Method};

use crate::caching::tasks::Cache;
use crate::caching::{Origin, Wanted};
use crate::log::Level;
use crate::modules::proxy::cache_conf::Zone;
use crate::modules::proxy::conf::Conf;
use crate::modules::proxy::request::Fill;
use crate::modules::proxy::{ask, pass, request as proxy_request};
use crate::request::Request;

/// How this module's upstreams are asked for a cache.
pub(super) static ORIGIN: Origin = Origin {
    conf: |scope| &scope.proxy.cache,
    upstream: |scope| &scope.proxy.upstream,
    ignored: |scope| {
        let ignored = scope.proxy.ignored();
        Ignored {
            cache_control: ignored.has(HeaderId::CacheControl),
            expires: ignored.has(HeaderId::Expires),
            set_cookie: ignored.has(HeaderId::SetCookie),
            vary: ignored.has(HeaderId::Vary),
            accel_expires: ignored.has(HeaderId::XAccelExpires),
        }
    },
    ask: |request, wanted| {
        Box::pin(async move {
            let generation = Rc::clone(&request.generation);
            let conf = &generation.config.location(request.location).scope.proxy;
            let fill = wanted.is_shared.then(|| fill_of(request, conf, wanted));
            ask(request, conf, fill.as_ref()).await
        })
    },
};

/// A cache and the text of a key.
type Keyed = (Arc<Cache>, Vec<u8>);

/// The cache of a request and the text of its key; none where it has no cache, or none that may be asked.
///
/// # Errors
/// The status that answers; the log has the reason.
pub(super) fn lookup(request: &mut Request, conf: &Conf) -> Result<Option<Keyed>, u16> {
    let cache = match &conf.cache.zone {
        Zone::Off => return Ok(None),
        Zone::Named(zone) => Arc::clone(zone.state()),
        Zone::Variable(template) => {
            let name = template.rendered(request);
            if matches!(name.as_slice(), b"" | b"off") {
                return Ok(None);
            }
            let caches = &request.config().http.caches;
            let Some(zone) = caches.iter().find(|zone| zone.name().as_bytes() == name) else {
                let name = name.escape_ascii();
                request.log(Level::Error, format_args!("cache \"{name}\" not found"));
                return Err(500);
            };
            Arc::clone(zone.state())
        }
    };
    if !conf.cache.has_method(request.method) {
        return Ok(None);
    }
    let text = match &conf.cache.key {
        Some(template) => template.rendered(request),
        None => {
            let destination = pass::target(request, conf)?.1;
            proxy_request::default_key(request, conf, &destination)
        }
    };
    Ok(Some((cache, text)))
}

/// What is asked for in the place of what the client does.
fn fill_of(request: &Request, conf: &Conf, wanted: &Wanted) -> Fill {
    let mut fields = Vec::new();
    let mut add = |id, value: &Option<Vec<u8>>| fields.extend(value.clone().map(|value| (id, value)));
    add(HeaderId::IfNoneMatch, &wanted.if_none_match);
    add(HeaderId::Range, &wanted.range);
    add(HeaderId::IfRange, &wanted.if_range);
    add(HeaderId::IfModifiedSince, &wanted.if_modified_since.map(|date| http::date::http(date).to_vec()));
    Fill { as_get: request.method == Method::Head && conf.cache.convert_head, fields }
}
