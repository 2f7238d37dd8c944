//! Spans of the steps of a traced request, which nginx's module does not have: each try at an upstream, the lookup in a cache, the
//! opening of a file, the fetch for a cache, and subrequests.
//!
//! The times of tries and waits are known anyway, so these spans are made when the request ends. Only requests that are traced have
//! them. They are children of the span of the request, or of the subrequest.

use std::rc::Rc;
use std::time::Instant;

use super::context::{self, TraceContext};
use super::exporter::Exporter;
use super::spans::{nanoseconds, status_of};
use exchange::marks::Marks;
use exchange::request::Request;
use exchange::thread::Thread;
use telemetry::otlp::{SpanHead, SpanKind, SpanWriter};
use upstream::state::{ShownTry, cache_status_text, shown_tries};

/// Maximum number of tries of a request that get a span.
const TRIES_MAX: usize = 64;

/// A span of a step, without its times.
struct Step<'a> {
    exporter: &'a Exporter,
    thread: &'a Thread,
    context: &'a TraceContext,
    parent: [u8; 8],
}

impl Step<'_> {
    fn add(
        &self,
        name: &str,
        kind: SpanKind,
        times: (Instant, Instant),
        fill: impl FnOnce(&mut SpanWriter<'_>),
    ) {
        self.add_as(self.exporter.identifiers.span(), name, kind, times, fill);
    }

    fn add_as(
        &self,
        span_id: [u8; 8],
        name: &str,
        kind: SpanKind,
        (start, end): (Instant, Instant),
        fill: impl FnOnce(&mut SpanWriter<'_>),
    ) {
        let head = SpanHead {
            trace_id: self.context.trace_id,
            span_id,
            parent_id: Some(self.parent),
            state: &self.context.state,
            name: name.as_bytes(),
            kind,
            start_ns: wall_ns(start),
            end_ns: wall_ns(end.max(start)),
        };
        self.exporter.add(self.thread, &head, fill);
    }
}

/// Converts a time to the wall clock, in nanoseconds since 1970.
fn wall_ns(time: Instant) -> u64 {
    nanoseconds(rt::wall() - rt::now().saturating_duration_since(time))
}

/// Adds the spans of the steps of a request or subrequest, as children of its span.
pub(super) fn add(exporter: &Exporter, context: &TraceContext, parent: [u8; 8], request: &Request) {
    let thread = &*request.conn.thread;
    let step = Step { exporter, thread, context, parent };
    let marks = request.extensions.get::<Marks>().copied().unwrap_or_default();
    // The clock of a thread advances only in waits, so a handler begins when the wait before it ends.
    let begun = marks.found.or(marks.received).unwrap_or(request.started);
    let opened = (begun, marks.opened.unwrap_or(begun));
    let cache_status = cache_status_text(request);
    let mut tries = shown_tries(request).take(TRIES_MAX).enumerate().peekable();
    if !cache_status.is_empty() {
        step.add("cache.lookup", SpanKind::Internal, opened, |span| {
            span.text("cache.status", cache_status.as_bytes());
        });
    } else if tries.peek().is_none() && request.mover.is_some() {
        step.add("file.open", SpanKind::Internal, opened, |_| {});
    }
    for (index, one) in tries {
        add_try(&step, index, &one);
    }
}

/// Adds the span of a try, and of its connection unless that was idle before.
fn add_try(step: &Step<'_>, index: usize, one: &ShownTry<'_>) {
    let [connected, header, ended] = one.times;
    let end = ended.or(header).or(connected).map_or_else(rt::now, |time| one.started + time);
    let span_id = step.exporter.identifiers.span();
    if let Some(connected) = connected.filter(|_| !one.is_reused) {
        let connecting = Step { parent: span_id, ..*step };
        connecting.add(
            "upstream.connect",
            SpanKind::Internal,
            (one.started, one.started + connected),
            |_| {},
        );
    }
    step.add_as(span_id, "upstream", SpanKind::Client, (one.started, end), |span| {
        span.text("net.peer.name", one.server.as_bytes());
        span.text("net.sock.peer.addr", one.name.as_bytes());
        if index > 0 {
            span.number("http.resend_count", index as u64);
        }
        if header.is_some() && one.status != 0 {
            span.number("http.status_code", one.status.into());
        }
        match header {
            None => span.error("no response"),
            Some(_) if one.status >= 500 => span.error(""),
            Some(_) => {}
        }
    });
}

/// The span of a subrequest.
#[derive(Clone, Copy, Debug)]
struct SubrequestSpan {
    span_id: [u8; 8],
    parent: [u8; 8],
    started: Instant,
}

/// Returns the span that a request or subrequest has, for its children.
fn span_of(context: &TraceContext, request: &Request) -> [u8; 8] {
    request.extensions.get::<SubrequestSpan>().map_or(context.span_id, |span| span.span_id)
}

/// Returns the context of a traced request.
fn traced(request: &Request) -> Option<Rc<TraceContext>> {
    context::find(request).filter(|context| context.is_sampled.get() == Some(true))
}

/// Begins the span of a subrequest.
pub(super) fn begin_subrequest(parent: &Request, child: &mut Request) {
    let Some(context) = traced(parent) else { return };
    let span = SubrequestSpan {
        span_id: parent.conn.thread.local::<Rc<Exporter>>().identifiers.span(),
        parent: span_of(&context, parent),
        started: rt::now(),
    };
    child.extensions.insert(span);
    child.is_timed = true;
}

/// Adds the span of a subrequest that has ended, with those of its steps.
pub(super) fn end_subrequest(child: &Request) {
    let (Some(span), Some(context)) = (child.extensions.get::<SubrequestSpan>(), traced(child)) else {
        return;
    };
    let thread = &child.conn.thread;
    let exporter = thread.local::<Rc<Exporter>>();
    add(exporter, &context, span.span_id, child);
    let step = Step { exporter, thread, context: &context, parent: span.parent };
    step.add_as(span.span_id, "subrequest", SpanKind::Internal, (span.started, rt::now()), |writer| {
        writer.text("http.target", &child.uri);
        writer.text("http.route", child.location().name.as_bytes());
        let status = status_of(child);
        writer.number("http.status_code", status.into());
        if status >= 500 {
            writer.error("");
        }
    });
}

/// The span of a request that works for a cache, which ends when this is dropped with the request: then the response is stored, or was
/// passed on.
struct FetchSpan {
    thread: Rc<Thread>,
    context: Rc<TraceContext>,
    parent: [u8; 8],
    started: Instant,
}

impl Drop for FetchSpan {
    fn drop(&mut self) {
        let exporter = self.thread.local::<Rc<Exporter>>();
        let step = Step { exporter, thread: &self.thread, context: &self.context, parent: self.parent };
        step.add("cache.fetch", SpanKind::Internal, (self.started, rt::now()), |_| {});
    }
}

/// Gives a request that shares no state with its parent the parent's context: its fields have the same identifiers.
pub(super) fn detach(parent: &Request, child: &mut Request) {
    let Some(context) = context::shared_with_copies(parent) else { return };
    child.shared.extensions.borrow_mut().insert(Rc::clone(&context));
    if child.is_detached && context.is_sampled.get() == Some(true) {
        child.extensions.insert(FetchSpan {
            thread: Rc::clone(&parent.conn.thread),
            parent: span_of(&context, parent),
            context,
            started: rt::now(),
        });
    }
}
