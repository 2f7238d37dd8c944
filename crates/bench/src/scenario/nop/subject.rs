//! The loops that are measured, each on one pinned processor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bare::{AioQueue, Load, Queue, RingQueue, RingSetup, Transfer};
use io::{Completion, Engine, Op, Wait};

use crate::failure::Failure;
use crate::method::pin;
use crate::report::model::Run;
use crate::scenario::sheet::{Labels, at};

/// Operations between two looks at the clock.
const OPERATIONS_PER_LOOK: u32 = 4096;
// Such a table is larger than the second-level cache of most processors, as that of a busy server is.
/// Slots of the comparison of fresh with used ones.
const SLOTS: u32 = 1 << 14;
/// Operations that its ring is given at once.
const SLOTS_BATCH: u32 = super::BATCH_COMPARED;

/// Where it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuPair {
    /// The processor.
    pub(super) cpu: usize,
    /// That of a kernel thread beside it: another one, where there is one.
    pub(super) other: usize,
}

impl CpuPair {
    /// The processor asked for, or the last that this process may use.
    pub(super) fn find(cpu: Option<usize>) -> Result<CpuPair, Failure> {
        let cpus = pin::available();
        let last = cpus.last().copied().unwrap_or(0);
        let cpu = match cpu {
            Some(cpu) if !cpus.contains(&cpu) => {
                let first = cpus.first().copied().unwrap_or(0);
                return Err(Failure::Usage(format!(
                    "--cpu {cpu}: this process may use processors {first} to {last}"
                )));
            }
            Some(cpu) => cpu,
            None => last,
        };
        let other = cpus.iter().copied().find(|&other| other != cpu).unwrap_or(cpu);
        Ok(CpuPair { cpu, other })
    }
}

/// How a read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// A ring without flags.
    Ring,
    /// A ring as this server's.
    RingAsEngine,
    /// io_submit(2) and io_getevents(2).
    Libaio,
    /// io_submit(2), and completions out of shared memory.
    LibaioReaping,
}

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// No-ops on a bare ring.
    Ring { setup: RingSetup, batch: u32 },
    /// No-ops through this server's engine.
    Engine { batch: u32 },
    /// One thing that a batch does not have: room for everything at once.
    /// [`SLOTS`] no-ops at once through the engine, the first time or again.
    Slots { fresh: bool },
    /// Reads that wait for nothing.
    Read { way: ReadWay, bytes: u32, batch: u32 },
}

/// A file of one page that is in memory.
pub(super) fn resident_file(directory: &Path) -> Result<PathBuf, Failure> {
    let path = directory.join("page");
    // Read once after it was written: file systems that write elsewhere than they read have it in memory for certain.
    fs::write(&path, [b'x'; 4096]).map_err(Failure::file("write", &path))?;
    fs::read(&path).map_err(Failure::file("read", &path))?;
    Ok(path)
}

impl Subject {
    /// The names by which a reader of the raw figures finds this measurement.
    pub(super) fn labels(&self) -> Labels {
        match self {
            Subject::Ring { setup, batch } => at([
                ("subject", &"bare ring"),
                ("flags", &format!("{:#x}", setup.flags)),
                ("registered_fd", &setup.registered_fd),
                ("batch", batch),
                ("as_engine", &(*setup == RingSetup::as_engine(*batch))),
                ("polled", &setup.poller_cpu.is_some()),
            ]),
            Subject::Engine { batch } => at([("subject", &"engine"), ("batch", batch)]),
            Subject::Slots { fresh } => {
                at([("subject", &"engine's slots"), ("slots", &if *fresh { "fresh" } else { "used again" })])
            }
            Subject::Read { way, bytes, batch } => {
                at([("subject", &format!("read by {way:?}")), ("bytes", bytes), ("batch", batch)])
            }
        }
    }

    /// Measures for `length` in a thread of its own on the processor of `place`. The inner error says what this machine
    /// does not have.
    pub(super) fn measure(
        self,
        place: CpuPair,
        file: &Path,
        length: Duration,
    ) -> Result<Result<Run, String>, Failure> {
        let pinned = || {
            pin::this_thread(place.cpu).map_err(text)?;
            self.measure_here(file, length)
        };
        // Nothing else runs on the processor because of us: the thread that waits here sleeps meanwhile.
        // A thread of its own: the affinity ends with it, and so does a ring that only its maker may enter.
        let result = std::thread::scope(|scope| scope.spawn(pinned).join());
        result.map_err(|_| Failure::Other(format!("the measurement of {self:?} panicked")))
    }

    /// The measurement itself, in the thread that makes and owns the ring.
    fn measure_here(self, file: &Path, length: Duration) -> Result<Run, String> {
        match self {
            Subject::Ring { setup, batch } => {
                let mut ring = RingQueue::new(setup, no_load()).map_err(text)?;
                repeat(length, batch, &mut ring, |ring| ring.nops(batch).map_err(text), Queue::kernel_entries)
            }
            // As a worker thread has it, receive buffers and doorbell included: what a server pays is what is measured.
            Subject::Engine { batch } => {
                let mut engine = engine(4096, 1024)?;
                let mut done = Vec::with_capacity(batch as usize);
                let round = |engine: &mut Box<dyn Engine>| no_ops(engine.as_mut(), batch, &mut done);
                repeat(length, batch, &mut engine, round, |engine| engine.counters().kernel_entries)
            }
            Subject::Slots { fresh } => slots(fresh, length),
            Subject::Read { way, bytes, batch } => read(way, bytes, batch, file, length),
        }
    }
}

/// An error in words, for a cell that has no figure.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Files and buffers of a ring that carries no-ops only.
/// A ring needs a buffer for each place, and one place at least.
fn no_load() -> Load {
    Load { files: Vec::new(), depth: 1, block_bytes: 4096 }
}

/// Repeats a round of `batch` operations for a fifth of `length` unmeasured, then for all of it.
fn repeat<T>(
    length: Duration,
    batch: u32,
    on: &mut T,
    mut round: impl FnMut(&mut T) -> Result<(), String>,
    entries: impl Fn(&T) -> u64,
) -> Result<Run, String> {
    // A look at the clock takes as long as an operation: one in thousands is lost in the noise, one in a batch is not.
    let rounds = (OPERATIONS_PER_LOOK / batch).max(1);
    let mut looped = |on: &mut T, length: Duration| {
        let (start, mut operations) = (Instant::now(), 0u64);
        while start.elapsed() < length {
            for _ in 0..rounds {
                round(on)?;
            }
            operations += u64::from(rounds * batch);
        }
        Ok::<_, String>((operations as f64, start.elapsed().as_secs_f64()))
    };
    // The first rounds fill caches, wake the kernel's thread and bring the processor to speed.
    looped(on, length / 5)?;
    let before = entries(on);
    let (operations, seconds) = looped(on, length)?;
    Ok(run(operations, seconds, entries(on) - before))
}

/// As it was counted: rates follow from these, and so does anything else that a reader wants to know.
fn run(operations: f64, seconds: f64, kernel_entries: u64) -> Run {
    Run::of([("operations", operations), ("seconds", seconds), ("kernel_entries", kernel_entries as f64)])
}

/// An engine like that of a worker thread, with room for so many operations.
fn engine(ops_max: u32, ring_entries: u32) -> Result<Box<dyn Engine>, String> {
    io::build(io::engine::EngineConfig { ops_max, ring_entries, ..Default::default() }).map_err(text)
}

/// Submits `count` no-ops to an engine and takes turns until all have completed.
fn no_ops(engine: &mut dyn Engine, count: u32, done: &mut Vec<Completion>) -> Result<(), String> {
    // Completions come with the turn, never from within a submission: there is nothing to look at in between.
    for _ in 0..count {
        engine.submit(Op::Nop).map_err(|_| "the engine's table is full".to_owned())?;
    }
    // One turn is enough for what completes at once; a kernel that completes less at a time gets another.
    while done.len() < count as usize {
        engine.turn(Wait::Forever, done).map_err(text)?;
    }
    // Looked at all together, so that the loop before is what a server's would be.
    let failed = done.iter().any(|completion| completion.result.is_err());
    done.clear();
    if failed { Err("a no-op failed".to_owned()) } else { Ok(()) }
}

/// All slots of an engine at once, over and over: on new engines, or for the second time on each. Both are given to the
/// kernel in the same batches and touch as much memory; the first time the table is made, the second it is there.
fn slots(fresh: bool, length: Duration) -> Result<Run, String> {
    let (mut operations, mut seconds, mut entries) = (0.0, 0.0, 0);
    let mut done = Vec::with_capacity(SLOTS as usize);
    while seconds < length.as_secs_f64() {
        // Made anew for each pass, outside of what is timed: an engine's slots are fresh only once.
        let mut engine = engine(SLOTS, SLOTS_BATCH)?;
        if !fresh {
            no_ops(engine.as_mut(), SLOTS, &mut done)?;
        }
        let (before, start) = (engine.counters().kernel_entries, Instant::now());
        no_ops(engine.as_mut(), SLOTS, &mut done)?;
        // The drop of the engine, which gives the table back, is not timed either.
        seconds += start.elapsed().as_secs_f64();
        entries += engine.counters().kernel_entries - before;
        operations += f64::from(SLOTS);
    }
    Ok(run(operations, seconds, entries))
}

/// Reads of one kind, all of the same page.
fn read(way: ReadWay, bytes: u32, batch: u32, path: &Path, length: Duration) -> Result<Run, String> {
    let file = File::open(path).map_err(text)?;
    // Buffered, not direct: the page is in memory, so that neither of the two ever waits for a device.
    let load = Load { files: vec![file.into()], depth: batch, block_bytes: 4096 };
    let transfer = Transfer { write: false, file: 0, offset: 0, len: bytes };
    let mut done = Vec::with_capacity(batch as usize);
    let check = move |queue_done: &mut Vec<bare::Done>| {
        let failed = queue_done.iter().find_map(|done| done.result.err());
        queue_done.clear();
        failed.map_or(Ok(()), |errno| Err(text(errno)))
    };
    match way {
        ReadWay::Ring | ReadWay::RingAsEngine => {
            let setup =
                if way == ReadWay::Ring { RingSetup::plain(batch) } else { RingSetup::as_engine(batch) };
            let mut ring = RingQueue::new(setup, load).map_err(text)?;
            let round = |ring: &mut RingQueue| {
                push(ring, transfer, batch)?;
                ring.submit_and_wait(batch, &mut done).map_err(text)?;
                check(&mut done)
            };
            repeat(length, batch, &mut ring, round, Queue::kernel_entries)
        }
        // Everybody's libaio takes completions by a system call. The kernel shares their ring with the process, though,
        // and who knows its layout can look for himself, as this server does.
        ReadWay::Libaio | ReadWay::LibaioReaping => {
            let mut aio = AioQueue::new(load).map_err(text)?;
            let round = |aio: &mut AioQueue| {
                push(aio, transfer, batch)?;
                aio.submit().map_err(text)?;
                // A resident page has been read when io_submit returns, so that all completions are there already; if
                // one is not, the system call waits for it.
                let reaped = if way == ReadWay::LibaioReaping { aio.reap(&mut done) } else { 0 };
                if reaped < batch {
                    aio.wait(batch - reaped, &mut done).map_err(text)?;
                }
                check(&mut done)
            };
            repeat(length, batch, &mut aio, round, Queue::kernel_entries)
        }
    }
}

/// Fills a queue that is empty.
fn push(queue: &mut impl Queue, transfer: Transfer, count: u32) -> Result<(), String> {
    (0..count).try_for_each(|_| queue.push(transfer).map(|_| ()).ok_or("the queue is full".to_owned()))
}
