//! Start, observation and termination of the programs of a run: servers and tools.
//!
//! Each program becomes a session leader, so that all its descendants can be found and ended, even if a process in
//! between has exited. It dies with the thread that started it (prctl(2), `PR_SET_PDEATHSIG`): start programs only from
//! the thread that runs the scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::time::clock_getcpuclockid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::failure::Failure;
use crate::method::{enter, proc_stat};

/// Time that a program has to exit after SIGTERM. nginx exits immediately; a process that waits for a disk does not.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Time until processes must vanish after SIGKILL: a process that waits for a throttled disk exits when its read
/// completes.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a program's last output line in a message.
const SAID_BYTES_MAX: usize = 400;

/// A program to be started, with its settings. [`Launch::new`] sets the defaults.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Allowed processors; empty means all.
    pub(crate) cpus: Vec<usize>,
    /// Directories of cgroups that the process joins before it executes the program.
    pub(crate) groups: Vec<PathBuf>,
    /// Working directory; `None` is that of this process.
    pub(crate) directory: Option<PathBuf>,
}

impl Launch {
    /// Creates settings without arguments; `name` is used in messages.
    pub(crate) fn new(name: &str, program: &Path) -> Launch {
        let (name, program) = (name.to_owned(), program.to_owned());
        let (arguments, cpus, groups) = (Vec::new(), Vec::new(), Vec::new());
        Launch { name, program, arguments, cpus, groups, directory: None }
    }

    /// Starts the program, with its standard output and error redirected to the file `output`.
    pub(crate) fn start(self, output: &Path) -> Result<Child, Failure> {
        let stream = Failure::file("create", output);
        let file = File::create(output).map_err(stream)?;
        let same = file.try_clone().map_err(stream)?;
        // The running program, even if its file has been replaced.
        let mut command = Command::new("/proc/self/exe");
        command.args(["bench", enter::COMMAND, "--parent"]).arg(std::process::id().to_string());
        for cpu in &self.cpus {
            command.arg("--cpu").arg(cpu.to_string());
        }
        for group in &self.groups {
            command.arg("--group").arg(group);
        }
        command.arg("--").arg(&self.program).args(&self.arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let process = command.spawn().map_err(Failure::file("start", &self.program))?;
        Ok(Child { name: self.name, process, output: output.to_owned(), ended: None })
    }

    /// Runs the program until it exits by itself. Fails unless it succeeds within `limit`.
    pub(crate) fn run(self, output: &Path, limit: Duration) -> Result<(), Failure> {
        let mut child = self.start(output)?;
        match child.wait(limit) {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(child.problem("failed")),
            None => Err(child.problem("did not finish")),
        }
    }
}

/// A running program. Dropping it ends the program and its descendants.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: std::process::Child,
    /// File with its output, for messages.
    output: PathBuf,
    /// Exit status, stored because a process can be waited for only once.
    ended: Option<ExitStatus>,
}

impl Child {
    /// Returns the id of the started process, which leads its session.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the ids of the program and its running descendants.
    pub(crate) fn tree(&self) -> BTreeSet<u32> {
        proc_stat::tree(self.id())
    }

    /// Returns the CPU time of the process tree so far. Kernel threads that work for a ring (io-wq, SQPOLL) are threads
    /// of its processes and counted.
    pub(crate) fn cpu_time(&self) -> CpuTime {
        CpuTime::of(self.tree())
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until it exits by itself, for at most `limit`; returns `None` on timeout.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // A pidfd becomes readable when the process exits; after an interrupted or refused wait the loop checks
            // again.
            wait_for_end(self.id(), left.min(Duration::from_millis(200)));
        }
    }

    /// Calls `ready` every 20 milliseconds until it returns true. Fails if the program exits before, or after `limit`.
    pub(crate) fn wait_until(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        loop {
            if ready() {
                return Ok(());
            }
            if let Some(status) = self.wait(Duration::from_millis(20)) {
                return Err(self.problem(&format!("ended with {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.problem(&format!("did not respond within {} s", limit.as_secs())));
            }
        }
    }

    /// Returns a failure of this program, with its last output line.
    pub(crate) fn problem(&self, problem: &str) -> Failure {
        Failure::Program {
            name: self.name.clone(),
            problem: problem.to_owned(),
            said: last_output(&self.output),
        }
    }

    /// Sends a signal to the program's process only.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Ends the program and its descendants, and waits until they have exited.
    pub(crate) fn end(&mut self) {
        // Read before the program exits: children that lose their parent can afterwards be found only by their session.
        let mut known = self.identified();
        if self.ended().is_none() {
            self.signal(Signal::TERM);
            self.wait(END_TIMEOUT);
        }
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            known.extend(self.identified());
            // Excludes exited processes, and unrelated processes that have reused an id.
            known.retain(|&(id, started)| {
                proc_stat::read(id).is_some_and(|stat| stat.started == started && !stat.is_zombie)
            });
            let Some(&(first, _)) = known.first() else { break };
            for &(id, _) in &known {
                send(id, Signal::KILL);
            }
            if Instant::now() >= deadline {
                eprintln!("ringroad bench: still running: {known:?}, processes of {}", self.name);
                return;
            }
            wait_for_end(first, Duration::from_millis(100));
            // The program itself must be waited for, or it remains a zombie.
            self.ended();
        }
        self.wait(Duration::from_secs(1));
    }

    /// Returns the process tree as ids with start times, which together identify processes uniquely.
    fn identified(&self) -> BTreeSet<(u32, u64)> {
        let stat = |id| proc_stat::read(id).map(|stat| (id, stat.started));
        self.tree().into_iter().filter_map(stat).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// CPU time of a set of processes at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CpuTime {
    /// Per process, so that a process that has exited since is detected.
    seconds_by_id: BTreeMap<u32, f64>,
}

impl CpuTime {
    /// Reads the exact sum that the scheduler maintains for all threads of each process, including exited threads.
    pub(crate) fn of(ids: impl IntoIterator<Item = u32>) -> CpuTime {
        let seconds = |id: u32| {
            let clock = clock_getcpuclockid(nix::unistd::Pid::from_raw(i32::try_from(id).ok()?)).ok()?;
            let now = clock.now().ok()?;
            Some((id, Duration::from(now).as_secs_f64()))
        };
        CpuTime { seconds_by_id: ids.into_iter().filter_map(seconds).collect() }
    }

    /// Returns the sum over all processes in seconds.
    pub(crate) fn sum(&self) -> f64 {
        self.seconds_by_id.values().sum()
    }

    /// Returns the CPU time used between this moment and a later one. Returns `None` if a process exited in between,
    /// because its time is lost; a process started in between counts in full.
    pub(crate) fn until(&self, later: &CpuTime) -> Option<f64> {
        if !self.seconds_by_id.keys().all(|id| later.seconds_by_id.contains_key(id)) {
            return None;
        }
        let spent = |(id, seconds): (&u32, &f64)| seconds - self.seconds_by_id.get(id).unwrap_or(&0.0);
        Some(later.seconds_by_id.iter().map(spent).sum())
    }
}

/// Returns the last line that a program wrote.
pub(crate) fn last_output(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(SAID_BYTES_MAX).collect()
}

/// Converts a process id for system calls; returns `None` for an invalid one.
fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

fn send(id: u32, signal: Signal) {
    if let Some(pid) = pid(id) {
        // Fails if the process has already exited, which is the intended result.
        let _ = kill_process(pid, signal);
    }
}

/// Waits until a process exits, for at most `limit`.
fn wait_for_end(id: u32, limit: Duration) {
    let descriptor = pid(id).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut watched: Vec<PollFd<'_>> =
        descriptor.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).expect("a fraction of a second fits");
    // Interrupted or not, the caller checks again.
    let _ = poll(&mut watched, Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_includes_all_threads_and_needs_every_process() {
        let own = std::process::id();
        let before = CpuTime::of([own]);
        std::thread::spawn(|| {
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        let after = CpuTime::of([own]);
        assert!(before.until(&after).unwrap() > 0.0);
        assert_eq!(before.until(&CpuTime::of([])), None);
        let newcomer = CpuTime::of([]).until(&after).unwrap();
        assert!(newcomer > 0.0);
    }

    #[test]
    fn the_last_output_of_a_process_is_one_line() {
        let path = std::env::temp_dir().join(format!("ringroad-last-words-{}", std::process::id()));
        fs::write(&path, "first\nsecond\n\n").unwrap();
        assert_eq!(last_output(&path), "second");
        fs::remove_file(&path).unwrap();
        assert_eq!(last_output(&path), "");
    }
}
