//! `ringroad bench enter`: the step between this program and a server or tool that it starts.
//!
//! A new process that joins control groups, keeps to its processors, gets a session of its own and dies with the one
//! that started it, and then becomes the program: so nothing of the program runs outside of its limits, and no code
//! has to run between fork(2) and execve(2), which would be unsafe.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, FromArgMatches};
use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::failure::Failure;

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "enter";

/// What to do before the program is executed.
#[derive(Args, Clone, Debug)]
struct EnterOptions {
    /// Who starts it: when that process is gone already, nothing is started
    #[arg(long)]
    parent: i32,
    /// A processor that it may use (again for each; none: all)
    #[arg(long)]
    cpu: Vec<usize>,
    /// The directory of a control group to join (again for each)
    #[arg(long)]
    group: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// Does what the arguments of the hidden command say; comes back only when it cannot.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let command = EnterOptions::augment_args(clap::Command::new(COMMAND));
    let matches = command.try_get_matches_from(args).map_err(|error| crate::failure::usage(&error))?;
    enter(&EnterOptions::from_arg_matches(&matches).map_err(|error| crate::failure::usage(&error))?)
}

fn enter(options: &EnterOptions) -> Result<(), Failure> {
    let kernel = |doing: &str, error: rustix::io::Errno| Failure::Kernel {
        doing: doing.to_owned(),
        error: error.into(),
    };
    // Only a process that leads its group already cannot make a session, and then it is apart as it is.
    let _ = setsid();
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| kernel("prctl(PR_SET_PDEATHSIG)", error))?;
    // The signal is sent at the parent's end, not when it was gone before.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(options.parent) {
        return Err(Failure::Interrupted);
    }
    for group in &options.group {
        let path = group.join("cgroup.procs");
        fs::write(&path, std::process::id().to_string())
            .map_err(Failure::file("join the control group", &path))?;
    }
    if !options.cpu.is_empty() {
        let mut cpus = CpuSet::new();
        for &cpu in &options.cpu {
            cpus.set(cpu);
        }
        sched_setaffinity(None, &cpus).map_err(|error| kernel("sched_setaffinity", error))?;
    }
    // What the suite blocks to end in order would be blocked in the program too.
    SigSet::empty().thread_set_mask().map_err(Failure::kernel("sigprocmask"))?;
    let (program, arguments) = options.words.split_first().expect("clap requires one word at least");
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::File { path: PathBuf::from(program), doing: "execute", error })
}
