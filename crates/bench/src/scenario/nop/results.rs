//! Tables, a plot and the verdicts on the write-up's claims, from the measurements of `bench nop`.

use bare::RingSetup;

use super::subject::{CpuPair, ReadMethod, Subject};
use super::{BATCH_COMPARED, BATCH_OF_WRITE_UP, BATCHES_FEW, NopOptions, READ_BYTES, alone, left_out};
use crate::report::model::{AxisScale, Finding, Plot, Results, Table, Verdict};
use crate::scenario::measurements::{
    Figure, Labels, Measurements, Of, Rows, ShownColumn, at, axis, figure, finding, open,
};

/// Wanted ratio of the engine's rate to that of the bare ring.
const ENGINE_SHARE_WANTED: f64 = 0.80;
/// Relative difference below which figures are considered equal.
// On a shared machine, repetitions of one figure differ by more than this.
const NOTEWORTHY: f64 = 0.05;

const TOTAL: Figure = figure("total ios", "", 0, Of::Value("operations", 1.0));
const RATE: Figure = figure("IOPS", "1/s", 0, Of::Quotient("operations", "seconds", 1.0));
const TIME: Figure = figure("time", "ns", 1, Of::Quotient("seconds", "operations", 1e9));
const ENTRIES: Figure =
    figure("system calls per operation", "", 3, Of::Quotient("kernel_entries", "operations", 1.0));

/// Returns the labels of a ring without flags.
fn plain(batch: u32) -> Labels {
    Subject::Ring { setup: RingSetup::plain(batch), batch }.labels()
}

/// Returns the labels of the ring that the engine is compared with: it has the same flags, so that only the surrounding
/// code differs.
fn bare(batch: u32) -> Labels {
    Subject::Ring { setup: RingSetup::as_engine(batch), batch }.labels()
}

/// Returns the labels of the same through the engine.
fn engine(batch: u32) -> Labels {
    Subject::Engine { batch }.labels()
}

fn slots(fresh: bool) -> Labels {
    Subject::Slots { fresh }.labels()
}

fn rows<const N: usize>(rows: [(&str, Labels); N]) -> Rows {
    rows.map(|(name, labels)| (name.to_owned(), labels)).into()
}

pub(super) fn results(measurements: Measurements<'_>, options: &NopOptions, place: CpuPair) -> Results {
    let title = format!("Time of a no-op, batches of {BATCH_COMPARED}, one processor");
    Results {
        tables: vec![
            as_write_up(measurements),
            by_batch(measurements, options),
            flags(measurements, "Set-up flags, one at a time", &|batch| alone(batch, place)),
            flags(measurements, "This server's set-up flags, one omitted", &left_out),
            of_slots(measurements),
            beside_libaio(measurements),
        ],
        plots: vec![plot(measurements)],
        findings: vec![
            growth(measurements),
            recycling(measurements),
            overhead_finding(measurements),
            engine_share(measurements),
        ],
        rankings: vec![measurements.ranking(&title, TIME, rows(compared(BATCH_COMPARED)))],
    }
}

/// Returns the subjects that are compared at this batch size.
fn compared(batch: u32) -> [(&'static str, Labels); 3] {
    [
        ("ring without flags", plain(batch)),
        ("ring set up as this server's", bare(batch)),
        ("this server's engine", engine(batch)),
    ]
}

/// Returns the table in the write-up's form: a total and a rate for each variant. The write-up's rows are kernels and
/// patches; one machine has one kernel, so these rows are ways of using it.
fn as_write_up(measurements: Measurements<'_>) -> Table {
    let batch = BATCH_OF_WRITE_UP;
    let rows = rows([
        ("this kernel, ring without flags", plain(batch)),
        ("this kernel, ring set up as this server's", bare(batch)),
        ("this server's engine", engine(batch)),
        ("this server's engine, fresh slots (batches of 64)", slots(true)),
        ("this server's engine, reused slots (batches of 64)", slots(false)),
    ]);
    let title = "No-ops by io_uring, batches of 16, one pinned processor";
    measurements.table(title, &rows, &[TOTAL.shown(), RATE.shown()])
}

/// Returns the rates by batch size, and the ratio of the engine's rate to that of the bare ring.
fn by_batch(measurements: Measurements<'_>, options: &NopOptions) -> Table {
    // The columns identify the subjects; a row only adds its batch size.
    let without_batch = |labels: Labels| labels.into_iter().filter(|(name, _)| *name != "batch").collect();
    let [plain, bare, engine]: [Labels; 3] = [plain(1), bare(1), engine(1)].map(without_batch);
    let columns = [
        RATE.at("ring without flags", plain),
        RATE.at("ring set up as this server's", bare.clone()),
        RATE.at("engine", engine.clone()),
        RATE.over("engine / ring", bare).where_(engine.clone()),
        ENTRIES.at("engine's system calls per operation", engine),
    ];
    let row = |batch: &u32| (batch.to_string(), at([("batch", batch)]));
    let rows: Rows = options.batch.iter().map(row).collect();
    measurements.table("No-ops by batch size: bare io_uring, and this server's engine", &rows, &columns)
}

type Setups<'a> = &'a dyn Fn(u32) -> Vec<(&'static str, RingSetup)>;

/// Returns a table with a row for each set of flags; the first one is the reference.
fn flags(measurements: Measurements<'_>, title: &str, setups: Setups<'_>) -> Table {
    let labels = |setup: RingSetup, batch| Subject::Ring { setup, batch }.labels();
    // Setups of different batch sizes differ only in the queue size, which is not a label.
    let rows: Rows = setups(1).into_iter().map(|(name, setup)| (name.to_owned(), labels(setup, 1))).collect();
    let mut columns = Vec::new();
    for batch in BATCHES_FEW {
        let at_batch = at([("batch", &batch)]);
        columns.push(TIME.at(&format!("batch of {batch}"), at_batch.clone()));
        let name = format!("batch of {batch}, of the first row");
        let first = [rows[0].1.clone(), at_batch.clone()].concat();
        columns.push(TIME.over(&name, first).where_(at_batch));
    }
    measurements.table(&format!("{title}: time of a no-op"), &rows, &columns)
}

/// Returns the counterpart of the write-up's request cache: there the kernel reuses the memory of a request, here the
/// engine does.
fn of_slots(measurements: Measurements<'_>) -> Table {
    let rows = rows([
        ("fresh: the table grows", slots(true)),
        ("reused: the table exists", slots(false)),
        ("reused and in the processor's cache: 64 in flight", engine(BATCH_COMPARED)),
    ]);
    let columns = [TIME.shown(), TIME.over("of the first row", slots(true))];
    measurements.table("The engine's slots: time of a no-op, 16384 in flight", &rows, &columns)
}

/// Returns the table for the write-up's question whether io_uring stays slimmer than libaio. libaio has no no-op
/// (`IOCB_CMD_NOOP` has a number but no implementation in the kernel), so both read: zero bytes, which resembles a
/// no-op, and a resident page.
fn beside_libaio(measurements: Measurements<'_>) -> Table {
    let methods = [
        ("ring without flags", ReadMethod::Ring),
        ("ring as this server's", ReadMethod::RingAsEngine),
        ("libaio", ReadMethod::Libaio),
        ("libaio, completions from shared memory", ReadMethod::LibaioReaping),
    ];
    let mut rows = Vec::new();
    for bytes in READ_BYTES {
        let what = if bytes == 0 { "read of no bytes" } else { "read of a page in memory" };
        let row =
            |(name, method)| (format!("{what}: {name}"), Subject::Read { method, bytes, batch: 1 }.labels());
        rows.extend(methods.map(row));
    }
    let columns: Vec<ShownColumn> = BATCHES_FEW
        .iter()
        .flat_map(|batch| {
            let at_batch = || at([("batch", batch)]);
            let calls = format!("batch of {batch}: system calls per operation");
            [TIME.at(&format!("batch of {batch}"), at_batch()), ENTRIES.at(&calls, at_batch())]
        })
        .collect();
    measurements.table("libaio compared with io_uring; libaio has no no-op", &rows, &columns)
}

fn plot(measurements: Measurements<'_>) -> Plot {
    let line = |(name, labels): (&str, Labels)| {
        let labels = labels.into_iter().filter(|(name, _)| *name != "batch");
        (name.to_owned(), labels.collect::<Labels>())
    };
    measurements.plot(
        ("nop-batch", "No-ops per second by batch, one processor"),
        ("batch", axis("operations per system call", "", AxisScale::Logarithmic)),
        (RATE, axis("no-ops", "1/s", AxisScale::Linear)),
        &compared(1).map(line),
    )
}

/// Returns the finding about the first claim of the thread, which needs two kernels on one machine.
fn growth(measurements: Measurements<'_>) -> Finding {
    let claim = "No-ops become slower with newer kernels: 6.1 million per second on 5.1, 5.3 million on 5.7.";
    // With the write-up's batch size, since the rate depends mostly on the batch size.
    let rate = |labels: Labels| measurements.middle(RATE, &labels);
    let (Some(plain), Some(flags)) = (rate(plain(BATCH_OF_WRITE_UP)), rate(bare(BATCH_OF_WRITE_UP))) else {
        return open(claim);
    };
    let sentence = format!(
        "A comparison needs two kernels on one machine. This kernel reaches {:.1} million per second without flags and {:.1} million with this server's flags.",
        plain / 1e6,
        flags / 1e6
    );
    finding(claim, Verdict::Open, sentence)
}

/// Returns the finding about the claim of the patch, for the engine's table.
fn recycling(measurements: Measurements<'_>) -> Finding {
    let claim = "Recycling requests instead of allocating them makes no-ops faster (10.9 instead of 9.8 million per second).";
    // By rates, as in the write-up; the table beside it has the times.
    let [Some(fresh), Some(used)] = [true, false].map(|fresh| measurements.middle(RATE, &slots(fresh)))
    else {
        return open(claim);
    };
    let gain = used / fresh - 1.0;
    // A difference within the noise means that recycling neither costs nor gains anything.
    let verdict = match gain {
        gain if gain > NOTEWORTHY => Verdict::Holds,
        gain if gain > -NOTEWORTHY => Verdict::Partly,
        _ => Verdict::Fails,
    };
    let sentence = format!(
        "The kernel has such a cache now; the counterpart here is the operation table. The engine reaches {:.1} million no-ops per second on reused slots and {:.1} million on fresh ones: {:+.0} %.",
        used / 1e6,
        fresh / 1e6,
        gain * 100.0
    );
    finding(claim, verdict, sentence)
}

/// Returns the finding about the promise at the thread's end. It is about time and about system calls, and holds only
/// if both improve.
fn overhead_finding(measurements: Measurements<'_>) -> Finding {
    let claim = "io_uring has less overhead than libaio, and needs fewer system calls.";
    let batch = BATCH_COMPARED;
    let of = |figure, bytes, batch| {
        let middle = |method| measurements.middle(figure, &Subject::Read { method, bytes, batch }.labels());
        middle(ReadMethod::RingAsEngine).zip(middle(ReadMethod::Libaio))
    };
    // For a batch of one, where calls differ most: a larger batch divides the calls of both.
    let found = (of(TIME, 0, 1), of(TIME, 0, batch), of(TIME, 4096, batch), of(ENTRIES, 0, 1));
    let (Some(one), Some(many), Some(page), Some(calls)) = found else { return open(claim) };
    // In each of the three comparisons, and by more than the noise.
    let slim = [one, many, page].iter().filter(|(ring, aio)| ring / aio < 1.0 - NOTEWORTHY).count();
    let verdict = match (slim, calls.0 < calls.1) {
        (3, true) => Verdict::Holds,
        (0, false) => Verdict::Fails,
        _ => Verdict::Partly,
    };
    let sentence = format!(
        "One at a time, a read of zero bytes takes {:.0} ns by io_uring and {:.0} ns by libaio; in batches of {batch} {:.0} and {:.0} ns; a resident page {:.0} and {:.0} ns. One operation at a time needs {:.0} system call by io_uring and {:.0} by libaio.",
        one.0, one.1, many.0, many.1, page.0, page.1, calls.0, calls.1
    );
    finding(claim, verdict, sentence)
}

/// Returns the finding about the project's own requirement. Ratios are computed round by round; the times show the
/// difference in nanoseconds.
fn engine_share(measurements: Measurements<'_>) -> Finding {
    let claim = "This server's engine reaches at least 0.80 of the rate of bare io_uring at batches of 64.";
    let (ours, theirs) = (engine(BATCH_COMPARED), bare(BATCH_COMPARED));
    let found = (
        measurements.ratio(RATE, &ours, &theirs),
        measurements.middle(TIME, &ours),
        measurements.middle(TIME, &theirs),
    );
    let (Some(share), Some(ours), Some(theirs)) = found else { return open(claim) };
    let verdict = if share.median >= ENGINE_SHARE_WANTED { Verdict::Holds } else { Verdict::Fails };
    let sentence = format!(
        "A no-op takes {ours:.1} ns through the engine and {theirs:.1} ns on bare io_uring with the same flags: {:.2} of the rate ({:.2} to {:.2}).",
        share.median, share.low, share.high
    );
    finding(claim, verdict, sentence)
}
