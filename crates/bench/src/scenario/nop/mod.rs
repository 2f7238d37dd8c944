//! `bench nop`: the overhead of an operation without any work.
//!
//! Measures no-ops on a bare ring with each set-up flag, and through this server's engine (without an executor), also on
//! fresh and on reused slots of the engine's table. libaio has no no-op, so it is compared with io_uring by reads that
//! complete immediately. [`setups`] has the sets of flags, [`subject`] the measured loops.

mod setups;
mod subject;

use std::time::Duration;

use bare::RingSetup;
use clap::Args;

use self::setups::FlagTable;
use self::subject::Subject;
use super::comparison;
use super::described::Scenario;
use super::measurements::{
    Figure, Labels, Measurements, NOT_MEASURED, Of, Rows, ShownColumn, at, at_least, axis, figure, finding,
    finding_of_cases, open, spread,
};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::pin;
use crate::method::stats::Summary;
use crate::report::model::{AxisScale, Finding, Plot, Results, Section, Table, Verdict};

#[derive(Args, Clone, Debug)]
pub(crate) struct NopOptions {
    /// Operations submitted with one system call, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096),
        default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    batch: Vec<u32>,
    /// The processor that everything runs on [default: the last one that this process may use]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Batch size at which the engine and the bare ring are compared.
const BATCH_COMPARED: u32 = 64;
/// Batch size of the write-up's tool, the number of requests that the kernel then allocated in one call.
const BATCH_OF_WRITE_UP: u32 = 16;
/// Batch sizes of the comparison with libaio, and of the set-up flags. A batch of one shows the cost of a system call, a
/// large one that of an operation.
const BATCHES_FEW: [u32; 2] = [1, BATCH_COMPARED];
/// Bytes of the reads that both libaio and io_uring support, none and a resident page, with their names.
const READS: [(u32, &str); 2] = [(0, "read of no bytes"), (4096, "read of a page in memory")];

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

impl Scenario for NopOptions {
    const NAME: &'static str = "nop";
    const MINUTES: u32 = 2;
    const TITLE: &'static str = "No-ops: the cost of an operation that does nothing";
    const QUESTION: &'static str = "How many no-ops per second does one processor submit to io_uring, what do the set-up flags change, and what does this server's engine add?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let (cpu, other) = self.processors()?;
        let flags = setups::tables(other as u32);
        let mut subjects = self.subjects(&flags);
        // One page is the smallest read for which a file system returns data, and it stays resident for the complete
        // run.
        let directory = bench.workspace.directory("nop")?;
        let file = subject::resident_file(&directory)?;
        // Each figure is measured once per round, so that a temporary slowdown of the machine affects all figures.
        bench.progress(format_args!("nop: {} figures, {:?} each", subjects.len(), length(bench)));
        comparison::measure(bench, section, &mut subjects, Subject::labels, |subject, _, _| {
            subject.measure(cpu, &file, length(bench))
        })?;
        Ok(self.results(Measurements::of(section), &flags))
    }
}

/// Returns the duration of each measurement. A million operations suffice for three digits, and a disturbance is easier
/// to detect with further rounds than with longer ones.
fn length(bench: &Bench) -> Duration {
    // The length of an instant run is shorter than a scheduler time slice: it only shows that the loops run.
    let length = Duration::from_millis(bench.scaled(5, 100, 500));
    bench.seconds.map_or(length, Duration::from_secs_f64)
}

impl NopOptions {
    /// Returns the processor of the measured loop and one for a kernel thread: a different one, if the process may use two.
    fn processors(&self) -> Result<(usize, usize), Failure> {
        let cpus = pin::available();
        let cpu = self.cpu.unwrap_or(cpus[cpus.len() - 1]);
        if !cpus.contains(&cpu) {
            let may = format!("this process may use processors {} to {}", cpus[0], cpus[cpus.len() - 1]);
            return Err(Failure::Usage(format!("--cpu {cpu}: {may}")));
        }
        Ok((cpu, cpus.iter().copied().find(|&other| other != cpu).unwrap_or(cpu)))
    }

    /// Returns all subjects without duplicates, with those that are compared next to each other, so that a drift affects
    /// them alike.
    fn subjects(&self, flags: &[FlagTable]) -> Vec<Subject> {
        // The write-up's table and the comparison with the bare ring always need their batch sizes.
        let batches = self.batch.iter().copied().chain([BATCH_OF_WRITE_UP, BATCH_COMPARED]);
        let no_ops = |batch| compared().map(|(_, subject)| subject(batch));
        let flagged = |batch| {
            let setups = flags.iter().flat_map(|table| &table.rows);
            setups.map(move |(_, setup)| with_flags(*setup, batch)).collect::<Vec<_>>()
        };
        let reads = |batch| {
            READS
                .map(|(bytes, _)| [true, false].map(|by_ring| Subject::Read { by_ring, bytes, batch }))
                .concat()
        };
        let slots = [true, false].map(|fresh| Subject::Slots { fresh });
        let few = |batch| [flagged(batch), reads(batch)].concat();
        let all = batches.flat_map(no_ops).chain(BATCHES_FEW.into_iter().flat_map(few)).chain(slots);
        let mut subjects = Vec::new();
        for subject in all {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        subjects
    }

    fn results(&self, measurements: Measurements<'_>, flags: &[FlagTable]) -> Results {
        let title = format!("Time of a no-op, batches of {BATCH_COMPARED}, one processor");
        let mut tables = vec![as_write_up(measurements), by_batch(measurements, &self.batch)];
        tables.extend(flags.iter().map(|table| by_flags(measurements, table)));
        tables.push(beside_libaio(measurements));
        Results {
            tables,
            plots: vec![plot(measurements)],
            findings: vec![
                growth(),
                bulk(),
                recycling(measurements),
                overhead_finding(measurements),
                engine_share(measurements),
            ],
            rankings: vec![measurements.ranking(&title, TIME, &rows(BATCH_COMPARED))],
        }
    }
}

/// Returns no-ops on a ring of these flags, with room for a batch.
fn with_flags(setup: RingSetup, batch: u32) -> Subject {
    Subject::Ring { setup: RingSetup { entries: batch, ..setup }, batch }
}

/// Creates a subject for a batch size.
type OfBatch = fn(u32) -> Subject;

/// The no-ops that are compared, by batch size. A ring without flags is that of a program that does not know the flags.
/// The engine is compared with a ring of the same flags, so that only the surrounding code differs.
fn compared() -> [(&'static str, OfBatch); 3] {
    [
        ("ring set up as this server's", |batch| with_flags(RingSetup::as_engine(batch), batch)),
        ("this server's engine", |batch| Subject::Engine { batch }),
        ("ring without flags", |batch| with_flags(RingSetup::plain(batch), batch)),
    ]
}

/// Returns rows of the compared no-ops at this batch size.
fn rows(batch: u32) -> Rows {
    compared().map(|(name, subject)| (name.to_owned(), subject(batch).labels())).into()
}

/// Returns the table in the write-up's form: a total and a rate for each variant. The write-up's rows are kernels and
/// patches; one machine has one kernel, so these rows are ways of using it. The last two are the counterpart of the
/// write-up's request cache: there the kernel reuses the memory of a request, here the engine does.
fn as_write_up(measurements: Measurements<'_>) -> Table {
    let slots = [("fresh", true), ("reused", false)].map(|(name, fresh)| {
        let name = format!("this server's engine, {name} slots (batches of {BATCH_COMPARED})");
        (name, Subject::Slots { fresh }.labels())
    });
    let rows = [rows(BATCH_OF_WRITE_UP), slots.into()].concat();
    let title = "No-ops by io_uring, batches of 16, one pinned processor";
    measurements.table(title, &rows, &[TOTAL.shown(), RATE.shown()])
}

/// Returns the rates by batch size, and the ratio of the engine's rate to that of the bare ring.
fn by_batch(measurements: Measurements<'_>, batches: &[u32]) -> Table {
    // The columns identify the subjects; a row only adds its batch size.
    let [bare, engine, plain] = compared().map(|(_, subject)| without_batch(subject(1)));
    let columns = [
        RATE.at("ring without flags", plain),
        RATE.at("ring set up as this server's", bare.clone()),
        RATE.at("engine", engine.clone()),
        RATE.over("engine / ring", bare).where_(engine.clone()),
        ENTRIES.at("engine's system calls per operation", engine),
    ];
    let rows: Rows = batches.iter().map(|batch| (batch.to_string(), at([("batch", batch)]))).collect();
    measurements.table("No-ops by batch size: bare io_uring, and this server's engine", &rows, &columns)
}

/// Returns the times of a no-op with each set of flags, and their ratios to the first one.
fn by_flags(measurements: Measurements<'_>, table: &FlagTable) -> Table {
    let labels =
        |(name, setup): &(&str, RingSetup)| ((*name).to_owned(), without_batch(with_flags(*setup, 1)));
    let rows: Rows = table.rows.iter().map(labels).collect();
    let column = |batch: u32| -> [ShownColumn; 2] {
        let at_batch = || at([("batch", &batch)]);
        let first = [rows[0].1.as_slice(), &at_batch()].concat();
        [
            TIME.at(&format!("batch of {batch}"), at_batch()),
            TIME.over(&format!("batch of {batch}, of the first row"), first).where_(at_batch()),
        ]
    };
    let columns: Vec<ShownColumn> = BATCHES_FEW.into_iter().flat_map(column).collect();
    measurements.table(&format!("{}: time of a no-op", table.title), &rows, &columns)
}

fn without_batch(subject: Subject) -> Labels {
    subject.labels().into_iter().filter(|(name, _)| *name != "batch").collect()
}

/// Returns the table for the write-up's question whether io_uring stays slimmer than libaio. libaio has no no-op
/// (`IOCB_CMD_NOOP` has a number but no implementation in the kernel), so both read: zero bytes, which resembles a
/// no-op, and a resident page.
fn beside_libaio(measurements: Measurements<'_>) -> Table {
    let row = |(bytes, what): (u32, &str)| {
        [("ring as this server's", true), ("libaio", false)].map(|(name, by_ring)| {
            (format!("{what}: {name}"), without_batch(Subject::Read { by_ring, bytes, batch: 1 }))
        })
    };
    let column = |batch: u32| -> [ShownColumn; 2] {
        let at_batch = || at([("batch", &batch)]);
        let calls = format!("batch of {batch}: system calls per operation");
        [TIME.at(&format!("batch of {batch}"), at_batch()), ENTRIES.at(&calls, at_batch())]
    };
    let (rows, columns): (Rows, Vec<ShownColumn>) =
        (READS.into_iter().flat_map(row).collect(), BATCHES_FEW.into_iter().flat_map(column).collect());
    measurements.table("libaio compared with io_uring; libaio has no no-op", &rows, &columns)
}

fn plot(measurements: Measurements<'_>) -> Plot {
    let line = |(name, subject): (&str, fn(u32) -> Subject)| (name.to_owned(), without_batch(subject(1)));
    measurements.plot(
        ("nop-batch", "No-ops per second by batch, one processor"),
        ("batch", axis("operations per system call", "", AxisScale::Logarithmic)),
        (RATE, axis("no-ops", "1/s", AxisScale::Linear)),
        &compared().map(line),
    )
}

/// Returns the finding about the first claim of the thread.
fn growth() -> Finding {
    let claim = "No-ops become slower with newer kernels: 6.1 million per second on 5.1, 5.3 million on 5.7.";
    let sentence =
        "A comparison needs two kernels on one machine; the first table has the rates of this kernel.";
    finding(claim, Verdict::Open, sentence)
}

/// Returns the finding about the allocation of requests.
fn bulk() -> Finding {
    let claim = "Without allocation in bulk no-ops are 3 % slower (9.5 instead of 9.8 million per second).";
    finding(claim, Verdict::Open, "Only a patched kernel allocates its requests one by one.")
}

/// Returns the finding about the claim of the patch, for the engine's table. A difference within the noise means that
/// recycling neither costs nor gains anything.
fn recycling(measurements: Measurements<'_>) -> Finding {
    let claim = "Recycling requests instead of allocating them makes no-ops faster (10.9 instead of 9.8 million per second).";
    let [fresh, reused] = [true, false].map(|fresh| Subject::Slots { fresh }.labels());
    let Some(gain) = measurements.ratio(RATE, &reused, &fresh) else { return open(claim) };
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
        let of = |by_ring| Subject::Read { by_ring, bytes, batch }.labels();
        (words.to_owned(), of(true), of(false))
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
    let [bare, engine, _] = compared().map(|(_, subject)| subject(BATCH_COMPARED).labels());
    let case = [("batches of 64".to_owned(), engine, bare)];
    let is_met = |ratio: &Summary| ratio.median >= ENGINE_SHARE_WANTED;
    measurements.finding_of_ratios(claim, words, RATE, case, is_met)
}
