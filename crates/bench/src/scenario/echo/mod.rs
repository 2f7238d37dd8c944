//! `bench echo`: the minimal work of a network server. Messages are echoed on epoll, and on io_uring with single-shot
//! or multishot receives; and connections are accepted and closed, to measure the cost of an accept. Repeats the other
//! half of write-up 004, which measured such a server before it turned to nginx.
//!
//! How it is measured:
//!
//! * The server is part of this program ([`server`]) and uses the same engines as the web server, but not the web
//!   server itself: two rows differ only in the engine and its mode. All servers run concurrently and are loaded in
//!   turn.
//! * The client is the load generator, on the remaining processors. It sends the next message on a connection when the
//!   previous one has returned, and checks the length and checksum of each.
//! * Further rows vary the number of the server's threads, each with a listener, an engine and its share of the connections.
//! * CPU time is that of the server's process, from before the connections are opened until they are closed; a thousand
//!   connections account for a few milliseconds of it. System calls are counted in a separate load.
//! * Thousands of connections per second exhaust the ephemeral ports within seconds, unless ports in TIME_WAIT can be
//!   reused. Here the server closes first, so that the client can reuse them.
//!
//! This file has the measurement and the tables. The write-up's figures of its echo server were published in another
//! article, which is lost; its table here has its figures of nginx, in the same form. If the client was the limit, the
//! CPU time per message is more significant than the rate.

pub(crate) mod server;

use std::time::Duration;

use clap::Args;
use io::probe::Probe;

use super::comparison::{self, Variant};
use super::described::{Scenario, or_default};
use super::measurements::{Figure, Labels, Measurements, Of, Rows, ShownColumn, at, axis, plural, under};
use super::served::{self, P50, P99, P999, RATE, ServerCpus};
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::load::{Expect, Plan, ResponseKind, Reuse};
use crate::method::pin::{self, Split};
use crate::peers::server::{Instance, Program};
use crate::report::model::{AxisScale, Finding, Plot, Ranking, Results, Section, Table};

#[derive(Args, Clone, Debug)]
pub(crate) struct EchoOptions {
    /// Message sizes in bytes [default: 64, 512, 1024, 16384]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=BYTES_MAX))]
    sizes: Vec<u32>,
    /// Numbers of connections [default: 1, 50, 150, 300, 500, 1000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Vec<u32>,
    /// Numbers of server threads [default: 1, and one for each processor]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Vec<u32>,
    /// First port of the servers [default: free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// Maximum message size in bytes: a server has a thousand buffers of this size.
const BYTES_MAX: i64 = 64 << 10;
/// Length of one measurement for published results.
const LENGTH: Duration = Duration::from_millis(1500);
// One of the numbers of the echo benchmarks that the write-ups cite.
/// Number of connections in measurements that vary the size.
const CONNECTIONS_OF_SIZES: u32 = 150;
/// The servers, in the order of tables; `location` is the mode of receives and accepts, for messages and for
/// connections alike.
const VARIANTS: [Variant; 3] = [EPOLL, RING_SINGLE, RING_MULTI];
/// Connections and listener are in an epoll set. "multi" arms operations permanently.
const EPOLL: Variant = Variant::ours("epoll", "epoll").with("multi");
/// On io_uring, with a new submission for each receive and each accept.
const RING_SINGLE: Variant = Variant::ours("io_uring, single-shot", "uring").with("single");
/// On io_uring with multishot operations; the kernel picks receive buffers from a registered set.
const RING_MULTI: Variant = Variant::ours("io_uring, multishot", "uring").with("multi");

/// Maximum deviation from 1 of a ratio of CPU times that is considered noise.
const EQUAL_WITHIN: f64 = 0.03;

const CPU: Figure = Figure { unit: "us each", ..served::CPU };
const CLIENT_CPU: Figure = Figure { name: "client CPU", unit: "us each", ..served::GENERATOR_CPU };
const CALLS: Figure = Figure { unit: "each", ..served::CALLS };

/// Returns the variant of a latency figure in microseconds.
const fn us(milliseconds: Figure, of: &'static str) -> Figure {
    Figure { unit: "us", decimals: 0, of: Of::Value(of, 1.0), ..milliseconds }
}
const P50_US: Figure = us(P50, "p50_us");
const P99_US: Figure = us(P99, "p99_us");
const P999_US: Figure = us(P999, "p99_9_us");

/// The exchange that each connection repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// A message of this number of bytes is sent and echoed.
    Messages { bytes: usize },
    /// A connection is opened, and the server closes it.
    Connections,
}

impl Exchange {
    fn plan(self, bench: &Bench, split: &Split, connections: u32) -> Plan {
        let plan = served::load(bench, split, connections, LENGTH);
        match self {
            Exchange::Messages { bytes } => {
                // Each byte depends on its offset, so that reordering is detected.
                let body: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
                let expect = Expect { crc32c: Some(crc32c::crc32c(&body)), ..Expect::default() };
                let receive_bytes = (bytes as u32).max(4096);
                Plan { response_kind: ResponseKind::Bytes(bytes as u64), body, expect, receive_bytes, ..plan }
            }
            Exchange::Connections => {
                Plan { response_kind: ResponseKind::End, reuse: Reuse::PerRequest, ..plan }
            }
        }
    }
}

/// The parameters of a figure beside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EchoPoint {
    task: Exchange,
    connections: u32,
    /// Number of server threads.
    workers: u32,
}

impl EchoPoint {
    /// Describes the point: "64 bytes, 100 connections, 1 worker".
    fn words(self) -> String {
        let workers = plural(self.workers, "worker");
        match self.task {
            Exchange::Messages { bytes } => {
                format!("{bytes} bytes, {}, {workers}", plural(self.connections, "connection"))
            }
            Exchange::Connections => {
                format!("accepts, {}, {workers}", plural(self.connections, "concurrent connection"))
            }
        }
    }

    fn labels(self) -> Labels {
        let (what, bytes) = match self.task {
            Exchange::Messages { bytes } => ("messages", bytes),
            Exchange::Connections => ("connections", 0),
        };
        at([
            ("counted", &what),
            ("bytes", &bytes),
            ("connections", &self.connections),
            ("workers", &self.workers),
        ])
    }

    fn of(self, variant: Variant) -> Labels {
        comparison::labels_of(&variant, &self.labels())
    }

    fn row(self) -> (String, Labels) {
        (self.words(), self.labels())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct EchoPoints {
    sizes: Vec<u32>,
    connections: Vec<u32>,
    /// Numbers of concurrent connections in measurements of accepts.
    accepts: Vec<u32>,
    /// Numbers of server threads. Only the first one is combined with the other parameters.
    workers: Vec<u32>,
    /// Whether every size is combined with every number of connections.
    product: bool,
}

impl Scenario for EchoOptions {
    const NAME: &'static str = "echo";
    const MINUTES: u32 = 2;
    const QUICK_SHARE: u32 = 15;
    const TITLE: &'static str = "Echo and accept: the minimum work of a server on the network";
    const QUESTION: &'static str = "How many messages are echoed and how many connections accepted per second, on epoll and on io_uring, with how much CPU time and how many system calls?";

    /// Measures all points with all servers in turn.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let points = EchoPoints::choose(bench, self);
        let probe = Probe::run();
        let refusal = probe.uring_refusal();
        if let Some(refusal) = &refusal {
            section.skip("io_uring", &format!("io_uring is not available: {}", refusal.cause));
        }
        let variants: Vec<Variant> =
            VARIANTS.into_iter().filter(|variant| *variant == EPOLL || refusal.is_none()).collect();
        for &workers in &points.workers {
            let mut place = ServerCpus::of_workers(bench, section, workers as usize);
            place.first_port = self.port;
            for (purpose, every) in [("messages", points.messages()), ("connections", points.accepts())] {
                let suffix = format!(", {purpose}, {}", plural(workers, "worker"));
                let programs = variants.iter().map(|variant| (*variant, Program::echo())).collect();
                let configuration = |variant: &Variant, instance: &Instance| {
                    command(variant, (purpose, workers), points.longest(), instance)
                };
                let mut servers =
                    comparison::start_programs(bench, section, &place, (programs, &suffix), configuration)?;
                for point in every.into_iter().filter(|point| point.workers == workers) {
                    let plan = point.task.plan(bench, &place.split, point.connections);
                    let labels = |variant: &Variant| Some(point.of(*variant));
                    served::compare(bench, section, &mut servers, (&point.words(), "/"), &plan, labels)?;
                }
            }
        }
        let report = EchoReport { measurements: Measurements::of(section), points: &points };
        Ok(Results {
            tables: report.tables(),
            plots: report.plots(),
            findings: vec![report.gain(), report.calls(), report.accepts()],
            rankings: report.rankings(),
        })
    }
}

impl EchoPoints {
    /// Selects the points: those that the user named, else those of the scale.
    fn choose(bench: &Bench, options: &EchoOptions) -> EchoPoints {
        let (sizes, connections, accepts): (&[u32], &[u32], &[u32]) = match bench.scale {
            Scale::Instant => (&[64, 16384], &[1, 10], &[10]),
            Scale::Quick => (&[64, 16384], &[1, 150, 1000], &[150]),
            Scale::Normal => (&[64, 512, 1024, 16384], &[1, 50, 150, 300, 500, 1000], &[1, 150]),
            Scale::Full => {
                (&[64, 128, 256, 512, 1024, 4096, 16384], &[1, 50, 150, 300, 500, 1000], &[1, 10, 150, 1000])
            }
        };
        let processors = pin::available().len() as u32;
        let is_brief = matches!(bench.scale, Scale::Instant | Scale::Quick);
        let workers = if is_brief || processors == 1 { vec![1] } else { vec![1, processors] };
        EchoPoints {
            sizes: or_default(&options.sizes, sizes),
            connections: or_default(&options.connections, connections),
            accepts: or_default(&options.connections, accepts),
            workers: or_default(&options.workers, &workers),
            product: bench.scale == Scale::Full,
        }
    }

    /// Returns the message size of measurements that vary the connections.
    fn first_size(&self) -> u32 {
        self.sizes.first().copied().unwrap_or(64)
    }

    /// Returns the number of connections of measurements that vary the size: a hundred, or the nearest number.
    fn middle_connections(&self) -> u32 {
        let distance = |connections: &&u32| connections.abs_diff(CONNECTIONS_OF_SIZES);
        self.connections.iter().min_by_key(distance).copied().unwrap_or(CONNECTIONS_OF_SIZES)
    }

    /// Returns a point of the first number of workers.
    fn at(&self, bytes: u32, connections: u32) -> EchoPoint {
        let task = Exchange::Messages { bytes: bytes as usize };
        EchoPoint { task, connections, workers: self.workers.first().copied().unwrap_or(1) }
    }

    /// Returns the point that the claims are about: the first size with the most connections.
    fn with_most_connections(&self) -> EchoPoint {
        self.at(self.first_size(), self.connections.iter().copied().max().unwrap_or_default())
    }

    /// Returns the points of the first size with each number of connections.
    fn by_connections(&self) -> Vec<EchoPoint> {
        self.connections.iter().map(|&connections| self.at(self.first_size(), connections)).collect()
    }

    /// Returns the points of each size with the middle number of connections.
    fn by_size(&self) -> Vec<EchoPoint> {
        self.sizes.iter().map(|&bytes| self.at(bytes, self.middle_connections())).collect()
    }

    /// Returns the points of the most connections with each number of workers.
    fn by_workers(&self) -> Vec<EchoPoint> {
        self.workers.iter().map(|&workers| EchoPoint { workers, ..self.with_most_connections() }).collect()
    }

    /// Returns the points that vary one parameter at a time, or all combinations.
    fn messages(&self) -> Vec<EchoPoint> {
        let mut points = self.by_connections();
        let of_size =
            |&bytes: &u32| self.connections.iter().map(move |&connections| self.at(bytes, connections));
        let more = if self.product { self.sizes.iter().flat_map(of_size).collect() } else { self.by_size() };
        for point in more.into_iter().chain(self.by_workers()) {
            if !points.contains(&point) {
                points.push(point);
            }
        }
        points
    }

    fn accepts(&self) -> Vec<EchoPoint> {
        let point = |&connections: &u32| EchoPoint { task: Exchange::Connections, ..self.at(0, connections) };
        self.accepts.iter().map(point).collect()
    }

    /// Returns the required size of a server's buffers.
    fn longest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or_default().max(4096)
    }
}

fn command(variant: &Variant, (purpose, workers): (&str, u32), buffer: u32, instance: &Instance) -> String {
    let Variant { engine, location: mode, .. } = variant;
    format!(
        "bench {} --engine {engine} --mode {mode} --purpose {purpose} --workers {workers} --buffer {buffer} --port {}",
        server::COMMAND,
        instance.port
    )
}

struct EchoReport<'a> {
    measurements: Measurements<'a>,
    points: &'a EchoPoints,
}

impl EchoReport<'_> {
    /// Returns all tables, the one in the write-up's form first.
    fn tables(&self) -> Vec<Table> {
        let (bytes, connections) = (self.points.first_size(), self.points.middle_connections());
        let rows = |points: Vec<EchoPoint>| points.into_iter().map(EchoPoint::row).collect::<Vec<_>>();
        let (by_connections, by_size) = (rows(self.points.by_connections()), rows(self.points.by_size()));
        let compared = |title: &str, rows: &[(String, Labels)], figure: Figure| {
            let mut columns: Vec<ShownColumn> = VARIANTS.map(|one| figure.at(one.name, one.labels())).into();
            columns.push(figure.over("multishot / epoll", EPOLL.labels()).where_(RING_MULTI.labels()));
            self.measurements.table(title, rows, &columns)
        };
        let of = |words: &str| format!("Messages of {bytes} bytes{words}");
        let by_workers = rows(self.points.by_workers());
        vec![
            compared(&of(": messages per second by connections"), &by_connections, RATE),
            compared(&of(": system calls of the server per message"), &by_connections, CALLS),
            compared(&of(": CPU time of the server per message"), &by_connections, CPU),
            compared(&of(": 99th percentile of the latency"), &by_connections, P99_US),
            compared(
                &format!("{connections} connections: CPU time of the server by size of the message"),
                &by_size,
                CPU,
            ),
            compared(&of(": messages per second by workers"), &by_workers, RATE),
            compared(&of(": CPU time of the server per message, by workers"), &by_workers, CPU),
            self.accepted(),
            self.every(),
        ]
    }

    /// Returns the table of connections that are accepted and closed: the rows differ only in the accept mode.
    fn accepted(&self) -> Table {
        const NAMES: [&str; 3] =
            ["listener in epoll", "io_uring, single-shot accept", "io_uring, multishot accept"];
        let row = |point: EchoPoint, (variant, name)| {
            (format!("{name}, {} at a time", point.connections), point.of(variant))
        };
        let rows = |point: EchoPoint| VARIANTS.into_iter().zip(NAMES).map(move |one| row(point, one));
        let rows: Rows = self.points.accepts().into_iter().flat_map(rows).collect();
        let columns = [
            RATE.at("accepts", Labels::new()),
            CPU.shown(),
            CPU.over("CPU / epoll's", EPOLL.labels()),
            CALLS.shown(),
            served::LIMITED.shown(),
        ];
        self.measurements.table("Connections accepted and closed immediately", &rows, &columns)
    }

    /// Returns the table of all points, for readers who need more than medians.
    fn every(&self) -> Table {
        let points = self.points.messages().into_iter().chain(self.points.accepts());
        let row = |point: EchoPoint, variant: Variant| {
            (format!("{}, {}", variant.name, point.words()), point.of(variant))
        };
        let rows: Rows = points
            .flat_map(|point| VARIANTS.map(|variant| row(point, variant)))
            .filter(|(_, labels)| self.measurements.has(labels))
            .collect();
        let rate = RATE.at("messages or connections", Labels::new());
        let others = [P50_US, P99_US, P999_US, CPU, CALLS, CLIENT_CPU, served::LIMITED].map(Figure::shown);
        self.measurements.table(
            "Every combination",
            &rows,
            &[rate].into_iter().chain(others).collect::<Vec<_>>(),
        )
    }

    /// Returns rankings of the engines: per message, and per accepted connection.
    fn rankings(&self) -> Vec<Ranking> {
        let ranking = |what: &str, point: EchoPoint| {
            let entry = |variant: Variant| (variant.name.to_owned(), point.of(variant));
            let title = format!("CPU time per {what}: {}", point.words());
            self.measurements.ranking(&title, CPU, &VARIANTS.map(entry))
        };
        let accepts = self.points.accepts().into_iter().next_back();
        let accepts = accepts.map(|point| ranking("accepted connection", point));
        [ranking("message", self.points.with_most_connections())].into_iter().chain(accepts).collect()
    }

    /// Plots the rate by connections, and latencies by percentile.
    fn plots(&self) -> Vec<Plot> {
        let bytes = self.points.first_size();
        let messages = at([
            ("counted", &"messages"),
            ("bytes", &bytes),
            ("workers", &self.points.with_most_connections().workers),
        ]);
        let lines = under(&comparison::rows(&VARIANTS), &messages);
        let rates = self.measurements.plot(
            ("echo-messages", &format!("Echo of {bytes} bytes: messages per second")),
            ("connections", axis("connections", "", AxisScale::Logarithmic)),
            (RATE, axis("messages", RATE.unit, AxisScale::Linear)),
            &lines,
        );
        let point = self.points.at(bytes, self.points.middle_connections());
        let title = format!("Echo of {}: latency by percentile", point.words());
        let curves = under(&lines, &at([("connections", &point.connections), ("workers", &point.workers)]));
        vec![rates, self.measurements.curves(("echo-percentiles", &title), "us", &curves)]
    }

    fn gain(&self) -> Finding {
        let claim = "With long connections io_uring serves about a fifth more than epoll (the write-up measured nginx; this is an echo server).";
        let point = self.points.with_most_connections();
        let [single, multi, epoll] = [RING_SINGLE, RING_MULTI, EPOLL].map(|variant| point.of(variant));
        let single = self.measurements.ratio(CPU, &single, &epoll);
        let single = single.map_or_else(|| "–".to_owned(), |ratio| format!("{:.2}", ratio.median));
        served::gain_finding(self.measurements, claim, [&multi, &epoll], |rate, multi, bound| {
            format!(
                "With {} io_uring echoes {rate:.2} times as many messages as epoll{bound}; a message takes {multi:.2} of epoll's CPU time with a multishot receive, {single} with single-shot receives.",
                point.words()
            )
        })
    }

    fn calls(&self) -> Finding {
        let point = self.points.with_most_connections();
        let subject = format!("With {} a message", point.words());
        let claim = "io_uring makes at most a tenth of epoll's system calls.";
        let labels = [&point.of(RING_MULTI), &point.of(EPOLL)];
        served::calls_finding(self.measurements, claim, labels, &subject)
    }

    /// Returns the finding about accepts. Wasted work would appear as CPU time: an accept without a connection
    /// allocates a socket and frees it again.
    fn accepts(&self) -> Finding {
        let cases = self.points.accepts().into_iter().flat_map(|point| {
            let words = |name: &str| format!("{name}, {} concurrent connections", point.connections);
            [(RING_SINGLE, "single-shot"), (RING_MULTI, "multishot")]
                .map(|(variant, name)| (words(name), point.of(variant), point.of(EPOLL)))
        });
        self.measurements.finding_of_ratios(
            "Accepting by io_uring costs more than a listener in epoll, because an accept without a connection is wasted work.",
            (
                "CPU time per accepted connection, as a ratio to a listener in epoll: ",
                "io_uring and epoll were not both measured.",
            ),
            CPU,
            cases,
            |ratio| ratio.median > 1.0 + EQUAL_WITHIN,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(product: bool) -> EchoPoints {
        EchoPoints {
            sizes: vec![64, 1024],
            connections: vec![1, 100, 1000],
            accepts: vec![100],
            workers: vec![1, 2],
            product,
        }
    }

    #[test]
    fn one_parameter_is_varied_at_a_time() {
        let words = |points: &EchoPoints| -> Vec<String> {
            points.messages().into_iter().map(EchoPoint::words).collect()
        };
        assert_eq!(
            words(&points(false)),
            [
                "64 bytes, 1 connection, 1 worker",
                "64 bytes, 100 connections, 1 worker",
                "64 bytes, 1000 connections, 1 worker",
                "1024 bytes, 100 connections, 1 worker",
                "64 bytes, 1000 connections, 2 workers"
            ]
        );
        assert_eq!(points(true).messages().len(), 7);
        assert_eq!(points(false).longest(), 4096);
    }

    #[test]
    fn servers_differ_only_in_engine_and_shots() {
        let instance = Instance { host: std::net::Ipv4Addr::LOCALHOST, port: 8080, directory: "/x".into() };
        let words = |variant: Variant| command(&variant, ("messages", 2), 4096, &instance);
        assert_eq!(words(EPOLL), words(RING_MULTI).replace("uring", "epoll"));
        assert_eq!(words(RING_SINGLE), words(RING_MULTI).replace("multi", "single"));
    }
}
