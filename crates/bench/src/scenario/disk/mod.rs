//! `bench disk`: the throughput and latency of a device at a queue depth, by each I/O engine.
//!
//! [`job`] is a job as data, [`drive`] the loop that executes it on the queue of an engine ([`engines`]), [`worker`]
//! the process that runs the loop. [`tables`] has the jobs and presents their results. [`files`] opens, reads and
//! closes a set of files instead, for `bench cold`.

mod drive;
mod engines;
pub(crate) mod files;
mod job;
mod tables;
pub(crate) mod worker;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use self::job::Job;
use self::worker::Task;
use super::comparison;
use super::described::Scenario;
use super::measurements::Measurements;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::report::model::{Results, Section};

#[derive(Args, Clone, Debug)]
pub(crate) struct DiskOptions {
    /// Size of the measured file in MiB [default: 2048; 512 with --quick]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: Option<u64>,
}

impl Scenario for DiskOptions {
    const NAME: &'static str = "disk";
    const TITLE: &'static str = "Reads and writes of a disk: one process with many operations in flight, or many threads with one each";
    const QUESTION: &'static str =
        "Which throughput does each engine reach, at which queue depth, and at what cost?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        let bytes = self.size.unwrap_or(bench.scaled(8, 512, 2048)) << 20;
        bench.workspace.need_space(bytes)?;
        let path = bench.workspace.directory("disk")?.join("data");
        bench.progress(format_args!("disk: writing a file of {} MiB", bytes >> 20));
        fill(bench, &path, bytes)?;
        let base = Job { seconds: length(bench).as_secs_f64(), ..Job::new(path.clone(), bytes) };
        let mut jobs = tables::jobs(&base);
        bench.progress(format_args!("disk: {} jobs, {} MiB", jobs.len(), bytes >> 20));
        comparison::measure(bench, section, &mut jobs, Job::labels, |job, round, _| {
            // A different sequence of offsets in each round, the same one for all engines within a round.
            let job = Job { seed: u64::from(round) + 1, ..job.clone() };
            worker::run(bench, &Task::Blocks(job), &[])
        })?;
        // Removed before the tables are generated, since the file is no longer needed.
        let _ = fs::remove_file(&path);
        Ok(tables::results(Measurements::of(section), &base))
    }
}

/// Returns the duration of one job. One second suffices for a device with thousands of operations per second; the
/// write-up's disk did two hundred.
fn length(bench: &Bench) -> Duration {
    match (bench.seconds, bench.scale) {
        (None, Scale::Instant) => Duration::from_millis(20),
        (None, Scale::Quick) => Duration::from_millis(300),
        _ => bench.length(Duration::from_secs(1)),
    }
}

/// Writes a file with data that a device cannot treat as zeroes, and syncs it to the device before returning, so that
/// no measurement includes the write.
pub(super) fn fill(bench: &Bench, path: &Path, bytes: u64) -> Result<(), Failure> {
    // A full disk ends the run here, before anything is measured, and the workspace removes the file.
    let failure = Failure::file("write", path);
    let mut file = File::create(path).map_err(failure)?;
    let mut block = vec![0u8; 1 << 20];
    let (mut noise, mut left) = (bare::Noise::new(0), bytes);
    while left > 0 {
        bench.check_interrupted()?;
        noise.fill(&mut block);
        let len = left.min(block.len() as u64);
        file.write_all(&block[..len as usize]).map_err(failure)?;
        left -= len;
    }
    file.sync_all().map_err(failure)?;
    // Otherwise the file would be resident, and buffered reads would never reach the device.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}
