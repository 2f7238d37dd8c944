//! Decides whether a response is compressed, and changes its header fields: the same for all codings.

use std::rc::Rc;

use http::fields::Method;

use exchange::filter::encoder::Encoder;
use exchange::request::Request;
use exchange::response::NotModified;
use site::settings::media_types::MediaTypes;
use transfer::coding::Settings;

/// Whether the response of `request` may be compressed, for any client. If so, the response depends on
/// `Accept-Encoding` and gets `Vary`.
pub(crate) fn is_eligible(request: &mut Request, min_length: u64, types: &MediaTypes) -> bool {
    let response = &request.response;
    if response.not_modified == Some(NotModified::ByUpstream) {
        // The 304 of an upstream has no media type, but its client has a changed response.
        request.response.vary_accept_encoding = true;
        return false;
    }
    let eligible = is_compressible(request, min_length, types);
    request.response.vary_accept_encoding |= eligible;
    eligible && !request.forbids_transform()
}

/// As [`is_eligible`], without an effect.
pub(crate) fn is_compressible(request: &Request, min_length: u64, types: &MediaTypes) -> bool {
    let response = &request.response;
    matches!(response.described_status(), 200 | 403 | 404)
        && response.content_length.is_none_or(|length| length >= min_length)
        && response.field(b"Content-Encoding").is_none_or(<[u8]>::is_empty)
        && request.has_type(types)
        && !response.forbids_transform()
}

/// Compresses the response. Its length is unknown before the end, so ranges are not possible either.
pub(crate) fn apply(request: &mut Request, settings: Settings) {
    let name = settings.name().as_bytes().to_vec();
    request.response.fields.push(b"Content-Encoding", &name);
    if request.method != Method::Head {
        let pool = Rc::clone(&request.conn.thread.encoders);
        let encoder = Encoder::new(settings, pool, request.response.content_length);
        request.response.encoder = Some(Box::new(encoder));
    }
    request.response.becomes_another(true);
}
