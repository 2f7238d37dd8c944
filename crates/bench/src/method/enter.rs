//! The hidden command `ringroad bench enter`, which prepares a new process and then executes a server or tool.
//!
//! The new process joins cgroups, sets its CPU affinity, starts a new session, arranges to be killed with its parent,
//! and then executes the program. So the program never runs outside its limits, and no code has to run between fork(2)
//! and execve(2), which would be unsafe.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, FromArgMatches};
use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::failure::Failure;
use crate::method::pin;

pub(crate) const COMMAND: &str = "enter";

/// The settings to apply before the program is executed.
#[derive(Args, Clone, Debug)]
struct EnterOptions {
    /// Process id of the parent: if it has exited already, nothing is started
    #[arg(long)]
    parent: i32,
    /// A processor that the program may use (repeatable; none: all)
    #[arg(long)]
    cpu: Vec<usize>,
    /// The directory of a cgroup to join (repeatable)
    #[arg(long)]
    group: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// Executes the hidden command; returns only on failure.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let command = EnterOptions::augment_args(clap::Command::new(COMMAND));
    let options = EnterOptions::from_arg_matches(&command.try_get_matches_from(args)?)?;
    // Fails only for a process group leader, which is already separate.
    let _ = setsid();
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(Failure::kernel("PR_SET_PDEATHSIG"))?;
    // The kernel sends the signal when the parent exits, not if it had exited before.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(options.parent) {
        return Err(Failure::Interrupted);
    }
    for group in &options.group {
        let path = group.join("cgroup.procs");
        fs::write(&path, std::process::id().to_string())
            .map_err(Failure::file("join the control group", &path))?;
    }
    if !options.cpu.is_empty() {
        pin::this_thread_to(&options.cpu)?;
    }
    // Unblocks the signals that the suite blocks for itself; the program would inherit the mask.
    SigSet::empty().thread_set_mask().map_err(Failure::kernel("sigprocmask"))?;
    let (program, arguments) = options.words.split_first().expect("clap requires at least one word");
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::file("execute", Path::new(program))(error))
}
