//! Runs a task in separate processes: CPU time and context switches of a process are then those of the task, a cgroup can
//! limit its memory, and "16 processes" is literal. This file has both sides: the worker process and its parent.
//!
//! ```text
//! parent                                   each worker
//! task file, starts it            ----->   opens the file, creates its queues
//! sees all "ready" files          <-----   writes "ready"
//! writes "go"                     ----->   runs for the time
//! reads the results               <-----   writes its result, exits
//! ```

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
use crate::method::pause;
use crate::method::process::{Child, Launch};
use crate::method::workspace::write_whole;
use crate::report::model::Run;

/// Name of the hidden command of a worker process.
pub(crate) const COMMAND: &str = "disk-worker";

/// Time until workers must be ready: sixteen of them may register a GiB of buffers.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time until workers must exit after the end of a job: operations may be in flight on a slow disk.
const END_LIMIT: Duration = Duration::from_secs(60);

/// File with the task, the same for all processes of a job.
const TASK: &str = "task";
/// File that the parent creates when all workers are ready.
const GO: &str = "go";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    Blocks(Job),
    Files(FilesPlan),
}

/// The result of a worker, or the reason of a failure.
type WorkerResult = Result<JobOutcome, String>;

/// Returns the path of a file of one worker: `ready`, `result`, and `output`, to which it prints.
fn file(directory: &Path, what: &str, process: u32) -> PathBuf {
    directory.join(format!("{what}-{process}"))
}

/// Returns the command of a worker process.
pub(super) fn command(directory: &Path, process: u32) -> Vec<OsString> {
    vec!["bench".into(), COMMAND.into(), directory.into(), process.to_string().into()]
}

/// Runs workers with this task, and adds up their results. The workers first join the cgroups in `groups`. Fails with the
/// reason if the machine does not support the task.
pub(crate) fn run(bench: &Bench, task: &Task, groups: &[PathBuf]) -> Result<Run, Failure> {
    // `bench enter` executes the worker from this program's binary, so /proc/self/exe refers to it.
    let launch = |directory: &Path, process| Launch {
        arguments: command(directory, process),
        groups: groups.to_vec(),
        ..Launch::new("disk worker", Path::new("/proc/self/exe"))
    };
    run_by(bench, task, launch)
}

/// Does the same with other commands, which start the workers' commands.
pub(super) fn run_by(
    bench: &Bench,
    task: &Task,
    launch: impl Fn(&Path, u32) -> Launch,
) -> Result<Run, Failure> {
    let (processes, seconds) = match task {
        Task::Blocks(job) => (job.processes(), job.seconds),
        Task::Files(plan) => (1, plan.seconds),
    };
    let directory = bench.workspace.directory("disk-workers")?;
    let _removed = RemovedAtTheEnd(&directory);
    write_whole(&directory.join(TASK), &serde_json::to_string(task).map_err(Failure::other)?)?;
    let start = |process| launch(&directory, process).start(&file(&directory, "output", process));
    let mut workers = (0..processes).map(start).collect::<Result<Vec<Child>, _>>()?;
    for (process, worker) in (0..).zip(&mut workers) {
        let [ready, result] = ["ready", "result"].map(|what| file(&directory, what, process));
        worker.wait_until(READY_LIMIT, || ready.exists() || result.exists())?;
    }
    write_whole(&directory.join(GO), "")?;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds) + END_LIMIT;
    let mut sum = JobOutcome::nothing();
    for (process, worker) in (0..).zip(&mut workers) {
        sum.add(&worker_result(bench, worker, &file(&directory, "result", process), deadline)?);
    }
    Ok(match task {
        Task::Blocks(job) => sum.run(job.engine == EngineKind::Sync),
        Task::Files(_) => files::run(&sum),
    })
}

/// The directory of a run, removed at its end, so that the next run does not find the old `go` file.
struct RemovedAtTheEnd<'a>(&'a Path);

impl Drop for RemovedAtTheEnd<'_> {
    fn drop(&mut self) {
        // Remaining files are removed with the workspace.
        let _ = fs::remove_dir_all(self.0);
    }
}

/// Waits for the result of one worker.
fn worker_result(
    bench: &Bench,
    worker: &mut Child,
    result: &Path,
    deadline: Instant,
) -> Result<JobOutcome, Failure> {
    while worker.wait(Duration::from_millis(200)).is_none() {
        bench.check_interrupted()?;
        if Instant::now() > deadline {
            return Err(worker.problem("did not finish"));
        }
    }
    let text = fs::read_to_string(result).map_err(|_| worker.problem("ended without a result"))?;
    serde_json::from_str::<WorkerResult>(&text).map_err(Failure::other)?.map_err(Failure::Other)
}

/// The main function of a worker: reads the task, executes it, writes the result.
pub(crate) fn main(args: &[OsString]) -> Result<(), Failure> {
    let usage = || Failure::Usage(format!("{COMMAND} DIRECTORY PROCESS"));
    let [directory, process] = args else { return Err(usage()) };
    let directory = Path::new(directory);
    let process = process.to_str().and_then(|number| number.parse().ok()).ok_or_else(usage)?;
    let path = directory.join(TASK);
    let text = fs::read_to_string(&path).map_err(Failure::file("read", &path))?;
    let task: Task = serde_json::from_str(&text).map_err(Failure::other)?;
    let outcome: WorkerResult = execute(&task, directory, process);
    write_whole(
        &file(directory, "result", process),
        &serde_json::to_string(&outcome).map_err(Failure::other)?,
    )
}

fn execute(task: &Task, directory: &Path, process: u32) -> WorkerResult {
    let meet = || meet(directory, process);
    match task {
        Task::Blocks(job) => side_by_side(job.threads(), meet, |thread, prepared| {
            let queue = open(job).and_then(|file| engines::queue(job, file.into()));
            prepared();
            drive::drive(queue?.as_mut(), job, process * job.threads() + thread)
        }),
        Task::Files(plan) => {
            let paths = files::paths(plan)?;
            let read = |thread, prepared: &dyn Fn()| files::read(plan, &paths, thread, prepared);
            side_by_side(plan.threads, meet, read)
        }
    }
}

/// Announces that this worker is ready, and waits for the others.
fn meet(directory: &Path, process: u32) -> Result<(), String> {
    write_whole(&file(directory, "ready", process), "").map_err(|error| error.to_string())?;
    let deadline = Instant::now() + READY_LIMIT;
    while !directory.join(GO).exists() {
        if Instant::now() > deadline {
            return Err("the start signal did not arrive".to_owned());
        }
        pause(Duration::from_millis(1));
    }
    Ok(())
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
/// Each thread announces that it is prepared and continues when all are prepared and `meet` has returned, so that no
/// measured time includes the set-up. A thread that fails to prepare reports this afterwards, so the others never wait
/// for it.
fn side_by_side(
    threads: u32,
    meet: impl FnOnce() -> Result<(), String>,
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
        let met = meet();
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
        met?;
        let (begin, end) = (begin?, usage()?);
        (sum.user_seconds, sum.system_seconds, sum.switches) =
            (end.0 - begin.0, end.1 - begin.1, end.2 - begin.2);
        failed.map_or(Ok(sum), Err)
    })
}

/// Opens the file of a job.
fn open(job: &Job) -> Result<fs::File, String> {
    let mut how = OpenOptions::new();
    how.read(true).write(job.pattern.writes());
    if job.direct {
        how.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    }
    how.open(&job.file).map_err(|error| match error.raw_os_error() {
        Some(22) if job.direct => "the file system does not support direct I/O (O_DIRECT: EINVAL)".to_owned(),
        _ => format!("cannot open {}: {error}", job.file.display()),
    })
}
