//! The trace context of a request, and its variables.
//!
//! A request gets a context in its first location with traces, or when a variable of this module is used. A request that a percentage
//! does not choose only has the identifier of its trace, unless its context is needed. The request shares the context
//! with its subrequests and copies, so all requests to upstreams have the same `traceparent`: each try, `auth_request`, `mirror`, and
//! the fetch of a cache that the request has started. With `inject` the received fields are replaced, so that an upstream gets
//! `traceparent` exactly once; `proxy_set_header` and its like still override the field.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use http::fields::HeaderId;
use http::trace_context::{TraceParent, join_states, push_hex};

use super::conf::{SpanConf, Trace, is_on};
use super::exporter::Exporter;
use exchange::module::Variable;
use exchange::phases::Step;
use exchange::request::Request;

const PARENT: &[u8] = b"traceparent";
const STATE: &[u8] = b"tracestate";
const CONNECTION: &[u8] = b"Connection";

/// The trace context of a request.
#[derive(Debug)]
pub(super) struct TraceContext {
    pub(super) trace_id: [u8; 16],
    /// The span of the request.
    pub(super) span_id: [u8; 8],
    /// The span that has sent the request, if it is known.
    pub(super) parent: Option<TraceParent>,
    /// The value of `tracestate`, if the trace is not new.
    pub(super) state: Vec<u8>,
    /// Whether spans of the request are exported; `None` until a location has decided.
    pub(super) is_sampled: Cell<Option<bool>>,
}

/// Source of the identifiers of a thread: the generator xoroshiro128++ of Blackman and Vigna. Identifiers are no secrets.
pub(super) struct Identifiers(Cell<[u64; 2]>);

impl Default for Identifiers {
    fn default() -> Identifiers {
        // The keys of `RandomState` are seeded by the kernel's random generator, and differ for each thread. A state of zeros would not
        // change.
        let seed = RandomState::new();
        Identifiers(Cell::new([seed.hash_one(0), seed.hash_one(1) | 1]))
    }
}

impl Identifiers {
    /// Returns a number other than zero.
    fn number(&self) -> u64 {
        loop {
            let [first, mut second] = self.0.get();
            let number = first.wrapping_add(second).rotate_left(17).wrapping_add(first);
            second ^= first;
            self.0.set([first.rotate_left(49) ^ second ^ second << 21, second.rotate_left(28)]);
            if number != 0 {
                return number;
            }
        }
    }

    /// Returns the identifier of a new trace.
    fn trace(&self) -> [u8; 16] {
        let number = u128::from(self.number()) << 64 | u128::from(self.number());
        number.to_be_bytes()
    }

    /// Returns the identifier of a new span.
    pub(super) fn span(&self) -> [u8; 8] {
        self.number().to_be_bytes()
    }
}

/// Returns the context of a request, if it has one.
pub(super) fn find(request: &Request) -> Option<Rc<TraceContext>> {
    request.shared.extensions.borrow().get::<Rc<TraceContext>>().cloned()
}

/// Returns the context of a request that a copy of it gets too, if it has one or the identifier of a trace.
pub(super) fn shared_with_copies(request: &Request) -> Option<Rc<TraceContext>> {
    let has_id = request.shared.untraced_id.get().is_some();
    if has_id { Some(context_of(request)) } else { find(request) }
}

/// Returns the context of a request, which is created by the settings of its current location if necessary.
pub(super) fn context_of(request: &Request) -> Rc<TraceContext> {
    if let Some(context) = find(request) {
        return context;
    }
    let context = match request.shared.untraced_id.get() {
        Some(trace_id) => begun(request, trace_id, Some(false)),
        None => received(request, request.scope().of::<SpanConf>().propagation.extracts),
    };
    store(request, context)
}

fn store(request: &Request, context: TraceContext) -> Rc<TraceContext> {
    let context = Rc::new(context);
    request.shared.extensions.borrow_mut().insert(Rc::clone(&context));
    context
}

fn identifiers(request: &Request) -> &Identifiers {
    &request.conn.thread.local::<Rc<Exporter>>().identifiers
}

/// Returns the context of a request that begins a trace.
fn begun(request: &Request, trace_id: [u8; 16], is_sampled: Option<bool>) -> TraceContext {
    TraceContext {
        trace_id,
        span_id: identifiers(request).span(),
        parent: None,
        state: Vec::new(),
        is_sampled: Cell::new(is_sampled),
    }
}

/// Returns the context of a request, which continues the trace of its client if its fields are read and valid.
fn received(request: &Request, extracts: bool) -> TraceContext {
    let named = |name| request.head.named(request.bytes(), name);
    let Some(parent) = extracts.then(|| TraceParent::of_fields(named(PARENT))).flatten() else {
        return begun(request, identifiers(request).trace(), None);
    };
    TraceContext {
        parent: Some(parent),
        state: join_states(named(STATE)).unwrap_or_default(),
        ..begun(request, parent.trace_id, None)
    }
}

/// Decides whether a request is traced, and replaces its fields for upstreams. The first location with this handler decides: as in nginx a
/// rewrite, an internal redirect and a subrequest change nothing. A request that this server makes for another one has its decision.
pub(super) fn begin(conf: &SpanConf, request: &mut Request) -> Step {
    if request.depth > 0 || request.is_detached {
        return Step::Next;
    }
    if request.shared.untraced_id.get().is_some() {
        return Step::Next;
    }
    let known = find(request);
    if known.as_ref().is_some_and(|context| context.is_sampled.get().is_some()) {
        return Step::Next;
    }
    let Some(context) = decide(conf, request, known) else { return Step::Next };
    request.is_timed = context.is_sampled.get() == Some(true);
    if conf.propagation.injects {
        inject(&context, request);
    }
    Step::Next
}

/// Decides whether the settings trace a request, and stores the decision. Returns the context, which may be `known`; `None` if the
/// request is not traced and the identifier of its trace is sufficient.
pub(super) fn decide(
    conf: &SpanConf,
    request: &Request,
    known: Option<Rc<TraceContext>>,
) -> Option<Rc<TraceContext>> {
    if let (Trace::Ratio(ratio), None, false) = (&conf.trace, &known, conf.propagation.is_on()) {
        let trace_id = identifiers(request).trace();
        if ratio.admits(&trace_id) {
            return Some(store(request, begun(request, trace_id, Some(true))));
        }
        request.shared.untraced_id.set(Some(trace_id));
        return None;
    }
    let context = known.unwrap_or_else(|| context_of(request));
    let is_sampled = match &conf.trace {
        Trace::Off => false,
        Trace::On => true,
        Trace::Ratio(ratio) => {
            context.parent.map_or_else(|| ratio.admits(&context.trace_id), |parent| parent.is_sampled)
        }
        Trace::Text(text) => is_on(&text.rendered(request)),
    };
    context.is_sampled.set(Some(is_sampled));
    Some(context)
}

/// Replaces `traceparent` and `tracestate` of the request, for all requests to upstreams that have its fields.
fn inject(context: &TraceContext, request: &mut Request) {
    let parent = TraceParent {
        trace_id: context.trace_id,
        span_id: context.span_id,
        is_sampled: context.is_sampled.get() == Some(true),
    };
    let remaining = connection_options(request);
    request.change_fields(|head, bytes| {
        match remaining.as_deref() {
            None => {}
            Some(b"") => head.remove_fields(bytes, |name| name.eq_ignore_ascii_case(CONNECTION)),
            Some(remaining) => head.set_field(bytes, CONNECTION, remaining),
        }
        head.set_field(bytes, PARENT, &parent.encode());
        match context.state.as_slice() {
            b"" => head.remove_fields(bytes, |name| name.eq_ignore_ascii_case(STATE)),
            state => head.set_field(bytes, STATE, state),
        }
    });
}

/// Returns the options of `Connection` without the two fields, if a client names them there: the fields are those of this server now,
/// and a client must not remove them (RFC 9110 section 7.6.1).
fn connection_options(request: &Request) -> Option<Vec<u8>> {
    let values = request.head.all(request.bytes(), HeaderId::Connection);
    let is_ours = |option: &[u8]| option.eq_ignore_ascii_case(PARENT) || option.eq_ignore_ascii_case(STATE);
    let options = values.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
    options
        .clone()
        .any(is_ours)
        .then(|| options.filter(|option| !is_ours(option)).collect::<Vec<_>>().join(&b", "[..]))
}

pub(super) const VARIABLES: &[Variable] = &[
    variable("otel_trace_id", "Identifier of the trace: 32 hexadecimal digits.", |request, out| {
        push_hex(&context_of(request).trace_id, out);
        true
    }),
    variable("otel_span_id", "Identifier of the request's span: 16 hexadecimal digits.", |request, out| {
        push_hex(&context_of(request).span_id, out);
        true
    }),
    variable(
        "otel_parent_id",
        "Identifier of the span that has sent the request; empty without one.",
        |request, out| {
            let parent = context_of(request).parent;
            parent.map(|parent| push_hex(&parent.span_id, out)).is_some()
        },
    ),
    variable("otel_parent_sampled", "`1` if the parent span is sampled, else `0`.", |request, out| {
        let is_sampled = context_of(request).parent.is_some_and(|parent| parent.is_sampled);
        out.push(if is_sampled { b'1' } else { b'0' });
        true
    }),
];

const fn variable(
    name: &'static str,
    help: &'static str,
    get: fn(&Request, &mut Vec<u8>) -> bool,
) -> Variable {
    Variable { name, get, set: None, help }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn identifiers_differ_and_are_not_zero() {
        let (first, second) = (Identifiers::default(), Identifiers::default());
        let spans: HashSet<[u8; 8]> = (0..1000).flat_map(|_| [first.span(), second.span()]).collect();
        assert!(spans.len() == 2000 && !spans.contains(&[0; 8]));
        let traces: HashSet<[u8; 16]> = (0..1000).map(|_| first.trace()).collect();
        assert!(traces.len() == 1000 && !traces.contains(&[0; 16]));
    }
}
