//! The response for the client: which fields of the upstream's response are passed on, which this server obeys, and which body is
//! sent.
//!
//! | field | handling |
//! |---|---|
//! | `Content-Type`, `Content-Length`, `Last-Modified`, `ETag`, `Content-Range` | become members of the response that filters use |
//! | `Location`, `Refresh`, `Set-Cookie` | rewritten by the protocol (`proxy_redirect`, `proxy_cookie_*`) |
//! | `WWW-Authenticate` | a challenge that is also sent with an error page |
//! | `Server`, `Date` | hidden; if shown, they replace the fields of this server; the `Date` of a stored response always does |
//! | `X-Accel-*`, `X-Pad` | hidden; `X-Accel-*` fields control this server |
//! | hop-by-hop fields, and fields that `Connection` names | dropped |
//! | names that are not tokens | dropped, with a warning |
//! | all others | passed on; control bytes in them become spaces in the header section |
//!
//! Values that filters need (type, length, date, tag) become members of the response, so that `gzip`, ranges and conditions work as
//! for files; all other fields are passed on unchanged.

use std::rc::Rc;

use http::conditional::Etag;
use http::fields::FieldLine;
use http::fields::{HeaderId, Method};
use http::hop_by_hop::ConnectionOptions;
use http::response::encode;
use http::response::parse::ParsedResponse;

use crate::passing::conf::Conf;
use crate::passing::converted::{ConvertedHeads, FoundHead};
use crate::passing::protocol::Via;
use crate::passing::request::Context;
use crate::passing::store;
use exchange::charset;
use exchange::course;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::{Body, ContentType, Reason, Response};
use exchange::subrequest;
use telemetry::{ForLog, Level};
use upstream::state::Tries;
use upstream::{Heading, Reply, ReplyBody};

/// Names of `proxy_ignore_headers`.
pub(super) const IGNORABLE: &[(&str, u64)] = &[
    ("X-Accel-Redirect", Ignored::REDIRECT),
    ("X-Accel-Expires", Ignored::ACCEL_EXPIRES),
    ("X-Accel-Limit-Rate", Ignored::LIMIT_RATE),
    ("X-Accel-Buffering", Ignored::BUFFERING),
    ("X-Accel-Charset", Ignored::CHARSET),
    ("Expires", Ignored::EXPIRES),
    ("Cache-Control", Ignored::CACHE_CONTROL),
    ("Set-Cookie", Ignored::SET_COOKIE),
    ("Vary", Ignored::VARY),
];

/// Response fields that do not control this server (`proxy_ignore_headers`). They are still passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ignored(u64);

impl Ignored {
    const REDIRECT: u64 = 1;
    const ACCEL_EXPIRES: u64 = 1 << 1;
    const LIMIT_RATE: u64 = 1 << 2;
    const BUFFERING: u64 = 1 << 3;
    const CHARSET: u64 = 1 << 4;
    const EXPIRES: u64 = 1 << 5;
    const CACHE_CONTROL: u64 = 1 << 6;
    const SET_COOKIE: u64 = 1 << 7;
    const VARY: u64 = 1 << 8;

    /// Whether the field must be ignored.
    pub(crate) fn has(self, id: HeaderId) -> bool {
        let bit = match id {
            HeaderId::XAccelRedirect => Ignored::REDIRECT,
            HeaderId::XAccelExpires => Ignored::ACCEL_EXPIRES,
            HeaderId::XAccelLimitRate => Ignored::LIMIT_RATE,
            HeaderId::XAccelBuffering => Ignored::BUFFERING,
            HeaderId::XAccelCharset => Ignored::CHARSET,
            HeaderId::Expires => Ignored::EXPIRES,
            HeaderId::CacheControl => Ignored::CACHE_CONTROL,
            HeaderId::SetCookie => Ignored::SET_COOKIE,
            HeaderId::Vary => Ignored::VARY,
            _ => 0,
        };
        self.0 & bit != 0
    }
}

impl Conf {
    /// `proxy_ignore_headers`
    pub(crate) fn ignored(&self) -> Ignored {
        Ignored(self.ignored.all())
    }
}

/// Creates the response for the client from that of an upstream, or follows a redirect in it.
pub(crate) fn apply(request: &mut Request, via: Via<'_>, reply: Reply) -> Step {
    let conf = via.conf;
    let heading = Rc::clone(&reply.head);
    // nginx's order: an intercepted response has no other effect, and a redirected one has no body to pass on.
    if let Some(step) = intercept(request, conf, &heading) {
        Tries::of(request).replace_last();
        return step;
    }
    let steering = steer(request, conf, &heading);
    if let Some(target) = steering.redirect {
        Tries::of(request).replace_last();
        return redirect(request, via, &heading, target);
    }
    // The upstream has evaluated conditions that were sent with the request, and memcached has none. For a cache, the client's
    // conditions were not sent.
    let context = request.extensions.get::<Context>();
    let is_precondition_evaluated =
        context.is_none_or(|context| context.passes_conditions) && reply.stored.is_none();
    request.response.is_precondition_evaluated = is_precondition_evaluated;
    request.response.is_stored = reply.stored.is_some();
    // Any range of an entry can be read, even if the upstream does not support ranges.
    request.response.allow_ranges = reply.stored.is_some() && heading.head().status().code() == 200;
    match reply.stored.is_some() {
        true => stored_head(request, via, &heading),
        false => head(request, via, &heading),
    }
    request.response.never_indexed = heading.never_indexed().cloned().map(Box::new);
    if let Some(stored) = reply.stored {
        Tries::of(request).stored = Some(Rc::clone(&heading));
        request.response.content_length = stored.length;
        if let Some(age_s) = stored.age_s {
            http::with_decimal(age_s.into(), |age| push(request, b"Age", age));
        }
    }
    // From here on this is a response like any other: filters do not depend on the source of a body.
    let body = match reply.body {
        ReplyBody::Bytes(source) if request.response.content_length.is_none() => {
            // The body was chunked, or ended with the connection; now its length is known.
            request.response.content_length = Some(source.bytes().len() as u64);
            Body::Bytes(source)
        }
        ReplyBody::None if is_empty(request) => {
            request.response.content_length = Some(0);
            Body::None
        }
        body => body.into_body(request, &conf.upstream, steering.buffering),
    };
    // As in nginx, a response that is passed on unbuffered is not stored as a file, and the rate of sending is not limited.
    request.response.body = match steering.buffering || request.response.is_stored {
        true => store::keep(request, conf, body),
        false => {
            request.limit_rate = Some(0);
            body
        }
    };
    Step::Done
}

/// Evaluates a setting of the cache while the request's response has the status and the fields of an upstream's response.
pub(super) fn preview<T>(
    request: &mut Request,
    via: Via<'_>,
    heading: &Heading,
    look: impl FnOnce(&Request) -> T,
) -> T {
    // Invalid names are logged when the response is sent.
    let empty = Response { is_stored: true, ..Response::default() };
    let before = std::mem::replace(&mut request.response, empty);
    let seen = request.look_ahead(|request| {
        head(request, via, heading);
        look(request)
    });
    request.response = before;
    seen
}

/// Whether an empty response needs `Content-Length: 0`: its status allows a body, and the upstream sent no length.
fn is_empty(request: &Request) -> bool {
    let has_framing = request.method != Method::Head && !matches!(request.response.status, 101 | 204 | 304);
    has_framing && request.response.content_length.is_none()
}

/// Redirects a status to its `error_page` (`proxy_intercept_errors`).
fn intercept(request: &mut Request, conf: &Conf, heading: &Heading) -> Option<Step> {
    let status = heading.head().status().code();
    if status == 404 && conf.intercept_not_found {
        return Some(Step::Status(status));
    }
    let pages = request.scope().core.responding.error_pages.items();
    // Without an `error_page`, the upstream's page is preferred to a built-in one.
    if status < 300 || !conf.intercept_errors || !pages.iter().any(|page| page.status == status) {
        return None;
    }
    if status == 401 {
        // The response with the page has the upstream's challenge.
        let questions = heading.head().all(heading.raw(), HeaderId::WwwAuthenticate);
        request.response.challenges.values = questions.map(<[u8]>::to_vec).collect();
    }
    Some(Step::Status(status))
}

/// The fields that control this server.
struct Steering<'h> {
    /// `X-Accel-Redirect`: internal URI of the response.
    redirect: Option<&'h [u8]>,
    /// Whether the body is read ahead of the client.
    buffering: bool,
}

/// Applies the fields that control this server.
fn steer<'h>(request: &mut Request, conf: &Conf, heading: &'h Heading) -> Steering<'h> {
    let (ignored, head, raw) = (conf.ignored(), heading.head(), heading.raw());
    let get = |id: HeaderId| head.get(raw, id).filter(|_| !ignored.has(id));
    // Limit rate and charset also apply to the target of a redirect, so they are set first.
    if let Some(rate) = get(HeaderId::XAccelLimitRate).and_then(http::parse_decimal) {
        request.limit_rate = Some(rate);
    }
    // As in nginx, the last value of these two fields counts.
    let charset = head.all(raw, HeaderId::XAccelCharset).last();
    if let Some(charset) = charset.filter(|_| !ignored.has(HeaderId::XAccelCharset)) {
        request.response.charset_override = charset::of_upstream(request, charset);
    }
    let buffering = match ignored.has(HeaderId::XAccelBuffering) {
        true => conf.upstream.buffering,
        false => heading.is_buffered(conf.upstream.buffering),
    };
    // An empty value is ignored; nginx would return an error.
    let redirect = get(HeaderId::XAccelRedirect).filter(|target| !target.is_empty());
    Steering { redirect, buffering }
}

/// Continues with another URI. Fields that describe the response are preserved for the target of the redirect, as in nginx.
fn redirect(request: &mut Request, via: Via<'_>, heading: &Heading, target: &[u8]) -> Step {
    for line in heading.head().lines(heading.raw()) {
        if is_kept(line) {
            take(request, via, line, Whole::Parts);
        }
    }
    if target.first() == Some(&b'@') {
        let name = String::from_utf8_lossy(target);
        return match request.server().locations.named(&name) {
            Some(location) => Step::Named(location),
            None => {
                request.log(Level::Error, format_args!("could not find named location \"{name}\""));
                Step::Status(500)
            }
        };
    }
    let Some((uri, args)) = subrequest::parse_uri(request, target) else { return Step::Status(404) };
    // The target is requested with GET, regardless of the method of the request.
    course::become_get(request);
    (request.uri, request.args) = (uri, args);
    Step::Internal
}

fn is_kept(line: FieldLine<'_>) -> bool {
    let known = matches!(
        line.id,
        HeaderId::ContentType
            | HeaderId::SetCookie
            | HeaderId::CacheControl
            | HeaderId::Expires
            | HeaderId::AcceptRanges
    );
    known || line.name.eq_ignore_ascii_case(b"Content-Disposition")
}

/// Works like [`head`] for a response from a cache, whose header section may have been converted for an earlier request.
fn stored_head(request: &mut Request, via: Via<'_>, heading: &Heading) {
    let thread = Rc::clone(&request.conn.thread);
    let heads = thread.local::<ConvertedHeads>();
    match heads.find(request, heading) {
        FoundHead::Converted(converted) => converted.apply(&mut request.response),
        FoundHead::Wanted => {
            head(request, via, heading);
            heads.store(request, heading);
        }
        FoundHead::No => head(request, via, heading),
    }
}

/// Copies status and fields into the response.
fn head(request: &mut Request, via: Via<'_>, heading: &Heading) {
    let (conf, head, raw) = (via.conf, heading.head(), heading.raw());
    let status = head.status();
    let response = &mut request.response;
    response.status = status.code();
    response.reason = Some(match head.received_reason(raw) {
        Some(text) => Reason::new(status, text),
        None => Reason { status: status.code(), text: None },
    });
    // A chunked body has no announced length, even with `Content-Length` (RFC 9112 section 6.3).
    response.content_length = if head.is_chunked() { None } else { head.content_length() };
    // nginx compares dates only for these statuses, and passes the date of an error page on like any other field.
    let whole = match status.code() {
        200 | 206 | 304 => Whole::Parts,
        _ => Whole::Fields,
    };
    // A 426 must name the protocol to upgrade to (RFC 9110 section 15.5.22).
    let is_upgrade = matches!(status.code(), 101 | 426);
    // RFC 9110 section 7.6.1: hop-by-hop fields do not apply to the next connection. nginx passes most of them on.
    let options = ConnectionOptions::new(head.all(raw, HeaderId::Connection));
    // With `proxy_pass_header Server` the field is the upstream's, even if absent. nginx then also omits an absent `Date`, but RFC
    // 9110 section 6.6.1 requires it.
    let hidden = &conf.upstream.hidden;
    if (hidden.by_protocol)(HeaderId::Server, b"Server") && !hidden.has(HeaderId::Server, b"Server") {
        request.response.server = Some(Vec::new());
    }
    for line in head.lines(raw) {
        let is_removed = options.removes(line.id, line.name) && !(is_upgrade && line.id == HeaderId::Upgrade);
        // The age and the expiry of a stored response are relative to its date.
        let is_kept =
            line.id == HeaderId::Date && request.response.is_stored && !hidden.has_by_name(line.name);
        if !is_removed && (is_kept || !hidden.has(line.id, line.name)) {
            take(request, via, line, whole);
        }
    }
    // The range filter cuts the ranges and sends `Accept-Ranges`.
    if conf.force_ranges {
        request.response.allow_ranges = true;
    }
}

/// Whether filters may compare the validators of a response (`Parts`), or pass them on like other fields (`Fields`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    Parts,
    Fields,
}

/// Stores one field in the corresponding member of the response.
fn take(request: &mut Request, via: Via<'_>, line: FieldLine<'_>, whole: Whole) {
    let FieldLine { id, name, value } = line;
    // All known names are tokens.
    if id == HeaderId::Other && encode::check_field(name, b"").is_err() {
        // A stored response was logged when it was received.
        if !request.response.is_stored {
            let name = name.for_log();
            let what = format_args!("upstream sent invalid header \"{name}\", ignored {READING}");
            request.log(Level::Warn, what);
        }
        return;
    }
    match id {
        HeaderId::ContentLength => {}
        HeaderId::ContentType => content_type(request, name, value),
        HeaderId::LastModified if whole == Whole::Parts => last_modified(request, name, value),
        HeaderId::Etag if request.response.etag.is_none() => {
            request.response.etag = Some(Etag::from_text(value));
        }
        HeaderId::ContentRange => request.response.content_range = Some(value.to_vec()),
        // The range filter of this server sends `Accept-Ranges` when it cuts ranges.
        HeaderId::AcceptRanges if via.conf.force_ranges || request.response.allow_ranges => {}
        HeaderId::WwwAuthenticate => request.response.challenges.values.push(value.to_vec()),
        HeaderId::Server => request.response.server = Some(value.to_vec()),
        // An invalid date is replaced by that of this server.
        HeaderId::Date => request.response.date = http::date::normalise(value),
        HeaderId::Location => location(request, via, name, value),
        HeaderId::Refresh => {
            let value = refresh(request, via, value);
            push(request, name, &value);
        }
        HeaderId::SetCookie => {
            let value = via.protocol.cookie(request, value);
            push(request, name, &value);
        }
        _ => push(request, name, value),
    }
}

/// Appendix of log messages.
const READING: &str = "while reading response header from upstream";

fn push(request: &mut Request, name: &[u8], value: &[u8]) {
    request.response.fields.push(name, value);
}

fn content_type(request: &mut Request, name: &[u8], value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => request.response.content_type = ContentType::Text(text.to_owned().into()),
        // No filter handles such a type.
        Err(_) => push(request, name, value),
    }
}

/// Sets `Last-Modified`. A date in the usual format is compared with the client's conditions; others are passed on unchanged.
fn last_modified(request: &mut Request, name: &[u8], value: &[u8]) {
    match http::date::parse_as_written(value) {
        Some(date) => request.response.last_modified = Some(date),
        None => push(request, name, value),
    }
}

/// Sets the rewritten `Location`. As in nginx an unchanged path remains a path, regardless of `absolute_redirect`.
fn location(request: &mut Request, via: Via<'_>, name: &[u8], value: &[u8]) {
    match via.protocol.location(request, value) {
        Some(changed) => request.response.location = Some(changed),
        None => push(request, name, value),
    }
}

/// Rewrites the text after `url=`, a URI like that in `Location`.
fn refresh(request: &Request, via: Via<'_>, value: &[u8]) -> Vec<u8> {
    const URL: &[u8] = b"url=";
    let start = value.windows(URL.len()).position(|window| window.eq_ignore_ascii_case(URL));
    let Some(start) = start.map(|start| start + URL.len()) else { return value.to_vec() };
    match via.protocol.location(request, &value[start..]) {
        Some(changed) => [&value[..start], &changed].concat(),
        None => value.to_vec(),
    }
}

/// Returns the fields of an interim response (103) for a client: those that are passed on and do not describe a body.
pub(super) fn interim_lines<'a>(
    conf: &'a Conf,
    head: &'a ParsedResponse,
    raw: &'a [u8],
) -> impl Iterator<Item = FieldLine<'a>> + 'a {
    let options = ConnectionOptions::new(head.all(raw, HeaderId::Connection));
    head.lines(raw).filter(move |line| {
        !options.removes(line.id, line.name)
            && !conf.upstream.hidden.has(line.id, line.name)
            && line.id != HeaderId::ContentLength
    })
}
