//! `bench disk --files`: random files of a set are opened, read and closed, by each engine that opens files and at several
//! depths. This is the limit of a file server on this disk.

use std::fs;
use std::path::Path;

use super::files::FilesPlan;
use super::worker::{self, Task};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::pin;
use crate::report::model::{Results, Section};
use crate::scenario::comparison;
use crate::scenario::measurements::{Figure, Labels, Measurements, Of, Rows, at, figure};
use crate::scenario::served::{P50, P99};

/// Concurrently open files of all threads together.
const DEPTHS: [u32; 4] = [4, 16, 64, 256];

/// Maximum number of files: reads bypass the page cache, so more of them would only take longer to create.
const FILES_MAX: u64 = 65_536;

const FILES: Figure = figure("files", "1/s", 0, Of::Value("requests_per_second", 1.0));
const BANDWIDTH: Figure = figure("bandwidth", "MB/s", 1, Of::Quotient("body_bytes", "seconds", 1e-6));
const CPU: Figure = figure("CPU", "us/file", 2, Of::Quotient("server_cpu_seconds", "requests", 1e6));

fn labels(plan: &FilesPlan) -> Labels {
    let engine = if plan.by_ring { "uring" } else { "threads" };
    at([("engine", &engine), ("open files", &(plan.depth * plan.threads))])
}

/// Creates files of this size, `bytes` in total, and measures each engine at each depth for `seconds`.
pub(super) fn run(
    bench: &Bench,
    section: &mut Section,
    file_bytes: u32,
    bytes: u64,
    seconds: f64,
) -> Result<Results, Failure> {
    let count = (bytes / u64::from(file_bytes)).clamp(1, FILES_MAX);
    bench.workspace.need_space(count * u64::from(file_bytes))?;
    let directory = bench.workspace.directory("disk-set")?;
    bench.progress(format_args!("disk: creating {count} files of {file_bytes} bytes"));
    create(bench, &directory, count, file_bytes)?;
    let threads = pin::available().len() as u32;
    let plan = |by_ring, depth: u32| {
        let (directory, depth) = (directory.clone(), (depth / threads).max(1));
        FilesPlan { directory, count, by_ring, depth, threads, file_bytes, seconds }
    };
    let mut plans: Vec<FilesPlan> =
        DEPTHS.into_iter().flat_map(|depth| [true, false].map(|by_ring| plan(by_ring, depth))).collect();
    comparison::measure(bench, section, &mut plans, labels, |plan, _, _| {
        worker::run(bench, &Task::Files(plan.clone()), &[])
    })?;
    let row = |plan: &FilesPlan| {
        let labels = labels(plan);
        (labels.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", "), labels)
    };
    let rows: Rows = plans.iter().map(row).collect();
    let title = format!(
        "Open, read and close random files of {file_bytes} bytes (O_DIRECT), by engine and open files"
    );
    let columns = [FILES, BANDWIDTH, P50, P99, CPU].map(Figure::shown);
    let measurements = Measurements::of(section);
    Ok(Results {
        tables: vec![measurements.table(&title, &rows, &columns)],
        rankings: vec![measurements.ranking(&title, FILES, &rows)],
        ..Results::default()
    })
}

/// Creates the files of the set, which are named by numbers, and writes them to the disk.
fn create(bench: &Bench, directory: &Path, count: u64, file_bytes: u32) -> Result<(), Failure> {
    let mut content = vec![0; file_bytes as usize];
    let mut noise = bare::Noise::new(0);
    for number in 0..count {
        bench.check_interrupted()?;
        noise.fill(&mut content);
        let path = directory.join(number.to_string());
        fs::write(&path, &content).map_err(Failure::file("write", &path))?;
    }
    rustix::fs::sync();
    Ok(())
}
