//! `bench disk --files`: the set of files, each engine over it at several depths, and the table of that.

use std::path::{Path, PathBuf};

use super::files::{FilesOutcome, FilesPlan, FilesVia, below, read_files};
use super::plan::size_name;
use crate::context::{Bench, Scale};
use crate::failure::Failure;
use crate::method::rounds::in_turns;
use crate::report::model::{Axis, AxisScale, Finding, Plot, Run, Section, Series, Table, Verdict};
use crate::scenario::figures::{Rounds, cell, column, middle, row, series};

/// Most files of a named folder that are used.
const FILES_MAX: usize = 1_000_000;
/// Depths that are compared: one worker's connections of the write-up among them.
const DEPTHS: [u32; 4] = [1, 16, 64, 200];

/// A set with what is known of it.
struct Set {
    /// In the order of their names.
    files: Vec<PathBuf>,
    /// Of the smallest one: as much is read of each.
    file_bytes: u64,
}

/// Measures the files below `folder`, or some that are made where none is named.
pub(super) fn run(bench: &Bench, folder: Option<&Path>, file_bytes: u64) -> Result<Section, Failure> {
    let set = folder.map_or_else(|| make(bench, file_bytes), find)?;
    let mut plans = plans(bench, &set);
    bench.progress(format_args!("disk: {} files of {} bytes", set.files.len(), set.file_bytes));
    let results = in_turns(bench, &mut plans, |plan, _| read_files(bench, plan))?;
    let measured: Vec<(FilesPlan, Rounds<FilesOutcome>)> = plans.into_iter().zip(results).collect();
    Ok(section(&set, &measured))
}

/// Makes a set on the disk of the run, as large as a run of this scale may take time for.
fn make(bench: &Bench, file_bytes: u64) -> Result<Set, Failure> {
    let (count, bytes_max) = match bench.scale {
        Scale::Instant => (16, 4 << 20),
        Scale::Quick => (2_000, 256 << 20),
        Scale::Normal | Scale::Full => (20_000, 2 << 30),
    };
    let count = (bytes_max / file_bytes).clamp(4, count);
    bench.workspace.need_space(count * file_bytes.next_multiple_of(4096))?;
    bench.progress(format_args!("disk: making {count} files of {file_bytes} bytes"));
    let mut files = Vec::new();
    for number in 0..count {
        // Folders as a cache has them: a look-up in one of a few hundred names, not in one of twenty thousand.
        let folder = bench.workspace.folder(&format!("disk-set/{:02x}", number % 256))?;
        let path = folder.join(number.to_string());
        std::fs::write(&path, vec![number as u8; file_bytes as usize]).map_err(|error| Failure::File {
            path: path.clone(),
            doing: "write",
            error,
        })?;
        files.push(path);
    }
    // Direct reads of what waits to be written would write it first.
    rustix::fs::sync();
    Ok(Set { files, file_bytes })
}

/// The files that are there.
fn find(folder: &Path) -> Result<Set, Failure> {
    let files = below(folder, FILES_MAX)?;
    // One that vanished meanwhile is found out by the worker, in words.
    let length = |path: &PathBuf| std::fs::metadata(path).map(|metadata| metadata.len()).ok();
    let file_bytes = files.iter().filter_map(length).min().unwrap_or(0);
    if file_bytes == 0 {
        let problem = if files.is_empty() { "no file below it" } else { "an empty file below it" };
        return Err(Failure::Usage(format!("--files {}: {problem}", folder.display())));
    }
    Ok(Set { files, file_bytes })
}

/// Every engine at every depth, those of one depth side by side.
fn plans(bench: &Bench, set: &Set) -> Vec<FilesPlan> {
    let seconds = match (bench.seconds, bench.scale) {
        (None, Scale::Instant) => 0.02,
        _ => bench.length(std::time::Duration::from_secs(2)).as_secs_f64(),
    };
    let mut plans = Vec::new();
    for depth in DEPTHS {
        for via in FilesVia::ALL {
            // Blocking calls have no depth, so that one row has them.
            if via != FilesVia::Sync || depth == 1 {
                plans.push(FilesPlan {
                    files: set.files.clone(),
                    via,
                    depth,
                    threads: 1,
                    file_bytes: set.file_bytes,
                    chunk_bytes: set.file_bytes.next_multiple_of(4096).min(1 << 20) as u32,
                    direct: true,
                    seconds,
                    cpus: Vec::new(),
                    groups: Vec::new(),
                });
            }
        }
    }
    plans
}

/// The part of the report.
fn section(set: &Set, measured: &[(FilesPlan, Rounds<FilesOutcome>)]) -> Section {
    let size = u32::try_from(set.file_bytes).map_or_else(|_| set.file_bytes.to_string(), size_name);
    Section {
        scenario: "disk".to_owned(),
        title: format!(
            "A set of files: {} of {size}, opened, read past the page cache, closed",
            set.files.len()
        ),
        question: "How many files a second does this machine open, read and close, whoever asks?".to_owned(),
        tables: vec![table(measured)],
        plots: vec![plot(measured)],
        findings: best(measured).into_iter().collect(),
        runs: measured.iter().flat_map(|(plan, rounds)| runs(plan, rounds)).collect(),
        ..Section::default()
    }
}

/// A line for each engine and depth.
fn table(measured: &[(FilesPlan, Rounds<FilesOutcome>)]) -> Table {
    let line = |(plan, rounds): &(FilesPlan, Rounds<FilesOutcome>)| {
        let figure = |of: fn(&FilesOutcome) -> f64, decimals| cell(&series(rounds, of), decimals);
        let cells = vec![
            figure(FilesOutcome::files_per_second, 0),
            figure(|outcome| outcome.bytes_per_second() / 1e6, 1),
            figure(|outcome| outcome.times.percentile_us(50.0), 0),
            figure(|outcome| outcome.times.percentile_us(99.0), 0),
            figure(|outcome| (outcome.user_seconds + outcome.system_seconds) * 1e6 / outcome.files as f64, 1),
            figure(|outcome| outcome.switches as f64 / outcome.files as f64, 2),
        ];
        row(format!("{}, depth {}", plan.via.name(), plan.depth), cells)
    };
    Table {
        title: "Files opened, read and closed".to_owned(),
        columns: vec![
            column("files", "1/s"),
            column("bandwidth", "MB/s"),
            column("median", "µs"),
            column("99 %", "µs"),
            column("CPU per file", "µs"),
            column("context switches per file", ""),
        ],
        rows: measured.iter().map(line).collect(),
    }
}

/// Rates by depth.
fn plot(measured: &[(FilesPlan, Rounds<FilesOutcome>)]) -> Plot {
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    let line = |via: FilesVia| {
        let of_engine = measured.iter().filter(|(plan, _)| plan.via == via);
        let point = |(plan, rounds): &(FilesPlan, Rounds<FilesOutcome>)| {
            let rate = middle(&series(rounds, FilesOutcome::files_per_second))?;
            Some([f64::from(plan.depth), rate])
        };
        Series { name: via.name().to_owned(), points: of_engine.filter_map(point).collect() }
    };
    Plot {
        id: "disk-files".to_owned(),
        title: "Files a second by depth".to_owned(),
        x: axis("files open at once", "", AxisScale::Logarithmic),
        y: axis("files", "1/s", AxisScale::Linear),
        series: FilesVia::ALL.into_iter().map(line).collect(),
    }
}

/// The limit itself, which is what the command is for.
fn best(measured: &[(FilesPlan, Rounds<FilesOutcome>)]) -> Option<Finding> {
    // By rate, not by bytes: all files are of one size.
    let rate = |rounds| middle(&series(rounds, FilesOutcome::files_per_second));
    let rates = measured.iter().filter_map(|(plan, rounds)| Some((plan, rate(rounds)?)));
    let (plan, rate) = rates.max_by(|left, right| left.1.total_cmp(&right.1))?;
    Some(Finding {
        claim: "The most that a server could read from this set.".to_owned(),
        verdict: Verdict::Holds,
        sentence: format!("{rate:.0} files a second, by {} at a depth of {}.", plan.via.name(), plan.depth),
    })
}

/// Each round, as raw figures.
fn runs(plan: &FilesPlan, rounds: &Rounds<FilesOutcome>) -> Vec<Run> {
    let run = |(round, result): (usize, &Result<FilesOutcome, String>)| {
        let mut run = Run::default();
        let labels = [
            ("engine", plan.via.name().to_owned()),
            ("depth", plan.depth.to_string()),
            ("round", round.to_string()),
        ];
        run.labels.extend(labels.map(|(name, value)| (name.to_owned(), value)));
        match result {
            Ok(outcome) => run.figures.extend(
                [
                    ("files", outcome.files as f64),
                    ("bytes", outcome.bytes as f64),
                    ("seconds", outcome.seconds),
                    ("user_seconds", outcome.user_seconds),
                    ("system_seconds", outcome.system_seconds),
                    ("context_switches", outcome.switches as f64),
                    ("kernel_entries", outcome.kernel_entries as f64),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            ),
            Err(reason) => {
                run.labels.insert("refused".to_owned(), reason.clone());
            }
        }
        run
    };
    rounds.iter().enumerate().map(run).collect()
}
