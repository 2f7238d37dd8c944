//! The jobs of `bench disk`, and the table that each belongs to.

use std::time::Duration;

use clap::ValueEnum;

use super::job::{DEPTH, EngineKind, Job, Pattern};
use super::{DataFile, DiskOptions};
use crate::context::{Bench, Scale};
use crate::scenario::described::{Named, or_default};
use crate::scenario::measurements::{Labels, at};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runner {
    Ours,
    /// fio, for verification.
    Fio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobTable {
    WriteUp,
    /// All engines, with all figures.
    Engines,
    Depths,
    Blocks,
    /// Bypassing the page cache (O_DIRECT) and through it.
    Caching,
    Own,
}

/// A job with its table and row.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) group: JobTable,
    pub(super) tool: Runner,
    pub(super) name: String,
    pub(super) job: Job,
}

impl Item {
    /// Returns the labels that identify a run in the report.
    pub(super) fn labels(&self) -> Labels {
        let job = &self.job;
        at([
            ("table", &format!("{:?}", self.group)),
            ("row", &self.name),
            ("tool", &if self.tool == Runner::Fio { "fio" } else { "ringroad" }),
            ("engine", &job.engine.name()),
            ("pattern", &job.pattern.name()),
            ("block", &job.block_bytes),
            ("direct", &job.direct),
            ("depth", &job.depth),
            ("threads", &job.threads),
            ("processes", &job.processes),
        ])
    }

    pub(super) fn row(&self) -> (String, Labels) {
        (self.name.clone(), self.labels())
    }
}

/// The write-up's depth, and its number of processes.
const WRITE_UP_DEPTH: u32 = 16;
const WRITE_UP_BLOCK: u32 = 128 << 10;
/// The write-up's duration of each variant.
const WRITE_UP_LENGTH: Duration = Duration::from_secs(60);
/// The generally used engines: the others are variants of them.
const COMMON: [EngineKind; 4] =
    [EngineKind::Sync, EngineKind::Threads, EngineKind::Libaio, EngineKind::Uring];
/// From one operation at a time to more than the queue size of most devices.
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 128];
/// From the smallest block of files to the largest that the kernel reads in one request.
const BLOCKS: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Returns all jobs, with those that are compared next to each other.
pub(super) fn items(bench: &Bench, options: &DiskOptions, target: &DataFile, fio: bool) -> Vec<Item> {
    let seconds = length(bench, options).as_secs_f64();
    let base = Job { seconds, ..Job::new(target.path.clone(), target.bytes) };
    let mut plan = JobList { items: Vec::new(), fio };
    if options.is_own_job() {
        plan.own(options, &base);
    } else if options.write_up {
        plan.write_up(&base);
    } else {
        plan.write_up(&base);
        plan.engines(&base);
        plan.depths(&base);
        plan.blocks(&base);
        plan.caching(&base);
    }
    plan.items
}

/// Returns the duration of one job. One second suffices for a device with thousands of operations per second; the
/// write-up's disk did two hundred.
fn length(bench: &Bench, options: &DiskOptions) -> Duration {
    match (bench.seconds, bench.scale) {
        (None, Scale::Instant) => Duration::from_millis(20),
        (None, Scale::Quick) => Duration::from_millis(300),
        (None, _) if options.write_up => WRITE_UP_LENGTH,
        _ => bench.length(Duration::from_secs(1)),
    }
}

struct JobList {
    items: Vec<Item>,
    /// Whether fio is available for verification.
    fio: bool,
}

impl JobList {
    fn add(&mut self, group: JobTable, name: impl Into<String>, job: Job) {
        self.items.push(Item { group, tool: Runner::Ours, name: name.into(), job });
    }

    /// Adds a job that fio repeats immediately afterwards.
    fn add_with_fio(&mut self, group: JobTable, name: impl Into<String>, job: Job) {
        let name = name.into();
        self.add(group, name.clone(), job.clone());
        if self.fio {
            self.items.push(Item { group, tool: Runner::Fio, name, job });
        }
    }

    /// Adds the write-up's two variants, and further ones that are available today.
    fn write_up(&mut self, base: &Job) {
        let (pattern, block_bytes, group) = (Pattern::Randrw, WRITE_UP_BLOCK, JobTable::WriteUp);
        let job =
            |engine, depth, processes| Job { engine, pattern, depth, processes, block_bytes, ..base.clone() };
        let depth = WRITE_UP_DEPTH;
        self.add_with_fio(group, "libaio, one process, depth 16", job(EngineKind::Libaio, depth, 1));
        self.add_with_fio(group, "sync, 16 processes", job(EngineKind::Sync, 1, depth));
        self.add(group, "uring, one process, depth 16", job(EngineKind::Uring, depth, 1));
        self.add(group, "threads, one process, depth 16", job(EngineKind::Threads, depth, 1));
        // According to a reader of the write-up, one blocking process achieves as much as sixteen.
        self.add(group, "sync, one process", job(EngineKind::Sync, 1, 1));
    }

    /// Adds the same job for every engine.
    fn engines(&mut self, base: &Job) {
        for &engine in EngineKind::value_variants() {
            let job = base.on(engine, DEPTH);
            match engine {
                EngineKind::Sync | EngineKind::Libaio | EngineKind::Uring => {
                    self.add_with_fio(JobTable::Engines, engine.name(), job);
                }
                _ => self.add(JobTable::Engines, engine.name(), job),
            }
        }
    }

    /// Adds the generally used engines by depth.
    fn depths(&mut self, base: &Job) {
        for depth in DEPTHS {
            for engine in COMMON {
                self.add(JobTable::Depths, depth.to_string(), base.on(engine, depth));
            }
        }
    }

    /// Adds every pattern with every block size, on io_uring.
    fn blocks(&mut self, base: &Job) {
        for block_bytes in BLOCKS {
            for &pattern in Pattern::value_variants() {
                let job = Job { pattern, block_bytes, ..base.clone() };
                self.add(JobTable::Blocks, size_name(block_bytes), job);
            }
        }
    }

    /// Adds buffered and direct jobs for each engine. With the page cache, a submission to io_uring or libaio may
    /// block.
    fn caching(&mut self, base: &Job) {
        for engine in COMMON {
            for direct in [true, false] {
                for pattern in [Pattern::Read, Pattern::Randread] {
                    let block_bytes = WRITE_UP_BLOCK;
                    let job = Job { pattern, direct, block_bytes, ..base.on(engine, DEPTH) };
                    self.add(JobTable::Caching, engine.name(), job);
                }
            }
        }
    }

    /// Adds every combination of the parameters that the user named.
    fn own(&mut self, options: &DiskOptions, base: &Job) {
        let jobs = options.jobs.unwrap_or(1);
        let (threads, processes) = if options.processes { (1, jobs) } else { (jobs, 1) };
        let base = Job { direct: !options.buffered, threads, processes, ..base.clone() };
        // A parameter that the user omitted has one default value instead of all values.
        for pattern in or_default(&options.rw, &[base.pattern]) {
            for block_bytes in or_default(&options.bs, &[base.block_bytes]) {
                for depth in or_default(&options.depth, &[base.depth]) {
                    for engine in or_default(&options.engine, &[base.engine]) {
                        let job = Job { engine, pattern, block_bytes, depth, ..base.clone() };
                        let (engine, pattern) = (engine.name(), pattern.name());
                        let name = format!("{engine} {pattern} {}, depth {depth}", size_name(block_bytes));
                        self.add_with_fio(JobTable::Own, name, job);
                    }
                }
            }
        }
    }
}

/// Returns a block size in the notation of the command line.
pub(super) fn size_name(bytes: u32) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    }
}
