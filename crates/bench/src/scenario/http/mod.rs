//! `bench http`: responses without disk access (`return 200`) over keep-alive and over new connections, few and many of
//! them, by Ringroad on io_uring and on epoll, by nginx and by HAProxy. Repeats write-up 004.
//!
//! How it is measured:
//!
//! * All servers with one number of workers run concurrently, on the same processors, and are loaded in turn: a drift
//!   of the machine affects all of them. Servers that are not loaded sleep in the kernel and use no CPU time.
//! * A separate load warms a server up. Then the server's CPU time is read, the load runs, and the CPU time is read
//!   again: it includes the accepts of the connections, a few microseconds each.
//! * System calls are counted in a further load, because counting slows each of them down.
//! * If there are as many workers as processors, the generator shares processors with the servers. Such rows are
//!   marked: they allow comparisons between servers, but do not show the rate of a server alone.
//!
//! Connections are accepted in three ways. epoll reports a listener as ready, and a system call accepts each
//! connection. A single-shot accept on io_uring accepts one connection and must be submitted again. A multishot accept
//! accepts all, but if several rings waited on one listener, the first ring would get every connection. So Ringroad
//! uses multishot accepts only if a thread has a dedicated listener: with one worker or with `reuseport`.
//!
//! With `deferred` a listener reports a connection when its first request has arrived, which saves an event-loop turn
//! per connection. It is compared with the same server without it, for short connections to one worker.
//!
//! Further tables measure resident files ([`warm`]), where other peers beside nginx are relevant, and proxied requests
//! ([`proxied`]) and single features ([`features`]).
//!
//! This file has the measurement and the tables. The write-up's tables are pictures, so their form here follows its
//! text. A rate that the generator limited is not significant for the server; then the CPU time per request is used. If
//! the server is the limit, its rate is inversely proportional to this CPU time.

mod features;
pub(super) mod proxied;
mod warm;

use std::time::Duration;

use clap::Args;

use super::comparison::{self, Compared, DEFERRED, EPOLL, HAPROXY, NGINX, RING, Text, Variant, labels_of};
use super::described::{Scenario, or_default};
use super::measurements::{
    Figure, Labels, Measurements, Rows, ShownColumn, at, axis, finding_of_cases, plural, spread, under,
};
use super::served::{self, CALLS, CPU, GENERATOR_CPU, LIMITED, P50, P99, P999, RATE, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::Reuse;
use crate::method::pin::{self, Split};
use crate::method::stats::Summary;
use crate::peers::server::Instance;
use crate::peers::tool::Peer;
use crate::report::model::{AxisScale, Finding, Plot, Results, Section, Verdict};

#[derive(Args, Clone, Debug)]
pub(crate) struct HttpOptions {
    /// Numbers of workers [default: 1, 2, 4 and so on, and the number of processors]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// Numbers of connections [default: 1, 10, 100, 500, 1000]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=50_000))]
    connections: Vec<u32>,
    /// First port of the servers [default: free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// The write-up's number of connections.
const CONNECTIONS_OF_WRITE_UP: u32 = 1000;

/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_secs(2);

/// Maximum deviation from 1 of a ratio of CPU times that is considered noise.
const EQUAL_WITHIN: f64 = 0.03;

/// Sentence of a claim without figures.
const NOT_BOTH: &str = "io_uring and epoll were not both measured.";

/// Ringroad on io_uring with a listener per worker: one multishot accept accepts all connections.
const RING_OWN_LISTENER: Variant =
    Variant::ours("io_uring, own listeners", "io_uring").listening(" reuseport");
/// Ringroad on io_uring, with accepts deferred until the request has arrived.
const RING_DEFERRED: Variant = Variant::ours("io_uring, deferred", "io_uring").listening(DEFERRED);
const NGINX_DEFERRED: Variant = Variant::of("nginx, deferred", Peer::Nginx).listening(DEFERRED);
const HAPROXY_DEFERRED: Variant = Variant::of("haproxy, deferred", Peer::Haproxy).listening(DEFERRED);

/// All servers, in the order of tables.
const VARIANTS: [Variant; 8] =
    [EPOLL, RING, RING_OWN_LISTENER, RING_DEFERRED, NGINX, NGINX_DEFERRED, HAPROXY, HAPROXY_DEFERRED];

/// Whether a server is measured with this number of workers at all.
fn is_of(variant: &Variant, workers: usize) -> bool {
    match variant.listen {
        // A single worker has a dedicated listener in any case.
        " reuseport" => workers > 1,
        DEFERRED => workers == 1,
        _ => true,
    }
}

/// Whether the option in the server's name has an effect at this point.
fn is_measured(variant: &Variant, point: Point) -> bool {
    match variant.listen {
        // Listeners per worker make no difference to keep-alive connections.
        " reuseport" => point.kind == SHORT,
        // A single client that connects and sends a request does not keep a listener busy.
        DEFERRED => point.kind == SHORT && point.connections > 1,
        _ => true,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Persistence {
    name: &'static str,
    reuse: Reuse,
}

const LONG: Persistence = Persistence { name: "long", reuse: Reuse::KeepAlive };
/// One request per connection, as with old browsers and health checks: connect, request, close.
const SHORT: Persistence = Persistence { name: "short", reuse: Reuse::PerRequest };

/// The parameters of a figure beside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    kind: Persistence,
    /// Number of Ringroad's threads or nginx's processes.
    workers: usize,
    connections: u32,
}

impl Point {
    fn labels(self) -> Labels {
        let Point { kind, workers, connections } = self;
        at([("connections kept", &kind.name), ("workers", &workers), ("connections", &connections)])
    }

    /// Returns the labels of one server at this point. For short connections they include the accept mode.
    fn labels_of(self, variant: &Variant) -> Labels {
        let accepts = match (self.kind, *variant) {
            (LONG, _) | (_, RING_DEFERRED | NGINX_DEFERRED | HAPROXY_DEFERRED) => None,
            (_, RING) if self.workers > 1 => Some("single-shot"),
            (_, RING | RING_OWN_LISTENER) => Some("multishot"),
            _ => Some(variant.name),
        };
        let accepts = accepts.map(|accepts| ("accepts", accepts.to_owned()));
        labels_of(variant, &self.labels()).into_iter().chain(accepts).collect()
    }
}

impl Scenario for HttpOptions {
    const NAME: &'static str = "http";
    const MINUTES: u32 = 11;
    const QUICK_SHARE: u32 = 70;
    const TITLE: &'static str = "HTTP without a disk: connections, workers, system calls";
    const QUESTION: &'static str = "How many requests that need no disk do io_uring, epoll and nginx serve, with how much CPU time and how many system calls?";

    /// Measures all points with all servers, which run concurrently and are loaded in turn.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let cpus = pin::available();
        let points = Points::choose(bench, self, cpus.len());
        let mut every = Vec::new();
        for &workers in &points.workers {
            let mut place = ServerCpus::of_workers(bench, section, workers);
            place.first_port = self.port;
            let variants: Vec<Variant> =
                VARIANTS.into_iter().filter(|variant| is_of(variant, workers)).collect();
            let configuration = |variant: &Variant, instance: &Instance| {
                let server = variant.returning("/");
                variant.configuration(instance, &Text { workers, server, ..Text::default() })
            };
            let suffix = format!(", {workers} workers");
            let mut servers = comparison::start(bench, section, &place, (&variants, &suffix), configuration)?;
            // All servers are measured at one point before the next one, so that compared figures are measured within
            // seconds.
            for point in points.at(workers) {
                let (kind, connections) = (point.kind.name, point.connections);
                let mut plan = served::load(bench, &place.split, connections, LENGTH);
                plan.reuse = point.kind.reuse;
                let words = format!("{kind} connections, {workers} workers, {connections} of them");
                let labels =
                    |variant: &Variant| is_measured(variant, point).then(|| point.labels_of(variant));
                served::compare(bench, section, &mut servers, (&words, "/"), &plan, labels)?;
                let workers = describe_workers(workers, &place.split);
                every.extend(variants.iter().filter(|variant| is_measured(variant, point)).map(|variant| {
                    let name = format!("{}, {connections} connections, {workers} {kind}", variant.name);
                    (name, labels_of(variant, &point.labels()))
                }));
            }
        }
        let report = HttpReport { measurements: Measurements::of(section), points: &points, cpus: &cpus };
        let results = report.results(&every);
        section.add_results(results);
        warm::add(bench, section)?;
        let place = ServerCpus::of_one_worker(bench, section);
        proxied::add(bench, section, &place, None)?;
        features::add(bench, section)?;
        Ok(Results::default())
    }
}

/// Describes the number of workers, and whether the generator shares their processors.
fn describe_workers(workers: usize, split: &Split) -> String {
    let note = if split.is_apart { "" } else { " (generator on the same processors)" };
    plural(workers as u32, "worker") + note
}

struct Points {
    workers: Vec<usize>,
    connections: Vec<u32>,
    /// Numbers of connections in measurements with new connections, at one worker.
    short: Vec<u32>,
    /// Whether every combination is measured, instead of varying one parameter at a time.
    product: bool,
}

impl Points {
    /// Selects the points: those that the user named, else those of the scale.
    fn choose(bench: &Bench, options: &HttpOptions, cpus: usize) -> Points {
        let most = CONNECTIONS_OF_WRITE_UP;
        let (connections, short): (&[u32], &[u32]) = match bench.scale {
            Scale::Instant => (&[1, 10], &[10]),
            Scale::Quick => (&[1, 100, most], &[most]),
            Scale::Normal => (&[1, 10, 100, 500, most], &[1, 100, most]),
            Scale::Full => (&[1, 2, 5, 10, 20, 50, 100, 200, 500, most], &[1, 10, 100, 500, most]),
        };
        let workers = match (bench.scale, pin::worker_counts(cpus)) {
            (Scale::Instant, _) => vec![1],
            // One, some between, and all: a machine with many processors needs no more time.
            (Scale::Quick | Scale::Normal, counts) if counts.len() > 4 => vec![1, 2, 4, cpus],
            (_, counts) => counts,
        };
        let named: Vec<usize> = options.workers.iter().map(|&workers| usize::from(workers)).collect();
        Points {
            workers: or_default(&named, &workers),
            connections: or_default(&options.connections, connections),
            short: or_default(&options.connections, short),
            product: bench.scale == Scale::Full,
        }
    }

    /// Returns the points with this number of workers: for the first number all connections, for the others only the
    /// most.
    fn at(&self, workers: usize) -> Vec<Point> {
        let all = self.product || self.workers.first() == Some(&workers);
        let of = |kind: Persistence, connections: &[u32]| {
            let chosen = if all { connections } else { &connections[connections.len().saturating_sub(1)..] };
            chosen.iter().map(|&connections| Point { kind, workers, connections }).collect::<Vec<_>>()
        };
        [of(LONG, &self.connections), of(SHORT, &self.short)].concat()
    }
}

struct HttpReport<'a> {
    measurements: Measurements<'a>,
    points: &'a Points,
    cpus: &'a [usize],
}

impl HttpReport<'_> {
    fn description(&self, workers: usize) -> String {
        describe_workers(workers, &Split::of(self.cpus, workers))
    }

    /// Returns the number of workers in the tables by connections and in the plots: the first number.
    fn first(&self) -> usize {
        self.points.workers.first().copied().unwrap_or(1)
    }

    /// Returns the point with the most connections and this number of workers.
    fn with_most_connections(&self, kind: Persistence, workers: usize) -> Point {
        let numbers = if kind == LONG { &self.points.connections } else { &self.points.short };
        Point { kind, workers, connections: numbers.last().copied().unwrap_or(CONNECTIONS_OF_WRITE_UP) }
    }

    fn by_workers(&self, kind: Persistence) -> Rows {
        let row = |&workers: &usize| {
            (self.description(workers), self.with_most_connections(kind, workers).labels())
        };
        self.points.workers.iter().map(row).collect()
    }

    /// Returns the rows of long connections with the first number of workers.
    fn by_connections(&self) -> Rows {
        let point = |&connections: &u32| Point { kind: LONG, workers: self.first(), connections };
        let row = |connections| (format!("{connections} connections"), point(connections).labels());
        self.points.connections.iter().map(row).collect()
    }

    /// Returns the write-up's tables first, then further ones.
    fn results(&self, every: &[(String, Labels)]) -> Results {
        let measurements = self.measurements;
        let (long, short) = (
            self.with_most_connections(LONG, 1).connections,
            self.with_most_connections(SHORT, 1).connections,
        );
        let one = self.description(self.first());
        let by_connections = self.by_connections();
        let accepts = |name: &str| at([("accepts", &name)]);
        let short_columns = [
            RATE.at("epoll", accepts("epoll")),
            RATE.at("io_uring, single-shot accept", accepts("single-shot")),
            RATE.at("io_uring, multishot accept", accepts("multishot")),
            RATE.over("multishot / epoll", accepts("epoll")).where_(accepts("multishot")),
            RATE.at("nginx", accepts("nginx")),
            RATE.at("haproxy", accepts("haproxy")),
        ];
        let all = [RATE, P50, P99, P999, CPU, CALLS, GENERATOR_CPU, LIMITED].map(Figure::shown);
        let by_workers = |kind: Persistence, what: &str, columns: &[ShownColumn]| {
            measurements.table(
                &format!("{what}: requests per second by workers"),
                &self.by_workers(kind),
                columns,
            )
        };
        let of_long = |what: &str, figure: Figure| {
            measurements.table(
                &format!("Long connections, {one}: {what}"),
                &by_connections,
                &compared(figure),
            )
        };
        let tables = vec![
            by_workers(LONG, &format!("Long connections, {long} of them"), &compared(RATE)),
            of_long("requests per second by connections", RATE),
            of_long("system calls per request", CALLS),
            by_workers(SHORT, &format!("Short connections, {short} concurrent"), &short_columns),
            measurements.table("Every combination", every, &all),
        ];
        let ranking = |kind: Persistence| {
            let point = self.with_most_connections(kind, self.first());
            let (kind, connections) = (kind.name, point.connections);
            let title = format!("CPU time per request: return 200, {connections} {kind} connections, {one}");
            Compared { measurements, variants: &VARIANTS }.ranking(&title, CPU, &point.labels())
        };
        let rankings = vec![ranking(LONG), ranking(SHORT)];
        let findings =
            self.long_connections().into_iter().chain([self.short_connections(), self.accepts()]).collect();
        Results { tables, plots: self.plots(), findings, rankings }
    }

    /// Plots all figures of keep-alive connections, with the first number of workers.
    fn plots(&self) -> Vec<Plot> {
        let kept = at([("connections kept", &"long"), ("workers", &self.first())]);
        let lines = under(&comparison::rows(&[EPOLL, RING, NGINX, HAPROXY]), &kept);
        let workers = self.description(self.first());
        let plot = |id: &str, title: &str, figure: Figure, name: &str, scale| {
            let x = ("connections", axis("connections", "", AxisScale::Logarithmic));
            let title = format!("{title}, long connections, {workers}");
            self.measurements.plot((id, &title), x, (figure, axis(name, figure.unit, scale)), &lines)
        };
        let middle = self.points.connections[self.points.connections.len() / 2];
        let title = format!("Latency by percentile, {middle} long connections, {workers}");
        let curves = under(&lines, &at([("connections", &middle)]));
        vec![
            plot("http-requests", "Requests per second", RATE, "requests", AxisScale::Linear),
            plot("http-p99", "Latency, 99th percentile", P99, "p99", AxisScale::Logarithmic),
            plot("http-cpu", "Server's processor time", CPU, "CPU", AxisScale::Linear),
            self.measurements.curves(("http-percentiles", &title), "ms", &curves),
        ]
    }

    /// Returns the findings about long connections. System calls depend on the number of responses per turn, not on the
    /// machine.
    fn long_connections(&self) -> [Finding; 2] {
        let point = self.with_most_connections(LONG, self.first());
        let (connections, workers) = (point.connections, self.description(point.workers));
        let labels = [&labels_of(&RING, &point.labels()), &labels_of(&EPOLL, &point.labels())];
        let claim = "With 500 and more long connections io_uring serves about 20 % more requests per second than epoll.";
        let gain = served::gain_finding(self.measurements, claim, labels, |speed, cost, bound| {
            format!(
                "With {connections} connections and {workers} io_uring serves {speed:.2} times as many requests per second as epoll{bound}; a request takes {cost:.2} of epoll's CPU time."
            )
        });
        let claim = "io_uring needs at most a tenth of epoll's system calls.";
        let subject = format!("With {connections} connections a request");
        [gain, served::calls_finding(self.measurements, claim, labels, &subject)]
    }

    /// Returns the finding about short connections. The claim says that io_uring brings no gain, so it holds unless
    /// io_uring is faster by more than the noise.
    fn short_connections(&self) -> Finding {
        let claim =
            "With short connections io_uring is no faster than epoll, in some cases 5 to 10 % slower.";
        let compared = |&workers: &usize| {
            let case = self.with_most_connections(SHORT, workers).labels();
            let of = |accepts: &str| [case.as_slice(), &at([("accepts", &accepts)])].concat();
            let ratio = self.measurements.ratio(RATE, &of("multishot"), &of("epoll"))?;
            let is_bound = ["multishot", "epoll"]
                .iter()
                .any(|one| served::is_generator_bound(self.measurements, &of(one)));
            let bound = if is_bound { ", limited by the generator" } else { "" };
            let words =
                format!("{} of epoll's rate with {}{bound}", spread(&ratio), self.description(workers));
            Some((words, ratio.median <= 1.02))
        };
        let said: Vec<(String, bool)> = self.points.workers.iter().filter_map(compared).collect();
        let before = "io_uring with multishot accepts reaches ";
        finding_of_cases(claim, before, &said, NOT_BOTH)
    }

    /// Returns the finding about accepts by io_uring. Wasted work would appear as CPU time: an accept without a
    /// connection allocates a socket and frees it again.
    fn accepts(&self) -> Finding {
        let claim = "Accepting by io_uring costs more than a listener in epoll, because an accept without a connection is wasted work.";
        let cases = self.points.workers.iter().flat_map(|&workers| {
            let case = self.with_most_connections(SHORT, workers).labels();
            let of = |accepts: &str| [case.as_slice(), &at([("accepts", &accepts)])].concat();
            ["single-shot", "multishot"].map(|accepts| {
                (format!("{accepts}, {}", self.description(workers)), of(accepts), of("epoll"))
            })
        });
        let words = (
            "CPU time of a complete short connection (accept, request, close), as a ratio to epoll: ",
            NOT_BOTH,
        );
        let is_met = |ratio: &Summary| ratio.median > 1.0 + EQUAL_WITHIN;
        let finding = self.measurements.finding_of_ratios(claim, words, CPU, cases, is_met);
        // Savings in other parts of the connection may hide the cost of the accept.
        let verdict = if finding.verdict == Verdict::Fails { Verdict::Open } else { finding.verdict };
        Finding { verdict, ..finding }
    }
}

/// Returns columns for the servers, and the ratio of io_uring to epoll.
fn compared(figure: Figure) -> [ShownColumn; 5] {
    [
        figure.at("epoll", EPOLL.labels()),
        figure.at("io_uring", RING.labels()),
        figure.over("io_uring / epoll", EPOLL.labels()).where_(RING.labels()),
        figure.at("nginx", NGINX.labels()),
        figure.at("haproxy", HAPROXY.labels()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_workers_are_measured_only_with_the_most_connections() {
        let points =
            Points { workers: vec![1, 2], connections: vec![1, 10], short: vec![10], product: false };
        let names = |workers| -> Vec<_> {
            points.at(workers).iter().map(|point| (point.kind.name, point.connections)).collect()
        };
        assert_eq!(names(1), [("long", 1), ("long", 10), ("short", 10)]);
        assert_eq!(names(2), [("long", 10), ("short", 10)]);
        assert_eq!(Points { product: true, ..points }.at(2).len(), 3);
    }

    #[test]
    fn accept_settings_are_described_for_short_connections() {
        let accepts = |variant: Variant, workers, kind| {
            let labels = Point { kind, workers, connections: 10 }.labels_of(&variant);
            labels.into_iter().find(|(name, _)| *name == "accepts").map(|(_, value)| value)
        };
        assert_eq!(accepts(RING, 1, SHORT).as_deref(), Some("multishot"));
        assert_eq!(accepts(RING, 2, SHORT).as_deref(), Some("single-shot"));
        assert_eq!(accepts(RING_OWN_LISTENER, 2, SHORT).as_deref(), Some("multishot"));
        assert_eq!((accepts(RING_DEFERRED, 1, SHORT), accepts(RING, 1, LONG)), (None, None));
    }
}
