//! One job of `bench disk` as data: the input of a worker process, and its result.

use std::path::PathBuf;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::load::{histogram, percentile_us};
use crate::report::model::Run;
use crate::scenario::measurements::{CURVE, without};

/// The I/O engine of a job, in the order of tables: the oldest engine first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum EngineKind {
    /// pread(2) and pwrite(2), one at a time.
    Sync,
    /// The same calls in a pool with one thread per operation in flight: this server's thread pool, through its engine.
    Threads,
    /// io_submit(2) and io_getevents(2).
    Libaio,
    /// A ring in the server's configuration.
    Uring,
    /// The same ring, with registered buffers and files.
    UringFixed,
    /// A ring with SQPOLL, registered buffers and files.
    UringSqpoll,
    /// A ring with IOPOLL (the device is polled for completions), registered buffers and files.
    UringIopoll,
}

/// Access pattern and direction, in fio's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Pattern {
    Read,
    Write,
    Rw,
    Randread,
    Randwrite,
    Randrw,
}

impl Pattern {
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Pattern::Randread | Pattern::Randwrite | Pattern::Randrw)
    }

    /// Returns the percentage of reads.
    pub(crate) fn read_percent(self) -> u8 {
        match self {
            Pattern::Read | Pattern::Randread => 100,
            Pattern::Write | Pattern::Randwrite => 0,
            Pattern::Rw | Pattern::Randrw => 50,
        }
    }

    /// Whether it modifies the file.
    pub(crate) fn writes(self) -> bool {
        self.read_percent() < 100
    }
}

/// A job, as one process gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) engine: EngineKind,
    pub(crate) pattern: Pattern,
    /// The file, created for the run or named by the user.
    pub(crate) file: PathBuf,
    /// Bytes of the file that are used, from its start.
    pub(crate) file_bytes: u64,
    pub(crate) block_bytes: u32,
    /// Whether the page cache is bypassed (`O_DIRECT`).
    pub(crate) direct: bool,
    /// Number of operations in flight, except for [`EngineKind::Sync`].
    pub(crate) depth: u32,
    /// Number of threads per process, each with a separate queue.
    pub(crate) threads: u32,
    pub(crate) processes: u32,
    /// Time in seconds during which operations are started.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// Depth of a job, unless it is varied.
pub(crate) const DEPTH: u32 = 16;

impl Job {
    /// Returns a job of random direct reads by io_uring, with the minimum block of O_DIRECT on most devices.
    pub(crate) fn new(file: PathBuf, file_bytes: u64) -> Job {
        Job {
            engine: EngineKind::Uring,
            pattern: Pattern::Randread,
            file,
            file_bytes,
            block_bytes: 4 << 10,
            direct: true,
            depth: DEPTH,
            threads: 1,
            processes: 1,
            seconds: 1.0,
            seed: 1,
        }
    }

    /// Returns the number of concurrent workers with a separate queue.
    pub(crate) fn workers(&self) -> u32 {
        self.threads * self.processes
    }

    /// Returns the number of operations in flight of each worker.
    pub(crate) fn queue_depth(&self) -> u32 {
        if self.engine == EngineKind::Sync { 1 } else { self.depth }
    }

    /// Returns the same job with another engine. Blocking calls have no depth: they get as many threads as the other
    /// engines have operations in flight.
    pub(crate) fn on(&self, engine: EngineKind, depth: u32) -> Job {
        let threads = if engine == EngineKind::Sync { depth } else { 1 };
        Job { engine, depth, threads, ..self.clone() }
    }
}

/// Result of one process's share of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobOutcome {
    pub(crate) read: Side,
    pub(crate) write: Side,
    /// Time in seconds from the first operation to the last completion of the slowest worker.
    pub(crate) seconds: f64,
    /// User CPU time of the process in seconds, including kernel threads of its rings.
    pub(crate) user_seconds: f64,
    /// Kernel CPU time in seconds; the time of interrupts that hit other processes is not included.
    pub(crate) system_seconds: f64,
    pub(crate) switches: u64,
    /// Number of system calls that submitted or awaited operations; `None` if other threads make them.
    pub(crate) system_calls: Option<u64>,
    /// Number of operations that were started with 1, 2, 3–4, 5–8, 9–16, 17–32, 33–64 and more in flight, including the
    /// operation itself.
    pub(crate) depths: [u64; 8],
}

/// One direction of an outcome. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) operations: u64,
    /// Bytes transferred, as reported by the kernel.
    pub(crate) bytes: u64,
    #[serde(with = "counts")]
    pub(crate) submission: Histogram<u64>,
    /// Times from the submission to the receipt of the completion.
    #[serde(with = "counts")]
    pub(crate) completion: Histogram<u64>,
    /// Times of both together.
    #[serde(with = "counts")]
    pub(crate) total: Histogram<u64>,
}

impl Default for Side {
    fn default() -> Side {
        let [submission, completion, total] = std::array::from_fn(|_| histogram());
        Side { operations: 0, bytes: 0, submission, completion, total }
    }
}

/// A distribution as counts by value in the JSON of a worker process: base64 of the histogram's own format would need
/// two more libraries.
mod counts {
    use super::{Deserialize, Histogram, histogram};

    pub(super) fn serialize<S: serde::Serializer>(
        times: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let counts = times.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
        serializer.collect_seq(counts)
    }

    pub(super) fn deserialize<'a, D: serde::Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut times = histogram();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            times.saturating_record_n(value, count);
        }
        Ok(times)
    }
}

impl Side {
    /// Adds the operations of another worker.
    pub(crate) fn add(&mut self, other: &Side) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        for (sum, one) in [
            (&mut self.submission, &other.submission),
            (&mut self.completion, &other.completion),
            (&mut self.total, &other.total),
        ] {
            sum.add(one).expect("both have the same bounds");
        }
    }
}

impl JobOutcome {
    /// Adds the result of another worker of the same job.
    pub(crate) fn add(&mut self, other: &JobOutcome) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.seconds = self.seconds.max(other.seconds);
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
        self.switches += other.switches;
        self.system_calls = self.system_calls.zip(other.system_calls).map(|(ours, theirs)| ours + theirs);
        for (ours, theirs) in self.depths.iter_mut().zip(other.depths) {
            *ours += theirs;
        }
    }

    /// Returns an empty outcome, to which others are added.
    pub(crate) fn nothing() -> JobOutcome {
        JobOutcome { system_calls: Some(0), ..JobOutcome::default() }
    }

    /// Returns the outcome as a single measurement of the report. Blocking calls have no separate submission.
    pub(crate) fn run(&self, is_blocking: bool) -> Run {
        let mut both = self.read.clone();
        both.add(&self.write);
        let mut run = Run::default();
        let mut add = |name: &str, figure: f64| run.set(name, figure);
        for (name, side) in [("read", &self.read), ("write", &self.write), ("both", &both)] {
            add(&format!("{name}_operations"), side.operations as f64);
            add(&format!("{name}_bytes"), side.bytes as f64);
            if !is_blocking {
                add(&format!("{name}_submission_us"), side.submission.mean() / 1e3);
            }
            add(&format!("{name}_completion_us"), side.completion.mean() / 1e3);
            add(&format!("{name}_total_us"), side.total.mean() / 1e3);
            add(&format!("{name}_deviation_us"), side.total.stdev() / 1e3);
        }
        for percent in [50.0, 90.0, 99.0, 99.9, 100.0] {
            add(&format!("latency_{percent}_us"), percentile_us(&both.total, percent));
        }
        add("operations", both.operations as f64);
        add("bytes", both.bytes as f64);
        add("seconds", self.seconds);
        add("user_seconds", self.user_seconds);
        add("system_seconds", self.system_seconds);
        add("cpu_seconds", self.user_seconds + self.system_seconds);
        add("context_switches", self.switches as f64);
        match self.system_calls {
            Some(calls) => add("system_calls", calls as f64),
            // The system calls of pool threads cannot be counted here; an incomplete count would be wrong.
            None => {
                let why = "not counted: made by threads of the pool".to_owned();
                run.labels.insert(without("system_calls"), why);
            }
        }
        let depths = self.depth_words();
        if !depths.is_empty() {
            run.labels.insert("IO depths".to_owned(), depths);
        }
        run.curve = CURVE.map(|percent| [percent, percentile_us(&both.total, percent)]).to_vec();
        run
    }

    /// Returns fio's line of depths, without the empty ones.
    fn depth_words(&self) -> String {
        let all = self.depths.iter().sum::<u64>().max(1) as f64;
        let names = ["1", "2", "4", "8", "16", "32", "64", ">64"];
        // In fio's format, so that two reports can be compared.
        let share = |(name, &count): (&&str, &u64)| format!("{name}={:.1}%", count as f64 / all * 100.0);
        let parts: Vec<String> =
            names.iter().zip(&self.depths).filter(|(_, count)| **count > 0).map(share).collect();
        parts.join(", ")
    }

    /// Counts an operation that was started with this number in flight, including itself.
    pub(crate) fn count_depth(&mut self, in_flight: u32) {
        let bucket = in_flight.max(1).next_power_of_two().trailing_zeros() as usize;
        let last = self.depths.len() - 1;
        self.depths[bucket.min(last)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::described::Named;

    #[test]
    fn names_are_those_of_fio() {
        let patterns: Vec<String> = Pattern::value_variants().iter().map(|one| one.name()).collect();
        assert_eq!(patterns, ["read", "write", "rw", "randread", "randwrite", "randrw"]);
        let engines: Vec<String> = EngineKind::value_variants().iter().map(|kind| kind.name()).collect();
        assert_eq!(engines[..2], ["sync", "threads"]);
        assert_eq!(engines[6], "uring-iopoll");
    }

    #[test]
    fn queue_depths_are_powers_of_two() {
        let mut outcome = JobOutcome::default();
        for depth in [1, 2, 3, 4, 16, 17, 64, 65, 500] {
            outcome.count_depth(depth);
        }
        assert_eq!(outcome.depths, [1, 1, 2, 0, 1, 1, 1, 2]);
    }

    #[test]
    fn times_are_unchanged_between_processes() {
        let mut side = Side::default();
        for value in [80, 1_000_000, 7_654_321] {
            side.total.saturating_record(value);
        }
        let text = serde_json::to_string(&side).unwrap();
        let back: Side = serde_json::from_str(&text).unwrap();
        for percent in [0.0, 50.0, 99.0, 100.0] {
            let [ours, theirs] = [&side, &back].map(|side| percentile_us(&side.total, percent));
            assert!((ours - theirs).abs() <= ours * 2e-3, "{percent}: {ours} {theirs}");
        }
    }
}
