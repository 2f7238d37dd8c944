//! `bench disk`: what a device does at a depth, by each way of asking it.
//!
//! [`job`] is a job as data, [`drive`] the loop that carries it out on the queue of an engine ([`engines`]), [`worker`]
//! the process that this happens in. [`files`] opens, reads and closes a set of files instead. [`plan`] says what is
//! measured, [`fio`] has the same done by fio, [`told`] is what is made of it all.

mod drive;
mod engines;
pub(crate) mod files;
mod fio;
pub(crate) mod job;
mod plan;
mod set;
mod told;
pub(crate) mod worker;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;

use self::job::{EngineKind, JobOutcome, Pattern};
use self::plan::{Item, Runner};
use self::worker::Task;
use super::described::Scenario;
use super::lineup;
use super::sheet::Sheet;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::peers::tool::Peer;
use crate::report::model::Section;

/// The options of `bench disk`. Those that describe a job (`--engine` to `--processes`) replace what is measured without
/// them by the jobs that they describe.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiskOptions {
    /// Engines, several separated by commas
    #[arg(long, value_name = "ENGINE,…", value_delimiter = ',', value_enum)]
    engine: Vec<EngineKind>,
    /// read, write, rw, randread, randwrite, randrw; several separated by commas
    #[arg(long, value_name = "PATTERN,…", value_delimiter = ',', value_parser = Pattern::parse)]
    rw: Vec<Pattern>,
    /// Bytes of each operation, 512 to 1m; several separated by commas
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = block)]
    bs: Vec<u32>,
    /// Operations in flight in each thread or process; several separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: Vec<u32>,
    /// Threads that do the same at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
    /// Let those be processes
    #[arg(long)]
    processes: bool,
    /// Through the page cache, not past it
    #[arg(long)]
    buffered: bool,
    /// Size of the file that is made for the run [default: 2g; 512m with --quick]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// A file or block device to use instead
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    file: Option<PathBuf>,
    /// Lets jobs that write destroy what that file holds (never a block device)
    #[arg(long, requires = "file")]
    overwrite: bool,
    /// The write-up's own job alone, a minute for each variant
    #[arg(long = "seed-002")]
    write_up: bool,
    /// Open, read and close a set of files: those below DIR, or such as are made for the run
    #[arg(long, value_name = "DIR")]
    files: Option<Option<PathBuf>>,
    /// With --files: bytes of each file that is made
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    file_size: u64,
}

/// A size as fio and nginx write it: a number with k, m, g or t.
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

/// A block size that every engine has buffers for.
fn block(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    // The largest is that of the buffers, the smallest a sector.
    match u32::try_from(bytes) {
        Ok(bytes) if (512..=bare::BLOCK_BYTES_MAX).contains(&bytes) && bytes % 512 == 0 => Ok(bytes),
        _ => Err("a multiple of 512 up to 1m".to_owned()),
    }
}

impl DiskOptions {
    /// Whether jobs are described: then those are measured and nothing else.
    fn is_own_job(&self) -> bool {
        !(self.engine.is_empty() && self.rw.is_empty() && self.bs.is_empty() && self.depth.is_empty())
            || self.jobs.is_some()
            || self.processes
            || self.buffered
    }

    /// The file that jobs use, once it is known that it may be used.
    fn check_file(&self) -> Result<(), Failure> {
        let Some(path) = &self.file else { return Ok(()) };
        // What cannot be looked at cannot be used either: the same line for a name that is none and a directory that is closed.
        let failure = Failure::file("use", path);
        let kind = fs::metadata(path).map_err(failure)?.file_type();
        let wrong = |why: &str| Err(Failure::Usage(format!("--file {}: {why}", path.display())));
        // Some of the jobs without a description write; a description's default reads.
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
    const HELP: &'static str =
        "Reads and writes of a disk by each engine, depth and block size; or a set of files (--files)";
    const TITLE: &'static str =
        "Reads and writes of a disk: one process with many in flight, or many with one";
    const QUESTION: &'static str =
        "How much does the device do by each engine, at which depth, and at what cost?";

    /// What cannot be meant, or cannot be had, is told before anything is made.
    fn check(&self) -> Result<(), Failure> {
        self.check_file()?;
        if let Some(Some(directory)) = &self.files {
            let read = Failure::file("read the directory", directory);
            fs::read_dir(directory).map_err(read)?;
        }
        Ok(())
    }

    /// All jobs in turn, and what is told of them.
    fn run(&self, bench: &Bench, section: &mut Section) -> Result<(), Failure> {
        if let Some(directory) = &self.files {
            return set::run(bench, section, directory.as_deref(), self.file_size);
        }
        let target = target(bench, self)?;
        let fio = Peer::Fio.find(bench);
        match &fio {
            Ok(tool) => section.configure("fio", &tool.version),
            Err(missing) => section.skip("fio, as a check on these figures", &missing.to_string()),
        }
        let mut items = plan::items(bench, self, &target, fio.is_ok());
        bench.progress(format_args!("disk: {} jobs, {} MiB", items.len(), target.bytes >> 20));
        lineup::measure(bench, section, &mut items, Item::labels, |item, round, _| {
            let outcome = measure(bench, item, round, fio.as_ref().ok())?;
            Ok(outcome.map(|outcome| outcome.run(item.job.engine == EngineKind::Sync)))
        })?;
        // Before the tables are made: what takes space for nothing goes first.
        if self.file.is_none() {
            let _ = fs::remove_file(&target.path);
        }
        for item in items.iter().filter(|item| item.tool == Runner::Fio) {
            let text = fio::job_file(&item.job).unwrap_or_default();
            section.configure(&format!("fio: {}", item.name), &text);
        }
        let told = told::told(Sheet::of(section), &items);
        section.tell(told);
        Ok(())
    }
}

/// The file of a run.
pub(crate) struct DataFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// How much of it may be used.
    pub(crate) bytes: u64,
}

/// One job, once, by us or by fio.
fn measure(
    bench: &Bench,
    item: &Item,
    round: u32,
    fio: Option<&crate::peers::tool::Tool>,
) -> Result<Result<JobOutcome, String>, Failure> {
    let mut job = item.job.clone();
    // Another order of places in each round, the same for all engines of one.
    job.seed = u64::from(round) + 1;
    match (item.tool, fio) {
        (Runner::Ours, _) => {
            let processes = job.processes;
            worker::run(bench, &Task::Blocks(job), processes, &[])
        }
        (Runner::Fio, Some(tool)) => fio::measure(bench, tool, &job),
        (Runner::Fio, None) => Ok(Err("fio is not installed".to_owned())),
    }
}

/// The file that is named, or one of our own full of bytes that no device takes for zeroes.
fn target(bench: &Bench, options: &DiskOptions) -> Result<DataFile, Failure> {
    if let Some(path) = &options.file {
        let failure = Failure::file("open", path);
        let mut file = File::open(path).map_err(failure)?;
        // The length of a block device is where its end is; its metadata has none.
        let bytes = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(failure)?;
        if bytes < u64::from(bare::BLOCK_BYTES_MAX) {
            return Err(Failure::Usage(format!("--file {}: smaller than 1m", path.display())));
        }
        return Ok(DataFile { path: path.clone(), bytes });
    }
    let bytes = options.size.unwrap_or(match bench.scale {
        Scale::Instant => 8 << 20,
        Scale::Quick => 512 << 20,
        Scale::Normal | Scale::Full => 2 << 30,
    });
    let bytes = bytes.max(u64::from(bare::BLOCK_BYTES_MAX));
    bench.workspace.need_space(bytes)?;
    let path = bench.workspace.directory("disk")?.join("data");
    bench.progress(format_args!("disk: writing a file of {} MiB", bytes >> 20));
    fill(bench, &path, bytes)?;
    Ok(DataFile { path, bytes })
}

/// Writes a file and has it on the device before this returns, so that no measurement pays for it.
pub(super) fn fill(bench: &Bench, path: &Path, bytes: u64) -> Result<(), Failure> {
    // A full disk ends the run here, before anything was measured, and the workspace takes the file away.
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
    fn sizes_have_units() {
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
