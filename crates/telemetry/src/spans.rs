//! Counts spans of traces by what became of them. All threads share the counters, which are incremented once for a batch or a lost span.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metric::{Label, Metric, Page};

/// The values of `result` have the order of [`SpanResult`].
const SPANS: Metric =
    Metric::counter("trace_spans_total", "spans", "Spans of traces, by what became of them.").labelled(&[
        Label {
            name: "result",
            values: &[
                ("exported", "a collector has accepted the span"),
                ("dropped", "all batches were full"),
                ("failed", "the export failed"),
                ("rejected", "a collector has rejected the span of an accepted batch"),
            ],
        },
    ]);

/// The metrics of this file.
pub const METRICS: &[&Metric] = &[&SPANS];

/// What became of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanResult {
    /// A collector has accepted it.
    Exported,
    /// All batches were full.
    Dropped,
    /// The export failed.
    Failed,
    /// A collector has rejected it.
    Rejected,
}

/// The counters since the start of the process, by [`SpanResult`].
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Counts spans.
pub fn count(result: SpanResult, spans: u64) {
    COUNTS[result as usize].fetch_add(spans, Ordering::Relaxed);
}

/// Returns the names of the results with their counts.
pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    let names = SPANS.values().iter().map(|(name, _)| *name);
    names.zip(COUNTS.iter().map(|count| count.load(Ordering::Relaxed)))
}

/// Appends the counters.
pub fn write(page: &mut Page) {
    let counts = counts().map(|(_, count)| count).collect::<Vec<_>>();
    page.head(&SPANS);
    page.numbers(&SPANS, &[], &counts);
}
