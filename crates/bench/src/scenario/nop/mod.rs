//! `bench nop`: the overhead of an operation without any work.
//!
//! Measures no-ops on a ring with each set-up flag on and off, and through this server's engine (without an executor),
//! on fresh and on reused slots of its table. libaio has no no-op, so it is compared with io_uring by reads that
//! complete immediately. [`subject`] has the measured loops, [`results`] the tables and findings.

mod results;
mod subject;

use std::time::Duration;

use bare::{RingSetup, flags};
use clap::Args;

use self::subject::{CpuPair, ReadMethod, Subject};
use super::comparison;
use super::described::Scenario;
use super::measurements::Measurements;
use crate::context::Bench;
use crate::failure::Failure;
use crate::report::model::{Results, Section};

#[derive(Args, Clone, Debug)]
pub(crate) struct NopOptions {
    /// Operations submitted with one system call, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096),
        default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    batch: Vec<u32>,
    /// The processor that everything runs on [default: the last one this process may use]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Batch size at which the engine and the bare ring are compared.
const BATCH_COMPARED: u32 = 64;
/// Batch size of the write-up's tool, the number of requests that the kernel then allocated in one call.
const BATCH_OF_WRITE_UP: u32 = 16;
/// Batch sizes of the comparison with libaio, and of the set-up flags.
const BATCHES_FEW: [u32; 2] = [1, BATCH_COMPARED];
/// Bytes of the reads that both libaio and io_uring support: none, and a resident page.
const READ_BYTES: [u32; 2] = [0, 4096];

impl Scenario for NopOptions {
    const NAME: &'static str = "nop";
    const SECONDS: u32 = 100;
    const TITLE: &'static str = "No-ops: the cost of an operation that does nothing";
    const QUESTION: &'static str = "How many no-ops per second does one processor submit to io_uring, what do the set-up flags change, and what does this server's engine add?";

    /// Rejects a processor that this process may not use, before anything is created.
    fn check(&self) -> Result<(), Failure> {
        CpuPair::find(self.cpu).map(drop)
    }

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let place = CpuPair::find(self.cpu)?;
        let mut subjects = subjects(self, place);
        // One page is the smallest read for which a file system returns data, and it stays resident for the complete
        // run.
        let directory = bench.workspace.directory("nop")?;
        let file = subject::resident_file(&directory)?;
        // Each figure is measured once per round, so that a temporary slowdown of the machine affects all figures.
        bench.progress(format_args!("nop: {} figures, {:?} each", subjects.len(), length(bench)));
        comparison::measure(bench, section, &mut subjects, Subject::labels, |subject, _, _| {
            subject.measure(place, &file, length(bench))
        })?;
        Ok(results::results(Measurements::of(section), self, place))
    }
}

/// Returns the duration of each measurement. A million operations suffice for three digits, and a disturbance is easier
/// to detect with further rounds than with longer ones.
fn length(bench: &Bench) -> Duration {
    // The length of an instant run is shorter than a scheduler time slice: it only shows that the loops run.
    let length = Duration::from_millis(bench.scaled(5, 100, 500));
    bench.seconds.map_or(length, Duration::from_secs_f64)
}

/// Returns all subjects that the tables need, without duplicates.
fn subjects(options: &NopOptions, place: CpuPair) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let mut add = |subject: Subject| {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    };
    // The write-up's table and the comparison with the bare ring always need their batch sizes.
    let mut batches = options.batch.clone();
    batches.extend([BATCH_OF_WRITE_UP, BATCH_COMPARED]);
    for batch in batches {
        // Rings without flags are those of a program that does not know the flags. The three subjects are adjacent, so
        // that a drift affects them alike.
        add(Subject::Ring { setup: RingSetup::as_engine(batch), batch });
        add(Subject::Engine { batch });
        add(Subject::Ring { setup: RingSetup::plain(batch), batch });
    }
    // A batch of one shows the cost of a system call with these flags, a large batch that of an operation.
    for batch in BATCHES_FEW {
        for (_, setup) in alone(batch, place).into_iter().chain(left_out(batch)) {
            add(Subject::Ring { setup, batch });
        }
        for bytes in READ_BYTES {
            for method in
                [ReadMethod::Ring, ReadMethod::RingAsEngine, ReadMethod::Libaio, ReadMethod::LibaioReaping]
            {
                add(Subject::Read { method, bytes, batch });
            }
        }
    }
    // Fresh and reused slots are adjacent: they differ by only some ten nanoseconds.
    add(Subject::Slots { fresh: true });
    add(Subject::Slots { fresh: false });
    subjects
}

/// Returns rings with one flag each, and the flags that it requires.
fn alone(entries: u32, place: CpuPair) -> Vec<(&'static str, RingSetup)> {
    // DEFER_TASKRUN is rejected without SINGLE_ISSUER, and TASKRUN_FLAG without one of the two modes that run task work
    // in the owner's context (io_uring_setup(2)), so these flags are measured in pairs.
    let plain = RingSetup::plain(entries);
    let with = |flags| RingSetup { flags, ..plain };
    // On one processor, the kernel thread and the loop would alternate, and each would wait for the other's time slice
    // to end.
    let polled = RingSetup { poller_cpu: Some(place.other as u32), ..with(flags::SQPOLL) };
    vec![
        ("no flag", plain),
        ("SINGLE_ISSUER", with(flags::SINGLE_ISSUER)),
        ("SINGLE_ISSUER, DEFER_TASKRUN", with(flags::SINGLE_ISSUER | flags::DEFER_TASKRUN)),
        ("COOP_TASKRUN", with(flags::COOP_TASKRUN)),
        ("COOP_TASKRUN, TASKRUN_FLAG", with(flags::COOP_TASKRUN | flags::TASKRUN_FLAG)),
        ("NO_SQARRAY", with(flags::NO_SQARRAY)),
        ("registered ring descriptor", RingSetup { registered_fd: true, ..plain }),
        ("SQPOLL", polled),
    ]
}

/// Returns the flags of this server's ring, and the same without one flag each.
fn left_out(entries: u32) -> Vec<(&'static str, RingSetup)> {
    // Each flag of the engine must be justified: without it the time must not decrease.
    let all = RingSetup::as_engine(entries);
    let without = |flag: u32| RingSetup { flags: all.flags & !flag, ..all };
    // A ring runs its task work in one of the two modes: without one, the other one is set.
    let cooperative = |flags| RingSetup { flags: flags | flags::COOP_TASKRUN, ..all };
    let rest = all.flags & !flags::DEFER_TASKRUN;
    vec![
        ("as this server's engine", all),
        ("without NO_SQARRAY", without(flags::NO_SQARRAY)),
        ("without TASKRUN_FLAG", without(flags::TASKRUN_FLAG)),
        ("COOP_TASKRUN for DEFER_TASKRUN", cooperative(rest)),
        ("COOP_TASKRUN for both SINGLE_ISSUER and DEFER_TASKRUN", cooperative(rest & !flags::SINGLE_ISSUER)),
        ("without the registered descriptor", RingSetup { registered_fd: false, ..all }),
    ]
}
