//! Invalidates entries after an unsafe request (RFC 9111 section 4.4): those of its URI, and of the URIs in `Location` and
//! `Content-Location` of its response if they have the same origin.
//!
//! The location that handles a GET of a URI determines its key and cache; it may be another location with different rewrites and
//! variables. So a subrequest runs through the phases up to this point, and removes the entry that it would be served from. It
//! sends no request to an upstream.

use ::http::fields::HeaderId;
use ::http::invalidation::{self, Target};

use crate::passing::cached;
use crate::passing::protocol::Via;
use caching::purge;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::subrequest;
use upstream::Heading;

/// Marks a subrequest whose purpose is invalidation.
struct Invalidation;

/// Invalidates the entries that an exchange has changed. The caller waits for it: a client that has received the response must not
/// get the old content.
pub(super) async fn after(request: &Request, via: Via<'_>, heading: &Heading) {
    let status = heading.head().status().code();
    let conf = via.conf;
    let is_on = conf.cache.invalidates && conf.cache.zone.is_on() && request.depth == 0;
    // If responses to POST are stored, a POST only reads and changes nothing.
    if !is_on || conf.cache.has_method(request.method) || !invalidation::invalidates(request.method, status) {
        return;
    }
    let bytes = request.bytes();
    let path = request.head.request_uri(bytes);
    let target = Target { scheme: b"http", authority: request.head.host_text().of(bytes), path };
    let mut paths = vec![path.to_vec()];
    for id in [HeaderId::Location, HeaderId::ContentLocation] {
        let Some(value) = heading.head().get(heading.raw(), id) else { continue };
        // An upstream may use its own host name; the client gets the URI of this server.
        let changed = via.protocol.location(request, value);
        let found = invalidation::same_origin_target(target, changed.as_deref().unwrap_or(value));
        paths.extend(found.filter(|path| !paths.contains(path)));
    }
    for path in paths {
        subrequest::visit(request, &path, Invalidation).await;
    }
}

/// Whether the purpose of a request is invalidation.
pub(super) fn is_invalidation(request: &Request) -> bool {
    request.extensions.get::<Invalidation>().is_some()
}

/// Removes the entry that this request would be served from.
pub(super) async fn carry_out(request: &mut Request, via: Via<'_>) -> Step {
    // From here on it must look like a client request: the default key contains the URI as received.
    request.depth = 0;
    if let Ok(Some((cache, text))) = cached::lookup(request, via) {
        purge::invalidate(request, &cache, &text).await;
    }
    request.response.status = 204;
    Step::Done
}
