//! What is made of the measurements of `bench echo`: tables, plots, and what was found about the write-up's claims.
//!
//! The write-up's own figures of its echo server stand in another article, which is lost; its table here is what it says
//! of nginx, and ours have the same form: epoll and ring side by side by connections, with their ratio formed round by
//! round. Where the generator was the limit, the processor time of a message says what a rate cannot.

use super::{Measured, Point, Results, Task, Way};
use crate::load::Bottleneck;
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Row, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{at_least, cell, column, middle, ratio_cell, row, series};
use crate::scenario::served::{Served, bottleneck};

/// Ratios of processor times nearer to 1 than this are noise.
const EQUAL_WITHIN: f64 = 0.03;

type Figures = Result<Vec<f64>, String>;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "echo".to_owned(),
        title: "Echo and accept: the least that a server does with its network".to_owned(),
        seed: Some("004".to_owned()),
        question: "How many messages go there and back, and how many connections are accepted, on epoll and on the ring, \
                   and with how much processor time and how many system calls?"
            .to_owned(),
        tables: tables(results),
        plots: plots(results),
        findings: findings(results),
        runs: results.measured.iter().flat_map(runs).collect(),
        ..Section::default()
    }
}

/// "64 bytes, 100 connections".
pub(super) fn point_words(point: Point) -> String {
    let plural = if point.connections == 1 { "" } else { "s" };
    match point.task {
        Task::Messages { bytes } => format!("{bytes} bytes, {} connection{plural}", point.connections),
        Task::Connections => format!("accepts, {} connection{plural} at a time", point.connections),
    }
}

impl Results {
    /// What was measured there, or why there is nothing.
    fn find(&self, point: Point, way: Way) -> Result<&Measured, String> {
        let found = self.measured.iter().find(|measured| measured.point == point && measured.way == way);
        found.ok_or_else(|| self.without_ring.clone().unwrap_or_else(|| "not part of this run".to_owned()))
    }

    /// Messages or connections a second.
    fn rates(&self, point: Point, way: Way) -> Figures {
        series(&self.find(point, way)?.rounds, |served| served.outcome.answers_per_second())
    }

    /// The server's, for each of them.
    fn cpu(&self, point: Point, way: Way) -> Figures {
        let rounds = &self.find(point, way)?.rounds;
        let figure = |round: &Result<Served, String>| {
            let served = round.as_ref().map_err(String::clone)?;
            served.server_us_per_answer().ok_or_else(|| "the server ended".to_owned())
        };
        rounds.iter().map(figure).collect()
    }

    /// Counted once and not in each round: calls for a message do not vary as times do.
    fn calls(&self, point: Point, way: Way) -> Figures {
        Ok(vec![self.find(point, way)?.calls.clone()?])
    }

    /// A percentile of the rounds, in microseconds.
    fn latency(&self, point: Point, way: Way, percentile: f64) -> Figures {
        series(&self.find(point, way)?.rounds, |served| served.outcome.latency_us(percentile))
    }

    /// Whether the client was at its end, so that the rate says nothing of the server.
    fn is_generator_bound(&self, point: Point, way: Way) -> bool {
        let rounds =
            self.find(point, way).map(|measured| measured.rounds.iter().flatten().cloned().collect());
        rounds.is_ok_and(|rounds: Vec<Served>| bottleneck(&rounds) == Bottleneck::Generator)
    }

    /// The point that the write-up's words are about: its most connections.
    fn most(&self) -> Point {
        let most = self.points.connections.iter().copied().max().unwrap_or_default();
        super::Points::at(self.points.first_size(), most)
    }
}

type Figure<'a> = &'a dyn Fn(Point, Way) -> Figures;

/// All tables, the write-up's form first.
fn tables(results: &Results) -> Vec<Table> {
    let (bytes, connections) = (results.points.first_size(), results.points.middle_connections());
    let (by_connections, by_size) = (results.points.by_connections(), results.points.by_size());
    let rates: Figure<'_> = &|point, way| results.rates(point, way);
    let cpu: Figure<'_> = &|point, way| results.cpu(point, way);
    let calls: Figure<'_> = &|point, way| results.calls(point, way);
    let p99: Figure<'_> = &|point, way| results.latency(point, way, 99.0);
    let apart = format!("server and client {}", results.split.words());
    vec![
        compared(
            &format!(
                "Messages of {bytes} bytes, one server thread: messages a second by connections ({apart})"
            ),
            ("1/s", 0),
            &by_connections,
            rates,
        ),
        compared(
            &format!("Messages of {bytes} bytes: system calls of the server for each"),
            ("", 3),
            &by_connections,
            calls,
        ),
        compared(
            &format!("Messages of {bytes} bytes: processor time of the server for each"),
            ("us", 2),
            &by_connections,
            cpu,
        ),
        compared(
            &format!("Messages of {bytes} bytes: 99th percentile of the latency"),
            ("us", 0),
            &by_connections,
            p99,
        ),
        compared(
            &format!("{connections} connections: processor time of the server by size of the message"),
            ("us", 2),
            &by_size,
            cpu,
        ),
        accept_table(results),
        every_figure(results),
    ]
}

/// The three side by side, and what the ring comes to beside epoll.
fn compared(title: &str, (unit, decimals): (&str, u8), points: &[Point], figure: Figure<'_>) -> Table {
    let rows = points.iter().map(|&point| {
        let [epoll, single, multi] = Way::ALL.map(|way| figure(point, way));
        let cells = vec![
            cell(&epoll, decimals),
            cell(&single, decimals),
            cell(&multi, decimals),
            ratio_cell(&multi, &epoll, 2),
        ];
        row(point_words(point), cells)
    });
    Table {
        title: title.to_owned(),
        columns: vec![
            column(Way::Epoll.name(), unit),
            column(Way::RingSingle.name(), unit),
            column(Way::RingMulti.name(), unit),
            column("multishot / epoll", ""),
        ],
        rows: rows.collect(),
    }
}

/// Connections that are accepted and closed: who waits at the listener is all that differs.
fn accept_table(results: &Results) -> Table {
    let mut rows = Vec::new();
    for point in results.points.accepts() {
        for (way, name) in Way::ALL.into_iter().zip(ACCEPTS) {
            let (cpu, epoll) = (results.cpu(point, way), results.cpu(point, Way::Epoll));
            let cells = vec![
                cell(&results.rates(point, way), 0),
                cell(&cpu, 2),
                ratio_cell(&cpu, &epoll, 2),
                cell(&results.calls(point, way), 3),
                Cell::Text(limit_words(results, point, way)),
            ];
            rows.push(row(format!("{name}, {} at a time", point.connections), cells));
        }
    }
    Table {
        title: "Connections that are accepted and closed at once".to_owned(),
        columns: vec![
            column("accepts", "1/s"),
            column("server CPU", "us/connection"),
            column("CPU / epoll's", ""),
            column("system calls", "1/connection"),
            column("limited by", ""),
        ],
        rows,
    }
}

/// What the three are called where a listener is what they wait at.
const ACCEPTS: [&str; 3] =
    ["listener in epoll", "io_uring, single-shot accept", "io_uring, multishot accept"];

/// What was the limit, in words for a cell.
fn limit_words(results: &Results, point: Point, way: Way) -> String {
    let words = if results.is_generator_bound(point, way) { "client" } else { "server" };
    results.find(point, way).map_or_else(|reason| reason, |_| words.to_owned())
}

/// For whom a median is too little.
fn every_figure(results: &Results) -> Table {
    let row_of = |measured: &Measured| -> Row {
        let (point, way) = (measured.point, measured.way);
        let latency = |percentile| cell(&results.latency(point, way, percentile), 0);
        let client = series(&measured.rounds, |served| served.outcome.cpu_us_per_answer());
        let cells = vec![
            cell(&results.rates(point, way), 0),
            latency(50.0),
            latency(99.0),
            latency(99.9),
            cell(&results.cpu(point, way), 2),
            cell(&results.calls(point, way), 3),
            cell(&client, 2),
            Cell::Text(limit_words(results, point, way)),
        ];
        row(format!("{}, {}", way.name(), point_words(point)), cells)
    };
    Table {
        title: "Every combination".to_owned(),
        columns: vec![
            column("messages or connections", "1/s"),
            column("p50", "us"),
            column("p99", "us"),
            column("p99.9", "us"),
            column("server CPU", "us each"),
            column("system calls", "each"),
            column("client CPU", "us each"),
            column("limited by", ""),
        ],
        rows: results.measured.iter().map(row_of).collect(),
    }
}

/// Rates and latencies by connections.
fn plots(results: &Results) -> Vec<Plot> {
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let points = results.points.by_connections();
    let bytes = results.points.first_size();
    let over_connections = |id: &str, what: &str, y: Axis, figure: Figure<'_>| {
        let line = |way: Way| {
            let place = |point: &Point| Some([f64::from(point.connections), middle(&figure(*point, way))?]);
            Series { name: way.name().to_owned(), points: points.iter().filter_map(place).collect() }
        };
        Plot {
            id: id.to_owned(),
            title: format!("Echo of {bytes} bytes: {what}"),
            x: axis("connections", "", AxisScale::Logarithmic),
            y,
            series: Way::ALL.map(line).into_iter().filter(|series| !series.points.is_empty()).collect(),
        }
    };
    vec![
        over_connections(
            "echo-messages",
            "messages a second",
            axis("messages", "1/s", AxisScale::Linear),
            &|point, way| results.rates(point, way),
        ),
        over_connections(
            "echo-cpu",
            "processor time of the server",
            axis("CPU", "us/message", AxisScale::Linear),
            &|point, way| results.cpu(point, way),
        ),
        percentiles(results),
    ]
}

/// Latencies at the middle number of connections, of the first round.
fn percentiles(results: &Results) -> Plot {
    // Dense where curves bend.
    const SHOWN: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];
    let point = super::Points::at(results.points.first_size(), results.points.middle_connections());
    let curve = |way: Way| {
        let served = results.find(point, way).ok()?.rounds.first()?.as_ref().ok()?;
        let points = SHOWN.map(|percentile| [percentile, served.outcome.latency_us(percentile)]);
        Some(Series { name: way.name().to_owned(), points: points.to_vec() })
    };
    Plot {
        id: "echo-percentiles".to_owned(),
        title: format!("Echo of {}: latency by percentile", point_words(point)),
        x: Axis { name: "percentile".to_owned(), unit: "%".to_owned(), scale: AxisScale::Percentile },
        y: Axis { name: "latency".to_owned(), unit: "us".to_owned(), scale: AxisScale::Logarithmic },
        series: Way::ALL.into_iter().filter_map(curve).collect(),
    }
}

/// What the write-up claims, and how it fared.
fn findings(results: &Results) -> Vec<Finding> {
    vec![gain_finding(results), calls_finding(results), accept_finding(results)]
}

/// The middle of the ratios of two ways, formed round by round.
fn ratio(ours: &Figures, theirs: &Figures) -> Option<f64> {
    let (Ok(ours), Ok(theirs)) = (ours, theirs) else { return None };
    Summary::of_ratios(ours, theirs).map(|summary| summary.median)
}

/// A server that is the limit answers as many more as it spends less on each, so where the client is the limit its
/// processor time has to say it.
fn gain_finding(results: &Results) -> Finding {
    let point = results.most();
    let of = |way: Way| {
        let rate = ratio(&results.rates(point, way), &results.rates(point, Way::Epoll))?;
        Some((rate, ratio(&results.cpu(point, way), &results.cpu(point, Way::Epoll))?))
    };
    let (verdict, sentence) = match (of(Way::RingMulti), of(Way::RingSingle)) {
        (Some(multi), Some(single)) => {
            let is_bound =
                [Way::Epoll, Way::RingMulti].iter().any(|&way| results.is_generator_bound(point, way));
            let bound = if is_bound { ", limited by the client, so that processor time counts" } else { "" };
            let gain = if is_bound { 1.0 / multi.1 } else { multi.0 };
            let sentence = format!(
                "With {} the ring returns {:.2} times as many messages as epoll{bound}; each takes {:.2} of epoll's \
                 processor time with a multishot receive, {:.2} with a receive for each.",
                point_words(point),
                multi.0,
                multi.1,
                single.1
            );
            (at_least(gain, 1.15, 1.03), sentence)
        }
        _ => (Verdict::Open, "Ring and epoll were not both measured.".to_owned()),
    };
    let claim = "With long connections the ring serves about a fifth more than epoll (said of nginx; here of the least \
                 that a server can do).";
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Whether the ring saves system calls.
fn calls_finding(results: &Results) -> Finding {
    let point = results.most();
    let (verdict, sentence) = match (results.calls(point, Way::RingMulti), results.calls(point, Way::Epoll)) {
        (Ok(ring), Ok(epoll)) if epoll[0] > 0.0 => (
            at_least(epoll[0] / ring[0].max(1e-9), 10.0, 3.0),
            format!(
                "With {} a message takes {:.3} system calls on the ring and {:.3} on epoll.",
                point_words(point),
                ring[0],
                epoll[0]
            ),
        ),
        (Err(reason), _) | (_, Err(reason)) => (Verdict::Open, format!("Not counted here: {reason}.")),
        _ => (Verdict::Open, "Too few messages came back to tell.".to_owned()),
    };
    Finding { claim: "It makes at most a tenth of epoll's system calls.".to_owned(), verdict, sentence }
}

/// The waste would show as processor time: an accept that finds nobody allocates a socket and frees it again.
fn accept_finding(results: &Results) -> Finding {
    let compare = |point: Point| {
        let of = |way| ratio(&results.cpu(point, way), &results.cpu(point, Way::Epoll));
        Some((point, of(Way::RingSingle)?, of(Way::RingMulti)?))
    };
    let found: Vec<(Point, f64, f64)> = results.points.accepts().into_iter().filter_map(compare).collect();
    let words: Vec<String> = found
        .iter()
        .map(|(point, single, multi)| {
            format!("{single:.2} single-shot and {multi:.2} multishot at {} at a time", point.connections)
        })
        .collect();
    let is_waste = |ratio: f64| ratio > 1.0 + EQUAL_WITHIN;
    let verdict = if found.is_empty() {
        Verdict::Open
    } else if found.iter().all(|&(_, single, multi)| is_waste(single) && is_waste(multi)) {
        Verdict::Holds
    } else if found.iter().any(|&(_, single, multi)| is_waste(single) || is_waste(multi)) {
        Verdict::Partly
    } else {
        Verdict::Fails
    };
    let sentence = if words.is_empty() {
        "Ring and epoll were not both measured.".to_owned()
    } else {
        format!(
            "Processor time of an accepted connection, by that with the listener in epoll: {}.",
            words.join("; ")
        )
    };
    let claim = "Accepting through the ring costs more than a listener in epoll, because an accept that finds nobody is \
                 work for nothing.";
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Every round, with the calls that were counted for all of them.
fn runs(measured: &Measured) -> Vec<Run> {
    let Point { task, connections } = measured.point;
    let (what, bytes) = match task {
        Task::Messages { bytes } => ("messages", bytes),
        Task::Connections => ("connections", 0),
    };
    let run = |(round, served): (usize, &Result<Served, String>)| {
        let labels = [
            ("server", measured.way.name().to_owned()),
            ("counted", what.to_owned()),
            ("bytes", bytes.to_string()),
            ("connections", connections.to_string()),
            ("round", round.to_string()),
        ];
        let mut run = served.as_ref().ok()?.run(&labels);
        if let Ok(calls) = measured.calls {
            run.figures.insert("system_calls_each".to_owned(), calls);
        }
        Some(run)
    };
    measured.rounds.iter().enumerate().filter_map(run).collect()
}
