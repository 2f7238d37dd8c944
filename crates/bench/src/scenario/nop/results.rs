//! Tables, a plot and the verdicts on the write-up's claims, from the measurements of `bench nop`.

use bare::RingSetup;

use super::subject::{CpuPair, ReadMethod, Subject};
use super::{BATCH_COMPARED, BATCH_OF_WRITE_UP, BATCHES_FEW, NopOptions, READ_BYTES, alone, left_out};
use crate::method::stats::Summary;
use crate::report::model::{AxisScale, Finding, Plot, Results, Table, Verdict};
use crate::scenario::measurements::{
    Figure, Labels, Measurements, NOT_MEASURED, Of, Rows, ShownColumn, at, at_least, axis, figure, finding,
    finding_of_cases, open, spread,
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
            growth(),
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

/// Returns the finding about the first claim of the thread.
fn growth() -> Finding {
    let claim = "No-ops become slower with newer kernels: 6.1 million per second on 5.1, 5.3 million on 5.7.";
    let sentence =
        "A comparison needs two kernels on one machine; the first table has the rates of this kernel.";
    finding(claim, Verdict::Open, sentence)
}

/// Returns the finding about the claim of the patch, for the engine's table. A difference within the noise means that
/// recycling neither costs nor gains anything.
fn recycling(measurements: Measurements<'_>) -> Finding {
    let claim = "Recycling requests instead of allocating them makes no-ops faster (10.9 instead of 9.8 million per second).";
    let Some(gain) = measurements.ratio(RATE, &slots(false), &slots(true)) else { return open(claim) };
    let sentence = format!(
        "The kernel has such a cache now; the counterpart here is the operation table. The rate on reused slots as a ratio to fresh ones: {}.",
        spread(&gain)
    );
    finding(claim, at_least(gain.median, 1.0 + NOTEWORTHY, 1.0 - NOTEWORTHY), sentence)
}

/// Returns the finding about the promise at the thread's end. It is about time and about system calls: in each
/// comparison of times io_uring must be faster by more than the noise.
fn overhead_finding(measurements: Measurements<'_>) -> Finding {
    let case = |words: &str, bytes, batch| {
        let of = |method| Subject::Read { method, bytes, batch }.labels();
        (words.to_owned(), of(ReadMethod::RingAsEngine), of(ReadMethod::Libaio))
    };
    let times = [
        case("time of a read of no bytes, one at a time", 0, 1),
        case("the same in batches of 64", 0, BATCH_COMPARED),
        case("time of a read of a resident page, in batches of 64", 4096, BATCH_COMPARED),
    ];
    // For a batch of one, where calls differ most: a larger batch divides the calls of both.
    let calls = [case("system calls of a read, one at a time", 0, 1)];
    let mut said = measurements.ratios(TIME, times, |ratio| ratio.median < 1.0 - NOTEWORTHY);
    said.extend(measurements.ratios(ENTRIES, calls, |ratio| ratio.median < 1.0));
    let claim = "io_uring has less overhead than libaio, and needs fewer system calls.";
    finding_of_cases(claim, "io_uring as a ratio to libaio: ", &said, NOT_MEASURED)
}

/// Returns the finding about the project's own requirement.
fn engine_share(measurements: Measurements<'_>) -> Finding {
    let claim = "This server's engine reaches at least 0.80 of the rate of bare io_uring at batches of 64.";
    let words = ("Rate as a ratio to bare io_uring with the same flags: ", NOT_MEASURED);
    let case = ("batches of 64".to_owned(), engine(BATCH_COMPARED), bare(BATCH_COMPARED));
    let is_met = |ratio: &Summary| ratio.median >= ENGINE_SHARE_WANTED;
    measurements.finding_of_ratios(claim, words, RATE, [case], is_met)
}
