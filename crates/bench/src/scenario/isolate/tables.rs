//! What is made of the measurements of `bench isolate`.
//!
//! A table for each thing that was asked for, with each percentile alone, beside the stuck clients, and the ratio of
//! both, round by round. No write-up has one like it: it is what an operator asks who has read them all. The bar is a
//! 99th percentile that is at most doubled, which a user does not notice; a server that answers nobody fails, however
//! fast it was before.

use super::{Results, Round, Way, What};
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{cell, column, ratio_cell, row};
use crate::scenario::served::Served;

/// The 99th percentile beside stuck clients may be so many times what it is without them.
const RATIO_WANTED: f64 = 2.0;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "isolate".to_owned(),
        title: "Requests that need no disk or another one, beside others that wait for a slow one".to_owned(),
        seed: None,
        question: format!(
            "While {} clients wait for a slow disk ({}): how long do others wait who need none, or another one?",
            results.stuck, results.disk
        ),
        tables: What::ALL.into_iter().enumerate().map(|(index, what)| table(results, index, what)).collect(),
        plots: vec![plot(results)],
        findings: results.ways.iter().map(|(way, rounds)| finding(results, *way, rounds)).collect(),
        runs: results.ways.iter().flat_map(|(way, rounds)| runs(*way, rounds)).collect(),
        ..Section::default()
    }
}

/// What the rounds had, or the first reason why one had nothing.
type Figures = Result<Vec<f64>, String>;

/// Places in [`Round::pairs`].
const ALONE: usize = 0;
/// The place of the figures beside requests that are stuck; those without are at 0.
const BESIDE: usize = 1;

/// One figure of each round: of which request, and when.
fn figures(rounds: &[Round], what: usize, when: usize, figure: impl Fn(&Served) -> f64) -> Figures {
    rounds.iter().map(|round| round.pairs[what][when].as_ref().map(&figure).map_err(Clone::clone)).collect()
}

/// In milliseconds.
fn percentile(rounds: &[Round], what: usize, when: usize, percentile: f64) -> Figures {
    figures(rounds, what, when, |served| served.outcome.latency_us(percentile) / 1e3)
}

/// A row for each server, those without one included, with the reason in each cell.
fn table(results: &Results, index: usize, what: What) -> Table {
    /// What stands in the table.
    const PERCENTILES: [(f64, &str); 3] = [(50.0, "p50"), (99.0, "p99"), (99.9, "p99.9")];
    let mut columns = Vec::new();
    for (_, name) in PERCENTILES {
        columns.extend([
            column(&format!("{name} alone"), "ms"),
            column(&format!("{name} beside"), "ms"),
            column(&format!("{name} beside / alone"), ""),
        ]);
    }
    columns.extend([
        column("requests alone", "1/s"),
        column("requests beside", "1/s"),
        column("stuck that got an answer", ""),
    ]);
    let measured = results.ways.iter().map(|(way, rounds)| {
        let mut cells = Vec::new();
        for (percent, _) in PERCENTILES {
            let (alone, beside) =
                (percentile(rounds, index, ALONE, percent), percentile(rounds, index, BESIDE, percent));
            cells.extend([cell(&alone, 3), cell(&beside, 3), ratio_cell(&beside, &alone, 2)]);
        }
        for when in [ALONE, BESIDE] {
            cells.push(cell(&figures(rounds, index, when, |served| served.outcome.answers_per_second()), 0));
        }
        let answered: Vec<f64> = rounds.iter().map(|round| round.answered as f64).collect();
        cells.push(cell(&Ok(answered), 0));
        row(way.name(), cells)
    });
    let width = columns.len();
    let missing = results
        .missing
        .iter()
        .map(|(way, reason)| row(way.name(), vec![Cell::Missing(reason.clone()); width]));
    Table {
        title: format!("{}: latency alone, and beside {} clients of a slow disk", what.name(), results.stuck),
        rows: measured.chain(missing).collect(),
        columns,
    }
}

/// The curves of the first round, of what needs no disk at all.
fn plot(results: &Results) -> Plot {
    /// The points of a curve.
    const SHOWN: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];
    let mut series = Vec::new();
    for (way, rounds) in &results.ways {
        for (when, words) in [(ALONE, "alone"), (BESIDE, "beside")] {
            if let Some(Ok(served)) = rounds.first().map(|round| &round.pairs[0][when]) {
                let points = SHOWN.map(|percent| [percent, served.outcome.latency_us(percent) / 1e3]);
                series.push(Series { name: format!("{}, {words}", way.name()), points: points.to_vec() });
            }
        }
    }
    Plot {
        id: "isolate-percentiles".to_owned(),
        title: "Latency of return 200, alone and beside stuck clients".to_owned(),
        x: Axis { name: "percentile".to_owned(), unit: "%".to_owned(), scale: AxisScale::Percentile },
        y: Axis { name: "latency".to_owned(), unit: "ms".to_owned(), scale: AxisScale::Logarithmic },
        series,
    }
}

/// One for each server: whether its users notice.
fn finding(results: &Results, way: Way, rounds: &[Round]) -> Finding {
    let claim = format!(
        "{}: clients of a slow disk are not felt by others (99th percentile at most doubled).",
        way.name()
    );
    let mut worst: f64 = 0.0;
    let mut words = Vec::new();
    // Set when one was not answered at all.
    let mut silent = None;
    for (index, what) in What::ALL.into_iter().enumerate() {
        let pair = (percentile(rounds, index, ALONE, 99.0), percentile(rounds, index, BESIDE, 99.0));
        match pair {
            (Ok(alone), Ok(beside)) => {
                let ratio =
                    Summary::of_ratios(&beside, &alone).map_or(f64::INFINITY, |summary| summary.median);
                let middle = |figures: &[f64]| Summary::of(figures).map_or(0.0, |summary| summary.median);
                worst = worst.max(ratio);
                words.push(format!(
                    "{} {:.2} ms alone and {:.2} ms beside them ({ratio:.2})",
                    what.name(),
                    middle(&alone),
                    middle(&beside)
                ));
            }
            (Err(reason), _) | (_, Err(reason)) => {
                silent = Some(());
                words.push(format!("{}: {reason}", what.name()));
            }
        }
    }
    // Twice the bar is noticed by some, more by all.
    let verdict = match silent {
        Some(()) => Verdict::Fails,
        None if worst <= RATIO_WANTED => Verdict::Holds,
        None if worst <= 2.0 * RATIO_WANTED => Verdict::Partly,
        None => Verdict::Fails,
    };
    let sentence = format!("99th percentile with {} stuck clients: {}.", results.stuck, words.join("; "));
    Finding { claim, verdict, sentence }
}

/// Every measurement; one without an answer is there too, and says so.
fn runs(way: Way, rounds: &[Round]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        for (what, pair) in What::ALL.into_iter().zip(&round.pairs) {
            for (when, served) in ["alone", "beside"].into_iter().zip(pair) {
                let labels = [
                    ("server", way.name().to_owned()),
                    ("asked for", what.name().to_owned()),
                    ("when", when.to_owned()),
                    ("round", number.to_string()),
                ];
                match served {
                    Ok(served) => runs.push(served.run(&labels)),
                    Err(reason) => {
                        let mut labels: std::collections::BTreeMap<_, _> =
                            labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                        labels.insert("nothing".to_owned(), reason.clone());
                        runs.push(Run { labels, ..Run::default() });
                    }
                }
            }
        }
    }
    runs
}
