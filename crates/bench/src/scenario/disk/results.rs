//! Tables and plots of the jobs of `bench disk`, with fio's terms, and the verdicts on the write-up's claims.

use clap::ValueEnum;

use super::job::EngineKind;
use super::plan::{Item, JobTable, Runner};
use crate::method::stats::Summary;
use crate::report::model::{AxisScale, Finding, Plot, Ranking, Results, Table};
use crate::scenario::described::Named;
use crate::scenario::measurements::{
    Figure, Labels, Measurements, NOT_MEASURED, Of, Rows, ShownColumn, at, at_least, axis, figure, finding,
    finding_of_cases, named, open, under, verdict,
};

/// Maximum relative deviation of a figure from fio's.
const FIO_TOLERANCE: f64 = 0.05;
/// Maximum relative difference of two results that are considered equal: the write-up's own two differ by 2 %.
const SAME: f64 = 0.10;

const IOPS: Figure = figure("IOPS", "1/s", 0, Of::Quotient("operations", "seconds", 1.0));
const BANDWIDTH: Figure = figure("bandwidth", "MB/s", 1, Of::Quotient("bytes", "seconds", 1e-6));

/// The columns of the write-up, which are those of fio at that time, for each direction. Rates use the measured
/// duration of the job, which is a few milliseconds longer than the configured one.
const READS: [Figure; 6] = [
    figure("read: bw", "KB/s", 0, Of::Quotient("read_bytes", "seconds", 1.0 / 1024.0)),
    figure("read: iops", "1/s", 0, Of::Quotient("read_operations", "seconds", 1.0)),
    figure("read: slat", "µs", 1, Of::Value("read_submission_us", 1.0)),
    figure("read: clat", "µs", 1, Of::Value("read_completion_us", 1.0)),
    figure("read: lat", "µs", 1, Of::Value("read_total_us", 1.0)),
    figure("read: lat stdev", "µs", 1, Of::Value("read_deviation_us", 1.0)),
];
const WRITES: [Figure; 6] = [
    figure("write: bw", "KB/s", 0, Of::Quotient("write_bytes", "seconds", 1.0 / 1024.0)),
    figure("write: iops", "1/s", 0, Of::Quotient("write_operations", "seconds", 1.0)),
    figure("write: slat", "µs", 1, Of::Value("write_submission_us", 1.0)),
    figure("write: clat", "µs", 1, Of::Value("write_completion_us", 1.0)),
    figure("write: lat", "µs", 1, Of::Value("write_total_us", 1.0)),
    figure("write: lat stdev", "µs", 1, Of::Value("write_deviation_us", 1.0)),
];

/// Figures of both directions together, for tables of many engines.
const DETAILS: [Figure; 9] = [
    BANDWIDTH,
    IOPS,
    figure("slat", "µs", 1, Of::Value("both_submission_us", 1.0)),
    figure("clat", "µs", 1, Of::Value("both_completion_us", 1.0)),
    figure("lat", "µs", 1, Of::Value("both_total_us", 1.0)),
    figure("lat 50 %", "µs", 1, Of::Value("latency_50_us", 1.0)),
    figure("lat 99 %", "µs", 1, Of::Value("latency_99_us", 1.0)),
    figure("lat 99.9 %", "µs", 1, Of::Value("latency_99.9_us", 1.0)),
    figure("lat max", "µs", 1, Of::Value("latency_100_us", 1.0)),
];

/// The last columns of every table of jobs: CPU time relative to one processor and per operation, and the queue depths.
const COSTS: [Figure; 5] = [
    figure("usr", "%", 1, Of::Quotient("user_seconds", "seconds", 100.0)),
    figure("sys", "%", 1, Of::Quotient("system_seconds", "seconds", 100.0)),
    figure("context switches per operation", "", 2, Of::Quotient("context_switches", "operations", 1.0)),
    CALLS,
    figure("IO depths", "", 0, Of::Label("IO depths")),
];
const CALLS: Figure =
    figure("system calls per operation", "", 2, Of::Quotient("system_calls", "operations", 1.0));

/// Returns all tables, plots and findings. Tables of groups that were not measured are omitted.
pub(super) fn results(measurements: Measurements<'_>, items: &[Item]) -> Results {
    let results = DiskReport { measurements, items };
    let variant = |item: &Item| {
        let variant = if item.job.direct { "direct" } else { "buffered" };
        format!("{} {variant}", item.job.pattern.name())
    };
    let engine = |item: &Item| item.job.engine.name();
    let pattern = |item: &Item| item.job.pattern.name();
    let whole = [READS, WRITES].concat();
    let tables = [
        results.complete_table(
            JobTable::WriteUp,
            "Mixed random reads and writes of 128k bypassing the page cache: one process, depth 16, and 16 processes",
            &whole,
        ),
        results.complete_table(JobTable::Own, "The jobs described", &DETAILS),
        results.complete_table(
            JobTable::Engines,
            "Engines: random reads of 4k bypassing the page cache, 16 in flight (sync: 16 threads)",
            &DETAILS,
        ),
        results.crossed(
            JobTable::Depths,
            "Depth: random reads of 4k bypassing the page cache (sync: as many threads)",
            &engine,
            Figure { decimals: 1, ..IOPS },
        ),
        results.crossed(
            JobTable::Blocks,
            "Block sizes and patterns: uring bypassing the page cache, 16 in flight",
            &pattern,
            BANDWIDTH,
        ),
        results.crossed(
            JobTable::Caching,
            "Bypassing the page cache and through it: reads of 128k, 16 in flight (sync: 16 threads)",
            &variant,
            BANDWIDTH,
        ),
        results.checks(),
    ];
    let rankings = [
        results.ranking(JobTable::WriteUp, "Mixed random reads and writes of 128k"),
        results.ranking(JobTable::Engines, "Random reads of 4k, 16 in flight"),
        results.ranking(JobTable::Own, "The jobs described"),
    ];
    Results {
        tables: tables.into_iter().filter(|table| !table.rows.is_empty()).collect(),
        plots: results.plots(),
        findings: results.findings(),
        rankings: rankings.into_iter().filter(|ranking| !ranking.results.is_empty()).collect(),
    }
}

struct DiskReport<'a> {
    measurements: Measurements<'a>,
    items: &'a [Item],
}

impl DiskReport<'_> {
    /// Returns the jobs of one table that this program ran.
    fn of(&self, group: JobTable) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.group == group && item.tool == Runner::Ours)
    }

    fn ranking(&self, group: JobTable, title: &str) -> Ranking {
        self.measurements.ranking(title, IOPS, self.of(group).map(Item::row))
    }

    fn complete_table(&self, group: JobTable, title: &str, figures: &[Figure]) -> Table {
        let rows: Rows = self.of(group).map(Item::row).collect();
        let columns: Vec<ShownColumn> = figures.iter().chain(&COSTS).map(|figure| figure.shown()).collect();
        self.measurements.table(title, &rows, &columns)
    }

    /// Returns a table with a row for each name and a column for each kind of job in the group, both in the order of
    /// the jobs.
    fn crossed(&self, group: JobTable, title: &str, kind: &dyn Fn(&Item) -> String, figure: Figure) -> Table {
        let (mut rows, mut columns) = (Rows::new(), Rows::new());
        for item in self.of(group) {
            if rows.iter().all(|(name, _)| *name != item.name) {
                rows.push((item.name.clone(), at([("table", &format!("{group:?}")), ("row", &item.name)])));
            }
            let kind = kind(item);
            if columns.iter().all(|(name, _)| *name != kind) {
                let job = &item.job;
                let labels = at([
                    ("engine", &job.engine.name()),
                    ("pattern", &job.pattern.name()),
                    ("direct", &job.direct),
                ]);
                // The name of a row in one table is the name of a column in another.
                let is_row = |(_, value): &&(&'static str, String)| *value == item.name;
                columns.push((kind, labels.iter().filter(|label| !is_row(label)).cloned().collect()));
            }
        }
        let columns: Vec<ShownColumn> =
            columns.into_iter().map(|(name, labels)| figure.at(&name, labels)).collect();
        self.measurements.table(title, &rows, &columns)
    }

    fn pairs(&self) -> impl Iterator<Item = &Item> {
        self.items.windows(2).filter(|pair| pair[1].tool == Runner::Fio).map(|pair| &pair[0])
    }

    /// Returns the comparison with fio. Ratios are computed round by round, each from two jobs that ran consecutively.
    fn checks(&self) -> Table {
        let rows: Rows = self.pairs().map(Item::row).collect();
        let fio = || at([("tool", &"fio")]);
        let columns = [IOPS.at("ours", Labels::new()), IOPS.at("fio", fio()), IOPS.over("ours / fio", fio())];
        self.measurements.table("The same jobs by fio", &rows, &columns)
    }

    /// Plots rates by depth, and the distribution of latency.
    fn plots(&self) -> Vec<Plot> {
        let of = |group: JobTable| at([("table", &format!("{group:?}")), ("tool", &"ringroad")]);
        let lines = |group| {
            under(&named("engine", EngineKind::value_variants().iter().map(|kind| kind.name())), &of(group))
        };
        let plots = [
            self.measurements.plot(
                ("disk-depth", "Random reads of 4k by depth"),
                ("depth", axis("operations in flight", "", AxisScale::Logarithmic)),
                (IOPS, axis("reads", "1/s", AxisScale::Linear)),
                &lines(JobTable::Depths),
            ),
            self.measurements.curves(
                ("disk-latency", "Latency of random reads of 4k, 16 in flight"),
                "µs",
                &lines(JobTable::Engines),
            ),
        ];
        plots.into_iter().filter(|plot| !plot.series.is_empty()).collect()
    }

    /// Returns a finding for each claim. A run of described jobs has no findings about the write-up.
    fn findings(&self) -> Vec<Finding> {
        let write_up = self.of(JobTable::WriteUp).next().is_some().then(|| self.of_write_up());
        write_up.into_iter().flatten().chain(self.agreement()).collect()
    }

    /// Cases are selected by row names, as in the table.
    fn of_write_up(&self) -> Vec<Finding> {
        let of = |name: &str| {
            at([("table", &format!("{:?}", JobTable::WriteUp)), ("row", &name), ("tool", &"ringroad")])
        };
        let (aio, sync) = (of("libaio, one process, depth 16"), of("sync, 16 processes"));
        let (uring, one) = (of("uring, one process, depth 16"), of("sync, one process"));
        let case =
            |name: &str, ours: &Labels, theirs: &Labels| [(name.to_owned(), ours.clone(), theirs.clone())];
        let to_sixteen = |claim: &str, name: &str, ours: &Labels, is_met: fn(&Summary) -> bool| {
            let words = ("Throughput as a ratio to the sixteen processes: ", NOT_MEASURED);
            self.measurements.finding_of_ratios(claim, words, IOPS, case(name, ours, &sync), is_met)
        };
        let conclusion = "One asynchronous process does the work of 16 blocking ones.";
        let conclusion = self.measurements.ratio(IOPS, &aio, &sync).map_or_else(
            || open(conclusion),
            |Summary { median, .. }| {
                let sentence = format!("It has the throughput of {:.1} of the sixteen.", median * 16.0);
                finding(conclusion, at_least(median, 1.0 - SAME, 0.5), sentence)
            },
        );
        let ring = |figure, name, is_met: fn(&Summary) -> bool| {
            self.measurements.ratios(figure, case(name, &uring, &aio), is_met)
        };
        let ring = [
            ring(IOPS, "operations per second", |ratio| ratio.median >= 1.0 - SAME),
            ring(CALLS, "system calls per operation", |ratio| ratio.median < 1.0),
        ];
        vec![
            to_sixteen(
                "One process with 16 operations in flight by libaio and 16 blocking processes have the same throughput: the device is the limit.",
                "libaio",
                &aio,
                |ratio| (ratio.median - 1.0).abs() <= SAME,
            ),
            conclusion,
            to_sixteen(
                "On a slow device one blocking process has the throughput of sixteen (a comment below the write-up).",
                "one blocking process",
                &one,
                |ratio| ratio.median >= 1.0 - SAME,
            ),
            finding_of_cases(
                "io_uring has the throughput of libaio with fewer system calls (not in the write-up, which is older).",
                "io_uring as a ratio to libaio: ",
                &ring.concat(),
                NOT_MEASURED,
            ),
        ]
    }

    /// Returns the finding about the agreement with fio. If fio's own rounds of a job differ by more than the
    /// tolerance, the device has no stable rate, and the job is not considered. Without fio there is no finding; the
    /// section has the reason.
    fn agreement(&self) -> Option<Finding> {
        let mut words = Vec::new();
        let (mut steady, mut within) = (0, 0);
        for item in self.pairs() {
            let (ours, fio) = (item.labels(), [item.labels(), at([("tool", &"fio")])].concat());
            let rates = self.measurements.series(IOPS, &fio).unwrap_or_default();
            let (Some(ratio), Some(rate)) = (self.measurements.ratio(IOPS, &ours, &fio), Summary::of(&rates))
            else {
                continue;
            };
            let (low, high) = (rate.low / rate.median, rate.high / rate.median);
            let mut word = format!("{}: {:.3}", item.name, ratio.median);
            if high - low <= FIO_TOLERANCE {
                steady += 1;
                within += usize::from((ratio.median - 1.0).abs() <= FIO_TOLERANCE);
            } else {
                word += &format!(" (rounds of fio: {low:.2} to {high:.2} of their median)");
            }
            words.push(word);
        }
        let claim = "The figures of fio are the same within 5 %.";
        let sentence = format!("Ours by fio's: {}.", words.join("; "));
        (!words.is_empty()).then(|| finding(claim, verdict(within, steady), sentence))
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Job, JobOutcome, Side};
    use super::*;
    use crate::report::model::{Section, Verdict};
    use crate::scenario::comparison;

    /// Adds a job with these numbers of operations, one per round of one second.
    fn add(section: &mut Section, tool: Runner, operations: &[u64]) -> Item {
        let job = Job::new("/nowhere".into(), 1 << 20);
        let item = Item { group: JobTable::Engines, tool, name: "uring".to_owned(), job };
        for (round, &operations) in operations.iter().enumerate() {
            let read = Side { operations, ..Side::default() };
            let outcome = JobOutcome { read, seconds: 1.0, ..JobOutcome::nothing() };
            comparison::file(section, Ok(outcome.run(false)), &item.labels(), round);
        }
        item
    }

    #[test]
    fn a_device_with_inconsistent_runs_gives_no_verdict() {
        let verdict = |ours: &[u64], fio: &[u64]| {
            let mut section = Section::default();
            let items = [add(&mut section, Runner::Ours, ours), add(&mut section, Runner::Fio, fio)];
            let results = DiskReport { measurements: Measurements::of(&section), items: &items };
            results.agreement().map(|finding| finding.verdict)
        };
        assert_eq!(verdict(&[1000, 1010, 990], &[1000, 1020, 1000]), Some(Verdict::Holds));
        assert_eq!(verdict(&[1100, 1110, 1090], &[1000, 1020, 1000]), Some(Verdict::Fails));
        assert_eq!(verdict(&[1100, 1110, 1090], &[1000, 1400, 900]), Some(Verdict::Open));
    }
}
