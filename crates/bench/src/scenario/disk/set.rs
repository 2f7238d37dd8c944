//! `bench disk --files`: the set of files, the measurement of each engine at several depths, and the table.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::files::{FilesPlan, FilesVia, below, read_files};
use super::plan::size_name;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::report::model::{AxisScale, Results, Section, Verdict};
use crate::scenario::comparison;
use crate::scenario::described::Named;
use crate::scenario::measurements::{Figure, Measurements, Of, Rows, at, axis, figure, finding, named};

/// Maximum number of files of a named directory that are used.
const FILES_MAX: usize = 1_000_000;
/// The compared depths, among them the number of connections of one worker in the write-up.
const DEPTHS: [u32; 4] = [1, 16, 64, 200];

/// A set of files with a common size.
struct Set {
    files: Vec<PathBuf>,
    /// Size in bytes of the smallest file: as much is read of each.
    file_bytes: u64,
}

const FILES: Figure = figure("files", "1/s", 0, Of::Quotient("operations", "seconds", 1.0));
const FIGURES: [Figure; 6] = [
    FILES,
    figure("bandwidth", "MB/s", 1, Of::Quotient("bytes", "seconds", 1e-6)),
    figure("median", "µs", 0, Of::Value("latency_50_us", 1.0)),
    figure("99 %", "µs", 0, Of::Value("latency_99_us", 1.0)),
    figure("CPU per file", "µs", 1, Of::Quotient("cpu_seconds", "operations", 1e6)),
    figure("context switches per file", "", 2, Of::Quotient("context_switches", "operations", 1.0)),
];

/// Measures the files below `directory`; without a directory, files are created.
pub(super) fn run(
    bench: &Bench,
    section: &mut Section,
    directory: Option<&Path>,
    file_bytes: u64,
) -> Result<Results, Failure> {
    let set = directory.map_or_else(|| make(bench, file_bytes), find)?;
    let count = set.files.len();
    let size = u32::try_from(set.file_bytes).map_or_else(|_| set.file_bytes.to_string(), size_name);
    section.title = format!("A set of files: {count} of {size}, opened, read with O_DIRECT, closed");
    section.question = "How many files per second does this machine open, read and close?".to_owned();
    // No write-up has this measurement.
    section.seed = None;
    let mut plans = plans(bench, &set);
    bench.progress(format_args!("disk: {count} files of {} bytes", set.file_bytes));
    let labels = |plan: &FilesPlan| at([("engine", &plan.via.name()), ("depth", &plan.depth)]);
    comparison::measure(bench, section, &mut plans, labels, |plan, _, _| {
        Ok(read_files(bench, plan, &[])?.run(true))
    })?;
    let measurements = Measurements::of(section);
    let rows: Rows = plans
        .iter()
        .map(|plan| (format!("{}, depth {}", plan.via.name(), plan.depth), labels(plan)))
        .collect();
    let table = measurements.table("Files opened, read and closed", &rows, &FIGURES.map(Figure::shown));
    let plot = measurements.plot(
        ("disk-files", "Files per second by queue depth"),
        ("depth", axis("files open at once", "", AxisScale::Logarithmic)),
        (FILES, axis("files", "1/s", AxisScale::Linear)),
        &named("engine", FilesVia::value_variants().iter().map(|via| via.name())),
    );
    // The limit itself, which is the purpose of the command. By rate instead of bytes, because all files have the same
    // size.
    let rates = rows.iter().filter_map(|(name, labels)| Some((name, measurements.middle(FILES, labels)?)));
    let best = rates.max_by(|left, right| left.1.total_cmp(&right.1)).map(|(name, rate)| {
        let claim = "The highest rate that a server could reach with this set.";
        finding(claim, Verdict::Holds, format!("{rate:.0} files per second, by {name}."))
    });
    let findings = best.into_iter().collect();
    Ok(Results { tables: vec![table], plots: vec![plot], findings, ..Results::default() })
}

/// Creates a set on the disk of the run, with a size that depends on the scale.
fn make(bench: &Bench, file_bytes: u64) -> Result<Set, Failure> {
    let (count, bytes_max) = bench.scaled((16, 4 << 20), (2_000, 256 << 20), (20_000, 2 << 30));
    let count = (bytes_max / file_bytes).clamp(4, count);
    bench.workspace.need_space(count * file_bytes.next_multiple_of(4096))?;
    bench.progress(format_args!("disk: creating {count} files of {file_bytes} bytes"));
    let mut files = Vec::new();
    for number in 0..count {
        // Directories of a few hundred names, as in a cache, instead of one directory of twenty thousand.
        let directory = bench.workspace.directory(&format!("disk-set/{:02x}", number % 256))?;
        let path = directory.join(number.to_string());
        std::fs::write(&path, vec![number as u8; file_bytes as usize])
            .map_err(Failure::file("write", &path))?;
        files.push(path);
    }
    // Direct reads of dirty pages would first write them back.
    rustix::fs::sync();
    Ok(Set { files, file_bytes })
}

fn find(directory: &Path) -> Result<Set, Failure> {
    let files = below(directory, FILES_MAX)?;
    // If a file vanishes afterwards, the worker reports it.
    let length = |path: &PathBuf| std::fs::metadata(path).map(|metadata| metadata.len()).ok();
    let file_bytes = files.iter().filter_map(length).min().unwrap_or(0);
    if file_bytes == 0 {
        let problem = if files.is_empty() { "no file in it" } else { "an empty file in it" };
        return Err(Failure::Usage(format!("--files {}: {problem}", directory.display())));
    }
    Ok(Set { files, file_bytes })
}

/// Returns a plan for every engine at every depth, with those of one depth next to each other.
fn plans(bench: &Bench, set: &Set) -> Vec<FilesPlan> {
    let seconds = match (bench.seconds, bench.scale) {
        (None, Scale::Instant) => 0.02,
        _ => bench.length(std::time::Duration::from_secs(2)).as_secs_f64(),
    };
    let mut plans = Vec::new();
    for depth in DEPTHS {
        for &via in FilesVia::value_variants() {
            // Blocking calls have no depth, so they are measured once.
            if via != FilesVia::Sync || depth == 1 {
                plans.push(FilesPlan {
                    files: set.files.clone(),
                    list: PathBuf::new(),
                    via,
                    depth,
                    threads: 1,
                    file_bytes: set.file_bytes,
                    chunk_bytes: set.file_bytes.next_multiple_of(4096).min(1 << 20) as u32,
                    seconds,
                });
            }
        }
    }
    plans
}
