//! Numbers of requests by result, for the zones of `limit_req` and `limit_conn`.

use exchange::config::Http;
use telemetry::metric::{Label, Metric, Page, Value};

pub(super) use guards::limit_zones::{LimitKind, zones};

/// The results, in the order of the counts.
const RESULTS: &[Value] = &[
    ("passed", ""),
    ("delayed", "by `limit_req`"),
    ("rejected", "above the limit, or the zone has no room for the key"),
    ("delayed_dry_run", "would have been delayed"),
    ("rejected_dry_run", "would have been refused"),
];

/// A request counts in each zone that checks it, up to the first zone that rejects it.
const REQUESTS: Metric = Metric::counter(
    "limit_requests_total",
    "requests",
    "Requests checked against a zone of limit_req or limit_conn, by result.",
)
.labelled(&[Label { name: "zone", values: &[] }, Label { name: "result", values: RESULTS }]);

/// All metrics of this file.
pub(super) const METRICS: &[&Metric] = &[&REQUESTS];

/// Returns the names of the results, in the order of the counts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RESULTS.iter().map(|(name, _)| *name)
}

/// Appends the numbers of all zones.
pub(super) fn write(http: &Http, page: &mut Page) {
    page.head(&REQUESTS);
    for (_, name, counts) in zones(http) {
        page.numbers(&REQUESTS, &[name], &counts);
    }
}
