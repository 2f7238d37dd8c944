//! What is made of the measurements of `bench fill`: a table for each size, throughput by size, and two findings.
//!
//! A rate alone can be bought by storing less, so the share of answers that were stored stands in the same row; and by
//! leaving what is stored in memory, so bytes that reached the disk stand there too.

use super::{Filled, MEMORY_BYTES, Measured, Results, SIZES, Size, Way};
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{cell, column, middle, ratio_cell, row, series};

/// Bytes that reach the disk for each byte that is stored, at the most.
const WRITTEN_WANTED: f64 = 1.2;

type Figures = Result<Vec<f64>, String>;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "fill".to_owned(),
        title: "A cache that is being filled".to_owned(),
        seed: None,
        question:
            "How fast does a proxy answer what it has to fetch and store, and what does it write for that?"
                .to_owned(),
        tables: SIZES.into_iter().map(|size| table(results, size)).collect(),
        plots: vec![plot(results)],
        findings: vec![speed(results), written(results)],
        runs: results.measured.iter().flat_map(runs).collect(),
        ..Section::default()
    }
}

impl Results {
    fn find(&self, way: Way, size: Size) -> Result<&Measured, String> {
        let found = self.measured.iter().find(|measured| measured.way == way && measured.size == size);
        found.ok_or_else(|| format!("{} was not measured", way.name()))
    }

    fn figures(&self, way: Way, size: Size, figure: impl Fn(&Filled) -> f64) -> Figures {
        series(&self.find(way, size)?.rounds, figure)
    }
}

/// Of all answers, stored or not: what clients have of it.
fn rate(filled: &Filled) -> f64 {
    filled.served.outcome.answers_per_second()
}

/// What a client notices of a server that waits for its disk.
fn p99_ms(filled: &Filled) -> f64 {
    filled.served.outcome.latency_us(99.0) / 1e3
}

/// Of entries, their heads included: what a cache keeps.
fn written_per_stored(filled: &Filled) -> f64 {
    filled.written_bytes as f64 / filled.stored.bytes as f64
}

/// A row for each way, those that are not there included: each cell has the reason then. Ratios are to nginx as it comes,
/// whose other mode is a row of its own.
fn table(results: &Results, size: Size) -> Table {
    let of = |way: Way| {
        let figures = |figure: &dyn Fn(&Filled) -> f64| results.figures(way, size, figure);
        let nginx = |figure: &dyn Fn(&Filled) -> f64| results.figures(Way::Nginx, size, figure);
        let latency =
            |percentile| figures(&move |filled: &Filled| filled.served.outcome.latency_us(percentile) / 1e3);
        let cpu = figures(&|filled| filled.served.server_us_per_answer().unwrap_or(f64::NAN));
        let stored = figures(&|filled| {
            filled.stored.count as f64 * 100.0 / filled.served.outcome.tally.answers.max(1) as f64
        });
        let cells: Vec<Cell> = vec![
            cell(&figures(&rate), 0),
            ratio_cell(&figures(&rate), &nginx(&rate), 2),
            cell(&latency(50.0), 2),
            cell(&latency(99.0), 2),
            ratio_cell(&latency(99.0), &nginx(&p99_ms), 2),
            cell(&cpu, 1),
            cell(&stored, 1),
            cell(&figures(&written_per_stored), 2),
        ];
        row(way.name(), cells)
    };
    let memory = if results.is_limited {
        format!("{} MiB of memory", MEMORY_BYTES >> 20)
    } else {
        "no memory limit".to_owned()
    };
    Table {
        title: format!(
            "Answers of {} that are fetched and stored, one worker, {} connections, {memory}",
            size.name, results.connections
        ),
        columns: vec![
            column("answers", "1/s"),
            column("of nginx's", ""),
            column("p50", "ms"),
            column("p99", "ms"),
            column("of nginx's", ""),
            column("server CPU", "us/request"),
            column("stored", "%"),
            column("written / stored", "bytes"),
        ],
        rows: Way::ALL.into_iter().map(of).collect(),
    }
}

/// By bytes: the rates of the sizes are too far apart for one axis, what they move is not.
fn plot(results: &Results) -> Plot {
    let axis = |name: &str, unit: &str| Axis {
        name: name.to_owned(),
        unit: unit.to_owned(),
        scale: AxisScale::Logarithmic,
    };
    let series = |way: Way| {
        let point = |size: Size| {
            let rate = middle(&results.figures(way, size, rate))?;
            Some([size.bytes as f64 / 1024.0, rate * size.bytes as f64 / 1e6])
        };
        Series { name: way.name().to_owned(), points: SIZES.into_iter().filter_map(point).collect() }
    };
    Plot {
        id: "fill-throughput".to_owned(),
        title: "Bytes a second that are fetched, answered and stored, by size".to_owned(),
        x: axis("size", "KiB"),
        y: axis("throughput", "MB/s"),
        series: Way::ALL.into_iter().map(series).filter(|series| !series.points.is_empty()).collect(),
    }
}

/// The median of the ratios of the ring to nginx.
fn ratio(results: &Results, size: Size, figure: impl Fn(&Filled) -> f64) -> Option<f64> {
    let ours = results.figures(Way::Ring, size, &figure).ok()?;
    let theirs = results.figures(Way::Nginx, size, &figure).ok()?;
    Summary::of_ratios(&ours, &theirs).map(|summary| summary.median)
}

/// No write-up has these claims: they are what a cache should not be worse at than the one that everybody has.
fn speed(results: &Results) -> Finding {
    let claim = "A cache is filled on the ring at nginx's rate or more, with at most half of its p99.";
    let found: Vec<(Size, f64, f64)> = SIZES
        .into_iter()
        .filter_map(|size| Some((size, ratio(results, size, rate)?, ratio(results, size, p99_ms)?)))
        .collect();
    let words: Vec<String> = found
        .iter()
        .map(|(size, rate, p99)| format!("{}: {rate:.2} of the rate, {p99:.2} of the p99", size.name))
        .collect();
    let holding = found.iter().filter(|(_, rate, p99)| *rate >= 1.0 && *p99 <= 0.5).count();
    let verdict = match holding {
        _ if found.is_empty() => Verdict::Open,
        0 => Verdict::Fails,
        all if all == found.len() => Verdict::Holds,
        _ => Verdict::Partly,
    };
    let sentence = if words.is_empty() {
        "nginx was not measured.".to_owned()
    } else {
        format!("{}.", words.join("; "))
    };
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Small entries cannot hold it on a file system of 4 KiB blocks, where head and body of one take two: the sentence has
/// the figure of each size, and nginx's, which writes the same blocks.
fn written(results: &Results) -> Finding {
    let claim =
        format!("At most {WRITTEN_WANTED} bytes are written for each that is stored, file system included.");
    let figure = |way: Way, size: Size| {
        let figures = results.figures(way, size, written_per_stored).ok()?;
        Summary::of(&figures).map(|summary| summary.median)
    };
    let found: Vec<(Size, f64)> =
        SIZES.into_iter().filter_map(|size| Some((size, figure(Way::Ring, size)?))).collect();
    let word = |(size, written): &(Size, f64)| match figure(Way::Nginx, *size) {
        Some(nginx) => format!("{} {written:.2} (nginx {nginx:.2})", size.name),
        None => format!("{} {written:.2}", size.name),
    };
    let words: Vec<String> = found.iter().map(word).collect();
    let verdict = match found.iter().filter(|(_, written)| *written <= WRITTEN_WANTED).count() {
        _ if found.is_empty() => Verdict::Open,
        0 => Verdict::Fails,
        all if all == found.len() => Verdict::Holds,
        _ => Verdict::Partly,
    };
    Finding { claim, verdict, sentence: format!("On the ring: {}.", words.join(", ")) }
}

/// Every single measurement; one that failed has its reason in place of figures.
fn runs(measured: &Measured) -> Vec<Run> {
    let run = |(round, filled): (usize, &Result<Filled, String>)| {
        let labels = [
            ("server", measured.way.name().to_owned()),
            ("size", measured.size.name.to_owned()),
            ("round", round.to_string()),
        ];
        match filled {
            Ok(filled) => {
                let mut run = filled.served.run(&labels);
                run.figures.insert("stored_entries".to_owned(), filled.stored.count as f64);
                run.figures.insert("stored_bytes".to_owned(), filled.stored.bytes as f64);
                run.figures.insert("written_bytes".to_owned(), filled.written_bytes as f64);
                let each = written_per_stored(filled);
                // Of nothing that was stored there is no share, and no number that JSON could hold.
                if each.is_finite() {
                    run.figures.insert("written_bytes_per_stored_byte".to_owned(), each);
                }
                run
            }
            Err(reason) => {
                let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
                let labels = labels.chain([("nothing".to_owned(), reason.clone())]).collect();
                Run { labels, ..Run::default() }
            }
        }
    };
    measured.rounds.iter().enumerate().map(run).collect()
}
