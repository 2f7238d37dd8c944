//! The header section of an HTTP/1 response in nginx's order, with the fields for the end of the body and the connection.
//!
//! | body | marker of its end |
//! |---|---|
//! | known length | `Content-Length` |
//! | unknown length, or with trailers, to HTTP/1.1 | chunks; [`outlet`](super::outlet) frames them |
//! | the same to HTTP/1.0, or with `chunked_transfer_encoding off` | end of the connection |

use http::fields::{Method, Version};
use http::response::encode::{ConnectionField, HeadWriter, ResponseHead};

use exchange::request::Request;
use exchange::response::Body;
use exchange::response_head::{self, OtherField};
use site::settings::core::Core;

/// Determines how the client finds the end of the body. A body of unknown length, or with trailers, is sent in chunks. HTTP/1.0
/// clients do not support chunks; then the end of the connection marks the end of the body.
fn frame(request: &mut Request, core: &Core) {
    let response = &request.response;
    if !response.is_filtered() || response.has_no_content() || request.method == Method::Head {
        return;
    }
    let has_length = response.content_length.is_some();
    if has_length && response.trailers.is_empty() {
        return;
    }
    if core.responding.chunked_transfer_encoding && request.head.version() != Version::Http10 {
        (request.response.chunked, request.response.content_length) = (true, None);
    } else if !has_length {
        request.keepalive = false;
    }
}

/// Returns the `Connection` field. HTTP/1.0 clients need it; HTTP/1.1 uses keep-alive by default, but nginx sends it too.
fn connection_field(request: &Request, core: &Core) -> ConnectionField {
    let timeout_s = core.keepalive.keepalive_header.map(|seconds| seconds.min(u64::from(u32::MAX)) as u32);
    match request.keepalive {
        // The response to CONNECT has another status, and is not a protocol upgrade.
        _ if matches!(request.response.body, Body::Tunnel(_)) && request.response.status == 101 => {
            ConnectionField::Upgrade
        }
        true => ConnectionField::KeepAlive { timeout_s },
        false => ConnectionField::Close,
    }
}

/// Appends the header section. Returns `false`, and appends nothing, if a value must not be sent.
pub(super) fn write(request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
    frame(request, core);
    let request = &*request;
    response_head::with(request, core, |head| {
        let (chunked, connection) = (request.response.chunked, connection_field(request, core));
        let head = ResponseHead { chunked, connection, ..head };
        // Most header sections within a second start with the same bytes: the start of the last one is reused.
        let mut opening = request.conn.thread.opening.borrow_mut();
        let Ok(mut writer) = HeadWriter::begin(out, &head, &mut opening) else { return false };
        let mut ok = true;
        response_head::each_other_field(&request.response, |field| match field {
            // Needs no check.
            OtherField::One(b"Accept-Ranges", b"bytes") => writer.lines(b"Accept-Ranges: bytes\r\n"),
            OtherField::One(name, value) => ok &= writer.field(name, value).is_ok(),
            OtherField::Lines(fields) => match fields.lines() {
                Some(lines) => writer.lines(lines),
                None => ok = false,
            },
        });
        writer.finish();
        if !ok {
            out.clear();
        }
        ok
    })
}
