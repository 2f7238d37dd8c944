//! The jobs of `bench disk`, and the tables, plots and verdicts about them.
//!
//! Each table selects its rows and columns by the labels of jobs, so several tables can show the same job.

use clap::ValueEnum;

use super::job::{EngineKind, Job, Pattern};
use crate::method::stats::Summary;
use crate::report::model::{self, AxisScale, Cell, Finding, Plot, Results, Table};
use crate::scenario::described::Named;
use crate::scenario::measurements::{
    Figure, Labels, Measurements, NOT_MEASURED, Of, Rows, ShownColumn, at, axis, figure, finding,
    finding_of_cases, named, under, verdict,
};

/// Maximum relative difference of two results that are considered equal: the write-up's own two differ by 2 %.
const SAME: f64 = 0.10;

/// The write-up's block size.
const WRITE_UP_BLOCK: u32 = 128 << 10;
/// The generally used engines: the others are variants of them.
const COMMON: [EngineKind; 4] =
    [EngineKind::Sync, EngineKind::Threads, EngineKind::Libaio, EngineKind::Uring];
/// From one operation at a time to more than the queue size of most devices.
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 128];
/// From the smallest block of files to the largest that the kernel reads in one request.
const BLOCKS: [(&str, u32); 5] =
    [("4k", 4 << 10), ("16k", 16 << 10), ("64k", 64 << 10), ("256k", 256 << 10), ("1m", 1 << 20)];
/// Access through the page cache and bypassing it. Through the page cache, a submission to io_uring or libaio may
/// block.
const CACHING: [(&str, Pattern, bool); 4] = [
    ("read direct", Pattern::Read, true),
    ("randread direct", Pattern::Randread, true),
    ("read buffered", Pattern::Read, false),
    ("randread buffered", Pattern::Randread, false),
];

const IOPS: Figure = figure("IOPS", "1/s", 0, Of::Quotient("operations", "seconds", 1.0));
const BANDWIDTH: Figure = figure("bandwidth", "MB/s", 1, Of::Quotient("bytes", "seconds", 1e-6));

/// The columns of the write-up, which are those of fio at that time, for each direction. Rates use the measured
/// duration of the job, which is a few milliseconds longer than the configured one.
const DIRECTIONS: [Figure; 12] = [
    figure("read: bw", "KB/s", 0, Of::Quotient("read_bytes", "seconds", 1.0 / 1024.0)),
    figure("read: iops", "1/s", 0, Of::Quotient("read_operations", "seconds", 1.0)),
    figure("read: slat", "µs", 1, Of::Value("read_submission_us", 1.0)),
    figure("read: clat", "µs", 1, Of::Value("read_completion_us", 1.0)),
    figure("read: lat", "µs", 1, Of::Value("read_total_us", 1.0)),
    figure("read: lat stdev", "µs", 1, Of::Value("read_deviation_us", 1.0)),
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

/// The last columns of these tables: CPU time relative to one processor, and costs of an operation.
const COSTS: [Figure; 4] = [
    figure("usr", "%", 1, Of::Quotient("user_seconds", "seconds", 100.0)),
    figure("sys", "%", 1, Of::Quotient("system_seconds", "seconds", 100.0)),
    figure("context switches per operation", "", 2, Of::Quotient("context_switches", "operations", 1.0)),
    CALLS,
];
const CALLS: Figure =
    figure("system calls per operation", "", 2, Of::Quotient("system_calls", "operations", 1.0));

/// Label with the system calls of a job.
pub(super) const STRACE: &str = "system calls as strace shows them";
const SHOWN_BY_STRACE: Figure = figure(STRACE, "per operation", 0, Of::Label(STRACE));

/// Maximum relative deviation of a figure from that of fio.
const FIO_TOLERANCE: f64 = 0.05;

/// Returns the write-up's two variants, and further ones that are available today.
pub(super) fn write_up(base: &Job) -> [(&'static str, Job); 6] {
    let job = |engine, depth| Job {
        engine,
        depth,
        pattern: Pattern::Randrw,
        block_bytes: WRITE_UP_BLOCK,
        is_verified: true,
        ..base.clone()
    };
    let one = job(EngineKind::Sync, 1);
    [
        ("libaio, one process, depth 16", job(EngineKind::Libaio, 16)),
        ("sync, 16 processes", Job { copies: 16, in_processes: true, ..one.clone() }),
        ("sync, 16 threads", job(EngineKind::Sync, 16)),
        ("uring, one process, depth 16", job(EngineKind::Uring, 16)),
        ("threads, one process, depth 16", job(EngineKind::Threads, 16)),
        // According to a reader of the write-up, one blocking process achieves as much as sixteen.
        ("sync, one process", one),
    ]
}

/// Returns all jobs without duplicates, with those that are compared next to each other.
pub(super) fn jobs(base: &Job) -> Vec<Job> {
    let of = |base: &Job, engine| Job { engine, ..base.clone() };
    let mut all: Vec<Job> = write_up(base).map(|(_, job)| job).into();
    let verified = Job { is_verified: true, ..base.clone() };
    all.extend(EngineKind::value_variants().iter().map(|&engine| of(&verified, engine)));
    for depth in DEPTHS {
        all.extend(COMMON.map(|engine| of(&Job { depth, ..base.clone() }, engine)));
    }
    for (_, block_bytes) in BLOCKS {
        let job = |&pattern: &Pattern| Job { pattern, block_bytes, ..base.clone() };
        all.extend(Pattern::value_variants().iter().map(job));
    }
    for engine in COMMON {
        let job =
            |(_, pattern, direct)| Job { pattern, direct, block_bytes: WRITE_UP_BLOCK, ..of(base, engine) };
        all.extend(CACHING.map(job));
    }
    let mut jobs: Vec<Job> = Vec::new();
    for job in all {
        if !jobs.iter().any(|known| known.labels() == job.labels()) {
            jobs.push(job);
        }
    }
    jobs
}

fn row(name: &str, job: &Job) -> (String, Labels) {
    (name.to_owned(), job.labels())
}

/// Returns a row for the job on each of these engines.
fn engine_rows(engines: &[EngineKind], base: &Job) -> Rows {
    engines.iter().map(|&engine| row(&engine.name(), &Job { engine, ..base.clone() })).collect()
}

/// Returns the results: about the jobs that the user described, or about those of the report, which are variations of
/// `base`. `measured` are all jobs, also those of fio.
pub(super) fn results(measurements: Measurements<'_>, base: &Job, own: &[Job], measured: &[Job]) -> Results {
    let mut results = if own.is_empty() { of_report(measurements, base) } else { of_own(measurements, own) };
    let pairs: Vec<&Job> = measured.windows(2).filter(|pair| pair[1].by_fio).map(|pair| &pair[0]).collect();
    if !pairs.is_empty() {
        results.tables.push(compared_with_fio(measurements, &pairs));
        results.findings.extend(agreement(measurements, &pairs));
    }
    // A run of the write-up's jobs alone has only their tables.
    let is_measured = |row: &model::Row| row.cells.iter().any(|cell| !matches!(cell, Cell::Missing(_)));
    results.tables.retain(|table| table.rows.iter().any(is_measured));
    results.plots.retain(|plot| !plot.series.is_empty());
    results.rankings.retain(|ranking| !ranking.results.is_empty());
    results
}

fn of_own(measurements: Measurements<'_>, own: &[Job]) -> Results {
    const TITLE: &str = "The jobs described";
    let rows: Rows = own.iter().map(|job| row(&job.words(), job)).collect();
    let figures = DETAILS.iter().chain(&COSTS).chain([&SHOWN_BY_STRACE]);
    let columns: Vec<ShownColumn> = figures.map(|figure| figure.shown()).collect();
    Results {
        tables: vec![measurements.table(TITLE, &rows, &columns)],
        rankings: vec![measurements.ranking(TITLE, IOPS, &rows)],
        ..Results::default()
    }
}

/// Returns the comparison with fio. Ratios are computed round by round, each from two jobs that ran consecutively.
fn compared_with_fio(measurements: Measurements<'_>, pairs: &[&Job]) -> Table {
    let rows: Rows = pairs.iter().map(|job| row(&job.words(), job)).collect();
    let fio = || at([("tool", &"fio")]);
    let [slat, clat] = [DETAILS[2], DETAILS[3]];
    let columns = [
        IOPS.at("ours", Labels::new()),
        IOPS.at("fio", fio()),
        IOPS.over("ours / fio", fio()),
        slat.at("slat", Labels::new()),
        slat.at("slat of fio", fio()),
        clat.at("clat", Labels::new()),
        clat.at("clat of fio", fio()),
    ];
    measurements.table("The same jobs by fio", &rows, &columns)
}

/// Returns the finding about the agreement with fio. If fio's own rounds of a job differ by more than the tolerance, the
/// device has no stable rate, and the job is not considered.
fn agreement(measurements: Measurements<'_>, pairs: &[&Job]) -> Option<Finding> {
    let (mut words, mut steady, mut within) = (Vec::new(), 0, 0);
    for job in pairs {
        let (ours, fio) = (job.labels(), Job { by_fio: true, ..(*job).clone() }.labels());
        let rates = measurements.series(IOPS, &fio).unwrap_or_default();
        let (Some(ratio), Some(rate)) = (measurements.ratio(IOPS, &ours, &fio), Summary::of(&rates)) else {
            continue;
        };
        let (low, high) = (rate.low / rate.median, rate.high / rate.median);
        let mut word = format!("{}: {:.3}", job.words(), ratio.median);
        if high - low <= FIO_TOLERANCE {
            steady += 1;
            within += usize::from((ratio.median - 1.0).abs() <= FIO_TOLERANCE);
        } else {
            word += &format!(" (rounds of fio: {low:.2} to {high:.2} of their median)");
        }
        words.push(word);
    }
    let sentence = format!("Ours by fio's: {}.", words.join("; "));
    let claim = "The figures of fio are the same within 5 %.";
    (!words.is_empty()).then(|| finding(claim, verdict(within, steady), sentence))
}

fn of_report(measurements: Measurements<'_>, base: &Job) -> Results {
    let write_up: Rows = write_up(base).map(|(name, job)| row(name, &job)).into();
    let engines = engine_rows(EngineKind::value_variants(), base);
    let complete = |title: &str, rows: &[(String, Labels)], figures: &[Figure]| {
        let figures = figures.iter().chain(&COSTS).chain([&SHOWN_BY_STRACE]);
        let columns: Vec<ShownColumn> = figures.map(|figure| figure.shown()).collect();
        measurements.table(title, rows, &columns)
    };
    let mut tables = vec![
        complete(
            "Mixed random reads and writes of 128k bypassing the page cache: one process, depth 16, and 16 processes",
            &write_up,
            &DIRECTIONS,
        ),
        complete(
            "Engines: random reads of 4k bypassing the page cache, 16 in flight (sync: 16 threads)",
            &engines,
            &DETAILS,
        ),
    ];
    tables.extend(crossed(measurements, base));
    Results {
        tables,
        plots: plots(measurements, &engines),
        findings: findings(measurements, base),
        rankings: vec![
            measurements.ranking("Mixed random reads and writes of 128k", IOPS, &write_up),
            measurements.ranking("Random reads of 4k, 16 in flight", IOPS, &engines),
        ],
    }
}

/// Returns tables with one property of the jobs in the rows and another one in the columns.
fn crossed(measurements: Measurements<'_>, base: &Job) -> [Table; 3] {
    let depths = DEPTHS.map(|depth| row(&depth.to_string(), &Job { depth, ..base.clone() }));
    let blocks = BLOCKS.map(|(name, block_bytes)| row(name, &Job { block_bytes, ..base.clone() }));
    let of_128k = engine_rows(&COMMON, &Job { block_bytes: WRITE_UP_BLOCK, ..base.clone() });
    let by_depth = Figure { decimals: 1, ..IOPS };
    let engines = COMMON.map(|engine| by_depth.at(&engine.name(), at([("engine", &engine.name())])));
    let patterns = Pattern::value_variants().iter().map(Named::name);
    let patterns: Vec<ShownColumn> =
        patterns.map(|name| BANDWIDTH.at(&name, at([("pattern", &name)]))).collect();
    let caching = CACHING.map(|(name, pattern, direct)| {
        BANDWIDTH.at(name, at([("pattern", &pattern.name()), ("direct", &direct)]))
    });
    [
        measurements.table(
            "Depth: random reads of 4k bypassing the page cache (sync: as many threads)",
            &depths,
            &engines,
        ),
        measurements.table(
            "Block sizes and patterns: uring bypassing the page cache, 16 in flight",
            &blocks,
            &patterns,
        ),
        measurements.table(
            "Bypassing the page cache and through it: reads of 128k, 16 in flight (sync: 16 threads)",
            &of_128k,
            &caching,
        ),
    ]
}

/// Plots rates by depth, and the distribution of latency.
fn plots(measurements: Measurements<'_>, engines: &[(String, Labels)]) -> Vec<Plot> {
    let random_4k =
        at([("pattern", &"randread"), ("block", &4096), ("direct", &true), ("tool", &"ringroad")]);
    vec![
        measurements.plot(
            ("disk-depth", "Random reads of 4k by depth"),
            ("depth", axis("operations in flight", "", AxisScale::Logarithmic)),
            (IOPS, axis("reads", "1/s", AxisScale::Linear)),
            &under(&named("engine", COMMON.map(|engine| engine.name())), &random_4k),
        ),
        measurements.curves(("disk-latency", "Latency of random reads of 4k, 16 in flight"), "µs", engines),
    ]
}

/// Returns a finding for each claim of the write-up.
fn findings(measurements: Measurements<'_>, base: &Job) -> Vec<Finding> {
    let [aio, sync, _, uring, _, one] = write_up(base).map(|(_, job)| job.labels());
    let case = |name: &str, ours: &Labels, theirs: &Labels| [(name.to_owned(), ours.clone(), theirs.clone())];
    let to_sixteen = |claim: &str, name: &str, ours: &Labels, is_met: fn(&Summary) -> bool| {
        let words = ("Throughput as a ratio to the sixteen processes: ", NOT_MEASURED);
        measurements.finding_of_ratios(claim, words, IOPS, case(name, ours, &sync), is_met)
    };
    let ring = |figure, name, is_met: fn(&Summary) -> bool| {
        measurements.ratios(figure, case(name, &uring, &aio), is_met)
    };
    let ring = [
        ring(IOPS, "operations per second", |ratio| ratio.median >= 1.0 - SAME),
        ring(CALLS, "system calls per operation", |ratio| ratio.median < 1.0),
    ];
    // Each operation has one submission; only completions may share a call.
    let calls = measurements.middle(CALLS, &aio).map(|calls| (format!("libaio: {calls:.2}"), calls > 1.9));
    vec![
        finding_of_cases(
            "With libaio an io_submit carries one request, and an io_getevents returns one.",
            "System calls per operation, 2 if no call has more than one: ",
            calls.as_slice(),
            NOT_MEASURED,
        ),
        to_sixteen(
            "One process with 16 operations in flight by libaio and 16 blocking processes have the same throughput: the device is the limit.",
            "libaio",
            &aio,
            |ratio| (ratio.median - 1.0).abs() <= SAME,
        ),
        to_sixteen("One asynchronous process does the work of 16 blocking ones.", "libaio", &aio, |ratio| {
            ratio.median >= 1.0 - SAME
        }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Run, Section, Verdict};
    use crate::scenario::comparison;

    #[test]
    fn a_device_with_inconsistent_runs_gives_no_verdict() {
        let job = Job::new("/nowhere".into(), 1 << 20);
        let fio = Job { by_fio: true, ..job.clone() };
        let verdict = |ours: [f64; 3], theirs: [f64; 3]| {
            let mut section = Section::default();
            for (job, rates) in [(&job, ours), (&fio, theirs)] {
                for (round, operations) in (0..).zip(rates) {
                    let run = Run::of([("operations", operations), ("seconds", 1.0)]);
                    comparison::file(&mut section, Ok(run), &job.labels(), round);
                }
            }
            agreement(Measurements::of(&section), &[&job]).map(|finding| finding.verdict)
        };
        assert_eq!(verdict([1000.0, 1010.0, 990.0], [1000.0, 1020.0, 1000.0]), Some(Verdict::Holds));
        assert_eq!(verdict([1100.0, 1110.0, 1090.0], [1000.0, 1020.0, 1000.0]), Some(Verdict::Fails));
        assert_eq!(verdict([1100.0, 1110.0, 1090.0], [1000.0, 1400.0, 900.0]), Some(Verdict::Open));
    }

    #[test]
    fn each_job_is_measured_once_under_unique_labels() {
        let jobs = jobs(&Job::new("/nowhere".into(), 1 << 20));
        let labels: std::collections::BTreeSet<Labels> = jobs.iter().map(Job::labels).collect();
        assert_eq!(labels.len(), jobs.len());
        // 6 of the write-up; 7 engines; 4 further depths of 4 engines; 30 patterns and blocks, of which one is the base;
        // 16 of reads with and without the page cache.
        assert_eq!(jobs.len(), 6 + 7 + 16 + 29 + 16);
    }
}
