//! The head of a response of HTTP/2: a header block that needs no table, in nginx's order.

use http::h2::hpack::{known, push_field, push_known, push_known_decimal, push_status};
use http::response::{ResponseHead, check_field, check_value};

use exchange::request::Request;
use exchange::response_head;
use exchange::settings::core::Core;

/// Appends the block; `false`, with nothing appended, when one of its values must not be sent.
pub(super) fn write(request: &Request, core: &Core, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    let mut fields = Fields { out, is_good: true };
    response_head::with(request, core, |head| write_own(&head, &mut fields));
    // The answer to a key of HTTP/1, which the client has not sent.
    let is_taken_over = request.response.status == 101;
    response_head::each_other_field(&request.response, |name, value| {
        if !(is_taken_over && name.eq_ignore_ascii_case(b"sec-websocket-accept")) {
            fields.push(name, value);
        }
    });
    let is_good = fields.is_good;
    if !is_good {
        out.truncate(before);
    }
    is_good
}

/// Appends the block of trailers; those that must not be sent are left out.
pub(super) fn trailers(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        if check_field(name, value).is_ok() && !is_of_connection(name) {
            push_field(&mut block, name, value);
        }
    }
    block
}

/// Whether a field is about a connection, of which HTTP/2 has none (RFC 9113 section 8.2.2).
pub(super) fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] =
        [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
    matches!(name.len(), 7 | 10 | 16 | 17) && NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// A block that grows, and whether all of it may be sent.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    is_good: bool,
}

impl Fields<'_> {
    /// Appends a field, unless it is about a connection.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        if is_of_connection(name) {
            return;
        }
        match check_field(name, value) {
            Ok(()) => push_field(self.out, name, value),
            Err(_) => self.is_good = false,
        }
    }

    /// Appends a field of the server's own.
    fn push_known(&mut self, name: usize, value: &[u8]) {
        match check_value(value) {
            Ok(()) => push_known(self.out, name, value),
            Err(_) => self.is_good = false,
        }
    }
}

/// The fields that the server itself writes.
fn write_own(head: &ResponseHead<'_>, fields: &mut Fields<'_>) {
    // RFC 8441 section 5: the 101 of HTTP/1 is a success here.
    let status = match head.status.on_wire().code() {
        101 => 200,
        status => status,
    };
    push_status(fields.out, status);
    if let Some(server) = head.server {
        fields.push_known(known::SERVER, server);
    }
    push_known(fields.out, known::DATE, head.date);
    match (head.content_type, head.charset) {
        (Some(media_type), Some(charset)) => {
            fields.push_known(known::CONTENT_TYPE, &[media_type, b"; charset=", charset].concat());
        }
        (Some(media_type), None) => fields.push_known(known::CONTENT_TYPE, media_type),
        (None, _) => {}
    }
    if let Some(length) = head.content_length {
        push_known_decimal(fields.out, known::CONTENT_LENGTH, length);
    }
    if let Some(modified) = head.last_modified {
        push_known(fields.out, known::LAST_MODIFIED, &http::date::http(modified));
    }
    if let Some(location) = head.location {
        fields.push_known(known::LOCATION, location);
    }
    if head.vary_accept_encoding {
        push_known(fields.out, known::VARY, b"Accept-Encoding");
    }
}
