//! Responses to errors and redirects: `error_page`, else the built-in page.

use std::rc::Rc;

use http::StatusCode;
use http::connection::Browser;
use http::fields::HeaderId;
use io::segments::Source;

use crate::course::become_get;
use crate::effect;
use crate::phases::Step;
use crate::rehearsal::Event;
use crate::request::Request;
use crate::response::{ContentType, Response};
use site::settings::responding::ErrorPage;
use telemetry::ForLog;

/// Returns the step to the page of `error_page`; without such a page, creates the built-in response and returns `None`.
pub fn special(request: &mut Request, status: u16) -> Option<Step> {
    // After these statuses the next bytes on the connection may not start a request, or the server is failing.
    if matches!(status, 400 | 413 | 414 | 494..=497 | 500 | 501) {
        request.keepalive = false;
    }
    let thread_config = Rc::clone(&request.thread_config);
    let core = &thread_config.config.location(request.location).scope.core;
    let pages = core.responding.error_pages.items();
    let page = pages.iter().find(|page| page.status == status).filter(|_| !request.has_last_error_page);
    // As in nginx: a later error gets the built-in page, unless `recursive_error_pages` is on where the first error occurs.
    request.has_last_error_page |= !pages.is_empty() && !core.responding.recursive_error_pages;
    match page {
        Some(page) => follow(request, page, status),
        None if matches!(status, 301 | 302) && needs_refresh(request) => {
            refresh(request);
            None
        }
        None => {
            respond(request, status);
            None
        }
    }
}

/// Whether a redirect is sent as an HTML page with a refresh (`msie_refresh`).
fn needs_refresh(request: &Request) -> bool {
    request.scope().core.responding.msie.refresh
        && request.response.location.is_some()
        && request.header(HeaderId::UserAgent).is_some_and(|agent| Browser::detect(agent).msie)
}

/// Responds with an HTML page that refreshes to the redirect's target, as nginx writes it.
fn refresh(request: &mut Request) {
    let Response { location, fields, .. } = std::mem::take(&mut request.response);
    let mut page = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    let target = location.unwrap_or_default();
    http::uri::escape(http::uri::Escape::Refresh, &target, &mut page);
    page.extend_from_slice(b"\"></head><body></body></html>\r\n");
    request.error_status = None;
    let content_type = ContentType::Text("text/html".into());
    request.response = Response { status: 200, fields, content_type, ..Response::default() };
    request.response.set_bytes(Source::Vec(page));
}

/// Follows an `error_page`. If `None` is returned, the response is complete: a redirect, or an error.
fn follow(request: &mut Request, page: &ErrorPage, status: u16) -> Option<Step> {
    let target = page.target.rendered(request);
    request.error_status = Some(page.overwrite.unwrap_or(status));
    request.note(|| {
        let text = format!("{status}: continues with {}", target.for_log());
        Event::Said { label: "error_page", text }
    });
    // As in nginx, the page retains `Location` and challenges, but no other fields of the failed handler.
    let location = std::mem::take(&mut request.response.location);
    let challenges = std::mem::take(&mut request.response.challenges);
    let vary_accept_encoding = request.response.vary_accept_encoding;
    request.response.clear();
    request.response.challenges = challenges;
    request.response.location = location;
    // `Vary` still applies, because the client's `Accept-Encoding` led to this response.
    request.response.vary_accept_encoding = vary_accept_encoding;
    match target.first() {
        Some(b'/') => {
            let question = target.iter().position(|&byte| byte == b'?').unwrap_or(target.len());
            request.uri = target[..question].to_vec();
            request.args = target.get(question + 1..).unwrap_or_default().to_vec();
            // The error page is fetched with GET, whatever the original method was.
            become_get(request);
            Some(Step::Internal)
        }
        Some(b'@') => {
            let name = String::from_utf8_lossy(&target).into_owned();
            match request.server().locations.named(&name) {
                Some(location) => Some(Step::Named(location)),
                None => {
                    let what = format_args!("could not find named location \"{name}\"");
                    request.log(telemetry::Level::Error, what);
                    respond(request, 500);
                    None
                }
            }
        }
        _ => {
            let code =
                page.overwrite.filter(|code| matches!(code, 301 | 302 | 303 | 307 | 308)).unwrap_or(302);
            request.response.location = Some(target);
            // The client requests that URL itself and does not see the original status.
            request.error_status = None;
            match needs_refresh(request) {
                true => refresh(request),
                false => respond(request, code),
            }
            None
        }
    }
}

/// Responds with this status and the built-in page, if one exists. `Location`, challenges and additional fields are
/// retained.
pub fn respond(request: &mut Request, status: u16) {
    let Response { location, fields, challenges, vary_accept_encoding, .. } =
        std::mem::take(&mut request.response);
    request.response = Response { location, fields, challenges, vary_accept_encoding, ..Response::default() };
    request.error_status = None;
    built_in(request, status);
}

/// Replaces the body with the built-in page for this status.
pub fn built_in(request: &mut Request, status: u16) {
    let mut page = Vec::new();
    let code = StatusCode::new(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let core = &request.scope().core;
    let signature = effect::signature(&core.responding.server_tokens, request);
    // Only for browsers that replace short error pages with their own.
    let padded = core.responding.msie.padding
        && request.header(HeaderId::UserAgent).is_some_and(|agent| Browser::detect(agent).needs_padding());
    http::error_page::push_page(code, signature.as_deref(), padded, &mut page);
    let response = &mut request.response;
    response.status = status;
    // Statuses without a page in nginx have neither body nor content type.
    response.content_type =
        if page.is_empty() { ContentType::None } else { ContentType::Text("text/html".into()) };
    // These fields described a file; the body is now a generated page.
    (response.last_modified, response.etag, response.content_range) = (None, None, None);
    response.allow_ranges = false;
    response.remove_field(b"Content-Encoding");
    // `X-Accel-Redirect` retains that of the upstream.
    response.remove_field(b"Accept-Ranges");
    response.drop_body_fields();
    response.set_bytes(Source::Vec(page));
}
