//! Answers to errors and redirects: `error_page`, else the short built-in page.

use std::rc::Rc;

use http::StatusCode;
use http::connection::Browser;
use http::request::HeaderId;
use io::op::Source;

use crate::course::become_get;
use crate::effect;
use crate::phases::Step;
use crate::request::Request;
use crate::response::{ContentType, Response};
use crate::settings::answering::ErrorPage;

/// Goes where `error_page` sends this status, or makes the built-in answer: then there is no further step.
pub fn special(request: &mut Request, status: u16) -> Option<Step> {
    // After these the next byte on the connection may not be the start of a request, or the server is in
    // trouble.
    if matches!(status, 400 | 413 | 414 | 494..=497 | 500 | 501) {
        request.keepalive = false;
    }
    let generation = Rc::clone(&request.generation);
    let core = &generation.config.location(request.location).scope.core;
    let page = core.answering.error_pages.items().iter().find(|page| page.status == status);
    // A page that fails itself leads to the built-in one, unless the configuration asks for more.
    let may_go = request.error_status.is_none() || core.answering.recursive_error_pages;
    match page.filter(|_| may_go && status != 444) {
        Some(page) => go_to(request, page, status),
        None if matches!(status, 301 | 302) && wants_refresh(request) => {
            refresh(request);
            None
        }
        None => {
            respond(request, status);
            None
        }
    }
}

/// Whether a redirect is to be a page that leads on (`msie_refresh`).
fn wants_refresh(request: &Request) -> bool {
    request.scope().core.answering.msie.refresh
        && request.response.location.is_some()
        && request.header(HeaderId::UserAgent).is_some_and(|agent| Browser::detect(agent).msie)
}

/// Answers with a page that leads where the redirect would have led, as nginx writes it.
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

/// Follows an `error_page`; without a further step the response is made: a redirect, or an error.
fn go_to(request: &mut Request, page: &ErrorPage, status: u16) -> Option<Step> {
    let target = page.target.rendered(request);
    request.error_status = Some(page.overwrite.unwrap_or(status));
    // Fields set by the failed handler must not show in the response of the page.
    let location = std::mem::take(&mut request.response.location);
    // A page in the place of the built-in one still asks for the password.
    let www_authenticate = std::mem::take(&mut request.response.www_authenticate);
    let vary_accept_encoding = request.response.vary_accept_encoding;
    request.response.clear();
    request.response.www_authenticate = www_authenticate;
    // As in nginx: the page of a redirect still has its target.
    request.response.location = location;
    // The client's `Accept-Encoding` led to this response.
    request.response.vary_accept_encoding = vary_accept_encoding;
    match target.first() {
        Some(b'/') => {
            let question = target.iter().position(|&byte| byte == b'?').unwrap_or(target.len());
            request.uri = target[..question].to_vec();
            request.args = target.get(question + 1..).unwrap_or_default().to_vec();
            // A page is fetched, whatever the method was that failed.
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
            // The client follows a URL, so it does not see the status that led to it.
            request.error_status = None;
            match wants_refresh(request) {
                true => refresh(request),
                false => respond(request, code),
            }
            None
        }
    }
}

/// Answers with this status and the built-in page, if there is one; a `Location` that is set stays.
pub fn respond(request: &mut Request, status: u16) {
    let Response { location, fields, www_authenticate, vary_accept_encoding, .. } =
        std::mem::take(&mut request.response);
    request.response =
        Response { location, fields, www_authenticate, vary_accept_encoding, ..Response::default() };
    request.error_status = None;
    built_in(request, status);
}

/// Puts the built-in page for this status in the place of the body.
pub fn built_in(request: &mut Request, status: u16) {
    let mut page = Vec::new();
    let code = StatusCode::new(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let core = &request.scope().core;
    let signature = effect::signature(&core.answering.server_tokens, request);
    // Only for browsers that replaced short pages by theirs.
    let padded = core.answering.msie.padding
        && request.header(HeaderId::UserAgent).is_some_and(|agent| Browser::detect(agent).wants_padding());
    http::error_page::push_page(code, signature.as_deref(), padded, &mut page);
    let response = &mut request.response;
    response.status = status;
    // Statuses without a page in nginx have no body, and no type either.
    response.content_type =
        if page.is_empty() { ContentType::None } else { ContentType::Text("text/html".into()) };
    // They described a file; the body is a page made for this request.
    (response.last_modified, response.etag, response.content_range) = (None, None, None);
    response.allow_ranges = false;
    response.remove_field(b"Content-Encoding");
    response.set_bytes(Source::Vec(page));
}
