//! The header section of a response over HTTP/2 or HTTP/3: a header block without use of the dynamic table, in nginx's order. The functions are
//! compiled for the compression of each protocol.

use std::marker::PhantomData;

use http::multiplexed::{BlockWriter, KnownField, NeverIndexed};
use http::response::encode::{ResponseHead, check_field, check_value};

use crate::streams::is_of_connection;
use exchange::request::Request;
use exchange::response_head::{self, OtherField};
use site::settings::core::Core;

/// Number of bytes that suffice for most header blocks.
const BLOCK_BYTES: usize = 256;

/// Appends the block; `false`, with nothing appended, when one of its values must not be sent.
pub(crate) fn write<W: BlockWriter>(request: &Request, core: &Core, out: &mut Vec<u8>) -> bool {
    out.reserve(BLOCK_BYTES);
    let before = out.len();
    let never_indexed = request.response.never_indexed.as_deref();
    let mut fields: Fields<'_, W> = Fields { out, never_indexed, is_valid: true, writer: PhantomData };
    response_head::with(request, core, |head| write_generated(&head, &mut fields));
    // `Sec-WebSocket-Accept` depends on a key of HTTP/1, which only HTTP/1 clients send.
    let is_taken_over = request.response.status == 101;
    response_head::each_other_field(&request.response, |field| match field {
        // Most files have these two.
        OtherField::One(b"ETag", value) => fields.push_known(KnownField::ETag, value),
        OtherField::One(b"Accept-Ranges", value) => fields.push_known(KnownField::AcceptRanges, value),
        OtherField::One(name, value) => fields.push(name, value),
        OtherField::Lines(lines) if lines.lines().is_none() => fields.is_valid = false,
        OtherField::Lines(lines) => {
            let is_dropped =
                |name: &[u8]| is_taken_over && name.eq_ignore_ascii_case(b"sec-websocket-accept");
            let passed = lines.iter().filter(|(name, _)| !is_dropped(name));
            passed.for_each(|(name, value)| fields.push_checked(name, value));
        }
    });
    let is_valid = fields.is_valid;
    if !is_valid {
        out.truncate(before);
    }
    is_valid
}

/// Returns the block of trailers; invalid trailers are omitted.
pub(crate) fn trailers<W: BlockWriter>(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        if check_field(name, value).is_ok() && !is_of_connection(name) {
            W::push_field(&mut block, name, value.trim_ascii());
        }
    }
    block
}

/// A header block being written, and whether all of its fields are valid.
struct Fields<'a, W> {
    out: &'a mut Vec<u8>,
    /// Names of never-indexed fields (RFC 7541 section 7.1.3).
    never_indexed: Option<&'a NeverIndexed>,
    is_valid: bool,
    writer: PhantomData<W>,
}

impl<W: BlockWriter> Fields<'_, W> {
    /// Whether a field must be encoded as never indexed.
    fn is_never_indexed(&self, name: &[u8]) -> bool {
        self.never_indexed.is_some_and(|names| names.has(name))
    }

    /// Appends a field, unless it is connection-specific.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        match check_field(name, value) {
            Ok(()) => self.push_checked(name, value),
            Err(_) => self.is_valid &= is_of_connection(name),
        }
    }

    /// Works like [`Fields::push`] for a field that may be sent.
    fn push_checked(&mut self, name: &[u8], value: &[u8]) {
        // Values must not begin or end with whitespace (RFC 9113 section 8.2.1).
        match value.trim_ascii() {
            _ if is_of_connection(name) => {}
            value if self.is_never_indexed(name) => W::push_never_indexed(self.out, name, value),
            value => W::push_field(self.out, name, value),
        }
    }

    /// Appends a field with a known name.
    fn push_known(&mut self, name: KnownField, value: &[u8]) {
        match check_value(value) {
            Ok(()) if self.is_never_indexed(name.name()) => {
                W::push_never_indexed(self.out, name.name(), value.trim_ascii());
            }
            Ok(()) => W::push_known(self.out, name, value.trim_ascii()),
            Err(_) => self.is_valid = false,
        }
    }
}

/// Writes the fields that the server generates.
fn write_generated<W: BlockWriter>(head: &ResponseHead<'_>, fields: &mut Fields<'_, W>) {
    // RFC 8441 section 5, RFC 9220 section 3: the status is 200 instead of the 101 of HTTP/1.
    let status = match head.status.on_wire().code() {
        101 => 200,
        status => status,
    };
    W::push_status(fields.out, status);
    if let Some(server) = head.server {
        fields.push_known(KnownField::Server, server);
    }
    W::push_known(fields.out, KnownField::Date, head.date);
    match (head.content_type, head.charset) {
        (Some(media_type), Some(charset)) => {
            fields.push_known(KnownField::ContentType, &[media_type, b"; charset=", charset].concat());
        }
        (Some(media_type), None) => fields.push_known(KnownField::ContentType, media_type),
        (None, _) => {}
    }
    if let Some(length) = head.content_length {
        W::push_known_decimal(fields.out, KnownField::ContentLength, length);
    }
    if let Some(modified) = head.last_modified {
        W::push_known(fields.out, KnownField::LastModified, &http::date::http(modified));
    }
    if let Some(location) = head.location {
        fields.push_known(KnownField::Location, location);
    }
    if head.vary_accept_encoding {
        W::push_known(fields.out, KnownField::Vary, b"Accept-Encoding");
    }
}
