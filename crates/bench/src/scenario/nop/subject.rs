//! The measured loops, each on one pinned processor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bare::{AioQueue, Load, Queue, RingQueue, RingSetup, Transfer};
use io::{Completion, Engine, Op, Wait};

use crate::failure::Failure;
use crate::method::pin;
use crate::report::model::Run;
use crate::scenario::measurements::{Labels, at};

/// Number of operations between two reads of the clock.
const OPERATIONS_PER_LOOK: u32 = 4096;
// Such a table exceeds the L2 cache of most processors, like that of a busy server.
/// Number of slots in the comparison of fresh and reused ones.
const SLOTS: u32 = 1 << 14;
/// Number of operations submitted to its ring in one call.
const SLOTS_BATCH: u32 = super::BATCH_COMPARED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// No-ops on a bare ring of this configuration.
    Ring { setup: RingSetup, batch: u32 },
    /// No-ops through this server's engine.
    Engine { batch: u32 },
    /// [`SLOTS`] concurrent no-ops through the engine, on fresh or on reused slots. Unlike a batch, all of them are in
    /// flight at the same time.
    Slots { fresh: bool },
    /// Reads that never wait: by a ring with the server's configuration, or by io_submit(2) and io_getevents(2).
    Read { by_ring: bool, bytes: u32, batch: u32 },
}

/// Creates a resident file of one page.
pub(super) fn resident_file(directory: &Path) -> Result<PathBuf, Failure> {
    let path = directory.join("page");
    // Read once after the write: on file systems with copy-on-write the written page need not be the one that is read.
    fs::write(&path, [b'x'; 4096]).map_err(Failure::file("write", &path))?;
    fs::read(&path).map_err(Failure::file("read", &path))?;
    Ok(path)
}

impl Subject {
    /// Returns the labels that identify a measurement in the raw figures.
    pub(super) fn labels(&self) -> Labels {
        match self {
            // The number of entries differs between batches, so it is not a label.
            Subject::Ring { setup, batch } => at([
                ("subject", &"bare ring"),
                ("flags", &format!("{:#x}", setup.flags)),
                ("registered_fd", &setup.registered_fd),
                ("batch", batch),
            ]),
            Subject::Engine { batch } => at([("subject", &"engine"), ("batch", batch)]),
            Subject::Slots { fresh } => at([
                ("subject", &"engine's slots"),
                ("slots", &if *fresh { "fresh" } else { "used again" }),
                ("batch", &SLOTS_BATCH),
            ]),
            Subject::Read { by_ring, bytes, batch } => {
                let subject = if *by_ring { "read by io_uring" } else { "read by libaio" };
                at([("subject", &subject), ("bytes", bytes), ("batch", batch)])
            }
        }
    }

    /// Measures for `length` in a separate thread on this processor. Fails with the reason if the machine does
    /// not support the operation.
    pub(super) fn measure(self, cpu: usize, file: &Path, length: Duration) -> Result<Run, Failure> {
        let pinned = || {
            pin::this_thread(cpu)?;
            self.measure_here(file, length).map_err(Failure::Other)
        };
        // The waiting thread sleeps, so it does not use the processor. A separate thread, because its affinity ends
        // with it, and because only the creator may enter a ring.
        let result = std::thread::scope(|scope| scope.spawn(pinned).join());
        result.unwrap_or_else(|_| Err(Failure::Other(format!("the measurement of {self:?} panicked"))))
    }

    /// Makes the measurement, in the thread that creates and owns the ring.
    fn measure_here(self, file: &Path, length: Duration) -> Result<Run, String> {
        match self {
            Subject::Ring { setup, batch } => {
                // A ring needs a buffer per slot, and at least one slot.
                let load = Load { files: Vec::new(), depth: 1, block_bytes: 4096 };
                let mut ring = RingQueue::new(setup, load).map_err(text)?;
                repeat(length, batch, &mut ring, |ring| ring.nops(batch).map_err(text), Queue::kernel_entries)
            }
            // Configured as in a worker thread, including receive buffers and doorbell: the cost in a server is to be
            // measured.
            Subject::Engine { batch } => {
                let mut engine = engine(4096, 1024)?;
                let mut done = Vec::with_capacity(batch as usize);
                let round = |engine: &mut Box<dyn Engine>| no_ops(engine.as_mut(), batch, &mut done);
                repeat(length, batch, &mut engine, round, |engine| engine.counters().kernel_entries)
            }
            Subject::Slots { fresh } => slots(fresh, length),
            Subject::Read { by_ring, bytes, batch } => read(by_ring, bytes, batch, file, length),
        }
    }
}

/// Converts an error to the text of a cell without a figure.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Repeats a round of `batch` operations for a fifth of `length` without measuring, then measures for `length`.
fn repeat<T>(
    length: Duration,
    batch: u32,
    on: &mut T,
    mut round: impl FnMut(&mut T) -> Result<(), String>,
    entries: impl Fn(&T) -> u64,
) -> Result<Run, String> {
    // A read of the clock takes as long as an operation: one per thousands of operations is negligible, one per batch
    // is not.
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
    // The first rounds fill caches and raise the processor's frequency.
    looped(on, length / 5)?;
    let before = entries(on);
    let (operations, seconds) = looped(on, length)?;
    Ok(run(operations, seconds, entries(on) - before))
}

/// Returns the raw counts, from which rates and other figures can be derived.
fn run(operations: f64, seconds: f64, kernel_entries: u64) -> Run {
    Run::of([("operations", operations), ("seconds", seconds), ("kernel_entries", kernel_entries as f64)])
}

/// Creates an engine like that of a worker thread, for this number of operations.
fn engine(ops_max: u32, ring_entries: u32) -> Result<Box<dyn Engine>, String> {
    io::build(io::engine::EngineConfig { ops_max, ring_entries, ..Default::default() }).map_err(text)
}

/// Submits `count` no-ops to an engine and runs turns until all have completed.
fn no_ops(engine: &mut dyn Engine, count: u32, done: &mut Vec<Completion>) -> Result<(), String> {
    // Completions are returned by turns, never during a submission, so they need not be checked in between.
    for _ in 0..count {
        engine.submit(Op::NOP, 0).map_err(|_| "the engine's table is full".to_owned())?;
    }
    // One turn suffices if all operations complete immediately; otherwise further turns follow.
    while done.len() < count as usize {
        engine.turn(Wait::Forever, done).map_err(text)?;
    }
    // Results are checked after the loop, so that the loop resembles that of a server.
    let failed = done.iter().any(|completion| completion.result.is_err());
    done.clear();
    if failed { Err("a no-op failed".to_owned()) } else { Ok(()) }
}

/// Measures all slots of an engine in flight together, repeatedly: on new engines, or for the second time on each
/// engine. Both variants submit the same batches and touch as much memory; the first use allocates the table, the
/// second one reuses it.
fn slots(fresh: bool, length: Duration) -> Result<Run, String> {
    let (mut operations, mut seconds, mut entries) = (0.0, 0.0, 0);
    let mut done = Vec::with_capacity(SLOTS as usize);
    while seconds < length.as_secs_f64() {
        // A new engine for each pass, not included in the measured time: an engine's slots are fresh only once.
        let mut engine = engine(SLOTS, SLOTS_BATCH)?;
        if !fresh {
            no_ops(engine.as_mut(), SLOTS, &mut done)?;
        }
        let (before, start) = (engine.counters().kernel_entries, Instant::now());
        no_ops(engine.as_mut(), SLOTS, &mut done)?;
        // Dropping the engine, which frees the table, is not measured either.
        seconds += start.elapsed().as_secs_f64();
        entries += engine.counters().kernel_entries - before;
        operations += f64::from(SLOTS);
    }
    Ok(run(operations, seconds, entries))
}

/// Measures reads of one kind, all of the same page.
fn read(by_ring: bool, bytes: u32, batch: u32, path: &Path, length: Duration) -> Result<Run, String> {
    let file = File::open(path).map_err(text)?;
    // Buffered instead of direct: the page is resident, so that no engine waits for a device.
    let load = Load { files: vec![file.into()], depth: batch, block_bytes: 4096 };
    let transfer = Transfer { write: false, file: 0, offset: 0, len: bytes };
    let mut done = Vec::with_capacity(batch as usize);
    let check = |done: &mut Vec<bare::Done>| {
        let failed = done.iter().find_map(|done| done.result.err());
        done.clear();
        failed.map_or(Ok(()), |errno| Err(text(errno)))
    };
    if by_ring {
        let mut ring = RingQueue::new(RingSetup::as_engine(batch), load).map_err(text)?;
        let round = |ring: &mut RingQueue| {
            push(ring, transfer, batch)?;
            ring.submit_and_wait(batch, &mut done).map_err(text)?;
            check(&mut done)
        };
        return repeat(length, batch, &mut ring, round, Queue::kernel_entries);
    }
    let mut aio = AioQueue::new(load).map_err(text)?;
    let round = |aio: &mut AioQueue| {
        push(aio, transfer, batch)?;
        aio.submit().map_err(text)?;
        // A resident page has been read when io_submit returns, so all completions are already available.
        aio.wait(batch, &mut done).map_err(text)?;
        check(&mut done)
    };
    repeat(length, batch, &mut aio, round, Queue::kernel_entries)
}

fn push(queue: &mut impl Queue, transfer: Transfer, count: u32) -> Result<(), String> {
    (0..count).try_for_each(|_| queue.push(transfer).map(|_| ()).ok_or("the queue is full".to_owned()))
}
