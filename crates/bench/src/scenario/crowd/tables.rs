//! What is made of the measurements of `bench crowd`: what a request costs by how many are open, what is kept for each,
//! and how long answers take at half of the load.
//!
//! No write-up has such tables. They answer what an operator asks who has ten thousand clients and not a hundred: the
//! growth from few to many is the figure of each server by itself, and needs no other to be judged.

use super::{Half, Results, Round, Way};
use crate::method::stats::Summary;
use crate::report::model::{
    Axis, AxisScale, Cell, Column, Finding, Plot, Row, Run, Section, Series, Table, Verdict,
};
use crate::scenario::figures::{cell, column, middle, ratio_cell, row};
use crate::scenario::served::Served;

/// How often a request of the largest crowd may cost what one of the smallest does.
const GROWTH_WANTED: f64 = 1.25;

/// Figures of the rounds, or why there are none.
type Figures = Result<Vec<f64>, String>;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "crowd".to_owned(),
        title: "Many connections, most of them idle; and half of the load".to_owned(),
        seed: None,
        question: format!(
            "What does a request cost where {} connections are open and {} of them ask, what is kept for each of the \
             others, and how long do answers take where the server has time for them?",
            results.connections, results.active
        ),
        tables: vec![cost(results), memory(results), half(results)],
        plots: vec![cost_plot(results), percentiles(&results.half)],
        findings: vec![growth(results), slower(results)],
        runs: runs(results),
        ..Section::default()
    }
}

/// Processor time of a request with so many connections open.
fn cpu(rounds: &[Round], connections: u32) -> Figures {
    let figure = |round: &Round| {
        let load = round.loads.iter().find(|(open, _)| *open == connections);
        let served = load.map(|(_, served)| served).ok_or("not part of this run")?;
        served.server_us_per_answer().ok_or_else(|| "a process of the server ended".to_owned())
    };
    rounds.iter().map(figure).collect()
}

/// The numbers of open connections, from few to all.
fn sizes(results: &Results) -> Vec<u32> {
    let first = results.crowds.first().and_then(|(_, rounds)| rounds.first());
    first.map_or_else(Vec::new, |round| round.loads.iter().map(|(open, _)| *open).collect())
}

/// Rows of servers that are not there have their reason in each cell.
fn missing(results: &Results, columns: &[Column]) -> Vec<Row> {
    let of =
        |(way, reason): &(Way, String)| row(way.name(), vec![Cell::Missing(reason.clone()); columns.len()]);
    results.missing.iter().map(of).collect()
}

fn table(results: &Results, title: String, columns: Vec<Column>, rows: Vec<Row>) -> Table {
    let rows = [rows, missing(results, &columns)].concat();
    Table { title, columns, rows }
}

/// A column for each crowd, and the growth from the smallest to the largest, formed round by round: both are of one
/// server that was started once.
fn cost(results: &Results) -> Table {
    let sizes = sizes(results);
    let of = |(way, rounds): &(Way, Vec<Round>)| {
        let figures: Vec<Figures> = sizes.iter().map(|&open| cpu(rounds, open)).collect();
        let mut cells: Vec<Cell> = figures.iter().map(|figures| cell(figures, 2)).collect();
        if let (Some(few), Some(all)) = (figures.first(), figures.last()) {
            cells.push(ratio_cell(all, few, 2));
        }
        row(way.name(), cells)
    };
    let mut columns: Vec<Column> =
        sizes.iter().map(|open| column(&format!("{open} open"), "us/request")).collect();
    if let (Some(few), Some(all)) = (sizes.first(), sizes.last()) {
        columns.push(column(&format!("{all} / {few}"), ""));
    }
    let title = format!(
        "return 200 over kept connections, at most {} of them active: processor time of the server",
        results.active
    );
    table(results, title, columns, results.crowds.iter().map(of).collect())
}

/// What is there from the start stands beside what each connection adds: a server may have taken memory for all that it
/// could get, which a small figure per connection would hide.
fn memory(results: &Results) -> Table {
    let of = |(way, rounds): &(Way, Vec<Round>)| {
        let start = rounds.iter().map(|round| round.memory_bytes as f64 / 1024.0).collect();
        let each = rounds.iter().map(|round| round.bytes_per_idle).collect();
        row(way.name(), vec![cell(&Ok(start), 0), cell(&Ok(each), 0)])
    };
    let columns = vec![column("without connections", "KiB"), column("more for each idle one", "bytes")];
    let title = format!(
        "Memory of the server in user space, with {} idle connections that have had one answer each",
        results.connections - results.active
    );
    table(results, title, columns, results.crowds.iter().map(of).collect())
}

/// The latency that so many percent stay below, in milliseconds.
fn latency(rounds: &[Served], percentile: f64) -> Figures {
    Ok(rounds.iter().map(|served| served.outcome.latency_us(percentile) / 1e3).collect())
}

/// Everybody is compared with it there, since the rate is half of its own.
fn of_nginx(half: &Half) -> Option<&[Served]> {
    half.by_way.iter().find(|(way, _)| *way == Way::Nginx).map(|(_, rounds)| rounds.as_slice())
}

/// The rate stands first, so that a server that does not keep it is seen at once: its latencies are those of a queue.
fn half(results: &Results) -> Table {
    let nginx = of_nginx(&results.half);
    let of = |(way, rounds): &(Way, Vec<Served>)| {
        let mut cells =
            vec![cell(&Ok(rounds.iter().map(|served| served.outcome.answers_per_second()).collect()), 0)];
        for percentile in [50.0, 99.0, 99.9] {
            let ours = latency(rounds, percentile);
            let theirs = nginx
                .map_or_else(|| Err("nginx was not measured".to_owned()), |nginx| latency(nginx, percentile));
            cells.extend([cell(&ours, 3), ratio_cell(&ours, &theirs, 2)]);
        }
        let spent = |served: &Served| {
            served.server_us_per_answer().ok_or_else(|| "a process of the server ended".to_owned())
        };
        cells.push(cell(&rounds.iter().map(spent).collect(), 2));
        row(way.name(), cells)
    };
    let columns = vec![
        column("requests", "1/s"),
        column("p50", "ms"),
        column("of nginx's", ""),
        column("p99", "ms"),
        column("of nginx's", ""),
        column("p99.9", "ms"),
        column("of nginx's", ""),
        column("server CPU", "us/request"),
    ];
    let title = format!(
        "return 200, {:.0} requests a second whatever the server does: half of what {} answers",
        results.half.rate, results.half.of
    );
    table(results, title, columns, results.half.by_way.iter().map(of).collect())
}

/// A line that rises shows a server that looks at all its connections to find those that have something to say.
fn cost_plot(results: &Results) -> Plot {
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let series = |(way, rounds): &(Way, Vec<Round>)| {
        let point = |&open: &u32| Some([f64::from(open), middle(&cpu(rounds, open))?]);
        Series { name: way.name().to_owned(), points: sizes(results).iter().filter_map(point).collect() }
    };
    Plot {
        id: "crowd-cpu".to_owned(),
        title: "Server's processor time by open connections".to_owned(),
        x: axis("connections", "", AxisScale::Logarithmic),
        y: axis("CPU", "us/request", AxisScale::Linear),
        series: results.crowds.iter().map(series).collect(),
    }
}

/// The latencies of the first round at half load.
fn percentiles(half: &Half) -> Plot {
    const SHOWN: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];
    let series = |(way, rounds): &(Way, Vec<Served>)| {
        let served = rounds.first()?;
        let points = SHOWN.map(|percentile| [percentile, served.outcome.latency_us(percentile) / 1e3]);
        Some(Series { name: way.name().to_owned(), points: points.to_vec() })
    };
    Plot {
        id: "crowd-half".to_owned(),
        title: "Latency by percentile at half of the load".to_owned(),
        x: Axis { name: "percentile".to_owned(), unit: "%".to_owned(), scale: AxisScale::Percentile },
        y: Axis { name: "latency".to_owned(), unit: "ms".to_owned(), scale: AxisScale::Logarithmic },
        series: half.by_way.iter().filter_map(series).collect(),
    }
}

/// No write-up has these claims: they are what an operator wants to rely on.
fn growth(results: &Results) -> Finding {
    let claim = format!(
        "A request costs at most {GROWTH_WANTED} times as much where a crowd of connections is open."
    );
    let sizes = sizes(results);
    let of = |(way, rounds): &(Way, Vec<Round>)| {
        let (few, all) = (sizes.first()?, sizes.last()?);
        let ratio = Summary::of_ratios(&cpu(rounds, *all).ok()?, &cpu(rounds, *few).ok()?)?.median;
        Some((way.name(), ratio))
    };
    let found: Vec<(&str, f64)> = results.crowds.iter().filter_map(of).collect();
    let words: Vec<String> = found.iter().map(|(name, ratio)| format!("{name} {ratio:.2}")).collect();
    let ours = found.iter().filter(|(name, _)| *name != Way::Nginx.name());
    let worst = ours.map(|(_, ratio)| *ratio).reduce(f64::max);
    let verdict = match worst {
        Some(ratio) if ratio <= GROWTH_WANTED => Verdict::Holds,
        Some(_) => Verdict::Fails,
        None => Verdict::Open,
    };
    Finding { claim, verdict, sentence: format!("From few to all: {}.", words.join(", ")) }
}

/// Judged with the spread, because at half load a percentile depends on what else the machine does more than on anything
/// that a server does.
fn slower(results: &Results) -> Finding {
    let claim = "At half of the load answers take no longer than nginx's, by more than repetitions differ.";
    let ring = results.half.by_way.iter().find(|(way, _)| *way == Way::Ring);
    let (Some((_, ours)), Some(theirs)) = (ring, of_nginx(&results.half)) else {
        let sentence = "nginx was not measured.".to_owned();
        return Finding { claim: claim.to_owned(), verdict: Verdict::Open, sentence };
    };
    let ratios = [50.0, 99.0, 99.9].map(|percentile| {
        let both = (latency(ours, percentile), latency(theirs, percentile));
        match both {
            (Ok(ours), Ok(theirs)) => Summary::of_ratios(&ours, &theirs),
            _ => None,
        }
    });
    let verdict = match ratios.iter().flatten().filter(|ratio| ratio.low <= 1.0).count() {
        3 => Verdict::Holds,
        0 => Verdict::Fails,
        _ => Verdict::Partly,
    };
    let words: Vec<String> = ["p50", "p99", "p99.9"]
        .iter()
        .zip(&ratios)
        .map(|(name, ratio)| match ratio {
            Some(ratio) => format!("{name} {:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high),
            None => format!("{name} not measured"),
        })
        .collect();
    let sentence = format!("On the ring, of nginx's: {}.", words.join(", "));
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Every single measurement. The two parts have different labels, so that none is taken for one of the other part.
fn runs(results: &Results) -> Vec<Run> {
    let mut runs = Vec::new();
    for (way, rounds) in &results.crowds {
        for (number, round) in rounds.iter().enumerate() {
            for (open, served) in &round.loads {
                let mut run = served.run(&[
                    ("server", way.name().to_owned()),
                    ("connections", open.to_string()),
                    ("round", number.to_string()),
                ]);
                if *open == results.connections {
                    run.figures.insert("bytes_per_idle_connection".to_owned(), round.bytes_per_idle);
                    run.figures.insert("memory_bytes".to_owned(), round.memory_bytes as f64);
                }
                runs.push(run);
            }
        }
    }
    for (way, rounds) in &results.half.by_way {
        for (number, served) in rounds.iter().enumerate() {
            let mut run = served.run(&[
                ("server", way.name().to_owned()),
                ("load", "half".to_owned()),
                ("round", number.to_string()),
            ]);
            run.figures.insert("wanted_requests_per_second".to_owned(), results.half.rate);
            runs.push(run);
        }
    }
    runs
}
