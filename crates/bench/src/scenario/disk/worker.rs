//! Runs jobs in separate processes: CPU time and context switches of a process are then those of the job, and "16
//! processes" is literal. This file has both sides: the worker process and its parent.
//!
//! ```text
//! parent                                   each worker
//! assignment file, starts it      ----->   opens the file, creates its queues
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

use nix::sys::resource::{Usage, UsageWho, getrusage};
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

/// Name of the hidden command of a worker process.
pub(crate) const COMMAND: &str = "disk-worker";

/// Time until workers must be ready: sixteen of them may register a GiB of buffers.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time until workers must exit after the end of a job: operations may be in flight on a slow disk.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The task of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Operations on one file.
    Blocks(Job),
    /// A set of files.
    Files(FilesPlan),
}

/// A task with the files that parent and worker use for synchronisation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Assignment {
    /// The task, the same for all processes of a job.
    task: Task,
    /// Index of this process's first thread among all threads of the job.
    first_worker: u32,
    /// Created by the worker when it is ready.
    ready: PathBuf,
    /// Created by the parent when all workers are ready.
    go: PathBuf,
    /// Written by the worker at its end: a result, or the reason of a failure.
    result: PathBuf,
}

/// Runs `processes` workers with the same task and adds up their results. They first join the cgroups in `groups`. The
/// inner error is the reason if the machine does not support the task.
pub(super) fn run(
    bench: &Bench,
    task: &Task,
    processes: u32,
    groups: &[PathBuf],
) -> Result<Result<JobOutcome, String>, Failure> {
    let (threads, seconds) = match task {
        Task::Blocks(job) => (job.threads, job.seconds),
        Task::Files(job) => (job.threads, job.seconds),
    };
    let directory = bench.workspace.directory("disk-workers")?;
    let _emptied = TemporaryDirectory(&directory);
    let go = directory.join("go");
    let mut workers = Vec::new();
    for number in 0..processes {
        // One file of each kind per process, all in one directory that is removed with the run.
        let place = |what: &str| directory.join(format!("{what}-{number}"));
        let (ready, result) = (place("ready"), place("result"));
        let assignment = Assignment {
            task: task.clone(),
            first_worker: number * threads,
            ready: ready.clone(),
            go: go.clone(),
            result: result.clone(),
        };
        let path = place("assignment");
        write_whole(
            &path,
            &serde_json::to_string(&assignment).map_err(|error| Failure::Other(error.to_string()))?,
        )?;
        // `bench enter` executes the worker from this program's binary, so /proc/self/exe refers to it.
        let launch = Launch {
            arguments: vec!["bench".into(), COMMAND.into(), path.into()],
            groups: groups.to_vec(),
            ..Launch::new("disk worker", Path::new("/proc/self/exe"))
        };
        workers.push((launch.start(&place("output"))?, ready, result));
    }
    for (worker, ready, result) in &mut workers {
        worker.wait_until(READY_LIMIT, || ready.exists() || result.exists())?;
    }
    write_whole(&go, "")?;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds) + END_LIMIT;
    let mut sum = JobOutcome::nothing();
    for (worker, _, result) in &mut workers {
        match worker_result(bench, worker, result, deadline)? {
            Ok(outcome) => sum.add(&outcome),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(sum))
}

/// Removes the files of a run at its end, so that the next run does not find the old `go` file.
struct TemporaryDirectory<'a>(&'a Path);

impl Drop for TemporaryDirectory<'_> {
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
) -> Result<Result<JobOutcome, String>, Failure> {
    while worker.wait(Duration::from_millis(200)).is_none() {
        bench.check_interrupted()?;
        if Instant::now() > deadline {
            return Err(worker.problem("did not finish"));
        }
    }
    let text = fs::read_to_string(result).map_err(|_| worker.problem("ended without a result"))?;
    serde_json::from_str(&text).map_err(|error| Failure::Other(format!("a disk worker's result: {error}")))
}

/// The main function of a worker: reads its assignment, executes it, writes the result.
pub(crate) fn main(args: &[OsString]) -> Result<(), Failure> {
    let [path] = args else { return Err(Failure::Usage(format!("{COMMAND} FILE"))) };
    let path = PathBuf::from(path);
    let read = Failure::file("read", &path);
    let text = fs::read_to_string(&path).map_err(read)?;
    let assignment: Assignment =
        serde_json::from_str(&text).map_err(|error| Failure::Other(format!("an assignment: {error}")))?;
    let answer = execute(&assignment);
    let text = serde_json::to_string(&answer).map_err(|error| Failure::Other(error.to_string()))?;
    write_whole(&assignment.result, &text)
}

/// Runs the threads of a process, each with a separate queue or engine.
fn execute(assignment: &Assignment) -> Result<JobOutcome, String> {
    let (mut sum, first, meet) = (JobOutcome::nothing(), assignment.first_worker, || meet(assignment));
    let add = |outcome: JobOutcome| sum.add(&outcome);
    let used = match &assignment.task {
        Task::Blocks(job) => {
            let work = |thread: u32, prepared: &dyn Fn()| {
                let queue = open(job).and_then(|file| {
                    let depth = if job.engine == EngineKind::Sync { 1 } else { job.depth };
                    engines::queue(job.engine, file.into(), depth, job.block_bytes)
                });
                prepared();
                drive::drive(queue?.as_mut(), job, first + thread)
            };
            side_by_side(job.threads, meet, work, add)
        }
        Task::Files(job) => {
            let paths = files::paths(job)?;
            let work = |thread: u32, prepared: &dyn Fn()| files::read(job, &paths, first + thread, prepared);
            side_by_side(job.threads, meet, work, add)
        }
    }?;
    (sum.user_seconds, sum.system_seconds, sum.switches) =
        (used.user_seconds, used.system_seconds, used.switches);
    Ok(sum)
}

/// Announces that this worker is ready, and waits for the others.
fn meet(assignment: &Assignment) -> Result<(), String> {
    write_whole(&assignment.ready, "").map_err(|error| error.to_string())?;
    let deadline = Instant::now() + READY_LIMIT;
    while !assignment.go.exists() {
        if Instant::now() > deadline {
            return Err("the start signal did not arrive".to_owned());
        }
        pause(Duration::from_millis(1));
    }
    Ok(())
}

/// Resources that the process used between two moments.
struct Used {
    /// User CPU time of all threads in seconds.
    user_seconds: f64,
    /// Kernel CPU time in seconds.
    system_seconds: f64,
    /// Voluntary and involuntary context switches.
    switches: u64,
}

/// Reads the resource usage of the process so far, including kernel threads of its rings.
fn usage() -> Result<Usage, String> {
    getrusage(UsageWho::RUSAGE_SELF).map_err(|error| format!("getrusage: {error}"))
}

impl Used {
    /// Returns the difference between two moments.
    fn between(begin: &Usage, end: &Usage) -> Used {
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let switches = |usage: &Usage| {
            usage.voluntary_context_switches() as u64 + usage.involuntary_context_switches() as u64
        };
        Used {
            user_seconds: seconds(end.user_time()) - seconds(begin.user_time()),
            system_seconds: seconds(end.system_time()) - seconds(begin.system_time()),
            switches: switches(end) - switches(begin),
        }
    }
}

/// Runs `work` in `threads` threads concurrently, and returns the resources that the process used for it. Each thread
/// announces that it is prepared and continues when all are prepared and `meet` has returned, so that no measured time
/// includes the set-up. A thread that fails to prepare reports this afterwards, so the others never wait for it.
fn side_by_side(
    threads: u32,
    meet: impl FnOnce() -> Result<(), String>,
    work: impl Fn(u32, &dyn Fn()) -> Result<JobOutcome, String> + Sync,
    mut add: impl FnMut(JobOutcome),
) -> Result<Used, String> {
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
        let mut failed = None;
        for handle in handles {
            match handle.join() {
                Ok(Ok(outcome)) => add(outcome),
                Ok(Err(reason)) => failed = Some(reason),
                Err(_) => failed = Some("a worker panicked".to_owned()),
            }
        }
        let end = usage();
        met?;
        let used = Used::between(&begin?, &end?);
        failed.map_or(Ok(used), Err)
    })
}

/// Opens the file of a job with the required access modes.
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
