//! One job of `bench disk` as data, and its outcome.

use std::path::PathBuf;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::load::{histogram, percentile_us};
use crate::report::model::Run;
use crate::scenario::described::Named;
use crate::scenario::measurements::{CURVE, Labels, at, without};

/// The I/O engine of a job, in the order of tables: the oldest engine first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(super) enum EngineKind {
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
pub(super) enum Pattern {
    Read,
    Write,
    Rw,
    Randread,
    Randwrite,
    Randrw,
}

impl Pattern {
    pub(super) fn writes(self) -> bool {
        self.read_percent() < 100
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Pattern::Randread | Pattern::Randwrite | Pattern::Randrw)
    }

    /// Returns the percentage of reads.
    pub(super) fn read_percent(self) -> u8 {
        match self {
            Pattern::Read | Pattern::Randread => 100,
            Pattern::Write | Pattern::Randwrite => 0,
            Pattern::Rw | Pattern::Randrw => 50,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(super) engine: EngineKind,
    pub(super) pattern: Pattern,
    /// The file that is read and written.
    pub(super) file: PathBuf,
    pub(super) file_bytes: u64,
    pub(super) block_bytes: u32,
    /// Whether the page cache is bypassed (`O_DIRECT`).
    pub(super) direct: bool,
    /// Number of operations in flight of each copy. Blocking calls have one each, in this number of threads.
    pub(super) depth: u32,
    /// Number of concurrent copies of the job, each with separate queues and descriptors.
    pub(super) copies: u32,
    /// Whether each copy is a process; otherwise all are threads of one.
    pub(super) in_processes: bool,
    /// Whether the job is repeated by fio, and once more under strace.
    pub(super) is_verified: bool,
    /// Whether fio runs the job.
    pub(super) by_fio: bool,
    /// Time in seconds during which operations are started.
    pub(super) seconds: f64,
    pub(super) seed: u64,
}

impl Job {
    /// Returns a job of random direct reads by io_uring, with the minimum block of O_DIRECT on most devices.
    pub(super) fn new(file: PathBuf, file_bytes: u64) -> Job {
        Job {
            engine: EngineKind::Uring,
            pattern: Pattern::Randread,
            file,
            file_bytes,
            block_bytes: 4 << 10,
            direct: true,
            depth: 16,
            copies: 1,
            in_processes: false,
            is_verified: false,
            by_fio: false,
            seconds: 1.0,
            seed: 1,
        }
    }

    /// Describes the job for a row: "libaio randrw 128k, depth 16".
    pub(super) fn words(&self) -> String {
        let (engine, pattern, block) = (self.engine.name(), self.pattern.name(), size_name(self.block_bytes));
        let buffered = if self.direct { "" } else { ", buffered" };
        let copies = match (self.copies, self.in_processes) {
            (1, _) => String::new(),
            (copies, true) => format!(", {copies} processes"),
            (copies, false) => format!(", {copies} threads"),
        };
        format!("{engine} {pattern} {block}, depth {}{copies}{buffered}", self.depth)
    }

    pub(super) fn processes(&self) -> u32 {
        if self.in_processes { self.copies } else { 1 }
    }

    /// Returns the number of threads of a process, each with a separate queue and descriptor.
    pub(super) fn threads(&self) -> u32 {
        self.copies / self.processes() * if self.engine == EngineKind::Sync { self.depth } else { 1 }
    }

    /// Returns the number of threads of all processes.
    pub(super) fn all_threads(&self) -> u32 {
        self.threads() * self.processes()
    }

    /// Returns the number of operations in flight of each thread.
    pub(super) fn queue_depth(&self) -> u32 {
        if self.engine == EngineKind::Sync { 1 } else { self.depth }
    }

    /// Returns the labels of its measurements, which tables select by.
    pub(super) fn labels(&self) -> Labels {
        at([
            ("engine", &self.engine.name()),
            ("pattern", &self.pattern.name()),
            ("block", &self.block_bytes),
            ("direct", &self.direct),
            ("depth", &self.depth),
            ("copies", &self.copies),
            ("processes", &self.processes()),
            ("tool", &if self.by_fio { "fio" } else { "ringroad" }),
        ])
    }
}

/// Returns a block size in the notation of the command line.
fn size_name(bytes: u32) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// Outcome of a thread, of all threads of a process, or of all processes of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct JobOutcome {
    pub(super) read: Side,
    pub(super) write: Side,
    /// Time in seconds from the first operation to the last completion of the slowest thread.
    pub(super) seconds: f64,
    /// User CPU time of the process in seconds, including kernel threads of its rings.
    pub(super) user_seconds: f64,
    /// Kernel CPU time in seconds; the time of interrupts that hit other processes is not included.
    pub(super) system_seconds: f64,
    pub(super) switches: u64,
    /// Number of system calls that submitted or awaited operations; `None` if other threads make them.
    pub(super) system_calls: Option<u64>,
}

/// One direction of an outcome. Times are in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) operations: u64,
    /// Bytes transferred, as reported by the kernel.
    pub(super) bytes: u64,
    /// Sum of the times of submissions.
    pub(super) submission: u64,
    /// Sum of the times from the submission to the receipt of the completion.
    pub(super) completion: u64,
    /// Times of both together.
    #[serde(with = "counts")]
    pub(super) total: Histogram<u64>,
}

/// A distribution as counts by value in the JSON of a worker process: base64 of the histogram's own format would need
/// two more libraries.
mod counts {
    use hdrhistogram::Histogram;
    use serde::Deserialize;

    use crate::load::histogram;

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

impl Default for Side {
    fn default() -> Side {
        Side { operations: 0, bytes: 0, submission: 0, completion: 0, total: histogram() }
    }
}

impl Side {
    /// Adds the operations of another thread.
    fn add(&mut self, other: &Side) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.submission += other.submission;
        self.completion += other.completion;
        self.total.add(&other.total).expect("both have the same bounds");
    }
}

impl JobOutcome {
    /// Adds the outcome of another thread, or process, of the same job.
    pub(super) fn add(&mut self, other: &JobOutcome) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.seconds = self.seconds.max(other.seconds);
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
        self.switches += other.switches;
        self.system_calls = self.system_calls.zip(other.system_calls).map(|(ours, theirs)| ours + theirs);
    }

    /// Returns an empty outcome, to which others are added.
    pub(super) fn nothing() -> JobOutcome {
        JobOutcome { system_calls: Some(0), ..JobOutcome::default() }
    }

    /// Returns the outcome as a measurement of the report. Blocking calls have no separate submission.
    pub(super) fn run(&self, is_blocking: bool) -> Run {
        let mut both = self.read.clone();
        both.add(&self.write);
        let mut run = Run::default();
        let mut add = |name: &str, figure: f64| run.set(name, figure);
        for (name, side) in [("read", &self.read), ("write", &self.write), ("both", &both)] {
            let mean_us = |nanos: u64| nanos as f64 / side.operations.max(1) as f64 / 1e3;
            add(&format!("{name}_operations"), side.operations as f64);
            add(&format!("{name}_bytes"), side.bytes as f64);
            if !is_blocking {
                add(&format!("{name}_submission_us"), mean_us(side.submission));
            }
            add(&format!("{name}_completion_us"), mean_us(side.completion));
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
        add("context_switches", self.switches as f64);
        match self.system_calls {
            Some(calls) => add("system_calls", calls as f64),
            // The system calls of pool threads cannot be counted here; an incomplete count would be wrong.
            None => {
                let why = "not counted: made by threads of the pool".to_owned();
                run.labels.insert(without("system_calls"), why);
            }
        }
        run.curve = CURVE.map(|percent| [percent, percentile_us(&both.total, percent)]).to_vec();
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn copies_are_threads_of_one_process_or_processes() {
        let job = Job { engine: EngineKind::Sync, depth: 4, copies: 3, ..Job::new("x".into(), 1) };
        assert_eq!((job.processes(), job.threads(), job.queue_depth()), (1, 12, 1));
        let job = Job { engine: EngineKind::Uring, in_processes: true, ..job };
        assert_eq!((job.processes(), job.threads(), job.queue_depth()), (3, 1, 4));
    }

    #[test]
    fn names_are_those_of_fio() {
        let patterns: Vec<String> = Pattern::value_variants().iter().map(|one| one.name()).collect();
        assert_eq!(patterns, ["read", "write", "rw", "randread", "randwrite", "randrw"]);
        let engines: Vec<String> = EngineKind::value_variants().iter().map(|kind| kind.name()).collect();
        assert_eq!(engines[..2], ["sync", "threads"]);
        assert_eq!(engines[6], "uring-iopoll");
    }
}
