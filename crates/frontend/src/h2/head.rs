//! The header section of an HTTP/2 response: a header block without use of the dynamic table, in nginx's order.

use http::h2::hpack::{
    NeverIndexed, indexed_name, known, push_field, push_indexed, push_indexed_decimal, push_never_indexed,
    push_status,
};
use http::response::encode::{ResponseHead, check_field, check_value};

use exchange::request::Request;
use exchange::response_head;
use site::settings::core::Core;

/// Number of bytes that suffice for most header blocks.
const BLOCK_BYTES: usize = 256;

/// Appends the block; `false`, with nothing appended, when one of its values must not be sent.
pub(super) fn write(request: &Request, core: &Core, out: &mut Vec<u8>) -> bool {
    out.reserve(BLOCK_BYTES);
    let before = out.len();
    let never_indexed = request.response.never_indexed.as_deref();
    let mut fields = Fields { out, never_indexed, is_valid: true };
    response_head::with(request, core, |head| write_generated(&head, &mut fields));
    // `Sec-WebSocket-Accept` depends on a key of HTTP/1, which an HTTP/2 client does not send.
    let is_taken_over = request.response.status == 101;
    response_head::each_other_field(&request.response, |name, value| match name {
        // Most files have these two.
        b"ETag" => fields.push_indexed(known::ETAG, value),
        b"Accept-Ranges" => fields.push_indexed(known::ACCEPT_RANGES, value),
        _ if is_taken_over && name.eq_ignore_ascii_case(b"sec-websocket-accept") => {}
        _ => fields.push(name, value),
    });
    let is_valid = fields.is_valid;
    if !is_valid {
        out.truncate(before);
    }
    is_valid
}

/// Returns the block of trailers; invalid trailers are omitted.
pub(super) fn trailers(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        if check_field(name, value).is_ok() && !is_of_connection(name) {
            push_field(&mut block, name, value.trim_ascii());
        }
    }
    block
}

/// Whether a field is connection-specific; HTTP/2 does not allow such fields (RFC 9113 section 8.2.2).
pub(super) fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] =
        [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
    matches!(name.len(), 7 | 10 | 16 | 17) && NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// A header block being written, and whether all of its fields are valid.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    /// Names of never-indexed fields (RFC 7541 section 7.1.3).
    never_indexed: Option<&'a NeverIndexed>,
    is_valid: bool,
}

impl Fields<'_> {
    /// Whether a field must be encoded as never indexed.
    fn is_never_indexed(&self, name: &[u8]) -> bool {
        self.never_indexed.is_some_and(|names| names.has(name))
    }

    /// Appends a field, unless it is connection-specific.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        if is_of_connection(name) {
            return;
        }
        match check_field(name, value) {
            // Values must not begin or end with whitespace (RFC 9113 section 8.2.1).
            Ok(()) if self.is_never_indexed(name) => push_never_indexed(self.out, name, value.trim_ascii()),
            Ok(()) => push_field(self.out, name, value.trim_ascii()),
            Err(_) => self.is_valid = false,
        }
    }

    /// Appends a field whose name has this index in the static table.
    fn push_indexed(&mut self, name: usize, value: &[u8]) {
        match check_value(value) {
            Ok(()) if self.is_never_indexed(indexed_name(name)) => {
                push_never_indexed(self.out, indexed_name(name), value.trim_ascii());
            }
            Ok(()) => push_indexed(self.out, name, value.trim_ascii()),
            Err(_) => self.is_valid = false,
        }
    }
}

/// Writes the fields that the server generates.
fn write_generated(head: &ResponseHead<'_>, fields: &mut Fields<'_>) {
    // RFC 8441 section 5: HTTP/2 has status 200 instead of the 101 of HTTP/1.
    let status = match head.status.on_wire().code() {
        101 => 200,
        status => status,
    };
    push_status(fields.out, status);
    if let Some(server) = head.server {
        fields.push_indexed(known::SERVER, server);
    }
    push_indexed(fields.out, known::DATE, head.date);
    match (head.content_type, head.charset) {
        (Some(media_type), Some(charset)) => {
            fields.push_indexed(known::CONTENT_TYPE, &[media_type, b"; charset=", charset].concat());
        }
        (Some(media_type), None) => fields.push_indexed(known::CONTENT_TYPE, media_type),
        (None, _) => {}
    }
    if let Some(length) = head.content_length {
        push_indexed_decimal(fields.out, known::CONTENT_LENGTH, length);
    }
    if let Some(modified) = head.last_modified {
        push_indexed(fields.out, known::LAST_MODIFIED, &http::date::http(modified));
    }
    if let Some(location) = head.location {
        fields.push_indexed(known::LOCATION, location);
    }
    if head.vary_accept_encoding {
        push_indexed(fields.out, known::VARY, b"Accept-Encoding");
    }
}
