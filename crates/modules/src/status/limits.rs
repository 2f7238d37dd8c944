//! Numbers of requests by result, for the zones of `limit_req` and `limit_conn`.

use site::config::Http;
use telemetry::metric::{Label, Metric, Page, Value};

pub(super) use guards::limit_zones::{LimitKind, LimitZone, zones};

/// The results, in the order of the counts.
const RESULTS: &[Value] = &[
    ("passed", ""),
    ("delayed", "by `limit_req`"),
    ("rejected", "above the limit, or the zone has no room for the key"),
    ("delayed_dry_run", "would have been delayed"),
    ("rejected_dry_run", "would have been rejected"),
];

/// A zone of `limit_conn` also counts the requests that a later zone rejects; a zone of `limit_req` does not.
const REQUESTS: Metric = Metric::counter(
    "limit_requests_total",
    "requests",
    "Requests checked against a zone of limit_req or limit_conn, by result.",
)
.labelled(&[Label { name: "zone", values: &[] }, Label { name: "result", values: RESULTS }]);

/// When a zone is full, `limit_req` removes the least recently used keys, and `limit_conn` rejects new keys.
const BYTES: Metric = Metric::gauge(
    "limit_zone_bytes",
    "bytes",
    "Bytes of a zone that keys use, as nginx's allocator would count them.",
)
.labelled(&[Label { name: "zone", values: &[] }]);

const BYTES_MAX: Metric = Metric::gauge("limit_zone_bytes_max", "bytes", "Size of a zone.")
    .labelled(&[Label { name: "zone", values: &[] }]);

/// The metrics of this file.
pub(super) const METRICS: &[&Metric] = &[&REQUESTS, &BYTES, &BYTES_MAX];

/// Returns the names of the results, in the order of the counts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RESULTS.iter().map(|(name, _)| *name)
}

/// Appends the numbers of all zones.
pub(super) fn write(http: &Http, page: &mut Page) {
    page.head(&REQUESTS);
    for zone in zones(http) {
        page.numbers(&REQUESTS, &[zone.name], &zone.results);
    }
    page.head(&BYTES);
    zones(http).for_each(|zone| page.number(&BYTES, &[zone.name], zone.used));
    page.head(&BYTES_MAX);
    zones(http).for_each(|zone| page.number(&BYTES_MAX, &[zone.name], zone.size));
}
