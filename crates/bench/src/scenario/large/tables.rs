//! What is made of the measurements of `bench large`: the write-up's table first.
//!
//! The write-up shows throughput and the idle share of a machine with one processor, on which its client ran too. Here
//! the idle share is that of all processors, generator included, so it says less than on such a machine: the server's
//! processor time for each megabyte, in a table of its own, is what compares. Time in which a disk was waited for counts
//! as idle, since other tasks can use it.
//!
//! A claim is judged for each number of clients: it holds where all of them say so, in part where some do.

use super::{MEGABYTE, Measured, Results, Way};
use crate::method::stats::Summary;
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{cell, column, middle, row};
use crate::scenario::served::Served;

/// The section, but for configurations and what was left out.
pub(super) fn section(results: &Results) -> Section {
    Section {
        scenario: "large".to_owned(),
        title: format!("One file of {} MB, cold, to a few clients", results.megabytes),
        seed: Some("001".to_owned()),
        question: "How fast does a large file leave that is not in memory, and how much of the machine is left meanwhile?"
            .to_owned(),
        tables: vec![as_written(results), speeds(results), costs(results), idles(results)],
        plots: vec![plot(results)],
        findings: findings(results),
        runs: results.measured.iter().flat_map(runs).collect(),
        ..Section::default()
    }
}

type Figures = Result<Vec<f64>, String>;

impl Results {
    /// One figure of each round, or the reason for a cell.
    fn figures(&self, way: Way, clients: u32, figure: impl Fn(&Served) -> Option<f64>) -> Figures {
        if let Some((_, reason)) = self.missing.iter().find(|(missing, _)| *missing == way) {
            return Err(reason.clone());
        }
        let found = self.measured.iter().find(|measured| measured.way == way && measured.clients == clients);
        let rounds = &found.ok_or("not part of this run")?.rounds;
        rounds
            .iter()
            .map(|served| match served.outcome.tally.errors.total() {
                0 => figure(served).ok_or_else(|| "a process of the server ended".to_owned()),
                _ => Err(format!("clients got no whole file: {}", served.outcome.tally.errors)),
            })
            .collect()
    }

    /// Megabytes a second of all clients together, bodies only.
    fn speed(&self, way: Way, clients: u32) -> Figures {
        self.figures(way, clients, |served| Some(served.outcome.body_bytes_per_second() / MEGABYTE as f64))
    }

    /// Percent of the machine.
    fn idle(&self, way: Way, clients: u32) -> Figures {
        self.figures(way, clients, |served| Some(served.idle_percent))
    }

    /// Milliseconds of the server's processor time for each megabyte.
    fn cost(&self, way: Way, clients: u32) -> Figures {
        self.figures(way, clients, |served| {
            let megabytes = served.outcome.tally.body_bytes as f64 / MEGABYTE as f64;
            served.server_cpu_seconds.map(|seconds| seconds * 1e3 / megabytes)
        })
    }
}

/// conc, non-aio, aio 512k, aio 1M: each with what was idle.
fn as_written(results: &Results) -> Table {
    const WAYS: [(Way, &str); 3] =
        [(Way::Sendfile, "non-aio"), (Way::Shared512k, "aio [512k]"), (Way::Shared1m, "aio [1M]")];
    let columns =
        WAYS.iter().flat_map(|(_, name)| [column(name, "MB/s"), column(&format!("{name}, idle"), "%")]);
    let rows = results.clients.iter().map(|&clients| {
        let cells = WAYS.iter().flat_map(|&(way, _)| {
            [cell(&results.speed(way, clients), 2), cell(&results.idle(way, clients), 0)]
        });
        row(clients.to_string(), cells.collect())
    });
    Table {
        title: "conc: sendfile (non-aio) against reads into shared memory and sendfile (aio)".to_owned(),
        columns: columns.collect(),
        rows: rows.collect(),
    }
}

/// A row for each way, a column for each number of clients.
fn by_clients(results: &Results, title: &str, unit: &str, cells: &dyn Fn(Way, u32) -> Cell) -> Table {
    let words = |clients: &u32| format!("{clients} client{}", if *clients == 1 { "" } else { "s" });
    Table {
        title: title.to_owned(),
        columns: results.clients.iter().map(|clients| column(&words(clients), unit)).collect(),
        rows: Way::ALL
            .into_iter()
            .map(|way| row(way.name(), results.clients.iter().map(|&clients| cells(way, clients)).collect()))
            .collect(),
    }
}

/// The same for every way.
fn speeds(results: &Results) -> Table {
    by_clients(results, "Throughput of all clients together", "MB/s", &|way, clients| {
        cell(&results.speed(way, clients), 0)
    })
}

/// What compares between machines of any number of processors.
fn costs(results: &Results) -> Table {
    let title = "Processor time of the server for each megabyte";
    by_clients(results, title, "ms/MB", &|way, clients| cell(&results.cost(way, clients), 3))
}

/// The write-up's second figure for every way.
fn idles(results: &Results) -> Table {
    let title = "Idle time of the machine, waiting for the disk included; the clients run on it too";
    by_clients(results, title, "%", &|way, clients| cell(&results.idle(way, clients), 0))
}

/// A series for each way.
fn plot(results: &Results) -> Plot {
    let series = Way::ALL.into_iter().map(|way| {
        let point = |&clients: &u32| Some([f64::from(clients), middle(&results.speed(way, clients))?]);
        Series { name: way.name().to_owned(), points: results.clients.iter().filter_map(point).collect() }
    });
    Plot {
        id: "large-throughput".to_owned(),
        title: format!("One cold file of {} MB: throughput by clients", results.megabytes),
        x: Axis { name: "clients".to_owned(), unit: String::new(), scale: AxisScale::Logarithmic },
        y: Axis { name: "throughput".to_owned(), unit: "MB/s".to_owned(), scale: AxisScale::Linear },
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

/// The write-up makes two claims.
fn findings(results: &Results) -> Vec<Finding> {
    vec![faster(results), idler(results)]
}

/// Each number of clients counts for the claim, or against it.
fn judge(good: usize, of: usize) -> Verdict {
    match (good, of) {
        (_, 0) => Verdict::Open,
        (good, of) if good == of => Verdict::Holds,
        (0, _) => Verdict::Fails,
        _ => Verdict::Partly,
    }
}

/// About throughput: its table has 1.4 to 2.3 times, so half as much again counts as "about twice".
fn faster(results: &Results) -> Finding {
    let claim = "A cold file leaves about twice as fast when it is read ahead into shared memory (1 MB chunks) than by \
                 sendfile alone, with few clients and with ten.";
    let mut words = Vec::new();
    let mut good = 0;
    for &clients in &results.clients {
        let (shared, plain) = (results.speed(Way::Shared1m, clients), results.speed(Way::Sendfile, clients));
        if let (Ok(shared), Ok(plain)) = (&shared, &plain)
            && let Some(ratio) = Summary::of_ratios(shared, plain)
        {
            good += usize::from(ratio.median >= 1.5);
            words.push(format!("{:.2} times with {clients}", ratio.median));
        }
    }
    let sentence = if words.is_empty() {
        "Not measured.".to_owned()
    } else {
        format!("Clients of shm-sendfile get the file so fast, of sendfile alone: {}.", words.join(", "))
    };
    Finding { claim: claim.to_owned(), verdict: judge(good, words.len()), sentence }
}

/// About what is left of the processor.
fn idler(results: &Results) -> Finding {
    let claim =
        "Reading ahead leaves the processor idle: 70 to 90 % of it, where sendfile leaves under 10 %.";
    let mut words = Vec::new();
    let mut good = 0;
    for &clients in &results.clients {
        let costs = (results.cost(Way::Shared1m, clients), results.cost(Way::Sendfile, clients));
        let idle =
            (middle(&results.idle(Way::Shared1m, clients)), middle(&results.idle(Way::Sendfile, clients)));
        if let ((Ok(shared), Ok(plain)), (Some(idle_shared), Some(idle_plain))) = (&costs, &idle)
            && let Some(ratio) = Summary::of_ratios(shared, plain)
        {
            // The write-up's figures mean a fraction of the work; less than it at all is the claim in part.
            good += usize::from(ratio.median < 1.0);
            words.push(format!(
                "{clients}: {:.2} of sendfile's processor time for each MB, {idle_shared:.0} % against {idle_plain:.0} % idle",
                ratio.median
            ));
        }
    }
    let sentence = if words.is_empty() {
        "Not measured.".to_owned()
    } else {
        format!("By clients, {}.", words.join("; "))
    };
    Finding { claim: claim.to_owned(), verdict: judge(good, words.len()), sentence }
}

/// Every round.
fn runs(measured: &Measured) -> Vec<Run> {
    let run = |(round, served): (usize, &Served)| {
        served.run(&[
            ("server", measured.way.name().to_owned()),
            ("clients", measured.clients.to_string()),
            ("round", round.to_string()),
        ])
    };
    measured.rounds.iter().enumerate().map(run).collect()
}
