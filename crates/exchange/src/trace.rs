//! Debug messages about the steps of a request: the handlers of its phases, its response and its end.
//!
//! The plan of a location contains these only if the configuration has debug messages, so that they cost nothing otherwise. Other
//! messages are written where a decision is made, by `Request::trace`.

use std::fmt;

use crate::phases::{Later, Phase, Step};
use crate::rehearsal::Event;
use crate::request::Request;
use crate::response::Body;
use site::phases::Handler;
use telemetry::ForLog;

/// A handler whose steps are traced.
struct Traced {
    handler: Box<dyn Handler<Request>>,
    phase: Phase,
    /// The name of its module.
    name: &'static str,
}

/// Returns a handler that traces the steps of another one.
pub(crate) fn traced(
    handler: Box<dyn Handler<Request>>,
    phase: Phase,
    name: &'static str,
) -> Box<dyn Handler<Request>> {
    Box::new(Traced { handler, phase, name })
}

impl Traced {
    fn report(&self, request: &Request, step: &Step, before: &[u8]) {
        let (phase, name, step) = (PhaseName(self.phase), self.name, StepName(step));
        request.trace(format_args!("{phase} phase, module {name}: {step}"));
        if before != request.uri {
            request.trace(format_args!("the URI is now \"{}\"", request.uri.for_log()));
        }
    }
}

impl Traced {
    /// Notes a step of a rehearsal that is a decision.
    fn note(&self, request: &Request, step: &Step) {
        let (phase, module) = (self.phase, self.name);
        let status = match step {
            Step::Status(status) => Some(*status),
            Step::Done => Some(request.response.status),
            Step::Drop => Some(444),
            _ => None,
        };
        let allows = matches!(step, Step::Allow);
        if status.is_some() || allows || matches!(step, Step::Internal | Step::Named(_)) {
            request.note(|| Event::Decided { phase, module, status, allows });
        }
    }

    /// Returns the step of the module that replaces its handler in a rehearsal.
    fn rehearse(&self, request: &mut Request) -> Option<Step> {
        // Several modules have the name of directives that nginx does not have.
        let modules = request.thread_config.modules;
        let same = modules.modules().iter().filter(|module| module.declares.name == self.name);
        same.copied().find_map(|module| (module.rehearse)(request))
    }
}

impl Handler<Request> for Traced {
    fn now(&self, request: &mut Request) -> Option<Step> {
        if request.is_rehearsed() {
            let step = self.rehearse(request).or_else(|| self.handler.now(request));
            step.iter().for_each(|step| self.note(request, step));
            return step;
        }
        if !request.is_traced() {
            return self.handler.now(request);
        }
        let before = request.uri.clone();
        let step = self.handler.now(request);
        match &step {
            Some(step) => self.report(request, step, &before),
            None => {
                let (phase, name) = (PhaseName(self.phase), self.name);
                request.trace(format_args!("{phase} phase, module {name}: waits"));
            }
        }
        step
    }

    fn later<'a>(&'a self, request: &'a mut Request) -> Later<'a> {
        if request.is_rehearsed() {
            return Box::pin(async move {
                let step = self.handler.later(request).await;
                self.note(request, &step);
                step
            });
        }
        if !request.is_traced() {
            return self.handler.later(request);
        }
        Box::pin(async move {
            let before = request.uri.clone();
            let step = self.handler.later(request).await;
            self.report(request, &step, &before);
            step
        })
    }
}

/// Traces the header section of a response, after all filters.
pub(crate) fn response(request: &mut Request) {
    if !request.is_traced() {
        return;
    }
    let response = &request.response;
    let status = response.status;
    let body = match &response.body {
        Body::None => "no body",
        Body::Bytes(_) | Body::Slice(..) => "a body in memory",
        Body::File(_) => "a file",
        Body::Ranged(_) | Body::Source(_) => "a body that arrives in pieces",
        Body::Tunnel(_) => "a switch to another protocol",
    };
    match response.content_length {
        Some(length) => request.trace(format_args!("response {status}, {body} of {length} bytes")),
        None => request.trace(format_args!("response {status}, {body}")),
    }
}

/// Traces the end of a request, before its line in the access log.
pub(crate) fn end(request: &Request) {
    if !request.is_traced() {
        return;
    }
    let (status, sent, received) = (request.response.status, request.sent, request.received);
    let how = if request.completed { "completely" } else { "not completely" };
    let then = if request.keepalive { "keep-alive" } else { "the connection is closed" };
    request.trace(format_args!(
        "end with status {status}, {received} bytes received, {sent} bytes sent, {how}; {then}"
    ));
}

/// The name of a phase.
struct PhaseName(Phase);

impl fmt::Display for PhaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Phase::PostRead => "post-read",
            Phase::ServerRewrite => "server rewrite",
            Phase::Rewrite => "rewrite",
            Phase::Preaccess => "preaccess",
            Phase::Access => "access",
            Phase::Precontent => "precontent",
            Phase::Content => "content",
        })
    }
}

/// The decision of a handler, in words.
struct StepName<'a>(&'a Step);

impl fmt::Display for StepName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Step::Next => f.write_str("no decision"),
            Step::Allow => f.write_str("allowed"),
            Step::Done => f.write_str("the response is ready"),
            Step::Status(status) => write!(f, "responds with status {status}"),
            Step::Drop => f.write_str("closes the connection without a response"),
            Step::ClientClosed => f.write_str("the client has closed the connection"),
            Step::ReadBody | Step::BufferBody => f.write_str("needs the request body"),
            Step::StreamBody | Step::StoreBody => f.write_str("needs the request body as it arrives"),
            Step::Internal => f.write_str("internal redirect"),
            Step::Named(_) => f.write_str("named location"),
        }
    }
}
