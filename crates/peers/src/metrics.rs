//! Metrics of servers, and their section of a metrics page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use telemetry::metric::{Label, Metric, Page};
use telemetry::traffic::CODE;

use super::counts::Counts;
use super::health::CheckCounts;
use super::{Group, PeerState};

const UPSTREAM: Label = Label { name: "upstream", values: &[] };
const PEER: Label = Label { name: "peer", values: &[] };
const BOTH: &[Label] = &[UPSTREAM, PEER];

const REQUESTS: Metric = Metric::counter(
    "upstream_requests_total",
    "tries",
    "Finished tries, by status. Statuses that did not occur are left out.",
)
.labelled(&[UPSTREAM, PEER, CODE]);

const CONNECT: Metric = Metric::histogram(
    "upstream_connect_seconds",
    "Time from the start of a try to its new connection; keep-alive connections are left out.",
)
.labelled(BOTH);

const FIRST_BYTE: Metric = Metric::histogram(
    "upstream_first_byte_seconds",
    "Time from the start of a try to the header section of its response.",
)
.labelled(BOTH);

const SENT: Metric =
    Metric::counter("upstream_sent_bytes_total", "bytes", "Bytes of requests to the server.").labelled(BOTH);

const RECEIVED: Metric =
    Metric::counter("upstream_received_bytes_total", "bytes", "Bytes of responses from the server.")
        .labelled(BOTH);

const FAILS: Metric =
    Metric::counter("upstream_fails_total", "tries", "Failed tries, as max_fails counts them.")
        .labelled(BOTH);

const UNAVAILABLE: Metric = Metric::counter(
    "upstream_unavailable_total",
    "times",
    "Number of times that the server became unavailable for fail_timeout after max_fails failures.",
)
.labelled(BOTH);

const UP: Metric = Metric::gauge("upstream_up", "1", "1 if the server may get requests now.").labelled(BOTH);

const ACTIVE: Metric =
    Metric::gauge("upstream_active", "requests", "Requests in progress at the server.").labelled(BOTH);

const CHECKS: Metric =
    Metric::counter("upstream_checks_total", "checks", "Active health checks of the server, by result.")
        .labelled(&[UPSTREAM, PEER, Label { name: "result", values: &[("passed", ""), ("failed", "")] }]);

const UNHEALTHY: Metric = Metric::counter(
    "upstream_unhealthy_total",
    "times",
    "Number of times that the server became unhealthy after failed checks.",
)
.labelled(BOTH);

const QUEUE: Metric =
    Metric::gauge("upstream_queue", "requests", "Requests that wait for a server of the group (queue).")
        .labelled(&[UPSTREAM]);

const OVERFLOWS: Metric = Metric::counter(
    "upstream_queue_overflows_total",
    "requests",
    "Requests for which the queue of the group was full.",
)
.labelled(&[UPSTREAM]);

/// All metrics, in the order of the page.
pub const METRICS: &[&Metric] = &[
    &REQUESTS,
    &CONNECT,
    &FIRST_BYTE,
    &SENT,
    &RECEIVED,
    &FAILS,
    &UNAVAILABLE,
    &UP,
    &ACTIVE,
    &CHECKS,
    &UNHEALTHY,
    &QUEUE,
    &OVERFLOWS,
];

/// Statistics of all servers with the same name.
#[derive(Default)]
struct Sum {
    counts: Counts,
    is_up: bool,
    active: u64,
    /// The sum of the checks of each group.
    checks: Option<CheckCounts>,
}

/// Appends the metrics of all servers of these groups. A server on several lines is counted as one.
pub fn write<'a>(groups: impl Iterator<Item = &'a Arc<Group>>, now: Instant, page: &mut Page) {
    let mut sums: BTreeMap<(String, Arc<str>), Sum> = BTreeMap::new();
    let mut queues = Vec::new();
    for group in groups {
        queues.extend(group.queue_state().map(|queue| (group.label(), queue)));
        for peer in group.peers(now) {
            let PeerState { name, condition, active, counts, checks, .. } = peer;
            let sum = sums.entry((group.label(), name)).or_default();
            sum.counts.merge(&counts);
            sum.is_up |= condition.is_up();
            sum.active += active;
            if let Some(checks) = checks {
                let all = sum.checks.get_or_insert_default();
                all.checks += checks.checks;
                all.fails += checks.fails;
                all.unhealthy += checks.unhealthy;
            }
        }
    }
    let mut each = |metric: &Metric, write: fn(&mut Page, &Metric, &[&str], &Sum)| {
        page.head(metric);
        for ((upstream, peer), sum) in &sums {
            write(page, metric, &[upstream, peer], sum);
        }
    };
    each(&REQUESTS, |page, metric, values, sum| page.occurred(metric, values, &sum.counts.codes));
    each(&CONNECT, |page, metric, values, sum| page.times(metric, values, &sum.counts.connect));
    each(&FIRST_BYTE, |page, metric, values, sum| page.times(metric, values, &sum.counts.header));
    each(&SENT, |page, metric, values, sum| page.number(metric, values, sum.counts.sent));
    each(&RECEIVED, |page, metric, values, sum| page.number(metric, values, sum.counts.received));
    each(&FAILS, |page, metric, values, sum| page.number(metric, values, sum.counts.fails));
    each(&UNAVAILABLE, |page, metric, values, sum| page.number(metric, values, sum.counts.unavailable));
    each(&UP, |page, metric, values, sum| page.number(metric, values, sum.is_up.into()));
    each(&ACTIVE, |page, metric, values, sum| page.number(metric, values, sum.active));
    each(&CHECKS, |page, metric, values, sum| {
        if let Some(CheckCounts { checks, fails, .. }) = sum.checks {
            page.numbers(metric, values, &[checks - fails, fails]);
        }
    });
    each(&UNHEALTHY, |page, metric, values, sum| {
        if let Some(checks) = sum.checks {
            page.number(metric, values, checks.unhealthy);
        }
    });
    page.head(&QUEUE);
    for (label, queue) in &queues {
        page.number(&QUEUE, &[label], queue.size as u64);
    }
    page.head(&OVERFLOWS);
    for (label, queue) in &queues {
        page.number(&OVERFLOWS, &[label], queue.overflows);
    }
}
