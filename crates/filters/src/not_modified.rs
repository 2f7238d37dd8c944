//! Evaluates preconditions: 304 and 412 (RFC 9110 section 13).

use std::sync::Arc;

use http::conditional::{
    self, Comparison, Evaluator, IfModifiedSince, PreconditionResult, Strength, Validators,
};
use http::fields::HeaderId;

use crate::{Declaration, Module};
use exchange::request::Request;
use exchange::response::{Body, NotModified};

/// The module. Its directive `if_modified_since` belongs to `http_core`.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, _, plan| plan.filter(Arc::new(()), |(), request| filter(request)),
    ..Module::of(Declaration::named("http_not_modified"))
};

/// Evaluates preconditions before the body is read, so that a file that the client has cached is not read.
fn filter(request: &mut Request) {
    // Other statuses do not concern the client's copy, and neither does the file of an error page. The client has no
    // copy of a subrequest's response either.
    if request.error_status.is_some() || request.depth > 0 {
        return;
    }
    if request.response.status == 304 {
        return restore_weak_tag(request);
    }
    // For a request without a precondition, the date below is not parsed.
    if request.response.status != 200 || !conditional::is_conditional(&request.head) {
        return;
    }
    // The upstream has already evaluated the preconditions, and they did not match.
    if request.response.is_precondition_evaluated {
        return;
    }
    let response = &request.response;
    let mut last_modified = response.last_modified;
    // A file that was restored to an older state must be sent again, so dates must be equal. The same applies to a
    // response of an upstream.
    let (mut mode, mut evaluator) = (IfModifiedSince::Exact, Evaluator::Origin);
    if response.is_stored {
        (mode, evaluator) = (IfModifiedSince::Before, Evaluator::Cache);
        // RFC 9111 section 4.3.2: `Date` replaces a missing `Last-Modified`.
        let text = response.field(b"Last-Modified").or(response.date.as_ref().map(|date| &date[..]));
        last_modified = last_modified.or_else(|| text.and_then(http::date::parse_http));
    }
    let mode = request.scope().core.responding.if_modified_since.unwrap_or(mode);
    let etag = response.etag.as_ref().map(|etag| etag.as_bytes());
    let validators = Validators { etag, last_modified };
    match conditional::evaluate(&request.head, request.bytes(), validators, mode, evaluator) {
        PreconditionResult::Proceed => {}
        PreconditionResult::NotModified => {
            let response = &mut request.response;
            response.status = 304;
            response.body = Body::None;
            // The later filters change tag and `Vary` as those of the 200.
            response.not_modified = Some(NotModified::Here);
        }
        // The error page replaces the file, and the validators are dropped, because they do not belong to the page.
        PreconditionResult::PreconditionFailed => request.response.refusal = Some(412),
    }
}

/// Restores the weak tag in the 304 of an upstream, if the client has it because a filter has changed the body: with the tag of
/// the upstream, which is strong, the client could not select its stored response (RFC 9111 section 4.3.4).
fn restore_weak_tag(request: &mut Request) {
    let Some(tag) = request.response.etag.as_ref().map(|etag| etag.as_bytes()) else { return };
    let Some(list) = request.header(HeaderId::IfNoneMatch) else { return };
    let matches = |comparison| conditional::matches_list(list, Some(tag), comparison);
    let is_strong = conditional::strength(tag) == Some(Strength::Strong);
    if is_strong && !matches(Comparison::Strong) && matches(Comparison::Weak) {
        request.response.weaken_etag();
        request.response.not_modified = Some(NotModified::ByUpstream);
    }
}
