//! What is made of the measurements of `bench http`: tables (the write-up's first), plots, and what was found about
//! its claims.
//!
//! The write-up has its tables as pictures, so the form is what its text says: requests a second by workers with 1 000
//! connections, then by connections with one worker, then the same for short ones. Each has epoll and the ring side by
//! side with their ratio, formed round by round, and nginx, which the write-up had put a ring into.
//!
//! When a claim holds: each is judged by one figure, with a margin that repetitions of a quiet machine stay within. A
//! rate that the generator limited says nothing about the server; there the processor time of a request stands for it,
//! because a server that is the limit answers as many more as it spends less on each.

use super::{CONNECTIONS_OF_WRITE_UP, Kind, Measured, Point, Results, Way};
use crate::load::Bottleneck;
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Row, Section, Series, Table, Verdict};
use crate::scenario::figures::{at_least, cell, column, ratio_cell, row};
use crate::scenario::served::{Served, bottleneck};

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "http".to_owned(),
        title: "HTTP without a disk: connections, workers, system calls".to_owned(),
        seed: Some("004".to_owned()),
        question: "How many requests that need no disk are answered on the ring, on epoll and by nginx, and with how \
                   much processor time and how many system calls?"
            .to_owned(),
        tables: tables(results),
        plots: plots(results),
        findings: findings(results),
        runs: results.measured.iter().flat_map(runs).collect(),
        ..Section::default()
    }
}

type Figures = Result<Vec<f64>, String>;

impl Results {
    /// What was measured there, or the reason for a cell.
    fn find(&self, point: Point, way: Way) -> Result<&Measured, String> {
        let found = self.measured.iter().find(|measured| measured.point == point && measured.way == way);
        found.ok_or_else(|| {
            let missing = self.missing.iter().find(|(missing, _)| *missing == way);
            match (missing, way) {
                (Some((_, reason)), _) => reason.clone(),
                (None, Way::RingOwnListener) => "one worker has the only listener".to_owned(),
                (None, _) => "not part of this run".to_owned(),
            }
        })
    }

    /// One figure of each round.
    fn figures(&self, point: Point, way: Way, figure: impl Fn(&Served) -> Option<f64>) -> Figures {
        let rounds = &self.find(point, way)?.rounds;
        rounds
            .iter()
            .map(|round| figure(round).ok_or_else(|| "a process of the server ended".to_owned()))
            .collect()
    }

    /// Requests a second, wrong answers included: there are none of `return 200`.
    fn rates(&self, point: Point, way: Way) -> Figures {
        self.figures(point, way, |served| Some(served.outcome.answers_per_second()))
    }

    /// Counted once and not in each round: calls for a request do not vary as times do.
    fn calls(&self, point: Point, way: Way) -> Figures {
        Ok(vec![self.find(point, way)?.calls.clone()?])
    }

    /// What the tables by connections are about.
    fn first_workers(&self) -> usize {
        self.workers.first().copied().unwrap_or(1)
    }

    /// What the tables by workers are about.
    fn most_connections(&self) -> u32 {
        self.connections.last().copied().unwrap_or(CONNECTIONS_OF_WRITE_UP)
    }

    /// Long connections with the first number of workers, by connections.
    fn long_points(&self) -> Vec<Point> {
        let workers = self.first_workers();
        let point = |&connections: &u32| Point { kind: Kind::Long, workers, connections };
        self.connections.iter().map(point).collect()
    }

    /// The most connections, by workers.
    fn worker_points(&self, kind: Kind) -> Vec<Point> {
        let short = self.measured.iter().filter(|measured| measured.point.kind == Kind::Short);
        let connections = match kind {
            Kind::Long => self.most_connections(),
            Kind::Short => {
                short.map(|measured| measured.point.connections).max().unwrap_or(CONNECTIONS_OF_WRITE_UP)
            }
        };
        self.workers.iter().map(|&workers| Point { kind, workers, connections }).collect()
    }

    /// "2 workers", and whether the generator has processors of its own then.
    fn workers_words(&self, workers: usize) -> String {
        let split = self.splits.iter().find(|(of, _)| *of == workers);
        let shared = split.is_some_and(|(_, split)| !split.is_apart);
        let plural = if workers == 1 { "" } else { "s" };
        let note = if shared { " (generator on the same processors)" } else { "" };
        format!("{workers} worker{plural}{note}")
    }
}

/// The write-up's three, then what it has no table for.
fn tables(results: &Results) -> Vec<Table> {
    let most = results.most_connections();
    let compared = |point: Point, figures: &dyn Fn(Point, Way) -> Figures, decimals: u8| {
        let (epoll, ring, nginx) =
            (figures(point, Way::Epoll), figures(point, Way::Ring), figures(point, Way::Nginx));
        vec![
            cell(&epoll, decimals),
            cell(&ring, decimals),
            ratio_cell(&ring, &epoll, 2),
            cell(&nginx, decimals),
        ]
    };
    let columns = |unit: &str| {
        vec![
            column("epoll", unit),
            column("io_uring", unit),
            column("io_uring / epoll", ""),
            column("nginx", unit),
        ]
    };
    let rates = |point: Point, way: Way| results.rates(point, way);
    let calls = |point: Point, way: Way| results.calls(point, way);
    let by_workers = results.worker_points(Kind::Long);
    let by_connections = results.long_points();
    let one = results.workers_words(results.first_workers());
    let connections_words = |point: &Point| format!("{} connections", point.connections);
    vec![
        Table {
            title: format!("Long connections, {most} of them: requests a second by workers"),
            columns: columns("1/s"),
            rows: by_workers
                .iter()
                .map(|point| row(results.workers_words(point.workers), compared(*point, &rates, 0)))
                .collect(),
        },
        Table {
            title: format!("Long connections, {one}: requests a second by connections"),
            columns: columns("1/s"),
            rows: by_connections
                .iter()
                .map(|point| row(connections_words(point), compared(*point, &rates, 0)))
                .collect(),
        },
        Table {
            title: format!("Long connections, {one}: system calls for each request"),
            columns: columns(""),
            rows: by_connections
                .iter()
                .map(|point| row(connections_words(point), compared(*point, &calls, 3)))
                .collect(),
        },
        short_table(results),
        all_figures(results),
    ]
}

/// Who accepts how is what differs here.
fn short_table(results: &Results) -> Table {
    let points = results.worker_points(Kind::Short);
    let connections = points.first().map_or(0, |point| point.connections);
    let rows = points.iter().map(|&point| {
        let rates = |way| results.rates(point, way);
        // One worker's only listener is its own, so that its accepts are multishot without being told.
        let alone = point.workers == 1;
        let own = if alone { rates(Way::Ring) } else { rates(Way::RingOwnListener) };
        let shared =
            if alone { Err("one worker has the only listener".to_owned()) } else { rates(Way::Ring) };
        let epoll = rates(Way::Epoll);
        let cells = vec![
            cell(&epoll, 0),
            cell(&shared, 0),
            cell(&own, 0),
            ratio_cell(&own, &epoll, 2),
            cell(&rates(Way::Nginx), 0),
        ];
        row(results.workers_words(point.workers), cells)
    });
    Table {
        title: format!("Short connections, {connections} at a time: requests a second by workers"),
        columns: vec![
            column("epoll", "1/s"),
            column("io_uring, single-shot accept", "1/s"),
            column("io_uring, multishot accept", "1/s"),
            column("multishot / epoll", ""),
            column("nginx", "1/s"),
        ],
        rows: rows.collect(),
    }
}

/// For whom a median is too little: each combination with its latencies and what everybody spent.
fn all_figures(results: &Results) -> Table {
    Table {
        title: "Every combination".to_owned(),
        columns: vec![
            column("requests", "1/s"),
            column("p50", "ms"),
            column("p99", "ms"),
            column("p99.9", "ms"),
            column("server CPU", "us/request"),
            column("system calls", "1/request"),
            column("generator CPU", "us/request"),
            column("limited by", ""),
        ],
        rows: results.measured.iter().map(|measured| figures_of(results, measured)).collect(),
    }
}

/// A row of it.
fn figures_of(results: &Results, measured: &Measured) -> Row {
    let (point, way) = (measured.point, measured.way);
    let figure = |of: &dyn Fn(&Served) -> f64, decimals| {
        cell(&results.figures(point, way, |served| Some(of(served))), decimals)
    };
    let latency =
        |percentile: f64| figure(&move |served: &Served| served.outcome.latency_us(percentile) / 1e3, 3);
    let limit = match bottleneck(&measured.rounds) {
        Bottleneck::Generator => "generator",
        Bottleneck::Server => "server",
        Bottleneck::Rate => "rate",
    };
    let name = format!(
        "{}, {} connections, {} {}",
        way.name(),
        point.connections,
        results.workers_words(point.workers),
        point.kind.name()
    );
    row(
        name,
        vec![
            figure(&|served| served.outcome.answers_per_second(), 0),
            latency(50.0),
            latency(99.0),
            latency(99.9),
            cell(&results.figures(point, way, Served::server_us_per_answer), 2),
            cell(&results.calls(point, way), 3),
            figure(&|served| served.outcome.cpu_us_per_answer(), 2),
            Cell::Text(limit.to_owned()),
        ],
    )
}

/// Everything over connections that are kept, with the first number of workers.
fn plots(results: &Results) -> Vec<Plot> {
    let connections =
        Axis { name: "connections".to_owned(), unit: String::new(), scale: AxisScale::Logarithmic };
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let over_connections = |id: &str, title: &str, y: Axis, figures: &dyn Fn(Point, Way) -> Figures| Plot {
        id: id.to_owned(),
        title: title.to_owned(),
        x: connections.clone(),
        y,
        series: [Way::Epoll, Way::Ring, Way::Nginx]
            .into_iter()
            .map(|way| series(results, &results.long_points(), way, figures))
            .filter(|series| !series.points.is_empty())
            .collect(),
    };
    let p99 = |point, way| results.figures(point, way, |served| Some(served.outcome.latency_us(99.0) / 1e3));
    let cpu = |point, way| results.figures(point, way, Served::server_us_per_answer);
    vec![
        over_connections(
            "http-requests",
            "Requests a second, long connections, one worker",
            axis("requests", "1/s", AxisScale::Linear),
            &|point, way| results.rates(point, way),
        ),
        over_connections(
            "http-p99",
            "Latency, 99th percentile, long connections, one worker",
            axis("p99", "ms", AxisScale::Logarithmic),
            &p99,
        ),
        over_connections(
            "http-cpu",
            "Server's processor time, long connections, one worker",
            axis("CPU", "us/request", AxisScale::Linear),
            &cpu,
        ),
        percentiles(results),
    ]
}

/// The medians of one server; points without a figure are left out.
fn series(results: &Results, points: &[Point], way: Way, figures: &dyn Fn(Point, Way) -> Figures) -> Series {
    let median = |point: &Point| {
        let summary = Summary::of(&figures(*point, way).ok()?)?;
        Some([f64::from(point.connections), summary.median])
    };
    debug_assert!(points.iter().all(|point| results.workers.contains(&point.workers)));
    Series { name: way.name().to_owned(), points: points.iter().filter_map(median).collect() }
}

/// The latencies of the middle number of connections, of the first round.
fn percentiles(results: &Results) -> Plot {
    // Dense where curves bend.
    const SHOWN: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];
    let points = results.long_points();
    let point = points[points.len() / 2];
    let curve = |way: Way| {
        let round = results.find(point, way).ok()?.rounds.first()?;
        let points = SHOWN.map(|percentile| [percentile, round.outcome.latency_us(percentile) / 1e3]);
        Some(Series { name: way.name().to_owned(), points: points.to_vec() })
    };
    Plot {
        id: "http-percentiles".to_owned(),
        title: format!("Latency by percentile, {} long connections, one worker", point.connections),
        x: Axis { name: "percentile".to_owned(), unit: "%".to_owned(), scale: AxisScale::Percentile },
        y: Axis { name: "latency".to_owned(), unit: "ms".to_owned(), scale: AxisScale::Logarithmic },
        series: [Way::Epoll, Way::Ring, Way::Nginx].into_iter().filter_map(curve).collect(),
    }
}

/// What the write-up claims, and how it fared.
fn findings(results: &Results) -> Vec<Finding> {
    vec![long_finding(results), calls_finding(results), short_finding(results)]
}

/// A ratio of the ring to epoll, and whether the generator kept either from being faster.
struct Compared {
    ratio: f64,
    is_generator_bound: bool,
}

/// One way's figure by another's at a point, as a claim with its verdict.
fn compare(
    results: &Results,
    point: Point,
    ring: Way,
    figures: &dyn Fn(Point, Way) -> Figures,
) -> Option<Compared> {
    let ratio = Summary::of_ratios(&figures(point, ring).ok()?, &figures(point, Way::Epoll).ok()?)?.median;
    let bound = |way| {
        results.find(point, way).is_ok_and(|measured| bottleneck(&measured.rounds) == Bottleneck::Generator)
    };
    Some(Compared { ratio, is_generator_bound: bound(ring) || bound(Way::Epoll) })
}

/// What a rate says when the generator was the limit is nothing: then processor time has to say it.
fn long_finding(results: &Results) -> Finding {
    let claim =
        "With 500 and more long connections the ring answers about 20 % more requests a second than epoll.";
    let point = results.worker_points(Kind::Long)[0];
    let rates = |point, way| results.rates(point, way);
    let cpu = |point, way| results.figures(point, way, Served::server_us_per_answer);
    let speed = compare(results, point, Way::Ring, &rates);
    let cost = compare(results, point, Way::Ring, &cpu);
    let (verdict, sentence) = match (speed, cost) {
        (Some(speed), Some(cost)) => {
            // A server that is the limit answers as many more as it spends less on each.
            let gain = if speed.is_generator_bound { 1.0 / cost.ratio } else { speed.ratio };
            let bound = if speed.is_generator_bound {
                ", limited by the generator, so that processor time counts"
            } else {
                ""
            };
            let sentence = format!(
                "At {} connections and {} the ring answers {:.2} times as many requests a second as epoll{bound}; it \
                 spends {:.2} of epoll's processor time on each.",
                point.connections,
                results.workers_words(point.workers),
                speed.ratio,
                cost.ratio
            );
            (at_least(gain, 1.15, 1.03), sentence)
        }
        _ => (Verdict::Open, "Ring and epoll were not both measured.".to_owned()),
    };
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Calls do not depend on the machine, only on how many answers one turn has room for.
fn calls_finding(results: &Results) -> Finding {
    let claim = "The ring needs a tenth of epoll's system calls, or less.";
    let point = results.worker_points(Kind::Long)[0];
    let both = (results.calls(point, Way::Ring), results.calls(point, Way::Epoll));
    let (verdict, sentence) = match both {
        (Ok(ring), Ok(epoll)) if epoll[0] > 0.0 => {
            let sentence = format!(
                "At {} connections a request takes {:.3} system calls on the ring and {:.3} on epoll.",
                point.connections, ring[0], epoll[0]
            );
            (at_least(epoll[0] / ring[0].max(1e-9), 10.0, 3.0), sentence)
        }
        (Err(reason), _) | (_, Err(reason)) => (Verdict::Open, format!("Not counted here: {reason}.")),
        _ => (Verdict::Open, "Too few requests were answered to tell.".to_owned()),
    };
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// The claim is about what does not get better, so it holds where the ring is not ahead by more than the noise.
fn short_finding(results: &Results) -> Finding {
    let claim = "With short connections the ring is no faster than epoll, in some cases 5 to 10 % slower.";
    let rates = |point, way| results.rates(point, way);
    let compared = |point: Point| {
        let ring = if point.workers == 1 { Way::Ring } else { Way::RingOwnListener };
        Some((point, compare(results, point, ring, &rates)?))
    };
    let found: Vec<(Point, Compared)> =
        results.worker_points(Kind::Short).into_iter().filter_map(compared).collect();
    if found.is_empty() {
        let sentence = "Ring and epoll were not both measured.".to_owned();
        return Finding { claim: claim.to_owned(), verdict: Verdict::Open, sentence };
    }
    let words: Vec<String> = found
        .iter()
        .map(|(point, compared)| {
            let bound = if compared.is_generator_bound { ", limited by the generator" } else { "" };
            format!(
                "{:.2} of epoll's rate with {}{bound}",
                compared.ratio,
                results.workers_words(point.workers)
            )
        })
        .collect();
    // Numbers of workers may disagree: then it holds in part.
    let fastest = found.iter().map(|(_, compared)| compared.ratio).fold(f64::MIN, f64::max);
    let slowest = found.iter().map(|(_, compared)| compared.ratio).fold(f64::MAX, f64::min);
    let verdict = match (slowest <= 1.02, fastest <= 1.02) {
        (_, true) => Verdict::Holds,
        (true, false) => Verdict::Partly,
        (false, false) => Verdict::Fails,
    };
    let sentence = format!("The ring with multishot accepts answers {}.", words.join("; "));
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Every round, with the calls that were counted for all of them.
fn runs(measured: &Measured) -> Vec<crate::report::model::Run> {
    let run = |(round, served): (usize, &Served)| {
        let point = measured.point;
        let mut run = served.run(&[
            ("server", measured.way.name().to_owned()),
            ("connections kept", point.kind.name().to_owned()),
            ("workers", point.workers.to_string()),
            ("connections", point.connections.to_string()),
            ("round", round.to_string()),
        ]);
        if let Ok(calls) = measured.calls {
            run.figures.insert("system_calls_per_request".to_owned(), calls);
        }
        run
    };
    measured.rounds.iter().enumerate().map(run).collect()
}
