//! Runs a task in a separate process: CPU time and context switches of the process are then those of the task, and a
//! cgroup can limit its memory. This file has both sides: the worker process and its parent.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use super::files::{self, FilesPlan};
use super::job::{EngineKind, Job, JobOutcome};
use super::{drive, engines};
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::process::Launch;
use crate::method::workspace::write_whole;
use crate::report::model::Run;

/// Name of the hidden command of a worker process.
pub(crate) const COMMAND: &str = "disk-worker";

/// Time that a worker may need beside the duration of its task: it may register a GiB of buffers, and operations may be
/// in flight on a slow disk at the end.
const EXTRA_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    Blocks(Job),
    Files(FilesPlan),
}

/// The result of a worker: a measurement with its latency curve, which [`Run`] does not store, or the reason of a
/// failure.
type WorkerResult = Result<(Run, Vec<[f64; 2]>), String>;

/// Runs a worker with this task. The worker first joins the cgroups in `groups`. Fails with the reason if the machine
/// does not support the task.
pub(crate) fn run(bench: &Bench, task: &Task, groups: &[PathBuf]) -> Result<Run, Failure> {
    let (Task::Blocks(Job { seconds, .. }) | Task::Files(FilesPlan { seconds, .. })) = task;
    let directory = bench.workspace.directory("disk-worker")?;
    let [given, result, output] = ["task", "result", "output"].map(|name| directory.join(name));
    write_whole(&given, &serde_json::to_string(task).map_err(Failure::other)?)?;
    // A worker that fails must not leave the result of the one before.
    let _ = fs::remove_file(&result);
    let launch = Launch {
        // `bench enter` executes the worker from this program's binary, so /proc/self/exe refers to it.
        arguments: vec!["bench".into(), COMMAND.into(), given.into(), result.clone().into()],
        groups: groups.to_vec(),
        ..Launch::new("disk worker", Path::new("/proc/self/exe"))
    };
    let mut worker = launch.start(&output)?;
    let deadline = Instant::now() + Duration::from_secs_f64(*seconds) + EXTRA_LIMIT;
    while worker.wait(Duration::from_millis(200)).is_none() {
        bench.check_interrupted()?;
        if Instant::now() > deadline {
            return Err(worker.problem("did not finish"));
        }
    }
    let text = fs::read_to_string(&result).map_err(|_| worker.problem("ended without a result"))?;
    let measured: WorkerResult = serde_json::from_str(&text).map_err(Failure::other)?;
    measured.map(|(run, curve)| Run { curve, ..run }).map_err(Failure::Other)
}

/// The main function of a worker: reads the task, executes it, writes the result.
pub(crate) fn main(args: &[OsString]) -> Result<(), Failure> {
    let [task, result] = args else { return Err(Failure::Usage(format!("{COMMAND} TASK RESULT"))) };
    let path = Path::new(task);
    let text = fs::read_to_string(path).map_err(Failure::file("read", path))?;
    let task: Task = serde_json::from_str(&text).map_err(Failure::other)?;
    let measured: WorkerResult = execute(&task).map(|run| {
        let curve = run.curve.clone();
        (run, curve)
    });
    write_whole(Path::new(result), &serde_json::to_string(&measured).map_err(Failure::other)?)
}

fn execute(task: &Task) -> Result<Run, String> {
    match task {
        Task::Blocks(job) => {
            let outcome = side_by_side(job.threads(), |thread, prepared| {
                let queue = open(job).and_then(|file| engines::queue(job, file.into()));
                prepared();
                drive::drive(queue?.as_mut(), job, thread)
            })?;
            Ok(outcome.run(job.engine == EngineKind::Sync))
        }
        Task::Files(plan) => {
            let paths = files::paths(plan)?;
            let read = |thread, prepared: &dyn Fn()| files::read(plan, &paths, thread, prepared);
            side_by_side(plan.threads, read).map(|outcome| files::run(&outcome))
        }
    }
}

/// Returns the user and kernel CPU time of the process in seconds so far, including kernel threads of its rings, and
/// the number of context switches.
fn usage() -> Result<(f64, f64, u64), String> {
    let used = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| format!("getrusage: {error}"))?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let switches = used.voluntary_context_switches() + used.involuntary_context_switches();
    Ok((seconds(used.user_time()), seconds(used.system_time()), switches as u64))
}

/// Runs `work` in `threads` threads concurrently, and adds up their outcomes and the resources that the process used.
/// Each thread announces that it is prepared and continues when all are prepared, so that no measured time includes the
/// set-up. A thread that fails to prepare reports this afterwards, so the others never wait for it.
fn side_by_side(
    threads: u32,
    work: impl Fn(u32, &dyn Fn()) -> Result<JobOutcome, String> + Sync,
) -> Result<JobOutcome, String> {
    let all = threads as usize + 1;
    let (prepared, begun) = (Barrier::new(all), Barrier::new(all));
    let wait = || {
        prepared.wait();
        begun.wait();
    };
    let (work, wait) = (&work, &wait);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread, wait))).collect();
        prepared.wait();
        let begin = usage();
        begun.wait();
        let (mut sum, mut failed) = (JobOutcome::nothing(), None);
        for handle in handles {
            match handle.join() {
                Ok(Ok(outcome)) => sum.add(&outcome),
                Ok(Err(reason)) => failed = Some(reason),
                Err(_) => failed = Some("a worker panicked".to_owned()),
            }
        }
        let (begin, end) = (begin?, usage()?);
        (sum.user_seconds, sum.system_seconds, sum.switches) =
            (end.0 - begin.0, end.1 - begin.1, end.2 - begin.2);
        failed.map_or(Ok(sum), Err)
    })
}

/// Opens the file of a job.
fn open(job: &Job) -> Result<fs::File, String> {
    let mut how = OpenOptions::new();
    how.read(true).write(job.pattern.read_percent() < 100);
    if job.direct {
        how.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    }
    how.open(&job.file).map_err(|error| match error.raw_os_error() {
        Some(22) if job.direct => "the file system does not support direct I/O (O_DIRECT: EINVAL)".to_owned(),
        _ => format!("cannot open {}: {error}", job.file.display()),
    })
}
