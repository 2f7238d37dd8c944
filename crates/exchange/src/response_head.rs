//! The content of a response's header section, for every protocol: the fields that the server itself writes as values,
//! and all others in nginx's order. The protocol encodes it.

use http::StatusCode;
use http::response::encode::ResponseHead;

use crate::effect;
use crate::field_list::FieldLines;
use crate::request::Request;
use crate::response::Response;
use site::settings::core::Core;

/// Passes the fields that the server itself writes to `write`, except those that exist only in HTTP/1 (chunks, connection).
pub fn with<R>(request: &Request, core: &Core, write: impl FnOnce(ResponseHead<'_>) -> R) -> R {
    let response = &request.response;
    let status = StatusCode::new(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let location = response.location.as_deref().map(|location| effect::location(core, request, location));
    let signature = effect::signature(&core.responding.server_tokens, request);
    let date = response.date.unwrap_or_else(|| *request.conn.thread.dates().http());
    // 204 has no content, so it has no length either (RFC 9110 section 8.6). A content type is useless then, but that
    // of an upstream is passed on, as in nginx.
    let has_content = response.status != 204;
    let has_type = has_content || response.reason.is_some();
    write(ResponseHead {
        reason: reason(response),
        server: response.server.as_deref().or(signature.as_deref()).filter(|server| !server.is_empty()),
        content_type: response.content_type.of(request).map(str::as_bytes).filter(|_| has_type),
        charset: response.charset.as_deref(),
        content_length: response.content_length.filter(|_| has_content),
        last_modified: response.last_modified,
        location: location.as_deref(),
        vary_accept_encoding: response.vary_accept_encoding
            && request.scope().core.responding.gzip_clients.vary,
        ..ResponseHead::new(status, &date)
    })
}

/// Returns the upstream's reason phrase, if the status is unchanged.
fn reason(response: &Response) -> Option<&[u8]> {
    let reason = response.reason.as_ref().filter(|reason| reason.status == response.status)?;
    reason.text.as_deref()
}

/// One or several fields of a response.
pub enum OtherField<'r> {
    /// The name and the value of a field.
    One(&'r [u8], &'r [u8]),
    /// Fields that were checked, and encoded for HTTP/1.
    Lines(&'r FieldLines),
}

/// Passes all other fields of the response to `write`. They follow the fields that the server itself writes.
pub fn each_other_field(response: &Response, mut write: impl FnMut(OtherField<'_>)) {
    let mut field = |name: &[u8], value: &[u8]| write(OtherField::One(name, value));
    // First, as in nginx: the access phase precedes the creation of the other fields.
    for value in &response.challenges.values {
        field(response.challenges.field(), value);
    }
    if let Some(etag) = &response.etag {
        field(b"ETag", etag.as_bytes());
    }
    response.fields.parts().for_each(|lines| write(OtherField::Lines(lines)));
    let mut field = |name: &[u8], value: &[u8]| write(OtherField::One(name, value));
    if response.allow_ranges {
        field(b"Accept-Ranges", b"bytes");
    }
    if let Some(range) = &response.content_range {
        field(b"Content-Range", range);
    }
}
