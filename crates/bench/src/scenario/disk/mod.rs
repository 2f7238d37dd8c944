//! `bench disk`: the throughput and latency of a device at a queue depth, by each I/O engine.
//!
//! [`job`] is a job as data, [`drive`] the loop that executes it on the queue of an engine ([`engines`]), [`worker`]
//! the process that runs the loop. [`files`] opens, reads and closes a set of files instead. [`plan`] defines the
//! measurements, [`fio`] repeats them by fio, [`results`] presents the results.

mod drive;
mod engines;
pub(crate) mod files;
mod fio;
pub(crate) mod job;
mod plan;
mod results;
mod set;
pub(crate) mod worker;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;

use self::job::{EngineKind, JobOutcome, Pattern};
use self::plan::{Item, Runner};
use self::worker::Task;
use super::comparison;
use super::described::Scenario;
use super::measurements::Measurements;
use crate::context::Bench;
use crate::failure::Failure;
use crate::peers::tool::{Peer, Tool};
use crate::report::model::{Results, Section};

/// The options of `bench disk`. Options that describe a job (`--engine` to `--processes`) replace the default
/// measurements.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiskOptions {
    /// I/O engines, separated by commas
    #[arg(long, value_name = "ENGINE,…", value_delimiter = ',', value_enum)]
    engine: Vec<EngineKind>,
    /// Access patterns and directions, separated by commas
    #[arg(long, value_name = "PATTERN,…", value_delimiter = ',', value_enum)]
    rw: Vec<Pattern>,
    /// Bytes per operation, 512 to 1m; separated by commas
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = block)]
    bs: Vec<u32>,
    /// Operations in flight per thread or process; separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: Vec<u32>,
    /// Number of concurrent threads that each run the job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
    /// Use processes instead of threads
    #[arg(long)]
    processes: bool,
    /// Use the page cache instead of bypassing it (O_DIRECT)
    #[arg(long)]
    buffered: bool,
    /// Size of the file created for the run [default: 2g; 512m with --quick]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// File or block device to use instead
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    file: Option<PathBuf>,
    /// Allow jobs that write to overwrite that file (never a block device)
    #[arg(long, requires = "file")]
    overwrite: bool,
    /// Only the write-up's job, one minute for each variant
    #[arg(long = "seed-002")]
    write_up: bool,
    /// Open, read and close a set of files: those below DIR, or files created for the run
    #[arg(long, value_name = "DIR")]
    files: Option<Option<PathBuf>>,
    /// With --files: size in bytes of each created file
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    file_size: u64,
}

/// Parses a size in the syntax of fio and nginx: a number with k, m, g or t.
fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.char_indices().last() {
        Some((end, 'k')) => (&lower[..end], 10),
        Some((end, 'm')) => (&lower[..end], 20),
        Some((end, 'g')) => (&lower[..end], 30),
        Some((end, 't')) => (&lower[..end], 40),
        _ => (lower.as_str(), 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << unit));
    number.filter(|&bytes| bytes > 0).ok_or_else(|| "a size above 0, such as 4k, 128k, 1m or 2g".to_owned())
}

/// Parses a block size that every engine supports.
fn block(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    // The maximum is the size of the buffers, the minimum a sector.
    match u32::try_from(bytes) {
        Ok(bytes) if (512..=bare::BLOCK_BYTES_MAX).contains(&bytes) && bytes % 512 == 0 => Ok(bytes),
        _ => Err("a multiple of 512 up to 1m".to_owned()),
    }
}

impl DiskOptions {
    /// Whether the options describe a job: then only that job is measured.
    fn is_own_job(&self) -> bool {
        !(self.engine.is_empty() && self.rw.is_empty() && self.bs.is_empty() && self.depth.is_empty())
            || self.jobs.is_some()
            || self.processes
            || self.buffered
    }

    /// Checks that the file of the jobs is usable and may be used.
    fn check_file(&self) -> Result<(), Failure> {
        let Some(path) = &self.file else { return Ok(()) };
        // A file that cannot be examined cannot be used: nonexistent names and inaccessible directories get the same
        // message.
        let failure = Failure::file("use", path);
        let kind = fs::metadata(path).map_err(failure)?.file_type();
        let wrong = |why: &str| Err(Failure::Usage(format!("--file {}: {why}", path.display())));
        // The default jobs include writes; a described job only reads by default.
        let writes = !self.is_own_job() || self.rw.iter().any(|pattern| pattern.writes());
        if !kind.is_file() && !kind.is_block_device() {
            return wrong("neither a file nor a block device");
        }
        if kind.is_block_device() && writes {
            return wrong("nothing is ever written to a block device; use --rw read or randread");
        }
        if writes && !self.overwrite {
            return wrong("jobs that write would destroy its content: --overwrite, or --rw read or randread");
        }
        Ok(())
    }
}

impl Scenario for DiskOptions {
    const NAME: &'static str = "disk";
    const SECONDS: u32 = 200;
    const TITLE: &'static str = "Reads and writes of a disk: one process with many operations in flight, or many processes with one each";
    const QUESTION: &'static str =
        "Which throughput does each engine reach, at which queue depth, and at what cost?";

    /// Rejects invalid or unavailable options before any file is created.
    fn check(&self) -> Result<(), Failure> {
        self.check_file()?;
        if let Some(Some(directory)) = &self.files {
            let read = Failure::file("read the directory", directory);
            fs::read_dir(directory).map_err(read)?;
        }
        Ok(())
    }

    fn run(&self, bench: &Bench, section: &mut Section) -> Result<Results, Failure> {
        if let Some(directory) = &self.files {
            return set::run(bench, section, directory.as_deref(), self.file_size);
        }
        let target = target(bench, self)?;
        let fio = Peer::Fio.find(bench);
        match &fio {
            Ok(tool) => section.configure("fio", &tool.version),
            Err(missing) => section.skip("fio, for comparison", missing),
        }
        let mut items = plan::items(bench, self, &target, fio.is_ok());
        bench.progress(format_args!("disk: {} jobs, {} MiB", items.len(), target.bytes >> 20));
        comparison::measure(bench, section, &mut items, Item::labels, |item, round, _| {
            let outcome = measure(bench, item, round, fio.as_ref().ok())?;
            Ok(outcome.run(item.job.engine == EngineKind::Sync))
        })?;
        // Removed before the tables are generated, since the file is no longer needed.
        if self.file.is_none() {
            let _ = fs::remove_file(&target.path);
        }
        for item in items.iter().filter(|item| item.tool == Runner::Fio) {
            let text = fio::job_file(&item.job).unwrap_or_default();
            section.configure(&format!("fio: {}", item.name), &text);
        }
        Ok(results::results(Measurements::of(section), &items))
    }
}

pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    /// Number of bytes that may be used.
    pub(crate) bytes: u64,
}

/// Runs one job once, by this program or by fio.
fn measure(bench: &Bench, item: &Item, round: u32, fio: Option<&Tool>) -> Result<JobOutcome, Failure> {
    let mut job = item.job.clone();
    // A different sequence of offsets in each round, the same one for all engines within a round.
    job.seed = u64::from(round) + 1;
    match (item.tool, fio) {
        (Runner::Ours, _) => {
            let processes = job.processes;
            worker::run(bench, &Task::Blocks(job), processes, &[])
        }
        (Runner::Fio, Some(tool)) => fio::measure(bench, tool, &job),
        (Runner::Fio, None) => Err(Failure::Other("fio is not installed".to_owned())),
    }
}

/// Returns the named file, or creates one, filled with data that a device cannot treat as zeroes.
fn target(bench: &Bench, options: &DiskOptions) -> Result<DataFile, Failure> {
    if let Some(path) = &options.file {
        let failure = Failure::file("open", path);
        let mut file = File::open(path).map_err(failure)?;
        // The length of a block device is found by seeking to its end; its metadata have no length.
        let bytes = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(failure)?;
        if bytes < u64::from(bare::BLOCK_BYTES_MAX) {
            return Err(Failure::Usage(format!("--file {}: smaller than 1m", path.display())));
        }
        // fio is started in another working directory.
        return Ok(DataFile { path: std::path::absolute(path).map_err(failure)?, bytes });
    }
    let bytes = options.size.unwrap_or(bench.scaled(8 << 20, 512 << 20, 2 << 30));
    let bytes = bytes.max(u64::from(bare::BLOCK_BYTES_MAX));
    bench.workspace.need_space(bytes)?;
    let path = bench.workspace.directory("disk")?.join("data");
    bench.progress(format_args!("disk: writing a file of {} MiB", bytes >> 20));
    fill(bench, &path, bytes)?;
    Ok(DataFile { path, bytes })
}

/// Writes a file and syncs it to the device before returning, so that no measurement includes the write.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_units() {
        let table = [("4k", 4 << 10), ("128K", 128 << 10), ("1m", 1 << 20), ("2g", 2 << 30), ("512", 512)];
        for (text, bytes) in table {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "0", "-1", "4q", "99999999t"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(block("2m").is_err() && block("100").is_err() && block("64k") == Ok(64 << 10));
    }
}
