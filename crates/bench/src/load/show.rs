//! The outcome of a load as text and as JSON.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::outcome::{Bottleneck, Outcome, percentile_us};
use super::plan::{LoopKind, Plan};

/// Bytes per unit in which data volumes are displayed.
const MIB: f64 = 1048576.0;

/// Formats a time in microseconds in a suitable unit with about three digits.
fn micros(micros: f64) -> String {
    match micros {
        short if short < 1e3 => format!("{short:.0} us"),
        short if short < 1e6 => format!("{:.2} ms", short / 1e3),
        long => format!("{:.2} s", long / 1e6),
    }
}

const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99];

/// Formats the outcome as text of a few lines.
pub(super) fn to_text(plan: &Plan, outcome: &Outcome) -> String {
    let tally = &outcome.tally;
    let more = match plan.targets.len() {
        1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    let statuses: Vec<String> =
        tally.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    let percentiles: Vec<String> =
        PERCENTILES.iter().map(|&one| format!("p{one} {}", micros(outcome.latency_us(one)))).collect();
    let (mean, max) = (micros(tally.latency.mean() / 1e3), micros(tally.latency.max() as f64 / 1e3));
    let (bodies, seconds) = (tally.body_bytes as f64 / MIB, outcome.seconds);
    let lines = [
        ("target", format!("{}{more}", plan.targets[0].text)),
        ("load", format!("{} connections, {}, {seconds:.2} s", plan.connections, outcome.engine)),
        ("responses", format!("{} ({:.0}/s)", tally.responses, outcome.responses_per_second())),
        ("statuses", statuses.join(", ")),
        ("errors", tally.errors.to_string()),
        ("bodies", format!("{bodies:.1} MiB ({:.1} MiB/s)", bodies / seconds)),
        ("latency", format!("{}, max {max}, mean {mean}", percentiles.join(", "))),
        (
            "generator",
            format!(
                "{:.2} us of CPU time per response, busiest thread {:.0} %",
                outcome.cpu_us_per_response(),
                outcome.busiest_share() * 100.0
            ),
        ),
        ("bottleneck", bottleneck(outcome.bottleneck()).to_owned()),
    ];
    lines.iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect()
}

/// Describes the limiting factor, and what to do about it.
fn bottleneck(found: Bottleneck) -> &'static str {
    match found {
        Bottleneck::Rate => "none: the load reached the requested rate",
        Bottleneck::Server => "the server",
        Bottleneck::Generator => "the generator: give it more processors; the server may be faster",
    }
}

/// Returns a latency distribution as JSON, in microseconds.
fn times(histogram: &Histogram<u64>) -> Value {
    let percentiles: Vec<Value> = PERCENTILES
        .iter()
        .map(|&one| json!({ "percentile": one, "us": percentile_us(histogram, one) }))
        .collect();
    json!({ "mean": histogram.mean() / 1e3, "max": histogram.max() as f64 / 1e3, "percentiles": percentiles })
}

/// Returns the outcome as JSON; times of requests in microseconds.
pub(super) fn to_json(plan: &Plan, outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    // Rates are included beside their counts, so that a reader need not know how they are computed.
    json!({
        "targets": plan.targets.iter().map(|target| &target.text).collect::<Vec<_>>(),
        "engine": outcome.engine,
        "connections": plan.connections,
        "rate": match plan.loop_kind { LoopKind::Closed => Value::Null, LoopKind::Open { rate } => json!(rate) },
        "seconds": outcome.seconds,
        "responses": tally.responses,
        "responses_per_second": outcome.responses_per_second(),
        "statuses": tally.statuses,
        "errors": tally.errors,
        "body_bytes": tally.body_bytes,
        "connections_made": tally.connections,
        "latency_us": times(&tally.latency),
        // In a closed loop it equals the latency, so it is omitted.
        "service_us": match plan.loop_kind { LoopKind::Closed => Value::Null, LoopKind::Open { .. } => times(&tally.service) },
        "generator": {
            "threads": outcome.threads,
            "cpu_us_per_response": outcome.cpu_us_per_response(),
            "busiest_share": outcome.busiest_share(),
        },
        "bottleneck": outcome.bottleneck(),
    })
}
