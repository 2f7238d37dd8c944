//! The loop of one worker: keeps a queue filled for a time and records the latency of every operation.
//!
//! It corresponds to fio with `iodepth_batch=1`: each operation is submitted separately as soon as the queue has room,
//! and when it is full the loop waits for completions.

use std::time::Instant;

use bare::{Done, Noise, Queue, Transfer};

use super::job::{EngineKind, Job, JobOutcome};

/// Generator of offsets and directions.
struct Offsets {
    /// Number of complete blocks of the file; an incomplete last block is never accessed.
    blocks: u64,
    block_bytes: u32,
    /// The next block of a sequential pattern.
    next: u64,
    random: bool,
    /// Percentage of reads.
    read_percent: u8,
    /// Random generator for offsets and directions.
    noise: Noise,
}

impl Offsets {
    /// Creates the sequence of one worker: the same for every engine with the same seed, different for each worker.
    fn new(job: &Job, worker: u32) -> Offsets {
        let blocks = (job.file_bytes / u64::from(job.block_bytes)).max(1);
        Offsets {
            blocks,
            block_bytes: job.block_bytes,
            // Workers that read a file sequentially start at different offsets.
            next: blocks / u64::from(job.all_threads()) * u64::from(worker),
            random: job.pattern.is_random(),
            read_percent: job.pattern.read_percent(),
            noise: Noise::new(job.seed ^ u64::from(worker) << 32),
        }
    }

    fn next(&mut self) -> Transfer {
        let block = if self.random { self.noise.number() >> 11 } else { self.next } % self.blocks;
        self.next = block + 1;
        let write = match self.read_percent {
            100 => false,
            0 => true,
            percent => (self.noise.number() >> 32) % 100 >= u64::from(percent),
        };
        Transfer { write, file: 0, offset: block * u64::from(self.block_bytes), len: self.block_bytes }
    }
}

#[derive(Clone, Copy)]
struct InFlight {
    write: bool,
    /// Time before its preparation.
    begun: Instant,
    /// Time after its submission.
    submitted: Instant,
}

/// Executes one worker's share of a job. The result has no CPU time: the caller measures that of the process.
///
/// # Errors
/// Returns a message if the kernel or the device rejects an operation.
pub(super) fn drive(queue: &mut dyn Queue, job: &Job, worker: u32) -> Result<JobOutcome, String> {
    let depth = job.queue_depth();
    let mut places = Offsets::new(job, worker);
    let start = Instant::now();
    let never = InFlight { write: false, begun: start, submitted: start };
    let mut started = vec![never; depth as usize];
    let mut done = Vec::with_capacity(depth as usize);
    let mut outcome = JobOutcome::nothing();
    let (mut in_flight, mut over, before) = (0, false, queue.kernel_entries());
    // A failed submission call concerns no single operation: the job ends.
    let refused = |errno: io::Errno| format!("the kernel refused: {errno}");
    loop {
        while in_flight < depth && !over {
            let transfer = places.next();
            let begun = Instant::now();
            let Some(place) = queue.push(transfer) else { break };
            queue.submit().map_err(refused)?;
            started[place as usize] = InFlight { write: transfer.write, begun, submitted: Instant::now() };
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        queue.wait(1, &mut done).map_err(refused)?;
        let now = Instant::now();
        in_flight -= done.len() as u32;
        for done in done.drain(..) {
            note(&mut outcome, job, started[done.place as usize], done, now)?;
        }
        over = (now - start).as_secs_f64() >= job.seconds;
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    let calls = queue.kernel_entries() - before;
    // The system calls of pool threads are not counted by the queue.
    outcome.system_calls = (job.engine != EngineKind::Threads).then_some(calls);
    Ok(outcome)
}

/// Records the completion of one operation.
fn note(
    outcome: &mut JobOutcome,
    job: &Job,
    started: InFlight,
    done: Done,
    now: Instant,
) -> Result<(), String> {
    let bytes = match done.result {
        Ok(bytes) => bytes,
        Err(io::Errno::OPNOTSUPP) if job.engine == EngineKind::UringIopoll => {
            return Err("the device has no poll queues (EOPNOTSUPP)".to_owned());
        }
        Err(errno) => {
            let what = if started.write { "a write" } else { "a read" };
            return Err(format!("{what} failed: {}", std::io::Error::from(errno)));
        }
    };
    if bytes != job.block_bytes {
        return Err(format!("an operation of {} bytes moved {bytes}", job.block_bytes));
    }
    let side = if started.write { &mut outcome.write } else { &mut outcome.read };
    side.operations += 1;
    side.bytes += u64::from(bytes);
    // fio's three times: submission, completion, and their sum.
    let nanos = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as u64;
    let total = nanos(started.begun, now);
    side.total.saturating_record(total);
    // A blocking call has no separate submission, as in fio's tables of blocking engines.
    if job.engine == EngineKind::Sync {
        side.completion += total;
    } else {
        side.submission += nanos(started.begun, started.submitted);
        side.completion += nanos(started.submitted, now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::job::Pattern;
    use super::*;

    fn job(pattern: Pattern) -> Job {
        let job = Job::new("/dev/null".into(), 64 * 4096 + 100);
        Job { pattern, engine: EngineKind::Sync, depth: 4, ..job }
    }

    #[test]
    fn every_block_is_inside_the_file() {
        for &pattern in Pattern::value_variants() {
            let mut places = Offsets::new(&job(pattern), 3);
            for _ in 0..1000 {
                let transfer = places.next();
                assert!(
                    transfer.offset + 4096 <= 64 * 4096 && transfer.offset.is_multiple_of(4096),
                    "{transfer:?}"
                );
            }
        }
    }

    #[test]
    fn sequential_workers_start_apart_and_wrap_around() {
        let mut places = Offsets::new(&job(Pattern::Read), 1);
        let offsets: Vec<u64> = (0..50).map(|_| places.next().offset / 4096).collect();
        assert_eq!(offsets[..2], [16, 17]);
        assert_eq!(offsets[48], 0);
    }

    #[test]
    fn a_mixed_job_uses_reads_for_about_half() {
        let mut places = Offsets::new(&job(Pattern::Randrw), 0);
        let writes = (0..10_000).filter(|_| places.next().write).count();
        assert!((4_500..5_500).contains(&writes), "{writes}");
    }
}
