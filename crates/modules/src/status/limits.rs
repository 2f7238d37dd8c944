//! What became of requests by the zones of `limit_req` and `limit_conn`.

use std::any::Any;

use exchange::config::Http;
use exchange::shared_zone::Zone;
use telemetry::metric::{Label, Metric, Page, Value};

use crate::{limit_conn, limit_req};

/// In the order of the counts.
const RESULTS: &[Value] = &[
    ("passed", ""),
    ("delayed", "by `limit_req`"),
    ("rejected", "above the limit, or the zone has no room for the key"),
    ("delayed_dry_run", "would have been delayed"),
    ("rejected_dry_run", "would have been refused"),
];

/// A request counts in each zone that checks it, up to the first that refuses it.
const REQUESTS: Metric = Metric::counter(
    "limit_requests_total",
    "requests",
    "Requests checked against a zone of limit_req or limit_conn, by result.",
)
.labelled(&[Label { name: "zone", values: &[] }, Label { name: "result", values: RESULTS }]);

/// All of them.
pub(super) const METRICS: &[&Metric] = &[&REQUESTS];

/// The kind of a zone, which is its list in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `limit_req_zone`
    Requests,
    /// `limit_conn_zone`
    Connections,
}

/// Each zone of limits with the counts of its results.
pub(super) fn zones(http: &Http) -> impl Iterator<Item = (Kind, &str, [u64; 5])> {
    http.zones.0.iter().filter_map(|entry| {
        let zone: &dyn Any = &*entry.zone;
        if let Some(zone) = zone.downcast_ref::<Zone<limit_req::Declared>>() {
            return Some((Kind::Requests, zone.name(), zone.state().results().all()));
        }
        let zone = zone.downcast_ref::<Zone<limit_conn::Declared>>()?;
        Some((Kind::Connections, zone.name(), zone.state().results.all()))
    })
}

/// The words for the results, in the order of the counts.
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
