//! The head of a response of HTTP/1 in nginx's order, and what it says of the end of the body and of the connection.
//!
//! | body | how its end is told |
//! |---|---|
//! | of a known length | `Content-Length` |
//! | of another, or with trailers, to HTTP/1.1 | chunks; [`outlet`](super::outlet) frames them |
//! | the same to HTTP/1.0, or with `chunked_transfer_encoding off` | the end of the connection |

use http::StatusCode;
use http::request::{Method, Version};
use http::response::{ConnectionField, HeadWriter, ResponseHead};

use exchange::effect;
use exchange::request::Request;
use exchange::response::{Body, Response};
use exchange::settings::core::Core;

/// Decides how the client finds the end of the body. Where its length is not known, or fields follow it, it
/// goes out in chunks; clients of HTTP/1.0 know none, and then only the end of the connection tells.
fn frame(request: &mut Request, core: &Core) {
    let response = &request.response;
    if !response.is_filtered() || response.has_no_content() || request.method == Method::Head {
        return;
    }
    let has_length = response.content_length.is_some();
    if has_length && response.trailers.is_empty() {
        return;
    }
    if core.answering.chunked_transfer_encoding && request.head.version() != Version::Http10 {
        (request.response.chunked, request.response.content_length) = (true, None);
    } else if !has_length {
        request.keepalive = false;
    }
}

/// What the head says of the connection. What HTTP/1.0 clients know is in the field; 1.1 keeps connections unless told
/// otherwise, but nginx says so.
fn connection_field(request: &Request, core: &Core) -> ConnectionField {
    let timeout_s = core.keeping.keepalive_header.map(|seconds| seconds.min(u64::from(u32::MAX)) as u32);
    match request.keepalive {
        _ if matches!(request.response.body, Body::Tunnel(_)) => ConnectionField::Upgrade,
        true => ConnectionField::KeepAlive { timeout_s },
        false => ConnectionField::Close,
    }
}

/// Appends the head; `false`, with nothing appended, when one of its values must not be sent.
pub(super) fn write(request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
    frame(request, core);
    let response = &request.response;
    let status = StatusCode::new(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let location = response.location.as_deref().map(|location| effect::location(core, request, location));
    let signature = effect::signature(&core.answering.server_tokens, request);
    let mut date = *request.conn.thread.dates().http();
    if let Some(theirs) = response.date.as_deref().and_then(http::date::parse_http) {
        date = http::date::http(theirs);
    }
    // 204 has no content, so neither has it a length (RFC 9110 section 8.6). A type is of no use then, but what another
    // server says is passed on, as in nginx.
    let has_content = response.status != 204;
    let has_type = has_content || response.reason.is_some();
    let head = ResponseHead {
        reason: reason(response),
        server: response.server.as_deref().or(signature.as_deref()).filter(|server| !server.is_empty()),
        content_type: response.content_type.of(request).map(str::as_bytes).filter(|_| has_type),
        charset: response.charset.as_deref(),
        content_length: response.content_length.filter(|_| has_content),
        last_modified: response.last_modified,
        location: location.as_deref(),
        chunked: response.chunked,
        connection: connection_field(request, core),
        vary_accept_encoding: response.vary_accept_encoding
            && request.scope().core.answering.gzip_clients.vary,
        ..ResponseHead::new(status, &date)
    };
    // Most heads of a second begin alike: how the last one did is kept.
    let mut opening = request.conn.thread.opening.borrow_mut();
    let Ok(mut writer) = HeadWriter::begin(out, &head, &mut opening) else { return false };
    let ok = write_fields(response, &mut writer);
    writer.finish();
    if !ok {
        out.clear();
    }
    ok
}

/// What another server said behind the number of the status, where it is still that status.
fn reason(response: &Response) -> Option<&[u8]> {
    let reason = response.reason.as_ref().filter(|reason| reason.status == response.status)?;
    reason.text.as_deref()
}

/// Writes the fields that not every response has; whether all of them may be sent.
fn write_fields(response: &Response, writer: &mut HeadWriter<'_>) -> bool {
    let mut ok = true;
    let mut field = |name: &[u8], value: &[u8]| ok &= writer.field(name, value).is_ok();
    // Where nginx has it: the access phase is behind it when other fields are made.
    for value in &response.www_authenticate {
        field(b"WWW-Authenticate", value);
    }
    if let Some(etag) = &response.etag {
        field(b"ETag", etag.as_bytes());
    }
    for (name, value) in &response.fields {
        field(name, value);
    }
    if response.allow_ranges {
        field(b"Accept-Ranges", b"bytes");
    }
    if let Some(range) = &response.content_range {
        field(b"Content-Range", range);
    }
    ok
}
