//! Serves ranges of a body: 206 with one or several parts, 416 (RFC 9110 section 14).

use std::sync::Arc;

use http::conditional::Validators;
use http::fields::{HeaderId, Method};
use http::range::multipart::Multipart;
use http::range::{self, ByteRange, MAX_RANGES_DEFAULT, RangeOutcome};

use smallvec::{SmallVec, smallvec};

use crate::{Declaration, Module};
use exchange::request::Request;
use exchange::response::{Body, ContentType};
use transfer::body::Piece;
use transfer::body::ranged::{RangedBody, Subrange};

/// The module. Its directive `max_ranges` belongs to `http_core`.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, _, plan| plan.filter(Arc::new(()), |(), request| filter(request)),
    ..Module::of(Declaration::named("http_range"))
};

/// Leaves the response unchanged unless it is a complete body of known size that supports ranges.
fn filter(request: &mut Request) {
    // The range applies to the main response, not to inserted responses.
    if request.depth > 0 {
        return;
    }
    let response = &mut request.response;
    // A response that earlier modules change has no known length, and so no ranges.
    response.allow_ranges &= response.content_length.is_some();
    let (Some(size), true, 200) = (response.content_length, response.allow_ranges, response.status) else {
        return;
    };
    let max_ranges = request.scope().core.responding.max_ranges;
    // Zero disables ranges, so `Accept-Ranges` is not sent either.
    if max_ranges == Some(0) {
        request.response.allow_ranges = false;
        return;
    }
    // `Range` is defined for GET only (RFC 9110 section 14.2). As in nginx, HEAD has the same response, except from a cache.
    let has_meaning = match request.method {
        Method::Get => true,
        Method::Head => !request.response.is_stored,
        _ => false,
    };
    let asked = has_meaning && if_range_holds(request);
    let Some(value) = request.header(HeaderId::Range).filter(|_| asked) else { return };
    // A limit applies even if none is configured: each range costs memory, and a client could request thousands of one
    // byte.
    let max_ranges = max_ranges.map_or(MAX_RANGES_DEFAULT, |most| most.min(u64::from(u32::MAX)) as u32);
    let mut ranges = Vec::new();
    match range::parse(value, size, max_ranges, &mut ranges) {
        RangeOutcome::Whole => {}
        RangeOutcome::NotSatisfiable => {
            let mut text = Vec::new();
            range::push_unsatisfied_range(size, &mut text);
            request.response.content_range = Some(text);
            request.response.refusal = Some(416);
        }
        RangeOutcome::Partial => match ranges.as_slice() {
            &[single] => one(request, single, size),
            // A body that can be read only once supports only one range; as in nginx, a body of several pieces supports
            // only one too.
            _ if is_divided_once(&request.response.body) => {}
            several => respond_multipart(request, several, size),
        },
    }
}

/// Whether a body supports only one range.
fn is_divided_once(body: &Body) -> bool {
    match body {
        Body::Source(_) => true,
        Body::File(file) => file.pieces.len() > 1,
        _ => false,
    }
}

/// Returns the pieces of a range of a body, which consists of `pieces`.
fn cut(pieces: &[Piece], range: ByteRange) -> SmallVec<[Piece; 1]> {
    debug_assert!(range.start < range.end, "a range that can be satisfied has bytes");
    let (mut cut, mut at) = (SmallVec::new(), 0);
    for piece in pieces {
        let len = match piece {
            Piece::Text(text) => text.len() as u64,
            Piece::Range { start, end } => end - start,
        };
        let (from, to) = (range.start.max(at), range.end.min(at + len));
        if from < to {
            debug_assert!(at <= from, "the range begins in this piece or behind it");
            let (from, to) = (from - at, to - at);
            cut.push(match piece {
                Piece::Text(text) => Piece::Text(text[from as usize..to as usize].to_vec()),
                Piece::Range { start, .. } => Piece::Range { start: start + from, end: start + to },
            });
        }
        at += len;
    }
    debug_assert!(range.end <= at, "the range is within the body");
    cut
}

/// Whether `If-Range` matches the current file; otherwise the client gets the complete file (RFC 9110 section 13.1.5).
fn if_range_holds(request: &Request) -> bool {
    let response = &request.response;
    let validators = Validators {
        etag: response.etag.as_ref().map(|etag| etag.as_bytes()),
        last_modified: response.last_modified,
    };
    // RFC 9110 section 13.1.5: a date that is no strong validator matches nothing. Applies only to stored responses of a cache.
    let is_weak_date = response.is_stored
        && response.etag.is_none()
        && response
            .date
            .as_ref()
            .and_then(|date| http::date::parse_http(date))
            .zip(response.last_modified)
            .is_some_and(|(date, modified)| date <= modified);
    request
        .header(HeaderId::IfRange)
        .is_none_or(|value| !is_weak_date && range::if_range_matches(value, validators))
}

/// Responds with one range, which needs no framing: the range is the body, and `Content-Range` has its position.
fn one(request: &mut Request, range: ByteRange, size: u64) {
    debug_assert!(range.start < range.end && range.end <= size, "the parser limits a range to the body");
    let mut text = Vec::new();
    range::push_content_range(range, size, &mut text);
    let response = &mut request.response;
    response.becomes_part(Some(text), range.len());
    let piece = || smallvec![Piece::Range { start: range.start, end: range.end }];
    response.body = match std::mem::take(&mut response.body) {
        Body::None => Body::None,
        Body::Bytes(source) => Body::Slice(source, range.start as usize..range.end as usize),
        Body::Slice(source, all) => {
            let (start, end) = (all.start + range.start as usize, all.start + range.end as usize);
            Body::Slice(source, start..end)
        }
        Body::File(mut file) => {
            file.pieces = cut(&file.pieces, range);
            Body::File(file)
        }
        Body::Ranged(mut body) => {
            body.pieces = piece();
            Body::Ranged(body)
        }
        Body::Source(stream) => Body::Source(Box::new(Subrange::new(stream, range.start..range.end))),
        Body::Tunnel(tunnel) => Body::Tunnel(tunnel),
    };
}

/// Responds with several ranges as a multipart body, whose length is computed before it is read.
fn respond_multipart(request: &mut Request, ranges: &[ByteRange], size: u64) {
    let boundary = request.conn.thread.shared.next_boundary();
    // Each part has the original content type; the content type of the response has the boundary instead.
    let mut media_type = request.response.content_type.of(request).unwrap_or_default().as_bytes().to_vec();
    let response = &mut request.response;
    // The charset applies to each part, not to the multipart response.
    if let Some(charset) = response.charset.take() {
        media_type.extend_from_slice(b"; charset=");
        media_type.extend_from_slice(&charset);
    }
    let multipart = Multipart::new(boundary, &media_type, size);
    let mut content_type = Vec::new();
    multipart.push_content_type(&mut content_type);
    response.becomes_part(None, multipart.total_len(ranges));
    response.content_type = ContentType::Text(String::from_utf8_lossy(&content_type).into_owned().into());
    let mut pieces = SmallVec::new();
    for &range in ranges {
        let mut text = Vec::new();
        multipart.push_part(range, &mut text);
        pieces.push(Piece::Text(text));
        pieces.push(Piece::Range { start: range.start, end: range.end });
    }
    let mut end = Vec::new();
    multipart.push_end(&mut end);
    pieces.push(Piece::Text(end));
    let ranged = |mut body: RangedBody, pieces| {
        body.pieces = pieces;
        Body::Ranged(body)
    };
    response.body = match std::mem::take(&mut response.body) {
        Body::File(mut file) => {
            file.pieces = pieces;
            Body::File(file)
        }
        Body::Ranged(body) => ranged(body, pieces),
        Body::Bytes(source) => {
            let all = 0..source.bytes().len();
            ranged(RangedBody::of_bytes(source, all), pieces)
        }
        Body::Slice(source, all) => ranged(RangedBody::of_bytes(source, all), pieces),
        // HEAD, whose body is not read; a stream never reaches this point.
        body => body,
    };
}
