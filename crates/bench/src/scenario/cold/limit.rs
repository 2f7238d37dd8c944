//! Measures the machine's limit: the same files are opened, read bypassing the page cache (O_DIRECT) and closed,
//! without a server, a network or a client. Tables show every engine as a share of this limit.
//!
//! The limit is measured under the same conditions as the servers (a cgroup with the case's memory limit, a dropped
//! page cache), but with all processors, because nothing sends the bytes that are read.

use io::probe::Probe;

use super::measure::{Case, CaseRun, observed};
use super::variants::{LIMIT, Source};
use crate::failure::Failure;
use crate::method::cgroup::{Group, Limits};
use crate::method::{page_cache, pin};
use crate::report::model::{Run, Section};
use crate::scenario::disk::files::FilesPlan;
use crate::scenario::disk::worker::{self, Task};

/// Whether the limit is measured with a case, in the same rounds: without a memory limit, cached files would be faster
/// than any disk. The limit does not depend on workers or connections, so the other cases of the same size reuse it.
pub(super) fn is_measured_in(case: Case) -> bool {
    case.memory_bytes.is_some() && case.source == Source::Files && case.is_base()
}

/// Reads random files of a case for its duration, by io_uring, or by threads where io_uring is not available.
pub(super) fn measure(run: &CaseRun<'_>, section: &mut Section) -> Result<Run, Failure> {
    let CaseRun { bench, files, case, .. } = *run;
    let group = Group::new(&Limits { memory_bytes: case.memory_bytes, ..Limits::default() })?;
    let plan = FilesPlan {
        directory: files.directory(case.size),
        count: files.count(case.size),
        by_ring: Probe::run().uring_refusal().is_none(),
        depth: case.size.depth,
        threads: pin::available().len() as u32,
        file_bytes: case.size.bytes as u32,
        seconds: bench.length(case.seconds()).as_secs_f64(),
    };
    let words = format!(
        "{} without a server: direct reads of complete files, {} in flight in each of {} threads\n",
        if plan.by_ring { "io_uring" } else { "a thread pool" },
        plan.depth,
        plan.threads
    );
    page_cache::drop_all()?;
    let (mut run, Run { disturbed, timeline, .. }, read_bytes) =
        observed(bench, || worker::run(bench, &Task::Files(plan), &group.directories))?;
    let body_bytes = run.figures.get("body_bytes").copied().unwrap_or_default().max(1.0);
    run.set("disk_bytes_per_body_byte", read_bytes as f64 / body_bytes);
    section.configure(LIMIT, &words);
    Ok(Run { disturbed, timeline, ..run })
}
