//! What the machine could deliver at the most: the same files, opened, read bypassing the page cache (O_DIRECT) and closed, without a
//! server, a network or a client. Every engine stands beside it as a share.
//!
//! It has what servers have (a control group with the case's limit of memory, a dropped cache), and more than they: all
//! processors, because nothing sends the bytes that it reads.

use std::path::PathBuf;
use std::time::Duration;

use super::data::{Files, Size};
use super::measure::Case;
use super::ways::{LIMIT, Source};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::cgroup::{Group, Limits};
use crate::method::disturbance::Watch;
use crate::method::system_stat::disk_traffic;
use crate::method::timeline::{Recorder, device_of};
use crate::method::{page_cache, pin};
use crate::report::model::{Run, Section};
use crate::scenario::disk::files::{FilesPlan, FilesVia, read_files};

/// Whether it is measured with a case, in the same rounds: files that stay in memory come faster than any disk. It knows neither workers nor connections, so that the other
/// cases of the size take what was measured there.
pub(super) fn is_measured_in(case: Case) -> bool {
    case.memory_bytes.is_some() && case.source == Source::Files && case.is_base()
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
    section: &mut Section,
    files: &Files,
    case: Case,
    length: Duration,
) -> Result<Run, Failure> {
    let group = Group::new(&Limits { memory_bytes: case.memory_bytes, ..Limits::default() })?;
    let mut refused = String::new();
    for via in [FilesVia::Uring, FilesVia::Threads] {
        let plan = FilesPlan {
            files: files.paths(case.size),
            list: PathBuf::new(),
            via,
            depth: depth(case.size),
            threads: pin::available().len() as u32,
            file_bytes: case.size.bytes(),
            chunk_bytes: case.size.bytes() as u32,
            seconds: length.as_secs_f64(),
        };
        match read(bench, &plan, group.directories())? {
            Ok(run) => {
                section.configure(LIMIT, &words(&plan));
                return Ok(run);
            }
            Err(reason) => refused = reason,
        }
    }
    Err(Failure::Other(refused))
}

fn words(plan: &FilesPlan) -> String {
    format!(
        "ringroad bench disk --files: {} with direct reads of whole files, {} in flight in each of {} threads\n",
        plan.via.name(),
        plan.depth,
        plan.threads
    )
}

/// One reading, with what the disk and the machine did meanwhile.
fn read(bench: &Bench, plan: &FilesPlan, groups: &[PathBuf]) -> Result<Result<Run, String>, Failure> {
    page_cache::drop_all()?;
    let device = device_of(bench.workspace.path());
    let (watch, recorder) = (Watch::start(), Recorder::start(bench.workspace.path()));
    let before = disk_traffic(device);
    let outcome = read_files(bench, plan, groups)?;
    let after = disk_traffic(device);
    let (disturbed, timeline) = (watch.end(), recorder.end());
    bench.check_interrupted()?;
    Ok(outcome.map(|outcome| {
        let files = &outcome.read;
        let us = |percent| files.total.percentile_us(percent);
        let run = Run::of([
            ("requests", files.operations as f64),
            ("seconds", outcome.seconds),
            ("requests_per_second", files.operations as f64 / outcome.seconds),
            ("body_bytes", files.bytes as f64),
            ("p50_us", us(50.0)),
            ("p99_us", us(99.0)),
            ("p99_9_us", us(99.9)),
            ("server_cpu_seconds", outcome.user_seconds + outcome.system_seconds),
            ("disk_bytes_per_body_byte", (after.inward - before.inward) as f64 / files.bytes.max(1) as f64),
            ("errors", 0.0),
        ]);
        Run { disturbed, timeline: Some(timeline), ..run }
    }))
}
