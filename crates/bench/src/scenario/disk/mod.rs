//! `bench disk`: the throughput and latency of a device at a queue depth, by each I/O engine.
//!
//! [`options`] are the user's, [`job`] is a job as data, [`drive`] the loop that executes it on the queue of an engine
//! ([`engines`]), [`worker`] the process that runs the loop. [`fio`] repeats jobs by fio, [`strace`] shows their system
//! calls. [`tables`] has the jobs of the report and presents their results. [`files`] opens, reads and closes a set of files
//! instead, for `bench cold` and for `--files` ([`set`]).

mod drive;
mod engines;
pub(crate) mod files;
mod fio;
mod job;
mod options;
mod set;
mod strace;
mod tables;
pub(crate) mod worker;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::fio::Fio;
use self::job::Job;
pub(super) use self::options::DiskOptions;
use self::worker::Task;
use super::comparison;
use super::described::Scenario;
use super::measurements::Measurements;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::peers::tool::{Peer, Tool};
use crate::report::model::{Results, Run, Section};

/// The write-up's duration of each variant.
const LENGTH_OF_WRITE_UP: Duration = Duration::from_secs(60);

impl Scenario for DiskOptions {
    const NAME: &'static str = "disk";
    const MINUTES: u32 = 5;
    const QUICK_SHARE: u32 = 30;
    const TITLE: &'static str = "Reads and writes of a disk: one process with many operations in flight, or many processes with one each";
    const QUESTION: &'static str =
        "Which throughput does each engine reach, at which queue depth, and at what cost?";

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        self.check_file()?;
        if let Some(file_bytes) = self.files {
            let seconds = self.length(bench).as_secs_f64();
            return set::run(bench, section, file_bytes, self.size_bytes(bench), seconds);
        }
        let (path, bytes) = self.target(bench)?;
        let tools = Tools::find(bench, section);
        let base = Job { seconds: self.length(bench).as_secs_f64(), ..Job::new(path.clone(), bytes) };
        let own = self.own_jobs(&base);
        let jobs = match own.is_empty() {
            true if self.write_up => tables::write_up(&base).map(|(_, job)| job).into(),
            true => tables::jobs(&base),
            false => own.clone(),
        };
        let mut jobs: Vec<Job> = jobs.into_iter().flat_map(|job| tools.with_fio(job)).collect();
        bench.progress(format_args!("disk: {} jobs, {} MiB", jobs.len(), bytes >> 20));
        comparison::measure(bench, section, &mut jobs, Job::labels, |job, round, _| {
            // A different sequence of offsets in each round, the same one for all engines within a round.
            tools.measure(bench, &Job { seed: u64::from(round) + 1, ..job.clone() })
        })?;
        // Removed before the tables are generated, since the file is no longer needed.
        if self.file.is_none() {
            let _ = fs::remove_file(&path);
        }
        for job in jobs.iter().filter(|job| job.by_fio) {
            let text = tools.fio.as_ref().and_then(|fio| fio.job_file(job)).unwrap_or_default();
            section.configure(&format!("fio: {}", job.words()), &text);
        }
        Ok(tables::results(Measurements::of(section), &base, &own, &jobs))
    }
}

/// The programs that verify measurements, if they are installed.
struct Tools {
    fio: Option<Fio>,
    strace: Option<Tool>,
}

impl Tools {
    fn find(bench: &Bench, section: &mut Section) -> Tools {
        let mut find = |peer: Peer, purpose: &str| match peer.find(&bench.peer_paths) {
            Ok(tool) => {
                section.configure(peer.name(), &tool.version);
                Some(tool)
            }
            Err(missing) => {
                section.skip(purpose, &missing);
                None
            }
        };
        let fio = find(Peer::Fio, "fio, for comparison").map(Fio::new);
        let strace = find(Peer::Strace, "strace, for system calls by name");
        if let Some(reason) = fio.as_ref().and_then(Fio::memory_differs) {
            section.skip("huge pages for fio, as this program has them", reason);
        }
        Tools { fio, strace }
    }

    /// Returns the job, followed by the same job for fio if a table compares them and fio has the engine.
    fn with_fio(&self, job: Job) -> Vec<Job> {
        let is_known = self.fio.as_ref().is_some_and(|fio| fio.job_file(&job).is_some());
        let fio = (job.is_verified && is_known).then(|| Job { by_fio: true, ..job.clone() });
        [job].into_iter().chain(fio).collect()
    }

    /// Runs one job once, by this program or by fio.
    fn measure(&self, bench: &Bench, job: &Job) -> Result<Run, Failure> {
        if let (true, Some(fio)) = (job.by_fio, &self.fio) {
            return fio.measure(bench, job);
        }
        let mut run = worker::run(bench, &Task::Blocks(job.clone()), &[])?;
        // System calls do not depend on the round.
        if let (true, 1, Some(tool)) = (job.is_verified, job.seed, &self.strace) {
            let said = strace::calls(bench, tool, job).unwrap_or_else(|failure| failure.to_string());
            run.labels.insert(tables::STRACE.to_owned(), said);
        }
        Ok(run)
    }
}

impl DiskOptions {
    /// Returns the named file, or creates one; and the number of bytes that may be used.
    fn target(&self, bench: &Bench) -> Result<(PathBuf, u64), Failure> {
        if let Some(path) = &self.file {
            let failure = Failure::file("open", path);
            // The length of a block device is found by seeking to its end; its metadata have no length.
            let bytes = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(failure)?;
            if bytes < u64::from(bare::BLOCK_BYTES_MAX) {
                return Err(Failure::Usage(format!("--file {}: smaller than 1 MiB", path.display())));
            }
            // fio is started in another working directory.
            return Ok((std::path::absolute(path).map_err(failure)?, bytes));
        }
        let bytes = self.size_bytes(bench);
        bench.workspace.need_space(bytes)?;
        let path = bench.workspace.directory("disk")?.join("data");
        bench.progress(format_args!("disk: writing a file of {} MiB", bytes >> 20));
        fill(bench, &path, bytes)?;
        Ok((path, bytes))
    }

    /// Returns the number of bytes of the files that are created.
    fn size_bytes(&self, bench: &Bench) -> u64 {
        self.size.unwrap_or(bench.scaled(8, 512, 2048)) << 20
    }

    /// Returns the duration of one job. One second suffices for a device with thousands of operations per second; the
    /// write-up's disk did two hundred.
    fn length(&self, bench: &Bench) -> Duration {
        match (bench.seconds, bench.scale) {
            (None, Scale::Instant) => Duration::from_millis(20),
            (None, Scale::Quick) => Duration::from_millis(300),
            (None, _) if self.write_up => LENGTH_OF_WRITE_UP,
            _ => bench.length(Duration::from_secs(1)),
        }
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
