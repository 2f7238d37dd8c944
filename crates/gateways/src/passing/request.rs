//! Common parts of requests to upstreams in all protocols: the body, the fields that a cache adds, and values for variables.

use std::rc::Rc;

use http::fields::{BodyLength, HeaderId, Method};
use io::SharedBytes;

use crate::passing::conf::Conf;
use crate::passing::pass::Destination;
use crate::passing::protocol::Via;
use exchange::request::Request;
use telemetry::Level;
use upstream::{OutgoingBody, Secure};

/// Changes that a cache makes to the client's request.
#[derive(Debug, Default)]
pub(crate) struct Fill {
    /// Whether to send GET instead of the client's method.
    pub(crate) as_get: bool,
    /// Conditions and ranges of the cache. Those of the client are not passed on.
    pub(crate) fields: Vec<(HeaderId, Vec<u8>)>,
}

/// Whether the body is passed on while it arrives, so that it must not be read before: because of the configuration, or because it
/// cannot be stored in a temporary file.
pub(crate) fn streams_body(request: &Request, via: Via<'_>) -> bool {
    (!via.conf.upstream.request_buffering || request.incoming.is_some()) && can_stream_body(request, via)
}

/// Whether the body can be passed on while it arrives.
pub(super) fn can_stream_body(request: &Request, via: Via<'_>) -> bool {
    let Via { conf, protocol } = via;
    let framing = request.head.body();
    // A cache may repeat its request for other clients after this client has disconnected.
    let is_cached = conf.cache.zone.is_on() && conf.cache.has_method(request.method);
    !is_cached
        && protocol.body().is_none()
        && conf.pass_body
        && request.depth == 0
        && request.body.is_none()
        && framing.has_body()
        && protocol.can_frame(framing)
}

/// Values of a forwarded request for variables.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Length of the body for the upstream.
    pub(crate) length: BodyLength,
    /// Whether the client's conditions were sent.
    pub(crate) passes_conditions: bool,
}

/// Returns the length of the body for the upstream.
pub(crate) fn length_of(request: &Request, conf: &Conf, body: &OutgoingBody) -> BodyLength {
    let length = request.head.body();
    match body {
        OutgoingBody::Bytes(bytes) => BodyLength::Exactly(bytes.len() as u64),
        OutgoingBody::Received(body) => BodyLength::Exactly(body.byte_count()),
        OutgoingBody::Streamed => match length {
            BodyLength::Exactly(_) => length,
            BodyLength::Unknown | BodyLength::None => BodyLength::Unknown,
        },
        // An empty body that the client announced is announced to the upstream.
        OutgoingBody::None if conf.pass_body && length != BodyLength::None && sends_body(request) => {
            BodyLength::Exactly(0)
        }
        OutgoingBody::None => BodyLength::None,
    }
}

/// Whether the client's body is sent with this request. A subrequest sends it if it copies the client's request (`mirror`), and the
/// body was read.
fn sends_body(request: &Request) -> bool {
    request.depth == 0 || (request.body.is_some() && request.method == request.head.method())
}

/// Whether the body is needed, but another location has already passed on some of its bytes. An upstream would take the remaining
/// bytes for a complete body, or this server would wait for bytes that belong to the next request.
fn lacks_body(request: &Request, via: Via<'_>) -> bool {
    let is_wanted = via.protocol.body().is_none() && via.conf.pass_body && request.depth == 0;
    is_wanted && !is_page(request) && is_body_begun(request)
}

/// Whether a location has passed on bytes of the body without storing them.
fn is_body_begun(request: &Request) -> bool {
    request.body_was_streamed || request.incoming.as_ref().is_some_and(|incoming| incoming.is_started())
}

/// Whether an error page or the target of a redirect is fetched, with GET or HEAD. It needs no body that another location has
/// consumed. A HEAD request remains one; if its URI was only rewritten, no location has consumed its body.
fn is_page(request: &Request) -> bool {
    let is_head = request.method == Method::Head && request.uri_replaced;
    request.method_replaced || request.method != request.head.method() || (is_head && is_body_begun(request))
}

/// Returns the body to send.
///
/// # Errors
/// The status for the client; the reason is logged.
pub(crate) fn body_of(request: &Request, via: Via<'_>) -> Result<OutgoingBody, u16> {
    if lacks_body(request, via) {
        let what = "request body was passed on already, it cannot be sent to another upstream";
        request.log(Level::Error, format_args!("{what}"));
        return Err(502);
    }
    Ok(chosen_body(request, via))
}

fn chosen_body(request: &Request, via: Via<'_>) -> OutgoingBody {
    if let Some(template) = via.protocol.body() {
        return OutgoingBody::Bytes(SharedBytes::from_vec(template.rendered(request)));
    }
    if !via.conf.pass_body {
        return OutgoingBody::None;
    }
    if is_page(request) && (request.incoming.is_some() || request.body_was_streamed) {
        return OutgoingBody::None;
    }
    if streams_body(request, via) {
        return OutgoingBody::Streamed;
    }
    match &request.body {
        Some(body) if body.byte_count() > 0 => OutgoingBody::Received(Rc::clone(body)),
        _ => OutgoingBody::None,
    }
}

/// Returns the TLS settings for the upstream, if it uses TLS.
///
/// # Errors
/// The status for the client: a variable gave a TLS address in a location without TLS settings.
pub(crate) fn secure_of(
    request: &Request,
    conf: &Conf,
    destination: &Destination,
) -> Result<Option<Secure>, u16> {
    match (&conf.upstream.secure, destination.target_parts.is_secure) {
        (Some(settings), true) => Ok(Some(Secure::of(settings, &destination.target_parts.host, request))),
        (None, true) => Err(500),
        (_, false) => Ok(None),
    }
}

/// Whether a request for a cache omits this field of the client, because its response is for other clients too.
pub(crate) fn is_conditional(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::IfModifiedSince
            | HeaderId::IfUnmodifiedSince
            | HeaderId::IfNoneMatch
            | HeaderId::IfMatch
            | HeaderId::Range
            | HeaderId::IfRange
    )
}

/// Whether a method is idempotent (RFC 9110 section 9.2.2, and RFC 4918 for WebDAV), so that the request may be repeated.
pub(crate) fn is_idempotent(method: Method) -> bool {
    matches!(
        method,
        Method::Get
            | Method::Head
            | Method::Put
            | Method::Delete
            | Method::Options
            | Method::Trace
            | Method::Mkcol
            | Method::Copy
            | Method::Move
            | Method::Propfind
            | Method::Proppatch
            | Method::Unlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotent_requests_may_be_sent_twice() {
        for (method, expected) in [
            ("GET", true),
            ("PUT", true),
            ("DELETE", true),
            ("POST", false),
            ("PATCH", false),
            ("LOCK", false),
            ("X", false),
        ] {
            assert_eq!(is_idempotent(Method::of(method.as_bytes())), expected, "{method}");
        }
    }
}
