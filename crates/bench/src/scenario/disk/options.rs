//! The command line of `bench disk`, and the jobs that a user describes by it.
//!
//! Nothing is ever written to a block device, and to a named file only on request.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use clap::Args;

use super::job::{EngineKind, Job, Pattern};
use crate::failure::Failure;
use crate::scenario::described::or_default;

/// The options of `bench disk`. Options that describe a job (`--engine` to `--buffered`) replace the jobs of the report.
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
    /// Operations in flight of each copy of the job; separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: Vec<u32>,
    /// Number of concurrent copies of the job, as threads [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
    /// Run the copies as processes instead of threads
    #[arg(long)]
    processes: bool,
    /// Use the page cache instead of bypassing it (O_DIRECT)
    #[arg(long)]
    buffered: bool,
    /// Size in MiB of the file, or of all files, that are created for the run [default: 2048; 512 with --quick]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(super) size: Option<u64>,
    /// File or block device to use instead
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub(super) file: Option<PathBuf>,
    /// Allow jobs that write to overwrite that file (never a block device)
    #[arg(long, requires = "file")]
    overwrite: bool,
    /// Open, read and close random files of this size instead, 512 to 1m
    #[arg(long, value_name = "SIZE", value_parser = block, conflicts_with_all = ["file", "write_up", "engine", "rw", "bs", "depth", "jobs", "processes", "buffered"])]
    pub(super) files: Option<u32>,
    /// Only the write-up's job, one minute for each variant
    #[arg(long = "seed-002")]
    pub(super) write_up: bool,
}

/// Parses a block size that every engine supports: a number of bytes, or with k or m.
fn block(text: &str) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix('k').map(|digits| (digits, 10)) {
        Some(found) => found,
        None => lower.strip_suffix('m').map_or((lower.as_str(), 0), |digits| (digits, 20)),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(1 << unit));
    // The maximum is the size of the buffers, the minimum a sector.
    let is_possible =
        |bytes: &u32| (512..=bare::BLOCK_BYTES_MAX).contains(bytes) && bytes.is_multiple_of(512);
    bytes.filter(is_possible).ok_or_else(|| "a multiple of 512 up to 1m, such as 4k or 128k".to_owned())
}

impl DiskOptions {
    /// Returns every combination of the parameters that the user named; none if the options describe no job. A parameter
    /// that the user omitted has one default value.
    pub(super) fn own_jobs(&self, base: &Job) -> Vec<Job> {
        if !self.describes_job() {
            return Vec::new();
        }
        let (copies, in_processes) = (self.jobs.unwrap_or(1), self.processes);
        let base = Job { direct: !self.buffered, copies, in_processes, is_verified: true, ..base.clone() };
        let mut jobs = Vec::new();
        for pattern in or_default(&self.rw, &[base.pattern]) {
            for block_bytes in or_default(&self.bs, &[base.block_bytes]) {
                for depth in or_default(&self.depth, &[base.depth]) {
                    for engine in or_default(&self.engine, &[base.engine]) {
                        jobs.push(Job { engine, pattern, block_bytes, depth, ..base.clone() });
                    }
                }
            }
        }
        jobs
    }

    fn describes_job(&self) -> bool {
        !(self.engine.is_empty() && self.rw.is_empty() && self.bs.is_empty() && self.depth.is_empty())
            || self.jobs.is_some()
            || self.processes
            || self.buffered
    }

    /// Checks that the file of the jobs is usable and may be used.
    pub(super) fn check_file(&self) -> Result<(), Failure> {
        let Some(path) = &self.file else { return Ok(()) };
        let kind = fs::metadata(path).map_err(Failure::file("use", path))?.file_type();
        let wrong = |why: &str| Err(Failure::Usage(format!("--file {}: {why}", path.display())));
        // The jobs of the report include writes; a described job only reads by default.
        let writes = !self.describes_job() || self.rw.iter().any(|pattern| pattern.writes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_parsed_with_units() {
        for (text, bytes) in [("4k", 4 << 10), ("128K", 128 << 10), ("1m", 1 << 20), ("512", 512)] {
            assert_eq!(block(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "0", "-1", "4q", "2m", "100", "9999999m"] {
            assert!(block(text).is_err(), "{text}");
        }
    }
}
