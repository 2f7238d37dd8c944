//! What is made of the measurements of `bench stream`: a table of all kinds, p99 by kind, and a finding.

use super::{Kind, Measured, Results, Seen, Way};
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Finding, Plot, Row, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{cell, column, middle, ratio_cell, row, series};

type Figures = Result<Vec<f64>, String>;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "stream".to_owned(),
        title: "Responses that come piece by piece".to_owned(),
        seed: None,
        question:
            "When does a client have the first byte of a stream, and how long after it was sent each piece?"
                .to_owned(),
        tables: vec![table(results)],
        plots: vec![plot(results)],
        findings: vec![finding(results)],
        runs: results.measured.iter().flat_map(runs).collect(),
        ..Section::default()
    }
}

impl Results {
    fn figures(&self, way: Way, kind: Kind, figure: impl Fn(&Vec<Seen>) -> f64) -> Figures {
        let found = self.measured.iter().find(|measured| measured.way == way && measured.kind == kind);
        series(&found.ok_or_else(|| format!("{} was not measured", way.name()))?.rounds, figure)
    }
}

/// The value that so many of all are not above.
fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

fn first_byte_us(seen: &[Seen], percent: f64) -> f64 {
    percentile(seen.iter().map(|seen| seen.first_byte.as_secs_f64() * 1e6).collect(), percent)
}

fn delay_us(seen: &[Seen], percent: f64) -> f64 {
    let all = seen.iter().flat_map(|seen| &seen.delays);
    percentile(all.map(|delay| delay.as_secs_f64() * 1e6).collect(), percent)
}

fn table(results: &Results) -> Table {
    let of = |kind: Kind, way: Way| -> Row {
        let delays = |way, percent| results.figures(way, kind, move |seen| delay_us(seen, percent));
        let first = |percent| results.figures(way, kind, move |seen| first_byte_us(seen, percent));
        let cells = vec![
            cell(&first(50.0), 0),
            cell(&first(99.0), 0),
            cell(&delays(way, 50.0), 0),
            cell(&delays(way, 99.0), 0),
            ratio_cell(&delays(way, 99.0), &delays(Way::Nginx, 99.0), 2),
        ];
        row(format!("{}: {}", kind.name(), way.name()), cells)
    };
    Table {
        title: format!("A piece every 10 ms, one worker, {} streams at once", results.streams),
        columns: vec![
            column("first byte, p50", "us"),
            column("p99", "us"),
            column("delay of a piece, p50", "us"),
            column("p99", "us"),
            column("of nginx's p99", ""),
        ],
        rows: Kind::ALL.into_iter().flat_map(|kind| Way::ALL.map(|way| of(kind, way))).collect(),
    }
}

/// By the number of the kind in the table.
fn plot(results: &Results) -> Plot {
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let series = |way: Way| {
        let point = |(place, kind): (usize, Kind)| {
            let p99 = middle(&results.figures(way, kind, |seen| delay_us(seen, 99.0)))?;
            Some([(place + 1) as f64, p99])
        };
        let points = Kind::ALL.into_iter().enumerate().filter_map(point).collect();
        Series { name: way.name().to_owned(), points }
    };
    Plot {
        id: "stream-delay".to_owned(),
        title: "Delay of a piece, p99, by kind of response in the order of the table".to_owned(),
        x: axis("kind", "", AxisScale::Linear),
        y: axis("delay", "us", AxisScale::Logarithmic),
        series: Way::ALL.into_iter().map(series).filter(|series| !series.points.is_empty()).collect(),
    }
}

/// What users of event streams and tokens notice.
fn finding(results: &Results) -> Finding {
    let ratio = |way: Way, kind: Kind| {
        let delays = |way| results.figures(way, kind, |seen| delay_us(seen, 99.0)).ok();
        Summary::of_ratios(&delays(way)?, &delays(Way::Nginx)?).map(|summary| summary.median)
    };
    let ours = [Way::Ring, Way::Epoll];
    let found: Vec<(Kind, Way, f64)> = Kind::ALL
        .into_iter()
        .flat_map(|kind| ours.map(|way| (kind, way)))
        .filter_map(|(kind, way)| Some((kind, way, ratio(way, kind)?)))
        .collect();
    let verdict = match found.iter().filter(|(_, _, ratio)| *ratio <= 1.0).count() {
        _ if found.is_empty() => Verdict::Open,
        0 => Verdict::Fails,
        all if all == found.len() => Verdict::Holds,
        _ => Verdict::Partly,
    };
    let words: Vec<String> = found
        .iter()
        .map(|(kind, way, ratio)| format!("{}, {}: {ratio:.2}", kind.name(), way.name()))
        .collect();
    let sentence = match words.is_empty() {
        true => "nginx was not measured.".to_owned(),
        false => format!("Of nginx's: {}.", words.join("; ")),
    };
    let claim = "The p99 of the delay of a piece is at most nginx's, whatever the kind of response.";
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Every single measurement; one that failed has its reason in place of figures.
fn runs(measured: &Measured) -> Vec<Run> {
    let run = |(round, seen): (usize, &Result<Vec<Seen>, String>)| {
        let mut labels = vec![
            ("server".to_owned(), measured.way.name().to_owned()),
            ("kind".to_owned(), measured.kind.name().to_owned()),
            ("round".to_owned(), round.to_string()),
        ];
        let figures = match seen {
            Ok(seen) => vec![
                ("pieces", seen.iter().map(|seen| seen.delays.len()).sum::<usize>() as f64),
                ("first_byte_p50_us", first_byte_us(seen, 50.0)),
                ("first_byte_p99_us", first_byte_us(seen, 99.0)),
                ("delay_p50_us", delay_us(seen, 50.0)),
                ("delay_p99_us", delay_us(seen, 99.0)),
                ("delay_max_us", delay_us(seen, 100.0)),
            ],
            Err(reason) => {
                labels.push(("nothing".to_owned(), reason.clone()));
                Vec::new()
            }
        };
        Run {
            labels: labels.into_iter().collect(),
            figures: figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Run::default()
        }
    };
    measured.rounds.iter().enumerate().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 50.0), 100.0);
        assert_eq!(percentile(values.clone(), 99.0), 198.0);
        assert_eq!(percentile(values, 100.0), 200.0);
        assert!(percentile(Vec::new(), 50.0).is_nan());
    }
}
