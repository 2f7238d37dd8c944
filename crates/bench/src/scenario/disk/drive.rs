//! The loop of one worker: keeps a queue filled for a time and writes down how long everything took.
//!
//! It does what fio does with `iodepth_batch=1`: each operation is given to the kernel by itself as soon as there is
//! room for it, and completions are waited for when there is none.

use std::time::Instant;

use bare::{Done, Noise, Queue, Transfer};

use super::job::{EngineKind, Job, JobOutcome};

/// Where the next operation goes.
struct Places {
    /// Whole blocks of the file; a rest behind the last is never touched.
    blocks: u64,
    block_bytes: u32,
    /// The block after the one before, for those who go through in order.
    next: u64,
    /// Whether blocks are chosen at random instead.
    random: bool,
    /// Reads among a hundred.
    read_percent: u8,
    /// What places and directions are drawn by.
    noise: Noise,
}

impl Places {
    /// The order of one worker: the same for every engine with the same seed, another for each worker.
    fn new(job: &Job, worker: u32) -> Places {
        let blocks = (job.file_bytes / u64::from(job.block_bytes)).max(1);
        let mut places = Places {
            blocks,
            block_bytes: job.block_bytes,
            // Workers that go through a file one after the other begin apart from each other.
            next: blocks / u64::from(job.workers().max(1)) * u64::from(worker),
            random: job.pattern.random,
            read_percent: job.pattern.read_percent,
            noise: Noise::new(job.seed ^ u64::from(worker) << 32),
        };
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..8 {
            places.noise.number();
        }
        places
    }

    /// The next place, and whether it is read or written.
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

/// An operation in flight.
#[derive(Clone, Copy)]
struct InFlight {
    /// Which of the two sides it counts for.
    write: bool,
    /// Before it was made ready.
    begun: Instant,
    /// After the kernel had it.
    submitted: Instant,
}

/// Carries out the part of one worker. The processor time is the process's and is no part of the result.
///
/// # Errors
/// What the kernel or the device refuses, in words.
pub(super) fn drive(queue: &mut dyn Queue, job: &Job, worker: u32) -> Result<JobOutcome, String> {
    let depth = if job.engine == EngineKind::Sync { 1 } else { job.depth };
    let mut places = Places::new(job, worker);
    let start = Instant::now();
    let never = InFlight { write: false, begun: start, submitted: start };
    let mut started = vec![never; depth as usize];
    let mut done = Vec::with_capacity(depth as usize);
    let mut outcome = JobOutcome::nothing();
    let (mut in_flight, mut over, before) = (0, false, queue.kernel_entries());
    // An entry into the kernel that fails as a whole is not about one operation: the job is over.
    let refused = |errno: io::Errno| format!("the kernel refused: {errno}");
    loop {
        while in_flight < depth && !over {
            let transfer = places.next();
            let begun = Instant::now();
            let Some(place) = queue.push(transfer) else { break };
            queue.submit().map_err(refused)?;
            started[place as usize] = InFlight { write: transfer.write, begun, submitted: Instant::now() };
            in_flight += 1;
            outcome.count_depth(in_flight);
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
    // The calls of pool threads are not the queue's own.
    outcome.system_calls = (job.engine != EngineKind::Threads).then_some(calls);
    Ok(outcome)
}

/// Writes down the end of one operation.
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
            return Err("the device has no queues to ask in a loop (EOPNOTSUPP)".to_owned());
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
    // fio's three times: to the kernel, there, and both.
    let nanos = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as u64;
    let total = nanos(started.begun, now);
    side.total.record(total);
    // A blocking call has no submission of its own, as in fio's table of such an engine.
    if job.engine == EngineKind::Sync {
        side.completion.record(total);
    } else {
        side.submission.record(nanos(started.begun, started.submitted));
        side.completion.record(nanos(started.submitted, now));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::job::Pattern;
    use super::*;

    fn job(pattern: &str) -> Job {
        Job {
            engine: EngineKind::Sync,
            pattern: Pattern::parse(pattern).unwrap(),
            file: "/dev/null".into(),
            file_bytes: 64 * 4096 + 100,
            block_bytes: 4096,
            direct: false,
            depth: 1,
            threads: 2,
            processes: 2,
            seconds: 1.0,
            seed: 7,
        }
    }

    #[test]
    fn every_block_is_inside_of_the_file() {
        for pattern in Pattern::NAMES {
            let mut places = Places::new(&job(pattern), 3);
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
    fn sequential_workers_begin_apart_and_go_round() {
        let mut places = Places::new(&job("read"), 1);
        let offsets: Vec<u64> = (0..50).map(|_| places.next().offset / 4096).collect();
        assert_eq!(offsets[..2], [16, 17]);
        assert_eq!(offsets[48], 0);
    }

    #[test]
    fn a_mixed_job_reads_about_half() {
        let mut places = Places::new(&job("randrw"), 0);
        let writes = (0..10_000).filter(|_| places.next().write).count();
        assert!((4_500..5_500).contains(&writes), "{writes}");
    }
}
