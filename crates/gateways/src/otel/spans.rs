//! The span of a request, which is added to the batch of the thread when the request ends, after those of its steps.

use std::time::{Duration, SystemTime};

use super::conf::{SpanConf, Trace};
use super::context::{self, TraceContext};
use super::exporter::Exporter;
use super::steps;
use exchange::request::{Address, Request};
use http::fields::{BodyLength, HeaderId};
use std::rc::Rc;
use telemetry::otlp::{SpanHead, SpanKind, SpanWriter};

/// Adds the span of a request that has ended, and those of its steps, if it is traced.
pub(super) fn end(conf: &SpanConf, request: &Request) {
    // A copy of a request, and a rehearsal, have no client.
    if request.depth > 0 || request.is_detached || request.is_rehearsed() {
        return;
    }
    let Some(context) = sampled(conf, request) else { return };
    let exporter = request.conn.thread.local::<Rc<Exporter>>();
    let name = match &conf.span_name {
        Some(text) => text.rendered(request),
        None => request.location().name.clone().into(),
    };
    let head = SpanHead {
        trace_id: context.trace_id,
        span_id: context.span_id,
        parent_id: context.parent.map(|parent| parent.span_id),
        state: &context.state,
        name: &name,
        kind: SpanKind::Server,
        start_ns: nanoseconds(request.started_wall),
        end_ns: nanoseconds(request.started_wall + request.elapsed()),
    };
    steps::add(exporter, &context, context.span_id, request);
    exporter.add(&request.conn.thread, &head, |span| {
        default_attributes(request, span);
        configured_attributes(conf, request, span);
    });
}

/// Returns the context of a request that is traced. A request that ended before a location was chosen, such as by a `return` of its
/// server, is decided about now.
fn sampled(conf: &SpanConf, request: &Request) -> Option<Rc<TraceContext>> {
    if request.shared.untraced_id.get().is_some() {
        return None;
    }
    let known = context::find(request);
    let is_traced = |context: &Rc<TraceContext>| context.is_sampled.get() == Some(true);
    match known {
        Some(context) if context.is_sampled.get().is_some() => Some(context),
        // Without directives there is no need of a context.
        None if matches!(conf.trace, Trace::Off) => None,
        known => context::decide(conf, request, known),
    }
    .filter(is_traced)
}

/// Returns the time since 1970. A clock before 1970 counts as 1970.
pub(super) fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds the attributes that nginx's module adds, in its order: those of the semantic conventions 1.16.
fn default_attributes(request: &Request, span: &mut SpanWriter<'_>) {
    let bytes = request.bytes();
    span.text("http.method", request.method_text());
    span.text("http.target", request.head.request_uri(bytes));
    let route = &request.location().name;
    if !route.is_empty() {
        span.text("http.route", route.as_bytes());
    }
    span.text("http.scheme", request.conn.scheme().as_bytes());
    let mut protocol = Vec::new();
    request.head.push_protocol(&mut protocol);
    if let Some(version) = protocol.strip_prefix(b"HTTP/") {
        span.text("http.flavor", version);
    }
    if let Some(agent) = request.header(HeaderId::UserAgent) {
        span.text("http.user_agent", agent);
    }
    let received = match request.head.body() {
        BodyLength::Exactly(length) => length,
        _ => request.body.as_ref().map_or(0, |body| body.byte_count()),
    };
    span.number("http.request_content_length", received);
    span.number("http.response_content_length", request.sent.saturating_sub(request.sent_head));
    let status = status_of(request);
    if status != 0 {
        span.number("http.status_code", status.into());
    }
    let name = &request.server().name;
    span.text("net.host.name", if name.is_empty() { &request.host } else { name.as_bytes() });
    if let Address::Inet(address) = &request.conn.local {
        let default = if request.conn.secured.get().is_some() { 443 } else { 80 };
        if address.port() != default {
            span.number("net.host.port", address.port().into());
        }
    }
    span.text("net.sock.peer.addr", request.client().to_string().as_bytes());
    if let Address::Inet(address) = &request.conn.peer {
        span.number("net.sock.peer.port", address.port().into());
    }
    if status >= 500 {
        span.error("");
    }
}

/// Returns the status of `$status`; 0 if it is undecided.
pub(super) fn status_of(request: &Request) -> u16 {
    request.error_status.filter(|&status| status != 0).unwrap_or(request.response.status)
}

/// Adds the attributes of `otel_span_attr`. As in nginx, those of header fields are arrays.
fn configured_attributes(conf: &SpanConf, request: &Request, span: &mut SpanWriter<'_>) {
    for (name, text) in conf.attributes.items() {
        let value = text.rendered(request);
        if name.starts_with("http.request.header.") || name.starts_with("http.response.header.") {
            span.texts(name, &value);
        } else {
            span.text(name, &value);
        }
    }
}
