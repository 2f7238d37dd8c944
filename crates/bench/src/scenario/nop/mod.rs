//! `bench nop`: what an operation costs before it does anything.
//!
//! No-ops through the kernel's ring with each set-up flag on and off, through this server's engine (its contract, no
//! executor), on slots of its table that are fresh and that are used again; and, beside libaio, which has no no-op,
//! reads that both can do at once. [`subject`] is what is measured, [`told`] what is made of it.

mod subject;
mod told;

use std::time::Duration;

use bare::{RingSetup, flags};
use clap::Args;

use self::subject::{CpuPair, ReadWay, Subject};
use super::described::Scenario;
use super::lineup;
use super::sheet::Sheet;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::report::model::Section;

/// The options of `bench nop`.
#[derive(Args, Clone, Debug)]
pub(crate) struct NopOptions {
    /// Operations that are submitted with one system call, several separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096),
        default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    batch: Vec<u32>,
    /// The processor that everything runs on [default: the last one this process may use]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// The batch that engine and bare ring are compared at.
const BATCH_COMPARED: u32 = 64;
/// The write-up's tool submits sixteen at a time, the number of requests that the kernel then allocated at once.
const BATCH_OF_WRITE_UP: u32 = 16;
/// Batches of the comparison with libaio, and of the set-up flags.
const BATCHES_FEW: [u32; 2] = [1, BATCH_COMPARED];
/// Bytes of the reads that libaio and ring both can do: none, and a page that is in memory.
const READ_BYTES: [u32; 2] = [0, 4096];

impl Scenario for NopOptions {
    const NAME: &'static str = "nop";
    const SECONDS: u32 = 100;
    const HELP: &'static str =
        "What an operation costs before it does anything: the ring, its flags, our engine over it, libaio";
    const TITLE: &'static str = "No-op requests: what an operation costs before it does anything";
    const QUESTION: &'static str = "How many empty operations does one processor get through the ring, what do the ring's \
                                    set-up flags change, and what does this server's engine add?";

    /// A processor that this process may not use is wrong use, and told before anything is made.
    fn check(&self) -> Result<(), Failure> {
        CpuPair::find(self.cpu).map(drop)
    }

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<(), Failure> {
        let place = CpuPair::find(self.cpu)?;
        let mut subjects = subjects(self, place);
        // One page is the smallest read that a file system returns data for, and it stays in memory for the whole run.
        let directory = bench.workspace.directory("nop")?;
        let file = subject::resident_file(&directory)?;
        // Each figure is taken once in every round, so that a slow minute of the machine is in all of them.
        bench.progress(format_args!("nop: {} figures, {:?} each", subjects.len(), length(bench)));
        lineup::measure(bench, section, &mut subjects, Subject::labels, |subject, _, _| {
            subject.measure(place, &file, length(bench))
        })?;
        let told = told::told(Sheet::of(section), self, place);
        section.tell(told);
        Ok(())
    }
}

/// How long each figure is measured. A million operations are enough for three digits, and a disturbance shows better
/// in another round than in a longer one.
fn length(bench: &Bench) -> Duration {
    match (bench.seconds, bench.scale) {
        (Some(_), _) => bench.length(Duration::from_millis(500)),
        // Shorter than a scheduler's turn: shows that a loop runs, and nothing else.
        (None, Scale::Instant) => Duration::from_millis(5),
        (None, Scale::Quick) => Duration::from_millis(100),
        (None, Scale::Normal | Scale::Full) => Duration::from_millis(500),
    }
}

/// Everything that the tables ask for, each only once however often it is asked for.
fn subjects(options: &NopOptions, place: CpuPair) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let mut add = |subject: Subject| {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    };
    // The write-up's table and the comparison with the bare ring need their batches, whatever the user asks for.
    let mut batches = options.batch.clone();
    batches.extend([BATCH_OF_WRITE_UP, BATCH_COMPARED]);
    for batch in batches {
        // Rings without flags are what a program has that never heard of them.
        // The three stand side by side, so that what drifts drifts for all of them.
        add(Subject::Ring { setup: RingSetup::as_engine(batch), batch });
        add(Subject::Engine { batch });
        add(Subject::Ring { setup: RingSetup::plain(batch), batch });
    }
    // One at a time shows what a system call costs with these flags, many at a time what an operation does.
    for batch in BATCHES_FEW {
        for (_, setup) in alone(batch, place).into_iter().chain(left_out(batch)) {
            add(Subject::Ring { setup, batch });
        }
        for bytes in READ_BYTES {
            for way in [ReadWay::Ring, ReadWay::RingAsEngine, ReadWay::Libaio, ReadWay::LibaioReaping] {
                add(Subject::Read { way, bytes, batch });
            }
        }
    }
    // Fresh and used slots stand next to each other: they are told apart by some ten nanoseconds.
    add(Subject::Slots { fresh: true });
    add(Subject::Slots { fresh: false });
    subjects
}

/// Rings with one flag, and with those that it needs.
fn alone(entries: u32, place: CpuPair) -> Vec<(&'static str, RingSetup)> {
    // DEFER_TASKRUN is refused without SINGLE_ISSUER, and TASKRUN_FLAG without one of the two ways of running task work
    // in the owner's own time (io_uring_setup(2)), so these come in pairs.
    let plain = RingSetup::plain(entries);
    let with = |flags| RingSetup { flags, ..plain };
    // The kernel thread would take turns with the loop on one processor, and each would wait for the other's turn to end.
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

/// The flags of this server's ring, and the same without one of them.
fn left_out(entries: u32) -> Vec<(&'static str, RingSetup)> {
    // Each flag that the engine sets has to earn its place: left out, the time must not become less.
    let all = RingSetup::as_engine(entries);
    let without = |flag: u32| RingSetup { flags: all.flags & !flag, ..all };
    // A ring runs its task work in one of the two ways: the one that is left out leaves its place to the other.
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
