//! What the machine could deliver at the most: the same files, opened, read past the page cache and closed, without a
//! server, a network or a client. Every engine stands beside it as a share.
//!
//! It has what servers have (a control group with the case's limit of memory, a dropped cache), and more than they: all
//! processors, because nobody sends what it reads.

use std::time::Duration;

use super::data::{Files, Size};
use super::measure::{Case, Measured};
use super::ways::Source;
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::cgroup::{Group, Limits};
use crate::method::disturbance::Watch;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::{Recorder, device_of};
use crate::method::{page_cache, pin};
use crate::scenario::disk::files::{FilesOutcome, FilesPlan, FilesVia, read_files};

/// Whether it is one for a case: files that stay in memory come faster than any disk.
pub(super) fn applies(case: Case) -> bool {
    case.memory_bytes.is_some()
}

/// Whether it is measured with a case, in the same rounds. It knows neither workers nor connections, so that the other
/// cases of the size take what was measured there.
pub(super) fn is_measured_in(case: Case) -> bool {
    applies(case) && case.source == Source::Files && case.is_base()
}

/// Files in flight of each thread. Enough for what is small to keep a fast disk busy, and of what is large so few that
/// their buffers stay well below the memory.
fn depth(size: Size) -> u32 {
    match size {
        Size::K4 => 64,
        Size::K100 => 32,
        Size::M1 => 16,
    }
}

/// Reads random files of a case for so long. By the ring, or by threads where there is none.
pub(super) fn measure(
    bench: &Bench,
    files: &Files,
    case: Case,
    length: Duration,
) -> Result<Measured, Failure> {
    let group = Group::new(&Limits { memory_bytes: case.memory_bytes, ..Limits::default() })?;
    let mut refused = String::new();
    for via in [FilesVia::Uring, FilesVia::Threads] {
        let plan = FilesPlan {
            files: files.paths(case.size),
            via,
            depth: depth(case.size),
            threads: pin::available().len() as u32,
            file_bytes: case.size.bytes(),
            chunk_bytes: case.size.bytes() as u32,
            direct: true,
            seconds: length.as_secs_f64(),
            cpus: Vec::new(),
            groups: group.folders().to_vec(),
        };
        match read(bench, &plan)? {
            Ok(measured) => return Ok(measured),
            Err(reason) => refused = reason,
        }
    }
    Err(Failure::Other(refused))
}

/// One reading, with what the disk and the machine did meanwhile.
fn read(bench: &Bench, plan: &FilesPlan) -> Result<Result<Measured, String>, Failure> {
    page_cache::drop_all()?;
    let device = device_of(bench.workspace.path());
    let (watch, recorder) = (Watch::start(), Recorder::start(bench.workspace.path()));
    let before = disk_traffic(device);
    let outcome = read_files(bench, plan)?;
    let after = disk_traffic(device);
    let (disturbed, timeline) = (watch.end(), recorder.end());
    bench.check_interrupted()?;
    let configuration = format!(
        "ringroad bench disk --files: {} with direct reads of whole files, {} in flight in each of {} threads\n",
        plan.via.name(),
        plan.depth,
        plan.threads
    );
    let measured = |outcome: FilesOutcome| Measured {
        answers_per_second: outcome.files_per_second(),
        megabytes_per_second: outcome.bytes_per_second() / 1e6,
        p50_ms: outcome.times.percentile_us(50.0) / 1e3,
        p99_ms: outcome.times.percentile_us(99.0) / 1e3,
        p999_ms: outcome.times.percentile_us(99.9) / 1e3,
        cpu_us: (outcome.user_seconds + outcome.system_seconds) * 1e6 / outcome.files.max(1) as f64,
        read_share: (after.inward - before.inward) as f64 / outcome.bytes.max(1) as f64,
        errors: 0,
        is_generator_bound: false,
        disturbed,
        timeline,
        configuration,
    };
    Ok(outcome.map(measured))
}
