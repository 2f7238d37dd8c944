//! A program that a test starts. Its output is written to files, and it never outlives the test.
//!
//! [`Program`] is the base of `server::Server`. It is also used directly for command lines without a configuration
//! (`ringroad serve DIR`, `ringroad engines`): [`Program::wait_for_output`] finds the printed address, [`run`] runs a
//! command to its end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid as RawPid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::process::{self, Pid};
use crate::tempdir::TempDir;
use crate::wait::{self, Deadline};

/// Time limit of [`run`]. A benchmark scenario that starts and ends many servers has taken five minutes on two busy
/// cores.
const RUN_MAX: Duration = wait::DEFAULT_LIMIT.saturating_mul(5);

/// A child process. Dropping it kills its process group. If the test itself is killed, a guard process
/// does this.
#[derive(Debug)]
pub struct Program {
    child: Child,
    guard: Guard,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Directory of the output files if the caller has not named one.
    _dir: Option<TempDir>,
}

/// The output of a finished program.
#[derive(Debug)]
pub struct Finished {
    /// Process id.
    pub pid: Pid,
    /// Exit status.
    pub status: ExitStatus,
    /// Complete standard output.
    pub stdout: String,
    /// Complete standard error.
    pub stderr: String,
}

/// Runs a program to its end.
#[track_caller]
pub fn run(binary: impl AsRef<OsStr>, args: &[&str]) -> Finished {
    let mut program = Program::start(binary, args);
    let status = program.wait_until_ended(Deadline::after(RUN_MAX));
    Finished { pid: program.pid(), status, stdout: program.stdout(), stderr: program.stderr() }
}

impl Program {
    /// Starts a program with these arguments and an empty standard input.
    #[track_caller]
    pub fn start(binary: impl AsRef<OsStr>, args: &[&str]) -> Program {
        let dir = TempDir::new("program");
        let mut command = Command::new(binary);
        command.args(args);
        let mut program = Program::spawn(command, dir.path());
        program._dir = Some(dir);
        program
    }

    /// Starts a prepared command; its output goes to the files `stdout` and `stderr` in `folder`.
    #[track_caller]
    pub fn spawn(command: Command, folder: &Path) -> Program {
        Program::spawn_guarded(command, folder, None)
    }

    /// Like [`Program::spawn`], for a program that may start a daemon, which has a separate process group and writes
    /// its pid to this file.
    #[track_caller]
    pub(crate) fn spawn_guarded(mut command: Command, folder: &Path, pid_file: Option<&Path>) -> Program {
        let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
        let create = |path: &Path| {
            File::create(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()))
        };
        command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
        // A new process group, which also contains its workers, so that they can be killed even if their parent has
        // exited.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let guard = Guard::of(child.id(), pid_file);
        Program { child, guard, stdout, stderr, _dir: None }
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        self.child.id() as Pid
    }

    /// Returns its standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.stderr)
    }

    /// Waits until a line of standard output or standard error contains `text`; returns that line.
    #[track_caller]
    pub fn wait_for_output(&mut self, text: &str, deadline: Deadline) -> String {
        let mut look = || {
            let ended = self.exited();
            let output = self.stdout() + &self.stderr();
            let line = output.lines().find(|line| line.contains(text)).map(str::to_owned);
            match (line, ended) {
                (Some(line), _) => Some(Ok(line)),
                (None, Some(status)) => Some(Err(format!("it ended without {text:?}: {status}"))),
                (None, None) => None,
            }
        };
        let found = wait::until(&format!("{text:?} in the output"), deadline, &mut look);
        let found = found.unwrap_or_else(|late| Err(late.to_string()));
        found.unwrap_or_else(|failure| panic!("{failure}\n{}{}", self.stdout(), self.stderr()))
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal).unwrap_or_else(|error| panic!("{signal:?}: {error}"));
    }

    /// Waits for the exit without sending a signal.
    #[track_caller]
    pub fn wait_until_ended(&mut self, deadline: Deadline) -> ExitStatus {
        let ended = wait::until("the program's end", deadline, || self.exited());
        ended.unwrap_or_else(|late| panic!("{late}\n{}{}", self.stdout(), self.stderr()))
    }

    /// Returns the exit status if the program has exited. It stays a zombie until this value is dropped, so that its ID is not reused:
    /// the kill of its group would otherwise hit another group.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let found = waitid(WaitId::Pid(RawPid::from_child(&self.child)), options);
        let ended = found.unwrap_or_else(|error| panic!("waitid: {error}"))?;
        // The format of wait(2).
        let code = ended.exit_status().map(|code| code << 8);
        let raw = code.or(ended.terminating_signal()).unwrap_or_else(|| panic!("{ended:?} is no end"));
        Some(ExitStatus::from_raw(raw))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program is waited for only after this call, so that its pid is not reused as a group id before. A worker that is being
        // started is already in the group.
        self.guard.kill_group(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.guard.end();
    }
}

/// A process that kills the test's program if the test is killed. It waits for the end of its standard input,
/// whose other end only the test has.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    /// Guards the process group of this leader, and that of the daemon whose pid is in the file.
    fn of(leader: u32, pid_file: Option<&Path>) -> Guard {
        const SCRIPT: &str = "read -r end; kill -s KILL -- \"-$0\"\n\
            [ -n \"$1\" ] && read -r pid <\"$1\" && [ \"$pid\" -gt 1 ] && kill -s KILL -- \"-$pid\"";
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg(leader.to_string()).args(pid_file);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A new process group, so that a kill of the test's group does not kill the guard.
        command.process_group(0);
        Guard(command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}")))
    }

    /// Kills the remaining processes of the group.
    fn kill_group(&self, leader: u32) {
        let leader = i32::try_from(leader).ok().filter(|&leader| leader > 0).and_then(RawPid::from_raw);
        // The group may be empty.
        let _ = leader.map(|leader| kill_process_group(leader, Signal::KILL));
    }

    /// Ends the guard, because no process remains to be killed.
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to one process. Never to a group or to all processes: `pid` must be positive. After [`Signal::STOP`] this waits until
/// all threads have stopped: on a busy machine one of them may run on until it gets the signal.
pub fn signal_process(pid: Pid, signal: Signal) -> std::io::Result<()> {
    // Checked first: zero and negative numbers mean groups, and `from_raw` panics on them.
    let target = if pid > 0 { RawPid::from_raw(pid) } else { None };
    let target = target.ok_or_else(|| std::io::Error::other(format!("{pid} is not a process id")))?;
    kill_process(target, signal)?;
    if signal == Signal::STOP {
        let is_stopped = || process::is_stopped(pid).then_some(());
        wait::until("the stop of all threads", Deadline::default(), is_stopped)
            .map_err(std::io::Error::other)?;
    }
    Ok(())
}

/// Reads a file as text; empty if it does not exist yet.
pub(crate) fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn output_and_status_are_returned() {
        let finished = run("sh", &["-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
    }

    #[test]
    fn a_line_is_awaited_and_the_program_ends_with_the_test() {
        let mut program = Program::start("sh", &["-c", "echo ready at 5 >&2; exec cat /dev/zero >/dev/null"]);
        assert_eq!(program.wait_for_output("ready", Deadline::default()), "ready at 5");
        let pid = program.pid();
        drop(program);
        assert!(!process::is_alive(pid));
    }

    #[test]
    #[should_panic(expected = "ended without")]
    fn an_early_exit_ends_the_wait() {
        Program::start("true", &[]).wait_for_output("ready", Deadline::default());
    }

    #[test]
    fn signals_to_process_groups_are_refused() {
        assert!(signal_process(0, Signal::TERM).is_err());
        assert!(signal_process(-1, Signal::TERM).is_err());
    }
}
