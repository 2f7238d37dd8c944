//! `otel`: traces for OpenTelemetry, with the directives of nginx's module of this name.
//!
//! | file | content |
//! |---|---|
//! | [`conf`] | the block `otel_exporter` and the settings of locations |
//! | [`context`] | the trace context of a request: identifiers, the fields `traceparent` and `tracestate`, the variables |
//! | [`spans`] | the span of a request when it ends |
//! | [`steps`] | spans of its steps: tries at upstreams, the lookup and the fetch of a cache, subrequests |
//! | [`exporter`] | the spans of a thread that wait, and the task that exports them |
//! | [`collector`] | one export: a request to the collector, and the meaning of its response |
//!
//! `http::trace_context` parses the fields, `telemetry::otlp` encodes the messages. A configuration without these directives has no
//! handler of this module in its plans.

mod collector;
mod conf;
mod context;
mod exporter;
mod spans;
mod steps;

use std::rc::Rc;

use self::conf::{OtelConf, SpanConf};
use self::exporter::Exporter;
use crate::{Declaration, Module};
use exchange::module::{SubrequestHooks, ThreadHooks};
use exchange::phases::Phase;
use site::config::{HttpType, SettingsType};
use site::declaration::BlockHooks;

/// The module. It precedes the module of `rewrite` in the phase of this name, as in nginx: a location that returns a response has a
/// trace context before.
pub(crate) static MODULE: Module = Module {
    variables: context::VARIABLES,
    add_to_plan: |http, scope, plan| {
        let conf = scope.of::<SpanConf>();
        if conf.has_context() {
            plan.now(Phase::Rewrite, scope.shared::<SpanConf>(), context::begin);
        }
        // A request may have got its trace context in another location.
        if http.of::<OtelConf>().exporter.is_some() {
            plan.log(scope.shared::<SpanConf>(), spans::end);
        }
    },
    subrequest: SubrequestHooks {
        begin: Some(steps::begin_subrequest),
        detach: Some(steps::detach),
        end: Some(steps::end_subrequest),
    },
    thread: ThreadHooks {
        make: |locals| locals.insert(Rc::<Exporter>::default()),
        configured: |thread, _| exporter::configure(thread),
        flush: |thread| exporter::flush(thread),
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[conf::DIRECTIVES],
        settings: &[SettingsType::of::<SpanConf>()],
        http: &[HttpType::of::<OtelConf>()],
        blocks: BlockHooks { requires: conf::requires, ..BlockHooks::NONE },
        addresses: conf::find_group,
        check: |http, _| conf::check(http),
        ..Declaration::named("otel")
    })
};

#[cfg(test)]
mod tests;
