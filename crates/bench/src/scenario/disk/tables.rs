//! What is told of the jobs of `bench disk`, as fio's users know it: tables, plots, and what became of the write-up's
//! claims.

use super::job::{EngineKind, Outcome, Side};
use super::plan::{Group, Item, Tool};
use crate::method::stats::Summary;
use crate::report::model::{
    Axis, AxisScale, Cell, Column, Finding, Plot, Row, Run, Section, Series, Table, Verdict,
};
use crate::scenario::figures::{Rounds, cell, column, middle, ratio_cell, row, series};

/// A job and its rounds.
type Measured = (Item, Rounds<Outcome>);

/// How far our figures and fio's may lie apart.
const FIO_TOLERANCE: f64 = 0.05;
/// How much two ways may differ that are said to do the same: the write-up's own two differ by 2 %.
const SAME: f64 = 0.10;

/// The part of the report.
pub(super) fn section(measured: &[Measured]) -> Section {
    // Tables of groups that were not measured are left out, not shown empty.
    let tables = [
        write_up(measured),
        own(measured),
        engines(measured),
        depths(measured),
        blocks(measured),
        caching(measured),
        checks(measured),
    ];
    Section {
        scenario: "disk".to_owned(),
        title: "Reads and writes of a disk: one process with many in flight, or many with one".to_owned(),
        seed: Some("002".to_owned()),
        question: "How much does the device do by each engine, at which depth, and at what cost?".to_owned(),
        tables: tables.into_iter().flatten().filter(|table| !table.rows.is_empty()).collect(),
        plots: plots(measured),
        findings: findings(measured),
        runs: measured.iter().flat_map(|(item, rounds)| runs(item, rounds)).collect(),
        ..Section::default()
    }
}

/// The jobs of one table that we carried out.
fn of(measured: &[Measured], group: Group) -> impl Iterator<Item = &Measured> {
    measured.iter().filter(move |(item, _)| item.group == group && item.tool == Tool::Ours)
}

/// The write-up's form, which is fio's of the time: both directions of each job, then what it cost.
fn write_up(measured: &[Measured]) -> Option<Table> {
    let line = |(item, rounds): &Measured| {
        let mut cells = Vec::new();
        let reads: fn(&Outcome) -> &Side = |outcome| &outcome.read;
        let writes: fn(&Outcome) -> &Side = |outcome| &outcome.write;
        for side in [reads, writes] {
            // Rates are formed by the job's own seconds, which are some milliseconds more than was asked for.
            let figure = |of: fn(&Side, f64) -> f64, decimals| {
                cell(&series(rounds, |outcome| of(side(outcome), outcome.seconds)), decimals)
            };
            cells.push(figure(|side, seconds| side.bytes as f64 / seconds / 1024.0, 0));
            cells.push(figure(|side, seconds| side.operations as f64 / seconds, 0));
            cells.push(submission(item, &series(rounds, |outcome| side(outcome).submission.mean_us())));
            cells.push(figure(|side, _| side.completion.mean_us(), 1));
            cells.push(figure(|side, _| side.total.mean_us(), 1));
            cells.push(figure(|side, _| side.total.deviation_us(), 1));
        }
        cells.extend(cost(rounds));
        row(item.name.clone(), cells)
    };
    let mut columns = Vec::new();
    for side in ["read", "write"] {
        columns.push(column(&format!("{side}: bw"), "KB/s"));
        columns.push(column(&format!("{side}: iops"), "1/s"));
        columns.push(column(&format!("{side}: slat"), "µs"));
        columns.push(column(&format!("{side}: clat"), "µs"));
        columns.push(column(&format!("{side}: lat"), "µs"));
        columns.push(column(&format!("{side}: lat stdev"), "µs"));
    }
    columns.extend(cost_columns());
    let title =
        "Mixed random reads and writes of 128k past the page cache: one process, depth 16, and 16 processes";
    Some(Table { title: title.to_owned(), columns, rows: of(measured, Group::WriteUp).map(line).collect() })
}

/// Blocking calls have no submission of their own.
fn submission(item: &Item, figures: &Result<Vec<f64>, String>) -> Cell {
    match item.job.engine {
        EngineKind::Sync => Cell::Text("–".to_owned()),
        _ => cell(figures, 1),
    }
}

/// Columns that every table of whole jobs ends with.
fn cost_columns() -> Vec<Column> {
    vec![
        column("usr", "%"),
        column("sys", "%"),
        column("context switches per operation", ""),
        column("system calls per operation", ""),
        column("IO depths", ""),
    ]
}

/// What a job costs, of one processor, and how deep its queues were.
fn cost(rounds: &Rounds<Outcome>) -> Vec<Cell> {
    // Per operation, since a job that does more costs more.
    let operations = |outcome: &Outcome| (outcome.read.operations + outcome.write.operations) as f64;
    let calls: Result<Vec<f64>, String> = rounds
        .iter()
        .map(|round| {
            let outcome = round.as_ref().map_err(String::clone)?;
            // Pool threads call the kernel out of our sight; a count of some of the calls would be wrong.
            outcome.calls_per_operation().ok_or("made by pool threads, which do not count them".to_owned())
        })
        .collect();
    vec![
        cell(&series(rounds, |outcome| outcome.user_seconds / outcome.seconds * 100.0), 1),
        cell(&series(rounds, |outcome| outcome.system_seconds / outcome.seconds * 100.0), 1),
        cell(&series(rounds, |outcome| outcome.switches as f64 / operations(outcome)), 2),
        cell(&calls, 2),
        depth_cell(rounds),
    ]
}

/// fio's line of depths, without the empty ones.
fn depth_cell(rounds: &Rounds<Outcome>) -> Cell {
    let last = match rounds.last() {
        Some(Ok(outcome)) => outcome,
        Some(Err(reason)) => return Cell::Missing(reason.clone()),
        None => return Cell::Missing("not measured".to_owned()),
    };
    let all = last.depths.iter().sum::<u64>().max(1) as f64;
    let names = ["1", "2", "4", "8", "16", "32", "64", ">64"];
    // fio's own form, so that two reports can be laid side by side.
    let share = |(name, &count): (&&str, &u64)| format!("{name}={:.1}%", count as f64 / all * 100.0);
    let parts: Vec<String> =
        names.iter().zip(&last.depths).filter(|(_, count)| **count > 0).map(share).collect();
    Cell::Text(parts.join(", "))
}

/// Both directions together, as tables of many engines have them.
fn detail_columns() -> Vec<Column> {
    let mut columns = vec![
        column("bandwidth", "MB/s"),
        column("IOPS", "1/s"),
        column("slat", "µs"),
        column("clat", "µs"),
        column("lat", "µs"),
        column("lat 50 %", "µs"),
        column("lat 99 %", "µs"),
        column("lat 99.9 %", "µs"),
        column("lat max", "µs"),
    ];
    columns.extend(cost_columns());
    columns
}

/// A job in full.
fn detail_row((item, rounds): &Measured) -> Row {
    let figure = |of: &dyn Fn(&Side) -> f64| cell(&series(rounds, |outcome| of(&outcome.both())), 1);
    let mut cells = vec![
        cell(&series(rounds, |outcome| outcome.bytes_per_second() / 1e6), 1),
        cell(&series(rounds, Outcome::iops), 0),
        submission(item, &series(rounds, |outcome| outcome.both().submission.mean_us())),
        figure(&|side| side.completion.mean_us()),
        figure(&|side| side.total.mean_us()),
        figure(&|side| side.total.percentile_us(50.0)),
        figure(&|side| side.total.percentile_us(99.0)),
        figure(&|side| side.total.percentile_us(99.9)),
        figure(&|side| side.total.percentile_us(100.0)),
    ];
    cells.extend(cost(rounds));
    row(item.name.clone(), cells)
}

/// What the user described.
fn own(measured: &[Measured]) -> Option<Table> {
    let rows = of(measured, Group::Own).map(detail_row).collect();
    Some(Table { title: "The jobs described".to_owned(), columns: detail_columns(), rows })
}

/// All engines on one job.
fn engines(measured: &[Measured]) -> Option<Table> {
    let rows = of(measured, Group::Engines).map(detail_row).collect();
    let title = "Engines: random reads of 4k past the page cache, 16 in flight (sync: 16 threads)";
    Some(Table { title: title.to_owned(), columns: detail_columns(), rows })
}

/// A table with a row for each name and a column for each kind of job in the group, both in the order of the jobs.
fn crossed(
    measured: &[Measured],
    group: Group,
    title: &str,
    kind: impl Fn(&Item) -> String,
    unit: &str,
    figure: impl Fn(&Outcome) -> f64,
) -> Option<Table> {
    let (mut names, mut kinds): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (item, _) in of(measured, group) {
        // The first job of a row says where it stands.
        let add = |list: &mut Vec<String>, name: String| {
            if !list.contains(&name) {
                list.push(name);
            }
        };
        add(&mut names, item.name.clone());
        add(&mut kinds, kind(item));
    }
    let place = |name: &String, wanted: &String| {
        let mut found = of(measured, group).filter(|(item, _)| item.name == *name && kind(item) == *wanted);
        match found.next() {
            Some((_, rounds)) => cell(&series(rounds, &figure), 1),
            None => Cell::Missing("not measured".to_owned()),
        }
    };
    let rows =
        names.iter().map(|name| row(name.clone(), kinds.iter().map(|kind| place(name, kind)).collect()));
    let rows = rows.collect();
    let columns = kinds.iter().map(|kind| column(kind, unit)).collect();
    Some(Table { title: title.to_owned(), columns, rows })
}

/// Operations a second by depth.
fn depths(measured: &[Measured]) -> Option<Table> {
    let title = "Depth: random reads of 4k past the page cache (sync: as many threads)";
    let kind = |item: &Item| item.job.engine.name().to_owned();
    crossed(measured, Group::Depths, title, kind, "1/s", Outcome::iops)
}

/// Bandwidth by block size.
fn blocks(measured: &[Measured]) -> Option<Table> {
    let title = "Block sizes and patterns: uring past the page cache, 16 in flight";
    let kind = |item: &Item| item.job.pattern.name().to_owned();
    crossed(measured, Group::Blocks, title, kind, "MB/s", |outcome| outcome.bytes_per_second() / 1e6)
}

/// Bandwidth with and without the page cache.
fn caching(measured: &[Measured]) -> Option<Table> {
    let title = "Past the page cache and through it: reads of 128k, 16 in flight (sync: 16 threads)";
    let kind = |item: &Item| {
        let way = if item.job.direct { "direct" } else { "buffered" };
        format!("{} {way}", item.job.pattern.name())
    };
    crossed(measured, Group::Caching, title, kind, "MB/s", |outcome| outcome.bytes_per_second() / 1e6)
}

/// Our figures and fio's of the same job, one after the other in each round.
fn pairs(measured: &[Measured]) -> impl Iterator<Item = (&Measured, &Measured)> {
    measured.windows(2).filter_map(|pair| match pair {
        [ours, theirs] if ours.0.tool == Tool::Ours && theirs.0.tool == Tool::Fio => Some((ours, theirs)),
        _ => None,
    })
}

/// Ratios formed round by round, each of two jobs that ran one after the other.
fn checks(measured: &[Measured]) -> Option<Table> {
    let line = |(ours, theirs): (&Measured, &Measured)| {
        let figures = [&ours.1, &theirs.1].map(|rounds| series(rounds, Outcome::iops));
        let cells = vec![cell(&figures[0], 0), cell(&figures[1], 0), ratio_cell(&figures[0], &figures[1], 3)];
        row(ours.0.name.clone(), cells)
    };
    Some(Table {
        title: "The same jobs by fio".to_owned(),
        columns: vec![column("ours", "1/s"), column("fio", "1/s"), column("ours / fio", "")],
        rows: pairs(measured).map(line).collect(),
    })
}

/// Rates by depth, and the distribution of latency.
fn plots(measured: &[Measured]) -> Vec<Plot> {
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let mut by_depth: Vec<Series> = Vec::new();
    for (item, rounds) in of(measured, Group::Depths) {
        let name = item.job.engine.name();
        let Some(rate) = middle(&series(rounds, Outcome::iops)) else { continue };
        let point = [f64::from(item.job.depth), rate];
        match by_depth.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => by_depth.push(Series { name: name.to_owned(), points: vec![point] }),
        }
    }
    let curve = |(item, rounds): &Measured| {
        // All rounds together: the tail of one alone is a handful of operations.
        let mut both = Side::default();
        rounds.iter().flatten().for_each(|outcome| both.add(&outcome.both()));
        let percents = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];
        let points = percents.map(|percent| [percent, both.total.percentile_us(percent)]).to_vec();
        (both.operations > 0).then(|| Series { name: item.name.clone(), points })
    };
    let latency: Vec<Series> = of(measured, Group::Engines).filter_map(curve).collect();
    let plots = [
        Plot {
            id: "disk-depth".to_owned(),
            title: "Random reads of 4k by depth".to_owned(),
            x: axis("operations in flight", "", AxisScale::Logarithmic),
            y: axis("reads", "1/s", AxisScale::Linear),
            series: by_depth,
        },
        Plot {
            id: "disk-latency".to_owned(),
            title: "Latency of random reads of 4k, 16 in flight".to_owned(),
            x: axis("percentile", "%", AxisScale::Percentile),
            y: axis("latency", "µs", AxisScale::Logarithmic),
            series: latency,
        },
    ];
    plots.into_iter().filter(|plot| !plot.series.is_empty()).collect()
}

/// What became of each claim.
fn findings(measured: &[Measured]) -> Vec<Finding> {
    // By name: a row is what a reader sees.
    let named = |name: &str| {
        let mut found = of(measured, Group::WriteUp).filter(|(item, _)| item.name == name);
        found.next().map_or(Err("not measured".to_owned()), |(_, rounds)| series(rounds, Outcome::iops))
    };
    let ratio = |ours: &str, theirs: &str| match (named(ours), named(theirs)) {
        (Ok(ours), Ok(theirs)) => Summary::of_ratios(&ours, &theirs),
        _ => None,
    };
    let (aio, sync) = ("libaio, one process, depth 16", "sync, 16 processes");
    let mut findings = Vec::new();
    // A run of described jobs says nothing of the write-up.
    if of(measured, Group::WriteUp).next().is_some() {
        findings.push(same(ratio(aio, sync)));
        findings.push(worth_sixteen(ratio(aio, sync)));
        findings.push(one_blocking(ratio("sync, one process", sync)));
        findings.push(ring(ratio("uring, one process, depth 16", aio), measured));
    }
    findings.extend(agreement(measured));
    findings
}

/// What became of one.
fn finding(claim: &str, verdict: Verdict, sentence: String) -> Finding {
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// Of one without figures.
fn open(claim: &str) -> Finding {
    finding(claim, Verdict::Open, "It could not be measured; the table says why.".to_owned())
}

/// The write-up's main result.
fn same(ratio: Option<Summary>) -> Finding {
    let claim = "One process with 16 in flight by libaio and 16 blocking processes move the same: the device is the limit.";
    let Some(ratio) = ratio else { return open(claim) };
    let verdict = if (ratio.median - 1.0).abs() <= SAME { Verdict::Holds } else { Verdict::Fails };
    let sentence = format!(
        "libaio does {:.2} ({:.2} to {:.2}) of what the sixteen do.",
        ratio.median, ratio.low, ratio.high
    );
    finding(claim, verdict, sentence)
}

/// The write-up's conclusion, which follows from the first where that holds.
fn worth_sixteen(ratio: Option<Summary>) -> Finding {
    let claim = "One asynchronous process does the work of 16 blocking ones.";
    let Some(ratio) = ratio else { return open(claim) };
    let worth = ratio.median * 16.0;
    let verdict = match worth {
        worth if worth >= 16.0 * (1.0 - SAME) => Verdict::Holds,
        worth if worth >= 8.0 => Verdict::Partly,
        _ => Verdict::Fails,
    };
    finding(claim, verdict, format!("It does the work of {worth:.1} of the sixteen."))
}

/// A comment below the write-up, whose author got the answer that his device was to blame.
fn one_blocking(ratio: Option<Summary>) -> Finding {
    let claim =
        "On a slow device one blocking process moves as much as sixteen (a comment below the write-up).";
    let Some(ratio) = ratio else { return open(claim) };
    let verdict = if ratio.median >= 1.0 - SAME { Verdict::Holds } else { Verdict::Fails };
    finding(claim, verdict, format!("One does {:.2} of what sixteen do.", ratio.median))
}

/// What has come since: the ring beside libaio.
fn ring(ratio: Option<Summary>, measured: &[Measured]) -> Finding {
    let claim =
        "The ring moves as much as libaio with fewer system calls (not in the write-up, which is older).";
    let calls = |engine: EngineKind| {
        let mut found = of(measured, Group::WriteUp).filter(move |(item, _)| item.job.engine == engine);
        let (_, rounds) = found.next()?;
        middle(&series(rounds, |outcome| outcome.calls_per_operation().unwrap_or(f64::NAN)))
    };
    let calls = calls(EngineKind::Uring).zip(calls(EngineKind::Libaio));
    let (Some(ratio), Some((ours, theirs))) = (ratio, calls) else { return open(claim) };
    let verdict = match (ratio.median >= 1.0 - SAME, ours < theirs) {
        (true, true) => Verdict::Holds,
        (false, false) => Verdict::Fails,
        _ => Verdict::Partly,
    };
    let sentence = format!(
        "The ring does {:.2} of libaio's operations, with {ours:.2} system calls each for {theirs:.2}.",
        ratio.median
    );
    finding(claim, verdict, sentence)
}

/// Whether our own figures can be believed. Where fio's rounds of a job differ among themselves by more than it and we
/// may, the device has no one rate that both could find, and the job says nothing.
fn agreement(measured: &[Measured]) -> Option<Finding> {
    let claim = "fio finds the same within 5 %.";
    let mut words = Vec::new();
    let (mut steady, mut within) = (0, 0);
    for (ours, theirs) in pairs(measured) {
        let figures = [&ours.1, &theirs.1].map(|rounds| series(rounds, Outcome::iops));
        let [Ok(own), Ok(fio)] = figures else { continue };
        let (Some(ratio), Some(rate)) = (Summary::of_ratios(&own, &fio), Summary::of(&fio)) else { continue };
        let (low, high) = (rate.low / rate.median, rate.high / rate.median);
        let mut word = format!("{}: {:.3}", ours.0.name, ratio.median);
        if high - low <= FIO_TOLERANCE {
            steady += 1;
            within += usize::from((ratio.median - 1.0).abs() <= FIO_TOLERANCE);
        } else {
            word += &format!(" (fio's own rounds: {low:.2} to {high:.2} of the one in the middle)");
        }
        words.push(word);
    }
    let verdict = match within {
        _ if steady == 0 => Verdict::Open,
        0 => Verdict::Fails,
        within if within == steady => Verdict::Holds,
        _ => Verdict::Partly,
    };
    // Without fio there is nothing to be said, and the section says why elsewhere.
    (!words.is_empty()).then(|| finding(claim, verdict, format!("Ours by fio's: {}.", words.join("; "))))
}

/// Each round of a job, as raw figures.
fn runs(item: &Item, rounds: &Rounds<Outcome>) -> Vec<Run> {
    let job = &item.job;
    let run = |(round, result): (usize, &Result<Outcome, String>)| {
        let mut run = Run::default();
        let labels = [
            ("tool", if item.tool == Tool::Fio { "fio" } else { "ringroad" }.to_owned()),
            ("engine", job.engine.name().to_owned()),
            ("pattern", job.pattern.name().to_owned()),
            ("block", job.block_bytes.to_string()),
            ("direct", job.direct.to_string()),
            ("depth", job.depth.to_string()),
            ("threads", job.threads.to_string()),
            ("processes", job.processes.to_string()),
            ("round", round.to_string()),
        ];
        run.labels.extend(labels.map(|(name, value)| (name.to_owned(), value)));
        match result {
            Ok(outcome) => run.figures.extend(raw(outcome)),
            Err(reason) => {
                run.labels.insert("refused".to_owned(), reason.clone());
            }
        }
        run
    };
    rounds.iter().enumerate().map(run).collect()
}

/// All that tables are made of, and the tail of the latency.
fn raw(outcome: &Outcome) -> Vec<(String, f64)> {
    let both = outcome.both();
    let mut figures = vec![
        ("seconds".to_owned(), outcome.seconds),
        ("reads".to_owned(), outcome.read.operations as f64),
        ("writes".to_owned(), outcome.write.operations as f64),
        ("bytes".to_owned(), both.bytes as f64),
        ("user_seconds".to_owned(), outcome.user_seconds),
        ("system_seconds".to_owned(), outcome.system_seconds),
        ("context_switches".to_owned(), outcome.switches as f64),
    ];
    figures.extend(outcome.system_calls.map(|calls| ("system_calls".to_owned(), calls as f64)));
    // fio's times are in its own output, and not taken over.
    for percent in [50.0, 90.0, 99.0, 99.9, 100.0] {
        figures.push((format!("latency_{percent}_us"), both.total.percentile_us(percent)));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::super::job::{EngineKind, Job, Pattern};
    use super::*;

    /// A job with so many operations in each of its rounds of a second.
    fn rounds(tool: Tool, operations: &[u64]) -> Measured {
        let job = Job {
            engine: EngineKind::Uring,
            pattern: Pattern { random: true, read_percent: 100 },
            file: "/nowhere".into(),
            file_bytes: 1 << 20,
            block_bytes: 4096,
            direct: true,
            depth: 16,
            threads: 1,
            processes: 1,
            seconds: 1.0,
            seed: 1,
        };
        let outcome = |&operations: &u64| {
            let read = Side { operations, ..Side::default() };
            Ok(Outcome { read, seconds: 1.0, ..Outcome::nothing() })
        };
        let item = Item { group: Group::Engines, tool, name: "uring".to_owned(), job };
        (item, operations.iter().map(outcome).collect())
    }

    #[test]
    fn a_device_that_differs_from_itself_decides_nothing() {
        let verdict = |ours: &[u64], fio: &[u64]| {
            agreement(&[rounds(Tool::Ours, ours), rounds(Tool::Fio, fio)]).map(|finding| finding.verdict)
        };
        assert_eq!(verdict(&[1000, 1010, 990], &[1000, 1020, 1000]), Some(Verdict::Holds));
        assert_eq!(verdict(&[1100, 1110, 1090], &[1000, 1020, 1000]), Some(Verdict::Fails));
        assert_eq!(verdict(&[1100, 1110, 1090], &[1000, 1400, 900]), Some(Verdict::Open));
        assert_eq!(agreement(&[rounds(Tool::Ours, &[1000])]), None);
    }
}
