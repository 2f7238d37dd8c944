//! Traces for OpenTelemetry: the trace context of requests to upstreams, and exported spans.

mod context;
mod decode;
mod export;
mod grpc;
mod official;
mod spans;

use std::sync::{Arc, Mutex};

use decode::Span;
use testkit::origin::Reply;
use testkit::wait::{self, Deadline};
use testkit::{Origin, Server};

/// A collector for OTLP/HTTP that accepts everything, and its spans.
struct Collector {
    origin: Origin,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    fn start() -> Collector {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let received = Arc::clone(&spans);
        let origin = Origin::start(move |request| {
            received.lock().expect("no panic").extend(decode::spans(&request.body));
            Reply::ok().header("Content-Type", "application/x-protobuf")
        });
        Collector { origin, spans }
    }

    /// Waits for a number of spans; returns those that arrived.
    #[track_caller]
    fn wait(&self, server: &Server, count: usize) -> Vec<Span> {
        let found = wait::until("spans", Deadline::default(), || {
            let spans = self.spans.lock().expect("no panic");
            (spans.len() >= count).then(|| spans.clone())
        });
        found.unwrap_or_else(|_| panic!("{count} spans: {:?} {}", self.spans.lock(), server.error_log()))
    }

    /// Removes the spans so far.
    fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *self.spans.lock().expect("no panic"))
    }
}

/// Returns a span by its name.
#[track_caller]
fn named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:?}"))
}

/// The block of an exporter that sends each span soon.
const EXPORTER: &str = "otel_exporter { endpoint http://@COLLECTOR@/v1/traces; interval 10ms; }";
